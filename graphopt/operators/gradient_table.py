"""The gradients of operators: one table, as that of their meanings, which no proof reads.

Each is data in the language of rules (`graphopt/language/gradient.py`). Several for one operator are alternatives: for
an input, the first counts that matches and that the model's opset can express. An operator without an entry has the
gradient of its definition, or of the function body in its schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from graphopt.ir import schemas
from graphopt.ir.graph import Graph, Node
from graphopt.language.gradient import Gradient
from graphopt.operators.elementwise_gradients import ELEMENTWISE_FAMILIES, ELEMENTWISE_GRADIENTS, STEEP_OPERATORS
from graphopt.operators.product_gradients import PRODUCT_GRADIENTS, einsum_gradient
from graphopt.operators.resampling_gradients import RESAMPLING_GRADIENTS
from graphopt.operators.structural_gradients import (
    DROPOUT,
    MOVEMENT_GRADIENTS,
    NORMALIZATION_GRADIENTS,
    REDUCTION_GRADIENTS,
    SHAPE_GRADIENTS,
    concatenation_gradient,
    split_gradient,
)

GRADIENTS: Mapping[str, tuple[Gradient, ...]] = {
    **ELEMENTWISE_GRADIENTS,
    **MOVEMENT_GRADIENTS,
    **REDUCTION_GRADIENTS,
    **NORMALIZATION_GRADIENTS,
    **SHAPE_GRADIENTS,
    **RESAMPLING_GRADIENTS,
    **PRODUCT_GRADIENTS,
    "Dropout": DROPOUT,
}
"""Gradients of ONNX operators with a fixed number of operands."""

FAMILIES: Mapping[str, Callable[[Node], tuple[Gradient, ...]]] = {
    **{
        name: lambda node, name=name, of=of: of(name, len(node.inputs))  # type: ignore[misc]
        for name, of in ELEMENTWISE_FAMILIES.items()
    },
    "Concat": lambda node: concatenation_gradient(len(node.inputs)),
    "Split": lambda node: split_gradient(len(node.names)),
    "Einsum": lambda node: einsum_gradient(schemas.canonical_equation(str(node.attrs["equation"]))),
}
"""Gradients of ONNX operators with any number of operands or results, made for those of a node."""

RUNNING_STATISTICS: Mapping[str, Mapping[int, int]] = {"BatchNormalization": {3: 1, 4: 2}}
"""The outputs of operators in training mode that are the next values of their inputs, by the positions of these."""


def has_bounded_gradient(graph: Graph, node: Node) -> bool:
    """Return whether the gradients of a node's inputs are finite where that of its outputs is; at a divisor that is
    known to be nonzero they are."""
    if node.domain or node.op not in STEEP_OPERATORS:
        return not node.domain
    divisor = graph.constant(node.inputs[1]) if node.op == "Div" and node.inputs[1] else None
    return divisor is not None and bool(divisor.numpy().all())


def gradients_of(node: Node) -> tuple[Gradient, ...]:
    """Return the alternatives for the gradient of a node's operator; none where nothing is declared of it."""
    if node.domain:
        return ()
    family = FAMILIES.get(node.op)
    return GRADIENTS.get(node.op, ()) if family is None else family(node)
