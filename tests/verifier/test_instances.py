"""Which instances of a rule are tried: all that its conditions admit, and no others."""

from graphopt.proof import Verdict
from graphopt.rule import Rule, fn, integers, op, tensor
from graphopt.verifier.prove import prove

x, p, q, axes = tensor("x", "A B C"), integers("p"), integers("q"), integers("axes")


def test_one_permutation_in_six_undoes_another() -> None:
    undone = fn.is_identity(fn.compose(p, q))
    proof = prove(Rule("undone", op.Transpose(op.Transpose(x, perm=p), perm=q), op.Identity(x), when=undone))
    assert (proof.verdict, proof.cases) == (Verdict.PROVED, 6)


def test_a_new_axis_moves_from_each_place_to_each_other() -> None:
    places = fn.compose(fn.inverse(p), fn.normalized(axes, 4))
    moved = fn.is_sorted(fn.without(p, places))
    rule = Rule(
        "moved",
        op.Transpose(op.Unsqueeze(x, axes), perm=p),
        op.Unsqueeze(x, places),
        when=(fn.eq(fn.length(axes), 1), moved),
    )
    proof = prove(rule)
    assert (proof.verdict, proof.cases) == (Verdict.PROVED, 2 * 4 * 4), "counted from the start and from the end"
