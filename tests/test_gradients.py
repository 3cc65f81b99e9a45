"""The gradient of each operator, against finite differences in double precision, and as ONNX Runtime computes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import graphopt
from graphopt.autodiff.training_graph import training_graph
from graphopt.io import onnx_io, opset_conversion
from graphopt.operators import inference
from graphopt.operators.gradient_table import FAMILIES, GRADIENTS
from graphopt.operators.structural_gradients import SHAPE_GRADIENTS
from tests.text import parse
from tests.tiers import sampled
from tests.versions import is_older

Array = NDArray[Any]
OPSET = 21


@dataclass(frozen=True)
class Case:
    """One node: `operands` are shapes of random inputs, arrays that are constants, or None."""

    op: str
    operands: tuple[tuple[int, ...] | Array | None, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    bounds: tuple[float, float] = (-2.0, 2.0)
    """What the random numbers lie between."""
    outputs: int = 1
    unread: int = 0
    """Further outputs that the operator must have."""
    step: float = 1e-5
    tolerance: float = 1e-6
    in_single: bool = False
    """Compute differences in ONNX Runtime, for what the reference evaluator cannot."""
    opset: int = OPSET
    label: str = ""

    def __str__(self) -> str:
        return "-".join(filter(None, [self.op, self.label, *(f"{k}={v}" for k, v in self.attrs.items())])).replace(
            " ", ""
        )

    @property
    def names(self) -> list[str]:
        return ["" if operand is None else f"x{i}" for i, operand in enumerate(self.operands)]

    @cached_property
    def inputs(self) -> dict[str, Array]:
        """Random numbers, all different by more than the step of the differences."""
        rng = np.random.default_rng(7)
        found = {}
        for name, operand in zip(self.names, self.operands, strict=True):
            if isinstance(operand, tuple):
                size = int(np.prod(operand))
                spread = np.linspace(*self.bounds, size + 2)[1:-1] + 1e-3
                found[name] = rng.permutation(spread).reshape(operand)
        return found

    def model(self, dtype: type[Any], *, is_open: bool = False) -> onnx.ModelProto:
        """Return the sum of all outputs, each element weighted by another number; `is_open` leaves the sizes of
        the first input open, but for the channels of images."""
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        results = [f"y{i}" for i in range(self.outputs)]
        unread = [f"z{i}" for i in range(self.unread)]
        nodes = [helper.make_node(self.op, self.names, [*results, *unread], name="node", **self.attrs)]
        shape = self.inputs["x0"].shape if "x0" in self.inputs else ()
        open_shape = [size if i == 1 and len(shape) > 2 else f"d{i}" for i, size in enumerate(shape)]
        constants = [
            numpy_helper.from_array(operand.astype(dtype) if operand.dtype == np.float64 else operand, name)
            for name, operand in zip(self.names, self.operands, strict=True)
            if isinstance(operand, np.ndarray)
        ]
        for i, result in enumerate(results):
            nodes += [
                helper.make_node("Shape", [result], [f"s{i}"]),
                helper.make_node("Size", [result], [f"n{i}"]),
                helper.make_node("Range", ["zero", f"n{i}", "one"], [f"r{i}"]),
                helper.make_node("Cast", [f"r{i}"], [f"c{i}"], to=kind),
                helper.make_node("Mul", [f"c{i}", "scale"], [f"d{i}"]),
                helper.make_node("Sin", [f"d{i}"], [f"e{i}"]),
                helper.make_node("Reshape", [f"e{i}", f"s{i}"], [f"w{i}"]),
                helper.make_node("Cast", [result], [f"k{i}"], to=kind),
                helper.make_node("Mul", [f"k{i}", f"w{i}"], [f"m{i}"]),
                helper.make_node("ReduceSum", [f"m{i}"], [f"t{i}"], keepdims=0),
            ]
        nodes.append(helper.make_node("Sum", [f"t{i}" for i in range(self.outputs)], ["total"]))
        for name, value in (("zero", np.int64(0)), ("one", np.int64(1)), ("scale", dtype(1.7))):
            constants.append(numpy_helper.from_array(np.array(value), name))
        graph = helper.make_graph(
            nodes,
            "case",
            [
                helper.make_tensor_value_info(name, kind, open_shape if is_open and name == "x0" else value.shape)
                for name, value in self.inputs.items()
            ],
            [helper.make_tensor_value_info("total", kind, [])],
            constants,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)

    def gradients(self, dtype: type[Any], *, is_open: bool = False) -> onnx.ModelProto:
        loaded = onnx_io.load_model(self.model(dtype, is_open=is_open))
        inference.infer_graph(loaded.graph)
        opset_conversion.upgrade_nodes(loaded.graph)
        return onnx_io.to_proto(training_graph(loaded, "total", list(self.inputs), "none").loaded)


def ints(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


SMALL = (2, 3)
POSITIVE, INSIDE, ANY = (0.2, 3.0), (-0.9, 0.9), (-2.0, 2.0)
UNARY = {
    ANY: (
        *("Neg", "Exp", "Abs", "Sin", "Cos", "Tanh", "Sigmoid", "Softplus", "Softsign", "Relu", "Elu", "LeakyRelu"),
        *("Selu", "HardSigmoid", "HardSwish", "Mish", "Sinh", "Cosh", "Asinh", "Atan", "Identity", "ThresholdedRelu"),
    ),
    POSITIVE: ("Sqrt", "Log", "Reciprocal"),
    INSIDE: ("Asin", "Acos", "Atanh", "Tan"),
    (1.2, 3.0): ("Acosh",),
}
BINARY = ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "PRelu")
IMAGE = (2, 4, 5, 4)
SMALL_IMAGE = (2, 2, 5, 4)
CASES = [
    *(Case(name, (SMALL,), bounds=bounds) for bounds, names in UNARY.items() for name in names),
    Case("Celu", (SMALL,), {"alpha": 0.7}, in_single=True, step=1e-2),
    Case("Erf", (SMALL,), step=5e-3, tolerance=1e-3),  # the reference evaluator rounds it to single precision
    Case("Gelu", (SMALL,), step=5e-3, tolerance=1e-3),
    Case("Gelu", (SMALL,), {"approximate": "tanh"}),
    Case("Elu", (SMALL,), {"alpha": 0.5}),
    Case("Selu", (SMALL,), {"alpha": 0.5, "gamma": 1.5}),
    Case("HardSigmoid", (SMALL,), {"alpha": 0.3, "beta": 0.4}, bounds=(-4.0, 4.0)),
    Case("HardSwish", (SMALL,), bounds=(-5.0, 5.0), label="wide"),
    Case("ThresholdedRelu", (SMALL,), {"alpha": 0.3}),
    *(Case(name, (SMALL, (3,)), bounds=POSITIVE) for name in BINARY),
    *(Case(name, ((3,), (4, 1, 3)), bounds=POSITIVE, label="broadcast") for name in ("Add", "Div", "Max")),
    Case("Mod", (SMALL, (3,)), {"fmod": 1}, bounds=(0.5, 3.0)),
    Case("Pow", (SMALL, np.array(2.0)), label="square"),
    Case("Pow", (SMALL, np.array(3.0)), label="cube"),
    Case("Pow", (SMALL, np.array(3)), label="integer"),
    *(Case(name, (SMALL, (3,), SMALL), label="three") for name in ("Sum", "Mean", "Max", "Min")),
    Case("PRelu", (SMALL, (3,)), label="negative"),
    Case("Clip", (SMALL,)),
    Case("Clip", (SMALL, np.array(-0.5)), label="low"),
    Case("Clip", (SMALL, None, np.array(0.5)), label="high"),
    Case("Clip", (SMALL, np.array(-0.5), np.array(0.5)), label="both"),
    Case("Clip", (SMALL, ()), label="lowest"),
    Case("Clip", (SMALL, None, ()), label="highest"),
    Case("Where", (np.array([[True], [False]]), SMALL, (3,))),
    Case("MatMul", ((4, 3), (3, 2))),
    Case("MatMul", ((2, 4, 3), (3, 2)), label="weights"),
    Case("MatMul", ((5, 1, 4, 3), (2, 3, 2)), label="batches"),
    Case("MatMul", ((3,), (3,)), label="vectors"),
    Case("MatMul", ((3,), (2, 3, 4)), label="row"),
    Case("MatMul", ((2, 4, 3), (3,)), label="column"),
    *(
        Case(
            "Gemm",
            ((3, 2) if a else (2, 3), (4, 3) if b else (3, 4), (4,)),
            {"transA": a, "transB": b, "alpha": 0.5, "beta": 2.0},
        )
        for a in (0, 1)
        for b in (0, 1)
    ),
    Case("Gemm", ((2, 3), (3, 4)), label="unbiased"),
    Case("Conv", (IMAGE, (5, 4, 3, 2), (5,)), {"pads": [1, 0, 2, 1]}),
    Case("Conv", (IMAGE, (5, 4, 3, 3)), {"strides": [2, 3], "pads": [1, 1, 1, 1], "dilations": [1, 2]}),
    Case(
        "Conv",
        (IMAGE, (6, 2, 3, 3), (6,)),
        {"group": 2, "strides": [2, 2], "pads": [1, 1, 1, 1]},
        in_single=True,
        step=0.5,
    ),
    Case("Conv", (IMAGE, (5, 4, 1, 1), (5,)), label="pointwise"),
    Case("Conv", ((1, 8, 2, 2), (3, 8, 3, 3), (3,)), {"pads": [2, 0, 1, 1]}, label="large-filters"),
    Case("Conv", ((1, 8, 2), (3, 8, 5)), {"pads": [2, 2]}, label="large-filters-1d"),
    Case("Conv", ((2, 8, 2, 3), (8, 8, 3, 3)), {"strides": [2, 1], "pads": [1, 0, 2, 1]}, label="large-filters-batch"),
    Case("Conv", (IMAGE, (5, 4, 1, 1), (5,)), {"strides": [2, 3]}, label="pointwise-strides"),
    Case("Conv", (IMAGE, (5, 4, 3, 3)), {"strides": [3, 3]}, label="left-over"),
    Case("Conv", ((2, 3, 8), (4, 3, 1)), label="pointwise-1d"),
    Case("Conv", (IMAGE, (4, 1, 3, 3)), {"group": 4, "pads": [1, 1, 1, 1]}),
    # Both in single precision, as onnx's reference before 1.23 computes these sizes wrong.
    Case("Conv", (IMAGE, (5, 4, 3, 3)), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, in_single=True, step=0.5),
    Case("Conv", (IMAGE, (5, 4, 2, 2)), {"auto_pad": "SAME_LOWER", "strides": [2, 1]}, in_single=True, step=0.5),
    Case("Conv", (IMAGE, (5, 4, 3, 3)), {"auto_pad": "VALID"}),
    Case("Conv", ((2, 3, 8), (4, 3, 3), (4,)), {"strides": [2]}, label="1d"),
    Case("Conv", ((1, 2, 4, 4, 3), (3, 2, 2, 2, 2)), label="3d"),
    Case("ConvTranspose", ((2, 4, 4, 3), (4, 3, 2, 2), (3,)), {"strides": [2, 2]}),
    Case(
        "ConvTranspose",
        ((2, 4, 4, 3), (4, 3, 3, 3)),
        {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]},
    ),
    Case("ConvTranspose", ((2, 4, 4, 3), (4, 2, 3, 3)), {"group": 2, "dilations": [2, 1]}, in_single=True, step=0.5),
    Case("MaxPool", (SMALL_IMAGE,), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    Case("MaxPool", (SMALL_IMAGE,), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    Case("MaxPool", (SMALL_IMAGE,), {"kernel_shape": [2, 2], "strides": [2, 2]}, opset=13, label="opset13"),
    Case("LpPool", (SMALL_IMAGE,), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    Case("LpPool", (SMALL_IMAGE,), {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1], "p": 3}),
    Case("LpPool", (SMALL_IMAGE,), {"kernel_shape": [2, 2], "strides": [1, 1], "p": 1, "auto_pad": "SAME_UPPER"}),
    Case("LpPool", ((1, 2, 7),), {"kernel_shape": [2], "dilations": [2], "ceil_mode": 1, "strides": [2]}),
    *(Case("GlobalLpPool", (SMALL_IMAGE,), {"p": p}, in_single=True, step=1e-2) for p in (2, 3)),
    Case("AveragePool", (SMALL_IMAGE,), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    Case("AveragePool", (SMALL_IMAGE,), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    Case("AveragePool", (SMALL_IMAGE,), {"kernel_shape": [3, 2], "pads": [1, 0, 1, 0], "count_include_pad": 1}),
    *(
        Case(
            "AveragePool",
            (SMALL_IMAGE,),
            {
                "kernel_shape": [3, 2],
                "strides": [2, 2],
                "pads": [1, 0, 1, 0],
                "ceil_mode": 1,
                "count_include_pad": counted,
            },
            label="rounded-up",
        )
        for counted in (0, 1)
    ),
    Case("AveragePool", ((1, 2, 7),), {"kernel_shape": [3], "strides": [2], "ceil_mode": 1, "dilations": [2]}),
    Case("AveragePool", (SMALL_IMAGE,), {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    Case("MaxPool", (SMALL_IMAGE,), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    Case(
        "MaxPool",
        (SMALL_IMAGE,),
        {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1, 1, 0, 0], "ceil_mode": 1},
        opset=17,
        label="opset17",
    ),
    Case("GlobalAveragePool", (SMALL_IMAGE,)),
    Case("GlobalMaxPool", (SMALL_IMAGE,)),
    *(
        Case(
            name,
            ((2, 3, 4), axes),
            {"keepdims": keep},
            opset=18,
            bounds=POSITIVE if name in ("ReduceLogSum", "ReduceProd") else ANY,
        )
        for name in (
            *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"),
            *("ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"),
        )
        for keep in (0, 1)
        for axes in (ints(1), ints(-1, 0))
    ),
    Case("ReduceMean", ((2, 3),), label="all"),
    Case("ReduceMean", ((2, 3, 4),), {"axes": [1], "keepdims": 0}, opset=13, label="opset13"),
    *(Case(name, ((2, 3, 4),), {"axis": axis}) for name in ("Softmax", "LogSoftmax") for axis in (1, -1)),
    Case("CumSum", ((2, 4), np.array(1))),
    Case("CumSum", ((2, 4), np.array(1)), {"exclusive": 1, "reverse": 1}),
    Case("TopK", ((2, 5), ints(2)), {"axis": 1}, unread=1),
    Case("LayerNormalization", ((2, 3, 5), (5,), (5,))),
    Case("LayerNormalization", ((2, 3, 5), (3, 5)), {"axis": 1}),
    Case("RMSNormalization", ((2, 3, 5), (5,)), opset=23),
    Case("InstanceNormalization", ((2, 3, 5, 4), (3,), (3,))),
    Case("GroupNormalization", ((2, 4, 3, 2), (4,), (4,)), {"num_groups": 2, "stash_type": TensorProto.DOUBLE}),
    Case("BatchNormalization", ((2, 3, 5, 4), (3,), (3,), np.array([0.1, 0.2, -0.3]), np.array([1.0, 0.5, 2.0]))),
    Case(
        "BatchNormalization",
        ((2, 3, 5, 4), (3,), (3,), np.array([0.1, 0.2, -0.3]), np.array([1.0, 0.5, 2.0])),
        {"training_mode": 1},
        unread=2,
    ),
    Case("LRN", ((2, 5, 3, 2),), {"size": 3, "alpha": 0.5, "beta": 0.6, "bias": 1.2}, in_single=True, step=1e-2),
    Case("LpNormalization", ((2, 3, 4),), {"axis": 1}),
    Case("LpNormalization", ((2, 3, 4),), {"p": 1, "axis": 1}, in_single=True, step=1e-2),
    Case("Reshape", (SMALL, ints(3, -1))),
    Case("Flatten", ((2, 3, 4),), {"axis": 2}),
    Case("Squeeze", ((2, 1, 3), ints(1))),
    Case("Squeeze", ((2, 1, 3),), label="all"),
    Case("Unsqueeze", (SMALL, ints(0, -1))),
    Case("Transpose", ((2, 3, 4),), {"perm": [1, 2, 0]}),
    Case("Transpose", ((2, 3, 4),), label="reversed"),
    Case("Expand", ((3, 1), ints(2, 3, 4))),
    Case("Tile", (SMALL, ints(2, 3))),
    Case("Concat", (SMALL, (2, 1), (2, 4)), {"axis": -1}),
    Case("Split", ((2, 6), ints(1, 3, 2)), {"axis": 1}, outputs=3),
    Case("Split", ((2, 6),), {"axis": 1, "num_outputs": 2}, outputs=2),
    Case("Slice", ((4, 5), ints(1, -4), ints(3, 100), ints(0, 1))),
    Case("Slice", ((4, 5), ints(1), ints(3)), label="defaults"),
    Case("Slice", ((3, 7), ints(1), ints(7), ints(-1), ints(2)), label="strided"),
    Case("Slice", ((3, 7), ints(1, 0), ints(7, 3), ints(-1, 0), ints(2, 2)), label="strided-axes"),
    Case("Slice", ((3, 7), ints(-1), ints(-8), ints(1), ints(-3)), label="backwards"),
    Case("Pad", (SMALL, ints(1, 0, 2, 1))),
    Case("Pad", (SMALL, ints(1, -1, 0, 2)), label="negative", in_single=True, step=0.5),
    Case("Pad", ((1, 2, 4, 5), ints(0, 0, 1, 2, 0, 0, 3, 0)), {"mode": "reflect"}),
    Case("Pad", ((1, 2, 4, 5), ints(2, 1, 0, 2), None, ints(2, 3)), {"mode": "edge"}),
    Case("Pad", ((3, 4), ints(1, 2, 2, 3)), {"mode": "wrap"}),
    Case("Compress", ((3, 4), np.array([True, False, True, True])), {"axis": 1}),
    Case("Compress", ((2, 3), np.array([False, True, True, False, True])), label="flat"),
    Case("ReverseSequence", ((4, 3, 2), ints(4, 1, 2)), {"time_axis": 0, "batch_axis": 1}),
    Case("Pad", (SMALL, ints(1, 2), np.array(0.5), ints(1)), label="axes"),
    Case("Gather", ((5, 3), np.array([[0, 2], [2, -1]]))),
    Case("Gather", ((2, 5, 3), np.array([4, 4])), {"axis": 1}),
    Case("Gather", ((2, 5), np.array(3)), {"axis": -1}, label="scalar"),
    Case("Gather", ((5, 3), np.array([[0, 2], [2, 1]])), opset=13, label="opset13"),
    Case("Gather", ((2, 5, 3), np.array([4, 4])), {"axis": 1}, opset=13, label="opset13"),
    Case("GatherElements", ((2, 4), np.array([[0, 1, 1], [2, 2, 0]])), {"axis": 1}),
    Case("GatherND", ((3, 4), np.array([[0, 1], [2, 2], [0, 1]]))),
    Case("ScatterElements", ((2, 4), np.array([[0, 1], [2, 3]]), (2, 2)), {"axis": 1}),
    Case("ScatterElements", ((2, 4), np.array([[0, 0], [2, 3]]), (2, 2)), {"axis": 1, "reduction": "add"}),
    Case("ScatterND", ((3, 4), np.array([[0], [2]]), (2, 4))),
    Case("ScatterND", ((3, 4), np.array([[0], [0]]), (2, 4)), {"reduction": "add"}),
    Case("DepthToSpace", ((2, 8, 2, 3),), {"blocksize": 2}),
    Case("SpaceToDepth", ((2, 2, 4, 6),), {"blocksize": 2}),
    Case("Trilu", ((3, 4),), {"upper": 0}),
    Case("Trilu", ((3, 4), np.array(1)), {"upper": 1}),
    Case(
        "Resize",
        ((1, 2, 3, 2), None, np.array([1.0, 1.0, 2.0, 3.0], np.float32)),
        {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    ),
    Case("Resize", ((1, 2, 3, 2), None, None, ints(1, 2, 6, 4)), {"mode": "nearest"}, label="sizes"),
    Case("Resize", ((1, 2, 3, 2), None, None, ints(1, 2, 7, 3)), {"mode": "nearest"}, label="uneven"),
    *(
        Case(
            "Resize",
            ((1, 2, 3, 4), None, None, ints(1, 2, 5, 3)),
            {"mode": mode, "coordinate_transformation_mode": coordinates, "antialias": antialias},
            label="sizes",
        )
        for mode, coordinates, antialias in (
            ("linear", "half_pixel", 0),
            ("linear", "align_corners", 0),
            ("linear", "asymmetric", 0),
            ("linear", "half_pixel", 1),
            ("cubic", "pytorch_half_pixel", 0),
        )
    ),
    Case("Resize", ((2, 3, 4), None, np.array([1, 1, 2.3], np.float32)), {"mode": "linear"}, label="1d"),
    Case("Resize", ((1, 2, 2, 3, 2), None, np.array([1, 1, 2, 1.5, 3], np.float32)), {"mode": "linear"}, label="3d"),
    Case("Resize", ((3, 4), np.array([], np.float32), np.array([1.5, 0.5], np.float32)), {"mode": "linear"}),
    *(
        Case("Resize", ((1, 1, 4, 3), None, np.array([1, 1, 1.1, 2], np.float32)), {"mode": mode}, label="one kept")
        for mode in ("linear", "cubic")
    ),
    Case("DepthToSpace", ((2, 8, 2, 3),), {"blocksize": 2, "mode": "CRD"}),
    Case("AffineGrid", ((2, 2, 3), ints(2, 1, 3, 4)), {"align_corners": 1}, in_single=True, step=1e-2),
    Case("AffineGrid", ((1, 3, 4), ints(1, 2, 2, 3, 2)), in_single=True, step=1e-2),
    Case("DFT", ((2, 5, 2),), in_single=True, step=1e-2),
    Case("DFT", ((2, 5, 3, 1),), {"axis": 1, "onesided": 1}, in_single=True, step=1e-2, opset=17),
    *(
        Case("DFT", ((2, *sizes), None, np.array(axis)), attrs, in_single=True, step=1e-2)
        for sizes, axis, attrs in (
            ((5, 3, 2), 1, {}),
            ((4, 1), -2, {"onesided": 1}),
            ((5, 1), 1, {"onesided": 1}),
            ((4, 1), 1, {}),
            ((5, 2), 1, {"inverse": 1}),
        )
    ),
    *(
        Case(
            "GridSample",
            ((2, 3, 4, 5), (2, 3, 2, 2)),
            {"align_corners": aligned, "padding_mode": mode, **({"mode": "bilinear"} if opset < 20 else {})},
            bounds=(-1.4, 1.3),
            in_single=True,  # the reference computes in single precision
            step=2e-3,
            opset=opset,
        )
        for aligned, mode, opset in ((0, "zeros", 16), (0, "zeros", 21), (1, "border", 21), (1, "zeros", 22))
    ),
    Case("Einsum", ((2, 3), (3, 4)), {"equation": "ij,jk->k"}, label="summed"),
    Case("Einsum", ((2, 3), (3, 4)), {"equation": "ij,jk->ik"}),
    Case("Einsum", ((2, 3, 5), (2, 4, 5)), {"equation": "bij,bkj->bik"}),
    *(
        Case(
            name,
            ((4, 2, 3), (count, gates * 3, 3), (count, gates * 3, 3), *((count, size, 3)[:2] for size in sizes)),
            {"hidden_size": 3, **attrs},
            outputs=3 if name == "LSTM" else 2,
            bounds=INSIDE,
            in_single=True,
            step=1e-2,
        )
        for name, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1))
        for count, sizes, attrs in (
            (1, (), {"direction": "reverse"}),
            (2, (gates * 6,), {"direction": "bidirectional", **({"linear_before_reset": 1} if name == "GRU" else {})}),
            (1, (gates * 6,), {"activations": ["Tanh"]} if name == "RNN" else {}),
        )
    ),
    *(
        Case(
            name,
            ((4, 2, 3), (2, gates * 3, 3), (2, gates * 3, 3), None, np.array([4, 2], np.int32)),
            {"hidden_size": 3, "direction": "bidirectional"},
            outputs=2,
            bounds=INSIDE,
            in_single=True,
            step=1e-2,
            label="lengths",
        )
        for name, gates in (("LSTM", 4), ("GRU", 3))
    ),
    Case(
        "LSTM",
        ((3, 2, 3), (1, 12, 3), (1, 12, 3), None, None, (1, 2, 3), (1, 2, 3)),
        {"hidden_size": 3},
        bounds=INSIDE,
        in_single=True,
        step=1e-2,
        label="states",
    ),
    Case(
        "LSTM",
        ((3, 2, 3), (2, 12, 3), (2, 12, 3), (2, 24), None, (2, 2, 3), (2, 2, 3), (2, 9)),
        {"hidden_size": 3, "direction": "bidirectional"},
        bounds=INSIDE,
        in_single=True,
        step=1e-2,
        label="peepholes",
    ),
    Case("Cast", (SMALL,), {"to": TensorProto.DOUBLE}),
    Case("CastLike", (SMALL, np.array(1.0))),
    Case("Dropout", (SMALL,)),
    Case("Dropout", (SMALL, None, np.array(False)), label="no-ratio"),
    Case("Attention", ((1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 4)), opset=23),
    Case("Attention", ((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4)), {"is_causal": 1}, opset=23),
]


def require_reference(case: Case) -> None:
    """Skip a test of what onnx's reference evaluator computes wrong in older versions."""
    if case.attrs.get("auto_pad") == "VALID" and is_older("onnx", "1.23"):
        pytest.skip("onnx before 1.23: its reference pads where auto_pad is VALID")


def run_in_double(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> dict[str, Array]:
    outputs = [output.name for output in model.graph.output]
    found: Any = ReferenceEvaluator(model).run(None, dict(inputs))
    return dict(zip(outputs, found, strict=True))


def run_in_runtime(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> dict[str, Array]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    outputs = [output.name for output in session.get_outputs()]
    found = session.run(None, {name: value.astype(np.float32) for name, value in inputs.items()})
    return dict(zip(outputs, found, strict=True))


def finite_differences(case: Case) -> dict[str, Array]:
    total = partial(run_in_double, case.model(np.float64))
    if case.in_single:
        total = partial(run_in_runtime, case.model(np.float32))
    slopes = {}
    for name, value in case.inputs.items():
        slope = np.zeros_like(value)
        for place in np.ndindex(value.shape):
            values = []
            for change in (case.step, -case.step):
                moved = value.copy()
                moved[place] += change
                values.append(float(total(case.inputs | {name: moved})["total"]))
            slope[place] = (values[0] - values[1]) / (2 * case.step)
        slopes[name] = slope
    return slopes


@pytest.mark.parametrize("case", sampled([case for case in CASES if not case.in_single], 8, str))
def test_gradients_are_the_slopes_of_the_operator(case: Case) -> None:
    require_reference(case)
    made = run_in_double(case.gradients(np.float64), case.inputs)
    for name, slope in finite_differences(case).items():
        np.testing.assert_allclose(
            made[f"{name}.gradient"], slope, rtol=case.tolerance, atol=case.tolerance * max(1, np.abs(slope).max())
        )


@pytest.mark.parametrize("case", sampled(CASES, 8, str))
def test_onnx_runtime_computes_them(case: Case) -> None:
    require_reference(case)
    made = run_in_runtime(case.gradients(np.float32), case.inputs)
    if case.in_single:
        expected = {f"{name}.gradient": slope for name, slope in finite_differences(case).items()}
    else:
        expected = run_in_double(case.gradients(np.float64), case.inputs)
    for name, value in expected.items():
        np.testing.assert_allclose(made[name], value, rtol=2e-3, atol=1e-4 * max(1, np.abs(value).max()))


@pytest.mark.parametrize(
    ("body", "x", "expected"),
    [
        (
            "p = ReduceProd<keepdims = 0>(x, axes)",
            [[0.0, 2.0, 3.0], [0.0, 0.0, 1.0]],
            [[6.0, 0.0, 0.0], [0.0, 0.0, 0.0]],
        ),
        ("p = ReduceL2<keepdims = 0>(x, axes)", [[0.0, 0.0, 0.0], [3.0, 0.0, 4.0]], [[0.0, 0.0, 0.0], [0.6, 0.0, 0.8]]),
        ("p = Pow(x, powers)", [[0.0, 2.0, 0.0], [3.0, 2.0, 0.0]], [[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]]),
    ],
)
def test_gradients_at_zero(body: str, x: list[list[float]], expected: list[list[float]]) -> None:
    constants = {"axes": ints(1), "powers": np.array([0.0, 1.0, 2.0], np.float32)}
    model = parse("float[2,3] x", f"{body}; y = ReduceSum<keepdims = 0>(p)", constants, outputs="float y", opset=18)
    made = graphopt.grad(model, "y", ["x"], "none").model
    found = run_in_runtime(made, {"x": np.array(x)})
    np.testing.assert_allclose(found["x.gradient"], expected, rtol=1e-6)


def is_image_case(case: Case) -> bool:
    names = {"Conv", "ConvTranspose", "AveragePool", "LpPool", "MaxPool", "GlobalAveragePool", "GlobalMaxPool"}
    return case.op in names | {"Resize", "Slice", "Pad", "Tile", "Compress", "DepthToSpace", "Concat", "Split"}


@pytest.mark.parametrize("case", sampled(list(filter(is_image_case, CASES)), 4, str))
def test_sizes_may_be_open(case: Case) -> None:
    """The gradient of a model that does not say how large its images are is that of one that does."""
    if "SAME" in str(case) and max(case.attrs["strides"]) > 1:
        pytest.skip("pads that hang on the size of the image are read from it where it is known")
    made = run_in_runtime(case.gradients(np.float32, is_open=True), case.inputs)
    for name, value in run_in_runtime(case.gradients(np.float32), case.inputs).items():
        np.testing.assert_allclose(made[name], value, rtol=1e-4, atol=1e-5 * max(1, np.abs(value).max()))


def test_numbers_of_a_slice_and_a_pad_may_be_computed() -> None:
    body = "s = Slice(x, first, last, axes); p = Pad(s, pads); q = Mul(p, p); y = ReduceSum<keepdims = 0>(q)"
    inputs = "float[n,4] x, int64[1] first, int64[1] last, int64[4] pads"
    model = parse(inputs, body, {"axes": ints(0)}, outputs="float y", opset=18)
    made = graphopt.grad(model, "y", ["x"], "none").model
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(2).standard_normal((5, 4)).astype(np.float32)
    feeds = {"x": x, "first": ints(-4), "last": ints(9), "pads": ints(2, -1, 0, 1)}
    expected = np.zeros_like(x)
    expected[1:, 1:] = 2 * x[1:, 1:]
    np.testing.assert_allclose(session.run(["x.gradient"], feeds)[0], expected, rtol=1e-6)


SCAN = """
<ir_version: 8, opset_import: ["" : 17]>
scanned (float[n,3] x, float[2] h) => (float loss)
<float[3,2] w = {0.3, -0.2, 0.5, 0.1, -0.4, 0.2}, int64 zero = {0}>
{
    last, count, ys, squares = Scan <
        num_scan_inputs = 2, scan_input_directions = [0, 1], scan_output_directions = [1, 0],
        body = step (float[2] state, int64 i, float[3] a, float[3] b)
            => (float[2] next, int64 j, float[2] y, float[3] q) {
            one = Constant <value = int64 {1}> ()
            j = Add (i, one)
            ab = Add (a, b)
            row = Unsqueeze (ab, axes)
            p = MatMul (row, w)
            v = Squeeze (p, axes)
            s = Add (v, state)
            next = Tanh (s)
            y = Mul (next, h)
            q = Mul (a, a)
        }> (h, zero, x, x)
    u = Mul (last, last)
    z = ReduceSum <keepdims = 0> (u)
    yy = Sin (ys)
    zz = ReduceSum <keepdims = 0> (yy)
    qq = MatMul (squares, w)
    qs = ReduceSum <keepdims = 0> (qq)
    t = Sum (z, zz, qs)
    loss = Identity (t)
}
"""


def scan_model() -> onnx.ModelProto:
    model = onnx.parser.parse_model(SCAN)
    model.graph.initializer.append(numpy_helper.from_array(ints(0), "axes"))
    return model


def test_a_scan_is_differentiated_by_one_that_runs_back() -> None:
    """States, captured weights and inputs get gradients, whatever the directions; a counter has none."""
    model = scan_model()
    made = graphopt.grad(model, "loss", ["x", "h", "w"], "none").model
    rng = np.random.default_rng(4)
    values = {"x": rng.standard_normal((4, 3)), "h": rng.standard_normal(2)}
    (weights,) = (numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer if t.name == "w")
    inputs = model.graph.input
    inputs.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [3, 2]))
    values["w"] = weights
    found = run_in_runtime(made, values)
    for name, value in values.items():
        for place in np.ndindex(value.shape):
            ends = []
            for change in (1e-2, -1e-2):
                moved = value.copy()
                moved[place] += change
                ends.append(float(run_in_runtime(model, values | {name: moved})["loss"]))
            slope = (ends[0] - ends[1]) / 2e-2
            assert found[f"{name}.gradient"][place] == pytest.approx(slope, rel=1e-2, abs=1e-3)


def test_a_limit_of_gates_is_refused() -> None:
    weights = {name: np.ones(shape, np.float32) for name, shape in {"w": (1, 8, 3), "r": (1, 8, 2)}.items()}
    body = "h = LSTM<hidden_size = 2, clip = 1.0>(x, w, r); y = ReduceSum<keepdims = 0>(h)"
    model = parse("float[n,2,3] x", body, weights, outputs="float y", opset=17)
    with pytest.raises(graphopt.ModelError, match="LSTM 'h': no gradient with respect to its input 'W'"):
        graphopt.grad(model, "y", update="none")


@pytest.mark.parametrize("name", sorted(SHAPE_GRADIENTS))
def test_what_reads_a_shape_alone_has_no_part_in_the_gradient(name: str) -> None:
    model = parse("float[3,3] x", f"a = Mul(x, x); n = {name}(a); p = Add(a, n); y = ReduceSum<keepdims = 0>(p)",
                  outputs="float y", opset=17)  # fmt: skip
    made = graphopt.grad(model, "y", ["x"], "none", check=False).model
    x = np.full((3, 3), 0.25)
    np.testing.assert_allclose(run_in_runtime(made, {"x": x})["x.gradient"], 2 * x, rtol=1e-6)


@pytest.mark.parametrize(("rows", "columns"), [(1, 5), (5, 1), (4, 4)])
def test_open_sizes_may_be_broadcast(rows: int, columns: int) -> None:
    """Which operand has one element along an axis is known only when the model runs."""
    model = parse(
        "float[n,3] x, float[m,3] z", "y = Mul(x, z); loss = ReduceSum<keepdims=0>(y)", outputs="float loss", opset=17
    )
    made = graphopt.grad(model, "loss", ["x", "z"], "none")
    rng = np.random.default_rng(0)
    x, z = (rng.standard_normal((size, 3)).astype(np.float32) for size in (rows, columns))
    session = onnxruntime.InferenceSession(made.model.SerializeToString(), providers=["CPUExecutionProvider"])
    dx, dz = session.run(["x.gradient", "z.gradient"], {"x": x, "z": z})
    ones = np.ones((max(rows, columns), 1), np.float32)
    for found, value, other in ((dx, x, z), (dz, z, x)):
        expected = (other * ones).sum(axis=0, keepdims=True) if len(value) == 1 else other * np.ones_like(value)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_an_output_without_a_gradient_is_refused() -> None:
    """The running mean depends on the images, too."""
    body = "y, mean, variance = BatchNormalization<training_mode=1>(x, s, b, m, v); q = Mul(mean, mean);"
    zeros = np.zeros(3, np.float32)
    model = parse(
        "float[2,3] x",
        f"{body} a = ReduceSum<keepdims=0>(y); c = ReduceSum<keepdims=0>(q); loss = Add(a, c)",
        dict.fromkeys("sbmv", zeros),
        outputs="float loss",
        opset=17,
    )
    with pytest.raises(graphopt.ModelError, match="the loss depends on its output 'mean', too"):
        graphopt.grad(model, "loss", ["x"], "none")


def test_every_operator_with_a_gradient_has_a_case() -> None:
    steps = {"Ceil", "Floor", "Round", "Sign", *SHAPE_GRADIENTS}
    assert {*GRADIENTS, *FAMILIES} - {case.op for case in CASES} - steps == set()
    assert len({*GRADIENTS, *FAMILIES}) >= 45
