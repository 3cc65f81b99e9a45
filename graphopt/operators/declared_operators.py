"""Operators that are declared by a term: a node is inferred by expanding its meaning into nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from graphopt.base.dtype import DType
from graphopt.expr.dims import SymbolicDim
from graphopt.ir import schemas
from graphopt.ir.edit import DraftGraph, constant_node
from graphopt.ir.graph import INPUT, INTERNAL_DOMAIN, Graph, Node, Value
from graphopt.ir.tensor import Tensor
from graphopt.ir.types import TensorType, Type
from graphopt.language.binding import evaluate_scalar
from graphopt.language.definition import InstantiatedDefinition, definitions_of, instantiate_definition
from graphopt.language.scalar_functions import UndecidedScalarError
from graphopt.language.terms import SCALAR, App, Lit, Term, Var, is_scalar, is_whole_number, walk_term

InferFunction: TypeAlias = "Callable[[Graph, Node], Node]"


def instantiate_node_definition(node: Node) -> InstantiatedDefinition | None:
    """Return the meaning of a node of a declared operator, over holes named after its inputs; None where unknown."""
    if not all(isinstance(value, int | float | str | tuple) for value in node.attrs.values()):
        return None
    inputs = tuple(None if value is None else Var(_hole_name(i), "tensor") for i, value in enumerate(node.inputs))
    attrs = tuple((name, Lit(value)) for name, value in sorted(node.attrs.items()))  # type: ignore[arg-type]
    return instantiate_definition(App(node.op, inputs, attrs, node.domain, 0, len(node.names)))


def _hole_name(position: int) -> str:
    return f"input_{position}"


def infer_declared_types(graph: Graph, node: Node, infer: InferFunction) -> list[Type | None]:
    """Return the types of the outputs, None where they are not known."""
    found = instantiate_node_definition(node)
    if found is None:
        return [None] * len(node.names)
    bound = {_hole_name(i): value for i, value in enumerate(node.inputs) if value is not None}
    expansion = _DefinitionExpansion(graph, bound, infer)
    return [expansion.infer_type(side) for side in found.outputs[: len(node.names)]]


def satisfies_definition(graph: Graph, node: Node) -> bool:
    """Return whether the inputs of a node of a declared operator have the shapes that its definition asks for."""
    found = instantiate_node_definition(node)
    bound = {_hole_name(i): value for i, value in enumerate(node.inputs) if value is not None}
    try:
        return found is not None and all(evaluate_scalar(part, bound, {}, graph) is True for part in found.conditions)
    except UndecidedScalarError:
        return False


def definition_terms(node: Node) -> Iterator[Term]:
    """Yield all subterms in the meaning of a node of a declared operator, and in the meanings of these."""
    found = instantiate_node_definition(node)
    inner = () if found is None else (found.definition, *definitions_of(found.definition.body))
    return (part for definition in inner for side in definition.body for part in walk_term(side))


class _DefinitionExpansion:
    """The meaning of one node as nodes, beside the graph."""

    def __init__(self, graph: Graph, bound: Mapping[str, Value], infer: InferFunction) -> None:
        self.draft, self.bindings, self.infer = DraftGraph(graph), bound, infer
        self.vertices: dict[App, int] = {}

    def infer_type(self, side: Term) -> Type | None:
        try:
            return self.draft.value_type(self._value_of(side))
        except UndecidedScalarError:
            return None

    def _value_of(self, part: Term) -> Value:
        if isinstance(part, Var):
            return self.bindings[part.name]
        assert isinstance(part, App) and part.domain != SCALAR, f"{part} stands where a tensor is needed"
        if part.node not in self.vertices:
            self.vertices[part.node] = self._add_node(part)
        return Value(self.vertices[part.node], part.output)

    def _add_node(self, app: App) -> int:
        tensors = [None if arg is None or is_scalar(arg) else self._value_of(arg) for arg in app.inputs]
        dtypes = [None if value is None else self.draft.dtype(value) for value in tensors]
        inputs = [
            self._add_constant(app, i, arg, dtypes) if arg is not None and is_scalar(arg) else value
            for i, (arg, value) in enumerate(zip(app.inputs, tensors, strict=True))
        ]
        attrs = {name: self._evaluate(value) for name, value in app.attrs}
        outputs = tuple(f"output_{i}" for i in range(app.outputs))  # of what has no name nothing is inferred
        version = schemas.newest_version(app.op, app.domain)
        node = Node(app.op, tuple(inputs), outputs, (None,) * app.outputs, attrs, app.domain, version)
        return self.draft.add_draft(self.infer(self.draft, node))

    def _add_constant(self, app: App, position: int, part: Term, others: Sequence[DType | None]) -> Value:
        """Return a number or list as a constant; with symbolic sizes, as a value with known contents."""
        value = self._evaluate(part)
        items = value if isinstance(value, tuple) else (value,)
        if any(isinstance(item, SymbolicDim) for item in items):
            type_ = TensorType(DType.INT64, (len(items),) if isinstance(value, tuple) else ())
            return Value(
                self.draft.add_draft(Node(INPUT, (), ("",), (type_,), domain=INTERNAL_DOMAIN, contents=(items,)))
            )
        dtype = schemas.literal_dtype(
            app.op, app.domain, position, others, DType.UNDEFINED, whole=is_whole_number(part)
        )
        if dtype is DType.UNDEFINED:
            raise UndecidedScalarError(f"the element type of {part}")
        return Value(self.draft.add_draft(constant_node(Tensor.from_array(np.asarray(value, dtype.numpy)), "")))

    def _evaluate(self, part: Term) -> Any:
        return evaluate_scalar(part, self.bindings, {}, self.draft)
