"""What each ONNX operator computes, over exact real numbers: the trusted base of every proof.

One function per operator, in the words of https://onnx.ai/onnx/operators/ (the page `onnx__<Operator>.html`). It says
what shape the outputs have, when the operator is defined (`node.require`), and what each element is. Tested operator
by operator against `onnx.reference`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, reduce
from itertools import combinations, permutations
from typing import Any, TypeAlias

from graphopt.scalar import holds
from graphopt.types import DType
from graphopt.verifier.elementwise import COMPARISONS, ELEMENTWISE, EXACT, LOGICAL
from graphopt.verifier.instances import MAX_RANK, Node, OneOf, Undefined, Unsupported, real, subsets
from graphopt.verifier.integers import (
    FALSE,
    TRUE,
    Formula,
    Int,
    Size,
    choice,
    conj,
    disj,
    divide,
    eq,
    fresh,
    ge,
    inside,
    le,
    lt,
    negate,
    product,
    quotient,
    remainder,
)
from graphopt.verifier.symbolic import (
    Element,
    Index,
    Tensor,
    Term,
    Value,
    Whole,
    boolean,
    call,
    folded,
    guarded,
    integer,
    lift,
    number,
    select,
    total,
    truth,
    within,
)

Shape: TypeAlias = "tuple[Size, ...]"
Body: TypeAlias = "Callable[[Index], Value]"
Reduction: TypeAlias = "Callable[[Shape, Body], Value]"
Denotation: TypeAlias = Callable[[Node], "Tensor | tuple[Tensor, ...]"]


def denote(node: Node) -> tuple[Tensor, ...]:
    """The outputs of an operator."""
    if node.app.domain or node.op not in OPERATORS:
        raise Unsupported(f"no denotation of {node.app.domain or ''}{'.' if node.app.domain else ''}{node.op}")
    found = OPERATORS[node.op](node)
    outputs = found if isinstance(found, tuple) else (found,)
    if node.op in KEEPS:
        outputs = tuple(replace(output, values=node.input(0).values) for output in outputs)
    if node.op in ("Cast", "CastLike") and holds(
        node.target() if node.op == "Cast" else node.input(1).dtype, node.input(0).values
    ):
        outputs = tuple(replace(output, values=node.input(0).values) for output in outputs)
    if node.is_exact and not _only_moves(node):
        outputs = tuple(_opaque(node, position, output) for position, output in enumerate(outputs))
    return outputs


def _only_moves(node: Node) -> bool:
    """Its denotation is exact; that of an Einsum is where it only puts the axes of one operand in another order."""
    if node.op != "Einsum":
        return node.op in MOVES
    letters, _, result = str(node.used["equation"]).replace(" ", "").partition("->")
    return sorted(letters) == sorted(result)


def _opaque(node: Node, position: int, output: Tensor) -> Tensor:
    """In the exact model an operator that computes is a function of whole tensors: kernels block by shape.

    Whether a reduction keeps its axes does not change its numbers.
    """
    used = dict(node.used)
    kept = used.get("along", ()) if used.pop("keepdims", 0) else ()
    params = (position, node.folded, node.dtype, *sorted(used.items()))
    operands = []
    for i in range(node.count):
        tensor = None if node.is_number(i) else node.optional(i)
        operands.append(None if tensor is None else tensor.whole())
    whole = tuple(operands)

    def at(index: Index) -> Value:
        place = tuple(i for axis, i in enumerate(index) if axis not in kept)
        return lift(Element(node.op, params, whole, place))

    return Tensor(output.shape, at, output.dtype)


# -- broadcasting --------------------------------------------------------------------------------------------------


def broadcast(node: Node, shapes: Sequence[Shape]) -> Shape:
    """https://github.com/onnx/onnx/blob/main/docs/Broadcasting.md: axes from the right, equal or one of them 1."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(reduce(lambda a, b: _common(node, a, b), sizes) for sizes in zip(*padded, strict=True))


def _common(node: Node, a: Size, b: Size) -> Size:
    node.require(disj(eq(a, b), eq(a, 1), eq(b, 1)), "the sizes of an axis differ and none is 1")
    if a == b or b == 1:
        return a
    if isinstance(b, int) or a == 1:
        return b
    return a if isinstance(a, int) else choice(eq(a, 1), b, a)


def stretched(tensor: Tensor, shape: Shape, index: Index) -> Value:
    """The element of a tensor that is broadcast to a shape."""
    own = index[len(index) - tensor.rank :]
    sizes = zip(own, tensor.shape, shape[len(shape) - tensor.rank :], strict=True)
    return tensor.at(tuple(i if size == full else choice(eq(size, 1), 0, i) for i, size, full in sizes))


def fits(node: Node, shape: Shape, wanted: Shape, reason: str) -> None:
    """The shape has to be the one that is wanted."""
    if len(shape) != len(wanted):
        raise Undefined(f"{node.op}: {reason}")
    for size, own in zip(shape, wanted, strict=True):
        node.require(eq(size, own), reason)


def elementwise(node: Node) -> Tensor:
    """An operator that computes each element from those of its inputs at that index."""
    count = 1 if node.op == "CastLike" else node.count  # of what it is cast like only the type counts
    inputs = [node.optional(i) for i in range(count)]
    present = [tensor for tensor in inputs if tensor is not None]
    shape = broadcast(node, [tensor.shape for tensor in present])
    function = ELEMENTWISE[node.op](node)
    compares_exactly = node.op in COMPARISONS and (node.dtype.is_integer or node.dtype is DType.BOOL)
    if node.op not in LOGICAL and not compares_exactly and node.is_exact:
        function = EXACT(node)

    def applied(operands: Sequence[Tensor | None], shape: Shape) -> Tensor:
        return Tensor(shape, lambda index: function(*(t and stretched(t, shape, index) for t in operands)))

    base = _common_base(present, shape)
    view_of = None if base is None else applied([t and t.base for t in inputs], base)
    return replace(applied(inputs, shape), view_of=view_of)


def _common_base(operands: Sequence[Tensor], shape: Shape) -> Shape | None:
    """The shape of what all operands of this shape are views of; single numbers go with every shape."""
    whole = [t for t in operands if t.rank or t.view_of]
    bases = {t.base.shape for t in whole}
    same = len(bases) == 1 and all(t.shape == shape for t in whole)
    return next(iter(bases)) if same and any(t.view_of for t in whole) else None


# -- products ------------------------------------------------------------------------------------------------------


def MatMul(node: Node) -> Tensor:
    """As numpy.matmul: a vector is a row or a column, leading axes broadcast."""
    a, b = node.input(0), node.input(1)
    if not a.rank or not b.rank:
        raise Undefined("MatMul of a scalar")
    row, column = a.rank == 1, b.rank == 1
    inner, other = a.shape[-1], b.shape[-1 if column else -2]
    node.require(eq(inner, other), "the contracted axes have different sizes")
    batch = broadcast(node, [a.shape[:-2], b.shape[:-2]])
    shape = (*batch, *(() if row else a.shape[-2:-1]), *(() if column else b.shape[-1:]))

    def at(index: Index) -> Value:
        outer, rest = index[: len(batch)], list(index[len(batch) :])
        i = () if row else (rest.pop(0),)
        j = () if column else (rest.pop(0),)

        def term(k: Index) -> Value:
            return matrix(a, batch, outer, (*i, *k)) * matrix(b, batch, outer, (*k, *j))

        return total((inner,), term)

    return Tensor(shape, at)


def matrix(tensor: Tensor, batch: Shape, outer: Index, inner: Index) -> Value:
    """An element of a stack of matrices whose leading axes are broadcast."""
    if tensor.rank <= 1:
        return tensor.at(inner)
    leading = tensor.rank - 2
    own = outer[len(outer) - leading :]
    full = batch[len(batch) - leading :]
    sizes = zip(own, tensor.shape, full, strict=False)
    return tensor.at((*(i if s == f else choice(eq(s, 1), 0, i) for i, s, f in sizes), *inner))


def Gemm(node: Node) -> Tensor:
    """alpha · A' · B' + beta · C, where A' and B' may be transposed and C is broadcast."""
    a, b, c = node.input(0), node.input(1), node.optional(2)
    if a.rank != 2 or b.rank != 2 or (c is not None and c.rank > 2):
        raise Undefined("Gemm of something else than matrices")
    alpha, beta = node.real("alpha", 1.0), node.real("beta", 1.0)
    flipped_a, flipped_b = node.flag("transA"), node.flag("transB")
    (M, K) = a.shape[::-1] if flipped_a else a.shape
    (L, N) = b.shape[::-1] if flipped_b else b.shape
    node.require(eq(K, L), "the contracted axes have different sizes")
    if c is not None:
        for size, full in zip(c.shape[::-1], (N, M), strict=False):
            node.require(disj(eq(size, full), eq(size, 1)), "C does not broadcast to the result")

    def at(index: Index) -> Value:
        i, j = index
        dot = total((K,), lambda k: a.at((*k, i) if flipped_a else (i, *k)) * b.at((j, *k) if flipped_b else (*k, j)))
        return alpha * dot + (beta * stretched(c, (M, N), index) if c is not None else 0)

    return Tensor((M, N), at)


# -- windows -------------------------------------------------------------------------------------------------------


AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


class Window:
    """How Conv and the pools walk over space: strides, dilations, and pads that may be computed."""

    def __init__(self, node: Node, space: Shape, kernel: Shape) -> None:
        rank = len(space)
        if not rank:
            raise Undefined("no axis of space")
        self.space, self.kernel = space, kernel
        self.strides = node.sizes("strides", rank, 1, 1)
        self.dilations = node.sizes("dilations", rank, 1, 1)
        mode = node.text("auto_pad", "NOTSET", AUTO_PADS)
        pads = node.sizes("pads", 2 * rank, 0, 0)
        for size in kernel:
            node.require(ge(size, 1), "a kernel has at least one element")
        self.reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, self.dilations, strict=True))
        if mode == "NOTSET":
            self.begin, self.end = pads[:rank], pads[rank:]
        elif mode == "VALID":
            self.begin = self.end = (0,) * rank
        else:
            self._same(node, upper=mode == "SAME_UPPER")
        ceil = node.op != "Conv" and node.flag("ceil_mode")
        self.out = tuple(self._out(node, axis, ceil) for axis in range(rank))

    def _same(self, node: Node, *, upper: bool) -> None:
        """SAME: as many outputs as there are strides in the input, rounded up; the odd element at the end or begin.

        Undefined for pools that would leave out more than one element: runtimes disagree where they begin.
        """
        begin: list[Size] = []
        end: list[Size] = []
        for size, stride, reach in zip(self.space, self.strides, self.reach, strict=True):
            count = quotient(size + stride - 1, stride)
            needed = (count - 1) * stride + reach - size
            if node.op != "Conv":
                node.require(ge(needed, -1), "a pool that leaves out more than one element")
            pad = choice(ge(needed), needed, 0)
            small, large = quotient(pad, 2), pad - quotient(pad, 2)
            begin.append(small if upper else large)
            end.append(large if upper else small)
        self.begin, self.end = tuple(begin), tuple(end)

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

    def inside(self, out: Index, *, padded: bool = False) -> Callable[[Index], Formula]:
        """Which elements of a window lie inside of the (padded) input."""

        def holds(k: Index) -> Formula:
            if not padded:
                return within(self.position(out, k), self.space)
            ends = zip(self.position(out, k), self.space, self.begin, self.end, strict=True)
            return conj(*(conj(ge(i, -1 * b), lt(i, n + e)) for i, n, b, e in ends))

        return holds


def _space(node: Node, x: Tensor) -> Shape:
    if x.rank < 3:
        raise Undefined(f"{node.op} of rank {x.rank}")
    return x.shape[2:]


def Conv(node: Node) -> Tensor:
    """Y[n, m, o] = B[m] + Σ over c, k of X[n, g·Cg + c, o·strides + k·dilations - pads] · W[m, c, k].

    Cg = C / group; g = m // (M / group) is the group of filter m; what lies outside of X counts as 0.
    """
    x, w, b, group = _filters(node)
    (N, C), (M, Cg), space, kernel = x.shape[:2], w.shape[:2], x.shape[2:], w.shape[2:]
    node.require(eq(C, Cg * group), "the channels are not those of the weights")
    Mg = _exactly(node, M, group, "the filters do not divide into groups")
    if b is not None:
        fits(node, b.shape, (M,), "the bias is not one number per filter")
    window = Window(node, space, kernel)

    def at(index: Index) -> Value:
        n, m, out = index[0], index[1], index[2:]
        first = 0 if group == 1 else quotient(m, Mg) * Cg

        def term(ck: Index) -> Value:
            c, k = ck[0], ck[1:]
            position = window.position(out, k)
            return guarded(window.inside(out)(k), x.at((n, first + c, *position)) * w.at((m, c, *k)))

        return total((Cg, *kernel), term) + (b.at((m,)) if b is not None else 0)

    return Tensor((N, M, *window.out), at)


def _filters(node: Node) -> tuple[Tensor, Tensor, Tensor | None, Size]:
    """What Conv and ConvTranspose have in common: input, weights, bias and number of groups."""
    x, w, b = node.input(0), node.input(1), node.optional(2)
    if w.rank != x.rank:
        raise Undefined(f"{node.op}: ranks")
    kernel = _space(node, w)
    for size in w.shape[:2]:
        node.require(ge(size, 1), "there are filters, and channels to filter")
    given = node.attribute("kernel_shape", None, lambda: kernel)
    fits(node, kernel if given is None else given, kernel, "kernel_shape is not that of the weights")
    group = node.integer("group", 1, least=1)
    node.require(ge(group, 1), "group is at least 1")
    return x, w, b, group


def _exactly(node: Node, dividend: Size, divisor: Size, reason: str) -> Size:
    """The quotient of a division that has to come out even."""
    even = divide(dividend, divisor)
    if even is not None:
        return even
    node.require(eq(remainder(dividend, divisor)), reason)
    return quotient(dividend, divisor)


def ConvTranspose(node: Node) -> Tensor:
    """Y[n, m, y] = B[m] + Σ over c, k, i with i·strides + k·dilations - pads = y of X[n, c, i] · W[c, m', k].

    The size of Y follows from the pads, or the pads from the size of Y: `output_shape`, or SAME: input times strides.
    Undefined where they would be negative, which the text does not allow and runtimes treat in ways of their own.
    """
    x, w, b, group = _filters(node)
    (N, C), (D, Mg), space, kernel = x.shape[:2], w.shape[:2], x.shape[2:], w.shape[2:]
    node.require(eq(C, D), "the channels are not those of the weights")
    Cg = _exactly(node, C, group, "the channels do not divide into groups")
    if b is not None:
        fits(node, b.shape, (Mg * group,), "the bias is not one number per filter")
    rank = len(space)
    strides, dilations = node.sizes("strides", rank, 1, 1), node.sizes("dilations", rank, 1, 1)
    extra = node.sizes("output_padding", rank, 0, 0)
    full = tuple(strides[a] * (space[a] - 1) + extra[a] + (kernel[a] - 1) * dilations[a] + 1 for a in range(rank))
    for more, stride, dilation in zip(extra, strides, dilations, strict=True):
        node.require(disj(lt(more, stride), lt(more, dilation)), "output_padding is less than stride or dilation")
    out, begin = _transposed_sizes(node, full, tuple(s * n for s, n in zip(strides, space, strict=True)))
    for a in range(rank):
        node.require(conj(ge(out[a]), ge(kernel[a], 1), ge(space[a], 1)), "the output has no negative size")

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
    """The sizes of a transposed convolution, of which `full` is left without pads, and what is cut off in front."""
    rank = len(full)
    mode = node.text("auto_pad", "NOTSET", AUTO_PADS)
    pads = node.sizes("pads", 2 * rank, 0, 0)
    asked = node.attribute("output_shape", None, lambda: node.choose((None, tuple(fresh("out") for _ in full))))
    if asked is None and mode in ("NOTSET", "VALID"):
        pads = pads if mode == "NOTSET" else (0,) * 2 * rank
        return tuple(full[a] - pads[a] - pads[rank + a] for a in range(rank)), pads[:rank]
    out = same if asked is None else asked
    if len(out) != rank:
        raise Undefined("output_shape of another rank")
    cut = tuple(f - o for f, o in zip(full, out, strict=True))
    for c in cut:
        node.require(ge(c), "the output is larger than what there is to cut off")
    begin = tuple(quotient(c, 2) if mode == "SAME_UPPER" else c - quotient(c, 2) for c in cut)
    return out, begin


def pool(element: Callable[[Node, Window], Callable[[Body, Index], Value]]) -> Denotation:
    """A pool: of the elements at the positions of a window, something is made."""

    def denotation(node: Node) -> Tensor:
        x = node.input(0)
        space = _space(node, x)
        if node.app.outputs > 1:
            raise Unsupported("the indices of MaxPool")
        kernel = node.sizes("kernel_shape", len(space), 1, 1)
        window = Window(node, space, kernel)
        combine = element(node, window)

        def at(index: Index) -> Value:
            return combine(lambda k: x.at((*index[:2], *window.position(index[2:], k))), index[2:])

        return Tensor((*x.shape[:2], *window.out), at)

    return denotation


def greatest(node: Node, window: Window) -> Callable[[Body, Index], Value]:
    """Padding does not count."""
    node.ignored("storage_order", 0)
    return lambda x, out: folded("max", window.kernel, x, window.inside(out))


def average(node: Node, window: Window) -> Callable[[Body, Index], Value]:
    """The mean of what lies inside of the input, or with `count_include_pad` of the padded input."""
    padded = node.flag("count_include_pad")

    def combine(x: Body, out: Index) -> Value:
        counted = window.inside(out, padded=padded)
        whole = padded and not node.used["ceil_mode"]
        count = integer(product(window.kernel)) if whole else total(window.kernel, lambda _: number(1), counted)
        return total(window.kernel, x, window.inside(out)) / count

    return combine


def power_mean(node: Node, window: Window) -> Callable[[Body, Index], Value]:
    """The p-norm."""
    p = integer(node.integer("p", 2, least=1))

    def combine(x: Body, out: Index) -> Value:
        powers = total(window.kernel, lambda k: call("Pow", call("Abs", x(k)), p), window.inside(out))
        return call("Pow", powers, 1 / p)

    return combine


def global_pool(reduce_: Reduction) -> Denotation:
    """A pool whose window is all of space."""

    def denotation(node: Node) -> Tensor:
        x = node.input(0)
        space = _space(node, x)

        def at(index: Index) -> Value:
            return reduce_(space, lambda k: x.at((*index[:2], *k)))

        return Tensor((*x.shape[:2], *(1,) * len(space)), at)

    return denotation


def mean(extents: Shape, body: Body) -> Value:
    return total(extents, body) / integer(product(extents))


# -- reductions ----------------------------------------------------------------------------------------------------


def _along(node: Node, axes: Sequence[int]) -> None:
    """A reduction is known by the axes that it runs along, however they are given."""
    for name in ("axis", "input1", "noop_with_empty_axes"):
        node.used.pop(name, None)
    node.used["along"] = tuple(sorted(axes))


def reduction(combine: Reduction) -> Denotation:
    """A Reduce operator: `axes` is an input; none means all, or with `noop_with_empty_axes` none."""

    def denotation(node: Node) -> Tensor:
        x = node.input(0)
        keep = node.flag("keepdims", 1)
        noop = node.flag("noop_with_empty_axes")
        axes = node.axes(1, x.rank) if node.has(1) else ()
        axes = axes if axes or noop else tuple(range(x.rank))
        _along(node, axes)
        kept = [i for i in range(x.rank) if i not in axes]
        shape = tuple(1 if i in axes else s for i, s in enumerate(x.shape) if keep or i not in axes)
        extents = tuple(x.shape[i] for i in axes)

        def at(index: Index) -> Value:
            outer = dict(zip(kept, (index[i] for i in kept) if keep else index, strict=True))

            def element(k: Index) -> Value:
                inner = dict(zip(axes, k, strict=True))
                return x.at(tuple(inner[i] if i in inner else outer[i] for i in range(x.rank)))

            return combine(extents, element)

        return Tensor(shape, at)

    return denotation


REDUCTIONS: Mapping[str, Reduction] = {
    "ReduceSum": total,
    "ReduceMean": mean,
    "ReduceMax": lambda n, x: folded("max", n, x),
    "ReduceMin": lambda n, x: folded("min", n, x),
    "ReduceProd": lambda n, x: folded("prod", n, x),
    "ReduceSumSquare": lambda n, x: total(n, lambda k: x(k) * x(k)),
    "ReduceL1": lambda n, x: total(n, lambda k: call("Abs", x(k))),
    "ReduceL2": lambda n, x: call("Sqrt", total(n, lambda k: x(k) * x(k))),
    "ReduceLogSum": lambda n, x: call("Log", total(n, x)),
    "ReduceLogSumExp": lambda n, x: call("Log", total(n, lambda k: call("Exp", x(k)))),
}


def CumSum(node: Node) -> Tensor:
    """The sum of what precedes along an axis, itself included unless `exclusive`; backwards if `reverse`."""
    x = node.input(0)
    axis = node.counted(node.numbers(1, lambda: OneOf(range(-x.rank, x.rank))), x.rank)
    exclusive, backwards = node.flag("exclusive"), node.flag("reverse")

    def at(index: Index) -> Value:
        def counts(k: Index) -> Formula:
            before, after = (index[axis], k[0]) if backwards else (k[0], index[axis])
            return lt(before, after) if exclusive else le(before, after)

        _, extents, others = over(x, (axis,), index)
        return total(extents, others, counts)

    return Tensor(x.shape, at)


def Softmax(node: Node) -> Tensor:
    """exp(x) / Σ exp(x) along `axis`."""
    x = node.input(0)
    axis = node.axis("axis", x.rank, -1)

    def at(index: Index) -> Value:
        element, extents, others = over(x, (axis,), index)
        return call("Exp", element) / total(extents, lambda k: call("Exp", others(k)))

    return Tensor(x.shape, at)


def LogSoftmax(node: Node) -> Tensor:
    """x - log Σ exp(x) along `axis`."""
    x = node.input(0)
    axis = node.axis("axis", x.rank, -1)

    def at(index: Index) -> Value:
        element, extents, others = over(x, (axis,), index)
        return element - call("Log", total(extents, lambda k: call("Exp", others(k))))

    return Tensor(x.shape, at)


# -- normalizations ------------------------------------------------------------------------------------------------


def BatchNormalization(node: Node) -> Tensor:
    """(x - mean) / √(var + epsilon) · scale + B, per channel; in training, mean and variance are those of the batch."""
    x, *parameters = (node.input(i) for i in range(5))
    epsilon = node.real("epsilon", 1e-5)
    node.real("momentum", 0.9)
    training = node.flag("training_mode")
    if node.app.outputs > 1:
        raise Unsupported("the running statistics of BatchNormalization")
    if x.rank < 1:
        raise Undefined("BatchNormalization of a scalar")
    for p in parameters:
        fits(node, p.shape, (*x.shape[1:2], 1)[:1], "not one number per channel")
    batch = tuple(axis for axis in range(x.rank) if axis != 1)

    def at(index: Index) -> Value:
        c = index[1] if x.rank > 1 else 0
        if training:
            return standardized(*over(x, batch, index), epsilon) * parameters[0].at((c,)) + parameters[1].at((c,))
        scale, shift, average, variance = (p.at((c,)) for p in parameters)
        return (x.at(index) - average) / call("Sqrt", variance + epsilon) * scale + shift

    return Tensor(x.shape, at)


def over(x: Tensor, axes: Sequence[int], index: Index) -> tuple[Value, Shape, Body]:
    """The element at an index, and those that differ from it in some axes only: how many, and which."""

    def at(k: Index) -> Value:
        inner = dict(zip(axes, k, strict=True))
        return x.at(tuple(inner.get(i, j) for i, j in enumerate(index)))

    return x.at(index), tuple(x.shape[a] for a in axes), at


def standardized(x: Value, extents: Shape, others: Body, epsilon: Value) -> Value:
    """(x - mean) / √(variance + epsilon), both over the others."""
    average = mean(extents, others)
    variance = mean(extents, lambda k: (others(k) - average) * (others(k) - average))
    return (x - average) / call("Sqrt", variance + epsilon)


def LayerNormalization(node: Node) -> Tensor:
    """Standardized over the axes from `axis` on, times Scale plus B."""
    x, scale, b = node.input(0), node.input(1), node.optional(2)
    axis = node.axis("axis", x.rank, -1)
    epsilon = node.real("epsilon", 1e-5)
    node.ignored("stash_type", 1)
    if node.app.outputs > 1:
        raise Unsupported("the mean of LayerNormalization as an output")
    _fits(node, [scale, b], x.shape)
    axes = tuple(range(axis, x.rank))

    def at(index: Index) -> Value:
        scaled = standardized(*over(x, axes, index), epsilon) * stretched(scale, x.shape, index)
        return scaled + (stretched(b, x.shape, index) if b is not None else 0)

    return Tensor(x.shape, at)


def _fits(node: Node, tensors: Sequence[Tensor | None], shape: Shape) -> None:
    """The tensors broadcast to the shape and do not change it."""
    for tensor in tensors:
        if tensor is None:
            continue
        if tensor.rank > len(shape):
            raise Undefined(f"{node.op}: a parameter of higher rank than the input")
        for size, full in zip(tensor.shape[::-1], shape[::-1], strict=False):
            node.require(disj(eq(size, full), eq(size, 1)), "a parameter does not broadcast to the input")


def RMSNormalization(node: Node) -> Tensor:
    """x / √(mean of squares from `axis` on + epsilon) · scale."""
    x, scale = node.input(0), node.input(1)
    axis = node.axis("axis", x.rank, -1)
    epsilon = node.real("epsilon", 1e-5)
    node.ignored("stash_type", 1)
    _fits(node, [scale], x.shape)
    axes = tuple(range(axis, x.rank))

    def at(index: Index) -> Value:
        element, extents, others = over(x, axes, index)
        squares = mean(extents, lambda k: others(k) * others(k))
        return element / call("Sqrt", squares + epsilon) * stretched(scale, x.shape, index)

    return Tensor(x.shape, at)


def InstanceNormalization(node: Node) -> Tensor:
    """Standardized over space for each instance and channel, times scale plus B per channel."""
    x, scale, b = _per_channel(node)
    _space(node, x)
    epsilon = node.real("epsilon", 1e-5)
    axes = tuple(range(2, x.rank))

    def at(index: Index) -> Value:
        c = (index[1],)
        return standardized(*over(x, axes, index), epsilon) * scale.at(c) + b.at(c)

    return Tensor(x.shape, at)


def GroupNormalization(node: Node) -> Tensor:
    """Standardized over space and a group of C / num_groups channels, times scale plus bias per channel."""
    x, scale, b = _per_channel(node)
    groups = node.integer("num_groups", least=1)
    epsilon = node.real("epsilon", 1e-5)
    node.ignored("stash_type", 1)
    node.require(ge(groups, 1), "num_groups is at least 1")
    size = _exactly(node, x.shape[1], groups, "the channels do not divide into groups")

    def at(index: Index) -> Value:
        n, c = index[:2]
        first = quotient(c, size) * size

        def others(k: Index) -> Value:
            return x.at((n, first + k[0], *k[1:]))

        normal = standardized(x.at(index), (size, *x.shape[2:]), others, epsilon)
        return normal * scale.at((c,)) + b.at((c,))

    return Tensor(x.shape, at)


def _per_channel(node: Node) -> tuple[Tensor, Tensor, Tensor]:
    """An input, with a scale and a bias for each channel."""
    x, scale, b = (node.input(i) for i in range(3))
    for p in (scale, b):
        fits(node, p.shape, x.shape[1:2], "not one number per channel")
    return x, scale, b


def LpNormalization(node: Node) -> Tensor:
    """x divided by its p-norm along an axis."""
    x = node.input(0)
    axis = node.axis("axis", x.rank, -1)
    p = node.attribute("p", 2, lambda: node.choose((1, 2)))

    def at(index: Index) -> Value:
        element, extents, others = over(x, (axis,), index)
        if p == 1:
            return element / total(extents, lambda k: call("Abs", others(k)))
        return element / call("Sqrt", total(extents, lambda k: others(k) * others(k)))

    return Tensor(x.shape, at)


# -- moving data ---------------------------------------------------------------------------------------------------


def Identity(node: Node) -> Tensor:
    return node.input(0)


def Transpose(node: Node) -> Tensor:
    """Output axis i is input axis perm[i]; without `perm` all axes are reversed."""
    x = node.input(0)
    backwards = tuple(reversed(range(x.rank)))
    perm = node.attribute("perm", backwards, lambda: OneOf(_permutations(x.rank)))
    if not all(isinstance(p, int) for p in perm):
        raise Unsupported("Transpose by symbols")
    if sorted(perm) != list(range(x.rank)):
        raise Undefined(f"Transpose by {perm} of rank {x.rank}")

    def at(index: Index) -> Value:
        return x.at(tuple(index[perm.index(axis)] for axis in range(x.rank)))

    return Tensor(tuple(x.shape[p] for p in perm), at)


@cache
def _permutations(rank: int) -> list[tuple[int, ...]]:
    return list(permutations(range(rank)))


def reshaped(node: Node, x: Tensor, shape: Shape) -> Tensor:
    """The elements of x in order, in another shape with as many elements."""
    base, instance = x.base, node.instance

    def at(index: Index) -> Value:
        one, other = instance.simplified(shape), instance.simplified(base.shape)
        return base.at(_unflattened(instance.same, index, one, other))

    return Tensor(shape, at, view_of=base)


def _unflattened(same: Callable[[Size, Size], bool], index: Index, shape: Shape, into: Shape) -> Index:
    """The index in one shape of what has this index in another: equal leading and trailing axes stay."""
    axes = [(i, size) for i, size in zip(index, shape, strict=True) if not same(size, 1)]
    goals = [(axis, size) for axis, size in enumerate(into) if not same(size, 1)]
    result: list[Size] = [0] * len(into)
    for end in (0, -1):
        while axes and goals and same(axes[end][1], goals[end][1]):
            result[goals.pop(end)[0]] = axes.pop(end)[0]
    flat: Size = 0
    for i, size in axes:
        flat = flat * size + i
    for axis, size in reversed(goals[1:]):
        result[axis] = remainder(flat, size) if size != 0 else 0
        flat = quotient(flat, size) if size != 0 else 0
    if goals:
        result[goals[0][0]] = flat
    return tuple(result)


def Reshape(node: Node) -> Tensor:
    """To the shape that the second input asks for: -1 is inferred, 0 is copied unless `allowzero`."""
    x = node.input(0)
    literal = node.flag("allowzero")
    asked = node.numbers(1, lambda: _propose_shape(node))
    asked = asked if isinstance(asked, tuple) else (asked,)
    shape = _answered(node, x, asked, literal)
    for condition, reason in _answers(x, asked, shape, literal):
        node.require(condition, reason)
    if node.instance.assuming:
        node.instance.facts.extend(_cancelled(x, asked, shape))
    return reshaped(node, x, shape)


def _propose_shape(node: Node) -> tuple[Size, ...]:
    """Any list up to the bound on ranks."""
    return tuple(fresh("size") for _ in range(node.choose(range(node.instance.max_rank + 1))))


def _answered(node: Node, x: Tensor, asked: Shape, literal: bool) -> Shape:
    """The sizes that are asked for: unknowns on the left side, on the right those of the left or what is asked for.

    No other sizes can meet what `_answers` says, so it does not matter where they come from.
    """
    count = product(x.base.shape)
    shape: list[Size] = []
    for position, size in enumerate(asked):
        if isinstance(size, Int):
            if node.instance.assuming:
                node.instance.answers[size, count] = fresh("size")
            shape.append(node.instance.answers.get((size, count), size))
        elif size == 0 and not literal:
            if position >= x.rank:
                raise Undefined("Reshape: 0 copies an axis that there is not")
            shape.append(x.shape[position])
        else:
            shape.append(size)
    if -1 in asked:
        position = asked.index(-1)
        others = product((*shape[:position], *shape[position + 1 :]))
        if others == 0:
            raise Undefined("Reshape with -1 beside 0")
        shape[position] = _exactly(node, count, others, "the elements do not fill the shape")
    return tuple(shape)


def _answers(x: Tensor, asked: Shape, shape: Shape, literal: bool) -> Iterator[tuple[Formula, str]]:
    """What makes a shape the one that is asked for: one shape at most meets this."""
    if -1 not in asked:
        yield eq(product(shape), product(x.base.shape)), "the number of elements changes"
    for position, (size, own) in enumerate(zip(asked, shape, strict=True)):
        others = product((*shape[:position], *shape[position + 1 :]))
        alone = conj(_differ(others, 0), *(_differ(other, -1) for other in asked[position + 1 :]))
        yield disj(_differ(size, -1), alone), "-1 twice, or beside a size of 0"
        if size != -1:
            zero = eq(own) if literal else eq(own, x.shape[position]) if position < x.rank else FALSE
            yield conj(ge(size, -1), ge(own)), "a size is negative"
            yield disj(lt(size, 1), eq(own, size)), "another size than is asked for"
            yield disj(_differ(size, 0), zero), "0 copies another axis, or one that there is not"


def _differ(one: Size, other: Size) -> Formula:
    return negate(eq(one, other))


def _cancelled(x: Tensor, asked: Shape, shape: Shape) -> Iterator[Formula]:
    """An inferred size between axes that stay is the product of those in between: the others are not 0."""
    more = x.rank - len(shape)
    for position, size in enumerate(asked if more >= -1 else ()):
        end = position + more + 1
        others, kept = shape[:position] + shape[position + 1 :], x.shape[:position] + x.shape[end:]
        moved = map(_differ, others, kept)
        yield disj(_differ(size, -1), *moved, eq(shape[position], product(x.shape[position:end])))


def Flatten(node: Node) -> Tensor:
    """Two axes: all before `axis`, and all from it on."""
    x = node.input(0)
    axis = node.attribute("axis", 1, lambda: OneOf(range(-x.rank, x.rank + 1)))
    if not isinstance(axis, int):
        raise Unsupported("Flatten along a symbol")
    if not -x.rank <= axis <= x.rank:
        raise Undefined("Flatten: axis")
    axis = axis + x.rank if axis < 0 else axis
    return reshaped(node, x, (product(x.shape[:axis]), product(x.shape[axis:])))


def Squeeze(node: Node) -> Tensor:
    """Without the axes, which have size 1."""
    x = node.input(0)
    if not node.has(1):
        raise Unsupported("Squeeze of all axes of size 1: the rank depends on sizes")
    axes = node.axes(1, x.rank)
    if not axes:
        raise Undefined("Squeeze of no axis: ONNX Runtime takes it for all of size 1")
    for axis in axes:
        node.require(eq(x.shape[axis], 1), "an axis to be dropped has not size 1")
    kept = [i for i in range(x.rank) if i not in axes]

    def at(index: Index) -> Value:
        outer = dict(zip(kept, index, strict=True))
        return x.at(tuple(outer.get(i, 0) for i in range(x.rank)))

    return Tensor(tuple(x.shape[i] for i in kept), at, view_of=x.base)


def Unsqueeze(node: Node) -> Tensor:
    """With new axes of size 1 at the positions `axes` of the output."""
    x = node.input(0)

    asked = node.numbers(1, lambda: OneOf(_new_axes(x.rank, node.instance.max_rank + 1)))
    asked = asked if isinstance(asked, tuple) else (asked,)
    rank = x.rank + len(asked)
    axes = [node.counted(axis, rank) for axis in asked]
    if len(set(axes)) < len(axes):
        raise Undefined("Unsqueeze: an axis twice")
    kept = [i for i in range(rank) if i not in axes]
    sizes = dict(zip(kept, x.shape, strict=True))
    shape = tuple(sizes.get(i, 1) for i in range(rank))
    return Tensor(shape, lambda index: x.at(tuple(index[i] for i in kept)), view_of=x.base)


@cache
def _new_axes(rank: int, most: int) -> list[tuple[int, ...]]:
    """Up to two new axes of a tensor, as far as it then has `most` axes at most."""
    counts = [count for count in range(3) if not count or rank + count <= most]
    return [axes for count in counts for axes in subsets(rank + count, count)]


def Concat(node: Node) -> Tensor:
    """One after the other along `axis`."""
    parts: list[Tensor] = []
    for i in range(node.count):
        parts.append(node.input(i))
        if parts[i].rank != parts[0].rank:  # asked at once: the ranks of the others do not matter then
            raise Undefined("Concat of different ranks")
    rank = parts[0].rank
    axis = node.axis("axis", rank)
    for part in parts[1:]:
        for i in range(rank):
            if i != axis:
                node.require(eq(part.shape[i], parts[0].shape[i]), "the other axes differ")
    starts = [sum_of(p.shape[axis] for p in parts[:i]) for i in range(len(parts) + 1)]
    shape = (*parts[0].shape[:axis], starts[-1], *parts[0].shape[axis + 1 :])

    def at(index: Index) -> Value:
        i = index[axis]
        result = number(0)
        for part, start, end in zip(parts, starts, starts[1:], strict=False):
            here = conj(ge(i, start) if start != 0 else TRUE, lt(i, end) if part is not parts[-1] else TRUE)
            result = result + guarded(here, part.at((*index[:axis], i - start, *index[axis + 1 :])))
        return result

    return Tensor(shape, at)


def sum_of(sizes: Any) -> Size:
    result: Size = 0
    for size in sizes:
        result = size + result
    return result


def Split(node: Node) -> tuple[Tensor, ...]:
    """Parts along `axis`, of the sizes that the second input says, or equal ones (the last may be smaller)."""
    x = node.input(0)
    axis = node.axis("axis", x.rank, 0)
    count = node.app.outputs
    size = x.shape[axis]
    if node.has(1):
        lengths = node.numbers(1, lambda: _propose_lengths(count))
        if len(lengths) != count:
            raise Undefined("Split into another number of parts")
        for length in lengths:
            node.require(ge(length), "a part has no negative size")
        node.require(eq(sum_of(lengths), size), "the parts do not add up")
    else:
        each = quotient(size + count - 1, count)
        lengths = (*(each,) * (count - 1), size - each * (count - 1))
        node.attribute("num_outputs", count, lambda: count)
        node.require(ge(lengths[-1]), "the last part has no negative size")
    starts = [sum_of(lengths[:i]) for i in range(count)]

    def part(start: Size, length: Size) -> Tensor:
        shape = (*x.shape[:axis], length, *x.shape[axis + 1 :])
        return Tensor(shape, lambda index: x.at((*index[:axis], index[axis] + start, *index[axis + 1 :])))

    return tuple(part(start, length) for start, length in zip(starts, lengths, strict=True))


def _propose_lengths(count: int) -> tuple[Size, ...]:
    return tuple(fresh("part") for _ in range(count))


def Slice(node: Node) -> Tensor:
    """Elements start, start + step, … before end of each axis; negative numbers count from the end, all are clamped."""
    x = node.input(0)
    starts, ends = (_slice_numbers(node, i, x.rank) for i in (1, 2))
    count = len(starts)
    axes = node.axes(3, x.rank, count) if node.has(3) else tuple(range(count))
    steps = _slice_numbers(node, 4, x.rank) if node.has(4) else (1,) * count
    if not len(ends) == len(axes) == len(steps) == count or count > x.rank:
        raise Undefined("Slice: lists of different lengths")
    cuts = dict(zip(axes, zip(starts, ends, steps, strict=True), strict=True))
    runs = {axis: _run(node, x.shape[axis], *cut) for axis, cut in cuts.items()}
    shape = tuple(runs[i][1] if i in runs else size for i, size in enumerate(x.shape))

    def at(index: Index) -> Value:
        return x.at(tuple(runs[a][0] + i * runs[a][2] if a in runs else i for a, i in enumerate(index)))

    return Tensor(shape, at)


def _slice_numbers(node: Node, position: int, rank: int) -> tuple[Size, ...]:

    def propose() -> tuple[Size, ...]:
        earlier = node.used.get("input1")
        length = len(earlier) if isinstance(earlier, tuple) else node.choose(range(1, max(rank, 1) + 1))
        return tuple(fresh(("", "start", "end", "", "step")[position]) for _ in range(length))

    value = node.numbers(position, propose)
    return value if isinstance(value, tuple) else (value,)


def _run(node: Node, size: Size, start: Size, end: Size, step: Size) -> tuple[Size, Size, Size]:
    """First index, number of elements and step of a slice of one axis."""
    node.require(negate(eq(step)), "the step is not 0")
    forward = ge(step, 1)
    most = choice(forward, size, size - 1)
    first = _clamped(_from_start(start, size), 0, most)
    stop = _clamped(_from_start(end, size), choice(forward, 0, -1), most)
    span = choice(forward, stop - first, first - stop)
    span = choice(ge(span), span, 0)
    by = choice(forward, step, -step)
    return first, span if step == 1 else quotient(span + by - 1, by), step


def _from_start(position: Size, size: Size) -> Size:
    return choice(ge(position), position, position + size)


def _clamped(value: Size, least: Size, most: Size) -> Size:
    raised = choice(le(least, value), value, least)
    return choice(le(raised, most), raised, most)


def Gather(node: Node) -> Tensor:
    """out[…, i…, …] = data[…, indices[i…], …] along `axis`; negative indices count from the end."""
    x = node.input(0)
    axis = node.axis("axis", x.rank, 0)
    size = x.shape[axis]
    if not node.is_number(1):
        return _gather_tensor(node, x, node.input(1), axis)
    indices = node.numbers(1, lambda: _propose_indices(node))
    numbers = indices if isinstance(indices, tuple) else (indices,)
    for i in numbers:
        node.require(conj(ge(i, -1 * size), lt(i, size)), "an index is out of range")
    inner = (len(numbers),) if isinstance(indices, tuple) else ()

    def at(index: Index) -> Value:
        outer, rest = index[:axis], index[axis + len(inner) :]
        if not inner:
            return x.at((*outer, _from_start(numbers[0], size), *rest))
        result = number(0)
        for position, i in enumerate(numbers):
            here = eq(index[axis], position)
            result = result + guarded(here, x.at((*outer, _from_start(i, size), *rest)))
        return result

    return Tensor((*x.shape[:axis], *inner, *x.shape[axis + 1 :]), at)


def _propose_indices(node: Node) -> Any:

    part = node.app.inputs[1]
    if getattr(part, "kind", "") == "integer":
        return fresh("index")
    return tuple(fresh("index") for _ in range(node.choose((1, 2))))


def _gather_tensor(node: Node, x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """With indices that are not known. Where the operator is defined they can only be 0 along an axis of size 1."""
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    single = x.shape[axis] == 1 and node.instance.assuming

    def at(index: Index) -> Value:
        outer, rest = index[:axis], index[axis + indices.rank :]
        if single:
            return x.at((*outer, 0, *rest))
        where = indices.at(index[axis : axis + indices.rank])
        return looked_up(x.shape[axis], lambda k: x.at((*outer, *k, *rest)), where)

    return Tensor(shape, at)


def looked_up(size: Size, row: Body, where: Value) -> Value:
    """The element of a row at an index that is itself an element of a tensor: an opaque function of both.

    What is looked up among things that were looked up is looked up at a place that is looked up.
    """
    chosen = Tensor((size,), row).whole()
    match chosen.body.terms:
        case (Term(coefficient=1, factors=(Element("Gather", (), (Whole() as source, Whole() as place)),)) as term,):
            if term.guard == TRUE and not term.binders and not set(chosen.index) & source.symbols:
                where = lift(_lookup(Whole(chosen.shape, chosen.index, place.body), where))
                chosen = source
    return lift(_lookup(chosen, where))


def _lookup(row: Whole, where: Value) -> Element:
    return Element("Gather", (), (row, Whole((), (), where)), ())


def Expand(node: Node) -> Tensor:
    """Broadcast to the common shape of the input and the second input."""
    x = node.input(0)
    asked = node.numbers(1, lambda: _propose_sizes(node))
    asked = asked if isinstance(asked, tuple) else (asked,)
    for size in asked:
        node.require(ge(size), "a size is not negative")
    shape = broadcast(node, [x.shape, asked])
    return Tensor(shape, lambda index: stretched(x, shape, index))


def _propose_sizes(node: Node) -> tuple[Size, ...]:
    return tuple(fresh("size") for _ in range(node.choose(range(MAX_RANK + 1))))


def Tile(node: Node) -> Tensor:
    """Each axis repeated."""
    x = node.input(0)

    def propose() -> tuple[Size, ...]:
        return tuple(fresh("repeat") for _ in range(x.rank))

    repeats = node.numbers(1, propose)
    if len(repeats) != x.rank:
        raise Undefined("Tile: not one number per axis")
    for repeat in repeats:
        node.require(ge(repeat), "repeats are not negative")
    shape = tuple(s * r for s, r in zip(x.shape, repeats, strict=True))

    def at(index: Index) -> Value:
        parts = zip(index, x.shape, repeats, strict=True)
        return x.at(tuple(i if r == 1 else 0 if s == 1 else remainder(i, s) if s != 0 else 0 for i, s, r in parts))

    return Tensor(shape, at)


def Pad(node: Node) -> Tensor:
    """`pads` elements before and after each axis, constant, repeated (edge), mirrored (reflect) or in turn (wrap)."""
    x = node.input(0)
    mode = node.text("mode", "constant", ("constant", "edge", "reflect", "wrap"))
    axes = node.axes(3, x.rank) if node.has(3) else tuple(range(x.rank))

    def propose() -> tuple[Size, ...]:
        return tuple(fresh("pad") for _ in range(2 * len(axes)))

    pads = node.numbers(1, propose)
    if len(pads) != 2 * len(axes):
        raise Undefined("Pad: not two numbers per axis")
    value = node.input(2).at(()) if node.has(2) and node.input(2).rank == 0 else _one_element(node)
    begin = {axis: pads[i] for i, axis in enumerate(axes)}
    end = {axis: pads[len(axes) + i] for i, axis in enumerate(axes)}
    shape = tuple(s + begin.get(a, 0) + end.get(a, 0) for a, s in enumerate(x.shape))
    for axis in axes:
        node.require(ge(shape[axis]), "the result has no negative size")
        if mode != "constant":
            node.require(conj(ge(begin[axis]), ge(end[axis])), "negative pads in another mode than constant")
            least = conj(*(le(p, x.shape[axis] - 1) for p in (begin[axis], end[axis])))
            node.require(least if mode == "reflect" else ge(x.shape[axis], 1), "the input is too small to be repeated")

    def at(index: Index) -> Value:
        moved = tuple(i - begin.get(a, 0) for a, i in enumerate(index))
        if mode == "constant":
            inner = conj(*(inside(i, x.shape[a]) for a, i in enumerate(moved) if a in begin))
            return select(inner, x.at(moved), value)
        return x.at(tuple(_mirrored(mode, i, x.shape[a]) if a in begin else i for a, i in enumerate(moved)))

    return Tensor(shape, at)


def _one_element(node: Node) -> Value:
    if not node.has(2):
        return number(0)
    value = node.input(2)
    if value.rank != 1:
        raise Undefined("Pad: the value is no scalar")
    node.require(eq(value.shape[0], 1), "the value has one element")
    return value.at((0,))


def _mirrored(mode: str, i: Size, size: Size) -> Size:
    if mode == "edge":
        return _clamped(i, 0, size - 1)
    if mode == "wrap":
        return remainder(i, size)
    return choice(ge(i), choice(lt(i, size), i, 2 * (size - 1) - i), -1 * i)


EVEN = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")
"""Coordinate modes in which an axis that keeps its size keeps its elements."""

REPEATS = {("asymmetric", "floor")}
REPEATS |= {(where, f"round_prefer_{way}") for where in EVEN[:3] for way in ("floor", "ceil")}
"""Coordinate modes and roundings in which the nearest neighbour of index i, enlarged k times, is i // k."""


ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def Resize(node: Node) -> Tensor:
    """Each element of an axis repeated a whole number of times, by nearest neighbour; or axes that keep their size.

    By other factors and between elements what is computed rests on how floats are rounded: that is not denoted.
    """
    x = node.input(0)
    mode = node.text("mode", "nearest", ("nearest", "linear", "cubic"))
    where = node.text("coordinate_transformation_mode", "half_pixel", (*EVEN, "tf_crop_and_resize"))
    rounding = node.text("nearest_mode", "round_prefer_floor", ROUNDINGS) if mode == "nearest" else ""
    for name in ("antialias", "cubic_coeff_a", "exclude_outside", "extrapolation_value"):
        node.ignored(name)
    axes = node.attribute("axes", None, lambda: node.choose((None, *subsets(x.rank))))
    axes = range(x.rank) if axes is None else [node.counted(axis, x.rank) for axis in axes]
    new = _enlarged(node, [x.shape[axis] for axis in axes])
    if len(new) != len(axes) or len(set(axes)) < len(axes):
        raise Undefined("Resize: not one size per axis")
    sizes = dict(zip(axes, new, strict=True))
    shape = tuple(sizes.get(axis, size) for axis, size in enumerate(x.shape))

    def source(i: Size, size: Size, own: Size) -> Size:
        if where in EVEN and node.instance.same(size, own):
            return i
        times = divide(size, own) if own != 0 else None
        if times is None or (where, rounding) not in REPEATS:
            raise Unsupported(f"Resize from {own} to {size}")
        return quotient(i, times)

    return Tensor(shape, lambda index: x.at(tuple(map(source, index, shape, x.shape))))


def _enlarged(node: Node, sizes: Sequence[Size]) -> Sequence[Size]:
    """The sizes that a Resize asks for, or makes of scales that are whole numbers."""
    if node.has(3):
        node.text("keep_aspect_ratio_policy", "stretch", ("stretch",))
        asked: Sequence[Size] = node.numbers(3, lambda: tuple(fresh("size") for _ in sizes))
        for size in asked:
            node.require(ge(size, 1), "a size is at least 1")
        return asked
    scales = node.input(2)
    if scales.rank != 1:
        raise Undefined("Resize: scales are a list")
    node.require(eq(scales.shape[0], len(sizes)), "not one scale per axis")
    factors = [scales.at((i,)).constant for i in range(len(sizes))]
    if not all(factor is not None and factor.denominator == 1 <= factor for factor in factors):
        raise Unsupported("Resize by scales that are no whole numbers")
    return [size * int(factor or 0) for size, factor in zip(sizes, factors, strict=True)]


def DepthToSpace(node: Node) -> Tensor:
    """Blocks of channels become blocks of space: b, b, C' (DCR) or C', b, b (CRD)."""
    x = node.input(0)
    if x.rank != 4:
        raise Undefined("DepthToSpace of another rank than 4")
    b = node.integer("blocksize", least=1)
    node.require(ge(b, 1), "blocksize is at least 1")
    mode = node.text("mode", "DCR", ("DCR", "CRD"))
    N, C, H, W = x.shape
    depth = _exactly(node, C, b * b, "the channels do not divide into blocks")

    def at(index: Index) -> Value:
        n, c, y, z = index
        row, column = remainder(y, b), remainder(z, b)
        channel = (row * b + column) * depth + c if mode == "DCR" else c * b * b + row * b + column
        return x.at((n, channel, quotient(y, b), quotient(z, b)))

    return Tensor((N, depth, H * b, W * b), at)


def SpaceToDepth(node: Node) -> Tensor:
    """Blocks of space become channels: b, b, C."""
    x = node.input(0)
    if x.rank != 4:
        raise Undefined("SpaceToDepth of another rank than 4")
    b = node.integer("blocksize", least=1)
    node.require(ge(b, 1), "blocksize is at least 1")
    N, C, H, W = x.shape
    height, width = (_exactly(node, s, b, "space does not divide into blocks") for s in (H, W))

    def at(index: Index) -> Value:
        n, channel, y, z = index
        block, c = quotient(channel, C), remainder(channel, C)
        return x.at((n, c, y * b + quotient(block, b), z * b + remainder(block, b)))

    return Tensor((N, C * b * b, height, width), at)


def Trilu(node: Node) -> Tensor:
    """The upper (or lower) triangle of the last two axes, from the k-th diagonal on; 0 elsewhere."""
    x = node.input(0)
    if x.rank < 2:
        raise Undefined("Trilu of a vector")

    k = node.numbers(1, lambda: fresh("k")) if node.has(1) else 0
    upper = node.flag("upper", 1)

    def at(index: Index) -> Value:
        row, column = index[-2:]
        return guarded(ge(column, row + k) if upper else le(column, row + k), x.at(index))

    return Tensor(x.shape, at)


def EyeLike(node: Node) -> Tensor:
    """1 on the k-th diagonal, 0 elsewhere."""
    x = node.input(0)
    if x.rank != 2:
        raise Undefined("EyeLike of another rank than 2")
    k = node.integer("k", 0)
    node.ignored("dtype")
    return Tensor(x.shape, lambda index: boolean(eq(index[1], index[0] + k)))


def ConstantOfShape(node: Node) -> Tensor:
    """Zeros of the shape that the input says."""
    sizes = node.numbers(0, lambda: _propose_sizes(node))
    node.absent("value")
    for size in sizes:
        node.require(ge(size), "a size is not negative")
    return Tensor(tuple(sizes), lambda _: number(0))


def Shape_(node: Node) -> Tensor:
    """The sizes as a vector, from axis `start` to before `end`."""
    x = node.input(0)
    everywhere = range(-x.rank - 1, x.rank + 2)
    start = node.attribute("start", 0, lambda: node.choose(everywhere))
    end = node.attribute("end", None, lambda: node.choose((None, *everywhere)))
    if not isinstance(start, int) or not isinstance(end, int | None):
        raise Unsupported("Shape from a symbol")
    sizes = x.shape[max(start + x.rank, 0) if start < 0 else start : end]

    def at(index: Index) -> Value:
        result = number(0)
        for position, size in enumerate(sizes):
            result = result + guarded(eq(index[0], position), integer(size))
        return result

    return Tensor((len(sizes),), at)


def Size_(node: Node) -> Tensor:
    x = node.input(0)
    return Tensor((), lambda _: integer(product(x.shape)))


def Dropout(node: Node) -> tuple[Tensor, ...]:
    """At inference nothing is dropped, nor is it with a ratio of 0."""
    x = node.input(0)
    if not (_is_zero(node, 1) or not node.has(2) or _is_zero(node, 2)):
        raise Unsupported("Dropout that may be in training")
    node.ignored("seed")
    mask = Tensor(x.shape, lambda _: boolean(TRUE))
    return (x, mask)[: node.app.outputs]


def _is_zero(node: Node, position: int) -> bool:
    given = node.optional(position)
    return given is not None and given.at((0,) * given.rank).constant == 0


PLACES = {"ArgMax": "place of the greatest", "ArgMin": "place of the least"}


def ArgMax(node: Node) -> Tensor:
    """Where along an axis the greatest (least) element is: a function of what lies along the axis."""
    x = node.input(0)
    axis = node.axis("axis", x.rank, 0)
    keep, last = node.flag("keepdims", 1), node.flag("select_last_index")
    _along(node, (axis,))
    shape = tuple(1 if i == axis else s for i, s in enumerate(x.shape) if keep or i != axis)
    node.require(ge(x.shape[axis], 1), "the axis is not empty")

    def at(index: Index) -> Value:
        rest = index[axis + 1 :] if keep else index[axis:]
        along = Tensor((x.shape[axis],), lambda k: x.at((*index[:axis], *k, *rest))).whole()
        return lift(Element(PLACES[node.op], (last,), (along,), ()))

    return Tensor(shape, at)


def Einsum(node: Node) -> Tensor:
    """Σ over the letters that are not in the result, of the product of the operands; no ellipsis."""
    equation = str(node.attribute("equation", "", lambda: "")).replace(" ", "")
    left, arrow, result = equation.partition("->")
    terms, operands = left.split(","), [node.input(i) for i in range(node.count)]
    if not "".join(terms).isalpha():
        raise Unsupported(f"Einsum of {equation}")
    if not arrow:
        result = "".join(letter for letter in sorted(set("".join(terms))) if left.count(letter) == 1)
    if [len(letters) for letters in terms] != [operand.rank for operand in operands]:
        raise Undefined("Einsum: an operand of another rank")
    sizes: dict[str, Size] = {}
    for letters, operand in zip(terms, operands, strict=True):
        for letter, size in zip(letters, operand.shape, strict=True):
            sizes[letter] = _common(node, sizes.get(letter, size), size)
        for one, other in combinations(range(len(letters)), 2):
            if letters[one] == letters[other]:
                node.require(eq(operand.shape[one], operand.shape[other]), "a diagonal of different sizes")
    summed = [letter for letter in sizes if letter not in result]

    def at(index: Index) -> Value:
        def term(k: Index) -> Value:
            where = dict(zip((*result, *summed), (*index, *k), strict=True))
            factors = (
                stretched(operand, tuple(sizes[letter] for letter in t), tuple(where[letter] for letter in t))
                for t, operand in zip(terms, operands, strict=True)
            )
            return reduce(lambda a, b: a * b, factors)

        return total(tuple(sizes[letter] for letter in summed), term)

    return Tensor(tuple(sizes[letter] for letter in result), at)


# -- attention -----------------------------------------------------------------------------------------------------


def Attention(node: Node) -> tuple[Tensor, ...]:
    """softmax(scale · Q·Kᵀ + mask) · V for each head; several heads of Q in turn share one of K and V.

    Of the keys only those count that the mask and the window let be seen; where there is none, the result is 0.
    """
    if any(map(node.has, (4, 5, 6))):
        raise Unsupported("Attention with a cache")
    q, k, v = (_heads(node, i, name) for i, name in enumerate(("q_num_heads", "kv_num_heads", "kv_num_heads")))
    (B, H, L, E), (_, G, S, _), F = q.shape, k.shape, v.shape[3]
    fits(node, (*k.shape, *v.shape), (B, G, S, E, B, G, S, F), "batch, heads, keys or their sizes differ")
    share = _exactly(node, H, G, "the heads of Q do not divide among those of K and V")
    given = node.attribute("scale", None, lambda: node.choose((None, node.unknown("scale"))))
    scale = 1 / call("Sqrt", integer(E)) if given is None else real(given)
    if given is not None:
        node.require(truth(call("Positive", scale)), "Q and K are both scaled by its root: the scale is positive")
    cap = real(node.attribute("softcap", 0.0, lambda: node.choose((0.0, node.unknown("softcap")))))
    node.ignored("softmax_precision")
    bias, seen = _mask(node, (B, H, L, S))

    def product_(index: Index) -> Value:
        b, h, i, j = index
        return scale * total((E,), lambda e: q.at((b, h, i, *e)) * k.at((b, quotient(h, share), j, *e)))

    def capped(index: Index) -> Value:
        return product_(index) if cap.constant == 0 else cap * call("Tanh", product_(index) / cap)

    def exp(index: Index) -> Value:
        return guarded(seen(index), call("Exp", capped(index) + bias(index)))

    def weight(index: Index) -> Value:
        return exp(index) / total((S,), lambda j: exp((*index[:3], *j)))

    def at(index: Index) -> Value:
        b, h, i, f = index if node.input(0).rank == 4 else _split(index, F)
        return total((S,), lambda j: weight((b, h, i, *j)) * v.at((b, quotient(h, share), *j, f)))

    y = Tensor((B, H, L, F) if node.input(0).rank == 4 else (B, L, H * F), at)
    if node.app.outputs == 1:
        return (y,)
    shown = node.attribute("qk_matmul_output_mode", 0, lambda: node.choose((0, 1, 2, 3)))
    if shown == 2:
        raise Unsupported("Attention that shows scores of what is not seen: they are infinite")
    return (y, k, v, Tensor((B, H, L, S), {0: product_, 1: capped, 3: weight}[shown]))


def _heads(node: Node, position: int, name: str) -> Tensor:
    """Batch, heads, sequence, head size: an input of rank 4, or of rank 3 where the last axis holds all heads."""
    x = node.input(position)
    if x.rank == 4:
        return x
    heads = node.integer(name, least=1)
    if x.rank != 3 or heads is None:
        raise Undefined(f"{node.op}: ranks")
    node.require(ge(heads, 1), f"{name} is at least 1")
    size = _exactly(node, x.shape[2], heads, "the last axis does not divide into heads")
    return Tensor((x.shape[0], heads, x.shape[1], size), lambda i: x.at((i[0], i[2], i[1] * size + i[3])))


def _split(index: Index, size: Size) -> Index:
    """The same index with the head apart: (batch, sequence, all heads) as (batch, head, sequence, within the head)."""
    b, i, d = index
    return b, quotient(d, size), i, remainder(d, size)


def _mask(node: Node, shape: Shape) -> tuple[Body, Callable[[Index], Formula]]:
    """What is added to each score, and which keys a query sees: those of the mask, of the window, not after itself."""
    mask = node.optional(3)
    causal = node.flag("is_causal")
    left, right = (
        node.attribute(f"{side}_window_size", -1, lambda: node.choose((-1, node.natural("window"))))
        for side in ("left", "right")
    )
    for bound in (left, right):
        node.require(ge(bound, -1), "a window reaches no less than nothing")
    if mask is not None:
        if not 1 <= mask.rank <= 4:
            raise Undefined("Attention: the mask has another rank")
        for size, full in zip(mask.shape[-2::-1], shape[-2::-1], strict=False):
            node.require(disj(eq(size, full), eq(size, 1)), "the mask does not broadcast to the scores")
        node.require(le(mask.shape[-1], shape[-1]), "the mask is longer than there are keys")
    truths = mask is not None and mask.dtype is DType.BOOL

    def element(index: Index) -> Value:
        assert mask is not None
        leading = replace(mask, shape=(*mask.shape[:-1], shape[-1]))  # a last axis that is shorter is not stretched
        return stretched(leading, shape, index)

    def seen(index: Index) -> Formula:
        i, j = index[2:]
        return conj(
            TRUE if mask is None else lt(j, mask.shape[-1]),
            truth(element(index)) if truths else TRUE,
            le(j, i) if causal else TRUE,
            TRUE if left == -1 else le(i, j + left),
            TRUE if right == -1 else le(j, i + right),
        )

    return lambda index: number(0) if mask is None or truths else element(index), seen


def RotaryEmbedding(node: Node) -> Tensor:
    """Pairs of elements (a, b) of each head are turned: (cos·a - sin·b, sin·a + cos·b); what is left over stays.

    The pairs of the first `rotary_embedding_dim` elements are halves apart, or if `interleaved` neighbours. The angles
    are given for each position of the sequence, or looked up in the caches by `position_ids`.
    """
    original = node.input(0)
    x = _heads(node, 0, "num_heads")
    B, _, S, E = x.shape
    turned = node.integer("rotary_embedding_dim", 0, least=0)
    turned = choice(eq(turned), E, turned)
    neighbours = node.flag("interleaved")
    node.require(le(turned, E), "more elements are turned than there are")
    half = _exactly(node, turned, 2, "an odd number of elements")
    ids = node.optional(3)
    caches = node.input(1), node.input(2)
    positions = (B, S) if ids is None else caches[0].shape[:1]
    for table in caches:
        fits(node, table.shape, (*positions, half), "the caches do not fit")
    if ids is not None:
        fits(node, ids.shape, (B, S), "not one position per element of the sequences")

    def angle(cache: Tensor, b: Size, s: Size, pair: Size) -> Value:
        if ids is None:
            return cache.at((b, s, pair))
        return looked_up(cache.shape[0], lambda k: cache.at((*k, pair)), ids.at((b, s)))

    def at(index: Index) -> Value:
        b, h, s, d = index if original.rank == 4 else _split(index, E)
        pair = quotient(d, 2) if neighbours else choice(lt(d, half), d, d - half)
        first = eq(remainder(d, 2)) if neighbours else lt(d, half)
        step = 1 if neighbours else half
        cos, sin = (angle(cache, b, s, pair) for cache in caches)
        real_part = cos * x.at((b, h, s, d)) - sin * x.at((b, h, s, d + step))
        imaginary = sin * x.at((b, h, s, d - step)) + cos * x.at((b, h, s, d))
        return select(lt(d, turned), select(first, real_part, imaginary), x.at((b, h, s, d)))

    return Tensor(original.shape, at)


# -- the table -----------------------------------------------------------------------------------------------------

MOVES: Mapping[str, Denotation] = {
    **dict.fromkeys(ELEMENTWISE, elementwise),
    "Identity": Identity,
    "Transpose": Transpose,
    "Reshape": Reshape,
    "Flatten": Flatten,
    "Squeeze": Squeeze,
    "Unsqueeze": Unsqueeze,
    "Concat": Concat,
    "Split": Split,
    "Slice": Slice,
    "Gather": Gather,
    "Expand": Expand,
    "Tile": Tile,
    "Pad": Pad,
    "Resize": Resize,
    "DepthToSpace": DepthToSpace,
    "SpaceToDepth": SpaceToDepth,
    "Trilu": Trilu,
    "EyeLike": EyeLike,
    "ConstantOfShape": ConstantOfShape,
    "Shape": Shape_,
    "Size": Size_,
    "Dropout": Dropout,
}
"""Operators whose denotation is exact: they move data, or compute each element by one function that is named."""

KEEPS = frozenset({"Identity", "Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Split", "Slice", "Gather"})
KEEPS |= {"Expand", "Tile", "Resize", "DepthToSpace", "SpaceToDepth"}
"""Operators whose elements are elements of their first input."""

OPERATORS: Mapping[str, Denotation] = {
    **MOVES,
    "MatMul": MatMul,
    "Gemm": Gemm,
    "Conv": Conv,
    "ConvTranspose": ConvTranspose,
    "MaxPool": pool(greatest),
    "AveragePool": pool(average),
    "LpPool": pool(power_mean),
    "GlobalMaxPool": global_pool(lambda n, x: folded("max", n, x)),
    "GlobalAveragePool": global_pool(mean),
    **{name: reduction(combine) for name, combine in REDUCTIONS.items()},
    "CumSum": CumSum,
    "ArgMax": ArgMax,
    "ArgMin": ArgMax,
    "Einsum": Einsum,
    "Softmax": Softmax,
    "LogSoftmax": LogSoftmax,
    "BatchNormalization": BatchNormalization,
    "LayerNormalization": LayerNormalization,
    "RMSNormalization": RMSNormalization,
    "InstanceNormalization": InstanceNormalization,
    "GroupNormalization": GroupNormalization,
    "LpNormalization": LpNormalization,
    "Attention": Attention,
    "RotaryEmbedding": RotaryEmbedding,
}
