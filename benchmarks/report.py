"""The page of a result file, and the README's part of it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.pictures import COPIES, overview, saved
from benchmarks.results import ORIGINAL, Results, Row, geometric_mean, reason, setting_text, values, versions
from benchmarks.tools import ALL, OWN, PEERS, PLAIN

README = Path(__file__).parent.parent / "README.md"
MARKS = ("<!-- speedups -->", "<!-- /speedups -->")
"""Around the README's generated part."""


def report(path: Path) -> list[Path]:
    """Write the page and the picture beside the result file."""
    results = Results.read(path)
    timed = any(results.timings(tool, setting) for tool in results.tools for setting in results.settings)
    pictures = [saved(overview(results), _picture(path), results.rows)] if timed else []
    page = path.with_suffix(".md")
    page.write_text(markdown(results, path), encoding="utf-8")
    return [page, *pictures]


def _picture(path: Path) -> Path:
    return path.with_name(f"{path.stem}-summary.png")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a Markdown table, numbers to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def many(count: int, one: str) -> str:
    """Return a number of things: `1 model`, `2 models`."""
    return f"{count} {one if count == 1 else f'{one}s'}"


def listed(known: Mapping[str, str]) -> str:
    """Return names with their versions, or the like, in a line."""
    return ", ".join(f"{package} {version}" for package, version in known.items())


def circumstances(rows: Sequence[Row]) -> list[str]:
    """Return where, with what and when rows were made, a line each."""
    known = {
        "Machine": " and ".join(values(rows, "made", "machine")),
        "Device": " and ".join(values(rows, "made", "gpu")),
        "Versions": listed(versions(rows, "made", "versions")),
        "Exporters": listed(versions(rows, "exporters")),
        "Date": ", ".join(values(rows, "made", "date")),
        "graphopt's revision": " and ".join(values(rows, "made", "graphopt")),
    }
    return [f"- {name}: {value}" for name, value in known.items() if value]


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


# -- the page ----------------------------------------------------------------------------------------------------------


def markdown(results: Results, path: Path) -> str:
    """Return the page: what was measured where, the summary, every model, what failed, what optimizing costs."""
    sure, limit = (" or ".join(map(_percent, results.limits(name))) for name in ("confidence", "noise"))
    median_lies = f"median lies with {sure} confidence"
    head = [
        f"# Benchmarks: {path.stem}",
        "",
        f"Made by `python -m benchmarks run` and `report {path.name}`; the docstring of `benchmarks/run.py` says how.",
        "",
        *circumstances(results.rows),
        *(f"- {line}" for line in _conditions(results)),
        "",
        "A ratio is how many times as fast as ONNX Runtime's own full optimization makes the original the outcome",
        "runs, both under ORT_ENABLE_ALL: the median over interleaved rounds. In brackets the interval in which that",
        f"{median_lies}, or the medians of single processes where they lie farther apart. ▲ faster,",
        f"▼ slower; no mark: no difference is resolved, or one within {limit}.",
    ]
    parts = [head, _summary(results)]
    if _picture(path).exists():
        parts.append(["## Picture", "", f"![Speed of each outcome against the original]({_picture(path).name})"])
    parts.append(["## Tools", "", *(f"- {tool}: {ALL[tool].text}" for tool in results.tools)])
    parts.append(["## Models", "", *table(["model", "family", "opset", "nodes", "MB"], _models(results))])
    for setting in results.settings:
        parts += _tables(results, setting)
    failures = []
    for row in results.failures():
        where = f"{row['tool']} ({setting_text(row['setting'])})" if row["tool"] in ALL else "the model"
        failures.append(f"- {row['model']}, {where}: {reason(row)}")
    parts.append(["## Failures and wrong outputs", "", *(failures or ["None."])])
    return "\n".join(line for part in parts for line in [*part, ""])


def _conditions(results: Results) -> Iterator[str]:
    """Yield what was measured and for how long."""
    originals = [row for row in results.models.values() if "package" not in row]
    given = [row["package"] for row in results.models.values() if "package" in row]
    if packages := sorted({package for package in given if package}):
        yield f"Models: those that packages ship, with trained weights, at their sizes; out of {', '.join(packages)}"
    if files := given.count(""):
        yield f"Models: {many(files, 'file')}, as given"
    if originals:
        yield (
            f"Models: {many(len(originals), 'export')} of {many(len(values(originals, 'family')), 'architecture')}, "
            "with random weights, of fixed shapes for one input, at the sizes that `benchmarks/models.toml` names"
        )
    yield "Threads do not spin while they wait"
    yield f"Timed for about {_either(values(results.rows, 'made', 'seconds'))} s for each outcome and setting"
    if said := [f"{tool} {limit} s" for tool in OWN if (limit := _search_limit(results, tool))]:
        yield f"Searched, at most: {', '.join(said)}; `graphopt-simplify` is rules alone, without timing"


def _search_limit(results: Results, tool: str) -> str:
    """Return the seconds for which a tool searched at most; nothing for one that does not search."""
    return _either(values((row for row in results.rows if row["tool"] == tool), "made", "search"))


def _either(limits: Iterable[float]) -> str:
    return " or ".join(f"{limit:g}" for limit in limits)


def _summary(results: Results) -> list[str]:
    lines = ["## Summary", ""]
    head = ["tool", "models", "geometric mean", "best", "worst", "faster", "slower", "failed or wrong", "optimizer, s"]
    for setting in results.settings:
        rows = [_summary_row(results, tool, setting) for tool in results.tools]
        rows.append([COPIES, *_counted(results.timings(PLAIN, setting).values()), "", ""])
        lines += [f"{setting_text(setting)}:", "", *table(head, rows), ""]
    notes = (noise(results), *gains(results))
    seconds = "Optimizer: the median over the models of the seconds that the tool's whole process took."
    return [*lines, seconds, *(line for note in notes for line in ("", note))]


def _summary_row(results: Results, tool: str, setting: str) -> list[str]:
    rows = results.outcomes(tool, setting)
    seconds = [row["seconds"] for row in rows if "seconds" in row]
    known = f"{statistics.median(seconds):.1f}" if seconds else ""
    failed = sum(bool(reason(row)) for row in rows)
    return [tool, *_counted(results.timings(tool, setting).values()), str(failed), known]


def _counted(timings: Iterable[Row]) -> list[str]:
    """Return how many, their geometric mean, best, worst, and how many are faster and slower beyond noise."""
    timings = list(timings)
    ratios = [timing["median"] for timing in timings]
    verdicts = [timing["verdict"] for timing in timings]
    speeds = [f"{geometric_mean(ratios):.3f}", f"{max(ratios):.2f}", f"{min(ratios):.2f}"] if ratios else [""] * 3
    return [str(len(timings)), *speeds, str(verdicts.count("faster")), str(verdicts.count("slower"))]


def noise(results: Results) -> str:
    """Return what the row of copies is, and what follows for the others."""
    held = []
    for setting in results.settings:
        if timings := results.timings(PLAIN, setting).values():
            share = statistics.fmean(timing["low"] <= 1 <= timing["high"] for timing in timings)
            held.append(f"{_percent(share)} ({setting_text(setting)})")
    if not held:
        return "No copy was timed: how much noise there is, these models do not say."
    return (
        f"`{COPIES}`: copies of the original, timed like all others. They show the noise: a mean that is nearer to 1 "
        "than theirs, or a single ratio between their worst and best, says nothing. Their intervals held 1 in "
        f"{' and '.join(held)}."
    )


def gains(results: Results) -> Iterator[str]:
    """Yield of which architectures the gains of graphopt's columns are, and what is left without those."""
    for tool in OWN:
        for setting in results.settings:
            timings = results.timings(tool, setting)
            family = {name: results.models[name]["family"] for name in timings}
            won = {family[name] for name, timing in timings.items() if timing["verdict"] == "faster"}
            inside = [timing["median"] for name, timing in timings.items() if family[name] in won]
            outside = [timing["median"] for name, timing in timings.items() if family[name] not in won]
            if inside and outside:
                yield (
                    f"`{tool}` ({setting_text(setting)}): {geometric_mean(inside):.3f} over the {len(inside)} exports "
                    f"of {', '.join(sorted(won))}, of which one or more are faster; {geometric_mean(outside):.3f} over "
                    f"the other {len(outside)}."
                )


# -- tables of models --------------------------------------------------------------------------------------------------


def _models(results: Results) -> Iterator[list[str]]:
    for name, row in results.models.items():
        yield [name, row["family"], str(row.get("opset", "")), str(row.get("nodes", "")), _megabytes(row)]


def _megabytes(row: Row) -> str:
    return f"{row['bytes'] / 1e6:.1f}" if "bytes" in row else ""


def _tables(results: Results, setting: str) -> Iterator[list[str]]:
    """Yield the tables of a setting: speed, costs, outcomes."""
    loads = [row["loading"] for row in results.outcomes(PLAIN, setting) if "loading" in row]
    copies = f" Copies took {min(loads):.2f} to {max(loads):.2f}: what lies between says nothing." if loads else ""
    searching = [tool for tool in results.tools if ALL[tool].search]
    files = [tool for tool in results.tools if not ALL[tool].is_engine]
    yield _table(results, setting, "Speed", _HEADROOM, _speed)
    yield _table(results, setting, "Cost of optimizing", _PROCESS, _cost)
    yield _table(results, setting, "Outcomes", "Nodes and megabytes of the file.", _size, files)
    yield _table(results, setting, "Loading and differences", f"{_LOADING}{copies}", _load)
    if searching:
        yield _table(results, setting, "Searches", _SEARCHES, _search, searching)


_HEADROOM = """\
Headroom: the time of all kernels of the original, divided by that of its Conv, Gemm and MatMul: 1.00
means that no time is spent elsewhere. ms: the fastest run of the original."""
_PROCESS = "Seconds and peak megabytes of the tool's whole process, with imports, load and save."
_LOADING = "Processor time to make a session, as a multiple of the original's; the largest difference."
_SEARCHES = "Why each search ended, and what it saw: regions, copies of them, states, trials."


def _table(
    results: Results, setting: str, title: str, note: str, show: Callable[[Row], str], tools: Sequence[str] = ()
) -> list[str]:
    """Return a table of the models, with a column for each tool and for what is known of the original."""
    tools = tools or results.tools
    about = {"headroom": "headroom", "ms": "minimum_ms"} if show is _speed else {}
    rows = []
    for name in results.models:
        original = results.get(name, ORIGINAL, setting)
        known = ["" if original.get(fact) is None else f"{original[fact]:.2f}" for fact in about.values()]
        rows.append([name, *known, *(show(results.get(name, tool, setting)) for tool in tools)])
    return [f"## {title}: {setting_text(setting)}", "", note, "", *table(["model", *about, *tools], rows)]


def _speed(row: Row) -> str:
    if "timing" not in row:
        return _failure(row)
    return ratio_text(row["timing"])


def ratio_text(timing: Row) -> str:
    """Return how many times as fast something is, and the interval."""
    mark = {"faster": "▲ ", "slower": "▼ "}.get(timing["verdict"], "")
    return f"{mark}{timing['median']:.2f} ({timing['low']:.2f}–{timing['high']:.2f})"


def _cost(row: Row) -> str:
    return f"{row['seconds']:.1f} s, {row['memory_mb']} MB" if "seconds" in row else _failure(row)


def _size(row: Row) -> str:
    return f"{row['nodes']}, {_megabytes(row)} MB" if "nodes" in row else _failure(row)


def _load(row: Row) -> str:
    if reason(row) or "difference" not in row:
        return _failure(row)
    return ", ".join([*([f"{row['loading']:.2f}"] if "loading" in row else []), f"{row['difference']:.0e}"])


def _search(row: Row) -> str:
    search = row.get("search", {})
    counts = [str(search[fact]) for fact in ("regions", "copies", "states", "trials") if fact in search]
    return f"{search['stop']}: {', '.join(counts)}" if "stop" in search else ""


def _failure(row: Row) -> str:
    """Return a failure in a word; nothing for an outcome that is right."""
    return "fails" if "error" in row else "wrong" if "wrong" in row else ""


# -- the README --------------------------------------------------------------------------------------------------------


COLUMNS: Mapping[str, Collection[str]] = {
    "graphopt-15s": ("graphopt-15s",),
    "graphopt": ("graphopt",),
    "ORT's operators": ("graphopt-ort",),
    "best of others": PEERS,
    "OpenVINO": ("openvino",),
}
"""The README's columns: a title, and the tools whose best it shows; of graphopt it says for how long it searched."""


def readme_part(results: Results, path: Path) -> str:
    """Return what stands between the marks: a row an architecture or package, the mean, and the source."""
    setting = results.settings[0]
    columns = {
        f"graphopt {_search_limit(results, title)} s" if title in OWN else title: tools
        for title, tools in COLUMNS.items()
        if {*tools} & {*results.tools}
    }
    families: dict[str, list[str]] = {}
    for name, row in results.models.items():
        families.setdefault("quantized" if row["quantized"] else row["family"], []).append(name)
    rows = [*families.items(), ("all", [*results.models])]
    cells = [
        [
            title,
            _milliseconds(results, names, setting),
            *(_mean(results, tools, names, setting) for tools in columns.values()),
        ]
        for title, names in rows
    ]
    page = f"{path.parent.parent.name}/{path.parent.name}/{path.stem}.md"
    runtime = versions(results.rows, "made", "versions")["onnxruntime"]
    explained = {
        "ORT's operators": f"with `--target onnxruntime`, {_search_limit(results, 'graphopt-ort')} s",
        "best of others": f"of {', '.join(tool for tool in results.tools if tool in PEERS)}",
        "OpenVINO": "another engine, its own runtime on the original",
    }
    note = (
        f"Speed relative to the original ({setting_text(setting)}), as a geometric mean where an architecture has "
        "several forms; original and outcomes run with all of ONNX Runtime's own optimizations. ms: of the originals. "
        "Seconds: of search, each from nothing. "
        + "".join(f"{title[0].upper()}{title[1:]}: {text}. " for title, text in explained.items() if title in columns)
        + f"On {' and '.join(values(results.rows, 'made', 'machine'))}, "
        f"{values(results.rows, 'made', 'date')[-1]}, onnxruntime {runtime}; "
        f"[every model, every tool and how this was measured]({page})."
    )
    return "\n".join([*table(["architecture", "ms", *columns], cells), "", note])


def _milliseconds(results: Results, names: Collection[str], setting: str) -> str:
    """Return the time of the originals, from the fastest to the slowest; nothing for more than one architecture."""
    found = sorted(row["minimum_ms"] for name in names if "minimum_ms" in (row := results.get(name, ORIGINAL, setting)))
    if not found or len(names) == len(results.models) > 1:
        return ""
    return "–".join(dict.fromkeys(f"{number:.3g}" for number in (found[0], found[-1])))


def _mean(results: Results, tools: Iterable[str], names: Collection[str], setting: str) -> str:
    """Return the best mean over the models of the tools; nothing where none of them was timed."""
    found = (results.timings(tool, setting) for tool in tools)
    means = [[timings[name]["median"] for name in names if name in timings] for timings in found]
    ratios = [geometric_mean(each) for each in means if each]
    return f"{max(ratios):.2f}" if ratios else ""


def readme_text(path: Path, readme: Path = README) -> str:
    """Return the README with the part of a result file in its place."""
    before, rest = readme.read_text(encoding="utf-8").split(MARKS[0])
    _, after = rest.split(MARKS[1])
    return f"{before}{MARKS[0]}\n\n{readme_part(Results.read(path), path)}\n\n{MARKS[1]}{after}"


def update_readme(path: Path, readme: Path = README) -> Path:
    """Write the part of a result file into the README."""
    readme.write_text(readme_text(path, readme), encoding="utf-8")
    return readme
