"""Mutants of the denotations that compute the same, by the reason why."""

from collections.abc import Mapping, Sequence

EQUIVALENT: Mapping[str, Sequence[str]] = {
    "A truth value is 0 or 1: it is positive where it is not 0.": [
        "elementwise.IsInf: nonzero -> positive",
        "elementwise.ELEMENTWISE: nonzero -> positive",
    ],
    "A difference is 0 in either order.": [
        "elementwise.ELEMENTWISE: a - b -> (b - a)",
        "placing.OneHot: where - integer(place) -> (integer(place) - where)",
    ],
    "With m the mean of x, the means of (x - m)(x + m) and of (x - m)x are that of (x - m)(x - m): the variance.": [
        "normalizations.standardized: others(k) - average -> (others(k) + average)",
        "normalizations.standardized: others(k) - average -> others(k)",
    ],
    "An operator with more outputs than its denotation gives is refused in any case (`Instance._typed`).": [
        f"normalizations.{name}: node.app.outputs > 1 -> {text}"
        for name in ("BatchNormalization", "LayerNormalization")
        for text in ("False", "(1 > node.app.outputs)")
    ],
    "A step is not 0, which was refused before.": ["placing._steps: step > 0 -> (step >= 0)"],
    "A vector has one axis, which is the first and the last.": ["reductions.MatMul: 1 -> (0)"],
    "Of an empty tensor no element is asked, so it does not matter which one it would be.": [
        "views._unflattened: 0 -> 1",
        "views._unflattened: 0 -> (-1)",
    ],
    "Axes of size 1 and equal axes are left out to keep an index short: the number is the same with them.": [
        "views._unflattened: not same(size, 1) -> True",
        "views._unflattened: 1 -> (0)",
    ],
    "An inferred size is made so that the number of elements is that of the input, which may be said once more.": [
        "views._answers: -1 not in asked -> True",
    ],
}

REASONS: Mapping[str, str] = {mutant: why for why, mutants in EQUIVALENT.items() for mutant in mutants}
