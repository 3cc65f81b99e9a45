"""Changes between two result files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.report import listed, many
from benchmarks.results import LIMITS_BEFORE, Results, Row, geometric_mean, reason, setting_text, values, versions
from benchmarks.tools import ALL, PLAIN

DEARER = {"seconds": (1.5, "s"), "memory_mb": (1.2, "MB")}
"""Factors below which a change of what a tool takes is not worth a line: its seconds are those of one run."""

SHOWN = 5
"""Names in a warning, at most; of more, it has their number."""


def compare(old: Path, new: Path) -> Iterator[str]:
    """Yield how two files were made differently, every row that changed, and the means of what both have."""
    before, after = Results.read(old), Results.read(new)
    yield from (f"warning: {line}" for line in warnings(before, after))
    if not [*_common(before, after)]:
        yield "The files have no model and tool in common."
        return
    yield from [*changes(before, after)] or ["No change is resolved."]
    for setting in after.settings:
        for tool in (*after.tools, PLAIN):
            known, found = (results.timings(tool, setting) for results in (before, after))
            if both := sorted(found.keys() & known.keys()):
                means = [geometric_mean(timings[name]["median"] for name in both) for timings in (known, found)]
                name = "copies (noise)" if tool == PLAIN else tool
                yield f"{name}, {setting_text(setting)}, {many(len(both), 'model')}: {means[0]:.3f} -> {means[1]:.3f}"


def warnings(before: Results, after: Results) -> Iterator[str]:
    """Yield what makes the files hard to compare: made otherwise or of other things."""
    pairs = zip(_conditions(before).items(), _conditions(after).values(), strict=True)
    yield from (f"other {what}: {old or 'not said'}; {new or 'not said'}" for (what, old), new in pairs if old != new)
    files = [{name: row["made"].get("file") for name, row in results.models.items()} for results in (before, after)]
    if others := [name for name, file in files[0].items() if files[1].get(name, file) != file]:
        yield f"other files of the models: {_few(others)}"
    for what, names, other_names in (
        ("models", [*before.models], [*after.models]),
        ("tools", before.tools, after.tools),
        ("settings", before.settings, after.settings),
    ):
        for which, some, rest in (("first", names, other_names), ("second", other_names, names)):
            if alone := [name for name in some if name not in rest]:
                yield f"{what} of the {which} file alone: {_few(alone)}"


def _conditions(results: Results) -> dict[str, str]:
    """Return how a file was made, as text."""
    known = {
        "machine": values(results.rows, "made", "machine"),
        "device": values(results.rows, "made", "gpu"),
        "seconds of timing": values(results.rows, "made", "seconds"),
        "seconds of search": values(results.rows, "made", "search"),
    }
    runtime = ["onnx", "onnxruntime"]  # another version of a tool may be what is compared
    packages = {
        name: version for name, version in versions(results.rows, "made", "versions").items() if name in runtime
    }
    made_by = versions([*results.models.values()], "exporters")
    texts = {what: " and ".join(map(str, found)) for what, found in known.items()}
    return texts | {"versions": listed(packages), "exporters": listed(made_by)}


def _few(names: Sequence[str]) -> str:
    rest = len(names) - SHOWN
    return f"{', '.join(names[:SHOWN])} and {rest} more" if rest > 1 else ", ".join(names)


def _common(before: Results, after: Results) -> Iterator[tuple[Row, Row]]:
    """Yield the pairs of rows of the same model, tool and setting."""
    for row in after.rows:
        if row["tool"] in ALL and (known := before.get(row["model"], row["tool"], row["setting"])):
            yield known, row


def changes(before: Results, after: Results) -> Iterator[str]:
    """Yield a line for each difference between two results of the same model and tool, and of the same model."""
    for name, row in after.models.items():
        known = before.models.get(name, row)
        if reason(known) != reason(row):
            yield f"{name}: {reason(known) or 'right'} -> {reason(row) or 'right'}"
    for known, row in _common(before, after):
        yield from (f"{row['model']}, {row['tool']} ({row['setting']}): {what}" for what in _changed(known, row))


def _changed(old: Row, new: Row) -> Iterator[str]:
    if reason(old) != reason(new):
        yield f"{reason(old) or 'right'} -> {reason(new) or 'right'}"
    if old.get("nodes", 0) != new.get("nodes", 0):
        yield f"{old.get('nodes', 0)} -> {new.get('nodes', 0)} nodes"
    for cost, (factor, unit) in DEARER.items():
        if cost in old and cost in new and not 1 / factor <= new[cost] / max(old[cost], 1e-9) <= factor:
            yield f"optimizer: {old[cost]:g} -> {new[cost]:g} {unit}"
    if "timing" in old and "timing" in new:
        one, other = old["timing"], new["timing"]
        most = 1 + max(timing.get("noise", LIMITS_BEFORE["noise"]) for timing in (one, other))
        is_apart = one["high"] < other["low"] or other["high"] < one["low"]
        if is_apart and not 1 / most <= other["median"] / one["median"] <= most:
            yield f"{one['median']:.2f} -> {other['median']:.2f}"
