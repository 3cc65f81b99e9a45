"""In which order do graphopt and ONNX Runtime's own tools make a model fastest?

``python -m benchmarks tool_orders`` fuses and quantizes eight models before and after graphopt, and writes
``benchmarks/results/tool-orders.jsonl`` and ``tool-orders.md``: the nodes, what the tools found, how fast all of them
run in turns with the original, and how far their outputs are from its own.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import onnx
from rich.progress import track

import graphopt
from benchmarks import checks
from benchmarks.environment import job, made, one_line
from benchmarks.models import locate
from benchmarks.neighbours import (
    Feeds,
    count_fusions,
    distance,
    fixture,
    fuse,
    model_type,
    nodes,
    outputs_of,
    quantize,
)
from benchmarks.report import circumstances, ratio_text, table
from benchmarks.results import Row, geometric_mean, write_rows
from benchmarks.run import LIMIT, exporters_missing

SMALL = (
    "classic-bert",
    "bert-eager-torchscript-dynamic-opset13",
    "bert-dynamo",
    "vit-torchscript-opset14",
    "vit-dynamo",
    "swin-dynamo",
    "gpt2-dynamo",
    "llama-dynamo",
)
"""Fixtures of the tests that are measured unless others are named: two or three layers, 128 to 192 values wide."""
LARGE: Mapping[str, tuple[str, int, int]] = {
    "minilm.dynamo": ("bert", 12, 384),
    "distilbert.dynamo": ("bert", 12, 768),
    "vit-small.dynamo": ("vit", 6, 384),
    "whisper-encoder.dynamo": ("bart", 6, 384),
    "swin-tiny.dynamo": ("swin", 0, 0),
    "gpt2.dynamo": ("gpt2", 12, 768),
    "llama-step.dynamo": ("gpt2", 8, 512),
}
"""Exports at their published sizes, and what the optimizer of transformers is told of them: type, heads and width."""

SECONDS = 2.0
"""Limit of the timing of each version."""

FUSE, QUANTIZE, GRAPHOPT = "fuse", "quantize", "graphopt"
BEFORE_FUSING, BEFORE_QUANTIZING = "graphopt --before ort-transformers", "graphopt --before quantization"
ORDERS: Sequence[tuple[str, ...]] = (
    (GRAPHOPT,),
    (FUSE,),
    (GRAPHOPT, FUSE),
    (BEFORE_FUSING, FUSE),
    (FUSE, GRAPHOPT),
    (QUANTIZE,),
    (GRAPHOPT, QUANTIZE),
    (BEFORE_QUANTIZING, QUANTIZE),
    (QUANTIZE, GRAPHOPT),
)
"""The tools that a version went through, in their order."""


def run(models: Sequence[str], search: float, path: Path) -> Path:
    """Make and time all versions of each model; the file and the page have it as soon as it is done."""
    rows: list[Row] = []
    conditions = made("graphopt", "onnx", "onnxruntime") | {"search": search, "seconds": SECONDS}
    for name in track(models, description="models"):
        rows.append({"model": name, **measured(name, search), "made": conditions})
        write_rows(path, rows, markdown(rows))
    return path


def measured(name: str, search: float) -> Row:
    """Return the milliseconds of a model, and of each of its versions nodes, findings, speedup and difference."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "original.onnx"
        kind, feeds = _place(name, source, folder)
        workshop = Workshop(Path(folder), source, kind, feeds[0], search)
        original = onnx.load(source)
        count, expected = len([*nodes(original.graph)]), outputs_of(original, feeds)
        versions = [workshop.version(order, lambda model: distance(expected, outputs_of(model, feeds)))
                    for order in ORDERS]  # fmt: skip
        paths = [str(workshop.files[order]) for order in ORDERS if order in workshop.files]
        seconds = SECONDS * len(paths)
        timed = job(
            "graphopt", "bench", str(source), *paths, "--seconds", str(seconds), "--threads", "1", "--json",
            *(FIXTURE_SIZES if name in OPEN else []), limit=LIMIT + seconds,
        )  # fmt: skip
    if "error" in timed:
        return {"error": timed["error"].replace(f"{folder}/", "")}
    first, *others = timed["cases"][0]["timings"]
    for version, timing in zip((each for each in versions if "error" not in each), others, strict=True):
        version["timing"] = timing["speedup"]
    return {"ms": round(first["median"] * 1e3, 4), "nodes": count, "versions": versions}


def _place(name: str, path: Path, folder: str) -> tuple[tuple[str, int, int], Sequence[Feeds]]:
    """Write a model to a file, and return what the optimizer of transformers is told of it, and inputs."""
    if name in SMALL:
        model, feeds = fixture(name)
        onnx.save(model, path)
        return model_type(name), feeds
    try:
        onnx.save(onnx.load(locate(name)), path)
    except ModuleNotFoundError as error:
        raise exporters_missing(error) from error
    return LARGE[name], [dict(checks.feeds(str(path), folder, seed)) for seed in checks.SEEDS]


OPEN = ("classic-bert", "bert-eager-torchscript-dynamic-opset13")
"""Models with open sizes, measured at `FIXTURE_SIZES`."""
FIXTURE_SIZES = ("--dim=batch=2", "--dim=sequence=16")


@dataclass
class Workshop:
    """A folder with a model and the versions of it that were made, each of the version before its last tool."""

    folder: Path
    source: Path
    kind: tuple[str, int, int]
    feeds: Feeds
    search: float
    files: dict[tuple[str, ...], Path] = field(default_factory=dict)

    def version(self, order: tuple[str, ...], difference: Callable[[onnx.ModelProto], float]) -> Row:
        """Make a version, and return its nodes, what was found in it, and its difference; or the error."""
        try:
            model = onnx.load(self.make(order))
            found, _ = count_fusions(model)
            counted = {"nodes": len([*nodes(model.graph)]), "found": found, "difference": difference(model)}
        except Exception as error:  # a tool that fails is a result
            self.files.pop(order, None)
            return {"order": order, "error": one_line(error)}
        return {"order": order, **counted}

    def make(self, order: tuple[str, ...]) -> Path:
        """Return the file of the version that went through these tools."""
        if not order:
            return self.source
        if order not in self.files:
            target = self.folder / f"{'+'.join(order).replace(' ', '_')}.onnx"
            self._apply(order[-1], self.make(order[:-1]), target, is_after_a_tool=len(order) > 1)
            self.files[order] = target
        return self.files[order]

    def _apply(self, tool: str, source: Path, target: Path, *, is_after_a_tool: bool) -> None:
        if tool == FUSE:
            onnx.save(fuse(source, *self.kind), target)
        elif tool == QUANTIZE:
            onnx.save(quantize(source, "dynamic", self.feeds), target)
        else:
            _, _, before = tool.partition(" --before ")
            cost = "measured" if self.search else "none"
            result = graphopt.optimize(
                source,
                cost=cost,
                seconds=self.search,
                threads=1,
                target="onnxruntime" if is_after_a_tool else "onnx",
                before=before,
            )
            result.save(target)


# -- the page ----------------------------------------------------------------------------------------------------------


def markdown(rows: Sequence[Row]) -> str:
    """Return the page: a table of means, and one for each model."""
    lines = [
        "# Orders of tools",
        "",
        "Eight models before and after graphopt, ONNX Runtime's optimizer of transformers (`fuse`) and its",
        "`quantize_dynamic` (`quantize`), as `python -m benchmarks tool_orders` makes and times them: all versions of",
        "a model in turns with the original, under ORT_ENABLE_ALL, with one thread. The speedup is over the original,",
        "with an interval; ▲ and ▼ are beyond noise. The difference is the root mean square of what differs in the",
        f"outputs, relative to them. {_search_text(rows[0]['made']['search'])}",
        "",
        *summary(rows),
        "",
    ]
    for row in rows:
        lines += [f"## {row['model']}", ""]
        if "error" in row:
            lines += [f"Not measured: {row['error']}", ""]
            continue
        head = f"{row['nodes']} nodes, {row['ms']:.2f} ms"
        lines += [
            head,
            "",
            *table(["order", "nodes", "found", "speedup", "difference"], map(_cells, row["versions"])),
            "",
        ]
    return "\n".join([*lines, *circumstances(rows)]) + "\n"


def summary(rows: Sequence[Row]) -> list[str]:
    """Return the table of all models, which the documentation has, too."""
    columns = ["order", "speedup, geometric mean", "from", "to", "attentions", "most nodes", "fails"]
    return table(columns, map(partial(_mean_row, rows), ORDERS))


def _search_text(seconds: float) -> str:
    return f"graphopt searched {seconds:g} s." if seconds else "graphopt simplified only (`--cost none`)."


def _mean_row(rows: Sequence[Row], order: tuple[str, ...]) -> list[str]:
    pairs = [(each, row) for row in rows for each in row.get("versions", ()) if tuple(each["order"]) == order]
    made_ones = [(each, row) for each, row in pairs if "error" not in each]
    speedups = [each["timing"]["median"] for each, _ in made_ones] or [math.nan]
    attentions = sum(each["found"].get("attention", 0) for each, _ in made_ones)
    share = max((each["nodes"] / row["nodes"] for each, row in made_ones), default=math.nan)
    numbers = [f"{number:.2f}" for number in (geometric_mean(speedups), min(speedups), max(speedups))]
    return [_label(order), *numbers, str(attentions), f"{100 * share:.0f} %", str(len(pairs) - len(made_ones))]


def _cells(version: Row) -> list[str]:
    label = _label(version["order"])
    if "error" in version:
        return [label, "", f"fails: {version['error']}", "", ""]
    found = ", ".join(f"{count} {kind}" for kind, count in version["found"].items())
    speed = ratio_text(version["timing"]) if "timing" in version else ""
    return [label, str(version["nodes"]), found, speed, f"{version['difference']:.1g}"]


def _label(order: Sequence[str]) -> str:
    return ", then ".join(order)
