"""Operands that kernels pack when a model is loaded, as they are constant: packed weights are rounded otherwise.

ONNX Runtime's products of matrices and recurrent layers reorder weights that they know ahead into blocks, and run other
code for computed operands. So a node that becomes a constant, or a node dropped between a constant and such a kernel,
changes bits, however exact it is itself. This was seen with all optimizations off in MatMul, Gemm, FusedMatMul,
ConvTranspose, LSTM, GRU and com.microsoft's Attention; never where integers are added up, nor in normalizations,
poolings, losses and PRelu. Conv, Einsum and RNN kept the bits on x86, but multiply matrices, too, and kernels for other
processors pack more. No kernel packs a bias. With its optimizations on, ONNX Runtime folds these nodes by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from graphopt.ir.edit import DraftGraph
from graphopt.ir.graph import CAPTURE, INTERNAL_DOMAIN, Graph, Node, Patch, Value
from graphopt.ir.types import TensorType
from graphopt.operators.operator_classes import lookup_operator

OperandState: TypeAlias = bool | None
"""True if an operand is constant; None if it comes from outside of a body that is looked at alone."""


@dataclass(frozen=True)
class _PackingKernel:
    """A kernel that may pack operands."""

    op: str
    domain: str
    states: Mapping[int, OperandState]
    """States of the operands that may be weights, by their position."""

    def packs_same(self, other: _PackingKernel) -> bool:
        both = self.states.keys() & other.states.keys()
        return self.is_same_kind(other) and all(self.states[place] == other.states[place] for place in both)

    def is_same_kind(self, other: _PackingKernel) -> bool:
        return (self.op, self.domain) == (other.op, other.domain)


def repacking_refusal(graph: Graph, patch: Patch) -> str:
    """Return why a patch changes what kernels pack; empty where it does not."""
    draft = DraftGraph(graph, patch.after)
    turned = [
        v for v, old in patch.before.items() if v in patch.after and old.is_constant != patch.after[v].is_constant
    ]
    readers = {reader for vertex in turned for reader in graph.readers(vertex)}
    gone = [kernel for node in patch.before.values() for kernel in _packing_kernels(node, graph)]
    for vertex in dict.fromkeys((*patch.after, *sorted(readers - patch.before.keys()))):
        new = draft[vertex]
        old = graph[vertex] if vertex in graph else None  # noqa: SIM401 - a graph has no `get`
        if old is not None and (old.op, old.domain) == (new.op, new.domain):
            pairs = zip(_packing_kernels(new, draft), _packing_kernels(old, graph), strict=False)
            changed = next((now for now, was in pairs if now.is_same_kind(was) and not now.packs_same(was)), None)
        else:
            changed = _first_unmatched(_packing_kernels(new, draft), gone)
        if changed is not None:
            return f"ONNX Runtime's {changed.op} rounds differently when its weights are constants"
    return ""


def _first_unmatched(kernels: Iterable[_PackingKernel], gone: Iterable[_PackingKernel]) -> _PackingKernel | None:
    """Return the first kernel whose packing differs from that of all of its kind among those that are gone."""
    for kernel in kernels:
        alike = [old for old in gone if kernel.is_same_kind(old)]
        if alike and not any(map(kernel.packs_same, alike)):
            return kernel
    return None


def _packing_kernels(
    node: Node, facts: Graph, around: Callable[[int], OperandState] = lambda place: None
) -> Iterator[_PackingKernel]:
    """Yield the kernels that may pack operands: that of a node, or those in its bodies."""
    bodies, operator = list(node.bodies), lookup_operator(node.op, node.domain)
    if not bodies and not node.is_internal and operator.prepacks_weights:
        given = enumerate(node.inputs)
        operands = ((place, value) for place, value in given if value is not None and place != operator.bias_input)
        weights = {
            place: _operand_state(value, facts, around) for place, value in operands if _may_be_weight(value, facts)
        }
        yield _PackingKernel(node.op, node.domain, weights)

    def outside(place: int) -> OperandState:
        return _operand_state(node.captures[place], facts, around)

    for body in bodies:
        for _, inner in body.nodes():
            yield from _packing_kernels(inner, body, outside)


def _may_be_weight(value: Value, facts: Graph) -> bool:
    """Return whether weights may have the type of an operand, which sizes and indices have not."""
    type_ = facts.value_type(value)
    if not isinstance(type_, TensorType):
        return type_ is None
    return type_.dtype.is_float or (type_.dtype.is_integer and type_.dtype.bits <= 8)


def _operand_state(value: Value, facts: Graph, around: Callable[[int], OperandState]) -> OperandState:
    node = facts[value.vertex]
    return around(node.capture_index) if node.op == CAPTURE and node.domain == INTERNAL_DOMAIN else node.is_constant
