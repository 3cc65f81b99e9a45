"""The last word: the original and versions of it take turns, whole, and only what is faster beyond noise is taken.

Versions are lists of steps that are undone and redone on the one graph. If nothing wins, the answer is the simplified
model, provided that it is not slower, or else the original.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from typing import Any, TypeAlias, TypeVar

import numpy as np

from graphopt import onnx_io
from graphopt.bench import Prepared
from graphopt.cache import Cache
from graphopt.cost import UNREADABLE, decoded, key_of, numbers
from graphopt.errors import ModelError
from graphopt.fixpoint import Step
from graphopt.machine import circumstances
from graphopt.measure import LENGTHY, WIDTH, Samples, Speedup, Verdict, interleaved, speedup, together
from graphopt.oracle import FailedError
from graphopt.regions import digest
from graphopt.samples import Feeds
from graphopt.search import Solution
from graphopt.sessions import runner
from graphopt.sweep import Sweep

log = logging.getLogger(__name__)

TOLERATED = 0.99
"""A version that is no faster is kept if it is at least this many times as fast as the original, or may be as fast."""

FINALISTS = 2
"""Versions that won the first race and are timed a second time, the fastest first, until one wins again."""

ROUNDS = (7, 60)
"""Of a race: the fewest and the most."""

LEAST = 6 * (ROUNDS[0] + 2)
"""Runs that the last word takes where there is little time: each session runs as it opens, to warm up and once a round,
four in the first race and two in the second."""

TRIES = 6
"""Versions with fewer rewrites that are timed where all of them together do not win."""

Found = TypeVar("Found")


# -- what was found ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one run."""

    minimum: float
    median: float
    spread: float
    """The distance between the quartiles, as a part of the median."""

    @staticmethod
    def of(samples: Samples) -> Times:
        return Times(samples.minimum, samples.median, samples.spread)


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a model runs, before anything is known more exactly."""

    seconds: float
    """Of a run at each size, all together."""


@dataclass(frozen=True, slots=True)
class Latency:
    """How long a run takes at some sizes of the open dims, in the original and in the result."""

    sizes: Mapping[str, int]
    before: Times
    after: Times
    speedup: Speedup


@dataclass(frozen=True, slots=True)
class Group:
    """Rewrites that were taken or left together."""

    rules: tuple[str, ...]
    copies: int
    """Equal parts of the model in which they were made; 0 for the model as a whole."""
    speedup: float | None
    """How many times as fast each part became, measured or estimated alone; None where it could not be timed."""
    is_taken: bool
    rewrites: tuple[int, int] = (0, 0)
    """Where in the report's list its rewrites begin and end; the same twice where it was not taken."""
    saved: float = 0.0
    """Seconds of a run that are hoped for, in all copies together: what they are estimated to take, at that speedup. Of
    the model as a whole they are measured."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How fast the result is, and what the search did."""

    cost: str
    """`measured` or `analytic`."""
    provider: str
    threads: int
    speedup: Speedup | None = None
    """Of the result over the original; None where they were not timed."""
    simplified: Speedup | None = None
    """Of the model that is simplified only: what the rules brought that are applied without a search."""
    latencies: tuple[Latency, ...] = ()
    groups: tuple[Group, ...] = ()
    stop: str = ""
    """Why the search came to its end."""
    regions: int = 0
    """Distinct parts of the model that were searched."""
    copies: int = 0
    """Parts in all."""
    states: int = 0
    """Graphs looked at."""
    trials: int = 0
    """Graphs of which the cost was asked."""

    @property
    def is_gain(self) -> bool:
        """True where the result was measured to be faster beyond noise."""
        return self.speedup is not None and self.speedup.verdict is Verdict.FASTER


# -- timing ------------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Entrant:
    """A version of the model: its session, and what is known of its speed."""

    key: str
    session: Any = None
    speedup: Speedup | None = None
    latencies: tuple[Latency, ...] = ()

    def to_json(self) -> str:
        latencies = [asdict(latency) for latency in self.latencies]
        return json.dumps({"speedup": self.speedup and asdict(self.speedup), "latencies": latencies})

    @staticmethod
    def of(key: str, text: str | None) -> _Entrant | None:
        """What the cache holds; None where that is nothing or of another make."""
        try:
            data = json.loads(text or "{}")
            return _Entrant(key, None, numbers(Speedup, data["speedup"]), tuple(map(_latency, data["latencies"])))
        except UNREADABLE:
            return None


def _latency(found: Mapping[str, Any]) -> Latency:
    """Out of what JSON makes of one. Raises UNREADABLE."""
    sizes = {name: int(found["sizes"][name]) for name in found["sizes"]}
    before, after = numbers(Times, found["before"]), numbers(Times, found["after"])
    return Latency(sizes, before, after, numbers(Speedup, found["speedup"]))


Outcome: TypeAlias = tuple[Speedup | None, tuple[Latency, ...]]
"""The speedup of a version over all sizes, None where it could not be timed; and each size."""


class Contest:
    """The original and versions of it, each in a session of its own, timed in turns on the same inputs.

    What was timed once is known from then on, so that the same question has the same answer.
    """

    def __init__(self, original: Prepared, source: onnx_io.Source, digest_: str, cache: Cache, heat: int = 1) -> None:
        """The `original` with its inputs, its source, and the digest of what a race depends on besides.

        Contests between the same are told apart by their `heat`.
        """
        self.original, self.source, self.digest, self.cache, self.heat = original, source, digest_, cache, heat
        self.keeps = True
        """False where times are taken in a hurry: they are not to bind later runs."""
        fed = (text for trial in original.trials for text in (json.dumps(dict(trial.sizes)), _fed(trial.feeds)))
        self._known_by = ("whole", digest_, *fed, circumstances(original.setting), str(heat))
        self._entrants: list[_Entrant] = []

    def again(self) -> Contest:
        """The next contest between the same, with new sessions: what the luck of one was does not go on."""
        contest = Contest(self.original, self.source, self.digest, self.cache, self.heat + 1)
        contest.keeps = self.keeps
        return contest

    def pace(self, clock: Callable[[], float]) -> Pace:
        """The original's; once taken, it is known, so that what is left out for it is left out again.

        Raises:
            ModelError: ONNX Runtime refuses to run it.
        """
        key = key_of(*self._known_by, "pace")
        found = decoded(Pace, self.cache.get([key]).get(key))
        if found is None:
            runs = [self._runner(self.original.sessions[0], trial.feeds) for trial in self.original.trials]
            found = Pace(sum(_briefly(run, clock) for run in runs))
            self.cache.put({key: json.dumps(asdict(found))})
        return found

    def enter(self, model: onnx_io.Model) -> int:
        """Take part with a model as it is now, under a number.

        Raises:
            ModelError: ONNX Runtime refuses it.
            UsageError: the provider does not start.
        """
        key = key_of(*self._known_by, digest(model.graph))
        entrant = _Entrant.of(key, self.cache.get([key]).get(key)) or _Entrant(key, self._opened(model))
        self._entrants.append(entrant)
        return len(self._entrants) - 1

    def _opened(self, model: onnx_io.Model) -> Any:
        """A session that has run on all inputs."""
        folder = model.folders[0] if model.folders else None
        session = self.original.setting.open(onnx_io.to_proto(model), folder=folder)
        for trial in self.original.trials:
            self._runner(session, trial.feeds)()
        return session

    def _runner(self, session: Any, feeds: Feeds) -> Callable[[], object]:
        """A call that runs a session once. Only what ONNX Runtime does is caught: other errors are graphopt's own.

        Raises:
            ModelError: ONNX Runtime refuses the inputs; the call raises it where it refuses to run.
        """
        try:
            call = runner(session, feeds, self.original.setting)
        except Exception as error:  # the classes that onnxruntime raises share no base
            raise _failed(error) from error

        def run() -> None:
            try:
                call()
            except Exception as error:
                raise _failed(error) from error

        return run

    def race(self, numbers: Sequence[int], seconds: float) -> list[Outcome]:
        """How fast some versions are against the original, over all sizes; `seconds` are for each of them.

        What is known is not timed. Sessions end with their race: of those whose race failed nothing will be known.

        Raises:
            ModelError: there is no room for another session of the original, or for all that run in turn.
            UsageError: the provider does not start.
        """
        entrants = [self._entrants[number] for number in numbers]
        timed = [entrant for entrant in entrants if entrant.session is not None]
        if timed:
            try:
                self._time(timed, seconds)
            except ModelError:
                for entrant in timed:
                    entrant.session = None
                raise
            if self.keeps:
                self.cache.put({entrant.key: entrant.to_json() for entrant in timed})
        return [(entrant.speedup, entrant.latencies) for entrant in entrants]

    def end(self) -> None:
        """Remember that time was up when these versions had entered: no later run is to try more of them."""
        if self.keeps:
            self.cache.put({self._end: ""})

    def has_ended(self) -> bool:
        """Whether time was up here once, in an earlier run or in this one."""
        return self._end in self.cache.get([self._end])

    @property
    def _end(self) -> str:
        return key_of(*self._known_by, "end", *(entrant.key for entrant in self._entrants))

    def _time(self, entrants: Sequence[_Entrant], seconds: float) -> None:
        latencies: list[list[Latency]] = [[] for _ in entrants]
        sessions = (self._session(), *(entrant.session for entrant in entrants))
        share = seconds * len(sessions) / len(self.original.trials)
        for trial in self.original.trials:
            runs = [self._runner(session, trial.feeds) for session in sessions]
            before, *others = interleaved(runs, seconds=share, rounds=ROUNDS, width=WIDTH)
            for found, after in zip(latencies, others, strict=True):
                ratio = speedup(before, after)
                found.append(Latency(dict(trial.sizes), Times.of(before), Times.of(after), ratio))
        for entrant, found in zip(entrants, latencies, strict=True):
            entrant.speedup = together([latency.speedup for latency in found])
            entrant.latencies, entrant.session = tuple(found), None

    def _session(self) -> Any:
        """A session of the original: the first contest has one already."""
        return self.original.sessions[0] if self.heat == 1 else self.original.setting.open(self.source)


def _briefly(run: Callable[[], object], clock: Callable[[], float]) -> float:
    """Seconds of the fastest of a few runs, or of the first if that takes long."""
    found: list[float] = []
    while len(found) < 3 and sum(found) < LENGTHY:
        start = clock()
        run()
        found.append(clock() - start)
    return min(found)


def _fed(feeds: Feeds) -> str:
    """Identifies inputs: what is in them may decide what a run costs."""
    said = sha256()
    for name, value in feeds.items():
        plain = isinstance(value, np.ndarray) and not value.dtype.hasobject
        said.update(f"{name} {value.dtype.name} {value.shape}".encode() if plain else name.encode())
        said.update(np.ascontiguousarray(value).tobytes() if plain else repr(value).encode())
    return said.hexdigest()


def _failed(error: Exception) -> ModelError:
    return ModelError(f"the model {FailedError('cannot be run', error)}")


# -- choosing ----------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Version:
    """Steps that make a version of the model, and how fast it is."""

    steps: tuple[Step, ...]
    sweeps: tuple[Sweep, ...] = ()
    """They follow the steps that simplified the model."""
    solutions: tuple[Solution, ...] = ()
    counts: tuple[int, ...] = ()
    """How many steps each solution took; they follow those of the sweeps."""
    number: int | None = None
    """Its session; None where it has none."""
    speedup: Speedup | None = None
    latencies: tuple[Latency, ...] = ()
    refusal: str = ""
    """Why it could not be timed: ONNX Runtime refuses it, or there was no room."""

    @property
    def is_faster(self) -> bool:
        """By more than noise, and slower at no size; the original is not, whatever is measured."""
        if not self.steps or self.speedup is None or self._is_slower_somewhere:
            return False
        return self.speedup.verdict is Verdict.FASTER

    @property
    def is_tolerable(self) -> bool:
        """Not slower, as far as can be told: where runs differ much, the fastest ones have to agree."""
        if self.speedup is None or self._is_slower_somewhere:
            return False
        may_be_as_fast = self.speedup.high >= 1 and self.speedup.minimum >= TOLERATED
        return self.speedup.median >= TOLERATED or may_be_as_fast

    @property
    def _is_slower_somewhere(self) -> bool:
        """At some size, by more than noise: what is gained at others does not make up for that."""
        return any(latency.speedup.verdict is Verdict.SLOWER for latency in self.latencies)

    def joined(self, again: Version) -> Version:
        """The version as a second race saw it, with the ratios of both."""
        pairs = zip(self.latencies, again.latencies, strict=True)
        latencies = tuple(replace(new, speedup=together([old.speedup, new.speedup])) for old, new in pairs)
        ratios = [version.speedup for version in (self, again) if version.speedup is not None]
        return replace(again, speedup=together(ratios), latencies=latencies)


@dataclass(eq=False)
class Chooser:
    """Finds the version to return. The graph is at the end of `current.steps`, and is moved from version to version."""

    contest: Contest
    model: onnx_io.Model
    apply: Callable[[Solution], list[Step]]
    """Carry a solution of the search over to the graph."""
    simplify: Callable[[frozenset[str] | None], list[Step]]
    """Simplify the graph as it is, with these rules and passes alone, or with all."""
    seconds: float = 0.0
    """Of timing a version."""
    reserve: float = 0.0
    """Seconds that trying and confirming further versions takes at least: with less time left, there are none."""
    deadline: float = float("inf")
    clock: Callable[[], float] = time.monotonic
    progress: Callable[[str, float], None] = lambda stage, done: None
    current: Version = field(default_factory=lambda: Version(()))
    tried: int = 0

    def sweep(self, simplified: Version, sweeps: Iterable[Callable[[], Sweep | None]]) -> list[Version]:
        """The simplified model, where the graph is, and it with each sweep; the fastest first, and the graph there."""
        self.current = simplified
        versions = []
        for make in sweeps:
            self.move_to(simplified)
            if made := make():
                self.current = Version((*simplified.steps, *made.steps), (made,))
                self.enter(self.current)
                versions.append(self.current)
        if versions:
            self._race([simplified, *versions], self.contest)
        faster = [version for version in versions if version.is_faster and _median(version) > _median(simplified)]
        best = max(faster, key=_median, default=simplified)
        self.move_to(best)
        return [best, *(version for version in (simplified, *versions) if version is not best)]

    def choose(self, simplified: Version, swept: Version, solutions: Sequence[Solution]) -> Version:
        """The fastest version; without a gain the simplified model, or what of it is not slower than the original.

        The graph is at the swept version, on which the solutions were found; it may be the simplified model. Both have
        entered the contest.
        """
        versions = [simplified] if swept is simplified else [simplified, swept]
        known = len(versions)
        if solutions:
            versions += self._explored(swept, solutions)
        self._race(versions, self.contest)
        if not any(_beats(version, swept) for version in versions[known:]):
            versions += self._fewer_solutions(swept, solutions)
        faster = sorted((version for version in versions if version.is_faster), key=_median, reverse=True)
        best = self._confirmed(faster[:FINALISTS], simplified) or self._tolerable(simplified)
        self.move_to(best)
        return best

    def _confirmed(self, finalists: Sequence[Version], simplified: Version) -> Version | None:
        """The first of these that wins a second race too, or the simplified model where both won and it did better.

        The fastest of several was lucky, as a rule: what it is worth, the race that it won does not tell.
        """
        for version in finalists:
            rivals = [version] if version is simplified or not simplified.is_faster else [version, simplified]
            if winners := [twin for twin in self._again(rivals) if twin.is_faster]:
                return max(winners, key=_median)
        return None

    def _again(self, versions: Sequence[Version]) -> list[Version]:
        """The versions that can be run, with what a second race says of them."""
        contest, twins = self.contest.again(), []
        for version in versions:
            if version.steps and version.number is not None:
                self.move_to(version)
                twins.append(replace(version, speedup=None, latencies=(), refusal=""))
                self._enter(twins[-1], contest)
        self._race(twins, contest)
        return twins

    def _explored(self, base: Version, solutions: Sequence[Solution]) -> list[Version]:
        """A version with some solutions of the search; and the same simplified once more.

        Where two parts meet that were changed alike, there may be views that cancel. But simplifying may also undo what
        the search has done: which is better is left to the timing.
        """
        self.move_to(base)
        made = [self.apply(solution) for solution in solutions]
        steps = [step for some in made for step in some]
        plain = self.current = Version((*base.steps, *steps), base.sweeps, tuple(solutions), tuple(map(len, made)))
        self.enter(plain)
        more = self.simplify(None)
        if not more:
            return [plain]
        tidied = self.current = Version((*plain.steps, *more), plain.sweeps, plain.solutions, plain.counts)
        self.enter(tidied)
        return [plain, tidied]

    def _fewer_solutions(self, base: Version, solutions: Sequence[Solution]) -> Iterator[Version]:
        """Where all solutions together do not win: each half, then each that remains of the better half."""
        left = list(solutions)
        while len(left) > 1 and not self._is_over():
            middle = len(left) // 2
            parts = (left[:middle], left[middle:])
            halves = [version for part in parts for version in self._explored(base, part)]
            self._race(halves, self.contest)
            yield from halves
            if any(_beats(half, base) for half in halves):
                return
            left = list(max(halves, key=_median).solutions)

    def _tolerable(self, simplified: Version) -> Version:
        """The simplified model if it is not slower, else with fewer kinds of rewrites, else the original."""
        candidates = [simplified]
        while (kept := next(filter(None, map(self._kept, candidates)), None)) is None and not self._is_over():
            names = list(dict.fromkeys(step.name for step in candidates[0].steps))
            if len(names) == 1:
                break
            middle = len(names) // 2
            halves = [self._simplified(frozenset(part)) for part in (names[:middle], names[middle:])]
            self._race(halves, self.contest)
            candidates = sorted(halves, key=_median, reverse=True)
        return kept or Version(())

    def _kept(self, version: Version) -> Version | None:
        """The version, if two races together say that it is not slower.

        If it won but one of them, that is no gain: it is worth what it was in the other.
        """
        if not version.steps:
            return version
        if version.speedup is None:
            return None
        (twin,) = self._again([version])
        if twin.speedup is None:
            version.refusal = twin.refusal
            return None
        both = version.joined(twin)
        if not both.is_tolerable:
            return None
        unsure = [seen for seen in (twin, version) if not seen.is_faster]
        return unsure[0] if unsure and both.is_faster else both

    def _simplified(self, names: frozenset[str]) -> Version:
        self.move_to(Version(()))
        version = self.current = Version(tuple(self.simplify(names)))
        self.enter(version)
        return version

    def enter(self, version: Version) -> None:
        """Let the version at which the graph is take part."""
        self._enter(version, self.contest)
        self.tried += 1

    def _enter(self, version: Version, contest: Contest) -> None:
        try:
            version.number = self._insisted(contest, lambda: contest.enter(self.model))
        except ModelError as error:
            version.number, version.refusal = None, str(error)
            log.warning("a version of the model does not run, and is left: %s", error)

    def _race(self, versions: Sequence[Version], contest: Contest) -> None:
        self.progress("time", min(0.95, self.tried / (TRIES + 2)))
        able = [version for version in versions if version.number is not None]
        numbers = [version.number for version in able if version.number is not None]
        seconds = min(self.seconds, max(self.deadline - self.clock(), 0.0) / (TRIES + 2))
        if not numbers:
            return
        try:
            found = self._insisted(contest, lambda: contest.race(numbers, 0.0 if self.is_hurried else seconds))
        except ModelError as error:
            log.warning("versions of the model cannot be timed, so none of them is taken for faster: %s", error)
            for version in able:
                version.refusal = "" if version.speedup else str(error)
            return
        for version, (ratio, latencies) in zip(able, found, strict=True):
            version.speedup, version.latencies = ratio, latencies

    def _insisted(self, contest: Contest, work: Callable[[], Found]) -> Found:
        """Do what leaves the graph alone; after the first Ctrl-C again, and in a hurry as all that follows."""
        try:
            return work()
        except KeyboardInterrupt:
            if self.is_hurried:
                raise
            self.hurry()
            contest.keeps = False
            return work()

    def hurry(self) -> None:
        """From now on time no longer than it takes to tell what is faster, and no further versions."""
        self.deadline = float("-inf")
        self.contest.keeps = False

    @property
    def is_hurried(self) -> bool:
        return self.deadline == float("-inf")

    def _is_over(self) -> bool:
        """Whether enough was tried, or time is up; where it once was, it is again, lest a second run find another."""
        if self.tried >= TRIES + 2 or self.contest.has_ended():
            return True
        if self.clock() + self.reserve < self.deadline:
            return False
        self.contest.end()
        return True

    def move_to(self, version: Version) -> None:
        """Undo and redo until the graph is that of a version."""
        have, want = self.current.steps, version.steps
        shared = 0
        while shared < min(len(have), len(want)) and have[shared] is want[shared]:
            shared += 1
        for step in reversed(have[shared:]):
            step.undo()
        for step in want[shared:]:
            step.redo()
        self.current = version


def _beats(version: Version, base: Version) -> bool:
    """Whether a version is faster than the original, and no slower than what it was made of."""
    return version.is_faster and _median(version) >= _median(base)


def _median(version: Version) -> float:
    return version.speedup.median if version.speedup is not None else 0.0
