"""Results of the search and of timing, as data for the report, with reasons why finds were left or are no gains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from graphopt.rewrite.candidates import Candidate
from graphopt.rewrite.simplify import Cause
from graphopt.runtime.measure import Speedup, TimingPolicy, TimingVerdict
from graphopt.search.moves import Solution
from graphopt.search.race_outcomes import Latency, Measurement
from graphopt.search.sweep import Sweep


@dataclass(frozen=True, slots=True)
class RewriteGroup:
    """Rewrites that were taken or left together."""

    rules: tuple[str, ...]
    copies: int
    """Equal parts of the model in which they were made; 0 for the model as a whole."""
    speedup: float | None
    """Speedup of each part, measured or estimated alone; None where it could not be timed."""
    is_taken: bool
    rewrites: tuple[int, int] = (0, 0)
    """Start and end of its rewrites in the report's list; 0 twice if it was not taken."""
    saved: float = 0.0
    """Seconds of a run that are hoped for, in all copies together: what they are estimated to take, at that speedup. Of
    the model as a whole they are measured."""
    reason: str = ""
    """Reason why it was left out, by the race of the whole model with it."""


@dataclass(frozen=True, slots=True)
class SearchTiming:
    """Speedup of the result, and the course of the search."""

    cost: str
    """`measured` or `analytic`."""
    provider: str
    threads: int
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
    groups: tuple[RewriteGroup, ...] = ()
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
    gainable: float | None = None
    """The part of the simplified model's time in kernels that is outside of convolutions and matrix products; None
    where it is not known, or an estimate spoke for rewrites of these."""

    @property
    def is_gain(self) -> bool:
        """True where the result was measured to be faster beyond noise."""
        return self.speedup is not None and self.speedup.verdict is TimingVerdict.FASTER


def format_speedup(ratio: Speedup) -> str:
    """`1.031 times as fast (1.022 to 1.040)`."""
    return f"{ratio.median:.3f} times as fast ({ratio.low:.3f} to {ratio.high:.3f})"


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
    solutions: Sequence[Solution], best: Candidate, raced: Sequence[Measurement], policy: TimingPolicy
) -> Iterator[RewriteGroup]:
    """Yield the finds of the search, and which of them the best candidate has."""
    for solution in solutions:
        span = _step_range(best, solution)
        with_it = [found for found in raced if solution in found.solutions]
        reason = rejection_reason(with_it, policy, is_faster=bool(best.causes)) if span is None else ""
        ratio, copies = solution.speedup.median, len(solution.copies)
        yield RewriteGroup(
            solution.rules, copies, ratio, span is not None, span or (0, 0), solution.saved_seconds, reason
        )


def sweep_groups(
    alone: Sequence[Measurement],
    first: Measurement,
    best: Measurement,
    raced: Sequence[Measurement],
    policy: TimingPolicy,
) -> Iterator[RewriteGroup]:
    """Yield the group of each sweep; sweeps that were taken and timed only together are one group.

    Args:
        alone: the simplified model with each sweep.
        first: the simplified model.
        best: what was taken.
        raced: all that took part in races.
        policy: by which ratios are judged.
    """
    several = [found for found in raced if len(found.sweeps) > 1 and found.gain is not None]
    whole = next((found for found in several if found.sweeps == best.sweeps), None)
    if whole is not None and all(found.gain is None for found in alone):
        rules = dict.fromkeys(rule for made in best.sweeps for rule in made.rules)
        ratio, saved = _gain_and_savings(whole)
        yield RewriteGroup(tuple(rules), 0, ratio, True, _step_range(best.candidate, *best.sweeps) or (0, 0), saved)
        alone = [found for found in alone if not _matching_sweeps(found.sweeps[0], best)]
    for found in alone:
        beside = [other for other in several if _matching_sweeps(found.sweeps[0], other)]
        yield _sweep_group(found, first, best, beside, policy)


def _sweep_group(
    found: Measurement, first: Measurement, best: Measurement, beside: Sequence[Measurement], policy: TimingPolicy
) -> RewriteGroup:
    """Return the group of one sweep of the simplified model, timed alone or beside others."""
    (made,), taken = found.sweeps, _matching_sweeps(found.sweeps[0], best)
    ratio, saved = _gain_and_savings(found)
    timed = [found] if found.gain else [found, *beside]
    reason = "" if taken else rejection_reason(timed, policy, is_faster=bool(best.candidate.causes))
    if not taken and best.sweeps and found.gain is not None and found.beats(first):
        reason = (
            f"the model with it is {format_speedup(found.gain)} as without it; beside what was taken no gain was shown"
        )
    return RewriteGroup(made.rules, 0, ratio, bool(taken), _step_range(best.candidate, *taken) or (0, 0), saved, reason)


def _matching_sweeps(sweep: Sweep, found: Measurement) -> list[Sweep]:
    """Return the sweep as it was made in a candidate; nothing where it was not."""
    return [made for made in found.sweeps if made.name == sweep.name]


def _step_range(candidate: Candidate, *causes: Cause) -> tuple[int, int] | None:
    """Return the start and end of some causes' steps among those of a candidate; None where it has none."""
    places = [place for place, step in enumerate(candidate.steps) if step.cause in causes]
    return (places[0], places[-1] + 1) if places else None


def _gain_and_savings(found: Measurement) -> tuple[float | None, float]:
    """Return the gain of a candidate over the simplified model, and the seconds that it saves in a run, as the mean
    over all sizes."""
    if found.gain is None or not found.latencies:
        return None, 0.0
    medians = [latency.after.median for latency in found.latencies]
    return found.gain.median, sum(medians) / len(medians) * (found.gain.median - 1)


def rejection_reason(raced: Sequence[Measurement], policy: TimingPolicy, *, is_faster: bool) -> str:
    """Return the reason why candidates were not taken, which may be that another is faster."""
    timed = [(found.gain, found) for found in raced if found.gain is not None]
    if not timed:
        refused = [found.refusal for found in raced if found.refusal]
        return f"the model with it does not run: {refused[0]}" if refused else "no time was left to time it"
    gain, best = max(timed, key=lambda pair: pair[0].median)
    if best.is_slower:
        return "the model with it is slower than the original"
    lost = "another was faster" if is_faster else "no time was left for a second race"
    why = why_no_gain(gain, policy) or ("and in a second race it was no faster" if best.has_lost else lost)
    return f"the model with it is {format_speedup(gain)} as without it; {why}"


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
        yield "a run takes long, so the speed is told by the time of those kernels that differ, in profiled runs"
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
