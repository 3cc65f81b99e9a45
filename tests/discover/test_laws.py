"""What runs of size 3 found by themselves, without the library, derives the laws that people know.

The files were made by these commands, each with `--size 3 --no-library` and `--output tests/discover/found/NAME.jsonl`:
`graphopt discover --ops Add,Mul,Relu,MatMul,Transpose,Concat,Split,ReduceSum,Softmax` made `matrices`, and
`graphopt discover --ops Add,Mul,Conv,Concat,MaxPool,AveragePool,GlobalAveragePool` made `images`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from graphopt.discover import worlds
from graphopt.discover.derivation import Derivation, WorldTerms
from graphopt.discover.equivalence_classes import EquivalenceClasses
from graphopt.discover.worlds import World
from graphopt.language import rule_library
from graphopt.language.terms import Term, op
from graphopt.operators.operator_classes import DISCOVERY_OPERATORS
from graphopt.rewrite import gate
from tests.discover import laws

FOUND = sorted((Path(__file__).parent / "found").glob("*.jsonl"))
UNDERIVED = frozenset[str]()
"""Laws that the file does not derive: two at most."""


def derivation(world: World) -> Derivation:
    choices = world.choices(DISCOVERY_OPERATORS)
    return Derivation(
        WorldTerms(world, choices, EquivalenceClasses(world, choices, 0, 0).evaluators[0]),
        rule_library.read_rules(FOUND).all_rules,
    )


def underived(world: World, known: Mapping[str, tuple[Term, Term]]) -> set[str]:
    found = derivation(world)
    return {name for name, (one, other) in known.items() if not found.derives(one, other)}


def test_forty_laws_are_derived() -> None:
    assert len(laws.MATRICES) + len(laws.IMAGES) == 40 and len(UNDERIVED) <= 2
    missing = underived(worlds.MATRICES, laws.MATRICES) | underived(worlds.IMAGES, laws.IMAGES)
    assert missing == UNDERIVED


def test_what_is_false_is_not_derived() -> None:
    x, y, z = laws.x, laws.y, laws.z
    false = {
        "products do not commute": (x @ y, y @ x),
        "Relu is not linear": (op.Relu(x + y), op.Relu(x) + op.Relu(y)),
        "lying beside does not commute": (laws.beside(x, y), laws.beside(y, x)),
        "a factor does not distribute over a product": (x * (y @ z), (x * y) @ z),
        "a Softmax sees a factor": (op.Softmax(x * laws.k, axis=-1), op.Softmax(x, axis=-1)),
    }
    assert underived(worlds.MATRICES, false) == set(false)


@pytest.mark.slow
def test_some_of_what_was_found_is_proved_again() -> None:
    rules = rule_library.read_rules(FOUND).all_rules
    assert len(rules) > 400
    for rule in rules[:: len(rules) // 25]:
        assert gate.prove_now(rule, refute=False).holds, rule.name


def test_branches_of_one_input_become_one_operator() -> None:
    """Two products, and two convolutions: rules with two outputs, which no term says."""
    trades = [str(rule) for rule in rule_library.read_rules(FOUND).trades if len(rule.left) == 2]
    for branches in ("x @ y, x @ z", "Conv(x, w, group=1, …), Conv(x, v, group=1, …)"):
        assert any(text.startswith(f"{branches}  ->  Split(") for text in trades), branches


def test_each_line_says_how_it_was_found() -> None:
    for line in (line for path in FOUND for line in path.read_text(encoding="utf-8").splitlines()):
        about = json.loads(line)["found"]
        assert about.keys() >= {"algebra", "trade", "proof", "gain", "run"}
        assert about["proof"]["model"] in ("EXACT", "EXTENDED", "REAL")
