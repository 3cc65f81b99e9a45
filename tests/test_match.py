"""What a pattern matches, and above all what it does not."""

import numpy as np
import onnx.parser
import pytest

from graphopt.io import onnx_io
from graphopt.ir.graph import Graph
from graphopt.language.binding import ConstantBinding
from graphopt.language.rule import Rule, attributes, const, fn, integer, integers, op, real, tensor
from graphopt.language.terms import App, TermLike
from graphopt.operators import inference
from graphopt.rewrite.build import build_patch
from graphopt.rewrite.matching import find_matches
from graphopt.rules import RULES

x, y = tensor("x"), tensor("y")
OPSET = '<ir_version: 10, opset_import: ["" : 20]>\n'


def graph(text: str) -> Graph:
    """A graph from ONNX text, types inferred."""
    loaded = onnx_io.load_model(onnx.parser.parse_model(OPSET + text)).graph
    inference.infer_graph(loaded)
    return loaded


def count(rule: Rule, text: str) -> int:
    return sum(1 for _ in find_matches(rule, graph(text)))


SCALE = Rule(
    "scale", (tensor("x", "*b M K") @ const("w", "K N")) * const("s", "N"), tensor("x", "*b M K") @ const("w", "K N")
)


@pytest.mark.parametrize(
    ("shape", "matches"), [("float[5]", 1), ("float[1, 5]", 1), ("float[1]", 1), ("float", 1), ("float[3, 1]", 0)]
)
def test_a_constant_matches_in_every_spelling_that_broadcasts_alike(shape: str, matches: int) -> None:
    size = {"float[5]": 5, "float[1, 5]": 5, "float[1]": 1, "float": 1, "float[3, 1]": 3}[shape]
    values = ", ".join(["2.0"] * size)
    text = f"""g (float[3, 4] x) => (float[3, 5] z)
    <float[4, 5] w = {{ {", ".join(["1.0"] * 20)} }}, {shape} s = {{ {values} }}>
    {{ y = MatMul(x, w)  z = Mul(y, s) }}"""
    assert count(SCALE, text) == matches
    assert count(SCALE, text.replace("Mul(y, s)", "Mul(s, y)")) == matches


@pytest.mark.parametrize("shape", ["float", "float[1]", "float[5, 1, 1]", "float[1, 5, 1, 1]"])
def test_a_constant_beside_the_input_of_a_convolution_may_broadcast(shape: str) -> None:
    """The rank that it declares is that of the window, which the weights have to tell first."""
    x, c, w = tensor("x", "N C *s"), const("c", "C 1*k"), const("w", "M C *k")
    shifted = Rule("shifted", op.Conv(x + c, w), op.Conv(c + x, w))
    values = ", ".join(["2.0"] * (5 if "5" in shape else 1))
    text = f"""g (float[n, 5, h, 6] x) => (float[n, 4, h, 6] z)
    <float[4, 5, 1, 1] w = {{ {", ".join(["1.0"] * 20)} }}, {shape} c = {{ {values} }}>
    {{ y = Add(x, c)  z = Conv(y, w) }}"""
    assert count(shifted, text) == 1


def test_a_constant_that_widens_the_result_does_not_match() -> None:
    text = """g (float[1, 4] x) => (float[3, 5] z) <float[4, 5] w, float[3, 5] s>
    { y = MatMul(x, w)  z = Mul(y, s) }"""
    text = text.replace("w,", "w = {" + ", ".join(["1.0"] * 20) + "},").replace(
        " s>", " s = {" + ", ".join(["1.0"] * 15) + "}>"
    )
    assert count(SCALE, text) == 0


QUOTIENT = """g (float[3, 4] x) => (float[3, 5] z)
    <float[4, 5] w = { WEIGHTS }, float[5] s = { 2.0, -4.0, 0.5, 1.0, 8.0 }>
    { y = MatMul(x, w)  z = Div(y, s) }""".replace("WEIGHTS", ", ".join(["1.0"] * 20))


def test_a_quotient_by_a_constant_is_a_product_with_its_reciprocal() -> None:
    (match,) = find_matches(SCALE, graph(QUOTIENT))
    bound = match.holes["s"]
    assert isinstance(bound, ConstantBinding)
    assert bound.array().tolist() == [0.5, -0.25, 2, 1, 0.125]
    column = QUOTIENT.replace("float[5] s = { 2.0, -4.0, 0.5, 1.0, 8.0 }", "float[3, 1] s = { 2.0, -4.0, 0.5 }")
    assert not count(SCALE, column)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Div(y, s)", "Div(s, y)"),
        ("Div(y, s)", "Mod<fmod = 1>(y, s)"),
        ("2.0, -4.0", "0.0, -4.0"),
        ("2.0, -4.0", "-0.0, -4.0"),
        ("float", "int32"),
    ],
)
def test_what_is_no_product_with_a_reciprocal(old: str, new: str) -> None:
    text = QUOTIENT.replace(old, new)
    assert not count(SCALE, text.replace(".0", "").replace("0.5", "5") if new == "int32" else text)


@pytest.mark.parametrize("divisor", [np.inf, np.nan, 1e-40])
def test_a_quotient_by_what_is_not_finite_or_has_no_finite_reciprocal_is_no_product(divisor: float) -> None:
    model = onnx.parser.parse_model(OPSET + QUOTIENT)
    s = next(tensor for tensor in model.graph.initializer if tensor.name == "s")
    s.CopyFrom(onnx.numpy_helper.from_array(np.full(5, divisor, np.float32), "s"))
    assert not list(find_matches(SCALE, onnx_io.load_model(model).graph))


@pytest.mark.parametrize(
    ("factor", "divisor", "matches"),
    [(fn.truediv(1.0, 6.0), "6.0", 1), (0.5, "2.0", 1), (0.5, "3.0", 0), (0.0, "2.0", 0), (real("a"), "8.0", 1)],
)
def test_a_number_of_a_rule_is_the_reciprocal_of_a_divisor(factor: TermLike, divisor: str, matches: int) -> None:
    text = f"g (float[3] x) => (float[3] z) <float c = {{ {divisor} }}> {{ y = Relu(x)  z = Div(y, c) }}"
    found = list(find_matches(Rule("scaled", op.Relu(x) * factor, x), graph(text)))
    assert len(found) == matches
    assert all(match.holes.get("a", 0.125) == 0.125 for match in found)


def test_a_constant_that_is_used_as_it_is_is_the_reciprocal() -> None:
    """A rule that multiplies later has a constant made, for there is none in the graph."""
    text = """g (float[2, 3] x) => (float[3, 2] z) <float c = { 4.0 }>
    { y = Transpose<perm = [1, 0]>(x)  z = Div(y, c) }"""
    rule = Rule("later", op.Transpose(x, perm=(1, 0)) * const("c", ""), op.Transpose(x * const("c", ""), perm=(1, 0)))
    one = graph(text)
    (match,) = find_matches(rule, one)
    one.apply(build_patch(one, match))
    (product,) = [node for _, node in one.nodes() if node.op == "Mul"]
    made = one.constant(product.inputs[1])
    assert made is not None
    assert made.numpy().tolist() == 0.25


RELU_CONV = Rule("r", op.Relu(op.Conv(x, const("w"))), x)
RELU_CONV_REST = Rule("r", op.Relu(op.Conv(x, const("w"), attributes("rest"))), x)
CONV = """g (float[1, 1, 4, 4] x) => (float[?, ?, ?, ?] z) <float[1, 1, 1, 1] w = {1.0}, float[1] b = {1.0}>
    { y = Conv ATTRS (x, w EXTRA)  z = Relu(y) }"""


@pytest.mark.parametrize(
    ("attrs", "extra", "closed", "rest"),
    [
        ("", "", 1, 1),
        ("<strides = [1, 1], group = 1>", "", 1, 1),  # the defaults, spelt out
        ("<strides = [2, 2]>", "", 0, 1),
        ("<pads = [0, 0, 1, 1]>", "", 0, 1),
        ("", ", b", 0, 0),  # an input that the pattern does not have
    ],
)
def test_what_a_pattern_does_not_mention_has_its_default(attrs: str, extra: str, closed: int, rest: int) -> None:
    text = CONV.replace("ATTRS", attrs).replace("EXTRA", extra)
    assert count(RELU_CONV, text) == closed
    assert count(RELU_CONV_REST, text) == rest


def test_a_number_matches_as_rounded_to_the_type_of_the_tensor() -> None:
    rule = Rule("r", x * 0.1, x)
    text = "g (float[2] x) => (float[2] y) <float c = {NUMBER}> { y = Mul(x, c) }"
    assert count(rule, text.replace("NUMBER", "0.1")) == 1
    assert count(rule, text.replace("NUMBER", "0.1000001")) == 0


@pytest.mark.parametrize(("number", "there"), [(1e6, 0), (1e-6, 0), (0.1, 1), (0.001, 1)])
def test_a_number_that_half_precision_has_none_near_to_matches_nothing(number: float, there: int) -> None:
    """1e6 is infinite there, and 1e-6 has lost all but four bits."""
    with np.errstate(over="ignore"):
        bits = np.asarray(number, np.float16).view(np.uint16)
    text = f"g (float16[2] x) => (float16[2] y) <float16 c = {{{bits}}}> {{ y = Mul(x, c) }}"
    assert count(Rule("r", x * number, x), text) == there


def test_a_one_that_broadcasts_is_not_a_unit() -> None:
    rule = Rule("eliminate_mul_by_one", x * 1, x)
    text = "g (float[N] x) => (float[?, ?] y) <float[1, 1] c = {1.0}> { y = Mul(x, c) }"
    assert count(rule, text) == 0
    assert count(rule, text.replace("float[1, 1]", "float[1]")) == 1


def test_one_hole_twice_is_one_value() -> None:
    rule = Rule("r", x * op.Sigmoid(x), x)
    assert count(rule, "g (float[2] a, float[2] b) => (float[2] y) { s = Sigmoid(a)  y = Mul(s, a) }") == 1
    assert count(rule, "g (float[2] a, float[2] b) => (float[2] y) { s = Sigmoid(a)  y = Mul(s, b) }") == 0


def test_conditions_that_cannot_be_known_mean_no() -> None:
    n = tensor("x", "N")
    rule = Rule("r", op.Relu(n), n, when=fn.lt(1, fn.size("N")))
    assert count(rule, "g (float[2] x) => (float[2] y) { y = Relu(x) }") == 1
    assert count(rule, "g (float[1] x) => (float[1] y) { y = Relu(x) }") == 0
    assert count(rule, "g (float[n] x) => (float[n] y) { y = Relu(x) }") == 0


def test_integer_inputs_bind_their_values() -> None:
    rule = Rule("r", op.Unsqueeze(op.Squeeze(x, integers("a")), integers("a")), x)
    text = "g (float[1, 2, 1] x) => (float[?, ?, ?] z) <int64[1] a = {0}, int64[1] b = {2}>"
    assert count(rule, text + "{ y = Squeeze(x, a)  z = Unsqueeze(y, a) }") == 1
    assert count(rule, text + "{ y = Squeeze(x, a)  z = Unsqueeze(y, b) }") == 0


@pytest.mark.parametrize(
    ("pattern", "call", "number", "matches"),
    [
        (op.Gather(x, integer("i"), axis=0), "Gather <axis = 0> (x, c)", "int64 c = {1}", 1),
        (op.Gather(x, integer("i"), axis=0), "Gather <axis = 0> (x, c)", "int64[1] c = {1}", 0),
        (op.Gather(x, 1, axis=0), "Gather <axis = 0> (x, c)", "int64[1] c = {1}", 0),
        (op.Slice(x, integer("i"), (2,)), "Slice (x, c, two)", "int64[1] c = {1}", 1),
        (x + real("r"), "Add(x, c)", "float[1] c = {1}", 1),
        (x + real("r"), "Add(x, c)", "float[1, 1] c = {1}", 0),
        (op.Where(op.Greater(x, x), x, 1.0), "Where(more, x, c)", "float[1] c = {1}", 1),
        (op.Where(op.Greater(x, x), x, 1.0), "Where(more, x, c)", "float[1, 1] c = {1}", 0),
    ],
)
def test_axes_of_a_number_are_a_spelling_only_where_they_add_none(
    pattern: App, call: str, number: str, matches: int
) -> None:
    text = f"g (float[2] x) => (float[?] y) <{number}, int64[1] two = {{2}}>"
    assert count(Rule("r", pattern, x), f"{text} {{ more = Greater(x, x)  y = {call} }}") == matches


@pytest.mark.parametrize(
    ("shape", "numbers", "matches"),
    [("", "", 1), ("", "[1]", 0), ("[2]", "[1]", 1), ("[?]", "[1]", 1)],
)
def test_axes_of_all_numbers_of_a_where_are_no_spelling(shape: str, numbers: str, matches: int) -> None:
    """Of numbers with an axis each, a scalar condition makes a vector."""
    text = f"""g (bool{shape} c) => (float{shape or numbers} y) <float{numbers} p = {{1}}, float{numbers} q = {{0}}>
        {{ y = Where(c, p, q) }}"""
    assert count(Rule("r", op.Where(tensor("c"), 1.0, real("r")), op.Cast(tensor("c"), to=1)), text) == matches


def test_an_overridable_initializer_is_no_constant() -> None:
    rule = Rule("r", x @ const("w"), x)
    text = "g (float[2, 2] x, float[2, 2] w = {1, 2, 3, 4}) => (float[2, 2] y) { y = MatMul(x, w) }"
    with_default = onnx.parser.parse_model(OPSET + text)
    if not with_default.graph.initializer:  # the parser reads the default as a plain input
        pytest.skip("this onnx package's text form has no overridable initializers")
    assert sum(1 for _ in find_matches(rule, onnx_io.load_model(with_default).graph)) == 0


def test_siblings_are_found_through_what_they_share() -> None:
    w, v = const("w", "K N"), const("v", "K M")
    shared = tensor("x", "B K")
    pair = Rule("r", (shared @ w, shared @ v), (shared @ v, shared @ w))
    text = """g (float[2, 2] x) => (float[2, 2] a, float[2, 1] b)
    <float[2, 2] p = {1, 2, 3, 4}, float[2, 1] q = {1, 2}> { a = MatMul(x, p)  b = MatMul(x, q) }"""
    found = list(find_matches(pair, graph(text)))
    assert {len(set(match.roots)) for match in found} == {2}
    assert len(found) == 2  # each may be the first


@pytest.mark.parametrize(
    ("numbers", "there"),
    [
        ("float[3] c = {0, 1, 2}", 1),
        ("float[1, 3] c = {0, 1, 2}", 1),
        ("float[3] c = {0, 1, 1}", 0),
        ("float c = {0}", 0),
    ],
)
def test_a_constant_counts_in_the_shape_that_is_declared(numbers: str, there: int) -> None:
    c = const("c", "N")
    rule = Rule("counting", tensor("x", "M N") + c, op.Neg(c), when=fn.is_arange(c))
    assert count(rule, f"g (float[2, 3] x) => (float[2, 3] y) <{numbers}> {{ y = Add(x, c) }}") == there


@pytest.mark.parametrize(("size", "there"), [(1, 1), (3, 0)])
def test_what_an_absent_input_stands_for_counts_where_that_does(size: int, there: int) -> None:
    c = const("c", "N", default=0)
    rule = Rule("no_bias", op.Gemm(tensor("a", "M K"), tensor("b", "K N"), c), op.Neg(c), when=fn.is_arange(c))
    assert count(rule, f"g (float[2, 4] a, float[4, {size}] b) => (float[2, {size}] y) {{ y = Gemm(a, b) }}") == there


def test_a_negative_zero_is_not_zero() -> None:
    literal = Rule("literal", op.Sub(x, 0.0), op.Identity(x))
    said = Rule("said", op.Sub(x, const("a")), op.Identity(x), when=fn.is_zero(const("a")))
    bound = Rule("bound", op.LeakyRelu(x, alpha=0.0), op.Relu(x))
    for zero, matches in (("0.0", 1), ("-0.0", 0)):
        subtracted = f"g (float[3] x) => (float[3] y) <float a = {{ {zero} }}> {{ y = Sub(x, a) }}"
        assert [count(rule, subtracted) for rule in (literal, said)] == [matches] * 2
        assert count(bound, f"g (float[3] x) => (float[3] y) {{ y = LeakyRelu <alpha = {zero}> (x) }}") == matches


def test_a_number_that_has_no_value_matches_nothing() -> None:
    k, text = real("k"), "g (float[3] x) => (float[3] y) <float a = { 1.0 }> { y = Mul(x, a) }"
    assert not count(Rule("root", x * fn.sqrt(-1.0), op.Identity(x)), text)
    assert not count(Rule("quotient", x * k, op.Identity(x), when=fn.lt(fn.truediv(1.0, k - k), 1)), text)


def test_a_match_says_whether_floats_are_rounded_in_another_order() -> None:
    """Of two operands a sum is the same; of 0.0 and -0.0 a maximum is one or the other, by their places."""
    z = tensor("z")
    text = "g (float[4] a, float[4] b, float[4] c) => (float[4] y) { r = Relu(c)  y = OP(INPUTS) }"
    for name in ("Sum", "Mean", "Max", "Min"):
        two = Rule("two", getattr(op, name)(op.Relu(x), y), x)
        three = Rule("three", getattr(op, name)(op.Relu(x), y, z), x)
        for rule, inputs, orders in (
            (two, "r, a", {False}),
            (two, "a, r", {name in ("Max", "Min")}),
            (three, "a, r, b", {True}),
        ):
            found = find_matches(rule, graph(text.replace("OP", name).replace("INPUTS", inputs)))
            assert {match.is_reordered for match in found} == orders, (name, inputs)
    assert all(
        not match.is_reordered
        for match in find_matches(
            Rule("add", op.Add(op.Relu(x), y), x), graph(text.replace("OP", "Add").replace("INPUTS", "a, r"))
        )
    )


@pytest.mark.parametrize(("held", "attrs"), [("3, 5", ""), ("5, 3", "<transB = 1>")])
def test_a_factor_behind_views_goes_into_a_gemm_with_an_absent_bias(held: str, attrs: str) -> None:
    name = f"fuse_mul_after_transpose_into_gemm{'_transposed' if attrs else ''}"
    rule = next(rule for rule in RULES if rule.name == name)
    weights = ", ".join(["1"] * 15)
    assert (
        count(
            rule,
            f"""m (float[2, 3] x) => (float[5, 2] y)
        <float[{held}] w = {{{weights}}}, float c = {{0.5}}>
        {{ a = Gemm {attrs} (x, w)  b = Transpose <perm = [1, 0]> (a)  y = Mul (b, c) }}""",
        )
        == 1
    )
