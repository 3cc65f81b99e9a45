"""What one node says in an old opset, and several say in a newer one: the same results, in ONNX Runtime, to the bit."""

from itertools import product
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.parser import parse_model

import graphopt
from graphopt.base.errors import ModelError
from graphopt.io import onnx_io
from graphopt.ir import schemas
from tests.text import run

SOFTMAXES = ("Softmax", "LogSoftmax", "Hardmax")
NEWER = range(13, schemas.MAX_LOADED_OPSET + 1)


def model(text: str, opset: int, ir_version: int = 7) -> ModelProto:
    return parse_model(f'<ir_version: {ir_version}, opset_import: ["": {opset}]>\ng {text}')


def converted(proto: ModelProto, target: int, *, check: bool = True) -> ModelProto:
    """The model in another opset, by the whole pipeline without rewrites; its check where it can draw inputs."""
    result = graphopt.optimize(proto, cost="none", only=[], target_opset=target, check=check)
    assert result.ok == check, result.report.comparison
    after = result.model
    onnx.checker.check_model(after, full_check=True)
    assert after.opset_import[0].version == target
    return after


def agree(before: ModelProto, after: ModelProto, feeds: dict[str, Any]) -> None:
    for name, expected in run(before, feeds).items():
        found = run(after, feeds)[name]
        assert found.dtype == expected.dtype and found.shape == expected.shape
        np.testing.assert_array_equal(found, expected)


# -- Softmax and its like, which ran over all axes from one on ---------------------------------------------------------

SIZES = (2, 3, 4, 1, 2)
SHAPES = ("static", "open batch", "open", "open behind")


def declared(rank: int, kind: str) -> str:
    names = [f"d{axis}" for axis in range(rank)]
    known = [str(size) for size in SIZES[:rank]]
    dims = {
        "static": known,
        "open batch": [*names[:1], *known[1:]],
        "open": names,
        "open behind": [*known[:1], *names[1:]],
    }[kind]
    return f"float[{', '.join(dims)}]"


def softmax(op: str, opset: int, rank: int, axis: int | None, kind: str) -> ModelProto:
    type_, attribute = declared(rank, kind), "" if axis is None else f"<axis = {axis}>"
    return model(f"({type_} x) => ({type_} y) {{ y = {op} {attribute} (x) }}", opset)


@pytest.mark.parametrize(
    ("op", "opset", "rank", "axis", "kind"),
    [
        *product(SOFTMAXES, (7, 11), (4,), (0, 1, 2, 3), SHAPES),
        *product(SOFTMAXES, (11, 12), (4,), (-1, -2, -4), ("open", "static")),
        *product(SOFTMAXES, (9,), (3, 5), (None, 0), SHAPES),
        *product(SOFTMAXES, (7, 11), (1,), (0,), ("static", "open")),
        *product(("Softmax",), (8,), (5,), (2, 4), SHAPES),
    ],
)
def test_softmax(op: str, opset: int, rank: int, axis: int | None, kind: str) -> None:
    before = softmax(op, opset, rank, axis, kind)
    x = np.random.default_rng(rank).standard_normal(SIZES[:rank]).astype(np.float32)
    for target in (13, 14, 18):
        after = onnx_io.to_proto(onnx_io.convert_opset(onnx_io.load_model(before), target))
        onnx.checker.check_model(after, full_check=True)
        agree(before, after, {"x": x})


@pytest.mark.parametrize("target", NEWER)
def test_softmax_in_every_newer_opset(target: int) -> None:
    for kind in SHAPES:
        before = softmax("Softmax", 11, 3, 1, kind)
        x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
        agree(before, converted(before, target), {"x": x})


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0), (2, 3, 4), (1, 1, 1)])
@pytest.mark.parametrize("target", [13, 14, 22])
@pytest.mark.parametrize("axis", [0, 1])
def test_sizes_may_be_zero(shape: tuple[int, ...], target: int, axis: int) -> None:
    for type_ in ("float[a, b, c]", "float[a, 3, c]", f"float[{', '.join(map(str, shape))}]"):
        if "3" in type_ and shape[1] != 3:
            continue
        before = model(f"({type_} x) => ({type_} y) {{ y = Softmax <axis = {axis}> (x) }}", 11)
        after = onnx_io.to_proto(onnx_io.convert_opset(onnx_io.load_model(before), target))
        agree(before, after, {"x": np.ones(shape, np.float32)})


@pytest.mark.parametrize("axis", [1, 0, -2])
def test_softmax_of_an_unknown_rank(axis: int) -> None:
    text = f"(float[2, 3, 4] x, int64[n] s) => (y) {{ r = Reshape (x, s)  y = Softmax <axis = {axis}> (r) }}"
    before = model(text.replace("(y)", "(float[] y)"), 11)
    before.graph.output[0].type.tensor_type.ClearField("shape")
    after = onnx_io.to_proto(onnx_io.convert_opset(onnx_io.load_model(before), 20))
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    for shape in ([2, 3, 4], [6, 4], [2, 3, 2, 2]):
        agree(before, after, {"x": x, "s": np.array(shape)})


@pytest.mark.parametrize("target", [13, 21])
def test_softmax_in_bodies(target: int) -> None:
    branch = "t () => (float[2, 3, n] p) { p = Softmax <axis = 1> (x) }"
    other = "e () => (float[2, 3, n] q) { q = LogSoftmax <axis = 0> (x) }"
    node = f"y = If (c) <then_branch = {branch}, else_branch = {other}>"
    before = model(f"(bool c, float[2, 3, n] x) => (float[2, 3, n] y) {{ {node} }}", 11)
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    for flag in (True, False):
        agree(before, converted(before, target), {"c": np.array(flag), "x": x})
    nodes = "l = Identity (k)  t = Softmax <axis = 1> (s)"
    body = f"b (int64 i, bool k, float[2, 3, 4] s) => (bool l, float[2, 3, 4] t) {{ {nodes} }}"
    node = f"y = Loop (n, go, x) <body = {body}>"
    loop = model(f"(int64 n, bool go, float[2, 3, 4] x) => (float[2, 3, 4] y) {{ {node} }}", 11)
    agree(loop, converted(loop, target), {"n": np.array(2), "go": np.array(True), "x": x})


def test_what_a_softmax_is_called_stays() -> None:
    before = softmax("Softmax", 11, 3, 1, "static")
    before.graph.node[0].name, before.graph.node[0].doc_string = "attention", "weights"
    after = converted(before, 15)
    (kept,) = (node for node in after.graph.node if node.op_type == "Softmax")
    assert (kept.name, kept.doc_string) == ("attention", "weights")
    assert [value.name for value in after.graph.output] == ["y"]


# -- masks of Attention ------------------------------------------------------------------------------------------------

ATTENTION = [
    ("", "float[b, 2, k, 4] k, float[s, t] m", (3, 5, (3, 5))),
    ("", "float[b, 2, k, 4] k, bool[b, 1, s, t] m", (3, 5, (2, 1, 3, 5))),
    ("scale = 0.5", "float[b, 2, 5, 4] k, float[s, t] m", (3, 5, (3, 5))),
    ("is_causal = 1", "float[b, 2, q, 4] k, float[s, t] m", (3, 3, (3, 3))),
    ("softcap = 2.0", "float[b, 2, q, 4] k, float[1, 1, s, t] m", (3, 3, (1, 1, 3, 3))),
]


@pytest.mark.parametrize("target", [24, 25, 26])
@pytest.mark.parametrize(("attributes", "inputs", "sizes"), ATTENTION)
def test_a_mask_whose_sizes_have_other_names(
    attributes: str, inputs: str, sizes: tuple[int, int, tuple[int, ...]], target: int
) -> None:
    body = f"y = Attention {f'<{attributes}>' * bool(attributes)} (q, k, k, m)"
    before = model(f"(float[b, 2, q, 4] q, {inputs}) => (float[b, 2, q, 4] y) {{ {body} }}", 23, 11)
    random, (queries, keys, shape) = np.random.default_rng(0), sizes
    mask = random.standard_normal(shape).astype(np.float32)
    feeds = {
        "q": random.standard_normal((2, 2, queries, 4)).astype(np.float32),
        "k": random.standard_normal((2, 2, keys, 4)).astype(np.float32),
        "m": mask > -1 if "bool" in inputs else mask,
    }
    after = converted(before, target, check=False)
    np.testing.assert_allclose(run(after, feeds)["y"], run(before, feeds)["y"], rtol=1e-5, atol=1e-5)


def test_a_mask_behind_keys_of_the_past() -> None:
    inputs, cache = "float[b, 2, q, 4] q, float[b, 2, p, 4] p, float[s, t] m", "float[b, 2, r, 4]"
    node = "y, c, d = Attention (q, q, q, m, p, p)"
    text = f"({inputs}) => (float[b, 2, q, 4] y, {cache} c, {cache} d) {{ {node} }}"
    before, random = model(text, 23, 11), np.random.default_rng(0)
    shapes = {"q": (2, 2, 3, 4), "p": (2, 2, 2, 4), "m": (3, 5)}
    feeds = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    after = converted(before, 24, check=False)
    assert [node.op_type for node in after.graph.node if node.op_type == "Attention"]
    agree(before, after, feeds)


def test_scores_of_an_attention_stay_in_their_opset() -> None:
    inputs = "float[1, 2, 3, 4] q, float[s, t] m"
    text = f"({inputs}) => (float[1, 2, 3, 4] y, float[1, 2, 3, 3] w) {{ y, , , w = Attention (q, q, q, m) }}"
    with pytest.raises(ModelError, match=r"fourth output.*; keep the model's own opset, 23"):
        onnx_io.convert_opset(onnx_io.load_model(model(text, 23, 11)), 24)


# -- sparse constants --------------------------------------------------------------------------------------------------


def sparse(values: np.ndarray[Any, Any], indices: Any, shape: list[int], name: str = "s") -> onnx.SparseTensorProto:
    places = numpy_helper.from_array(np.array(indices, np.int64), f"{name}_indices")
    return helper.make_sparse_tensor(numpy_helper.from_array(values, name), places, shape)


DTYPES = (
    *(np.float32, np.float64, np.float16, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64),
    *(np.uint64, np.bool_),
)


def sparse_model(made: onnx.SparseTensorProto, opset: int, *, initializer: bool = False) -> ModelProto:
    kind, dims = made.values.data_type, list(made.dims)
    y = helper.make_tensor_value_info("y", kind, dims)
    nodes = [helper.make_node("Identity", ["s"], ["y"])]
    if not initializer:
        nodes.insert(0, helper.make_node("Constant", [], ["s"], sparse_value=made))
    graph = helper.make_graph(nodes, "g", [], [y], sparse_initializer=[made] if initializer else [])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7)


@pytest.mark.parametrize("initializer", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
def test_sparse_constants(dtype: type[Any], initializer: bool) -> None:
    for indices, shape in (
        ([0, 3], [5]),
        ([[0, 1], [2, 0]], [3, 2]),
        ([1, 5], [3, 2]),
        ([[0, 0, 1], [1, 0, 1]], [2, 1, 2]),
    ):
        made = sparse(np.array([1, 2], dtype), indices, shape)
        before = sparse_model(made, 12, initializer=initializer)
        for target in (9, 11, 13, 18, 21):
            after = onnx_io.to_proto(onnx_io.convert_opset(onnx_io.load_model(before), target))
            onnx.checker.check_model(after)
            agree(before, after, {})


@pytest.mark.parametrize("initializer", [False, True])
@pytest.mark.parametrize("target", [9, 10, 11, 13, 17, 21, 25, 26])
def test_sparse_constants_by_the_pipeline(target: int, initializer: bool) -> None:
    before = sparse_model(sparse(np.array([1, 2], np.float32), [0, 3], [5]), 18, initializer=initializer)
    result = graphopt.optimize(before, cost="none", target_opset=target)
    assert result.ok
    agree(before, result.model, {})


@pytest.mark.parametrize("initializer", [False, True])
@pytest.mark.parametrize("target", [9, 13])
def test_empty_sparse_constants(target: int, initializer: bool) -> None:
    for indices in (np.zeros(0), np.zeros((0, 2))):
        made = sparse(np.zeros(0, np.float32), indices, [3, 2])
        after = onnx_io.to_proto(
            onnx_io.convert_opset(onnx_io.load_model(sparse_model(made, 18, initializer=initializer)), target)
        )
        np.testing.assert_array_equal(run(after, {})["y"], np.zeros((3, 2), np.float32))


@pytest.mark.parametrize("target", [9, 13, 20])
def test_sparse_constants_in_bodies(target: int) -> None:
    text = """(bool c, float[5] x) => (float[5] y) {
        y = If (c) <
            then_branch = t () => (float[5] p) { p = Add (x, s) },
            else_branch = e () => (float[5] q) { q = Sub (x, s) }
        > }"""
    before = model(text.replace("s)", "x)"), 11)
    for attribute in before.graph.node[0].attribute:
        made = sparse(np.array([1, 2], np.float32), [0, 3], [5])
        attribute.g.node[0].input[1] = "s"
        attribute.g.node.insert(0, helper.make_node("Constant", [], ["s"], sparse_value=made))
    for flag in (True, False):
        feeds = {"c": np.array(flag), "x": np.ones(5, np.float32)}
        agree(before, converted(before, target), feeds)


def test_a_type_that_the_constants_of_an_opset_do_not_have_becomes_dense() -> None:
    bfloat16 = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)
    before = sparse_model(sparse(np.array([1, 2], bfloat16), [0, 3], [5]), 13)
    before.graph.output[0].name = "s"
    del before.graph.node[1]
    kept = [onnx_io.to_proto(onnx_io.convert_opset(onnx_io.load_model(before), target)).graph for target in (12, 14)]
    assert [(len(graph.node), len(graph.initializer)) for graph in kept] == [(0, 1), (1, 0)]
    np.testing.assert_array_equal(numpy_helper.to_array(kept[0].initializer[0]), np.array([1, 0, 0, 2, 0], bfloat16))


@pytest.mark.parametrize(
    ("indices", "shape", "message"),
    [
        ([0, 7], [5], "'s' of shape [5] says of 2 values that they are at other places"),
        ([-1, 2], [5], "at other places"),
        ([[0, 0], [0, 2]], [3, 2], "at other places"),
        ([0], [5], "at other places"),
        ([0, 3], [1 << 20, 1 << 20], "in opset 9: dense it takes 4398.0 GB; convert it to opset 11, or keep"),
    ],
)
def test_sparse_constants_that_cannot_be_dense(indices: Any, shape: list[int], message: str) -> None:
    loaded = onnx_io.load_model(sparse_model(sparse(np.array([1, 2], np.float32), indices, shape), 12))
    before = onnx_io.to_proto(loaded)
    with pytest.raises(ModelError) as caught:
        onnx_io.convert_opset(loaded, 9)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert onnx_io.to_proto(loaded) == before


# -- as far as the opset that is wanted --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "opset", "target"),
    [
        ("Softmax <axis = 1> (x)", 7, 11),
        ("LogSoftmax (x)", 9, 12),
        ("Hardmax <axis = 0> (x)", 10, 11),
        ("AveragePool <ceil_mode = 1, kernel_shape = [2, 2]> (x)", 10, 11),
        ("MaxPool <ceil_mode = 1, kernel_shape = [2, 2], strides = [2, 2]> (x)", 10, 12),
        ("MaxPool <ceil_mode = 1, kernel_shape = [2, 2]> (x)", 11, 21),
    ],
)
def test_what_has_no_newest_spelling_goes_as_far_as_is_asked(text: str, opset: int, target: int) -> None:
    before = model(f"(float[1, 2, 5, 5] x) => (float[] y) {{ y = {text} }}", opset)
    before.graph.output[0].type.tensor_type.ClearField("shape")
    after = onnx_io.to_proto(onnx_io.convert_opset(onnx_io.load_model(before), target))
    assert [node.op_type for node in after.graph.node] == [before.graph.node[0].op_type]
    x = np.random.default_rng(0).standard_normal((1, 2, 5, 5)).astype(np.float32)
    agree(before, after, {"x": x})


@pytest.mark.parametrize(("opset", "target"), [(9, 11), (9, 12), (13, 11), (13, 12), (18, 11), (9, 13)])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_a_resize_gets_a_region_where_its_opset_needs_one(opset: int, target: int, mode: str) -> None:
    scales = "s = Constant <value = float[4] {1, 1, 1, 3}> ()"
    how = f'mode = "{mode}"'
    node = f"Upsample <{how}> (x, s)"
    if opset > 9:
        node = f'Resize <{how}, coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (x, , s)'
    proto = model(f"(float[1,1,2,2] x) => (float[1,1,2,6] y) {{ {scales} y = {node} }}", opset)
    agree(proto, converted(proto, target), {"x": np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2)})
