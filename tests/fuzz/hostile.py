"""Files that were written to do harm, by hand: each must be refused in one line, soon, and in little memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser

Written = Callable[[Path], Path]
"""Writes a file into a folder, and returns its path."""


def _text(graph: str, opset: int = 17) -> ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {graph}')


def _saved(model: ModelProto, folder: Path, damage: tuple[bytes, bytes] = (b"", b"")) -> Path:
    path, data = folder / "bad.onnx", model.SerializeToString()
    path.write_bytes(data.replace(*damage) if damage[0] else data)
    return path


def endless(folder: Path) -> Path:
    """A Loop of 2^40 trips."""
    graph = """g (float[4] x) => (float[4] y) <int64 n = {1099511627776}, bool c = {1}> {
        y = Loop (n, c, x) <body = b (int64 i, bool a, float[4] s) => (bool d, float[4] t) {
            d = Identity(a) t = Neg(s) }> }"""
    return _saved(_text(graph), folder)


def doubling(folder: Path) -> Path:
    """Thirty functions, each of which calls the next one twice."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    last = helper.make_function("own", "f30", ["a"], ["c"], [helper.make_node("Neg", ["a"], ["c"])], imports)
    return _called([_caller(number, f"f{number + 1}", imports) for number in range(30)] + [last], folder)


def calling_itself(folder: Path) -> Path:
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return _called([_caller(0, "f1", imports), _caller(1, "f0", imports)], folder)


def calling_deeply(folder: Path) -> Path:
    """400 functions, each of which calls the next."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    last = helper.make_function("own", "f400", ["a"], ["c"], [helper.make_node("Neg", ["a"], ["c"])], imports)
    calls = [helper.make_node(f"f{number + 1}", ["a"], ["c"], domain="own") for number in range(400)]
    functions = [helper.make_function("own", f"f{n}", ["a"], ["c"], [call], imports) for n, call in enumerate(calls)]
    return _called([*functions, last], folder)


def _caller(number: int, callee: str, imports: list[onnx.OperatorSetIdProto]) -> onnx.FunctionProto:
    nodes = [helper.make_node(callee, [a], [b], domain="own") for a, b in ("ab", "bc")]
    return helper.make_function("own", f"f{number}", ["a"], ["c"], nodes, imports)


def _called(functions: list[onnx.FunctionProto], folder: Path) -> Path:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("f0", ["x"], ["y"], domain="own")], "g", [x], [y])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return _saved(helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=8), folder)


def no_text(folder: Path) -> Path:
    """A node whose name is no UTF-8."""
    model = _text("g (float[4] x) => (float[4] y) { y = Neg(x) }")
    model.graph.node[0].name = "name"
    return _saved(model, folder, (b"name", b"n\xffme"))


def huge_input(folder: Path) -> Path:
    return _saved(_text("g (float[1048576,1048576,16] x) => (float[N] y) { y = Flatten(x) }"), folder)


def huge_value(folder: Path) -> Path:
    return _saved(
        _text("g (float[1] x) => (float[M,N] y) <int64[2] s = {1048576, 1048576}> { y = Expand(x, s) }"), folder
    )


def huge_weight(folder: Path) -> Path:
    """A weight of a petabyte, of which nothing is there."""
    model = _text("g (float[1] x) => (float[N] y) { y = Add(x, w) }")
    model.graph.initializer.append(TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1 << 48]))
    return _saved(model, folder)


def _external(folder: Path, location: str) -> Path:
    model = _text("g (float[4] x) => (float[4] y) { y = Add(x, w) }")
    weight = numpy_helper.from_array(np.zeros(4, np.float32), "w")
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=location)
    model.graph.initializer.append(weight)
    return _saved(model, folder)


def data_in_a_folder(folder: Path) -> Path:
    (folder / "weights").mkdir()
    return _external(folder, "weights")


def data_in_a_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "weights")
    return _external(folder, "weights")


def a_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "bad.onnx")
    return folder / "bad.onnx"


def unknown_cast(folder: Path) -> Path:
    return _saved(_text("g (float[4] x) => (float[4] y) { y = Cast<to = 99>(x) }"), folder)


def no_element_type(folder: Path) -> Path:
    model = _text("g (float[4] x) => (float[4] y) { y = Neg(x) }")
    model.graph.input[0].type.tensor_type.elem_type = 77
    return _saved(model, folder)


def wrong_attribute(folder: Path) -> Path:
    return _saved(_text("g (float[4,4] x) => (float[4,4] y) { y = Softmax<axis = 1.5>(x) }"), folder)


def too_few_inputs(folder: Path) -> Path:
    return _saved(_text("g (float[4] x) => (float[4] y) { y = Add(x) }"), folder)


FILES: Mapping[str, tuple[Written, str]] = {
    "a loop that does not end": (endless, r"bad.onnx: a run takes more than 1 s \(--run-limit gives it longer\)"),
    "functions that double": (doubling, "bad.onnx: the model's local functions stand for 3,221,225,471 nodes"),
    "functions that call themselves": (calling_itself, "bad.onnx: the function 'f0' calls itself"),
    "functions that call each other deeply": (calling_deeply, "bad.onnx: .*cannot be inlined: .* depth exceeds limit"),
    "a name that is no text": (no_text, "bad.onnx: 'name' of the node Neg .* is not UTF-8"),
    "an input beyond memory": (huge_input, "bad.onnx: 'y' of node Flatten, FLOAT.* takes 70,368.7 GB"),
    "a value beyond memory": (huge_value, "bad.onnx: 'y' of node Expand, FLOAT.* takes 4,398.0 GB, and the limit is"),
    "a weight beyond memory": (huge_weight, "bad.onnx: 'y' of node Add, FLOAT.* takes 1,125,899.9 GB"),
    "data that are a folder": (data_in_a_folder, "tensor 'w' is said to be in .*weights, which is no ordinary file"),
    "data that are a pipe": (data_in_a_pipe, "tensor 'w' is said to be in .*weights, which is no ordinary file"),
    "a model that is a pipe": (a_pipe, "bad.onnx is no ordinary file"),
    "a target of Cast that is none": (unknown_cast, "bad.onnx: attribute 'to' of node Cast 'y' is the unknown element"),
    "an element type that is none": (no_element_type, "bad.onnx: the value 'x' has the unknown element type 77"),
    "an attribute of another kind": (
        wrong_attribute,
        "node Softmax 'y' has an attribute 'axis' of the kind FLOAT, not INT",
    ),
    "a node with too few inputs": (too_few_inputs, "bad.onnx: node Add 'y' has 1 inputs, not 2"),
}
