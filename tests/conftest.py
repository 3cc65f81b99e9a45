"""A cache of proofs for the run, and counts at its end: what became of mutants and of the onnx package's models."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain, compress
from operator import not_
from pathlib import Path
from typing import Any

import onnx
import pytest
import typer.main
from onnxruntime import InferenceSession

from benchmarks import scaling
from graphopt.base.session import OperatorDefinitions, current_session
from graphopt.cli.terminal import Progress
from graphopt.language import rule_library


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "for how long each test in tests/fuzz draws cases; without it, a fixed and small number of them"
    parser.addoption("--fuzz-seconds", type=float, default=0.0, help=text)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have each worker begin with slow tests, of which it has as many as the others, so that none is left at the end.

    `--dist=worksteal` gives each an equal part of the list, and who is done takes from the end of another's.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:
        is_slow = [item.get_closest_marker("slow") is not None for item in items]
        slow, quick = list(compress(items, is_slow)), list(compress(items, map(not_, is_slow)))
        ends = [len(quick) * part // workers for part in range(workers + 1)]
        parts = ((*slow[part::workers], *quick[ends[part] : ends[part + 1]]) for part in range(workers))
        items[:] = chain.from_iterable(parts)


@pytest.fixture(scope="session", autouse=True)
def _proofs_of_this_run(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[None]:
    """What tests prove is kept for all of them, but not in the user's own cache."""
    base = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRAPHOPT_CACHE", str(base if worker_id == "master" else base.parent))
        yield


@pytest.fixture(scope="session", autouse=True)
def _commands_made_once() -> Iterator[None]:
    """Typer makes all commands anew at each call of one, which takes longer than most of what is tested with them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_group", cache(typer.main.get_group))
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_word_of_what_takes_long() -> Iterator[None]:
    """What a command prints is not to depend on how busy the machine is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Progress, "PATIENCE", 3600.0)
        yield


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be known of what other tests have timed."""
    monkeypatch.setenv("GRAPHOPT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def half_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ONNX Runtime write half of its files, as on a full disk: it says nothing then."""
    opened, ended = InferenceSession.__init__, InferenceSession.end_profiling

    def cut(path: str) -> str:
        with open(path, "r+b") as file:
            file.truncate(Path(path).stat().st_size // 2)
        return path

    def open_and_cut(self: InferenceSession, model: Any, options: Any, **more: Any) -> None:
        opened(self, model, options, **more)
        if options.optimized_model_filepath:
            cut(options.optimized_model_filepath)

    monkeypatch.setattr(InferenceSession, "__init__", open_and_cut)
    monkeypatch.setattr(InferenceSession, "end_profiling", lambda self: cut(ended(self)))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return the file of a small net."""
    path = tmp_path / "net.onnx"
    onnx.save(scaling.convolutional(3), path)
    return path


def pytest_terminal_summary(terminalreporter: Any) -> None:
    counts: Counter[str] = Counter()
    for report in (*terminalreporter.stats.get("passed", ()), *terminalreporter.stats.get("failed", ())):
        if isinstance(report, pytest.TestReport):
            for name, value in report.user_properties:
                if name == "conformance" and isinstance(value, dict):
                    counts.update(value)
                if name == "mutants":
                    terminalreporter.section("rules with one thing made wrong")
                    terminalreporter.write_line(value)
    if counts:
        terminalreporter.section("test models of the onnx package, optimized")
        for outcome, count in counts.most_common():
            terminalreporter.write_line(f"{count:6d}  {outcome}")
        terminalreporter.write_line(f"{counts.total():6d}  in all")


@pytest.fixture
def forget() -> Iterator[Callable[[str], None]]:
    """Forgets until the end of the test what the library says of an operator of ONNX Runtime."""
    rule_library.load_library()
    with current_session().child():
        yield lambda name: undefine(name, "com.microsoft")


def undefine(op: str, domain: str) -> None:
    """Make the session know no definition of one operator."""
    known, others = current_session().definitions, OperatorDefinitions()
    for key in known:
        if key != (op, domain):
            others.set(key, known.definitions_of(key), known.schema(key))
    current_session().definitions = others
