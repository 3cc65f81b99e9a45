"""Attributes and lists that make an operator defined: proposed by name, for the drawing of examples."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

from graphopt.language.schemas import Misfit, Operator, Types
from graphopt.language.term import App, Lit, Term, Var, is_scalar
from graphopt.operators.movement import EVEN, ROUNDINGS
from graphopt.operators.windows import CONVOLUTIONS
from graphopt.verifier.example import Shape
from graphopt.verifier.scope import Scope


class Drawn(Protocol):
    """What is drawn of an example so far."""

    rng: random.Random
    scope: Scope
    types: Types
    values: dict[str, Any]
    shapes: dict[Term, Shape | None]


@dataclass(frozen=True)
class Context:
    """An operator whose tensor operands are known, for proposing the rest."""

    app: App
    operator: Operator
    inputs: list[Shape | None]
    attrs: dict[str, Any]
    draft: Drawn

    @property
    def rng(self) -> random.Random:
        return self.draft.rng

    @property
    def shape(self) -> Shape:
        """Of the first input."""
        return (self.inputs[0] if self.inputs else None) or ()

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def spatial(self) -> int:
        return max(self.rank - 2, 0)


_CONVS = (*CONVOLUTIONS, "ConvTranspose")
WEIGHTED: Mapping[str, int] = {"Conv": 1, "MatMul": 1, "ConvInteger": 1, "MatMulInteger": 1, "QLinearConv": 3}
"""Operators whose weights have an axis as long as the first operand has it, and where the weights are."""
WINDOWS = ("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool")
"""Run in FLOAT: ORT has kernels for little else, and `onnx.reference` is slow, and errs on grouped ConvTranspose."""
ORDER = {"axis": -2, "group": -1, "kernel_shape": -1, "num_outputs": 1, "pads": 2}


def propose(context: Context, name: str, kind: str) -> Any:
    """Return a value for an attribute, or for an input that holds a list of integers or a number."""
    if (context.app.op, name) in _SPECIAL:
        value = _SPECIAL[context.app.op, name](context)
    elif name in _PROPOSALS:
        value = _PROPOSALS[name](context)
    else:
        value = _by_kind(context, kind)
    if kind == "integer" and isinstance(value, tuple):
        return context.rng.choice(value) if value else 0
    if kind == "integers" and not isinstance(value, tuple):
        return (value,)
    return value


def _by_kind(context: Context, kind: str) -> Any:
    rng = context.rng
    match kind:
        case "integer":
            return rng.randint(-1, 3)
        case "integers":
            return tuple(rng.choice(context.draft.scope.numbers) for _ in range(rng.choice((1, context.rank))))
        case "real":
            return rng.choice((0.5, 1.0, 2.0, 0.25, -1.5, 3.0, 6.0, 0.0))
    return "NOTSET"


def _axes(context: Context) -> Shape:
    least = 0 if context.rng.random() < 0.1 else min(1, context.rank)
    chosen = context.rng.sample(range(context.rank), context.rng.randint(least, context.rank))
    return tuple(axis - context.rank if context.rng.random() < 0.3 else axis for axis in chosen)


def _axis(context: Context) -> int:
    if context.rank == 0:
        return 0
    return context.rng.randrange(-context.rank, context.rank)


def _many(low: int, high: int, times: int = 1) -> Callable[[Context], Shape]:
    return lambda context: tuple(context.rng.randint(low, high) for _ in range(times * context.spatial))


def _group(context: Context) -> int:
    place = WEIGHTED.get(context.app.op, 1)
    weights = context.inputs[place] if len(context.inputs) > place else None
    if not weights or len(weights) < 2 or context.rank < 2:
        raise Misfit("no channels")
    channels = context.shape[1]
    if context.app.op in CONVOLUTIONS:
        return channels // weights[1] if weights[1] else 1
    return context.rng.choice([group for group in range(1, channels + 1) if channels % group == 0] or [1])


def _kernel(context: Context) -> Shape:
    if context.app.op in _CONVS:
        return tuple((context.inputs[WEIGHTED.get(context.app.op, 1)] or ())[2:])
    return _many(1, 3)(context)


def _factors(context: Context) -> Shape:
    """Another shape with as many elements, with a -1 or a 0 now and then."""
    rng, rest = context.rng, prod(context.shape)
    sizes: list[int] = []
    for _ in range(rng.randint(0, 3)):
        sizes.append(rng.choice([n for n in range(1, rest + 1) if rest % n == 0] or [1]))
        rest //= sizes[-1] or 1
    if rest != 1 or rng.random() < 0.2:
        sizes.insert(rng.randint(0, len(sizes)), rest)
    if sizes and rng.random() < 0.4:
        sizes[rng.randrange(len(sizes))] = -1
    kept = [i < context.rank and size == context.shape[i] and rng.random() < 0.3 for i, size in enumerate(sizes)]
    return tuple(0 if keep else size for keep, size in zip(kept, sizes, strict=True))


def _expanded(context: Context) -> Shape:
    rng = context.rng
    sizes = [size if size != 1 else rng.choice((1, 2, 3)) for size in context.shape]
    sizes = [1 if rng.random() < 0.2 else size for size in sizes]
    return tuple([rng.choice((1, 2))] * rng.choice((0, 0, 1)) + sizes)


def _enlarged(context: Context) -> Shape:
    """Return sizes for a Resize: images are enlarged, for which all modes have kernels."""
    return (
        *context.shape[:2],
        *(size * context.rng.choice((1, 2)) + context.rng.choice((0, 1)) for size in context.shape[2:]),
    )


def _unsqueezed(context: Context) -> Shape:
    count = context.rng.choice((1, 1, 2, 3))
    return tuple(context.rng.sample(range(context.rank + count), count))


def _squeezed(context: Context) -> Shape:
    ones = [axis for axis, size in enumerate(context.shape) if size == 1]
    if not ones:
        raise Misfit("nothing to squeeze")
    return tuple(context.rng.sample(ones, context.rng.randint(1, len(ones))))


def _split(context: Context) -> Shape:
    axis = context.attrs.get("axis", 0)
    if not -context.rank <= axis < context.rank:
        raise Misfit("no such axis")
    parts, total = context.app.outputs, context.shape[axis]
    cuts = sorted(context.rng.randint(0, total) for _ in range(parts - 1))
    return tuple(b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True))


def _per_axis(*choices: int, times: int = 1) -> Callable[[Context], Shape]:
    """One number for each axis that a slice or pad names, or for all of them."""

    def proposed(context: Context) -> Shape:
        axes = context.app.inputs[3] if len(context.app.inputs) > 3 else None
        count = context.rank
        if isinstance(axes, Var) and is_scalar(axes):
            count = len(context.draft.values.setdefault(axes.name, _axes(context)))
        elif isinstance(axes, Lit):
            count = len(axes.value) if isinstance(axes.value, tuple) else 1
        return tuple(context.rng.choice(choices) for _ in range(times * count))

    return proposed


def _flag(context: Context) -> int:
    return context.rng.randint(0, 1)


def _choice(*options: Any) -> Callable[[Context], Any]:
    return lambda context: context.rng.choice(options)


def _cast(context: Context) -> int:
    return int(context.draft.types.of((context.app.node, 0), context.rng))


_PROPOSALS: Mapping[str, Callable[[Context], Any]] = {
    "axis": _axis,
    "axes": _axes,
    "perm": lambda context: tuple(context.rng.sample(range(context.rank), context.rank)),
    "pads": _many(0, 2, times=2),
    "strides": _many(1, 2),
    "dilations": _many(1, 2),
    "kernel_shape": _kernel,
    "group": _group,
    "auto_pad": _choice("NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"),
    "epsilon": _choice(2.0**-17, 2.0**-10, 0.125),  # in single precision, in which attributes are kept, too
    "alpha": _choice(0.5, 1.0, 0.25, 2.0),
    "beta": _choice(0.5, 1.0, 0.25, 2.0),
    "shape": _factors,
    "split": _split,
    "starts": _per_axis(0, 0, 1, 2, -1, -2),
    "ends": _per_axis(1, 2, 3, -1, 9, 2**31, 2**63 - 1),
    "steps": _per_axis(1, 1, 2),
    "repeats": lambda context: tuple(context.rng.randint(1, 3) for _ in context.shape),
    "to": _cast,
    "blocksize": _choice(1, 2),
    "approximate": _choice("none", "tanh"),
    **dict.fromkeys(("keepdims", "transA", "transB", "ceil_mode", "count_include_pad", "largest", "sorted"), _flag),
    **dict.fromkeys(("exclusive", "reverse", "allowzero", "select_last_index", "noop_with_empty_axes"), _flag),
}


_SPECIAL: Mapping[tuple[str, str], Callable[[Context], Any]] = {
    ("Pad", "pads"): _per_axis(0, 0, 1, 2, -1, times=2),
    ("Pad", "mode"): _choice("constant", "reflect", "edge"),
    ("Expand", "shape"): _expanded,
    ("Unsqueeze", "axes"): _unsqueezed,
    ("Squeeze", "axes"): _squeezed,
    ("Flatten", "axis"): lambda context: context.rng.randint(-context.rank, context.rank),
    ("ConvTranspose", "output_padding"): _many(0, 0),
    ("ConvTranspose", "auto_pad"): _choice("NOTSET", "VALID"),  # what SAME means differs between runtimes
    ("Clip", "min"): _choice(-1.0, 0.0, 0.5, 3.0),
    ("Clip", "max"): _choice(6.0, 1.0, 0.5, -2.0),
    ("Resize", "sizes"): _enlarged,
    ("Resize", "mode"): _choice("nearest", "linear", "cubic"),
    ("Resize", "coordinate_transformation_mode"): _choice(*EVEN),
    ("Resize", "nearest_mode"): _choice(*ROUNDINGS),
}


_NOT_PROPOSED = frozenset({"output_shape", "spatial_scale", "training_mode", "momentum", "stash_type", "storage_order"})
"""Attributes that a bundle leaves out: their defaults are what rules mean, or they stand for other attributes."""


def propose_bundle(context: Context) -> dict[str, Any]:
    """Values for some of the attributes that a pattern does not mention."""
    chosen: dict[str, Any] = {}
    named = {name for name, _ in context.app.attrs}
    for name in sorted(context.operator.attributes, key=lambda name: (ORDER.get(name, 0), name)):
        _, required = context.operator.attributes[name]
        if name in named or name in _NOT_PROPOSED:
            continue
        if not required and name != "group" and context.rng.random() < 0.5:
            continue
        if name == "pads" and chosen.get("auto_pad", "NOTSET") != "NOTSET":
            continue
        if name in _PROPOSALS or (context.app.op, name) in _SPECIAL:
            chosen[name] = propose(context, name, "")
    return chosen
