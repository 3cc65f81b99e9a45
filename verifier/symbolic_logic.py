"""The scalar functions of rules, evaluated symbolically: over integer sizes, real expressions and formulas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from math import isinf
from typing import Any, Protocol

from graphopt.base.dtype import DType
from graphopt.expr.broadcasting import broadcast_shapes
from graphopt.expr.expressions import Expr, FoldBranch, call_function, fold
from graphopt.expr.integers import (
    FALSE,
    TRUE,
    Formula,
    Polynomial,
    Size,
    Truth,
    conjunction,
    disjunction,
    eq,
    fresh_symbol,
    if_then_else,
    le,
    negate,
)
from graphopt.expr.partial_calls import recording_partial_calls
from graphopt.expr.substitution import as_formula
from graphopt.expr.symbolic_tensors import SymbolicTensor, select_expr, truth_condition
from graphopt.language.rule import Rule
from graphopt.language.scalar_evaluation import ScalarAlgebra
from graphopt.language.scalar_functions import (
    PROPERTIES,
    PYTHON_LOGIC,
    InvalidScalarCallError,
    UndecidedScalarError,
    apply_scalar_function,
    join_sizes,
)
from graphopt.language.terms import App, Term, Var, axis_arguments
from graphopt.operators.op_context import UndefinedOperatorError, UnsupportedOperatorError, to_real
from graphopt.verifier.choices import as_tuple
from graphopt.verifier.constant_contents import (
    SymbolicList,
    apply_to_symbolic_list,
    build_content_fact,
    first_index_symbol,
)
from graphopt.verifier.rule_conditions import ROUNDING_FUNCTIONS, compares_rounded


class SymbolicLogic:
    """The `Logic` in which truth values are formulas, also those about real numbers."""

    def eq(self, left: Any, right: Any) -> Formula:
        if is_real(left) or is_real(right):
            return negate(truth_condition(call_function("NotZero", to_real(left) - to_real(right))))
        if isinstance(left, str) or isinstance(right, str):
            return TRUE if left == right else FALSE
        return eq(left, right)

    def le(self, left: Any, right: Any) -> Formula:
        if is_real(left) or is_real(right):
            return negate(truth_condition(call_function("Positive", to_real(left) - to_real(right))))
        return le(left, right)

    def all(self, parts: Iterable[Any]) -> Formula:
        return conjunction(*map(to_formula, parts))

    def any(self, parts: Iterable[Any]) -> Formula:
        return disjunction(*map(to_formula, parts))

    def negate(self, part: Any) -> Formula:
        return negate(to_formula(part))

    def choose(self, condition: Any, then: Any, otherwise: Any) -> Any:
        decides = to_formula(condition)
        if decides in (TRUE, FALSE):
            return then if decides == TRUE else otherwise
        if isinstance(then, Truth) and isinstance(otherwise, Truth):
            return disjunction(
                conjunction(decides, as_formula(then)), conjunction(negate(decides), as_formula(otherwise))
            )
        if is_real(then) or is_real(otherwise):
            return select_expr(decides, to_real(then), to_real(otherwise))
        if isinstance(then, int | Polynomial) and isinstance(otherwise, int | Polynomial):
            return if_then_else(decides, then, otherwise)
        if then != otherwise:
            raise UnsupportedOperatorError(f"whether it is {then} or {otherwise}")
        return then

    def concrete_int(self, number_: Any) -> int:
        if isinstance(number_, Polynomial | Expr):
            raise UnsupportedOperatorError(f"which number {number_} is")
        return PYTHON_LOGIC.concrete_int(number_)


SYMBOLIC_LOGIC = SymbolicLogic()


def to_formula(part: Any) -> Formula:
    """Return a truth value as a formula.

    Raises:
        UnsupportedOperatorError: the value is no truth value.
    """
    if not isinstance(part, Truth):
        raise UnsupportedOperatorError(f"{part} where a truth value is needed")
    return as_formula(part)


def is_real(value: Any) -> bool:
    """Return whether a value is a real number, not an integer."""
    return isinstance(value, Expr | float) or type(value) is Fraction  # an abstract class: `isinstance` is slow


class ScalarScope(Protocol):
    """The part of an instance of a rule (`symbolic_instance.py`) that scalar terms read."""

    rule: Rule
    exact: bool
    facts: list[Formula]
    scalars: dict[Term, Any]

    def bound_scalar(self, hole: Var) -> Any: ...
    def shape(self, axes: Iterable[str]) -> tuple[Size, ...]: ...
    def tensor(self, part: Term) -> SymbolicTensor: ...
    def is_absent(self, var: Var) -> bool: ...
    def require(self, condition: Formula, reason: str) -> None: ...


@dataclass(frozen=True)
class SymbolicScalars(ScalarAlgebra):
    """The scalar terms of a rule, evaluated in one instance of it."""

    instance: ScalarScope
    unknown = UnsupportedOperatorError

    def application(self, app: App) -> Any:
        """Return the value of an application, which is computed once, as it may add facts."""
        known = self.instance.scalars
        if app not in known:
            known[app] = super().application(app)
        return known[app]

    def literal(self, value: Any) -> Any:
        """Return a number that is written in the rule.

        Raises:
            UnsupportedOperatorError: it is infinite, and arithmetic is that of the real numbers.
        """
        if not self.instance.exact and isinstance(value, float) and isinf(value):
            raise UnsupportedOperatorError(f"real arithmetic with {value}")
        return value

    def hole(self, hole: Var) -> Any:
        return self.instance.bound_scalar(hole)

    def sizes(self, axes: Sequence[str]) -> tuple[Size, ...]:
        return self.instance.shape(axes)

    def shape(self, of: Term) -> tuple[Size, ...]:
        return self.instance.tensor(of).shape

    def dtype(self, of: Term) -> DType:
        return self.instance.tensor(of).dtype

    def contents(self, query: App) -> SymbolicList | Polynomial:
        if query.op == "first_index":
            return first_index_symbol(query)
        said = build_content_fact(query, self.instance.shape(axis_arguments(query)))
        self.instance.facts += said.structure.facts
        return said.value

    def property_holds(self, app: App, _more: Iterator[Any]) -> Formula:
        """Return whether a constant has a property, or its default where it is absent.

        Raises:
            UnsupportedOperatorError: no condition of the rule assumes it.
        """
        of = app.operands[0]
        if not isinstance(of, Var) or app not in self.instance.rule.property_conditions:
            raise UnsupportedOperatorError(f"{app}, which no condition says")
        if self.instance.is_absent(of):
            return to_formula(PROPERTIES[app.op](PYTHON_LOGIC, of.default))
        return TRUE

    def apply(self, app: App, arguments: Sequence[Any]) -> Any:
        if any(isinstance(arg, SymbolicList) for arg in arguments):
            return apply_to_symbolic_list(app.op, arguments)
        found = self._of_reals(app, arguments)
        if found is not None:
            return found
        if app.op in ("floordiv", "mod"):
            self._require_divisors(arguments[1], app)
        if app.op == "broadcast":
            return broadcast_shapes(arguments, _join_sizes)
        if app.op == "choose" and isinstance(arguments[1], tuple):
            return _choose_elementwise(*arguments)
        try:
            return apply_scalar_function(app.op, SYMBOLIC_LOGIC, *arguments)
        except InvalidScalarCallError as error:
            raise UnsupportedOperatorError(str(error)) from error
        except UndecidedScalarError as error:  # nor does it match
            raise UndefinedOperatorError(f"{app.op}: {error}") from error

    def _of_reals(self, app: App, args: Sequence[Any]) -> Expr | None:
        """Return what a scalar function gives of real numbers, None where it is not about them.

        In the exact model nothing is known of what it rounds: a rule computes in double precision when it is applied.
        """
        name = app.op
        if name not in ("truediv", "sqrt") and not any(
            is_real(arg) for arg in chain.from_iterable(map(as_tuple, args))
        ):
            return None
        if compares_rounded(app):
            raise UnsupportedOperatorError(f"{app}, which compares what is rounded when the rule is applied")
        if self.instance.exact and name in ROUNDING_FUNCTIONS:
            return call_function(f"{name}~", *map(to_real, args))
        with recording_partial_calls():  # nothing: where it has no value, the rule does not match
            return _REAL_FUNCTIONS[name](*map(to_real, args)) if name in _REAL_FUNCTIONS else None

    def _require_divisors(self, divisors: Any, app: App) -> None:
        for divisor in as_tuple(divisors):
            if is_real(divisor):
                raise UnsupportedOperatorError(f"{app}: {app.op} is of whole numbers, `truediv` is of others")
            self.instance.require(negate(eq(divisor)), "division by zero")


def _join_sizes(a: Size, b: Size) -> Size:
    """Return the size of an axis that two operands share; where theirs do not fit some other one, for it means nothing
    there."""
    fits = disjunction(eq(a, 1), eq(b, 1), eq(a, b))
    return if_then_else(fits, join_sizes(SYMBOLIC_LOGIC, a, b), fresh_symbol("unfit"))


def _choose_elementwise(condition: Any, then: Any, otherwise: Any) -> Any:
    if len(then) != len(otherwise):
        return SYMBOLIC_LOGIC.choose(condition, then, otherwise)
    return tuple(SYMBOLIC_LOGIC.choose(condition, a, b) for a, b in zip(then, otherwise, strict=True))


_REAL_FUNCTIONS: Mapping[str, Callable[..., Expr]] = {
    "truediv": lambda a, b: a / b,
    "sqrt": lambda a: call_function("Sqrt", a),
    "maximum": lambda a, b: fold("max", [FoldBranch((), TRUE, a), FoldBranch((), TRUE, b)]),
    "minimum": lambda a, b: fold("min", [FoldBranch((), TRUE, a), FoldBranch((), TRUE, b)]),
}
"""The scalar functions on real numbers; the others compute with operators that values have too."""
