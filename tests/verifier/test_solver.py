"""What the solver is asked, and so what is proved, is the same in each process and whatever was proved before."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from graphopt.base.integers import eq, ge, symbol
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
