"""Rules of the user's that are true and not applied: the notes say why, and where such rules belong."""

from pathlib import Path
from typing import Any

import onnx
import pytest
from typer.testing import CliRunner

import graphopt
from graphopt.cli.main import app
from graphopt.language.rule_library import load_rules, notes_on_unmatchable_rules
from graphopt.rule import Operators, Rule, define, op, tensor
from tests.text import parse

x = tensor("x")
mine = Operators("tests.idle")
define(mine.Twice(x), x + x)

SPLIT = Rule("split_relu", op.Relu(x + x), op.Relu(x) + op.Relu(x))
LATER = Rule("negate_first", op.Neg(mine.Twice(x)), mine.Twice(op.Neg(x)))

MINE = """
from graphopt.rule import Rule, op, tensor
x = tensor("x")
TRADES = (Rule("difference_of_halves", op.Relu(x) - op.Relu(op.Neg(x)), x),)
"""
HALVES = parse(
    "float[512,512] x", "n = Neg(x); a = Relu(x); b = Relu(n); d = Sub(a, b); y = Cos(d)", outputs="float[512,512] y"
)


def notes(model: onnx.ModelProto, rule: Rule, **options: Any) -> list[str]:
    result = graphopt.optimize(model, rules=[rule], cost="none", check=False, **options)
    return [note for note in result.report.notes if note.startswith(f"rule {rule.name}")]


@pytest.mark.parametrize(("count", "said"), [(1, "1 place"), (3, "3 places")])
def test_a_rule_that_makes_nothing_smaller_is_named_with_the_list_that_it_belongs_to(count: int, said: str) -> None:
    layers = "".join(f"s{i} = Add(x{i}, x{i}); x{i + 1} = Relu(s{i});" for i in range(count))
    model = parse("float[4] x0", f"{layers} y = Neg(x{count})", outputs="float[4] y")
    why = "weight stays 190, and no fewer elements are computed or stored"
    text = f"rule split_relu matches at {said} and makes nothing smaller there ({why})"
    assert notes(model, SPLIT) == [f"{text}: list it in TRADES, and the search times it"]


def test_a_rule_that_was_applied_is_not_noted() -> None:
    assert notes(HALVES, Rule("halves", op.Relu(x) - op.Relu(op.Neg(x)), x)) == []


def test_a_rule_that_matches_nowhere_is_noted_with_its_nearest_miss() -> None:
    why = "`x + x` is not an Add, it is the input 'x'"
    where = "nearest at a (Relu), where 1 of 3 parts of its pattern match"
    assert notes(HALVES, SPLIT) == [f"rule split_relu was applied nowhere: {why} ({where})"]


NEVER = """
from graphopt.rule import Rule, const, fn, op, tensor
x, w = tensor("x", "N C H W"), const("w", "M 1 K L")
RULES = (
    Rule("depthwise", op.Relu(op.Relu(op.Conv(x, w, group=fn.size("C")))), op.Relu(op.Conv(x, w, group=fn.size("C")))),
    Rule("as_it_was", op.Relu(op.Reshape(op.Relu(x), fn.sizes("N C H W"))), op.Relu(x)),
)
"""


def test_a_rule_whose_left_side_asks_for_what_only_a_match_tells_is_named(tmp_path: Path) -> None:
    """It is proved all the same: nothing else says why it is not applied."""
    path = tmp_path / "never.py"
    path.write_text(NEVER)
    rest = (
        "on its left side is known only where it has matched; write a hole for a number there, and in `when` what that"
        " equals"
    )
    said = [f"rule depthwise never matches: size('C') {rest}", f"rule as_it_was never matches: sizes('N C H W') {rest}"]
    assert [*graphopt.optimize(HALVES, rules=[path], cost="none", check=False).report.notes[:2]] == said
    done = CliRunner().invoke(app, ["verify", str(path)])
    assert (done.exit_code, done.stderr.splitlines()) == (0, [f"graphopt: warning: {line}" for line in said])
    assert not [*notes_on_unmatchable_rules(load_rules(trades=True))]


@pytest.mark.parametrize("says", ["", "SWEEPS = {'differences': TRADES}"])
def test_trades_and_sweeps_of_a_file_are_tried_by_the_search(tmp_path: Path, says: str) -> None:
    (tmp_path / "mine.py").write_text(MINE + says)
    cost = "measured" if says else "analytic"
    result = graphopt.optimize(HALVES, rules=[tmp_path / "mine.py"], cost=cost, seconds=5)
    assert result.ok and "difference_of_halves" in result.report.counts


def test_a_rule_on_a_function_of_the_model_that_is_kept_is_named() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 20, "tests.idle": 1]>
        g (float[4] x) => (float[4] y) { a = tests.idle.Twice(x)  y = Neg(a) }
        <domain: "tests.idle", opset_import: ["": 20]> Twice (x) => (y) { y = Add(x, x) }"""
    )
    (note,) = notes(model, LATER, inline_functions=False)
    assert "tests.idle.Twice is a function of the model" in note and "without --keep-functions" in note
    (note,) = notes(model, LATER)
    assert "is not a Twice, it is the output of a (Add)" in note
