"""The values of scalar terms: one fold over them, with an algebra that says what holes, sizes and functions are.

The matcher computes with numbers and sizes, the prover with symbols, and others with what a world, a drawn instance or
a choice of element types says. An algebra overrides what it knows of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from graphopt.language.scalar_functions import (
    BINDING_QUERIES,
    PROPERTIES,
    PYTHON_LOGIC,
    UndecidedScalarError,
    apply_scalar_function,
)
from graphopt.language.terms import SCALAR, App, Lit, Term, Var, axis_arguments, is_content_query


class ScalarAlgebra:
    """What the parts of a scalar term stand for: here numbers that are written, and functions of them."""

    unknown: type[Exception] = UndecidedScalarError
    """Raised where a value is not known."""

    def evaluate(self, term: Term) -> Any:
        """Return the value of a scalar term.

        Raises:
            UndecidedScalarError: it has none; another exception if the algebra has another for that.
        """
        match term:
            case Lit(value=value):
                return self.literal(value)
            case Var():
                return self.hole(term)
            case App(domain=domain) if domain == SCALAR:
                return self.application(term)
        raise self.unknown(f"{term} is no number")

    def application(self, app: App) -> Any:
        match app:
            case App(op="size" | "sizes", args=(Lit(),)):
                sizes = self.sizes(axis_arguments(app))
                return sizes if app.op == "sizes" else sizes[0]
            case App(op="dtype", args=(Var() | Lit() | App() as of,)):
                return self.dtype(of)
            case App(op="shape" | "rank", args=(Var() | Lit() | App() as of,)):
                shape = self.shape(of)
                return shape if app.op == "shape" else len(shape)
            case App() if is_content_query(app):
                return self.contents(app)
            case App(op=name) if name in PROPERTIES:
                return self.property_holds(app, map(self.evaluate, app.operands[1:]))
            case App(op=name) if name in BINDING_QUERIES:
                raise self.unknown(f"{app}, of which nothing is known here")
        return self.apply(app, [*map(self.evaluate, app.operands)])

    def literal(self, value: Any) -> Any:
        return value

    def hole(self, hole: Var) -> Any:
        raise self.unknown(f"which number {hole} is")

    def sizes(self, axes: Sequence[str]) -> tuple[Any, ...]:
        """Return the sizes of named axes, packs included."""
        raise self.unknown(f"the sizes of {' '.join(axes)}")

    def shape(self, of: Term) -> tuple[Any, ...]:
        raise self.unknown(f"the shape of {of}")

    def dtype(self, of: Term) -> Any:
        raise self.unknown(f"the element type of {of}")

    def contents(self, query: App) -> Any:
        """Return what a function of the contents of constants gives."""
        raise self.unknown(f"{query}: the contents of a constant")

    def property_holds(self, app: App, _more: Iterator[Any]) -> Any:
        """Return whether the first argument has a property of `PROPERTIES`; the values of the others are worked out
        where they are asked for."""
        raise self.unknown(f"{app}: the elements of a tensor")

    def apply(self, app: App, arguments: Sequence[Any]) -> Any:
        return apply_scalar_function(app.op, PYTHON_LOGIC, *arguments)
