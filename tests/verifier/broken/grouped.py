"""Wrong rules on weights that are blocks on a diagonal: of other constants, along other axes, of other sizes."""

from __future__ import annotations

from graphopt.language.rule import Rule, const, fn, integer, integers, op, tensor
from graphopt.language.terms import App, OperatorBuilder, Term, TermLike

image, bias = tensor("i", "N C H W"), const("b", "M")
filters, others = const("f", "M C 1 1"), const("g", "M C 1 1")
x, m, w, v = tensor("x", "R K"), tensor("m", "K P"), const("w", "K P"), const("v", "K P")
M, C, K, P = (fn.size(axis) for axis in "MCKP")
count, by_four, of_others = (
    fn.block_count("M C", filters),
    fn.block_count("M C", 4, filters),
    fn.block_count("M C", others),
)
several, of_w, of_v = fn.lt(1, count), fn.block_count("K P", w), fn.block_count("K P", v)


def own(of: TermLike, group: Term, fold: str = "ReduceSum") -> App:
    """The weights of each group, if there are so many."""
    return OperatorBuilder(fold)(op.Reshape(of, fn.concat(M, group, fn.floordiv(C, group), 1, 1)), (1,), keepdims=0)


def split(of: TermLike, group: Term, axis: int = 0) -> App:
    """The weights of each of so many blocks of a product."""
    parts = op.Reshape(of, fn.concat(group, fn.floordiv(K, group), group, fn.floordiv(P, group)))
    return op.Transpose(op.ReduceSum(parts, (axis,), keepdims=0), perm=(0, 2, 1) if axis else (1, 0, 2))


def parted(group: Term, perm: tuple[int, ...] = (1, 0, 2)) -> App:
    return op.Transpose(op.Reshape(x, fn.concat(-1, group, fn.floordiv(K, group))), perm=perm)


def joined(y: Term) -> App:
    return op.Reshape(op.Transpose(y, perm=(1, 0, 2)), fn.sizes("R P"), allowzero=1)


plain, wide = op.Conv(image, filters), const("f", "M C 2 2")
of_wide = fn.block_count("M C", wide)
pads = integers("pads")
whole = (fn.lt(0, fn.floordiv(K, of_w)), fn.lt(0, fn.floordiv(P, of_w)))

REFUTED = (
    Rule("first_channels_are_the_blocks", plain,
         op.Conv(image, op.Slice(filters, (0,), fn.concat(fn.floordiv(C, count)), (1,)), group=count), when=several),
    Rule("channels_are_dealt_out", plain,
         op.Conv(image,
                 op.ReduceSum(op.Reshape(filters, fn.concat(M, fn.floordiv(C, count), count, 1, 1)), (2,), keepdims=0),
                 group=count), when=several),
    Rule("greatest_of_the_blocks", plain, op.Conv(image, own(filters, count, "ReduceMax"), group=count), when=several),
    Rule("mean_of_the_blocks", plain, op.Conv(image, own(filters, count, "ReduceMean"), group=count), when=several),
    Rule("bias_of_a_group", op.Conv(image, filters, bias), op.Conv(image, own(filters, count), group=count),
         when=several),
    Rule("pads_of_a_group", op.Conv(image, filters, pads=pads), op.Conv(image, own(filters, count), group=count),
         when=several),
    Rule("dilated_groups", op.Conv(image, wide, dilations=integers("d")),
         op.Conv(image,
                 op.ReduceSum(op.Reshape(wide, fn.concat(M, of_wide, fn.floordiv(C, of_wide), 2, 2)), (1,), keepdims=0),
                 group=of_wide), when=fn.lt(1, of_wide)),
    Rule("blocks_of_another_constant", (op.Conv(image, others), plain),
         (op.Conv(image, others), op.Conv(image, own(filters, of_others), group=of_others)), when=fn.lt(1, of_others)),
    Rule("blocks_of_the_other_factor", (x @ w, x @ v), (joined(parted(of_w) @ split(w, of_w)),
         joined(parted(of_w) @ split(v, of_w))), when=(*whole, fn.lt(1, of_w))),
    Rule("blocks_of_other_multiples", plain, op.Conv(image, own(filters, by_four), group=count),
         when=(several, fn.lt(1, by_four))),
    Rule("one_channel_for_each_filter", plain, op.Conv(image, op.ReduceSum(filters, (1,)), group=count),
         when=(several, fn.eq(count, M))),
    Rule("rows_are_not_blocks", x @ w,
         joined(op.Reshape(x, fn.concat(of_w, -1, fn.floordiv(K, of_w))) @ split(w, of_w)),
         when=whole),
    Rule("blocks_in_the_other_order", x @ w,
         joined(parted(of_w) @ op.Slice(split(w, of_w), (-1,), (-9223372036854775808,), (0,), (-1,))), when=whole),
    Rule("blocks_are_square", x @ w, joined(parted(of_w) @ op.Transpose(split(w, of_w), perm=(0, 2, 1))),
         when=(*whole, fn.eq(K, P))),
    Rule("some_zeros_make_a_diagonal", x @ w, x * op.ReduceSum(w, (0,), keepdims=0),
         when=(fn.eq(K, P), fn.lt(1, of_w))),
    Rule("sum_without_zeros", op.ReduceSum(op.Cos(w), (0,), keepdims=0),
         op.Reshape(op.ReduceSum(op.Cos(split(w, of_w)), (1,), keepdims=0), fn.sizes("P")), when=whole),
    Rule("product_without_zeros_of_blocks", op.ReduceProd(w, (0,), keepdims=0),
         op.Reshape(op.ReduceProd(split(w, of_w), (1,), keepdims=0), fn.sizes("P")), when=whole),
    Rule("number_of_blocks_is_a_size", op.Identity(w), op.Slice(w, (0,), fn.concat(of_w), (0,))),
    Rule("a_block_has_one_row", op.Identity(w), w * fn.floordiv(K, of_w), when=whole),
)  # fmt: skip
UNPROVED = (
    Rule("there_are_several_blocks", op.Identity(w), op.Slice(w, (0,), fn.concat(fn.floordiv(K, of_w - 1) * K), (0,)),
         when=fn.eq(of_w, K)),
    Rule("blocks_of_whole_numbers", x @ w, joined(parted(of_w) @ split(w, of_w)),
         when=(fn.is_integer(fn.dtype(x)), *whole)),
    Rule("blocks_of_a_group", op.Conv(tensor("i", "N D H W"), filters, group=integer("group")),
         op.Conv(tensor("i", "N D H W"), own(filters, count), group=count), when=several),
    Rule("number_of_blocks_as_a_list", plain, op.Conv(image, own(filters, count), group=fn.length(count)),
         when=several),
    Rule("zero_over_zero_beside_one_block", m / w, m / w + (m - m) / (m - m), when=fn.eq(of_w, 1)),
    Rule("blocks_of_no_rows", x @ w, joined(parted(of_w) @ split(w, of_w)), when=fn.lt(1, of_w)),
)  # fmt: skip
