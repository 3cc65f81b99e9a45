"""What is written can be run where what it replaces could: each node is put to ONNX Runtime before it is written."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import numpy as np
import onnx
import onnxruntime
import pytest

import graphopt
from graphopt.base.errors import ModelError, UsageError
from graphopt.io import onnx_io
from graphopt.io.version_tables import GraphFacts
from graphopt.ir import schemas
from graphopt.ir.edit import replace_node
from graphopt.ir.graph import Graph, Node, Patch
from graphopt.language.rule import Rule, op, tensor
from graphopt.language.rule_library import load_rules
from graphopt.operators import inference
from graphopt.rewrite.passes import PASSES, Pass
from graphopt.rewrite.simplify import Simplifier, simplify_graph
from graphopt.runtime.kernel_probe import KernelProbe
from tests.text import parse
from tests.versions import needs


def optimized(model: onnx.ModelProto, **options: object) -> graphopt.Result:
    """The result, which ONNX Runtime opens as it opened the model."""
    result = graphopt.optimize(model, **({"cost": "none"} | options))  # type: ignore[arg-type]
    for each in (model, result.model):
        onnxruntime.InferenceSession(each.SerializeToString(), providers=["CPUExecutionProvider"])
    return result


def notes(result: graphopt.Result) -> str:
    return "\n".join(result.report.notes)


@pytest.mark.parametrize("opset", [9, 10, 11, 12])
@pytest.mark.parametrize("body", ["a = Max(x, w); y = Min(a, v)", "a = Min(x, v); y = Max(a, w)"])
def test_a_clip_in_double_is_not_written_before_opset_12(body: str, opset: int) -> None:
    weights = {"w": np.array(0.0), "v": np.array(6.0)}
    result = optimized(parse("double[4] x", body, weights, outputs="double[4] y", opset=opset))
    assert ("Clip" in result.report.after.ops) == (opset >= 12)


def test_a_softsign_in_double_is_not_written() -> None:
    body = "a = Abs(x); o = Constant<value = double {1.0}>(); s = Add(a, o); y = Div(x, s)"
    result = optimized(parse("double[4] x", body, outputs="double[4] y", opset=17))
    assert "Softsign" not in result.report.after.ops
    assert "has no kernel for Softsign of tensor(double) in opset 17" in notes(result)
    body = body.replace("double", "float")
    assert "Softsign" in optimized(parse("float[4] x", body, outputs="float[4] y", opset=17)).report.after.ops


def test_from_opset_18_it_is_for_onnx_runtime_replaces_it_by_its_definition() -> None:
    body = "a = Abs(x); o = Constant<value = double {1.0}>(); s = Add(a, o); y = Div(x, s)"
    assert "Softsign" in optimized(parse("double[4] x", body, outputs="double[4] y", opset=18)).report.after.ops


@pytest.mark.parametrize("opset", [9, 10, 11, 13])
def test_bounds_that_exclude_each_other_make_no_clip_that_is_refused(opset: int) -> None:
    body = "a = Clip<min=-1.0>(x); y = Clip<max=-2.0>(a)" if opset < 11 else "a = Clip(x, l); y = Clip(a, , u)"
    weights = {} if opset < 11 else {"l": np.float32(-1), "u": np.float32(-2)}
    optimized(
        parse("float[4] x", body, {k: np.asarray(v) for k, v in weights.items()}, outputs="float[4] y", opset=opset)
    )


EMPTY = (
    "m = ReduceMean<keepdims=1>(x, a); d = Sub(x, m); q = Mul(d, d); v = ReduceMean<keepdims=1>(q, a); e = Add(v, f);"
)
EMPTY += "s = Sqrt(e); n = Div(d, s); g = Mul(n, w); y = Add(g, b)"


@pytest.mark.parametrize("size", [0, 4])
def test_a_normalization_of_no_elements_is_left_as_it_is(size: int) -> None:
    weights = {
        "a": np.array([-1]),
        "f": np.full(1, 1e-5, np.float32),
        "w": np.ones(size, np.float32),
        "b": np.ones(size, np.float32),
    }
    model = parse(f"float[2,{size}] x", EMPTY, weights, outputs=f"float[2,{size}] y")
    result = optimized(model)
    assert ("LayerNormalization" in result.report.after.ops) == (size > 0)
    for each in (model, result.model):
        session = onnxruntime.InferenceSession(each.SerializeToString())
        assert session.run(None, {"x": np.zeros((2, size), np.float32)})[0].shape == (2, size)


def test_where_the_original_cannot_run_there_is_nothing_to_protect() -> None:
    """The processor has no kernels for bfloat16; other devices do."""
    rule = Rule("to_relu", op.Abs(op.Neg(tensor("x"))), op.Relu(tensor("x")))
    loaded = onnx_io.load_model(parse("bfloat16[4] x", "a = Neg(x); y = Abs(a)", outputs="bfloat16[4] y"))
    inference.infer_graph(loaded.graph)
    simplify_graph(loaded.graph, [rule], [], refusal=KernelProbe().refusal)
    assert loaded.graph.operator_counts() == {"Relu": 1}


def test_a_pass_that_writes_what_cannot_run_goes_on_with_the_rest() -> None:
    def run(graph: Graph) -> Iterator[Patch]:
        for vertex in sorted(graph.vertices_with_op("Neg")):
            yield replace_node(
                graph, vertex, replace(graph[vertex], op="Softsign", version=schemas.newest_version("Softsign"))
            )

    text = "a = Neg(x); b = Neg(z); y = Exp(a); w = Exp(b)"
    loaded = onnx_io.load_model(parse("double[4] x, float[4] z", text, outputs="double[4] y, float[4] w", opset=17))
    inference.infer_graph(loaded.graph)
    done = simplify_graph(
        loaded.graph,
        [],
        [Pass("soften", run, "A test.", written_operators=frozenset({"Softsign"}))],
        refusal=KernelProbe().refusal,
    )
    assert loaded.graph.operator_counts() == {"Neg": 1, "Softsign": 1, "Exp": 2}
    (note,) = done.notes
    assert note.startswith("pass soften left something as it was: ONNX Runtime has no kernel for Softsign")


def test_without_onnxruntime_nothing_is_refused_and_the_report_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> object:
        raise UsageError("running a model needs onnxruntime")

    monkeypatch.setattr("graphopt.runtime.session_setting.require_onnxruntime", missing)
    body = "a = Abs(x); o = Constant<value = double {1.0}>(); s = Add(a, o); y = Div(x, s)"
    model = parse("double[4] x", body, outputs="double[4] y", opset=17)
    result = graphopt.optimize(model, cost="none", check=False)
    assert "Softsign" in result.report.after.ops
    assert "it is not known whether what was written has kernels: running a model needs onnxruntime" in notes(result)


def test_operators_that_are_replaced_by_their_definition_need_no_kernel() -> None:
    loaded = onnx_io.load_model(parse("float16[4] x", "y = HardSwish(x)", outputs="float16[4] y"))
    inference.infer_graph(loaded.graph)
    (node,) = (node for _, node in loaded.graph.nodes())
    assert KernelProbe().refusal_of_node(node, loaded.graph) == ""


@pytest.mark.parametrize(
    ("other", "opset", "asked"),
    [
        ("b = Softmax<axis = 1>(x); y = Abs(b)", 18, 1),
        ("y = Softmax<axis = 0>(x)", 18, 2),
        ("y = Softmax<axis = 1>(x)", 13, 2),
        ("h = Cast<to = 11>(x); c = Softmax<axis = 1>(h); y = Cast<to = 1>(c)", 18, 2),
    ],
    ids=["alike", "attribute", "opset", "type"],
)
def test_an_operation_is_asked_about_once_in_all_models(
    monkeypatch: pytest.MonkeyPatch, other: str, opset: int, asked: int
) -> None:
    """Nodes of other models are alike by their operator, attributes, types and opset."""
    found: list[Node] = []
    ask = KernelProbe._refusal_of_spelled

    def noted(probe: KernelProbe, node: Node, facts: GraphFacts) -> str:
        found.append(node)
        return ask(probe, node, facts)

    monkeypatch.setattr(KernelProbe, "_refusal_of_spelled", noted)
    probe = KernelProbe()
    for body, version in (("y = Softmax<axis = 1>(x)", 18), (other, opset)):
        loaded = onnx_io.load_model(parse("float[2,3] x", body, outputs="float[2,3] y", opset=version))
        inference.infer_graph(loaded.graph)
        (node,) = (node for _, node in loaded.graph.nodes() if node.op == "Softmax")
        assert probe.refusal_of_node(node, loaded.graph) == ""
    assert len(found) == asked


def test_a_node_is_asked_about_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from graphopt.runtime.session_setting import SessionSetting

    opened: list[bytes] = []
    real = SessionSetting.open

    def counting(self: SessionSetting, model: bytes, **options: object) -> object:
        opened.append(model)
        return real(self, model, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(SessionSetting, "open", counting)
    body = "; ".join(f"a{i} = Neg({f'r{i - 1}' if i else 'x'}); b{i} = Neg(a{i}); s{i} = Mul(b{i}, b{i}); "
                     f"r{i} = Sqrt(s{i})" for i in range(20))  # fmt: skip
    loaded = onnx_io.load_model(parse("float[4] x", f"{body}; y = Abs(r19)", outputs="float[4] y"))
    inference.infer_graph(loaded.graph)
    Simplifier(load_rules(), PASSES, None, KernelProbe().refusal).run(loaded.graph)
    assert len(opened) == len(set(opened)) < 5


def test_a_conversion_to_an_opset_without_the_kernel_is_refused() -> None:
    """In opset 18 ONNX Runtime replaces it by its definition."""
    model = parse("double[4] x", "y = ThresholdedRelu(x)", outputs="double[4] y", opset=18)
    reason = (
        r"ThresholdedRelu 'y' could not run any more: .* no kernel for ThresholdedRelu of tensor\(double\) in opset "
        "22; keep the model's own opset, 18"
    )
    with pytest.raises(ModelError, match=reason):
        graphopt.optimize(model, target_opset=22, cost="none")
    assert graphopt.optimize(model, target_opset=22, cost="none", check=False).report.after.opsets["ai.onnx"] == 22
    assert optimized(model, target_opset=18).ok


# -- exact in half precision -------------------------------------------------------------------------------------------

BESIDE = "m = Mul(x, z); t = Transpose<perm=[1,0]>(m); u = Transpose<perm=[1,0]>(t); y = Add(u, x)"


@pytest.mark.parametrize(("dtype", "nodes"), [("float", 2), ("float16", 4)])
def test_exact_leaves_views_around_what_is_computed_in_single_precision(dtype: str, nodes: int) -> None:
    """ONNX Runtime has no half kernel for Mul and Add: it rounds between them only if something stands there."""
    model = parse(f"{dtype}[4,4] x, {dtype}[4,4] z", BESIDE, outputs=f"{dtype}[4,4] y")
    result = optimized(model, exact=True, strict=True)
    assert result.ok and result.report.after.nodes == nodes
    assert ("in single precision, and what it rounds depends on what stands around" in notes(result)) == (
        dtype == "float16"
    )
    assert optimized(model).report.after.nodes == 2


def views() -> onnx.ModelProto:
    body = "t = Transpose<perm=[1,0]>(x); u = Transpose<perm=[1,0]>(t); y = Concat<axis=0>(u, z)"
    return parse("float16[4,4] x, float16[4,4] z", body, outputs="float16[8,4] y")


def test_exact_removes_views_among_views_in_half_precision() -> None:
    assert optimized(views(), exact=True, strict=True).report.after.ops == {"Concat": 1}


@pytest.mark.usefixtures("half_written")
def test_exact_changes_nothing_where_what_onnxruntime_casts_cannot_be_read() -> None:
    assert graphopt.optimize(views(), cost="none", exact=True).report.after.nodes == 3


BESIDE_DEAD = "a = LogSoftmax(x); b = LayerNormalization(a, w); y = LogSoftmax(b); "


@pytest.mark.parametrize(("dead", "ops"), [("d = Transpose(b)", 1), ("d = Transpose(x)", 0)])
def test_exact_drops_dead_code_but_where_its_presence_has_kernels_round_otherwise(dead: str, ops: int) -> None:
    """ONNX Runtime computes what stands alone between casts in single precision, and dead nodes are company."""
    weights = {"w": np.full(64, 3, np.float16)}
    model = parse("float16[2,64] x", BESIDE_DEAD + dead, weights, outputs="float16[2,64] y", opset=20)
    result = optimized(model, exact=True, strict=True)
    assert result.ok and result.report.after.ops.get("Transpose", 0) == ops
    x = np.random.default_rng(0).normal(size=(2, 64)).astype(np.float16)
    sessions = [onnxruntime.InferenceSession(m.SerializeToString()) for m in (model, result.model)]
    before, after = (session.run(None, {"x": x})[0] for session in sessions)
    assert np.array_equal(before, after)


UNARY = ["Relu({})", "Neg({})", "Abs({})", "Exp({})", "Identity({})", "Sqrt({})", "Transpose<perm=[1,0]>({})"]
UNARY += ["Softmax({})", "Clip({}, l, u)", "Reshape({}, r)", "Cast<to=10>({})", "Tanh({})"]
BINARY = ["Mul({}, {})", "Add({}, {})", "Sub({}, {})", "Max({}, {})", "MatMul({}, {})", "Where(c, {}, {})"]
CONSTANTS = {
    "l": np.float16(-1), "u": np.float16(3), "o": np.float16(1), "p": np.float16(0), "r": np.array([4, 4]),
    "c": np.eye(4, dtype=bool),
}  # fmt: skip


def drawn(draw: Random) -> onnx.ModelProto:
    """A few operators one after the other, as exporters leave them."""
    values, nodes = ["x", "z", "o", "p"], []
    for number in range(14):
        form = draw.choice(UNARY * 2 + BINARY)
        operands = [draw.choice(values[-3:] if slot == 0 and number else values) for slot in range(form.count("{}"))]
        operands[0] = operands[0] if operands[0] not in "op" else "x"
        operands[-1] = operands[-1] if "MatMul" not in form or operands[-1] not in "op" else "z"
        nodes.append(f"v{number} = {form.format(*operands)}")
        values.append(f"v{number}")
    weights = {name: np.asarray(value) for name, value in CONSTANTS.items()}
    outputs = "float16[4,4] v13, float16[4,4] v9"
    return parse("float16[4,4] x, float16[4,4] z", "; ".join(nodes), weights, outputs=outputs, opset=17)


@needs("onnxruntime", "1.31", "it inserts casts that it then refuses")
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 40))])
def test_exact_changes_no_bit_of_drawn_models_in_half_precision(seed: int) -> None:
    assert optimized(drawn(Random(seed)), exact=True, strict=True).ok
