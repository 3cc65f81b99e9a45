"""Worlds in which terms are made: a few holes of fixed ranks, and the operators applied to them, in canonical order.

In a world all axes of one kind have one size, so that few kinds of tensors give many terms; which sizes have to be the
same is found out afterwards, for each pair of equal terms by itself (`generalization`). So a world needs no types but
ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from graphopt.base.errors import UsageError, did_you_mean
from graphopt.discover.evaluation import OPERANDS
from graphopt.ir import schemas
from graphopt.language.terms import App, Lit, Term, TermLike, Var, fn, op, tensor, term
from graphopt.operators.operator_classes import (
    IMAGE_DISCOVERY_OPERATORS,
    OPERATOR_GROUPS,
    is_reduction,
    lookup_operator,
)

Sizes: TypeAlias = Mapping[str, int]
A, B = OPERANDS[:2]


@dataclass(frozen=True)
class World:
    """A world: holes by the kinds of their axes, and the sizes of these kinds in each round of evaluation."""

    name: str
    leaves: tuple[Term, ...]
    rounds: tuple[Sizes, ...]
    pack: str
    """Position of further axes: in "front" of the others, or "behind" them."""
    operators: Callable[[str], Iterable[App]]
    """Function that yields the ways to apply an operator to A and B, by its name."""
    broadcast_leaves: tuple[Var, ...] = ()
    """Leaves that are only operands of elementwise operators, beside larger ones; so are results of their shape."""

    def choices(self, names: Sequence[str]) -> tuple[App, ...]:
        """Return the ways to apply the operators of these names, in canonical order."""
        return tuple(dict.fromkeys(app for name in names for app in self.operators(name)))


def apply_choice(choice: App, *operands: Term) -> App:
    """Return an operator applied to operands in the places of A and B."""
    given = dict(zip((A, B), operands, strict=False))
    args = tuple(given.get(arg, arg) if isinstance(arg, Var) else arg for arg in choice.args)
    return App(choice.op, args, choice.attrs, choice.domain, choice.output, choice.outputs)


@cache
def arity(choice: App) -> int:
    """Return the number of operands that a choice takes."""
    return len({arg for arg in choice.args if arg in (A, B)})


@cache
def commutes(choice: App) -> bool:
    """Return whether the two operands may be swapped, so that only one order of them is tried."""
    return arity(choice) == 2 and lookup_operator(choice.op, choice.domain).is_commutative


# -- the ways to apply operators ---------------------------------------------------------------------------------------


def resolve_operators(names: Iterable[str]) -> tuple[str, ...]:
    """Return the operators of these names and classes of names, in their order.

    Raises:
        UsageError: there is none of such a name, no world applies it, or nothing says what it computes.
    """
    found = [name for given in names for name in OPERATOR_GROUPS.get(given, (given,))]
    for name in found:
        domain, _, own = name.rpartition(".")
        if schemas.schema(own, domain) is None:
            hint = did_you_mean(own, [*schemas.operator_names(domain), *OPERATOR_GROUPS])
            raise UsageError(f"there is no operator '{name}'{hint}; classes of them are {', '.join(OPERATOR_GROUPS)}")
        if not any(world.choices([name]) for world in WORLDS):
            raise UsageError(f"--ops {name}: it is not one operator on one or two tensors without further attributes")
        if not domain and not lookup_operator(own).is_denoted:
            raise UsageError(f"--ops {name}: nothing says what it computes")
    return tuple(dict.fromkeys(found))


def _plain(name: str, **attrs: TermLike) -> Iterator[App]:
    """Yield an operator applied to as many operands as it needs, if these are one or two."""
    domain, _, own = name.rpartition(".")
    schema = schemas.schema(own, domain)
    needed = max(schema.min_input, 2 if lookup_operator(own, domain).is_commutative else 1) if schema else 0
    required = [a for a in (schema.attributes if schema else {}) if schema and schema.attributes[a].required]
    if 1 <= needed <= 2 and set(required) <= attrs.keys():
        yield App(own, (A, B)[:needed], tuple(sorted((k, term(v)) for k, v in attrs.items())), domain)


def _along(name: str, axes: Sequence[int], kind: str) -> Iterator[App]:
    """Yield the ways to apply an operator along one of some axes."""
    schema = schemas.schema(name)
    for axis in axes:
        if lookup_operator(name).is_concatenation:
            yield App(name, (A, B), (("axis", Lit(axis)),))
        elif name == "Split":
            yield from op.Split.split(2, A, fn.sizes(f"{kind} {kind}"), axis=axis)
        elif is_reduction(name):
            yield App(name, (A, Lit((axis,))), (("keepdims", Lit(1)),))
        elif schema is not None and "axis" in schema.attributes:
            yield from _plain(name, axis=axis)


def _has_axis(name: str) -> bool:
    schema = schemas.schema(name)
    return is_reduction(name) or (schema is not None and "axis" in schema.attributes)


def _on_elements(name: str) -> Iterator[App]:
    if not lookup_operator(name).requires_spatial_axes and not _has_axis(name) and name not in ("MatMul", "Transpose"):
        yield from _plain(name)


def _on_matrices(name: str) -> Iterator[App]:
    if name == "Transpose":
        yield op.Transpose(A, perm=(1, 0))
    elif _has_axis(name):
        yield from _along(name, (-1, -2) if name != "Softmax" else (-1,), "N")
    elif not lookup_operator(name).requires_spatial_axes:
        yield from _plain(name)


def _on_images(name: str) -> Iterator[App]:
    if name == "Conv":
        yield op.Conv(A, B, pads=(1, 1))
    elif lookup_operator(name).requires_spatial_axes and schemas.is_required_attribute(name, "kernel_shape"):
        yield App(name, (A,), (("kernel_shape", Lit((3,))), ("pads", Lit((1, 1)))))
    elif name in ("Concat", "Split"):
        yield from _along(name, (0, 1), "N")
    elif lookup_operator(name).requires_spatial_axes or name in IMAGE_DISCOVERY_OPERATORS:
        yield from _plain(name)


def _tensors(names: str, axes: str) -> tuple[Var, ...]:
    return tuple(tensor(name, axes) for name in names)


COLUMN, NUMBER = tensor("c", "N 1"), tensor("k", "")
ELEMENTS = World(
    "elements",
    (*_tensors("xyzw", "S"), Lit(0.0), Lit(1.0)),
    ({"S": 5}, {"S": 3}),
    "behind",
    _on_elements,
)
MATRICES = World(
    "matrices",
    (*_tensors("xyzw", "N N"), COLUMN, NUMBER),
    ({"N": 2}, {"N": 3}),
    "front",
    _on_matrices,
    (COLUMN, NUMBER),
)
IMAGES = World(
    "images",
    (*_tensors("xyz", "N N L"), *_tensors("wvu", "N N K"), NUMBER),
    ({"N": 2, "L": 5, "K": 3}, {"N": 3, "L": 4, "K": 3}),
    "behind",
    _on_images,
    (NUMBER,),
)
WORLDS = (ELEMENTS, MATRICES, IMAGES)


def get_leaf_shape(leaf: Term, sizes: Sizes) -> tuple[int, ...]:
    """Return the shape of a hole of a world, or of a number."""
    if not isinstance(leaf, Var):
        return ()
    return tuple(int(axis) if axis.isdigit() else sizes[axis] for axis in leaf.axes or ())
