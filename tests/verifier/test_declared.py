"""Kernels against declarations: numbers that a kernel may take for a mark, inputs that do not matter, attributes."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from graphopt.base.dtype import DType
from graphopt.base.session import current_session
from graphopt.language.definition import Definition
from graphopt.language.proof import Verdict
from graphopt.language.terms import App, Term, TermLike
from graphopt.language.type_inference import COMMON_DTYPES
from graphopt.rule import Operators, Rule, define, fn, microsoft, op, real, tensor
from graphopt.verifier import kernel_conformance, sampling_scope
from graphopt.verifier.concrete_instance import Array, ConcreteInstance
from graphopt.verifier.expanded_rule import expand_definitions
from graphopt.verifier.instance_sampling import sample_instances
from graphopt.verifier.prove import prove
from tests.conftest import undefine

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
def defining() -> Iterator[Callable[..., Definition]]:
    """Defines operators until the end of the test, whatever is known of them."""

    def defined(head: App, said: App, when: Term | tuple[Term, ...] = (), **defaults: TermLike) -> Definition:
        undefine(head.op, head.domain)
        return define(head, said, when, **defaults)

    with current_session().child():
        yield defined


@pytest.mark.slow
@pytest.mark.parametrize("meaning", MASKS.values(), ids=MASKS)
def test_a_mask_that_is_declared_otherwise_is_contradicted(meaning: App, defining: Callable[..., Definition]) -> None:
    found = kernel_conformance.find_contradiction([defining(pooled, meaning)])
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
    (rule,) = kernel_conformance.as_rules(defining(microsoft.QuickGelu(y, alpha=1.0), y * op.Sigmoid(y), alpha=1.702))
    run = list(sample_instances(expand_definitions(rule), count=4))
    assert kernel_conformance._find_misread_input(rule, rule.holes["y"], run) is None

    def a_side_reads_it(_: Rule, each: ConcreteInstance) -> tuple[list[Array], list[Array]]:
        sides = [np.ones(1)], [np.full(1, 1.0 + float(np.sum(each.values["y"])) * 1e-9)]
        return sides if is_declared else sides[::-1]

    monkeypatch.setattr(kernel_conformance, "_check_beyond_rounding", lambda *_: (True, None))
    monkeypatch.setattr(kernel_conformance, "run_sides", a_side_reads_it)
    found = kernel_conformance._find_misread_input(rule, rule.holes["y"], run)
    assert found is not None and found.difference.text.endswith(f"and nothing of what {whose}")


def test_a_number_that_single_precision_cannot_hold_names_the_remedy(defining: Callable[..., Definition]) -> None:
    alpha = real("alpha")
    defining(Operators("tests.rounding").Quick(y, alpha=alpha), y * op.Sigmoid(y * alpha), alpha=1.0)
    rule = Rule("quick", y * op.Sigmoid(1.702 * y), Operators("tests.rounding").Quick(y, alpha=1.702))
    unknown = prove(rule)
    assert unknown.verdict is Verdict.UNKNOWN
    assert "in double; `when=fn.ne(fn.dtype(y), 11)` excludes that" in unknown.detail
    assert prove(replace(rule, when=fn.ne(fn.dtype(y), 11))).holds


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_an_attribute_of_one_value_is_asked_where_it_has_that(
    factor: float, defining: Callable[..., Definition]
) -> None:
    """The default, which is another, is no part of what is declared."""
    said = defining(microsoft.QuickGelu(y, alpha=factor), y * op.Sigmoid(y * factor), alpha=1.702)
    assert (
        kernel_conformance.find_contradiction([said]) is None
        and (kernel_conformance.count_agreeing_instances(said) or 0) > 50
    )
    wrong = defining(microsoft.QuickGelu(y, alpha=factor), y * op.Sigmoid(y * 3.0), alpha=1.702)
    assert kernel_conformance.find_contradiction([wrong]) is not None


def test_an_attribute_of_one_value_beside_another_default_is_proved() -> None:
    half = my.Half(y, alpha=0.5)
    define(half, y * 0.5, alpha=1.0)
    assert prove(Rule("half_twice", my.Half(half, alpha=0.5), y * 0.25, when=fn.eq(fn.dtype(y), 1))).holds
    define(my.Power(y, power=2, of="x"), y * y, power=1, of="x")
    assert prove(Rule("square", my.Power(y, power=2), y * y, when=fn.eq(fn.dtype(y), 1))).holds


@pytest.mark.parametrize("dtype", sorted({*COMMON_DTYPES, DType.BOOL, DType.INT8}))
def test_edges_are_drawn(dtype: DType) -> None:
    """0, 1, the least and the greatest, and tensors of one number."""
    drawn = [sampling_scope.edge_array(np.random.default_rng(seed), (6,), dtype) for seed in range(200)]
    found = {float(number) for array in drawn for number in array}
    assert {0.0, 1.0} <= found and any(len(set(array.tolist())) == 1 for array in drawn)
    if dtype.is_integer and dtype.bits <= sampling_scope.SMALL:
        assert {*map(float, dtype.limits)} <= found


def test_what_is_divided_by_is_not_zero() -> None:
    rule = Rule("divided", op.Div(y, z), op.Identity(y), when=fn.is_integer(fn.dtype(y)))
    assert all(each.values["z"].all() for each in sample_instances(rule, count=30, scope=sampling_scope.EDGES))


columns, gamma, shift, skip = tensor("x", "*b N"), tensor("g", "N"), tensor("h", "N"), tensor("k", "B S N")
total, epsilon = tensor("x", "B S N") + skip, real("epsilon")
layer = microsoft.SkipLayerNormalization(tensor("x", "B S N"), skip, gamma, shift, epsilon=epsilon)
normalized = op.LayerNormalization(total, gamma, shift, axis=-1, epsilon=epsilon)
cubed = columns * columns * columns
left, right = tensor("x", "M N"), tensor("y", "M N")
scales, zeros = [tensor(name, "") for name in ("s", "t", "v")], [tensor(name, "") for name in ("o", "p", "q")]
added = microsoft.QLinearAdd(left, scales[0], zeros[0], right, scales[1], zeros[1], scales[2], zeros[2])
in_bytes = tuple(fn.eq(fn.dtype(each), DType.UINT8) for each in (left, right, *zeros))


def tanh_gelu(factor: float, cube: float) -> Term:
    return columns * 0.5 * (op.Tanh((columns + cubed * cube) * factor) + 1.0)


def stepped(most: float, zero: Term) -> App:
    one, two = ((as_float(each) - as_float(o)) * s for each, s, o in zip((left, right), scales, zeros, strict=False))
    return op.Cast(op.Clip(op.Round((one + two) / scales[2]) + as_float(zero), 0.0, most), to=2)


NEAR = {
    "a_factor_of_three_digits": (microsoft.FastGelu(columns), tanh_gelu(0.798, 0.044715), ()),
    "a_cube_of_three_digits": (microsoft.FastGelu(columns), tanh_gelu(0.7978845608028654, 0.0447), ()),
    "a_root_of_four_digits": (microsoft.Gelu(y), y * 0.5 * (op.Erf(y * 0.7071) + 1.0), ()),
    "a_factor_close_to_one": (layer, normalized * 1.0001, epsilon >= 0),
    "an_epsilon_of_another_size": (layer, normalized, epsilon >= 0),
    "an_epsilon_beside_a_divisor": (microsoft.Inverse(tensor("x", "B 1 1")), 1.0 / (tensor("x", "B 1 1") + 1e-6), ()),
    "bytes_up_to_the_last_but_one": (added, stepped(254.0, zeros[2]), in_bytes),
    "bytes_with_another_zero_point": (added, stepped(255.0, zeros[0]) + zeros[2] * 0, in_bytes),
}


@pytest.mark.slow
@pytest.mark.parametrize(("head", "meaning", "when"), NEAR.values(), ids=NEAR)
def test_what_is_declared_in_few_digits_is_contradicted(
    head: App, meaning: App, when: Term | tuple[Term, ...], defining: Callable[..., Definition]
) -> None:
    said = defining(head, meaning, when, **({"epsilon": 1e-8} if head is layer else {}))
    assert kernel_conformance.find_contradiction([said]) is not None


@pytest.mark.slow
def test_what_is_declared_in_all_digits_is_not(defining: Callable[..., Definition]) -> None:
    for head, meaning in ((microsoft.FastGelu(columns), tanh_gelu(0.7978845608028654, 0.044715)), (layer, normalized)):
        when = fn.ne(fn.dtype(columns), DType.DOUBLE) if head is not layer else epsilon >= 0
        said = defining(head, meaning, when, **({"epsilon": 1e-12} if head is layer else {}))
        assert (
            kernel_conformance.find_contradiction([said]) is None
            and (kernel_conformance.count_agreeing_instances(said) or 0) > 50
        )
