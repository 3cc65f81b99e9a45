"""What is derived already: terms are rewritten by kept rules, always to one that comes earlier in the canonical order.

Rules are used both ways, where the result comes earlier, so no rule has to be oriented and every chain ends. A rule
matches where the shapes are what its holes declare; of what it says of constants nothing is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from graphopt.base.types import DType
from graphopt.discover.evaluation import Evaluator, Shape, Undefined, axes_in, names_axes, parted
from graphopt.discover.lifting import renamed
from graphopt.discover.worlds import Sizes, World, commutes, shape_of
from graphopt.ir import ops
from graphopt.language.rule import Rule
from graphopt.language.scalar import PROPERTIES, PYTHON, Unknown, apply
from graphopt.language.term import SCALAR, App, Lit, Term, Var, holes, is_scalar, walk

Type: TypeAlias = tuple[Shape, ...]
"""The shape of a term in each round."""
Order: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True)
class Bound:
    """What the holes and axes of a rule stand for; sizes and packs in each round."""

    holes: Mapping[str, Term]
    axes: Mapping[str, tuple[Any, ...]]

    def having(self, name: str, term: Term) -> Bound | None:
        if name in self.holes:
            return self if self.holes[name] == term else None
        return Bound({**self.holes, name: term}, self.axes)

    def sized(self, axis: str, sizes: tuple[Any, ...]) -> Bound | None:
        if axis == "_":
            return self
        if axis in self.axes:
            return self if self.axes[axis] == sizes else None
        return Bound(self.holes, {**self.axes, axis: sizes})


class Terms:
    """The terms of a world: their shapes and their order."""

    def __init__(self, world: World, choices: Sequence[App], evaluator: Evaluator) -> None:
        self.world, self.evaluator = world, evaluator
        self._place = {choice: i for i, choice in enumerate(choices)}
        self._leaf = {leaf: i for i, leaf in enumerate(world.leaves)}
        self._types: dict[Term, Type | None] = {}
        self._orders: dict[Term, Order] = {}

    def type_of(self, term: Term) -> Type | None:
        """Return the shapes of a term, None where it has none."""
        if term not in self._types:
            holes_ = {leaf.name: leaf for leaf in holes(term)}
            found = []
            try:
                for sizes in self.world.rounds:
                    shapes = {name: shape_of(leaf, sizes) for name, leaf in holes_.items()}
                    found.append(self.evaluator.shape(term, shapes, sizes))
                self._types[term] = tuple(found)
            except Undefined:
                self._types[term] = None
        return self._types[term]

    def order(self, term: Term) -> Order:
        """Return what terms are ordered by: their sizes, operators and operands; as they are enumerated."""
        if term not in self._orders:
            if isinstance(term, App):
                choice, operands = parted(term)
                inner = tuple(map(self.order, operands))
                place = (self._place.get(choice, len(self._place)), str(choice) if choice not in self._place else "")
                self._orders[term] = (1 + sum(order[0] for order in inner), place, inner)
            else:
                known = self._leaf.get(term, len(self._leaf))
                self._orders[term] = (0, (known, str(term)), ())
        return self._orders[term]

    def canonical(self, term: Term) -> Term:
        """Return a term with the operands of operators that commute in order."""
        if not isinstance(term, App):
            return term
        choice, operands = parted(term)
        operands = tuple(map(self.canonical, operands))
        if commutes(choice):
            operands = tuple(sorted(operands, key=self.order))
        return _filled(choice, operands)


def _filled(choice: App, operands: Sequence[Term]) -> App:
    """Return an operator applied to operands, in the places of the holes that wait for them."""
    _, places = parted(choice)
    given = dict(zip(places, operands, strict=True))
    args = tuple(given.get(arg, arg) if isinstance(arg, Var) else arg for arg in choice.args)
    return App(choice.op, args, choice.attrs, choice.domain, choice.output, choice.outputs)


@dataclass(frozen=True)
class _Way:
    """Two equal terms, read in one direction."""

    source: App
    target: Term
    when: tuple[Term, ...]


class Derivation:
    """Rewrites the terms of a world by rules, to the first one that they lead to."""

    def __init__(self, terms: Terms, rules: Iterable[Rule] = ()) -> None:
        self.terms = terms
        self._by_root: dict[str, list[_Way]] = {}
        self._normal: dict[Term, Term] = {}
        for rule in rules:
            self.add(rule)

    def add(self, rule: Rule) -> None:
        """Take a rule, in each direction in which it says what to write."""
        if len(rule.left) > 1:
            return
        self.add_equal(rule.left[0], rule.right[0], rule.conditions)

    def add_equal(self, one: Term, other: Term, when: Sequence[Term] = ()) -> None:
        """Take two equal terms, their holes of the shapes that they declare; where conditions hold."""
        self._normal.clear()
        for source, target in ((one, other), (other, one)):
            bound = {hole.name for hole in holes(source)}
            if isinstance(source, App) and all(hole.name in bound for hole in holes(target)):
                self._by_root.setdefault(source.op, []).append(_Way(source, target, tuple(when)))

    def steps(self, term: Term) -> Iterator[Term]:
        """Yield the earlier terms that one rule makes of a term as a whole."""
        if not isinstance(term, App):
            return
        own = self.terms.order(term)
        for way in self._by_root.get(term.op, ()):
            for bound in self._matches(way.source, term, Bound({}, {})):
                made = self._made(way.target, bound)
                if made is not None and self._holds(way.when, bound) and self.terms.order(made) < own:
                    yield made

    def is_reducible(self, term: Term) -> bool:
        """Return whether a rule makes an earlier term of a term as a whole."""
        return next(self.steps(term), None) is not None

    def normal(self, term: Term) -> Term:
        """Return the term at which rewriting ends."""
        term = self.terms.canonical(term)
        if term not in self._normal:
            self._normal[term] = self._rewritten(term)
        return self._normal[term]

    def _rewritten(self, term: Term) -> Term:
        if not isinstance(term, App):
            return term
        choice, operands = parted(term)
        inner = self.terms.canonical(_filled(choice, [self.normal(each) for each in operands]))
        made = min(self.steps(inner), key=self.terms.order, default=None)
        return inner if made is None else self.normal(made)

    def derives(self, left: Term, right: Term) -> bool:
        """Return whether both terms lead to the same one."""
        return self.normal(left) == self.normal(right)

    # -- matching

    def _matches(self, pattern: Term | None, term: Term | None, bound: Bound) -> Iterator[Bound]:
        """Yield the ways in which a term is an instance of a pattern."""
        match pattern:
            case Var() if term is not None:
                found = self._hole(pattern, term, bound)
                if found is not None:
                    yield found
            case App() if names_axes(pattern) and term is not None and names_axes(term):
                found = self._sizes(axes_in(pattern), axes_in(term), bound) if pattern.op == term.op else None
                if found is not None:
                    yield found
            case App() if isinstance(term, App) and _same_operator(pattern, term):
                yield from self._applied(pattern, term, bound)
            case Lit() | None if pattern == term:
                yield bound

    def _applied(self, pattern: App, term: App, bound: Bound) -> Iterator[Bound]:
        attributes = self._attributes(pattern, term, bound)
        if attributes is None or len(pattern.inputs) != len(term.inputs):
            return
        orders = [pattern.inputs]
        if commutes(parted(term)[0]):
            orders.append(pattern.inputs[::-1])
        for inputs in orders:
            yield from self._all(inputs, term.inputs, attributes)

    def _all(self, patterns: Sequence[Term | None], terms: Sequence[Term | None], bound: Bound) -> Iterator[Bound]:
        if not patterns:
            yield bound
            return
        for found in self._matches(patterns[0], terms[0], bound):
            yield from self._all(patterns[1:], terms[1:], found)

    def _attributes(self, pattern: App, term: App, bound: Bound | None) -> Bound | None:
        given = dict(term.attrs)
        for name, value in pattern.attrs:
            said = given.pop(name) if name in given else _usual(term, name)
            if said is None or bound is None:
                return None
            bound = next(self._matches(value, said, bound), None)
        if pattern.bundle is not None and bound is not None:
            rest = App(pattern.bundle.name, (), tuple(sorted(given.items())), SCALAR)
            return bound.having(pattern.bundle.name, rest)
        return None if given else bound

    def _hole(self, hole: Var, term: Term, bound: Bound | None) -> Bound | None:
        assert bound is not None
        if is_scalar(hole):
            return bound.having(hole.name, term) if isinstance(term, Lit) and _of_kind(hole, term) else None
        shapes = self.terms.type_of(term)
        if shapes is None or (bound := bound.having(hole.name, term)) is None or hole.axes is None:
            return None if shapes is None else bound
        return self._shaped(hole.axes, shapes, bound)

    def _shaped(self, axes: Sequence[str], shapes: Type, bound: Bound | None) -> Bound | None:
        """Return the bindings with what a shape says of the axes that are declared for it."""
        pack = next((i for i, axis in enumerate(axes) if "*" in axis), None)
        rank = len(shapes[0])
        if rank < len(axes) - (pack is not None) or (pack is None and rank != len(axes)):
            return None
        for i, axis in enumerate(axes):
            if bound is None:
                return None
            if pack is not None and i == pack:
                parts = tuple(shape[i : rank - (len(axes) - 1 - i)] for shape in shapes)
                ones = axis.startswith("1") and all(size == 1 for part in parts for size in part)
                bound = bound.sized(axis.removeprefix("1"), parts) if ones == axis.startswith("1") else None
                continue
            sizes = tuple(shape[i if pack is None or i < pack else i - len(axes)] for shape in shapes)
            if axis.isdigit():
                bound = bound if all(size == int(axis) for size in sizes) else None
            else:
                bound = bound.sized(axis, sizes)
        return bound

    def _sizes(self, names: Sequence[str], kinds: Sequence[str], bound: Bound | None) -> Bound | None:
        if len(names) != len(kinds):
            return None
        for name, kind in zip(names, kinds, strict=True):
            bound = bound and bound.sized(name, tuple(sizes[kind] for sizes in self.terms.world.rounds))
        return bound

    # -- making

    def _made(self, target: Term, bound: Bound) -> Term | None:
        """Return the instance of a term, None where the world has no words for it."""
        if isinstance(target, Lit):
            return target
        if isinstance(target, Var):
            return bound.holes[target.name]
        if target.domain == SCALAR:
            return self._computed(target, bound)
        args = [None if arg is None else self._made(arg, bound) for arg in target.inputs]
        attrs = {name: self._made(value, bound) for name, value in target.attrs}
        if None in attrs.values() or any(a is None and b is not None for a, b in zip(args, target.inputs, strict=True)):
            return None
        if target.bundle is not None:
            rest = bound.holes[target.bundle.name]
            assert isinstance(rest, App)
            attrs = {name: value for name, value in attrs.items() if value != _usual(target, name)} | dict(rest.attrs)
        named = tuple(sorted((name, value) for name, value in attrs.items() if value is not None))
        made = App(target.op, tuple(args), named, target.domain, target.output, target.outputs)
        return self.terms.canonical(made)

    def _computed(self, scalar: App, bound: Bound) -> Term | None:
        named = [part for part in walk(scalar) if names_axes(part)]
        if named:
            kinds = {axis: self._kind(bound.axes.get(axis)) for part in named for axis in axes_in(part)}
            known = {axis: kind for axis, kind in kinds.items() if kind is not None}
            return renamed(scalar, known) if len(known) == len(kinds) else None
        try:
            value = self._scalar(scalar, bound, 0)
        except (Unknown, KeyError):
            return None
        return Lit(value) if isinstance(value, int | float | tuple) else None

    def _kind(self, sizes: tuple[Any, ...] | None) -> str | None:
        rounds: tuple[Sizes, ...] = self.terms.world.rounds
        return next((kind for kind in rounds[0] if tuple(each[kind] for each in rounds) == sizes), None)

    # -- conditions

    def _holds(self, when: Sequence[Term], bound: Bound) -> bool:
        try:
            return all(
                self._scalar(condition, bound, round_)
                for condition in when
                for round_ in range(len(self.terms.world.rounds))
            )
        except (Unknown, KeyError):
            return False

    def _scalar(self, term: Term, bound: Bound, round_: int) -> Any:
        """Return the value of a scalar term in one round; what is said of constants is taken to hold."""
        match term:
            case Lit(value=value):
                return value
            case Var(name=name):
                said = bound.holes[name]
                return said.value if isinstance(said, Lit) else None
            case App(op="size"):
                return bound.axes[axes_in(term)[0]][round_]
            case App(op="sizes"):
                return tuple(bound.axes[axis][round_] for axis in axes_in(term))
            case App(op="rank" | "shape", args=(Var(name=name),)):
                shape = (self.terms.type_of(bound.holes[name]) or ((),))[round_]
                return shape if term.op == "shape" else len(shape)
            case App(op="dtype"):
                return DType.FLOAT
            case App(op=name) if name in PROPERTIES:
                return True
        return apply(term.op, PYTHON, *(self._scalar(arg, bound, round_) for arg in term.operands))


@ops.reads_schemas
def _usual(app: App, name: str) -> Lit | None:
    """Return the default of an attribute, which terms do not write."""
    schema = ops.schema(app.op, app.domain)
    found = ops.attribute_value(schema.attributes[name].default_value) if schema and name in schema.attributes else None
    return Lit(found) if isinstance(found, int | float | str) else None


def _same_operator(pattern: App, term: App) -> bool:
    return (pattern.op, pattern.domain, pattern.output, pattern.outputs) == (
        *(term.op, term.domain, term.output, term.outputs),
    )


def _of_kind(hole: Var, literal: Lit) -> bool:
    """Return whether a number or a list is one that a hole stands for."""
    wanted: dict[str, type | tuple[type, ...]] = {
        "integer": int,
        "integers": tuple,
        "real": (int, float),
        "string": str,
    }
    return isinstance(literal.value, wanted[hole.kind])
