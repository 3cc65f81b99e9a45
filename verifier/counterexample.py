"""Counterexamples: an instance of a rule as two small models whose outputs differ when ONNX Runtime runs them.

Rules that could not be proved are run: only a difference found by running makes a rule REFUTED. The smallest of several
counterexamples is taken, then shrunk for as long as the two sides differ.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray

from graphopt.base import ort
from graphopt.base.dtype import DType
from graphopt.base.errors import RuleError
from graphopt.language.rule import Rule
from graphopt.language.scalar_functions import UndecidedScalarError
from graphopt.language.terms import holes, op, operator_applications
from graphopt.language.type_inference import NoInstance
from graphopt.operators.operator_classes import lookup_operator
from graphopt.operators.rule_families import sample_specializations
from graphopt.verifier import sampling_scope
from graphopt.verifier.concrete_instance import ConcreteInstance
from graphopt.verifier.instance_models import build_models
from graphopt.verifier.instance_sampling import sample_instances
from graphopt.verifier.int32_overflow import has_overflow_axis, sample_overflow_instances
from graphopt.verifier.shrink import shrink

Array: TypeAlias = NDArray[Any]
TOLERANCE = {2: 2e-2, 4: 1e-3, 8: 1e-6}
"""Tolerance by bytes of an element, relative to the largest: operands are small and sums short, errors are larger."""
SIMPLE_INSTANCES, GENERAL_INSTANCES, EMPTY_AXIS_INSTANCES, OVERFLOW_INSTANCES = 120, 300, 60, 40
"""Numbers of instances that are tried: small ones of small whole numbers first, then any, those with empty axes, and
those of many bytes."""
REVERSE_INSTANCES = 12
"""Instances that are drawn for the right side, where the left side occurs nowhere."""
MAX_FOUND, FURTHER_INSTANCES = 3, 20
"""Counterexamples of which the smallest is taken, and further instances that are tried after the first."""
STEPS = 150
"""Smaller instances that are tried in shrinking."""
MAX_SHOWN_ELEMENTS = 48
"""Elements up to which an array is shown whole."""


KINDS = ("values", "shape", "element type", "refused", "infinite")
"""Kinds of differences: "refused" is a right side that does not run, "infinite" a number that became none. The first
are preferred: they show best what is wrong."""


@dataclass(frozen=True)
class SideDifference:
    """A difference between the outputs of the two sides."""

    kind: str
    """One of KINDS."""
    text: str
    output: int = 0


@dataclass(frozen=True)
class Counterexample:
    """An instance at which the two sides of a rule differ, with what ONNX Runtime computed for both."""

    rule: Rule
    instance: ConcreteInstance
    difference: SideDifference
    left: list[Array]
    right: list[Array]
    """Empty where the right side is refused."""

    def __str__(self) -> str:
        """Say what differs, in one line; then what the holes stand for, and what the two sides give."""
        by_value = self.difference.kind in ("values", "infinite")
        lines = [
            self.difference.text,
            *_describe_holes(self.instance, by_value),
            *_describe_free_sizes(self.rule, self.instance),
        ]
        for side, outputs in (("left", self.left), ("right", self.right)):
            if outputs:
                lines.append(f"{side:5} gives {_array(outputs[self.difference.output], by_value)}")
        return "\n".join([*lines, "as run by ONNX Runtime"])

    @property
    def has_empty_axis(self) -> bool:
        """True if an axis is empty: of a tensor, by its name, or in a shape that is asked for."""
        values, dims = self.instance.values.values(), self.instance.dims.values()
        arrays = (value for value in values if isinstance(value, np.ndarray))
        lists = (sizes for sizes in (*values, *dims) if isinstance(sizes, tuple))
        return any(array.size == 0 for array in arrays) or 0 in dims or any(0 in sizes for sizes in lists)

    @property
    def dtype(self) -> DType:
        """The element type of the left output that the right one differs from."""
        return DType.from_numpy(self.left[self.difference.output].dtype)

    @property
    def sort_key(self) -> tuple[int, int]:
        """How hard it is to read: the kind of the difference, then the number of elements of the instance."""
        elements = sum(value.size for value in self.instance.values.values() if isinstance(value, np.ndarray))
        return KINDS.index(self.difference.kind), elements

    def save(self, folder: Path) -> tuple[Path, Path, Path]:
        """Write the two models and their inputs: `RULE_left.onnx`, `RULE_right.onnx` and `RULE_inputs.npz`."""
        folder.mkdir(parents=True, exist_ok=True)
        left, right, inputs = (folder / f"{self.rule.name}_{end}" for end in ("left.onnx", "right.onnx", "inputs.npz"))
        for path, model in zip((left, right), build_models(self.rule, self.instance), strict=True):
            onnx.save(model, path)
        np.savez(inputs, allow_pickle=False, **self.instance.feeds(self.rule))
        return left, right, inputs


def find_counterexample(rule: Rule, seconds: float = 60.0) -> Counterexample | None:
    """Return a small counterexample, None if none is found; always the same one unless the time runs out.

    The time is a guard for slow machines: the number of instances is bounded, and they take a second or two.
    """
    return _find_before(rule, time.process_time() + seconds, share=1)


def _find_before(rule: Rule, deadline: float, share: int) -> Counterexample | None:
    """Return a counterexample that is found before a processor time.

    A rule of a family draws one in `share` of the instances: what is wrong with a family is wrong with most of its
    rules.
    """
    if rule.is_family:
        specializations = sample_specializations(rule)
        parts = (_find_in_family(each, deadline, (len(specializations) + 1) // 2) for each in specializations)
        return next(filter(None, parts), None)
    found = list(islice(iterate_counterexamples(rule, deadline, FURTHER_INSTANCES, share), MAX_FOUND))
    if not found:
        return None
    first = min(found, key=lambda example: example.sort_key)
    if has_overflow_axis(first.instance):  # it takes that many
        return first

    def still(instance: ConcreteInstance) -> Counterexample | None:
        other = compare_sides(rule, instance) if time.process_time() < deadline else None
        return other if other is not None and other.difference.kind == first.difference.kind else None

    return shrink(rule, first.instance, still, STEPS) or first


def find_ill_shaped(rule: Rule) -> Counterexample | None:
    """Return an instance at which the right side of a rule runs and the left side is refused; None if none is found.

    For rules whose left side occurs nowhere: instances are drawn for the right side, with the holes that only the left
    side reads beside it.
    """
    if rule.operator_holes:
        return None
    read = {hole for side in rule.right for hole in holes(side)}
    beside = tuple(op.Identity(hole) for hole in rule.holes.values() if hole not in read)
    try:
        reverse = Rule(rule.name, (*rule.right, *beside), (*rule.left, *beside), rule.conditions)
    except RuleError:  # the left side has attributes that the right side has not
        return None
    drawn = sample_instances(reverse, seed=1, count=REVERSE_INSTANCES, attempts=1_000, scope=sampling_scope.PLAIN)
    found = (_left_side_failure(rule, reverse, instance) for instance in drawn)
    return min(filter(None, found), key=lambda example: example.sort_key, default=None)


def _left_side_failure(rule: Rule, reverse: Rule, instance: ConcreteInstance) -> Counterexample | None:
    """Return what the right side makes of an instance at which the left side is refused."""
    try:
        right, left = build_models(reverse, instance)
    except (NoInstance, UndecidedScalarError):
        return None
    feeds = instance.feeds(rule)
    before, after = _try_run(left, feeds), _try_run(right, feeds)
    if isinstance(after, Refusal) or not isinstance(before, Refusal) or before.is_unsupported:
        return None
    outputs = after[: len(rule.right)]
    shapes = ", ".join(_array(output, by_value=False) for output in outputs)
    text = f"no sizes of at least 1 fit the left side, refused where the right side gives {shapes}: {before.reason}"
    return Counterexample(rule, instance, SideDifference("refused", text), [], outputs)


def _find_in_family(specialization: Rule, deadline: float, share: int) -> Counterexample | None:
    """Return a counterexample to a rule of a family, which says of which operators and how many tensors."""
    found = _find_before(specialization, deadline, share)
    chosen = specialization.unique_label.partition("[")[2].rstrip("]")
    return found and replace(found, difference=replace(found.difference, text=f"with {chosen} {found.difference.text}"))


def iterate_counterexamples(
    rule: Rule,
    deadline: float,
    further: int = SIMPLE_INSTANCES + GENERAL_INSTANCES + EMPTY_AXIS_INSTANCES + OVERFLOW_INSTANCES,
    share: int = 1,
) -> Iterator[Counterexample]:
    """Yield counterexamples as they are found, until the processor time `deadline`.

    After the first one, at most `further` instances are tried. One of `share` rules that share the work draws as many
    times fewer instances.
    """
    if rule.is_family:
        yield from chain.from_iterable(
            iterate_counterexamples(each, deadline, further) for each in sample_specializations(rule)
        )
        return
    end = (SIMPLE_INSTANCES + GENERAL_INSTANCES + EMPTY_AXIS_INSTANCES + OVERFLOW_INSTANCES) // share
    plain = sample_instances(rule, seed=1, count=SIMPLE_INSTANCES // share, attempts=2_000, scope=sampling_scope.PLAIN)
    few = (
        ()
        if is_fatal_if_empty(rule)
        else sample_instances(
            rule, seed=1, count=EMPTY_AXIS_INSTANCES // share, attempts=1_000, scope=sampling_scope.EMPTY_AXES
        )
    )
    drawn = chain(
        plain, sample_instances(rule, seed=1, count=GENERAL_INSTANCES // share), few, sample_overflow_instances(rule)
    )
    for tried, instance in enumerate(drawn):
        if tried > end or time.process_time() > deadline:
            break
        found = compare_sides(rule, instance)
        if found is not None:
            end = min(end, tried + further)
            yield found


def is_fatal_if_empty(rule: Rule) -> bool:
    return any(
        lookup_operator(app.op, app.domain).fails_on_empty
        for side in (*rule.left, *rule.right)
        for app in operator_applications(side)
    )


# -- one instance ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Refusal:
    """ONNX Runtime did not run a model: if it `is_unsupported`, for lack of a kernel, which says nothing of a rule."""

    reason: str
    is_unsupported: bool


RunResult: TypeAlias = list[Array] | Refusal
NOT_KNOWN = "is not a registered function/op"
_ORT_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")


def compare_sides(rule: Rule, instance: ConcreteInstance, *, nonfinite: bool = False) -> Counterexample | None:
    """Return how the two sides of a rule differ at an instance; None if they agree or the left side does not run.

    ONNX Runtime is the judge: other runtimes may depart from it, and where it lacks an operator nothing is shown. Where
    the left side is infinite or NaN the right side may be anything, unless `nonfinite`.
    """
    try:
        left, right = build_models(rule, instance)
    except (
        NoInstance,
        UndecidedScalarError,
    ):  # the right side says nothing at this instance: the rule would not be applied
        return None
    feeds = instance.feeds(rule)
    before = _try_run(left, feeds)
    if isinstance(before, Refusal):
        return None
    return _compare_outputs(rule, instance, before, _try_run(right, feeds), nonfinite=nonfinite)


def run_sides(rule: Rule, instance: ConcreteInstance) -> tuple[list[Array], list[Array]] | None:
    """Return the outputs of both sides at an instance; None if one of them does not run."""
    try:
        left, right = build_models(rule, instance)
    except (NoInstance, UndecidedScalarError):
        return None
    feeds = instance.feeds(rule)
    before, after = _try_run(left, feeds), _try_run(right, feeds)
    return None if isinstance(before, Refusal) or isinstance(after, Refusal) else (before, after)


def check_instance(
    rule: Rule, instance: ConcreteInstance, *, nonfinite: bool = False, tolerance: Mapping[int, float] = TOLERANCE
) -> tuple[bool, Counterexample | None]:
    """Return whether both sides run at an instance, and how they differ: as `compare_sides` says, or in that the left
    side is refused and the right side runs."""
    try:
        left, right = build_models(rule, instance)
    except (NoInstance, UndecidedScalarError):
        return False, None
    feeds = instance.feeds(rule)
    before = _try_run(left, feeds)
    if isinstance(before, Refusal) and before.is_unsupported:
        return False, None
    after = _try_run(right, feeds)
    if isinstance(before, Refusal):
        gap = SideDifference("refused", f"the kernel refuses it: {before.reason}")
        return False, None if isinstance(after, Refusal) else Counterexample(rule, instance, gap, [], after)
    found = _compare_outputs(rule, instance, before, after, nonfinite=nonfinite, tolerance=tolerance)
    return not isinstance(after, Refusal), found


def _compare_outputs(
    rule: Rule,
    instance: ConcreteInstance,
    before: list[Array],
    after: RunResult,
    *,
    nonfinite: bool,
    tolerance: Mapping[int, float] = TOLERANCE,
) -> Counterexample | None:
    if isinstance(after, Refusal):
        gap = SideDifference("refused", f"the left side runs, the right side is refused: {after.reason}")
        return None if after.is_unsupported else Counterexample(rule, instance, gap, before, [])
    found = _first_difference(before, after, tolerance, nonfinite=nonfinite)
    return Counterexample(rule, instance, found, before, after) if found else None


def is_registered(rule: Rule, instance: ConcreteInstance) -> bool:
    """Return whether ONNX Runtime knows all operators of the left side of a rule, for any element types."""
    try:
        left, _ = build_models(rule, instance)
    except (NoInstance, UndecidedScalarError):
        return True
    outcome = _try_run(left, instance.feeds(rule))
    return not isinstance(outcome, Refusal) or NOT_KNOWN not in outcome.reason


def _try_run(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> RunResult:
    if fatal := _find_fatal_operator(model):
        return Refusal(f"{fatal} of nothing, which ends ONNX Runtime's process", is_unsupported=True)
    try:
        return list(ort.make_cpu_session(model.SerializeToString(), threads=1).run(None, dict(feeds)))
    except Exception as error:  # what a runtime raises has no common base
        lacks = isinstance(error, NotImplementedError) or type(error).__name__ == "NotImplemented"
        return Refusal(
            " ".join(_ORT_PREFIX.sub("", str(error)).split())[:160], lacks or _is_unsupported(model, str(error))
        )


def _find_fatal_operator(model: onnx.ModelProto) -> str:
    """Return the operator that divides by the size of an axis which is empty, or by a number of groups that is 0."""
    graph = model.graph
    sizes = {constant.name: list(constant.dims) for constant in graph.initializer}
    for value in (*graph.input, *graph.value_info):
        sizes[value.name] = [
            dim.dim_value if dim.HasField("dim_value") else 1 for dim in value.type.tensor_type.shape.dim
        ]
    for node in graph.node:
        in_groups = any(attribute.name == "group" and not attribute.i for attribute in node.attribute)
        is_empty = in_groups or any(0 in sizes.get(name, ()) for name in node.input)
        if is_empty and lookup_operator(node.op_type, node.domain).fails_on_empty:
            return str(node.op_type)
    return ""


def _is_unsupported(model: onnx.ModelProto, error: str) -> bool:
    """Return whether an operator that ONNX does not define has no schema, or one that lacks an element type."""
    if NOT_KNOWN in error:
        return True
    found = re.search(r"Type Error: .* of operator \((\w+)\)", error)
    return found is not None and found[1] in {node.op_type for node in model.graph.node if node.domain}


def _first_difference(
    before: list[Array], after: list[Array], tolerance: Mapping[int, float], *, nonfinite: bool
) -> SideDifference | None:
    pairs = enumerate(zip(before, after, strict=True))
    gaps = (_find_difference(index, *pair, tolerance, nonfinite=nonfinite) for index, pair in pairs)
    return next(filter(None, gaps), None)


def _find_difference(
    output: int, before: Array, after: Array, tolerance: Mapping[int, float], *, nonfinite: bool
) -> SideDifference | None:
    """How two outputs differ; where the first is infinite or no number, the second has to be the same if
    `nonfinite`."""
    if before.dtype != after.dtype:
        return SideDifference("element type", f"element types differ: {before.dtype} became {after.dtype}", output)
    if before.shape != after.shape:
        return SideDifference("shape", f"shapes differ: {list(before.shape)} became {list(after.shape)}", output)
    if before.dtype.kind in "OSU":
        return None if np.array_equal(before, after) else SideDifference("values", "texts differ", output)
    one, other = before.astype(np.float64), after.astype(np.float64)
    finite = np.isfinite(one)
    inexact = before.dtype.kind not in "biu"
    allowed = tolerance[before.itemsize] * float(np.abs(one[finite]).max(initial=0.1)) if inexact else 0.0
    with np.errstate(invalid="ignore"):
        near = (one == other) | (np.isnan(one) & np.isnan(other)) | (not nonfinite)
        apart = np.where(finite, np.nan_to_num(np.abs(other - one), nan=np.inf), np.where(near, 0.0, np.inf))
    if not (apart > allowed).any():
        return None
    place = tuple(int(i) for i in np.unravel_index(np.argmax(apart), apart.shape))
    largest = f", the largest difference of {int((apart > allowed).sum())}" if (apart > allowed).sum() > 1 else ""
    where = f" at {list(place)}" if place else ""
    kind = "values" if np.isfinite(other[place]) else "infinite"
    return SideDifference(
        kind, f"values differ: {_number(before[place])} became {_number(after[place])}{where}{largest}", output
    )


# -- words -------------------------------------------------------------------------------------------------------------


def _describe_holes(instance: ConcreteInstance, by_value: bool) -> Iterator[str]:
    """Yield a line for each hole: arrays with their elements if these matter, attributes with their values."""
    for name, value in instance.values.items():
        if isinstance(value, Mapping):
            yield from (f"{key} = {_plain(item)}" for key, item in value.items())
        elif isinstance(value, np.ndarray):
            yield f"{name}: {_array(value, by_value)}"
        else:
            yield f"{name} = {'absent' if value is None else _plain(value)}"


def _describe_free_sizes(rule: Rule, instance: ConcreteInstance) -> Iterator[str]:
    """Yield a line for each size with a name that is the size of no tensor shown: `fn.sizes("M N")` may be of none."""
    shown = (hole for hole in rule.holes.values() if isinstance(instance.values.get(hole.name), np.ndarray))
    axes = {axis.removeprefix("1") for hole in shown for axis in hole.axes or ()}
    for name, size in instance.dims.items():
        if name not in axes and name not in rule.holes:
            yield f"{name} = {_plain(size)}"


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _array(array: Array, by_value: bool) -> str:
    """`float32[2, 1] = [[1], [-0.5]]`."""
    head = f"{array.dtype}{list(array.shape)}"
    return f"{head} = {_nested(array.tolist())}" if by_value and array.size <= MAX_SHOWN_ELEMENTS else head


def _nested(value: Any) -> str:
    return f"[{', '.join(map(_nested, value))}]" if isinstance(value, list) else _number(value)


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)
