"""Search, then the last word: from a simplified model to the fastest version of it, or to the original."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import psutil
from onnx import ModelProto

from graphopt import onnx_io, recall, samples
from graphopt.analytic import Analytic
from graphopt.bench import Prepared, prepared
from graphopt.cache import Cache
from graphopt.choose import LEAST, Chooser, Contest, Group, Timing, Version
from graphopt.cost import CostModel, key_of, user_cache
from graphopt.errors import ModelError, UsageError
from graphopt.fixpoint import Allows, Simplifier, Step
from graphopt.inputs import default_sizes, fitted, wanted_sizes
from graphopt.machine import Machine, circumstances
from graphopt.measured import Measured
from graphopt.passes import Pass
from graphopt.regions import digest, weights_digest
from graphopt.rewrite import Refusal
from graphopt.rule import Rule
from graphopt.search import Exploration, Limits, Shapes, Solution, Space, StopReason, apply, explore
from graphopt.sessions import Setting
from graphopt.sweep import Sweep, Sweeps, sweep

COSTS = ("measured", "analytic", "none")
"""What the search asks: ONNX Runtime, an estimate, or nobody, which means no search and no timing."""

LARGE = 1_500_000_000
"""Bytes of weights above which a model is not timed: ONNX Runtime takes no more than 2 GB that is not in a file."""

ROOM = 10
"""So many times its weights a model takes while it is timed: in each of three sessions those in the file, those that
were read and those that were packed. Measured: 3.0 GB for 0.31 GB of weights."""

SHARE = 0.6
"""Of the time that sweeps leave, without what the last word takes at least, for the search; the rest is for that."""

RUNS = 40
"""So many runs fit into the time, at least: a model that is slower than that is not timed. Two races of the original
and the simplified model take a few less."""

LONGEST = 3.0
"""Seconds for which one version is timed against the original, at most."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """What is wanted of the search."""

    cost: str = "measured"
    setting: Setting = field(default_factory=lambda: Setting(threads=0))
    seconds: float = 60.0
    sizes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Of open dims, by name; several are each measured, and count the same."""
    inputs: Mapping[str, Any] | None = None
    seed: int = 0
    admits: str = "proved"
    """Which rules: a search among others may have found something else."""

    def __post_init__(self) -> None:
        if self.cost not in COSTS:
            raise UsageError(f"there is no cost '{self.cost}'; there is {', '.join(COSTS)}")
        if self.cost != "none" and not self.seconds > 0:
            raise UsageError(f"a search needs more than {self.seconds:g} seconds (cost none: no search and no timing)")
        if self.cost == "measured":
            _ = self.setting.provider_name  # where it is missing, that is said now, not when the work is done


@dataclass(frozen=True)
class Tuned:
    """What came of it: the graph is at the end of these steps."""

    steps: tuple[Step, ...]
    timing: Timing | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tuner:
    """Tunes one model. `simplified` made the steps that the graph is at the end of."""

    original: onnx_io.Source
    model: onnx_io.Model
    rules: Sequence[Rule]
    trades: Sequence[Rule]
    passes: Sequence[Pass]
    allows: Allows
    tuning: Tuning
    progress: Callable[[str, float], None] = lambda stage, done: None
    refusal: Refusal | None = None
    sweeps: Sweeps = field(default_factory=dict)
    """Timed only: what they bring is in what ONNX Runtime then fuses or leaves, of which the estimate knows nothing."""
    clock: Callable[[], float] = time.monotonic
    cache: Cache = field(default_factory=user_cache)

    def tune(self, simplified: Sequence[Step]) -> Tuned:
        """Find the fastest version and leave the graph there.

        Raises:
            UsageError: this onnxruntime lacks the provider, or the model has no such dim.
        """
        deadline = self.clock() + self.tuning.seconds
        reason = self._too_large()
        if self.tuning.cost == "measured" and reason:
            return Tuned(tuple(simplified), notes=(reason,))
        result = onnx_io.to_proto(self.model)
        if self.tuning.cost == "analytic":
            shapes = [_shapes(fed) for fed in self._inputs(samples.sketch(result))]
            return self._estimated(simplified, self._explored(shapes, deadline))
        self.progress("time", 0.0)
        try:
            ready = self._prepared(result)
            chooser = self._chooser(Version(tuple(simplified)), ready)
            chooser.reserve = LEAST * chooser.contest.pace(self.clock).seconds
        except ModelError as error:
            return Tuned(tuple(simplified), notes=(f"not timed: {error}",))
        first = Version(tuple(simplified))
        chooser.enter(first)
        chooser.seconds = min(LONGEST, self.tuning.seconds / 16)
        has_time = chooser.reserve <= self.tuning.seconds
        swept = chooser.sweep(first, self._sweeps() if has_time else ())
        found = Exploration((), StopReason.INTERRUPTED)
        if not chooser.is_hurried:
            shapes = [_shapes(trial.feeds) for trial in ready.trials]
            found = self._recalled(chooser.contest.digest, shapes, deadline - chooser.reserve)
        chooser.seconds = min(LONGEST, max(deadline - self.clock(), 0.0) / 8)
        chooser.deadline = deadline
        if found.stop is StopReason.INTERRUPTED:
            chooser.hurry()
        return self._chosen(chooser, first, swept, found)

    def _prepared(self, result: ModelProto) -> Prepared:
        """The original in a session, with inputs that it accepts.

        Raises:
            ModelError: ONNX Runtime refuses it, or all inputs that were made up.
        """
        wanted = self.tuning
        return prepared(
            [self.original],
            wanted.setting,
            dims=wanted.sizes,
            inputs=wanted.inputs,
            seed=wanted.seed,
            also=[result],
            limit=wanted.seconds / RUNS,
        )

    def _inputs(self, model: samples.Sketch) -> Iterator[samples.Feeds]:
        """Inputs at the wanted sizes, each count, and at usual ones where nothing was said; none is run.

        Raises:
            UsageError: the model has no such dim or input, or they do not fit.
        """
        given, own = fitted(model, self.tuning.inputs or {})
        for binding in wanted_sizes(model, self.tuning.sizes, own):
            sizes = binding | default_sizes(model, binding)
            yield samples.feeds(model, sizes, seed=0, style=samples.NORMAL, given=given)

    def _too_large(self) -> str:
        weights = self.model.graph.weight_bytes
        if weights > LARGE:
            return f"not timed: {weights / 1e9:.1f} GB of weights are too much"
        free = psutil.virtual_memory().available
        if ROOM * weights <= free:
            return ""
        return f"not timed: that takes {ROOM * weights / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free"

    @property
    def _space(self) -> Space:
        """What the search may do. What pays all over the model alone is for sweeps: it would multiply the graphs."""
        swept = {rule.name for rules in self.sweeps.values() for rule in rules}
        trades = [rule for rule in self.trades if rule.name not in swept]
        return Space(trades, Simplifier(self.rules, self.passes, self.allows, self.refusal), self.allows)

    def _cost(self) -> CostModel:
        if self.tuning.cost == "analytic":
            return Analytic(Machine())
        return Measured(
            self.tuning.setting,
            machine=Machine.calibrated(self.tuning.setting, self.cache),
            cache=self.cache,
            seed=self.tuning.seed,
        )

    def _sweeps(self) -> Iterator[Callable[[], Sweep | None]]:
        """Each makes a sweep in the graph as it is then."""
        for name, rules in self.sweeps.items():
            known = [rule for rule in rules if rule in self.trades]
            yield partial(sweep, self.model.graph, name, known, self._space)

    def _recalled(self, original: str, shapes: Sequence[Shapes], end: float) -> Exploration:
        """What was found for this model and these shapes, in this run or an earlier one with as much time."""
        tuning, graph = self.tuning, self.model.graph
        what = (original, recall.identity(graph), json.dumps(shapes, sort_keys=True), str(tuning.seconds))
        rules = recall.dependence((*self.rules, *self._space.trades))
        passes = ",".join(pass_.name for pass_ in self.passes)
        how = (rules, passes, tuning.admits, str(tuning.seed), circumstances(tuning.setting))
        key = key_of("search", *what, *how)
        found = recall.of_text(self.cache.get([key]).get(key), self.trades)
        if found is None:
            found = self._explored(shapes, end)
            if found.stop is not StopReason.INTERRUPTED:
                self.cache.put({key: recall.to_text(found)})
        return found

    def _explored(self, shapes: Sequence[Shapes], end: float) -> Exploration:
        """What the search finds in its share of the time that is left before the `end`."""
        try:
            cost = self._cost()
        except KeyboardInterrupt:  # while the machine was timed
            return Exploration((), StopReason.INTERRUPTED)
        limits = Limits(seconds=max(end - self.clock(), 0.0) * SHARE)
        try:
            return explore(self.model.graph, self._space, cost, shapes, limits, progress=self.progress)
        except ModelError as error:  # sizes that contradict the model
            return Exploration((), StopReason.DONE, notes=(f"no search: {error}",))

    def _estimated(self, simplified: Sequence[Step], found: Exploration) -> Tuned:
        """All that the estimate speaks for: nothing is run."""
        graph, cost = self.model.graph, self._cost()
        made = [apply(graph, solution, self._space) for solution in found.solutions]
        steps = [step for some in made for step in some]
        before = cost.seconds(graph)
        tidied = self._simplified_with(None) if steps else []
        if tidied and cost.seconds(graph) > before:  # it undid what the search had done
            for step in reversed(tidied):
                step.undo()
            tidied = []
        timing = self._timing(found, len(simplified), dict(zip(found.solutions, map(len, made), strict=True)))
        return Tuned((*simplified, *steps, *tidied), timing, found.notes)

    def _chooser(self, simplified: Version, ready: Prepared) -> Chooser:
        space, graph = self._space, self.model.graph
        for step in reversed(simplified.steps):
            step.undo()
        own = key_of(digest(graph), weights_digest(graph), self.model.functions_digest, str(self.tuning.seconds))
        for step in simplified.steps:
            step.redo()
        return Chooser(
            Contest(ready, self.original, own, self.cache),
            self.model,
            apply=lambda solution: apply(graph, solution, space),
            simplify=self._simplified_with,
            clock=self.clock,
            progress=self.progress,
        )

    def _chosen(self, chooser: Chooser, first: Version, swept: Sequence[Version], found: Exploration) -> Tuned:
        best = chooser.choose(first, swept[0], found.solutions)
        taken = dict(zip(best.solutions, best.counts, strict=True))
        groups = [_swept(version, first, best) for version in swept if version is not first]
        start = len(first.steps) + sum(len(made.steps) for made in best.sweeps)
        timing = self._timing(found, start, taken)
        timing = replace(
            timing,
            groups=(*groups, *timing.groups),
            speedup=best.speedup,
            simplified=best.speedup if best.steps == first.steps else first.speedup,
            latencies=best.latencies,
        )
        return Tuned(best.steps, timing, (*found.notes, *_left_out(first, best)))

    def _simplified_with(self, names: frozenset[str] | None) -> list[Step]:
        rules = [rule for rule in self.rules if names is None or rule.name in names]
        passes = [pass_ for pass_ in self.passes if names is None or pass_.name in names]
        return list(Simplifier(rules, passes, self.allows, self.refusal).run(self.model.graph).steps)

    def _timing(self, found: Exploration, start: int, taken: Mapping[Solution, int]) -> Timing:
        """What was found; of the solutions that were taken the steps begin at `start`, so many of each."""
        setting = self.tuning.setting
        groups = []
        for solution in found.solutions:
            end = start + taken.get(solution, 0)
            ratio, rewrites = solution.speedup.median, (start, end)
            groups.append(Group(solution.rules, len(solution.copies), ratio, start < end, rewrites, solution.saved))
            start = end
        return Timing(
            self.tuning.cost,
            setting.provider if self.tuning.cost == "analytic" else setting.provider_name,
            setting.cores,
            groups=tuple(groups),
            stop=str(found.stop),
            regions=found.regions,
            copies=found.copies,
            states=found.states,
            trials=found.trials,
        )


def _swept(version: Version, first: Version, best: Version) -> Group:
    """What a sweep of the simplified model brought, and whether the best version has it."""
    (made,) = version.sweeps
    ratio, saved = None, 0.0
    if version.speedup and first.speedup:
        ratio, saved = version.speedup.median / first.speedup.median, _seconds(first) - _seconds(version)
    start, is_taken = len(first.steps), made in best.sweeps
    rewrites = (start, start + len(made.steps) * is_taken)
    return Group(made.rules, 0, ratio, is_taken, rewrites, saved)


def _seconds(version: Version) -> float:
    """Of a run, the mean over all sizes."""
    medians = [latency.after.median for latency in version.latencies]
    return sum(medians) / max(len(medians), 1)


def _left_out(simplified: Version, best: Version) -> Iterator[str]:
    """What to say of simplifications that were undone because they could not be timed, or made the model slower."""
    refusal = simplified.refusal
    if simplified.steps and not best.steps:
        reason = f"could not be timed: {refusal};" if refusal else "was slower,"
        yield f"the simplified model {reason} so the original is returned"
        return
    gone = sorted({step.name for step in simplified.steps} - {step.name for step in best.steps})
    if gone:
        reason = "the model with all of them could not be timed" if refusal else "the model was slower with them"
        yield f"left out, for {reason}: {', '.join(gone)}{f' ({refusal})' if refusal else ''}"


def _shapes(inputs: samples.Feeds) -> Shapes:
    """The shapes of the inputs that are tensors."""
    return {name: value.shape for name, value in inputs.items() if isinstance(value, np.ndarray)}
