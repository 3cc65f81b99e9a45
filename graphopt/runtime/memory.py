"""Memory that a model takes in ONNX Runtime: how much, what for, at which node most, and which options lower it.

What a process takes is the operating system's word; what of it is activations and what kernels take inside is told by
the statistics of ONNX Runtime's arena, which its profiler writes for each node.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx

from graphopt.base import files
from graphopt.base.dtype import DType
from graphopt.base.errors import ModelError
from graphopt.base.limits import LimitError, format_megabytes
from graphopt.io import onnx_io
from graphopt.operators.operator_classes import lookup_operator
from graphopt.runtime.bench import format_table, prepare_models
from graphopt.runtime.input_sizes import TrialInputs
from graphopt.runtime.memory_probe import MemoryOptions, MemoryProbe, Resident
from graphopt.runtime.oracle import RunFailedError, run_interruptibly
from graphopt.runtime.profile import ProfiledSession, optimized_graph
from graphopt.runtime.sample_inputs import Array
from graphopt.runtime.session_setting import SessionSetting, Source, make_runner, model_label

MEMORY_RUNS = 2
"""Runs after which a session holds all that it will: the second allocates by the pattern that the first has shown."""
TIMING_ROUNDS, TIMING_SECONDS, MAX_TIMING_ROUNDS = 5, 1.0, 100
"""Rounds in which a session with other options and one without take turns: so many at least, more of them until so many
seconds are over, and so many at most."""
ADVISED_SAVING = 0.05
"""Part of the memory that options have to save to be advised."""


# -- options that lower it ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemoryVariant:
    """Options of a session that may lower its memory, or weights that lie elsewhere."""

    name: str
    options: MemoryOptions = field(default_factory=MemoryOptions)
    is_external: bool = False
    """True where the weights lie in a file beside the model."""

    def code_lines(self, path: str) -> tuple[str, ...]:
        """Return the lines of Python that bring it about, to follow `options = onnxruntime.SessionOptions()`."""
        given = self.options
        lines = [f"options.{name} = {value!r}" for name, value in given.attributes.items()]
        lines += [f"options.add_session_config_entry({key!r}, {value!r})" for key, value in given.entries.items()]
        if given.run_entries:
            lines.append("run_options = onnxruntime.RunOptions()")
            set_entry = "run_options.add_run_config_entry"
            lines += [f"{set_entry}({key!r}, {value!r})" for key, value in given.run_entries.items()]
            lines.append("outputs = session.run(None, inputs, run_options)")
        if self.is_external:
            other = str(Path(path).with_suffix(".external.onnx"))
            lines.append("import onnx")
            lines.append(f"onnx.save_model(onnx.load({path!r}), {other!r}, save_as_external_data=True)")
        return tuple(lines)


DEFAULT_VARIANT = MemoryVariant("ONNX Runtime's defaults")
WITHOUT_PATTERN = MemoryVariant("no memory pattern", MemoryOptions({"enable_mem_pattern": False}))
WITHOUT_REUSE = MemoryVariant(
    "no memory pattern, no reuse", MemoryOptions({"enable_mem_pattern": False, "enable_mem_reuse": False})
)
VARIANTS = (
    WITHOUT_PATTERN,
    WITHOUT_REUSE,
    MemoryVariant(
        "no memory pattern, arena shrunk after each run",
        MemoryOptions({"enable_mem_pattern": False}, run_entries={"memory.enable_memory_arena_shrinkage": "cpu:0"}),
    ),
    MemoryVariant("no arena", MemoryOptions({"enable_cpu_mem_arena": False})),
    MemoryVariant(
        "initializers outside of the arena",
        MemoryOptions(entries={"session.use_device_allocator_for_initializers": "1"}),
    ),
    MemoryVariant("no packed weights", MemoryOptions(entries={"session.disable_prepacking": "1"})),
    MemoryVariant("weights in a file of their own", is_external=True),
)
"""Options that lower the memory of some models."""


# -- what was measured -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionMemory:
    """Bytes that a session of a model takes in a process of its own, above those of Python and ONNX Runtime."""

    variant: MemoryVariant
    loading: Resident
    running: Resident
    time_ratio: float | None = None
    """Seconds of a run over those with ONNX Runtime's defaults: the median of rounds; None for the defaults, and where
    nothing is saved."""

    @property
    def peak(self) -> int:
        """The most bytes while the model is loaded and run."""
        return max(self.loading.peak, self.running.peak)

    @property
    def held(self) -> int:
        """Bytes that the session keeps after a run."""
        return self.running.held

    @property
    def figures(self) -> Mapping[str, int]:
        """Bytes by their columns in tables: at most while it is loaded, at most while it runs, and held after a run."""
        return {"loading": self.loading.peak, "running": self.running.peak, "held": self.held}

    def saves_over(self, other: SessionMemory) -> bool:
        """Return whether it takes less than another at some time, by more than what does not matter."""
        least = max(ADVISED_SAVING * other.peak, 1e6)
        return any(nbytes < other.figures[name] - least for name, nbytes in self.figures.items())

    def describe_saving(self, usual: SessionMemory) -> str:
        """Return what the options save, in one line."""
        parts = [
            f"{name} {format_megabytes(nbytes)} instead of {format_megabytes(usual.figures[name])}"
            for name, nbytes in self.figures.items()
            if nbytes < usual.figures[name]
        ]
        time = "" if self.time_ratio is None else f", at {self.time_ratio:.2f} of the time"
        return f"{self.variant.name}: {', '.join(parts)}{time}"

    def to_json(self) -> dict[str, Any]:
        """Return plain data: bytes, and the time as a ratio."""
        return {
            "options": self.variant.name,
            "loading": asdict(self.loading),
            "running": asdict(self.running),
            "peak": self.peak,
            "held": self.held,
            "time": self.time_ratio,
        }


@dataclass(frozen=True, slots=True)
class LiveBytes:
    """A value of ONNX Runtime's optimized graph that lies in memory while a node runs."""

    name: str
    producer: str
    """The node that makes it: its operator and name."""
    nbytes: int

    def __str__(self) -> str:
        return f"'{self.name}' of {self.producer}, {format_megabytes(self.nbytes)}"


@dataclass(frozen=True, slots=True)
class MemoryBound:
    """The node at which a run takes the most memory, in ONNX Runtime's order and on its own graph."""

    node: str
    """Its operator and name."""
    activations: int
    """Bytes of values that lie in memory while it runs, outputs and copies in between included."""
    buffers: int | None
    """Bytes that its kernel takes while it runs, and gives back; None where this ONNX Runtime does not say."""
    values: tuple[LiveBytes, ...]
    """The largest values that lie in memory while it runs, the largest first."""

    @property
    def run_bytes(self) -> int:
        """Bytes that a run takes at this node."""
        return self.activations + (self.buffers or 0)

    def __str__(self) -> str:
        kernel = "" if not self.buffers else f", {format_megabytes(self.buffers)} of them in its kernel"
        held = ", ".join(map(str, self.values)) or "no values"
        return f"{self.node} is the bound: {format_megabytes(self.run_bytes)}{kernel}; in memory are {held}"


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """The memory of one model at one set of sizes."""

    model: str
    setting: SessionSetting
    weight_bytes: int
    """Bytes of the weights, as the file has them."""
    bound: MemoryBound
    usual: SessionMemory
    """With ONNX Runtime's defaults."""
    variants: tuple[SessionMemory, ...] = ()
    """With other options."""
    path: str = "model.onnx"
    """Path of the model in lines of code."""

    @property
    def advised(self) -> tuple[SessionMemory, ...]:
        """The variants that save memory, the one with the lowest peak first."""
        found = (each for each in self.variants if each.saves_over(self.usual))
        return tuple(sorted(found, key=lambda each: (each.peak, each.held)))

    @property
    def unused_bytes(self) -> int:
        """Bytes that the arena takes at most beside what the values and buffers need, as gaps or kept blocks."""
        return max(0, self.usual.running.peak - self.usual.loading.held - self.bound.run_bytes)

    @property
    def code(self) -> str:
        """The lines of Python that bring about what is advised."""
        lines: list[str] = []
        for each in self.advised:
            lines += [f"# {each.describe_saving(self.usual)}", *each.variant.code_lines(self.path)]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return plain data: bytes, and times as ratios."""
        return {
            "model": self.model,
            "weights": self.weight_bytes,
            "bound": asdict(self.bound) | {"run_bytes": self.bound.run_bytes},
            "unused": self.unused_bytes,
            "usual": self.usual.to_json(),
            "variants": [each.to_json() | {"is_advised": each in self.advised} for each in self.variants],
            "code": self.code,
        }

    def __str__(self) -> str:
        usual, bound = self.usual, self.bound
        rows = [
            ("memory", "at most", "held"),
            ("loading", format_megabytes(usual.loading.peak), format_megabytes(usual.loading.held)),
            ("running", format_megabytes(usual.running.peak), format_megabytes(usual.held)),
        ]
        parts = [
            ("of the peak of running", ""),
            ("weights, packed", format_megabytes(usual.loading.held)),
            ("activations", format_megabytes(bound.activations)),
            ("buffers of kernels", "not known" if bound.buffers is None else format_megabytes(bound.buffers)),
            ("gaps and blocks that the arena keeps", format_megabytes(self.unused_bytes)),
        ]
        weights = f"the weights in the file are {format_megabytes(self.weight_bytes)}"
        lines = [
            f"{self.model}: {format_megabytes(usual.peak)} at most; {weights}",
            "",
            format_table(rows),
            "",
            format_table(parts),
            "",
            str(bound),
        ]
        if self.variants:
            table = [("options", *usual.figures, "time")]
            for each in (usual, *self.variants):
                time_ratio = "" if each.time_ratio is None else f"{each.time_ratio:.2f}"
                table.append((each.variant.name, *map(format_megabytes, each.figures.values()), time_ratio))
            lines += ["", format_table(table), ""]
            lines += [self.code] if self.advised else ["no option saves memory"]
        return "\n".join(lines)


# -- measuring ---------------------------------------------------------------------------------------------------------


def measure_memory(
    model: Source,
    setting: SessionSetting,
    *,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Array] | None = None,
    seed: int = 0,
    variants: Sequence[MemoryVariant] = VARIANTS,
) -> MemoryReport:
    """Measure the memory that a model takes in ONNX Runtime, with its defaults and with options that may lower it.

    Args:
        model: a path, or a model in memory, which is written to a temporary file.
        setting: provider and threads.
        dims: sizes for open dims, by name; what is left open gets a usual size.
        inputs: arrays for inputs, by name; the others are made up.
        seed: of the inputs that are made up.
        variants: the options to try.

    Raises:
        UsageError: provider, sizes or inputs do not fit.
        ModelError: the model cannot be read, loaded or run.
    """
    ready = prepare_models([model], setting, dims=dims, inputs=inputs, seed=seed)
    return measure_trial_memory(model, setting, ready.trials[0], variants)


def measure_trial_memory(
    model: Source,
    setting: SessionSetting,
    trial: TrialInputs,
    variants: Sequence[MemoryVariant] = VARIANTS,
) -> MemoryReport:
    """Measure the memory of a model at one set of sizes; the arguments and errors are those of `measure_memory`."""
    with model_file(model) as path:
        loaded = onnx_io.load_model(path)
        feeds, label = trial.feeds, model_label(model)
        bound = MemoryMeter(setting, feeds).find_bound(path)
        with MemoryProbe(path, setting, feeds) as usual_probe:
            usual = _probed_memory(usual_probe, DEFAULT_VARIANT)
            found = [_measure_variant(loaded, each, usual, usual_probe) for each in variants]
        named = {"path": label} if isinstance(model, str | Path) else {}
        return MemoryReport(label, setting, loaded.graph.weight_bytes, bound, usual, tuple(found), **named)


@contextmanager
def model_file(model: Source, *, external: bool | None = None) -> Iterator[str]:
    """Give the path of a model, of a temporary file where it lies in memory; `external` is that of `save_model`."""
    if isinstance(model, str | Path):
        yield str(model)
        return
    with files.scratch_folder(ModelError) as folder:
        path = folder / "model.onnx"
        if isinstance(model, bytes):
            path.write_bytes(model)
        else:
            loaded = model if isinstance(model, onnx_io.LoadedModel) else onnx_io.load_model(model)
            onnx_io.save_model(loaded, path, external=external)
        yield str(path)


def _measure_variant(
    loaded: onnx_io.LoadedModel, variant: MemoryVariant, usual: SessionMemory, usual_probe: MemoryProbe
) -> SessionMemory:
    """Measure the memory under other options and, where they save any, the time against the usual ones, in turns."""
    with (
        model_file(loaded, external=True) if variant.is_external else nullcontext(usual_probe.path) as path,
        MemoryProbe(path, usual_probe.setting, usual_probe.feeds, variant.options) as probe,
    ):
        found = _probed_memory(probe, variant)
        return replace(found, time_ratio=_time_ratio(usual_probe, probe)) if found.saves_over(usual) else found


@dataclass(frozen=True)
class MemoryMeter:
    """Measures the memory of models under one setting and on the same inputs, each in a process of its own.

    Its methods raise a ModelError where a model cannot be loaded or run, and a TimeoutError where the deadline, by
    `time.monotonic`, is over.
    """

    setting: SessionSetting
    feeds: Mapping[str, Any]

    def measure(self, model: Source, variant: MemoryVariant, deadline: float = math.inf) -> SessionMemory:
        """Return what a session of a model takes under some options."""
        with model_file(model) as path, MemoryProbe(path, self.setting, self.feeds, variant.options, deadline) as probe:
            return _probed_memory(probe, variant)

    def time_ratio(self, before: Source, after: Source, variant: MemoryVariant, deadline: float = math.inf) -> float:
        """Return the time of a run under some options over that of another model with ONNX Runtime's defaults."""
        with (
            model_file(before) as one,
            model_file(after) as other,
            MemoryProbe(one, self.setting, self.feeds, deadline=deadline) as first,
            MemoryProbe(other, self.setting, self.feeds, variant.options, deadline) as second,
        ):
            first.run()
            second.run()
            return _time_ratio(first, second)

    def find_bound(self, model: Source) -> MemoryBound:
        """Return the node at which a run takes the most memory.

        Raises:
            UsageError: the provider is missing.
            ModelError: the model cannot be loaded or run, or the provider has no graph to show.
            LimitError: a run takes longer than any may.
        """
        with model_file(model) as path:
            graph = optimized_graph(path, self.setting, weights=False).graph
            events = _kernel_events(path, self.setting, self.feeds)
        return _memory_bound(graph, _pair_with_events(graph.node, events))

    def describe_excess(self, model: Source, found: SessionMemory, budget: int, what: str) -> str:
        """Return why a budget cannot be kept: what a run (as `what` calls it) takes, and which node is the bound."""
        return (
            f"a memory budget of {format_megabytes(budget)} cannot be kept: {what} takes"
            f" {format_megabytes(found.running.peak)} at least, {format_megabytes(found.loading.held)} of them for"
            f" weights; {self.find_bound(model)}"
        )


def _probed_memory(probe: MemoryProbe, variant: MemoryVariant) -> SessionMemory:
    """Return what the session of a probe takes."""
    running, _ = probe.run(MEMORY_RUNS)
    return SessionMemory(variant, probe.loading, running)


def _time_ratio(before: MemoryProbe, after: MemoryProbe) -> float:
    """Return the median of the ratios of rounds in which two sessions take turns."""
    ratios, end = list[float](), time.monotonic() + TIMING_SECONDS
    while len(ratios) < TIMING_ROUNDS or (time.monotonic() < end and len(ratios) < MAX_TIMING_ROUNDS):
        (_, (old,)), (_, (new,)) = before.run(), after.run()
        ratios.append(new / old)
    return statistics.median(ratios)


# -- the bound ---------------------------------------------------------------------------------------------------------

SHOWN_VALUES = 4
"""Values that are named of those that lie in memory at the bound."""


def _memory_bound(graph: onnx.GraphProto, order: Sequence[_TimedNode]) -> MemoryBound:
    """Return the bound of a run, given the optimized graph, and its nodes as they ran."""
    live = _live_values(graph, order)
    sizes = [sum(value.nbytes for value in values) for values in live]
    peaks = [int(event["args"].get("mem_in_use_peak", 0)) for _, event in order]
    if not any(peaks):
        place = max(range(len(order)), key=sizes.__getitem__, default=None)
        if place is None:
            return MemoryBound("no node", 0, None, ())
        return MemoryBound(_node_text(order[place][0]), sizes[place], None, _largest(live[place]))
    arena = [_ArenaUse.from_event(event["args"]) for _, event in order]
    buffers = [
        max(0, peak - use.in_use) if peak > before else 0  # peaks are those of the run so far
        for peak, before, use in zip(peaks, (arena[0].before, *peaks), arena, strict=False)
    ]
    place = max(range(len(order)), key=lambda i: arena[i].requested + buffers[i])
    activations = max(0, arena[place].requested - arena[0].requested_before)
    return MemoryBound(_node_text(order[place][0]), activations, buffers[place], _largest(live[place]))


def _kernel_events(model: Source, setting: SessionSetting, feeds: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return what the profiler writes of the kernels of one run, in the order in which they began."""
    session = ProfiledSession(model, setting)
    try:
        run_interruptibly(make_runner(session, feeds, setting))
    except LimitError as error:
        raise LimitError(f"{session.label}: {error}") from error
    except Exception as error:  # the classes that onnxruntime raises share no base
        raise ModelError(f"{session.label} {RunFailedError('cannot be run', error)}") from error
    finally:
        events = session.end()
    kernels = (event for event in events if event["name"].endswith("_kernel_time"))
    return sorted(kernels, key=lambda event: event["ts"])


@dataclass(frozen=True, slots=True)
class _ArenaUse:
    """Bytes of the arena in use when a kernel has ended, its inputs still among them."""

    in_use: int
    """Bytes of the arena's pieces, which may be larger than what was requested."""
    before: int
    """The same when the kernel began."""
    requested: int
    requested_before: int

    @staticmethod
    def from_event(args: Mapping[str, str]) -> _ArenaUse:
        in_use, requested = int(args["mem_bytes_in_use"]), int(args["mem_bytes_requested_in_use"])
        return _ArenaUse(
            in_use,
            in_use - int(args["mem_in_use_delta"]),
            requested,
            requested - int(args["mem_requested_in_use_delta"]),
        )


def _largest(values: Sequence[LiveBytes]) -> tuple[LiveBytes, ...]:
    return tuple(sorted(values, key=lambda value: value.nbytes, reverse=True)[:SHOWN_VALUES])


_TimedNode = tuple[onnx.NodeProto, Mapping[str, Any]]


def _pair_with_events(nodes: Sequence[onnx.NodeProto], events: Sequence[Mapping[str, Any]]) -> list[_TimedNode]:
    """Return the nodes in the order in which they ran, each with its event; those in bodies are left out."""
    named: defaultdict[str, list[onnx.NodeProto]] = defaultdict(list)
    unnamed: defaultdict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in nodes:
        (named[node.name] if node.name else unnamed[node.op_type]).append(node)
    found = []
    for event in events:
        same = named[event["name"].removesuffix("_kernel_time")] or unnamed[event["args"]["op_name"]]
        if same:
            found.append((same.pop(0), event))
    return found


def _live_values(graph: onnx.GraphProto, order: Sequence[_TimedNode]) -> list[list[LiveBytes]]:
    """Return for each node the values that lie in memory while it runs, inputs of the model and weights left out.

    A view lies where what it looks at lies.
    """
    owner: dict[str, str] = {}
    made: dict[str, tuple[int, LiveBytes]] = {}
    last = Counter[str]()
    for place, (node, event) in enumerate(order):
        for name in _names_read(node):
            if (root := owner.get(name, name)) in made:
                last[root] = place
        sizes = map(_shape_bytes, event["args"].get("output_type_shape", ()))
        for name, nbytes in zip(filter(None, node.output), sizes, strict=False):
            source = node.input[0] if node.input else ""
            if lookup_operator(node.op_type, node.domain).is_view and owner.get(source, source) in made:
                owner[name] = owner.get(source, source)
            else:
                made[name] = place, LiveBytes(name, _node_text(node), nbytes)
                last[name] = place
    for value in graph.output:
        if (root := owner.get(value.name, value.name)) in made:
            last[root] = len(order)
    return [
        [value for name, (begin, value) in made.items() if begin <= place <= last[name]] for place in range(len(order))
    ]


def _names_read(node: onnx.NodeProto) -> Iterator[str]:
    """Yield what a node reads, what its bodies capture included."""
    yield from node.input
    for attribute in node.attribute:
        for body in (attribute.g, *attribute.graphs):
            for inner in body.node:
                yield from _names_read(inner)


def _shape_bytes(shape: Mapping[str, Sequence[int]]) -> int:
    """Return the bytes of a tensor, as a profile has its type and shape: `{"float": [1, 3]}`."""
    ((kind, dims),) = shape.items()
    dtype = DType.from_type_text(f"tensor({kind})") or DType.FLOAT
    return math.prod(dims) * dtype.bits // 8


def _node_text(node: onnx.NodeProto) -> str:
    return f"{node.op_type} '{node.name}'" if node.name else node.op_type
