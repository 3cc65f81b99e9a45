"""When two values are equal for all integers: terms cancel, sums by a bijection of what they run over.

The bijection is derived by solving the equations between the arguments of equal factors; that it is one, and that
domains and bodies agree under it, is then proved. What is not proved equal is not claimed to differ.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice

from graphopt.base.integers import (
    FALSE,
    TRUE,
    Fact,
    alone,
    conj,
    conjuncts,
    eq,
    ge,
    literals,
    negate,
    ordered,
    symbols,
)
from graphopt.base.rebuilding import Substitution, rebuild_formula
from graphopt.base.session import current
from graphopt.base.symbolic import (
    Call,
    Element,
    Factor,
    Fold,
    Monoid,
    Number,
    Piece,
    Read,
    Term,
    Value,
    Whole,
    call,
    fold,
    integer,
    lift,
    multiplied,
    number,
)
from graphopt.base.tensors import as_size, bind
from graphopt.base.types import DType
from graphopt.operators.classes import entry
from graphopt.operators.placing import FIRST, NEXT
from graphopt.operators.reductions import PLACES
from graphopt.verifier.bijections import (
    SPLITS,
    Map,
    as_term,
    at,
    composed,
    composites,
    counted,
    cuts,
    domain,
    eliminated,
    equations_of,
    extent_key,
    has_sums,
    least_indices,
    only_factor,
    pairings_of,
    params_equal,
    range_of,
    ranges,
    sizes_equal,
    solution_of,
    with_facts,
    with_radix,
    without_names,
)
from graphopt.verifier.context import Context
from graphopt.verifier.covering import covering_index
from graphopt.verifier.reals import add_up_to_zero, has_cases
from graphopt.verifier.signs import Signs

FIRST_OF = {NEXT[largest]: FIRST[largest] for largest in FIRST}
WHOLE = {"Add!": 1, "Sub!": -1}
"""Sums of integers in the exact model, and the sign of what is added."""
GREATEST: Mapping[str, Monoid] = {PLACES["ArgMax"]: "max", PLACES["ArgMin"]: "min"}
"""Which fold gives the element at the place that an operator returns."""


@dataclass(frozen=True)
class Equality:
    """Proves values equal; `signs` is what is known of the elements of constants."""

    signs: Signs

    def equal(self, left: Value, right: Value, known: Context) -> bool:
        """Return whether the values are equal wherever what is known holds."""
        if left == right:
            return True
        question = left, right
        if question not in known.equated:
            known.equated[question] = self._equal(left, right, known)
        return known.equated[question]

    def _equal(self, left: Value, right: Value, known: Context) -> bool:
        denied = (replace(term, coefficient=-term.coefficient) for term in self.settle(right, known))
        terms = self._same_facts([*self.settle(left, known), *denied], known)
        if self._cancel(terms, known):
            return True
        return current().arithmetic is None and has_cases(terms) and add_up_to_zero(terms, known, self)

    def _same_facts(self, terms: list[Term], known: Context) -> list[Term]:
        """Return the terms with equal truth values in their guards as one object each: the solver compares only
        names."""
        chosen: dict[Value, Value] = {}
        for part in (p for term in terms for p in literals(term.guard)):
            if isinstance(part, Fact) and part.subject not in chosen:
                same = (v for v in chosen.values() if self.equal(part.subject, v, known))
                chosen[part.subject] = next(same, part.subject)
        if all(old == new for old, new in chosen.items()):
            return terms
        return [replace(term, guard=with_facts(term.guard, chosen)) for term in terms]

    def _cancel(self, terms: list[Term], known: Context) -> bool:
        """Return whether the terms add up to zero.

        Numbers that are equal are added up first: what several of them make may be what another one denies.
        """
        terms, splits = self._collected(terms, known) if current().arithmetic is None else terms, 0
        while terms:
            first, terms = self._gather(terms[0], terms[1:], known)
            if first.coefficient == 0 or not domain(first, known).possible:
                continue
            if splits == SPLITS or (rest := self._overlap(first, terms, known)) is None:
                return False
            terms, splits = rest, splits + 1
        return True

    def _collected(self, terms: list[Term], known: Context) -> list[Term]:
        """Return the sums of equal terms that are not zero: of those first that differ in names alone."""
        alike: dict[Hashable, Term] = {}
        for term in terms:
            name = without_names(term)
            same = alike.get(name)
            alike[name] = term if same is None else replace(same, coefficient=same.coefficient + term.coefficient)
        left, found = [term for term in alike.values() if term.coefficient], []
        while left:
            first, left = self._gather(left[0], left[1:], known)
            if first.coefficient and domain(first, known).possible:
                found.append(first)
        return found

    def _gather(self, first: Term, others: Sequence[Term], known: Context) -> tuple[Term, list[Term]]:
        """Return the term with all equal ones added to it, and those that are left."""
        left = []
        for other in others:
            if any(self._same_domain(first, other, pair, known) for pair in self._alignments(first, other, known)):
                first = replace(first, coefficient=first.coefficient + other.coefficient)
            else:
                left.append(other)
        return first, left

    def _overlap(self, first: Term, others: list[Term], known: Context) -> list[Term] | None:
        """Where a term equals another on a part of its domain: both split into that part and the rest."""
        for position, other in enumerate(others):
            if (first.coefficient > 0) == (other.coefficient > 0):
                continue
            for there, back in self._alignments(first, other, known):
                if not self._inverse(first, other, there, back, known):
                    continue
                both = replace(
                    first,
                    coefficient=first.coefficient + other.coefficient,
                    guard=conj(first.guard, at(range_of(other), there)),
                )
                parts = [
                    replace(first, guard=conj(first.guard, negate(at(range_of(other), there)))),
                    replace(other, guard=conj(other.guard, negate(at(range_of(first), back)))),
                    *([both] if both.coefficient else []),
                ]
                fewer = [p for p in parts if p.guard != FALSE and domain(p, known).possible]
                if len(fewer) < 2 or (both.coefficient == 0 and domain(both, known).possible):
                    return [*fewer, *others[:position], *others[position + 1 :]]
        return None

    # -- aligning two sums

    def _alignments(self, left: Term, right: Term, known: Context) -> Iterator[tuple[Map, Map]]:
        """Yield maps of the binders, there and back, under which the factors of two terms are equal."""
        if len(left.factors) != len(right.factors):
            return
        for order in pairings_of(left.factors, right.factors):
            pairs = [(f, right.factors[i]) for f, i in zip(left.factors, order, strict=True)]
            there, back = self._maps(left, right, pairs, known)
            if there is None or back is None:
                continue
            inner = domain(left, known).knowing(at(range_of(right), there))
            if all(self._factors_equal(f, g, there, inner) for f, g in pairs):
                yield there, back

    def _ways_there(self, left: Term, right: Term, known: Context) -> Iterator[Map]:
        """Yield maps of the right binders to the left ones under which the factors are equal, one to one or not."""
        if len(left.factors) != len(right.factors):
            return
        for order in pairings_of(left.factors, right.factors):
            pairs = [(f, right.factors[i]) for f, i in zip(left.factors, order, strict=True)]
            equations = [e for f, g in pairs for e in equations_of(f, g)]
            there = solution_of(equations, right.binders, left.binders, domain(left, known)) if right.binders else {}
            if there is not None:
                inner = domain(left, known).knowing(at(range_of(right), there))
                if all(self._factors_equal(f, g, there, inner) for f, g in pairs):
                    yield there

    def _maps(
        self, left: Term, right: Term, pairs: list[tuple[Factor, Factor]], known: Context
    ) -> tuple[Map | None, Map | None]:
        if not left.binders and not right.binders:
            return {}, {}
        equations = [e for f, g in pairs for e in equations_of(f, g)]
        there = solution_of(equations, right.binders, left.binders, domain(left, known))
        back = solution_of([(b, a) for a, b in equations], left.binders, right.binders, domain(right, known))
        return there, back

    def _same_domain(self, left: Term, right: Term, maps: tuple[Map, Map], known: Context) -> bool:
        """Return whether the maps go from the whole of one domain to the whole of the other, one to one."""
        there, back = maps
        return (
            domain(left, known).proves(at(range_of(right), there))
            and domain(right, known).proves(at(range_of(left), back))
            and self._inverse(left, right, there, back, known)
        )

    def _inverse(self, left: Term, right: Term, there: Map, back: Map, known: Context) -> bool:
        """Return whether each map undoes the other, where both are defined."""
        inside_left = domain(left, known).knowing(at(range_of(right), there))
        inside_right = domain(right, known).knowing(at(range_of(left), back))
        return all(inside_left.proves(eq(alone(b), composed(back[b], there))) for b, _ in left.binders) and all(
            inside_right.proves(eq(alone(b), composed(there[b], back))) for b, _ in right.binders
        )

    # -- factors

    def _factors_equal(self, left: Factor, right: Factor, there: Map, known: Context) -> bool:
        moved = right.rebuild(Substitution(there)) if there else right
        if isinstance(moved, Value):
            alone = only_factor(moved)
            return self.equal(lift(left), moved, known) if alone is None else self.alike(left, alone, known)
        return self.alike(left, moved, known)

    def alike(self, left: Factor, right: Factor, known: Context) -> bool:
        if left == right:
            return True
        match left, right:
            case Read(), Read():
                return left.tensor == right.tensor and sizes_equal(left.index, right.index, known)
            case Number(), Number():
                return known.proves(eq(left.of, right.of))
            case Call(), Call():
                return self._calls_equal(left, right, known)
            case Fold(), Fold():
                return left.monoid == right.monoid and self._folds_equal(left, right, known)
            case Element(), Element():
                return self._elements_equal(left, right, known)
        return False

    def _calls_equal(self, left: Call, right: Call, known: Context) -> bool:
        if left.function != right.function or not params_equal(left.params, right.params, known):
            return False
        orders = [right.args]
        if len(right.args) == 2 and entry(left.function.rstrip("!~")).commutes_exactly:
            orders.append(right.args[::-1])
        return any(all(self.equal(a, b, known) for a, b in zip(left.args, args, strict=True)) for args in orders)

    def _elements_equal(self, left: Element, right: Element, known: Context) -> bool:
        if left.operator != right.operator or len(left.operands) != len(right.operands):
            return False
        if not params_equal(left.params, right.params, known) or not sizes_equal(left.index, right.index, known):
            return False
        pairs = list(zip(left.operands, right.operands, strict=True))
        if left.operator.startswith("place of"):
            pairs = [(self._in_order(a, known), self._in_order(b, known)) for a, b in pairs]
        return all(self._wholes_equal(a, b, known) for a, b in pairs)

    def _in_order(self, row: Whole | None, known: Context) -> Whole | None:
        """Return a row of numbers for one whose order is the same."""
        if row is None:
            return None
        (along,) = row.index
        inner = known.knowing(ranges(((along, row.shape[0]),)))
        return replace(row, body=self.signs.in_order(row.body, along, inner))

    def _wholes_equal(self, left: Whole | None, right: Whole | None, known: Context) -> bool:
        if left is None or right is None:
            return left is right
        if len(left.shape) != len(right.shape) or not sizes_equal(left.shape, right.shape, known):
            return False
        index, binders = bind(left.shape, "i")
        bodies = (w.body.rebuild(Substitution(dict(zip(w.index, index, strict=True)))) for w in (left, right))
        one, other = bodies
        return self.equal(one, other, known.knowing(ranges(binders)))

    def _folds_equal(self, left: Fold, right: Fold, known: Context) -> bool:
        if left.monoid == "prod":
            denied = (replace(as_term(piece), coefficient=Fraction(-1)) for piece in right.pieces)
            return self._cancel([*map(as_term, left.pieces), *denied], known)
        return self.covered(left.pieces, right.pieces, known) and self.covered(right.pieces, left.pieces, known)

    def covered(self, pieces: Iterable[Piece], others: Sequence[Piece], known: Context) -> bool:
        """Return whether each element of one side is one of the other: greatest and least do not count repetitions."""
        return all(self._is_covered(as_term(piece), [as_term(o) for o in others], known) for piece in pieces)

    def _is_covered(self, term: Term, others: Sequence[Term], known: Context) -> bool:
        for other in others:
            for there in self._meetings(term, other, known):
                reached = at(range_of(other), there)
                if domain(term, known).proves(reached):
                    return True
                term = replace(term, guard=conj(term.guard, negate(reached)))
        return not domain(term, known).possible

    def _meetings(self, term: Term, other: Term, known: Context) -> Iterator[Map]:
        """Yield where in the other's range its factors are those of the term.

        That is by an alignment, anywhere if all are, or at some place of several.
        """
        yield from islice(self._ways_there(term, other, known), 1)
        pairs = list(zip(term.factors, other.factors, strict=True))

        def meets(there: Map) -> bool:
            inner = domain(term, known).knowing(at(range_of(other), there))
            return all(self._factors_equal(f, g, there, inner) for f, g in pairs)

        least = least_indices(other)
        if least and meets(least):
            yield least
        equations = [equation for f, g in pairs for equation in equations_of(f, g)]
        some = covering_index(equations, other.binders, range_of(other), domain(term, known))
        if some is not None and meets(some):
            yield some

    # -- normal form under what is known

    def settle(self, value: Value, known: Context) -> list[Term]:
        """Return the terms of a value, simplified by what is known; those that are nowhere defined are left out."""
        if value not in known.settled:
            known.settled[value] = [done for term in value.terms for done in self._settled(term, known, 8)]
        found: list[Term] = known.settled[value]
        return found

    def _settled(self, term: Term, known: Context, fuel: int) -> Iterator[Term]:
        inner = domain(term, known)
        if FALSE in inner.facts:
            return
        mapping, binders, guard = eliminated(term, inner)
        simple = self._rebuilt(term, mapping, inner)
        for new in simple.terms:
            merged = Term(
                term.coefficient * new.coefficient, new.factors, binders + new.binders, conj(guard, new.guard)
            )
            merged = self.signs.cancelled(merged, domain(merged, known), self)
            merged = self.signs.over_itself(merged, known, self)
            merged = counted(merged, known)
            split = with_radix(merged)
            if split is not None:
                merged = split
            if fuel and (mapping or split is not None or extent_key(merged) != extent_key(term)):
                yield from self._settled(merged, known, fuel - 1)
            else:
                yield merged

    def _rebuilt(self, term: Term, mapping: Map, inner: Context) -> Value:
        """Return the product of the factors, with everything that is known used in them."""
        change = Substitution(mapping)
        result = number(1)
        for factor in term.factors:
            moved = lift(factor.rebuild(change)).rebuild(inner)
            result = multiplied(result, self._deep(moved, inner))
        return result

    def _deep(self, value: Value, known: Context) -> Value:
        """Return a rebuilt factor with what is inside of it settled too."""
        factor = only_factor(value)
        if isinstance(factor, Element):
            return self._of_greatest(factor, known)
        if isinstance(factor, Call) and factor.params == (DType.INT64,) and factor.function in WHOLE:
            return _whole_number(factor, known) or value
        if isinstance(factor, Call) and (factor.function == "Inverse" or has_sums(factor)):
            args = [Value(tuple(self.settle(arg, known))) for arg in factor.args]
            value = call(factor.function, *args, params=factor.params)
            factor = only_factor(value)
        if isinstance(factor, Fold):
            pieces = [p for piece in factor.pieces for p in self._piece(piece, known)]
            is_product = factor.monoid == "prod"
            return fold(
                factor.monoid,
                [p if is_product and p.body.constant not in (0, 1) else _without_repetition(p, known) for p in pieces],
            )
        if isinstance(factor, Call) and factor.function == "Exp":
            return self.signs.exp_of_log(factor, known)
        return value

    def _of_greatest(self, element: Element, known: Context) -> Value:
        """Return the greatest element for what lies at its place, and this place for that of the first in order."""
        match element:
            case Element(operator, (), (Whole() as row,), (rank,)) if operator in FIRST_OF:
                if known.proves(eq(rank)):
                    return lift(Element(FIRST_OF[operator], (0,), (row,), ()))
            case Element("Gather", (), (Whole() as row, Whole(body=where)), ()):
                place = Value(tuple(self.settle(where, known)))
                match only_factor(place):
                    case Element(operator, (_,), (along,)) if operator in GREATEST:
                        if self._wholes_equal(row, along, known) and known.proves(ge(row.shape[0], 1)):
                            binders = tuple(zip(row.index, row.shape, strict=True))
                            return fold(GREATEST[operator], [Piece(binders, TRUE, row.body)])
        return lift(element)

    def _piece(self, piece: Piece, known: Context) -> Iterator[Piece]:
        """Yield a piece without binders that can have one value only, and without what is nowhere."""
        inner = domain(as_term(piece), known)
        if FALSE in inner.facts:
            return
        mapping, binders, guard = eliminated(as_term(piece), inner)
        body = Value(tuple(self.settle(piece.body.rebuild(Substitution(mapping)), inner)))
        cut = next(cuts(composites(body), binders), None)
        if cut is not None:
            change, others = Substitution({cut.binder: cut.size}), (p for p in binders if p[0] != cut.binder)
            apart = Piece((*others, *cut.parts), rebuild_formula(guard, change), body.rebuild(change))
            yield from self._piece(apart, known)
            return
        kept = conj(*(part for part in ordered(conjuncts(guard)) if not known.knowing(ranges(binders)).proves(part)))
        yield Piece(binders, kept, body)


def _whole_number(sum_: Call, known: Context) -> Value | None:
    """Return a sum or difference of integers that cannot wrap, because of their signs."""
    first, second = map(as_size, sum_.args)
    if first is None or second is None:
        return None
    second = second * WHOLE[sum_.function]
    if any(known.proves(conj(ge(first * sign), ge(second * -sign))) for sign in (1, -1)):
        return integer(first + second)
    return None


def _without_repetition(piece: Piece, known: Context) -> Piece:
    """Return the piece without binders on which nothing depends, of which there are some: what is counted twice is no
    more, nor is a product of 0 or of 1."""
    used = piece.guard.symbols.union(piece.body.symbols, *(symbols(extent) for _, extent in piece.binders))
    kept = (pair for pair in piece.binders if pair[0] in used or not known.proves(ge(pair[1], 1)))
    return replace(piece, binders=tuple(kept))
