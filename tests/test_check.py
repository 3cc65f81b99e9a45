"""The check of a result: a difference is refused, and the rewrite that made it is named."""

from pathlib import Path

import pytest

import graphopt
from graphopt.check import bisect
from graphopt.errors import DifferenceError
from tests.test_pipeline import model
from tests.text import parse

WRONG = """
from graphopt.rule import Rule, op, tensor
RULES = (Rule("forget_relu", op.Relu(op.Neg(tensor("x"))), op.Neg(tensor("x"))),)
"""


def test_a_difference_is_refused_and_traced_to_the_rule(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(WRONG)
    given = parse("float[4] x", "a = Exp(x); b = Identity(a); n = Neg(b); y = Relu(n)", outputs="float[4] y")
    with pytest.raises(DifferenceError, match="the rule 'forget_relu' at"):
        graphopt.optimize(given, rules=[tmp_path / "wrong.py"], unverified=True, cost="none")


def test_what_cannot_be_run_whole_is_compared_rewrite_by_rewrite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphopt.check.LARGE", 0)
    assert graphopt.optimize(model(), cost="none").ok
    (tmp_path / "wrong.py").write_text(WRONG)
    given = parse("float[4] x", "n = Neg(x); y = Relu(n)", outputs="float[4] y")
    with pytest.raises(DifferenceError, match="the rule 'forget_relu' at"):
        graphopt.optimize(given, rules=[tmp_path / "wrong.py"], unverified=True, cost="none")


@pytest.mark.parametrize("guilty", [0, 1, 41, 99])
def test_bisect_finds_the_first_bad_step(guilty: int) -> None:
    asked: list[int] = []

    def agrees(count: int) -> bool:
        asked.append(count)
        return count <= guilty

    assert bisect(100, agrees) == guilty
    assert len(asked) <= 7
