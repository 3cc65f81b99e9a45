"""Images computed in tiles of rows: which operators end a chain that is computed tile by tile, and where it begins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import networkx as nx

from graphopt.ir.graph import Graph, Value
from graphopt.language.rule import Rule
from graphopt.rewrite.simplify import Step, undo_steps
from graphopt.search.buffer_plan import value_bytes
from graphopt.search.moves import Move, MoveNotApplicableError, SearchSpace, apply_move, find_matches_at


def first_matching_rule(rules: Iterable[Rule], graph: Graph, vertex: int, space: SearchSpace) -> Rule | None:
    """Return the first of some rules that may be applied at a vertex."""
    return next((rule for rule in rules if find_matches_at(graph, rule, vertex, space)), None)


def apply_rule_at(graph: Graph, rule: Rule, vertex: int, space: SearchSpace) -> list[Step]:
    """Apply a rule at a vertex, in place; return no steps where it does not match or its weights are refused."""
    try:
        return apply_move(graph, Move(rule.name, ((Value(vertex),),), simplified=False), space).steps
    except MoveNotApplicableError:
        return []


@dataclass(frozen=True)
class RowTiler:
    """Computes a value in tiles of rows, with what reads it up to an operator whose result is small."""

    space: SearchSpace
    tiles: Sequence[Rule]
    """The rules that compute one operator in tiles, all of one number of tiles."""
    rows: Sequence[Rule]
    """The rules that compute the rows alone that a Slice reads."""
    static: Callable[[Graph], Graph]
    """Give a graph with all sizes known, of the same vertices."""

    def tile(self, graph: Graph, value: Value, number: int, limit: float) -> list[Step]:
        """Compute what reads a value in tiles, in place, and what makes it for these tiles alone.

        Args:
            graph: it is changed.
            value: what is not to be in memory as a whole.
            number: the place among the operators that could end the chain, of the one that does.
            limit: bytes of a value up to which it may stay whole.

        Returns:
            The steps; none, and the graph as it was, where there is no such operator or the value stays whole.
        """
        end = next(islice(self._ends(graph, value), number, None), None)
        if end is None:
            return []
        rule, vertex = end
        steps = apply_rule_at(graph, rule, vertex, self.space)
        pending = [source for step in steps for source in self._sliced(graph, step)]
        while pending:
            made = self._narrow(graph, pending.pop(), limit)
            steps += made
            pending += [source for step in made for source in self._sliced(graph, step)]
        if value.vertex in graph and graph.has_uses(value):
            undo_steps(steps)
            return []
        return steps

    def _ends(self, graph: Graph, value: Value) -> Iterator[tuple[Rule, int]]:
        """Yield the operators through which all that is computed from a value goes, and that can be computed in tiles,
        the nearest first, each with its rule."""
        exit_vertex = -1
        backward = nx.DiGraph((reader, source) for source, reader in graph.nx.edges)
        backward.add_edges_from((exit_vertex, output.vertex) for output in graph.outputs)
        next_common = nx.immediate_dominators(backward, exit_vertex)
        vertex = next_common.get(value.vertex, exit_vertex)
        while vertex != exit_vertex:
            if rule := first_matching_rule(self.tiles, graph, vertex, self.space):
                yield rule, vertex
            vertex = next_common[vertex]

    def _sliced(self, graph: Graph, step: Step) -> set[int]:
        """Return the nodes of whose results a step reads slices."""
        slicing_operator = self.rows[0].left[0].op
        slices = (vertex for vertex in step.patch.after if vertex in graph and graph[vertex].op == slicing_operator)
        sources = {value.vertex for vertex in slices for value in graph[vertex].operands}
        return {vertex for vertex in sources if not graph[vertex].is_internal}

    def _narrow(self, graph: Graph, vertex: int, limit: float) -> list[Step]:
        """Compute of a large value the rows alone that are read of it; return no steps where something reads all of
        it."""
        if vertex not in graph or value_bytes(self.static(graph), Value(vertex)) <= limit:
            return []
        readers = list(graph.readers(vertex))
        found = [first_matching_rule(self.rows, graph, reader, self.space) for reader in readers]
        rules = [rule for rule in found if rule is not None]
        if not readers or len(rules) < len(readers) or graph.is_output(Value(vertex)):
            return []
        pairs = zip(rules, readers, strict=True)
        return [step for rule, reader in pairs for step in apply_rule_at(graph, rule, reader, self.space)]
