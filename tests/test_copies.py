"""Outputs whose values become one: the copies that keep their names are nodes, too."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import graphopt
from tests.text import parse

HALVES = "a, b = Split <axis = 1> (c, t)"
BODIES = {
    "halves of a Concat that is read": ("float[2,3] x", f"c = Concat <axis = 1> (x, x); {HALVES}; d = Sin(c)", "abd"),
    "halves of two inputs": (
        "float[2,3] x, float[2,3] z",
        f"c = Concat <axis = 1> (x, z); {HALVES}; d = Sin(c)",
        "abd",
    ),
    "a half and what is made": (
        "float[2,3] x, float[2,3] z",
        f"s = Sin(x); c = Concat <axis = 1> (s, z); {HALVES}; d = Cos(c)",
        "abds",
    ),
    "the Concat is an output": ("float[2,3] x", f"c = Concat <axis = 1> (x, x); {HALVES}", "abc"),
    "halves of a made value": (
        "float[2,3] x",
        f"s = Sin(x); c = Concat <axis = 1> (s, s); {HALVES}; d = Cos(c)",
        "abd",
    ),
    "equal nodes with two outputs": (
        "float[2,6] x",
        f"{HALVES}; e, f = Split <axis = 1> (x, t)".replace("(c", "(x"),
        "abef",
    ),
    "what undoes itself": (
        "float[2,3] x",
        "a = Transpose <perm = [1, 0]> (x); b = Transpose <perm = [1, 0]> (a)",
        "ab",
    ),
}


def _model(inputs: str, body: str, outputs: str = "y") -> onnx.ModelProto:
    known = {"t": np.array([3, 3]), "z0": np.array([0]), "none": np.zeros(0, np.int64)}
    return parse(inputs, body, known, outputs=", ".join(outputs))


@pytest.mark.parametrize(("inputs", "body", "outputs"), BODIES.values(), ids=BODIES)
def test_no_model_has_more_nodes_for_the_names_of_its_outputs(inputs: str, body: str, outputs: str) -> None:
    model = _model(inputs, body, outputs)
    result = graphopt.optimize(model, cost="none")
    assert result.ok
    assert len(result.model.graph.node) <= len(model.graph.node)


def test_copies_are_made_where_that_saves_nodes() -> None:
    result = graphopt.optimize(_model("float[2,3] x", f"c = Concat <axis = 1> (x, x); {HALVES}", "ab"), cost="none")
    assert result.ok
    assert [node.op_type for node in result.model.graph.node] == ["Identity", "Identity"]


NOTHING = dict.fromkeys(("Sum", "Mean", "Max", "Min", "Prod"), "") | {"L1": "Abs", "LogSum": "Log", "SumSquare": "Mul"}
"""What is left of a reduction along no axes."""


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("kind", NOTHING)
@pytest.mark.parametrize("axes", ["none", "computed"])
def test_a_reduction_along_no_axes_goes(kind: str, axes: str, keepdims: int) -> None:
    reduce = f"r = Reduce{kind} <keepdims = {keepdims}, noop_with_empty_axes = 1> (p, {axes})"
    body = f"s = Shape(x); computed = Slice(s, z0, z0); p = Sigmoid(x); {reduce}; y = Sin(r)"
    result = graphopt.optimize(_model("float[n,3] x", body), cost="none")
    assert result.ok
    assert [node.op_type for node in result.model.graph.node] == [*filter(None, ["Sigmoid", NOTHING[kind], "Sin"])]


@pytest.mark.parametrize("kind", [*NOTHING, "L2", "LogSumExp"])
def test_a_reduction_along_an_empty_list_of_axes_means_all_of_them_by_default(kind: str) -> None:
    body = f"p = Sigmoid(x); y = Reduce{kind} <keepdims = 0> (p, none)"
    result = graphopt.optimize(_model("float[n,3] x", body), cost="none")
    assert result.ok
    assert [node.op_type for node in result.model.graph.node] == ["Sigmoid", f"Reduce{kind}"]
