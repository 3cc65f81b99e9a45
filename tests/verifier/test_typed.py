"""What the element types of operands say of an operator that is not looked into: no more is proved, and no less."""

import pytest

from graphopt.language.proof import ProofModel, Verdict
from graphopt.language.rule import Rule, attributes, const, integer, op, tensor
from graphopt.language.terms import App, Term
from graphopt.verifier.prove import prove
from tests.verifier.broken import typed
from tests.verifier.broken.typed import (
    BOOL,
    DOUBLE,
    FLOAT,
    HALF,
    INT32,
    INT64,
    TEXT,
    UINT8,
    bias,
    fits,
    image,
    in_double,
    mask,
    masked,
    mean,
    of,
    perm,
    place,
    q,
    rows,
    scale,
    to,
    variance,
    weights,
    x,
    y,
)

rest, axis = attributes("rest"), integer("axis")
data, places, updates = tensor("d", "M N"), tensor("i", "K N"), tensor("u", "K N")
scores, labels = tensor("s", "M C"), tensor("l", "M")
narrow = of(INT32, places)


def updated(where: Term) -> App:
    return op.ScatterElements(data, where, updates)


ROUNDED = (
    Rule("norm_by_scales_in_double", op.BatchNormalization(image, *in_double(scale, bias), mean, variance),
         op.BatchNormalization(image, scale, bias, mean, variance), when=of(FLOAT, image, scale, bias, mean, variance)),
    Rule("norm_by_statistics_in_double", op.BatchNormalization(image, scale, bias, *in_double(mean, variance)),
         op.BatchNormalization(image, scale, bias, mean, variance), when=of(FLOAT, image, scale, bias, mean, variance)),
    Rule("root_norm_by_a_wider_scale", op.Cast(op.RMSNormalization(rows, weights), to=FLOAT),
         op.RMSNormalization(rows, to(weights, FLOAT)), when=(*of(FLOAT, rows), *of(HALF, weights))),
    Rule("mask_in_double", masked(to(mask, DOUBLE)), masked(mask), when=(*fits, *of(FLOAT, mask, q))),
    Rule("power_by_a_number_of_any_type", op.Transpose(op.Pow(x, 4.0), perm=perm),
         op.Pow(op.Transpose(x, perm=perm), 4.0)),
    Rule("power_by_an_identity_matrix", op.Pow(x, op.EyeLike(tensor("m", "A B"))),
         op.Pow(x, op.EyeLike(tensor("m", "A B"), dtype=FLOAT))),
)  # fmt: skip
"""The same over the real numbers, and not bit for bit: kernels round in the types of all operands."""

RIGHT = (
    Rule("places_of_updates_in_64_bits", updated(to(places, INT64)), updated(places), when=narrow),
    Rule("places_of_elements_in_64_bits", op.GatherElements(data, to(places, INT64), axis=1),
         op.GatherElements(data, places, axis=1), when=narrow),
    Rule("places_of_rows_in_64_bits", op.Gather(data, to(places, INT64), axis=0), op.Gather(data, places, axis=0),
         when=narrow),
    Rule("labels_in_64_bits", op.NegativeLogLikelihoodLoss(scores, to(labels, INT64)),
         op.NegativeLogLikelihoodLoss(scores, labels), when=of(INT32, labels)),
    Rule("mask_of_truths_twice", masked(to(to(mask, FLOAT), BOOL)), masked(mask),
         when=(*fits, *of(BOOL, mask), *of(FLOAT, q))),
    Rule("power_by_a_constant_moved", op.Transpose(op.Pow(x, const("e", "")), perm=perm),
         op.Pow(op.Transpose(x, perm=perm), const("e", ""))),
    Rule("text_of_what_is_at_least_zero", to(op.Relu(op.Relu(x)), TEXT), to(op.Relu(x), TEXT)),
    Rule("text_of_a_truth_cast_twice", to(to(to(x, UINT8), INT32), TEXT), to(to(x, INT32), TEXT), when=of(BOOL, x)),
    Rule("truth_compared_as_a_number", op.Equal(to(x, INT32), to(y, INT32)), op.Equal(x, y), when=of(BOOL, x, y)),
)  # fmt: skip

PLACED = (
    Rule("place_in_a_wider_float", place(to(rows, DOUBLE)), place(rows), when=of(FLOAT, rows)),
    Rule("place_in_a_narrower_float", place(rows), place(to(rows, DOUBLE)), when=of(FLOAT, rows)),
    Rule("place_of_the_greatest_weight", place(op.Softmax(rows, axis=1)), place(rows)),
    Rule("place_of_the_greatest_logarithm_of_weights", place(op.LogSoftmax(rows, axis=1)), place(rows)),
    Rule("place_of_moved_weights", op.ArgMax(op.Transpose(op.Softmax(rows, axis=1), perm=(1, 0)), axis=0),
         op.ArgMax(op.Transpose(rows, perm=(1, 0)), axis=0)),
)  # fmt: skip
"""What a cast loses nothing of is not rounded; weights of a softmax that tie are equal but for rounding, and the place
of either is right."""


@pytest.mark.parametrize("rule", RIGHT, ids=lambda rule: rule.name)
def test_where_a_type_says_nothing_the_two_sides_are_the_same(rule: Rule) -> None:
    proof = prove(rule, refute=False)
    assert (proof.verdict, proof.model) == (Verdict.PROVED, ProofModel.EXACT), proof


@pytest.mark.parametrize("rule", ROUNDED, ids=lambda rule: rule.name)
def test_what_rounds_in_another_type_is_not_the_same_bit_for_bit(rule: Rule) -> None:
    proof = prove(rule, refute=False)
    assert proof.verdict is Verdict.PROVED and proof.model is not ProofModel.EXACT, proof


@pytest.mark.parametrize("rule", PLACED, ids=lambda rule: rule.name)
def test_a_place_is_found_where_at_most_equals_have_become_one_number(rule: Rule) -> None:
    assert prove(rule, refute=False).holds


@pytest.mark.slow
def test_a_left_side_that_no_sizes_fit_is_refuted_with_the_shape_of_the_right_side() -> None:
    one, other = typed.inner, typed.outer
    proof = prove(Rule("columns", op.Concat(one, one, axis=1) @ other, one @ other, when=of(FLOAT, one)))
    assert proof.verdict is Verdict.REFUTED, proof
    assert proof.counterexample.startswith("no sizes of at least 1 fit the left side, refused where the right")
    assert "right side gives float32[" in proof.counterexample and "MatMul" in proof.counterexample
    assert proof.detail == "the left side never occurs: it occurs only where K is 0"
