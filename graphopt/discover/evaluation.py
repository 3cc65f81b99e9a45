"""Operators as functions of many tensors at once, made from their meanings: one kernel for each choice of shapes.

The meaning of an operator gives each element as a sum of guarded products. Its indices are computed once for the whole
tensor; the rest is arithmetic on batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, partial, reduce
from typing import Any, Self, TypeAlias, TypeGuard

import numpy as np

from graphopt.base.dtype import DType
from graphopt.discover.batch_arithmetic import Array, BatchArithmetic
from graphopt.expr.expr_evaluation import Accumulation, Branches, ExprAlgebra
from graphopt.expr.expressions import Binders, Expr, Index, OpaqueElement, TensorElement, expr_of_factor
from graphopt.expr.index_grid import IndexGrid, UndefinedIndexError
from graphopt.expr.integers import TRUE, And, BooleanAtom, Formula, Or, Polynomial, isolated_interner
from graphopt.expr.symbolic_tensors import SymbolicTensor, bind_indices
from graphopt.language.rule import Rule
from graphopt.language.terms import SCALAR, App, Lit, Term, Var, axis_arguments, holes, is_scalar, tensor, walk_term
from graphopt.operators.op_context import UndefinedOperatorError as NotDefined
from graphopt.operators.op_context import UnsupportedOperatorError

Shape: TypeAlias = tuple[int, ...]
Inputs: TypeAlias = Sequence[Array]
BatchFunction: TypeAlias = Callable[[Inputs], Array]

OF_ORDER = frozenset({"Abs", "Sign", "Positive", "Sqrt", "Pow", "Floor", "Ceil", "Round", "Log", "greatest", "guard"})
"""Functions of which the real numbers know more than that they are functions; the greatest and least of several, and
comparisons of values."""


@dataclass(frozen=True)
class Kernel:
    """An operator at given shapes of its inputs, in one arithmetic: a function from batches to batches."""

    shape: Shape
    compute: BatchFunction
    is_ordered: bool
    """True if it compares, or has roots: the real numbers may satisfy equations that the field does not."""


class UndefinedTerm(Exception):
    """An operator is not defined for these shapes."""


@isolated_interner()
def compile_kernel(app: App, shapes: Sequence[Shape], sizes: Mapping[str, int], arithmetic: BatchArithmetic) -> Kernel:
    """Return the kernel of an operator whose operands are holes, for tensors of these shapes.

    Raises:
        UndefinedTerm: it is not defined for them, or not looked into.
    """
    tensor, positions = _meaning(app, shapes, sizes)
    if not all(isinstance(size, int) for size in tensor.shape):
        raise UndefinedTerm(f"{app}: its shape hangs on values")
    shape = tuple(int(size) for size in tensor.shape if isinstance(size, int))
    index, binders = bind_indices(shape, "i")
    compiler = _Compiler(arithmetic, positions, IndexGrid().with_binders(binders))
    try:
        compute = compiler.value(tensor.element(index))
    except UndefinedIndexError as error:
        raise UndefinedTerm(str(error)) from error

    def whole(inputs: Inputs) -> Array:
        found = compute(inputs)
        batch = max((array.shape[1] for array in inputs), default=1)
        return np.ascontiguousarray(np.broadcast_to(found, (arithmetic.parts, batch, *shape)))

    return Kernel(shape, whole, compiler.is_ordered)


def _meaning(app: App, shapes: Sequence[Shape], sizes: Mapping[str, int]) -> tuple[SymbolicTensor, Mapping[str, int]]:
    """Return the output of an operator as its denotation says, and the positions of the holes by name."""
    from graphopt.verifier.choices import Choices, NoAdmissibleChoice
    from graphopt.verifier.element_types import Typing
    from graphopt.verifier.expanded_rule import expand_definitions
    from graphopt.verifier.solver import SolverSession
    from graphopt.verifier.symbolic_instance import SymbolicInstance

    names = dict.fromkeys(arg.name for arg in app.operands if isinstance(arg, Var) and arg.kind in ("tensor", "const"))
    typing, rule = (
        Typing(dict.fromkeys(names, DType.FLOAT)),
        expand_definitions(Rule("any", app, next(iter(holes(app))))),
    )
    instance = SymbolicInstance(rule, False, Choices(), SolverSession(), typing, typings=(typing,))
    instance.sizes.update(sizes)
    for name, shape in zip(names, shapes, strict=True):
        instance.bindings[name] = SymbolicTensor(shape, partial(_read, name), DType.FLOAT, DType.FLOAT)
    try:
        found = instance.tensor(rule.left[0])
        instance.assume_conditions()
    except (NotDefined, UnsupportedOperatorError, NoAdmissibleChoice) as error:
        raise UndefinedTerm(str(error)) from error
    if instance.assumed_elements or not all(fact == TRUE for fact in instance.facts):
        raise UndefinedTerm(f"{app}: whether it is defined hangs on values")
    return found, {name: position for position, name in enumerate(names)}


def _read(name: str, index: Index) -> Expr:
    return expr_of_factor(TensorElement(name, index))


def _depends_on_values(formula: Formula) -> bool:
    if isinstance(formula, And | Or):
        return any(map(_depends_on_values, formula.parts))
    return isinstance(formula, BooleanAtom)


@dataclass(frozen=True)
class _Compiler(ExprAlgebra[BatchFunction]):
    """Turns values into functions of batches."""

    arithmetic: BatchArithmetic
    holes: Mapping[str, int]
    grid: IndexGrid
    functions: set[str] = field(default_factory=set)
    """All that is called, folds and comparisons among it."""

    @property
    def is_ordered(self) -> bool:
        return not OF_ORDER.isdisjoint(self.functions)

    def linear_combination(self, parts: Sequence[tuple[Fraction, BatchFunction]]) -> BatchFunction:
        arithmetic = self.arithmetic
        scaled = [part if c == 1 else self.product([self._constant(c), part]) for c, part in parts]
        if not scaled:
            return self._constant(Fraction(0))
        return lambda inputs: reduce(arithmetic.add, (part(inputs) for part in scaled))

    def product(self, factors: Sequence[BatchFunction]) -> BatchFunction:
        multiply = self.arithmetic.multiply
        if not factors:
            return self._constant(Fraction(1))
        return lambda inputs: reduce(multiply, (factor(inputs) for factor in factors))

    def _constant(self, number: Fraction) -> BatchFunction:
        made = self.arithmetic.constant(number)
        array = made.reshape(*made.shape, *(1,) * len(self.grid.shape))
        return lambda _: array

    def accumulate(self, monoid: Accumulation, branches: Branches[Self, BatchFunction]) -> BatchFunction:
        if monoid == "sum":
            ((binders, guard, body),) = branches
            return self._under(binders)._sum(guard, body, len(binders))
        if monoid != "prod":
            self.functions.add("greatest")
        pieces = []
        for binders, guard, body in branches:
            inner = self._under(binders)
            pieces.append((body(inner), inner.formula(guard), inner.grid.shape))
        rank, parts = len(self.grid.shape), self.arithmetic.parts

        def laid_out(array: Array, shape: Shape) -> Array:
            """Merge the axes that a piece ranges over into one, in front of the others."""
            array = np.broadcast_to(array, (*array.shape[:2], *shape))
            return array.reshape(*array.shape[:2], -1, *shape[len(shape) - rank :])

        def compute(inputs: Inputs) -> Array:
            values = [laid_out(value(inputs), shape) for value, _, shape in pieces]
            asked = [laid_out(guard(inputs), shape) for _, guard, shape in pieces]
            batch = max(array.shape[1] for array in (*values, *asked))
            joined = np.concatenate([np.broadcast_to(v, (parts, batch, *v.shape[2:])) for v in values], axis=2)
            where = np.concatenate([np.broadcast_to(a, (1, batch, *a.shape[2:])) for a in asked], axis=2)
            return self.arithmetic.fold(monoid, joined, where)

        return compute

    def _under(self, binders: Binders) -> Self:
        return replace(self, grid=self.grid.with_binders(binders)) if binders else self

    def _sum(self, guard: Formula, body: Callable[[Self], BatchFunction], count: int) -> BatchFunction:
        """Return the sum over the axes in front of what the guard admits."""
        guards = guard.parts if isinstance(guard, And) else (guard,)
        plain = np.ones(self.grid.shape, bool)
        for part in guards:
            if not _depends_on_values(part):
                plain = plain & self.grid.pad_axes(self.grid.holds(part))
        asked = [self.formula(g) for g in guards if _depends_on_values(g)]
        of, arithmetic, axes, shape = body(self), self.arithmetic, tuple(range(2, 2 + count)), self.grid.shape

        def compute(inputs: Inputs) -> Array:
            product = of(inputs)
            for condition in asked:
                product = np.where(condition(inputs), product, 0)
            if not plain.all():
                product = np.where(plain, product, 0)
            if not axes:
                return product
            return arithmetic.total(np.broadcast_to(product, (*product.shape[:2], *shape)), axes)

        return compute

    def formula(self, formula: Formula) -> BatchFunction:
        """Return truth values of what hangs on values, too."""
        match formula:
            case And(parts) | Or(parts):
                each = [self.formula(part) for part in parts]
                combine = np.logical_and if isinstance(formula, And) else np.logical_or
                neutral = self.grid.pad_axes(isinstance(formula, And))[None, None]
                return lambda inputs: reduce(combine, (part(inputs) for part in each), neutral)
            case BooleanAtom(Expr() as subject, holds):
                self.functions.add("guard")
                of = self.value(subject)
                return lambda inputs: self.arithmetic.is_not_zero(of(inputs)) == holds
        found = self.grid.pad_axes(self.grid.holds(formula))[None, None]
        return lambda _: found

    def integer(self, size: Polynomial) -> BatchFunction:
        number = self.arithmetic.from_integers(self.grid.pad_axes(self.grid.integer(size)))
        return lambda _: number

    def call(self, function: str, args: Sequence[BatchFunction], params: tuple[Any, ...]) -> BatchFunction:
        self.functions.add(function)
        if any(isinstance(param, Polynomial) for param in params):
            raise UndefinedTerm(f"{function} with a number that hangs on an index")
        return lambda inputs: self.arithmetic.call(function, params, [arg(inputs) for arg in args])

    def opaque(self, element: OpaqueElement) -> BatchFunction:
        raise UndefinedTerm(f"{element.operator} is not looked into")

    def read(self, element: TensorElement) -> BatchFunction:
        """Return the elements at some indices; what is not asked for may lie outside."""
        position, rank = self.holes[element.tensor], len(self.grid.shape)
        index = [self.grid.pad_axes(self.grid.integer(i)) for i in element.index]
        if not index:
            return lambda inputs: inputs[position].reshape(*inputs[position].shape[:2], *(1,) * rank)

        def compute(inputs: Inputs) -> Array:
            array = inputs[position]
            if 0 in array.shape:
                return np.zeros((*array.shape[:2], *(1,) * rank), array.dtype)
            places: list[Any] = [np.clip(i, 0, n - 1) for i, n in zip(index, array.shape[2:], strict=True)]
            found: Array = array[(slice(None), slice(None), *places)]
            return found

        return compute


class Evaluator:
    """Computes terms in one arithmetic; makes each kernel once."""

    def __init__(self, arithmetic: BatchArithmetic) -> None:
        self.arithmetic = arithmetic
        self._kernels: dict[tuple[App, tuple[Shape, ...], tuple[int, ...]], Kernel | UndefinedTerm] = {}

    def kernel(self, choice: App, shapes: Sequence[Shape], sizes: Mapping[str, int]) -> Kernel:
        """Return the kernel of an operator applied to holes of some shapes; raise UndefinedTerm if it has none."""
        key = choice, tuple(shapes), tuple(sizes[axis] for axis in axes_read(choice))
        found = self._kernels.get(key)
        if found is None:
            try:
                found = compile_kernel(choice, shapes, sizes, self.arithmetic)
            except UndefinedTerm as error:
                found = error
            self._kernels[key] = found
        if isinstance(found, UndefinedTerm):
            raise found
        return found

    def shape(self, term: Term, shapes: Mapping[str, Shape], sizes: Mapping[str, int]) -> Shape:
        """Return the shape of a term for the shapes of its holes, by name; raise UndefinedTerm where it has none."""
        if isinstance(term, App):
            choice, operands = split_operands(term)
            return self.kernel(choice, [self.shape(each, shapes, sizes) for each in operands], sizes).shape
        return shapes[term.name] if isinstance(term, Var) else ()

    def value(self, term: Term, values: Mapping[str, Array], sizes: Mapping[str, int]) -> Array:
        """Return the value of a term for a batch of values of its holes; raise UndefinedTerm if it has none."""
        if isinstance(term, Var):
            return values[term.name]
        if isinstance(term, Lit):
            return self.arithmetic.constant(number_of(term))
        choice, operands = split_operands(term)
        inputs = [self.value(each, values, sizes) for each in operands]
        with np.errstate(all="ignore"):
            return self.kernel(choice, [array.shape[2:] for array in inputs], sizes).compute(inputs)


OPERANDS = tuple(tensor(name) for name in "abcdefgh")
"""Holes for the operands of an operator alone."""


@cache
def split_operands(app: App) -> tuple[App, tuple[Term, ...]]:
    """Return an operator applied to holes of its own, and its operands; numbers stay."""
    places = iter(OPERANDS)
    operands = [arg for arg in app.inputs if arg is not None and is_operand(arg)]
    args = tuple(next(places) if arg is not None and is_operand(arg) else arg for arg in app.args)
    return App(app.op, args, app.attrs, app.domain, app.output, app.outputs), tuple(operands)


def is_operand(arg: Term) -> bool:
    """Return whether an argument is a tensor, or a number that stands for one."""
    return not is_scalar(arg) or (isinstance(arg, Lit) and isinstance(arg.value, float))


def number_of(literal: Lit) -> Fraction:
    """Return the number that stands for a tensor without axes."""
    assert isinstance(literal.value, int | float)
    return Fraction(literal.value)


def is_axis_size(part: Term) -> TypeGuard[App]:
    """Return whether a term is a list of sizes of axes, or one as a number."""
    return isinstance(part, App) and part.domain == SCALAR and part.op in ("size", "sizes")


def with_axes(sizes: App, names: Iterable[str]) -> App:
    """Return the sizes of other axes in the place of these."""
    return replace(sizes, args=(Lit(" ".join(names)),))


@cache
def axes_read(choice: App) -> tuple[str, ...]:
    """Return the names of axes whose sizes an operator takes."""
    return tuple(axis for part in walk_term(choice) if is_axis_size(part) for axis in axis_arguments(part))
