"""Inputs to try a model with: by type, by shape, and by the role that an input plays in the model.

A random number is no token id and no shape: the operators that read an input tell what it may hold. Looks at protobufs
only, not at `Graph`: what checks the compiler must not rely on it.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from graphopt.base.dtype import DType
from graphopt.base.errors import UsageError
from graphopt.base.session import current_session
from graphopt.expr import dim_formulas
from graphopt.ir.graph import IDENTITY
from graphopt.operators.operator import ExtremeOperands, ResultDtypeSource
from graphopt.runtime.model_sketch import FlatNode, ModelInput, ModelSketch

Array: TypeAlias = NDArray[Any]
Feeds: TypeAlias = dict[str, Any]
"""Inputs of a session by name: arrays, lists of them for sequences, dicts for maps."""
Binding: TypeAlias = Mapping[str, int]
"""Sizes for the dims that the model leaves open, by name; an unnamed one is called `input.axis`."""


# -- roles -------------------------------------------------------------------------------------------------------------


def _preserves_values(step: FlatNode) -> bool:
    """Return whether the values of the first operand, or of any where they are joined, stay as they are."""
    return step.operator.is_value_preserving or step.operator.selects_elements


@dataclass(frozen=True, slots=True)
class InputRole:
    """Purpose of the values of an input; `limit` is what indices must stay below, or what parts must add up to."""

    name: str = ""
    limit: int | None = None


def infer_role(model: ModelSketch, given: ModelInput) -> InputRole:
    """Return the strictest of the roles in which a model's operators read an input."""
    found = [
        InputRole(name, _index_limit(model, step))
        for step, slot in _value_readers(model, given.name)
        if (name := _operand_role(step, slot))
    ]
    if given.dtype.is_float:
        found = [r for r in found if r.name in ("positive", "sizes", "ones")]
    if not found:
        return InputRole("mask") if "mask" in given.name.lower() else InputRole()
    limits = [r.limit for r in found if r.limit is not None and r.name == found[0].name]
    return InputRole(found[0].name, min(limits, default=None))


def _operand_role(step: FlatNode, slot: int) -> str:
    return step.operator.operand_roles.get(slot, "")


def _value_readers(model: ModelSketch, name: str) -> Iterator[tuple[FlatNode, int]]:
    """Yield every operator that an input reaches with its values as they are."""
    stack, seen = [name], {name}
    while stack:
        for step, slot in model.readers.get(stack.pop(), ()):
            yield step, slot
            if _preserves_values(step) and (slot == 0 or step.operator.is_concatenation):
                fresh = set(step.outputs) - seen
                seen |= fresh
                stack += fresh


def _index_limit(model: ModelSketch, step: FlatNode) -> int | None:
    """Return the size of what an operator indexes, or splits into parts."""
    if step.operator.table_inputs:
        tables = [
            model.shapes.get(step.inputs[table]) for table in step.operator.table_inputs if table < len(step.inputs)
        ]
        return min((table[0] for table in tables if table), default=None)
    data, axis = step.inputs[0], next((a.i for a in step.node.attribute if a.name == "axis"), 0)
    casts = (ResultDtypeSource.TARGET, ResultDtypeSource.DEQUANTIZED)
    while (maker := model.producers.get(data)) and (
        maker.op == IDENTITY or maker.operator.result_dtype_source in casts
    ):  # which have the shape of what they read
        data = maker.inputs[0]
    shape = model.shapes.get(data)
    if shape is None:
        return None
    if step.operator.indexes_all_axes:
        return min(shape, default=1)
    return shape[axis] if -len(shape) <= axis < len(shape) else None


# -- sizes -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _SizeFill:
    """Sizes for the open dims: along axis 0, along the spatial axes of images and sounds, and elsewhere."""

    batch: int
    other: int
    space: int
    is_distinct: bool = False
    """Each name gets a size of its own, so that no two agree by accident."""

    def size(self, axis: str, number: int) -> int:
        number *= self.is_distinct
        return {"batch": self.batch, "space": self.space + 32 * number}.get(axis, self.other + number)


_PREFERRED_FILLS = (_SizeFill(1, 8, 64), _SizeFill(3, 5, 96, is_distinct=True), _SizeFill(2, 7, 64))
_COMMON_FILLS = ((3, 8, 64), (1, 8, 64), (1, 1, 1), (2, 2, 2), (4, 4, 4), (1, 16, 224), (1, 32, 32), (1, 128, 128))
_LARGE_FILLS = ((1, 256, 256), (1, 77, 512), (1, 512, 640), (1, 8, 3000))
_FALLBACK_FILLS = tuple(_SizeFill(*sizes) for sizes in (*_COMMON_FILLS, *_LARGE_FILLS))
_RANKS = (1, 2, 0, 3, 4)


def candidate_bindings(inputs: Sequence[ModelInput], case: int, wanted: Binding) -> list[dict[str, int]]:
    """Return sizes to try for the open dims: the preferred ones of this case, then what models are likely to take."""
    batch, space, other = _open_dims(inputs)
    names = sorted({name for dim in batch | space | other for name in dim_formulas.formula_names(dim)})
    ranks = [rank_binding_name(given) for given in inputs if given.shape is None and given.kind != "map"]
    found: list[dict[str, int]] = []
    for number, filling in enumerate((_PREFERRED_FILLS[case % len(_PREFERRED_FILLS)], *_FALLBACK_FILLS)):
        binding = dict.fromkeys(ranks, _RANKS[number % len(_RANKS)])
        for i, name in enumerate(names):
            axis = "batch" if name in batch else "space" if name in space else ""
            binding[name] = filling.size(axis, i)
        binding |= {name: wanted[name] for name in binding.keys() & wanted.keys()}
        binding |= {name: size for name, size in derived_totals(inputs, binding).items() if name not in wanted}
        if binding not in found:
            found.append(binding)
    few = [binding for binding in found if _total_elements(inputs, binding) < MANY_ELEMENTS]
    return few or [min(found, key=lambda binding: _total_elements(inputs, binding))]


def unit_bindings(inputs: Sequence[ModelInput], wanted: Binding) -> list[dict[str, int]]:
    """Return sizes of 1 for the open dims that are not `wanted` otherwise: for all of them, and for every second."""
    usual = candidate_bindings(inputs, 1, wanted)[0]
    ranks = {rank_binding_name(given) for given in inputs}
    free = sorted(usual.keys() - wanted.keys() - ranks)
    found: list[dict[str, int]] = []
    for ones in (free, free[1::2]):
        binding = usual | dict.fromkeys(ones, 1)
        binding |= {name: size for name, size in derived_totals(inputs, binding).items() if name not in wanted}
        if ones and binding not in found:
            found.append(binding)
    return found


MANY_ELEMENTS = 4_000_000
"""Elements of all inputs above which sizes are not tried, unless there are no smaller ones."""


def _total_elements(inputs: Iterable[ModelInput], binding: Binding) -> int:
    return sum(prod(dim_formulas.evaluate_dim(dim, binding) for dim in given.shape or ()) for given in inputs)


def _open_dims(inputs: Sequence[ModelInput]) -> tuple[set[str], set[str], set[str]]:
    """Return the open dims that are a batch, that are spatial, and the rest."""
    dims = [
        (dim, axis, given.dtype.is_float and len(given.shape or ()) >= 3)
        for given in inputs
        for axis, dim in enumerate(given.shape or ())
        if isinstance(dim, str)
    ]
    batch = {dim for dim, axis, _ in dims if axis == 0}
    space = {dim for dim, axis, spatial in dims if spatial and axis >= 2} - batch
    return batch, space, {dim for dim, _, _ in dims} - batch - space


@dataclass(frozen=True, slots=True)
class CacheDims:
    """Dims of a decoder behind a cache of keys and values: how long that is, how many tokens are new, and the total."""

    past: tuple[int | str, ...]
    new: tuple[int | str, ...]
    total: tuple[str, ...]

    @staticmethod
    def of_inputs(inputs: Iterable[ModelInput]) -> CacheDims:
        """Return the dims by their names, and by the inputs that have them: exporters name some `s53`."""
        dims = [(given, axis, dim) for given in inputs for axis, dim in enumerate(given.shape or ())]
        parts = [(_cache_part(*place), place[-1]) for place in dims]
        new = dict.fromkeys(dim for part, dim in parts if part == "new")
        past = dict.fromkeys(dim for part, dim in parts if part == "past" and (isinstance(dim, int) or dim not in new))
        names = dict.fromkeys(dim for part, dim in parts if part == "total" and isinstance(dim, str))
        return CacheDims(tuple(past), tuple(new), tuple(dim for dim in names if dim not in past and dim not in new))


def _cache_part(given: ModelInput, axis: int, dim: int | str) -> str:
    """Return which of the dims behind a cache an axis of an input may be; nothing where it is none."""
    name, rank = given.name.lower(), len(given.shape or ())
    if isinstance(dim, str) and dim_formulas.parse_formula(dim) is not None:
        return ""
    if isinstance(dim, str) and (told := _CACHE_DIM.match(dim)):
        return {"past": "past", "seq": "new", "total": "total"}[told[1]]
    if rank == 4 and axis == 2 and given.dtype.is_float and _CACHE.search(name):
        return "past"
    if "mask" in name:  # an encoder's is as wide as what it made
        return "total" if axis == rank - 1 and "encoder" not in name else ""
    return "new" if rank == 2 and axis == 1 and given.dtype.is_integer else ""


_CACHE_DIM = re.compile(r"(?:decoder_)?(past|seq|total)")
_CACHE = re.compile(r"^(?!.*encoder).*(?:past|cache)")
"""Names of inputs that are keys or values, (batch, heads, length, size), but not those of what an encoder made."""


def derived_totals(inputs: Iterable[ModelInput], binding: Binding) -> dict[str, int]:
    """Return the lengths that are sums: behind a cache, of its length and the number of new tokens."""
    dims = CacheDims.of_inputs(inputs)
    if not dims.past or not dims.new:
        return {}
    total = sum(dim_formulas.evaluate_dim(part[0], binding) for part in (dims.past, dims.new))
    return dict.fromkeys(dims.total, total)


# -- values ------------------------------------------------------------------------------------------------------------

NORMAL, WIDE, SMALL, NONFINITE, HIDDEN = "normal", "wide", "small", "non-finite", "hidden"
"""Kinds of values: usual ones; zeros, tiny, large and negative ones; those that hardly any model refuses; with
infinities and NaN; with masks that hide a whole row."""
LEAST, GREATEST, ALTERNATING = "least", "greatest", "alternating"
"""Kinds of integers: see `extreme_feeds`."""
EXTREME_STYLES = frozenset({LEAST, GREATEST, ALTERNATING})
UNUSUAL_STYLES = EXTREME_STYLES | {NONFINITE, HIDDEN}
"""Styles for which an original may make NaN or infinities: there it is not compared."""

_STRING_VALUES = ("", "a", "B c", "ä", "7", "graph", "a\nb")


def make_feeds(
    model: ModelSketch, binding: Binding, *, seed: int, style: str, given: Mapping[str, Any] | None = None
) -> Feeds:
    """Return the `given` inputs, and values for the others without a default, each from a random stream of its own.

    A merged decoder is told to read its cache for every other seed.
    """
    found: Feeds = {**_cache_switches(model, binding, is_on=seed % 2 == 0), **(given or {})}
    for item in model.required:
        if item.name not in found:
            found[item.name] = _draw_values(
                item, infer_role(model, item), binding, _generator_for(seed, item.name), style
            )
    return found


def make_usual_feeds(model: ModelSketch, binding: Binding, *, seed: int, given: Mapping[str, Any]) -> Feeds:
    """Return inputs to time a model on: usual values; a merged decoder reads its cache unless that is empty."""
    is_on = any(dim_formulas.evaluate_dim(dim, binding) for dim in CacheDims.of_inputs(model.required).past)
    switches = _cache_switches(model, binding, is_on=is_on)
    return make_feeds(model, binding, seed=seed, style=NORMAL, given={**switches, **given})


_CACHE_SWITCH = re.compile(r"use_?cache", re.IGNORECASE)
"""Pattern for the input that selects the branch of a decoder merged from one with and one without a cache."""


def _cache_switches(model: ModelSketch, binding: Binding, *, is_on: bool) -> Feeds:
    """Return values for the inputs that say whether a merged decoder reads its cache."""
    return {
        item.name: np.full([dim_formulas.evaluate_dim(dim, binding) for dim in item.shape], is_on)
        for item in model.required
        if item.kind == "tensor" and item.dtype is DType.BOOL and item.shape is not None
        if _CACHE_SWITCH.search(item.name)
    }


def make_overrides(model: ModelSketch, names: Iterable[str], *, seed: int, style: str) -> Feeds:
    """Return values for overridable initializers: other than the default, but of its size and sign."""
    found: Feeds = {}
    for name in names:
        proto = model.defaults.get(name)
        if proto is None or proto.data_location == TensorProto.EXTERNAL:
            continue
        default, rng = numpy_helper.to_array(proto), _generator_for(seed, name)
        if style != SMALL and DType(proto.data_type).is_float:
            changed = default.astype(np.float64) * rng.uniform(0.5, 1.5, default.shape) + 0.01
            default = changed.astype(default.dtype)
        found[name] = default
    return found


def nonfinite_feeds(model: ModelSketch, feeds: Feeds, given: Container[str], seed: int) -> Feeds | None:
    """Return the same inputs with infinities and NaN among the floats that the model compares or masks.

    None where it has no such input but those that are `given`.
    """
    free = (item for item in model.required if item.kind == "tensor" and item.name not in given)
    floats = (item for item in free if item.dtype.is_float and infer_role(model, item).name in ("", "mask"))
    asked = [item.name for item in floats if _is_compared(model, item.name)]
    changed: Feeds = {}
    for name in asked:  # an infinity of each sign and a NaN at three places in eight, one place at least
        array = feeds[name].flatten()
        places = _generator_for(seed, name).permutation(array.size)[: max(1, 3 * array.size // 8)]
        array[places] = np.resize(np.array([np.inf, -np.inf, np.nan], array.dtype), places.shape)
        changed[name] = array.reshape(feeds[name].shape)
    return feeds | changed if changed else None


def masked_row_feeds(model: ModelSketch, feeds: Feeds, given: Container[str]) -> Feeds | None:
    """Return the same inputs with masks of truth values or integers of which the last row is all zeros.

    None where it has no such input but those that are `given`.
    """
    free = (item for item in model.required if item.kind == "tensor" and item.name not in given)
    masks = (
        item.name
        for item in free
        if item.dtype is DType.BOOL or (item.dtype.is_integer and infer_role(model, item).name == "mask")
    )
    changed = {name: feeds[name].copy() for name in masks if feeds[name].ndim > 1}
    for mask in changed.values():
        mask[..., -1:, :] = 0
    return feeds | changed if changed else None


def _is_compared(model: ModelSketch, name: str) -> bool:
    """Return whether an input, or what is computed from each of its elements alone, is compared or masked for an
    output."""
    stack, seen = [name], {name}
    while stack:
        for step, _ in model.readers.get(stack.pop(), ()):
            if step.operator.observes_nonfinite and not model.needed_values.isdisjoint(step.outputs):
                return True
            if _preserves_values(step) or step.operator.propagates_nonfinite:
                fresh = set(step.outputs) - seen
                seen |= fresh
                stack += fresh
    return False


def size_values(model: ModelSketch) -> frozenset[str]:
    """Return the values that say sizes, as the scales of a Resize do: changed a little, they would mean other sizes."""
    found, stack = (
        set[str](),
        [n for s in model.nodes for slot, n in enumerate(s.inputs) if _operand_role(s, slot) in _SIZE_ROLES],
    )
    while stack:
        name = stack.pop()
        maker = None if name in found else model.producers.get(name)
        found.add(name)
        if maker is not None and _preserves_values(maker):
            stack += maker.inputs if maker.operator.is_concatenation else maker.inputs[:1]
    return frozenset(found)


_SIZE_ROLES = ("sizes", "ones")
"""The roles of what says sizes in floats."""


def perturb_feeds(feeds: Feeds, amount: float, seed: int, fixed: Container[str] = ()) -> Feeds:
    """Return the same inputs with every float but those that are `fixed` changed by up to `amount` of its size."""
    arrays = {name: value for name, value in feeds.items() if isinstance(value, np.ndarray) and name not in fixed}
    floats = {name: array for name, array in arrays.items() if DType.from_numpy(array.dtype).is_float}
    return feeds | {name: perturb_array(array, amount, seed, name) for name, array in floats.items()}


def perturb_array(array: Array, amount: float, seed: int, name: str) -> Array:
    """Return the array with each number changed by up to `amount` of its size, which seed and name decide."""
    factor = 1 + amount * _generator_for(seed, name).uniform(-1, 1, array.shape)
    changed: Array = np.asarray(array.astype(np.float64) * factor, array.dtype)  # a scalar stays an array
    return changed


def _generator_for(seed: int, name: str) -> np.random.Generator:
    return np.random.default_rng([seed, crc32(name.encode())])


BYTES_PER_DRAWN_ELEMENT = 24
"""Bytes for each element that is made up: it is drawn as a float64, and copied."""


def _draw_values(given: ModelInput, role: InputRole, binding: Binding, rng: np.random.Generator, style: str) -> Any:
    shape = given.shape
    if shape is None:
        shape = (4,) * binding.get(rank_binding_name(given), 1)
    sizes = tuple(dim_formulas.evaluate_dim(dim, binding) for dim in shape)
    current_session().limits.check_allocation(
        prod(sizes) * BYTES_PER_DRAWN_ELEMENT, f"the input '{given.name}', {given},"
    )
    match given.kind:
        case "tensor":
            return _draw_tensor(given.dtype, role, sizes, rng, style)
        case "sequence":
            return [_draw_tensor(given.dtype, role, sizes, rng, style) for _ in range(3)]
        case "map":
            keys = ("a", "b", "c") if given.keys is DType.STRING else (0, 1, 2)
            return {key: _draw_tensor(given.dtype, role, (), rng, style).item() for key in keys}
    raise UsageError(f"input '{given.name}' has a type for which no values can be made up; give some with --input")


def rank_binding_name(given: ModelInput) -> str:
    """Return what the rank of an input that states none is called in a binding."""
    return f"{given.name}.rank"


def _draw_tensor(dtype: DType, role: InputRole, shape: tuple[int, ...], rng: np.random.Generator, style: str) -> Array:
    if role.name in _SHAPELIKE_ROLES:
        return np.asarray(_draw_shapelike(role, shape, rng, style)).astype(dtype.numpy)
    if role.name == "mask" and dtype is not DType.STRING:
        mask = np.ones(shape)  # at least one in each row
        if shape:
            mask[..., 1:] = (rng.random(shape) < 0.75)[..., 1:]
        return mask.astype(dtype.numpy)
    if dtype.is_float:
        return _draw_floats(role, shape, rng, style).astype(dtype.numpy)
    if dtype.is_integer:
        return _draw_integers(dtype, role, shape, rng, style)
    return _draw_other(dtype, shape, rng, style)


def _draw_floats(role: InputRole, shape: tuple[int, ...], rng: np.random.Generator, style: str) -> Array:
    found = rng.standard_normal(shape)
    if style == WIDE:
        found *= 10.0 ** rng.uniform(-3, 2, shape)
        found *= rng.random(shape) > 1 / 8  # zeros among them
    return np.abs(found) + 1e-2 if role.name == "positive" else found


def _draw_integers(
    dtype: DType, role: InputRole, shape: tuple[int, ...], rng: np.random.Generator, style: str
) -> Array:
    least, greatest = dtype.limits
    if role.name == "index":
        low, high = 0, role.limit or 2
    elif style == SMALL:
        low, high = 0, 2
    elif dtype.bits <= 8:
        low, high = least, greatest + 1
    else:
        low, high = (-9, 10) if style == WIDE else (0, 8)
    return rng.integers(max(low, least), min(high, greatest + 1), shape).astype(dtype.numpy)


def _draw_other(dtype: DType, shape: tuple[int, ...], rng: np.random.Generator, style: str) -> Array:
    if dtype is DType.BOOL:
        return rng.random(shape) < 0.5 if shape else np.asarray(style != WIDE)
    if dtype is DType.STRING:
        words = ("0", "1") if style == SMALL else _STRING_VALUES
        return np.array([words[i] for i in rng.integers(0, len(words), shape).ravel()], object).reshape(shape)
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype.numpy)


_SHAPELIKE_ROLES = frozenset({"axes", "zeros", "ones", "sizes", "reshape", "split"})


def _draw_shapelike(role: InputRole, shape: tuple[int, ...], rng: np.random.Generator, style: str) -> Array:
    """Return values for operands that say where, how many or how large."""
    number = shape[0] if shape else 1
    match role.name:
        case "axes":
            return np.arange(number).reshape(shape) if len(shape) <= 1 else np.zeros(shape)
        case "zeros":
            return np.zeros(shape)
        case "sizes":
            return np.ones(shape) if style == SMALL else rng.integers(2, 5, shape)
        case "reshape" if number and shape:
            return np.array([-1] + [1] * (number - 1))
        case "split" if role.limit is not None and shape:
            parts = [role.limit // number] * number
            return np.array([*parts[:-1], role.limit - sum(parts[:-1])])
    return np.ones(shape)


# -- extreme integers --------------------------------------------------------------------------------------------------

_FLOAT_MAGNITUDE = 0xFFFF
"""Magnitude of extremes that are made into floats: these must bear their squares, and sums of those."""


def extreme_feeds(model: ModelSketch, feeds: Feeds, given: Container[str]) -> dict[str, Feeds]:
    """Return the same inputs with the least integers, with the greatest, and with both in turns, by kind of values.

    Sums of many integers wrap around at extremes, and hardly ever at random ones. An input gets extremes only where
    everything that it reaches tolerates them: indices and sizes stay, and so do divisors, for a division of integers by
    0 ends the process. Nothing is returned where only inputs that are `given` may get extremes.
    """
    limits = {name: ends for name, ends in input_integer_limits(model).items() if name not in given}
    found: dict[str, Feeds] = {}
    for kind in (LEAST, GREATEST, ALTERNATING) if limits else ():
        found[kind] = dict(feeds)
        for place, (name, (least, greatest)) in enumerate(limits.items()):
            turns = (least, greatest) if place % 2 == 0 else (greatest, least)  # two factors begin with another one
            first, second = {LEAST: (least, least), GREATEST: (greatest, greatest), ALTERNATING: turns}[kind]
            array = np.full(feeds[name].shape, first, feeds[name].dtype)
            array.reshape(-1)[1::2] = second
            found[kind][name] = array
    return found


def input_integer_limits(model: ModelSketch) -> dict[str, tuple[int, int]]:
    """Return the least and the greatest integer that inputs may be given, by those that may be given extremes."""
    tensors = (item for item in model.required if item.kind == "tensor")
    return {item.name: found for item in tensors if (found := _input_limits(model, item)) is not None}


def _input_limits(model: ModelSketch, given: ModelInput) -> tuple[int, int] | None:
    """Return the least and the greatest integer that an input may be given; None where it is given no extremes."""
    dtype = given.dtype
    if not dtype.is_integer or dtype.bits < 8 or infer_role(model, given).name:
        return None
    in_floats = False
    for step, slot, is_integer in _reached_steps(model, given.name):
        if is_integer and step.operator.divides_integers:
            return None
        if dtype.bits > 8 and not _tolerates_extremes(step, slot, is_integer):  # all of 8 bits are drawn at random, too
            return None
        in_floats |= not is_integer or step.operator.result_dtype_source is ResultDtypeSource.DEQUANTIZED
    low, high = dtype.limits
    return (max(low, -_FLOAT_MAGNITUDE - 1), min(high, _FLOAT_MAGNITUDE)) if in_floats else (low, high)


def _reached_steps(model: ModelSketch, name: str) -> Iterator[tuple[FlatNode, int, bool]]:
    """Yield all steps that an input reaches, the slot in which it arrives, and whether it arrives as integers."""
    stack = [(name, True)]
    seen = set(stack)
    while stack:
        read, is_integer = stack.pop()
        for step, slot in model.readers.get(read, ()):
            yield step, slot, is_integer
            if step.operator.extreme_operands is ExtremeOperands.ABSORBED:
                continue
            fresh = {(made, _makes_integers(model, step, made, is_integer)) for made in step.outputs} - seen
            seen |= fresh
            stack += fresh


def _makes_integers(model: ModelSketch, step: FlatNode, made: str, reads_integers: bool) -> bool:
    """Return whether the result of a step is of integers; where no type is declared, it is of the kind that it
    reads."""
    declared = model.types.get(made)
    if declared is not None:
        return not declared.is_float
    match step.operator.result_dtype_source:
        case ResultDtypeSource.TARGET:
            return not DType(next(a.i for a in step.node.attribute if a.name == "to")).is_float
        case ResultDtypeSource.QUANTIZED:
            return True
        case ResultDtypeSource.DEQUANTIZED:
            return False
    return reads_integers


def _tolerates_extremes(step: FlatNode, slot: int, is_integer: bool) -> bool:
    """Return whether a step works on any value of an operand, and makes a result whose size does not depend on it."""
    facts = step.operator
    if slot in facts.operand_roles or step.domain:
        return False
    if is_integer:
        is_first = facts.extreme_operands is ExtremeOperands.FIRST and slot == 0
        return is_first or facts.extreme_operands in (ExtremeOperands.ALL, ExtremeOperands.ABSORBED)
    casts_to_float = any(a.name == "to" and DType(a.i).is_float for a in step.node.attribute)
    makes_integers = facts.is_casting and not casts_to_float
    return not makes_integers and facts.extreme_operands is not ExtremeOperands.NOT_EVEN_FLOATS
