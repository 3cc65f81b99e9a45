"""BERT as transformers 4 exported it, which is how most published files look; transformers 5 writes other masks.

``python -m benchmarks.classic_bert FILE.onnx`` writes the tests' fixture of it, a small one with recipes for weights.
Imports torch: load it late.
"""

from __future__ import annotations

import math
import sys
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn


class Layer(nn.Module):
    """Self-attention and a feed-forward net, each with a residual and a layer norm after it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.attention_norm, self.norm = nn.LayerNorm(width, 1e-12), nn.LayerNorm(width, 1e-12)
        self.heads = heads

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.size()[:-1], self.heads, x.size(-1) // self.heads).permute(0, 2, 1, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (self.split(layer(x)) for layer in (self.query, self.key, self.value))
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.size(-1)) + mask
        mixed = (torch.softmax(scores, -1) @ value).permute(0, 2, 1, 3).contiguous()
        mixed = mixed.view(*mixed.size()[:-2], x.size(-1))
        x = self.attention_norm(self.output(mixed) + x)
        y: Tensor = self.norm(self.down(nn.functional.gelu(self.up(x))) + x)
        return y


class ClassicBert(nn.Module):
    """The encoder of BERT without its pooler."""

    INPUTS = ("input_ids", "attention_mask", "token_type_ids")

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, positions: int) -> None:
        super().__init__()
        self.words, self.places, self.kinds = (nn.Embedding(n, width) for n in (vocabulary, positions, 2))
        self.norm = nn.LayerNorm(width, 1e-12)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.register_buffer("position_ids", torch.arange(positions)[None])

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        mask = (1.0 - attention_mask[:, None, None, :].to(torch.float32)) * torch.finfo(torch.float32).min
        places = self.places(self.get_buffer("position_ids")[:, : input_ids.size(1)])
        x: Tensor = self.norm(self.words(input_ids) + self.kinds(token_type_ids) + places)
        for layer in self.layers:
            x = layer(x, mask)
        return x


def export(path: Path, layers: int, width: int, heads: int, vocabulary: int = 1000, positions: int = 64) -> None:
    """Write such a model of these sizes, with open batch and sequence, as TorchScript exports it."""
    torch.manual_seed(0)
    model = ClassicBert(layers, width, heads, vocabulary, positions).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms and biases, which begin as ones and nearly zeros
                parameter.add_(torch.randn_like(parameter) * 0.1)
    tokens = torch.randint(0, vocabulary, (2, 16))
    example = (tokens, torch.ones_like(tokens), torch.zeros_like(tokens))
    axes = {name: {0: "batch", 1: "sequence"} for name in (*ClassicBert.INPUTS, "last_hidden_state")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            example,
            str(path),
            dynamo=False,
            opset_version=17,
            input_names=list(ClassicBert.INPUTS),
            output_names=["last_hidden_state"],
            dynamic_axes=axes,
        )


if __name__ == "__main__":
    import onnx

    from tests import fixture_models

    target = Path(sys.argv[1])
    export(target, layers=3, width=128, heads=4)
    written = onnx.load(target)
    fixture_models.reduce(written)
    fixture_models.strip(written)
    onnx.save(written, target)
