"""Declarations of operators against the kernels that ONNX Runtime has for them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from itertools import chain

import numpy as np

from graphopt.base import ort
from graphopt.language.definition import Definition
from graphopt.language.rule import Rule
from graphopt.verifier import scope
from graphopt.verifier.counterexample import Counterexample, difference, is_known, refusal
from graphopt.verifier.drawing import instances
from graphopt.verifier.example import Instance
from graphopt.verifier.meant import meant

PLAIN, ANY = 40, 60
"""How many instances are drawn, of small whole numbers and of others."""


def contradicted(definitions: Iterable[Definition]) -> Counterexample | None:
    """Return an instance at which the kernel of an operator computes something else than its declaration says."""
    kernels = ort.libraries_digest()
    return next(filter(None, (_contradicted(definition, kernels) for definition in definitions)), None)


def keeps_infinities(definitions: Iterable[Definition]) -> bool:
    """Return whether kernels make of infinities and NaN what their declarations say, as far as drawn instances tell."""
    kernels = ort.libraries_digest()
    return all(_keeps_infinities(definition, kernels) for definition in definitions)


@cache
def _contradicted(definition: Definition, _kernels: str) -> Counterexample | None:
    for rule in as_rules(definition):
        found = next(filter(None, (difference(rule, each) or refusal(rule, each) for each in _drawn(rule))), None)
        if found is not None:
            text = f"{definition.head.domain}.{definition.head.op} is not what its definition says: {found.gap.text}"
            return replace(found, gap=replace(found.gap, text=text))
    return None


@cache
def _keeps_infinities(definition: Definition, _kernels: str) -> bool:
    rng = np.random.default_rng(1)
    spoilt = ((rule, _spoilt(each, rng)) for rule in as_rules(definition) for each in _drawn(rule))
    return not any(difference(rule, each, nonfinite=True) for rule, each in spoilt)


def _drawn(rule: Rule) -> Iterator[Instance]:
    """Yield instances of an operator and its meaning; none where ONNX Runtime does not know the operator."""
    plain = meant(rule)
    drawn = chain(instances(plain, seed=1, count=PLAIN, scope=scope.PLAIN), instances(plain, seed=1, count=ANY))
    first = next(drawn, None)
    if first is not None and is_known(rule, first):
        yield first
        yield from drawn


def _spoilt(instance: Instance, rng: np.random.Generator) -> Instance:
    """Return an instance in which some elements of floats are infinite, or no numbers."""
    values = dict(instance.values)
    for name, value in values.items():
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            odd = rng.choice(np.array([np.inf, -np.inf, np.nan, 0.0], value.dtype), value.shape)
            values[name] = np.where(rng.random(value.shape) < rng.choice((0.0, 0.1, 0.5)), odd, value)
    return replace(instance, values=values)


def as_rules(definition: Definition) -> Iterator[Rule]:
    """Yield the rules that the operator may be replaced by its meaning: with all attributes, and with its defaults."""
    head, defaults = definition.head, dict(definition.defaults)
    for attrs in dict.fromkeys((head.attrs, tuple(pair for pair in head.attrs if pair[0] not in defaults))):
        given = replace(head, attrs=attrs)
        meaning = definition.at(given)
        assert meaning is not None, f"{given} is what {definition} is of"
        name = re.sub(r"[^a-zA-Z0-9]+|(?<=[a-z0-9])(?=[A-Z])", "_", f"expand_{head.op}").lower()
        yield Rule(name, tuple(replace(given, output=i) for i in range(head.outputs)), meaning.outputs)
