"""Kernels against declarations: numbers that a kernel may take for a mark, inputs that do not matter, attributes."""

from collections.abc import Callable

import numpy as np
import pytest

from graphopt.base.types import DType
from graphopt.language import definition
from graphopt.language.definition import Definition
from graphopt.language.proof import Verdict
from graphopt.language.schemas import USUAL
from graphopt.language.term import App, Operand, Term
from graphopt.rule import Operators, Rule, define, fn, microsoft, op, tensor
from graphopt.verifier import declared, scope
from graphopt.verifier.drawing import instances
from graphopt.verifier.example import Array, Instance
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

    def defined(head: App, said: App, **defaults: Operand) -> Definition:
        others = {key: known for key, known in definition._TABLE.items() if key != (head.op, head.domain)}
        monkeypatch.setattr(definition, "_TABLE", others)
        return define(head, said, (), **defaults)

    return defined


@pytest.mark.parametrize("meaning", MASKS.values(), ids=MASKS)
def test_a_mask_that_is_declared_otherwise_is_contradicted(meaning: App, defining: Callable[..., Definition]) -> None:
    found = declared.contradicted([defining(pooled, meaning)])
    assert found is not None and "com.microsoft.MaxpoolWithMask is not what its definition says" in str(found)


def test_a_rule_that_rests_on_it_is_refuted(defining: Callable[..., Definition]) -> None:
    defining(pooled, MASKS["greatest_does_not_matter"])
    proof = prove(Rule("pool_without_mask", op.Relu(pooled), op.Relu(pool(image)), when=fn.eq(fn.dtype(image), 1)))
    assert proof.verdict is Verdict.REFUTED, proof


@pytest.mark.parametrize(("is_declared", "whose"), [(True, "the kernel computes"), (False, "is declared")])
def test_an_input_matters_to_both_or_to_none(
    is_declared: bool, whose: str, monkeypatch: pytest.MonkeyPatch, defining: Callable[..., Definition]
) -> None:
    """Also where it changes less than is allowed for rounding."""
    (rule,) = declared.as_rules(defining(microsoft.QuickGelu(y, alpha=1.0), y * op.Sigmoid(y), alpha=1.702))
    run = list(instances(meant(rule), count=4))
    assert declared._misread(rule, rule.holes["y"], run) is None

    def a_side_reads_it(_: Rule, each: Instance) -> tuple[list[Array], list[Array]]:
        sides = [np.ones(1)], [np.full(1, 1.0 + float(np.sum(each.values["y"])) * 1e-9)]
        return sides if is_declared else sides[::-1]

    monkeypatch.setattr(declared, "_judged", lambda *_: (True, None))
    monkeypatch.setattr(declared, "ran", a_side_reads_it)
    found = declared._misread(rule, rule.holes["y"], run)
    assert found is not None and found.gap.text.endswith(f"and nothing of what {whose}")


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


@pytest.mark.parametrize("dtype", sorted({*USUAL, DType.BOOL, DType.INT8}))
def test_edges_are_drawn(dtype: DType) -> None:
    """0, 1, the least and the greatest, and tensors of one number."""
    drawn = [scope.edge_array(np.random.default_rng(seed), (6,), dtype) for seed in range(200)]
    found = {float(number) for array in drawn for number in array}
    assert {0.0, 1.0} <= found and any(len(set(array.tolist())) == 1 for array in drawn)
    if dtype.is_integer and dtype.bits <= scope.SMALL:
        assert {*map(float, dtype.limits)} <= found


def test_what_is_divided_by_is_not_zero() -> None:
    rule = Rule("divided", op.Div(y, z), op.Identity(y), when=fn.is_integer(fn.dtype(y)))
    assert all(each.values["z"].all() for each in instances(rule, count=30, scope=scope.EDGES))
