"""Networks that are trained in tests and in benchmarks: PyTorch's, with random weights, as it exports them."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import onnx
import torch


def unet() -> tuple[Any, tuple[Any, ...]]:
    nn = torch.nn

    def block(channels: int, filters: int) -> Any:
        layers = [nn.Conv2d(channels, filters, 3, padding=1), nn.BatchNorm2d(filters), nn.ReLU()]
        return nn.Sequential(*layers, nn.Conv2d(filters, filters, 3, padding=1), nn.BatchNorm2d(filters), nn.ReLU())

    class UNet(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.down, self.middle, self.up = block(3, 8), block(8, 16), block(16, 8)
            self.pool, self.widen = nn.MaxPool2d(2), nn.ConvTranspose2d(16, 8, 2, stride=2)
            self.last, self.repeat = nn.Conv2d(8, 2, 1), nn.Upsample(scale_factor=2)

        def forward(self, x: Any) -> Any:
            fine = self.down(x)
            coarse = self.middle(self.pool(fine))
            joined = torch.cat([self.widen(coarse) + self.repeat(coarse)[:, :8], fine], 1)
            return self.last(self.up(joined))

    return UNet(), (torch.randn(2, 3, 16, 16),)


def resnet18() -> tuple[Any, tuple[Any, ...]]:
    from torchvision import models

    return models.resnet18(num_classes=10), (torch.randn(4, 3, 64, 64),)


def mobilenet_v2() -> tuple[Any, tuple[Any, ...]]:
    from torchvision import models

    return models.mobilenet_v2(num_classes=10, width_mult=0.5, dropout=0.0), (torch.randn(4, 3, 64, 64),)


def vit() -> tuple[Any, tuple[Any, ...]]:
    import timm

    model = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=3, num_classes=10)
    return model, (torch.randn(4, 3, 64, 64),)


def bert(layers: int = 2, width: int = 64, texts: int = 4, tokens: int = 12) -> tuple[Any, tuple[Any, ...]]:
    import transformers

    sizes = {"vocab_size": 200, "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": 4}
    config = transformers.BertConfig(
        **sizes, intermediate_size=4 * width, pad_token_id=None, num_labels=10, attn_implementation="eager"
    )

    class Classifier(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.bert = transformers.BertForSequenceClassification(config)

        def forward(self, ids: Any, mask: Any) -> Any:
            return self.bert(ids, attention_mask=mask).logits

    return Classifier(), (torch.randint(0, 200, (texts, tokens)), torch.ones(texts, tokens, dtype=torch.int64))


def segmentation() -> tuple[Any, tuple[Any, ...]]:
    """Grouped and strided convolutions, rounded pools, slices, and images enlarged to the size of others."""
    nn, functional = torch.nn, torch.nn.functional

    class Segmentation(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(3, 8, 3, stride=2, padding=1, padding_mode="reflect")
            self.grouped = nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=4)
            self.last, self.skip = nn.Conv2d(8, 4, 1), nn.Conv2d(8, 4, 1)

        def forward(self, x: Any) -> Any:
            fine = functional.silu(self.first(x))
            pooled = functional.avg_pool2d(fine, 3, 2, 1, ceil_mode=True, count_include_pad=False)
            coarse = functional.max_pool2d(functional.silu(self.grouped(pooled)), 3, 2, ceil_mode=True)
            enlarged = functional.interpolate(self.last(coarse), size=fine.shape[2:], mode="bilinear")
            return (enlarged + self.skip(fine))[:, :, 1:, :-1]

    return Segmentation(), (torch.randn(2, 3, 30, 33),)


def recurrent(kind: str) -> Callable[[], tuple[Any, tuple[Any, ...]]]:
    """A classifier of texts by two layers that read in both directions."""
    nn = torch.nn

    class Classifier(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(40, 6), nn.Linear(10, 3)
            self.layers = getattr(nn, kind)(6, 5, 2, batch_first=True, bidirectional=True)

        def forward(self, ids: Any) -> Any:
            return self.head(self.layers(self.embedding(ids))[0].mean(1))

    return lambda: (Classifier(), (torch.randint(0, 40, (3, 7)),))


NETWORKS: Mapping[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    "ResNet-18": resnet18,
    "MobileNetV2": mobilenet_v2,
    "U-Net": unet,
    "ViT": vit,
    "BERT": bert,
}
"""Functions that return a network and a batch of inputs, by what papers call them."""

OF_OPEN_SIZES: Mapping[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    "segmentation": segmentation,
    **{kind: recurrent(kind) for kind in ("LSTM", "GRU", "RNN")},
}
"""The same of networks that are exported with open sizes."""


def exported(model: Any, inputs: tuple[Any, ...], *, open_axes: tuple[int, ...] = ()) -> onnx.ModelProto:
    """The model as it is, its parameters under their names."""
    file = io.BytesIO()
    torch.onnx.export(
        *(model, inputs, file),
        dynamo=False,
        opset_version=17,
        do_constant_folding=False,
        training=torch.onnx.TrainingMode.PRESERVE,
        input_names=[f"x{i}" for i in range(len(inputs))],
        output_names=["logits"],
        dynamic_axes={"x0": {axis: f"size{axis}" for axis in open_axes}},
    )
    return onnx.load_from_string(file.getvalue())
