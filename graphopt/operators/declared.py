"""Operators that are declared by a term: what is inferred of a node is inferred of its meaning, as nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from graphopt.base.sizes import Sym
from graphopt.base.types import DType, TensorType, Type
from graphopt.ir import ops
from graphopt.ir.edit import Draft, constant_node
from graphopt.ir.graph import INPUT, INTERNAL, Graph, Node, Value
from graphopt.ir.tensor import Tensor
from graphopt.language.binding import evaluate
from graphopt.language.definition import Meaning, definitions_of, meaning_of
from graphopt.language.scalar import Unknown
from graphopt.language.term import SCALAR, App, Lit, Term, Var, is_scalar, is_whole, walk

Infer: TypeAlias = "Callable[[Graph, Node], Node]"


def meaning(node: Node) -> Meaning | None:
    """Return what a node of a declared operator computes, over holes that are called after its inputs; None where
    unknown."""
    if not all(isinstance(value, int | float | str | tuple) for value in node.attrs.values()):
        return None
    inputs = tuple(None if value is None else Var(_hole(i), "tensor") for i, value in enumerate(node.inputs))
    attrs = tuple((name, Lit(value)) for name, value in sorted(node.attrs.items()))  # type: ignore[arg-type]
    return meaning_of(App(node.op, inputs, attrs, node.domain, 0, len(node.names)))


def _hole(position: int) -> str:
    return f"input_{position}"


def types(graph: Graph, node: Node, infer: Infer) -> list[Type | None]:
    """Return the types of the outputs, None where they are not known."""
    found = meaning(node)
    if found is None:
        return [None] * len(node.names)
    bound = {_hole(i): value for i, value in enumerate(node.inputs) if value is not None}
    expansion = _Expansion(graph, bound, infer)
    return [expansion.type(side) for side in found.outputs[: len(node.names)]]


def is_as_defined(graph: Graph, node: Node) -> bool:
    """Return whether the inputs of a node of a declared operator have the shapes that its definition asks for."""
    found = meaning(node)
    bound = {_hole(i): value for i, value in enumerate(node.inputs) if value is not None}
    try:
        return found is not None and all(evaluate(part, bound, {}, graph) is True for part in found.conditions)
    except Unknown:
        return False


def parts(node: Node) -> Iterator[Term]:
    """Yield all that is written in what a node of a declared operator means, and in what that means."""
    found = meaning(node)
    inner = () if found is None else (found.definition, *definitions_of(found.definition.meaning))
    return (part for definition in inner for side in definition.meaning for part in walk(side))


class _Expansion:
    """The meaning of one node as nodes, beside the graph."""

    def __init__(self, graph: Graph, bound: Mapping[str, Value], infer: Infer) -> None:
        self.draft, self.bound, self.infer = Draft(graph), bound, infer
        self.made: dict[App, int] = {}

    def type(self, side: Term) -> Type | None:
        try:
            return self.draft.type(self._value(side))
        except Unknown:
            return None

    def _value(self, part: Term) -> Value:
        if isinstance(part, Var):
            return self.bound[part.name]
        assert isinstance(part, App) and part.domain != SCALAR, f"{part} stands where a tensor is needed"
        if part.node not in self.made:
            self.made[part.node] = self._node(part)
        return Value(self.made[part.node], part.output)

    def _node(self, app: App) -> int:
        tensors = [None if arg is None or is_scalar(arg) else self._value(arg) for arg in app.inputs]
        dtypes = [None if value is None else self.draft.dtype(value) for value in tensors]
        inputs = [
            self._number(app, i, arg, dtypes) if arg is not None and is_scalar(arg) else value
            for i, (arg, value) in enumerate(zip(app.inputs, tensors, strict=True))
        ]
        attrs = {name: self._evaluated(value) for name, value in app.attrs}
        outputs = tuple(f"output_{i}" for i in range(app.outputs))  # of what has no name nothing is inferred
        version = ops.newest(app.op, app.domain)
        node = Node(app.op, tuple(inputs), outputs, (None,) * app.outputs, attrs, app.domain, version)
        return self.draft.put(self.infer(self.draft, node))

    def _number(self, app: App, position: int, part: Term, others: Sequence[DType | None]) -> Value:
        """Return a number or list as a constant, or as what is known of one where sizes are symbols."""
        value = self._evaluated(part)
        items = value if isinstance(value, tuple) else (value,)
        if any(isinstance(item, Sym) for item in items):
            type_ = TensorType(DType.INT64, (len(items),) if isinstance(value, tuple) else ())
            return Value(self.draft.put(Node(INPUT, (), ("",), (type_,), domain=INTERNAL, contents=(items,))))
        dtype = ops.number_type(app.op, app.domain, position, others, DType.UNDEFINED, whole=is_whole(part))
        if dtype is DType.UNDEFINED:
            raise Unknown(f"the element type of {part}")
        return Value(self.draft.put(constant_node(Tensor.of(np.asarray(value, dtype.numpy)), "")))

    def _evaluated(self, part: Term) -> Any:
        return evaluate(part, self.bound, {}, self.draft)
