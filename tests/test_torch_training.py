"""Gradients and training of networks that PyTorch exports, against PyTorch's own; skipped where it is missing."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import graphopt

torch = pytest.importorskip("torch", reason="torch and the packages of the networks are in the extra [bench]")
pytestmark = pytest.mark.slow
TOLERANCE = 1e-4
"""Largest error of a gradient, relative to the largest element of that gradient."""
ROUNDING = 1e-6
"""Error of a sum in single precision whose exact value is 0, as that of a bias that a normalization removes."""
NOISE = 1e-7
"""Elements below which a gradient is rounding alone: that of a bias that a normalization removes is 0."""


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
    models = pytest.importorskip("torchvision.models")
    return models.resnet18(num_classes=10), (torch.randn(4, 3, 64, 64),)


def mobilenet_v2() -> tuple[Any, tuple[Any, ...]]:
    models = pytest.importorskip("torchvision.models")
    return models.mobilenet_v2(num_classes=10, width_mult=0.5, dropout=0.0), (torch.randn(4, 3, 64, 64),)


def vit() -> tuple[Any, tuple[Any, ...]]:
    timm = pytest.importorskip("timm")
    model = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=3, num_classes=10)
    return model, (torch.randn(4, 3, 64, 64),)


def bert() -> tuple[Any, tuple[Any, ...]]:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 200, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.BertConfig(
        **sizes, intermediate_size=128, pad_token_id=None, num_labels=10, attn_implementation="eager"
    )

    class Classifier(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.bert = transformers.BertForSequenceClassification(config)

        def forward(self, ids: Any, mask: Any) -> Any:
            return self.bert(ids, attention_mask=mask).logits

    return Classifier(), (torch.randint(0, 200, (4, 12)), torch.ones(4, 12, dtype=torch.int64))


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


def smoothed(model: Any) -> Any:
    """The model with SiLU in the place of functions that have corners.

    At a corner one rounding error decides on which side an element lies, so that gradients in single precision differ
    by whole elements: those of torch in single and double precision, of a ResNet-18 in training mode, by 2.6e-2.
    """
    for name, child in list(model.named_children()):
        if isinstance(child, torch.nn.ReLU | torch.nn.ReLU6):
            setattr(model, name, torch.nn.SiLU())
        else:
            smoothed(child)
    return model


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


def opened(made: graphopt.TrainingResult) -> onnxruntime.InferenceSession:
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    return onnxruntime.InferenceSession(made.model.SerializeToString(), settings, providers=["CPUExecutionProvider"])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [unet, resnet18, mobilenet_v2, vit, bert])
def test_gradients_and_steps_are_those_of_torch(make: Callable[[], tuple[Any, tuple[Any, ...]]]) -> None:
    torch.manual_seed(1)
    model, inputs = make()
    model.eval()
    with torch.no_grad():
        for parameter in model.parameters():  # equal weights would become one initializer
            parameter.add_(torch.randn_like(parameter) * 0.01)
    proto = exported(model, inputs)
    outputs = model(*inputs)
    labels = torch.randint(0, outputs.shape[1], (outputs.shape[0], *outputs.shape[2:]))
    made = graphopt.grad(proto, "softmax_cross_entropy")
    session = opened(made)
    names = [output.name for output in session.get_outputs()]
    wanted = {each.name for each in session.get_inputs()}
    feeds = {f"x{i}": value.numpy() for i, value in enumerate(inputs)} | {"labels": labels.numpy()}
    feeds = {name: value for name, value in feeds.items() if name in wanted}

    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    state: dict[str, Any] = {}
    for step in range(50 if make in (unet, vit, bert) else 5):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(*inputs), labels)
        loss.backward()
        found = dict(zip(names, session.run(names, feeds | state), strict=True))
        assert float(found["loss"]) == pytest.approx(loss.item(), rel=1e-3)
        for name, parameter in model.named_parameters() if step == 0 else ():
            expected = parameter.grad.numpy()
            error = np.abs(found[made.gradients[name]] - expected).max()
            assert error <= TOLERANCE * max(np.abs(expected).max(), NOISE), name
        optimizer.step()
        state = {name: found[following] for name, following in made.states.items()}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [unet, resnet18, mobilenet_v2])
def test_training_mode_follows_torch_in_double_precision(make: Callable[[], tuple[Any, tuple[Any, ...]]]) -> None:
    torch.manual_seed(1)
    model, inputs = make()
    smoothed(model).train()
    proto = exported(copy.deepcopy(model), inputs)
    exact, exact_inputs = copy.deepcopy(model).double(), tuple(value.double() for value in inputs)
    outputs = copy.deepcopy(model)(*inputs)
    labels = torch.randint(0, outputs.shape[1], (outputs.shape[0], *outputs.shape[2:]))
    made = graphopt.grad(proto, "softmax_cross_entropy")
    session = opened(made)
    names = [output.name for output in session.get_outputs()]
    feeds = {f"x{i}": value.numpy() for i, value in enumerate(inputs)} | {"labels": labels.numpy()}
    found = dict(zip(names, session.run(names, feeds), strict=True))
    loss = torch.nn.functional.cross_entropy(exact(*exact_inputs), labels)
    loss.backward()
    assert float(found["loss"]) == pytest.approx(loss.item(), rel=1e-5)
    for name, parameter in exact.named_parameters():
        expected = parameter.grad.numpy()
        error = np.abs(found[made.gradients[name]] - expected).max()
        assert error <= max(TOLERANCE * np.abs(expected).max(), ROUNDING), name


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "open_axes"),
    [(segmentation, (0, 2, 3)), (recurrent("LSTM"), (0, 1)), (recurrent("GRU"), (0, 1)), (recurrent("RNN"), (0, 1))],
)
def test_gradients_at_other_sizes_than_those_of_the_export(
    make: Callable[[], tuple[Any, tuple[Any, ...]]], open_axes: tuple[int, ...]
) -> None:
    torch.manual_seed(1)
    model, (example,) = make()
    made = graphopt.grad(exported(model.eval(), (example,), open_axes=open_axes), "mse", update="none")
    session = opened(made)
    names = [output.name for output in session.get_outputs()]
    x = example
    for axis in open_axes:
        x = torch.cat([x, x.narrow(axis, 0, 1 + axis)], axis)
    outputs = model(x)
    target = torch.randn_like(outputs)
    torch.nn.functional.mse_loss(outputs, target).backward()
    found = dict(zip(names, session.run(names, {"x0": x.numpy(), "target": target.numpy()}), strict=True))
    for name, parameter in model.named_parameters():
        expected = parameter.grad.numpy()
        error = np.abs(found[made.gradients[name]] - expected).max()
        assert error <= TOLERANCE * max(np.abs(expected).max(), NOISE), name
