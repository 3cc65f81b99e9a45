"""Local functions are put in the place of their calls, or kept, and then it is said why."""

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

from graphopt.base import ort
from graphopt.io import onnx_io
from graphopt.ir.graph import Value
from tests.test_onnx_io import there_and_back, vertex
from tests.text import run

FUNCTIONS = """<ir_version: 10, opset_import: ["": 21, "mine": 1]>
    g (float[N] x) => (float[N] y) <float[1] w = {2}> { h = mine.double (x)  y = mine.scaled <by = 3.0> (h, w) }
    <domain: "mine", opset_import: ["": 21]>
    double (a) => (b) { b = Add (a, a) }
    <domain: "mine", opset_import: ["": 21]>
    scaled <by> (a, k) => (b) { f = Constant <value_float: float = @by> ()  m = Mul (a, f)  b = Mul (m, k) }
"""


def test_local_functions_are_inlined() -> None:
    loaded = onnx_io.load_model(parse_model(FUNCTIONS))
    assert loaded.graph.operator_counts() == {"Add": 1, "Mul": 2}
    assert not loaded.shell.functions
    assert loaded.graph.constant(Value(vertex(loaded.graph, "w"))) is not None


def test_the_domains_of_inlined_functions_are_imported() -> None:
    text = """<ir_version: 10, opset_import: ["": 21, "mine": 1]>
        g (bool c, float[N] x) => (float[N] y) {
            y = If (c) <
                then_branch = t () => (float[N] p) { p = mine.twice (x) },
                else_branch = e () => (float[N] q) { q = Abs (x) }
            >
        }
        <domain: "mine", opset_import: ["": 21, "mine": 1]>
        twice (a) => (b) { c = mine.once (a)  b = mine.once (c) }
        <domain: "mine", opset_import: ["": 21, "other": 2]>
        once (a) => (b) { b = other.Op (a) }"""
    after = there_and_back(parse_model(text))
    onnx.checker.check_model(after, full_check=True)
    assert {entry.domain: entry.version for entry in after.opset_import} == {"": 21, "mine": 1, "other": 2}


def test_a_local_function_of_another_opset_is_inlined_in_the_model_s() -> None:
    text = """<ir_version: 10, opset_import: ["": 21, "mine": 1]>
        g (float[N, 4, 4] x) => (float[N, 1, 4] y) { y = mine.f (x) }
        <domain: "mine", opset_import: ["": 11]>
        f (a) => (b) { c = Constant <value_float = 2.0> () m = Mul (a, c) b = ReduceSum <axes = [1]> (m) }"""
    loaded = onnx_io.load_model(parse_model(text))
    assert loaded.graph.operator_counts() == {"Mul": 1, "ReduceSum": 1} and not loaded.shell.functions
    after = onnx_io.to_proto(loaded)
    onnx.checker.check_model(after, full_check=True)
    x = np.arange(16, dtype=np.float32).reshape(1, 4, 4)
    (found,) = ort.make_cpu_session(after.SerializeToString()).run(None, {"x": x})
    assert (found == 2 * x.sum(1, keepdims=True)).all()


def test_a_local_function_brings_the_opset_that_its_model_does_not_state() -> None:
    text = """<ir_version: 10, opset_import: ["mine": 1]>
        g (float[N] x) => (float[N] y) { y = mine.f (x) }
        <domain: "mine", opset_import: ["": 20]>
        f (a) => (b) { b = Relu (a) }"""
    after = there_and_back(parse_model(text))
    assert [node.op_type for node in after.graph.node] == ["Relu"]
    assert {entry.domain: entry.version for entry in after.opset_import} == {"mine": 1, "": 20}


def test_a_local_function_that_the_model_s_opset_cannot_say_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    text = """<ir_version: 10, opset_import: ["": 21, "mine": 1]>
        g (float[N, 1, 4, 4] x) => (float[N, 1, 8, 8] y) { y = mine.f (x) }
        <domain: "mine", opset_import: ["": 10]>
        f (a) => (b) { s = Constant <value = float[4] {1, 1, 2, 2}> ()  b = Resize (a, s) }"""
    proto = parse_model(text)
    assert there_and_back(proto) == proto
    assert "the function mine.f is not inlined: Resize 'b' cannot be written in opset 21" in caplog.text


def test_a_local_function_is_spelled_out_in_the_model_s_opset() -> None:
    text = """<ir_version: 10, opset_import: ["": 21, "mine": 1]>
        g (float[N, 3, 4] x) => (float[N, 3, 4] y) { y = mine.f (x) }
        <domain: "mine", opset_import: ["": 12]>
        f (a) => (b) { b = Softmax (a) }"""
    after = there_and_back(parse_model(text))
    assert [node.op_type for node in after.graph.node] == ["Flatten", "Softmax", "Shape", "Reshape"]
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    assert run(after, {"x": x})["y"].sum() == pytest.approx(2)


@pytest.mark.parametrize("opset", [13, 20])
@pytest.mark.parametrize("call", ["mine.f (x)", "mine.outer (x)"])
def test_calls_of_local_functions_get_the_defaults_that_they_leave_out(opset: int, call: str) -> None:
    text = f"""<ir_version: 10, opset_import: ["": 20, "mine": 1]>
        g (float[2, 3, 4] x) => (float[A, B] y) {{ y = {call} }}
        <domain: "mine", opset_import: ["": {opset}, "mine": 1]>
        outer (a) => (b) {{ b = mine.f (a) }}
        <domain: "mine", opset_import: ["": {opset}]>
        f <keep: int = 0> (a) => (b) {{ b = ArgMax <axis = 1, keepdims: int = @keep> (a) }}"""
    after = there_and_back(parse_model(text.replace("float[A, B] y", "int64[A, B] y")))
    onnx.checker.check_model(after, full_check=True)
    (found,) = ort.make_cpu_session(after.SerializeToString()).run(None, {"x": np.zeros((2, 3, 4), np.float32)})
    assert found.shape == (2, 4)


def test_a_local_function_that_may_lack_what_it_hands_on_to_a_default_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    text = """<ir_version: 10, opset_import: ["": 20, "mine": 1]>
        g (float[2, 3, 4] x) => (int64[A, B] y) { y = mine.outer (x) }
        <domain: "mine", opset_import: ["": 20, "mine": 1]>
        outer <keep> (a) => (b) { b = mine.f <keep: int = @keep> (a) }
        <domain: "mine", opset_import: ["": 20]>
        f <keep: int = 0> (a) => (b) { b = ArgMax <axis = 1, keepdims: int = @keep> (a) }"""
    proto = parse_model(text)
    assert there_and_back(proto) == proto
    assert "one hands on an attribute that a call of it lacks" in caplog.text


def test_a_local_function_that_is_kept_keeps_its_defaults_and_what_it_calls(caplog: pytest.LogCaptureFixture) -> None:
    text = """<ir_version: 10, opset_import: ["": 20, "mine": 1, "ai.onnx.ml": 3]>
        g (float[2, 3] x) => (float[2, 3] y) { r = mine.twice (x)  y = mine.f (r) }
        <domain: "mine", opset_import: ["": 20, "mine": 1, "ai.onnx.ml": 2]>
        f <axis: int = 1> (a) => (b) { c = Softmax <axis: int = @axis> (a)  b = mine.twice (c) }
        <domain: "mine", opset_import: ["": 20]>
        twice (a) => (b) { b = Add (a, a) }"""
    proto = parse_model(text)
    after = there_and_back(proto)
    assert [node.op_type for node in after.graph.node] == ["Add", "f"]
    assert after.functions == proto.functions
    assert "mine.f is not inlined: it is in opset 2 of ai.onnx.ml, and the model in 3" in caplog.text


def test_a_node_without_a_name_is_named_by_its_output_where_a_function_is_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = """<ir_version: 10, opset_import: ["": 20, "mine": 1]>
        g (float[N] x) => (float[N] y) { y = mine.f (x) }
        <domain: "mine", opset_import: ["": 99]>
        f (a) => (b) { b = Relu (a) }"""
    onnx_io.load_model(parse_model(text))
    assert "mine.f is not inlined: Relu 'b' is of a version whose meaning is not known" in caplog.text


def test_local_functions_that_disagree_on_a_domain_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    text = """<ir_version: 10, opset_import: ["": 20, "mine": 1]>
        g (float[N] x) => (float[N] y) { r = mine.f (x)  y = mine.h (r) }
        <domain: "mine", opset_import: ["": 20, "other": 1]>
        f (a) => (b) { b = other.Op (a) }
        <domain: "mine", opset_import: ["": 20, "other": 2]>
        h (a) => (b) { b = other.Op (a) }"""
    proto = parse_model(text)
    assert there_and_back(proto) == proto
    assert "are not inlined: of mine.h, it is in opset 2 of other, and the model in 1" in caplog.text


def test_local_functions_are_kept_on_request() -> None:
    proto = parse_model(FUNCTIONS)
    loaded = onnx_io.load_model(proto, inline_functions=False)
    assert {node.op: node.version for _, node in loaded.graph.nodes()} == {"double": 0, "scaled": 0}
    assert onnx_io.to_proto(loaded) == proto
