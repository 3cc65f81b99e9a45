"""An original and its result as JSON for Google's Model Explorer, which draws them beside each other.

The form is that of its `graph_builder.GraphCollection`: https://github.com/google-ai-edge/model-explorer
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphopt.report.graph_data import GraphPair
from graphopt.report.graph_outline import GraphOutline, ValueRef
from graphopt.report.scope_folding import Block, fold_by_scope

COLOURS = {
    "removed": ("#fdecea", "#b3261e"),
    "new": ("#e6f4ea", "#1e7b45"),
    "rewired": ("#fdf5e0", "#8a5a00"),
}
"""Background and border of a node, by what became of it."""


def model_explorer_json(pair: GraphPair, label: str) -> str:
    """Return the text of a file for Model Explorer: the graphs `before` and `after`, under a label."""
    folding = fold_by_scope(pair.before, pair.after, pair.kept)
    names = [_namespace(folding.blocks, block) for block in range(len(folding.blocks))]
    graphs = [
        {"id": side, "nodes": list(_nodes(outline, [names[block] for block in blocks], statuses, rewrites))}
        for side, outline, blocks, statuses, rewrites in zip(
            ("before", "after"),
            (pair.before, pair.after),
            (folding.before, folding.after),
            pair.statuses,
            _rewrites_of_nodes(pair),
            strict=True,
        )
    ]
    return json.dumps({"label": label, "graphs": graphs}, ensure_ascii=False)


def _namespace(blocks: Sequence[Block], number: int) -> str:
    labels: list[str] = []
    while number:
        labels.insert(0, blocks[number].label)
        number = blocks[number].parent
    return "/".join(labels)


def _rewrites_of_nodes(pair: GraphPair) -> tuple[Mapping[int, str], Mapping[int, str]]:
    """Return for both graphs the names of the rewrites that removed, made or changed each node."""
    found: tuple[dict[int, dict[str, None]], dict[int, dict[str, None]]] = ({}, {})
    for name, steps in pair.places:
        for step in steps:
            for known, nodes in zip(found, step, strict=True):
                for node in nodes:
                    known.setdefault(node, {})[name] = None
    before, after = ({node: ", ".join(names) for node, names in known.items()} for known in found)
    return before, after


def _nodes(
    outline: GraphOutline, namespaces: Sequence[str], statuses: Sequence[str], rewrites: Mapping[int, str]
) -> Iterator[dict[str, Any]]:
    for position, name in enumerate(outline.inputs):
        yield {"id": _node_id(-1 - position), "label": name, "namespace": ""}
    for number, node in enumerate(outline.nodes):
        facts = {"name": node.name, "status": statuses[number], "rewrites": rewrites.get(number, "")}
        made: dict[str, Any] = {
            "id": _node_id(number),
            "label": node.op,
            "namespace": namespaces[number],
            "attrs": [{"key": key, "value": value} for key, value in facts.items() if value],
            "incomingEdges": [_edge(ref, position) for position, ref in enumerate(node.inputs)],
            "outputsMetadata": [{"id": "0", "attrs": [{"key": "tensor_shape", "value": node.types}]}],
        }
        if statuses[number] in COLOURS:
            background, border = COLOURS[statuses[number]]
            made["style"] = {"backgroundColor": background, "borderColor": border}
        yield made
    for name, ref in outline.outputs:
        yield {"id": f"output {name}", "label": name, "namespace": "", "incomingEdges": [_edge(ref, 0)]}


def _node_id(source: int) -> str:
    return str(source) if source >= 0 else f"input {-source}"


def _edge(ref: ValueRef, position: int) -> dict[str, str]:
    return {
        "sourceNodeId": _node_id(ref.source),
        "sourceNodeOutputId": str(ref.output),
        "targetNodeInputId": str(position),
    }
