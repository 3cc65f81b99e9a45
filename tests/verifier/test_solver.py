"""What the solver is asked, and so what is proved, is the same in each process and whatever was proved before."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest
import z3

from graphopt.base.integers import eq, ge, symbol
from graphopt.base.symbolic import Value
from graphopt.language.library import load_rules
from graphopt.language.rule import Rule, const, fn, op, tensor
from graphopt.language.term import App, Var
from graphopt.verifier import equality
from graphopt.verifier.context import Context
from graphopt.verifier.prove import prove
from graphopt.verifier.solver import Effort, refuted

RULES = ("eliminate_tile_before_binary", "fuse_pad_into_conv")
QUESTIONS = """
import sys
from hashlib import sha256

import z3

from graphopt.language.library import load_rules
from graphopt.verifier.prove import prove

check, asked = z3.Solver.check, []


def noted(solver):
    asked.append(solver.sexpr())
    return check(solver)


z3.Solver.check = noted
rules = {rule.name: rule for rule in load_rules()}
for name in sys.argv[1:]:
    asked.clear()
    proof = prove(rules[name], timeout=100)
    print(name, proof.verdict, proof.cases, len(asked), sha256("".join(asked).encode()).hexdigest())
"""


def proofs(hash_seed: int, *names: str) -> list[str]:
    """A line for each rule: what came of it, and a digest of all that Z3 was asked."""
    env = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    command = [sys.executable, "-c", QUESTIONS, *names]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.slow
def test_each_process_asks_the_same_questions_whatever_was_proved_before() -> None:
    one, other = proofs(1, *RULES), proofs(2, *reversed(RULES))
    assert one == other[::-1]
    assert [line.split()[:2] for line in one] == [[name, "PROVED"] for name in RULES]


def test_what_takes_too_many_steps_is_not_refuted() -> None:
    a, b = symbol("a"), symbol("b")
    prime = [eq(a * b, 1_000_003), ge(a, 2), ge(b, 2)]
    effort = Effort(steps=1_000)
    assert not refuted(prime, effort)
    assert refuted([*prime, ge(1_000, a * b)], effort)
    assert effort.asked == 2


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[z3.Solver]:
    """The solvers that are asked."""
    asked: list[z3.Solver] = []
    check = z3.Solver.check

    def noted(solver: z3.Solver) -> z3.CheckSatResult:
        asked.append(solver)
        return check(solver)

    monkeypatch.setattr(z3.Solver, "check", noted)
    return asked


a, b, c = symbol("a"), symbol("b"), symbol("c")


@pytest.mark.parametrize(
    ("facts", "goals"),
    [
        ([ge(a, 40), ge(60, a)], [ge(a, 41 + i) for i in range(6)]),
        ([ge(a, 20), eq(a, 7 * b)], [ge(30 + i, a) for i in range(6)]),
        ([eq(a * b, 77), ge(a, 2), ge(b, 2)], [ge(c, i) for i in range(6)]),
        ([eq(a // 5, 3), ge(a, 17)], [eq(a % 5, i) for i in (0, 1)]),
        ([ge(a, 1_000), ge(b, a)], [ge(b, 1_000 + a * i) for i in range(2, 8)]),
    ],
    ids=["between", "multiples", "factors", "remainders", "products"],
)
def test_numbers_that_answer_a_question_answer_those_like_it(
    facts: list[object], goals: list[object], checks: list[z3.Solver]
) -> None:
    effort = Effort()
    for goal in goals:
        assert not refuted([*facts, goal], effort)  # type: ignore[list-item]
    assert 0 < len(checks) < len(goals)


def test_numbers_for_one_question_do_not_answer_another_that_they_do_not_fulfil() -> None:
    effort = Effort()
    assert not refuted([ge(a, 40), ge(60, a)], effort)
    assert refuted([ge(a, 40), ge(30, a)], effort)
    assert refuted([ge(a, 40), ge(60, a), eq(a % 7, 3), ge(44, a), ge(a, 39 + 1), eq(a % 2)], effort)
    assert not refuted([ge(a, 40), ge(60, a), eq(a % 7, 3)], effort)


def test_a_context_of_z3_is_made_once_for_all_models(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[z3.Context] = []
    make = z3.Context.__init__

    def noted(context: z3.Context, *more: object) -> None:
        made.append(context)
        make(context, *more)

    monkeypatch.setattr(z3.Context, "__init__", noted)
    rule = next(rule for rule in load_rules() if rule.name == "merge_2_parallel_convs")
    assert prove(rule).holds
    assert len(made) == 1


x = tensor("x", "*b K")


def nested(depth: int) -> Var | App:
    """Return bounds within bounds."""
    return x if not depth else op.Min(op.Max(nested(depth - 1), const(f"a{depth}", "K")), const(f"b{depth}", "K"))


@pytest.mark.parametrize("around", [op.Relu, op.Neg, op.Abs, op.Sigmoid, lambda y: op.ReduceMax(y, (-1,))])
def test_bounds_within_bounds_are_compared_once_each(around: object, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Value, Value, Context]] = []
    equal = equality.Equality._equal

    def noted(self: equality.Equality, left: Value, right: Value, known: Context) -> bool:
        asked.append((left, right, known))
        return equal(self, left, right, known)

    monkeypatch.setattr(equality.Equality, "_equal", noted)
    counts = []
    for depth in (2, 3, 4):
        asked.clear()
        y = nested(depth)
        rows = op.Reshape(around(y), (-1, 1))  # type: ignore[operator]
        proof = prove(Rule("rows", rows, op.Reshape(around(op.Identity(y)), (-1, 1))), refute=False)  # type: ignore[operator]
        assert proof.holds, proof
        assert len({(left, right, id(known)) for left, right, known in asked}) == len(asked)
        counts.append(len(asked))
    assert counts


@pytest.mark.parametrize(
    "name",
    [
        "eliminate_transpose_of_constant",
        "fuse_consecutive_transposes",
        "fuse_bn_into_conv",
        "fuse_pad_into_conv",
        "merge_2_parallel_convs",
        "fuse_transposes_around_slice",
    ],
)
def test_nothing_is_left_of_a_proof_that_has_to_be_looked_for(name: str) -> None:
    rule = next((rule for rule in load_rules() if rule.name == name), None)
    if rule is None:
        pytest.skip("no such rule")
    prove(rule)
    gc.collect()
    gc.disable()
    try:
        assert prove(rule).holds
        assert gc.collect() < 1_000
    finally:
        gc.enable()
