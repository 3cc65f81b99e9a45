"""Nodes of the original that a rewrite took out, and of the result that it put in: by vertices, not by names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from graphopt.ir.graph import Graph, Node
from graphopt.report.graph_outline import GraphOutline, GraphPath, NodePlace, list_nodes, qualified_op
from graphopt.rewrite.candidates import Candidate


@dataclass(frozen=True, slots=True)
class KeptRun:
    """Consecutive nodes of the original that are consecutive nodes of the result."""

    before: int
    """Number of the first in the original."""
    after: int
    """Number of the first in the result."""
    length: int
    """Number of nodes."""


@dataclass(frozen=True)
class NodeNumbers:
    """Numbers of the nodes of a graph."""

    numbers: Mapping[NodePlace, int]
    ops: tuple[str, ...]
    """Their operators."""

    @staticmethod
    def from_graph(graph: Graph) -> NodeNumbers:
        """Return the numbers of the nodes of a graph, and of the bodies in it."""
        listed = list_nodes(graph)
        return NodeNumbers(
            {place: number for number, (place, _) in enumerate(listed)}, tuple(qualified_op(node) for _, node in listed)
        )


class StepNodes(NamedTuple):
    """Nodes of one step. One that stays, and reads other values or has other attributes, is in both."""

    before: tuple[int, ...]
    """Numbers in the original of what it removed, or changed for good."""
    after: tuple[int, ...]
    """Numbers in the result of what it added or changed."""


def kept_nodes(before: NodeNumbers, after: NodeNumbers) -> tuple[KeptRun, ...]:
    """Return the nodes that are in both graphs, in the same vertex and with the same operator."""
    pairs = ((before.numbers.get(place), number) for place, number in after.numbers.items())
    return _to_runs((old, new) for old, new in pairs if old is not None and before.ops[old] == after.ops[new])


def pair_by_names(before: GraphOutline, after: GraphOutline) -> tuple[KeptRun, ...]:
    """Return the nodes that have one operator and one name in two models of which nobody knows how they came about.

    A name that several nodes of a model share pairs none of them.
    """
    old, new = (_named_nodes(outline) for outline in (before, after))
    return _to_runs((old[key], number) for key, number in new.items() if key in old)


def _named_nodes(outline: GraphOutline) -> Mapping[tuple[str, str], int]:
    keys = [(node.op, node.name) for node in outline.nodes]
    counts = Counter(keys)
    return {key: number for number, key in enumerate(keys) if counts[key] == 1}


def _to_runs(pairs: Iterable[tuple[int, int]]) -> tuple[KeptRun, ...]:
    """Return pairs of numbers, in the order of the result, as runs."""
    runs: list[KeptRun] = []
    for old, new in pairs:
        last = runs[-1] if runs else None
        if last is not None and (last.before + last.length, last.after + last.length) == (old, new):
            runs[-1] = replace(last, length=last.length + 1)
        else:
            runs.append(KeptRun(old, new, 1))
    return tuple(runs)


def iter_kept(runs: Iterable[KeptRun]) -> Iterator[tuple[int, int]]:
    """Yield the numbers of each kept node, in the original and in the result."""
    for run in runs:
        yield from zip(
            range(run.before, run.before + run.length), range(run.after, run.after + run.length), strict=True
        )


def nodes_of_steps(before: NodeNumbers, after: NodeNumbers, made: Candidate) -> Iterator[StepNodes]:
    """Yield the nodes of each step of a candidate.

    Args:
        before: the original.
        after: the candidate's graph.
        made: the candidate, whose steps begin at the original.
    """
    paths = _graph_paths(made)
    for step in made.steps:
        patch, path = step.patch, paths[step.graph]
        pairs = [
            _changed_numbers(
                patch.before.get(vertex),
                patch.after.get(vertex),
                before.numbers.get(NodePlace(path, vertex)),
                after.numbers.get(NodePlace(path, vertex)),
            )
            for vertex in {**patch.before, **patch.after}
        ]
        old, new = (sorted(pair[side] or 0 for pair in pairs if pair[side] is not None) for side in (0, 1))
        yield StepNodes(tuple(old), tuple(new))


def _changed_numbers(
    old: Node | None, new: Node | None, original: int | None, result: int | None
) -> tuple[int | None, int | None]:
    """Return the number of a vertex in the original, and in the result, where a step answers for what became of it.

    A vertex may become a constant. What stays in its vertex is another step's, if that made or removes the node.
    """
    if old is None or old.is_internal:
        return None, result
    if new is None or new.is_internal:
        return original, None
    is_same = old.is_same_operation(new) and old.inputs == new.inputs and old.captures == new.captures
    return (None, None) if is_same or original is None or result is None else (original, result)


def _graph_paths(made: Candidate) -> Mapping[Graph, GraphPath]:
    """Return where the graphs are that the steps of a candidate changed, also those that are gone in the end."""
    paths: dict[Graph, GraphPath] = {}

    def note(graph: Graph, path: GraphPath) -> None:
        if graph not in paths:  # else its bodies are known, too
            paths[graph] = path
            note_bodies(graph.nodes(), path)

    def note_bodies(nodes: Iterable[tuple[int, Node]], path: GraphPath) -> None:
        for vertex, node in nodes:
            for index, body in enumerate(node.bodies):
                note(body, (*path, (vertex, index)))

    for candidate in reversed(made.chain):
        note(candidate.graph, ())
    for step in reversed(made.steps):  # a graph that went with its node is found where it went
        note_bodies([*step.patch.after.items(), *step.patch.before.items()], paths[step.graph])
    return paths


def node_statuses(
    before: GraphOutline, after: GraphOutline, kept: Sequence[KeptRun], steps: Iterable[StepNodes]
) -> tuple[list[str], list[str]]:
    """Return what became of each node of the original, and where each of the result comes from.

    A node is `kept`, `rewired` if it reads other values or has other attributes, `removed` or `new`.
    """
    statuses = ["removed"] * len(before.nodes), ["new"] * len(after.nodes)
    for pair in iter_kept(kept):
        for side, number in zip(statuses, pair, strict=True):
            side[number] = "kept"
    for step in steps:
        for side, numbers in zip(statuses, step, strict=True):
            for number in numbers:
                if side[number] == "kept":
                    side[number] = "rewired"
    return statuses
