"""Pages of how often decisions are wrong, and of where the seconds of a run go, on what a run is told to have found."""

import ast
from pathlib import Path

import onnx

import graphopt
from benchmarks import calibration, search_sampler, search_time
from benchmarks.results import read_rows
from tests.text import parse


def decision(ratio: float, verdict: str) -> dict[str, object]:
    times = {"rounds": 20, "seconds": 1.5, "milliseconds": 15.0}
    return {"ratio": ratio, "between": [ratio - 0.01, ratio + 0.01], "verdict": verdict, **times}


def test_verdicts_are_counted_by_what_would_have_been_right() -> None:
    found = [decision(1.0, "no difference"), decision(1.03, "faster"), decision(0.985, "slower")]
    rows = [{"model": "net", "loops": 2, "gain": gain, "decisions": found, "made": {}} for gain in (0.0, 0.03)]
    page = calibration.markdown(rows)
    assert "| net | 15 | 2 | none | 1 of 3 | 2 | 1 | 20 | 1.5 | 1.5 |" in page
    assert "| net | 15 | 2 | 3% | 1 of 3 | 2 | 1 | 20 | 1.5 | 1.5 |" in page


def test_a_model_is_judged_beside_its_copy_and_beside_itself_slowed_down(tmp_path: Path) -> None:
    model = tmp_path / "net.onnx"
    onnx.save(parse("float[64,64] x", "y = MatMul(x, x)", outputs="float[64,64] y"), model)
    path = calibration.run([str(model)], [0], 2, tmp_path / "found.jsonl")
    none, planted = read_rows(path)
    assert (none["gain"], len(none["decisions"]), planted["gain"], len(planted["decisions"])) == (0.0, 2, 0.03, 1)
    assert all(found["rounds"] >= 5 for found in none["decisions"])
    assert path.with_suffix(".md").exists()


def test_seconds_are_summed_by_phase_and_by_work() -> None:
    parts = {"regions: timed runs": 2.0, "regions: simplifying": 1.0, "first race: timed runs": 3.0}
    row = {"model": "net", "limit": 30.0, "seconds": 6.0, "parts": parts, "speedup": 1.1, "made": {}}
    row["earlier"] = False
    page = search_time.markdown([{**row, "regions": 4, "states": 9, "trials": 5}, FAILED])
    phases, work = (line for line in page.splitlines() if line.startswith("| net |"))
    assert phases.startswith("| net | 1.100 | 4 | 9 | 5 | 0.0 | 0.0 | 3.0 |")
    assert work.startswith("| net | 6 | 0.0 | 5.0 |")
    assert "- net: not done after 900 s" in page


FAILED = {"model": "net", "limit": 30.0, "earlier": False, "error": "not done after 900 s", "made": {}}


def test_a_second_of_a_search_is_compared_with_that_of_an_earlier_revision() -> None:
    row = {"model": "net", "limit": 30.0, "parts": {}, "speedup": 1.1, "made": {"graphopt": "abc"}}
    old = {**row, "earlier": True, "seconds": 30.0, "regions": 1, "states": 30, "trials": 6}
    new = {**row, "earlier": False, "seconds": 10.0, "regions": 1, "states": 50, "trials": 0}
    lines = search_time.markdown([old, new, {**FAILED, "earlier": True}, FAILED]).splitlines()
    assert "| net | 1.100 | 1.100 | 1.00 | 5.00 | 5.0 | 0.20 | 0.00 | 0.0 |" in lines
    assert (
        "- graphs: 5.0 times as many per second in the geometric mean of the 1 models in which both had some" in lines
    )
    done = {"stop": "nothing was left to try"}
    lines = search_time.markdown([old, {**new, **done, "states": 15}]).splitlines()
    assert "| net | 1.100 | 1.100 | 30.0 | 10.0 | 3.0 |" in lines
    assert "- seconds: 3.0 times fewer in the geometric mean of these models" in lines
    assert not [line for line in lines if line.startswith("- graphs")]


def test_phases_and_work_are_named_after_functions_that_exist() -> None:
    sources = Path(graphopt.__file__).parent.rglob("*.py")
    nodes = (node for path in sources for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    known = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    kinds = (*search_sampler.PHASES.values(), *search_sampler.WORK.values())
    named = {name for names in kinds for name in names}
    assert named <= known
