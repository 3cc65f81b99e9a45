"""Bijections between the binders of two sums, derived from equations between the indices that they read; and the
elimination of binders from sums."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain, islice, permutations, product
from typing import TypeAlias

from graphopt.expr.expressions import (
    Binders,
    Call,
    Expr,
    Factor,
    Fold,
    FoldBranch,
    IntegerValue,
    OpaqueElement,
    TensorElement,
    Term,
    integer_value,
)
from graphopt.expr.index_lists import index_list_of
from graphopt.expr.integers import (
    FALSE,
    TRUE,
    And,
    Atom,
    BooleanAtom,
    Comparison,
    Formula,
    Or,
    Polynomial,
    Size,
    conjunction,
    conjuncts,
    disjunction,
    eq,
    exact_quotient,
    free_symbols,
    ge,
    if_then_else,
    in_creation_order,
    in_range,
    literals,
    polynomial,
    polynomial_of_atom,
    quotient,
    sum_sizes,
    symbol,
)
from graphopt.expr.substitution import Substitution, replace_atoms, replace_in_formula, solve_for_atom
from graphopt.expr.symbolic_tensors import bind_indices
from graphopt.verifier.context import ProofContext

BinderMap: TypeAlias = "Mapping[Atom, Size]"
_PAIRINGS = 24
SPLITS = 16
MAX_UNROLLED = 4
"""Most parts of an index that are looked at one by one."""

# -- domains -----------------------------------------------------------------------------------------------------------


def least_indices(term: Term) -> BinderMap:
    """Return the least index of the range of a term, if its factors do not depend on the index.

    Where the guard bounds each binder alone, this index is in the range unless the range is empty.
    """
    bound = {binder for binder, _ in term.binders}
    if any(factor.free_symbols & bound for factor in term.factors):
        return {}
    least: dict[Atom, Size] = dict.fromkeys(bound, 0)
    for part in in_creation_order(conjuncts(term.guard)):
        if isinstance(part, Comparison) and part.kind == "ge":
            for binder in bound & free_symbols(part):
                if (
                    part.poly.terms.get((binder,)) == 1
                    and not free_symbols(part.poly - polynomial_of_atom(binder)) & bound
                ):
                    limit = polynomial_of_atom(binder) - part.poly
                    least[binder] = if_then_else(ge(limit, least[binder]), limit, least[binder])
    return least


def substitute_facts(part: Formula, chosen: Mapping[Expr, Expr]) -> Formula:
    match part:
        case And(parts):
            return conjunction(*(substitute_facts(p, chosen) for p in parts))
        case Or(parts):
            return disjunction(*(substitute_facts(p, chosen) for p in parts))
        case BooleanAtom(subject, holds):
            return BooleanAtom(chosen[subject], holds)
    return part


def binder_ranges(binders: Binders) -> Formula:
    return conjunction(*(in_range(polynomial_of_atom(b), extent) for b, extent in binders))


def range_condition(term: Term) -> Formula:
    """Return the condition on the binders of a term under which it counts."""
    return conjunction(binder_ranges(term.binders), term.guard)


def domain_context(term: Term, known: ProofContext) -> ProofContext:
    """Return the facts that are known inside a term: its range, and those around it."""
    key = (term.binders, term.guard)
    if key not in known.domains:
        inner = known.assuming(range_condition(term))
        known.domains[key] = None if inner is known else inner  # what refers to itself is not freed with its rule
    return known.domains[key] or known


def alpha_equivalence_key(term: Term) -> Hashable:
    """Return a key that is equal for terms that differ only in their coefficients and the names of their binders."""
    change = Substitution({binder: symbol(f"binder {place}") for place, (binder, _) in enumerate(term.binders)})
    extents = tuple(replace_atoms(extent, change) for _, extent in term.binders)
    return (
        extents,
        replace_in_formula(term.guard, change),
        tuple(factor.replace_atoms(change) for factor in term.factors),
    )


def substitute_in_formula(part: Formula, there: BinderMap) -> Formula:
    return replace_in_formula(part, Substitution(there)) if there else part


def substitute_in_size(size: Size, mapping: BinderMap) -> Size:
    return replace_atoms(size, Substitution(mapping))


def has_sums(factor: Call) -> bool:
    return any(term.binders or term.guard != TRUE for arg in factor.args for term in arg.terms)


def term_complexity(term: Term) -> tuple[int, int]:
    return len(term.factors), len(term.binders)


def as_term(piece: FoldBranch) -> Term:
    return Term(Fraction(1), (Call("Body", (piece.body,)),), piece.binders, piece.guard)


def sizes_equal(left: Sequence[Size], right: Sequence[Size], known: ProofContext) -> bool:
    return len(left) == len(right) and all(known.proves(eq(a, b)) for a, b in zip(left, right, strict=True))


def params_equal(left: Sequence[object], right: Sequence[object], known: ProofContext) -> bool:
    def same(a: object, b: object) -> bool:
        if isinstance(a, Polynomial) or isinstance(b, Polynomial):
            return isinstance(a, Polynomial | int) and isinstance(b, Polynomial | int) and known.proves(eq(a, b))
        if isinstance(a, tuple) and isinstance(b, tuple):
            return params_equal(a, b, known)
        return type(a) is type(b) and a == b

    return len(left) == len(right) and all(map(same, left, right))


# -- deriving the maps -------------------------------------------------------------------------------------------------


def _head(factor: Factor) -> tuple[object, ...]:
    match factor:
        case TensorElement():
            return "read", factor.tensor
        case IntegerValue():
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
        case TensorElement(), TensorElement():
            yield from zip(left.index, right.index, strict=False)
        case OpaqueElement(), OpaqueElement():
            yield from zip(left.index, right.index, strict=False)
        case IntegerValue(), IntegerValue():
            yield left.integer, right.integer
        case Call(), Call():
            yield from (
                (a, b) for a, b in zip(left.params, right.params, strict=False) if isinstance(a and b, Polynomial)
            )
    for hidden, x, y in _inner_values(left, right):
        yield from _visible(_of_values(x, y), hidden)


def _inner_values(left: Factor, right: Factor) -> Iterator[tuple[set[Atom], Expr, Expr]]:
    """Yield the values inside of two factors that have to be equal, and what is bound around them."""
    match left, right:
        case Call(), Call():
            yield from ((set(), x, y) for x, y in zip(left.args, right.args, strict=False))
        case Fold(), Fold():
            for p, q in zip(left.branches, right.branches, strict=False):
                yield {b for b, _ in (*p.binders, *q.binders)}, p.body, q.body
        case OpaqueElement(), OpaqueElement():
            for v, w in zip(left.operands, right.operands, strict=False):
                if v and w:
                    yield {*v.index, *w.index}, v.body, w.body


def _of_values(left: Expr, right: Expr) -> Iterator[tuple[Size, Size]]:
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
    return (e for e in equations if not (free_symbols(e[0]) | free_symbols(e[1])) & hidden)


def solution_of(
    equations: Iterable[tuple[Size, Size]], unknowns: Binders, given: Binders, known: ProofContext
) -> BinderMap | None:
    """Return the unknowns in terms of the given binders: left sides speak of the given ones, right sides of the
    unknown.

    Derived, not proved: by linear equations, then by mixed radix. Binders of which no equation speaks are taken to
    be those of the other side of the same extent, in order.
    """
    open_: dict[Atom, Size] = dict(unknowns)
    found: dict[Atom, Size] = {}
    todo = [difference for a, b in equations if isinstance(difference := b - a, Polynomial)]
    while open_ and (step := _step(todo, open_, known)) is not None:
        atom, size = step
        change = Substitution({atom: size})
        found = {a: replace_atoms(s, change) for a, s in found.items()} | {atom: size}
        del open_[atom]
        todo = [new for old in todo if isinstance(new := known.simplify(replace_atoms(old, change)), Polynomial)]
    used = frozenset(s for size in found.values() for s in free_symbols(size))
    spare = [(b, extent) for b, extent in given if b not in used]
    for atom, extent in open_.items():
        match_ = next((pair for pair in spare if known.proves(eq(pair[1], extent))), None)
        if match_ is None:
            return None
        spare.remove(match_)
        found[atom] = polynomial_of_atom(match_[0])
    return found


def _step(todo: Sequence[Polynomial], unknowns: Mapping[Atom, Size], known: ProofContext) -> tuple[Atom, Size] | None:
    """One unknown, from an equation that gives it."""
    for poly in todo:
        here = [a for a in poly.atoms if a in unknowns]
        if len(here) == 1 and len(poly.free_symbols & unknowns.keys()) == 1:
            solution = solve_for_atom(poly, here[0])
            if solution is not None:
                return here[0], solution
    for poly in todo:
        step = _listed_step(poly, unknowns) or _radix_step(poly, unknowns, known)
        if step is not None:
            return step
    return None


def _listed_step(poly: Polynomial, unknowns: Mapping[Atom, Size]) -> tuple[Atom, Size] | None:
    """From `nth(a) = l`: a is the order of l."""
    for atom in poly.atoms:
        if atom.kind == "select" and (place := solve_for_atom(poly, atom)) is not None:
            places, position = index_list_of(atom)
            others = free_symbols(place) | free_symbols(places.extent) | free_symbols(places.count)
            unknown = next((each for each in unknowns if polynomial_of_atom(each) == position), None)
            if unknown is not None and others.isdisjoint(unknowns):
                return unknown, places.rank(place)
    return None


def _radix_step(poly: Polynomial, unknowns: Mapping[Atom, Size], known: ProofContext) -> tuple[Atom, Size] | None:
    """From `a·B + b = l` with 0 <= b < B: a is l // B."""
    parts = {atom: _coefficient(poly, atom) for atom in poly.atoms if atom in unknowns}
    rest = poly - sum_sizes(polynomial_of_atom(a) * c for a, c in parts.items())
    if (
        not parts
        or free_symbols(rest) & unknowns.keys()
        or any(free_symbols(c) & unknowns.keys() for c in parts.values())
    ):
        return None
    sign = -1 if all(isinstance(c, int) and c < 0 for c in parts.values()) else 1
    for atom, unit in parts.items():
        others = sum_sizes(polynomial_of_atom(a) * c * sign for a, c in parts.items() if a != atom)
        bounds = conjunction(*(in_range(polynomial_of_atom(a), unknowns[a]) for a in parts))
        if known.assuming(bounds).proves(in_range(others, unit * sign)):
            return atom, known.simplify(quotient(-rest * sign, unit * sign))
    return None


def _coefficient(poly: Polynomial, atom: Atom) -> Size:
    """Return what a symbol is multiplied with, where it occurs once in a product."""
    taken = {}
    for monomial, c in poly.terms.items():
        if monomial.count(atom) == 1:
            position = monomial.index(atom)
            taken[monomial[:position] + monomial[position + 1 :]] = c
    return polynomial(taken)


# -- simplifying one sum -----------------------------------------------------------------------------------------------


def eliminate_binders(term: Term, inner: ProofContext) -> tuple[BinderMap, Binders, Formula]:
    """Return what its domain says of a term's binders: one that can have a single value is replaced by it."""
    mapping: dict[Atom, Size] = {}
    guard = list(conjuncts(term.guard))
    for binder, extent in term.binders:
        if extent == 1 or inner.simplify(extent) == 1:
            mapping[binder] = 0
        elif binder in inner.solutions and not free_symbols(inner.solutions[binder]) & {binder}:
            mapping[binder] = inner.solutions[binder]
            guard.append(in_range(polynomial_of_atom(binder), extent))
    mapping = _close_substitution(mapping)
    kept = tuple((b, substitute_in_size(inner_extent, mapping)) for b, inner_extent in term.binders if b not in mapping)
    return mapping, kept, substitute_in_formula(conjunction(*guard), mapping)


def factor_out_unused_binders(term: Term, known: ProofContext) -> Term:
    """Count a binder on which nothing depends: Σ over k < K of a is K·a."""
    used = frozenset(s for f in term.factors for s in f.free_symbols)
    spare = [b for b, _ in term.binders if b not in used]
    if not spare:
        return term
    inner = known.assuming(binder_ranges(term.binders))
    guard = conjunction(
        *(part for part in in_creation_order(conjuncts(term.guard)) if part == FALSE or not inner.proves(part))
    )
    bound = guard.free_symbols.union(*(free_symbols(extent) for _, extent in term.binders))
    counts = [(b, extent) for b, extent in term.binders if b in spare and b not in bound]
    counts = [pair for pair in counts if len(integer_value(pair[1]).terms) == 1 and known.proves(ge(pair[1]))]
    numbers = Expr((Term(term.coefficient, term.factors),))
    for _, extent in counts:
        numbers = numbers * integer_value(extent)
    (product_,) = numbers.terms
    return replace(product_, binders=tuple(pair for pair in term.binders if pair not in counts), guard=guard)


def _close_substitution(mapping: dict[Atom, Size]) -> dict[Atom, Size]:
    """Return the map with what it maps replaced in its own values."""
    for atom, size in list(mapping.items()):
        change = Substitution({atom: size})
        mapping = {a: (s if a == atom else replace_atoms(s, change)) for a, s in mapping.items()}
    return mapping


@dataclass(frozen=True)
class RadixSplit:
    """A binder k below A·B taken apart: k = a·B + b with a below A and b below B."""

    binder: Atom
    size: Size
    parts: Binders

    def expansions(self) -> Iterator[tuple[Size, Binders]]:
        """Yield what the binder is, with what then is bound: where there are few a, for each of them."""
        (high, count), low = self.parts
        if not isinstance(count, int) or count > MAX_UNROLLED:
            yield self.size, self.parts
            return
        for number_ in range(count):
            yield replace_atoms(self.size, Substitution({high: number_})), (low,)


def find_radix_splits(used: Iterable[Atom], binders: Binders) -> Iterator[RadixSplit]:
    """Yield the ways to take binders apart for the quotients and remainders that are used."""
    for atom in sorted(set(used)):
        over, by = atom.args
        for binder, extent in binders:
            fewer = exact_quotient(extent, by)
            if fewer is None or fewer == 1 or (binder,) not in getattr(over, "terms", {}):
                continue
            if not free_symbols(by) & {b for b, _ in binders}:
                (high, low), parts = bind_indices((fewer, by), "r")
                yield RadixSplit(binder, high * by + low, parts)


def apply_radix_split(term: Term) -> Term | None:
    """Return the term with one binder taken apart, where a quotient or remainder of it is used."""
    for cut in find_radix_splits(composites(Expr((term,))), term.binders):
        value = Expr((replace(term, binders=()),)).replace_atoms(Substitution({cut.binder: cut.size}))
        if len(value.terms) == 1:
            return replace(value.terms[0], binders=(*(p for p in term.binders if p[0] != cut.binder), *cut.parts))
    return None


def _composites(factor: Factor) -> Iterator[Atom]:
    """Yield the quotients and remainders in the indices of a factor, and of those inside of it."""
    match factor:
        case TensorElement(index=sizes) | OpaqueElement(index=sizes):
            yield from (a for size in sizes for a in composite_atoms(size))
        case IntegerValue(integer=size):
            yield from composite_atoms(size)
        case Call(args=values):
            yield from (a for value in values for a in composites(value))
        case Fold(branches=pieces):
            yield from (a for piece in pieces for a in composites(piece.body))


def composites(value: Expr) -> Iterator[Atom]:
    """Yield the quotients and remainders in the indices of a value."""
    for term in value.terms:
        for part in literals(term.guard):
            if isinstance(part, Comparison):
                yield from composite_atoms(part.poly)
        for factor in term.factors:
            yield from _composites(factor)


def divisors(value: Expr) -> Iterator[Expr]:
    """Yield what a value, or something inside of it, divides by: sizes do not count."""
    for factor in (factor for term in value.terms for factor in term.factors):
        match factor:
            case Call(function, values):
                if function == "Inverse" and any(
                    not isinstance(f, IntegerValue) for t in values[0].terms for f in t.factors
                ):
                    yield values[0]
                yield from (found for inner in values for found in divisors(inner))
            case Fold(branches=pieces):
                yield from (found for piece in pieces for found in divisors(piece.body))
            case OpaqueElement(operands=operands):
                yield from (found for whole in operands if whole is not None for found in divisors(whole.body))


def composite_atoms(size: Size) -> Iterator[Atom]:
    """Yield the quotients and remainders in a size, however deep."""
    if isinstance(size, Polynomial):
        for atom in size.atoms:
            if atom.kind in ("quotient", "remainder"):
                yield atom
            yield from (inner for part in atom.args if isinstance(part, Polynomial) for inner in composite_atoms(part))
