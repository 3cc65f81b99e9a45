"""What `onnx.reference` and ONNX Runtime make of one operator on small arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from graphopt.ir import schemas

Array: TypeAlias = NDArray[Any]
OPSET = min(schemas.RULE_OPSET, 25)
OPSETS: Mapping[str, int] = {"GlobalLpPool": 21, "SwiGLU": 28}
"""Operators of which ONNX Runtime has no newer kernel, though what they compute is the same, or that came later."""


@dataclass
class Case:
    """One node: arrays are inputs that vary, tuples and numbers are inputs that are known."""

    inputs: list[Any]
    attrs: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1

    def __post_init__(self) -> None:
        self.inputs = [np.asarray(v) if isinstance(v, np.generic) else v for v in self.inputs]


def model(name: str, case: Case) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """One node as a model, and what it is fed."""
    feeds, names, constants = {}, [], []
    for position, value in enumerate(case.inputs):
        names.append("" if value is None else f"x{position}")
        if isinstance(value, np.ndarray):
            feeds[names[-1]] = value
        elif value is not None:
            kinds = {type(v) for v in np.ravel(np.array(value, object))}
            dtype = np.bool_ if kinds == {bool} else np.int64 if kinds <= {int} else np.float32
            constants.append(numpy_helper.from_array(np.array(value, dtype), names[-1]))
    while names and names[-1] == "":
        names.pop()
    results = [f"y{i}" for i in range(case.outputs)]
    node = helper.make_node(name, names, results, **case.attrs)
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()
    ]
    typed = [onnx.ValueInfoProto(name=r) for r in results]
    graph = helper.make_graph([node], "one", inputs, typed, constants)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSETS.get(name, OPSET))], ir_version=10
    ), feeds


def reference(proto: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    with np.errstate(all="ignore"):
        return [np.asarray(y) for y in ReferenceEvaluator(proto).run(None, dict(feeds))]


def runtime(proto: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))
