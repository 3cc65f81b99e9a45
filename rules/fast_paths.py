"""Equal forms for which ONNX Runtime's CPU kernels copy whole runs of elements, and not one element at a time.

Where the last axis of several changes its place, Transpose copies element by element: 1.2 ms for 340,000 numbers, of
which two passes take 0.3, as it is fast where a single axis moves or the last ones stay. Two Transposes in a row ONNX
Runtime joins again, also where a Reshape between them joins or splits axes; one that adds an axis of size 1 keeps them
apart. DepthToSpace is such a transposition, and Softmax swaps its axis with the last one before and after it computes:
of [1, 64, 64, 64] along the second 2.2 ms, and 0.4 of [1, 64, 4096], where only one axis follows.

Softplus calls the C library for each element, 11 ns and more, where Sigmoid takes 0.3 for many at a time, Exp as much
and Log 1.8. Elu and its kin take 2, and LRN takes 26.
"""

from graphopt.base.dtype import DType
from graphopt.rule import App, Rule, Term, fn, integer, integers, op, real, tensor
from graphopt.rules import activation

x, perm, axis = tensor("x"), integers("perm"), integer("axis")
sizes, last = fn.shape(x), fn.rank(x) - 1
goal = fn.item(fn.inverse(perm), last)
"""Place at which the last axis comes to lie."""
source = fn.item(perm, -1)
"""Axis that comes to lie last."""
run, other_run = fn.item(sizes, source), fn.item(sizes, last)
"""Elements that the other pass copies at a time, if the axis that comes to lie last is moved first, or the last axis is
moved last."""


def swap_in_matrices(value: Term, count: Term, rows: Term, columns: Term) -> App:
    """Return so many matrices, transposed, with an axis of size 1 behind."""
    return op.Transpose(op.Reshape(value, fn.concat(count, rows, columns, 1)), perm=(0, 2, 1, 3))


def move_to_the_end_first() -> App:
    """Move the axis that comes to lie last, then the others."""
    order = fn.concat(fn.delete(fn.range(fn.rank(x)), source), source)
    before, behind = fn.slice(sizes, 0, source), fn.slice(sizes, source + 1, fn.rank(x))
    swapped = swap_in_matrices(x, fn.product(before), run, fn.product(behind))
    return op.Transpose(op.Reshape(swapped, fn.compose(sizes, order)), perm=fn.compose(fn.inverse(order), perm))


def move_from_the_end_last() -> App:
    """Move all axes but the last, then that one."""
    order = fn.concat(fn.delete(perm, goal), last)
    moved = fn.compose(sizes, order)
    before, behind = fn.slice(moved, 0, goal), fn.slice(moved, goal, last)
    swapped = swap_in_matrices(op.Transpose(x, perm=order), fn.product(before), fn.product(behind), other_run)
    return op.Reshape(swapped, fn.compose(sizes, perm))


steps = fn.slice(perm, 1, fn.rank(x)) - fn.slice(perm, 0, last) - 1
breaks = fn.sum(fn.minimum(fn.maximum(steps, -steps), 1))
"""Number of places at which axes come to lie side by side that did not."""
moves_several = (fn.ne(goal, last), breaks > 2 - fn.minimum(fn.item(perm, 0), 1))
"""The last axis moves, and more than two runs of axes change places: where the first ones stay, one break is theirs."""
IN_TWO_PASSES = (
    Rule(
        "transpose_in_two_passes_last_axis_first",
        op.Transpose(x, perm=perm),
        move_to_the_end_first(),
        when=(fn.rank(x) > 1, fn.lt(0, sizes)),
        pays=(*moves_several, other_run < run),
        why="Runs along the axis that comes to lie last are copied at a time, once it does.",
    ),
    Rule(
        "transpose_in_two_passes_last_axis_behind",
        op.Transpose(x, perm=perm),
        move_from_the_end_last(),
        when=(fn.rank(x) > 1, fn.lt(0, sizes)),
        pays=(*moves_several, run <= other_run),
        why="Runs along the last axis are copied at a time, as long as it stays the last.",
    ),
)

image, block = tensor("image", "N C H W"), integer("block")
pixels = fn.size("C") // (block * block)
enlarged = fn.concat(fn.size("N"), pixels, fn.size("H") * block, fn.size("W") * block)
DEPTH_TO_SPACE = tuple(
    Rule(
        f"transpose_depth_to_space_in_{order.lower()}",
        op.DepthToSpace(image, blocksize=block, mode=order),
        op.Reshape(
            op.Transpose(op.Reshape(image, fn.concat(fn.size("N"), *apart, fn.sizes("H W"))), perm=perm), enlarged
        ),
        when=fn.lt(0, fn.sizes("N C H W")),
        why="It is a transposition, and that can be done in two passes.",
    )
    for order, apart, perm in (
        ("DCR", (block, block, pixels), (0, 3, 4, 1, 5, 2)),
        ("CRD", (pixels, block, block), (0, 1, 4, 2, 5, 3)),
    )
)

along = fn.item(fn.normalize_indices(fn.concat(axis), fn.rank(x)), 0)
before, behind = fn.slice(sizes, 0, along), fn.slice(sizes, along + 1, fn.rank(x))
SOFTMAX = tuple(
    Rule(
        f"compute_{name.lower()}_of_matrices",
        getattr(op, name)(x, axis=axis),
        op.Reshape(
            getattr(op, name)(
                op.Reshape(x, fn.concat(fn.product(before), fn.item(sizes, along), fn.product(behind))), axis=1
            ),
            sizes,
        ),
        when=(fn.rank(x) > 0, fn.lt(0, sizes)),
        pays=along < last - 1,
        why="Its axis is swapped with the last one, which is fast in a stack of matrices.",
    )
    for name in ("Softmax", "LogSoftmax")
)

COPIES = (*DEPTH_TO_SPACE, *IN_TWO_PASSES, *SOFTMAX)

# -- Mish: x * Tanh(Softplus(x)) -----------------------------------------------------------------------------------

value = tensor("x")
is_float = fn.is_float(fn.dtype(value))
opposite = op.Sigmoid(-value)
tanh_of_softplus = (1.0 - opposite * opposite) / (1.0 + opposite * opposite)
by_sigmoid = "The kernel of Softplus takes thirty times as long as that of Sigmoid."
MISH = (
    Rule(
        "replace_tanh_of_softplus_with_sigmoids",
        op.Tanh(op.Softplus(value)),
        tanh_of_softplus,
        when=is_float,
        why=by_sigmoid,
    ),
    Rule("replace_mish_with_sigmoids", op.Mish(value), value * tanh_of_softplus, when=is_float, why=by_sigmoid),
)

# -- Softplus, Elu and its kin: no exponential is of more than 0, so none overflows --------------------------------

SOFTPLUS = Rule(
    "replace_softplus_with_exp_and_log",
    op.Softplus(value),
    op.Relu(value) + op.Log(op.Exp(-op.Abs(value)) + 1.0),
    when=is_float,
    why="The kernel of Softplus takes four times as long as all of these, which compute many elements at a time.",
)

alpha, gamma = real("alpha"), real("gamma")


def expm1_below_zero(x: Term) -> Term:
    """Return exp(x) - 1, and 0 where x is positive."""
    return op.Exp(op.Clip(x, None, 0.0)) - 1.0


by_exp = "The kernel computes one element after the other, and Exp several at once."
ELU = (
    Rule("replace_elu_with_exp", op.Elu(value), op.Max(value, expm1_below_zero(value)), when=is_float, why=by_exp),
    Rule(
        "replace_scaled_elu_with_exp",
        op.Elu(value, alpha=alpha),
        op.Relu(value) + expm1_below_zero(value) * alpha,
        when=is_float,
        why=by_exp,
    ),
    Rule(
        "replace_selu_with_exp",
        op.Selu(value, alpha=alpha, gamma=gamma),
        op.Relu(value) * gamma + expm1_below_zero(value) * fn.mul(alpha, gamma),
        when=is_float,
        why=by_exp,
    ),
    Rule(
        "replace_celu_with_exp",
        op.Celu(value, alpha=alpha),
        op.Relu(value) + expm1_below_zero(value / alpha) * alpha,
        when=(is_float, alpha > 0),
        why=by_exp,
    ),
)

# -- LRN: the squares of neighbouring channels are added up by a pointwise convolution -----------------------------

window = integer("window")


def band(value: Term, reach: Term) -> App:
    """Return the weights of a pointwise convolution that adds up so many channels on either side, times a number."""
    return op.Unsqueeze(op.Trilu(op.Trilu(op.Expand(value, fn.sizes("C C")), -reach, upper=1), reach, upper=0), (2, 3))


def divide_by_norm(bias: float) -> App:
    """Return the images over a power of 3/4: a root times its own root, of the bias and the scaled sum of squares."""
    base = op.Conv(image * image, band(fn.truediv(alpha, window), window // 2), op.Expand(bias, fn.sizes("C")))
    root = op.Sqrt(base)
    return image / (root * op.Sqrt(root))


LRN = tuple(
    Rule(
        f"replace_lrn{suffix}_with_convolution",
        op.LRN(image, size=window, alpha=alpha, bias=bias),
        divide_by_norm(bias),
        when=(fn.eq(fn.dtype(image), int(DType.FLOAT)), fn.lt(0, fn.sizes("C H W"))),  # squares overflow in float16
        pays=fn.size("C") <= 512,
        why="The kernel of LRN raises one element after the other to a power, and roots are of several at once.",
    )
    for suffix, bias in (("", 1.0), ("_of_bias_2", 2.0))
)

VECTORIZED = (*MISH, *activation.PRELU, SOFTPLUS, *ELU, *LRN)
RULES: tuple[Rule, ...] = ()
TRADES = (*COPIES, *MISH, SOFTPLUS, *ELU, *LRN)
SWEEPS = {"copies in long runs": COPIES, "activations by vectorized kernels": VECTORIZED}
