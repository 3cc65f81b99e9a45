"""Growth of seconds and memory with the graph: synthetic graphs of 100 to 30,000 nodes, each in a process of its own.

``python -m benchmarks scaling`` writes ``benchmarks/results/scaling.jsonl`` and ``scaling.md`` after each row, and
``scaling.png`` in the end. The seconds are of one machine; what they tell is the exponent: 1 is linear growth.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.environment import job, made
from benchmarks.pictures import panels, saved
from benchmarks.report import circumstances, table
from benchmarks.results import Row, write_rows
from benchmarks.tools import peak_memory
from graphopt.search.policy import SearchPolicy
from graphopt.search.stopping import StopReason

WIDTH = 64
"""Channels: small, for the graph is what is measured."""

LIMIT = 60.0
"""Seconds for the search and a last timing; where the search needs more than its share its growth is not seen."""

GIVEN_UP = 900.0
"""Seconds after which a size is given up."""

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

    def constant(self, array: np.ndarray[Any, Any]) -> str:
        name = f"w_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def weight(self, *shape: int) -> str:
        return self.constant(self.random.normal(0, 0.05, shape).astype(np.float32))

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def number(self, value: float) -> str:
        return self.constant(np.array(value, np.float32))

    def linear(self, x: str) -> str:
        return self.node("Add", self.node("MatMul", x, self.weight(WIDTH, WIDTH)), self.weight(WIDTH))


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
    return build.linear(build.node("Reshape", together, _sizes(build, x, WIDTH)))


def _heads(build: _Builder, x: str) -> str:
    parted = build.node("Reshape", build.linear(x), _sizes(build, x, 4, 16))
    return build.node("Transpose", parted, perm=[0, 2, 1, 3])


def _sizes(build: _Builder, x: str, *rest: int) -> str:
    """Shape, Gather, Unsqueeze, Concat: how tracing exporters write x.view(x.size(0), x.size(1), ...)."""
    shape = build.node("Shape", x)
    picked = [build.node("Gather", shape, build.ints(axis), axis=0) for axis in (0, 1)]
    return build.node("Concat", *picked, build.ints(*rest), axis=0)


def _feed_forward(build: _Builder, x: str) -> str:
    up = build.linear(x)
    erf = build.node("Erf", build.node("Div", up, build.number(math.sqrt(2))))
    gated = build.node("Mul", up, build.node("Add", erf, build.number(1.0)))
    return build.linear(build.node("Mul", gated, build.number(0.5)))


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
    variance = build.constant(np.ones(channels, np.float32))
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
    conditions = made("graphopt", "numpy", "onnx")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for kind, build in KINDS.items():
            for size in sizes:
                model, file = build(size), Path(folder) / f"{kind}-{size}.onnx"
                onnx.save(model, file)
                found = job("benchmarks.scaling", str(file), limit=GIVEN_UP)
                rows.append({"kind": kind, "nodes": len(model.graph.node), **found, "made": conditions})
                print(json.dumps(rows[-1]))
                write_rows(path, rows, markdown(rows))
    saved(picture(rows), path.with_suffix(".png"), rows)
    return path


def work(path: str) -> Row:
    """Return the seconds of each step on one model, in this process, and the peak memory of all until its end.

    `start` is what every run costs: the rules and their proofs, and the imports that are left by then. `match` is a
    second run on the outcome, where every rule is tried everywhere and nothing is left to do. `search` asks an
    estimate, so that it runs nothing.
    """
    import graphopt
    from graphopt.io import onnx_io

    seconds: dict[str, float] = {}
    memory: dict[str, int] = {}
    begun = time.perf_counter()
    graphopt.optimize(convolutional(1), check=False, cost="analytic")
    seconds["start"], memory["start"] = time.perf_counter() - begun, peak_memory()
    onnx_io.load_model(path)
    memory["load"] = peak_memory()
    result = graphopt.optimize(path, check=False, cost="none")
    seconds |= {step: result.report.seconds[step] for step in ("load", "simplify")}
    memory["simplify"] = peak_memory()
    seconds["match"] = graphopt.optimize(result.model, check=False, cost="none").report.seconds["simplify"]
    memory["match"] = peak_memory()
    begun = time.perf_counter()
    result.save(path + ".out")
    seconds["save"], memory["save"] = time.perf_counter() - begun, peak_memory()
    report = graphopt.optimize(path, check=False, cost="analytic", seconds=LIMIT).report
    seconds["search"], memory["search"] = report.seconds["search"], peak_memory()
    row: Row = {"left": len(result.model.graph.node), "memory_mb": memory}
    if (found := report.timing) is not None:
        row["search"] = {"stop": found.stop, "regions": found.regions, "copies": found.copies, "states": found.states}
    return row | {"seconds": {step: round(value, 4) for step, value in seconds.items()}}


# -- the page and the picture ------------------------------------------------------------------------------------------


def points(rows: Sequence[Row], step: str) -> list[tuple[int, float]]:
    """Return nodes and seconds of a step, where it was done to its end."""
    whole = [row for row in rows if step in row.get("seconds", {}) and (step != "search" or _is_done(row))]
    return [(row["nodes"], row["seconds"][step]) for row in whole]


def _is_done(row: Row) -> bool:
    """Return whether the search came to its own end; of a row that does not say, nobody knows."""
    return bool(row.get("search", {}).get("stop") == StopReason.DONE)


def exponent(rows: Sequence[Row], step: str) -> float:
    """Return the power of the number of nodes with which a step's seconds grow, from `LARGE` nodes on: 1 is linear.

    NaN where fewer than two rows tell.
    """
    large = [(nodes, max(seconds, 1e-6)) for nodes, seconds in points(rows, step) if nodes >= LARGE]
    logs = np.log(np.array(large).reshape(-1, 2))
    return float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0]) if len(large) > 1 else float("nan")


def markdown(rows: Sequence[Row]) -> str:
    """Return the page: how it was made, where growth is not near linear, the picture, a table a kind of graph."""
    limit = LIMIT * SearchPolicy().search_share
    lines = ["# Scaling", "", "Made by `python -m benchmarks scaling`; `benchmarks/scaling.py` says how.", "",
             *circumstances(rows), "",
             "Seconds of the steps in one process a row, which has the model twice in memory; MB: the peak memory",
             f"until the end of the step. The search asks an estimate and may take {limit:g} s; +: it was not",
             "done then. Parts are the places that a search knows, regions those of them that differ. Exponent: the",
             f"power of the number of nodes with which the seconds grow, from {LARGE:,} nodes on, of what was done;",
             "1 is linear.",
             "", _growth(rows), "", "![Seconds of each step against nodes](scaling.png)"]  # fmt: skip
    for kind, some in _by_kind(rows).items():
        lines += ["", f"## {kind}", "", *_kind_table(some)]
        lines += [f"\n{row['nodes']} nodes: {row['error']}" for row in some if "error" in row]
    return "\n".join([*lines, ""])


def _by_kind(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found = {kind: [row for row in rows if row["kind"] == kind] for kind in KINDS}
    return {kind: some for kind, some in found.items() if some}


def _growth(rows: Sequence[Row]) -> str:
    """Return where growth is not near linear."""
    powers = {f"{step} of {kind}": exponent(some, step) for kind, some in _by_kind(rows).items() for step in STEPS}
    if steep := [f"{what} ({power:.2f})" for what, power in powers.items() if power > LINEAR]:
        return f"Not near linear: {', '.join(steep)}."
    if all(math.isnan(power) for power in powers.values()):
        return f"How they grow is not known: there are too few rows of {LARGE:,} nodes and more."
    return f"Near linear: no exponent is above {LINEAR}."


def _kind_table(rows: Sequence[Row]) -> list[str]:
    head = ["nodes", "left", *STEPS, "regions", "parts", "states", *(f"MB, {step}" for step in STEPS)]
    powers = [exponent(rows, step) for step in STEPS]
    last = ["exponent", "", *("" if math.isnan(power) else f"{power:.2f}" for power in powers)]
    return table(head, [_cells(row) + [""] * (len(head) - len(_cells(row))) for row in rows] + [last + [""] * 9])


def _cells(row: Row) -> list[str]:
    if "error" in row:
        return [str(row["nodes"]), "fails"]
    seconds = [f"{row['seconds'][step]:.3f}" for step in STEPS]
    seconds[-1] += "+" * (not _is_done(row))
    counts = [str(row.get("search", {}).get(count, "")) for count in ("regions", "copies", "states")]
    return [str(row["nodes"]), str(row["left"]), *seconds, *counts, *(str(row["memory_mb"][step]) for step in STEPS)]


_COLOURS = dict(zip(STEPS, ("#999999", "#56b4e9", "#d55e00", "#009e73", "#e69f00", "#0072b2"), strict=True))


def picture(rows: Sequence[Row]) -> Any:
    """Draw seconds against nodes, both logarithmic: a line a step, a panel a kind of graph, a slope of 1 to compare."""
    kinds = _by_kind(rows)
    figure, axes = panels(1, len(kinds), (4.6 * len(kinds), 4.2), sharey=True)
    for axis, (kind, some) in zip(axes[0], kinds.items(), strict=True):
        for step in STEPS:
            nodes, seconds = zip(*points(some, step), strict=True) if points(some, step) else ((), ())
            axis.plot(nodes, seconds, "o-", color=_COLOURS[step], markersize=4, linewidth=1.2, label=step)
        ends = min(row["nodes"] for row in some), max(row["nodes"] for row in some)
        axis.plot(ends, [end * 1e-3 for end in ends], "--", color="#bbbbbb", linewidth=1, label="linear: 1 ms a node")
        axis.set(xscale="log", yscale="log", xlabel="nodes")
        axis.set_title(kind)
    axes[0, 0].set_ylabel("seconds of the step")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False, fontsize=8)
    return figure


if __name__ == "__main__":
    print(json.dumps(work(sys.argv[1])))
