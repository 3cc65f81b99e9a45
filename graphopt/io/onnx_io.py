"""`ModelProto` <-> `Graph`: load a model, inline its local functions, write it as a message, save it to a file.

With `reader` and `writer`, the only place of the compiler that touches model protobufs. Everything that a model says
is carried: what graphopt does not interpret stays in `LoadedModel.shell`, `Graph.unknown_fields` and
`Node.unknown_fields`, serialized as it came.
"""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import onnx.inliner
from google.protobuf.message import DecodeError
from onnx import (
    AttributeProto,
    FunctionProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    TensorProto,
    ValueInfoProto,
)
from onnx.helper import find_min_ir_version_for

from graphopt.base import files
from graphopt.base.errors import ModelError, OutputError
from graphopt.io import opset_conversion, weight_files, writer
from graphopt.io.model_validation import (
    FunctionKey,
    all_nodes,
    called_function,
    function_key,
    function_names,
    validate_model,
)
from graphopt.io.node_expansions import expand_nodes, is_sparse_constant
from graphopt.io.reader import GraphReader, copy_fields, overridable_names
from graphopt.io.version_tables import OPAQUE_OPERATORS
from graphopt.ir import schemas
from graphopt.ir.graph import CONSTANT, Graph, Patch
from graphopt.ir.tensor import Tensor
from graphopt.operators import proto_conversion
from graphopt.operators.inference import infer_graph
from graphopt.operators.proto_conversion import ModelFolders

log = logging.getLogger(__name__)

_MAX_PROTOBUF_BYTES = 1 << 31
"""Bytes that no protobuf has."""
MAX_INLINE_WEIGHT_BYTES = 1_900_000_000
"""Bytes of weights above which a model is saved with its weights in a file of their own; protobuf ends at 2 GiB."""

ModelSource: TypeAlias = "str | os.PathLike[str] | ModelProto | Any"
"""A path, a ModelProto, an `onnx_ir.Model` or what `torch.onnx.export` returns (neither is imported here)."""


@dataclass(eq=False)
class LoadedModel:
    """A loaded model: its graph, and everything else that the file says."""

    graph: Graph
    shell: ModelProto
    """The model without its graph: versions, producer, metadata, local functions that were kept, training info."""
    path: Path | None = None
    """Path that it was loaded from; None for a model in memory."""
    folders: ModelFolders = ()
    """Folders in which external data is looked for."""
    inlined: bool = False
    """True if bodies of local functions replace their calls."""

    @property
    def ir_version(self) -> int:
        return self.shell.ir_version

    @property
    def functions(self) -> frozenset[tuple[str, str]]:
        """The local functions that were kept, by domain and name."""
        return function_names(self.shell)

    @property
    def functions_digest(self) -> str:
        """Identifies the local functions that were kept: the graph has their names only."""
        functions = (function.SerializeToString(deterministic=True) for function in self.shell.functions)
        return sha256(b"".join(functions)).hexdigest()


# -- load --------------------------------------------------------------------------------------------------------------


def load_model(
    source: ModelSource, *, inline_functions: bool = True, folder: str | os.PathLike[str] | None = None
) -> LoadedModel:
    """Read a model. Weights stay where they are; a ModelProto is referenced and never changed.

    Args:
        source: a path, or a model in memory.
        inline_functions: replace calls of the model's local functions by their bodies.
        folder: where the external data of a model in memory lies.

    Raises:
        ModelError: it cannot be read, is not ONNX or contradicts itself; one line says what and where.
    """
    path = None
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        proto = parse_file(path)
        folders = model_folders(path)
    else:
        proto, own_folder = to_model_proto(source)
        chosen = folder or own_folder
        folders = (Path(chosen),) if chosen else ()
    given = proto
    with naming_file_in_errors(path):
        if inline_functions and proto.functions:
            proto = _with_inlined_functions(proto)
        return replace(
            _read_model(proto, path, folders), inlined=proto is not given and proto.graph.node != given.graph.node
        )


def copy_source(source: ModelSource) -> ModelSource:
    """Return a copy of a model in memory, whose owner may go on to change it; any other source as it is."""
    return deepcopy(source) if isinstance(source, ModelProto) else source


def load_typed_model(source: ModelSource, *, inline_functions: bool = True) -> LoadedModel:
    """Read a model, of one in memory a copy, and infer the types of its values. Raises ModelError."""
    model = load_model(copy_source(source), inline_functions=inline_functions)
    with naming_file_in_errors(model.path):
        infer_graph(model.graph)
        opset_conversion.upgrade_nodes(model.graph)  # some could not be while their types were unknown
    return model


@contextmanager
def naming_file_in_errors(path: Path | None) -> Iterator[None]:
    """Make a ModelError begin with the file of the model, if it has one."""
    try:
        yield
    except ModelError as error:
        raise ModelError(f"{path}: {error}" if path else str(error)) from error.__cause__


def model_folders(path: Path) -> ModelFolders:
    """Return the folders in which the external data of a model file is looked for."""
    return tuple(dict.fromkeys((path.parent, path.resolve().parent)))


def parse_file(path: Path, *, weights: bool = True) -> ModelProto:
    """Return the message in a file; its external data is not looked at. Raises ModelError.

    Without `weights`, large initializers have no values, and none of them is read.
    """
    proto, start = ModelProto(), b""
    try:
        files.check_readable(path)
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise ModelError(f"{path} is empty")
            if size >= _MAX_PROTOBUF_BYTES:
                raise ModelError(f"{path} is larger than 2 GiB: no ONNX file can be, without its weights in another")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
                start = raw[:512]
                with memoryview(raw) as view:
                    proto.ParseFromString(view if weights else writer.serialize_without_values(view))
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    except DecodeError as error:
        raise ModelError(f"{path} is {_describe_content(start)}") from error
    if not proto.HasField("graph") or not (proto.opset_import or proto.ir_version):
        raise ModelError(f"{path} is {_describe_content(start)}")
    try:
        validate_model(proto)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error
    return proto


def _describe_content(start: bytes) -> str:
    if start[4:8] == b"ORTM":
        return "a model in ONNX Runtime's own format: give the ONNX model that it was made from"
    if all(byte in b"\t\n\r\f" or 32 <= byte < 127 for byte in start):
        return "a text file, not an ONNX model"
    return "not an ONNX model, or it is cut short"


def external_locations(path: Path) -> list[str]:
    """Return the files of weights that a model names, relative to its folder and in order; none where there is no
    model, or no legal one."""
    if not path.is_file():
        return []
    try:
        proto = parse_file(path, weights=False)
    except ModelError:  # to be overwritten it need not be a model, and to be read it will be parsed again
        return []
    places = map(proto_conversion.external_location, proto_conversion.external_tensors(proto))
    return [place for place in dict.fromkeys(places) if "\0" not in place]


def data_files(path: Path) -> set[Path]:
    """Return the files of weights beside a model; none where there is no model, or no legal one."""
    return {folder / place for place in external_locations(path) for folder in model_folders(path)}


def file_metadata(path: Path) -> dict[str, str]:
    """Return the metadata of a model file. Raises ModelError where it is none."""
    return {entry.key: entry.value for entry in parse_file(path, weights=False).metadata_props}


def with_metadata(model: LoadedModel, entries: Mapping[str, str]) -> LoadedModel:
    """Return the model with further metadata."""
    shell = deepcopy(model.shell)
    for key, value in entries.items():
        shell.metadata_props.add(key=key, value=value)
    return replace(model, shell=shell)


def to_model_proto(source: object) -> tuple[ModelProto, str | None]:
    """Return a model in memory as a ModelProto, and the folder of its external data if it states one. Raises
    ModelError."""
    proto, folder = _to_model_proto(source)
    validate_model(proto)
    return proto, folder


def _to_model_proto(source: object) -> tuple[ModelProto, str | None]:
    if isinstance(source, ModelProto):
        return source, None
    if _is_onnx_ir(source):
        from onnx_ir import serde

        values: Any = getattr(source, "graph").initializers.values()  # noqa: B009 - its type is not known here
        folders = (getattr(value.const_value, "base_dir", None) for value in values)
        return serde.serialize_model(source), next((str(folder) for folder in folders if folder), None)
    if is_exported_program(source):
        return _to_model_proto(getattr(source, "model"))  # noqa: B009 - its type is not known here
    proto = getattr(source, "model_proto", None)
    if isinstance(proto, ModelProto):
        return proto, None
    raise ModelError(f"a model is a path, an onnx.ModelProto, an onnx_ir.Model or an ONNXProgram, not {type(source)}")


def is_exported_program(source: object) -> bool:
    """Return whether this is what `torch.onnx.export` returns: an `ONNXProgram`, around an `onnx_ir.Model`."""
    return hasattr(source, "exported_program") and _is_onnx_ir(getattr(source, "model", None))


def _is_onnx_ir(source: object) -> bool:
    return type(source).__module__.partition(".")[0] == "onnx_ir"


def to_onnx_ir(model: LoadedModel) -> Any:
    """Return a model as an `onnx_ir.Model`. Weights that were loaded from external files still lie there."""
    from onnx_ir import external_data, serde

    made = serde.deserialize_model(to_proto(model))
    for folder in model.folders[:1]:
        external_data.set_base_dir(made.graph, folder)
    return made


def _read_model(proto: ModelProto, path: Path | None, folders: ModelFolders) -> LoadedModel:
    shell = ModelProto()
    copy_fields(proto, shell, without=("graph",))
    imports = {schemas.normalize_domain(entry.domain): entry.version for entry in proto.opset_import}
    if not imports:
        if proto.ir_version >= 3:
            raise ModelError("the model states no opset")
        imports = {"": 1}
    graph = GraphReader(imports, function_names(proto), proto.ir_version, folders).read_graph(proto.graph, None)
    opset_conversion.upgrade_declared(graph)
    return LoadedModel(graph, shell, path, folders)


# -- local functions ---------------------------------------------------------------------------------------------------


def _with_inlined_functions(proto: ModelProto) -> ModelProto:
    """Return the model with its local functions inlined. The inliner serializes it, so it is given the names of weights
    only."""
    weights = {tensor.name: tensor for tensor in proto.graph.initializer}
    light = _without_initializers(proto)
    light.graph.initializer.extend(TensorProto(name=name, data_type=1, dims=[0]) for name in weights)
    reasons = {}
    for opset in (entry.version for entry in proto.opset_import if schemas.normalize_domain(entry.domain) == ""):
        for function in light.functions:
            try:
                _convert_function(function, opset)
            except ModelError as error:
                reasons[_key_of(function)] = str(error)
    result = _inline_functions(light, proto.functions, reasons)
    if result is None:
        return proto
    del result.graph.initializer[:]
    result.graph.initializer.extend(weights.values())
    return result


def _convert_function(function: FunctionProto, opset: int) -> None:
    """Convert a function to the opset of its model, without which it cannot be inlined.

    Raises:
        ModelError: that cannot be; it is as it was.
    """
    if all(schemas.normalize_domain(entry.domain) or entry.version == opset for entry in function.opset_import):
        return
    raised = function_as_model(function)
    opset_conversion.upgrade_nodes(raised.graph)
    body = to_proto(_convert_opset(raised, opset))
    constants = [NodeProto(op_type=CONSTANT, output=[tensor.name]) for tensor in body.graph.initializer]
    for node, tensor in zip(constants, body.graph.initializer, strict=True):
        node.attribute.add(name="value", type=AttributeProto.TENSOR, t=tensor)
    del function.node[:], function.opset_import[:]
    function.node.extend((*constants, *body.graph.node))
    function.opset_import.extend(body.opset_import)


def function_as_model(function: FunctionProto) -> LoadedModel:
    """Return what a function does as a model, of whose inputs no types are known. Raises ModelError."""
    proto = ModelProto(ir_version=10, opset_import=function.opset_import)
    proto.graph.name = function.name
    proto.graph.node.extend(function.node)
    proto.graph.input.extend(ValueInfoProto(name=name) for name in function.input)
    proto.graph.output.extend(ValueInfoProto(name=name) for name in function.output)
    return _read_model(proto, None, ())


def _inline_functions(
    model: ModelProto, functions: Sequence[FunctionProto], reasons: Mapping[FunctionKey, str]
) -> ModelProto | None:
    """Return a model with those of its functions inlined that can be; None, with a warning, where none can.

    The inliner of the onnx package adds no default of an attribute where a call lacks it. For functions that it keeps,
    it drops the defaults and the functions that they call, without a word.

    Args:
        model: gets the defaults of attributes written into its calls.
        functions: those of the model as they came: what is kept is kept like this.
        reasons: why some will not be inlined, where the caller knows.

    Raises:
        ModelError: the inliner refuses the model.
    """
    if _may_lack_defaults(model):
        log.warning("the local functions are not inlined: one hands on an attribute that a call of it lacks")
        return None
    _write_default_attributes(model)
    try:
        result = onnx.inliner.inline_local_functions(model)
    except Exception as error:  # the inliner is C++: it has no error type of its own
        raise ModelError(f"the model's local functions cannot be inlined: {error}") from error
    kept = set(map(_key_of, result.functions))
    for function in functions:
        if _key_of(function) in kept:
            why = reasons.get(_key_of(function)) or _version_conflict(function, model) or "the onnx package keeps it"
            log.warning("the function %s.%s is not inlined: %s", function.domain, function.name, why)
    if complaint := _import_domains(result, [each for each in model.functions if _key_of(each) not in kept]):
        log.warning("the local functions are not inlined: %s", complaint)
        return None
    needed = _transitive_callees(functions, kept)
    del result.functions[:]
    result.functions.extend(function for function in functions if _key_of(function) in needed)
    return result


def _key_of(function: FunctionProto) -> FunctionKey:
    return function_key(function.domain, function.name, function.overload)


def _transitive_callees(functions: Iterable[FunctionProto], kept: Iterable[FunctionKey]) -> set[FunctionKey]:
    """Return the functions that are kept, with those that they call."""
    known = {_key_of(function): function for function in functions}
    found, waiting = set[FunctionKey](), list(kept)
    while waiting:
        key = waiting.pop()
        if key in known and key not in found:
            found.add(key)
            waiting += map(called_function, all_nodes(known[key].node))
    return found


def _write_default_attributes(model: ModelProto) -> None:
    """Write into every call the attributes that it leaves to their defaults."""
    defaults = {_key_of(function): function.attribute_proto for function in model.functions if function.attribute_proto}
    if not defaults:
        return
    for node in _nodes_of(model):
        given = {attribute.name for attribute in node.attribute}
        node.attribute.extend(each for each in defaults.get(called_function(node), ()) if each.name not in given)


def _may_lack_defaults(model: ModelProto) -> bool:
    """Return whether a call may lack an attribute that its function passes on to another, which has a default for it.

    Only the inliner would know in which of the calls the default is meant.
    """
    defaults = {_key_of(each): {attribute.name for attribute in each.attribute_proto} for each in model.functions}
    hands_on = any(
        attribute.ref_attr_name in function.attribute and attribute.name in defaults.get(called_function(node), ())
        for function in model.functions
        for node in all_nodes(function.node)
        for attribute in node.attribute
    )
    if not hands_on:
        return False
    asked = {_key_of(function): set(function.attribute) for function in model.functions}
    return any(
        asked.get(called_function(node), set()) - {each.name for each in node.attribute} for node in _nodes_of(model)
    )


def _nodes_of(model: ModelProto) -> Iterator[NodeProto]:
    """Yield the nodes of a model and of its local functions."""
    return all_nodes(chain(model.graph.node, *(function.node for function in model.functions)))


def _version_conflict(function: FunctionProto, model: ModelProto) -> str:
    """Say in which domain a function is of another version than its model; nothing where they agree."""
    versions = {schemas.normalize_domain(entry.domain): entry.version for entry in model.opset_import}
    for entry in function.opset_import:
        domain = schemas.normalize_domain(entry.domain)
        if versions.get(domain, entry.version) != entry.version:
            return f"it is in opset {entry.version} of {domain or 'ai.onnx'}, and the model in {versions[domain]}"
    return ""


def _import_domains(model: ModelProto, functions: Iterable[FunctionProto]) -> str:
    """Import the domains that only inlined functions imported; say where these do not agree on a version."""
    for function in functions:
        if complaint := _version_conflict(function, model):
            return f"of {function.domain}.{function.name}, {complaint}"
        imported = {schemas.normalize_domain(entry.domain) for entry in model.opset_import}
        model.opset_import.extend(
            e for e in function.opset_import if schemas.normalize_domain(e.domain) not in imported
        )
    return ""


# -- write -------------------------------------------------------------------------------------------------------------


def to_proto(model: LoadedModel) -> ModelProto:
    """Return the model as a message. Weights that were loaded from external files still lie there."""
    return _write_message(model, proto_conversion.tensor_to_proto)


def to_proto_and_weights(model: LoadedModel, least_bytes: int) -> tuple[ModelProto, dict[str, Tensor]]:
    """Return the message, in which weights of so many bytes or more are external, and those weights by name, to be
    given to a session. All others are in the message, those that were loaded from files, too."""
    proto, weights = _model_without_graph(model), dict[str, Tensor]()

    def place_apart(tensor: Tensor, name: str, into: TensorProto) -> None:
        if tensor.nbytes < least_bytes or tensor.dtype.numpy.isbuiltin != 1:  # of other types a session takes no arrays
            writer.place_inline(tensor, name, into)
            return
        weights[name] = tensor
        writer.place_in_file(tensor, name, into, "weights", 0)

    initializers = writer.GraphWriter(model.ir_version, writer.place_inline).write_graph(model.graph, proto.graph, None)
    load_external_data(proto, model.folders)  # of attributes, bodies and functions
    for name, node in initializers:
        place = writer.place_inline if node.is_graph_input else place_apart
        writer.put_initializer(proto.graph.initializer.add(), name, node, place)
    return proto, weights


def _write_message(model: LoadedModel, place: writer.PlaceTensor) -> ModelProto:
    proto = _model_without_graph(model)
    graph_writer = writer.GraphWriter(model.ir_version, place)
    for name, node in graph_writer.write_graph(model.graph, proto.graph, None):
        writer.put_initializer(proto.graph.initializer.add(), name, node, place)
    return proto


def _model_without_graph(model: LoadedModel) -> ModelProto:
    """Return all but the graph, with the domains imported of operators that were written into it."""
    proto = deepcopy(model.shell)
    nodes = (node for graph in model.graph.graphs() for _, node in graph.nodes())
    domains = {node.domain for node in nodes if schemas.is_defined_operator(node.op, node.domain)}
    for domain in sorted(domains - {schemas.normalize_domain(entry.domain) for entry in proto.opset_import}):
        proto.opset_import.add(domain=domain, version=opset_conversion.DEFAULT_DOMAIN_VERSION)
    return proto


def proto_outline(proto: ModelProto) -> ModelProto:
    """Return the message without the values of large weights, in memory of its own; defaults of inputs stay."""
    defaults = overridable_names(proto)
    bare = [writer.is_large(tensor) and tensor.name not in defaults for tensor in proto.graph.initializer]
    if not any(bare):
        return proto
    copy = _without_initializers(proto)
    for tensor, is_bare in zip(proto.graph.initializer, bare, strict=True):
        copy_fields(tensor, copy.graph.initializer.add(), without=writer.VALUE_FIELDS if is_bare else ())
    return copy


def _without_initializers(proto: ModelProto) -> ModelProto:
    copy = ModelProto()
    copy_fields(proto, copy, without=("graph",))
    copy_fields(proto.graph, copy.graph, without=("initializer",))
    return copy


def model_outline(model: LoadedModel) -> ModelProto:
    """Return the message of a model without the values of large weights, which are not read; defaults of inputs
    stay."""
    proto = _model_without_graph(model)
    graph_writer = writer.GraphWriter(model.ir_version, proto_conversion.tensor_to_proto)
    for name, node in graph_writer.write_graph(model.graph, proto.graph, None):
        place = proto_conversion.tensor_to_proto if node.is_graph_input else writer.place_without_values
        writer.put_initializer(proto.graph.initializer.add(), name, node, place)
    return proto


def write_scratch(model: LoadedModel, path: Path) -> None:
    """Write a model to a temporary file, with its weights beside it."""
    with weight_files.default_weight_path(path).open("wb") as data:
        proto = _proto_with_external_weights(model, data)
    _name_weight_file(proto, weight_files.default_weight_path(path))
    path.write_bytes(proto.SerializeToString())


def write_beside(proto: ModelProto, folder: Path | None, path: Path) -> None:
    """Write a message to a file, and its large initializers to one beside it, `<path>.data`.

    All else is as it was. `folder` is that of its external data.
    """
    light, defaults, folders = _without_initializers(proto), overridable_names(proto), (folder,) if folder else ()
    with weight_files.default_weight_path(path).open("wb") as data:
        store = writer.WeightFileWriter(data)
        for tensor in proto.graph.initializer:
            into = light.graph.initializer.add()
            is_external = tensor.data_location == TensorProto.EXTERNAL
            if (is_external or writer.is_large(tensor)) and tensor.name not in defaults:
                store.place(proto_conversion.tensor_from_proto(tensor, folders), tensor.name, into)
            else:
                into.CopyFrom(tensor)
    load_external_data(light, folders)
    _name_weight_file(light, weight_files.default_weight_path(path))
    path.write_bytes(light.SerializeToString())


# -- another opset -----------------------------------------------------------------------------------------------------


def convert_opset(model: LoadedModel, target_opset: int, approve: Callable[[], object] = lambda: None) -> LoadedModel:
    """Return the model in another opset of the ONNX operators: every node keeps its meaning. Changes `model`'s graph.

    Args:
        model: the model.
        target_opset: the opset.
        approve: called when the graph is converted, to raise ModelError where it is not to be taken so.

    Raises:
        ModelError: the opset is not known, or cannot express a node; the graph is as before. It says which opset can.
    """
    if not 1 <= target_opset <= schemas.RULE_OPSET:
        raise ModelError(f"opset {target_opset} is not known here: the newest is {schemas.RULE_OPSET}")
    opset_conversion.upgrade_nodes(model.graph)  # more types may be known than when it was loaded
    try:
        return _convert_opset(model, target_opset, approve)
    except ModelError as error:
        raise ModelError(f"{error}; {_opset_advice(model, target_opset, approve)}") from error.__cause__


def newest_opset(model: LoadedModel, limit: int, approve: Callable[[], object]) -> tuple[int, str]:
    """Return the newest opset up to a limit that can express a model, else its own, and why it is not the limit.

    `approve` is that of `convert_opset`. The graph stays as it is.
    """
    own, reason = model.graph.opsets.get("", 0), ""
    opset_conversion.upgrade_nodes(model.graph)
    for opset in range(limit, own, -1) if own < limit else [limit]:
        error = _conversion_error(model, opset, approve)
        if error is None:
            return opset, reason
        reason = reason or str(error)
    return own, reason


def _convert_opset(model: LoadedModel, opset: int, approve: Callable[[], object] = lambda: None) -> LoadedModel:
    _change_opset(model, opset, approve)
    shell = deepcopy(model.shell)
    for entry in [*shell.opset_import]:
        if schemas.normalize_domain(entry.domain) == "":
            shell.opset_import.remove(entry)
    shell.opset_import.insert(0, OperatorSetIdProto(version=opset))
    shell.ir_version = max(shell.ir_version, find_min_ir_version_for(shell.opset_import, True))
    return replace(model, shell=shell)


def _change_opset(model: LoadedModel, opset: int, approve: Callable[[], object]) -> Callable[[], None]:
    """Put the graphs of a model into an opset, with several nodes for one where needed; return the function that undoes
    it.

    Raises:
        ModelError: the opset cannot express a node, or is not approved; the graphs are as before.
    """
    graphs = list(model.graph.graphs())
    before, undo = [graph.opsets for graph in graphs], list[tuple[Graph, Patch]]()
    target = {**model.graph.opsets, "": opset}

    def back() -> None:
        for graph, patch in reversed(undo):
            graph.apply(patch)
        for graph, old in zip(graphs, before, strict=True):
            graph.opsets = old

    try:
        for graph in graphs:
            graph.opsets = target
            for patch in expand_nodes(graph, opset, model.folders):
                undo.append((graph, graph.apply(patch)))
        _check_expressible(graphs)
        approve()
    except ModelError:
        back()
        raise
    return back


def _opset_advice(model: LoadedModel, opset: int, approve: Callable[[], object]) -> str:
    """Return the advice for a model that an opset cannot express: to take the nearest opset that can, or to keep its
    own."""
    own = model.graph.opsets.get("", 0)
    others = range(opset + 1, own) if opset < own else range(opset - 1, own, -1)
    nearest = next((other for other in others if _conversion_error(model, other, approve) is None), None)
    kept = f"keep the model's own opset, {own}" if own else "keep the model as it is"
    return kept if nearest is None else f"convert it to opset {nearest}, or {kept}"


def _conversion_error(model: LoadedModel, opset: int, approve: Callable[[], object]) -> ModelError | None:
    """Return why a model cannot be put into an opset; None where it can. Its graphs stay as they are."""
    try:
        _change_opset(model, opset, approve)()
    except ModelError as error:
        return error
    return None


def _check_expressible(graphs: Iterable[Graph]) -> None:
    """Raise ModelError for the first node that its graph's opset cannot express."""
    for graph in graphs:
        for _, node in graph.nodes():
            if (
                node.domain == ""
                and not node.version
                and schemas.newest_version(node.op)
                and not is_sparse_constant(node)
            ):
                why = ": it may be in training mode" if node.op in OPAQUE_OPERATORS else ""
                label = opset_conversion.node_label(node)
                raise ModelError(f"{label} is of a version whose meaning is not known{why}")
            opset_conversion.downgraded(node, graph)


# -- save --------------------------------------------------------------------------------------------------------------


def save_model(
    model: LoadedModel, path: str | os.PathLike[str], *, external: bool | None = None, weights: str = ""
) -> int:
    """Write a model to a file and return its size. It appears under its name when it is complete, or not at all.

    A file of weights is never written over: whoever reads the old model finds its weights or none. The weights of a new
    model are in `<path>.data`; those that differ from what lies there, or replace a model, are in
    `<path>.<digest>.data`, named by their content. The weights of the replaced model are removed, if they have such a
    name and no other file of the folder mentions it; so are those that a killed save has left. A link is followed, and
    its target written.

    Args:
        model: stays as it is.
        path: may be the file that the model was loaded from. `-`, on the command line stdout, is refused.
        external: weights go to a file of their own; None: only if they are too large for one file.
        weights: the name of that file, if there is none of that name in the folder.

    Returns:
        The bytes of the file, and of that of its weights.

    Raises:
        OutputError: the file cannot be written; nothing is left behind, and an old file stays as it was.
    """
    if os.fspath(path) == "-":
        raise OutputError("a model is not saved to '-', which is stdout on the command line only: name a file")
    path = Path(path)
    if external is None:
        external = model.graph.weight_bytes > MAX_INLINE_WEIGHT_BYTES
    target = files.resolve_target(path)
    if target.exists() and not target.is_file():
        raise OutputError(f"{path} cannot be written: it is no ordinary file")
    if external:
        weight_files.check_weight_path(path)
    with files.naming_write_errors(path):
        return _save_external(model, target, weights) if external else _save_inline(model, target)


def _save_inline(model: LoadedModel, target: Path) -> int:
    with files.temporary_for(target) as part:
        write_model(model, part)
        files.flush_to_disk(part)
        size = os.fstat(part.fileno()).st_size
        with (
            files.folder_lock(target.parent),
            files.deferred_signals(),
            weight_files.replacing_weights(target, "", None, [part]),
        ):
            files.commit(part, target)
    return size


def _save_external(model: LoadedModel, target: Path, weights: str) -> int:
    with files.temporary_for(weight_files.default_weight_path(target)) as data, files.temporary_for(target) as part:
        proto = _proto_with_external_weights(model, data)
        files.flush_to_disk(data)
        with files.folder_lock(target.parent):
            asked = target.with_name(weights) if weights else target
            is_free = bool(weights) and not os.path.lexists(asked)
            place = asked if is_free else weight_files.weight_path(target, data)
            _name_weight_file(proto, place)
            part.write(proto.SerializeToString())
            files.flush_to_disk(part)
            size = sum(os.fstat(file.fileno()).st_size for file in (data, part))
            new = None if place.exists() else data
            with files.deferred_signals(), weight_files.replacing_weights(target, place.name, new, [data, part]):
                if new is not None:
                    files.commit(new, place, like=target)
                files.commit(part, target)
    return size


def write_model(model: LoadedModel, file: BinaryIO) -> None:
    """Write a model in one piece. The initializers, last in the graph, follow one by one: memory holds no second copy.

    Raises:
        OutputError: it is too large for one file.
    """
    proto = _model_without_graph(model)
    initializers = writer.GraphWriter(model.ir_version, writer.place_inline).write_graph(model.graph, proto.graph, None)
    entries = [writer.InitializerEntry.for_node(name, node) for name, node in initializers]
    load_external_data(proto, model.folders)
    graph = proto.graph.SerializeToString()
    size = len(graph) + sum(len(entry.head) + entry.payload for entry in entries)
    if size >= _MAX_PROTOBUF_BYTES:
        raise OutputError(f"a model of {size / 1e9:.1f} GB is too large for one file: its weights need another")
    proto.ClearField("graph")
    file.write(proto.SerializeToString())
    file.write(writer.field_tag(ModelProto, "graph") + proto_conversion.encode_varint(size))
    file.write(graph)
    for entry in entries:
        file.write(entry.head)
        if entry.payload:
            writer.append_tensor(file, entry.tensor, entry.payload, entry.name)


def _proto_with_external_weights(model: LoadedModel, data: BinaryIO) -> ModelProto:
    """Return the message of a model whose weights, those of some size, are written to a file that has no name yet."""
    proto = _write_message(model, writer.WeightFileWriter(data).place)
    load_external_data(proto, model.folders)
    return proto


def _name_weight_file(proto: ModelProto, path: Path) -> None:
    for tensor in proto_conversion.external_tensors(proto):
        proto_conversion.set_external_location(tensor, path.name)


def load_external_data(proto: ModelProto, folders: ModelFolders) -> None:
    """Read into a message the tensors that it says lie in a file; not those whose file has no name yet."""
    for tensor in proto_conversion.external_tensors(proto):
        if proto_conversion.external_location(tensor):
            loaded = proto_conversion.tensor_from_proto(tensor, folders)
            writer.place_inline(loaded, tensor.name, tensor)
