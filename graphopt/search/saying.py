"""What is said of a search: what each sweep brought, why a find was left, why there is no speedup to report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphopt.rewrite.candidate import Candidate
from graphopt.rewrite.fixpoint import Cause
from graphopt.runtime.measure import TimingPolicy
from graphopt.search.choose import Version
from graphopt.search.timing import Group, said, unresolved


def of_sweeps(
    alone: Sequence[Version], first: Version, best: Version, raced: Sequence[Version], policy: TimingPolicy
) -> Iterator[Group]:
    """Yield what each sweep brought; those that were taken and timed only together brought it together."""
    several = [version for version in raced if len(version.sweeps) > 1 and version.gain is not None]
    whole = next((version for version in several if version.sweeps == best.sweeps), None)
    if whole is not None and all(version.gain is None for version in alone):
        rules = dict.fromkeys(rule for made in best.sweeps for rule in made.rules)
        ratio, saved = _gained(whole)
        yield Group(tuple(rules), 0, ratio, True, span(best.candidate, *best.sweeps) or (0, 0), saved)
        alone = [version for version in alone if version.sweeps[0].name not in _names(best)]
    for version in alone:
        beside = [other for other in several if version.sweeps[0].name in _names(other)]
        yield swept(version, first, best, beside, policy)


def swept(version: Version, first: Version, best: Version, beside: Sequence[Version], policy: TimingPolicy) -> Group:
    """Return what a sweep of the simplified model brought, alone or beside others, and whether the best version has
    it.
    """
    (made,) = version.sweeps
    ratio, saved = _gained(version)
    taken = [each for each in best.sweeps if each.name == made.name]
    timed = [version] if version.gain else [version, *beside]
    reason = "" if taken else because(timed, policy, is_faster=bool(best.candidate.causes))
    if not taken and best.sweeps and version.gain is not None and version.beats(first, policy):
        reason = f"the model with it is {said(version.gain)} as without it; beside what was taken no gain was shown"
    return Group(made.rules, 0, ratio, bool(taken), span(best.candidate, *taken) or (0, 0), saved, reason)


def span(candidate: Candidate, *causes: Cause) -> tuple[int, int] | None:
    """Return where among the steps of a candidate those of some causes begin and end; None where there are none."""
    places = [place for place, step in enumerate(candidate.steps) if step.cause in causes]
    return (places[0], places[-1] + 1) if places else None


def _names(version: Version) -> list[str]:
    return [made.name for made in version.sweeps]


def _gained(version: Version) -> tuple[float | None, float]:
    """Return how many times as fast as the simplified model a version is, and the seconds of a run that this saves."""
    if version.gain is None or not version.latencies:
        return None, 0.0
    return version.gain.median, _seconds(version) * (version.gain.median - 1)


def _seconds(version: Version) -> float:
    """Of a run, the mean over all sizes."""
    medians = [latency.after.median for latency in version.latencies]
    return sum(medians) / max(len(medians), 1)


def because(versions: Sequence[Version], policy: TimingPolicy, *, is_faster: bool) -> str:
    """Return what there is against versions of the model; another one may have been taken that is faster."""
    timed = [version for version in versions if version.gain is not None]
    if not timed:
        refused = [version.refusal for version in versions if version.refusal]
        return f"the model with it does not run: {refused[0]}" if refused else "no time was left to time it"
    best = max(timed, key=lambda version: version.gain.median if version.gain else 0.0)
    assert best.gain is not None
    if best.is_slower:
        return "the model with it is slower than the original"
    lost = "another was faster" if is_faster else "no time was left for a second race"
    why = unresolved(best.gain, policy) or ("and in a second race it was no faster" if best.has_lost else lost)
    return f"the model with it is {said(best.gain)} as without it; {why}"


def untimed(simplified: Version, best: Version) -> str:
    """Return why there is no speedup to report of the version that was taken."""
    if best.is_original:
        return "no gain: ONNX Runtime makes the same of both models, so there is nothing to time"
    once, was = "not timed", simplified.speedup
    if was and best.steps == simplified.steps:
        once = f"{said(was)} as the original in one race, and in no second"
    return f"{once}: {best.refusal or 'there was no time or no room'}"


def left_out(simplified: Version, best: Version) -> Iterator[str]:
    """Yield what to say of simplifications that were undone because they could not be timed, or made the model
    slower."""
    refusal, was = simplified.refusal, simplified.speedup
    if best.steps == simplified.steps:
        if simplified.steps and best.speedup is None and not best.is_original:
            yield f"the simplified model was {untimed(simplified, best)}"
        return
    slower = f", {said(was)} as the original" if was else ""
    if simplified.steps and not best.steps:
        confirmed = "slower in one race, and no time was left for a second" if simplified.is_unconfirmed else ""
        reason = f"does not run: {refusal};" if refusal else f"was {confirmed or 'slower in two races'}{slower};"
        yield f"the simplified model {reason} so the original is returned"
        return
    gone = sorted({step.name for step in simplified.steps} - {step.name for step in best.steps})
    if gone:
        reason = "the model with it does not run" if refusal else f"the model is slower with it, in two races{slower}"
        yield f"left out, for {reason}: {', '.join(gone)}{f' ({refusal})' if refusal else ''}"
