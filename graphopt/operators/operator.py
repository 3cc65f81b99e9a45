"""The entry of an operator: its denotation, and the facts that are not read off it."""

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

FLOAT_DTYPES = frozenset(dtype for dtype in DType if dtype.is_float)


class MagnitudeEffect(Enum):
    """Distance from zero of the elements of a result, by that of the elements read."""

    PRESERVED = auto()
    """As far as what is read."""
    BOUNDED = auto()
    """Finite (or NaN), whatever is read."""
    CLAMPED = auto()
    """As far as what is read, but no infinity passes."""
    MIXED = auto()
    """Many products are added up: an infinity among them makes NaN, or infinities everywhere."""
    SUMMED = auto()
    """Two huge numbers make an infinity."""
    MULTIPLIED = auto()
    """A huge number and one greater than 1 make an infinity."""
    AMPLIFIED = auto()
    """A huge number makes an infinity."""


class ReferenceFidelity(Enum):
    """Element types for which `onnx.reference` and ONNX Runtime agree bit for bit, in whatever order they compute."""

    NOWHERE = auto()
    ON_INTEGERS = auto()
    EVERYWHERE = auto()
    """All types: it moves elements, or rounds once if at all, as IEEE 754 says."""


class RoundingEffect(Enum):
    """Effect of an operator on floats that were rounded."""

    ROUNDS = auto()
    """Rounds, too."""
    PRESERVES = auto()
    """Rounds nothing itself; rounding errors of its operands are in the result."""
    SELECTS_INDEX = auto()
    """Selects an index. Where two elements are equal but for rounding, the index of either is as good, if that is the
    result of a rule; what is looked up or compared there may be anything."""
    DISCONTINUOUS = auto()
    """Its result jumps: a rounding error may change it at will."""


class ResultDtypeSource(Enum):
    """Source of the result's element type."""

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
    """Effect of numbers that a rule writes as operands, or as the attributes `scalars`, on the other operands."""

    NOTHING = auto()
    ADDED = auto()
    """The numbers are added to the operands."""
    MULTIPLIED = auto()
    BOTH = auto()
    """Some are added, others multiplied."""
    SELECTED = auto()
    """The numbers may be the result in place of the operands."""


class ExtremeOperands(Enum):
    """Operands that may be the least and greatest integers, without an error and without a larger result."""

    NONE = auto()
    """No integers; floats that were made of such may."""
    NOT_EVEN_FLOATS = auto()
    ALL = auto()
    FIRST = auto()
    ABSORBED = auto()
    """All: a larger operand makes no integer of the result larger."""


class SummationLength(Enum):
    """Number of terms that are added up for an element of the result."""

    NONE = auto()
    UNKNOWN = auto()
    """A number that no weights determine."""
    MATRIX = auto()
    """Number of rows of the matrix that is the second input; `transB` may turn it."""
    CONVOLUTION = auto()
    """The elements of one filter, of all channels."""
    TRANSPOSED_CONVOLUTION = auto()
    """The elements of the filters that make one channel."""
    RECURRENT = auto()
    """The last axis of the weights."""


OperandRole: TypeAlias = Literal["index", "axes", "zeros", "ones", "sizes", "reshape", "split", "positive"]
"""Role of an operand that does not admit every value.

Positions in another operand, axes, beginnings, steps and counts, sizes, the target of a Reshape, lengths of parts, and
positive numbers: for others the operator has no meaning, or not the same one in all kernels.
"""

HEAVY_WEIGHT = 1000
"""The weight of operators that do most of the arithmetic of models."""


def no_denotation(node: OpContext) -> SymbolicTensor:
    """Say that an operator has no denotation."""
    raise UnsupportedOperatorError(f"no denotation of {node.op}")


@dataclass(frozen=True, slots=True)
class Operator:
    """All that the compiler knows of an operator.

    First the facts that proofs, inference, folding and matching read, then those for simplification, the estimate,
    made-up inputs, the comparison of results and the drawing of examples.
    """

    denotation: Denotation = no_denotation
    is_exact: bool = False
    """True if its denotation holds bit for bit: it moves data, or computes each element by one named function.
    Elementwise operators are exact, whatever this says.
    """
    selects_elements: bool = False
    """True if its elements are elements of its first input."""
    is_view: bool = False
    """True if its elements are those of its first input, in their order."""
    reads_shape_only: bool = False
    """True if it reads only the shape of its operand."""
    is_commutative: bool = False
    """True if its operands may be swapped."""
    is_sum_of_products: bool = False
    """True if it consists of sums and products alone, which hold for infinities, too, as far as they are only
    reordered."""
    magnitude_effect: MagnitudeEffect = MagnitudeEffect.PRESERVED
    pole_operand: int | None = None
    """First operand for which it has a pole: near some numbers its result is unbounded."""
    may_produce_nan: bool = False
    """True if it makes NaN of ordinary numbers."""
    reference_fidelity: ReferenceFidelity = ReferenceFidelity.NOWHERE
    deviating_dtypes: frozenset[DType] = frozenset()
    """Element types in which ONNX Runtime's kernel deviates from the exact meaning.

    Equal operands give equal results, so a rule keeps the bits where it keeps the node. Where a rule adds such a node,
    moves it to another tensor or drops it, the result is right, but not bit for bit.
    """
    is_position_sensitive: bool = False
    """True if the kernel uses other instructions for elements at the end of a vector than within."""
    rounding_effect: RoundingEffect = RoundingEffect.ROUNDS
    """Effect on rounding, where it does not only move elements."""
    overflows_early: bool = False
    """True if it overflows at moderate numbers: 89 in single and 12 in half precision."""
    bias_input: int | None = None
    """An optional input that is added, so zeros may as well be absent."""
    mask_input: int | None = None
    """An optional input that is added ahead of a softmax, in which ONNX Runtime's kernel takes the least number of its
    type for -inf."""

    prepacks_weights: bool = False
    """True if ONNX Runtime's kernel may reorder weights that are constants, and so round otherwise than for weights
    that are computed: it multiplies matrices, or is not known."""

    is_quantizing: bool = False
    """True if it computes with integers for which the ranges of element types are made."""
    is_foldable: bool = True
    """True if it is computed where its inputs are constants."""
    implied_defaults: Mapping[str | int, ImpliedDefault] = field(default_factory=dict)
    """Values that an absent attribute or optional input stands for, by its name or position, where they depend on the
    other inputs."""
    result_dtype_source: ResultDtypeSource = ResultDtypeSource.SCHEMA
    index_outputs: frozenset[int] = frozenset()
    """Outputs that are sizes, or positions along an axis: integers that no arithmetic computes."""

    # what real numbers do not say of floats

    deciding_operand: int = 0
    """First operand at whose values it jumps."""
    rounds_between_jumps: bool = False
    """True if it also rounds where it jumps."""
    is_saturating: bool = False
    """True if it maps many numbers that are far apart to one float, or 0."""
    factor_count: int = 0
    """Number of factors among its operands in each product: 1 of each operand, or 2 of one."""
    constant_effect: ConstantEffect = ConstantEffect.NOTHING
    scalar_attributes: frozenset[str] = frozenset()
    """Attributes that are numbers beside operands."""
    summation_length: SummationLength = SummationLength.NONE

    # how models with it are made smaller and faster

    weight: int = 100
    """Its share of the strict measure that makes simplification end (not a cost: that is measured).

    A simplifying rewrite must make the sum over the nodes smaller. Of two forms of one thing, the one that rules are
    written for, and that ORT fuses, weighs less.
    """
    cost: OperatorCost = field(default_factory=OperatorCost)
    is_slicing: bool = False
    """True if replacing such operators by others of the kind gains nothing by itself."""
    is_row_wise: bool = False
    """True if some rows of its result are computed from the same rows of its operands."""
    max_inferred_sizes: int | None = None
    """Number of unknown sizes that it infers by itself, where it is given sizes when the model runs."""

    # the inputs with which models and examples are run

    operand_roles: Mapping[int, OperandRole] = field(default_factory=dict)
    """The roles of its inputs."""
    table_inputs: tuple[int, ...] = ()
    """Inputs whose first axis is indexed, where that is no axis of the first input."""
    indexes_all_axes: bool = False
    """True if indices lie in several axes of the first input, whatever `axis` says."""
    is_value_preserving: bool = False
    """True if the values of its first operand pass unchanged, or nearly so, though it does not select them."""
    is_concatenation: bool = False
    """True if it joins any number of operands along an axis, whose values pass as they are."""
    observes_nonfinite: bool = False
    """True if models use it to tell infinities and NaN from other numbers, or to mask with them."""
    propagates_nonfinite: bool = False
    """True if it computes each element from one of each operand, infinities and NaN included."""
    extreme_operands: ExtremeOperands = ExtremeOperands.NONE
    divides_integers: bool = False
    """True if integers that it divides by 0 end the process."""
    factor_inputs: str = ""
    """The inputs of a product of 8-bit integers: `a` and `b` stand where the factors do, `one` and `step` for scales,
    `p` and `q` for zero points."""
    spatial_rank: int = 0
    """Number of spatial axes that the factors of such a product have in a trial."""
    may_compute_narrower: bool = False
    """True if ONNX Runtime may compute it, or what surrounds it, in a narrower type than written."""
    has_data_races: bool = False
    """True if threads may write to one place."""
    fails_on_empty: bool = False
    """True if ONNX Runtime has kernels for it that divide by the size of an axis: an empty one ends the process."""
    proposals: Mapping[str, Proposal] = field(default_factory=dict)
    """Proposals for values of its attributes, and of inputs that are numbers, that make it defined."""
    weights_input: int | None = None
    """Input for weights, one axis of which is as long as one of the first input."""
    allows_any_scale: bool = False
    """True if it is defined for any scale, also one that is not above 0."""
    shape_input: int | None = None
    """The input that says a shape."""
    requires_spatial_axes: bool = False
    """True if it runs over the spatial axes of images: it has no meaning for matrices and vectors."""

    @property
    def is_exactly_commutative(self) -> bool:
        """True if two operands may be swapped bit for bit; of 0.0 and -0.0, Max takes one by their places."""
        return self.is_commutative and not self.deviating_dtypes

    @property
    def is_movement(self) -> bool:
        """True if it moves elements and computes none, whatever its attributes."""
        return self.is_exact and self.reference_fidelity is ReferenceFidelity.EVERYWHERE

    @property
    def is_denoted(self) -> bool:
        """True if it has a meaning."""
        return self.denotation is not no_denotation

    @property
    def has_poles(self) -> bool:
        """True if it makes infinities of ordinary numbers, at the poles of its denotation, and no NaN there."""
        return self.pole_operand is not None and not self.may_produce_nan

    @property
    def is_casting(self) -> bool:
        """True if it casts to an element type that is not determined by that of its first input."""
        return self.result_dtype_source in (ResultDtypeSource.TARGET, ResultDtypeSource.LIKE)

    @property
    def is_partial(self) -> bool:
        """True if it is undefined at some numbers."""
        return self.has_poles or self.may_produce_nan

    @property
    def is_rounding(self) -> bool:
        """True if it rounds floats."""
        return (self.rounding_effect is RoundingEffect.ROUNDS or self.rounds_between_jumps) and not self.is_movement
