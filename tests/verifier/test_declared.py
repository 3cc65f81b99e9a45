"""Kernels against declarations: numbers that a kernel may take for a mark, inputs that do not matter, attributes."""

from collections.abc import Callable

import numpy as np
import pytest

from graphopt.language import definition
from graphopt.language.definition import Definition
from graphopt.language.proof import Verdict
from graphopt.language.term import App, Term
from graphopt.rule import Operators, Rule, define, fn, microsoft, op, tensor
from graphopt.verifier import declared, scope
from graphopt.verifier.counterexample import ran
from graphopt.verifier.drawing import instances
from graphopt.verifier.meant import meant
from graphopt.verifier.prove import prove

my = Operators("tests.declared")
image, mask = tensor("x", "N C H W"), tensor("m", "N C H W")
y, z = tensor("y"), tensor("z")
pooled = microsoft.MaxpoolWithMask(image, mask, kernel_shape=(2, 2))
LOWEST = float(np.finfo(np.float32).min)


def pool(value: Term) -> App:
    return op.MaxPool(value, kernel_shape=(2, 2))


def as_float(value: Term) -> App:
    return op.Cast(value, to=1)


def where(seen: Term) -> App:
    return pool(op.Where(seen, image, LOWEST))


MASKS = {
    "greatest_does_not_matter": pool(image) + as_float(op.ReduceMax(mask)) * 0.0,
    "least_does_not_matter": pool(image) + as_float(op.ReduceMin(mask)) * 0.0,
    "none_does_matter": pool(image + as_float(mask) * 0.0),
    "it_matters_little": pool(image) + as_float(op.ReduceMax(mask)) * 1e-6,
    "what_is_one_is_seen": where(op.Equal(mask, 1)),
    "what_is_not_two_is_seen": where(op.Not(op.Equal(mask, 2))),
    "what_is_far_from_zero_is_seen": where(op.Greater(op.Abs(mask), 100)),
}


@pytest.fixture
def defining(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Definition]:
    """Defines operators until the end of the test, whatever is known of them."""

    def defined(head: App, *said: App, **defaults: float) -> Definition:
        others = {key: known for key, known in definition._TABLE.items() if key != (head.op, head.domain)}
        monkeypatch.setattr(definition, "_TABLE", others)
        return define(head, *said, **defaults)

    return defined


@pytest.mark.parametrize("meaning", MASKS.values(), ids=MASKS)
def test_a_mask_that_is_declared_otherwise_is_refuted(meaning: App, defining: Callable[..., Definition]) -> None:
    defining(pooled, meaning)
    bare = Rule("pool_without_mask", op.Relu(pooled), op.Relu(meaning), when=fn.eq(fn.dtype(image), 1))
    proof = prove(bare)
    assert proof.verdict is Verdict.REFUTED, proof
    assert proof.counterexample.startswith("com.microsoft.MaxpoolWithMask is not what its definition says")


def test_what_matters_less_than_rounding_has_to_matter_to_the_kernel(defining: Callable[..., Definition]) -> None:
    """Each value is near enough; the kernel reads nothing of what is declared to change it."""
    quick = microsoft.QuickGelu(y, alpha=1.0)
    (rule,) = declared.as_rules(defining(quick, y * op.Sigmoid(y), alpha=1.702))
    run = [each for each in instances(meant(rule), count=8) if ran(rule, each)]
    assert run and declared._misread(rule, rule.holes["y"], run) is None
    (other,) = declared.as_rules(defining(quick, y * 0.0 + op.Sigmoid(1e-9) * 0.0, alpha=1.702))
    found = declared._misread(other, other.holes["y"], [each for each in run if not np.any(each.values["y"])] or run)
    assert found is not None


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_an_attribute_of_one_value_is_asked_where_it_has_that(
    factor: float, defining: Callable[..., Definition]
) -> None:
    """The default, which is another, is no part of what is declared."""
    said = defining(microsoft.QuickGelu(y, alpha=factor), y * op.Sigmoid(y * factor), alpha=1.702)
    assert declared.contradicted([said]) is None and (declared.agreeing(said) or 0) > 50
    wrong = defining(microsoft.QuickGelu(y, alpha=factor), y * op.Sigmoid(y * 3.0), alpha=1.702)
    assert declared.contradicted([wrong]) is not None


def test_an_attribute_of_one_value_beside_another_default_is_proved() -> None:
    half = my.Half(y, alpha=0.5)
    define(half, y * 0.5, alpha=1.0)
    assert prove(Rule("half_twice", my.Half(half, alpha=0.5), y * 0.25, when=fn.eq(fn.dtype(y), 1))).holds
    define(my.Power(y, power=2, of="x"), y * y, power=1, of="x")
    assert prove(Rule("square", my.Power(y, power=2), y * y, when=fn.eq(fn.dtype(y), 1))).holds


@pytest.mark.parametrize("dtype", [int(d) for d in scope.DType if d in scope.USUAL or d.name in ("BOOL", "INT8")])
def test_edges_are_drawn(dtype: int) -> None:
    """0, 1, the least and the greatest, and tensors of one number."""
    kind = scope.DType(dtype)
    drawn = [scope.edge_array(np.random.default_rng(seed), (6,), kind) for seed in range(200)]
    found = {float(number) for array in drawn for number in array}
    assert {0.0, 1.0} <= found and any(len(set(array.tolist())) == 1 for array in drawn)
    if kind.is_integer and kind.bits <= scope.SMALL:
        assert {*map(float, kind.limits)} <= found


def test_what_is_divided_by_is_not_zero() -> None:
    rule = Rule("divided", op.Div(y, z), op.Identity(y), when=fn.is_integer(fn.dtype(y)))
    assert all(each.values["z"].all() for each in instances(rule, count=30, scope=scope.EDGES))
