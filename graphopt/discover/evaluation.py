"""Operators as functions of many tensors at once, made from their meanings: one kernel for each choice of shapes.

The meaning of an operator gives each element as a sum of guarded products. Its indices are computed once for the whole
tensor; the rest is arithmetic on batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, partial, reduce
from typing import Any, TypeAlias, TypeGuard

import numpy as np

from graphopt.base.dtype import DType
from graphopt.discover.batch_arithmetic import Array, BatchArithmetic
from graphopt.expr.expressions import (
    Binders,
    Call,
    Expr,
    Factor,
    Fold,
    Index,
    IntegerValue,
    OpaqueElement,
    TensorElement,
    expr_of_factor,
)
from graphopt.expr.expressions import Term as Sum
from graphopt.expr.index_lists import INDEX_LIST_KINDS
from graphopt.expr.integers import (
    TRUE,
    And,
    Atom,
    BooleanAtom,
    Comparison,
    Formula,
    Or,
    Polynomial,
    Size,
    isolated_interner,
)
from graphopt.expr.symbolic_tensors import SymbolicTensor, bind_indices
from graphopt.language.rule import Rule
from graphopt.language.terms import SCALAR, App, Lit, Term, Var, holes, is_scalar, tensor, walk_term
from graphopt.operators.op_context import UndefinedOperatorError as NotDefined
from graphopt.operators.op_context import UnsupportedOperatorError

Shape: TypeAlias = tuple[int, ...]
Inputs: TypeAlias = Sequence[Array]
BatchFunction: TypeAlias = Callable[[Inputs], Array]

OF_ORDER = frozenset({"Abs", "Sign", "Positive", "Sqrt", "Pow", "Floor", "Ceil", "Round", "Log"})
"""Functions of which the real numbers satisfy more than congruence."""


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
    compiler = _Compiler(arithmetic, positions)
    compute = compiler.value(tensor.element(index), IndexGrid().with_binders(binders))

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


@dataclass(frozen=True)
class IndexGrid:
    """All indices of a shape at once: each symbol is an array along an axis of its own, with binders in front."""

    shape: Shape = ()
    symbols: Mapping[Atom, Array] = field(default_factory=dict)

    def with_binders(self, binders: Binders) -> IndexGrid:
        """Return a grid with one more axis in front for each binder, in their order."""
        symbols, shape = dict(self.symbols), self.shape
        for atom, extent in reversed(binders):
            length = self.concrete_size(extent)
            symbols[atom] = np.arange(length).reshape(length, *(1,) * len(shape))
            shape = (length, *shape)
        return IndexGrid(shape, symbols)

    def concrete_size(self, size: Size) -> int:
        found = self.size(size)
        if np.ndim(found):
            raise UndefinedTerm("a sum whose length hangs on an index")
        return max(int(found), 0)

    def pad_axes(self, numbers: Any) -> Array:
        """Return indices with as many axes as the grid has."""
        array = np.asarray(numbers)
        return array.reshape((1,) * (len(self.shape) - array.ndim) + array.shape)

    def size(self, size: Size) -> Any:
        if isinstance(size, int):
            return size
        return sum(c * reduce(np.multiply, map(self._atom, monomial), 1) for monomial, c in size.terms.items())

    def _atom(self, atom: Atom) -> Any:
        if atom.kind == "symbol":
            if atom not in self.symbols:
                raise UndefinedTerm(f"{atom} is not known")
            return self.symbols[atom]
        if atom.kind == "choice":
            condition, then, otherwise = atom.args
            return np.where(self.holds(condition), self.size(then), self.size(otherwise))
        if atom.kind in INDEX_LIST_KINDS:
            raise UndefinedTerm("what the contents of a constant say")
        over, by = map(self.size, atom.args)
        return over // by if atom.kind == "quotient" else over % by

    def holds(self, formula: Formula) -> Any:
        """Return whether a condition on indices holds at each of them."""
        match formula:
            case And(parts):
                return reduce(np.logical_and, map(self.holds, parts), np.True_)
            case Or(parts):
                return reduce(np.logical_or, map(self.holds, parts), np.False_)
            case Comparison(kind=kind, poly=poly):
                number = self.size(poly)
                return number >= 0 if kind == "ge" else (number == 0) == (kind == "eq")
        raise UndefinedTerm(f"{formula} hangs on values")


def _depends_on_values(formula: Formula) -> bool:
    if isinstance(formula, And | Or):
        return any(map(_depends_on_values, formula.parts))
    return isinstance(formula, BooleanAtom)


class _Compiler:
    """Turns symbolic values into functions of batches."""

    def __init__(self, arithmetic: BatchArithmetic, holes: Mapping[str, int]) -> None:
        self.arithmetic, self.holes = arithmetic, holes
        self.is_ordered = False

    def value(self, value: Expr, grid: IndexGrid) -> BatchFunction:
        """Return the sum of the terms of a value."""
        parts = [self._term(t, grid) for t in value.terms]
        if not parts:
            return self._constant(0, grid)
        plus = self.arithmetic.add
        return lambda inputs: reduce(plus, (part(inputs) for part in parts))

    def _constant(self, number: Any, grid: IndexGrid) -> BatchFunction:
        made = self.arithmetic.constant(Fraction(number))
        array = made.reshape(*made.shape, *(1,) * len(grid.shape))
        return lambda _: array

    def _term(self, term: Sum, grid: IndexGrid) -> BatchFunction:
        inner, guard = grid.with_binders(term.binders), term.guard
        guards = guard.parts if isinstance(guard, And) else (guard,)
        plain = np.ones(inner.shape, bool)
        for part in guards:
            if not _depends_on_values(part):
                plain = plain & inner.pad_axes(inner.holds(part))
        asked = [self.formula(g, inner) for g in guards if _depends_on_values(g)]
        parts = [self._factor(factor, inner) for factor in term.factors]
        start = self._constant(term.coefficient, inner)
        arithmetic, axes = self.arithmetic, tuple(range(2, 2 + len(term.binders)))

        def compute(inputs: Inputs) -> Array:
            product = start(inputs)
            for part in parts:
                product = arithmetic.multiply(product, part(inputs))
            for condition in asked:
                product = np.where(condition(inputs), product, 0)
            if not plain.all():
                product = np.where(plain, product, 0)
            if not axes:
                return product
            return arithmetic.total(np.broadcast_to(product, (*product.shape[:2], *inner.shape)), axes)

        return compute

    def formula(self, formula: Formula, grid: IndexGrid) -> BatchFunction:
        """Return truth values of a formula that may depend on values."""
        match formula:
            case And(parts) | Or(parts):
                each = [self.formula(part, grid) for part in parts]
                combine = np.logical_and if isinstance(formula, And) else np.logical_or
                neutral = grid.pad_axes(isinstance(formula, And))[None, None]
                return lambda inputs: reduce(combine, (part(inputs) for part in each), neutral)
            case BooleanAtom(Expr() as subject, holds):
                self.is_ordered = True
                of = self.value(subject, grid)
                return lambda inputs: self.arithmetic.is_not_zero(of(inputs)) == holds
        found = grid.pad_axes(grid.holds(formula))[None, None]
        return lambda _: found

    def _factor(self, factor: Factor, grid: IndexGrid) -> BatchFunction:
        match factor:
            case TensorElement(tensor=name, index=index):
                return self._read(self.holes[name], [grid.pad_axes(grid.size(i)) for i in index], grid)
            case IntegerValue(integer=size):
                number = self.arithmetic.from_integers(grid.pad_axes(grid.size(size)))
                return lambda _: number
            case Call(function=name, args=args, params=params):
                self.is_ordered = self.is_ordered or name in OF_ORDER
                given = [self.value(arg, grid) for arg in args]
                if any(isinstance(param, Polynomial) for param in params):
                    raise UndefinedTerm(f"{name} with a number that hangs on an index")
                return lambda inputs: self.arithmetic.call(name, params, [arg(inputs) for arg in given])
            case Fold():
                return self._fold(factor, grid)
        assert isinstance(factor, OpaqueElement)
        raise UndefinedTerm(f"{factor.operator} is not looked into")

    def _read(self, position: int, index: list[Array], grid: IndexGrid) -> BatchFunction:
        """Return the elements at some indices; indices that a mask excludes may lie outside."""
        if not index:
            return lambda inputs: inputs[position].reshape(*inputs[position].shape[:2], *(1,) * len(grid.shape))

        def compute(inputs: Inputs) -> Array:
            array = inputs[position]
            if 0 in array.shape:
                return np.zeros((*array.shape[:2], *(1,) * len(grid.shape)), array.dtype)
            places: list[Any] = [np.clip(i, 0, n - 1) for i, n in zip(index, array.shape[2:], strict=True)]
            found: Array = array[(slice(None), slice(None), *places)]
            return found

        return compute

    def _fold(self, fold: Fold, grid: IndexGrid) -> BatchFunction:
        """Return the greatest, the least or the product of all values that the pieces range over."""
        self.is_ordered = self.is_ordered or fold.monoid != "prod"
        pieces = []
        for piece in fold.branches:
            inner = grid.with_binders(piece.binders)
            pieces.append((self.value(piece.body, inner), self.formula(piece.guard, inner), inner.shape))
        rank, parts = len(grid.shape), self.arithmetic.parts

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
            return self.arithmetic.fold(fold.monoid, joined, where)

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


def axes_in(sizes: App) -> list[str]:
    """Return the names of the axes whose sizes a term lists."""
    (said,) = sizes.args
    assert isinstance(said, Lit)
    return str(said.value).split()


def with_axes(sizes: App, names: Iterable[str]) -> App:
    """Return the sizes of other axes in the place of these."""
    return replace(sizes, args=(Lit(" ".join(names)),))


@cache
def axes_read(choice: App) -> tuple[str, ...]:
    """Return the names of axes whose sizes an operator reads."""
    return tuple(axis for part in walk_term(choice) if is_axis_size(part) for axis in axes_in(part))
