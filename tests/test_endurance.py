"""Models that end the process in which ONNX Runtime optimizes them: another process opens them first."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest

import graphopt
from graphopt.base.errors import ModelError
from graphopt.check.compare import compare_models
from graphopt.check.verdict import EqualityVerdict
from graphopt.io import onnx_io
from graphopt.ir.graph import Graph
from graphopt.operators.inference import infer_graph
from graphopt.runtime import crash_probe
from graphopt.runtime.crash_probe import CrashProbe, ProcessEndedError
from graphopt.runtime.session_setting import SessionSetting
from graphopt.search.racers import FAILED_SPEEDUP, SAME_SPEEDUP, LocalRacer
from tests.text import parse

ABORTS = """
import os
from graphopt.runtime import crash_probe

def opened(model, folder):
    data = model if isinstance(model, bytes) else open(model, "rb").read()
    if b"spoilt" in data:
        os.abort()

crash_probe._load_model = opened
crash_probe.serve_probe()
"""
"""Stands for ONNX Runtime 1.32, of which later versions may do better."""

ENDED = "cannot be loaded: ONNX Runtime's optimizations of it end the process (SIGABRT)"
ONE_THREAD = SessionSetting(threads=1)


@pytest.fixture(scope="module")
def _process() -> Iterator[CrashProbe]:
    opener = CrashProbe(ABORTS)
    yield opener
    opener.terminate()


@pytest.fixture
def opener(_process: CrashProbe, monkeypatch: pytest.MonkeyPatch) -> CrashProbe:
    """Have what holds the word "spoilt" end the process."""
    monkeypatch.setattr(crash_probe, "CRASH_PROBE", _process)
    return _process


def model(name: str = "a", body: str = "{} = DequantizeLinear(x, s); y = QuantizeLinear({}, s)") -> onnx.ModelProto:
    """One that is quantized."""
    return parse("uint8[2,3] x", body.replace("{}", name), {"s": np.array(0.5, np.float32)})


@pytest.mark.usefixtures("opener")
def test_what_ends_a_process_is_opened_in_none_but_without_optimizations() -> None:
    with pytest.raises(ModelError) as caught:
        ONE_THREAD.open(model("spoilt"))
    assert str(caught.value) == f"the model {ENDED}"
    assert ONE_THREAD.open(model("spoilt"), optimize=False) and ONE_THREAD.open(model())


@pytest.mark.usefixtures("opener")
def test_it_is_neither_timed_nor_compared_as_it_is_run() -> None:
    report = graphopt.optimize(model("spoilt"), seconds=2).report
    assert report.comparison is not None and report.comparison.verdict is EqualityVerdict.EQUAL
    assert f"not timed: the model {ENDED}" in report.notes
    assert f"the models with ONNX Runtime's optimizations on: the original {ENDED}" in report.comparison.skipped


@pytest.mark.usefixtures("opener")
def test_a_result_that_ends_the_process_differs() -> None:
    found = compare_models(model(), model("spoilt"))
    assert (
        found.verdict is EqualityVerdict.DIFFERENT
        and "the original runs, but the optimized model cannot" in found.reason
    )
    assert compare_models(model(), model()).verdict is EqualityVerdict.EQUAL


@pytest.mark.usefixtures("opener")
def test_a_part_that_ends_the_process_is_no_faster() -> None:
    def part(name: str) -> Graph:
        graph = onnx_io.load_model(model(name)).graph
        infer_graph(graph)
        return graph

    assert LocalRacer(ONE_THREAD)(part("a"), [part("spoilt"), part("b")]) == [FAILED_SPEEDUP, SAME_SPEEDUP]


def test_a_model_is_tried_once(opener: CrashProbe, monkeypatch: pytest.MonkeyPatch) -> None:
    data = model("c").SerializeToString()
    opener.check_load_survives(data)
    monkeypatch.setattr(crash_probe, "_ask", None)
    opener.check_load_survives(data)


def test_a_path_that_python_does_not_search_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [tmp_path, *sys.path])  # a common mistake: it has to be a text
    opener = CrashProbe(ABORTS)
    opener.check_load_survives(b"a model")
    opener.terminate()


def test_what_onnx_runtime_refuses_is_endured(opener: CrashProbe) -> None:
    opener.check_load_survives(b"hello")


def test_no_answer_is_taken_for_that_to_another_question(opener: CrashProbe, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(crash_probe, "_read_answer", interrupted)
        with pytest.raises(KeyboardInterrupt):
            opener.check_load_survives(b"the first")
    with pytest.raises(ProcessEndedError, match="SIGABRT"):
        opener.check_load_survives(b"spoilt")
    opener.check_load_survives(b"the first")


@pytest.mark.parametrize(
    ("code", "said"), [("raise SystemExit(3)", r"in which it was to be tried \(exit code 3\)"), ("", "exit code 0")]
)
def test_a_process_that_does_not_begin_says_nothing_of_models(code: str, said: str) -> None:
    opener = CrashProbe(code)
    for _ in range(2):
        with pytest.raises(ProcessEndedError, match=said):
            opener.check_load_survives(b"a model")


CAPTURED = """d = DequantizeLinear(x, s); t = Transpose(d); y = If (b) <
    then_branch = one () => (float[3,2] u) { u = Relu(t) }, else_branch = other () => (float[3,2] v) { v = Neg(t) }>"""


def test_this_process_goes_on_whatever_becomes_of_a_captured_value() -> None:
    """ONNX Runtime 1.32 asserts that an If has as many inputs as there are values that its bodies read."""
    given = parse("uint8[2,3] x, bool b", CAPTURED, {"s": np.array(0.5, np.float32)}, outputs="float[3,2] y")
    assert compare_models(given, given).verdict is EqualityVerdict.EQUAL
    with suppress(ModelError):
        ONE_THREAD.open(given)
