"""The command that makes a training step of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphopt.base import files, ort
from graphopt.base import option_values as forms
from graphopt.base.option_fields import option
from graphopt.cli import output_files
from graphopt.cli.option_flags import Model, Printing, ResultOptions, RuleFiles, takes_options
from graphopt.cli.terminal import Progress, console, print_as_json, set_up_logging

if TYPE_CHECKING:
    from graphopt.training import TrainingResult

UPDATES = ("sgd", "momentum", "adamw", "none")


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(RuleFiles):
    """Options for what is trained, and how."""

    wrt: Sequence[str] | None = option(
        None,
        "Weights and inputs to differentiate by; by default all weights. Patterns as encoder.* may be given.",
        metavar="NAME,...",
        form=forms.TENSORS,
    )
    update: str = option("sgd", "How parameters are updated.", metavar="KIND", choices=UPDATES)
    memory_budget: str | None = option(
        None,
        "Most memory that a step may take, weights included; exit code 4 where that cannot be kept.",
        more="Values are computed again instead of being kept. Needs the package highspy.",
        metavar="SIZE",
        type=str,
    )
    dims: Mapping[str, int] | None = option(
        None,
        "Size of an open dim for which the memory budget is to be kept. By default a usual one.",
        metavar="batch=8",
        flags=("--dim",),
        form=forms.DIMS,
    )
    threads: int = option(
        0, "Threads of ONNX Runtime for which the memory budget is kept; 0: one a core.", metavar="N", minimum=0
    )
    check: bool = option(True, "Compare the simplified model with what it was made of.", flags=("--check/--no-check",))


@takes_options
def grad(
    model: Model,
    output: Annotated[
        str, typer.Argument(metavar="OUTPUT", help="Where the result goes; - is stdout.", show_default=False)
    ],
    *,
    loss: Annotated[
        str,
        typer.Option(
            metavar="LOSS",
            help="softmax_cross_entropy or mse (of an output as mse:NAME), or an output that is the loss.",
            show_default=False,
        ),
    ],
    options: TrainingOptions,
    printing: Printing,
) -> None:
    """Make one step of training of a model: the loss, its gradients, and the next values of the parameters.

    The result is a model of standard operators that takes parameters as inputs and gives them as outputs: NAME.gradient
    is the gradient of NAME, and NAME.next what NAME is in the next step. It is simplified and checked.
    """
    set_up_logging(printing.verbose, printing.debug)
    files.check_readable(Path(model))
    target = Path(output)
    output_files.check_outputs(Path(model), target, ResultOptions(), as_json=printing.as_json)
    if options.check or options.memory_budget is not None:
        ort.require_onnxruntime()
    from graphopt import training
    from graphopt.search.recomputation_budget import MemoryBudget

    budget = None
    if options.memory_budget is not None:
        budget = MemoryBudget(options.memory_budget, options.dims, options.threads)
    with Progress(enabled=not printing.quiet) as progress:
        made = training.grad(
            model,
            loss,
            options.wrt,
            options.update,
            check=options.check,
            rules=options.rules,
            memory_budget=budget,
            progress=progress,
        )
        progress("save", 0.0)
        output_files.save_result(made.result, target, None)
    with output_files.report_model_written_on_failure():
        if printing.as_json:
            print_as_json(made.to_json())
        elif not printing.quiet:
            console(stderr=files.is_stdout(target)).print(_summary(made), soft_wrap=True)


def _summary(made: TrainingResult) -> str:
    """Return what was made, in a few lines."""
    report = made.result.report
    lines = [f"loss: {made.loss}", f"gradients: {len(made.gradients)}, of X in X.gradient"]
    if made.states:
        lines += [f"updated inputs: {len(made.states)}, X by X.next", f"settings: {', '.join(made.settings)}"]
    lines += [f"nodes: {report.after.nodes}, {report.before.nodes} before they were simplified", made.memory]
    return "\n".join(filter(None, lines))
