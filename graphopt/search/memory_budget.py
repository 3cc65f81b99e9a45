"""A memory budget: what the result takes in a process of its own, and what brings it below the budget.

First come options of the session, which cost no time as a rule; then operators are computed in parts. What decides is
what was measured.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from graphopt.base import files
from graphopt.base.errors import MemoryBudgetError, ModelError
from graphopt.base.limits import format_megabytes
from graphopt.io import onnx_io
from graphopt.ir.graph import Graph
from graphopt.rewrite.candidates import Candidate
from graphopt.rewrite.simplify import Step
from graphopt.runtime.bench import prepare_models
from graphopt.runtime.input_sizes import TrialInputs
from graphopt.runtime.memory import (
    DEFAULT_VARIANT,
    MEMORY_RUNS,
    TIMING_ROUNDS,
    WITHOUT_PATTERN,
    WITHOUT_REUSE,
    MemoryVariant,
    SessionMemory,
    find_memory_bound,
)
from graphopt.runtime.memory_probe import MemoryProbe
from graphopt.runtime.sample_inputs import Feeds
from graphopt.search.explore import with_static_shapes
from graphopt.search.memory_plan import MemoryPlanner, liveness_peak
from graphopt.search.model_tuner import Tuner, input_shapes
from graphopt.search.moves import SearchSpace

log = logging.getLogger(__name__)

FREE_VARIANTS = (WITHOUT_PATTERN, WITHOUT_REUSE)
"""Options of a session that are tried before the model is changed: they cost no time as a rule."""
MAX_PLANS = 4
"""Plans that are made and measured, each for a lower estimate, until one keeps the budget."""
REPORTED_BYTES = 100_000_000
"""Estimated bytes of a run from which its memory is measured without a budget, too."""
OFFERED_SAVING = 0.1
"""Part of the memory that options have to save to be offered without a budget."""
NO_TIME = 1.02
"""Ratio of times up to which options cost no time."""


@dataclass(frozen=True)
class BudgetFit:
    """A candidate that keeps a memory budget, and what to say of it."""

    candidate: Candidate
    notes: tuple[str, ...]


@dataclass(frozen=True)
class BudgetFitter:
    """Brings a candidate for a model below a memory budget."""

    tuner: Tuner
    parts: SearchSpace
    """Its trades are the rules that compute operators in parts."""
    label: str
    """What the model is called in errors."""

    @cached_property
    def _trial(self) -> TrialInputs:
        """The inputs at the largest of the sizes."""
        tuning = self.tuner.tuning
        ready = prepare_models(
            [self.tuner.original], tuning.setting, dims=tuning.sizes, inputs=tuning.inputs, seed=tuning.seed
        )
        return max(ready.trials, key=lambda trial: sum(getattr(value, "nbytes", 0) for value in trial.feeds.values()))

    @property
    def _feeds(self) -> Feeds:
        return self._trial.feeds

    def fit(self, candidate: Candidate, budget: int) -> BudgetFit:
        """Return the candidate, or one that is computed in parts, with which a run keeps the budget.

        Args:
            candidate: what was found to be fastest.
            budget: bytes that the session may take at most while the model runs, weights included, above what Python
                and ONNX Runtime take themselves.

        Raises:
            MemoryBudgetError: none keeps it; names the node that takes the most.
            ModelError: the model cannot be run.
        """
        usual = self._measure(candidate, DEFAULT_VARIANT)
        if usual.running.peak <= budget:
            return BudgetFit(candidate, (self._kept_text(usual, budget), *self._loading_notes(usual, budget)))
        fitted, found = candidate, usual
        for variant in FREE_VARIANTS:
            found = min(found, self._measure(candidate, variant), key=lambda each: each.running.peak)
            if found.running.peak <= budget:
                break
        else:
            fitted, found = self._fit_in_parts(candidate, found, budget)
        text = f"{self._kept_text(found, budget)} instead of {format_megabytes(usual.running.peak)}"
        if fitted is not candidate:
            ratio = self._time_ratio(candidate, fitted)
            count = sum(step.name.startswith("compute_") for step in fitted.steps[len(candidate.steps) :])
            text += f", at {ratio:.2f} of the time: {count} operators are computed in parts"
            at_once = self._measure(fitted, DEFAULT_VARIANT)
            found = at_once if at_once.running.peak <= budget else found
        if code := found.variant.code_lines("model.onnx"):
            text += f"; that needs {'; '.join(code)}"
        return BudgetFit(fitted, (text, *self._loading_notes(found, budget)))

    def offer(self, candidate: Candidate) -> tuple[str, ...]:
        """Return a line on the memory of a candidate that takes much, and on options that save some at no cost of time;
        nothing where it takes little, or its sizes are not known."""
        peak = liveness_peak(candidate.graph)
        if peak is None or peak.nbytes < REPORTED_BYTES:
            return ()
        usual = self._measure(candidate, DEFAULT_VARIANT)
        text = f"memory: a run takes {format_megabytes(usual.running.peak)} at most, loading "
        text += format_megabytes(usual.loading.peak)
        plain = self._measure(candidate, WITHOUT_PATTERN)
        if plain.running.peak < (1 - OFFERED_SAVING) * usual.running.peak:
            ratio = self._time_ratio(candidate, candidate, WITHOUT_PATTERN)
            if ratio <= NO_TIME:
                code = "; ".join(WITHOUT_PATTERN.code_lines("model.onnx"))
                text += f"; with {code} it is {format_megabytes(plain.running.peak)}, at {ratio:.2f} of the time"
        return (text,)

    def _fit_in_parts(
        self, candidate: Candidate, lowest: SessionMemory, budget: int
    ) -> tuple[Candidate, SessionMemory]:
        """Return the candidate computed in as few parts as keep the budget, and its memory.

        Raises:
            MemoryBudgetError: no number of parts keeps it.
        """
        is_reusing = lowest.variant is not WITHOUT_REUSE
        peak = liveness_peak(self._static(candidate.graph), is_reusing=is_reusing)
        target = budget - (lowest.running.peak - (0 if peak is None else peak.nbytes))
        fitted, found = candidate, lowest
        for _ in range(MAX_PLANS):
            fitted = self._planned(fitted, target, is_reusing=is_reusing)
            found = self._measure(fitted, lowest.variant)
            if found.running.peak <= budget:
                return fitted, found
            left = liveness_peak(self._static(fitted.graph), is_reusing=is_reusing)
            if left is None or left.nbytes > target:
                break
            target = min(target, left.nbytes) - (found.running.peak - budget)
        bound = self._bound_text(fitted)
        raise MemoryBudgetError(
            f"{self.label}: a memory budget of {format_megabytes(budget)} cannot be kept: a run takes"
            f" {format_megabytes(found.running.peak)} at least, {format_megabytes(found.loading.held)} of them for"
            f" weights; {bound}; no model was written"
        )

    def _planned(self, candidate: Candidate, target: float, *, is_reusing: bool) -> Candidate:
        planner = MemoryPlanner(self.parts, self._static, is_reusing)

        def change(graph: Graph) -> Sequence[Step]:
            return planner.fit(graph, target)[0]

        return candidate.derive(change)

    def _static(self, graph: Graph) -> Graph:
        return with_static_shapes(graph, input_shapes(self._feeds)) if self._has_open_sizes else graph

    @cached_property
    def _has_open_sizes(self) -> bool:
        graph = self.tuner.simplified.graph
        types = (graph[vertex].types[0] for vertex in graph.inputs)
        return not all(getattr(type_, "is_static", False) for type_ in types)

    # -- measuring -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _file(self, candidate: Candidate) -> Iterator[Path]:
        """Give a file of a candidate."""
        with files.scratch_folder(ModelError) as folder:
            path = folder / "model.onnx"
            onnx_io.save_model(replace(self.tuner.model, graph=candidate.graph), path)
            yield path

    def _measure(self, candidate: Candidate, variant: MemoryVariant) -> SessionMemory:
        """Return what the session of a candidate takes in a process of its own."""
        setting = self.tuner.tuning.setting
        with self._file(candidate) as path, MemoryProbe(path, setting, self._feeds, variant.options) as probe:
            running, _ = probe.run(MEMORY_RUNS)
            return SessionMemory(variant, probe.loading, running)

    def _time_ratio(self, before: Candidate, after: Candidate, variant: MemoryVariant = DEFAULT_VARIANT) -> float:
        """Return the median of the times of one candidate over those of another, in turns."""
        setting, ratios = self.tuner.tuning.setting, []
        with (
            self._file(before) as one,
            self._file(after) as other,
            MemoryProbe(one, setting, self._feeds) as first,
            MemoryProbe(other, setting, self._feeds, variant.options) as second,
        ):
            first.run()
            second.run()
            for _ in range(TIMING_ROUNDS):
                (_, (old,)), (_, (new,)) = first.run(), second.run()
                ratios.append(new / old)
        return statistics.median(ratios)

    def _bound_text(self, candidate: Candidate) -> str:
        with self._file(candidate) as path:
            return str(find_memory_bound(str(path), self.tuner.tuning.setting, self._feeds))

    # -- text ----------------------------------------------------------------------------------------------------------

    def _kept_text(self, found: SessionMemory, budget: int) -> str:
        return f"memory: a run takes {format_megabytes(found.running.peak)} of the {format_megabytes(budget)} budget"

    def _loading_notes(self, found: SessionMemory, budget: int) -> tuple[str, ...]:
        """Return a note where loading takes more than the budget, which is for runs."""
        if found.loading.peak <= budget:
            return ()
        taken = format_megabytes(found.loading.peak)
        return (f"memory: loading takes {taken}, more than the budget; weights in a file of their own take less",)
