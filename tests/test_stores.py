"""Models in the caches of model hubs: the model and its weights are links into a folder of blobs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from typer.testing import CliRunner

import graphopt
from graphopt.base.errors import ModelError
from graphopt.check.compare import compare_models
from graphopt.check.verdict import EqualityVerdict
from graphopt.cli.main import app
from graphopt.io import onnx_io
from graphopt.runtime.oracle import RunnableModel, onnx_reference
from tests.text import parse

LOCATION = "model.onnx_data"


def write(folder: Path) -> Path:
    """A model with its weights in another file."""
    proto = parse(
        "float[N,64] x", "a = MatMul(x, w); b = Identity(a); c = Add(b, v); y = Relu(c)", outputs="float[N,64] y"
    )
    values = np.random.default_rng(0).standard_normal((65, 64)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(values[:64], "w"))
    proto.graph.initializer.append(numpy_helper.from_array(values[64], "v"))
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(proto, folder / "model.onnx", save_as_external_data=True, location=LOCATION, size_threshold=0)
    return folder / "model.onnx"


def store(folder: Path, *, inner: str = "onnx") -> Path:
    """The same as a hub lays it out: `snapshots/<revision>/onnx/model.onnx -> ../../../blobs/<hash>`."""
    blobs, snapshot = folder / "blobs", folder / "snapshots" / "5e1f" / inner
    snapshot.mkdir(parents=True)
    write(blobs)
    for name, digest in (("model.onnx", "0a1b"), (LOCATION, "2c3d")):
        (blobs / name).rename(blobs / digest)
        (snapshot / name).symlink_to(os.path.relpath(blobs / digest, snapshot))
    return snapshot / "model.onnx"


def run(*args: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [str(arg) for arg in args])
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize("inner", ["onnx", "."])
def test_a_model_in_a_store_is_optimized_and_checked(tmp_path: Path, inner: str) -> None:
    path = store(tmp_path, inner=inner)
    for external in (False, True):
        result = graphopt.optimize(path, cost="none")
        assert result.ok, result.report.comparison
        result.save(tmp_path / "out.onnx", external=external)
        assert compare_models(path, tmp_path / "out.onnx").verdict is EqualityVerdict.EQUAL


def test_a_model_in_a_store_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHOPT_CACHE", str(tmp_path / "cache"))
    code, printed, said = run(store(tmp_path), tmp_path / "out.onnx", "--seconds", 2, "--threads", 1, "--json")
    assert code == 0, said
    report = json.loads(printed)
    assert report["timing"] is not None
    assert "cannot be loaded" not in printed


@pytest.mark.parametrize("command", [["bench", "--seconds", "0"], ["compare"], ["inspect"], ["inspect", "--profile"]])
def test_a_model_in_a_store_is_shown_and_run(tmp_path: Path, command: list[str]) -> None:
    path = store(tmp_path)
    code, _, said = run(command[0], *[path] * (2 if command[0] in ("bench", "compare") else 1), *command[1:])
    assert code == 0, said


def test_a_store_is_read_by_the_reference_too(tmp_path: Path) -> None:
    feeds = {"x": np.ones((1, 64), np.float32)}
    path = store(tmp_path)
    with onnx_reference(RunnableModel(path)) as session:
        (found,) = session.run(feeds)
    weights = [
        node.data.numpy() for _, node in onnx_io.load_model(path).graph.vertices_and_nodes() if node.data is not None
    ]
    expected = feeds["x"] @ weights[0] + weights[1]
    np.testing.assert_allclose(found, np.maximum(expected, 0), rtol=1e-5)


def test_data_in_its_own_folder_and_in_the_store_is_found(tmp_path: Path) -> None:
    path = store(tmp_path)
    proto = onnx.load(path, load_external_data=False)
    bias = proto.graph.initializer[1]
    values = onnx_io.load_model(path).graph
    held = next(
        node.data.numpy() for _, node in values.vertices_and_nodes() if node.names == ("v",) and node.data is not None
    )
    (path.parent / "bias").mkdir()
    (path.parent / "bias" / "v").write_bytes(held.tobytes())
    del bias.external_data[:]
    bias.external_data.add(key="location", value="bias/v")
    path.write_bytes(proto.SerializeToString())  # into the blob
    assert path.is_symlink()
    message, folder = RunnableModel(path).resolve_external_data()
    assert folder == tmp_path.resolve()
    assert {tensor.external_data[0].value for tensor in message.graph.initializer} == {
        "blobs/2c3d",
        "snapshots/5e1f/onnx/bias/v",
    }
    result = graphopt.optimize(path, cost="none")
    assert result.ok


# -- what is no store --------------------------------------------------------------------------------------------------


def outside(path: Path) -> None:
    with pytest.raises(ModelError, match=f"'{LOCATION}', outside the model's folder"):
        onnx_io.load_model(path)


def test_a_file_may_not_link_to_weights_elsewhere(tmp_path: Path) -> None:
    """Somebody else's model file could name any file of this machine as its weights."""
    path = store(tmp_path)
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    outside(path)


def test_a_link_into_one_folder_may_not_have_weights_in_another(tmp_path: Path) -> None:
    path = store(tmp_path)
    for other in ("other", "blobs/deeper"):
        (tmp_path / other).mkdir()
        (tmp_path / other / "2c3d").write_bytes((tmp_path / "blobs" / "2c3d").read_bytes())
        weights = path.with_name(LOCATION)
        weights.unlink()
        weights.symlink_to(tmp_path / other / "2c3d")
        outside(path)
