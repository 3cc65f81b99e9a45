"""When two values are equal for all integers: terms cancel, sums by a bijection of what they run over.

The bijection is derived by solving the equations between the arguments of equal factors; that it is one, and that
domains and bodies agree under it, is then proved. What is not proved equal is not claimed to differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain, islice, permutations, product
from typing import TypeAlias

from graphopt.verifier import symbolic
from graphopt.verifier.context import Context
from graphopt.verifier.integers import (
    FALSE,
    TRUE,
    And,
    Atom,
    Comparison,
    Fact,
    Formula,
    Int,
    Or,
    Size,
    Substitution,
    choice,
    conj,
    conjuncts,
    disj,
    divide,
    eq,
    ge,
    inside,
    literals,
    negate,
    ordered,
    polynomial,
    quotient,
    rebuild,
    rebuild_formula,
    solve,
    symbols,
)
from graphopt.verifier.reals import add_up_to_zero, has_cases
from graphopt.verifier.signs import Signs
from graphopt.verifier.symbolic import (
    Binders,
    Call,
    Element,
    Factor,
    Fold,
    Number,
    Piece,
    Read,
    Term,
    Value,
    Whole,
    bind,
    call,
    fold,
    integer,
    lift,
    multiplied,
    number,
)

COMMUTATIVE = frozenset({"Add", "Mul", "And", "Or", "Xor", "Equal", "BitwiseAnd", "BitwiseOr", "BitwiseXor"})
"""Functions that are not looked into (as in the exact model) and still give the same for swapped arguments."""

Map: TypeAlias = "Mapping[Atom, Size]"
_PAIRINGS = 24
_SPLITS = 6
FEW = 4
"""So many parts of an index are looked at one by one."""


@dataclass(frozen=True)
class Equality:
    """Proves values equal; `signs` is what is known of the elements of constants."""

    signs: Signs

    def equal(self, left: Value, right: Value, known: Context) -> bool:
        """Whether the values are equal wherever what is known holds."""
        if left == right:
            return True
        denied = (replace(term, coefficient=-term.coefficient) for term in self.settle(right, known))
        terms = self._same_facts([*self.settle(left, known), *denied], known)
        if self._cancel(terms, known):
            return True
        return symbolic.arithmetic is None and has_cases(terms) and add_up_to_zero(terms, known, self)

    def _same_facts(self, terms: list[Term], known: Context) -> list[Term]:
        """The terms with equal truth values in their guards as one object each: the solver compares only names."""
        chosen: dict[Value, Value] = {}
        for part in (p for term in terms for p in literals(term.guard)):
            if isinstance(part, Fact) and part.subject not in chosen:
                same = (v for v in chosen.values() if self.equal(part.subject, v, known))
                chosen[part.subject] = next(same, part.subject)
        if all(old == new for old, new in chosen.items()):
            return terms
        return [replace(term, guard=_with_facts(term.guard, chosen)) for term in terms]

    def _cancel(self, terms: list[Term], known: Context) -> bool:
        """Whether the terms add up to zero."""
        splits = 0
        while terms:
            first, terms = terms[0], terms[1:]
            first, terms = self._gather(first, terms, known)
            if first.coefficient == 0 or not domain(first, known).possible:
                continue
            if splits == _SPLITS or (rest := self._overlap(first, terms, known)) is None:
                return False
            terms, splits = rest, splits + 1
        return True

    def _gather(self, first: Term, others: Sequence[Term], known: Context) -> tuple[Term, list[Term]]:
        """The term with all equal ones added to it, and those that are left."""
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
                if len(fewer) < 2 or both.coefficient == 0:
                    return [*fewer, *others[:position], *others[position + 1 :]]
        return None

    # -- aligning two sums

    def _alignments(self, left: Term, right: Term, known: Context) -> Iterator[tuple[Map, Map]]:
        """Maps of the binders, there and back, under which the factors of two terms are equal."""
        if len(left.factors) != len(right.factors):
            return
        for order in _pairings(left.factors, right.factors):
            pairs = [(f, right.factors[i]) for f, i in zip(left.factors, order, strict=True)]
            there, back = self._maps(left, right, pairs, known)
            if there is None or back is None:
                continue
            inner = domain(left, known).knowing(at(range_of(right), there))
            if all(self._factors_equal(f, g, there, inner) for f, g in pairs):
                yield there, back

    def _maps(
        self, left: Term, right: Term, pairs: list[tuple[Factor, Factor]], known: Context
    ) -> tuple[Map | None, Map | None]:
        if not left.binders and not right.binders:
            return {}, {}
        equations = [e for f, g in pairs for e in _equations(f, g)]
        there = _solution(equations, right.binders, left.binders, domain(left, known))
        back = _solution([(b, a) for a, b in equations], left.binders, right.binders, domain(right, known))
        return there, back

    def _same_domain(self, left: Term, right: Term, maps: tuple[Map, Map], known: Context) -> bool:
        """Whether the maps go from the whole of one domain to the whole of the other, one to one."""
        there, back = maps
        return (
            domain(left, known).proves(at(range_of(right), there))
            and domain(right, known).proves(at(range_of(left), back))
            and self._inverse(left, right, there, back, known)
        )

    def _inverse(self, left: Term, right: Term, there: Map, back: Map, known: Context) -> bool:
        """Whether each map undoes the other, where both are defined."""
        inside_left = domain(left, known).knowing(at(range_of(right), there))
        inside_right = domain(right, known).knowing(at(range_of(left), back))
        return all(inside_left.proves(eq(own(b), _then(back[b], there))) for b, _ in left.binders) and all(
            inside_right.proves(eq(own(b), _then(there[b], back))) for b, _ in right.binders
        )

    # -- factors

    def _factors_equal(self, left: Factor, right: Factor, there: Map, known: Context) -> bool:
        moved = right.rebuild(Substitution(there)) if there else right
        if isinstance(moved, Value):
            alone = _alone(moved)
            return self.equal(lift(left), moved, known) if alone is None else self.alike(left, alone, known)
        return self.alike(left, moved, known)

    def alike(self, left: Factor, right: Factor, known: Context) -> bool:
        if left == right:
            return True
        match left, right:
            case Read(), Read():
                return left.tensor == right.tensor and _sizes_equal(left.index, right.index, known)
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
        if left.function != right.function or not _params_equal(left.params, right.params, known):
            return False
        orders = [right.args]
        if left.function.rstrip("!~") in COMMUTATIVE and len(right.args) == 2:
            orders.append(right.args[::-1])
        return any(all(self.equal(a, b, known) for a, b in zip(left.args, args, strict=True)) for args in orders)

    def _elements_equal(self, left: Element, right: Element, known: Context) -> bool:
        if left.operator != right.operator or len(left.operands) != len(right.operands):
            return False
        if not _params_equal(left.params, right.params, known) or not _sizes_equal(left.index, right.index, known):
            return False
        pairs = list(zip(left.operands, right.operands, strict=True))
        if left.operator.startswith("place of"):
            pairs = [(self._in_order(a, known), self._in_order(b, known)) for a, b in pairs]
        return all(self._wholes_equal(a, b, known) for a, b in pairs)

    def _in_order(self, row: Whole | None, known: Context) -> Whole | None:
        """A row of numbers for one whose order is the same."""
        if row is None:
            return None
        (along,) = row.index
        inner = known.knowing(ranges(((along, row.shape[0]),)))
        return replace(row, body=self.signs.in_order(row.body, along, inner))

    def _wholes_equal(self, left: Whole | None, right: Whole | None, known: Context) -> bool:
        if left is None or right is None:
            return left is right
        if len(left.shape) != len(right.shape) or not _sizes_equal(left.shape, right.shape, known):
            return False
        index, binders = bind(left.shape, "i")
        bodies = (w.body.rebuild(Substitution(dict(zip(w.index, index, strict=True)))) for w in (left, right))
        one, other = bodies
        return self.equal(one, other, known.knowing(ranges(binders)))

    def _folds_equal(self, left: Fold, right: Fold, known: Context) -> bool:
        if left.monoid == "prod":
            denied = (replace(_as_term(piece), coefficient=Fraction(-1)) for piece in right.pieces)
            return self._cancel([*map(_as_term, left.pieces), *denied], known)
        return self.covered(left.pieces, right.pieces, known) and self.covered(right.pieces, left.pieces, known)

    def covered(self, pieces: Iterable[Piece], others: Sequence[Piece], known: Context) -> bool:
        """Whether each element of one side is one of the other: greatest and least do not count repetitions."""
        return all(self._is_covered(_as_term(piece), [_as_term(o) for o in others], known) for piece in pieces)

    def _is_covered(self, term: Term, others: Sequence[Term], known: Context) -> bool:
        for other in others:
            for there in self._meetings(term, other, known):
                reached = at(range_of(other), there)
                if domain(term, known).proves(reached):
                    return True
                term = replace(term, guard=conj(term.guard, negate(reached)))
        return not domain(term, known).possible

    def _meetings(self, term: Term, other: Term, known: Context) -> Iterator[Map]:
        """Where in the other's range its factors are those of the term: by an alignment, or anywhere if all are."""
        yield from islice((there for there, _ in self._alignments(term, other, known)), 1)
        least = _least(other)
        inner = domain(term, known).knowing(at(range_of(other), least))
        pairs = zip(term.factors, other.factors, strict=True)
        if least and all(self._factors_equal(f, g, least, inner) for f, g in pairs):
            yield least

    # -- normal form under what is known

    def settle(self, value: Value, known: Context) -> list[Term]:
        """The terms of a value, simplified by what is known; those that are nowhere defined are left out."""
        if value not in known.settled:
            known.settled[value] = [done for term in value.terms for done in self._settled(term, known, 8)]
        found: list[Term] = known.settled[value]
        return found

    def _settled(self, term: Term, known: Context, fuel: int) -> Iterator[Term]:
        inner = domain(term, known)
        if FALSE in inner.facts:
            return
        mapping, binders, guard = _eliminated(term, inner)
        simple = self._rebuilt(term, mapping, inner)
        for new in simple.terms:
            merged = Term(
                term.coefficient * new.coefficient, new.factors, binders + new.binders, conj(guard, new.guard)
            )
            merged = self.signs.cancelled(merged, domain(merged, known), self)
            merged = self.signs.over_itself(merged, known, self)
            merged = _counted(merged, known)
            split = _radix(merged)
            if split is not None:
                merged = split
            if fuel and (mapping or split is not None or _size(merged) != _size(term)):
                yield from self._settled(merged, known, fuel - 1)
            else:
                yield merged

    def _rebuilt(self, term: Term, mapping: Map, inner: Context) -> Value:
        """The product of the factors, with everything that is known used in them."""
        change = Substitution(mapping)
        result = number(1)
        for factor in term.factors:
            moved = lift(factor.rebuild(change)).rebuild(inner)
            result = multiplied(result, self._deep(moved, inner))
        return result

    def _deep(self, value: Value, known: Context) -> Value:
        """A rebuilt factor with what is inside of it settled too."""
        factor = _alone(value)
        if isinstance(factor, Call) and (factor.function == "Inverse" or _has_sums(factor)):
            args = [Value(tuple(self.settle(arg, known))) for arg in factor.args]
            value = call(factor.function, *args, params=factor.params)
            factor = _alone(value)
        if isinstance(factor, Fold):
            pieces = [p for piece in factor.pieces for p in self._piece(piece, known)]
            return fold(
                factor.monoid, pieces if factor.monoid == "prod" else [_without_repetition(p, known) for p in pieces]
            )
        if isinstance(factor, Call) and factor.function == "Exp":
            return self.signs.exp_of_log(factor, known)
        return value

    def _piece(self, piece: Piece, known: Context) -> Iterator[Piece]:
        """A piece without binders that can have one value only, and without what is nowhere."""
        inner = domain(_as_term(piece), known)
        if FALSE in inner.facts:
            return
        mapping, binders, guard = _eliminated(_as_term(piece), inner)
        body = Value(tuple(self.settle(piece.body.rebuild(Substitution(mapping)), inner)))
        cut = next(cuts(composites(body), binders), None)
        if cut is not None:
            change, others = Substitution({cut.binder: cut.size}), (p for p in binders if p[0] != cut.binder)
            apart = Piece((*others, *cut.parts), rebuild_formula(guard, change), body.rebuild(change))
            yield from self._piece(apart, known)
            return
        kept = conj(*(part for part in ordered(conjuncts(guard)) if not known.knowing(ranges(binders)).proves(part)))
        yield Piece(binders, kept, body)


def _without_repetition(piece: Piece, known: Context) -> Piece:
    """The piece without binders on which nothing depends, of which there are some: what is counted twice is no more."""
    used = piece.guard.symbols.union(piece.body.symbols, *(symbols(extent) for _, extent in piece.binders))
    kept = (pair for pair in piece.binders if pair[0] in used or not known.proves(ge(pair[1], 1)))
    return replace(piece, binders=tuple(kept))


# -- domains -------------------------------------------------------------------------------------------------------


def _least(term: Term) -> Map:
    """The least element of what a term runs over, if its factors do not depend on it.

    Where the guard bounds each binder alone, this element is in the range unless nothing is.
    """
    bound = {binder for binder, _ in term.binders}
    if any(factor.symbols & bound for factor in term.factors):
        return {}
    least: dict[Atom, Size] = dict.fromkeys(bound, 0)
    for part in ordered(conjuncts(term.guard)):
        if isinstance(part, Comparison) and part.kind == "ge":
            for binder in bound & symbols(part):
                if part.poly.terms.get((binder,)) == 1 and not symbols(part.poly - own(binder)) & bound:
                    limit = own(binder) - part.poly
                    least[binder] = choice(ge(limit, least[binder]), limit, least[binder])
    return least


def _with_facts(part: Formula, chosen: Mapping[Value, Value]) -> Formula:
    match part:
        case And(parts):
            return conj(*(_with_facts(p, chosen) for p in parts))
        case Or(parts):
            return disj(*(_with_facts(p, chosen) for p in parts))
        case Fact(subject, holds):
            return Fact(chosen[subject], holds)
    return part


def own(atom: Atom) -> Int:
    return Int({(atom,): 1})


def ranges(binders: Binders) -> Formula:
    return conj(*(inside(own(b), extent) for b, extent in binders))


def range_of(term: Term) -> Formula:
    """For which values of its binders a term counts."""
    return conj(ranges(term.binders), term.guard)


def domain(term: Term, known: Context) -> Context:
    """What is known inside of a term."""
    key = (term.binders, term.guard)
    if key not in known.domains:
        known.domains[key] = known.knowing(range_of(term))
    return known.domains[key]


def at(part: Formula, there: Map) -> Formula:
    return rebuild_formula(part, Substitution(there)) if there else part


def _then(size: Size, mapping: Map) -> Size:
    return rebuild(size, Substitution(mapping))


def _alone(value: Value) -> Factor | None:
    if len(value.terms) != 1:
        return None
    (term,) = value.terms
    plain = term.coefficient == 1 and not term.binders and term.guard == TRUE and len(term.factors) == 1
    return term.factors[0] if plain else None


def _has_sums(factor: Call) -> bool:
    return any(term.binders or term.guard != TRUE for arg in factor.args for term in arg.terms)


def _size(term: Term) -> tuple[int, int]:
    return len(term.factors), len(term.binders)


def _as_term(piece: Piece) -> Term:
    return Term(Fraction(1), (Call("Body", (piece.body,)),), piece.binders, piece.guard)


def _sizes_equal(left: Sequence[Size], right: Sequence[Size], known: Context) -> bool:
    return len(left) == len(right) and all(known.proves(eq(a, b)) for a, b in zip(left, right, strict=True))


def _params_equal(left: Sequence[object], right: Sequence[object], known: Context) -> bool:
    def same(a: object, b: object) -> bool:
        if isinstance(a, Int) or isinstance(b, Int):
            return isinstance(a, Int | int) and isinstance(b, Int | int) and known.proves(eq(a, b))
        if isinstance(a, tuple) and isinstance(b, tuple):
            return _params_equal(a, b, known)
        return type(a) is type(b) and a == b

    return len(left) == len(right) and all(map(same, left, right))


# -- deriving the maps ---------------------------------------------------------------------------------------------


def _head(factor: Factor) -> tuple[object, ...]:
    match factor:
        case Read():
            return "read", factor.tensor
        case Number():
            return ("number",)
        case Call():
            return "call", factor.function, len(factor.args)
        case Fold():
            return "fold", factor.monoid
    return "element", factor.operator


def _pairings(left: Sequence[Factor], right: Sequence[Factor]) -> Iterator[tuple[int, ...]]:
    """Orders of the right factors in which they meet left factors of their kind."""
    heads: dict[object, tuple[list[int], list[int]]] = {}
    for side, factors in enumerate((left, right)):
        for position, factor in enumerate(factors):
            heads.setdefault(_head(factor), ([], []))[side].append(position)
    if any(len(mine) != len(theirs) for mine, theirs in heads.values()):
        return
    groups = list(heads.values())
    choices = product(*(permutations(theirs) for _, theirs in groups))
    for chosen in islice(choices, _PAIRINGS):
        order = dict(zip(chain(*(mine for mine, _ in groups)), chain(*chosen), strict=True))
        yield tuple(order[i] for i in range(len(left)))


def _equations(left: Factor, right: Factor) -> Iterator[tuple[Size, Size]]:
    """What has to be equal for the factors to be: without what is bound inside of them."""
    match left, right:
        case Read(), Read():
            yield from zip(left.index, right.index, strict=False)
        case Element(), Element():
            yield from zip(left.index, right.index, strict=False)
        case Number(), Number():
            yield left.of, right.of
        case Call(), Call():
            yield from ((a, b) for a, b in zip(left.params, right.params, strict=False) if isinstance(a and b, Int))
    for hidden, x, y in _inner_values(left, right):
        yield from _visible(_of_values(x, y), hidden)


def _inner_values(left: Factor, right: Factor) -> Iterator[tuple[set[Atom], Value, Value]]:
    """The values inside of two factors that have to be equal, and what is bound around them."""
    match left, right:
        case Call(), Call():
            yield from ((set(), x, y) for x, y in zip(left.args, right.args, strict=False))
        case Fold(), Fold():
            for p, q in zip(left.pieces, right.pieces, strict=False):
                yield {b for b, _ in (*p.binders, *q.binders)}, p.body, q.body
        case Element(), Element():
            for v, w in zip(left.operands, right.operands, strict=False):
                if v and w:
                    yield {*v.index, *w.index}, v.body, w.body


def _of_values(left: Value, right: Value) -> Iterator[tuple[Size, Size]]:
    for t, u in _similar(left.terms, right.terms):
        hidden = {b for b, _ in (*t.binders, *u.binders)}
        for order in islice(_pairings(t.factors, u.factors), 1):
            inner = (e for f, i in zip(t.factors, order, strict=True) for e in _equations(f, u.factors[i]))
            yield from _visible(inner, hidden)


def _similar(left: Sequence[Term], right: Sequence[Term]) -> Iterator[tuple[Term, Term]]:
    """Terms of two values that may be meant for each other: those with the same kinds of factors, in order."""
    rest = list(right)
    for term in left:
        kinds = sorted(str(_head(f)) for f in term.factors)
        for other in rest:
            if other.coefficient == term.coefficient and sorted(str(_head(f)) for f in other.factors) == kinds:
                rest.remove(other)
                yield term, other
                break


def _visible(equations: Iterable[tuple[Size, Size]], hidden: set[Atom]) -> Iterator[tuple[Size, Size]]:
    return (e for e in equations if not (symbols(e[0]) | symbols(e[1])) & hidden)


def _solution(equations: Iterable[tuple[Size, Size]], unknowns: Binders, given: Binders, known: Context) -> Map | None:
    """The unknowns in terms of the given binders: left sides speak of the given ones, right sides of the unknown.

    Derived, not proved: by linear equations, then by mixed radix. Binders of which no equation speaks are taken to
    be those of the other side of the same extent, in order.
    """
    open_: dict[Atom, Size] = dict(unknowns)
    found: dict[Atom, Size] = {}
    todo = [difference for a, b in equations if isinstance(difference := b - a, Int)]
    while open_ and (step := _step(todo, open_, known)) is not None:
        atom, size = step
        change = Substitution({atom: size})
        found = {a: rebuild(s, change) for a, s in found.items()} | {atom: size}
        del open_[atom]
        todo = [new for old in todo if isinstance(new := known.simplify(rebuild(old, change)), Int)]
    used = frozenset(s for size in found.values() for s in symbols(size))
    spare = [(b, extent) for b, extent in given if b not in used]
    for atom, extent in open_.items():
        match_ = next((pair for pair in spare if known.proves(eq(pair[1], extent))), None)
        if match_ is None:
            return None
        spare.remove(match_)
        found[atom] = own(match_[0])
    return found


def _step(todo: Sequence[Int], unknowns: Mapping[Atom, Size], known: Context) -> tuple[Atom, Size] | None:
    """One unknown, from an equation that gives it."""
    for poly in todo:
        here = [a for a in poly.atoms if a in unknowns]
        if len(here) == 1 and len(poly.symbols & unknowns.keys()) == 1:
            solution = solve(poly, here[0])
            if solution is not None:
                return here[0], solution
    for poly in todo:
        step = _radix_step(poly, unknowns, known)
        if step is not None:
            return step
    return None


def _radix_step(poly: Int, unknowns: Mapping[Atom, Size], known: Context) -> tuple[Atom, Size] | None:
    """From `a·B + b = l` with 0 <= b < B: a is l // B."""
    parts = {atom: _coefficient(poly, atom) for atom in poly.atoms if atom in unknowns}
    rest = poly - _sum(own(a) * c for a, c in parts.items())
    if not parts or symbols(rest) & unknowns.keys() or any(symbols(c) & unknowns.keys() for c in parts.values()):
        return None
    sign = -1 if all(isinstance(c, int) and c < 0 for c in parts.values()) else 1
    for atom, unit in parts.items():
        others = _sum(own(a) * c * sign for a, c in parts.items() if a != atom)
        bounds = conj(*(inside(own(a), unknowns[a]) for a in parts))
        if known.knowing(bounds).proves(inside(others, unit * sign)):
            return atom, known.simplify(quotient(-rest * sign, unit * sign))
    return None


def _coefficient(poly: Int, atom: Atom) -> Size:
    """What a symbol is multiplied with, where it occurs once in a product."""
    taken = {}
    for monomial, c in poly.terms.items():
        if monomial.count(atom) == 1:
            position = monomial.index(atom)
            taken[monomial[:position] + monomial[position + 1 :]] = c
    return polynomial(taken)


def _sum(sizes: Iterable[Size]) -> Size:
    total: Size = 0
    for size in sizes:
        total = size + total
    return total


# -- simplifying one sum -------------------------------------------------------------------------------------------


def _eliminated(term: Term, inner: Context) -> tuple[Map, Binders, Formula]:
    """What its domain says of a term's binders: one that can have a single value is replaced by it."""
    mapping: dict[Atom, Size] = {}
    guard = list(conjuncts(term.guard))
    for binder, extent in term.binders:
        if extent == 1 or inner.simplify(extent) == 1:
            mapping[binder] = 0
        elif binder in inner.equal and not symbols(inner.equal[binder]) & {binder}:
            mapping[binder] = inner.equal[binder]
            guard.append(inside(own(binder), extent))
    mapping = _closed(mapping)
    kept = tuple((b, _then(inner_extent, mapping)) for b, inner_extent in term.binders if b not in mapping)
    return mapping, kept, at(conj(*guard), mapping)


def _counted(term: Term, known: Context) -> Term:
    """A binder on which nothing depends counts: Σ over k < K of a is K·a."""
    used = frozenset(s for f in term.factors for s in f.symbols)
    spare = [b for b, _ in term.binders if b not in used]
    if not spare:
        return term
    inner = known.knowing(ranges(term.binders))
    guard = conj(*(part for part in ordered(conjuncts(term.guard)) if part == FALSE or not inner.proves(part)))
    bound = guard.symbols.union(*(symbols(extent) for _, extent in term.binders))
    counts = [(b, extent) for b, extent in term.binders if b in spare and b not in bound]
    counts = [pair for pair in counts if len(integer(pair[1]).terms) == 1 and known.proves(ge(pair[1]))]
    numbers = Value((Term(term.coefficient, term.factors),))
    for _, extent in counts:
        numbers = numbers * integer(extent)
    (product_,) = numbers.terms
    return replace(product_, binders=tuple(pair for pair in term.binders if pair not in counts), guard=guard)


def _closed(mapping: dict[Atom, Size]) -> dict[Atom, Size]:
    """The map with what it maps replaced in its own values."""
    for atom, size in list(mapping.items()):
        change = Substitution({atom: size})
        mapping = {a: (s if a == atom else rebuild(s, change)) for a, s in mapping.items()}
    return mapping


@dataclass(frozen=True)
class Cut:
    """A binder k below A·B taken apart: k = a·B + b with a below A and b below B."""

    binder: Atom
    size: Size
    parts: Binders

    def ways(self) -> Iterator[tuple[Size, Binders]]:
        """What the binder is, with what then is bound: where there are few a, for each of them."""
        (high, count), low = self.parts
        if not isinstance(count, int) or count > FEW:
            yield self.size, self.parts
            return
        for number_ in range(count):
            yield rebuild(self.size, Substitution({high: number_})), (low,)


def cuts(used: Iterable[Atom], binders: Binders) -> Iterator[Cut]:
    """The ways to take binders apart for the quotients and remainders that are used."""
    for atom in sorted(set(used)):
        over, by = atom.args
        for binder, extent in binders:
            fewer = divide(extent, by)
            if fewer is None or fewer == 1 or (binder,) not in getattr(over, "terms", {}):
                continue
            if not symbols(by) & {b for b, _ in binders}:
                (high, low), parts = bind((fewer, by), "r")
                yield Cut(binder, high * by + low, parts)


def _radix(term: Term) -> Term | None:
    """The term with one binder taken apart, where a quotient or remainder of it is used."""
    for cut in cuts(composites(Value((term,))), term.binders):
        value = Value((replace(term, binders=()),)).rebuild(Substitution({cut.binder: cut.size}))
        if len(value.terms) == 1:
            return replace(value.terms[0], binders=(*(p for p in term.binders if p[0] != cut.binder), *cut.parts))
    return None


def _composites(factor: Factor) -> Iterator[Atom]:
    """The quotients and remainders in the indices of a factor, and of those inside of it."""
    match factor:
        case Read(index=sizes) | Element(index=sizes):
            yield from (a for size in sizes for a in composite_atoms(size))
        case Number(of=size):
            yield from composite_atoms(size)
        case Call(args=values):
            yield from (a for value in values for a in composites(value))
        case Fold(pieces=pieces):
            yield from (a for piece in pieces for a in composites(piece.body))


def composites(value: Value) -> Iterator[Atom]:
    """The quotients and remainders in the indices of a value."""
    for term in value.terms:
        for part in literals(term.guard):
            if isinstance(part, Comparison):
                yield from composite_atoms(part.poly)
        for factor in term.factors:
            yield from _composites(factor)


def divisors(value: Value) -> Iterator[Value]:
    """What a value, or something inside of it, divides by: sizes do not count."""
    for factor in (factor for term in value.terms for factor in term.factors):
        match factor:
            case Call(function, values):
                if function == "Inverse" and any(not isinstance(f, Number) for t in values[0].terms for f in t.factors):
                    yield values[0]
                yield from (found for inner in values for found in divisors(inner))
            case Fold(pieces=pieces):
                yield from (found for piece in pieces for found in divisors(piece.body))
            case Element(operands=operands):
                yield from (found for whole in operands if whole is not None for found in divisors(whole.body))


def composite_atoms(size: Size) -> Iterator[Atom]:
    """The quotients and remainders in a size, however deep."""
    if isinstance(size, Int):
        for atom in size.atoms:
            if atom.kind in ("quotient", "remainder"):
                yield atom
            yield from (inner for part in atom.args if isinstance(part, Int) for inner in composite_atoms(part))
