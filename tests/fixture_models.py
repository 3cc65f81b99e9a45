"""Write the fixtures: each exported model as a whole graph, its large weights reduced to recipes.

``python -m tests.fixture_models [NAME ...]`` exports what ``fixtures/models.toml`` names and the cache of the
benchmarks lacks. What a recipe is and how it is followed stands in ``zoo.py``. Kept as they are: names, small tensors,
integers, and tensors of few distinct values, such as masks. Long metadata is dropped: stack traces, which name files of
the exporting machine.
"""

from __future__ import annotations

import json
import sys
import tomllib
import zlib
from collections.abc import Iterable, Mapping

import numpy as np
import onnx
from onnx import numpy_helper

from benchmarks.models import Model, export, read_architecture
from tests import zoo

SMALL = 128
"""Tensors of fewer elements keep their values."""

_FEW_VALUES = 8
_LONG_METADATA = 120
_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)


def models() -> Mapping[str, Model]:
    """Return the models by the names of their fixtures; their weights are not settled, for few of them are kept."""
    tables = tomllib.loads((zoo.FIXTURES / "models.toml").read_text(encoding="utf-8"))
    architectures = {name: read_architecture(entry) for name, entry in tables["architectures"].items()}
    return {
        name: Model(name, **{**row, "architecture": architectures[row["architecture"]]}, is_settled=False)
        for name, row in tables["exports"].items()
    }


def reduce(model: onnx.ModelProto) -> None:
    """Replace the values of large float tensors by recipes, in place."""
    for tensor in zoo.tensors(model.graph):
        recipe = _recipe(tensor)
        if recipe is not None:
            for field in ("raw_data", "float_data", "double_data", "int32_data"):
                tensor.ClearField(field)
            tensor.doc_string = json.dumps(recipe)


def _recipe(tensor: onnx.TensorProto) -> dict[str, object] | None:
    """Return how to make a tensor of the same kind, or None where the values themselves matter or are few.

    The seed is a digest of the values, so that equal tensors stay equal. A tensor of one sign keeps it: a variance
    stays positive.
    """
    if tensor.data_type not in _FLOATS or np.prod(tensor.dims) < SMALL:
        return None
    array = numpy_helper.to_array(tensor).astype(np.float64)
    low, high = float(array.min()), float(array.max())
    if low == high:
        return {"fill": low}
    if np.unique(array[..., :256]).size <= _FEW_VALUES and np.unique(array).size <= _FEW_VALUES:
        return None
    seed = zlib.crc32(array.tobytes())
    if low > 0 or high < 0:
        return {"seed": seed, "uniform": [_short(low), _short(high)]}
    return {"seed": seed, "normal": [_short(float(array.mean())), _short(float(array.std()))]}


def _short(number: float) -> float:
    """Return six digits: a recipe is read by people too."""
    return float(f"{number:.6g}")


def strip(model: onnx.ModelProto) -> None:
    """Drop long metadata, in place."""
    graph = model.graph
    holders: Iterable[onnx.NodeProto | onnx.ValueInfoProto | onnx.TensorProto | onnx.GraphProto] = (
        graph, *graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer,
    )  # fmt: skip
    for holder in holders:
        short = [entry for entry in holder.metadata_props if len(entry.value) <= _LONG_METADATA]
        del holder.metadata_props[:]
        holder.metadata_props.extend(short)


def main(names: Iterable[str]) -> None:
    """Write the named fixtures, or all, and say how large they are."""
    known = models()
    for name in names or known:
        model = onnx.load(export(known[name]))
        reduce(model)
        strip(model)
        path = zoo.FIXTURES / f"{name}.onnx"
        onnx.save(model, path)
        print(f"{name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
