"""The sweeps that may gain something in a model, each made where it is worth it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain

from graphopt.base.errors import ModelError
from graphopt.ir.graph import Graph
from graphopt.rewrite.candidates import Candidate
from graphopt.rewrite.matching import Match
from graphopt.rewrite.simplify import DeadlineExceededError
from graphopt.runtime.cost_model import CostModel, GraphPart, PredictedGain
from graphopt.search.analytic_cost import AnalyticCost
from graphopt.search.explore import InputShapes, with_static_shapes
from graphopt.search.losing_places import SweptParts
from graphopt.search.moves import SearchSpace, find_trade_matches
from graphopt.search.policy import SearchPolicy
from graphopt.search.sweep import SweepRules, apply_sweep

log = logging.getLogger(__name__)


@dataclass(eq=False)
class SweepMaker:
    """Maker of the sweeps of one model."""

    simplified: Candidate
    rules: SweepRules
    """Rules of each sweep, as far as they are admitted."""
    space: Callable[[float], SearchSpace]
    """Search space until an end, of which sweeps take the simplifier and the admitted places."""
    policy: SearchPolicy
    clock: Callable[[], float]
    refusals: dict[str, dict[str, dict[str, str]]] = field(default_factory=dict)
    """Refusals of each sweep: reasons, by rule and place."""
    losing_places: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Digests of the nodes at the places that each sweep leaves, for there it costs more than it saves."""

    def make(self, start: Candidate, name: str, end: float) -> Candidate | None:
        """Return a candidate with a sweep; None where `apply_sweep` gives none, as at the `end`."""
        space = replace(self.space(end), refusals=self.refusals.setdefault(name, {}))
        return apply_sweep(start, name, self.rules[name], space, self.policy, self.losing_places.get(name, ()))

    def promising(
        self, cost: Callable[[], CostModel], shapes: Sequence[InputShapes], end: float
    ) -> Iterator[tuple[str, Candidate, float]]:
        """Yield the sweeps that are made before the `end` and may gain something: name, the simplified model with it,
        and how many times as fast it may be by the estimate; of sweeps by the same rules, the first.

        Args:
            cost: gives the cost model, which takes time to make.
            shapes: of the inputs at which gains are estimated.
            end: the time after which no sweep is made.
        """
        known, get_cost = set[tuple[str, ...]](), cache(cost)
        static = _static_graphs(self.simplified.graph, shapes)
        for index, name in enumerate(self.rules):
            if self.clock() >= end:
                log.info("there is no time for the sweeps %s", ", ".join([*self.rules][index:]))
                return
            made = self.make(self.simplified, name, end)
            rules = () if made is None else made.causes[0].rules
            if made is None or rules in known or not self._may_gain(made, static or [self.simplified.graph]):
                continue
            known.add(rules)
            yield name, *self._without_losing_places(get_cost(), name, made, static, shapes, end)

    def _may_gain(self, made: Candidate, static: Sequence[Graph]) -> bool:
        """Return whether more than noise can be gained by replacing the nodes that a sweep replaces."""
        before = self.simplified.graph
        share = max(AnalyticCost().replaced_share(before, made.graph, graph) for graph in static)
        return share * self.policy.sweep_margin >= self.policy.timing.noise

    def _without_losing_places(
        self,
        cost: CostModel,
        name: str,
        made: Candidate,
        static: Sequence[Graph],
        shapes: Sequence[InputShapes],
        end: float,
    ) -> tuple[Candidate, float]:
        """Return a sweep without the places where it loses by the estimate, if there are some and that promises more;
        and its predicted gain, at the sizes where that is most: 1 where sizes are unknown."""
        swept = SweptParts.of(made, self.policy.blocks)

        def predict(candidate: Candidate, parts: Sequence[GraphPart] = ()) -> list[PredictedGain]:
            after = _static_graphs(candidate.graph, shapes)
            return [cost.predict_gain(*pair, parts) for pair in zip(static, after, strict=False)]

        def best_ratio(gains: Sequence[PredictedGain]) -> float:
            return max((gain.ratio(self.policy.optimism) for gain in gains), default=1.0)

        gains = predict(made, swept.parts)
        if losing := swept.losing_places(self._matches(name, end), gains, self.policy):
            self.losing_places[name] = tuple(sorted(losing))
            part = self.make(self.simplified, name, end)
            if part is not None and best_ratio(gains_of_part := predict(part)) > best_ratio(gains):
                log.info(
                    "the sweep '%s' skips %d kinds of places, which the estimate says it would slow down",
                    name,
                    len(losing),
                )
                return part, best_ratio(gains_of_part)
            del self.losing_places[name]
        return made, best_ratio(gains)

    def _matches(self, name: str, end: float) -> list[Match]:
        """Return the places of a sweep in the simplified model; none where there is no time."""
        space = self.space(end)
        only = SearchSpace(self.rules[name], space.simplifier, space.allows)
        try:
            return [*chain.from_iterable(find_trade_matches(self.simplified.graph, only).values())]
        except DeadlineExceededError:
            return []


def _static_graphs(graph: Graph, shapes: Sequence[InputShapes]) -> list[Graph]:
    """Return a graph at each set of sizes; nothing where that cannot be told."""
    try:
        return [with_static_shapes(graph, each) for each in shapes]
    except ModelError as error:
        log.info("sweeps are estimated with unknown sizes: %s", error)
        return []
