"""Attempts at a model: what was made of it, and what the check found; which of two in different opsets is taken."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from graphopt.base.cache import Cache
from graphopt.base.errors import DifferenceError, ModelError
from graphopt.base.session import current
from graphopt.check.blame import Finding
from graphopt.io import onnx_io
from graphopt.options import Options
from graphopt.report.report import Summary
from graphopt.rewrite.candidate import Candidate
from graphopt.runtime.bench import prepared
from graphopt.runtime.cost import key_of, user_cache
from graphopt.runtime.oracle import Runnable
from graphopt.search.race import Contest, Outcome, identity
from graphopt.search.stopping import Budget, StopReason
from graphopt.search.timing import said
from graphopt.search.tune import Tuned, Tuning


@dataclass
class Clock:
    """Seconds by stage."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start


@dataclass(frozen=True)
class Attempt:
    """A model that was optimized, and what the check found."""

    loaded: onnx_io.Model
    before: Summary
    tuned: Tuned
    notes: tuple[str, ...]
    finding: Finding | None

    @property
    def is_checked(self) -> bool:
        """Whether the check found it equal to the model."""
        return self.finding is not None and self.finding.comparison.ok

    @property
    def is_different(self) -> bool:
        return self.finding is not None and self.finding.is_different

    @property
    def is_interrupted(self) -> bool:
        """Whether Ctrl-C ended the search or the timing."""
        return self.tuned.timing is not None and self.tuned.timing.stop == StopReason.INTERRUPTED

    @property
    def has_ended(self) -> bool:
        """Whether the search found all that there is to find."""
        return self.tuned.timing is not None and StopReason(self.tuned.timing.stop).is_complete

    @property
    def counts(self) -> Counter[str]:
        """How often each rule or pass was applied."""
        return Counter(step.name for step in self.tuned.candidate.steps)

    def noting(self, *notes: str) -> Attempt:
        """Return the same with more notes."""
        return replace(self, notes=(*self.notes, *notes))

    def over(self, other: Attempt, opset: int, why: str) -> Attempt:
        """Return this one, which was preferred to another in an `opset`, with the notes that the other alone has."""
        others = (f"{note} (in opset {opset})" for note in other.notes if note not in self.notes)
        return self.noting(*others, why)


Make: TypeAlias = "Callable[[int | None, float], Attempt]"
"""Makes an attempt in an opset, None for the model's own, in a share of the time."""


@dataclass(frozen=True)
class Opsets:
    """Attempts in the model's own opset and in a newer one, and a race of what came of them."""

    own: int
    newer: int
    """The first that has all that rules write."""
    make: Make
    options: Options
    tuning: Tuning
    clock: Clock

    def faster(self) -> Attempt:
        """Return what is made of the model in its own opset, or in the newer one, where that is faster.

        Raises:
            DifferenceError: the check found a difference that is an error in its own opset, or, with `strict`, in any.
        """
        own, opset, share = self.own, self.newer, (1 - self.tuning.policy.opset_race_share) / 2
        if own >= opset:
            return self.make(None, 1.0).noting(f"no other opset was tried: opset {own} has all that rules write here")
        kept = self.make(None, share)
        if kept.tuned.lacks_time:
            return self.make(None, 1.0).noting(
                f"opset {opset} was not tried: half of --seconds is too little to time anything"
            )
        if kept.tuned.timing is None or kept.is_interrupted:
            why = "it was interrupted" if kept.is_interrupted else f"nothing was timed in opset {own}"
            return kept.noting(f"opset {opset} was not tried: {why}")
        not_taken = f"opset {opset} was not taken"
        try:
            raised = self.make(opset, share)
            is_faster, why = self._compared(kept, raised)
        except KeyboardInterrupt:
            return kept.noting(f"{not_taken}: it was interrupted")
        except (ModelError, DifferenceError) as error:
            if self.options.strict and isinstance(error, DifferenceError):
                raise
            return kept.noting(f"{not_taken}: {error}")
        if is_faster:
            return raised.over(kept, own, f"opset {opset} was taken: {why}")
        return kept.over(raised, opset, f"{not_taken}: {why}")

    def _compared(self, kept: Attempt, raised: Attempt) -> tuple[bool, str]:
        """Return whether a result in a newer opset is faster than that in the model's own, and how that is known."""
        if why := _lacking(raised, kept):
            return False, why
        options = self.options
        left = options.seconds - self.clock.seconds.get("search", 0.0)
        tuning = replace(self.tuning, seconds=options.seconds * self.tuning.policy.opset_race_share)
        try:
            with self.clock("search"), current().but(limits=options.limits):
                outcome = face(kept.loaded, raised.loaded, tuning, left, user_cache(fresh=options.fresh))
        except ModelError as error:
            return False, str(error)
        return outcome.is_faster, f"it is {said(outcome.speedup)} as opset {self.own}"


def _lacking(raised: Attempt, kept: Attempt) -> str:
    """Return why a result in a newer opset need not be timed against that in the model's own; nothing where it need."""
    timing = raised.tuned.timing
    if raised.is_interrupted:
        return "it was interrupted"
    if timing is None:
        return "nothing was timed there"
    if raised.counts == kept.counts:
        ended = raised.has_ended and kept.has_ended
        return "no other rewrite pays there" if ended else "no other rewrite was found there before the search ended"
    if kept.is_checked and not raised.is_checked:
        return "what was made there could not be compared"
    return "" if timing.speedup else timing.untimed or "no rewrite was shown to pay there"


def face(
    first: onnx_io.Model,
    second: onnx_io.Model,
    tuning: Tuning,
    limit: float,
    cache: Cache,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Let two models take turns with a copy of the first, and return how fast the second is; or what was said earlier.

    Where it is faster, what a second race tells is returned: one is won by chance, too. The races take the seconds of
    the `tuning`, or longer where these are too few for the fewest rounds, up to the `limit`.

    Raises:
        ModelError: ONNX Runtime refuses one of them, or they would take longer, now or in an earlier run.
        UsageError: the provider does not start.
    """
    budget, also = Budget(tuning.policy, limit, clock), [Runnable(second).outline]
    ready = prepared([first], tuning.setting, dims=tuning.sizes, inputs=tuning.inputs, seed=tuning.seed, also=also)
    digest = key_of("face", identity(first), identity(second), str(tuning.seconds))
    contest, candidate = Contest(ready, first, second, digest, cache, budget), Candidate(second.graph)
    seconds = min(3 * tuning.policy.session_seconds, tuning.seconds / 2)
    found = _faced(contest, candidate, seconds, races=2)
    if not found.is_faster:
        return found
    try:
        return _faced(contest.again(), candidate, seconds, races=1)
    except ModelError as error:
        raise ModelError(f"it is {said(found.speedup)} as the other in one race, and in no second: {error}") from error


def _faced(contest: Contest, candidate: Candidate, seconds: float, races: int) -> Outcome:
    """Return what a race of a model with the original tells, after which time is left for others; or what it told in an
    earlier run.

    Raises:
        ModelError: as `face` does.
    """
    keys, budget = [candidate.key], contest.budget
    outcomes = contest.known(keys)
    if outcomes is None:
        if contest.has_ended(keys):
            raise ModelError("no time was left to time it, in an earlier run (--fresh tries again)")
        pace = contest.pace()
        least, session = races * 3 * pace.racing + (races - 1) * 3 * pace.opening, contest.opened(contest.model)
        left = budget.left
        if least > left:
            contest.end(keys)
            what = "a race" if races == 1 else "two races"
            text = f"{what} would take {math.ceil(least)} s, and {math.floor(left)} s are left of the --seconds"
            raise ModelError(text)
        outcomes = contest.timed(keys, [session], min(seconds, left / races), left / races)
    return outcomes[0]
