"""The values of scalar terms: one fold over them, with an algebra that says what holes, sizes and functions are.

The matcher computes with numbers and sizes, the prover with symbols, and others with what a world, a drawn instance or
a choice of element types says. An algebra overrides what it knows of.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

from graphopt.language.scalar_functions import (
    BINDING_QUERIES,
    PROPERTIES,
    PYTHON_LOGIC,
    UndecidedScalarError,
    apply_scalar_function,
)
from graphopt.language.terms import SCALAR, App, Lit, Term, Var, is_content_query


class ScalarAlgebra:
    """What the parts of a scalar term stand for: here numbers that are written, and functions of them."""

    unknown: type[Exception] = UndecidedScalarError
    """Raised where a value is not known."""

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


def evaluate_term(term: Term, algebra: ScalarAlgebra, known: MutableMapping[Term, Any] | None = None) -> Any:
    """Return the value of a scalar term in an algebra; applications are looked up in `known` and put there.

    Raises:
        UndecidedScalarError: it has none, or what else the algebra raises then.
    """
    match term:
        case Lit(value=value):
            return algebra.literal(value)
        case Var():
            return algebra.hole(term)
    if known is None:
        return _evaluate_application(term, algebra, known)
    if term not in known:
        known[term] = _evaluate_application(term, algebra, known)
    return known[term]


def _evaluate_application(app: App, algebra: ScalarAlgebra, known: MutableMapping[Term, Any] | None) -> Any:
    if app.domain != SCALAR:
        raise algebra.unknown(f"{app} is no number")
    if app.op in BINDING_QUERIES:
        return _answer_query(app, algebra)
    if app.op in PROPERTIES:
        return algebra.property_holds(app, (evaluate_term(arg, algebra, known) for arg in app.operands[1:]))
    return algebra.apply(app, [evaluate_term(arg, algebra, known) for arg in app.operands])


def _answer_query(app: App, algebra: ScalarAlgebra) -> Any:
    """Return what a hole or an axis is bound to says."""
    if is_content_query(app):
        return algebra.contents(app)
    match app:
        case App(op="size" | "sizes", args=(Lit(value=axes),)):
            sizes = algebra.sizes(str(axes).split())
            return sizes if app.op == "sizes" else sizes[0]
        case App(op="dtype", args=(Var() | Lit() | App() as of,)):
            return algebra.dtype(of)
        case App(op="shape" | "rank", args=(Var() | Lit() | App() as of,)):
            shape = algebra.shape(of)
            return shape if app.op == "shape" else len(shape)
    raise algebra.unknown(f"{app}, of which nothing is known here")
