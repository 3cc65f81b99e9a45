"""Evaluating one node: the result is ONNX Runtime's, or in float64 what mathematics says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from graphopt.base.dtype import DType
from graphopt.ir import schemas
from graphopt.ir.graph import Attribute, Node
from graphopt.ir.types import TensorType
from graphopt.operators.node_evaluation import evaluate_by_runtime, evaluate_node
from graphopt.operators.proto_conversion import node_to_proto, type_to_proto
from tests.versions import is_older

Array = NDArray[Any]
OPSET = 21  # ONNX Runtime knows it, whatever is installed


def node(op: str, attrs: Mapping[str, Attribute] | None = None, *, outputs: int = 1, opset: int = OPSET) -> Node:
    schema = schemas.schema(op, "", opset)
    assert schema is not None, op
    return Node(op, (), ("o",) * outputs, (None,) * outputs, attrs or {}, version=schema.since_version)


def runtime(made: Node, inputs: Sequence[Array | None]) -> list[Array]:
    """What ONNX Runtime computes, by a model that is written down here on its own."""
    names = ["" if array is None else f"x{i}" for i, array in enumerate(inputs)]
    outputs = [f"y{i}" for i in range(len(made.names))]
    model = onnx.ModelProto(ir_version=10, graph=onnx.GraphProto(name="one"))
    model.opset_import.add(version=OPSET)
    model.graph.node.append(node_to_proto(made, names, outputs))
    feeds = {name: array for name, array in zip(names, inputs, strict=True) if array is not None}
    for name, array in feeds.items():
        model.graph.input.add(name=name, type=type_to_proto(TensorType(DType.from_numpy(array.dtype), array.shape)))
    for name in outputs:
        model.graph.output.add(name=name)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    results: list[Array] = session.run(outputs, feeds)
    return results


def floats(*shape: int, dtype: Any = np.float32) -> Array:
    rng = np.random.default_rng(sum(shape))
    return np.asarray(rng.standard_normal(shape) * 3).astype(dtype)


def ints(*values: int, dtype: Any = np.int64) -> Array:
    return np.array(values, dtype)


def scalar(value: float, dtype: Any = np.float32) -> Array:
    return np.array(value, dtype)


x, z = floats(2, 3, 4), floats(3, 4)
b = x > 0
LIKE_THE_RUNTIME: list[tuple[Node, Sequence[Array | None]]] = [
    *((node(op), [x, z]) for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Less", "Greater", "Equal")),
    *((node(op), [x, z]) for op in ("LessOrEqual", "GreaterOrEqual")),
    *((node(op), [x]) for op in ("Abs", "Neg", "Ceil", "Floor", "Round", "Sign", "Relu", "Reciprocal", "Identity")),
    *((node(op), [abs(x)]) for op in ("Sqrt", "Exp", "Log", "Softmax", "Erf", "Sigmoid", "Gelu", "IsNaN", "IsInf")),
    *((node(op), [b, z > 0]) for op in ("And", "Or", "Xor")),
    (node("Not"), [b]),
    (node("Mod", {"fmod": 1}), [x, z]),
    (node("Pow"), [abs(x), scalar(1.5)]),
    (node("Clip"), [x, scalar(-1), None]),
    (node("Clip"), [x, None, scalar(1)]),
    (node("MatMul"), [x, floats(4, 5)]),
    (node("Gemm", {"transB": 1, "alpha": 0.5, "beta": 2.0}), [z, floats(5, 4), floats(5)]),
    (node("Conv", {"pads": (1, 0, 1, 0), "strides": (2, 1)}), [floats(1, 2, 5, 6), floats(3, 2, 3, 3)]),
    (node("ReduceSum", {"keepdims": 0}), [x, ints(0, 2)]),
    (node("ReduceMean"), [x, ints(-1)]),
    (node("ReduceMax"), [x]),
    (node("LayerNormalization", {"axis": -1}), [x, floats(4), floats(4)]),
    (node("Transpose", {"perm": (2, 0, 1)}), [x]),
    (node("Reshape"), [x, ints(0, -1)]),
    (node("Flatten", {"axis": 2}), [x]),
    (node("Squeeze"), [x[:1], ints(0)]),
    (node("Unsqueeze"), [x, ints(0, -1)]),
    (node("Concat", {"axis": 1}), [x, x]),
    (node("Split", {"axis": 2}, outputs=2), [x, ints(1, 3)]),
    (node("Split", {"axis": 1, "num_outputs": 2}, outputs=2), [x]),
    (node("Slice"), [x, ints(-1), ints(-9), ints(1), ints(-2)]),
    (node("Slice"), [x, ints(0, 1), ints(9, 2), ints(2, 0)]),
    (node("Gather", {"axis": 1}), [x, ints(-1, 0)]),
    (node("GatherElements", {"axis": 1}), [x, np.zeros((2, 1, 4), np.int64)]),
    (node("GatherND"), [x, ints(1, 2)]),
    (node("Where"), [b, x, z]),
    (node("Expand"), [z, ints(2, 1, 4)]),
    (node("Tile"), [z, ints(2, 3)]),
    (node("Pad"), [z, ints(1, 0, 0, 2), scalar(7)]),
    (node("Pad"), [z, ints(-1, 0, 0, -2)]),
    (node("Pad", {"mode": "reflect"}), [z, ints(1, 1, 1, 1)]),
    (node("Pad", {"mode": "edge"}), [z, ints(1, 2), None, ints(1)]),
    (node("ConstantOfShape"), [ints(2, 3)]),
    (node("Shape", {"start": 1}), [x]),
    (node("Size"), [x]),
    (node("Range"), [scalar(0.1), scalar(2), scalar(0.3)]),
    (node("Range"), [*(np.array(v, np.int64) for v in (7, 0, -2))]),
    (node("NonZero"), [b]),
    (node("Compress", {"axis": 1}), [x, np.array([True, False, True])]),
    (node("OneHot"), [ints(0, 2, -1), ints(3), floats(2)]),
    (node("Trilu", {"upper": 0}), [x, np.array(1, np.int64)]),
    (node("CumSum"), [x, np.array(1, np.int64)]),
    (node("DepthToSpace", {"blocksize": 2}), [floats(1, 8, 2, 3)]),
    (node("SpaceToDepth", {"blocksize": 2}), [floats(1, 2, 4, 6)]),
    (node("TopK", outputs=2), [x, ints(2)]),
    (node("ArgMax", {"axis": 2}), [x]),
    (node("Cast", {"to": int(DType.INT32)}), [x]),
    (node("Cast", {"to": int(DType.FLOAT16)}), [x]),
    (node("Cast", {"to": int(DType.BOOL)}), [x]),
    (node("Cast", {"to": int(DType.STRING)}), [x]),
    (node("BatchNormalization"), [floats(2, 3), *(abs(floats(3)) for _ in range(4))]),
    (node("Resize", {"mode": "linear"}), [floats(1, 1, 4, 4), None, np.array([1, 1, 2, 2], np.float32)]),
]


@pytest.mark.parametrize(("made", "inputs"), LIKE_THE_RUNTIME, ids=[made.op for made, _ in LIKE_THE_RUNTIME])
def test_results_are_the_runtimes_bit_for_bit(made: Node, inputs: Sequence[Array | None]) -> None:
    results = evaluate_node(made, inputs)
    assert results is not None
    for own, expected in zip(results, runtime(made, inputs), strict=True):
        assert (own.dtype.kind, own.shape) == (expected.dtype.kind, expected.shape)
        np.testing.assert_array_equal(own, expected)


INTEGERS = [np.int8, np.uint8, np.int32, np.int64]


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(INTEGERS), st.data(), st.sampled_from([("Div", {}), ("Mod", {}), ("Mod", {"fmod": 1})]))
def test_integers_are_divided_as_the_runtime_divides(
    dtype: Any, data: st.DataObject, what: tuple[str, Mapping[str, Attribute]]
) -> None:
    low = 0 if np.dtype(dtype).kind == "u" else -20
    numbers = st.integers(low, 20)
    left = np.array(data.draw(st.lists(numbers, min_size=4, max_size=4)), dtype)
    right = np.array(data.draw(st.lists(numbers.filter(bool), min_size=4, max_size=4)), dtype)
    made = node(what[0], what[1])
    results = evaluate_node(made, [left, right])
    assert results is not None
    np.testing.assert_array_equal(results[0], runtime(made, [left, right])[0])


def test_division_goes_towards_zero_and_mod_goes_with_the_divisor() -> None:
    seven, two = ints(-7, 7, -7, 7), ints(2, 2, -2, -2)
    assert [r.tolist() for r in evaluate_node(node("Div"), [seven, two]) or ()] == [[-3, 3, 3, -3]]
    assert [r.tolist() for r in evaluate_node(node("Mod"), [seven, two]) or ()] == [[1, 1, -1, -1]]
    assert [r.tolist() for r in evaluate_node(node("Mod", {"fmod": 1}), [seven, two]) or ()] == [[-1, 1, -1, 1]]


@pytest.mark.parametrize(
    ("made", "inputs"),
    [
        (node("Div"), [ints(1), ints(0)]),
        (node("Mod"), [ints(1), ints(0)]),
        (node("Cast", {"to": int(DType.INT8)}), [np.array([300.0], np.float32)]),
        (node("Cast", {"to": int(DType.INT64)}), [np.array([np.nan], np.float32)]),
        (node("Gather"), [x, ints(5)]),
        (node("Reshape"), [x, ints(5, 5)]),
        (Node("Mystery", (), ("y",), (None,)), [x]),
    ],
    ids=lambda value: value.op if isinstance(value, Node) else "",
)
def test_what_is_not_defined_is_not_computed(made: Node, inputs: list[Array]) -> None:
    assert evaluate_node(made, inputs) is None


MANY = 5000
"""More elements than both ONNX Runtime and the reference were once asked of."""
INT32, INT64 = np.dtype(np.int32), np.dtype(np.int64)


@pytest.mark.parametrize("many", [4, MANY])
@pytest.mark.parametrize("kind", ["Sum", "Prod", "Mean", "L1", "L2", "SumSquare", "LogSum"])
@pytest.mark.parametrize(("dtype", "number"), [(INT32, 2**30), (INT32, -(2**31)), (INT64, 2**62), (INT64, 2**53 + 1)])
def test_integers_that_leave_their_type_are_not_reduced(
    dtype: np.dtype[Any], number: int, kind: str, many: int
) -> None:
    numbers = np.full(many, number, dtype)
    numbers[:2] = 7
    assert evaluate_node(node(f"Reduce{kind}", {"keepdims": 0}), [numbers]) is None


@pytest.mark.parametrize("many", [4, MANY])
@pytest.mark.parametrize("kind", ["Sum", "Prod", "Max", "Min", "L1"])
@pytest.mark.parametrize("dtype", [INT32, INT64])
def test_integers_that_stay_within_it_are(dtype: np.dtype[Any], kind: str, many: int) -> None:
    numbers = np.ones(many, dtype)
    numbers[:3] = -9, 5, 30
    made = node(f"Reduce{kind}")
    results = evaluate_node(made, [numbers])
    assert results is not None
    np.testing.assert_array_equal(results[0], runtime(made, [numbers])[0], strict=True)


@pytest.mark.parametrize(
    ("made", "inputs"),
    [
        (node("CumSum"), [np.full(MANY, 2**30, np.int32), np.array(0)]),
        (node("MatMul"), [np.full((1, MANY), 2**30 + 1, np.int32), np.full((MANY, 1), 3, np.int32)]),
        (node("Mul"), [np.full(MANY, 2**30, np.int32), np.full(MANY, 3, np.int32)]),
        (node("Abs"), [np.full(MANY, -(2**31), np.int32)]),
        (node("Pow"), [np.full(MANY, 2, np.int64), np.full(MANY, 64, np.int64)]),
    ],
    ids=lambda value: value.op if isinstance(value, Node) else "",
)
def test_of_many_integers_too_both_are_asked(made: Node, inputs: list[Array]) -> None:
    results = evaluate_node(made, inputs)
    if results is not None:
        np.testing.assert_array_equal(results[0], runtime(made, inputs)[0], strict=True)


# -- versions of which ONNX Runtime has no kernel ----------------------------------------------------------------------


def newest(made: Node) -> Node:
    """The node as it is within a graph."""
    return replace(made, version=schemas.newest_version(made.op))


FAR = np.array([1e30, -1e30, 3e9, 0.5], np.float32)
QUANTIZED: list[tuple[Node, Sequence[Array | None]]] = [
    (node("QuantizeLinear"), [FAR, scalar(0.01), np.array(3, dtype)]) for dtype in (np.int8, np.uint8, np.int16)
]
AS_SPELLED_BEFORE: list[tuple[Node, Sequence[Array | None]]] = [
    *QUANTIZED,
    (node("QuantizeLinear"), [FAR, scalar(0.01)]),
    (node("QuantizeLinear", {"axis": 0}), [FAR, FAR[3] * np.ones(4, np.float32), np.zeros(4, np.uint8)]),
    (node("QuantizeLinear", {"axis": 0, "block_size": 2}), [FAR, np.ones(2, np.float32), np.zeros(2, np.int8)]),
    (node("DequantizeLinear"), [ints(-128, 127, dtype=np.int8), scalar(0.5), np.array(3, np.int8)]),
    (node("BitShift", {"direction": "LEFT"}), [ints(1, 2, dtype=np.uint8)] * 2),
    (node("Mod"), [ints(-7, 7), ints(2, -2)]),
    (node("Celu"), [x]),
    (node("Einsum", {"equation": "ij,kj->ik"}), [z, z]),
    (node("Unique"), [ints(2, 1, 2)]),
    (node("ReverseSequence"), [z, ints(1, 2, 3, 1)]),
    (node("ReduceLogSum"), [abs(x)]),
    (node("ReduceLogSumExp"), [x]),
]


NEWER_KERNELS = {"Range", "SpaceToDepth"}


@pytest.mark.parametrize(
    ("made", "inputs"), [*AS_SPELLED_BEFORE, *LIKE_THE_RUNTIME], ids=lambda v: v.op if isinstance(v, Node) else ""
)
def test_onnx_runtime_is_asked_of_the_newest_spelling_too(made: Node, inputs: Sequence[Array | None]) -> None:
    expected = runtime(made, inputs)
    asked = evaluate_by_runtime(newest(made), inputs)
    if asked is None and made.op in NEWER_KERNELS and is_older("onnxruntime", "1.32"):
        pytest.skip(f"onnxruntime before 1.32 has no kernel of the newest {made.op}, which has one attribute more")
    assert asked is not None
    for own, result in zip(asked, expected, strict=True):
        np.testing.assert_array_equal(own, result, strict=True)


@pytest.mark.parametrize(("made", "inputs"), QUANTIZED, ids=["int8", "uint8", "int16"])
def test_what_is_far_is_quantized_to_the_limits(made: Node, inputs: Sequence[Array]) -> None:
    limits = np.iinfo(inputs[2].dtype)
    (result,) = evaluate_node(newest(made), inputs) or ()
    assert result.tolist()[:3] == [limits.max, limits.min, limits.max]


SMALL = ints(4, 3, dtype=np.uint32)
NO_KERNEL: list[tuple[Node, list[Array]]] = [
    (node("CumSum"), [SMALL, np.array(0)]),
    *((node(f"Reduce{kind}"), [SMALL]) for kind in ("Sum", "Prod", "Max", "Min")),
    (node("ArgMax"), [SMALL]),
    (node("TopK", outputs=2), [SMALL, ints(1)]),
    (node("NonZero"), [SMALL]),
    (node("QuantizeLinear"), [FAR, scalar(0.01), np.array(0, ml_dtypes.int4)]),
]


@pytest.mark.parametrize(("made", "inputs"), NO_KERNEL, ids=[made.op for made, _ in NO_KERNEL])
def test_of_what_onnx_runtime_cannot_compute_nothing_is_told(made: Node, inputs: list[Array]) -> None:
    assert evaluate_by_runtime(newest(made), inputs) is None
    assert evaluate_node(newest(made), inputs) is None


@pytest.mark.parametrize("dtype", [np.int16, np.uint16, np.uint64])
def test_but_where_it_moves(dtype: Any) -> None:
    numbers = ints(4, 3, dtype=dtype)
    made = [np.array([True, False]), numbers, numbers[::-1]]
    assert evaluate_by_runtime(newest(node("Where")), made) is None
    (result,) = evaluate_node(newest(node("Where")), made) or ()
    assert result.tolist() == [4, 4]


# -- half precision ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("op", ["Add", "Mul", "Div", "MatMul"])
def test_halves_are_computed_in_float32_and_rounded_once(op: str, dtype: Any) -> None:
    left, right = floats(8, 8, dtype=dtype), floats(8, 8, dtype=dtype) + np.asarray(1, dtype)
    results = evaluate_node(node(op), [left, right])
    wide = evaluate_node(node(op), [left.astype(np.float32), right.astype(np.float32)])
    assert results is not None
    assert wide is not None
    assert results[0].dtype == dtype
    np.testing.assert_array_equal(results[0], wide[0].astype(dtype))


@pytest.mark.parametrize("dtype", [d for d in DType if d not in (DType.UNDEFINED, DType.STRING)])
def test_elements_of_any_type_are_moved(dtype: DType) -> None:
    values = np.array([[1, 0], [1, 1]]).astype(dtype.numpy)
    results = evaluate_node(node("Transpose", {"perm": (1, 0)}), [values])
    assert results is not None
    assert results[0].dtype == dtype.numpy
    assert results[0].tobytes() == values.T.tobytes()


def test_strings_are_moved() -> None:
    results = evaluate_node(node("Concat", {"axis": 0}), [np.array(["a"], object), np.array(["b", "c"], object)])
    assert results is not None
    assert results[0].tolist() == ["a", "b", "c"]


# -- float64 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_weight_arithmetic_stays_in_float64(dtype: Any) -> None:
    """The folding of a batch norm into a weight: scale / sqrt(variance + epsilon) × weight."""
    weight, scale, variance = (abs(floats(4, 4, dtype=dtype)) for _ in range(3))
    total = evaluate_node(node("Add"), [variance, np.array(1e-5)], float64=True)
    assert total is not None
    root = evaluate_node(node("Sqrt"), total, float64=True)
    assert root is not None
    factor = evaluate_node(node("Div"), [scale, *root], float64=True)
    assert factor is not None
    (result,) = evaluate_node(node("Mul"), [weight, *factor], float64=True) or ()
    wide = [array.astype(np.float64) for array in (weight, scale, variance)]
    assert result.dtype == np.float64
    np.testing.assert_allclose(result, wide[0] * wide[1] / np.sqrt(wide[2] + 1e-5), rtol=1e-15)


WIDE: list[tuple[Node, list[Array | None], Array]] = [
    (node("MatMul"), [z, z.T], z.astype(float) @ z.T.astype(float)),
    (node("Gemm", {"transB": 1}), [z, z], z.astype(float) @ z.T.astype(float)),
    (node("Exp"), [z], np.exp(z.astype(float))),
    (node("Pow"), [abs(z), scalar(0.5)], np.sqrt(abs(z).astype(float))),
    (node("ReduceMean", {"keepdims": 0}), [z, ints(1)], z.astype(float).mean(1)),
    (node("ReduceL2", {"keepdims": 0}), [z, ints(1)], np.sqrt((z.astype(float) ** 2).sum(1))),
    (node("Pad"), [z, ints(0, 1, 0, 1), scalar(0)], np.pad(z.astype(float), ((0, 0), (1, 1)))),
    (node("Slice"), [z, ints(1), ints(3), ints(1)], z.astype(float)[:, 1:3]),
    (node("Max"), [z, scalar(0)], np.maximum(z, 0).astype(float)),
]


@pytest.mark.parametrize(("made", "inputs", "expected"), WIDE, ids=[made.op for made, _, _ in WIDE])
def test_float64_is_float64_all_the_way(made: Node, inputs: list[Array | None], expected: Array) -> None:
    (result,) = evaluate_node(made, inputs, float64=True) or ()
    assert result.dtype == np.float64
    np.testing.assert_allclose(result, expected, rtol=1e-14)


def test_integers_stay_integers_in_float64() -> None:
    (result,) = evaluate_node(node("Add"), [ints(1), ints(2)], float64=True) or ()
    assert result.dtype == np.int64


def test_a_version_has_its_own_defaults() -> None:
    """Softmax was over axis 1 and all that follow before opset 13; it has been over the last since."""
    old = evaluate_node(node("Softmax", opset=11), [x])
    assert old is not None
    np.testing.assert_allclose(old[0].sum((1, 2)), np.ones(2), rtol=1e-5)


def test_a_zero_is_not_the_other_zero_that_came_before() -> None:
    """Instances of the reference are kept by their attributes, and 0.0 == -0.0."""
    for zero in (0.0, -0.0):
        (found,) = evaluate_node(node("Constant", {"value_float": zero}), [], float64=True) or ()
        assert np.signbit(found) == np.signbit(zero)


@pytest.mark.parametrize("end", [2**31 - 1, 2**63 - 1])
def test_a_slice_backwards_to_an_end_that_onnx_runtime_reads_otherwise_is_not_computed(end: int) -> None:
    arrays = [np.arange(5), *(np.array([number]) for number in (-1, end, 0, -1))]
    assert evaluate_node(node("Slice"), arrays) is None
    arrays[2] = np.array([-9])
    (found,) = evaluate_node(node("Slice"), arrays) or ()
    assert found.tolist() == [4, 3, 2, 1, 0]
