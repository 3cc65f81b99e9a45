"""Denotations of operators on windows: convolutions and pools."""

from __future__ import annotations

from collections.abc import Callable

from graphopt.expr.expressions import Expr, Index, call_function, constant, guard_expr, integer_value
from graphopt.expr.integers import (
    FALSE,
    Formula,
    Size,
    conjunction,
    disjunction,
    eq,
    fresh_symbol,
    ge,
    if_then_else,
    lt,
    quotient,
    remainder,
)
from graphopt.expr.symbolic_tensors import SymbolicTensor, fold_over, in_bounds, select_expr, sum_over
from graphopt.operators.op_context import (
    Denotation,
    ElementBody,
    OneOf,
    OpContext,
    ReductionFunction,
    SymbolicShape,
    UndefinedOperatorError,
)
from graphopt.operators.opaque_ops import output_of_shape
from graphopt.operators.shape_constraints import divide_exactly, require_shape

CONVOLUTION_OPERATORS = ("Conv", "ConvInteger", "QLinearConv")
FILTER_OPERATORS = (*CONVOLUTION_OPERATORS, "ConvTranspose")
AUTO_PAD_MODES = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


class Window:
    """The walk of Conv and the pools over space: strides, dilations, and pads that may be computed."""

    def __init__(self, node: OpContext, space: SymbolicShape, kernel: SymbolicShape) -> None:
        rank = len(space)
        self.space, self.kernel = space, kernel
        self.strides = node.spatial_attribute("strides", rank, 1)
        self.dilations = node.spatial_attribute("dilations", rank, 1)
        mode, pads = _read_padding(node, rank)
        self.dilated_kernel = tuple((k - 1) * d + 1 for k, d in zip(kernel, self.dilations, strict=True))
        # a limit of ONNX Runtime: otherwise a window at the edge may cover nothing but padding
        if node.op not in CONVOLUTION_OPERATORS:
            for pad, size in zip(pads, (*kernel, *kernel), strict=True):
                node.require(lt(pad, size), "a pad is shorter than the kernel")
        if mode == "NOTSET":
            self.pads_begin, self.pads_end = pads[:rank], pads[rank:]
        elif mode == "VALID":
            self.pads_begin = self.pads_end = (0,) * rank
        else:
            self._set_same_pads(node, upper=mode == "SAME_UPPER")
        ceil = node.op not in CONVOLUTION_OPERATORS and node.flag("ceil_mode")
        fitting = tuple(self._output_size(node, axis, ceil) for axis in range(rank))
        self.output_sizes = tuple(map(self._stride_count, range(rank))) if mode.startswith("SAME") else fitting
        self.is_unpadded = not ceil and all(
            isinstance(pad, int) and pad == 0 for pad in (*self.pads_begin, *self.pads_end)
        )
        """True if no window reaches beyond the input."""

    def _set_same_pads(self, node: OpContext, *, upper: bool) -> None:
        """Make as many outputs as there are strides in the input, rounded up; the odd element at the end or begin
        (SAME).

        Undefined for pools that would leave out more than one element: runtimes disagree where they begin; and with
        dilations, which ONNX Runtime refuses of convolutions and of pools takes for 1.
        """
        for dilation in self.dilations:
            node.require(eq(dilation, 1), "a dilation beside SAME")
        begin: list[Size] = []
        end: list[Size] = []
        for axis, (size, stride, reach) in enumerate(zip(self.space, self.strides, self.dilated_kernel, strict=True)):
            needed = (self._stride_count(axis) - 1) * stride + reach - size
            if node.op not in CONVOLUTION_OPERATORS:
                node.require(ge(needed, -1), "a pool that leaves out more than one element")
            pad = if_then_else(ge(needed), needed, 0)
            small, large = quotient(pad, 2), pad - quotient(pad, 2)
            begin.append(small if upper else large)
            end.append(large if upper else small)
        self.pads_begin, self.pads_end = tuple(begin), tuple(end)

    def _stride_count(self, axis: int) -> Size:
        """Return the number of strides in the input, rounded up."""
        return quotient(self.space[axis] + self.strides[axis] - 1, self.strides[axis])

    def _output_size(self, node: OpContext, axis: int, ceil: bool) -> Size:
        free = self.space[axis] + self.pads_begin[axis] + self.pads_end[axis] - self.dilated_kernel[axis]
        node.require(ge(free), "the window does not fit into the padded input")
        stride = self.strides[axis]
        if not ceil:
            return quotient(free, stride) + 1
        count = quotient(free + stride - 1, stride) + 1  # a window that starts in the padding at the end is dropped
        return count - if_then_else(ge((count - 1) * stride, self.space[axis] + self.pads_begin[axis]), 1, 0)

    def input_index(self, out: Index, k: Index) -> Index:
        """Return the position in the input of the k-th element of a window; outside of it where padding is read."""
        parts = zip(out, self.strides, k, self.dilations, self.pads_begin, strict=True)
        return tuple(o * s + j * d - p for o, s, j, d, p in parts)

    def padding_only_condition(self, out: Index) -> Formula:
        """Return the condition that a window covers nothing but padding, as a dilated one may that skips a short
        input."""
        starts = self.input_index(out, (0,) * len(out))
        parts = zip(starts, self.space, self.dilations, self.pads_begin, strict=True)
        return disjunction(
            *(conjunction(lt(i, 0), ge(remainder(i, d), n)) for i, n, d, begin in parts if d != 1 and begin != 0)
        )

    def inside_condition(self, out: Index, *, padded: bool = False) -> Callable[[Index], Formula]:
        """Return the condition that an element of a window lies in the (padded) input; none lies before the padding."""

        def holds(k: Index) -> Formula:
            if not padded:
                return in_bounds(self.input_index(out, k), self.space)
            ends = zip(self.input_index(out, k), self.space, self.pads_end, strict=True)
            return conjunction(*(lt(i, n + e) for i, n, e in ends))

        return holds


def _read_padding(node: OpContext, rank: int) -> tuple[str, SymbolicShape]:
    """Return the mode of padding, and the pads; a convolution with `auto_pad` has none, not even written zeros."""
    mode, pads = node.text("auto_pad", AUTO_PAD_MODES), node.spatial_attribute("pads", 2 * rank, 0)
    if mode != "NOTSET" and node.op in FILTER_OPERATORS:
        if not node.assumes_defined:
            node.require_absent_beside("pads", "auto_pad")
        for pad in pads:
            node.require(eq(pad), "pads beside auto_pad")
    return mode, pads


def spatial_shape(node: OpContext, x: SymbolicTensor) -> SymbolicShape:
    if x.rank < 3:
        raise UndefinedOperatorError(f"{node.op} of rank {x.rank}")
    return x.shape[2:]


def Conv(node: OpContext) -> SymbolicTensor:
    """Y[n, m, o] = B[m] + Σ over c, k of X[n, g·Cg + c, o·strides + k·dilations - pads] · W[m, c, k].

    Cg = C / group; g = m // (M / group) is the group of filter m; what lies outside of X counts as 0.
    """
    return convolution(node, node.input(0), node.input(1), node.optional_input(2))


def convolution(node: OpContext, x: SymbolicTensor, w: SymbolicTensor, b: SymbolicTensor | None) -> SymbolicTensor:
    """Return the convolution of tensors with the attributes of a node."""
    group, kernel = _group_and_kernel_shape(node, x, w)
    (N, C), (M, Cg), space = x.shape[:2], w.shape[:2], x.shape[2:]
    node.require(eq(C, Cg * group), "the channels are not those of the weights")
    Mg = divide_exactly(node, M, group, "the filters do not divide into groups")
    if b is not None:
        require_shape(node, b.shape, (M,), "the bias is not one number per filter")
    window = Window(node, space, kernel)

    def at(index: Index) -> Expr:
        n, m, out = index[0], index[1], index[2:]
        first = 0 if group == 1 else quotient(m, Mg) * Cg

        def term(ck: Index) -> Expr:
            c, k = ck[0], ck[1:]
            position = window.input_index(out, k)
            # Padding is multiplied, too: 0 times a weight that is not finite is NaN, which the extended model counts.
            return guard_expr(window.inside_condition(out)(k), x.element((n, first + c, *position))) * w.element(
                (m, c, *k)
            )

        return sum_over((Cg, *kernel), term) + (b.element((m,)) if b is not None else 0)

    return SymbolicTensor((N, M, *window.output_sizes), at)


def _group_and_kernel_shape(node: OpContext, x: SymbolicTensor, w: SymbolicTensor) -> tuple[Size, SymbolicShape]:
    """Return the number of groups and the shape of the kernel."""
    if w.rank != x.rank:
        raise UndefinedOperatorError(f"{node.op}: ranks")
    kernel = spatial_shape(node, w)
    for size in w.shape:
        node.require(ge(size, 1), "there are filters, channels to filter, and elements of a kernel")
    given = node.attribute("kernel_shape", lambda: kernel)
    asked = kernel if given is None else given
    require_shape(node, asked, kernel, "kernel_shape is not that of the weights")
    group = node.integer("group", least=1)
    return group, asked


def ConvTranspose(node: OpContext) -> SymbolicTensor:
    """Y[n, m, y] = B[m] + Σ over c, k, i with i·strides + k·dilations - pads = y of X[n, c, i] · W[c, m', k].

    The size of Y follows from the pads, or the pads from the size of Y: `output_shape`, or SAME: input times strides.
    Undefined where they would be negative, which the text does not allow and runtimes treat in ways of their own.
    """
    x, w, b = node.input(0), node.input(1), node.optional_input(2)
    group, kernel = _group_and_kernel_shape(node, x, w)
    (N, C), (D, Mg), space = x.shape[:2], w.shape[:2], x.shape[2:]
    node.require(eq(C, D), "the channels are not those of the weights")
    Cg = divide_exactly(node, C, group, "the channels do not divide into groups")
    if b is not None:
        require_shape(node, b.shape, (Mg * group,), "the bias is not one number per filter")
    rank = len(space)
    strides, dilations = node.spatial_attribute("strides", rank, 1), node.spatial_attribute("dilations", rank, 1)
    extra = node.spatial_attribute("output_padding", rank, 0)
    full = tuple(strides[a] * (space[a] - 1) + extra[a] + (kernel[a] - 1) * dilations[a] + 1 for a in range(rank))
    for more, stride in zip(extra, strides, strict=True):
        node.require(lt(more, stride), "output_padding is less than the stride")
    out, begin = _transposed_sizes(node, full, tuple(s * n for s, n in zip(strides, space, strict=True)))
    for size in out:
        node.require(ge(size, 1), "the output is not empty")

    def at(index: Index) -> Expr:
        n, m, y = index[0], index[1], index[2:]
        g, own = (0, m) if group == 1 else (quotient(m, Mg), remainder(m, Mg))

        def term(cki: Index) -> Expr:
            c, k, i = cki[0], cki[1 : 1 + rank], cki[1 + rank :]
            hits = conjunction(*(eq(i[a] * strides[a] + k[a] * dilations[a] - begin[a], y[a]) for a in range(rank)))
            return guard_expr(hits, x.element((n, g * Cg + c, *i)) * w.element((g * Cg + c, own, *k)))

        return sum_over((Cg, *kernel, *space), term) + (b.element((m,)) if b is not None else 0)

    return SymbolicTensor((N, Mg * group, *out), at)


def _transposed_sizes(node: OpContext, full: SymbolicShape, same: SymbolicShape) -> tuple[SymbolicShape, SymbolicShape]:
    """Return the sizes of a transposed convolution, `full` being those without pads, and what is cut off in front."""
    rank = len(full)
    mode, pads = _read_padding(node, rank)
    asked = node.attribute("output_shape", lambda: OneOf((None, tuple(fresh_symbol("out") for _ in full))))
    if asked is None and mode in ("NOTSET", "VALID"):
        return tuple(full[a] - pads[a] - pads[rank + a] for a in range(rank)), pads[:rank]
    out = same if asked is None else asked
    if len(out) != rank:
        raise UndefinedOperatorError("output_shape of another rank")
    cut = tuple(f - o for f, o in zip(full, out, strict=True))
    for c in cut:
        node.require(ge(c), "the output is larger than what there is to cut off")
    begin = tuple(quotient(c, 2) if mode == "SAME_UPPER" else c - quotient(c, 2) for c in cut)
    return out, begin


def _pooled_shape(node: OpContext, x: SymbolicTensor) -> SymbolicShape:
    """Return the spatial sizes of a pool, with ONNX Runtime's requirement on the input: "Only N can be zero"."""
    space, (batch, *others) = spatial_shape(node, x), x.shape
    if len(space) > 3:
        raise UndefinedOperatorError("a pool of more than three axes of space: ONNX Runtime has no kernel")
    node.require(
        disjunction(eq(batch), conjunction(*(ge(size, 1) for size in others))), "channels or space without elements"
    )
    return space


def pool_denotation(element: Callable[[OpContext, Window], Callable[[ElementBody, Index], Expr]]) -> Denotation:
    """Return a pool: of the elements at the positions of a window, something is made. Which they are is not looked
    into."""

    def denotation(node: OpContext) -> tuple[SymbolicTensor, ...]:
        x = node.input(0)
        space = _pooled_shape(node, x)
        kernel = node.spatial_attribute("kernel_shape", len(space), 1)
        window = Window(node, space, kernel)
        combine = element(node, window)

        def at(index: Index) -> Expr:
            return combine(lambda k: x.element((*index[:2], *window.input_index(index[2:], k))), index[2:])

        shape = (*x.shape[:2], *window.output_sizes)
        return (
            SymbolicTensor(shape, at),
            *(output_of_shape(node, position, shape) for position in range(1, node.output_count)),
        )

    return denotation


def window_maximum(node: OpContext, window: Window) -> Callable[[ElementBody, Index], Expr]:
    """Return the greatest element of a window without padding; the least number of the type if there is none."""
    node.read_unmodeled_attribute("storage_order")
    least = call_function("Least", params=(node.dtype,))

    def combine(x: ElementBody, out: Index) -> Expr:
        found = fold_over("max", window.kernel, x, window.inside_condition(out))
        nothing = window.padding_only_condition(out)
        return found if nothing == FALSE else select_expr(nothing, least, found)

    return combine


def window_average(node: OpContext, window: Window) -> Callable[[ElementBody, Index], Expr]:
    """Return the mean of the elements inside the input, or with `count_include_pad` the padded input."""
    padded = node.flag("count_include_pad")

    def combine(x: ElementBody, out: Index) -> Expr:
        where = None if window.is_unpadded else window.inside_condition(out, padded=padded)
        count = sum_over(window.kernel, lambda _: constant(1), where)
        return sum_over(window.kernel, x, window.inside_condition(out)) / count

    return combine


def window_power_mean(node: OpContext, window: Window) -> Callable[[ElementBody, Index], Expr]:
    """Return the p-norm of the elements inside the input."""
    norm = _p_norm(node)
    return lambda x, out: norm(window.kernel, x, window.inside_condition(out))


def _p_norm(node: OpContext) -> Callable[..., Expr]:
    """Return the p-norm of the elements at some indices."""
    p = integer_value(node.integer("p", least=1))

    def norm(extents: SymbolicShape, x: ElementBody, where: Callable[[Index], Formula] | None = None) -> Expr:
        return call_function(
            "Pow", sum_over(extents, lambda k: call_function("Pow", call_function("Abs", x(k)), p), where), 1 / p
        )

    return norm


def GlobalLpPool(node: OpContext) -> SymbolicTensor:
    """Return the p-norm over all of space."""
    pooled = global_pool_denotation(_p_norm(node))(node)
    assert isinstance(pooled, SymbolicTensor)
    return pooled


def global_pool_denotation(reduce_: ReductionFunction) -> Denotation:
    """Return a pool whose window is all of space."""

    def denotation(node: OpContext) -> SymbolicTensor:
        x = node.input(0)
        space = _pooled_shape(node, x)

        def at(index: Index) -> Expr:
            return reduce_(space, lambda k: x.element((*index[:2], *k)))

        return SymbolicTensor((*x.shape[:2], *(1,) * len(space)), at)

    return denotation
