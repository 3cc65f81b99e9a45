"""A folder that optimum exports: optimized by one command, loaded and run by optimum, with the same results."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pipelines.tiny_models import SENTENCES, save_model

pytest.importorskip("optimum.exporters.onnx", reason="optimum-onnx is not installed")
pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

TASKS = {"bert": "feature-extraction", "llama": "text-generation-with-past", "t5": "text2text-generation-with-past"}


def export(kind: str, folder: Path) -> Path:
    """Export a small model as `optimum-cli export onnx` does."""
    from optimum.exporters.onnx import main_export

    source = save_model(folder / "source", kind)
    main_export(str(source), output=folder / "onnx", task=TASKS[kind], do_validation=False, library_name="transformers")
    return folder / "onnx"


def optimize(*arguments: object) -> dict[str, Any]:
    """Run `graphopt optimize` on a folder in a process of its own, and return what it prints as JSON."""
    command = [sys.executable, "-m", "graphopt", "optimize", *map(str, arguments), "--threads", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def tokens(folder: Path) -> Any:
    from transformers import AutoTokenizer

    made = AutoTokenizer.from_pretrained(folder)(SENTENCES, return_tensors="pt", padding=True)
    return {name: made[name] for name in ("input_ids", "attention_mask")}


def test_features_of_an_encoder_are_the_same(tmp_path: Path) -> None:
    from optimum.onnxruntime import ORTModelForFeatureExtraction

    folder = export("bert", tmp_path)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    found = optimize(folder, "--seconds", 2)
    assert [(each["model"], each["written"]) for each in found["models"]] == [("model.onnx", "model_graphopt.onnx")]
    report = found["models"][0]["report"]
    assert sum(report["after"]["ops"].values()) < sum(report["before"]["ops"].values())
    assert before.items() <= {path.name: path.read_bytes() for path in folder.iterdir()}.items()
    given = tokens(folder)
    given |= {"token_type_ids": given["input_ids"] * 0}
    expected, got = (
        ORTModelForFeatureExtraction.from_pretrained(folder, file_name=name)(**given).last_hidden_state.numpy()
        for name in ("model.onnx", "model_graphopt.onnx")
    )
    np.testing.assert_allclose(got, expected, atol=2e-5)


def test_a_decoder_behind_a_cache_writes_the_same_tokens(tmp_path: Path) -> None:
    from optimum.onnxruntime import ORTModelForCausalLM

    folder = export("llama", tmp_path)
    found = optimize(folder, "--output", tmp_path / "fast", "--seconds", 30)
    (timing,) = (each["report"]["timing"] for each in found["models"])
    lengths = ("past_sequence_length", "sequence_length")
    sizes = [tuple(latency["sizes"][name] for name in lengths) for latency in timing["latencies"]]
    assert sizes in ([], [(256, 1), (0, 128)]), "none where the machine is too busy to time anything"
    given = tokens(folder)
    expected, got = (
        ORTModelForCausalLM.from_pretrained(each).generate(**given, max_new_tokens=20, do_sample=False).tolist()
        for each in (folder, tmp_path / "fast")
    )
    assert got == expected


def test_an_encoder_and_a_merged_decoder_write_the_same_tokens(tmp_path: Path) -> None:
    from optimum.onnxruntime import ORTModelForSeq2SeqLM

    folder = export("t5", tmp_path)
    found = optimize(folder, "--output", tmp_path / "fast", "--cost", "none")
    assert {each["model"] for each in found["models"]} >= {"encoder_model.onnx", "decoder_model_merged.onnx"}
    assert all(each["report"]["comparison"]["verdict"] == "equal" for each in found["models"])
    assert {path.name for path in (tmp_path / "fast").iterdir()} == {path.name for path in folder.iterdir()}
    given = tokens(folder)
    expected, got = (
        ORTModelForSeq2SeqLM.from_pretrained(each).generate(**given, max_new_tokens=20, do_sample=False).tolist()
        for each in (folder, tmp_path / "fast")
    )
    assert got == expected
