"""A memory budget for a training step: what it takes in a process of its own, and what is computed again for that.

An integer program says what to compute again by an estimate; what decides is what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from graphopt.base import option_values as forms
from graphopt.base.errors import MemoryBudgetError
from graphopt.base.limits import format_megabytes
from graphopt.io.onnx_io import LoadedModel
from graphopt.runtime.bench import prepare_models
from graphopt.runtime.memory import (
    DEFAULT_VARIANT,
    WITHOUT_PATTERN,
    MemoryMeter,
    SessionMemory,
)
from graphopt.runtime.session_setting import SessionSetting
from graphopt.search.analytic_cost import AnalyticCost
from graphopt.search.explore import with_static_shapes
from graphopt.search.model_tuner import input_shapes
from graphopt.search.policy import SearchPolicy
from graphopt.search.recomputation import Recomputer, Timeline
from graphopt.search.recomputation_program import RecomputationPlan, plan_recomputation, require_highspy


@dataclass(frozen=True)
class MemoryBudget:
    """The most memory that a training step may take, and for which sizes.

    Raises:
        UsageError: the size is none.
    """

    size: int | str
    """Bytes, or a text such as `120MB`: weights included, above what Python and ONNX Runtime take themselves."""
    dims: Mapping[str, int] | None = None
    """Sizes of open dims, by name; the others get a usual size."""
    threads: int = 0
    """Threads of ONNX Runtime; 0: one a core."""

    def __post_init__(self) -> None:
        forms.parse_bytes(self.size)

    @property
    def nbytes(self) -> int:
        return forms.parse_bytes(self.size)


@dataclass(frozen=True)
class RecomputedStep:
    """A training step that keeps a memory budget."""

    loaded: LoadedModel
    note: str
    """Memory of a step, and the changes that lower it, in one line."""
    copies: int
    """Values that are computed again."""


def fit_by_recomputation(loaded: LoadedModel, budget: MemoryBudget, policy: SearchPolicy) -> RecomputedStep:
    """Return a training step with which a run keeps a memory budget: as it is, or with values computed again.

    A session with ONNX Runtime's defaults comes first; one without memory pattern where the first does not suffice.

    Raises:
        MemoryBudgetError: it cannot be kept; names the node that takes the most.
        ModelError: the model cannot be run.
        UsageError: HiGHS is missing.
    """
    require_highspy()
    setting = SessionSetting("cpu", budget.threads)
    ready = prepare_models([loaded], setting, dims=budget.dims)
    return _Fitter(loaded, budget, policy, MemoryMeter(setting, ready.trials[0].feeds)).fit()


@dataclass(frozen=True)
class _Variation:
    """A step with values computed again, and what a session of it takes."""

    loaded: LoadedModel
    memory: SessionMemory
    copies: int = 0
    """Values that are computed again."""


@dataclass(frozen=True)
class _Fitter:
    loaded: LoadedModel
    budget: MemoryBudget
    policy: SearchPolicy
    meter: MemoryMeter

    def fit(self) -> RecomputedStep:
        usual = self.meter.measure(self.loaded, DEFAULT_VARIANT)
        if usual.running.peak <= self.budget.nbytes:
            return RecomputedStep(self.loaded, self._kept_text(usual), copies=0)
        tried = []
        for variant in (DEFAULT_VARIANT, WITHOUT_PATTERN):
            unchanged = usual if variant == DEFAULT_VARIANT else self.meter.measure(self.loaded, variant)
            found = self._recomputed(unchanged)
            if found.memory.running.peak <= self.budget.nbytes:
                return RecomputedStep(found.loaded, self._fitted_text(found, usual), found.copies)
            tried.append(found)
        lowest = min(tried, key=_running_peak)
        excess = self.meter.describe_excess(lowest.loaded, lowest.memory, self.budget.nbytes, "a step")
        raise MemoryBudgetError(f"{excess}; no model was written")

    def _recomputed(self, unchanged: SessionMemory) -> _Variation:
        """Return what keeps the budget with the options of a session of the step as it is, or what takes the least
        memory."""
        found = least = _Variation(self.loaded, unchanged)
        share = 1.0
        for _ in range(self.policy.memory_plans):
            if found.memory.running.peak <= self.budget.nbytes:
                return found
            share *= self._wanted_share(found.memory)
            fitted, plan = self._plan(share)
            found = _Variation(fitted, self.meter.measure(fitted, unchanged.variant), len(plan.values))
            least = min(least, found, key=_running_peak)
            if not plan.is_reaching:
                break
        return least

    def _wanted_share(self, found: SessionMemory) -> float:
        """Return the part of the memory for values that may stay, so that the budget is kept."""
        held = found.loading.held
        return max(0.0, self.budget.nbytes - held) / max(1, found.running.peak - held)

    def _plan(self, share: float) -> tuple[LoadedModel, RecomputationPlan]:
        """Compute values again so that what lies in memory at the peak is a part of what it was."""
        graph = self.loaded.graph.copy()
        timeline = Timeline(with_static_shapes(graph, input_shapes(self.meter.feeds)), self.policy.recomputation)
        seconds = AnalyticCost().node_seconds(timeline.graph)
        plan = plan_recomputation(timeline, seconds, share, self.policy.memory_plan_seconds)
        Recomputer(graph, timeline, plan.values).run()
        return replace(self.loaded, graph=graph), plan

    def _kept_text(self, found: SessionMemory) -> str:
        budget = format_megabytes(self.budget.nbytes)
        return f"memory: a step takes {format_megabytes(found.running.peak)} of the {budget} budget"

    def _fitted_text(self, fitted: _Variation, usual: SessionMemory) -> str:
        found = fitted.memory
        text = f"{self._kept_text(found)} instead of {format_megabytes(usual.running.peak)}"
        if fitted.copies:
            ratio = self.meter.time_ratio(self.loaded, fitted.loaded, found.variant)
            text += f", at {ratio:.2f} of the time: {fitted.copies} values are computed again"
        if code := found.variant.code_lines("model.onnx"):
            text += f"; that needs {'; '.join(code)}"
        return text


def _running_peak(variation: _Variation) -> int:
    return variation.memory.running.peak
