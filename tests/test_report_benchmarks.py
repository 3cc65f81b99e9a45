"""What is shown of benchmarks: pages, the README's table, pictures, and what changed between two files."""

import json
import shutil
import subprocess
from copy import deepcopy
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from benchmarks import cells, nodecounts, pictures, profiles, report, scaling
from benchmarks.tools import ALL, PLAIN, Task
from graphopt.search.stopping import StopReason
from tests import zoo
from tests.text import parse

CPU = Path("cpu.json")


def results(**ratios: float) -> dict[str, Any]:
    """A result file of one model, with these ratios of tools and intervals of two hundredths."""
    return {
        "machine": "a machine",
        "onnxruntime": "1.31",
        "provider": "cpu",
        "spinning": False,
        "date": "2026-11-21",
        "models": {
            "net.dynamo": {
                "family": "Net",
                "opset": 18,
                "nodes": 10,
                "bytes": 1_500_000,
                "original": {"cpu-1": {"minimum_ms": 2.0, "median_ms": 2.1, "spread": 0.1, "headroom": 1.5}},
                "tools": {tool: cell(ratio) for tool, ratio in ratios.items()},
            }
        },
    }


def cell(ratio: float, column: str = "cpu-1", **facts: Any) -> dict[str, Any]:
    timing: dict[str, Any] = {"median": ratio, "low": ratio - 0.01, "high": ratio + 0.01, "loading": 0.95}
    timing |= {"minimum": ratio + 0.05, "rounds": 13, "spread": 0.03}
    timing["verdict"] = "faster" if ratio > 1.02 else "slower" if ratio < 0.98 else "no difference"
    made = {
        "date": "2026-11-21",
        "seconds": 2.0,
        "search": 60.0,
        "versions": {"onnx": "1.23"},
        "graphopt": "v0.1.0-3-g61652aa",
    }
    outcome = {"made": made, "seconds": 1.0, "memory_mb": 100, "nodes": 9, "bytes": 1_400_000, "difference": 1e-7}
    return outcome | {"timings": {column: timing}} | facts


def tuned(one: dict[str, Any], all_: dict[str, Any]) -> dict[str, Any]:
    """Results of two settings, of which graphopt has an outcome each."""
    found = results(onnxsim=1.0)
    row = found["models"]["net.dynamo"]
    row["original"]["cpu-all"] = {"minimum_ms": 1.0, "median_ms": 1.1, "spread": 0.1, "headroom": 1.7}
    row["tools"]["onnxsim"]["timings"] |= cell(0.9, "cpu-all")["timings"]
    row["tools"]["graphopt"] = {"settings": {"cpu-1": one, "cpu-all": all_}}
    return found


def with_models(found: dict[str, Any], **ratios: float) -> dict[str, Any]:
    """The same with further models, of which onnxsim leaves everything as it is, timed with these ratios."""
    for name, ratio in ratios.items():
        row = deepcopy(found["models"]["net.dynamo"])
        row["tools"] = {"onnxsim": cell(ratio, nodes=row["nodes"], bytes=row["bytes"])}
        found["models"][name] = row
    return found


# -- the page ----------------------------------------------------------------------------------------------------------


def test_no_gain_a_gain_and_a_loss_are_shown_as_such() -> None:
    page = report.markdown(results(onnxsim=1.0, OnnxSlim=0.9, graphopt=1.2), CPU)
    assert "| net.dynamo | 1.50 | 2.00 | 1.00 (0.99–1.01) | ▼ 0.90 (0.89–0.91) | ▲ 1.20 (1.19–1.21) |" in page
    assert "| graphopt | 1 | 1.200 | 1.20 | 1.20 | 1 | 0 | 0 | 1.0 |" in page


def test_each_ratio_has_its_minimum_rounds_and_spread() -> None:
    page = report.markdown(results(onnxsim=1.0, graphopt=1.2), CPU)
    assert "| net.dynamo | 10 % | 1.05, 13, 3 % | 1.25, 13, 3 % |" in page


def test_each_model_has_its_family_opset_nodes_and_size() -> None:
    assert "| net.dynamo | Net | 18 | 10 | 1.5 |" in report.markdown(results(onnxsim=1.0), CPU)


def test_costs_are_in_three_tables() -> None:
    page = report.markdown(results(onnxsim=1.0), CPU)
    for row in ("| net.dynamo | 1.0 s, 100 MB |", "| net.dynamo | 9, 1.4 MB |", "| net.dynamo | 0.95, 1e-07 |"):
        assert row in page


def test_failures_and_wrong_outputs_are_shown_with_their_reason() -> None:
    found = results(graphopt=1.2)
    tools = found["models"]["net.dynamo"]["tools"]
    tools |= {"onnxsim": {"error": "crashed"}, "OnnxSlim": {"wrong": "outputs differ by 3"}}
    page = report.markdown(found, CPU)
    assert "- net.dynamo, onnxsim: crashed" in page and "- net.dynamo, OnnxSlim: outputs differ by 3" in page
    assert "| net.dynamo | 1.50 | 2.00 | fails | wrong | ▲ 1.20 (1.19–1.21) |" in page
    assert "| onnxsim | 0 |  |  |  | 0 | 0 | 1 |  |" in page


def test_an_outcome_that_does_not_run_has_what_is_known_of_it() -> None:
    found = results(onnxsim=1.0)
    found["models"]["net.dynamo"]["tools"]["onnxsim"] = {"seconds": 1.0, "memory_mb": 100, "error": "no model: bad"}
    page = report.markdown(found, CPU)
    assert "| net.dynamo | 1.0 s, 100 MB |" in page
    assert page.count("| net.dynamo | fails |") == 2, "its size, and how it loads"


def test_how_long_copies_load_is_noise() -> None:
    page = report.markdown(with_models(results(plain=1.0, onnxsim=1.0), other=1.0), CPU)
    assert "Copies of the originals took 0.95 to 0.95 (CPU, 1 thread): what lies between says nothing." in page


def test_gains_are_told_apart_from_what_is_left_without_them() -> None:
    found = with_models(results(graphopt=1.2), a=1.0, b=1.0)
    for name, family, ratio in (("a", "Net", 1.0), ("b", "Other", 1.01)):
        found["models"][name] |= {"family": family, "tools": {"graphopt": cell(ratio)}}
    (line,) = report.gains(found)
    assert line == (
        "`graphopt` (CPU, 1 thread): 1.095 over the 2 exports of Net, of which one or more are faster; 1.010 over the "
        "other 1."
    )
    assert line in report.markdown(found, CPU)
    assert list(report.gains(results(graphopt=1.2))) == list(report.gains(results(graphopt=1.0))) == []


def test_a_tool_that_searches_is_shown_with_its_outcome_for_each_setting() -> None:
    page = report.markdown(tuned(cell(1.2), cell(1.3, "cpu-all", nodes=7)), CPU)
    assert "| net.dynamo | 1.50 | 2.00 | 1.00 (0.99–1.01) | ▲ 1.20 (1.19–1.21) |" in page
    assert "| net.dynamo | 1.70 | 1.00 | ▼ 0.90 (0.89–0.91) | ▲ 1.30 (1.29–1.31) |" in page
    assert "| model | onnxsim | graphopt, CPU, 1 thread | graphopt, CPU, all threads |" in page
    assert "| net.dynamo | 9, 1.4 MB | 9, 1.4 MB | 7, 1.4 MB |" in page


def test_an_outcome_that_fails_in_one_setting_counts_in_that_one() -> None:
    page = report.markdown(tuned(cell(1.2), {"error": "killed"}), CPU)
    assert "- net.dynamo, graphopt (CPU, all threads): killed" in page
    assert "| graphopt | 1 | 1.200 | 1.20 | 1.20 | 1 | 0 | 0 | 1.0 |" in page
    assert "| graphopt | 0 |  |  |  | 0 | 0 | 1 |  |" in page


def test_the_page_says_how_the_file_was_made() -> None:
    page = report.markdown(results(graphopt=1.2), CPU)
    assert "- Threads do not spin while they wait" in page
    assert "- Versions: onnxruntime 1.31, onnx 1.23" in page
    assert "- graphopt's revision: v0.1.0-3-g61652aa" in page
    assert "- Timed for about 2 s for each outcome and setting, and in at least 21 rounds" in page
    assert "- `graphopt` searched for at most 60 s" in page
    assert "- Models: 1 export of 1 architecture, with random weights" in page
    assert "Exported with" not in page
    found = results(graphopt=1.2)
    found["models"]["net.dynamo"]["exporters"] = {"torch": "2.15", "timm": "1.0"}
    assert "- Exported with timm 1.0, torch 2.15\n" in report.markdown(found, CPU)


def test_a_search_says_what_it_saw_and_why_it_ended() -> None:
    search = {"stop": "the time was up", "regions": 4, "copies": 8, "states": 28, "trials": 12}
    page = report.markdown(tuned(cell(1.2, search=search), {"error": "killed"}), CPU)
    assert "| net.dynamo | graphopt, CPU, 1 thread | the time was up | 4 | 8 | 28 | 12 |" in page
    assert "## Searches" not in report.markdown(results(onnxsim=1.0), CPU)


def test_a_tool_for_some_families_is_held_against_graphopt_on_those() -> None:
    found = with_models(results(timm=1.3, graphopt=1.2), a=1.0)
    found["models"]["a"]["tools"]["graphopt"] = cell(1.0)
    (line,) = report.alike(found)
    assert line.startswith("`timm` is for some families only. Geometric means over its models: ")
    assert line.endswith(": timm 1.300, graphopt 1.200 (CPU, 1 thread, 1 model).")
    assert line in report.markdown(found, CPU)
    assert list(report.alike(results(onnxsim=1.0, graphopt=1.2))) == list(report.alike(results(timm=1.3))) == []


def test_a_page_without_the_search_says_so() -> None:
    page = report.markdown(results(**{"graphopt-simplify": 1.0}), CPU)
    assert "The search (`graphopt`) is not in this table yet" in page and "searched for" not in page


# -- noise -------------------------------------------------------------------------------------------------------------


def test_outcomes_that_are_their_originals_are_noise() -> None:
    found = with_models(results(onnxsim=1.2), a=1.0, b=1.04)
    assert [timing["median"] for timing in cells.unchanged(found, "cpu-1")] == [1.0, 1.04]
    assert cells.holding(cells.unchanged(found, "cpu-1")) == 0.5
    page = report.markdown(found, CPU)
    assert "| unchanged (noise) | 2 | 1.020 | 1.04 | 1.00 | 1 | 0 |  |  |" in page
    assert "held 1 in 50 % (CPU, 1 thread)." in page


def test_copies_of_the_originals_are_noise_and_no_tool() -> None:
    found = results(plain=1.03, onnxsim=1.2)
    page = report.markdown(found, CPU)
    assert "| unchanged (noise) | 1 | 1.030 |" in page and "| plain |" not in page
    assert cells.tools(found) == ["onnxsim"]


def test_without_such_outcomes_nothing_is_known_of_noise() -> None:
    assert "No outcome is its original" in report.markdown(results(onnxsim=1.2), CPU)


# -- the README --------------------------------------------------------------------------------------------------------


def test_the_readme_has_a_row_an_architecture_that_gains(tmp_path: Path) -> None:
    path, readme = tmp_path / "benchmarks" / "results" / "cpu.json", tmp_path / "README.md"
    path.parent.mkdir(parents=True)
    found = with_models(tuned(cell(1.2), cell(1.1, "cpu-all")), a=1.0, b=1.1)
    found["models"]["a"]["family"] = found["models"]["b"]["family"] = "Other"
    path.write_text(json.dumps(found))
    readme.write_text(f"before\n{report.MARKS[0]}\nold\n{report.MARKS[1]}\nafter\n")
    report.update_readme(path, readme)
    shown = readme.read_text()
    assert "| architecture | exports | CPU, 1 thread | others | CPU, all threads | others |" in shown
    assert "| Net | 1 | 1.20 | 1.00 | 1.10 | 0.90 |" in shown
    assert "| 1 other | 2 |  | 1.05 |  |  |" in shown
    assert "| all | 3 | 1.20 | 1.03 | 1.10 | 0.90 |" in shown
    assert shown.startswith("before\n") and shown.endswith("\nafter\n") and "old" not in shown
    assert "others: the best of onnxsim. On a machine, 2026-11-21, onnxruntime 1.31; [" in shown
    assert "(benchmarks/results/cpu.md)" in shown


def test_an_architecture_gains_where_each_of_its_exports_does(tmp_path: Path) -> None:
    found = with_models(tuned(cell(1.2), cell(1.1, "cpu-all")), slow=1.0)
    part = report.readme_part(found, tmp_path / "cpu.json")
    assert "| Net |" not in part
    assert "| 1 other | 2 | 1.20 | 1.00 |" in part


def test_quantized_models_have_a_row_of_their_own() -> None:
    """What one of them gains is no gain of its architecture."""
    found = with_models(tuned(cell(1.2), cell(1.1, "cpu-all")), quantized=1.0)
    found["models"]["quantized"]["tools"] = tuned(cell(2.0), cell(2.5, "cpu-all"))["models"]["net.dynamo"]["tools"]
    found["models"]["quantized"]["quantized"] = "static"
    part = report.readme_part(found, CPU)
    assert "| quantized | 1 | 2.00 |" in part and "| Net | 1 | 1.20 |" in part


def test_where_not_all_was_timed_in_a_setting_the_readme_says_how_much() -> None:
    found = with_models(tuned(cell(1.2), cell(1.1, "cpu-all")), a=1.0)
    for name, row in found["models"].items():
        row["original"] = {"cpu-1": {}} if name == "a" else {"cpu-1": {}, "cpu-all": {}}
    assert "others: the best of onnxsim. CPU, all threads: 1 export. On a machine" in report.readme_part(found, CPU)
    for row in found["models"].values():
        row["original"] = {}
    assert "others: the best of onnxsim. On a machine" in report.readme_part(found, CPU)


# -- pictures ----------------------------------------------------------------------------------------------------------


def test_every_tool_has_a_colour_of_its_own() -> None:
    assert pictures.COLOURS.keys() == ALL.keys() - {PLAIN}
    assert len(set(pictures.COLOURS.values())) == len(pictures.COLOURS)


def texts(axis: Any) -> list[str]:
    """What stands at the y axis."""
    return [label.get_text() for label in axis.get_yticklabels()]


def dots(axis: Any) -> int:
    return sum(len(drawn.get_offsets()) for drawn in axis.collections if hasattr(drawn, "get_sizes"))


@pytest.mark.slow
def test_the_summary_has_a_line_a_tool_and_one_of_noise() -> None:
    pytest.importorskip("matplotlib")
    figure = pictures.overview(with_models(tuned(cell(1.2), cell(1.3, "cpu-all")), a=1.0))
    one, all_ = figure.axes
    assert texts(one) == ["unchanged (noise)", "graphopt", "onnxsim"] == texts(all_)
    assert "1 thread" in one.get_title("left") and "all threads" in all_.get_title("left")
    assert "times as fast as the original" in all_.get_xlabel()
    assert (dots(one), dots(all_)) == (4, 2)
    assert [note.get_text() for note in one.texts] == ["1.000 (1)", "1.200 (1)", "1.000 (2)"]


def test_models_without_a_difference_share_one_line() -> None:
    pytest.importorskip("matplotlib")
    found = with_models(results(onnxsim=1.0, graphopt=1.2), a=1.0, b=1.01)
    (axis,) = pictures.by_model(found, "cpu-1").axes
    assert texts(axis) == ["net.dynamo"]
    assert "no difference: 2 models" in axis.get_title("left")
    sizes = {line.get_marker(): line.get_markersize() for line in axis.lines if line.get_marker() in ("o", "D")}
    assert sizes["D"] > sizes["o"], "graphopt's is larger"


@pytest.mark.parametrize(("low", "shown"), [(0.99, False), (1.01, True)])
def test_a_model_is_shown_if_an_interval_leaves_1_out(low: float, shown: bool) -> None:
    assert pictures._differs({"median": 1.05, "low": low, "high": 1.1, "verdict": "no difference"}) is shown


def test_headroom_is_shown_with_intervals_and_graphopt_in_colour() -> None:
    pytest.importorskip("matplotlib")
    found = results(onnxsim=1.0, graphopt=1.2)
    (axis,) = pictures.by_headroom(found).axes
    others, graphopt = axis.containers
    assert [others.get_label(), graphopt.get_label()] == ["others", "graphopt"]
    assert list(graphopt.lines[0].get_xdata()) == [1.5] and list(graphopt.lines[0].get_ydata()) == [1.2]
    (bar,) = graphopt.lines[2][0].get_segments()
    assert [tuple(end) for end in bar.round(2)] == [(1.5, 1.19), (1.5, 1.21)]
    assert "headroom" in axis.get_xlabel() and axis.get_ylabel() == pictures.RATIO
    (limit,) = [line for line in axis.lines if line.get_label() == pictures.LIMIT]
    assert list(limit.get_xdata()) == list(limit.get_ydata()) and axis.get_ylim()[1] > 1.2


@pytest.mark.slow
def test_where_no_headroom_is_known_as_on_devices_there_is_no_picture_of_it(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = results(onnxsim=1.2)
    row = found["models"]["net.dynamo"]
    row["original"]["cpu-1"]["headroom"] = None
    drawn = {path.name for path in pictures.draw(found, tmp_path / "cpu.json")}
    assert drawn == {"cpu-summary.png", "cpu-1-models.png", "cpu-time.png"}


def test_a_model_without_headroom_is_in_no_picture_of_it() -> None:
    pytest.importorskip("matplotlib")
    found = results(graphopt=1.2)
    found["models"]["net.dynamo"]["original"]["cpu-1"]["headroom"] = None
    (axis,) = pictures.by_headroom(found).axes
    assert [len(drawn.lines[0].get_xdata()) for drawn in axis.containers] == [0, 0]
    assert "| net.dynamo |  | 2.00 | ▲ 1.20 (1.19–1.21) |" in report.markdown(found, CPU)


def test_time_is_shown_with_a_line_of_medians_a_tool() -> None:
    pytest.importorskip("matplotlib")
    (axis,) = pictures.by_nodes(with_models(results(onnxsim=1.0, graphopt=1.2, timm=1.3), a=1.0)).axes
    assert {line.get_label(): len(line.get_xdata()) for line in axis.lines} == {"onnxsim": 2, "graphopt": 1}
    assert dots(axis) == 3
    assert (axis.get_xscale(), axis.get_yscale()) == ("log", "log")
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("nodes of the original", "seconds of the whole process")


@pytest.mark.slow
def test_every_picture_becomes_a_file(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = tuned(cell(1.2), {"error": "killed"})
    made = pictures.draw(found, tmp_path / "cpu.json")
    assert all(cells.digest(found).encode() in path.read_bytes() for path in made)
    names = {"cpu-summary.png", "cpu-1-models.png", "cpu-all-models.png", "cpu-time.png", "cpu-headroom.png"}
    assert {found.name for found in made} == names == {path.name for path in tmp_path.iterdir()}


def test_where_no_model_could_be_exported_the_page_says_why(tmp_path: Path) -> None:
    found = results() | {"models": {"net.dynamo": {"family": "Net", "error": "export: no torch"}}}
    (tmp_path / "cpu.json").write_text(json.dumps(found))
    assert report.report(tmp_path / "cpu.json") == [tmp_path / "cpu.md"]
    assert "- net.dynamo, the model: export: no torch" in (tmp_path / "cpu.md").read_text()


# -- two files ---------------------------------------------------------------------------------------------------------


def test_two_files_are_compared_cell_by_cell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, ratio in (("old", 1.0), ("new", 1.2)):
        (tmp_path / name).write_text(json.dumps(results(graphopt=ratio, onnxsim=1.0)))
    report.compare(tmp_path / "old", tmp_path / "new")
    printed = capsys.readouterr().out
    assert "net.dynamo, graphopt: cpu-1: 1.00 -> 1.20" in printed and "net.dynamo, onnxsim:" not in printed
    assert "graphopt, CPU, 1 thread, 1 model: 1.000 -> 1.200" in printed and "warning" not in printed


def test_a_change_within_the_intervals_is_none() -> None:
    assert list(report.changes(results(graphopt=1.0), results(graphopt=1.01))) == []


def test_a_change_that_is_no_more_than_noise_is_none() -> None:
    before, after = results(graphopt=1.0), results(graphopt=1.015)
    for found in (before, after):
        timing = found["models"]["net.dynamo"]["tools"]["graphopt"]["timings"]["cpu-1"]
        timing |= {"low": timing["median"], "high": timing["median"]}
    assert list(report.changes(before, after)) == []


def test_what_copies_do_is_shown_beside_the_tools(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, ratio in (("old", 1.0), ("new", 0.99)):
        (tmp_path / name).write_text(json.dumps(results(plain=ratio, onnxsim=1.0)))
    report.compare(tmp_path / "old", tmp_path / "new")
    assert "copies (noise), CPU, 1 thread, 1 model: 1.000 -> 0.990" in capsys.readouterr().out


def test_a_tool_that_takes_longer_or_more_memory_is_named() -> None:
    before, after = results(onnxsim=1.0, graphopt=1.0), results(onnxsim=1.0, graphopt=1.0)
    after["models"]["net.dynamo"]["tools"]["graphopt"] |= {"seconds": 1.6, "memory_mb": 70}
    after["models"]["net.dynamo"]["tools"]["onnxsim"] |= {"seconds": 1.4, "memory_mb": 90}
    assert list(report.changes(before, after)) == [
        "net.dynamo, graphopt: optimizer: 1 -> 1.6 s",
        "net.dynamo, graphopt: optimizer: 100 -> 70 MB",
    ]


def test_a_model_that_cannot_be_measured_any_more_is_named() -> None:
    before, after = results(onnxsim=1.0), results(onnxsim=1.0)
    after["models"]["net.dynamo"]["error"] = "export: no torch"
    assert list(report.changes(before, after)) == ["net.dynamo: right -> export: no torch"]


def test_files_that_were_made_otherwise_are_compared_with_warnings() -> None:
    before, after = results(onnxsim=1.0), with_models(results(onnxsim=1.0, graphopt=1.0), other=1.0)
    after |= {"machine": "another", "onnxruntime": "1.32"}
    after["models"]["net.dynamo"] |= {"model": "f00", "exporters": {"torch": "2.15"}}
    for _, _, _, outcome in cells.cells(after):
        outcome["made"].update({"seconds": 0.7, "search": 4.0, "versions": {"onnx": "1.24"}})
    assert list(report.warnings(before, after)) == [
        "other machine: a machine; another",
        "other onnxruntime: 1.31; 1.32",
        "other version of onnx: 1.23; 1.24",
        "other exporters: not said; torch 2.15",
        "other seconds of timing: 2; 0.7",
        "other seconds of search: 60; 4",
        "other files of the models: net.dynamo",
        "models of the second file alone: other",
        "tools of the second file alone: graphopt",
    ]


def test_a_warning_names_a_few() -> None:
    after = with_models(results(onnxsim=1.0), **dict.fromkeys("abcdefg", 1.0))
    (warning,) = report.warnings(results(onnxsim=1.0), after)
    assert warning == "models of the second file alone: a, b, c, d, e and 2 more"


def test_files_with_nothing_in_common_are_not_without_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "old").write_text(json.dumps(results(graphopt=1.0)))
    (tmp_path / "new").write_text(json.dumps(results(onnxsim=1.0)))
    report.compare(tmp_path / "old", tmp_path / "new")
    assert capsys.readouterr().out.splitlines() == [
        "warning: tools of the first file alone: graphopt",
        "warning: tools of the second file alone: onnxsim",
        "The files have no model and tool in common.",
    ]


# -- scaling -----------------------------------------------------------------------------------------------------------


def grown(power: float = 1.0, **last: Any) -> dict[str, Any]:
    """A file of three sizes of one kind, whose seconds grow with this power of the nodes; the last row otherwise."""
    rows = [
        {
            "kind": "varied",
            "nodes": nodes,
            "left": nodes // 2,
            "memory_mb": {"save": 100, "search": 120},
            "seconds": {step: round(1e-3 * nodes**power, 4) for step in scaling.STEPS},
            "search": {"stop": StopReason.DONE, "regions": 4, "copies": 8, "states": 28},
        }
        for nodes in (1000, 3000, 10000)
    ]
    return {
        "machine": "a machine",
        "versions": {"onnx": "1.23"},
        "date": "2026-11-22",
        "rows": [*rows[:2], rows[2] | last],
    }


def test_the_exponent_of_linear_growth_is_1() -> None:
    assert scaling.exponent(grown()["rows"], "load") == pytest.approx(1)


def test_growth_that_is_not_near_linear_is_named() -> None:
    assert "Near linear: no exponent is above 1.3." in scaling.markdown(grown())
    assert "Not near linear: start of varied (1.50), load of varied (1.50)" in scaling.markdown(grown(1.5))


@pytest.mark.parametrize("search", [{"stop": StopReason.TIME}, {}])
def test_a_search_that_was_not_done_tells_nothing_of_growth(search: dict[str, str]) -> None:
    found = grown(search=search)
    found["rows"][2]["seconds"]["search"] = 1.0
    page = scaling.markdown(found)
    assert "| 1.000+ |" in page and "| 3.000 | 4 | 8 | 28 | 100 | 120 |" in page
    assert "| exponent |  | 1.00 | 1.00 | 1.00 | 1.00 | 1.00 | 1.00 |" in page


def test_a_size_that_fails_keeps_its_reason() -> None:
    found = grown()
    found["rows"][2] = {"kind": "varied", "nodes": 10000, "error": "MemoryError"}
    page = scaling.markdown(found)
    assert "| 10000 | fails |" in page and "10000 nodes: MemoryError" in page
    assert scaling.exponent(found["rows"], "load") == pytest.approx(1)


def test_the_page_of_scaling_says_where_and_when() -> None:
    page = scaling.markdown(grown())
    assert "- Machine: a machine\n- Versions: onnx 1.23\n- Date: 2026-11-22" in page


def test_the_picture_of_scaling_has_a_line_a_step() -> None:
    pytest.importorskip("matplotlib")
    (axis,) = scaling.picture(grown()).axes
    lines = {line.get_label(): list(line.get_xdata()) for line in axis.lines}
    assert lines.pop("linear: 1 ms a node") == [1000, 10000]
    assert lines == {step: [1000, 3000, 10000] for step in scaling.STEPS}
    assert (axis.get_xscale(), axis.get_yscale(), axis.get_title("left")) == ("log", "log", "varied")
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("nodes", "seconds of the step")


def test_each_row_is_kept_as_soon_as_it_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path, known = tmp_path / "scaling.json", list[int]()

    def run(command: list[str], **_: Any) -> CompletedProcess[str]:
        known.append(len(json.loads(path.read_text())["rows"]) if path.exists() else 0)
        if "convolutional" in command[-1]:
            return CompletedProcess(command, 1, "", "Traceback\nMemoryError: too large")
        row = {fact: grown()["rows"][0][fact] for fact in ("left", "memory_mb", "seconds", "search")}
        return CompletedProcess(command, 0, json.dumps(row), "")

    monkeypatch.setattr(subprocess, "run", run)
    scaling.run([3], path)
    rows = {row["kind"]: row for row in json.loads(path.read_text())["rows"]}
    assert list(rows) == list(scaling.KINDS) and known == [*range(len(scaling.KINDS))]
    assert rows["convolutional"]["error"] == "MemoryError: too large" and "error" not in rows["varied"]
    assert "MemoryError: too large" in (tmp_path / "scaling.md").read_text() and (tmp_path / "scaling.png").exists()


# -- nodes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "expected"),
    [({"error": "crashed"}, {"error": "crashed"}), ({"seconds": 1.0}, {"nodes": 1, "difference": 0.0})],
)
def test_a_cell_has_nodes_and_difference_or_a_reason(
    told: dict[str, Any], expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(task: Task) -> dict[str, Any]:
        shutil.copyfile(task.source, task.target)
        return told

    monkeypatch.setattr(nodecounts, "run", run)
    monkeypatch.setattr(zoo, "load", lambda name: parse("float[batch,3] x", "y = Relu(x)", outputs="float[batch,3] y"))
    assert nodecounts.measure("net", ["onnxsim"]) == {"nodes": 1, "tools": {"onnxsim": expected}}


def test_the_fewest_nodes_are_bold_and_a_wrong_outcome_counts_as_the_original() -> None:
    outcomes = {"onnxsim": {"nodes": 8, "difference": 0.0}, "OnnxSlim": {"nodes": 2, "wrong": "outputs differ by 3"}}
    found = {
        "machine": "a machine",
        "versions": {"onnx": "1.23"},
        "dates": dict.fromkeys(outcomes, "2026-11-22"),
        "models": {"net": {"nodes": 10, "tools": outcomes}},
    }
    page = nodecounts.markdown(found)
    assert "| net | 10 | **8** | ✗ 2 |" in page and "| sum | 10 | 8 | 10 |" in page
    assert "- net, OnnxSlim: outputs differ by 3" in page


# -- profiles ----------------------------------------------------------------------------------------------------------


def test_a_profile_has_the_median_of_each_operator() -> None:
    rounds = [{"Conv": {"count": 2, "ms": ms}, "Relu": {"count": 1, "ms": 9.0}} for ms in (1.0, 5.0, 2.0)]
    found = profiles.typical([*rounds[:2], {"Conv": rounds[2]["Conv"]}])
    assert [*found.items()] == [("Relu", {"count": 1, "ms": 9.0}), ("Conv", {"count": 2, "ms": 2.0})]


def test_the_page_of_profiles_names_what_takes_time_before_or_after() -> None:
    made = {"machine": "a machine", "date": "2026-11-24", "versions": {"onnxruntime": "1.32"}}
    before = {"Conv": {"count": 2, "ms": 6.0}, "Transpose": {"count": 1, "ms": 3.99}, "Cast": {"count": 3, "ms": 0.01}}
    after = {"Conv": {"count": 2, "ms": 4.0}, "Mul": {"count": 1, "ms": 1.0}}
    found = {"net": {"made": made, "original": before, "optimized": after}, "odd": {"made": made, "error": "no kernel"}}
    page = profiles.markdown({"models": found})
    assert "| Conv | 2 | 6.00 | 60% | 2 | 4.00 | 80% |" in page and "| Mul |  |  |  | 1 | 1.00 | 20% |" in page
    assert "| Transpose | 1 | 3.99 | 40% |  |  |  |" in page and "| others | 3 | 0.01 | 0% |  |  |  |" in page
    assert "| all | 6 | 10.00 | 100% | 3 | 5.00 | 100% |" in page and "✗ no kernel" in page


def test_means_over_published_sizes_are_of_what_all_tools_did() -> None:
    found = results(onnxsim=1.0, graphopt=1.2)
    found["models"]["net.dynamo"]["published"] = True
    found["models"]["hard.full"] = {**results(onnxsim=1.0, graphopt=3.0)["models"]["net.dynamo"], "published": True}
    found["models"]["hard.full"]["tools"]["onnxsim"] = {"error": "does not run"}
    said = "of which every tool that takes any file has an outcome (CPU, 1 thread): onnxsim 1.000, graphopt 1.200."
    assert said in report.markdown(found, CPU)
    own = results(**{"graphopt": 1.1, "graphopt-ort": 1.4})
    assert "| CPU, 1 thread | ORT's operators | others |" in report.readme_part(own, Path("b/results/cpu.json"))
