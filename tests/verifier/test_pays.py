"""Conditions that say only where a rewrite pays: a match has to fulfil them, and no proof rests on them."""

from __future__ import annotations

import onnx.parser
import pytest

from graphopt.io import onnx_io
from graphopt.language.proof import Verdict
from graphopt.language.rule import Rule, const, fn, integers, op, tensor
from graphopt.language.terms import Term
from graphopt.operators import inference
from graphopt.rewrite.matching import find_matches
from graphopt.verifier import prove as prover
from graphopt.verifier.concrete_instance import evaluate_scalar_at
from graphopt.verifier.instance_sampling import sample_instances
from graphopt.verifier.prove import prove
from graphopt.verifier.symbolic_instance import SymbolicInstance

x, a, b = tensor("x"), const("a"), const("b")
rows, w, v = tensor("r", "M K"), const("w", "K N"), const("v", "N P")
shape, axes = integers("shape"), integers("axes")
floats = fn.is_float(fn.dtype(x))
M, N, P = fn.size("M"), fn.size("N"), fn.size("P")
SAME_SHAPE = [fn.eq(fn.broadcast(fn.shape(a), fn.shape(b)), fn.shape(kept)) for kept in (a, b)]

TRUE = (
    Rule("a_side_is_smaller", (rows @ w) @ v, rows @ (w @ v), when=fn.is_float(fn.dtype(rows)), pays=P <= N),
    Rule("some_side_is_large", rows @ w, op.Gemm(rows, w), pays=fn.any_of(fn.all_of(M > 2, N > 3), N > 4)),
    Rule("it_is_no_multiple", rows @ w, op.Gemm(rows, w), pays=fn.ne(fn.mod(N, 4), 0)),
    Rule("constants_do_not_grow", (x + a) + b, x + (a + b), when=floats, pays=fn.any_of(*SAME_SHAPE)),
    Rule("a_list_is_long", op.Relu(op.Reshape(x, shape)), op.Reshape(op.Relu(x), shape), pays=fn.length(shape) > 2),
    Rule("in_single_precision", op.Max(op.Max(x, a), b), op.Max(x, op.Max(a, b)), pays=fn.eq(fn.dtype(x), 1)),
    Rule("something_is_zero", rows @ w, op.Gemm(rows, w), pays=fn.length(fn.nonzero_indices("N", w)) < N),
    Rule("two_of_them", rows @ w, op.Gemm(rows, w), pays=(M > 1, N > 1)),
)
"""They hold wherever their left side is met."""

WRONG = (
    Rule("of_one_row", op.Relu(rows), op.ReduceMax(op.Relu(rows), (0,), keepdims=1), pays=fn.eq(M, 1)),
    Rule("of_even_numbers", op.Relu(rows), op.Reshape(op.Relu(rows), fn.concat(fn.floordiv(M, 2) * 2, fn.size("K"))),
         pays=fn.eq(fn.mod(M, 2), 0)),
    Rule("of_vectors", op.Relu(x), op.Relu(op.Reshape(x, (-1,))), pays=fn.eq(fn.rank(x), 1)),
    Rule("of_the_last_axis", op.ReduceSum(x, axes), op.ReduceSum(x, (-1,)), pays=fn.eq(axes, (-1,))),
    Rule("of_integers", op.Floor(x * a) * 1, x * a, pays=fn.is_integer(fn.dtype(x))),
    Rule("of_as_many_columns", op.Concat(rows, w, axis=0), op.Concat(w, rows, axis=0), pays=fn.eq(fn.size("K"), 0)),
)  # fmt: skip
"""They hold only where they say that they pay: which is no reason to believe them."""


@pytest.mark.parametrize("rule", TRUE, ids=lambda rule: rule.name)
def test_a_proof_knows_nothing_of_where_it_pays(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    assumed = set[Term]()
    left = prover._left

    def noting(instance: SymbolicInstance) -> object:
        assumed.update(instance.rule.conditions)
        return left(instance)

    monkeypatch.setattr(prover, "_left", noting)
    one, other = prove(rule), prove(rule.without_profitability)
    assert one.verdict is Verdict.PROVED, one
    assert (one.model, one.ranks, one.cases, one.coverage) == (other.model, other.ranks, other.cases, other.coverage)
    assert one.digest == rule.digest != other.digest
    assert assumed == set(rule.without_profitability.conditions)


def test_constants_that_may_grow_are_proved_for_all_ranks() -> None:
    grow = next(rule for rule in TRUE if rule.name == "constants_do_not_grow")
    assert prove(grow).ranks == "all"
    assert prove(Rule(grow.name, grow.lhs, grow.rhs, when=grow.conditions)).ranks == "0–4"


@pytest.mark.parametrize("rule", WRONG, ids=lambda rule: rule.name)
def test_what_holds_only_where_it_pays_is_not_proved(rule: Rule) -> None:
    assert prove(rule, refute=False).verdict is not Verdict.PROVED


@pytest.mark.parametrize("rule", TRUE, ids=lambda rule: rule.name)
def test_an_instance_that_is_drawn_pays(rule: Rule) -> None:
    drawn = list(sample_instances(rule, seed=3, count=5))
    assert drawn
    assert all(evaluate_scalar_at(condition, rule, each) for each in drawn for condition in rule.conditions)


@pytest.mark.parametrize(("columns", "matches"), [(4, 1), (5, 1), (6, 0)])
def test_a_match_pays(columns: int, matches: int) -> None:
    smaller = next(rule for rule in TRUE if rule.name == "a_side_is_smaller")
    first, second = (", ".join(["1.0"] * count) for count in (3 * 5, 5 * columns))
    text = f"""<ir_version: 10, opset_import: ["" : 20]> g (float[2, 3] x) => (float[2, {columns}] z)
    <float[3, 5] w = {{ {first} }}, float[5, {columns}] v = {{ {second} }}>
    {{ y = MatMul(x, w)  z = MatMul(y, v) }}"""
    graph = onnx_io.load_model(onnx.parser.parse_model(text)).graph
    inference.infer_graph(graph)
    assert sum(1 for _ in find_matches(smaller, graph)) == matches
