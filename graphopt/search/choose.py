"""The last word: versions of the whole model take turns, and only what is faster beyond noise is taken.

The simplified model is the floor. What a search found is taken where it is shown, twice, to be faster than that; and of
the simplifications that part is taken back which is shown, twice, to make the model slower.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, TypeVar

from graphopt.base.errors import ModelError
from graphopt.io import onnx_io
from graphopt.ir.graph import Graph
from graphopt.rewrite.candidate import Candidate
from graphopt.rewrite.fixpoint import Step, TimeUp
from graphopt.runtime.measure import Speedup, TimingPolicy, Verdict, together
from graphopt.search.moves import Solution
from graphopt.search.policy import SearchPolicy
from graphopt.search.race import Contest, Latency, Outcome
from graphopt.search.stopping import Budget
from graphopt.search.sweep import Sweep

log = logging.getLogger(__name__)

Found = TypeVar("Found")

Again = Callable[[str, Candidate], Candidate | None]


@dataclass(eq=False)
class Version:
    """A candidate of the model's graph, and how fast it is."""

    candidate: Candidate
    speedup: Speedup | None = None
    """Over the original; None where it was not timed."""
    gain: Speedup | None = None
    """Over the simplified model, in the same race."""
    latencies: tuple[Latency, ...] = ()
    is_original: bool = False
    """Whether ONNX Runtime runs of it what it runs of the original, so that there is nothing to time."""
    refusal: str = ""
    """Why it could not be timed: ONNX Runtime refuses it, or there was no room."""
    has_lost: bool = False
    """Whether it won a race and not the second."""
    is_unconfirmed: bool = False
    """Whether no time or room was left for a second race."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """What made it of the original."""
        return self.candidate.steps

    @property
    def key(self) -> str:
        return self.candidate.key

    @property
    def sweeps(self) -> tuple[Sweep, ...]:
        """The sweeps that it was made by, in their order."""
        return tuple(cause for cause in self.candidate.causes if isinstance(cause, Sweep))

    @property
    def solutions(self) -> tuple[Solution, ...]:
        """The finds of the search that it was made by, in their order."""
        return tuple(cause for cause in self.candidate.causes if isinstance(cause, Solution))

    @property
    def is_faster(self) -> bool:
        """By more than noise, and slower at no size; the original is not, whatever is measured."""
        if not self.steps or self.speedup is None or self.is_slower:
            return False
        return self.speedup.verdict is Verdict.FASTER

    @property
    def is_slower(self) -> bool:
        """By more than noise, at some size: what is gained at others does not make up for that."""
        ratios = [latency.speedup for latency in self.latencies] + [self.speedup] * (self.speedup is not None)
        return any(ratio.verdict is Verdict.SLOWER for ratio in ratios if ratio is not None)

    def beats(self, floor: Version, policy: TimingPolicy) -> bool:
        """Return whether it is shown to be faster than the simplified model was in the same race.

        Where that is no gain itself, what is a gain over the original has to be faster only beyond doubt, not by more
        than noise; on a busy machine there is doubt about all that copies of the original differ by.
        """
        if self.gain is None or self.is_slower:
            return False
        is_sure = self.is_faster and not floor.is_faster and self.gain.low > 1 and self.gain.is_steady(policy)
        return self.gain.verdict is Verdict.FASTER or is_sure


@dataclass(eq=False)
class Chooser:
    """Finds the version to return."""

    contest: Contest
    model: onnx_io.Model
    """As it was loaded."""
    apply: Callable[[Graph, Solution], Sequence[Step]]
    """Carry a solution of the search over to a graph, in place. Raises TimeUp."""
    simplify: Callable[[Graph, frozenset[str] | None], Sequence[Step]]
    """Simplify a graph, in place, with these rules and passes alone, or with all. Raises TimeUp."""
    budget: Budget
    progress: Callable[[str, float], None] = lambda stage, done: None
    raced: list[Version] = field(default_factory=list)
    """All that took part in the races of the contest."""
    before: int = 0
    """How many of them before the tries that are made now: these do not count."""
    floor_again: Version | None = None
    """What the second race tells of the simplified model, in which a find did not win."""
    told: dict[tuple[str, ...], list[Outcome]] = field(default_factory=dict)
    """What the races of the contest told, by the digests of those that took part: no race is run twice."""

    # -- what takes part -----------------------------------------------------------------------------------------------

    def race_sweeps(
        self, simplified: Version, sweeps: Iterable[Candidate], again: Again
    ) -> tuple[Version, list[Version]]:
        """Return the fastest of the simplified model, it with one sweep and it with several; and it with each alone.

        Those that gain are made together, or one by one where all are no faster than the best of them. Where there is
        no time for a race of each, as of large models, all of them are tried first.

        Args:
            sweeps: the simplified model with each.
            again: makes the sweep of a name of a candidate with others; None where it does not match there any more.
        """
        alone = [Version(made) for made in sweeps]
        able: Sequence[Version] = alone
        if len(alone) > 1 and not self._is_time_for(simplified, alone):
            whole = self._together(alone, again, self.budget.taken_by(1))
            if whole is not None:
                self._race_of_sweeps([simplified, whole])
                if self._beats(whole, simplified):
                    return whole, alone
            able = self._affordable(simplified, alone)
        if able:
            self._race_of_sweeps([simplified, *able])
        faster = self._fastest(able, simplified)
        return self._combined(simplified, faster, again) if faster else simplified, alone

    def _race_of_sweeps(self, versions: Sequence[Version]) -> None:
        """Let versions take turns before the search."""
        self._race(versions, self.contest, share=self.policy.sweep_race_share)
        self.before = len(self.raced)

    def _combined(self, simplified: Version, faster: Sequence[Version], again: Again) -> Version:
        """Return the first of versions, with the sweeps of the others too if that is faster: of all, or one by one."""

        def improved(best: Version, others: Sequence[Version]) -> Version:
            both = self._together([best, *others], again, self.budget.taken_by(2))
            if both is None:
                return best
            self._race_of_sweeps([simplified, best, both])
            return (
                both
                if self._beats(both, simplified) and both.gain is not None and both.gain.low > _gain(best)
                else best
            )

        best, *others = faster
        whole = improved(best, others)
        if whole is best and len(others) > 1:
            for version in others:
                whole = improved(whole, [version])
        return whole

    def _is_time_for(self, simplified: Version, versions: Sequence[Version]) -> bool:
        """Return whether these and the simplified model can take turns in the share; where they did, they can again,
        and where they could not, they cannot.
        """
        keys = [version.key for version in (simplified, *versions)]
        if self.contest.has_ended(["sweeps", *keys]):
            return False
        share = self.policy.sweep_race_share * self.budget.left
        if self.contest.known(keys) is not None or self.budget.taken_by(len(versions)) <= share:
            return True
        self.contest.end(["sweeps", *keys])
        return False

    def _affordable(self, simplified: Version, alone: Sequence[Version]) -> Sequence[Version]:
        """Return as many as leave the time of a second race; where fewer did once, no more."""
        for count in range(0 if self.budget.is_interrupted else len(alone), 0, -1):
            keys = [version.key for version in (simplified, *alone[:count])]
            if self.contest.has_ended(["alone", *keys]):
                continue
            left = self.budget.left - self.budget.confirming
            if self.contest.known(keys) is not None or self.budget.taken_by(count) <= left:
                return alone[:count]
            self.contest.end(["alone", *keys])
        return ()

    def _together(self, faster: Sequence[Version], again: Again, racing: float) -> Version | None:
        """Return the first of versions, and the sweep of each other made on it, one after the other; None where none of
        these matches there, or no time is left to race it, which takes so long, and to confirm it.
        """
        if len(faster) < 2 or self._is_over(racing + self.budget.confirming):
            return None
        made = faster[0]
        try:
            for version in faster[1:]:
                further = again(version.sweeps[0].name, made.candidate)
                made = made if further is None else Version(further)
        except KeyboardInterrupt:
            self.hurry()
            return None
        return None if made is faster[0] else made

    def _explored(self, base: Version, solutions: Sequence[Solution]) -> list[Version]:
        """Return a version with some solutions of the search; and the same simplified once more; none without time.

        Where two parts meet that were changed alike, there may be views that cancel. But simplifying may also undo what
        the search has done: which is better is left to the timing.
        """

        def carry_over(graph: Graph) -> Iterator[Step]:
            return chain.from_iterable(self.apply(graph, solution) for solution in solutions)

        try:
            candidate = self._insisted(self.contest, lambda: base.candidate.then(carry_over))
        except TimeUp:
            return []
        plain = Version(candidate)
        if self.budget.left <= self.budget.reserve:
            return [plain]
        try:
            tidy = self._insisted(self.contest, lambda: candidate.then(lambda graph: self.simplify(graph, None)))
        except TimeUp:
            return [plain]
        return [plain] if tidy is candidate else [plain, Version(tidy)]

    def _without(self, simplified: Version, names: frozenset[str]) -> Version | None:
        """Return the original simplified without these rules and passes; None without time."""
        kept, original = frozenset(step.name for step in simplified.steps) - names, Candidate(self.model.graph)
        try:
            return Version(
                self._insisted(self.contest, lambda: original.then(lambda graph: self.simplify(graph, kept)))
            )
        except TimeUp:
            return None

    # -- which one it is -----------------------------------------------------------------------------------------------

    def choose(
        self, simplified: Version, swept: Version, solutions: Sequence[Solution], alone: Sequence[Version] = ()
    ) -> Version:
        """Return the fastest version that is shown to be faster than the simplified model; or that one, if it is not
        slower.

        Args:
            swept: the version on which the solutions were found, which may be the simplified model.
            alone: the simplified model with each sweep, of which the best may win if no other version does.
        """
        made = self._explored(swept, solutions) if solutions else []
        rivals = [*([] if swept is simplified else [swept]), *made]
        if simplified.steps and not rivals and not self.budget.is_interrupted and self._is_original(simplified):
            return replace(_untimed(simplified), is_original=True)
        if simplified.steps or rivals:
            self._race([simplified, *rivals], self.contest, share=self.policy.first_race_share)
        if simplified.steps and rivals and simplified.speedup is None and not simplified.refusal:
            # no time was left for all of them
            self._race([simplified], self.contest, share=self.policy.first_race_share)
        if made and not any(self._improves(version, swept, simplified) for version in made):
            rivals += self._fewer(simplified, swept, solutions)
        spare = [version for version in alone if version is not swept and self._beats(version, simplified)]
        finalists = self._fastest(rivals, simplified)[: self.policy.finalists]
        finalists += self._fastest(spare, simplified)[:1]
        return self._confirmed(finalists, simplified) or self._floor(simplified)

    def _is_original(self, version: Version) -> bool:
        """Return whether ONNX Runtime runs of a version what it runs of the original."""
        return self._insisted(self.contest, lambda: self.contest.is_original(self._model(version)))

    def _fewer(self, simplified: Version, base: Version, solutions: Sequence[Solution]) -> Iterator[Version]:
        """Where all solutions together do not win: each half, then each that remains of the better half."""
        left = list(solutions)
        while len(left) > 1 and not self._is_over():
            middle = len(left) // 2
            halves = [made for part in (left[:middle], left[middle:]) for made in self._explored(base, part)]
            if not halves:
                return
            self._race([simplified, *halves], self.contest, share=self.policy.subset_race_share)
            yield from halves
            if any(self._improves(half, base, simplified) for half in halves):
                return
            left = list(max(halves, key=_gain).solutions)

    def _confirmed(self, finalists: Sequence[Version], simplified: Version) -> Version | None:
        """Return the first of these that wins a second race too.

        The fastest of several was lucky, as a rule: what it is worth, the race that it won does not tell.
        """
        self.before = len(self.raced)
        for number, version in enumerate(finalists):
            if number and self._is_over(self.budget.confirming):
                break
            floor, twin = self._again(simplified, version)
            if floor.speedup is not None:
                self.floor_again = floor
            if self._beats(twin, floor):
                return _agreed(version, twin)
            version.has_lost = twin.gain is not None
            version.gain = min(filter(None, (version.gain, twin.gain)), key=lambda ratio: ratio.median)
        return None

    def _again(self, *versions: Version) -> list[Version]:
        """Return what a second race says of versions; nothing where time is up."""
        twins = [_untimed(version) for version in versions]
        self._race(twins, self.contest.again(), share=self.policy.second_race_share)
        return twins

    def _floor(self, simplified: Version) -> Version:
        """Return the simplified model unless it does not run, or is slower; then less of it where two races show that
        this is better, and else the original.

        One race makes no gain; but what it shows to be slower is not returned where no time is left for a second.
        """
        self.before = len(self.raced)
        original = Version(Candidate(self.model.graph))
        if not simplified.steps:  # whatever was measured, it is the original
            return Version(simplified.candidate)
        if simplified.refusal:
            return self._reduced(simplified) or original
        if simplified.speedup is None:
            return simplified
        twin = self.floor_again or self._again(simplified)[0]
        if twin.speedup is None:
            simplified.is_unconfirmed = True
            return original if simplified.is_slower else twin if simplified.is_faster else simplified
        if simplified.is_slower and twin.is_slower:
            ratios, timing = (simplified.speedup, twin.speedup), self.policy.timing
            is_steady = all(ratio.is_steady(timing) for ratio in ratios)  # else chance would tell which part
            return (self._reduced(simplified) if is_steady else None) or original
        seen = _agreed(simplified, twin)
        return original if seen.is_slower else seen

    def _reduced(self, simplified: Version) -> Version | None:
        """Return the simplified model without what makes it slower, or keeps it from running; None where two races show
        of no part of it that it is better."""
        names = list(dict.fromkeys(step.name for step in simplified.steps))
        guilty = self._guilty(simplified, names, frozenset())
        version = None if len(guilty) == len(names) else self._without(simplified, guilty)
        if version is None or not version.steps:
            return None
        beside = [] if simplified.refusal else [_untimed(simplified)]
        self._race([*beside, version], self.contest, share=self.policy.subset_race_share)
        if not _cures(version, simplified):
            return None
        *_, twin = self._again(*beside, version)
        return _agreed(version, twin) if _cures(twin, simplified) else None

    def _guilty(self, simplified: Version, suspects: Sequence[str], gone: frozenset[str]) -> frozenset[str]:
        """Return the fewest of the suspects without which, and without what is gone, the model is as it should be."""
        if len(suspects) == 1 or self._is_over():
            return frozenset(suspects)
        middle = len(suspects) // 2
        halves = suspects[:middle], suspects[middle:]
        tried = [(half, self._without(simplified, gone.union(half))) for half in halves]
        versions = [version for _, version in tried if version is not None]
        beside = [] if simplified.refusal else [simplified]
        self._race([*beside, *versions], self.contest, share=self.policy.subset_race_share)
        for half, version in tried:
            if version is not None and _cures(version, simplified):
                return self._guilty(simplified, half, gone)
        first = self._guilty(simplified, halves[0], gone.union(halves[1]))
        return first | self._guilty(simplified, halves[1], gone | first)

    def _beats(self, version: Version, floor: Version) -> bool:
        return version.beats(floor, self.policy.timing)

    def _improves(self, version: Version, base: Version, simplified: Version) -> bool:
        """Return whether a version is faster than the simplified model, and no slower than what it was made of."""
        return self._beats(version, simplified) and (base is simplified or _gain(version) >= _gain(base))

    def _fastest(self, versions: Iterable[Version], simplified: Version) -> list[Version]:
        """Return those that are shown to be faster than the simplified model, the fastest first."""
        return sorted((each for each in versions if self._beats(each, simplified)), key=_gain, reverse=True)

    # -- races ---------------------------------------------------------------------------------------------------------

    def _race(self, versions: Sequence[Version], contest: Contest, share: float) -> None:
        """Let versions take turns, for a share of the time that is left; the gain of each is over the first.

        Of a first race so much is left that its winner can win a second one, also where all takes longer by now than
        it did at the beginning.
        """
        self.progress("time", min(0.95, (len(self.raced) - self.before) / self.policy.tries))
        self.raced += versions
        able = [version for version in versions if not version.refusal]
        outcomes = self._known(able, contest)
        if outcomes is None:
            is_first = contest is self.contest
            budget = self.budget
            kept = budget.kept_by(len(able)) if is_first else 0.0
            if budget.left - kept <= budget.pace.opening * (len(able) + 2 * (not is_first)):
                return
            if is_first and len(able) > 1 and budget.left - kept < budget.taken_by(len(able) - 1):
                return  # one version alone may do with less than what is estimated
            sessions = [self._opened(version, contest) for version in able]
            outcomes = self._outcomes(able, sessions, contest, share, kept)
        able = [version for version in able if not version.refusal]
        if contest is self.contest and outcomes:
            self.told[tuple(version.key for version in able)] = outcomes
        for version, outcome in zip(able, outcomes or (), strict=bool(outcomes)):
            version.speedup, version.latencies = outcome.speedup, outcome.latencies
            version.gain = None if versions[0].refusal else outcome.gain

    def _known(self, versions: Sequence[Version], contest: Contest) -> list[Outcome] | None:
        """Return what a race told in which these took part, the first of them first; in this run or an earlier one."""
        keys = [version.key for version in versions]
        for raced, outcomes in self.told.items() if contest is self.contest and keys else ():
            if raced[0] == keys[0] and set(keys) <= set(raced):
                return [outcomes[raced.index(key)] for key in keys]
        return contest.known(keys)

    def _outcomes(
        self, versions: Sequence[Version], sessions: Sequence[Any], contest: Contest, share: float, kept: float
    ) -> list[Outcome]:
        """Return what a race says of the versions that have a session; nothing where they cannot be timed."""
        keys = [version.key for version in versions if not version.refusal]
        opened = [session for session in sessions if session is not None]
        if not keys:
            return []
        if len(keys) < len(versions):
            told = self._known([version for version in versions if not version.refusal], contest)
            if told is not None:
                return told

        def race() -> list[Outcome]:
            contest.enter()
            seconds = self.budget.race_seconds(len(keys), share)
            return contest.race(keys, opened, seconds, max(self.budget.left - kept, 0.0))

        try:
            outcomes = self._insisted(contest, race)
        except ModelError as error:
            log.warning("versions of the model cannot be timed, so none of them is taken for faster: %s", error)
            return []
        if any(outcome.speedup.has_too_few_rounds for outcome in outcomes):
            log.info("no time was left for the rounds of a race that say anything")
            return []
        return outcomes

    def _opened(self, version: Version, contest: Contest) -> Any:
        """Return a session, or None with the reason."""
        try:
            return self._insisted(contest, lambda: contest.opened(self._model(version)))
        except ModelError as error:
            version.refusal = str(error)
            log.warning("a version of the model does not run, and is left: %s", error)
            return None

    def _model(self, version: Version) -> onnx_io.Model:
        return replace(self.model, graph=version.candidate.graph)

    def _insisted(self, contest: Contest, work: Callable[[], Found]) -> Found:
        """Do what leaves the graph alone; after the first Ctrl-C again, and in a hurry as all that follows."""
        try:
            return work()
        except KeyboardInterrupt:
            if self.budget.is_interrupted:
                raise
            self.hurry()
            contest.keeps = False
            return work()

    def hurry(self) -> None:
        """From now on time no longer than it takes to tell what is faster, and no further versions."""
        self.budget.interrupt()
        self.contest.keeps = False

    @property
    def policy(self) -> SearchPolicy:
        return self.budget.policy

    def _is_over(self, needed: float | None = None) -> bool:
        """Return whether enough was tried, or no more time is left than is `needed`: the reserve, unless said.

        Where it once was over, it is again, lest a second run find another.
        """
        keys = [version.key for version in self.raced]
        if len(self.raced) - self.before >= self.policy.tries or self.contest.has_ended(keys):
            return True
        if not self.budget.is_over(self.budget.reserve if needed is None else needed):
            return False
        if keys:
            self.contest.end(keys)
        return True


def _untimed(version: Version) -> Version:
    """Return the same version, of which no race has told anything."""
    return replace(version, speedup=None, gain=None, latencies=())


def _agreed(first: Version, second: Version) -> Version:
    """Return a version as its second race told, but no faster or slower over the original than both races do."""
    if first.speedup is None or second.speedup is None or (first.is_faster and second.is_faster):
        return second
    for seen in (second, first):
        if not seen.is_faster and not seen.is_slower:
            return replace(second, speedup=seen.speedup, latencies=seen.latencies)
    pairs = zip(first.latencies, second.latencies, strict=True)
    latencies = tuple(replace(after, speedup=_both(before.speedup, after.speedup)) for before, after in pairs)
    return replace(second, speedup=_both(first.speedup, second.speedup), latencies=latencies)


def _both(one: Speedup, other: Speedup) -> Speedup:
    """Return two ratios as one, where one says faster and the other slower: that may be a loss, and is no gain."""
    return replace(together([one, other]), low=min(one.low, other.low, 1.0))


def _cures(version: Version, simplified: Version) -> bool:
    """Return whether a version is better than a simplified model that is slower than the original, or does not run."""
    if version.speedup is None or version.is_slower:
        return False
    return bool(simplified.refusal) or (version.gain is not None and version.gain.verdict is Verdict.FASTER)


def _gain(version: Version) -> float:
    return version.gain.median if version.gain is not None else 0.0
