"""Declarations of operators against the kernels that ONNX Runtime has for them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from itertools import chain

from graphopt.base import ort
from graphopt.language.definition import Definition
from graphopt.language.rule import Rule
from graphopt.verifier import scope
from graphopt.verifier.counterexample import Counterexample, difference, refusal
from graphopt.verifier.drawing import instances
from graphopt.verifier.meant import meant

PLAIN, ANY = 40, 60
"""How many instances are drawn, of small whole numbers and of others."""


def contradicted(definitions: Iterable[Definition]) -> Counterexample | None:
    """Return an instance at which the kernel of an operator computes something else than its declaration says."""
    kernels = ort.libraries_digest()
    return next(filter(None, (_contradicted(definition, kernels) for definition in definitions)), None)


@cache
def _contradicted(definition: Definition, _kernels: str) -> Counterexample | None:
    """Return that of one operator, known once for the kernels that there are."""
    return next(filter(None, (_difference(rule) for rule in as_rules(definition))), None)


def _difference(rule: Rule) -> Counterexample | None:
    plain = meant(rule)
    drawn = chain(instances(plain, seed=1, count=PLAIN, scope=scope.PLAIN), instances(plain, seed=1, count=ANY))
    found = next(filter(None, (difference(rule, each) or refusal(rule, each) for each in drawn)), None)
    if found is None:
        return None
    (name,) = {f"{head.domain}.{head.op}" for head in rule.left}
    return replace(found, gap=replace(found.gap, text=f"{name} is not what its definition says: {found.gap.text}"))


def as_rules(definition: Definition) -> Iterator[Rule]:
    """Yield the rules that the operator may be replaced by its meaning: with all attributes, and with its defaults."""
    head, defaults = definition.head, dict(definition.defaults)
    for attrs in dict.fromkeys((head.attrs, tuple(pair for pair in head.attrs if pair[0] not in defaults))):
        given = replace(head, attrs=attrs)
        meaning = definition.at(given)
        assert meaning is not None, f"{given} is what {definition} is of"
        name = re.sub(r"[^a-zA-Z0-9]+|(?<=[a-z0-9])(?=[A-Z])", "_", f"expand_{head.op}").lower()
        yield Rule(name, tuple(replace(given, output=i) for i in range(head.outputs)), meaning.outputs)
