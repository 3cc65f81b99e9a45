"""A model made into one step of its training: parameters go in, and their next values come out."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

import numpy as np
from onnx import ModelProto

from graphopt.autodiff.backward import add_gradients, influences
from graphopt.autodiff.building import RewriteRefused, add_outputs, add_values
from graphopt.autodiff.losses import LOSSES, OUTPUT, TARGET
from graphopt.autodiff.optimizers import GRADIENT, OPTIMIZERS, PARAMETER, STEP, Optimizer
from graphopt.base.dtype import DType
from graphopt.base.errors import ModelError, UsageError, did_you_mean
from graphopt.io.onnx_io import LoadedModel
from graphopt.ir.edit import replace_node
from graphopt.ir.graph import CONSTANT, IDENTITY, INPUT, INTERNAL_DOMAIN, Graph, Node, Patch, Value
from graphopt.ir.tensor import Tensor
from graphopt.ir.types import TensorType
from graphopt.language.terms import Term, op
from graphopt.operators.gradient_table import RUNNING_STATISTICS
from graphopt.rewrite.passes import PASSES
from graphopt.rewrite.simplify import simplify_graph

FIRST_OPSET = 13
"""The first opset whose reductions and views take axes as inputs, as the gradients write them."""
NEXT = ".next"
"""Suffix of an output that is the next value of the input before it."""
GRADIENT_SUFFIX = ".gradient"
NO_UPDATE = "none"
UPDATES = (*OPTIMIZERS, NO_UPDATE)


@dataclass(frozen=True)
class TrainingGraph:
    """A model that computes one step of training, and the names of what belongs together."""

    loaded: LoadedModel
    loss: str
    """Name of the output that is the loss."""
    gradients: Mapping[str, str]
    """The output that is the gradient of the loss, for each parameter or input."""
    states: Mapping[str, str]
    """The output that is the next value of an input, for each that is updated."""
    settings: tuple[str, ...]
    """The inputs that are numbers of the optimizer, each with a default."""


def training_graph(
    loaded: LoadedModel,
    loss: str,
    wrt: Sequence[str] | None = None,
    update: str = "sgd",
    weights: Container[str] | None = None,
) -> TrainingGraph:
    """Return one step of a model's training; the graph of `loaded` is changed.

    Args:
        loaded: the model, with the types of its values inferred.
        loss: a name of `LOSSES`, of the only output or after a colon of that of a name; or an output, a number.
        wrt: names or patterns of parameters and inputs; by default all parameters on which the loss depends.
        update: a name of `OPTIMIZERS`, or `none` for gradients alone.
        weights: the constants that may be parameters where `wrt` does not say it; by default all.

    Raises:
        UsageError: a name is not known.
        ModelError: the opset is too old, or an operator between parameters and the loss has no gradient.
    """
    builder = _TrainingGraphBuilder(loaded, weights)
    if update not in UPDATES:
        raise UsageError(f"there is no update '{update}'{did_you_mean(update, UPDATES)}")
    return builder.build(loss, wrt, update)


@dataclass
class _TrainingGraphBuilder:
    loaded: LoadedModel
    weights: Container[str] | None = None
    outputs: dict[str, Value] = field(default_factory=dict)
    """The outputs of the result, by name."""
    states: dict[str, str] = field(default_factory=dict)

    @property
    def graph(self) -> Graph:
        return self.loaded.graph

    def build(self, loss: str, wrt: Sequence[str] | None, update: str) -> TrainingGraph:
        graph, opset = self.graph, self.graph.opsets.get("", 0)
        if opset < FIRST_OPSET:
            raise ModelError(
                f"the model has opset {opset}; gradients need {FIRST_OPSET} or newer: convert it with"
                f" `graphopt optimize --target-opset {FIRST_OPSET}`"
            )
        candidates = self._candidates(wrt)
        for value in candidates:
            self._make_input(value)
        simplify_graph(graph, (), PASSES)  # sizes that constants determine are known from here on
        loss_name, loss_value = self._add_loss(loss)
        influential = influences(graph, loss_value)
        chosen = [value for value in candidates if value in influential or wrt is not None]
        loss_value, found = add_gradients(graph, loss_value, chosen)
        for value in chosen if wrt is not None else ():
            if value not in found:
                raise ModelError(f"the loss does not depend on '{graph.value_name(value)}', or only in steps")
        if not found:
            raise ModelError("no parameter changes the loss: name inputs or weights with --wrt (wrt=[…])")
        for value in candidates:
            if value not in found and graph[value.vertex].data is not None:
                self._make_constant(value)
        self.outputs = {loss_name: loss_value, **dict(zip(graph.output_names, graph.outputs, strict=True))}
        gradients = {graph.value_name(value): gradient for value, gradient in found.items()}
        for name, gradient in gradients.items():
            self._add_output(name + GRADIENT_SUFFIX, gradient)
        settings: tuple[str, ...] = ()
        if update != NO_UPDATE:
            parameters = {value: gradient for value, gradient in found.items() if graph[value.vertex].data is not None}
            settings = self._add_updates(OPTIMIZERS[update], parameters)
        self._add_running_statistics()
        self._set_outputs()
        return TrainingGraph(
            replace(self.loaded, shell=_shell_with_inputs(self.loaded.shell)),
            loss_name,
            {name: name + GRADIENT_SUFFIX for name in gradients},
            self.states,
            settings,
        )

    # -- parameters ----------------------------------------------------------------------------------------------------

    def _candidates(self, wrt: Sequence[str] | None) -> list[Value]:
        """Return the parameters and inputs that names or patterns choose, in their order in the model; by default all
        parameters."""
        graph = self.graph
        known = {
            node.names[0]: Value(vertex)
            for vertex, node in sorted(graph.vertices_and_nodes())
            if node.is_internal and graph.dtype(Value(vertex)).is_float
        }
        if wrt is None:
            return [value for value in known.values() if self._is_parameter(value)]
        for pattern in wrt:
            if not any(fnmatchcase(name, pattern) for name in known):
                raise UsageError(
                    f"no weight or floating-point input is called '{pattern}'{did_you_mean(pattern, known)}"
                )
        return [value for name, value in known.items() if any(fnmatchcase(name, pattern) for pattern in wrt)]

    def _is_parameter(self, value: Value) -> bool:
        """Return whether a value is trained by default: an initializer, also one that is an input, too."""
        node = self.graph[value.vertex]
        if node.data is None or not node.data.size:
            return False
        return self.weights is None or node.names[0] in self.weights

    def _make_input(self, value: Value) -> None:
        """Make a constant an input whose default is its value."""
        node = self.graph[value.vertex]
        if node.is_constant:
            bare = Node(INPUT, (), node.names, node.types, domain=INTERNAL_DOMAIN, data=node.data)
            self.graph.apply(Patch({value.vertex: node}, {value.vertex: bare}))
            self.graph.inputs.append(value.vertex)

    def _make_constant(self, value: Value) -> None:
        """Undo `_make_input`."""
        node = self.graph[value.vertex]
        self.graph.inputs.remove(value.vertex)
        again = replace(node, op=CONSTANT)
        self.graph.apply(Patch({value.vertex: node}, {value.vertex: again}))

    def _add_input(self, name: str, type_: TensorType, data: Tensor | None = None) -> Value:
        node = Node(INPUT, (), (name,), (type_,), domain=INTERNAL_DOMAIN, data=data)
        vertex = self.graph.add(node)
        self.graph.inputs.append(vertex)
        return Value(vertex)

    def _free_name(self, name: str) -> str:
        if name in self.graph.names or name in self.graph.output_names:
            raise ModelError(f"the model has a value '{name}' already: the training graph needs that name")
        return name

    def _add_output(self, name: str, value: Value) -> None:
        self.outputs[self._free_name(name)] = value

    # -- loss ----------------------------------------------------------------------------------------------------------

    def _add_loss(self, said: str) -> tuple[str, Value]:
        """Return the name and value of the loss, added to the graph unless it is one of the outputs."""
        graph = self.graph
        outputs = dict(zip(graph.output_names, graph.outputs, strict=True))
        if said in outputs:
            return said, outputs[said]
        name, _, chosen = said.partition(":")
        if name not in LOSSES:
            known = [*LOSSES, *outputs]
            raise UsageError(f"there is no loss '{said}', nor an output of that name{did_you_mean(said, known)}")
        if not chosen and len(outputs) > 1:
            raise UsageError(
                f"the model has the outputs {', '.join(outputs)}: say which one, as {name}:{next(iter(outputs))}"
            )
        if chosen and chosen not in outputs:
            raise UsageError(f"the model has no output '{chosen}'{did_you_mean(chosen, outputs)}")
        label = chosen or next(iter(outputs))
        value = outputs[label]
        loss = LOSSES[name]
        type_ = graph.tensor_type(value)
        if type_ is None or type_.shape is None or not type_.dtype.is_float:
            raise ModelError(f"output '{label}' is {type_ or 'of unknown type'}: {name} needs floats of a known rank")
        if loss.is_classification:
            if len(type_.shape) < 2:
                raise ModelError(f"output '{label}' is {type_}: {name} needs a batch and an axis of classes")
            type_ = TensorType(DType.INT64, (type_.shape[0], *type_.shape[2:]))
        target = self._add_input(self._free_name(loss.target), type_)
        return self._free_name("loss"), self._build(loss.value, value, {OUTPUT.name: value, TARGET.name: target})

    def _build(self, term: Term, near: Value, bound: Mapping[str, Value]) -> Value:
        return self._build_all([term], near, bound)[0]

    def _build_all(self, terms: Sequence[Term], near: Value, bound: Mapping[str, Value]) -> tuple[Value, ...]:
        try:
            return add_values(self.graph, near, terms, bound)
        except RewriteRefused as refused:
            raise ModelError(f"beside '{self.graph.value_name(near)}': {refused}") from None

    # -- updates -------------------------------------------------------------------------------------------------------

    def _add_updates(self, optimizer: Optimizer, gradients: Mapping[Value, Value]) -> tuple[str, ...]:
        """Add the next values of parameters and of the optimizer's state, and return the names of its settings."""
        graph = self.graph
        shared = {hole.name: self._add_number(hole.name, default) for hole, default in optimizer.settings.items()}
        if optimizer.counts_steps:
            before = self._add_number(STEP.name, 0.0)
            step = self._build(PARAMETER + 1, before, {PARAMETER.name: before})
            self._add_state(before, step)
            shared[STEP.name] = step
        casts: dict[DType, dict[str, Value]] = {DType.FLOAT: shared}
        for parameter, gradient in gradients.items():
            dtype, name = graph.dtype(parameter), graph.value_name(parameter)
            wide = (
                DType.FLOAT if dtype.bits < DType.FLOAT.bits else dtype
            )  # squares and epsilon are 0 in half precision
            if wide not in casts:
                casts[wide] = {key: self._cast(value, wide) for key, value in shared.items()}
            own = {hole: self._add_zeros(f"{name}.{hole.name}", parameter, wide) for hole in optimizer.state}
            bound = {hole.name: value for hole, value in own.items()} | casts[wide]
            bound |= {PARAMETER.name: self._cast(parameter, wide), GRADIENT.name: self._cast(gradient, wide)}
            following, *states = self._build_all([optimizer.parameter, *optimizer.state.values()], gradient, bound)
            self._add_state(parameter, self._cast(following, dtype))
            for before, after in zip(own.values(), states, strict=True):
                self._add_state(before, after)
        return tuple(hole.name for hole in optimizer.settings)

    def _cast(self, value: Value, dtype: DType) -> Value:
        if self.graph.dtype(value) == dtype:
            return value
        return self._build(op.Cast(PARAMETER, to=dtype), value, {PARAMETER.name: value})

    def _add_number(self, name: str, default: float) -> Value:
        data = Tensor.from_array(np.array(default, np.float32))
        return self._add_input(self._free_name(name), TensorType(DType.FLOAT, ()), data)

    def _add_zeros(self, name: str, like: Value, dtype: DType) -> Value:
        data = self.graph[like.vertex].data
        assert data is not None, "a parameter has values"
        sizes = data.shape
        zeros = Tensor(dtype, sizes, lambda: np.zeros(sizes, dtype.numpy))
        return self._add_input(self._free_name(name), TensorType(dtype, sizes), zeros)

    def _add_state(self, before: Value, after: Value) -> None:
        name = self.graph.value_name(before)
        self._add_output(name + NEXT, after)
        self.states[name] = name + NEXT

    def _add_running_statistics(self) -> None:
        """Make the running statistics of operators in training mode inputs, and outputs that follow."""
        graph = self.graph
        for op_name, outputs in RUNNING_STATISTICS.items():
            for vertex in sorted(graph.vertices_with_op(op_name)):
                if graph[vertex].attrs.get("training_mode"):
                    add_outputs(graph, vertex, 1 + max(outputs.values()))
                    for position, output in outputs.items():
                        value = self._own_statistics(vertex, position)
                        if value is not None:
                            self._add_state(value, Value(vertex, output))

    def _own_statistics(self, vertex: int, position: int) -> Value | None:
        """Return running statistics as an input that no other operator reads; None where they are computed."""
        graph, node = self.graph, self.graph[vertex]
        value = node.inputs[position]
        assert value is not None, "running statistics are no optional input"
        source = value
        while graph[source.vertex].op == IDENTITY:
            (source,) = graph[source.vertex].operands
        constant = graph[source.vertex]
        if constant.data is None:
            return None
        if source == value and constant.is_constant and graph.use_count(value) == 1:
            self._make_input(value)
            return value
        type_ = graph.tensor_type(source)
        assert type_ is not None, "a constant has a type"
        own = self._add_input(graph.new_name(f"{graph.value_name(value)}.own"), type_, constant.data)
        inputs = (*node.inputs[:position], own, *node.inputs[position + 1 :])
        graph.apply(replace_node(graph, vertex, replace(node, inputs=inputs)))
        return own

    def _set_outputs(self) -> None:
        graph = self.graph
        graph.output_names = tuple(self.outputs)
        graph.outputs = tuple(self.outputs.values())
        graph.output_types = tuple(graph.value_type(value) for value in graph.outputs)
        graph.names.update(self.outputs)


FIRST_IR_VERSION = 4
"""The first IR version whose initializers need not be inputs: those that are have a default."""


def _shell_with_inputs(shell: ModelProto) -> ModelProto:
    """Return all of a model but its graph, of a version in which inputs may have defaults."""
    made = ModelProto()
    made.CopyFrom(shell)
    made.ir_version = max(made.ir_version, FIRST_IR_VERSION)
    return made
