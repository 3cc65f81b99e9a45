"""`grad`: a model made into one step of its training, simplified and checked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphopt.autodiff.full_rank import give_scalars_full_rank
from graphopt.autodiff.training_graph import training_graph
from graphopt.base.errors import DifferenceError
from graphopt.base.session import current_session
from graphopt.check.compare import compare_models
from graphopt.io import onnx_io
from graphopt.io.torch_export import ExportedWeights, read_exported_weights
from graphopt.language import rule_library
from graphopt.pipeline import optimize
from graphopt.result import Result
from graphopt.search.policy import SearchPolicy
from graphopt.search.recomputation import visit_shallow_outputs_first
from graphopt.search.recomputation_budget import MemoryBudget, fit_by_recomputation

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

    from graphopt.language.rule_library import RuleSource

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class TrainingResult:
    """A model that computes one step of training.

    Each input of `states` is fed with the output of its name there in the step before. All have defaults, the values of
    the model or zeros, so that the first step needs none of them.
    """

    result: Result
    """The model as `optimize` returns it, with the report on its simplification."""
    loss: str
    """Name of the output that is the loss."""
    gradients: Mapping[str, str]
    """The output that is the gradient of the loss, for each parameter."""
    states: Mapping[str, str]
    """The output that is the next value, for each input that is updated (parameters, the optimizer's state)."""
    settings: tuple[str, ...]
    """The inputs that are numbers of the optimizer, such as `learning_rate`; each has a default."""
    memory: str = ""
    """Memory of a step under a memory budget, and the changes that lower it, in one line; empty without a budget."""

    @property
    def model(self) -> onnx.ModelProto:
        return self.result.model

    def save(self, path: str | PathLike[str], *, external: bool | None = None) -> int:
        """Write the model and return its size in bytes, as `Result.save` does."""
        return self.result.save(path, external=external)

    def to_json(self) -> dict[str, object]:
        """Return the names of inputs and outputs as plain data."""
        return {
            "loss": self.loss,
            "gradients": dict(self.gradients),
            "states": dict(self.states),
            "settings": list(self.settings),
            "memory": self.memory,
        }

    def initial_state(self) -> dict[str, NDArray[Any]]:
        """Return the values with which training begins, for each input of `states`."""
        graph = self.result.loaded.graph
        nodes = (graph[vertex] for vertex in graph.inputs)
        return {node.names[0]: node.data.numpy() for node in nodes if node.names[0] in self.states and node.data}


def grad(
    model: onnx_io.ModelSource,
    loss: str,
    wrt: Sequence[str] | None = None,
    update: str = "sgd",
    *,
    check: bool = True,
    rules: Sequence[RuleSource] = (),
    memory_budget: int | str | MemoryBudget | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> TrainingResult:
    """Return a model that computes a loss, its gradients, and the next values of the parameters.

    The result has standard operators alone. It is simplified by the proved rules, as `optimize` does it, and compared
    with what it was before.

    Args:
        model: a path, `onnx.ModelProto`, `onnx_ir.Model` or what `torch.onnx.export` returns; of opset 13 or newer.
        loss: `softmax_cross_entropy` or `mse`, of an output after a colon if there are several; or an output that is
            the loss.
        wrt: names or patterns (`encoder.*`) of weights and inputs; by default all initializers of floating-point
            numbers that have axes, and on which the loss depends, but for what PyTorch's exporter calls buffers.
        update: `sgd`, `momentum`, `adamw`, or `none` for the gradients alone.
        check: run both models on the same inputs.
        rules: files of rules, of which those that define operators count here.
        memory_budget: the most memory that a step may take, as `120MB`, with `MemoryBudget` for certain sizes; values
            are computed again where that saves as much as is needed.
        progress: called with the stage and the share of it that is done.

    Raises:
        ModelError: the model is not legal, its opset is too old, or an operator between parameters and the loss has no
            gradient: the message names it.
        UsageError: a loss, weight or update of that name is not known, or a memory budget needs a package.
        DifferenceError: the check found a difference.
        MemoryBudgetError: the memory budget cannot be kept.
    """
    budget = MemoryBudget(memory_budget) if isinstance(memory_budget, int | str) else memory_budget
    with current_session().child():
        rule_library.read_rules(rules)
        loaded = onnx_io.load_typed_model(model)
        weights = _exported_weights(model)
        with onnx_io.naming_file_in_errors(loaded.path):
            made = training_graph(loaded, loss, wrt, update, weights.trainable)
        proto = onnx_io.to_proto(made.loaded)
        onnx_io.load_external_data(proto, loaded.folders)
        result = optimize(proto, cost="none", check=check, rules=rules, progress=progress)
        if wrt is None and weights.note:
            log.warning("%s", weights.note)
            result = replace(result, report=replace(result.report, notes=(*result.report.notes, weights.note)))
        result, memory = _finish(result, budget, check=check, progress=progress)
        return TrainingResult(result, made.loss, made.gradients, made.states, made.settings, memory)


def _finish(
    result: Result,
    budget: MemoryBudget | None,
    *,
    check: bool,
    progress: Callable[[str, float], None] | None,
) -> tuple[Result, str]:
    """Return a simplified step in the form in which ONNX Runtime runs it fastest, or within a memory budget, and what
    it takes.

    Raises:
        DifferenceError: the check found that it computes something else.
        MemoryBudgetError: the budget cannot be kept.
    """
    loaded, report, memory = replace(result.loaded, graph=result.loaded.graph.copy()), result.report, ""
    is_changed = give_scalars_full_rank(loaded.graph)
    visit_shallow_outputs_first(loaded.graph)
    if budget is not None:
        if progress is not None:
            progress("memory", 0.0)
        fitted = fit_by_recomputation(loaded, budget, SearchPolicy())
        loaded, memory, is_changed = fitted.loaded, fitted.note, is_changed or fitted.copies > 0
        report = replace(report, notes=(*report.notes, memory))
    if check and is_changed:
        dims = {} if budget is None else budget.dims or {}
        found = compare_models(result.loaded, loaded, seeds=(0,), bindings=(dims,))
        if not found.ok:
            raise DifferenceError(f"the form for ONNX Runtime changes the result: {found}; nothing was written")
    return replace(result, loaded=loaded, report=report), memory


def _exported_weights(model: onnx_io.ModelSource) -> ExportedWeights:
    """Return which initializers of a model are weights: constants that its nodes hold are no parameters."""
    is_file = isinstance(model, str | PathLike)
    proto = onnx_io.parse_file(Path(model), weights=False) if is_file else onnx_io.to_model_proto(model)[0]
    return read_exported_weights(proto)
