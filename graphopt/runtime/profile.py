"""Time that ONNX Runtime spends in a model, by operator, and the graph that it makes of it before it runs it."""

from __future__ import annotations

import json
import logging
import time
from ast import literal_eval
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import onnx
from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto, TensorProto, numpy_helper

from graphopt.base import files
from graphopt.base.dtype import DType
from graphopt.base.errors import ModelError
from graphopt.operators.operator_classes import lookup_kernel
from graphopt.operators.operator_cost import WorkKind
from graphopt.runtime.bench import format_ms, format_table
from graphopt.runtime.measure import KernelTimes, RaceTimes, TimingPolicy
from graphopt.runtime.oracle import RunFailedError
from graphopt.runtime.session_setting import SessionSetting, Source, make_runner, model_label, parse_model

log = logging.getLogger(__name__)

REORDER_OPERATORS = ("ReorderInput", "ReorderOutput")
"""Operators that ONNX Runtime inserts where its blocked layout of images begins and ends."""


def is_heavy_kernel(name: str) -> bool:
    """Return whether a kernel, as a profile names it, does the arithmetic of float models."""
    facts = lookup_kernel(name)
    return (
        facts.cost.work in (WorkKind.CONVOLUTION, WorkKind.TRANSPOSED_CONVOLUTION, WorkKind.PRODUCT)
        and not facts.is_quantizing
    )


_Event: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """The kernels of one operator in one run of the model."""

    operator: str
    """Operator as ONNX Runtime's optimized graph names it, such as FusedConv."""
    count: int
    """Times that it runs; a node in the body of a loop runs more than once."""
    seconds: float
    """Seconds in all its kernels, without those of their bodies: the mean over the runs."""
    share: float
    """Share of the time in all kernels, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One model's time by operator, and its graph as ONNX Runtime runs it."""

    model: str
    provider: str
    runs: int
    """Runs that were counted; one before them was not."""
    seconds: float
    """Seconds of a run under the profiler, which slows it by some percent, including what is outside the kernels."""
    rows: tuple[OperatorTime, ...]
    """Rows by operator, longest first."""
    before: Mapping[str, int]
    """Nodes of the model by operator, bodies included."""
    after: Mapping[str, int]
    """Nodes of ONNX Runtime's optimized graph; empty if it has none to show."""
    detail: str = ""
    """Reason why `after` is empty."""

    @property
    def kernel_seconds(self) -> float:
        """Seconds in all kernels in one run."""
        return sum(row.seconds for row in self.rows)

    @property
    def node_count(self) -> int:
        """Nodes of the optimized graph."""
        return sum(self.after.values())

    @property
    def reorder_count(self) -> int:
        """Changes of layout that are left in the optimized graph."""
        return sum(count for op, count in self.after.items() if op.rpartition(".")[2] in REORDER_OPERATORS)

    def to_json(self) -> dict[str, Any]:
        """Return plain data; times are in seconds of one run."""
        return asdict(self) | {"kernels": self.kernel_seconds, "nodes": self.node_count, "reorders": self.reorder_count}

    def __str__(self) -> str:
        kernels, run = format_ms(self.kernel_seconds), format_ms(self.seconds)
        head = f"{self.model}: {kernels} ms in kernels of {run} ms a run, {self.runs} runs"
        rows = [("operator", "count", "ms", "share")]
        rows += [(row.operator, str(row.count), format_ms(row.seconds), f"{row.share:.1%}") for row in self.rows]
        lines = [head, "", format_table(rows), ""]
        if "CPU" not in self.provider:
            lines += ["a kernel's time on a device is the time to launch it", ""]
        if self.detail:
            return "\n".join([*lines, f"ONNX Runtime's own graph is not known: {self.detail}"])
        lines.append(
            f"ONNX Runtime runs {self.node_count} node{'s' * (self.node_count != 1)},"
            f" {self.reorder_count} of them reorders"
        )
        changed = [op for op in sorted({*self.before, *self.after}) if self.before.get(op, 0) != self.after.get(op, 0)]
        if changed:
            counts = [(op, str(self.before.get(op, 0)), str(self.after.get(op, 0))) for op in changed]
            lines += ["", format_table([("nodes", "model", "ONNX Runtime"), *counts])]
        return "\n".join(lines)


def profile_model(
    model: Source, setting: SessionSetting, feeds: Mapping[str, Any], *, runs: int = TimingPolicy.profile_runs
) -> Profile:
    """Run a model under ONNX Runtime's profiler.

    Args:
        model: a path, the bytes of a file, or a model in memory.
        setting: provider and threads.
        feeds: the inputs; `bench.prepare_models` makes some up.
        runs: that count; one before them warms up.

    Raises:
        UsageError: the provider is missing.
        ModelError: the model cannot be read, loaded or run.
    """
    ((whole, kernels),) = _profile_events([(model, setting)], feeds, runs)
    before, after, detail = dict(Counter(graph_operators(parse_model(model).graph))), dict[str, int](), ""
    try:
        after |= Counter(graph_operators(optimized_graph(model, setting, weights=False).graph))
    except ModelError as error:  # a provider that compiles the graph has none to show
        detail = str(error)
    seconds = sum(event["dur"] for event in whole) / len(whole) / 1e6
    rows = times_by_operator(kernels, len(whole))
    return Profile(model_label(model), setting.provider_name, len(whole), seconds, rows, before, after, detail)


def light_kernel_share(times: KernelTimes) -> float:
    """Return the part of the time in kernels, from 0 to 1, that is spent outside matrix products and convolutions of
    images.

    A convolution of a signal counts as outside: ONNX Runtime runs it slower than the same one of an image.
    """
    heavy = whole = 0.0
    for text, seconds in times.seconds.items():
        kernel = KernelKind.parse(text)
        is_convolution = lookup_kernel(kernel.operator).cost.work in (
            WorkKind.CONVOLUTION,
            WorkKind.TRANSPOSED_CONVOLUTION,
        )
        is_of_signal = is_convolution and any(len(shape) == 3 for _, shape in kernel.outputs)
        whole += sum(seconds)
        heavy += sum(seconds) if is_heavy_kernel(kernel.operator) and not is_of_signal else 0.0
    return 1 - heavy / (whole or 1)


_TypesAndShapes: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]


class KernelKind(NamedTuple):
    """Kind of a kernel, as `KernelTimes` tells kernels apart."""

    operator: str
    """Operator as ONNX Runtime's optimized graph names it, such as FusedConv."""
    inputs: _TypesAndShapes
    """Element types and shapes, without those of weights that ONNX Runtime has packed."""
    outputs: _TypesAndShapes
    is_blocked: bool
    """True in the layout that blocks the channels of images."""

    @staticmethod
    def of_event(event: _Event) -> KernelKind:
        facts = event["args"]
        inputs, outputs = (
            tuple((dtype, tuple(shape)) for types in facts.get(name) or () for dtype, shape in types.items())
            for name in ("input_type_shape", "output_type_shape")
        )
        return KernelKind(facts["op_name"], inputs, outputs, event["name"].endswith("_nchwc_kernel_time"))

    @staticmethod
    def parse(text: str) -> KernelKind:
        """Return the kind of a text that `str` has made."""
        operator, _, rest = text.partition(" ")
        return KernelKind(operator, *literal_eval(rest))

    def __str__(self) -> str:
        return f"{self.operator} {self[1:]}"


class ProfiledSession:
    """A session under ONNX Runtime's profiler, which slows it by some percent. Its kernels are known once it `end`s."""

    def __init__(self, model: Source, setting: SessionSetting, configure: Callable[[Any], None] | None = None) -> None:
        """Open a session; `configure` sets what else is wanted on its `SessionOptions`.

        Raises:
            UsageError: the provider is missing.
            ModelError: the model cannot be loaded, or there can be no temporary folder for the profile.
        """
        self.label, self._is_ended = model_label(model), False
        self._has_processor_times = setting.timer is time.thread_time
        self._interruptions: list[bool] = []
        self._folder = ExitStack()
        folder = self._folder.enter_context(files.scratch_folder(ModelError))

        def configure_profiler(options: Any) -> None:
            options.enable_profiling = True
            options.profile_file_prefix = str(folder / "profile")
            if configure is not None:
                configure(options)

        try:
            self._session = setting.open(model, configure=configure_profiler)
        except BaseException:
            self._folder.close()
            raise
        self.get_inputs, self.get_outputs = self._session.get_inputs, self._session.get_outputs

    @property
    def runs(self) -> int:
        """Runs until now."""
        return len(self._interruptions)

    def run(self, *args: Any) -> Any:
        """Run it, as ONNX Runtime's sessions are."""
        return self._watch(lambda: self._session.run(*args))

    def run_with_iobinding(self, *args: Any) -> None:
        """Run it on values that are bound."""
        self._watch(lambda: self._session.run_with_iobinding(*args))

    def _watch(self, run: Callable[[], Any]) -> Any:
        """Run it, and note whether others had the processor for a while: kernels are timed by the clock on the wall."""
        start, used = time.perf_counter(), time.thread_time()
        try:
            return run()
        finally:
            passed, used = time.perf_counter() - start, time.thread_time() - used
            is_interrupted = passed - used > INTERRUPTED_SHARE * passed + UNNOTICED_SECONDS
            self._interruptions.append(self._has_processor_times and is_interrupted)

    def interrupted_runs(self, span: slice) -> frozenset[int]:
        """Return the runs of a span, by their number in it, in which others had the processor for a while; none where
        several threads work, which also wait for each other."""
        return frozenset(number for number, is_interrupted in enumerate(self._interruptions[span]) if is_interrupted)

    def io_binding(self) -> Any:
        """Return a binding of the session."""
        return self._session.io_binding()

    def stop_profiling(self) -> None:
        """Drop the profile, if it has not ended."""
        if not self._is_ended:
            self._is_ended = True
            with self._folder:
                self._session.end_profiling()

    def end(self) -> list[_Event]:
        """Return the events of all runs.

        Raises:
            ModelError: the profile cannot be read, as where the disk is full.
        """
        self._is_ended = True
        with self._folder:
            path = Path(self._session.end_profiling())
            try:
                events: list[_Event] = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise ModelError(f"the profile of {self.label} cannot be read: {error}") from error
        return events

    def end_with_kernels(self, spans: Sequence[slice], *, skips_interrupted: bool = False) -> list[KernelTimes]:
        """Return the times of the kernels in some spans of the runs, each on inputs of its own; `skips_interrupted` as
        `with_kernels` says.

        Raises:
            ModelError: the profile cannot be read, or has no room for all runs.
        """
        whole, kernels = _events_after(self.end(), 0, self.label)
        if len(whole) < self.runs:
            raise ModelError(f"{self.label} has too many nodes for ONNX Runtime's profiler")
        starts = [event["ts"] for event in whole]
        found = [bisect(starts, event["ts"]) - 1 for event in kernels]
        places = [range(len(whole))[span] for span in spans]
        times = [
            _kernel_times(whole[span], [event for event, run in zip(kernels, found, strict=True) if run in runs])
            for span, runs in zip(spans, places, strict=True)
        ]
        if not skips_interrupted:
            return times
        return [replace(each, interrupted=self.interrupted_runs(span)) for each, span in zip(times, spans, strict=True)]


def with_kernels(
    races: Sequence[RaceTimes],
    sessions: Sequence[ProfiledSession],
    ends: Sequence[Sequence[int]],
    *,
    skips_interrupted: bool = False,
) -> list[RaceTimes]:
    """Return races with the times of the kernels, where the profiles hold all runs.

    Args:
        races: of the sessions, one after the other; in each, a round is a run.
        sessions: which took turns in them. They end.
        ends: how often each had run at the end of each race.
        skips_interrupted: whether runs in which others had the processor for a while do not count.
    """
    raced = [(times.original, *times.candidates) for times in races]
    spans = [
        [slice(end - len(samples.seconds), end) for samples, end in zip(row, counts, strict=True)]
        for row, counts in zip(raced, ends, strict=True)
    ]
    try:
        profiles = [
            session.end_with_kernels(own, skips_interrupted=skips_interrupted)
            for session, own in zip(sessions, zip(*spans, strict=True), strict=True)
        ]
    except ModelError as error:
        log.debug("kernels are not timed: %s", error)
        return [*races]
    found = []
    for times, row, kernels in zip(races, raced, zip(*profiles, strict=True), strict=True):
        own, *others = (replace(samples, kernels=each) for samples, each in zip(row, kernels, strict=True))
        found.append(replace(times, original=own, candidates=tuple(others)))
    return found


def time_kernels(model: Source, setting: SessionSetting, feeds: Mapping[str, Any], runs: int) -> KernelTimes:
    """Run a model under ONNX Runtime's profiler, and return the times of its kernels.

    Raises:
        UsageError: the provider is missing.
        ModelError: the model cannot be loaded or run, or has too many nodes for the profiler.
    """
    (found,) = time_kernels_in_turns([(model, setting)], feeds, runs)
    return found


def time_kernels_in_turns(
    models: Sequence[tuple[Source, SessionSetting]], feeds: Mapping[str, Any], runs: int
) -> list[KernelTimes]:
    """Run models in turns, each by its setting, under ONNX Runtime's profiler, and return the times of their kernels.

    What else the machine does then slows down all of them. Raises what `time_kernels` does.
    """
    return [_kernel_times(*events) for events in _profile_events(models, feeds, runs)]


def _kernel_times(whole: Sequence[_Event], kernels: Sequence[_Event]) -> KernelTimes:
    """Return the times of kernels in each run, by the events of both."""
    starts = [event["ts"] for event in whole]
    found: defaultdict[str, list[list[int]]] = defaultdict(lambda: [[] for _ in starts])
    for event, own in zip(kernels, _exclusive_times(kernels), strict=True):
        found[str(KernelKind.of_event(event))][bisect(starts, event["ts"]) - 1].append(own)
    counts = {kind: round(sum(map(len, runs)) / len(starts)) for kind, runs in found.items()}
    return KernelTimes(counts, {kind: [each / 1e6 for each in undisturbed_sums(runs)] for kind, runs in found.items()})


INTERRUPTED_SHARE, UNNOTICED_SECONDS = 0.01, 2e-5
"""Part of a run, and seconds beside it, that others may have the processor without being noticed in its kernels."""
LEAST_TICKS = 10
"""Ticks of the profiler's clock from which a kernel's time is known well enough to be compared with another run's."""


def undisturbed_sums(runs: Sequence[Sequence[float]]) -> list[float]:
    """Return the time of some kernels in each run as if all were disturbed as the less disturbed half of them is.

    Other processes can only slow kernels down, some in each run. So a kernel is compared with itself in the run in
    which it was the fastest: kernels that always take longer than others of their kind count as what they take. Short
    kernels, and such as are not run equally often in each run, as in a Loop, are summed up as they are.

    Args:
        runs: ticks of each kernel, in its order, in each run.
    """
    least = [min(times) for times in zip(*runs, strict=False)]
    if len({len(run) for run in runs}) != 1 or not least or min(least) < LEAST_TICKS:
        return [float(sum(run)) for run in runs]
    return [
        sum(least) * _mean_of_lower_half([time / own for time, own in zip(run, least, strict=True)]) for run in runs
    ]


def _mean_of_lower_half(ratios: Sequence[float]) -> float:
    half = sorted(ratios)[: (len(ratios) + 1) // 2]
    return sum(half) / len(half)


def _profile_events(
    models: Sequence[tuple[Source, SessionSetting]], feeds: Mapping[str, Any], runs: int
) -> list[tuple[Sequence[_Event], Sequence[_Event]]]:
    """Return the profiler's events of so many runs of each model, and of the kernels in them, by turns; times are in
    microseconds.

    Raises:
        ModelError: a model cannot be loaded or run, or the profile has no room for a run of it.
    """
    with ExitStack() as opened:
        runners: list[tuple[ProfiledSession, Callable[[], object]]] = []
        for model, setting in models:
            session = ProfiledSession(model, setting)
            opened.callback(session.end)
            runners.append((session, make_runner(session, feeds, setting)))
        for _ in range(1 + runs):
            for session, run in runners:
                try:
                    run()
                except Exception as error:  # the classes that onnxruntime raises share no base
                    raise ModelError(f"{session.label} {RunFailedError('cannot be run', error)}") from error
        opened.pop_all()
        return [_events_after(session.end(), 1, session.label) for session, _ in runners]


def _events_after(events: Sequence[_Event], skipped: int, label: str) -> tuple[Sequence[_Event], Sequence[_Event]]:
    """Return the events of the runs after some that warm up, and those of the kernels in them."""
    whole = sorted((event for event in events if event["name"] == "model_run"), key=lambda event: event["ts"])[skipped:]
    if not whole:
        raise ModelError(f"{label} has too many nodes for ONNX Runtime's profiler")
    start = min(event["ts"] for event in whole)
    return whole, [event for event in events if event["name"].endswith("_kernel_time") and event["ts"] >= start]


def times_by_operator(kernels: Sequence[Mapping[str, Any]], runs: int) -> tuple[OperatorTime, ...]:
    """Return the time of kernels by operator, as a mean over the runs.

    Args:
        kernels: events of a profile: `ts` and `dur` in microseconds, and `args` with `op_name`.
        runs: in which they were seen.
    """
    times, counts = Counter[str](), Counter[str]()
    for event, own in zip(kernels, _exclusive_times(kernels), strict=True):
        operator = event["args"]["op_name"]
        times[operator] += own
        counts[operator] += 1
    total = times.total() or 1
    return tuple(
        OperatorTime(operator, round(counts[operator] / runs), time / runs / 1e6, time / total)
        for operator, time in times.most_common()
    )


def _exclusive_times(kernels: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the time of each kernel without that of others in it: a Loop's includes that of the nodes in its body."""
    own: list[int] = [event["dur"] for event in kernels]
    order = sorted(range(len(kernels)), key=lambda i: (kernels[i]["ts"], -kernels[i]["dur"], -i))
    around: list[int] = []
    for i in order:
        while around and kernels[around[-1]]["ts"] + kernels[around[-1]]["dur"] <= kernels[i]["ts"]:
            around.pop()
        if around:
            own[around[-1]] -= kernels[i]["dur"]
        around.append(i)
    return own


def optimized_graph(model: Source, setting: SessionSetting, *, weights: bool = True) -> ModelProto:
    """Return the model as ONNX Runtime runs it, with its own fusions and layouts: only to be looked at.

    Args:
        model: a path, the bytes of a file, or a model in memory.
        setting: provider and threads.
        weights: read the weights, too; without them the larger ones are named, but lost.

    Raises:
        UsageError: the provider is missing.
        ModelError: the model cannot be loaded, or the provider compiles it to something that is no graph.
    """
    with files.scratch_folder(ModelError) as folder:
        path = folder / "optimized.onnx"

        def configure(options: Any) -> None:
            options.optimized_model_filepath = str(path)
            entry = "session.optimized_model_external_initializers"  # a file of the graph alone ends at 2 GB
            options.add_session_config_entry(f"{entry}_file_name", "weights")
            options.add_session_config_entry(f"{entry}_min_size_in_bytes", "1024")

        setting.open(model, configure=configure)
        try:
            return onnx.load(path, load_external_data=weights)
        except (OSError, DecodeError) as error:  # the disk may be full
            raise ModelError(f"what ONNX Runtime makes of {model_label(model)} cannot be read: {error}") from error


def kernels_digest(model: Source, setting: SessionSetting) -> str:
    """Identify what ONNX Runtime runs for a model: its kernels, how they are wired, and on which shapes.

    The digest ignores names, whether two kernels share a weight, and the values of weights, except for small integers,
    which may be sizes.

    Raises:
        UsageError: the provider is missing.
        ModelError: the model cannot be loaded, or the provider compiles it to something that is no graph.
    """
    graph = optimized_graph(model, setting, weights=False).graph
    known = {item.name: item.type.SerializeToString().hex() for item in graph.input}
    known |= {item.name: _describe_weight(item) for item in graph.initializer}  # of old models these are inputs as well
    parts = []
    for node in graph.node:
        attributes = sorted(attribute.SerializeToString(deterministic=True) for attribute in node.attribute)
        parts.append((node.op_type, node.domain, [known.get(name) for name in node.input], attributes))
        known.update((name, f"{len(parts)} {index}") for index, name in enumerate(node.output))
    parts.append(("", "", [known.get(item.name) for item in graph.output], []))
    return sha256(repr(parts).encode()).hexdigest()


def _describe_weight(tensor: TensorProto) -> str:
    """Describe a weight; a large one lies in a file and is told by its shape."""
    text = f"{tensor.data_type}{list(tensor.dims)}"
    is_float = DType(tensor.data_type).is_float
    return (
        text if is_float or tensor.HasField("data_location") else text + numpy_helper.to_array(tensor).tobytes().hex()
    )


def graph_operators(graph: GraphProto) -> Iterator[str]:
    """Yield the operator of each node, bodies included: `Conv`, `com.microsoft.FusedConv`."""
    for node in graph.node:
        yield node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from graph_operators(body)
