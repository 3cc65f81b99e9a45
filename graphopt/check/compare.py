"""Do two models agree? Both are run by an oracle that rewrites nothing, on the same inputs, and compared.

The oracle is ONNX Runtime with all its optimizations off, for its default level has rewrites, and bugs, of its own; or
`onnx.reference` where ONNX Runtime has no kernel. A model that ONNX Runtime calls invalid has no oracle. Quantized
models are run once more with optimizations on, for ONNX Runtime's kernels for integers compute in less precision than
is written. Others are only loaded so: it may refuse what its own fusions make of a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from graphopt.base.dtype import DType
from graphopt.base.errors import UsageError, quoted_list
from graphopt.check.reruns import (
    FEW_RERUNS,
    MANY_RERUNS,
    ModelReruns,
    distance_key,
    has_data_races,
    is_incomparable,
    widen_tolerance,
)
from graphopt.check.result_distance import (
    DISTANCE_FACTOR,
    ResultDistance,
    as_doubles,
    has_finite_element,
    iter_tensors,
    result_distance,
    zero_signs_differ,
)
from graphopt.check.tolerance import output_tolerances, value_paths
from graphopt.check.verdict import (
    ComparisonCase,
    EqualityVerdict,
    ModelComparison,
    OutputDifference,
    format_variation,
    tolerance_ratio,
)
from graphopt.io import onnx_io
from graphopt.ir import schemas
from graphopt.runtime import model_sketch, sample_inputs
from graphopt.runtime.input_sizes import fit_inputs, input_difference, with_fixed_sizes
from graphopt.runtime.model_sketch import FlatNode, ModelSketch
from graphopt.runtime.oracle import (
    NO_KERNEL_MESSAGES,
    SUBBYTE_DTYPES,
    Oracle,
    OracleSession,
    RunFailedError,
    RunnableModel,
    check_loads_optimized,
    onnx_reference,
    onnxruntime_optimized,
    onnxruntime_single_threaded,
    onnxruntime_unoptimized,
)
from graphopt.runtime.sample_inputs import Binding, Feeds

Source: TypeAlias = "onnx_io.ModelSource | onnx_io.LoadedModel"
"""A model as `onnx_io.load` takes it, or as it returns it."""

MAX_REFERENCE_BYTES = 100_000_000
"""Bytes of weights above which `onnx.reference` is not tried: it is orders of magnitude slower."""
MAX_PERTURBED_BYTES = 500_000_000
"""Bytes of weights above which only the inputs are changed when a model's steadiness is measured."""
DEFAULT_SEEDS = (0, 1, 2)
MAX_TRIED_SIZES = 20
"""Choices of sizes that are tried until the model takes one."""
QUANTIZATION_TOLERANCE, MEAN_QUANTIZATION_TOLERANCE = 16 / 256, 2 / 256
"""Or so far, of the largest element, for more values are rounded to 8 bits than in the original. In small BERTs, ViTs
and GPTs that `quantize_static` made, 1/40 and 1/190 were seen."""
MIN_COMPARED_MAGNITUDE = 1e-3
"""An output that is smaller than this altogether is compared as if it were this large: it may well be noise."""


# -- comparing ---------------------------------------------------------------------------------------------------------


def compare_models(
    original: Source,
    optimized: Source,
    *,
    seeds: Sequence[int] = DEFAULT_SEEDS,
    bindings: Sequence[Binding] | None = None,
    inputs: Mapping[str, Any] | None = None,
    exact: bool = False,
    keep_nonfinite: bool = False,
    progress: Callable[[float], None] | None = None,
) -> ModelComparison:
    """Run both models on the same inputs, one set of them per seed, and say whether all outputs agree.

    `bindings` are sizes for open dims, used in turn; what they leave out is chosen, several times if the model refuses
    it. `inputs` replace made-up ones in every case. `exact` allows no rounding: every bit is to be the same. A model
    that compares or masks its inputs is also fed infinities, NaN and masks that hide a whole row, and one with integer
    inputs the least, the greatest and both in turns. The results of these are compared where the original's are finite,
    and with `keep_nonfinite` everywhere. Neither model is changed.

    Raises:
        UsageError: `inputs` or `bindings` do not fit the model, or onnxruntime is not installed.
        ModelError: a model cannot be read.
    """
    comparer = ModelComparer(
        original,
        seeds=seeds,
        bindings=bindings or ({},),
        inputs=inputs or {},
        exact=exact,
        keep_nonfinite=keep_nonfinite,
    )
    return comparer.compare(optimized, progress)


@dataclass(kw_only=True)
class ModelComparer:
    """Compares models with one original, which runs only once for all of them, as `compare_models` does."""

    original: Source = field(kw_only=False)
    seeds: Sequence[int] = DEFAULT_SEEDS
    bindings: Sequence[Binding] = ({},)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    exact: bool = False
    keep_nonfinite: bool = False
    _reference: _Reference | None = field(default=None, init=False)
    """Results of the original, at the sizes of the last comparison."""

    def compare(self, optimized: Source, progress: Callable[[float], None] | None = None) -> ModelComparison:
        """Compare a model with the original. Raises as `compare_models` does."""
        advance = progress or (lambda _: None)
        advance(0.0)
        second = RunnableModel(optimized, packs=self.exact)
        before, reason = _check_interfaces(self._original_sketch, model_sketch.sketch_model(second.outline))
        if reason:
            return ModelComparison(EqualityVerdict.DIFFERENT, reason=reason)
        plan = _make_plan(before, self.seeds, self.bindings, self.inputs)
        if plan.undrawable:
            reason = f"no values can be made up for {quoted_list(plan.undrawable)}: the type is not a tensor's"
            return ModelComparison(EqualityVerdict.SKIPPED, reason=reason)
        if self._reference is None or self._reference.model.inputs != before.inputs:
            found = self._run_original(before, plan, second, lambda part: advance(part / 2))
            if isinstance(found, ModelComparison):
                return found
            self._reference = found
        return self._reference.compare(second, lambda part: advance((1 + part) / 2))

    @cached_property
    def _runnable(self) -> RunnableModel:
        return RunnableModel(self.original, packs=self.exact)

    @cached_property
    def _original_sketch(self) -> ModelSketch:
        return model_sketch.sketch_model(self._runnable.outline)

    def _run_original(
        self, before: ModelSketch, plan: _Plan, second: RunnableModel, advance: Callable[[float], None]
    ) -> _Reference | ModelComparison:
        """Return what the original makes of the inputs; the verdict where it does not run, which also says whether the
        second does."""
        first, opened = self._runnable, None
        try:
            with _open_in_oracle(first, before) as opened:
                runs = _run_cases(opened.session, plan, advance)
                runs += _run_unusual_cases(opened.session, plan, runs[0])
                runs += _run_least_sizes(opened.session, plan, runs)
        except RunFailedError as failed:
            return _unloadable_verdict(failed, first, second)
        except _AllInputsRefusedError as refused:
            assert opened is not None
            return (
                _unloadable_verdict(opened.failure, first, second)
                if opened.failure
                else _unrunnable_verdict(refused, opened.oracle, second)
            )
        judge = _Judge(first, opened.oracle, before, self.exact, self.keep_nonfinite)
        return _Reference(before, opened.oracle, opened.name, runs, judge)


@dataclass(eq=False)
class _Reference:
    """The original's side of comparisons: what it made of the inputs, and how steady that is."""

    model: ModelSketch
    """The original, with the sizes that those that are compared with it have."""
    oracle: Oracle
    name: str
    """The name of the oracle."""
    runs: list[_OriginalRun]
    judge: _Judge

    def compare(self, second: RunnableModel, advance: Callable[[float], None]) -> ModelComparison:
        """Run another model on the same inputs, and compare."""
        cases, results = tuple(run.case for run in self.runs), []
        try:
            with self.oracle(second) as session:
                for number, run in enumerate(self.runs, 1):
                    results.append(session.run(run.feeds))
                    advance(number / len(self.runs))
        except RunFailedError as failed:
            return ModelComparison(
                EqualityVerdict.DIFFERENT, (), cases, self.name, f"the original runs, but the optimized model {failed}"
            )
        found = self.judge.judge_runs(self.runs, self.reruns, results, self.name, second)
        if found.verdict is not EqualityVerdict.EQUAL or self.oracle is not onnxruntime_unoptimized:
            return found
        return self._compare_optimized(found, second) if second.is_quantized else self._compare_loading(found, second)

    @cached_property
    def reruns(self) -> ModelReruns:
        """Reruns of the original on these inputs."""
        made, feeds = [run.outputs for run in self.runs], [run.feeds for run in self.runs]
        return ModelReruns.from_oracle(self.oracle, self.judge.original, made, feeds)

    def _compare_loading(self, found: ModelComparison, second: RunnableModel) -> ModelComparison:
        """Open another model with ONNX Runtime's optimizations on, as users do: where the original opens, it is to."""
        try:
            check_loads_optimized(second)
        except RunFailedError as failed:
            if self._loads_optimized:
                return replace(found, verdict=EqualityVerdict.DIFFERENT, reason=_refused_optimized("loads", failed))
        return found

    @cached_property
    def _loads_optimized(self) -> bool:
        try:
            check_loads_optimized(self.judge.original)
        except RunFailedError:
            return False
        return True

    def _compare_optimized(self, found: ModelComparison, second: RunnableModel) -> ModelComparison:
        """Compare quantized models once more with ONNX Runtime's optimizations on.

        Its kernels for integers keep biases in 32 bits, and on some processors add up products in 16: models that are
        equal as written may differ by more than a few quanta as they are run.
        """
        try:
            before = self._first_optimized_results
        except RunFailedError as failed:
            skipped = f"the models with ONNX Runtime's optimizations on: the original {failed}"
            return replace(found, skipped=(*found.skipped, skipped))
        try:
            after = self._optimized_results(second)
        except RunFailedError as failed:
            return replace(found, verdict=EqualityVerdict.DIFFERENT, reason=_refused_optimized("runs", failed))
        differences = list(self.judge.compare_optimized_runs(self._finite_runs, [before], after))
        if differences:
            with suppress(RunFailedError):
                both = [before, self._optimized_results(self.judge.original)]
                differences = list(self.judge.compare_optimized_runs(self._finite_runs, both, after))
        return replace(found, verdict=EqualityVerdict.DIFFERENT, outputs=tuple(differences)) if differences else found

    @property
    def _finite_runs(self) -> list[_OriginalRun]:
        return [run for run in self.runs if run.case.values not in sample_inputs.UNUSUAL_STYLES]

    @cached_property
    def _first_optimized_results(self) -> list[list[Any]]:
        """Results of the original on finite inputs with ONNX Runtime's optimizations on. Raises RunFailedError."""
        return self._optimized_results(self.judge.original)

    def _optimized_results(self, model: RunnableModel) -> list[list[Any]]:
        with onnxruntime_optimized(model) as session:
            return [session.run(run.feeds) for run in self._finite_runs]


def _refused_optimized(verb: str, failed: RunFailedError) -> str:
    return f"with ONNX Runtime's optimizations on, the original {verb}, but the optimized model {failed}"


def _check_interfaces(before: ModelSketch, after: ModelSketch) -> tuple[ModelSketch, str]:
    """Return the first model with the sizes that the second one fixes; or why the two cannot be compared."""
    if before.outputs != after.outputs:
        return before, f"the outputs are called {quoted_list(before.outputs)} and {quoted_list(after.outputs)}"
    fixed: dict[str, int] = {}
    names = "the original", "the optimized model"
    common = {item.name for item in before.inputs} & {item.name for item in after.inputs}
    if reason := input_difference(names, before, after, common, fixed):
        return before, reason
    return with_fixed_sizes(before, [after], fixed), ""


# -- running -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Plan:
    """A plan of what the models are run on: seeds, sizes, and the inputs that are given."""

    model: ModelSketch
    seeds: Sequence[int]
    bindings: Sequence[Binding]
    given_feeds: Feeds

    @property
    def undrawable(self) -> list[str]:
        """Inputs that are not given, and of a type for which no values can be made up."""
        return [i.name for i in self.model.required if i.kind == "unknown" and i.name not in self.given_feeds]


@dataclass(frozen=True, slots=True)
class _OriginalRun:
    """A case that the original accepted, and what it made of it."""

    case: ComparisonCase
    feeds: Feeds
    outputs: list[Any]

    @property
    def is_finite(self) -> bool:
        tensors = [leaf for output in self.outputs for _, leaf in iter_tensors(output)]
        return all(
            np.isfinite(as_doubles(leaf)).all() for leaf in tensors if DType.from_numpy(leaf.dtype) is not DType.STRING
        )


def _make_plan(
    model: ModelSketch, seeds: Sequence[int], bindings: Sequence[Binding], given: Mapping[str, Any]
) -> _Plan:
    """Return what is to be run. Raises UsageError where the caller's sizes or inputs do not fit the model."""
    known = {name for binding in sample_inputs.candidate_bindings(model.inputs, 0, {}) for name in binding}
    for name in {name for binding in bindings for name in binding}:
        if name not in known:
            raise UsageError(f"the model has no open dim '{name}'; it has {quoted_list(sorted(known))}")
    feeds, own = fit_inputs(model, given)
    return _Plan(model, seeds, tuple({**binding, **own} for binding in bindings), feeds)


@contextmanager
def _open_in_oracle(source: RunnableModel, model: ModelSketch) -> Iterator[_OpenedModel]:
    """Yield the model in the first oracle that has kernels for it.

    Raises:
        RunFailedError: none can load it, or ONNX Runtime calls it invalid.
    """
    packed = next((item for item in model.inputs if item.dtype in SUBBYTE_DTYPES), None)
    with ExitStack() as stack:
        opened = stack.enter_context(_try_onnxruntime(source))
        failure = opened if isinstance(opened, RunFailedError) else None
        if failure is not None and (failure.is_invalid_model or model.weight_bytes > MAX_REFERENCE_BYTES):
            raise failure
        if not isinstance(opened, RunFailedError) and (packed is None or model.weight_bytes > MAX_REFERENCE_BYTES):
            yield _OpenedModel(onnxruntime_unoptimized, opened, opened.name)
            return
        try:
            session = stack.enter_context(onnx_reference(source))
        except RunFailedError as failed:
            raise failure or failed from failed
        refusal = f"in ONNX Runtime the original {failure}"
        why = f"ONNX Runtime takes no input of {packed.dtype.name}" if packed and failure is None else refusal
        yield _OpenedModel(onnx_reference, session, f"{session.name}, as {why}", failure)


@contextmanager
def _try_onnxruntime(source: RunnableModel) -> Iterator[OracleSession | RunFailedError]:
    """Yield a session of the model in ONNX Runtime, or the reason why it cannot be loaded."""
    with ExitStack() as stack:
        found: OracleSession | RunFailedError
        try:
            found = stack.enter_context(onnxruntime_unoptimized(source))
        except RunFailedError as failed:
            found = failed
        yield found


@dataclass(frozen=True, slots=True)
class _OpenedModel:
    """A model in an oracle."""

    oracle: Oracle
    session: OracleSession
    name: str
    """The name of the oracle, with the reason for it where it is not ONNX Runtime."""
    failure: RunFailedError | None = None
    """ONNX Runtime's reason for not loading it; None where it loads."""


def _run_cases(session: OracleSession, plan: _Plan, advance: Callable[[float], None]) -> list[_OriginalRun]:
    """Return one case per seed that the original accepts; the last feeds its overridable initializers, too."""
    found: list[_OriginalRun] = []
    for number, seed in enumerate(plan.seeds):
        last = number == len(plan.seeds) - 1
        overridden = sorted(session.overridable - plan.given_feeds.keys()) if last else []
        found.append(_first_accepted(session, plan, number, seed, overridden))
        advance((number + 1) / len(plan.seeds))
    return found


def _run_unusual_cases(session: OracleSession, plan: _Plan, run: _OriginalRun) -> list[_OriginalRun]:
    """Return the case of a run once more with infinities and NaN, with masks that hide a row, and with extreme
    integers, where these matter to the model and it accepts them."""
    fed = sample_inputs.extreme_feeds(plan.model, run.feeds, plan.given_feeds) | {
        sample_inputs.NONFINITE: sample_inputs.nonfinite_feeds(plan.model, run.feeds, plan.given_feeds, run.case.seed),
        sample_inputs.HIDDEN: sample_inputs.masked_row_feeds(plan.model, run.feeds, plan.given_feeds),
    }
    found = []
    for values, feeds in fed.items():
        with suppress(RunFailedError):  # as one that takes a NaN for an index
            if feeds is not None:
                found.append(_OriginalRun(replace(run.case, values=values), feeds, session.run(feeds)))
    return found


def _run_least_sizes(session: OracleSession, plan: _Plan, runs: Sequence[_OriginalRun]) -> list[_OriginalRun]:
    """Return cases in which all or some open dims are 1, where the model accepts these: kernels for one row round
    otherwise than those for several."""
    known = [run.case.binding for run in runs]
    found = []
    for binding in sample_inputs.unit_bindings(plan.model.inputs, plan.bindings[0]):
        if binding in known:
            continue
        seed = plan.seeds[0]
        feeds = sample_inputs.make_feeds(
            plan.model, binding, seed=seed, style=sample_inputs.NORMAL, given=plan.given_feeds
        )
        with suppress(RunFailedError):  # as of an image that is smaller than a kernel
            found.append(_OriginalRun(ComparisonCase(seed, binding, sample_inputs.NORMAL), feeds, session.run(feeds)))
    return found


class _AllInputsRefusedError(Exception):
    """The original runs on none of the inputs; holds the first inputs, and why they were refused."""

    def __init__(self, feeds: Feeds, failure: RunFailedError) -> None:
        super().__init__(str(failure))
        self.feeds, self.failure = feeds, failure


def _first_accepted(
    session: OracleSession, plan: _Plan, number: int, seed: int, overridden: Sequence[str]
) -> _OriginalRun:
    """Return the first set of inputs that the original accepts; one with finite results if there is one."""
    styles = (
        (sample_inputs.WIDE, sample_inputs.NORMAL, sample_inputs.SMALL)
        if number % 2
        else (sample_inputs.NORMAL, sample_inputs.SMALL)
    )
    refused: _AllInputsRefusedError | None = None
    bindings = sample_inputs.candidate_bindings(plan.model.inputs, number, plan.bindings[number % len(plan.bindings)])
    for binding in bindings[:MAX_TRIED_SIZES]:
        spare = None
        for style in styles:
            feeds = sample_inputs.make_feeds(plan.model, binding, seed=seed, style=style, given=plan.given_feeds)
            feeds |= sample_inputs.make_overrides(plan.model, overridden, seed=seed, style=style)
            try:
                run = _OriginalRun(ComparisonCase(seed, binding, style, tuple(overridden)), feeds, session.run(feeds))
            except RunFailedError as failure:
                refused = refused or _AllInputsRefusedError(feeds, failure)
                continue
            if run.is_finite:
                return run
            spare = spare or run
        if spare is not None:
            return spare
    assert refused is not None
    raise refused


def _unloadable_verdict(failed: RunFailedError, original: RunnableModel, optimized: RunnableModel) -> ModelComparison:
    """Return the verdict where no oracle can load the original."""
    if failed.is_invalid_model and not original.has_node_names:  # say which node
        with _try_onnxruntime(original.with_node_names()) as named:
            failed = named if isinstance(named, RunFailedError) and named.kind == failed.kind else failed
    reason = f"the original {failed}"
    if any(text in str(failed) for text in NO_KERNEL_MESSAGES):
        hint = "; --custom-ops registers a library of kernels" if NO_KERNEL_MESSAGES[0] in str(failed) else ""
        return ModelComparison(EqualityVerdict.SKIPPED, reason=reason + hint)
    try:
        with onnxruntime_unoptimized(optimized):
            if failed.is_invalid_model:
                reason = f"ONNX Runtime refuses the original: {failed.reason}"
                return ModelComparison(EqualityVerdict.SKIPPED, reason=reason, legal=False)
            return ModelComparison(EqualityVerdict.SKIPPED, reason=f"{reason}; the optimized model can")
    except RunFailedError as other:
        found = replace(_both_failed_verdict(failed, other), legal=False)
        is_same = found.verdict is EqualityVerdict.CANNOT_RUN
        return replace(found, reason=f"ONNX Runtime refuses the model: {failed.reason}") if is_same else found


def _unrunnable_verdict(refused: _AllInputsRefusedError, oracle: Oracle, optimized: RunnableModel) -> ModelComparison:
    """Return the verdict where the original accepts no inputs."""
    try:
        with oracle(optimized) as session:
            session.run(refused.feeds)
    except RunFailedError as other:
        return _both_failed_verdict(refused.failure, other)
    return ModelComparison(
        EqualityVerdict.SKIPPED, reason=f"no inputs were found on which the original runs: it {refused.failure}"
    )


def _both_failed_verdict(failed: RunFailedError, other: RunFailedError) -> ModelComparison:
    if failed.kind == other.kind:
        return ModelComparison(
            EqualityVerdict.CANNOT_RUN, reason=f"the original {failed}; the optimized model fails the same way"
        )
    return ModelComparison(EqualityVerdict.SKIPPED, reason=f"the original {failed}; the optimized model {other}")


# -- judging -----------------------------------------------------------------------------------------------------------


class _Judge:
    """Weighs how far two models are apart against what rounding explains."""

    def __init__(
        self,
        original: RunnableModel,
        oracle: Oracle,
        model: ModelSketch,
        exact: bool,
        keep_nonfinite: bool = False,
    ) -> None:
        self.original, self.oracle, self.model, self.exact = original, oracle, model, exact
        self.is_small = model.weight_bytes <= MAX_PERTURBED_BYTES
        self.keeps_nonfinite = exact or keep_nonfinite
        self.paths = {} if exact else value_paths(model)
        self.tolerances = self._tolerances(alike=False)
        self.incomparable: dict[str, str] = {}
        """Variation of outputs that differ from run to run, by name."""
        self.perturbation_distances: dict[tuple[str, float], list[list[ResultDistance]]] = {}
        self.size_values = sample_inputs.size_values(model)

    @cached_property
    def extreme_tolerances(self) -> dict[str, tuple[float, str]]:
        return self._tolerances(alike=True)

    def _tolerances(self, *, alike: bool) -> dict[str, tuple[float, str]]:
        if self.exact:
            return dict.fromkeys(self.model.outputs, (0.0, "every bit is to be the same"))
        return output_tolerances(self.model, alike=alike, paths=self.paths)

    def judge_runs(
        self,
        runs: Sequence[_OriginalRun],
        original: ModelReruns,
        results: Sequence[list[Any]],
        oracle: str,
        optimized: RunnableModel,
    ) -> ModelComparison:
        random = _random_outputs(self.model)
        feeds = [run.feeds for run in runs]
        reruns = original, ModelReruns.from_oracle(self.oracle, optimized, results, feeds)
        self.incomparable, found = {}, []
        for index, name in enumerate(self.model.outputs):
            seen = []
            for number, (run, result) in enumerate(zip(runs, results, strict=True)):
                gap = self._gap_of(run, run.outputs[index], result[index])
                if name in random and not gap.problem:
                    gap = replace(gap, absolute=0.0)
                difference = self._difference_of(index, run, gap)
                if not difference.ok or (self.exact and name not in random):
                    with suppress(RunFailedError):  # as where there is no more room
                        difference = self._difference_with_reruns(difference, reruns, number, index, run, gap)
                if not difference.ok and not difference.varies:
                    difference = self._difference_with_perturbation(difference, index, run, gap)
                seen.append(difference)
            worst = max(seen, key=lambda difference: (not difference.ok, tolerance_ratio(difference)))
            found.append(replace(worst, varies=max(difference.varies for difference in seen)))
        verdict = EqualityVerdict.EQUAL if all(difference.ok for difference in found) else EqualityVerdict.DIFFERENT
        skipped = [f"the values of output '{name}', which depend on {op}" for name, op in random.items()]
        skipped += [f"the values of output '{name}': {why}" for name, why in self.incomparable.items()]
        skipped += [
            f"how output '{name}' depends on the inputs: it was the same for all"
            for name in self._constant_outputs(runs)
        ]
        return ModelComparison(verdict, tuple(found), tuple(run.case for run in runs), oracle, skipped=tuple(skipped))

    def _gap_of(self, run: _OriginalRun, before: Any, after: Any) -> ResultDistance:
        """Return how far an output is from that of the original, as it is judged."""
        gap = result_distance(before, self._judged_value(run, before, after))
        if self.exact and gap.is_same and zero_signs_differ(before, after):
            return replace(gap, problem="has zeros of another sign")
        return gap

    def _judged_value(self, run: _OriginalRun, before: Any, after: Any) -> Any:
        """Return the result to be judged. Where infinities were fed and the original made some, its own elements stand
        in: rules may make anything of those.

        So they may of the largest number, which a Clip without a bound has for one, and makes of infinities.
        """
        if self.keeps_nonfinite or run.case.values not in sample_inputs.UNUSUAL_STYLES:
            return after
        if not isinstance(before, np.ndarray) or not isinstance(after, np.ndarray) or before.shape != after.shape:
            return after
        if not DType.from_numpy(before.dtype).is_float or before.dtype != after.dtype:
            return after
        largest = float(ml_dtypes.finfo(before.dtype).max)  # type: ignore[no-untyped-call]
        return np.where(np.abs(as_doubles(before)) < largest, after, before)

    def compare_optimized_runs(
        self, runs: Sequence[_OriginalRun], originals: Sequence[Sequence[list[Any]]], optimized: Sequence[list[Any]]
    ) -> Iterator[OutputDifference]:
        """Yield the outputs that ONNX Runtime's optimizations move much farther than in any run of the original."""
        random = _random_outputs(self.model)
        for number, (run, other) in enumerate(zip(runs, optimized, strict=True)):
            for index, name in enumerate(self.model.outputs):
                gap = result_distance(run.outputs[index], other[index])
                usual = max(
                    (result_distance(run.outputs[index], own[number][index]) for own in originals), key=distance_key
                )
                if name not in random and not gap.is_within(usual):
                    found = self._compare_optimized_run(run, index, gap, usual)
                    if not found.ok:
                        yield found

    def _compare_optimized_run(
        self, run: _OriginalRun, index: int, gap: ResultDistance, usual: ResultDistance
    ) -> OutputDifference:
        name = self.model.outputs[index]
        tolerance, _ = self.tolerances[name]
        moved = self._perturbed_gap(run, index, tolerance) or ResultDistance()
        scale = max(gap.scale, MIN_COMPARED_MAGNITUDE)
        allowed = max(
            DISTANCE_FACTOR * max(usual.absolute, moved.absolute, tolerance * scale), QUANTIZATION_TOLERANCE * scale
        )
        few = gap.mean <= max(
            DISTANCE_FACTOR * max(usual.mean, moved.mean, tolerance * scale), MEAN_QUANTIZATION_TOLERANCE * scale
        )
        ok = not gap.problem and gap.absolute <= allowed and few
        detail = gap.problem or f"differs by {gap.absolute:.3g}, by {gap.mean:.3g} in the mean,"
        detail = "" if ok else f"{detail} as ONNX Runtime runs it with its optimizations on, {run.case}"
        why = "some steps of 8 bits, or four times as far as the original is moved by them, or by a small change"
        return OutputDifference(name, gap.dtype, gap.absolute, gap.absolute / scale, allowed / scale, why, ok, detail)

    def _constant_outputs(self, runs: Sequence[_OriginalRun]) -> Iterator[str]:
        """Yield the float outputs that were the same whatever the inputs, or held no numbers: little was seen of how
        these are computed."""
        if len(runs) < 2 or not self.model.required:
            return
        for name, values in zip(self.model.outputs, zip(*(run.outputs for run in runs), strict=True), strict=True):
            gaps = [result_distance(values[0], value) for value in values[1:]]
            is_same = not any(gap.problem or gap.absolute or gap.is_exact for gap in gaps)
            if is_same or not any(map(has_finite_element, values)):
                yield name

    def _difference_of(self, index: int, run: _OriginalRun, gap: ResultDistance) -> OutputDifference:
        """Return the difference of an output, judged by its tolerance."""
        name = self.model.outputs[index]
        tolerance, reason = (
            self.extreme_tolerances if run.case.values in sample_inputs.EXTREME_STYLES else self.tolerances
        )[name]
        allowed, why = (0.0, "exact: no rounding is allowed") if gap.is_exact else (tolerance, reason)
        scale = self._relative_scale(gap)
        relative = gap.absolute / scale
        ok = not gap.problem and relative <= allowed
        far = f"differs by {gap.absolute:.3g} (relative {relative:.2g}, tolerance {allowed:.2g})"
        detail = "" if ok else f"{gap.problem or far}, {run.case}"
        return OutputDifference(name, gap.dtype, gap.absolute, relative, allowed, why, ok, detail)

    def _relative_scale(self, gap: ResultDistance) -> float:
        return max(gap.scale, 1.0 if gap.is_exact else MIN_COMPARED_MAGNITUDE)

    def _difference_with_reruns(
        self,
        found: OutputDifference,
        reruns: tuple[ModelReruns, ModelReruns],
        number: int,
        index: int,
        run: _OriginalRun,
        gap: ResultDistance,
    ) -> OutputDifference:
        """Return the difference of an output, judged by reruns of both models; unchanged if the original does not
        vary."""
        original, optimized = reruns
        if found.ok and original.threaded.variation(number, index, 2).is_same:
            return found
        (before,), (after,) = (each.alone.values(number, index) for each in reruns)
        steady = self._gap_of(run, before, after)
        without = self._difference_of(index, run, steady)
        many = MANY_RERUNS if without.ok and not found.ok else FEW_RERUNS
        count = 1 + (many if self.is_small else 1)
        own = original.threaded.variation(number, index, count)
        if own.is_same and without.ok and has_data_races(self.model):
            own = optimized.threaded.variation(number, index, count)
        if own.is_same:
            return found
        varies = own.absolute / self._relative_scale(gap)
        if original.alone.variation(number, index, 2).is_same:
            without = without if without.ok else self._difference_with_perturbation(without, index, run, steady)
            why = f"{without.why}; compared with one thread, with which it does not vary"
            return replace(without, why=why, varies=varies)
        if is_incomparable(own, self._relative_scale(gap)):
            self.incomparable[found.output] = format_variation(varies)
        return widen_tolerance(found, run.case, gap, own, self._relative_scale(gap))

    def _difference_with_perturbation(
        self, found: OutputDifference, index: int, run: _OriginalRun, gap: ResultDistance
    ) -> OutputDifference:
        """Return the difference of an output, judged by how far a small change moves the original."""
        tolerance, _ = self.tolerances[found.output]
        moved = None if self.exact else self._perturbed_gap(run, index, tolerance)
        if moved is None or not gap.is_within(moved):
            return found
        why = f"the original moves as far if inputs and weights change by {tolerance:.1g} of their size"
        return replace(found, tolerance=moved.absolute / self._relative_scale(gap), why=why, ok=True, detail="")

    def _perturbed_gap(self, run: _OriginalRun, index: int, amount: float) -> ResultDistance | None:
        """Return how far an output of the original moves if its inputs and weights change by its tolerance.

        A model that is ill-conditioned, or jumps, as rounding and TopK do, may move as far by another order of
        additions. None where it refuses the changed inputs.
        """
        key = str(run.case), amount
        if key not in self.perturbation_distances:
            self.perturbation_distances[key] = self._perturbed_gaps(run, amount)
        trials = self.perturbation_distances[key]
        gaps = (trial[index] for trial in trials)
        return max(gaps, key=lambda gap: (not gap.problem, gap.mean, gap.mismatched_elements), default=None)

    def _perturbed_gaps(self, run: _OriginalRun, amount: float) -> list[list[ResultDistance]]:
        """Return how far outputs move, by trial; with one thread where threads may race, for what a race loses is no
        movement."""
        trials, oracle, before = [], self.oracle, run.outputs
        if oracle is onnxruntime_unoptimized and has_data_races(self.model):
            oracle = onnxruntime_single_threaded
            with oracle(self.original) as session:
                before = session.run(run.feeds)
        for seed in (1, 2):
            feeds = sample_inputs.perturb_feeds(run.feeds, amount, seed, self.size_values)
            model = self.original
            if self.model.weight_bytes <= MAX_PERTURBED_BYTES:
                model = model.perturbed(amount, seed, self.size_values)
            try:
                with oracle(model) as session:
                    outputs = session.run(feeds)
            except RunFailedError:
                continue
            trials.append([result_distance(*pair) for pair in zip(before, outputs, strict=True)])
        return trials


def _random_outputs(model: ModelSketch) -> dict[str, str]:
    """Return the outputs that a random operator without a seed reaches, and the operator."""
    reached: dict[str, str] = {}
    for step in model.nodes:
        source = next((reached[name] for name in step.inputs if name in reached), None)
        source = step.op if source is None and _is_random(step, model) else source
        if source is not None:
            reached.update(dict.fromkeys(step.outputs, source))
    return {name: reached[name] for name in model.outputs if name in reached}


def _is_random(step: FlatNode, model: ModelSketch) -> bool:
    if step.node.domain not in ("", "ai.onnx") or any(attribute.name == "seed" for attribute in step.node.attribute):
        return False
    mode = schemas.training_mode_input(step.op)
    if mode is None or mode >= len(step.inputs) or not step.inputs[mode]:
        return schemas.is_random(step.op)
    return model.boolean_constants.get(step.inputs[mode], True)
