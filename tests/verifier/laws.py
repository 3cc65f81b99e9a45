"""Rules that say what no case shows: which nodes the exact model tells apart, and what a proof tries."""

from __future__ import annotations

from dataclasses import dataclass

from graphopt.proof import Model
from graphopt.rule import Rule, const, op, tensor
from graphopt.term import applications
from graphopt.verifier.prove import prove

x, y, z = (tensor(name) for name in "xyz")
m, n, o = tensor("m", "M K"), tensor("n", "K N"), tensor("o", "M N")
c, d = const("c"), const("d")
u, v = const("u", "K L"), const("v", "L N")


@dataclass(frozen=True)
class Law:
    """A rule, and whether it holds bit for bit."""

    rule: Rule
    is_exact: bool

    @property
    def operators(self) -> frozenset[str]:
        return frozenset(app.op for side in (*self.rule.left, *self.rule.right) for app in applications(side))

    def holds(self) -> bool:
        proof = prove(self.rule, refute=False)
        return (proof.holds and proof.model is Model.EXACT) == self.is_exact


def law(name: str, left: object, right: object, is_exact: bool) -> Law:
    return Law(Rule(name, left, right), is_exact)  # type: ignore[arg-type]


LAWS = (
    law("greater_is_not_less", op.Greater(x, y), op.Less(x, y), False),
    law("greater_turns_round", op.Greater(x, y), op.Less(y, x), True),
    law("greater_or_equal_turns_round", op.GreaterOrEqual(x, y), op.LessOrEqual(y, x), True),
    law("less_is_not_less_or_equal", op.Less(x, y), op.LessOrEqual(x, y), False),
    law("folded_is_not_run", op.Neg(op.Add(c, d)), op.Sub(0.0, op.Add(c, d)), False),
    law("a_folded_product_is_another", op.MatMul(op.MatMul(m, u), v), op.MatMul(m, op.MatMul(u, v)), False),
    law("exp_of_log", op.Exp(op.Identity(x)), op.Exp(x), True),
)
