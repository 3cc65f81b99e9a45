"""The built-in rules, one file per family; each is data and knows neither the graph nor the solver."""

from __future__ import annotations

from graphopt.rule import Rule
from graphopt.rules import activation, convolution, linear, normalization, padding

RULES: tuple[Rule, ...] = (
    *convolution.RULES,
    *linear.RULES,
    *normalization.RULES,
    *activation.RULES,
    *padding.RULES,
)
"""Rules that make a model simpler wherever they match."""
