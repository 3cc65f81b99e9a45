"""From two equal terms of a world to rules: which sizes have to be the same, for which ranks, under which conditions.

In a world all axes of a kind have one size. Here each axis first gets a name of its own, and other sizes show which
have to be the same. Then more is left open: ranks, axes, attributes. Drawn instances refute what was left too open, and
also show which condition is missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from itertools import combinations, islice, product
from typing import Any, TypeAlias

from graphopt.base.errors import RuleError
from graphopt.discover.equivalence_classes import SAMPLES, EqualTerms
from graphopt.discover.evaluation import Evaluator, Shape, UndefinedTerm, is_axis_size, split_operands, with_axes
from graphopt.discover.worlds import World
from graphopt.ir import schemas
from graphopt.language.proof import Proof
from graphopt.language.rule import Rule
from graphopt.language.scalar_functions import UndecidedScalarError
from graphopt.language.terms import (
    SCALAR,
    App,
    Lit,
    Term,
    Var,
    attributes,
    axis_arguments,
    const,
    fn,
    holes,
    integer,
    integers,
    is_scalar,
    operator_applications,
    tensor,
    walk_term,
)
from graphopt.language.type_inference import NoInstance
from graphopt.operators.operator_classes import lookup_operator

Evaluators: TypeAlias = Sequence[Evaluator]
DrawnInstance: TypeAlias = Any
"""An instance that the verifier drew: sizes, attributes and values."""

DRAWN = 8
"""Instances on which a rule is tried before it is proved."""
PACKS = {"L": "*s", "K": "*k", "S": "*s"}
"""Axes of which there may be any number, by kind: those of images, of kernels, of vectors."""
DIVISIONS = 8
"""Most partitions of axes that are tried: parts that vary alone need not vary together."""
RUN_INSTANCES = 4
"""Instances on which a proved rule is run."""
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

# -- which sizes have to be the same -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class SeparatedTerms:
    """Two equal terms in which each axis has a name of its own."""

    left: Term
    right: Term
    kinds: Mapping[str, str]
    """Kind of axes of the world, by the name of an axis."""


def separate_axes(equal: EqualTerms) -> SeparatedTerms:
    """Return two equal terms with a name of its own for each axis of a hole and each part of a Split."""
    kinds: dict[str, str] = {}
    made: dict[App, App] = {}

    def named(axis: str, name: str) -> str:
        if axis.isdigit():
            return axis
        kinds[name] = axis
        return name

    def renamed(term: Term) -> Term:
        if isinstance(term, Var) and term.axes is not None:
            return tensor(term.name, " ".join(named(a, f"{term.name.upper()}{i}") for i, a in enumerate(term.axes)))
        if not isinstance(term, App):
            return term
        if is_axis_size(term):
            number = sum(name.startswith("PART") for name in kinds)
            return with_axes(term, (named(axis, f"PART{number + i}") for i, axis in enumerate(axis_arguments(term))))
        node = term.node
        if node not in made:
            args = tuple(None if arg is None else renamed(arg) for arg in node.args)
            made[node] = replace(node, args=args, attrs=tuple((key, renamed(value)) for key, value in node.attrs))
        return replace(made[node], output=term.output)

    return SeparatedTerms(renamed(equal.term), renamed(equal.other), kinds)


def find_axis_partition(this: SeparatedTerms, world: World, evaluators: Evaluators) -> list[frozenset[str]] | None:
    """Return which axes have to be of one size: the finest partition whose parts may each have another size.

    None where the two terms are not equal once the sizes of the parts differ: they are by an accident of the sizes.
    """
    usual = {name: world.rounds[0][kind] for name, kind in this.kinds.items()}

    @cache
    def may_vary(block: frozenset[str]) -> bool:
        return _agree(this, {name: size + (name in block) for name, size in usual.items()}, evaluators)

    def divided(left: Sequence[str]) -> Iterator[list[frozenset[str]]]:
        """Yield the partitions of axes into parts that may vary independently, the finest first."""
        if not left:
            yield []
            return
        first, *others = left
        alike = [name for name in others if this.kinds[name] == this.kinds[first]]
        for count in range(len(alike) + 1):
            for more in combinations(alike, count):
                if may_vary(block := frozenset((first, *more))):
                    for rest in divided([name for name in left if name not in block]):
                        yield [block, *rest]

    for found in islice(divided(list(this.kinds)), DIVISIONS):
        sizes = {name: usual[name] + place for place, block in enumerate(found) for name in block}
        if _agree(this, sizes, evaluators):
            return found
    return None


def _agree(this: SeparatedTerms, sizes: Mapping[str, int], evaluators: Evaluators) -> bool:
    """Return whether both terms are defined at these sizes, and equal."""
    of = {leaf.name: leaf for side in (this.left, this.right) for leaf in holes(side) if not is_scalar(leaf)}
    shapes = {name: tuple(int(a) if a.isdigit() else sizes[a] for a in leaf.axes or ()) for name, leaf in of.items()}
    return are_equal((this.left,), (this.right,), shapes, sizes, evaluators) is True


def are_equal(
    left: Sequence[Term],
    right: Sequence[Term],
    shapes: Mapping[str, Shape],
    sizes: Mapping[str, int],
    evaluators: Evaluators,
) -> bool | None:
    """Return whether terms are equal on random tensors in one arithmetic; None if the left ones are undefined."""
    answers = [_are_equal(left, right, shapes, sizes, evaluator) for evaluator in evaluators]
    return None if None in answers else any(answers)


def _are_equal(
    left: Sequence[Term], right: Sequence[Term], shapes: Mapping[str, Shape], sizes: Mapping[str, int], by: Evaluator
) -> bool | None:
    values = {name: by.arithmetic.draw_tensors((0, name), (SAMPLES, *shape)) for name, shape in shapes.items()}
    try:
        before = [by.value(side, values, sizes) for side in left]
    except UndefinedTerm:
        return None
    try:
        after = [by.value(side, values, sizes) for side in right]
    except UndefinedTerm:
        return False
    return all(
        one.shape[2:] == other.shape[2:]
        and bool((by.arithmetic.fingerprints(one) == by.arithmetic.fingerprints(other)).all())
        for one, other in zip(before, after, strict=True)
    )


# -- forms of a rule ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GeneralizationLadder:
    """Rules for ever fewer models, by steps: the first step with a rule that holds is the one that is kept."""

    steps: tuple[tuple[Rule, ...], ...]

    @property
    def narrowest(self) -> Rule:
        return self.steps[-1][-1]


def build_ladders(equal: EqualTerms, world: World, evaluators: Evaluators) -> list[GeneralizationLadder] | None:
    """Return the rules that two equal terms may be, one ladder for each direction that somebody may want.

    None where they are equal by an accident of the sizes of the world.
    """
    typed = share_axes(equal, world, evaluators)
    if typed is None:
        return None
    left, right, kinds = typed
    found = []
    for source, target in directions(left, right):
        name = name_of(source, target)
        steps = [
            *_any_rank_forms(name, source, target),
            *_packed(name, source, target, world, kinds),
            (_rule(name, source, target),),
        ]
        kept = [tuple(rule for rule in step if rule is not None) for step in steps]
        if kept := [step for step in kept if step]:
            found.append(GeneralizationLadder(tuple(dict.fromkeys(kept))))
    return found


def share_axes(equal: EqualTerms, world: World, evaluators: Evaluators) -> tuple[Term, Term, Mapping[str, str]] | None:
    """Return two equal terms in which axes have one name only where they have to be of one size; and the axes' kinds.

    None where they are equal by an accident of the sizes of the world.
    """
    this = separate_axes(equal)
    parts = find_axis_partition(this, world, evaluators)
    if parts is None:
        return None
    names = dict(zip(parts, LETTERS, strict=False))
    axes = {name: names[block] for block in parts for name in block}
    left, right = (rename_axes(side, axes) for side in (this.left, this.right))
    return left, right, {axes[name]: kind for name, kind in this.kinds.items()}


def directions(one: Term, other: Term) -> list[tuple[Term, Term]]:
    """Return the directions in which an equation may be wanted: to the lesser weight, or both if that is equal."""
    weights = measure_weight(one), measure_weight(other)
    ways = [(one, other), (other, one)]
    if weights[0] != weights[1]:
        ways = ways[:1] if weights[0] > weights[1] else ways[1:]
    if canonical_text(ways[0]) == canonical_text(ways[-1]):
        ways = ways[:1]
    return [(source, target) for source, target in ways if can_be_written(source, target)]


def canonical_text(terms: Sequence[Term]) -> str:
    """Return some terms as text, their holes and axes named in the order in which they appear."""
    names: dict[str, str] = {}
    text = " -> ".join(str(term) for term in terms)
    for hole in (hole for term in terms for hole in holes(term)):
        axes = " ".join(
            names.setdefault(axis, f"A{len(names)}") if axis.isalpha() else axis for axis in hole.axes or ()
        )
        names.setdefault(hole.name, f"hole{len(names)}:{axes}")
    return re.sub(r"\b\w+\b", lambda found: names.get(found[0], found[0]), text)


def can_be_written(source: Term, target: Term) -> bool:
    """Return whether a rule may lead from one term to another: the first has all holes of the second."""
    bound = {hole.name for hole in holes(source)}
    return isinstance(source, App) and all(hole.name in bound for hole in holes(target))


def measure_weight(*terms: Term) -> int:
    """Return the measure of terms that simplification makes smaller; shared parts count once."""
    nodes = {app.node for term in terms for app in operator_applications(term)}
    return sum(lookup_operator(node.op, node.domain).weight for node in nodes)


def name_of(*terms: Term) -> str:
    """Return a name made of the operators of both sides, with a digest to tell it from rules with the same."""
    source, target = ("_".join(app.op.lower() for app in operator_applications(term)) or "operand" for term in terms)
    axes = ({(hole.name, " ".join(hole.axes or ())) for hole in holes(term)} for term in terms)
    described = " -> ".join(f"{term} {sorted(own)}" for term, own in zip(terms, axes, strict=True))
    digest = sha256(described.encode()).hexdigest()[:6]
    return f"{source}_to_{target}_{digest}"


def _rule(name: str, source: Term, target: Term, when: tuple[Term, ...] = ()) -> Rule | None:
    """Return the rule, None if it cannot be written because the left side does not bind some size on the right."""
    try:
        return Rule(name, source, target, when)
    except RuleError:
        return None


def rename_axes(term: Term, axes: Mapping[str, str]) -> Term:
    """Return a term with other names for its axes."""

    def changed(part: Term) -> Term | None:
        if isinstance(part, Var) and part.axes:
            return replace(part, axes=tuple(axes.get(axis, axis) for axis in part.axes))
        if is_axis_size(part):
            return with_axes(part, (axes.get(axis, axis) for axis in axis_arguments(part)))
        return None

    return map_term(term, changed)


def map_term(term: Term, change: Any) -> Term:
    """Return a term with parts replaced, outermost first, by what `change` returns unless that is None."""
    new: Term | None = change(term)
    if new is not None:
        return new
    if not isinstance(term, App):
        return term
    args = tuple(None if arg is None else map_term(arg, change) for arg in term.args)
    attrs = tuple((name, map_term(value, change)) for name, value in term.attrs)
    return App(term.op, args, attrs, term.domain, term.output, term.outputs)


# -- more left open ----------------------------------------------------------------------------------------------------


def _any_rank_forms(name: str, source: Term, target: Term) -> Iterator[tuple[Rule | None, ...]]:
    """Yield the rule for tensors of any rank: first with axes left open, too, then as they are written."""
    if any(is_axis_size(part) for side in (source, target) for part in walk_term(side)):
        return

    left, right = (drop_axes(_open_windows(side)) for side in (source, target))
    opened = _open_axes(left), _open_axes(right)
    if opened != (left, right):
        yield (_rule(name, *opened),)
    yield (_rule(name, left, right),)


def drop_axes(term: Term) -> Term:
    """Return a term whose holes declare no axes."""

    def changed(part: Term) -> Term | None:
        return tensor(part.name) if isinstance(part, Var) and not is_scalar(part) else None

    return map_term(term, changed)


def _open_axes(term: Term) -> Term:
    """Return a term with holes for the axes that its operators name."""

    def changed(part: Term) -> Term | None:
        if not isinstance(part, App) or part.domain == SCALAR:
            return None
        attrs = tuple((name, _hole_for(name, value)) for name, value in part.attrs)
        args = tuple(
            None if arg is None else integers("axes") if isinstance(arg, Lit) and isinstance(arg.value, tuple) else arg
            for arg in part.args
        )
        if (attrs, args) == (part.attrs, part.args):
            return None
        inner = tuple(None if arg is None else map_term(arg, changed) for arg in args)
        return App(part.op, inner, attrs, part.domain, part.output, part.outputs)

    return map_term(term, changed)


def _hole_for(name: str, value: Term) -> Term:
    if name == "axis" and isinstance(value, Lit) and isinstance(value.value, int):
        return integer("axis" if value.value in (-1, 1) else "other")
    return integers("perm") if name == "perm" else value


def _open_windows(term: Term, *, plain: bool = False) -> Term:
    """Return a term whose operators with windows have any attributes, the same for all of them.

    Where `plain`, those that are single numbers (groups, how sizes are rounded) are as they are by default.
    """

    def changed(part: Term) -> Term | None:
        if (
            not isinstance(part, App)
            or not lookup_operator(part.op, part.domain).requires_spatial_axes
            or not part.attrs
        ):
            return None
        args = tuple(None if arg is None else map_term(arg, changed) for arg in part.args)
        named = _usual_numbers(part.op) if plain else ()
        return App(part.op, (*args, attributes("rest")), named, part.domain, part.output, part.outputs)

    return map_term(term, changed)


@cache
def _usual_numbers(name: str) -> tuple[tuple[str, Term], ...]:
    """Return the attributes of an operator that are whole numbers by default, with these defaults."""
    schema = schemas.schema(name)
    usual = {key: schemas.attribute_value(a.default_value) for key, a in schema.attributes.items()} if schema else {}
    return tuple(sorted((key, Lit(value)) for key, value in usual.items() if isinstance(value, int)))


def _packed(
    name: str, source: Term, target: Term, world: World, kinds: Mapping[str, str]
) -> Iterator[tuple[Rule | None, ...]]:
    """Yield the rule for stacks of matrices, or for images of any rank."""
    sides = (source, target)
    if world.pack == "front":
        everywhere = frozenset(hole.name for side in sides for hole in holes(side) if len(hole.axes or ()) > 1)
        beside = everywhere - _weights(sides)
        yield tuple(
            _rule(name + suffix, _stacked(source, which), _stacked(target, which))
            for which, suffix in (
                (everywhere, ""),
                *([(beside, "_by_matrix")] if beside not in (everywhere, set()) else []),
            )
        )
    if world.pack == "behind":

        def changed(part: Term) -> Term | None:
            if not isinstance(part, Var) or not part.axes:
                return None
            return replace(part, axes=tuple(PACKS.get(kinds.get(a, ""), a) for a in part.axes))

        for plain in (False, True):
            left, right = (map_term(_open_windows(side, plain=plain), changed) for side in sides)
            yield (_rule(name, left, right),)


def _stacked(term: Term, which: frozenset[str]) -> Term:
    def changed(part: Term) -> Term | None:
        return replace(part, axes=("*b", *(part.axes or ()))) if isinstance(part, Var) and part.name in which else None

    return map_term(term, changed)


def _weights(sides: Sequence[Term]) -> frozenset[str]:
    """Return the holes that occur only as right factors of products."""
    right, left = set[str](), set[str]()

    def look(term: Term, is_right: bool) -> None:
        if isinstance(term, Var):
            (right if is_right else left).add(term.name)
        elif isinstance(term, App):
            for i, operand in enumerate(split_operands(term)[1]):
                look(operand, is_right or (term.op == "MatMul" and i == 1))

    for side in sides:
        look(side, False)
    return frozenset(right - left)


# -- drawn instances ---------------------------------------------------------------------------------------------------


def partition_instances(rule: Rule, evaluators: Evaluators) -> tuple[list[DrawnInstance], list[DrawnInstance]]:
    """Return the drawn instances at which a rule holds, and those at which it does not."""
    from graphopt.verifier.instance_sampling import sample_instances

    good: list[DrawnInstance] = []
    bad: list[DrawnInstance] = []
    for instance in islice(sample_instances(rule, seed=3, count=DRAWN, attempts=400), DRAWN):
        try:
            found = _holds_at(rule, instance, evaluators)
        except (NoInstance, UndecidedScalarError, KeyError):
            continue
        if found is not None:
            (good if found else bad).append(instance)
    return good, bad


def find_runtime_difference(rule: Rule, proof: Proof) -> str:
    """Return how both sides of a rule differ when ONNX Runtime runs them at drawn instances; empty if they agree.

    A proof believes declarations of operators; this does not. Only element types that the proof covers are drawn.
    """
    from graphopt.verifier.counterexample import compare_sides
    from graphopt.verifier.instance_sampling import sample_instances
    from graphopt.verifier.sampling_scope import ANY

    scope = replace(ANY, dtypes=tuple(filter(proof.licenses, ANY.dtypes)))
    for instance in islice(
        sample_instances(rule, seed=5, count=RUN_INSTANCES, attempts=400, scope=scope), RUN_INSTANCES
    ):
        if (found := compare_sides(rule, instance)) is not None:
            return str(found)
    return ""


def _holds_at(rule: Rule, instance: DrawnInstance, evaluators: Evaluators) -> bool | None:
    """Return whether both sides are equal at the shapes and attributes of an instance; None if the left is
    undefined."""
    from graphopt.verifier.concrete_instance import array_of, evaluate_scalar_at

    def number(part: Term) -> Term | None:
        if isinstance(part, App) and part.domain != SCALAR:
            attrs = dict(part.attrs)
            rest = instance.values[part.attributes_hole.name] if part.attributes_hole is not None else {}
            given = {n: evaluate_scalar_at(v, rule, instance) for n, v in attrs.items()} | dict(rest)
            args = tuple(None if arg is None else map_term(arg, number) for arg in part.inputs)
            named = tuple(sorted((n, Lit(v)) for n, v in given.items()))
            return App(part.op, args, named, part.domain, part.output, part.outputs)
        return Lit(evaluate_scalar_at(part, rule, instance)) if is_scalar(part) and not isinstance(part, Lit) else None

    of = {name: hole for name, hole in rule.holes.items() if hole.kind in ("tensor", "const")}
    shapes = {name: array_of(rule, instance, name).shape for name in of}
    left, right = ([map_term(side, number) for side in each] for each in (rule.left, rule.right))
    return are_equal(left, right, shapes, {}, evaluators)


# -- conditions --------------------------------------------------------------------------------------------------------


def with_conditions(rule: Rule) -> Iterator[Rule]:
    """Yield a rule with one or two of the conditions that such rules often lack."""
    axes = [hole for hole in rule.holes.values() if hole.kind == "integer"]
    tensors = [hole for hole in rule.holes.values() if hole.kind == "tensor"]
    floats = [fn.is_float(fn.dtype(hole)) for hole in tensors[:1]]
    some = [fn.le(1, fn.size(axis)) for axis in dict.fromkeys(a for h in tensors for a in h.axes or () if a.isalpha())]
    for one, other in combinations(axes, 2):
        some.append(fn.ne(*(fn.normalize_indices(axis, fn.rank(tensors[0])) for axis in (one, other))))
    for condition in (*floats, *some):
        yield _with(rule, condition)
    for first, second in product(floats, some):
        yield _with(rule, first, second)
    for hole in tensors:
        known = const(hole.name, None if hole.axes is None else " ".join(hole.axes))
        yield _with(_replace_hole(rule, hole, known), fn.is_nonzero(known))
        yield _with(_replace_hole(rule, hole, known), fn.is_positive(known))


def _with(rule: Rule, *more: Term) -> Rule:
    return replace(rule, when=(*rule.conditions, *more))


def _replace_hole(rule: Rule, hole: Var, other: Var) -> Rule:
    def changed(part: Term) -> Term | None:
        return other if part == hole else None

    left, right, when = (
        tuple(map_term(t, changed) for t in terms) for terms in (rule.left, rule.right, rule.conditions)
    )
    return Rule(rule.name, left if len(left) > 1 else left[0], right if len(right) > 1 else right[0], when, rule.why)


def repair_rule(rule: Rule, good: Sequence[DrawnInstance], bad: Sequence[DrawnInstance]) -> Iterator[Rule]:
    """Yield a rule with a condition that holds at some of the good instances, and at none of the bad ones."""
    from graphopt.verifier.concrete_instance import satisfies

    for candidate in with_conditions(rule):
        try:
            if any(satisfies(candidate, i) for i in good) and not any(satisfies(candidate, i) for i in bad):
                yield candidate
        except (UndecidedScalarError, KeyError):
            continue
