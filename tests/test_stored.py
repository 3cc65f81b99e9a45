"""Large constants that were computed: in a file, part by part, and never through what copies them."""

import gc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.parser import parse_model

import graphopt
from graphopt.base.session import current_session
from graphopt.ir import chunks, spilled
from graphopt.ir.tensor import Tensor
from graphopt.operators import node_evaluation
from graphopt.operators.proto_conversion import raw_chunks
from graphopt.rule import Rule, const, tensor
from tests.text import run

RANDOM = np.random.default_rng(0)
WEIGHT: NDArray[np.float32] = RANDOM.standard_normal((640, 512)).astype(np.float32)


# -- parts of arrays ---------------------------------------------------------------------------------------------------

VIEWS = {
    "contiguous": WEIGHT,
    "transposed": WEIGHT.T,
    "every second row": WEIGHT[::2],
    "backwards": WEIGHT[:, ::-1],
    "five axes": WEIGHT.reshape(1, 8, 80, 64, 8).transpose(0, 3, 1, 4, 2),
    "a row": WEIGHT[:1],
    "broadcast": np.broadcast_to(WEIGHT[0], (100, 512)),
    "empty": WEIGHT[:0],
    "a number": WEIGHT[0, 0].reshape(()),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("limit", [1, 100, 5000, 1 << 24])
def test_pieces_are_the_elements_in_their_order(name: str, limit: int) -> None:
    found = [*chunks.iter_chunks(VIEWS[name], limit)]
    assert all(piece.ndim == 1 and piece.flags.c_contiguous for piece in found)
    assert all(piece.nbytes <= max(limit, 32) for piece in found)
    np.testing.assert_array_equal(np.concatenate(found), np.ravel(VIEWS[name]))


@pytest.mark.parametrize("name", VIEWS)
def test_what_is_written_is_what_a_tensor_holds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphopt.operators.proto_conversion.COPY_CHUNK_BYTES", 1000)
    array = VIEWS[name]
    assert (
        b"".join(raw_chunks(Tensor.from_array(array))) == numpy_helper.from_array(np.array(array, order="C")).raw_data
    )


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.bfloat16, np.bool_, np.complex64])
def test_types_that_are_packed_or_not_numpy_s_own_are_written_alike(
    dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphopt.operators.proto_conversion.COPY_CHUNK_BYTES", 17)
    array = (RANDOM.integers(0, 2, (7, 9))).astype(dtype).T
    assert (
        b"".join(raw_chunks(Tensor.from_array(array))) == numpy_helper.from_array(np.ascontiguousarray(array)).raw_data
    )


def test_same_bits() -> None:
    other = WEIGHT.copy()
    assert chunks.bitwise_equal(WEIGHT, other) and chunks.bitwise_equal(WEIGHT.T, np.ascontiguousarray(WEIGHT.T))
    other[-1, -1] = np.nextafter(other[-1, -1], 1)
    assert not chunks.bitwise_equal(WEIGHT, other) and not chunks.bitwise_equal(WEIGHT.T, np.ascontiguousarray(other.T))
    assert not chunks.bitwise_equal(np.zeros(3), -np.zeros(3))


# -- files without a name ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["contiguous", "transposed", "five axes"])
def test_a_large_tensor_is_kept_in_a_file(name: str) -> None:
    tensor = spilled.spill(VIEWS[name])
    assert spilled.is_memory_mapped(tensor.numpy()) and tensor.shape == VIEWS[name].shape
    np.testing.assert_array_equal(tensor.numpy(), VIEWS[name])


def test_a_small_tensor_and_a_view_of_a_file_stay_as_they_are() -> None:
    small, seen = np.ones(3), spilled.spill(WEIGHT).numpy().T
    assert spilled.spill(small).numpy() is small
    assert spilled.spill(seen).numpy() is seen


@pytest.mark.slow
def test_a_part_is_used_again_when_nothing_shows_it() -> None:
    first = spilled.spill(WEIGHT)
    shown = first.numpy()
    del first
    gc.collect()
    second = spilled.spill(-WEIGHT)
    np.testing.assert_array_equal(shown, WEIGHT)  # what an array shows is not written over
    del shown
    gc.collect()
    third = spilled.spill(WEIGHT * 2)
    np.testing.assert_array_equal(second.numpy(), -WEIGHT)
    np.testing.assert_array_equal(third.numpy(), WEIGHT * 2)


@pytest.mark.parametrize("failing", ["open", "write"])
def test_where_there_is_no_room_a_tensor_is_held(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    kept = spilled.spill(WEIGHT)  # a file is there
    place = "TemporaryFile" if failing == "open" else "_SpillFile.write"
    if failing == "open":
        monkeypatch.setattr(current_session(), "scratch", {})
    monkeypatch.setattr(f"graphopt.ir.spilled.{place}", full)
    tensor = spilled.spill(WEIGHT.T)
    assert not spilled.is_memory_mapped(tensor.numpy())
    np.testing.assert_array_equal(tensor.numpy(), WEIGHT.T)
    np.testing.assert_array_equal(kept.numpy(), WEIGHT)


# -- weights that are folded -------------------------------------------------------------------------------------------

FOLDED = [
    "w1 = Transpose <perm = [1, 0]> (w)  w2 = Transpose <perm = [1, 0]> (w1)",
    "w1 = Reshape (w, wide)  w2 = Reshape (w1, shape)",
    "w1 = Unsqueeze (w, axis)  w2 = Squeeze (w1, axis)",
    "w1 = Mul (w, s)  w2 = Add (w1, t)",
    "w1 = Div (w, s)  w2 = Sub (w1, t)",
    "w1 = Neg (w)  w2 = Sqrt (w1)".replace("Sqrt", "Abs"),
    "w1 = Concat <axis = 1> (w, w)  w2 = Slice (w1, start, end, axes)",
    "w1 = Cast <to = 11> (w)  w2 = Cast <to = 1> (w1)",
    "w2 = Gather (w, rows)",
    "w1 = MatMul (w, square)  w2 = Identity (w1)",
]
SMALL: dict[str, NDArray[Any]] = {
    "s": np.linspace(1, 2, 512, dtype=np.float32),
    "t": np.linspace(-1, 1, 640, dtype=np.float32).reshape(640, 1),
    "wide": np.array([8, 80, 512]),
    "shape": np.array([640, 512]),
    "axis": np.array([0]),
    "start": np.array([512]),
    "end": np.array([1024]),
    "axes": np.array([1]),
    "rows": np.arange(639, -1, -1),
    "square": np.eye(512, dtype=np.float32) * 2,
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operators that `onnx.reference` was asked to compute of large arrays."""
    found: list[str] = []
    by_reference = node_evaluation._evaluate_by_reference

    def spied(node: Any, inputs: Any) -> Any:
        if any(array is not None and array.size >= WEIGHT.size for array in inputs):
            found.append(node.op)
        return by_reference(node, inputs)

    monkeypatch.setattr(node_evaluation, "_evaluate_by_reference", spied)
    return found


@pytest.mark.parametrize("nodes", FOLDED)
def test_no_large_weight_goes_through_the_reference(nodes: str, asked: list[str], tmp_path: Path) -> None:
    head = '<ir_version: 8, opset_import: ["": 18]> g (float[N, 640] x) => (float[N, 512] y)'
    proto = parse_model(f"{head} {{ {nodes}  y = MatMul (x, w2) }}")
    weights = {"w": WEIGHT, **SMALL}
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    result = graphopt.optimize(proto, cost="none", check=False)
    assert not asked
    assert {node.op_type for node in result.model.graph.node} <= {"MatMul", "Mul", "Add", "Gemm", "Div", "Sub", "Neg"}
    result.save(tmp_path / "y.onnx", external=True)
    x = RANDOM.standard_normal((2, 640)).astype(np.float32)
    expected = run(proto, {"x": x})["y"]
    for after in (result.model, onnx.load(tmp_path / "y.onnx")):
        np.testing.assert_allclose(run(after, {"x": x})["y"], expected, rtol=1e-4, atol=1e-3)


SCALED = """<ir_version: 8, opset_import: ["": 18]> g (float[N, 640] x) => (float[N, 512] y) {
    a = MatMul (x, w)  b = Mul (a, s)  c = Div (b, u)  y = Add (c, u) }"""


def test_a_weight_is_the_same_whether_it_is_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """In double precision, rounded once."""
    found = []
    for large, at_once in ((1 << 40, 1 << 22), (1 << 16, 1 << 16), (1 << 10, 1)):
        proto = parse_model(SCALED)
        weights = {"w": WEIGHT, "s": SMALL["s"], "u": SMALL["s"] * np.float32(1.7)}
        proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
        monkeypatch.setattr(spilled, "SPILL_BYTES", large)
        monkeypatch.setattr("graphopt.rewrite.folded_constants.CHUNK_BYTES", at_once)
        after = graphopt.optimize(proto, cost="none").model
        (weight,) = (t for t in after.graph.initializer if list(t.dims) == [640, 512])
        found.append(numpy_helper.to_array(weight))
    exact = WEIGHT * SMALL["s"].astype(np.float64) / (SMALL["s"] * np.float32(1.7)).astype(np.float64)
    np.testing.assert_allclose(found[0], exact, rtol=1e-6)
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()


def test_a_whole_number_of_a_rule_is_computed_with_a_large_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spilled, "SPILL_BYTES", 1 << 10)
    x, w = tensor("x", "M K"), const("w", "K N")
    product = x @ w
    doubled = Rule("double_weight_of_matmul", product + product, x @ (w * 2))
    proto = parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[4, 640] x) => (float[4, 512] y)'
        " { a = MatMul (x, w)  y = Add (a, a) }"
    )
    proto.graph.initializer.append(numpy_helper.from_array(WEIGHT, "w"))
    result = graphopt.optimize(proto, cost="none", rules=[doubled], only=["double_weight_of_matmul"], unverified=True)
    assert [node.op_type for node in result.model.graph.node] == ["MatMul"]
    (weight,) = result.model.graph.initializer
    np.testing.assert_array_equal(numpy_helper.to_array(weight), 2 * WEIGHT)
