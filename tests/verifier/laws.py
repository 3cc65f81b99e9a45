"""Rules that say what no case shows: which nodes the exact model tells apart, and what a proof tries."""

from __future__ import annotations

from dataclasses import dataclass

from graphopt.proof import Model
from graphopt.rule import Rule, const, op, tensor
from graphopt.term import applications
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
