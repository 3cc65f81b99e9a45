"""What the solver is asked, and so what is proved, is the same in each process and whatever was proved before."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import z3

from graphopt.expr.expressions import Expr
from graphopt.expr.integers import Formula, Polynomial, conjunction, disjunction, eq, ge, lt, symbol
from graphopt.language import rule_library
from graphopt.language.proof import ProofModel, Verdict
from graphopt.language.rule import Rule, const, op, tensor
from graphopt.language.terms import App, TermLike
from graphopt.verifier.context import ProofContext
from graphopt.verifier.equality import Equality
from graphopt.verifier.prove import prove
from graphopt.verifier.solver import SolverSession, is_unsatisfiable

RULES_BY_NAME = {rule.name: rule for rule in rule_library.load_library().all_rules}
RULES = ("eliminate_tile_before_binary", "fuse_pad_into_conv")
QUESTIONS = """
import sys
from hashlib import sha256

import z3

from graphopt.language.rule_library import load_rules
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
    effort = SolverSession(steps=1_000)
    assert not is_unsatisfiable(prime, effort)
    assert is_unsatisfiable([*prime, ge(1_000, a * b)], effort)
    assert effort.question_count == 2


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


LIKE_IT: dict[str, Callable[[Polynomial, Polynomial, Polynomial], tuple[list[Formula], list[Formula]]]] = {
    "between": lambda a, b, c: ([ge(a, 40), ge(60, a)], [ge(a, 30 + i) for i in range(6)]),
    "multiples": lambda a, b, c: ([ge(a, 20), eq(a, 7 * b)], [ge(a, i) for i in range(6)]),
    "factors": lambda a, b, c: ([eq(a * b, 77), ge(a, 2), ge(b, 2)], [ge(a + b, i) for i in range(6)]),
    "quotients": lambda a, b, c: ([eq(a // 5, 3), ge(a, 17)], [ge(a, i) for i in range(6)]),
    "larger": lambda a, b, c: ([ge(a, 1_000), ge(b, a)], [ge(b * i, a) for i in range(1, 7)]),
    "products": lambda a, b, c: ([ge(a, 33), eq(a % 6, 5), ge(c, a * b)], [ge(c, a * b - i) for i in range(6)]),
}


@pytest.mark.parametrize("kind", LIKE_IT)
def test_numbers_that_answer_a_question_answer_those_like_it(kind: str, checks: list[z3.Solver]) -> None:
    facts, goals = LIKE_IT[kind](symbol("a"), symbol("b"), symbol("c"))
    effort = SolverSession()
    assert not any(is_unsatisfiable([*facts, goal], effort) for goal in goals)
    assert effort.question_count > 1
    assert len(checks) <= 2  # of linear integers, then of products


def test_numbers_for_one_question_answer_none_that_they_do_not_fulfil() -> None:
    a, b, effort = symbol("a"), symbol("b"), SolverSession()
    facts = [ge(a, 40), ge(60, a)]
    assert not is_unsatisfiable(facts, effort)
    assert is_unsatisfiable([*facts, ge(30, a)], effort)
    assert is_unsatisfiable([*facts, eq(a % 7, 3), ge(44, a)], effort)
    assert not is_unsatisfiable([*facts, eq(a % 7, 3)], effort)
    assert is_unsatisfiable([*facts, eq(a * b, 37), ge(b, 2)], effort)
    assert not is_unsatisfiable([*facts, eq(a * b, 41)], effort)


def test_what_is_hard_is_asked_apart_from_what_does_not_matter_to_it(checks: list[z3.Solver]) -> None:
    a, b, c, d = map(symbol, "abcd")
    others, effort = [ge(b, 7), eq(b % 3, 1), ge(c, b), ge(2 * b, c)], SolverSession()
    hard = [ge(a, 2), ge(100, a), eq(a % 2), eq(a * a % 4, 1)]
    assert is_unsatisfiable(
        [
            *others,
            disjunction(conjunction(*hard), conjunction(lt(c, b), ge(a * b, 3)), conjunction(eq(b % 3), ge(a * c))),
        ],
        effort,
    )
    asked = len(checks)
    assert is_unsatisfiable([ge(d, 9), disjunction(conjunction(*hard), conjunction(lt(d, 4), ge(a * d, 3)))], effort)
    assert len(checks) <= asked + 2  # the whole, and the alternative that is new
    assert not is_unsatisfiable(
        [*others, disjunction(conjunction(*hard[:3]), conjunction(lt(c, b), ge(a * b, 3)))], effort
    )
    assert is_unsatisfiable(
        [*others, lt(c, b), disjunction(conjunction(*hard[:3], ge(a * a, 4)), eq(a * d, 3))], effort
    )


def test_a_context_of_z3_is_made_once_for_all_models(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[z3.Context] = []
    make = z3.Context.__init__

    def noted(context: z3.Context, *more: object) -> None:
        made.append(context)
        make(context, *more)

    monkeypatch.setattr(z3.Context, "__init__", noted)
    proof = prove(RULES_BY_NAME["absorb_add_into_conv"])
    assert (proof.verdict, proof.model) == (Verdict.PROVED, ProofModel.REAL)
    assert len(made) == 1


x = tensor("x", "M K")
INNER = {
    "squares": (op.ReduceSum(x * x, (1,), keepdims=1), op.ReduceSumSquare(x, (1,), keepdims=1)),
    "magnitudes": (op.ReduceSum(op.Abs(x), (1,), keepdims=1), op.ReduceL1(x, (1,), keepdims=1)),
    "halves": (op.ReduceSum(x, (1,), keepdims=1) * 0.5, op.ReduceSum(x * 0.5, (1,), keepdims=1)),
    "mean": (op.ReduceMean(-x, (1,), keepdims=1), -op.ReduceMean(x, (1,), keepdims=1)),
    "sums": ((x + x) + 1.0, x * 2.0 + 1.0),
}


def bounded(inner: TermLike, times: int, *, swapped: bool) -> App:
    """Return a value between two bounds, that between two others, and so on."""
    for i in range(times):
        low, high = const(f"low{i}", ""), const(f"high{i}", "")
        inner = op.Max(low, op.Min(high, inner)) if swapped else op.Max(op.Min(inner, high), low)
    assert isinstance(inner, App)
    return inner


@pytest.mark.parametrize("name", INNER)
def test_bounds_within_bounds_are_compared_once_each(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    equal = Equality._equal

    def noted(self: Equality, left: Expr, right: Expr, known: ProofContext) -> bool:
        nonlocal asked
        asked += 1
        return equal(self, left, right, known)

    monkeypatch.setattr(Equality, "_equal", noted)
    counts = []
    for times in (1, 5):
        asked = 0
        left, right = (bounded(side, times, swapped=side is INNER[name][1]) for side in INNER[name])
        assert prove(Rule("bounds", left, right), refute=False).holds
        counts.append(asked)
    assert counts[1] <= 10 * counts[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "fuse_consecutive_transposes",
        "absorb_add_into_conv",
        "fuse_sub_add",
        "fuse_bn_into_conv",
        "associate_matmul_to_the_left",
        "fuse_consecutive_squeezes",
    ],
)
def test_what_a_proof_made_is_freed_without_looking_for_it(name: str) -> None:
    """One that fails in the first model leaves nothing either; z3 makes a few types of its own each time."""
    prove(RULES_BY_NAME[name])
    gc.collect()
    gc.disable()
    try:
        assert prove(RULES_BY_NAME[name]).holds
        assert gc.collect() < 500
    finally:
        gc.enable()
