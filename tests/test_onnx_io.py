"""Models come back as they were, whatever they hold; what cannot be a model is refused in one line."""

from pathlib import Path

import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.parser import parse_model
from onnx.printer import to_text

from graphopt.base.dtype import DType
from graphopt.base.errors import ModelError
from graphopt.expr.dims import SymbolicDim
from graphopt.io import onnx_io
from graphopt.ir.edit import replace_values
from graphopt.ir.graph import CAPTURE, CONSTANT, INPUT, Graph, Value
from graphopt.ir.types import OpaqueType, TensorType

HEAD = '<ir_version: 10, opset_import: ["": 21, "other": 3]>'


def model(text: str, head: str = HEAD) -> ModelProto:
    return parse_model(f"{head}\n{text}")


def there_and_back(proto: ModelProto) -> ModelProto:
    loaded = onnx_io.load_model(proto)
    loaded.graph.check_invariants()
    return onnx_io.to_proto(loaded)


def vertex(graph: Graph, name: str) -> int:
    """The vertex that defines a value."""
    return next(v for v, node in graph.vertices_and_nodes() if name in node.names)


# -- models that come back equal, message for message ------------------------------------------------------------------

CARRIED = {
    "an unknown operator of the default domain": """
        g (float[N] x) => (float[N] y) { y = Frobnicate <depth = 3, mode = "fast"> (x) }""",
    "another domain, with every kind of attribute": """
        g (float[N] x) => (float[N] y) {
            y = other.Op <i = 1, f = 0.1, s = "text", is = [1, 2], fs = [1.5], ss = ["a", "b"], t = float[2] {1, 2}> (x)
        }""",
    "empty lists, whose kind matters": """
        g (float[N] x) => (float[N] y) { y = other.Op <is: ints = [], fs: floats = []> (x) }""",
    "optional inputs and outputs": """
        g (float[N] x, float[1] top) => (float[N] y, float[N] z) {
            y = Clip (x, , top)
            z, , c = other.Op (x, , )
        }""",
    "nodes of one name, and of none": """
        g (float[N] x) => (float[N] y) {
            [same] a = Relu (x)
            [same] b = Abs (a)
            y = Neg (b)
        }""",
    "initializers, also unused ones and inputs that can be overridden": """
        g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}, float[2] c = {3, 4}, int64 unused = {7}> {
            a = Add (x, w)
            y = Mul (a, c)
        }""",
    "an output that is an input, and one that is an initializer": """
        g (float[2] x) => (float[2] x, float[2] c, float[2] y) <float[2] c = {3, 4}> { y = Relu (x) }""",
    "a value that is an output twice": """
        g (float[2] x) => (float[2] y, float[2] y) { y = Relu (x) }""",
    "types of inner values": """
        g (float[N, 2] x) => (float[N, M] y) <float[N, 2] a> {
            a = Relu (x)
            y = other.Op (a)
        }""",
    "outputs of no type, sizes of no name": """
        g (float[?, 2] x) => (y, float[] z) {
            y = Relu (x)
            z = ReduceSum <keepdims = 0> (x)
        }""",
    "sequences, optionals, maps and sparse tensors": """
        g (seq(float[N]) s, optional(float[2]) o, map(int64, float) m, sparse_tensor(float[3]) p) => (seq(float[N]) t) {
            t = Identity (s)
        }""",
    "If, with values of the enclosing graph": """
        g (bool c, float[N] x) => (float[N] y) <float[1] w = {2}> {
            d = Abs (x)
            y = If (c) <
                then_branch = yes () => (float[N] a) { a = Mul (d, w) },
                else_branch = no () => (float[N] b) { t = Neg (d)  b = Add (t, x) }
            >
        }""",
    "Loop, whose body reads the enclosing graph": """
        g (int64 n, bool c, float[2] x, float[2] k) => (float[2] y) {
            y = Loop (n, c, x) <
                body = step (int64 i, bool go, float[2] s) => (bool more, float[2] t) <float[2] one = {1, 1}> {
                    more = Identity (go)
                    u = Add (s, k)
                    t = Add (u, one)
                }
            >
        }""",
    "bodies in bodies, with values from all levels": """
        g (bool c, bool d, float[N] x) => (float[N] y) {
            a = Abs (x)
            y = If (c) <
                then_branch = outer () => (float[N] t) {
                    b = Neg (a)
                    t = If (d) <
                        then_branch = inner1 () => (float[N] p) { p = Add (a, b) },
                        else_branch = inner2 () => (float[N] q) { q = Sub (x, b) }
                    >
                },
                else_branch = other () => (float[N] u) { u = Identity (x) }
            >
        }""",
    "two bodies that use the same inner names": """
        g (bool c, float[N] x) => (float[N] y) {
            y = If (c) <
                then_branch = yes () => (float[N] r) { t = Abs (x)  r = Neg (t) },
                else_branch = no () => (float[N] r) { t = Neg (x)  r = Abs (t) }
            >
        }""",
    "an operator of another domain that has a body": """
        g (float[N] x) => (float[N] y) {
            y = other.Apply (x) <body = f (float[N] p) => (float[N] q) { q = Add (p, x) }, times = 2>
        }""",
}


@pytest.mark.parametrize("text", CARRIED.values(), ids=CARRIED.keys())
def test_a_model_comes_back_equal(text: str) -> None:
    proto = model(text)
    before = proto.SerializeToString()
    assert to_text(there_and_back(proto)) == to_text(proto)
    assert there_and_back(proto) == proto
    assert proto.SerializeToString() == before


def decorated() -> ModelProto:
    """A model with something in every corner of the format that the text form cannot write."""
    proto = model("g (float[N, 3] x) => (float[N, 3] y) <float[3] w = {1, 2, 3}> { a = Add (x, w)  y = Relu (a) }")
    proto.producer_name, proto.producer_version, proto.domain = "exporter", "1.2", "org.example"
    proto.model_version, proto.doc_string = 7, "what it does"
    proto.metadata_props.add(key="author", value="somebody")
    proto.graph.doc_string = "the graph"
    proto.graph.metadata_props.add(key="scope", value="main")
    add = proto.graph.node[0]
    add.name, add.doc_string = "layer/add", "adds"
    add.metadata_props.add(key="source", value="line 3")
    add.device_configurations.add(configuration_id="pair")
    proto.configuration.add(name="pair", num_devices=2)
    proto.training_info.add().algorithm.name = "sgd"
    proto.graph.input[0].doc_string = "the data"
    proto.graph.input[0].metadata_props.add(key="unit", value="mm")
    proto.graph.input[0].type.denotation = "IMAGE"
    proto.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    proto.graph.output[0].doc_string = "the result"
    proto.graph.initializer[0].doc_string = "weights"
    proto.graph.value_info.add(name="a", doc_string="the sum").type.CopyFrom(proto.graph.input[0].type)
    note = proto.graph.quantization_annotation.add(tensor_name="a")
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="w")
    return proto


def test_everything_around_the_nodes_comes_back() -> None:
    proto = decorated()
    assert there_and_back(proto) == proto


def test_fields_of_a_later_onnx_come_back() -> None:
    later = bytes([0xF2, 0x3F, 0x05]) + b"later"  # field 1022, five bytes
    proto = decorated()
    for message in (proto, proto.graph, proto.graph.node[0]):
        message.MergeFromString(later)
    assert there_and_back(proto).SerializeToString() == proto.SerializeToString()


def test_types_of_values_that_are_not_there_are_dropped() -> None:
    proto = model("g (float[N] x) => (float[M] y) <float[N] a, float[P] gone> { a = Relu (x)  y = other.Op (a) }")
    assert [info.name for info in there_and_back(proto).graph.value_info] == ["a"]


def test_a_sparse_initializer_comes_back() -> None:
    proto = model("g (float[3] x) => (float[3] y) { y = Add (x, w) }")
    values = helper.make_tensor("w", TensorProto.FLOAT, [1], [5.0])
    places = helper.make_tensor("places", TensorProto.INT64, [1], [2])
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [3]))
    assert there_and_back(proto) == proto


def test_the_default_domain_may_be_written_out() -> None:
    proto = model("g (float[N] x) => (float[N] y) { y = Relu (x) }", '<ir_version: 10, opset_import: ["ai.onnx": 21]>')
    proto.graph.node[0].domain = "ai.onnx"
    loaded = onnx_io.load_model(proto)
    assert loaded.graph.operator_counts() == {"Relu": 1}
    assert onnx_io.to_proto(loaded) == proto


def test_constant_nodes_become_initializers() -> None:
    proto = model("""
        g (float[2] x) => (float[2] y, float f, int64[2] i, string s) {
            c = Constant <value = float[2] {1, 2}> ()
            f = Constant <value_float = 0.5> ()
            i = Constant <value_ints = [3, 4]> ()
            s = Constant <value_string = "text"> ()
            y = Add (x, c)
        }""")
    graph = onnx_io.load_model(proto).graph
    assert graph.operator_counts() == {"Add": 1}
    values = {name: graph[vertex(graph, name)].data for name in "cfis"}
    assert {name: tensor.numpy().tolist() for name, tensor in values.items() if tensor} == {
        "c": [1.0, 2.0],
        "f": 0.5,
        "i": [3, 4],
        "s": "text",
    }
    again = there_and_back(proto)
    assert [tensor.name for tensor in again.graph.initializer] == ["c", "f", "i", "s"]
    assert there_and_back(again) == again


def test_unsorted_nodes_are_sorted() -> None:
    proto = model("g (float[N] x) => (float[N] y) { y = Relu (b)  b = Abs (a)  a = Neg (x)  c = Abs (a) }")
    assert [node.op_type for node in there_and_back(proto).graph.node] == ["Neg", "Abs", "Relu", "Abs"]


def test_the_last_of_two_initializers_of_one_name_counts_as_in_onnxruntime() -> None:
    proto = model("g (float[1] x) => (float[1] y) <float[1] w = {1}> { y = Add (x, w) }")
    proto.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [1], [2.0]))
    assert numpy_helper.to_array(there_and_back(proto).graph.initializer[0]) == [2.0]


# -- IR version 3: every initializer is an input -----------------------------------------------------------------------

OLD = '<ir_version: 3, opset_import: ["": 9]>'
OLD_TEXT = """g (float[2] w, float[2] x, float[2] v) => (float[2] y) <float[2] v = {3, 4}, float[2] w = {1, 2}> {
    c = Constant <value = float[2] {5, 6}> ()
    a = Add (x, w)
    b = Add (a, c)
    y = Mul (b, v)
}"""


def test_before_ir_version_4_initializers_are_constants_and_inputs() -> None:
    loaded = onnx_io.load_model(model(OLD_TEXT, OLD))
    assert [loaded.graph[v].names[0] for v in loaded.graph.inputs] == ["x"]
    proto = onnx_io.to_proto(loaded)
    assert [info.name for info in proto.graph.input] == ["w", "x", "v", "c"]
    assert sorted(tensor.name for tensor in proto.graph.initializer) == ["c", "v", "w"]
    onnx.checker.check_model(proto)


def test_before_ir_version_4_a_body_keeps_its_constants_as_nodes() -> None:
    text = """g (bool c, float[2] x) => (float[2] y) {
        y = If (c) <
            then_branch = yes () => (float[2] a) { k = Constant <value = float[2] {1, 2}> ()  a = Add (x, k) },
            else_branch = no () => (float[2] b) { b = Identity (x) }
        >
    }"""
    proto = there_and_back(model(text, OLD))
    body = next(a.g for a in proto.graph.node[0].attribute if a.name == "then_branch")
    assert [node.op_type for node in body.node] == ["Constant", "Add"]
    assert not body.initializer
    onnx.checker.check_model(proto)


def test_overridable_initializers_are_inputs_with_a_default() -> None:
    graph = onnx_io.load_model(model(CARRIED["initializers, also unused ones and inputs that can be overridden"])).graph
    default, constant = graph[vertex(graph, "w")], graph[vertex(graph, "c")]
    assert default.op == INPUT
    assert default.data is not None
    assert graph.constant(Value(vertex(graph, "w"))) is None
    assert constant.op == CONSTANT


# -- what the graph says -----------------------------------------------------------------------------------------------


def test_types() -> None:
    graph = onnx_io.load_model(
        model("g (float[batch, 3] x, double[batch, ?] y, seq(float) s) => (z) { z = other.Op (x) }")
    ).graph
    x, y, s = (graph[v].types[0] for v in graph.inputs)
    assert x == TensorType(DType.FLOAT, (SymbolicDim.named("batch"), 3))
    assert isinstance(y, TensorType)
    assert y.shape is not None
    assert y.shape[0] == SymbolicDim.named("batch")
    assert isinstance(y.shape[1], SymbolicDim)
    assert y.shape[1].is_anonymous
    assert isinstance(s, OpaqueType)
    assert graph.output_types == (None,)


def test_captures_go_through_every_level() -> None:
    graph = onnx_io.load_model(model(CARRIED["bodies in bodies, with values from all levels"])).graph
    outer = graph[vertex(graph, "y")]
    assert {graph.value_name(value) for value in outer.captures} == {"a", "d", "x"}
    then = next(body for body in outer.bodies if body.name == "outer")
    inner = then[vertex(then, "t")]
    assert {then.value_name(value) for value in inner.captures} == {"a", "b", "x"}
    assert {node.names[0] for _, node in then.vertices_and_nodes() if node.op == CAPTURE} == {"a", "d", "x"}
    assert graph.names is then.names


def test_meanings() -> None:
    text = """g (float[N, 4] x) => (float[N, 4] y) {
        a = Relu (x)
        b = other.Relu (a)
        c = Frobnicate (b)
        y = ReduceSum <keepdims = 1> (c)
    }"""
    graph = onnx_io.load_model(model(text)).graph
    assert {node.names[0]: node.version for _, node in graph.nodes()} == {"a": 14, "b": 0, "c": 0, "y": 13}


def test_no_meaning_in_an_opset_that_nobody_knows_yet() -> None:
    proto = model("g (float[N] x) => (float[N] y) { y = Relu (x) }", '<ir_version: 10, opset_import: ["": 999]>')
    assert [node.version for _, node in onnx_io.load_model(proto).graph.nodes()] == [0]
    assert there_and_back(proto) == proto


# -- names, when the graph has changed ---------------------------------------------------------------------------------


def without(proto: ModelProto, op: str) -> str:
    """The model after every node of one input and one output of an operator has been taken out."""
    loaded = onnx_io.load_model(proto)
    for graph in loaded.graph.graphs():
        for v in sorted(graph.vertices_with_op(op)):
            source = graph[v].inputs[0]
            assert source is not None
            graph.apply(replace_values(graph, {Value(v): source}))
            graph.check_invariants()
    after = onnx_io.to_proto(loaded)
    onnx.checker.check_model(after, full_check=True)
    return to_text(after.graph)


RENAMED = {
    "the producer takes the name of the output": (
        "g (float[N] x) => (float[N] y) { a = Relu (x)  y = Drop (a) }",
        "g (float[N] x) => (float[N] y) { y = Relu (x) }",
    ),
    "two outputs that are one value: an Identity": (
        "g (float[N] x) => (float[N] y, float[N] z) { y = Relu (x)  z = Drop (y) }",
        "g (float[N] x) => (float[N] y, float[N] z) { y = Relu (x)  z = Identity (y) }",
    ),
    "an output that is an input: an Identity": (
        "g (float[N] x) => (float[N] y) { y = Drop (x) }",
        "g (float[N] x) => (float[N] y) { y = Identity (x) }",
    ),
    "an output that is a constant: the constant takes the name": (
        "g (float[1] x) => (float[1] y) <float[1] c = {3}> { y = Drop (c) }",
        "g (float[1] x) => (float[1] y) <float[1] y = {3}> { }",
    ),
    "in a body too": (
        """g (bool c, float[N] x) => (float[N] y) {
            a = Drop (x)
            y = If (c) <
                then_branch = yes () => (float[N] p) { p = Drop (a) },
                else_branch = no () => (float[N] q) { q = Neg (a) }
            >
        }""",
        """g (bool c, float[N] x) => (float[N] y) {
            y = If (c) <
                then_branch = yes () => (float[N] p) { p = Identity (x) },
                else_branch = no () => (float[N] q) { q = Neg (x) }
            >
        }""",
    ),
    "an inner name gives way to that of a value it would hide": (
        """g (bool c, float[N] x) => (float[N] y) {
            a = Abs (x)
            b = Drop (a)
            y = If (c) <
                then_branch = yes () => (float[N] p) { a = Relu (x)  p = Add (a, b) },
                else_branch = no () => (float[N] q) { q = Neg (b) }
            >
        }""",
        """g (bool c, float[N] x) => (float[N] y) {
            a = Abs (x)
            y = If (c) <
                then_branch = yes () => (float[N] p) { a_1 = Relu (x)  p = Add (a_1, a) },
                else_branch = no () => (float[N] q) { q = Neg (a) }
            >
        }""",
    ),
}


@pytest.mark.parametrize(("before", "after"), RENAMED.values(), ids=RENAMED.keys())
def test_outputs_keep_their_names(before: str, after: str) -> None:
    assert without(model(before), "Drop") == to_text(model(after).graph)


def test_an_inner_name_gives_way_to_the_name_of_an_output() -> None:
    """`y` now names what `a` did, so what was called `y` and is still read needs another name."""
    loaded = onnx_io.load_model(model("g (float[N] x) => (float[N] y) { a = Abs (x)  y = Neg (a)  b = Relu (y) }"))
    graph = loaded.graph
    graph.outputs = (Value(vertex(graph, "a")),)
    graph.names.add("b")
    assert to_text(onnx_io.to_proto(loaded).graph) == to_text(
        model("g (float[N] x) => (float[N] y) { y = Abs (x)  y_1 = Neg (y)  b = Relu (y_1) }").graph
    )


@pytest.mark.parametrize("name", ["gemm_input_shape", "gemm_output_shape_token_9", "squeeze_axes"])
def test_inner_names_that_onnx_runtime_makes_again_are_given_up(name: str) -> None:
    back = there_and_back(
        model(f"""
        g (bool c, float[2] x) => (float[2] z) <float[2] {name} = {{1, 2}}> {{
            z = If (c) <
                then_branch = yes () => (float[2] y) {{ y = Add (x, {name}) }},
                else_branch = no () => (float[2] n) {{ n = Neg (x) }}
            >
        }}""")
    )
    (initializer,) = back.graph.initializer
    branch = next(attribute.g for attribute in back.graph.node[0].attribute if attribute.name == "then_branch")
    assert initializer.name == f"{name}_1"
    assert list(branch.node[0].input) == ["x", f"{name}_1"]
    assert there_and_back(back) == back


def test_names_of_inputs_and_outputs_are_not_given_up() -> None:
    text = "g (float[2] squeeze_axes) => (float[2] gemm_input_shape) { gemm_input_shape = Relu (squeeze_axes) }"
    assert there_and_back(model(text)) == model(text)


# -- what is refused ---------------------------------------------------------------------------------------------------

WRONG = {
    "g (float[N] x) => (float[N] y) { [n] y = Relu (z) }": "node Relu 'n' reads 'z', which nothing defines",
    "g (float[N] x) => (float[N] y) { z = Relu (x) }": "the output 'y' is defined by no node of the graph 'g'",
    "g (float[N] x) => (float[N] y) { y = Relu (x)  [m] y = Abs (x) }": "node Abs 'm' defines 'y' a second time",
    "g (float[N] x) => (float[N] y) { x = Relu (x)  y = Relu (x) }": "node Relu 'x' defines 'x' a second time",
    "g (float[N] x, float[N] x) => (float[N] y) { y = Relu (x) }": "input 'x' defines 'x' a second time",
    "g (float[N] x) => (float[N] y) { [p] a = Add (x, b)  [q] b = Relu (a)  y = Abs (b) }": "has a cycle: Add 'p'",
    "g (bool c) => (float[N] y) { y = If (c) <then_branch = t () => (float[N] a) { a = Relu (z) }"
    ", else_branch = e () => (float[N] b) { b = Relu (z) }> }": "reads 'z'",
}


@pytest.mark.parametrize(("text", "message"), WRONG.items())
def test_a_model_that_contradicts_itself(text: str, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        onnx_io.load_model(model(text))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_model_without_opset() -> None:
    proto = model("g (float[N] x) => (float[N] y) { y = Relu (x) }")
    del proto.opset_import[:]
    with pytest.raises(ModelError, match="states no opset"):
        onnx_io.load_model(proto)


RELU = model("g (float[N] x) => (float[N] y) { y = Relu (x) }").SerializeToString()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"ir_version: 8\ngraph { node { } }\n", "is a text file"),
        (RELU[:-5], "is not an ONNX model, or it is cut short"),
        (RELU[:10], "is not an ONNX model, or it is cut short"),
        (bytes(range(256)), "is not an ONNX model, or it is cut short"),
        (bytes(100), "is not an ONNX model, or it is cut short"),
        (b"\x18\x00\x00\x00ORTM" + bytes(100), "is a model in ONNX Runtime's own format"),
        (None, "does not exist"),
    ],
)
def test_a_file_that_is_no_model(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "model.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        onnx_io.load_model(path)
    assert str(caught.value).startswith(f"{path} {message}")


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is a folder"):
        onnx_io.load_model(tmp_path)


def test_a_file_over_two_gibibytes_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with path.open("wb") as file:
        file.truncate(1 << 31)
    with pytest.raises(ModelError, match="larger than 2 GiB"):
        onnx_io.load_model(path)


def test_something_else_is_no_model() -> None:
    with pytest.raises(ModelError, match="a model is a path"):
        onnx_io.load_model(3)


# -- other kinds of source ---------------------------------------------------------------------------------------------


class Program:
    """Like torch's ONNXProgram: has its model as a message."""

    def __init__(self, proto: ModelProto) -> None:
        self.model_proto = proto


def test_an_exported_program() -> None:
    proto = model("g (float[N] x) => (float[N] y) { y = Relu (x) }")
    assert onnx_io.to_proto(onnx_io.load_model(Program(proto))) == proto


def test_an_onnx_ir_model() -> None:
    onnx_ir = pytest.importorskip("onnx_ir")
    proto = model("g (float[N] x) => (float[N] y) <float[1] w = {2}> { y = Add (x, w) }")
    loaded = onnx_io.load_model(onnx_ir.from_proto(proto))
    assert loaded.graph.operator_counts() == {"Add": 1}
