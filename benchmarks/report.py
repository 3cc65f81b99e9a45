"""Tables and pictures of a result file, the README's part of them, and what changed between two files."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.tools import ALL

COLOURS = dict(
    zip(ALL, ("#0072b2", "#56b4e9", "#009e73", "#e69f00", "#cc79a7", "#d55e00", "#999999", "#333333"), strict=True)
)
"""Okabe and Ito's palette: told apart also by the colour-blind."""

README = Path(__file__).parent.parent / "README.md"
MARKS = ("<!-- speedups -->", "<!-- /speedups -->")
"""Around the README's generated part."""

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


def outcomes(cell: Row) -> Mapping[str, Row]:
    """By setting, for a tool that optimizes for each; under no name that for all settings."""
    found: Mapping[str, Row] = cell.get("settings", {"": cell})
    return found


def outcome(row: Row, tool: str, column: str) -> Row:
    """What a tool made of a model for a setting; empty where it was not run."""
    found = outcomes(row.get("tools", {}).get(tool, {}))
    return found.get("", found.get(column, {}))


def timings(results: Row, tool: str, column: str) -> dict[str, Row]:
    """By model, where the tool's outcome is right and was timed."""
    cells = {name: outcome(row, tool, column) for name, row in results["models"].items()}
    return {
        name: cell["timings"][column]
        for name, cell in cells.items()
        if not _reason(cell) and column in cell.get("timings", {})
    }


def _reason(cell: Row) -> str:
    """Why an outcome is none."""
    reason: str = cell.get("error") or cell.get("wrong", "")
    return reason


def failures(results: Row) -> Iterator[tuple[str, str, str]]:
    """Model, tool and reason of all that went wrong."""
    for name, row in results["models"].items():
        if "error" in row:
            yield name, "", row["error"]
        for tool, cell in row.get("tools", {}).items():
            for column, found in outcomes(cell).items():
                if _reason(found):
                    yield name, f"{tool} ({_setting(column)})" if column else tool, _reason(found)


def _models(count: int) -> str:
    return f"{count} model{'s' * (count != 1)}"


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
        *_circumstances(results),
        "",
        "A ratio is how many times as fast as ONNX Runtime's own full optimization makes the original the outcome",
        "runs, both under ORT_ENABLE_ALL: the median over interleaved rounds. In brackets the interval in which that",
        "median lies with 95 % confidence. ▲ faster, ▼ slower; no mark: no difference beyond noise (2 %).",
    ]
    parts = [head, _summary(results), _speeds(results), _failed(results), _costs(results)]
    return "\n".join(line for part in parts for line in [*part, ""])


def _circumstances(results: Row) -> list[str]:
    """What the file says of how it was made."""
    lines = []
    if "spinning" in results:
        lines.append(f"- Threads {'spin' if results['spinning'] else 'do not spin'} while they wait")
    if "search" in results:
        search = results["search"]
        lines.append(f"- graphopt searched for at most {search['seconds']:g} s; its cache: {search['cache']}")
    return lines


def _summary(results: Row) -> list[str]:
    lines = ["## Summary", ""]
    head = ["tool", "models", "geometric mean", "best", "worst", "faster", "slower", "failed or wrong", "optimizer, s"]
    for column in columns(results):
        rows = [_summary_row(results, tool, column) for tool in tools(results)]
        lines += [f"{_setting(column)}:", "", *table(head, rows), ""]
    return [*lines, "Optimizer: the median over the models of the seconds that the tool's whole process took."]


def _summary_row(results: Row, tool: str, column: str) -> list[str]:
    seconds = [cell["seconds"] for cell in _cells(results, tool, column) if "seconds" in cell]
    known = f"{statistics.median(seconds):.1f}" if seconds else ""
    return [tool, *_counted(results, tool, column), str(_failures(results, tool, column)), known]


def _cells(results: Row, tool: str, column: str) -> list[Row]:
    return [outcome(row, tool, column) for row in results["models"].values()]


def _failures(results: Row, tool: str, column: str) -> int:
    return sum(bool(_reason(cell)) for cell in _cells(results, tool, column))


def _counted(results: Row, tool: str, column: str) -> list[str]:
    """Models, geometric mean, best, worst, and how many are faster and slower beyond noise."""
    found = timings(results, tool, column)
    ratios = [timing["median"] for timing in found.values()]
    verdicts = [timing["verdict"] for timing in found.values()]
    speeds = [f"{geometric_mean(ratios):.3f}", f"{max(ratios):.2f}", f"{min(ratios):.2f}"] if ratios else [""] * 3
    return [str(len(found)), *speeds, str(verdicts.count("faster")), str(verdicts.count("slower"))]


def _setting(column: str) -> str:
    provider, _, threads = column.partition("-")
    return f"{provider.upper()}, " + ("1 thread" if threads == "1" else f"{threads} threads")


def _speeds(results: Row) -> list[str]:
    note = "Headroom: ONNX Runtime's time in all kernels of the original over that in Conv, Gemm and MatMul, which no"
    rest = "rewrite makes faster. ms: the fastest run of the original."
    lines = []
    for column in columns(results):
        head = ["model", "headroom", "ms", *tools(results)]
        rows = [_speed_row(name, row, tools(results), column) for name, row in results["models"].items()]
        lines += [f"## Speed: {_setting(column)}", "", note, rest, "", *table(head, rows), ""]
    return lines[:-1]


def _speed_row(name: str, row: Row, names: Iterable[str], column: str) -> list[str]:
    original = row.get("original", {}).get(column, {})
    cells = [_speed_cell(outcome(row, tool, column), column) for tool in names]
    facts = [f"{original[fact]:.2f}" if fact in original else "" for fact in ("headroom", "minimum_ms")]
    return [name, *facts, *cells]


def _speed_cell(cell: Row, column: str) -> str:
    if _reason(cell):
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
    cells = [(tool, cell) for row in results["models"].values() for tool, cell in row.get("tools", {}).items()]
    made = [
        (tool, column)
        for tool in tools(results)
        for column in dict.fromkeys(column for known, cell in cells if known == tool for column in outcomes(cell))
    ]
    head = ["model", "nodes", "MB", *(f"{tool}, {_setting(column)}" if column else tool for tool, column in made)]
    lines = []
    for name, row in results["models"].items():
        costs = [_cost_cell(outcome(row, tool, column)) for tool, column in made]
        lines.append([name, str(row.get("nodes", "")), f"{row.get('bytes', 0) / 1e6:.1f}", *costs])
    note = "Seconds and peak megabytes of the tool's whole process with imports, load and save; nodes; size in MB; the"
    load = "time to make a session of the outcome, as a multiple of the original's; the largest difference."
    return ["## Cost of optimizing, and outcomes", "", note, load, "", *table(head, lines)]


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


# -- the README --------------------------------------------------------------------------------------------------------


def readme_part(results: Row, path: Path) -> str:
    """Between the marks: what was measured where, a row a tool, and a picture, in the README's folder."""
    settings = columns(results)
    known = results["versions"]
    packages = ["onnxruntime", *(package for package in known if package not in ("onnx", "onnxruntime"))]
    versions = ", ".join(f"{package} {known[package]}" for package in packages)
    head = ["tool", "models"]
    for column in settings:
        head += [f"{_setting(column)}: mean", "worst to best", "faster, slower"]
    rows = [_readme_row(results, tool, settings) for tool in tools(results)]
    folder = f"{path.parent.parent.name}/{path.parent.name}"
    lines = [
        f"{_models(len(results['models']))} on {results['machine']}, {results['date']}; {versions}.",
        "",
        *table([*head, "failed or wrong"], rows),
        "",
        f"![Speed of each outcome against the original, a dot a model]({folder}/{_picture(path, 'summary').name})",
        "",
        f"[The whole table]({folder}/{path.stem}.md) has every model, and what optimizing cost.",
    ]
    return "\n".join(lines)


def _readme_row(results: Row, tool: str, settings: Sequence[str]) -> list[str]:
    counts = {column: _counted(results, tool, column) for column in settings}
    row = [tool, "/".join(dict.fromkeys(models for models, *_ in counts.values()))]
    for _, mean, best, worst, faster, slower in counts.values():
        row += [mean, f"{worst}–{best}", f"{faster}, {slower}"] if mean else [""] * 3
    failed = dict.fromkeys(str(_failures(results, tool, column)) for column in settings)
    return [*row, "/".join(failed)]


def readme_text(path: Path, readme: Path = README) -> str:
    """The README with the part of a result file in its place."""
    before, rest = readme.read_text(encoding="utf-8").split(MARKS[0])
    _, after = rest.split(MARKS[1])
    part = readme_part(json.loads(path.read_text(encoding="utf-8")), path)
    return f"{before}{MARKS[0]}\n\n{part}\n\n{MARKS[1]}{after}"


def update_readme(path: Path, readme: Path = README) -> Path:
    """Write the part of a result file into the README."""
    readme.write_text(readme_text(path, readme), encoding="utf-8")
    return readme


# -- pictures ----------------------------------------------------------------------------------------------------------


def pictures(results: Row, path: Path) -> list[Path]:
    """Speedups at a glance, each model with its error bars, time against nodes, speedup against headroom."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams |= {"axes.spines.top": False, "axes.spines.right": False, "axes.titlelocation": "left"}
    mpl.rcParams |= {"axes.titlesize": 10, "axes.labelsize": 9}
    figures = {"summary": _overview(results), "time": _by_nodes(results), "headroom": _by_headroom(results)}
    for column in columns(results):
        figures[f"{column.removeprefix(f'{path.stem}-')}-models"] = _by_model(results, column)
    return [_saved(figure, _picture(path, name)) for name, figure in figures.items()]


def _picture(path: Path, name: str) -> Path:
    return path.with_name(f"{path.stem}-{name}.png")


def _saved(figure: Any, target: Path) -> Path:
    import matplotlib.pyplot as plt

    figure.savefig(target, dpi=110, bbox_inches="tight", metadata={"Software": ""})
    plt.close(figure)
    return target


def _ratio_axis(axis: Any, ratios: Iterable[float]) -> None:
    """Logarithmic, as twice and half are equally far from 1; wide enough for everything."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

    ratios = [*ratios, 0.9, 1.1]
    axis.set_xscale("log")
    axis.set_xlim(min(ratios) / 1.03, max(ratios) * 1.03)
    steps = (0.1, 0.2, 0.35, 0.5, 0.7, 0.8, 0.9, 0.95, 1, 1.05, 1.1, 1.25, 1.5, 2, 3, 5, 10)
    axis.xaxis.set_major_locator(FixedLocator(steps))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.axvline(1, color="black", linewidth=0.8, zorder=0)
    axis.grid(axis="x", color="#dddddd", linewidth=0.6, zorder=0)


RATIO = "times as fast as the original, both under ORT_ENABLE_ALL"


def _overview(results: Row) -> Any:
    """One line a tool: a dot a model, the geometric mean as a bar; one panel a setting."""
    import matplotlib.pyplot as plt

    names, settings = tools(results), columns(results)
    size = (9, (0.42 * len(names) + 1) * len(settings))
    figure, axes = plt.subplots(len(settings), figsize=size, sharex=True, squeeze=False, layout="constrained")
    everything = [t["median"] for c in settings for tool in names for t in timings(results, tool, c).values()]
    for axis, column in zip(axes[:, 0], settings, strict=True):
        for place, tool in enumerate(reversed(names)):
            _dots(axis, place, tool, sorted(timing["median"] for timing in timings(results, tool, column).values()))
        axis.set_yticks(range(len(names)), list(reversed(names)))
        _ratio_axis(axis, everything)
        axis.set_title(f"{_setting(column)}: a dot a model; the bar and the number: geometric mean")
    axes[-1, 0].set_xlabel(RATIO)
    return figure


def _dots(axis: Any, place: int, tool: str, ratios: Sequence[float]) -> None:
    heights = [place + 0.44 * ((index * 0.618) % 1 - 0.5) for index in range(len(ratios))]
    axis.scatter(ratios, heights, s=18, color=COLOURS[tool], alpha=0.6, linewidths=0)
    if ratios:
        mean = geometric_mean(ratios)
        axis.plot([mean, mean], [place - 0.36, place + 0.36], color="black", linewidth=2)
        axis.annotate(f"{mean:.3f}", (1.01, place), xycoords=("axes fraction", "data"), va="center")


def _by_model(results: Row, column: str) -> Any:
    """One band a model, in it one line a tool: the median and its interval."""
    import matplotlib.pyplot as plt

    models = [name for name, row in results["models"].items() if column in row.get("original", {})]
    names = tools(results)
    found = {tool: timings(results, tool, column) for tool in names}
    figure, axis = plt.subplots(figsize=(9, 0.06 * (len(names) + 1) * len(models) + 1.5), layout="constrained")
    for place, name in enumerate(reversed(models)):
        axis.axhspan(place - 0.5, place + 0.5, color="#f0f0f0" if place % 2 else "white", zorder=-1)
        for number, tool in enumerate(names):
            if name in found[tool]:
                height = place + 0.5 - (number + 1) / (len(names) + 1)
                _interval(axis, found[tool][name], height, COLOURS[tool])
    axis.set_yticks(range(len(models)), list(reversed(models)), fontsize=8)
    axis.set_ylim(-0.5, len(models) - 0.5)
    _ratio_axis(axis, [t[end] for timed in found.values() for t in timed.values() for end in ("low", "high")])
    axis.tick_params("x", top=True, labeltop=True)
    axis.set_xlabel(f"{RATIO}; medians, 95 % intervals")
    axis.set_title(f"Every model and tool: {_setting(column)}")
    _legend(figure, names)
    return figure


def _interval(axis: Any, timing: Row, height: float, colour: str) -> None:
    axis.plot([timing["low"], timing["high"]], [height, height], color=colour, linewidth=1.2)
    axis.plot(timing["median"], height, "o", color=colour, markersize=3)


def _legend(figure: Any, names: Iterable[str]) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=COLOURS[tool], marker="o", linestyle="", label=tool) for tool in names]
    figure.legend(handles=handles, loc="outside upper center", ncols=4, frameon=False, fontsize=8)


def _by_headroom(results: Row) -> Any:
    """What there is to win, and what was won; one panel a setting."""
    import matplotlib.pyplot as plt

    names, settings = tools(results), columns(results)
    size = (5.5 * len(settings), 4.5)
    figure, axes = plt.subplots(1, len(settings), figsize=size, sharey=True, squeeze=False, layout="constrained")
    for axis, column in zip(axes[0], settings, strict=True):
        for tool in names:
            _points(axis, tool, list(_rooms(results, tool, column)))
        axis.axhline(1, color="black", linewidth=0.8, zorder=0)
        axis.set_xlabel("headroom: time in all kernels / time in Conv, Gemm and MatMul")
        axis.set_title(f"Speed against headroom: {_setting(column)}")
    axes[0, 0].set_ylabel(RATIO)
    _legend(figure, names)
    return figure


def _rooms(results: Row, tool: str, column: str) -> Iterator[tuple[float, float]]:
    """Headroom and ratio of each model that has one: where there is no heavy kernel there is no end to it."""
    for name, timing in timings(results, tool, column).items():
        headroom = results["models"][name]["original"][column]["headroom"]
        if math.isfinite(headroom):
            yield headroom, timing["median"]


def _points(axis: Any, tool: str, points: Sequence[tuple[float, float]]) -> None:
    x, y = zip(*points, strict=True) if points else ((), ())
    axis.scatter(x, y, s=16, color=COLOURS[tool], alpha=0.7, linewidths=0)


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

    figure, axis = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for tool in tools(results):
        cells = [(row["nodes"], outcome_) for row in results["models"].values() if tool in row.get("tools", {})
                 for outcome_ in outcomes(row["tools"][tool]).values()]  # fmt: skip
        _points(axis, tool, [(nodes, cell["seconds"]) for nodes, cell in cells if "seconds" in cell])
    _logarithmic(axis)
    axis.set_xlabel("nodes of the original")
    axis.set_ylabel("seconds of the whole process")
    axis.set_title("Optimizer time against the size of the graph: a dot a model and outcome")
    _legend(figure, tools(results))
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
                print(f"{tool}, {_setting(column)}, {_models(len(both))}: {means[0]:.3f} -> {means[1]:.3f}")


def changes(before: Row, after: Row) -> Iterator[str]:
    """One line for each difference between two results of the same model and tool."""
    settings = dict.fromkeys([*columns(before), *columns(after)])
    for name, row in after["models"].items():
        was = before["models"].get(name, {})
        for tool in sorted(row.get("tools", {}).keys() & was.get("tools", {}).keys()):
            pairs = [(column, outcome(was, tool, column), outcome(row, tool, column)) for column in settings]
            found = (what for column, old, new in pairs if old and new for what in _changed(old, new, column))
            yield from (f"{name}, {tool}: {what}" for what in dict.fromkeys(found))


def _changed(old: Row, new: Row, column: str) -> Iterator[str]:
    was, is_ = _reason(old), _reason(new)
    if was != is_:
        yield f"{was or 'right'} -> {is_ or 'right'}"
    if old.get("nodes", 0) != new.get("nodes", 0):
        yield f"{old.get('nodes', 0)} -> {new.get('nodes', 0)} nodes"
    if column in old.get("timings", {}) and column in new.get("timings", {}):
        one, other = old["timings"][column], new["timings"][column]
        if one["high"] < other["low"] or other["high"] < one["low"]:
            yield f"{column}: {one['median']:.2f} -> {other['median']:.2f}"
