"""The sections of the page on a benchmark."""

from __future__ import annotations

from collections.abc import Iterator

from graphopt.report.html import Html, element
from graphopt.report.page_layout import section, table
from graphopt.report.report_sections import operator_bars
from graphopt.runtime.bench import Benchmark, format_ms, ratio_cells
from graphopt.runtime.input_sizes import format_sizes
from graphopt.runtime.measure import TimingVerdict
from graphopt.runtime.profile import Profile
from graphopt.search.search_report import format_speedup


def benchmark_sentence(found: Benchmark) -> str:
    """Return the outcome in one sentence: what is known of the model that is the fastest of those timed."""
    ratios = [(ratio, name) for name, ratio in zip(found.models, found.overall_speedups, strict=True) if ratio]
    if not ratios:
        return f"{found.models[0]} takes {format_ms(found.cases[0].timings[0].samples.median)} ms a run"
    best, name = max(ratios, key=lambda pair: pair[0].median)
    also = "" if len(ratios) == 1 else " and is the fastest"
    told = "" if best.verdict is not TimingVerdict.SAME else ", which is no difference beyond noise"
    return f"{name} is {format_speedup(best)} as {found.models[0]}{also}{told}"


def benchmark_cards(found: Benchmark) -> Iterator[tuple[str, str, str]]:
    """Yield for each model its time at the first sizes, and how it compares with the first model."""
    for name, timing, ratio in zip(found.models, found.cases[0].timings, found.overall_speedups, strict=True):
        compared = "" if ratio is None else f"{ratio.median:.3f}×, {ratio.low:.3f} to {ratio.high:.3f}"
        yield f"{format_ms(timing.samples.median)} ms", name, compared


def times_section(found: Benchmark) -> Html:
    """Return the times of all models at all sizes."""
    parts: list[Html] = [element("p", str(found).splitlines()[0])]
    for case in found.cases:
        if case.sizes:
            parts.append(element("h3", format_sizes(case.sizes, case.chosen)))
        rows = [
            (
                timing.model,
                format_ms(timing.samples.minimum),
                format_ms(timing.samples.median),
                f"{timing.samples.spread:.1%}",
                str(len(timing.samples.seconds)),
                *ratio_cells(timing.speedup),
            )
            for timing in case.timings
        ]
        head = ("model", "minimum ms", "median ms", "spread", "rounds", "speedup", "between", "verdict")
        parts.append(table(head, rows, numbers=(1, 2, 3, 4, 5, 6)))
    return section("times", "Times", *parts)


def profile_section(before: Profile, after: Profile, number: int) -> Html:
    """Return where the time goes in a model and in another; `number` tells the sections of a page apart."""
    how = (
        f"Milliseconds of one run in the kernels of each operator, by ONNX Runtime's profiler: the mean of {after.runs}"
        f" runs. Before is {before.model}, after is {after.model}; the operators are those of the graph that ONNX"
        " Runtime makes of the file."
    )
    old, new = ({row.operator: row.seconds * 1e3 for row in each.rows} for each in (before, after))
    title = f"Where the time goes: {after.model}"
    return section(f"operators-{number}", title, element("p", how), operator_bars(old, new, ".3f"))
