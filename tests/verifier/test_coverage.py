"""A proof is believed where it was made: beyond it a rule is proved when it is met, or refused."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

import graphopt
from graphopt.io import onnx_io
from graphopt.language import rule_library
from graphopt.language.coverage import DecisionTree, OtherLabel, ProofChoice, build_decision_tree, covers, first_unknown
from graphopt.language.proof import Verdict
from graphopt.language.rule import Rule, const, fn, integers, op, string, tensor
from graphopt.language.scalar_functions import UndecidedScalarError
from graphopt.language.type_inference import NoInstance
from graphopt.operators import inference
from graphopt.operators.operator_classes import is_pointwise
from graphopt.operators.rule_families import sample_specializations
from graphopt.rewrite import gate
from graphopt.rewrite.matching import find_matches
from graphopt.rewrite.sites import Site
from graphopt.verifier import instance_models, instance_sampling
from graphopt.verifier.prove import prove
from tests.text import parse

x, y = tensor("x"), tensor("y")
p, axes, shape, sizes = integers("p"), integers("axes"), integers("shape"), integers("sizes")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the user's."""
    monkeypatch.setenv("GRAPHOPT_CACHE", str(tmp_path / "cache"))
    gate._proof_cache.cache_clear()
    return tmp_path / "cache"


def optimized(model: onnx.ModelProto, rule: Rule) -> graphopt.Result:
    return graphopt.optimize(model, rules=[rule], only=[rule.name], cost="none")


def operators(result: graphopt.Result) -> list[str]:
    return [node.op_type for node in result.model.graph.node]


# -- rules that are right where they were tried, and wrong beyond ------------------------------------------------------

INCREASING = fn.all_of(fn.eq(fn.length(axes), 3), fn.le(0, axes))
"""Three axes: in the orders that are tried the last one follows the one in the middle."""

LAST_AXIS = Rule("last_axis", op.Relu(op.Softmax(x, axis=3)), op.Softmax(x, axis=-1))
FIRST_FOUR = Rule("first_four", op.Relu(op.Relu(op.Expand(x, sizes))), op.Relu(op.Expand(x, fn.slice(sizes, 0, 4))))
IN_A_CIRCLE = Rule(
    "in_a_circle",
    op.Neg(op.Neg(op.ReduceSum(tensor("x", "A B C"), axes))),
    op.ReduceSum(tensor("x", "A B C"), fn.concat(fn.slice(axes, 0, 2), (fn.item(axes, 1) + 1) % 3)),
    when=INCREASING,
)
STRETCHED = Rule(
    "stretched",
    op.Relu(op.Relu(op.Resize(x, None, None, sizes, mode="nearest", keep_aspect_ratio_policy=string("policy")))),
    op.Relu(op.Resize(x, None, None, sizes, mode="nearest")),
    when=fn.eq(sizes, fn.shape(x)),
)

RESIZED = 'a = Resize<mode="nearest", keep_aspect_ratio_policy="stretch">(x, , , [1,2,4,4]); b = Relu(a); y = Relu(b)'

BEYOND: Mapping[str, tuple[Rule, onnx.ModelProto, onnx.ModelProto]] = {
    rule.name: (rule, within, beyond)
    for rule, within, beyond in (
        (
            LAST_AXIS,
            parse("float[1,2,3,4] x", "a = Softmax<axis=3>(x); y = Relu(a)"),
            parse("float[1,2,3,4,5] x", "a = Softmax<axis=3>(x); y = Relu(a)"),
        ),
        (
            FIRST_FOUR,
            parse("float[1] x", "a = Expand(x, [2,1,2,3]); b = Relu(a); y = Relu(b)"),
            parse("float[1] x", "a = Expand(x, [2,1,2,3,2,2]); b = Relu(a); y = Relu(b)"),
        ),
        (
            IN_A_CIRCLE,
            parse("float[2,3,4] x", "a = ReduceSum(x, [1,2,0]); b = Neg(a); y = Neg(b)"),
            parse("float[2,3,4] x", "a = ReduceSum(x, [0,2,1]); b = Neg(a); y = Neg(b)"),
        ),
        (
            STRETCHED,
            parse("float[1,2,4,4] x", RESIZED),
            parse("float[1,2,4,4] x", RESIZED.replace("stretch", "not_smaller")),
        ),
    )
}


@pytest.mark.parametrize("name", BEYOND)
def test_a_rule_is_refused_where_it_was_not_tried_and_is_wrong(name: str) -> None:
    rule, within, beyond = BEYOND[name]
    assert prove(rule).verdict is Verdict.PROVED
    assert len(operators(optimized(within, rule))) < len(within.graph.node)
    result = optimized(beyond, rule)
    assert not result.changed
    (note,) = result.report.notes
    assert note.startswith(f"rule {name} was not applied: it is proved for "), note


# -- rules that are right beyond ---------------------------------------------------------------------------------------

UNDONE = Rule(
    "undone", op.Transpose(op.Relu(op.Transpose(x, perm=p)), perm=integers("q")), op.Relu(x),
    when=fn.is_identity(fn.compose(p, integers("q"))),
)  # fmt: skip
SIX = parse(
    "float[1,2,3,4,5,6] x", "a = Transpose<perm=[5,0,1,2,3,4]>(x); b = Relu(a); y = Transpose<perm=[1,2,3,4,5,0]>(b)"
)


def test_a_rule_is_proved_at_a_rank_that_is_met_and_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert operators(optimized(SIX, UNDONE)) == ["Relu"]
    assert (cache / "proofs.sqlite").exists()
    gate._proof_cache.cache_clear()
    monkeypatch.setattr(gate, "prove_instance", lambda *_: pytest.fail("it was proved again"))
    assert operators(optimized(SIX, UNDONE)) == ["Relu"]


ADDED_TWICE = Rule("added_twice", op.Relu(op.Relu(x + y)), op.Relu(x + y))


def without_ranks(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with inputs of which only element types are known."""
    for value in model.graph.input:
        value.type.tensor_type.ClearField("shape")
    return model


@pytest.mark.parametrize("known", [True, False])
def test_pointwise_rules_hold_at_all_ranks(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "prove_instance", lambda *_: pytest.fail("it was proved again"))
    model = parse("float[1,2,1,2,1,2,1] x, float[2] z", "a = Add(x, z); b = Relu(a); y = Relu(b)")
    model = model if known else without_ranks(model)
    assert is_pointwise(ADDED_TWICE)
    result = graphopt.optimize(model, rules=[ADDED_TWICE], only=["added_twice"], check=False, cost="none")
    assert operators(result) == ["Add", "Relu"]


@pytest.mark.parametrize(
    "rule",
    [
        Rule("on_a_rank", op.Relu(op.Relu(x)), op.Relu(x), when=fn.le(fn.rank(x), 2)),
        Rule("declared", op.Relu(op.Relu(tensor("x", "*b N"))), op.Relu(tensor("x", "*b N"))),
        Rule("of_a_list", op.Relu(op.Relu(op.Add(x, (1, 2)))), op.Relu(op.Add(x, (1, 2)))),
        Rule("clipped", op.Relu(op.Relu(op.Clip(x, y))), op.Relu(op.Clip(x, y))),
        Rule("reduced", op.Relu(op.ReduceSum(op.Relu(x), axes)), op.ReduceSum(op.Relu(x), axes)),
    ],
    ids=lambda rule: rule.name,
)
def test_what_may_tell_one_rank_from_another_is_not_pointwise(rule: Rule) -> None:
    assert not is_pointwise(rule)


def test_of_a_rank_that_is_not_known_nothing_is_claimed() -> None:
    rule = Rule("flat_once", op.Flatten(op.Relu(op.Relu(x))), op.Flatten(op.Relu(x)))
    model = without_ranks(parse("float[2,2] x", "a = Relu(x); b = Relu(a); y = Flatten(b)"))
    result = graphopt.optimize(model, rules=[rule], only=[rule.name], check=False, cost="none")
    assert not result.changed
    said = "rule flat_once was not applied: it is proved for x of rank 1–4, and the rank of x is not known there"
    assert result.report.notes == (said,)


# -- the coverage of a proof -------------------------------------------------------------------------------------------


def answers(**known: Any) -> Any:
    """What a match has, by question with _ for the blank."""

    def answer(question: str) -> Any:
        try:
            return known[question.replace(" ", "_").replace(".", "_")]
        except KeyError as error:
            raise UndecidedScalarError(question) from error

    return answer


def test_a_path_is_covered_and_no_other() -> None:
    paths = [
        [ProofChoice("rank x", rank), ProofChoice("value perm", perm, default_label=(1, 0))]
        for rank, perm in ((2, (0, 1)), (2, (1, 0)), (3, (0, 2, 1)))
    ]
    tree = build_decision_tree(paths)
    assert covers(tree, answers(rank_x=2, value_perm=(0, 1)))
    assert covers(tree, answers(rank_x=2, value_perm=None)), "an attribute that is absent has its default"
    assert covers(json.loads(json.dumps(tree)), answers(rank_x=3, value_perm=(0, 2, 1)))
    assert not covers(tree, answers(rank_x=3, value_perm=(2, 1, 0)))
    assert not covers(tree, answers(rank_x=3, value_perm=(0, 1)))
    assert not covers(tree, answers(value_perm=(0, 1)))
    assert first_unknown(tree, answers(value_perm=(0, 1))) == "the rank of x"
    assert not covers([], answers(rank_x=2)), "no path at all"
    assert covers(build_decision_tree([()]), answers()), "nothing to choose"


def test_a_symbol_stands_for_what_is_not_listed() -> None:
    tree = build_decision_tree([[ProofChoice("value rest.scale", OtherLabel((None, 1.0)))]])
    assert covers(tree, answers(value_rest_scale=0.5))
    assert not covers(tree, answers(value_rest_scale=1.0))
    assert not covers(tree, answers(value_rest_scale=None))
    assert not covers(tree, answers())


def test_equal_subtrees_are_one() -> None:
    paths = [[ProofChoice("rank x", a), ProofChoice("rank y", b)] for a in range(5) for b in range(5)]
    assert build_decision_tree(paths) == [
        [],
        ["rank y", None, [[[0, 1, 2, 3, 4], 0]]],
        ["rank x", None, [[[0, 1, 2, 3, 4], 1]]],
    ]


def paths_of(tree: DecisionTree, node: int = -1) -> list[list[ProofChoice]]:
    """The paths of a tree without symbols, once more."""
    if not tree[node]:
        return [[]]
    question, usual, leads = tree[node]
    return [
        [ProofChoice(question, tuple(label) if isinstance(label, list) else label, usual), *rest]
        for labels, subtree in leads
        for label in labels
        for rest in paths_of(tree, subtree)
    ]


BIASED = Rule(
    "biased",
    op.Relu(op.Relu(op.Conv(tensor("x", "N C *s"), const("w", "M C *k"), const("b", "M", default=0)))),
    op.Relu(op.Conv(tensor("x", "N C *s"), const("w", "M C *k"), const("b", "M", default=0))),
)


def test_what_is_taken_out_of_a_coverage_is_proved_when_it_is_met() -> None:
    """Also whether an optional input is there: each path is a promise of its own."""
    proof = prove(BIASED)
    paths = paths_of(proof.coverage)
    absent = next(path for path in paths if ProofChoice("absent b", True) in path)
    graph = onnx_io.load_model(
        parse("float[1,2,8] x, float[3,2,2] w", "c = Conv(x, w); a = Relu(c); y = Relu(a)")
    ).graph
    inference.infer_graph(graph)
    less = replace(proof, coverage=build_decision_tree(path for path in paths if path[:3] != absent[:3]))
    assert build_decision_tree(paths) == proof.coverage != less.coverage
    for match in find_matches(BIASED, graph):
        site = Site.from_match(graph, match)
        assert covers(proof.coverage, site.answer)
        assert gate.prove_instance(BIASED, less, site.answer).failure == ""


def test_a_crash_of_the_prover_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from graphopt.verifier import prove as prover

    monkeypatch.setattr(prover, "find_unproved_at", lambda *_, **__: 1 // 0)
    result = optimized(SIX, UNDONE)
    assert not result.changed
    (note,) = result.report.notes
    assert "the prover failed: ZeroDivisionError" in note


@pytest.mark.slow
@pytest.mark.parametrize("start", range(4))
def test_instances_of_built_in_rules_are_covered_or_proved(start: int) -> None:
    """Beyond lie more axes of a kernel, lists in other orders; what is refused is not defined."""
    beyond = refused = seen = 0
    for rule in (sample_specializations(each, 1)[0] for each in rule_library.load_rules(trades=True)[start::16]):
        proof = gate.Gate().proof_of(rule)
        for drawn in instance_sampling.sample_instances(rule, seed=1, count=2, attempts=300):
            try:
                graph = onnx_io.load_model(instance_models.build_models(rule, drawn)[0]).graph
            except NoInstance:  # a place in a list is beyond its type
                continue
            inference.infer_graph(graph)
            for match in find_matches(rule, graph):
                seen += 1
                site = Site.from_match(graph, match)
                if not covers(proof.coverage, site.answer):
                    beyond += 1
                    why_not = gate.prove_instance(rule.generalized, proof, site.answer).failure
                    refused += bool(why_not)
                    assert not why_not or "not defined there" in why_not or "unsupported" in why_not, (rule, drawn)
    assert seen > 50
    assert refused <= beyond <= seen // 5


# -- lists that are known when a model runs ----------------------------------------------------------------------------

AS_IT_RUNS = Rule("as_it_runs", op.Relu(op.Relu(op.Reshape(x, y))), op.Reshape(op.Relu(x), y))


@pytest.mark.parametrize(("declared", "count"), [("int64[2] s", 2), ("int64[5] s", 2), ("int64[N] s", 3)])
def test_a_list_that_a_tensor_says_has_a_length_that_the_model_says(declared: str, count: int) -> None:
    model = parse(f"float[2,3] x, {declared}", "a = Reshape(x, s); b = Relu(a); y = Relu(b)")
    assert len(operators(optimized(model, AS_IT_RUNS))) == count
