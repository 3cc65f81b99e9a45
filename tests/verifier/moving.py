"""Cases of the operators that move elements, drawn over all that their denotations claim."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from graphopt.operators.movement_ops import ENDLESS_ENDS
from tests.verifier.draw import Draw, shapes_that_broadcast
from tests.verifier.evaluators import Case


def transpose(d: Draw) -> Case:
    x = d.special(*d.any_shape())
    perm = d.random.sample(range(x.ndim), x.ndim)
    return Case([x], {"perm": perm} if perm and d.random.random() < 0.8 else {})


def reshape(d: Draw) -> Case:
    if d.random.random() < 0.1:  # an empty axis is inferred, or copied
        x = d.array(d.size(), 0, d.size())
        if d.flag():
            return Case([x, d.choice((5, 0), (0, 4), (2, 0, 3), (1, 2, 3, 0))], {"allowzero": 1})
        return Case([x, d.choice((-1, d.size()), (d.size(), -1), (-1,), (0, 0, 5), (5, 0))])
    x = d.array(*(d.choice(1, 2, 2, 4) for _ in range(d.size(1, 4))))
    if d.random.random() < 0.2:  # the axes at both ends stay
        end = d.size(1, x.ndim)
        return Case([x, (*x.shape[: end - 1], -1, *x.shape[end + d.size(0, 1) :])])
    size = x.size
    shape: list[int] = []
    while size > 1 or len(shape) < d.size(1, 2):
        part = d.choice(*(n for n in (1, 2, 4, size) if size % n == 0))
        shape.append(part)
        size //= part
    if d.flag():
        shape[d.random.randrange(len(shape))] = -1
    literal = d.flag()
    for i, n in enumerate(shape):
        if i < x.ndim and n == x.shape[i] and d.flag() and not literal:
            shape[i] = 0
    return Case([x, tuple(shape)], {"allowzero": 1} if literal else d.some(allowzero=0))


def flatten(d: Draw) -> Case:
    x = d.special(*d.any_shape())
    return Case([x], d.some(axis=d.random.randint(-x.ndim, x.ndim)) if x.ndim else {"axis": 0})


def squeeze(d: Draw) -> Case:
    x = d.array(*(d.choice(1, 1, 2) for _ in range(d.size(0, 3))), 1)
    ones = [i for i, s in enumerate(x.shape) if s == 1]
    chosen = d.random.sample(ones, d.random.randint(1, len(ones)))
    return Case([x, tuple(a - x.ndim if d.flag() else a for a in chosen)])


def unsqueeze(d: Draw) -> Case:
    x = d.special(*d.any_shape()[:3])
    rank = x.ndim + d.size(0, 3)
    chosen = d.random.sample(range(rank), rank - x.ndim)
    return Case([x, tuple(a - rank if d.flag() else a for a in chosen)])


def concat(d: Draw) -> Case:
    shape = d.any_shape(1)
    axis = d.axis(len(shape))
    parts = []
    for _ in range(d.size(1, 3)):
        own = list(shape)
        own[axis] = d.extent()
        parts.append(d.special(*own))
    return Case(parts, {"axis": axis})


def split(d: Draw) -> Case:
    x = d.special(*(d.size(0, 4) for _ in range(d.size(1, 3))))
    axis, count = d.axis(x.ndim), d.size(1, 4)
    if d.flag():
        cuts = sorted(d.size(0, x.shape[axis]) for _ in range(count - 1))
        lengths = tuple(int(length) for length in np.diff([0, *cuts, x.shape[axis]]))
        return Case([x, lengths], {"axis": axis}, outputs=count)
    size = x.shape[axis]
    count = d.choice(*(n for n in range(1, 5) if -(-size // n) * (n - 1) <= size))  # the last part is what is left
    return Case([x], {"axis": axis, "num_outputs": count}, outputs=count)


def slice_(d: Draw) -> Case:
    x = d.special(*(d.extent(4) for _ in range(d.size(1, 3))))
    axes = d.axes(x.ndim)
    steps = tuple(d.choice(-2, -1, 1, 1, 2, 3) for _ in axes)
    # backwards not from before the first element: there the reference leaves the text, which clamps, and ONNX Runtime
    least = tuple(-x.shape[axis] if step < 0 else -9 for axis, step in zip(axes, steps, strict=True))
    starts = tuple(d.random.choice((d.random.randint(n, 6), 0, 2**63 - 1)) for n in least)
    ends = [d.choice(-9, -3, -2, -1, 0, 1, 2, 3, 2**40, -(2**40), 2**31 - 1, 2**63 - 1, 1 - 2**63) for _ in axes]
    ends = [d.choice(end, *ENDLESS_ENDS) if step < 0 else end for end, step in zip(ends, steps, strict=True)]
    in_order = axes == tuple(range(len(axes)))
    return Case([x, starts, tuple(ends), *d.choice([axes], [axes, steps], *[[None, steps], []] * in_order)])


def gather(d: Draw) -> Case:
    x = d.special(*d.shape(1))
    axis = d.axis(x.ndim)
    n = x.shape[axis]
    if d.flag():
        return Case([x, d.axis(n)], {"axis": axis})
    if d.flag():
        return Case([x, d.numpy.integers(-n, n, d.shape(0, 2))], {"axis": axis})
    return Case([x, tuple(d.axis(n) for _ in range(d.size(0)))], {"axis": axis})


def expand(d: Draw) -> Case:
    one, other = shapes_that_broadcast(d, 2)
    return Case([d.special(*one), other])


def tile(d: Draw) -> Case:
    x = d.special(*d.any_shape(1)[:3])
    return Case([x, tuple(d.size(0, 3) for _ in range(x.ndim))])


def pad(d: Draw) -> Case:
    x = d.special(*(d.choice(0, 1, 2, 2, 3, 3, 4) for _ in range(d.size(1, 3))))
    mode = d.choice("constant", "constant", "edge", "reflect", "wrap")
    axes = d.axes(x.ndim, 1) if d.flag() else tuple(range(x.ndim))
    least = -1 if mode == "constant" else 0
    pads = tuple(d.size(least, 1) for _ in range(2 * len(axes)))
    given = axes if len(axes) < x.ndim or d.flag() else None
    if given is None:
        pads = tuple(d.size(least, 1) for _ in range(2 * x.ndim))
    if mode != "constant":  # too small to be repeated is undefined; ONNX Runtime lets it pass beside an empty axis
        padded = [x.shape[axis] for axis in (given or range(x.ndim))] * 2
        pads = tuple(pad if size > (mode == "reflect") else 0 for pad, size in zip(pads, padded, strict=True))
    value = np.full(d.choice((), (1,)), 0.5, np.float32) if mode == "constant" and d.flag() else None
    return Case([x, pads, value, given], {"mode": mode})


def depth_to_space(d: Draw) -> Case:
    b = d.size(1, 2)
    x = d.special(d.extent(2), d.extent(2) * b * b, d.extent(), d.extent())
    return Case([x], {"blocksize": b, **d.some(mode=d.choice("DCR", "CRD"))})


def space_to_depth(d: Draw) -> Case:
    b = d.size(1, 2)
    return Case([d.special(d.extent(2), d.extent(2), d.extent() * b, d.extent() * b)], {"blocksize": b})


def trilu(d: Draw) -> Case:
    x = d.special(*d.any_shape(2))
    return Case([x, d.random.randint(-3, 3)] if d.flag() else [x], d.some(upper=d.flag()))


def eye_like(d: Draw) -> Case:
    return Case([d.array(d.extent(), d.extent())], d.some(k=d.random.randint(-2, 2)))


def einsum(d: Draw) -> Case:
    sizes = {letter: d.size() for letter in "abcd"}  # of an empty axis the process of ONNX Runtime dies
    terms = ["".join(d.random.choices("abcd", k=d.size())) for _ in range(d.size(1, 3))]
    letters = sorted(set("".join(terms)))
    result = "".join(d.random.sample(letters, d.size(0, len(letters))))
    shapes = ([1 if d.random.random() < 0.1 else sizes[letter] for letter in t] for t in terms)
    return Case([d.array(*shape) for shape in shapes], {"equation": ",".join(terms) + d.choice("->" + result, "")})


def top_k(d: Draw) -> Case:
    x = np.round(d.array(*d.any_shape(1)))
    axis = d.axis(x.ndim)
    k = d.size(0, x.shape[axis])
    attrs = {"axis": axis, **d.some(largest=d.flag(), sorted=d.flag())}
    return Case([x, (k,)], {key: v for key, v in attrs.items() if key != "axis" or v != -1 or d.flag()}, 2)


def one_hot(d: Draw) -> Case:
    depth, rank = d.size(), d.size(0, 2)
    asked = d.numpy.integers(-depth - 1, depth + 2, tuple(d.extent() for _ in range(rank)))
    values, many = d.array(2), d.choice(depth, (depth,))
    attrs = d.some(axis=d.axis(rank + 1))
    if d.flag():  # of floats, ONNX Runtime makes integers
        return Case([asked.astype(np.float32) + np.float32(0.25), many, np.round(values * 4).astype(np.int64)], attrs)
    return Case([asked, many, values], attrs)


def non_zero(d: Draw) -> Case:
    x = np.round(d.array(*d.any_shape(1)))
    return Case([d.choice(x, x > 0, x.astype(np.int64))])


def smaller(d: Draw, shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return tuple(d.size(0, 3) if i == axis else d.size(0, size) for i, size in enumerate(shape))


def gather_elements(d: Draw) -> Case:
    x = d.special(*d.shape(1, 3))
    axis = d.axis(x.ndim)
    n = x.shape[axis]
    return Case([x, d.numpy.integers(-n, n, smaller(d, x.shape, axis % x.ndim))], {"axis": axis})


def gather_nd(d: Draw) -> Case:
    x = d.special(*d.shape(1, 3))
    batch = d.size(0, x.ndim - 1)
    count = d.size(1, x.ndim - batch)
    outer = (*x.shape[:batch], *d.shape(0, 1))
    parts = [d.numpy.integers(-n, n, outer) for n in x.shape[batch : batch + count]]
    return Case([x, np.stack(parts, -1)], {"batch_dims": batch} if batch or d.flag() else {})


def scatter_elements(d: Draw) -> Case:
    x = d.array(*d.shape(1, 3))
    axis = d.axis(x.ndim)
    shape = smaller(d, x.shape, axis % x.ndim)
    own = x.shape[axis]
    many = [min(size, own) if i == axis % x.ndim else size for i, size in enumerate(shape)]
    along_it = np.arange(many[axis]).reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])
    indices = (np.zeros(many, np.int64) + along_it + d.size(0, 2)) % own  # none twice
    attrs = {"axis": axis} | d.some(reduction=d.choice("none", "add", "mul", "max", "min"))
    signs = d.numpy.integers(0, 2, many) if d.flag() else d.size(0, 1)  # each counted from either end, or all
    return Case([x, indices - own * signs, d.array(*many)], attrs)


def scatter_nd(d: Draw) -> Case:
    x = d.array(*d.shape(1, 3))
    count, rows = d.size(1, x.ndim), x.shape[0]
    many = d.size(0, min(rows, 4)) if count == 1 else d.size(0, 1)
    along_rows = d.numpy.integers(-rows, rows - many + 1) + np.arange(many)  # none twice
    where = [along_rows, *(d.numpy.integers(-n, n, (many,)) for n in x.shape[1:count])]
    attrs = d.some(reduction=d.choice("none", "add", "mul", "max", "min"))
    return Case([x, np.stack(where, -1), d.array(many, *x.shape[count:])], attrs)


MOVING: Mapping[str, Callable[[Draw], Case]] = {
    "Einsum": einsum,
    "TopK": top_k,
    "OneHot": one_hot,
    "NonZero": non_zero,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "Transpose": transpose,
    "Reshape": reshape,
    "Flatten": flatten,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "Concat": concat,
    "Split": split,
    "Slice": slice_,
    "Gather": gather,
    "Expand": expand,
    "Tile": tile,
    "Pad": pad,
    "DepthToSpace": depth_to_space,
    "SpaceToDepth": space_to_depth,
    "Trilu": trilu,
    "EyeLike": eye_like,
}
