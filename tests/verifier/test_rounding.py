"""Rules that are true of real numbers and wrong for floats: jumps, extreme numbers, single precision."""

import pytest

from graphopt.base.dtype import DType
from graphopt.language.proof import ProofModel, Verdict
from graphopt.language.rule import Rule, const, fn, op, real, tensor
from graphopt.language.terms import Term
from graphopt.verifier.prove import prove

x, y, a, b, k = tensor("x"), tensor("y"), const("a", ""), const("b", ""), real("k")
v, left, right = tensor("v", "N"), tensor("l", "M K"), tensor("r", "K N")
floats = fn.is_float(fn.dtype(x))
seventh = (x / 7.0) * 7.0

BEFORE_A_JUMP = (
    *(Rule(f"{name.lower()}_of_a_ratio", getattr(op, name)(seventh), getattr(op, name)(x), when=floats)
      for name in ("Floor", "Ceil", "Round", "Sign")),
    Rule("floor_of_moved_shift", op.Floor((x + a) + b), op.Floor(x + (a + b)), when=floats),
    Rule("ceil_of_joined_factors", op.Ceil((x * a) * b), op.Ceil(x * (a * b)), when=floats),
    Rule("round_of_distributed_factor", op.Round((v + a) * b), op.Round(v * b + a * b)),
    Rule("floor_of_relu_of_ratio", op.Floor(op.Relu(seventh)), op.Floor(op.Relu(x)), when=floats),
    Rule("floor_of_transposed_product", op.Floor(op.Transpose(left @ right, perm=(1, 0))),
         op.Floor(op.Transpose(right, perm=(1, 0)) @ op.Transpose(left, perm=(1, 0)))),
    Rule("floor_after_joined_products", op.Floor((left @ right) @ const("w", "N L")),
         op.Floor(left @ (right @ const("w", "N L")))),
    Rule("remainder_of_a_ratio", op.Mod(seventh, 3.0, fmod=1), op.Mod(x, 3.0, fmod=1), when=floats),
    *(Rule(f"{name.lower()}_of_a_ratio", getattr(op, name)(seventh, 3.0), getattr(op, name)(x, 3.0), when=floats)
      for name in ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")),
    Rule("less_of_moved_shift", op.Less((x + a) + b, 1.0), op.Less(x + (a + b), 1.0), when=floats),
    Rule("choice_by_a_ratio", op.Where(op.Greater(seventh, 3.0), x, y),
         op.Where(op.Greater(x, 3.0), x, y), when=fn.eq(fn.dtype(x), int(DType.FLOAT))),
    Rule("cast_of_a_ratio", op.Cast(seventh, to=int(DType.INT64)), op.Cast(x, to=int(DType.INT64)), when=floats),
    Rule("cast_of_joined_factors", op.Cast((x * a) * b, to=int(DType.INT32)),
         op.Cast(x * (a * b), to=int(DType.INT32)), when=floats),
    Rule("threshold_of_a_ratio", op.ThresholdedRelu(seventh, alpha=3.0), op.ThresholdedRelu(x, alpha=3.0), when=floats),
    Rule("shrunken_ratio", op.Shrink(seventh, lambd=1.0, bias=0.0), op.Shrink(x, lambd=1.0, bias=0.0), when=floats),
    Rule("floor_of_sum_twice", op.Floor(x + y) + op.Floor((x + y) + 0.0), op.Floor(x + y) * 2.0, when=floats),
)  # fmt: skip

EXTREME = (
    Rule("cancelled_number", (x + 1e30) - 1e30, op.Identity(x), when=floats),
    Rule("cancelled_large_number", (x + 1e5) - 1e5, op.Identity(x), when=floats),
    Rule("cancelled_in_a_sum", op.Sum(x, 65536.0, -65536.0), op.Identity(x), when=floats),
    Rule("overflowing_factor", (x * 1e30) * 1e-30, op.Identity(x), when=floats),
    Rule("underflowing_factor", (x * 1e-30) / 1e-30, op.Identity(x), when=floats),
    Rule("cancelled_in_a_number", x * k, x * fn.sub(fn.add(k, 1e30), 1e30), when=floats),
)  # fmt: skip

SINGLE = (
    Rule("factor_as_alpha", (left @ right) * 0.1, op.Gemm(left, right, alpha=0.1)),
    Rule("number_as_alpha", (left @ right) * k, op.Gemm(left, right, alpha=k)),
    Rule("slope_as_alpha", op.Where(op.Less(x, 0.0), x * k, x), op.LeakyRelu(x, alpha=k), when=floats),
)  # fmt: skip


square = tensor("x", "N N")
peak, peaks = op.ReduceMax(square, (-1,)), op.ReduceMax(square, (-1,), keepdims=0)
is_single, is_half = (fn.eq(fn.dtype(square), int(dtype)) for dtype in (DType.FLOAT, DType.FLOAT16))


def lifted(name: str, exponent: Term, *when: Term) -> Rule:
    return softmax(name, op.Exp(exponent), *when)


def softmax(name: str, weights: Term, *when: Term) -> Rule:
    """Softmax by these weights, of rows that are not empty."""
    own = op.Softmax(square, axis=-1), weights / op.ReduceSum(weights, (-1,))
    return Rule(f"softmax_{name}", *own, when=(fn.size("N") > 0, *when))


LARGE = (
    lifted("of_lifted_halves", square - (peak - 40.0), is_half),
    lifted("lifted_too_much", square - (peak - 60.0), is_single),
    lifted("less_another_peak", square - (op.ReduceMax(square * 2.0, (-1,)) - 4.0), is_single),
    lifted("unlifted_halves", square - peak, is_half),
    lifted("let_down", square - (peak - -1000.0), is_single),
    softmax("enlarged_lifted_weights", op.Exp(square - (peak - 40.0)) * 1e6 * 1e6 * 1e6 * 1e6, is_single),
    lifted("below_the_peak_of_all", square - op.ReduceMax(square, (0, 1)), is_single),
    Rule("exp_less_the_peaks_of_other_rows", op.Exp(square) * op.Exp(-peaks), op.Exp(square - peaks), when=is_single),
)


def test_exponentials_of_what_is_less_than_the_largest_do_not_overflow() -> None:
    proof = prove(lifted("of_lifted", square - (peak - 40.0), is_single))
    assert proof.holds, proof


@pytest.mark.slow
@pytest.mark.parametrize("rule", [*BEFORE_A_JUMP, *EXTREME, *SINGLE, *LARGE], ids=lambda rule: rule.name)
def test_what_is_true_of_real_numbers_alone_is_not_proved(rule: Rule) -> None:
    assert prove(rule, refute=False).verdict is Verdict.UNKNOWN


def test_the_detail_names_the_jump() -> None:
    proof = prove(Rule("floor_of_a_ratio", op.Floor(seventh), op.Floor(x), when=floats), refute=False)
    assert proof.detail.startswith("Floor jumps, and its operand is the same over the real numbers only"), proof
    assert proof.detail.endswith("found Floor(x / 7.0 * 7.0)"), proof


def test_a_cancelled_number_is_refuted() -> None:
    proof = prove(EXTREME[0])
    assert proof.verdict is Verdict.REFUTED, proof
    assert proof.detail == "the number 1e+30 is too large or too small to compute with in single precision"


def test_a_jump_that_both_sides_have_is_no_hindrance() -> None:
    proof = prove(Rule("scaled_floor", (op.Floor(x * y) * 2.0) * 2.0, op.Floor(x * y) * 4.0, when=floats))
    assert proof.holds and proof.model is not ProofModel.EXACT, proof


def test_an_attribute_that_was_one_stays_one() -> None:
    gemm = op.Gemm(left, right, alpha=k)
    proof = prove(Rule("gemm_of_neg", op.Neg(op.Neg(gemm)) + 0.0, op.Gemm(left, right, alpha=k)))
    assert proof.holds, proof
