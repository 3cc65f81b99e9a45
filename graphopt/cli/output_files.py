"""Files that a run writes: checked before the work, and mentioned in an error that comes after they were written."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from graphopt.base import files
from graphopt.base.errors import OutputError, UsageError
from graphopt.io import weight_files

if TYPE_CHECKING:
    from graphopt.report.report import Report
    from graphopt.result import Result


def check_outputs(model: Path, target: Path, report: Path | None, external: bool | None, *, as_json: bool) -> None:
    """Fail before the work where something cannot be written, or would overwrite a file that the run reads or writes.

    Raises:
        OutputError, UsageError: says why.
    """
    files.check_writable(target)
    if report is not None:
        files.check_writable(report, is_plain=False)
    _check_overwrites(model, target, report)
    if not files.is_stdout(target):
        if external or (external is None and _is_too_large(model)):
            weight_files.check_weight_path(target)
        return
    if sys.stdout.isatty():
        raise UsageError("a model is nothing for a terminal: name a file, or pipe stdout somewhere")
    if as_json or (report is not None and files.is_stdout(report)):
        raise UsageError("stdout is for the model: --report FILE writes the report to a file")
    if external:
        raise UsageError("--external-data needs a model in a file: on stdout its weights are in it")


def _is_too_large(model: Path) -> bool:
    """Return whether the weights of a model, as they are, would not go into one file with it."""
    from graphopt.io import onnx_io

    return (
        sum(file.stat().st_size for file in {model, *onnx_io.data_files(model)} if file.exists())
        > onnx_io.MAX_INLINE_WEIGHT_BYTES
    )


def _check_overwrites(model: Path, target: Path, report: Path | None) -> None:
    """Raise UsageError where an output would take the place of another file of the run."""
    from graphopt.io import onnx_io

    weights = onnx_io.data_files(model)
    if not files.is_stdout(target) and any(files.is_same_file(target, file) for file in weights):
        raise UsageError(f"{target} holds weights of {model}: the result needs another name")
    if report is None or files.is_stdout(report):
        return
    taken = {model: "the model"} | dict.fromkeys(weights, f"a file of weights of {model}")
    if not files.is_stdout(target):
        taken |= {target: "the output"} | dict.fromkeys(onnx_io.data_files(target), f"a file of weights of {target}")
        if weight_files.is_weight_path(report, target):
            taken[report] = f"where weights of {target} go"
    for file, role in taken.items():
        if files.is_same_file(report, file):
            raise UsageError(f"{report} is {role}: the report needs another name")


def save_result(result: Result, target: Path, external: bool | None) -> Report:
    """Write the result, and return its report."""
    if not files.is_stdout(target):
        report = result.report.with_file_sizes(result.save(target, external=external))
        return replace(report, session_code=result.session_code(target)) if report.session_code else report
    from graphopt.io import onnx_io

    onnx_io.write_model(result.loaded, sys.stdout.buffer)
    sys.stdout.buffer.flush()
    return result.report


def write_report(report: Report, path: Path | None) -> None:
    """Write a report where one is wanted."""
    if path is not None:
        with files.naming_write_errors(path):
            files.write_text(path, report.to_json() + "\n")


@contextmanager
def report_model_written_on_failure() -> Iterator[None]:
    """Make failures after the model was saved say that it was; not where the reader of the table has gone."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OutputError as error:
        raise OutputError(f"{error}; the model was written") from error
    except OSError as error:
        raise OutputError(f"stdout cannot be written: {error.strerror or error}; the model was written") from error
