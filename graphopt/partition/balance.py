"""Cuts that share the work evenly: chosen by estimates, measured, and moved until the largest stage is nearly the mean.

Knows numbers only: neither graphs nor ONNX Runtime.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TypeAlias

from graphopt.partition.devices import INSTANT

Cuts: TypeAlias = tuple[int, ...]
"""Numbers of nodes before each cut, rising."""

GOAL = 1.06
"""Largest stage, as a part of the mean, at which nothing more is tried: 1.1 is wanted, and timings have noise."""
SLACK = 1.05
"""Largest stage, as a part of the mean, up to which the cuts that send the fewest bytes are chosen."""
MAX_POSITIONS = 240
"""Places that are looked at, the narrowest of each stretch of the graph: the choice takes their square in time."""


@dataclass(frozen=True, kw_only=True)
class CutSpace:
    """Possible cuts, and what is wanted of them."""

    node_count: int
    positions: Sequence[int]
    """Cuts that are possible, rising."""
    bytes_across: Sequence[int]
    """Bytes that cross each cut, by the number of nodes before it."""
    speeds: Sequence[float]
    """Speed of the device of each stage."""
    seconds_to_send: Callable[[int], float] = INSTANT.seconds
    """Seconds in which the link between two devices carries a number of bytes."""
    fits: Callable[[int, int, int], bool] = lambda stage, start, end: True
    """Test of the memory of a stage's device for the nodes between two cuts."""


@dataclass(frozen=True)
class MeasuredCuts:
    """Cuts, and the seconds that each stage takes on a device of speed 1."""

    cuts: Cuts
    seconds: tuple[float, ...]

    def imbalance(self, speeds: Sequence[float]) -> float:
        """Return the time of the largest stage on its device over what all would take if they took the same."""
        ideal = sum(self.seconds) / sum(speeds)
        return max(seconds / speed for seconds, speed in zip(self.seconds, speeds, strict=True)) / ideal


class NoCutsError(Exception):
    """There are no cuts with these stages, devices and bytes."""


def thin_positions(
    positions: Sequence[int], bytes_across: Sequence[int], seconds: Sequence[float], stages: int
) -> Sequence[int]:
    """Return at most `MAX_POSITIONS` of the positions, of each stretch that takes about the same time the narrowest;
    all where these are too few for the stages."""
    if len(positions) <= MAX_POSITIONS:
        return positions
    before = [0.0, *accumulate(seconds)]
    found: dict[int, int] = {}
    for position in positions:
        stretch = int(MAX_POSITIONS * before[position] / (before[-1] or 1.0))
        known = found.setdefault(stretch, position)
        if bytes_across[position] < bytes_across[known]:
            found[stretch] = position
    return sorted(found.values()) if len(found) >= stages - 1 else positions


def choose_cuts(space: CutSpace, seconds: Sequence[float]) -> Cuts:
    """Return the cuts that send the fewest bytes of those that are balanced, by an estimate of each node's seconds.

    Balanced is what is within `SLACK`, or at most 2 % over the best there is.

    Raises:
        NoCutsError: no cuts keep to the memory of the devices, or there are fewer nodes than stages.
    """
    before = [0.0, *accumulate(seconds)]
    ends = [0, *space.positions, space.node_count]
    stages = len(space.speeds)

    def seconds_of(stage: int, start: int, end: int) -> float:
        """Return how long a stage keeps its device or the link to the next busy; infinite where it does not fit."""
        if not space.fits(stage, start, end):
            return math.inf
        sending = space.seconds_to_send(space.bytes_across[end]) if end < space.node_count else 0.0
        return max((before[end] - before[start]) / space.speeds[stage], sending)

    best = _cheapest(ends, stages, seconds_of, max)
    if best is None:
        raise NoCutsError
    longest = max(seconds_of(stage, start, end) for stage, start, end in _stages(best, space.node_count))
    limit = max(1.02 * longest, SLACK * before[-1] / sum(space.speeds))

    def bytes_of(stage: int, start: int, end: int) -> float:
        return math.inf if seconds_of(stage, start, end) > limit else float(space.bytes_across[end])

    return _cheapest(ends, stages, bytes_of, lambda total, added: total + added) or best


def _stages(cuts: Cuts, node_count: int) -> Iterator[tuple[int, int, int]]:
    ends = (0, *cuts, node_count)
    return ((stage, start, end) for stage, (start, end) in enumerate(pairwise(ends)))


def _cheapest(
    ends: Sequence[int],
    stages: int,
    cost: Callable[[int, int, int], float],
    combine: Callable[[float, float], float],
) -> Cuts | None:
    """Return the cuts whose stages cost the least together, by dynamic programming; None where all cost infinitely."""
    last = len(ends) - 1
    best: list[dict[int, tuple[float, int]]] = [{0: (0.0, 0)}]
    for stage in range(stages):
        found: dict[int, tuple[float, int]] = {}
        reachable = range(stage + 1, last + 1) if stage + 1 < stages else [last]
        for place in reachable:
            options = (
                (combine(total, cost(stage, ends[start], ends[place])), start)
                for start, (total, _) in best[stage].items()
                if start < place
            )
            cheapest = min(options, default=(math.inf, 0))
            if cheapest[0] < math.inf:
                found[place] = cheapest
        best.append(found)
    if last not in best[stages]:
        return None
    cuts, place = [], last
    for stage in range(stages, 0, -1):
        place = best[stage][place][1]
        cuts.append(ends[place])
    return tuple(reversed(cuts[:-1]))


def balance(
    space: CutSpace,
    seconds: Sequence[float],
    measure: Callable[[Cuts], Sequence[float]],
    has_time: Callable[[], bool],
) -> MeasuredCuts:
    """Return the most even of the cuts that were measured.

    Each measurement corrects the estimates of the nodes of its stages, by which the next cuts are chosen. When these
    are known, the borders of the largest stage are moved towards it, one position at a time.

    Args:
        space: where cuts may be.
        seconds: an estimate for each node.
        measure: returns the seconds of each stage on a device of speed 1.
        has_time: says whether another measurement may be made; the first always is.

    Raises:
        NoCutsError: as `choose_cuts`.
    """
    densities = [*seconds]
    known: dict[Cuts, MeasuredCuts] = {}

    def try_cuts(cuts: Cuts) -> MeasuredCuts:
        found = known[cuts] = MeasuredCuts(cuts, tuple(measure(cuts)))
        for stage, start, end in _stages(cuts, space.node_count):
            scale = found.seconds[stage] / max(sum(densities[start:end]), 1e-12)
            densities[start:end] = [each * scale for each in densities[start:end]]
        return found

    best = try_cuts(choose_cuts(space, densities))
    while best.imbalance(space.speeds) > GOAL and has_time():
        following = choose_cuts(space, densities)
        if following in known:
            moved = next((cuts for cuts in _moves(space, best) if cuts not in known), None)
            if moved is None:
                break
            following = moved
        best = min(best, try_cuts(following), key=lambda each: each.imbalance(space.speeds))
    return best


def _moves(space: CutSpace, found: MeasuredCuts) -> Iterator[Cuts]:
    """Yield cuts with one border of the largest stage moved into it, by one position and by two."""
    times = [seconds / speed for seconds, speed in zip(found.seconds, space.speeds, strict=True)]
    largest = max(range(len(times)), key=times.__getitem__)
    at = {position: place for place, position in enumerate(space.positions)}
    borders = [(border, step) for border, step in ((largest - 1, 1), (largest, -1)) if 0 <= border < len(found.cuts)]
    borders.sort(key=lambda each: times[each[0] + (each[1] < 0)])  # towards the smaller neighbour first
    for distance in (1, 2):
        for border, step in borders:
            place = at[found.cuts[border]] + step * distance
            if not 0 <= place < len(space.positions):
                continue
            moved = (*found.cuts[:border], space.positions[place], *found.cuts[border + 1 :])
            stages = _stages(moved, space.node_count)
            if all(start < end and space.fits(stage, start, end) for stage, start, end in stages):
                yield moved
