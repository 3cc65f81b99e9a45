"""What each ONNX operator computes, over exact real numbers: the trusted base of every proof.

One function per operator, in the words of https://onnx.ai/onnx/operators/ (the page `onnx__<Operator>.html`). It says
what shape the outputs have, when the operator is defined (`node.require`), and what each element is. Tested operator
by operator against `onnx.reference`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from graphopt.base.tensors import Tensor, folded
from graphopt.ir import ops
from graphopt.language.scalar import holds
from graphopt.operators.attention import Attention, RotaryEmbedding
from graphopt.operators.bodies import Body, OfElements, alike, labelled
from graphopt.operators.cost import (
    ACTIVATION,
    CONVOLUTION,
    COPY,
    MATRIX_ACTIVATION,
    NO_WORK,
    PRODUCT,
    SCATTERED_COPY,
    SUM_AND_NORMALIZATION,
    Cost,
    Fusion,
    Head,
    Layout,
    Work,
)
from graphopt.operators.elementwise import ELEMENTWISE, Beside, Pointwise, by_vector, unknown
from graphopt.operators.implied import (
    ALL_AXES,
    AXES_OF_SIZE_ONE,
    AXES_OF_STARTS,
    AXES_REVERSED,
    KERNEL_OF_WEIGHTS,
    NO_PADS,
    ONE_PER_SPATIAL_AXIS,
    STEPS_OF_STARTS,
    ZERO_PER_SPATIAL_AXIS,
    Implied,
)
from graphopt.operators.movement import (
    EVEN,
    ROUNDINGS,
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
from graphopt.operators.operator import (
    HEAVY,
    Extremes,
    Numbers,
    Operator,
    Reach,
    Reference,
    ResultType,
    Rounding,
    Summation,
)
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
from graphopt.operators.proposals import (
    choice,
    enlarged,
    expanded,
    per_axis,
    per_spatial_axis,
    split_axis,
    squeezed,
    unsqueezed,
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
    if operator.casts and holds(
        node.target() if operator.result_type is ResultType.TARGET else node.input(1).dtype, node.input(0).values
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
packing = partial(multiplying, packs=True, weight=HEAVY, extremes=Extremes.ALL)
moving = partial(Operator, is_exact=True, reference=Reference.EVERYWHERE)
keeping = partial(moving, keeps=True, extremes=Extremes.FIRST)
viewing = partial(keeping, is_view=True, weight=20, cost=NO_WORK)
sizing = partial(moving, reads_sizes=True, places=frozenset({0}), extremes=Extremes.LOST)
finding = partial(Operator, rounding=Rounding.PLACED, places=frozenset({0}), extremes=Extremes.LOST)
normalizing = partial(computing, has_gaps=True)
quantized = partial(Operator, is_exact=True, is_quantizing=True, may_compute_narrower=True)
requantizing = partial(quantized, rounding=Rounding.JUMPS, roles={1: "positive", 4: "positive", 6: "positive"})
saying = Pointwise(OfElements(denote))
loss = partial(Body, denote, labelled, (("reduction", ("mean", "sum", "none")),))
along_images: Mapping[str | int, Implied] = {
    "strides": ONE_PER_SPATIAL_AXIS,
    "dilations": ONE_PER_SPATIAL_AXIS,
    "pads": NO_PADS,
}
pooling = partial(computing, is_of_images=True, implied=along_images, cost=Cost(work=Work.POOL))
QUANTIZED_FACTORS = "a one p b one q step p"

OPERATORS: dict[str, Operator] = {
    **ELEMENTWISE,
    "Elu": by_vector(saying, saturates=True, cost=Cost(200, fusions=MATRIX_ACTIVATION)),
    "Selu": by_vector(saying, saturates=True, cost=Cost(200, fusions=MATRIX_ACTIVATION)),
    "Swish": by_vector(
        saying,
        saturates=True,
        weight=350,  # runtimes have no kernel for it, and fuse the three operators that it stands for
        cost=Cost(70, passes=4),
    ),
    "Softplus": by_vector(saying, saturates=True, cost=Cost(1200, fusions=MATRIX_ACTIVATION)),
    "Mish": by_vector(saying, saturates=True, cost=Cost(1200, passes=3)),
    "LeakyRelu": Operator(saying, weight=95, cost=Cost(fusions=ACTIVATION)),
    "ThresholdedRelu": Operator(saying, rounding=Rounding.JUMPS),
    "Shrink": Operator(
        saying,
        rounding=Rounding.JUMPS,
        rounds_too=True,
        numbers=Numbers.ADDED,
        scalars=frozenset({"bias", "lambd"}),
    ),
    "HardSigmoid": Operator(saying, reach=Reach.BOUNDED, cost=Cost(fusions=ACTIVATION, layout=Layout.KEEPS)),
    "Softsign": by_vector(saying, reach=Reach.BOUNDED, cost=Cost(fusions=MATRIX_ACTIVATION)),
    "PRelu": Operator(Pointwise(OfElements(denote), Beside.LESSER), cost=Cost(400)),
    "SwiGLU": Operator(Body(denote, alike), reach=Reach.MULTIPLIED),
    **{
        f"{name}Loss": normalizing(loss(), extremes=Extremes.NOT_EVEN_FLOATS)
        for name in ("NegativeLogLikelihood", "SoftmaxCrossEntropy")
    },
    **{f"{name}Window": Operator(Body(denote)) for name in ("Blackman", "Hamming", "Hann")},
    # the same elements elsewhere
    "Transpose": keeping(
        Transpose, implied={"perm": AXES_REVERSED}, weight=95, cost=Cost(work=Work.TRANSPOSITION, stride=2)
    ),
    "Reshape": viewing(Reshape, roles={1: "reshape"}, shape_input=1, infers_sizes=1),
    "Flatten": viewing(Flatten, proposals={"axis": split_axis}),
    "Squeeze": viewing(Squeeze, roles={1: "axes"}, implied={1: AXES_OF_SIZE_ONE}, proposals={"axes": squeezed}),
    "Unsqueeze": viewing(Unsqueeze, roles={1: "axes"}, proposals={"axes": unsqueezed}),
    "Split": keeping(Split, roles={1: "split"}, cost=COPY),
    "Slice": keeping(
        Slice,
        roles={1: "zeros", 2: "sizes", 3: "axes", 4: "ones"},
        implied={3: AXES_OF_STARTS, 4: STEPS_OF_STARTS},
        takes_parts=True,
        cost=COPY,
    ),
    "Gather": keeping(Gather, roles={1: "index"}, takes_parts=True, cost=COPY),
    "Expand": keeping(
        Expand,
        roles={1: "ones"},
        numbers=Numbers.CHOSEN,
        shape_input=1,
        infers_sizes=0,
        proposals={"shape": expanded},
        cost=COPY,
    ),
    "Tile": keeping(Tile, roles={1: "ones"}, shape_input=1, cost=COPY),
    "DepthToSpace": keeping(DepthToSpace, extremes=Extremes.NONE, cost=SCATTERED_COPY),
    "SpaceToDepth": keeping(SpaceToDepth, extremes=Extremes.NONE, cost=SCATTERED_COPY),
    "Concat": moving(
        Concat,
        numbers=Numbers.CHOSEN,
        passes=True,
        joins=True,
        extremes=Extremes.ALL,
        cost=Cost(work=Work.MOVEMENT, layout=Layout.KEEPS_IF_WHOLE),
    ),
    "Pad": moving(
        Pad,
        numbers=Numbers.CHOSEN,
        roles={1: "ones", 3: "axes"},
        implied={3: ALL_AXES},
        extremes=Extremes.FIRST,
        proposals={
            "pads": per_axis(0, 0, 1, 2, -1, times=2),
            "mode": choice("constant", "reflect", "edge"),
        },
        cost=COPY,
    ),
    "Trilu": moving(Trilu, extremes=Extremes.FIRST),
    "ConstantOfShape": moving(ConstantOfShape, result_type=ResultType.VALUE, roles={0: "sizes"}, shape_input=0),
    "Shape": sizing(Shape_),
    "Size": sizing(Size_),
    "OneHot": moving(OneHot, rounding=Rounding.JUMPS, roles={0: "index", 1: "sizes"}),
    "GatherElements": moving(GatherElements, roles={1: "index"}, extremes=Extremes.FIRST, cost=SCATTERED_COPY),
    "GatherND": moving(
        GatherND, roles={1: "index"}, indexes_all_axes=True, extremes=Extremes.FIRST, cost=SCATTERED_COPY
    ),
    "EyeLike": Operator(EyeLike, is_exact=True, reads_sizes=True, rounding=Rounding.KEPT, result_type=ResultType.DTYPE),
    "Resize": Operator(
        Resize,
        is_exact=True,
        decides=2,
        roles={2: "sizes", 3: "sizes"},
        proposals={
            "sizes": enlarged,
            "mode": choice("nearest", "linear", "cubic"),
            "coordinate_transformation_mode": choice(*EVEN),
            "nearest_mode": choice(*ROUNDINGS),
        },
        cost=Cost(60),
    ),
    "Dropout": Operator(Dropout, is_exact=True, rounding=Rounding.KEPT, cost=NO_WORK),
    # products
    "MatMul": packing(
        MatMul,
        reference=Reference.ON_INTEGERS,
        multiplies=1,
        weights=1,
        summation=Summation.MATRIX,
        cost=Cost(work=Work.PRODUCT, head=Head.PRODUCT),
    ),
    "Gemm": packing(
        Gemm,
        added=2,
        numbers=Numbers.BOTH,
        scalars=frozenset({"alpha", "beta"}),
        summation=Summation.MATRIX,
        cost=Cost(work=Work.PRODUCT, head=Head.GEMM),
    ),
    "Conv": packing(
        Conv,
        added=2,
        is_of_images=True,
        implied={**along_images, "kernel_shape": KERNEL_OF_WEIGHTS},
        weights=1,
        summation=Summation.CONVOLUTION,
        extremes=Extremes.NONE,
        fails_on_empty=True,
        cost=Cost(work=Work.CONVOLUTION, head=Head.CONVOLUTION, layout=Layout.ENTERS),
    ),
    "ConvTranspose": packing(
        ConvTranspose,
        added=2,
        is_of_images=True,
        implied={**along_images, "kernel_shape": KERNEL_OF_WEIGHTS, "output_padding": ZERO_PER_SPATIAL_AXIS},
        summation=Summation.TRANSPOSED_CONVOLUTION,
        extremes=Extremes.NONE,
        fails_on_empty=True,
        proposals={
            "output_padding": per_spatial_axis(0, 0),
            "auto_pad": choice("NOTSET", "VALID"),  # what SAME means differs between runtimes
        },
        cost=Cost(work=Work.TRANSPOSED_CONVOLUTION),
    ),
    "Einsum": packing(
        Einsum,
        summation=Summation.UNKNOWN,
        fails_on_empty=True,
        weight=2 * HEAVY,
        cost=Cost(work=Work.EINSUM),
    ),
    # normalizations
    "BatchNormalization": multiplying(
        BatchNormalization,
        has_gaps=True,
        pole=4,
        roles={4: "positive"},
        weight=150,
        cost=Cost(fusions={Head.CONVOLUTION: Fusion.NORMALIZED_CHANNELS}, layout=Layout.KEEPS),
    ),
    "LayerNormalization": normalizing(
        LayerNormalization,
        added=2,
        summation=Summation.UNKNOWN,
        weight=150,
        cost=Cost(60, work=Work.LAYER_NORMALIZATION, flops_after_sum=SUM_AND_NORMALIZATION),
    ),
    "RMSNormalization": normalizing(RMSNormalization, weight=150, cost=Cost(60)),
    "InstanceNormalization": normalizing(InstanceNormalization, weight=150, cost=Cost(60)),
    "GroupNormalization": normalizing(GroupNormalization, cost=Cost(60, passes=12)),
    "LpNormalization": computing(LpNormalization, rounding=Rounding.JUMPS, rounds_too=True),
    "MeanVarianceNormalization": normalizing(Body(denote), rounding=Rounding.JUMPS, rounds_too=True),
    # windows
    "AveragePool": pooling(pool(average), cost=Cost(work=Work.POOL, layout=Layout.KEEPS)),
    "LpPool": pooling(pool(power_mean)),
    "GlobalAveragePool": computing(
        global_pool(mean), is_of_images=True, summation=Summation.UNKNOWN, cost=Cost(layout=Layout.KEEPS)
    ),
    "GlobalLpPool": computing(GlobalLpPool),
    "MaxPool": pooling(
        pool(greatest),
        reach=Reach.PASSED,
        rounding=Rounding.KEPT,
        places=frozenset({1}),
        cost=Cost(work=Work.POOL, layout=Layout.KEEPS),
    ),
    "GlobalMaxPool": Operator(
        global_pool(lambda n, x: folded("max", n, x)),
        rounding=Rounding.KEPT,
        is_of_images=True,
        cost=Cost(layout=Layout.KEEPS),
    ),
    # along axes
    **REDUCTIONS,
    **{
        name: computing(
            denotation,
            packs=True,
            roles={4: "ones"},  # lengths of sequences
            summation=Summation.RECURRENT,
            weight=HEAVY,
            cost=Cost(work=Work.RECURRENT),
        )
        for name, denotation in RECURRENT.items()
    },
    "CumSum": Operator(
        CumSum,
        reach=Reach.GROWN,
        reference=Reference.ON_INTEGERS,
        roles={1: "axes"},
        summation=Summation.UNKNOWN,
        extremes=Extremes.FIRST,
        cost=Cost(700),
    ),
    "Softmax": Operator(
        Softmax,
        reach=Reach.BOUNDED,
        saturates=True,
        summation=Summation.UNKNOWN,
        cost=Cost(40, passes=2),
    ),
    "Hardmax": Operator(Hardmax, reach=Reach.BOUNDED, rounding=Rounding.JUMPS),
    "LogSoftmax": Operator(LogSoftmax, saturates=True, cost=Cost(40)),
    "ArgMax": finding(ArgMax, reference=Reference.ON_INTEGERS),
    "ArgMin": finding(ArgMax),
    "RotaryEmbedding": Operator(RotaryEmbedding, roles={3: "index"}, tables=(1,)),
    "Range": Operator(Range, rounding=Rounding.JUMPS, rounds_too=True, roles={0: "zeros", 1: "sizes", 2: "ones"}),
    "TopK": Operator(TopK, rounding=Rounding.JUMPS, roles={1: "ones"}, places=frozenset({1}), cost=Cost(200)),
    "NonZero": Operator(NonZero, reference=Reference.EVERYWHERE, rounding=Rounding.JUMPS, extremes=Extremes.LOST),
    "ScatterElements": Operator(ScatterElements, roles={1: "index"}, races=True, cost=SCATTERED_COPY),
    "ScatterND": Operator(ScatterND, roles={1: "index"}, indexes_all_axes=True, races=True),
    "DynamicQuantizeLinear": Operator(
        Body(denote), rounding=Rounding.JUMPS, rounds_too=True, may_compute_narrower=True
    ),
    # they name what is rounded, or not looked into, by themselves; integers are exact in any order
    "Attention": computing(Attention, is_exact=True, mask=3, packs=True, weight=HEAVY, cost=Cost(work=Work.ATTENTION)),
    "QuantizeLinear": Operator(
        QuantizeLinear,
        is_exact=True,
        has_gaps=True,
        rounding=Rounding.JUMPS,
        is_quantizing=True,
        result_type=ResultType.QUANTIZED,
        roles={1: "positive"},
        takes_any_scale=True,
    ),
    "DequantizeLinear": quantized(
        DequantizeLinear,
        adds_products=True,
        is_folded=False,  # integer weights would become floats, for which runtimes do not use integer kernels
        result_type=ResultType.DEQUANTIZED,
        roles={1: "positive"},
        takes_any_scale=True,
        extremes=Extremes.FIRST,
    ),
    "MatMulInteger": quantized(
        MatMulInteger, factors="a b", weights=1, extremes=Extremes.ALL, fails_on_empty=True, cost=PRODUCT
    ),
    "QLinearMatMul": requantizing(QLinearMatMul, factors=QUANTIZED_FACTORS, extremes=Extremes.ALL, fails_on_empty=True),
    "ConvInteger": quantized(ConvInteger, factors="a b", spatial=2, weights=1, extremes=Extremes.ALL, cost=CONVOLUTION),
    "QLinearConv": requantizing(
        QLinearConv,
        factors=QUANTIZED_FACTORS,
        spatial=2,
        weights=3,
        extremes=Extremes.ALL,
        cost=CONVOLUTION,
    ),
}
"""All operators that have a meaning."""
