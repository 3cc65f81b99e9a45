"""How seconds and memory grow with the graph: synthetic graphs of 100 to 30,000 nodes, each in a process of its own.

``python -m benchmarks scaling`` writes ``benchmarks/results/scaling.json`` and ``scaling.md``. The seconds are of one
machine; what they tell is the exponent: 1 is linear growth.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.nodecounts import machine
from benchmarks.report import table
from benchmarks.tools import peak_memory
from graphopt.search import StopReason
from graphopt.tune import SHARE

WIDTH = 64
"""Channels: small, for the graph is what is measured."""

LIMIT = 60.0
"""Seconds for the search and a last timing; where the search needs more than its share its growth is not seen."""


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
    """Residual blocks with batch norms that nobody has folded."""
    build = _Builder()
    x = "x"
    while len(build.nodes) < nodes:
        y = x
        for _ in range(2):
            y = build.node("Conv", y, build.weight(WIDTH, WIDTH, 1, 1), kernel_shape=[1, 1])
            scale, shift, mean = (build.weight(WIDTH) for _ in range(3))
            variance = build.weight(WIDTH)
            build.weights[-1].CopyFrom(numpy_helper.from_array(np.ones(WIDTH, np.float32), variance))
            y = build.node("Relu", build.node("BatchNormalization", y, scale, shift, mean, variance))
        x = build.node("Add", x, y)
    return _model(build, x, ["batch", WIDTH, "height", "width"])


def _model(build: _Builder, output: str, shape: Sequence[str | int]) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", output)]
    graph = helper.make_graph(build.nodes, "scaling", values[:1], values[1:], build.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


KINDS = {"transformer": transformer, "convolutional": convolutional}


def run(sizes: Sequence[int], path: Path) -> Path:
    """Measure each kind and size, and write both files."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for kind, build in KINDS.items():
            for size in sizes:
                model = Path(folder) / f"{kind}-{size}.onnx"
                onnx.save(build(size), model)
                done = subprocess.run(
                    [sys.executable, "-m", "benchmarks.scaling", str(model)], capture_output=True, text=True, check=True
                )
                rows.append({"kind": kind, **json.loads(done.stdout)})
                print(json.dumps(rows[-1]))
    results = {"machine": machine(), "rows": rows}
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(markdown(results), encoding="utf-8")
    return path


def work(path: str) -> dict[str, Any]:
    """The steps on one model, in this process: seconds of each, and the peak memory of all.

    `start` is what every run costs: imports, the rules, their proofs. `match` is a second run on the outcome, where
    every rule is tried everywhere and nothing is left to do. `search` asks an estimate, so that it runs nothing.
    """
    begun = time.perf_counter()
    import graphopt

    graphopt.optimize(convolutional(1), check=False, cost="analytic")
    seconds = {"start": time.perf_counter() - begun}
    result = graphopt.optimize(path, check=False, cost="none")
    seconds |= {stage: result.report.seconds[stage] for stage in ("load", "simplify")}
    seconds["match"] = graphopt.optimize(result.model, check=False, cost="none").report.seconds["simplify"]
    begun = time.perf_counter()
    result.save(path + ".out")
    seconds["save"] = time.perf_counter() - begun
    nodes = {"nodes": len(onnx.load(path).graph.node), "left": len(result.model.graph.node)}
    row: dict[str, Any] = nodes | {"memory_mb": peak_memory()}
    report = graphopt.optimize(path, check=False, cost="analytic", seconds=LIMIT).report
    seconds["search"] = report.seconds["search"]
    if report.timing is not None:
        found = report.timing
        row["search"] = {"stop": found.stop, "regions": found.regions, "copies": found.copies, "states": found.states}
    row["search_mb"] = peak_memory()
    return row | {"seconds": {name: round(value, 4) for name, value in seconds.items()}}


def exponent(rows: Sequence[dict[str, Any]], step: str) -> float:
    """The power of the number of nodes with which a step's seconds grow, from 1,000 nodes on: 1 is linear."""
    large = [row for row in rows if row["nodes"] >= 1000]
    logs = np.log([[row["nodes"], max(row["seconds"][step], 1e-6)] for row in large])
    return float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0]) if len(large) > 1 else float("nan")


def markdown(results: dict[str, Any]) -> str:
    """The page: a table a kind of graph."""
    lines = ["# Scaling", "", "Made by `python -m benchmarks scaling`; `benchmarks/scaling.py` says how.", "",
             f"Machine: {results['machine']}. Seconds of the steps in one process a row, which has the model twice in",
             "memory; peak memory in MB, without and with the search. The search asks an estimate and may take",
             f"{LIMIT * SHARE:g} s; +: it was not done. Exponent: the power of the number of nodes with which the",
             "seconds grow, from 1,000 nodes on; 1 is linear."]  # fmt: skip
    for kind in KINDS:
        rows = [row for row in results["rows"] if row["kind"] == kind]
        if rows:
            lines += ["", f"## {kind}", "", *_kind_table(rows)]
    return "\n".join([*lines, ""])


def _kind_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    steps = list(rows[0]["seconds"])
    head = ["nodes", "left", *steps, "regions", "parts", "states", "MB", "MB, search"]
    cells = [[str(row["nodes"]), str(row["left"]), *_row_cells(row, steps)] for row in rows]
    cells.append(["exponent", "", *(f"{exponent(rows, step):.2f}" for step in steps), *[""] * 5])
    return table(head, cells)


def _row_cells(row: dict[str, Any], steps: Sequence[str]) -> list[str]:
    search = row.get("search", {})
    seconds = [f"{row['seconds'][step]:.3f}" for step in steps]
    seconds[-1] += "+" * (search.get("stop", StopReason.DONE) != StopReason.DONE)
    counts = [str(search.get(count, "")) for count in ("regions", "copies", "states")]
    return [*seconds, *counts, str(row["memory_mb"]), str(row["search_mb"])]


if __name__ == "__main__":
    print(json.dumps(work(sys.argv[1])))
