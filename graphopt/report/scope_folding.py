"""Blocks into which two graphs are folded alike for a picture: modules, or runs of nodes where no modules are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple, TypeAlias

from graphopt.report.graph_outline import GraphOutline, OutlineNode, Scope
from graphopt.report.node_changes import KeptRun, iter_kept

MAX_CHILDREN = 60
"""Nodes and blocks in one block, at most: more are put into blocks of consecutive ones."""

MIN_GROUP = 30
"""Nodes and blocks in such a block, at least."""


class Block(NamedTuple):
    """A block of a folded graph."""

    label: str
    parent: int
    """Number of the block that it is in; the whole model is block 0, and its own parent."""


@dataclass(frozen=True)
class Folding:
    """The blocks of an original and its result, outer ones first, and for each of their nodes the block it is in."""

    blocks: tuple[Block, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]


Position: TypeAlias = "tuple[int, int]"
"""Number of a node of the original, and 0; a node of the result that is new comes after one, and counts from 1."""


@dataclass
class _Module:
    """A module while it is filled: the modules and nodes in it."""

    label: str
    position: Position
    modules: dict[str, _Module] = field(default_factory=dict)
    nodes: list[_PlacedNode] = field(default_factory=list)


class _PlacedNode(NamedTuple):
    position: Position
    is_after: bool
    number: int


def fold_by_scope(before: GraphOutline, after: GraphOutline, kept: Sequence[KeptRun]) -> Folding:
    """Fold two graphs into the same blocks; a node that is in both is in one block.

    Where nodes do not say to which modules they belong, blocks are runs of the original's nodes that hand on one value,
    and a new node joins what it reads.
    """
    partners = {new: old for old, new in iter_kept(kept)}
    old_scopes: list[Scope] = [node.scope for node in before.nodes]
    if not before.has_scopes:
        old_scopes = [(label,) for label in _run_labels(before)]
    root = _Module("whole model", (0, 0))
    for number, scope in enumerate(old_scopes):
        _place(root, scope, _PlacedNode((number, 0), is_after=False, number=number))
    new_scopes: list[Scope] = []
    last = (0, 0)
    for number, node in enumerate(after.nodes):
        partner = partners.get(number)
        last = (last[0], last[1] + 1) if partner is None else (partner, 0)
        if partner is not None:
            new_scopes.append(old_scopes[partner])
        elif before.has_scopes:
            new_scopes.append(node.scope)
        else:
            new_scopes.append(_scope_of_sources(node, new_scopes) or next(iter(old_scopes[last[0] :]), ()))
        _place(root, new_scopes[-1], _PlacedNode(last, is_after=True, number=number))
    blocks, places = [Block(root.label, 0)], dict[tuple[bool, int], int]()
    _number_blocks([*root.modules.values(), *root.nodes], 0, blocks, places)
    return Folding(
        tuple(blocks),
        tuple(places[False, number] for number in range(len(before.nodes))),
        tuple(places[True, number] for number in range(len(after.nodes))),
    )


def _place(root: _Module, scope: Scope, node: _PlacedNode) -> None:
    module = root
    for label in scope:
        module = module.modules.setdefault(label, _Module(label, node.position))
        module.position = max(module.position, node.position)  # weights may be dequantized long before they are read
    module.nodes.append(node)


def _number_blocks(
    content: Sequence[_Module | _PlacedNode], parent: int, blocks: list[Block], places: dict[tuple[bool, int], int]
) -> None:
    """Give the blocks in a block numbers, and nodes their blocks; put consecutive ones together if they are many."""
    items = sorted(content, key=lambda item: item.position)
    positions = sorted({(item.position, isinstance(item, _Module)) for item in items})
    if len(positions) > MAX_CHILDREN:
        size = max(MIN_GROUP, ceil(len(positions) / MAX_CHILDREN))
        for start in range(0, len(positions), size):
            first, last = positions[start], positions[min(start + size, len(positions)) - 1]
            group = [item for item in items if first <= (item.position, isinstance(item, _Module)) <= last]
            kind = "parts" if all(isinstance(item, _Module) for item in group) else "nodes"
            blocks.append(Block(f"{kind} {start + 1}–{min(start + size, len(positions))}", parent))
            _number_blocks(group, len(blocks) - 1, blocks, places)
        return
    for item in items:
        if isinstance(item, _PlacedNode):
            places[item.is_after, item.number] = parent
            continue
        module, labels = item, [item.label]
        while len(module.modules) == 1 and not module.nodes:
            module = next(iter(module.modules.values()))
            labels.append(module.label)
        blocks.append(Block("/".join(labels), parent))
        _number_blocks([*module.modules.values(), *module.nodes], len(blocks) - 1, blocks, places)


def _scope_of_sources(node: OutlineNode, known: Sequence[Scope]) -> Scope:
    """Return the scope of the last value that a node reads; nothing where it reads none."""
    sources = [ref.source for ref in node.inputs if 0 <= ref.source < len(known)]
    return known[max(sources)] if sources else ()


def _run_labels(outline: GraphOutline) -> Iterator[str]:
    """Yield for each node the name of its run: its number, and the operators that are the most in it."""
    runs = _runs(outline)
    counts: dict[int, Counter[str]] = {}
    for run, node in zip(runs, outline.nodes, strict=True):
        counts.setdefault(run, Counter())[node.op.rpartition(".")[2]] += 1
    for run in runs:
        yield f"part {run + 1}: {', '.join(op for op, _ in counts[run].most_common(2))}"


def _runs(outline: GraphOutline) -> list[int]:
    """Return the run of each node; what reads constants only, such as a dequantized weight, is in that of its reader,
    wherever it stands in the file."""
    sources = [[ref.source for ref in node.inputs] for node in outline.nodes]
    is_constant: list[bool] = []
    for read in sources:
        is_constant.append(all(source >= 0 and is_constant[source] for source in read))
    runs = list(outline.blocks)
    for number in reversed(range(len(runs))):
        for source in sources[number]:
            if source >= 0 and is_constant[source]:
                runs[source] = runs[number]
    return runs
