"""Mutants of the denotations are killed; those that are not compute the same, for a reason that is on record."""

import pytest

from graphopt.operators.semantics import OPERATORS
from tests.tiers import sampled
from tests.verifier.denotation_mutants import MODULES, mutants, mutated
from tests.verifier.denotations import Court, all_mutants
from tests.verifier.equivalents import EQUIVALENT, REASONS
from tests.verifier.laws import COVERED, LAWS, Law, is_covered

FUNCTIONS = ("Clip", "Reshape", "ArgMax", "Gemm")
"""Of which some are tried each time; `python -m tests.verifier.denotations` tries all of all."""


def test_one_thing_is_changed_in_each() -> None:
    changed = [f"{m.before} becomes {m.text}" for m in mutants("reduction_ops") if m.function == "mean_over"]
    mean = "sum_over(extents, body) / integer_value(product(extents))"
    assert changed == [
        f"{mean} becomes (sum_over(extents, body) * integer_value(product(extents)))",
        f"{mean} becomes sum_over(extents, body)",
        f"{mean} becomes integer_value(product(extents))",
        f"{mean} becomes (integer_value(product(extents)) / sum_over(extents, body))",
        "sum_over becomes mean_over",
    ]


def test_mutants_are_made_of_all_modules_that_denote() -> None:
    assert {operator.denotation.__module__.rpartition(".")[2] for operator in OPERATORS.values()} <= set(MODULES)


def test_what_is_on_record_is_in_the_source() -> None:
    keys = {mutant.key for mutant in all_mutants()}
    assert not [key for key in REASONS if key not in keys]
    assert all(why.endswith(".") for why in EQUIVALENT)
    assert sum(map(len, EQUIVALENT.values())) == len(REASONS)


@pytest.mark.parametrize("law", sampled(LAWS, 4, lambda law: law.rule.name))
def test_what_a_model_tells_apart(law: Law) -> None:
    assert law.holds()


@pytest.mark.parametrize("name", COVERED)
def test_what_a_proof_covers(name: str) -> None:
    assert is_covered(name)


KILLED = {
    "casts from floats and from integers are one function": ("cast_function", "Cast", '"truncated"', "'wrapped'"),
    "Clip takes bounds of any rank": (
        "ElementwiseDenotation",
        "Clip",
        "self.extra_operands is ExtraOperands.SCALARS",
        "False",
    ),
    "Conv without channels": ("_group_and_kernel_shape", "Conv", "there are filters", "pass"),
    "Reshape with -1 twice or beside 0": ("_reshape_conditions", "Reshape", "_sizes_differ(size, -1)", ""),
    "ArgMax of an empty axis": ("ArgMax", "ArgMax", "the axis is not empty", "pass"),
    "Attention with a negative scale": ("_scale", "Attention", "the scale is positive", "pass"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", KILLED)
def test_what_let_wrong_rules_through_is_killed(what: str) -> None:
    function, operator, part, text = KILLED[what]
    tried = [m for m in all_mutants() if m.function == function and part in m.before and (not text or m.text == text)]
    court = Court({operator})
    assert tried
    assert {court.fate(mutant) for mutant in tried if mutated(mutant)} <= {"killed", "equivalent"}
