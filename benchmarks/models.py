"""The models: public architectures with random weights, exported from torch as a user would export them.

Nothing is downloaded. ``python -m benchmarks.models [NAME ...]`` fills the cache, a folder that git ignores. torch,
timm and transformers come with the extra ``[bench]`` and are imported where they are needed, never with this module.
"""

from __future__ import annotations

import os
import sys
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

CACHE = Path(__file__).parent / ".cache"

Axes = Mapping[str, Mapping[int, str]]
"""The axes of each input that may be left open: input name -> axis -> dimension name."""


@dataclass(frozen=True, slots=True)
class Case:
    """A torch module in eval mode with example inputs, ready for either exporter."""

    module: Any
    inputs: Mapping[str, Any]
    outputs: tuple[str, ...]
    axes: Axes


@dataclass(frozen=True, slots=True)
class Model:
    """One exported model: an architecture, an exporter and what the user asked that exporter for."""

    name: str
    family: str
    build: Callable[[], Case]
    exporter: Literal["dynamo", "torchscript"]
    dynamic: bool
    """Every axis that the case names is left open; otherwise all sizes are fixed."""
    opset: int | None
    """None is the exporter's own default."""
    options: Mapping[str, Any]
    """Keywords for torch.onnx.export beside those that follow from the other fields."""
    note: str = ""
    fixture: bool = True
    """Small enough to become a fixture of the tests."""


def vision(architecture: str, size: int, *, open_size: bool = False, **config: Any) -> Case:
    """An image classifier of timm on two images of size x size."""
    import torch

    timm = _timm()
    _seed(architecture)
    axes = {0: "batch", 2: "height", 3: "width"} if open_size else {0: "batch"}
    module = timm.create_model(architecture, pretrained=False, num_classes=100, **config)
    return _case(module, {"x": torch.randn(2, 3, size, size)}, ("logits",), {"x": axes})


def bert(attention: str = "sdpa") -> Case:
    """BERT's encoder and pooler, two layers, with the three inputs that tokenizers return."""
    transformers = _transformers()
    config = transformers.BertConfig(
        vocab_size=1000, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=512,
        max_position_embeddings=64, attn_implementation=attention,
    )  # fmt: skip
    _seed("bert")
    inputs = _tokens("input_ids", "attention_mask", "token_type_ids")
    return _case(transformers.BertModel(config), inputs, ("last_hidden_state", "pooler_output"), _text_axes(inputs))


def gpt2() -> Case:
    """GPT-2 with its tied language-model head, two layers, without a cache of keys and values."""
    transformers = _transformers()
    config = transformers.GPT2Config(
        vocab_size=1000, n_positions=64, n_embd=128, n_layer=2, n_head=4, use_cache=False,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    _seed("gpt2")
    inputs = _tokens("input_ids", "attention_mask")
    return _case(transformers.GPT2LMHeadModel(config), inputs, ("logits",), _text_axes(inputs))


def llama() -> Case:
    """Llama with grouped-query attention, two layers, without a cache of keys and values."""
    transformers = _transformers()
    config = transformers.LlamaConfig(
        vocab_size=1000, hidden_size=128, intermediate_size=344, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, use_cache=False,
    )  # fmt: skip
    _seed("llama")
    inputs = _tokens("input_ids", "attention_mask")
    return _case(transformers.LlamaForCausalLM(config), inputs, ("logits",), _text_axes(inputs))


_SMALL_SWIN: Mapping[str, Any] = {
    "img_size": 64,
    "window_size": 4,
    "embed_dim": 32,
    "depths": (2, 2),
    "num_heads": (1, 2),
}

ARCHITECTURES: Mapping[str, tuple[str, Callable[[], Case]]] = {
    "resnet18": ("ResNet", partial(vision, "resnet18", 64)),
    "mobilenetv3": ("MobileNetV3", partial(vision, "mobilenetv3_small_100", 64)),
    "mobilenetv3-same": ("MobileNetV3", partial(vision, "tf_mobilenetv3_small_100", 64, open_size=True)),
    "efficientnet": ("EfficientNet", partial(vision, "efficientnet_b0", 64)),
    "swin": ("Swin", partial(vision, "swin_tiny_patch4_window7_224", 64, **_SMALL_SWIN)),
    "vit": ("ViT", partial(vision, "vit_tiny_patch16_224", 64, img_size=64, depth=2)),
    "bert": ("BERT", bert),
    "bert-eager": ("BERT", partial(bert, attention="eager")),
    "gpt2": ("GPT-2", gpt2),
    "llama": ("Llama", llama),
}
"""Name -> family and builder: small configurations with every kind of block, for the fixtures of the tests."""

_KEEP_BATCH_NORM: Mapping[str, Any] = {"do_constant_folding": False, "training": "PRESERVE"}
"""In eval mode the TorchScript exporter folds batch norms into convolutions, unless told to preserve the mode."""


def _models() -> Iterator[Model]:
    """The table: the exporters' default calls, open dimensions, and what older or plainer exports look like.

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


def _model(
    architecture: str,
    exporter: Literal["dynamo", "torchscript"],
    variant: str = "",
    *,
    opset: int | None = None,
    note: str = "",
    **options: Any,
) -> Model:
    """One row of the table, named after what sets it apart."""
    family, build = ARCHITECTURES[architecture]
    name = "-".join(part for part in (architecture, exporter, variant) if part)
    return Model(name, family, build, exporter, variant.startswith("dynamic"), opset, options, note)


MODELS: Mapping[str, Model] = {model.name: model for model in _models()}


def export(name: str, *, again: bool = False) -> Path:
    """The ONNX file of a model of the table, exported unless the cache holds it."""
    path = CACHE / f"{name}.onnx"
    if again or not path.exists():
        CACHE.mkdir(exist_ok=True)
        (CACHE / ".gitignore").write_text("*\n", encoding="utf-8")
        unfinished = path.with_suffix(".unfinished")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _EXPORTERS[MODELS[name].exporter](MODELS[name], unfinished)
        os.replace(unfinished, path)
    return path


def _export_dynamo(model: Model, path: Path) -> None:
    """torch.export and onnxscript; the weights stay in the file: none of these models needs 2 GB."""
    import torch

    case = model.build()
    torch.onnx.export(
        case.module, (), str(path), kwargs=dict(case.inputs), dynamo=True, verbose=False, external_data=False,
        input_names=list(case.inputs), output_names=list(case.outputs), opset_version=model.opset,
        dynamic_shapes=case.axes if model.dynamic else None, **model.options,
    )  # fmt: skip


def _export_torchscript(model: Model, path: Path) -> None:
    """The tracing exporter, deprecated and still what most ONNX files in the wild come from."""
    import torch

    case = model.build()
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
    if len(case.inputs) > 1:
        forward = case.module.forward

        def positional(*values: Any) -> tuple[Any, ...]:
            result = forward(**dict(zip(case.inputs, values, strict=True)))
            return tuple(result[name] for name in case.outputs)

        case.module.forward = positional


_EXPORTERS: Mapping[str, Callable[[Model, Path], None]] = {
    "dynamo": _export_dynamo,
    "torchscript": _export_torchscript,
}


def _case(module: Any, inputs: Mapping[str, Any], outputs: tuple[str, ...], axes: Axes) -> Case:
    """The module in eval mode, its parameters made as unremarkable as trained ones."""
    _randomise(module.eval())
    return Case(module, inputs, outputs, axes)


def _randomise(module: Any) -> None:
    """Replace what initialisation leaves at 0 or 1 (norms, biases, statistics): as it stands it would fold away."""
    import torch

    with torch.no_grad():
        for name, tensor in module.named_buffers():
            if name.endswith("running_mean"):
                tensor.normal_(0, 0.2)
            elif name.endswith("running_var"):
                tensor.uniform_(0.5, 1.5)
        for parameter in module.parameters():
            if bool((parameter == 1).all()):
                parameter.uniform_(0.5, 1.5)
            elif bool((parameter == 0).all()):
                parameter.normal_(0, 0.1)


def _tokens(*names: str) -> dict[str, Any]:
    """Example inputs of a text model: two sequences of sixteen tokens."""
    import torch

    shape = (2, 16)
    makers = {
        "input_ids": lambda: torch.randint(0, 1000, shape),
        "attention_mask": lambda: torch.ones(shape, dtype=torch.int64),
        "token_type_ids": lambda: torch.zeros(shape, dtype=torch.int64),
    }
    return {name: makers[name]() for name in names}


def _text_axes(inputs: Iterable[str]) -> Axes:
    return {name: {0: "batch", 1: "sequence"} for name in inputs}


def _seed(architecture: str) -> None:
    """Equal weights for every export of one architecture."""
    import torch

    torch.manual_seed(zlib.crc32(architecture.encode()))


def _timm() -> Any:
    """timm, also beside a torchvision whose compiled part does not load: declaring its operators is enough."""
    import torch

    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _KEPT.append(library)
    import timm

    return timm


def _transformers() -> Any:
    """transformers, after timm's workaround: it imports torchvision too."""
    _timm()
    import transformers

    return transformers


_KEPT: list[Any] = []
"""torch forgets the declarations of a Library that is garbage collected."""


def main(arguments: list[str]) -> None:
    """Export the named models, or all, and say where they are."""
    for name in arguments or MODELS:
        print(export(name, again=True))


if __name__ == "__main__":
    main(sys.argv[1:])
