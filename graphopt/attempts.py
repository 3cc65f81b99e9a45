"""Attempts at a model: what was made of it, and what the check found; which of two in different opsets is taken."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from graphopt.base.errors import DifferenceError, ModelError
from graphopt.base.session import current
from graphopt.check.blame import Finding
from graphopt.io import onnx_io
from graphopt.options import Options
from graphopt.report.report import Summary
from graphopt.runtime.cost import user_cache
from graphopt.search.timing import StopReason, said
from graphopt.search.tune import Tuned, Tuning, face

LAST_WORD = 0.1
"""The part of the time for which the results in two opsets take turns, at least."""


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
        return self.tuned.timing is not None and self.tuned.timing.stop in (StopReason.DONE, StopReason.BOUND)

    @property
    def counts(self) -> Counter[str]:
        """How often each rule or pass was applied."""
        return Counter(step.name for step in self.tuned.variant.history)

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
        own, opset, share = self.own, self.newer, (1 - LAST_WORD) / 2
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
        tuning = replace(self.tuning, seconds=options.seconds * LAST_WORD)
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
