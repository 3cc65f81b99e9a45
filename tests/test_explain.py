"""Why a rule was not applied, in the words that a user reads."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner, Result

import graphopt
from graphopt.base.dtype import DType
from graphopt.cli.main import app
from graphopt.explanation import explain
from graphopt.language.proof import Proof, ProofModel, Verdict
from graphopt.language.rule_library import load_library
from graphopt.language.terms import operator_applications
from graphopt.options import Options
from graphopt.rewrite import gate
from graphopt.rewrite.candidates import Candidate
from graphopt.rewrite.near_misses import MissKind, NearMiss
from graphopt.rewrite.sites import Site
from graphopt.rule import Rule, const, fn, integer, integers, op, pointwise, real, tensor
from graphopt.runtime.measure import Speedup
from graphopt.search.race_outcomes import Measurement, RaceOutcome
from graphopt.search.race_series import RaceSeries
from graphopt.search.search_report import GroupKind, RewriteGroup
from graphopt.search.stopping import TimeBudget
from tests.text import parse

x, y, v = tensor("x"), tensor("y"), const("v")
ROWS = tensor("x", "*b M K")
PRODUCT = Rule("own_product", op.Relu(ROWS @ const("w", "K N")), op.Relu(ROWS @ (const("w", "K N") * 1.0)))
OTHER = const("v", "K N")
DIFFERENCE = Rule("own", ROWS @ const("w", "K N") - ROWS @ OTHER, ROWS @ (const("w", "K N") - OTHER))
WEIGHTS = {"w": np.ones((3, 4), np.float32)}


def nearest(model: onnx.ModelProto, rule: Rule, **options: Any) -> NearMiss:
    """The nearest miss of a rule that is taken at its word, simplified with no other."""
    given: dict[str, Any] = {"rules": [rule], "only": [rule.name], "unverified": True} | options
    return explain(model, rule.name, options=Options(**given)).misses[0]


def reason(model: onnx.ModelProto, rule: Rule, **options: Any) -> str:
    return nearest(model, rule, **options).reason


# -- the pattern -------------------------------------------------------------------------------------------------------


def test_it_says_where_how_far_and_what_failed_first() -> None:
    model = parse("float[2,3] x, float[3,4] u", "[dyn] w = Neg(u); [mm] p = MatMul(x, w); [Relu_12] y = Relu(p)")
    found = nearest(model, PRODUCT)
    assert (found.node, found.operator, found.graph) == ("Relu_12", "Relu", "test")
    assert (found.matched, found.parts, found.kind) == (3, 4, MissKind.PATTERN)
    assert found.reason == "`w` is not a constant, it is the output of dyn (Neg)"
    assert found.bindings == {"Relu(…)": "Relu_12", "x @ w": "mm (MatMul)", "x": "the input 'x'"}


LITERALS: Mapping[str, Any] = {
    "c": np.array(0.25, np.float32),
    "d": np.array([1.0, 2.0], np.float32),
    "i": np.array([2, 2], np.int64),
}


@pytest.mark.parametrize(
    ("left", "body", "expected"),
    [
        (op.Relu(x + y), "s = Sub(x, x); y = Relu(s)", "`x + y` is not an Add, it is the output of s (Sub)"),
        (op.Relu(x + y), "y = Relu(x)", "`x + y` is not an Add, it is the input 'x'"),
        (op.Relu(x * 0.5), "s = Mul(x, c); y = Relu(s)", "the constant 'c' is 0.25, and the rule has 0.5"),
        (
            op.Relu(x * 0.5),
            "n = Neg(x); s = Mul(x, n); y = Relu(s)",
            "0.5 is asked for, and the output of n (Neg) is not a constant",
        ),
        (
            op.Relu(x * fn.sqrt(2)),
            "s = Mul(x, c); y = Relu(s)",
            "the constant 'c' is 0.25, and the rule has 1.414214, which is `sqrt(2)`",
        ),
        (
            op.Relu(x * real("r")),
            "s = Mul(x, d); y = Relu(s)",
            "the constant 'd' is [1, 2] of shape [2], which is not a number",
        ),
        (
            x * op.Sigmoid(x),
            "n = Neg(x); g = Sigmoid(n); y = Mul(x, g)",
            "`x` is the input 'x' already, and here the output of n (Neg)",
        ),
        (
            op.Neg(op.ReduceSum(x, integers("axes"), keepdims=1)),
            "s = ReduceSum(x, j); y = Neg(s)",
            "`axes` is not a constant, it is the input 'j'",
        ),
    ],
)
def test_a_term_that_is_something_else_is_named_with_both_sides(left: Any, body: str, expected: str) -> None:
    inputs = "float[2] x, int64[1] j"
    assert reason(parse(inputs, body, LITERALS), Rule("own", left, op.Identity(left))) == expected


@pytest.mark.parametrize(
    ("left", "node", "expected"),
    [
        (
            op.Transpose(op.Relu(x), perm=(1, 0, 2)),
            "Transpose<perm=[0,2,1]>(r)",
            "`perm` of y (Transpose) is [0, 2, 1], and the rule has [1, 0, 2]",
        ),
        (
            op.Softmax(op.Relu(x)),
            "Softmax<axis=0>(r)",
            "`axis` of y (Softmax) is 0, and the pattern does not name it, so it has to be the default, -1",
        ),
        (
            op.Softmax(op.Softmax(op.Relu(x), axis=integer("a")), axis=integer("a")),
            "Softmax<axis=1>(s)",
            "`axis` of s (Softmax) is 0, and `a` is 1 already",
        ),
        (
            op.Clip(op.Relu(x), 0.0),
            "Clip(r, c, d)",
            "y (Clip) has an input that `Clip(Relu(x), 0.0)` does not have: the constant 'd'",
        ),
        (op.Clip(op.Relu(x), 0.0, 1.0), "Clip(r, c)", "y (Clip) has no input in the place of `1.0`"),
    ],
)
def test_an_attribute_or_input_is_named_with_its_value(left: Any, node: str, expected: str) -> None:
    body = "r = Relu(x); " + ("s = Softmax<axis=0>(r); " if "(s)" in node else "")
    weights = {"c": np.array(0, np.float32), "d": np.array(6, np.float32)}
    model = parse("float[2,3,4] x", f"{body}y = {node}", weights)
    rule = Rule("own", left, op.Identity(op.Relu(x)))
    chosen = Options(rules=[rule], only=["own"], unverified=True)
    assert expected in [miss.reason for miss in explain(model, "own", at="y", options=chosen).misses]


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        (
            ("float[2,64]", "float[2,128]"),
            "`K` = 128 in `y`, the input 'b', and 64 in `x`",
        ),
        (("float[2,64]", "float[64]"), "the input 'b' has shape [64], and `y` has the axes [M K]"),
        (
            ("float[2,64]", "float[2,n]"),
            "`K` = n in `y`, the input 'b', and 64 in `x`",
        ),
    ],
)
def test_sizes_are_named_with_their_axis(shapes: tuple[str, str], expected: str) -> None:
    a, b = tensor("x", "M K"), tensor("y", "M K")
    rule = Rule("own", op.Concat(a, b, axis=0), op.Concat(b, a, axis=0))
    model = parse(f"{shapes[0]} a, {shapes[1]} b", "y = Concat<axis=0>(a, b)", opset=18)
    assert reason(model, rule) == expected


def test_the_shape_of_a_constant_is_named_with_its_axes() -> None:
    rule = Rule("own", op.Relu(tensor("x", "M K") * const("v", "K")), op.Relu(tensor("x", "M K")))
    model = parse("float[2,3] x", "s = Mul(x, v); y = Relu(s)", {"v": np.ones((2, 1), np.float32)})
    assert reason(model, rule) == "the constant 'v' has shape [2, 1], and `v` has the axes [K]"


def test_a_divisor_without_a_reciprocal_is_named() -> None:
    rule = Rule("own", op.Relu(x * v), op.Relu(x))
    model = parse("float[2] x", "s = Div(x, v); y = Relu(s)", {"v": np.zeros(2, np.float32)})
    assert "the constant 'v' divides, and has no finite reciprocals to multiply by" in {
        miss.reason
        for miss in explain(model, "own", options=Options(rules=[rule], only=["own"], unverified=True)).misses
    }


def test_a_quotient_in_the_place_of_a_product_is_named() -> None:
    rule = Rule("own", op.Relu(x * v), op.Relu(v * x), canonical=True)
    model = parse("float[2] x", "[halve] s = Div(x, c); y = Relu(s)", {"c": np.array([2, 4], np.float32)})
    assert reason(model, rule) == (
        "halve (Div) is no Mul, and a canonical rule asks for a Mul, `x * v`, in that spelling"
    )


def test_operands_of_unlike_element_types_are_named() -> None:
    f = pointwise("f")
    rule = Rule("own", op.Concat(f(x), f(y), axis=0), f(op.Concat(x, y, axis=0)))
    body = "[one] a = IsNaN(x); [two] b = IsNaN(z); y = Concat<axis=0>(a, b)"
    model = parse("float[2] x, double[2] z", body, outputs="y")
    said = "one (IsNaN) reads float, and two (IsNaN) reads double"
    assert reason(model, rule) == f"{said}: an operator hole reads the same element types everywhere"


def test_readers_are_those_of_the_output_that_the_pattern_has() -> None:
    """The first output of the Split is read by what the pattern goes on with, the second by another."""
    _, second = op.Split.split(2, x, axis=0, num_outputs=2)
    rule = Rule("own", op.Relu(second), op.Relu(x))
    body = "[halves] a, b = Split<axis=0, num_outputs=2>(x); r = Relu(a); [act] s = Tanh(b); y = Add(r, s)"
    assert reason(parse("float[2] x", body), rule) == (
        "output 1 of halves (Split) is read by act (Tanh); the pattern has a Relu there,"
        " `Relu(Split(x, axis=0, num_outputs=2)[1])`"
    )


def test_a_node_is_one_place_though_two_terms_match_it() -> None:
    model = parse("float[2,3] x", "[mm] p = MatMul(x, w); [act] y = Gelu(p)", WEIGHTS, opset=20)
    found = nearest(model, DIFFERENCE)
    assert (found.node, found.places, found.matched) == ("mm", 1, 3)


def test_a_constant_of_another_shape_does_not_count_as_matched() -> None:
    body = "a = MatMul(x, w); b = MatMul(x, v); y = Sub(a, b)"
    found = nearest(parse("float[2,3] x", body, WEIGHTS | {"v": np.ones((3, 1), np.float32)}), DIFFERENCE)
    assert (found.matched, found.parts) == (5, 6)
    assert found.reason == "`N` = 1 in `v`, the constant 'v', and 4 in `w`"


def test_a_reader_that_is_another_operator_is_named() -> None:
    model = parse("float[2,3] x", "[mm] p = MatMul(x, w); [act] y = Gelu(p)", WEIGHTS, opset=20)
    assert reason(model, PRODUCT) == (
        "the output of mm (MatMul) is read by act (Gelu); the pattern has a Relu there, `Relu(x @ w)`"
    )


def test_a_value_that_is_a_graph_output_is_named_as_one() -> None:
    model = parse("float[2,3] x", "[mm] y = MatMul(x, w)", WEIGHTS)
    assert reason(model, PRODUCT) == (
        "the output of mm (MatMul) is a graph output; the pattern has a Relu there, `Relu(x @ w)`"
    )


def test_names_that_a_terminal_would_obey_are_written_as_in_python() -> None:
    model = parse("float[2,3] x", "p = MatMul(x, w); y = Gelu(p)", WEIGHTS, opset=20)
    model.graph.node[-1].name = "act\n\x1b[31m"
    assert "is read by act\\n\\x1b[31m (Gelu); " in reason(model, PRODUCT)


def test_a_side_that_is_missing_is_named() -> None:
    """Merging branches needs both."""
    rule = Rule("own", (op.Relu(x), op.Neg(x)), (op.Neg(op.Neg(op.Relu(x))), op.Neg(x)))
    assert (
        reason(parse("float[2] x", "y = Relu(x)"), rule) == "there is no `Neg(x)` beside y (Relu) that reads the same"
    )


def test_a_pattern_of_a_family_is_explained_at_its_hole() -> None:
    model = parse("float[2,3] x", "[cat] c = Concat<axis=0>(x, x); [back] y = Reshape(c, s)", {"s": np.array([12])})
    assert (
        explain(model, "fuse_reshapes_around_pointwise")
        .misses[0]
        .reason.endswith("is not a pointwise operator, it is the output of cat (Concat)")
    )


# -- conditions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ("3", "the condition `size('C') > 4` is false: C = 3"),
        ("n", "the condition `size('C') > 4` cannot be known: C = n"),
        ("?", "the condition `size('C') > 4` cannot be known: C = an unknown size"),
    ],
)
def test_a_condition_is_told_with_its_values(size: str, expected: str) -> None:
    rule = Rule("own", op.Neg(op.Relu(tensor("x", "N C"))), tensor("x", "N C"), when=fn.size("C") > 4)
    found = nearest(parse(f"float[2,{size}] x", "r = Relu(x); y = Neg(r)"), rule)
    assert (found.kind, found.reason) == (MissKind.CONDITION, expected)
    assert found.matched == found.parts


def test_a_condition_on_an_element_type_is_told_with_the_type() -> None:
    rule = Rule("own", op.Neg(op.Relu(x)), x, when=fn.eq(fn.dtype(x), 1))
    model = parse("float16[2] x", "r = Relu(x); y = Neg(r)")
    assert reason(model, rule).startswith("the condition `dtype(x) == 1` is false: dtype(x) = float16")


# -- the gate ----------------------------------------------------------------------------------------------------------

DISTRIBUTE = Rule("own", op.Mul(x, y + tensor("z")), op.Mul(x, y) + op.Mul(x, tensor("z")))
TWICE = Rule("own", op.Neg(op.Neg(x)) + y, x + y)


def judged(proof: Proof, site: Site, *, exact: bool = False) -> str:
    asked = gate.Gate(exact=exact)
    asked._proofs[proof.rule] = proof
    assert not asked.allows(site)
    return asked.objection(site)


def proved(model: ProofModel, **more: Any) -> Proof:
    return Proof("own", "", Verdict.PROVED, model, **{"coverage": [[]]} | more)


def site(dtype: DType, **more: Any) -> Site:
    return Site(DISTRIBUTE, frozenset([dtype]), frozenset([dtype]), **more)


def test_an_element_type_that_a_proof_does_not_license_is_named() -> None:
    said = "int64: it is proved over the real numbers, which speaks for floats only"
    assert judged(proved(ProofModel.REAL), site(DType.INT64)) == said
    said = "--exact keeps all bits, and it is proved, reassociates, finite"
    assert judged(proved(ProofModel.REAL), site(DType.FLOAT16), exact=True) == said


def test_what_a_proof_is_not_about_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    infinite = site(DType.FLOAT, may_be_infinite=lambda constants: True)
    assert judged(proved(ProofModel.REAL), infinite) == (
        "it is proved for finite values only, and one there may be infinite"
    )
    assert judged(Proof("own", "", Verdict.REFUTED), site(DType.FLOAT)) == (
        "it is not proved: refuted; `graphopt verify own` says why"
    )
    monkeypatch.setattr(gate, "_instance_failure", lambda rule, proof, answer: f"not rank {answer('rank x')}")
    monkeypatch.setattr(gate, "cache_instance_proofs", lambda *_: None)
    tree = [[], ["rank x", None, [[[0, 1, 2, 3, 4], 0]]]]

    found = judged(proved(ProofModel.EXACT, coverage=tree), site(DType.FLOAT, answer=lambda question: 5))
    assert found == "it is proved for x of rank 0–4, but not for x of rank 5: not rank 5"


def test_the_gate_is_asked_where_a_rule_matches() -> None:
    rule = Rule("own_distribute", op.Relu(x * y + x * tensor("z")), op.Relu(x * (y + tensor("z"))))
    model = parse("int64[2] x, int64[2] a, int64[2] b", "p = Mul(x, a); q = Mul(x, b); s = Add(p, q); y = Relu(s)")
    found = explain(model, rule.name, options=Options(rules=[rule])).misses
    assert [(miss.kind, miss.reason) for miss in found] == [
        (MissKind.PROOF, "int64: it is proved over the real numbers, which speaks for floats only")
    ]


# -- what is measured --------------------------------------------------------------------------------------------------

OWN_SCALE = Rule(
    "own_scale",
    op.Neg((ROWS @ const("w", "K N")) * const("s", "N")),
    ROWS @ (const("w", "K N") * op.Neg(const("s", "N"))),
    when=fn.is_float(fn.dtype(ROWS)),
)
FACTORS = {"s": np.array([1, 2, 3, 4], np.float32)}
SCALED = WEIGHTS | FACTORS
BODY = "[mm] p = MatMul(x, w); [scale] t = Mul(p, s); [neg] y = Neg(t)"
STAYS = "weight would not fall: the nodes that go ({gone}) weigh {weight}, those that come (MatMul) 1000"


def near(model: onnx.ModelProto, *names: str, **options: Any) -> NearMiss:
    given: dict[str, Any] = {"rules": [OWN_SCALE]} | options
    return explain(model, *names, options=Options(**given)).misses[0]


def test_a_node_that_is_read_elsewhere_is_named_with_its_reader() -> None:
    model = parse("float[2,3] x", f"{BODY}; [Add_7] z = Add(p, p)", SCALED, outputs="y, z")
    found = near(model, "own_scale", only=["own_scale"])
    assert found.kind is MissKind.PROFIT
    assert found.reason == f"mm (MatMul) is read by Add_7 as well; {STAYS.format(gone='Mul, Neg', weight=200)}"


@pytest.mark.parametrize(("output", "node", "gone"), [("p", "mm (MatMul)", "Mul, Neg"), ("t", "scale (Mul)", "Neg")])
def test_a_node_that_is_a_graph_output_is_named(output: str, node: str, gone: str) -> None:
    model = parse("float[2,3] x", BODY, SCALED, outputs=f"y, {output}")
    weight = 100 * len(gone.split(", "))
    said = f"{node} is a graph output; {STAYS.format(gone=gone, weight=weight)}"
    assert near(model, "own_scale", only=["own_scale"]).reason == said
    (note,) = graphopt.optimize(model, rules=[OWN_SCALE], only=["own_scale"], cost="none").report.notes
    assert note == (
        f"rule own_scale matches at 1 place and makes nothing smaller there ({said}):"
        " list it in TRADES, and the search times it"
    )


def test_a_library_rule_that_took_the_place_is_named() -> None:
    model = parse("float[2,3] x", BODY, SCALED)
    said = (
        "mm (MatMul) and scale (Mul) took part in fuse_mul_into_matmul before;"
        " --skip fuse_mul_into_matmul leaves it to other rules"
    )
    found = near(model, "own_scale")
    assert (found.kind, found.reason) == (MissKind.TAKEN, said)
    notes = graphopt.optimize(model, rules=[OWN_SCALE], cost="none").report.notes
    where = "(nearest at neg, where 6 of 6 parts of its pattern match)"
    assert notes == (f"rule own_scale was applied nowhere: {said} {where}",)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "[mm] p = MatMul(x, w); [sub] t = Sub(p, s); [neg] y = Neg(t)",
            "the output of mm (MatMul) is read by",
        ),
        ("[relu] y = Relu(x)", "the simplified model has no Neg and no Mul and no MatMul"),
    ],
)
def test_an_own_rule_that_never_fired_is_noted_where_no_rewrite_applied(body: str, said: str) -> None:
    (note,) = graphopt.optimize(parse("float[2,3] x", body, SCALED), rules=[OWN_SCALE], cost="none").report.notes
    assert note.startswith(f"rule own_scale was applied nowhere: {said}")


def test_an_operator_of_a_later_opset_is_named_with_the_option() -> None:
    half = op.Erf(x * fn.truediv(1.0, fn.sqrt(2.0)))
    rule = Rule("own_gelu", x * (half + 1.0) * 0.5, op.Gelu(x))
    body = "d = Div(x, c); e = Erf(d); a = Add(e, 1.0); m = Mul(x, a); y = Mul(m, h)"
    weights = {"c": np.array(np.sqrt(2), np.float32), "h": np.array(0.5, np.float32)}
    found = explain(parse("float[4] x", body, weights, opset=17), rule.name, options=Options(rules=[rule])).misses[0]
    assert found.kind is MissKind.OPSET
    assert found.reason.startswith("needs Gelu: opset 20, the model has 17; --target-opset 20 converts it")


def test_a_refusal_of_the_builder_is_told() -> None:
    rule = Rule("own", (x * const("v", "")) * const("w", ""), x * (const("v", "") * const("w", "")))
    model = parse("float16[2] x", "s = Mul(x, v); y = Mul(s, v)", {"v": np.array(1e-5, np.float16)})
    found = nearest(model, rule)
    assert found.kind is MissKind.REFUSED
    assert "would underflow FLOAT16" in found.reason


def test_a_canonical_rule_is_applied_once() -> None:
    rule = Rule("own", op.Relu(x) + y, y + op.Relu(x), canonical=True)
    assert nearest(parse("float[2] x", "r = Relu(x); y = Add(r, x)"), rule).kind is MissKind.APPLIED


# -- trades ------------------------------------------------------------------------------------------------------------

PARALLEL = {name: np.random.default_rng(seed).random((64, 64), np.float32) for seed, name in enumerate("vw")}


def parallel() -> onnx.ModelProto:
    return parse("float[8,64] x", "a = MatMul(x, v); b = MatMul(x, w)", PARALLEL, outputs="a, b")


def test_a_trade_is_told_with_what_was_measured() -> None:
    name = "merge_2_parallel_matmuls"
    assert explain(parallel(), name).misses[0].reason == "a trade: applied only where it measures faster"
    report = graphopt.optimize(parallel(), cost="analytic").report
    assert report.timing is not None
    measured = RewriteGroup(GroupKind.FIND, "a", (name,), alone=ratio(1.3))
    taken = "it was taken: alone 1.30 (1.29–1.31)"
    left = replace(measured, reason=f"the model with it is {SLOWER}; it is slower")
    for group, said in (
        (None, "the search of the report did not try it"),
        (left, f"left (alone 1.30 (1.29–1.31)): the model with it is {SLOWER}; it is slower"),
        (replace(measured, is_taken=True), taken),
        (
            replace(measured, is_taken=True, together=ratio(1.2)),
            f"{taken}, with all that was taken 1.200 times as fast (1.188 to 1.212) as without",
        ),
    ):
        timing = replace(report.timing, groups=() if group is None else (group,))
        told = explain(parallel(), name, report=replace(report, timing=timing)).misses[0].reason
        assert told == f"a trade: applied only where it measures faster; {said}"


SLOWER = "0.980 times as fast (0.960 to 1.000) as without it"


# -- all rules, and one node -------------------------------------------------------------------------------------------


def test_equal_places_are_one_miss() -> None:
    body = "; ".join(
        f"[dyn_{i}] w{i} = Neg(u); [mm_{i}] p{i} = MatMul(x{i}, w{i}); [Relu_{i}] x{i + 1} = Relu(p{i})"
        for i in range(3)
    )
    model = parse("float[2,3] x0, float[3,3] u", f"{body}; y = Identity(x3)")
    found = nearest(model, PRODUCT)
    assert (found.node, found.places) == ("Relu_0", 3)
    assert found.reason == "`w` is not a constant, it is the output of dyn_0 (Neg)"


def test_without_a_rule_all_are_looked_at() -> None:
    found = explain(parse("float[2,3] x, float[3,4] u", "[mm] p = MatMul(x, u); [scale] y = Mul(p, s)", FACTORS))
    assert not found.applied
    assert next((miss.rule, miss.reason) for miss in found.misses) == (
        "fuse_mul_into_matmul",
        "`w` is not a constant, it is the input 'u'",
    )
    assert all(miss.matched > 1 for miss in found.misses)


def test_without_a_rule_each_node_has_a_line_for_what_comes_nearest() -> None:
    """A sum of a product and a value is nearly a dozen rules, most of which are far from it."""
    body = "[mm] p = MatMul(x, w); [plus] s = Add(p, z); [more] t = Add(s, z); [act] y = Gelu(t)"
    model = parse("float[2,3] x, float[2,4] z", body, WEIGHTS, opset=20)
    found = [miss for miss in explain(model).misses if miss.kind is not MissKind.TRADE]
    by_node = {node: [miss for miss in found if miss.node == node] for node in {miss.node for miss in found}}
    written = {
        rule.name: {each.op for side in rule.right for each in operator_applications(side)}
        for rule in load_library().rules
    }
    assert by_node
    for misses in by_node.values():
        best = max(miss.share for miss in misses)
        assert all(miss.share >= 0.9 * best for miss in misses)
        ideas = [frozenset(written[miss.rule]) for miss in misses]
        assert len(set(ideas)) == len(ideas)


def test_without_a_rule_places_of_other_sizes_are_one_miss() -> None:
    """Asked about the rule itself, they are two."""
    name = "replace_matmul_add_of_matrices_with_conv"
    body = "p = MatMul(x, w4); [plus] y = Add(p, b4); q = MatMul(z, w6); [more] t = Add(q, b6)"
    weights = {
        f"{hole}{size}": np.ones((size,) * rank, np.float32) for size in (4, 6) for hole, rank in (("w", 2), ("b", 1))
    }
    model = parse("float[2,3,4] x, float[2,3,6] z", body, weights, outputs="y, t")

    def told(*names: str) -> list[tuple[str, int, str]]:
        misses = (miss for miss in explain(model, *names).misses if miss.rule == name)
        return [(miss.node, miss.places, miss.reason.partition(": ")[2]) for miss in misses]

    assert told() == [("plus", 2, "C = 4; M = 4")]
    assert told(name) == [("plus", 1, "C = 4; M = 4"), ("more", 1, "C = 6; M = 6")]


def test_a_rule_that_the_run_is_without_is_said_to_be() -> None:
    model = parse("float[2,3] x", BODY, SCALED)
    found = explain(model, "fuse_mul_into_matmul", options=Options(skip=["fuse_mul_into_matmul"])).misses[0]
    assert (found.kind, found.matched) == (MissKind.LEFT_OUT, found.parts)
    assert found.reason == "it is left out of this run, by --skip, --only or --target"


def test_what_was_applied_is_counted() -> None:
    text = str(explain(parse("float[2,3] x", BODY, SCALED)))
    assert text.startswith("model 'test', opset 18\n\napplied\n    fuse_mul_into_matmul  1\n")


def test_a_node_restricts_the_places_and_says_what_took_it() -> None:
    model = parse("float[2,3] x", BODY, SCALED)
    found = explain(model, "own_scale", at="scale", options=Options(rules=[OWN_SCALE]))
    assert found.notes == ("scale was taken out by fuse_mul_into_matmul",)
    assert [miss.kind for miss in found.misses] == [MissKind.TAKEN]
    assert not explain(model, "own_scale", at="neg", options=Options(rules=[OWN_SCALE], only=["own_scale"])).misses


# -- what loses time ---------------------------------------------------------------------------------------------------

CHAIN = "a = Neg(x); b = Neg(a); c = Abs(b); d = Abs(c); e = Transpose<perm=[1,0]>(d); y = Transpose<perm=[1,0]>(e)"


def racing(monkeypatch: pytest.MonkeyPatch, costs: Mapping[str, float]) -> list[int]:
    """Let each version take one second, and more for rewrites that it has; tells in which series the races are."""
    heats: list[int] = []

    def seconds(candidate: Candidate) -> float:
        return 1 + sum(costs.get(name, 0.0) for name in {step.name for step in candidate.steps})

    def race(series: RaceSeries, candidates: Sequence[Candidate], _share: float) -> list[Measurement]:
        heats.append(series.heat)
        floor = seconds(candidates[0])
        return [
            Measurement(each, RaceOutcome(ratio(1 / seconds(each)), ratio(floor / seconds(each))))
            for each in candidates
        ]

    monkeypatch.setattr(RaceSeries, "race", race)
    return heats


def ratio(median: float) -> Speedup:
    return Speedup(median, median, median * 0.99, median * 1.01, rounds=100)


def test_the_rewrite_that_loses_time_is_found_by_halving(monkeypatch: pytest.MonkeyPatch) -> None:
    names = list(explain(parse("float[4,8] x", CHAIN)).applied)
    assert len(names) > 2
    heats = racing(monkeypatch, {names[1]: 0.2, names[2]: -0.1})
    found = explain(parse("float[4,8] x", CHAIN), slower=True).slower
    assert found is not None
    assert found.slower == (names[1],)
    assert heats[-1] == 2 and set(heats[:-1]) == {1}, "only the winner races in sessions of its own"
    assert not found.untried
    text = str(found)
    assert text.startswith("the simplified model is 0.909 times as fast (0.900 to 0.918) as the original\n")
    assert f"    without {names[1]}: 1.222 times as fast (1.210 to 1.234), and 1.222 times as fast" in text
    assert text.endswith(f"shown to be slower: {names[1]}; --skip leaves them out")


def test_the_simplified_model_is_told_by_the_race_of_the_most_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    races = iter([(0.9, 20), (0.95, 300), (0.8, 40)])

    def race(_: RaceSeries, candidates: Sequence[Candidate], __: float) -> list[Measurement]:
        median, rounds = next(races, (0.8, 40))
        outcome = RaceOutcome(replace(ratio(median), rounds=rounds), ratio(1.0))
        return [Measurement(candidate, outcome) for candidate in candidates]

    monkeypatch.setattr(RaceSeries, "race", race)
    text = str(explain(parse("float[4,8] x", CHAIN), slower=True).slower)
    assert text.startswith("the simplified model is 0.950 times as fast (0.941 to 0.959) as the original\n")


def test_nothing_that_loses_time_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    racing(monkeypatch, {})
    assert str(explain(parse("float[4,8] x", CHAIN), slower=True).slower).endswith("none shown to be slower")


def test_what_was_not_tried_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    racing(monkeypatch, {})
    monkeypatch.setattr(TimeBudget, "is_over", lambda *_: True)
    found = explain(parse("float[4,8] x", CHAIN), slower=True)
    assert found.slower is not None
    assert set(found.slower.untried) == found.applied.keys()
    assert "not tried alone, for the time was up (--seconds gives it longer): " in str(found.slower)


def test_without_rewrites_nothing_is_raced() -> None:
    found = explain(parse("float[4] x", "y = Exp(x)"), slower=True).slower
    assert str(found) == "what loses time is not known: nothing was applied"


# -- the command -------------------------------------------------------------------------------------------------------


def run(*args: object) -> Result:
    return CliRunner().invoke(app, ["explain", *map(str, args)])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    onnx.save(parse("float[2,3] x, float[3,4] u", "[mm] p = MatMul(x, u); [scale] y = Mul(p, s)", FACTORS), path)
    return path


def test_the_command_prints_the_nearest_misses(model: Path) -> None:
    done = run(model, "fuse_mul_into_matmul", "fuse_consecutive_adds")
    assert done.exit_code == 0, done.stderr
    assert done.stdout == (
        f"{model}, opset 18\n\nnone of these rules was applied\n\n"
        "fuse_consecutive_adds: the simplified model has no Add\n\n"
        "nearest misses\n"
        "    fuse_mul_into_matmul  at scale (Mul), 3 of 5 parts match\n"
        "        `w` is not a constant, it is the input 'u'\n"
        "            … * c = scale (Mul)\n"
        "            x @ w = mm (MatMul)\n"
        "            x = the input 'x'\n"
    )


def test_the_command_prints_json(model: Path) -> None:
    done = run(model, "fuse_mul_into_matmul", "--json")
    found: Mapping[str, Any] = json.loads(done.stdout)
    assert found["rules"] == ["fuse_mul_into_matmul"]
    assert found["misses"][0]["reason"] == "`w` is not a constant, it is the input 'u'"
    assert found["misses"][0]["bindings"]["x"] == "the input 'x'"


@pytest.mark.parametrize(
    ("args", "code", "line"),
    [
        (("fuse_mul_into_matmull",), 2, "there is no rule or pass 'fuse_mul_into_matmull'; did you mean"),
        (("fold_shapes",), 2, "'fold_shapes' is a pass, which has no pattern: only rules can be explained"),
        (("--at", "scal"), 2, "the model has no node 'scal'; did you mean 'scale'?"),
        (("--rules", "none.py"), 2, "none.py: no such file of rules"),
        (("--report", "none.json"), 2, "none.json cannot be read: No such file or directory"),
        (("--target-opset", "auto"), 2, "which opset is faster is measured by optimize: explain takes a number"),
    ],
)
def test_bad_input_is_one_line_and_an_exit_code(model: Path, args: tuple[str, ...], code: int, line: str) -> None:
    done = run(model, *args)
    assert done.exit_code == code
    assert done.stdout == ""
    assert done.stderr.startswith(f"graphopt: error: {line}")
    assert done.stderr.count("\n") == 1


def test_a_damaged_report_is_one_line(model: Path, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text("{}")
    done = run(model, "--report", tmp_path / "report.json")
    assert done.exit_code == 2
    assert "report.json is no report that this version reads: it is no report of schema 1" in done.stderr


def test_no_model_is_one_line(tmp_path: Path) -> None:
    done = run(tmp_path / "none.onnx")
    assert done.exit_code != 0
    assert done.stderr == f"graphopt: error: {tmp_path / 'none.onnx'} does not exist\n"
