"""Operators without a denotation, of which facts are known: old ones of ONNX, and ONNX Runtime's.

No proof is about them. Some are kernels that only ONNX Runtime's optimizer puts into a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from graphopt.operators.operator import HEAVY_WEIGHT, Operator
from graphopt.operators.operator_cost import (
    CONVOLUTION_COST,
    PRODUCT_COST,
    SUM_AND_NORMALIZATION_FLOPS,
    LayoutEffect,
    OperatorCost,
    WorkKind,
)
from graphopt.operators.semantics import OPERATORS

MICROSOFT_DOMAIN = "com.microsoft"

undenoted_op = partial(Operator, prepacks_weights=True)
"""Return an operator of which none of the facts that proofs read is known."""


def _namesake_op(name: str) -> Operator:
    """Return an operator of ONNX Runtime that resembles ONNX's of this name: no proof says how far."""
    known = OPERATORS[name]
    return undenoted_op(
        is_quantizing=known.is_quantizing,
        is_foldable=known.is_foldable,
        result_dtype_source=known.result_dtype_source,
        is_saturating=known.is_saturating,
        constant_effect=known.constant_effect,
        weight=known.weight,
        cost=known.cost,
        operand_roles=known.operand_roles,
        indexes_all_axes=known.indexes_all_axes,
        factor_inputs=known.factor_inputs,
        spatial_rank=known.spatial_rank,
        allows_any_scale=known.allows_any_scale,
        weights_input=known.weights_input,
        proposals=known.proposals,
    )


NAMESAKES = ("DequantizeLinear", "GatherND", "Gelu", "Pad", "QLinearConv", "QuantizeLinear", "Range")

UNDENOTED_OPERATORS: Mapping[tuple[str, str], Operator] = {
    ("If", ""): undenoted_op(cost=OperatorCost(work=WorkKind.BRANCH)),
    ("Loop", ""): undenoted_op(operand_roles={0: "sizes"}, cost=OperatorCost(work=WorkKind.LOOP)),
    ("Scan", ""): undenoted_op(cost=OperatorCost(work=WorkKind.LOOP)),
    ("Optional", ""): undenoted_op(is_value_preserving=True),
    ("OptionalGetElement", ""): undenoted_op(is_value_preserving=True),
    ("SequenceAt", ""): undenoted_op(operand_roles={1: "zeros"}),
    ("MaxUnpool", ""): undenoted_op(operand_roles={1: "index"}),
    ("ReverseSequence", ""): undenoted_op(operand_roles={1: "ones"}),
    ("Scatter", ""): undenoted_op(operand_roles={1: "index"}, has_data_races=True),
    ("Upsample", ""): undenoted_op(operand_roles={1: "sizes"}),
    ("DeformConv", ""): undenoted_op(cost=CONVOLUTION_COST),
    ("ArrayFeatureExtractor", "ai.onnx.ml"): undenoted_op(operand_roles={1: "index"}),
    **{(name, MICROSOFT_DOMAIN): _namesake_op(name) for name in NAMESAKES},
    ("Attention", MICROSOFT_DOMAIN): undenoted_op(
        weight=HEAVY_WEIGHT, cost=OperatorCost(work=WorkKind.PACKED_ATTENTION)
    ),
    ("MultiHeadAttention", MICROSOFT_DOMAIN): undenoted_op(cost=OperatorCost(work=WorkKind.ATTENTION)),
    ("GroupQueryAttention", MICROSOFT_DOMAIN): undenoted_op(cost=OperatorCost(work=WorkKind.ATTENTION)),
    ("FusedConv", MICROSOFT_DOMAIN): undenoted_op(cost=CONVOLUTION_COST),
    ("FusedGemm", MICROSOFT_DOMAIN): undenoted_op(cost=PRODUCT_COST),
    ("FusedMatMul", MICROSOFT_DOMAIN): undenoted_op(cost=PRODUCT_COST),
    ("BiasGelu", MICROSOFT_DOMAIN): undenoted_op(cost=OperatorCost(70)),
    ("FastGelu", MICROSOFT_DOMAIN): undenoted_op(cost=OperatorCost(70)),
    ("QuickGelu", MICROSOFT_DOMAIN): undenoted_op(cost=OperatorCost(30, layout_effect=LayoutEffect.KEEPS)),
    ("SkipLayerNormalization", MICROSOFT_DOMAIN): undenoted_op(cost=OperatorCost(SUM_AND_NORMALIZATION_FLOPS)),
    ("SkipSimplifiedLayerNormalization", MICROSOFT_DOMAIN): undenoted_op(
        cost=OperatorCost(SUM_AND_NORMALIZATION_FLOPS)
    ),
    ("RotaryEmbedding", MICROSOFT_DOMAIN): undenoted_op(operand_roles={1: "index"}, table_inputs=(2, 3)),
    ("EmbedLayerNormalization", MICROSOFT_DOMAIN): undenoted_op(
        operand_roles={0: "index", 1: "index"}, table_inputs=(2, 3)
    ),
    ("GatherBlockQuantized", MICROSOFT_DOMAIN): undenoted_op(operand_roles={1: "index"}),
}
"""Operators without a denotation, by name and domain."""
