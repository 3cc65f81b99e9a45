"""The test models of the onnx package, the outputs that its specification expects, and a strict way to run them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import onnx
import onnx.backend.test
from onnx import ModelProto, TensorProto, numpy_helper

DATA = Path(onnx.backend.test.__file__).parent / "data"
ON_DISK = ("simple", "pytorch-converted", "pytorch-operator")

Outputs: TypeAlias = list[Any]
EPSILON = {np.dtype(np.float16): 2.0**-10, np.dtype(ml_dtypes.bfloat16): 2.0**-7}
"""Of the half types: a result that is rounded in another place may be a neighbouring number."""


@dataclass(frozen=True)
class Case:
    """A model, inputs for it, and the outputs that the specification expects."""

    name: str
    model: ModelProto
    data: Sequence[tuple[Sequence[Any], Sequence[Any]]]
    rtol: float
    atol: float


@cache
def cases() -> tuple[Case, ...]:
    """All node, simple and pytorch-converted tests, by name."""
    return tuple(sorted((*_generated(), *_stored()), key=lambda case: case.name))


def _generated() -> Iterator[Case]:
    """The node and model tests that the package makes in memory."""
    from onnx.backend.test.case import model as models
    from onnx.backend.test.case import node as nodes

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, while the package computes special values on purpose
        made = [*nodes.collect_testcases(), *models.collect_testcases()]
    for case in made:
        if case.model is not None:
            yield Case(case.name, case.model, case.data_sets or (), case.rtol, case.atol)


def _stored() -> Iterator[Case]:
    for kind in ON_DISK:
        for folder in sorted((DATA / kind).iterdir()):
            if (folder / "model.onnx").exists():
                model = onnx.load(folder / "model.onnx")
                sets = [_read_set(data, model) for data in sorted(folder.glob("test_data_set_*"))]
                yield Case(f"{kind}/{folder.name}", model, sets, 1e-3, 1e-5)


def _read_set(folder: Path, model: ModelProto) -> tuple[Outputs, Outputs]:
    inputs = [_read(folder / f"input_{i}.pb", info) for i, info in enumerate(model.graph.input)]
    outputs = [_read(folder / f"output_{i}.pb", info) for i, info in enumerate(model.graph.output)]
    return [value for value in inputs if value is not None], outputs


def _read(path: Path, info: onnx.ValueInfoProto) -> Any:
    if not path.exists():
        return None
    kind = info.type.WhichOneof("value")
    if kind == "sequence_type":
        return numpy_helper.to_list(onnx.SequenceProto.FromString(path.read_bytes()))
    if kind == "optional_type":
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(path.read_bytes()))
    return numpy_helper.to_array(TensorProto.FromString(path.read_bytes()))


def feeds(model: ModelProto, inputs: Sequence[Any]) -> Mapping[str, Any]:
    """Inputs by name; initializers that are listed as inputs are not fed, nor optional ones without a value."""
    stored = {tensor.name for tensor in model.graph.initializer} if model.ir_version < 4 else set()
    names = [info.name for info in model.graph.input if info.name not in stored]
    return {name: value for name, value in zip(names, inputs, strict=False) if value is not None}


def run(model: ModelProto, inputs: Sequence[Any]) -> Outputs | str:
    """The outputs in ONNX Runtime without its optimizations, or the first line of its error."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        found: Outputs = session.run(None, dict(feeds(model, inputs)))
        return found
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def run_reference(model: ModelProto, inputs: Sequence[Any]) -> Outputs | str:
    """The outputs by the onnx package's reference evaluator, or the class of its error."""
    from onnx.reference import ReferenceEvaluator

    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return list(ReferenceEvaluator(model).run(None, dict(feeds(model, inputs))))
    except Exception as error:
        return type(error).__name__


def agree(found: Sequence[Any], expected: Sequence[Any], rtol: float, atol: float) -> bool:
    """Every output is equal as far as the tolerances allow; types and shapes are equal."""
    return len(found) == len(expected) and all(_agree(a, b, rtol, atol) for a, b in zip(found, expected, strict=True))


def _agree(found: Any, expected: Any, rtol: float, atol: float) -> bool:
    if isinstance(found, list) or isinstance(expected, list):
        return len(found) == len(expected) and all(
            _agree(a, b, rtol, atol) for a, b in zip(found, expected, strict=True)
        )
    if found is None or expected is None:
        return found is expected
    a, b = np.asarray(found), np.asarray(expected)
    if a.shape != b.shape:
        return False
    if a.dtype.kind in "OUS":
        return [str(item) for item in a.ravel()] == [str(item) for item in b.ravel()]
    if a.dtype != b.dtype:
        return False
    rtol, atol = (max(bound, 4 * EPSILON.get(a.dtype, 0)) for bound in (rtol, atol))
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    return bool(np.allclose(a.astype(wide), b.astype(wide), rtol=rtol, atol=atol, equal_nan=True))
