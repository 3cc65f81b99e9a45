"""Every example in the README and in docs/ runs, page by page, and numbers come from committed results."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

import graphopt
from benchmarks import kernel_times, kernels, memory, report, scaling, training
from benchmarks.results import Results, digest, read_rows
from graphopt.cli.main import app
from graphopt.runtime.kernel_table import DATA
from tests import option_tables
from tests.text import parse

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}
SET_UP = "python3 -m venv .venv && .venv/bin/pip install -e "
"""How the lines begin that need nothing done before: `.ci/run` runs the one of the tests."""
WITH_EXAMPLES = {"README": README, "rules/README": (ROOT / "rules/README.md").read_text(encoding="utf-8"), **PAGES}
TESTED_OTHERWISE = {"graphopt demo", "pytest"}
"""Commands of examples that no page runs: the demo has a test of its own, and `.ci/run` runs the other."""


def examples(page: str) -> Iterator[tuple[str, str, str]]:
    """Yield the fenced blocks of a page: the file that the text before it names, language and text."""
    block = r"(?:`(\w+\.(?:py|toml))`:\n\n)?^```(\w+)\n(.*?)^```"
    yield from re.findall(block, page, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the first command prints."""
    return run([sys.executable, "-m", "graphopt", "demo"], tmp_path_factory.mktemp("demo")).stdout


def test_the_table_of_options_is_made_of_the_options() -> None:
    assert option_tables.page() == PAGES["command-line"], "python -m tests.option_tables"


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_EXAMPLES)
def test_the_examples_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page in a folder of its own, with a model, what `optimize` makes of it, and a folder of models."""
    monkeypatch.chdir(tmp_path)
    weights = {name: np.abs(np.random.default_rng(0).standard_normal(4)).astype(np.float32) for name in "sbmv"}
    weights["w"] = np.ones((4, 3, 3, 3), np.float32)
    body = "c = Conv(x, w); y = BatchNormalization(c, s, b, m, v)"
    model = parse("float[batch,3,8,8] x", body, weights, outputs="float[batch,4,6,6] y", opset=17)
    onnx.save(model, tmp_path / "model.onnx")
    graphopt.optimize(model, cost="none").save(tmp_path / "fast.onnx")
    (tmp_path / "bert").mkdir()
    onnx.save(model, tmp_path / "bert" / "model.onnx")
    for file, language, text in examples(WITH_EXAMPLES[page]):
        if file:
            (tmp_path / file).write_text(text)
        elif language == "console":
            assert_prints(text, tmp_path)
        elif language == "python" and not missing_modules(text):
            exec(text, {})
        for line in text.splitlines() if language == "sh" else ():
            command = line.rpartition(" && .venv/bin/")[2]
            if command not in TESTED_OTHERWISE:
                run_here(command, tmp_path)
    for report_file in tmp_path.glob("report.json"):
        assert json.loads(report_file.read_text())["comparison"]["verdict"] == "equal"


def missing_modules(text: str) -> list[str]:
    """Return the packages that an example needs and that are not installed."""
    modules = re.findall(r"^(?:import|from) (\w+)", text, flags=re.MULTILINE)
    modules += ["torch"] * ("onnxruntime.transformers" in text)  # whose optimizer imports it when it is called
    return [module for module in modules if find_spec(module) is None]


@pytest.mark.slow
def test_the_demo_shows_a_gain_and_a_model_without_one(demo: str) -> None:
    gain, rest = demo.split("\nResNet-50: ")
    assert gain.startswith("MobileOne as it is trained")
    assert re.search(r"\nfuse_add_of_convs +81 ", gain), "branches become one convolution"
    assert "resnet50.onnx" in rest
    assert "the original, as it was" not in gain, "branches were joined, timed or not"
    assert [gain.count("equal: "), rest.count("equal: ")] == [1, 1]
    assert demo.endswith("\nFor a model of your own:\n$ graphopt optimize model.onnx fast.onnx\n")


def run_here(command: str, folder: Path) -> None:
    """Run a command in this process; in one of its own if it reads rules, for what these declare is known for good."""
    program, *arguments = shlex.split(command)
    assert program == "graphopt"
    if any(argument.startswith("my_") for argument in arguments):
        run([sys.executable, "-m", program, *arguments], folder)
        return
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, f"{command}\n{done.output}"


def test_the_first_two_commands_need_nothing_before_them() -> None:
    first, second, *_ = (text.strip() for _, language, text in examples(README) if language == "sh")
    assert first == f'{SET_UP}".[cpu]" && .venv/bin/graphopt demo'
    assert second == f'{SET_UP}".[dev]" && .venv/bin/pytest'
    assert README.index("| architecture |") < README.index("## "), "gains are on the first screen"


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 180


def test_the_rule_of_its_own_is_applied(tmp_path: Path) -> None:
    (tmp_path / "my_rules.py").write_text(next(text for file, _, text in examples(README) if file == "my_rules.py"))
    weights = {name: np.eye(3, 2, k, dtype=np.float32) for k, name in enumerate("wv")}
    model = parse(
        "float[n,4,3] x", "a = MatMul(x, w); b = MatMul(x, v); y = Sub(a, b)", weights, outputs="float[n,4,2] y"
    )
    result = graphopt.optimize(model, rules=[tmp_path / "my_rules.py"])
    assert {(rewrite.name, rewrite.proof) for rewrite in result.report.rewrites} >= {
        ("my_difference", "proved, reassociates, finite")
    }
    assert [node.op_type for node in result.model.graph.node] == ["MatMul"]


def run(command: list[str], folder: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """A command that ended with this exit code."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == code, f"{command[2:]}\n{done.stdout}{done.stderr}"
    return done


def assert_prints(text: str, folder: Path) -> None:
    """Run a command that is shown with what it prints: with exit code 3 where that is an error, else 0."""
    command, shown = text.removeprefix("$ ").split("\n", 1)
    code = 3 if "graphopt: error" in shown else 0
    done = run([sys.executable, "-m", *shlex.split(command)], folder, code)
    said = re.sub(r"graphopt: \w+, [\d.]+ s\n", "", done.stderr)  # what takes long on a busy machine
    assert without_times(done.stdout + said) == without_times(shown), "a page shows something else"


def without_times(text: str) -> list[str]:
    """Return the words of a text, decimal fractions as `#`."""
    return re.sub(r"\d+\.\d+", "#", text).split()


def test_speeds_are_those_of_the_committed_results() -> None:
    stale = "is stale: `python -m benchmarks report --readme` makes it anew"
    for path in (RESULTS / f"{name}.jsonl" for name in ("openvino", "cpu")):
        page = report.markdown(Results.read(path), path)
        assert path.with_suffix(".md").read_text(encoding="utf-8") == page, f"the page {stale}"
    assert report.readme_text(RESULTS / "cpu.jsonl") == README, f"the README {stale}"
    assert re.findall(r"!\[[^]]*\]\((benchmarks/[^)]*)\)", README), "a picture of the gains"


@pytest.mark.parametrize("name", ["cpu", "openvino", "scaling"])
def test_pictures_are_those_of_the_committed_results(name: str) -> None:
    shown = digest(read_rows(RESULTS / f"{name}.jsonl")).encode()
    paths = sorted(RESULTS.glob(f"{name}*.png"))
    stale = [path.name for path in paths if shown not in path.read_bytes()]
    assert paths and not stale, "`python -m benchmarks report` makes them anew, of scaling `scaling`"


def test_the_times_of_kernels_that_are_shipped_are_those_of_the_committed_results() -> None:
    assert DATA.read_text(encoding="utf-8") == kernel_times.data_text(read_rows(RESULTS / "kernel-times.jsonl"))


def test_other_pages_are_those_of_the_committed_results() -> None:
    page = (RESULTS / "scaling.md").read_text(encoding="utf-8")
    assert page == scaling.markdown(read_rows(RESULTS / "scaling.jsonl"))
    page = (RESULTS / "memory.md").read_text(encoding="utf-8")
    assert page == memory.markdown(read_rows(RESULTS / "memory.jsonl"))
    pages = {"kernel-times": kernel_times.markdown, "kernels": kernels.markdown, "training": training.markdown}
    for name, markdown in pages.items():
        page = (RESULTS / f"{name}.md").read_text(encoding="utf-8")
        assert page == markdown(read_rows(RESULTS / f"{name}.jsonl"))
    found = [path.name for path in RESULTS.glob("*.md")]
    linked = "".join([README, *PAGES.values()])
    assert not [name for name in found if name != "by-hand.md" and f"(../benchmarks/results/{name})" not in linked]
