"""The report on a run: what was done to a model, as data that is printed as a table and written as JSON."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphopt.base.errors import NoSpeedupError, UsageError
from graphopt.base.records import DECODE_ERRORS, from_json, to_json
from graphopt.check.verdict import EqualityVerdict, ModelComparison, format_comparison
from graphopt.io.onnx_io import LoadedModel
from graphopt.ir.types import OpaqueType, Type
from graphopt.language.proof import Proof
from graphopt.language.proof import Verdict as Proved
from graphopt.operators.proto_conversion import ExternalData
from graphopt.report.node_changes import KeptRun
from graphopt.rewrite.refused_changes import RefusedRewrite
from graphopt.runtime.input_sizes import format_sizes
from graphopt.runtime.measure import Speedup, TimingPolicy, TimingVerdict
from graphopt.search.search_report import (
    GroupKind,
    MemoryOutcome,
    RewriteGroup,
    SearchTiming,
    format_result_speedup,
    format_speedup,
    why_no_gain,
)
from graphopt.search.stopping import StopReason

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table


SCHEMA_VERSION = 1
"""Version of the form of reports as JSON, of which `report.schema.json` is the schema."""


def report_schema() -> dict[str, Any]:
    """Return the JSON schema (2020-12) of reports, as `Report.to_json` and `--report` write them."""
    text = files("graphopt.report").joinpath("report.schema.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def versions() -> dict[str, str]:
    """Return the installed packages that a result depends on."""
    return dict(_installed_versions())


@cache
def _installed_versions() -> Mapping[str, str]:
    found = {}
    for name in ("graphopt", "onnx", "onnxruntime", "onnxruntime-gpu"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


@dataclass(frozen=True, slots=True)
class ModelSummary:
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
    """Name of the rule or pass."""
    is_rule: bool = True
    graph: str = ""
    """Name of the graph or body in which it was made."""
    removed: tuple[str, ...] = ()
    """The nodes that it took out: the operator, and the name of the node or, where it has none, of its first value."""
    added: tuple[str, ...] = ()
    proof: str | None = None
    """Status of the rule, as `Proof.claim_text` words it: `proved, exact`, `not proved: …`; None for a pass."""
    cause: int | None = None
    """Index of the find or sweep in `timing.groups` that it was made for; None for a simplification, which is made
    wherever it pays."""
    weight_bytes: int = 0
    """Bytes by which the initializers grow with it; negative where they shrink."""
    original_nodes: tuple[int, ...] = ()
    """Nodes of the original that it took out or changed, by number: that of nodes in topological order, Constant nodes
    left out and local functions inlined; nodes of a body come directly before the node that has it."""
    result_nodes: tuple[int, ...] = ()
    """Nodes of the result that it put in or changed, by number. One that reads other values is in both lists."""


@dataclass(frozen=True, slots=True)
class RuleText:
    """A rule or pass that was applied, as it is described to a reader."""

    why: str
    """Reason why it pays."""
    algebra: str = ""
    """Both sides and the conditions; empty for a pass."""
    line: str = ""
    """The rule as a line of a .jsonl file; empty for a pass."""
    speed_without: Speedup | None = None
    """Speed of the model simplified without it, relative to the simplified model: below 1 it gains. Measured for a
    page, of the simplifications that take out the most nodes; else null."""


@dataclass(frozen=True, slots=True)
class OperatorTimes:
    """Seconds of one run in the kernels of each operator, as ONNX Runtime names them in the graph that it makes."""

    before: Mapping[str, float]
    """In the original; the least of the runs."""
    after: Mapping[str, float]
    """In the result; the least of the runs."""
    runs: int
    """Runs of each model under ONNX Runtime's profiler."""


@dataclass(frozen=True, slots=True)
class RuleUse:
    """All rewrites by one rule or pass for one cause."""

    rewrites: tuple[Rewrite, ...]

    @property
    def name(self) -> str:
        """Name of the rule or pass."""
        return self.rewrites[0].name

    @property
    def is_rule(self) -> bool:
        return self.rewrites[0].is_rule

    @property
    def proof(self) -> str | None:
        return self.rewrites[0].proof

    @property
    def cause(self) -> int | None:
        """Index of the find or sweep in `timing.groups`; None for simplifications."""
        return self.rewrites[0].cause

    @property
    def places(self) -> int:
        """Number of rewrites."""
        return len(self.rewrites)

    @property
    def weight_bytes(self) -> int:
        """Bytes by which the initializers grow with all of them."""
        return sum(rewrite.weight_bytes for rewrite in self.rewrites)

    def __str__(self) -> str:
        """Return a line: `fuse_bn_into_conv, 53 times: Conv, BatchNormalization -> Conv, first at c0`."""
        forms = Counter((_operators(rewrite.removed), _operators(rewrite.added)) for rewrite in self.rewrites)
        (form, _), *others = forms.most_common()
        what = " -> ".join(map(_format_nodes, form)) if any(form) else "moves no node"
        also = f" and {len(others)} other form{'s' * (len(others) > 1)}" if others else ""
        named = [name for rewrite in self.rewrites for node in rewrite.removed if (name := node.partition(" ")[2])]
        where = f", {'first ' * (self.places > 1)}at {named[0]}" if named else ""
        grown = f", {format_file_size(self.weight_bytes)} of weights" if self.weight_bytes > SMALL_BYTES else ""
        return f"{self.name}{f', {self.places} times' * (self.places > 1)}: {what}{also}{where}{grown}"


def _operators(nodes: Iterable[str]) -> tuple[str, ...]:
    """Return the operators of nodes that are told as operator and name."""
    return tuple(node.partition(" ")[0] for node in nodes)


SHOWN_NODES = 3
"""Nodes that a line names of each side of a rewrite."""
SMALL_BYTES = 100_000
"""Bytes of weights up to which a line does not tell them."""


def _format_nodes(nodes: Sequence[str]) -> str:
    more = [f"{len(nodes) - SHOWN_NODES} more"] if len(nodes) > SHOWN_NODES else []
    return ", ".join([*nodes[:SHOWN_NODES], *more]) or "nothing"


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """Everything that a run of `optimize` found and did."""

    source: str
    before: ModelSummary
    after: ModelSummary
    rewrites: tuple[Rewrite, ...] = ()
    refused: tuple[RefusedRewrite, ...] = ()
    """Rewrites that the check refused, now or when the recipe was made that was followed."""
    comparison: ModelComparison | None = None
    """Result of the check; None where no check was wanted."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds by stage."""
    notes: tuple[str, ...] = ()
    """Notes for the user, such as why a rule could not be applied."""
    timing: SearchTiming | None = None
    """Course and result of the search; None where none was asked for."""
    memory: MemoryOutcome | None = None
    """Memory that the result takes; null where it was not measured, as by default for models that take little."""
    session_code: str = ""
    """Python that opens a session of the result with the provider that was chosen, or with the options that a memory
    budget needs; empty where only one provider was asked for and no such options are needed."""
    versions: Mapping[str, str] = field(default_factory=versions)
    rules: Mapping[str, RuleText] = field(default_factory=dict)
    """The rules and passes that were applied, by name."""
    kept_nodes: tuple[KeptRun, ...] = ()
    """Nodes of the original that are nodes of the result, with the same operator."""
    operator_times: OperatorTimes | None = None
    """Profiles of the original and the result; null where none were made, as by default."""
    schema_version: int = SCHEMA_VERSION
    """Version of the JSON schema that describes this report; it is raised where a field goes or changes its meaning."""

    @staticmethod
    def build(
        before: ModelSummary,
        model: LoadedModel,
        comparison: ModelComparison | None,
        seconds: Mapping[str, float],
        notes: Iterable[str] = (),
        timing: SearchTiming | None = None,
    ) -> Report:
        """Return the report on a model that was `before` and is now what it is."""
        source = str(model.path) if model.path else f"model '{model.graph.name}'"
        after = replace(model_summary(model), file_bytes=None)
        return Report(
            source,
            before,
            after,
            comparison=comparison,
            seconds=dict(seconds),
            notes=tuple(notes),
            timing=timing,
        )

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of times each rule or pass was applied, the most frequent first."""
        return dict(Counter(rewrite.name for rewrite in self.rewrites).most_common())

    @property
    def rule_uses(self) -> tuple[RuleUse, ...]:
        """The rewrites by rule and cause, simplifications first, then those of each find and sweep."""
        found: dict[tuple[int, str], list[Rewrite]] = {}
        for rewrite in self.rewrites:
            found.setdefault((-1 if rewrite.cause is None else rewrite.cause, rewrite.name), []).append(rewrite)
        return tuple(RuleUse(tuple(made)) for _, made in sorted(found.items(), key=lambda item: item[0][0]))

    def require_speedup(self, ratio: float) -> None:
        """Raise NoSpeedupError unless the result was measured to be so many times as fast, beyond noise."""
        timing = self.timing
        if timing is None or timing.speedup is None:
            raise NoSpeedupError(f"{self.source}: no speedup was measured, {ratio:g} is required; no model was written")
        if not timing.is_gain or timing.speedup.median < ratio:
            found = f"{timing.speedup.median:.3f}{'' if timing.is_gain else ', no gain beyond noise'}"
            raise NoSpeedupError(
                f"{self.source}: the speedup is {found}; {ratio:g} is required, so no model was written"
            )

    def with_file_sizes(self, file_bytes: int) -> Report:
        """Return the same report, with the size of the result's file, and of that of its weights."""
        return replace(self, after=replace(self.after, file_bytes=file_bytes))

    def to_json(self) -> str:
        """Return JSON that any reader takes: an infinite difference is null."""
        return to_json(self, indent=2)

    @staticmethod
    def from_json(text: str) -> Report:
        """Return what `to_json` wrote. Fields that this version does not know are left out.

        Raises:
            Exception: one of `DECODE_ERRORS`, for a text that is no report, or one of another schema.
        """
        data = json.loads(text)
        number = data.get("schema_version") if isinstance(data, dict) else None
        if number != SCHEMA_VERSION:
            raise ValueError(
                f"it is no report of schema {SCHEMA_VERSION}, but {f'of {number}' if number else 'of none'}"
            )
        return from_json(Report, text)

    def __repr__(self) -> str:
        """Return a line about the result: all else is in the fields, and in `to_json`."""
        parts = [f"{self.before.nodes} -> {self.after.nodes} nodes", f"{len(self.rewrites)} rewrites"]
        if self.timing is not None and self.timing.speedup is not None:
            parts.append(f"{self.timing.speedup.median:.3f} times as fast{'' if self.timing.is_gain else ' (no gain)'}")
        parts.append("not checked" if self.comparison is None else str(self.comparison.verdict))
        return f"<Report on {self.source}: {', '.join(parts)}>"

    def decisions(self) -> Iterator[str]:
        """Yield what was decided, a line each: rules and passes, then each find and sweep, and its rules below it."""
        uses = self.rule_uses
        yield from (str(use) for use in uses if use.cause is None)
        for index, group in enumerate(self.timing.groups if self.timing else ()):
            why = f": {group.reason}" if group.reason else ""
            what = group.name if group.is_taken else format_group(group)  # the rules of what was taken follow
            yield f"{_format_fate(group)}: {what} (alone {format_alone(group)}){why}"
            yield from (f"    {use}" for use in uses if use.cause == index)

    def print(self, console: Console | None = None) -> None:
        """Print the table: operators before and after, sizes, rewrites by rule, the check, seconds."""
        _print_parts(_report_parts(self), console)


def load_report(path: str | PathLike[str]) -> Report:
    """Return the report in a file that `optimize --report` wrote.

    Raises:
        UsageError: the file cannot be read, or holds no report of this version's schema.
    """
    try:
        return Report.from_json(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    except DECODE_ERRORS as error:  # also for bytes that are no text
        raise UsageError(f"{path} is no report that this version reads: {error}") from error


# -- numbers -----------------------------------------------------------------------------------------------------------


def model_summary(model: LoadedModel) -> ModelSummary:
    """Return a model in numbers, as it is now."""
    graph = model.graph
    constants = [node for inner in graph.graphs() for _, node in inner.vertices_and_nodes() if node.data is not None]
    inputs = [graph[vertex] for vertex in graph.inputs]
    outputs = zip(graph.output_names, graph.output_types, strict=True)
    ops: Counter[str] = Counter()
    for inner in graph.graphs():
        ops.update(inner.operator_counts())
    file_bytes = None
    if model.path:
        sources = [node.data.source for node in constants if node.data is not None]
        external = {(s.path, s.offset): s.length for s in sources if isinstance(s, ExternalData)}
        file_bytes = model.path.stat().st_size + sum(external.values())
    return ModelSummary(
        ops=dict(sorted(ops.items())),
        initializers=len(constants),
        parameters=sum(node.data.size for node in constants if node.data is not None),
        weight_bytes=graph.weight_bytes,
        inputs={node.names[0]: format_type(node.types[0]) for node in inputs},
        outputs={name: format_type(type_) for name, type_ in outputs},
        opsets={domain or "ai.onnx": number for domain, number in graph.opsets.items()},
        file_bytes=file_bytes,
    )


def format_type(type_: Type | None) -> str:
    """Return a type as `FLOAT[batch,3,224,224]`; sizes without a name are `?`."""
    from onnx import TypeProto

    if type_ is None:
        return "unknown"
    if isinstance(type_, OpaqueType):
        return str(TypeProto.FromString(type_.proto).WhichOneof("value") or "unknown").removesuffix("_type")
    if type_.shape is None:
        return f"{type_.dtype.name} of any rank"
    sizes = (str(size) if isinstance(size, int) or not size.is_anonymous else "?" for size in type_.shape)
    return f"{type_.dtype.name}[{','.join(sizes)}]"


def format_file_size(size: int | None) -> str:
    """Return a size as `97.8 MB`, in powers of ten as file managers have it."""
    if size is None:
        return ""
    value, units = float(size), ["B", "KB", "MB", "GB", "TB"]
    while value >= 999.95 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{size} B" if units[0] == "B" else f"{value:.1f} {units[0]}"


# -- the table ---------------------------------------------------------------------------------------------------------


def _print_parts(parts: Iterable[RenderableType], console: Console | None = None) -> None:
    """Print to a console; to a file without the blanks that fill its lines."""
    from graphopt.report.safe_console import SafeConsole

    console = console or SafeConsole(highlight=False, markup=False)
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    text = captured.get()
    if not console.is_terminal:
        text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    console.file.write(text)
    console.file.flush()


def _report_parts(report: Report) -> Iterable[RenderableType]:
    from rich.text import Text

    before, after = report.before.opsets, report.after.opsets
    texts = [f"{name} {number}" if name != "ai.onnx" else str(number) for name, number in before.items()]
    now = f", now {after.get('ai.onnx')}" if before.get("ai.onnx") != after.get("ai.onnx") else ""
    yield Text.assemble((report.source, "bold"), f", opset {', '.join(texts)}{now}", overflow="fold")
    yield ""
    yield _size_table(report)
    yield ""
    yield _interface_table(report.after)
    yield ""
    yield _rewrite_table(report)
    yield ""
    if report.timing is not None:
        yield from _speed_lines(report.timing, is_changed=bool(report.rewrites))
    yield _facts_table(report)
    if report.session_code:
        yield ""
        yield Text(report.session_code, overflow="fold")


def _table(*columns: str, left: int = 1) -> Table:
    """Return a table that folds long texts: nothing is cut off, whatever the width; the first `left` columns are
    texts."""
    from rich.table import Table

    table = Table(box=None, show_header=any(columns), header_style="", pad_edge=False, padding=(0, 2, 0, 0))
    for index, column in enumerate(columns):
        table.add_column(column, overflow="fold", justify="left" if index < left else "right")
    return table


def _size_table(report: Report) -> RenderableType:
    """Return the table of operators and sizes, before and after."""
    before, after = report.before, report.after
    table = _table("", "before", "after")
    for op in sorted(before.ops.keys() | after.ops.keys()):
        _add_row(table, op, before.ops.get(op, 0), after.ops.get(op, 0))
    table.add_row()
    _add_row(table, "nodes", before.nodes, after.nodes)
    _add_row(table, "initializers", before.initializers, after.initializers)
    _add_row(table, "weights", before.weight_bytes, after.weight_bytes, format_file_size)
    if before.file_bytes is not None and after.file_bytes is not None:
        _add_row(table, "file", before.file_bytes, after.file_bytes, format_file_size)
    return table


def _add_row(table: Table, name: str, before: int, after: int, text: Callable[[int], str] = str) -> None:
    """Add a row in green where there is less, in yellow where there is more; what looks the same is the same."""
    colour = "" if text(before) == text(after) else "green" if after < before else "yellow"
    table.add_row(name, text(before), text(after), style=colour)


def _interface_table(model: ModelSummary) -> RenderableType:
    table = _table("", "", left=2)
    for kind, values in (("input", model.inputs), ("output", model.outputs)):
        for name, type_ in values.items():
            table.add_row(kind, f"{name}  {type_}")
    return table


def _rewrite_table(report: Report) -> RenderableType:
    if not report.rewrites:
        was_timed = report.timing is not None and report.timing.simplified is not None
        return "no rewrite was kept: see the notes" if was_timed else "no rewrite applies"
    table = _table("rewrites", str(len(report.rewrites)), "")
    table.columns[2].justify = "left"
    searched = [rewrite for rewrite in report.rewrites if rewrite.cause is not None]
    _add_rewrite_rows(table, [rewrite for rewrite in report.rewrites if rewrite.cause is None])
    if searched:
        table.add_row("by the search", str(len(searched)), "")
        _add_rewrite_rows(table, searched)
    return table


def _add_rewrite_rows(table: Table, rewrites: Sequence[Rewrite]) -> None:
    """Add a row for each rule and pass, the most frequent first."""
    proofs = {rewrite.name: rewrite.proof or "" for rewrite in rewrites}
    for name, count in Counter(rewrite.name for rewrite in rewrites).most_common():
        table.add_row(name, str(count), proofs[name], style="yellow" if proofs[name].startswith("not") else "")


def _speed_lines(timing: SearchTiming, *, is_changed: bool) -> Iterable[RenderableType]:
    """Yield what the search tried, and how fast the result is."""
    if timing.groups:
        found = "what the recipe says" if timing.stop == StopReason.RECIPE else "what the search found"
        table = _table(found, "alone", "saves", "")
        for group in timing.groups:
            table.add_row(format_group(group), format_alone(group), format_saving(group), _format_fate(group))
        yield table
        yield ""
        yield from _rejection_lines(timing)
    table = _table("", "", left=2)
    table.add_row("speed", format_speed(timing, is_changed=is_changed), style="green" if timing.is_gain else "")
    for latency in timing.latencies:
        before, after = (f"{t.median * 1e3:.3g} ms (±{t.spread / 2:.0%})" for t in (latency.before, latency.after))
        where = f", at {format_sizes(latency.sizes)}" if latency.sizes else ""
        table.add_row("", f"{after} after, {before} before{where}")
    if timing.simplified is not None:
        doubt = ", which may be no difference" if timing.simplified.verdict is TimingVerdict.SAME else ""
        table.add_row("", f"{format_speedup(timing.simplified)} by what is done without a search{doubt}")
    if timing.searched is not None:
        table.add_row("", f"{format_speedup(timing.searched)} as without what the search found")
    if timing.speedup is not None and (reason := why_no_gain(timing.speedup, TimingPolicy())):
        table.add_row("", f"no gain: {reason}")
    table.add_row("search", format_search(timing))
    yield table


def format_group(group: RewriteGroup) -> str:
    """Return a find as `12 × merge_linear`, or as `12 parts of another model: merge_linear` where it has no part here;
    a sweep as `kernels of one size: mix_kernels`."""
    rules = ", ".join(group.rules)
    return f"{len(group.parts)} × {rules}" if group.parts else f"{group.name}: {rules}"


def format_ratio(ratio: Speedup | None) -> str:
    """Return `1.304 (1.282–1.331)`: a speedup, and where the true one lies; empty where there is none."""
    return "" if ratio is None else f"{ratio.median:.3f} ({ratio.low:.3f}–{ratio.high:.3f})"


def format_alone(group: RewriteGroup) -> str:
    """Return what a group is worth by itself: `1.30 (1.28–1.33)` where it was measured, `≈ 1.30` where estimated."""
    ratio = group.alone
    if ratio is None:
        return "not timed"
    return f"≈ {ratio.median:.2f}" if group.is_estimate else f"{ratio.median:.2f} ({ratio.low:.2f}–{ratio.high:.2f})"


def format_saving(group: RewriteGroup) -> str:
    """Return what a group saves of a run: `0.42 ms` where it was measured, `≈ 0.42 ms` where estimated."""
    if group.saved_seconds is None:
        return ""
    return f"{'≈ ' * (group.kind is GroupKind.FIND)}{group.saved_seconds * 1e3:.3g} ms"


def _format_fate(group: RewriteGroup) -> str:
    return "taken" if group.is_taken else "left"


def _rejection_lines(timing: SearchTiming) -> Iterable[RenderableType]:
    """Yield why finds and sweeps were left out, each reason once."""
    reasons: dict[str, list[str]] = {}
    for group in timing.groups:
        if group.reason:
            reasons.setdefault(group.reason, []).append(format_group(group))
    for reason, groups in reasons.items():
        yield f"left: {'; '.join(groups) if len(groups) < 4 else f'{len(groups)} of them'}: {reason}"
    if reasons:
        yield ""


def format_speed(timing: SearchTiming, *, is_changed: bool) -> str:
    """Return `1.13 times as fast …` or `no gain …`, and how that was measured."""
    where, ratio = format_device(timing), timing.speedup
    if ratio is None and timing.cost == "analytic":
        return f"not measured: chosen by an estimate for {where}"
    if ratio is None:
        return timing.untimed or "not timed" if is_changed else "the original, as it was"
    numbers = f"{format_result_speedup(timing)}; {where}"
    return numbers if timing.is_gain else f"no gain: {numbers}"


def format_device(timing: SearchTiming) -> str:
    """Return `CPUExecutionProvider, 2 threads`, where a result was timed."""
    return f"{timing.provider}, {timing.threads} thread{'s' * (timing.threads != 1)}"


def format_search(timing: SearchTiming) -> str:
    """Say how much was searched, why it ended, and what the check took of its time."""
    refused = f"; {timing.refused_seconds:.1f} s of the --seconds went into searches that the check refused"
    other = "of a model with other weights: " * timing.is_of_other_weights
    return f"{other}{_format_course(timing)}{refused * (timing.refused_seconds >= 0.05)}"


def _format_course(timing: SearchTiming) -> str:
    if not timing.could_be_timed:
        return f"none: {timing.untimed}"
    if timing.stop == StopReason.RECIPE:
        return f"none: {timing.stop}"
    if timing.stop == StopReason.BOUND and timing.gainable is not None:
        outside = (
            "of the time is outside of convolutions and matrix products, and no estimate speaks for rewriting these"
        )
        return f"none: {timing.gainable:.1%} {outside}"
    if not timing.copies and timing.stop != StopReason.DONE:
        return f"no part was searched; {timing.stop}"
    parts = f"{timing.regions} distinct of {timing.copies} parts" if timing.copies else "no part in which a rule trades"
    return f"{parts}, {timing.states} graphs, {timing.trials} {timing.cost}; {timing.stop}"


def _facts_table(report: Report) -> RenderableType:
    table = _table("", "", left=2)
    found = report.comparison
    table.add_row("check", format_comparison(found), style=_COLOURS[verdict_class(found)])
    if found is not None:
        if found.oracle:
            table.add_row("oracle", found.oracle)
        for name in found.replaced:
            table.add_row("", f"{name}: no kernel here, so its definition was run in its place", style="yellow")
        for what in found.skipped:
            table.add_row("", f"not compared: {what}", style="yellow")
    table.add_row("seconds", format_stages(report))
    if growth := format_growth(report):
        table.add_row("weights", growth, style="yellow")
    if report.memory is not None:
        table.add_row("memory", str(report.memory))
    for note in _group_notes(report.notes):
        table.add_row("note", note)
    return table


def format_stages(report: Report) -> str:
    """Return the seconds of the stages that took any: `load 0.4, search 10.1`."""
    told = [f"{stage} {seconds:.1f}" for stage, seconds in report.seconds.items() if seconds >= 0.05]
    return ", ".join(told) or "0.0"


def format_growth(report: Report) -> str:
    """Return by how much the weights grew, which rules and passes made them grow, and how to avoid it; nothing where
    they grew by less than a hundredth or 10 KB."""
    before, after = report.before.weight_bytes, report.after.weight_bytes
    if after - before < max(before / 100, 10_000):
        return ""
    added: dict[str, list[Rewrite]] = {}
    for rewrite in report.rewrites:
        if rewrite.weight_bytes > 0:
            added.setdefault(rewrite.name, []).append(rewrite)
    sums = Counter({name: sum(rewrite.weight_bytes for rewrite in made) for name, made in added.items()})
    grown = f"grew from {format_file_size(before)} to {format_file_size(after)}"
    if not sums:
        return grown
    large = [name for name, size in sums.most_common() if size * 100 >= sums.total()]
    each = (f"{name} adds {format_file_size(sums[name])} {_format_largest(added[name])}" for name in large)
    return f"{grown}: {', '.join(each)}; to avoid it: --skip {','.join(large)}"


def _format_largest(made: Sequence[Rewrite]) -> str:
    """Return `at 219 places, most at ConstantOfShape c3`, the place at which the weights grow most."""
    largest = max(made, key=lambda rewrite: rewrite.weight_bytes)
    where = f" at {largest.removed[0]}" if largest.removed else ""
    return f"at {len(made)} places, most{where}" if len(made) > 1 and where else where.strip() or "at 1 place"


def _group_notes(notes: Iterable[str]) -> Iterable[str]:
    """Yield the notes, with one line for all rules to which the same text applies."""
    rules: dict[str, list[str]] = {}
    for note in notes:
        found = re.fullmatch(r"rule (\w+) (.*)", note)
        rules.setdefault(found[2] if found else note, []).extend([found[1]] if found else [])
    for text, names in rules.items():
        who = ", ".join(names) if len(names) < 4 else f"{len(names)} rules"
        yield f"{who} {_to_plural(text) if len(names) > 1 else text}" if names else text


def _to_plural(text: str) -> str:
    """Return a text about one rule as it is about several: `was not applied: it is …`, `needs …`, `matches …`."""
    text = re.sub(r"^was (.*?: )it is ", r"were \1they are ", text)
    text = re.sub(r"^matches (.*) makes (.*) list it (.*) times it$", r"match \1 make \2 list them \3 times them", text)
    return re.sub(r"^(was|needs)\b", lambda verb: {"was": "were", "needs": "need"}[verb[0]], text)


def verdict_class(found: ModelComparison | None) -> str:
    """Return `good`, `bad` or, where nothing was compared, `doubt`: the class of a verdict on a page."""
    if found is None or found.verdict in (EqualityVerdict.SKIPPED, EqualityVerdict.CANNOT_RUN):
        return "doubt"
    return "good" if found.ok else "bad"


_COLOURS = {"good": "green", "doubt": "yellow", "bad": "red"}
"""Colours in a terminal, by the class of a verdict."""


@dataclass(frozen=True, slots=True)
class ModelInspection:
    """Contents of a model, as it lies in its file."""

    source: str
    ir_version: int
    producer: str
    model: ModelSummary
    functions: tuple[str, ...]
    """Local functions; what is in them is counted once, not per call."""
    bodies: int
    """Graphs in attributes: branches of If, bodies of Loop and Scan."""
    unknown: tuple[str, ...]
    """Operators without a schema in the onnx package: carried as they are."""
    external: tuple[str, ...]
    """Files with weights."""

    @staticmethod
    def from_model(model: LoadedModel) -> ModelInspection:
        inner = list(model.graph.graphs())
        functions = [f"{function.domain}.{function.name}" for function in model.shell.functions]
        nodes = [node for graph in inner for _, node in graph.vertices_and_nodes()]
        strange = {f"{n.domain}.{n.op}" if n.domain else n.op for n in nodes if not n.is_internal and n.version == 0}
        sources = [node.data.source for node in nodes if node.data is not None]
        return ModelInspection(
            str(model.path or ""),
            model.ir_version,
            f"{model.shell.producer_name} {model.shell.producer_version}".strip(),
            model_summary(model),
            tuple(functions),
            len(inner) - 1,
            tuple(sorted(strange - set(functions))),
            tuple(sorted({str(source.path) for source in sources if isinstance(source, ExternalData)})),
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, ensure_ascii=False)

    def print(self, console: Console | None = None) -> None:
        _print_parts(self._parts(), console)

    def _parts(self) -> Iterable[RenderableType]:
        from rich.text import Text

        yield Text(self.source, "bold", overflow="fold")
        yield ""
        yield _interface_table(self.model)
        yield ""
        operators = _table("operator", "nodes")
        for op, count in sorted(self.model.ops.items(), key=lambda item: (-item[1], item[0])):
            operators.add_row(op, str(count), style="yellow" if op in self.unknown else "")
        operators.add_row()
        operators.add_row("all", str(self.model.nodes))
        yield operators
        yield ""
        facts = _table("", "", left=2)
        for name, text in self._facts().items():
            if text:
                facts.add_row(name, text)
        yield facts

    def _facts(self) -> Mapping[str, str]:
        model = self.model
        weights = f"{model.parameters:,} parameters in {model.initializers} initializers"
        return {
            "weights": f"{weights}, {format_file_size(model.weight_bytes)}",
            "file": format_file_size(model.file_bytes),
            "external data": ", ".join(self.external),
            "opset": ", ".join(f"{name} {number}" for name, number in model.opsets.items()),
            "IR version": str(self.ir_version),
            "producer": self.producer,
            "functions": ", ".join(self.functions),
            "bodies": str(self.bodies or ""),
            "unknown": ", ".join(self.unknown),
        }


def print_comparison(found: ModelComparison, console: Console | None = None) -> None:
    """Print a table with a row for each output, and what the verdict rests on."""
    _print_parts(_comparison_parts(found), console)


def _comparison_parts(found: ModelComparison) -> Iterable[RenderableType]:
    if found.outputs:
        table = _table("output", "type", "difference", "relative", "tolerance", "")
        for item in found.outputs:
            numbers = (f"{item.absolute:.2g}", f"{item.relative:.2g}", f"{item.tolerance:.2g}")
            mark, colour = ("ok", "") if item.ok else ("DIFFERENT", "red")
            table.add_row(item.output, item.dtype, *numbers, mark, style=colour)
        yield table
        yield ""
    facts = _table("", "", left=2)
    facts.add_row("verdict", found.verdict_text, style=_COLOURS[verdict_class(found)])
    rows = [("", f"{item.output} {item.detail}") for item in found.outputs if item.detail]
    tolerances = list(dict.fromkeys(item.why for item in found.outputs))
    if len(tolerances) > 3 and found.worst is not None:
        tolerances = [f"of '{found.worst.output}', and of the others alike: {found.worst.why}"]
    rows += [("tolerance", why) for why in tolerances]
    rows += [("varies", what) for what in found.varying]
    rows += [("run", str(case)) for case in found.cases]
    rows += [("not compared", what) for what in found.skipped]
    rows += [("oracle", found.oracle)] if found.oracle else []
    for row in rows:
        facts.add_row(*row)
    yield facts


def print_proofs(proofs: Sequence[Proof], console: Console | None = None) -> None:
    """Print a table with a row for each rule; below it, why some are not proved."""
    _print_parts(_proof_parts(proofs), console)


_VERDICT_COLOURS = {Proved.PROVED: "", Proved.REFUTED: "red", Proved.UNKNOWN: "yellow", Proved.VACUOUS: "yellow"}


def _proof_parts(proofs: Sequence[Proof]) -> Iterable[RenderableType]:
    from rich.text import Text

    table = _table("rule", "verdict", "model", "ranks", "cases", "seconds")
    for proof in proofs:
        numbers = proof.coverage_text, str(proof.cases or ""), f"{proof.seconds:.2f}"
        table.add_row(proof.rule, proof.verdict, proof.model or "", *numbers, style=_VERDICT_COLOURS[proof.verdict])
    yield table
    for proof in proofs:
        if not proof.holds:
            yield ""
            yield Text(proof.failure_text, overflow="fold")
    yield ""
    yield f"{format_proof_counts(proofs)}; {sum(proof.seconds for proof in proofs):.1f} s of processor time"


def format_proof_counts(proofs: Iterable[Proof]) -> str:
    """Return `640 rules: 640 proved (402 exact, 238 reassociate, 31 of these for finite values)`."""
    listed = list(proofs)
    verdicts = Counter(proof.verdict for proof in listed)
    proved, real = verdicts.pop(Proved.PROVED, 0), sum(proof.holds and proof.reassociates for proof in listed)
    others = "".join(f", {count} {verdict.lower()}" for verdict, count in sorted(verdicts.items()))
    rules = f"{len(listed)} rule{'s' * (len(listed) != 1)}"
    finite = sum(proof.holds and proof.assumes_finite for proof in listed)
    of_these = f", {finite} of these for finite values" if finite else ""
    return f"{rules}: {proved} proved ({proved - real} exact, {real} reassociate{of_these}){others}"
