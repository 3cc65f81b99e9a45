"""The check of a result: a rewrite that makes a difference is named and left out; with `strict` that is an error."""

import gc
import logging
import re
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx.parser
import pytest

import graphopt
from graphopt.base.errors import DifferenceError, UsageError
from graphopt.check import compare, verdict
from graphopt.check.compare import ModelComparer
from graphopt.io import onnx_io
from graphopt.ir.edit import replace_values
from graphopt.ir.graph import Graph, Node, Patch, Value
from graphopt.language.rule import Rule, op, tensor
from graphopt.operators.node_evaluation import Arrays, evaluate_node
from graphopt.report.report import format_search
from graphopt.rewrite.passes import PASSES, Pass
from graphopt.rewrite.simplify import Simplifier, simplify_graph
from graphopt.search.model_tuner import Tuner, TuningResult
from graphopt.search.search_report import GroupKind, RewriteGroup, SearchTiming
from graphopt.search.stopping import StopReason
from tests.test_pipeline import model
from tests.text import parse

FORGET_RELU = Rule("forget_relu", op.Relu(op.Neg(tensor("x"))), op.Neg(tensor("x")))
FORGET_EXP = Rule("forget_exp", op.Exp(op.Abs(tensor("x"))), op.Abs(tensor("x")))
BOTH = parse(
    "float[4] x",
    "a = Abs(x); b = Identity(a); e = Exp(b); n = Neg(x); r = Relu(n); y = Add(e, r)",
    outputs="float[4] y",
)


def names(result: graphopt.Result) -> set[str]:
    return {rewrite.name for rewrite in result.report.rewrites}


@pytest.mark.parametrize("cost", ["none", "analytic", pytest.param("measured", marks=pytest.mark.slow)])
def test_a_wrong_rule_is_left_out_and_the_rest_is_done(cost: str, caplog: pytest.LogCaptureFixture) -> None:
    given = parse("float[4] x", "a = Exp(x); b = Identity(a); n = Neg(b); y = Relu(n)", outputs="float[4] y")
    with caplog.at_level(logging.WARNING):
        result = graphopt.optimize(given, rules=[FORGET_RELU], unverified=True, cost=cost, seconds=2)
    assert result.ok
    assert "forget_relu" not in names(result)
    assert "eliminate_identity" in names(result) or cost == "measured"
    (note,) = (note for note in result.report.notes if "forget_relu" in note)
    assert re.match(r"the rule 'forget_relu' was left out at 'y'.*: with it, the model is different: output 'y' ", note)
    assert note in caplog.text


@pytest.mark.slow
def test_the_first_attempt_is_gone_when_the_second_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that it has made would be in memory with those of the second. The model itself is loaded once."""
    load, loads = onnx_io.load_model, list[Any]()
    graphs, alive = list["weakref.ref[Graph]"](), list[int]()

    def watched(graph: Graph, *args: Any, **options: Any) -> Any:
        gc.collect()
        alive.append(sum(graph() is not None for graph in graphs))
        graphs.append(weakref.ref(graph))
        return simplify_graph(graph, *args, **options)

    def loading(*args: Any, **options: Any) -> onnx_io.LoadedModel:
        loads.append(args)
        return load(*args, **options)

    monkeypatch.setattr("graphopt.pipeline.simplify_graph", watched)
    monkeypatch.setattr(onnx_io, "load_model", loading)
    graphopt.optimize(BOTH, rules=[FORGET_RELU], unverified=True, cost="none")
    assert len(alive) >= 2 and not any(alive)
    assert len(loads) == 1


def test_strict_makes_a_difference_an_error() -> None:
    with pytest.raises(DifferenceError, match=r"made by the rule 'forget_exp' at .*--skip forget_exp leaves it out"):
        graphopt.optimize(BOTH, rules=[FORGET_EXP], unverified=True, cost="none", strict=True)


@pytest.mark.parametrize("rules", [[FORGET_RELU, FORGET_EXP], [FORGET_EXP, FORGET_RELU]])
def test_each_of_two_wrong_rules_is_left_out(rules: list[Rule]) -> None:
    result = graphopt.optimize(BOTH, rules=rules, unverified=True, cost="none")
    assert result.ok and names(result) == {"eliminate_identity"}
    assert result.model == graphopt.optimize(BOTH, cost="none").model


def test_searches_after_a_failed_check_share_the_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now, searched = [0.0], list[float]()

    def tune(self: Tuner) -> TuningResult:
        searched.append(self.tuning.seconds)
        now[0] += self.tuning.seconds
        return TuningResult(self.simplified)

    monkeypatch.setattr(Tuner, "tune", tune)
    monkeypatch.setattr("graphopt.opset_choice.time", SimpleNamespace(perf_counter=lambda: now[0]))
    result = graphopt.optimize(BOTH, rules=[FORGET_RELU, FORGET_EXP], unverified=True, cost="analytic", seconds=4)
    assert result.ok and names(result) == {"eliminate_identity"}
    assert searched == [4.0, 1.0]


def test_searches_that_the_check_refused_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have taken all the time, so what is written was neither searched nor timed."""
    now, wrong = [0.0], [[FORGET_EXP], [FORGET_RELU]]

    def tune(self: Tuner) -> TuningResult:
        now[0] += self.tuning.seconds
        simplifier = Simplifier(wrong.pop(), [])
        return TuningResult(self.simplified.derive(lambda graph: simplifier.run(graph).steps), TRIED)

    monkeypatch.setattr(Tuner, "tune", tune)
    monkeypatch.setattr("graphopt.opset_choice.time", SimpleNamespace(perf_counter=lambda: now[0]))
    result = graphopt.optimize(BOTH, cost="analytic", seconds=4)
    assert result.ok and names(result) == {"eliminate_identity"}
    timing, note = result.report.timing, "not timed: searches that the check refused have taken the --seconds"
    assert timing is not None and (timing.untimed, timing.speedup, timing.searched) == (note, None, None)
    assert [(group.rules, group.is_taken, group.reason) for group in timing.groups] == [(("a_rule",), False, note)]
    assert timing.refused_seconds == 5.0
    assert format_search(timing).endswith("; 5.0 s of the --seconds went into searches that the check refused")
    assert [each.name for each in result.report.refused] == ["forget_relu", "forget_exp"]
    assert "differs" in result.report.refused[0].difference


TRIED = SearchTiming(
    "analytic",
    "CPUExecutionProvider",
    threads=1,
    groups=(RewriteGroup(GroupKind.SWEEP, "everywhere", ("a_rule",), is_taken=True),),
    stop=StopReason.DONE,
)
"""A search of which the check refuses the result."""


def test_the_sign_of_a_zero_is_kept_where_the_check_sees_that_it_matters() -> None:
    """Only `exact` promises it: ONNX Runtime's Where makes 0 of -0."""
    model = parse("bool[2] b, float[2] x", "w = Where(b, x, x); y = Div(1.0, w)", outputs="float[2] y")
    feeds = {"b": np.array([True, False]), "x": np.array([-0.0, 2.0], np.float32)}
    result = graphopt.optimize(model, inputs=feeds, cost="none")
    assert result.model.graph.node == model.graph.node[-2:]
    assert any("eliminate_where_of_same" in note for note in result.report.notes)
    with pytest.raises(DifferenceError, match="--skip eliminate_where_of_same leaves it out"):
        graphopt.optimize(model, inputs=feeds, cost="none", strict=True)
    assert not graphopt.optimize(model, inputs=feeds, cost="none", exact=True, strict=True).report.rewrites


def test_strict_without_the_check_is_refused() -> None:
    with pytest.raises(UsageError, match="strict needs the check"):
        graphopt.optimize(BOTH, cost="none", strict=True, check=False)


@pytest.mark.parametrize(
    ("opset", "ok", "said"),
    [
        (12, False, "skipped: no rewrite was made, and the original cannot be loaded: "),
        (13, False, "the conversion to opset 13"),
    ],
)
def test_what_no_runtime_knows_is_not_called_equal_where_nothing_was_compared(opset: int, ok: bool, said: str) -> None:
    body = "a = own.Unknown(x); s = Softmax<axis=-1>(x); y = Add(a, s)"
    given = parse("float[4] x", body, outputs="float[4] y", opset=12)
    given.opset_import.add(domain="own", version=1)
    result = graphopt.optimize(given, cost="none", target_opset=opset)
    assert result.ok is ok
    assert said in str(result.report.comparison)


def test_what_no_runtime_knows_is_not_called_equal_where_functions_were_inlined() -> None:
    given = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 20, "my": 1, "own": 1]>
        g (float[4] x) => (float[4] y) { a = own.Unknown(x)  y = my.F(a) }
        <domain: "my", opset_import: ["": 20]> F (x) => (y) { y = Relu(x) }"""
    )
    result = graphopt.optimize(given, cost="none")
    assert not result.ok
    assert "not compared: the inlining of local functions" in str(result.report.comparison)
    kept = graphopt.optimize(given, cost="none", inline_functions=False)
    assert "no rewrite was made" in str(kept.report.comparison) and not kept.ok


TRADES = """
from graphopt.rule import Rule, op, tensor
TRADES = (Rule("forget_exp", op.Exp(op.Abs(tensor("x"))), op.Abs(tensor("x"))),)
"""


def test_a_trade_that_is_wrong_is_left_out_and_searched_without(tmp_path: Path) -> None:
    """The search takes it, for it saves an operator; what the report says of it is of the search without it."""
    (tmp_path / "trades.py").write_text(TRADES)
    given = parse("float[512,512] x", "a = Abs(x); e = Exp(a); s = Sin(e); y = Cos(s)", outputs="float[512,512] y")
    result = graphopt.optimize(given, rules=[tmp_path / "trades.py"], unverified=True, cost="analytic", seconds=4)
    assert result.ok and not result.changed
    assert any("'forget_exp' was left out" in note for note in result.report.notes)
    assert result.report.timing is not None and result.report.timing.groups == ()


def wrong_pass(name: str, first: str, second: str) -> Pass:
    """Forgets an operator where it follows another."""

    def run(graph: Graph) -> Iterator[Patch]:
        for vertex in sorted(graph.vertices_with_op(second)):
            source = graph[vertex].inputs[0]
            if source is not None and graph[source.vertex].op == first:
                yield replace_values(graph, {Value(vertex): source})

    return Pass(name, run, "It is a mistake.")


@pytest.mark.parametrize("place", [0, 4, len(PASSES)])
def test_a_wrong_pass_is_left_out_wherever_it_stands(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = (*PASSES[:place], wrong_pass("forget_neg", "Exp", "Neg"), *PASSES[place:])
    monkeypatch.setattr("graphopt.pipeline.PASSES", passes)
    body = "e = Exp(x); n = Neg(e); c = Abs(w); s = Add(n, c); y = Identity(s)"
    given = parse("float[4] x", body, {"w": np.ones(4, np.float32)}, outputs="float[4] y")
    result = graphopt.optimize(given, cost="none")
    assert result.ok and {"fold_constants", "eliminate_identity"} <= names(result)
    assert any(note.startswith("the pass 'forget_neg' was left out") for note in result.report.notes)


WRONG_FOLDS = {"one": ["Sin"], "two": ["Sin", "Cos"], "more than three": ["Sin", "Cos", "Tan", "Sinh"]}


@pytest.mark.parametrize("wrong", WRONG_FOLDS.values(), ids=WRONG_FOLDS)
def test_of_a_pass_the_guilty_places_alone_are_left_out(wrong: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless they are many: then the pass is. The fold of `Abs` stays, the same operators on what is fed stay."""

    def folded(node: Node, *args: Any, **options: Any) -> Arrays | None:
        found = evaluate_node(node, *args, **options)
        return found if found is None or node.op not in wrong else tuple(array + 1 for array in found)

    monkeypatch.setattr("graphopt.rewrite.folding.evaluate_node", folded)
    ops = ["Abs", *wrong]
    body = "; ".join(f"f{op} = {op}(w); y{op} = Mul(x, f{op})" for op in ops)
    given = parse(
        "float[4] x", body, {"w": np.full(4, 2, np.float32)}, outputs=", ".join(f"float[4] y{op}" for op in ops)
    )
    result = graphopt.optimize(given, cost="none")
    left = {node.op_type for node in result.model.graph.node} - {"Mul"}
    assert result.ok
    assert left == {*wrong} | ({"Abs"} if len(wrong) > 3 else set())
    notes = [note for note in result.report.notes if note.startswith("the pass 'fold_constants' was left out")]
    places = [note.partition(":")[0].partition(" at ")[2] for note in notes]
    assert sorted(places) == sorted([f"'f{op}'" for op in wrong] if len(wrong) <= 3 else [*places[:3], ""])


def test_of_a_rule_the_guilty_place_alone_is_left_out() -> None:
    """Relu of Abs is Abs, and Relu of Neg is not Neg: one rule for any operator is right at one of two places."""
    wrong = Rule("forget_relu_of_any", op.Relu(tensor("x")), tensor("x"))
    body = "a = Abs(x); r = Relu(a); n = Neg(x); y = Relu(n); z = Exp(r)"
    given = parse("float[4] x", body, outputs="float[4] y, float[4] z")
    result = graphopt.optimize(given, rules=[wrong], unverified=True, cost="none", only=["forget_relu_of_any"])
    assert result.ok
    assert [node.op_type for node in result.model.graph.node] == ["Abs", "Neg", "Relu", "Exp"]


def test_passes_that_go_on_for_ever_end_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def turn(graph: Graph) -> Iterator[Patch]:
        for vertex in sorted(graph.vertices_with_op("Sin") | graph.vertices_with_op("Cos")):
            old = graph[vertex]
            yield Patch({vertex: old}, {vertex: replace(old, op="Cos" if old.op == "Sin" else "Sin")})

    monkeypatch.setattr(
        "graphopt.pipeline.PASSES", [Pass("turn", turn, "It goes round.", written_operators=frozenset({"Sin", "Cos"}))]
    )
    result = graphopt.optimize(parse("float[4] x", "y = Sin(x)", outputs="float[4] y"), cost="none", check=False)
    assert any("did not settle in" in note and "turn go on for ever" in note for note in result.report.notes)


def test_after_many_wrong_rewrites_the_original_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphopt.pipeline.MAX_RETRIES", 1)
    result = graphopt.optimize(BOTH, rules=[FORGET_RELU, FORGET_EXP], unverified=True, cost="none")
    assert result.ok and not result.changed
    assert any("the original is written" in note for note in result.report.notes)


def test_what_no_rewrite_did_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:

    def different(*_: object, **__: object) -> verdict.ModelComparison:
        return verdict.ModelComparison(verdict.EqualityVerdict.DIFFERENT, reason="it was damaged")

    monkeypatch.setattr(ModelComparer, "compare", different)
    with pytest.raises(DifferenceError, match="No rewrite made the difference"):
        graphopt.optimize(BOTH, cost="none")


def test_to_blame_a_rewrite_the_original_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def counted(*given: Any, **more: Any) -> Any:
        asked.append(given)
        return run_cases(*given, **more)

    run_cases = compare._run_cases
    monkeypatch.setattr(compare, "_run_cases", counted)
    with pytest.raises(DifferenceError, match="the rule 'forget_relu' at"):
        graphopt.optimize(BOTH, rules=[FORGET_RELU], unverified=True, cost="none", strict=True)
    assert len(asked) == 1


@pytest.mark.slow
@pytest.mark.parametrize("guilty", [[FORGET_RELU], [FORGET_EXP], [FORGET_EXP, FORGET_RELU]])
def test_what_cannot_be_run_whole_is_compared_rewrite_by_rewrite(
    guilty: list[Rule], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphopt.base.limits.MAX_TIMED_WEIGHT_BYTES", 0)
    assert graphopt.optimize(model(), cost="none").ok
    result = graphopt.optimize(BOTH, rules=guilty, unverified=True, cost="none")
    assert result.ok and names(result) == {"eliminate_identity"}
    with pytest.raises(DifferenceError, match=r"the rule 'forget_(relu|exp)' at"):
        graphopt.optimize(BOTH, rules=guilty, unverified=True, cost="none", strict=True)
