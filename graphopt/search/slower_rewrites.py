"""Rewrites that lose time though they make the model smaller: the simplified model races with versions without them.

The names of the rules and passes that were applied are halved; of the halves the one with the larger gain is halved
next, until each name was tried alone or the time is up. A name is shown to be slower by two races in sessions of
their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from graphopt.base.errors import ModelError
from graphopt.rewrite.candidates import Candidate
from graphopt.rewrite.simplify import DeadlineExceededError
from graphopt.runtime.measure import Speedup, TimingVerdict
from graphopt.search.model_tuner import Tuner
from graphopt.search.race_outcomes import Measurement
from graphopt.search.race_series import RaceSeries
from graphopt.search.search_report import format_speedup
from graphopt.search.stopping import TimeBudget


@dataclass(frozen=True, slots=True)
class WithoutRewrites:
    """Race of the simplified model with a version that does without some rewrites."""

    names: tuple[str, ...]
    """Rules and passes that the version does without."""
    gain: Speedup | None = None
    """Speedup of the version over the simplified model: above 1, the rewrites lose time. None if untimed."""
    second_gain: Speedup | None = None
    """The same in a second race, which only a version that won the first is given."""
    refusal: str = ""
    """Reason why it was not timed."""

    @property
    def is_shown(self) -> bool:
        """True if two races show that the version is faster without the rewrites."""
        gains = (self.gain, self.second_gain)
        return all(gain is not None and gain.verdict is TimingVerdict.FASTER for gain in gains)

    def __str__(self) -> str:
        names = ", ".join(self.names)
        if self.gain is None:
            return f"without {names}: {self.refusal or 'not timed'}"
        second = f", and {format_speedup(self.second_gain)} in a second race" if self.second_gain else ""
        return f"without {names}: {format_speedup(self.gain)}{second}"


@dataclass(frozen=True, slots=True)
class SlowerRewrites:
    """Result of the search for rewrites that lose time."""

    simplified: Speedup | None = None
    """Speedup of the simplified model over the original, in the race of the most rounds; None if untimed."""
    races: tuple[WithoutRewrites, ...] = ()
    """The races, those of single names first."""
    slower: tuple[str, ...] = ()
    """Names of the rules and passes that are shown to lose time."""
    untried: tuple[str, ...] = ()
    """Names that were not tried alone, for the time was up."""
    reason: str = ""
    """Reason why nothing was timed."""

    def __str__(self) -> str:
        if self.reason:
            return f"what loses time is not known: {self.reason}"
        ratio = "not timed" if self.simplified is None else f"{format_speedup(self.simplified)} as the original"
        lines = [f"the simplified model is {ratio}", *(f"    {race}" for race in self.races)]
        if self.slower:
            lines.append(f"shown to be slower: {', '.join(self.slower)}; --skip leaves them out")
        else:
            lines.append("none shown to be slower")
        if self.untried:
            lines.append(f"not tried alone, for the time was up (--seconds gives it longer): {', '.join(self.untried)}")
        return "\n".join(lines)


def find_slower_rewrites(tuner: Tuner) -> SlowerRewrites:
    """Race the simplified model of a tuner with versions that do without some of its rewrites, in the tuner's time.

    Raises:
        UsageError: this onnxruntime lacks the provider, or the model has no such dim.
    """
    budget = TimeBudget(tuner.tuning.policy, tuner.tuning.seconds, tuner.clock)
    if not tuner.simplified.steps:
        return SlowerRewrites(reason="nothing was applied")
    try:
        contest = tuner.open_races(budget)
    except ModelError as error:
        return SlowerRewrites(reason=str(error).removeprefix("not timed: "))
    return _SlowerSearch(tuner, contest).run()


@dataclass(eq=False)
class _SlowerSearch:
    """Halves the names of rewrites, and races the versions without each half."""

    tuner: Tuner
    contest: RaceSeries
    races: dict[tuple[str, ...], WithoutRewrites] = field(default_factory=dict)
    versions: dict[tuple[str, ...], Candidate] = field(default_factory=dict)
    simplified: Speedup | None = None
    """Speedup of the simplified model over the original, in the race of the most rounds; None if untimed."""

    def run(self) -> SlowerRewrites:
        names = tuple(dict.fromkeys(step.name for step in self.tuner.simplified.steps))
        self._race_with_simplified(self.contest, [], self.contest.policy.first_race_share)
        waiting, most = [names], 2 * len(names)
        if len(names) == 1:
            self._race([names])
        while (group := self._next_group(waiting)) and not self._is_over:
            waiting.remove(group)
            self.tuner.progress("time", len(self.races) / most)
            middle = len(group) // 2
            halves = [group[:middle], group[middle:]]
            self._race(halves)
            waiting += halves
        self._confirm()
        order = sorted(self.races.values(), key=lambda race: (len(race.names), -_median(race)))
        alone = [race for race in order if len(race.names) == 1]
        tried = {race.names[0] for race in alone}
        return SlowerRewrites(
            self.simplified,
            tuple(order),
            tuple(race.names[0] for race in alone if race.is_shown),
            tuple(name for name in names if name not in tried),
        )

    @property
    def _is_over(self) -> bool:
        return self.contest.budget.is_over(self.contest.budget.race_cost(1))

    def _next_group(self, waiting: Sequence[tuple[str, ...]]) -> tuple[str, ...] | None:
        """Return the group of several names without which the model is the fastest; None where there is none."""
        several = [group for group in waiting if len(group) > 1]
        return max(several, key=lambda group: _median(self.races.get(group)), default=None)

    def _race(self, groups: Sequence[tuple[str, ...]]) -> None:
        """Race the simplified model with the versions without each of some groups."""
        made = {group: version for group in groups if (version := self._version_without(group)) is not None}
        found = self._race_with_simplified(self.contest, [*made.values()], self.contest.policy.subset_race_share)
        for group, measurement in zip(made, found, strict=True):
            if measurement.gain is not None or measurement.refusal:
                self.versions[group] = made[group]
                self.races[group] = WithoutRewrites(group, measurement.gain, refusal=measurement.refusal)

    def _race_with_simplified(
        self, series: RaceSeries, versions: Sequence[Candidate], share: float
    ) -> list[Measurement]:
        """Race the simplified model with some versions, and return the measurements of these."""
        floor, *found = series.race([self.tuner.simplified, *versions], share)
        rounds = self.simplified.rounds if self.simplified else 0
        if floor.speedup is not None and floor.speedup.rounds >= rounds:
            self.simplified = floor.speedup
        return found

    def _version_without(self, names: tuple[str, ...]) -> Candidate | None:
        """Return the original simplified without some rules and passes; None where no time is left."""
        simplified, original = self.tuner.simplified, Candidate(self.contest.model.graph)
        kept = frozenset(step.name for step in simplified.steps) - frozenset(names)
        change = partial(self.tuner.simplify_with, names=kept, deadline=self.contest.budget.deadline)
        try:
            return self.contest.retry_once_interrupted(lambda: original.derive(change))
        except DeadlineExceededError:
            return None

    def _confirm(self) -> None:
        """Race each version without one name that won once more, in sessions of its own."""
        series = self.contest.next_series()
        for group, race in self.races.items():
            if len(group) == 1 and race.gain is not None and race.gain.verdict is TimingVerdict.FASTER:
                share = self.contest.policy.second_race_share
                (twin,) = self._race_with_simplified(series, [self.versions[group]], share)
                self.races[group] = WithoutRewrites(group, race.gain, twin.gain)


def _median(race: WithoutRewrites | None) -> float:
    return race.gain.median if race is not None and race.gain is not None else 0.0
