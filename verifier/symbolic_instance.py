"""The instances of a rule: every rank and every choice of an attribute up to a bound, all sizes symbolic.

Evaluating the left side asks for what a rule leaves open (a rank, an axis, a mode); each answer is one path, and all
paths are walked. What can be a symbol stays one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

from graphopt.base.dtype import DType
from graphopt.expr.expressions import (
    ZERO,
    Expr,
    Index,
    TensorElement,
    call_function,
    constant,
    expr_of_factor,
    guard_expr,
    integer_value,
)
from graphopt.expr.integers import FALSE, TRUE, BooleanAtom, Formula, Size, eq, fresh_symbol, ge, le, product, symbol
from graphopt.expr.partial_calls import PartialCall
from graphopt.expr.symbolic_tensors import SymbolicTensor, as_integer, truth_value
from graphopt.language.rule import Rule
from graphopt.language.scalar_functions import MAX_AXIS_SIZE, expand_axes
from graphopt.language.terms import (
    SCALAR,
    App,
    Lit,
    Term,
    Var,
    axis_arguments,
    axis_position,
    is_scalar,
    queried_constants,
)
from graphopt.operators.op_context import MAX_RANK, UndefinedOperatorError, UnsupportedOperatorError, to_real, to_tensor
from graphopt.operators.operator_classes import mentions_quantization
from graphopt.operators.semantics import denote
from graphopt.operators.view_ops import reshape_index
from graphopt.verifier import element_types
from graphopt.verifier.choices import Choices
from graphopt.verifier.constant_contents import ContentFact, SymbolicList, build_content_fact, resolve_constant_index
from graphopt.verifier.context import ProofContext, get_context
from graphopt.verifier.element_types import DTypeError, Typing
from graphopt.verifier.expanded_rule import ExpandedRule
from graphopt.verifier.rule_conditions import (
    format_unfulfilled,
    is_number_condition,
    needs_int64_bound,
    properties_of,
    referenced_names,
    substitute_given,
)
from graphopt.verifier.solver import SolverSession
from graphopt.verifier.symbolic_logic import SYMBOLIC_LOGIC, SymbolicScalars, to_formula


@dataclass(frozen=True)
class ElementObligation:
    """The elements of a tensor, with what has to be true of each for an operator to be defined."""

    tensor: SymbolicTensor
    index_bound: Size | None
    """Each is an index of so many elements; None: each is a divisor, not 0."""
    reason: str
    allows_negative: bool = True
    """Indices may be negative, and are then counted from the end."""


@dataclass
class SymbolicInstance:
    """One rule at one path: what is bound, what is assumed, and what has to be shown."""

    rule: Rule
    exact: bool
    choices: Choices
    effort: SolverSession
    typing: Typing
    max_rank: int = MAX_RANK
    extended: bool = False
    """True if values may be infinite."""
    sizes: dict[str, Size] = field(default_factory=dict)
    packs: dict[str, tuple[Size, ...]] = field(default_factory=dict)
    bindings: dict[str, Any] = field(default_factory=dict)
    facts: list[Formula] = field(default_factory=list)
    obligations: list[tuple[Formula, str]] = field(default_factory=list)
    assumed_elements: list[ElementObligation] = field(default_factory=list)
    """Facts on elements that the left side implies by being defined."""
    element_obligations: list[ElementObligation] = field(default_factory=list)
    """Conditions on elements under which the right side is defined."""
    typings: Sequence[Typing] = ()
    """All choices of element types, of which `typing` is one."""
    properties: Mapping[str, frozenset[str]] = field(default_factory=dict)
    is_bounded: bool = False
    """True if the rule needs a bound on sizes."""
    assuming: bool = True
    vacuous_reason: str = ""
    """Reason why the left side does not occur; empty where it does."""
    tensors: dict[Term, tuple[SymbolicTensor, ...]] = field(default_factory=dict)
    reshape_sizes: dict[tuple[Size, Size], Size] = field(default_factory=dict)
    """The sizes that a Reshape of the left side gives, by what is asked for and the number of elements."""
    integers: dict[Expr, Size] = field(default_factory=dict)
    """The elements of tensors that are sizes or places, as unknown integers."""
    ignored: set[tuple[str, str, Any]] = field(default_factory=set)
    """The attributes of the left side that say how to compute, by operator and name, with their values."""
    join_axes: dict[str, int] = field(default_factory=dict)
    """Axes along which the tensors of a pack are joined, by name."""
    absences: dict[str, bool] = field(default_factory=dict)
    """Absence of the optional inputs among the constants with a default."""
    partial_calls: tuple[set[PartialCall], set[PartialCall]] = field(default_factory=lambda: (set(), set()))
    """Calls of partial functions that were computed for the tensors of each side, before any element was asked for."""
    scalars: dict[Term, Any] = field(default_factory=dict)
    """Values of scalar terms of the rule."""
    comparison_context: ProofContext | None = None
    """Context in which elements are compared."""
    compares_syntactically: bool = False
    """True if sizes are equal only where that is plain."""
    has_unequal_comparison: bool = False
    """True if it was asked of sizes that are not plainly equal."""

    def __post_init__(self) -> None:  # denotations ask for them: constants that are all ones say how much to enlarge
        self.properties = properties_of(self.rule)
        self.is_bounded = needs_int64_bound(self.rule)

    @property
    def context(self) -> ProofContext:
        return get_context(self.facts, self.effort)

    def simplify_shape(self, shape: Iterable[Size]) -> tuple[Size, ...]:
        """Return a shape, simplified by what is known when elements are compared."""
        return tuple(shape) if self.comparison_context is None else tuple(map(self.comparison_context.simplify, shape))

    def are_equal_sizes(self, one: Size, other: Size) -> bool:
        """Return whether two sizes are known to be equal."""
        if one == other or self.comparison_context is None or self.compares_syntactically:
            self.has_unequal_comparison = self.has_unequal_comparison or one != other
            return one == other
        return self.comparison_context.proves(eq(one, other))

    def require(self, condition: Formula, reason: str) -> None:
        """Require a condition for an operator to be defined: assumed on the left side, to be shown on the right."""
        if condition == FALSE:
            raise UndefinedOperatorError(reason)
        if self.assuming:
            self.facts.append(condition)
        elif condition != TRUE:
            self.obligations.append((condition, reason))

    def require_elements(self, elements: ElementObligation) -> None:
        """Do as `require` for all elements of a tensor, of which nothing is known but where they come from."""
        (self.assumed_elements if self.assuming else self.element_obligations).append(elements)

    # -- holes

    def size(self, axis: str) -> Size:
        """Return the size of a named axis."""
        if axis.isdigit():
            return int(axis)
        if axis == "_":
            return self._new_size("_")
        if axis not in self.sizes:
            self.sizes[axis] = symbol(axis)
            self._assume_size(self.sizes[axis])
        return self.sizes[axis]

    def _new_size(self, name: str) -> Size:
        size = fresh_symbol(name)
        self._assume_size(size)
        return size

    def _assume_size(self, size: Size) -> None:
        """Sizes are 64-bit integers; a rule that speaks of no number so large need not know."""
        self.facts.append(ge(size))
        if self.is_bounded:
            self.facts.append(le(size, MAX_AXIS_SIZE))

    def shape(self, axes: Iterable[str]) -> tuple[Size, ...]:
        """Return the sizes of axes, packs included."""
        axes = tuple(axes)
        return expand_axes(
            axes, lambda axis: self.pack(axis[1:], len(axes) - 1) if axis.startswith("*") else self.size(axis)
        )

    def pack(self, name: str, others: int) -> tuple[Size, ...]:
        if name not in self.packs:
            most = max(min(2, self.max_rank), self.max_rank - others)
            length = self.choices.choose(f"pack {name}", range(most + 1))
            self.packs[name] = tuple(self._new_size(f"{name}{i}") for i in range(length))
        return self.packs[name]

    def is_absent(self, var: Var) -> bool:
        """Return whether a hole is an optional input that is absent: both are tried where it has a default."""
        if var.default is None:
            return False
        if var.name not in self.absences:
            self.absences[var.name] = self.choices.choose(f"absent {var.name}", (False, True))
        return self.absences[var.name]

    def assume_absences(self) -> None:
        """Assume that what is absent has a shape that other holes say: without one the left side does not match."""
        present = [hole for hole in self.rule.holes.values() if not self.absences.get(hole.name)]
        said = {axis.removeprefix("1") for hole in present for axis in hole.axes or ()} - {"_"}
        for name, absent in self.absences.items():
            if absent and not all(axis.removeprefix("1") in said or axis.isdigit() for axis in self.axes_of(name)):
                raise UndefinedOperatorError(f"nothing says the shape of {name}, which is absent")

    def axes_of(self, name: str) -> tuple[str, ...]:
        """Return the axes that a hole declares; without any it matches no input that is absent."""
        axes = self.rule.holes[name].axes
        return ("_",) if axes is None else axes

    def hole(self, var: Var) -> SymbolicTensor:
        """Return the tensor that a hole stands for: a function of indices of which nothing is known, or its default."""
        if self.is_absent(var) and self.assuming:
            raise UndefinedOperatorError(f"{var.name} is absent")
        if var.name not in self.bindings:
            if var.axes is not None:
                shape = self.shape(var.axes)
            else:
                rank = self.choices.choose(f"rank {var.name}", range(self.max_rank + 1))
                shape = tuple(self._new_size(f"{var.name}{i}") for i in range(rank))
            dtype = self.typing.types.get(var.name, DType.FLOAT)
            at = self._counting(var, shape) or self._reader(var.name, dtype)
            if self.is_absent(var):
                at = partial(_constant, to_real(SymbolicScalars(self).literal(var.default)))
            self.bindings[var.name] = SymbolicTensor(shape, at, dtype, dtype)
        found: SymbolicTensor = self.bindings[var.name]
        return found

    def _reader(self, name: str, dtype: DType) -> Callable[[Index], Expr]:
        """Return the element at an index: a number where the conditions say that all elements are that number."""
        told_ = list(self._content_facts(name))

        def at(index: Index) -> Expr:
            properties = self.properties.get(name, ())
            if "is_zero" in properties or "is_one" in properties:
                return constant(0 if "is_zero" in properties else 1)
            inside, own = resolve_constant_index(index, told_)
            read = guard_expr(inside, expr_of_factor(TensorElement(name, own)))
            if dtype is DType.BOOL:
                return truth_value(BooleanAtom(read, True))
            if not (self.exact and mentions_quantization(self.rule)):
                return read
            if "is_scale" in properties:
                return call_function("Scale", read)
            return call_function("OfType", read, params=(dtype,)) if dtype.is_integer else read

        return at

    def _content_facts(self, name: str) -> Iterator[ContentFact]:
        """Yield what is told of a constant: over the reals only.

        What is multiplied with zeros may be infinite, and zeros may have a sign.
        """
        said = (
            (app, hole)
            for app in self.rule.content_queries
            for hole in queried_constants(app)
            if hole.name == name and app.op != "first_index"
        )
        for app, hole in () if self.exact or self.extended else said:
            axes = axis_arguments(app)
            yield build_content_fact(app, self.shape(axes))._replace(
                axes=[axis_position(axis, hole.axes or ()) for axis in axes]
            )

    def _counting(self, hole: Var, shape: tuple[Size, ...]) -> Callable[[Index], Expr] | None:
        """Return the element at an index of a tensor that counts, as a whole or along an axis; None for any other."""
        counts = self.rule.arange_conditions.get(hole.name)
        along = next((app for app in self.rule.content_queries if app.op == "first_index" and hole in app.args), None)
        if along is not None:
            (axis,) = (axis_position(axis, hole.axes or ()) for axis in axis_arguments(along))
            return lambda index: integer_value(self.scalar(along) + index[axis])
        if counts is None:
            return None

        def at(index: Index) -> Expr:
            if len(counts.args) == 1:
                return integer_value(reshape_index(self.are_equal_sizes, index, shape, (product(shape),))[0])
            place = reshape_index(self.are_equal_sizes, index[:-1], shape[:-1], self.scalar(counts.operands[1]))
            return integer_value(place[SYMBOLIC_LOGIC.concrete_int(index[-1])])

        return at

    def find_unbound_hole(self, part: Term | None) -> Var | None:
        """Return the hole for a number that a term is, where nothing is bound to it yet."""
        if isinstance(part, Var) and part.kind not in ("tensor", "const") and part.name not in self.bindings:
            return part
        return None

    def bind(self, name: str, value: Any) -> None:
        """Bind a hole for numbers, and assume the conditions that are decidable by now, which leaves fewer paths."""
        for condition in self.rule.conditions:
            match condition:
                case App("eq", (Var(name=other), Lit() | App() as said)) if other == name and self._is_evaluable(said):
                    with suppress(UnsupportedOperatorError):
                        value = substitute_given(value, self.scalar(said))
        self.bindings[name] = value
        for condition in self.rule.conditions:
            if name in referenced_names(condition)[0] and self._is_evaluable(condition):
                with suppress(
                    UnsupportedOperatorError
                ):  # as of lists that an operator is still to refuse; asked again in the end
                    self.require(to_formula(self.scalar(condition)), format_unfulfilled(condition))

    def _is_evaluable(self, part: Term) -> bool:
        """Return whether all that a scalar term speaks of is bound."""
        names, packs = referenced_names(part)
        return names <= self.bindings.keys() and packs <= self.packs.keys()

    def admits(self, name: str, value: Any) -> bool:
        """Return whether no condition that becomes decidable refuses a value of a hole."""
        self.bindings[name] = value
        told = (c for c in self.rule.conditions if is_number_condition(c) and self._is_evaluable(c))
        facts, scalars = len(self.facts), self.scalars
        self.scalars = dict(scalars)
        try:
            return not any(to_formula(self.scalar(condition)) == FALSE for condition in told)
        except UnsupportedOperatorError:  # as of lists that an operator is still to refuse
            return True
        except UndefinedOperatorError:
            return False
        finally:
            del self.bindings[name], self.facts[facts:]
            self.scalars = scalars

    # -- scalar terms

    def scalar(self, part: Term) -> Any:
        """Return the value of an attribute or condition."""
        return SymbolicScalars(self).evaluate(part)

    def bound_scalar(self, hole: Var) -> Any:
        """Return what a hole is bound to. Of what the meaning of an operator computes with no operator asks as it
        is."""
        if hole.name not in self.bindings:
            if not (self.assuming and isinstance(self.rule, ExpandedRule)):
                raise UnsupportedOperatorError(f"{hole.name} is used before it is bound")
            self.bindings[hole.name] = self._open_number(hole)
        return self.bindings[hole.name]

    def assume_conditions(self) -> None:
        """Add the conditions of the rule to the facts."""
        for condition in self.rule.conditions:
            self.require(to_formula(self.scalar(condition)), format_unfulfilled(condition))

    # -- terms

    def tensor(self, part: Term) -> SymbolicTensor:
        """Return the tensor that a term denotes."""
        if isinstance(part, App) and part.domain != SCALAR:
            return self.outputs(part)[part.output]
        if isinstance(part, Var) and part.kind in ("tensor", "const"):
            return self.hole(part)
        if self.find_unbound_hole(part):
            assert isinstance(part, Var)
            self.bindings[part.name] = self._open_number(part)
        found = self.scalar(part)
        return found.tensor if isinstance(found, SymbolicList) else to_tensor(found)

    def _open_number(self, var: Var) -> Any:
        if var.kind == "integer":
            return fresh_symbol(var.name)
        if var.kind == "real":
            return expr_of_factor(TensorElement(var.name, ()))
        raise UnsupportedOperatorError(f"how long {var.name} is")

    def outputs(self, app: App) -> tuple[SymbolicTensor, ...]:
        """Return the outputs of an operator."""
        node = app.node
        if node not in self.tensors:
            from graphopt.verifier.rule_node import RuleNode

            self.tensors[node] = self._with_types(node, denote(RuleNode(self, node)))
            for size in chain.from_iterable(t.shape for t in self.tensors[node] if self.assuming):
                if self.is_bounded:
                    self.facts.append(le(size, MAX_AXIS_SIZE))
        return self.tensors[node]

    def _with_types(self, app: App, found: tuple[SymbolicTensor, ...]) -> tuple[SymbolicTensor, ...]:
        """Return the outputs with their element types."""
        if len(found) < app.outputs:
            raise UnsupportedOperatorError(f"{app.op} with {app.outputs} outputs")
        try:
            types = self._types(app)
        except DTypeError as error:
            raise UndefinedOperatorError(str(error)) from error
        return tuple(tensor.with_dtype(dtype) for tensor, dtype in zip(found, types, strict=False))

    def _types(self, app: App) -> tuple[DType, ...]:
        """Return the element types of the outputs of an operator."""
        if not self.assuming and app in self.typing.right_side_types:
            return self.typing.right_side_types[app]
        to = self.typing.target(app) if element_types.has_explicit_type(app) else None
        inputs = [
            None if a is None or is_scalar(a) or self._is_absent_input(a) else self.tensor(a).dtype for a in app.inputs
        ]
        return element_types.infer_left_output_types(app, tuple(inputs), to)

    def _is_absent_input(self, part: Term) -> bool:
        return self.assuming and isinstance(part, Var) and self.is_absent(part)

    def to_integer(self, element: Expr) -> Size:
        """Return the element of a tensor of integers as an integer: one that is made of sizes, or some unknown one."""
        size = as_integer(element)
        if size is not None:
            return size
        if element not in self.integers:
            self.integers[element] = fresh_symbol("element")
        return self.integers[element]

    def break_cycles(self) -> None:
        """Drop the elements of tensors, which refer back to the instance, so that all is freed with it: collecting
        these cycles took a seventh of the time of proofs."""
        self.tensors.clear()
        self.assumed_elements.clear()
        self.element_obligations.clear()
        nothing = partial(_constant, ZERO)
        for name, hole in self.bindings.items():
            if isinstance(hole, SymbolicTensor):
                self.bindings[name] = SymbolicTensor(hole.shape, nothing, hole.dtype)

    def hole_tensors(self) -> list[SymbolicTensor]:
        return [value for value in self.bindings.values() if isinstance(value, SymbolicTensor)]


def _constant(value: Expr, _: Index) -> Expr:
    """Return the element of a tensor that has the same one everywhere."""
    return value
