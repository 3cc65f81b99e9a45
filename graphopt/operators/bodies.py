"""Meanings out of schemas: what an operator computes that ONNX says by other operators.

A body is read over the tensors of a node. One that a schema makes for a node is made for what is known of that: element
types, ranks and all attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeAlias

from graphopt.base.integers import Formula, Size
from graphopt.base.symbolic import Value
from graphopt.base.tensors import Tensor, as_size
from graphopt.base.types import DType
from graphopt.ir import ops
from graphopt.language.functions import Function, Unreadable, read
from graphopt.language.schemas import Misfit, Types
from graphopt.language.term import App, Lit, Term, Var, is_scalar
from graphopt.operators.broadcasting import fits
from graphopt.operators.node import Node, OneOf, Shape, Undefined, Unsupported, as_tensor, schema_default

Meaning: TypeAlias = "Callable[[Node], tuple[Tensor, ...]]"
"""What all operators mean (`semantics.denote`)."""
Plain: TypeAlias = "int | float | str"


@dataclass(frozen=True)
class Body:
    """The denotation of an operator by the body that its schema has, or makes for a node."""

    meaning: Meaning
    demand: Callable[[Node], None] | None = None
    """Asks for what the text says beside the body."""
    modes: Sequence[tuple[str, Sequence[str]]] = ()
    """The texts that may stand for an open attribute."""

    def __call__(self, node: Node) -> tuple[Tensor, ...]:
        if self.demand is not None:
            self.demand(node)
        function = _function(node, dict(self.modes))
        inputs = (node.optional(position) for position in range(node.count))
        known: dict[Term, Tensor | None] = dict.fromkeys(function.inputs)
        known |= zip(function.inputs, inputs, strict=False)
        return _Reading(node, function, known, self.meaning).outputs()


@dataclass(frozen=True)
class OfElements:
    """What an elementwise operator computes of elements, by the body that its schema has."""

    meaning: Meaning

    def __call__(self, node: Node) -> Callable[..., Value]:
        function = _function(node, {})
        dtypes = [node.input(position).dtype for position in range(node.count)]
        numbers: dict[Term, Tensor | None] = {
            hole: as_tensor(node.real(name)) for name, hole in function.attributes.items()
        }

        def apply(*values: Value) -> Value:
            elements = zip(function.inputs, map(_element, values, dtypes), strict=True)
            (output,) = _Reading(node, function, numbers | dict(elements), self.meaning).outputs()
            return output.at(())

        return apply


def _element(value: Value, dtype: DType) -> Tensor:
    return Tensor((), lambda _: value, dtype)


# -- the function of a node --------------------------------------------------------------------------------------------


def _function(node: Node, modes: Mapping[str, Sequence[str]]) -> Function:
    """Return the body of an operator as terms.

    Raises:
        Unsupported: there is none for what is known of the node, or it says more than terms can.
    """
    attrs = ((name, _closed(node, name, modes.get(name))) for name in ops.asked_of_body(node.op))
    inputs = (node.optional(position) for position in range(node.count))
    types = tuple(given and (given.dtype, given.rank) for given in inputs)
    return _of_one(node.op, types, node.outputs, tuple((name, value) for name, value in attrs if value is not None))


def _closed(node: Node, name: str, options: Sequence[str] | None) -> Plain | None:
    """Return the value of an attribute, None where it has none: a body is made for one."""

    def propose() -> OneOf:
        if options is None:
            raise Unsupported(f"{node.op} with any {name}")
        return OneOf(options)

    value = node.attribute(name, propose)
    if not isinstance(value, int | float | str | None):
        raise Unsupported(f"{node.op} with any {name}")
    return value


@lru_cache(1024)
def _of_one(
    op: str,
    inputs: tuple[tuple[DType, int] | None, ...],
    outputs: int,
    attrs: tuple[tuple[str, int | float | str], ...],
) -> Function:
    """Return the body that a schema has, or makes for such a node."""
    proto = ops.function_body(op, inputs, outputs, dict(attrs))
    if proto is None:
        raise Unsupported(f"{op}, whose schema has no body for these inputs")
    try:
        return read(proto)
    except Unreadable as error:
        raise Unsupported(f"{op}, in whose body {error}") from error


@lru_cache(1024)
def _types(sides: tuple[Term, ...], inputs: tuple[tuple[str, DType], ...]) -> Types:
    return Types(sides, dict(inputs))


# -- its nodes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Reading:
    """One function, read at one node."""

    node: Node
    function: Function
    known: dict[Term, Tensor | None]
    """What its terms are; first the inputs, of which some may be absent."""
    meaning: Meaning

    def outputs(self) -> tuple[Tensor, ...]:
        return tuple(map(self.tensor, self.function.outputs[: self.node.outputs]))

    def has(self, part: Term | None) -> bool:
        """Return whether an operator has an input that is written so."""
        return part is not None and self.known.get(part, part) is not None

    def tensor(self, part: Term) -> Tensor:
        if part not in self.known:
            self._read(part)
        found = self.known[part]
        if found is None:
            raise Undefined(f"{self.node.op} needs {part}")
        return found

    def _read(self, part: Term) -> None:
        match part:
            case Lit(value):
                self.known[part] = as_tensor(value)
            case Var(name):
                self.known[part] = as_tensor(self.node.real(name))
            case App() if is_number(part):
                self.known[part] = self.tensor(part.operands[0]).typed(self._dtype(part))
            case App():
                outputs = self.meaning(_Inner(self, part.node))
                for position, output in enumerate(outputs[: part.outputs]):
                    app = replace(part, output=position)
                    self.known[app] = output.typed(self._dtype(app))

    def _dtype(self, app: App) -> DType:
        inputs = ((hole.name, self.known.get(hole)) for hole in self.function.inputs)
        known = tuple((name, tensor.dtype) for name, tensor in inputs if tensor is not None and tensor.dtype)
        try:
            return _types(self.function.outputs, known).of((app.node, app.output))
        except Misfit as error:
            raise Undefined(f"{self.node.op}: {error}") from error


def is_number(part: Term) -> bool:
    """Return whether a term of a body is a number or a list: as it is written, or cast to floats."""
    match part:
        case App(op="Cast", args=(Lit() | Var() as number,), attrs=(("to", Lit(value=int(to))),)):
            return DType(to).is_float and is_scalar(number)
    return is_scalar(part)


@dataclass(frozen=True)
class _Inner(Node):
    """An operator of a body: what it requires, its node requires, and what is known there is known here."""

    reading: _Reading
    app: App
    used: dict[str, Any] = field(default_factory=dict)
    read: set[int] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)

    @property
    def outer(self) -> Node:
        return self.reading.node

    @property
    def op(self) -> str:
        return self.app.op

    @property
    def domain(self) -> str:
        return self.app.domain

    @property
    def outputs(self) -> int:
        return self.app.outputs

    @property
    def assuming(self) -> bool:
        return self.outer.assuming

    @property
    def max_rank(self) -> int:
        return self.outer.max_rank

    @property
    def folded(self) -> bool:
        return self.outer.folded

    @property
    def is_exact(self) -> bool:
        """In the exact model the whole operator is a function that is named."""
        return False

    def unasked(self) -> str | None:
        return next((name for name, _ in self.app.attrs if name not in self.asked), None)

    def require(self, condition: Formula, reason: str) -> None:
        self.outer.require(condition, reason)

    def require_indices(self, indices: Tensor, size: Size, *, from_end: bool = True) -> None:
        self.outer.require_indices(indices, size, from_end=from_end)

    def require_divisors(self, divisors: Tensor) -> None:
        self.outer.require_divisors(divisors)

    def require_some(self, truths: Tensor) -> None:
        self.outer.require_some(truths)

    def simplified(self, size: Size) -> Size:
        return self.outer.simplified(size)

    def settled(self, shape: Shape) -> Shape:
        return self.outer.settled(shape)

    def same(self, one: Size, other: Size) -> bool:
        return self.outer.same(one, other)

    def proves(self, condition: Formula) -> bool:
        return self.outer.proves(condition)

    def shared(self, a: Size, b: Size) -> Size:
        return self.outer.shared(a, b)

    def asked_size(self, asked: Size, count: Size) -> Size:
        return self.outer.asked_size(asked, count)

    def some_size(self, key: Value) -> Size:
        return self.outer.some_size(key)

    def natural(self, name: str) -> Size:
        return self.outer.natural(name)

    def most_indices(self) -> int:
        return self.outer.most_indices()

    # inputs

    @property
    def count(self) -> int:
        return len(self.app.inputs)

    def has(self, position: int) -> bool:
        return position < self.count and self.reading.has(self.app.inputs[position])

    def _part(self, position: int) -> Term:
        part = self.app.inputs[position] if self.has(position) else None
        if part is None:
            raise Undefined(f"{self.op} needs input {position}")
        return part

    def input(self, position: int) -> Tensor:
        return self.reading.tensor(self._part(position))

    def is_number(self, position: int) -> bool:
        return self.has(position) and is_number(self._part(position))

    def numbers(self, position: int, propose: Callable[[], Any]) -> Any:
        part = self._part(position)
        if isinstance(part, Lit | Var) and is_scalar(part):
            return self._value(part, propose)
        tensor = self.input(position)
        length = tensor.shape[0] if tensor.rank else 1
        if tensor.rank > 1 or not isinstance(length, int):
            raise Unsupported(f"{self.op} of a list whose length is not known")
        found = tuple(as_size(tensor.at((i,) if tensor.rank else ())) for i in range(length))
        if None in found:
            raise Unsupported(f"{self.op} by numbers that are not known")
        return found if tensor.rank else found[0]

    # attributes

    def attribute(self, name: str, propose: Callable[[], Any], default: Any = None) -> Any:
        self.asked.add(name)
        part = dict(self.app.attrs).get(name)
        if part is None:
            said = schema_default(self.op, name, self.domain)
            self.used[name] = default if said is None else said
        else:
            self.used[name] = self._value(part, propose, default)
        return self.used[name]

    def _value(self, part: Term, propose: Callable[[], Any], default: Any = None) -> Any:
        """Return a number that is written, or what stands for an attribute of the outer operator."""
        if isinstance(part, Lit):
            return part.value
        assert isinstance(part, Var), f"{part} is computed"
        return self.outer.attribute(part.name, propose, default)

    def ignored(self, name: str) -> Any:
        return self.attribute(name, lambda: None)

    def not_beside(self, name: str, what: str) -> None:
        self.asked.add(name)
        if name in dict(self.app.attrs):
            raise Undefined(f"{self.op}: {name} beside {what}")

    def target(self) -> DType:
        return DType(self.attribute("to", lambda: OneOf((int(DType.FLOAT),))))


# -- what the text says beside a body ----------------------------------------------------------------------------------


def alike(node: Node) -> None:
    """Ask that two operands have one shape."""
    fits(node, node.input(1).shape, node.input(0).shape, "its operands have different shapes")


def labelled(node: Node) -> None:
    """Ask that there is one class for each place of the scores, and one weight for each class."""
    scores, labels, weights = node.input(0), node.input(1), node.optional(2)
    if scores.rank < 2:
        raise Undefined(f"{node.op} of scores without classes")
    fits(node, labels.shape, (scores.shape[0], *scores.shape[2:]), "not one label for each place")
    if weights is not None:
        fits(node, weights.shape, scores.shape[1:2], "not one weight for each class")
    if node.attribute("ignore_index", lambda: OneOf((None,))) is None:
        node.require_indices(labels, scores.shape[1], from_end=False)
