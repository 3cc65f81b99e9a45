"""Every example in the README runs, in its order, and its numbers come from committed results."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.text import parse

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
SET_UP = ('pip install -e ".[dev]"', "pytest")
"""Lines that set up or run these very tests: `.ci/run` tries them."""


def examples() -> Iterator[tuple[str, str]]:
    """The fenced blocks: language and text."""
    yield from re.findall(r"^```(\w+)\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_examples_run(tmp_path: Path) -> None:
    weights = {name: np.abs(np.random.default_rng(0).standard_normal(4)).astype(np.float32) for name in "sbmv"}
    weights["w"] = np.ones((4, 3, 3, 3), np.float32)
    body = "c = Conv(x, w); y = BatchNormalization(c, s, b, m, v)"
    model = parse("float[batch,3,8,8] x", body, weights, outputs="float[batch,4,6,6] y", opset=17)
    onnx.save(model, tmp_path / "model.onnx")
    ran = 0
    for language, text in examples():
        if language == "python" and "RULES" in text:
            (tmp_path / "my_rules.py").write_text(text)
        elif language == "python":
            run([sys.executable, "-c", text], tmp_path)
            ran += 1
        for line in text.splitlines() if language == "sh" else ():
            if line not in SET_UP:
                run([sys.executable, "-m", *shlex.split(line)], tmp_path)
                ran += 1
    assert ran >= 10
    assert json.loads((tmp_path / "report.json").read_text())["comparison"]["verdict"] == "equal"


def run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command[2:]}\n{done.stdout}{done.stderr}"


def test_the_table_of_nodes_is_that_of_the_committed_results() -> None:
    shown = re.search(r"<!-- nodecounts -->\n\n(.*?)\n\n", README, flags=re.DOTALL)
    committed = (ROOT / "benchmarks" / "results" / "nodecounts.md").read_text(encoding="utf-8")
    assert shown, "the README has no table of nodes"
    header, _, *rows = shown[1].splitlines()
    tools = [cell.strip() for cell in header.strip("|").split("|")][1:]
    lines = committed.splitlines()
    columns = next(line for line in lines if line.startswith("| model |")).strip("|").split("|")
    sums = next(line for line in lines if line.startswith("| sum |")).strip("|").split("|")
    expected = {tool.strip(): value.strip() for tool, value in zip(columns, sums, strict=True)}
    (row,) = rows
    assert [cell.strip() for cell in row.strip("|").split("|")][1:] == [expected[tool] for tool in tools]
