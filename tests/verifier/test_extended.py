"""What holds for infinities and NaN, too: sums and products that are only reordered. Run in ONNX Runtime as well."""

from typing import Any

import numpy as np
import pytest

from graphopt.language import rule_library
from graphopt.language.proof import ProofModel, Verdict
from graphopt.language.rule import Rule, const, fn, op, tensor
from graphopt.runtime.oracle import RunFailedError, RunnableModel, onnxruntime_unoptimized
from graphopt.verifier.instance_models import build_models
from graphopt.verifier.instance_sampling import sample_instances
from graphopt.verifier.prove import prove
from tests.verifier.broken import attention

x, y, z, a, b = tensor("x"), tensor("y"), tensor("z"), const("a", ""), const("b", "")
left, right, w, v = tensor("l", "M K"), tensor("r", "K N"), const("w", "K N"), const("v", "K N")
floats, not_zero = fn.is_float(fn.dtype(x)), fn.is_nonzero(a)
lines = tensor("x", "N C H")

KEPT = (
    Rule("sums_regrouped", (x + a) + b, x + (a + b), when=floats),
    Rule("factors_regrouped", (x * a) * b, x * (a * b), when=floats),
    Rule("factor_into_sum", (x + y) * a, x * a + y * a),
    Rule("divisor_into_sum", (x + y) / a, x / a + y / a, when=(floats, not_zero)),
    Rule("minus_into_product", op.Neg(x * y), op.Neg(x) * y, when=floats),
    Rule("quotient_of_quotient", (a / x) / b, (a / b) / x, when=(floats, fn.is_nonzero(b))),
    Rule("quotient_as_a_product", x / a, x * (1.0 / a), when=(floats, not_zero)),  # as which rules match it
    Rule("scale_into_product", (left @ w) * a, left @ (w * a)),
    Rule("product_transposed", op.Transpose(left @ right, perm=(1, 0)),
         op.Transpose(right, perm=(1, 0)) @ op.Transpose(left, perm=(1, 0))),
    Rule("products_side_by_side", op.Concat(left @ w, left @ v, axis=1), left @ op.Concat(w, v, axis=1)),
    Rule("relu_of_a_sum_regrouped", op.Relu((x + a) + b), op.Relu(x + (a + b)), when=floats),
)  # fmt: skip

LOST = (
    Rule("twice_is_a_multiple", x * a + x * b, x * (a + b)),
    Rule("difference_undone", (tensor("p", "N") - tensor("q", "N")) + tensor("q", "N"), op.Identity(tensor("p", "N"))),
    Rule("factor_taken_out", x * z + y * z, (x + y) * z),
    Rule("times_nothing", (x * y) * 0.0, x * 0.0 + (y - y), when=floats),
    Rule("products_added", left @ w + left @ v, left @ (w + v)),
    Rule("products_in_another_order", (left @ right) @ const("u", "N L"), left @ (right @ const("u", "N L"))),
    Rule("ratio_to_a_sum", a / ((x + y) * b), (a / b) / (x + y), when=(floats, fn.is_nonzero(b))),
    Rule("ratio_of_unknown_constants", (x + y) / a, x / a + y / a, when=floats),
    Rule("root_as_a_power", op.Pow(x, 0.5), op.Sqrt(x), when=floats),
    Rule("greatest_as_clip", op.Max(x, 0.75), op.Clip(x, 0.75), when=floats),
    Rule("wider_kernel", op.Conv(lines, const("k", "M C 1")),
         op.Conv(lines, op.Pad(const("k", "M C 1"), (0, 0, 1, 0, 0, 1)), pads=(1, 1))),
    Rule("padding_times_infinite_weights", op.Conv(lines / const("c", "C 1"), const("k", "M C K"), pads=(1, 1)),
         op.Conv(lines, const("k", "M C K") / const("c", "C 1"), pads=(1, 1))),
)  # fmt: skip


@pytest.mark.parametrize("rule", KEPT, ids=lambda rule: rule.name)
def test_what_only_reorders_holds_for_infinities(rule: Rule) -> None:
    proof = prove(rule, refute=False)
    assert (proof.verdict, proof.model) == (Verdict.PROVED, ProofModel.EXTENDED), proof
    assert proof.claim_text == "proved, reassociates"
    assert differences(rule, count=20) == []


@pytest.mark.parametrize("rule", [*LOST, *attention.FINITE], ids=lambda rule: rule.name)
def test_what_cancels_or_distributes_does_not(rule: Rule) -> None:
    assert prove(rule, refute=False).model in (ProofModel.REAL, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "fuse_bn_into_conv",
        "fuse_mul_into_gemm",
        "fuse_consecutive_subs",
        "merge_2_parallel_convs",
        "fuse_mul_before_conv",
    ],
)
def test_a_built_in_rule_keeps_infinities(name: str) -> None:
    rule = next(rule for rule in rule_library.load_library().all_rules if rule.name == name)
    assert prove(rule).model is ProofModel.EXTENDED
    assert differences(rule, count=40) == []


def differences(rule: Rule, count: int) -> list[dict[str, Any]]:
    """The inputs, infinities and NaN among them, for which the sides differ in where they are finite."""
    rng, found = np.random.default_rng(0), []
    for instance in sample_instances(rule, seed=2, count=count):
        feeds = {name: _with_nonfinite(array, rng) for name, array in instance.feeds(rule).items()}
        before, after = build_models(rule, instance)
        try:
            with onnxruntime_unoptimized(RunnableModel(before)) as session:
                expected = session.run(feeds)
        except RunFailedError:
            continue
        with onnxruntime_unoptimized(RunnableModel(after)) as session:
            outputs = session.run(feeds)
        if not all(map(_agree, expected, outputs)):
            found.append(feeds)
    return found


def _with_nonfinite(array: Any, rng: np.random.Generator) -> Any:
    if array.dtype.kind != "f" or not array.size:
        return array
    changed = array.ravel().copy()
    places = rng.integers(0, array.size, max(1, array.size // 4))
    changed[places] = rng.choice(np.array([np.inf, -np.inf, np.nan, 0.0], array.dtype), len(places))
    return changed.reshape(array.shape)


def _agree(before: Any, after: Any) -> bool:
    same = (before == after) | (np.isnan(before) & np.isnan(after))
    return bool(np.where(np.isfinite(before), np.isfinite(after), same).all())
