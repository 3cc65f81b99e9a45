"""What an operator costs: the constants of a roofline of ONNX Runtime's CPU kernels, and of what it fuses as it loads.

`search/analytic_cost.py` computes with them. They say nothing of what an operator means, so no proof depends on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto


class WorkKind(Enum):
    """How the work of a node follows from the shapes of what it reads and writes."""

    ELEMENTWISE = auto()
    """Some operations an element, and passes over what is read and written."""
    POWER = auto()
    """As elementwise, but squares and cubes are multiplied out."""
    LAYER_NORMALIZATION = auto()
    """As elementwise, but a sum of equal shapes before it is fused with it, for which the kernel is slow."""
    CONVOLUTION = auto()
    TRANSPOSED_CONVOLUTION = auto()
    PRODUCT = auto()
    ATTENTION = auto()
    PACKED_ATTENTION = auto()
    """With the projections to queries, keys and values."""
    RECURRENT = auto()
    EINSUM = auto()
    POOL = auto()
    MOVEMENT = auto()
    """What is written is copied."""
    TRANSPOSITION = auto()
    NOTHING = auto()
    """A launch alone."""
    BRANCH = auto()
    """The dearest of its bodies."""
    LOOP = auto()
    """Its body, as often as an unknown size."""


class FusionTarget(Enum):
    """What later nodes may be fused into."""

    CONVOLUTION = auto()
    GEMM = auto()
    PRODUCT = auto()
    SIGMOID = auto()
    SUM = auto()


class EpilogueFusion(Enum):
    """How a node is fused into the one before it."""

    ACTIVATION = auto()
    BLOCKED_ACTIVATION = auto()
    """In the blocked layout alone."""
    ADDED_CHANNELS = auto()
    """What is added: a constant per channel, or a tensor of the same shape."""
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
    """What a node does to the layout that blocks the channels of images."""

    PLAIN = auto()
    """It reads the usual layout; what is blocked is copied back before it."""
    ENTERS = auto()
    """It writes the blocked layout, where its channels fit."""
    KEEPS = auto()
    KEEPS_IF_ALIKE = auto()
    """It keeps it where all that it reads is blocked and has one shape."""
    KEEPS_IF_WHOLE = auto()
    """It keeps it where it joins whole blocks."""


@dataclass(frozen=True, slots=True)
class OperatorCost:
    """What an operator costs."""

    flops: float = 10
    """Operations an element, counted at the rate of a matrix product (as measured with ONNX Runtime 1.31)."""
    passes: int = 1
    """How often it goes over its data: more than once where it has no kernel of its own, or one in several passes."""
    work: WorkKind = WorkKind.ELEMENTWISE
    stride: float = 1
    """How many times as slow as a plain copy it moves data, because elements lie far apart."""
    flops_after_sum: float = 0
    """Operations an element of a layer normalization that a sum is fused with."""
    head: FusionTarget | None = None
    """What it is to the nodes that are fused into it."""
    fusions: Mapping[FusionTarget, EpilogueFusion] = field(default_factory=dict)
    """How it is fused into a node before it, by what that is."""
    layout: LayoutEffect = LayoutEffect.PLAIN


SUM_AND_NORMALIZATION = 300
"""Operations an element of the kernel for a layer normalization of a sum."""

NO_COST = OperatorCost(work=WorkKind.NOTHING)
COPY = OperatorCost(work=WorkKind.MOVEMENT)
SCATTERED_COPY = OperatorCost(work=WorkKind.MOVEMENT, stride=4)
PRODUCT = OperatorCost(work=WorkKind.PRODUCT)
CONVOLUTION = OperatorCost(work=WorkKind.CONVOLUTION)
IMAGE_ACTIVATION: Mapping[FusionTarget, EpilogueFusion] = {FusionTarget.CONVOLUTION: EpilogueFusion.ACTIVATION}
MATRIX_ACTIVATION: Mapping[FusionTarget, EpilogueFusion] = {FusionTarget.GEMM: EpilogueFusion.ACTIVATION}
ACTIVATION: Mapping[FusionTarget, EpilogueFusion] = {**IMAGE_ACTIVATION, **MATRIX_ACTIVATION}
