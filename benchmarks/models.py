"""The models: the architectures, exported from torch as a user would export them.

The suite has 36 architectures of 33 families in 82 exports, with random weights, and smaller than published: the sizes
of images, depths and vocabularies are cut, as `architectures.REDUCED` says. Beside them, 22 are as published.
``python -m benchmarks.models [NAME ...]`` fills the cache, a folder that git ignores.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from benchmarks import quantized
from benchmarks.architectures import PUBLISHED, REDUCED, SMALL, Architecture, Case, reparameterized, settled
from benchmarks.environment import installed

CACHE = Path(__file__).parent / ".cache"


@dataclass(frozen=True, slots=True)
class Model:
    """One exported model: an architecture, an exporter and what the user asked that exporter for."""

    name: str
    architecture: Architecture
    exporter: Literal["dynamo", "torchscript"]
    dynamic: bool
    """Every axis that the case names is left open; otherwise all sizes are fixed."""
    opset: int | None
    """Opset to export to; None is the exporter's own default."""
    options: Mapping[str, Any]
    """Keywords for torch.onnx.export beside those that follow from the other fields."""
    note: str = ""
    quantized: str = ""
    """Form of quantization, one of `quantized.FORMS`; empty for none."""
    is_fused: bool = False
    """Saved by ONNX Runtime, in operators of its own."""
    is_fixture: bool = False
    """Small, for the tests, instead of a larger size, for the benchmarks."""
    is_published: bool = False
    """True for models of the published size."""


_KEEP_BATCH_NORM: Mapping[str, Any] = {"do_constant_folding": False, "training": "PRESERVE"}
"""Options of the TorchScript exporter that keep batch norms, which it folds into convolutions in eval mode."""


def _small() -> Iterator[Model]:
    """The fixtures: the exporters' default calls, open dimensions, and what older or plainer exports look like.

    Two exports do not work with torch 2.13 and are left out: mobilenetv3-same by dynamo with open sizes (torch.export
    had not come to an end after ten minutes), and BERT by TorchScript below opset 14 unless its attention is eager
    (there is no scaled_dot_product_attention before).
    """
    for architecture in ("resnet18", "mobilenetv3", "efficientnet", "swin", "vit", "bert", "gpt2", "llama"):
        yield _model(architecture, "dynamo")
        yield _model(architecture, "torchscript")
    for architecture in ("swin", "vit", "bert", "gpt2", "llama"):
        yield _model(architecture, "dynamo", "dynamic")
        yield _model(architecture, "torchscript", "dynamic")
    yield _model("mobilenetv3", "dynamo", "dynamic")
    yield _model("mobilenetv3", "torchscript", "dynamic")
    yield _model("mobilenetv3-same", "torchscript", "dynamic", note="TensorFlow's SAME padding, from open image sizes")
    for architecture in ("resnet18", "mobilenetv3", "efficientnet"):
        yield _model(architecture, "dynamo", "raw", note="batch norms are nodes", optimize=False)
        yield _model(architecture, "torchscript", "bn", note="batch norms are nodes", **_KEEP_BATCH_NORM)
    for architecture in ("swin", "bert", "llama"):
        yield _model(architecture, "dynamo", "raw", note="without the exporter's own optimizer", optimize=False)
    yield _model("resnet18", "torchscript", "opset11", opset=11, note="batch norms are nodes", **_KEEP_BATCH_NORM)
    yield _model("mobilenetv3", "torchscript", "opset11", opset=11, note="hard-swish written out")
    yield _model("vit", "torchscript", "opset14", opset=14, note="layer norms and Gelu written out")
    yield _model("bert-eager", "torchscript", "dynamic-opset13", opset=13, note="also the attention written out")
    yield _model("llama", "dynamo", "opset23", opset=23, note="Attention and RMSNormalization are operators")


def _full() -> Iterator[Model]:
    """The suite: each architecture by both exporters, and forms in which such models are also met.

    Left out: T5 by dynamo, of which torch 2.13 cannot decompose a reshape (*input_shape, -1).
    """
    for name, architecture in REDUCED.items():
        if name != "t5-encoder":
            yield Model(f"{name}.dynamo", architecture, "dynamo", False, None, {})
        yield Model(f"{name}.torchscript", architecture, "torchscript", False, None, {})
    for name in ("repvgg", "mobileone", "fastvit", "repvit"):
        note = "training form, batch norms are nodes"
        yield Model(f"{name}.bn", REDUCED[name], "torchscript", False, None, _KEEP_BATCH_NORM, note)
    yield Model("mobilenetv3.opset11", REDUCED["mobilenetv3"], "torchscript", False, 11, {}, "hard-swish written out")
    note = "Attention and RMSNormalization are operators"
    yield Model("llama-mini.opset23", REDUCED["llama-mini"], "dynamo", False, 23, {}, note)
    for name, form, note in (  # a MobileNet or ShuffleNet with random weights keeps nothing of its input in 8 bits
        ("resnet50", "static", "quantize_static by default: activations of 8 bits with a sign"),
        ("minilm-128", "dynamic", "quantize_dynamic, weights of 8 bits without a sign"),
        ("resnet50", "trained", "as quantization-aware training for TensorRT leaves it"),
        ("resnet50", "qoperator", "quantize_static as operators on integers of 8 bits without a sign"),
    ):
        yield Model(f"{name}.{form}", REDUCED[name], "dynamo", False, None, {}, note, form)
    note = "saved by ONNX Runtime, with its extended fusions"
    yield Model("bert-128.fused", REDUCED["bert-128"], "torchscript", False, None, {}, note, is_fused=True)
    for name, architecture in PUBLISHED.items():
        yield Model(f"{name}.full", architecture, "dynamo", False, None, {}, is_published=True)


def _model(
    architecture: str,
    exporter: Literal["dynamo", "torchscript"],
    variant: str = "",
    *,
    opset: int | None = None,
    note: str = "",
    **options: Any,
) -> Model:
    """One row of the fixtures, named after what sets it apart."""
    name = "-".join(part for part in (architecture, exporter, variant) if part)
    dynamic = variant.startswith("dynamic")
    return Model(name, SMALL[architecture], exporter, dynamic, opset, options, note, is_fixture=True)


MODELS: Mapping[str, Model] = {model.name: model for model in (*_small(), *_full())}
FIXTURES = tuple(model.name for model in MODELS.values() if model.is_fixture)
SUITE = tuple(model.name for model in MODELS.values() if not model.is_fixture)


QUICK = (
    "mobilenetv2.dynamo",
    "shufflenetv2.torchscript",
    "mobileone.bn",
    "convnext.dynamo",
    "deit-tiny.dynamo",
    "minilm-128.dynamo",
    "vocoder.torchscript",
    "yolo.dynamo",
)
"""A few models that together show most of what optimizers do, for a run of two to three minutes, exports aside."""


def export(name: str, *, again: bool = False) -> Path:
    """The ONNX file of a model of the table, exported unless the cache holds it as it would be made now."""
    path = CACHE / f"{name}.onnx"
    note = path.with_suffix(".key")
    made_by = key(MODELS[name])
    if again or not (path.exists() and note.exists() and note.read_text(encoding="utf-8") == made_by):
        CACHE.mkdir(exist_ok=True)
        (CACHE / ".gitignore").write_text("*\n", encoding="utf-8")
        note.unlink(missing_ok=True)
        unfinished = path.with_suffix(".unfinished")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, case = MODELS[name], _case(MODELS[name])
            _EXPORTERS[model.exporter](model, case, unfinished)
            if model.is_fused:
                _fuse(unfinished)
            if model.quantized:
                quantized.quantize(
                    unfinished, model.quantized, {key: value.numpy() for key, value in case.inputs.items()}
                )
        os.replace(unfinished, path)
        note.write_text(made_by, encoding="utf-8")
    return path


def export_reparameterized(name: str, path: Path) -> None:
    """Export a model after timm has merged its branches and batch norms, as a user would who has its source.

    The weights are those of `export`, so that both compute the same.
    """
    model = replace(MODELS[name], options={})  # those keep batch norms, of which none is left
    case = _case(model)
    _EXPORTERS[model.exporter](model, replace(case, module=reparameterized(case.module)), path)


def key(model: Model) -> str:
    """A digest of what an export depends on: the sources of the architectures, its row, the packages' versions."""
    row = (model.name, model.exporter, model.dynamic, model.opset, sorted(model.options.items()), model.is_fixture)
    functions = (_export_dynamo, _export_torchscript, _take_positions, _case)
    parts = [repr(row), *(path.read_text(encoding="utf-8") for path in SOURCES)]
    parts += [inspect.getsource(function) for function in functions]
    parts += [installed("onnxruntime"), inspect.getsource(_fuse)] if model.is_fused else []
    parts += [model.quantized, inspect.getsource(quantized)] if model.quantized else []
    parts += [f"{package} {version}" for package, version in exporters().items()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


SOURCES = tuple(Path(__file__).with_name(name) for name in ("architectures.py", "nets.py"))
"""Files whose source makes the modules."""


def exporters() -> dict[str, str]:
    """The versions of the packages that make the graphs."""
    return {package: installed(package) for package in ("onnxscript", "timm", "torch", "transformers")}


def _case(model: Model) -> Case:
    """The module and its inputs. Fixtures are not settled: their large weights become recipes."""
    case = model.architecture.build()
    return case if model.is_fixture else replace(case, module=settled(case.module, case.inputs))


def _export_dynamo(model: Model, case: Case, path: Path) -> None:
    """torch.export and onnxscript; the weights stay in the file: none of these models needs 2 GB."""
    import torch

    torch.onnx.export(
        case.module, (), str(path), kwargs=dict(case.inputs), dynamo=True, verbose=False, external_data=False,
        input_names=list(case.inputs), output_names=list(case.outputs), opset_version=model.opset,
        dynamic_shapes=case.axes if model.dynamic else None, **model.options,
    )  # fmt: skip


def _export_torchscript(model: Model, case: Case, path: Path) -> None:
    """The tracing exporter, deprecated and still what most ONNX files in the wild come from."""
    import torch

    options = dict(model.options)
    if "training" in options:
        options["training"] = getattr(torch.onnx.TrainingMode, options["training"])
    _take_positions(case)
    torch.onnx.export(
        case.module, tuple(case.inputs.values()), str(path), dynamo=False,
        input_names=list(case.inputs), output_names=list(case.outputs), opset_version=model.opset,
        dynamic_axes=case.axes if model.dynamic else None, **options,
    )  # fmt: skip


def _take_positions(case: Case) -> None:
    """Tracing wants positional arguments and a tuple; text models take keywords and return a mapping."""
    if not _is_transformer(case.module):
        return
    forward = case.module.forward

    def positional(*values: Any) -> tuple[Any, ...]:
        result = forward(**dict(zip(case.inputs, values, strict=True)))
        return tuple(result[name] for name in case.outputs)

    case.module.forward = positional


def _is_transformer(module: Any) -> bool:
    return any(kind.__module__.startswith("transformers.") for kind in type(module).__mro__)


def _fuse(path: Path) -> None:
    """Put what ONNX Runtime makes of a model before it looks at how values lie in memory in the model's place."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path.with_suffix(".fused"))
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    os.replace(path.with_suffix(".fused"), path)


_EXPORTERS: Mapping[str, Callable[[Model, Case, Path], None]] = {
    "dynamo": _export_dynamo,
    "torchscript": _export_torchscript,
}


def main(arguments: list[str]) -> None:
    """Export the named models, or all, and say where they are."""
    for name in arguments or MODELS:
        print(export(name, again=True))


if __name__ == "__main__":
    main(sys.argv[1:])
