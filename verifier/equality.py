"""Equality of values for all integers: terms cancel, and sums are equal by a bijection between their ranges.

The bijection is derived by solving the equations between the arguments of equal factors. That it is one, and that
domains and bodies agree under it, is then proved. What is not proved equal is not claimed to differ.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice

from graphopt.base.dtype import DType
from graphopt.base.session import current_session
from graphopt.expr.expressions import (
    Call,
    Expr,
    Factor,
    Fold,
    FoldBranch,
    IntegerValue,
    Monoid,
    OpaqueElement,
    TensorArgument,
    TensorElement,
    Term,
    call_function,
    constant,
    expr_of_factor,
    fold,
    integer_value,
    multiply,
    single_factor,
)
from graphopt.expr.integers import (
    FALSE,
    TRUE,
    BooleanAtom,
    conjunction,
    conjuncts,
    eq,
    free_symbols,
    ge,
    in_creation_order,
    literals,
    negate,
    polynomial_of_atom,
)
from graphopt.expr.substitution import Substitution, replace_in_formula
from graphopt.expr.symbolic_tensors import as_integer, bind_indices
from graphopt.operators.indexing_ops import FIRST_PLACE, NEXT_PLACE
from graphopt.operators.operator_classes import lookup_operator
from graphopt.operators.reduction_ops import ARG_FUNCTIONS
from graphopt.verifier.bijections import (
    SPLITS,
    BinderMap,
    alpha_equivalence_key,
    apply_radix_split,
    as_term,
    binder_ranges,
    composites,
    domain_context,
    eliminate_binders,
    equations_of,
    factor_out_unused_binders,
    find_radix_splits,
    has_sums,
    least_indices,
    pairings_of,
    params_equal,
    range_condition,
    sizes_equal,
    solution_of,
    substitute_facts,
    substitute_in_formula,
    substitute_in_size,
    term_complexity,
)
from graphopt.verifier.case_analysis import add_up_to_zero, has_cases
from graphopt.verifier.context import ProofContext
from graphopt.verifier.covering import covering_index
from graphopt.verifier.value_signs import SignAnalysis

FIRST_OF = {NEXT_PLACE[largest]: FIRST_PLACE[largest] for largest in FIRST_PLACE}
INTEGER_SUMS = {"Add!": 1, "Sub!": -1}
"""Sums of integers in the exact model, and the sign of what is added."""
GREATEST: Mapping[str, Monoid] = {ARG_FUNCTIONS["ArgMax"]: "max", ARG_FUNCTIONS["ArgMin"]: "min"}
"""Fold that gives the element at the place that an operator returns."""


@dataclass(frozen=True)
class Equality:
    """Proves values equal; `signs` is what is known of the elements of constants."""

    signs: SignAnalysis

    def proves_equal(self, left: Expr, right: Expr, known: ProofContext) -> bool:
        """Return whether the values are equal wherever what is known holds."""
        if left == right:
            return True
        question = left, right
        if question not in known.value_equalities:
            known.value_equalities[question] = self._equal(left, right, known)
        return known.value_equalities[question]

    def _equal(self, left: Expr, right: Expr, known: ProofContext) -> bool:
        denied = (replace(term, coefficient=-term.coefficient) for term in self.normalize(right, known))
        terms = self._same_facts([*self.normalize(left, known), *denied], known)
        if self._cancel(terms, known):
            return True
        return current_session().arithmetic is None and has_cases(terms) and add_up_to_zero(terms, known, self)

    def _same_facts(self, terms: list[Term], known: ProofContext) -> list[Term]:
        """Return the terms with equal truth values in their guards as one object each: the solver compares only
        names."""
        chosen: dict[Expr, Expr] = {}
        for part in (p for term in terms for p in literals(term.guard)):
            if isinstance(part, BooleanAtom) and part.subject not in chosen:
                same = (v for v in chosen.values() if self.proves_equal(part.subject, v, known))
                chosen[part.subject] = next(same, part.subject)
        if all(old == new for old, new in chosen.items()):
            return terms
        return [replace(term, guard=substitute_facts(term.guard, chosen)) for term in terms]

    def _cancel(self, terms: list[Term], known: ProofContext) -> bool:
        """Return whether the terms add up to zero.

        Numbers that are equal are added up first: what several of them make may be what another one denies.
        """
        terms, splits = self._collect_terms(terms, known) if current_session().arithmetic is None else terms, 0
        while terms:
            first, terms = self._gather(terms[0], terms[1:], known)
            if first.coefficient == 0 or not domain_context(first, known).possible:
                continue
            if splits == SPLITS or (rest := self._overlap(first, terms, known)) is None:
                return False
            terms, splits = rest, splits + 1
        return True

    def _collect_terms(self, terms: list[Term], known: ProofContext) -> list[Term]:
        """Return the sums of equal terms that are not zero: of those first that differ in names alone."""
        alike: dict[Hashable, Term] = {}
        for term in terms:
            name = alpha_equivalence_key(term)
            same = alike.get(name)
            alike[name] = term if same is None else replace(same, coefficient=same.coefficient + term.coefficient)
        left, found = [term for term in alike.values() if term.coefficient], []
        while left:
            first, left = self._gather(left[0], left[1:], known)
            if first.coefficient and domain_context(first, known).possible:
                found.append(first)
        return found

    def _gather(self, first: Term, others: Sequence[Term], known: ProofContext) -> tuple[Term, list[Term]]:
        """Return the term with all equal ones added to it, and those that are left."""
        left = []
        for other in others:
            if any(self._same_domain(first, other, pair, known) for pair in self._alignments(first, other, known)):
                first = replace(first, coefficient=first.coefficient + other.coefficient)
            else:
                left.append(other)
        return first, left

    def _overlap(self, first: Term, others: list[Term], known: ProofContext) -> list[Term] | None:
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
                    guard=conjunction(first.guard, substitute_in_formula(range_condition(other), there)),
                )
                parts = [
                    replace(
                        first,
                        guard=conjunction(first.guard, negate(substitute_in_formula(range_condition(other), there))),
                    ),
                    replace(
                        other,
                        guard=conjunction(other.guard, negate(substitute_in_formula(range_condition(first), back))),
                    ),
                    *([both] if both.coefficient else []),
                ]
                fewer = [p for p in parts if p.guard != FALSE and domain_context(p, known).possible]
                if len(fewer) < 2 or (both.coefficient == 0 and domain_context(both, known).possible):
                    return [*fewer, *others[:position], *others[position + 1 :]]
        return None

    # -- aligning two sums

    def _alignments(self, left: Term, right: Term, known: ProofContext) -> Iterator[tuple[BinderMap, BinderMap]]:
        """Yield maps of the binders, there and back, under which the factors of two terms are equal."""
        if len(left.factors) != len(right.factors):
            return
        for order in pairings_of(left.factors, right.factors):
            pairs = [(f, right.factors[i]) for f, i in zip(left.factors, order, strict=True)]
            there, back = self._maps(left, right, pairs, known)
            if there is None or back is None:
                continue
            inner = domain_context(left, known).assuming(substitute_in_formula(range_condition(right), there))
            if all(self._factors_equal(f, g, there, inner) for f, g in pairs):
                yield there, back

    def _right_to_left_maps(self, left: Term, right: Term, known: ProofContext) -> Iterator[BinderMap]:
        """Yield maps of the right binders to the left ones under which the factors are equal, one to one or not."""
        if len(left.factors) != len(right.factors):
            return
        for order in pairings_of(left.factors, right.factors):
            pairs = [(f, right.factors[i]) for f, i in zip(left.factors, order, strict=True)]
            equations = [e for f, g in pairs for e in equations_of(f, g)]
            there = (
                solution_of(equations, right.binders, left.binders, domain_context(left, known))
                if right.binders
                else {}
            )
            if there is not None:
                inner = domain_context(left, known).assuming(substitute_in_formula(range_condition(right), there))
                if all(self._factors_equal(f, g, there, inner) for f, g in pairs):
                    yield there

    def _maps(
        self, left: Term, right: Term, pairs: list[tuple[Factor, Factor]], known: ProofContext
    ) -> tuple[BinderMap | None, BinderMap | None]:
        if not left.binders and not right.binders:
            return {}, {}
        equations = [e for f, g in pairs for e in equations_of(f, g)]
        there = solution_of(equations, right.binders, left.binders, domain_context(left, known))
        back = solution_of([(b, a) for a, b in equations], left.binders, right.binders, domain_context(right, known))
        return there, back

    def _same_domain(self, left: Term, right: Term, maps: tuple[BinderMap, BinderMap], known: ProofContext) -> bool:
        """Return whether the maps go from the whole of one domain to the whole of the other, one to one."""
        there, back = maps
        return (
            domain_context(left, known).proves(substitute_in_formula(range_condition(right), there))
            and domain_context(right, known).proves(substitute_in_formula(range_condition(left), back))
            and self._inverse(left, right, there, back, known)
        )

    def _inverse(self, left: Term, right: Term, there: BinderMap, back: BinderMap, known: ProofContext) -> bool:
        """Return whether each map undoes the other, where both are defined."""
        inside_left = domain_context(left, known).assuming(substitute_in_formula(range_condition(right), there))
        inside_right = domain_context(right, known).assuming(substitute_in_formula(range_condition(left), back))
        return all(
            inside_left.proves(eq(polynomial_of_atom(b), substitute_in_size(back[b], there))) for b, _ in left.binders
        ) and all(
            inside_right.proves(eq(polynomial_of_atom(b), substitute_in_size(there[b], back))) for b, _ in right.binders
        )

    # -- factors

    def _factors_equal(self, left: Factor, right: Factor, there: BinderMap, known: ProofContext) -> bool:
        moved = right.replace_atoms(Substitution(there)) if there else right
        if isinstance(moved, Expr):
            alone = single_factor(moved)
            return (
                self.proves_equal(expr_of_factor(left), moved, known)
                if alone is None
                else self.proves_factors_equal(left, alone, known)
            )
        return self.proves_factors_equal(left, moved, known)

    def proves_factors_equal(self, left: Factor, right: Factor, known: ProofContext) -> bool:
        if left == right:
            return True
        match left, right:
            case TensorElement(), TensorElement():
                return left.tensor == right.tensor and sizes_equal(left.index, right.index, known)
            case IntegerValue(), IntegerValue():
                return known.proves(eq(left.integer, right.integer))
            case Call(), Call():
                return self._calls_equal(left, right, known)
            case Fold(), Fold():
                return left.monoid == right.monoid and self._folds_equal(left, right, known)
            case OpaqueElement(), OpaqueElement():
                return self._elements_equal(left, right, known)
        return False

    def _calls_equal(self, left: Call, right: Call, known: ProofContext) -> bool:
        if left.function != right.function or not params_equal(left.params, right.params, known):
            return False
        orders = [right.args]
        if len(right.args) == 2 and lookup_operator(left.function.rstrip("!~")).is_exactly_commutative:
            orders.append(right.args[::-1])
        return any(all(self.proves_equal(a, b, known) for a, b in zip(left.args, args, strict=True)) for args in orders)

    def _elements_equal(self, left: OpaqueElement, right: OpaqueElement, known: ProofContext) -> bool:
        if left.operator != right.operator or len(left.operands) != len(right.operands):
            return False
        if not params_equal(left.params, right.params, known) or not sizes_equal(left.index, right.index, known):
            return False
        pairs = list(zip(left.operands, right.operands, strict=True))
        if left.operator.startswith("place of"):
            pairs = [(self._strip_monotone_maps(a, known), self._strip_monotone_maps(b, known)) for a, b in pairs]
        return all(self._wholes_equal(a, b, known) for a, b in pairs)

    def _strip_monotone_maps(self, row: TensorArgument | None, known: ProofContext) -> TensorArgument | None:
        """Return a row of numbers for one whose order is the same."""
        if row is None:
            return None
        (along,) = row.index
        inner = known.assuming(binder_ranges(((along, row.shape[0]),)))
        return replace(row, body=self.signs.strip_monotone_maps(row.body, along, inner))

    def _wholes_equal(self, left: TensorArgument | None, right: TensorArgument | None, known: ProofContext) -> bool:
        if left is None or right is None:
            return left is right
        if len(left.shape) != len(right.shape) or not sizes_equal(left.shape, right.shape, known):
            return False
        index, binders = bind_indices(left.shape, "i")
        bodies = (w.body.replace_atoms(Substitution(dict(zip(w.index, index, strict=True)))) for w in (left, right))
        one, other = bodies
        return self.proves_equal(one, other, known.assuming(binder_ranges(binders)))

    def _folds_equal(self, left: Fold, right: Fold, known: ProofContext) -> bool:
        if left.monoid == "prod":
            denied = (replace(as_term(piece), coefficient=Fraction(-1)) for piece in right.branches)
            return self._cancel([*map(as_term, left.branches), *denied], known)
        return self.proves_covered(left.branches, right.branches, known) and self.proves_covered(
            right.branches, left.branches, known
        )

    def proves_covered(self, pieces: Iterable[FoldBranch], others: Sequence[FoldBranch], known: ProofContext) -> bool:
        """Return whether each element of one side is among those of the other: maxima and minima ignore repetitions."""
        return all(self._is_covered(as_term(piece), [as_term(o) for o in others], known) for piece in pieces)

    def _is_covered(self, term: Term, others: Sequence[Term], known: ProofContext) -> bool:
        for other in others:
            for there in self._covering_maps(term, other, known):
                reached = substitute_in_formula(range_condition(other), there)
                if domain_context(term, known).proves(reached):
                    return True
                term = replace(term, guard=conjunction(term.guard, negate(reached)))
        return not domain_context(term, known).possible

    def _covering_maps(self, term: Term, other: Term, known: ProofContext) -> Iterator[BinderMap]:
        """Yield where in the other's range its factors are those of the term.

        That is by an alignment, anywhere if all are, or at some place of several.
        """
        yield from islice(self._right_to_left_maps(term, other, known), 1)
        pairs = list(zip(term.factors, other.factors, strict=True))

        def meets(there: BinderMap) -> bool:
            inner = domain_context(term, known).assuming(substitute_in_formula(range_condition(other), there))
            return all(self._factors_equal(f, g, there, inner) for f, g in pairs)

        least = least_indices(other)
        if least and meets(least):
            yield least
        equations = [equation for f, g in pairs for equation in equations_of(f, g)]
        some = covering_index(equations, other.binders, range_condition(other), domain_context(term, known))
        if some is not None and meets(some):
            yield some

    # -- normal form under what is known

    def normalize(self, value: Expr, known: ProofContext) -> list[Term]:
        """Return the terms of a value, simplified by what is known; those that are nowhere defined are left out."""
        if value not in known.normal_forms:
            known.normal_forms[value] = [done for term in value.terms for done in self._normalize_term(term, known, 8)]
        found: list[Term] = known.normal_forms[value]
        return found

    def _normalize_term(self, term: Term, known: ProofContext, fuel: int) -> Iterator[Term]:
        inner = domain_context(term, known)
        if FALSE in inner.facts:
            return
        mapping, binders, guard = eliminate_binders(term, inner)
        simple = self._substitute_factors(term, mapping, inner)
        for new in simple.terms:
            merged = Term(
                term.coefficient * new.coefficient, new.factors, binders + new.binders, conjunction(guard, new.guard)
            )
            merged = self.signs.cancel_inverses(merged, domain_context(merged, known), self)
            merged = self.signs.cancel_sum_over_itself(merged, known, self)
            merged = factor_out_unused_binders(merged, known)
            split = apply_radix_split(merged)
            if split is not None:
                merged = split
            if fuel and (mapping or split is not None or term_complexity(merged) != term_complexity(term)):
                yield from self._normalize_term(merged, known, fuel - 1)
            else:
                yield merged

    def _substitute_factors(self, term: Term, mapping: BinderMap, inner: ProofContext) -> Expr:
        """Return the product of the factors, with everything that is known used in them."""
        change = Substitution(mapping)
        result = constant(1)
        for factor in term.factors:
            moved = expr_of_factor(factor.replace_atoms(change)).replace_atoms(inner)
            result = multiply(result, self._normalize_nested(moved, inner))
        return result

    def _normalize_nested(self, value: Expr, known: ProofContext) -> Expr:
        """Return a rebuilt factor with what is inside of it settled too."""
        factor = single_factor(value)
        if isinstance(factor, OpaqueElement):
            return self._simplify_extremum_place(factor, known)
        if isinstance(factor, Call) and factor.params == (DType.INT64,) and factor.function in INTEGER_SUMS:
            return _whole_number(factor, known) or value
        if isinstance(factor, Call) and (factor.function == "Inverse" or has_sums(factor)):
            args = [Expr(tuple(self.normalize(arg, known))) for arg in factor.args]
            value = call_function(factor.function, *args, params=factor.params)
            factor = single_factor(value)
        if isinstance(factor, Fold):
            pieces = [p for piece in factor.branches for p in self._piece(piece, known)]
            is_product = factor.monoid == "prod"
            return fold(
                factor.monoid,
                [p if is_product and p.body.constant not in (0, 1) else _without_repetition(p, known) for p in pieces],
            )
        if isinstance(factor, Call) and factor.function == "Exp":
            return self.signs.exp_of_log(factor, known)
        return value

    def _simplify_extremum_place(self, element: OpaqueElement, known: ProofContext) -> Expr:
        """Return the greatest element for what lies at its place, and this place for that of the first in order."""
        match element:
            case OpaqueElement(operator, (), (TensorArgument() as row,), (rank,)) if operator in FIRST_OF:
                if known.proves(eq(rank)):
                    return expr_of_factor(OpaqueElement(FIRST_OF[operator], (0,), (row,), ()))
            case OpaqueElement("Gather", (), (TensorArgument() as row, TensorArgument(body=where)), ()):
                place = Expr(tuple(self.normalize(where, known)))
                match single_factor(place):
                    case OpaqueElement(operator, (_,), (along,)) if operator in GREATEST:
                        if self._wholes_equal(row, along, known) and known.proves(ge(row.shape[0], 1)):
                            binders = tuple(zip(row.index, row.shape, strict=True))
                            return fold(GREATEST[operator], [FoldBranch(binders, TRUE, row.body)])
        return expr_of_factor(element)

    def _piece(self, piece: FoldBranch, known: ProofContext) -> Iterator[FoldBranch]:
        """Yield a piece without binders that can have one value only, and without what is nowhere."""
        inner = domain_context(as_term(piece), known)
        if FALSE in inner.facts:
            return
        mapping, binders, guard = eliminate_binders(as_term(piece), inner)
        body = Expr(tuple(self.normalize(piece.body.replace_atoms(Substitution(mapping)), inner)))
        cut = next(find_radix_splits(composites(body), binders), None)
        if cut is not None:
            change, others = Substitution({cut.binder: cut.size}), (p for p in binders if p[0] != cut.binder)
            apart = FoldBranch((*others, *cut.parts), replace_in_formula(guard, change), body.replace_atoms(change))
            yield from self._piece(apart, known)
            return
        kept = conjunction(
            *(
                part
                for part in in_creation_order(conjuncts(guard))
                if not known.assuming(binder_ranges(binders)).proves(part)
            )
        )
        yield FoldBranch(binders, kept, body)


def _whole_number(sum_: Call, known: ProofContext) -> Expr | None:
    """Return a sum or difference of integers that cannot wrap, because of their signs."""
    first, second = map(as_integer, sum_.args)
    if first is None or second is None:
        return None
    second = second * INTEGER_SUMS[sum_.function]
    if any(known.proves(conjunction(ge(first * sign), ge(second * -sign))) for sign in (1, -1)):
        return integer_value(first + second)
    return None


def _without_repetition(piece: FoldBranch, known: ProofContext) -> FoldBranch:
    """Return the piece without binders on which nothing depends, of which there are some: what is counted twice is no
    more, nor is a product of 0 or of 1."""
    used = piece.guard.free_symbols.union(
        piece.body.free_symbols, *(free_symbols(extent) for _, extent in piece.binders)
    )
    kept = (pair for pair in piece.binders if pair[0] in used or not known.proves(ge(pair[1], 1)))
    return replace(piece, binders=tuple(kept))
