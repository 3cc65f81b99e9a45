"""From a match to a patch: the right side of a rule is built, and its constant parts are evaluated.

An operator whose inputs are all constant is computed (floats in float64, stored in the weights' own type), not
emitted. What the new nodes cannot keep exactly, such as a type, an overflow or an operator that the model's opset
lacks, is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from itertools import groupby, takewhile
from typing import Any, TypeAlias

import numpy as np

from graphopt.base.dtype import DType
from graphopt.expr.dims import SymbolicDim
from graphopt.io import opset_conversion
from graphopt.ir import schemas
from graphopt.ir.edit import DraftGraph, constant_node, replace_values
from graphopt.ir.graph import Attribute, Graph, Node, Patch, Value
from graphopt.ir.types import TensorType, Type
from graphopt.language.binding import ConstantBinding, DefaultBinding, evaluate_scalar
from graphopt.language.rule import Rule
from graphopt.language.scalar_functions import MAX_AXIS_SIZE, UndecidedScalarError
from graphopt.language.terms import (
    SCALAR,
    App,
    Term,
    Var,
    holes,
    is_literal_only,
    is_scalar,
    is_whole_number,
    operator_applications,
    walk_term,
)
from graphopt.operators.inference import DTYPES_BY_TYPE_STRING, infer_node, reshape_target
from graphopt.operators.operator_classes import lookup_operator
from graphopt.rewrite import folded_constants
from graphopt.rewrite.built_rewrites import FOLDED, BuildMemory, NewName, NewNodes, NodeNotes, ingredients
from graphopt.rewrite.constant_operands import constant_tensor
from graphopt.rewrite.folded_constants import (
    DeferredArithmetic,
    FoldedConstant,
    FoldedValues,
    check_cancellation,
    compute_term,
    defer_arithmetic,
    to_stored_tensor,
)
from graphopt.rewrite.matching import Match

MAX_REWRITE_GROWTH = 16 * 2**20
"""Bytes by which one rewrite may make the constants of a model larger."""

RewriteRefused = folded_constants.RewriteRefused
"""A match that cannot be rewritten here; says why, for the report."""

BuiltOperand: TypeAlias = "Value | FoldedConstant | None"


def missing_operator(rule: Rule, model_opsets: Mapping[str, int]) -> str | None:
    """Return the operator of the right side that the model's opset cannot express, None where it has all."""
    for op, domain in _written_operators(rule):
        if not opset_conversion.is_expressible(op, domain, model_opsets):
            return f"{domain}.{op}" if domain else op
    return None


def describe_missing_operator(rule: Rule, model_opsets: Mapping[str, int]) -> str:
    """Return the operator that the model's opset cannot express, and the first opset that can; empty where it has all.

    As `Gelu: opset 20, the model has 17; --target-opset 20 converts it`.
    """
    missing, own = missing_operator(rule, model_opsets), model_opsets.get("", 0)
    if missing is None:
        return ""
    later = range(own + 1, schemas.MAX_LOADED_OPSET + 1)
    opset = next((n for n in later if missing_operator(rule, {**model_opsets, "": n}) is None), None)
    if opset is None:
        return f"{missing}, which the model's opset does not have"
    return f"{missing}: opset {opset}, the model has {own}; --target-opset {opset} converts it"


@cache
def _written_operators(rule: Rule) -> tuple[tuple[str, str], ...]:
    """Return the operators that the right side adds, with their domains: no holes that the left side has, no computed
    parts."""
    apps = (
        app for side in rule.right for app in operator_applications(side) if app.domain not in schemas.CLASS_SCHEMAS
    )
    return tuple(dict.fromkeys((app.op, app.domain) for app in apps if not is_constant_term(app)))


def is_constant_term(term: Term | None) -> bool:
    """Return whether a term is computed whatever the rule matches: no part of it is a tensor hole."""
    match term:
        case Var(kind=kind):
            return kind not in ("tensor", "tensors")
        case App(domain=domain, op=op) if domain != SCALAR:
            return lookup_operator(op, domain).is_foldable and all(is_constant_term(arg) for arg in term.operands)
    return True


RefusalFunction: TypeAlias = Callable[[Graph, Patch], str]
"""Function that says why a patch must not be made, such as that it could not run; empty where it may."""


def build_patch(
    graph: Graph, match: Match, refusal: RefusalFunction | None = None, memory: BuildMemory | None = None
) -> Patch:
    """Return the patch that puts the right side of the match's rule in the place of the left; what was built or
    computed before is taken from `memory`.

    Raises:
        RewriteRefused: it cannot be done here without changing more than the rule says, or for the `refusal`.
    """
    builder = _Builder(graph, match, memory)
    try:
        patch = builder.patch()
        if refusal is not None and (reason := refusal(graph, patch)):
            raise RewriteRefused(reason)
        return patch
    except UndecidedScalarError as unknown:
        builder.release_names()
        raise RewriteRefused(f"not known here: {unknown}") from None
    except RewriteRefused:
        builder.release_names()
        raise


def build_terms(graph: Graph, match: Match, terms: Sequence[Term]) -> tuple[tuple[Value, ...], Mapping[int, Node]]:
    """Return the values of terms over what a match is bound to, and the nodes in new vertices that compute them.

    Raises:
        RewriteRefused: one cannot be computed by nodes that the model's opset has.
    """
    builder = _Builder(graph, match)
    try:
        return builder.terms(terms)
    except (UndecidedScalarError, RewriteRefused) as error:
        builder.release_names()
        raise RewriteRefused(str(error)) from None


def dead_after_rewrite(graph: Graph, *matches: Match) -> frozenset[int]:
    """Return the matched vertices that neither the right sides nor anything outside needs once all roots are
    replaced."""
    replaced = {root for match in matches for root in match.roots}
    outputs = set(graph.outputs)
    gone: set[int] = set()
    heights: dict[int, int] = {}
    for match in matches:
        distances: dict[int, int] = {}
        for vertex in match.vertices:
            heights[vertex] = max(heights.get(vertex, 0), _distance_from_leaves(graph, match, vertex, distances))
    reused = frozenset[int]().union(*map(reused_vertices, matches))
    for vertex in sorted(heights.keys() - reused, reverse=True, key=heights.__getitem__):
        kept = [Value(vertex, i) for i in range(len(graph[vertex].names)) if Value(vertex, i) not in replaced]
        read = {value for reader in graph.readers(vertex) if reader not in gone for value in graph[reader].operands}
        if not any(value in read or value in outputs for value in kept):
            gone.add(vertex)
    return frozenset(gone)


def reused_vertices(match: Match) -> frozenset[int]:
    """Return the matched vertices that the right side takes as they are."""
    return frozenset(vertex for side in match.rule.right for vertex in _reused_in_term(side, match.terms))


def _reused_in_term(term: Term, matched: Mapping[App, Value]) -> Iterator[int]:
    if not isinstance(term, App) or term.domain == SCALAR:
        return
    if term in matched and term.node.op:
        yield matched[term].vertex
    for operand in term.operands:
        yield from _reused_in_term(operand, matched)


def _distance_from_leaves(graph: Graph, match: Match, vertex: int, known: dict[int, int]) -> int:
    """Return the longest way up from the leaves of the match: readers come after what they read. Those that were found
    are `known`, by vertex."""
    if vertex not in known:
        inner = [value.vertex for value in graph[vertex].operands if value.vertex in match.vertices]
        known[vertex] = 1 + max((_distance_from_leaves(graph, match, source, known) for source in inner), default=0)
    return known[vertex]


@cache
def _is_independent_of_roots(rule: Rule) -> bool:
    """Return whether no value that the right side reads can be computed from a root: each left side reads all of
    them."""
    if len(rule.left) == 1:
        return True
    within = any(side is not other and side in walk_term(other) for side in rule.left for other in rule.left)
    read = {hole for side in rule.right for hole in holes(side) if hole.kind == "tensor"}
    return not within and all(read <= set(holes(side)) for side in rule.left)


def _downstream_vertices(graph: Graph, values: Iterable[Value]) -> set[int]:
    """Return the vertices that are computed from values."""
    found: set[int] = set()
    waiting = [value.vertex for value in values]
    while waiting:
        new = set(graph.readers(waiting.pop())) - found
        found |= new
        waiting += new
    return found


class _Builder:
    """Builds the right side of one match."""

    def __init__(self, graph: Graph, match: Match, memory: BuildMemory | None = None) -> None:
        self.graph, self.match = graph, match
        self.folded = FoldedValues(max_bytes=0) if memory is None else memory.folded_values
        self.built = None if memory is None else memory.built_rewrites
        self.draft = DraftGraph(graph)
        self.names: list[NewName] = []
        """The names that were reserved."""
        self.emitted_vertices: dict[App, int] = {}
        self.required_dtypes: dict[Term, DType] = {}
        """Element types that right sides must have, and operators on numbers alone."""
        self.folded_terms: dict[App, FoldedConstant] = {}
        self.constants: dict[Value, FoldedConstant] = {}
        self.dead_vertices = dead_after_rewrite(graph, match)
        self.size_sources = tuple(map(Value, graph.inputs))
        """Values whose sizes are read when the model runs."""
        self.reusable_names = {graph[v].op: graph[v].name for v in sorted(self.dead_vertices) if graph[v].name}

    @cached_property
    def noted(self) -> NodeNotes:
        """Documentation of the first root, and metadata of all nodes that go."""
        metadata: dict[str, str] = {}
        for vertex in sorted(self.dead_vertices):
            metadata = {**self.graph[vertex].metadata, **metadata}
        return NodeNotes(self.graph[self.match.roots[0].vertex].doc, metadata)

    def patch(self) -> Patch:
        mapping = dict(zip(self.match.roots, self._new_roots(), strict=True))
        self._check_acyclic(mapping)
        patch = replace_values(self.graph, mapping, self.draft.drafts)
        grown = sum(_node_bytes(node) for node in patch.added) - sum(_node_bytes(node) for node in patch.removed)
        if grown > MAX_REWRITE_GROWTH:
            raise RewriteRefused(f"the constants would grow by {grown} bytes")
        return patch

    def _new_roots(self) -> tuple[Value, ...]:
        """Return the values in the places of the roots; like ones that were built before are taken from there."""
        made_of = None if self.built is None else ingredients(self.graph, self.match, self.dead_vertices)
        if self.built is None or made_of is None:
            return self._build_roots()
        known = self.built.rebuild(self.graph, made_of, self.noted)
        if known is None:
            roots, heirs = self._build_roots(), frozenset(self.emitted_vertices.values())
            self.built.note(self.match, made_of, NewNodes(roots, self.draft.drafts, heirs, self.names))
            return roots
        self.draft.drafts, self.names = known.nodes, known.names
        return known.roots

    def _build_roots(self) -> tuple[Value, ...]:
        roots: list[Value] = []
        for side, root in zip(self.match.rule.right, self.match.roots, strict=True):
            roots.append(self._build_root(side, root))
            self._check_type(root, roots[-1])
        self._name_nodes()
        return tuple(roots)

    def release_names(self) -> None:
        """Free the names of nodes that do not come into the graph."""
        self.graph.names.difference_update(new.name for new in self.names)

    def terms(self, terms: Sequence[Term]) -> tuple[tuple[Value, ...], Mapping[int, Node]]:
        """Return the values of terms, and the nodes that are new."""
        bound = (value for value in self.match.holes.values() if isinstance(value, Value))
        self.size_sources = (*self.size_sources, *bound)
        values = tuple(self._materialize(self._build_term(term)) for term in terms)
        self._name_nodes()
        return values, self.draft.drafts

    def _name_nodes(self) -> None:
        """Name the nodes that took over no name after the one whose place they take."""
        base = self.graph[self.match.roots[0].vertex].name
        for vertex, node in self.draft.drafts.items():
            if base and not node.name and not node.is_internal:
                self.draft.drafts[vertex] = replace(node, name=self._new_name(base, f"/{node.op}"))

    def _check_acyclic(self, mapping: Mapping[Value, Value]) -> None:
        """Refuse a result that would read a value computed from one that it replaces: one root may lead to another."""
        if _is_independent_of_roots(self.match.rule):
            return
        read = {value.vertex for node in self.draft.drafts.values() for value in node.operands}
        read |= {value.vertex for value in mapping.values()}
        if not read.isdisjoint(_downstream_vertices(self.graph, self.match.roots)):
            raise RewriteRefused("what one result replaces is needed to compute another")

    # -- terms -----------------------------------------------------------------------------------------------------

    def _build_root(self, side: Term, root: Value) -> Value:
        self.required_dtypes[side] = self.draft.dtype(root)
        value = self._materialize(self._build_term(side))
        if value.vertex in self.draft.drafts:
            self._inherit_names(value, root)
        return value

    def _build_term(self, term: Term) -> BuiltOperand:
        match term:
            case Var():
                return self._build_hole(term)
            case App(domain=domain) if domain != SCALAR:
                if term in self.match.terms and term.node.op:
                    return self.match.terms[term]
                return self._build_application(term)
        raise RewriteRefused(f"{term} stands where a tensor is needed")

    def _build_hole(self, hole: Var) -> BuiltOperand:
        bound = self.match.holes[hole.name]
        origin: Hashable
        match bound:
            case Value():
                return bound
            case ConstantBinding():
                if bound.is_as_stored:
                    return bound.value
                origin = (self.folded.shared(bound.tensor), bound.shape, bound.is_reciprocal)
                name = self.graph.value_name(bound.value)
                return FoldedConstant(bound.array(), bound.tensor.dtype, name, origin=origin)
            case DefaultBinding():
                origin = (repr(bound.default), bound.shape, bound.dtype)
                return FoldedConstant(bound.array(), bound.dtype, "", is_absent=True, origin=origin)
        raise RewriteRefused(f"hole '{hole.name}' stands where a tensor is needed")

    def _build_application(self, app: App) -> BuiltOperand:
        if app in self.folded_terms:
            return self.folded_terms[app]
        if app.node in self.emitted_vertices:
            return Value(self.emitted_vertices[app.node], app.output)
        operands = [self._operand(app, position) for position in range(len(app.inputs))]
        are_constant = (
            built is None or isinstance(built, FoldedConstant) or constant_tensor(self.draft, built) is not None
            for built in operands
        )
        if operands and lookup_operator(app.op, app.domain).is_foldable and all(are_constant):
            return self.folded_terms.setdefault(app, self._fold(app, operands))
        vertex = self._emit(app, operands)
        self.emitted_vertices[app.node] = vertex
        return Value(vertex, app.output)

    def _operand(self, app: App, position: int) -> BuiltOperand:
        """Return an argument; numbers get the type that the operator's schema gives them, absent ones stay absent."""
        arg = app.inputs[position]
        if arg is None:
            return None
        if is_scalar(arg):
            return self._number(app, position, arg)
        if is_literal_only(arg):
            self.required_dtypes.setdefault(arg, self._number_type(app, position, arg))
        built = self._build_term(arg)
        absent = isinstance(built, FoldedConstant) and built.is_absent
        return None if absent and schemas.is_optional_input(app.op, app.domain, position) else built

    def _number(self, app: App, position: int, term: Term) -> BuiltOperand:
        value = evaluate_scalar(term, self.match.holes, self.match.axes, self.graph)
        if app.op == "Reshape" and isinstance(value, tuple):
            value = self._constant_target(app, value) or value
        is_list = isinstance(value, tuple)
        unknown = sum(isinstance(item, SymbolicDim) or item == -1 for item in value) if is_list else 0
        inferred = lookup_operator(app.op, app.domain).max_inferred_sizes
        if inferred is not None and unknown > inferred:
            return self._sizes(value, app)
        if isinstance(value, SymbolicDim) and app.op == "Range":
            return self._scalar_size(value, app)
        if isinstance(value, SymbolicDim):
            raise RewriteRefused(f"{term} is not a number here")
        dtype = self._number_type(app, position, term)
        if dtype is DType.UNDEFINED:
            raise RewriteRefused(f"the element type of {term} in {app.op} is not known")
        array = np.asarray(_concrete_numbers(value, app))
        if dtype.is_float and any(dtype.round_to_dtype(float(number)) is None for number in array.ravel()):
            raise RewriteRefused(f"{dtype.name} has no number near {term}")
        return FoldedConstant(array, dtype, app.op.lower(), origin=(repr(array.tolist()), array.dtype.str))

    def _constant_target(self, reshape: App, target: tuple[int | SymbolicDim, ...]) -> tuple[int, ...] | None:
        """Return the target of a Reshape in numbers, of which 0 is "copy"; None where it has them already, or cannot be
        said so."""
        data = self._operand(reshape, 0)
        shape = self.draft.shape(data) if isinstance(data, Value) and "allowzero" not in dict(reshape.attrs) else None
        if shape is None or not any(isinstance(size, SymbolicDim) for size in target):
            return None
        sizes = [shape[axis] if size == 0 and axis < len(shape) else size for axis, size in enumerate(target)]
        found = reshape_target(sizes, shape, None, self.graph.positive_sizes)
        return None if found is None else tuple(found)

    def _sizes(self, sizes: tuple[int | SymbolicDim, ...], app: App) -> Value:
        """Return sizes that are not all numbers, as they are known when the model runs: read off the graph's inputs,
        and off what terms are over."""
        parts: list[Value] = []
        for is_open, group in groupby(sizes, lambda size: isinstance(size, SymbolicDim)):
            some = tuple(group)
            if not is_open:
                parts.append(self._materialize(FoldedConstant(np.asarray(some, np.int64), DType.INT64, app.op.lower())))
                continue
            while some:  # as many as possible from one input at a time
                source, axis, count = self._size_source(some, app)
                parts.append(self._emit_plain("Shape", [source], {"start": axis, "end": axis + count}))
                some = some[count:]
        return parts[0] if len(parts) == 1 else self._emit_plain("Concat", parts, {"axis": 0})

    def _scalar_size(self, size: SymbolicDim, app: App) -> Value:
        """Return one size, or a product of sizes, as a scalar."""
        factors = size.factors
        if len(factors) == 1:
            return self._emit_plain("Squeeze", [self._sizes(factors, app)], {})
        return self._emit_plain("ReduceProd", [self._sizes(factors, app)], {"keepdims": 0})

    def _size_source(self, sizes: tuple[int | SymbolicDim, ...], app: App) -> tuple[Value, int, int]:
        """Return a value that has the first of the sizes, its axis there, and the number of sizes that follow
        alike."""
        for source in self.size_sources:
            type_ = self.graph.value_type(source)
            shape = type_.shape if isinstance(type_, TensorType) and type_.shape is not None else ()
            if sizes[0] in shape:
                axis = shape.index(sizes[0])
                alike = takewhile(lambda pair: pair[0] == pair[1], zip(sizes, shape[axis:], strict=False))
                return source, axis, sum(1 for _ in alike)
        raise RewriteRefused(f"{app.op} needs {sizes[0]}, which no input has")

    def _emit_plain(self, op: str, inputs: Sequence[Value], attrs: Mapping[str, Attribute]) -> Value:
        """Return the value of a new node that no term of the rule stands for."""
        name = self._new_name(self.graph.value_name(self.match.roots[0]), f"/{op}")
        node = Node(op, tuple(inputs), (name,), (None,), attrs, "", schemas.newest_version(op, ""))
        if reason := opset_conversion.unwritable_reason(node, self.draft):
            raise RewriteRefused(reason)
        vertex = self.graph.new_vertex()
        self.draft.drafts[vertex] = infer_node(self.draft, node)
        return Value(vertex)

    def _number_type(self, app: App, position: int, term: Term) -> DType:
        """Return the element type of a number, by the schema and the other operands."""
        others = [
            None if arg is None or is_literal_only(arg) else self._built_dtype(self._build_term(arg))
            for arg in app.inputs
        ]
        made = self.required_dtypes.get(app, DType.UNDEFINED)
        return schemas.literal_dtype(app.op, app.domain, position, others, made, whole=is_whole_number(term))

    def _built_dtype(self, built: BuiltOperand) -> DType:
        if isinstance(built, FoldedConstant):
            return built.dtype
        return DType.UNDEFINED if built is None else self.draft.dtype(built)

    # -- constants -------------------------------------------------------------------------------------------------

    def _constant(self, built: BuiltOperand) -> FoldedConstant | None:
        """Return the values of a constant, None for an absent one; read once."""
        if built is None or isinstance(built, FoldedConstant):
            return built
        if built not in self.constants:
            tensor = constant_tensor(self.draft, built)
            assert tensor is not None, "asked for the values of what is not constant"
            name = self.draft.value_name(built)
            origin = (self.folded.shared(tensor),)
            self.constants[built] = FoldedConstant(tensor.numpy(), tensor.dtype, name, origin=origin)
        return self.constants[built]

    def _fold(self, app: App, operands: list[BuiltOperand]) -> FoldedConstant:
        constants = [self._constant(operand) for operand in operands]
        dtype = self._folded_dtype(app, constants)
        moves = lookup_operator(app.op, app.domain).is_movement  # then there is nothing to round
        version = schemas.newest_version(app.op, app.domain)
        nothing = (None,) * app.outputs
        node = Node(
            app.op, (None,) * len(constants), ("",) * app.outputs, nothing, self._attrs(app), app.domain, version
        )
        origin = _origin(app, node, constants)
        values = defer_arithmetic(node, constants) or self.folded.get(
            origin, lambda: compute_term(app, node, constants, moves=moves)
        )
        if isinstance(values, DeferredArithmetic) and app.op in ("Add", "Sub"):
            check_cancellation(app, values.parts_with_operands())
        base = next(
            (c.source_name for c in constants if c is not None and c.source_name and c.dtype is not DType.INT64), ""
        )
        base = base or next((c.source_name for c in constants if c is not None and c.source_name), app.op.lower())
        if dtype is DType.UNDEFINED:
            assert isinstance(values, np.ndarray), f"{app.op} has the type of what it reads"
            dtype = DType.from_numpy(values.dtype)
        made = FoldedConstant(values, dtype, base, origin=origin)
        zero = any(c is not None and (c.is_absent or c.is_zero) for c in constants) and not made.has_nonzeros
        return replace(made, is_zero=zero)

    def _folded_dtype(self, app: App, constants: list[FoldedConstant | None]) -> DType:
        """Return the type in which a computed constant is stored: that of its operands where the schema says so."""
        to = dict(app.attrs).get("to")
        if app.op == "Cast" and to is not None:
            return DType(evaluate_scalar(to, self.match.holes, self.match.axes, self.graph))
        schema = schemas.schema(app.op, app.domain)
        assert schema is not None, app.op
        declared = schema.outputs[min(app.output, len(schema.outputs) - 1)].type_str
        for position, constant in enumerate(constants):
            if constant is not None and schema.inputs[min(position, len(schema.inputs) - 1)].type_str == declared:
                return constant.dtype
        return DTYPES_BY_TYPE_STRING.get(declared, DType.UNDEFINED)

    def _materialize(self, built: BuiltOperand) -> Value:
        """Return a value of the graph: a computed constant becomes a node of its own."""
        if isinstance(built, Value):
            return built
        assert built is not None, "an absent value stands for nothing"
        stored = self.folded.get(
            None if built.origin is None else (built.origin, built.dtype),
            lambda: self.folded.shared(to_stored_tensor(built)),
        )
        vertex = self.graph.new_vertex()
        self.draft.drafts[vertex] = constant_node(stored, self._new_name(built.source_name, FOLDED))
        return Value(vertex)

    # -- nodes -----------------------------------------------------------------------------------------------------

    def _emit(self, app: App, operands: list[BuiltOperand]) -> int:
        inputs: list[Value | None] = []
        for position, operand in enumerate(operands):
            if operand is None or _adds_only_zeros(app, position, operand):
                inputs.append(None)
            else:
                inputs.append(self._materialize(operand))
        while inputs and inputs[-1] is None:
            inputs.pop()
        node = self._node(app, tuple(inputs))
        if reason := opset_conversion.unwritable_reason(node, self.draft):
            raise RewriteRefused(reason)
        vertex = self.graph.new_vertex()
        self.draft.drafts[vertex] = infer_node(self.draft, node)
        return vertex

    def _node(self, app: App, inputs: tuple[Value | None, ...]) -> Node:
        value_name = self.graph.value_name(self.match.roots[0])
        return Node(
            app.op,
            inputs,
            tuple(self._new_name(value_name, f"/{app.op}") for _ in range(app.outputs)),
            (None,) * app.outputs,
            self._attrs(app),
            app.domain,
            schemas.newest_version(app.op, app.domain),
            self.reusable_names.pop(app.op, ""),
            doc=self.noted.doc,
            metadata=self.noted.metadata,
        )

    def _attrs(self, app: App) -> Mapping[str, Attribute]:
        attrs: dict[str, Attribute] = {}
        if app.attributes_hole is not None:
            others = self.match.holes[app.attributes_hole.name]
            assert isinstance(others, Mapping), "a bundle is bound to attributes"
            attrs.update(others)
        for name, term in app.attrs:
            attrs[name] = _concrete_numbers(evaluate_scalar(term, self.match.holes, self.match.axes, self.graph), app)
        return {name: value for name, value in attrs.items() if value != ()}

    def _inherit_names(self, value: Value, root: Value) -> None:
        """Give the replacement the name of a root's value, and the name of its node unless a like node gave one
        already."""
        node, old = self.draft.drafts[value.vertex], self.graph[root.vertex]
        names = (*node.names[: value.output], old.names[root.output], *node.names[value.output + 1 :])
        inherits = not node.name and not node.is_internal and root.vertex in self.dead_vertices
        given = {each.name for each in self.draft.drafts.values() if each.name}
        name = old.name if inherits and old.name not in given else node.name
        self.draft.drafts[value.vertex] = replace(node, names=names, name=name)

    def _new_name(self, stem: str, suffix: str) -> str:
        self.names.append(NewName.reserve(self.graph, stem, suffix))
        return self.names[-1].name

    # -- types -----------------------------------------------------------------------------------------------------

    def _check_type(self, old: Value, new: Value) -> None:
        """Give the new value the type of the old one, whose facts are kept."""
        before, after = self.graph.value_type(old), self.draft.value_type(new)
        if not types_compatible(before, after):
            raise RewriteRefused(f"the result would be {after}, not {before}")
        if new.vertex in self.draft.drafts and before is not None:
            node = self.draft.drafts[new.vertex]
            types = (*node.types[: new.output], before, *node.types[new.output + 1 :])
            self.draft.drafts[new.vertex] = replace(node, types=types)


def types_compatible(before: Type | None, after: Type | None) -> bool:
    """Return whether nothing known of the two types contradicts: a size without a name may turn out to be any."""
    if not isinstance(before, TensorType) or not isinstance(after, TensorType):
        return before is None or after is None or before == after
    if before.dtype != after.dtype:
        return False
    if before.shape is None or after.shape is None:
        return True
    if len(before.shape) != len(after.shape):
        return False
    return all(
        a == b or (isinstance(a, SymbolicDim) and a.is_anonymous) or (isinstance(b, SymbolicDim) and b.is_anonymous)
        for a, b in zip(before.shape, after.shape, strict=True)
    )


def _origin(app: App, node: Node, constants: Sequence[FoldedConstant | None]) -> Hashable:
    """Return the origin of an operator's output, by those of its operands; None if one is unknown."""
    if any(constant is not None and constant.origin is None for constant in constants):
        return None
    if not all(isinstance(attribute, int | float | str | tuple) for attribute in node.attrs.values()):
        return None
    operands = tuple(None if constant is None else (constant.origin, constant.dtype) for constant in constants)
    return node.domain, node.op, node.version, app.output, app.outputs, repr(sorted(node.attrs.items())), operands


def _adds_only_zeros(app: App, position: int, operand: BuiltOperand) -> bool:
    """Return whether an operand is zeros computed from an absent one, in a place where zeros may as well be absent."""
    return (
        isinstance(operand, FoldedConstant)
        and operand.is_zero
        and lookup_operator(app.op, app.domain).bias_input == position
    )


def _concrete_numbers(value: Any, app: App) -> Any:
    """Return numbers for an attribute or a constant input; one unknown size of a Reshape's target is -1."""
    if isinstance(value, SymbolicDim):
        raise RewriteRefused(f"{app.op} needs a number, not {value}")
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, int) and not ~MAX_AXIS_SIZE <= number <= MAX_AXIS_SIZE:
            raise RewriteRefused(f"{app.op} needs a number of 64 bits, not {number}")
    if not isinstance(value, tuple):
        return value
    symbolic = [item for item in value if isinstance(item, SymbolicDim)]
    if not symbolic:
        return value
    if app.op == "Reshape" and len(symbolic) == 1 and not any(item in (0, -1) for item in value):
        return tuple(-1 if isinstance(item, SymbolicDim) else item for item in value)
    raise RewriteRefused(f"{app.op} needs numbers, not {', '.join(map(str, symbolic))}")


def _node_bytes(node: Node) -> int:
    return node.data.nbytes if node.is_constant and node.data is not None else 0
