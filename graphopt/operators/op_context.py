"""The argument of denotations: an operator with its inputs and attributes.

Each reader of denotations says where these come from: a proof, from an instance of a rule; inference, from a model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import isinf, isqrt
from typing import Any, TypeAlias

from graphopt.base.dtype import DType
from graphopt.expr.expressions import (
    Expr,
    Index,
    TensorElement,
    call_function,
    constant,
    expr_of_factor,
    guard_expr,
    integer_value,
)
from graphopt.expr.integers import Formula, Polynomial, Size, eq, fresh_symbol, ge, if_then_else
from graphopt.expr.symbolic_tensors import SymbolicTensor
from graphopt.ir import schemas

SymbolicShape: TypeAlias = "tuple[Size, ...]"
ElementBody: TypeAlias = "Callable[[Index], Expr]"
ReductionFunction: TypeAlias = "Callable[[SymbolicShape, ElementBody], Expr]"
Denotation: TypeAlias = "Callable[[OpContext], SymbolicTensor | tuple[SymbolicTensor, ...]]"

MAX_RANK = 4
"""Greatest rank that proofs enumerate; packs of axes beside named ones have at least up to two axes."""


SCALE_INPUTS: Mapping[str, tuple[int, ...]] = {"DequantizeLinear": (1,), "QLinearMatMul": (1,), "QLinearConv": (1,)}
"""Operators on integers that compute in the element type of a scale, with the position of that input."""
INDEX_INPUTS: Mapping[str, tuple[int, ...]] = {
    "ScatterElements": (1,),
    "NegativeLogLikelihoodLoss": (1,),
    "SoftmaxCrossEntropyLoss": (1,),
}
"""Inputs that are indices, in 32 or 64 bits: the same number is the same place.

An opaque operator also depends on the element types of all other operands: an exponent in double precision makes
another power, and a mask of truth values hides what one of floats is added to.
"""


class UndefinedOperatorError(Exception):
    """The operator has no meaning for these inputs: a left side cannot occur, a right side is wrong."""


class UnsupportedOperatorError(Exception):
    """The denotation does not cover this case: nothing is claimed."""


@dataclass(frozen=True)
class OneOf:
    """Values that a hole may have: each is tried that the conditions admit. A symbol is any other."""

    values: Sequence[Any]


@dataclass(frozen=True)
class SymbolLists:
    """Lists of symbols that a hole may have: each length is tried."""

    name: str
    lengths: Sequence[int]


class OpContext(ABC):
    """An operator as a denotation sees it: inputs, attributes, and where to say what it requires."""

    read_values: dict[str, Any]
    """The numbers and attributes that the denotation read."""
    inputs_read_as_numbers: set[int]
    """Inputs that the denotation read as numbers, which `used` then distinguishes."""

    @property
    @abstractmethod
    def op(self) -> str: ...

    @property
    @abstractmethod
    def domain(self) -> str: ...

    @property
    @abstractmethod
    def output_count(self) -> int:
        """Number of outputs."""

    @property
    @abstractmethod
    def assumes_defined(self) -> bool:
        """True if the operator is taken to be defined, as on the left side of a rule."""

    @property
    @abstractmethod
    def max_rank(self) -> int:
        """Greatest rank for which attributes are proposed."""

    def propose_sizes(self) -> SymbolLists:
        """Return proposals for a list of sizes that may have any length."""
        return SymbolLists("size", range(self.max_rank + 1))

    @abstractmethod
    def find_unread_parameter(self) -> str | None:
        """Return an attribute or input of the operator, or one that a hole for the others may hold, that was not
        read."""

    # what it requires

    @abstractmethod
    def require(self, condition: Formula, reason: str) -> None:
        """Require a condition for the operator to be defined."""

    @abstractmethod
    def require_indices(self, indices: SymbolicTensor, size: Size, *, from_end: bool = True) -> None:
        """Require that each element is an index into so many elements; negative ones count from the end, or are
        refused."""

    @abstractmethod
    def require_divisors(self, divisors: SymbolicTensor) -> None:
        """Require that no element is 0 where the operator computes in integers, which EXACT licenses."""

    @abstractmethod
    def require_opaque(self, truths: SymbolicTensor) -> None:
        """Require that each element is true, of which nothing is known: it is if the left side requires it, too."""

    # what is known

    @property
    @abstractmethod
    def is_constant_folded(self) -> bool:
        """True if the operator is computed when the rule is applied, in double precision: on constants of the right
        side."""

    @property
    @abstractmethod
    def is_exact(self) -> bool:
        """True if arithmetic is a function known by name only: in the exact model, and for types other than floats."""

    @property
    def dtype(self) -> DType:
        """The element type that the operator computes in."""
        order = [*SCALE_INPUTS.get(self.op, ()), *range(self.input_count)]
        found = [self.input(i).dtype for i in order if self.has_input(i) and not self.is_number(i)]
        return next((d for d in found if d is not DType.UNDEFINED), DType.UNDEFINED)

    @property
    def operand_dtypes(self) -> tuple[DType | None, ...]:
        """The element types of the operands, None for one that is absent, an index, or read as numbers; empty where all
        others have the type that the operator computes in, so that the result depends on no other."""
        own, indices = self.dtype, INDEX_INPUTS.get(self.op, ())
        found = tuple(
            None if i in self.inputs_read_as_numbers or i in indices else self._operand_dtype(i)
            for i in range(self.input_count)
        )
        return found if any(dtype not in (None, own) for dtype in found) else ()

    def _operand_dtype(self, position: int) -> DType | None:
        """Return the element type of an operand, None where it is absent or is a number."""
        return self.input(position).dtype if self.has_input(position) and not self.is_number(position) else None

    @abstractmethod
    def simplify(self, size: Size) -> Size:
        """Return a size, simplified by facts known when the operator is read."""

    @abstractmethod
    def simplify_shape(self, shape: SymbolicShape) -> SymbolicShape:
        """Return sizes, simplified by facts known when elements are compared."""

    @abstractmethod
    def is_known_equal(self, one: Size, other: Size) -> bool:
        """Return whether two sizes are known to be equal when elements are compared."""

    @abstractmethod
    def proves(self, condition: Formula) -> bool:
        """Return whether a condition is known to hold when elements are compared."""

    @abstractmethod
    def reshape_size(self, asked: Size, count: Size) -> Size:
        """Return the size that a symbol in the target of a Reshape of so many elements stands for."""

    def broadcast_size(self, a: Size, b: Size) -> Size:
        """Return the size of an axis that two operands share: they are equal, or one of them is 1."""
        return if_then_else(eq(a, 1), b, a)

    def scale_size(self, size: Size, scale: Expr) -> Size:
        """Return a size times a factor, as runtimes round it."""
        return self.size_from_elements(call_function("resized", integer_value(size), scale))

    @abstractmethod
    def size_from_elements(self, key: Expr) -> Size:
        """Return a size that depends on elements of tensors: equal for equal elements."""

    @abstractmethod
    def fresh_nonnegative(self, name: str) -> Size:
        """Return a new integer that is not negative."""

    # inputs

    @property
    @abstractmethod
    def input_count(self) -> int:
        """Number of inputs, absent ones included."""

    @abstractmethod
    def has_input(self, position: int) -> bool:
        """Return whether there is such an input."""

    @abstractmethod
    def input(self, position: int) -> SymbolicTensor:
        """Return the tensor at an input.

        Raises:
            UndefinedOperatorError: there is none.
        """

    def optional_input(self, position: int) -> SymbolicTensor | None:
        return self.input(position) if self.has_input(position) else None

    @abstractmethod
    def is_number(self, position: int) -> bool:
        """Return whether the input is a number or a list of the rule, not a tensor."""

    @abstractmethod
    def numbers(self, position: int, propose: Callable[[], Any]) -> Any:
        """Return the value of an input that is a number or a list of them, written in the rule or known in the
        model."""

    def integer_list(self, position: int, propose: Callable[[], Any]) -> tuple[Size, ...]:
        """Return the value of an input that is a list; on the left, a single number counts as a list of one."""
        value = self.numbers(position, propose)
        if not isinstance(value, tuple) and not (self.assumes_defined and self.is_number(position)):
            raise UndefinedOperatorError(f"{self.op}: input {position} is a list, not the number {value}")
        return value if isinstance(value, tuple) else (value,)

    @abstractmethod
    def max_index_count(self) -> int:
        """Return the length of the longest list of indices that is tried."""

    # attributes

    @abstractmethod
    def attribute(self, name: str, propose: Callable[[], Any], default: Any = None) -> Any:
        """Return the value of an attribute; what an open hole may stand for is proposed, once.

        `default` is for attributes of which the schema says none.
        """

    @abstractmethod
    def read_unmodeled_attribute(self, name: str) -> Any:
        """Return an attribute about the way of computing, not the result; results are the same only for equal ones."""

    @abstractmethod
    def require_absent_beside(self, name: str, what: str) -> None:
        """Require that an attribute is absent where something else is given."""

    @abstractmethod
    def cast_target(self) -> DType:
        """Return the target type of a Cast."""

    def require_integers(self, value: Any, name: str) -> Any:
        """Return a number or a list of them, required to be whole: computed real numbers may not be."""
        if not all(isinstance(item, int | Polynomial) for item in (value if isinstance(value, tuple) else (value,))):
            raise UnsupportedOperatorError(f"{self.op} whose {name} is not known to be whole")
        return value

    def integer(self, name: str, least: int | None = None, default: int | None = None) -> Size:
        """Return an integer that stays a symbol."""
        value: Size = self.require_integers(self.attribute(name, lambda: fresh_symbol(name), default), name)
        if least is not None:
            self.require(ge(value, least), f"{name} is at least {least}")
        return value

    def flag(self, name: str) -> bool:
        value = self.attribute(name, lambda: OneOf((0, 1)))
        if not isinstance(value, int):
            raise UnsupportedOperatorError(f"{name} is a symbol")
        if value not in (0, 1):
            raise UndefinedOperatorError(f"{self.op}: {name} is 0 or 1")
        return bool(value)

    def text(self, name: str, options: Sequence[str], default: str | None = None) -> str:
        """Return one of the texts that are modeled; `default` is for attributes of which the schema says none."""
        value = self.attribute(name, lambda: OneOf(options), default)
        if value not in options:
            raise UnsupportedOperatorError(f"{self.op} with {name}={value}")
        return str(value)

    def real(self, name: str) -> Expr:
        value = self.attribute(name, lambda: self.fresh_real(name))
        if isinstance(value, str | tuple):
            raise UndefinedOperatorError(f"{self.op}: {name} is a number, not {value}")
        return to_real(value)

    def fresh_real(self, name: str) -> Expr:
        """Return a new real number."""
        return expr_of_factor(TensorElement(f"{self.op}.{name}'{fresh_symbol(name)}", ()))

    def axis(self, name: str, rank: int) -> int:
        """Return an axis, counted from the start."""
        value = self.attribute(name, lambda: OneOf(range(-rank, rank)))
        return self.normalize_axis(value, rank)

    def normalize_axis(self, value: Any, rank: int) -> int:
        """Return an axis, counted from the start."""
        if isinstance(value, Polynomial):
            value = self.simplify(value)
        if not isinstance(value, int):
            raise UnsupportedOperatorError(f"{self.op} along an axis that is a symbol")
        if not -rank <= value < rank:
            raise UndefinedOperatorError(f"{self.op}: axis {value} of rank {rank}")
        return value % rank

    def axes(self, position: int, rank: int, count: int | None = None) -> tuple[int, ...]:
        """Return axes that are an input: distinct, counted from the start; as many as `count` says."""
        axes = tuple(
            self.normalize_axis(v, rank) for v in self.integer_list(position, lambda: OneOf(axis_subsets(rank, count)))
        )
        if len(set(axes)) < len(axes):
            raise UndefinedOperatorError(f"{self.op}: an axis twice")
        return axes

    def spatial_attribute(self, name: str, count: int, least: int) -> tuple[Size, ...]:
        """Return one integer for each spatial axis, or two, as symbols; the least is also the default."""
        value = self.attribute(name, lambda: tuple(fresh_symbol(name) for _ in range(count)), (least,) * count)
        if not isinstance(value, tuple):
            raise UnsupportedOperatorError(f"{name} is no list")
        if len(value) != count:
            raise UndefinedOperatorError(f"{self.op}: {name} of {len(value)} numbers, not {count}")
        for item in self.require_integers(value, name):
            self.require(ge(item, least), f"{name} is at least {least}")
        return value


@cache
def axis_subsets(rank: int, count: int | None = None) -> list[tuple[int, ...]]:
    """Return lists of (`count`) axes, counted from the start and from the end, and a few of two counted from both.

    Each set is tried in order, two axes backwards too, and three or more turned by one, which is no order backwards.
    """
    sets = [tuple(i for i in range(rank) if mask >> i & 1) for mask in range(1 << rank)]
    backwards = [axes[::-1] for axes in sets if len(axes) == 2]
    turned = [(*axes[1:], axes[0]) for axes in sets if len(axes) > 2]
    lists = sets + backwards + turned
    from_end = [tuple(i - rank for i in axes) for axes in sets + backwards if axes]
    pairs = [axes for axes in lists if len(axes) == 2]
    mixed = [(axes[0] - rank, axes[1]) for axes in dict.fromkeys(pairs[:1] + pairs[-2:])]
    mixed += [(axes[0], axes[1] - rank) for axes in pairs[:1]]
    return [axes for axes in lists + from_end + mixed if count in (None, len(axes))]


@schemas.memoized_by_schema
def schema_default(operator: str, name: str, domain: str = "") -> Any:
    """Return the default of an attribute, None if the schema states none."""
    schema = schemas.schema(operator, domain)
    if schema is None or name not in schema.attributes:
        return None
    return schemas.attribute_value(schema.attributes[name].default_value)


def to_real(number_: Any) -> Expr:
    """Return a scalar of a rule as a real number: a decimal as written, but a long one that is near a root as the
    root."""
    if isinstance(number_, Expr):
        return number_
    if isinstance(number_, Polynomial | int):
        return integer_value(number_)
    if isinstance(number_, tuple):
        raise UnsupportedOperatorError("arithmetic on a list of real numbers")
    if isinstance(number_, float) and not isinf(number_):
        return _recognize_root(number_) if len(repr(number_)) > 15 else constant(Fraction(repr(number_)))
    return constant(number_)


def to_tensor(value: Any) -> SymbolicTensor:
    """Return a number as a tensor without axes, a list as one with one axis."""
    if not isinstance(value, tuple):
        return SymbolicTensor((), lambda index: to_real(value))

    def element(index: Index) -> Expr:
        result = constant(0)
        for position, item in enumerate(value):
            result = result + guard_expr(eq(index[0], position), to_real(item))
        return result

    return SymbolicTensor((len(value),), element, DType.INT64)


@cache
def _recognize_root(decimal: float) -> Expr:
    """Return the root of a small fraction whose nearest float this is, else the decimal."""
    for bottom in range(1, 33):
        top = round(decimal * decimal * bottom)
        if 0 < top < 1000 and isqrt(top * bottom) ** 2 != top * bottom and (top / bottom) ** 0.5 == abs(decimal):
            return call_function("Sqrt", constant(Fraction(top, bottom))) * (1 if decimal > 0 else -1)
    for bottom in range(1, 1000):
        top = round(decimal * bottom)
        if top and top / bottom == decimal:
            return constant(Fraction(top, bottom))
    return constant(Fraction(repr(decimal)))
