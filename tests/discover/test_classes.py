"""Terms by what they compute, and what is derived of them already."""

import pytest

from graphopt.base.errors import UsageError
from graphopt.discover.derivation import Derivation, WorldTerms
from graphopt.discover.equivalence_classes import EqualTerms, EquivalenceClasses
from graphopt.discover.worlds import ELEMENTS, IMAGES, MATRICES, World, resolve_operators
from graphopt.language.rule import Rule
from graphopt.language.terms import Term, const, fn, integer, op, tensor

x, y, z, c = (tensor(name, axes) for name, axes in (("x", "N N"), ("y", "N N"), ("z", "N N"), ("c", "N 1")))
any_x, any_y, any_z = tensor("x"), tensor("y"), tensor("z")


def equal(world: World, size: int, *operators: str) -> list[str]:
    """The equal terms of a world, as text."""
    classes = EquivalenceClasses(world, world.choices(operators), 0, size)
    return [f"{each.term} = {each.other}" for _ in range(size) for each in classes.grow()]


def test_terms_that_compute_the_same_are_in_one_class() -> None:
    assert "Neg(Neg(x)) = x" in equal(MATRICES, 2, "Neg")
    assert "Relu(Relu(x)) = Relu(x)" in equal(MATRICES, 2, "Relu")
    assert "x @ y @ z = x @ (y @ z)" in equal(MATRICES, 2, "MatMul")
    assert "Conv(x * k, w, pads=[1, 1]) = Conv(x, w * k, pads=[1, 1])" in equal(IMAGES, 2, "Conv", "Mul")


def test_the_real_numbers_are_asked_where_the_field_knows_no_order() -> None:
    found = equal(MATRICES, 2, "Add", "ReduceMax")
    assert "ReduceMax(x + c, [-1], keepdims=1) = c + ReduceMax(x, [-1], keepdims=1)" in found


def test_a_softmax_does_not_see_a_shift() -> None:
    assert "Softmax(x + c, axis=-1) = Softmax(x, axis=-1)" in equal(MATRICES, 2, "Add", "Softmax")


def test_of_equations_that_differ_in_names_one_is_told() -> None:
    assert len([text for text in equal(MATRICES, 2, "Neg") if text.count("Neg") == 2]) == 1


def test_the_same_terms_in_the_same_order_for_a_seed() -> None:
    assert equal(ELEMENTS, 2, "Add", "Mul") == equal(ELEMENTS, 2, "Add", "Mul")


def test_what_does_not_fit_into_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphopt.discover.equivalence_classes.MAX_TERMS", 300)
    with pytest.raises(UsageError, match=r"terms of 2 operators in the world of matrices, .* --ops"):
        equal(MATRICES, 2, "Add", "MatMul")


def test_operators_are_named_alone_or_as_classes() -> None:
    assert resolve_operators(["Relu", "movement"]) == ("Relu", "Transpose", "Concat", "Split")
    with pytest.raises(UsageError, match="no operator 'Rellu'; did you mean 'Relu'"):
        resolve_operators(["Rellu"])


# -- what is derived ---------------------------------------------------------------------------------------------------


def derivation(*rules: Rule, world: World = MATRICES) -> Derivation:
    choices = world.choices(resolve_operators(["arithmetic", "movement", "linear", "Relu"]))
    return Derivation(WorldTerms(world, choices, EquivalenceClasses(world, choices, 0, 0).evaluators[0]), rules)


def turned(matrix: Term) -> Term:
    return op.Transpose(matrix, perm=(1, 0))


ASSOCIATIVE = Rule("associative", (any_x + any_y) + any_z, any_x + (any_y + any_z))
UNDO = Rule("undo", op.Neg(op.Neg(any_x)), any_x)
PRODUCT = Rule(
    "product",
    turned(tensor("a", "M K") @ tensor("b", "K N")),
    turned(tensor("b", "K N")) @ turned(tensor("a", "M K")),
)


@pytest.mark.parametrize(
    ("rule", "one", "other"),
    [
        (UNDO, op.Neg(op.Neg(x + y)), x + y),
        (ASSOCIATIVE, (x + y) + (z + x), x + ((z + x) + y)),
        (ASSOCIATIVE, y + (z + x), z + (x + y)),
        (
            PRODUCT,
            op.Relu(op.Transpose(x @ c, perm=(1, 0))),
            op.Relu(op.Transpose(c, perm=(1, 0)) @ op.Transpose(x, perm=(1, 0))),
        ),
    ],
)
def test_both_sides_lead_to_one_term(rule: Rule, one: Term, other: Term) -> None:
    assert derivation(rule).derives(one, other)
    assert not derivation().derives(one, other)


def test_a_rule_matches_only_where_shapes_are_as_it_declares() -> None:
    square = Rule("square", op.Neg(op.Neg(tensor("a", "M M"))), tensor("a", "M M"))
    assert derivation(square).derives(op.Neg(op.Neg(x)), x)
    assert not derivation(square).derives(op.Neg(op.Neg(c)), c)


def test_a_rule_matches_only_where_its_conditions_hold() -> None:
    axis = integer("axis")
    left = op.Concat(op.Relu(any_x), op.Relu(any_y), axis=axis)
    last = Rule("last", left, op.Relu(op.Concat(any_x, any_y, axis=axis)), fn.eq(axis, -1))
    for number, holds in ((-1, True), (-2, False)):
        one, other = op.Concat(op.Relu(x), op.Relu(y), axis=number), op.Relu(op.Concat(x, y, axis=number))
        assert derivation(last).derives(one, other) == holds


def test_sizes_that_an_operator_reads_are_said_in_the_words_of_the_world() -> None:
    def filtered(image: Term, weights: Term, channels: str) -> Term:
        return op.Conv(image, weights, group=fn.size(channels), pads=(1, 1))

    one, other, weights = (tensor(name, axes) for name, axes in (("a", "B C L"), ("b", "B C L"), ("w", "C 1 K")))
    linear = Rule(
        "linear", filtered(one + other, weights, "C"), filtered(one, weights, "C") + filtered(other, weights, "C")
    )
    image, beside, each = (tensor(name, axes) for name, axes in (("x", "N N L"), ("y", "N N L"), ("d", "N 1 K")))
    whole, parts = filtered(image + beside, each, "N"), filtered(image, each, "N") + filtered(beside, each, "N")
    assert derivation(linear, world=IMAGES).derives(whole, parts)
    assert not derivation(world=IMAGES).derives(whole, parts)


def test_what_is_said_of_constants_is_taken_to_hold() -> None:
    d = const("d")
    assert derivation(Rule("quotient", any_x * d / d, any_x, fn.is_nonzero(d))).derives(x * y / y, x)


def test_equal_terms_are_as_good_as_a_rule() -> None:
    found = derivation()
    found.add_equal(EqualTerms(x - x, y - y).term, y - y)
    assert found.normalize(y - y) == y - y  # neither side says what the other is made of
