"""The models of the benchmark: nets with random weights that compute something, and exports that are never stale."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from benchmarks import models, quantized
from benchmarks.architectures import Case, settled
from benchmarks.models import ARCHITECTURES, HELD_OUT, LOOKED_AT, MODELS, OPEN, QUICK, SUITE, WHEELS, Model
from tests import fixture_models, zoo
from tests.text import parse, run

YOLO = MODELS["yolo.dynamo"]


def net(torch: Any, *norms: Any) -> Any:
    """Twelve convolutions, each behind the norms and a ReLU, and a classifier: all sizes are 8."""
    nn = torch.nn
    layers = [nn.Conv2d(3, 8, 1)]
    for _ in range(12):
        layers += [*(norm(8) for norm in norms), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 8)).eval()


def outputs(torch: Any, module: Any) -> tuple[Any, Any]:
    """Those of two random images."""
    one, other = torch.randn(2, 1, 3, 16, 16, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        return module(one), module(other)


@pytest.mark.parametrize("norms", [(), ("BatchNorm2d",)], ids=["plain", "batch norm"])
@pytest.mark.parametrize("gain", [0.3, 1.0, 30.0])
def test_outputs_of_settled_nets_are_of_order_1_and_move(norms: tuple[str, ...], gain: float) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module = net(torch, *(getattr(torch.nn, norm) for norm in norms))
    with torch.no_grad():
        for layer in module:
            if isinstance(layer, torch.nn.Conv2d):
                layer.weight.mul_(gain)
    one, other = outputs(torch, module)
    assert not 0.1 < one.std() < 10 or (one - other).abs().max() < 0.05 * one.std(), "as made, it has no use"

    settled(module, {"input": torch.zeros(1, 3, 16, 16)})

    one, other = outputs(torch, module)
    assert 0.1 < one.std() < 10
    assert (one - other).abs().max() > 0.05 * one.std()


def test_no_settled_batch_norm_is_the_identity_or_lacks_variance() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module = settled(net(torch, torch.nn.BatchNorm2d), {"input": torch.zeros(1, 3, 16, 16)})
    for layer in module:
        if isinstance(layer, torch.nn.BatchNorm2d):
            assert (layer.running_mean != 0).all() and (layer.running_var != 1).all()
            assert (layer.running_var > 1e-4).all()


def test_settling_is_repeatable_and_leaves_no_hooks() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module = net(torch)
    twin = net(torch)
    twin.load_state_dict(module.state_dict())
    for each in (module, twin):
        settled(each, {"input": torch.zeros(1, 3, 16, 16)})
        assert not any(layer._forward_hooks for layer in each.modules())
    assert all(torch.equal(one, other) for one, other in zip(module.parameters(), twin.parameters(), strict=True))


def test_shared_weights_stay_shared_and_tiny_scales_grow() -> None:
    torch = pytest.importorskip("torch")
    nn = torch.nn
    table, scale, layer, same, head = (
        nn.Embedding(50, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 50, bias=False),
    )  # fmt: skip
    same.weight, head.weight = layer.weight, table.weight
    nn.init.constant_(scale.weight, 1e-6)
    before = layer.weight.clone()

    settled(nn.Sequential(table, layer, scale, same, head), {"input": torch.randint(0, 50, (1, 6))})

    assert head.weight is table.weight
    assert same.weight is layer.weight and torch.equal(layer.weight, before)
    assert scale.weight.min() >= 0.5


@pytest.fixture
def exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is exported, into an empty cache; the sources are a file that can be changed."""
    made: list[str] = []

    def noted(model: Model, _: Case, path: Path) -> None:
        made.append(model.name)
        path.write_bytes(b"a model")

    (tmp_path / "source.py").write_text("width = 1", encoding="utf-8")
    monkeypatch.setattr(models, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(models, "SOURCES", (tmp_path / "source.py",))
    monkeypatch.setattr(models, "_case", lambda model: Case(None, {}, (), {}))
    monkeypatch.setattr(models, "_export", noted)
    return made


def test_what_the_cache_holds_is_not_exported_again(exports: list[str]) -> None:
    path = models.export(YOLO)
    assert path.name == "yolo.dynamo.onnx" and path.read_bytes() == b"a model"
    assert models.export(YOLO) == path
    assert exports == ["yolo.dynamo"]
    models.export(YOLO, again=True)
    assert exports == ["yolo.dynamo"] * 2


def test_changed_sources_and_packages_are_exported_again(
    exports: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.export(YOLO)
    (tmp_path / "source.py").write_text("width = 2", encoding="utf-8")
    models.export(YOLO)
    assert len(exports) == 2
    monkeypatch.setattr(models, "installed", lambda package: "0.0")
    models.export(YOLO)
    assert len(exports) == 3


@pytest.mark.usefixtures("exports")
def test_files_of_unknown_making_are_exported_again(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "yolo.dynamo.onnx").write_bytes(b"of long ago")
    assert models.export(YOLO).read_bytes() == b"a model"


def test_held_out_architectures_are_none_of_the_suite() -> None:
    families = {architecture.family for architecture in ARCHITECTURES.values()}
    held_out = {model.architecture.family for model in HELD_OUT.values()}
    assert len(held_out) == len(HELD_OUT) >= 10
    assert families.isdisjoint(held_out)
    assert held_out.isdisjoint(model.architecture.family for model in LOOKED_AT.values())


def test_no_two_models_have_one_key_and_each_fixture_has_a_model() -> None:
    fixtures = fixture_models.models()
    assert sorted(fixtures) == zoo.names()
    known = [*MODELS.values(), *fixtures.values()]
    assert len({models.key(model) for model in known}) == len(known)


def test_the_suite_has_every_architecture_and_package_at_most_once_in_a_form() -> None:
    assert len(SUITE) == len({*SUITE}) <= 40 and {*SUITE} <= MODELS.keys() | WHEELS.keys()
    chosen, architectures = {name.split(".")[0] for name in SUITE}, {name.split(".")[0] for name in MODELS}
    assert architectures <= chosen and {*QUICK} < {*SUITE}
    packages = {wheel.package for name, wheel in WHEELS.items() if name in SUITE}
    assert packages == {wheel.package for wheel in WHEELS.values()}


def test_of_open_sizes_one_has_three_values() -> None:
    pytest.importorskip("timm")
    pytest.importorskip("transformers")
    assert len(OPEN) == 8 and OPEN.keys() <= MODELS.keys()
    for name, sizes in OPEN.items():
        assert [len(values) for values in sizes.values()] == [3] and MODELS[name].dynamic
        axes = {axis for some in MODELS[name].architecture.case().axes.values() for axis in some.values()}
        assert sizes.keys() <= axes


@pytest.mark.parametrize("form", quantized.FORMS)
def test_quantized_forms_compute_what_the_model_does(form: str, tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    weights = {"w": draw.normal(size=(4, 3, 1, 1)).astype(np.float32), "m": draw.normal(size=(4, 5)).astype(np.float32)}
    body = "a = Conv(x, w); b = Relu(a); c = GlobalAveragePool(b); d = Flatten(c); y = MatMul(d, m)"
    given = parse("float[1,3,8,8] x", body, weights)
    feeds = zoo.inputs(given)
    onnx.save(given, tmp_path / "model.onnx")
    quantized.quantize(tmp_path / "model.onnx", form, feeds)
    made = onnx.load(tmp_path / "model.onnx")
    assert any(node.op_type in ("DequantizeLinear", "MatMulInteger") for node in made.graph.node)
    before, after = run(given, feeds)["y"], run(made, feeds)["y"]
    assert 0 < np.abs(after - before).max() < 0.05 * np.abs(before).max()
