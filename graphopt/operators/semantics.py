"""What each ONNX operator computes, over exact real numbers: the trusted base of every proof.

One function per operator, in the words of https://onnx.ai/onnx/operators/ (the page `onnx__<Operator>.html`). It says
what shape the outputs have, when the operator is defined (`node.require`), and what each element is. Tested operator
by operator against `onnx.reference`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from graphopt.base.tensors import Tensor, folded
from graphopt.ir import ops
from graphopt.language.scalar import holds
from graphopt.operators.attention import Attention, RotaryEmbedding
from graphopt.operators.bodies import Body, OfElements, alike, labelled
from graphopt.operators.elementwise import ELEMENTWISE, Beside, Pointwise, by_vector, unknown
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
from graphopt.operators.node import Node, Unsupported
from graphopt.operators.normalizations import (
    BatchNormalization,
    GroupNormalization,
    InstanceNormalization,
    LayerNormalization,
    LpNormalization,
    RMSNormalization,
)
from graphopt.operators.opaque import RECURRENT, opaque
from graphopt.operators.operator import Operator, Reach, Reference, Rounding
from graphopt.operators.placing import (
    GatherElements,
    GatherND,
    NonZero,
    OneHot,
    Range,
    ScatterElements,
    ScatterND,
    TopK,
    is_of_integers,
)
from graphopt.operators.quantization import (
    ConvInteger,
    DequantizeLinear,
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
    any_reduction,
    counts_exactly,
    mean,
)
from graphopt.operators.views import (
    DepthToSpace,
    Flatten,
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

OF_CLASSES: dict[str, Callable[[Node], Tensor]] = {
    ops.ANY_POINTWISE: unknown,
    ops.ANY_BINARY: unknown,
    ops.ANY_REDUCTION: any_reduction,
}
"""What is meant by an operator of which only the class is known."""


def denote(node: Node) -> tuple[Tensor, ...]:
    """Return the outputs of an operator."""
    if node.domain in OF_CLASSES:
        return (OF_CLASSES[node.domain](node),)
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
    """Its denotation is exact; that of an Einsum is where it only puts the axes of one operand in another order, that
    of others where they count."""
    operator = OPERATORS[node.op]
    match node.op:
        case "ScatterElements" | "ScatterND":
            return True  # they name what they do not look into by themselves
        case "CumSum":
            return counts_exactly(node)
        case "Range":
            return is_of_integers(node)
    if node.op != "Einsum":
        return operator.is_exact or isinstance(operator.denotation, Pointwise)
    letters, _, result = str(node.used["equation"]).replace(" ", "").partition("->")
    return sorted(letters) == sorted(result)


computing = partial(Operator, reach=Reach.MIXED)
multiplying = partial(computing, adds_products=True)
packing = partial(multiplying, packs=True)
moving = partial(Operator, is_exact=True, reference=Reference.EVERYWHERE)
keeping = partial(moving, keeps=True)
viewing = partial(keeping, is_view=True)
saying = Pointwise(OfElements(denote))
loss = partial(Body, denote, labelled, (("reduction", ("mean", "sum", "none")),))

OPERATORS: dict[str, Operator] = {
    **ELEMENTWISE,
    **{name: by_vector(saying) for name in ("Elu", "Selu", "Swish", "Softplus", "Mish")},
    "LeakyRelu": Operator(saying),
    **{name: Operator(saying, rounding=Rounding.JUMPS) for name in ("ThresholdedRelu", "Shrink")},
    "HardSigmoid": Operator(saying, reach=Reach.BOUNDED),
    "Softsign": by_vector(saying, reach=Reach.BOUNDED),
    "PRelu": Operator(Pointwise(OfElements(denote), Beside.LESSER)),
    "SwiGLU": Operator(Body(denote, alike), reach=Reach.MULTIPLIED),
    **{f"{name}Loss": computing(loss(), has_gaps=True) for name in ("NegativeLogLikelihood", "SoftmaxCrossEntropy")},
    **{f"{name}Window": Operator(Body(denote)) for name in ("Blackman", "Hamming", "Hann")},
    "Transpose": keeping(Transpose),
    "Reshape": viewing(Reshape),
    "Flatten": viewing(Flatten),
    "Squeeze": viewing(Squeeze),
    "Unsqueeze": viewing(Unsqueeze),
    "Split": keeping(Split),
    "Slice": keeping(Slice),
    "Gather": keeping(Gather),
    "Expand": keeping(Expand),
    "Tile": keeping(Tile),
    "DepthToSpace": keeping(DepthToSpace),
    "SpaceToDepth": keeping(SpaceToDepth),
    "Concat": moving(Concat),
    "Pad": moving(Pad),
    "Trilu": moving(Trilu),
    "ConstantOfShape": moving(ConstantOfShape),
    "Shape": moving(Shape_, reads_sizes=True),
    "Size": moving(Size_, reads_sizes=True),
    "OneHot": moving(OneHot, rounding=Rounding.JUMPS),
    "GatherElements": moving(GatherElements),
    "GatherND": moving(GatherND),
    "EyeLike": Operator(EyeLike, is_exact=True, reads_sizes=True, rounding=Rounding.KEPT),
    "Resize": Operator(Resize, is_exact=True),
    "Dropout": Operator(Dropout, is_exact=True, rounding=Rounding.KEPT),
    "MatMul": packing(MatMul, reference=Reference.ON_INTEGERS),
    "Gemm": packing(Gemm, added=2),
    "Conv": packing(Conv, added=2),
    "ConvTranspose": packing(ConvTranspose, added=2),
    "Einsum": packing(Einsum),
    "BatchNormalization": multiplying(BatchNormalization, has_gaps=True),
    "LayerNormalization": computing(LayerNormalization, added=2, has_gaps=True),
    "RMSNormalization": computing(RMSNormalization, has_gaps=True),
    "InstanceNormalization": computing(InstanceNormalization, has_gaps=True),
    "GroupNormalization": computing(GroupNormalization, has_gaps=True),
    "LpNormalization": computing(LpNormalization, rounding=Rounding.JUMPS),
    "MeanVarianceNormalization": computing(Body(denote), has_gaps=True, rounding=Rounding.JUMPS),
    "AveragePool": computing(pool(average)),
    "LpPool": computing(pool(power_mean)),
    "GlobalAveragePool": computing(global_pool(mean)),
    "GlobalLpPool": computing(GlobalLpPool),
    **{name: computing(denotation, packs=True) for name, denotation in RECURRENT.items()},
    "MaxPool": Operator(pool(greatest), rounding=Rounding.KEPT),
    "GlobalMaxPool": Operator(global_pool(lambda n, x: folded("max", n, x)), rounding=Rounding.KEPT),
    **REDUCTIONS,
    "CumSum": Operator(CumSum, reach=Reach.GROWN, reference=Reference.ON_INTEGERS),
    "Softmax": Operator(Softmax, reach=Reach.BOUNDED),
    "Hardmax": Operator(Hardmax, reach=Reach.BOUNDED, rounding=Rounding.JUMPS),
    "LogSoftmax": Operator(LogSoftmax),
    "ArgMax": Operator(ArgMax, reference=Reference.ON_INTEGERS, rounding=Rounding.PLACED),
    "ArgMin": Operator(ArgMax, rounding=Rounding.PLACED),
    "RotaryEmbedding": Operator(RotaryEmbedding),
    "Range": Operator(Range, rounding=Rounding.JUMPS),
    "TopK": Operator(TopK, rounding=Rounding.JUMPS),
    "NonZero": Operator(NonZero, reference=Reference.EVERYWHERE, rounding=Rounding.JUMPS),
    "ScatterElements": Operator(ScatterElements),
    "ScatterND": Operator(ScatterND),
    "DynamicQuantizeLinear": Operator(Body(denote), rounding=Rounding.JUMPS),
    # they name what is rounded, or not looked into, by themselves; integers are exact in any order
    "Attention": computing(Attention, is_exact=True, mask=3, packs=True),
    "QuantizeLinear": Operator(QuantizeLinear, is_exact=True, has_gaps=True, rounding=Rounding.JUMPS),
    "DequantizeLinear": Operator(DequantizeLinear, is_exact=True, adds_products=True),
    "MatMulInteger": Operator(MatMulInteger, is_exact=True),
    "QLinearMatMul": Operator(QLinearMatMul, is_exact=True, rounding=Rounding.JUMPS),
    "ConvInteger": Operator(ConvInteger, is_exact=True),
    "QLinearConv": Operator(QLinearConv, is_exact=True, rounding=Rounding.JUMPS),
}
"""All operators that have a meaning."""
