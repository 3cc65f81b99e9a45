"""Denotations of operators that look through a window: convolutions and pools."""

from __future__ import annotations

from collections.abc import Callable

from graphopt.base.integers import (
    FALSE,
    Formula,
    Size,
    choice,
    conj,
    disj,
    eq,
    fresh,
    ge,
    lt,
    quotient,
    remainder,
)
from graphopt.base.symbolic import Index, Value, call, guarded, integer, number
from graphopt.base.tensors import Tensor, folded, select, total, within
from graphopt.operators.broadcasting import exactly, fits
from graphopt.operators.node import Body, Denotation, Node, OneOf, Reduction, Shape, Undefined
from graphopt.operators.opaque import of_shape

CONVOLUTIONS = ("Conv", "ConvInteger", "QLinearConv")
WITH_FILTERS = (*CONVOLUTIONS, "ConvTranspose")
AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


class Window:
    """How Conv and the pools walk over space: strides, dilations, and pads that may be computed."""

    def __init__(self, node: Node, space: Shape, kernel: Shape) -> None:
        rank = len(space)
        self.space, self.kernel = space, kernel
        self.strides = node.sizes("strides", rank, 1)
        self.dilations = node.sizes("dilations", rank, 1)
        mode, pads = _padding(node, rank)
        self.reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, self.dilations, strict=True))
        if node.op not in CONVOLUTIONS:  # a limit of ONNX Runtime: a window of the edge alone would see nothing
            for pad, size in zip(pads, (*kernel, *kernel), strict=True):
                node.require(lt(pad, size), "a pad is shorter than the kernel")
        if mode == "NOTSET":
            self.begin, self.end = pads[:rank], pads[rank:]
        elif mode == "VALID":
            self.begin = self.end = (0,) * rank
        else:
            self._same(node, upper=mode == "SAME_UPPER")
        ceil = node.op not in CONVOLUTIONS and node.flag("ceil_mode")
        fitting = tuple(self._out(node, axis, ceil) for axis in range(rank))
        self.out = tuple(map(self._strides, range(rank))) if mode.startswith("SAME") else fitting
        self.is_inside = not ceil and all(isinstance(pad, int) and pad == 0 for pad in (*self.begin, *self.end))
        """Whether no window reaches beyond the input."""

    def _same(self, node: Node, *, upper: bool) -> None:
        """Make as many outputs as there are strides in the input, rounded up; the odd element at the end or begin
        (SAME).

        Undefined for pools that would leave out more than one element: runtimes disagree where they begin; and with
        dilations, which ONNX Runtime refuses of convolutions and of pools takes for 1.
        """
        for dilation in self.dilations:
            node.require(eq(dilation, 1), "a dilation beside SAME")
        begin: list[Size] = []
        end: list[Size] = []
        for axis, (size, stride, reach) in enumerate(zip(self.space, self.strides, self.reach, strict=True)):
            needed = (self._strides(axis) - 1) * stride + reach - size
            if node.op not in CONVOLUTIONS:
                node.require(ge(needed, -1), "a pool that leaves out more than one element")
            pad = choice(ge(needed), needed, 0)
            small, large = quotient(pad, 2), pad - quotient(pad, 2)
            begin.append(small if upper else large)
            end.append(large if upper else small)
        self.begin, self.end = tuple(begin), tuple(end)

    def _strides(self, axis: int) -> Size:
        """How many strides there are in the input, rounded up."""
        return quotient(self.space[axis] + self.strides[axis] - 1, self.strides[axis])

    def _out(self, node: Node, axis: int, ceil: bool) -> Size:
        free = self.space[axis] + self.begin[axis] + self.end[axis] - self.reach[axis]
        node.require(ge(free), "the window does not fit into the padded input")
        stride = self.strides[axis]
        if not ceil:
            return quotient(free, stride) + 1
        count = quotient(free + stride - 1, stride) + 1  # a window that starts in the padding at the end is dropped
        return count - choice(ge((count - 1) * stride, self.space[axis] + self.begin[axis]), 1, 0)

    def position(self, out: Index, k: Index) -> Index:
        """Where in the input the k-th element of a window lies; outside of it where padding is read."""
        parts = zip(out, self.strides, k, self.dilations, self.begin, strict=True)
        return tuple(o * s + j * d - p for o, s, j, d, p in parts)

    def sees_nothing(self, out: Index) -> Formula:
        """Return the condition that a window sees nothing but padding: elements that are far apart may skip a short
        input."""
        starts = self.position(out, (0,) * len(out))
        parts = zip(starts, self.space, self.dilations, self.begin, strict=True)
        return disj(*(conj(lt(i, 0), ge(remainder(i, d), n)) for i, n, d, begin in parts if d != 1 and begin != 0))

    def inside(self, out: Index, *, padded: bool = False) -> Callable[[Index], Formula]:
        """Which elements of a window lie inside of the (padded) input; none lies before the padding."""

        def holds(k: Index) -> Formula:
            if not padded:
                return within(self.position(out, k), self.space)
            ends = zip(self.position(out, k), self.space, self.end, strict=True)
            return conj(*(lt(i, n + e) for i, n, e in ends))

        return holds


def _padding(node: Node, rank: int) -> tuple[str, Shape]:
    """How it is padded, and the pads: a convolution that has another way has none, not even written zeros."""
    mode, pads = node.text("auto_pad", AUTO_PADS), node.sizes("pads", 2 * rank, 0)
    if mode != "NOTSET" and node.op in WITH_FILTERS:
        if not node.assuming:
            node.not_beside("pads", "auto_pad")
        for pad in pads:
            node.require(eq(pad), "pads beside auto_pad")
    return mode, pads


def spatial(node: Node, x: Tensor) -> Shape:
    if x.rank < 3:
        raise Undefined(f"{node.op} of rank {x.rank}")
    return x.shape[2:]


def Conv(node: Node) -> Tensor:
    """Y[n, m, o] = B[m] + Σ over c, k of X[n, g·Cg + c, o·strides + k·dilations - pads] · W[m, c, k].

    Cg = C / group; g = m // (M / group) is the group of filter m; what lies outside of X counts as 0.
    """
    return convolution(node, node.input(0), node.input(1), node.optional(2))


def convolution(node: Node, x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """Return the convolution of some tensors with the attributes of a node."""
    group, kernel = _filters(node, x, w)
    (N, C), (M, Cg), space = x.shape[:2], w.shape[:2], x.shape[2:]
    node.require(eq(C, Cg * group), "the channels are not those of the weights")
    Mg = exactly(node, M, group, "the filters do not divide into groups")
    if b is not None:
        fits(node, b.shape, (M,), "the bias is not one number per filter")
    window = Window(node, space, kernel)

    def at(index: Index) -> Value:
        n, m, out = index[0], index[1], index[2:]
        first = 0 if group == 1 else quotient(m, Mg) * Cg

        def term(ck: Index) -> Value:
            c, k = ck[0], ck[1:]
            position = window.position(out, k)
            # Padding is multiplied, too: 0 times a weight that is not finite is NaN, which the extended model counts.
            return guarded(window.inside(out)(k), x.at((n, first + c, *position))) * w.at((m, c, *k))

        return total((Cg, *kernel), term) + (b.at((m,)) if b is not None else 0)

    return Tensor((N, M, *window.out), at)


def _filters(node: Node, x: Tensor, w: Tensor) -> tuple[Size, Shape]:
    """Return what all convolutions have in common: the number of groups and the kernel's shape."""
    if w.rank != x.rank:
        raise Undefined(f"{node.op}: ranks")
    kernel = spatial(node, w)
    for size in w.shape:
        node.require(ge(size, 1), "there are filters, channels to filter, and elements of a kernel")
    given = node.attribute("kernel_shape", lambda: kernel)
    asked = kernel if given is None else given
    fits(node, asked, kernel, "kernel_shape is not that of the weights")
    group = node.integer("group", least=1)
    return group, asked


def ConvTranspose(node: Node) -> Tensor:
    """Y[n, m, y] = B[m] + Σ over c, k, i with i·strides + k·dilations - pads = y of X[n, c, i] · W[c, m', k].

    The size of Y follows from the pads, or the pads from the size of Y: `output_shape`, or SAME: input times strides.
    Undefined where they would be negative, which the text does not allow and runtimes treat in ways of their own.
    """
    x, w, b = node.input(0), node.input(1), node.optional(2)
    group, kernel = _filters(node, x, w)
    (N, C), (D, Mg), space = x.shape[:2], w.shape[:2], x.shape[2:]
    node.require(eq(C, D), "the channels are not those of the weights")
    Cg = exactly(node, C, group, "the channels do not divide into groups")
    if b is not None:
        fits(node, b.shape, (Mg * group,), "the bias is not one number per filter")
    rank = len(space)
    strides, dilations = node.sizes("strides", rank, 1), node.sizes("dilations", rank, 1)
    extra = node.sizes("output_padding", rank, 0)
    full = tuple(strides[a] * (space[a] - 1) + extra[a] + (kernel[a] - 1) * dilations[a] + 1 for a in range(rank))
    for more, stride in zip(extra, strides, strict=True):
        node.require(lt(more, stride), "output_padding is less than the stride")
    out, begin = _transposed_sizes(node, full, tuple(s * n for s, n in zip(strides, space, strict=True)))
    for size in out:
        node.require(ge(size, 1), "the output is not empty")

    def at(index: Index) -> Value:
        n, m, y = index[0], index[1], index[2:]
        g, own = (0, m) if group == 1 else (quotient(m, Mg), remainder(m, Mg))

        def term(cki: Index) -> Value:
            c, k, i = cki[0], cki[1 : 1 + rank], cki[1 + rank :]
            hits = conj(*(eq(i[a] * strides[a] + k[a] * dilations[a] - begin[a], y[a]) for a in range(rank)))
            return guarded(hits, x.at((n, g * Cg + c, *i)) * w.at((g * Cg + c, own, *k)))

        return total((Cg, *kernel, *space), term) + (b.at((m,)) if b is not None else 0)

    return Tensor((N, Mg * group, *out), at)


def _transposed_sizes(node: Node, full: Shape, same: Shape) -> tuple[Shape, Shape]:
    """Return the sizes of a transposed convolution, of which `full` is left without pads, and what is cut off in
    front."""
    rank = len(full)
    mode, pads = _padding(node, rank)
    asked = node.attribute("output_shape", lambda: OneOf((None, tuple(fresh("out") for _ in full))))
    if asked is None and mode in ("NOTSET", "VALID"):
        return tuple(full[a] - pads[a] - pads[rank + a] for a in range(rank)), pads[:rank]
    out = same if asked is None else asked
    if len(out) != rank:
        raise Undefined("output_shape of another rank")
    cut = tuple(f - o for f, o in zip(full, out, strict=True))
    for c in cut:
        node.require(ge(c), "the output is larger than what there is to cut off")
    begin = tuple(quotient(c, 2) if mode == "SAME_UPPER" else c - quotient(c, 2) for c in cut)
    return out, begin


def _pooled(node: Node, x: Tensor) -> Shape:
    """Return the sizes of space, with what ONNX Runtime asks of an input: "Only N can be zero"."""
    space, (batch, *others) = spatial(node, x), x.shape
    if len(space) > 3:
        raise Undefined("a pool of more than three axes of space: ONNX Runtime has no kernel")
    node.require(disj(eq(batch), conj(*(ge(size, 1) for size in others))), "channels or space without elements")
    return space


def pool(element: Callable[[Node, Window], Callable[[Body, Index], Value]]) -> Denotation:
    """Return a pool: of the elements at the positions of a window, something is made. Which they are is not looked
    into."""

    def denotation(node: Node) -> tuple[Tensor, ...]:
        x = node.input(0)
        space = _pooled(node, x)
        kernel = node.sizes("kernel_shape", len(space), 1)
        window = Window(node, space, kernel)
        combine = element(node, window)

        def at(index: Index) -> Value:
            return combine(lambda k: x.at((*index[:2], *window.position(index[2:], k))), index[2:])

        shape = (*x.shape[:2], *window.out)
        return (Tensor(shape, at), *(of_shape(node, position, shape) for position in range(1, node.outputs)))

    return denotation


def greatest(node: Node, window: Window) -> Callable[[Body, Index], Value]:
    """Return the greatest element of a window: padding does not count, and that of nothing is the least number of the
    type."""
    node.ignored("storage_order")
    least = call("Least", params=(node.dtype,))

    def combine(x: Body, out: Index) -> Value:
        found = folded("max", window.kernel, x, window.inside(out))
        nothing = window.sees_nothing(out)
        return found if nothing == FALSE else select(nothing, least, found)

    return combine


def average(node: Node, window: Window) -> Callable[[Body, Index], Value]:
    """Return the mean of what lies inside of the input, or with `count_include_pad` of the padded input."""
    padded = node.flag("count_include_pad")

    def combine(x: Body, out: Index) -> Value:
        where = None if window.is_inside else window.inside(out, padded=padded)
        count = total(window.kernel, lambda _: number(1), where)
        return total(window.kernel, x, window.inside(out)) / count

    return combine


def power_mean(node: Node, window: Window) -> Callable[[Body, Index], Value]:
    """Return the p-norm of what lies inside of the input."""
    norm = _norm(node)
    return lambda x, out: norm(window.kernel, x, window.inside(out))


def _norm(node: Node) -> Callable[..., Value]:
    """Return the p-norm of the elements at some indices."""
    p = integer(node.integer("p", least=1))

    def norm(extents: Shape, x: Body, where: Callable[[Index], Formula] | None = None) -> Value:
        return call("Pow", total(extents, lambda k: call("Pow", call("Abs", x(k)), p), where), 1 / p)

    return norm


def GlobalLpPool(node: Node) -> Tensor:
    """Return the p-norm of all of space."""
    pooled = global_pool(_norm(node))(node)
    assert isinstance(pooled, Tensor)
    return pooled


def global_pool(reduce_: Reduction) -> Denotation:
    """Return a pool whose window is all of space."""

    def denotation(node: Node) -> Tensor:
        x = node.input(0)
        space = _pooled(node, x)

        def at(index: Index) -> Value:
            return reduce_(space, lambda k: x.at((*index[:2], *k)))

        return Tensor((*x.shape[:2], *(1,) * len(space)), at)

    return denotation
