"""Terms up to a size, by what they compute: those with equal values on random tensors are in one class.

A term is one operator on classes of smaller terms, each represented by its first term in the canonical order: so a term
costs one evaluation, and thousands are evaluated at once. The order is by size, then by operators, then by operands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from graphopt.base.errors import UsageError
from graphopt.discover.batch_arithmetic import Array, BatchArithmetic, Field, Reals, seeded_generator
from graphopt.discover.evaluation import Evaluator, Kernel, Shape, UndefinedTerm, number_of
from graphopt.discover.worlds import Sizes, World, apply_choice, arity, commutes, get_leaf_shape
from graphopt.language.terms import App, Lit, Term, Var
from graphopt.operators.operator_classes import is_broadcasting

Numbers: TypeAlias = NDArray[np.int64]
Type: TypeAlias = tuple[Shape, ...]
"""The shape of a term in each round."""

BATCH_SIZE = 1 << 12
"""Terms that are evaluated together."""
SAMPLES = 3
"""Values that each hole has in a round: a single number may be positive by accident."""
MAX_TERMS = 20_000_000
"""Terms of one size that are told apart; at some 100 bytes each while they are sorted, they take less than 4 GB."""


@dataclass
class Columns:
    """Some terms of one size, in columns: the choice of an operator and the classes of its operands."""

    choice: Numbers
    first: Numbers
    second: Numbers
    key: Numbers
    """Fingerprints in the field, over all rounds."""
    real: Numbers
    """Fingerprints over the real numbers; 0 where there is none."""
    ordered: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.choice)

    def at(self, places: Array) -> Columns:
        return Columns(*(column[places] for column in self.columns))

    @property
    def columns(self) -> tuple[Array, ...]:
        return self.choice, self.first, self.second, self.key, self.real, self.ordered

    @staticmethod
    def concatenate(parts: Sequence[Columns]) -> Columns:
        empty = (np.zeros(0, np.int64),) * 5
        return Columns(*map(np.concatenate, zip(*(p.columns for p in parts), (*empty, np.zeros(0, bool)), strict=True)))


@dataclass
class EqualTerms:
    """A term, and an earlier one that computes the same."""

    term: Term
    other: Term


class EquivalenceClasses:
    """The classes of a world, size by size."""

    def __init__(self, world: World, choices: Sequence[App], seed: int, top: int) -> None:
        self.world, self.choices, self.seed, self.max_size = world, choices, seed, top
        self.evaluators = (Evaluator(Field()), Evaluator(Reals()))
        self.arithmetics = tuple(each.arithmetic for each in self.evaluators)
        self.evaluated_count = 0
        self.terms: list[Term] = list(world.leaves)
        """Terms that represent the classes of which larger terms are made."""
        self.count = len(world.leaves)
        self.size = 0
        self._starts = [0, self.count]
        """Index of the first class of each size."""
        self._kernels: dict[tuple[App, tuple[Type, ...]], list[list[Kernel]] | None] = {}
        self._types: dict[Type, int] = {}
        self._type_of = np.zeros(0, np.int64)
        self._row_of = np.zeros(0, np.int64)
        self._values: list[list[list[Array]]] = []
        """Values of each class, by type, arithmetic and round."""
        self._key, self._real, self._ordered = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, bool)
        self._hole_orders = _HoleOrders(world)
        self._broadcast_types = {
            tuple(get_leaf_shape(hole, sizes) for sizes in world.rounds) for hole in world.broadcast_leaves
        }
        for leaf in world.leaves:
            values = self._leaf(leaf)
            type_ = tuple(get_leaf_shape(leaf, sizes) for sizes in world.rounds)
            number, rows = self._store(type_, values)
            key, real = (
                self._fingerprints(a, rounds, type_) for a, rounds in zip(self.arithmetics, values, strict=True)
            )
            self._add_classes(np.array([number]), rows, key, real, np.array([False]))
        self._has_hole = np.array(
            [isinstance(leaf, Var) and leaf not in world.broadcast_leaves for leaf in world.leaves]
        )
        """Mask of the classes with a hole. No term is made of numbers alone, or of leaves that only broadcast."""
        self._is_expandable = np.ones(len(world.leaves), bool)

    # -- what is kept of classes

    def _leaf(self, leaf: Term) -> list[list[Array]]:
        """Return the values of a leaf, by arithmetic and round."""

        def made(arithmetic: BatchArithmetic, number: int, sizes: Sizes) -> Array:
            if isinstance(leaf, Lit):
                return np.repeat(arithmetic.constant(number_of(leaf)), SAMPLES, axis=1)
            assert isinstance(leaf, Var)
            return arithmetic.draw_tensors((self.seed, number, leaf.name), (SAMPLES, *get_leaf_shape(leaf, sizes)))

        return [[made(a, i, sizes) for i, sizes in enumerate(self.world.rounds)] for a in self.arithmetics]

    def _store(self, type_: Type, values: list[list[Array]]) -> tuple[int, Numbers]:
        """Keep the values of new classes of one type; return the number of the type, and the row of each class."""
        number = self._types.setdefault(type_, len(self._types))
        if number == len(self._values):
            self._values.append([[array[:, :0] for array in rounds] for rounds in values])
        before = self._values[number][0][0].shape[1] // SAMPLES
        for kept, rounds in zip(self._values[number], values, strict=True):
            for i, array in enumerate(rounds):
                kept[i] = np.concatenate([kept[i], array], axis=1)
        return number, np.arange(before, self._values[number][0][0].shape[1] // SAMPLES)

    def _add_classes(self, type_of: Numbers, row_of: Numbers, key: Numbers, real: Numbers, ordered: Array) -> None:
        """Give numbers to new classes, whose values are kept."""
        self._type_of = np.concatenate([self._type_of, type_of])
        self._row_of = np.concatenate([self._row_of, row_of])
        self._key = np.concatenate([self._key, key])
        self._real = np.concatenate([self._real, real])
        self._ordered = np.concatenate([self._ordered, ordered])

    # -- terms of the next size

    def grow(self) -> Iterator[EqualTerms]:
        """Tell the terms of the next size apart; yield those equal to another one, up to names, in canonical order."""
        self.size += 1
        found = Columns.concatenate(list(self._evaluate_terms()))
        found = found.at(np.lexsort((found.second, found.first, found.choice)))
        self.evaluated_count += len(found)
        class_of, new = self._assign_classes(found)
        before, self.count = self.count, self.count + len(new)
        uses = self._hole_orders.update(found, class_of, new)
        self._starts.append(self.count)
        if self.size < self.max_size:  # nothing is made of the largest
            self._keep(found.at(new))
            self.terms += [self._build_term(found, int(place)) for place in new]
        for place in np.flatnonzero(uses):
            own = int(class_of[place])
            other = self.terms[own] if own < len(self.terms) else self._build_term(found, int(new[own - before]))
            yield EqualTerms(self._build_term(found, int(place)), other)

    def _build_term(self, found: Columns, place: int) -> App:
        choice = self.choices[found.choice[place]]
        operands = [self.terms[found.first[place]]]
        if arity(choice) == 2:
            operands.append(self.terms[found.second[place]])
        return apply_choice(choice, *operands)

    def _of_size(self, size: int) -> dict[int, Numbers]:
        """Return the classes of a size by type."""
        classes = np.arange(self._starts[size], self._starts[size + 1])
        classes = classes[self._is_expandable[classes]]
        types = self._type_of[classes]
        return {int(t): classes[types == t] for t in np.unique(types)}

    def _evaluate_terms(self) -> Iterator[Columns]:
        """Yield all terms of the next size, thousands at a time."""
        work = list(self._work())
        count = sum(len(first) * (1 if second is None else len(second)) for _, _, first, second in work)
        if count > MAX_TERMS:
            raise UsageError(
                f"there are {count:,} terms of {self.size} operators in the world of {self.world.name}, and"
                f" {MAX_TERMS:,} fit into memory: name fewer operators with --ops, or a smaller --size"
            )
        for number, kernels, first, second in work:
            for some, others in _pairs(first, second, commutes(self.choices[number])):
                holed = self._has_hole[some] if others is None else self._has_hole[some] | self._has_hole[others]
                some, others = some[holed], others if others is None else others[holed]
                if len(some):
                    yield self._evaluate_batch(number, kernels, some, others)

    def _work(self) -> Iterator[tuple[int, list[list[Kernel]], Numbers, Numbers | None]]:
        types = list(self._types)
        for number, choice in enumerate(self.choices):
            if arity(choice) == 1:
                for t, classes in self._of_size(self.size - 1).items():
                    if kernels := self._find_kernels(choice, types[t]):
                        yield number, kernels, classes, None
                continue
            for left in range(self.size):
                right = self.size - 1 - left
                if commutes(choice) and left > right:
                    continue
                for (t, first), (u, second) in product(self._of_size(left).items(), self._of_size(right).items()):
                    if kernels := self._find_kernels(choice, types[t], types[u]):
                        yield number, kernels, first, second

    def _find_kernels(self, choice: App, *types: Type) -> list[list[Kernel]] | None:
        """Return the kernels of an operator; None if it has none, or is applied to leaves that only broadcast."""
        if not is_broadcasting(choice.op, choice.domain) and not self._broadcast_types.isdisjoint(types):
            return None
        return self._get_kernels(choice, *types)

    def _get_kernels(self, choice: App, *types: Type) -> list[list[Kernel]] | None:
        """Return the kernels of an operator for operands of these types, by arithmetic and round; None where it has
        none."""
        key = choice, types
        if key not in self._kernels:
            rounds = list(zip(self.world.rounds, zip(*types, strict=True), strict=True))
            try:
                self._kernels[key] = [
                    [each.kernel(choice, shapes, sizes) for sizes, shapes in rounds] for each in self.evaluators
                ]
            except UndefinedTerm:
                self._kernels[key] = None
        return self._kernels[key]

    def _evaluate_batch(
        self, number: int, kernels: list[list[Kernel]], first: Numbers, second: Numbers | None
    ) -> Columns:
        operands = (first,) if second is None else (first, second)
        type_ = tuple(each.shape for each in kernels[0])
        key, real = (
            self._fingerprints(arithmetic, self._results(position, kernels[position], operands), type_)
            for position, arithmetic in enumerate(self.arithmetics)
        )
        ordered = np.any([self._ordered[some] for some in operands], axis=0) | kernels[0][0].is_ordered
        count = len(first)
        return Columns(
            np.full(count, number), first, np.full(count, -1) if second is None else second, key, real, ordered
        )

    def _results(self, position: int, kernels: Sequence[Kernel], operands: Sequence[Numbers]) -> list[Array]:
        """Return the values of terms in one arithmetic, round by round."""
        stored = [self._values[self._type_of[classes[0]]][position] for classes in operands]  # each of one type
        rows = [(self._row_of[classes][:, None] * SAMPLES + np.arange(SAMPLES)).ravel() for classes in operands]
        found = []
        for round_, kernel in enumerate(kernels):
            with np.errstate(all="ignore"):
                found.append(kernel.compute([v[round_][:, own] for v, own in zip(stored, rows, strict=True)]))
        return found

    def _fingerprints(self, arithmetic: BatchArithmetic, rounds: Sequence[Array], type_: Type) -> Numbers:
        """Return one number for the values of each term in all rounds and samples; 0 where it lacks one of them."""
        parts = np.concatenate([arithmetic.fingerprints(v).reshape(-1, SAMPLES) for v in rounds], axis=1)
        mixed = seeded_generator("type", type_).integers(0, 2**63, len(parts[:1])).astype(np.uint64)
        for part in parts.T.astype(np.uint64):
            mixed = (mixed ^ part) * np.uint64(0x9E3779B97F4A7C15)
            mixed = mixed ^ mixed >> np.uint64(29)
        return np.where((parts == 0).any(axis=1), 0, mixed.astype(np.int64))

    # -- classes

    def _assign_classes(self, found: Columns) -> tuple[Numbers, Numbers]:
        """Return the class of each term, and the indices of the terms that begin a new one."""
        class_of = _first_positions(self._key, found.key)
        by_value = np.where(found.real == 0, -1, _first_positions(self._real, found.real))
        agrees = found.ordered | (self._ordered[by_value] > 0)
        class_of = np.where((class_of < 0) & (by_value >= 0) & agrees, by_value, class_of)
        rest = np.flatnonzero(class_of < 0)
        leader = _first_of_equals(found.key[rest])  # each term's first equal, as a place in `rest`
        real = found.real[rest]
        alone = np.where((real == 0) | ~found.ordered[rest], -1 - np.arange(len(rest)), real)
        leader = leader[_first_of_equals(alone[leader])]
        first = np.flatnonzero(leader == np.arange(len(rest)))
        number = np.full(len(rest), -1)
        number[first] = self.count + np.arange(len(first))
        class_of[rest] = number[leader]
        return class_of, rest[first]

    def _keep(self, new: Columns) -> None:
        """Compute the values of new classes again, and keep them."""
        types = list(self._types)
        second = np.where(new.second < 0, -1, self._type_of[new.second])
        kinds, kind_of = np.unique(
            np.stack([new.choice, self._type_of[new.first], second]), axis=1, return_inverse=True
        )
        type_of, row_of = np.zeros(len(new), np.int64), np.zeros(len(new), np.int64)
        for kind, (choice, t, u) in enumerate(kinds.T):
            places = np.flatnonzero(kind_of == kind)
            kernels = self._get_kernels(self.choices[choice], types[t], *([types[u]] if u >= 0 else []))
            assert kernels is not None
            operands = [new.first[places], *([new.second[places]] if u >= 0 else [])]
            values = [self._results(position, each, operands) for position, each in enumerate(kernels)]
            type_of[places], row_of[places] = self._store(tuple(each.shape for each in kernels[0]), values)
        self._add_classes(type_of, row_of, new.key, new.real, new.ordered)
        self._has_hole = np.concatenate([self._has_hole, np.ones(len(new), bool)])
        constant = map(self._is_constant, type_of.tolist(), row_of.tolist())
        self._is_expandable = np.concatenate([self._is_expandable, ~np.fromiter(constant, bool, len(new))])

    def _is_constant(self, type_: int, row: int) -> bool:
        """Return whether a class has one number for all elements, as x - x has: terms made of it are seldom wanted."""
        values = self._values[type_][0]
        rows = [array[0, row * SAMPLES : (row + 1) * SAMPLES] for array in values]
        return all((array == rows[0].flat[0]).all() for array in rows)


def _pairs(first: Numbers, second: Numbers | None, commutes: bool) -> Iterator[tuple[Numbers, Numbers | None]]:
    """Yield all operands, or pairs of them, some thousands at a time."""
    if second is None:
        for start in range(0, len(first), BATCH_SIZE):
            yield first[start : start + BATCH_SIZE], None
        return
    step = max(1, BATCH_SIZE // len(second))
    for start in range(0, len(first), step):
        some = np.repeat(first[start : start + step], len(second))
        others = np.tile(second, len(first[start : start + step]))
        if commutes:
            some, others = some[some <= others], others[some <= others]
        if len(some):
            yield some, others


def _first_positions(known: Numbers, wanted: Numbers) -> Numbers:
    """Return the first position at which each number is known, or -1."""
    if not len(known):
        return np.full(len(wanted), -1)
    numbers, places = np.unique(known, return_index=True)
    at = np.minimum(np.searchsorted(numbers, wanted), len(numbers) - 1)
    return np.where(numbers[at] == wanted, places[at], -1)


def _first_of_equals(numbers: Numbers) -> Numbers:
    """Return, for each position, the first one with the same number."""
    _, places, back = np.unique(numbers, return_index=True, return_inverse=True)
    return np.asarray(places[back])


class _HoleOrders:
    """Orders in which terms use interchangeable holes: of equations that differ only in names, one is kept."""

    def __init__(self, world: World) -> None:
        kinds: dict[object, list[int]] = {}
        for number, leaf in enumerate(world.leaves):
            if isinstance(leaf, Var):
                kinds.setdefault(leaf.axes, []).append(number)
        self.groups = list(kinds.values())
        self.codes: list[Numbers] = []
        """Number of the sequence in which a class uses the holes of a group, by group and class."""
        for group in self.groups:
            sequences, leaves = self.sequences(len(group)), range(len(world.leaves))
            codes = [sequences.index((group.index(leaf),)) if leaf in group else 0 for leaf in leaves]
            self.codes.append(np.array(codes))

    @staticmethod
    def sequences(count: int) -> list[tuple[int, ...]]:
        return [s for length in range(count + 1) for s in permutations(range(count), length)]

    def update(self, found: Columns, class_of: Numbers, new: Numbers) -> NDArray[np.bool_]:
        """Add new classes; return which terms are to be told as equal to another, their holes named in order."""
        wanted = np.ones(len(found), bool)
        wanted[new] = False
        grown = []
        for group, codes in zip(self.groups, self.codes, strict=True):
            sequences = self.sequences(len(group))
            place = {sequence: i for i, sequence in enumerate(sequences)}
            both = np.array([[place[(*s, *(i for i in t if i not in s))] for t in sequences] for s in sequences])
            own = both[codes[found.first], np.where(found.second < 0, 0, codes[found.second])]
            codes = np.concatenate([codes, own[new]])
            in_order = np.array([s == tuple(range(len(s))) for s in sequences])
            wanted &= in_order[both[codes[class_of], own]]
            grown.append(codes)
        self.codes = grown
        return wanted
