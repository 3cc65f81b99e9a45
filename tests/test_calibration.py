"""The page of how often races are wrong, on what a run is told to have found."""

from pathlib import Path

import onnx

from benchmarks import calibration
from benchmarks.results import read_rows
from tests.text import parse


def race(ratio: float, verdict: str) -> dict[str, object]:
    times = {"rounds": 20, "seconds": 1.5, "milliseconds": 15.0}
    return {"ratio": ratio, "between": [ratio - 0.01, ratio + 0.01], "verdict": verdict, **times}


def test_verdicts_are_counted_by_what_would_have_been_right() -> None:
    races = [race(1.0, "no difference"), race(1.03, "faster"), race(0.985, "slower")]
    rows = [{"model": "net", "loops": 2, "gain": gain, "races": races, "made": {}} for gain in (0.0, 0.03)]
    page = calibration.markdown(rows)
    assert "| net | 15 | 2 | none | 1 of 3 | 2 | 1 | 20 | 1.5 | 1.5 |" in page
    assert "| net | 15 | 2 | 3% | 1 of 3 | 2 | 1 | 20 | 1.5 | 1.5 |" in page


def test_a_model_races_with_its_copy_and_with_itself_slowed_down(tmp_path: Path) -> None:
    model = tmp_path / "net.onnx"
    onnx.save(parse("float[64,64] x", "y = MatMul(x, x)", outputs="float[64,64] y"), model)
    path = calibration.run([str(model)], [0], 2, tmp_path / "found.jsonl")
    none, planted = read_rows(path)
    assert (none["gain"], len(none["races"]), planted["gain"], len(planted["races"])) == (0.0, 2, 0.03, 1)
    assert all(found["rounds"] >= 5 for found in none["races"])
    assert path.with_suffix(".md").exists()
