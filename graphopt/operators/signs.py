"""The signs of values, read off what computes them: enough to see that nothing is divided by zero."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntFlag
from functools import lru_cache, reduce
from operator import and_

from graphopt.base.integers import TRUE, fresh_integers
from graphopt.base.sizes import Dim, Made, Sym, lower_bound
from graphopt.base.symbolic import Call, Factor, Fold, Number, Read, Term, Value
from graphopt.operators.known import ModelNode, Question, element_of


class Sign(IntFlag):
    """What is known of the sign of all elements of a value, as they are rounded.

    The probability of what is masked is 0. Of an axis without elements there is nothing to be said.
    """

    UNKNOWN = 0
    NOT_NEGATIVE = 1
    NOT_ZERO = 2
    POSITIVE = 3


@lru_cache(4096)
def told(question: Question, given: tuple[Sign, ...], same: tuple[int, ...]) -> tuple[Sign, bool]:
    """Return the sign of an operator's elements by those of its operands, and whether some may be infinite.

    They may where it divides by zero, or takes a logarithm of it, for all that is known of its operands; `same` says in
    which position each is read first.
    """
    with fresh_integers():
        found = element_of(question)
        if found is None:
            return Sign.UNKNOWN, True
        node, element = found
        signs = _Signs(node, given, same)
        return signs.of_value(element), any(map(signs.is_pole, _calls(element)))


def _calls(value: Value) -> Iterator[Call]:
    for factor in (factor for term in value.terms for factor in term.factors):
        inner = factor.args if isinstance(factor, Call) else ()
        inner = tuple(piece.body for piece in factor.pieces) if isinstance(factor, Fold) else inner
        yield from [factor] if isinstance(factor, Call) else []
        for part in inner:
            yield from _calls(part)


@dataclass(frozen=True)
class _Signs:
    """The signs in the formula of one node, whose tensors are called by their positions."""

    node: ModelNode
    given: Sequence[Sign]
    same: Sequence[int]

    def is_pole(self, call: Call) -> bool:
        """Return whether a function may be infinite there."""
        match call:
            case Call("Inverse", (x,)):
                return not self.of_value(x) & Sign.NOT_ZERO
            case Call("Log", (x,)):
                return self.of_value(x) != Sign.POSITIVE
            case Call("Pow", (x, n)):
                return not self.of_value(n) & Sign.NOT_NEGATIVE and self.of_value(x) != Sign.POSITIVE
        return call.function == "Atanh"

    def of_value(self, value: Value) -> Sign:
        signs = [self._of_term(term) for term in value.terms]
        if len(signs) == 1:
            return signs[0]
        if not all(sign & Sign.NOT_NEGATIVE for sign in signs):
            return Sign.UNKNOWN
        return Sign.POSITIVE if any(sign & Sign.NOT_ZERO for sign in signs) else Sign.NOT_NEGATIVE

    def _of_term(self, term: Term) -> Sign:
        found = Sign.POSITIVE if term.coefficient > 0 else Sign.NOT_ZERO
        for factor, times in Counter(map(self._as_read, term.factors)).items():
            found &= self._of_factor(factor) | (Sign.NOT_NEGATIVE if times % 2 == 0 else Sign.UNKNOWN)
        adds_up = term.guard != TRUE or (term.binders and found != Sign.POSITIVE)
        return found & Sign.NOT_NEGATIVE if adds_up else found

    def _as_read(self, factor: Factor) -> Factor:
        """Return a tensor that is read in two positions by the first of them."""
        return replace(factor, tensor=str(self.same[int(factor.tensor)])) if isinstance(factor, Read) else factor

    def _of_factor(self, factor: Factor) -> Sign:
        match factor:
            case Read(tensor=position):
                return self.given[int(position)]
            case Number(of=size):
                return _of_size(self.node.dim(size))
            case Fold():
                return self._of_fold(factor)
            case Call("Exp"):
                return Sign.POSITIVE
            case Call("Inverse" | "Sqrt" | "Cast", (x, *_)):
                rounds_to_zero = "truncated" in factor.params or any(each.function == "Exp" for each in _calls(x))
                return self.of_value(x) & (Sign.NOT_NEGATIVE if rounds_to_zero else Sign.POSITIVE)
            case Call("Abs", (x,)):
                return self.of_value(x) | Sign.NOT_NEGATIVE
            case Call("Log", (x,)):
                return self.of_value(x - 1) & Sign.NOT_NEGATIVE
            case Call("Pow", (x, n)):
                even = n.constant is not None and n.constant % 2 == 0
                return Sign.NOT_NEGATIVE if even else self.of_value(x) & Sign.POSITIVE
        return Sign.UNKNOWN

    def _of_fold(self, fold: Fold) -> Sign:
        """Of the greatest it is enough to know one that is among them whatever there is."""
        signs = [self.of_value(piece.body) for piece in fold.pieces]
        certain = [sign for sign, piece in zip(signs, fold.pieces, strict=True) if piece.guard == TRUE]
        if fold.monoid == "max" and (highest := max((s for s in certain if s & Sign.NOT_NEGATIVE), default=None)):
            return highest
        return reduce(and_, signs)


def _of_size(dim: Dim | None) -> Sign:
    """Return the sign of a size: an axis is taken to have elements; a quotient, remainder or difference may be 0."""
    if isinstance(dim, Sym) and all(times > 0 for _, times in dim.terms):
        is_made = any(isinstance(atom, Made) for atom in dim.atoms)
        return Sign.NOT_NEGATIVE if is_made and lower_bound(dim) == 0 else Sign.POSITIVE
    least = None if dim is None else lower_bound(dim)
    if least is None or least < 0:
        return Sign.UNKNOWN
    return Sign.POSITIVE if least else Sign.NOT_NEGATIVE
