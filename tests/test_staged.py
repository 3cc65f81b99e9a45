"""Pipelines at work: answers in order, as many requests at once as there is room for, and workers that are lost."""

from __future__ import annotations

import gc
import itertools
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import graphopt
from graphopt.base.errors import ModelError, StageError, UsageError
from graphopt.partition import workers as stage_workers
from graphopt.partition.manifest import MANIFEST
from graphopt.partition.stage_session import stage_digest
from tests.test_partition import chain, normal
from tests.text import parse

needs_kill = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three stages of a chain whose answer tells its request: y is x times a matrix."""
    out = tmp_path_factory.mktemp("chain") / "out"
    graphopt.partition_model(chain(), out, 3, threads=1, seconds=0.0)
    return out


def requests(count: int, batch: int = 2) -> list[dict[str, NDArray[np.float32]]]:
    return [{"x": normal(batch, 8)} for _ in range(count)]


def test_answers_come_in_the_order_of_requests(folder: Path) -> None:
    asked = requests(20)
    with graphopt.Pipeline(folder, threads=1) as pipeline:
        one_by_one = [pipeline.run(each)["y"] for each in asked]
        streamed = [found["y"] for found in pipeline.stream(asked)]
    assert [found.tobytes() for found in one_by_one] == [found.tobytes() for found in streamed]
    assert len({found.tobytes() for found in streamed}) == 20


def test_no_more_requests_are_taken_than_there_is_room_for(folder: Path) -> None:
    taken = 0

    def endless() -> Iterator[dict[str, Any]]:
        nonlocal taken
        for each in itertools.cycle(requests(3)):
            taken += 1
            yield each

    with graphopt.Pipeline(folder, threads=1, in_flight=4) as pipeline:
        answers = pipeline.stream(endless())
        for count in range(1, 50):
            assert next(answers)["y"].shape == (2, 8)
            assert taken <= count + 4
        answers = pipeline.stream(endless())  # what was asked before and is not taken blocks nobody
        assert next(answers)["y"].shape == (2, 8)


def test_several_threads_may_ask_at_once(folder: Path) -> None:
    asked, found = requests(8), {}
    with graphopt.Pipeline(folder, threads=1, in_flight=2) as pipeline:
        expected = [pipeline.run(each)["y"] for each in asked]

        def ask(place: int) -> None:
            found[place] = [answer["y"] for answer in pipeline.stream([asked[place]] * 10)]

        threads = [threading.Thread(target=ask, args=(place,)) for place in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert all((answer == expected[place]).all() for place in range(8) for answer in found[place])


def test_a_batch_goes_through_in_parts(folder: Path) -> None:
    whole = {"x": normal(7, 8)}
    with graphopt.Pipeline(folder, threads=1) as pipeline:
        parts = pipeline.run(whole, micro_batch=3)["y"]
        np.testing.assert_allclose(parts, pipeline.run(whole)["y"], rtol=1e-5, atol=1e-5)
        with pytest.raises(UsageError, match="micro_batch cannot be 0"):
            pipeline.run(whole, micro_batch=0)


def test_a_model_of_fixed_sizes_has_no_batch_to_split(tmp_path: Path) -> None:
    model = parse("float[2,4] x", "a = Relu(x); y = Exp(a)", outputs="float[2,4] y")
    graphopt.partition_model(model, tmp_path / "out", 2, threads=1, seconds=0.0)
    with graphopt.Pipeline(tmp_path / "out") as pipeline, pytest.raises(UsageError, match="first axis is the same"):
        pipeline.run({"x": normal(2, 4)}, micro_batch=1)


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_errors_name_the_stage_and_the_pipeline_goes_on(kind: str, tmp_path: Path) -> None:
    model = parse("float[n] x, int64[1] size", "a = Relu(x); b = Exp(a); y = Reshape(b, size)", outputs="float[m] y")
    graphopt.partition_model(model, tmp_path / "out", 2, threads=1, seconds=0.0)
    good, bad = {"x": normal(4), "size": np.array([4])}, {"x": normal(4), "size": np.array([3])}
    with graphopt.Pipeline(tmp_path / "out", kind, threads=1) as pipeline:
        with pytest.raises(StageError, match=r"^stage 2 \(stage-2.onnx\) cannot be run: .*Reshape"):
            list(pipeline.stream([good, bad, good]))
        assert pipeline.run(good)["y"].shape == (4,)
        with pytest.raises(UsageError, match="there is no input 'X'; did you mean 'x'"):
            pipeline.run({"X": normal(4)})
        with pytest.raises(UsageError, match="nothing is given for 'size'"):
            pipeline.run({"x": normal(4)})
    with pytest.raises(StageError, match="the pipeline is closed"):
        pipeline.run(good)


@pytest.mark.parametrize(("workers", "said"), [("fibres", "not 'fibres'"), (3, "threads or processes, or the client")])
def test_workers_of_no_kind_are_refused(folder: Path, workers: object, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        graphopt.Pipeline(folder, workers)
    with pytest.raises(UsageError, match="in_flight cannot be 0"):
        graphopt.Pipeline(folder, in_flight=0)


def test_processes_answer_as_threads_do_and_end_with_the_pipeline(folder: Path) -> None:
    asked = requests(6)
    with graphopt.Pipeline(folder, threads=1) as pipeline:
        expected = [found["y"].tobytes() for found in pipeline.stream(asked)]
    with graphopt.Pipeline(folder, "processes", threads=1) as pipeline:
        assert [found["y"].tobytes() for found in pipeline.stream(asked)] == expected
        pids = pipeline.worker_pids
        assert len({*pids, os.getpid()}) == 4
    if sys.platform != "win32":
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows tells of no process by a signal")
def test_processes_end_with_a_pipeline_that_nobody_closes(folder: Path) -> None:
    pipeline = graphopt.Pipeline(folder, "processes", threads=1)
    answers = pipeline.stream(requests(100))
    next(answers)
    os.kill(pipeline.worker_pids[0], signal.SIGKILL)
    next(answers)
    pids = pipeline.worker_pids
    del answers, pipeline
    end = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < end:
        gc.collect()
        time.sleep(0.05)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_who_waits_is_told_that_the_pipeline_is_closed(kind: str, folder: Path) -> None:
    said: list[str] = []

    def ask() -> None:
        try:
            list(pipeline.stream(itertools.cycle(requests(3))))
        except StageError as error:
            said.append(str(error))

    with graphopt.Pipeline(folder, kind, threads=1) as pipeline:
        pipeline.run(requests(1)[0])
        threads = [threading.Thread(target=ask, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join(30)
    assert said == ["the pipeline is closed"] * 3


def test_a_process_that_cannot_load_its_stage_or_be_started_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphopt.partition_model(chain(), tmp_path / "out", 2, threads=1, seconds=0.0)
    stage, manifest = tmp_path / "out" / "stage-2.onnx", tmp_path / "out" / MANIFEST
    digest = stage_digest(stage)
    stage.write_bytes(b"no model")
    manifest.write_text(manifest.read_text().replace(digest, stage_digest(stage)))
    with pytest.raises(ModelError, match=r"stage-2\.onnx cannot be loaded"):
        graphopt.Pipeline(tmp_path / "out", threads=1)
    with (
        graphopt.Pipeline(tmp_path / "out", "processes", threads=1) as pipeline,
        pytest.raises(StageError, match=r"^stage 2 \(stage-2\.onnx\) cannot be opened: .*cannot be loaded"),
    ):
        pipeline.run(requests(1)[0])
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(StageError, match="no process can be started: No such file or directory"):
        graphopt.Pipeline(tmp_path / "out", "processes")


@pytest.mark.parametrize("asked", [None, [1], "x"])
def test_what_is_no_request_is_refused(asked: Any, folder: Path) -> None:
    with graphopt.Pipeline(folder, threads=1) as pipeline, pytest.raises(UsageError, match="a request is arrays by"):
        pipeline.run(asked)


def test_messages_are_read_as_they_were_written(tmp_path: Path) -> None:
    message = (7, {"x": normal(3, 4), "t": np.array(["a", "ß"], object), "v": normal(4, 4)[::2].T, "e": normal(0, 2)})
    path = tmp_path / "message"
    with path.open("wb") as file:
        stage_workers.write_parts(file, stage_workers.message_parts(message))
        stage_workers.write_parts(file, stage_workers.message_parts("next"))
    with path.open("rb") as file:
        key, found = stage_workers.read_message(file)
        assert key == 7 and all(np.array_equal(found[name], value) for name, value in message[1].items())
        assert stage_workers.read_message(file) == "next" and stage_workers.read_message(file) is None
    path.write_bytes(path.read_bytes()[:-3])
    with path.open("rb") as file:
        stage_workers.read_message(file)
        assert stage_workers.read_message(file) is None, "of a process that was killed while it wrote"


def keep_killing(pipeline: graphopt.Pipeline, kills: int, answers: list[int], done: threading.Event) -> None:
    """Kill a worker at a random time, again and again: after some more answers, so also while others begin."""
    drawn, killed = random.Random(0), set[int]()
    while len(killed) < kills and not done.is_set():
        wanted = len(answers) + drawn.randrange(30)
        while len(answers) < wanted and not done.is_set():
            time.sleep(0.001)
        time.sleep(drawn.uniform(0.0, 0.02))
        pid = drawn.choice(pipeline.worker_pids)
        if pid not in killed and not done.is_set():
            killed.add(pid)
            os.kill(pid, signal.SIGKILL)
    done.set()


def check_kills(folder: Path, kills: int) -> None:
    """Stream requests that can be told apart, until so many workers are killed: each has its answer, in its place."""
    done, numbers = threading.Event(), itertools.count()
    identity = np.eye(8, dtype=np.float32)[:2]

    def asked() -> Iterator[dict[str, Any]]:
        while not done.is_set():
            yield {"x": identity * np.float32(next(numbers) % 1000 + 1)}

    with graphopt.Pipeline(folder, "processes", threads=1) as pipeline:
        unit = pipeline.run({"x": identity})["y"]
        answers: list[int] = []
        killer = threading.Thread(target=keep_killing, args=(pipeline, kills, answers, done), daemon=True)
        killer.start()
        try:
            for count, found in enumerate(pipeline.stream(asked())):
                np.testing.assert_allclose(found["y"], unit * (count % 1000 + 1), rtol=1e-4, atol=1e-3)
                answers.append(count)
        finally:
            done.set()
            killer.join()
        assert len(answers) == next(numbers), "each request has one answer"
        pipeline.run({"x": identity})
        assert kills - 2 <= pipeline.replaced_workers <= kills  # the last ones may not have been wanted again


@needs_kill
def test_requests_of_lost_workers_are_asked_again(folder: Path) -> None:
    check_kills(folder, 3)


@needs_kill
@pytest.mark.slow
def test_a_hundred_killed_workers_lose_no_request(folder: Path) -> None:
    check_kills(folder, 100)


@needs_kill
def test_a_request_that_kills_its_workers_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_workers, "MAX_DEATHS", 1)
    monkeypatch.setattr(stage_workers, "_SERVER_CODE", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    with (
        graphopt.Pipeline(folder, "processes", threads=1) as pipeline,
        pytest.raises(StageError, match=r"stage 1 \(stage-1.onnx\) cannot be run: 1 workers died of it"),
    ):
        pipeline.run(requests(1)[0])


@pytest.mark.slow
def test_stages_are_actors_of_a_dask_cluster(folder: Path) -> None:
    distributed = pytest.importorskip("distributed")
    asked = requests(40)
    with graphopt.Pipeline(folder, threads=1) as pipeline:
        expected = [found["y"].tobytes() for found in pipeline.stream(asked)]
    with (
        distributed.LocalCluster(n_workers=3, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
        graphopt.Pipeline(folder, client, threads=1) as pipeline,
    ):
        found = []
        for number, answer in enumerate(pipeline.stream(asked)):
            found.append(answer["y"].tobytes())
            if number == 10 and sys.platform != "win32":
                os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
        assert found == expected
        if sys.platform != "win32":
            assert pipeline.replaced_workers >= 1


def test_what_cannot_be_sent_is_an_error_of_its_request(folder: Path) -> None:
    with graphopt.Pipeline(folder, "processes", threads=1) as pipeline:
        with pytest.raises(StageError, match=r"stage 1 \(stage-1.onnx\) cannot be run: .*lock"):
            pipeline.run({"x": threading.Lock()})
        assert pipeline.run(requests(1)[0])["y"].shape == (2, 8)
