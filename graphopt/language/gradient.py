"""The gradient of an operator as data: a term for each differentiable input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

from graphopt.base.errors import RuleError
from graphopt.language.rule import Rule
from graphopt.language.rule_checks import TermParts, inconsistent_holes, invalid_applications, non_conditions, non_terms
from graphopt.language.terms import App, Lit, Term, TermLike, Var, holes, is_scalar, op, tensor, term

ZERO = Lit(0)
"""The gradient of an input on which the result depends in steps, if at all: nothing flows back."""


def output_gradient(output: int = 0) -> Var:
    """Return the hole for the gradient of the loss with respect to an output of the operator."""
    return tensor("dy" if output == 0 else f"dy_{output}")


@dataclass(frozen=True)
class Gradient:
    """The vector-Jacobian product of an operator: the gradients of its inputs, given those of its outputs.

    `gradient(op.Mul(a, b), a=dy * b, b=dy * a)`: the head is matched as the left side of a rule is, and stands in the
    terms for the operator's own output; `dy` is the gradient of output 0, `dy_1` that of output 1. A term may have any
    shape that the input broadcasts to, or that broadcasts to the input: the engine adds up, or repeats.

    Raises:
        RuleError: a hole that is none of the operator's, an input that is no tensor hole, or an ill-formed term.
    """

    head: App
    """The first output of the operator, applied to holes."""
    terms: tuple[tuple[str, Term], ...]
    """The gradient with respect to each input, after the name of its hole."""
    when: tuple[Term, ...] = ()
    """Conditions on attributes, sizes and element types."""

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise RuleError(f"the gradient of '{self.head}': {problem}")

    def __str__(self) -> str:
        return ", ".join(f"d{name} = {side}" for name, side in self.terms)

    @property
    def outputs(self) -> tuple[App, ...]:
        """The applications that stand for the operator's outputs."""
        return tuple(replace(self.head, output=i) for i in range(self.head.outputs))

    @cached_property
    def pattern(self) -> Rule:
        """A rule whose left side is the operator, by which the matcher binds its holes."""
        return Rule("gradient", self.head, op.Identity(self.head))

    @cached_property
    def by_position(self) -> Mapping[int, Term]:
        """The gradient with respect to each input, by its position."""
        terms = dict(self.terms)
        inputs = enumerate(self.head.inputs)
        return {i: terms[arg.name] for i, arg in inputs if isinstance(arg, Var) and arg.name in terms}

    def _problems(self) -> Iterator[str]:
        sides = (*(side for _, side in self.terms), *self.when)
        yield from non_terms(sides, "gradient")
        yield from non_conditions(self.when)
        parts = TermParts.of_each((self.head, *sides))
        yield from inconsistent_holes(parts)
        yield from invalid_applications(parts)
        known = {*holes(self.head), *map(output_gradient, range(self.head.outputs))}
        for hole in chain.from_iterable(map(holes, sides)):
            if hole not in known:
                yield f"hole '{hole.name}' is none of the operator's, nor the gradient of an output"
        inputs = {arg.name for arg in self.head.inputs if isinstance(arg, Var) and arg.kind == "tensor"}
        for name, side in self.terms:
            if name not in inputs:
                yield f"'{name}' is no tensor among its inputs"
            if is_scalar(side) and side != ZERO:
                yield f"'{side}' is a number, not a tensor"


def gradient(head: App, *when: Term, **terms: TermLike) -> Gradient:
    """Return a gradient: `gradient(op.Mul(a, b), a=dy * b, b=dy * a)`, with conditions behind the head."""
    return Gradient(head, tuple((name, term(side)) for name, side in terms.items()), when)
