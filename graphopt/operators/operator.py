"""What is known of an operator: its denotation, and the facts that are not read off it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from graphopt.base.types import DType
from graphopt.operators.node import Denotation

FLOATS = frozenset(dtype for dtype in DType if dtype.is_float)


class Reach(Enum):
    """How far from zero the elements of a result may lie, by how far those do that are read."""

    PASSED = auto()
    """As far."""
    BOUNDED = auto()
    """They are finite whatever is read (or NaN)."""
    CLAMPED = auto()
    """As far, but no infinity passes."""
    MIXED = auto()
    """Many products are added up: what an infinity makes of them is NaN, or an infinity everywhere."""
    ADDED = auto()
    """Two huge numbers make an infinity."""
    MULTIPLIED = auto()
    """A huge number and one greater than 1 make an infinity."""
    GROWN = auto()
    """A huge number makes an infinity."""


class Reference(Enum):
    """Where the result of `onnx.reference` is ONNX Runtime's, bit for bit, however that splits and orders its work."""

    NOWHERE = auto()
    ON_INTEGERS = auto()
    EVERYWHERE = auto()
    """It moves elements, or rounds once if at all, as IEEE 754 says."""


class Rounding(Enum):
    """What an operator does to floats that were rounded."""

    ADDED = auto()
    """It rounds, too."""
    KEPT = auto()
    """It rounds nothing, and what was rounded is in its result."""
    PLACED = auto()
    """It tells a place. Where two elements are equal but for rounding, the place of either is as good, if that is the
    result of a rule; what is looked up or compared there may be anything."""
    JUMPS = auto()
    """Its result jumps."""


@dataclass(frozen=True, slots=True)
class Operator:
    """What is known of an operator: proofs, inference, folding and matching read it here, and nowhere else."""

    denotation: Denotation
    is_exact: bool = False
    """Whether its denotation holds bit for bit: it moves data, or computes each element by one function that is named.

    Elementwise operators are exact, whatever this says.
    """
    keeps: bool = False
    """Whether its elements are elements of its first input."""
    is_view: bool = False
    """Whether they are all of these, in their order."""
    reads_sizes: bool = False
    """Whether of what it reads only the shape counts."""
    commutes: bool = False
    """Whether its operands may be swapped."""
    adds_products: bool = False
    """Whether it is sums and products alone, which hold for infinities, too, as far as they are only reordered."""
    reach: Reach = Reach.PASSED
    has_poles: bool = False
    """Whether it makes infinities of ordinary numbers, where its denotation has no value."""
    has_gaps: bool = False
    """Whether it makes NaN of other ordinary numbers."""
    reference: Reference = Reference.NOWHERE
    departs: frozenset[DType] = frozenset()
    """Element types in which ONNX Runtime's kernel departs from what the exact meaning says.

    What it makes of the same operands is the same, so a rule keeps the bits where it keeps the node. Where it makes
    such a node, computes it on another tensor or does without it, the result is right, but not bit for bit.
    """
    minds_place: bool = False
    """Whether the kernel computes an element by other instructions within a vector than at its end."""
    rounding: Rounding = Rounding.ADDED
    """What it does to rounding, where it does not only move elements."""
    overflows: bool = False
    """Whether it overflows at moderate numbers: 89 in single and 12 in half precision."""
    added: int | None = None
    """An optional input that is added: of zeros it may as well be absent."""
    mask: int | None = None
    """An optional input that is added ahead of a softmax, in which ONNX Runtime's kernel takes the least number of its
    type for -inf."""

    packs: bool = False
    """Whether ONNX Runtime's kernel may take weights that are constants in another order than such that are computed,
    and so round otherwise: it multiplies matrices, or is not known."""

    @property
    def commutes_exactly(self) -> bool:
        """Whether two operands may be swapped bit for bit; of 0.0 and -0.0, Max takes one by their places."""
        return self.commutes and not self.departs

    @property
    def only_moves(self) -> bool:
        """Whether it moves elements and makes none of others, whatever its attributes are."""
        return self.is_exact and self.reference is Reference.EVERYWHERE

    @property
    def is_partial(self) -> bool:
        """Whether it has no value at some numbers."""
        return self.has_poles or self.has_gaps

    @property
    def rounds(self) -> bool:
        return self.rounding is Rounding.ADDED and not self.only_moves
