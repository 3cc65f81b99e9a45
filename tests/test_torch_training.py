"""Gradients and training of networks that PyTorch exports, against PyTorch's own; skipped where it is missing."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import onnxruntime
import pytest

import graphopt
from benchmarks.training import NETWORKS

for package in ("torchvision", "timm", "transformers"):
    pytest.importorskip(package, reason="the packages of the networks are in the extra [bench]")
torch = pytest.importorskip("torch")
torch_networks = pytest.importorskip("benchmarks.torch_networks")

pytestmark = pytest.mark.slow
TOLERANCE = 1e-4
"""Largest error of a gradient, relative to the largest element of that gradient."""
ROUNDING = 1e-6
"""Error of a sum in single precision whose exact value is 0, as that of a bias that a normalization removes."""
NOISE = 1e-7
"""Elements below which a gradient is rounding alone: that of a bias that a normalization removes is 0."""


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


def opened(made: graphopt.TrainingResult) -> onnxruntime.InferenceSession:
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    return onnxruntime.InferenceSession(made.model.SerializeToString(), settings, providers=["CPUExecutionProvider"])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_and_steps_are_those_of_torch(name: str) -> None:
    torch.manual_seed(1)
    model, inputs = torch_networks.NETWORKS[name]()
    model.eval()
    with torch.no_grad():
        for parameter in model.parameters():  # equal weights would become one initializer
            parameter.add_(torch.randn_like(parameter) * 0.01)
    proto = torch_networks.exported(model, inputs)
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
    for step in range(50 if name in ("U-Net", "ViT", "BERT") else 5):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(*inputs), labels)
        loss.backward()
        found = dict(zip(names, session.run(names, feeds | state), strict=True))
        assert float(found["loss"]) == pytest.approx(loss.item(), rel=1e-3)
        for weight, parameter in model.named_parameters() if step == 0 else ():
            assert parameter.grad is not None
            expected = parameter.grad.numpy()
            error = np.abs(found[made.gradients[weight]] - expected).max()
            assert error <= TOLERANCE * max(np.abs(expected).max(), NOISE), weight
        optimizer.step()
        state = {before: found[following] for before, following in made.states.items()}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["U-Net", "ResNet-18", "MobileNetV2"])
def test_training_mode_follows_torch_in_double_precision(name: str) -> None:
    torch.manual_seed(1)
    model, inputs = torch_networks.NETWORKS[name]()
    smoothed(model).train()
    proto = torch_networks.exported(copy.deepcopy(model), inputs)
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
    for weight, parameter in exact.named_parameters():
        assert parameter.grad is not None
        expected = parameter.grad.numpy()
        error = np.abs(found[made.gradients[weight]] - expected).max()
        assert error <= max(TOLERANCE * np.abs(expected).max(), ROUNDING), weight


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "open_axes"), [("segmentation", (0, 2, 3)), ("LSTM", (0, 1)), ("GRU", (0, 1)), ("RNN", (0, 1))]
)
def test_gradients_at_other_sizes_than_those_of_the_export(name: str, open_axes: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    model, (example,) = torch_networks.OF_OPEN_SIZES[name]()
    made = graphopt.grad(torch_networks.exported(model.eval(), (example,), open_axes=open_axes), "mse", update="none")
    session = opened(made)
    names = [output.name for output in session.get_outputs()]
    x = example
    for axis in open_axes:
        x = torch.cat([x, x.narrow(axis, 0, 1 + axis)], axis)
    outputs = model(x)
    target = torch.randn_like(outputs)
    torch.nn.functional.mse_loss(outputs, target).backward()
    found = dict(zip(names, session.run(names, {"x0": x.numpy(), "target": target.numpy()}), strict=True))
    for weight, parameter in model.named_parameters():
        assert parameter.grad is not None
        expected = parameter.grad.numpy()
        error = np.abs(found[made.gradients[weight]] - expected).max()
        assert error <= TOLERANCE * max(np.abs(expected).max(), NOISE), weight
