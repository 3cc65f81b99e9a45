"""The built-in rules, one file per family; each is data and knows neither the graph nor the solver."""

from __future__ import annotations

from collections.abc import Mapping

from graphopt.rule import Rule
from graphopt.rules import (
    activation,
    attention,
    blocks,
    branches,
    casting,
    channels,
    convolution,
    elementwise,
    fused,
    grouping,
    kernels,
    layout,
    linear,
    moving,
    normalization,
    padding,
    parallel,
    patches,
    pruning,
    quantization,
    reduction,
    slicing,
    winograd,
)

RULES: tuple[Rule, ...] = (
    *convolution.RULES,
    *pruning.RULES,
    *grouping.RULES,
    *patches.RULES,
    *branches.RULES,
    *linear.RULES,
    *normalization.RULES,
    *activation.RULES,
    *padding.RULES,
    *casting.RULES,
    *layout.RULES,
    *slicing.RULES,
    *reduction.RULES,
    *elementwise.RULES,
    *quantization.RULES,
    *attention.RULES,
)
"""Rules that make a model simpler wherever they match."""

TRADES: tuple[Rule, ...] = (
    *attention.TRADES,
    *linear.TRADES,
    *parallel.TRADES,
    *grouping.TRADES,
    *kernels.TRADES,
    *winograd.TRADES,
    *activation.TRADES,
    *moving.TRADES,
    *reduction.TRADES,
    *blocks.TRADES,
    *channels.TRADES,
    *quantization.TRADES,
    *fused.TRADES,
)
"""Rules that are true, and pay in some models only: for a search that measures."""

SWEEPS: Mapping[str, tuple[Rule, ...]] = {
    **fused.SWEEPS,
    **{
        name: (*fused.TRADES, *rules)
        for sweeps in (
            moving.SWEEPS,
            attention.SWEEPS,
            quantization.SWEEPS,
            blocks.SWEEPS,
            channels.SWEEPS,
            winograd.SWEEPS,
            moving.STACKS,
        )
        for name, rules in sweeps.items()
    },
}
"""Trades that pay only together and all over a model, by what they are for; in the order to apply them: first what
leaves less to compute, last what says for the kernels how it lies. Each begins with the parts of what ONNX Runtime has
fused, for taken apart alone they gain nothing where ONNX Runtime fuses them again."""
