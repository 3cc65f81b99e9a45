"""The two graphs of a report as data for its page: `assets/graph.js` draws them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeAlias

from graphopt.report.graph_outline import GraphOutline, ValueRef
from graphopt.report.node_changes import KeptRun, StepNodes, iter_kept, node_statuses, pair_by_names
from graphopt.report.scope_folding import fold_by_scope

STATUSES = ("kept", "rewired", "removed", "new")

Places: TypeAlias = "Sequence[tuple[str, Sequence[StepNodes]]]"
"""Kinds of rewrites in the order of the page: the name, and the nodes of each place."""


@dataclass(frozen=True)
class GraphPair:
    """An original and its result, and what became of their nodes."""

    before: GraphOutline
    after: GraphOutline
    kept: tuple[KeptRun, ...]
    statuses: tuple[Sequence[str], Sequence[str]]
    """For each node of the original and of the result one of `STATUSES`."""
    places: Places

    @staticmethod
    def traced(before: GraphOutline, after: GraphOutline, kept: Sequence[KeptRun], places: Places) -> GraphPair:
        """Return a pair whose rewrites are known."""
        steps = [step for _, steps in places for step in steps]
        return GraphPair(before, after, tuple(kept), node_statuses(before, after, kept, steps), places)

    @staticmethod
    def by_names(before: GraphOutline, after: GraphOutline) -> GraphPair:
        """Return the pair of two models of which it is not known how they came about."""
        kept = pair_by_names(before, after)
        partners = {new: old for old, new in iter_kept(kept)}
        rewired = [
            StepNodes((old,), (new,))
            for new, old in partners.items()
            if [_partner(ref, partners) for ref in after.nodes[new].inputs] != list(before.nodes[old].inputs)
        ]
        return GraphPair(before, after, kept, node_statuses(before, after, kept, rewired), ())


def _partner(ref: ValueRef, partners: Mapping[int, int]) -> ValueRef | None:
    """Return the value of the original that is a value of the result; None where there is none."""
    if ref.source < 0:
        return ref
    return ValueRef(partners[ref.source], ref.output) if ref.source in partners else None


def graph_data(pair: GraphPair) -> dict[str, Any]:
    """Return what the page draws, as plain data.

    Operators, types and statuses are listed once, nodes refer to them by position: a node is its operator, name (0
    where its partner has the same), block, types, values that it reads, and status. A value is the number of its node
    (of an input, -1 minus its position), in a list with the number of the output where that is not 0.
    """
    folding = fold_by_scope(pair.before, pair.after, pair.kept)
    ops, types = (defaultdict[str, int](count().__next__) for _ in range(2))
    names = {new: pair.before.nodes[old].name for old, new in iter_kept(pair.kept)}
    sides = [
        _side(pair.before, folding.before, pair.statuses[0], {}, ops, types),
        _side(pair.after, folding.after, pair.statuses[1], names, ops, types),
    ]
    return {
        "ops": list(ops),
        "types": list(types),
        "statuses": STATUSES,
        "blocks": folding.blocks,
        "sides": sides,
        "kept": [[run.before, run.after, run.length] for run in pair.kept],
        "rewrites": [{"name": name, "places": places} for name, places in pair.places],
    }


def _side(
    outline: GraphOutline,
    blocks: Sequence[int],
    statuses: Sequence[str],
    known_names: Mapping[int, str],
    ops: Mapping[str, int],
    types: Mapping[str, int],
) -> dict[str, Any]:
    """Return one of the graphs; `ops` and `types` number the texts that they are asked for."""
    nodes = [
        [
            ops[node.op],
            0 if known_names.get(number) == node.name else node.name,
            blocks[number],
            types[node.types],
            [_short(ref) for ref in node.inputs],
            STATUSES.index(statuses[number]),
        ]
        for number, node in enumerate(outline.nodes)
    ]
    return {
        "nodes": nodes,
        "inputs": outline.inputs,
        "outputs": [[name, _short(ref)] for name, ref in outline.outputs],
    }


def _short(ref: ValueRef) -> int | ValueRef:
    return ref if ref.output else ref.source
