"""Public architectures with random weights as torch modules with example inputs, ready for an exporter.

Nothing is downloaded. Those of the benchmark are settled before they are exported: with weights as random as they come,
most outputs hardly depend on the input, and comparing them shows nothing. torch, timm, transformers and diffusers come
with the extra ``[bench]`` and are imported where they are needed, never with this module.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Axes = Mapping[str, Mapping[int, str]]
"""The axes of each input that may be left open: input name -> axis -> dimension name."""


@dataclass(frozen=True, slots=True)
class Case:
    """A torch module in eval mode with example inputs, ready for either exporter."""

    module: Any
    inputs: Mapping[str, Any]
    outputs: tuple[str, ...]
    axes: Axes


def vision(architecture: str, size: int, *, images: int = 1, open_size: bool = False, **config: Any) -> Case:
    """An image classifier of timm on images of size x size."""
    import timm
    import torch

    _seed(architecture)
    axes = {0: "batch", 2: "height", 3: "width"} if open_size else {0: "batch"}
    module = timm.create_model(architecture, pretrained=False, num_classes=100, **config)
    return _case(module, {"x": torch.randn(images, 3, size, size)}, ("logits",), {"x": axes})


def written_out(name: str, *shape: int, output: str = "y") -> Case:
    """One of the nets that are written out in ``nets.py``."""
    import torch

    from benchmarks import nets

    _seed(name)
    return _case(getattr(nets, name)(), {"x": torch.randn(shape)}, (output,), {"x": {0: "batch"}})


def text(
    model: str, inputs: Iterable[str], outputs: tuple[str, ...], *, shape: tuple[int, int] = (1, 128), **config: Any
) -> Case:
    """A text model of transformers, without a cache of keys and values: `shape` is sequences by tokens."""
    kind = _transformer(model)
    tokens = _tokens(shape, config["vocab_size"], *inputs)
    axes = {name: {0: "batch", 1: "sequence"} for name in tokens}
    return _case(kind(kind.config_class(**config)), tokens, outputs, axes)


def signal(model: str, inputs: Mapping[str, tuple[int, ...]], output: str, part: str = "", **config: Any) -> Case:
    """A model of transformers that takes images or sound, or the named part of it."""
    import torch

    kind = _transformer(model)
    module = kind(kind.config_class(**config))
    feeds = {name: torch.randn(shape) for name, shape in inputs.items()}
    axes = {name: {0: "batch"} for name in inputs}
    return _case(getattr(module, part) if part else module, feeds, (output,), axes)


def diffusion(
    model: str,
    inputs: Mapping[str, tuple[int, ...]],
    output: str,
    part: str = "",
    *,
    labels: tuple[str, ...] = (),
    **config: Any,
) -> Case:
    """A model of diffusers on one image, or the named part of it; `labels` are inputs of one integer."""
    import diffusers
    import torch

    _seed(model)
    module = getattr(diffusers, model)(**config)
    feeds = {name: torch.randn(shape) for name, shape in inputs.items()}
    feeds |= {name: torch.tensor([number]) for number, name in enumerate(labels, 1)}
    return _case(getattr(module, part) if part else module, feeds, (output,), {name: {0: "batch"} for name in feeds})


_BERT_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_BERT_OUTPUTS = ("last_hidden_state", "pooler_output")


def encoder(hidden: int, layers: int, heads: int, sequence: int, vocabulary: int = 8000) -> Case:
    """BERT's encoder and pooler with the three inputs that tokenizers return, one sequence."""
    return text(
        "BertModel", _BERT_INPUTS, _BERT_OUTPUTS, shape=(1, sequence), vocab_size=vocabulary, hidden_size=hidden,
        num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=4 * hidden,
    )  # fmt: skip


def gpt2(width: int, layers: int, heads: int, shape: tuple[int, int], **config: Any) -> Case:
    """GPT-2 with its tied language-model head."""
    return text(
        "GPT2LMHeadModel", ("input_ids", "attention_mask"), ("logits",), shape=shape, n_embd=width, n_layer=layers,
        n_head=heads, use_cache=False, bos_token_id=1, eos_token_id=2, **config,
    )  # fmt: skip


def llama(
    width: int, layers: int, heads: int, shape: tuple[int, int], *, model: str = "LlamaForCausalLM", **config: Any
) -> Case:
    """Llama, or a decoder that is configured alike, with grouped-query attention, half as many heads of keys and
    values."""
    return text(
        model, ("input_ids", "attention_mask"), ("logits",), shape=shape, hidden_size=width,
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=heads // 2, use_cache=False, **config,
    )  # fmt: skip


def llama_step(width: int, heads: int, past: int, new: int, **config: Any) -> Case:
    """The `new` tokens of such a Llama behind a cache of `past` others: a step, or a prefill; all sizes are fixed."""
    import torch

    from benchmarks import nets

    whole = llama(width, nets.Step.LAYERS, heads, (1, past + new), **config)
    shape = (1, whole.module.config.num_key_value_heads, past, width // heads)
    cached = {f"{part}{layer}": torch.randn(shape) for layer in range(nets.Step.LAYERS) for part in "kv"}
    inputs = {**whole.inputs, "input_ids": whole.inputs["input_ids"][:, -new:], **cached}
    return Case(nets.Step(whole.module).eval(), inputs, ("logits", *(f"longer_{name}" for name in cached)), {})


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


def settled(module: Any, inputs: Mapping[str, Any], *, batch: int = 8, seed: int = 0) -> Any:
    """The module, changed so that its activations are of order 1 and follow the input, as those of a trained net do.

    With random weights as they are made, activations shrink, explode or are nearly the same for all inputs, and what a
    wrong rewrite changes is lost in rounding. One pass over a random batch like the inputs mends each layer when it is
    reached. A convolution or linear layer is divided by the size of what it returns, and its bias, where it has one,
    takes the mean of each channel away (like arXiv 1602.07868); weights that two layers share stay. A batch norm takes
    the statistics of the batch, some percent off, so that none is the identity. Before that, scales that begin so small
    that their branch is lost, such as those of ConvNeXt (1e-6), become of order 1.

    Args:
        module: In eval mode; it is changed in place, and returned.
        inputs: Examples by name, of which the batch has the shapes but for the first axis, and the range of integers.
        batch: How many images, sequences or sounds.
        seed: Of the batch and of all that is random here.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    users = Counter(id(getattr(layer, "weight", None)) for layer in module.modules())
    hooks: dict[Any, Any] = {}

    def settle(layer: Any, arguments: tuple[Any, ...], output: Any) -> Any:
        hooks.pop(layer).remove()  # a layer that is used twice keeps what its first use made of it
        if _is_batch_norm(layer):
            _take_statistics(layer, arguments[0], generator)
        else:
            _scale(layer, output, generator)
        return layer.forward(*arguments)

    for layer in module.modules():
        if _is_batch_norm(layer) or (_is_linear(layer) and users[id(layer.weight)] == 1):
            hooks[layer] = layer.register_forward_hook(settle)
    with torch.no_grad():
        for parameter in module.parameters():
            if bool((parameter == parameter.flatten()[0]).all()) and 0 < float(parameter.abs().max()) < _TINY:
                parameter.uniform_(0.5, 1.5, generator=generator)
        module(**{name: _like(tensor, batch, generator) for name, tensor in inputs.items()})
    for hook in hooks.values():  # of layers that the pass did not reach
        hook.remove()
    return module


_TINY = 0.01


def _is_batch_norm(layer: Any) -> bool:
    return getattr(layer, "running_var", None) is not None


def _is_linear(layer: Any) -> bool:
    """Convolutions, linear layers and GPT-2's transposed ones: what has a matrix that is not looked up."""
    import torch

    weight = getattr(layer, "weight", None)
    return isinstance(weight, torch.Tensor) and weight.dim() > 1 and not isinstance(layer, torch.nn.Embedding)


def _take_statistics(layer: Any, x: Any, generator: Any) -> None:
    """The mean and variance of each channel over the batch, off by a tenth of a deviation and up to a quarter.

    A channel that (nearly) never changes gets a hundredth of the mean variance, lest its noise become the signal.
    """
    variance, mean = _moments(x, 1)
    variance = variance.clamp(min=max(0.01 * float(variance.mean()), 1e-6))
    layer.running_mean.normal_(0, 0.1, generator=generator).mul_(variance.sqrt()).add_(mean)
    layer.running_var.uniform_(0.8, 1.25, generator=generator).mul_(variance)


def _scale(layer: Any, output: Any, generator: Any) -> None:
    """Divide by the root mean square of the output, and take its mean away; a bias is left, lest it fold away.

    Not by the deviation alone: after a pool over the image it is small, and gates made of that, such as those of
    MobileNetV3, would tell images apart ever more from block to block.
    """
    import torch

    variance, mean = _moments(output, 1 if isinstance(layer, torch.nn.modules.conv._ConvNd) else -1)
    size = float((variance + mean.square()).mean().sqrt())
    if size == 0:
        return
    layer.weight = torch.nn.Parameter(layer.weight / size)  # assigned: a weight norm takes it apart
    if layer.bias is not None:
        noise = torch.empty_like(layer.bias).normal_(0, 0.1, generator=generator)
        layer.bias.sub_(mean).div_(size).add_(noise)


def _moments(values: Any, channel: int) -> tuple[Any, Any]:
    """Variance and mean of each channel."""
    import torch

    values = values.movedim(channel, -1).flatten(0, -2)
    found: tuple[Any, Any] = torch.var_mean(values, 0, correction=0)
    return found


def _like(tensor: Any, batch: int, generator: Any) -> Any:
    """Random values like an input's: normal numbers, tokens that range as far; masks and types stay."""
    import torch

    shape = (batch, *tensor.shape[1:])
    if tensor.is_floating_point():
        return torch.randn(shape, generator=generator)
    low, high = int(tensor.min()), int(tensor.max())
    return torch.randint(low, high + 1, shape, generator=generator)


def _tokens(shape: tuple[int, int], vocabulary: int, *names: str) -> dict[str, Any]:
    """Example inputs of a text model: random tokens of which none is masked."""
    import torch

    makers = {
        "input_ids": lambda: torch.randint(0, vocabulary, shape),
        "attention_mask": lambda: torch.ones(shape, dtype=torch.int64),
        "token_type_ids": lambda: torch.zeros(shape, dtype=torch.int64),
    }
    return {name: makers[name]() for name in names}


def _transformer(model: str) -> Any:
    """A class of models of transformers; random numbers start anew, from a seed of its name."""
    import transformers

    _seed({"BertModel": "bert", "GPT2LMHeadModel": "gpt2", "LlamaForCausalLM": "llama"}.get(model, model))
    return getattr(transformers, model)


def _seed(architecture: str) -> None:
    """Equal weights for every export of one architecture."""
    import torch

    torch.manual_seed(zlib.crc32(architecture.encode()))
