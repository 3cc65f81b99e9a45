"""Rules of the user's that are true and not applied: the notes say why, and where such rules belong."""

from pathlib import Path
from typing import Any

import onnx
import pytest

import graphopt
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
