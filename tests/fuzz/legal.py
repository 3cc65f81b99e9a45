"""Legal models drawn at random: many operators, types and opsets, symbolic sizes, bodies, infinities and NaN.

A model is drawn from a seed, and says what sizes its inputs have when it is run. Shapes are followed while it is drawn,
independently of graphopt's own inference. Whether ONNX Runtime has a kernel for each node is for ONNX Runtime to say.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import helper

from tests.fuzz.drawing import (
    BOOL,
    DOUBLE,
    FLOAT,
    FLOATS,
    HALF,
    INT32,
    INT64,
    OPSETS,
    Drawing,
    Model,
    NotHere,
    Size,
    Tensor,
    arg_max,
    batch_normalization,
    binary,
    cast,
    clip,
    comparison,
    concat,
    concrete,
    convolution,
    expand,
    filled,
    flatten,
    gather,
    gemm,
    identity,
    layer_normalization,
    logic,
    matmul,
    pad,
    pool,
    quantized,
    quotient,
    reduce_,
    repeated,
    reshape,
    running_sum,
    sizes,
    slice_,
    softmax,
    split,
    squeeze,
    tile,
    transpose,
    unary,
    unary_on_integers,
    unsqueeze,
    where,
)

# -- bodies ------------------------------------------------------------------------------------------------------------


def _body(d: Drawing, inputs: Sequence[Tensor]) -> Drawing:
    body = Drawing(d.rng, d.opset, d.names, d, values=list(inputs))
    _draw_nodes(body, d.rng.randrange(1, 5))
    return body


def _depth(d: Drawing) -> int:
    return 0 if d.outer is None else 1 + _depth(d.outer)


def branches(d: Drawing) -> None:
    """An If whose branches end in values of one type and shape."""
    if _depth(d) > 1:
        raise NotHere
    x = d.pick((*FLOATS, INT64))
    condition = (
        d.constant(np.array(d.rng.random() < 0.5))
        if d.rng.random() < 0.3
        else d.pick((BOOL,), lambda c: concrete(c.shape) in ((), (1,)) and not any(isinstance(s, str) for s in c.shape))
    )
    graphs = []
    for branch in ("then", "else"):
        body = _body(d, ())
        result = _ending(body, x)
        graphs.append(_graph(body, d.name(branch), (), (result,)))
    d.node("If", [condition], (x.dtype, x.shape), then_branch=graphs[0], else_branch=graphs[1])


def _ending(body: Drawing, like: Tensor) -> Tensor:
    """A value of a body with the type and shape of another; made of that one where there is none."""
    found = [t for t in body.values if (t.dtype, t.shape) == (like.dtype, like.shape)]
    if found and body.rng.random() < 0.8:
        return found[-1]
    return body.node("Identity", [like], (like.dtype, like.shape))


def loop(d: Drawing) -> None:
    """A Loop of a few turns with one carried value."""
    if _depth(d) > 1:
        raise NotHere
    x = d.pick(FLOATS)
    count, go = d.constant(np.array(d.rng.randrange(4), np.int64)), d.constant(np.array(True))
    inputs = (Tensor(d.name("i"), INT64, ()), Tensor(d.name("go"), BOOL, ()), Tensor(d.name("state"), x.dtype, x.shape))
    body = _body(d, inputs)
    on = body.node("Identity", [inputs[1]], (BOOL, ()))
    result = _ending(body, inputs[2])
    graph = _graph(body, d.name("body"), inputs, (on, result))
    d.node("Loop", [count, go, x], (x.dtype, x.shape), body=graph)


DRAWN: Sequence[tuple[Callable[[Drawing], None], int]] = (
    *((draw, 4) for draw in (unary, binary)),
    *((draw, 2) for draw in (identity, where, clip, cast, transpose, reshape, comparison, sizes, matmul, repeated)),
    *((draw, 1) for draw in (unary_on_integers, quotient, logic, flatten, unsqueeze, squeeze, expand, tile, slice_)),
    *((draw, 1) for draw in (gather, concat, split, pad, reduce_, arg_max, softmax, gemm, convolution)),
    *((draw, 1) for draw in (batch_normalization, layer_normalization, pool, filled, running_sum, branches, loop)),
    (quantized, 3),
)
"""What is drawn, and how often."""


def _draw_nodes(d: Drawing, count: int) -> None:
    kinds, weights = zip(*DRAWN, strict=True)
    for _ in range(count):
        for _ in range(20):
            made = len(d.nodes), len(d.weights), len(d.values)
            try:
                d.rng.choices(kinds, weights)[0](d)
            except NotHere:
                del d.nodes[made[0] :], d.weights[made[1] :], d.values[made[2] :]
                continue
            break


# -- models ------------------------------------------------------------------------------------------------------------


def _info(tensor: Tensor) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(tensor.name, tensor.dtype, list(tensor.shape))


def _graph(d: Drawing, name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> onnx.GraphProto:
    infos = [helper.make_tensor_value_info(t.name, t.dtype, None) if d.outer else _info(t) for t in outputs]
    return helper.make_graph(d.nodes, name, [_info(tensor) for tensor in inputs], infos, d.weights)


SHAPES: Sequence[tuple[Size, ...]] = (
    (2, 4), ("batch", 4), ("batch", "length", 4), (1, 2, 4, 4), ("batch", 2, 4, 4), (4,), (), (2, 1, 4), ("empty", 4),
)  # fmt: skip


def draw(seed: int, nodes: int = 12) -> Model:
    """The model of a seed: some inputs, up to `nodes` operators and what they need, and a few outputs."""
    rng = random.Random(seed)
    d = Drawing(rng, rng.choice(OPSETS))
    kinds = rng.choices([FLOAT, DOUBLE, HALF, INT64, INT32, BOOL], [12, 3, 3, 3, 1, 2], k=rng.randrange(1, 4))
    if not set(kinds) & set(FLOATS):
        kinds.append(FLOAT)
    inputs = tuple(Tensor(f"x{i}", kind, rng.choice(SHAPES)) for i, kind in enumerate(kinds))
    d.values += inputs
    _draw_nodes(d, rng.randrange(1, nodes + 1))
    outputs = _outputs(d, inputs)
    graph = _graph(d, "drawn", inputs, outputs)
    ir_version = helper.find_min_ir_version_for([helper.make_opsetid("", d.opset)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", d.opset)], ir_version=max(4, ir_version))
    return Model(model, inputs)


def _outputs(d: Drawing, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The last values, some others, and now and then an input, a constant or an Identity of one."""
    made = d.values[len(inputs) :]
    read = {name for node in d.nodes for name in node.input}
    outputs = [tensor for tensor in made if tensor.name not in read][-3:] or made[-1:]
    if made and d.rng.random() < 0.4:
        outputs.append(d.rng.choice(made))
    if d.weights and d.rng.random() < 0.15:
        weight = d.rng.choice(d.weights)
        tensor = Tensor(weight.name, weight.data_type, tuple(weight.dims))
        outputs.append(tensor if d.rng.random() < 0.5 else d.node("Identity", [tensor], (tensor.dtype, tensor.shape)))
    if not outputs or d.rng.random() < 0.15:
        chosen = d.rng.choice(inputs)
        outputs.append(chosen if d.rng.random() < 0.3 else d.node("Identity", [chosen], (chosen.dtype, chosen.shape)))
    return list({tensor.name: tensor for tensor in outputs}.values())
