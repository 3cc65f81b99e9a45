"""Stages as ONNX Runtime's layer annotations: one file, whose nodes say which stage they belong to.

ONNX Runtime reads the metadata `layer_ann` of nodes, and assigns them to providers as the option
`session.layer_assignment_settings` says: `cuda(=stage-1); cpu(=stage-2)`. The nodes of a body belong with the node that
has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from graphopt.base.errors import ModelError
from graphopt.base.ort import make_session_options, require_onnxruntime
from graphopt.io import onnx_io
from graphopt.ir.graph import Patch
from graphopt.partition.partitioning import ModelPartition
from graphopt.runtime.session_setting import SessionSetting, smallest_model

ANNOTATION = "layer_ann"
OPTION = "session.layer_assignment_settings"
CHECKED = "ONNX Runtime opens it with this option, and each provider has the nodes of its stages"
DESIGNATORS = ("cpu", "cuda", "dml")
"""Providers that ONNX Runtime knows by these short names in the option; others are called by their full ones."""


def annotate(partition: ModelPartition) -> onnx_io.LoadedModel:
    """Return the whole model, each of whose nodes names its stage; what weights alone decide is left unnamed."""
    graph = partition.loaded.graph.copy()
    for number, stage in enumerate(partition.stages, start=1):
        vertices = partition.whole.order[stage.start : stage.end]
        named = {
            vertex: replace(graph[vertex], metadata={**graph[vertex].metadata, ANNOTATION: stage_label(number)})
            for vertex in vertices
        }
        graph.apply(Patch({vertex: graph[vertex] for vertex in vertices}, named))
    return replace(partition.loaded, graph=graph)


def stage_label(number: int) -> str:
    """Return the text by which nodes name a stage."""
    return f"stage-{number}"


def assignment_setting(providers: Sequence[str]) -> str:
    """Return the value of the option that gives each stage to its provider, by short names."""
    named: dict[str, list[str]] = {}
    for number, provider in enumerate(providers, start=1):
        device = provider if provider in DESIGNATORS else SessionSetting(provider).runtime_name
        named.setdefault(device, []).append(f"={stage_label(number)}")
    return "; ".join(f"{device}({', '.join(labels)})" for device, labels in named.items())


def check_annotations(path: Path, providers: Sequence[str]) -> str:
    """Have ONNX Runtime open an annotated file, and return what it cannot tell, or which nodes went elsewhere.

    Empty if each provider has the nodes of its stages.

    Raises:
        ModelError: ONNX Runtime refuses the file.
    """
    runtime, setting = require_onnxruntime(), assignment_setting(providers)
    if not _knows_annotations():
        return f"onnxruntime {runtime.__version__} does not know layer annotations: not checked"
    wanted = [SessionSetting(provider).runtime_name for provider in dict.fromkeys(providers)]
    missing = [name for name in wanted if name not in runtime.get_available_providers()]
    if missing:
        return f"this onnxruntime has no {', '.join(missing)}: not checked that it gets its stages"
    options = _options(setting)
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    try:
        session = runtime.InferenceSession(str(path), options, providers=wanted)
    except Exception as error:  # the classes that onnxruntime raises share no base
        raise ModelError(f"{path} cannot be loaded with its annotations: {' '.join(str(error).split())}") from error
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return f"onnxruntime {runtime.__version__} opens it, but does not tell which provider got which stage"
    return _misplaced(session, path, providers)


def _misplaced(session: Any, path: Path, providers: Sequence[str]) -> str:
    """Return which nodes other providers have than their stages name; they lack a kernel there, as may be."""
    stage_of = {
        node.name: prop.value
        for node in onnx_io.parse_file(path, weights=False).graph.node
        for prop in node.metadata_props
        if prop.key == ANNOTATION and node.name
    }
    wanted = {
        stage_label(number): SessionSetting(provider).runtime_name for number, provider in enumerate(providers, start=1)
    }
    given = {
        node.name: part.ep_name for part in session.get_provider_graph_assignment_info() for node in part.get_nodes()
    }
    if {*wanted.values()} == {*given.values()} and len({*wanted.values()}) == 1:
        return ""
    if not stage_of:
        return "its nodes have no names, by which ONNX Runtime would tell which provider got which: not checked"
    wrong = [name for name, label in stage_of.items() if given.get(name, wanted[label]) != wanted[label]]
    if not wrong:
        return ""
    return f"{len(wrong)} nodes are not where their stage is, as '{wrong[0]}': no kernel for them is there"


def _options(setting: str) -> Any:
    options = make_session_options()
    options.add_session_config_entry(OPTION, setting)
    return options


def _knows_annotations() -> bool:
    """Return whether ONNX Runtime reads the option: those that do refuse one that is not of its form."""
    model = smallest_model().SerializeToString()
    try:
        require_onnxruntime().InferenceSession(model, _options("no parenthesis"), providers=["CPUExecutionProvider"])
    except Exception:
        return True
    return False
