"""What a denotation is given: an operator with its inputs and attributes.

Who reads denotations says where these come from: a proof, from an instance of a rule; inference, from a model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import isinf, isqrt
from typing import Any, TypeAlias

from graphopt.base.integers import Formula, Int, Size, choice, eq, fresh, ge
from graphopt.base.symbolic import Index, Read, Value, call, guarded, integer, lift, number
from graphopt.base.tensors import Tensor
from graphopt.base.types import DType
from graphopt.ir import ops

Shape: TypeAlias = "tuple[Size, ...]"
Body: TypeAlias = "Callable[[Index], Value]"
Reduction: TypeAlias = "Callable[[Shape, Body], Value]"
Denotation: TypeAlias = "Callable[[Node], Tensor | tuple[Tensor, ...]]"

MAX_RANK = 4
"""Ranks are enumerated up to this one in proofs; a pack of axes beside named ones up to at least two axes."""


SCALED: Mapping[str, tuple[int, ...]] = {"DequantizeLinear": (1,), "QLinearMatMul": (1,), "QLinearConv": (1,)}
"""Operators on integers that compute in the element type of a scale, and where that is among the inputs."""
INDICES: Mapping[str, tuple[int, ...]] = {
    "ScatterElements": (1,),
    "NegativeLogLikelihoodLoss": (1,),
    "SoftmaxCrossEntropyLoss": (1,),
}
"""Inputs that are indices, in 32 or 64 bits: the same number is the same place.

An opaque operator also depends on the element types of all other operands: an exponent in double precision makes
another power, and a mask of truth values hides what one of floats is added to.
"""


class Undefined(Exception):
    """The operator has no meaning for these inputs: the left side does not occur, the right side is wrong."""


class Unsupported(Exception):
    """There is no denotation of this: nothing is claimed."""


@dataclass(frozen=True)
class OneOf:
    """Values that a hole may have: each is tried, but those that the conditions refuse. A symbol is any other."""

    options: Sequence[Any]


@dataclass(frozen=True)
class Symbols:
    """Lists of symbols that a hole may have: each length is tried."""

    name: str
    lengths: Sequence[int]


class Node(ABC):
    """What a denotation sees of an operator: inputs, attributes, and where to say what it requires."""

    used: dict[str, Any]
    """The numbers and attributes that the denotation read."""
    read: set[int]
    """The inputs of which the denotation read the numbers, which `used` then tells apart."""

    @property
    @abstractmethod
    def op(self) -> str: ...

    @property
    @abstractmethod
    def domain(self) -> str: ...

    @property
    @abstractmethod
    def outputs(self) -> int:
        """How many outputs there are."""

    @property
    @abstractmethod
    def assuming(self) -> bool:
        """Whether the operator is taken to be defined, as on the left side of a rule."""

    @property
    @abstractmethod
    def max_rank(self) -> int:
        """The greatest rank for which attributes are proposed."""

    def any_sizes(self) -> Symbols:
        """Return what is proposed for a list of sizes that may have any length."""
        return Symbols("size", range(self.max_rank + 1))

    @abstractmethod
    def unasked(self) -> str | None:
        """Return an attribute or input that the operator has, or that a hole for the others may hold, and no one asked
        for."""

    # what it requires

    @abstractmethod
    def require(self, condition: Formula, reason: str) -> None:
        """Ask something for the operator to be defined."""

    @abstractmethod
    def require_indices(self, indices: Tensor, size: Size, *, from_end: bool = True) -> None:
        """Each element is an index of so many elements, negative ones counted from the end or refused."""

    @abstractmethod
    def require_divisors(self, divisors: Tensor) -> None:
        """No element is 0 where the operator computes in integers, which EXACT licenses."""

    @abstractmethod
    def require_some(self, truths: Tensor) -> None:
        """Each element is a truth value of which nothing is known: it holds if the left side asks for it, too."""

    # what is known

    @property
    @abstractmethod
    def folded(self) -> bool:
        """On the right side an operator on constants is computed when the rule is applied, in double precision."""

    @property
    @abstractmethod
    def is_exact(self) -> bool:
        """Whether arithmetic is only what it is called: in the exact model, and on what is no float."""

    @property
    def dtype(self) -> DType:
        """The element type that the operator computes in."""
        order = [*SCALED.get(self.op, ()), *range(self.count)]
        found = [self.input(i).dtype for i in order if self.has(i) and not self.is_number(i)]
        return next((d for d in found if d is not DType.UNDEFINED), DType.UNDEFINED)

    @property
    def types(self) -> tuple[DType | None, ...]:
        """The element types of the operands, None for one that is absent, an index, or read as numbers; empty where all
        others have the type that the operator computes in, so that the result depends on no other."""
        own, indices = self.dtype, INDICES.get(self.op, ())
        found = tuple(None if i in self.read or i in indices else self._type(i) for i in range(self.count))
        return found if any(dtype not in (None, own) for dtype in found) else ()

    def _type(self, position: int) -> DType | None:
        """Return the element type of an operand, None where it is absent or is a number."""
        return self.input(position).dtype if self.has(position) and not self.is_number(position) else None

    @abstractmethod
    def simplified(self, size: Size) -> Size:
        """Return a size by what is known when the operator is met."""

    @abstractmethod
    def settled(self, shape: Shape) -> Shape:
        """Sizes by what is known when elements are compared."""

    @abstractmethod
    def same(self, one: Size, other: Size) -> bool:
        """Return whether two sizes are known to be equal when elements are compared."""

    @abstractmethod
    def proves(self, condition: Formula) -> bool:
        """Return whether a condition is known to hold when elements are compared."""

    @abstractmethod
    def asked_size(self, asked: Size, count: Size) -> Size:
        """Return the size that a symbol asks for in a Reshape of so many elements."""

    def shared(self, a: Size, b: Size) -> Size:
        """Return the size of an axis that two operands share: they are equal, or one of them is 1."""
        return choice(eq(a, 1), b, a)

    def scaled(self, size: Size, scale: Value) -> Size:
        """Return a size times a factor, as runtimes round it."""
        return self.some_size(call("resized", integer(size), scale))

    @abstractmethod
    def some_size(self, key: Value) -> Size:
        """Return a size that the elements of tensors say: the same where they do."""

    @abstractmethod
    def natural(self, name: str) -> Size:
        """Return some integer that is not negative."""

    # inputs

    @property
    @abstractmethod
    def count(self) -> int:
        """How many inputs there are, absent ones included."""

    @abstractmethod
    def has(self, position: int) -> bool:
        """Return whether there is such an input."""

    @abstractmethod
    def input(self, position: int) -> Tensor:
        """Return the tensor that is read there.

        Raises:
            Undefined: there is none.
        """

    def optional(self, position: int) -> Tensor | None:
        return self.input(position) if self.has(position) else None

    @abstractmethod
    def is_number(self, position: int) -> bool:
        """Return whether the input is a number or a list of the rule, not a tensor."""

    @abstractmethod
    def numbers(self, position: int, propose: Callable[[], Any]) -> Any:
        """Return the value of an input that is a number or a list of them, in the rule or when it runs."""

    def list(self, position: int, propose: Callable[[], Any]) -> tuple[Size, ...]:
        """Return the value of an input that is a list: on the left a single number is as good as a list of one."""
        value = self.numbers(position, propose)
        if not isinstance(value, tuple) and not (self.assuming and self.is_number(position)):
            raise Undefined(f"{self.op}: input {position} is a list, not the number {value}")
        return value if isinstance(value, tuple) else (value,)

    @abstractmethod
    def most_indices(self) -> int:
        """Return the length of the longest list of indices that is tried."""

    # attributes

    @abstractmethod
    def attribute(self, name: str, propose: Callable[[], Any], default: Any = None) -> Any:
        """Return the value of an attribute; what an open hole may stand for is proposed, once.

        `default` is for attributes of which the schema says none.
        """

    @abstractmethod
    def ignored(self, name: str) -> Any:
        """Return the value of an attribute that says how to compute, not what; two are the same only where that is
        known."""

    @abstractmethod
    def not_beside(self, name: str, what: str) -> None:
        """Ask that an attribute has no place beside something else."""

    @abstractmethod
    def target(self) -> DType:
        """Return the element type that a Cast is to."""

    def whole(self, value: Any, name: str) -> Any:
        """Return a whole number or a list of them; what is computed as a real number may lie between."""
        if not all(isinstance(item, int | Int) for item in (value if isinstance(value, tuple) else (value,))):
            raise Unsupported(f"{self.op} whose {name} is not known to be whole")
        return value

    def integer(self, name: str, least: int | None = None, default: int | None = None) -> Size:
        """Return an integer that stays a symbol."""
        value: Size = self.whole(self.attribute(name, lambda: fresh(name), default), name)
        if least is not None:
            self.require(ge(value, least), f"{name} is at least {least}")
        return value

    def flag(self, name: str) -> bool:
        value = self.attribute(name, lambda: OneOf((0, 1)))
        if not isinstance(value, int):
            raise Unsupported(f"{name} is a symbol")
        if value not in (0, 1):
            raise Undefined(f"{self.op}: {name} is 0 or 1")
        return bool(value)

    def text(self, name: str, options: Sequence[str]) -> str:
        value = self.attribute(name, lambda: OneOf(options))
        if value not in options:
            raise Unsupported(f"{self.op} with {name}={value}")
        return str(value)

    def real(self, name: str) -> Value:
        value = self.attribute(name, lambda: self.unknown(name))
        if isinstance(value, str | tuple):
            raise Undefined(f"{self.op}: {name} is a number, not {value}")
        return real(value)

    def unknown(self, name: str) -> Value:
        """Return some real number."""
        return lift(Read(f"{self.op}.{name}'{fresh(name)}", ()))

    def absent(self, name: str) -> None:
        """Ask that an attribute is absent, with which the operator is not denoted."""
        if self.attribute(name, lambda: OneOf((None,))) is not None:
            raise Unsupported(f"{self.op} with {name}")

    def axis(self, name: str, rank: int) -> int:
        """Return an axis, counted from the start."""
        value = self.attribute(name, lambda: OneOf(range(-rank, rank)))
        return self.counted(value, rank)

    def counted(self, value: Any, rank: int) -> int:
        """Return an axis, counted from the start."""
        if isinstance(value, Int):
            value = self.simplified(value)
        if not isinstance(value, int):
            raise Unsupported(f"{self.op} along an axis that is a symbol")
        if not -rank <= value < rank:
            raise Undefined(f"{self.op}: axis {value} of rank {rank}")
        return value % rank

    def axes(self, position: int, rank: int, count: int | None = None) -> tuple[int, ...]:
        """Axes that are an input: distinct, counted from the start; as many as `count` says."""
        axes = tuple(self.counted(v, rank) for v in self.list(position, lambda: OneOf(subsets(rank, count))))
        if len(set(axes)) < len(axes):
            raise Undefined(f"{self.op}: an axis twice")
        return axes

    def sizes(self, name: str, count: int, least: int) -> tuple[Size, ...]:
        """One integer for each axis of space, or two; they stay symbols. The least is also the default."""
        value = self.attribute(name, lambda: tuple(fresh(name) for _ in range(count)), (least,) * count)
        if not isinstance(value, tuple):
            raise Unsupported(f"{name} is no list")
        if len(value) != count:
            raise Undefined(f"{self.op}: {name} of {len(value)} numbers, not {count}")
        for item in self.whole(value, name):
            self.require(ge(item, least), f"{name} is at least {least}")
        return value


@cache
def subsets(rank: int, count: int | None = None) -> list[tuple[int, ...]]:
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


@ops.reads_schemas
def schema_default(operator: str, name: str, domain: str = "") -> Any:
    """Return the value that an attribute has where none is given, None where the schema says none."""
    schema = ops.schema(operator, domain)
    if schema is None or name not in schema.attributes:
        return None
    return ops.attribute_value(schema.attributes[name].default_value)


def real(number_: Any) -> Value:
    """Return a scalar of a rule as a real number. A decimal is what it says, and a long one that is a root is the
    root."""
    if isinstance(number_, Value):
        return number_
    if isinstance(number_, Int | int):
        return integer(number_)
    if isinstance(number_, tuple):
        raise Unsupported("arithmetic on a list of real numbers")
    if isinstance(number_, float) and not isinf(number_):
        return _root(number_) if len(repr(number_)) > 15 else number(Fraction(repr(number_)))
    return number(number_)


def as_tensor(value: Any) -> Tensor:
    """Return a number as a tensor without axes, a list as one with one axis."""
    if not isinstance(value, tuple):
        return Tensor((), lambda index: real(value))

    def element(index: Index) -> Value:
        result = number(0)
        for position, item in enumerate(value):
            result = result + guarded(eq(index[0], position), real(item))
        return result

    return Tensor((len(value),), element, DType.INT64)


@cache
def _root(decimal: float) -> Value:
    """Return a root of a small fraction where the float is the nearest one to it, else the decimal."""
    for bottom in range(1, 33):
        top = round(decimal * decimal * bottom)
        if 0 < top < 1000 and isqrt(top * bottom) ** 2 != top * bottom and (top / bottom) ** 0.5 == abs(decimal):
            return call("Sqrt", number(Fraction(top, bottom))) * (1 if decimal > 0 else -1)
    for bottom in range(1, 1000):
        top = round(decimal * bottom)
        if top and top / bottom == decimal:
            return number(Fraction(top, bottom))
    return number(Fraction(repr(decimal)))
