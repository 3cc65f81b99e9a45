"""Files that a run writes: checked before the work, and mentioned in an error that comes after they were written."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from graphopt.base import files
from graphopt.base.errors import ModelError, OutputError, UsageError
from graphopt.io import weight_files

if TYPE_CHECKING:
    from graphopt.cli.option_flags import ResultOptions
    from graphopt.options import Options
    from graphopt.result import Result

log = logging.getLogger(__name__)


def check_outputs(model: Path, target: Path, wanted: ResultOptions, *, as_json: bool) -> None:
    """Fail before the work where something cannot be written, or would overwrite a file that the run reads or writes.

    Raises:
        OutputError, UsageError: says why.
    """
    files.check_writable(target)
    views = _views(wanted)
    for path, _ in views:
        files.check_writable(path, is_plain=False)
    if wanted.save_recipe is not None and files.is_stdout(wanted.save_recipe):
        raise UsageError("a recipe is written to a file: name one")
    taken = _files_of_models(model, target)
    for path, name in views:
        _check_overwrites(path, name, target, taken)
        taken |= {path: f"where {name} goes"}
    external = wanted.external_data
    if not files.is_stdout(target):
        if external or (external is None and _is_too_large(model)):
            weight_files.check_weight_path(target)
        return
    if sys.stdout.isatty():
        raise UsageError("a model is nothing for a terminal: name a file, or pipe stdout somewhere")
    if as_json or any(files.is_stdout(path) for path, _ in views):
        raise UsageError("stdout is for the model: --report FILE writes the report to a file")
    if external:
        raise UsageError("--external-data needs a model in a file: on stdout its weights are in it")


def _views(wanted: ResultOptions) -> list[tuple[Path, str]]:
    """Return the files that say what was done, and what each is."""
    named = {
        "the report": wanted.report,
        "the page": wanted.html,
        "the pair of graphs": wanted.model_explorer,
        "the recipe": wanted.save_recipe,
    }
    return [(path, name) for name, path in named.items() if path is not None]


def _is_too_large(model: Path) -> bool:
    """Return whether the weights of a model, as they are, would not go into one file with it."""
    from graphopt.io import onnx_io

    return (
        sum(file.stat().st_size for file in {model, *onnx_io.data_files(model)} if file.exists())
        > onnx_io.MAX_INLINE_WEIGHT_BYTES
    )


def _files_of_models(model: Path, target: Path) -> dict[Path, str]:
    """Return the files of the model and of the result, and what each is.

    Raises:
        UsageError: the result would take the place of weights of the model.
    """
    from graphopt.io import onnx_io

    weights = onnx_io.data_files(model)
    taken = {model: "the model"} | dict.fromkeys(weights, f"a file of weights of {model}")
    if files.is_stdout(target):
        return taken
    if any(files.is_same_file(target, file) for file in weights):
        raise UsageError(f"{target} holds weights of {model}: the result needs another name")
    return taken | {target: "the output"} | dict.fromkeys(onnx_io.data_files(target), f"a file of weights of {target}")


def _check_overwrites(view: Path, name: str, target: Path, taken: Mapping[Path, str]) -> None:
    """Raise UsageError where a view would take the place of another file of the run."""
    if files.is_stdout(view):
        return
    if not files.is_stdout(target) and weight_files.is_weight_path(view, target):
        raise UsageError(f"{view} is where weights of {target} go: {name} needs another name")
    for file, role in taken.items():
        if files.is_same_file(view, file):
            raise UsageError(f"{view} is {role}: {name} needs another name")


def save_result(result: Result, target: Path, external: bool | None) -> Result:
    """Write the result, and return it with the size of its file in the report."""
    if not files.is_stdout(target):
        report = result.report.with_file_sizes(result.save(target, external=external))
        code = result.session_code(target) if report.session_code else ""
        return replace(result, report=replace(report, session_code=code))
    from graphopt.io import onnx_io

    onnx_io.write_model(result.loaded, sys.stdout.buffer)
    sys.stdout.buffer.flush()
    return result


def with_profile(result: Result, model: str, options: Options, progress: Callable[[str, float], None]) -> Result:
    """Return a result with profiles in its report, where the run timed anything.

    A model that cannot be profiled is a warning: its page counts operators.
    """
    from graphopt.result_profile import profile_result

    progress("profile", 0.0)
    try:
        return replace(result, report=profile_result(model, result, options))
    except (ModelError, UsageError) as error:
        log.warning("operators are counted, not timed: %s", error)
        return result


def write_views(result: Result, wanted: ResultOptions) -> None:
    """Write the files that say what was done."""
    if wanted.report is not None:
        write_view(wanted.report, f"{result.report.to_json()}\n")
    if wanted.html is not None:
        write_view(wanted.html, result.to_html())
    if wanted.model_explorer is not None:
        write_view(wanted.model_explorer, result.to_model_explorer())
    if wanted.save_recipe is not None:
        write_view(wanted.save_recipe, f"{result.recipe.to_json()}\n")


def write_view(path: Path, text: str) -> None:
    """Write a text that says what was done."""
    with files.naming_write_errors(path):
        files.write_text(path, text)


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
