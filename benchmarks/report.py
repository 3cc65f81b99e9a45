"""The page of a result file, the README's part of it, and what changed between two files."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cells import (
    Row,
    cells,
    columns,
    exporters,
    failures,
    geometric_mean,
    holding,
    made,
    outcome,
    reason,
    setting,
    timings,
    tools,
    unchanged,
    versions,
)
from benchmarks.pictures import OWN, UNCHANGED, draw, figures, target
from benchmarks.run import read
from benchmarks.tools import ALL, PLAIN, TOOLS, applies
from graphopt.runtime.measure import TimingPolicy

README = Path(__file__).parent.parent / "README.md"
MARKS = ("<!-- speedups -->", "<!-- /speedups -->")
"""Around the README's generated part."""

DEARER = {"seconds": 1.5, "memory_mb": 1.2}
"""What a tool takes is not worth a line if it changed by less, as a factor: its seconds are those of one run."""

SHOWN = 5
"""So many names a warning has; of more, it has their number."""


def report(path: Path) -> list[Path]:
    """Write the page and the pictures beside the result file."""
    results = read(path)
    page = path.with_suffix(".md")
    page.write_text(markdown(results, path), encoding="utf-8")
    return [page, *draw(results, path)]


# -- what the numbers are of -------------------------------------------------------------------------------------------


def suite(results: Row) -> str:
    """What the models are: exports, not as many networks."""
    models = results["models"]
    architectures = {row["family"] for row in models.values()}
    whole = len(_published(results))
    reduced = "at reduced size (images mostly of 128 to 160 pixels a side, fewer layers and tokens)"
    sizes = f"{len(models) - whole} {reduced} and {whole} of the size that was published" if whole else f"and {reduced}"
    return (
        f"{_many(len(models), 'export')} of {_many(len(architectures), 'architecture')}, with random weights, of fixed "
        f"shapes for one input, {sizes}"
    )


def _published(results: Row) -> list[str]:
    """The models that have the size that was published."""
    return [name for name, row in results["models"].items() if row.get("published")]


def searched(results: Row) -> str:
    """What graphopt's columns are, and whether the search is among them."""
    if "graphopt" not in tools(results):
        return "The search (`graphopt`) is not in this table yet; `graphopt-simplify` is rules alone, without timing."
    own = " `graphopt-ort` may use ONNX Runtime's own operators;" if "graphopt-ort" in tools(results) else ""
    return (
        f"`graphopt` searched for at most {_either(made(results, 'search'))} s for each number of threads;{own} "
        "`graphopt-simplify` is rules alone, without timing."
    )


def called(results: Row) -> str:
    """The command that measures this."""
    options = {"--seconds": made(results, "seconds"), "--search-seconds": made(results, "search")}
    said = [f" {option} {_either(limits)}" for option, limits in options.items() if limits]
    return f"Made by `python -m benchmarks run{''.join(said)}`."


def _either(limits: Iterable[float]) -> str:
    return " or ".join(f"{limit:g}" for limit in limits)


def noise(results: Row) -> str:
    """What the row of unchanged outcomes is, and what follows for the others."""
    found = {setting(column): unchanged(results, column) for column in columns(results)}
    held = [f"{_percent(holding(timed))} ({name})" for name, timed in found.items() if timed]
    if not held:
        return "No outcome is its original: how much noise there is, these models do not say."
    return (
        f"`{UNCHANGED}`: copies of the original, and outcomes with its nodes and bytes, timed like all others. They "
        "show the noise: a mean that is nearer to 1 than theirs, or a single ratio between their worst and best, says "
        f"nothing. Their intervals held 1 in {' and '.join(held)}."
    )


def gains(results: Row) -> Iterator[str]:
    """Of graphopt's columns: of which architectures the gains are, and what is left without those."""
    for tool in OWN:
        for column in columns(results):
            timed = timings(results, tool, column)
            family = {name: results["models"][name]["family"] for name in timed}
            won = {family[name] for name, timing in timed.items() if timing["verdict"] == "faster"}
            inside = [timing["median"] for name, timing in timed.items() if family[name] in won]
            outside = [timing["median"] for name, timing in timed.items() if family[name] not in won]
            if inside and outside:
                yield (
                    f"`{tool}` ({setting(column)}): {geometric_mean(inside):.3f} over the {len(inside)} exports of "
                    f"{', '.join(sorted(won))}, of which one or more are faster; {geometric_mean(outside):.3f} over "
                    f"the other {len(outside)}."
                )


def as_published(results: Row) -> Iterator[str]:
    """The means over those of the size that was published of which all tools that take any file have an outcome."""
    families = {row["family"] for row in results["models"].values()}
    general = [tool for tool in tools(results) if all(applies(tool, family) for family in families)]
    for column in columns(results):
        timed = {tool: found for tool in general if (found := timings(results, tool, column))}
        names = [name for name in _published(results) if all(name in found for found in timed.values())]
        means = [
            f"{tool} {geometric_mean(found[name]['median'] for name in names):.3f}" for tool, found in timed.items()
        ]
        if names and means:
            said = f"As published, {_many(len(names), 'model')} of which every tool that takes any file has an outcome"
            yield f"{said} ({setting(column)}): {', '.join(means)}."


def alike(results: Row) -> Iterator[str]:
    """Of each tool that is for some families only: its mean and graphopt's over what all of them were timed on."""
    families = {row["family"] for row in results["models"].values()}
    for tool in tools(results):
        if all(applies(tool, family) for family in families):
            continue
        means = [shown for column in columns(results) if (shown := _means(results, tool, column))]
        if means:
            yield f"`{tool}` is for some families only. Geometric means over its models: {'; '.join(means)}."


def _means(results: Row, tool: str, column: str) -> str:
    """Of a tool and of graphopt over the models that they have in common; empty where there is none."""
    timed = {name: found for name in (tool, *OWN) if (found := timings(results, name, column))}
    common = set.intersection(*map(set, timed.values())) if tool in timed and len(timed) > 1 else set()
    if not common:
        return ""
    means = [f"{name} {geometric_mean(found[m]['median'] for m in common):.3f}" for name, found in timed.items()]
    return f"{', '.join(means)} ({setting(column)}, {_many(len(common), 'model')})"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _many(count: int, one: str) -> str:
    return f"{count} {one if count == 1 else f'{one}s'}"


# -- the page ----------------------------------------------------------------------------------------------------------


def markdown(results: Row, path: Path) -> str:
    """The page: what was measured where, the summary, every model, what failed, what optimizing costs."""
    head = [
        f"# Benchmarks: {path.stem}",
        "",
        f"Made by `python -m benchmarks run` and `report {path.name}`; the docstring of `benchmarks/run.py` says how.",
        "",
        *(f"- {line}" for line in _circumstances(results)),
        "",
        "A ratio is how many times as fast as ONNX Runtime's own full optimization makes the original the outcome",
        "runs, both under ORT_ENABLE_ALL: the median over interleaved rounds. In brackets the interval in which that",
        "median lies with 95 % confidence, or the medians of single processes where they lie farther apart. ▲ faster,",
        "▼ slower; no mark: no difference is resolved, or one within 2 %.",
    ]
    parts = [head, _summary(results), _pictures(results, path), _called(results), _models(results)]
    parts += [*_speeds(results), _failed(results)]
    parts += [*_costs(results), _searches(results)]
    return "\n".join(line for part in parts if part for line in [*part, ""])


def _circumstances(results: Row) -> Iterator[str]:
    """Of what, where, when, with what and how."""
    yield f"Models: {suite(results)}"
    yield f"Machine: {results['machine']}"
    if "gpu" in results:
        yield f"Device: {results['gpu']}"
    yield f"Versions: {_versions(results)}"
    if made_by := exporters(results):
        yield f"Exported with {_listed(made_by)}"
    if revisions := made(results, "graphopt"):
        yield f"graphopt's revision: {' and '.join(revisions)}"
    yield f"Date: {results['date']}"
    yield f"Threads {'spin' if results['spinning'] else 'do not spin'} while they wait"
    if seconds := made(results, "seconds"):
        yield f"Timed for about {_either(seconds)} s for each outcome and setting, and in at least 21 rounds"
    yield searched(results)


def _versions(results: Row) -> str:
    known = {package: version for package, version in versions(results).items() if package != "onnxruntime"}
    return _listed({"onnxruntime": results["onnxruntime"], **known})


def _listed(known: Mapping[str, str]) -> str:
    return ", ".join(f"{package} {version}" for package, version in known.items())


def _summary(results: Row) -> list[str]:
    lines = ["## Summary", ""]
    head = ["tool", "models", "geometric mean", "best", "worst", "faster", "slower", "failed or wrong", "optimizer, s"]
    for column in columns(results):
        rows = [_summary_row(results, tool, column) for tool in tools(results)]
        rows.append([UNCHANGED, *_counted(unchanged(results, column)), "", ""])
        lines += [f"{setting(column)}:", "", *table(head, rows), ""]
    seconds = "Optimizer: the median over the models of the seconds that the tool's whole process took."
    notes = (noise(results), *gains(results), *as_published(results), *alike(results))
    return [*lines, seconds, *(line for note in notes for line in ("", note))]


def _summary_row(results: Row, tool: str, column: str) -> list[str]:
    seconds = [cell["seconds"] for cell in _cells(results, tool, column) if "seconds" in cell]
    known = f"{statistics.median(seconds):.1f}" if seconds else ""
    counts = _counted(timings(results, tool, column).values())
    return [tool, *counts, str(_failures(results, tool, column)), known]


def _cells(results: Row, tool: str, column: str) -> list[Row]:
    return [outcome(row, tool, column) for row in results["models"].values()]


def _failures(results: Row, tool: str, column: str) -> int:
    return sum(bool(reason(cell)) for cell in _cells(results, tool, column))


def _counted(timed: Iterable[Row]) -> list[str]:
    """How many, their geometric mean, best, worst, and how many are faster and slower beyond noise."""
    timed = list(timed)
    ratios = [timing["median"] for timing in timed]
    verdicts = [timing["verdict"] for timing in timed]
    speeds = [f"{geometric_mean(ratios):.3f}", f"{max(ratios):.2f}", f"{min(ratios):.2f}"] if ratios else [""] * 3
    return [str(len(timed)), *speeds, str(verdicts.count("faster")), str(verdicts.count("slower"))]


def _pictures(results: Row, path: Path) -> list[str]:
    """Those that are drawn beside the page."""
    shown = [f"![{figure.says}]({target(path, name).name})" for name, figure in figures(results, path).items()]
    return ["## Pictures", *(line for picture in shown for line in ("", picture))] if shown else []


def _called(results: Row) -> list[str]:
    """The call of each tool."""
    return ["## Tools", "", *(f"- {tool}: {ALL[tool].text}" for tool in tools(results))]


def _models(results: Row) -> list[str]:
    rows = [
        [name, row["family"], str(row.get("opset", "")), str(row.get("nodes", "")), _megabytes(row)]
        for name, row in results["models"].items()
    ]
    return ["## Models", "", *table(["model", "family", "opset", "nodes", "MB"], rows)]


def _megabytes(row: Row) -> str:
    return f"{row['bytes'] / 1e6:.1f}" if "bytes" in row else ""


def _speeds(results: Row) -> Iterator[list[str]]:
    """Two tables a setting: the ratios, and how they were come by."""
    names = tools(results)
    for column in columns(results):
        note = "Headroom: the time of all kernels of the original, divided by that of its Conv, Gemm and MatMul: 1.00"
        rest = "means that no time is spent elsewhere. ms: the fastest run of the original."
        rows = [_speed_row(name, row, names, column) for name, row in results["models"].items()]
        speeds = table(["model", "headroom", "ms", *names], rows)
        yield [f"## Speed: {setting(column)}", "", note, rest, "", *speeds]
        note = "The ratio of the fastest runs, the number of rounds, and how far the outcome's rounds are spread."
        rows = [_rounds_row(name, row, names, column) for name, row in results["models"].items()]
        yield [f"## Rounds: {setting(column)}", "", note, "", *table(["model", "original", *names], rows)]


def _speed_row(name: str, row: Row, names: Iterable[str], column: str) -> list[str]:
    original = row.get("original", {}).get(column, {})
    cells = [_speed_cell(outcome(row, tool, column), column) for tool in names]
    known = [original.get(fact) for fact in ("headroom", "minimum_ms")]
    facts = ["" if fact is None else f"{fact:.2f}" for fact in known]
    return [name, *facts, *cells]


def _speed_cell(cell: Row, column: str) -> str:
    if reason(cell):
        return _failure(cell)
    if column not in cell.get("timings", {}):
        return ""
    timing = cell["timings"][column]
    mark = {"faster": "▲ ", "slower": "▼ "}.get(timing["verdict"], "")
    return f"{mark}{timing['median']:.2f} ({timing['low']:.2f}–{timing['high']:.2f})"


def _failure(cell: Row) -> str:
    """In a word; nothing of an outcome that is right."""
    return "fails" if "error" in cell else "wrong" if "wrong" in cell else ""


def _rounds_row(name: str, row: Row, names: Iterable[str], column: str) -> list[str]:
    original = row.get("original", {}).get(column)
    found = [outcome(row, tool, column).get("timings", {}).get(column) for tool in names]
    cells = [f"{one['minimum']:.2f}, {one['rounds']}, {_percent(one['spread'])}" if one else "" for one in found]
    return [name, _percent(original["spread"]) if original else "", *cells]


def _searches(results: Row) -> list[str]:
    """What each search saw and why it ended."""
    rows = [
        [name, f"{tool}, {setting(column)}", *(str(cell["search"].get(fact, "")) for fact in _SEARCH)]
        for name, tool, column, cell in cells(results)
        if "search" in cell
    ]
    return ["## Searches", "", *table(["model", "outcome", *_SEARCH], rows)] if rows else []


_SEARCH = ("stop", "regions", "copies", "states", "trials")


def _failed(results: Row) -> list[str]:
    lines = [f"- {name}, {tool or 'the model'}: {why}" for name, tool, why in failures(results)]
    return ["## Failures and wrong outputs", "", *(lines or ["None."])]


def _costs(results: Row) -> Iterator[list[str]]:
    """What optimizing cost, what came of it, and how that loads and computes."""
    yield _cost_table(results, "Cost of optimizing", _PROCESS, _spent)
    yield _cost_table(results, "Outcomes", "Nodes and megabytes of the file.", _size)
    is_known = any(
        "loading" in timing for column in columns(results) for timing in timings(results, PLAIN, column).values()
    )
    loading = ("Loading and differences", f"{_LOADING}{_load_noise(results)}")
    yield _cost_table(results, *(loading if is_known else ("Differences", "The largest difference.")), _load)


_PROCESS = "Seconds and peak megabytes of the tool's whole process, with imports, load and save."
_LOADING = (
    "Processor time to make a session, as a multiple of the original's, for each setting; the largest difference."
)


def _load_noise(results: Row) -> str:
    """What copies take to load, for one is as good as another."""
    found = {column: timings(results, PLAIN, column).values() for column in columns(results)}
    loads = {column: [timing["loading"] for timing in timed if "loading" in timing] for column, timed in found.items()}
    ranges = [f"{min(some):.2f} to {max(some):.2f} ({setting(column)})" for column, some in loads.items() if some]
    return f" Copies of the originals took {' and '.join(ranges)}: what lies between says nothing." if ranges else ""


def _cost_table(results: Row, title: str, note: str, show: Callable[[Row], str]) -> list[str]:
    """A column a tool and setting that it optimizes for."""
    known = dict.fromkeys((tool, column) for _, tool, column, _ in cells(results))
    kinds = [(tool, column) for tool in tools(results) for known_tool, column in known if known_tool == tool]
    head = ["model", *(f"{tool}, {setting(column)}" if column else tool for tool, column in kinds)]
    rows = [
        [name, *(show(outcome(row, tool, column)) for tool, column in kinds)] for name, row in results["models"].items()
    ]
    return [f"## {title}", "", note, "", *table(head, rows)]


def _spent(cell: Row) -> str:
    return f"{cell['seconds']:.1f} s, {cell['memory_mb']} MB" if "seconds" in cell else _failure(cell)


def _size(cell: Row) -> str:
    return f"{cell['nodes']}, {_megabytes(cell)} MB" if "nodes" in cell else _failure(cell)


def _load(cell: Row) -> str:
    if reason(cell) or "difference" not in cell:
        return _failure(cell)
    loads = "/".join(f"{timing['loading']:.2f}" for timing in cell.get("timings", {}).values() if "loading" in timing)
    return ", ".join(filter(None, (loads, f"{cell['difference']:.0e}")))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table, numbers to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


# -- the README --------------------------------------------------------------------------------------------------------


LISTED = 12
"""Architectures that have a row of their own in the README, at most: with the sums a table of fifteen rows."""


def readme_part(results: Row, path: Path) -> str:
    """Return what stands between the marks: the architectures that gain most, all others, and the source."""
    head = ["architecture", "exports"]
    for column in columns(results):
        head += [title or setting(column) for title in _compared(results)]
    families = _families(results)
    won = {family: names for family, names in families.items() if _gains(results, names)}
    listed = sorted(won.items(), key=lambda item: -max(_ratios(results, ("graphopt",), item[1])))[:LISTED]
    rest = [names for family, names in families.items() if family not in dict(listed)]
    listed += [(_many(len(rest), "other"), [name for names in rest for name in names])] if rest else []
    rows = [[family, str(len(names)), *_gain_cells(results, names)] for family, names in listed]
    whole = _published(results)
    rows += [["as published", str(len(whole)), *_gain_cells(results, whole)]] if whole else []
    rows += [["all", str(len(results["models"])), *_gain_cells(results, [*results["models"]])]]
    peers = ", ".join(tool for tool in tools(results) if tool in PEERS)
    own = "ORT's operators: graphopt with `--target onnxruntime`; " if len(_compared(results)) > 2 else ""
    page = f"{path.parent.parent.name}/{path.parent.name}/{path.stem}.md"
    note = (
        "Speed relative to the original, as a geometric mean over the exports; both run with all of ONNX Runtime's own "
        f"optimizations. {own}others: the best of {peers}. {_in_part(results)}"
        f"On {results['machine']}, {results['date']}, onnxruntime {results['onnxruntime']}; "
        f"[every model, every tool and how this was measured]({page})."
    )
    return "\n".join([*table(head, rows), "", note])


def _in_part(results: Row) -> str:
    """Of the settings in which not all of the models were timed: how many were."""
    rows = results["models"].values()
    counts = {setting(column): sum(column in row.get("original", {}) for row in rows) for column in columns(results)}
    return "".join(
        f"{name}: {_many(count, 'export')}. " for name, count in counts.items() if count < max(counts.values())
    )


PEERS = tuple(tool for tool in TOOLS if tool not in OWN)
"""The tools of others that take any file and keep to standard operators."""


def _compared(results: Row) -> dict[str, Sequence[str]]:
    """The README's columns of a setting: a title, none for graphopt's, and the tools of which it has the best."""
    listed: dict[str, Sequence[str]] = {"": ("graphopt",), "ORT's operators": ("graphopt-ort",), "others": PEERS}
    return {title: names for title, names in listed.items() if title != "ORT's operators" or names[0] in tools(results)}


def _families(results: Row) -> dict[str, list[str]]:
    """The models of each architecture, and those that are quantized, of whatever architecture."""
    found: dict[str, list[str]] = {}
    for name, row in results["models"].items():
        found.setdefault("quantized" if row.get("quantized") else row["family"], []).append(name)
    return found


def _gains(results: Row, names: Iterable[str]) -> bool:
    """Whether each of the models is faster by graphopt, in one setting or all."""
    timed = [timings(results, "graphopt", column) for column in columns(results)]
    return all(any(found.get(name, {}).get("verdict") == "faster" for found in timed) for name in names)


def _ratios(results: Row, of: Iterable[str], names: Collection[str]) -> list[float]:
    """The best mean over the models of the tools in each setting; 0 where none of them was timed."""
    best = []
    for column in columns(results):
        found = (timings(results, tool, column) for tool in of if tool in tools(results))
        means = [[timed[name]["median"] for name in names if name in timed] for timed in found]
        best.append(max((geometric_mean(ratios) for ratios in means if ratios), default=0.0))
    return best


def _gain_cells(results: Row, names: Collection[str]) -> list[str]:
    found = zip(*(_ratios(results, of, names) for of in _compared(results).values()), strict=True)
    return [f"{ratio:.2f}" if ratio else "" for ratios in found for ratio in ratios]


def readme_text(path: Path, readme: Path = README) -> str:
    """The README with the part of a result file in its place."""
    before, rest = readme.read_text(encoding="utf-8").split(MARKS[0])
    _, after = rest.split(MARKS[1])
    return f"{before}{MARKS[0]}\n\n{readme_part(read(path), path)}\n\n{MARKS[1]}{after}"


def update_readme(path: Path, readme: Path = README) -> Path:
    """Write the part of a result file into the README."""
    readme.write_text(readme_text(path, readme), encoding="utf-8")
    return readme


# -- two files ---------------------------------------------------------------------------------------------------------


def compare(old: Path, new: Path) -> None:
    """Print how two files were made differently, and every cell that changed."""
    before, after = read(old), read(new)
    for line in warnings(before, after):
        print(f"warning: {line}")
    if not any(True for _ in _common(before, after)):
        print("The files have no model and tool in common.")
        return
    print("\n".join([*changes(before, after)] or ["No change is resolved."]))
    for column in columns(after):
        for tool in (*tools(after), PLAIN):
            found, known = (timings(results, tool, column) for results in (after, before))
            both = sorted(found.keys() & known.keys())
            if both:
                means = [geometric_mean(timing[name]["median"] for name in both) for timing in (known, found)]
                name = "copies (noise)" if tool == PLAIN else tool
                print(f"{name}, {setting(column)}, {_many(len(both), 'model')}: {means[0]:.3f} -> {means[1]:.3f}")


def warnings(before: Row, after: Row) -> Iterator[str]:
    """What makes the files hard to compare: made otherwise or of other things."""
    for key in dict.fromkeys([*before, *after]):
        if key not in ("date", "models") and before.get(key) != after.get(key):
            yield f"other {key}: {_said(before.get(key))}; {_said(after.get(key))}"
    old, new = versions(before), versions(after)
    for package in sorted(old.keys() & new.keys()):
        if package != "graphopt" and old[package] != new[package]:
            yield f"other version of {package}: {old[package]}; {new[package]}"
    if exporters(before) != exporters(after):
        yield f"other exporters: {_listed(exporters(before)) or 'not said'}; {_listed(exporters(after)) or 'not said'}"
    for what, meaning in (("seconds", "seconds of timing"), ("search", "seconds of search")):
        if made(before, what) != made(after, what):
            yield f"other {meaning}: {_said(made(before, what))}; {_said(made(after, what))}"
    if exports := [
        name for name in before["models"] if _is_other_file(before["models"][name], after["models"].get(name))
    ]:
        yield f"other files of the models: {_few(exports)}"
    yield from _alone(before, after)


def _is_other_file(old: Row, new: Row | None) -> bool:
    return new is not None and old.get("model") != new.get("model")


def _alone(before: Row, after: Row) -> Iterator[str]:
    """What only one file has."""
    for what, old_names, new_names in (
        ("models", list(before["models"]), list(after["models"])),
        ("tools", tools(before), tools(after)),
        ("settings", columns(before), columns(after)),
    ):
        for which, names, others in (("first", old_names, new_names), ("second", new_names, old_names)):
            if alone := [name for name in names if name not in others]:
                yield f"{what} of the {which} file alone: {_few(alone)}"


def _few(names: Sequence[str]) -> str:
    rest = len(names) - SHOWN
    return f"{', '.join(names[:SHOWN])} and {rest} more" if rest > 1 else ", ".join(names)


def _said(value: Any) -> str:
    if isinstance(value, list):
        return " and ".join(f"{one:g}" for one in value) or "not said"
    return "not said" if value is None else str(value)


def _common(before: Row, after: Row) -> Iterator[tuple[str, str]]:
    """The pairs of model and tool that both files have."""
    for name, row in after["models"].items():
        was = before["models"].get(name, {}).get("tools", {})
        yield from ((name, tool) for tool in ALL if tool in row.get("tools", {}) and tool in was)


def changes(before: Row, after: Row) -> Iterator[str]:
    """One line for each difference between two results of the same model and tool, and of the same model."""
    settings = dict.fromkeys([*columns(before), *columns(after)])
    for name, row in after["models"].items():
        was = before["models"].get(name, row)
        if was.get("error") != row.get("error"):
            yield f"{name}: {was.get('error', 'right')} -> {row.get('error', 'right')}"
    for name, tool in _common(before, after):
        was, row = before["models"][name], after["models"][name]
        pairs = [(column, outcome(was, tool, column), outcome(row, tool, column)) for column in settings]
        found = (what for column, old, new in pairs if old and new for what in _changed(old, new, column))
        yield from (f"{name}, {tool}: {what}" for what in dict.fromkeys(found))


def _changed(old: Row, new: Row, column: str) -> Iterator[str]:
    was, is_ = reason(old), reason(new)
    if was != is_:
        yield f"{was or 'right'} -> {is_ or 'right'}"
    if old.get("nodes", 0) != new.get("nodes", 0):
        yield f"{old.get('nodes', 0)} -> {new.get('nodes', 0)} nodes"
    for cost, unit in (("seconds", "s"), ("memory_mb", "MB")):
        if cost in old and cost in new and not 1 / DEARER[cost] <= new[cost] / max(old[cost], 1e-9) <= DEARER[cost]:
            yield f"optimizer: {old[cost]:g} -> {new[cost]:g} {unit}"
    if column in old.get("timings", {}) and column in new.get("timings", {}):
        one, other = old["timings"][column], new["timings"][column]
        is_apart = one["high"] < other["low"] or other["high"] < one["low"]
        most = 1 + TimingPolicy().noise
        if is_apart and not 1 / most <= other["median"] / one["median"] <= most:
            yield f"{column}: {one['median']:.2f} -> {other['median']:.2f}"
