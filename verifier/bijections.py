"""Maps between the binders of two sums, derived from the equations of what they read; and sums without a binder."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain, islice, permutations, product
from typing import TypeAlias

from graphopt.base.integers import (
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
    alone,
    choice,
    conj,
    conjuncts,
    disj,
    divide,
    eq,
    ge,
    inside,
    literals,
    ordered,
    polynomial,
    quotient,
    symbol,
    symbols,
)
from graphopt.base.places import listed
from graphopt.base.rebuilding import Substitution, rebuild, rebuild_formula, solve
from graphopt.base.symbolic import Binders, Call, Element, Factor, Fold, Number, Piece, Read, Term, Value, integer
from graphopt.base.tensors import bind
from graphopt.verifier.context import Context

Map: TypeAlias = "Mapping[Atom, Size]"
_PAIRINGS = 24
SPLITS = 16
FEW = 4
"""So many parts of an index are looked at one by one."""

# -- domains -----------------------------------------------------------------------------------------------------------


def least_indices(term: Term) -> Map:
    """Return the least element of what a term runs over, if its factors do not depend on it.

    Where the guard bounds each binder alone, this element is in the range unless nothing is.
    """
    bound = {binder for binder, _ in term.binders}
    if any(factor.symbols & bound for factor in term.factors):
        return {}
    least: dict[Atom, Size] = dict.fromkeys(bound, 0)
    for part in ordered(conjuncts(term.guard)):
        if isinstance(part, Comparison) and part.kind == "ge":
            for binder in bound & symbols(part):
                if part.poly.terms.get((binder,)) == 1 and not symbols(part.poly - alone(binder)) & bound:
                    limit = alone(binder) - part.poly
                    least[binder] = choice(ge(limit, least[binder]), limit, least[binder])
    return least


def with_facts(part: Formula, chosen: Mapping[Value, Value]) -> Formula:
    match part:
        case And(parts):
            return conj(*(with_facts(p, chosen) for p in parts))
        case Or(parts):
            return disj(*(with_facts(p, chosen) for p in parts))
        case Fact(subject, holds):
            return Fact(chosen[subject], holds)
    return part


def ranges(binders: Binders) -> Formula:
    return conj(*(inside(alone(b), extent) for b, extent in binders))


def range_of(term: Term) -> Formula:
    """For which values of its binders a term counts."""
    return conj(ranges(term.binders), term.guard)


def domain(term: Term, known: Context) -> Context:
    """Return what is known inside of a term."""
    key = (term.binders, term.guard)
    if key not in known.domains:
        inner = known.knowing(range_of(term))
        known.domains[key] = None if inner is known else inner  # what refers to itself is not freed with its rule
    return known.domains[key] or known


def without_names(term: Term) -> Hashable:
    """Return what is the same for terms that differ in their coefficients and in the names of binders only."""
    change = Substitution({binder: symbol(f"binder {place}") for place, (binder, _) in enumerate(term.binders)})
    extents = tuple(rebuild(extent, change) for _, extent in term.binders)
    return extents, rebuild_formula(term.guard, change), tuple(factor.rebuild(change) for factor in term.factors)


def at(part: Formula, there: Map) -> Formula:
    return rebuild_formula(part, Substitution(there)) if there else part


def composed(size: Size, mapping: Map) -> Size:
    return rebuild(size, Substitution(mapping))


def only_factor(value: Value) -> Factor | None:
    if len(value.terms) != 1:
        return None
    (term,) = value.terms
    plain = term.coefficient == 1 and not term.binders and term.guard == TRUE and len(term.factors) == 1
    return term.factors[0] if plain else None


def has_sums(factor: Call) -> bool:
    return any(term.binders or term.guard != TRUE for arg in factor.args for term in arg.terms)


def extent_key(term: Term) -> tuple[int, int]:
    return len(term.factors), len(term.binders)


def as_term(piece: Piece) -> Term:
    return Term(Fraction(1), (Call("Body", (piece.body,)),), piece.binders, piece.guard)


def sizes_equal(left: Sequence[Size], right: Sequence[Size], known: Context) -> bool:
    return len(left) == len(right) and all(known.proves(eq(a, b)) for a, b in zip(left, right, strict=True))


def params_equal(left: Sequence[object], right: Sequence[object], known: Context) -> bool:
    def same(a: object, b: object) -> bool:
        if isinstance(a, Int) or isinstance(b, Int):
            return isinstance(a, Int | int) and isinstance(b, Int | int) and known.proves(eq(a, b))
        if isinstance(a, tuple) and isinstance(b, tuple):
            return params_equal(a, b, known)
        return type(a) is type(b) and a == b

    return len(left) == len(right) and all(map(same, left, right))


# -- deriving the maps -------------------------------------------------------------------------------------------------


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


def pairings_of(left: Sequence[Factor], right: Sequence[Factor]) -> Iterator[tuple[int, ...]]:
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


def equations_of(left: Factor, right: Factor) -> Iterator[tuple[Size, Size]]:
    """Yield what has to be equal for the factors to be: without what is bound inside of them."""
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
    """Yield the values inside of two factors that have to be equal, and what is bound around them."""
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
        for order in islice(pairings_of(t.factors, u.factors), 1):
            inner = (e for f, i in zip(t.factors, order, strict=True) for e in equations_of(f, u.factors[i]))
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


def solution_of(
    equations: Iterable[tuple[Size, Size]], unknowns: Binders, given: Binders, known: Context
) -> Map | None:
    """Return the unknowns in terms of the given binders: left sides speak of the given ones, right sides of the
    unknown.

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
        found[atom] = alone(match_[0])
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
        step = _listed_step(poly, unknowns) or _radix_step(poly, unknowns, known)
        if step is not None:
            return step
    return None


def _listed_step(poly: Int, unknowns: Mapping[Atom, Size]) -> tuple[Atom, Size] | None:
    """From `nth(a) = l`: a is the order of l."""
    for atom in poly.atoms:
        if atom.kind == "nth" and (place := solve(poly, atom)) is not None:
            places, position = listed(atom)
            others = symbols(place) | symbols(places.extent) | symbols(places.count)
            unknown = next((each for each in unknowns if alone(each) == position), None)
            if unknown is not None and others.isdisjoint(unknowns):
                return unknown, places.order(place)
    return None


def _radix_step(poly: Int, unknowns: Mapping[Atom, Size], known: Context) -> tuple[Atom, Size] | None:
    """From `a·B + b = l` with 0 <= b < B: a is l // B."""
    parts = {atom: _coefficient(poly, atom) for atom in poly.atoms if atom in unknowns}
    rest = poly - _sum(alone(a) * c for a, c in parts.items())
    if not parts or symbols(rest) & unknowns.keys() or any(symbols(c) & unknowns.keys() for c in parts.values()):
        return None
    sign = -1 if all(isinstance(c, int) and c < 0 for c in parts.values()) else 1
    for atom, unit in parts.items():
        others = _sum(alone(a) * c * sign for a, c in parts.items() if a != atom)
        bounds = conj(*(inside(alone(a), unknowns[a]) for a in parts))
        if known.knowing(bounds).proves(inside(others, unit * sign)):
            return atom, known.simplify(quotient(-rest * sign, unit * sign))
    return None


def _coefficient(poly: Int, atom: Atom) -> Size:
    """Return what a symbol is multiplied with, where it occurs once in a product."""
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


# -- simplifying one sum -----------------------------------------------------------------------------------------------


def eliminated(term: Term, inner: Context) -> tuple[Map, Binders, Formula]:
    """Return what its domain says of a term's binders: one that can have a single value is replaced by it."""
    mapping: dict[Atom, Size] = {}
    guard = list(conjuncts(term.guard))
    for binder, extent in term.binders:
        if extent == 1 or inner.simplify(extent) == 1:
            mapping[binder] = 0
        elif binder in inner.equal and not symbols(inner.equal[binder]) & {binder}:
            mapping[binder] = inner.equal[binder]
            guard.append(inside(alone(binder), extent))
    mapping = _closed(mapping)
    kept = tuple((b, composed(inner_extent, mapping)) for b, inner_extent in term.binders if b not in mapping)
    return mapping, kept, at(conj(*guard), mapping)


def counted(term: Term, known: Context) -> Term:
    """Count a binder on which nothing depends: Σ over k < K of a is K·a."""
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
    """Return the map with what it maps replaced in its own values."""
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
        """Yield what the binder is, with what then is bound: where there are few a, for each of them."""
        (high, count), low = self.parts
        if not isinstance(count, int) or count > FEW:
            yield self.size, self.parts
            return
        for number_ in range(count):
            yield rebuild(self.size, Substitution({high: number_})), (low,)


def cuts(used: Iterable[Atom], binders: Binders) -> Iterator[Cut]:
    """Yield the ways to take binders apart for the quotients and remainders that are used."""
    for atom in sorted(set(used)):
        over, by = atom.args
        for binder, extent in binders:
            fewer = divide(extent, by)
            if fewer is None or fewer == 1 or (binder,) not in getattr(over, "terms", {}):
                continue
            if not symbols(by) & {b for b, _ in binders}:
                (high, low), parts = bind((fewer, by), "r")
                yield Cut(binder, high * by + low, parts)


def with_radix(term: Term) -> Term | None:
    """Return the term with one binder taken apart, where a quotient or remainder of it is used."""
    for cut in cuts(composites(Value((term,))), term.binders):
        value = Value((replace(term, binders=()),)).rebuild(Substitution({cut.binder: cut.size}))
        if len(value.terms) == 1:
            return replace(value.terms[0], binders=(*(p for p in term.binders if p[0] != cut.binder), *cut.parts))
    return None


def _composites(factor: Factor) -> Iterator[Atom]:
    """Yield the quotients and remainders in the indices of a factor, and of those inside of it."""
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
    """Yield the quotients and remainders in the indices of a value."""
    for term in value.terms:
        for part in literals(term.guard):
            if isinstance(part, Comparison):
                yield from composite_atoms(part.poly)
        for factor in term.factors:
            yield from _composites(factor)


def divisors(value: Value) -> Iterator[Value]:
    """Yield what a value, or something inside of it, divides by: sizes do not count."""
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
    """Yield the quotients and remainders in a size, however deep."""
    if isinstance(size, Int):
        for atom in size.atoms:
            if atom.kind in ("quotient", "remainder"):
                yield atom
            yield from (inner for part in atom.args if isinstance(part, Int) for inner in composite_atoms(part))
