"""The built-in rules, one file per family; each is data and knows neither the graph nor the solver."""

from __future__ import annotations

from collections.abc import Mapping

from graphopt.rule import Rule
from graphopt.rules import (
    activation,
    attention,
    block_diagonal,
    blocked_layout,
    branches,
    cache_aliasing,
    casting,
    code_motion,
    contrib_decomposition,
    conv_variants,
    convolution,
    elementwise,
    fast_paths,
    interpolation,
    layout,
    linear,
    matmul_as_conv,
    normalization,
    padding,
    parallel,
    patches,
    pruning,
    quantization,
    reduction,
    rotary,
    scattering,
    slicing,
    splitting,
    strassen,
    tensor_parallel,
    tiling,
    volumes,
    windows,
    winograd,
)

RULES: tuple[Rule, ...] = (
    *convolution.RULES,
    *pruning.RULES,
    *block_diagonal.RULES,
    *patches.RULES,
    *branches.RULES,
    *linear.RULES,
    *normalization.RULES,
    *activation.RULES,
    *padding.RULES,
    *casting.RULES,
    *layout.RULES,
    *slicing.RULES,
    *scattering.RULES,
    *reduction.RULES,
    *elementwise.RULES,
    *quantization.RULES,
    *attention.RULES,
    *interpolation.RULES,
    *rotary.RULES,
)
"""Rules that make a model simpler wherever they match."""

TRADES: tuple[Rule, ...] = (
    *attention.TRADES,
    *linear.TRADES,
    *parallel.TRADES,
    *block_diagonal.TRADES,
    *conv_variants.TRADES,
    *volumes.TRADES,
    *windows.TRADES,
    *winograd.TRADES,
    *strassen.TRADES,
    *cache_aliasing.TRADES,
    *fast_paths.TRADES,
    *activation.TRADES,
    *code_motion.TRADES,
    *reduction.TRADES,
    *blocked_layout.TRADES,
    *matmul_as_conv.TRADES,
    *interpolation.TRADES,
    *elementwise.TRADES,
    *normalization.TRADES,
    *quantization.TRADES,
    *contrib_decomposition.TRADES,
    *patches.TRADES,
    *splitting.TRADES,
    *tensor_parallel.TRADES,
    *tiling.TRADES,
)
"""Rules that are true, and pay in some models only: for a search that measures."""

MEMORY_TRADES: tuple[Rule, ...] = (*splitting.TRADES, *tiling.TRADES)
"""Trades of time for memory, which no search for speed tries: a memory budget asks for them."""

TENSOR_PARALLEL: tuple[Rule, ...] = tensor_parallel.TRADES
"""Trades that split operators among devices, which no search for speed tries: a plan for several devices does."""

SWEEPS: Mapping[str, tuple[Rule, ...]] = {
    **contrib_decomposition.SWEEPS,
    **{
        name: (*contrib_decomposition.TRADES, *rules)
        for sweeps in (
            code_motion.SWEEPS,
            attention.SWEEPS,
            quantization.SWEEPS,
            conv_variants.SWEEPS,
            volumes.SWEEPS,
            windows.SWEEPS,
            blocked_layout.SWEEPS,
            patches.SWEEPS,
            reduction.SWEEPS,
            linear.SWEEPS,
            matmul_as_conv.SWEEPS,
            winograd.SWEEPS,
            cache_aliasing.SWEEPS,
            strassen.SWEEPS,
            interpolation.SWEEPS,
            elementwise.SWEEPS,
            normalization.SWEEPS,
            parallel.SWEEPS,
            fast_paths.SWEEPS,
            code_motion.STACKS,
        )
        for name, rules in sweeps.items()
    },
}
"""Trades that pay only together and all over a model, by what they are for; in the order to apply them: first what
leaves less to compute, last what says for the kernels how it lies. Each begins with the parts of what ONNX Runtime has
fused, for taken apart alone they gain nothing where ONNX Runtime fuses them again."""

ALSO_ALONE: tuple[Rule, ...] = (
    *linear.TRADES,
    *(*parallel.APART, *parallel.ON_PARTS, *parallel.EVEN, parallel.SUM_OF_CONVS),
    *conv_variants.AS_IMAGES,
    *reduction.SPLITS,
)
"""Trades of sweeps that may pay at single places, too: a search tries them there."""
