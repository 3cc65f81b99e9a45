"""Operands that kernels pack when a model is loaded, for they are constant then: what is packed is rounded otherwise.

ONNX Runtime's products of matrices and recurrent layers take weights that they know ahead in blocks, and have other
code for what is computed. So a node that becomes a constant, or one that goes between a constant and such a kernel,
changes bits, however exact it is itself. Seen with all optimizations off: in MatMul, Gemm, FusedMatMul, ConvTranspose,
LSTM, GRU and com.microsoft's Attention; never where integers are added up, nor in normalizations, poolings, losses and
PRelu. Conv, Einsum and RNN kept the bits on x86, but multiply matrices, too, and kernels for other processors pack
more. A bias that is added is packed by none. With its optimizations on, ONNX Runtime folds these nodes by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from graphopt.base.types import TensorType
from graphopt.ir.edit import Draft
from graphopt.ir.graph import CAPTURE, INTERNAL, Graph, Node, Patch, Value
from graphopt.operators.classes import entry

State: TypeAlias = bool | None
"""Whether an operand is constant; None of one that comes from around a body which is looked at alone."""


@dataclass(frozen=True)
class _Kernel:
    """One that may pack operands."""

    op: str
    domain: str
    states: Mapping[int, State]
    """Of the operands that may be weights, by their place."""

    def packs_like(self, other: _Kernel) -> bool:
        both = self.states.keys() & other.states.keys()
        return self.is_like(other) and all(self.states[place] == other.states[place] for place in both)

    def is_like(self, other: _Kernel) -> bool:
        return (self.op, self.domain) == (other.op, other.domain)


def repacking(graph: Graph, patch: Patch) -> str:
    """Return why a patch changes what kernels pack; empty where it does not."""
    draft = Draft(graph, patch.after)
    turned = [
        v for v, old in patch.before.items() if v in patch.after and old.is_constant != patch.after[v].is_constant
    ]
    readers = {reader for vertex in turned for reader in graph.readers(vertex)}
    gone = [kernel for node in patch.before.values() for kernel in _kernels(node, graph)]
    for vertex in dict.fromkeys((*patch.after, *sorted(readers - patch.before.keys()))):
        new = draft[vertex]
        old = graph[vertex] if vertex in graph else None  # noqa: SIM401 - a graph has no `get`
        if old is not None and (old.op, old.domain) == (new.op, new.domain):
            changed = _changed(_kernels(new, draft), _kernels(old, graph))
        else:
            changed = _unmatched(_kernels(new, draft), gone)
        if changed is not None:
            return f"ONNX Runtime's {changed.op} rounds differently when its weights are constants"
    return ""


def _changed(kernels: Iterable[_Kernel], before: Iterable[_Kernel]) -> _Kernel | None:
    """Return the first kernel that packs what it did not."""
    pairs = zip(kernels, before, strict=False)
    return next((new for new, old in pairs if new.is_like(old) and not new.packs_like(old)), None)


def _unmatched(kernels: Iterable[_Kernel], gone: Iterable[_Kernel]) -> _Kernel | None:
    """Return the first kernel that packs what none of its kind did among those that are gone."""
    for kernel in kernels:
        alike = [old for old in gone if kernel.is_like(old)]
        if alike and not any(map(kernel.packs_like, alike)):
            return kernel
    return None


def _kernels(node: Node, facts: Graph, around: Callable[[int], State] = lambda place: None) -> Iterator[_Kernel]:
    """Yield the kernels that may pack operands: that of a node, or those in its bodies."""
    bodies, operator = list(node.bodies), entry(node.op, node.domain)
    if not bodies and not node.is_internal and operator.packs:
        given = enumerate(node.inputs)
        operands = ((place, value) for place, value in given if value is not None and place != operator.added)
        weights = {place: _state(value, facts, around) for place, value in operands if _may_be_weight(value, facts)}
        yield _Kernel(node.op, node.domain, weights)

    def outside(place: int) -> State:
        return _state(node.captures[place], facts, around)

    for body in bodies:
        for _, inner in body.nodes():
            yield from _kernels(inner, body, outside)


def _may_be_weight(value: Value, facts: Graph) -> bool:
    """Return whether an operand is of a type in which there are weights, and of none for sizes and indices alone."""
    type_ = facts.type(value)
    if not isinstance(type_, TensorType):
        return type_ is None
    return type_.dtype.is_float or (type_.dtype.is_integer and type_.dtype.bits <= 8)


def _state(value: Value, facts: Graph, around: Callable[[int], State]) -> State:
    node = facts[value.vertex]
    return around(node.capture) if node.op == CAPTURE and node.domain == INTERNAL else node.is_constant
