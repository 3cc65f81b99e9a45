"""A model of 4 GB passes through in a fraction of its size: weights that nobody reads are copied, never held."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, numpy_helper
from onnx.parser import parse_model

GIB = 1 << 30
WEIGHT = 4 * GIB
"""Bytes of the weight that nothing touches."""
MODEL = """<ir_version: 10, opset_import: ["": 18]>
large (float[N, 3, 8, 8] x, float[K, 32768] v) => (float[N, 4, 6, 6] y, float[K, 32768] z) <
    float[4] s = {1, 2, 3, 4}, float[4] b = {0, 1, 0, 1}, float[4] m = {0.5, 0, 0, 0}, float[4] d = {1, 1, 4, 1}
> {
    c = Conv (x, w)
    y = BatchNormalization (c, s, b, m, d)
    z = MatMul (v, huge)
}"""


def large(folder: Path) -> Path:
    """Conv and batch norm next to a weight of 4 GB, most of it a hole in a sparse file."""
    proto = parse_model(MODEL)
    with (folder / "large.data").open("wb") as file:
        np.linspace(-1, 1, 4 * 3 * 3 * 3, dtype=np.float32).tofile(file)
        external(proto, "w", [4, 3, 3, 3], 0)
        external(proto, "huge", [32768, 32768], 4096)
        for row in (0, 32767):
            file.seek(4096 + row * 4 * 32768)
            np.full(3, row + 1, np.float32).tofile(file)
        file.truncate(4096 + WEIGHT)
    path = folder / "large.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def external(proto: ModelProto, name: str, shape: list[int], offset: int) -> None:
    tensor = proto.graph.initializer.add(
        name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL
    )
    places = {"location": "large.data", "offset": offset, "length": 4 * int(np.prod(shape))}
    for key, value in places.items():
        tensor.external_data.add(key=key, value=str(value))


def peak(script: str) -> int:
    """The most memory in bytes that a fresh interpreter held at once while it ran a script."""
    # VmHWM begins anew with a program; ru_maxrss keeps what the process that started it held
    report = "import pathlib, re; status = pathlib.Path('/proc/self/status').read_text()"
    scale = "print(1024 * int(re.search(r'VmHWM:\\s*(\\d+) kB', status)[1]))"
    done = subprocess.run(
        [sys.executable, "-c", f"{script}\n{report}\n{scale}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: int = json.loads(done.stdout)
    return found


def same_ends(path: Path) -> bool:
    """Whether the huge weight begins and ends as it did."""
    proto = onnx.load(path, load_external_data=False)
    (tensor,) = (tensor for tensor in proto.graph.initializer if tensor.name == "huge")
    place = {entry.key: entry.value for entry in tensor.external_data}
    values = np.memmap(path.parent / place["location"], np.float32, "r", int(place["offset"]), (32768, 32768))
    return [*values[0, :4], *values[32767, :4]] == [1, 1, 1, 0, 32768, 32768, 32768, 0]


@pytest.mark.slow
def test_load_and_save(tmp_path: Path) -> None:
    path, out = large(tmp_path), tmp_path / "out.onnx"
    script = f"from graphopt.io import onnx_io; onnx_io.save(onnx_io.load({str(path)!r}), {str(out)!r})"
    assert peak(script) < GIB // 2
    assert (tmp_path / "out.onnx.data").stat().st_size >= WEIGHT
    assert same_ends(out)
    onnx.checker.check_model(out)


@pytest.mark.slow
def test_save_over_itself(tmp_path: Path) -> None:
    path = large(tmp_path)
    script = f"from graphopt.io import onnx_io; onnx_io.save(onnx_io.load({str(path)!r}), {str(path)!r})"
    assert peak(script) < GIB // 2
    assert same_ends(path)


def test_holes_stay_holes(tmp_path: Path) -> None:
    """Copying takes neither the time nor the disk of what is only zeros."""
    path = large(tmp_path)
    if not hasattr(path.stat(), "st_blocks") or (tmp_path / "large.data").stat().st_blocks * 512 > GIB:
        pytest.skip("this file system has no sparse files")
    from graphopt.io import onnx_io

    onnx_io.save(onnx_io.load(path), tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx.data").stat().st_blocks * 512 < GIB // 8


@pytest.mark.slow
def test_optimize(tmp_path: Path) -> None:
    """The batch norm is folded, checked on its own, and saved, in under 1 GB."""
    path, out = large(tmp_path), tmp_path / "out.onnx"
    script = f"""import graphopt
result = graphopt.optimize({str(path)!r}, cost='none')
assert result.ok, result.report.comparison
assert result.report.after.ops == {{"Conv": 1, "MatMul": 1}}, result.report.after.ops
result.save({str(out)!r})"""
    assert peak(script) < GIB
    assert same_ends(out)
    onnx.checker.check_model(out)


# -- memory with the check ---------------------------------------------------------------------------------------------

LAYERS = 8


def dense(folder: Path, size: int, *, external: bool = False) -> Path:
    """Products with weights of so many rows; what may be left out, and what may not, between them."""
    names = [f"w{layer}" for layer in range(LAYERS)]
    lines = [
        f"a{i} = MatMul (x{i}, {name})  b{i} = Identity (a{i})  x{i + 1} = Tanh (b{i})" for i, name in enumerate(names)
    ]
    head = f"g (float[N, {size}] x0) => (float[N, {size}] x{LAYERS})"
    proto = parse_model(f'<ir_version: 10, opset_import: ["": 18]> {head} {{ {" ".join(lines)} }}')
    random = np.random.default_rng(0)
    for name in names:
        values = random.standard_normal((size, size), np.float32) / np.float32(np.sqrt(size))
        proto.graph.initializer.append(numpy_helper.from_array(values, name))
    path = folder / f"dense{size}.onnx"
    onnx.save(proto, path, save_as_external_data=external, location=f"{path.name}.data")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("external", [False, True])
def test_the_check_takes_less_than_three_times_the_weights(tmp_path: Path, external: bool) -> None:
    size = 1400
    weights = LAYERS * size * size * 4  # 63 MB

    def taken(size: int) -> int:
        path = dense(tmp_path, size, external=external)
        return peak(f"""import graphopt
result = graphopt.optimize({str(path)!r}, cost='none')
assert result.ok
result.save({str(tmp_path / "out.onnx")!r})""")

    assert taken(size) - taken(16) < 3 * weights
