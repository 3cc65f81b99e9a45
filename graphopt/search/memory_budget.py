"""A memory budget: what the result takes in a process of its own, and what brings it below the budget.

First come options of the session, which cost no time as a rule; then operators are computed in parts. What decides is
what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from graphopt.base.errors import MemoryBudgetError, ModelError
from graphopt.base.limits import format_megabytes
from graphopt.io.onnx_io import LoadedModel
from graphopt.ir.graph import Graph
from graphopt.language.rule import Rule
from graphopt.rewrite.candidates import Candidate
from graphopt.rewrite.simplify import Simplifier, Step
from graphopt.runtime.bench import prepare_models
from graphopt.runtime.memory import (
    DEFAULT_VARIANT,
    WITHOUT_PATTERN,
    WITHOUT_REUSE,
    MemoryVariant,
    SessionMemory,
    find_memory_bound,
    measure_session,
    measure_time_ratio,
    model_file,
)
from graphopt.search.explore import with_static_shapes
from graphopt.search.memory_plan import MemoryPlanner, liveness_peak
from graphopt.search.model_tuner import Tuner, input_shapes
from graphopt.search.moves import SearchSpace
from graphopt.search.policy import SearchPolicy

FREE_VARIANTS = (WITHOUT_PATTERN, WITHOUT_REUSE)
"""Options of a session that are tried before the model is changed: they cost no time as a rule."""


@dataclass(frozen=True)
class BudgetFit:
    """A candidate that keeps a memory budget, and what to say of it."""

    candidate: Candidate
    notes: tuple[str, ...]


@dataclass(frozen=True)
class BudgetFitter:
    """Brings a candidate for a model below a memory budget."""

    tuner: Tuner
    parts: Sequence[Rule]
    """The rules that compute operators in parts."""
    label: str
    """Name of the model in errors."""

    @cached_property
    def _feeds(self) -> Mapping[str, Any]:
        """The inputs at the largest of the sizes."""
        tuning = self.tuner.tuning
        ready = prepare_models(
            [self.tuner.original], tuning.setting, dims=tuning.sizes, inputs=tuning.inputs, seed=tuning.seed
        )
        feeds = (trial.feeds for trial in ready.trials)
        return max(feeds, key=lambda each: sum(getattr(value, "nbytes", 0) for value in each.values()))

    @property
    def _policy(self) -> SearchPolicy:
        return self.tuner.tuning.policy

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
        if peak is None or peak.nbytes < self._policy.reported_memory:
            return ()
        try:
            return (self._offer_text(candidate),)
        except ModelError as error:  # memory may be short for a process of its own
            return (f"memory: not measured: {error}",)

    def _offer_text(self, candidate: Candidate) -> str:
        usual = self._measure(candidate, DEFAULT_VARIANT)
        text = f"memory: a run takes {format_megabytes(usual.running.peak)} at most, loading "
        text += format_megabytes(usual.loading.peak)
        plain = self._measure(candidate, WITHOUT_PATTERN)
        if plain.running.peak < (1 - self._policy.offered_memory_saving) * usual.running.peak:
            ratio = self._time_ratio(candidate, candidate, WITHOUT_PATTERN)
            if ratio <= self._policy.unnoticed_slowdown:
                code = "; ".join(WITHOUT_PATTERN.code_lines("model.onnx"))
                text += f"; with {code} it is {format_megabytes(plain.running.peak)}, at {ratio:.2f} of the time"
        return text

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
        for _ in range(self._policy.memory_plans):
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
        tuner = self.tuner
        simplifier = Simplifier(tuner.rules, tuner.passes, tuner.allows, tuner.refusal)
        planner = MemoryPlanner(
            SearchSpace(self.parts, simplifier, tuner.allows), self._static, is_reusing, self._policy
        )

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

    def _model(self, candidate: Candidate) -> LoadedModel:
        return replace(self.tuner.model, graph=candidate.graph)

    def _measure(self, candidate: Candidate, variant: MemoryVariant) -> SessionMemory:
        return measure_session(self._model(candidate), self.tuner.tuning.setting, self._feeds, variant)

    def _time_ratio(self, before: Candidate, after: Candidate, variant: MemoryVariant = DEFAULT_VARIANT) -> float:
        models = self._model(before), self._model(after)
        return measure_time_ratio(*models, self.tuner.tuning.setting, self._feeds, variant)

    def _bound_text(self, candidate: Candidate) -> str:
        with model_file(self._model(candidate)) as path:
            return str(find_memory_bound(path, self.tuner.tuning.setting, self._feeds))

    # -- text ----------------------------------------------------------------------------------------------------------

    def _kept_text(self, found: SessionMemory, budget: int) -> str:
        return f"memory: a run takes {format_megabytes(found.running.peak)} of the {format_megabytes(budget)} budget"

    def _loading_notes(self, found: SessionMemory, budget: int) -> tuple[str, ...]:
        """Return a note where loading takes more than the budget, which is for runs."""
        if found.loading.peak <= budget:
            return ()
        taken = format_megabytes(found.loading.peak)
        return (f"memory: loading takes {taken}, more than the budget; weights in a file of their own take less",)
