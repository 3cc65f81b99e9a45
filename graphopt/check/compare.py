"""Do two models agree? Both are run by an oracle that rewrites nothing, on the same inputs, and compared.

The oracle is ONNX Runtime with all its optimizations off, or `onnx.reference` where ONNX Runtime has no kernel: its
default level has rewrites, and bugs, of its own. A model that ONNX Runtime calls invalid has no oracle. Quantized
models are run once more with optimizations on, for ONNX Runtime's kernels for integers compute with less than what is
written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from graphopt.base.errors import UsageError, listed
from graphopt.base.types import DType
from graphopt.check.gap import FARTHER, Gap, gap_of, has_number, leaves, numbers, zeros_differ
from graphopt.check.replays import FEW_RERUNS, MANY_RERUNS, Reruns, is_incomparable, may_race, severity, widened
from graphopt.check.tolerance import paths_of, tolerances
from graphopt.check.verdict import Case, Comparison, Difference, Verdict, ratio, variation_text
from graphopt.io import onnx_io
from graphopt.ir import ops
from graphopt.runtime import samples, steps
from graphopt.runtime.extremes import extremes
from graphopt.runtime.inputs import differing_inputs, fitted, with_fixed
from graphopt.runtime.oracle import (
    NO_KERNEL,
    PACKED,
    FailedError,
    Oracle,
    Runnable,
    Session,
    onnxruntime_alone,
    onnxruntime_optimized,
    onnxruntime_unoptimized,
    reference,
)
from graphopt.runtime.samples import Binding, Feeds
from graphopt.runtime.steps import Sketch, Step

Source: TypeAlias = "onnx_io.Source | onnx_io.Model"
"""A model as `onnx_io.load` takes it, or as it returns it."""

REFERENCE_LIMIT = 100_000_000
"""Bytes of weights above which `onnx.reference` is not tried: it is orders of magnitude slower."""
PERTURB_LIMIT = 500_000_000
"""Bytes of weights above which only the inputs are changed when a model's steadiness is measured."""
SEEDS = (0, 1, 2)
STEPS, STEPS_IN_MEAN = 16 / 256, 2 / 256
"""Or so far, of the largest element, for more values are rounded to 8 bits than in the original. In small BERTs, ViTs
and GPTs that `quantize_static` made, 1/40 and 1/190 were seen."""
FLOOR = 1e-3
"""An output that is smaller than this altogether is compared as if it were this large: it may well be noise."""


# -- comparing ---------------------------------------------------------------------------------------------------------


def compare(
    original: Source,
    optimized: Source,
    *,
    seeds: Sequence[int] = SEEDS,
    bindings: Sequence[Binding] | None = None,
    inputs: Feeds | None = None,
    exact: bool = False,
    keep_nonfinite: bool = False,
    tries: int = 20,
    progress: Callable[[float], None] | None = None,
) -> Comparison:
    """Run both models on the same inputs, one set of them per seed, and say whether all outputs agree.

    `bindings` are sizes for open dims, used in turn; what they leave out is chosen, `tries` times at most if the model
    refuses it. `inputs` are used in every case in the place of made-up ones. `exact` allows no rounding: every bit is
    to be the same. A model that compares or masks its inputs is also fed infinities, NaN and masks that hide a whole
    row, and one of integers the least, the greatest and both in turns; what it makes of them is compared where its own
    result is finite, and with `keep_nonfinite` everywhere. Neither model is changed.

    Raises:
        UsageError: `inputs` or `bindings` do not fit the model, or onnxruntime is not installed.
        ModelError: a model cannot be read.
    """
    advance = progress or (lambda _: None)
    advance(0.0)
    first, second = Runnable(original, packs=exact), Runnable(optimized, packs=exact)
    before, reason = _comparable(steps.sketch(first.outline), steps.sketch(second.outline))
    if reason:
        return Comparison(Verdict.DIFFERENT, reason=reason)
    plan = replace(_plan(before, seeds, bindings or ({},), inputs or {}), tries=tries)
    if reason := _beyond(plan):
        return Comparison(Verdict.SKIPPED, reason=reason)
    opened: _Opened | None = None
    try:
        with _opened(first, before) as opened:
            runs = _runs(opened.session, plan, lambda part: advance(part / 2))
            runs += _unusual(opened.session, plan, runs[0])
            runs += _least(opened.session, plan, runs)
    except FailedError as failed:
        return _unloadable(_placed(failed, first), second)
    except _RefusedError as refused:
        assert opened is not None
        return _unloadable(opened.failure, second) if opened.failure else _unrunnable(refused, opened.oracle, second)
    oracle, name = opened.oracle, opened.name
    cases = tuple(run.case for run in runs)
    results = []
    try:
        with oracle(second) as session:
            for number, run in enumerate(runs, 1):
                results.append(session.run(run.feeds))
                advance((1 + number / len(runs)) / 2)
    except FailedError as failed:
        return Comparison(Verdict.DIFFERENT, (), cases, name, f"the original runs, but the optimized model {failed}")
    judge = _Judge(first, oracle, before, exact, keep_nonfinite)
    found = judge.verdict(runs, results, name, second)
    if found.verdict is Verdict.EQUAL and oracle is onnxruntime_unoptimized and second.is_quantized:
        return _as_it_is_run(found, first, second, judge, runs)
    return found


def _as_it_is_run(
    found: Comparison, first: Runnable, second: Runnable, judge: _Judge, runs: Sequence[_Run]
) -> Comparison:
    """Compare quantized models once more with ONNX Runtime's optimizations on.

    Its kernels for integers keep biases in 32 bits, and on some processors add up products in 16: what is equal as it
    is written may differ by more than a few quanta as it is run.
    """
    finite = [run for run in runs if run.case.values not in samples.UNUSUAL]

    def results(model: Runnable) -> list[list[Any]]:
        with onnxruntime_optimized(model) as session:
            return [session.run(run.feeds) for run in finite]

    try:
        before = results(first)
    except FailedError as failed:
        skipped = f"the models with ONNX Runtime's optimizations on: the original {failed}"
        return replace(found, skipped=(*found.skipped, skipped))
    try:
        after = results(second)
    except FailedError as failed:
        reason = f"with ONNX Runtime's optimizations on, the original runs, but the optimized model {failed}"
        return replace(found, verdict=Verdict.DIFFERENT, reason=reason)
    differences = list(judge.as_run(finite, [before], after))
    if differences:
        with suppress(FailedError):
            differences = list(judge.as_run(finite, [before, results(first)], after))
    return replace(found, verdict=Verdict.DIFFERENT, outputs=tuple(differences)) if differences else found


def _comparable(before: Sketch, after: Sketch) -> tuple[Sketch, str]:
    """Return the first model with the sizes that the second one fixes; or why the two cannot be compared."""
    if before.outputs != after.outputs:
        return before, f"the outputs are called {listed(before.outputs)} and {listed(after.outputs)}"
    fixed: dict[str, int] = {}
    names = "the original", "the optimized model"
    common = {item.name for item in before.inputs} & {item.name for item in after.inputs}
    if reason := differing_inputs(names, before, after, common, fixed):
        return before, reason
    return with_fixed(before, [after], fixed), ""


# -- running -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Plan:
    """What the models are to be run on."""

    model: Sketch
    seeds: Sequence[int]
    bindings: Sequence[Binding]
    given: Feeds
    tries: int = 1
    """How many bindings may be refused."""


@dataclass(frozen=True, slots=True)
class _Run:
    """A case that the original accepted, and what it made of it."""

    case: Case
    feeds: Feeds
    outputs: list[Any]

    @property
    def is_finite(self) -> bool:
        tensors = [leaf for output in self.outputs for _, leaf in leaves(output)]
        return all(np.isfinite(numbers(leaf)).all() for leaf in tensors if DType.of(leaf.dtype) is not DType.STRING)


def _plan(model: Sketch, seeds: Sequence[int], bindings: Sequence[Binding], given: Feeds) -> _Plan:
    """Return what is to be run. Raises UsageError where the caller's sizes or inputs do not fit the model."""
    known = {name for binding in samples.bindings(model.inputs, 0, {}) for name in binding}
    for name in {name for binding in bindings for name in binding}:
        if name not in known:
            raise UsageError(f"the model has no open dim '{name}'; it has {listed(sorted(known))}")
    feeds, own = fitted(model, given)
    return _Plan(model, seeds, tuple({**binding, **own} for binding in bindings), feeds)


def _beyond(plan: _Plan) -> str:
    """Why no inputs can be made up."""
    strange = [item.name for item in plan.model.required if item.kind == "unknown" and item.name not in plan.given]
    return f"no values can be made up for {listed(strange)}: the type is not a tensor's" if strange else ""


@contextmanager
def _opened(source: Runnable, model: Sketch) -> Iterator[_Opened]:
    """Yield the model in the first oracle that has kernels for it.

    Raises:
        FailedError: none can load it, or ONNX Runtime calls it invalid.
    """
    packed = next((item for item in model.inputs if item.dtype in PACKED), None)
    with ExitStack() as stack:
        opened = stack.enter_context(_loaded(source))
        failure = opened if isinstance(opened, FailedError) else None
        if failure is not None and (failure.is_of_invalid_model or model.weight_bytes > REFERENCE_LIMIT):
            raise failure
        if not isinstance(opened, FailedError) and (packed is None or model.weight_bytes > REFERENCE_LIMIT):
            yield _Opened(onnxruntime_unoptimized, opened, opened.name)
            return
        try:
            session = stack.enter_context(reference(source))
        except FailedError as failed:
            raise failure or failed from failed
        refusal = f"in ONNX Runtime the original {failure}"
        why = f"ONNX Runtime takes no input of {packed.dtype.name}" if packed and failure is None else refusal
        yield _Opened(reference, session, f"{session.name}, as {why}", failure)


@contextmanager
def _loaded(source: Runnable) -> Iterator[Session | FailedError]:
    """Yield the model in ONNX Runtime, or why that cannot load it."""
    with ExitStack() as stack:
        found: Session | FailedError
        try:
            found = stack.enter_context(onnxruntime_unoptimized(source))
        except FailedError as failed:
            found = failed
        yield found


@dataclass(frozen=True, slots=True)
class _Opened:
    """A model in an oracle."""

    oracle: Oracle
    session: Session
    name: str
    """The name of the oracle, with the reason for it where it is not ONNX Runtime."""
    failure: FailedError | None = None
    """Why ONNX Runtime cannot load it."""


def _runs(session: Session, plan: _Plan, advance: Callable[[float], None]) -> list[_Run]:
    """One case per seed that the original accepts; the last feeds its overridable initializers, too."""
    found: list[_Run] = []
    for number, seed in enumerate(plan.seeds):
        last = number == len(plan.seeds) - 1
        overridden = sorted(session.overridable - plan.given.keys()) if last else []
        found.append(_first_accepted(session, plan, number, seed, overridden))
        advance((number + 1) / len(plan.seeds))
    return found


def _unusual(session: Session, plan: _Plan, run: _Run) -> list[_Run]:
    """Return the case of a run once more with infinities and NaN, with masks that hide a row, and with extreme
    integers, where the model minds and accepts these."""
    fed = extremes(plan.model, run.feeds, plan.given) | {
        samples.NONFINITE: samples.nonfinite(plan.model, run.feeds, plan.given, run.case.seed),
        samples.HIDDEN: samples.hidden(plan.model, run.feeds, plan.given),
    }
    found = []
    for values, feeds in fed.items():
        with suppress(FailedError):  # as one that takes a NaN for an index
            if feeds is not None:
                found.append(_Run(replace(run.case, values=values), feeds, session.run(feeds)))
    return found


def _least(session: Session, plan: _Plan, runs: Sequence[_Run]) -> list[_Run]:
    """Return cases in which open dims are 1, all of them and some, where the model accepts these: kernels for one row
    round otherwise than those for several."""
    known = [run.case.binding for run in runs]
    found = []
    for binding in samples.least_bindings(plan.model.inputs, plan.bindings[0]):
        if binding in known:
            continue
        seed = plan.seeds[0]
        feeds = samples.feeds(plan.model, binding, seed=seed, style=samples.NORMAL, given=plan.given)
        with suppress(FailedError):  # as of an image that is smaller than a kernel
            found.append(_Run(Case(seed, binding, samples.NORMAL), feeds, session.run(feeds)))
    return found


class _RefusedError(Exception):
    """The original runs on none of the inputs; holds the first, and what it had against them."""

    def __init__(self, feeds: Feeds, failure: FailedError) -> None:
        super().__init__(str(failure))
        self.feeds, self.failure = feeds, failure


def _first_accepted(session: Session, plan: _Plan, number: int, seed: int, overridden: Sequence[str]) -> _Run:
    """Return the first set of inputs that the original accepts; one with finite results if there is one."""
    styles = (samples.WIDE, samples.NORMAL, samples.SMALL) if number % 2 else (samples.NORMAL, samples.SMALL)
    refused: _RefusedError | None = None
    bindings = samples.bindings(plan.model.inputs, number, plan.bindings[number % len(plan.bindings)])
    for binding in bindings[: plan.tries]:
        spare = None
        for style in styles:
            feeds = samples.feeds(plan.model, binding, seed=seed, style=style, given=plan.given)
            feeds |= samples.overrides(plan.model, overridden, seed=seed, style=style)
            try:
                run = _Run(Case(seed, binding, style, tuple(overridden)), feeds, session.run(feeds))
            except FailedError as failure:
                refused = refused or _RefusedError(feeds, failure)
                continue
            if run.is_finite:
                return run
            spare = spare or run
        if spare is not None:
            return spare
    assert refused is not None
    raise refused


def _placed(failed: FailedError, original: Runnable) -> FailedError:
    """Return why ONNX Runtime calls a model invalid, with the name of the node."""
    if failed.is_of_invalid_model and not original.has_node_names:
        with _loaded(original.with_node_names()) as found:
            return found if isinstance(found, FailedError) and found.kind == failed.kind else failed
    return failed


def _unloadable(failed: FailedError, optimized: Runnable) -> Comparison:
    """Return the verdict where no oracle can load the original."""
    reason = f"the original {failed}"
    if any(text in str(failed) for text in NO_KERNEL):
        hint = "; --custom-ops registers a library of kernels" if NO_KERNEL[0] in str(failed) else ""
        return Comparison(Verdict.SKIPPED, reason=reason + hint)
    try:
        with onnxruntime_unoptimized(optimized):
            if failed.is_of_invalid_model:
                reason = f"ONNX Runtime refuses the original: {failed.reason}"
                return Comparison(Verdict.SKIPPED, reason=reason, legal=False)
            return Comparison(Verdict.SKIPPED, reason=f"{reason}; the optimized model can")
    except FailedError as other:
        found = replace(_both_failed(failed, other), legal=False)
        is_same = found.verdict is Verdict.CANNOT_RUN
        return replace(found, reason=f"ONNX Runtime refuses the model: {failed.reason}") if is_same else found


def _unrunnable(refused: _RefusedError, oracle: Oracle, optimized: Runnable) -> Comparison:
    """Return the verdict where the original accepts no inputs."""
    try:
        with oracle(optimized) as session:
            session.run(refused.feeds)
    except FailedError as other:
        return _both_failed(refused.failure, other)
    return Comparison(Verdict.SKIPPED, reason=f"no inputs were found on which the original runs: it {refused.failure}")


def _both_failed(failed: FailedError, other: FailedError) -> Comparison:
    if failed.kind == other.kind:
        return Comparison(Verdict.CANNOT_RUN, reason=f"the original {failed}; the optimized model fails the same way")
    return Comparison(Verdict.SKIPPED, reason=f"the original {failed}; the optimized model {other}")


# -- judging -----------------------------------------------------------------------------------------------------------


class _Judge:
    """Weighs how far two models are apart against what rounding explains."""

    def __init__(
        self,
        original: Runnable,
        oracle: Oracle,
        model: Sketch,
        exact: bool,
        keep_nonfinite: bool = False,
    ) -> None:
        self.original, self.oracle, self.model, self.exact = original, oracle, model, exact
        self.is_small = model.weight_bytes <= PERTURB_LIMIT
        self.keeps_nonfinite = exact or keep_nonfinite
        self.paths = {} if exact else paths_of(model)
        self.tolerances = self._tolerances(alike=False)
        self.incomparable: dict[str, str] = {}
        """How outputs vary that hold something else in each run."""
        self.moves: dict[tuple[str, float], list[list[Gap]]] = {}
        self.fixed = samples.telling_sizes(model)

    @cached_property
    def at_extremes(self) -> dict[str, tuple[float, str]]:
        return self._tolerances(alike=True)

    def _tolerances(self, *, alike: bool) -> dict[str, tuple[float, str]]:
        if self.exact:
            return dict.fromkeys(self.model.outputs, (0.0, "every bit is to be the same"))
        return tolerances(self.model, alike=alike, paths=self.paths)

    def verdict(
        self, runs: Sequence[_Run], results: Sequence[list[Any]], oracle: str, optimized: Runnable
    ) -> Comparison:
        random = _random_outputs(self.model)
        made = [run.outputs for run in runs]
        reruns = Reruns.of(self.oracle, (self.original, made), (optimized, results), [run.feeds for run in runs])
        found = []
        for index, name in enumerate(self.model.outputs):
            seen = []
            for number, (run, result) in enumerate(zip(runs, results, strict=True)):
                gap = self._gap(run, run.outputs[index], result[index])
                if name in random and not gap.problem:
                    gap = replace(gap, absolute=0.0)
                difference = self._difference(index, run, gap)
                if not difference.ok or (self.exact and name not in random):
                    with suppress(FailedError):  # as where there is no more room
                        difference = self._rerun(difference, reruns, number, index, run, gap)
                if not difference.ok and not difference.varies:
                    difference = self._moving(difference, index, run, gap)
                seen.append(difference)
            worst = max(seen, key=lambda difference: (not difference.ok, ratio(difference)))
            found.append(replace(worst, varies=max(difference.varies for difference in seen)))
        verdict = Verdict.EQUAL if all(difference.ok for difference in found) else Verdict.DIFFERENT
        skipped = [f"the values of output '{name}', which depend on {op}" for name, op in random.items()]
        skipped += [f"the values of output '{name}': {why}" for name, why in self.incomparable.items()]
        skipped += [
            f"how output '{name}' depends on the inputs: it was the same for all" for name in self._constant(runs)
        ]
        return Comparison(verdict, tuple(found), tuple(run.case for run in runs), oracle, skipped=tuple(skipped))

    def _gap(self, run: _Run, before: Any, after: Any) -> Gap:
        """Return how far an output is from that of the original, as it is judged."""
        gap = gap_of(before, self._judged(run, before, after))
        if self.exact and gap.is_same and zeros_differ(before, after):
            return replace(gap, problem="has zeros of another sign")
        return gap

    def _judged(self, run: _Run, before: Any, after: Any) -> Any:
        """Return what is judged of a result: what rules may make of infinities that were fed is what the original made.

        So is what they may make of the largest number: a Clip without a bound has it for one, and makes it of those.
        """
        if self.keeps_nonfinite or run.case.values not in samples.UNUSUAL:
            return after
        if not isinstance(before, np.ndarray) or not isinstance(after, np.ndarray) or before.shape != after.shape:
            return after
        if not DType.of(before.dtype).is_float or before.dtype != after.dtype:
            return after
        largest = float(ml_dtypes.finfo(before.dtype).max)  # type: ignore[no-untyped-call]
        return np.where(np.abs(numbers(before)) < largest, after, before)

    def as_run(
        self, runs: Sequence[_Run], originals: Sequence[Sequence[list[Any]]], optimized: Sequence[list[Any]]
    ) -> Iterator[Difference]:
        """Yield the outputs that ONNX Runtime's optimizations move much farther than in any run of the original."""
        random = _random_outputs(self.model)
        for number, (run, other) in enumerate(zip(runs, optimized, strict=True)):
            for index, name in enumerate(self.model.outputs):
                gap = gap_of(run.outputs[index], other[index])
                usual = max((gap_of(run.outputs[index], own[number][index]) for own in originals), key=severity)
                if name not in random and not gap.within(usual):
                    found = self._as_run(run, index, gap, usual)
                    if not found.ok:
                        yield found

    def _as_run(self, run: _Run, index: int, gap: Gap, usual: Gap) -> Difference:
        name = self.model.outputs[index]
        tolerance, _ = self.tolerances[name]
        moved = self._moved(run, index, tolerance) or Gap()
        scale = max(gap.scale, FLOOR)
        allowed = max(FARTHER * max(usual.absolute, moved.absolute, tolerance * scale), STEPS * scale)
        few = gap.mean <= max(FARTHER * max(usual.mean, moved.mean, tolerance * scale), STEPS_IN_MEAN * scale)
        ok = not gap.problem and gap.absolute <= allowed and few
        detail = gap.problem or f"differs by {gap.absolute:.3g}, by {gap.mean:.3g} in the mean,"
        detail = "" if ok else f"{detail} as ONNX Runtime runs it with its optimizations on, {run.case}"
        why = "some steps of 8 bits, or four times as far as the original is moved by them, or by a small change"
        return Difference(name, gap.dtype, gap.absolute, gap.absolute / scale, allowed / scale, why, ok, detail)

    def _constant(self, runs: Sequence[_Run]) -> Iterator[str]:
        """Yield the float outputs that were the same whatever the inputs, or no numbers: of how they are computed,
        little was seen."""
        if len(runs) < 2 or not self.model.required:
            return
        for name, values in zip(self.model.outputs, zip(*(run.outputs for run in runs), strict=True), strict=True):
            gaps = [gap_of(values[0], value) for value in values[1:]]
            is_same = not any(gap.problem or gap.absolute or gap.is_exact for gap in gaps)
            if is_same or not any(map(has_number, values)):
                yield name

    def _difference(self, index: int, run: _Run, gap: Gap) -> Difference:
        """Return what is said of a gap by the tolerance of its output."""
        name = self.model.outputs[index]
        tolerance, reason = (self.at_extremes if run.case.values in samples.EXTREME else self.tolerances)[name]
        allowed, why = (0.0, "exact: no rounding is allowed") if gap.is_exact else (tolerance, reason)
        scale = self._scale(gap)
        relative = gap.absolute / scale
        ok = not gap.problem and relative <= allowed
        far = f"differs by {gap.absolute:.3g} (relative {relative:.2g}, tolerance {allowed:.2g})"
        detail = "" if ok else f"{gap.problem or far}, {run.case}"
        return Difference(name, gap.dtype, gap.absolute, relative, allowed, why, ok, detail)

    def _scale(self, gap: Gap) -> float:
        return max(gap.scale, 1.0 if gap.is_exact else FLOOR)

    def _rerun(self, found: Difference, reruns: Reruns, number: int, index: int, run: _Run, gap: Gap) -> Difference:
        """Return what is said of an output when the models are run again; the same if the original does not vary."""
        if found.ok and reruns.original.variation(number, index, 2).is_same:
            return found
        (before,), (after,) = (
            replays.values(number, index) for replays in (reruns.original_alone, reruns.optimized_alone)
        )
        steady = self._gap(run, before, after)
        without = self._difference(index, run, steady)
        many = MANY_RERUNS if without.ok and not found.ok else FEW_RERUNS
        races = without.ok and may_race(self.model)
        own = reruns.variation(number, index, 1 + (many if self.is_small else 1), may_race=races)
        if own.is_same:
            return found
        varies = own.absolute / self._scale(gap)
        if reruns.original_alone.variation(number, index, 2).is_same:
            without = without if without.ok else self._moving(without, index, run, steady)
            why = f"{without.why}; compared with one thread, with which it does not vary"
            return replace(without, why=why, varies=varies)
        if is_incomparable(own, self._scale(gap)):
            self.incomparable[found.output] = variation_text(varies)
        return widened(found, run.case, gap, own, self._scale(gap))

    def _moving(self, found: Difference, index: int, run: _Run, gap: Gap) -> Difference:
        """Return what is said of a gap by how far a small change moves the original."""
        tolerance, _ = self.tolerances[found.output]
        moved = None if self.exact else self._moved(run, index, tolerance)
        if moved is None or not gap.within(moved):
            return found
        why = f"the original moves as far if inputs and weights change by {tolerance:.1g} of their size"
        return replace(found, tolerance=moved.absolute / self._scale(gap), why=why, ok=True, detail="")

    def _moved(self, run: _Run, index: int, amount: float) -> Gap | None:
        """How far an output of the original moves if its inputs and weights change by as little as its tolerance.

        What an ill-conditioned model, or one that jumps, as rounding and TopK do, makes of such a change, it may also
        make of another order of additions. None where it refuses the changed inputs.
        """
        key = str(run.case), amount
        if key not in self.moves:
            self.moves[key] = self._trials(run, amount)
        trials = self.moves[key]
        gaps = (trial[index] for trial in trials)
        return max(gaps, key=lambda gap: (not gap.problem, gap.mean, gap.wrong), default=None)

    def _trials(self, run: _Run, amount: float) -> list[list[Gap]]:
        """Return how far outputs move, by trial; with one thread where several may race, for what these lose is no
        movement."""
        trials, oracle, before = [], self.oracle, run.outputs
        if oracle is onnxruntime_unoptimized and may_race(self.model):
            oracle = onnxruntime_alone
            with oracle(self.original) as session:
                before = session.run(run.feeds)
        for seed in (1, 2):
            feeds = samples.perturbed(run.feeds, amount, seed, self.fixed)
            model = self.original
            if self.model.weight_bytes <= PERTURB_LIMIT:
                model = model.perturbed(amount, seed, self.fixed)
            try:
                with oracle(model) as session:
                    outputs = session.run(feeds)
            except FailedError:
                continue
            trials.append([gap_of(*pair) for pair in zip(before, outputs, strict=True)])
        return trials


def _random_outputs(model: Sketch) -> dict[str, str]:
    """Return the outputs that a random operator without a seed reaches, and the operator."""
    reached: dict[str, str] = {}
    for step in model.steps:
        source = next((reached[name] for name in step.inputs if name in reached), None)
        source = step.op if source is None and _is_random(step, model) else source
        if source is not None:
            reached.update(dict.fromkeys(step.outputs, source))
    return {name: reached[name] for name in model.outputs if name in reached}


def _is_random(step: Step, model: Sketch) -> bool:
    if step.node.domain not in ("", "ai.onnx") or any(attribute.name == "seed" for attribute in step.node.attribute):
        return False
    mode = ops.training_mode(step.op)
    if mode is None or mode >= len(step.inputs) or not step.inputs[mode]:
        return ops.is_random(step.op)
    return model.truths.get(step.inputs[mode], True)
