"""How seconds and memory grow with the graph: synthetic graphs of 100 to 30,000 nodes, each in a process of its own.

``python -m benchmarks scaling`` writes ``benchmarks/results/scaling.json`` and ``scaling.md`` after each row, and
``scaling.png`` in the end. The seconds are of one machine; what they tell is the exponent: 1 is linear growth.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.checks import machine, today
from benchmarks.jobs import job
from benchmarks.pictures import logarithmic, panels, saved
from benchmarks.report import table
from benchmarks.tools import peak_memory
from graphopt.search.policy import SearchPolicy
from graphopt.search.stopping import StopReason

WIDTH = 64
"""Channels: small, for the graph is what is measured."""

LIMIT = 60.0
"""Seconds for the search and a last timing; where the search needs more than its share its growth is not seen."""

GIVEN_UP = 900.0
"""Seconds after which a size is."""

LARGE = 1000
"""Nodes from which on growth is looked at: below, what every run costs is most of it."""

LINEAR = 1.3
"""The largest exponent that passes for nearly linear: n log n has 1.1 at these sizes, and small runs have less."""

STEPS = ("start", "load", "simplify", "match", "save", "search")


class _Builder:
    """A graph, node by node."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(0)

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        output = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def weight(self, *shape: int) -> str:
        name = f"w_{len(self.weights)}"
        array = self.random.normal(0, 0.05, shape).astype(np.float32)
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def ints(self, *values: int) -> str:
        name = f"i_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def number(self, value: float) -> str:
        name = f"c_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(value, np.float32), name))
        return name


def transformer(nodes: int) -> onnx.ModelProto:
    """Layers as a plain export writes them: LayerNorm and Gelu written out, heads parted by sizes read off the data."""
    build = _Builder()
    x = "x"
    while len(build.nodes) < nodes:
        x = build.node("Add", x, _attention(build, _layer_norm(build, x)))
        x = build.node("Add", x, _feed_forward(build, _layer_norm(build, x)))
    return _model(build, x, ["batch", "sequence", WIDTH])


def _layer_norm(build: _Builder, x: str) -> str:
    mean = build.node("ReduceMean", x, build.ints(-1))
    centred = build.node("Sub", x, mean)
    square = build.node("Pow", centred, build.number(2.0))
    variance = build.node("ReduceMean", square, build.ints(-1))
    root = build.node("Sqrt", build.node("Add", variance, build.number(1e-5)))
    normed = build.node("Mul", build.node("Div", centred, root), build.weight(WIDTH))
    return build.node("Add", normed, build.weight(WIDTH))


def _attention(build: _Builder, x: str) -> str:
    query, key, value = (_heads(build, x) for _ in range(3))
    scores = build.node("MatMul", query, build.node("Transpose", key, perm=[0, 1, 3, 2]))
    scaled = build.node("Div", scores, build.number(4.0))
    mixed = build.node("MatMul", build.node("Softmax", scaled, axis=-1), value)
    together = build.node("Transpose", mixed, perm=[0, 2, 1, 3])
    flat = build.node("Reshape", together, _sizes(build, x, WIDTH))
    return build.node("Add", build.node("MatMul", flat, build.weight(WIDTH, WIDTH)), build.weight(WIDTH))


def _heads(build: _Builder, x: str) -> str:
    projected = build.node("Add", build.node("MatMul", x, build.weight(WIDTH, WIDTH)), build.weight(WIDTH))
    return build.node("Transpose", build.node("Reshape", projected, _sizes(build, x, 4, 16)), perm=[0, 2, 1, 3])


def _sizes(build: _Builder, x: str, *rest: int) -> str:
    """Shape, Gather, Unsqueeze, Concat: how tracing exporters write x.view(x.size(0), x.size(1), ...)."""
    shape = build.node("Shape", x)
    picked = [build.node("Gather", shape, build.ints(axis), axis=0) for axis in (0, 1)]
    return build.node("Concat", *picked, build.ints(*rest), axis=0)


def _feed_forward(build: _Builder, x: str) -> str:
    up = build.node("Add", build.node("MatMul", x, build.weight(WIDTH, WIDTH)), build.weight(WIDTH))
    erf = build.node("Erf", build.node("Div", up, build.number(math.sqrt(2))))
    gelu = build.node("Mul", build.node("Mul", up, build.node("Add", erf, build.number(1.0))), build.number(0.5))
    return build.node("Add", build.node("MatMul", gelu, build.weight(WIDTH, WIDTH)), build.weight(WIDTH))


def convolutional(nodes: int) -> onnx.ModelProto:
    """Residual blocks with batch norms that nobody has folded, all alike."""
    build = _Builder()
    x = "x"
    while len(build.nodes) < nodes:
        y = _convolution(build, _convolution(build, x, WIDTH, WIDTH), WIDTH, WIDTH)
        x = build.node("Add", x, y)
    return _model(build, x, ["batch", WIDTH, "height", "width"])


def varied(nodes: int) -> onnx.ModelProto:
    """Blocks of which hardly two have the same channels: a search finds nothing again that it has seen before."""
    build = _Builder()
    x, before = "x", WIDTH
    while len(build.nodes) < nodes:
        channels = int(build.random.integers(WIDTH // 2, 2 * WIDTH))
        y = _convolution(build, _convolution(build, x, before, channels), channels, channels)
        x, before = build.node("Add", _convolution(build, x, before, channels), y), channels
    return _model(build, x, ["batch", WIDTH, "height", "width"], ["batch", before, "height", "width"])


def _convolution(build: _Builder, x: str, before: int, channels: int) -> str:
    """Conv, BatchNormalization, Relu."""
    y = build.node("Conv", x, build.weight(channels, before, 1, 1), kernel_shape=[1, 1])
    scale, shift, mean = (build.weight(channels) for _ in range(3))
    variance = build.weight(channels)
    build.weights[-1].CopyFrom(numpy_helper.from_array(np.ones(channels, np.float32), variance))
    return build.node("Relu", build.node("BatchNormalization", y, scale, shift, mean, variance))


Shape = Sequence[str | int]


def _model(build: _Builder, output: str, shape: Shape, output_shape: Shape = ()) -> onnx.ModelProto:
    """A model of one input and one output, of the same shape unless another is given."""
    shapes = {"x": shape, output: output_shape or shape}
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes) for name, sizes in shapes.items()]
    graph = helper.make_graph(build.nodes, "scaling", values[:1], values[1:], build.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def chains(nodes: int) -> onnx.ModelProto:
    """All that goes away: a chain of Identities, then one of additions of constants, then as many equal nodes."""
    build = _Builder()
    x = "x"
    for _ in range(nodes // 3):
        x = build.node("Identity", x)
    for _ in range(nodes // 3):
        x = build.node("Add", x, build.number(1.0))
    equal = [build.node("Relu", x) for _ in range(nodes - len(build.nodes))]
    y = build.node("ReduceMax", build.node("Concat", *equal, axis=0), build.ints(0), keepdims=0)
    return _model(build, y, [WIDTH, WIDTH], [WIDTH])


KINDS = {"transformer": transformer, "convolutional": convolutional, "varied": varied, "chains": chains}


# -- a run -------------------------------------------------------------------------------------------------------------


def run(sizes: Sequence[int], path: Path) -> Path:
    """Measure each kind and size; the file and the page have a row as soon as it is measured, the picture all."""
    packages = ("graphopt", "numpy", "onnx")
    results: dict[str, Any] = {
        "machine": machine(),
        "versions": {package: importlib.metadata.version(package) for package in packages},
        "date": today(),
        "rows": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        for kind, build in KINDS.items():
            for size in sizes:
                results["rows"].append(_row(kind, build(size), Path(folder) / f"{kind}-{size}.onnx"))
                print(json.dumps(results["rows"][-1]))
                path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
                path.with_suffix(".md").write_text(markdown(results), encoding="utf-8")
    saved(picture(results), path.with_suffix(".png"), results)
    return path


def _row(kind: str, model: onnx.ModelProto, path: Path) -> dict[str, Any]:
    """What a process of its own measures, or the reason why it did not."""
    onnx.save(model, path)
    row = {"kind": kind, "nodes": len(model.graph.node)}
    return row | job("benchmarks.scaling", str(path), limit=GIVEN_UP)


def work(path: str) -> dict[str, Any]:
    """The steps on one model, in this process: seconds of each, and the peak memory of all until its end.

    `start` is what every run costs: the rules and their proofs, and the imports that are left by then. `match` is a
    second run on the outcome, where every rule is tried everywhere and nothing is left to do. `search` asks an
    estimate, so that it runs nothing.
    """
    begun = time.perf_counter()
    import graphopt
    from graphopt.io import onnx_io

    graphopt.optimize(convolutional(1), check=False, cost="analytic")
    seconds = {"start": time.perf_counter() - begun}
    memory = {"start": peak_memory()}
    onnx_io.load(path)
    memory["load"] = peak_memory()
    result = graphopt.optimize(path, check=False, cost="none")
    seconds |= {step: result.report.seconds[step] for step in ("load", "simplify")}
    memory["simplify"] = peak_memory()
    seconds["match"] = graphopt.optimize(result.model, check=False, cost="none").report.seconds["simplify"]
    memory["match"] = peak_memory()
    begun = time.perf_counter()
    result.save(path + ".out")
    seconds["save"] = time.perf_counter() - begun
    memory["save"] = peak_memory()
    report = graphopt.optimize(path, check=False, cost="analytic", seconds=LIMIT).report
    seconds["search"] = report.seconds["search"]
    memory["search"] = peak_memory()
    row: dict[str, Any] = {"left": len(result.model.graph.node), "memory_mb": memory}
    if report.timing is not None:
        found = report.timing
        row["search"] = {"stop": found.stop, "regions": found.regions, "copies": found.copies, "states": found.states}
    return row | {"seconds": {step: round(value, 4) for step, value in seconds.items()}}


# -- the page and the picture ------------------------------------------------------------------------------------------

Row = Mapping[str, Any]


def points(rows: Sequence[Row], step: str) -> list[tuple[int, float]]:
    """Nodes and seconds of a step, where it was done to its end."""
    whole = [row for row in rows if step in row.get("seconds", {}) and (step != "search" or _is_done(row))]
    return [(row["nodes"], row["seconds"][step]) for row in whole]


def _is_done(row: Row) -> bool:
    """Whether the search came to its own end. Of a row that does not say, nobody knows."""
    return bool(row.get("search", {}).get("stop") == StopReason.DONE)


def exponent(rows: Sequence[Row], step: str) -> float:
    """The power of the number of nodes with which a step's seconds grow, from `LARGE` nodes on: 1 is linear.

    NaN where fewer than two rows tell.
    """
    large = [(nodes, max(seconds, 1e-6)) for nodes, seconds in points(rows, step) if nodes >= LARGE]
    logs = np.log(np.array(large).reshape(-1, 2))
    return float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0]) if len(large) > 1 else float("nan")


def markdown(results: Row) -> str:
    """The page: how it was made, where growth is not near linear, a table a kind of graph, and the picture."""
    known, limit = [("Machine", results["machine"])], LIMIT * SearchPolicy().search_share
    if "versions" in results:
        known.append(
            ("Versions", ", ".join(f"{package} {version}" for package, version in results["versions"].items()))
        )
    if "date" in results:
        known.append(("Date", results["date"]))
    lines = ["# Scaling", "", "Made by `python -m benchmarks scaling`; `benchmarks/scaling.py` says how.", "",
             *(f"- {name}: {value}" for name, value in known), "",
             "Seconds of the steps in one process a row, which has the model twice in memory; MB: the peak memory",
             f"until the end of the step. The search asks an estimate and may take {limit:g} s; +: it was not",
             "done then. Parts are the places that a search knows, regions those of them that differ. Exponent: the",
             f"power of the number of nodes with which the seconds grow, from {LARGE:,} nodes on, of what was done;",
             "1 is linear.",
             "", _growth(results["rows"]), "", "![Seconds of each step against nodes](scaling.png)"]  # fmt: skip
    for kind, rows in _by_kind(results["rows"]):
        lines += ["", f"## {kind}", "", *_kind_table(rows)]
        lines += [f"\n{row['nodes']} nodes: {row['error']}" for row in rows if "error" in row]
    return "\n".join([*lines, ""])


def _by_kind(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    for kind in KINDS:
        found = [row for row in rows if row["kind"] == kind]
        if found:
            yield kind, found


def _growth(rows: Sequence[Row]) -> str:
    """Where growth is not near linear."""
    powers = {f"{step} of {kind}": exponent(some, step) for kind, some in _by_kind(rows) for step in STEPS}
    steep = [f"{what} ({power:.2f})" for what, power in powers.items() if power > LINEAR]
    if steep:
        return f"Not near linear: {', '.join(steep)}."
    if all(math.isnan(power) for power in powers.values()):
        return f"How they grow is not known: there are too few rows of {LARGE:,} nodes and more."
    return f"Near linear: no exponent is above {LINEAR}."


def _kind_table(rows: Sequence[Row]) -> list[str]:
    measured = [step for step in STEPS if any(step in row.get("memory_mb", {}) for row in rows)]
    head = ["nodes", "left", *STEPS, "regions", "parts", "states", *(f"MB, {step}" for step in measured)]
    powers = [exponent(rows, step) for step in STEPS]
    last = ["exponent", "", *("" if math.isnan(power) else f"{power:.2f}" for power in powers)]
    return table(head, [*(_row_cells(row, measured) for row in rows), [*last, *[""] * (3 + len(measured))]])


def _row_cells(row: Row, measured: Sequence[str]) -> list[str]:
    if "error" in row:
        return [str(row["nodes"]), "fails", *[""] * (len(STEPS) + 3 + len(measured))]
    seconds = [f"{row['seconds'][step]:.3f}" for step in STEPS]
    seconds[-1] += "+" * (not _is_done(row))
    counts = [str(row.get("search", {}).get(count, "")) for count in ("regions", "copies", "states")]
    memory = [str(row["memory_mb"].get(step, "")) for step in measured]
    return [str(row["nodes"]), str(row["left"]), *seconds, *counts, *memory]


_COLOURS = dict(zip(STEPS, ("#999999", "#56b4e9", "#d55e00", "#009e73", "#e69f00", "#0072b2"), strict=True))


def picture(results: Row) -> Any:
    """Seconds against nodes, both logarithmic: a line a step, a panel a kind of graph, and a slope of 1 to compare."""
    kinds = list(_by_kind(results["rows"]))
    figure, axes = panels(1, len(kinds), (4.6 * len(kinds), 4.2), sharey=True)
    for axis, (kind, rows) in zip(axes[0], kinds, strict=True):
        _panel(axis, rows)
        axis.set_title(kind)
    axes[0, 0].set_ylabel("seconds of the step")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False, fontsize=8)
    return figure


def _panel(axis: Any, rows: Sequence[Row]) -> None:
    for step in STEPS:
        nodes, seconds = zip(*points(rows, step), strict=True) if points(rows, step) else ((), ())
        axis.plot(nodes, seconds, "o-", color=_COLOURS[step], markersize=4, linewidth=1.2, label=step)
    ends = min(row["nodes"] for row in rows), max(row["nodes"] for row in rows)
    axis.plot(ends, [end * 1e-3 for end in ends], "--", color="#bbbbbb", linewidth=1, label="linear: 1 ms a node")
    logarithmic(axis)
    axis.set_xlabel("nodes")


if __name__ == "__main__":
    print(json.dumps(work(sys.argv[1])))
