"""What is known of an operator: its denotation, and the facts that are not read off it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Literal, TypeAlias

from graphopt.base.dtype import DType
from graphopt.expr.symbolic_tensors import SymbolicTensor
from graphopt.operators.attribute_proposals import Proposal
from graphopt.operators.implied_defaults import ImpliedDefault
from graphopt.operators.op_context import Denotation, OpContext, UnsupportedOperatorError
from graphopt.operators.operator_cost import OperatorCost

FLOATS = frozenset(dtype for dtype in DType if dtype.is_float)


class MagnitudeEffect(Enum):
    """How far from zero the elements of a result may lie, by how far those do that are read."""

    PRESERVED = auto()
    """As far."""
    BOUNDED = auto()
    """They are finite whatever is read (or NaN)."""
    CLAMPED = auto()
    """As far, but no infinity passes."""
    MIXED = auto()
    """Many products are added up: what an infinity makes of them is NaN, or an infinity everywhere."""
    SUMMED = auto()
    """Two huge numbers make an infinity."""
    MULTIPLIED = auto()
    """A huge number and one greater than 1 make an infinity."""
    GROWN = auto()
    """A huge number makes an infinity."""


class ReferenceFidelity(Enum):
    """Where the result of `onnx.reference` is ONNX Runtime's, bit for bit, however that splits and orders its work."""

    NOWHERE = auto()
    ON_INTEGERS = auto()
    EVERYWHERE = auto()
    """It moves elements, or rounds once if at all, as IEEE 754 says."""


class RoundingEffect(Enum):
    """What an operator does to floats that were rounded."""

    ROUNDS = auto()
    """It rounds, too."""
    PRESERVES = auto()
    """It rounds nothing, and what was rounded is in its result."""
    SELECTS_INDEX = auto()
    """It tells a place. Where two elements are equal but for rounding, the place of either is as good, if that is the
    result of a rule; what is looked up or compared there may be anything."""
    JUMPS = auto()
    """Its result jumps."""


class ResultType(Enum):
    """Where the element type of the result comes from."""

    SCHEMA = auto()
    """The schema says it: a fixed type, or that of an input."""
    TARGET = auto()
    """The attribute `to`."""
    LIKE = auto()
    """The second input."""
    DTYPE = auto()
    """The attribute `dtype`, or the input where that is absent."""
    VALUE = auto()
    """The attribute `value`, without which it is FLOAT."""
    QUANTIZED = auto()
    """The attribute `output_dtype`, or the zero point, without either UINT8."""
    DEQUANTIZED = auto()
    """The attribute `output_dtype`, or the scale."""


class ConstantEffect(Enum):
    """What numbers that a rule writes as operands, or as the attributes `scalars`, do to the other operands."""

    NOTHING = auto()
    ADDED = auto()
    """They are added to them."""
    MULTIPLIED = auto()
    BOTH = auto()
    """Some are added, others multiplied."""
    SELECTED = auto()
    """They may be the result in their place."""


class ExtremeOperands(Enum):
    """Which operands may be the least and greatest integers, without an error and without a larger result."""

    NONE = auto()
    """No integers; floats that were made of such may."""
    NOT_EVEN_FLOATS = auto()
    ALL = auto()
    FIRST = auto()
    SATURATED = auto()
    """All: no integer of the result is larger for an operand that is."""


class SummationLength(Enum):
    """How many terms are added up for an element of the result."""

    NONE = auto()
    UNKNOWN = auto()
    """A number that no weights tell."""
    MATRIX = auto()
    """As many as the matrix that is the second input has rows; `transB` may turn it."""
    CONVOLUTION = auto()
    """The elements of one filter, of all channels."""
    TRANSPOSED_CONVOLUTION = auto()
    """The elements of the filters that make one channel."""
    RECURRENT = auto()
    """The last axis of the weights."""


OperandRole: TypeAlias = Literal["index", "axes", "zeros", "ones", "sizes", "reshape", "split", "positive"]
"""What an operator takes an operand for, where not every value will do.

Places in another operand, axes, beginnings, steps and counts, sizes, the target of a Reshape, lengths of parts; and
numbers above 0: it has no meaning, or not the same to all kernels, for others.
"""

HEAVY_WEIGHT = 1000
"""The weight of operators that do most of the arithmetic of models."""


def no_denotation(node: OpContext) -> SymbolicTensor:
    """Say that an operator has no denotation."""
    raise UnsupportedOperatorError(f"no denotation of {node.op}")


@dataclass(frozen=True, slots=True)
class Operator:
    """What is known of an operator: all who want to know it read it here, and nowhere else.

    First what proofs, inference, folding and matching read, then what simplification, the estimate, made-up inputs, the
    comparison of results and the drawing of examples do.
    """

    denotation: Denotation = no_denotation
    is_exact: bool = False
    """Whether its denotation holds bit for bit: it moves data, or computes each element by one function that is named.

    Elementwise operators are exact, whatever this says.
    """
    selects_elements: bool = False
    """Whether its elements are elements of its first input."""
    is_view: bool = False
    """Whether they are all of these, in their order."""
    reads_shape_only: bool = False
    """Whether of what it reads only the shape counts."""
    is_commutative: bool = False
    """Whether its operands may be swapped."""
    is_sum_of_products: bool = False
    """Whether it is sums and products alone, which hold for infinities, too, as far as they are only reordered."""
    magnitude_effect: MagnitudeEffect = MagnitudeEffect.PRESERVED
    pole_operand: int | None = None
    """The first of the operands for which it has a pole: near some numbers its result has no bound."""
    has_nan_gaps: bool = False
    """Whether it makes NaN of other ordinary numbers."""
    reference_fidelity: ReferenceFidelity = ReferenceFidelity.NOWHERE
    deviating_dtypes: frozenset[DType] = frozenset()
    """Element types in which ONNX Runtime's kernel departs from what the exact meaning says.

    What it makes of the same operands is the same, so a rule keeps the bits where it keeps the node. Where it makes
    such a node, computes it on another tensor or does without it, the result is right, but not bit for bit.
    """
    is_position_sensitive: bool = False
    """Whether the kernel computes an element by other instructions within a vector than at its end."""
    rounding_effect: RoundingEffect = RoundingEffect.ROUNDS
    """What it does to rounding, where it does not only move elements."""
    overflows_early: bool = False
    """Whether it overflows at moderate numbers: 89 in single and 12 in half precision."""
    bias_input: int | None = None
    """An optional input that is added: of zeros it may as well be absent."""
    mask_input: int | None = None
    """An optional input that is added ahead of a softmax, in which ONNX Runtime's kernel takes the least number of its
    type for -inf."""

    prepacks_weights: bool = False
    """Whether ONNX Runtime's kernel may take weights that are constants in another order than such that are computed,
    and so round otherwise: it multiplies matrices, or is not known."""

    is_quantizing: bool = False
    """Whether it computes with integers for which the ranges of element types are made."""
    is_foldable: bool = True
    """Whether it is computed where its inputs are constants."""
    implied_defaults: Mapping[str | int, ImpliedDefault] = field(default_factory=dict)
    """What an absent attribute, or optional input, stands for, by its name or position, where that depends on the
    other inputs."""
    result_type: ResultType = ResultType.SCHEMA
    index_outputs: frozenset[int] = frozenset()
    """The outputs that are sizes, or places along an axis: integers that no arithmetic makes."""

    # what real numbers do not say of floats

    deciding_operand: int = 0
    """The first of the operands by which it jumps."""
    rounds_between_jumps: bool = False
    """Whether it also rounds where it jumps."""
    is_saturating: bool = False
    """Whether it gives one and the same float, or 0, for many numbers that are far apart."""
    factor_count: int = 0
    """How many of the numbers that it is given it multiplies with each other: 1 of each operand, or 2 of one."""
    constant_effect: ConstantEffect = ConstantEffect.NOTHING
    scalar_attributes: frozenset[str] = frozenset()
    """Attributes that are numbers beside operands."""
    summation: SummationLength = SummationLength.NONE

    # how models with it are made smaller and faster

    weight: int = 100
    """Its share of the strict measure that makes simplification end (not a cost: that is measured).

    A simplifying rewrite must make the sum over the nodes smaller. Of two forms of one thing, the one that rules are
    written for, and that ORT fuses, weighs less.
    """
    cost: OperatorCost = field(default_factory=OperatorCost)
    is_partial_gain: bool = False
    """Whether one such operator in the place of another is no gain by itself."""
    is_row_wise: bool = False
    """Whether a few rows of its result are computed of a few rows of its operands."""
    inferred_size_count: int | None = None
    """How many sizes that are not known it finds out by itself, where it is given sizes as the model runs."""

    # the inputs with which models and examples are run

    roles: Mapping[int, OperandRole] = field(default_factory=dict)
    """The roles of its inputs."""
    table_inputs: tuple[int, ...] = ()
    """The inputs whose first axis indices lie in, where that is not an axis of the first input."""
    indexes_all_axes: bool = False
    """Whether indices lie in several axes of the first input, whatever `axis` says."""
    is_value_preserving: bool = False
    """Whether the values of its first operand go through as they are, or nearly so, though it does not keep them."""
    is_joining: bool = False
    """Whether it joins any number of operands along an axis, whose values go through as they are."""
    observes_nonfinite: bool = False
    """Whether a model tells infinities and NaN from other numbers by it, or masks with them."""
    propagates_nonfinite: bool = False
    """Whether it computes each element from one of each operand, infinities and NaN of them."""
    extreme_operands: ExtremeOperands = ExtremeOperands.NONE
    divides_integers: bool = False
    """Whether integers that it divides by 0 end the process."""
    factor_inputs: str = ""
    """The inputs of a product of 8-bit integers: `a` and `b` stand where the factors do, `one` and `step` for scales,
    `p` and `q` for zero points."""
    spatial_rank: int = 0
    """How many spatial axes the factors of such a product have in a trial."""
    may_compute_narrower: bool = False
    """Whether ONNX Runtime may have kernels for it, or for what is around it, that hold less than is written."""
    has_data_races: bool = False
    """Whether threads may write to one place."""
    fails_on_empty: bool = False
    """Whether ONNX Runtime has kernels for it that divide by the size of an axis: an empty one ends the process."""
    proposals: Mapping[str, Proposal] = field(default_factory=dict)
    """How values of its attributes, and of inputs that are numbers, are proposed to make it defined."""
    weights_input: int | None = None
    """The input of weights, of which an axis is as long as one of the first input."""
    takes_any_scale: bool = False
    """Whether it means something with any scale, also one that is not above 0."""
    shape_input: int | None = None
    """The input that says a shape."""
    is_of_images: bool = False
    """Whether it runs over the spatial axes of images: of no matrix and no vector it has a meaning."""

    @property
    def is_exactly_commutative(self) -> bool:
        """Whether two operands may be swapped bit for bit; of 0.0 and -0.0, Max takes one by their places."""
        return self.is_commutative and not self.deviating_dtypes

    @property
    def is_movement(self) -> bool:
        """Whether it moves elements and makes none of others, whatever its attributes are."""
        return self.is_exact and self.reference_fidelity is ReferenceFidelity.EVERYWHERE

    @property
    def is_denoted(self) -> bool:
        """Whether it has a meaning."""
        return self.denotation is not no_denotation

    @property
    def has_poles(self) -> bool:
        """Whether it makes infinities of ordinary numbers, where its denotation has no value, and no NaN there."""
        return self.pole_operand is not None and not self.has_nan_gaps

    @property
    def is_casting(self) -> bool:
        """Whether it casts to an element type that is no function of what it reads first."""
        return self.result_type in (ResultType.TARGET, ResultType.LIKE)

    @property
    def is_partial(self) -> bool:
        """Whether it has no value at some numbers."""
        return self.has_poles or self.has_nan_gaps

    @property
    def is_rounding(self) -> bool:
        """Whether it rounds floats."""
        return (self.rounding_effect is RoundingEffect.ROUNDS or self.rounds_between_jumps) and not self.is_movement
