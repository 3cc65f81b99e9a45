"""Sizes of a node's outputs, and the elements of small tensors of integers, as the denotation of its operator has them.

A denotation is read over the sizes that the model names. Whatever a proof enumerates (ranks, attributes, the lengths of
lists) has to be known of a node, or nothing is told. Names stand for any size, 0 included, and a claim holds wherever
the node is defined. Two things are taken for undefined, as in ONNX's own inference: a window longer than its padded
axis; and a symbolic element of Reshape's target that is 0 (which Reshape reads as "copy"), where the element counts
agree, so that it can concern only an empty tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, lru_cache, reduce
from itertools import product as tuples
from math import lcm
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar

import numpy as np

from graphopt.base.dtype import DType
from graphopt.expr.dim_translation import DimTranslation, UndecidedError, kleene_all
from graphopt.expr.dims import (
    Dim,
    NamedAtom,
    SymbolicDim,
    UnknownAtom,
    dim_product,
    divide_dim,
    is_nonnegative_dim,
    lower_bound,
    min_dim,
    replace_dim_atoms,
)
from graphopt.expr.expr_evaluation import Accumulation, Branches, ExprAlgebra
from graphopt.expr.expressions import (
    Binders,
    Expr,
    Index,
    OpaqueElement,
    TensorElement,
    constant,
    expr_of_factor,
    integer_value,
    split_cases,
)
from graphopt.expr.integers import (
    FALSE,
    TRUE,
    And,
    Atom,
    BooleanAtom,
    Formula,
    Or,
    Polynomial,
    Size,
    fresh_symbol,
    isolated_interner,
)
from graphopt.expr.substitution import Substitution, replace_atoms, replace_in_formula, single_symbol
from graphopt.expr.symbolic_tensors import SymbolicTensor, bind_indices
from graphopt.ir import schemas
from graphopt.ir.graph import Value
from graphopt.ir.types import Shape as Sizes
from graphopt.operators.elementwise_ops import ElementwiseDenotation
from graphopt.operators.node_evaluation import may_lose_precision
from graphopt.operators.node_operands import MAX_SHAPE_ELEMENTS, NodeOperands, PartialShape, broadcast_dim
from graphopt.operators.op_context import (
    MAX_RANK,
    OpContext,
    SymbolicShape,
    UndefinedOperatorError,
    UnsupportedOperatorError,
    schema_default,
)
from graphopt.operators.operator import ReferenceFidelity
from graphopt.operators.semantics import OPERATORS, denote

T = TypeVar("T")
Elements: TypeAlias = "tuple[Dim, ...]"

MAX_UNROLLED_TERMS = 256
"""Most terms of a sum that is computed."""

SIZE_DTYPES = frozenset({DType.INT32, DType.INT64})
"""Element types that hold any symbolic size."""


class OperandFacts(NamedTuple):
    """Facts known of a value that a node reads."""

    dtype: DType
    shape: Sizes | None
    elements: tuple[Dim | float, ...] | None

    @property
    def as_scalar(self) -> OperandFacts:
        """One of its elements."""
        return OperandFacts(self.dtype, (), self.elements if self.elements and len(self.elements) == 1 else None)


class NodeQuery(NamedTuple):
    """A node as far as a denotation can tell it from others: the key under which answers are cached."""

    op: str
    attrs: tuple[tuple[str, Hashable], ...]
    operands: tuple[OperandFacts | None, ...]
    outputs: int


@dataclass(frozen=True)
class ModelOpContext(OpContext):
    """A node of a model as a denotation sees it."""

    query: NodeQuery
    translation: DimTranslation = field(default_factory=DimTranslation)
    read_values: dict[str, Any] = field(default_factory=dict)
    inputs_read_as_numbers: set[int] = field(default_factory=set)
    queried: set[str | int] = field(default_factory=set)
    requirements: list[Formula] = field(default_factory=list)
    reshape_sizes: dict[Polynomial, Size] = field(default_factory=dict)
    """Sizes asked for in targets of Reshape, by the symbols that stand for the resulting sizes."""

    @property
    def op(self) -> str:
        return self.query.op

    @property
    def domain(self) -> str:
        return ""

    @property
    def output_count(self) -> int:
        return self.query.outputs

    @property
    def assumes_defined(self) -> bool:
        return True

    @property
    def max_rank(self) -> int:
        return MAX_RANK

    @property
    def is_constant_folded(self) -> bool:
        return False

    @property
    def is_exact(self) -> bool:
        return False

    @property
    def dtype(self) -> DType:
        return next((operand.dtype for operand in self.query.operands if operand), DType.UNDEFINED)

    def find_unread_parameter(self) -> str | None:
        return next((name for name, _ in self.query.attrs if name not in self.queried), None)

    # what it requires

    def require(self, condition: Formula, reason: str) -> None:
        if condition == FALSE:
            raise UndefinedOperatorError(reason)
        if self.reshape_sizes:
            self.requirements.append(condition)

    def require_indices(self, indices: SymbolicTensor, size: Size, *, from_end: bool = True) -> None:
        pass

    def require_divisors(self, divisors: SymbolicTensor) -> None:
        pass

    def require_opaque(self, truths: SymbolicTensor) -> None:
        pass

    # what is known

    def simplify(self, size: Size) -> Size:
        return size

    def simplify_shape(self, shape: SymbolicShape) -> SymbolicShape:
        return shape

    def is_known_equal(self, one: Size, other: Size) -> bool:
        return one == other

    def proves(self, condition: Formula) -> bool:
        return condition == TRUE

    def broadcast_size(self, a: Size, b: Size) -> Size:
        """Return the size of an axis that two operands share, unknown where it depends on which of them is 1."""
        found = broadcast_dim(self.to_dim(a), self.to_dim(b))
        return fresh_symbol("shared") if found is None else self.translation.to_int(found)

    def reshape_size(self, asked: Size, _count: Size) -> Size:
        answer = fresh_symbol("answer")
        assert isinstance(answer, Polynomial)
        self.reshape_sizes[answer] = asked
        return answer

    def scale_size(self, size: Size, scale: Expr) -> Size:
        """Return the size times a factor that floating point holds exactly, rounded down."""
        factor = scale.constant
        if factor is None or factor.denominator > 64:
            return fresh_symbol("scaled")
        return size * factor.numerator // factor.denominator

    def size_from_elements(self, _key: Expr) -> Size:
        return fresh_symbol("size")

    def fresh_nonnegative(self, name: str) -> Size:
        return fresh_symbol(name)

    # inputs

    @property
    def input_count(self) -> int:
        return len(self.query.operands)

    def has_input(self, position: int) -> bool:
        return position < self.input_count and self.query.operands[position] is not None

    def _get_operand(self, position: int) -> OperandFacts:
        self.queried.add(position)
        operand = self.query.operands[position] if position < self.input_count else None
        if operand is None:
            raise UndefinedOperatorError(f"{self.op} needs input {position}")
        return operand

    def input(self, position: int) -> SymbolicTensor:
        operand = self._get_operand(position)
        if operand.shape is None:
            raise UnsupportedOperatorError(f"{self.op} of a tensor of any rank")
        elements, shape = operand.elements, tuple(map(self.translation.to_int, operand.shape))
        if elements is not None and shape:
            shape = (len(elements),)

        def at(index: Index) -> Expr:
            place = index[0] if index else 0
            if elements is not None and isinstance(place, int) and 0 <= place < len(elements):
                known = elements[place]
                return constant(known) if isinstance(known, float) else integer_value(self.translation.to_int(known))
            return expr_of_factor(TensorElement(str(position), index))

        return SymbolicTensor(shape, at, operand.dtype, operand.dtype)

    def element(self, position: int, place: int) -> Dim:
        """Return the element of an input at a position.

        Raises:
            UndecidedError: that cannot be told.
        """
        operand = self._get_operand(position)
        found = operand.elements[place] if operand.elements and place < len(operand.elements) else None
        if found is None or isinstance(found, float):
            raise UndecidedError
        return found

    def is_number(self, position: int) -> bool:
        operand = self.query.operands[position] if self.has_input(position) else None
        return operand is not None and operand.elements is not None

    def numbers(self, position: int, _propose: Callable[[], Any]) -> Any:
        operand = self._get_operand(position)
        if operand.shape is None or len(operand.shape) > 1:
            raise UnsupportedOperatorError(f"{self.op} by numbers that are not known")
        if operand.elements is not None:
            if any(isinstance(number_, float) for number_ in operand.elements):
                raise UnsupportedOperatorError(f"{self.op} by numbers that may not be whole")
            found = tuple(self.translation.to_int(n) for n in operand.elements if not isinstance(n, float))
        else:
            length = operand.shape[0] if operand.shape else 1
            if not isinstance(length, int) or length > MAX_SHAPE_ELEMENTS:
                raise UnsupportedOperatorError(f"{self.op} of a list whose length is not known")
            found = tuple(fresh_symbol("element") for _ in range(length))
        self.read_values[f"input{position}"] = value = found if operand.shape else found[0]
        self.inputs_read_as_numbers.add(position)
        return value

    def max_index_count(self) -> int:
        return 0

    # attributes

    def attribute(self, name: str, _propose: Callable[[], Any], default: Any = None) -> Any:
        self.queried.add(name)
        given = dict(self.query.attrs)
        if name in given:
            value: Any = given[name]
        else:
            own = schema_default(self.op, name)
            value = default if own is None else own
        self.read_values[name] = value
        return value

    def read_unmodeled_attribute(self, name: str) -> Any:
        return self.attribute(name, lambda: None)

    def require_absent_beside(self, name: str, what: str) -> None:
        self.queried.add(name)
        if name in dict(self.query.attrs):
            raise UndefinedOperatorError(f"{self.op}: {name} beside {what}")

    def cast_target(self) -> DType:
        return DType(self.attribute("to", lambda: None))

    # what comes of it

    def to_dim(self, size: Size) -> Dim | None:
        """Return a size of the denotation as one of the model, None where it is not known."""
        try:
            return self.translation.to_dim(size)
        except UndecidedError:
            return None

    def solve_reshape_sizes(self) -> None:
        """Bind the symbols of Reshape's sizes: at most one size meets the requirements on each symbol alone.

        If the size asked for meets them, it is the answer. The first requirement is about the number of elements.
        """
        told = Substitution({single_symbol(answer): asked for answer, asked in self.reshape_sizes.items()})
        names = frozenset(map(single_symbol, self.reshape_sizes))
        counts = (
            bool(self.requirements) and self.translation.decide(replace_in_formula(self.requirements[0], told)) is True
        )
        for answer, asked in self.reshape_sizes.items():
            own = [fact for fact in self.requirements if fact.free_symbols & names == answer.free_symbols]
            size = self.to_dim(asked)
            if size is not None and (
                counts or all(self.translation.is_implied(replace_in_formula(f, told)) for f in own)
            ):
                self.translation.bind(answer, size)


# -- what is asked -----------------------------------------------------------------------------------------------------


def infer_shapes(k: NodeOperands) -> list[PartialShape | None]:
    """Return the shapes of the outputs as far as the denotation tells them, None where it does not."""
    if not _has_denoted_version(k):
        return []
    names = UnknownRenaming()
    return [tuple(map(names.restore, shape)) for shape in _denoted_shapes(build_query(k, names))]


def infer_contents(k: NodeOperands, dtypes: Sequence[DType | None]) -> list[Elements | None]:
    """Return the elements of each output, given its element type; None where they are not known."""
    names = UnknownRenaming()
    found = _denoted_contents(build_query(k, names)) if _has_denoted_version(k) and not _may_deviate(k) else ()
    return [
        _representable(elements and tuple(map(names.restore, elements)), dtype)
        for elements, dtype in zip([*found, *[None] * len(dtypes)], dtypes, strict=False)
    ]


def _may_deviate(k: NodeOperands) -> bool:
    """Return whether ONNX Runtime may compute other elements than are denoted.

    It adds up integers along axes in floating point, and many kernels treat empty tensors in ways of their own.
    """
    if OPERATORS[k.node.op].reference_fidelity is ReferenceFidelity.NOWHERE and any(
        0 in (k.shape(i) or ()) for i in range(len(k))
    ):
        return True
    dtype = k.dtype(0)
    if dtype is None or not dtype.is_integer:
        return False
    numbers = [element for element in k.contents(0) or () if isinstance(element, int)]
    return may_lose_precision(k.node.op, np.array(numbers, dtype.numpy))


def build_element_query(k: NodeOperands) -> NodeQuery | None:
    """Return the query for a node's elements, None if it has no denotation.

    For operators on elements, ranks are left out.
    """
    if not _has_denoted_version(k):
        return None
    question = build_query(k, UnknownRenaming())
    if isinstance(OPERATORS[k.node.op].denotation, ElementwiseDenotation):
        return question._replace(operands=tuple(operand and operand.as_scalar for operand in question.operands))
    return question


def first_output_element(question: NodeQuery) -> tuple[ModelOpContext, Expr] | None:
    """Return an element of the first output, over tensors named by their positions; None where there is none.

    It is valid in the session of the call: use `with isolated_interner()`.
    """
    node, outputs = _denote_query(question)
    try:
        return (node, outputs[0].element(bind_indices(outputs[0].shape)[0])) if outputs else None
    except (UndefinedOperatorError, UnsupportedOperatorError, ZeroDivisionError):
        return None


class UnknownRenaming:
    """Unknown sizes, numbered in the order of a query, so that all layers of a model ask the same."""

    def __init__(self) -> None:
        self._canonical_sizes: dict[NamedAtom | UnknownAtom, Dim] = {}
        self._original_sizes: dict[NamedAtom | UnknownAtom, Dim] = {}
        self._canonicalized: dict[Dim, Dim] = {}

    def canonicalize(self, dim: Dim) -> Dim:
        """Return a size as it is in the query."""
        if not isinstance(dim, SymbolicDim) or not dim.has_unknown:
            return dim
        if dim not in self._canonicalized:
            self._canonicalized[dim] = replace_dim_atoms(dim, self._canonical_atom)
        return self._canonicalized[dim]

    def restore(self, dim: T) -> T | Dim:
        """Return a size of the answer as it is in the model."""
        return (
            replace_dim_atoms(dim, self._original_sizes.get)
            if isinstance(dim, SymbolicDim) and dim.has_unknown
            else dim
        )

    def _canonical_atom(self, atom: NamedAtom | UnknownAtom) -> Dim | None:
        if isinstance(atom, UnknownAtom) and atom not in self._canonical_sizes:
            number_, size = _numbered_unknown(len(self._canonical_sizes))
            self._canonical_sizes[atom], self._original_sizes[number_] = size, SymbolicDim((((atom,), 1),))
        return self._canonical_sizes.get(atom)


def _has_denoted_version(k: NodeOperands) -> bool:
    """Return whether a node has the newest version of its operator, which is the one denoted."""
    node = k.node
    return node.op in OPERATORS and node.domain == "" and node.version == schemas.newest_version(node.op)


@cache
def _numbered_unknown(number_: int) -> tuple[UnknownAtom, SymbolicDim]:
    atom = UnknownAtom(number_)
    return atom, SymbolicDim((((atom,), 1),))


def build_query(k: NodeOperands, names: UnknownRenaming) -> NodeQuery:
    """Return the query for a node, with unknown sizes numbered."""
    operands = [
        None if v is None else _operand_facts(k, position, v, names) for position, v in enumerate(k.node.inputs)
    ]
    return NodeQuery(k.node.op, tuple(k.node.attrs.items()), tuple(operands), len(k.node.names))


_UNKNOWN_OPERAND = OperandFacts(DType.UNDEFINED, None, None)


def _operand_facts(k: NodeOperands, position: int, value: Value, names: UnknownRenaming) -> OperandFacts:
    type_ = k.graph.tensor_type(value)
    if type_ is None:
        return _UNKNOWN_OPERAND
    shape = type_.shape if type_.shape is None or type_.is_static else tuple(map(names.canonicalize, type_.shape))
    if shape is None or len(shape) > 1:
        return OperandFacts(type_.dtype, shape, None)
    if type_.dtype.is_float:
        return OperandFacts(type_.dtype, shape, k.float_contents(position))
    elements = k.contents(position)
    few = elements is not None and len(elements) <= MAX_SHAPE_ELEMENTS
    return OperandFacts(type_.dtype, shape, tuple(map(names.canonicalize, elements or ())) if few else None)


def may_be_defined(op: str, attrs: Mapping[str, Any], operands: Sequence[OperandFacts | None], outputs: int) -> bool:
    """Return whether an operator may be defined for these operands, as far as its denotation tells."""
    try:
        denote(ModelOpContext(NodeQuery(op, tuple(attrs.items()), tuple(operands), outputs)))
    except (UndefinedOperatorError, ZeroDivisionError):
        return False
    except UnsupportedOperatorError:
        return True
    return True


def _denote_query(question: NodeQuery) -> tuple[ModelOpContext, tuple[SymbolicTensor, ...]]:
    """Return a node with its outputs; none if its denotation does not determine them."""
    node = ModelOpContext(question)
    try:
        outputs = denote(node)
        node.solve_reshape_sizes()
    except (UndefinedOperatorError, UnsupportedOperatorError, ZeroDivisionError):
        return node, ()
    return node, outputs


@lru_cache(4096)
def _denoted_shapes(question: NodeQuery) -> tuple[PartialShape, ...]:
    with isolated_interner():
        node, outputs = _denote_query(question)
        return tuple(tuple(map(node.to_dim, output.shape)) for output in outputs)


@lru_cache(4096)
def _denoted_contents(question: NodeQuery) -> tuple[Elements | None, ...]:
    with isolated_interner():
        node, outputs = _denote_query(question)
        return tuple(_output_elements(node, output) for output in outputs)


def _output_elements(node: ModelOpContext, output: SymbolicTensor) -> Elements | None:
    """Return the elements of an output with at most one axis, if all are known."""
    shape = tuple(map(node.to_dim, output.shape))
    count = shape[0] if shape else 1
    if len(shape) > 1 or not isinstance(count, int) or count > MAX_SHAPE_ELEMENTS:
        return None
    try:
        return tuple(_ElementEvaluator(node).value(output.element((i,) if shape else ())) for i in range(count))
    except (UndecidedError, UndefinedOperatorError, UnsupportedOperatorError, ZeroDivisionError):
        return None


def _representable(elements: Elements | None, dtype: DType | None) -> Elements | None:
    """Return the elements if the element type holds them without wrapping around."""
    if elements is None or dtype is None or not (dtype.is_integer or dtype is DType.BOOL):
        return None
    low, high = (0, 1) if dtype is DType.BOOL else dtype.limits
    fits = all(low <= e <= high if isinstance(e, int) else dtype in SIZE_DTYPES for e in elements)
    return elements if fits else None


# -- elements ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _ElementEvaluator(ExprAlgebra[Dim]):
    """Evaluates elements of denotations as sizes of a model: the arithmetic on shapes that exporters leave behind."""

    node: ModelOpContext
    binder_values: Mapping[Atom, int] = field(default_factory=dict)

    def value(self, value: Expr) -> Dim:
        """Return the value of an expression where all its cases agree."""
        evaluate = super().value
        found = {evaluate(part) for condition, (part,) in split_cases(value) if self.decide(condition) is not False}
        if len(found) != 1:
            raise UndecidedError
        return found.pop()

    def linear_combination(self, parts: Sequence[tuple[Fraction, Dim]]) -> Dim:
        scale, total = lcm(*(coefficient.denominator for coefficient, _ in parts)), self.integer(0)
        for coefficient, part in parts:
            total = part * int(coefficient * scale) + total
        return _require_known(divide_dim(total, scale))

    def product(self, factors: Sequence[Dim]) -> Dim:
        return dim_product(factors)

    def accumulate(self, monoid: Accumulation, branches: Branches[Self, Dim]) -> Dim:
        found = [body(inner) for binders, guard, body in branches for inner in self._iterate_binders(binders, guard)]
        if not found and monoid not in NEUTRAL_ELEMENTS:
            raise UndecidedError  # the least or the greatest number of the type, or an infinity
        return reduce(MONOID_OPERATIONS[monoid], found) if found else NEUTRAL_ELEMENTS[monoid]

    def _iterate_binders(self, binders: Binders, guard: Formula) -> Iterator[Self]:
        """Yield evaluators for all values of binders that meet a condition; they run over few numbers."""
        extents = [self.integer(extent) for _, extent in binders]
        numbers = [extent for extent in extents if isinstance(extent, int) and extent <= MAX_UNROLLED_TERMS]
        if len(numbers) < len(extents):
            raise UndecidedError
        for values in tuples(*map(range, numbers)):
            bound = {b: value for (b, _), value in zip(binders, values, strict=True)}
            inner = replace(self, binder_values={**self.binder_values, **bound}) if bound else self
            holds = inner.decide(guard)
            if holds is None:
                raise UndecidedError
            if holds:
                yield inner

    def integer(self, size: Size) -> Dim:
        return self.node.translation.to_dim(replace_atoms(size, Substitution(self.binder_values)))

    def read(self, element: TensorElement) -> Dim:
        if not element.tensor.isdigit():
            raise UndecidedError
        place = self.integer(element.index[0]) if element.index else 0
        return _require_known(self.node.element(int(element.tensor), place) if isinstance(place, int) else None)

    def call(self, function: str, args: Sequence[Dim], params: tuple[Any, ...]) -> Dim:
        if function not in INTEGER_FUNCTIONS:
            raise UndecidedError
        return INTEGER_FUNCTIONS[function](*args, *params)

    def opaque(self, _element: OpaqueElement) -> Dim:
        raise UndecidedError

    def decide(self, condition: Formula) -> bool | None:
        """Return whether a condition holds, None where that is not known."""
        match condition:
            case And(parts):
                return kleene_all(map(self.decide, parts))
            case Or(parts):
                none = kleene_all(None if one is None else not one for one in map(self.decide, parts))
                return None if none is None else not none
            case BooleanAtom(subject, positive):
                try:
                    return (self.value(subject) != 0) == positive
                except UndecidedError:
                    return None
        return self.node.translation.decide(replace_in_formula(condition, Substitution(self.binder_values)))


def _require_known(found: Dim | None) -> Dim:
    if found is None:
        raise UndecidedError
    return found


def _is_positive(a: Dim) -> Dim:
    if (lower_bound(a) or 0) >= 1:
        return 1
    return _require_known(0 if is_nonnegative_dim(-a) else None)


def _is_nonzero(a: Dim) -> Dim:
    if isinstance(a, int):
        return int(a != 0)
    return _require_known(1 if (lower_bound(a) or 0) >= 1 or (lower_bound(-a) or 0) >= 1 else None)


def _quotient(a: Dim, b: Dim) -> Dim:
    """Divide integers as ONNX Runtime does: towards zero."""
    if isinstance(a, int) and isinstance(b, int):
        return _require_known(abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else None)
    exact = divide_dim(a, b)
    if exact is None and is_nonnegative_dim(a) and is_nonnegative_dim(b) and b != 0:
        return a // b
    return _require_known(exact)


def _remainder(a: Dim, b: Dim) -> Dim:
    """Return the remainder with the sign of the divisor."""
    if isinstance(a, int) and isinstance(b, int):
        return _require_known(a % b if b else None)
    if divide_dim(a, b) is not None:
        return 0
    return _require_known(a % b if is_nonnegative_dim(a) and is_nonnegative_dim(b) and b != 0 else None)


def _fmod(a: Dim, b: Dim) -> Dim:
    """Return the remainder with the sign of the dividend, as in C."""
    if isinstance(a, int) and isinstance(b, int) and b:
        return abs(a) % abs(b) * (-1 if a < 0 else 1)
    return _remainder(a, b)


def _magnitude(a: Dim) -> Dim:
    if is_nonnegative_dim(a):
        return a
    return _require_known(-a if is_nonnegative_dim(-a) else None)


def _minimum(a: Dim, b: Dim) -> Dim:
    found = min_dim(a, b)
    return _require_known(found if found in (a, b) or (is_nonnegative_dim(a) and is_nonnegative_dim(b)) else None)


INTEGER_FUNCTIONS: Mapping[str, Callable[..., Dim]] = {
    "Abs": _magnitude,
    "Cast": lambda a, kind, _to: _require_known(a if kind == "wrapped" else None),  # the caller checks that it fits
    "FMod": _fmod,
    "Mod": _remainder,
    "NotZero": _is_nonzero,
    "Positive": _is_positive,
    "Quotient": _quotient,
}
"""Functions of integers among those that denotations name."""

NEUTRAL_ELEMENTS: Mapping[str, Dim] = {"sum": 0, "prod": 1}
"""Results of monoids over nothing."""

MONOID_OPERATIONS: Mapping[str, Callable[[Dim, Dim], Dim]] = {
    "max": lambda a, b: a + b - _minimum(a, b),
    "min": _minimum,
    "sum": lambda a, b: b + a,
    "prod": lambda a, b: a * b,
}
