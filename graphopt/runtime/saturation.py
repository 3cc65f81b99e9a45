"""Does ONNX Runtime add up products of 8-bit integers in 16 bits here? Larger sums are cut off, which no proof covers.

Its kernels do so on x86 processors without VNNI where unsigned integers meet signed ones
(https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html, "When and why do I need to try U8U8?").
Each operator is run once with each pair of types to see which are concerned.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import onnx.parser

from graphopt.base.dtype import DType
from graphopt.base.errors import ModelError, UsageError
from graphopt.ir.graph import Graph, Node, Patch
from graphopt.ir.types import TensorType
from graphopt.operators import node_facts
from graphopt.operators.operator_classes import lookup_operator
from graphopt.operators.semantics import OPERATORS
from graphopt.runtime.session_setting import SessionSetting

ByteDtypes: TypeAlias = tuple[DType, ...]

BYTE_DTYPES = (DType.UINT8, DType.INT8)
TERM_COUNT = 64
"""Products that are added up: of the greatest integers, even two exceed 16 bits."""


BYTE_PRODUCTS = tuple(name for name, operator in OPERATORS.items() if operator.factor_inputs)
"""Operators that multiply 8-bit integers."""
RESULT_SCALE = 1 << 15
"""Scale of quantized results: even sums of the greatest products fit into 7 bits then."""


class SaturationProbe:
    """Knows which products saturate in one setting; each is run once."""

    def __init__(self, setting: SessionSetting) -> None:
        self.setting = setting
        self._results: dict[tuple[str, ByteDtypes], bool] = {}

    def refusal(self, patch: Patch, before: Graph, after: Graph) -> str:
        """Say why a patch may change values by saturation; empty where it does not.

        A product is refused where it saturates, unless one like it goes. When ONNX Runtime loads a model, it makes
        products of nodes that quantize and dequantize: none of these gets another type where any product saturates.
        """
        new = [
            (node.op, _byte_dtypes(node, after))
            for node in patch.after.values()
            if node_facts.operator_of_node(node).is_quantizing
        ]
        if not new:
            return ""
        gone = {(node.op, _byte_dtypes(node, before)) for node in patch.before.values()}
        known = {dtype for _, types in gone for dtype in types}
        for op, types in new:
            if not types or (op, types) in gone:
                continue
            if lookup_operator(op).factor_inputs:
                saturates = self.is_saturating(op, types)
            else:
                saturates = not known.issuperset(types) and any(
                    self.is_saturating(each, BYTE_DTYPES) for each in BYTE_PRODUCTS
                )
            if saturates:
                return f"sums of 8-bit products would saturate in the kernels of {op} on this processor"
        return ""

    def is_saturating(self, op: str, types: ByteDtypes) -> bool:
        """Return whether a product of 8-bit integers of two types is cut off; not where it has no kernel."""
        if (op, types) not in self._results:
            try:
                self._results[op, types] = self._run_probe(op, types)
            except (ModelError, UsageError):  # no such kernel, or no ONNX Runtime: no sums either
                self._results[op, types] = False
        return self._results[op, types]

    def _run_probe(self, op: str, types: ByteDtypes) -> bool:
        inputs, axes = lookup_operator(op).factor_inputs, lookup_operator(op).spatial_rank
        first, second = (dtype.limits[1] for dtype in types)
        ones = (1,) * axes
        shapes = ((1, TERM_COUNT, *ones), (1, TERM_COUNT, *ones) if axes else (TERM_COUNT, 1))
        is_quantized = "step" in inputs
        made = types[0] if is_quantized else DType.INT32
        names = [dtype.name.lower() for dtype in (*types, made)]
        sizes = [",".join(map(str, shape)) for shape in shapes]
        model = onnx.parser.parse_model(
            f"""<ir_version: 8, opset_import: ["" : 15]> g ({names[0]}[{sizes[0]}] a, {names[1]}[{sizes[1]}] b)
            => ({names[2]}[{",".join("1" for _ in shapes[0])}] y)
            <float one = {{1.0}}, float step = {{{RESULT_SCALE}.0}}, {names[0]} p = {{0}}, {names[1]} q = {{0}}>
            {{ y = {op} ({inputs.replace(" ", ",")}) }}"""
        )
        session = self.setting.open(model.SerializeToString(), optimize=False)
        feeds = {"a": np.full(shapes[0], first, types[0].numpy), "b": np.full(shapes[1], second, types[1].numpy)}
        (found,) = session.run(None, feeds)
        exact = TERM_COUNT * first * second
        return int(found.item()) != (round(exact / RESULT_SCALE) if is_quantized else exact)


def _byte_dtypes(node: Node, graph: Graph) -> ByteDtypes:
    """Return the types of the 8-bit integers that a node multiplies; of other operators, all that it reads and makes.

    Nothing where a factor has no such type.
    """
    inputs = node_facts.operator_of_node(node).factor_inputs
    if not inputs:
        every = (*map(graph.value_type, node.operands), *node.types)
        return tuple(each.dtype for each in every if isinstance(each, TensorType) and each.dtype in BYTE_DTYPES)
    places = inputs.split()
    factors = (graph.tensor_type(node.inputs[places.index(name)]) for name in "ab")
    types = tuple(each.dtype for each in factors if each is not None)
    return types if len(types) == 2 and {*types} <= {*BYTE_DTYPES} else ()
