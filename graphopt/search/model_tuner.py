"""Search and final selection: from a simplified model to the fastest candidate for it, or to the original."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from typing import Any

import numpy as np
import psutil

from graphopt.base import limits
from graphopt.base.cache import Cache
from graphopt.base.errors import ModelError, UsageError
from graphopt.io import onnx_io
from graphopt.ir.graph import Graph
from graphopt.language.rule import Rule
from graphopt.rewrite.build import RefusalFunction
from graphopt.rewrite.candidates import Candidate
from graphopt.rewrite.passes import Pass
from graphopt.rewrite.rewrite_memory import RewriteMemory
from graphopt.rewrite.simplify import Cause, DeadlineExceededError, Simplifier, SitePredicate, Step
from graphopt.runtime.bench import PreparedModels, TooSlowError, make_up_inputs, prepare_models
from graphopt.runtime.cost_model import CostModel, cache_key, open_cost_cache
from graphopt.runtime.machine import device_name, environment_key
from graphopt.runtime.oracle import RunnableModel
from graphopt.runtime.session_setting import SessionSetting
from graphopt.search import search_cache
from graphopt.search.analytic_cost import AnalyticCost
from graphopt.search.explore import Exploration, InputShapes, explore_regions
from graphopt.search.final_selection import FinalSelection
from graphopt.search.measured_cost import MeasuredCost
from graphopt.search.moves import SearchSpace, apply_solution, rules_beside_trades
from graphopt.search.policy import SearchPolicy
from graphopt.search.race_outcomes import Measurement
from graphopt.search.race_series import (
    RaceSeries,
    feeds_digest,
    min_race_seconds,
    model_digest,
    weightless_digest,
)
from graphopt.search.search_cache import Choice, KnownResult
from graphopt.search.search_report import (
    MemoryOutcome,
    RewriteGroup,
    SearchTiming,
    find_groups,
    group_indices,
    known_group_indices,
    race_notes,
    refusal_notes,
    sweep_groups,
    tried_sweeps,
    untimed_reason,
    version_races,
)
from graphopt.search.stopping import StopReason, TimeBudget
from graphopt.search.sweep_making import SweepMaker

log = logging.getLogger(__name__)

COST_MODELS = ("measured", "analytic", "none")
"""Sources of costs: ONNX Runtime, an estimate, or none, which means no search and no timing."""


@dataclass(frozen=True, slots=True)
class TuningOptions:
    """Options of the search and of timing."""

    cost: str = "measured"
    setting: SessionSetting = field(default_factory=lambda: SessionSetting(threads=0))
    seconds: float = 60.0
    share: float = 1.0
    """The part that these are of the user's --seconds."""
    sizes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Sizes of open dims, by name; several are each measured, and count the same."""
    inputs: Mapping[str, Any] | None = None
    seed: int = 0
    admitted_rules_text: str = "proved"
    """Name of the set of admitted rules, in the key of the cache: with other rules a search may find something else."""
    dask: str | None = None
    """Scheduler of a cluster with the devices that the model is for: they time its parts, and nothing is timed here."""
    policy: SearchPolicy = SearchPolicy()
    overhead_seconds: float = 0.0
    """Seconds of the time that go to loading, simplifying and the check."""
    is_retry: bool = False
    """True after a search whose result the check refused: what it chose is tried first, without what was refused."""

    def __post_init__(self) -> None:
        if self.cost not in COST_MODELS:
            raise UsageError(f"there is no cost '{self.cost}'; there is {', '.join(COST_MODELS)}")
        if self.cost != "none" and not self.seconds > 0:
            raise UsageError(f"a search needs more than {self.seconds:g} seconds (cost none: no search and no timing)")
        if self.is_timed_here:
            _ = self.setting.provider_name  # a missing provider is reported now, not when the work is done

    @property
    def tuning_seconds(self) -> float:
        """Seconds for search and timing: what loading and the check leave, and no less than a part of all."""
        return max(self.seconds - self.overhead_seconds, self.seconds * self.policy.least_tuning_share)

    @property
    def limit_text(self) -> str:
        """The seconds, as a user has given them."""
        given = f"--seconds {self.seconds / self.share:g}"
        return given if self.share == 1 else f"{self.seconds:g} s, a part of {given}"

    def with_part(self, part: float) -> TuningOptions:
        """Return the same with a part of the time."""
        return replace(self, seconds=self.seconds * part, share=self.share * part)

    @property
    def is_timed_here(self) -> bool:
        """True where candidates are to be timed as a whole, on this machine."""
        return self.cost == "measured" and self.dask is None


@dataclass(frozen=True)
class TuningResult:
    """The candidate that was chosen, and what to say of it."""

    candidate: Candidate
    timing: SearchTiming | None = None
    """Course and result of the search; None where none was asked for."""
    notes: tuple[str, ...] = ()
    is_out_of_time: bool = False
    """True if nothing was timed because the time is too short for that."""
    group_of: Mapping[Cause, int] = field(default_factory=dict)
    """Index among the timing's groups of each cause of the candidate's steps."""
    memory: MemoryOutcome | None = None
    """Memory that the candidate takes; None where it was not measured."""
    lasting_choice: Choice | None = None
    """The choice that later runs repeat if the check passes, of this model and of others that differ in their weights
    alone; None where it is not to bind them."""


@dataclass(frozen=True)
class Tuner:
    """Tunes one model."""

    original: onnx_io.ModelSource
    model: onnx_io.LoadedModel
    """The model as it was loaded."""
    simplified: Candidate
    rules: Sequence[Rule]
    trades: Sequence[Rule]
    passes: Sequence[Pass]
    allows: SitePredicate
    tuning: TuningOptions
    progress: Callable[[str, float], None] = lambda stage, done: None
    refusal: RefusalFunction | None = None
    sweeps: Mapping[str, Sequence[Rule]] = field(default_factory=dict)
    """Rules of each sweep: what these bring is in what ONNX Runtime then fuses or leaves, which only timing tells."""
    also_alone: frozenset[str] = frozenset()
    """Names of rules of sweeps that the search tries in parts of the model, too."""
    is_bounded: bool = True
    """True if there is no search where nearly all time is in heavy kernels and no estimate speaks for one."""
    clock: Callable[[], float] = time.monotonic
    cache: Cache = field(default_factory=open_cost_cache)
    memory: RewriteMemory = field(default_factory=RewriteMemory)

    def tune(self) -> TuningResult:
        """Find the fastest candidate.

        Raises:
            UsageError: this onnxruntime lacks the provider, or the model has no such dim.
        """
        budget = TimeBudget(self.tuning.policy, self.tuning.tuning_seconds, self.clock)
        if not self.tuning.is_timed_here:
            wanted = make_up_inputs(self._simplified_model.outline, self.tuning.sizes, self.tuning.inputs or {})
            shapes = [input_shapes(feeds) for feeds in wanted]
            with self._remote_cost_model(budget.deadline) as cost:
                found = self._explore(self.simplified.graph, shapes, budget, budget.deadline, lambda _: cost)
                return self._select_by_estimate(found, budget.deadline, cost)
        if reason := self._too_large_reason():
            return self._untimed(reason)
        if (known := self._repeat_result(budget)) is not None:
            return known
        policy = self.tuning.policy
        self.progress("time", 0.0)
        try:
            contest = self._open_contest(budget)
        except TooSlowError as error:
            once = self._max_run_seconds
            is_profiled = self.tuning.setting.is_cpu and once >= policy.profiled_run_seconds
            sessions = policy.profiled_sessions if is_profiled else policy.least_sessions
            least = sessions * min_race_seconds(once, policy, is_profiled=is_profiled)
            overhead = min(self.tuning.overhead_seconds, (1 / policy.least_tuning_share - 1) * least)
            needed = math.ceil((least + overhead) / self.tuning.share)
            text = f"not timed: {error}, so --seconds {needed} at least are needed"
            return self._untimed(text, is_out_of_time=True)
        except ModelError as error:
            return self._untimed(f"not timed: {error}")
        if budget.remaining < budget.min_seconds:
            what = "a race" if budget.is_profiled else "two races"
            text = f"not timed: {what} would take {math.ceil(budget.min_seconds)} s, and"
            text += f" {math.floor(budget.remaining)} s are left of {self.tuning.limit_text}"
            return self._untimed(text, is_out_of_time=True)
        return self._race(contest, budget)

    def open_races(self, budget: TimeBudget) -> RaceSeries:
        """Return a series of races with the original, in which its pace is measured.

        Raises:
            ModelError: it does not run, or takes too much memory or time.
        """
        if reason := self._too_large_reason():
            raise ModelError(reason)
        return self._open_contest(budget)

    def _open_contest(self, budget: TimeBudget) -> RaceSeries:
        ready, digest = self._prepare_original(), cache_key(self._model_digest, str(self.tuning.seconds))
        contest = RaceSeries(ready, self.original, self.model, digest, self.cache, budget)
        budget.pace = contest.measure_pace()
        return contest

    def _untimed(self, reason: str, *, is_out_of_time: bool = False) -> TuningResult:
        """Return the simplified model, of which nothing could be timed or searched for a reason."""
        timing = replace(self._timing(Exploration((), StopReason.UNTIMED)), untimed=reason)
        return TuningResult(self.simplified, timing, notes=(reason,), is_out_of_time=is_out_of_time)

    def _race(self, contest: RaceSeries, budget: TimeBudget) -> TuningResult:
        """Make the sweeps, search, and let the finds race against the original until the deadline."""
        first, chooser = self.simplified, self._selection(contest, budget)
        shapes = [input_shapes(trial.feeds) for trial in contest.original.trials]
        known = search_cache.load_choice(self.cache, self._choice_key(shapes), self.tuning.seconds)
        if known is not None and known.model == self._model_digest and not self.tuning.is_retry:
            known = None  # races with this model are known, too
        if known is not None and (result := self._try_choice(known, contest, budget)) is not None:
            return result
        if contest.is_comparable:
            budget.is_like_original = contest.retry_once_interrupted(lambda: contest.is_like_original(first))
        end = budget.sweeping_end
        sweeps, is_cut = self._make_sweeps(budget, end, shapes), self.clock() >= end
        swept = chooser.race_sweeps(
            first, sweeps, lambda name, candidate: self.sweep_maker.make(candidate, name, budget.second_race_start)
        )
        budget.is_swept = swept is not first
        gainable = self._light_kernel_share(contest, shapes) if swept is first else None
        if gainable is not None and gainable < self.tuning.policy.timing.noise:
            budget.is_brief = True
            found = Exploration((), StopReason.BOUND)
        elif budget.is_interrupted:
            found = Exploration((), StopReason.INTERRUPTED)
        else:
            found = self._cached_exploration(contest.digest, swept.graph, shapes, budget)
        if found.stop is StopReason.INTERRUPTED:
            budget.interrupt()
        if is_cut and found.stop is StopReason.DONE:
            found = replace(found, stop=StopReason.TIME)
        best = chooser.choose(first, swept, found.solutions, sweeps)
        result = self._to_result(best, sweeps, swept, chooser, found, gainable)
        is_extended = best.steps[: len(first.steps)] == first.steps
        if is_extended and contest.is_steady and not budget.is_interrupted:
            places = {sweep.name: sweep.losing_places for sweep in best.sweeps}
            graph = search_cache.graph_key(swept.graph) if best.solutions else ""
            made = (places, graph, best.solutions, best.candidate.is_tidied)
            choice = Choice(self._model_digest, self.tuning.seconds, *made)
            search_cache.save_choice(self.cache, self._choice_key(shapes), choice)
            if found.is_steady and chooser.is_steady and not (budget.is_starved or self.tuning.is_retry):
                return replace(result, lasting_choice=choice)
        return result

    # -- what earlier runs chose ---------------------------------------------------------------------------------------

    @cached_property
    def _result_key(self) -> str:
        """Return the key of what is chosen for this very model, with these inputs and in so many seconds."""
        return self._result_key_of(self._model_digest)

    @cached_property
    def _sibling_result_key(self) -> str | None:
        """Return the key of what is chosen for all models that differ from this one in their weights alone; None where
        these decide how long it takes."""
        digest = weightless_digest(self.model, self.simplified)
        return None if digest is None else self._result_key_of(digest)

    def _result_key_of(self, model: str) -> str:
        """Return the key of a result, by what identifies the model."""
        tuning = self.tuning
        names = [node.label for _, node in self.simplified.graph.nodes()]  # which the report has
        what = (model, self.simplified.key, *names, json.dumps(self._sweep_digests))
        sizes = json.dumps({**tuning.sizes}, sort_keys=True, default=list)
        given = (sizes, feeds_digest(tuning.inputs or {}), str(tuning.seconds), str(self.is_bounded))
        return cache_key("result", *what, *given, *self._search_conditions)

    def _repeat_result(self, budget: TimeBudget) -> TuningResult | None:
        """Return what an earlier run came to, with its report; None where there was none that lasts.

        It was a run of this model, or of one that differs from it in its weights alone: ONNX Runtime runs the same
        kernels for both, on the same sizes.
        """
        if self.tuning.is_retry:
            return None
        known = search_cache.load_known_result(self.cache, self._result_key)
        if known is not None:
            note = "an earlier run of this model came to this result; --fresh searches again"
            return self._repeat(known, budget, note)
        key = self._sibling_result_key
        known = None if key is None else search_cache.load_known_result(self.cache, key)
        if known is None:
            return None
        note = "the speed was measured on a model that differs in its weights alone; --fresh measures this one"
        return self._repeat(replace(known, timing=replace(known.timing, is_of_other_weights=True)), budget, note)

    def _repeat(self, known: KnownResult, budget: TimeBudget, note: str) -> TuningResult | None:
        """Return a known result, made again, with a note that says so; None where another graph becomes of it."""
        try:
            made = self._apply_choice(known.choice)
        except KeyboardInterrupt:  # it takes less than to begin anything else
            budget.interrupt()
            made = self._apply_choice(known.choice)
        indices = None if made is None else known_group_indices(known.timing.groups, made)
        if made is None or indices is None or made.key != known.candidate:
            log.debug("what an earlier run chose is not taken, for it became another graph")
            return None
        return TuningResult(made, known.timing, (*known.notes, note), group_of=indices)

    def keep_result(self, result: TuningResult) -> None:
        """Keep a result that the check has passed for later runs of this model, and of others that differ from it in
        their weights alone, if it is to last."""
        if result.timing is None or result.lasting_choice is None:
            return
        known = KnownResult(result.lasting_choice, result.candidate.key, result.timing, result.notes)
        for key in filter(None, (self._result_key, self._sibling_result_key)):
            search_cache.save_known_result(self.cache, key, known)

    def _apply_choice(self, choice: Choice) -> Candidate | None:
        """Return the simplified model with a choice; None where that does not fit."""
        swept = self._apply_sweeps_of(choice, math.inf)
        if swept is None or not choice.fits(self._searched_rules, swept.graph):
            return None
        space = self.search_space()
        made = swept.derive(
            lambda graph: chain.from_iterable(apply_solution(graph, each, space=space) for each in choice.solutions)
        )
        return made.derive(self.simplify_with) if choice.is_simplified_again else made

    def _apply_sweeps_of(self, choice: Choice, end: float) -> Candidate | None:
        """Return the simplified model with the sweeps of a choice; None where one does not match, or time is up."""
        made, maker = self.simplified, replace(self.sweep_maker, losing_places=dict(choice.sweeps))
        for name in choice.sweeps:
            swept = maker.make(made, name, end)
            if swept is None:
                return None
            made = swept
        return made

    def _selection(self, contest: RaceSeries, budget: TimeBudget, *, is_known_choice: bool = False) -> FinalSelection:
        return FinalSelection(
            contest,
            partial(apply_solution, space=self.search_space(budget.final_race_start)),
            partial(self.simplify_with, deadline=budget.simplifying_end),
            self.progress,
            is_known_choice,
        )

    @cached_property
    def _model_digest(self) -> str:
        return model_digest(self.model)

    def _choice_key(self, shapes: Sequence[InputShapes]) -> str:
        """Return the key of what is chosen for models of this structure, whatever their weights are."""
        structure = (search_cache.graph_key(self.model.graph), self.model.functions_digest)
        said = (json.dumps(shapes, sort_keys=True), json.dumps(self._sweep_digests))
        return cache_key("choice", *structure, *said, *self._search_conditions)

    @property
    def _sweep_digests(self) -> dict[str, list[str]]:
        """Digests of the rules of each sweep."""
        return {name: [rule.digest for rule in rules] for name, rules in self.sweep_maker.rules.items()}

    def _try_choice(self, known: Choice, contest: RaceSeries, budget: TimeBudget) -> TuningResult | None:
        """Let what was chosen for another model of this structure race, once; None where that does not win, too."""
        swept = self._apply_sweeps_of(known, budget.sweeping_end)
        if swept is None:
            return None
        if not known.fits(self._searched_rules, swept.graph):
            if not self.tuning.is_retry or not known.sweeps:
                return None
            known = replace(known, solutions=())  # they were found in a graph with what was refused
        digest = cache_key(contest.digest, "choice")  # these races are not to bind a search
        # the one race is like a second one: the original's session is opened last, which makes it the faster by a bit
        own = RaceSeries(contest.original, self.original, self.model, digest, self.cache, budget, heat=2)
        chooser, budget.is_brief = self._selection(own, budget, is_known_choice=True), True
        chosen = chooser.with_solutions(swept, known.solutions)
        if chosen is not None and known.is_simplified_again:
            chosen = chooser.simplified_again(chosen)
        best = Measurement(self.simplified) if chosen is None else chooser.choose(self.simplified, chosen, ())
        if len(best.candidate.causes) < len(known.sweeps) + len(known.solutions):
            budget.is_brief = False
            return None
        reason = StopReason.RETRIED if self.tuning.is_retry else StopReason.KNOWN
        alone = [  # none of them was timed by itself
            Candidate(swept.graph, tuple(step for step in swept.steps if step.cause == made)) for made in swept.causes
        ]
        result = self._to_result(best, alone, swept, chooser, Exploration(known.solutions, reason), None)
        if not chooser.is_steady or budget.is_interrupted or budget.is_starved or self.tuning.is_retry:
            return result
        return replace(result, lasting_choice=replace(known, model=self._model_digest))

    def _light_kernel_share(self, contest: RaceSeries, shapes: Sequence[InputShapes]) -> float | None:
        """Return the part of the simplified model's time that a search may save; None where that may be all.

        It is the time outside of heavy kernels. All of the time may be saved where rules are the user's, or where the
        estimate prefers one of the first graphs of some part of the model, as by another order of products.
        """
        policy, budget, graph = self.tuning.policy, contest.budget, self.simplified.graph
        if not self.is_bounded or budget.is_over(budget.reserved_seconds):
            return None
        try:
            found = contest.light_kernel_share(self.simplified)
        except KeyboardInterrupt:
            budget.interrupt()
            return None
        if found is None or found >= policy.timing.noise:
            return found
        few = replace(policy, states=policy.probed_states)
        looked = self._explore(graph, shapes, budget, budget.final_race_start, lambda _: AnalyticCost(), few)
        if looked.stop is StopReason.INTERRUPTED:
            budget.interrupt()
        return found if looked.stop is StopReason.DONE and not looked.solutions else None

    @property
    def _simplified_model(self) -> RunnableModel:
        return RunnableModel(replace(self.model, graph=self.simplified.graph))

    def _prepare_original(self) -> PreparedModels:
        """Return the original in a session, with inputs that it and the simplified model accept.

        Raises:
            ModelError: ONNX Runtime refuses it, or all inputs that were made up.
        """
        wanted = self.tuning
        return prepare_models(
            [self.original],
            wanted.setting,
            dims=wanted.sizes,
            inputs=wanted.inputs,
            seed=wanted.seed,
            also=[self._simplified_model.outline],
            limit=self._max_run_seconds,
        )

    @property
    def _max_run_seconds(self) -> float:
        """Seconds after which a run is given up: longer than could be timed, to say how many that would take."""
        return self.tuning.seconds * self.tuning.policy.first_run_share

    def _too_large_reason(self) -> str:
        weights = self.model.graph.weight_bytes
        if weights > limits.MAX_TIMED_WEIGHT_BYTES:
            return f"not timed: {weights / 1e9:.1f} GB of weights are too much"
        free = psutil.virtual_memory().available
        needed = self.tuning.policy.timing_memory_factor * weights
        if needed <= free:
            return ""
        return f"not timed: that takes {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free"

    def search_space(self, end: float = math.inf) -> SearchSpace:
        """Return the search space until the `end`, without the rules of sweeps: these pay only all over the model, and
        would multiply the graphs."""
        return SearchSpace(self._searched_rules, self.simplifier(end=end), self.allows)

    def simplifier(self, names: frozenset[str] | None = None, end: float = math.inf) -> Simplifier:
        """Return the simplifier until the `end` with the rules and passes of these names, or with those that leave what
        trades write."""
        rules = self._rules_beside_trades if names is None else [rule for rule in self.rules if rule.name in names]
        passes = [pass_ for pass_ in self.passes if names is None or pass_.name in names]
        check = self._deadline_check(end)
        return Simplifier(rules, passes, self.allows, self.refusal, check=check, memory=self.memory)

    @cached_property
    def _rules_beside_trades(self) -> list[Rule]:
        return rules_beside_trades(self.rules, self.trades)

    @property
    def _searched_rules(self) -> list[Rule]:
        swept = {rule.name for rules in self.sweeps.values() for rule in rules} - self.also_alone
        return [rule for rule in self.trades if rule.name not in swept]

    def _deadline_check(self, end: float) -> Callable[[], None]:
        """Return a function that raises DeadlineExceededError when it is called after the end."""

        def check() -> None:
            if self.clock() >= end:
                raise DeadlineExceededError

        return check

    def _cost_model(self, end: float = math.inf) -> CostModel:
        """Return the cost model; it does not time what would take longer than until the end."""
        tuning = self.tuning
        if tuning.cost == "analytic":
            return AnalyticCost()
        how = (tuning.setting, self.cache, tuning.policy, tuning.seed)
        return MeasuredCost.on_this_machine(*how, end=end, clock=self.clock)

    @contextmanager
    def _remote_cost_model(self, end: float) -> Iterator[CostModel]:
        """Give the cost model for where nothing is timed here: an estimate, or the devices of a cluster."""
        tuning = self.tuning
        if tuning.dask is None:
            yield self._cost_model()
            return
        how = (tuning.dask, tuning.setting, self.cache, tuning.policy, tuning.seed)
        with MeasuredCost.on_cluster(*how, end=end, clock=self.clock) as cost:
            yield cost

    def _make_sweeps(self, budget: TimeBudget, end: float, shapes: Sequence[InputShapes]) -> list[Candidate]:
        """Return the simplified model with each sweep that is made before the `end` or Ctrl-C, and may gain something,
        the most promising first; of sweeps by the same rules, with the first.

        A later run of the same model makes those that this one found to be promising.
        """
        said = (json.dumps(shapes, sort_keys=True), json.dumps(self._sweep_digests))
        key = cache_key("sweeps", self._model_digest, *said, *self._search_conditions)
        kept, found = search_cache.load_sweeps(self.cache, key), dict[str, tuple[float, Candidate]]()
        maker = self.sweep_maker
        try:
            if kept is not None:
                maker.losing_places.update(kept)
                made = (maker.make(self.simplified, name, end) for name in kept if name in self.sweeps)
                return [candidate for candidate in made if candidate is not None]
            for name, candidate, gain in maker.promising(lambda: self._cost_model(end), shapes, end):
                found[name] = gain, candidate
        except KeyboardInterrupt:
            budget.interrupt()
        names = sorted(found, key=lambda name: found[name][0], reverse=True)
        if kept is None and not budget.is_interrupted and self.clock() < end:
            search_cache.save_sweeps(self.cache, key, {name: maker.losing_places.get(name, ()) for name in names})
        return [found[name][1] for name in names]

    @cached_property
    def sweep_maker(self) -> SweepMaker:
        """The maker of sweeps of the simplified model."""
        rules = {name: self.sweep_rules(name) for name in self.sweeps}
        return SweepMaker(self.simplified, rules, self.search_space, self.tuning.policy, self.clock)

    def sweep_rules(self, name: str) -> list[Rule]:
        """Return the rules of a sweep that are admitted here."""
        admitted = {rule.name for rule in self.trades}
        return [rule for rule in self.sweeps[name] if rule.name in admitted]

    def _cached_exploration(
        self, original: str, graph: Graph, shapes: Sequence[InputShapes], budget: TimeBudget
    ) -> Exploration:
        """Return the finds for this model and these shapes, of this run or an earlier one with as much time."""
        what = (original, search_cache.graph_key(graph), json.dumps(shapes, sort_keys=True), str(self.tuning.seconds))
        return search_cache.load_or_search(
            self.cache,
            cache_key("search", *what, *self._search_conditions),
            self._searched_rules,
            graph,
            lambda: self._explore(graph, shapes, budget, budget.final_race_start, self._cost_model),
            self.tuning.policy,
        )

    @property
    def _search_conditions(self) -> tuple[str, ...]:
        """Conditions of a search beside the model: rules, passes, environment, policy."""
        tuning, rules = self.tuning, search_cache.rules_key((*self.rules, *self._searched_rules))
        passes = ",".join(pass_.name for pass_ in self.passes)
        where = environment_key(tuning.setting)
        return rules, passes, tuning.admitted_rules_text, str(tuning.seed), where, repr(tuning.policy)

    def _explore(
        self,
        graph: Graph,
        shapes: Sequence[InputShapes],
        budget: TimeBudget,
        end: float,
        asked: Callable[[float], CostModel],
        policy: SearchPolicy | None = None,
    ) -> Exploration:
        """Search a graph, in the search's share of the time that is left before the `end`."""
        if self.clock() >= end:  # to make the cost model may take long
            return Exploration((), StopReason.TIME, is_steady=False)
        try:
            cost = asked(end)
        except KeyboardInterrupt:  # while the machine was timed
            return Exploration((), StopReason.INTERRUPTED)
        seconds, policy = budget.search_seconds(end), policy or self.tuning.policy
        space, progress, clock = self.search_space(self.clock() + seconds), self.progress, self.clock
        try:
            return explore_regions(graph, space, cost, shapes, policy, seconds=seconds, progress=progress, clock=clock)
        except ModelError as error:  # sizes that contradict the model
            return Exploration((), StopReason.DONE, notes=(f"no search: {error}",))

    def _select_by_estimate(self, found: Exploration, deadline: float, cost: CostModel) -> TuningResult:
        """Return the simplified model with all finds, as nothing is run here."""
        candidate, space = self.simplified, self.search_space(deadline)
        try:
            for solution in found.solutions:  # those that are applied in time stay
                candidate = candidate.derive(partial(apply_solution, solution=solution, space=space))
            if candidate.causes:
                tidy = candidate.derive(partial(self.simplify_with, names=None, deadline=deadline))
                tidy_seconds, seconds = (cost.estimate_seconds(each.graph) for each in (tidy, candidate))
                if tidy_seconds <= seconds:  # else simplifying undid what the search had done
                    candidate = tidy
        except DeadlineExceededError:
            found = replace(found, stop=StopReason.TIME)
        best = Measurement(candidate)
        groups = self._find_groups(found, self.simplified, best)
        timing = replace(self._timing(found), groups=groups, device=cost.device)
        if self.tuning.dask is not None and candidate.steps:
            timing = replace(timing, untimed="its parts were timed on the cluster, it was not as a whole")
        return TuningResult(candidate, timing, found.notes, group_of=group_indices([], found.solutions, [candidate]))

    def _find_groups(
        self, found: Exploration, swept: Candidate, best: Measurement, raced: Sequence[Measurement] = ()
    ) -> tuple[RewriteGroup, ...]:
        """Return the finds of the search in a candidate that may have sweeps."""
        tuning, is_estimate = self.tuning, self.tuning.cost == "analytic"
        groups = find_groups(found.solutions, swept.graph, best, raced, tuning.policy.timing, is_estimate=is_estimate)
        return tuple(group if tuning.is_timed_here else replace(group, reason="") for group in groups)

    def _to_result(
        self,
        best: Measurement,
        sweeps: Sequence[Candidate],
        swept: Candidate,
        chooser: FinalSelection,
        found: Exploration,
        gainable: float | None,
    ) -> TuningResult:
        """Return the best candidate, and the report on it."""
        first, raced, policy = chooser.measurement_of(self.simplified), chooser.measurements, self.tuning.policy.timing
        alone = [chooser.measurement_of(made) for made in sweeps]
        tried = tried_sweeps(alone, best, raced)
        indices = group_indices(tried, found.solutions, [best.candidate, *(each.candidate for each in raced)])
        timing = self._timing(found)
        timing = replace(
            timing,
            stop=StopReason.INTERRUPTED if chooser.budget.is_interrupted else timing.stop,
            groups=(
                *sweep_groups(alone, first, best, raced, policy, chooser.contest.estimates),
                *self._find_groups(found, swept, best, raced),
            ),
            races=(
                *version_races(chooser.last_measurements.values(), self.simplified, indices),
                *version_races(chooser.confirmations, self.simplified, indices, are_second=True),
            ),
            speedup=best.speedup,
            untimed=untimed_reason(first, best) if best.steps and best.speedup is None else "",
            simplified=None if not first.steps else best.speedup if best.steps == first.steps else first.speedup,
            searched=best.gain if best.candidate.causes else None,
            latencies=best.latencies,
            gainable=gainable,
        )
        notes = (*found.notes, *race_notes(first, best), *refusal_notes(self.sweep_maker.refusals))
        return TuningResult(best.candidate, timing, notes, group_of=indices)

    def simplify_with(
        self, graph: Graph, names: frozenset[str] | None = None, deadline: float = math.inf
    ) -> Sequence[Step]:
        """Simplify a graph, in place, as `simplifier` says. Raises DeadlineExceededError."""
        return self.simplifier(names, deadline).run(graph).steps

    def _timing(self, found: Exploration) -> SearchTiming:
        """Return the report on the search, without its finds."""
        setting = self.tuning.setting
        return SearchTiming(
            self.tuning.cost,
            setting.provider_name if self.tuning.is_timed_here else setting.provider,
            setting.thread_count,
            device_name(setting) if self.tuning.is_timed_here else "",
            stop=str(found.stop),
            regions=found.regions,
            copies=found.copies,
            states=found.states,
            trials=found.trials,
        )


def input_shapes(inputs: Mapping[str, Any]) -> InputShapes:
    """Return the shapes of the inputs that are tensors."""
    return {name: value.shape for name, value in inputs.items() if isinstance(value, np.ndarray)}
