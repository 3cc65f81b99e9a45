"""Runs a small model in ONNX Runtime as it is written: nothing optimized, one thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx
import onnxruntime
from numpy.typing import NDArray

Array = NDArray[Any]


class Failure(Exception):
    """ONNX Runtime does not run a model; `lacks` says that it has no kernel, which says nothing of the model."""

    def __init__(self, reason: str, lacks: bool) -> None:
        super().__init__(reason)
        self.lacks = lacks


@dataclass(frozen=True)
class Run:
    """What a model gives: `out0`, `out1`, …, and what else it was asked for."""

    outputs: list[Array]
    inside: list[Array]


def run(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> Run:
    """What ONNX Runtime gives.

    Raises:
        Failure: it refuses the model, or fails.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        arrays = session.run(None, dict(feeds))
    except Exception as error:  # what it raises has no common base
        of_own = any(node.domain for node in model.graph.node)  # which may lack a type that ONNX's operators have
        is_said = any(text in str(error) for text in ("Type Error: ", "is not a registered function/op"))
        lacks = type(error).__name__ == "NotImplemented" or (of_own and is_said)
        raise Failure(" ".join(str(error).split())[:200], lacks) from error
    named = list(zip((value.name for value in model.graph.output), arrays, strict=True))
    own = [array for name, array in named if name.startswith("out")]
    return Run(own, [array for name, array in named if not name.startswith("out")])
