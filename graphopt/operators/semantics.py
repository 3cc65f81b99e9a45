"""The function that each ONNX operator computes, over exact real numbers: the trusted base of every proof.

One function per operator, in the words of https://onnx.ai/onnx/operators/ (the page `onnx__<Operator>.html`). It says
what shape the outputs have, when the operator is defined (`node.require`), and what each element is. Tested operator
by operator against `onnx.reference`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from graphopt.expr.symbolic_tensors import SymbolicTensor, fold_over
from graphopt.ir import schemas
from graphopt.language.scalar_functions import can_represent
from graphopt.operators.attention_ops import Attention, RotaryEmbedding
from graphopt.operators.attribute_proposals import (
    propose_choice,
    propose_expanded_shape,
    propose_flatten_axis,
    propose_per_axis,
    propose_per_spatial_axis,
    propose_resize_shape,
    propose_squeeze_axes,
    propose_unsqueeze_axes,
)
from graphopt.operators.elementwise_ops import (
    ELEMENTWISE_OPERATORS,
    ElementwiseDenotation,
    ExtraOperands,
    unknown_elementwise,
    vectorized_op,
)
from graphopt.operators.implied_defaults import (
    ALL_AXES,
    AXES_OF_SIZE_ONE,
    AXES_OF_STARTS,
    AXES_REVERSED,
    KERNEL_OF_WEIGHTS,
    NO_PADS,
    ONE_PER_SPATIAL_AXIS,
    STEPS_OF_STARTS,
    ZERO_PER_SPATIAL_AXIS,
    ImpliedDefault,
)
from graphopt.operators.indexing_ops import (
    GatherElements,
    GatherND,
    NonZero,
    OneHot,
    Range,
    ScatterElements,
    ScatterND,
    TopK,
    is_integer_range,
)
from graphopt.operators.movement_ops import (
    ROUNDING_MODES,
    SIZE_PRESERVING_MODES,
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
from graphopt.operators.normalization_ops import (
    LRN,
    BatchNormalization,
    GroupNormalization,
    InstanceNormalization,
    LayerNormalization,
    LpNormalization,
    RMSNormalization,
)
from graphopt.operators.op_context import OpContext, UnsupportedOperatorError
from graphopt.operators.opaque_ops import RECURRENT_DENOTATIONS, opaque_output
from graphopt.operators.operator import (
    HEAVY_WEIGHT,
    ConstantEffect,
    ExtremeOperands,
    MagnitudeEffect,
    Operator,
    ReferenceFidelity,
    ResultDtypeSource,
    RoundingEffect,
    SummationLength,
)
from graphopt.operators.operator_cost import (
    ACTIVATION_FUSIONS,
    CONVOLUTION_COST,
    COPY_COST,
    LAUNCH_COST,
    MATRIX_ACTIVATION_FUSIONS,
    PRODUCT_COST,
    SCATTERED_COPY_COST,
    SUM_AND_NORMALIZATION_FLOPS,
    EpilogueFusion,
    FusionTarget,
    LayoutEffect,
    OperatorCost,
    WorkKind,
)
from graphopt.operators.quantization_ops import (
    ConvInteger,
    DequantizeLinear,
    MatMulInteger,
    QLinearConv,
    QLinearMatMul,
    QuantizeLinear,
)
from graphopt.operators.reduction_ops import (
    DFT,
    REDUCTION_OPERATORS,
    ArgMax,
    CumSum,
    Einsum,
    Gemm,
    Hardmax,
    LogSoftmax,
    MatMul,
    Softmax,
    is_exact_cumsum,
    mean_over,
    unknown_reduction,
)
from graphopt.operators.schema_bodies import ElementwiseBody, SchemaBody, check_equal_shapes, check_label_shapes
from graphopt.operators.view_ops import DepthToSpace, Flatten, Reshape, SpaceToDepth, Squeeze, Transpose, Unsqueeze
from graphopt.operators.window_ops import (
    Conv,
    ConvTranspose,
    GlobalLpPool,
    global_pool_denotation,
    pool_denotation,
    window_average,
    window_maximum,
    window_power_mean,
)

CLASS_DENOTATIONS: dict[str, Callable[[OpContext], SymbolicTensor]] = {
    schemas.ANY_POINTWISE: unknown_elementwise,
    schemas.ANY_BINARY: unknown_elementwise,
    schemas.ANY_REDUCTION: unknown_reduction,
}
"""Denotations of holes for operators, of which only the class is known."""


def denote(node: OpContext) -> tuple[SymbolicTensor, ...]:
    """Return the outputs of an operator."""
    if node.domain in CLASS_DENOTATIONS:
        return (CLASS_DENOTATIONS[node.domain](node),)
    if node.domain or node.op not in OPERATORS:
        raise UnsupportedOperatorError(f"no denotation of {node.domain or ''}{'.' if node.domain else ''}{node.op}")
    operator = OPERATORS[node.op]
    found = operator.denotation(node)
    if (unread := node.find_unread_parameter()) is not None:
        raise UnsupportedOperatorError(f"{node.op} with {unread}, which its denotation does not look at")
    outputs = found if isinstance(found, tuple) else (found,)
    if operator.selects_elements:
        outputs = tuple(output.with_dtype(output.dtype, node.input(0).value_dtype) for output in outputs)
    if operator.is_casting and can_represent(
        node.cast_target() if operator.result_dtype_source is ResultDtypeSource.TARGET else node.input(1).dtype,
        node.input(0).value_dtype,
    ):
        outputs = tuple(output.with_dtype(output.dtype, node.input(0).value_dtype) for output in outputs)
    if node.is_exact and not _is_exactly_denoted(node):
        outputs = tuple(opaque_output(node, position, output) for position, output in enumerate(outputs))
    return outputs


def _is_exactly_denoted(node: OpContext) -> bool:
    """Its denotation is exact; that of an Einsum is where it only puts the axes of one operand in another order, that
    of others where they count."""
    operator = OPERATORS[node.op]
    match node.op:
        case "ScatterElements" | "ScatterND":
            return True  # they name what they do not look into by themselves
        case "CumSum":
            return is_exact_cumsum(node)
        case "Range":
            return is_integer_range(node)
    if node.op != "Einsum":
        return operator.is_exact or isinstance(operator.denotation, ElementwiseDenotation)
    letters, _, result = str(node.read_values["equation"]).replace(" ", "").partition("->")
    return sorted(letters) == sorted(result)


mixing_op = partial(Operator, magnitude_effect=MagnitudeEffect.MIXED)
linear_op = partial(mixing_op, is_sum_of_products=True)
prepacked_op = partial(linear_op, prepacks_weights=True, weight=HEAVY_WEIGHT, extreme_operands=ExtremeOperands.ALL)
movement_op = partial(Operator, is_exact=True, reference_fidelity=ReferenceFidelity.EVERYWHERE)
selection_op = partial(movement_op, selects_elements=True, extreme_operands=ExtremeOperands.FIRST)
view_op = partial(selection_op, is_view=True, weight=20, cost=LAUNCH_COST)
size_op = partial(
    movement_op, reads_shape_only=True, index_outputs=frozenset({0}), extreme_operands=ExtremeOperands.ABSORBED
)
search_op = partial(
    Operator,
    rounding_effect=RoundingEffect.SELECTS_INDEX,
    index_outputs=frozenset({0}),
    extreme_operands=ExtremeOperands.ABSORBED,
)
normalization_op = partial(mixing_op, may_produce_nan=True)
quantized_op = partial(Operator, is_exact=True, is_quantizing=True, may_compute_narrower=True)
requantizing_op = partial(
    quantized_op,
    rounding_effect=RoundingEffect.DISCONTINUOUS,
    operand_roles={1: "positive", 4: "positive", 6: "positive"},
)
elementwise_schema_body = ElementwiseDenotation(ElementwiseBody(denote))
loss_body = partial(SchemaBody, denote, check_label_shapes, (("reduction", ("mean", "sum", "none")),))
SPATIAL_DEFAULTS: Mapping[str | int, ImpliedDefault] = {
    "strides": ONE_PER_SPATIAL_AXIS,
    "dilations": ONE_PER_SPATIAL_AXIS,
    "pads": NO_PADS,
}
pooling_op = partial(
    mixing_op, requires_spatial_axes=True, implied_defaults=SPATIAL_DEFAULTS, cost=OperatorCost(work=WorkKind.POOL)
)
QUANTIZED_FACTORS = "a one p b one q step p"

OPERATORS: dict[str, Operator] = {
    **ELEMENTWISE_OPERATORS,
    "Elu": vectorized_op(
        elementwise_schema_body, is_saturating=True, cost=OperatorCost(200, fusions=MATRIX_ACTIVATION_FUSIONS)
    ),
    "Selu": vectorized_op(
        elementwise_schema_body, is_saturating=True, cost=OperatorCost(200, fusions=MATRIX_ACTIVATION_FUSIONS)
    ),
    "Swish": vectorized_op(
        elementwise_schema_body,
        is_saturating=True,
        weight=350,  # runtimes have no kernel for it, and fuse the three operators that it stands for
        cost=OperatorCost(70, passes=4),
    ),
    "Softplus": vectorized_op(
        elementwise_schema_body, is_saturating=True, cost=OperatorCost(1200, fusions=MATRIX_ACTIVATION_FUSIONS)
    ),
    "Mish": vectorized_op(elementwise_schema_body, is_saturating=True, cost=OperatorCost(1200, passes=3)),
    "LeakyRelu": Operator(elementwise_schema_body, weight=95, cost=OperatorCost(fusions=ACTIVATION_FUSIONS)),
    "ThresholdedRelu": Operator(elementwise_schema_body, rounding_effect=RoundingEffect.DISCONTINUOUS),
    "Shrink": Operator(
        elementwise_schema_body,
        rounding_effect=RoundingEffect.DISCONTINUOUS,
        rounds_between_jumps=True,
        constant_effect=ConstantEffect.ADDED,
        scalar_attributes=frozenset({"bias", "lambd"}),
    ),
    "HardSigmoid": Operator(
        elementwise_schema_body,
        magnitude_effect=MagnitudeEffect.BOUNDED,
        cost=OperatorCost(fusions=ACTIVATION_FUSIONS, layout_effect=LayoutEffect.KEEPS),
    ),
    "Softsign": vectorized_op(
        elementwise_schema_body,
        magnitude_effect=MagnitudeEffect.BOUNDED,
        cost=OperatorCost(fusions=MATRIX_ACTIVATION_FUSIONS),
    ),
    "PRelu": Operator(
        ElementwiseDenotation(ElementwiseBody(denote), ExtraOperands.UNIDIRECTIONAL), cost=OperatorCost(400)
    ),
    "SwiGLU": Operator(SchemaBody(denote, check_equal_shapes), magnitude_effect=MagnitudeEffect.MULTIPLIED),
    **{
        f"{name}Loss": normalization_op(loss_body(), extreme_operands=ExtremeOperands.NOT_EVEN_FLOATS)
        for name in ("NegativeLogLikelihood", "SoftmaxCrossEntropy")
    },
    **{f"{name}Window": Operator(SchemaBody(denote)) for name in ("Blackman", "Hamming", "Hann")},
    # the same elements elsewhere
    "Transpose": selection_op(
        Transpose,
        implied_defaults={"perm": AXES_REVERSED},
        weight=95,
        cost=OperatorCost(work=WorkKind.TRANSPOSITION, copy_slowdown=2),
    ),
    "Reshape": view_op(Reshape, operand_roles={1: "reshape"}, shape_input=1, max_inferred_sizes=1),
    "Flatten": view_op(Flatten, proposals={"axis": propose_flatten_axis}),
    "Squeeze": view_op(
        Squeeze,
        operand_roles={1: "axes"},
        implied_defaults={1: AXES_OF_SIZE_ONE},
        proposals={"axes": propose_squeeze_axes},
    ),
    "Unsqueeze": view_op(Unsqueeze, operand_roles={1: "axes"}, proposals={"axes": propose_unsqueeze_axes}),
    "Split": selection_op(Split, operand_roles={1: "split"}, cost=COPY_COST),
    "Slice": selection_op(
        Slice,
        operand_roles={1: "zeros", 2: "sizes", 3: "axes", 4: "ones"},
        implied_defaults={3: AXES_OF_STARTS, 4: STEPS_OF_STARTS},
        is_slicing=True,
        cost=COPY_COST,
    ),
    "Gather": selection_op(Gather, operand_roles={1: "index"}, is_slicing=True, cost=COPY_COST),
    "Expand": selection_op(
        Expand,
        operand_roles={1: "ones"},
        constant_effect=ConstantEffect.SELECTED,
        shape_input=1,
        max_inferred_sizes=0,
        proposals={"shape": propose_expanded_shape},
        cost=COPY_COST,
    ),
    "Tile": selection_op(Tile, operand_roles={1: "ones"}, shape_input=1, cost=COPY_COST),
    "DepthToSpace": selection_op(DepthToSpace, extreme_operands=ExtremeOperands.NONE, cost=SCATTERED_COPY_COST),
    "SpaceToDepth": selection_op(SpaceToDepth, extreme_operands=ExtremeOperands.NONE, cost=SCATTERED_COPY_COST),
    "Concat": movement_op(
        Concat,
        constant_effect=ConstantEffect.SELECTED,
        is_value_preserving=True,
        is_concatenation=True,
        extreme_operands=ExtremeOperands.ALL,
        cost=OperatorCost(work=WorkKind.MOVEMENT, layout_effect=LayoutEffect.KEEPS_IF_WHOLE_BLOCKS),
    ),
    "Pad": movement_op(
        Pad,
        constant_effect=ConstantEffect.SELECTED,
        operand_roles={1: "ones", 3: "axes"},
        implied_defaults={3: ALL_AXES},
        extreme_operands=ExtremeOperands.FIRST,
        proposals={
            "pads": propose_per_axis(0, 0, 1, 2, -1, times=2),
            "mode": propose_choice("constant", "reflect", "edge"),
        },
        cost=COPY_COST,
    ),
    "Trilu": movement_op(Trilu, extreme_operands=ExtremeOperands.FIRST),
    "ConstantOfShape": movement_op(
        ConstantOfShape, result_dtype_source=ResultDtypeSource.VALUE, operand_roles={0: "sizes"}, shape_input=0
    ),
    "Shape": size_op(Shape_),
    "Size": size_op(Size_),
    "OneHot": movement_op(OneHot, rounding_effect=RoundingEffect.DISCONTINUOUS, operand_roles={0: "index", 1: "sizes"}),
    "GatherElements": movement_op(
        GatherElements, operand_roles={1: "index"}, extreme_operands=ExtremeOperands.FIRST, cost=SCATTERED_COPY_COST
    ),
    "GatherND": movement_op(
        GatherND,
        operand_roles={1: "index"},
        indexes_all_axes=True,
        extreme_operands=ExtremeOperands.FIRST,
        cost=SCATTERED_COPY_COST,
    ),
    "EyeLike": Operator(
        EyeLike,
        is_exact=True,
        reads_shape_only=True,
        rounding_effect=RoundingEffect.PRESERVES,
        result_dtype_source=ResultDtypeSource.DTYPE,
    ),
    "Resize": Operator(
        Resize,
        is_exact=True,
        deciding_operand=2,
        operand_roles={2: "sizes", 3: "sizes"},
        proposals={
            "sizes": propose_resize_shape,
            "mode": propose_choice("nearest", "linear", "cubic"),
            "coordinate_transformation_mode": propose_choice(*SIZE_PRESERVING_MODES),
            "nearest_mode": propose_choice(*ROUNDING_MODES),
        },
        cost=OperatorCost(60, work=WorkKind.INTERPOLATION),
    ),
    "Dropout": Operator(Dropout, is_exact=True, rounding_effect=RoundingEffect.PRESERVES, cost=LAUNCH_COST),
    # products
    "MatMul": prepacked_op(
        MatMul,
        reference_fidelity=ReferenceFidelity.ON_INTEGERS,
        factor_count=1,
        weights_input=1,
        summation_length=SummationLength.MATRIX,
        cost=OperatorCost(work=WorkKind.PRODUCT, fusion_target=FusionTarget.PRODUCT),
    ),
    "Gemm": prepacked_op(
        Gemm,
        bias_input=2,
        constant_effect=ConstantEffect.BOTH,
        scalar_attributes=frozenset({"alpha", "beta"}),
        summation_length=SummationLength.MATRIX,
        cost=OperatorCost(work=WorkKind.PRODUCT, fusion_target=FusionTarget.GEMM),
    ),
    "Conv": prepacked_op(
        Conv,
        bias_input=2,
        requires_spatial_axes=True,
        implied_defaults={**SPATIAL_DEFAULTS, "kernel_shape": KERNEL_OF_WEIGHTS},
        weights_input=1,
        summation_length=SummationLength.CONVOLUTION,
        extreme_operands=ExtremeOperands.NONE,
        fails_on_empty=True,
        cost=OperatorCost(
            work=WorkKind.CONVOLUTION, fusion_target=FusionTarget.CONVOLUTION, layout_effect=LayoutEffect.ENTERS_BLOCKED
        ),
    ),
    "ConvTranspose": prepacked_op(
        ConvTranspose,
        bias_input=2,
        requires_spatial_axes=True,
        implied_defaults={
            **SPATIAL_DEFAULTS,
            "kernel_shape": KERNEL_OF_WEIGHTS,
            "output_padding": ZERO_PER_SPATIAL_AXIS,
        },
        summation_length=SummationLength.TRANSPOSED_CONVOLUTION,
        extreme_operands=ExtremeOperands.NONE,
        fails_on_empty=True,
        proposals={
            "output_padding": propose_per_spatial_axis(0, 0),
            "auto_pad": propose_choice("NOTSET", "VALID"),  # what SAME means differs between runtimes
        },
        cost=OperatorCost(work=WorkKind.TRANSPOSED_CONVOLUTION),
    ),
    "Einsum": prepacked_op(
        Einsum,
        summation_length=SummationLength.UNKNOWN,
        fails_on_empty=True,
        weight=2 * HEAVY_WEIGHT,
        cost=OperatorCost(work=WorkKind.EINSUM),
    ),
    # normalizations
    "BatchNormalization": linear_op(
        BatchNormalization,
        may_produce_nan=True,
        pole_operand=4,
        operand_roles={4: "positive"},
        weight=150,
        cost=OperatorCost(
            fusions={FusionTarget.CONVOLUTION: EpilogueFusion.NORMALIZED_CHANNELS}, layout_effect=LayoutEffect.KEEPS
        ),
    ),
    "LayerNormalization": normalization_op(
        LayerNormalization,
        bias_input=2,
        summation_length=SummationLength.UNKNOWN,
        weight=150,
        cost=OperatorCost(60, work=WorkKind.LAYER_NORMALIZATION, flops_after_sum=SUM_AND_NORMALIZATION_FLOPS),
    ),
    "RMSNormalization": normalization_op(RMSNormalization, weight=150, cost=OperatorCost(60)),
    "InstanceNormalization": normalization_op(InstanceNormalization, weight=150, cost=OperatorCost(60)),
    "GroupNormalization": normalization_op(GroupNormalization, cost=OperatorCost(60, passes=12)),
    "LpNormalization": mixing_op(
        LpNormalization, rounding_effect=RoundingEffect.DISCONTINUOUS, rounds_between_jumps=True
    ),
    "LRN": normalization_op(
        LRN,
        constant_effect=ConstantEffect.ADDED,
        scalar_attributes=frozenset({"bias"}),
        cost=OperatorCost(2500),
    ),
    "MeanVarianceNormalization": normalization_op(
        SchemaBody(denote), rounding_effect=RoundingEffect.DISCONTINUOUS, rounds_between_jumps=True
    ),
    # windows
    "AveragePool": pooling_op(
        pool_denotation(window_average), cost=OperatorCost(work=WorkKind.POOL, layout_effect=LayoutEffect.KEEPS)
    ),
    "LpPool": pooling_op(pool_denotation(window_power_mean)),
    "GlobalAveragePool": mixing_op(
        global_pool_denotation(mean_over),
        requires_spatial_axes=True,
        summation_length=SummationLength.UNKNOWN,
        cost=OperatorCost(layout_effect=LayoutEffect.KEEPS),
    ),
    "GlobalLpPool": mixing_op(GlobalLpPool),
    "MaxPool": pooling_op(
        pool_denotation(window_maximum),
        magnitude_effect=MagnitudeEffect.PRESERVED,
        rounding_effect=RoundingEffect.PRESERVES,
        index_outputs=frozenset({1}),
        cost=OperatorCost(work=WorkKind.POOL, layout_effect=LayoutEffect.KEEPS),
    ),
    "GlobalMaxPool": Operator(
        global_pool_denotation(lambda n, x: fold_over("max", n, x)),
        rounding_effect=RoundingEffect.PRESERVES,
        requires_spatial_axes=True,
        cost=OperatorCost(layout_effect=LayoutEffect.KEEPS),
    ),
    # along axes
    **REDUCTION_OPERATORS,
    **{
        name: mixing_op(
            denotation,
            prepacks_weights=True,
            operand_roles={4: "ones"},  # lengths of sequences
            summation_length=SummationLength.RECURRENT,
            weight=HEAVY_WEIGHT,
            cost=OperatorCost(work=WorkKind.RECURRENT),
        )
        for name, denotation in RECURRENT_DENOTATIONS.items()
    },
    "CumSum": Operator(
        CumSum,
        magnitude_effect=MagnitudeEffect.AMPLIFIED,
        reference_fidelity=ReferenceFidelity.ON_INTEGERS,
        operand_roles={1: "axes"},
        summation_length=SummationLength.UNKNOWN,
        extreme_operands=ExtremeOperands.FIRST,
        cost=OperatorCost(700),
    ),
    "DFT": linear_op(
        DFT,
        operand_roles={2: "axes"},
        summation_length=SummationLength.UNKNOWN,
        extreme_operands=ExtremeOperands.FIRST,
        weight=HEAVY_WEIGHT,
        cost=OperatorCost(6500),  # of 384 elements along an axis; where they are a power of 2 far less
    ),
    "Softmax": Operator(
        Softmax,
        magnitude_effect=MagnitudeEffect.BOUNDED,
        is_saturating=True,
        summation_length=SummationLength.UNKNOWN,
        cost=OperatorCost(40, passes=2, work=WorkKind.SOFTMAX),
    ),
    "Hardmax": Operator(
        Hardmax, magnitude_effect=MagnitudeEffect.BOUNDED, rounding_effect=RoundingEffect.DISCONTINUOUS
    ),
    "LogSoftmax": Operator(LogSoftmax, is_saturating=True, cost=OperatorCost(40, work=WorkKind.SOFTMAX)),
    "ArgMax": search_op(ArgMax, reference_fidelity=ReferenceFidelity.ON_INTEGERS),
    "ArgMin": search_op(ArgMax),
    "RotaryEmbedding": Operator(RotaryEmbedding, operand_roles={3: "index"}, table_inputs=(1,)),
    "Range": Operator(
        Range,
        rounding_effect=RoundingEffect.DISCONTINUOUS,
        rounds_between_jumps=True,
        operand_roles={0: "zeros", 1: "sizes", 2: "ones"},
    ),
    "TopK": Operator(
        TopK,
        rounding_effect=RoundingEffect.DISCONTINUOUS,
        operand_roles={1: "ones"},
        index_outputs=frozenset({1}),
        cost=OperatorCost(200),
    ),
    "NonZero": Operator(
        NonZero,
        reference_fidelity=ReferenceFidelity.EVERYWHERE,
        rounding_effect=RoundingEffect.DISCONTINUOUS,
        extreme_operands=ExtremeOperands.ABSORBED,
    ),
    "ScatterElements": Operator(
        ScatterElements,
        operand_roles={1: "index"},
        weight=150,  # more than the Concat of what is written
        has_data_races=True,
        cost=SCATTERED_COPY_COST,
    ),
    "ScatterND": Operator(
        ScatterND,
        operand_roles={1: "index"},
        weight=450,  # more than the Slices, the Concat and the Transpose that write a part along another axis
        indexes_all_axes=True,
        has_data_races=True,
    ),
    "DynamicQuantizeLinear": Operator(
        SchemaBody(denote),
        rounding_effect=RoundingEffect.DISCONTINUOUS,
        rounds_between_jumps=True,
        may_compute_narrower=True,
    ),
    # they name what is rounded, or not looked into, by themselves; integers are exact in any order
    "Attention": mixing_op(
        Attention,
        is_exact=True,
        mask_input=3,
        prepacks_weights=True,
        weight=HEAVY_WEIGHT,
        cost=OperatorCost(work=WorkKind.ATTENTION),
    ),
    "QuantizeLinear": Operator(
        QuantizeLinear,
        is_exact=True,
        may_produce_nan=True,
        rounding_effect=RoundingEffect.DISCONTINUOUS,
        is_quantizing=True,
        result_dtype_source=ResultDtypeSource.QUANTIZED,
        operand_roles={1: "positive"},
        allows_any_scale=True,
    ),
    "DequantizeLinear": quantized_op(
        DequantizeLinear,
        is_sum_of_products=True,
        is_foldable=False,  # integer weights would become floats, for which runtimes do not use integer kernels
        result_dtype_source=ResultDtypeSource.DEQUANTIZED,
        operand_roles={1: "positive"},
        allows_any_scale=True,
        extreme_operands=ExtremeOperands.FIRST,
    ),
    "MatMulInteger": quantized_op(
        MatMulInteger,
        factor_inputs="a b",
        weights_input=1,
        extreme_operands=ExtremeOperands.ALL,
        fails_on_empty=True,
        cost=PRODUCT_COST,
    ),
    "QLinearMatMul": requantizing_op(
        QLinearMatMul, factor_inputs=QUANTIZED_FACTORS, extreme_operands=ExtremeOperands.ALL, fails_on_empty=True
    ),
    "ConvInteger": quantized_op(
        ConvInteger,
        factor_inputs="a b",
        spatial_rank=2,
        weights_input=1,
        extreme_operands=ExtremeOperands.ALL,
        cost=CONVOLUTION_COST,
    ),
    "QLinearConv": requantizing_op(
        QLinearConv,
        factor_inputs=QUANTIZED_FACTORS,
        spatial_rank=2,
        weights_input=3,
        extreme_operands=ExtremeOperands.ALL,
        cost=CONVOLUTION_COST,
    ),
}
"""Operators that have a meaning."""
