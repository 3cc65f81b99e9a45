"""The command that cuts a model into stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphopt.base import files
from graphopt.base import option_values as forms
from graphopt.base.errors import UsageError
from graphopt.base.option_fields import option
from graphopt.cli import output_files
from graphopt.cli.option_flags import MeasuringOptions, Model, Printing, ResultOptions, running, takes_options
from graphopt.cli.terminal import Progress, print_json, print_text, set_up_logging

if TYPE_CHECKING:
    from graphopt.partition.manifest import PipelineManifest
    from graphopt.partition.partitioning import ModelPartition, PartitionRequest


@dataclass(frozen=True, kw_only=True)
class PartitionOptions(MeasuringOptions):
    """Options for cutting a model into stages."""

    stages: int | None = option(None, "Number of stages.", metavar="N", type=int, minimum=1, maximum=256)
    devices: Path | None = option(
        None, "Devices, one for each stage in their order, and the link between them.", metavar="FILE.toml", type=Path
    )
    tensor_parallel: int = option(
        1,
        "Number of devices that share each stage: its operators are split among them by rules that are proved.",
        metavar="M",
        minimum=1,
        maximum=8,
    )
    max_transfer: str | None = option(None, "Most bytes that go from one stage to the next.", metavar="SIZE", type=str)
    annotate: Path | None = option(
        None,
        "Write one model whose nodes name their stage, for ONNX Runtime to assign, in the place of OUT.",
        metavar="FILE.onnx",
        type=Path,
    )
    dims: Mapping[str, Sequence[int]] | None = option(
        None,
        "Size of an open dim at which stages are timed. By default a usual one.",
        metavar="seq=128",
        flags=("--dim",),
        form=forms.SIZES,
    )
    seconds: float = option(30.0, "About how long the timings may take together.", metavar="SECONDS", minimum=0.0)
    check: bool = option(True, "Run the stages and the model, and compare every bit.", flags=("--check/--no-check",))

    def request(self) -> PartitionRequest:
        """Return what is asked for. Raises UsageError."""
        from graphopt.partition.devices import read_devices
        from graphopt.partition.partitioning import PartitionRequest

        return PartitionRequest(
            stages=self.stages,
            cluster=None if self.devices is None else read_devices(self.devices),
            tensor_parallel=self.tensor_parallel,
            max_transfer=None if self.max_transfer is None else forms.parse_bytes(self.max_transfer),
            setting=self.setting,
            seconds=self.seconds,
            dims=self.dims,
            inputs=self.inputs,
            seed=self.seed,
        )


@takes_options
def partition(
    model: Model,
    output: Annotated[
        str | None,
        typer.Argument(metavar="OUT", help="New folder for the stages and pipeline.json.", show_default=False),
    ] = None,
    *,
    options: PartitionOptions,
    printing: Printing,
) -> None:
    """Cut a model into stages that take the same time, for devices that work one after the other.

    Each stage is a model of its own; graphopt.Pipeline(OUT) runs them. The stages are timed with all optimizations of
    ONNX Runtime, and the cuts moved until the largest stage takes hardly more than the mean; of cuts that are as even
    those are chosen across which the fewest bytes go. To have the stages optimized, optimize the model first. With
    --tensor-parallel several devices share each stage; its models are simplified then.
    """
    set_up_logging(printing.verbose, printing.debug)
    files.check_readable(Path(model))
    if (output is None) == (options.annotate is None):
        raise UsageError("name a folder for the stages, or with --annotate one file: one of the two")
    request = options.request()
    if output is not None:
        if files.is_stdout(Path(output)):
            raise UsageError("stages are not written to stdout: name a folder")
        files.check_new_folder(Path(output))
    elif options.annotate is not None:
        if files.is_stdout(options.annotate):
            raise UsageError("an annotated model is not written to stdout: name a file")
        if options.tensor_parallel > 1:
            raise UsageError("annotations name one device for each node: they go without --tensor-parallel")
        output_files.check_outputs(Path(model), options.annotate, ResultOptions(), as_json=printing.as_json)
    from graphopt.partition import partitioning, pipeline_folder

    with Progress(enabled=not printing.quiet) as progress, running(options):
        found = partitioning.find_partition(model, request, progress=progress)
        progress("save", 0.0)
        if options.annotate is None:
            made, told = pipeline_folder.write_partition(found, Path(output or ""), check=options.check), ""
        else:
            made = pipeline_folder.describe_partition(found)
            told = _annotate(found, options.annotate, made)
    if printing.as_json:
        print_json(made.to_json())
    elif not printing.quiet:
        print_text(f"{made}\n\n{told}" if told else str(made))


def _annotate(found: ModelPartition, path: Path, made: PipelineManifest) -> str:
    """Write the annotated model, and return the option that goes with it, and whether that was checked."""
    from graphopt.io import onnx_io
    from graphopt.partition import annotation

    providers = [stage.provider for stage in made.stages]
    setting = annotation.assignment_setting(providers)
    onnx_io.save_model(annotation.annotate(found), path)
    doubt = annotation.check_annotations(path, providers)
    return f'options.add_session_config_entry("{annotation.OPTION}", "{setting}")\n{doubt or annotation.CHECKED}'
