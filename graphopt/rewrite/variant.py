"""Variants of a graph: values, each with the steps that made it of a copy of another.

A copy shares nodes and tensors, so that a variant costs little more than the edges of its graph.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from graphopt.ir.graph import Graph
from graphopt.rewrite.fixpoint import Cause, Step
from graphopt.rewrite.regions import digest


@dataclass(frozen=True, eq=False)
class Variant:
    """A graph, which is not changed any more, and how it came about."""

    graph: Graph
    steps: tuple[Step, ...] = ()
    """They made it of a copy of the base's graph."""
    base: Variant | None = None

    def then(self, change: Callable[[Graph], Iterable[Step]]) -> Variant:
        """Return what a change makes of a copy: the variant itself where it takes no step."""
        graph = self.graph.copy()
        steps = tuple(change(graph))
        return Variant(graph, steps, self) if steps else self

    @cached_property
    def key(self) -> str:
        """The digest of its graph."""
        return digest(self.graph)

    @property
    def history(self) -> tuple[Step, ...]:
        """All steps, from the first variant on."""
        return (*self._before, *self.steps)

    @property
    def _before(self) -> tuple[Step, ...]:
        return () if self.base is None else self.base.history

    @property
    def causes(self) -> tuple[Cause, ...]:
        """What its steps were made for, in their order, but for simplification."""
        return tuple(dict.fromkeys(step.cause for step in self.history if step.cause is not None))

    @contextmanager
    def after(self, count: int) -> Iterator[Graph]:
        """Give the graph as it was after so many steps of its history, for reading, until the context ends."""
        done = len(self._before)
        if self.base is not None and count < done:
            with self.base.after(count) as graph:
                yield graph
            return
        undone = 0
        try:
            for step in reversed(self.steps[count - done :]):
                step.undo()
                undone += 1
            yield self.graph
        finally:
            for step in self.steps[len(self.steps) - undone :]:
                step.redo()

    def backwards(self) -> Generator[Step]:
        """Yield the steps of its history, the last first, each while its graph is as the step left it."""
        count = len(self.steps)
        try:
            for step in reversed(self.steps):
                yield step
                step.undo()
                count -= 1
        finally:
            for step in self.steps[count:]:
                step.redo()
        if self.base is not None:
            yield from self.base.backwards()
