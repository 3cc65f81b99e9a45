"""Can ONNX Runtime run a node? What is written must run where what it replaces did.

A session of the node alone tells: it is opened, which looks for the kernel and shows it the attributes. It is run only
where the node works on an empty tensor, which some kernels refuse. An operator without a kernel that ONNX Runtime
replaces by its definition is opened like any other. A session takes a tenth of a millisecond or two, as long as a look
into the cache on disk, so findings are kept in memory alone.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import ModelProto

from graphopt.base import files
from graphopt.base.dtype import DType
from graphopt.base.errors import ModelError, OutputError, UsageError
from graphopt.io import opset_conversion, version_paths, version_tables
from graphopt.ir.edit import DraftGraph
from graphopt.ir.graph import CAPTURE, Graph, Node, Patch, Value, attribute_key
from graphopt.ir.types import TensorType, Type
from graphopt.operators.proto_conversion import node_to_proto, type_to_proto
from graphopt.rewrite.prepacking import repacking_refusal
from graphopt.runtime.oracle import RunFailedError
from graphopt.runtime.saturation import SaturationProbe
from graphopt.runtime.session_setting import SessionSetting

NodeFeeds: TypeAlias = Mapping[str, Any]

MAX_TRIED_ELEMENTS = 1 << 20
"""Elements of all inputs together up to which a node with an empty one is run."""


class KernelProbe:
    """Knows what ONNX Runtime can run with one provider, or on the CPU, which takes over what providers lack."""

    def __init__(self, provider: SessionSetting | None = None, target_domains: Container[str] = ()) -> None:
        """Ask ONNX Runtime with a provider; of `target_domains` nodes may be written that have no kernel here."""
        self.target_domains = target_domains
        self.settings = [SessionSetting(threads=1)]
        if provider is not None and provider.provider.lower() != "cpu":
            self.settings.append(replace(provider, threads=1))
        self.saturation = SaturationProbe(self.settings[-1])
        self.unavailable_reason = ""
        """Reason why nothing could be asked, such as that there is no ONNX Runtime; empty otherwise."""
        self._refusals: dict[object, str] = {}
        """Refusals by the model of one node that is opened, and by what it is run on."""
        self._refusals_by_operation: dict[object, str] = {}
        self._cast_results: dict[bytes, bool] = {}
        self._cast_operators: WeakKeyDictionary[Graph, str] = WeakKeyDictionary()

    @property
    def notes(self) -> list[str]:
        return (
            [f"it is not known whether what was written has kernels: {self.unavailable_reason}"]
            if self.unavailable_reason
            else []
        )

    def refusal(self, graph: Graph, patch: Patch) -> str:
        """Say why a patch would write a node that cannot run in place of some that can, or one that saturates; else
        empty."""
        draft = DraftGraph(graph, patch.after)
        for vertex, node in patch.after.items():
            if node.is_internal or _computes_same(patch.before.get(vertex), node):
                continue
            reason = "" if node.domain in self.target_domains else self.refusal_of_node(node, draft)
            if reason:
                ran = not any(self._node_refusals(graph, old) for old in patch.before.values())
                return reason if ran else ""
        return self.saturation.refusal(patch, graph, draft)

    def operators_without_kernel(self, graph: Graph) -> list[tuple[str, str]]:
        """Return the operators of the target domains in a graph and its bodies that have no kernel here."""
        found = (
            (node.op, node.domain)
            for inner in graph.graphs()
            for _, node in inner.nodes()
            if node.domain in self.target_domains and self.refusal_of_node(node, inner)
        )
        return sorted(dict.fromkeys(found))

    def _node_refusals(self, graph: Graph, node: Node) -> list[str]:
        """Return the refusals of a node of a graph and of those in its bodies."""
        inner = [(body, other) for body in node.bodies for _, other in body.nodes()]
        found = [
            self.refusal_of_node(node, graph),
            *(text for body, other in inner for text in self._node_refusals(body, other)),
        ]
        return [text for text in found if text]

    def exact_refusal(self, graph: Graph, patch: Patch) -> str:
        """Return the same, or why an exact patch would change bits all the same."""
        return self.refusal(graph, patch) or self.rounding_refusal(graph, patch) or repacking_refusal(graph, patch)

    def rounding_refusal(self, graph: Graph, patch: Patch) -> str:
        """Say why a patch may change bits in half precision; empty where it does not.

        Where ONNX Runtime has no half-precision kernel, it computes in single precision, with casts around. Between two
        such nodes it drops the casts, and where there are few nodes between them it does not use their half-precision
        kernels: rounding depends on neighbours, read or not. So in a graph with such nodes, patches may only remove
        nodes of half precision, and only those beside none that stays.
        """
        draft = DraftGraph(graph, patch.after)
        gone, new = _changed_nodes(patch.before, patch.after), _changed_nodes(patch.after, patch.before)
        if not any(_uses_half(node, graph) for node in gone) and not any(_uses_half(node, draft) for node in new):
            return ""
        if _only_drops_dead_code(patch) and _are_isolated_halves(gone, graph, patch):
            self._cast_operators.pop(graph, None)
            return ""
        if graph not in self._cast_operators:  # this remains so, for what would change it is refused, or told above
            self._cast_operators[graph] = self._half_cast_among((node for _, node in graph.nodes()), graph)
        op = self._cast_operators[graph] or self._half_cast_among(new, draft)
        reason = f"ONNX Runtime computes {op} in single precision, and what it rounds depends on what stands around"
        return reason if op else ""

    def _half_cast_among(self, nodes: Iterable[Node], facts: Graph) -> str:
        """Return the operator of the first node that is a Cast of half precision, or gets some around it; empty for
        none."""
        return next((node.op for node in nodes if _uses_half(node, facts) and self._is_half_cast(node, facts)), "")

    def _is_half_cast(self, node: Node, facts: Graph) -> bool:
        if node.op == "Cast" or node.has_bodies or self.unavailable_reason:
            return node.op == "Cast"
        model = _node_model(opset_conversion.downgraded(node, facts), facts)
        if model is None:
            return False
        if model not in self._cast_results:
            try:
                self._cast_results[model] = self._has_half_casts(model)
            except (OutputError, OSError, DecodeError):  # the disk may be full: it is asked again
                return True
        return self._cast_results[model]

    def _has_half_casts(self, model: bytes) -> bool:
        """Raise an error where ONNX Runtime cannot write what it makes of a model."""
        with files.scratch_folder() as folder:
            path = folder / "opened.onnx"

            def configure(options: Any) -> None:
                options.optimized_model_filepath = str(path)

            try:
                self.settings[0].open(model, optimize=False, configure=configure)
            except UsageError as error:
                self.unavailable_reason = str(error)
                return False
            except ModelError as error:
                if self._is_loadable(model):
                    raise OutputError(str(error)) from error
                return False  # on another device, perhaps, where there is a kernel
            return any(node.op_type == "Cast" for node in onnx.load(path).graph.node)

    def _is_loadable(self, model: bytes) -> bool:
        """Return whether ONNX Runtime loads a model of which it writes nothing."""
        try:
            self.settings[0].open(model, optimize=False)
        except ModelError:
            return False
        return True

    def check_converted(self, converted: Iterable[tuple[Graph, Mapping[str, int]]]) -> None:
        """Check graphs that were converted, each with the opsets that it had.

        Raises:
            ModelError: a node cannot run now, and could before.
        """
        for graph, opsets_ in converted:
            before = DraftGraph(graph)
            before.opsets = opsets_
            for _, node in graph.nodes():
                reason = self.refusal_of_node(node, graph)
                if reason and not self.refusal_of_node(node, before):
                    raise ModelError(f"{node.op} '{node.label}' could not run any more: {reason}")

    def refusal_of_node(self, node: Node, facts: version_tables.GraphFacts) -> str:
        """Say why a node cannot run; empty where it can, or where that is unknown: nodes with bodies or unknown
        types."""
        if node.is_internal or node.has_bodies or self.unavailable_reason:
            return ""
        try:
            spelled = opset_conversion.downgraded(node, facts)
        except ModelError as error:
            return str(error)
        known = _operation_key(spelled, facts)
        if known is None:
            return self._refusal_of_spelled(spelled, facts)
        if known not in self._refusals_by_operation:
            self._refusals_by_operation[known] = self._refusal_of_spelled(spelled, facts)
        return self._refusals_by_operation[known]

    def _refusal_of_spelled(self, spelled: Node, facts: version_tables.GraphFacts) -> str:
        """Say why a node cannot run, as the model's opset spells it."""
        model = _node_model(spelled, facts)
        if model is None:
            return ""
        feeds = _node_feeds(spelled, facts)
        key = model, tuple((name, array.shape, array.tobytes()) for name, array in feeds.items())
        if key not in self._refusals:
            self._refusals[key] = self._ask(model, feeds, _node_title(spelled, facts))
        return self._refusals[key]

    def _ask(self, model: bytes, feeds: NodeFeeds, title: str) -> str:
        reason = ""
        for setting in self.settings:
            try:
                session = setting.open(model, optimize=False)
                if feeds:
                    session.run(None, feeds)
            except UsageError as error:
                self.unavailable_reason = str(error)
                return ""
            except ModelError as error:
                reason = _format_error(title, str(error))
            except Exception as error:  # the classes that onnxruntime raises share no base
                reason = f"ONNX Runtime cannot run {title} on an empty tensor: {RunFailedError('it failed', error)}"
            else:
                return ""
        return reason


def _format_error(title: str, error: str) -> str:
    if "Could not find an implementation" in error:
        return f"ONNX Runtime has no kernel for {title}"
    if "is not a registered function/op" in error:
        domain = title.partition(" ")[0].rpartition(".")[0]
        elsewhere = f", --target-domain {domain} writes it for another runtime" if domain else ""
        return f"ONNX Runtime does not know {title}; --custom-ops registers a library of kernels{elsewhere}"
    return f"ONNX Runtime refuses {title}: {error.partition('cannot be loaded: ')[2]}"


def _node_title(node: Node, facts: version_tables.GraphFacts) -> str:
    """Return the title of a node: `Clip of tensor(double) in opset 10`."""
    types = dict.fromkeys(
        version_paths.schema_type_text(facts.value_type(value)) or "?" for value in node.inputs if value is not None
    )
    name = f"{node.domain}.{node.op}".lstrip(".")
    return f"{name}{' of ' * bool(types)}{', '.join(types)} in opset {facts.opsets.get(node.domain, 1)}"


def _computes_same(old: Node | None, new: Node) -> bool:
    """Return whether a node does what it did, perhaps with other values of the same types."""
    if old is None or old.is_internal or new.is_internal:
        return old is not None and old.is_internal and new.is_internal
    return old.is_same_operation(new)


_HALF_DTYPES = (DType.FLOAT16, DType.BFLOAT16)


def _uses_half(node: Node, facts: Graph) -> bool:
    """Return whether a node reads or makes half precision."""
    types = (*(facts.value_type(value) for value in node.operands), *node.types)
    return not node.is_internal and any(map(_is_half_type, types))


def _only_drops_dead_code(patch: Patch) -> bool:
    """Return whether all that stays reads what it did, except for captures that its bodies ignore."""
    pairs = ((patch.before.get(vertex), node) for vertex, node in patch.after.items())
    stays = all(old is not None and _computes_same(old, node) and old.inputs == node.inputs for old, node in pairs)
    return stays and patch.outputs is None


def _are_isolated_halves(gone: Iterable[Node], graph: Graph, patch: Patch) -> bool:
    """Return whether nodes read no half precision from a node that stays, here or around the body."""
    read = {value.vertex for node in gone for value in node.operands if _is_half_type(graph.value_type(value))}
    gone_too = patch.before.keys() - patch.after.keys()
    sources = (graph[vertex] for vertex in read if vertex not in gone_too or graph[vertex].is_graph_input)
    return all(node.is_internal and node.op != CAPTURE for node in sources)


def _is_half_type(type_: Type | None) -> bool:
    return isinstance(type_, TensorType) and type_.dtype in _HALF_DTYPES


def _changed_nodes(nodes: Mapping[int, Node], others: Mapping[int, Node]) -> list[Node]:
    """Return the nodes that the others do not have in the same place, or that do something else there."""
    return [node for vertex, node in nodes.items() if not _computes_same(others.get(vertex), node)]


def _operation_key(node: Node, facts: version_tables.GraphFacts) -> object:
    """Return what decides whether a node runs; None where that is not known without a look at its model: it is run on
    empty inputs, or has attributes that are tensors."""
    types = tuple(None if value is None else facts.value_type(value) for value in node.inputs)
    attributes = tuple((name, attribute_key(node.attrs[name])) for name in sorted(node.attrs))
    is_empty = any(isinstance(type_, TensorType) and 0 in (type_.shape or ()) for type_ in types)
    if is_empty or any(key is None for _, key in attributes):
        return None
    opsets = tuple(facts.opsets.get(domain, 1) for domain in ("", node.domain))
    return node.op, node.domain, opsets, attributes, types, tuple(map(bool, node.names))


def _node_model(node: Node, facts: version_tables.GraphFacts) -> bytes | None:
    """Return a model of one node, on inputs of its types and of any shape; None where a type is not known."""
    model = ModelProto(ir_version=10)
    for domain in dict.fromkeys(("", node.domain)):
        model.opset_import.add(domain=domain, version=facts.opsets.get(domain, 1))
    model.graph.name = node.op
    names = list(_value_names(node))
    for name, value in zip(names, node.inputs, strict=True):
        type_ = None if value is None else facts.value_type(value)
        if value is not None and (type_ is None or (isinstance(type_, TensorType) and type_.dtype is DType.UNDEFINED)):
            return None
        if type_ is not None:
            whole = TensorType(type_.dtype, None) if isinstance(type_, TensorType) else type_
            model.graph.input.add(name=name, type=type_to_proto(whole))
    outputs = [f"o{index}" if name else "" for index, name in enumerate(node.names)]
    bare = replace(node, name="", doc="", metadata={}, unknown_fields=b"")
    model.graph.node.append(node_to_proto(bare, names, outputs))
    for output in filter(None, outputs):
        model.graph.output.add(name=output)
    serialized: bytes = model.SerializeToString(deterministic=True)
    return serialized


def _value_names(node: Node) -> Iterator[str]:
    return ("" if value is None else f"i{index}" for index, value in enumerate(node.inputs))


def _node_feeds(node: Node, facts: version_tables.GraphFacts) -> dict[str, Any]:
    """Return values for all inputs where one of them is empty; none where none is, or values cannot be made up."""
    named = [(name, value) for name, value in zip(_value_names(node), node.inputs, strict=True) if value is not None]
    types = [type_ for _, value in named if (type_ := facts.tensor_type(value)) is not None]
    if (
        not any(0 in (type_.shape or ()) for type_ in types)
        or sum(type_.static_dims_product for type_ in types) > MAX_TRIED_ELEMENTS
    ):
        return {}
    arrays = {name: _sample_array(value, facts) for name, value in named}
    return arrays if all(array is not None for array in arrays.values()) else {}


def _sample_array(value: Value, facts: version_tables.GraphFacts) -> Any:
    """Return the values of a constant, else zeros of its shape with 1 for open sizes; None where neither is
    possible."""
    type_, constant = facts.tensor_type(value), facts.constant(value)
    if type_ is None or type_.shape is None or type_.dtype is DType.STRING or type_.dtype.numpy.isbuiltin != 1:
        return None
    shape = tuple(size if isinstance(size, int) else 1 for size in type_.shape)
    if constant is None:
        return np.broadcast_to(np.zeros((), type_.dtype.numpy), shape)
    return constant.numpy()
