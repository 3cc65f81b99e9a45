"""Mutants of the denotations that compute the same, by the reason why."""

from collections.abc import Mapping, Sequence

EQUIVALENT: Mapping[str, Sequence[str]] = {
    "A truth value is 0 or 1: it is positive where it is not 0.": [
        "elementwise.IsInf: nonzero -> positive",
        "elementwise.ELEMENTWISE: nonzero -> positive",
    ],
    "A difference is 0 in either order.": ["elementwise.ELEMENTWISE: a - b -> (b - a)"],
}

REASONS: Mapping[str, str] = {mutant: why for why, mutants in EQUIVALENT.items() for mutant in mutants}
