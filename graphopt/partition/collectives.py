"""Collective operations: how long each takes by the α–β model, and the messages that it consists of.

A message of n bytes takes α + n·β seconds (α latency, β seconds a byte); adding numbers up counts as free. The formulas
are those of Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH" (2005), and
of Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009), for the ring. The
programs are what `simulator` runs, message by message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from typing import Any, TypeAlias

import numpy as np

from graphopt.partition.devices import Link
from graphopt.partition.simulator import Program, Receive, Send

Array: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"


class Operation(StrEnum):
    """Collective operation, by what it leaves on each device."""

    ALL_REDUCE = "all-reduce"
    """The sum of the values of all devices, everywhere."""
    REDUCE_SCATTER = "reduce-scatter"
    """The sum, a part of it on each device."""
    ALL_GATHER = "all-gather"
    """The parts that the devices have, joined, everywhere."""
    BROADCAST = "broadcast"
    """The value of the first device, everywhere."""


@dataclass(frozen=True, slots=True)
class Join:
    """A collective operation after which all devices of a group have the same value; values are called by name."""

    operation: Operation
    """All-gather or all-reduce."""
    parts: tuple[str, ...]
    """Values that the devices contribute, in their order."""
    result: str
    """Value that all have after it."""
    axis: int = 0
    """Axis along which an all-gather joins the parts."""

    def of(self, values: Mapping[str, Any]) -> Any:
        """Return the result, of the same type as the parts."""
        parts = [values[name] for name in self.parts]
        if self.operation is Operation.ALL_GATHER:
            return np.concatenate(parts, axis=self.axis)
        return np.asarray(reduce(np.add, parts))


@dataclass(frozen=True)
class Group:
    """Devices that take part in a collective operation, as one of them sees it."""

    rank: int
    """Its place among them."""
    members: tuple[int, ...]
    """Numbers of the devices."""
    nbytes: float
    """Bytes of the whole value."""

    @property
    def size(self) -> int:
        return len(self.members)

    def send(self, rank: int, payload: Array, whole: Array) -> Send:
        """Send a piece of a value that is `nbytes` long as a whole."""
        return Send(self.members[rank], self.nbytes * payload.size / max(whole.size, 1), payload)

    def receive(self, rank: int) -> Receive:
        return Receive(self.members[rank])


CollectiveProgram: TypeAlias = "Callable[[Group, Array], Program]"
"""Program of one device: takes a flat value, and returns the flat result. For `ALL_GATHER` the value has the result's
length, of which only the device's own part counts."""


@dataclass(frozen=True)
class Algorithm:
    """A way to carry out a collective operation."""

    name: str
    operation: Operation
    formula: str
    seconds_of: Callable[[int, float, Link], float]
    """Seconds, given the number of devices (two or more), the bytes of the whole value, and the link."""
    program: CollectiveProgram
    only_powers_of_two: bool = False

    def seconds(self, count: int, nbytes: float, link: Link) -> float:
        """Return the seconds that it takes on so many devices; 0 on one."""
        return self.seconds_of(count, nbytes, link) if count > 1 else 0.0

    def supports(self, count: int) -> bool:
        return not self.only_powers_of_two or count & (count - 1) == 0


def fastest(operation: Operation, count: int, nbytes: float, link: Link) -> Algorithm:
    """Return the algorithm that takes the least time."""
    return min(
        (each for each in ALGORITHMS if each.operation is operation and each.supports(count)),
        key=lambda each: each.seconds(count, nbytes, link),
    )


def collective_seconds(operation: Operation, count: int, nbytes: float, link: Link) -> float:
    """Return the seconds that a collective operation takes by the fastest algorithm."""
    return fastest(operation, count, nbytes, link).seconds(count, nbytes, link)


def _log2(count: int) -> int:
    """Return the binary logarithm, rounded down."""
    return count.bit_length() - 1


def _rounds(count: int) -> int:
    """Return the binary logarithm, rounded up."""
    return (count - 1).bit_length()


PartsProgram: TypeAlias = "Callable[[Group, list[Array], Array], Program]"
"""Program that exchanges parts of a value, one for each device, and puts in their place what it has received."""


def _reduce_scatter(scatter: PartsProgram) -> CollectiveProgram:
    def program(group: Group, value: Array) -> Program:
        parts = np.array_split(value, group.size)
        yield from scatter(group, parts, value)
        return parts[group.rank]

    return program


def _all_gather(*phases: PartsProgram) -> CollectiveProgram:
    """Return the program after whose last phase each device has all parts: alone an all-gather, after a reduce-scatter
    an all-reduce."""

    def program(group: Group, value: Array) -> Program:
        parts = np.array_split(value, group.size)
        for phase in phases:
            yield from phase(group, parts, value)
        return np.concatenate(parts)

    return program


# -- parameter server --------------------------------------------------------------------------------------------------


def _parameter_server(group: Group, value: Array) -> Program:
    if group.rank:
        yield group.send(0, value, value)
        return (yield group.receive(0))
    total = value.copy()
    for rank in range(1, group.size):
        total += yield group.receive(rank)
    for rank in range(1, group.size):
        yield group.send(rank, total, total)
    return total


# -- ring --------------------------------------------------------------------------------------------------------------


def _ring(group: Group, parts: list[Array], whole: Array, first: int, *, adds: bool) -> Program:
    """Pass parts on around the ring, beginning with number `first`, so that each device has seen those of all."""
    following, previous = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    for step in range(group.size - 1):
        yield group.send(following, parts[(first - step) % group.size], whole)
        arrived = yield group.receive(previous)
        place = (first - step - 1) % group.size
        parts[place] = parts[place] + arrived if adds else arrived


def _ring_add(group: Group, parts: list[Array], whole: Array) -> Program:
    yield from _ring(group, parts, whole, group.rank - 1, adds=True)


def _ring_copy(group: Group, parts: list[Array], whole: Array) -> Program:
    yield from _ring(group, parts, whole, group.rank, adds=False)


# -- binomial tree -----------------------------------------------------------------------------------------------------


def _tree_reduce(group: Group, value: Array) -> Program:
    """Leave the sum on the first device."""
    total = value.copy()
    for level in range(_rounds(group.size)):
        bit = 1 << level
        if group.rank & bit:
            yield group.send(group.rank - bit, total, value)
            return total
        if group.rank + bit < group.size:
            total += yield group.receive(group.rank + bit)
    return total


def _tree_broadcast(group: Group, value: Array) -> Program:
    levels = _rounds(group.size)
    own = (group.rank & -group.rank).bit_length() - 1 if group.rank else levels
    if group.rank:
        value = yield group.receive(group.rank - (1 << own))
    for level in reversed(range(own)):
        if group.rank + (1 << level) < group.size:
            yield group.send(group.rank + (1 << level), value, value)
    return value


def _tree_all_reduce(group: Group, value: Array) -> Program:
    total = yield from _tree_reduce(group, value)
    return (yield from _tree_broadcast(group, total))


# -- butterfly ---------------------------------------------------------------------------------------------------------


def _on_power_of_two(algorithm: CollectiveProgram) -> CollectiveProgram:
    """Extend an all-reduce to any number of devices: those beyond a power of two give their values to others first, and
    are sent the sum in the end."""

    def program(group: Group, value: Array) -> Program:
        inner = 1 << _log2(group.size)
        partner = group.rank - inner if group.rank >= inner else group.rank + inner
        if group.rank >= inner:
            yield group.send(partner, value, value)
            return (yield group.receive(partner))
        if partner < group.size:
            value = value + (yield group.receive(partner))
        total = yield from algorithm(Group(group.rank, group.members[:inner], group.nbytes), value)
        if partner < group.size:
            yield group.send(partner, total, total)
        return total

    return program


def _recursive_doubling(group: Group, value: Array) -> Program:
    total = value
    for level in range(_log2(group.size)):
        partner = group.rank ^ (1 << level)
        yield group.send(partner, total, value)
        total = total + (yield group.receive(partner))
    return total


# -- halving and doubling ----------------------------------------------------------------------------------------------


def _range_of(parts: list[Array], start: int, stop: int) -> Array:
    return np.concatenate(parts[start:stop])


def _store(parts: list[Array], start: int, stop: int, values: Array) -> None:
    """Put values in the place of the parts from `start` to `stop`."""
    ends = np.cumsum([part.size for part in parts[start:stop]])[:-1]
    parts[start:stop] = np.split(values, ends)


def _halve(group: Group, parts: list[Array], whole: Array) -> Program:
    """Reduce and scatter: exchange halves of what is left with a partner, which is nearer in each round."""
    start, stop = 0, group.size
    while stop - start > 1:
        middle = (start + stop) // 2
        partner = group.rank ^ (middle - start)
        kept, given = ((start, middle), (middle, stop))[:: 1 if group.rank < middle else -1]
        yield group.send(partner, _range_of(parts, *given), whole)
        arrived = yield group.receive(partner)
        _store(parts, *kept, _range_of(parts, *kept) + arrived)
        start, stop = kept


def _double(group: Group, parts: list[Array], whole: Array) -> Program:
    """Gather: exchange what is known with a partner, which is farther in each round."""
    for level in range(_log2(group.size)):
        width = 1 << level
        start = group.rank & -width
        partner = group.rank ^ width
        yield group.send(partner, _range_of(parts, start, start + width), whole)
        arrived = yield group.receive(partner)
        _store(parts, partner & -width, (partner & -width) + width, arrived)


# -- the table ---------------------------------------------------------------------------------------------------------


def _extra_rounds(count: int) -> int:
    """Return the messages before and after an all-reduce among a power of two of the devices."""
    return 0 if count == 1 << _log2(count) else 2


def _ring_seconds(passes: int) -> Callable[[int, float, Link], float]:
    return lambda p, n, link: passes * (p - 1) * link.seconds(n / p)


def _log_seconds(p: int, n: float, link: Link) -> float:
    return _log2(p) * link.latency + (p - 1) / p * (n / link.bandwidth)


ALGORITHMS: tuple[Algorithm, ...] = (
    Algorithm(
        "parameter server",
        Operation.ALL_REDUCE,
        "2(p-1)(α + nβ)",
        lambda p, n, link: 2 * (p - 1) * link.seconds(n),
        _parameter_server,
    ),
    Algorithm("ring", Operation.ALL_REDUCE, "2(p-1)(α + nβ/p)", _ring_seconds(2), _all_gather(_ring_add, _ring_copy)),
    Algorithm(
        "tree",
        Operation.ALL_REDUCE,
        "2⌈log p⌉(α + nβ)",
        lambda p, n, link: 2 * _rounds(p) * link.seconds(n),
        _tree_all_reduce,
    ),
    Algorithm(
        "butterfly",
        Operation.ALL_REDUCE,
        "⌊log p⌋(α + nβ), and 2(α + nβ) unless p is a power of 2",
        lambda p, n, link: (_log2(p) + _extra_rounds(p)) * link.seconds(n),
        _on_power_of_two(_recursive_doubling),
    ),
    Algorithm(
        "halving-doubling",
        Operation.ALL_REDUCE,
        "2α log q + 2nβ(q-1)/q with q = 2^⌊log p⌋, and 2(α + nβ) unless p = q",
        lambda p, n, link: 2 * _log_seconds(1 << _log2(p), n, link) + _extra_rounds(p) * link.seconds(n),
        _on_power_of_two(_all_gather(_halve, _double)),
    ),
    Algorithm("ring", Operation.REDUCE_SCATTER, "(p-1)(α + nβ/p)", _ring_seconds(1), _reduce_scatter(_ring_add)),
    Algorithm(
        "halving",
        Operation.REDUCE_SCATTER,
        "α log p + nβ(p-1)/p",
        _log_seconds,
        _reduce_scatter(_halve),
        only_powers_of_two=True,
    ),
    Algorithm("ring", Operation.ALL_GATHER, "(p-1)(α + nβ/p)", _ring_seconds(1), _all_gather(_ring_copy)),
    Algorithm(
        "doubling",
        Operation.ALL_GATHER,
        "α log p + nβ(p-1)/p",
        _log_seconds,
        _all_gather(_double),
        only_powers_of_two=True,
    ),
    Algorithm(
        "tree",
        Operation.BROADCAST,
        "⌈log p⌉(α + nβ)",
        lambda p, n, link: _rounds(p) * link.seconds(n),
        _tree_broadcast,
    ),
)
"""The algorithms; p is the number of devices, n the bytes of the whole value."""
