"""No wrong rule is proved: each is refuted by a counterexample that was run, or can never apply."""

import pytest

from graphopt.proof import Model, Verdict
from graphopt.rule import Rule, const, fn, integers, op, tensor
from graphopt.verifier.prove import prove
from tests.verifier.broken import BROKEN, VACUOUS


@pytest.mark.slow
@pytest.mark.parametrize("rule", BROKEN, ids=lambda rule: rule.name)
def test_a_wrong_rule_is_refuted(rule: Rule) -> None:
    proof = prove(rule, timeout=3)
    assert proof.verdict is Verdict.REFUTED, proof
    assert proof.counterexample


@pytest.mark.parametrize("rule", VACUOUS, ids=lambda rule: rule.name)
def test_a_rule_that_can_never_apply_is_vacuous(rule: Rule) -> None:
    assert prove(rule).verdict is Verdict.VACUOUS


def test_there_are_enough_of_them() -> None:
    names = [rule.name for rule in (*BROKEN, *VACUOUS)]
    assert len(names) == len(set(names)) >= 60


x, a, b = tensor("x", "M K"), const("w", "K N"), const("s", "N")
any_, p, q = tensor("y"), integers("p"), integers("q")

RIGHT = (
    (Model.REAL, Rule("scale_into_weights", (x @ a) * b, x @ (a * b))),
    (Model.REAL, Rule("distribute", x * tensor("z", "M K") + x, x * (tensor("z", "M K") + 1.0))),
    (
        Model.EXACT,
        Rule(
            "transposes",
            op.Transpose(op.Transpose(tensor("y", "A B C"), perm=p), perm=q),
            op.Transpose(tensor("y", "A B C"), perm=fn.compose(p, q)),
        ),
    ),
    (Model.EXACT, Rule("commute", any_ + tensor("z"), tensor("z") + any_)),
)


@pytest.mark.parametrize(("model", "rule"), RIGHT, ids=lambda value: getattr(value, "name", str(value)))
def test_a_right_rule_is_proved_in_the_stronger_model_that_holds(model: Model, rule: Rule) -> None:
    proof = prove(rule, timeout=20, refute=False)
    assert (proof.verdict, proof.model) == (Verdict.PROVED, model), proof
