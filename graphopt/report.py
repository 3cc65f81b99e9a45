"""What was done to a model, as data: printed as a table, written as JSON."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Union, cast, get_args, get_origin, get_type_hints

from graphopt.compare import Comparison, Verdict
from graphopt.graph import Graph, Node
from graphopt.onnx_io import Model
from graphopt.protos import External
from graphopt.types import OpaqueType, Type

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table


def versions() -> dict[str, str]:
    """The installed packages that a result depends on."""
    found = {}
    for name in ("graphopt", "onnx", "onnxruntime", "onnxruntime-gpu"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


@dataclass(frozen=True, slots=True)
class Summary:
    """A model in numbers. Nodes in bodies count; Constant nodes count as initializers."""

    ops: Mapping[str, int]
    initializers: int
    parameters: int
    """Elements of the initializers."""
    weight_bytes: int
    inputs: Mapping[str, str]
    """Names and types."""
    outputs: Mapping[str, str]
    opsets: Mapping[str, int]
    file_bytes: int | None = None
    """Size of the file with its external data, where there is a file."""

    @property
    def nodes(self) -> int:
        return sum(self.ops.values())


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One change that was made."""

    name: str
    """Of the rule or pass."""
    is_rule: bool = True
    graph: str = ""
    """Name of the graph or body in which it was made."""
    removed: tuple[str, ...] = ()
    """The nodes that it took out: operator and name."""
    added: tuple[str, ...] = ()
    proof: str | None = None
    """What is known of the rule's proof, such as `proved (exact)`; None where nothing is known."""


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a run of `optimize` found and did."""

    source: str
    before: Summary
    after: Summary
    rewrites: tuple[Rewrite, ...] = ()
    comparison: Comparison | None = None
    """None where no check was wanted."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """By stage."""
    notes: tuple[str, ...] = ()
    """What the user should know, such as why a rule could not be applied."""
    versions: Mapping[str, str] = field(default_factory=versions)

    @staticmethod
    def summary(model: Model) -> Summary:
        """A model in numbers, as it is now."""
        return summary(model)

    @staticmethod
    def of(
        before: Summary,
        model: Model,
        rewrites: Iterable[Rewrite],
        comparison: Comparison | None,
        seconds: Mapping[str, float],
        notes: Iterable[str] = (),
    ) -> Report:
        """The report on a model that was `before` and is now what it is."""
        source = str(model.path) if model.path else f"model '{model.graph.name}'"
        after = replace(summary(model), file_bytes=None)
        return Report(source, before, after, tuple(rewrites), comparison, dict(seconds), tuple(notes))

    @property
    def counts(self) -> Mapping[str, int]:
        """How often each rule or pass was applied, the most frequent first."""
        return dict(Counter(rewrite.name for rewrite in self.rewrites).most_common())

    def saved(self, path: Path) -> Report:
        """The same report, with the size of the file that the result was written to."""
        size, data = path.stat().st_size, path.with_name(f"{path.name}.data")
        if size < self.after.weight_bytes and data.exists():
            size += data.stat().st_size
        return replace(self, after=replace(self.after, file_bytes=size))

    def to_json(self) -> str:
        """JSON that any reader takes: an infinite difference is null."""
        return json.dumps(_finite(asdict(self)), indent=2, ensure_ascii=False, allow_nan=False)

    @staticmethod
    def from_json(text: str) -> Report:
        """What `to_json` wrote. Fields that this version does not know are left out."""
        report: Report = _build(Report, json.loads(text))
        return report

    def print(self, console: Console | None = None) -> None:
        """Print the table: operators before and after, sizes, rewrites by rule, the check, seconds."""
        from rich.console import Console

        console = console or Console()
        for part in _parts(self):
            console.print(part)


# -- numbers -----------------------------------------------------------------------------------------------------------


def summary(model: Model) -> Summary:
    """A model in numbers, as it is now."""
    graph = model.graph
    constants = [node for inner in graphs(graph) for _, node in inner.items() if node.data is not None]
    inputs = [graph[vertex] for vertex in graph.inputs]
    outputs = zip(graph.output_names, graph.output_types, strict=True)
    ops: Counter[str] = Counter()
    for inner in graphs(graph):
        ops.update(inner.ops())
    return Summary(
        ops=dict(sorted(ops.items())),
        initializers=len(constants),
        parameters=sum(node.data.size for node in constants if node.data is not None),
        weight_bytes=sum(node.data.nbytes for node in constants if node.data is not None),
        inputs={node.names[0]: type_text(node.types[0]) for node in inputs},
        outputs={name: type_text(type_) for name, type_ in outputs},
        opsets={domain or "ai.onnx": number for domain, number in graph.opsets.items()},
        file_bytes=_file_bytes(model.path, constants) if model.path else None,
    )


def graphs(graph: Graph) -> Iterable[Graph]:
    """A graph and all the bodies in it."""
    yield graph
    for _, node in graph.nodes():
        for body in node.bodies:
            yield from graphs(body)


def _file_bytes(path: Path, constants: Iterable[Node]) -> int:
    sources = [node.data.source for node in constants if node.data is not None]
    external = {(s.path, s.offset): s.length for s in sources if isinstance(s, External)}
    return path.stat().st_size + sum(external.values())


def type_text(type_: Type | None) -> str:
    """`FLOAT[batch,3,224,224]`; sizes without a name are `?`."""
    from onnx import TypeProto

    if type_ is None:
        return "unknown"
    if isinstance(type_, OpaqueType):
        return str(TypeProto.FromString(type_.proto).WhichOneof("value") or "unknown").removesuffix("_type")
    if type_.shape is None:
        return f"{type_.dtype.name} of any rank"
    sizes = (str(size) if isinstance(size, int) or not size.is_anonymous else "?" for size in type_.shape)
    return f"{type_.dtype.name}[{','.join(sizes)}]"


def bytes_text(size: int | None) -> str:
    """`97.8 MB`, in powers of ten as file managers have it."""
    if size is None:
        return ""
    value, units = float(size), ["B", "KB", "MB", "GB", "TB"]
    while value >= 999.95 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{size} B" if units[0] == "B" else f"{value:.1f} {units[0]}"


# -- the table ---------------------------------------------------------------------------------------------------------


def _parts(report: Report) -> Iterable[RenderableType]:
    from rich.text import Text

    yield Text.assemble((report.source, "bold"), f", opset {_opsets(report)}", overflow="fold")
    yield ""
    yield _numbers(report)
    yield ""
    yield _interface(report.after)
    yield ""
    yield _rewrites(report)
    yield ""
    yield _facts(report)


def _opsets(report: Report) -> str:
    before, after = report.before.opsets, report.after.opsets
    texts = [f"{name} {number}" if name != "ai.onnx" else str(number) for name, number in before.items()]
    raised = before.get("ai.onnx") != after.get("ai.onnx")
    return ", ".join(texts) + (f", now {after.get('ai.onnx')}" if raised else "")


def _table(*columns: str) -> Table:
    """A table that folds what is too long: nothing is cut off, whatever the width."""
    from rich.table import Table

    table = Table(box=None, show_header=any(columns), header_style="", pad_edge=False, padding=(0, 2, 0, 0))
    for index, column in enumerate(columns):
        table.add_column(column, overflow="fold", justify="left" if index == 0 else "right")
    return table


def _numbers(report: Report) -> RenderableType:
    """Operators and sizes, before and after."""
    before, after = report.before, report.after
    table = _table("", "before", "after")
    for op in sorted(before.ops.keys() | after.ops.keys()):
        _row(table, op, before.ops.get(op, 0), after.ops.get(op, 0))
    table.add_row()
    _row(table, "nodes", before.nodes, after.nodes)
    _row(table, "initializers", before.initializers, after.initializers)
    _row(table, "weights", before.weight_bytes, after.weight_bytes, bytes_text)
    if before.file_bytes is not None and after.file_bytes is not None:
        _row(table, "file", before.file_bytes, after.file_bytes, bytes_text)
    return table


def _row(table: Table, name: str, before: int, after: int, text: Callable[[int], str] = str) -> None:
    """Fewer or smaller is green, more is yellow; what looks the same is the same."""
    colour = "" if text(before) == text(after) else "green" if after < before else "yellow"
    table.add_row(name, text(before), text(after), style=colour)


def _interface(model: Summary) -> RenderableType:
    table = _table("", "")
    table.columns[1].justify = "left"
    for kind, values in (("input", model.inputs), ("output", model.outputs)):
        for name, type_ in values.items():
            table.add_row(kind, f"{name}  {type_}")
    return table


def _rewrites(report: Report) -> RenderableType:
    if not report.rewrites:
        return "Nothing to rewrite: the model is as small as graphopt can make it."
    proofs = {rewrite.name: rewrite.proof for rewrite in report.rewrites if rewrite.proof is not None}
    table = _table("rewrites", str(len(report.rewrites)), *([""] if proofs else []))
    for name, count in report.counts.items():
        table.add_row(name, str(count), *([proofs.get(name, "")] if proofs else []))
    return table


def _facts(report: Report) -> RenderableType:
    table = _table("", "")
    table.columns[1].justify = "left"
    table.add_row("check", check_text(report.comparison), style=_colour(report.comparison))
    for what in report.comparison.skipped if report.comparison else ():
        table.add_row("", f"not compared: {what}", style="yellow")
    table.add_row("seconds", ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in report.seconds.items()))
    for note in report.notes:
        table.add_row("note", note)
    return table


def _colour(found: Comparison | None) -> str:
    if found is None or found.verdict in (Verdict.SKIPPED, Verdict.CANNOT_RUN):
        return "yellow"
    return "green" if found.ok else "red"


def check_text(found: Comparison | None) -> str:
    """A comparison in a sentence or two."""
    if found is None:
        return "not made"
    worst = found.worst
    if found.reason or worst is None:
        return f"{found.verdict}: {found.reason}" if found.reason else str(found.verdict)
    if not worst.ok:
        return f"{found.verdict}: output '{worst.output}' {worst.detail}"
    sizes = ", ".join(f"{name}={size}" for binding in found.bindings for name, size in binding.items())
    runs = f"{_seeds(found)}, {sizes}" if sizes else _seeds(found)
    if worst.absolute == 0:
        return f"{found.verdict}: the same in every bit ({runs})"
    return (
        f"{found.verdict}: differs by at most {worst.absolute:.2g} in '{worst.output}', {worst.relative:.2g} of its"
        f" largest element, with a tolerance of {worst.tolerance:.2g} ({runs})"
    )


def _seeds(found: Comparison) -> str:
    return f"seed{'s' * (len(found.seeds) > 1)} {', '.join(map(str, found.seeds))}"


# -- JSON --------------------------------------------------------------------------------------------------------------


def _finite(data: Any) -> Any:
    """The same data with null for what JSON has no number for."""
    match data:
        case float() if not math.isfinite(data):
            return None
        case dict():
            return {key: _finite(value) for key, value in data.items()}
        case list() | tuple():
            return [_finite(value) for value in data]
    return data


def _build(wanted: Any, data: Any) -> Any:
    """An object of a type from its JSON: dataclasses, tuples, mappings, enums and plain values."""
    origin, parts = get_origin(wanted), get_args(wanted)
    if origin in (Union, UnionType):
        return None if data is None else _build(next(part for part in parts if part is not NoneType), data)
    if origin is tuple:
        return tuple(_build(parts[0], item) for item in data)
    if origin is not None:
        return dict(data)
    if is_dataclass(wanted):
        types, made = get_type_hints(wanted), cast("Callable[..., Any]", wanted)
        return made(**{name: _build(types[name], value) for name, value in data.items() if name in types})
    if isinstance(wanted, type) and issubclass(wanted, Enum):
        return wanted(data)
    return math.inf if wanted is float and data is None else data
