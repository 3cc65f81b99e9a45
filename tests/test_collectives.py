"""Collective operations, executed message by message: the results are right, and take the time of the formulas."""

import math
from collections.abc import Generator

import numpy as np
import pytest

from graphopt.partition.collectives import ALGORITHMS, Algorithm, Group, Operation, collective_seconds, fastest
from graphopt.partition.devices import INSTANT, Link
from graphopt.partition.simulator import Compute, DeadlockError, Instruction, Receive, Send, Simulation, simulate

COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 16)
LINKS = (Link(1e-5, 1e9), Link(0.0, 1e6), Link(1.0, 1e30))
CASES = [
    pytest.param(algorithm, count, id=f"{algorithm.operation}-{algorithm.name}-{count}".replace(" ", "-"))
    for algorithm in ALGORITHMS
    for count in COUNTS
    if algorithm.supports(count)
]


def execute(algorithm: Algorithm, values: list[np.ndarray], link: Link) -> Simulation:
    members = tuple(range(len(values)))
    nbytes = float(8 * values[0].size)
    programs = [algorithm.program(Group(rank, members, nbytes), values[rank].copy()) for rank in members]
    return simulate(programs, link)


def expected(operation: Operation, values: list[np.ndarray]) -> list[np.ndarray]:
    count = len(values)
    match operation:
        case Operation.ALL_REDUCE:
            return [np.sum(values, axis=0)] * count
        case Operation.REDUCE_SCATTER:
            return np.array_split(np.sum(values, axis=0), count)
        case Operation.ALL_GATHER:
            own = [np.array_split(value, count)[rank] for rank, value in enumerate(values)]
            return [np.concatenate(own)] * count
        case Operation.BROADCAST:
            return [values[0]] * count


@pytest.mark.parametrize(("algorithm", "count"), CASES)
@pytest.mark.parametrize("elements", [1, 10, 48 * 5 * 7 * 13])
def test_the_result_is_right(algorithm: Algorithm, count: int, elements: int) -> None:
    random = np.random.default_rng(count)
    values = [random.integers(-9, 9, elements).astype(np.float64) for _ in range(count)]
    found = execute(algorithm, values, LINKS[0])
    for result, right in zip(found.results, expected(algorithm.operation, values), strict=True):
        np.testing.assert_array_equal(result, right)


@pytest.mark.parametrize(("algorithm", "count"), CASES)
@pytest.mark.parametrize("link", LINKS, ids=["both", "bandwidth", "latency"])
def test_the_time_is_that_of_the_formula(algorithm: Algorithm, count: int, link: Link) -> None:
    elements = 48 * 5 * 7 * 13  # a multiple of each count
    found = execute(algorithm, [np.ones(elements) for _ in range(count)], link)
    assert math.isclose(found.seconds, algorithm.seconds(count, 8.0 * elements, link), rel_tol=1e-9, abs_tol=1e-15)


@pytest.mark.parametrize(("algorithm", "count"), CASES)
def test_parts_of_unequal_sizes_cost_little_more(algorithm: Algorithm, count: int) -> None:
    """Each message is longer by one element at most; and where one comes that much early, it may take a port from one
    that is waited for."""
    link, elements = Link(1e-5, 1e9), 1009
    found = execute(algorithm, [np.ones(elements) for _ in range(count)], link)
    exact = algorithm.seconds(count, 8.0 * elements, link)
    longer = 2 * count * 8 / link.bandwidth
    delayed = 0 if count & (count - 1) == 0 else link.seconds(8.0 * elements)
    assert exact * (1 - 1e-9) <= found.seconds <= exact + longer + delayed


def test_long_messages_go_around_a_ring_and_short_ones_across_a_butterfly() -> None:
    link = Link(1e-5, 1e10)
    assert fastest(Operation.ALL_REDUCE, 8, 8, link).name == "butterfly"
    assert fastest(Operation.ALL_REDUCE, 7, 1e9, link).name == "ring"
    assert fastest(Operation.ALL_REDUCE, 8, 1e9, link).name == "halving-doubling"
    assert collective_seconds(Operation.ALL_REDUCE, 1, 1e9, link) == 0


def test_a_ring_moves_the_fewest_bytes_that_an_all_reduce_can() -> None:
    ring = next(each for each in ALGORITHMS if each.operation is Operation.ALL_REDUCE and each.name == "ring")
    count, elements = 4, 400
    found = execute(ring, [np.ones(elements) for _ in range(count)], LINKS[0])
    assert found.messages == 2 * (count - 1) * count
    assert math.isclose(found.sent_bytes, 2 * (count - 1) * 8 * elements)


# -- the simulator -----------------------------------------------------------------------------------------------------

Steps = Generator[Instruction, object, object]


def steps(*instructions: Instruction) -> Steps:
    """Run instructions, and return what the last of them yields."""
    answer = None
    for instruction in instructions:
        answer = yield instruction
    return answer


def test_a_device_sends_and_computes_at_once() -> None:
    found = simulate([steps(Send(1, 10, "word"), Compute(5.0)), steps(Receive(0))], Link(1.0, 10.0))
    assert found.seconds == 5.0
    assert found.results == (None, "word")


def test_a_port_carries_one_message_at_a_time() -> None:
    link = Link(1.0, 10.0)
    two_to_one = [steps(Send(2, 10)), steps(Send(2, 10)), steps(Receive(0), Receive(1))]
    assert simulate(two_to_one, link).seconds == 4.0
    one_to_two = [steps(Send(1, 10), Send(2, 10)), steps(Receive(0)), steps(Receive(0))]
    assert simulate(one_to_two, link).seconds == 4.0
    exchange = [steps(Send(1, 10), Receive(1)), steps(Send(0, 10), Receive(0))]
    assert simulate(exchange, link).seconds == 2.0, "full duplex"


def test_messages_of_one_device_arrive_in_order() -> None:
    found = simulate([steps(Send(1, 0, "a"), Send(1, 0, "b")), steps(Receive(0), Receive(0))], INSTANT)
    assert found.results[1] == "b"


def test_a_message_that_no_one_sends_is_an_error() -> None:
    with pytest.raises(DeadlockError, match=r"devices \[1\] wait"):
        simulate([steps(Compute(1.0)), steps(Receive(0))], INSTANT)
