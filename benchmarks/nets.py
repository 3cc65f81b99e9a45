"""Architectures that neither timm nor transformers ships. Imports torch: load it late."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


class Net(nn.Sequential):
    """A chain of layers whose input is called x, as in the nets of timm."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = super().forward(x)
        return y


def conv(
    inner: int, outer: int, kernel: int = 1, stride: int = 1, *, groups: int = 1, act: nn.Module | None = None
) -> nn.Sequential:
    """Convolution, batch norm, activation: the block that all of these are made of."""
    layers = [nn.Conv2d(inner, outer, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(outer)]
    return nn.Sequential(*layers, *([] if act is None else [act]))


class Shuffle(nn.Module):
    """ShuffleNet V2 (arXiv 1807.11164): half of the channels pass, then both halves are interleaved."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        half = outer // 2
        self.stride = stride
        first = inner if stride > 1 else half
        self.main = nn.Sequential(
            conv(first, half, act=nn.ReLU()), conv(half, half, 3, stride, groups=half), conv(half, half, act=nn.ReLU())
        )
        if stride > 1:
            self.side = nn.Sequential(conv(inner, inner, 3, stride, groups=inner), conv(inner, half, act=nn.ReLU()))

    def forward(self, x: Tensor) -> Tensor:
        if self.stride > 1:
            x = torch.cat([self.side(x), self.main(x)], 1)
        else:
            passed, changed = x.chunk(2, 1)
            x = torch.cat([passed, self.main(changed)], 1)
        n, c, h, w = x.shape
        return x.reshape(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def shufflenet(classes: int = 100) -> nn.Module:
    """ShuffleNet V2 of width 1."""
    blocks: list[nn.Module] = []
    inner = 24
    for outer, repeats in ((116, 4), (232, 8), (464, 4)):
        blocks += [Shuffle(inner if i == 0 else outer, outer, 2 if i == 0 else 1) for i in range(repeats)]
        inner = outer
    return Net(
        conv(3, 24, 3, 2, act=nn.ReLU()), nn.MaxPool2d(3, 2, 1), *blocks, conv(464, 1024, act=nn.ReLU()),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1024, classes),
    )  # fmt: skip


class Residual(nn.Module):
    """ArcFace's block (arXiv 1801.07698): batch norm first, PReLU in between."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.BatchNorm2d(inner), conv(inner, outer, 3, 1, act=nn.PReLU(outer)), conv(outer, outer, 3, stride)
        )
        self.side = conv(inner, outer, 1, stride) if stride > 1 or inner != outer else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.main(x) + self.side(x)
        return y


def arcface(size: int = 512) -> nn.Module:
    """A face embedding like InsightFace's r18 on 112 x 112."""
    widths = ((64, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2))
    return Net(
        conv(3, 64, 3, act=nn.PReLU(64)), *(Residual(*width) for width in widths), nn.BatchNorm2d(512), nn.Flatten(),
        nn.Linear(512 * 49, size), nn.BatchNorm1d(size),
    )  # fmt: skip


class Bottleneck(nn.Module):
    """YOLO's residual pair of 3x3 convolutions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.main = nn.Sequential(conv(width, width, 3, act=nn.SiLU()), conv(width, width, 3, act=nn.SiLU()))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.main(x)
        return y


class C2f(nn.Module):
    """YOLOv8's block: split, a chain of bottlenecks, everything concatenated."""

    def __init__(self, inner: int, outer: int, repeats: int) -> None:
        super().__init__()
        self.first = conv(inner, outer, act=nn.SiLU())
        self.chain = nn.ModuleList(Bottleneck(outer // 2) for _ in range(repeats))
        self.last = conv((2 + repeats) * outer // 2, outer, act=nn.SiLU())

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.first(x).chunk(2, 1))
        for block in self.chain:
            parts.append(block(parts[-1]))
        y: Tensor = self.last(torch.cat(parts, 1))
        return y


class Sppf(nn.Module):
    """Three max pools in a row, concatenated: fast spatial pyramid pooling."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = conv(width, width // 2, act=nn.SiLU()), conv(width * 2, width, act=nn.SiLU())
        self.pool = nn.MaxPool2d(5, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.first(x)]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        y: Tensor = self.last(torch.cat(parts, 1))
        return y


class Yolo(nn.Module):
    """A detector in the manner of YOLOv5 and v8: Focus, C2f, SPPF, a pyramid by nearest upsampling, two heads."""

    def __init__(self, width: int = 32, outputs: int = 84) -> None:
        super().__init__()
        w = width
        self.focus = conv(12, w, 3, act=nn.SiLU())
        self.low = nn.Sequential(conv(w, 2 * w, 3, 2, act=nn.SiLU()), C2f(2 * w, 2 * w, 1))
        self.middle = nn.Sequential(conv(2 * w, 4 * w, 3, 2, act=nn.SiLU()), C2f(4 * w, 4 * w, 2))
        self.high = nn.Sequential(conv(4 * w, 8 * w, 3, 2, act=nn.SiLU()), C2f(8 * w, 8 * w, 1), Sppf(8 * w))
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.merge = C2f(12 * w, 4 * w, 1)
        self.heads = nn.ModuleList([nn.Conv2d(4 * w, outputs, 1), nn.Conv2d(8 * w, outputs, 1)])

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2]], 1)
        middle = self.middle(self.low(self.focus(x)))
        high = self.high(middle)
        merged = self.merge(torch.cat([self.up(high), middle], 1))
        found = [head(y).flatten(2) for head, y in zip(self.heads, (merged, high), strict=True)]
        boxes, classes = torch.cat(found, 2).split((4, found[0].shape[1] - 4), 1)
        return torch.cat([boxes, classes.sigmoid()], 1)


class ResnetBlock(nn.Module):
    """The residual block of diffusion UNets: group norm, SiLU, convolution, twice."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.GroupNorm(8, inner), nn.SiLU(), nn.Conv2d(inner, outer, 3, padding=1),
            nn.GroupNorm(8, outer), nn.SiLU(), nn.Conv2d(outer, outer, 3, padding=1),
        )  # fmt: skip
        self.side = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.main(x) + self.side(x)
        return y


class Unet(nn.Module):
    """A small UNet with group norm, without attention."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        w = width
        self.first = nn.Conv2d(3, w, 3, padding=1)
        self.down = nn.ModuleList([ResnetBlock(w, w), ResnetBlock(w, 2 * w), ResnetBlock(2 * w, 4 * w)])
        self.up = nn.ModuleList([ResnetBlock(8 * w, 2 * w), ResnetBlock(4 * w, w), ResnetBlock(2 * w, w)])
        self.middle = ResnetBlock(4 * w, 4 * w)
        self.last = nn.Conv2d(w, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        kept: list[Tensor] = []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = nn.functional.avg_pool2d(x, 2)
        x = self.middle(x)
        for block in self.up:
            x = nn.functional.interpolate(x, scale_factor=2, mode="nearest")
            x = block(torch.cat([x, kept.pop()], 1))
        y: Tensor = self.last(x)
        return y


class SkipUnet(nn.Module):
    """The U-Net of medical images (arXiv 1505.04597) at half its width, padded, with batch norms."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        widths = [width << level for level in range(5)]
        pairs = list(pairwise(widths))
        self.first = self.double(3, width)
        self.down = nn.ModuleList(nn.Sequential(nn.MaxPool2d(2), self.double(*pair)) for pair in pairs)
        self.grow = nn.ModuleList(nn.ConvTranspose2d(wide, narrow, 2, 2) for narrow, wide in reversed(pairs))
        self.up = nn.ModuleList(self.double(wide, narrow) for narrow, wide in reversed(pairs))
        self.last = nn.Conv2d(width, 2, 1)

    @staticmethod
    def double(inner: int, outer: int) -> nn.Sequential:
        return nn.Sequential(conv(inner, outer, 3, act=nn.ReLU()), conv(outer, outer, 3, act=nn.ReLU()))

    def forward(self, x: Tensor) -> Tensor:
        kept = [self.first(x)]
        for block in self.down:
            kept.append(block(kept[-1]))
        x = kept.pop()
        for grow, block in zip(self.grow, self.up, strict=True):
            x = block(torch.cat([kept.pop(), grow(x)], 1))
        y: Tensor = self.last(x)
        return y


class Dilated(nn.Module):
    """HiFi-GAN's residual block (arXiv 2010.05646): 1-D convolutions of growing dilation."""

    def __init__(self, width: int, kernel: int, dilations: Sequence[int]) -> None:
        super().__init__()
        layer = lambda d: nn.Conv1d(width, width, kernel, dilation=d, padding=(kernel - 1) * d // 2)  # noqa: E731
        self.pairs = nn.ModuleList(
            nn.Sequential(nn.LeakyReLU(0.1), layer(d), nn.LeakyReLU(0.1), layer(1)) for d in dilations
        )

    def forward(self, x: Tensor) -> Tensor:
        for pair in self.pairs:
            x = x + pair(x)
        return x


class Vocoder(nn.Module):
    """A generator like HiFi-GAN V2: mel spectrogram to waveform."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first = nn.Conv1d(80, width, 7, padding=3)
        self.ups, self.blocks = nn.ModuleList(), nn.ModuleList()
        for factor in (8, 8, 2):
            self.ups.append(nn.ConvTranspose1d(width, width // 2, 2 * factor, factor, factor // 2))
            width //= 2
            self.blocks.append(nn.ModuleList(Dilated(width, kernel, (1, 3, 5)) for kernel in (3, 7)))
        self.last = nn.Conv1d(width, 1, 7, padding=3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for up, blocks in zip(self.ups, self.blocks, strict=True):
            x = up(nn.functional.leaky_relu(x, 0.1))
            x = torch.stack([block(x) for block in blocks]).mean(0)
        y: Tensor = self.last(nn.functional.leaky_relu(x, 0.1)).tanh()
        return y


class DeepSpeech(nn.Module):
    """A recognizer like Deep Speech 2 (arXiv 1512.02595): a spectrogram of 161 frequencies to letters at each step."""

    def __init__(self, width: int = 256, layers: int = 3, letters: int = 29) -> None:
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv2d(1, 32, (41, 11), (2, 2), (20, 5)),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20),
            nn.Conv2d(32, 32, (21, 11), (2, 1), (10, 5)),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20),
        )
        sizes = [32 * 41, *[width] * (layers - 1)]
        self.layers = nn.ModuleList(nn.GRU(size, width, batch_first=True, bidirectional=True) for size in sizes)
        self.norms = nn.ModuleList(nn.BatchNorm1d(size) for size in sizes[1:])
        self.last = nn.Linear(width, letters)

    def forward(self, x: Tensor) -> Tensor:
        x = self.convs(x).flatten(1, 2)
        for layer, norm in zip(self.layers, [nn.Identity(), *self.norms], strict=True):
            forth, back = layer(norm(x).transpose(1, 2))[0].chunk(2, -1)
            x = (forth + back).transpose(1, 2)
        y: Tensor = self.last(x.transpose(1, 2)).log_softmax(-1)
        return y


class Tagger(nn.Module):
    """A tagger of words by LSTMs in both directions (arXiv 1508.01991), without its CRF: vectors to scores of tags."""

    def __init__(self, embedding: int = 128, width: int = 256, tags: int = 45) -> None:
        super().__init__()
        self.layers = nn.LSTM(embedding, width, num_layers=2, batch_first=True, bidirectional=True)
        self.last = nn.Linear(2 * width, tags)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.layers(x)[0])
        return y


class SpeechEnhancer(nn.Module):
    """Gains of the bands of noisy speech by GRUs, as NSNet2 tells them (arXiv 2008.06412): log spectra to gains."""

    def __init__(self, bands: int = 161, width: int = 400, last: int = 600) -> None:
        super().__init__()
        self.first = nn.Linear(bands, width)
        self.layers = nn.GRU(width, width, num_layers=2, batch_first=True)
        self.gains = nn.Sequential(
            nn.Linear(width, last), nn.ReLU(), nn.Linear(last, last), nn.ReLU(), nn.Linear(last, bands), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.gains(self.layers(self.first(x))[0])
        return y


class TextRecognizer(nn.Module):
    """Letters of a line of text, as CRNN reads them (arXiv 1507.05717): convolutions, then LSTMs in both directions."""

    def __init__(self, letters: int = 97, width: int = 256) -> None:
        super().__init__()
        self.image = nn.Sequential(
            conv(1, 64, 3, act=nn.ReLU()),
            nn.MaxPool2d(2),
            conv(64, 128, 3, act=nn.ReLU()),
            nn.MaxPool2d(2),
            conv(128, 256, 3, act=nn.ReLU()),
            conv(256, 256, 3, act=nn.ReLU()),
            nn.MaxPool2d((2, 1)),
            conv(256, 512, 3, act=nn.ReLU()),
            conv(512, 512, 3, act=nn.ReLU()),
            nn.MaxPool2d((2, 1)),
            nn.Conv2d(512, 512, (2, 1)),
            nn.ReLU(),
        )
        self.lines = nn.LSTM(512, width, num_layers=2, bidirectional=True, batch_first=True)
        self.letters = nn.Linear(2 * width, letters)

    def forward(self, x: Tensor) -> Tensor:
        columns = self.image(x).squeeze(2).transpose(1, 2)
        y: Tensor = self.letters(self.lines(columns)[0])
        return y


class Step(nn.Module):
    """One token of a text model behind a cache: keys and values of its layers are given, and returned longer.

    Each is an argument of its own: exporters name the inputs of a model after these.
    """

    LAYERS = 4

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor,
        k0: Tensor, v0: Tensor, k1: Tensor, v1: Tensor, k2: Tensor, v2: Tensor, k3: Tensor, v3: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        from transformers import DynamicCache

        cache = DynamicCache(ddp_cache_data=[(k0, v0), (k1, v1), (k2, v2), (k3, v3)])
        found = self.model(input_ids, attention_mask=attention_mask, past_key_values=cache, use_cache=True)
        longer = [part for layer in found.past_key_values.layers for part in (layer.keys, layer.values)]
        return (found.logits, *longer)
