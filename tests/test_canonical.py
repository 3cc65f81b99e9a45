"""Canonical rules: in opsets without an operator, what it stands for is written as ONNX Runtime fuses it."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper, parser

import graphopt
from graphopt.io import onnx_io
from graphopt.language.rule import Rule, fn, op, tensor
from graphopt.language.rule_library import load_rules
from graphopt.operators import inference
from graphopt.rewrite.matching import find_matches
from graphopt.verifier.instance_models import build_models
from graphopt.verifier.instance_sampling import sample_instances

NUMBERS = (
    "<float half = {0.5}, float one = {1.0}, float two = {2.0}, float three = {3.0}, float epsilon = {0.00001},"
    " float root = {1.4142135381698608}, float inverse = {0.7071067690849304}, float cubic = {0.044715},"
    " float scale = {0.7978845834732056}, int64[1] last = {-1}>"
)
HALVES = {
    "half last": "u = Add (t, one) v = Mul (x, u) g = Mul (v, half)",
    "half first": "u = Add (t, one) v = Mul (x, half) g = Mul (v, u)",
    "half inside": "u = Add (t, one) v = Mul (u, half) g = Mul (x, v)",
    "half spread": "u = Mul (t, half) v = Add (u, half) g = Mul (x, v)",
}
ERF = {"quotient": "d = Div (x, root) t = Erf (d)", "product": "d = Mul (x, inverse) t = Erf (d)"}
TANH = {
    "power": "p = Pow (x, three) q = Mul (p, cubic) a = Add (x, q) z = Mul (a, scale) t = Tanh (z)",
    "products": "s = Mul (x, x) p = Mul (s, x) q = Mul (p, cubic) a = Add (x, q) z = Mul (a, scale) t = Tanh (z)",
    "factored": "p = Mul (x, x) q = Mul (p, cubic) a = Add (q, one) b = Mul (x, scale) z = Mul (b, a) t = Tanh (z)",
}
RMS = "m = ReduceMean <keepdims = 1> (p, last) a = Add (m, epsilon) q = Sqrt (a)"
CENTRED = f"c = ReduceMean <keepdims = 1> (x, last) d = Sub (x, c) p = Mul (d, d) {RMS} g = Div (d, q)"
NORMALIZATIONS = {
    "rms by a quotient": (f"p = Mul (x, x) {RMS} g = Div (x, q)", "SimplifiedLayerNormalization"),
    "rms by a reciprocal": (f"p = Mul (x, x) {RMS} i = Reciprocal (q) g = Mul (x, i)", "SimplifiedLayerNormalization"),
}


def model(body: str, opset: int = 18) -> onnx.ModelProto:
    """A model that computes g of x, and reads it once."""
    text = f'<ir_version: 8, opset_import: ["" : {opset}]> m (float[2, 5, 16] x) => (float[2, 5, 16] y) {NUMBERS}'
    return parser.parse_model(f"{text} {{ {body} y = Softsign (g) }}")


def fused(made: onnx.ModelProto, folder: Path) -> Counter[str]:
    """The operators that ONNX Runtime makes of a model."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(folder / "fused.onnx"), 3
    onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return Counter(node.op_type for node in onnx.load(folder / "fused.onnx").graph.node)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("inner", [*ERF, *TANH])
def test_gelu_in_every_spelling_is_fused_in_opset_18(inner: str, half: str, tmp_path: Path) -> None:
    given = model(f"{(ERF | TANH)[inner]} {HALVES[half]}")
    made, ok = graphopt.optimize(given, cost="none")
    assert ok
    assert fused(made, tmp_path)["Gelu" if inner in ERF else "FastGelu"] == 1


def weighted(body: str, shift: str = "") -> onnx.ModelProto:
    """A model of what a body computes, times a weight for each column, and shifted."""
    after = "g = Add (s, weight)" if shift else ""
    made = model(f"{body.replace('g =', 'n =')} {'s' if shift else 'g'} = Mul (n, weight) {after}")
    made.graph.initializer.append(numpy_helper.from_array(np.full(16, 1.5, "f4"), "weight"))
    return made


def test_a_layer_normalization_is_fused_whose_square_is_a_product(tmp_path: Path) -> None:
    given = weighted(CENTRED, "weight")
    given.opset_import[0].version = 16
    for node in given.graph.node:
        if node.op_type == "ReduceMean":  # its axes are an attribute there
            node.input.pop()
            node.attribute.append(onnx.helper.make_attribute("axes", [-1]))
    made, ok = graphopt.optimize(given, cost="none")
    assert ok
    assert fused(made, tmp_path)["LayerNormalization"] == 1


@pytest.mark.parametrize("spelling", NORMALIZATIONS)
def test_normalizations_are_fused_in_older_opsets(spelling: str, tmp_path: Path) -> None:
    body, operator = NORMALIZATIONS[spelling]
    given = weighted(body)
    assert operator not in fused(given, tmp_path)
    made, ok = graphopt.optimize(given, cost="none")
    assert ok
    assert fused(made, tmp_path)[operator] == 1


def test_a_canonical_form_is_left_as_it_is() -> None:
    made = graphopt.optimize(model(f"{ERF['quotient']} {HALVES['half inside']}"), cost="none")
    assert [rewrite.name for rewrite in made.report.rewrites if "gelu" in rewrite.name] == [
        "reorder_gelu_div_half_inner"
    ]
    again = graphopt.optimize(made.model, cost="none")
    assert not again.report.rewrites


def test_in_each_body_though_values_have_one_name() -> None:
    """The branches of an If may name their values alike."""
    numbers = {"h": 0.5, "o": 1.0, "r": 1.4142135}
    own = " ".join(f"{name} = Constant <value_float = {number}> ()" for name, number in numbers.items())
    inner = f"{own} d = Div (x, r) t = Erf (d) u = Add (t, o) v = Mul (u, h) g = Mul (x, v)"
    other = "k = Abs (x) " + inner.replace("(x,", "(k,")
    then, otherwise = (f"b () => (float[2, 5, 16] g) {{ {body} }}" for body in (inner, other))
    given = model(f"g = If (c) <then_branch = {then}, else_branch = {otherwise}>")
    given.graph.input.append(onnx.helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, []))
    made = graphopt.optimize(given, cost="none", check=False)
    assert sum("gelu" in rewrite.name for rewrite in made.report.rewrites) == 2


def test_no_canonical_rule_undoes_another() -> None:
    """Nothing that one writes is matched by one of them."""
    canonical = [rule for rule in load_rules(trades=True) if rule.canonical]
    for rule in canonical:
        for instance in sample_instances(rule, count=3):
            _, right = build_models(rule, instance)
            written = onnx_io.load_model(right).graph
            inference.infer_graph(written)
            assert not [other.name for other in canonical for _ in find_matches(other, written)]


def test_where_the_opset_has_the_operator_it_is_used() -> None:
    made, _ = graphopt.optimize(model(f"{ERF['quotient']} {HALVES['half inside']}", opset=20), cost="none")
    assert [node.op_type for node in made.graph.node] == ["Gelu", "Softsign"]


def test_nothing_is_computed_twice_for_a_canonical_form() -> None:
    given = model(f"{ERF['quotient']} {HALVES['half inside']}")
    given.graph.node.append(onnx.helper.make_node("Max", ["v", "y"], ["z"]))  # another reader of (1 + erf) / 2
    given.graph.output[0].name = "z"
    made = graphopt.optimize(given, cost="none")
    assert not [rewrite for rewrite in made.report.rewrites if rewrite.is_rule]


def test_a_canonical_rule_of_ones_own_tells_products_from_quotients() -> None:
    x = tensor("x")
    rule = Rule("prefer_division", op.Erf(x * 0.5), op.Erf(x / 2.0), when=fn.is_float(fn.dtype(x)), canonical=True)
    assert Rule.from_json(rule.to_json()) == rule
    given = model("d = Mul (x, half) g = Erf (d)")
    made = graphopt.optimize(given, cost="none", rules=[rule])
    assert [node.op_type for node in made.model.graph.node] == ["Div", "Erf", "Softsign"]
    assert not made.report.notes
    assert not graphopt.optimize(made.model, cost="none", rules=[rule]).report.rewrites
    assert rule.digest == replace(rule, canonical=False).digest  # a proof rests on what it says alone


def test_rules_of_a_file_are_canonical_or_not() -> None:
    x = tensor("x")
    data = Rule("r", op.Relu(x), op.Max(x, 0.0), canonical=True).to_json()
    with pytest.raises(graphopt.RuleError, match="'canonical' is 'yes', neither true nor false"):
        Rule.from_json(data | {"canonical": "yes"})
