"""The chain rule on a graph: from a loss back to the values that it depends on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from graphopt.autodiff.building import RewriteRefused, add_bound_terms, add_outputs, add_values, zeros_like
from graphopt.autodiff.decomposition import decompose, is_decomposable
from graphopt.autodiff.masked_rows import with_masked_rows_replaced
from graphopt.autodiff.scan import SCAN, scan_gradients
from graphopt.base.errors import ModelError
from graphopt.ir import schemas
from graphopt.ir.graph import Graph, Node, Patch, Value
from graphopt.ir.types import TensorType
from graphopt.language.binding import evaluate_scalar
from graphopt.language.gradient import ZERO, Gradient, output_gradient
from graphopt.language.scalar_functions import UndecidedScalarError
from graphopt.language.terms import Term, holes, op, tensor
from graphopt.operators.elementwise_gradients import selection_as_product
from graphopt.operators.gradient_table import gradients_of, has_bounded_gradient
from graphopt.rewrite.matching import Match, find_matches


def add_gradients(graph: Graph, loss: Value, values: Sequence[Value]) -> tuple[Value, Mapping[Value, Value]]:
    """Add the nodes to a graph that compute the gradient of a scalar loss, and return it for each of the values.

    A value on which the loss does not depend, or only in steps, has none. Operators on the way that have no gradient of
    their own are replaced by what defines them, the one that computes the loss among them: it is returned first.

    Raises:
        ModelError: an operator on the way has no gradient, or not for its attributes, sizes or opset.
    """
    (loss,) = _decompose_path(graph, [loss], values)
    backward = _Backward(graph, [loss], values)
    seed = _ones(graph, loss)
    found = backward.gradients({loss: seed})
    if not graph.fan_out(seed.vertex) and loss not in values:  # it went into other constants
        graph.apply(Patch({seed.vertex: graph[seed.vertex]}, {}))
    return loss, found


def _ones(graph: Graph, loss: Value) -> Value:
    """Add the gradient of a loss with respect to itself.

    Raises:
        ModelError: it is not one number.
    """
    shape, dtype = graph.shape(loss), graph.dtype(loss)
    if shape is None or any(size != 1 for size in shape) or not dtype.is_float:
        label = graph.value_name(loss)
        raise ModelError(f"the loss '{label}' is {graph.value_type(loss)}: a loss is one floating-point number")
    one: Term = op.Cast(1.0, to=dtype)
    return add_values(graph, loss, [op.Reshape(one, (1,) * len(shape)) if shape else one], {})[0]


def _gradients_in_body(body: Graph, seeds: Mapping[Value, Value], values: Sequence[Value]) -> Mapping[Value, Value]:
    """Add the gradients of values to the graph of a body, given those of its results."""
    results = _decompose_path(body, list(seeds), values)
    seeds = dict(zip(results, seeds.values(), strict=True))
    return _Backward(body, results, values, unbounded=results).gradients(seeds)


def influences(graph: Graph, loss: Value) -> set[Value]:
    """Return the values of floating-point numbers that a loss can be differentiated with respect to, as far as the
    operators say; it counts as differentiable where they say nothing."""
    found, stack = {loss}, [loss]
    while stack:
        node = graph[stack.pop().vertex]
        read = [value for i, value in enumerate(node.inputs) if value and _has_gradient(node, i, graph[value.vertex])]
        for value in (*read, *node.captures):
            if value not in found and _may_vary(graph, value):
                found.add(value)
                stack.append(value)
    return found


def _may_vary(graph: Graph, value: Value) -> bool:
    """Return whether a value may be differentiated: floating-point numbers, and what is not known to be others."""
    type_ = graph.value_type(value)
    return not isinstance(type_, TensorType) or type_.dtype.is_float


def _has_gradient(node: Node, position: int, source: Node) -> bool:
    """Return whether an operator may have a gradient with respect to an input; an initializer that none of its
    gradients names, such as the number that a Pad puts in, is a setting."""
    known = gradients_of(node)
    terms = [each.by_position[position] for each in known if position in each.by_position]
    if known and not terms:
        return not source.is_internal
    return not known or any(term != ZERO for term in terms)


def _decompose_path(graph: Graph, results: Sequence[Value], values: Sequence[Value]) -> Sequence[Value]:
    """Replace operators without a gradient between values and results by what defines them; return the results."""
    while True:
        path = _path(graph, results, values)
        lacking = [v for v in path if not gradients_of(graph[v]) and is_decomposable(graph, graph[v])]
        if not lacking:
            return results
        for vertex in lacking:
            try:
                replaced = decompose(graph, vertex)
                results = [replaced.get(result, result) for result in results]
            except RewriteRefused as refused:
                node = graph[vertex]
                raise ModelError(f"{node.op} '{node.name or node.names[0]}' has no gradient here: {refused}") from None


def _path(graph: Graph, results: Iterable[Value], values: Iterable[Value]) -> list[int]:
    """Return the operators between values and results, producers first."""
    needed, stack = set[int](), [result.vertex for result in results]
    while stack:
        vertex = stack.pop()
        if vertex not in needed:
            needed.add(vertex)
            stack += graph.sources(vertex)
    active, path = set(values), list[int]()
    for vertex in graph.topological_order():
        node = graph[vertex]
        if vertex not in needed or node.is_internal or active.isdisjoint(node.operands):
            continue
        outputs = [Value(vertex, i) for i, name in enumerate(node.names) if name]
        floats = [value for value in outputs if _may_vary(graph, value)]
        if floats:
            active.update(floats)
            path.append(vertex)
    return path


class _Backward:
    """The gradients that flow back through one graph."""

    def __init__(
        self, graph: Graph, results: Sequence[Value], values: Sequence[Value], unbounded: Iterable[Value] = ()
    ) -> None:
        """Take the results and the values on which they depend, and the results whose gradients may be infinite."""
        self.graph, self.values = graph, values
        self.path = _path(graph, results, values)
        on_path = {Value(v, i) for v in self.path for i in range(len(graph[v].names))}
        self.active = {value for value in on_path if _may_vary(graph, value)}.union(values)
        self.known: dict[Value, Value] = {}
        """The gradient of each value, as far as its readers have been visited."""
        self.unbounded = set(unbounded)
        """The values whose gradients may be infinite where all numbers of the model are ordinary."""

    def gradients(self, seeds: Mapping[Value, Value]) -> Mapping[Value, Value]:
        """Return the gradients of the values, given those of the results."""
        self.known.update(seeds)
        for vertex in reversed(self.path):
            if any(Value(vertex, i) in self.known for i in range(len(self.graph[vertex].names))):
                self._visit(vertex)
        return {value: self.known[value] for value in self.values if value in self.known}

    def _visit(self, vertex: int) -> None:
        """Pass the gradients of an operator's outputs on to its inputs."""
        node = self.graph[vertex]
        if not (self._has_bounded_outputs(vertex) and has_bounded_gradient(self.graph, node)):
            self.unbounded.update(node.operands)
        if node.op == SCAN and not node.domain:
            known = {i: self.known[Value(vertex, i)] for i in range(len(node.names)) if Value(vertex, i) in self.known}
            for read, flown in scan_gradients(self.graph, vertex, known, self.active, _gradients_in_body):
                self._add(read, self._fitted(flown, read))
            return
        alternatives = gradients_of(node)
        if not self.active.isdisjoint(node.captures):
            raise ModelError(self._missing(node, "what its bodies read", "the operator has none"))
        for position, value in enumerate(node.inputs):
            if value is None or value not in self.active:
                continue
            found = self._input_gradient(vertex, position, alternatives)
            if found is not None:
                self._add(value, self._fitted(found, value))

    def _has_bounded_outputs(self, vertex: int) -> bool:
        return all(Value(vertex, i) not in self.unbounded for i in range(len(self.graph[vertex].names)))

    def _input_gradient(self, vertex: int, position: int, alternatives: Sequence[Gradient]) -> Value | None:
        """Return the gradient with respect to an input, None if that is zero.

        Raises:
            ModelError: none of the alternatives is for this node.
        """
        reasons = []
        last_known = max(i for i in range(len(self.graph[vertex].names)) if Value(vertex, i) in self.known)
        for each in alternatives:
            term, node = each.by_position.get(position), self.graph[vertex]
            if each.head.outputs <= last_known:
                reasons.append(f"the loss depends on its output '{node.names[last_known]}', too")
                continue
            if term is not None and each.head.outputs > len(node.names) and len(each.head.inputs) == len(node.inputs):
                add_outputs(self.graph, vertex, each.head.outputs)
            match = None if term is None else next(find_matches(each.pattern, self.graph, vertex), None)
            if match is None or term is None:
                continue
            match = self._with_upstream(match, each, term)
            if not self._conditions_hold(each, match):
                continue
            if term == ZERO:
                return None
            if self._has_bounded_outputs(vertex):
                term = selection_as_product(term)
            try:
                return add_bound_terms(self.graph, match, [term])[0]
            except RewriteRefused as refused:
                reasons.append(str(refused))
        is_declared = any(position in each.by_position for each in alternatives)
        reasons.append("not with these attributes and sizes" if is_declared else "the operator has none")
        raise ModelError(self._missing(self.graph[vertex], self._input_label(vertex, position), reasons[0]))

    def _conditions_hold(self, gradient: Gradient, match: Match) -> bool:
        try:
            return all(evaluate_scalar(said, match.holes, match.axes, self.graph) for said in gradient.when)
        except UndecidedScalarError:
            return False

    def _input_label(self, vertex: int, position: int) -> str:
        """Return what the schema of an operator calls an input."""
        schema = schemas.schema_of(self.graph[vertex])
        if schema is None or position >= len(schema.inputs):
            return f"its input {position}"
        return f"its input '{schema.inputs[position].name}'"

    def _missing(self, node: Node, by: str, reason: str) -> str:
        """Return the message about an operator that cannot be differentiated."""
        where = f"{node.op} '{node.name or node.names[0]}'"
        return f"{where}: no gradient with respect to {by}, on which the loss depends: {reason}"

    def _with_upstream(self, match: Match, gradient: Gradient, term: Term) -> Match:
        """Return a match that also binds the gradients of the outputs; of one that nothing reads it is zero."""
        vertex = match.roots[0].vertex
        bound, used = dict(match.holes), {hole for part in (term, *gradient.when) for hole in holes(part)}
        for output in range(gradient.head.outputs):
            hole, value = output_gradient(output), Value(vertex, output)
            if hole in used:
                bound[hole.name] = self.known[value] if value in self.known else zeros_like(self.graph, value)
        own = [with_masked_rows_replaced(self.graph, Value(vertex, i)) for i in range(gradient.head.outputs)]
        outputs = dict(zip(gradient.outputs, own, strict=True))
        return replace(match, holes=bound, terms=outputs)

    def _add(self, value: Value, gradient: Value) -> None:
        """Add what one reader contributes to the gradient of a value."""
        if value in self.known:
            both = {"a": self.known[value], "b": gradient}
            (gradient,) = add_values(self.graph, gradient, [tensor("a") + tensor("b")], both)
        self.known[value] = gradient

    def _fitted(self, gradient: Value, value: Value) -> Value:
        """Return a gradient in the shape of its value: summed over the axes along which the value was broadcast, or
        repeated along others; where a size is open, the axes are found when the model runs."""
        for term in self._fitting_terms(gradient, value):
            (gradient,) = add_values(self.graph, gradient, [term], {"g": gradient, "x": value})
        return gradient

    def _fitting_terms(self, gradient: Value, value: Value) -> Iterator[Term]:
        g, x = tensor("g"), tensor("x")
        made, wanted = self.graph.shape(gradient), self.graph.shape(value)
        if made is None or wanted is None:
            raise ModelError(f"the rank of '{self.graph.value_name(value)}' is not known, on which the loss depends")
        if len(made) > len(wanted):
            yield op.ReduceSum(g, tuple(range(len(made) - len(wanted))), keepdims=0)
            made = made[len(made) - len(wanted) :]
        missing = len(wanted) - len(made)
        pairs = list(zip(made, wanted[missing:], strict=True))
        summed = tuple(axis for axis, (size, own) in enumerate(pairs) if own == 1 and size != 1)
        if summed:
            yield op.ReduceSum(g, summed, keepdims=1)
        left = [(size, own) for size, own in pairs if own != 1 and size != own]
        if any(size != 1 and not isinstance(own, int) for size, own in left):  # the value may have a 1 there
            own_shape = op.Slice(op.Shape(x), (missing,), (len(wanted),), (0,)) if missing else op.Shape(x)
            ones = op.Squeeze(op.NonZero(op.Equal(own_shape, 1)), (0,))
            yield op.ReduceSum(g, ones, keepdims=1, noop_with_empty_axes=1)
        if missing or any(size == 1 for size, _ in left):
            yield op.Expand(g, op.Shape(x))
        elif left:  # sizes that differ in name alone
            yield op.Reshape(g, op.Shape(x))
