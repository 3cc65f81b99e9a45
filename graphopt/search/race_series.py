"""Races: candidates for one model take turns with the original in ONNX Runtime, until the fastest is known.

Times are kept, so that the same question has the same answer; races that a busy machine left open are not.
"""

from __future__ import annotations

import json
import logging
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import Any, TypeVar

import numpy as np

from graphopt.base.cache import Cache
from graphopt.base.errors import ModelError
from graphopt.base.records import to_json
from graphopt.io import onnx_io
from graphopt.rewrite.candidates import Candidate
from graphopt.rewrite.regions import graph_digest, speed_digest, weights_digest
from graphopt.runtime.bench import PreparedModels
from graphopt.runtime.cost_model import cache_key, decode_cached
from graphopt.runtime.kernel_table import record_kernels
from graphopt.runtime.machine import environment_key
from graphopt.runtime.measure import (
    ClearDifference,
    FastestRun,
    KernelTimes,
    RaceTimes,
    TimingSchedule,
    TimingVerdict,
    min_timing_seconds,
    time_race,
)
from graphopt.runtime.oracle import RunFailedError, is_out_of_memory
from graphopt.runtime.profile import ProfiledSession, kernels_digest, light_kernel_share, time_kernels, with_kernels
from graphopt.runtime.session_setting import SessionSetting, common_timer, make_runner
from graphopt.search.policy import SearchPolicy
from graphopt.search.race_outcomes import Measurement, RaceOutcome, judge_race
from graphopt.search.stopping import ModelPace, TimeBudget

log = logging.getLogger(__name__)

T = TypeVar("T")

_YES, _NO = "yes", "no"
"""Answers, as the cache keeps them."""

LIKE_ORIGINAL = object()
"""In the place of a candidate's session: it runs as the original does, and takes no turns of its own."""


@dataclass(frozen=True, slots=True)
class _RaceRecord:
    """Outcomes of a race, as the cache keeps them."""

    outcomes: tuple[RaceOutcome, ...]


class RaceSeries:
    """A series of races between candidates for one model, under one setting, on the same inputs, in a budget of time.

    Series between the same models differ in their `heat`: a second one opens new sessions of all, the original too, as
    a session may be fast or slow for as long as it lives. The session that is opened last is the faster by a bit: it is
    the original's in a second race, and a candidate's in a first and third one. Where races are profiled, which tells
    kernels apart, the original's is always the last.
    """

    def __init__(
        self,
        original: PreparedModels,
        source: onnx_io.ModelSource,
        model: onnx_io.LoadedModel,
        digest: str,
        cache: Cache,
        budget: TimeBudget,
        heat: int = 1,
        setting: SessionSetting | None = None,
    ) -> None:
        """Take the `original` with its inputs, its source, the model that has the candidates' graphs, and the digest of
        what a race depends on besides. Candidates run under a `setting` of their own, or under the original's."""
        self.original, self.source, self.model, self.digest = original, source, model, digest
        self.cache, self.budget, self.heat = cache, budget, heat
        self.setting = setting or original.setting
        self.is_steady = True
        """False where a busy machine left a race open: it is not to bind later runs."""
        self.runs_like_original: dict[Candidate, bool] = {}
        """True where ONNX Runtime runs of a candidate what it runs of the original, as far as that was asked."""
        self.refusals: dict[Candidate, str] = {}
        """Reasons why candidates cannot be timed."""
        self.profiles: dict[Candidate, Sequence[KernelTimes]] = {}
        """Times of the kernels of candidates, on each of the inputs."""
        self.estimates: dict[frozenset[str], float] = {}
        """Estimated speedup over the simplified model, by the names of the sweeps."""
        self._profiled_original: ProfiledSession | None = None
        """A session of the original that waits for its race: a profile is of one race."""
        self.told: dict[tuple[str, ...], list[RaceOutcome]] = {}
        """Outcomes of the races, by the digests of those that took part: no race is run twice."""
        fed = (text for trial in original.trials for text in (json.dumps(dict(trial.sizes)), feeds_digest(trial.feeds)))
        self._known_by = ("race", digest, *fed, *self._environments, repr(self.policy), str(heat))

    @property
    def _environments(self) -> list[str]:
        """Keys of the environments of the sessions: one, unless candidates have a setting of their own."""
        return list(dict.fromkeys(map(environment_key, (self.original.setting, self.setting))))

    @property
    def policy(self) -> SearchPolicy:
        return self.budget.policy

    @property
    def is_cacheable(self) -> bool:
        """True if times may bind later runs: those that are taken in a hurry may not."""
        return not self.budget.is_interrupted

    def next_series(self) -> RaceSeries:
        """Return the next series between the same models."""
        parts = (self.original, self.source, self.model, self.digest, self.cache, self.budget)
        contest = RaceSeries(*parts, self.heat + 1, self.setting)
        contest.is_steady, contest.refusals = self.is_steady, dict(self.refusals)
        contest.runs_like_original, contest.estimates = self.runs_like_original, self.estimates
        return contest

    # -- races ---------------------------------------------------------------------------------------------------------

    def race(self, candidates: Sequence[Candidate], share: float) -> list[Measurement]:
        """Let candidates take turns, for a share of the time that is left; the gain of each is over the first.

        Candidates that do not run have no outcome, and none has where time or room is lacking. The first series leaves
        its winner the time for a second one, even where all takes longer by now than it did at the beginning.
        """
        able = self._runnable(candidates)
        self._choose_profiling(able)
        keys = [candidate.key for candidate in able]
        outcomes = self.recorded_outcomes(keys)
        if outcomes is None:
            outcomes = self._race_outcomes(able, share) if able and self._is_time_for(keys) else []
            able = self._runnable(able)
        if outcomes:
            self.told[tuple(candidate.key for candidate in able)] = outcomes
        waiting = iter(outcomes)
        has_floor = candidates[0] not in self.refusals
        return [
            Measurement(candidate, refusal=self.refusals[candidate])
            if candidate in self.refusals
            else Measurement(candidate, next(waiting, None), has_floor=has_floor)
            for candidate in candidates
        ]

    def _choose_profiling(self, candidates: Sequence[Candidate]) -> None:
        """Decide whether these candidates race under the profiler: not where it would misjudge one, if there is time to
        race without it."""
        self.budget.has_many_kernels = any(map(self._is_misjudged_by_profile, candidates))
        if self.budget.has_many_kernels and not self._has_time_left_for(len(candidates)):
            self.budget.has_many_kernels = False

    def _runnable(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        return [candidate for candidate in candidates if candidate not in self.refusals]

    def _is_time_for(self, keys: Sequence[str]) -> bool:
        """Return whether the candidates of these digests can be opened and raced, and the best of them once more; where
        an earlier run had no time for that, this one has none either, so that it gives the same answer as quickly."""
        if not self.budget.is_interrupted and self.had_timed_out(["race", *keys]):
            return False
        if self._has_time_left_for(len(keys)):
            return True
        self.record_timeout(["race", *keys])
        return False

    def _has_time_left_for(self, count: int) -> bool:
        budget, is_first = self.budget, self.heat == 1
        left = budget.seconds_until(budget.race_end(count, is_first=is_first))
        if left <= budget.pace.opening_seconds * (count + 2 * (not is_first)):
            return False
        if not is_first:  # of a profiled race that is cut short nothing is known
            return not self.is_profiled or left >= budget.race_cost(count - 1)
        return count == 1 or left >= budget.race_cost(count - 1)  # one alone may need less than estimated

    def _race_outcomes(self, candidates: Sequence[Candidate], share: float) -> list[RaceOutcome]:
        """Return the outcomes of a race for the candidates that run; none where they cannot be timed."""
        budget, is_first = self.budget, self.heat == 1
        share = 1.0 if is_first and budget.has_one_race(len(candidates)) else share
        end = budget.race_end(len(candidates), is_first=is_first)
        if self.heat % 2 and not self.is_profiled and not self._try_open_original():
            return []
        opened = [(candidate.key, self._try_open(candidate)) for candidate in candidates]
        keys = [key for key, session in opened if session is not None]
        sessions = [session for _, session in opened if session is not None]
        if not keys:
            return []
        if len(keys) < len(candidates) and (told := self.recorded_outcomes(keys)) is not None:
            return told

        def timed() -> list[RaceOutcome]:
            self.open_original()
            seconds = budget.race_seconds(len(keys), share)
            return self.time_models(keys, sessions, seconds, budget.seconds_until(end))

        try:
            outcomes = self.retry_once_interrupted(timed)
        except ModelError as error:
            log.warning("versions of the model cannot be timed, so none of them is taken for faster: %s", error)
            self.is_steady = False  # another time there may be room
            return []
        if any(outcome.speedup.has_too_few_rounds for outcome in outcomes):
            log.info("no time was left for the rounds of a race that say anything")
            return []
        return outcomes

    def _try_open(self, candidate: Candidate) -> Any:
        """Return a session of a candidate, or `LIKE_ORIGINAL`; None where it is refused, which is noted."""

        def opened() -> Any:
            is_like = self.is_like_original(candidate) if self.is_comparable else not candidate.steps
            return LIKE_ORIGINAL if is_like else self.open_session(self.model_of(candidate))

        try:
            return self.retry_once_interrupted(opened)
        except ModelError as error:
            self.refusals[candidate] = str(error)
            self.is_steady &= not is_out_of_memory(error.__cause__ or error)
            log.warning("a version of the model does not run, and is left: %s", error)
            return None

    def model_of(self, candidate: Candidate) -> onnx_io.LoadedModel:
        return replace(self.model, graph=candidate.graph)

    def retry_once_interrupted(self, work: Callable[[], T]) -> T:
        """Do work that changes no graph; after the first Ctrl-C do it again, in a hurry like all that follows."""
        try:
            return work()
        except KeyboardInterrupt:
            if self.budget.is_interrupted:
                raise
            self.budget.interrupt()
            return work()

    def measure_pace(self) -> ModelPace:
        """Return the original's pace.

        The length of a turn is processor time: beside other processes, turns take longer.

        Raises:
            ModelError: ONNX Runtime refuses to run it.
        """
        setting, clock = self.original.setting, self.budget.clock
        session, meter = self._original_session, setting.timer
        used = meter()
        calls = [self._runner(session, trial.feeds, setting) for trial in self.original.trials]
        runs = [_time_briefly(call, clock, self.policy) for call in calls]
        used, passed = meter() - used, sum(map(sum, runs))
        share = min(max(used / passed, self.policy.min_processor_share), 1.0) if used > 0 and passed > 0 else 1.0
        seconds = sum(map(min, runs))
        is_on_cpu = setting.is_cpu and self.setting.is_cpu  # elsewhere a kernel's time is that of its launch
        is_profiled = is_on_cpu and seconds >= self.policy.profiled_run_seconds
        racing, unprofiled = (
            sum(min_race_seconds(min(found) * share, self.policy, is_profiled=how) / share for found in runs)
            for how in (is_profiled, False)
        )
        return ModelPace(self.original.opening_seconds, racing, seconds, len(runs), is_profiled, unprofiled)

    @property
    def is_comparable(self) -> bool:
        """True where it is asked whether ONNX Runtime runs the same for two models: of slow ones kernels will tell."""
        return not self.budget.pace.is_profiled or self.budget.is_comparison_cheap

    def is_like_original(self, candidate: Candidate) -> bool:
        """Return whether ONNX Runtime runs the same for a candidate, if it was only simplified, as for the original."""
        if candidate not in self.runs_like_original:
            is_simplified = bool(candidate.steps) and not candidate.causes
            self.runs_like_original[candidate] = (
                self._is_simplified_original(candidate) if is_simplified else not candidate.steps
            )
        return self.runs_like_original[candidate]

    def _is_simplified_original(self, candidate: Candidate) -> bool:
        """Return whether ONNX Runtime runs the same for the simplified model as for the original; of an earlier run
        that is known."""
        place = self._race_key(["like the original", candidate.key])
        known = self.cache.get([place]).get(place)
        if known in (_YES, _NO):
            return known == _YES
        is_same = self.is_original(self.model_of(candidate))
        self.cache.put({place: _YES if is_same else _NO})
        return is_same

    def is_original(self, model: onnx_io.LoadedModel) -> bool:
        """Return whether ONNX Runtime runs the same for a model as for the original: then neither is faster.

        False where that cannot be seen, or the model is large: to compare them, both are written to files.
        """
        if model.graph.weight_bytes > self.policy.compared_bytes:
            return False
        try:
            one, other = (kernels_digest(source, self.original.setting) for source in (self.source, model))
        except ModelError as error:
            log.debug("what ONNX Runtime makes of the models is not compared: %s", error)
            return False
        return one == other

    def light_kernel_share(self, candidate: Candidate) -> float | None:
        """Return the part of a candidate's time in kernels that is outside of the heavy ones, at the size where it is
        largest; None where it is unknown, as on devices, where a kernel's time is that of its launch.
        """
        setting, place = self.original.setting, self._race_key(["gainable", candidate.key])
        runs = self.policy.timing.kernel_share_runs
        model, known = self.model_of(candidate), _parse_share(self.cache.get([place]).get(place))
        if known is None and setting.is_cpu:
            try:
                found = [time_kernels(model, setting, trial.feeds, runs) for trial in self.original.trials]
                known = max(0.0, *map(light_kernel_share, found))  # a difference of sums, which are rounded
            except ModelError as error:
                log.debug("what can be gained at most is not known: %s", error)
            else:
                self._record_kernels(found, setting)
                if self.is_cacheable and self.is_steady:
                    self.cache.put({place: str(known)})
        return known

    def _record_kernels(self, found: Iterable[KernelTimes], setting: SessionSetting) -> None:
        """Keep what profiles under a setting tell of kernels, for predictions."""
        if self.is_cacheable and self.is_steady:
            record_kernels(found, setting, self.cache)

    def estimate_gain(self, candidate: Candidate, floor: Candidate) -> float | None:
        """Return how many times as fast as the `floor` a candidate runs, by the kernels that differ; None where that is
        unknown, as on devices, where a kernel's time is that of its launch.

        A few runs under the profiler tell more of a slow model than a race in the same time, for the noise of the
        kernels that both have cancels out. But a profiled run is no ordinary one, so it is no evidence.
        """
        place = self._race_key(["kernels", floor.key, candidate.key])
        known = _parse_ratio(self.cache.get([place]).get(place))
        if known is None and self.original.setting.is_cpu:
            try:
                pairs = zip(*map(self._kernel_times, (floor, candidate)), strict=True)
                ratios = [before.speedup_of(after) for before, after in pairs]
            except ModelError as error:
                log.debug("what a version of the model gains is not estimated: %s", error)
                return None
            known = math.exp(statistics.fmean(map(math.log, ratios)))
            if self.is_cacheable and self.is_steady:
                self.cache.put({place: str(known)})
        if known is not None:
            self.estimates[Measurement(candidate).sweep_names] = known
        return known

    def _kernel_times(self, candidate: Candidate) -> Sequence[KernelTimes]:
        """Return the times of a candidate's kernels on each of the inputs. Raises ModelError as `time_kernels` does."""
        if candidate not in self.profiles:
            model, setting, runs = self.model_of(candidate), self.original.setting, self.policy.timing.screening_runs
            self.profiles[candidate] = [
                time_kernels(model, setting, trial.feeds, runs) for trial in self.original.trials
            ]
            self._record_kernels(self.profiles[candidate], setting)
        return self.profiles[candidate]

    @property
    def is_profiled(self) -> bool:
        """True where the race is run under the profiler."""
        return self.budget.is_profiled

    def _is_misjudged_by_profile(self, candidate: Candidate) -> bool:
        """Return whether a candidate has so many nodes more than the original that a profile hides a gain: more than
        noise, and than half of what kernels tell of its sweeps."""
        own, others = (sum(graph.operator_counts().values()) for graph in (self.model.graph, candidate.graph))
        pace, bias = self.budget.pace, (others - own) * self.policy.timing.kernel_bias
        estimated_gain = self.estimates.get(Measurement(candidate).sweep_names, 1.0) - 1
        hidden = max(self.policy.timing.noise, estimated_gain / 2)
        return bias > hidden * pace.run_seconds / pace.size_count

    @cached_property
    def _original_session(self) -> Any:
        """A session of the original: a second series has one of its own."""
        return self.original.sessions[0] if self.heat == 1 else self.original.setting.open(self.source)

    def open_original(self) -> None:
        """Open the session that candidates are timed against, if it is not open yet.

        Raises:
            ModelError: there is no room for it.
            UsageError: the provider does not start.
        """
        if not self.is_profiled:
            _ = self._original_session
        elif self._profiled_original is None:
            self._profiled_original = ProfiledSession(self.source, self.original.setting)

    def _try_open_original(self) -> bool:
        """Open the session that candidates are timed against; False where there is no room for it."""
        try:
            self.retry_once_interrupted(self.open_original)
        except ModelError as error:
            log.warning("the original cannot be timed once more: %s", error)
            return False
        return True

    def _take_original(self) -> Any:
        """Return the session of the original for one race. Raises what `open_original` does."""
        self.open_original()
        session, self._profiled_original = self._profiled_original or self._original_session, None
        return session

    def open_session(self, model: onnx_io.LoadedModel) -> Any:
        """Return a session of a model as it is now, that has run on all inputs.

        Raises:
            ModelError: ONNX Runtime refuses it.
            UsageError: the provider does not start.
        """
        session = ProfiledSession(model, self.setting) if self.is_profiled else self.setting.open(model)
        for trial in self.original.trials:
            self._runner(session, trial.feeds, self.setting)()
        return session

    def recorded_outcomes(self, keys: Sequence[str]) -> list[RaceOutcome] | None:
        """Return the outcomes of a race with all models of these digests, the first of them first; None without one in
        this run, or one of just these in an earlier run."""
        for raced, outcomes in self.told.items() if keys else ():
            if raced[0] == keys[0] and set(keys) <= set(raced):
                return [outcomes[raced.index(key)] for key in keys]
        return self.cached_outcomes(keys)

    def cached_outcomes(self, keys: Sequence[str]) -> list[RaceOutcome] | None:
        """Return the outcomes of a race of just these in an earlier run; None where there was none."""
        key = self._race_key(keys)
        found = decode_cached(_RaceRecord, self.cache.get([key]).get(key))
        if found is None:
            return None
        sizes = [dict(trial.sizes) for trial in self.original.trials]
        timed = [[dict(latency.sizes) for latency in outcome.latencies] for outcome in found.outcomes]
        if timed != [sizes] * len(keys):
            log.debug("an entry of the cache is not used, for it is of another race")
            return None
        return [*found.outcomes]

    def time_models(
        self, keys: Sequence[str], sessions: Sequence[Any], seconds: float, limit: float = math.inf
    ) -> list[RaceOutcome]:
        """Time models with these digests, for `seconds` in all.

        It takes longer where these are too few for the fewest rounds, up to the `limit`. In the place of a session
        there may be `LIKE_ORIGINAL`.

        Raises:
            ModelError: there is no room for the sessions of the original, or for all that run in turn.
            UsageError: the provider does not start.
        """
        meter = common_timer(self.original.setting, self.setting)
        timing, count = self.policy.timing, len(self.original.trials)
        rivals = [session for session in sessions if session is not LIKE_ORIGINAL]
        has_floor = rivals[:1] == [*sessions[:1]]
        schedule = TimingSchedule(
            seconds=seconds / count,
            rounds=self.policy.profiled_rounds if self.is_profiled else self.policy.race_rounds,
            open_runs=ClearDifference(self.policy.session_margin, has_floor=has_floor)
            if self.is_profiled
            else FastestRun(timing, has_floor=has_floor, tells_gains=True),
            hard_limit=limit / count,
        )
        own, races, ends = self._take_original(), list[RaceTimes](), list[list[int]]()
        for trial in self.original.trials:
            first = self._runner(own, trial.feeds, self.original.setting)
            others = [self._runner(session, trial.feeds, self.setting) for session in rivals]
            races.append(time_race(first, others, schedule, meter=meter, policy=timing))
            ends.append([session.runs for session in (own, *rivals) if isinstance(session, ProfiledSession)])
        if self.is_profiled:
            races = with_kernels(races, (own, *rivals), ends)
            for place, setting in enumerate((self.original.setting, *[self.setting] * len(rivals))):
                told = ((times.original, *times.candidates)[place].kernels for times in races)
                self._record_kernels(filter(None, told), setting)
        timed: list[tuple[Mapping[str, int], RaceTimes]] = []
        for trial, times in zip(self.original.trials, races, strict=True):
            waiting = iter(times.candidates)
            found = tuple(times.original if session is LIKE_ORIGINAL else next(waiting) for session in sessions)
            timed.append((trial.sizes, replace(times, candidates=found)))
        outcomes = judge_race(timed)
        winners = [each for each in outcomes[1:] if each.is_faster and each.gain.verdict is TimingVerdict.FASTER]
        asked = outcomes[1:] if winners else outcomes  # how fast the floor is may be open then
        is_steady = all(ratio.is_steady(timing) for outcome in asked for ratio in (outcome.speedup, outcome.gain))
        self.is_steady &= is_steady
        is_whole = all(len(times.original.seconds) >= schedule.rounds[0] for times in races)
        if self.is_cacheable and is_steady and is_whole:
            self.cache.put({self._race_key(keys): to_json(_RaceRecord(tuple(outcomes)))})
        return outcomes

    def _race_key(self, keys: Sequence[str]) -> str:
        return cache_key(*self._known_by, *keys)

    def _runner(self, session: Any, feeds: Mapping[str, Any], setting: SessionSetting) -> Callable[[], object]:
        """Return a call that runs a session once. Only what ONNX Runtime does is caught: other errors are graphopt's
        own.

        Raises:
            ModelError: ONNX Runtime refuses the inputs; the call raises it where it refuses to run.
        """
        try:
            call = make_runner(session, feeds, setting)
        except Exception as error:  # the classes that onnxruntime raises share no base
            raise _run_error(error) from error

        def run() -> None:
            try:
                call()
            except Exception as error:
                raise _run_error(error) from error

        return run

    # -- whether time was up -------------------------------------------------------------------------------------------

    def record_timeout(self, keys: Sequence[str]) -> None:
        """Remember that time was up when these models had raced: no later run is to try more of them, unless others
        held this one up."""
        if self.is_cacheable and self.is_steady and not self.budget.is_starved:
            self.cache.put({self._timeout_key(keys): ""})

    def had_timed_out(self, keys: Sequence[str]) -> bool:
        """Return whether time was up here once, in an earlier run or in this one."""
        return self.cache.get([self._timeout_key(keys)]).get(self._timeout_key(keys)) == ""

    def _timeout_key(self, keys: Sequence[str]) -> str:
        return cache_key(*self._known_by, "end", *keys)


def _time_briefly(run: Callable[[], object], clock: Callable[[], float], policy: SearchPolicy) -> list[float]:
    """Return the seconds of a few runs, or of the first if that takes long."""
    found: list[float] = []
    while len(found) < policy.pace_runs and sum(found) < policy.timing.warm_run_seconds:
        start = clock()
        run()
        found.append(clock() - start)
    return found


def _parse_share(text: str | None) -> float | None:
    """Return the number from 0 to 1 that a text of the cache holds; None where it holds none."""
    try:
        part = None if text is None else float(text)
    except ValueError:
        part = math.nan
    if part is None or 0 <= part <= 1:
        return part
    log.debug("an entry of the cache is not used, for it is no part of a whole")
    return None


def _parse_ratio(text: str | None) -> float | None:
    """Return the ratio of two times that a text of the cache holds; None where it holds none."""
    try:
        ratio = None if text is None else float(text)
    except ValueError:
        ratio = math.nan
    if ratio is None or 0 < ratio < math.inf:
        return ratio
    log.debug("an entry of the cache is not used, for it is no ratio of two times")
    return None


def min_race_seconds(once: float, policy: SearchPolicy, *, is_profiled: bool = False) -> float:
    """Return the seconds of a session in the shortest race and one run before it, if a run takes `once`."""
    fewest, _ = policy.profiled_rounds if is_profiled else policy.race_rounds
    return once + min_timing_seconds(once, fewest, policy.timing)


def model_digest(model: onnx_io.LoadedModel) -> str:
    """Identify all of a model that decides how fast it is."""
    return cache_key(graph_digest(model.graph), weights_digest(model.graph), model.functions_digest)


def weightless_digest(model: onnx_io.LoadedModel, simplified: Candidate) -> str | None:
    """Identify all of a model, and of what it was simplified to, that decides how fast these are, where the values of
    weights do not; else None."""
    digests = [speed_digest(graph) for graph in (model.graph, simplified.graph)]
    known = [digest for digest in digests if digest is not None]
    return cache_key(*known, model.functions_digest) if known == digests else None


def feeds_digest(feeds: Mapping[str, Any]) -> str:
    """Identify inputs by all their contents, on which the cost of a run may depend."""
    said = sha256()
    for name, value in feeds.items():
        said.update(name.encode())
        for array in value if isinstance(value, list) else [value]:
            plain = isinstance(array, np.ndarray) and not array.dtype.hasobject
            said.update(f" {array.dtype.name} {array.shape}".encode() if plain else b"")
            said.update(np.ascontiguousarray(array).tobytes() if plain else repr(np.array(array).tolist()).encode())
    return said.hexdigest()


def _run_error(error: Exception) -> ModelError:
    return ModelError(f"the model {RunFailedError('cannot be run', error)}")
