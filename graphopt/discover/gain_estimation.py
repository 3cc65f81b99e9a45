"""Speedups by a rule: of large tensors drawn for it, and of the parts of models that it changes.

One cost model is asked: the estimate of the search, for which nothing is run, or the time that ONNX Runtime takes.
Models are simplified with the library first, so that only what it gains beyond the library counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from graphopt.discover.library_lookup import large_sides
from graphopt.ir.graph import Graph
from graphopt.language.rule import Rule
from graphopt.language.rule_library import RuleLibrary
from graphopt.rewrite.gate import Gate
from graphopt.rewrite.matching import find_matches
from graphopt.rewrite.passes import PASSES
from graphopt.rewrite.simplify import Simplifier
from graphopt.runtime.cost_model import CostModel, NotMeasurableError, open_cost_cache
from graphopt.runtime.graph_sessions import random_feeds
from graphopt.runtime.session_setting import SessionSetting
from graphopt.search.analytic_cost import AnalyticCost
from graphopt.search.explore import InputShapes, explore_regions
from graphopt.search.measured_cost import MeasuredCost
from graphopt.search.moves import SearchSpace
from graphopt.search.policy import SearchPolicy

POLICY = SearchPolicy(states=60)
"""Policy of the search in the parts of one model in which one rule matches."""

SECONDS = 30.0
"""Seconds for the search in one model."""


def cost_model(name: str) -> CostModel:
    """Return the cost model "analytic" or "measured", with the settings of a search without options."""
    if name == AnalyticCost.name:
        return AnalyticCost()
    setting, cache = SessionSetting(threads=0), open_cost_cache()
    return MeasuredCost.on_this_machine(setting, cache)


@dataclass(frozen=True)
class ModelGain:
    """Effect of a rule in a model that the library has simplified."""

    matches: int
    gain: float | None
    """Largest speedup of a part of the model; None where no part gains, or that cannot be told."""


class GainEstimator:
    """Estimates what rules gain by one cost model."""

    def __init__(self, cost: CostModel, known: RuleLibrary, models: Mapping[str, Graph]) -> None:
        """Take models, which are simplified with the library, in place."""
        self.cost, self.models = cost, models
        self.gate = Gate()
        self.simplifier = Simplifier(known.rules, PASSES, self.gate.allows)
        for graph in models.values():
            self.simplifier.run(graph)
        self.shapes = {name: _shapes(graph) for name, graph in models.items()}

    def on_large_tensors(self, rule: Rule) -> float | None:
        """Return the speedup of the right side over the left one; None if no large tensors were drawn."""
        sides = large_sides(rule)
        try:
            return round(self.cost.measure_speedups(sides[0], sides[1:])[0].median, 3) if sides else None
        except NotMeasurableError:
            return None

    def in_models(self, rule: Rule) -> dict[str, ModelGain]:
        """Return the effect of the rule in each of the models."""
        return {name: self._in_model(rule, graph, self.shapes[name]) for name, graph in self.models.items()}

    def _in_model(self, rule: Rule, graph: Graph, shapes: InputShapes) -> ModelGain:
        count = sum(1 for _ in find_matches(rule, graph))
        if not count:
            return ModelGain(0, None)
        space = SearchSpace([rule], self.simplifier, self.gate.allows)
        solutions = explore_regions(graph, space, self.cost, [shapes], POLICY, seconds=SECONDS).solutions
        return ModelGain(count, max((round(each.speedup.median, 3) for each in solutions), default=None))


def _shapes(graph: Graph) -> InputShapes:
    """Return shapes of the inputs, with usual sizes for open ones; none if none can be made up."""
    try:
        feeds = random_feeds(graph, seed=0)
    except NotMeasurableError:
        return {}
    return {name: value.shape for name, value in feeds.items() if isinstance(value, np.ndarray)}
