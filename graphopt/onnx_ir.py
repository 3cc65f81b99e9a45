"""graphopt as a pass of `onnx_ir`, alone or in a `Sequential`. Imports onnx_ir, which graphopt itself does not need."""

from __future__ import annotations

from typing import Any

import onnx_ir

from graphopt.options import Options, refuse_unknown_options
from graphopt.pipeline import optimize
from graphopt.result import Result


class GraphoptPass(onnx_ir.passes.InPlacePass):
    """A pass that optimizes a model in place; `onnx_ir.passes.functionalize` makes one of it that returns another.

    The graph of the model is replaced as a whole: values and nodes that were taken out of it before are not in it.

    Attributes:
        options: the fields of `graphopt.Options`, which are given as keywords: `GraphoptPass(cost="none")`.
        result: the result for the last model, with its report; None before the first.
    """

    def __init__(self, **options: Any) -> None:
        refuse_unknown_options(type(self).__name__, options)
        self.options = Options(**options)
        self._given = options
        self.result: Result | None = None

    def call(self, model: onnx_ir.Model) -> onnx_ir.passes.PassResult:
        """Optimize a model.

        Raises:
            GraphoptError: as `graphopt.optimize` does; the model is as it was.
        """
        result = self.result = optimize(model, **vars(self.options))
        is_modified = result.changed or result.is_converted
        if is_modified:
            optimized = result.to_onnx_ir()
            model.graph, model.ir_version = optimized.graph, optimized.ir_version
            model.functions.clear()
            model.functions.update(optimized.functions)
        return onnx_ir.passes.PassResult(model, is_modified)

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self._given.items())
        return f"{type(self).__name__}({given})"
