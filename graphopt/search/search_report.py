"""Results of the search and of timing, as data for the report, with reasons why finds were left or are no gains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from graphopt.base.limits import format_megabytes
from graphopt.ir.graph import Graph, Node
from graphopt.rewrite.candidates import Candidate
from graphopt.rewrite.simplify import Cause
from graphopt.runtime.input_sizes import format_sizes
from graphopt.runtime.measure import Speedup, TimingPolicy, TimingVerdict
from graphopt.search.moves import Solution
from graphopt.search.race_outcomes import Latency, Measurement
from graphopt.search.stopping import StopReason
from graphopt.search.sweep import Sweep


class GroupKind(StrEnum):
    """Kind of a group of rewrites."""

    FIND = "find"
    """Rules at some places of a part of the model, and of all parts that are equal to it."""
    SWEEP = "sweep"
    """Rules wherever they match in the whole model."""


@dataclass(frozen=True, slots=True)
class RewriteGroup:
    """A find or a sweep of the search: rewrites that were taken or left together."""

    kind: GroupKind
    name: str
    """The purpose of a sweep, such as `kernels of one size`; of a find, where it is: `12 parts like /layer.0`."""
    rules: tuple[str, ...]
    """Names of its rules, in the order in which they were first applied."""
    parts: tuple[str, ...] = ()
    """The equal parts of the model in which a find is made, each by the scope of its nodes; none of a sweep."""
    alone: Speedup | None = None
    """Speedup by this group alone: of each part of a find, of the whole model with a sweep over the simplified model;
    None where it was neither timed nor estimated."""
    is_estimate: bool = False
    """True where `alone` is a ratio of estimates, for which nothing was run; of a sweep, where the kernels that it
    changes tell it, in a few profiled runs."""
    together: Speedup | None = None
    """Speedup of the whole model with this group, and with others beside it, over the simplified model: of the result
    where the group was taken, else of the fastest such version; None where none was timed."""
    saved_seconds: float | None = None
    """Seconds of a run that it saves by itself. Of a sweep they are measured; of a find, the estimated seconds of all
    its parts at the speedup `alone`. None where that is unknown."""
    is_taken: bool = False
    reason: str = ""
    """Reason why it was left out, by the race of the whole model with it."""


@dataclass(frozen=True, slots=True)
class VersionRace:
    """The race of one version of the whole model with the original."""

    groups: tuple[int, ...] = ()
    """Indices, among the groups, of the finds and sweeps that the version has; none of the simplified model."""
    left_out: tuple[str, ...] = ()
    """Rules and passes of the simplified model that the version does without."""
    speedup: Speedup | None = None
    """Speedup over the original; None where the version does not run."""
    gain: Speedup | None = None
    """Speedup over the simplified model; None where one of the two does not run."""
    refusal: str = ""
    """Reason why it could not be timed."""
    is_second: bool = False
    """True for a second or third race, which was to confirm another, in sessions of its own."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes of main memory that a session takes, in a process of its own, above those of Python and ONNX Runtime."""

    running: int
    """At most while the model runs, weights included."""
    held: int
    """After a run."""
    loading: int
    """At most while the model is loaded."""
    option_lines: tuple[str, ...] = ()
    """Lines of Python that set the options of the session, to follow `options = onnxruntime.SessionOptions()`; none
    for ONNX Runtime's defaults."""
    time_ratio: float | None = None
    """Time of a run over that of the fastest version with ONNX Runtime's defaults; None where the two are the same."""


@dataclass(frozen=True, slots=True)
class MemoryOutcome:
    """Memory that the result takes, as it was measured."""

    usual: MemoryUse
    """Memory of the fastest version, with ONNX Runtime's defaults."""
    budget: int | None = None
    """Bytes that a run may take; None where nothing was asked for."""
    lower: MemoryUse | None = None
    """Memory of the result, where the fastest version exceeds the budget; without a budget, that of the same model with
    options that save memory at no cost of time. None where there is no need of them, or there are none."""
    parts: int = 0
    """Operators that are computed in parts, for the budget."""

    @property
    def option_lines(self) -> tuple[str, ...]:
        """Lines of Python without which the budget is not kept."""
        return () if self.budget is None or self.lower is None else self.lower.option_lines

    def __str__(self) -> str:
        """Return a line: what a run takes, and what is needed for that."""
        usual, lower = self.usual, self.lower
        if self.budget is None:
            text = f"a run takes {format_megabytes(usual.running)}, loading {format_megabytes(usual.loading)}"
            if lower is not None:
                text += f"; with {'; '.join(lower.option_lines)} a run takes {format_megabytes(lower.running)}"
                text += f", at {lower.time_ratio:.2f} of the time"
            return text
        kept = lower or usual
        text = f"a run takes {format_megabytes(kept.running)} of the {format_megabytes(self.budget)} budget"
        if lower is not None:
            text += f" instead of {format_megabytes(usual.running)}, at {lower.time_ratio:.2f} of the time"
        if self.parts:
            text += f": {self.parts} operators are computed in parts"
        if self.option_lines:
            text += f"; that needs {'; '.join(self.option_lines)}"
        if kept.loading > self.budget:
            text += f"; loading takes {format_megabytes(kept.loading)}, less with weights in a file of their own"
        return text


@dataclass(frozen=True, slots=True)
class SearchTiming:
    """Speedup of the result, and the course of the search."""

    cost: str
    """Source of the costs: `measured`, `analytic`, or `recipe` where an earlier run had decided."""
    provider: str
    threads: int
    device: str = ""
    """Processor or accelerator on which was timed; empty where nothing was."""
    original_provider: str = ""
    """Provider with which the original was timed for `speedup` and `latencies`, if another."""
    speedup: Speedup | None = None
    """Speedup of the result over the original; None if untimed."""
    untimed: str = ""
    """Reason why a result that differs from the original was not timed."""
    simplified: Speedup | None = None
    """Speedup of the simplified model over the original: what is done without a search."""
    searched: Speedup | None = None
    """Speedup of the result over the simplified model, where the search brought something."""
    latencies: tuple[Latency, ...] = ()
    is_of_other_weights: bool = False
    """True where another model was searched and timed, which differs in its weights alone."""
    groups: tuple[RewriteGroup, ...] = ()
    """The finds and sweeps that were tried."""
    races: tuple[VersionRace, ...] = ()
    """The races of versions of the whole model, second races last."""
    stop: str = ""
    """Reason why the search ended."""
    regions: int = 0
    """Distinct parts of the model that were searched."""
    copies: int = 0
    """Parts in all."""
    states: int = 0
    """Graphs looked at."""
    trials: int = 0
    """Graphs of which the cost was asked."""
    refused_seconds: float = 0.0
    """Seconds of searches of which the check refused the results; they are part of the seconds that were given."""
    gainable: float | None = None
    """The part of the simplified model's time in kernels that is outside of convolutions and matrix products; None
    where it is not known, or an estimate spoke for rewrites of these."""

    @property
    def is_gain(self) -> bool:
        """True where the result was measured to be faster beyond noise."""
        return self.speedup is not None and self.speedup.verdict is TimingVerdict.FASTER

    @property
    def could_be_timed(self) -> bool:
        """False where neither the original nor any version of it could be timed, so that nothing was tried."""
        return self.stop != StopReason.UNTIMED

    @property
    def is_interrupted(self) -> bool:
        """True where Ctrl-C ended the search or the timing."""
        return self.stop == StopReason.INTERRUPTED

    def of_another_model(self, reason: str) -> SearchTiming:
        """Return the same of a result that was changed after it had been timed, for a reason."""
        return replace(self, speedup=None, untimed=f"not timed: {reason}", searched=None, latencies=())

    def without_result(self, reason: str) -> SearchTiming:
        """Return the same of a result that has none of the groups and was not timed, for a reason."""
        left = (replace(group, is_taken=False, reason=group.reason or reason) for group in self.groups)
        return replace(
            self, groups=tuple(left), speedup=None, untimed=reason, simplified=None, searched=None, latencies=()
        )


def format_speedup(ratio: Speedup) -> str:
    """`1.031 times as fast (1.022 to 1.040)`."""
    return f"{ratio.median:.3f} times as fast ({ratio.low:.3f} to {ratio.high:.3f})"


def format_result_speedup(timing: SearchTiming) -> str:
    """`1.031 times as fast (1.022 to 1.040) as the original`, and whether that was measured with other weights; empty
    where nothing was timed."""
    if timing.speedup is None:
        return ""
    original = f"the original with {timing.original_provider}" if timing.original_provider else "the original"
    weights = ", measured with other weights" * timing.is_of_other_weights
    return f"{format_speedup(timing.speedup)} as {original}{weights}"


def why_no_gain(ratio: Speedup, policy: TimingPolicy) -> str:
    """Return the reason why a ratio is no gain; nothing where it is one."""
    if ratio.verdict is not TimingVerdict.SAME:
        return "" if ratio.verdict is TimingVerdict.FASTER else "it is slower"
    if ratio.median <= 1 + policy.noise:
        few = f"after {ratio.rounds} rounds it is probably none" if ratio.has_too_few_rounds else ""
        return few or f"differences of {policy.noise:.0%} or less are within the noise"
    if ratio.has_too_few_rounds:
        return f"{ratio.rounds} rounds are too few to tell: --seconds gives it longer"
    return f"it is between {ratio.low:.3f} and {ratio.high:.3f} after {ratio.rounds} rounds: --seconds gives it longer"


# -- rewrites that were taken or left ----------------------------------------------------------------------------------


def find_groups(
    solutions: Sequence[Solution],
    graph: Graph,
    best: Measurement,
    raced: Sequence[Measurement],
    policy: TimingPolicy,
    *,
    is_estimate: bool = False,
) -> Iterator[RewriteGroup]:
    """Yield the finds of the search, and which of them the best candidate has.

    Args:
        solutions: the finds.
        graph: the graph in which they were found, by the vertices of which they name their parts.
        best: what was taken.
        raced: all that took part in races.
        policy: by which ratios are judged.
        is_estimate: True where the speedups of the finds are ratios of estimates.
    """
    taken = set(best.candidate.causes)
    for solution in solutions:
        with_it, is_taken = [found for found in raced if solution in found.solutions], solution in taken
        parts = [format_scope([graph[vertex] for vertex in copy]) for copy in solution.copies]
        yield RewriteGroup(
            GroupKind.FIND,
            format_parts(parts),
            solution.rules,
            tuple(parts),
            solution.speedup,
            is_estimate,
            best.gain if is_taken else _best_gain(with_it),
            solution.saved_seconds,
            is_taken,
            "" if is_taken else rejection_reason(with_it, policy, is_faster=bool(best.candidate.causes)),
        )


def format_scope(nodes: Sequence[Node]) -> str:
    """Return where nodes are: `/encoder/layer.0`, the path that their names share, else the first and the last name."""
    names = [node.label or node.op for node in nodes]
    paths = [name.split("/")[:-1] for name in names]
    depth = next((i for i, level in enumerate(zip(*paths, strict=False)) if len({*level}) > 1), min(map(len, paths)))
    scope = "/".join(paths[0][:depth])
    return scope or (f"{names[0]} … {names[-1]}" if len(names) > 1 else names[0])


def format_parts(parts: Sequence[str]) -> str:
    """Return where a find is: `12 parts like /layer.0`."""
    return parts[0] if len(parts) == 1 else f"{len(parts)} parts like {parts[0]}"


def sweep_groups(
    alone: Sequence[Measurement],
    first: Measurement,
    best: Measurement,
    raced: Sequence[Measurement],
    policy: TimingPolicy,
    estimates: Mapping[frozenset[str], float],
) -> Iterator[RewriteGroup]:
    """Yield the sweeps that were made, in the order of `tried_sweeps`.

    Args:
        alone: the simplified model with each sweep that was made alone.
        first: the simplified model.
        best: what was taken.
        raced: all that took part in races.
        policy: by which ratios are judged.
        estimates: gains by the kernels that differ, by the names of the sweeps that were profiled together.
    """
    measured = {found.sweeps[0].name: found for found in alone}
    for made in tried_sweeps(alone, best, raced):
        found = measured.get(made.name, Measurement(first.candidate))
        beside = [other for other in raced if made.name in other.sweep_names and len(other.candidate.causes) > 1]
        is_taken = made.name in best.sweep_names
        estimate = estimates.get(frozenset({made.name})) if found.gain is None and not found.refusal else None
        yield RewriteGroup(
            GroupKind.SWEEP,
            made.name,
            made.rules,
            alone=found.gain if estimate is None else Speedup(estimate, estimate, estimate, estimate, rounds=0),
            is_estimate=estimate is not None,
            together=best.gain if is_taken else _best_gain(beside),
            saved_seconds=_saved_seconds(found),
            is_taken=is_taken,
            reason="" if is_taken else _sweep_rejection_reason(found, first, best, beside, policy, estimate),
        )


def tried_sweeps(alone: Sequence[Measurement], best: Measurement, raced: Sequence[Measurement]) -> list[Sweep]:
    """Return each sweep once, by its name: first those that were made alone, then others of what raced or was taken."""
    found: dict[str, Sweep] = {}
    for made in (*alone, *raced, best):
        for sweep in made.sweeps:
            found.setdefault(sweep.name, sweep)
    return list(found.values())


def _sweep_rejection_reason(
    found: Measurement,
    first: Measurement,
    best: Measurement,
    beside: Sequence[Measurement],
    policy: TimingPolicy,
    estimate: float | None,
) -> str:
    """Return why a sweep of the simplified model was left, which was timed alone or beside others, or of which kernels
    tell an estimated gain."""
    if best.sweeps and found.gain is not None and found.beats(first):
        return (
            f"the model with it is {format_speedup(found.gain)} as without it; beside what was taken no gain was shown"
        )
    timed = [found] if found.gain else [found, *beside]
    if estimate is not None and not any(each.gain for each in timed):
        if estimate <= policy.least_visible_speedup:
            why = "no gain that a race would show"
        else:
            why = "what was taken won before it was raced" if best.candidate.causes else "no time was left to race it"
        return f"by the kernels that differ the model is {estimate:.3f} times as fast with it as without: {why}"
    return rejection_reason(timed, policy, is_faster=bool(best.candidate.causes))


def _best_gain(raced: Sequence[Measurement]) -> Speedup | None:
    """Return the largest gain over the simplified model; None where none was measured."""
    return max((found.gain for found in raced if found.gain is not None), key=lambda gain: gain.median, default=None)


def _saved_seconds(found: Measurement) -> float | None:
    """Return the seconds that a candidate saves in a run over the simplified model, as the mean over all sizes."""
    if found.gain is None or not found.latencies:
        return None
    medians = [latency.after.median for latency in found.latencies]
    return sum(medians) / len(medians) * (found.gain.median - 1)


def group_indices(
    sweeps: Sequence[Sweep], solutions: Sequence[Solution], made: Iterable[Candidate]
) -> dict[Cause, int]:
    """Return the index of the group of each cause of some candidates, the sweeps' groups first.

    A sweep that was made again, beside others, is the same by its name.
    """
    names = {sweep.name: index for index, sweep in enumerate(sweeps)}
    found: dict[Cause, int] = {solution: len(sweeps) + index for index, solution in enumerate(solutions)}
    for cause in (cause for candidate in made for cause in candidate.causes):
        if isinstance(cause, Sweep):
            found[cause] = names[cause.name]
    return found


def known_group_indices(groups: Sequence[RewriteGroup], candidate: Candidate) -> dict[Cause, int] | None:
    """Return the index of the group of each cause of a candidate that an earlier run reported on; None where the groups
    that were taken are others."""
    sweeps = {group.name: index for index, group in enumerate(groups) if group.kind is GroupKind.SWEEP}
    finds = [index for index, group in enumerate(groups) if group.kind is GroupKind.FIND and group.is_taken]
    made = [cause for cause in candidate.causes if isinstance(cause, Sweep)]
    found = [cause for cause in candidate.causes if not isinstance(cause, Sweep)]
    if len(found) != len(finds) or any(sweep.name not in sweeps for sweep in made):
        return None
    return {sweep: sweeps[sweep.name] for sweep in made} | dict(zip(found, finds, strict=True))


def version_races(
    raced: Iterable[Measurement], first: Candidate, indices: Mapping[Cause, int], *, are_second: bool = False
) -> Iterator[VersionRace]:
    """Yield the races of versions of the model, of which the simplified one is the first; `are_second` says that they
    are second races."""
    names = {step.name for step in first.steps}
    for found in raced:
        if found.outcome is not None or found.refusal:
            groups = sorted({indices[cause] for cause in found.candidate.causes})
            gone = sorted(names - {step.name for step in found.steps})
            yield VersionRace(tuple(groups), tuple(gone), found.speedup, found.gain, found.refusal, are_second)


def rejection_reason(raced: Sequence[Measurement], policy: TimingPolicy, *, is_faster: bool) -> str:
    """Return the reason why candidates were not taken, which may be that another is faster."""
    timed = [(found.gain, found) for found in raced if found.gain is not None]
    if not timed:
        refused = [found.refusal for found in raced if found.refusal]
        return f"the model with it does not run: {refused[0]}" if refused else "no time was left to time it"
    gain, best = max(timed, key=lambda pair: pair[0].median)
    others = len(best.candidate.causes) - 1
    model = f"the model with it and {others} other{'s' * (others > 1)}" if others > 0 else "the model with it"
    if best.outcome is not None and (slowdown := best.outcome.slowdown) is not None:
        where = f", at {format_sizes(slowdown.sizes)}" if slowdown.sizes else ""
        return f"{model} is slower than the original: {format_speedup(slowdown.speedup)}{where}"
    lost = "another was faster" if is_faster else "no time was left for a second race"
    why = why_no_gain(gain, policy) or ("and when it raced again it was no faster" if best.has_lost else lost)
    return f"{model} is {format_speedup(gain)} as without; {why}"


def untimed_reason(first: Measurement, best: Measurement) -> str:
    """Return why there is no speedup to report of the candidate that was taken."""
    if best.is_original:
        return "no gain: ONNX Runtime makes the same of both models, so there is nothing to time"
    once = "not timed"
    if first.speedup and best.steps == first.steps:
        once = f"{format_speedup(first.speedup)} as the original in one race, and in no second"
    return f"{once}: {best.refusal or 'there was no time or no room'}"


def race_notes(first: Measurement, best: Measurement) -> Iterator[str]:
    """Yield notes on how a gain was told or that only one race shows it, and on simplifications that were undone
    because they could not be timed or made the model slower."""
    refusal, was = first.refusal, first.speedup
    if best.is_unconfirmed and best.is_faster:
        yield "the gain is of one race: no time or memory was left for a second"
    if best.is_faster and best.speedup is not None and best.speedup.is_by_kernels:
        yield "a run takes long, so kernels that differ tell the speed, or confirm it, by their time in profiled runs"
    if best.steps == first.steps:
        if first.steps and best.speedup is None and not best.is_original:
            yield f"the simplified model was {untimed_reason(first, best)}"
        return
    slower = f", {format_speedup(was)} as the original" if was else ""
    if first.steps and not best.steps:
        confirmed = "slower in one race, and no time was left for a second" if first.is_unconfirmed else ""
        reason = f"does not run: {refusal};" if refusal else f"was {confirmed or 'slower in two races'}{slower};"
        yield f"the simplified model {reason} so the original is returned"
        return
    gone = sorted({step.name for step in first.steps} - {step.name for step in best.steps})
    if gone:
        reason = "the model with it does not run" if refusal else f"the model is slower with it, in two races{slower}"
        yield f"left out, for {reason}: {', '.join(gone)}{f' ({refusal})' if refusal else ''}"


def refusal_notes(refusals: Mapping[str, Mapping[str, Mapping[str, str]]]) -> Iterator[str]:
    """Yield a note for each rule of a sweep that was refused where it matches; `refusals` has the reasons by sweep,
    rule and place."""
    for sweep, by_rule in refusals.items():
        for rule, by_place in by_rule.items():
            (place, reason), *others = by_place.items()
            more = f" and at {len(others)} other places" if len(others) > 1 else " and at another place" * len(others)
            yield f"{sweep}: {rule} was not applied at '{place}'{more}: {reason}"
