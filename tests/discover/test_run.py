"""A run as a user starts it: what is written is proved and is read again, whoever works and whatever is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from graphopt.base.errors import GraphoptError
from graphopt.base.executors import Executor, InProcess, ProcessPool
from graphopt.base.limits import MemoryTrimmer
from graphopt.cli.main import app
from graphopt.discover.batch_arithmetic import Field
from graphopt.discover.equation_proving import EquationStatus, evaluators
from graphopt.discover.run import DiscoveryResult, Journal, Plan, Run
from graphopt.discover.worlds import ELEMENTS, MATRICES
from graphopt.language import rule_library
from graphopt.operators import semantics
from graphopt.rewrite import gate

SMALL = Plan(2, ("Neg", "Relu", "Transpose"), worlds=(MATRICES,))


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHOPT_CACHE", str(tmp_path / "cache"))


def run(*args: object) -> Result:
    return CliRunner().invoke(app, ["discover", *map(str, args)])


def outcome(plan: Plan, folder: Path, engine: Executor | None = None) -> DiscoveryResult:
    with Journal(folder / "journal", keep=True) as journal, engine or InProcess() as runs:
        return Run(plan, runs, journal).run()


def rules(found: DiscoveryResult) -> list[str]:
    return [str(each.rule) for each in found.rules]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_what_is_written_is_proved_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    done = run("--size", 2, "--ops", "Neg,Transpose", "--no-library", "--output", path)
    assert done.exit_code == 0, done.output
    found = lines(path)
    assert {"Neg(Neg(x))  ->  x", "Transpose(Neg(x), perm=perm)  ->  Neg(Transpose(x, perm=perm))"} <= {
        line["found"]["algebra"] for line in found
    }
    given = rule_library.read_rules([path])
    assert len(given.all_rules) == len(found) and [rule.name for rule in given.trades] == [
        line["name"] for line in found if line["found"]["trade"]
    ]
    assert all(gate.prove_now(rule).holds for rule in given.all_rules)
    assert not path.with_name("found.jsonl.journal").exists()
    assert "rules written to" in done.stdout


def test_operators_of_ones_own_are_what_they_are_declared_to_be(tmp_path: Path) -> None:
    mine, path = tmp_path / "mine.py", tmp_path / "found.jsonl"
    mine.write_text("""
from graphopt.rule import Operators, define, tensor
y = tensor("y")
define(Operators("tests.discover").Twice(y), y + y)
RULES = ()
""")
    done = run("--size", 2, "--ops", "tests.discover.Twice,Neg", "--rules", mine, "--no-library", "--output", path)
    assert done.exit_code == 0, done.output
    assert "tests.discover.Twice(Neg(x))  ->  Neg(tests.discover.Twice(x))" in {
        line["found"]["algebra"] for line in lines(path)
    }


def test_with_the_library_only_what_it_lacks_is_written(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    done = run("--size", 2, "--ops", "Neg", "Transpose", "--output", path, "--verbose")
    assert done.exit_code == 0, done.output
    assert "Neg(Neg(x))  ->  x" not in {line["found"]["algebra"] for line in lines(path)}
    assert "Neg(Neg(x))  ->  x: the library has it" in done.stderr


@pytest.mark.slow
def test_two_workers_give_the_same_as_one(tmp_path: Path) -> None:
    paths = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    for workers, path in enumerate(paths, 1):
        done = run("--size", 2, "--ops", "Neg,Relu,Transpose", "--no-library", "--workers", workers, "--output", path)
        assert done.exit_code == 0, done.output
    assert paths[0].read_bytes() == paths[1].read_bytes()


class Killed(Exception):
    """Stands for SIGKILL."""


class Mortal(InProcess):
    """Is gone after so many answers."""

    def __init__(self, answers: int) -> None:
        self.answers = answers

    def imap_unordered(self, function: Any, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        for answer in super().imap_unordered(function, tasks):
            yield answer
            self.answers -= 1
            if not self.answers:
                raise Killed


@pytest.mark.slow
@pytest.mark.parametrize(("answers", "cut"), [(1, 0), (2, 7)])
def test_a_run_that_was_ended_goes_on_where_it_was(tmp_path: Path, answers: int, cut: int) -> None:
    (tmp_path / "whole").mkdir()
    whole = outcome(SMALL, tmp_path / "whole")
    with pytest.raises(Killed):
        outcome(SMALL, tmp_path, Mortal(answers))
    path = tmp_path / "journal"
    path.write_bytes(path.read_bytes()[: -cut or None])  # the last line may not be whole
    asked = Counting()
    assert rules(outcome(SMALL, tmp_path, asked)) == rules(whole)
    assert asked.count == sum(stage.question_count for stage in whole.stages) - answers + (1 if cut else 0)


class Counting(InProcess):
    """Counts what it is asked."""

    count = 0

    def imap_unordered(self, function: Any, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        self.count += len(tasks)
        return super().imap_unordered(function, tasks)


@pytest.mark.slow
def test_a_run_that_is_killed_leaves_nothing_half_written(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    options = ["--size", "2", "--ops", "Neg,Relu,Transpose", "--no-library", "--output", str(path)]
    command = [sys.executable, "-m", "graphopt", "discover", *options]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env={**os.environ})
    journal = path.with_name("found.jsonl.journal")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (not journal.exists() or journal.read_bytes().count(b"\n") < 3):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not path.exists() and journal.exists()
    done = run(*options[:-1], path)
    assert "questions are answered already" in done.stderr and done.exit_code == 0
    other = tmp_path / "other.jsonl"
    assert run(*options[:-1], other).exit_code == 0 and path.read_bytes() == other.read_bytes()


def test_a_journal_of_another_source_is_begun_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "journal").write_text('{"source": "another"}\n{"question": "x", "answer": {}}\n')
    with Journal(tmp_path / "journal", keep=True) as journal:
        assert journal.answers == {}
    assert "another version" in caplog.text


# -- what is wrong is no rule ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_fingerprint_that_is_broken_makes_refuted_candidates_and_no_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prints = Field.fingerprints
    monkeypatch.setattr(Field, "fingerprints", lambda self, values: prints(self, values) * 0 + 1)
    found = outcome(Plan(1, SMALL.operators, worlds=SMALL.worlds), tmp_path)
    fates = sum((stage.fates for stage in found.stages), start=type(found.stages[0].fates)())
    assert (
        fates[EquationStatus.REFUTED]
        + fates[EquationStatus.ACCIDENT]
        + fates[EquationStatus.UNWRITTEN]
        + fates[EquationStatus.UNKNOWN]
        > 3
    )
    assert fates[EquationStatus.REFUTED] > 0 and rules(found) == []


def test_a_declaration_that_is_broken_is_refuted_by_running_the_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Neg that computes nothing: the proof believes it, ONNX Runtime does not."""
    evaluators.cache_clear()
    monkeypatch.setattr(semantics, "OPERATORS", {**semantics.OPERATORS, "Neg": semantics.OPERATORS["Identity"]})
    found = outcome(Plan(1, ("Neg",), worlds=(ELEMENTS,)), tmp_path)
    evaluators.cache_clear()
    assert rules(found) == []
    assert [settled.fate for _, settled in found.open_questions] == [EquationStatus.REFUTED]


# -- who works ---------------------------------------------------------------------------------------------------------


def _halved(number: int) -> int:
    return number // 2


def _fatal_once(folder: Path) -> bool:
    """Kill the process that runs it, the first time."""
    mark = folder / "killed"
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return True


def _fatal(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_processes_answer_all_and_a_lost_one_loses_nothing(tmp_path: Path) -> None:
    with ProcessPool(2) as runs:
        assert dict(runs.imap_unordered(_halved, range(5))) == {0: 0, 1: 0, 2: 1, 3: 1, 4: 2}
        assert dict(runs.imap_unordered(_fatal_once, [tmp_path, tmp_path])) == {0: True, 1: True}
        with pytest.raises(GraphoptError, match="have died"):
            list(runs.imap_unordered(_fatal, [1]))


@pytest.mark.slow
def test_a_dask_cluster_gives_the_same(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        address, path = cluster.scheduler_address, tmp_path / "dask.jsonl"
        done = run("--size", 1, "--ops", "Neg,Add,Sub", "--no-library", "--dask", address, "--output", path)
    assert done.exit_code == 0, done.output
    alone = tmp_path / "alone.jsonl"
    assert run("--size", 1, "--ops", "Neg,Add,Sub", "--no-library", "--output", alone).exit_code == 0
    assert path.read_bytes() == alone.read_bytes()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--output", "found.txt"], "rules are written to a .jsonl file"),
        (["--output", "-"], "needs --journal FILE"),
        (["--output", "found.jsonl", "--ops", "Loop"], "--ops Loop: it is not one operator on one or two tensors"),
        (["--output", "found.jsonl", "--model", "none.onnx"], "none.onnx"),
        (["--output", "found.jsonl", "--ops", "Rellu"], "there is no operator 'Rellu'; did you mean 'Relu'"),
        (["--output", "found.jsonl", "--workers", "2", "--dask", "tcp://127.0.0.1:1"], "name one of them"),
        (["--output", "no/such/folder/found.jsonl"], "no/such/folder"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*args)
    assert done.exit_code in (1, 2) and said in done.stderr and done.stderr.count("\n") == 1
    assert not list(tmp_path.glob("found*"))


def test_memory_is_given_back_once_it_has_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken: 400 MB, of which 300 MB go back; then 300 MB, which may stay; then 500 MB."""
    taken, collected = iter([400, 100, 300, 500, 150]), list[bool]()
    monkeypatch.setattr("graphopt.base.limits.resident_bytes", lambda: next(taken) * 1_000_000)
    monkeypatch.setattr("gc.collect", lambda: collected.append(True))
    tidy = MemoryTrimmer()
    for _ in range(3):
        tidy()
    assert len(collected) == 2
