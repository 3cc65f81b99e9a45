"""A search takes what is shown to be faster, and nothing else."""

from collections.abc import Sequence
from dataclasses import replace

from graphopt.ir.graph import Graph
from graphopt.language.rule import Rule, op
from graphopt.runtime.measure import Speedup
from tests.test_search import DETOUR, DOUBLE, Prices, found, space, x


class Doubtful(Prices):
    """Graphs with a difference look fastest, and are not shown to be faster."""

    def measure_speedups(self, before: Graph, after: Sequence[Graph], least_gain: float = 0.0) -> list[Speedup]:
        found = zip(super().measure_speedups(before, after, least_gain), after, strict=True)
        return [
            replace(ratio, low=0.9, rounds=15) if "Sub" in graph.operator_counts() else ratio for ratio, graph in found
        ]


def test_what_is_shown_to_be_faster_is_taken_beside_what_only_looks_so() -> None:
    other = Rule("double_is_difference", x * 2.0, x - op.Neg(x))
    cost = Doubtful(Mul=9, Add=3, Sub=0.5, Neg=0.5)
    _, exploration = found(DETOUR, space(DOUBLE, other), cost)
    assert [solution.rules for solution in exploration.solutions] == [("double_is_sum",)]
