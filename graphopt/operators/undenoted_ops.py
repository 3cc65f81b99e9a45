"""Operators without a denotation, of which something is known all the same: ONNX's own, old ones, and ONNX Runtime's.

No proof speaks of them. Kernels of ONNX Runtime are among them that only its optimizer makes of a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from graphopt.operators.operator import HEAVY_WEIGHT, Operator
from graphopt.operators.operator_cost import (
    CONVOLUTION,
    PRODUCT,
    SUM_AND_NORMALIZATION,
    LayoutEffect,
    OperatorCost,
    WorkKind,
)
from graphopt.operators.semantics import OPERATORS

MICROSOFT = "com.microsoft"

carried_op = partial(Operator, prepacks_weights=True)
"""An operator of which none of the facts is known that proofs read."""


def _namesake_op(name: str) -> Operator:
    """Return an operator of ONNX Runtime that does about what ONNX's of this name does: no proof says how far."""
    known = OPERATORS[name]
    return carried_op(
        is_quantizing=known.is_quantizing,
        is_foldable=known.is_foldable,
        result_type=known.result_type,
        is_saturating=known.is_saturating,
        constant_effect=known.constant_effect,
        weight=known.weight,
        cost=known.cost,
        roles=known.roles,
        indexes_all_axes=known.indexes_all_axes,
        factor_inputs=known.factor_inputs,
        spatial_rank=known.spatial_rank,
        takes_any_scale=known.takes_any_scale,
        weights_input=known.weights_input,
        proposals=known.proposals,
    )


NAMESAKES = ("DequantizeLinear", "GatherND", "Gelu", "Pad", "QLinearConv", "QuantizeLinear", "Range")

UNDENOTED: Mapping[tuple[str, str], Operator] = {
    ("If", ""): carried_op(cost=OperatorCost(work=WorkKind.BRANCH)),
    ("Loop", ""): carried_op(roles={0: "sizes"}, cost=OperatorCost(work=WorkKind.LOOP)),
    ("Scan", ""): carried_op(cost=OperatorCost(work=WorkKind.LOOP)),
    ("Optional", ""): carried_op(is_value_preserving=True),
    ("OptionalGetElement", ""): carried_op(is_value_preserving=True),
    ("SequenceAt", ""): carried_op(roles={1: "zeros"}),
    ("MaxUnpool", ""): carried_op(roles={1: "index"}),
    ("ReverseSequence", ""): carried_op(roles={1: "ones"}),
    ("Scatter", ""): carried_op(roles={1: "index"}, has_data_races=True),
    ("Upsample", ""): carried_op(roles={1: "sizes"}),
    ("DeformConv", ""): carried_op(cost=CONVOLUTION),
    ("ArrayFeatureExtractor", "ai.onnx.ml"): carried_op(roles={1: "index"}),
    **{(name, MICROSOFT): _namesake_op(name) for name in NAMESAKES},
    ("Attention", MICROSOFT): carried_op(weight=HEAVY_WEIGHT, cost=OperatorCost(work=WorkKind.PACKED_ATTENTION)),
    ("MultiHeadAttention", MICROSOFT): carried_op(cost=OperatorCost(work=WorkKind.ATTENTION)),
    ("GroupQueryAttention", MICROSOFT): carried_op(cost=OperatorCost(work=WorkKind.ATTENTION)),
    ("FusedConv", MICROSOFT): carried_op(cost=CONVOLUTION),
    ("FusedGemm", MICROSOFT): carried_op(cost=PRODUCT),
    ("FusedMatMul", MICROSOFT): carried_op(cost=PRODUCT),
    ("BiasGelu", MICROSOFT): carried_op(cost=OperatorCost(70)),
    ("FastGelu", MICROSOFT): carried_op(cost=OperatorCost(70)),
    ("QuickGelu", MICROSOFT): carried_op(cost=OperatorCost(30, layout=LayoutEffect.KEEPS)),
    ("SkipLayerNormalization", MICROSOFT): carried_op(cost=OperatorCost(SUM_AND_NORMALIZATION)),
    ("SkipSimplifiedLayerNormalization", MICROSOFT): carried_op(cost=OperatorCost(SUM_AND_NORMALIZATION)),
    ("EmbedLayerNormalization", MICROSOFT): carried_op(roles={0: "index", 1: "index"}, table_inputs=(2, 3)),
    ("GatherBlockQuantized", MICROSOFT): carried_op(roles={1: "index"}),
}
"""By name and domain."""
