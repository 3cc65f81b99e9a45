"""Horizontal fusion: rules that merge branches sharing an input, from rules on their results side by side.

Where `Concat(f(x), g(x))` is one operator on x, the branches f and g are the two parts of its result: a rule with two
outputs, which no single term expresses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache

from graphopt.base.errors import RuleError
from graphopt.discover.batch_arithmetic import Field
from graphopt.discover.evaluation import Evaluator, Shape, UndefinedTerm
from graphopt.discover.generalization import map_term, name_of
from graphopt.language.rule import Rule
from graphopt.language.terms import App, Lit, Term, fn, holes, is_scalar, op
from graphopt.operators.operator_classes import lookup_operator

PRIMES = (53, 47, 43, 41, 37, 31, 29, 23, 19, 17)
"""Distinct sizes of axes; earlier axes, as those of images, are larger than later ones, as those of kernels."""


def merge_branches(rules: Iterable[Rule]) -> Iterator[Rule]:
    """Yield, for rules that join branches into one operator, the rule that merges the branches themselves."""
    for rule in rules:
        if len(rule.left) == 1:
            for joined, whole in ((rule.left[0], rule.right[0]), (rule.right[0], rule.left[0])):
                made = _build_merge_rule(rule, joined, whole)
                if made is not None:
                    yield made


def _joins(app: App) -> bool:
    return lookup_operator(app.op, app.domain).is_concatenation


def _build_merge_rule(rule: Rule, joined: Term, whole: Term) -> Rule | None:
    if not (isinstance(joined, App) and _joins(joined) and isinstance(whole, App) and not _joins(whole)):
        return None
    branches = joined.operands
    axis = dict(joined.attrs)["axis"]
    if not all(isinstance(branch, App) for branch in branches) or not isinstance(axis, Lit):
        return None
    tensors = [{hole.name for hole in holes(branch) if not is_scalar(hole)} for branch in branches]
    if not set.intersection(*tensors):
        return None
    lengths = [_find_axis_name(rule, branch, axis) for branch in branches]
    if None in lengths:
        return None
    parts = op.Split.split(len(branches), whole, fn.sizes(" ".join(map(str, lengths))), axis=axis)
    try:
        return Rule(f"merge_{name_of(branches[0], parts[0])}", tuple(branches), tuple(parts), rule.conditions)
    except RuleError:
        return None


@cache
def _evaluator() -> Evaluator:
    return Evaluator(Field())


def _find_axis_name(rule: Rule, branch: Term, axis: Lit) -> str | None:
    """Return the name of the axis along which a branch is joined to the others, if it is an axis of a hole."""
    tensors = [hole for hole in rule.holes.values() if hole.kind in ("tensor", "const")]
    if any(hole.axes is None for hole in tensors):
        return None
    names = dict.fromkeys(name for hole in tensors for name in hole.axes or () if not name.isdigit())
    sizes = dict(zip((name for name in names if "*" not in name), PRIMES, strict=False))
    sizes |= {name: 1 for name in names if "*" in name}  # a window fits into any image
    shapes: Mapping[str, Shape] = {
        hole.name: tuple(int(name) if name.isdigit() else sizes[name] for name in hole.axes or ()) for hole in tensors
    }

    def plain(part: Term) -> Term | None:
        """Return an operator with the usual attributes in the place of those that are left open."""
        if isinstance(part, App) and part.attributes_hole is not None:
            args = tuple(None if arg is None else map_term(arg, plain) for arg in part.inputs)
            return App(part.op, args, part.attrs, part.domain, part.output, part.outputs)
        return None

    try:
        shape = _evaluator().shape(map_term(branch, plain), shapes, sizes)
    except (UndefinedTerm, KeyError):
        return None
    place = axis.value
    assert isinstance(place, int)
    found = [name for name, size in sizes.items() if -len(shape) <= place < len(shape) and shape[place] == size]
    return found[0] if found and "*" not in found[0] else None
