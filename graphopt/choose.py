"""The last word: the original and versions of it take turns, whole, and only what is faster beyond noise is taken.

Versions are lists of steps that are undone and redone on the one graph. If nothing wins, the answer is the simplified
model, provided that it is not slower, or else the original.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from graphopt import onnx_io
from graphopt.bench import Prepared
from graphopt.cache import Cache
from graphopt.cost import key_of
from graphopt.fixpoint import Step
from graphopt.machine import circumstances
from graphopt.measure import WIDTH, Samples, Speedup, Verdict, interleaved, speedup, together
from graphopt.measured import FAILED
from graphopt.regions import digest
from graphopt.search import Solution
from graphopt.sessions import runner
from graphopt.sweep import Sweep

log = logging.getLogger(__name__)

TOLERATED = 0.99
"""A version that is no faster is kept if it is at least this many times as fast as the original, or may be as fast."""

TRIES = 6
"""Versions with fewer rewrites that are timed where all of them together do not win."""


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
class Latency:
    """How long a run takes at some sizes of the open dims, in the original and in the result."""

    sizes: Mapping[str, int]
    before: Times
    after: Times


@dataclass(frozen=True, slots=True)
class Group:
    """Rewrites that were taken or left together."""

    rules: tuple[str, ...]
    copies: int
    """Equal parts of the model in which they were made; 0 for the model as a whole."""
    speedup: float
    """How many times as fast each part became, measured or estimated alone."""
    is_taken: bool
    rewrites: tuple[int, int] = (0, 0)
    """Where in the report's list its rewrites begin and end; the same twice where it was not taken."""


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
    races: int = 0

    def to_json(self) -> str:
        latencies = [asdict(latency) for latency in self.latencies]
        return json.dumps({"speedup": asdict(self.speedup or FAILED), "latencies": latencies, "races": self.races})

    @staticmethod
    def of(key: str, text: str | None) -> _Entrant | None:
        """What the cache holds; None where that is nothing or of another make."""
        try:
            data = json.loads(text or "{}")
            latencies = (
                Latency(each["sizes"], Times(**each["before"]), Times(**each["after"])) for each in data["latencies"]
            )
            return _Entrant(key, None, Speedup(**data["speedup"]), tuple(latencies), data["races"])
        except (ValueError, KeyError, TypeError):
            return None


class Contest:
    """The original and versions of it, each in a session of its own, timed in turns on the same inputs.

    What was timed once is known from then on, so that the same question has the same answer.
    """

    def __init__(self, original: Prepared, digest_: str, cache: Cache) -> None:
        """The `original` with its inputs; the digest of its graph."""
        self.original, self.cache = original, cache
        sizes = json.dumps([dict(trial.sizes) for trial in original.trials], sort_keys=True)
        self._known_by = ("whole", digest_, sizes, circumstances(original.setting))
        self._entrants: list[_Entrant] = []

    def enter(self, model: onnx_io.Model) -> int | None:
        """Take part with a model as it is now; its number, or None where ONNX Runtime refuses it."""
        key = key_of(*self._known_by, digest(model.graph))
        entrant = _Entrant.of(key, self.cache.get([key]).get(key))
        if entrant is None:
            try:
                entrant = _Entrant(key, self._opened(model))
            except Exception as error:  # the classes that onnxruntime raises share no base
                log.warning("a version of the model does not run, and is left: %s", _first_line(error))
                return None
        self._entrants.append(entrant)
        return len(self._entrants) - 1

    def _opened(self, model: onnx_io.Model) -> Any:
        """A session that has run on all inputs."""
        folder = model.folders[0] if model.folders else None
        session = self.original.setting.open(onnx_io.to_proto(model), folder=folder)
        for trial in self.original.trials:
            session.run(None, trial.feeds)
        return session

    def race(
        self, numbers: Sequence[int], seconds: float, *, again: bool = False
    ) -> list[tuple[Speedup, tuple[Latency, ...]]]:
        """How fast some versions are against the original, over all sizes; `seconds` are for each of them.

        What is known is not timed, unless it is to be timed `again` and was so once only.
        """
        entrants = [self._entrants[number] for number in numbers]
        timed = [
            entrant
            for entrant in entrants
            if entrant.session is not None and (entrant.speedup is None or (again and entrant.races < 2))
        ]
        if timed:
            self._time(timed, seconds)
            self.cache.put({entrant.key: entrant.to_json() for entrant in timed})
        return [(entrant.speedup or FAILED, entrant.latencies) for entrant in entrants]

    def _time(self, entrants: Sequence[_Entrant], seconds: float) -> None:
        ratios: list[list[Speedup]] = [[] for _ in entrants]
        latencies: list[list[Latency]] = [[] for _ in entrants]
        sessions = (self.original.sessions[0], *(entrant.session for entrant in entrants))
        share = seconds * len(sessions) / len(self.original.trials)
        for trial in self.original.trials:
            runs = [runner(session, trial.feeds, self.original.setting) for session in sessions]
            before, *others = interleaved(runs, seconds=share, width=WIDTH)
            for index, after in enumerate(others):
                ratios[index].append(speedup(before, after))
                latencies[index].append(Latency(dict(trial.sizes), Times.of(before), Times.of(after)))
        for entrant, found, times in zip(entrants, ratios, latencies, strict=True):
            entrant.speedup, entrant.latencies, entrant.races = together(found), tuple(times), entrant.races + 1


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), repr(error))


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

    @property
    def is_faster(self) -> bool:
        return self.speedup is not None and self.speedup.verdict is Verdict.FASTER

    @property
    def is_tolerable(self) -> bool:
        """Not slower, as far as can be told."""
        return self.speedup is not None and (self.speedup.median >= TOLERATED or self.speedup.high >= 1)


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
                self._enter(self.current)
                versions.append(self.current)
        if versions:
            self._race([simplified, *versions])
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
        self._race(versions)
        if not any(version.is_faster for version in versions[known:]):
            versions += self._fewer_solutions(swept, solutions)
        faster = [version for version in versions if version.is_faster]
        best = max(faster, key=_median, default=None) or self._tolerable(simplified)
        self.move_to(best)
        return best

    def _explored(self, base: Version, solutions: Sequence[Solution]) -> list[Version]:
        """A version with some solutions of the search; and the same simplified once more.

        Where two parts meet that were changed alike, there may be views that cancel. But simplifying may also undo what
        the search has done: which is better is left to the timing.
        """
        self.move_to(base)
        made = [self.apply(solution) for solution in solutions]
        steps = [step for some in made for step in some]
        plain = self.current = Version((*base.steps, *steps), base.sweeps, tuple(solutions), tuple(map(len, made)))
        self._enter(plain)
        more = self.simplify(None)
        if not more:
            return [plain]
        tidied = self.current = Version((*plain.steps, *more), plain.sweeps, plain.solutions, plain.counts)
        self._enter(tidied)
        return [plain, tidied]

    def _fewer_solutions(self, base: Version, solutions: Sequence[Solution]) -> Iterator[Version]:
        """Where all solutions together do not win: each half, then each that remains of the better half."""
        left = list(solutions)
        while len(left) > 1 and not self._is_over():
            middle = len(left) // 2
            parts = (left[:middle], left[middle:])
            halves = [version for part in parts for version in self._explored(base, part)]
            self._race(halves)
            yield from halves
            if any(half.is_faster for half in halves):
                return
            left = list(max(halves, key=_median).solutions)

    def _tolerable(self, simplified: Version) -> Version:
        """The simplified model if it is not slower, else with fewer kinds of rewrites, else the original."""
        version = simplified
        if not version.is_tolerable and version.number is not None:
            self._race([version], again=True)  # doubts are cheaper to remove than rewrites
        while not version.is_tolerable and version.steps and not self._is_over():
            names = list(dict.fromkeys(step.name for step in version.steps))
            if len(names) == 1:
                break
            middle = len(names) // 2
            halves = [self._simplified(frozenset(part)) for part in (names[:middle], names[middle:])]
            self._race(halves)
            version = max(halves, key=_median)
        return version if version.is_tolerable else Version(())

    def _simplified(self, names: frozenset[str]) -> Version:
        self.move_to(Version(()))
        version = self.current = Version(tuple(self.simplify(names)))
        self._enter(version)
        return version

    def _enter(self, version: Version) -> None:
        version.number = self.contest.enter(self.model)
        self.tried += 1

    def _race(self, versions: Sequence[Version], *, again: bool = False) -> None:
        self.progress("time", min(0.95, self.tried / (TRIES + 2)))
        able = [version for version in versions if version.number is not None]
        numbers = [version.number for version in able if version.number is not None]
        if numbers:
            for version, found in zip(able, self.contest.race(numbers, self.seconds, again=again), strict=True):
                version.speedup, version.latencies = found

    def _is_over(self) -> bool:
        return self.tried >= TRIES + 2 or self.clock() >= self.deadline

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


def _median(version: Version) -> float:
    return version.speedup.median if version.speedup is not None else 0.0
