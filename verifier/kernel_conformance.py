"""Checks of declared operators against the kernels that ONNX Runtime has for them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np

from graphopt.base import ort
from graphopt.base.dtype import DType
from graphopt.language.definition import Definition, definitions_of
from graphopt.language.rule import Rule
from graphopt.language.terms import Term, Var
from graphopt.verifier import counterexample, sampling_scope
from graphopt.verifier.concrete_instance import Array, ConcreteInstance, satisfies
from graphopt.verifier.counterexample import Counterexample, SideDifference, check_instance, is_registered, run_sides
from graphopt.verifier.expanded_rule import expand_definitions
from graphopt.verifier.instance_sampling import complete_instance, sample_instances
from graphopt.verifier.int32_overflow import sample_overflow_instances

SIMPLE_INSTANCES, GENERAL_INSTANCES, EDGE_INSTANCES = 40, 60, 20
"""Numbers of instances of small whole numbers, of any numbers, and of numbers that a kernel may treat specially."""
PERTURBED = 4
"""Instances in which each input is drawn again."""
KINDS = 3
"""Choices of element types with which the last of these are drawn."""
TOLERANCE = {**counterexample.TOLERANCE, 4: 1e-5}
"""Tolerance by bytes of an element, relative to the largest: a constant in few digits is another operator."""
PERTURBATION, ROUNDING_MARGIN = 2.0**-22, 16
"""Relative change of inputs by which the effect of rounding is measured, and the factor allowed beyond it."""
NEAR_ZERO_SCALE = 2.0**-14
"""The scale of inputs beside which what is added to a divisor, as an epsilon, is not small."""
ATTEMPTS = 400
"""Most draws of each kind: sizes are drawn to meet the conditions, and where that fails, so do more draws."""


def find_contradiction(definitions: Iterable[Definition]) -> Counterexample | None:
    """Return an instance at which the kernel of an operator does not compute what its declaration says."""
    return next(filter(None, (run.contradiction for each in definitions for run in _kernel_runs(each))), None)


def count_agreeing_instances(definition: Definition) -> int | None:
    """Return the number of instances at which the kernel of an operator agrees with its declaration; None without a
    kernel."""
    counts = [run.instance_count for run in _kernel_runs(definition)]
    return sum(count or 0 for count in counts) if any(count is not None for count in counts) else None


def describe_unrun_kernels(definitions: Iterable[Definition]) -> str:
    """Return which kernels were not run because no instance was found that runs; empty if there are none."""
    silent = (each.name for each in definitions if any(run.instance_count == 0 for run in _kernel_runs(each)))
    names = ", ".join(dict.fromkeys(silent))
    return f"the kernel of {names} was not asked: no instance was found that runs" if names else ""


def explain_nonfinite_deviation(definitions: Iterable[Definition]) -> str:
    """Return why kernels may treat infinities and NaN differently from the declaration; empty if they never do."""
    if silent := describe_unrun_kernels(definitions):
        return silent
    kernels = ort.custom_ops_digest()
    kept = all(_keeps_infinities(each, definitions_of(each.body), kernels) for each in definitions)
    return "" if kept else "a kernel makes something else of infinities than is declared"


class _KernelRun(NamedTuple):
    """The outcome of running a kernel for one way to write its operator."""

    instance_count: int | None
    """The number of instances; None where ONNX Runtime does not know the operator."""
    contradiction: Counterexample | None = None


def _kernel_runs(definition: Definition) -> tuple[_KernelRun, ...]:
    return _runs_of_kernels(definition, definitions_of(definition.body), ort.custom_ops_digest())


@cache
def _runs_of_kernels(definition: Definition, _inner: tuple[Definition, ...], kernels: str) -> tuple[_KernelRun, ...]:
    """Return the outcomes of running an operator's kernel, by the ways to write it.

    They depend on the definitions of the operators in its meaning, too.
    """
    return tuple(
        _run_kernel(definition.name, rule, _sample_kernel_instances(rule, kernels)) for rule in as_rules(definition)
    )


def _run_kernel(name: str, rule: Rule, drawn: tuple[ConcreteInstance, ...] | None) -> _KernelRun:
    if drawn is None:
        return _KernelRun(None)
    run: list[ConcreteInstance] = []
    found: Counterexample | None = None
    for each in chain(drawn, _edges(rule, run), _near_zero_instances(rule, run)):
        is_run, found = _check_beyond_rounding(rule, each)
        run += [each] if is_run else []
        if found is not None:
            break
    count = len(run)
    found = found or next(filter(None, (_find_misread_input(rule, hole, run) for hole in rule.holes.values())), None)
    if found is None:
        return _KernelRun(count)
    text = f"{name} is not what its definition says: {found.difference.text}"
    return _KernelRun(max(count, 1), replace(found, difference=replace(found.difference, text=text)))


def _check_beyond_rounding(rule: Rule, given: ConcreteInstance) -> tuple[bool, Counterexample | None]:
    """Return whether kernel and meaning run at an instance, and how they differ by more than rounding: by more than the
    kernel's results move, too, where inputs change by as little as they are rounded."""
    is_run, found = check_instance(rule, given, tolerance=TOLERANCE)
    if found is None or check_instance(rule, given)[1] is not None:
        return is_run, found
    moved = run_sides(
        rule, replace(given, values={name: _perturb_floats(value) for name, value in given.values.items()})
    )
    place = found.difference.output
    apart = _distance(found.left[place], found.right[place])
    return is_run, None if moved is None or apart <= ROUNDING_MARGIN * _distance(
        found.left[place], moved[0][place]
    ) else found


def _perturb_floats(value: Any) -> Any:
    """Return an array of floats that are rounded otherwise; another value as it is."""
    if not _is_of_floats(value):
        return value
    rng = np.random.default_rng(1)
    return np.asarray(value * rng.choice((1 - PERTURBATION, 1 + PERTURBATION), value.shape), value.dtype)


def _distance(one: Array, other: Array) -> float:
    """Return how far two arrays are from each other, where both are finite."""
    both = np.isfinite(one) & np.isfinite(other)
    return float(np.abs(one.astype(np.float64)[both] - other.astype(np.float64)[both]).max(initial=0.0))


def _near_zero_instances(rule: Rule, run: Sequence[ConcreteInstance]) -> Iterator[ConcreteInstance]:
    """Yield some instances of those that have run again, with numbers close to 0."""
    for each in run[-PERTURBED:]:
        values = {
            n: np.asarray(v * NEAR_ZERO_SCALE, v.dtype) if _is_of_floats(v) else v for n, v in each.values.items()
        }
        if satisfies(expand_definitions(rule), replace(each, values=values)):
            yield replace(each, values=values)


def _is_of_floats(value: Any) -> bool:
    return isinstance(value, np.ndarray) and DType.from_numpy(value.dtype).is_float


def _edges(rule: Rule, run: Sequence[ConcreteInstance]) -> Iterator[ConcreteInstance]:
    """Yield instances of numbers that a kernel may treat specially, in the element types with which others have run."""
    types = dict.fromkeys(frozenset(_element_types(each).items()) for each in run)
    for known in islice(types, KINDS):
        count = EDGE_INSTANCES // min(len(types), KINDS)
        yield from sample_instances(
            expand_definitions(rule), 1, count, ATTEMPTS, scope=sampling_scope.EDGES, known=dict(known)
        )


def _element_types(given: ConcreteInstance) -> dict[str, DType]:
    arrays = ((name, value) for name, value in given.values.items() if isinstance(value, np.ndarray))
    return {name: DType.from_numpy(value.dtype) for name, value in arrays}


def _find_misread_input(rule: Rule, hole: Var, run: Sequence[ConcreteInstance]) -> Counterexample | None:
    """Return an instance at which an input changes what the kernel computes though it changes nothing of what is
    declared wherever it was drawn again, or the reverse: by less than is allowed for rounding, too."""
    changes: list[Counterexample | None] = [None, None]
    for seed, each in enumerate(run[-PERTURBED:] if hole.kind == "tensor" else ()):
        other = _redraw_input(rule, hole.name, each, seed)
        one, two = run_sides(rule, each), other and run_sides(rule, other)
        if other is None or one is None or not two:
            continue
        if (found := _check_beyond_rounding(rule, other)[1]) is not None:
            return found
        for side, changed in enumerate(
            (
                "what the kernel computes, and nothing of what is declared",
                "what is declared, and nothing of what the kernel computes",
            )
        ):
            if not _all_equal(one[side], two[side]):
                gap = SideDifference("values", f"{hole.name} changes {changed}")
                changes[side] = changes[side] or Counterexample(rule, other, gap, *two)
    only = [change for change in changes if change is not None]
    return only[0] if len(only) == 1 else None


def _redraw_input(rule: Rule, name: str, given: ConcreteInstance, seed: int) -> ConcreteInstance | None:
    """Return an instance that differs from another in one input."""
    values = {other: value for other, value in given.values.items() if other != name}
    types, old = _element_types(given), given.values[name]
    found = complete_instance(
        expand_definitions(rule), given.dims, values, seed, attempts=20, scope=sampling_scope.EDGES, types=types
    )
    return found if found is not None and found.values[name].shape == old.shape else None


def _all_equal(one: Sequence[Array], other: Sequence[Array]) -> bool:
    return all(
        np.array_equal(before, after, equal_nan=before.dtype.kind == "f")
        for before, after in zip(one, other, strict=True)
    )


@cache
def _keeps_infinities(definition: Definition, _inner: tuple[Definition, ...], kernels: str) -> bool:
    rng = np.random.default_rng(1)
    spoilt = (
        (rule, _inject_nonfinite(each, rng))
        for rule in as_rules(definition)
        for each in _sample_kernel_instances(rule, kernels) or ()
    )
    return not any(check_instance(rule, each, nonfinite=True)[1] for rule, each in spoilt)


@cache
def _sample_kernel_instances(rule: Rule, _kernels: str) -> tuple[ConcreteInstance, ...] | None:
    """Return instances of an operator and its meaning; None where ONNX Runtime does not know the operator."""
    plain = expand_definitions(rule)
    drawn = chain(
        sample_instances(plain, seed=1, count=SIMPLE_INSTANCES, attempts=ATTEMPTS, scope=sampling_scope.PLAIN),
        sample_instances(plain, seed=1, count=GENERAL_INSTANCES, attempts=ATTEMPTS),
        sample_overflow_instances(plain),
    )
    first = next(drawn, None)
    if first is None:
        return ()
    return (first, *drawn) if is_registered(rule, first) else None


def _inject_nonfinite(instance: ConcreteInstance, rng: np.random.Generator) -> ConcreteInstance:
    """Return an instance in which some elements of floats are infinite, or no numbers."""
    values = dict(instance.values)
    for name, value in values.items():
        if _is_of_floats(value):
            odd = rng.choice(np.array([np.inf, -np.inf, np.nan, 0.0], value.dtype), value.shape)
            values[name] = np.where(rng.random(value.shape) < rng.choice((0.0, 0.1, 0.5)), odd, value)
    return replace(instance, values=values)


def as_rules(definition: Definition) -> Iterator[Rule]:
    """Yield the rules that the operator may be replaced by its meaning: with all attributes, and without those of which
    the defaults are meant, too."""
    head = definition.head
    for attrs in dict.fromkeys(
        (head.attrs, tuple(pair for pair in head.attrs if not _may_be_absent(definition, pair)))
    ):
        given = replace(head, attrs=attrs)
        meaning = definition.instantiate(given)
        assert meaning is not None, f"{given} is what {definition} is of"
        name = re.sub(r"[^a-zA-Z0-9]+|(?<=[a-z0-9])(?=[A-Z])", "_", f"expand_{head.op}").lower()
        yield Rule(name, tuple(replace(given, output=i) for i in range(head.outputs)), meaning.outputs)


def _may_be_absent(definition: Definition, attribute: tuple[str, Term]) -> bool:
    """Return whether the operator means the same without an attribute: it has a default, which is not another value
    than the one for which alone it is defined."""
    others = tuple(pair for pair in definition.head.attrs if pair != attribute)
    return definition.instantiate(replace(definition.head, attrs=others)) is not None
