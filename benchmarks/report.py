"""Tables and pictures of a result file, and what changed between two."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.tools import ALL

COLOURS = dict(zip(ALL, ("#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#cc79a7", "#999999"), strict=True))
"""Okabe and Ito's palette: told apart also by the colour-blind."""

Row = Mapping[str, Any]


def report(path: Path) -> list[Path]:
    """Write the page and the pictures beside the result file."""
    results = json.loads(path.read_text(encoding="utf-8"))
    page = path.with_suffix(".md")
    page.write_text(markdown(results, path), encoding="utf-8")
    return [page, *pictures(results, path)]


# -- numbers -----------------------------------------------------------------------------------------------------------


def columns(results: Row) -> list[str]:
    """The settings that were measured, like `cpu-1`."""
    return list(dict.fromkeys(c for row in results["models"].values() for c in row.get("original", {})))


def tools(results: Row) -> list[str]:
    return [tool for tool in ALL if any(tool in row.get("tools", {}) for row in results["models"].values())]


def timings(results: Row, tool: str, column: str) -> dict[str, Row]:
    """By model, where the tool's outcome is right and was timed."""
    cells = {name: row.get("tools", {}).get(tool, {}) for name, row in results["models"].items()}
    return {name: cell["timings"][column] for name, cell in cells.items() if column in cell.get("timings", {})}


def failures(results: Row) -> Iterator[tuple[str, str, str]]:
    """Model, tool and reason of all that went wrong."""
    for name, row in results["models"].items():
        if "error" in row:
            yield name, "", row["error"]
        for tool, cell in row.get("tools", {}).items():
            if reason := cell.get("error") or cell.get("wrong"):
                yield name, tool, reason


def geometric_mean(numbers: Iterable[float]) -> float:
    numbers = list(numbers)
    return statistics.geometric_mean(numbers) if numbers else float("nan")


# -- the page ----------------------------------------------------------------------------------------------------------


def markdown(results: Row, path: Path) -> str:
    """The page: what was measured where, the summary, every model, what failed, what optimizing costs."""
    head = [
        f"# Benchmarks: {path.stem}",
        "",
        f"Made by `python -m benchmarks run` and `report {path.name}`; the docstring of `benchmarks/run.py` says how.",
        "",
        f"- Machine: {results['machine']}",
        "- Versions: " + ", ".join(f"{package} {version}" for package, version in results["versions"].items()),
        f"- Date: {results['date']}",
        "",
        "A ratio is how many times as fast as ONNX Runtime's own full optimization makes the original the outcome",
        "runs, both under ORT_ENABLE_ALL: the median over interleaved rounds. In brackets the interval in which that",
        "median lies with 95 % confidence. ▲ faster, ▼ slower; no mark: no difference beyond noise (2 %).",
    ]
    parts = [head, _summary(results), _speeds(results), _failed(results), _costs(results)]
    return "\n".join(line for part in parts for line in [*part, ""])


def _summary(results: Row) -> list[str]:
    lines = ["## Summary", ""]
    for column in columns(results):
        rows = [_summary_row(results, tool, column) for tool in tools(results)]
        head = ["tool", "models", "geometric mean", "best", "worst", "faster", "slower", "wrong or failed"]
        lines += [f"{_setting(column)}:", "", *table(head, rows), ""]
    return lines[:-1]


def _summary_row(results: Row, tool: str, column: str) -> list[str]:
    found = timings(results, tool, column)
    ratios = [timing["median"] for timing in found.values()] or [float("nan")]
    verdicts = [timing["verdict"] for timing in found.values()]
    wrong = sum(1 for _, failed, _ in failures(results) if failed == tool)
    return [
        tool, str(len(found)), f"{geometric_mean(ratios):.3f}", f"{max(ratios):.2f}", f"{min(ratios):.2f}",
        str(verdicts.count("faster")), str(verdicts.count("slower")), str(wrong),
    ]  # fmt: skip


def _setting(column: str) -> str:
    provider, _, threads = column.partition("-")
    return f"{provider.upper()}, " + ("1 thread" if threads == "1" else f"{threads} threads")


def _speeds(results: Row) -> list[str]:
    lines = []
    for column in columns(results):
        head = ["model", "headroom", "ms", *tools(results)]
        rows = [_speed_row(name, row, tools(results), column) for name, row in results["models"].items()]
        lines += [f"## Speed: {_setting(column)}", "", *table(head, rows), ""]
    return lines[:-1]


def _speed_row(name: str, row: Row, names: Iterable[str], column: str) -> list[str]:
    original = row.get("original", {}).get(column, {})
    cells = [_speed_cell(row.get("tools", {}).get(tool, {}), column) for tool in names]
    return [name, f"{original.get('headroom', 0):.2f}", f"{original.get('minimum_ms', 0):.2f}", *cells]


def _speed_cell(cell: Row, column: str) -> str:
    if "error" in cell or "wrong" in cell:
        return "fails" if "error" in cell else "wrong"
    if column not in cell.get("timings", {}):
        return ""
    timing = cell["timings"][column]
    mark = {"faster": "▲ ", "slower": "▼ "}.get(timing["verdict"], "")
    return f"{mark}{timing['median']:.2f} ({timing['low']:.2f}–{timing['high']:.2f})"


def _failed(results: Row) -> list[str]:
    lines = [f"- {name}, {tool or 'the model'}: {reason}" for name, tool, reason in failures(results)]
    return ["## Failures and wrong outputs", "", *(lines or ["None."])]


def _costs(results: Row) -> list[str]:
    """Seconds, memory, nodes and size of each outcome."""
    head = ["model", "nodes", "MB", *tools(results)]
    rows = []
    for name, row in results["models"].items():
        cells = [_cost_cell(row.get("tools", {}).get(tool, {})) for tool in tools(results)]
        rows.append([name, str(row.get("nodes", "")), f"{row.get('bytes', 0) / 1e6:.1f}", *cells])
    note = "Seconds and peak megabytes of the tool's whole process with imports, load and save; nodes; size in MB; the"
    load = "time to make a session of the outcome, as a multiple of the original's; the largest difference."
    return ["## Cost of optimizing, and outcomes", "", note, load, "", *table(head, rows)]


def _cost_cell(cell: Row) -> str:
    if "seconds" not in cell:
        return "fails" if cell else ""
    load = next((f", load {timing['load']:.2f}" for timing in cell.get("timings", {}).values()), "")
    gap = f", {cell['difference']:.0e}" if "difference" in cell else ", wrong"
    size = f"{cell['nodes']} nodes, {cell['bytes'] / 1e6:.1f} MB"
    return f"{cell['seconds']:.1f} s, {cell['memory_mb']} MB; {size}{load}{gap}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table, numbers to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


# -- pictures ----------------------------------------------------------------------------------------------------------


def pictures(results: Row, path: Path) -> list[Path]:
    """Speedups at a glance, each model with its error bars, time against nodes, speedup against headroom."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams |= {"axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "graphopt"}
    made = []
    for column in columns(results):
        made += [
            _saved(_overview(results, column), path, f"{column}-summary"),
            _saved(_by_model(results, column), path, f"{column}-models"),
            _saved(_by_headroom(results, column), path, f"{column}-headroom"),
        ]
    return [*made, _saved(_by_nodes(results), path, "time")]


def _saved(figure: Any, path: Path, name: str) -> Path:
    import matplotlib.pyplot as plt

    target = path.with_name(f"{path.stem}-{name}.png")
    figure.savefig(target, dpi=110, bbox_inches="tight", metadata={"Software": ""})
    plt.close(figure)
    return target


def _ratio_axis(axis: Any, ratios: Iterable[float]) -> None:
    """Logarithmic, as twice and half are equally far from 1; wide enough for everything."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

    ratios = [*ratios, 0.9, 1.1]
    axis.set_xscale("log")
    axis.set_xlim(min(ratios) / 1.03, max(ratios) * 1.03)
    steps = (0.25, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 4)
    axis.xaxis.set_major_locator(FixedLocator(steps))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.axvline(1, color="black", linewidth=0.8, zorder=0)
    axis.grid(axis="x", color="#dddddd", linewidth=0.6, zorder=0)


def _overview(results: Row, column: str) -> Any:
    """One line a tool: a dot a model, the geometric mean as a bar."""
    import matplotlib.pyplot as plt

    names = tools(results)
    figure, axis = plt.subplots(figsize=(8, 0.55 * len(names) + 1))
    everything = []
    for place, tool in enumerate(reversed(names)):
        ratios = sorted(timing["median"] for timing in timings(results, tool, column).values())
        everything += ratios
        heights = [place + 0.22 * ((index * 0.618) % 1 - 0.5) * 2 for index in range(len(ratios))]
        axis.scatter(ratios, heights, s=18, color=COLOURS[tool], alpha=0.6, linewidths=0)
        mean = geometric_mean(ratios)
        axis.plot([mean, mean], [place - 0.36, place + 0.36], color="black", linewidth=2)
        axis.annotate(f"{mean:.3f}", (1.01, place), xycoords=("axes fraction", "data"), va="center")
    axis.set_yticks(range(len(names)), list(reversed(names)))
    _ratio_axis(axis, everything)
    axis.set_xlabel(f"speed against the original, both under ORT_ENABLE_ALL ({_setting(column)})")
    axis.set_title("A dot a model; the bar and the number: geometric mean", fontsize=10, loc="left")
    return figure


def _by_model(results: Row, column: str) -> Any:
    """One line a model, one dot a tool, with its interval."""
    import matplotlib.pyplot as plt

    models = [name for name, row in results["models"].items() if column in row.get("original", {})]
    figure, axis = plt.subplots(figsize=(9, 0.3 * len(models) + 1.5))
    everything = []
    names = tools(results)
    for place, name in enumerate(reversed(models)):
        axis.axhspan(place - 0.5, place + 0.5, color="#f4f4f4" if place % 2 else "white", zorder=-1)
        for number, tool in enumerate(names):
            timing = timings(results, tool, column).get(name)
            if timing is None:
                continue
            height = place + 0.36 - 0.72 * number / max(1, len(names) - 1)
            everything += [timing["low"], timing["high"]]
            axis.plot([timing["low"], timing["high"]], [height, height], color=COLOURS[tool], linewidth=1)
            axis.plot(timing["median"], height, "o", color=COLOURS[tool], markersize=3.5)
    axis.set_yticks(range(len(models)), list(reversed(models)), fontsize=8)
    axis.set_ylim(-0.5, len(models) - 0.5)
    _ratio_axis(axis, everything)
    axis.set_xlabel(f"speed against the original, both under ORT_ENABLE_ALL ({_setting(column)}), 95 % intervals")
    _legend(axis, names)
    return figure


def _legend(axis: Any, names: Iterable[str]) -> None:
    for tool in names:
        axis.plot([], [], "o", color=COLOURS[tool], label=tool)
    axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False, fontsize=8)


def _by_headroom(results: Row, column: str) -> Any:
    """What there is to win, and what was won."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7, 4.5))
    for tool in tools(results):
        found = timings(results, tool, column)
        rooms = [results["models"][name]["original"][column]["headroom"] for name in found]
        axis.scatter(rooms, [t["median"] for t in found.values()], s=16, color=COLOURS[tool], alpha=0.7, linewidths=0)
    axis.axhline(1, color="black", linewidth=0.8, zorder=0)
    axis.set_xlabel("headroom: time in all kernels over time in Conv, Gemm and MatMul kernels")
    axis.set_ylabel("speed against the original")
    _legend(axis, tools(results))
    return figure


def _logarithmic(axis: Any) -> None:
    """Both ways, with ticks at 1, 2 and 5 written as plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_xscale("log")
    axis.set_yscale("log")
    for direction in (axis.xaxis, axis.yaxis):
        direction.set_major_locator(LogLocator(subs=(1, 2, 5)))
        direction.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        direction.set_minor_formatter(NullFormatter())


def _by_nodes(results: Row) -> Any:
    """How long optimizing takes against the size of the graph."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7, 4.5))
    for tool in tools(results):
        cells = [(row["nodes"], row["tools"][tool]["seconds"]) for row in results["models"].values()
                 if "seconds" in row.get("tools", {}).get(tool, {})]  # fmt: skip
        axis.scatter(*zip(*cells, strict=True), s=16, color=COLOURS[tool], alpha=0.7, linewidths=0)
    _logarithmic(axis)
    axis.set_xlabel("nodes of the original")
    axis.set_ylabel("seconds of the whole process")
    _legend(axis, tools(results))
    return figure


# -- two files ---------------------------------------------------------------------------------------------------------


def compare(old: Path, new: Path) -> None:
    """Print every cell that changed: other nodes, failures, and speeds whose intervals do not meet."""
    before, after = (json.loads(path.read_text(encoding="utf-8")) for path in (old, new))
    if before["machine"] != after["machine"]:
        print(f"of different machines: {before['machine']}; {after['machine']}")
    lines = list(changes(before, after))
    print("\n".join(lines or ["No change beyond noise."]))
    for column in columns(after):
        for tool in tools(after):
            found, known = (timings(results, tool, column) for results in (after, before))
            both = sorted(found.keys() & known.keys())
            if both:
                means = [geometric_mean(timing[name]["median"] for name in both) for timing in (known, found)]
                print(f"{tool}, {_setting(column)}, {len(both)} models: {means[0]:.3f} -> {means[1]:.3f}")


def changes(before: Row, after: Row) -> Iterator[str]:
    """One line for each difference between two results."""
    for name in before["models"].keys() & after["models"].keys():
        cells = [results["models"][name].get("tools", {}) for results in (before, after)]
        for tool in sorted(cells[0].keys() & cells[1].keys()):
            for what in _changed(cells[0][tool], cells[1][tool]):
                yield f"{name}, {tool}: {what}"


def _changed(old: Row, new: Row) -> Iterator[str]:
    was, is_ = (cell.get("error") or cell.get("wrong", "") for cell in (old, new))
    if was != is_:
        yield f"{was or 'right'} -> {is_ or 'right'}"
    if old.get("nodes", 0) != new.get("nodes", 0):
        yield f"{old.get('nodes', 0)} -> {new.get('nodes', 0)} nodes"
    for column in old.get("timings", {}).keys() & new.get("timings", {}).keys():
        one, other = old["timings"][column], new["timings"][column]
        if one["high"] < other["low"] or other["high"] < one["low"]:
            yield f"{column}: {one['median']:.2f} -> {other['median']:.2f}"
