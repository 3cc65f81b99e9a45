"""Bodies in bodies: what is done to a model grows with how deep they lie as its nodes do, and no faster."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

import graphopt

SHAPE = (2, 3)


def _info(name: str, shape: tuple[int, ...] = SHAPE, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _node(op: str, inputs: list[str], output: str, **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, [output], **attrs)


def _branch(level: int, inside: onnx.GraphProto | None) -> onnx.GraphProto:
    """Return a graph without inputs: what is inside, one If deeper."""
    if inside is None:
        return helper.make_graph([_node("Relu", ["x"], "r")], "leaf", [], [_info("r")])
    other = helper.make_graph([_node("Neg", ["x"], f"e{level}")], f"else{level}", [], [_info(f"e{level}")])
    node = _node("If", ["c"], f"o{level}", then_branch=inside, else_branch=other)
    return helper.make_graph([node], f"g{level}", [], [_info(f"o{level}")])


def _asking(level: int, inside: onnx.GraphProto | None) -> onnx.GraphProto:
    """Return the same with a question at each level that only an infinity could answer, and something to fold."""
    graph = _branch(level, inside)
    first = graph.output[0].name
    more = [
        _node("IsInf", [first], f"i{level}"),
        _node("Where", [f"i{level}", first, "x"], f"w{level}"),
        _node("Identity", [f"w{level}"], f"n{level}"),
        _node("Neg", [f"n{level}"], f"m{level}"),
        _node("Neg", [f"m{level}"], f"p{level}"),
    ]
    return helper.make_graph([*graph.node, *more], graph.name, [], [_info(f"p{level}")])


def _both(level: int, inside: onnx.GraphProto | None) -> onnx.GraphProto:
    """Return a graph whose If holds what is inside in the branch that comes last."""
    graph = _branch(level, inside)
    for attribute in graph.node[0].attribute if inside is not None else ():
        attribute.name = {"then_branch": "else_branch", "else_branch": "then_branch"}[attribute.name]
    return graph


def _loop(level: int, inside: onnx.GraphProto | None) -> onnx.GraphProto:
    """Return the body of a Loop: what is inside, one Loop deeper."""
    names = [f"{name}{level}" for name in ("i", "cond", "state")]
    inputs = [_info(names[0], (), TensorProto.INT64), _info(names[1], (), TensorProto.BOOL), _info(names[2])]
    step = (
        _node("Relu", [names[2]], f"o{level}")
        if inside is None
        else _node("Loop", ["two", names[1], names[2]], f"o{level}", body=inside)
    )
    kept = _node("Identity", [names[1]], f"go{level}")
    outputs = [_info(f"go{level}", (), TensorProto.BOOL), _info(f"o{level}")]
    return helper.make_graph([kept, step], f"g{level}", inputs, outputs)


def _scan(level: int, inside: onnx.GraphProto | None) -> onnx.GraphProto:
    """Return the body of a Scan: what is inside, one Scan deeper, over what is captured."""
    state, row = f"state{level}", f"row{level}"
    step = (
        _node("Add", [state, row], f"o{level}")
        if inside is None
        else _node("Scan", [state, "x"], f"o{level}", body=inside, num_scan_inputs=1)
    )
    return helper.make_graph([step], f"g{level}", [_info(state, (3,)), _info(row, (3,))], [_info(f"o{level}", (3,))])


Level = Callable[[int, "onnx.GraphProto | None"], onnx.GraphProto]


def _nested(level: Level, depth: int) -> onnx.ModelProto:
    """Return a model with so many bodies in each other."""
    inside: onnx.GraphProto | None = None
    for number in range(depth):
        inside = level(number, inside)
    assert inside is not None
    if level is _loop:
        node = _node("Loop", ["two", "c", "x"], "y", body=inside)
    elif level is _scan:
        node = _node("Scan", ["s", "x"], "y", body=inside, num_scan_inputs=1)
    else:
        other = helper.make_graph([_node("Neg", ["x"], "e")], "else", [], [_info("e")])
        node = _node("If", ["c"], "y", then_branch=inside, else_branch=other)
    inputs = [_info("x"), _info("s", (3,)), _info("c", (), TensorProto.BOOL)]
    two = [helper.make_tensor("two", TensorProto.INT64, [], [2])]
    graph = helper.make_graph([node], "g", inputs, [_info("y", (3,) if level is _scan else SHAPE)], two)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def _visits(work: Callable[[], object]) -> Counter[str]:
    """Return how often each function of graphopt is called or resumed."""
    found: Counter[str] = Counter()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and "graphopt" in frame.f_code.co_filename:
            found[f"{frame.f_code.co_filename.rpartition('graphopt/')[2]}:{frame.f_code.co_qualname}"] += 1

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


def _calling(depth: int, calls: int) -> onnx.ModelProto:
    """Return a model with local functions, each of which calls the one before it so often."""
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    functions = [helper.make_function("own", "f0", ["a0"], ["a1"], [_node("Relu", ["a0"], "a1")], opsets)]
    for number in range(1, depth):
        nodes = [_node(f"f{number - 1}", [f"a{i}"], f"a{i + 1}", domain="own") for i in range(calls)]
        functions.append(helper.make_function("own", f"f{number}", ["a0"], [f"a{calls}"], nodes, opsets))
    graph = helper.make_graph([_node(f"f{depth - 1}", ["x"], "y", domain="own")], "g", [_info("x")], [_info("y")])
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=functions)


NESTS: Mapping[str, Level] = {
    "If": _branch,
    "If in the other branch": _both,
    "If that asks": _asking,
    "Loop": _loop,
    "Scan": _scan,
}


@pytest.mark.slow
@pytest.mark.parametrize("level", NESTS.values(), ids=NESTS)
def test_work_grows_with_the_depth_of_bodies_as_the_nodes_do(level: Level) -> None:
    def work(depth: int) -> Counter[str]:
        model = _nested(level, depth)
        return _visits(lambda: graphopt.optimize(model, cost="none", check=False))

    work(10)  # what is remembered of operators does not count
    low, high = work(10), work(30)
    assert not {name: (low[name], high[name]) for name in high if high[name] > 4 * low[name] + 100}
    assert high.total() < 4 * low.total()


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"cost": "none"}, {"cost": "analytic"}], ids=["checked", "estimated"])
def test_a_nest_that_is_checked_and_estimated_takes_time_by_its_depth(options: Mapping[str, Any]) -> None:
    def work(depth: int) -> int:
        model = _nested(_asking, depth)
        return _visits(lambda: str(graphopt.optimize(model, **options).report)).total()

    work(10)
    assert work(30) < 4 * work(10)


def test_equal_nests_are_one() -> None:
    """They are compared though they are looked into only where they are wired alike."""
    model = _nested(_branch, 5)
    twin = helper.make_node("If", ["c"], ["z"])
    twin.attribute.extend(model.graph.node[0].attribute)
    other = helper.make_node("If", ["c"], ["w"])
    other.attribute.extend(_nested(_branch, 4).graph.node[0].attribute)
    model.graph.node.extend([twin, other, helper.make_node("Sum", ["y", "z", "w"], ["sum"])])
    del model.graph.output[:]
    model.graph.output.append(_info("sum"))
    result = graphopt.optimize(model, cost="none")
    assert result.ok
    assert [node.op_type for node in result.model.graph.node].count("If") == 2


def test_functions_in_functions_are_inlined_in_time_by_their_depth() -> None:
    def work(depth: int) -> int:
        model = _calling(depth, 1)
        return _visits(lambda: graphopt.optimize(model, cost="none", check=False)).total()

    work(10)
    assert work(60) < 8 * work(10)


def test_functions_that_stand_for_too_many_nodes_are_an_error_at_once() -> None:
    model = _calling(40, 2)
    with pytest.raises(graphopt.ModelError, match="more than can be inlined"):
        graphopt.optimize(model, cost="none")
