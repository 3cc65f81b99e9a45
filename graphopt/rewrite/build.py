"""From a match to a patch: the right side of a rule is built, and what is constant in it is evaluated.

An operator whose inputs are all constant is computed (floats in float64, stored in the weights' own type), not
emitted. What the new nodes cannot keep exactly, such as a type, an overflow or an operator that the model's opset
lacks, is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import groupby, takewhile
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx.defs import OpSchema

from graphopt.base.sizes import Sym
from graphopt.base.types import DType, TensorType, Type
from graphopt.io import opsets
from graphopt.ir import ops
from graphopt.ir.edit import Draft, constant_node, replace_values
from graphopt.ir.graph import Attribute, Graph, Node, Patch, Value
from graphopt.language.binding import Absent, Known, evaluate
from graphopt.language.rule import Rule
from graphopt.language.scalar import LONGEST, Unknown
from graphopt.language.term import SCALAR, App, Term, Var, applications, holes, is_scalar, is_whole, is_written, walk
from graphopt.operators.classes import entry
from graphopt.operators.evaluate import evaluate as compute
from graphopt.operators.infer import infer_node
from graphopt.rewrite import folded
from graphopt.rewrite.constants import known_tensor
from graphopt.rewrite.folded import Folded, Rowwise, cancels, rowwise, tensor_of
from graphopt.rewrite.match import Match

GROWTH = 16 * 2**20
"""Bytes by which one rewrite may make the constants of a model larger."""

MULTIPLICATIONS = 1 << 36
"""In a product of constants, at most: that is two matrices of 4096 by 4096, a few seconds on one core."""

Refused = folded.Refused
"""A match that cannot be rewritten here; says why, for the report."""

Built: TypeAlias = "Value | Folded | None"


def lacking(rule: Rule, model_opsets: Mapping[str, int]) -> str | None:
    """Return the operator of the right side that the model's opset cannot express, None where it has all."""
    for op, domain in _written(rule):
        if not opsets.emittable(op, domain, model_opsets):
            return f"{domain}.{op}" if domain else op
    return None


@cache
def _written(rule: Rule) -> tuple[tuple[str, str], ...]:
    """Return the operators of the right side, with their domains, but for holes, as the left side has them, and what
    is computed."""
    apps = (app for side in rule.right for app in applications(side) if app.domain not in ops.CLASSES)
    return tuple(dict.fromkeys((app.op, app.domain) for app in apps if not is_constant(app)))


def is_constant(term: Term | None) -> bool:
    """Return True for what is computed whatever the rule matches: no part of it is a tensor hole."""
    match term:
        case Var(kind=kind):
            return kind not in ("tensor", "tensors")
        case App(domain=domain, op=op) if domain != SCALAR:
            return entry(op, domain).is_folded and all(is_constant(arg) for arg in term.operands)
    return True


Refusal: TypeAlias = Callable[[Graph, Patch], str]
"""Why a patch must not be made, such as that it could not run; empty where it may."""


def build(graph: Graph, match: Match, refusal: Refusal | None = None) -> Patch:
    """Return the patch that puts the right side of the match's rule in the place of the left.

    Raises:
        Refused: it cannot be done here without changing more than the rule says, or for the `refusal`.
    """
    builder = _Builder(graph, match)
    try:
        patch = builder.patch()
        if refusal is not None and (reason := refusal(graph, patch)):
            raise Refused(reason)
        return patch
    except Unknown as unknown:
        graph.names.difference_update(builder.names)
        raise Refused(f"not known here: {unknown}") from None
    except Refused:
        graph.names.difference_update(builder.names)
        raise


def doomed(graph: Graph, match: Match) -> frozenset[int]:
    """Return the matched vertices that neither the right side nor anything outside needs once the roots are
    replaced."""
    replaced = set(match.roots)
    outputs = set(graph.outputs)
    gone: set[int] = set()
    for vertex in sorted(match.vertices - staying(match), reverse=True, key=lambda v: _order(graph, match, v)):
        kept = [Value(vertex, i) for i in range(len(graph[vertex].names)) if Value(vertex, i) not in replaced]
        read = {value for reader in graph.readers(vertex) if reader not in gone for value in graph[reader].operands}
        if not any(value in read or value in outputs for value in kept):
            gone.add(vertex)
    return frozenset(gone)


def staying(match: Match) -> frozenset[int]:
    """Return the matched vertices that the right side takes as they are."""
    return frozenset(vertex for side in match.rule.right for vertex in _staying(side, match.terms))


def _staying(term: Term, matched: Mapping[App, Value]) -> Iterator[int]:
    if not isinstance(term, App) or term.domain == SCALAR:
        return
    if term in matched and term.node.op:
        yield matched[term].vertex
    for operand in term.operands:
        yield from _staying(operand, matched)


def _order(graph: Graph, match: Match, vertex: int) -> int:
    """Readers come later: the longest way up from the leaves of the match."""
    inner = [value.vertex for value in graph[vertex].operands if value.vertex in match.vertices]
    return 1 + max((_order(graph, match, source) for source in inner), default=0)


@cache
def _reads_what_all_roots_read(rule: Rule) -> bool:
    """Return whether nothing that the right side reads can be computed from a root: each left side reads all of it
    itself."""
    if len(rule.left) == 1:
        return True
    within = any(side is not other and side in walk(other) for side in rule.left for other in rule.left)
    read = {hole for side in rule.right for hole in holes(side) if hole.kind == "tensor"}
    return not within and all(read <= set(holes(side)) for side in rule.left)


def _downstream(graph: Graph, values: Iterable[Value]) -> set[int]:
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

    def __init__(self, graph: Graph, match: Match) -> None:
        self.graph, self.match = graph, match
        self.draft = Draft(graph)
        self.names: list[str] = []
        self.memo: dict[App, int] = {}
        self.made: dict[Term, DType] = {}
        """The element types that right sides have to have, and what is made of numbers alone."""
        self.computed: dict[App, Folded] = {}
        self.read: dict[Value, Folded] = {}
        self.doomed = doomed(graph, match)
        self.spare = {graph[v].op: graph[v].name for v in sorted(self.doomed) if graph[v].name}

    def patch(self) -> Patch:
        mapping: dict[Value, Value] = {}
        for side, root in zip(self.match.rule.right, self.match.roots, strict=True):
            mapping[root] = self._root(side, root)
            self._check_type(root, mapping[root])
        self._name_nodes()
        self._check_order(mapping)
        patch = replace_values(self.graph, mapping, self.draft.new)
        grown = sum(_bytes(node) for node in patch.added) - sum(_bytes(node) for node in patch.removed)
        if grown > GROWTH:
            raise Refused(f"the constants would grow by {grown} bytes")
        return patch

    def _check_order(self, mapping: Mapping[Value, Value]) -> None:
        """Refuse what would read a value that is computed from one that it replaces: one root may lead to another."""
        if _reads_what_all_roots_read(self.match.rule):
            return
        read = {value.vertex for node in self.draft.new.values() for value in node.operands}
        read |= {value.vertex for value in mapping.values()}
        if not read.isdisjoint(_downstream(self.graph, self.match.roots)):
            raise Refused("what one result replaces is needed to compute another")

    # -- terms -----------------------------------------------------------------------------------------------------

    def _root(self, side: Term, root: Value) -> Value:
        self.made[side] = self.draft.dtype(root)
        value = self._value(self._term(side))
        if value.vertex in self.draft.new:
            self._rename(value, root)
        return value

    def _term(self, term: Term) -> Built:
        match term:
            case Var():
                return self._hole(term)
            case App(domain=domain) if domain != SCALAR:
                if term in self.match.terms and term.node.op:
                    return self.match.terms[term]
                return self._app(term)
        raise Refused(f"{term} stands where a tensor is needed")

    def _hole(self, hole: Var) -> Built:
        bound = self.match.holes[hole.name]
        match bound:
            case Value():
                return bound
            case Known():
                if bound.is_as_stored:
                    return bound.value
                return Folded(bound.array(), bound.tensor.dtype, self.graph.value_name(bound.value))
            case Absent():
                return Folded(bound.array(), bound.dtype, "", absent=True)
        raise Refused(f"hole '{hole.name}' stands where a tensor is needed")

    def _app(self, app: App) -> Built:
        if app in self.computed:
            return self.computed[app]
        if app.node in self.memo:
            return Value(self.memo[app.node], app.output)
        operands = [self._operand(app, position) for position in range(len(app.inputs))]
        if operands and entry(app.op, app.domain).is_folded and all(map(self._is_known, operands)):
            return self.computed.setdefault(app, self._folded(app, operands))
        vertex = self._emit(app, operands)
        self.memo[app.node] = vertex
        return Value(vertex, app.output)

    def _operand(self, app: App, position: int) -> Built:
        """Return an argument; numbers get the type that the operator's schema gives them, what was absent stays so."""
        arg = app.inputs[position]
        if arg is None:
            return None
        if is_scalar(arg):
            return self._number(app, position, arg)
        if is_written(arg):
            self.made.setdefault(arg, self._number_type(app, position, arg))
        built = self._term(arg)
        absent = isinstance(built, Folded) and built.absent
        return None if absent and ops.is_optional(app.op, app.domain, position) else built

    def _number(self, app: App, position: int, term: Term) -> Built:
        value = evaluate(term, self.match.holes, self.match.axes, self.graph)
        unknown = sum(isinstance(item, Sym) for item in value) if isinstance(value, tuple) else 0
        inferred = entry(app.op, app.domain).infers_sizes
        if inferred is not None and unknown > inferred:
            return self._sizes(value, app)
        if isinstance(value, Sym) and app.op == "Range":
            return self._plain("Squeeze", [self._sizes((value,), app)], {})
        if isinstance(value, Sym):
            raise Refused(f"{term} is not a number here")
        dtype = self._number_type(app, position, term)
        if dtype is DType.UNDEFINED:
            raise Refused(f"the element type of {term} in {app.op} is not known")
        array = np.asarray(_concrete(value, app))
        if dtype.is_float and any(dtype.nearest(float(number)) is None for number in array.ravel()):
            raise Refused(f"{dtype.name} has no number near {term}")
        return Folded(array, dtype, app.op.lower())

    def _sizes(self, sizes: tuple[int | Sym, ...], app: App) -> Value:
        """Sizes that are not all numbers, as they are known when the model runs: read off the graph's inputs."""
        parts: list[Value] = []
        for is_open, group in groupby(sizes, lambda size: isinstance(size, Sym)):
            some = tuple(group)
            if is_open:
                parts += self._read(some, app)
            else:
                parts.append(self._value(Folded(np.asarray(some, np.int64), DType.INT64, app.op.lower())))
        return parts[0] if len(parts) == 1 else self._plain("Concat", parts, {"axis": 0})

    def _read(self, sizes: tuple[int | Sym, ...], app: App) -> Iterator[Value]:
        """As many as possible from one input at a time."""
        while sizes:
            source, axis, count = self._source(sizes, app)
            yield self._plain("Shape", [source], {"start": axis, "end": axis + count})
            sizes = sizes[count:]

    def _source(self, sizes: tuple[int | Sym, ...], app: App) -> tuple[Value, int, int]:
        """Return an input with the first of the sizes, at which axis it has it, and how many sizes follow there
        alike."""
        for source in map(Value, self.graph.inputs):
            type_ = self.graph.type(source)
            shape = type_.shape if isinstance(type_, TensorType) and type_.shape is not None else ()
            if sizes[0] in shape:
                axis = shape.index(sizes[0])
                alike = takewhile(lambda pair: pair[0] == pair[1], zip(sizes, shape[axis:], strict=False))
                return source, axis, sum(1 for _ in alike)
        raise Refused(f"{app.op} needs {sizes[0]}, which no input has")

    def _plain(self, op: str, inputs: Sequence[Value], attrs: Mapping[str, Attribute]) -> Value:
        """Return a node that no term of the rule stands for."""
        name = self._new_name(f"{self.graph.value_name(self.match.roots[0])}/{op}")
        node = Node(op, tuple(inputs), (name,), (None,), attrs, "", ops.newest(op, ""))
        if reason := opsets.why_not(node, self.draft):
            raise Refused(reason)
        vertex = self.graph.new_vertex()
        self.draft.new[vertex] = infer_node(self.draft, node)
        return Value(vertex)

    def _number_type(self, app: App, position: int, term: Term) -> DType:
        """Return the element type of a number, by the schema and the other operands."""
        others = [None if arg is None or is_written(arg) else self._built_dtype(self._term(arg)) for arg in app.inputs]
        made = self.made.get(app, DType.UNDEFINED)
        return ops.number_type(app.op, app.domain, position, others, made, whole=is_whole(term))

    def _built_dtype(self, built: Built) -> DType:
        if isinstance(built, Folded):
            return built.dtype
        return DType.UNDEFINED if built is None else self.draft.dtype(built)

    # -- constants -------------------------------------------------------------------------------------------------

    def _is_known(self, built: Built) -> bool:
        return built is None or isinstance(built, Folded) or known_tensor(self.draft, built) is not None

    def _constant(self, built: Built) -> Folded | None:
        """Return the values of a constant, None for an absent one; read once."""
        if built is None or isinstance(built, Folded):
            return built
        if built not in self.read:
            tensor = known_tensor(self.draft, built)
            assert tensor is not None, "asked for the values of what is not constant"
            self.read[built] = Folded(tensor.numpy(), tensor.dtype, self.draft.value_name(built))
        return self.read[built]

    def _folded(self, app: App, operands: list[Built]) -> Folded:
        constants = [self._constant(operand) for operand in operands]
        dtype = self._folded_dtype(app, constants)
        moves = entry(app.op, app.domain).only_moves  # then there is nothing to round
        version = ops.newest(app.op, app.domain)
        nothing = (None,) * app.outputs
        node = Node(
            app.op, (None,) * len(constants), ("",) * app.outputs, nothing, self._attrs(app), app.domain, version
        )
        values = rowwise(node, constants) or self._computed(app, node, constants, moves)
        if isinstance(values, Rowwise) and app.op in ("Add", "Sub"):
            _demand_digits(app, values.parts_with_operands())
        base = next((c.base for c in constants if c is not None and c.base and c.dtype is not DType.INT64), "")
        base = base or next((c.base for c in constants if c is not None and c.base), app.op.lower())
        if dtype is DType.UNDEFINED:
            assert isinstance(values, np.ndarray), f"{app.op} has the type of what it reads"
            dtype = DType.of(values.dtype)
        made = Folded(values, dtype, base)
        zero = any(c is not None and (c.absent or c.zero) for c in constants) and not made.has_values
        return replace(made, zero=zero)

    def _computed(self, app: App, node: Node, constants: Sequence[Folded | None], moves: bool) -> NDArray[Any]:
        """Return an operator's output on constants, at once."""
        arrays = [None if constant is None else _computed_with(constant, moves) for constant in constants]
        if _multiplications(app.op, arrays) > MULTIPLICATIONS:
            raise Refused(f"{app} takes too long to compute")
        results = compute(node, arrays, float64=not moves, as_runtime=False)
        if results is None:
            raise Refused(f"{app} cannot be computed")
        if app.op in ("Add", "Sub"):
            _demand_digits(app, [(results[app.output], arrays)])
        return results[app.output]

    def _folded_dtype(self, app: App, constants: list[Folded | None]) -> DType:
        """Return the type in which a computed constant is stored: that of its operands where the schema says so."""
        to = dict(app.attrs).get("to")
        if app.op == "Cast" and to is not None:
            return DType(evaluate(to, self.match.holes, self.match.axes, self.graph))
        schema = ops.schema(app.op, app.domain)
        assert schema is not None, app.op
        declared = schema.outputs[min(app.output, len(schema.outputs) - 1)].type_str
        for position, constant in enumerate(constants):
            if constant is not None and _formal(app, position).type_str == declared:
                return constant.dtype
        return _DTYPES.get(declared, DType.UNDEFINED)

    def _value(self, built: Built) -> Value:
        """Return a value of the graph: what is computed becomes a constant of its own."""
        if isinstance(built, Value):
            return built
        assert built is not None, "an absent value stands for nothing"
        stored = tensor_of(built)
        vertex = self.graph.new_vertex()
        self.draft.new[vertex] = constant_node(stored, self._new_name(_folded_name(built.base)))
        return Value(vertex)

    # -- nodes -----------------------------------------------------------------------------------------------------

    def _emit(self, app: App, operands: list[Built]) -> int:
        inputs: list[Value | None] = []
        for position, operand in enumerate(operands):
            if operand is None or _adds_nothing(app, position, operand):
                inputs.append(None)
            else:
                inputs.append(self._value(operand))
        while inputs and inputs[-1] is None:
            inputs.pop()
        node = self._node(app, tuple(inputs))
        if reason := opsets.why_not(node, self.draft):
            raise Refused(reason)
        vertex = self.graph.new_vertex()
        self.draft.new[vertex] = infer_node(self.draft, node)
        return vertex

    def _node(self, app: App, inputs: tuple[Value | None, ...]) -> Node:
        root = self.graph[self.match.roots[0].vertex]
        value_name = self.graph.value_name(self.match.roots[0])
        return Node(
            app.op,
            inputs,
            tuple(self._new_name(f"{value_name}/{app.op}") for _ in range(app.outputs)),
            (None,) * app.outputs,
            self._attrs(app),
            app.domain,
            ops.newest(app.op, app.domain),
            self.spare.pop(app.op, ""),
            doc=root.doc,
            metadata=self._metadata(),
        )

    def _attrs(self, app: App) -> Mapping[str, Attribute]:
        attrs: dict[str, Attribute] = {}
        if app.bundle is not None:
            others = self.match.holes[app.bundle.name]
            assert isinstance(others, Mapping), "a bundle is bound to attributes"
            attrs.update(others)
        for name, term in app.attrs:
            attrs[name] = _concrete(evaluate(term, self.match.holes, self.match.axes, self.graph), app)
        return {name: value for name, value in attrs.items() if value != ()}

    def _metadata(self) -> Mapping[str, str]:
        merged: dict[str, str] = {}
        for vertex in sorted(self.doomed):
            merged = {**self.graph[vertex].metadata, **merged}
        return merged

    def _rename(self, value: Value, root: Value) -> None:
        """Hand the name of a root's value over to what replaces it, and its node's where it has none from a like
        node."""
        node, old = self.draft.new[value.vertex], self.graph[root.vertex]
        names = (*node.names[: value.output], old.names[root.output], *node.names[value.output + 1 :])
        inherits = not node.name and not node.is_internal and root.vertex in self.doomed
        given = {each.name for each in self.draft.new.values() if each.name}
        name = old.name if inherits and old.name not in given else node.name
        self.draft.new[value.vertex] = replace(node, names=names, name=name)

    def _name_nodes(self) -> None:
        """Nodes that took over no name get one derived from the root's, unless the root has none."""
        base = self.graph[self.match.roots[0].vertex].name
        for vertex, node in self.draft.new.items():
            if base and not node.name and not node.is_internal:
                self.draft.new[vertex] = replace(node, name=self._new_name(f"{base}/{node.op}"))

    def _new_name(self, base: str) -> str:
        name = self.graph.new_name(base)
        self.names.append(name)
        return name

    # -- types -----------------------------------------------------------------------------------------------------

    def _check_type(self, old: Value, new: Value) -> None:
        """Give the new value the type of the old one; what was known of the old is kept."""
        before, after = self.graph.type(old), self.draft.type(new)
        if not compatible(before, after):
            raise Refused(f"the result would be {after}, not {before}")
        if new.vertex in self.draft.new and before is not None:
            node = self.draft.new[new.vertex]
            types = (*node.types[: new.output], before, *node.types[new.output + 1 :])
            self.draft.new[new.vertex] = replace(node, types=types)


def compatible(before: Type | None, after: Type | None) -> bool:
    """Nothing that is known of the two types contradicts: a size without a name may turn out to be any."""
    if not isinstance(before, TensorType) or not isinstance(after, TensorType):
        return before is None or after is None or before == after
    if before.dtype != after.dtype:
        return False
    if before.shape is None or after.shape is None:
        return True
    if len(before.shape) != len(after.shape):
        return False
    return all(
        a == b or (isinstance(a, Sym) and a.is_anonymous) or (isinstance(b, Sym) and b.is_anonymous)
        for a, b in zip(before.shape, after.shape, strict=True)
    )


_DTYPES = {f"tensor({dtype.name.lower()})": dtype for dtype in DType}


def _formal(app: App, position: int) -> OpSchema.FormalParameter:
    schema = ops.schema(app.op, app.domain)
    assert schema is not None, app.op
    return schema.inputs[min(position, len(schema.inputs) - 1)]


def _adds_nothing(app: App, position: int, operand: Built) -> bool:
    """Return whether an operand that came of an absent one is all zeros again, where zeros may as well be absent."""
    return isinstance(operand, Folded) and operand.zero and entry(app.op, app.domain).added == position


def _concrete(value: Any, app: App) -> Any:
    """Numbers for an attribute or a constant input; one unknown size of a Reshape's target is -1."""
    if isinstance(value, Sym):
        raise Refused(f"{app.op} needs a number, not {value}")
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, int) and not ~LONGEST <= number <= LONGEST:
            raise Refused(f"{app.op} needs a number of 64 bits, not {number}")
    if not isinstance(value, tuple):
        return value
    symbolic = [item for item in value if isinstance(item, Sym)]
    if not symbolic:
        return value
    if app.op == "Reshape" and len(symbolic) == 1 and not any(item in (0, -1) for item in value):
        return tuple(-1 if isinstance(item, Sym) else item for item in value)
    raise Refused(f"{app.op} needs numbers, not {', '.join(map(str, symbolic))}")


def _demand_digits(app: App, parts: Iterable[tuple[NDArray[Any], Sequence[NDArray[Any] | None]]]) -> None:
    """Refuse a sum of large numbers that is little itself, at any place."""
    if any(cancels(made, terms) for made, terms in parts):
        raise Refused(f"{app} is little of two large numbers: to add one and take it away again rounds")


def _computed_with(constant: Folded, moves: bool) -> NDArray[Any]:
    """Return the values as they are computed with: floats in float64, unless they are only moved; all else as it is."""
    if not constant.dtype.is_float:
        return tensor_of(constant).numpy()
    return constant.array if moves else constant.array.astype(np.float64, copy=False)


_FOLDED = re.compile(r"(?:_folded(?:_\d+)?)+$")


def _folded_name(base: str) -> str:
    """Return the name of what is computed of a constant; of what was computed itself, the same, so that none grows."""
    return f"{_FOLDED.sub('', base) or 'constant'}_folded"


def _multiplications(op: str, arrays: Sequence[NDArray[Any] | None]) -> int:
    """In the product of two constants; 0 for operators whose time is in proportion to what they read or write."""
    if op != "MatMul" or len(arrays) != 2:
        return 0
    left, right = arrays
    assert left is not None
    assert right is not None
    columns = right.shape[-1] if right.ndim > 1 else 1
    rows = left.shape[-2] if left.ndim > 1 else 1
    return max(left.size * columns, right.size * rows)


def _bytes(node: Node) -> int:
    return node.data.nbytes if node.is_constant and node.data is not None else 0
