"""From two equal terms of a world to rules that are proved, as general as they can be."""

import pytest

from graphopt.discover.equation_proving import EquationAnswer, EquationStatus, EquationTask, prove_equation
from graphopt.discover.equivalence_classes import EqualTerms
from graphopt.discover.generalization import canonical_text, find_runtime_difference
from graphopt.discover.horizontal_fusion import merge_branches
from graphopt.language.proof import Proof, ProofModel, Verdict
from graphopt.language.rule import Rule
from graphopt.language.terms import Term, attributes, fn, op, tensor

x, y, z, c = (tensor(name, axes) for name, axes in (("x", "N N"), ("y", "N N"), ("z", "N N"), ("c", "N 1")))
EXACT = Proof("any", "", Verdict.PROVED, model=ProofModel.EXACT)
image, w, v = tensor("x", "N N L"), tensor("w", "N N K"), tensor("v", "N N K")


def settled(term: Term, other: Term, world: str = "matrices") -> EquationAnswer:
    return prove_equation(EquationTask(world, EqualTerms(term, other)))


def said(found: EquationAnswer) -> list[tuple[str, dict[str, str]]]:
    """The rules as text, with the axes of their holes."""
    return [(str(rule), {h.name: " ".join(h.axes) for h in rule.holes.values() if h.axes}) for rule, _ in found.rules]


def test_what_holds_for_all_ranks_and_axes_says_so() -> None:
    found = settled(op.Concat(op.Relu(x), op.Relu(y), axis=-1), op.Relu(op.Concat(x, y, axis=-1)))
    assert said(found) == [("Concat(Relu(x), Relu(y), axis=axis)  ->  Relu(Concat(x, y, axis=axis))", {})]


def test_sizes_that_have_to_be_the_same_have_one_name() -> None:
    (_, axes), *_ = said(settled(x @ (y + z), (x @ y) + (x @ z)))
    assert axes["y"] == axes["z"] and axes["x"].split()[-1] == axes["y"].split()[-2]


@pytest.mark.slow
def test_stacks_of_matrices_and_matrices_by_themselves_are_two_rules() -> None:
    found = said(settled((x @ y) @ z, x @ (y @ z)))
    assert {axes["y"] for _, axes in found} == {"*b B C", "B C"}


@pytest.mark.slow
def test_images_may_have_any_number_of_axes() -> None:
    found = said(
        settled(
            op.Conv(image, w, pads=(1, 1)) + op.Conv(image, v, pads=(1, 1)),
            op.Conv(image, w + v, pads=(1, 1)),
            "images",
        )
    )
    assert [axes["x"] for _, axes in found] == ["A B *s"] and "Conv(x, v + w, …)" in found[0][0].replace(
        "w + v", "v + w"
    )


@pytest.mark.slow
def test_what_does_not_hold_for_groups_holds_without() -> None:
    joined, whole = op.Concat(conv(w), conv(v), axis=1), conv(op.Concat(w, v, axis=0))
    text, _ = said(settled(joined, whole, "images"))[0]
    one, other = text.split("  ->  ")
    assert one == "Concat(Conv(x, w, group=1, …), Conv(x, v, group=1, …), axis=1)"
    assert other == "Conv(x, Concat(w, v, axis=0), group=1, …)"


def conv(weights: Term) -> Term:
    return op.Conv(image, weights, pads=(1, 1))


def test_a_condition_that_is_missing_is_found() -> None:
    found = settled(0.0 - x, op.Neg(x))
    assert [str(rule) for rule, _ in found.rules] == ["0.0 - x  ->  Neg(x)  where is_float(dtype(x))"]
    quotient = settled(tensor("x", "S") * tensor("y", "S") / tensor("y", "S"), tensor("x", "S"), "elements")
    assert {str(rule.when) for rule, _ in quotient.rules} == {"is_nonzero(y)"}


def test_each_direction_that_somebody_may_want_is_a_rule() -> None:
    """The reverse of what makes a term lighter is wanted by no one."""
    assert len(settled(op.Transpose(op.Neg(x), perm=(1, 0)), op.Neg(op.Transpose(x, perm=(1, 0)))).rules) == 2
    assert len(settled(op.Neg(op.Neg(x)), x).rules) == 1


@pytest.mark.parametrize(
    ("term", "other", "fate"),
    [
        (op.Relu(op.ReduceMax(c, (-2,), keepdims=1)), op.ReduceMax(c, (-2,), keepdims=1), EquationStatus.REFUTED),
        (x - x, y - y, EquationStatus.UNWRITTEN),
        (x @ y, op.Transpose(x, perm=(1, 0)) @ y, EquationStatus.ACCIDENT),
    ],
)
def test_what_is_no_rule_says_why(term: Term, other: Term, fate: EquationStatus) -> None:
    found = settled(term, other)
    assert found.fate is fate and not found.rules
    assert ("as run by ONNX Runtime" in found.detail) == (fate is EquationStatus.REFUTED)


def test_an_answer_is_data() -> None:
    found = settled(op.Neg(op.Neg(x)), x)
    assert EquationAnswer.from_json(found.to_json()) == found


def test_branches_that_share_an_input_become_one_operator() -> None:
    a, b, d = tensor("x", "*b M K"), tensor("w", "K N"), tensor("v", "K P")
    joined = Rule("joined", op.Concat(a @ b, a @ d, axis=-1), a @ op.Concat(b, d, axis=-1))
    (rule,) = merge_branches([joined])
    assert str(rule) == "x @ w, x @ v  ->  " + ", ".join(
        f"Split(x @ Concat(w, v, axis=-1), sizes('N P'), axis=-1)[{i}]" for i in range(2)
    )


@pytest.mark.slow
def test_rules_with_two_outputs_are_proved_and_run_as_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    side_by_side, whole = op.Concat(x @ y, x @ z, axis=-1), x @ op.Concat(y, z, axis=-1)
    assert any(len(rule.left) == 2 for rule, _ in settled(side_by_side, whole).rules)
    monkeypatch.setattr(
        "graphopt.discover.equation_proving.find_runtime_difference", lambda rule, _: "differs" * (len(rule.left) - 1)
    )
    assert settled(side_by_side, whole).fate is EquationStatus.REFUTED


def test_a_wrong_order_of_two_outputs_is_seen_when_it_is_run() -> None:
    parts = op.Split.split(2, x @ op.Concat(y, z, axis=-1), fn.sizes("N N"), axis=-1)
    assert find_runtime_difference(Rule("parts", (x @ y, x @ z), parts), EXACT) == ""
    assert "values differ" in find_runtime_difference(Rule("parts", (x @ y, x @ z), parts[::-1]), EXACT)


@pytest.mark.slow
def test_what_is_proved_of_floats_is_not_refuted_by_whole_numbers() -> None:
    """Their mean is rounded, and so no rule over the real numbers is used for them."""
    found = settled(op.ReduceMean(x @ y, (-2,), keepdims=1), op.ReduceMean(x, (-2,), keepdims=1) @ y)
    assert found.fate is EquationStatus.PROVED and any("*b" in (rule.holes["x"].axes or ()) for rule, _ in found.rules)


def test_branches_that_are_convolutions_lie_beside_in_their_channels() -> None:
    a, b, d = tensor("x", "N C *s"), tensor("w", "M C *k"), tensor("v", "P C *k")
    rest = attributes("rest")
    joined = Rule(
        "joined",
        op.Concat(op.Conv(a, b, rest), op.Conv(a, d, rest), axis=1),
        op.Conv(a, op.Concat(b, d, axis=0), rest),
    )
    (rule,) = merge_branches([joined])
    assert "sizes('M P'), axis=1)[0]" in str(rule)


def test_names_do_not_matter() -> None:
    assert canonical_text([x + y]) == canonical_text([z + x]) != canonical_text([x + x])
