"""Parameters of a PyTorch program, as its exporter (`torch.onnx.export`) tells them in a model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from onnx import GraphProto, ModelProto

from graphopt.base.dtype import DType

_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
"""Metadata of the graph: the inputs of the program, with a line such as `p_w: PARAMETER target='w'` for each."""
_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
"""Metadata of a value that is an input of the program: PARAMETER, BUFFER or CONSTANT_TENSOR."""
_FOLDED = "pkg.onnxscript.optimizer.folded_from"
"""Metadata of a value that the exporter computed: the list of all that it was made of."""


@dataclass(frozen=True)
class ExportedWeights:
    """Which initializers of a model are weights of a network, as far as the exporter says it."""

    trainable: frozenset[str]
    """Its parameters and what was computed of them; where nothing is said, all initializers that have axes."""
    folded_into: Mapping[str, str]
    """An initializer that was made of it, for each parameter that is not in the model as it is, or not only so."""

    @property
    def note(self) -> str:
        """Line that says that parameters are in the model in another form; empty where none is."""
        if not self.folded_into:
            return ""
        name, made = next(iter(self.folded_into.items()))
        return (
            f"{len(self.folded_into)} of the parameters of the PyTorch model are in the file in another form, as"
            f" '{name}' in '{made}': export it with optimize=False to train them as they are"
        )


def read_exported_weights(proto: ModelProto) -> ExportedWeights:
    """Read which initializers of a model are weights."""
    graph = proto.graph
    sizes = {tensor.name: tensor.dims for tensor in graph.initializer if DType(tensor.data_type).is_float}
    parameters = frozenset(_parameters(graph))
    if not parameters:
        return ExportedWeights(frozenset(name for name, dims in sizes.items() if dims), {})
    metadata = {info.name: {each.key: each.value for each in info.metadata_props} for info in graph.value_info}
    trainable, folded_into = set(parameters.intersection(sizes)), dict[str, str]()
    for name in sorted(sizes):
        said = metadata.get(name, {})
        folded = re.findall(r"'([^']*)'", said.get(_FOLDED, ""))
        sources = parameters.intersection(folded)
        folded_into |= dict.fromkeys(sources, name)
        is_unknown = _KIND not in said and _FOLDED not in said
        if sources or (is_unknown and sizes[name]):
            trainable.add(name)
    return ExportedWeights(frozenset(trainable), dict(sorted(folded_into.items())))


def _parameters(graph: GraphProto) -> Iterator[str]:
    """Yield the parameters of the program that a graph was exported from, by the names that they have there."""
    for each in graph.metadata_props:
        if each.key == _SIGNATURE:
            yield from re.findall(r": PARAMETER target='([^']*)'", each.value)
