"""Parts of models timed on the workers of a cluster: each answers for the device that it has."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from typer.testing import CliRunner

from graphopt.base.cache import Cache
from graphopt.base.errors import UsageError
from graphopt.base.executors import InProcess
from graphopt.cli.main import app
from graphopt.ir.graph import Graph
from graphopt.runtime.cost_model import NotMeasurableError
from graphopt.runtime.machine import Machine
from graphopt.runtime.session_setting import SessionSetting
from graphopt.search.measured_cost import MeasuredCost
from graphopt.search.policy import SearchPolicy
from graphopt.search.racers import FAILED_SPEEDUP, SAME_SPEEDUP, ClusterRacer, LocalRacer
from graphopt.search.recipe import load_recipe
from tests.graphs import graph, weight
from tests.text import parse

RACE = LocalRacer(SessionSetting(), SearchPolicy(pair_seconds=0.02))


class Cluster(InProcess):
    """Stands for the workers of a cluster: this process, which says of what kinds they are."""

    def __init__(self, *devices: str, threads: int = 1) -> None:
        self.devices, self.count, self.asked = devices, threads, 0

    def imap_unordered(self, function: Callable[[Any], Any], tasks: Any) -> Any:
        self.asked += len(tasks)
        return super().imap_unordered(function, tasks)

    def run_on_workers(self, *_: object) -> list[str]:
        return list(self.devices)

    def worker_threads(self) -> dict[str, int]:
        return dict.fromkeys(self.devices, self.count)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHOPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Machine, "calibrate", staticmethod(lambda *_: Machine(launch_seconds=1.0)))


def device(cluster: Cluster) -> ClusterRacer:
    return ClusterRacer.connect(cluster, RACE)  # type: ignore[arg-type]


def vector(body: str) -> Graph:
    return graph("float[4096] x", body, "float[4096] y")


SLOW, FAST = vector("a = Exp(x); b = Sin(a); y = Exp(b)"), vector("y = Neg(x)")
REFUSED = vector("a = Exp(x); y = Reshape(a, [3,3])")


def test_workers_time_each_candidate_by_itself() -> None:
    cluster = Cluster("a phone", "a phone")
    there = device(cluster)
    found = there(SLOW, [FAST, SLOW, REFUSED])
    assert found[0] is not None and found[0].median > 1 and found[1:] == [SAME_SPEEDUP, FAILED_SPEEDUP]
    assert there.machine == Machine(launch_seconds=1.0) and cluster.asked == 1 + 3
    assert there.device == "a phone"


def test_what_workers_answer_is_kept_as_their_device_s(tmp_path: Path) -> None:
    cache, phone, board = Cache(tmp_path / "costs.sqlite"), Cluster("a phone"), Cluster("a board")
    for cluster, asked in ((phone, 1), (phone, 0), (board, 1)):
        there, before = device(cluster), cluster.asked
        MeasuredCost(there, machine=there.machine, cache=cache).measure_speedups(SLOW, [SLOW])
        assert cluster.asked - before == asked


def test_what_cannot_be_timed_there_is_told_here() -> None:
    with pytest.raises(NotMeasurableError, match="cannot be run"):
        device(Cluster("a phone"))(REFUSED, [FAST])


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        (Cluster("a phone", "a board"), "workers of one kind of device, and there are 2\n  a board\n  a phone"),
        (Cluster(), "and there are 0"),
        (Cluster("a phone", threads=4), "dask worker --nthreads 1"),
    ],
)
def test_workers_that_cannot_answer_for_one_device_are_refused(cluster: Cluster, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        device(cluster)


@pytest.mark.slow
def test_a_cluster_times_the_parts_of_a_model(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    model = tmp_path / "model.onnx"
    weights = {"a": weight(4, 4), "b": weight(4, 5), "c": weight(4, 6)}
    body, outputs = "u = MatMul(x, a); v = MatMul(x, b); w = MatMul(x, c)", "float[4,4] u, float[4,5] v, float[4,6] w"
    onnx.save(parse("float[4,4] x", body, weights, outputs=outputs), model)
    report, recipe = tmp_path / "report.json", tmp_path / "recipe.json"
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        options = ["--dask", cluster.scheduler_address, "--report", str(report), "--save-recipe", str(recipe)]
        done = CliRunner().invoke(app, ["optimize", str(model), str(tmp_path / "fast.onnx"), *options])
    assert done.exit_code == 0, done.output
    timing = json.loads(report.read_text())["timing"]
    assert (timing["cost"], timing["regions"], timing["speedup"]) == ("measured", 1, None) and timing["trials"] > 0
    machine = load_recipe(recipe).machine
    assert (machine.cost, machine.device) == ("measured", timing["device"]) and machine.device


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--cost", "analytic"], "a Dask cluster times parts of the model, and cost analytic times nothing"),
        (["--require-speedup", "1.1"], "--require-speedup excludes --dask"),
        (["--seconds", "20"], "no Dask scheduler answers at tcp://127.0.0.1:1"),
    ],
)
def test_what_a_cluster_cannot_do_is_said_in_one_line(
    tmp_path: Path, options: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("graphopt.base.executors.SCHEDULER_TIMEOUT", 0.2)
    model = tmp_path / "model.onnx"
    onnx.save(parse("float[4] x", "y = Neg(x)"), model)
    done = CliRunner().invoke(
        app, ["optimize", str(model), str(tmp_path / "fast.onnx"), "--dask", "tcp://127.0.0.1:1", *options]
    )
    assert done.exit_code in (1, 2) and said in done.stderr and not (tmp_path / "fast.onnx").exists()
