"""Pages: of a report and its two models, and of what other commands found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphopt.base import files
from graphopt.base.errors import ModelError, UsageError
from graphopt.cli.option_flags import Debug, PageOptions, takes_options
from graphopt.cli.output_files import write_view
from graphopt.cli.terminal import print_text, set_up_logging

if TYPE_CHECKING:
    from graphopt.language.proof import Proof
    from graphopt.language.rule import Rule
    from graphopt.report.model_pages import ModelPair


def check_page(page: Path | None, *sources: str, name: str = "the page") -> None:
    """Fail before the work where a page, or what else is `name`d, cannot be written, or would overwrite what it is made
    of."""
    if page is not None:
        files.check_writable(page, is_plain=False)
        for source in sources:
            if not files.is_stdout(page) and files.is_same_file(page, Path(source)):
                raise UsageError(f"{page} is what {name} is made of: {name} needs another name")


def model_pair(before: str, after: str) -> ModelPair:
    """Return two models for a page."""
    from graphopt.io import onnx_io
    from graphopt.report.model_pages import ModelPair

    return ModelPair.from_models(*(onnx_io.load_model(model) for model in (before, after)))


@takes_options
def report(
    report: Annotated[str, typer.Argument(metavar="REPORT", help="What --report wrote.", show_default=False)],
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model as it was.", show_default=False)],
    result: Annotated[str, typer.Argument(metavar="RESULT", help="What became of it.", show_default=False)],
    *,
    page: PageOptions,
    messages: Debug,
) -> None:
    """Draw a report and its two models as a page, by default beside the report.

    Nothing is run: what `optimize --report` wrote and the two models say all.
    """
    set_up_logging(verbose=False, debug=messages.debug)
    target = page.html or Path(report).with_suffix(".html")
    check_page(target, report, model, result)
    for path in (report, model, result):
        files.check_readable(Path(path))
    from graphopt.report.page import report_page
    from graphopt.report.report import load_report

    found = load_report(report)
    pair = model_pair(model, result)
    if problem := pair.mismatch(found):
        raise ModelError(problem)
    write_view(target, report_page(found, pair.before, pair.after))
    if not files.is_stdout(target):
        print_text(str(target))


def write_rule_page(path: Path, rule: Rule, proof: Proof | None) -> None:
    """Write the page of a rule."""
    from graphopt.report.page import rule_page

    files.check_writable(path, is_plain=False)
    write_view(path, rule_page(rule, proof))
