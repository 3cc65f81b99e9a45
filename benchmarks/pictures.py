"""The pictures of a result file: speedups at a glance, the models that differ, speed against headroom, time."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cells import (
    Row,
    cells,
    columns,
    digest,
    geometric_mean,
    setting,
    timings,
    tools,
    unchanged,
)
from benchmarks.tools import LIBRARIES
from graphopt.runtime.measure import TimingPolicy

NOISE = TimingPolicy().noise
"""Distance from 1 up to which a ratio is no difference."""

COLOURS = {
    "onnxsim": "#0072b2", "OnnxSlim": "#56b4e9", "onnxoptimizer": "#009e73", "onnxscript": "#e69f00",
    "graphopt-simplify": "#cc79a7", "graphopt": "#d55e00", "onnxscript-ort": "#999999", "ort-transformers": "#333333",
    "graphopt-ort": "#8c2d04", "timm": "#7b3294",
}  # fmt: skip
"""Okabe and Ito's palette and a dark violet: told apart also by the colour-blind."""

OWN = ("graphopt-simplify", "graphopt", "graphopt-ort")
"""The columns that the others are compared with."""

UNCHANGED = "unchanged (noise)"
"""The row of the outcomes that are their originals."""

VISIBLE = 0.03
"""A model without a verdict is worth a line where a ratio is farther from 1 and its interval leaves 1 out."""

GROUPS = 5
"""So many groups of models, by nodes, has a line of medians."""

RATIO = "times as fast as the original"
LIMIT = "if only Conv, Gemm and MatMul were left, as they are"


def draw(results: Row, path: Path) -> list[Path]:
    """Draw all, beside the result file; nothing where nothing was timed."""
    return [saved(figure.drawn(), target(path, name), results) for name, figure in figures(results, path).items()]


class Figure(NamedTuple):
    """A picture that is not drawn yet."""

    says: str
    drawn: Callable[[], Any]


def figures(results: Row, path: Path) -> dict[str, Figure]:
    """The pictures of a result file by their names; none where nothing was timed."""
    if not columns(results):
        return {}
    found = {
        "summary": Figure("Speed of each outcome against the original, a dot a model", partial(overview, results)),
        "time": Figure("Seconds that each tool takes, by the nodes of the model", partial(by_nodes, results)),
    }
    if any(True for column in columns(results) for tool in tools(results) for _ in _rooms(results, tool, column)):
        found["headroom"] = Figure("Speed by headroom", partial(by_headroom, results))
    for column in columns(results):
        name = f"{column.removeprefix(f'{path.stem}-')}-models"
        found[name] = Figure(f"Each model, {setting(column)}", partial(by_model, results, column))
    return found


def target(path: Path, name: str) -> Path:
    """The file of a picture."""
    return path.with_name(f"{path.stem}-{name}.png")


def saved(figure: Any, path: Path, results: Row) -> Path:
    """Write a figure, the same bytes for the same one, and in it the digest of what it shows; and forget it."""
    import matplotlib.pyplot as plt

    figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": "", "Source": digest(results)})
    plt.close(figure)
    return path


def panels(rows: int, across: int, size: tuple[float, float], **options: Any) -> tuple[Any, Any]:
    """A figure and its panels, drawn into a file and on no screen."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    mpl.use("Agg")
    mpl.rcParams |= {"axes.spines.top": False, "axes.spines.right": False, "axes.titlelocation": "left"}
    mpl.rcParams |= {"axes.titlesize": 10, "axes.labelsize": 9}
    figure, axes = plt.subplots(rows, across, figsize=size, squeeze=False, layout="constrained", **options)
    return figure, axes


# -- speed -------------------------------------------------------------------------------------------------------------


def overview(results: Row) -> Any:
    """One line a tool and one of noise: a dot a model, the geometric mean as a bar; one panel a setting."""
    settings = columns(results)
    found = [{tool: _medians(timings(results, tool, c).values()) for tool in tools(results)} for c in settings]
    for column, lines in zip(settings, found, strict=True):
        lines[UNCHANGED] = _medians(unchanged(results, column))
    names = [*tools(results), UNCHANGED]
    figure, axes = panels(len(settings), 1, (9, (0.42 * len(names) + 1) * len(settings)), sharex=True)
    everything = [ratio for lines in found for ratios in lines.values() for ratio in ratios]
    for axis, column, lines in zip(axes[:, 0], settings, found, strict=True):
        for place, name in enumerate(reversed(names)):
            _dots(axis, place, lines[name], COLOURS.get(name, "#bbbbbb"))
        axis.set_yticks(range(len(names)), list(reversed(names)))
        _ratio_axis(axis, everything)
        axis.set_title(f"{setting(column)}: a dot a model; the bar: geometric mean, of so many; the band: ±2 %")
    axes[-1, 0].set_xlabel(f"{RATIO}, both under ORT_ENABLE_ALL")
    return figure


def _medians(timed: Iterable[Row]) -> list[float]:
    return sorted(timing["median"] for timing in timed)


def _dots(axis: Any, place: int, ratios: Sequence[float], colour: str) -> None:
    heights = [place + 0.44 * ((index * 0.618) % 1 - 0.5) for index in range(len(ratios))]
    axis.scatter(ratios, heights, s=18, color=colour, alpha=0.6, linewidths=0)
    if ratios:
        mean = geometric_mean(ratios)
        axis.plot([mean, mean], [place - 0.36, place + 0.36], color="black", linewidth=2)
        axis.annotate(f"{mean:.3f} ({len(ratios)})", (1.01, place), xycoords=("axes fraction", "data"), va="center")


def _ratio_axis(axis: Any, ratios: Iterable[float]) -> None:
    """Logarithmic, as twice and half are equally far from 1; wide enough for everything; a band for noise."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

    ratios = [*ratios, 0.9, 1.1]
    axis.set_xscale("log")
    axis.set_xlim(min(ratios) / 1.03, max(ratios) * 1.03)
    steps = (0.1, 0.2, 0.35, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 5, 10)
    near = (0.95, 1.05) if max(ratios) < 1.6 * min(ratios) else ()
    axis.xaxis.set_major_locator(FixedLocator(sorted((*steps, *near))))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.axvspan(1 - NOISE, 1 + NOISE, color="#000000", alpha=0.06, linewidth=0, zorder=-0.5)
    axis.axvline(1, color="black", linewidth=0.8, zorder=0)
    axis.grid(axis="x", color="#dddddd", linewidth=0.6, zorder=0)


def by_model(results: Row, column: str) -> Any:
    """The models in which something differs: one band a model, in it a line a tool: the median and its interval."""
    names = tools(results)
    found = {tool: timings(results, tool, column) for tool in names}
    measured = [name for name, row in results["models"].items() if column in row.get("original", {})]
    models = [name for name in measured if any(_differs(timed[name]) for timed in found.values() if name in timed)]
    figure, ((axis,),) = panels(1, 1, (9, 0.07 * (len(names) + 1) * max(len(models), 2) + 1.5))
    for place, name in enumerate(reversed(models)):
        axis.axhspan(place - 0.5, place + 0.5, color="#f4f4f4" if place % 2 else "white", zorder=-1)
        for number, tool in enumerate(names):
            if name in found[tool]:
                height = place + 0.5 - (number + 1) / (len(names) + 1)
                _interval(axis, found[tool][name], height, tool)
    axis.set_yticks(range(len(models)), list(reversed(models)), fontsize=8)
    axis.set_ylim(-0.5, max(len(models), 1) - 0.5)
    shown = [timed[name] for timed in found.values() for name in models if name in timed]
    _ratio_axis(axis, [timing[end] for timing in shown for end in ("low", "high")])
    axis.tick_params("x", top=True, labeltop=True)
    axis.set_xlabel(f"{RATIO}, both under ORT_ENABLE_ALL; medians and their intervals; the band: ±2 %")
    rest = len(measured) - len(models)
    axis.set_title(f"{setting(column)}: models in which a difference is resolved; no difference: {rest} models")
    _legend(figure, names)
    return figure


def _differs(timing: Row) -> bool:
    far = abs(timing["median"] - 1) > VISIBLE and not timing["low"] <= 1 <= timing["high"]
    return far or timing["verdict"] in ("faster", "slower")


def _interval(axis: Any, timing: Row, height: float, tool: str) -> None:
    own = tool in OWN
    look = {"color": COLOURS[tool], "alpha": 1 if own else 0.55, "zorder": 3 if own else 2}
    axis.plot([timing["low"], timing["high"]], [height, height], linewidth=2.4 if own else 1, **look)
    axis.plot(timing["median"], height, "D" if own else "o", markersize=5 if own else 3, **look)


def _legend(figure: Any, names: Iterable[str]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=COLOURS[name], marker="D" if name in OWN else "o", linestyle="", label=name)
        for name in names
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=4, frameon=False, fontsize=8)


def by_headroom(results: Row) -> Any:
    """What there is to win, and what was won: graphopt in colour before the others; one panel a setting."""
    names, settings = tools(results), columns(results)
    own = [tool for tool in OWN if tool in names]
    figure, axes = panels(1, len(settings), (5.5 * len(settings), 4.8), sharey=True)
    for axis, column in zip(axes[0], settings, strict=True):
        others = [room for tool in names if tool not in OWN for room in _rooms(results, tool, column)]
        _rooms_shown(axis, others, "#bbbbbb", "others")
        for tool in own:
            _rooms_shown(axis, list(_rooms(results, tool, column)), COLOURS[tool], tool)
        axis.axhspan(1 - NOISE, 1 + NOISE, color="#000000", alpha=0.06, linewidth=0, zorder=-0.5)
        axis.axhline(1, color="black", linewidth=0.8, zorder=0)
        axis.set_xlabel("headroom: time in all kernels / time in Conv, Gemm and MatMul")
        axis.set_title(f"{setting(column)}: medians and their intervals")
    low, high = axes[0, 0].get_ylim()  # the panels share it
    for axis in axes[0]:
        axis.plot([1, high], [1, high], "--", color="#bbbbbb", linewidth=1, label=LIMIT, zorder=0)
        axis.set_ylim(low, high)
    axes[0, 0].set_ylabel(RATIO)
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False, fontsize=8
    )
    return figure


def _rooms(results: Row, tool: str, column: str) -> Iterator[tuple[float, Row]]:
    """Headroom and timing of each model that has one: on devices, and without a heavy kernel, there is none."""
    for name, timing in timings(results, tool, column).items():
        headroom = results["models"][name]["original"].get(column, {}).get("headroom")
        if headroom is not None:
            yield headroom, timing


def _rooms_shown(axis: Any, rooms: Sequence[tuple[float, Row]], colour: str, label: str) -> None:
    medians = [timing["median"] for _, timing in rooms]
    below = [max(timing["median"] - timing["low"], 0) for _, timing in rooms]
    above = [max(timing["high"] - timing["median"], 0) for _, timing in rooms]
    axis.errorbar(
        [headroom for headroom, _ in rooms], medians, (below, above), fmt="o", color=colour, label=label,
        markersize=4, elinewidth=0.7, alpha=0.5 if label == "others" else 0.9, zorder=1 if label == "others" else 3,
    )  # fmt: skip


# -- time --------------------------------------------------------------------------------------------------------------


def by_nodes(results: Row) -> Any:
    """How long optimizing takes against the size of the graph: a dot an outcome, and a line of medians a tool.

    Without the libraries: most of their time is the export.
    """
    figure, ((axis,),) = panels(1, 1, (7, 4.8))
    for tool in tools(results):
        if tool in LIBRARIES:
            continue
        points = sorted(
            (results["models"][name]["nodes"], cell["seconds"])
            for name, known, _, cell in cells(results)
            if known == tool and "seconds" in cell
        )
        nodes, seconds = zip(*points, strict=True) if points else ((), ())
        axis.scatter(nodes, seconds, s=10, color=COLOURS[tool], alpha=0.3, linewidths=0)
        middle = _middle(points)
        width = 2.8 if tool in OWN else 1.4
        axis.plot([x for x, _ in middle], [y for _, y in middle], color=COLOURS[tool], linewidth=width, label=tool)
    logarithmic(axis)
    axis.set_xlabel("nodes of the original")
    axis.set_ylabel("seconds of the whole process")
    axis.set_title(f"Optimizer time: a dot an outcome; lines: medians of {GROUPS} groups of models by nodes")
    figure.legend(loc="outside upper center", ncols=4, frameon=False, fontsize=8)
    return figure


def _middle(points: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """Medians of groups of equal size, in the order of the nodes; fewer groups where there are fewer points."""
    count = min(GROUPS, len(points))
    groups = [points[len(points) * i // count : len(points) * (i + 1) // count] for i in range(count)]
    return [(statistics.median(x for x, _ in group), statistics.median(y for _, y in group)) for group in groups]


def logarithmic(axis: Any) -> None:
    """Both ways, with ticks at 1, 2 and 5 written as plain numbers, or at powers of ten where that is too many."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_xscale("log")
    axis.set_yscale("log")
    for direction in (axis.xaxis, axis.yaxis):
        low, high = direction.get_view_interval()
        direction.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
        direction.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        direction.set_minor_formatter(NullFormatter())
