"""Inputs that models are run on: those that are given, and sizes for the dims that they leave open.

Values that nobody gave are made up in `sample_inputs`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graphopt.base.dtype import DType
from graphopt.base.errors import ModelError, UsageError, did_you_mean, quoted_list
from graphopt.expr import dim_formulas
from graphopt.runtime import sample_inputs
from graphopt.runtime.model_sketch import ModelInput, ModelSketch
from graphopt.runtime.sample_inputs import Array, Binding, Feeds

# -- inputs that are given ---------------------------------------------------------------------------------------------


def fit_inputs(model: ModelSketch, inputs: Mapping[str, Any]) -> tuple[Feeds, dict[str, int]]:
    """Return the given inputs as the model wants them, and the sizes that they give to open dims.

    Floats and integers of another width are converted; sequences and maps stay as they are.

    Raises:
        UsageError: there is no such input, or its values are of another type or shape.
    """
    declared = {item.name: item for item in model.inputs}
    feeds: Feeds = {}
    sizes: dict[str, int] = {}
    for name, value in inputs.items():
        if name not in declared:
            raise UsageError(
                f"there is no input '{name}'{did_you_mean(name, declared) or f'; there is {quoted_list(declared)}'}"
            )
        feeds[name] = _fit_array(declared[name], value, sizes) if isinstance(value, np.ndarray) else value
    return feeds, sizes


def _fit_array(declared: ModelInput, value: Array, sizes: dict[str, int]) -> Array:
    """Return a given array as the model wants it; notes the sizes that it gives to open dims."""
    here = f"input '{declared.name}' is {declared}, the given values are {value.dtype.name}{list(value.shape)}"
    wanted = declared.dtype
    if DType.from_numpy(value.dtype) is not wanted:
        if not (wanted.is_float and value.dtype.kind == "f") and not (wanted.is_integer and value.dtype.kind in "iu"):
            raise UsageError(here)
        value = value.astype(wanted.numpy)
    if declared.shape is not None and len(declared.shape) != value.ndim:
        raise UsageError(here)
    for dim, size in zip(declared.shape or value.shape, value.shape, strict=True):
        if size != (sizes.setdefault(dim, size) if isinstance(dim, str) else dim):
            raise UsageError(here if isinstance(dim, int) else f"{here}: '{dim}' is {sizes[dim]} elsewhere")
    return value


# -- models that are run on the same inputs ----------------------------------------------------------------------------


def common_sketch(names: Sequence[str], sketches: Sequence[ModelSketch], given: frozenset[str]) -> ModelSketch:
    """Return the first model with the sizes that another one fixes.

    Raises:
        UsageError: the models cannot be fed the same.
    """
    fixed: dict[str, int] = {}
    for name, other in zip(names[1:], sketches[1:], strict=True):
        if reason := input_difference((names[0], name), sketches[0], other, given, fixed):
            raise UsageError(reason)
    return with_fixed_sizes(sketches[0], sketches[1:], fixed)


def input_difference(
    names: tuple[str, str], first: ModelSketch, second: ModelSketch, given: Collection[str], fixed: dict[str, int]
) -> str:
    """Note the sizes that the second model fixes; or say why the two cannot be fed the same.

    `given` are the inputs that are fed though they have a default.
    """
    if reason := _missing_input(names, first, second, given) or _missing_input(names[::-1], second, first, ()):
        return reason
    twins = {item.name: item for item in second.inputs}
    fed = (item for item in first.inputs if item.name in given or not item.has_default)
    differing = (item for item in fed if item.name in twins and not _unify_inputs(item, twins[item.name], fixed))
    for own in differing:
        return f"the inputs differ: '{own.name}' is {own} in {names[0]} and {twins[own.name]} in {names[1]}"
    return ""


def _missing_input(names: tuple[str, str], model: ModelSketch, other: ModelSketch, given: Collection[str]) -> str:
    """Say which input the second model lacks that the first needs or is given; nothing if it has all."""
    mine, known = ({item.name for item in some.inputs} for some in (model, other))
    needed = [item.name for item in model.required] + [name for name in given if name in mine]
    missing = (name for name in needed if name not in known)
    return next((f"the inputs differ: {names[0]} has '{name}', {names[1]} has not" for name in missing), "")


def _unify_inputs(own: ModelInput, other: ModelInput, fixed: dict[str, int]) -> bool:
    """Note the sizes that the second model fixes; return whether the two inputs can be fed the same."""
    if own.kind == "unknown" and own.has_default and other.has_default:  # its type is that of the initializer
        return True
    if (own.kind, own.dtype) != (other.kind, other.dtype):
        return False
    if own.shape is None or other.shape is None:
        return True
    return len(own.shape) == len(other.shape) and all(
        theirs == (fixed.setdefault(mine, theirs) if isinstance(mine, str) else mine)
        for mine, theirs in zip(own.shape, other.shape, strict=True)
        if isinstance(theirs, int)
    )


def with_fixed_sizes(model: ModelSketch, others: Iterable[ModelSketch], sizes: Binding) -> ModelSketch:
    """Return a model with the sizes that are fixed; an input without a shape gets that of another model."""
    shapes = {item.name: item.shape for other in others for item in other.inputs if item.shape is not None}

    def sized(item: ModelInput) -> ModelInput:
        shape = shapes.get(item.name) if item.shape is None else item.shape
        return replace(item, shape=shape and tuple(dim_formulas.substitute_dims(dim, sizes) for dim in shape))

    return replace(model, inputs=tuple(map(sized, model.inputs)))


# -- sizes of open dims ------------------------------------------------------------------------------------------------

BATCH, SEQUENCE, PAST, SIDE, SOUND = 1, 128, 256, 224, 16_000
"""Sizes that models are mostly run at: one sample, 128 tokens or a cache of 256, an image of 224 by 224, a second of
sound at 16 kHz."""
_CHANNELS, _VIDEO = 3, 32
_SIZES_BY_NAME = (
    (re.compile(r"batch|^(b|bs|n)$", re.IGNORECASE), BATCH),
    (re.compile(r"seq|len|past|tok|time|^[lst]$", re.IGNORECASE), SEQUENCE),
    (re.compile(r"chan|^c$", re.IGNORECASE), _CHANNELS),
    (re.compile(r"height|width|side|^[hw]$", re.IGNORECASE), SIDE),
)
"""Patterns for names of dims, with the usual size of each."""


def requested_sizes(model: ModelSketch, dims: Mapping[str, int | Sequence[int]], own: Binding) -> list[dict[str, int]]:
    """Return every choice of the sizes that are given, with those of the given inputs (`own`).

    Raises:
        UsageError: there is no such open dim, or it cannot have the size.
    """
    known = sample_inputs.candidate_bindings(model.inputs, 0, {})[0]
    choices: list[list[tuple[str, int]]] = []
    for name, given in dims.items():
        sizes = [int(given)] if isinstance(given, int | np.integer) else [int(size) for size in dict.fromkeys(given)]
        if name not in known:
            raise UsageError(
                f"there is no open dim '{name}'{did_you_mean(name, known) or f'; there is {quoted_list(known)}'}"
            )
        if not sizes or min(sizes) < 1:
            raise UsageError(f"'{name}' cannot be {min(sizes, default='of no size')}: sizes are 1 or more")
        if sizes != [own.get(name, sizes[0])] and name in own:
            raise UsageError(f"'{name}' is {own[name]} in the inputs that are given")
        choices.append([(name, size) for size in sizes])
    return [{**own, **dict(choice)} for choice in itertools.product(*choices)]


def usual_sizes(model: ModelSketch, given: Binding) -> list[dict[str, int]]:
    """Return usual sizes for the open dims that are not given: by name, by place, and by the type of the input.

    A decoder behind a cache is run in two ways: a token at a time, and first on all of a prompt.
    """
    found: dict[str, int] = {}
    for item in model.required:
        for axis, dim in enumerate(item.shape or ()):
            if isinstance(dim, str):
                found[dim] = min(_usual_size(dim, axis, item), found.get(dim, SOUND))
    all_ = sample_inputs.candidate_bindings(model.required, 0, given)[0]
    usual = {name: found.get(name, 1 if name.endswith(".rank") else SEQUENCE) for name in all_}
    return [_with_totals(model, usual | lengths, given) for lengths in _usual_cache_lengths(model, given)]


def _with_totals(model: ModelSketch, chosen: Binding, given: Binding) -> dict[str, int]:
    """Return the sizes that are chosen beside those that are given, with lengths that are sums of others."""
    sizes = {**chosen, **given}
    sizes |= sample_inputs.derived_totals(model.required, sizes)
    return {name: size for name, size in sizes.items() if name not in given}


def _usual_cache_lengths(model: ModelSketch, given: Binding) -> list[dict[str, int]]:
    """Return usual lengths of a cache and of what is new: a token behind others, and a prompt.

    Given one of the lengths, only what fits it: a prompt meets an empty cache.
    """
    dims = sample_inputs.CacheDims.of_inputs(model.required)
    if not dims.past or not dims.new:
        return [{}]
    past, new = (dim_formulas.substitute_dims(part[0], given) for part in (dims.past, dims.new))
    cases = [(PAST, 1), (0, SEQUENCE)]
    if isinstance(new, int):
        cases = [case for case in cases if (case[1] == 1) == (new == 1)]
    elif isinstance(past, int):
        cases = [case for case in cases if (case[0] == 0) == (past == 0)]
    parts = (dims.past, dims.new)
    lengths = [
        {dim: size for part, size in zip(parts, case, strict=True) for dim in part if isinstance(dim, str)}
        for case in cases
    ]
    return [each for each, case in zip(lengths, cases, strict=True) if _fits_masks(model, each, sum(case))] or lengths


def _fits_masks(model: ModelSketch, lengths: Binding, total: int) -> bool:
    """Return whether masks whose width is a formula of the lengths are as wide as all tokens: with `past + 1` there is
    no prompt."""
    widths = (item.shape[-1] for item in model.required if item.shape and "mask" in item.name.lower())
    known = (width for width in widths if isinstance(width, str) and {*dim_formulas.formula_names(width)} <= {*lengths})
    return all(dim_formulas.evaluate_dim(width, lengths) == total for width in known if width not in lengths)


def _usual_size(dim: str, axis: int, given: ModelInput) -> int:
    """Return the size of one open dim, seen as an axis of an input."""
    shape = given.shape or ()
    name = "" if dim == f"{given.name}.{axis}" else dim  # what has no name is called after its place
    is_mask, last = "mask" in given.name.lower(), axis == len(shape) - 1
    is_sound = len(shape) == 2 or (len(shape) == 3 and shape[1] == 1)
    if given.dtype.is_float and is_sound and last and axis and not is_mask:
        return SOUND
    for pattern, size in _SIZES_BY_NAME:
        if pattern.search(name):
            return size
    if axis == 0:
        return BATCH
    is_text = given.dtype.is_integer and given.dtype.bits > 8
    return SEQUENCE if is_mask or is_text else _usual_size_by_axis(axis, shape)


def _usual_size_by_axis(axis: int, shape: tuple[int | str, ...]) -> int:
    """Return the size of an axis, without a telling name, of an image or a video: channels come first, unless the last
    axis is short."""
    channels = len(shape) - 1 if shape[-1] in (1, 3, 4) else 1
    match len(shape):
        case 4 | 5 if axis == channels:
            return _CHANNELS
        case 4:
            return SIDE
        case 5:
            return _VIDEO
    return SEQUENCE


def format_sizes(sizes: Binding, chosen: Iterable[str] = ()) -> str:
    """Return `batch=1, seq=128`, and which of them were not given."""
    text = ", ".join(f"{name}={size}" for name, size in sizes.items())
    names = [name for name in sizes if name in set(chosen)]
    return f"{text} (chosen here: {', '.join(names)})" if names else text


def format_run_sizes(sizes: Binding) -> str:
    """Return sizes as the end of an error about a run."""
    return f" (with {format_sizes(sizes)})" if sizes else ""


# -- a try -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, slots=True)
class TrialInputs:
    """Inputs that models are run on, and the sizes of the open dims."""

    sizes: Binding
    defaulted_dims: frozenset[str]
    """The dims whose size was not given."""
    feeds: Feeds

    def __str__(self) -> str:
        return format_sizes(self.sizes, self.defaulted_dims)


def find_accepted_inputs(
    model: ModelSketch,
    binding: Binding,
    chosen: Binding,
    made: Callable[[Binding], Feeds],
    refusal: Callable[[Feeds], str],
) -> TrialInputs:
    """Return sizes and inputs that are not refused; those that are `chosen` are guessed, and a guess may be wrong.

    Raises:
        ModelError: all of them are refused; has the reason against the first.
    """
    halves = ({name: size and max(1, size >> count) for name, size in chosen.items()} for count in range(1, 4))
    shorter = (_with_totals(model, sizes, binding) for sizes in halves)
    candidates: list[Binding] = [{**binding, **sizes} for sizes in (chosen, *shorter)] if chosen else [binding]
    candidates += sample_inputs.candidate_bindings(model.required, 0, binding) if chosen else []
    reasons = []
    for sizes in candidates:
        feeds = made(sizes)
        reason = refusal(feeds)
        if not reason:
            return TrialInputs(sizes, frozenset(chosen), feeds)
        reasons.append(reason)
    hint = "; --dim gives other sizes" if chosen else ""
    raise ModelError(f"{reasons[0]}{format_run_sizes(candidates[0])}{hint}")
