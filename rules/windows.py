"""Windows of images, as torch's unfold makes them: two Gathers and a Transpose, between channels that lie last.

ONNX Runtime gathers along the last axis element by element, and moves elements one by one where the last axis moves.
With channels last, both copy all channels of a pixel at once; so what lies between goes below.
"""

from __future__ import annotations

from graphopt.rule import Rule, const, fn, integer, integers, op, tensor

# Axes: N image, P Q windows, K L pixels of a window, C channels, in H heads of D.
x, places = tensor("x"), tensor("i", "_ _")
perm, shape, pads, axis = integers("perm"), integers("shape"), integers("pads"), integer("axis")
rank = fn.rank(x)
border = const("value", "", default=0)

gathered = fn.item(perm, axis)
# Each axis keeps its place among the others, and beside the one that is gathered from there is one more: of doubled
# numbers, the inverse of the inverse counts how many are smaller.
around = fn.inverse(fn.inverse(fn.insert(perm * 2, fn.concat(axis + 1), gathered * 2 + 1)))
before, after = (fn.compose(fn.slice(pads, *ends), fn.inverse(perm)) for ends in ((0, rank), (rank, rank * 2)))

BELOW = (
    Rule(
        "push_transpose_below_pad",
        op.Pad(op.Transpose(x, perm=perm), pads, border),
        op.Transpose(op.Pad(x, fn.concat(before, after), border), perm=perm),
        why="A border is put around an image in whichever order its axes lie.",
    ),
    Rule(
        "push_transpose_below_gather_of_windows",
        op.Gather(op.Transpose(x, perm=perm), places, axis=axis),
        op.Transpose(op.Gather(x, places, axis=gathered), perm=around),
        when=axis >= 0,
        pays=fn.eq(fn.item(perm, 1), rank - 1),
        why="With channels last, windows are gathered with all channels of a pixel at once.",
    ),
)

windows = tensor("x", "N K P L Q C")
heads, depth = fn.item(shape, 1), fn.item(shape, 2)
inside, across = fn.size("K") * fn.size("L"), fn.size("P") * fn.size("Q")
in_heads = op.Reshape(
    op.Transpose(op.Reshape(windows, fn.concat(fn.sizes("N K P L Q"), heads, depth)), perm=(0, 5, 2, 4, 1, 3, 6)),
    fn.concat(fn.size("N"), heads, across, inside, depth),
)
HEADS = tuple(
    Rule(
        f"fuse_transposes_of_{name}_in_heads",
        op.Transpose(op.Reshape(op.Transpose(windows, perm=(0, 5, 1, 3, 2, 4)), shape), perm=order),
        result,
        when=(
            fn.eq(shape, fn.concat(fn.size("N"), heads, depth, inside, across)),
            fn.eq(heads * depth, fn.size("C")),
            fn.lt(0, shape),
        ),
        why="The channels of a head are moved together, once.",
    )
    for name, order, result in (
        ("windows", (0, 1, 4, 3, 2), in_heads),
        ("transposed_windows", (0, 1, 4, 2, 3), op.Transpose(in_heads, perm=(0, 1, 2, 4, 3))),
    )
)

# -- products that lie the other way -------------------------------------------------------------------------------

left, right = tensor("x", "*b M K"), tensor("y", "*b K N")
swapped = fn.concat(fn.range(fn.rank(left) - 2), fn.rank(left) - 1, fn.rank(left) - 2)
moved = fn.compose(swapped, perm)
all_but_last = fn.rank(left) - 1
PRODUCTS = (
    Rule(
        "push_transpose_above_matmul",
        op.Transpose(left @ right, perm=perm),
        op.Transpose(op.Transpose(right, perm=swapped) @ op.Transpose(left, perm=swapped), perm=moved),
        when=fn.is_float(fn.dtype(left)),
        pays=(fn.is_sorted(fn.slice(moved, 0, all_but_last)), fn.not_(fn.is_sorted(fn.slice(perm, 0, all_but_last)))),
        why="ONNX Runtime multiplies transposed matrices at no cost, and moves one axis faster than two.",
    ),
)

RULES: tuple[Rule, ...] = ()
TRADES = (*BELOW, *HEADS, *PRODUCTS)
SWEEPS = {"windows with channels last": TRADES}
