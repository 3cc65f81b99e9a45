"""Models in files: tensors, external data, and what is written."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from graphopt.base.errors import ModelError
from graphopt.io import onnx_io
from graphopt.io.weight_files import weight_path
from graphopt.ir.tensor import Tensor
from graphopt.operators import proto_conversion
from tests.test_onnx_io import CARRIED, model

# -- tensors -----------------------------------------------------------------------------------------------------------

ARRAYS: list[np.ndarray[Any, np.dtype[Any]]] = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.array([1.5, -0.0, np.nan, np.inf], np.float16),
    np.array(7, np.int64),
    np.zeros((2, 0, 3), np.float64),
    np.array([True, False]),
    np.array([1 + 2j], np.complex64),
    np.array([["a", "ü"]], object),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(array.dtype))
def test_tensors_come_back(array: np.ndarray[Any, np.dtype[Any]]) -> None:
    again = proto_conversion.tensor_from_proto(proto_conversion.tensor_to_proto(Tensor.from_array(array), "t"))
    assert again.shape == array.shape
    assert again.numpy().dtype == array.dtype
    assert again.numpy().tobytes() == array.tobytes() or array.dtype == object
    assert array.dtype != object or again.numpy().tolist() == array.tolist()


@pytest.mark.parametrize("kind", ["BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E5M2", "INT4", "UINT4", "INT2", "FLOAT4E2M1"])
@pytest.mark.parametrize("raw", [True, False])
def test_small_types_come_back(kind: str, raw: bool, tmp_path: Path) -> None:
    dtype = TensorProto.DataType.Value(kind)
    proto = helper.make_tensor("t", dtype, [3], [1, 0, 1])
    if raw:
        proto = numpy_helper.from_array(numpy_helper.to_array(proto), "t")
    tensor = proto_conversion.tensor_from_proto(proto)
    assert tensor.numpy().astype(np.float32).tolist() == [1, 0, 1]
    assert proto_conversion.tensor_to_proto(tensor, "t") == proto
    payload = b"".join(proto_conversion.raw_chunks(tensor))
    assert len(payload) == tensor.nbytes
    (tmp_path / "w").write_bytes(payload)
    outside = TensorProto(name="t", data_type=dtype, dims=[3], data_location=TensorProto.EXTERNAL)
    outside.external_data.add(key="location", value="w")
    assert proto_conversion.tensor_from_proto(outside, (tmp_path,)).numpy().astype(np.float32).tolist() == [1, 0, 1]


def test_a_tensor_that_holds_other_data() -> None:
    proto = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3], raw_data=bytes(8))
    with pytest.raises(ModelError, match=r"tensor 'w' FLOAT\[3\] holds other data"):
        proto_conversion.tensor_from_proto(proto).numpy()


# -- files -------------------------------------------------------------------------------------------------------------


def linear(size: int = 600) -> ModelProto:
    """y = x · w + b, with weights large enough to go to a file of their own."""
    proto = model(f"g (float[N, {size}] x) => (float[N, 2] y) {{ [mm] a = MatMul (x, w)  y = Add (a, b) }}")
    weights = np.arange(size * 2, dtype=np.float32).reshape(size, 2)
    proto.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    proto.graph.initializer.append(helper.make_tensor("b", TensorProto.FLOAT, [2], [1.0, 2.0]))
    return proto


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_save_and_load(tmp_path: Path, external: bool, again: bool) -> None:
    """In one file and in two, from each to each, also over itself."""
    path = tmp_path / "model.onnx"
    onnx_io.save_model(onnx_io.load_model(linear()), path, external=external)
    assert [*contents(tmp_path)] == (["model.onnx", "model.onnx.data"] if external else ["model.onnx"])
    onnx.checker.check_model(path)
    onnx_io.save_model(onnx_io.load_model(path), path, external=again)
    loaded = onnx.load(path)
    assert loaded.graph.node == linear().graph.node
    for tensor, original in zip(loaded.graph.initializer, linear().graph.initializer, strict=True):
        assert np.array_equal(numpy_helper.to_array(tensor), numpy_helper.to_array(original))


def test_the_largest_models_are_saved_in_two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_io, "MAX_INLINE_WEIGHT_BYTES", 4_000)
    onnx_io.save_model(onnx_io.load_model(linear(400)), tmp_path / "small.onnx")
    onnx_io.save_model(onnx_io.load_model(linear(600)), tmp_path / "large.onnx")
    assert [*contents(tmp_path)] == ["large.onnx", "large.onnx.data", "small.onnx"]


def test_one_file_holds_the_same_message_as_to_proto(tmp_path: Path) -> None:
    for number, text in enumerate(CARRIED.values()):
        path = tmp_path / f"{number}.onnx"
        loaded = onnx_io.load_model(model(text))
        onnx_io.save_model(loaded, path)
        assert onnx.load(path) == onnx_io.to_proto(loaded)


def test_shared_external_data_is_written_once(tmp_path: Path) -> None:
    onnx_io.save_model(onnx_io.load_model(linear()), tmp_path / "model.onnx", external=True)
    proto = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    proto.graph.initializer.add().CopyFrom(proto.graph.initializer[0])
    proto.graph.initializer[-1].name = "tied"
    proto.graph.output.add(name="tied")
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    onnx_io.save_model(onnx_io.load_model(tmp_path / "model.onnx"), tmp_path / "again.onnx", external=True)
    assert (tmp_path / "again.onnx.data").stat().st_size == (tmp_path / "model.onnx.data").stat().st_size


OUTSIDE = {
    "nothing.data": "No such file or directory",
    "../w.data": "outside the model's folder",
    "/etc/hostname": "outside the model's folder",
    "folder/../../w.data": "outside the model's folder",
    "link.data": "outside the model's folder",
    "": "outside the model's folder",
    "a\0b": "outside the model's folder",
}


@pytest.mark.parametrize(("location", "message"), OUTSIDE.items())
def test_external_data_outside_the_folder(tmp_path: Path, location: str, message: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "w.data").write_bytes(bytes(4800))
    (folder / "link.data").symlink_to(tmp_path / "w.data")
    with pytest.raises(ModelError) as caught:
        onnx_io.load_model(elsewhere(folder, location))
    assert "tensor 'w'" in str(caught.value)
    assert message in str(caught.value)


def elsewhere(folder: Path, location: str, **place: int) -> Path:
    """A model file whose weights are said to lie at a location."""
    proto = linear()
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **place}.items():
        tensor.external_data.add(key=key, value=str(value))
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_a_link_into_the_store_of_a_hub(tmp_path: Path) -> None:
    """Model hubs keep files under their hashes and link to them: model and weights then lie in one other folder."""
    store, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    store.mkdir()
    snapshot.mkdir()
    (store / "1").write_bytes(bytes(4800))
    elsewhere(store, "w.data").rename(store / "2")
    (snapshot / "w.data").symlink_to(store / "1")
    (snapshot / "model.onnx").symlink_to(store / "2")
    assert onnx_io.load_model(snapshot / "model.onnx").graph.operator_counts() == {"MatMul": 1, "Add": 1}


@pytest.mark.parametrize(
    ("size", "place", "message"),
    [
        (4799, {}, "needs bytes 0 to 4800 of"),
        (4800, {"offset": 1}, "needs bytes 1 to 4801 of"),
        (4800, {"offset": -1}, "needs bytes -1 to 4799 of"),
        (4800, {"length": 4000}, "needs 4800 bytes, but states 4000 bytes of"),
    ],
)
def test_external_data_of_the_wrong_size(tmp_path: Path, size: int, place: dict[str, int], message: str) -> None:
    (tmp_path / "w.data").write_bytes(bytes(size))
    with pytest.raises(ModelError) as caught:
        onnx_io.load_model(elsewhere(tmp_path, "w.data", **place))
    assert "tensor 'w'" in str(caught.value)
    assert message in str(caught.value)
    assert str(tmp_path / "w.data") in str(caught.value)


def test_external_data_that_changes_under_the_model(tmp_path: Path) -> None:
    (tmp_path / "w.data").write_bytes(bytes(4800))
    loaded = onnx_io.load_model(elsewhere(tmp_path, "w.data"))
    (tmp_path / "w.data").write_bytes(bytes(4900))
    with pytest.raises(ModelError, match="has changed since the model was loaded"):
        onnx_io.save_model(loaded, tmp_path / "new.onnx")
    assert [*contents(tmp_path)] == ["model.onnx", "w.data"]


def test_a_message_with_external_data_needs_a_folder(tmp_path: Path) -> None:
    (tmp_path / "w.data").write_bytes(bytes(4800))
    proto = onnx.load(elsewhere(tmp_path, "w.data"), load_external_data=False)
    with pytest.raises(ModelError, match="load the model by its path"):
        onnx_io.load_model(proto)
    assert onnx_io.to_proto(onnx_io.load_model(proto, folder=tmp_path)) == proto


def test_new_weights_are_named_by_their_digest_holes_and_all(tmp_path: Path) -> None:
    weights, target = tmp_path / "weights", tmp_path / "model.onnx"
    with weights.open("wb") as file:
        file.write(b"begins")
        file.seek(3 << 20)
        file.write(b"ends")
    target.touch()  # somebody may have read it
    digest = sha256(weights.read_bytes()).hexdigest()
    with weights.open("rb") as file:
        assert weight_path(target, file) == tmp_path / f"model.onnx.{digest[:12]}.data"
