"""Estimated cost of a graph, without running it.

The estimate is a roofline: a node takes as long as its arithmetic or its memory traffic, whichever is longer, plus a
launch. The constants describe ONNX Runtime's CPU kernels, and the fusions that it makes when it loads a model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import filterfalse, pairwise
from math import fsum, prod, sqrt
from typing import NamedTuple

from graphopt.base.dtype import DType
from graphopt.expr.dims import SymbolicDim
from graphopt.ir.graph import Graph, Node, Value
from graphopt.ir.schemas import is_deterministic
from graphopt.ir.types import TensorType
from graphopt.operators.node_facts import get_attribute, operator_of_node
from graphopt.operators.operator_cost import EpilogueFusion, FusionTarget, LayoutEffect, WorkKind
from graphopt.runtime.cost_model import GraphPart, PredictedGain
from graphopt.runtime.kernel_table import KernelTable, KernelWork, PredictedTime, describe_kernel
from graphopt.runtime.machine import Machine
from graphopt.runtime.measure import Speedup

ASSUMED_SIZE = 16
"""Size assumed for each size that is not a number; where not even the rank is known, two axes of it."""


MAX_KNOWN_NODES = 50_000
"""Nodes of which the estimates are remembered at once; with more, all are forgotten."""


class AnalyticCost:
    """Costs by the roofline: they rank and prune candidates, and serve where nothing may be run."""

    name = "analytic"
    is_steady = True
    device = ""

    def __init__(self, machine: Machine | None = None, kernels: KernelTable | None = None) -> None:
        """Take the rates of a machine, and a table of kernels that corrects the estimates of single nodes."""
        self.machine = machine or Machine()
        self.kernels = kernels or KernelTable(self.machine)
        self._known_nodes: dict[object, _NodeEstimate] = {}

    def _estimate(self, graph: Graph) -> _GraphEstimate:
        if len(self._known_nodes) > MAX_KNOWN_NODES:
            self._known_nodes.clear()
        return _GraphEstimate(graph, self.machine, self.kernels, self._known_nodes)

    def estimate_seconds(self, graph: Graph) -> float:
        """Return an estimate of one run: at least a launch."""
        return max(self._estimate(graph).seconds, self.machine.launch_seconds)

    def predict_gain(self, before: Graph, after: Graph, parts: Sequence[GraphPart] = ()) -> PredictedGain:
        """Return what a graph gains that is made of another, by the kernels of which it has more or fewer; so do its
        parts."""
        old, new = self._estimate(before), self._estimate(after)
        times = old.times | new.times
        found = tuple(_predict_gain(old.counts_of(first), new.counts_of(second), times) for first, second in parts)
        return _predict_gain(old.counts, new.counts, times)._replace(parts=found)

    def node_seconds(self, graph: Graph) -> dict[int, float]:
        """Return an estimate for each node, without copies between layouts; 0 for what is computed when the model is
        loaded."""
        estimate = self._estimate(graph)
        return {vertex: estimate.seconds_of_node(vertex) for vertex, _ in graph.nodes()}

    def prior_seconds(self, graph: Graph) -> dict[KernelWork, float]:
        """Return the estimates of a graph's kernels without a table, of those that a table has words for."""
        parts = self._estimate(graph).counts
        return {part.work: part.load.seconds(self.machine) for part in parts if part.work is not None}

    def replaced_share(self, before: Graph, after: Graph, static: Graph) -> float:
        """Return the estimated part of a graph's time that is in nodes which a graph made of it lacks, or does
        otherwise; nodes that only read other values count as the same. `static` is the graph with numbers for sizes."""
        estimate = self._estimate(static)
        if not (whole := estimate.seconds):  # all is computed when the model is loaded
            return 0.0
        return estimate.seconds_of(lambda vertex: not _does_the_same(before, after, vertex)) / whole

    def measure_speedups(
        self,
        before: Graph,
        after: Sequence[Graph],
        least_gain: float = 0.0,  # noqa: ARG002  # known without effort
    ) -> list[Speedup]:
        """Return the ratios of the estimates, as certain as if they were measured: after no round."""
        own = self.estimate_seconds(before)
        ratios = [own / self.estimate_seconds(graph) for graph in after]
        return [Speedup(ratio, ratio, ratio, ratio, rounds=0) for ratio in ratios]


class WorkLoad(NamedTuple):
    """Work of a node: operations on 32-bit numbers, at the rate of a matrix product; bytes moved; launches."""

    flops: float = 0.0
    bytes: float = 0.0
    launches: float = 1.0

    def seconds(self, machine: Machine) -> float:
        """Return the seconds that it takes at the rates of a machine."""
        busy = max(self.flops / machine.flops_per_second, self.bytes / machine.bytes_per_second)
        return busy + self.launches * machine.launch_seconds


NO_LOAD = WorkLoad(launches=0.0)


class _Part(NamedTuple):
    """Cost of a node or of a copy between layouts, equal for those that do the same."""

    name: str
    """Operator with its attributes."""
    work: KernelWork | None
    load: WorkLoad


class _NodeEstimate(NamedTuple):
    """Estimate for one node, given what is known of what it reads."""

    name: str
    work: KernelWork | None
    load: WorkLoad
    is_blocked: bool
    """True if it writes the blocked layout."""
    stays_open: FusionTarget | None
    """Kind of kernel that the next node may be fused into."""


class _GraphEstimate:
    """Estimate for one graph on a machine: folded nodes, fused nodes, and values in the blocked layout."""

    def __init__(
        self, graph: Graph, machine: Machine, kernels: KernelTable, known_nodes: dict[object, _NodeEstimate]
    ) -> None:
        """Take the estimates for nodes of other graphs, by what decides them, and add its own."""
        self.graph, self.machine, self.kernels, self.known_nodes = graph, machine, kernels, known_nodes
        self.known: set[int] = set()
        """The vertices that are computed when the model is loaded."""
        self.blocked: set[Value] = set()
        """The values in the layout that blocks channels."""
        self.open: dict[Value, FusionTarget | None] = {}
        """The values that only one node reads, and what that node may be fused into."""
        self._parts: dict[int, _Part] = {}
        self.times: dict[_Part, PredictedTime] = {}
        for vertex in graph.topological_order():
            self._visit(vertex, graph[vertex])
        self.counts = Counter(self._parts.values())
        """Nodes and copies between layouts by what they cost."""
        self.counts.update(self._part("layout", None, load) for load in self._layout_copies())

    @property
    def seconds(self) -> float:
        return fsum(count * self.times[part].seconds for part, count in self.counts.items())

    def seconds_of(self, is_counted: Callable[[int], bool]) -> float:
        """Return the seconds of some nodes, without copies between layouts."""
        return fsum(self.times[part].seconds for vertex, part in self._parts.items() if is_counted(vertex))

    def counts_of(self, vertices: Collection[int]) -> Counter[_Part]:
        """Return some nodes by what they cost, without copies between layouts and without what is folded."""
        return Counter(self._parts[vertex] for vertex in vertices if vertex in self._parts)

    def seconds_of_node(self, vertex: int) -> float:
        """Return the seconds of one node; 0 where it is folded."""
        return self.times[self._parts[vertex]].seconds if vertex in self._parts else 0.0

    def _part(self, name: str, work: KernelWork | None, load: WorkLoad) -> _Part:
        """Return what some work costs, and note its time."""
        part = _Part(name, work, load)
        if part not in self.times:
            self.times[part] = self.kernels.predict(work, load.seconds(self.machine))
        return part

    def _visit(self, vertex: int, node: Node) -> None:
        if self._is_folded(node):
            self.known.add(vertex)
        elif not node.is_internal:
            found = self._node_estimate(vertex, node)
            self._parts[vertex] = self._part(found.name, found.work, found.load)
            if found.is_blocked:
                self.blocked.add(Value(vertex))
            if self.graph.fan_out(vertex) <= 1 and self.graph.use_count(Value(vertex)) == 1:
                self.open[Value(vertex)] = found.stays_open

    def _node_estimate(self, vertex: int, node: Node) -> _NodeEstimate:
        """Return the estimate for a node; that of the same node in another graph, if it reads what is alike."""
        key = node.serial, *(None if value is None else self._operand_facts(value) for value in node.inputs)
        found = self.known_nodes.get(key)
        if found is None:
            found = self._new_estimate(vertex, node)
            if not _looks_at_neighbours(node):
                self.known_nodes[key] = found
        return found

    def _operand_facts(self, value: Value) -> object:
        """Return what is known of a value that a node reads."""
        type_, is_known = self.graph.value_type(value), value.vertex in self.known
        return type_, is_known, value in self.blocked, self.open.get(value)

    def _new_estimate(self, vertex: int, node: Node) -> _NodeEstimate:
        view = _NodeSizes(self, vertex)
        fused = _fuse(view)
        is_blocked = _is_blocked(view, fused)
        load = _node_load(view) if fused is None else fused.work
        is_told = fused is None and bool(load.flops or load.bytes)
        work = _kernel_work(view, is_blocked=is_blocked) if is_told else None
        name = node.op if node.has_bodies else f"{node.op} {dict(node.attrs)}"
        stays_open = view.cost.fusion_target if fused is None else fused.stays_open
        return _NodeEstimate(name, work, load, is_blocked, stays_open)

    def _is_folded(self, node: Node) -> bool:
        if node.is_internal:
            return node.is_constant
        if operator_of_node(node).reads_shape_only and (data := self.graph.tensor_type(node.inputs[0])):
            return data.is_static
        return all(value.vertex in self.known for value in node.operands) and is_deterministic(node)

    def _layout_copies(self) -> Iterator[WorkLoad]:
        """Yield the copies out of the blocked layout and into it that are certain; at the graph's border none is."""
        for value in self.blocked:
            readers = (reader for reader in self.graph.readers(value.vertex) if reader in self._parts)
            if any(Value(reader) not in self.blocked for reader in readers):
                yield self._copy_load(value)
        readers = (value.vertex for value in self.blocked if not _reads_plain_layout(_NodeSizes(self, value.vertex)))
        read = {value for reader in readers for value in self.graph[reader].operands}
        yield from (self._copy_load(value) for value in read - self.blocked if value.vertex in self._parts)

    def _copy_load(self, value: Value) -> WorkLoad:
        return WorkLoad(bytes=2 * _nbytes(self.graph.tensor_type(value)))


def _predict_gain(before: Counter[_Part], after: Counter[_Part], times: Mapping[_Part, PredictedTime]) -> PredictedGain:
    """Return the gain by what is done more or less often than before."""
    whole = fsum(count * times[part].seconds for part, count in before.items())
    counts = before.copy()
    counts.subtract(after)
    saved = fsum(count * times[part].seconds for part, count in counts.items())
    error = sqrt(fsum((count * times[part].seconds * times[part].error) ** 2 for part, count in counts.items()))
    return PredictedGain(whole, saved, error)


def _looks_at_neighbours(node: Node) -> bool:
    """Return whether the estimate for a node depends on its readers, on what makes its operands, or on numbers."""
    cost = operator_of_node(node).cost
    is_gate = EpilogueFusion.GATE in cost.fusions.values()
    asking = WorkKind.TRANSPOSITION, WorkKind.LAYER_NORMALIZATION, WorkKind.POWER
    return is_gate or node.has_bodies or cost.work in asking


def _does_the_same(before: Graph, after: Graph, vertex: int) -> bool:
    """Return whether a node is in both graphs, though it may read other values."""
    if vertex not in after:
        return False
    old, new = before[vertex], after[vertex]
    return old is new or (old.op, old.domain, old.attrs, old.types) == (new.op, new.domain, new.attrs, new.types)


class _NodeSizes:
    """A node with the sizes of what it reads and writes, as numbers."""

    def __init__(self, estimate: _GraphEstimate, vertex: int) -> None:
        self.estimate, self.graph, self.vertex = estimate, estimate.graph, vertex
        self.node = self.graph[vertex]
        self.inputs, self.cost = self.node.inputs, operator_of_node(self.node).cost
        self.block = estimate.machine.block

    def shape(self, index: int) -> tuple[int, ...]:
        """Return the sizes of an input; () where it is absent."""
        value = self.input(index)
        return () if value is None else _static_sizes(self.graph.tensor_type(value))

    def input(self, index: int) -> Value | None:
        return self.inputs[index] if index < len(self.inputs) else None

    def result(self, index: int = 0) -> tuple[int, ...]:
        return _static_sizes(self.graph.tensor_type(Value(self.vertex, index)))

    def is_known(self, index: int) -> bool:
        """Return whether an input is there and constant."""
        value = self.input(index)
        return value is not None and value.vertex in self.estimate.known

    def integer(self, name: str, otherwise: int) -> int:
        found = get_attribute(self.node, self.graph, name)
        return found if isinstance(found, int) else otherwise

    def integers(self, name: str) -> tuple[int, ...]:
        found = get_attribute(self.node, self.graph, name)
        return tuple(item for item in found if isinstance(item, int)) if isinstance(found, tuple) else ()

    @cached_property
    def max_elements(self) -> int:
        """Elements of the largest input or output."""
        shapes = [self.shape(index) for index in range(len(self.inputs))]
        return max(map(prod, [*shapes, self.result()]), default=1)

    @cached_property
    def written_bytes(self) -> float:
        results = (Value(self.vertex, index) for index, name in enumerate(self.node.names) if name)
        return sum(_nbytes(self.graph.tensor_type(value)) for value in results)

    @cached_property
    def traffic_bytes(self) -> float:
        """Bytes read and written."""
        return self.written_bytes + sum(
            _nbytes(self.graph.tensor_type(value)) for value in self.inputs if value is not None
        )

    @cached_property
    def relative_width(self) -> float:
        """Size of an element of the first input, as a multiple of a float32's."""
        return _bit_width(self.graph.tensor_type(self.input(0))) / 32


def _static_sizes(type_: TensorType | None) -> tuple[int, ...]:
    if type_ is None or type_.shape is None:
        return (ASSUMED_SIZE, ASSUMED_SIZE)
    return tuple(
        max(0, sum(coefficient * ASSUMED_SIZE ** len(atoms) for atoms, coefficient in dim.terms))
        if isinstance(dim, SymbolicDim)
        else dim
        for dim in type_.shape
    )


def _nbytes(type_: TensorType | None) -> float:
    return prod(_static_sizes(type_)) * _bit_width(type_) / 8


def _bit_width(type_: TensorType | None) -> int:
    """Return the bits of an element; strings and unknown types count as float32."""
    if type_ is None or type_.dtype in (DType.UNDEFINED, DType.STRING):
        return 32
    return type_.dtype.bits


# -- fusions by ONNX Runtime -------------------------------------------------------------------------------------------


class _FusedNode(NamedTuple):
    """Work that is left of a node fused into the one before it, and what may be fused after it."""

    work: WorkLoad
    stays_open: FusionTarget | None = None


def _fuse(view: _NodeSizes) -> _FusedNode | None:
    """Return what is left of a node that is fused into the one before it, or into a product after it; else None."""
    for index, value in enumerate(view.inputs):
        head = view.estimate.open.get(value) if value is not None else None
        fusion = view.cost.fusions.get(head) if head is not None else None
        found = _fuse_epilogue(view, index, fusion) if fusion else None
        if found is not None:
            return found
    return _FusedNode(NO_LOAD) if view.cost.work is WorkKind.TRANSPOSITION and _is_of_product(view) else None


def _fuse_epilogue(view: _NodeSizes, index: int, fusion: EpilogueFusion) -> _FusedNode | None:
    """Return what is left of a node that is fused into the one that computes an input; None where it is not."""
    is_fused, into = False, None
    match fusion:
        case EpilogueFusion.ADDED_CHANNELS:
            return _fuse_added_channels(view, index)
        case EpilogueFusion.BIAS:
            return _fuse_bias(view, index)
        case EpilogueFusion.ACTIVATION | EpilogueFusion.BLOCKED_ACTIVATION:  # in kernels that only the CPU has
            is_fused = bool(view.block) and _other_inputs_known(view, index)
            if fusion is EpilogueFusion.BLOCKED_ACTIVATION:
                is_fused &= view.inputs[index] in view.estimate.blocked
        case EpilogueFusion.NORMALIZED_CHANNELS:  # constants per channel go into a convolution's weights
            is_fused, into = _other_inputs_known(view, index), FusionTarget.CONVOLUTION
        case EpilogueFusion.SCALED_CHANNELS:
            fits = prod(view.shape(1 - index)) == 1 or _is_per_channel(view, index)
            is_fused, into = fits and _other_inputs_known(view, index), FusionTarget.CONVOLUTION
        case EpilogueFusion.SCALE | EpilogueFusion.DIVISOR:
            fits = fusion is EpilogueFusion.SCALE or index == 0
            is_number = _other_inputs_known(view, index) and prod(view.shape(1 - index)) == 1
            is_fused, into = fits and is_number, FusionTarget.PRODUCT
        case EpilogueFusion.GATE:  # `x * sigmoid(x)` is one operator
            value = view.inputs[index]
            is_fused = view.inputs[1 - index] == (None if value is None else view.graph[value.vertex].inputs[0])
    return _FusedNode(NO_LOAD, into) if is_fused else None


def _fuse_added_channels(view: _NodeSizes, index: int) -> _FusedNode | None:
    """Fuse a sum into a convolution, which adds a tensor of its result's size as it writes."""
    if _other_inputs_known(view, index):
        return _FusedNode(NO_LOAD, FusionTarget.CONVOLUTION) if _is_per_channel(view, index) else None
    if not view.block or view.shape(0) != view.shape(1):
        return None
    return _FusedNode(
        NO_LOAD._replace(bytes=_nbytes(view.graph.tensor_type(view.input(1 - index)))), FusionTarget.CONVOLUTION
    )


def _is_per_channel(view: _NodeSizes, index: int) -> bool:
    """Return whether the other operand has a number per channel."""
    whole, other = view.shape(index), view.shape(1 - index)
    if prod(other) == 1:
        return False
    return len(other) >= len(whole) - 1 and prod(other) == other[1 - len(whole)] == whole[1]


def _fuse_bias(view: _NodeSizes, index: int) -> _FusedNode | None:
    """Fuse a sum into a product of matrices, or a sum with a vector into any product: they become a Gemm.

    With more than two axes a Reshape follows it, so that no activation is fused.
    """
    result, other = view.result(), view.input(1 - index)
    is_matrix = len(result) == 2 and view.shape(index) == result
    if not is_matrix and len(view.shape(1 - index)) != 1:
        return None
    added = NO_LOAD if view.is_known(1 - index) else NO_LOAD._replace(bytes=_nbytes(view.graph.tensor_type(other)))
    return _FusedNode(added, FusionTarget.GEMM if is_matrix else None)


def _other_inputs_known(view: _NodeSizes, index: int) -> bool:
    return all(view.is_known(other) for other, value in enumerate(view.inputs) if other != index and value is not None)


def _is_of_product(view: _NodeSizes) -> bool:
    """Return whether it transposes the last two axes for matrix products alone, which read either order."""
    order = view.integers("perm")
    rank = len(order)
    swapped = rank > 1 and order == (*range(rank - 2), rank - 1, rank - 2)
    readers = {operator_of_node(view.graph[reader]).cost.fusion_target for reader in view.graph.readers(view.vertex)}
    return swapped and bool(readers) and readers <= {FusionTarget.PRODUCT, FusionTarget.GEMM}


# -- the blocked layout of convolutions --------------------------------------------------------------------------------


def _is_blocked(view: _NodeSizes, fused: _FusedNode | None) -> bool:
    """Return whether a node writes the blocked layout."""
    lying = [value in view.estimate.blocked for value in view.inputs]
    if view.cost.layout_effect is LayoutEffect.ENTERS_BLOCKED:
        return _enters_blocked_layout(view)
    if not any(lying):
        return False
    if fused is not None:
        return True
    match view.cost.layout_effect:
        case LayoutEffect.KEEPS_IF_SAME_SHAPE:
            return all(lying) and len({view.shape(index) for index in range(len(lying))}) == 1
        case LayoutEffect.KEEPS_IF_WHOLE_BLOCKS:
            whole = all(view.shape(index)[1] % view.block == 0 for index in range(len(lying)))
            return all(lying) and view.integer("axis", 0) == 1 and whole
    return view.cost.layout_effect is LayoutEffect.KEEPS


def _enters_blocked_layout(view: _NodeSizes) -> bool:
    """Return whether a convolution runs in the blocked layout: two axes of space, constant weights, channels that
    fit."""
    weight, group = view.shape(1), view.integer("group", 1)
    is_float = view.inputs[0] is not None and view.graph.dtype(view.inputs[0]) is DType.FLOAT
    if not view.block or len(weight) != 4 or not view.is_known(1) or not is_float:
        return False
    made, read = weight[:2]
    if group == 1:
        return read < view.block or read % 4 == 0
    if read == 1:
        return made == group and group % 4 == 0
    return read % view.block == 0 and made // group % view.block == 0


def _reads_plain_layout(view: _NodeSizes) -> bool:
    """Return whether a convolution reads the usual layout, as it does where there are few channels."""
    is_conv = view.cost.layout_effect is LayoutEffect.ENTERS_BLOCKED
    return is_conv and view.integer("group", 1) == 1 and view.shape(1)[1] < view.block


def _kernel_work(view: _NodeSizes, *, is_blocked: bool) -> KernelWork | None:
    """Return the work of a node in the words of a table of kernels; None where that has no word for it."""
    if view.graph.dtype(Value(view.vertex)) is not DType.FLOAT or not view.node.names[0]:
        return None
    reads, op = [view.shape(index) for index, value in enumerate(view.inputs) if value is not None], view.node.op
    if view.cost.work is WorkKind.LAYER_NORMALIZATION and _normalizes_sum(view):
        reads, op = [reads[0], *reads], f"Skip{op}"
    return describe_kernel(op, reads, view.result(), is_blocked=is_blocked, has_weights=view.is_known(1))


# -- costs of operators ------------------------------------------------------------------------------------------------


def _node_load(view: _NodeSizes) -> WorkLoad:
    """Return the work of a node, in which operations on narrower numbers count as fewer."""
    work = _LOADS[view.cost.work](view)
    return work._replace(flops=work.flops * view.relative_width)


def _elementwise_load(view: _NodeSizes) -> WorkLoad:
    cost = view.cost
    return WorkLoad(cost.flops * view.max_elements, cost.passes * view.traffic_bytes, cost.passes)


_DEPTHWISE_SLOWDOWN = 4.0
"""Slowdown of an operation in a depthwise convolution, which shares no operand between channels."""


def _conv_load(view: _NodeSizes) -> WorkLoad:
    weight, result = view.shape(1), view.result()
    made, read = (*weight[:2], 1, 1)[:2]
    multiplied = 2.0 * prod(result) * prod(weight[1:])
    if not _enters_blocked_layout(view):
        return WorkLoad(multiplied * _plain_layout_slowdown(view, len(weight), read), view.traffic_bytes)
    if read == 1 and view.integer("group", 1) > 1:
        return WorkLoad(multiplied * _DEPTHWISE_SLOWDOWN, view.traffic_bytes)
    return WorkLoad(multiplied * -(-made // view.block) * view.block / max(made, 1), view.traffic_bytes)


def _plain_layout_slowdown(view: _NodeSizes, rank: int, read: int) -> float:
    """Return the slowdown of a convolution outside of the blocked layout, by the channels that a filter reads."""
    group = view.integer("group", 1)
    if not view.block:
        return 1.0 if group == 1 or read > 1 else _DEPTHWISE_SLOWDOWN
    if group == 1:
        return 1.3 if rank == 4 else 1.4
    return 6 * _DEPTHWISE_SLOWDOWN if read == 1 else 1.3 * max(1.8, view.block / read)


def _product_load(view: _NodeSizes) -> WorkLoad:
    """Return the work of products, pools and attention; factors above 1 are for kernels below the rate."""
    first, second = view.shape(0), view.shape(1)
    match view.cost.work:
        case WorkKind.TRANSPOSED_CONVOLUTION:
            flops = 1.4 * 2 * prod(first) * prod(second[1:])
        case WorkKind.POOL:
            flops = 2.0 * prod(view.result()) * prod(view.integers("kernel_shape"))
        case WorkKind.RECURRENT:  # each step multiplies by both weights, in small products
            flops = 2 * 2.0 * prod(first[:2]) * (prod(second) + prod(view.shape(2)))
        case WorkKind.ATTENTION:
            flops = _attention_flops(prod(first), second or first)
        case WorkKind.PACKED_ATTENTION:  # with the projections, whose weights are the second input
            flops = 2.0 * prod(first) * (second or (1,))[-1] + _attention_flops(prod(first), first)
        case _:
            axis = -2 if view.integer("transA", 0) and len(first) > 1 else -1
            flops = 2.0 * prod(view.result()) * (first or (1,))[axis]
    return WorkLoad(flops, view.traffic_bytes)


def _attention_flops(queries: int, keys: Sequence[int]) -> float:
    """Return the operations of two products over the pairs of positions, and of a softmax between them."""
    (length,) = keys[-2:-1] or (1,)
    return 4.0 * 1.5 * queries * length


def _einsum_load(view: _NodeSizes) -> WorkLoad:
    equation = get_attribute(view.node, view.graph, "equation")
    if not isinstance(equation, str) or "..." in equation:
        return _elementwise_load(view)
    operands = equation.partition("->")[0].split(",")
    sizes = {letter: n for i, term in enumerate(operands) for letter, n in zip(term, view.shape(i), strict=False)}
    return WorkLoad(1.5 * 2 * prod(sizes.values()), 2 * view.traffic_bytes)


def _copy_load(view: _NodeSizes) -> WorkLoad:
    """Return the work of copying what is written; the rest of the input is not read."""
    return WorkLoad(bytes=view.cost.copy_slowdown * 2 * view.written_bytes)


_SCATTERED_SLOWDOWN = 6.0
"""Slowdown of a transposition that is copied element by element (ONNX Runtime 1.32)."""


def _transposition_load(view: _NodeSizes) -> WorkLoad:
    """Return the work of a copy, or none where only axes of size 1 move."""
    shape = view.shape(0)
    order = [axis for axis in view.integers("perm") if axis < len(shape) and shape[axis] != 1]
    if order == sorted(order):
        return WorkLoad()
    load = _copy_load(view)
    return load._replace(bytes=load.bytes * _SCATTERED_SLOWDOWN) if _is_scattered(order) else load


def _is_scattered(order: Sequence[int]) -> bool:
    """Return whether a transposition is copied element by element: it moves several axes, the last one among them.
    Axes that stay side by side count as one."""
    places = [sorted(order).index(axis) for axis in order]
    runs = [place for before, place in pairwise((-2, *places)) if place != before + 1]
    is_one_move = any([*filterfalse(run.__eq__, runs)] == sorted(filterfalse(run.__eq__, runs)) for run in runs)
    return places[-1] != max(places) and not is_one_move


def _softmax_load(view: _NodeSizes) -> WorkLoad:
    """Return the work of a softmax, more where its axis is swapped with the last one and others stand between them."""
    load, rank = _elementwise_load(view), len(view.shape(0))
    if view.integer("axis", -1) % max(rank, 1) >= rank - 2:
        return load
    return load._replace(bytes=load.bytes + 2 * _SCATTERED_SLOWDOWN * 4 * view.written_bytes)


def _power_load(view: _NodeSizes) -> WorkLoad:
    """Squares and cubes are multiplied out."""
    exponent = view.graph.constant(view.input(1))
    small = exponent is not None and exponent.size == 1 and float(exponent.numpy().ravel()[0]) in (2.0, 3.0)
    return WorkLoad(40.0 * view.max_elements, view.traffic_bytes) if small else _elementwise_load(view)


_INTERPOLATION_FLOPS = {"linear": 150.0, "cubic": 24_000.0}
"""Operations an element that is written, counted at the rate of a matrix product (ONNX Runtime 1.32)."""


def _interpolation_load(view: _NodeSizes) -> WorkLoad:
    mode = get_attribute(view.node, view.graph, "mode")
    return WorkLoad(_INTERPOLATION_FLOPS.get(str(mode), view.cost.flops) * prod(view.result()), view.traffic_bytes)


def _layer_norm_load(view: _NodeSizes) -> WorkLoad:
    """Return the work of a layer norm, which is more where the CPU provider fuses it with a sum of equal shapes before
    it: that kernel is slow."""
    flops = view.cost.flops_after_sum if _normalizes_sum(view) else view.cost.flops
    return WorkLoad(flops * view.max_elements, view.traffic_bytes)


def _normalizes_sum(view: _NodeSizes) -> bool:
    """Return whether the CPU provider fuses a layer norm with the sum before it."""
    value = view.input(0)
    if not view.block or value is None or view.estimate.open.get(value) is not FusionTarget.SUM:
        return False
    types = [view.graph.tensor_type(operand) for operand in view.graph[value.vertex].operands]
    return len(view.shape(0)) == 3 and len({type_.shape for type_ in types if type_ is not None}) == 1


def _body_load(view: _NodeSizes, times: int) -> WorkLoad:
    """Return the work of running the most expensive body a number of times."""
    estimate = view.estimate
    shared = estimate.machine, estimate.kernels, estimate.known_nodes
    seconds = max((_GraphEstimate(body, *shared).seconds for body in view.node.bodies), default=0.0)
    return WorkLoad(launches=1 + times * seconds / estimate.machine.launch_seconds)


_LOADS: Mapping[WorkKind, Callable[[_NodeSizes], WorkLoad]] = {
    WorkKind.ELEMENTWISE: _elementwise_load,
    WorkKind.POWER: _power_load,
    WorkKind.SOFTMAX: _softmax_load,
    WorkKind.LAYER_NORMALIZATION: _layer_norm_load,
    WorkKind.CONVOLUTION: _conv_load,
    WorkKind.TRANSPOSED_CONVOLUTION: _product_load,
    WorkKind.PRODUCT: _product_load,
    WorkKind.ATTENTION: _product_load,
    WorkKind.PACKED_ATTENTION: _product_load,
    WorkKind.RECURRENT: _product_load,
    WorkKind.EINSUM: _einsum_load,
    WorkKind.POOL: _product_load,
    WorkKind.INTERPOLATION: _interpolation_load,
    WorkKind.MOVEMENT: _copy_load,
    WorkKind.TRANSPOSITION: _transposition_load,
    WorkKind.NOTHING: lambda view: WorkLoad(),
    WorkKind.BRANCH: lambda view: _body_load(view, 1),
    WorkKind.LOOP: lambda view: _body_load(view, ASSUMED_SIZE),
}
