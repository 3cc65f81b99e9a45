"""Folders of models, as exporters make them and libraries load them: every model in one is optimized."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from graphopt.base import files
from graphopt.base.errors import (
    GraphoptError,
    ModelError,
    OutputError,
    ProofError,
    RuleError,
    UsageError,
    did_you_mean,
)
from graphopt.base.session import current_session
from graphopt.io import onnx_io
from graphopt.language import rule_library
from graphopt.options import Options
from graphopt.pipeline import optimize
from graphopt.report.report import Report, format_file_size, format_ratio, versions
from graphopt.result import Result
from graphopt.rewrite.passes import PASSES
from graphopt.runtime import model_sketch, sample_inputs
from graphopt.runtime.bench import format_table
from graphopt.runtime.input_sizes import format_sizes

log = logging.getLogger(__name__)

SUFFIX = "_graphopt"
"""Suffix of the name of a result that stands beside its model."""
METADATA_KEY = "graphopt"
"""Metadata of every model that is written here: the version of graphopt that wrote it."""

# -- what came of it ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelOutcome:
    """Outcome for one model of a folder."""

    model: str
    """Path of the model below the folder, with `/`."""
    written: str = ""
    """Path of what was written for it, below the folder or the output; empty where nothing was."""
    report: Report | None = None
    """Report on the run; None where it failed or was not made."""
    skipped: str = ""
    """Reason why it was not optimized."""
    error: str = ""
    """Failure, in one line; empty where there was none."""
    exit_code: int = 0
    """Exit code that the command line would give it alone."""

    @property
    def verdict(self) -> str:
        """`gain`, `no gain`, `not timed`, `skipped` or `failed`."""
        if self.error or self.skipped:
            return "failed" if self.error else "skipped"
        timing = None if self.report is None else self.report.timing
        if timing is None or (timing.speedup is None and timing.untimed and not timing.untimed.startswith("no gain")):
            return "not timed"
        return "gain" if timing.is_gain else "no gain"

    def row(self) -> tuple[str, ...]:
        """Return the cells of its line: model, nodes, size, speed, check, verdict with its reason."""
        report = self.report
        untimed = report.timing.untimed if report is not None and report.timing is not None else ""
        reason = self.error or self.skipped or re.sub("^(not timed|no gain)(: )?", "", untimed)
        verdict = f"{self.verdict}: {reason}" if reason else self.verdict
        if report is None:
            return self.model, "", "", "", "", verdict
        before, after = report.before, report.after
        return (
            self.model,
            _format_change(str(before.nodes), str(after.nodes)),
            _format_change(format_file_size(before.file_bytes), format_file_size(after.file_bytes)),
            format_ratio(report.timing.speedup) if report.timing is not None else "",
            "not made" if report.comparison is None else str(report.comparison.verdict),
            verdict,
        )

    @property
    def timed_sizes(self) -> list[str]:
        """The sizes of open dims at which it was timed, each as `batch_size=1, sequence_length=128`."""
        timing = None if self.report is None else self.report.timing
        return [format_sizes(latency.sizes) for latency in timing.latencies if latency.sizes] if timing else []

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data; the report is as `Report.to_json` has it."""
        report = None if self.report is None else json.loads(self.report.to_json())
        plain = {name: getattr(self, name) for name in ("model", "written", "skipped", "error", "exit_code")}
        return {**plain, "verdict": self.verdict, "report": report}


def _format_change(before: str, after: str) -> str:
    return f"{before} → {after}" if before and after else before or after


@dataclass(frozen=True, slots=True)
class FolderResult:
    """Outcomes for the models of a folder."""

    folder: str
    output: str
    """The folder that was written; empty where the results stand beside their models."""
    models: tuple[ModelOutcome, ...]
    seconds: float
    """Seconds that all of it took."""
    is_interrupted: bool = False
    """True where Ctrl-C ended it: models that it had not come to are skipped."""

    @property
    def ok(self) -> bool:
        """True where no model failed, and nobody interrupted it."""
        return self.exit_code == 0

    @property
    def exit_code(self) -> int:
        """Exit code for all models together: 3 before 1, 2 and 4; 130 where it was interrupted."""
        found = {each.exit_code for each in self.models}
        return 130 if self.is_interrupted else next((code for code in (3, 1, 2, 4) if code in found), 0)

    def to_json(self) -> str:
        """Return JSON: the models in order, each with its report."""
        data = {
            "folder": self.folder,
            "output": self.output,
            "models": [each.to_json() for each in self.models],
            "seconds": self.seconds,
            "exit_code": self.exit_code,
            "versions": versions(),
        }
        return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)

    def __str__(self) -> str:
        """Return the table: a line for each model, and where the results are."""
        head = ("model", "nodes", "size", "speed", "check", "verdict")
        table = format_table([head, *(each.row() for each in self.models)], left=(0, 4, 5))
        sizes = [f"{each.model} at {'; '.join(found)}" for each in self.models if (found := each.timed_sizes)]
        count = sum(bool(each.written) for each in self.models)
        where = f"in {self.output}" if self.output else f"beside {'it' if count == 1 else 'them'}, as NAME{SUFFIX}.onnx"
        done = f"{count} {'model' if count == 1 else 'models'} optimized, {where}" if count else "no model was written"
        verdicts = [each.verdict for each in self.models]
        others = [f"; {verdicts.count(left)} {left}" for left in ("skipped", "failed") if left in verdicts]
        timed = ["", "timed:", *sizes] if sizes else []
        return "\n".join([table, *timed, "", "".join([done, *others, "; interrupted" * self.is_interrupted])])


# -- the models of a folder --------------------------------------------------------------------------------------------


def find_models(folder: Path) -> list[Path]:
    """Return the paths of the `.onnx` files below a folder, relative to it, in order.

    Links are followed, as in caches of the Hugging Face hub; hidden files and folders are left out.
    """
    return [path for path in _iter_files(folder) if path.suffix == ".onnx" and not path.name.startswith(".")]


def _iter_files(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, relative to it and in order; each folder once, however many links lead to it."""
    seen = set[str]()
    for parent, folders, names in os.walk(folder, followlinks=True):
        seen.add(os.path.realpath(parent))
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and os.path.realpath(os.path.join(parent, name)) not in seen
        )
        yield from (Path(parent, name).relative_to(folder) for name in sorted(names))


def _why_skipped(path: Path) -> str:
    """Say why a model is not optimized: it was before; nothing for the others, broken ones among them."""
    if path.stem.endswith(SUFFIX):
        return "written by graphopt, by its name"
    try:
        found = onnx_io.file_metadata(path).get(METADATA_KEY)
    except ModelError:  # which the run will say
        return ""
    return "" if found is None else f"written by graphopt {found}"


# -- optimize ----------------------------------------------------------------------------------------------------------


def optimize_folder(
    folder: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    total_seconds: float | None = None,
    require_speedup: float | None = None,
    external_data: bool | None = None,
    **options: Any,
) -> FolderResult:
    """Optimize every model in a folder; configurations, tokenizers and the models themselves stay as they are.

    What goes wrong with one model does not keep the others from being optimized: it is in the result. A model that was
    written here before is skipped.

    Args:
        folder: the folder, as optimum, sentence-transformers or transformers.js lay one out, or any other.
        output: a new folder, which becomes a copy with the optimized models in the places of the others; a model that
            fails is copied. By default `model_graphopt.onnx` is written beside each `model.onnx`.
        total_seconds: about how long all models may take; `seconds` is for each.
        require_speedup: a model that is not this many times as fast is not written, and fails with exit code 4.
        external_data: weights go to files of their own; by default where those of the model are.
        options: those of `optimize`. Sizes, shapes and inputs are for the models that have such dims and inputs.

    Raises:
        UsageError: there is no such folder or no model in it, an option cannot be, or the output is no place for it.
        ModelError: a file that goes into the new folder cannot be read.
        OutputError: nothing can be written there.
        KeyboardInterrupt: Ctrl-C before there was anything to put into the new folder.
    """
    source, start = Path(folder), time.monotonic()
    wanted = Options(**options)
    if wanted.recipe is not None:
        raise UsageError("a recipe is of one model, not of a folder")
    if total_seconds is not None and not total_seconds > 0:
        raise UsageError(f"total_seconds cannot be {total_seconds:g}: it is more than 0")
    if not source.is_dir():
        raise UsageError(f"{source} is no folder" if source.exists() else f"{source} does not exist")
    models = find_models(source)
    if not models:
        raise UsageError(f"there is no .onnx file in {source}")
    _check_choice(wanted)
    chosen = _choose_options(source, models, wanted)
    weights = {model: _weights_of(source, model) for model in models}
    if output is None:
        for model in models:
            _check_place(source / _name_beside(model))
        run = _FolderRun(source, source, weights, require_speedup, external_data)
        outcomes = run.optimize_all(chosen, total_seconds)
    else:
        _check_copied(source)
        with _new_folder(source, Path(output)) as target:
            run = _FolderRun(source, target, weights, require_speedup, external_data)
            outcomes = run.optimize_all(chosen, total_seconds)
            if run.is_interrupted and not any(each.written for each in outcomes):
                raise KeyboardInterrupt
            _copy_others(source, target, outcomes, weights)
    where = "" if output is None else os.fspath(output)
    return FolderResult(str(source), where, outcomes, time.monotonic() - start, run.is_interrupted)


def _name_beside(model: Path) -> Path:
    return model.with_name(f"{model.stem}{SUFFIX}.onnx")


def _check_place(path: Path) -> None:
    """Raise OutputError where a model cannot be written beside another, or only through a link."""
    advice = "; --output FOLDER (output=) writes to another folder"
    if path.is_symlink():
        raise OutputError(f"{path} cannot be written: it is a link, whose target is not ours to change{advice}")
    try:
        files.check_writable(path)
    except OutputError as error:
        raise OutputError(f"{error}{advice}") from error


@dataclass
class _FolderRun:
    """A run over the models of a folder, one after the other."""

    source: Path
    target: Path
    """The folder that is written; the source itself where results stand beside their models."""
    weights: Mapping[Path, frozenset[Path]]
    """The files of external data of each model, relative to the source."""
    require_speedup: float | None
    external_data: bool | None
    is_interrupted: bool = False

    def optimize_all(self, chosen: Mapping[Path, Options], total_seconds: float | None) -> tuple[ModelOutcome, ...]:
        """Optimize models, each with its options and with an equal share of the time that is left."""
        deadline = None if total_seconds is None else time.monotonic() + total_seconds
        found: list[ModelOutcome] = []
        for number, (model, options) in enumerate(chosen.items()):
            if deadline is not None:
                options = _in_share(options, (deadline - time.monotonic()) / (len(chosen) - number))
            why = "interrupted before it" if self.is_interrupted else _why_skipped(self.source / model)
            found.append(ModelOutcome(model.as_posix(), skipped=why) if why else self._optimize_one(model, options))
        return tuple(found)

    def _optimize_one(self, model: Path, options: Options) -> ModelOutcome:
        """Optimize a model and write it; whatever goes wrong is in the outcome."""
        path, label = self.source / model, model.as_posix()
        place = _name_beside(model) if self.target == self.source else model

        def progress(stage: str, done: float) -> None:
            options.report_progress(f"{label}: {stage}", done)

        try:
            result = optimize(str(path), **vars(replace(options, progress=progress)))
            if self.require_speedup is not None:
                result.report.require_speedup(self.require_speedup)
            report = self._save(result, model, self.target / place)
        except KeyboardInterrupt:
            self.is_interrupted = True
            return ModelOutcome(label, skipped="interrupted")
        except (ProofError, RuleError):  # which are of the rules that were given, not of this model
            raise
        except GraphoptError as error:
            return ModelOutcome(label, error=_first_line(error, path), exit_code=error.exit_code)
        except Exception as error:  # a defect of ours with one model is none of the others'
            log.debug("%s", path, exc_info=True)
            return ModelOutcome(label, error=f"internal error: {type(error).__name__}: {error}", exit_code=1)
        self.is_interrupted = report.timing is not None and report.timing.is_interrupted
        return ModelOutcome(label, place.as_posix(), report)

    def _save(self, result: Result, model: Path, place: Path) -> Report:
        """Write a result, its weights in a file of their own where the model's are; return its report."""
        marked = onnx_io.with_metadata(result.loaded, {METADATA_KEY: versions().get("graphopt", "unknown")})
        external = True if self.external_data is None and self.weights[model] else self.external_data
        with files.naming_write_errors(place):
            place.parent.mkdir(parents=True, exist_ok=True)
        size = replace(result, loaded=marked).save(place, external=external, weights=self._weights_name(model))
        return result.report.with_file_sizes(size)

    def _weights_name(self, model: Path) -> str:
        """Return the name of the file of weights of a result, empty for the usual one.

        In a new folder it is that of the model, such as `model.onnx_data`, for which libraries look; a name of its own
        where the folder has another file of that name, which is copied.
        """
        own = self.weights[model]
        if self.target == self.source:
            return ""
        is_shared = any(own & others for other, others in self.weights.items() if other != model)
        name = next(iter(own)).name if len(own) == 1 and not is_shared else ""
        if name.startswith(model.name):
            return name
        is_taken = os.path.lexists(self.source / model.with_name(f"{model.name}.data"))
        return f"{model.name}{SUFFIX}.data" if is_taken else ""


def _in_share(options: Options, seconds: float) -> Options:
    """Return the options with at most so many seconds; with none left, nothing is searched or timed."""
    if seconds <= 0 and options.cost == "measured":
        return replace(options, cost="none")
    return replace(options, seconds=min(options.seconds, max(seconds, 0.0)))


def _first_line(error: GraphoptError, path: Path) -> str:
    """Return the first line of an error without the path of the model, beside which it stands."""
    return str(error).partition("\n")[0].removeprefix(f"{path}: ").removeprefix(f"{path} ")


# -- options for each model --------------------------------------------------------------------------------------------


def _check_choice(options: Options) -> None:
    """Fail before the work where the options are wrong for every model.

    Raises:
        UsageError: there is no such rule, file of rules or provider.
        RuleError: a file of rules cannot be read, or a rule in it is ill-formed.
    """
    with current_session().child():
        known = rule_library.load_library(rule_library.read_rules(options.rules))
    names = [*(rule.name for rule in known.all_rules), *(each.name for each in PASSES)]
    rule_library.select_names(names, options.skip, options.only)
    if options.is_timed:
        for provider in options.providers:
            options.for_provider(provider).setting.check_starts()


def _choose_options(source: Path, models: Sequence[Path], options: Options) -> dict[Path, Options]:
    """Return the options for each model: without sizes, shapes and inputs of dims and inputs that it does not have.

    Raises:
        UsageError: no model has such a dim or input.
    """
    given = {"dims": options.dims or {}, "inputs": options.inputs or {}, "input_shapes": options.input_shapes or {}}
    if not any(given.values()):
        return dict.fromkeys(models, options)
    known = {model: _names_of(source / model) for model in models}
    for field, (kind, values) in zip(given, (("dim", 0), ("input", 1), ("input", 1)), strict=True):
        names = {name for each in known.values() for name in each[values]}
        for name in given[field].keys() - names - {""}:
            raise UsageError(f"no model in {source} has the {kind} '{name}'{did_you_mean(name, names)}")
    return {
        model: replace(
            options,
            dims={name: size for name, size in given["dims"].items() if name in dims} or None,
            inputs={name: array for name, array in given["inputs"].items() if name in inputs} or None,
            input_shapes={name: shape for name, shape in given["input_shapes"].items() if name in {*inputs, ""}}
            or None,
        )
        for model, (dims, inputs) in known.items()
    }


def _names_of(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of the open dims and of the inputs of a model; none where it cannot be read, as its run says."""
    try:
        inputs = model_sketch.sketch_model(onnx_io.parse_file(path, weights=False)).inputs
    except ModelError:
        return frozenset(), frozenset()
    dims = sample_inputs.candidate_bindings(inputs, 0, {})[0]
    return frozenset(dims), frozenset(item.name for item in inputs)


# -- a new folder ------------------------------------------------------------------------------------------------------


@contextmanager
def _new_folder(source: Path, output: Path) -> Iterator[Path]:
    """Yield a folder that becomes the output when the block is done, and is gone where that fails.

    Raises:
        UsageError: the output is the source, or one is in the other, or it is not empty.
        OutputError: it cannot be made.
    """
    if files.is_stdout(output):
        raise UsageError("a folder is not written to stdout: name one")
    real, own = Path(os.path.realpath(output)), Path(os.path.realpath(source))
    if real == own or real in own.parents or own in real.parents:
        how = "is" if real == own else "is in" if own in real.parents else "contains"
        raise UsageError(
            f"{output} {how} {source}: name another folder, or none, and the results stand beside their models"
        )
    if os.path.lexists(output) and not (output.is_dir() and not any(output.iterdir())):
        state = "is not empty" if output.is_dir() else "is no folder"
        raise UsageError(f"{output} {state}: name a new folder, or remove it")
    if not real.exists():
        files.check_new_folder(real)
    with files.naming_write_errors(output), files.temporary_folder_for(real) as made:
        yield made
        if real.exists():
            real.rmdir()  # for Windows, which renames nothing to the name of an empty folder


def _check_copied(source: Path) -> None:
    """Raise ModelError for a file that cannot be copied: before the work, not after it."""
    for path in _iter_files(source):
        file = source / path
        if file.exists() and not (file.is_file() and os.access(file, os.R_OK)):
            reason = "cannot be read" if file.is_file() else "is no ordinary file"
            raise ModelError(f"{file} {reason}, so the folder cannot be copied")


def _copy_others(
    source: Path, target: Path, outcomes: Sequence[ModelOutcome], weights: Mapping[Path, frozenset[Path]]
) -> None:
    """Copy all files but the models that were optimized, and the weights that no other model needs.

    Links become files, but for those that lead nowhere, as in a cache that is not complete.
    """
    done = {Path(each.model) for each in outcomes if each.written}
    needed = frozenset[Path]().union(*(found for model, found in weights.items() if model not in done))
    left = done.union(*(weights[model] for model in done)) - needed
    for path in _iter_files(source):
        if path not in left:
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / path, target / path, follow_symlinks=(source / path).exists())


def _weights_of(source: Path, model: Path) -> frozenset[Path]:
    """Return the files of a model's external data, relative to the folder."""
    names = onnx_io.external_locations(source / model)
    return frozenset(Path(os.path.normpath(model.parent / name)) for name in names)
