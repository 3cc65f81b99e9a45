"""Candidates: graphs that a model may be turned into, each with the steps that made it of a copy of another.

A copy shares nodes and tensors, so that a candidate costs little more than the edges of its graph.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from graphopt.ir.graph import Graph
from graphopt.rewrite.regions import graph_digest
from graphopt.rewrite.simplify import Cause, Step


@dataclass(frozen=True, eq=False)
class Candidate:
    """A graph that is not changed any more, and the steps that led to it."""

    graph: Graph
    steps: tuple[Step, ...] = ()
    """All steps, from the graph that was loaded on."""
    base: Candidate | None = None
    """The candidate of which a copy was changed; its steps come first."""

    def derive(self, change: Callable[[Graph], Iterable[Step]]) -> Candidate:
        """Return the candidate that a change makes of a copy; the same candidate if the change takes no step."""
        graph = self.graph.copy()
        steps = tuple(change(graph))
        return Candidate(graph, (*self.steps, *steps), self) if steps else self

    @cached_property
    def key(self) -> str:
        """The digest of its graph."""
        return graph_digest(self.graph)

    @property
    def causes(self) -> tuple[Cause, ...]:
        """Finds and sweeps that its steps were made for, in their order."""
        return tuple(dict.fromkeys(step.cause for step in self.steps if step.cause is not None))

    @property
    def own_steps(self) -> tuple[Step, ...]:
        """The steps that made it of its base."""
        return self.steps[len(self.base.steps) if self.base is not None else 0 :]

    @property
    def is_tidied(self) -> bool:
        """True where its own steps only simplify what finds and sweeps have made."""
        return bool(self.causes) and all(step.cause is None for step in self.own_steps)

    @property
    def chain(self) -> tuple[Candidate, ...]:
        """The candidates of which one after the other was changed, from the graph that was loaded to itself."""
        return (*(self.base.chain if self.base is not None else ()), self)

    @contextmanager
    def graph_after(self, count: int) -> Iterator[Graph]:
        """Give the graph as it was after a number of steps, for reading, until the context ends."""
        if self.base is not None and count < len(self.base.steps):
            with self.base.graph_after(count) as graph:
                yield graph
            return
        undone: list[Step] = []
        try:
            for step in reversed(self.steps[count:]):
                step.undo()
                undone.append(step)
            yield self.graph
        finally:
            for step in reversed(undone):
                step.redo()

    def iter_steps_backwards(self) -> Generator[Step]:
        """Yield the steps, the last first, each while its graph is as the step left it."""
        undone: list[Step] = []
        try:
            for step in reversed(self.own_steps):
                yield step
                step.undo()
                undone.append(step)
        finally:
            for step in reversed(undone):
                step.redo()
        if self.base is not None:
            yield from self.base.iter_steps_backwards()
