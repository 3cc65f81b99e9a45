"""Attempts at a model, each with what the check found, and the choice between two in different opsets."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from graphopt.base.errors import DifferenceError, ModelError
from graphopt.base.session import current_session
from graphopt.check.blame import CheckResult
from graphopt.io import onnx_io
from graphopt.options import Options
from graphopt.report.report import ModelSummary
from graphopt.rewrite.refused_changes import RefusedRewrite
from graphopt.runtime.cost_model import open_cost_cache
from graphopt.runtime.session_setting import SessionSetting
from graphopt.search.model_tuner import Tuner, TuningOptions, TuningResult
from graphopt.search.pair_race import race_two_models
from graphopt.search.race_outcomes import RaceOutcome
from graphopt.search.search_report import format_speedup
from graphopt.search.stopping import StopReason


@dataclass
class StageClock:
    """Seconds by stage."""

    seconds: dict[str, float] = field(default_factory=dict)
    _lapped: float = 0.0

    def lap(self, *besides: str) -> float:
        """Return the seconds in all stages but these since this was last asked."""
        before, self._lapped = self._lapped, sum(self.seconds[stage] for stage in self.seconds.keys() - {*besides})
        return self._lapped - before

    def add(self, other: StageClock) -> None:
        """Add the seconds of another clock."""
        for stage, seconds in other.seconds.items():
            self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds

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

    loaded: onnx_io.LoadedModel
    tuner: Tuner
    """Tuner that searched it, or would have."""
    before: ModelSummary
    tuned: TuningResult
    notes: tuple[str, ...]
    check_result: CheckResult | None
    refused: tuple[RefusedRewrite, ...] = ()
    """Rewrites that the check refused, now or when the recipe was made."""

    @property
    def tuning(self) -> TuningOptions:
        """The options by which it was searched and timed."""
        return self.tuner.tuning

    @property
    def is_verified(self) -> bool:
        """True if the check found it equal to the model."""
        return self.check_result is not None and self.check_result.comparison.ok

    @property
    def is_different(self) -> bool:
        return self.check_result is not None and self.check_result.is_different

    @property
    def could_be_timed(self) -> bool:
        """False if neither the original nor any version of it could be timed, or no timing was asked for."""
        return self.tuned.timing is not None and self.tuned.timing.could_be_timed

    @property
    def is_interrupted(self) -> bool:
        """True if Ctrl-C ended the search or the timing."""
        return self.tuned.timing is not None and self.tuned.timing.is_interrupted

    @property
    def has_ended(self) -> bool:
        """True if the search found all that there is to find."""
        return self.tuned.timing is not None and StopReason(self.tuned.timing.stop).is_complete

    @property
    def rule_counts(self) -> Counter[str]:
        """Number of times each rule or pass was applied."""
        return Counter(step.name for step in self.tuned.candidate.steps)

    def with_notes(self, *notes: str) -> Attempt:
        """Return the same with more notes."""
        return replace(self, notes=(*self.notes, *notes))

    def with_notes_of(self, other: Attempt, where: str) -> Attempt:
        """Return the same with the notes that only another attempt has, and `where` it was made."""
        return self.with_notes(*(f"{note} ({where})" for note in other.notes if note not in self.notes))


def race_within_search(
    first: onnx_io.LoadedModel,
    second: onnx_io.LoadedModel,
    tuning: TuningOptions,
    options: Options,
    clock: StageClock,
    setting: SessionSetting | None = None,
) -> RaceOutcome:
    """Return the outcome of a race in what is left of the seconds of a run, the second model in another setting if one
    is given.

    Raises:
        ModelError: as `race_two_models` does.
    """
    least = options.seconds * tuning.policy.least_tuning_share - clock.seconds.get("search", 0.0)
    left = max(options.seconds - sum(clock.seconds.values()), least)
    with clock("search"), current_session().replace(limits=options.limits):
        return race_two_models(first, second, tuning, left, open_cost_cache(fresh=options.fresh), setting=setting)


@dataclass(frozen=True)
class OpsetComparison:
    """Attempts in the model's own opset and in a newer one, and a race of what came of them."""

    own: int
    newer: int
    """The first that has all that rules write."""
    make: Callable[[int | None, float], Attempt]
    """Makes an attempt in an opset, None for the model's own, in a share of the time."""
    options: Options
    tuning: TuningOptions
    clock: StageClock

    def best_attempt(self) -> Attempt:
        """Return the model optimized in its own opset, or in the newer one, where that is faster.

        Raises:
            DifferenceError: the check found a difference that is an error in its own opset, or, with `strict`, in any.
        """
        own, opset, share = self.own, self.newer, (1 - self.tuning.policy.opset_race_share) / 2
        if own >= opset:
            return self.make(None, 1.0).with_notes(
                f"no other opset was tried: opset {own} has all that rules write here"
            )
        kept = self.make(None, share)
        if kept.tuned.is_out_of_time:
            return self.make(None, 1.0).with_notes(
                f"opset {opset} was not tried: half of --seconds is too little to time anything"
            )
        if not kept.could_be_timed or kept.is_interrupted:
            why = "it was interrupted" if kept.is_interrupted else f"nothing was timed in opset {own}"
            return kept.with_notes(f"opset {opset} was not tried: {why}")
        not_taken = f"opset {opset} was not taken"
        try:
            raised = self.make(opset, share)
            is_faster, why = self._race(kept, raised)
        except KeyboardInterrupt:
            return kept.with_notes(f"{not_taken}: it was interrupted")
        except (ModelError, DifferenceError) as error:
            if self.options.strict and isinstance(error, DifferenceError):
                raise
            return kept.with_notes(f"{not_taken}: {error}")
        if is_faster:
            return raised.with_notes_of(kept, f"in opset {own}").with_notes(f"opset {opset} was taken: {why}")
        return kept.with_notes_of(raised, f"in opset {opset}").with_notes(f"{not_taken}: {why}")

    def _race(self, kept: Attempt, raised: Attempt) -> tuple[bool, str]:
        """Return whether a result in a newer opset is faster than that in the model's own, and how this is known."""
        if why := _why_not_raced(raised, kept):
            return False, why
        options = self.options
        tuning = replace(self.tuning, seconds=options.seconds * self.tuning.policy.opset_race_share)
        try:
            outcome = race_within_search(kept.loaded, raised.loaded, tuning, options, self.clock)
        except ModelError as error:
            return False, str(error)
        return outcome.is_faster, f"it is {format_speedup(outcome.speedup)} as opset {self.own}"


def _why_not_raced(raised: Attempt, kept: Attempt) -> str:
    """Return why a result in a newer opset need not be timed against that in the model's own; nothing where it must
    be."""
    timing = raised.tuned.timing
    if raised.is_interrupted:
        return "it was interrupted"
    if timing is None or not timing.could_be_timed:
        return "nothing was timed there"
    if raised.rule_counts == kept.rule_counts:
        ended = raised.has_ended and kept.has_ended
        return "no other rewrite pays there" if ended else "no other rewrite was found there before the search ended"
    if kept.is_verified and not raised.is_verified:
        return "what was made there could not be compared"
    return "" if timing.speedup else timing.untimed or "no rewrite was shown to pay there"
