"""Stopping rules of the search, and the reasons that it gives for stopping.

A run has a `TimeBudget`: sweeps, the search in the regions of the model, and races of whole models each have a share of
its seconds. `SearchStop` ends the search in all regions, `RegionStop` that in one of them; a race ends by its
`TimingSchedule` (`runtime/measure.py`). The numbers are fields of `SearchPolicy`: another stopping rule is a field
there and a line here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from graphopt.runtime.cost_model import NoTimeToMeasureError, NotMeasurableError, TemporarilyNotMeasurableError
from graphopt.search.policy import SearchPolicy


class StopReason(StrEnum):
    """Reason why a search ended."""

    DONE = "nothing was left to try"
    TIME = "the time was up"
    ROOM = "some part could not be timed just then"
    INTERRUPTED = "it was interrupted"
    UNTIMED = "nothing could be timed"
    RECIPE = "a recipe said what to do"
    BOUND = "too little of the time is outside of convolutions and matrix products"
    KNOWN = "a model of the same structure was searched before, with other weights"
    RETRIED = "what was chosen before the check refused a part of it was taken again"

    @property
    def is_resumable(self) -> bool:
        """True where a later run may go on with what was found: the search ended by itself."""
        return self in (StopReason.DONE, StopReason.TIME, StopReason.ROOM)

    @property
    def is_complete(self) -> bool:
        """True where the search found all that there is to find."""
        return self in (StopReason.DONE, StopReason.BOUND)


# -- the run -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelPace:
    """First estimate of how long it takes to open the model and to run it."""

    opening_seconds: float
    """Seconds in which a session is opened."""
    racing_seconds: float
    """Seconds that a session takes in the shortest race, at all sizes together, and to run once before."""
    run_seconds: float = 0.0
    """Seconds of one run at each size."""
    size_count: int = 1
    """Sizes at which it is run."""
    is_profiled: bool = False
    """True where so few runs fit into a race that it is run under the profiler, so that kernels that differ tell."""
    unprofiled_racing_seconds: float = 0.0
    """The racing seconds without the profiler, where races are profiled."""

    def without_profiler(self) -> ModelPace:
        """Return the pace of races that are not profiled, which take more rounds."""
        seconds = max(self.racing_seconds, self.unprofiled_racing_seconds)
        return replace(self, racing_seconds=seconds, is_profiled=False)


@dataclass(eq=False)
class TimeBudget:
    """The time of a run, and its shares. After Ctrl-C, work that has begun takes no longer than it has to."""

    policy: SearchPolicy
    seconds: float
    clock: Callable[[], float] = time.monotonic
    pace: ModelPace = ModelPace(0.0, 0.0)
    is_interrupted: bool = False
    is_brief: bool = False
    """True where there was nothing to search, so that races may be brief."""
    is_swept: bool = False
    """True where a version with sweeps takes part in the final selection, beside what the search makes of it."""
    is_like_original: bool = False
    """True where ONNX Runtime runs of the simplified model what it runs of the original, so that it takes no turns."""
    has_many_kernels: bool = False
    """True where the last race was of versions that a profile tells wrongly, for they have many kernels more."""
    deadline: float = field(init=False)
    processor_start: float = field(init=False)

    def __post_init__(self) -> None:
        self.deadline = self.clock() + self.seconds
        self.processor_start = time.process_time()

    @property
    def is_starved(self) -> bool:
        """True where others held this run up: another time there is more time."""
        passed = self.clock() - (self.deadline - self.seconds)
        lost = passed - (time.process_time() - self.processor_start)
        return lost > max((1 - self.policy.starved_share) * passed, self.policy.unnoticed_wait)

    def interrupt(self) -> None:
        """Try nothing further, and time only as long as it takes to tell what is faster."""
        self.is_interrupted = True

    @property
    def remaining(self) -> float:
        """Seconds until the deadline; infinite after an interrupt, when no work lasts long."""
        return self.seconds_until(self.deadline)

    def seconds_until(self, end: float) -> float:
        """Return the seconds until the `end`; infinite after an interrupt."""
        return math.inf if self.is_interrupted else max(end - self.clock(), 0.0)

    def is_over(self, needed: float = 0.0) -> bool:
        """Return whether there is no time to begin work that needs so many seconds."""
        return self.is_interrupted or self.clock() + needed >= self.deadline

    # -- durations of races --------------------------------------------------------------------------------------------

    @property
    def min_seconds(self) -> float:
        """Seconds that two races of the simplified model alone take, or one that is profiled: with fewer left, nothing
        is timed."""
        if self.is_profiled:
            return self.policy.profiled_sessions * self.session_seconds
        return (
            self.policy.least_openings * self.pace.opening_seconds
            + self.policy.least_sessions * self.pace.racing_seconds
        )

    @property
    def is_profiled(self) -> bool:
        """True where races are run under the profiler."""
        return self.pace.is_profiled and not self.has_many_kernels

    @property
    def session_seconds(self) -> float:
        """Seconds that a session takes in a race, at least."""
        pace = self.pace.without_profiler() if self.has_many_kernels else self.pace
        return pace.opening_seconds + pace.racing_seconds

    @property
    def reserved_seconds(self) -> float:
        """Seconds that trying and confirming further candidates takes at least: with fewer left, there are none."""
        count = self.policy.first_race_sessions + self.is_swept - self.is_like_original
        return count * self.session_seconds + self._second_race_seconds

    @property
    def confirmation_seconds(self) -> float:
        """Seconds that a second race takes."""
        return (self.policy.confirming_sessions - self.is_like_original) * self.session_seconds

    @property
    def _second_race_seconds(self) -> float:
        """Seconds to be left for a second race; none where a profiled one may be the only one."""
        return 0.0 if self.is_profiled else self.confirmation_seconds

    def race_cost(self, count: int) -> float:
        """Return the seconds that a race of so many, the simplified model and the original takes."""
        return (count + 2 - self.is_like_original) * self.session_seconds

    def is_time_to_profile(self, count: int) -> bool:
        """Return whether so many models can run under the profiler and leave the time of a race of one of them, and of
        a second one if a profiled one is not enough."""
        runs = 1 + self.policy.timing.screening_runs
        once = self.pace.size_count * self.pace.opening_seconds + runs * self.pace.run_seconds
        return self.remaining >= count * once + self.race_cost(1) + self._second_race_seconds

    def has_ample_time(self, count: int) -> bool:
        """Return whether so many versions and the simplified model can race, and the best of them once more, even if
        that takes longer than estimated; where one profiled race is enough, it may be the only one."""
        return self.remaining >= self.policy.ample_time_margin * (self.race_cost(count) + self._second_race_seconds)

    @property
    def is_comparison_cheap(self) -> bool:
        """True where to compare what ONNX Runtime makes of two models takes less time than to race them."""
        return self.pace.racing_seconds > self.policy.compared_openings * self.pace.opening_seconds

    def has_one_race(self, count: int) -> bool:
        """Return whether a first race of so many has to be the only one, which may show a gain if it is profiled."""
        needed = self.policy.two_races_margin * self.race_cost(count - 1)
        return self.is_profiled and self._first_race_seconds(count) < needed

    def race_seconds(self, count: int, share: float) -> float:
        """Return how long a race of so many and the original may take, in a share of the time left; 0 where it takes
        the fewest rounds, as a brief one does whose kernels tell."""
        if self.is_interrupted or (self.is_brief and self.is_profiled):
            return 0.0
        is_brief = self.is_brief and not self.has_many_kernels  # of long runs without a profile, few tell nothing
        once = self.policy.brief_session_seconds if is_brief else self.policy.session_seconds
        return min(once * (count + 1), share * self.remaining)

    # -- deadlines -----------------------------------------------------------------------------------------------------

    @property
    def sweeping_end(self) -> float:
        """Time by which the sweeps have to be made, if they begin now."""
        now = self.clock()
        return now + self.policy.sweeping_share * (self.deadline - self.confirmation_seconds - now)

    @property
    def screening_end(self) -> float:
        """Time by which profiles of single sweeps have to be made, if they begin now."""
        spare = self.remaining - self.race_cost(1) - self._second_race_seconds
        return self.clock() + self.policy.screening_share * max(spare, 0.0)

    @property
    def final_race_start(self) -> float:
        """Time at which the races of the search's finds have to begin."""
        return self.deadline - self.reserved_seconds

    @property
    def second_race_start(self) -> float:
        """Time at which the second race has to begin."""
        return self.deadline - self.confirmation_seconds

    @property
    def simplifying_end(self) -> float:
        """Time by which the last candidates have to be simplified."""
        return self.deadline - self.reserved_seconds / 2

    def race_end(self, count: int, *, is_first: bool) -> float:
        """Return the time by which a race of so many and the original has to end.

        A first race leaves the time of a second, of the best of them, the simplified model and the original.
        """
        if not is_first or self.has_one_race(count):
            return self.deadline
        return self.clock() + self._first_race_seconds(count)

    def _first_race_seconds(self, count: int) -> float:
        """Return the seconds for a race of so many that leave the time of a second one."""
        first, second = (1 + each - (self.is_like_original and count > 1) for each in (count, min(count, 2)))
        left = self.remaining
        return min(left - second * self.session_seconds, left * first / (first + second))

    def search_seconds(self, end: float) -> float:
        """Return the search's share of the seconds that are left before the end."""
        return max(end - self.clock(), 0.0) * self.policy.search_share


# -- the parts of a model ----------------------------------------------------------------------------------------------


@dataclass(eq=False)
class SearchStop:
    """Ends the search in the parts of a model, and says why it ended."""

    policy: SearchPolicy
    seconds: float
    clock: Callable[[], float]
    is_late: bool = False
    """True where there was no time for some part."""
    is_steady: bool = True
    """False where some part could not be timed just then."""
    is_interrupted: bool = False
    start: float = field(init=False)

    def __post_init__(self) -> None:
        self.start = self.clock()

    @property
    def end(self) -> float:
        return self.start + self.seconds

    def is_over(self, end: float | None = None) -> bool:
        """Return whether the time is up, of the search or of a turn that ends earlier."""
        return self.clock() >= (self.end if end is None else end)

    @property
    def elapsed_share(self) -> float:
        """The part of the time that has passed, from 0 to 1."""
        return (self.clock() - self.start) / max(self.seconds, 1e-9)

    def turn_end(self, share: float) -> float:
        """Return the time by which a part's turn has to end, if it has this share of what is left; small shares have a
        minimum."""
        now = self.clock()
        return min(now + max((self.end - now) * share, self.seconds * self.policy.min_turn_share), self.end)

    def record_refusal(self, error: NotMeasurableError) -> None:
        """Note that some part could not be timed."""
        self.is_late |= isinstance(error, NoTimeToMeasureError)
        self.is_steady &= not isinstance(error, TemporarilyNotMeasurableError)

    def reason(self, *, is_waiting: bool) -> StopReason:
        """Return the reason why the search ended, with parts waiting for their turn or without."""
        if self.is_interrupted:
            return StopReason.INTERRUPTED
        if is_waiting or self.is_late:
            return StopReason.TIME
        return StopReason.DONE if self.is_steady else StopReason.ROOM


@dataclass(eq=False)
class RegionStop:
    """Ends the search in one part: enough graphs were looked at, or rounds have brought nothing."""

    policy: SearchPolicy
    idle_rounds: int = 0

    def has_enough_states(self, states: int) -> bool:
        """Return whether no further graphs are looked at in this part."""
        return states >= self.policy.states

    def is_round_over(self, states: int, candidates: int) -> bool:
        """Return whether it is time to measure, after so many graphs in this round, some of them candidates."""
        return states >= self.policy.states_per_round and candidates > 0

    def is_done(self, *, is_better: bool, is_left: bool) -> bool:
        """Note whether a round brought something better and left something to try; return whether the part is done."""
        self.idle_rounds = 0 if is_better else self.idle_rounds + 1
        return self.idle_rounds >= self.policy.max_idle_rounds or not is_left
