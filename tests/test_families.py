"""Rules with holes for operators: one rule for a class, matched for each member, proved once."""

import json
from collections import Counter

import pytest
from onnx import checker, parser

from graphopt.base.errors import RuleError
from graphopt.io import onnx_io
from graphopt.ir import schemas
from graphopt.ir.graph import Graph, Value
from graphopt.language.rule import Rule, binary, fn, integer, integers, op, pointwise, reduction, tensor, tensors
from graphopt.operators import inference
from graphopt.operators.operator import FLOAT_DTYPES
from graphopt.operators.operator_classes import operator_choices
from graphopt.operators.reduction_ops import REDUCTION_OPERATORS
from graphopt.operators.rule_families import sample_specializations, specialize_family
from graphopt.rewrite.build import build_patch
from graphopt.rewrite.gate import deviating_dtypes
from graphopt.rewrite.matching import find_matches
from graphopt.verifier.instance_models import build_models
from graphopt.verifier.instance_sampling import sample_instances
from graphopt.verifier.prove import prove

f, h, g, r = pointwise("f"), pointwise("h"), binary("g"), reduction("r")
x, y = tensor("x"), tensor("y")
first, second, sizes, axis = integers("first"), integers("second"), integers("sizes"), integer("axis")

xs, before, within, after = tensors("xs"), tensors("before"), tensors("within"), tensors("after")

MEET = Rule(
    "transposes_meet",
    op.Transpose(f(op.Transpose(x, perm=first)), perm=second),
    f(op.Transpose(x, perm=fn.compose(first, second))),
)
JOIN = Rule("join_first", op.Concat(f(x), f(y), axis=axis), f(op.Concat(x, y, axis=axis)))
NEEDLESS = Rule(
    "expand_needlessly",
    g(op.Expand(x, sizes), y),
    g(x, y),
    when=fn.eq(fn.broadcast(fn.shape(x), fn.shape(y)), fn.broadcast(sizes, fn.shape(y))),
)


def graph(text: str) -> Graph:
    loaded = onnx_io.load_model(parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')).graph
    inference.infer_graph(loaded)
    return loaded


def rewritten(rule: Rule, text: str) -> Counter[str] | None:
    """The operators after the rule was applied once, None where it does not match."""
    given = graph(text)
    match = next(find_matches(rule, given), None)
    if match is None:
        return None
    given.apply(build_patch(given, match))
    given.check_invariants()
    return Counter(given.operator_counts())


def between(body: str, made: str = "float", constants: str = "") -> str:
    """Something between two transpositions that undo each other."""
    return f"""m (float[2, 3] x) => ({made}[2, 3] y) {constants}
        {{ a = Transpose <perm = [1, 0]> (x) {body} y = Transpose <perm = [1, 0]> (b) }}"""


BETWEEN = {
    "an operator": ("b = Relu (a)", ""),
    "with its attributes": ("b = LeakyRelu <alpha = 0.25> (a)", ""),
    "with a scalar": ("b = Mul (a, c)", "<float c = {2.0}>"),
    "with a scalar that has axes": ("b = Add (a, c)", "<float[1, 1] c = {2.0}>"),
    "after a scalar": ("b = Sub (c, a)", "<float c = {2.0}>"),
    "between two": ("b = Clip (a, c, d)", "<float c = {0.0}, float d = {6.0}>"),
    "below one": ("b = Clip (a, , d)", "<float d = {6.0}>"),
    "with a slope": ("b = PRelu (a, c)", "<float c = {0.1}>"),
}


@pytest.mark.parametrize("what", BETWEEN)
def test_a_hole_stands_for_an_operator_with_all_that_is_its_own(what: str) -> None:
    body, constants = BETWEEN[what]
    assert (found := rewritten(MEET, between(body, constants=constants))) is not None
    assert found["Transpose"] == 1  # and the other rules drop it


def test_the_element_type_may_change() -> None:
    assert rewritten(MEET, between("b = Cast <to = 10> (a)", "float16")) == {"Transpose": 1, "Cast": 1}
    assert rewritten(MEET, between("b = Less (c, a)", "bool", "<float c = {2.0}>")) == {"Transpose": 1, "Less": 1}


APART = {
    "a vector beside it": ("b = Mul (a, c)", "<float[2] c = {2.0, 3.0}>"),
    "a sum along an axis": ("b = Softmax (a)", ""),
    "two operands": ("b = Mul (a, a)", ""),
    "an operator of another meaning": ("b = Unknown (a)", ""),
}


@pytest.mark.parametrize("what", APART)
def test_what_is_not_of_the_class_does_not_match(what: str) -> None:
    body, constants = APART[what]
    assert rewritten(MEET, between(body, constants=constants)) is None


def joined(one: str, other: str, constants: str = "") -> str:
    return f"""m (float[2] x, float[3] y) => (float[5] z) {constants}
        {{ a = {one} b = {other} z = Concat <axis = 0> (a, b) }}"""


def test_wherever_a_hole_occurs_it_is_the_same() -> None:
    assert rewritten(JOIN, joined("Elu (x)", "Elu (y)")) == {"Concat": 1, "Elu": 1}
    assert rewritten(JOIN, joined("Elu (x)", "Relu (y)")) is None
    assert rewritten(JOIN, joined("Elu <alpha = 0.5> (x)", "Elu <alpha = 0.25> (y)")) is None
    constants = "<float c = {2.0}, float d = {3.0}>"
    assert rewritten(JOIN, joined("Mul (x, c)", "Mul (c, y)", constants)) == {"Concat": 1, "Mul": 1}
    assert rewritten(JOIN, joined("Mul (x, c)", "Mul (y, d)", constants)) is None
    assert rewritten(JOIN, joined("Sub (x, c)", "Sub (c, y)", constants)) is None


def test_the_operands_are_of_one_element_type() -> None:
    text = """m (float[2] x, int64[3] y) => (float16[5] z)
        { a = Cast <to = 10> (x) b = Cast <to = 10> (y) z = Concat <axis = 0> (a, b) }"""
    assert rewritten(JOIN, text) is None
    assert rewritten(JOIN, text.replace("int64", "float")) == {"Concat": 1, "Cast": 1}


@pytest.mark.parametrize("inputs", ["a, y", "y, a"])
@pytest.mark.parametrize("operator", ["Add", "Sub", "Div", "Pow", "Less", "Max", "Equal"])
def test_a_binary_hole_stands_for_an_operator_either_way_round(operator: str, inputs: str) -> None:
    made = "bool" if operator in ("Less", "Equal") else "float"
    text = f"""m (float[1] x, float[2, 3] y) => ({made}[2, 3] z) <int64[2] s = {{2, 3}}>
        {{ a = Expand (x, s) z = {operator} ({inputs}) }}"""
    given = graph(text)
    given.apply(build_patch(given, next(find_matches(NEEDLESS, given))))
    assert Counter(given.operator_counts()) == {operator: 1}
    (node,) = (node for _, node in given.nodes())
    names = [given.value_name(value) for value in node.operands]
    assert names == inputs.replace("a", "x").split(", ") or operator in ("Add", "Max", "Equal")


FLATTEN = Rule(
    "join_at_once",
    op.Concat(*before, op.Concat(*within, axis=1), *after, axis=1),
    op.Concat(*before, *within, *after, axis=1),
)
EACH = Rule("join_first_any_number", op.Concat(f(xs), axis=axis), f(op.Concat(*xs, axis=axis)))


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("number", [1, 2, 7])
def test_any_number_of_tensors_may_be_joined(place: int, number: int) -> None:
    outer = ["x"] * 4
    outer.insert(place, "a")
    joined = rewritten(
        FLATTEN,
        f"""m (float[2, 1] x, float[2, 3] z) => (float[2, {4 + 3 * number}] y)
            {{ a = Concat <axis = 1> ({", ".join(["z"] * number)}) y = Concat <axis = 1> ({", ".join(outer)}) }}""",
    )
    assert joined == {"Concat": 1}


PICK = Rule(
    "pick_part",
    op.Slice(op.Concat(*before, x, *after, axis=1), first, second, (1,)),
    x,
    when=(fn.eq(first, fn.extent(before)), fn.eq(second, fn.extent(before) + fn.item(fn.shape(x), 1))),
)


@pytest.mark.parametrize(
    ("start", "end", "taken"),
    [(0, 3, "p"), (3, 4, "q"), (4, 6, "r"), (6, 10, "s"), (3, 6, None), (0, 4, None), (6, 11, None), (1, 3, None)],
)
def test_it_may_be_asked_how_long_any_number_of_tensors_are(start: int, end: int, taken: str | None) -> None:
    given = graph(f"""m (float[2, 3] p, float[2, 1] q, float[2, 2] r, float[2, 4] s) => (float[2, ?] y)
        <int64[1] start = {{{start}}}, int64[1] end = {{{end}}}, int64[1] axis = {{1}}>
        {{ a = Concat <axis = 1> (p, q, r, s) y = Slice (a, start, end, axis) }}""")
    found = [match.holes["x"] for match in find_matches(PICK, given)]
    assert [given.value_name(value) for value in found if isinstance(value, Value)] == [taken] * (taken is not None)


def test_how_long_they_are_is_proved_for_any_number() -> None:
    assert prove(PICK).holds
    assert not prove(Rule("of_another", PICK.lhs, x, when=fn.eq(first, fn.extent(after))), refute=False).holds


DROP = Rule(
    "drop_axes",
    op.Squeeze(r(x, first, keepdims=1), second),
    r(x, first, keepdims=0),
    when=(fn.lt(0, fn.length(first)), fn.eq(first, second)),
)


@pytest.mark.parametrize("kind", [name.removeprefix("Reduce") for name in REDUCTION_OPERATORS])
def test_a_hole_for_a_reduction_is_any_of_them_along_axes_that_are_said(kind: str) -> None:
    body = f"{{ a = Reduce{kind} (x, axes) y = Squeeze (a, axes) }}"
    text = f"m (float[2, 3] x) => (float[2] y) <int64[1] axes = {{1}}> {body}"
    assert rewritten(DROP, text) == {f"Reduce{kind}": 1}
    assert rewritten(DROP, text.replace("(x, axes)", "<keepdims = 1, noop_with_empty_axes = 0> (x, axes)"))
    assert not rewritten(DROP, text.replace("(x, axes)", "<noop_with_empty_axes = 1> (x, axes)"))


def test_what_runs_along_an_axis_and_reduces_nothing_is_no_reduction() -> None:
    text = (
        "m (float[2, 1] x) => (float[2] y) <int64[1] axes = {1}> { a = Softmax <axis = 1> (x) y = Squeeze (a, axes) }"
    )
    assert rewritten(DROP, text) is None


def test_a_reduction_is_proved_as_a_function_of_the_whole() -> None:
    assert prove(DROP).holds
    assert not prove(Rule("without_a_condition", DROP.lhs, DROP.rhs), refute=False).holds


def test_the_parts_stay_in_their_order() -> None:
    given = graph("""m (float[2, 1] p, float[2, 1] q, float[2, 1] r, float[2, 1] s) => (float[2, 4] y)
        { a = Concat <axis = 1> (q, r) y = Concat <axis = 1> (p, a, s) }""")
    given.apply(build_patch(given, next(find_matches(FLATTEN, given))))
    ((_, node),) = given.nodes()
    assert [given.value_name(value) for value in node.operands] == ["p", "q", "r", "s"]


@pytest.mark.parametrize("number", [1, 2, 9])
def test_an_operator_on_each_of_any_number_becomes_one(number: int) -> None:
    parts = [f"a{i} = Gelu (x)" for i in range(number)]
    names = ", ".join(f"a{i}" for i in range(number))
    text = f"m (float[2] x) => (float[{2 * number}] y) {{ {' '.join(parts)} y = Concat <axis = 0> ({names}) }}"
    assert rewritten(EACH, text) == {"Concat": 1, "Gelu": 1}
    assert rewritten(EACH, text.replace("a0 = Gelu", "a0 = Relu")) == (
        {"Concat": 1, "Relu": 1} if number == 1 else None
    )


def test_a_concat_without_operands_is_not_made() -> None:
    rest = Rule("forget_the_first", op.Concat(x, *xs, axis=0), op.Concat(*xs, axis=0))
    text = "m (float[2] x) => (float[2] y) { y = Concat <axis = 0> (x) }"
    assert rewritten(rest, text) is None


PAIRS = {"Add", "Sub", "Mul", "Div", "Pow", "Mod", "And", "Or", "Xor", "Equal", "Greater", "GreaterOrEqual", "Less"}
PAIRS |= {"LessOrEqual", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift", "Max", "Min", "Mean", "Sum"}
SINGLE = {"Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Cast", "Ceil", "Celu", "Clip", "Cos"}
SINGLE |= {
    "Cosh",
    "Elu",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "IsInf",
    "IsNaN",
    "LeakyRelu",
    "Log",
}
SINGLE |= {"Mish", "Neg", "Not", "PRelu", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin"}
SINGLE |= {"Sinh", "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu"}


def test_every_pointwise_operator_is_a_candidate() -> None:
    known = {op for op, domain in operator_choices(schemas.ANY_POINTWISE) if not domain}
    assert known >= PAIRS | SINGLE
    assert {op for op, domain in operator_choices(schemas.ANY_BINARY) if not domain} == PAIRS


@pytest.mark.parametrize("op_type", ["IsNaN", "IsInf", "Cast", "Greater", "Equal"])
def test_what_is_drawn_has_operands_of_one_element_type(op_type: str) -> None:
    """The operator makes the same type of each, so that nothing else in the rule says so."""
    for way in operator_choices(schemas.ANY_POINTWISE)[op_type, ""]:
        for rule in (specialize_family(JOIN, (("f", way),)), specialize_family(EACH, (("f", way), ("xs", 3)))):
            for drawn in sample_instances(rule, count=8):
                for side in build_models(rule, drawn):
                    checker.check_model(side, full_check=True)


def test_of_the_operator_that_is_met_its_kernels_are_asked() -> None:
    """ONNX Runtime computes an Exp of another place by other instructions, and a Relu not."""
    first_ways = [way for way, *_ in operator_choices(schemas.ANY_POINTWISE).values() if not way.domain]
    touched = {way.op: deviating_dtypes(specialize_family(MEET, (("f", way),))) for way in first_ways}
    assert touched["Relu"] == touched["Mul"] == frozenset()
    assert touched["Exp"] == touched["Max"] == FLOAT_DTYPES


def test_it_says_which_class_it_is_of_and_survives_json() -> None:
    assert str(JOIN) == "Concat(f(x), f(y), axis=axis)  ->  f(Concat(x, y, axis=axis))  for any pointwise f"
    again = Rule.from_json(json.loads(json.dumps(JOIN.to_json())))
    assert again == JOIN and again.digest == JOIN.digest
    assert dict(again.operator_holes) == {"f": schemas.ANY_POINTWISE}


def test_what_a_hole_stands_for_counts_as_its_family() -> None:
    for each in sample_specializations(JOIN):
        assert each.generalized is JOIN and each.name == JOIN.name and not each.operator_holes
        assert each.unique_label.startswith("join_first[")


ILL_FORMED = {
    "hole 'h' is not bound by the left side": lambda: Rule("r", op.Abs(f(x)), h(x)),
    "hole 'f' is declared in two ways": lambda: Rule("r", op.Abs(f(tensor("f"))), tensor("f")),
    "has no attribute 'alpha'": lambda: Rule("r", op.Abs(f(x)), f(x, alpha=1.0)),
    "are tensors": lambda: Rule("r", op.Abs(g(x, 1.0)), x),
    "takes 1 to 1 inputs, not 2": lambda: Rule("r", op.Abs(f(x, y)), x),
    "what 'r' is applied to are tensors": lambda: Rule("r", x * r(1.0, (0,), keepdims=0), x),
    "takes 1 to 2 inputs, not 3": lambda: Rule("r", op.Abs(r(x, (0,), (1,))), x),
    "which only a Concat takes": lambda: Rule("r", op.Max(*xs), op.Concat(*xs, axis=0)),
    "could be taken for one of '\\*xs'": lambda: Rule("r", op.Concat(*xs, tensor("xs_0"), axis=0), tensor("xs_0")),
    "differ in length; there is fn.extent": lambda: Rule(
        "r", op.Concat(*xs, axis=0), op.Concat(*xs, *xs, axis=0), when=fn.eq(fn.item(fn.shape(xs), 0), 1)
    ),
    "of no tensors that the left side joins": lambda: Rule(
        "r", op.Concat(x, y, axis=0), x, when=fn.eq(fn.extent(x), 1)
    ),
    "a side is one": lambda: Rule("r", op.Concat(*xs, axis=0), xs),
    "could be taken for one of what 'f' has": lambda: Rule("r", op.Abs(f(tensor("f_operand"))), tensor("f_operand")),
}


@pytest.mark.parametrize("problem", ILL_FORMED)
def test_what_is_wrong_with_a_hole_is_said(problem: str) -> None:
    with pytest.raises(RuleError, match=problem):
        ILL_FORMED[problem]()


def test_a_counterexample_says_of_which_operator_and_of_how_many_tensors_it_is() -> None:
    proof = prove(Rule("any_is_linear", f(x + y) + x, (f(x) + f(y)) + x))
    assert proof.counterexample.startswith("with f=Abs values differ: 1 became 3")
    proof = prove(Rule("any_number_twice", op.Concat(*xs, axis=0), op.Concat(*xs, *xs, axis=0)))
    assert proof.counterexample.startswith("with xs=2 ")
