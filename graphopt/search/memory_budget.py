"""A memory budget: what the result takes in a process of its own, and what brings it below the budget.

First come options of the session, which cost no time as a rule; then operators are computed in parts. What decides is
what was measured.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from graphopt.base.errors import MemoryBudgetError
from graphopt.io.onnx_io import LoadedModel
from graphopt.ir.graph import Graph
from graphopt.language.rule import Rule
from graphopt.rewrite.candidates import Candidate
from graphopt.rewrite.simplify import Step
from graphopt.runtime.bench import prepare_models
from graphopt.runtime.memory import (
    DEFAULT_VARIANT,
    WITHOUT_PATTERN,
    WITHOUT_REUSE,
    MemoryMeter,
    MemoryVariant,
    SessionMemory,
)
from graphopt.search.buffer_plan import liveness_peak
from graphopt.search.explore import with_static_shapes
from graphopt.search.memory_plan import MemoryPlanner
from graphopt.search.model_tuner import Tuner, input_shapes
from graphopt.search.moves import SearchSpace
from graphopt.search.search_report import MemoryOutcome, MemoryUse

FREE_VARIANTS = (WITHOUT_PATTERN, WITHOUT_REUSE)
"""Options of a session that are tried before the model is changed: they cost no time as a rule."""


@dataclass(frozen=True)
class BudgetFit:
    """A candidate that keeps a memory budget."""

    candidate: Candidate
    memory: MemoryOutcome


@dataclass(frozen=True)
class BudgetFitter:
    """Brings a candidate for a model below a memory budget."""

    tuner: Tuner
    parts: Sequence[Rule]
    """The rules that compute operators in parts."""
    label: str
    """Name of the model in errors."""

    @cached_property
    def _meter(self) -> MemoryMeter:
        """Measures at the largest of the sizes."""
        tuning = self.tuner.tuning
        ready = prepare_models(
            [self.tuner.original], tuning.setting, dims=tuning.sizes, inputs=tuning.inputs, seed=tuning.seed
        )
        feeds = (trial.feeds for trial in ready.trials)
        largest = max(feeds, key=lambda each: sum(getattr(value, "nbytes", 0) for value in each.values()))
        return MemoryMeter(tuning.setting, largest)

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
        outcome = MemoryOutcome(_memory_use(usual), budget)
        if usual.running.peak <= budget:
            return BudgetFit(candidate, outcome)
        measured = [usual, *self._measure_until(candidate, FREE_VARIANTS, budget)]
        fitted, found = candidate, measured[-1]
        if found.running.peak > budget:
            fitted, found = self._fit_in_parts(candidate, measured, budget)
        ratio = self._time_ratio(candidate, fitted, found.variant)
        count = sum(step.name.startswith("compute_") for step in fitted.steps[len(candidate.steps) :])
        return BudgetFit(fitted, replace(outcome, lower=_memory_use(found, ratio), parts=count))

    def takes_much(self) -> bool:
        """Return whether a run of the simplified model takes so much memory that it is worth a line."""
        peak = liveness_peak(self.tuner.simplified.graph)
        return peak is not None and peak.nbytes >= self.tuner.tuning.policy.reported_memory

    def offer(self, candidate: Candidate, seconds: float) -> MemoryOutcome | None:
        """Return the memory of a candidate, and options that save some of it at no cost of time.

        What is not measured within the seconds is left out; None where nothing is.

        Raises:
            ModelError: the model cannot be measured, as where memory is short for a process of its own.
        """
        deadline, policy = time.monotonic() + seconds, self.tuner.tuning.policy
        try:
            usual = self._measure(candidate, DEFAULT_VARIANT, deadline)
        except TimeoutError:
            return None
        outcome = MemoryOutcome(_memory_use(usual))
        try:
            plain = self._measure(candidate, WITHOUT_PATTERN, deadline)
            if plain.running.peak > (1 - policy.offered_memory_saving) * usual.running.peak:
                return outcome
            ratio = self._time_ratio(candidate, candidate, WITHOUT_PATTERN, deadline)
        except TimeoutError:
            return outcome
        is_free = ratio <= policy.unnoticed_slowdown
        return replace(outcome, lower=_memory_use(plain, ratio)) if is_free else outcome

    def _fit_in_parts(
        self, candidate: Candidate, measured: Sequence[SessionMemory], budget: int
    ) -> tuple[Candidate, SessionMemory]:
        """Return the candidate computed in as few parts as keep the budget, and its memory.

        Args:
            candidate: what is to be computed in parts.
            measured: what it takes as a whole, with each of the options.
            budget: bytes.

        Raises:
            MemoryBudgetError: no number of parts keeps it.
        """
        tried = [(candidate, min(measured, key=_running_peak))]
        planners = [self._planner(is_reusing=is_reusing) for is_reusing in (True, False)]
        for planner in planners:
            same = [each for each in measured if planner.is_reusing == (each.variant is not WITHOUT_REUSE)]
            taken = min(map(_running_peak, same))
            for fitted, found in self._plans(candidate, taken, budget, planner):
                if found.running.peak <= budget:
                    return fitted, found
                tried.append((fitted, found))
        closest, least = min(tried, key=lambda each: each[1].running.peak)
        excess = self._meter.describe_excess(self._model(closest), least, budget, "a run")
        seconds = f"{self.tuner.tuning.policy.memory_plan_seconds:g} s"
        is_late = any(planner.seconds < 0 for planner in planners)
        stop = f"looking for more to compute in parts ended after {seconds}; " if is_late else ""
        raise MemoryBudgetError(f"{self.label}: {excess}; {stop}no model was written")

    def _plans(
        self, candidate: Candidate, taken: int, budget: int, planner: MemoryPlanner
    ) -> Iterator[tuple[Candidate, SessionMemory]]:
        """Yield the candidate in ever more parts, with its memory, until the estimate falls no further.

        Args:
            candidate: what is to be computed in parts.
            taken: bytes that a run of it takes as a whole.
            budget: bytes.
            planner: its estimate is of sessions that use buffers again, or of those that do not.
        """

        def change(graph: Graph, limit: float) -> Sequence[Step]:
            return planner.fit(graph, limit)[0]

        left = planner.peak_bytes(candidate.graph)
        target = budget - (taken - left)
        fitted = candidate
        for _ in range(self.tuner.tuning.policy.memory_plans):
            fitted = fitted.derive(partial(change, limit=target))
            before, left = left, planner.peak_bytes(fitted.graph)
            if left >= before:
                return
            found = min(self._measure_until(fitted, (DEFAULT_VARIANT, *FREE_VARIANTS), budget), key=_running_peak)
            yield fitted, found
            if left > target:
                return
            target = left - (found.running.peak - budget)

    def _planner(self, *, is_reusing: bool) -> MemoryPlanner:
        tuner = self.tuner
        space, policy = SearchSpace(self.parts, tuner.simplifier(), tuner.allows), tuner.tuning.policy
        return MemoryPlanner(space, self._static, is_reusing, policy, policy.memory_plan_seconds)

    def _static(self, graph: Graph) -> Graph:
        return with_static_shapes(graph, input_shapes(self._meter.feeds)) if self._has_open_sizes else graph

    @cached_property
    def _has_open_sizes(self) -> bool:
        graph = self.tuner.simplified.graph
        types = (graph[vertex].types[0] for vertex in graph.inputs)
        return not all(getattr(type_, "is_static", False) for type_ in types)

    # -- measuring -----------------------------------------------------------------------------------------------------

    def _model(self, candidate: Candidate) -> LoadedModel:
        return replace(self.tuner.model, graph=candidate.graph)

    def _measure_until(
        self, candidate: Candidate, variants: Sequence[MemoryVariant], budget: int
    ) -> Sequence[SessionMemory]:
        """Return what a candidate takes under each of the options up to those that keep a budget."""
        measured: list[SessionMemory] = []
        for variant in variants:
            measured.append(self._measure(candidate, variant))
            if measured[-1].running.peak <= budget:
                break
        return measured

    def _measure(self, candidate: Candidate, variant: MemoryVariant, deadline: float = math.inf) -> SessionMemory:
        return self._meter.measure(self._model(candidate), variant, deadline)

    def _time_ratio(
        self, before: Candidate, after: Candidate, variant: MemoryVariant, deadline: float = math.inf
    ) -> float:
        return self._meter.time_ratio(self._model(before), self._model(after), variant, deadline)


def _running_peak(found: SessionMemory) -> int:
    return found.running.peak


def _memory_use(found: SessionMemory, time_ratio: float | None = None) -> MemoryUse:
    lines = found.variant.code_lines("model.onnx")
    return MemoryUse(found.running.peak, found.held, found.loading.peak, lines, time_ratio)
