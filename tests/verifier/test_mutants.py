"""No mutant of a rule is proved, unless it is the same rule in truth and it is known why."""

import random
from collections.abc import Callable
from itertools import islice

import pytest

from graphopt.language.rule import Rule, const, fn, op, tensor
from graphopt.rewrite.gate import source_digest
from tests.verifier.mutants import LIBRARY, Survivor, mutants, results, summary, trial
from tests.verifier.survivors import EQUIVALENT

x, w, s = tensor("x", "M K"), const("w", "K N"), const("s", "N")
SHIFTED = Rule(
    "shifted",
    op.Pad(x @ w - s, (1, 0, 0, 0)),
    op.Pad(x @ w, (1, 0, 0, 0)) - s,
    when=fn.le(1, fn.size("K")),
)


def test_one_thing_is_changed_in_each() -> None:
    assert [f"{mutant.kind}: {mutant.what}" for mutant in mutants(SHIFTED)] == [
        "condition dropped: 1 <= size('K')",
        "operands swapped: Pad(x @ w, [1, 0, 0, 0]) - s becomes s - Pad(x @ w, [1, 0, 0, 0])",
        "operands swapped: x @ w becomes w @ x",
        "another operator: Pad(x @ w, [1, 0, 0, 0]) - s becomes Pad(x @ w, [1, 0, 0, 0]) + s",
        "operand dropped: Pad(x @ w, [1, 0, 0, 0]) - s becomes Pad(x @ w, [1, 0, 0, 0])",
        "operand dropped: Pad(x @ w, [1, 0, 0, 0]) - s becomes s",
        "operator dropped: Pad(x @ w, [1, 0, 0, 0]) becomes x @ w",
        "number changed: Pad(x @ w, [1, 0, 0, 0]) becomes Pad(x @ w, [2, 0, 0, 0])",
        "number changed: Pad(x @ w, [1, 0, 0, 0]) becomes Pad(x @ w, [1, 0, 0, 1])",
    ]


def test_holes_outputs_and_attributes_are_changed_too() -> None:
    one, other = tensor("a", "N"), tensor("b", "N")
    rule = Rule("halves", (one - other, other - one), op.Split.split(2, op.Concat(one, other, axis=0), num_outputs=2))
    changes = [f"{mutant.kind}: {mutant.what}" for mutant in mutants(rule)]
    assert "outputs swapped: " in changes and "holes swapped: a and b" in changes
    assert "attribute dropped: Split num_outputs=2 becomes absent" in changes
    assert "number changed: Concat axis=0 becomes 1" in changes


SHUFFLED = random.Random(source_digest()).sample(LIBRARY, len(LIBRARY))
TRIED = list(islice((rule for rule in SHUFFLED if any(True for _ in mutants(rule))), 12))
"""The file is of the verifier at its time: each verifier since then is asked again about rules of its own."""


@pytest.mark.slow
@pytest.mark.parametrize("rule", TRIED, ids=lambda rule: rule.name)
def test_mutants_are_killed(rule: Rule) -> None:
    found = trial(rule)
    assert found.killed or found.survivors
    assert not unexplained(found.survivors)


def unexplained(survivors: tuple[Survivor, ...]) -> list[Survivor]:
    return [survivor for survivor in survivors if not survivor.is_equivalent]


def test_all_mutants_on_file_are_killed(record_property: Callable[[str, object], None]) -> None:
    trials = results()
    record_property("mutants", summary(trials))
    assert not {found.rule: left for found in trials if (left := unexplained(found.survivors))}


def test_every_rule_is_on_file() -> None:
    known = {found.digest for found in results()}
    missing = [rule.name for rule in LIBRARY if rule.digest not in known]
    assert not missing, "rules have changed: python -m tests.verifier.mutants"


def test_every_reason_is_needed() -> None:
    given = {survivor.why for found in results() for survivor in found.survivors}
    assert [why for _, _, why in EQUIVALENT if why not in given] == []
