"""The check of a result: is it the model that was given? If not, which rewrite is to blame?"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from graphopt.base import limits
from graphopt.base.errors import DifferenceError, ModelError
from graphopt.check.compare import ModelComparer
from graphopt.check.patch_models import compare_region
from graphopt.check.verdict import EqualityVerdict, ModelComparison, format_comparison
from graphopt.io import onnx_io
from graphopt.ir.graph import Graph
from graphopt.rewrite.candidates import Candidate
from graphopt.rewrite.definition_expansion import OperatorKey, replace_by_definitions
from graphopt.rewrite.refused_changes import RefusedRewrite, format_replaced_values
from graphopt.rewrite.simplify import Step


@dataclass(frozen=True)
class CheckResult:
    """Findings of the check: the comparison, and the step to blame where the models differ.

    There is none to blame if loading and saving alone makes the difference.
    """

    comparison: ModelComparison
    culprit: Step | None = None

    @property
    def is_different(self) -> bool:
        return self.comparison.verdict is EqualityVerdict.DIFFERENT

    @property
    def to_error(self) -> DifferenceError:
        """The difference as an error, which names the first rewrite that makes it."""
        if self.culprit is None:
            blame = "No rewrite made the difference: it is there after loading and saving alone"
        else:
            leave_out = f"--skip {self.culprit.name} leaves it out"
            culprit = refused_rewrite(self.culprit, self.comparison)
            blame = f"The first difference is made by {culprit}; {leave_out}"
        return DifferenceError(f"the optimized model is {format_comparison(self.comparison)}. {blame}")


class _ExpansionFailedError(Exception):
    """An operator without a kernel cannot be replaced by its definition."""


@dataclass(frozen=True)
class Check:
    """The comparison of a result with the original: whole where that can be, else rewrite by rewrite."""

    original: onnx_io.ModelSource
    loaded: onnx_io.LoadedModel
    weight_bytes: int
    """Bytes of the original's weights."""
    result: Candidate
    """The candidate that was made of the loaded model's graph."""
    seed: int
    inputs: Mapping[str, Any] | None
    exact: bool
    keep_nonfinite: bool
    report_progress: Callable[[str, float], None]
    opset: int | None = None
    """Opset to which the loaded model was converted, before any step; None for its own."""
    replaced: Collection[OperatorKey] = ()
    """Operators without a kernel here: their definitions are run in their places."""

    @property
    def _seeds(self) -> tuple[int, int]:
        return self.seed, self.seed + 1

    def compare(self) -> CheckResult:
        """Compare, and find the step to blame where the models differ."""
        try:
            found = self._compare()
        except _ExpansionFailedError as error:
            return CheckResult(ModelComparison(EqualityVerdict.SKIPPED, reason=str(error)))
        names = tuple(f"{domain}.{op}" for op, domain in self.replaced)
        return replace(found, comparison=replace(found.comparison, replaced=names))

    def _compare(self) -> CheckResult:
        if self.weight_bytes > limits.MAX_TIMED_WEIGHT_BYTES:
            # unchanged, it is equal all the same
            return self._compare_by_region("the model is too large to be run twice")
        found = self._compare_whole(self.result.graph)
        if not found.legal:
            return CheckResult(found)
        fails_alike = found.verdict is EqualityVerdict.CANNOT_RUN and self.result.steps
        if found.verdict is EqualityVerdict.SKIPPED or fails_alike:
            finding = self._compare_by_region(found.reason)
            if self.result.steps:
                return finding
            return replace(finding, comparison=replace(finding.comparison, verdict=EqualityVerdict.SKIPPED))
        if found.verdict is EqualityVerdict.DIFFERENT:
            return CheckResult(found, self._find_culprit())
        return CheckResult(found)

    def _compare_whole(self, graph: Graph) -> ModelComparison:
        model = self._by_definition(replace(self.loaded, graph=graph))
        return self._comparer.compare(model, lambda done: self.report_progress("check", done))

    @cached_property
    def _comparer(self) -> ModelComparer:
        original, graphs = self.original, self.loaded.graph.graphs()
        if any((node.op, node.domain) in self.replaced for graph in graphs for _, node in graph.nodes()):
            original = self._by_definition(self.loaded)
        return ModelComparer(
            original,
            seeds=self._seeds,
            inputs=dict(self.inputs or {}),
            exact=self.exact,
            keep_nonfinite=self.keep_nonfinite,
        )

    def _by_definition(self, model: onnx_io.LoadedModel) -> onnx_io.LoadedModel:
        """Return a model that can be run here: with the definitions of operators that have no kernel."""
        if not self.replaced:
            return model
        try:
            return replace(model, graph=replace_by_definitions(model.graph, self.replaced))
        except ModelError as error:
            raise _ExpansionFailedError(str(error)) from error

    def _compare_by_region(self, why: str) -> CheckResult:
        """Compare what each rewrite took out with what it put in, as small models of their own, from the last one
        backwards."""
        skipped = [] if self.opset is None else [f"the conversion to opset {self.opset}"]
        if self.loaded.inlined:
            skipped.append("the inlining of local functions")
        compared, worst, oracles = 0, [], dict[str, None]()
        count = len(self.result.steps)
        with closing(self.result.iter_steps_backwards()) as steps:
            for done, step in enumerate(steps, start=1):
                found = self._compare_step(step)
                if found.verdict is EqualityVerdict.DIFFERENT:
                    return CheckResult(found, step)
                if found.verdict is EqualityVerdict.EQUAL:
                    compared += 1
                    oracles |= dict.fromkeys([found.oracle] if found.oracle else [])
                    worst += [found.worst] if found.worst else []
                else:
                    skipped.append(f"{step.name} at {format_replaced_values(step.patch)}: {found.reason}")
                self.report_progress("check", done / count)
        outputs = sorted(worst, key=lambda difference: difference.relative / (difference.tolerance or 1))[-1:]
        note = f"{why}, so {compared} of {count} rewrites were compared on their own"
        note = note if count else f"no rewrite was made, and {why}"
        verdict = EqualityVerdict.SKIPPED if skipped else EqualityVerdict.EQUAL
        oracle = "; ".join(oracles)
        return CheckResult(ModelComparison(verdict, tuple(outputs), oracle=oracle, reason=note, skipped=tuple(skipped)))

    def _compare_step(self, step: Step) -> ModelComparison:
        """Return the verdict on one rewrite."""
        try:
            return compare_region(
                step.graph,
                step.patch,
                any_values=step.is_rule,
                exact=self.exact,
                keep_nonfinite=self.keep_nonfinite,
                seeds=self._seeds,
                prepare=self._by_definition,
            )
        except (ModelError, _ExpansionFailedError) as error:
            return ModelComparison(EqualityVerdict.SKIPPED, reason=str(error))

    def _find_culprit(self) -> Step | None:
        """Return the first step after which the models differ; None where they do before any."""

        def differs_after(count: int) -> bool:
            with self.result.graph_after(count) as graph:
                return self._compare_whole(graph).verdict is EqualityVerdict.DIFFERENT

        if differs_after(0):
            return None
        steps = self.result.steps  # after all of them the models differ
        return steps[bisect_left(range(1, len(steps)), True, key=differs_after)]


def refused_rewrite(step: Step, found: ModelComparison) -> RefusedRewrite:
    """Return a step that makes a difference as a rewrite that is refused, where it was made."""
    values, difference = format_replaced_values(step.patch), format_comparison(found)
    return RefusedRewrite(step.name, step.is_rule, values, difference=difference)
