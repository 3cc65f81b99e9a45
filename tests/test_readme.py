"""Every example in the README and in docs/ runs, in its order, and numbers come from committed results."""

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
from benchmarks import report, scaling
from benchmarks.results import Results, digest, read_rows
from graphopt.cli.main import app
from tests import option_tables
from tests.text import parse

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}
SET_UP = "python3 -m venv .venv && .venv/bin/pip install -e "
"""How the lines begin that need nothing done before: `.ci/run` runs the one of the tests."""


def examples() -> Iterator[tuple[str, str, str]]:
    """Yield the fenced blocks, the README's first: the file that the text before it names, language and text."""
    block = r"(?:`(\w+\.py)`:\n\n)?^```(\w+)\n(.*?)^```"
    for page in (README, *PAGES.values()):
        yield from re.findall(block, page, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the first command prints."""
    return run([sys.executable, "-m", "graphopt", "demo"], tmp_path_factory.mktemp("demo")).stdout


def test_the_table_of_options_is_made_of_the_options() -> None:
    assert option_tables.page() == PAGES["command-line"], "python -m tests.option_tables"


@pytest.mark.slow
def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, demo: str) -> None:
    monkeypatch.chdir(tmp_path)
    weights = {name: np.abs(np.random.default_rng(0).standard_normal(4)).astype(np.float32) for name in "sbmv"}
    weights["w"] = np.ones((4, 3, 3, 3), np.float32)
    body = "c = Conv(x, w); y = BatchNormalization(c, s, b, m, v)"
    model = parse("float[batch,3,8,8] x", body, weights, outputs="float[batch,4,6,6] y", opset=17)
    onnx.save(model, tmp_path / "model.onnx")
    ran = 0
    for file, language, text in examples():
        if file:
            (tmp_path / file).write_text(text)
        elif language == "console":
            ran += refused(text, tmp_path)
        elif language == "python" and not missing_modules(text):
            exec(text, {})
            ran += 1
        for line in text.splitlines() if language == "sh" else ():
            command = line.rpartition(" && .venv/bin/")[2]
            if command == "graphopt demo":
                assert demo
            elif command != "pytest":  # these very tests
                run_here(command, tmp_path)
                ran += 1
    assert ran >= 12
    assert json.loads((tmp_path / "report.json").read_text())["comparison"]["verdict"] == "equal"


def missing_modules(text: str) -> list[str]:
    """The packages that an example imports and that are not installed; tests/pipelines runs it where they are."""
    modules = re.findall(r"^(?:import|from) (\w+)", text, flags=re.MULTILINE)
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
    first, second, *_ = (text.strip() for _, language, text in examples() if language == "sh")
    assert first == f'{SET_UP}".[cpu]" && .venv/bin/graphopt demo'
    assert second == f'{SET_UP}".[dev]" && .venv/bin/pytest'
    assert README.index("| architecture |") < README.index("## "), "gains are on the first screen"


def test_the_readme_is_short_and_links_lead_somewhere() -> None:
    assert len(README.splitlines()) <= 200
    pages = {ROOT / "README.md": README, **{ROOT / "docs" / f"{name}.md": text for name, text in PAGES.items()}}
    pages |= {ROOT / name: (ROOT / name).read_text(encoding="utf-8") for name in ("ARCHITECTURE.md", "CONTRIBUTING.md")}
    for path, text in pages.items():
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
            assert target.startswith("http") or (path.parent / target).exists(), f"{path.name}: {target}"
    assert all(f"(docs/{name}.md)" in README for name in PAGES), "each page is reached from the README"


def test_the_rule_of_its_own_is_applied(tmp_path: Path) -> None:
    (tmp_path / "my_rules.py").write_text(next(text for file, _, text in examples() if file == "my_rules.py"))
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


def refused(text: str, folder: Path) -> int:
    """Run a command that is shown with what it prints, and that ends in exit code 3."""
    command, shown = text.removeprefix("$ ").split("\n", 1)
    done = run([sys.executable, "-m", *shlex.split(command)], folder, code=3)
    said = re.sub(r"graphopt: \w+, [\d.]+ s\n", "", done.stderr)  # what takes long on a busy machine
    assert done.stdout + said == shown, "the README shows something else"
    return 1


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


def test_other_pages_are_those_of_the_committed_results() -> None:
    page = (RESULTS / "scaling.md").read_text(encoding="utf-8")
    assert page == scaling.markdown(read_rows(RESULTS / "scaling.jsonl"))
    pages = [path.name for path in RESULTS.glob("*.md")]
    linked = "".join([README, *PAGES.values()])
    assert not [name for name in pages if name != "by-hand.md" and f"(../benchmarks/results/{name})" not in linked]
