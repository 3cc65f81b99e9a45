"""Stages that devices share: the folder, and pipelines of it, give what the model does, whichever worker is lost."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

import graphopt
from graphopt.base.errors import DifferenceError, MemoryBudgetError, StageError, UsageError
from graphopt.cli.main import app
from graphopt.partition import collectives
from graphopt.partition.manifest import MANIFEST, read_manifest
from tests import zoo
from tests.graphs import weight
from tests.test_partition import as_written, devices
from tests.text import parse

E = 16


def mlp(*, layers: int = 2) -> onnx.ModelProto:
    """Layers of an MLP with open batch, each of which needs one all-reduce."""
    weights: dict[str, Any] = {}
    body = []
    for n in range(layers):
        weights |= {f"w{n}": weight(E, 4 * E), f"b{n}": weight(4 * E), f"v{n}": weight(4 * E, E)}
        body.append(
            f"h{n} = MatMul(x{n}, w{n}); i{n} = Add(h{n}, b{n}); a{n} = Relu(i{n}); x{n + 1} = MatMul(a{n}, v{n})"
        )
    text = "; ".join(["x0 = Tanh(x)", *body, f"y = Neg(x{layers})"])
    return parse(f"float[batch,{E}] x", text, weights, outputs=f"float[batch,{E}] y", opset=20)


def check_pipeline(model: onnx.ModelProto, pipeline: graphopt.Pipeline, feeds: Mapping[str, Any]) -> None:
    session = as_written(model.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    for found in pipeline.stream([feeds] * 3):
        for name, expected in zip(names, session.run(names, dict(feeds)), strict=True):
            assert found[name].dtype == expected.dtype
            np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-4 * max(1.0, np.abs(expected).max()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers in two stages, each of which two devices share."""
    out = tmp_path_factory.mktemp("shared") / "out"
    graphopt.partition_model(mlp(), out, 2, tensor_parallel=2, threads=1, seconds=0.0)
    return out


def test_pipeline_json_tells_what_devices_compute_and_exchange(folder: Path) -> None:
    made = read_manifest(folder)
    assert [stage.device_count for stage in made.stages] == [2, 2]
    joins = [join for stage in made.stages for segment in stage.segments for join in segment.joins]
    assert [join.operation for join in joins] == [collectives.Operation.ALL_REDUCE] * 2
    for stage in made.stages:
        held = [sum(s.weight_bytes for part in stage.segments for s in part.shards if s.device == d) for d in (1, 2)]
        assert held[0] == held[1] == stage.weight_bytes / 2
    assert {*(name for stage in made.stages for name in stage.files), MANIFEST} == {p.name for p in folder.iterdir()}
    assert sum("is shared by 2 devices" in note and note.endswith("1 all-reduce") for note in made.notes) == 2


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_an_mlp_that_devices_share_is_the_model(workers: str, folder: Path) -> None:
    with graphopt.Pipeline(folder, workers, threads=1) as pipeline:
        check_pipeline(mlp(), pipeline, {"x": weight(3, E)})
        assert pipeline.run({"x": weight(6, E)}, micro_batch=2)["y"].shape == (6, E)
        assert len(pipeline.worker_pids) == (4 if workers == "processes" else 0)


@pytest.mark.parametrize(
    ("name", "stages", "count"),
    [("bert-torchscript-dynamic", 2, 2), pytest.param("resnet18-torchscript", 2, 4, marks=pytest.mark.slow)],
)
def test_exports_that_devices_share_are_the_model(name: str, stages: int, count: int, tmp_path: Path) -> None:
    model = zoo.load(name)
    made = graphopt.partition_model(model, tmp_path / "out", stages, tensor_parallel=count, threads=1, seconds=0.0)
    assert [stage.device_count for stage in made.stages] == [count] * stages
    with graphopt.Pipeline(tmp_path / "out", threads=1) as pipeline:
        check_pipeline(model, pipeline, zoo.inputs(model))


def test_one_stage_may_be_shared_and_a_stage_that_no_rule_splits_is_whole(tmp_path: Path) -> None:
    made = graphopt.partition_model(mlp(), tmp_path / "one", 1, tensor_parallel=2, threads=1, seconds=0.0)
    assert str(made).startswith("the model: 1 stage (1 thread")
    with graphopt.Pipeline(tmp_path / "one") as pipeline:
        check_pipeline(mlp(), pipeline, {"x": weight(2, E)})
    body = "a = Sin(x); b = Exp(a); c = Sin(b); d = Exp(c); h = MatMul(d, w); y = MatMul(h, v)"
    model = parse(
        f"float[64,{E}] x", body, {"w": weight(E, E), "v": weight(E, E)}, outputs=f"float[64,{E}] y", opset=20
    )
    made = graphopt.partition_model(model, tmp_path / "two", 2, tensor_parallel=2, max_transfer="1MB", seconds=0.0)
    with graphopt.Pipeline(tmp_path / "two") as pipeline:
        check_pipeline(model, pipeline, {"x": weight(64, E)})
    assert made.stages[0].file == "stage-1.onnx" and "stage 1 is run by one device" in "".join(made.notes)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_lost_device_of_a_stage_is_replaced(folder: Path) -> None:
    x = weight(2, E)
    with graphopt.Pipeline(folder, "processes", threads=1) as pipeline:
        expected = pipeline.run({"x": x})["y"]
        for number, found in enumerate(pipeline.stream({"x": x} for _ in range(40))):
            np.testing.assert_array_equal(found["y"], expected)
            if number % 10 == 5:
                os.kill(pipeline.worker_pids[number // 10], signal.SIGKILL)
        np.testing.assert_array_equal(pipeline.run({"x": x})["y"], expected)
        assert pipeline.replaced_workers >= 3


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_an_error_of_all_devices_answers_once_and_the_pipeline_goes_on(workers: str, folder: Path) -> None:
    good, bad = {"x": weight(2, E)}, {"x": weight(2, E + 1)}
    with graphopt.Pipeline(folder, workers, threads=1, in_flight=1) as pipeline:
        for _ in range(3):
            with pytest.raises(StageError, match=r"^stage 1 \(stage-1-device-\d-part-1\.onnx\) cannot be run: "):
                pipeline.run(bad)
            check_pipeline(mlp(), pipeline, good)
    with pytest.raises(StageError, match="the pipeline is closed"):
        pipeline.run(good)


def test_what_cannot_be_joined_is_an_error_of_its_request(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("no room for the sum")

    with graphopt.Pipeline(folder, threads=1) as pipeline:
        with monkeypatch.context() as patch:
            patch.setattr(collectives, "reduce", fail)
            with pytest.raises(StageError, match="MemoryError: no room for the sum"):
                pipeline.run({"x": weight(2, E)})
        check_pipeline(mlp(), pipeline, {"x": weight(2, E)})


def test_shards_that_compute_something_else_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "reduce", lambda _, parts: 1.01 * parts[0] + parts[1])
    with pytest.raises(DifferenceError, match="the stages make other values of output 'y' than the model"):
        graphopt.partition_model(mlp(), tmp_path / "out", 2, tensor_parallel=2, threads=1, seconds=0.0)
    assert not list(tmp_path.iterdir())


def test_devices_are_taken_in_groups_and_hold_their_share(tmp_path: Path) -> None:
    model, out = mlp(layers=8), tmp_path / "out"
    small = 'name = "small"\nmemory = "{}"\ncount = 2'
    tensors = (8 * (8 * E * E + 4 * E)) * 4
    half = devices(tmp_path, small.format(f"{tensors * 6 // 10 // 1000}KB"))
    made = graphopt.partition_model(model, out, devices=half, tensor_parallel=2, threads=1, seconds=0.0)
    assert [stage.device for stage in made.stages] == ["small-0, small-1"]
    third = devices(tmp_path, small.format(f"{tensors * 4 // 10 // 1000}KB"))
    with pytest.raises(MemoryBudgetError, match="does not fit"):
        graphopt.partition_model(model, tmp_path / "no", devices=third, tensor_parallel=2, threads=1, seconds=0.0)
    with pytest.raises(UsageError, match="2 devices cannot be taken 3 at a time"):
        graphopt.partition_model(model, tmp_path / "no", devices=third, tensor_parallel=3)
    unlike = devices(tmp_path, 'name = "a"\nmemory = "1GB"', 'name = "b"\nmemory = "1GB"\nprovider = "cuda"')
    with pytest.raises(UsageError, match="a, b cannot share a stage: their providers differ"):
        graphopt.partition_model(model, tmp_path / "no", devices=unlike, tensor_parallel=2)
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["out", "--stages", "1"], 2, "or shared by devices, and there is one device"),
        (["out", "--stages", "2", "--tensor-parallel", "9"], 2, "Invalid value for '--tensor-parallel'"),
        (["out", "--stages", "2", "--tensor-parallel", "0"], 2, "Invalid value for '--tensor-parallel'"),
        (["--annotate", "a.onnx", "--stages", "2", "--tensor-parallel", "2"], 2, "they go without --tensor-parallel"),
        (["out", "--stages", "1", "--tensor-parallel", "2"], 2, "no operator of the model is split by a proved rule"),
        (["-", "--stages", "2"], 2, "stages are not written to stdout: name a folder"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(parse("float[4] x", "a = Relu(x); y = Exp(a)", outputs="float[4] y", opset=20), "model.onnx")
    done = CliRunner().invoke(app, ["partition", "model.onnx", *arguments, "--quiet", "--seconds", "0"])
    assert (done.exit_code, done.stdout) == (code, "")
    assert said in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
