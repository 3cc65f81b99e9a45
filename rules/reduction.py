"""Operators that run along axes: Reduce…, pools without a window, ArgMax, Softmax, CumSum."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from graphopt.rule import App, Rule, Term, Var, attributes, fn, integer, integers, op, reduction, tensor
from graphopt.rules.names import snake_case

x, image = tensor("x"), tensor("x", "N C H W")
axis, other_axis, keep = integer("axis"), integer("other_axis"), integer("keep")
axes, more, perm, target = integers("axes"), integers("more"), integers("perm"), integers("target")
kernel, pads, strides, dilations = integers("kernel"), integers("pads"), integers("strides"), integers("dilations")
rest, r = attributes("rest"), reduction("r")
rank, shape = fn.rank(x), fn.shape(x)
is_float = fn.is_float(fn.dtype(x))

# A reduction along no axes means one along all of them, or none, depending on an attribute: rules ask for an axis.
some, some_more = fn.lt(0, fn.length(axes)), fn.lt(0, fn.length(more))
thin = fn.eq(fn.compose(shape, axes), 1)
places, more_places = fn.normalize_indices(axes, rank), fn.normalize_indices(more, rank)
remaining = fn.delete(fn.range(rank), axes)
disjoint = fn.eq(
    fn.length(fn.delete(fn.range(rank), fn.concat(places, more_places))), rank - fn.length(axes) - fn.length(more)
)
same_axes = fn.eq(fn.sorted(places), fn.sorted(more_places))

KEEPING = ("Max", "Mean", "Min", "Prod", "Sum")
"""Reductions of a single element to itself."""
ALL = (*KEEPING, "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
IN_ORDER = {"Max": (), "Min": (), "Sum": (), "Prod": (), "Mean": (is_float,)}
"""Reductions whose reduction is one, and where that holds."""


def apply_reduction(kind: str, value: Term, along: Term, **attrs: Term | int) -> App:
    """Return the application of `ReduceSum` or the like."""
    made: App = getattr(op, f"Reduce{kind}")(value, along, **attrs)
    return made


# -- one reduction -------------------------------------------------------------------------------------------------

ALONE: Mapping[str, Term] = {"L1": op.Abs(x), "SumSquare": x * x, **dict.fromkeys(KEEPING, x)}
"""Result of reducing a single element."""
EACH: Mapping[str, Term] = {"L1": op.Abs(x), "LogSum": op.Log(x), "SumSquare": x * x}
"""Function that a reduction applies to each element before or after combining them."""


def dropping_axes(kind: str) -> Rule:
    return Rule(
        f"replace_nop_reduce_{snake_case(kind)}_by_squeeze",
        apply_reduction(kind, x, axes, keepdims=0),
        op.Squeeze(ALONE[kind], axes),
        when=(some, thin),
        why="Along axes of size 1 there is nothing to combine; the axes are dropped.",
    )


SINGLE = (
    *(
        Rule(
            f"eliminate_nop_reduce_{snake_case(kind)}",
            apply_reduction(kind, x, axes),
            alone,
            when=(some, thin),
            why="Along axes of size 1 there is nothing to combine.",
        )
        for kind, alone in ALONE.items()
    ),
    *(dropping_axes(kind) for kind in KEEPING),
    *(
        Rule(
            f"eliminate_reduce_{snake_case(kind)}_along_nothing",
            getattr(op, f"Reduce{kind}")(x, noop_with_empty_axes=1, keepdims=keep),
            x,
            why="No axis was given, and that was declared to mean none.",
        )
        for kind in KEEPING
    ),
    *(
        Rule(
            f"eliminate_reduce_{snake_case(kind)}_along_no_axes",
            apply_reduction(kind, x, axes, noop_with_empty_axes=1, keepdims=keep),
            x,
            when=fn.eq(fn.length(axes), 0),
            why="An empty list of axes was given, and that was declared to mean none.",
        )
        for kind in KEEPING
    ),
    *(
        Rule(
            f"replace_reduce_{snake_case(kind)}_along_no_axes",
            apply_reduction(kind, x, axes, noop_with_empty_axes=1, keepdims=keep),
            each,
            when=(fn.eq(fn.length(axes), 0), is_float),
            why="Along no axes nothing is combined; what is done to each element stays.",
        )
        for kind, each in EACH.items()
    ),
)

# -- a reduction and the axes that it leaves -----------------------------------------------------------------------

ARGUMENTS = ("ArgMax", "ArgMin")

AXES = (
    Rule(
        "fuse_squeeze_into_reduction",
        op.Squeeze(r(x, axes, keepdims=1), more),
        r(x, axes, keepdims=0),
        when=(some, same_axes),
        why="A reduction can drop its axes itself.",
    ),
    Rule(
        "fuse_unsqueeze_into_reduction",
        op.Unsqueeze(r(x, axes, keepdims=0), more),
        r(x, axes, keepdims=1),
        when=(some, same_axes),
        why="A reduction can keep its axes itself.",
    ),
    Rule(
        "fuse_flatten_into_reduction",
        op.Flatten(r(image, axes, keepdims=1)),
        r(image, axes, keepdims=0),
        when=fn.eq(fn.sorted(fn.normalize_indices(axes, 4)), (2, 3)),
        why="A reduction over an image can drop its axes itself.",
    ),
    Rule(
        "fuse_reshape_into_reduction",
        op.Reshape(r(x, axes, keepdims=1), target),
        r(x, axes, keepdims=0),
        when=(
            some,
            fn.is_noop_reshape(target, fn.delete(shape, axes)),
            fn.zeros_subset(target, fn.repeat(0, fn.item(fn.sorted(places), 0))),
        ),
        why="A reduction can drop its axes itself.",
    ),
    *(
        Rule(
            f"fuse_squeeze_into_{snake_case(name)}",
            op.Squeeze(getattr(op, name)(x, rest, axis=axis, keepdims=1), more),
            getattr(op, name)(x, rest, axis=axis, keepdims=0),
            when=fn.eq(fn.normalize_indices(fn.concat(axis), rank), more_places),
            why=f"{name} can drop its axis itself.",
        )
        for name in ARGUMENTS
    ),
    *(
        Rule(
            f"fuse_consecutive_{snake_case(name)}_unsqueeze",
            op.Unsqueeze(getattr(op, name)(x, rest, axis=axis, keepdims=0), more),
            getattr(op, name)(x, rest, axis=axis, keepdims=1),
            when=fn.eq(fn.normalize_indices(fn.concat(axis), rank), more_places),
            why=f"{name} can keep its axis itself.",
        )
        for name in ARGUMENTS
    ),
    *(
        Rule(
            f"fuse_transpose_into_reduce_{snake_case(kind)}",
            apply_reduction(kind, op.Transpose(x, perm=perm), axes, keepdims=0),
            apply_reduction(kind, x, fn.compose(perm, axes), keepdims=0),
            when=(some, fn.is_sorted(fn.delete(perm, axes))),
            why="Where the axes that are left keep their order, the reduction itself finds the others.",
        )
        for kind in ALL
    ),
)

# -- a reduction of a reduction ------------------------------------------------------------------------------------

NESTED = (
    *(
        Rule(
            f"fuse_consecutive_reduce_{snake_case(kind)}",
            apply_reduction(kind, apply_reduction(kind, x, axes), more),
            apply_reduction(kind, x, fn.sorted(fn.concat(places, more_places))),
            when=(*when, some, some_more, disjoint),
            why="Reductions along different axes are one.",
        )
        for kind, when in IN_ORDER.items()
    ),
    *(
        Rule(
            f"fuse_consecutive_reduce_{snake_case(kind)}_without_axes",
            apply_reduction(kind, apply_reduction(kind, x, axes, keepdims=0), more, keepdims=0),
            apply_reduction(kind, x, fn.sorted(fn.concat(places, fn.compose(remaining, more))), keepdims=0),
            when=(*when, some, some_more),
            why="Reductions along different axes are one; those of the second are counted without those of the first.",
        )
        for kind, when in IN_ORDER.items()
    ),
)

# -- pools ---------------------------------------------------------------------------------------------------------

pixel = tensor("x", "N C *s")
POOLS = (
    Rule(
        "eliminate_nop_global_average_pool",
        op.GlobalAveragePool(pixel),
        pixel,
        when=fn.eq(fn.sizes("*s"), 1),
        why="A single element is its own average.",
    ),
    *(
        Rule(
            f"eliminate_nop_{snake_case(name)}",
            getattr(op, name)(x, kernel_shape=kernel, pads=pads, strides=strides, dilations=dilations),
            x,
            when=(fn.eq(kernel, 1), fn.eq(pads, 0), fn.eq(strides, 1)),
            why="A window of one element, moved by one, copies its input.",
        )
        for name in ("AveragePool", "MaxPool")
    ),
)

# -- Softmax -------------------------------------------------------------------------------------------------------

peak = op.ReduceMax(x, axes)
shifted = x - peak
weights = op.Exp(shifted)
one_axis = fn.eq(fn.length(axes), 1)
along = fn.item(axes, 0)

SOFTMAX = (
    Rule(
        "fuse_consecutive_log_softmax",
        op.Log(op.Softmax(x, axis=axis)),
        op.LogSoftmax(x, axis=axis),
        why="LogSoftmax is faster, and finite where Softmax is too small for a logarithm.",
    ),
    Rule(
        "fuse_exp_of_log_softmax",
        op.Exp(op.LogSoftmax(x, axis=axis)),
        op.Softmax(x, axis=axis),
        why="The exponential undoes the logarithm.",
    ),
    Rule(
        "fuse_softmax_of_log_softmax",
        op.Softmax(op.LogSoftmax(x, axis=axis), axis=axis),
        op.Softmax(x, axis=axis),
        why="LogSoftmax subtracts one number along the axis, which Softmax does not see.",
    ),
    Rule(
        "fuse_softmax",
        weights / op.ReduceSum(weights, axes),
        op.Softmax(x, axis=along),
        when=one_axis,
        why="Softmax as exporters write it out, with the largest element subtracted.",
    ),
    Rule(
        "fuse_log_softmax",
        shifted - op.Log(op.ReduceSum(weights, axes)),
        op.LogSoftmax(x, axis=along),
        when=one_axis,
        why="LogSoftmax as exporters write it out, with the largest element subtracted.",
    ),
    *(
        Rule(
            f"eliminate_nop_monotone_argmax_{snake_case(name)}",
            op.ArgMax(getattr(op, name)(x, axis=axis), rest, axis=other_axis),
            op.ArgMax(x, rest, axis=other_axis),
            when=fn.eq(fn.normalize_indices(axis, rank), fn.normalize_indices(other_axis, rank)),
            why=f"{name} keeps the order along its axis.",
        )
        for name in ("Softmax", "LogSoftmax")
    ),
)

# -- CumSum --------------------------------------------------------------------------------------------------------

reverse = integer("reverse")
SUMS = (
    Rule(
        "eliminate_nop_cumsum",
        op.CumSum(x, axis, reverse=reverse),
        x,
        when=fn.eq(fn.item(shape, axis), 1),
        why="The running sum of a single element is that element.",
    ),
)

# -- reductions that runtimes compute slowly -----------------------------------------------------------------------

are_last = fn.eq(remaining, fn.range(rank - fn.length(axes)))
are_between = fn.eq(remaining, fn.concat(0, rank - 1))
SPLIT: Mapping[str, tuple[Term, str]] = {
    "L1": (op.Abs(x), "magnitudes"),
    "L2": (x * x, "squares"),
    "SumSquare": (x * x, "squares"),
}
"""Function of each element that the sum adds up, and its name in `why`."""


def split_reduction(kind: str) -> Rule:
    each, named = SPLIT[kind]
    total = apply_reduction("Sum", each, axes, keepdims=keep)
    return Rule(
        f"split_reduce_{snake_case(kind)}",
        apply_reduction(kind, x, axes, keepdims=keep),
        op.Sqrt(total) if kind == "L2" else total,
        when=(some, is_float),
        pays=fn.any_of(are_last, are_between),
        why=f"ONNX Runtime computes {named} and adds them up two to four times as fast as it does both at once.",
    )


SPLITS = tuple(map(split_reduction, SPLIT))

# Along axes that are not the last ONNX Runtime adds up column by column. A product with a row of ones reads row by row,
# and takes a quarter to a twelfth of the time.

rows, parts, pixels = tensor("x", "*b R C"), tensor("x", "N R *c"), tensor("x", "N R W *c")
behind = fn.product(fn.sizes("*c"))


class Stack(NamedTuple):
    """Sum that may be a product: its operand, and how that is a matrix, or a stack of some, whose rows are added up."""

    name: str
    value: Var
    along: App
    length: Term
    matrices: Term
    keep: Callable[[App], App]
    drop: Callable[[App], App]
    """Result of the product, with the axes that were added up and without."""
    when: tuple[Term, ...] = ()
    pays: tuple[Term, ...] = ()


STACKS = (
    Stack(
        "rows",
        rows,
        fn.concat(fn.rank(rows) - 2),
        fn.size("R"),
        rows,
        lambda total: total,
        lambda total: op.Squeeze(total, fn.concat(-2)),
        pays=(fn.size("C") > 1,),
    ),
    Stack(
        "parts",
        parts,
        fn.concat(1),
        fn.size("R"),
        op.Reshape(parts, fn.concat(fn.size("N"), fn.size("R"), behind)),
        lambda total: op.Reshape(total, fn.sizes("N 1 *c")),
        lambda total: op.Reshape(total, fn.sizes("N *c")),
        when=(fn.lt(0, fn.sizes("*c")),),
        pays=(fn.rank(parts) > 3,),
    ),
    Stack(
        "pixels",
        pixels,
        fn.concat(1, 2),
        fn.size("R") * fn.size("W"),
        op.Reshape(pixels, fn.concat(fn.size("N"), fn.size("R") * fn.size("W"), behind)),
        lambda total: op.Reshape(total, fn.sizes("N 1 1 *c")),
        lambda total: op.Reshape(total, fn.sizes("N *c")),
        when=(fn.lt(0, fn.sizes("R W *c")),),
        pays=(fn.rank(pixels) > 3,),
    ),
)


def reduce_by_product(kind: str, stack: Stack) -> tuple[Rule, ...]:
    """Return the rules for a sum or mean that keeps its axes, and for one that drops them."""
    share = op.Expand(1.0, fn.concat(1, stack.length))
    row = share / stack.length if kind == "Mean" else share
    return tuple(
        Rule(
            f"replace_reduce_{kind.lower()}_of_{stack.name}_with_matmul{suffix}",
            apply_reduction(kind, stack.value, axes, keepdims=kept),
            view(row @ stack.matrices),
            when=(
                fn.eq(fn.sorted(fn.normalize_indices(axes, fn.rank(stack.value))), stack.along),
                fn.is_float(fn.dtype(stack.value)),
                *stack.when,
            ),
            pays=stack.pays,
            why="A product with a row of ones reads what it adds up row by row, not column by column.",
        )
        for suffix, kept, view in (("", 1, stack.keep), ("_without_axes", 0, stack.drop))
    )


BY_PRODUCT = tuple(rule for kind in ("Sum", "Mean") for stack in STACKS for rule in reduce_by_product(kind, stack))

TRADES = (*(dropping_axes(kind) for kind in ALONE if kind not in KEEPING), *SPLITS, *BY_PRODUCT)
"""Several nodes in the place of one."""
RULES = (*SINGLE, *AXES, *NESTED, *POOLS, *SOFTMAX, *SUMS)
SWEEPS = {"sums of rows as products": (*SPLITS, *BY_PRODUCT)}
