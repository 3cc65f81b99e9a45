"""The signs of values, read off what computes them: enough to see that no divisor is zero."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntFlag
from functools import lru_cache, reduce
from operator import and_

from graphopt.expr.dims import DerivedAtom, Dim, SymbolicDim, lower_bound
from graphopt.expr.expressions import Call, Expr, Factor, Fold, IntegerValue, TensorElement, Term, walk_factors
from graphopt.expr.integers import TRUE, isolated_interner
from graphopt.operators.symbolic_shapes import ModelOpContext, NodeQuery, first_output_element


class Sign(IntFlag):
    """Signs that all elements of a value have, once rounded: a positive number may become 0.

    An axis is taken to have elements.
    """

    UNKNOWN = 0
    NONNEGATIVE = 1
    NONZERO = 2
    POSITIVE = 3


@lru_cache(4096)
def infer_sign(question: NodeQuery, given: tuple[Sign, ...], same: tuple[int, ...]) -> tuple[Sign, bool]:
    """Return the sign of an operator's elements by those of its operands, and whether some may be infinite.

    They may be where it may divide by zero, or take a logarithm of it. `same` gives, for each position, the first one
    that reads the same value.
    """
    with isolated_interner():
        found = first_output_element(question)
        if found is None:
            return Sign.UNKNOWN, True
        node, element = found
        signs = _SignAnalysis(node, given, same)
        return signs.sign_of(element), any(map(signs.is_pole, _calls_in(element)))


def _calls_in(value: Expr) -> Iterator[Call]:
    return (factor for factor in walk_factors(value) if isinstance(factor, Call))


@dataclass(frozen=True)
class _SignAnalysis:
    """The signs in the formula of one node, whose tensors are named by their positions."""

    node: ModelOpContext
    operand_signs: Sequence[Sign]
    equal_operands: Sequence[int]

    def is_pole(self, call: Call) -> bool:
        """Return whether a function may be infinite there."""
        match call:
            case Call("Inverse", (x,)):
                return not self.sign_of(x) & Sign.NONZERO
            case Call("Log", (x,)):
                return self.sign_of(x) != Sign.POSITIVE
            case Call("Pow", (x, n)):
                return not self.sign_of(n) & Sign.NONNEGATIVE and self.sign_of(x) != Sign.POSITIVE
        return call.function == "Atanh"

    def sign_of(self, value: Expr) -> Sign:
        signs = [self._term_sign(term) for term in value.terms]
        if len(signs) == 1:
            return signs[0]
        if not all(sign & Sign.NONNEGATIVE for sign in signs):
            return Sign.UNKNOWN
        return Sign.POSITIVE if any(sign & Sign.NONZERO for sign in signs) else Sign.NONNEGATIVE

    def _term_sign(self, term: Term) -> Sign:
        found = Sign.POSITIVE if term.coefficient > 0 else Sign.NONZERO
        for factor, times in Counter(map(self._canonical_read, term.factors)).items():
            found &= self._factor_sign(factor) | (Sign.NONNEGATIVE if times % 2 == 0 else Sign.UNKNOWN)
        adds_up = term.guard != TRUE or (term.binders and found != Sign.POSITIVE)
        return found & Sign.NONNEGATIVE if adds_up else found

    def _canonical_read(self, factor: Factor) -> Factor:
        """Return a read of a tensor by the first position that reads it."""
        return (
            replace(factor, tensor=str(self.equal_operands[int(factor.tensor)]))
            if isinstance(factor, TensorElement)
            else factor
        )

    def _factor_sign(self, factor: Factor) -> Sign:
        match factor:
            case TensorElement(tensor=position):
                return self.operand_signs[int(position)]
            case IntegerValue(integer=size):
                return _size_sign(self.node.to_dim(size))
            case Fold():
                return self._fold_sign(factor)
            case Call("Exp"):
                return Sign.POSITIVE
            case Call("Inverse" | "Sqrt" | "Cast", (x, *_)):
                rounds_to_zero = "truncated" in factor.params or any(each.function == "Exp" for each in _calls_in(x))
                return self.sign_of(x) & (Sign.NONNEGATIVE if rounds_to_zero else Sign.POSITIVE)
            case Call("Abs", (x,)):
                return self.sign_of(x) | Sign.NONNEGATIVE
            case Call("Log", (x,)):
                return self.sign_of(x - 1) & Sign.NONNEGATIVE
            case Call("Pow", (x, n)):
                even = n.constant is not None and n.constant % 2 == 0
                return Sign.NONNEGATIVE if even else self.sign_of(x) & Sign.POSITIVE
        return Sign.UNKNOWN

    def _fold_sign(self, fold: Fold) -> Sign:
        """Return the sign of a maximum, for which one branch that always counts is enough, or of another fold."""
        signs = [self.sign_of(piece.body) for piece in fold.branches]
        certain = [sign for sign, piece in zip(signs, fold.branches, strict=True) if piece.guard == TRUE]
        if fold.monoid == "max" and (highest := max((s for s in certain if s & Sign.NONNEGATIVE), default=None)):
            return highest
        return reduce(and_, signs)


def _size_sign(dim: Dim | None) -> Sign:
    """Return the sign of a size: an axis is taken to have elements; a quotient, remainder or difference may be 0."""
    if isinstance(dim, SymbolicDim) and all(times > 0 for _, times in dim.terms):
        is_made = any(isinstance(atom, DerivedAtom) for atom in dim.atoms)
        return Sign.NONNEGATIVE if is_made and lower_bound(dim) == 0 else Sign.POSITIVE
    least = None if dim is None else lower_bound(dim)
    if least is None or least < 0:
        return Sign.UNKNOWN
    return Sign.POSITIVE if least else Sign.NONNEGATIVE
