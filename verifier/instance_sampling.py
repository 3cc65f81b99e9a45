"""Random instances of a rule: sizes, element types and values for which its left side is defined."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
import onnx

from graphopt.base.dtype import DType
from graphopt.ir import schemas
from graphopt.ir.tensor import Tensor
from graphopt.ir.types import TensorType
from graphopt.language.rule import Rule
from graphopt.language.scalar_functions import BINDING_QUERIES, PROPERTIES, UndecidedScalarError, arange_array
from graphopt.language.terms import (
    SCALAR,
    App,
    Lit,
    Term,
    Var,
    axis_arguments,
    axis_position,
    holes,
    is_scalar,
    multiple_argument,
    operator_applications,
    walk_term,
)
from graphopt.language.type_inference import NoInstance, OperatorSignature, TypeConstraints, signature_of
from graphopt.operators.attribute_proposals import ProposalContext
from graphopt.operators.operator import ResultDtypeSource
from graphopt.operators.operator_classes import is_broadcasting, lookup_operator
from graphopt.operators.proto_conversion import tensor_to_proto, type_from_proto, type_to_proto
from graphopt.operators.rule_families import RuleSpecialization
from graphopt.operators.symbolic_shapes import OperandFacts, may_be_defined
from graphopt.operators.window_ops import CONVOLUTION_OPERATORS
from graphopt.verifier.concrete_instance import (
    Array,
    ConcreteInstance,
    Shape,
    Sizes,
    axes_shape,
    evaluate_scalar_at,
    satisfies,
)
from graphopt.verifier.expanded_rule import ExpandedRule, expand_definitions
from graphopt.verifier.instance_models import node_proto, scalar_array
from graphopt.verifier.sampling_scope import ANY, WITH_PROPERTY, SamplingScope, edge_array, random_array
from graphopt.verifier.value_proposals import ORDER, propose, propose_bundle

NUMBERS: Mapping[str, Sequence[float]] = {"integer": (1, 2, 3, 4), "real": (0.5, 1.0, 1.5, 2.0)}
"""Numbers that are tried for a hole with which the meaning of an operator computes: no operator asks for it as it
is."""

FIRST_INDICES = (-2, -1, 0, 0, 1, 2, 3)
"""First numbers of constants that hold consecutive ones (`fn.first_index`): negative ones count from the end."""

LARGEST = 1024
"""Longest axis that is drawn."""

MAX_CANDIDATE_SIZES = 6
"""Number of least sizes that meet the conditions to draw from: large ones take long to run."""


def sample_instances(
    rule: Rule,
    seed: int = 0,
    count: int = 10,
    attempts: int = 5_000,
    *,
    scope: SamplingScope = ANY,
    known: Mapping[str, DType] | None = None,
) -> Iterator[ConcreteInstance]:
    """Yield up to `count` instances, the same for the same seed; fewer if `attempts` draws do not give as many.

    `known` are element types of holes, by name.
    """
    assert not rule.is_family, "what its holes stand for is chosen before (`rule_families.specialize_family`)"
    rule = _expand_left_side(rule)
    rng = random.Random(f"{rule.name}/{seed}")
    try:
        types = _types(rule, known or {}, scope).apply_conditions(rule.conditions)
    except NoInstance:
        return
    for _ in range(attempts):
        if count == 0:
            return
        try:
            yield _Draft(rule, rng, types.copy(), {}, {}, scope).complete()
            count -= 1
        except (NoInstance, UndecidedScalarError):
            continue


def complete_instance(
    rule: Rule,
    dims: Sizes,
    values: Mapping[str, Any],
    seed: int = 0,
    attempts: int = 2_000,
    *,
    scope: SamplingScope = ANY,
    types: Mapping[str, DType] | None = None,
) -> ConcreteInstance | None:
    """Return an instance with these sizes and values, and with these element types where given; the rest is drawn.

    None if no draw meets the conditions.
    """
    rng = random.Random(seed)
    rule = _expand_left_side(rule)
    for _ in range(attempts):
        try:
            known = {
                name: DType.from_numpy(value.dtype) for name, value in values.items() if isinstance(value, np.ndarray)
            }
            known |= types or {}
            return _Draft(rule, rng, _types(rule, known, scope), dict(dims), dict(values), scope).complete()
        except (NoInstance, UndecidedScalarError):
            continue
    return None


def _expand_left_side(rule: Rule) -> Rule:
    """Return the rule with a left side in operators of ONNX: what these ask of sizes and attributes is known."""
    given = (app for side in rule.left for app in operator_applications(side))
    return expand_definitions(rule) if any(schemas.is_defined_operator(app.op, app.domain) for app in given) else rule


def _types(rule: Rule, known: Mapping[str, DType], scope: SamplingScope = ANY) -> TypeConstraints:
    """Return the element types of the left side; what a hole of the family stands for has the same wherever it is."""
    types = TypeConstraints(rule.left, known, scope.dtypes)
    for apps in rule.repeated_applications if isinstance(rule, RuleSpecialization) else ():
        types.unify_applications(apps)
    return types


class _Draft:
    """One draw. Left sides are visited operands first; whatever an operator leaves open is proposed to fit it."""

    def __init__(
        self,
        rule: Rule,
        rng: random.Random,
        types: TypeConstraints,
        dims: dict[str, Any],
        values: dict[str, Any],
        scope: SamplingScope = ANY,
    ) -> None:
        self.rule, self.rng, self.types, self.dims, self.values, self.scope = rule, rng, types, dims, values, scope
        self.rank = rng.choice(scope.ranks)  # of holes without axes
        self.base: Shape | None = None
        self.shapes: dict[Term, Shape | None] = {}
        self.bounds: dict[str, tuple[int, int]] = {}  # holes that hold indices, the least and the end of these
        self.zero_positions: dict[App, list[bool]] = {}  # where constants are zero
        self.representatives: dict[tuple[str, ...], list[int]] = {}  # where they are equal
        self.positive: set[str] = set()  # holes whose elements must be greater than zero
        self.divisors: set[str] = set()  # holes of which divisors are made
        self.compared_values = _compared_values(rule)
        self.conditions = _attribute_conditions(rule)

    def complete(self) -> ConcreteInstance:
        for side in self.rule.left:
            self.visit(side)
        for hole in self.rule.holes.values():
            if hole.kind in ("tensor", "const") and hole.name not in self.values:
                self.values[hole.name] = self._draw(hole)
        written = dict(self._draw_stored_shapes())
        drawn = ConcreteInstance(self.dims, self.values, written)
        if not satisfies(self.rule, drawn):
            raise NoInstance("the conditions do not hold")
        return drawn

    # sizes

    def draw_size(self) -> int:
        return self.rng.choice(self.scope.sizes)

    def shape_of(self, hole: Var) -> Shape:
        """Return the shape of a hole; sizes that are still open are drawn."""
        if hole in self.shapes:
            return self.shapes[hole] or ()
        if isinstance(given := self.values.get(hole.name), np.ndarray):
            shape: Shape = given.shape
        elif hole.axes is None:
            shape = tuple(self.dims.get(hole.name) or self._base())
        else:
            shape = self._sizes(hole.axes)
        if hole.axes is None:
            self.dims[hole.name] = shape
        self.shapes[hole] = shape
        return shape

    def _sizes(self, axes: Iterable[str]) -> Shape:
        shape: list[int] = []
        for axis in axes:
            if axis == "_":
                shape.append(self.draw_size())
                continue
            if not axis.isdigit() and axis.removeprefix("1") not in self.dims:
                self.dims[axis.removeprefix("1")] = self._pack() if "*" in axis else self._size_of(axis)
            shape += axes_shape([axis], self.dims)
        return tuple(shape)

    def _size_of(self, axis: str) -> int:
        """Return a size for an axis: where none that is usual can meet the conditions on sizes, one that does."""
        usual = self.draw_size()
        told = [app for app in self.rule.content_queries if axis in axis_arguments(app)]
        multiple = max(map(multiple_argument, told), default=1)
        if any(app.op == "block_count" for app in told):
            usual = self.rng.choice((1, 2, 2, 4)) * multiple
        elif multiple > 1:  # with no more of them nothing is left out
            usual += multiple
        asked = self._conditions_on_axis(axis)
        if not asked or any(self._is_possible_size(axis, size, asked) for size in {*self.scope.sizes}):
            return usual
        numbers = [size for condition, _ in asked for size in _integer_literals(condition)]
        known = {1, 2, 3, *numbers, *(size for size in self.dims.values() if isinstance(size, int))}
        others = {number + more for number in known for more in (-1, 1)} | {a * b for a in known for b in known}
        found = [size for size in sorted(others) if 0 < size <= LARGEST and self._is_possible_size(axis, size, asked)]
        return self.rng.choice(found[:MAX_CANDIDATE_SIZES]) if found else usual

    def _conditions_on_axis(self, axis: str) -> list[tuple[Term, frozenset[str]]]:
        """Return the conditions on the size of an axis."""
        return [(condition, axes) for condition, axes in _size_conditions(self.rule) if axis in axes]

    def _is_possible_size(self, axis: str, size: int, asked: Iterable[tuple[Term, frozenset[str]]]) -> bool:
        """Return whether conditions hold with a size: for what is known, and one size, usual or said, of all that is
        open."""
        dims = self.dims | {axis: size}
        for condition, axes in asked:
            missing = axes - dims.keys()
            others = {*self.scope.sizes, *_integer_literals(condition)}
            tried = (dims | {axis: (other,) if "*" in axis else other for axis in missing} for other in others)
            if not any(_holds(condition, self.rule, sizes) for sizes in (tried if missing else [dims])):
                return False
        return True

    def _pack(self) -> Shape:
        packs = [len(sizes) for sizes in self.dims.values() if isinstance(sizes, tuple)]
        rank = self.rng.choice(packs) if packs and self.rng.random() < 0.7 else self.rng.choice(self.scope.packs)
        return tuple(self.draw_size() for _ in range(rank))

    def _base(self) -> Shape:
        """One shape for all holes without axes; now and then one that broadcasts to it."""
        if self.base is None:
            self.base = tuple(self.draw_size() for _ in range(self.rank))
            return self.base
        base = self.base
        match self.rng.random():
            case chance if chance < 0.2:
                base = tuple(1 if self.rng.random() < 0.5 else size for size in base)[self.rng.randint(0, self.rank) :]
            case chance if chance < 0.4 and base:
                axis = self.rng.randrange(len(base))
                base = (*base[:axis], self.draw_size(), *base[axis + 1 :])
        return base

    # operators

    def visit(self, term: Term) -> Shape | None:
        """Return the shape of a term, None where it depends on values."""
        if isinstance(term, Var):
            return self.shape_of(term)
        assert isinstance(term, App)
        if term not in self.shapes:
            self._apply(term)
        return self.shapes[term]

    def _apply(self, app: App) -> None:
        facts = lookup_operator(app.op, app.domain)
        if facts.weights_input is not None:
            self._match_weights(app, facts.weights_input)
        if facts.is_concatenation:
            self._match_joined(app)
        self._draw_referenced_sizes(app)
        tensors = {i: self.visit(arg) for i, arg in enumerate(app.inputs) if arg is not None and not is_scalar(arg)}
        operator = signature_of(app)
        inputs = [tensors.get(i) for i in range(len(app.inputs))]
        context = ProposalContext(app, operator, inputs, {}, self)
        for name, value in sorted(app.attrs, key=lambda attr: ORDER.get(attr[0], 0)):
            context.attrs[name] = self._attribute(context, name, value)
        bundle = app.attributes_hole
        if bundle is not None:
            given = self.values.setdefault(bundle.name, propose_bundle(context))
            context.attrs.update(given)
        for position, arg in enumerate(app.inputs):
            if isinstance(arg, Var) and is_scalar(arg):
                self._fill(context, operator.input(position).name, arg)
        self._hints(app, operator, inputs)
        if facts.requires_spatial_axes and "kernel_shape" in operator.attributes:
            # ORT has kernels for little else; `onnx.reference` is slow, and errs on grouped ConvTranspose
            self.types.choose((app.node, 0), DType.FLOAT)
        self._infer(context)

    def _draw_referenced_sizes(self, app: App) -> None:
        """Draw the sizes that are named before a tensor that has them was visited, and numbers to compute with."""
        said = chain((arg for arg in app.inputs if arg is not None), dict(app.attrs).values())
        for part in chain.from_iterable(map(walk_term, filter(is_scalar, said))):
            if isinstance(part, App) and part.op in ("size", "sizes") and isinstance(part.args[0], Lit):
                self._sizes(str(part.args[0].value).split())
            elif isinstance(part, App) and part.op in ("shape", "rank") and isinstance(part.args[0], Var):
                self.shape_of(part.args[0])
            elif isinstance(part, App) and part.domain == SCALAR:
                for hole in part.args:
                    if isinstance(hole, Var) and hole.kind in NUMBERS and hole.name not in self.values:
                        self.values[hole.name] = self.rng.choice(NUMBERS[hole.kind])

    def _match_weights(self, app: App, place_of_weights: int) -> None:
        """Make an axis of the weights that nothing has fixed yet as long as the first operand has it, in one group."""
        operand, weights = app.operands[0], _quantized_weights(app.operands[place_of_weights])
        shape = self.visit(operand)
        place, own = (1, 1) if app.op in CONVOLUTION_OPERATORS else (-2, -1)
        if shape and len(shape) > own and isinstance(weights, Var) and len(weights.axes or ()) > 1:
            axis = (weights.axes or ())[place]
            is_open = axis.isidentifier() and axis != "_" and axis not in self.dims
            if (
                is_open
                and self.rng.random() < 0.8
                and self._is_possible_size(axis, shape[own], self._conditions_on_axis(axis))
            ):
                self.dims[axis] = shape[own]

    def _match_joined(self, app: App) -> None:
        """Give holes without axes the shape of what is computed to be joined with them, but along the axis."""
        computed = (arg for arg in app.inputs if isinstance(arg, App) and not is_scalar(arg))
        axis, shape = dict(app.attrs).get("axis"), next(filter(None, map(self.visit, computed)), None)
        if shape is None or not isinstance(axis, Lit) or not isinstance(axis.value, int):
            return
        place = axis.value % len(shape)
        for arg in app.inputs:
            if isinstance(arg, Var) and arg.axes is None and arg.name not in self.dims and self.rng.random() < 0.8:
                self.dims[arg.name] = (*shape[:place], self.draw_size(), *shape[place + 1 :])

    def _attribute(self, context: ProposalContext, name: str, value: Term) -> Any:
        if isinstance(value, Var):
            self._fill(context, name, value)
        found = evaluate_scalar_at(value, self.rule, ConcreteInstance(self.dims, self.values))
        is_target = lookup_operator(context.app.op, context.app.domain).result_dtype_source is ResultDtypeSource.TARGET
        if is_target and name == "to":
            self.types.restrict((context.app.node, 0), {DType(found)})
        return found

    def _fill(self, context: ProposalContext, name: str, hole: Var) -> None:
        """Propose values for a hole until the conditions on what is known hold."""
        if hole.name in self.values:
            return
        for _ in range(8):
            self.values[hole.name] = self._propose_value(context, name, hole)
            if self._fits(hole.name):
                return
        raise NoInstance(f"no value for {hole.name} was found")

    def _propose_value(self, context: ProposalContext, name: str, hole: Var) -> Any:
        """Return a value that suits the operator; more often than not one that the conditions compare the hole with."""
        value = propose(context, name, hole.kind)
        if hole.name not in self.compared_values or self.rng.random() > 0.8:
            return value
        known = ConcreteInstance(
            self.dims, {**self.values, hole.name: value}
        )  # it may be wanted in part, as it was proposed
        try:
            wanted = evaluate_scalar_at(self.rng.choice(self.compared_values[hole.name]), self.rule, known)
        except (
            KeyError,
            UndecidedScalarError,
        ):  # it mentions what is not drawn yet, or a part that the proposal has not
            return value
        return (wanted,) * len(value) if isinstance(value, tuple) and not isinstance(wanted, tuple) else wanted

    def _fits(self, name: str) -> bool:
        """Return whether no condition that this hole makes decidable is violated."""
        known = ConcreteInstance(self.dims, self.values)
        decidable = (c for c, names in self.conditions if name in names and names <= self.values.keys())
        return all(evaluate_scalar_at(condition, self.rule, known) for condition in decidable)

    def _hints(self, app: App, operator: OperatorSignature, inputs: list[Shape | None]) -> None:
        """Draw values that make the operator defined: indices in range, a variance that is not negative."""
        facts = lookup_operator(app.op, app.domain)
        self.divisors |= {hole.name for arg in app.operands[1:] for hole in holes(arg) if facts.divides_integers}
        needs_positive = not facts.allows_any_scale or self.rule.definitions or isinstance(self.rule, ExpandedRule)
        for position, arg in enumerate(app.inputs):
            if not isinstance(arg, Var):
                continue
            if "indices" in operator.input(position).name:
                below = max(min(inputs[0] or (1,)), 1)
                self.bounds[arg.name] = (-below, below)
            role = facts.operand_roles.get(position)
            if role == "index" and facts.table_inputs:
                self.bounds[arg.name] = (0, max(min((inputs[table] or (1,))[0] for table in facts.table_inputs), 1))
            if role == "positive" and needs_positive:
                self.positive.add(arg.name)

    def _infer(self, context: ProposalContext) -> None:
        """Infer the shapes of an operator's outputs, as the onnx package does; it has to be defined."""
        app = context.app
        names, types, data = [], {}, {}
        operands: list[OperandFacts | None] = []
        for position, arg in enumerate(app.inputs):
            names.append("" if arg is None else f"i{position}")
            if arg is None:
                operands.append(None)
                continue
            dtype = self.types.draw((app.node, context.signature.input(position).variable), self.rng)
            if is_scalar(arg):
                value = evaluate_scalar_at(arg, self.rule, ConcreteInstance(self.dims, self.values))
                array = scalar_array(context, position, value, dtype)
                data[names[-1]] = tensor_to_proto(Tensor.from_array(array), names[-1])
                types[names[-1]] = type_to_proto(TensorType(dtype, array.shape))
                operands.append(OperandFacts(dtype, array.shape, tuple(array.ravel().tolist())))
            else:
                types[names[-1]] = type_to_proto(TensorType(dtype, context.inputs[position]))
                operands.append(OperandFacts(dtype, context.inputs[position], None))
        if not app.domain and not may_be_defined(app.op, context.attrs, operands, app.outputs):
            raise NoInstance(f"{app.op} is not defined for these sizes and attributes")
        node = node_proto(app, context.attrs, names, [f"o{i}" for i in range(app.outputs)])
        try:
            found = onnx.shape_inference.infer_node_outputs(
                context.signature.schema,
                node,
                types,
                data,
                opset_imports=[onnx.OperatorSetIdProto(version=schemas.RULE_OPSET)],
            )
        except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError, ValueError) as error:
            raise NoInstance(str(error)) from error
        for position in range(app.outputs):
            type_ = type_from_proto(found[f"o{position}"]) if f"o{position}" in found else None
            known = isinstance(type_, TensorType) and type_.is_static and type_.shape is not None
            output = App(app.op, app.args, app.attrs, app.domain, position, app.outputs)
            self.shapes[output] = tuple(map(int, type_.shape)) if known else None  # type: ignore[arg-type, union-attr]
            if known and min(self.shapes[output] or (1,)) < 0:
                raise NoInstance("a size is negative")

    # values

    def _draw(self, hole: Var) -> Array | None:
        if hole.default is not None and self.rng.random() < 0.4:
            self._sizes(hole.axes or ())
            return None
        shape = self.shape_of(hole)
        dtype = self.types.draw(("hole", hole.name), self.rng)
        rng = np.random.default_rng(self.rng.getrandbits(32))
        if (numbers := self._counting(hole, shape, dtype)) is not None:
            return numbers.astype(dtype.numpy)
        if hole.name in self.bounds:
            return rng.integers(*self.bounds[hole.name], shape).astype(dtype.numpy)
        array = random_array(rng, shape, dtype, plain=self.scope.plain)
        if self.scope.edges and hole.name not in self.divisors | self.positive and self.rng.random() < 0.6:
            array = edge_array(rng, shape, dtype)
        for name in self._properties(hole):
            array = WITH_PROPERTY[name](array)
        for app in (app for app in self.rule.content_queries if hole in app.args):
            {"nonzero_indices": self._zero_slices, "block_count": self._keep_blocks}.get(app.op, self._repeat)(
                app, hole, array
            )
        if hole.name in self.positive:
            array = np.abs(array) + np.asarray(1.0 if self.scope.plain else 0.1, array.dtype)
        if hole.kind == "const" and shape and self.rng.random() < 0.3:  # a constant that is written shorter
            array = self._uniform(hole, array)
        return np.asarray(array)

    def _properties(self, hole: Var) -> Iterator[str]:
        for condition in self.rule.conditions:
            for part in walk_term(condition):
                if isinstance(part, App) and part.op in WITH_PROPERTY and hole in part.args:
                    yield part.op

    def _zero_slices(self, app: App, hole: Var, array: Array) -> None:
        """Make a constant zero at some places along an axis, the same ones as the others that are told of."""
        along = np.moveaxis(array, [axis_position(axis, hole.axes or ()) for axis in axis_arguments(app)], [0])
        if app not in self.zero_positions:
            self.zero_positions[app] = [self.rng.random() < 0.5 for _ in along]
        along[np.asarray(self.zero_positions[app], bool)] = 0

    def _repeat(self, app: App, hole: Var, array: Array) -> None:
        """Make a constant equal at some places along an axis, the same ones as the others that are told of."""
        along = np.moveaxis(array, [axis_position(axis, hole.axes or ()) for axis in axis_arguments(app)], [0])
        of = axis_arguments(app)
        if of not in self.representatives:
            self.representatives[of] = [self.rng.randrange(place + 1) for place in range(len(along))]
        along[:] = along[self.representatives[of]]

    def _counting(self, hole: Var, shape: Shape, dtype: DType) -> Array | None:
        """Return the numbers of a constant that counts, as a whole or along an axis; None of any other."""
        counts = self.rule.arange_conditions.get(hole.name)
        if counts is not None:
            sizes = [
                evaluate_scalar_at(arg, self.rule, ConcreteInstance(self.dims, self.values))
                for arg in counts.operands[1:]
            ]
            return arange_array(shape, *(sizes or [None]))
        for app in self.rule.content_queries:
            if app.op == "first_index" and hole in app.args:
                (axis,) = (axis_position(axis, hole.axes or ()) for axis in axis_arguments(app))
                return self._draw_consecutive(hole, shape, axis, dtype)
        return None

    def _draw_consecutive(self, hole: Var, shape: Shape, axis: int, dtype: DType) -> Array:
        """Return consecutive numbers along an axis, alike along all others, from one with which the conditions hold."""
        for first in self.rng.sample(FIRST_INDICES, len(FIRST_INDICES)):
            numbers = np.arange(first, first + shape[axis])
            array = np.moveaxis(np.broadcast_to(numbers, (*np.delete(shape, axis), shape[axis])), -1, axis)
            if first >= dtype.limits[0] and self._may_hold(hole, array):
                return array
        raise NoInstance(f"no first index of {hole.name} was found")

    def _may_hold(self, hole: Var, array: Array) -> bool:
        """Return whether no condition that is decidable by now is violated by what a hole holds."""
        known = ConcreteInstance(self.dims, {**self.values, hole.name: array})
        for condition in self.rule.conditions:
            with suppress(KeyError, UndecidedScalarError):  # it mentions what is not drawn yet
                if not evaluate_scalar_at(condition, self.rule, known):
                    return False
        return True

    def _keep_blocks(self, app: App, hole: Var, array: Array) -> None:
        """Make a constant zero outside of some blocks."""
        table = np.moveaxis(array, [axis_position(axis, hole.axes or ()) for axis in axis_arguments(app)], [0, 1])
        height, width = (size // multiple_argument(app) for size in table.shape[:2])
        count = self.rng.choice(
            [each for each in range(1, height + 1) if not height % each and not width % each] or [1]
        )
        own, other = (np.arange(size) * count // size for size in table.shape[:2])
        table[own[:, None] != other] = 0

    def _uniform(self, hole: Var, array: Array) -> Array:
        """Return the same value along some axes, for constants that may be written in a shorter shape."""
        if not _is_operand(self.rule, hole):
            return array
        short = tuple(slice(0, 1) if self.rng.random() < 0.5 else slice(None) for _ in array.shape)
        return np.broadcast_to(array[short], array.shape).copy() if array.size else array

    def _draw_stored_shapes(self) -> Iterator[tuple[str, Shape]]:
        """Other shapes for constants that stand beside operands which they broadcast to; no result is smaller then."""
        beside: dict[str, list[Shape]] = {}
        for app in (
            app for side in self.rule.left for app in operator_applications(side) if is_broadcasting(app.op, app.domain)
        ):
            for this, other in zip(app.inputs, reversed(app.inputs), strict=True):
                shape = self.shapes.get(other) if other is not None else None
                is_free = isinstance(this, Var) and this.kind == "const" and _is_operand(self.rule, this)
                if isinstance(this, Var) and is_free and shape is not None:
                    beside.setdefault(this.name, []).append(shape)
        for name, shapes in beside.items():
            array = self.values[name]
            if isinstance(array, np.ndarray):
                shorter = self._shorten_shape(array, max(map(len, shapes)))
                results = [{np.broadcast_shapes(one, shape) for one in (shorter, array.shape)} for shape in shapes]
                if all(len(result) == 1 for result in results):
                    yield name, shorter

    def _shorten_shape(self, array: Array, rank: int) -> Shape:
        """Sizes along which the values are equal become 1; leading ones come and go, up to a rank."""
        shape = [
            1 if size > 1 and np.array_equal(np.broadcast_to(array.take([0], axis), array.shape), array) else size
            for axis, size in enumerate(array.shape)
        ]
        while shape and shape[0] == 1 and self.rng.random() < 0.5:
            shape.pop(0)
        while len(shape) < rank and self.rng.random() < 0.5:
            shape.insert(0, 1)
        return tuple(shape)


def _quantized_weights(weights: Term) -> Term:
    """Weights as they are stored, where they are dequantized."""
    if (
        isinstance(weights, App)
        and lookup_operator(weights.op, weights.domain).result_dtype_source is ResultDtypeSource.DEQUANTIZED
    ):
        return weights.operands[0]
    return weights


@cache
def _compared_values(rule: Rule) -> dict[str, list[Term]]:
    """Return the numbers, texts and shapes that conditions compare attributes with."""
    wanted: dict[str, list[Term]] = {}
    for part in (part for condition in rule.conditions for part in walk_term(condition)):
        match part:
            case App(op="eq" | "le", args=(Var(name=name), Lit() as value) | (Lit() as value, Var(name=name))):
                wanted.setdefault(name, []).append(value)
            case App(op="eq" | "is_noop_reshape", args=(Var(name=name), App() as value)):
                wanted.setdefault(name, []).append(value)
    return wanted


@cache
def _integer_literals(condition: Term) -> tuple[int, ...]:
    """Return the numbers that a condition says."""
    literals = (part.value for part in walk_term(condition) if isinstance(part, Lit))
    return tuple(number for number in literals if isinstance(number, int))


@cache
def _size_conditions(rule: Rule) -> tuple[tuple[Term, frozenset[str]], ...]:
    """Return the conditions on nothing but sizes that have names, with the axes that it takes to tell."""
    found = []
    for condition in rule.conditions:
        facts = [
            part
            for part in walk_term(condition)
            if isinstance(part, App) and part.op in {*BINDING_QUERIES, *PROPERTIES}
        ]
        said = {str(arg.value) for app in facts for arg in app.args if isinstance(arg, Lit)}
        of = {hole for app in facts for hole in app.args if isinstance(hole, Var)}
        if {app.op for app in facts} <= {"size", "shape", "rank"} and of.issuperset(holes(condition)):
            axes = {axis.removeprefix("1") for axis in chain(said, *(hole.axes or () for hole in of))}
            if all(hole.axes for hole in of):
                found.append((condition, frozenset(axis for axis in axes if axis and not axis.isdigit())))
    return tuple(found)


def _holds(condition: Term, rule: Rule, dims: Sizes) -> bool:
    try:
        return bool(evaluate_scalar_at(condition, rule, ConcreteInstance(dims, {})))
    except UndecidedScalarError:
        return False


@cache
def _attribute_conditions(rule: Rule) -> list[tuple[Term, frozenset[str]]]:
    """Return the conditions on nothing but attributes and numbers, with the holes that each mentions."""
    return [
        (condition, frozenset(hole.name for hole in holes(condition)))
        for condition in rule.conditions
        if not any(
            isinstance(part, App) and part.op in {*BINDING_QUERIES, *PROPERTIES} for part in walk_term(condition)
        )
    ]


def _is_operand(rule: Rule, hole: Var) -> bool:
    """Return True for a constant with axes that the left side reads only as operand of elementwise binary operators."""
    readers = [app for side in rule.left for app in operator_applications(side) if hole in app.args]
    return hole.axes is not None and all(is_broadcasting(app.op, app.domain) for app in readers)
