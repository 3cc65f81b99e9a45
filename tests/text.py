"""Models and graphs as text, for tests that read like examples."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import numpy_helper

from graphopt.ir.graph import Graph, Value
from graphopt.ir.tensor import Tensor

Arrays = Mapping[str, NDArray[Any]]

_STATE = onnxruntime.capi.onnxruntime_pybind11_state
UNDEFINED = (_STATE.Fail, _STATE.InvalidArgument, _STATE.RuntimeException)
"""What ONNX Runtime raises where a model is not defined for the sizes that it gets."""


def parse(
    inputs: str, body: str, weights: Arrays | None = None, *, outputs: str = "y", opset: int = 18
) -> onnx.ModelProto:
    """A model from nodes in ONNX text, separated by semicolons; an argument may be a number or a list: a constant."""
    constants: list[str] = []

    def constant(match: re.Match[str]) -> str:
        text, name = match.group(1), f"c{len(constants)}"
        kind = "float" if "." in text else "int"
        constants.append(f"{name} = Constant<value_{kind}{'s' if '[' in text else ''}={text}>()")
        return name

    number = r"(?<=[(,])\s*(\[[^\]]*\]|-?\d+(?:\.\d+)?)(?=[,)])"
    parts = re.split(r"(<[^>]*>)", body)  # attributes are left as they are
    parts = [part if part.startswith("<") else re.sub(number, constant, part) for part in parts]
    nodes = " ".join([*constants, "".join(parts).replace(";", " ")])
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {opset}]> test ({inputs}) => ({outputs}) {{ {nodes} }}'
    )
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in (weights or {}).items())
    return model


def printed(graph: Graph) -> list[str]:
    """The nodes, producers first, and what the graph returns; small constants are written out."""
    lines = []
    for vertex in graph.topological_order():
        node = graph[vertex]
        if not node.is_internal:
            arguments = ", ".join("" if value is None else _argument(graph, value) for value in node.inputs)
            lines.append(f"{', '.join(node.names)} = {node.op}({arguments})")
    return [*lines, f"return {', '.join(_argument(graph, value) for value in graph.outputs)}"]


def _argument(graph: Graph, value: Value) -> str:
    constant = graph.constant(value)
    return graph.value_name(value) if constant is None else _constant(constant, graph.value_name(value))


def _constant(tensor: Tensor, name: str) -> str:
    return str(tensor.numpy().tolist()) if tensor.size <= 8 else name


def run(model: onnx.ModelProto, feeds: Arrays, *, everything: bool = False) -> Arrays:
    """The outputs (or every value of the main graph) as ONNX Runtime computes them without optimizing."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    if everything:
        del copy.graph.output[:]
        names = [name for node in model.graph.node for name in node.output if name]
        copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(copy.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in copy.graph.output]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))
