"""Wrong rules on attention with a guard behind: of a row that is NaN the operator makes NaN or 0, unknown which."""

from __future__ import annotations

from graphopt.language.rule import Rule, fn, op, tensor
from graphopt.language.terms import App, Term, Var
from graphopt.rules.attention import FLAT, TRADES, mask, values

BY_NAME = {rule.name: rule for rule in TRADES}
masked = BY_NAME["fuse_masked_attention"]
(written,), (fused,), fits = masked.left, masked.right, masked.conditions
(unmasked,) = BY_NAME["fuse_attention"].right
finite = (*fits, fn.is_finite(values))
q, k = tensor("q", "B H L E"), tensor("k", "B H S E")
v, u, t = (tensor(name, "B H S F") for name in "vut")


def guarded(value: Term, instead: float = 0.0) -> App:
    return op.Where(op.IsNaN(value), instead, value)


def attention(given: Var = mask, *, scale: float = 1.0, causal: int = 0) -> App:
    heads = fn.size("H")
    made = op.Attention(*FLAT, given, q_num_heads=heads, kv_num_heads=heads, scale=scale, is_causal=causal)
    return op.Reshape(made, fn.concat(0, 0, fn.sizes("H V")))


def told(value: Term) -> App:
    """Where a value is NaN, in numbers."""
    return op.Where(op.IsNaN(value), 1.0, 0.0)


UNPROVED = (
    Rule("guard_of_attention_dropped", guarded(written), fused, when=finite),
    Rule("guard_of_attention_added", written, guarded(fused), when=finite),
    Rule("guard_of_attention_by_one", guarded(written), guarded(fused, 1.0), when=finite),
    Rule("guard_of_what_was_attention_by_one", guarded(written, 1.0), guarded(fused), when=finite),
    Rule("mask_of_guarded_attention_dropped", guarded(written), guarded(unmasked), when=finite),
    Rule("guarded_attention_of_another_scale", guarded(written), guarded(attention(scale=2.0)), when=finite),
    Rule("guarded_attention_that_is_causal", guarded(written), guarded(attention(causal=1)), when=finite),
    Rule("guarded_attention_of_the_other_sign", guarded(written), guarded(op.Neg(fused)), when=finite),
    Rule("guarded_attention_by_another_row", guarded(written),
         op.Where(op.IsNaN(op.ReduceSum(fused, (1,), keepdims=1)), 0.0, fused), when=finite),
    Rule("nan_of_attention_beside_a_guard", guarded(written) + told(written), guarded(fused) + told(fused),
         when=finite),
    Rule("root_of_a_sum_as_values_of_attention", guarded(op.Attention(q, k, op.Sqrt((v + u) + t))),
         guarded(op.Attention(q, k, op.Sqrt(v + (u + t))))),
    Rule("root_of_a_sum_as_scores", guarded(op.Softmax(op.Sqrt((v + u) + t), axis=-1)),
         guarded(op.Softmax(op.Sqrt(v + (u + t)), axis=-1))),
    Rule("root_of_a_sum_as_values", guarded(op.Softmax(q, axis=-1) @ op.Sqrt((v + u) + t)),
         guarded(op.Softmax(q, axis=-1) @ op.Sqrt(v + (u + t)))),
)  # fmt: skip

FINITE = (
    Rule("attention_without_a_guard", written, fused, when=finite),
    Rule("guards_of_attention_by_one", guarded(written, 1.0), guarded(fused, 1.0), when=finite),
    Rule("guarded_attention_of_infinite_values", guarded(written), guarded(fused), when=fits),
    Rule("nan_of_attention", op.IsNaN(written), op.IsNaN(fused), when=finite),
)
"""True of finite numbers, and proved for no others."""
