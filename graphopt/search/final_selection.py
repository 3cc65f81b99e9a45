"""The final selection: candidates for the whole model take turns, and only what is faster beyond noise is taken.

The simplified model is the floor. A find of the search is taken if two races show it to be faster than the floor, and
a third where the gain is small; simplifications are taken back if two races show that they make the model slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from graphopt.ir.graph import Graph
from graphopt.rewrite.candidates import Candidate
from graphopt.rewrite.simplify import DeadlineExceededError, Step
from graphopt.runtime.measure import Speedup, TimingVerdict, geometric_mean_speedup
from graphopt.search.moves import Solution
from graphopt.search.policy import SearchPolicy
from graphopt.search.race_outcomes import Measurement
from graphopt.search.race_series import RaceSeries
from graphopt.search.stopping import TimeBudget

RepeatSweep = Callable[[str, Candidate], Candidate | None]


@dataclass(eq=False)
class FinalSelection:
    """Finds the candidate to return."""

    contest: RaceSeries
    apply: Callable[[Graph, Solution], Sequence[Step]]
    """Carry a solution of the search over to a graph, in place. Raises DeadlineExceededError."""
    simplify: Callable[[Graph, frozenset[str] | None], Sequence[Step]]
    """Simplify a graph, in place, with these rules and passes alone, or with all. Raises DeadlineExceededError."""
    progress: Callable[[str, float], None] = lambda stage, done: None
    is_known_choice: bool = False
    """True where races have chosen the candidate for a model of the same structure: it is not the luckiest of many,
    so it has to win one race alone."""
    last_measurements: dict[Candidate, Measurement] = field(default_factory=dict)
    """Measurement of each candidate in the last race."""
    confirmations: list[Measurement] = field(default_factory=list)
    """Measurements of second and third races."""
    rematch_series: list[RaceSeries] = field(default_factory=list)
    """The series of the second and third races."""
    raced_keys: list[str] = field(default_factory=list)
    """The keys of the candidates of all races, in their order."""
    prior_races: int = 0
    """Number of races before the present series of tries: they do not count."""
    floor_rematch: Measurement | None = None
    """Measurement of the simplified model in a second race in which a find did not win."""

    @property
    def budget(self) -> TimeBudget:
        return self.contest.budget

    @property
    def policy(self) -> SearchPolicy:
        return self.contest.policy

    @property
    def measurements(self) -> list[Measurement]:
        """Measurements of all races."""
        return [*self.last_measurements.values(), *self.confirmations]

    @property
    def is_steady(self) -> bool:
        """False where a busy machine left a race open."""
        return all(series.is_steady for series in (self.contest, *self.rematch_series))

    def measurement_of(self, candidate: Candidate) -> Measurement:
        """Return the last measurement of a candidate, an empty one if there is none."""
        return self.last_measurements.get(candidate, Measurement(candidate))

    # -- candidates ----------------------------------------------------------------------------------------------------

    def race_sweeps(self, simplified: Candidate, sweeps: Sequence[Candidate], again: RepeatSweep) -> Candidate:
        """Return the fastest of the simplified model, alone, with one sweep and with several.

        Sweeps that gain are combined, all at once or, if that is no faster than the best of them, one by one; last
        come those that lead by less than a race can tell. Where to race each takes long, as with slow models, kernels
        tell which promise a gain.

        Args:
            simplified: the simplified model.
            sweeps: the simplified model with each sweep.
            again: applies a sweep, by its name, to a candidate that has others; None where it no longer matches.
        """
        able = sweeps
        if not sweeps:
            return simplified
        is_time = self._is_time_for(simplified, sweeps)
        promising = None
        if not is_time or self._takes_long(simplified, sweeps):
            promising = self._combine_promising(simplified, sweeps, again)
        if promising is not None:
            return promising
        if len(sweeps) > 1 and not is_time:
            seconds = self.budget.race_cost(1) + self.budget.confirmation_seconds
            whole = self._apply_all_sweeps(sweeps, again, seconds)
            if whole is not None:
                self._race_of_sweeps([simplified, whole])
                if self._beats(whole, simplified):
                    return whole
            able = self._affordable_candidates(simplified, sweeps)
        if able:
            self._race_of_sweeps([simplified, *able])
        faster = self._faster_candidates(able, simplified)
        best = self._combine_sweeps(simplified, faster, again) if faster else simplified
        return self._combine_small_gains(simplified, best, able, again)

    def _combine_promising(
        self, simplified: Candidate, sweeps: Sequence[Candidate], again: RepeatSweep
    ) -> Candidate | None:
        """Return the simplified model with the sweeps that gain by an estimate from the kernels that they change: with
        all of them or, if that promises no more than the best, with those that promise more beside it. Whether it is
        faster the race of the choice will show.

        Return None where there is no such estimate, or no time for it.
        """
        gains: dict[Candidate, float] = {}
        end = self.budget.screening_end
        for candidate in sweeps:
            is_over = bool(gains) and self.budget.clock() >= end  # to combine them takes its time, too
            count = 2 if gains else 3
            if self.budget.is_interrupted:
                break
            if not self._is_time_to_profile(count, "alone", simplified, candidate, is_over=is_over):
                continue  # of another an earlier run may have the profile
            if (gain := self._estimate_gain(candidate, simplified)) is not None:
                gains[candidate] = gain
        if not gains:
            return None
        able = [candidate for candidate, gain in gains.items() if gain > 1 + self.policy.least_saving]
        able.sort(key=lambda candidate: gains[candidate], reverse=True)
        if not able:
            return simplified
        best = self._more_promising(able, able[0], gains, simplified, again)
        for candidate in able[1:] if best is able[0] and len(able) > 2 else ():
            best = self._more_promising([best, candidate], best, gains, simplified, again)
        return simplified if self._is_below_noise(gains[best]) else best

    def _is_below_noise(self, gain: float) -> bool:
        """Return whether no race will tell a gain that is estimated to be so small."""
        return gain <= self.policy.timing.least_visible_speedup

    def _more_promising(
        self,
        parts: Sequence[Candidate],
        best: Candidate,
        gains: dict[Candidate, float],
        simplified: Candidate,
        again: RepeatSweep,
    ) -> Candidate:
        """Return a candidate with the sweeps of all parts if it promises more than the best one, by an estimate that is
        noted among the gains; else the best one."""
        if not self._is_time_to_profile(3, "together", simplified, *parts):
            return best
        both = self._apply_all_sweeps(parts, again, 0.0)
        if both is None:
            return best
        gains[both] = self._estimate_gain(both, simplified) or 0.0
        return both if gains[both] > gains[best] else best

    def _is_time_to_profile(self, count: int, how: str, *candidates: Candidate, is_over: bool = False) -> bool:
        """Return whether there is time to profile so many models, and it is not over; where an earlier run had none for
        these, there is none."""
        keys = ["profile", how, *(candidate.key for candidate in candidates)]
        if self.contest.had_timed_out(keys):
            return False
        if not is_over and self.budget.is_time_to_profile(count):
            return True
        self.contest.record_timeout(keys)
        return False

    def _estimate_gain(self, candidate: Candidate, floor: Candidate) -> float | None:
        """Return a gain by the kernels that differ; None where it is unknown, or after Ctrl-C."""
        try:
            return self.contest.estimate_gain(candidate, floor)
        except KeyboardInterrupt:
            self.budget.interrupt()
            return None

    def _race_of_sweeps(self, candidates: Sequence[Candidate]) -> None:
        """Let candidates take turns before the search."""
        self._race(candidates, share=self.policy.sweep_race_share)
        self.prior_races = len(self.raced_keys)

    def _combine_sweeps(self, simplified: Candidate, faster: Sequence[Candidate], again: RepeatSweep) -> Candidate:
        """Return the first of candidates with the sweeps of the others, all or one by one, where that is faster."""
        best, *others = faster
        whole = self._with_more_sweeps(simplified, best, others, again)
        if whole is best and len(others) > 1:
            for candidate in others:
                whole = self._with_more_sweeps(simplified, whole, [candidate], again)
        return whole

    def _combine_small_gains(
        self, simplified: Candidate, best: Candidate, raced: Sequence[Candidate], again: RepeatSweep
    ) -> Candidate:
        """Return the best candidate with all sweeps that led by less than one race can tell, where together they
        gain."""
        known, least = self.measurement_of(best).sweep_names, 1 + self.policy.least_saving
        found = [self.measurement_of(candidate) for candidate in raced if not self._beats(candidate, simplified)]
        leading = [each for each in found if _median_gain(each) > least and not each.sweep_names <= known]
        leading.sort(key=_median_gain, reverse=True)
        return self._with_more_sweeps(simplified, best, [each.candidate for each in leading], again)

    def _with_more_sweeps(
        self, simplified: Candidate, best: Candidate, others: Sequence[Candidate], again: RepeatSweep
    ) -> Candidate:
        """Return the best candidate, which may be the simplified model, with the sweeps of others if that is faster."""
        rivals = [] if best is simplified else [best]
        seconds = self.budget.race_cost(len(rivals) + 1) + self.budget.confirmation_seconds
        both = self._apply_all_sweeps([*rivals, *others], again, seconds)
        if both is None:
            return best
        self._race_of_sweeps([simplified, *rivals, both])
        gain, least = self.measurement_of(both).gain, _median_gain(self.measurement_of(best))
        is_more = gain is not None and (gain.low > least or gain.median > least + self.policy.timing.noise)
        return both if is_more and self._beats(both, simplified) else best

    def _is_time_for(self, simplified: Candidate, candidates: Sequence[Candidate]) -> bool:
        """Return whether these and the simplified model can take turns in their share of the time.

        A race that was run before can be run again, and one for which there was no time before has none now.
        """
        keys = [candidate.key for candidate in (simplified, *candidates)]
        if self.contest.had_timed_out(["sweeps", *keys]):
            return False
        share = self.policy.sweep_race_share * self.budget.remaining
        if self.contest.recorded_outcomes(keys) is not None or self.budget.race_cost(len(candidates)) <= share:
            return True
        self.contest.record_timeout(["sweeps", *keys])
        return False

    def _takes_long(self, simplified: Candidate, candidates: Sequence[Candidate]) -> bool:
        """Return whether a race of these takes so long that a few profiled runs are the better start."""
        keys = [candidate.key for candidate in (simplified, *candidates)]
        is_known = self.contest.recorded_outcomes(keys) is not None
        return not is_known and self.budget.race_cost(len(candidates)) >= self.policy.screened_race_seconds

    def _affordable_candidates(self, simplified: Candidate, alone: Sequence[Candidate]) -> Sequence[Candidate]:
        """Return as many as leave the time of a second race; never more than an earlier run could afford."""
        for count in range(0 if self.budget.is_interrupted else len(alone), 0, -1):
            keys = [candidate.key for candidate in (simplified, *alone[:count])]
            if self.contest.had_timed_out(["alone", *keys]):
                continue
            left = self.budget.remaining - self.budget.confirmation_seconds
            if self.contest.recorded_outcomes(keys) is not None or self.budget.race_cost(count) <= left:
                return alone[:count]
            self.contest.record_timeout(["alone", *keys])
        return ()

    def _affordable_rivals(self, simplified: Candidate, rivals: Sequence[Candidate]) -> Sequence[Candidate]:
        """Return as many as can surely take turns with the simplified model, and one at least; never more than an
        earlier run could afford."""
        for count in range(len(rivals), 1, -1):
            keys = [candidate.key for candidate in (simplified, *rivals[:count])]
            if self.contest.had_timed_out(["rivals", *keys]):
                continue
            if self.contest.recorded_outcomes(keys) is not None or self.budget.has_ample_time(count):
                return rivals[:count]
            self.contest.record_timeout(["rivals", *keys])
        return rivals[:1]

    def _apply_all_sweeps(self, faster: Sequence[Candidate], again: RepeatSweep, needed: float) -> Candidate | None:
        """Return the first of candidates with the sweeps of the others applied to it; None where none of these matches,
        or less time is left than is `needed` after that.
        """
        if len(faster) < 2 or self._is_over(needed):
            return None
        made = faster[0]
        try:
            for candidate in faster[1:]:
                made = again(self.measurement_of(candidate).sweeps[0].name, made) or made
        except KeyboardInterrupt:
            self.budget.interrupt()
            return None
        return None if made is faster[0] else made

    def _apply_solutions(self, base: Candidate, solutions: Sequence[Solution]) -> list[Candidate]:
        """Return a candidate with some solutions of the search, and that one simplified again; nothing without time.

        Where two parts meet that were changed alike, there may be views that cancel. But simplifying may also undo what
        the search has done: which is better is left to the timing.
        """
        plain = self.with_solutions(base, solutions)
        if plain is None:
            return []
        tidy = None if self.budget.remaining <= self.budget.reserved_seconds else self.simplified_again(plain)
        return [plain] if tidy is None or tidy is plain else [plain, tidy]

    def with_solutions(self, base: Candidate, solutions: Sequence[Solution]) -> Candidate | None:
        """Return a candidate with some solutions of the search; None without time."""

        def carry_over(graph: Graph) -> Iterator[Step]:
            return chain.from_iterable(self.apply(graph, solution) for solution in solutions)

        return self._derive(base, carry_over)

    def simplified_again(self, candidate: Candidate) -> Candidate | None:
        """Return a candidate, simplified once more; None without time."""
        return self._derive(candidate, lambda graph: self.simplify(graph, None))

    def _derive(self, base: Candidate, change: Callable[[Graph], Iterable[Step]]) -> Candidate | None:
        """Return the candidate that a change makes of a copy; None without time."""
        try:
            return self.contest.retry_once_interrupted(lambda: base.derive(change))
        except DeadlineExceededError:
            return None

    def _simplify_without(self, simplified: Candidate, names: frozenset[str]) -> Candidate | None:
        """Return the original simplified without some rules and passes; None without time."""
        kept = frozenset(step.name for step in simplified.steps) - names
        return self._derive(self._original_candidate, lambda graph: self.simplify(graph, kept))

    @property
    def _original_candidate(self) -> Candidate:
        return Candidate(self.contest.model.graph)

    # -- the choice ----------------------------------------------------------------------------------------------------

    def choose(
        self,
        simplified: Candidate,
        swept: Candidate,
        solutions: Sequence[Solution],
        alone: Sequence[Candidate] = (),
    ) -> Measurement:
        """Return the fastest candidate that is shown to be faster than the simplified model; without one, that model or
        the original.

        Args:
            simplified: the simplified model.
            swept: the candidate on which the solutions were found, which may be the simplified model.
            solutions: what the search found.
            alone: the simplified model with each sweep; the best of these may win if no other candidate does.
        """
        made = self._apply_solutions(swept, solutions) if solutions else []
        base = [] if swept is simplified else [swept]
        rivals = [*base, *made]
        if simplified.steps and not rivals and self._runs_as_original(simplified):
            return Measurement(simplified, is_original=True)
        if simplified.steps or rivals:
            able = self._affordable_rivals(simplified, [*made, *base])
            self._race([simplified, *able], share=self.policy.first_race_share)
            is_left = bool(base) and self.measurement_of(swept).outcome is None
            if is_left and not any(self._beats(candidate, simplified) for candidate in made):
                self._race([simplified, swept], share=self.policy.first_race_share)
        floor = self.measurement_of(simplified)
        if simplified.steps and rivals and floor.speedup is None and not floor.refusal:
            self._race([simplified], share=self.policy.first_race_share)  # no time was left for all of them
        if made and not any(self._improves(candidate, swept, simplified) for candidate in made):
            rivals += self._subsets(simplified, swept, solutions)
        spare = [candidate for candidate in alone if candidate is not swept and self._beats(candidate, simplified)]
        finalists = self._faster_candidates(rivals, simplified)[: self.policy.finalists]
        finalists += self._faster_candidates(spare, simplified)[:1]
        return (
            self._confirm(finalists, simplified)
            or self._confirm(self._faster_untimed(simplified, alone), simplified)
            or self._simplified_or_original(simplified)
        )

    def _runs_as_original(self, simplified: Candidate) -> bool:
        """Return whether ONNX Runtime runs the same for both models; False where there is no time to ask."""
        contest = self.contest
        is_asked = contest.is_comparable and not self.budget.is_interrupted
        return is_asked and contest.retry_once_interrupted(lambda: contest.is_like_original(simplified))

    def _faster_untimed(self, simplified: Candidate, alone: Sequence[Candidate]) -> list[Candidate]:
        """Return the fastest of the sweeps that were not timed, as far as there is time for them: what kernels promised
        of others has not come true. Sweeps whose estimated gain is below noise are skipped."""
        found = [self.measurement_of(each) for each in alone]
        promised = (self.contest.estimates.get(each.sweep_names) for each in found)
        able = [
            each.candidate
            for each, gain in zip(found, promised, strict=True)
            if each.outcome is None and not each.refusal and not (gain is not None and self._is_below_noise(gain))
        ]
        able = [*self._affordable_candidates(simplified, able)]
        if able:
            self._race([simplified, *able], share=self.policy.first_race_share)
        return self._faster_candidates(able, simplified)[:1]

    def _subsets(self, simplified: Candidate, base: Candidate, solutions: Sequence[Solution]) -> Iterator[Candidate]:
        """Yield candidates with each half of the solutions, then with each half of the better half, and so on."""
        left = list(solutions)
        while len(left) > 1 and not self._is_over():
            middle = len(left) // 2
            parts = {
                made: part for part in (left[:middle], left[middle:]) for made in self._apply_solutions(base, part)
            }
            if not parts:
                return
            self._race([simplified, *parts], share=self.policy.subset_race_share)
            yield from parts
            if any(self._improves(half, base, simplified) for half in parts):
                return
            left = parts[max(parts, key=lambda half: _median_gain(self.measurement_of(half)))]

    def _confirm(self, finalists: Sequence[Candidate], simplified: Candidate) -> Measurement | None:
        """Return the first finalist that wins a second race too, or that needs none where no time is left for it.

        The fastest of several was usually lucky, so the race that it won overstates its gain. A gain that is no larger
        than what sessions of one model differ by has to win a third race, if there is time.
        """
        self.prior_races = len(self.raced_keys)
        for number, candidate in enumerate(finalists):
            if number and self._is_over(self.budget.confirmation_seconds):
                break
            first = self.measurement_of(candidate)
            if self.is_known_choice:
                return first
            floor, twin = self._rematch(simplified, candidate)
            if twin.beats(floor) and self._needs_third_race(twin.gain):
                again = self._rematch(simplified, candidate, heat=3)
                floor, twin = again if again[1].outcome is not None else (floor, twin)
            if floor.speedup is not None:
                self.floor_rematch = floor
            if twin.beats(floor):
                return _combine_races(first, twin)
            if twin.outcome is None and not twin.refusal and first.needs_no_second_race:
                return replace(first, is_unconfirmed=True)
            if first.outcome and first.gain and twin.gain:
                gain = min(first.gain, twin.gain, key=lambda ratio: ratio.median)
                self.last_measurements[candidate] = replace(
                    first, outcome=replace(first.outcome, gain=gain), has_lost=True
                )
        return None

    def _simplified_or_original(self, simplified: Candidate) -> Measurement:
        """Return the simplified model if it runs and is not slower; else a part of it that two races show to be better,
        or the original.

        Where no time is left for a second race, one that shows the model to be slower is enough to leave it, and one
        that shows it to be faster makes a gain only if it leaves no doubt.
        """
        self.prior_races = len(self.raced_keys)
        first, original = self.measurement_of(simplified), Measurement(self._original_candidate)
        if not simplified.steps:  # whatever was measured, it is the original
            return Measurement(simplified)
        if first.refusal:
            return self._reduce_simplified(simplified) or original
        if first.speedup is None:
            return first
        twin = self.floor_rematch or self._rematch(simplified)[0]
        if twin.speedup is None:
            first = self.last_measurements[simplified] = replace(first, is_unconfirmed=True)
            if first.needs_no_second_race and not twin.refusal:
                return first
            return original if first.is_slower else twin if first.is_faster else first
        if first.is_slower and twin.is_slower:
            return self._reduce_simplified(simplified) or original
        if first.is_faster and twin.is_faster and self._needs_third_race(twin.speedup):
            (again,) = self._rematch(simplified, heat=3)
            twin = again if again.outcome is not None else twin
        seen = _combine_races(first, twin)
        return original if seen.is_slower else seen

    def _reduce_simplified(self, simplified: Candidate) -> Measurement | None:
        """Return the simplified model without the rewrites that make it slower, or keep it from running; None where two
        races do not show that to be better."""
        names = list(dict.fromkeys(step.name for step in simplified.steps))
        guilty = self._find_culprits(simplified, names, frozenset())
        candidate = None if len(guilty) == len(names) else self._simplify_without(simplified, guilty)
        if candidate is None or not candidate.steps:
            return None
        floor = self.measurement_of(simplified)
        beside = [] if floor.refusal else [simplified]
        self._race([*beside, candidate], share=self.policy.subset_race_share)  # known, if it was among the halves
        if not _fixes_regression(self.measurement_of(candidate), floor):
            return None
        *_, twin = self._rematch(*beside, candidate)
        return _combine_races(self.measurement_of(candidate), twin) if _fixes_regression(twin, floor) else None

    def _find_culprits(self, simplified: Candidate, suspects: Sequence[str], gone: frozenset[str]) -> frozenset[str]:
        """Return the fewest of the suspects that have to go, beside what is gone, for the regression to end."""
        if len(suspects) == 1 or self._is_over():
            return frozenset(suspects)
        middle = len(suspects) // 2
        halves = suspects[:middle], suspects[middle:]
        tried = [(half, self._simplify_without(simplified, gone.union(half))) for half in halves]
        floor = self.measurement_of(simplified)
        beside = [] if floor.refusal else [simplified]
        made = [candidate for _, candidate in tried if candidate is not None]
        self._race([*beside, *made], share=self.policy.subset_race_share)
        for half, candidate in tried:
            if candidate is not None and _fixes_regression(self.measurement_of(candidate), floor):
                return self._find_culprits(simplified, half, gone)
        first = self._find_culprits(simplified, halves[0], gone.union(halves[1]))
        return first | self._find_culprits(simplified, halves[1], gone | first)

    def _beats(self, candidate: Candidate, floor: Candidate) -> bool:
        return self.measurement_of(candidate).beats(self.measurement_of(floor))

    def _improves(self, candidate: Candidate, base: Candidate, simplified: Candidate) -> bool:
        """Return whether a candidate is faster than the simplified model, and no slower than its own base."""
        is_slower = base is not simplified and _median_gain(self.measurement_of(candidate)) < _median_gain(
            self.measurement_of(base)
        )
        return self._beats(candidate, simplified) and not is_slower

    def _faster_candidates(self, candidates: Iterable[Candidate], simplified: Candidate) -> list[Candidate]:
        """Return the candidates that are shown to be faster than the simplified model, the fastest first."""
        faster = (candidate for candidate in candidates if self._beats(candidate, simplified))
        return sorted(faster, key=lambda candidate: _median_gain(self.measurement_of(candidate)), reverse=True)

    # -- races ---------------------------------------------------------------------------------------------------------

    def _race(self, candidates: Sequence[Candidate], share: float) -> None:
        """Let candidates take turns, and note their measurements."""
        self._open_contest(candidates)
        for found in self.contest.race(candidates, share) if candidates else ():
            if found.outcome is None:  # an earlier measurement stays
                found = replace(self.measurement_of(found.candidate), refusal=found.refusal)
            self.last_measurements[found.candidate] = found

    def _needs_third_race(self, gain: Speedup | None) -> bool:
        """Return whether a gain may be that of lucky sessions, and there is time to see: kernels that differ tell of
        none."""
        is_small = gain is not None and not gain.is_by_kernels and gain.low < 1 + self.policy.session_margin
        return is_small and not self._is_over(self.budget.confirmation_seconds)

    def _rematch(self, *candidates: Candidate, heat: int = 2) -> list[Measurement]:
        """Return the measurements of candidates in a second race, or in a later one."""
        self._open_contest(candidates)
        series = self.contest
        for _ in range(heat - 1):
            series = series.next_series()
        self.rematch_series.append(series)
        found = series.race(candidates, self.policy.second_race_share)
        self.confirmations += found
        return found

    def _open_contest(self, candidates: Sequence[Candidate]) -> None:
        self.progress("time", min(0.95, (len(self.raced_keys) - self.prior_races) / self.policy.tries))
        self.raced_keys += [candidate.key for candidate in candidates]

    def _is_over(self, needed: float | None = None) -> bool:
        """Return whether enough was tried, or no more time is left than is `needed` (by default, the reserve).

        Where an earlier run stopped, this one does, too: otherwise it might choose another candidate.
        """
        if len(self.raced_keys) - self.prior_races >= self.policy.tries or self.contest.had_timed_out(self.raced_keys):
            return True
        if not self.budget.is_over(self.budget.reserved_seconds if needed is None else needed):
            return False
        if self.raced_keys:
            self.contest.record_timeout(self.raced_keys)
        return True


def _combine_races(first: Measurement, second: Measurement) -> Measurement:
    """Return the second measurement of a candidate, but no faster or slower than the original unless both races say
    so."""
    one, other = first.outcome, second.outcome
    if one is None or other is None or (first.is_faster and second.is_faster):
        return second
    for seen in (second, first):
        if seen.outcome and not seen.is_faster and not seen.is_slower:
            agreed = replace(other, speedup=seen.outcome.speedup, latencies=seen.latencies)
            return replace(second, outcome=agreed)
    pairs = zip(one.latencies, other.latencies, strict=True)
    latencies = tuple(
        replace(after, speedup=_combine_speedups(before.speedup, after.speedup)) for before, after in pairs
    )
    return replace(
        second, outcome=replace(other, speedup=_combine_speedups(one.speedup, other.speedup), latencies=latencies)
    )


def _combine_speedups(one: Speedup, other: Speedup) -> Speedup:
    """Return two ratios as one, where one says faster and the other slower: it may be a loss, and is never a gain."""
    return replace(geometric_mean_speedup([one, other]), low=min(one.low, other.low, 1.0))


def _fixes_regression(found: Measurement, floor: Measurement) -> bool:
    """Return whether a candidate is better than a simplified model that is slower than the original, or does not
    run."""
    if found.speedup is None or found.is_slower:
        return False
    return bool(floor.refusal) or (found.gain is not None and found.gain.verdict is TimingVerdict.FASTER)


def _median_gain(found: Measurement) -> float:
    return found.gain.median if found.gain is not None else 0.0
