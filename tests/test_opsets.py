"""One meaning, two spellings: nodes are raised to the newest and written in the opset of the model."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper
from onnx.parser import parse_model
from onnx.printer import to_text

import graphopt
from graphopt.base.errors import ModelError
from graphopt.io import onnx_io, opset_conversion, version_paths, version_tables
from graphopt.ir import schemas
from graphopt.ir.edit import constant_node, replace_node
from graphopt.ir.graph import Graph, Node, Patch, Value
from graphopt.ir.tensor import Tensor
from graphopt.operators import inference
from tests import conformance
from tests.text import run
from tests.versions import is_older, needs


def model(text: str, opset: int) -> ModelProto:
    return parse_model(f'<ir_version: 10, opset_import: ["": {opset}]>\ng {text}')


def in_opset(text: str, opset: int, target: int) -> str:
    """The graph of a model after it was brought to another opset."""
    proto = onnx_io.to_proto(onnx_io.convert_opset(onnx_io.load_model(model(text, opset)), target))
    onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)
    assert [entry.version for entry in proto.opset_import] == [target]
    return to_text(proto.graph)


def only_node(graph: Graph) -> Node:
    ((_, node),) = graph.nodes()
    return node


# -- one meaning, two spellings ----------------------------------------------------------------------------------------

X = "(float[2, 3, 4] x) => (y)"
HALF, INFINITY, MINUS_INFINITY = "(float16[4] x) => (y)", 0x7C00, 0xFC00
ROI = "(float[1, 1, 4, 4] x) => (y)"
SPELLINGS = [
    (9, f"{ROI} {{ y = Squeeze <axes = [0]> (x) }}",
     13, f"{ROI} <int64[1] y_const = {{0}}> {{ y = Squeeze (x, y_const) }}"),
    (9, f"{ROI} {{ y = Squeeze (x) }}", 13, f"{ROI} {{ y = Squeeze (x) }}"),
    (9, f"{X} {{ y = Unsqueeze <axes = [0, 4]> (x) }}",
     21, f"{X} <int64[2] y_const = {{0, 4}}> {{ y = Unsqueeze (x, y_const) }}"),
    (11, f"{X} {{ y = ReduceSum <axes = [-1], keepdims = 0> (x) }}",
     13, f"{X} <int64[1] y_const = {{-1}}> {{ y = ReduceSum <keepdims = 0> (x, y_const) }}"),
    (17, f"{X} {{ y = ReduceMean <axes = [1]> (x) }}",
     18, f"{X} <int64[1] y_const = {{1}}> {{ y = ReduceMean (x, y_const) }}"),
    (17, f"{X} {{ y = ReduceMax (x) }}", 20, f"{X} {{ y = ReduceMax (x) }}"),
    (10, f"{X} {{ y = Clip <max = 6.0, min = 0.0> (x) }}",
     13, f"{X} <float y_const = {{0}}, float y_const_1 = {{6}}> {{ y = Clip (x, y_const, y_const_1) }}"),
    (10, f"{X} {{ y = Clip <max = 6.0> (x) }}",
     13, f"{X} <float y_const = {{6}}> {{ y = Clip (x, , y_const) }}"),
    (11, f"{HALF} <float16 k = {{0}}> {{ y = Clip (x, k) }}",
     13, f"{HALF} <float16 k = {{0}}, float16 y_const = {{{INFINITY}}}> {{ y = Clip (x, k, y_const) }}"),
    (10, f"{HALF} {{ y = Clip <max = 0.0> (x) }}",
     12, (f"{HALF} <float16 y_const = {{{MINUS_INFINITY}}}, float16 y_const_1 = {{0}}> "
          "{ y = Clip (x, y_const, y_const_1) }")),
    (9, f"{X} {{ y = Slice <axes = [2], ends = [3], starts = [1]> (x) }}",
     13, (f"{X} <int64[1] y_const = {{1}}, int64[1] y_const_1 = {{3}}, int64[1] y_const_2 = {{2}}> "
          "{ y = Slice (x, y_const, y_const_1, y_const_2) }")),
    (10, f"{X} {{ y = Pad <mode = \"constant\", pads = [0, 0, 1, 0, 0, 1], value = 2.0> (x) }}",
     18, (f"{X} <int64[6] y_const = {{0, 0, 1, 0, 0, 1}}, float y_const_1 = {{2}}> "
          "{ y = Pad <mode = \"constant\"> (x, y_const, y_const_1) }")),
    (9, f"{X} {{ y, z = TopK <k = 2> (x) }}",
     11, f"{X} <int64[1] y_const = {{2}}> {{ y, z = TopK (x, y_const) }}"),
    (11, "(float[4] x) => (y, z) { y, z = Split <axis = 0, split = [1, 3]> (x) }",
     18, "(float[4] x) => (y, z) <int64[2] y_const = {1, 3}> { y, z = Split <axis = 0> (x, y_const) }"),
    (11, "(float[4] x) => (y, z) { y, z = Split <axis = 0> (x) }",
     18, "(float[4] x) => (y, z) { y, z = Split <axis = 0, num_outputs = 2> (x) }"),
    (9, f"{X} {{ y = Dropout <ratio = 0.25> (x) }}",
     13, f"{X} <float y_const = {{0.25}}> {{ y = Dropout (x, y_const) }}"),
    (9, f"{X} {{ y = Softmax <axis = 2> (x) }}", 13, f"{X} {{ y = Softmax <axis = 2> (x) }}"),
    (9, f"{X} {{ y = Hardmax <axis = 2> (x) }}", 13, f"{X} {{ y = Hardmax <axis = 2> (x) }}"),
    (9, "(float[2, 3, 1, 1] x) => (y) { y = LogSoftmax <axis = 1> (x) }",
     13, "(float[2, 3, 1, 1] x) => (y) { y = LogSoftmax <axis = 1> (x) }"),
    (9, "(float[1, 1, 2, 2] x) => (y) <float[4] s = {1, 1, 2, 2}> { y = Upsample <mode = \"nearest\"> (x, s) }",
     13, ("(float[1, 1, 2, 2] x) => (y) <float[4] s = {1, 1, 2, 2}> { y = Resize <mode = \"nearest\", "
          "coordinate_transformation_mode = \"asymmetric\", nearest_mode = \"floor\"> (x, , s) }")),
    (10, f"{X} <int64[1, 1, 1] i = {{0}}, float[1, 1, 1] u = {{9}}> {{ y = Scatter <axis = 0> (x, i, u) }}",
     18, f"{X} <int64[1, 1, 1] i = {{0}}, float[1, 1, 1] u = {{9}}> {{ y = ScatterElements <axis = 0> (x, i, u) }}"),
    (10, f"{ROI} <float[1, 4] r = {{0, 0, 1, 1}}, int64[1] b = {{0}}> {{ y = RoiAlign (x, r, b) }}",
     16, (f"{ROI} <float[1, 4] r = {{0, 0, 1, 1}}, int64[1] b = {{0}}> "
          "{ y = RoiAlign <coordinate_transformation_mode = \"output_half_pixel\"> (x, r, b) }")),
    (7, "(float[2, 3] a, float[2, 3] b) => (y) { y = Max (a, b) }",
     13, "(float[2, 3] a, float[2, 3] b) => (y) { y = Max (a, b) }"),
]  # fmt: skip


@pytest.mark.parametrize(("low", "old", "high", "new"), SPELLINGS, ids=lambda value: str(value)[:60])
def test_up(low: int, old: str, high: int, new: str) -> None:
    if "float16" in new and is_older("onnx", "1.23"):
        pytest.skip("onnx before 1.23 does not print elements of float16")
    assert in_opset(old, low, high) == to_text(model(new, high).graph)


@pytest.mark.parametrize(("low", "old", "high", "new"), SPELLINGS, ids=lambda value: str(value)[:60])
def test_down(low: int, old: str, high: int, new: str) -> None:
    found = onnx_io.to_proto(onnx_io.convert_opset(onnx_io.load_model(model(new, high)), low)).graph
    expected = model(old, low).graph
    assert spelled(found) == spelled(expected)
    assert [tensor.name for tensor in found.initializer] == [tensor.name for tensor in expected.initializer]


@pytest.mark.parametrize("limits", ["", "<min = 0.0>", "<max = 0.0>"])
def test_infinities_pass_where_there_is_no_limit_before_and_after(limits: str) -> None:
    before = model(f"(float16[4] x) => (float16[4] y) {{ y = Clip {limits} (x) }}", 10)
    after = onnx_io.to_proto(onnx_io.convert_opset(onnx_io.load_model(before), 21))
    feeds = {"x": np.array([np.inf, -np.inf, 1, np.nan], np.float16)}
    np.testing.assert_array_equal(run(after, feeds)["y"], run(before, feeds)["y"])


def spelled(graph: onnx.GraphProto) -> list[Any]:
    """Operators, inputs and attributes; the order of attributes is nobody's business."""
    return [
        (node.op_type, [*node.input], {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute})
        for node in graph.node
    ]


RAISED = [
    # Where an old attribute only said what is always the case now, it goes.
    (6, (f"{X} <float[3] s = {{1, 1, 1}}, float[3] m = {{0, 0, 0}}> {{ y = BatchNormalization "
         "<is_test = 1, spatial = 1, epsilon = 0.01> (x, s, m, m, s) }"), {"epsilon": np.float32(0.01)}),
    (1, f"{X} {{ y = Relu <consumed_inputs = [0]> (x) }}", {}),
    (6, "(float[2] x, float[2] z) => (y) { y = Add <broadcast = 0> (x, z) }", {}),
    (6, f"{X} {{ y = Dropout <is_test = 1, ratio = 0.5> (x) }}", {}),
    (6, "(float[2, 3] a, float[3, 4] b, float[4] c) => (y) { y = Gemm <broadcast = 1> (a, b, c) }", {}),
    (1, f"{X} {{ y = Cast <to = \"INT32\"> (x) }}", {"to": 6}),
    # Where absence meant something else, that is said.
    (1, f"{X} {{ y = Concat (x, x) }}", {"axis": 1}),
    (1, f"{X} {{ y = Selu (x) }}", {"alpha": np.float32(1.6732), "gamma": np.float32(1.0507)}),
    (11, "(float[2, 3] x) => (y) { y = Softmax (x) }", {"axis": 1}),
    # Where a version only has more types, or more attributes whose default is what always was.
    (1, f"{X} {{ y = Flatten (x) }}", {}),
    (8, "(float[1, 2, 4, 4] x) => (y) { y = MaxPool <kernel_shape = [2, 2]> (x) }", {"kernel_shape": (2, 2)}),
    (1, "(float[1, 2, 4, 4] x, float[2, 2, 3, 3] w) => (y) { y = ConvTranspose <pads = [1, 1, 1, 1]> (x, w) }",
        {"pads": (1, 1, 1, 1)}),
    (7, "(float[1, 1, 2] x, float[1, 8, 2] w, float[1, 8, 2] r) => (y) { y = LSTM <hidden_size = 2> (x, w, r) }",
        {"hidden_size": 2}),
    (10, "(uint8[4] x, float s) => (y) { y = DequantizeLinear (x, s) }", {}),
]  # fmt: skip


@pytest.mark.parametrize(("opset", "text", "attrs"), RAISED, ids=lambda value: str(value)[:60])
def test_raised(opset: int, text: str, attrs: dict[str, Any]) -> None:
    proto = model(text, opset)
    loaded = onnx_io.load_model(proto)
    node = only_node(loaded.graph)
    assert node.version == schemas.newest_version(node.op)
    assert node.attrs == attrs
    assert onnx_io.to_proto(loaded).graph.node == proto.graph.node


KEPT = [
    (9, f"{X} {{ y = Softmax <axis = 1> (x) }}", "normalised over the last two axes at once"),
    (9, "(float[N, 3, M, K] x) => (y) { y = Softmax <axis = 1> (x) }", "the sizes behind the axis are not known"),
    (10, "(double[2] x) => (y) { y = Clip <min = 0.0> (x) }", "the limit was that of single precision"),
    (9, "(float q) => (y) { x = other.Op (q) y = Softmax (x) }", "not even the rank is known"),
    (9, "(float q) => (y) { x = other.Op (q) y = Clip <min = 0.0> (x) }", "the type of the limit is not known"),
    (6, "(float[2, 3] x, float[2] z) => (y) { y = Add <axis = 0, broadcast = 1> (x, z) }", "aligned at the axis"),
    (6, "(float[2, 3, 4] x, float[3] s) => (y) { y = PRelu (x, s) }", "a slope per channel"),
    (9, "(float[1, 1, 4, 4] x, float[4] s) => (y) { y = Upsample (x, s) }", "the scales are not known"),
    (10, "(float[1, 1, 4, 4] x) => (y) <float[4] s = {1, 1, 2, 2}> { y = Resize (x, s) }", "rounds differently"),
    (10, "(float[1,1,4] x) => (y) { y = LpPool <ceil_mode = 1, kernel_shape = [2], strides = [2], pads = [0, 1]> (x) }",
         "windows that begin in the padding"),
    (9, "(int64[2] i, int64 d, float[2] v) => (y) { y = OneHot (i, d, v) }", "negative indices were off"),
    (10, "(float[1, 1, 4, 4] x, float[1, 1, 3, 3] w) => (y) { y = ConvTranspose <auto_pad = \"SAME_UPPER\"> (x, w) }",
         "the odd element of the padding"),
    (20, "(int32[2] x) => (y) { y = ReduceLogSum (x) }", "no integers any more"),
    (1, "(float[1, 1, 2, 2] x) => (y) { y = Upsample <height_scale = 2.0, width_scale = 2.0> (x) }", "other names"),
]  # fmt: skip


@pytest.mark.parametrize(("opset", "text", "why"), KEPT, ids=[why for _, _, why in KEPT])
def test_kept(opset: int, text: str, why: str) -> None:
    proto = model(text, opset)
    loaded = onnx_io.load_model(proto)
    *_, node = (node for _, node in loaded.graph.nodes())
    schema = onnx.defs.get_schema(node.op, opset)
    if why == "no integers any more" and is_older("onnx", "1.23"):
        pytest.skip("onnx before 1.23 has no version without integers")
    assert node.version == schema.since_version != schemas.newest_version(node.op), why
    assert onnx_io.to_proto(loaded) == proto


@pytest.mark.parametrize(
    ("opset", "text"),
    [
        (6, f"{X} {{ y = Dropout <ratio = 0.5> (x) }}"),
        (9, f"{X} <float[3] s = {{1, 1, 1}}> {{ y, m, v, a, b = BatchNormalization (x, s, s, s, s) }}"),
        (6, f"{X} <float[3] s = {{1, 1, 1}}> {{ y = BatchNormalization (x, s, s, s, s) }}"),
    ],
)
def test_old_training_has_no_meaning(opset: int, text: str) -> None:
    proto = model(text, opset)
    loaded = onnx_io.load_model(proto)
    assert only_node(loaded.graph).version == 0
    assert not schemas.is_deterministic(only_node(loaded.graph))
    assert onnx_io.to_proto(loaded) == proto


def test_a_node_is_raised_once_its_types_are_known() -> None:
    loaded = onnx_io.load_model(model("(float[2, 3] x) => (y) { a = other.Op (x)  y = Softmax <axis = 1> (a) }", 9))
    graph = loaded.graph
    (vertex,) = graph.vertices_with_op("Softmax")
    assert graph[vertex].version == 1
    (source,) = graph.vertices_with_op("Op")
    typed = replace(graph[source], types=graph[graph.inputs[0]].types)
    graph.apply(Patch({source: graph[source]}, {source: typed}))
    opset_conversion.upgrade_nodes(graph)
    assert graph[vertex].version == 13


def test_bodies_are_raised_too() -> None:
    text = """(bool c, float[1, 3] x) => (float[3] y) {
        y = If (c) <
            then_branch = t () => (float[3] p) { p = Squeeze <axes = [0]> (x) },
            else_branch = e () => (float[3] q) { q = Squeeze (x) }
        >
    }"""
    proto = model(text, 11)
    loaded = onnx_io.load_model(proto)
    bodies = [body for _, node in loaded.graph.nodes() for body in node.bodies]
    assert [only_node(body).version for body in bodies] == [schemas.newest_version("Squeeze")] * 2
    assert [len(only_node(body).inputs) for body in bodies] == [2, 1]
    assert onnx_io.to_proto(loaded) == proto
    raised = onnx_io.to_proto(onnx_io.convert_opset(loaded, 13))
    onnx.checker.check_model(raised, full_check=True)


# -- what is written ---------------------------------------------------------------------------------------------------


def test_a_node_is_written_as_it_was_loaded() -> None:
    """In the order of its attributes, with those that say nothing, and without their doc strings lost."""
    proto = model(f"{X} {{ y = Clip <max = 6.0, consumed_inputs = [0], min = 0.0> (x) }}", 1)
    proto = model(f"{X} {{ y = Dropout <ratio = 0.5, is_test = 1, consumed_inputs = [0]> (x) }}", 1)
    proto.graph.node[0].attribute[0].doc_string = "half"
    assert onnx_io.to_proto(onnx_io.load_model(proto)) == proto


def test_a_node_that_was_changed_is_written_anew() -> None:
    proto = model(f"{X} {{ y = Squeeze <axes = [0]> (x) }}", 11)
    loaded = onnx_io.load_model(proto)
    graph = loaded.graph
    (vertex,) = graph.vertices_with_op("Squeeze")
    axes = graph.add(constant([1], "axes"))
    node = graph[vertex]
    graph.apply(replace_node(graph, vertex, replace(node, inputs=(node.inputs[0], Value(axes)))))
    after = onnx_io.to_proto(loaded)
    assert to_text(after.graph) == to_text(model(f"{X} {{ y = Squeeze <axes = [1]> (x) }}", 11).graph)


def constant(values: list[int], name: str) -> Node:
    return constant_node(Tensor.from_array(np.array(values, np.int64)), name)


def test_axes_that_are_used_elsewhere_stay() -> None:
    text = f"{X} <int64[1] k = {{0}}> {{ a = Unsqueeze (x, k)  y = Squeeze (a, k)  z = Identity (k) }}"
    old = (
        f"{X} <int64[1] k = {{0}}> {{ a = Unsqueeze <axes = [0]> (x)  y = Squeeze <axes = [0]> (a)  z = Identity (k) }}"
    )
    assert in_opset(text, 13, 11) == to_text(model(old, 11).graph)


REFUSED = [
    (20, f"{X} {{ y = Gelu (x) }}", 19, "Gelu 'y' cannot be written in opset 19: Gelu exists from opset 20 on"),
    (13, "(float[2] x, int64[1] k) => (y) { y = Squeeze (x, k) }", 12, "`axes` is not constant"),
    (13, "(float[2] x, float k) => (y) { y = Clip (x, k) }", 10, "`min` is not constant"),
    (
        13,
        "(float16[2] x) => (y) <float16 k = {0}> { y = Clip (x, k) }",
        10,
        "in opset 12 an absent limit became the largest",
    ),
    (13, f"{X} {{ y = Softmax <axis = 1> (x) }}", 12, "in opset 13 it came to run along `axis` alone"),
    (18, f"{X} {{ y = ReduceMax <noop_with_empty_axes = 1> (x) }}", 17, "`noop_with_empty_axes` is new in opset 18"),
    (13, "(bfloat16[2] x) => (y) { y = Relu (x) }", 12, "opset 6 has no Relu of tensor(bfloat16)"),
    (13, "(float[2, 3] x, float[3] z) => (y) { y = Max (x, z) }", 7, "in opset 8 operands of different shapes came to"),
    (
        18,
        "(float[5] x) => (y, z) { y, z = Split <num_outputs = 2> (x) }",
        13,
        "in opset 18 the last part may be smaller",
    ),
    (
        18,
        "(float[N] x) => (y, z) { y, z = Split <num_outputs = 2> (x) }",
        13,
        "in opset 18 the last part may be smaller",
    ),
    (13, "(float[2, 3] x, float[3, 2] w) => (y) { y = Gemm (x, w) }", 10, "opset 9 needs input 2"),
    (15, "(float[2, 3] x) => (y) { y = Shape <start = 1> (x) }", 13, "`start` is new in opset 15"),
    (16, "(seq(float[2]) x) => (y) { y = Identity (x) }", 13, "opset 13 has no Identity of seq(tensor(float))"),
    (9, f"{X} {{ y = Softmax <axis = 3> (x) }}", 13, "its axis 3 is none of 3; convert it to opset 12, or keep"),
    (9, "(float[1, 1, 4, 4] x, float[4] s) => (y) { y = Upsample (x, s) }", 13, "its scales are not known"),
    (10, "(float[1, 1, 4, 4] x, float[4] s) => (y) { y = Resize (x, s) }", 11, "in opset 11 coordinates are rounded"),
    (
        19,
        "(float[1,1,4] x) => (y) { y = LpPool <kernel_shape = [2], strides = [2], pads = [0, 1], ceil_mode = 1> (x) }",
        26,
        "in opset 22 windows that `ceil_mode` begins in the padding behind the data went away; convert it to opset 21",
    ),
    (
        20,
        f"{X} {{ z = Gelu (x)  y = Cast <to = 1> (z) }}",
        12,
        "Gelu exists from opset 20 on; keep the model's own opset, 20",
    ),
    (
        15,
        "(float[0, 2] x) => (y) { s = Constant <value_ints = [0, 2]> ()  y = Reshape <allowzero = 1> (x, s) }",
        11,
        "`allowzero` is new in opset 14; convert it to opset 14, or keep the model's own opset, 15",
    ),
    (
        14,
        "(float[0, 2] x) => (y) { s = Constant <value_ints = [0, 2]> ()  y = Reshape <allowzero = 1> (x, s) }",
        11,
        "`allowzero` is new in opset 14; keep the model's own opset, 14",
    ),
    (
        9,
        f"{X} {{ z = Softmax <axis = 3> (x)  y = Relu (z) }}",
        20,
        "its axis 3 is none of 3; convert it to opset 12, or keep the model's own opset, 9",
    ),
    (6, f"{X} {{ y = Dropout <ratio = 0.5> (x) }}", 13, "whose meaning is not known: it may be in training mode; keep"),
    (9, f"{X} {{ y = Relu (x) }}", 99, "opset 99 is not known here: the newest is"),
    (9, f"{X} {{ y = Relu (x) }}", 0, "opset 0 is not known here: the newest is"),
]


@pytest.mark.parametrize(("opset", "text", "target", "message"), REFUSED, ids=[case[3] for case in REFUSED])
def test_refused(opset: int, text: str, target: int, message: str) -> None:
    loaded = onnx_io.load_model(model(text, opset))
    before = onnx_io.to_proto(loaded)
    with pytest.raises(ModelError) as caught:
        onnx_io.convert_opset(loaded, target)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert onnx_io.to_proto(loaded) == before


@pytest.mark.parametrize(("opset", "target"), [(11, 20), (13, 11), (9, 13)])
def test_over_the_last_axis_softmax_means_the_same_at_any_rank(opset: int, target: int) -> None:
    proto = model("(float[] x) => (y) { y = Softmax <axis = -1> (x) }", opset)
    assert onnx_io.to_proto(onnx_io.convert_opset(onnx_io.load_model(proto), target)).graph == proto.graph


def test_softmax_counts_from_the_front_before_opset_11() -> None:
    with pytest.raises(ModelError, match="in opset 11 negative axes came"):
        onnx_io.convert_opset(onnx_io.load_model(model("(float[] x) => (y) { y = Softmax (x) }", 13)), 9)


def test_an_operator_of_no_known_meaning_stays_as_it_is() -> None:
    proto = parse_model(f'<ir_version: 10, opset_import: ["": 13, "other": 1]> g {X} {{ y = other.Op <k = 1> (x) }}')
    after = onnx_io.to_proto(onnx_io.convert_opset(onnx_io.load_model(proto), 20))
    assert after.graph == proto.graph


def test_an_old_ir_version_grows_with_the_opset() -> None:
    proto = parse_model('<ir_version: 3, opset_import: ["": 7]> g (float[2] x, float[2] w) => (y) { y = Add (x, w) }')
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "w"))
    after = onnx_io.to_proto(onnx_io.convert_opset(onnx_io.load_model(proto), 13))
    assert after.ir_version == 7
    assert [info.name for info in after.graph.input] == ["x"]
    onnx.shape_inference.infer_shapes(after, check_type=True, strict_mode=True)


@pytest.mark.parametrize(
    ("op", "opset", "expected"),
    [
        ("Gelu", 19, False),
        ("Gelu", 20, True),
        ("Clip", 6, True),
        ("Clip", 5, False),
        ("LayerNormalization", 16, False),
        ("Conv", 1, True),
        ("Resize", 9, True),  # as an Upsample, if it is one
        ("Resize", 10, False),
        ("Nobody", 20, False),
    ],
)
def test_emittable(op: str, opset: int, expected: bool) -> None:
    assert opset_conversion.is_expressible(op, "", {"": opset}) == expected


def test_why_not() -> None:
    graph = onnx_io.load_model(model("(float[2] x, float k) => (y) { y = Relu (x) }", 10)).graph
    x, k = (Value(vertex) for vertex in graph.inputs)
    low = Value(graph.add(constant_node(Tensor.from_array(np.array(0, np.float32)), "low")))
    clip = Node("Clip", (x, low), ("c",), (None,), version=13)
    assert opset_conversion.unwritable_reason(clip, graph) is None
    assert opset_conversion.downgraded(clip, graph).attrs == {"min": 0.0}
    unknown = opset_conversion.unwritable_reason(Node("Clip", (x, k), ("c",), (None,), version=13), graph)
    assert unknown == "Clip 'c' cannot be written in opset 10: `min` is not constant"


# -- the tables --------------------------------------------------------------------------------------------------------

OPERATORS = sorted({(schema.name, schema.domain) for schema in onnx.defs.get_all_schemas()})


def test_every_version_that_means_something_else_has_a_reason() -> None:
    """A version that the schemas do not show to mean the same is listed, or it withdraws the operator."""
    for op, domain in OPERATORS:
        for version in version_paths.schema_versions(op, domain)[1:]:
            reason = version_paths.version_difference(op, domain, version)
            assert reason in (None, "it was withdrawn", version_tables.INCOMPATIBLE_VERSIONS.get((op, version))), (
                op,
                version,
                reason,
            )


TABLES = ("MOVED_ATTRIBUTES", "DROPPED_ATTRIBUTES", "CHANGED_DEFAULTS", "INCOMPATIBLE_VERSIONS", "UPGRADE_CONDITIONS")


@needs("onnx", "1.23", "it lacks the newest versions")
@pytest.mark.parametrize("table", [*TABLES, "DOWNGRADE_CONDITIONS", "CHANGES"])
def test_the_tables_name_versions_that_exist(table: str) -> None:
    for op, version in getattr(version_tables, table):
        assert version in version_paths.schema_versions(op, "ai.onnx.ml" if op == "LabelEncoder" else ""), (op, version)


def test_the_tables_name_attributes_that_exist() -> None:
    for (op, version), moves in version_tables.MOVED_ATTRIBUTES.items():
        old, new = schemas.schema(op, "", version - 1), schemas.schema(op, "", version)
        assert old is not None
        assert new is not None
        for moved in moves:
            assert moved.attribute in old.attributes
            assert moved.attribute not in new.attributes
            assert moved.place < len(new.inputs)
    for (op, version), names in [*version_tables.DROPPED_ATTRIBUTES.items(), *version_tables.CHANGED_DEFAULTS.items()]:
        old = schemas.schema(op, "", version - 1)
        assert old is not None
        assert names.keys() <= old.attributes.keys() or (op, version) in version_tables.CHANGED_DEFAULTS


# -- against ONNX Runtime ----------------------------------------------------------------------------------------------

SAMPLES = 3
"""Models per operator, of those that the onnx package has."""
OLDEST = 7
"""ONNX Runtime knows no older opsets."""


def samples() -> list[conformance.Case]:
    """A few models of one node for each operator."""
    by_op: dict[str, list[conformance.Case]] = {}
    for case in conformance.cases():
        if len(case.model.graph.node) == 1 and case.model.graph.node[0].domain == "":
            by_op.setdefault(case.model.graph.node[0].op_type, []).append(case)
    return [case for cases in by_op.values() for case in cases[:: max(1, len(cases) // SAMPLES)]]


@pytest.mark.slow
def test_onnxruntime_finds_the_same_meaning_in_every_opset(record_property: Callable[[str, object], None]) -> None:
    """Down to each opset in which the operator has another version, and up again: the same results.

    Up to 1e-6, for ORT computes AveragePool by another kernel from opset 19 on; a model that ORT cannot run in one of
    the opsets says nothing.
    """
    compared = 0
    for case in samples():
        (own,) = (entry.version for entry in case.model.opset_import if entry.domain == "")
        versions = version_paths.schema_versions(case.model.graph.node[0].op_type)
        for opset in sorted({v for version in versions for v in (version - 1, version) if OLDEST <= v < own}):
            for target in (opset, own):
                compared += agrees(case, opset, target)
    record_property("compared", compared)
    assert compared > 1000


def agrees(case: conformance.Case, opset: int, target: int) -> bool:
    """Whether there was something to compare; asserts that it agrees."""
    try:
        changed = onnx_io.to_proto(onnx_io.convert_opset(onnx_io.load_model(case.model), opset))
        changed = onnx_io.to_proto(onnx_io.convert_opset(onnx_io.load_model(changed), target))
    except ModelError:
        return False
    for inputs, _ in case.data:
        before, after = conformance.run(case.model, inputs), conformance.run(changed, inputs)
        if isinstance(before, str) or isinstance(after, str):
            return False
        assert conformance.agree(after, before, 1e-6, 1e-6), (case.name, opset, target)
    return True


def test_a_shape_that_is_declared_and_not_inferred_is_not_relied_on_to_raise_a_node() -> None:
    """Inference does not believe it either, so that it was gone when the node was to be written."""
    text = """(float[4, 3] x, int64 n, bool go) => (float[4, 3] y) {
        y = Loop (n, go, x) <
            body = b (int64 i, bool c, float[4, 3] s) => (bool c, float[4, 3] t) { t = Softmax <axis = 1> (s) }
        > }"""
    proto = model(text, 11)
    result = graphopt.optimize(proto, cost="none", check=False)
    assert result.model.opset_import[0].version == 11
    assert [node.op_type for node in result.model.graph.node] == ["Loop"]


NEWEST = schemas.newest_version("Attention")


@pytest.mark.parametrize(
    ("attributes", "mask", "version"),
    [
        ("", "", NEWEST),
        ("scale = 0.5", ", m", NEWEST),
        ("is_causal = 1", "", NEWEST),
        ("softcap = 2.0", "", NEWEST),
        ("is_causal = 1, softcap = 2.0", ", m", NEWEST),
        ("", ", s", 23),
        ("is_causal = 1", ", s", 23),
    ],
)
def test_attention_means_the_same_where_it_is_plain(attributes: str, mask: str, version: int) -> None:
    inputs = "float[1,1,2,4] q, float[1,1,3,4] k, float[2,3] m, float[2,2] s"
    body = f"y = Attention {f'<{attributes}>' * bool(attributes)} (q, k, k{mask})"
    graph = onnx_io.load_model(model(f"({inputs}) => (float[1,1,2,4] y) {{ {body} }}", 23)).graph
    inference.infer_graph(graph)
    opset_conversion.upgrade_nodes(graph)
    assert only_node(graph).version == version
