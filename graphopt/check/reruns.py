"""Reruns of a model on the same inputs, the results of which are not always the same.

Threads add up in the order in which they come, and where several write to one place, the last one wins. With one thread
the order is fixed, so models whose results vary are compared with one. Where results vary even then, a difference as
large as that between runs of the original is no difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from graphopt.check.result_distance import ResultDistance, result_distance
from graphopt.check.verdict import ComparisonCase, OutputDifference
from graphopt.runtime.model_sketch import ModelSketch
from graphopt.runtime.oracle import Oracle, RunnableModel, onnxruntime_single_threaded, onnxruntime_unoptimized
from graphopt.runtime.sample_inputs import Feeds

FEW_RERUNS, MANY_RERUNS = 2, 8
"""Fresh sessions in which a model is run again, to see whether a difference is its own: many where it shows none with
one thread. None is opened after the first that varies."""
VARIATION_FACTOR = 4
"""Factor by which results may be farther apart than runs of the original were seen to be: these are few."""
INCOMPARABLE_VARIATION = 0.5
"""The variation from which on an output is not compared, as a fraction of its largest element."""


class RerunOutputs:
    """Results of a model on some inputs, run by run, each of which is made when it is asked for."""

    def __init__(
        self, oracle: Oracle, model: RunnableModel, feeds: Sequence[Feeds], first: Sequence[list[Any]] | None = None
    ) -> None:
        self.oracle, self.model, self.feeds = oracle, model, feeds
        self.results = [] if first is None else [first]

    def values(self, number: int, index: int, count: int = 1) -> list[Any]:
        """Return one output for one of the inputs, of each of the first `count` runs.

        All inputs are run again, in their order: results that depend on a seed repeat by session, not by run.

        Raises:
            RunFailedError: the model does not run again.
        """
        while len(self.results) < count:
            with self.oracle(self.model) as session:
                self.results.append([session.run(feeds) for feeds in self.feeds])
        return [result[number][index] for result in self.results[:count]]

    def variation(self, number: int, index: int, count: int) -> ResultDistance:
        """Return the distance of the first two runs that differ, of so many at most. Raises RunFailedError."""
        first, *_ = self.values(number, index)
        others = (self.values(number, index, done)[-1] for done in range(2, count + 1))
        gaps = (result_distance(first, other) for other in others)
        return next((gap for gap in gaps if not gap.is_same), ResultDistance())


@dataclass(frozen=True)
class ModelReruns:
    """A model, run again on the same inputs where that is asked for."""

    threaded: RerunOutputs
    alone: RerunOutputs
    """Reruns with one thread."""

    @staticmethod
    def from_oracle(
        oracle: Oracle, model: RunnableModel, first: Sequence[list[Any]], feeds: Sequence[Feeds]
    ) -> ModelReruns:
        """Return the reruns of a model in an oracle, of which the first results are known."""
        alone = onnxruntime_single_threaded if oracle is onnxruntime_unoptimized else oracle
        return ModelReruns(RerunOutputs(oracle, model, feeds, first), RerunOutputs(alone, model, feeds))


def has_data_races(model: ModelSketch) -> bool:
    """Return whether threads may write to one place: in a scattering operator, or in one that is not ONNX's."""
    return any(step.operator.has_data_races or step.domain not in ("", "ai.onnx.ml") for step in model.nodes)


def distance_key(gap: ResultDistance) -> tuple[bool, float, float, float]:
    """Return the key by which gaps are ordered, the worst last."""
    return bool(gap.problem), gap.mismatched_elements, gap.absolute, gap.mean


def is_incomparable(own: ResultDistance, scale: float) -> bool:
    """Return whether an output that varies like this shows no difference."""
    return own.mismatched_elements == inf or (not own.problem and own.absolute >= INCOMPARABLE_VARIATION * scale)


def widen_tolerance(
    found: OutputDifference, case: ComparisonCase, gap: ResultDistance, own: ResultDistance, scale: float
) -> OutputDifference:
    """Return the difference of an output, judged by that of runs of the original."""
    varies, absolute = own.absolute / scale, gap.absolute
    why, allowed = "none: what varies so far is not compared", found.tolerance + VARIATION_FACTOR * varies
    if is_incomparable(own, scale):
        ok, absolute = (
            "type" not in gap.problem and (gap.mismatched_elements < inf or own.mismatched_elements == inf),
            0.0,
        )
    else:
        ok = _is_within_variation(gap, own, found.tolerance * scale)
        why = f"{found.tolerance:.2g} and {VARIATION_FACTOR} times as far as runs of the original are apart"
    far = f"differs by {absolute:.3g} (relative {absolute / scale:.2g}, tolerance {allowed:.2g})"
    detail = "" if ok else f"{gap.problem or far}, {case}"
    return OutputDifference(found.output, gap.dtype, absolute, absolute / scale, allowed, why, ok, detail, varies)


def _is_within_variation(gap: ResultDistance, own: ResultDistance, allowed: float) -> bool:
    """Return whether a gap is like that between runs of the original, apart from what is `allowed` anyway."""
    if "type" in gap.problem:
        return False
    if gap.problem:
        return (
            gap.mismatched_elements <= VARIATION_FACTOR * own.mismatched_elements
            and gap.mean <= allowed + VARIATION_FACTOR * own.mean
        )
    return (
        gap.absolute <= allowed + VARIATION_FACTOR * own.absolute and gap.mean <= allowed + VARIATION_FACTOR * own.mean
    )
