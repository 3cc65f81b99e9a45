"""What denotations say of a node of a model: the sizes of its outputs, and what small tensors of integers hold.

A denotation is read over the sizes that the model names. What a proof enumerates is known of a node (ranks, attributes,
the lengths of lists), or nothing is told. Names stand for any size, 0 included, and a claim holds wherever the node is
defined. Two things are taken for undefined, as in ONNX's own inference: a window longer than its padded axis; and a
symbolic element of Reshape's target that is 0 (which Reshape reads as "copy"), where the element counts agree, so that
it can concern only an empty tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np

from graphopt.base.integers import FALSE, TRUE, Formula, Int, Size, fresh, fresh_integers
from graphopt.base.rebuilding import Substitution, only_symbol, rebuild_formula
from graphopt.base.sizes import Dim, Named, Sym, Unknown, replaced
from graphopt.base.symbolic import Index, Read, integer, lift, number
from graphopt.base.symbolic import Value as Number
from graphopt.base.tensors import Tensor, bind
from graphopt.base.translation import NotKnown, Translation
from graphopt.base.types import DType
from graphopt.base.types import Shape as Sizes
from graphopt.ir import ops
from graphopt.ir.graph import Value
from graphopt.operators.elements import Elements, element
from graphopt.operators.elementwise import Pointwise
from graphopt.operators.evaluate import may_lose_digits
from graphopt.operators.node import MAX_RANK, Node, Shape, Undefined, Unsupported, schema_default
from graphopt.operators.operands import LIMIT, Open, Operands, broadcast_size
from graphopt.operators.operator import Reference
from graphopt.operators.semantics import OPERATORS, denote

T = TypeVar("T")

SIZE_TYPES = frozenset({DType.INT32, DType.INT64})
"""Element types in which a symbolic size can be kept: no size exceeds them."""


class Operand(NamedTuple):
    """What is known of a value that a node reads."""

    dtype: DType
    shape: Sizes | None
    elements: tuple[Dim | float, ...] | None

    @property
    def scalar(self) -> Operand:
        """An element of it."""
        return Operand(self.dtype, (), self.elements if self.elements and len(self.elements) == 1 else None)


class Question(NamedTuple):
    """A node as far as a denotation can tell it from others; one that is met again is answered from memory."""

    op: str
    attrs: tuple[tuple[str, Hashable], ...]
    operands: tuple[Operand | None, ...]
    outputs: int


@dataclass(frozen=True)
class ModelNode(Node):
    """What a denotation sees of a node of a model."""

    question: Question
    translation: Translation = field(default_factory=Translation)
    used: dict[str, Any] = field(default_factory=dict)
    read: set[int] = field(default_factory=set)
    asked: set[str | int] = field(default_factory=set)
    facts: list[Formula] = field(default_factory=list)
    answers: dict[Int, Size] = field(default_factory=dict)
    """What a Reshape makes of the symbols that it is asked for, by what stands for it."""

    @property
    def op(self) -> str:
        return self.question.op

    @property
    def domain(self) -> str:
        return ""

    @property
    def outputs(self) -> int:
        return self.question.outputs

    @property
    def assuming(self) -> bool:
        return True

    @property
    def max_rank(self) -> int:
        return MAX_RANK

    @property
    def folded(self) -> bool:
        return False

    @property
    def is_exact(self) -> bool:
        return False

    @property
    def dtype(self) -> DType:
        return next((operand.dtype for operand in self.question.operands if operand), DType.UNDEFINED)

    def unasked(self) -> str | None:
        return next((name for name, _ in self.question.attrs if name not in self.asked), None)

    # what it requires

    def require(self, condition: Formula, reason: str) -> None:
        if condition == FALSE:
            raise Undefined(reason)
        if self.answers:
            self.facts.append(condition)

    def require_indices(self, indices: Tensor, size: Size, *, from_end: bool = True) -> None:
        pass

    def require_divisors(self, divisors: Tensor) -> None:
        pass

    def require_some(self, truths: Tensor) -> None:
        pass

    # what is known

    def simplified(self, size: Size) -> Size:
        return size

    def settled(self, shape: Shape) -> Shape:
        return shape

    def same(self, one: Size, other: Size) -> bool:
        return one == other

    def proves(self, condition: Formula) -> bool:
        return condition == TRUE

    def shared(self, a: Size, b: Size) -> Size:
        """Return the size of an axis that two operands share, unknown where it depends on which of them is 1."""
        found = broadcast_size(self.dim(a), self.dim(b))
        return fresh("shared") if found is None else self.translation.inward(found)

    def asked_size(self, asked: Size, _count: Size) -> Size:
        answer = fresh("answer")
        assert isinstance(answer, Int)
        self.answers[answer] = asked
        return answer

    def scaled(self, size: Size, scale: Number) -> Size:
        """Return the size times a factor that floating point holds exactly, rounded down."""
        factor = scale.constant
        if factor is None or factor.denominator > 64:
            return fresh("scaled")
        return size * factor.numerator // factor.denominator

    def some_size(self, _key: Number) -> Size:
        return fresh("size")

    def natural(self, name: str) -> Size:
        return fresh(name)

    # inputs

    @property
    def count(self) -> int:
        return len(self.question.operands)

    def has(self, position: int) -> bool:
        return position < self.count and self.question.operands[position] is not None

    def _operand(self, position: int) -> Operand:
        self.asked.add(position)
        operand = self.question.operands[position] if position < self.count else None
        if operand is None:
            raise Undefined(f"{self.op} needs input {position}")
        return operand

    def input(self, position: int) -> Tensor:
        operand = self._operand(position)
        if operand.shape is None:
            raise Unsupported(f"{self.op} of a tensor of any rank")
        elements, shape = operand.elements, tuple(map(self.translation.inward, operand.shape))
        if elements is not None and shape:
            shape = (len(elements),)

        def at(index: Index) -> Number:
            place = index[0] if index else 0
            if elements is not None and isinstance(place, int) and 0 <= place < len(elements):
                return self._value(elements[place])
            return lift(Read(str(position), index))

        return Tensor(shape, at, operand.dtype, operand.dtype)

    def _value(self, number_: Dim | float) -> Number:
        return number(number_) if isinstance(number_, float) else integer(self.translation.inward(number_))

    def element(self, position: int, place: int) -> Dim:
        """Return what an input holds at a place.

        Raises:
            NotKnown: that cannot be told.
        """
        operand = self._operand(position)
        found = operand.elements[place] if operand.elements and place < len(operand.elements) else None
        if found is None or isinstance(found, float):
            raise NotKnown
        return found

    def is_number(self, position: int) -> bool:
        operand = self.question.operands[position] if self.has(position) else None
        return operand is not None and operand.elements is not None

    def numbers(self, position: int, _propose: Callable[[], Any]) -> Any:
        operand = self._operand(position)
        if operand.shape is None or len(operand.shape) > 1:
            raise Unsupported(f"{self.op} by numbers that are not known")
        if operand.elements is not None:
            if any(isinstance(number_, float) for number_ in operand.elements):
                raise Unsupported(f"{self.op} by numbers that may not be whole")
            found = tuple(self.translation.inward(n) for n in operand.elements if not isinstance(n, float))
        else:
            length = operand.shape[0] if operand.shape else 1
            if not isinstance(length, int) or length > LIMIT:
                raise Unsupported(f"{self.op} of a list whose length is not known")
            found = tuple(fresh("element") for _ in range(length))
        self.used[f"input{position}"] = value = found if operand.shape else found[0]
        self.read.add(position)
        return value

    def most_indices(self) -> int:
        return 0

    # attributes

    def attribute(self, name: str, _propose: Callable[[], Any], default: Any = None) -> Any:
        self.asked.add(name)
        given = dict(self.question.attrs)
        if name in given:
            value: Any = given[name]
        else:
            own = schema_default(self.op, name)
            value = default if own is None else own
        self.used[name] = value
        return value

    def ignored(self, name: str) -> Any:
        return self.attribute(name, lambda: None)

    def not_beside(self, name: str, what: str) -> None:
        self.asked.add(name)
        if name in dict(self.question.attrs):
            raise Undefined(f"{self.op}: {name} beside {what}")

    def target(self) -> DType:
        return DType(self.attribute("to", lambda: None))

    # what comes of it

    def dim(self, size: Size) -> Dim | None:
        """Return a size of the denotation as one of the model, None where it is not known."""
        try:
            return self.translation.outward(size)
        except NotKnown:
            return None

    def settle(self) -> None:
        """Say what stands for the sizes that were asked for: at most one size each meets what is required of it alone.

        Where the size that was asked for does, it is the answer. What is required first is the number of elements.
        """
        told = Substitution({only_symbol(answer): asked for answer, asked in self.answers.items()})
        names = frozenset(map(only_symbol, self.answers))
        counts = bool(self.facts) and self.translation.decide(rebuild_formula(self.facts[0], told)) is True
        for answer, asked in self.answers.items():
            own = [fact for fact in self.facts if fact.symbols & names == answer.symbols]
            size = self.dim(asked)
            if size is not None and (counts or all(self.translation.follows(rebuild_formula(f, told)) for f in own)):
                self.translation.means(answer, size)


# -- what is asked -----------------------------------------------------------------------------------------------------


def shapes(k: Operands) -> list[Open | None]:
    """Return what a denotation tells of the shapes of the outputs, None for each of which it tells nothing."""
    if not _is_denoted(k):
        return []
    names = Numbered()
    return [tuple(map(names.back, shape)) for shape in _shapes(question_of(k, names))]


def contents(k: Operands, dtypes: Sequence[DType | None]) -> list[Elements | None]:
    """Return the elements of each output, whose element type is given; None for each that is not known."""
    names = Numbered()
    found = _contents(question_of(k, names)) if _is_denoted(k) and not _may_depart(k) else ()
    return [
        _fitting(elements and tuple(map(names.back, elements)), dtype)
        for elements, dtype in zip([*found, *[None] * len(dtypes)], dtypes, strict=False)
    ]


def _may_depart(k: Operands) -> bool:
    """Return whether ONNX Runtime may compute other elements than are denoted.

    It adds up integers along axes in floating point, and what it makes of nothing is its own in many a kernel.
    """
    if OPERATORS[k.node.op].reference is Reference.NOWHERE and any(0 in (k.shape(i) or ()) for i in range(len(k))):
        return True
    dtype = k.dtype(0)
    if dtype is None or not dtype.is_integer:
        return False
    numbers = [element for element in k.contents(0) or () if isinstance(element, int)]
    return may_lose_digits(k.node.op, np.array(numbers, dtype.numpy))


def question_of_elements(k: Operands) -> Question | None:
    """Return what is asked of a node's elements, None where it has no meaning.

    Of what is computed element by element the ranks do not matter.
    """
    if not _is_denoted(k):
        return None
    question = question_of(k, Numbered())
    if isinstance(OPERATORS[k.node.op].denotation, Pointwise):
        return question._replace(operands=tuple(operand and operand.scalar for operand in question.operands))
    return question


def element_of(question: Question) -> tuple[ModelNode, Number] | None:
    """Return an element of the first output, in which tensors are called by their positions; None where none is told.

    It is good in the session in which it is asked for: ask `with fresh_integers()`.
    """
    node, outputs = _denoted(question)
    try:
        return (node, outputs[0].at(bind(outputs[0].shape)[0])) if outputs else None
    except (Undefined, Unsupported, ZeroDivisionError):
        return None


class Numbered:
    """Unknown sizes, numbered as one question meets them: the same is asked of each layer."""

    def __init__(self) -> None:
        self._numbers: dict[Named | Unknown, Dim] = {}
        self._sizes: dict[Named | Unknown, Dim] = {}
        self._there: dict[Dim, Dim] = {}

    def there(self, dim: Dim) -> Dim:
        """Return a size as the question has it."""
        if not isinstance(dim, Sym) or not dim.has_unknown:
            return dim
        if dim not in self._there:
            self._there[dim] = replaced(dim, self._number)
        return self._there[dim]

    def back(self, dim: T) -> T | Dim:
        """Return a size of the answer as the model has it."""
        return replaced(dim, self._sizes.get) if isinstance(dim, Sym) and dim.has_unknown else dim

    def _number(self, atom: Named | Unknown) -> Dim | None:
        if isinstance(atom, Unknown) and atom not in self._numbers:
            number_, size = _numbered(len(self._numbers))
            self._numbers[atom], self._sizes[number_] = size, Sym((((atom,), 1),))
        return self._numbers.get(atom)


def _is_denoted(k: Operands) -> bool:
    """Return whether a node has the meaning that is denoted: that of the newest version."""
    node = k.node
    return node.op in OPERATORS and node.domain == "" and node.version == ops.newest(node.op)


@cache
def _numbered(number_: int) -> tuple[Unknown, Sym]:
    atom = Unknown(number_)
    return atom, Sym((((atom,), 1),))


def question_of(k: Operands, names: Numbered) -> Question:
    """Return a node as a denotation sees it, with numbers in the place of unknown sizes."""
    operands = [None if v is None else _operand(k, position, v, names) for position, v in enumerate(k.node.inputs)]
    return Question(k.node.op, tuple(k.node.attrs.items()), tuple(operands), len(k.node.names))


_ANY = Operand(DType.UNDEFINED, None, None)


def _operand(k: Operands, position: int, value: Value, names: Numbered) -> Operand:
    type_ = k.graph.tensor_type(value)
    if type_ is None:
        return _ANY
    shape = type_.shape if type_.shape is None or type_.is_static else tuple(map(names.there, type_.shape))
    if shape is None or len(shape) > 1:
        return Operand(type_.dtype, shape, None)
    if type_.dtype.is_float:
        return Operand(type_.dtype, shape, k.reals(position))
    elements = k.contents(position)
    few = elements is not None and len(elements) <= LIMIT
    return Operand(type_.dtype, shape, tuple(map(names.there, elements or ())) if few else None)


def is_defined(op: str, attrs: Mapping[str, Any], operands: Sequence[Operand | None], outputs: int) -> bool:
    """Return whether an operator has a meaning for numbers, as far as its denotation tells."""
    try:
        denote(ModelNode(Question(op, tuple(attrs.items()), tuple(operands), outputs)))
    except (Undefined, ZeroDivisionError):
        return False
    except Unsupported:
        return True
    return True


def _denoted(question: Question) -> tuple[ModelNode, tuple[Tensor, ...]]:
    """Return a node with its outputs; none where its denotation does not say what they are."""
    node = ModelNode(question)
    try:
        outputs = denote(node)
        node.settle()
    except (Undefined, Unsupported, ZeroDivisionError):
        return node, ()
    return node, outputs


@lru_cache(4096)
def _shapes(question: Question) -> tuple[Open, ...]:
    with fresh_integers():
        node, outputs = _denoted(question)
        return tuple(tuple(map(node.dim, output.shape)) for output in outputs)


@lru_cache(4096)
def _contents(question: Question) -> tuple[Elements | None, ...]:
    with fresh_integers():
        node, outputs = _denoted(question)
        return tuple(_elements(node, output) for output in outputs)


def _elements(node: ModelNode, output: Tensor) -> Elements | None:
    """Return the elements of an output with one axis at most, where each is known."""
    shape = tuple(map(node.dim, output.shape))
    count = shape[0] if shape else 1
    if len(shape) > 1 or not isinstance(count, int) or count > LIMIT:
        return None
    try:
        return tuple(element(node, output.at((i,) if shape else ())) for i in range(count))
    except (NotKnown, Undefined, Unsupported, ZeroDivisionError):
        return None


def _fitting(elements: Elements | None, dtype: DType | None) -> Elements | None:
    """Return the elements if the element type holds them without wrapping around."""
    if elements is None or dtype is None or not (dtype.is_integer or dtype is DType.BOOL):
        return None
    low, high = (0, 1) if dtype is DType.BOOL else dtype.limits
    fits = all(low <= e <= high if isinstance(e, int) else dtype in SIZE_TYPES for e in elements)
    return elements if fits else None
