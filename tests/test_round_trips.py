"""Every model of the onnx package comes back as it was, and so does what is drawn."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, numpy_helper

from graphopt.io import onnx_io
from tests import conformance
from tests.test_onnx_io import model, there_and_back

# -- all the models of the onnx package --------------------------------------------------------------------------------


def same(a: Any, b: Any) -> bool:
    """Equal bit for bit, NaN included."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return (a.dtype, a.shape) == (b.dtype, b.shape) and (
            np.array_equal(a, b) if a.dtype == object else a.tobytes() == b.tobytes()
        )
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b)


def nodes_but_constants(nodes: Iterable[NodeProto]) -> Iterator[bytes]:
    """Nodes as bytes, those in bodies on their own; no Constant nodes, which become initializers."""
    for original in nodes:
        if original.op_type == "Constant" and original.attribute[0].name != "sparse_value":
            continue
        node = NodeProto()
        node.CopyFrom(original)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from nodes_but_constants(attribute.g.node)
                attribute.g.Clear()
        yield node.SerializeToString()


CHUNKS = 4


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_models_of_the_onnx_package(chunk: int, record_property: Callable[[str, object], None]) -> None:
    """Each comes back with its nodes byte for byte, and computes the same, or fails in ORT with the same words."""
    counts: Counter[str] = Counter()
    for case in conformance.cases()[chunk::CHUNKS]:
        before, after = case.model.SerializeToString(), comes_back(case.model, case.name)
        assert case.model.SerializeToString() == before, case.name
        if after == case.model:
            counts["equal, message for message"] += 1
            continue
        for inputs, _ in case.data:
            expected = conformance.run(case.model, inputs)
            assert same(expected, conformance.run(after, inputs)), case.name
            counts["ORT fails with the same words" if isinstance(expected, str) else "ORT computes the same"] += 1
    record_property("round trip", dict(counts))
    assert counts.total() > 2000 // CHUNKS


@pytest.mark.parametrize("path", sorted((conformance.DATA / "light").glob("*.onnx")), ids=lambda path: str(path.stem))
def test_the_real_models_of_the_onnx_package(path: Path) -> None:
    proto = onnx.load(path)
    assert comes_back(proto, path.name) == proto


def comes_back(proto: ModelProto, name: str) -> ModelProto:
    """The model after a load, after some checks that it is the same."""
    after = there_and_back(proto)
    assert [*nodes_but_constants(after.graph.node)] == [*nodes_but_constants(proto.graph.node)], name
    assert same_around(proto, after), name
    return after


def same_around(proto: ModelProto, after: ModelProto) -> bool:
    """Whether inputs, outputs and the types of values are declared as they were, and the model says the same else."""
    old, new = ModelProto(), ModelProto()
    old.CopyFrom(proto)
    new.CopyFrom(after)
    for copy in (old, new):
        del copy.graph.node[:], copy.graph.initializer[:]
    if proto.ir_version < 4:  # constants are listed among the inputs
        del new.graph.input[len(old.graph.input) :]
    return old == new


# -- laws --------------------------------------------------------------------------------------------------------------

NAMES = ["x", "w", "c", "v0", "v1", "v2", "v3", "v4"]


@st.composite
def graphs(draw: st.DrawFn) -> ModelProto:
    """Small graphs over unary and binary operators, in any order, with any outputs."""
    defined, lines = ["x", "w", "c"], []
    for name in NAMES[3 : 3 + draw(st.integers(1, 5))]:
        op, arity = draw(st.sampled_from([("Relu", 1), ("Add", 2), ("Sub", 2), ("Nobody", 3)]))
        operands = [draw(st.sampled_from(defined)) for _ in range(arity)]
        lines.append(f"{name} = {op} ({', '.join(operands)})")
        defined.append(name)
    order = draw(st.permutations(lines))
    outputs = draw(st.lists(st.sampled_from(defined), min_size=1, max_size=3))
    declared = ", ".join(f"float[N] {name}" for name in outputs)
    head = f"g (float[N] x, float[2] w) => ({declared}) <float[2] w, float[2] c = {{1, 2}}>"
    return model(f"{head} {{ {' '.join(order)} }}")


@pytest.mark.slow
@given(graphs())
@settings(max_examples=200, deadline=None)
def test_loading_twice_is_loading_once(proto: ModelProto) -> None:
    once = there_and_back(proto)
    assert there_and_back(once) == once
    assert sorted(node.SerializeToString() for node in once.graph.node) == sorted(
        node.SerializeToString() for node in proto.graph.node
    )
    assert once.graph.output == proto.graph.output


def test_three_thousand_nodes_load_in_under_a_second() -> None:
    lines = [f"a{i} = Conv <kernel_shape = [1, 1]> (a{i - 1}, w)  b{i} = Relu (a{i})" for i in range(1, 1500)]
    text = f"g (float[N, 4, 8, 8] a0) => (float[N, 4, 8, 8] b1499) {{ {' '.join(lines)} }}"
    proto = model(text)
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros((4, 4, 1, 1), np.float32), "w"))
    start = time.process_time()
    loaded = onnx_io.load_model(proto)
    assert time.process_time() - start < 1
    assert len(loaded.graph) == 2998
