"""Costs of operators: the constants of a roofline of ONNX Runtime's CPU kernels, and of its fusions at load time.

`search/analytic_cost.py` computes with them. They say nothing of meanings, so no proof depends on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto


class WorkKind(Enum):
    """Formula of a node's work, given the shapes that it reads and writes."""

    ELEMENTWISE = auto()
    """Some operations an element, and passes over what is read and written."""
    POWER = auto()
    """Elementwise work, but squares and cubes are multiplied out."""
    LAYER_NORMALIZATION = auto()
    """Elementwise work, but a sum of equal shapes before it is fused with it, for which the kernel is slow."""
    SOFTMAX = auto()
    """Elementwise work along an axis, which is swapped with the last one before and after it."""
    CONVOLUTION = auto()
    TRANSPOSED_CONVOLUTION = auto()
    PRODUCT = auto()
    ATTENTION = auto()
    PACKED_ATTENTION = auto()
    """Attention with the projections to queries, keys and values."""
    RECURRENT = auto()
    EINSUM = auto()
    POOL = auto()
    INTERPOLATION = auto()
    """Elementwise work, but far more where pixels are interpolated."""
    MOVEMENT = auto()
    """A copy of what is written."""
    TRANSPOSITION = auto()
    NOTHING = auto()
    """A launch alone."""
    BRANCH = auto()
    """The dearest of its bodies."""
    LOOP = auto()
    """Its body, as often as an unknown size."""


class FusionTarget(Enum):
    """Role of a node that later nodes may be fused into."""

    CONVOLUTION = auto()
    GEMM = auto()
    PRODUCT = auto()
    SIGMOID = auto()
    SUM = auto()


class EpilogueFusion(Enum):
    """Way in which a node is fused into the one before it."""

    ACTIVATION = auto()
    BLOCKED_ACTIVATION = auto()
    """An activation that is fused in the blocked layout alone."""
    ADDED_CHANNELS = auto()
    """A summand: a constant per channel, or a tensor of the same shape."""
    SCALED_CHANNELS = auto()
    """A factor, constant, per channel or for all."""
    NORMALIZED_CHANNELS = auto()
    BIAS = auto()
    SCALE = auto()
    """A number that a product is multiplied by."""
    DIVISOR = auto()
    GATE = auto()
    """`x * sigmoid(x)`."""


class LayoutEffect(Enum):
    """Effect of a node on the layout that blocks the channels of images."""

    PLAIN = auto()
    """Reads the usual layout; blocked operands are copied back before it."""
    ENTERS_BLOCKED = auto()
    """Writes the blocked layout, where its channels fit."""
    KEEPS = auto()
    KEEPS_IF_SAME_SHAPE = auto()
    """Keeps the blocked layout where all operands have it, and one shape."""
    KEEPS_IF_WHOLE_BLOCKS = auto()
    """Keeps the blocked layout where it joins whole blocks."""


@dataclass(frozen=True, slots=True)
class OperatorCost:
    """Cost of an operator, as constants of the roofline."""

    flops: float = 10
    """Operations an element, counted at the rate of a matrix product (as measured with ONNX Runtime 1.31)."""
    passes: int = 1
    """Passes over its data: more than one where it has no kernel of its own, or one in several passes."""
    work: WorkKind = WorkKind.ELEMENTWISE
    copy_slowdown: float = 1
    """Time of moving data, as a multiple of a plain copy: elements may lie far apart."""
    flops_after_sum: float = 0
    """Operations an element of a layer normalization that a sum is fused with."""
    fusion_target: FusionTarget | None = None
    """Role that it has for the nodes that are fused into it; None where none are."""
    fusions: Mapping[FusionTarget, EpilogueFusion] = field(default_factory=dict)
    """Ways in which it is fused into a node before it, by the role of that."""
    layout_effect: LayoutEffect = LayoutEffect.PLAIN


SUM_AND_NORMALIZATION_FLOPS = 300
"""Operations an element of the kernel for a layer normalization of a sum."""

LAUNCH_COST = OperatorCost(work=WorkKind.NOTHING)
COPY_COST = OperatorCost(work=WorkKind.MOVEMENT)
SCATTERED_COPY_COST = OperatorCost(work=WorkKind.MOVEMENT, copy_slowdown=4)
PRODUCT_COST = OperatorCost(work=WorkKind.PRODUCT)
CONVOLUTION_COST = OperatorCost(work=WorkKind.CONVOLUTION)
IMAGE_ACTIVATION_FUSIONS: Mapping[FusionTarget, EpilogueFusion] = {FusionTarget.CONVOLUTION: EpilogueFusion.ACTIVATION}
MATRIX_ACTIVATION_FUSIONS: Mapping[FusionTarget, EpilogueFusion] = {FusionTarget.GEMM: EpilogueFusion.ACTIVATION}
ACTIVATION_FUSIONS: Mapping[FusionTarget, EpilogueFusion] = {**IMAGE_ACTIVATION_FUSIONS, **MATRIX_ACTIVATION_FUSIONS}
