"""Substitutions that another system generated, in terms of ONNX: none of them silently differs.

Of TASO (Jia et al., SOSP 2019), whose generated file `graph_subst.pb` TENSAT (Yang et al., MLSys 2021) prints as text:
chosen by hand, some of each kind.
"""

from __future__ import annotations

import pytest

from graphopt.discover import worlds
from graphopt.discover.classes import Equal
from graphopt.discover.settle import Fate, Question, settle
from graphopt.discover.worlds import World
from graphopt.language.term import Term, op
from tests.discover.laws import beside, conv, image, k, kernel, kernel2, other, turned, w, x, y, z
from tests.discover.test_laws import derivation

below = -2
OF_MATRICES: dict[str, tuple[Term, Term]] = {
    "a product of two products": ((x @ y) @ (z @ w), (x @ (y @ z)) @ w),
    "the same, otherwise": ((x @ y) @ (z @ w), x @ ((y @ z) @ w)),
    "a product of what lies below its product": (
        beside(y, x @ y, axis=below) @ z,
        beside(y @ z, x @ (y @ z), axis=below),
    ),
    "a product beside its product": (beside(x @ y, (x @ y) @ z), x @ beside(y, y @ z)),
    "a sum with its product": (x @ y + (x @ y) @ z, x @ (y + y @ z)),
    "a sum times a matrix": ((x + x @ y) @ z, x @ (z + y @ z)),
    "a multiple of a product of three": (((x @ y) @ z) * k, (x * k) @ (y @ z)),
    "the same on the right": ((x @ (y @ z)) * k, (x @ y) @ (z * k)),
    "a sum of four": (z + (z + (x + y)), (x + z) + (y + z)),
    "a product of elements with a sum": (z * (y + x * y), y * (z + x * z)),
    "a sum with a product of elements": (x * y + z * (x * y), y * (x + x * z)),
    "a multiple of elements": ((z * (x * y)) * k, (x * z) * (y * k)),
    "turned, a product of two": (turned(turned(x) @ turned(y)), y @ x),
    "Relu of Relu of what lies beside": (op.Relu(op.Relu(beside(x, y))), beside(op.Relu(x), op.Relu(y))),
}
OF_IMAGES: dict[str, tuple[Term, Term]] = {
    "Conv of sums of three": (conv(image + (image + other), kernel), conv(image, kernel) + conv(image + other, kernel)),
    "Relu of a sum of Convs": (
        op.Relu(conv(image, kernel) + conv(image, kernel2)),
        op.Relu(conv(image, kernel + kernel2)),
    ),
    "Relu of Convs that lie beside": (
        beside(op.Relu(conv(image, kernel)), op.Relu(conv(image, kernel2)), axis=1),
        op.Relu(conv(image, beside(kernel, kernel2, axis=0))),
    ),
}


@pytest.mark.parametrize(
    ("world", "substitutions"), [(worlds.MATRICES, OF_MATRICES), (worlds.IMAGES, OF_IMAGES)], ids=["matrices", "images"]
)
def test_substitutions_of_taso_are_derived_or_proved(world: World, substitutions: dict[str, tuple[Term, Term]]) -> None:
    """One of them needs a term that is larger than both sides: it is not derived, and proved by itself."""
    found = derivation(world)
    others = {name: Equal(*sides) for name, sides in substitutions.items() if not found.derives(*sides)}
    assert len(others) <= 1
    for name, equal in others.items():
        assert settle(Question(world.name, equal)).fate is Fate.PROVED, name


def test_what_differs_is_refuted_with_a_counterexample() -> None:
    """TASO takes a Relu for fused into the convolution before it, wherever that stands; here one is lost."""
    lost = op.Relu(conv(op.Relu(conv(image, kernel)), kernel2)), op.Relu(conv(conv(image, kernel), kernel2))
    assert not derivation(worlds.IMAGES).derives(*lost)
    assert settle(Question("images", Equal(*lost))).fate in (Fate.ACCIDENT, Fate.REFUTED)
