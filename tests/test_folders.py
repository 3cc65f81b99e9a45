"""Folders of models: each is optimized, all else stays as it is, and what fails is told and stops nothing."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import ModelProto
from typer.testing import CliRunner, Result

import graphopt
from graphopt import folders
from graphopt.base.errors import DifferenceError, ModelError, OutputError, UsageError
from graphopt.cli.main import app
from graphopt.folders import FolderResult, ModelOutcome
from tests.text import parse

WEIGHTS: dict[str, NDArray[Any]] = {"w": np.arange(512, dtype=np.float32).reshape(8, 64) / 512}
CONFIGS = {"config.json": '{"model_type": "bert"}', "tokenizer.json": "{}", "1_Pooling/config.json": "{}"}


def small(body: str = "i = Identity(x); m = MatMul(i, w); y = Relu(m)", batch: str = "batch_size") -> ModelProto:
    return parse(f"float[{batch},8] x", body, WEIGHTS, outputs=f"float[{batch},64] y")


def save(path: Path, model: ModelProto | None = None, data: str = "") -> None:
    """Write a model, its weights to another file where that is named, as exporters do."""
    path.parent.mkdir(parents=True, exist_ok=True)
    given = small() if model is None else model
    onnx.save(given, path, save_as_external_data=bool(data), location=data or None, size_threshold=0)


def operators(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["optimize", *map(str, arguments), "--cost", "none"])


def optimized(folder: Path, output: Path | None = None, **options: Any) -> FolderResult:
    return graphopt.optimize_folder(folder, output, **{"cost": "none", **options})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as transformers.js and sentence-transformers lay it out."""
    made = tmp_path / "bert"
    for name, text in CONFIGS.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text)
    save(made / "onnx" / "model.onnx")
    save(made / "onnx" / "model_quantized.onnx", small("i = Identity(x); m = MatMul(i, w); y = Neg(m)"))
    return made


# -- beside the models -------------------------------------------------------------------------------------------------


def test_results_stand_beside_their_models_and_all_else_stays(folder: Path) -> None:
    before = contents(folder)
    done = run(folder)
    assert done.exit_code == 0, done.output
    after = contents(folder)
    assert after.keys() - before.keys() == {"onnx/model_graphopt.onnx", "onnx/model_quantized_graphopt.onnx"}
    assert before.items() <= after.items()
    assert operators(folder / "onnx" / "model_graphopt.onnx") == ["MatMul", "Relu"]
    head, *rows, _, last = done.stdout.splitlines()
    assert head.split() == ["model", "nodes", "size", "speed", "check", "verdict"]
    assert [row.split()[:4] for row in rows] == [
        [f"onnx/{name}.onnx", "3", "→", "2"] for name in ("model", "model_quantized")
    ]
    assert last == "2 models optimized, beside them, as NAME_graphopt.onnx"


def test_what_was_written_before_is_skipped_and_written_anew(folder: Path) -> None:
    optimized(folder)
    shutil.copy(folder / "onnx" / "model_graphopt.onnx", folder / "onnx" / "renamed.onnx")
    found = {each.model: each for each in optimized(folder).models}
    assert found["onnx/model.onnx"].written == "onnx/model_graphopt.onnx"
    assert found["onnx/model_graphopt.onnx"].skipped == "written by graphopt, by its name"
    assert found["onnx/renamed.onnx"].skipped.startswith("written by graphopt 0")
    assert {each.verdict for each in found.values()} == {"not timed", "skipped"}
    assert str(optimized(folder)).endswith("2 models optimized, beside them, as NAME_graphopt.onnx; 3 skipped")


def test_models_of_a_hub_s_cache_are_links_and_their_targets_stay(folder: Path, tmp_path: Path) -> None:
    save(folder / "onnx" / "model.onnx", data="model.onnx_data")
    blobs, snapshot = tmp_path / "cache" / "blobs", tmp_path / "cache" / "snapshots" / "4f2a"
    blobs.mkdir(parents=True)
    for number, (name, content) in enumerate(contents(folder).items()):
        (blobs / f"{number}").write_bytes(content)
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).symlink_to(os.path.relpath(blobs / f"{number}", (snapshot / name).parent))
    before = contents(blobs)
    result = optimized(tmp_path / "cache", tmp_path / "copy")
    assert result.ok, str(result)
    assert not any(path.is_symlink() for path in (tmp_path / "copy").rglob("*"))
    assert operators(tmp_path / "copy" / "snapshots" / "4f2a" / "onnx" / "model.onnx") == ["MatMul", "Relu"]
    assert optimized(snapshot).ok
    made = snapshot / "onnx" / "model_graphopt.onnx"
    assert not made.is_symlink() and (snapshot / "onnx" / "model.onnx").is_symlink()
    assert contents(blobs) == before
    made.unlink()
    made.symlink_to(blobs / "0")
    with pytest.raises(OutputError, match=r"model_graphopt.onnx cannot be written: it is a link, .*; --output FOLDER"):
        optimized(snapshot)
    assert contents(blobs) == before


def test_folders_that_lead_back_to_themselves_are_walked_once(folder: Path) -> None:
    (folder / "onnx" / "again").symlink_to(folder, target_is_directory=True)
    (folder / ".cache").mkdir()
    save(folder / ".cache" / "hidden.onnx")
    assert [each.as_posix() for each in folders.find_models(folder)] == ["onnx/model.onnx", "onnx/model_quantized.onnx"]


# -- in a new folder ---------------------------------------------------------------------------------------------------


def test_a_new_folder_is_a_copy_with_optimized_models(folder: Path, tmp_path: Path) -> None:
    before = contents(folder)
    done = run(folder, "--output", tmp_path / "fast", "--report", tmp_path / "report.json")
    assert done.exit_code == 0, done.output
    after = contents(tmp_path / "fast")
    assert after.keys() == before.keys() and contents(folder) == before
    assert {name: after[name].decode() for name in CONFIGS} == CONFIGS
    assert operators(tmp_path / "fast" / "onnx" / "model.onnx") == ["MatMul", "Relu"]
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["output"], report["exit_code"]) == (str(tmp_path / "fast"), 0)
    assert [(each["written"], sum(each["report"]["after"]["ops"].values())) for each in report["models"]] == [
        ("onnx/model.onnx", 2),
        ("onnx/model_quantized.onnx", 2),
    ]


def test_weights_keep_the_name_that_libraries_look_for(tmp_path: Path) -> None:
    save(tmp_path / "source" / "model.onnx", data="model.onnx_data")
    optimized(tmp_path / "source", tmp_path / "fast")
    assert contents(tmp_path / "fast").keys() == {"model.onnx", "model.onnx_data"}
    assert operators(tmp_path / "fast" / "model.onnx") == ["MatMul", "Relu"]
    optimized(tmp_path / "source")
    assert {"model_graphopt.onnx", "model_graphopt.onnx.data"} <= contents(tmp_path / "source").keys()


def test_weights_that_models_share_stay_while_one_needs_them(tmp_path: Path) -> None:
    source = tmp_path / "source"
    save(source / "decoder.onnx", data="shared.data")
    broken = onnx.load(source / "decoder.onnx", load_external_data=False)
    broken.graph.node[1].op_type = "NoSuchOperator"
    (source / "decoder_with_past.onnx").write_bytes(broken.SerializeToString())
    before = contents(source)
    done = run(source, tmp_path / "fast")
    assert done.exit_code == 1, done.output
    assert "failed: " in done.stdout and "NoSuchOperator" in done.stdout
    after = contents(tmp_path / "fast")
    assert after["decoder_with_past.onnx"] == before["decoder_with_past.onnx"], "a model that fails is copied"
    assert after["shared.data"] == before["shared.data"]
    assert operators(tmp_path / "fast" / "decoder.onnx") == ["MatMul", "Relu"]
    (source / "decoder_with_past.onnx").unlink()
    assert optimized(source, tmp_path / "alone").ok
    assert "shared.data" not in contents(tmp_path / "alone")


def test_a_model_that_needs_the_weights_of_another_by_name_keeps_them(tmp_path: Path) -> None:
    """As a decoder that is exported twice: the second reads the file that is named after the first."""
    source = tmp_path / "source"
    save(source / "decoder.onnx", data="decoder.onnx_data")
    broken = onnx.load(source / "decoder.onnx", load_external_data=False)
    broken.graph.node[1].op_type = "NoSuchOperator"
    (source / "decoder_with_past.onnx").write_bytes(broken.SerializeToString())
    before = contents(source)
    assert optimized(source, tmp_path / "fast").exit_code == 1
    after = contents(tmp_path / "fast")
    assert after["decoder.onnx_data"] == before["decoder.onnx_data"]
    assert after.keys() - before.keys() == {"decoder.onnx.data"}
    assert operators(tmp_path / "fast" / "decoder.onnx") == ["MatMul", "Relu"]


def test_other_files_never_take_the_place_of_new_weights(tmp_path: Path) -> None:
    """As a folder in which an earlier export has left its weights."""
    source, fast = tmp_path / "source", tmp_path / "fast"
    save(source / "model.onnx")
    (source / "model.onnx.data").write_bytes(b"left over")
    assert optimized(source, fast, external_data=True).ok
    assert (fast / "model.onnx.data").read_bytes() == b"left over"
    (kept,) = onnx.load(fast / "model.onnx").graph.initializer
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(kept), WEIGHTS["w"])


def test_links_that_lead_nowhere_stay_and_hidden_files_are_no_models(folder: Path, tmp_path: Path) -> None:
    """As in a cache of which not all was loaded, on a disk that a Mac has written."""
    (folder / "vocab.txt").symlink_to("../blobs/missing")
    (folder / "onnx" / "decoder.onnx").symlink_to("../blobs/missing")
    (folder / "onnx" / "._model.onnx").write_bytes(b"\0\5\x16\7")
    result = optimized(folder, tmp_path / "fast")
    failed = {each.model: each.error for each in result.models if each.error}
    assert failed == {"onnx/decoder.onnx": "does not exist"}
    assert str(result).endswith(f"2 models optimized, in {tmp_path / 'fast'}; 1 failed")
    assert operators(tmp_path / "fast" / "onnx" / "model.onnx") == ["MatMul", "Relu"]
    assert (tmp_path / "fast" / "vocab.txt").readlink() == Path("../blobs/missing")
    assert (tmp_path / "fast" / "onnx" / "._model.onnx").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_what_cannot_be_copied_is_said_before_the_work(folder: Path, tmp_path: Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(ModelError, match=r"pipe is no ordinary file, so the folder cannot be copied"):
        optimized(folder, tmp_path / "fast")
    assert not (tmp_path / "fast").exists()


def test_an_empty_folder_may_be_filled(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "fast").mkdir()
    assert optimized(folder, tmp_path / "fast").ok
    assert contents(tmp_path / "fast").keys() == contents(folder).keys()


def test_nothing_appears_where_the_first_model_is_interrupted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "optimize", failing(KeyboardInterrupt()))
    assert run(folder, tmp_path / "fast").exit_code == 130
    assert [path.name for path in tmp_path.iterdir()] == ["bert"]


def test_a_folder_appears_when_it_is_complete(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copy2", fails)
    with pytest.raises(OutputError, match="fast cannot be written: No space left"):
        optimized(folder, tmp_path / "fast")
    assert [path.name for path in tmp_path.iterdir()] == ["bert"]


# -- what goes wrong with one ------------------------------------------------------------------------------------------


def failing(error: BaseException) -> Callable[..., graphopt.Result]:
    def optimize(path: str, **options: Any) -> graphopt.Result:
        if path.endswith("model.onnx"):
            raise error
        return graphopt.optimize(path, **options)

    return optimize


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (DifferenceError("the optimized model is different"), 3, "failed: the optimized model is different"),
        (ZeroDivisionError("by zero"), 1, "failed: internal error: ZeroDivisionError: by zero"),
        (KeyboardInterrupt(), 130, "skipped: interrupted"),
    ],
)
def test_what_fails_does_not_stop_the_rest(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, said: str
) -> None:
    monkeypatch.setattr(folders, "optimize", failing(error))
    done = run(folder)
    assert done.exit_code == code
    assert said in done.stdout
    was_interrupted = isinstance(error, KeyboardInterrupt)
    assert (folder / "onnx" / "model_quantized_graphopt.onnx").exists() != was_interrupted
    assert ("skipped: interrupted before it" in done.stdout) == was_interrupted


def test_a_broken_model_is_named_once(folder: Path) -> None:
    (folder / "onnx" / "cut.onnx").write_bytes((folder / "onnx" / "model.onnx").read_bytes()[:100])
    done = run(folder)
    assert done.exit_code == 1
    (row,) = [line for line in done.stdout.splitlines() if "cut.onnx" in line]
    assert row.split(None, 1) == ["onnx/cut.onnx", "failed: is not an ONNX model, or it is cut short"]


def test_a_required_speedup_is_of_each_model(folder: Path) -> None:
    done = CliRunner().invoke(app, ["optimize", str(folder), "--seconds", "0.5", "--require-speedup", "1000"])
    assert done.exit_code == 4
    assert done.stdout.count("failed: ") == 2 and "1000 is required" in done.stdout
    assert not list(folder.rglob("*_graphopt.onnx"))


@pytest.mark.parametrize(("codes", "all_together"), [((0, 0), 0), ((1, 3), 3), ((4, 1), 1), ((4, 0), 4), ((2, 4), 2)])
def test_the_exit_code_is_of_the_worst(codes: tuple[int, ...], all_together: int) -> None:
    outcomes = tuple(ModelOutcome("m.onnx", error="it", exit_code=code) for code in codes)
    assert FolderResult("f", "", outcomes, 1.0).exit_code == all_together
    assert FolderResult("f", "", outcomes, 1.0).ok == (all_together == 0)


# -- options -----------------------------------------------------------------------------------------------------------


def test_sizes_and_inputs_are_for_the_models_that_have_them(folder: Path) -> None:
    save(folder / "decoder.onnx", small(batch="rows"))
    found = {each.model: each for each in optimized(folder, dims={"rows": 4}).models}
    assert all(each.report is not None for each in found.values())
    (declared,) = onnx.load(folder / "decoder_graphopt.onnx").graph.input
    assert [dim.dim_value for dim in declared.type.tensor_type.shape.dim] == [4, 8]
    (declared,) = onnx.load(folder / "onnx" / "model_graphopt.onnx").graph.input
    assert declared.type.tensor_type.shape.dim[0].dim_param == "batch_size"
    with pytest.raises(UsageError, match=r"no model in .* has the dim 'row'; did you mean 'rows'"):
        optimized(folder, dims={"row": 4})
    with pytest.raises(UsageError, match=r"no model in .* has the input 'ids'"):
        optimized(folder, inputs={"ids": np.zeros(3)})


def test_all_models_share_the_seconds_that_are_left(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[float, str]] = []

    def optimize(path: str, **options: Any) -> graphopt.Result:
        asked.append((options["seconds"], options["cost"]))
        return graphopt.optimize(path, **{**options, "cost": "none"})

    now = [0.0]
    monkeypatch.setattr(folders, "optimize", optimize)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    save(folder / "decoder.onnx")
    graphopt.optimize_folder(folder, total_seconds=30.0, seconds=12.0)
    assert asked == [(10.0, "measured"), (12.0, "measured"), (12.0, "measured")]
    asked.clear()
    graphopt.optimize_folder(folder, total_seconds=1e-9, seconds=12.0)
    assert all(seconds <= 1e-9 for seconds, _ in asked)


def test_one_file_may_have_its_output_as_an_option(folder: Path, tmp_path: Path) -> None:
    assert run(folder / "onnx" / "model.onnx", "--output", tmp_path / "fast.onnx").exit_code == 0
    assert operators(tmp_path / "fast.onnx") == ["MatMul", "Relu"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{folder}/1_Pooling"], "there is no .onnx file in"),
        (["{folder}", "{folder}/fast"], "bert/fast is in {folder}: name another folder, or none, and"),
        (["{folder}", "{folder}"], "bert is {folder}: name another folder"),
        (["{folder}/onnx", "{folder}"], "bert contains {folder}/onnx: name another folder"),
        (["{folder}", "{tmp}/none/fast"], "none/fast cannot be written: {tmp}/none is missing"),
        (["{folder}", "{tmp}/full"], "full is not empty: name a new folder, or remove it"),
        (["{folder}", "{tmp}/full/file"], "file is no folder: name a new folder, or remove it"),
        (["{folder}", "-"], "a folder is not written to stdout: name one"),
        (["{folder}", "{tmp}/a", "--output", "{tmp}/b"], "name one"),
        (["{folder}", "--html", "{tmp}/page.html"], "--html is of one model, and"),
        (["{folder}", "--save-recipe", "{tmp}/r.json"], "--save-recipe is of one model, and"),
        (["{folder}/onnx/model.onnx"], "name the output: graphopt optimize"),
        (["{folder}/onnx/model.onnx", "{tmp}/a.onnx", "--total-seconds", "3"], "--total-seconds is for the models of"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_done(
    folder: Path, tmp_path: Path, arguments: list[str], said: str
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    before = contents(tmp_path)
    done = run(*(each.format(folder=folder, tmp=tmp_path) for each in arguments))
    code = 1 if "cannot be written" in said else 2
    assert (done.exit_code, said.format(folder=folder, tmp=tmp_path) in done.stderr) == (code, True), done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert contents(tmp_path) == before


def test_options_that_are_wrong_for_every_model_are_said_once(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(
        "from graphopt.rule import Rule, op, tensor\nx = tensor('x')\nRULES = (Rule('wrong', op.Neg(x), op.Abs(x)),)\n"
    )
    before = contents(folder)
    for options, code, said in (
        (["--skip", "no_such_rule"], 2, "there is no rule or pass 'no_such_rule'"),
        (["--rules", tmp_path / "none.py"], 2, "no such file of rules"),
        (["--rules", tmp_path / "wrong.py"], 3, "a rule that is not proved is not applied"),
    ):
        done = run(folder, *options)
        assert (done.exit_code, done.stdout, said in done.stderr) == (code, "", True), done.stderr
    assert contents(folder) == before


def test_without_a_table_failures_are_on_stderr(folder: Path) -> None:
    (folder / "onnx" / "empty.onnx").write_bytes(b"")
    done = run(folder, "--quiet")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "graphopt: error: onnx/empty.onnx: is empty\n" in done.stderr


def test_the_same_from_python(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        optimized(tmp_path / "none")
    with pytest.raises(UsageError, match="is no folder"):
        optimized(folder / "config.json")
    with pytest.raises(UsageError, match="a recipe is of one model"):
        optimized(folder, recipe="recipe.json")
    with pytest.raises(UsageError, match="total_seconds cannot be 0"):
        optimized(folder, total_seconds=0)
    with pytest.raises(OutputError, match="is missing"):
        optimized(folder, tmp_path / "none" / "fast")
