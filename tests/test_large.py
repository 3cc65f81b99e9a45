"""A model of 4 GB passes through in a fraction of its size: weights that nobody reads are copied, never held."""

import gc
import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, numpy_helper
from onnx.parser import parse_model

import graphopt
from graphopt.runtime.oracle import RunnableModel
from tests.text import parse

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
    script = f"from graphopt.io import onnx_io; onnx_io.save_model(onnx_io.load_model({str(path)!r}), {str(out)!r})"
    assert peak(script) < GIB // 2
    assert (tmp_path / "out.onnx.data").stat().st_size >= WEIGHT
    assert same_ends(out)
    onnx.checker.check_model(out)


@pytest.mark.slow
def test_save_over_itself(tmp_path: Path) -> None:
    path = large(tmp_path)
    script = f"from graphopt.io import onnx_io; onnx_io.save_model(onnx_io.load_model({str(path)!r}), {str(path)!r})"
    assert peak(script) < GIB // 2
    assert same_ends(path)


def test_holes_stay_holes(tmp_path: Path) -> None:
    """Copying takes neither the time nor the disk of what is only zeros."""
    path = large(tmp_path)
    if not hasattr(path.stat(), "st_blocks") or (tmp_path / "large.data").stat().st_blocks * 512 > GIB:
        pytest.skip("this file system has no sparse files")
    from graphopt.io import onnx_io

    onnx_io.save_model(onnx_io.load_model(path), tmp_path / "out.onnx")
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


# -- memory of the process alone ---------------------------------------------------------------------------------------


def linears(folder: Path, size: int, *, layers: int = 4) -> Path:
    """Linear layers as they are exported: a weight that is transposed, one with a scale behind it, norms, in a file."""
    nodes, names = [], [f"w{i}" for i in range(layers)] + [f"v{i}" for i in range(layers)]
    for i in range(layers):
        nodes += [
            f"n{i} = LayerNormalization <axis = -1> (x{i}, s)  t{i} = Transpose <perm = [1, 0]> (w{i})",
            f"m{i} = MatMul (n{i}, t{i})  r{i} = Relu (m{i})  p{i} = MatMul (r{i}, v{i})",
            f"q{i} = Mul (p{i}, s)  x{i + 1} = Add (x{i}, q{i})",
        ]
    head = f"g (float[N, {size}] x0) => (float[N, {size}] x{layers})"
    proto = parse_model(f'<ir_version: 8, opset_import: ["": 17]> {head} {{ {" ".join(nodes)} }}')
    random = np.random.default_rng(0)
    proto.graph.initializer.append(numpy_helper.from_array(np.linspace(1, 2, size, dtype=np.float32), "s"))
    for name in names:
        values = random.standard_normal((4 * size, size), np.float32) / np.float32(4 * size)
        proto.graph.initializer.append(numpy_helper.from_array(values, name))
    path = folder / f"linears{size}.onnx"
    onnx.save(proto, path, save_as_external_data=True, location=f"{path.name}.data")
    return path


def linear_bytes(size: int, layers: int = 4) -> int:
    return layers * 2 * 4 * size * size * 4


@pytest.mark.slow
def test_what_is_allocated_to_simplify_and_save(tmp_path: Path) -> None:
    """No more than the weights and a fifth, though all of them are written anew."""
    size, out = 704, tmp_path / "out.onnx"  # 63 MB
    small = linears(tmp_path, 16)
    graphopt.optimize(small, cost="none", check=False).save(out)  # whatever is loaded and kept once
    path = linears(tmp_path, size)
    gc.collect()
    tracemalloc.start()
    try:
        result = graphopt.optimize(path, cost="none", check=False)
        result.save(out, external=True)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "Transpose" not in result.report.after.ops and "Mul" not in result.report.after.ops
    assert most < 1.2 * linear_bytes(size), most / linear_bytes(size)


WATCHED = """
import threading, time
most, ended = [0], threading.Event()

def private():  # what is in memory of the process alone: no pages of files
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith("RssAnon"))

def watch():
    while not ended.wait(0.002):
        most[0] = max(most[0], private())

import graphopt
graphopt.optimize({small!r}, cost="none").save({out!r})  # whatever is loaded and kept once
before = private()
threading.Thread(target=watch, daemon=True).start()
result = graphopt.optimize({path!r}, cost="none")
assert result.ok
result.save({out!r})
ended.set()
print(most[0] - before)
"""


SCALED_DOWN = """
from graphopt.base import limits
from graphopt.check import patch_models
from graphopt.runtime import oracle

limits.MAX_TIMED_WEIGHT_BYTES, patch_models.MAX_CONTEXT_BYTES, oracle.MAX_IN_MEMORY_BYTES = (
    1 << 20, 1 << 22, 1 << 20
)
"""
"""What counts as large, as small as the model is."""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only there it is told")
@pytest.mark.parametrize("is_too_large", [False, True], ids=["whole", "rewrite by rewrite"])
def test_what_is_private_with_the_check(tmp_path: Path, is_too_large: bool) -> None:
    """Also where each rewrite is compared on its own, as in models of more than 1.5 GB."""
    size, out = 1024, tmp_path / "out.onnx"  # 134 MB
    paths = {"small": str(linears(tmp_path, 16)), "path": str(linears(tmp_path, size)), "out": str(out)}
    script = SCALED_DOWN * is_too_large + WATCHED.format(**paths)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 1.2 * linear_bytes(size), int(done.stdout) / linear_bytes(size)


def test_weights_of_a_message_are_each_in_a_place_of_their_own_beside_it(tmp_path: Path) -> None:
    """They are made one after the other, and the next may lie in memory where the one before did."""
    rng = np.random.default_rng(0)
    weights = {f"w{i}": rng.standard_normal((64, 512)).astype(np.float32) for i in range(12)}
    sums = ", ".join(f"y{i}" for i in range(12))
    body = "; ".join(f"y{i} = Add(x, w{i})" for i in range(12)) + f"; y = Sum({sums})"
    model = parse("float[64,512] x", body, weights, outputs="float[64,512] y")
    RunnableModel(model).write(tmp_path / "model.onnx")
    written = onnx.load(tmp_path / "model.onnx")
    for tensor in written.graph.initializer:
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor), weights[tensor.name], err_msg=tensor.name)
