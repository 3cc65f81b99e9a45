"""What each ONNX operator computes, over exact real numbers: the trusted base of every proof.

One function per operator, in the words of https://onnx.ai/onnx/operators/ (the page `onnx__<Operator>.html`). It says
what shape the outputs have, when the operator is defined (`node.require`), and what each element is. Tested operator
by operator against `onnx.reference`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graphopt.base.symbolic import Tensor, folded
from graphopt.ir import ops
from graphopt.language.scalar import holds
from graphopt.operators.attention import Attention, RotaryEmbedding
from graphopt.operators.broadcasting import pointwise, unknown
from graphopt.operators.elementwise import ELEMENTWISE
from graphopt.operators.movement import (
    Concat,
    ConstantOfShape,
    Dropout,
    Expand,
    EyeLike,
    Gather,
    Pad,
    Resize,
    Shape_,
    Size_,
    Slice,
    Split,
    Tile,
    Trilu,
)
from graphopt.operators.node import Denotation, Node, Unsupported
from graphopt.operators.normalizations import (
    BatchNormalization,
    GroupNormalization,
    InstanceNormalization,
    LayerNormalization,
    LpNormalization,
    RMSNormalization,
)
from graphopt.operators.opaque import RECURRENT, opaque
from graphopt.operators.placing import (
    GatherElements,
    GatherND,
    NonZero,
    OneHot,
    Range,
    ScatterElements,
    ScatterND,
    TopK,
)
from graphopt.operators.quantization import (
    ConvInteger,
    DequantizeLinear,
    DynamicQuantizeLinear,
    MatMulInteger,
    QLinearConv,
    QLinearMatMul,
    QuantizeLinear,
)
from graphopt.operators.reductions import (
    REDUCTIONS,
    ArgMax,
    CumSum,
    Einsum,
    Gemm,
    Hardmax,
    LogSoftmax,
    MatMul,
    Softmax,
    mean,
    reduction,
)
from graphopt.operators.views import (
    DepthToSpace,
    Flatten,
    Identity,
    Reshape,
    SpaceToDepth,
    Squeeze,
    Transpose,
    Unsqueeze,
)
from graphopt.operators.windows import (
    Conv,
    ConvTranspose,
    GlobalLpPool,
    average,
    global_pool,
    greatest,
    pool,
    power_mean,
)


@dataclass(frozen=True, slots=True)
class Operator:
    """What is known of an operator: proofs and inference read it here, and nowhere else."""

    denotation: Denotation
    is_exact: bool = False
    """Whether that is exact: it moves data, or computes each element by one function that is named."""
    keeps: bool = False
    """Whether its elements are elements of its first input."""


KEEPING: Mapping[str, Denotation] = {
    "Identity": Identity,
    "Transpose": Transpose,
    "Reshape": Reshape,
    "Flatten": Flatten,
    "Squeeze": Squeeze,
    "Unsqueeze": Unsqueeze,
    "Split": Split,
    "Slice": Slice,
    "Gather": Gather,
    "Expand": Expand,
    "Tile": Tile,
    "DepthToSpace": DepthToSpace,
    "SpaceToDepth": SpaceToDepth,
}
"""Operators whose elements are elements of their first input."""

PLACING: Mapping[str, Denotation] = {
    "Concat": Concat,
    "Pad": Pad,
    "Resize": Resize,
    "Trilu": Trilu,
    "EyeLike": EyeLike,
    "ConstantOfShape": ConstantOfShape,
    "Shape": Shape_,
    "Size": Size_,
    "Dropout": Dropout,
    "OneHot": OneHot,
    "GatherElements": GatherElements,
    "GatherND": GatherND,
}
"""Further operators that move data, or say where they are."""

QUANTIZING: Mapping[str, Denotation] = {"QuantizeLinear": QuantizeLinear, "DequantizeLinear": DequantizeLinear}
"""Operators that compute each element by a function of it, its scale and its zero point, which is named."""

COMPUTING: Mapping[str, Denotation] = {
    "MatMul": MatMul,
    "Gemm": Gemm,
    "Conv": Conv,
    "ConvTranspose": ConvTranspose,
    "MaxPool": pool(greatest),
    "AveragePool": pool(average),
    "LpPool": pool(power_mean),
    "GlobalMaxPool": global_pool(lambda n, x: folded("max", n, x)),
    "GlobalAveragePool": global_pool(mean),
    **{name: reduction(combine) for name, combine in REDUCTIONS.items()},
    "CumSum": CumSum,
    "ArgMax": ArgMax,
    "ArgMin": ArgMax,
    "Einsum": Einsum,
    "Softmax": Softmax,
    "LogSoftmax": LogSoftmax,
    "BatchNormalization": BatchNormalization,
    "LayerNormalization": LayerNormalization,
    "RMSNormalization": RMSNormalization,
    "InstanceNormalization": InstanceNormalization,
    "GroupNormalization": GroupNormalization,
    "LpNormalization": LpNormalization,
    "Attention": Attention,
    "RotaryEmbedding": RotaryEmbedding,
    "Range": Range,
    "TopK": TopK,
    "NonZero": NonZero,
    "ScatterElements": ScatterElements,
    "ScatterND": ScatterND,
    "Hardmax": Hardmax,
    "GlobalLpPool": GlobalLpPool,
    "DynamicQuantizeLinear": DynamicQuantizeLinear,
    "MatMulInteger": MatMulInteger,
    "QLinearMatMul": QLinearMatMul,
    "ConvInteger": ConvInteger,
    "QLinearConv": QLinearConv,
    **RECURRENT,
}

OPERATORS: dict[str, Operator] = {
    **{name: Operator(pointwise(function), is_exact=True) for name, function in ELEMENTWISE.items()},
    **{name: Operator(denotation, is_exact=True, keeps=True) for name, denotation in KEEPING.items()},
    **{name: Operator(denotation, is_exact=True) for name, denotation in (*PLACING.items(), *QUANTIZING.items())},
    **{name: Operator(denotation) for name, denotation in COMPUTING.items()},
}
"""All operators that have a meaning."""


def denote(node: Node) -> tuple[Tensor, ...]:
    """The outputs of an operator."""
    if node.domain in ops.CLASSES:
        return (unknown(node),)
    if node.domain or node.op not in OPERATORS:
        raise Unsupported(f"no denotation of {node.domain or ''}{'.' if node.domain else ''}{node.op}")
    operator = OPERATORS[node.op]
    found = operator.denotation(node)
    if (unread := node.unasked()) is not None:
        raise Unsupported(f"{node.op} with {unread}, which its denotation does not look at")
    outputs = found if isinstance(found, tuple) else (found,)
    if operator.keeps:
        outputs = tuple(output.typed(output.dtype, node.input(0).values) for output in outputs)
    if node.op in ("Cast", "CastLike") and holds(
        node.target() if node.op == "Cast" else node.input(1).dtype, node.input(0).values
    ):
        outputs = tuple(output.typed(output.dtype, node.input(0).values) for output in outputs)
    if node.is_exact and not _only_moves(node):
        outputs = tuple(opaque(node, position, output) for position, output in enumerate(outputs))
    return outputs


def _only_moves(node: Node) -> bool:
    """Its denotation is exact; that of an Einsum is where it only puts the axes of one operand in another order."""
    if node.op != "Einsum":
        return OPERATORS[node.op].is_exact
    letters, _, result = str(node.used["equation"]).replace(" ", "").partition("->")
    return sorted(letters) == sorted(result)
