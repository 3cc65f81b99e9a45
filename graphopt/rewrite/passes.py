"""Passes, which no rule can say: folding, common subexpressions, dead code, duplicate weights, constant branches.

A pass is a generator of patches. Each is made for the graph as it is when the pass is asked for it, so the caller
applies a patch before asking for the next, or leaves it and goes on. A pass that yields nothing, or only what was left
before, has nothing left to do. Passes look at one graph; bodies are graphs of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias
from weakref import WeakKeyDictionary

from graphopt.base.dtype import DType
from graphopt.ir import schemas
from graphopt.ir.chunks import bitwise_equal
from graphopt.ir.edit import needs_copy, remove_unread, replace_values
from graphopt.ir.graph import CAPTURE, CONSTANT, IDENTITY, INTERNAL_DOMAIN, Graph, Node, Patch, Value
from graphopt.ir.tensor import Tensor, tensors_equal
from graphopt.operators.inference import body_input_patches, build_inference_patch
from graphopt.operators.node_facts import node_weight
from graphopt.operators.operator_classes import lookup_operator
from graphopt.operators.proto_conversion import ExternalData
from graphopt.rewrite.affine_indices import eliminate_true_conditions
from graphopt.rewrite.folding import fold_constants, fold_shapes
from graphopt.rewrite.regions import describe_attributes

PassFunction: TypeAlias = Callable[[Graph], Iterator[Patch]]


@dataclass(frozen=True, slots=True)
class Pass:
    """A named pass, and its reason."""

    name: str
    run: PassFunction
    why: str
    runs_late: bool = False
    """True if it runs after the rules: it makes values read more than once, which keeps rules from folding into
    them."""
    exact_run: PassFunction | None = None
    """Form of the pass that keeps results bit for bit, where `run` does not."""
    written_operators: frozenset[str] = frozenset()
    """Operators that it may write, in the words of `written_by_patch`. Only rules rewrite: passes do where they say
    so."""
    refine_bodies: Callable[[Graph, Node], Iterable[tuple[Graph, Patch]]] | None = None
    """Changes that are made to the bodies of a node before it runs in them."""


def written_by_patch(patch: Patch) -> frozenset[str]:
    """Return what a patch writes: operators, and those that lose an attribute, as `Reshape without allowzero`.

    Not counted are the constants it makes, other values that nodes read, nodes that leave the bodies of a node that
    goes, and copies of a value for an output.
    """
    outputs = {value.vertex for value in patch.outputs[1]} if patch.outputs else set()
    moved = [inner for node in patch.removed for body in node.bodies for _, inner in body.nodes()]
    new: set[str] = set()
    for vertex, node in patch.after.items():
        if node.is_constant or (node.op == IDENTITY and vertex in outputs):
            continue
        there = [patch.before[vertex]] if vertex in patch.before else moved
        if not any(_is_same_but_types(node, own) and node.attrs == own.attrs for own in there):
            fuller = [own for own in there if _is_same_but_types(node, own) and node.attrs.items() <= own.attrs.items()]
            lost = (", ".join(sorted(own.attrs.keys() - node.attrs.keys())) for own in fuller)
            new.add(min((f"{node.op} without {names}" for names in lost), default=node.op))
    return frozenset(new)


def _is_same_but_types(node: Node, other: Node) -> bool:
    return (node.op, node.domain, node.version) == (other.op, other.domain, other.version)


# -- dead code ---------------------------------------------------------------------------------------------------------


def eliminate_dead_code(graph: Graph) -> Iterator[Patch]:
    """Drop nodes and constants that no output depends on, and what is kept alive only for a body that ignores it.

    Optional outputs that nobody reads stay, and so do the inputs of the graph.
    """
    for vertex, node in list(graph.nodes()):
        if node.captures and (captures := _needed_captures(node)) != node.captures:
            # alone, for a file has no other captures: what goes with it may have to stay
            yield Patch({vertex: node}, {vertex: replace(node, captures=captures)})
    patch = remove_unread(graph)
    if patch is not None:
        yield patch


def _needed_captures(node: Node) -> tuple[Value, ...]:
    """Return the captures, unused ones replaced by used ones: bodies know captures by their places."""
    used = sorted(
        {body[v].capture_index for body in node.bodies for v in body.vertices_with_op(CAPTURE) if body[v].is_internal}
    )
    if not used:
        return ()
    return tuple(
        value if i in used else node.captures[used[0]] for i, value in enumerate(node.captures[: used[-1] + 1])
    )


# -- common subexpressions ---------------------------------------------------------------------------------------------


def merge_common_subexpressions(graph: Graph) -> Iterator[Patch]:
    """Keep the first of nodes that compute the same from the same values."""
    for first, others in _find_equal_nodes(graph).items():
        there = [v for v in others if v in graph] if first in graph else []
        pairs = [{Value(v, i): Value(first, i) for i, name in enumerate(graph[v].names) if name} for v in there]
        mapping = {old: new for pair in pairs if _is_worth_merging(graph, pair) for old, new in pair.items()}
        if mapping:
            yield replace_values(graph, mapping)


def _find_equal_nodes(graph: Graph) -> dict[int, list[int]]:
    """Return the vertices that compute what an earlier one does, by that one; operands that are equal count as the
    same."""
    wired: dict[object, int] = {}
    """The first of the nodes that are wired alike: attributes and bodies are compared only if there is another."""
    by_attributes: dict[object, dict[str, int]] = {}
    equal: dict[int, list[int]] = {}
    mapping: dict[Value, Value] = {}
    for vertex in graph.topological_order():
        if graph[vertex].is_internal:
            continue
        node = graph[vertex].with_inputs_replaced(mapping) if mapping else graph[vertex]
        key = _node_key(node)
        met = wired.setdefault(key, vertex)
        if met == vertex:
            continue
        others = by_attributes.get(key)
        if others is None:
            others = by_attributes[key] = {_attributes_text(graph[met]): met}
        first = others.setdefault(_attributes_text(node), vertex)
        if first != vertex and schemas.is_deterministic(node):
            equal.setdefault(first, []).append(vertex)
            mapping |= {Value(vertex, i): Value(first, i) for i in range(len(node.names))}
    return equal


def _is_worth_merging(graph: Graph, mapping: Mapping[Value, Value]) -> bool:
    """Return whether a merge saves more than the Identities cost that two outputs with one value need."""
    if not any(map(graph.has_uses, mapping)):
        return False
    node = graph[next(iter(mapping)).vertex]
    copies = sum(needs_copy(graph, old, new) for old, new in mapping.items())
    return copies == 0 or (copies == 1 and node_weight(node) > lookup_operator(IDENTITY).weight)


def _attributes_text(node: Node) -> str:
    """Return a text that is equal for two nodes exactly if their attributes are."""
    return repr(describe_attributes(node.attrs, _tensor_key)) if node.attrs else ""


def _node_key(node: Node) -> object:
    """Return what a node is, but for its attributes: inputs in a fixed order where the operator does not mind."""
    inputs = node.inputs
    if len(inputs) == 2 and lookup_operator(node.op, node.domain).is_exactly_commutative:
        inputs = tuple(sorted(inputs, key=lambda value: value or (-1, -1)))
    return (node.op, node.domain, node.version, inputs, node.captures, tuple(map(bool, node.names)))


def _tensor_key(tensor: Tensor) -> object:
    """Return type, shape and values; a large tensor is equal only to itself."""
    if tensor.nbytes > SAMPLE_BYTES:
        return id(tensor)
    array = tensor.numpy()
    return tensor.dtype, tensor.shape, array.tolist() if tensor.dtype is DType.STRING else array.tobytes()


# -- equal weights -----------------------------------------------------------------------------------------------------

SAMPLE_BYTES = 4096
"""Bytes of a tensor that are looked at before all of it is."""
MAX_COMPARED_BYTES = 256 << 20
"""Bytes above which tensors are equal only if their values lie in the same place."""


def merge_duplicate_initializers(graph: Graph) -> Iterator[Patch]:
    """Keep the first of constants that are equal bit for bit. All of a tensor is read only where a sample agrees."""
    alike: dict[tuple[DType, tuple[int, ...]], list[int]] = {}
    for vertex in sorted(graph.vertices_with_op(CONSTANT)):
        data = graph[vertex].data
        if graph[vertex].is_constant and data is not None:
            alike.setdefault((data.dtype, data.shape), []).append(vertex)
    for vertices in alike.values():
        kept: dict[object, list[Tensor]] = {}
        places: dict[Tensor, int] = {}
        for vertex in vertices if len(vertices) > 1 else ():
            tensor = graph[vertex].data
            assert tensor is not None
            others = kept.setdefault(_tensor_sample(tensor), [])
            equal = next((other for other in others if _tensors_equal(tensor, other)), None)
            if equal is None:
                others.append(tensor)
                places[tensor] = vertex
            elif not needs_copy(graph, Value(vertex), Value(places[equal])):
                yield replace_values(graph, {Value(vertex): Value(places[equal])})


_SAMPLES: WeakKeyDictionary[Tensor, bytes] = WeakKeyDictionary()


def _tensor_sample(tensor: Tensor) -> bytes:
    """Return the first and the last values as bytes, read once."""
    if tensor.dtype is DType.STRING or tensor.nbytes > MAX_COMPARED_BYTES:
        return b""
    if tensor not in _SAMPLES:
        array = tensor.numpy()
        count = min(max(1, SAMPLE_BYTES // array.itemsize), array.size)
        _SAMPLES[tensor] = array.flat[:count].tobytes() + array.flat[array.size - count :].tobytes()
    return _SAMPLES[tensor]


def _tensors_equal(a: Tensor, b: Tensor) -> bool:
    places = [(s.path, s.offset, s.length) for s in (a.source, b.source) if isinstance(s, ExternalData)]
    if len(places) == 2 and places[0] == places[1]:
        return True
    if a.nbytes <= SAMPLE_BYTES or a.dtype is DType.STRING:
        return tensors_equal(a, b)
    return (
        a.nbytes <= MAX_COMPARED_BYTES
        and (a.dtype, a.shape) == (b.dtype, b.shape)
        and bitwise_equal(a.numpy(), b.numpy())
    )


# -- branches ----------------------------------------------------------------------------------------------------------


def inline_constant_if(graph: Graph) -> Iterator[Patch]:
    """Put the branch that is taken in the place of an If whose condition is known."""
    for vertex in sorted(graph.vertices_with_op("If")):
        node = graph[vertex]
        condition = graph.constant(node.inputs[0]) if node.domain == "" and node.inputs else None
        if condition is None or condition.size != 1:
            continue
        branch = node.attrs.get("then_branch" if bool(condition.numpy().reshape(())) else "else_branch")
        if isinstance(branch, Graph) and len(branch.outputs) == len(node.names):
            yield _splice_branch(graph, vertex, branch)


def _splice_branch(graph: Graph, vertex: int, branch: Graph) -> Patch:
    """Return the patch that copies the nodes of a branch into the graph, in the place of the If."""
    node = graph[vertex]
    moved = {inner: Value(graph.new_vertex()) for inner in branch if not _is_capture(branch[inner])}

    def outside(value: Value) -> Value:
        inner = branch[value.vertex]
        return (
            node.captures[inner.capture_index]
            if _is_capture(inner)
            else Value(moved[value.vertex].vertex, value.output)
        )

    results = {outside(value): node.names[i] for i, value in enumerate(branch.outputs) if value.vertex in moved}
    used = _name_counts(graph)
    new: dict[int, Node] = {}
    for inner, value in moved.items():
        own = branch[inner]
        names = tuple(
            results.get(Value(value.vertex, i)) or _free_name(graph, name, used) for i, name in enumerate(own.names)
        )
        new[value.vertex] = replace(
            own,
            inputs=tuple(None if operand is None else outside(operand) for operand in own.inputs),
            captures=tuple(outside(operand) for operand in own.captures),
            names=names,
            name=_free_name(graph, own.name, used),
        )
    return replace_values(graph, {Value(vertex, i): outside(v) for i, v in enumerate(branch.outputs)}, new)


def _is_capture(node: Node) -> bool:
    return node.op == CAPTURE and node.domain == INTERNAL_DOMAIN


def _name_counts(graph: Graph) -> Counter[str]:
    """Return how often each name is given in the graph and the bodies in it: two bodies may use the same."""
    counts: Counter[str] = Counter()
    for vertex in graph:
        node = graph[vertex]
        if not _is_capture(node):
            counts.update((*node.names, node.name))
        for body in node.bodies:
            counts.update(_name_counts(body))
    return counts


def _free_name(graph: Graph, name: str, used: Counter[str]) -> str:
    return name if not name or used[name] <= 1 else graph.new_name(name)


# -- all of them -------------------------------------------------------------------------------------------------------


def infer_types(graph: Graph) -> Iterator[Patch]:
    """Infer again the types that were not known in full: a shape may have been folded."""
    patch = build_inference_patch(graph)
    if patch is not None:
        yield patch


PASSES = (
    Pass("eliminate_dead_code", eliminate_dead_code, "What no output depends on need not be computed or stored."),
    Pass("inline_constant_if", inline_constant_if, "A branch that is always taken needs no If."),
    Pass(
        "fold_constants",
        fold_constants,
        "What depends on constants alone is computed once, not at every run.",
        exact_run=partial(fold_constants, exact=True),  # a sum of ONNX Runtime's may round otherwise when it runs alone
    ),
    Pass(
        "infer_types",
        infer_types,
        "A shape that became known is needed by other rewrites.",
        refine_bodies=body_input_patches,
    ),
    Pass(
        "fold_shapes",
        fold_shapes,
        "Arithmetic on sizes costs a kernel launch for a few bytes; most of it is known.",
        written_operators=frozenset({"Reshape without allowzero"}),  # it says what a 0 in the target that goes means
    ),
    Pass(
        "eliminate_true_conditions",
        eliminate_true_conditions,
        "What always holds need not be computed, nor make a mask larger than it is.",
    ),
    Pass(
        "merge_duplicate_initializers", merge_duplicate_initializers, "Equal weights are stored once.", runs_late=True
    ),
    Pass(
        "merge_common_subexpressions",
        merge_common_subexpressions,
        "What is computed twice is computed once.",
        runs_late=True,
    ),
)
"""The passes that every run uses, in their order."""


def to_exact_passes(passes: Iterable[Pass]) -> list[Pass]:
    """Return passes in the form after which the model computes bit for bit what it did."""
    return [replace(pass_, run=pass_.exact_run or pass_.run) for pass_ in passes]
