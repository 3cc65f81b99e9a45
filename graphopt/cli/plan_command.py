"""The command that plans how a model runs on several devices."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from graphopt.base import files
from graphopt.base.option_fields import option
from graphopt.cli.option_flags import MeasuringOptions, Model, Printing, running, takes_options
from graphopt.cli.terminal import Progress, print_as_json, print_text, set_up_logging
from graphopt.partition.schedule import DEFAULT_MICRO_BATCHES


@dataclass(frozen=True, kw_only=True)
class PlanOptions(MeasuringOptions):
    """Options for plans."""

    micro_batches: int = option(
        DEFAULT_MICRO_BATCHES,
        "Runs that follow each other, or of which one step of training consists, in each copy.",
        metavar="N",
        minimum=1,
        maximum=4096,
    )
    cost: str = option(
        "measured",
        "measured: here, under the profiler; analytic: an estimate, nothing is run.",
        metavar="KIND",
        choices=("measured", "analytic"),
    )


@takes_options
def plan(
    model: Model,
    *,
    devices: Annotated[
        Path, typer.Option(metavar="FILE.toml", help="The devices and the link between them.", show_default=False)
    ],
    options: PlanOptions,
    printing: Printing,
) -> None:
    """Compare data, tensor and pipeline parallelism for a model on described devices, alone and together.

    Each plan has its throughput, latency, memory on a device, and what binds it. The number of devices is split into
    copies, shards and stages in all ways. A model that `graphopt grad` made is planned as training, with the stages of
    ZeRO. Exit code 4 where it fits into no plan.
    """
    set_up_logging(printing.verbose, printing.debug)
    files.check_readable(Path(model))
    from graphopt.partition.devices import read_devices
    from graphopt.partition.plan_report import PlanRequest
    from graphopt.partition.planning import find_plan

    cluster = read_devices(devices)
    with Progress(enabled=not printing.quiet) as progress, running(options):
        request = PlanRequest(
            cluster=cluster,
            micro_batches=options.micro_batches,
            is_measured=options.cost == "measured",
            setting=options.setting,
            dims=options.dims,
            inputs=options.inputs,
            seed=options.seed,
        )
        found = find_plan(model, request, progress=progress)
    if printing.as_json:
        print_as_json(found.to_json())
    elif not printing.quiet:
        print_text(str(found))
