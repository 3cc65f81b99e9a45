"""Legal models drawn at random whose nodes compute with sizes: integers in scalars and short lists, empty ones too.

Exporters leave such arithmetic behind wherever a size is open. Each list has a length that is known while it is drawn;
no number is divided by 0, which ends the process in ONNX Runtime.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
from onnx import TensorProto, helper

from tests.fuzz.drawing import BOOL, DOUBLE, FLOAT, INT32, INT64, Drawing, Model, NotHere, Size, Tensor

OPSETS = range(13, 24)
WHOLE, REAL = (INT64, INT32), (FLOAT, DOUBLE)
IMAGES: Sequence[tuple[Size, ...]] = (("batch", 4), ("batch", "length", 4), (2, "empty", 3), (4,), (), (1, 2, 4))
"""Shapes of the tensors whose sizes are computed with."""


def _value(d: Drawing, dtypes: Sequence[int], fits: Callable[[Tensor], bool] = lambda value: True) -> Tensor:
    """A scalar or a list of known length, of one of some types."""
    return d.pick(dtypes, lambda v: v.rank <= 1 and all(isinstance(size, int) for size in v.shape) and fits(v))


def _list(d: Drawing, dtypes: Sequence[int] = WHOLE) -> Tensor:
    return _value(d, dtypes, lambda value: value.rank == 1)


def _length(value: Tensor) -> int:
    (size,) = value.shape
    assert isinstance(size, int)
    return size


def _number(d: Drawing, dtype: int, *choices: int) -> Tensor:
    return d.constant(np.array(d.rng.choice(choices), helper.tensor_dtype_to_np_dtype(dtype)))


def _fitting(d: Drawing, value: Tensor) -> Tensor:
    """A second operand: another value of its type and shape, or a number."""
    others = [v for v in d.seen() if (v.dtype, v.shape) == (value.dtype, value.shape)]
    return d.rng.choice(others) if d.rng.random() < 0.6 else _number(d, value.dtype, -2, -1, 0, 1, 2, 3, 7)


def sizes(d: Drawing) -> None:
    x = d.pick((FLOAT,), lambda x: x.name.startswith("x"))
    if d.rng.random() < 0.15:
        d.node("Size", [x], (INT64, []))
        return
    start, end = d.rng.choice(((0, None), (0, None), (1, None), (0, -1), (-1, None), (2, 1)))
    cut = {"start": start, **({} if end is None else {"end": end})} if d.opset >= 15 and (start or end) else {}
    length = len(range(x.rank)[start:end]) if cut else x.rank
    d.node("Shape", [x], (INT64, [length]), **cut)


def arithmetic(d: Drawing) -> None:
    x = _value(d, (*WHOLE, *WHOLE, *REAL))
    op = d.rng.choice(["Add", "Sub", "Mul", "Max", "Min", "Sum"])
    d.node(op if x.dtype in REAL or op != "Sum" else "Add", [x, _fitting(d, x)], (x.dtype, x.shape))


def quotient(d: Drawing) -> None:
    x = _value(d, WHOLE)
    by = _number(d, x.dtype, 1, 2, 3, 7)
    if d.rng.random() < 0.3:
        other = _fitting(d, x)
        by = d.node("Max", [other, _number(d, x.dtype, 1, 2)], (x.dtype, other.shape))
    d.node(d.rng.choice(["Div", "Mod"]), [x, by], (x.dtype, x.shape))


def elementwise(d: Drawing) -> None:
    x = _value(d, (*WHOLE, *REAL))
    d.node(d.rng.choice(["Neg", "Abs", "Sign", "Identity", "Relu" if d.opset >= 14 else "Abs"]), [x],
           (x.dtype, x.shape))  # fmt: skip


def rounded(d: Drawing) -> None:
    x = _value(d, REAL)
    d.node(d.rng.choice(["Floor", "Ceil", "Round", "Sqrt"]), [x], (x.dtype, x.shape))


def cast(d: Drawing) -> None:
    x = _value(d, (*WHOLE, BOOL))
    to = d.rng.choice([INT64, INT64, INT32, FLOAT, DOUBLE, BOOL])
    d.node("Cast", [x], (to, x.shape), to=to)


def compared(d: Drawing) -> None:
    x = _value(d, WHOLE)
    d.node(d.rng.choice(["Equal", "Less", "Greater"]), [x, _fitting(d, x)], (BOOL, x.shape))


def where(d: Drawing) -> None:
    x = _value(d, WHOLE)
    condition = _value(d, (BOOL,), lambda c: c.shape in ((), x.shape))
    d.node("Where", [condition, x, _fitting(d, x)], (x.dtype, x.shape))


def gather(d: Drawing) -> None:
    x = _list(d, (*WHOLE, BOOL))
    length = _length(x)
    count = d.rng.choice([None, None, 0, 1, 2, 3])
    if not length and count != 0:
        raise NotHere
    places = [d.rng.randrange(-length, length) for _ in range(1 if count is None else count)]
    indices = d.constant(np.array(places if count is not None else places[0], np.int64))
    d.node("Gather", [x, indices], (x.dtype, [] if count is None else [count]))


def slice_(d: Drawing) -> None:
    x = _list(d)
    start, end, step = d.rng.randrange(-3, 4), d.rng.choice([-1, 0, 1, 2, 3, 2**63 - 1]), d.rng.choice([1, 1, 2, -1])
    length = len(range(_length(x))[start : (None if end == 2**63 - 1 and step > 0 else end) : step])
    d.node("Slice", [x, *(d.numbers(n) for n in (start, end, 0, step))], (x.dtype, [length]))


def concat(d: Drawing) -> None:
    first = _list(d)
    parts = [first, *(_list(d, (first.dtype,)) for _ in range(d.rng.randrange(0, 3)))]
    length = sum(map(_length, parts))
    if length > 8:
        raise NotHere
    d.node("Concat", parts, (first.dtype, [length]), axis=0)


def ranked(d: Drawing) -> None:
    x = _value(d, WHOLE, lambda x: x.shape in ((), (1,)))
    if x.rank:
        d.node("Squeeze", [x, d.numbers(0)] if d.rng.random() < 0.7 else [x], (x.dtype, []))
    else:
        d.node("Unsqueeze", [x, d.numbers(0)], (x.dtype, [1]))


def reshaped(d: Drawing) -> None:
    x = _value(d, WHOLE)
    if x.shape in ((), (1,)) and d.rng.random() < 0.5:
        d.node("Reshape", [x, d.constant(np.zeros(0, np.int64))], (x.dtype, []))
    else:
        d.node("Reshape", [x, d.numbers(-1)], (x.dtype, [_length(x) if x.rank else 1]))


def reduced(d: Drawing) -> None:
    x = _list(d)
    keep = d.rng.randrange(2)
    op = d.rng.choice(["ReduceProd", "ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin"])
    axes = [d.numbers(0)] if op == "ReduceSum" and d.rng.random() < 0.6 else []
    d.node(op, [x, *axes], (x.dtype, [1] if keep else []), keepdims=keep)


def running(d: Drawing) -> None:
    x = _list(d)
    flags = {"exclusive": d.rng.randrange(2), "reverse": d.rng.randrange(2)}
    d.node("CumSum", [x, d.constant(np.array(0, np.int64))], (x.dtype, x.shape), **flags)


def expanded(d: Drawing) -> None:
    x = _value(d, WHOLE, lambda x: x.shape in ((), (1,)))
    count = d.rng.choice([0, 1, 2, 3])
    d.node("Expand", [x, d.numbers(count)], (x.dtype, [1 if x.rank and count == 1 else count]))


def tiled(d: Drawing) -> None:
    x, count = _list(d), d.rng.choice([0, 1, 2])
    d.node("Tile", [x, d.numbers(count)], (x.dtype, [_length(x) * count]))


def split(d: Drawing) -> None:
    x = _list(d)
    first = d.rng.randrange(_length(x) + 1)
    lengths = first, _length(x) - first
    d.node("Split", [x, d.numbers(*lengths)], *((x.dtype, [n]) for n in lengths), axis=0)


def chosen(d: Drawing) -> None:
    x = _value(d, WHOLE, lambda x: x.rank == 1 and x.shape != (0,))
    d.node(d.rng.choice(["ArgMax", "ArgMin"]), [x], (INT64, []), axis=0, keepdims=0)


def filled(d: Drawing) -> None:
    """A tensor of sizes that are computed, and its sizes again."""
    x = _list(d, (INT64,))
    small = d.node("Min", [d.node("Max", [x, d.numbers(0)], (INT64, x.shape)), d.numbers(3)], (INT64, x.shape))
    value = helper.make_tensor("value", TensorProto.FLOAT, [1], [d.rng.choice([0.0, 1.0, -2.0])])
    if _length(x) > 5:
        raise NotHere
    tensor = d.node("ConstantOfShape", [small], (FLOAT, [d.name("size") for _ in range(_length(x))]), value=value)
    d.node("Shape", [tensor], (INT64, x.shape))


def reread(d: Drawing) -> None:
    """An input in another shape: its own sizes, some of them multiplied, and the rest."""
    x = d.pick((FLOAT,), lambda x: x.name.startswith("x") and x.rank > 1 and "empty" not in x.shape)
    shape = d.node("Shape", [x], (INT64, [x.rank]))
    kept = d.node("Slice", [shape, *(d.numbers(n) for n in (0, 1, 0))], (INT64, [1]))
    rest = d.node("Slice", [shape, *(d.numbers(n) for n in (1, 2**63 - 1, 0))], (INT64, [x.rank - 1]))
    product = d.node("ReduceProd", [rest], (INT64, [1]), keepdims=1)
    wanted = d.node("Concat", [kept, d.numbers(-1) if d.rng.random() < 0.4 else product], (INT64, [2]), axis=0)
    d.node("Reshape", [x, wanted], (FLOAT, [x.shape[0], d.name("rest")]))


def counted(d: Drawing) -> None:
    """The numbers below one, or below none."""
    x = _value(d, (INT64,), lambda x: x.rank == 0)
    small = d.node("Min", [x, _number(d, INT64, 0, 2, 5)], (INT64, []))
    zero, one = _number(d, INT64, 0, 1, -1), _number(d, INT64, 1, 2)
    made = d.node("Range", [zero, small, one], (INT64, [d.name("count")]))
    d.node("ReduceSum", [made], (INT64, []), keepdims=0)


DRAWN: Sequence[tuple[Callable[[Drawing], None], int]] = (
    *((draw, 3) for draw in (sizes, arithmetic, gather, concat, slice_, reduced)),
    *((draw, 2) for draw in (quotient, cast, ranked, elementwise, where, compared)),
    *((draw, 1) for draw in (rounded, reshaped, running, expanded, tiled, split, chosen, filled, reread, counted)),
)
"""What is drawn, and how often."""


def draw(seed: int, nodes: int = 16) -> Model:
    """Return the model of a seed: tensors whose sizes are read, a list of integers, and what is computed of them."""
    rng = random.Random(seed)
    d = Drawing(rng, rng.choice(OPSETS))
    images = [Tensor(f"x{i}", FLOAT, rng.choice(IMAGES)) for i in range(rng.randrange(1, 3))]
    inputs = (*images, *([Tensor("n", INT64, (3,))] if rng.random() < 0.4 else ()))
    d.values += inputs
    sizes(d)
    kinds, weights = zip(*DRAWN, strict=True)
    for _ in range(rng.randrange(2, nodes)):
        made = len(d.nodes), len(d.weights), len(d.values)
        try:
            rng.choices(kinds, weights)[0](d)
        except NotHere:
            del d.nodes[made[0] :], d.weights[made[1] :], d.values[made[2] :]
    read = {name for node in d.nodes for name in node.input}
    computed = d.values[len(inputs) :]
    outputs = [tensor for tensor in computed if tensor.name not in read][-6:] or computed[-1:]
    infos = [helper.make_tensor_value_info(t.name, t.dtype, list(t.shape)) for t in (*inputs, *outputs)]
    graph = helper.make_graph(d.nodes, "sizes", infos[: len(inputs)], infos[len(inputs) :], d.weights)
    opsets = [helper.make_opsetid("", d.opset)]
    return Model(helper.make_model(graph, opset_imports=opsets, ir_version=9), inputs)
