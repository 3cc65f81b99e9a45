"""Places at which a sweep costs more than it saves, by the estimate, while it pays in other parts of the model.

A convolution of a long signal with few channels, for example, is slower as one of an image, and others of the same
model are faster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from graphopt.ir.graph import Graph
from graphopt.rewrite.candidates import Candidate
from graphopt.rewrite.matching import Match
from graphopt.rewrite.regions import BlockSizes, cut_into_blocks
from graphopt.rewrite.simplify import Step
from graphopt.runtime.cost_model import GraphPart, PredictedGain
from graphopt.search.moves import match_digests
from graphopt.search.policy import SearchPolicy


@dataclass(frozen=True)
class SweptParts:
    """The parts of a model, and what a sweep made of them."""

    graph: Graph
    """The model without the sweep."""
    parts: Sequence[GraphPart]

    @staticmethod
    def of(made: Candidate, sizes: BlockSizes) -> SweptParts:
        """Return the parts of the candidate of which one with a sweep was made."""
        assert made.base is not None, "a sweep is made on a candidate"
        blocks = cut_into_blocks(made.base.graph, sizes)
        number_of = {vertex: number for number, block in enumerate(blocks) for vertex in block}
        swept: list[list[int]] = [[] for _ in blocks]
        for vertex, number in _follow_steps(number_of, made.own_steps).items():
            swept[number].append(vertex)
        return SweptParts(made.base.graph, [*zip(blocks, swept, strict=True)])

    def losing_places(
        self, matches: Sequence[Match], gains: Sequence[PredictedGain], policy: SearchPolicy
    ) -> frozenset[str]:
        """Return the digests of the nodes that are matched in parts which the sweep makes slower, and in no others.

        A part counts where even the optimistic estimate is a loss beyond noise at all sizes. Where no part gains, there
        is none: then the estimate says little of the sweep.

        Args:
            matches: of the sweep's rules in the model without it.
            gains: of the model and its parts, at each set of sizes.
            policy: which says what noise is.
        """
        losing = {
            number
            for number, found in enumerate(zip(*(gain.parts for gain in gains), strict=True))
            if all(each.saved + policy.optimism * each.error < -policy.timing.noise * each.whole for each in found)
        }
        if not losing or all(each.saved <= 0 for each in chain.from_iterable(gain.parts for gain in gains)):
            return frozenset()
        number_of = {vertex: number for number, (block, _) in enumerate(self.parts) for vertex in block}
        lost, kept = set[str](), {""}
        for match, digest in zip(matches, match_digests(self.graph, matches), strict=True):
            numbers = {number_of[vertex] for vertex in match.vertices if vertex in number_of}
            (lost if numbers and numbers <= losing else kept).add(digest)
        return frozenset(lost - kept)


def _follow_steps(number_of: Mapping[int, int], steps: Iterable[Step]) -> dict[int, int]:
    """Return the parts of vertices after some steps: new ones belong where most are from that they replace."""
    found = dict(number_of)
    for step in steps:
        before, after = step.patch.before, step.patch.after
        kept = [found[vertex] for vertex in before if vertex in found and vertex in after]
        replaced = [found.pop(vertex) for vertex in before if vertex in found and vertex not in after]
        if sources := replaced or kept:
            ((number, _),) = Counter(sources).most_common(1)
            found.update(dict.fromkeys(after.keys() - before.keys(), number))
    return found
