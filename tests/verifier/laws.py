"""Rules that say what no case shows: which nodes the exact model tells apart, and what a proof tries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graphopt.language.proof import Model
from graphopt.language.rule import Rule, attributes, const, integer, integers, op, tensor
from graphopt.language.term import App, Term, applications
from graphopt.verifier.prove import prove

x, y, m, o = tensor("x"), tensor("y"), tensor("x", "M N"), tensor("o", "M N")
c, d = const("c"), const("d")
u, v = const("u", "M L"), const("v", "L N")


@dataclass(frozen=True)
class Law:
    """A rule, and whether it holds bit for bit."""

    rule: Rule
    is_exact: bool

    @property
    def operators(self) -> frozenset[str]:
        return operators_of(self.rule)

    def holds(self) -> bool:
        proof = prove(self.rule, refute=False)
        return (proof.holds and proof.model is Model.EXACT) == self.is_exact


def operators_of(rule: Rule) -> frozenset[str]:
    return frozenset(app.op for side in (*rule.left, *rule.right) for app in applications(side))


def law(name: str, left: object, right: object, is_exact: bool) -> Law:
    return Law(Rule(name, left, right), is_exact)  # type: ignore[arg-type]


LAWS = (
    law("greater_is_not_less", op.Greater(x, y), op.Less(x, y), False),
    law("greater_turns_round", op.Greater(x, y), op.Less(y, x), True),
    law("greater_or_equal_turns_round", op.GreaterOrEqual(x, y), op.LessOrEqual(y, x), True),
    law("less_is_not_less_or_equal", op.Less(x, y), op.LessOrEqual(x, y), False),
    law(
        "what_is_less_or_equal_is_a_truth_value",
        op.Where(op.LessOrEqual(x, y), x, y),
        op.Where(op.Not(op.LessOrEqual(x, y)), y, x),
        True,
    ),
    law("a_sum_that_is_folded_is_another", op.Mul(op.Add(c, d), x), op.Mul(op.Add(d, c), x), False),
    law("a_sum_that_is_run_is_the_same", op.Mul(op.Add(y, d), x), op.Mul(op.Add(d, y), x), True),
    law("a_product_that_is_folded_is_another", op.Add(u @ v, o), op.Add(u @ op.Identity(v), o), False),
    law("the_last_axis_by_either_number", op.ReduceSum(m, (1,)), op.ReduceSum(m, (-1,)), True),
    law("the_last_place_by_either_number", op.ArgMax(m, axis=1), op.ArgMax(m, axis=-1), True),
    law("exp_of_log", op.Exp(op.Identity(x)), op.Exp(x), True),
)


COVERED: Mapping[str, tuple[tuple[Term | None, ...], str, int]] = {
    "Reshape": ((integers("s"),), "0–4, s of 0–4 numbers", 50),
    "Unsqueeze": ((integers("s"),), "0–5", 145),
    "Squeeze": ((integers("s"),), "0–4", 89),
    "Slice": ((integers("s"), integers("e"), integers("a"), integers("t")), "1–4, s of 0–4 numbers", 93),
    "Expand": ((integers("s"),), "0–4, s of 0–4 numbers", 25),
    "Tile": ((integers("s"),), "0–4", 5),
    "Pad": ((integers("s"), None, integers("a")), "0–4", 376),
    "CumSum": ((integer("s"),), "1–4", 80),
    "Gather": ((integers("s"),), "1–4, s of 0–3 numbers", 80),
    "ReduceMax": ((integers("s"),), "0–4", 376),
    "Trilu": ((integer("s"),), "2–4", 6),
    "Transpose": ((), "0–4", 34),
    "Flatten": ((), "0–4", 25),
    "Softmax": ((), "1–4", 20),
    "LogSoftmax": ((), "1–4", 20),
    "ArgMax": ((), "0–4", 80),
    "Shape": ((), "0–4", 320),
    "LpNormalization": ((), "1–4", 40),
    "IsInf": ((), "all", 8),
    "Gelu": ((), "all", 4),
    "DepthToSpace": ((), "4–4", 2),
    "MaxPool": ((), "3–4", 16),
    "AveragePool": ((), "3–4", 32),
    "LpPool": ((), "3–4", 16),
    "Split": ((), "1–4", 20),
}
"""Of an operator whose attributes are left open: its other inputs, the ranks that a proof covers, how many cases."""


def is_covered(name: str) -> bool:
    """Whether a proof tries what is on record: all axes, modes and lengths of lists."""
    others, reach, cases = COVERED[name]
    left, right = (App(name, (first, *others, attributes("rest"))) for first in (op.Identity(x), x))
    proof = prove(Rule("identity_before_it", left, right), refute=False)
    return (proof.model, proof.reach, proof.cases) == (Model.EXACT, reach, cases)
