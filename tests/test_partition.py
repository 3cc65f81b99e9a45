"""Models cut into stages: together they are the model, and their folder is complete or absent."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, parser
from typer.testing import CliRunner, Result

import graphopt
from graphopt.base import files
from graphopt.base.errors import DifferenceError, MemoryBudgetError, ModelError, OutputError, UsageError
from graphopt.cli.main import app
from graphopt.io import onnx_io
from graphopt.operators.inference import infer_graph
from graphopt.partition import annotation, pipeline_folder
from graphopt.partition.cut import CuttableGraph
from graphopt.partition.manifest import MANIFEST, PipelineManifest, read_manifest
from tests import zoo
from tests.fuzz import legal
from tests.text import parse

Arrays = Mapping[str, NDArray[Any]]
Case = tuple[onnx.ModelProto, Arrays]
RNG = np.random.default_rng(0)


def normal(*shape: int) -> NDArray[np.float32]:
    return RNG.standard_normal(shape).astype(np.float32)


def chain(*, length: int = 6, width: int = 8) -> onnx.ModelProto:
    """Products one behind the other, each with weights of its own, and a residual that skips the middle."""
    weights = {f"w{layer}": normal(width, width) for layer in range(length)}
    nodes = [f"h{layer + 1} = MatMul(h{layer}, w{layer})" for layer in range(length)]
    body = "; ".join(["h0 = Relu(x)", *nodes, f"y = Add(h{length}, h1)"])
    return parse(f"float[batch,{width}] x", body, weights, outputs=f"float[batch,{width}] y")


def fixture(name: str) -> Case:
    model = zoo.load(name)
    return model, zoo.inputs(model)


def cached() -> Case:
    """Two layers of a decoder, each with a cache of keys that it returns longer by one."""
    layer = "k{n} = MatMul(h{n}, w{n}); l{n} = Concat<axis=0>(c{n}, k{n}); t{n} = Transpose(l{n}); "
    layer += "s{n} = MatMul(h{n}, t{n}); p{n} = Softmax(s{n}); o{n} = MatMul(p{n}, l{n}); h{m} = Add(h{n}, o{n})"
    body = "; ".join(["h0 = Tanh(x)", *(layer.format(n=n, m=n + 1) for n in range(2)), "y = Relu(h2)"])
    outputs = "float[1,8] y, float[longer,8] l0, float[longer,8] l1"
    model = parse(
        "float[1,8] x, float[past,8] c0, float[past,8] c1",
        body,
        {"w0": normal(8, 8), "w1": normal(8, 8)},
        outputs=outputs,
    )
    return model, {"x": normal(1, 8), "c0": normal(5, 8), "c1": normal(5, 8)}


def with_if() -> Case:
    """An If whose branches capture what earlier stages make, a weight and an input."""
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 18]>
        net (float[2,4] x, bool flag) => (float[2,4] y) <float[4] w = {1.0, 2.0, 3.0, 4.0}> {
            a = Relu(x)
            b = Mul(a, w)
            c = Exp(b)
            d = If(flag) <
                then_branch = yes () => (float[2,4] t) { t0 = Add(a, w)  t = Mul(t0, c) },
                else_branch = no () => (float[2,4] e) { e = Sub(b, x) }
            >
            f = Neg(d)
            y = Add(f, a)
        }""")
    return model, {"x": normal(2, 4), "flag": np.array(True)}


def with_loop() -> Case:
    """A Loop that carries a value and captures another."""
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 18]>
        net (float[4] x) => (float[4] y, float[3,4] all) <int64 n = {3}, bool go = {1}> {
            a = Relu(x)
            b = Exp(a)
            c, all = Loop(n, go, b) <
                body = step (int64 i, bool k, float[4] s) => (bool k2, float[4] s2, float[4] o) {
                    k2 = Identity(k)  s2 = Add(s, a)  o = Neg(s2)
                }
            >
            d = Neg(c)
            y = Add(d, b)
        }""")
    return model, {"x": normal(4)}


def with_functions() -> Case:
    """Calls of a local function, and outputs of which one is made early."""
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 18, "mine" : 1]>
        net (float[3] x) => (float[3] early, float[3] y) {
            a = mine.twice(x)
            early = Neg(a)
            b = mine.twice(a)
            c = mine.twice(b)
            y = Add(c, x)
        }
        <domain: "mine", opset_import: ["" : 18]>
        twice (v) => (w) { w = Add(v, v) }""")
    return model, {"x": normal(3)}


def with_shared_weights() -> Case:
    """A table that the first and the last layer read, stored transposed for one of them, and an overridable weight."""
    body = (
        "e = Gather(table, ids); h = MatMul(e, w); r = Relu(h); g = Add(r, b); t = Transpose(table); y = MatMul(g, t)"
    )
    weights = {"table": normal(16, 8), "w": normal(8, 8), "b": normal(8)}
    model = parse("int64[3] ids, float[8] b", body, weights, outputs="float[3,16] y")
    return model, {"ids": np.array([1, 5, 2]), "b": normal(8)}


def quantized() -> Case:
    """Weights in eight bits, dequantized in front of each product."""
    weights = {f"q{n}": RNG.integers(-9, 9, (8, 8)).astype(np.int8) for n in range(3)}
    weights |= {"s": np.array(0.1, np.float32), "z": np.array(0, np.int8)}
    layer = "d{n} = DequantizeLinear(q{n}, s, z); h{m} = MatMul(h{n}, d{n})"
    body = "; ".join(["h0 = Relu(x)", *(layer.format(n=n, m=n + 1) for n in range(3)), "y = Relu(h3)"])
    return parse("float[2,8] x", body, weights, outputs="float[2,8] y"), {"x": normal(2, 8)}


CASES: Mapping[str, Callable[[], Case]] = {
    "a cache": cached,
    "If": with_if,
    "Loop": with_loop,
    "local functions": with_functions,
    "shared weights": with_shared_weights,
    "quantized": quantized,
    "a residual": lambda: (chain(), {"x": normal(2, 8)}),
    **{
        name: (lambda name=name: fixture(name))  # type: ignore[misc]
        for name in ("resnet18-dynamo", "bert-dynamo", "gpt2-torchscript-dynamic", "swin-dynamo", "llama-torchscript")
    },
}


def as_written(path: Path | bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(
        path if isinstance(path, bytes) else str(path), options, providers=["CPUExecutionProvider"]
    )


def composed(folder: Path, manifest: PipelineManifest, feeds: Arrays) -> dict[str, Any]:
    """What the stages make of inputs, by nothing but what pipeline.json says."""
    values = dict(feeds)
    for stage in manifest.stages:
        session = as_written(folder / stage.file)
        taken = (*session.get_inputs(), *session.get_overridable_initializers())
        assert {each.name for each in stage.inputs} == {each.name for each in taken}
        names = [each.name for each in stage.outputs]
        given = {each.name: values[each.name] for each in stage.inputs if each.name in values}
        values |= dict(zip(names, session.run(names, given), strict=True))
    return values


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("name", CASES)
def test_the_stages_are_the_model_bit_for_bit(name: str, stages: int, tmp_path: Path) -> None:
    model, feeds = CASES[name]()
    made = graphopt.partition_model(model, tmp_path / "out", stages, threads=1, seconds=0.0)
    assert read_manifest(tmp_path / "out") == made
    assert len(made.stages) == stages and made.is_measured and all(stage.seconds > 0 for stage in made.stages)
    session = as_written(model.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    assert [output.name for output in made.outputs] == names
    values = composed(tmp_path / "out", made, feeds)
    for output, expected in zip(names, session.run(names, feeds), strict=True):
        assert values[output].dtype == expected.dtype and values[output].tobytes() == expected.tobytes(), output
    for stage in made.stages:
        if all(value.dims is not None for value in (*stage.inputs, *stage.outputs)):  # the checker wants ranks there
            onnx.checker.check_model(tmp_path / "out" / stage.file, full_check=True)


def test_pipeline_json_says_what_goes_where(tmp_path: Path) -> None:
    made = graphopt.partition_model(chain(length=8, width=64), tmp_path / "out", 3, threads=1, seconds=0.0)
    first, second, third = made.stages
    assert [value.name for value in made.inputs] == ["x"] and made.inputs[0].dims == ("batch", 64)
    assert made.sizes == {"batch": made.sizes["batch"]}
    skipping = next(transfer for transfer in made.transfers if transfer.value.name == "h1")
    assert (skipping.source, skipping.targets, skipping.passed_by) == (1, (3,), (2,))
    assert "h1" not in second.received and "h1" in third.received and third.returned == ("y",)
    assert first.bytes_out == second.bytes_out == 2 * 64 * 4 * made.sizes["batch"]
    assert any("'h1' go past stage 2" in note for note in made.notes)
    data = json.loads((tmp_path / "out" / MANIFEST).read_text())
    assert data["schema_version"] == 1 and data["stages"][0]["digest"] == first.digest
    assert sum(stage.weight_bytes for stage in made.stages) == 8 * 64 * 64 * 4


def cuttable(model: onnx.ModelProto) -> CuttableGraph:
    graph = onnx_io.load_model(model).graph
    infer_graph(graph)
    return CuttableGraph(graph, graph)


def test_what_is_computed_from_weights_is_copied_unless_it_is_small() -> None:
    weights = {"large": normal(64, 64), "rows": np.array([1, 2])}
    body = "t = Transpose(large); r = Gather(large, rows); a = MatMul(x, t); b = MatMul(r, a); y = MatMul(b, t)"
    whole = cuttable(parse("float[64,64] x", body, weights, outputs="float[2,64] y"))
    copied = {whole.graph[vertex].op for vertex in whole.copied}
    assert copied == {"Transpose", "Gather"}
    weights["large"] = normal(2048, 64)
    body = "r = Gather(large, rows); a = Relu(x); b = MatMul(a, r); y = Relu(b)"
    whole = cuttable(parse("float[3,2] x", body, weights, outputs="float[3,64] y"))
    assert not whole.copied, "512 bytes are sent rather than a table of half a megabyte held twice"


def test_weights_in_files_of_their_own_come_along(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(chain(width=32), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    feeds = {"x": normal(2, 32)}
    made = graphopt.partition_model(path, tmp_path / "out", 2, threads=1, seconds=0.0)
    (expected,) = as_written(path).run(["y"], feeds)
    assert composed(tmp_path / "out", made, feeds)["y"].tobytes() == expected.tobytes()


def test_a_model_that_cannot_be_run_is_cut_by_an_estimate(tmp_path: Path) -> None:
    model = parse("float[2,4] x", "a = Relu(x); b = Exp(a); c = Neg(b); y = Tanh(c)", outputs="float[2,4] y")
    model.graph.node[1].domain = "unknown.domain"
    model.opset_import.add(domain="unknown.domain", version=1)
    model.graph.value_info.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, [2, 4]))
    made = graphopt.partition_model(model, tmp_path / "out", 2, seconds=0.0)
    assert not made.is_measured and made.notes[0].startswith("not measured, but estimated: ")
    ops = [node.op_type for stage in made.stages for node in onnx.load(tmp_path / "out" / stage.file).graph.node]
    assert ops == ["Relu", "Exp", "Neg", "Tanh"]


# -- devices -----------------------------------------------------------------------------------------------------------

LINK = '[link]\nlatency = "10us"\nbandwidth = "10GB/s"\n'


def devices(folder: Path, *described: str) -> Path:
    path = folder / "devices.toml"
    path.write_text("".join(f"[[device]]\n{text}\n" for text in described) + LINK, encoding="utf-8")
    return path


def test_each_device_has_as_much_as_it_does_and_holds(tmp_path: Path) -> None:
    model = chain(length=12, width=256)
    slow, fast = 'name = "slow"\nmemory = "1GB"', 'name = "fast"\nmemory = "1GB"\nspeed = 5.0'
    made = graphopt.partition_model(
        model, tmp_path / "a", devices=devices(tmp_path, slow, fast), threads=1, seconds=0.0
    )
    assert [stage.device for stage in made.stages] == ["slow", "fast"]
    assert made.stages[1].nodes > 2 * made.stages[0].nodes
    small = 'name = "small"\nmemory = "600KB"'
    made = graphopt.partition_model(
        model, tmp_path / "b", devices=devices(tmp_path, small, fast), threads=1, seconds=0.0
    )
    assert made.stages[0].weight_bytes <= 600_000
    with pytest.raises(MemoryBudgetError, match="does not fit into the 2 devices"):
        graphopt.partition_model(model, tmp_path / "c", devices=devices(tmp_path, small, small.replace("sm", "t")))
    assert not (tmp_path / "c").exists()


# -- the folder --------------------------------------------------------------------------------------------------------


def test_a_folder_is_complete_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"

    def full(*_: object) -> str:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pipeline_folder, "stage_digest", full)
        with pytest.raises(OutputError, match="out cannot be written: No space left on device"):
            graphopt.partition_model(chain(), out, 2, seconds=0.0)
    assert list(tmp_path.iterdir()) == []
    with monkeypatch.context() as patch:
        patch.setattr(pipeline_folder, "run_stage", lambda session, values: {"y": normal(2, 8)})
        with pytest.raises(DifferenceError, match="other bits of output 'y'"):
            graphopt.partition_model(chain(), out, 2, seconds=0.0)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_has_left_is_removed_by_the_next(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from graphopt.base import files\n"
        "with files.temporary_folder_for(Path(sys.argv[1])) as part: (part / 'a').touch(); os._exit(1)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "out")], check=False)
    (left,) = tmp_path.iterdir()
    with files.temporary_folder_for(tmp_path / "out") as part:
        assert not left.exists()
        with files.temporary_folder_for(tmp_path / "out") as other:
            assert part.exists() and other.exists(), "that of a living run stays"
            (part / "a").touch()
            part.rename(tmp_path / "away")
        assert not other.exists()
        (tmp_path / "away").rename(part)
        (tmp_path / "out").rmdir()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a"]


# -- the command line --------------------------------------------------------------------------------------------------


def run(*args: object) -> Result:
    return CliRunner().invoke(app, ["partition", *map(str, args)])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(chain(), path)
    return path


def test_the_command_prints_a_table(model: Path, tmp_path: Path) -> None:
    done = run(model, tmp_path / "out", "--stages", 2, "--threads", 1, "--seconds", 0, "--dim", "batch=4")
    assert done.exit_code == 0, done.output
    assert "2 stages, the largest" in done.stdout and "(1 thread, batch=4)" in done.stdout
    assert "copies of it serve" in done.stdout
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [MANIFEST, "stage-1.onnx", "stage-2.onnx"]
    done = run(model, tmp_path / "json", "--stages", 2, "--seconds", 0, "--json")
    assert json.loads(done.stdout) == json.loads((tmp_path / "json" / MANIFEST).read_text())


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["out"], 2, "say how many stages there are to be, or name a file of devices: one of the two"),
        (["out", "--stages", "0"], 2, "Invalid value for '--stages'"),
        (["out", "--stages", "9"], 2, "has 8 nodes, which cannot be 9 stages"),
        (["--stages", "2"], 2, "name a folder for the stages, or with --annotate one file: one of the two"),
        (["out", "--stages", "2", "--annotate", "a.onnx"], 2, "one of the two"),
        (["out", "--stages", "2", "--max-transfer", "7 bytes"], 2, "'7 bytes' is no size of memory"),
        (["out", "--stages", "2", "--max-transfer", "1B"], 2, "stages that send 1 B at most: "),
        (["out", "--devices", "no.toml"], 2, "no.toml cannot be read: No such file or directory"),
        (["out", "--stages", "2", "--dim", "batch=1,2"], 2, "times are known for one size of each dim: give one"),
        (["out", "--stages", "2", "--dim", "width=1"], 2, "width"),
        (["model.onnx", "--stages", "2"], 1, "model.onnx is there already: remove it, or name another folder"),
        (["no/out", "--stages", "2"], 1, "no/out cannot be written: no is missing"),
        (["--annotate", "-", "--stages", "2"], 2, "an annotated model is not written to stdout: name a file"),
    ],
)
def test_bad_input_is_one_line(
    model: Path, arguments: list[str], code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    done = run("model.onnx", *arguments, "--quiet")
    assert (done.exit_code, done.stdout) == (code, "")
    assert said in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert [path.name for path in model.parent.iterdir()] == ["model.onnx"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stages": 10**7}, "into 256 stages at most, not 10,000,000"),
        ({"stages": 0}, "two stages or more"),
        ({"stages": 2, "threads": -1}, "threads cannot be -1: it is 0 or more"),
        ({"stages": 2, "seconds": -1.0}, "seconds cannot be -1.0: it is 0 or more"),
        ({"stages": 2, "seconds": float("nan")}, "seconds cannot be nan: it is 0 or more"),
        ({"stages": 2, "max_transfer": -5}, "'-5' is no size of memory"),
        ({"stages": 2, "tensor_parallel": 9}, "9 devices cannot share a stage: 1 to 8 can"),
    ],
)
def test_wrong_numbers_are_refused_from_python(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        graphopt.partition_model(chain(), tmp_path / "out", **options)
    assert not list(tmp_path.iterdir())


def test_layers_are_annotated_for_onnxruntime(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "annotated.onnx"
    done = run(model, "--stages", 2, "--annotate", target, "--seconds", 0)
    assert done.exit_code == 0, done.output
    assert (
        'options.add_session_config_entry("session.layer_assignment_settings", "cpu(=stage-1, =stage-2)")'
        in done.stdout
    )
    noted = [{entry.key: entry.value for entry in node.metadata_props} for node in onnx.load(target).graph.node]
    labels = [props["layer_ann"] for props in noted]
    assert labels == sorted(labels) and {*labels} == {"stage-1", "stage-2"}
    text = annotation.check_annotations(target, ["cpu", "cpu"])
    assert text == "" or "does not know layer annotations" in text
    assert annotation.assignment_setting(["cuda", "cpu", "cuda"]) == "cuda(=stage-1, =stage-3); cpu(=stage-2)"
    assert annotation.assignment_setting(["openvino"]) == "OpenVINOExecutionProvider(=stage-1)"
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        assert "not checked" in annotation.check_annotations(target, ["cuda", "cpu"])


def test_a_folder_that_was_changed_is_refused(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    graphopt.partition_model(model, out, 2, seconds=0.0)
    with pytest.raises(UsageError, match="holds no pipeline"):
        graphopt.Pipeline(tmp_path)
    (out / "stage-2.onnx").write_bytes((out / "stage-1.onnx").read_bytes())
    with pytest.raises(UsageError, match="it was changed"):
        graphopt.Pipeline(out)
    (out / "stage-2.onnx").unlink()
    with pytest.raises(UsageError, match=r"names the stage stage-2\.onnx, which is not beside it"):
        graphopt.Pipeline(out)
    (out / MANIFEST).write_text('{"schema_version": 7}')
    with pytest.raises(UsageError, match="it has version 7, not 1"):
        graphopt.Pipeline(out)


# -- models of all kinds -----------------------------------------------------------------------------------------------


def test_dead_nodes_are_left_out_and_told(tmp_path: Path) -> None:
    body = "a = Relu(x); dead = Exp(a); deader = Neg(dead); y = Tanh(a)"
    made = graphopt.partition_model(
        parse("float[2,4] x", body, outputs="float[2,4] y"), tmp_path / "out", 2, threads=1, seconds=0.0
    )
    assert [stage.nodes for stage in made.stages] == [1, 1]
    assert made.notes[0] == "2 nodes on which no output depends are left out"


def test_half_precision_may_be_rounded_where_a_stage_ends(tmp_path: Path) -> None:
    body = "a = Cast<to=10>(x); b = Sin(a); c = Exp(b); d = Sin(c); e = Exp(d); y = Cast<to=1>(e)"
    model = parse("float[64,64] x", body, outputs="float[64,64] y")
    made = graphopt.partition_model(model, tmp_path / "out", 3, threads=1, seconds=0.0)
    feeds = {"x": normal(64, 64)}
    (expected,) = as_written(model.SerializeToString()).run(["y"], feeds)
    np.testing.assert_allclose(composed(tmp_path / "out", made, feeds)["y"], expected, rtol=2e-2)
    told = [note for note in made.notes if "half precision goes between stages" in note]
    is_sent = any(transfer.value.type == "FLOAT16" for transfer in made.transfers)
    assert is_sent and told == ["'y' may be rounded otherwise: half precision goes between stages"]


BATCH = 8
"""Seeds of a test: most models are drawn, cut and compared in some hundredths of a second."""


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(BATCH, 400, BATCH))]
)
def test_random_models_are_their_stages(first: int, tmp_path: Path) -> None:
    """Every bit is compared by `partition_model`; refused are models of one node, and those that nothing can write."""
    measured, refused = 0, list[str]()
    for seed in range(first, first + BATCH):
        try:
            made = graphopt.partition_model(legal.draw(seed).proto, tmp_path / str(seed), 2, threads=1, seconds=0.0)
            measured += made.is_measured
        except (UsageError, ModelError) as error:
            refused.append(str(error))
    assert measured >= BATCH / 2
    assert all(re.search("which cannot be 2 stages|cannot be written in opset", said) for said in refused), refused
