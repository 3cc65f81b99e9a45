"""The pictures: speedups at a glance, and what the benchmarks' pictures have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import Results, Row, digest, geometric_mean, setting_text
from benchmarks.tools import PLAIN

COLOURS = {
    "onnxsim": "#0072b2", "OnnxSlim": "#56b4e9", "onnxoptimizer": "#009e73", "onnxscript": "#e69f00",
    "graphopt-simplify": "#cc79a7", "graphopt-5s": "#fdae6b", "graphopt-15s": "#f16913", "graphopt": "#d55e00",
    "graphopt-ort": "#8c2d04", "openvino": "#7b3294",
}  # fmt: skip
"""Okabe and Ito's palette and a dark violet: told apart also by the colour-blind."""

COPIES = "copies (noise)"
"""The row of copies of the originals."""


def panels(rows: int, across: int, size: tuple[float, float], **options: Any) -> tuple[Any, Any]:
    """Return a figure and its panels, drawn into a file and on no screen."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    mpl.use("Agg")
    mpl.rcParams |= {"axes.spines.top": False, "axes.spines.right": False, "axes.titlelocation": "left"}
    mpl.rcParams |= {"axes.titlesize": 10, "axes.labelsize": 9}
    figure, axes = plt.subplots(rows, across, figsize=size, squeeze=False, layout="constrained", **options)
    return figure, axes


def saved(figure: Any, path: Path, rows: Iterable[Row]) -> Path:
    """Write a figure, the same bytes for the same one, with the digest of the rows that it shows; and forget it."""
    import matplotlib.pyplot as plt

    figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": "", "Source": digest(rows)})
    plt.close(figure)
    return path


def overview(results: Results) -> Any:
    """Draw one line a tool and one of noise: a dot a model, the geometric mean as a bar; one panel a setting."""
    names = [*results.tools, COPIES]
    found = []
    for setting in results.settings:
        lines = {tool: _medians(results.timings(tool, setting).values()) for tool in results.tools}
        found.append(lines | {COPIES: _medians(results.timings(PLAIN, setting).values())})
    count, noise = len(results.settings), max(results.limits("noise"), default=0.0)
    figure, axes = panels(count, 1, (9, (0.42 * len(names) + 1) * count), sharex=True)
    everything = [ratio for lines in found for ratios in lines.values() for ratio in ratios]
    for axis, setting, lines in zip(axes[:, 0], results.settings, found, strict=True):
        for place, name in enumerate(reversed(names)):
            _dots(axis, place, lines[name], COLOURS.get(name, "#bbbbbb"))
        axis.set_yticks(range(len(names)), list(reversed(names)))
        _ratio_axis(axis, everything, noise)
        text = f"a dot a model; the bar: geometric mean, of so many; the band: ±{100 * noise:.0f} %"
        axis.set_title(f"{setting_text(setting)}: {text}")
    axes[-1, 0].set_xlabel("times as fast as the original, both under ORT_ENABLE_ALL")
    return figure


def _medians(timings: Iterable[Row]) -> list[float]:
    return sorted(timing["median"] for timing in timings)


def _dots(axis: Any, place: int, ratios: Sequence[float], colour: str) -> None:
    heights = [place + 0.44 * ((index * 0.618) % 1 - 0.5) for index in range(len(ratios))]
    axis.scatter(ratios, heights, s=18, color=colour, alpha=0.6, linewidths=0)
    if ratios:
        mean = geometric_mean(ratios)
        axis.plot([mean, mean], [place - 0.36, place + 0.36], color="black", linewidth=2)
        axis.annotate(f"{mean:.3f} ({len(ratios)})", (1.01, place), xycoords=("axes fraction", "data"), va="center")


def _ratio_axis(axis: Any, ratios: Iterable[float], noise: float) -> None:
    """Make an axis logarithmic, as twice and half are equally far from 1; wide enough, with a band for noise."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

    ratios = [*ratios, 0.9, 1.1]
    axis.set_xscale("log")
    axis.set_xlim(min(ratios) / 1.03, max(ratios) * 1.03)
    steps = (0.1, 0.2, 0.35, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 5, 10)
    near = (0.95, 1.05) if max(ratios) < 1.6 * min(ratios) else ()
    axis.xaxis.set_major_locator(FixedLocator(sorted((*steps, *near))))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.axvspan(1 - noise, 1 + noise, color="#000000", alpha=0.06, linewidth=0, zorder=-0.5)
    axis.axvline(1, color="black", linewidth=0.8, zorder=0)
    axis.grid(axis="x", color="#dddddd", linewidth=0.6, zorder=0)
