"""Derivation of equations from kept rules: terms are rewritten, always to one that is earlier in the canonical order.

Rules are used in whichever direction leads to an earlier term, so none has to be oriented and every chain ends. A rule
matches where shapes are as its holes declare; its conditions on constants are taken to hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeAlias

from graphopt.base.dtype import DType
from graphopt.discover.evaluation import Evaluator, Shape, UndefinedTerm, is_axis_size, split_operands
from graphopt.discover.generalization import rename_axes
from graphopt.discover.worlds import World, commutes, get_leaf_shape
from graphopt.ir import schemas
from graphopt.language.rule import Rule
from graphopt.language.scalar_evaluation import ScalarAlgebra
from graphopt.language.scalar_functions import UndecidedScalarError
from graphopt.language.terms import SCALAR, App, Lit, Term, Var, axis_arguments, holes, is_scalar, walk_term

Type: TypeAlias = tuple[Shape, ...]
"""The shape of a term in each round."""
Order: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True)
class TermBinding:
    """Terms that the holes of a rule stand for, and the sizes and packs of its axes in each round."""

    holes: Mapping[str, Term]
    axes: Mapping[str, tuple[Any, ...]]

    def bind_hole(self, name: str, term: Term) -> TermBinding | None:
        if name in self.holes:
            return self if self.holes[name] == term else None
        return TermBinding({**self.holes, name: term}, self.axes)

    def bind_axis(self, axis: str, sizes: tuple[Any, ...]) -> TermBinding | None:
        if axis == "_":
            return self
        if axis in self.axes:
            return self if self.axes[axis] == sizes else None
        return TermBinding(self.holes, {**self.axes, axis: sizes})


class WorldTerms:
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
                    shapes = {name: get_leaf_shape(leaf, sizes) for name, leaf in holes_.items()}
                    found.append(self.evaluator.shape(term, shapes, sizes))
                self._types[term] = tuple(found)
            except UndefinedTerm:
                self._types[term] = None
        return self._types[term]

    def order(self, term: Term) -> Order:
        """Return the sort key of a term: its size, operators and operands, in the order of enumeration."""
        if term not in self._orders:
            if isinstance(term, App):
                choice, operands = split_operands(term)
                inner = tuple(map(self.order, operands))
                place = (self._place.get(choice, len(self._place)), str(choice) if choice not in self._place else "")
                self._orders[term] = (1 + sum(order[0] for order in inner), place, inner)
            else:
                known = self._leaf.get(term, len(self._leaf))
                self._orders[term] = (0, (known, str(term)), ())
        return self._orders[term]

    def canonical(self, term: Term) -> Term:
        """Return a term with the operands of commutative operators in order."""
        if not isinstance(term, App):
            return term
        choice, operands = split_operands(term)
        operands = tuple(map(self.canonical, operands))
        if commutes(choice):
            operands = tuple(sorted(operands, key=self.order))
        return _apply_operator(choice, operands)


def _apply_operator(choice: App, operands: Sequence[Term]) -> App:
    """Return an operator applied to operands, in the places of its holes."""
    _, places = split_operands(choice)
    given = dict(zip(places, operands, strict=True))
    args = tuple(given.get(arg, arg) if isinstance(arg, Var) else arg for arg in choice.args)
    return App(choice.op, args, choice.attrs, choice.domain, choice.output, choice.outputs)


@dataclass(frozen=True)
class _DirectedRule:
    """An equation of two terms, read in one direction."""

    source: App
    target: Term
    when: tuple[Term, ...]


class Derivation:
    """Rewrites the terms of a world by rules, to the first term that they lead to."""

    def __init__(self, terms: WorldTerms, rules: Iterable[Rule] = ()) -> None:
        self.terms = terms
        self._by_root: dict[str, list[_DirectedRule]] = {}
        self._normal: dict[Term, Term] = {}
        for rule in rules:
            self.add(rule)

    def add(self, rule: Rule) -> None:
        """Add a rule, in each direction in which the left side binds all holes of the right."""
        if len(rule.left) > 1:
            return
        self.add_equal(rule.left[0], rule.right[0], rule.conditions)

    def add_equal(self, one: Term, other: Term, when: Sequence[Term] = ()) -> None:
        """Add an equation of terms, for holes with the shapes that they declare."""
        self._normal.clear()
        for source, target in ((one, other), (other, one)):
            bound = {hole.name for hole in holes(source)}
            if isinstance(source, App) and all(hole.name in bound for hole in holes(target)):
                self._by_root.setdefault(source.op, []).append(_DirectedRule(source, target, tuple(when)))

    def steps(self, term: Term) -> Iterator[Term]:
        """Yield the earlier terms that one rule makes of a whole term."""
        if not isinstance(term, App):
            return
        own = self.terms.order(term)
        for way in self._by_root.get(term.op, ()):
            for bound in self._matches(way.source, term, TermBinding({}, {})):
                made = self._instantiate(way.target, bound)
                if made is not None and self._holds(way.when, bound) and self.terms.order(made) < own:
                    yield made

    def is_reducible(self, term: Term) -> bool:
        """Return whether a rule makes an earlier term of the whole term."""
        return next(self.steps(term), None) is not None

    def normalize(self, term: Term) -> Term:
        """Return the term at which rewriting ends."""
        term = self.terms.canonical(term)
        if term not in self._normal:
            self._normal[term] = self._rewritten(term)
        return self._normal[term]

    def _rewritten(self, term: Term) -> Term:
        if not isinstance(term, App):
            return term
        choice, operands = split_operands(term)
        inner = self.terms.canonical(_apply_operator(choice, [self.normalize(each) for each in operands]))
        made = min(self.steps(inner), key=self.terms.order, default=None)
        return inner if made is None else self.normalize(made)

    def derives(self, left: Term, right: Term) -> bool:
        """Return whether both terms lead to the same one."""
        return self.normalize(left) == self.normalize(right)

    # -- matching

    def _matches(self, pattern: Term | None, term: Term | None, bound: TermBinding) -> Iterator[TermBinding]:
        """Yield the ways in which a term is an instance of a pattern."""
        match pattern:
            case Var() if term is not None:
                found = self._hole(pattern, term, bound)
                if found is not None:
                    yield found
            case App() if is_axis_size(pattern) and term is not None and is_axis_size(term):
                found = (
                    self._sizes(axis_arguments(pattern), axis_arguments(term), bound) if pattern.op == term.op else None
                )
                if found is not None:
                    yield found
            case App() if isinstance(term, App) and _operator_and_output(pattern) == _operator_and_output(term):
                yield from self._match_operator(pattern, term, bound)
            case Lit() | None if pattern == term:
                yield bound

    def _match_operator(self, pattern: App, term: App, bound: TermBinding) -> Iterator[TermBinding]:
        attributes = self._attributes(pattern, term, bound)
        if attributes is None or len(pattern.inputs) != len(term.inputs):
            return
        orders = [pattern.inputs]
        if commutes(split_operands(term)[0]):
            orders.append(pattern.inputs[::-1])
        for inputs in orders:
            yield from self._match_all(inputs, term.inputs, attributes)

    def _match_all(
        self, patterns: Sequence[Term | None], terms: Sequence[Term | None], bound: TermBinding
    ) -> Iterator[TermBinding]:
        if not patterns:
            yield bound
            return
        for found in self._matches(patterns[0], terms[0], bound):
            yield from self._match_all(patterns[1:], terms[1:], found)

    def _attributes(self, pattern: App, term: App, bound: TermBinding | None) -> TermBinding | None:
        given = dict(term.attrs)
        for name, value in pattern.attrs:
            said = given.pop(name) if name in given else _attribute_default(term, name)
            if said is None or bound is None:
                return None
            bound = next(self._matches(value, said, bound), None)
        if pattern.attributes_hole is not None and bound is not None:
            rest = App(pattern.attributes_hole.name, (), tuple(sorted(given.items())), SCALAR)
            return bound.bind_hole(pattern.attributes_hole.name, rest)
        return None if given else bound

    def _hole(self, hole: Var, term: Term, bound: TermBinding | None) -> TermBinding | None:
        assert bound is not None
        if is_scalar(hole):
            return bound.bind_hole(hole.name, term) if isinstance(term, Lit) and _of_kind(hole, term) else None
        shapes = self.terms.type_of(term)
        if shapes is None or (bound := bound.bind_hole(hole.name, term)) is None or hole.axes is None:
            return None if shapes is None else bound
        return self._bind_shape(hole.axes, shapes, bound)

    def _bind_shape(self, axes: Sequence[str], shapes: Type, bound: TermBinding | None) -> TermBinding | None:
        """Return the bindings, extended by the sizes that a shape gives to declared axes."""
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
                bound = bound.bind_axis(axis.removeprefix("1"), parts) if ones == axis.startswith("1") else None
                continue
            sizes = tuple(shape[i if pack is None or i < pack else i - len(axes)] for shape in shapes)
            if axis.isdigit():
                bound = bound if all(size == int(axis) for size in sizes) else None
            else:
                bound = bound.bind_axis(axis, sizes)
        return bound

    def _sizes(self, names: Sequence[str], kinds: Sequence[str], bound: TermBinding | None) -> TermBinding | None:
        if len(names) != len(kinds):
            return None
        for name, kind in zip(names, kinds, strict=True):
            bound = bound and bound.bind_axis(name, tuple(sizes[kind] for sizes in self.terms.world.rounds))
        return bound

    # -- making

    def _instantiate(self, target: Term, bound: TermBinding) -> Term | None:
        """Return the instance of a term, None if the world cannot express it."""
        if isinstance(target, Lit):
            return target
        if isinstance(target, Var):
            return bound.holes[target.name]
        if target.domain == SCALAR:
            return self._instantiate_scalar(target, bound)
        args = [None if arg is None else self._instantiate(arg, bound) for arg in target.inputs]
        attrs = {name: self._instantiate(value, bound) for name, value in target.attrs}
        if None in attrs.values() or any(a is None and b is not None for a, b in zip(args, target.inputs, strict=True)):
            return None
        if target.attributes_hole is not None:
            rest = bound.holes[target.attributes_hole.name]
            assert isinstance(rest, App)
            attrs = {name: value for name, value in attrs.items() if value != _attribute_default(target, name)} | dict(
                rest.attrs
            )
        named = tuple(sorted((name, value) for name, value in attrs.items() if value is not None))
        made = App(target.op, tuple(args), named, target.domain, target.output, target.outputs)
        return self.terms.canonical(made)

    def _instantiate_scalar(self, scalar: App, bound: TermBinding) -> Term | None:
        named = [part for part in walk_term(scalar) if is_axis_size(part)]
        if named:
            rounds = self.terms.world.rounds
            kind_of = {tuple(sizes[kind] for sizes in rounds): kind for kind in reversed(list(rounds[0]))}
            kinds = {axis: kind_of.get(bound.axes.get(axis, ())) for part in named for axis in axis_arguments(part)}
            known = {axis: kind for axis, kind in kinds.items() if kind is not None}
            return rename_axes(scalar, known) if len(known) == len(kinds) else None
        try:
            value = _RoundScalars(self.terms, bound, 0).evaluate(scalar)
        except (UndecidedScalarError, KeyError):
            return None
        return Lit(value) if isinstance(value, int | float | tuple) else None

    # -- conditions

    def _holds(self, when: Sequence[Term], bound: TermBinding) -> bool:
        try:
            return all(
                _RoundScalars(self.terms, bound, round_).evaluate(condition)
                for condition in when
                for round_ in range(len(self.terms.world.rounds))
            )
        except (UndecidedScalarError, KeyError):
            return False


@dataclass(frozen=True)
class _RoundScalars(ScalarAlgebra):
    """Bindings of holes and axes in one round; properties of constants are taken to hold."""

    terms: WorldTerms
    bound: TermBinding
    round: int

    def hole(self, hole: Var) -> Any:
        said = self.bound.holes[hole.name]
        return said.value if isinstance(said, Lit) else None

    def sizes(self, axes: Sequence[str]) -> tuple[Any, ...]:
        return tuple(self.bound.axes[axis][self.round] for axis in axes)

    def shape(self, of: Term) -> Shape:
        if not isinstance(of, Var):
            return super().shape(of)
        return (self.terms.type_of(self.bound.holes[of.name]) or ((),))[self.round]

    def dtype(self, _of: Term) -> DType:
        return DType.FLOAT

    def property_holds(self, _app: App, _more: Iterator[Any]) -> bool:
        return True


@schemas.memoized_by_schema
def _attribute_default(app: App, name: str) -> Lit | None:
    """Return the default of an attribute, which terms leave out."""
    schema = schemas.schema(app.op, app.domain)
    found = (
        schemas.attribute_value(schema.attributes[name].default_value) if schema and name in schema.attributes else None
    )
    return Lit(found) if isinstance(found, int | float | str) else None


_operator_and_output = attrgetter("op", "domain", "output", "outputs")


def _of_kind(hole: Var, literal: Lit) -> bool:
    """Return whether a number or a list is one that a hole stands for."""
    wanted: dict[str, type | tuple[type, ...]] = {
        "integer": int,
        "integers": tuple,
        "real": (int, float),
        "string": str,
    }
    return isinstance(literal.value, wanted[hole.kind])
