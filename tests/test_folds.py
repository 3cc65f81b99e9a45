"""Every fold on tensors without elements, on scalars and on the greatest integers: what ONNX Runtime computes, or none.

Where `onnx.reference` says otherwise, or ONNX Runtime fails, nothing is folded.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator, Mapping
from itertools import product
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphopt
from tests.text import parse
from tests.verifier.evaluators import Array, reference, runtime

SHAPES = [(), (0,), (1,), (2,), (0, 3), (2, 0)]
FLOAT: Any = np.float32
INT: Any = np.int64
INT32: Any = np.int32
BOOL: Any = np.bool_
BYTE: Any = np.uint8
LEAST = -(2**63)


class Fold(NamedTuple):
    """One node on constants."""

    op: str
    inputs: tuple[Array | None, ...]
    attrs: Mapping[str, Any] = {}
    outputs: int = 1

    @property
    def model(self) -> onnx.ModelProto:
        """The node alone, with its inputs as initializers."""
        names = ["" if array is None else f"x{i}" for i, array in enumerate(self.inputs)]
        results = [f"y{i}" for i in range(self.outputs)]
        node = helper.make_node(self.op, names, results, **self.attrs)
        constants = [numpy_helper.from_array(a, n) for a, n in zip(self.inputs, names, strict=True) if a is not None]
        outputs = [onnx.ValueInfoProto(name=name) for name in results]
        graph = helper.make_graph([node], "one", [], outputs, constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)

    def __str__(self) -> str:
        given = ", ".join("-" if a is None else f"{a.dtype}{list(a.shape)}{a.tolist()}" for a in self.inputs)
        return f"{self.op}({given}) {dict(self.attrs)}"


def some(shape: tuple[int, ...], dtype: Any = FLOAT) -> Array:
    return np.asarray(np.arange(1, 1 + int(np.prod(shape))).reshape(shape).astype(dtype))


def ints(*values: int, dtype: Any = INT) -> Array:
    return np.array(values, dtype)


def one(value: float, dtype: Any = INT) -> Array:
    return np.array(value, dtype)


NOTHING = ints()


def unary() -> Iterator[Fold]:
    floats = ("Abs", "Neg", "Ceil", "Sign", "Sqrt", "Relu", "Reciprocal", "IsNaN", "Exp", "Softmax", "Erf", "Sigmoid")
    for op, shape in product((*floats, "Flatten", "Transpose", "Trilu", "Identity", "LpNormalization"), SHAPES):
        yield Fold(op, (some(shape),))
    for op, shape in product(("Abs", "Neg", "Sign", "Identity", "Size", "Shape", "BitwiseNot", "Squeeze"), SHAPES):
        yield Fold(op, (some(shape, INT),))
    for op, dtype, shape in product(("NonZero",), (FLOAT, INT, BOOL, BYTE), SHAPES):
        yield Fold(op, (some(shape, dtype),))
    for shape, to in product(SHAPES, (TensorProto.FLOAT, TensorProto.INT32, TensorProto.BOOL, TensorProto.STRING)):
        yield Fold("Cast", (some(shape),), {"to": to})
    yield from (Fold(op, (one(LEAST),)) for op in ("Abs", "Neg"))


def reductions() -> Iterator[Fold]:
    kinds = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
    for kind, dtype, shape in product(kinds, (FLOAT, INT, INT32), SHAPES):
        yield Fold(f"Reduce{kind}", (some(shape, dtype),), {"keepdims": 0})
        yield Fold(f"Reduce{kind}", (some(shape, dtype), NOTHING))
        yield Fold(f"Reduce{kind}", (some(shape, dtype), NOTHING), {"noop_with_empty_axes": 1})
        if shape:
            yield Fold(f"Reduce{kind}", (some(shape, dtype), ints(-1)), {"keepdims": 0})
    for op, dtype, shape in product(("ReduceMax", "ReduceMin"), (BOOL, BYTE), SHAPES):
        yield Fold(op, (some(shape, dtype),))
    for op, dtype, shape in product(("ArgMax", "ArgMin"), (FLOAT, INT), SHAPES):
        yield Fold(op, (some(shape, dtype),), {"axis": 0, "keepdims": 0})
    for x in (ints(2**62, 2**62), ints(2**53, 1, 1), ints(2**62, 4), ints(LEAST), ints(2**30, 2**30, dtype=INT32)):
        yield from (Fold(f"Reduce{kind}", (x,)) for kind in ("Sum", "Prod", "Max", "Min", "L1", "SumSquare", "Mean"))
    for shape, axis, dtype in product(SHAPES, (0, -1), (FLOAT, INT)):
        yield Fold("CumSum", (some(shape, dtype), one(axis)), {"exclusive": 1})
        yield Fold("CumSum", (some(shape, dtype), one(axis)), {"reverse": 1})
    yield Fold("CumSum", (ints(2**62, 2**62), one(0)))


def pairs() -> Iterator[Fold]:
    ops = ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Equal", "Less", "MatMul")
    for op, dtype, a, b in product(ops, (FLOAT, INT), SHAPES[::2], SHAPES[::3] + SHAPES[1::4]):
        yield Fold(op, (some(a, dtype), some(b, dtype)))
    for op, shape in product(("Max", "Min", "Sum", "Mean"), SHAPES):
        yield Fold(op, (some(shape),))
        yield Fold(op, (some(shape), some(()), some((1,))))
    for op, dtype, shape in product(("Div", "Mod"), (INT, INT32, BYTE), ((), (0,), (1,), (2,))):
        yield Fold(op, (some(shape, dtype), one(0, dtype)))
        yield Fold(op, (some(shape, dtype), np.zeros(shape, dtype)))
    for op in ("Div", "Mod", "Mul", "Sub"):
        yield Fold(op, (one(LEAST), one(-1)))
        yield Fold(op, (ints(-(2**31), dtype=INT32), ints(-1, dtype=INT32)))
    yield from (Fold("Pow", (one(a), one(b))) for a, b in ((2, 64), (2, -1), (0, 0), (0, -1)))
    for a, b, c in product(((), (0,), (1,), (2, 0)), repeat=3):
        yield Fold("Where", (some(a, BOOL), some(b), some(c)))
        yield Fold("Where", (some(a, BOOL), some(b, INT), some(c, INT)))


def moves() -> Iterator[Fold]:
    for shape, dtype in product(SHAPES, (FLOAT, INT)):
        x = some(shape, dtype)
        yield from (Fold("Tile", (x, ints(*[times] * len(shape)))) for times in (0, 1, 2))
        yield from (Fold("Tile", (x, repeats)) for repeats in (ints(0), ints(-1), NOTHING))
        yield from (Fold("Expand", (x, to)) for to in (NOTHING, ints(0), ints(1), ints(2), ints(0, 1), ints(2, 0)))
        for target, zero in product(((), (0,), (-1,), (0, -1), (-1, 0), (0, 0), (0, 3), (1, -1), (-2,)), (0, 1)):
            yield Fold("Reshape", (x, ints(*target)), {"allowzero": zero})
        for op, axes in product(("Squeeze", "Unsqueeze"), ((), (0,), (-1,), (0, 1), (0, 0), (3,))):
            yield Fold(op, (x, ints(*axes)))
        for start, end, step in ((0, 0, 1), (5, 0, 1), (5, 0, -1), (-1, -9, -1), (0, 2**63 - 1, 1), (0, 5, 0)):
            yield Fold("Slice", (x, ints(start), ints(end), ints(0), ints(step)))
        yield Fold("Slice", (x, NOTHING, NOTHING))
        yield from (Fold("Concat", (x, some(other, dtype)), {"axis": 0}) for other in ((), (0,), (2,), (0, 3)))
        for indices in (one(0), NOTHING, ints(0), one(-1), one(9), np.zeros((0, 2), INT)):
            yield Fold("Gather", (x, indices))
        yield Fold("GatherND", (x, np.zeros((1, 0), INT)))
        yield Fold("GatherND", (x, np.zeros((0, 1), INT)))
        yield Fold("GatherElements", (x, np.zeros(shape, INT)))
        yield Fold("ScatterND", (x, np.zeros((0, 1), INT), np.zeros((0, *shape[1:]), dtype)))
        yield Fold("ScatterElements", (x, np.zeros(shape, INT), x))
        for count in (0, 1, 2):
            yield Fold("TopK", (x, ints(count)), outputs=2)
            yield Fold("Split", (x, ints(count, max(0, (shape or (0,))[0] - count))), outputs=2)
        for mode, width in product(("constant", "edge", "reflect", "wrap"), (-1, 0, 1)):
            yield Fold("Pad", (x, ints(*[width] * (2 * len(shape)))), {"mode": mode})
        yield from (Fold("Shape", (x,), {"start": start}) for start in (0, 1, 5))
        yield Fold("Clip", (x, one(3, dtype), one(1, dtype)))


def others() -> Iterator[Fold]:
    for start, limit, delta in ((0, 0, 1), (5, 0, 1), (5, 0, -1), (0, 5, 7), (0, 5, 0)):
        for dtype in (INT, INT32, FLOAT):
            yield Fold("Range", (one(start, dtype), one(limit, dtype), one(delta, dtype)))
    for indices, depth in product((one(0), NOTHING, ints(0, 1), ints(9)), (0, 1, 3, -1)):
        yield Fold("OneHot", (indices, one(depth), np.array([0, 1], FLOAT)))
    yield from (Fold("ConstantOfShape", (shape,)) for shape in (NOTHING, ints(0), ints(0, 2), ints(-1)))
    for a, b in (((2, 0), (0, 3)), ((0, 2), (2, 3))):
        yield from (Fold("MatMul", (some(a, dtype), some(b, dtype))) for dtype in (FLOAT, INT))
        yield Fold("Gemm", (some(a), some(b)))
    yield Fold("MatMulInteger", (some((0,), BYTE), some((0,), BYTE)))
    for image in ((1, 2, 0), (0, 2, 3), (1, 0, 3)):
        yield Fold("GlobalMaxPool", (some(image),))
        yield Fold("Conv", (some(image), some((2, max(image[1], 1), 1))))
        yield Fold("InstanceNormalization", (some(image), some((image[1],)), some((image[1],))))
    for shape in SHAPES[:4]:
        yield Fold("LayerNormalization", (some(shape), some(shape[-1:])))
        yield Fold("DynamicQuantizeLinear", (some(shape),), outputs=3)


FOLDS = {"unary": unary, "reductions": reductions, "pairs": pairs, "moves": moves, "others": others}


def _by_runtime(models: list[bytes]) -> list[list[Array] | None]:
    """Return what ONNX Runtime makes of models, None of what it refuses, or ends of: another process runs them."""
    found: list[list[Array] | None] = []
    while len(found) < len(models):
        mine, its = get_context("fork").Pipe(duplex=False)
        child = get_context("fork").Process(target=_send, args=(models[len(found) :], its))
        child.start()
        its.close()
        try:
            while len(found) < len(models):
                found.append(mine.recv())
        except EOFError:
            found.append(None)
        child.join()
    return found


def _send(models: list[bytes], into: Any) -> None:
    faulthandler.disable()  # to end is an answer
    for model in models:
        try:
            into.send(runtime(onnx.ModelProto.FromString(model), {}))
        except Exception:
            into.send(None)
    into.close()
    os._exit(0)


def _by_reference(model: onnx.ModelProto) -> list[Array] | None:
    try:
        return reference(model, {})
    except Exception:
        return None


def _same(some_: list[Array] | None, others_: list[Array]) -> bool:
    """Return whether results are the same: in type (but for strings), in shape and in value."""
    return some_ is not None and all(
        (a.dtype == b.dtype or a.dtype.kind in "OU") and a.shape == b.shape and bool(np.all((a == b) | (a != a)))
        for a, b in zip(some_, others_, strict=True)
    )


ONLY: Mapping[str, Mapping[str, Any]] = {
    "constants": {"only": ["fold_constants"]},
    "what is known": {"only": ["fold_shapes"]},
    "all": {},
}
NO_KERNEL = {"Where", "Mean", "Sum"}
"""Operators that ONNX Runtime has no kernel of in some types: the reference alone says what they compute."""


@pytest.mark.slow
@pytest.mark.parametrize("options", ONLY.values(), ids=ONLY)
@pytest.mark.parametrize("kind", FOLDS)
def test_what_is_folded_is_what_onnx_runtime_computes(kind: str, options: Mapping[str, Any]) -> None:
    folds = [*FOLDS[kind]()]
    models = [fold.model for fold in folds]
    wrong, count = list[str](), 0
    for fold, model, own in zip(folds, models, _by_runtime([m.SerializeToString() for m in models]), strict=True):
        try:
            result = graphopt.optimize(model, cost="none", check=False, **options)
        except graphopt.ModelError:
            assert own is None, fold
            continue
        if result.model.graph.node:
            continue
        made = runtime(result.model, {})
        count += 1
        if own is not None and not _same(own, made):
            wrong.append(f"{fold}: {made}, not {own}")
        told = _by_reference(model) if options == ONLY["constants"] else None
        if own is not None and told is not None and fold.op != "Cast" and _is_whole(fold) and not _same(told, made):
            wrong.append(f"{fold}: {made}, where the reference has {told}")
        if own is None and options == ONLY["constants"] and fold.op not in NO_KERNEL:
            wrong.append(f"{fold}: {made}, where ONNX Runtime fails")
    assert not wrong, "\n".join(wrong)
    assert count > (len(folds) // 20 if options else len(folds) // 4)


def _is_whole(fold: Fold) -> bool:
    return all(array is None or array.dtype.kind in "iub" for array in fold.inputs)


OF_NO_SIZES = "s = Shape(x); t = Slice(s, a, a); "
CHAINS = {
    **{f"{kind} of no sizes": f"{OF_NO_SIZES} y = Reduce{kind} <keepdims = 0> (t)" for kind in ("Prod", "Max", "Min")},
    **{f"{kind} of none": f"{OF_NO_SIZES} y = Reduce{kind} <keepdims = 1> (t)" for kind in ("Mean", "Sum", "L1")},
    "a Reshape to it": f"{OF_NO_SIZES} p = ReduceProd(t); r = Concat <axis = 0> (p, m); y = Reshape(x, r)",
    "the greatest of them and of 1": f"{OF_NO_SIZES} g = Concat <axis = 0> (t, m); y = ReduceMax <keepdims = 0> (g)",
    "the shape of where a scalar is": "q = ReduceSum <keepdims = 0> (x); n = NonZero(q); y = Shape(n)",
    "how many there are": "q = ReduceSum <keepdims = 0> (x); n = NonZero(q); t = Transpose(n); y = Size(t)",
    "where nothing is": f"{OF_NO_SIZES} n = NonZero(t); y = Shape(n)",
    "a Tile by nothing": "s = Shape(x); z = Sub(s, s); y = Tile(x, z)",
    "a Range of nothing": "s = Size(x); z = Sub(s, s); y = Range(z, z, s)",
    "an Expand to nothing": "s = Shape(x); z = Sub(s, s); o = ReduceSum <keepdims = 0> (x); y = Expand(o, z)",
    "a running sum of nothing": f"{OF_NO_SIZES} y = CumSum(t, i)",
    "a remainder by nothing": "s = Shape(x); z = Sub(s, s); l = Div(s, s); y = Where(w, l, z)",
}
"""What exporters leave: arithmetic on the sizes of an input."""


@pytest.mark.parametrize("body", CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize("shape", ["3,4", "n,4", "n"])
def test_arithmetic_on_no_sizes_stays_what_it_was(body: str, shape: str) -> None:
    known = {"a": ints(0), "m": ints(-1), "i": one(0), "w": np.array([True])}
    result = graphopt.optimize(parse(f"float[{shape}] x", body, known), cost="none")
    assert result.ok
    assert not any("left out" in note for note in result.report.notes)


BEYOND: Mapping[str, tuple[str, dict[str, Array]]] = {
    "a sum that leaves its type": (
        "y = ReduceSum <keepdims = 0> (a)",
        {"a": np.array([7] * 4 + [2**30] * 4996, INT32)},
    ),
    "numbers far beyond 8 bits": (
        "y = QuantizeLinear(a, s, z)",
        {"a": np.array([1e30, -1e30, 3e9], FLOAT), "s": one(0.01, FLOAT), "z": one(3, np.int8)},
    ),
    "the same, unsigned": (
        "y = QuantizeLinear(a, s, z)",
        {"a": np.array([1e30, -1e30, 3e9], FLOAT), "s": one(0.01, FLOAT), "z": one(3, BYTE)},
    ),
}


@pytest.mark.parametrize("opset", [18, 21])
@pytest.mark.parametrize("case", BEYOND.values(), ids=BEYOND)
def test_what_leaves_its_type_is_what_onnx_runtime_computes(case: tuple[str, dict[str, Array]], opset: int) -> None:
    body, known = case
    model = parse("float[1] x", body, known)
    model.opset_import[0].version = opset
    result = graphopt.optimize(model, cost="none", check=False)
    assert _same(runtime(model, {"x": some((1,))}), runtime(result.model, {"x": some((1,))}))
