"""What could not be shown, in the words of the rule: its own names, and what to try next."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from graphopt.base.dtype import DType
from graphopt.expr.expressions import Expr, OpaqueElement, walk_factors
from graphopt.expr.integers import TRUE, Formula, Polynomial, eq, polynomial_of_atom
from graphopt.expr.substitution import Substitution
from graphopt.expr.symbolic_tensors import SymbolicTensor
from graphopt.language.rule import Rule
from graphopt.language.terms import App, Lit, Term, fn
from graphopt.operators.operator_classes import depends_on_dtype
from graphopt.verifier import element_types
from graphopt.verifier.context import ProofContext
from graphopt.verifier.element_types import Typing
from graphopt.verifier.symbolic_instance import SymbolicInstance
from graphopt.verifier.symbolic_logic import to_formula

MAX_CHARACTERS = 160
"""Characters up to which an expression is shown whole."""
REASONS = 3
"""Most reasons that are given why a left side does not occur."""
UNDER_A_CONDITION = "if it holds under a condition only, add it with `when=`: of sizes, attributes, or constants"
WRAPS = "it computes in integers, which may wrap around, and what its operators mean is of numbers that do not"
CAST_ALIKE = "only the element types differ in which it is computed: cast alike on both sides"
PROVED_WITH_CONDITION = "it is proved with the condition"
HELPFUL = ("is_nonzero", "is_positive", "is_nonnegative")
"""The properties of constants of which it is tried whether a proof lacks only them."""

_INTERNAL = re.compile(r"(\w*)'\d+")
_TYPE = re.compile(rf"\b({'|'.join(dtype.name for dtype in DType)})\b")


EqualGiven: TypeAlias = "Callable[[Mapping[str, frozenset[str]], Formula], bool]"
"""Predicate that says if two elements are equal, given properties of constants and a fact."""


def describe_instance(instance: SymbolicInstance) -> str:
    """Return the ranks and attributes of an instance."""
    shown = [f"*{name} of {_count(len(sizes), 'axis', 'axes')}" for name, sizes in instance.packs.items()]
    if depends_on_dtype(instance.rule):
        shown += [f"{name} of {dtype.name}" for name, dtype in instance.typing.types.items()]
    shown += [f"{name} absent" for name, absent in instance.absences.items() if absent]
    for name, value in instance.bindings.items():
        if isinstance(value, SymbolicTensor):
            if instance.rule.holes[name].axes is None and not instance.absences.get(name):
                shown.append(f"{name} of rank {value.rank}")
        elif isinstance(value, tuple) and value and all(isinstance(item, Polynomial) for item in value):
            shown.append(f"{name} of {_count(len(value), 'number', 'numbers')}")
        elif not isinstance(value, Polynomial | Expr):  # which is any number
            shown.append(f"{name}={list(value) if isinstance(value, tuple) else value}")
    return ", ".join(shown) or "in general"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


class Wording:
    """Renders sizes, formulas and values with the names that the rule gives them."""

    def __init__(self, instance: SymbolicInstance) -> None:
        self._names = dict(_names(instance))
        self._letters = iter("ijklnpqrstuvz")

    def __call__(self, *subjects: object) -> str:
        text = self.in_full(*subjects)
        return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}…"

    def in_full(self, *subjects: object) -> str:
        text = _INTERNAL.sub(self._name, ", ".join(map(str, subjects))).replace("[]", "")
        return text.replace("!(", "(").replace("~(", "(")

    def _name(self, match: re.Match[str]) -> str:
        """Return a letter for an index that runs; what else has no name in the rule is called what it is."""
        internal, what = match[0], match[1]
        if internal not in self._names:
            self._names[internal] = next(self._letters, what) if len(what) == 1 else what
        return self._names[internal]


def _names(instance: SymbolicInstance) -> Iterator[tuple[str, str]]:
    """Yield what the rule calls the integers that have a name of ours."""
    for name, value in instance.bindings.items():
        if isinstance(value, SymbolicTensor):
            yield from _of_list(value.shape, f"{name}.shape")
        elif isinstance(value, Polynomial):
            yield str(value), name
        elif isinstance(value, tuple):
            yield from _of_list(value, name)
    for name, sizes in instance.packs.items():  # the name that the rule declares rather than that of a hole
        yield from _of_list(sizes, f"*{name}")


def _of_list(items: Iterable[object], name: str) -> Iterator[tuple[str, str]]:
    return ((str(item), f"{name}[{i}]") for i, item in enumerate(items) if isinstance(item, Polynomial))


# -- what to try next ----------------------------------------------------------------------------------------------


def about_sizes(one: str, other: str) -> list[str]:
    """Return what makes two sizes equal."""
    if one.isidentifier() and other.isidentifier():
        asked = f'`when=fn.eq(fn.size("{one}"), fn.size("{other}"))`'
        return [f"where {one} and {other} are the same size, name the axes alike; else add {asked}"]
    if ".shape[" in one + other:
        return ["name the axes, alike where sizes are the same: `tensor(NAME, AXES)` declares them"]
    return [f"where it holds under a condition only, add it with `when=…`: {one} = {other}"]


def about_elements(wording: Wording, left: Expr, right: Expr, rule: Rule) -> list[str]:
    """Return the two elements without what they have in common, and what a name stands for that both have."""
    common = set(left.terms) & set(right.terms)
    sides = (replace(side, terms=tuple(t for t in side.terms if t not in common)) for side in (left, right))
    one, other = map(wording, sides)
    beside = ", beside what is the same on the right" if common else ""
    lines = [f"left   {one}{beside}", f"right  {other}"]
    pairs = zip(_elements_in(left), _elements_in(right), strict=False)
    apart = next(((a, b) for a, b in pairs if a != b and a.operator == b.operator), None)
    return lines if apart is None else [*lines, *_about_wholes(wording, *apart, rule)]


def differ_in_types_only(wording: Wording, left: Expr, right: Expr, rule: Rule) -> bool:
    """Return whether two elements are computed alike, but for the element types that operators compute in."""
    one, other = wording.in_full(left), wording.in_full(right)
    pairs = [*zip(_elements_in(left), _elements_in(right), strict=False)]
    if _TYPE.sub("", one) != _TYPE.sub("", other) or (one == other and all(a.params == b.params for a, b in pairs)):
        return False
    return all(
        _attributes(a) == _attributes(b) and not any(_about_wholes(wording, a, b, rule)) for a, b in pairs if a != b
    )


def _attributes(element: OpaqueElement) -> list[object]:
    """Return the parameters of an operator that is not looked into, without element types."""
    return [p for p in element.params if not (isinstance(p, DType) or (isinstance(p, tuple) and p[0] == "types"))]


def _elements_in(value: Expr) -> Iterator[OpaqueElement]:
    """Yield what operators that are not looked into make, in order, those inside of functions too."""
    return (factor for factor in walk_factors(value) if isinstance(factor, OpaqueElement))


def _about_wholes(wording: Wording, left: OpaqueElement, right: OpaqueElement, rule: Rule) -> Iterator[str]:
    """Yield the tensors of which an operator makes what is not shown to be equal."""
    for one, other in zip(left.operands, right.operands, strict=False):
        if one is None or other is None or len(one.shape) != len(other.shape):
            continue
        change = Substitution(
            {own: polynomial_of_atom(index) for own, index in zip(other.index, one.index, strict=True)}
        )
        place = wording(*map(polynomial_of_atom, one.index))  # first, so that its letters are those in order
        mine, theirs = wording(one.body), wording(other.body.replace_atoms(change))
        if mine != theirs:
            name = left.operator.removeprefix("any ")
            yield f"{name} reads a tensor whose element [{place}] is {mine} on the left, and {theirs} on the right"
            yield "what is made of a whole tensor is the same, bit for bit, only of the same: additions have an order"
            yield from about_classes(rule)
            return


def about_classes(rule: Rule) -> Iterator[str]:
    """Yield what to do where only the class of an operator is known."""
    if rule.operator_holes:
        names = " and ".join(rule.operator_holes)
        yield (
            f"of {names} only the class is known, so operands have to be the same, bit for bit: what holds for some"
            " operators by itself is a rule for each, `*(Rule(…) for f in (op.…, op.…))`"
        )


def find_helpful_conditions(instance: SymbolicInstance, equal: EqualGiven) -> Iterator[Term]:
    """Conditions that rules often lack, under which the elements are equal."""
    for hole in (hole for hole in instance.rule.holes.values() if hole.kind == "const"):
        for name in HELPFUL:
            said = instance.properties.get(hole.name, frozenset())
            if equal({**instance.properties, hole.name: said | {name}}, TRUE):
                yield getattr(fn, name)(hole)


def with_hint(advice: Iterable[str], hint: str) -> list[str]:
    """Return the advice with a hint in the place of the general one."""
    lines = list(advice)
    if not hint or any(line.startswith(PROVED_WITH_CONDITION) for line in lines):
        return lines
    return [*(line for line in lines if line != UNDER_A_CONDITION), hint]


def format_condition(condition: Term | None) -> str:
    """Return a condition as it is written in Python."""
    match condition:
        case App(op=name, args=args):
            return f"fn.{name}({', '.join(map(format_condition, args))})"
        case Lit(value=str(value)):
            return f'"{value}"'
    return str(condition)


def about_operators(reason: str) -> list[str]:
    """Return what to do where the verifier lacks a meaning."""
    if reason.startswith("no denotation"):
        return ["the verifier does not say what this operator computes: operators/semantics.py lists those it knows"]
    return []


def about_time(seconds: float) -> list[str]:
    return [
        f"`graphopt verify --timeout {6 * seconds:g}` takes longer",
        "axes with names and attributes that are written leave fewer cases",
    ]


def about_types(rule: Rule, choices: Sequence[Typing]) -> list[str]:
    """Return a condition on element types that leaves only those for which the right side is well-typed."""
    for name in (name for name, hole in rule.holes.items() if hole.kind in ("tensor", "const")):
        floats = [typing for typing in choices if typing.types[name].is_float]
        if floats and element_types.find_type_disagreement(rule, floats) is None:
            return [f"it is well-typed with this condition: `when=fn.is_float(fn.dtype({name}))`"]
    return []


# -- why a left side does not occur ----------------------------------------------------------------------------------


def explain_untypable(rule: Rule) -> str:
    """Why no element types fit."""
    if not element_types.enumerate_typings(replace(rule, when=())):
        return "no element types fit the operators of the left side"
    for condition in rule.conditions:
        if not element_types.enumerate_typings(replace(rule, when=condition)):
            return f"no element types for which {condition} holds fit the left side"
    return "no element types for which all conditions hold fit the left side"


def explain_contradiction(instance: SymbolicInstance, before: ProofContext) -> str:
    """Which conditions no sizes fulfil, given what was known before them."""
    if not before.possible:
        return "no sizes are what the operators of the left side ask for"
    conditions = {c: to_formula(instance.scalar(c)) for c in instance.rule.conditions}
    for condition, said in conditions.items():
        if not before.assuming(said).possible:
            return f"{condition} does not hold for any sizes"
    kept: list[str] = []
    known = before
    for condition, said in conditions.items():
        kept.append(str(condition))
        known = known.assuming(said)
        if not known.possible:
            break
    return f"these do not hold together: {', '.join(kept)}"


def explain_vacuous(reasons: Counter[str]) -> str:
    """Why no way to read the left side occurs: the most frequent reasons."""
    most = reasons.most_common(REASONS)
    if len(reasons) == 1:
        return f"the left side never occurs: {most[0][0]}"
    total = sum(reasons.values())
    lines = [f"{count} of {total}: {reason}" for reason, count in most]
    return "\n".join(["the left side never occurs, by ranks and attributes:", *lines])


def format_properties(instance: SymbolicInstance) -> str:
    """Return what the conditions say of constants."""
    return ", ".join(f"{said}({name})" for name, known in instance.properties.items() for said in sorted(known))


def explain_only_empty(instance: SymbolicInstance) -> str:
    """Which sizes are 0 wherever the left side occurs."""
    wording = Wording(instance)
    sizes = {wording(size): size for tensor in instance.hole_tensors() for size in tensor.shape}
    empty = [name for name, size in sizes.items() if instance.context.proves(eq(size, 0))]
    if empty:
        return f"it occurs only where {', '.join(empty)} is 0"
    return "no sizes of at least 1 were found for which the conditions hold"
