"""Operators without a denotation, of which something is known all the same: ONNX's own, old ones, and ONNX Runtime's.

No proof speaks of them. Kernels of ONNX Runtime are among them that only its optimizer makes of a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from graphopt.operators.cost import CONVOLUTION, PRODUCT, SUM_AND_NORMALIZATION, Cost, Layout, Work
from graphopt.operators.operator import HEAVY, Operator
from graphopt.operators.semantics import OPERATORS

MICROSOFT = "com.microsoft"

carried = partial(Operator, packs=True)
"""An operator of which none of the facts is known that proofs read."""


def _namesake(name: str) -> Operator:
    """Return an operator of ONNX Runtime that does about what ONNX's of this name does: no proof says how far."""
    known = OPERATORS[name]
    return carried(
        is_quantizing=known.is_quantizing,
        is_folded=known.is_folded,
        result_type=known.result_type,
        saturates=known.saturates,
        numbers=known.numbers,
        weight=known.weight,
        cost=known.cost,
        roles=known.roles,
        indexes_all_axes=known.indexes_all_axes,
        factors=known.factors,
        spatial=known.spatial,
        takes_any_scale=known.takes_any_scale,
        weights=known.weights,
        proposals=known.proposals,
    )


NAMESAKES = ("DequantizeLinear", "GatherND", "Gelu", "Pad", "QLinearConv", "QuantizeLinear", "Range")

UNDENOTED: Mapping[tuple[str, str], Operator] = {
    ("If", ""): carried(cost=Cost(work=Work.BRANCH)),
    ("Loop", ""): carried(roles={0: "sizes"}, cost=Cost(work=Work.LOOP)),
    ("Scan", ""): carried(cost=Cost(work=Work.LOOP)),
    ("Optional", ""): carried(passes=True),
    ("OptionalGetElement", ""): carried(passes=True),
    ("SequenceAt", ""): carried(roles={1: "zeros"}),
    ("MaxUnpool", ""): carried(roles={1: "index"}),
    ("ReverseSequence", ""): carried(roles={1: "ones"}),
    ("Scatter", ""): carried(roles={1: "index"}, races=True),
    ("Upsample", ""): carried(roles={1: "sizes"}),
    ("DeformConv", ""): carried(cost=CONVOLUTION),
    ("ArrayFeatureExtractor", "ai.onnx.ml"): carried(roles={1: "index"}),
    **{(name, MICROSOFT): _namesake(name) for name in NAMESAKES},
    ("Attention", MICROSOFT): carried(weight=HEAVY, cost=Cost(work=Work.PACKED_ATTENTION)),
    ("MultiHeadAttention", MICROSOFT): carried(cost=Cost(work=Work.ATTENTION)),
    ("GroupQueryAttention", MICROSOFT): carried(cost=Cost(work=Work.ATTENTION)),
    ("FusedConv", MICROSOFT): carried(cost=CONVOLUTION),
    ("FusedGemm", MICROSOFT): carried(cost=PRODUCT),
    ("FusedMatMul", MICROSOFT): carried(cost=PRODUCT),
    ("BiasGelu", MICROSOFT): carried(cost=Cost(70)),
    ("FastGelu", MICROSOFT): carried(cost=Cost(70)),
    ("QuickGelu", MICROSOFT): carried(cost=Cost(30, layout=Layout.KEEPS)),
    ("SkipLayerNormalization", MICROSOFT): carried(cost=Cost(SUM_AND_NORMALIZATION)),
    ("SkipSimplifiedLayerNormalization", MICROSOFT): carried(cost=Cost(SUM_AND_NORMALIZATION)),
    ("EmbedLayerNormalization", MICROSOFT): carried(roles={0: "index", 1: "index"}, tables=(2, 3)),
    ("GatherBlockQuantized", MICROSOFT): carried(roles={1: "index"}),
}
"""By name and domain."""
