"""The normal form of operators: inside, the newest spelling of a meaning; in files, that of the model's opset.

A node is upgraded to the newest schema version where that changes nothing: the schemas say so (more types, a new
attribute with a default, a new optional input), or a table of `version_tables` does (an attribute became an input, a
default moved). In doubt a node keeps its version, and then no rule touches it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import onnx

from graphopt.base.errors import ModelError
from graphopt.io.version_paths import NO_LIMIT, downgrade_path, upgrade_path
from graphopt.io.version_tables import (
    NEGATIVE_AXES,
    OPAQUE_OPERATORS,
    GraphFacts,
    Spelling,
    SpellingMismatch,
    has_nonnegative_axis,
    tensor_or_constant,
)
from graphopt.ir import schemas
from graphopt.ir.edit import constant_node
from graphopt.ir.graph import Graph, Node, OpaqueAttribute, Patch, Value, attributes_equal
from graphopt.ir.tensor import Tensor, tensors_equal
from graphopt.ir.types import TensorType, Type
from graphopt.operators import proto_conversion

# -- nodes -------------------------------------------------------------------------------------------------------------


DEFAULT_DOMAIN_VERSION = 1
"""The version in which a domain is imported that a model lacks: of declared operators there is one version."""


def schema_version(op: str, domain: str, opsets: Mapping[str, int]) -> int:
    """Return the `since_version` of the schema that gives an operator its meaning; 0 where none is known."""
    if opsets.get(domain, 0) > _newest_opset(domain) and not schemas.is_defined_operator(op, domain):
        return 0  # nobody here knows whether it still means the same
    found = schemas.schema(op, domain, opsets.get(domain, 0))
    return found.since_version if found and not found.deprecated else 0


@cache
def _newest_opset(domain: str) -> int:
    """Return the last opset that the installed onnx package describes."""
    if domain == "":
        return onnx.defs.onnx_opset_version()
    found = [s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.domain == domain]
    return max(found, default=0)


class _DeclaredFacts:
    """A graph as it is read. Shapes that are declared inside it are not believed, for inference may not confirm
    them."""

    def __init__(self, graph: Graph, *, is_main: bool) -> None:
        self.graph, self.is_main, self.opsets, self.constant = graph, is_main, graph.opsets, graph.constant

    def tensor_type(self, value: Value | None) -> TensorType | None:
        found = None if value is None else self.value_type(value)
        return found if isinstance(found, TensorType) else None

    def value_type(self, value: Value) -> Type | None:
        found, node = self.graph.value_type(value), self.graph[value.vertex]
        is_sure = node.is_constant or (self.is_main and node.is_graph_input)
        return TensorType(found.dtype) if isinstance(found, TensorType) and not is_sure else found


def upgrade_declared(graph: Graph) -> None:
    """Upgrade the nodes of a graph and of its bodies where that does not depend on shapes that are still to be
    inferred."""
    for inner in [*graph.graphs()]:
        _upgrade_graph(inner, _DeclaredFacts(inner, is_main=inner is graph))


def upgrade_nodes(graph: Graph) -> None:
    """Upgrade every node of a graph and of its bodies, as far as their types are known by now."""
    for inner in [*graph.graphs()]:
        _upgrade_graph(inner, inner)


def _upgrade_graph(graph: Graph, facts: GraphFacts) -> None:
    after = {}
    for vertex, node in [*graph.nodes()]:
        newer = upgraded(node, graph, facts)
        if newer is not node:
            after[vertex] = newer
    graph.apply(Patch({vertex: graph[vertex] for vertex in after}, after))


def upgraded(node: Node, graph: Graph, facts: GraphFacts, limit: int = NO_LIMIT) -> Node:
    """Return the node in the newest spelling of its operator, of those up to a limit; itself where the facts do not
    show that this means the same.

    Attributes that became inputs are added to the graph as constants. `unknown_fields` keeps the original spelling.
    """
    if not node.version:
        return node
    way = upgrade_path(node.op, node.domain, node.version, limit)
    if way.version == node.version and not way.reason:
        return node
    try:
        spelling = _newest_spelling(node, facts, limit)
    except SpellingMismatch:
        return replace(node, version=0) if node.op in OPAQUE_OPERATORS else node
    if not way.steps:
        return replace(node, version=way.version)
    base = next(filter(None, node.names), node.op)
    inputs = tuple(
        Value(graph.add(constant_node(value, graph.new_name(f"{base}_const")))) if isinstance(value, Tensor) else value
        for value in spelling.inputs
    )
    return replace(
        node,
        op=way.op,
        inputs=inputs,
        attrs=spelling.attrs,
        version=way.version,
        unknown_fields=_keep_original_spelling(node),
    )


def _newest_spelling(node: Node, facts: GraphFacts, limit: int = NO_LIMIT) -> Spelling:
    """Return the newest spelling, of those up to a limit, that is known to mean the same. Raises SpellingMismatch."""
    way = upgrade_path(node.op, node.domain, node.version, limit)
    if way.reason:
        raise SpellingMismatch(way.reason)
    spelling = _spelling_of(node)
    for step in way.steps:
        spelling = step.upgrade(spelling, facts)
    return spelling


def reason_not_upgraded(node: Node, facts: GraphFacts) -> str:
    """Say why a node is not in the newest spelling of its operator; nothing where it may be."""
    try:
        _newest_spelling(node, facts)
    except SpellingMismatch as mismatch:
        return str(mismatch)
    return ""


def _spelling_of(node: Node) -> Spelling:
    return Spelling(node.op, node.inputs, node.attrs, tuple(map(bool, node.names)))


def _keep_original_spelling(node: Node) -> bytes:
    """Return the node's `unknown_fields` with its attributes, and as many nameless inputs as it has."""
    extra: onnx.NodeProto = onnx.NodeProto.FromString(node.unknown_fields)
    if not extra.attribute:
        extra.attribute.extend(proto_conversion.attribute_to_proto(name, value) for name, value in node.attrs.items())
    del extra.input[:]
    extra.input.extend([""] * len(node.inputs))
    return bytes(extra.SerializeToString())


def downgraded(node: Node, facts: GraphFacts) -> Node:
    """Return the node as the model's own opset spells it: as it was loaded, unless it was changed since.

    Raises:
        ModelError: the opset cannot express it.
    """
    opset = facts.opsets.get(node.domain, DEFAULT_DOMAIN_VERSION if node.domain else 0)
    if not node.version:
        return _restore_original_spelling(node, node, facts)
    way = downgrade_path(node.op, node.domain, node.version, opset)
    if not way.reason and not way.steps and not node.unknown_fields:
        return node
    spelling, reason = _spelling_of(node), way.reason
    try:
        for step in way.steps:
            spelling = step.downgrade(spelling, facts)
    except SpellingMismatch as mismatch:
        reason = str(mismatch)
    if not reason:
        inputs = tuple(value for value in spelling.inputs if not isinstance(value, Tensor))
        assert len(inputs) == len(spelling.inputs), "lowering makes no tensors"
        older = replace(node, op=way.op, inputs=inputs, attrs=spelling.attrs, version=way.version)
        return _restore_original_spelling(node, older, facts)
    known = schemas.schema(node.op, node.domain, opset)
    if known is not None and known.since_version > node.version and (why := reason_not_upgraded(node, facts)):
        reason = why
    if node.unknown_fields and known is not None:
        count = len(onnx.NodeProto.FromString(node.unknown_fields).input)
        older = replace(node, inputs=node.inputs[:count], version=known.since_version)
        found = _restore_original_spelling(node, older, facts)
        if found is not older:
            return found
    raise ModelError(f"{node_label(node)} cannot be written in opset {opset}: {reason}")


def node_label(node: Node) -> str:
    """Return what a node is called in messages: its name, or that of its first output."""
    return f"{node.op} '{node.label}'"


def unwritable_reason(node: Node, facts: GraphFacts) -> str | None:
    """Say why a new node cannot be written in the model's opset; None where it can.

    Negative axes came with opset 11. ONNX Runtime takes them in older models too, so such a model is carried, but no
    such node is made.
    """
    early = facts.opsets.get(node.domain, 0) < 11 and node.domain == ""
    if early and node.op in NEGATIVE_AXES and not has_nonnegative_axis(_spelling_of(node), facts):
        return f"{node.op} takes no negative axes before opset 11"
    try:
        downgraded(node, facts)
    except ModelError as error:
        return str(error)
    return None


def is_expressible(op: str, domain: str, opsets: Mapping[str, int]) -> bool:
    """Return whether the newest meaning of an operator can be expressed; `unwritable_reason` tells of a single node."""
    newest = schemas.newest_version(op, domain)
    opset = opsets.get(domain, DEFAULT_DOMAIN_VERSION if domain else 0)
    return bool(newest and not downgrade_path(op, domain, newest, opset).reason)


def _restore_original_spelling(node: Node, older: Node, facts: GraphFacts) -> Node:
    """Return `older` with the attributes that the node was loaded with, if these still say the same as the node."""
    if not node.unknown_fields:
        return older
    extra: onnx.NodeProto = onnx.NodeProto.FromString(node.unknown_fields)
    if not (extra.attribute or extra.input):
        return older
    old = {proto.name: proto_conversion.attribute_from_proto(proto) for proto in extra.attribute}
    inputs = older.inputs[: len(extra.input)]
    inputs += (None,) * (len(extra.input) - len(inputs))
    spelling = Spelling(older.op, inputs, old, tuple(map(bool, node.names)))
    try:
        for step in upgrade_path(older.op, older.domain, older.version).steps if older.version else ():
            spelling = step.upgrade(spelling, facts)
    except SpellingMismatch:
        return older
    if not _is_spelled(node, spelling, facts):
        return older
    attrs = {proto.name: OpaqueAttribute(proto.SerializeToString()) for proto in extra.attribute}
    return replace(older, inputs=inputs, attrs=attrs)


def _is_spelled(node: Node, spelling: Spelling, facts: GraphFacts) -> bool:
    """Return whether the node is this spelling, a tensor being as good as a constant with its values."""
    inputs, attrs = _trim_absent(node.inputs), spelling.attrs
    if node.attrs.keys() != attrs.keys() or len(inputs) != len(_trim_absent(spelling.inputs)):
        return False
    for value, spelled in zip(inputs, spelling.inputs, strict=False):
        tensor = tensor_or_constant(value, facts)
        if value != spelled and not (isinstance(spelled, Tensor) and tensor and tensors_equal(tensor, spelled)):
            return False
    return all(attributes_equal(value, attrs[name]) for name, value in node.attrs.items())


def _trim_absent(inputs: tuple[Value | Tensor | None, ...]) -> tuple[Value | Tensor | None, ...]:
    while inputs and inputs[-1] is None:
        inputs = inputs[:-1]
    return inputs
