"""Recipes: what a search decided is kept, and followed in the same model, another export of it, or another one."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

import graphopt
from graphopt.base.errors import DifferenceError, RecipeError, UsageError
from graphopt.check.blame import Check, CheckResult
from graphopt.cli.main import app
from graphopt.io import onnx_io
from graphopt.ir.graph import Graph
from graphopt.language.rule import Rule, op, tensor
from graphopt.language.rule_library import load_library
from graphopt.report.report import format_group
from graphopt.result import Result
from graphopt.rewrite.refused_changes import RefusedRewrite
from graphopt.rewrite.regions import BlockSizes, portable_digest
from graphopt.runtime.cost_model import GraphPart, PredictedGain
from graphopt.runtime.measure import Speedup
from graphopt.search.model_tuner import Tuner, TuningResult
from graphopt.search.policy import SearchPolicy
from graphopt.search.recipe import Recipe, RecipeRule, load_recipe
from graphopt.search.recipe_recording import record_recipe
from graphopt.search.recipe_replay import FollowedRecipe, follow_recipe
from tests.test_search import Prices, load
from tests.test_tune import DOUBLE, DOUBLE_ABS, DOUBLE_NEG, GIVEN, NEG_AND_ABS, estimate, outcomes, tuner
from tests.text import parse

pytestmark = pytest.mark.usefixtures("own_cache")

MERGED = "merge_3_parallel_matmuls"


def model(
    layers: int = 3, *, seed: int = 0, prefix: str = "", size: str = "n", act: str = "Tanh", opset: int = 18
) -> onnx.ModelProto:
    """Layers with three products of one value each, which the estimate prefers as one."""
    rng, p = np.random.default_rng(seed), prefix
    weights = {f"{p}{k}{i}": rng.normal(size=(16, 16)).astype(np.float32) for i in range(layers) for k in "uvw"}
    layer = (
        "{p}a{i} = MatMul({p}x{i}, {p}u{i}); {p}b{i} = MatMul({p}x{i}, {p}v{i}); {p}c{i} = MatMul({p}x{i}, {p}w{i});"
        "{p}s{i} = Mul({p}a{i}, {p}b{i}); {p}t{i} = {act}({p}s{i}); {p}r{i} = Mul({p}t{i}, {p}c{i});"
        "{p}x{j} = Softmax({p}r{i})"
    )
    body = "; ".join(layer.format(p=p, i=i, j=i + 1, act=act) for i in range(layers))
    return parse(f"float[{size},16] {p}x0", body, weights, outputs=f"float[{size},16] {p}x{layers}", opset=opset)


def searched(given: Any, **options: Any) -> Result:
    """A result of a search that times nothing."""
    return graphopt.optimize(given, cost="analytic", threads=1, **options)


def left(result: Result) -> list[str]:
    """What the report says was left of a recipe."""
    start = "left of the recipe: "
    return [note.removeprefix(start) for note in result.report.notes if note.startswith(start)]


def places(result: Result) -> list[int]:
    """Number of places in which each find of a recipe was made."""
    assert result.report.timing is not None
    return [len(group.parts) for group in result.report.timing.groups]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRAPHOPT_CACHE", str(tmp_path_factory.mktemp("cache")))
        result = searched(model())
    assert result.report.counts[MERGED] == 3
    return result


# -- the model for which a recipe was made -----------------------------------------------------------------------------


def test_the_same_model_gives_the_same_bytes_untimed(made: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphopt.runtime.measure.time_interleaved", lambda *_, **__: pytest.fail("it was timed"))
    monkeypatch.setattr(Tuner, "tune", lambda _: pytest.fail("it was searched"))
    again = graphopt.optimize(model(), recipe=made.recipe, strict=True)
    assert again.model.SerializeToString() == made.model.SerializeToString()
    assert left(again) == [] and again.recipe == made.recipe
    assert [rewrite.cause for rewrite in again.report.rewrites] == [rewrite.cause for rewrite in made.report.rewrites]


def test_the_report_says_that_a_recipe_decided(made: Result) -> None:
    recipe = replace(made.recipe, speedup=Speedup(1.3, 1.3, 1.2, 1.4, rounds=15))
    timing = graphopt.optimize(model(), recipe=recipe).report.timing
    assert timing is not None and timing.speedup is None and timing.cost == "recipe"
    said = "not timed: a recipe said what to do; its model ran 1.300 times as fast (1.200 to 1.400) as the original on "
    assert timing.untimed == f"{said}{recipe.machine}"
    told = [(group.rules, group.is_taken, group.is_estimate) for group in timing.groups]
    assert told == [((MERGED,), True, True)] * 2


def test_a_recipe_is_json(made: Result) -> None:
    assert Recipe.from_json(made.recipe.to_json()) == made.recipe
    rule = made.recipe.rules[0]
    assert (rule.name, rule.proof) == (MERGED, "proved, reassociates")
    assert len(rule.digest) == len(made.recipe.verifier) == 64
    assert made.recipe.machine.cost == "analytic" and made.recipe.machine.versions["onnx"]
    assert str(made.recipe.machine) == "cpu, 1 thread"
    assert str(replace(made.recipe.machine, device="a phone", threads=4)) == "a phone, cpu, 4 threads"


def test_where_nothing_is_searched_there_is_nothing_in_a_recipe() -> None:
    recipe = graphopt.optimize(model(), cost="none").recipe
    assert (recipe.rules, recipe.sweeps, recipe.finds, recipe.machine.cost) == ((), (), (), "none")


# -- other exports of it -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [{"seed": 1}, {"prefix": "other_"}, {"size": "batch"}, {"opset": 20}],
    ids=["weights", "names", "size", "opset"],
)
def test_a_recipe_applies_whole_to_another_export(made: Result, other: dict[str, Any]) -> None:
    again = graphopt.optimize(model(**other), recipe=made.recipe, strict=True)
    assert again.ok and left(again) == []
    assert places(again) == places(made) == [2, 1]
    assert again.report.after.ops == made.report.after.ops


def test_parts_that_are_no_longer_equal_are_found_by_the_nodes_that_a_rule_matches(made: Result) -> None:
    """The products are as they were, what is made of them is another activation."""
    again = graphopt.optimize(model(act="Sigmoid"), recipe=made.recipe, strict=True)
    assert again.ok and left(again) == []
    assert sum(places(again)) == again.report.counts[MERGED] == 3


# -- other models ------------------------------------------------------------------------------------------------------


def test_a_shorter_model_says_how_much_was_left(made: Result) -> None:
    again = graphopt.optimize(model(layers=2), recipe=made.recipe)
    assert places(again) == [1, 1] and again.report.counts[MERGED] == 2
    assert left(again) == [f"2 × {MERGED}: made in 1 of them; the others are not in this model"]


def test_a_longer_model_has_finds_in_all_its_layers(made: Result) -> None:
    again = graphopt.optimize(model(layers=5), recipe=made.recipe, strict=True)
    assert places(again) == [4, 1] and left(again) == []


def test_another_architecture_says_what_was_left(made: Result) -> None:
    again = graphopt.optimize(GIVEN, recipe=made.recipe)
    assert again.ok
    assert left(again) == [f"{count} × {MERGED}: nothing in this model is like it" for count in (2, 1)]
    assert again.report.timing is not None
    told = [format_group(group) for group in again.report.timing.groups]
    assert told == [f"2 parts of another model: {MERGED}", f"1 part of another model: {MERGED}"]
    with pytest.raises(RecipeError, match=f"the model: the recipe does not fit: 2 × {MERGED}: nothing in this"):
        graphopt.optimize(GIVEN, recipe=made.recipe, strict=True)


def test_rules_that_are_not_admitted_here_are_named(made: Result) -> None:
    again = graphopt.optimize(model(), recipe=made.recipe, skip=[MERGED])
    assert left(again)[0] == f"2 × {MERGED}: {MERGED}: not among the rules here, or another rule by now"
    assert "the recipe was made with no such options" in again.report.notes


def test_a_rule_that_says_something_else_by_now_is_not_used(made: Result) -> None:
    changed = replace(made.recipe, rules=tuple(replace(rule, digest="0" * 64) for rule in made.recipe.rules))
    again = graphopt.optimize(model(), recipe=changed)
    assert MERGED not in again.report.counts and len(left(again)) == 2


def test_a_rule_that_is_no_trade_here_is_not_used(made: Result) -> None:
    always = next(rule for rule in load_library().rules if rule.name == "fuse_bn_into_conv")
    changed = replace(made.recipe, rules=(RecipeRule(always.name, always.digest),))
    assert left(graphopt.optimize(model(), recipe=changed))[0].startswith(
        "2 × fuse_bn_into_conv: fuse_bn_into_conv: not "
    )


def test_a_find_is_made_whole_or_not_at_all(made: Result) -> None:
    """Of its moves the second matches nothing, so the first, which does, is undone."""
    first, second = made.recipe.finds
    (move,) = first.moves
    torn = replace(first, moves=(move, replace(move, matches=("0" * 64,))))
    again = graphopt.optimize(model(act="Sigmoid"), recipe=replace(made.recipe, finds=(torn, second)))
    assert again.ok and again.report.counts[MERGED] == 1
    assert left(again) == [f"2 × {MERGED}: nothing in this model is like it"]


def test_a_rewrite_that_only_the_check_can_refuse_is_told_where_there_is_no_check(made: Result) -> None:
    recipe = replace(made.recipe, refused=(RefusedRewrite("wrong", values="'y'"),))
    assert left(graphopt.optimize(model(), recipe=recipe)) == []
    why = "the rule 'wrong' at 'y': the check left it out, and is not made here"
    assert left(graphopt.optimize(model(), recipe=recipe, check=False)) == [why]


def test_what_the_check_left_out_is_in_the_recipe() -> None:
    wrong = Rule("forget_exp", op.Exp(op.Abs(tensor("x"))), op.Abs(tensor("x")))
    given = parse("float[4] x", "a = Abs(x); e = Exp(a); y = Neg(e)", outputs="float[4] y")
    made = graphopt.optimize(given, rules=[wrong], unverified=True, cost="none")
    recipe = made.recipe
    assert [*map(str, recipe.refused)] == ["the rule 'forget_exp' at 'e'"] and recipe.options == {"--unverified": ""}
    again = graphopt.optimize(given, rules=[wrong], unverified=True, recipe=recipe, strict=True)
    assert again.ok and again.model == made.model
    with pytest.raises(DifferenceError, match="forget_exp"):
        graphopt.optimize(given, rules=[wrong], unverified=True, recipe=replace(recipe, refused=()), strict=True)


def relus(prefix: str = "", *, seed: int = 0, layers: int = 5) -> onnx.ModelProto:
    """Layers of a Relu each, all with equal nodes; in the third alone what it reads may be negative."""
    rng, p = np.random.default_rng(seed), prefix
    signs = {f"{p}s{i}": np.full(4, -1 if i == 2 else 1, np.float32) * rng.uniform(1, 2, 4) for i in range(layers)}
    layer = "{p}a{i} = Abs({p}x{i}); {p}m{i} = Mul({p}a{i}, {p}s{i}); {p}r{i} = Relu({p}m{i}); {p}x{j} = Sin({p}r{i})"
    body = "; ".join(layer.format(p=p, i=i, j=i + 1) for i in range(layers))
    weights = {name: sign.astype(np.float32) for name, sign in signs.items()}
    return parse(f"float[4] {p}x0", body, weights, outputs=f"float[4] {p}x{layers}")


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[Check]:
    """The checks that are made."""
    made, compare = list[Check](), Check.compare

    def counted(check: Check) -> CheckResult:
        made.append(check)
        return compare(check)

    monkeypatch.setattr(Check, "compare", counted)
    return made


FORGET_RELU = Rule("forget_relu", op.Relu(tensor("x")), op.Identity(tensor("x")))


def test_what_the_check_refused_is_not_made_again(checks: list[Check]) -> None:
    """Of five equal places one is refused, in the model and in another export of it, before the check."""
    options: dict[str, Any] = {"rules": [FORGET_RELU], "unverified": True}
    made = graphopt.optimize(relus(), cost="none", **options)
    assert len(checks) == 2 and made.report.counts["forget_relu"] == 4
    recipe = Recipe.from_json(made.recipe.to_json())
    assert [str(rewrite) for rewrite in recipe.refused] == ["the rule 'forget_relu' at 'r2'"]
    checks.clear()
    again = graphopt.optimize(relus(), recipe=recipe, strict=True, **options)
    assert len(checks) == 1 and again.model.SerializeToString() == made.model.SerializeToString()
    said = "the rule 'forget_relu' was left out at {}: with it, the check found a difference when the recipe was made"
    assert said.format("'r2'") in again.report.notes
    checks.clear()
    export = graphopt.optimize(relus("other_", seed=1), recipe=recipe, strict=True, **options)
    assert len(checks) == 1 and said.format("'other_r2'") in export.report.notes
    assert export.model == graphopt.optimize(relus("other_", seed=1), cost="none", **options).model


def test_what_the_check_refused_everywhere_is_not_made_again(checks: list[Check]) -> None:
    """After three places a rule is left out everywhere."""
    options: dict[str, Any] = {"rules": [Rule("forget_sin", op.Sin(tensor("x")), op.Identity(tensor("x")))]}
    given = parse("float[4] x", "a = Sin(x); b = Exp(a); c = Sin(b); d = Exp(c); e = Sin(d); f = Exp(e); y = Sin(f)")
    made = graphopt.optimize(given, cost="none", unverified=True, **options)
    assert len(checks) == 5 and [each.is_everywhere for each in made.recipe.refused] == [False] * 3 + [True]
    checks.clear()
    again = graphopt.optimize(given, recipe=made.recipe, unverified=True, strict=True, **options)
    assert len(checks) == 1 and again.model == made.model
    assert "the rule 'forget_sin' was left out: with it, the check found a difference" in " ".join(again.report.notes)


def test_where_too_much_was_refused_the_original_is_written_again(made: Result, checks: list[Check]) -> None:
    refused = tuple(RefusedRewrite(f"wrong_{number}", values="'y'") for number in range(13))
    again = graphopt.optimize(model(), recipe=replace(made.recipe, refused=refused))
    assert len(checks) == 1 and not again.report.rewrites
    said = "the check refused more than 12 rewrites when the recipe was made: the original is written"
    assert said in again.report.notes


# -- sweeps, and simplifications that were undone ----------------------------------------------------------------------


def followed(recipe: Recipe, searching: Tuner) -> FollowedRecipe:
    return follow_recipe(Recipe.from_json(recipe.to_json()), searching)


def proto(model: onnx_io.LoadedModel, result: TuningResult) -> onnx.ModelProto:
    return onnx_io.to_proto(replace(model, graph=result.candidate.graph))


def test_a_sweep_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tuner, "_cost_model", lambda self, end=0.0: Prices(Add=2))
    outcomes(monkeypatch, 1.0, 1.5)
    searching, loaded, tuned = tuner(sweeps={"sums": [DOUBLE]})
    recipe = record_recipe(searching, tuned, {})
    assert [(sweep.name, sweep.saved_seconds) for sweep in recipe.sweeps] == [("sums", None)]
    again = followed(recipe, searching)
    assert again.left == () and proto(loaded, again.tuned) == proto(loaded, tuned)
    assert again.tuned.timing is not None and again.tuned.timing.groups[0].is_taken


def test_a_recipe_holds_no_gain_of_a_sweep_that_was_only_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is followed, the gain would be told as a measured one."""
    monkeypatch.setattr(Tuner, "_cost_model", lambda self, end=0.0: Prices(Add=2))
    outcomes(monkeypatch, 1.0, 1.5)
    searching, _, tuned = tuner(sweeps={"sums": [DOUBLE]})
    assert tuned.timing is not None
    for is_estimate in (False, True):
        groups = tuple(replace(group, is_estimate=is_estimate) for group in tuned.timing.groups)
        recipe = record_recipe(searching, replace(tuned, timing=replace(tuned.timing, groups=groups)), {})
        assert [sweep.alone is None for sweep in recipe.sweeps] == [is_estimate]


def test_a_sweep_leaves_the_same_places_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a later run, too, which asks for no estimate, and where a recipe says so."""
    parts = (PredictedGain(1.0, 0.2, 0.1), PredictedGain(1.0, -0.2, 0.1))

    def predict(_: Prices, __: Graph, ___: Graph, asked: Sequence[GraphPart] = ()) -> PredictedGain:
        return PredictedGain(2.0, 0.0, 0.0, parts) if asked else PredictedGain(2.0, 0.2, 0.0)

    monkeypatch.setattr(Prices, "predict_gain", predict)
    monkeypatch.setattr(Tuner, "_cost_model", lambda self, end=0.0: Prices(Add=2))
    outcomes(monkeypatch, 1.0, 1.5)
    body = "a = Mul(x, 2.0); b = Exp(a); c = Tile(b, r); d = Mul(c, 2.0); e = Sin(d); y = Abs(e)"
    given = parse("float[1,8] x", body, {"r": np.array([9, 1])}, outputs="float[9,8] y")
    asked: Any = {"sweeps": {"sums": [DOUBLE]}, "policy": SearchPolicy(blocks=BlockSizes(min_nodes=3))}
    searching, loaded, tuned = tuner(given, **asked)
    assert tuned.candidate.graph.operator_counts()["Mul"] == tuned.candidate.graph.operator_counts()["Add"] == 1
    monkeypatch.delattr(Prices, "predict_gain")
    assert proto(loaded, tuner(given, **asked)[2]) == proto(loaded, tuned)
    recipe = record_recipe(searching, tuned, {})
    assert proto(loaded, followed(recipe, searching).tuned) == proto(loaded, tuned)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("y = Exp(x)", "its rules match nowhere in this model"),
        (
            "a = Mul(x, 2.0); b = Exp(a); c = Transpose(b); y = Mul(c, 2.0); z = Add(y, y)",
            "it pays only all over a model, and 0 of 2 places are like those of the recipe",
        ),
    ],
)
def test_a_sweep_that_does_not_fit_is_left(monkeypatch: pytest.MonkeyPatch, body: str, why: str) -> None:
    monkeypatch.setattr(Tuner, "_cost_model", lambda self, end=0.0: Prices(Add=2))
    outcomes(monkeypatch, 1.0, 1.5)
    searching, _, tuned = tuner(sweeps={"sums": [DOUBLE]})
    recipe = record_recipe(searching, tuned, {})
    other, *_ = tuner(parse("float[6,8] x", body, outputs="y"), sweeps={"sums": [DOUBLE]}, cost="analytic")
    again = followed(recipe, other)
    assert again.left == (f"sums: {why}",)
    assert again.tuned.candidate is other.simplified


def test_a_find_that_was_measured_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate(monkeypatch, Mul=2, Add=0.5)
    outcomes(monkeypatch, 1.0, 1.5)
    searching, loaded, tuned = tuner()
    again = followed(record_recipe(searching, tuned, {}), searching)
    assert again.left == () and proto(loaded, again.tuned) == proto(loaded, tuned)


def test_simplifications_that_were_undone_are_undone_again(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate(monkeypatch, Add=2)
    outcomes(monkeypatch, 0.8, 0.8)
    searching, loaded, tuned = tuner()
    recipe = record_recipe(searching, tuned, {})
    assert recipe.faster_original
    assert proto(loaded, followed(recipe, searching).tuned) == proto(loaded, tuned)
    other, *_ = tuner(NEG_AND_ABS, cost="analytic")
    again = followed(recipe, other)
    assert again.left == ("the original was faster than all that was made of it: this is another model",)
    assert again.tuned.candidate is other.simplified


def test_simplifications_that_the_runtime_refused_are_left_out_again() -> None:
    """Of two rules one was undone."""
    searching, _, tuned = tuner(NEG_AND_ABS, [DOUBLE_NEG, DOUBLE_ABS], cost="analytic")
    kept = searching.simplified.chain[0].derive(lambda graph: searching.simplify_with(graph, frozenset({"double_abs"})))
    recipe = record_recipe(searching, replace(tuned, candidate=kept), {})
    assert [recipe.rules[index].name for index in recipe.undone] == ["double_neg"]
    assert followed(recipe, searching).tuned.candidate.graph.operator_counts() == {"Neg": 2, "Abs": 1, "Exp": 1}


# -- opsets and providers ----------------------------------------------------------------------------------------------


def test_the_opset_that_was_chosen_is_taken_again() -> None:
    result = searched(model(), target_opset=20)
    assert result.recipe.opset == 20
    assert graphopt.optimize(model(), recipe=result.recipe).model == result.model
    assert graphopt.optimize(model(), recipe=result.recipe, target_opset=21).report.after.opsets["ai.onnx"] == 21
    assert searched(model()).recipe.opset is None


def test_the_provider_that_was_chosen_is_taken_again(made: Result) -> None:
    result = graphopt.optimize(model(), recipe=replace(made.recipe, provider="cpu"), provider="cuda,cpu")
    assert result.setting.provider == "cpu" and "CPUExecutionProvider" in result.report.session_code
    assert graphopt.optimize(model(), recipe=made.recipe).report.session_code == ""


def test_a_provider_that_was_chosen_and_is_missing_here_is_told(made: Result) -> None:
    """The model is made all the same: it is for another machine."""
    result = graphopt.optimize(model(), recipe=replace(made.recipe, provider="openvino"), check=False)
    assert result.setting.provider == "openvino" and result.model == made.model
    said = "provider openvino was chosen by the recipe, but this onnxruntime has no OpenVINOExecutionProvider"
    assert result.report.notes[-1].startswith(said) and result.report.session_code == ""


# -- files -------------------------------------------------------------------------------------------------------------


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    onnx.save(model(), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def test_a_recipe_in_a_file_gives_the_same_file(source: Path, tmp_path: Path) -> None:
    fast, again, recipe = (tmp_path / name for name in ("fast.onnx", "again.onnx", "recipe.json"))
    assert run("optimize", source, fast, "--cost", "analytic", "--threads", 1, "--save-recipe", recipe).exit_code == 0
    done = run("optimize", source, again, "--recipe", recipe, "--strict")
    assert done.exit_code == 0, done.output
    assert again.read_bytes() == fast.read_bytes()
    assert "what the recipe says" in done.stdout
    assert "search  none: a recipe said what to do" in done.stdout
    onnx.save(GIVEN, tmp_path / "other.onnx")
    done = run("optimize", tmp_path / "other.onnx", tmp_path / "none.onnx", "--recipe", recipe, "--strict")
    assert done.exit_code == 3 and done.stderr.count("\n") == 1
    assert f"other.onnx: the recipe does not fit: 2 × {MERGED}: nothing in this model is like it; 1 × " in done.stderr
    assert not (tmp_path / "none.onnx").exists()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is no JSON"),
        ("[1, 2]", "it has no recipe_version"),
        ('{"schema_version": 1, "rewrites": []}', "it has no recipe_version"),
        ('{"recipe_version": 9}', "its form is 9, and this version of graphopt reads form 2"),
        ('{"recipe_version": 2}', "it is damaged"),
        ('{"recipe_version": 2, "finds": 3}', "it is damaged"),
    ],
)
def test_what_is_no_recipe_is_one_line(source: Path, tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "recipe.json").write_text(text)
    done = run("optimize", source, tmp_path / "fast.onnx", "--recipe", tmp_path / "recipe.json")
    assert done.exit_code == 2 and done.stderr.count("\n") == 1
    assert f"{tmp_path / 'recipe.json'} is no recipe of graphopt: {why}" in done.stderr
    assert not (tmp_path / "fast.onnx").exists()


def test_a_recipe_that_is_cut_off_or_contradicts_itself_is_damaged(made: Result) -> None:
    text = made.recipe.to_json()
    for cut in range(0, len(text) - 1, 97):
        with pytest.raises(ValueError, match=r"it is no JSON|it has no recipe_version"):
            Recipe.from_json(text[:cut])
    for field, value in (("rules", []), ("undone", [7]), ("finds", [{**json.loads(text)["finds"][0], "moves": []}])):
        with pytest.raises(ValueError, match="it is damaged"):
            Recipe.from_json(json.dumps(json.loads(text) | {field: value}))


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.json cannot be read: No such file"):
        load_recipe(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--recipe", "r.json", "--require-speedup", 1.1], "--require-speedup excludes --recipe: nothing is timed"),
        (["--recipe", "r.json", "--dask", "tcp://a:1"], "there is nothing for a cluster to time"),
        (["--save-recipe", "model.onnx"], "model.onnx is the model: the recipe needs another name"),
        (["--save-recipe", "fast.onnx"], "fast.onnx is the output: the recipe needs another name"),
        (["--save-recipe", "r.json", "--report", "r.json"], "r.json is where the report goes"),
        (["--save-recipe", "-"], "a recipe is written to a file: name one"),
    ],
)
def test_recipes_that_cannot_be_are_usage_errors(
    source: Path, monkeypatch: pytest.MonkeyPatch, arguments: Sequence[object], why: str
) -> None:
    monkeypatch.chdir(source.parent)
    done = run("optimize", "model.onnx", "fast.onnx", *arguments)
    assert done.exit_code == 2 and why in done.stderr


# -- digests -----------------------------------------------------------------------------------------------------------


def digest(inputs: str, body: str, *, opset: int = 18, **weights: Any) -> str:
    return portable_digest(load(parse(inputs, body, weights, opset=opset)).graph)


def test_what_exports_differ_in_is_not_in_a_digest() -> None:
    own = digest("float[b,s,4] x", "a = Softmax(x); y = MatMul(a, w)", w=np.ones((4, 4), np.float32))
    for inputs, opset in (("float[batch,seq,4] x", 18), ("float[s,b,4] x", 18), ("float[b,s,4] x", 13)):
        body = "q = Softmax(x); y = MatMul(q, v)"
        assert digest(inputs, body, opset=opset, v=np.zeros((4, 4), np.float32)) == own
    for inputs, size in (("float[b,b,4] x", 4), ("float[2,s,4] x", 4), ("float[b,s,4] x", 5)):
        assert digest(inputs, "a = Softmax(x); y = MatMul(a, w)", w=np.ones((4, size), np.float32)) != own


def test_a_model_with_bodies_has_a_recipe() -> None:
    given = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 18]> test (float[2] x, bool c) => (float[2] y) {
            y = If(c) <
                then_branch = t () => (float[2] p) { a = Neg(x) b = Neg(a) p = Exp(b) },
                else_branch = e () => (float[2] q) { q = Sin(x) }
            >
        }"""
    )
    result = searched(given)
    assert len(result.report.rewrites) > 0
    again = graphopt.optimize(given, recipe=result.recipe, strict=True)
    assert again.model.SerializeToString() == result.model.SerializeToString()


def test_single_floats_are_not_told_apart_and_integers_are() -> None:
    assert digest("float[4] x", "y = Mul(x, 2.0)") == digest("float[4] x", "y = Mul(x, 3.0)")
    assert digest("float[2,4] x", "y = Gather(x, 0)") != digest("float[2,4] x", "y = Gather(x, 1)")
