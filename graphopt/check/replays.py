"""What a model makes of the same inputs when it is run again: not always the same.

Threads add up in the order in which they come, and where several write to one place, the last one wins. With one
thread that is told: so two models are compared where the original varies. What varies with one thread, too, is compared
within that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, TypeAlias

from graphopt.check.gap import Gap, gap_of
from graphopt.check.verdict import Case, Difference
from graphopt.runtime.oracle import Oracle, Runnable, onnxruntime_alone, onnxruntime_unoptimized
from graphopt.runtime.samples import Feeds
from graphopt.runtime.steps import Sketch

FEW_RERUNS, MANY_RERUNS = 2, 8
"""Fresh sessions in which a model is run again, to see whether a difference is its own: many where it shows none with
one thread. None is opened after the first that varies."""
FACTOR = 4
"""What varies may be so many times as far apart as runs of the original were seen to be: these are few."""
INCOMPARABLE = 0.5
"""The variation from which on an output is not compared, as a fraction of its largest element."""


Runs: TypeAlias = "tuple[Runnable, Sequence[list[Any]]]"
"""A model, and what it made of the inputs at first."""


class Replays:
    """What a model makes of some inputs, run by run, each of which is made when it is asked for."""

    def __init__(
        self, oracle: Oracle, model: Runnable, feeds: Sequence[Feeds], first: Sequence[list[Any]] | None = None
    ) -> None:
        self.oracle, self.model, self.feeds = oracle, model, feeds
        self.results = [] if first is None else [first]

    def values(self, number: int, index: int, count: int = 1) -> list[Any]:
        """Return what one output is for one of the inputs, `count` times.

        All inputs are run again, in their order: what a seed decides is the same in each session, not in each run.

        Raises:
            FailedError: the model does not run again.
        """
        while len(self.results) < count:
            with self.oracle(self.model) as session:
                self.results.append([session.run(feeds) for feeds in self.feeds])
        return [result[number][index] for result in self.results[:count]]

    def variation(self, number: int, index: int, count: int) -> Gap:
        """Return how far the first runs are apart that differ, of so many at most. Raises FailedError."""
        first, *_ = self.values(number, index)
        others = (self.values(number, index, done)[-1] for done in range(2, count + 1))
        gaps = (gap_of(first, other) for other in others)
        return next((gap for gap in gaps if not gap.is_same), Gap())


@dataclass(frozen=True)
class Reruns:
    """Both models, run again on the same inputs where that is asked for."""

    original: Replays
    optimized: Replays
    original_alone: Replays
    """With one thread."""
    optimized_alone: Replays

    @staticmethod
    def of(oracle: Oracle, original: Runs, optimized: Runs, feeds: Sequence[Feeds]) -> Reruns:
        alone = onnxruntime_alone if oracle is onnxruntime_unoptimized else oracle
        threads = (Replays(oracle, model, feeds, first) for model, first in (original, optimized))
        return Reruns(*threads, *(Replays(alone, model, feeds) for model, _ in (original, optimized)))

    def variation(self, number: int, index: int, count: int, *, may_race: bool) -> Gap:
        """Return how far two of so many runs of the original are apart; or of the optimized model, where threads `may`
        race in the original, too."""
        own = self.original.variation(number, index, count)
        return self.optimized.variation(number, index, count) if own.is_same and may_race else own


def may_race(model: Sketch) -> bool:
    """Return whether threads may write to one place: in a scattering operator, or in one that is not ONNX's."""
    return any(step.facts.races or step.domain not in ("", "ai.onnx.ml") for step in model.steps)


def severity(gap: Gap) -> tuple[bool, float, float, float]:
    """Return the key by which gaps are ordered, the worst last."""
    return bool(gap.problem), gap.wrong, gap.absolute, gap.mean


def is_incomparable(own: Gap, scale: float) -> bool:
    """Return whether an output that varies like this shows no difference."""
    return own.wrong == inf or (not own.problem and own.absolute >= INCOMPARABLE * scale)


def widened(found: Difference, case: Case, gap: Gap, own: Gap, scale: float) -> Difference:
    """Return what is said of a gap beside that of two runs of the original."""
    varies, absolute = own.absolute / scale, gap.absolute
    why, allowed = "none: what varies so far is not compared", found.tolerance + FACTOR * varies
    if is_incomparable(own, scale):
        ok, absolute = "type" not in gap.problem and (gap.wrong < inf or own.wrong == inf), 0.0
    else:
        ok = _is_explained(gap, own, found.tolerance * scale)
        why = f"{found.tolerance:.2g} and {FACTOR} times as far as runs of the original are apart"
    far = f"differs by {absolute:.3g} (relative {absolute / scale:.2g}, tolerance {allowed:.2g})"
    detail = "" if ok else f"{gap.problem or far}, {case}"
    return Difference(found.output, gap.dtype, absolute, absolute / scale, allowed, why, ok, detail, varies)


def _is_explained(gap: Gap, own: Gap, allowed: float) -> bool:
    """Return whether a gap is one that runs of the original have between them, beside what is `allowed` anyway."""
    if "type" in gap.problem:
        return False
    if gap.problem:
        return gap.wrong <= FACTOR * own.wrong and gap.mean <= allowed + FACTOR * own.mean
    return gap.absolute <= allowed + FACTOR * own.absolute and gap.mean <= allowed + FACTOR * own.mean
