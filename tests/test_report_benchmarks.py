"""What is shown of benchmarks: pages, the README's table, pictures, and what changed between two files."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks import comparison, pictures, report, scaling
from benchmarks.results import ORIGINAL, Results, Row, digest, read_rows, write_rows
from benchmarks.tools import ALL, PLAIN
from graphopt.search.stopping import StopReason

CPU = Path("cpu.jsonl")
MADE = {"machine": "a machine", "date": "2026-11-21", "versions": {"onnx": "1.23", "onnxruntime": "1.31"}, "file": "f0"}


def original(model: str = "net.dynamo", setting: str = "cpu-1", **facts: Any) -> Row:
    row: Row = {"model": model, "tool": ORIGINAL, "setting": setting, "made": {**MADE, "seconds": 2.0}}
    row |= {"family": "Net", "quantized": "", "exporters": {}, "opset": 18}
    row |= {"nodes": 10, "bytes": 1_500_000, "minimum_ms": 2.0, "median_ms": 2.1, "spread": 0.1, "headroom": 1.5}
    return row | facts


def outcome(tool: str, ratio: float, model: str = "net.dynamo", setting: str = "cpu-1", **facts: Any) -> Row:
    seconds = ALL[tool].search if tool in ALL else 0.0
    made = {**MADE, "seconds": 2.0} | ({"search": seconds, "graphopt": "v0.1.0-3-g61652aa"} if seconds else {})
    row: Row = {"model": model, "tool": tool, "setting": setting, "made": made, "seconds": 1.0, "memory_mb": 100}
    verdict = "faster" if ratio > 1.02 else "slower" if ratio < 0.98 else "no difference"
    timing = {"median": ratio, "low": ratio - 0.01, "high": ratio + 0.01, "verdict": verdict}
    return row | {"nodes": 9, "bytes": 1_400_000, "difference": 1e-7, "loading": 0.95, "timing": timing} | facts


def failing(tool: str, model: str = "net.dynamo", **why: str) -> Row:
    row = outcome(tool, 1.0, model)
    return {key: row[key] for key in ("model", "tool", "setting", "made", "seconds", "memory_mb")} | why


def results(*rows: Row, **ratios: float) -> Results:
    """Those of one model with these ratios of tools, each with an interval of two hundredths; and other rows."""
    return Results((original(), *(outcome(tool, ratio) for tool, ratio in ratios.items()), *rows))


def copies(**ratios: float) -> list[Row]:
    """Further models, whose copies are timed with these ratios."""
    return [row for name, ratio in ratios.items() for row in (original(name), outcome(PLAIN, ratio, name))]


TWO = (original(setting="cpu-all", headroom=1.7, minimum_ms=1.0), outcome("onnxsim", 0.9, setting="cpu-all"))
"""A second setting."""


# -- the page ----------------------------------------------------------------------------------------------------------


def test_a_page_has_gains_losses_costs_and_failures() -> None:
    odd = [failing("onnxscript", error="crashed"), failing("onnxoptimizer", wrong="outputs differ by 3")]
    search = {"stop": "the time was up", "regions": 4, "copies": 8, "states": 28, "trials": 12}
    page = report.markdown(
        results(*odd, outcome("graphopt", 1.2, search=search), onnxsim=1.0, OnnxSlim=0.9, plain=1.03), CPU
    )
    for line in (
        "| graphopt | 1 | 1.200 | 1.20 | 1.20 | 1 | 0 | 0 | 1.0 |",
        "| onnxscript | 0 |  |  |  | 0 | 0 | 1 | 1.0 |",
        "| copies (noise) | 1 | 1.030 | 1.03 | 1.03 | 1 | 0 |  |  |",
        "| net.dynamo | Net | 18 | 10 | 1.5 |",
        "| net.dynamo | 1.50 | 2.00 | 1.00 (0.99–1.01) | ▼ 0.90 (0.89–0.91) | wrong | fails | ▲ 1.20 (1.19–1.21) |",
        "| net.dynamo | 1.0 s, 100 MB | 1.0 s, 100 MB |",
        "| net.dynamo | 9, 1.4 MB | 9, 1.4 MB | wrong | fails | 9, 1.4 MB |",
        "| net.dynamo | 0.95, 1e-07 | 0.95, 1e-07 | wrong | fails | 0.95, 1e-07 |",
        "| net.dynamo | the time was up: 4, 8, 28, 12 |",
        "- net.dynamo, onnxscript (CPU, 1 thread): crashed",
        "- net.dynamo, onnxoptimizer (CPU, 1 thread): outputs differ by 3",
    ):
        assert line in page
    assert "Copies took 0.95 to 0.95: what lies between says nothing." in page
    assert "| plain |" not in page and "## Picture" not in page


def test_a_page_says_how_the_file_was_made() -> None:
    page = report.markdown(results(original("other", exporters={"torch": "2.15", "timm": "1.0"}), graphopt=1.2), CPU)
    for line in (
        "- Machine: a machine\n- Versions: onnx 1.23, onnxruntime 1.31\n- Exporters: timm 1.0, torch 2.15\n",
        "- Date: 2026-11-21\n- graphopt's revision: v0.1.0-3-g61652aa\n",
        "- Models: 2 exports of 1 architecture, with random weights",
        "- Timed for about 2 s for each outcome and setting\n- Searched, at most: graphopt 60 s; `graphopt-simplify`",
    ):
        assert line in page
    assert "Searched" not in report.markdown(results(onnxsim=1.0), CPU)
    others = Results((original("a.1x8", package="a==1.0"), original("own/net.onnx", package="")))
    page = report.markdown(others, CPU)
    assert "at their sizes; out of a==1.0\n- Models: 1 file, as given\n- Threads" in page


def test_each_setting_has_tables_of_its_own() -> None:
    page = report.markdown(results(*TWO, outcome("graphopt", 1.3, setting="cpu-all", nodes=7), onnxsim=1.0), CPU)
    assert "## Speed: CPU, all threads" in page and "| net.dynamo | 1.70 | 1.00 | ▼ 0.90 (0.89–0.91) | ▲ 1.30" in page
    assert "| net.dynamo | 9, 1.4 MB |  |" in page and "| net.dynamo | 9, 1.4 MB | 7, 1.4 MB |" in page


def test_gains_are_told_apart_from_what_is_left_without_them() -> None:
    others = [original("a"), outcome("graphopt", 1.0, "a"), original("b", family="B"), outcome("graphopt", 1.01, "b")]
    (line,) = report.gains(results(*others, graphopt=1.2))
    assert line == (
        "`graphopt` (CPU, 1 thread): 1.095 over the 2 exports of Net, of which one or more are faster; 1.010 over the "
        "other 1."
    )
    assert list(report.gains(results(graphopt=1.2))) == list(report.gains(results(graphopt=1.0))) == []


def test_copies_are_noise() -> None:
    found = results(*copies(a=1.0, b=1.04), onnxsim=1.2)
    page = report.markdown(found, CPU)
    assert "| copies (noise) | 2 | 1.020 | 1.04 | 1.00 | 1 | 0 |  |  |" in page
    assert "held 1 in 50 % (CPU, 1 thread)." in page
    assert "No copy was timed" in report.noise(results(onnxsim=1.2))


# -- the README --------------------------------------------------------------------------------------------------------


def test_the_readme_has_a_row_an_architecture_and_a_column_a_search(tmp_path: Path) -> None:
    path, readme = tmp_path / "benchmarks" / "results" / "cpu.jsonl", tmp_path / "README.md"
    other = [original("b", family="Other", minimum_ms=4.0), outcome("graphopt", 1.0, "b")]
    second = [original("net.bn", minimum_ms=3.0), outcome("graphopt", 1.1, "net.bn"), original("q", quantized="static")]
    columns = {"graphopt-15s": 1.1, "graphopt": 1.21, "onnxsim": 1.0, "OnnxSlim": 0.9, "openvino": 0.8}
    write_rows(path, results(*second, *other, **columns).rows)
    readme.write_text(f"before\n{report.MARKS[0]}\nold\n{report.MARKS[1]}\nafter\n")
    report.update_readme(path, readme)
    shown = readme.read_text()
    for line in (
        "| architecture | ms | graphopt 15 s | graphopt 60 s | best of others | OpenVINO |",
        "| Net | 2–3 | 1.10 | 1.15 | 1.00 | 0.80 |",
        "| quantized | 2 |  |  |  |  |",
        "| Other | 4 |  | 1.00 |  |  |",
        "| all |  | 1.10 | 1.10 | 1.00 | 0.80 |",
        "Best of others: of onnxsim, OnnxSlim.",
        "On a machine, 2026-11-21, onnxruntime 1.31; [",
        "(benchmarks/results/cpu.md)",
    ):
        assert line in shown
    assert shown.startswith("before\n") and shown.endswith("\nafter\n") and "old" not in shown


def test_a_column_of_the_readme_says_how_long_was_searched() -> None:
    """Not what is usual: a run may have given less."""
    row = outcome("graphopt", 1.2)
    found = Results((original(), row | {"made": row["made"] | {"search": 4.0}}))
    assert "| architecture | ms | graphopt 4 s |" in report.readme_part(found, CPU)
    assert "60 s" not in report.markdown(found, CPU) and "graphopt 4 s" in report.markdown(found, CPU)


# -- the picture -------------------------------------------------------------------------------------------------------


def test_every_tool_has_a_colour_of_its_own() -> None:
    assert pictures.COLOURS.keys() == ALL.keys() - {PLAIN}
    assert len(set(pictures.COLOURS.values())) == len(pictures.COLOURS)


@pytest.mark.slow
def test_the_picture_has_a_line_a_tool_and_one_of_noise(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    all_threads = outcome("graphopt", 1.3, setting="cpu-all")
    found = results(*TWO, all_threads, *copies(a=1.0), onnxsim=1.0, graphopt=1.2)
    for axis, name in zip(pictures.overview(found).axes, ("1 thread", "all threads"), strict=True):
        assert [label.get_text() for label in axis.get_yticklabels()] == ["copies (noise)", "graphopt", "onnxsim"]
        assert name in axis.get_title("left")
    write_rows(tmp_path / "cpu.jsonl", found.rows)
    page, picture = report.report(tmp_path / "cpu.jsonl")
    assert digest(found.rows).encode() in picture.read_bytes() and f"]({picture.name})" in page.read_text()


def test_where_no_model_could_be_exported_the_page_says_why(tmp_path: Path) -> None:
    keys = ("model", "tool", "setting", "made", "family", "quantized", "exporters")
    row = {key: original()[key] for key in keys} | {"error": "export: no torch"}
    write_rows(tmp_path / "cpu.jsonl", [row])
    assert report.report(tmp_path / "cpu.jsonl") == [tmp_path / "cpu.md"]
    assert "- net.dynamo, the model: export: no torch" in (tmp_path / "cpu.md").read_text()


# -- two files ---------------------------------------------------------------------------------------------------------


def compared(folder: Path, old: Results, new: Results) -> list[str]:
    for name, found in (("old", old), ("new", new)):
        write_rows(folder / name, found.rows)
    return list(comparison.compare(folder / "old", folder / "new"))


def test_two_files_are_compared_row_by_row(tmp_path: Path) -> None:
    assert compared(tmp_path, results(graphopt=1.0, plain=1.0), results(graphopt=1.2, plain=0.99)) == [
        "net.dynamo, graphopt (cpu-1): 1.00 -> 1.20",
        "graphopt, CPU, 1 thread, 1 model: 1.000 -> 1.200",
        "copies (noise), CPU, 1 thread, 1 model: 1.000 -> 0.990",
    ]
    alone = compared(tmp_path, results(graphopt=1.0), results(onnxsim=1.0))
    assert alone[-1] == "The files have no model and tool in common."


def test_a_change_within_the_intervals_or_the_noise_is_none() -> None:
    assert list(comparison.changes(results(graphopt=1.0), results(graphopt=1.01))) == []
    narrow = [outcome("graphopt", 1.0, timing={"median": ratio, "low": ratio, "high": ratio}) for ratio in (1.0, 1.015)]
    assert list(comparison.changes(results(narrow[0]), results(narrow[1]))) == []


def test_what_fails_or_takes_more_is_named() -> None:
    before = results(onnxsim=1.0, graphopt=1.0, OnnxSlim=1.0)
    slower, same = outcome("graphopt", 1.0, seconds=1.6, memory_mb=70), outcome("onnxsim", 1.0, seconds=1.4)
    after = Results((original(error="no torch"), slower, same, failing("OnnxSlim", error="crashed")))
    assert list(comparison.changes(before, after)) == [
        "net.dynamo: right -> no torch",
        "net.dynamo, graphopt (cpu-1): optimizer: 1 -> 1.6 s",
        "net.dynamo, graphopt (cpu-1): optimizer: 100 -> 70 MB",
        "net.dynamo, OnnxSlim (cpu-1): right -> crashed",
        "net.dynamo, OnnxSlim (cpu-1): 9 -> 0 nodes",
    ]


def test_files_that_were_made_otherwise_are_compared_with_warnings() -> None:
    made = {**MADE, "machine": "another", "versions": {"onnx": "1.24", "onnxruntime": "1.31"}, "seconds": 0.7}
    others = [original(name) | {"made": made} for name in "abcdefg"]
    changed = original(exporters={"torch": "2.15"}) | {"made": made | {"file": "f1"}}
    after = Results((changed, outcome("onnxsim", 1.0) | {"made": made}, *others, outcome("graphopt", 1.0, made=made)))
    assert list(comparison.warnings(results(onnxsim=1.0), after)) == [
        "other machine: a machine; another",
        "other seconds of timing: 2.0; 0.7",
        "other versions: onnx 1.23, onnxruntime 1.31; onnx 1.24, onnxruntime 1.31",
        "other exporters: not said; torch 2.15",
        "other files of the models: net.dynamo",
        "models of the second file alone: a, b, c, d, e and 2 more",
        "tools of the second file alone: graphopt",
    ]


# -- scaling -----------------------------------------------------------------------------------------------------------


def grown(power: float = 1.0, **last: Any) -> list[Row]:
    """Three sizes of one kind, whose seconds grow with this power of the nodes; the last row otherwise."""
    rows: list[Row] = [
        {
            "kind": "varied",
            "nodes": nodes,
            "left": nodes // 2,
            "memory_mb": dict.fromkeys(scaling.STEPS, 100),
            "seconds": {step: round(1e-3 * nodes**power, 4) for step in scaling.STEPS},
            "search": {"stop": StopReason.DONE, "regions": 4, "copies": 8, "states": 28},
            "made": {"machine": "a machine", "versions": {"onnx": "1.23"}, "date": "2026-11-22"},
        }
        for nodes in (1000, 3000, 10000)
    ]
    return [*rows[:2], rows[2] | last]


def test_growth_that_is_not_near_linear_is_named() -> None:
    assert scaling.exponent(grown(), "load") == pytest.approx(1)
    page = scaling.markdown(grown())
    assert "Near linear: no exponent is above 1.3." in page
    assert "- Machine: a machine\n- Versions: onnx 1.23\n- Date: 2026-11-22" in page
    assert "Not near linear: start of varied (1.50), load of varied (1.50)" in scaling.markdown(grown(1.5))


@pytest.mark.parametrize("search", [{"stop": StopReason.TIME}, {}])
def test_a_search_that_was_not_done_tells_nothing_of_growth(search: dict[str, str]) -> None:
    found = grown(search=search)
    found[2]["seconds"]["search"] = 1.0
    page = scaling.markdown(found)
    assert "| 1.000+ |" in page and "| 3.000 | 4 | 8 | 28 | 100 | 100 |" in page
    assert "| exponent |  | 1.00 | 1.00 | 1.00 | 1.00 | 1.00 | 1.00 |" in page


def test_the_picture_of_scaling_has_a_line_a_step() -> None:
    pytest.importorskip("matplotlib")
    (axis,) = scaling.picture(grown()).axes
    lines = {line.get_label(): list(line.get_xdata()) for line in axis.lines}
    assert lines.pop("linear: 1 ms a node") == [1000, 10000]
    assert lines == {step: [1000, 3000, 10000] for step in scaling.STEPS}
    assert (axis.get_xscale(), axis.get_yscale(), axis.get_title("left")) == ("log", "log", "varied")


@pytest.mark.slow
def test_each_row_is_kept_as_soon_as_it_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path, known = tmp_path / "scaling.jsonl", list[int]()

    def job(_: str, file: str, **__: float) -> Row:
        known.append(len(read_rows(path)))
        if "convolutional" in file:
            return {"error": "MemoryError: too large"}
        return {fact: grown()[0][fact] for fact in ("left", "memory_mb", "seconds", "search")}

    monkeypatch.setattr(scaling, "job", job)
    scaling.run([3], path)
    rows = {row["kind"]: row for row in read_rows(path)}
    assert list(rows) == list(scaling.KINDS) and known == [*range(len(scaling.KINDS))]
    assert rows["convolutional"]["error"] == "MemoryError: too large" and "error" not in rows["varied"]
    page = (tmp_path / "scaling.md").read_text()
    assert "| fails |" in page and "MemoryError: too large" in page and (tmp_path / "scaling.png").exists()
