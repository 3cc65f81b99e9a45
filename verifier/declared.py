"""Declarations of operators against the kernels that ONNX Runtime has for them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from itertools import chain

from graphopt.language.definition import Definition
from graphopt.language.rule import Rule
from graphopt.language.term import App
from graphopt.verifier import scope
from graphopt.verifier.counterexample import Counterexample, difference
from graphopt.verifier.drawing import instances
from graphopt.verifier.meant import meant

PLAIN, ANY = 40, 60
"""How many instances are drawn, of small whole numbers and of others."""


def contradicted(definitions: Iterable[Definition]) -> Counterexample | None:
    """An instance at which the kernel of an operator computes something else than its declaration says."""
    return next(filter(None, map(_contradicted, definitions)), None)


@cache
def _contradicted(definition: Definition) -> Counterexample | None:
    rule = as_rule(definition)
    plain = meant(rule)
    drawn = chain(instances(plain, seed=1, count=PLAIN, scope=scope.PLAIN), instances(plain, seed=1, count=ANY))
    found = next(filter(None, (difference(rule, instance) for instance in drawn)), None)
    if found is None:
        return None
    name = f"{definition.head.domain}.{definition.head.op}"
    return replace(found, gap=replace(found.gap, text=f"{name} is not what its definition says: {found.gap.text}"))


def as_rule(definition: Definition) -> Rule:
    """The rule that the operator may be replaced by its meaning."""
    head = definition.head
    heads = tuple(App(head.op, head.args, head.attrs, head.domain, i, head.outputs) for i in range(head.outputs))
    name = re.sub(r"\W+|(?<=[a-z0-9])(?=[A-Z])", "_", f"expand_{head.op}").lower()
    return Rule(name, heads, definition.meaning)
