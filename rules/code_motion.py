"""Operators that change places: slices go up, to what need not be computed; views go down, until they meet others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from graphopt.base.dtype import DType
from graphopt.rule import (
    App,
    Rule,
    Term,
    TermLike,
    attributes,
    binary,
    const,
    fn,
    integer,
    integers,
    op,
    pointwise,
    real,
    string,
    tensor,
    tensors,
)
from graphopt.rules.linear import has_float_type, runs_as_gemm
from graphopt.rules.names import snake_case

# Axes: *b batch, M rows, K contracted, N columns.
x, y = tensor("x"), tensor("y")
one, other = tensor("x", "*b"), tensor("y", "*b")
f, g = pointwise("f"), binary("g")
rows, matrix = tensor("x", "*b M K"), tensor("x", "M K")
w, bias = const("w", "K N"), const("c", "N")
scale, shift = const("scale", "K"), const("shift", "K")
axis, axes, shape = integer("axis"), integers("axes"), integers("shape")
starts, ends, steps = integers("starts"), integers("ends"), integers("steps")
rest, view = attributes("rest"), attributes("view")
norm: Mapping[str, TermLike] = {"axis": -1, "epsilon": real("epsilon"), "stash_type": integer("stash_type")}

BINARY: Mapping[str, Callable[[Term, Term], App]] = {"Add": op.Add, "Mul": op.Mul}

# -- what takes a part goes up -------------------------------------------------------------------------------------


held = const("v", "_ _"), const("d", "_")  # the weights and bias of a Gemm, which may be transposed
index = integer("i")
LONGEST = 2**63 - 1


def slice_part(value: Term) -> App:
    return op.Slice(value, starts, ends, axes, steps)


def single(value: Term, end: TermLike) -> App:
    """Return the element at an index, as a slice without its axis."""
    return op.Squeeze(op.Slice(value, fn.concat(index), fn.concat(end), fn.concat(axis)), fn.concat(axis))


spares_columns = fn.not_(fn.is_in(fn.rank(rows) - 1, fn.normalize_indices(axes, fn.rank(rows))))
takes_rows = fn.eq(fn.normalize_indices(axes, fn.rank(rows)), fn.concat(fn.rank(rows) - 2))
right, sequence, perm = tensor("y", "*b K N"), tensor("x", "B S *r"), integers("perm")
tokens_asked, of_token, of_each = (
    fn.slice(shape, 0, 2),
    fn.slice(shape, 2, fn.length(shape)),
    fn.product(fn.sizes("*r")),
)
scores, of_queries, of_keys = tensor("x", "B H S L"), tensor("m", "P Q S L"), tensor("m", "P Q 1 L")

TAKEN = (
    Rule(
        "replace_gather_with_slice",
        op.Gather(x, index, axis=axis),
        single(x, index + 1),
        when=fn.ne(index, -1),
        why="A slice can be taken earlier.",
    ),
    Rule(
        "replace_gather_of_last_with_slice",
        op.Gather(x, index, axis=axis),
        single(x, LONGEST),
        when=fn.eq(index, -1),
        why="A slice can be taken earlier.",
    ),
    Rule(
        "push_slice_above_matmul",
        slice_part(rows @ w),
        slice_part(rows) @ w,
        when=(has_float_type(rows), spares_columns),
        why="Of a product only the rows that are wanted are computed.",
    ),
    Rule(
        "push_slice_above_gemm",
        slice_part(op.Gemm(matrix, *held, rest, transA=0)),
        op.Gemm(slice_part(matrix), *held, rest, transA=0),
        when=fn.eq(fn.normalize_indices(axes, 2), (0,)),
        why="Of a product only the rows that are wanted are computed.",
    ),
    Rule(
        "push_slice_above_layer_normalization",
        slice_part(op.LayerNormalization(rows, scale, shift, **norm)),
        op.LayerNormalization(slice_part(rows), scale, shift, **norm),
        when=spares_columns,
        why="Only the rows that are wanted are normalized.",
    ),
    Rule(
        "push_slice_above_product",
        slice_part(rows @ right),
        slice_part(rows) @ right,
        when=(has_float_type(rows), takes_rows),
        why="Of a product only the rows that are wanted are computed.",
    ),
    Rule(
        "push_slice_above_softmax",
        slice_part(op.Softmax(rows, axis=axis)),
        op.Softmax(slice_part(rows)),
        when=(spares_columns, fn.eq(fn.normalize_indices(axis, fn.rank(rows)), fn.rank(rows) - 1)),
        why="Only the rows that are wanted are normalized.",
    ),
    Rule(
        "push_slice_above_transpose",
        slice_part(op.Transpose(x, perm=perm)),
        op.Transpose(op.Slice(x, starts, ends, fn.compose(perm, axes), steps), perm=perm),
        why="Only the elements that are wanted are moved.",
    ),
    *(
        Rule(
            f"push_slice_above_{name}{literally}",
            slice_part(op.Reshape(sequence, shape, **literal)),
            op.Reshape(op.Slice(sequence, starts, ends, (1,), steps), fn.concat(0, 0, told)),
            when=(
                fn.eq(fn.normalize_indices(axes, fn.length(shape)), (1,)),
                keeps_tokens,
                *when,
            ),
            why="Only the tokens that are wanted get another shape.",
        )
        for literally, literal, keeps_tokens, as_many in (
            (
                "",
                {},
                fn.all_of(fn.le(0, tokens_asked), fn.is_noop_reshape(tokens_asked, fn.sizes("B S"))),
                (fn.eq(fn.product(of_token), of_each),),
            ),
            ("_literally", {"allowzero": 1}, fn.eq(tokens_asked, fn.sizes("B S")), ()),
        )
        for name, told, when in (
            ("reshape_of_tokens", of_token, (fn.le(1, of_token), *as_many)),
            ("flattened_tokens", of_each, (fn.eq(of_token, (-1,)), fn.le(1, fn.sizes("*r")))),
        )
    ),
    *(
        Rule(
            f"push_slice_above_{name}",
            slice_part(g(scores, mask)),
            g(slice_part(scores), masked),
            when=fn.eq(fn.normalize_indices(axes, 4), (2,)),
            why="Only the rows that are wanted are masked.",
        )
        for name, mask, masked in (
            ("mask", of_queries, slice_part(of_queries)),
            ("mask_of_keys", of_keys, of_keys),
        )
    ),
    Rule(
        "push_slice_above_nan_guard",
        slice_part(op.Where(op.IsNaN(x), 0.0, x)),
        op.Where(op.IsNaN(slice_part(x)), 0.0, slice_part(x)),
        why="Only the rows that are wanted are looked at.",
    ),
    Rule(
        "push_slice_above_pointwise",
        slice_part(f(x)),
        f(slice_part(x)),
        why="Only the elements that are wanted are computed.",
    ),
    Rule(
        "push_slice_above_binary",
        slice_part(g(one, other)),
        g(slice_part(one), slice_part(other)),
        why="Only the elements that are wanted are computed.",
    ),
    Rule(
        "push_slice_above_binary_by_column",
        slice_part(g(rows, scale)),
        g(slice_part(rows), scale),
        when=spares_columns,
        why="Only the elements that are wanted are computed.",
    ),
)

# -- views go down -------------------------------------------------------------------------------------------------

columns = tensor("x", "*b K")
has_columns = fn.lt(0, fn.size("K"))
keeps_columns = (fn.eq(fn.item(shape, -1), fn.size("K")), has_columns)
some = fn.lt(0, fn.length(axes))
VIEWS: Mapping[str, tuple[Callable[[Term], App], tuple[Term, ...]]] = {
    "squeeze": (lambda value: op.Squeeze(value, axes), (some,)),
    "reshape": (lambda value: op.Reshape(value, shape, view), ()),
}

VIEWED = (
    *(
        Rule(
            f"hoist_{name}_over_pointwise",
            f(look(x)),
            look(f(x)),
            when=when,
            why="Each element is treated alike, and the view goes on to what undoes it.",
        )
        for name, (look, when) in VIEWS.items()
    ),
    Rule(
        "hoist_squeeze_over_binary",
        g(op.Squeeze(x, axes), op.Squeeze(y, axes)),
        op.Squeeze(g(x, y), axes),
        when=(some, fn.eq(fn.shape(x), fn.shape(y))),
        why="One view of the result replaces one of each operand.",
    ),
    *(
        Rule(
            f"hoist_reshape_over_{snake_case(operator)}_by_column",
            apply(op.Reshape(columns, shape, view), scale),
            op.Reshape(apply(columns, scale), shape, view),
            when=keeps_columns,
            why="What is done to each column alike is done before the rows get another shape.",
        )
        for operator, apply in BINARY.items()
    ),
)

SQUEEZED = tuple(rule for rule in VIEWED if "squeeze" in rule.name)
"""Rules by which signals that are computed as images stay images between two convolutions."""

# -- transpositions of one matrix ----------------------------------------------------------------------------------
# ONNX Runtime copies element by element where axes move that are no neighbours, even if one of them is of size 1. So
# queries, keys and values of attention across channels (XCiT, EdgeNeXt) are split four times as slowly.

heads = tensor("x", "1 N P H D")
channels = fn.product(fn.sizes("P H D"))
AS_MATRIX = (
    Rule(
        "transpose_split_heads_as_matrix",
        op.Transpose(heads, perm=(2, 0, 3, 4, 1)),
        op.Reshape(
            op.Transpose(op.Reshape(heads, fn.concat(fn.size("N"), channels)), perm=(1, 0)), fn.sizes("P 1 H D N")
        ),
        when=(fn.size("N") > 0, channels > 0),
        why="What moves is one axis of a matrix, past all others.",
    ),
)

# -- stacks of matrices as one matrix ------------------------------------------------------------------------------
# Each gets views around it; those that meet between two of them cancel, so that a whole network works on one matrix.

stack = tensor("x", "*b L M K")
tokens, others = tensor("x", "L M K"), tensor("y", "L M K")  # images have more axes, and are no tokens


def flatten_rows(value: Term) -> App:
    return op.Reshape(value, fn.concat(-1, fn.size("K")))


def unflatten_rows(value: Term, columns: str) -> App:
    return op.Reshape(value, fn.sizes(f"*b L M {columns}"), allowzero=1)


FLATTENED = (
    Rule(
        "replace_matmul_add_with_gemm",
        (stack @ w) + bias,
        unflatten_rows(op.Gemm(flatten_rows(stack), w, bias), "N"),
        when=(runs_as_gemm(stack), has_columns),
        why="Gemm keeps its weights packed and adds the bias, and views cost nothing.",
    ),
    Rule(
        "replace_matmul_with_gemm",
        stack @ w,
        unflatten_rows(op.Gemm(flatten_rows(stack), w), "N"),
        when=(runs_as_gemm(stack), has_columns),
        why="Gemm keeps its weights packed, and views cost nothing.",
    ),
    Rule(
        "flatten_layer_normalization",
        op.LayerNormalization(stack, scale, shift, **norm),
        unflatten_rows(op.LayerNormalization(flatten_rows(stack), scale, shift, **norm), "K"),
        when=has_columns,
        why="Each row is normalized alike, so that what stands before and after may work on one matrix.",
    ),
    Rule(
        "flatten_binary",
        g(tokens, others),
        op.Reshape(g(flatten_rows(tokens), flatten_rows(others)), fn.sizes("L M K"), allowzero=1),
        when=has_columns,
        why="Elements are combined alike, so that what stands before and after may work on one matrix.",
    ),
)

# -- products of three ---------------------------------------------------------------------------------------------

first, second, third = tensor("x", "*b M K"), tensor("y", "*b K L"), tensor("z", "*b L N")
ORDERS = {"left": (first @ second) @ third, "right": first @ (second @ third)}

ASSOCIATED = tuple(
    Rule(
        f"associate_matmul_to_the_{to}",
        ORDERS[given],
        ORDERS[to],
        when=has_float_type(first),
        why="The order in which matrices are multiplied decides how much there is to compute.",
    )
    for given, to in (("left", "right"), ("right", "left"))
)

# -- an image is enlarged late --------------------------------------------------------------------------------------
# A pointwise convolution mixes channels and a Resize places, so either may come first, and the first has less to do.
# What comes late is added up: of images that are joined, each is convolved alone, at its own size.

small, weights, its_bias = tensor("x", "N K *s"), const("w", "M C 1*s"), const("b", "M", default=0)
scaling: Mapping[str, TermLike] = {
    "mode": string("mode"),
    "coordinate_transformation_mode": string("where"),
    "nearest_mode": string("nearest"),
}
sizes = integers("sizes")
of_pixels = fn.slice(sizes, 2, fn.length(sizes))
in_front, behind = tensors("before"), tensors("after")
# ONNX Runtime keeps the shares of pixels in single precision, in DOUBLE, too: a bias that is shared out comes to less.
is_single = fn.is_in(fn.dtype(small), (int(DType.FLOAT), int(DType.FLOAT16), int(DType.BFLOAT16)))
narrows = fn.size("M") <= fn.size("K")  # else there are more channels to place


class Enlargement(NamedTuple):
    """A way to say how large an image is to be, before its channels are mixed and after."""

    name: str
    before: Callable[[Term], App]
    after: Callable[[Term], App]
    when: tuple[Term, ...] = ()


def to_sizes(image: Term, sizes: TermLike) -> App:
    return op.Resize(image, None, None, sizes, **scaling)


def resize_twofold(image: Term) -> App:
    return op.Resize(image, None, (1.0, 1.0, 2.0, 2.0), **scaling)


ENLARGED = (
    Enlargement(
        "resize",
        lambda image: to_sizes(image, sizes),
        lambda image: to_sizes(image, fn.concat(fn.sizes("N M"), of_pixels)),
        (fn.eq(fn.slice(sizes, 0, 2), fn.sizes("N K")), fn.le(fn.sizes("*s"), of_pixels), is_single),
    ),
    Enlargement("doubling", resize_twofold, resize_twofold, (is_single,)),
)


def pointwise_conv(image: Term) -> App:
    return op.Conv(image, weights, its_bias)


of_first, of_small, of_last = op.Split.split(
    3, weights, fn.concat(fn.extent(in_front), fn.size("K"), fn.extent(behind)), axis=1
)
LATE = tuple(
    rule
    for this in ENLARGED
    for rule in (
        Rule(
            f"part_pointwise_conv_of_{this.name}",
            pointwise_conv(op.Concat(*in_front, this.before(small), *behind, axis=1)),
            op.Conv(op.Concat(*in_front, *behind, axis=1), op.Concat(of_first, of_last, axis=1), its_bias)
            + this.after(op.Conv(small, of_small)),
            when=(*this.when, fn.extent(in_front) + fn.extent(behind) > 0, fn.size("K") > 0),
            pays=narrows,
            why="A smaller image is convolved alone, before it is enlarged.",
        ),
        Rule(
            f"push_pointwise_conv_above_{this.name}",
            pointwise_conv(this.before(small)),
            this.after(pointwise_conv(small)),
            when=this.when,
            pays=narrows,
            why="Channels are mixed before there are more pixels of them.",
        ),
    )
)

RULES: tuple[Rule, ...] = ()
TRADES = (*TAKEN, *VIEWED, *AS_MATRIX, *FLATTENED, *ASSOCIATED, *LATE)
SWEEPS = {"parts taken early": TAKEN, "images enlarged late": LATE}
STACKS = {"stacks of matrices as one matrix": (*FLATTENED, *(rule for rule in VIEWED if "reshape" in rule.name))}
