"""Cases that ONNX Runtime refuses, or that the ONNX text does not define: what has no denotation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tests.verifier.cases import SYMBOLS
from tests.verifier.draw import Draw
from tests.verifier.evaluators import Array, Case

REFUSE = (
    *("Add", "Where", "PRelu", "MatMul", "Gemm", "Einsum", "Conv", "ConvTranspose", "DepthToSpace", "SpaceToDepth"),
    *("BatchNormalization", "LayerNormalization", "RMSNormalization", "InstanceNormalization", "GroupNormalization"),
    *("Attention", "RotaryEmbedding", "Reshape", "Squeeze", "Expand", "Concat", "Split", "Gather", "Pad", "Resize"),
    *("LRN", "LSTM", "GRU", "RNN"),
)
"""Operators that do not take every size or number."""


def is_refused(before: Mapping[str, object], after: Mapping[str, object]) -> bool:
    """Whether ONNX Runtime, where it has a kernel, has no answer any more."""
    return ("runtime" if "runtime" in before else "reference") not in after


def spoilt(case: Case, d: Draw) -> Case:
    """The case with an axis of an input longer, or with other numbers in a list or an attribute."""
    inputs, attrs = list(case.inputs), dict(case.attrs)
    numbers = [key for key, value in attrs.items() if key in SYMBOLS and value != []]
    if numbers and d.random.random() < 0.3:
        key = d.choice(*numbers)
        attrs[key] = list(moved(attrs[key], d)) if isinstance(attrs[key], list) else attrs[key] + d.choice(-1, 1, 4)
        return Case(inputs, attrs, case.outputs)
    position = d.random.choice([i for i, value in enumerate(inputs) if np.size(value) and np.ndim(value)] or [0])
    value = inputs[position]
    if isinstance(value, np.ndarray) and value.ndim:
        longer = d.random.randrange(value.ndim)
        inputs[position] = np.pad(value, [(0, int(axis == longer)) for axis in range(value.ndim)])
    elif isinstance(value, tuple) and value:
        inputs[position] = moved(value, d)
    return Case(inputs, attrs, case.outputs)


def moved(numbers: Sequence[int], d: Draw) -> tuple[int, ...]:
    """One of the numbers larger or smaller, or some taken from one and given to the next."""
    new, place, change = list(numbers), d.random.randrange(len(numbers)), d.choice(-3, -1, 1, 4)
    new[place] += change
    if place and d.flag():
        new[place - 1] -= change
    return tuple(new)


def of(*shape: int) -> Array:
    """Floats of a shape, whatever they are."""
    return np.linspace(0.5, 2.0, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def at(*places: int) -> Array:
    """A list of indices."""
    return np.array(places)


UNDEFINED: Sequence[tuple[str, Case]] = (
    *(("Expand", Case([of(1), (-1,)])), ("ConstantOfShape", Case([(-1,)]))),
    ("Resize", Case([of(2, 2), None, None, (2,)], {"axes": 1})),
    *(("Dropout", Case([of(2), *switches])) for switches in ([(0.0,)], [0.5, (False,)])),
    *(("Add", Case([of(2), of(3)])), ("Sum", Case([of(2, 2), of(3), of(2)])), ("Expand", Case([of(2), (3,)]))),
    *(("MatMul", Case([of(), of(2)])), ("MatMul", Case([of(2, 3), of(2, 3)])), ("MatMul", Case([of(3), of()]))),
    ("MatMul", Case([of(2, 1, 3), of(3, 3, 1)])),
    *(("Gemm", Case([of(1, 2, 3), of(3, 2)])), ("Gemm", Case([of(2, 3), of(3)]))),
    *(("Gemm", Case([of(2, 3), of(2, 3)])), ("Gemm", Case([of(2, 3), of(3, 2), of(1, 1, 2)]))),
    *(("Gemm", Case([of(2, 3), of(3, 2), of(3)])), ("Gemm", Case([of(2, 3), of(3, 2), of(3, 1)]))),
    *(("Conv", Case([of(1, 2, 3), of(2, 1, 2)])), ("Conv", Case([of(1, 2, 3), of(3, 1, 2)], {"group": 2}))),
    *(("Conv", Case([of(1, 2), of(2, 2)])), ("Conv", Case([of(1, 2, 3), of(2, 2, 4)]))),
    *(("Conv", Case([of(1, 2, 3), of(2, 2, 2), of(3)])), ("Conv", Case([of(1, 2, 3), of(2, 2, 2), of(2, 1)]))),
    ("Conv", Case([of(1, 2, 3), of(2, 2, 2)], {"kernel_shape": [3]})),
    ("Conv", Case([of(1, 2, 3, 3), of(2, 2, 2)])),
    *(("Conv", Case([of(1, 2, 3), of(2, 2, 2)], {key: [1, 1, 1]})) for key in ("pads", "strides", "dilations")),
    ("ConvTranspose", Case([of(1, 2, 3), of(3, 2, 2)])),
    ("ConvTranspose", Case([of(1, 3, 3), of(3, 2, 2)], {"group": 2})),
    ("ConvTranspose", Case([of(1, 2, 3), of(2, 2, 2), of(3)])),
    ("ConvTranspose", Case([of(1, 2), of(2, 2)])),
    ("GlobalMaxPool", Case([of(1, 2)])),
    ("MaxPool", Case([of(1, 1, 3)], {"kernel_shape": [2], "pads": [2, 0]})),
    ("MaxPool", Case([of(1, 1, 3)], {"kernel_shape": [2], "pads": [0, 2]})),
    ("AveragePool", Case([of(1, 1, 3)], {"kernel_shape": [2, 2]})),
    *(("ReduceSum", Case([of(2, 3), axes])) for axes in ((2,), (-3,), (0, 1, 2))),
    *(("ArgMax", Case([of(0, 2)], {"axis": 0})), ("ArgMin", Case([of(2, 0)], {"axis": -1}))),
    *(("ArgMax", Case([of(2, 2)], {"axis": axis})) for axis in (2, -3)),
    *((f, Case([of(2, 2)], {"axis": axis})) for f in ("Softmax", "LogSoftmax", "Hardmax") for axis in (2, -3)),
    *(("CumSum", Case([of(2, 2), axis])) for axis in (2, -3)),
    *(("DFT", Case([of(*shape), *more])) for shape, *more in (((2, 3, 1), None, 2), ((2, 3, 3),), ((3,),))),
    ("DFT", Case([of(2, 3, 2)], {"onesided": 1})),
    *(("Einsum", Case([of(2, 3), of(2, 3)], {"equation": equation})) for equation in ("ab,bc->ac", "abc,ab->a")),
    *(("Einsum", Case([of(2, 3)], {"equation": equation})) for equation in ("aa->a", "ab->aa", "ab->abc")),
    ("Conv", Case([of(1, 2, 3), of(2, 2, 0)])),
    ("Conv", Case([of(1, 2, 3), of(2, 2, 2)], {"auto_pad": "SAME_UPPER", "dilations": [2]})),
    *(("Reshape", Case([of(2, 3), shape])) for shape in ((-1, -1), (4,), (4, -1), (-2, 3), (2, 3, 0), (0, 2))),
    *(("Reshape", Case([of(0, 3), shape], {"allowzero": 1})) for shape in ((-1, 0), (0, -1), (2, 3))),
    *(("Transpose", Case([of(2, 3)], {"perm": perm})) for perm in ([0, 0], [0], [1, 2], [0, 1, 2], 0)),
    *(("Flatten", Case([of(2, 3)], {"axis": axis})) for axis in (3, -3)),
    *(("Squeeze", Case([of(2, 1), axes])) for axes in ((0,), (2,), (0, 1), (-3,))),
    *(("Unsqueeze", Case([of(2), axes])) for axes in ((0, 0), (2,), (0, -3), (-3,))),
    *(("Concat", Case([of(2, 2), part], {"axis": 0})) for part in (of(2), of(2, 3), of(2, 2, 1))),
    ("Concat", Case([of(2), of(2)], {"axis": 1})),
    ("Concat", Case([], {"axis": 0})),
    *(("Split", Case([of(4), lengths], {"axis": 0}, 2)) for lengths in ((5, -1), (1, 2), (2, 1, 1))),
    *(("Split", Case([of(4)], attrs, 2)) for attrs in ({"axis": 0, "num_outputs": 3}, {"axis": 0})),
    *(("Split", Case([of(size)], {"num_outputs": n}, n)) for size, n in ((1, 3), (2, 4), (5, 4))),
    ("Split", Case([of(4)], {"axis": 1, "num_outputs": 2}, 2)),
    ("Slice", Case([of(4), (0,), (2,), (0,), (0,)])),
    *(("Slice", Case([of(4), (0,), (2,), axes])) for axes in ((1,), (-2,), (0, 0))),
    ("Slice", Case([of(4), (0, 0), (2, 2)])),
    *(("Slice", Case([of(4, 4), (0, 0), (2, 2), (0, -2)])), ("Slice", Case([of(4), (0, 0), (2,)]))),
    *(("Gather", Case([of(3), index])) for index in (3, -4, (0, 3), np.array([3]), np.array(-4))),
    ("Gather", Case([of(3), 0], {"axis": 1})),
    *(("Tile", Case([of(2), repeats])) for repeats in ((-1,), (1, 2))),
    *(("Pad", Case([of(3), pads])) for pads in ((-4, 0), (1, 0, 0, 0), (-2, -2))),
    *(("Pad", Case([of(3), pads, None, None], {"mode": "reflect"})) for pads in ((3, 0), (0, 3))),
    *(
        ("Pad", Case([of(0), pads, None, None], {"mode": mode}))
        for mode in ("edge", "reflect")
        for pads in ((1, 0), (0, 1))
    ),
    *(("Pad", Case([of(3), (1, 1), of(2)])), ("Pad", Case([of(3, 3), (1,) * 4, None, (0, 0)]))),
    *((name, Case([of(4, 4, 4)], {"blocksize": 2})) for name in ("DepthToSpace", "SpaceToDepth")),
    ("DepthToSpace", Case([of(1, 2, 2, 2)], {"blocksize": 2})),
    ("SpaceToDepth", Case([of(1, 2, 3, 2)], {"blocksize": 2})),
    *(("Trilu", Case([of(3)])), ("EyeLike", Case([of(3)])), ("EyeLike", Case([of(3, 3, 3)]))),
    ("BatchNormalization", Case([of(2, 3), of(3), of(3), of(3), of(2)])),
    *(("LayerNormalization", Case([of(2, size), of(size)])) for size in (0,)),
    *(("LayerNormalization", Case([of(2, 3), scale])) for scale in (of(2), of(2, 2, 3))),
    ("LayerNormalization", Case([of(2, 3), of(3), of(2)])),
    ("LayerNormalization", Case([of(2, 3), of(3)], {"axis": 2})),
    *(("RMSNormalization", Case([of(2, 3), of(2)])), ("RMSNormalization", Case([of(2, 0), of(0)]))),
    *(
        ("InstanceNormalization", Case([of(2, 3), of(3), of(3)])),
        ("InstanceNormalization", Case([of(2, 3, 2), of(2), of(3)])),
    ),
    *(("GroupNormalization", Case([of(2, 3, 2), of(3), of(3)], {"num_groups": n})) for n in (2, 4)),
    ("GroupNormalization", Case([of(1, 4, 2), of(2), of(4)], {"num_groups": 2})),
    ("LpNormalization", Case([of(2, 3)], {"p": 3})),
    *(("LRN", Case([of(1, 4, 2, 2)], {"size": size})) for size in (-1, 0, 2)),
    *(("LRN", Case([of(*shape)], {"size": 3})) for shape in ((1, 4, 2), (1, 4, 2, 2, 2))),
    *(("LRN", Case([of(1, 4, 2, 2)], {"size": 3, name: 0.0})) for name in ("alpha", "beta")),
    *(("Resize", Case([of(2, 2), None, None, sizes], {"mode": "nearest"})) for sizes in ((2,), (2, 2, 2))),
    ("Resize", Case([of(2, 2), None, None, (2, 2)], {"axes": [0, 0]})),
    ("Resize", Case([of(2, 2), None, None, (0, 2)])),
    *(("Resize", Case([of(2, 2), None, (scale, 2.0)])) for scale in (0.0, -1.0)),
    *(("Attention", Case([of(1, 2, 4)] * 3, {"q_num_heads": q, "kv_num_heads": k})) for q, k in ((2, 4), (3, 1))),
    ("Attention", Case([of(1, 1, 2, 2)] * 3 + [of(3, 2)])),
    ("RotaryEmbedding", Case([of(1, 1, 2, 4), of(1, 2, 1), of(1, 2, 1)])),
    *(
        ("RotaryEmbedding", Case([of(1, 1, 2, 4), of(2, 2), of(2, 2), np.array(ids)]))
        for ids in ([[0, 2]], [[-1, 0]], [0, 1], [[0], [1]], [[0, 1, 1]])
    ),
    ("Mod", Case([of(2), of(2)], {"fmod": 0})),
    *(
        ("RotaryEmbedding", Case([of(1, 2, 2, 4), of(*table), of(*other)]))
        for table, other in (((2, 2, 2), (2, 2, 2)), ((1, 3, 2), (1, 3, 2)), ((1, 2, 2), (1, 2, 1)), ((2, 2), (2, 2)))
    ),
    ("RotaryEmbedding", Case([of(1, 2, 2, 4), of(1, 2, 3), of(1, 2, 3)], {"rotary_embedding_dim": 6, "num_heads": 2})),
    *(("RotaryEmbedding", Case([of(1, 2, 8)] + [of(1, 2, 2)] * 2, {"num_heads": n})) for n in (3, 0, -2)),
    *(("RotaryEmbedding", Case([of(*shape)] + [of(1, 2, 2)] * 2)) for shape in ((2, 8), (1, 1, 1, 2, 4))),
    *(("Attention", Case([of(1, 2, 2, 4)] * 3 + [of(*mask)])) for mask in ((), (3, 2), (3, 2, 2))),
    *(
        ("Attention", Case([of(1, 2, 2, 4), of(*k), of(1, 2, 2, 4)]))
        for k in ((1, 2, 2, 3), (2, 2, 2, 4), (1, 3, 2, 4))
    ),
    *(("Attention", Case([of(1, 2, 2, 4)] * 3, {f"{side}_window_size": -2})) for side in ("left", "right")),
    ("BatchNormalization", Case([of()] + [of(1)] * 4)),
    ("BatchNormalization", Case([of(2, 3), of(3, 1)] + [of(3)] * 3)),
    *(("GroupNormalization", Case([of(1, 4, size), of(4), of(4)], {"num_groups": n})) for size, n in ((2, 0), (0, 2))),
    ("LpNormalization", Case([of(2, 3)], {"p": 0})),
    *(("NegativeLogLikelihoodLoss", Case([of(2, 3), at(*labels)])) for labels in ((0, 3), (0, 1, 1), (0,))),
    *(
        (f"{name}Loss", Case([of(2, 3), at(0, 1), of(*weights)]))
        for name in ("NegativeLogLikelihood", "SoftmaxCrossEntropy")
        for weights in ((2,), (3, 1))
    ),
    *(("GatherElements", Case([of(3), at(i)])) for i in (3, -4)),
    *(("GatherElements", Case([of(2, 2), places])) for places in (at(0), at(0, 0, 0).reshape(1, 3))),
    *(("GatherND", Case([of(2, 3), at(*where).reshape(1, -1)])) for where in ((2,), (-3,), (0, 3), (0, -4), (0, 0, 0))),
    ("GatherND", Case([of(2, 3), at(0, 0, 0).reshape(3, 1)], {"batch_dims": 1})),
    *(("GatherND", Case([of(2, 3), at(0, 0).reshape(2, 1)], {"batch_dims": n})) for n in (2, 3)),
    *(("ScatterElements", Case([of(3), at(i), of(1)])) for i in (3, -4)),
    *(("ScatterElements", Case([of(3), at(0), of(*shape)])) for shape in ((2,), (1, 1))),
    ("ScatterElements", Case([of(2, 2), at(0), of(1)])),
    *(("ScatterND", Case([of(2, 3), at(*where).reshape(1, -1), of(1)])) for where in ((0, 3), (0, -4), (0, 0, 0))),
    *(("ScatterND", Case([of(2, 3), at(i).reshape(1, 1), of(1, 3)])) for i in (2, -3)),
    *(("ScatterND", Case([of(2, 3), at(0).reshape(1, 1), of(*shape)])) for shape in ((3,), (1, 2), (2, 3))),
    *(("TopK", Case([of(2, 3), (k,)], {"axis": 1}, 2)) for k in (4, -1)),
    ("TopK", Case([of(2, 3), (1,)], {"axis": 2}, 2)),
    ("TopK", Case([of(2, 3), (1, 1)], {"axis": 1}, 2)),
    *(("OneHot", Case([at(0, 1), depth, of(2)])) for depth in (0, -1)),
    *(("OneHot", Case([at(0, 1), 2, of(*shape)])) for shape in ((3,), (1,), (1, 2))),
    ("OneHot", Case([at(0, 1), 2, of(2)], {"axis": 2})),
    ("Range", Case([0, 3, 0])),
    *(("Range", Case([of(2) if i == longer else of() for i in range(3)])) for longer in range(3)),
    *(("GatherND", Case([of(*shape), at(0).reshape(places)])) for shape, places in (((), (1,)), ((2,), ()))),
    *(("ScatterND", Case([of(*shape), at(0).reshape(i), of()])) for shape, i in (((), (1,)), ((2,), ()))),
    ("GatherND", Case([of(2, 2), at(0, 0).reshape(2, 1)], {"batch_dims": -1})),
    ("GatherND", Case([of(2, 2, 3, 3), at(0, 0, 0, 0).reshape(2, 2)], {"batch_dims": 2})),
    *(
        ("GatherND", Case([of(*shape), at(*where).reshape(2, -1)], {"batch_dims": 1}))
        for shape, where in (((2, 2), (0, 0, 0, 0)), ((3, 2), (0, 0)), ((2, 3, 2), (0, 2, 0, 2)))
    ),
    ("OneHot", Case([at(0, 1), (2, 3), of(2)])),
    ("BatchNormalization", Case([of(2, 3)] + [of(3)] * 4, {"training_mode": 1})),
    *(
        ("GroupNormalization", Case([of(*shape)] + [of(shape[1])] * 2, {"num_groups": 2}))
        for shape in ((0, 4, 2), (1, 0, 2))
    ),
    *(
        (name, Case([of(*shape)], {"kernel_shape": [2], "pads": [1, 1]}))
        for name in ("MaxPool", "AveragePool", "LpPool")
        for shape in ((1, 0, 3), (1, 2, 0))
    ),
    *(
        (f"Global{name}Pool", Case([of(*shape)]))
        for name in ("Max", "Average", "Lp")
        for shape in ((1, 0, 3), (1, 2, 0))
    ),
    *((name, Case([of(1, 1, 3)], {"kernel_shape": [0]})) for name in ("MaxPool", "AveragePool", "LpPool")),
    *(("Attention", Case([of(1, 2, 2, 4)] * 3, {f"{heads}_num_heads": 2})) for heads in ("q", "kv")),
    *(
        ("Attention", Case([of(*shape)] * 3, {"q_num_heads": 1, "kv_num_heads": 1}))
        for shape in ((2, 4), (1, 0, 4), (0, 2, 4))
    ),
    ("Attention", Case([of(1, 1, 1, 2, 4)] * 3)),
    *(
        ("Attention", Case([of(1, *q), of(1, *k), of(1, *v)]))
        for q, k, v in (
            ((2, 2, 2), (0, 2, 2), (0, 2, 2)),
            ((0, 2, 2), (2, 2, 2), (2, 2, 2)),
            ((2, 2, 2), (2, 0, 2), (2, 0, 2)),
            ((2, 2, 0), (2, 2, 0), (2, 2, 2)),
            ((2, 2, 2), (2, 2, 2), (2, 2, 0)),
        )
    ),
    ("Attention", Case([of(1, 2, 2, 4), of(1, 2, 8), of(1, 2, 8)], {"kv_num_heads": 2})),
    ("Attention", Case([of(1, 1, 2, 4)] * 3, {}, 2)),
    *(("ConvTranspose", Case([of(1, 1, 5), of(1, 1, 2)], {"output_shape": size})) for size in ([3, 3], [7], [0])),
    *(("ConvTranspose", Case([of(1, 1, 5), of(1, 1, 2)], {"pads": pads})) for pads in ([3, 3], [4, 3])),
    ("ConvTranspose", Case([of(1, 1, 5), of(1, 1, 2)], {"dilations": [2], "output_padding": [1]})),
    ("ConvTranspose", Case([of(1, 1, 5), of(1, 1, 0)])),
    ("ConvTranspose", Case([of(1, 1, 5), of(1, 1, 2)], {"group": 0})),
    *(
        (name, Case([of(1, 1, 5), of(1, 1, 2)], {"auto_pad": mode, "pads": [0, 1]}))
        for name in ("Conv", "ConvTranspose")
        for mode in ("VALID", "SAME_UPPER")
    ),
    ("RotaryEmbedding", Case([of(1, 1, 2, 4), of(1, 2, 1), of(1, 2, 1)], {"rotary_embedding_dim": -2, "num_heads": 1})),
)
"""What ONNX Runtime refuses."""

A_STATE = (of(2, 2, 2), of(1, 2, 2), of(1, 2, 2))
"""A sequence of two and two batches, and the weights of a network of two hidden states."""


def _network(position: int, other: Array | None = None, **attrs: int) -> tuple[str, Case]:
    """A recurrent network with another input, or with other attributes."""
    inputs = [*A_STATE, *(None,) * (position - 2)]
    inputs[position] = inputs[position] if other is None else other
    return "RNN", Case(inputs, {"hidden_size": 2, **attrs})


UNDEFINED_STATES = (
    *(
        _network(position, of(*shape))
        for position in range(3)
        for shape in ((2, 2), (1, 2, 2, 2), (2, 2, 3), (2, 2, 1))
    ),
    *(_network(position, of(*shape)) for position in (1, 2) for shape in ((2, 2, 2), (1, 3, 2), (1, 1, 2))),
    *(_network(3, of(*shape)) for shape in ((4,), (1, 3), (1, 5), (2, 4))),
    *(_network(4, np.array(lengths, np.int32)) for lengths in ([1], [1, 2, 1], [[1, 2]], [3, 1], [-1, 1])),
    *(_network(5, of(*shape)) for shape in ((2, 2), (1, 1, 2), (1, 3, 2), (2, 2, 2), (1, 2, 3))),
    *(_network(0, hidden_size=size) for size in (-1, 0, 1, 3)),
    *(_network(0, layout=1), ("RNN", Case(list(A_STATE)))),
)
UNDEFINED = (*UNDEFINED, *UNDEFINED_STATES)

DIVIDED: Sequence[tuple[str, Case]] = tuple((name, Case([at(4, 2), at(2, 0)])) for name in ("Div", "Mod"))
"""What has no denotation in the exact model alone, which computes in integers."""

BEYOND: Sequence[tuple[str, Case]] = (
    *((f"{name}Window", Case([at(3)])) for name in ("Blackman", "Hamming", "Hann")),
    ("MeanVarianceNormalization", Case([of(2, 3)])),
    *(("SwiGLU", Case([of(2, 3), of(*shape)])) for shape in ((3,), (1, 3), (2, 1))),
    *(("NegativeLogLikelihoodLoss", Case([of(2, 3), at(0, -1)])), ("SoftmaxCrossEntropyLoss", Case([of(3), at(0)]))),
    ("Clip", Case([of(2), of(2)])),
    *(("Clip", Case([of(2), of(1), None])), ("Clip", Case([of(2), None, of(1)]))),
    *(("Conv", Case([of(1, 0, 3), of(2, 0, 2)])), ("Conv", Case([of(1, 2, 3), of(0, 2, 2)]))),
    *((name, Case([of(1, 1, 3)], {"kernel_shape": [4]})) for name in ("AveragePool", "MaxPool", "LpPool")),
    ("MaxPool", Case([of(1, 1, 6)], {"kernel_shape": [1], "strides": [3], "auto_pad": "SAME_UPPER"})),
    *(
        (name, Case([of(1, 1, 6)], {"kernel_shape": [2], "dilations": [2], "auto_pad": mode}))
        for name in ("AveragePool", "MaxPool", "LpPool")
        for mode in ("SAME_UPPER", "SAME_LOWER")
    ),
    ("Split", Case([of(4)], {"axis": 0, "num_outputs": 1}, 2)),
    *(("Attention", Case([of(1, 1, 2, 2)] * 3, {"scale": scale})) for scale in (-0.5, 0.0)),
    # refused by the kernels of opset 23 and 24, not by the function that newer ones are
    ("Attention", Case([of(1, 1, 2, 2)] * 3 + [of(1, 1, 1, 2)])),
    *(("Attention", Case([of(1, 1, 0, 2), of(1, 1, n, 2), of(1, 1, n, 2)])) for n in (0, 2)),
    *(("Attention", Case([of(1, 1, 2, 2)] * 3 + [mask])) for mask in (of(2, 3), of(1, 1, 1, 2, 2))),
    ("RotaryEmbedding", Case([of(1, 1, 2, 3), of(1, 2, 1), of(1, 2, 1)])),
    ("Einsum", Case([of(2, 2, 2, 3)], {"equation": "...b"})),
    *(("GatherND", Case([of(3), np.zeros((2, 0), np.int64)])), ("NonZero", Case([of()]))),
    ("ScatterND", Case([of(3), np.zeros((1, 0), np.int64), of(1, 3)])),
    ("LpPool", Case([of(1, 1, 3)], {"kernel_shape": [2], "p": 0})),
    ("GlobalLpPool", Case([of(1, 1, 3)], {"p": 0})),
    ("Attention", Case([of(1, 1, 2, 2)] * 3, {"softcap": -1.0})),
    *(("Attention", Case([of(1, 1, 2, 2)] * 3, {"qk_matmul_output_mode": mode}, 4)) for mode in (2, 4)),
    ("Attention", Case([of(1, 2, 8), of(1, 2, 2, 4), of(1, 2, 2, 4)], {"q_num_heads": 2, "kv_num_heads": 2})),
    *(_network(0, of(*shape)) for shape in ((0, 2, 2), (2, 0, 2))),
    *(("Pad", Case([of(3), pads], {"mode": "edge"})) for pads in ((-1, 0), (0, -1))),
    *(("Pad", Case([of(3), (1, 1), of(1, 1)])), ("Dropout", Case([of(2), 0.5, True]))),
)
"""What no denotation defines, though ONNX Runtime makes something of it or ends the process: most the text lacks."""
