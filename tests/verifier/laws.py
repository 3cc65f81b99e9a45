"""Rules that say what no case shows: which nodes the exact model tells apart, and what a proof tries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import matmul

from graphopt.base.dtype import DType
from graphopt.language.proof import ProofModel
from graphopt.language.rule import Rule, attributes, const, fn, integer, integers, op, tensor
from graphopt.language.terms import App, Term, TermLike, operator_applications
from graphopt.rules.attention import TRADES
from graphopt.rules.casting import LOSSLESS
from graphopt.verifier.prove import prove

x, y, m, o = tensor("x"), tensor("y"), tensor("x", "M N"), tensor("o", "M N")
c, d = const("c"), const("d")
s = integers("s")
n, w, one = tensor("n", "N M"), tensor("w", "L"), tensor("one", "1 1 1")
u, v = const("u", "M L"), const("v", "L N")
at = tensor("at", "M 1")
row, N = tensor("x", "N"), fn.size("N")
evens = op.Slice(row, (0,), fn.concat(N), (0,), (2,))
query, key, value = tensor("q", "B H L E"), tensor("k", "B H S E"), tensor("v", "B H S F")
scores = query @ op.Transpose(key, perm=(0, 1, 3, 2))
seen, FULL = op.Softmax(scores, axis=-1) @ value, tuple(fn.le(1, fn.size(axis)) for axis in "BHLSEF")
FINITE = (*FULL, fn.is_finite(value))
fixed = {name: const(name, f"B H {axes}") for name, axes in (("q", "L E"), ("k", "S E"), ("v", "S F"))}
swapped = op.Transpose(fixed["k"], perm=(0, 1, 3, 2))
greatest, places = op.TopK.split(2, row, integers("k"), axis=0)


@dataclass(frozen=True)
class Law:
    """A rule, and the strongest model that proves it, None where it is not proved."""

    rule: Rule
    model: ProofModel | None

    @property
    def operators(self) -> frozenset[str]:
        return operators_of(self.rule)

    def holds(self) -> bool:
        proof = prove(self.rule, refute=False)
        return (proof.model if proof.holds else None) is self.model


def operators_of(rule: Rule) -> frozenset[str]:
    return frozenset(app.op for side in (*rule.left, *rule.right) for app in operator_applications(side))


def law(name: str, left: object, right: object, model: ProofModel | None, *when: Term) -> Law:
    return Law(Rule(name, left, right, when=when), model)  # type: ignore[arg-type]


def guarded(term: Term) -> App:
    return op.Where(op.IsNaN(term), 0.0, term)


def attention(**attributes: TermLike) -> App:
    return op.Attention(query, key, value, scale=1.0, **attributes)


def as_long_as_range(vector: TermLike, *numbers: TermLike) -> App:
    """The vector, where it has as many elements."""
    return op.Reshape(vector, op.Shape(op.Range(*numbers)))


ELEVEN, MORE, TWELVE = fn.eq(fn.length(s), 11), fn.lt(11, fn.length(s)), fn.eq(fn.length(s), 12)
"""Conditions on a list of indices: up to 11 is tried what a rule writes, and one more."""
a, i = integer("a"), tensor("i", "P")
e, f = const("e", ""), const("f", "")
z, big, t = tensor("z", "K N"), tensor("big", "H N"), tensor("t", "A B C D E F G")


def rows(term: Term, indices: Term) -> Term:
    return op.Gather(term, indices, axis=0)


GELU = op.Gelu(rows(m, s), approximate="tanh")


def resized(rounding: str) -> Term:
    return op.Resize(m, None, (1.0, 1.0), mode="nearest", nearest_mode=rounding)


def flat(term: Term) -> Term:
    return op.Reshape(term, (-1,))


onto, through = integer("to"), integer("through")


def narrow(term: Term, between: Callable[[Term], Term] = lambda term: term) -> Term:
    return op.Cast(between(op.Cast(term, to=through)), to=onto)


def widened(to: int, unsigned: Term) -> Term:
    """Whole numbers of bytes without signs, or of what is made of them."""
    return op.Cast(unsigned if to == 2 else op.Cast(unsigned, to=to), to=6)


SIGNED, UNSIGNED = fn.eq(fn.dtype(x), 3), fn.eq(fn.dtype(y), 2)


def largest(term: Term) -> Term:
    return op.ReduceMax(term, keepdims=0)


FLAT = (flat(m) + flat(n), flat(m) + w, flat(m) + op.Softmax(flat(n), axis=0), flat(m) * op.Squeeze(one, (0, 1, 2)))
"""Vectors of which some are made of tensors of other shapes: what is computed of them is not that of these tensors."""
OUTER = flat(m) + op.Reshape(m, (-1, 1))

images, filters = tensor("x", "B C *s"), const("w", "O I *k")


def summed(name: str, is_right: bool, bound: Term, *types: DType, zeros: int = 0) -> Law:
    """Doubles are integers that are added up in 32 bits: of two types, of which `zeros` have zero points."""
    one, other, given = tensor("a", "M K"), tensor("b", "K N"), (const("z", ""), const("u", ""))[:zeros]
    factors = (op.DequantizeLinear(x, o, *zero) for x, o, zero in ((one, e, given[:1]), (other, f, given[1:])))
    right = op.DequantizeLinear(op.MatMulInteger(one, other, *given), e * f)
    when = (
        fn.eq(fn.dtype(term), int(dtype)) for term, dtype in zip((one, other, e), (*types, DType.FLOAT), strict=True)
    )
    return law(
        name,
        reduce(matmul, factors),
        right,
        (ProofModel.REAL if zeros else ProofModel.EXTENDED) if is_right else None,
        *when,
        bound,
    )


def summed_images(name: str, is_right: bool, bound: Term) -> Law:
    left = op.Conv(*(op.Cast(x, to=int(DType.DOUBLE)) for x in (images, filters)))
    right = op.Cast(op.ConvInteger(images, filters), to=int(DType.DOUBLE))
    types = (fn.eq(fn.dtype(x), int(DType.UINT8)) for x in (images, filters))
    return law(name, left, right, ProofModel.EXTENDED if is_right else None, *types, bound)


K, weights = fn.size("K"), fn.size("I") * fn.product(fn.sizes("*k"))
U8, I8 = DType.UINT8, DType.INT8
ACCUMULATED = (
    summed("bytes", True, fn.le(K, 33_025), U8, U8),
    summed("more_bytes", False, fn.le(K, 33_026), U8, U8),
    summed("signed_bytes", True, fn.le(K, 131_071), I8, I8),
    summed("more_signed_bytes", False, fn.le(K, 131_072), I8, I8),
    summed("bytes_of_both_kinds", True, fn.le(K, 65_793), U8, I8),
    summed("more_bytes_of_both_kinds", False, fn.le(K, 65_794), U8, I8),
    summed("signed_bytes_less_one", True, fn.le(K, 65_793), I8, I8, zeros=1),
    summed("more_signed_bytes_less_one", False, fn.le(K, 65_794), I8, I8, zeros=1),
    summed("signed_bytes_less_both", True, fn.le(K, 33_025), I8, I8, zeros=2),
    summed("more_signed_bytes_less_both", False, fn.le(K, 33_026), I8, I8, zeros=2),
    summed_images("images", True, fn.le(weights, 33_025)),
    summed_images("larger_images", False, fn.le(weights, 33_026)),
    summed_images("images_of_any_channels", False, fn.le(fn.product(fn.sizes("*k")), 33_025)),
    law(
        "difference_in_32_bits",
        op.DequantizeLinear(c, e, d),
        op.DequantizeLinear(c, e) - op.DequantizeLinear(d, e),
        None,
        fn.eq(fn.dtype(c), int(DType.INT32)),
    ),
)
"""How many products of bytes fit into 32 bits, and how many do not."""

LAWS = (
    *ACCUMULATED,
    law("greater_is_not_less", op.Greater(x, y), op.Less(x, y), None),
    law("greater_turns_round", op.Greater(x, y), op.Less(y, x), ProofModel.EXACT),
    law("greater_or_equal_turns_round", op.GreaterOrEqual(x, y), op.LessOrEqual(y, x), ProofModel.EXACT),
    law("less_is_not_less_or_equal", op.Less(x, y), op.LessOrEqual(x, y), None),
    law(
        "what_is_less_or_equal_is_a_truth_value",
        op.Where(op.LessOrEqual(x, y), x, y),
        op.Where(op.Not(op.LessOrEqual(x, y)), y, x),
        ProofModel.EXACT,
    ),
    law("what_is_less_is_1_or_0", op.Cast(op.Less(m, o), to=1), op.Where(op.Less(m, o), 1.0, 0.0), ProofModel.EXACT),
    law("a_sum_that_is_folded_is_another", op.Mul(op.Add(c, d), x), op.Mul(op.Add(d, c), x), ProofModel.EXTENDED),
    law("a_sum_that_is_run_is_the_same", op.Mul(op.Add(y, d), x), op.Mul(op.Add(d, y), x), ProofModel.EXACT),
    law("a_product_that_is_folded_is_another", op.Add(u @ v, o), op.Add(u @ op.Identity(v), o), ProofModel.EXTENDED),
    law("the_last_axis_by_either_number", op.ReduceSum(m, (1,)), op.ReduceSum(m, (-1,)), ProofModel.EXACT),
    law("the_last_place_by_either_number", op.ArgMax(m, axis=1), op.ArgMax(m, axis=-1), ProofModel.EXACT),
    law("a_cast_that_saturates_is_another", op.Cast(x, to=17, saturate=0), op.Cast(x, to=17), None),
    law(
        "what_does_not_overflow_need_not_saturate",
        op.Cast(op.Identity(x), to=1, saturate=0),
        op.Cast(x, to=1),
        ProofModel.EXACT,
    ),
    law("a_range_up", op.Identity(row), as_long_as_range(row, 0, N, 1), ProofModel.EXACT),
    law("a_range_down", op.Identity(row), as_long_as_range(row, fn.sub(N, 1), -1, -1), ProofModel.EXACT),
    law("a_range_by_two", evens, as_long_as_range(evens, 0, N, 2), ProofModel.EXACT),
    law(
        "all_of_a_view",
        op.ReduceMax(op.Reshape(x, integers("s")), keepdims=0),
        op.ReduceMax(x, keepdims=0),
        ProofModel.REAL,
    ),
    Law(
        Rule(
            "attention_without_a_cap",
            op.Softmax(scores / fn.sqrt(fn.size("E")), axis=-1) @ value,
            op.Attention(query, key, value),
            when=FULL,
        ),
        ProofModel.REAL,
    ),
    law("guarded_attention", guarded(seen), guarded(attention()), ProofModel.EXTENDED, *FINITE),
    *(Law(rule, ProofModel.EXTENDED) for rule in TRADES if rule.name == "fuse_guarded_masked_attention"),
    law("guarded_attention_with_a_cap", guarded(seen), guarded(attention(softcap=1.0)), None, *FINITE),
    law("guarded_attention_that_looks_back", guarded(seen), guarded(attention(is_causal=1)), None, *FINITE),
    law(
        "attention_of_constants",
        x + op.Softmax(fixed["q"] @ swapped, axis=-1) @ fixed["v"],
        x + op.Attention(*fixed.values(), scale=1.0),
        ProofModel.EXTENDED,
        *FULL,
    ),
    law("what_is_greatest_is_where_it_is", op.GatherElements(row, places, axis=0), greatest, ProofModel.REAL),
    law("a_batch_by_a_size", op.GatherND(op.Identity(m), at), op.GatherND(m, at, batch_dims=fn.size("M")), None),
    law("what_is_not_less_may_be_no_number", op.Not(op.Less(x, y)), op.GreaterOrEqual(x, y), ProofModel.REAL),
    law("an_operator_that_is_not_denoted", op.Det(op.Identity(m)), op.Det(m), None),
    law("a_shape_is_no_order", op.Transpose(op.Reshape(m, s), perm=s), op.Reshape(m, s), None),
    law("all_that_is_computed_of_a_view", largest(op.Relu(op.Reshape(x, s))), largest(op.Relu(x)), ProofModel.REAL),
    law("a_number_beside_all_of_a_view", largest(op.Reshape(x, s) * 2.0), largest(x * 2.0), ProofModel.REAL),
    law(
        "a_bound_beside_none", flat(op.Clip(op.Reshape(m, s), None, 6.0)), flat(op.Clip(m, None, 6.0)), ProofModel.EXACT
    ),
    law("what_is_computed_of_a_view", flat(op.Relu(op.Reshape(m, s))), flat(op.Relu(m)), ProofModel.EXACT),
    law("a_number_beside_a_view", flat(op.Mul(op.Reshape(m, s), 2.0)), flat(op.Mul(m, 2.0)), ProofModel.EXACT),
    *(law(f"flat_is_flat_{i}", flat(v), v, ProofModel.EXACT) for i, v in enumerate(FLAT)),
    law("as_many_elements_of_an_outer_sum", op.Size(flat(OUTER)), op.Size(OUTER), ProofModel.EXACT),
    law("as_long_as_is_tried", rows(op.Identity(m), s), rows(m, s), ProofModel.EXACT, ELEVEN),
    law("longer_than_is_written", rows(op.Identity(m), s), rows(m, s), ProofModel.EXACT, MORE),
    law("longer_than_is_tried", rows(op.Identity(m), s), rows(m, s), None, TWELVE),
    law("a_text_is_no_length", op.Gelu(rows(op.Identity(m), s), approximate="tanh"), GELU, ProofModel.EXACT),
    law("there_is_one_row", rows(tensor("r", "1 N"), tensor("i", "1")), tensor("r", "1 N"), ProofModel.EXACT),
    law("all_rows_in_their_order", rows(tensor("r", "P N"), i), tensor("r", "P N"), ProofModel.EXACT, fn.is_arange(i)),
    law("rows_of_a_function", rows(op.Relu(m), i), op.Relu(rows(m, i)), ProofModel.EXACT),
    law(
        "rows_of_parts",
        rows(big + op.Concat(m, z, axis=0), i),
        rows(op.Concat(m, z, axis=0) + big, i),
        ProofModel.EXACT,
    ),
    law(
        "rows_of_a_mode",
        rows(op.Gelu(m, approximate="tanh"), i),
        op.Gelu(rows(m, i), approximate="tanh"),
        ProofModel.EXACT,
    ),
    law(
        "rows_of_a_sum_of_parts",
        rows((big + op.Concat(m, z, axis=0)) * 2.0, i),
        rows(op.Concat(m, z, axis=0) * 2.0 + big * 2.0, i),
        ProofModel.EXTENDED,
    ),
    law("rows_of_a_sum", rows((m + o) * 2.0, i), rows(m, i) * 2.0 + rows(o, i) * 2.0, ProofModel.EXTENDED),
    law("rows_times_a_number", rows(m * e * f, i), rows(m, i) * (e * f), ProofModel.EXTENDED),
    law("from_an_index", op.Shape(rows(m, a), start=a), op.Shape(rows(m, a)), None),
    law("to_an_index", op.Shape(rows(m, a), end=a), op.Shape(rows(m, a)), None),
    law("along_an_index", op.Flatten(rows(m, a), axis=a), op.Flatten(rows(m, a)), None),
    law("of_as_many_axes_as_there_may_be", op.Unsqueeze(op.Identity(t), s), op.Unsqueeze(t, s), ProofModel.EXACT),
    law("of_the_same_size_in_any_rounding", resized("floor"), resized("ceil"), ProofModel.EXACT),
    law("casts_that_lose_nothing", narrow(x), op.Cast(x, to=onto), ProofModel.EXACT, *LOSSLESS),
    law("casts_around_a_view", narrow(x, op.Flatten), op.Flatten(op.Cast(x, to=onto)), ProofModel.EXACT, *LOSSLESS),
    law("a_cast_that_turns_signs", widened(3, op.Cast(x, to=2)), widened(2, op.Cast(x, to=2)), None, SIGNED),
    law("a_cast_like_that_does", widened(3, op.CastLike(x, y)), widened(2, op.CastLike(x, y)), None, SIGNED, UNSIGNED),
    law("casts_that_may_lose", narrow(x), op.Cast(x, to=onto), None),
    law("exp_of_log", op.Exp(op.Identity(x)), op.Exp(x), ProofModel.EXACT),
)


COVERED: Mapping[str, tuple[tuple[Term | None, ...], str, int]] = {
    "Reshape": ((integers("s"),), "0–4, s of 0–4 numbers", 50),
    "Unsqueeze": ((integers("s"),), "0–5", 145),
    "Squeeze": ((integers("s"),), "0–4", 89),
    "Slice": ((integers("s"), integers("e"), integers("a"), integers("t")), "1–4, s of 0–4 numbers", 93),
    "Expand": ((integers("s"),), "0–4, s of 0–4 numbers", 25),
    "Tile": ((integers("s"),), "0–4", 5),
    "Pad": ((integers("s"), None, integers("a")), "0–4", 376),
    "CumSum": ((integer("s"),), "1–4", 80),
    "Gather": ((integers("s"),), "1–4, s of 0–3 numbers", 80),
    "ReduceMax": ((integers("s"),), "0–4", 376),
    "Trilu": ((integer("s"),), "2–4", 6),
    "Transpose": ((), "0–4", 34),
    "Flatten": ((), "0–4", 25),
    "Softmax": ((), "1–4", 20),
    "LogSoftmax": ((), "1–4", 20),
    "ArgMax": ((), "0–4", 80),
    "Shape": ((), "0–4", 320),
    "LpNormalization": ((), "1–4", 40),
    "IsInf": ((), "all", 8),
    "Gelu": ((), "all", 4),
    "DepthToSpace": ((), "4–4", 2),
    "MaxPool": ((), "3–4", 16),
    "AveragePool": ((), "3–4", 32),
    "LpPool": ((), "3–4", 16),
    "Split": ((), "1–4", 20),
}
"""Of an operator whose attributes are left open: its other inputs, the ranks that a proof covers, how many cases."""


def is_covered(name: str) -> bool:
    """Whether a proof tries what is on record: all axes, modes and lengths of lists."""
    others, reach, cases = COVERED[name]
    left, right = (App(name, (first, *others, attributes("rest"))) for first in (op.Identity(x), x))
    proof = prove(Rule("identity_before_it", left, right), refute=False)
    return (proof.model, proof.coverage_text, proof.cases) == (ProofModel.EXACT, reach, cases)
