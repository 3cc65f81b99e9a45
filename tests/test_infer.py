"""Types and known contents: what is told of a value holds for every run of the model."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import graphopt
from graphopt.base.dtype import DType
from graphopt.base.errors import ModelError, UsageError
from graphopt.expr.dims import Dim, SymbolicDim, substitute_names
from graphopt.io import onnx_io
from graphopt.ir.graph import Graph, Value
from graphopt.ir.types import TensorType
from graphopt.operators.fixed_sizes import fix_inputs
from graphopt.operators.inference import build_inference_patch, infer_graph
from tests import zoo
from tests.text import UNDEFINED, Arrays, parse, run


def inferred_graph(model: onnx.ModelProto) -> Graph:
    graph = onnx_io.load_model(model).graph
    infer_graph(graph)
    graph.check_invariants()
    return graph


def values(graph: Graph) -> dict[str, Value]:
    return {name: Value(v, i) for v, node in graph.vertices_and_nodes() for i, name in enumerate(node.names) if name}


def told(graph: Graph, name: str) -> str:
    """What is known of a value: its elements if they are, else its type."""
    value = values(graph)[name]
    contents = graph.known_contents(value)
    return str(graph.value_type(value)) if contents is None else f"({', '.join(map(str, contents))})"


# -- what is told, in the text of a model ------------------------------------------------------------------------------

KERNEL = "w = ConstantOfShape([8,3,3,3]); "
END = 2**63 - 1

SHAPES = [
    ("float[N,3,H,W] x", KERNEL + "y = Conv<pads=[1,1,1,1]>(x,w)", "FLOAT[N,8,H,W]"),
    ("float[N,3,H,W] x", KERNEL + "y = Conv<strides=[2,2], pads=[1,1,1,1]>(x,w)", "FLOAT[N,8,((H+1)//2),((W+1)//2)]"),
    ("float[N,3,H,8] x", KERNEL + 'y = Conv<strides=[2,2], auto_pad="SAME_UPPER">(x,w)', "FLOAT[N,8,((H+1)//2),4]"),
    ("float[N,3,H,W] x", KERNEL + "y = Conv<dilations=[2,3]>(x,w)", "FLOAT[N,8,H-4,W-6]"),
    ("float[N,3,H,W] x", "y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x)", "FLOAT[N,3,(H//2),(W//2)]"),
    ("float[N,3,H,W] x", "y = AveragePool<kernel_shape=[3,3]>(x)", "FLOAT[N,3,H-2,W-2]"),
    ("float[N,3,H,W] x", "z, y = MaxPool<kernel_shape=[3,3]>(x)", "INT64[N,3,H-2,W-2]"),
    (
        "float[N,4,H,W] x",
        "w = ConstantOfShape([4,2,3,3]); y = ConvTranspose<strides=[2,2], pads=[1,1,1,1], output_padding=[1,0]>(x,w)",
        "FLOAT[N,2,2*H,2*W-1]",
    ),
    ("float[N,S] x, float[N,T] z", "y = Concat<axis=-1>(x,z,x)", "FLOAT[N,2*S+T]"),
    ("float[N,S,6] x", "y = Flatten<axis=2>(x)", "FLOAT[N*S,6]"),
    ("float[N,S,6] x", "y = Reshape(x,[0,-1,2,3])", "FLOAT[N,S,2,3]"),
    ("float[N,S,6] x", "y = Reshape(x,[-1,6])", "FLOAT[N*S,6]"),
    ("float[N,S,6] x", "y = Reshape(x,[-1])", "FLOAT[6*N*S]"),
    ("float[N,6] x", "y = Reshape(x,[-1,4])", "FLOAT[(2*N//4)+N,4]"),
    (
        "float[N,S,6] x",
        "s = Shape<start=0, end=2>(x); t = Concat<axis=0>(s,[3,2]); y = Reshape(x,t)",
        "FLOAT[N,S,3,2]",
    ),
    (
        "float[N,S,6] x",
        "s = Shape(x); t = Gather(s,[1,0,2]); p = Transpose<perm=[1,0,2]>(x); y = Reshape(p,t)",
        "FLOAT[S,N,6]",
    ),
    ("float[N,S] x", f"y = Slice(x,[1],[{END}],[1])", "FLOAT[N,-1*(1 min S)+S]"),
    ("float[N,S] x", "y = Slice(x,[0],[-1],[1])", "FLOAT[N,-1*(1 min S)+S]"),
    (
        "float[N,S] x",
        "y = Slice(x,[-3],[100],[1])",
        "FLOAT[N,-1*(((100 min S)+(3 min S)) min S)+(100 min S)+(3 min S)]",
    ),
    ("float[N,S] x", "y = Slice(x,[0],[100],[1])", "FLOAT[N,(100 min S)]"),
    ("float[N,S] x", f"y = Slice(x,[0],[{END}],[1],[2])", "FLOAT[N,((S+1)//2)]"),
    ("float[N,S] x", f"y = Slice(x,[-1],[-{END}],[1],[-1])", "FLOAT[N,S]"),
    (
        "float[N,S] x, float[1,512] p",
        "s = Shape<start=1>(x); q = Slice(p,[0],s,[1]); y = Add(x,q)",
        "FLOAT[N,S]",
    ),
    (
        "float[N,1,S] x, float[T] z",
        "t = Shape(z); n = Shape<start=0, end=1>(x); s = Concat<axis=0>(n,t,[1]); y = Expand(x,s)",
        "FLOAT[N,T,S]",
    ),
    ("float[N,S] x", "y = Tile(x,[2,3])", "FLOAT[2*N,3*S]"),
    ("float[N,6] x", "y, z = Split<axis=1, num_outputs=2>(x)", "FLOAT[N,3]"),
    ("float[N,S] x", "u = Concat<axis=0>(x,x); y, z = Split<axis=0, num_outputs=2>(u)", "FLOAT[N,S]"),
    ("float[N,S] x", "y = Pad(x,[0,1,0,2])", "FLOAT[N,S+3]"),
    ("float[N,S] x", "s = Shape<start=1>(x); q = Squeeze(s); y = Range(0,q,1)", "INT64[S]"),
    ("float[N,S] x", "s = Shape(x); y = ConstantOfShape(s)", "FLOAT[N,S]"),
    ("float[N,S,4] x, float[4,T] z", "y = MatMul(x,z)", "FLOAT[N,S,T]"),
    ("float[N,3,H,W] x", 'y = Resize<mode="nearest">(x,,[1.0,1.0,2.0,0.5])', "FLOAT[N,3,2*H,(W//2)]"),
    (
        "float[N,3,H,W] x",
        's = Shape<start=0, end=2>(x); u = Concat<axis=0>(s,[7,8]); y = Resize<mode="nearest">(x,,,u)',
        "FLOAT[N,3,7,8]",
    ),
    ("float[N,4,H,W] x", "y = DepthToSpace<blocksize=2>(x)", "FLOAT[N,1,2*H,2*W]"),
    ("float[N,1,H,W] x", "y = SpaceToDepth<blocksize=2>(x)", "FLOAT[N,4,(H//2),(W//2)]"),
    ("float[N,S] x", "s = Shape<start=0, end=1>(x); y, i = TopK<axis=0>(x,s)", "FLOAT[N,S]"),
    ("float[N,S] x, float[S] z", "b = Less(x,z); y = Where(b,x,z)", "FLOAT[N,S]"),
    ("float[N,S] x", "y = NonZero(x)", "INT64[2,?]"),
]

CONTENTS = [
    ("s = Shape(x); y = Identity(s)", "(N, S, 6)"),
    ("y = Shape<start=-2>(x)", "(S, 6)"),
    ("y = Size(x)", "(6*N*S)"),
    ("s = Shape(x); y = Gather(s,-1)", "(6)"),
    ("s = Shape(x); y = Slice(s,[-2],[9])", "(S, 6)"),
    ("s = Shape(x); y = Slice(s,[9],[-9],[0],[-1])", "(6, S, N)"),
    ("s = Shape(x); y, z, u = Split(s,[1,1,1])", "(N)"),
    ("s = Shape(x); g = Gather(s,1); y = Unsqueeze(g,[0])", "(S)"),
    ("s = Shape(x); y = Cast<to=6>(s)", "(N, S, 6)"),
    ("s = Shape(x); y = Cast<to=2>(s)", "UINT8[3]"),
    ("s = Shape(x); y = Mul(s,2)", "(2*N, 2*S, 12)"),
    ("s = Shape(x); y = Div(s,4)", "((N//4), (S//4), 1)"),
    ("s = Shape(x); n = Neg(s); y = Div(n,4)", "INT64[3]"),
    ("s = Shape(x); y = Mod(s,4)", "((N%4), (S%4), 2)"),
    ("s = Shape(x); t = Add(s,s); y = Sub(t,s)", "(N, S, 6)"),
    ("s = Shape(x); y = Min(s,4)", "((4 min N), (4 min S), 4)"),
    ("s = Shape(x); y = Max(s,4)", "(-1*(4 min N)+N+4, -1*(4 min S)+S+4, 6)"),
    ("s = Shape(x); y = ReduceProd<keepdims=0>(s)", "(6*N*S)"),
    ("s = Shape(x); y = ReduceSum<keepdims=1>(s)", "(N+S+6)"),
    ("s = Shape(x); y = Equal(s,-1)", "(0, 0, 0)"),
    ("s = Shape(x); y = Equal(s,5)", "BOOL[3]"),
    ("s = Shape(x); y = GreaterOrEqual(s,0)", "(1, 1, 1)"),
    ("s = Shape(x); y = Greater(s,0)", "BOOL[3]"),
    ("s = Shape(x); e = Equal(s,-1); o = Mul(s,0); y = Where(e,o,s)", "(N, S, 6)"),
    ("s = Shape(x); n = Shape(s); y = ConstantOfShape<value=int64[1] {7}>(n)", "(7, 7, 7)"),
    ("y = Range(2,11,3)", "(2, 5, 8)"),
    ("e = Expand([3],[2]); y = Tile(e,[2])", "(3, 3, 3, 3)"),
    ("s = Shape(x); y = Reshape(s,[-1])", "(N, S, 6)"),
    ("y = Div(-7,2)", "(-3)"),
    ("y = Mod(-7,2)", "(1)"),
    ("y = Mod<fmod=1>(-7,2)", "(-1)"),
]


@pytest.mark.parametrize(("inputs", "body", "expected"), SHAPES, ids=[expected for _, _, expected in SHAPES])
def test_shapes_follow_in_symbols(inputs: str, body: str, expected: str) -> None:
    model = parse(inputs, body)
    graph = inferred_graph(model)
    known = str(graph.value_type(graph.outputs[0]))
    assert known == expected or (expected.endswith("?]") and known.startswith(expected[:-1]))
    assert runs_agree(model, graph, smallest=7 if "kernel" in body or "Conv" in body else 0)


@pytest.mark.parametrize(("body", "expected"), CONTENTS)
def test_contents_follow_in_symbols(body: str, expected: str) -> None:
    model = parse("float[N,S,6] x", body)
    graph = inferred_graph(model)
    assert told(graph, graph.output_names[0]) == expected
    assert runs_agree(model, graph)


def test_a_size_that_may_be_one_or_not_stays_open() -> None:
    graph = inferred_graph(parse("float[N] x, float[M] z", "y = Add(x, z)"))
    assert told(graph, "y").startswith("FLOAT[?")


@pytest.mark.parametrize("op", ["And", "Or", "Xor", "Equal"])
def test_nothing_is_told_of_truth_values_that_are_not_known(op: str) -> None:
    """Either of two cases may hold, and neither is the plain denial of the other."""
    body = f"c = {op}(a, b); d = Not(c); e = {op}(d, a); y = Cast<to=7>(e)"
    graph = onnx_io.load_model(parse("bool[2] a, bool[2] b", body, outputs="int64[2] y")).graph
    infer_graph(graph)
    assert all(not any(node.contents) for _, node in graph.nodes())


def test_a_target_that_might_say_copy_is_not_believed() -> None:
    """With N = 0 the first element of the target means "as the input", which is 2 there."""
    body = "n = Shape<start=0, end=1>(x); t = Concat<axis=0>(n,[3]); y = Reshape(z,t)"
    graph = inferred_graph(parse("float[N] x, float[2,M] z", body))
    assert told(graph, "y").startswith("FLOAT[?")
    assert told(graph, "y").endswith(",3]")


# -- what is told, against what runs -----------------------------------------------------------------------------------


SIZES_OF_X = "batch = Shape<end=1>(x); tokens = Shape<start=1, end=2>(x); "


@pytest.mark.parametrize(
    ("body", "positive"),
    [
        pytest.param("t = Concat<axis=0>(batch, tokens, [-1], [8]); y = Reshape(x, t)", {"batch", "tokens"}, id="axes"),
        pytest.param("p = Mul(batch, tokens); t = Concat<axis=0>(p, [-1]); y = Reshape(x, t)", set(), id="copied"),
        pytest.param(
            "p = Mul(batch, tokens); t = Concat<axis=0>(p, [-1]); y = Reshape<allowzero=1>(x, t)",
            {"batch", "tokens"},
            id="a product",
        ),
        pytest.param(
            "p = Div(tokens, [2]); t = Concat<axis=0>(p, [-1]); y = Reshape<allowzero=1>(x, t)", set(), id="a quotient"
        ),
        pytest.param("t = Concat<axis=0>(batch, tokens, [6], [8]); y = Reshape(x, t)", set(), id="nothing inferred"),
        pytest.param("t = Concat<axis=0>(batch, [-1]); z = Reshape(x, t); y = Neg(x)", set(), id="not needed"),
    ],
)
def test_no_size_is_0_beside_one_that_is_inferred(body: str, positive: set[str]) -> None:
    """Unless the 0 means to copy another axis, or ONNX Runtime leaves the Reshape out.

    With `allowzero` that is invalid by the standard alone: ONNX Runtime infers a 0.
    """
    model = parse("float[batch,tokens,48] x", SIZES_OF_X + body)
    assert inferred_graph(model).positive_sizes == positive
    for shape in ((0, 3, 48), (3, 0, 48)) if positive and "allowzero" not in body else ():
        with pytest.raises(UNDEFINED):
            run(model, {"x": np.zeros(shape, np.float32)})


def runs_agree(model: onnx.ModelProto, graph: Graph, smallest: int = 0) -> int:
    """Run the model on inputs of random sizes and compare every value; returns how many runs there were.

    A run in which the model is undefined (ONNX Runtime fails) does not count. `smallest` is that of the sizes: an axis
    shorter than a window is not defined either, but ONNX Runtime rounds its way through it.
    """
    rng = np.random.default_rng(0)
    names = {str(dim) for v in graph.inputs for dim in shape_of(graph, Value(v)) if isinstance(dim, SymbolicDim)}
    done = 0
    for _ in range(6):
        sizes = {name: int(rng.integers(smallest, smallest + 9)) for name in sorted(names)}
        feeds = {graph.value_name(Value(v)): fed(graph, Value(v), sizes, rng) for v in graph.inputs}
        try:
            results = run(model, feeds, everything=True)
        except UNDEFINED:
            continue
        done += 1
        agree(graph, results, sizes)
    return done


def shape_of(graph: Graph, value: Value) -> tuple[Dim, ...]:
    type_ = graph.tensor_type(value)
    assert type_ is not None
    assert type_.shape is not None
    return type_.shape


def fed(graph: Graph, value: Value, sizes: Mapping[str, int], rng: np.random.Generator) -> NDArray[np.generic]:
    type_ = graph.tensor_type(value)
    assert type_ is not None
    shape = [substitute_names(dim, dict(sizes)) for dim in shape_of(graph, value)]
    return np.asarray(rng.standard_normal([int(str(size)) for size in shape])).astype(type_.dtype.numpy)


def agree(graph: Graph, results: Arrays, sizes: Mapping[str, int]) -> None:
    """Every shape and every known element is what was told, for one meaning of the unknown sizes."""
    bound: dict[str, Dim] = dict(sizes)
    pairs = list(claims(graph, results))
    for size, actual, _ in pairs:  # a size of which nothing is known is what it is where it is first seen
        if isinstance(size, SymbolicDim) and str(size).startswith("?") and str(size)[1:].isdigit():
            bound.setdefault(str(size), actual)
    for size, actual, where in pairs:
        assert substitute_names(size, bound) == actual, f"{where}: {size} is {actual} with {bound}"


def claims(graph: Graph, results: Arrays) -> Iterator[tuple[Dim, int, str]]:
    """All that is told of the values that ran: a size, what it was, and where."""
    for name, value in values(graph).items():
        if name not in results:
            continue
        array, type_ = results[name], graph.value_type(value)
        assert not isinstance(type_, TensorType) or type_.dtype == DType.from_numpy(array.dtype), name
        if isinstance(type_, TensorType) and type_.shape is not None:
            assert len(type_.shape) == array.ndim, f"{name} is {type_}, not {array.shape}"
            yield from ((size, actual, name) for size, actual in zip(type_.shape, array.shape, strict=True))
        contents = graph.known_contents(value)
        if contents is not None:
            assert len(contents) == array.size, name
            yield from ((size, int(actual), name) for size, actual in zip(contents, array.ravel(), strict=True))


def named(graph: Graph, feeds: Arrays) -> dict[str, int]:
    """What the named sizes of the inputs are in a feed."""
    pairs = [(shape_of(graph, Value(v)), feeds[graph.value_name(Value(v))].shape) for v in graph.inputs]
    return {str(dim): size for dims, shape in pairs for dim, size in zip(dims, shape, strict=True)}


BINDINGS: Sequence[Mapping[str, int]] = ({}, {"batch": 3, "sequence": 5, "height": 49, "width": 65}, {"batch": 1})


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.names())
def test_what_is_told_of_real_exports_holds_when_they_run(name: str) -> None:
    model = zoo.load(name)
    graph = inferred_graph(model)
    open_sizes = {str(d) for v in graph.inputs for d in shape_of(graph, Value(v)) if isinstance(d, SymbolicDim)}
    for bindings in BINDINGS if open_sizes else BINDINGS[:1]:
        feeds = zoo.inputs(model, 0, bindings)
        agree(graph, run(model, feeds, everything=True), named(graph, feeds))
    assert build_inference_patch(graph) is None, "what is told once stays"


# -- bodies ------------------------------------------------------------------------------------------------------------


def body_of(graph: Graph, op: str, index: int = 0) -> Graph:
    (vertex,) = graph.vertices_with_op(op)
    return list(graph[vertex].bodies)[index]


def test_types_flow_into_and_out_of_an_if() -> None:
    model = parse(
        "bool c, float[N,S] x",
        """s = Shape(x)
        y = If (c) <then_branch = g () => (float[P,Q] a) { a = ConstantOfShape(s) },
                    else_branch = h () => (float[P,R] b) { b = Concat<axis=1>(x, x) }>""",
    )
    graph = inferred_graph(model)
    assert told(body_of(graph, "If", 0), "a") == "FLOAT[N,S]"
    assert told(body_of(graph, "If", 1), "b") == "FLOAT[N,2*S]"
    assert told(graph, "y").startswith("FLOAT[N,?")
    assert runs_agree(model, graph)


def test_types_flow_into_and_out_of_a_loop() -> None:
    model = parse(
        "int64 n, float[N,S] x",
        """t = Constant<value = bool {1}>()
        y, z = Loop (n, t, x) <body = g (int64 i, bool go, float[P,Q] a) => (bool more, float[P,Q] b, float[R,Q] c) {
            more = Identity(go) b = Add(a, x) c = Concat<axis=0>(x, x) }>""",
    )
    graph = inferred_graph(model)
    assert told(body_of(graph, "Loop"), "c") == "FLOAT[2*N,S]"
    assert str(graph.value_type(values(graph)["z"])).endswith(",2*N,S]")


def test_types_flow_into_and_out_of_a_scan() -> None:
    model = parse(
        "float[S] x, float[T,S] w",
        """y, z = Scan (x, w) <num_scan_inputs = 1, body = g (float[P] a, float[P] b) => (float[P] c, float[P] d) {
            c = Add(a, b) d = Identity(c) }>""",
    )
    graph = inferred_graph(model)
    assert (told(graph, "y"), told(graph, "z")) == ("FLOAT[S]", "FLOAT[T,S]")
    assert runs_agree(model, graph)


# -- what models declare -----------------------------------------------------------------------------------------------


def test_declared_types_are_believed_where_nothing_else_is_known() -> None:
    model = parse("float[N] x", "a = Mystery(x) y = Relu(a)")
    model.graph.node[0].domain = "custom"
    model.opset_import.add(domain="custom", version=1)
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, ["N", 4]))
    assert told(inferred_graph(model), "y") == "FLOAT[N,4]"


def test_a_stale_declared_size_gives_way() -> None:
    """Somebody made the batch dynamic and left the declarations of inner values as they were: ONNX Runtime runs it."""
    model = parse("float[N,4] x", "a = Relu(x) y = Exp(a)")
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, [1, 4]))
    graph = inferred_graph(model)
    assert told(graph, "y") == "FLOAT[N,4]"
    assert runs_agree(model, graph)


def test_a_wrong_element_type_is_an_error() -> None:
    model = parse("float[N,4] x", "a = Relu(x) y = Exp(a)")
    model.graph.node[0].name = "first"
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("a", onnx.TensorProto.INT64, [1, 4]))
    with pytest.raises(
        ModelError, match=r"node 'first' \(Relu\) output 0 is declared INT64\[1,4\], but computes FLOAT"
    ):
        inferred_graph(model)


def test_inferring_again_tells_nothing_new() -> None:
    graph = inferred_graph(parse("float[N] x, float[M] z", "a = Add(x, z) b = NonZero(a) y = Concat<axis=1>(b, b)"))
    nodes = dict(graph.vertices_and_nodes())
    infer_graph(graph)
    assert dict(graph.vertices_and_nodes()) == nodes


# -- sizes that the user fixes -----------------------------------------------------------------------------------------

TWO = ("float[N,3,H,W] x, float[N,5] z", "a = GlobalAveragePool(x) b = Flatten(a) y = Concat<axis=1>(b, z)")


def test_a_dim_is_fixed_everywhere() -> None:
    graph = inferred_graph(parse(*TWO))
    fix_inputs(graph, {}, {"N": 4})
    assert told(graph, "x") == "FLOAT[4,3,H,W]"
    assert told(graph, "y") == "FLOAT[4,8]"


def test_an_input_gets_a_shape() -> None:
    graph = inferred_graph(parse(*TWO))
    fix_inputs(graph, {"x": [None, 3, 224, "W2"]}, {})
    assert told(graph, "x") == "FLOAT[N,3,224,W2]"
    fix_inputs(graph, {"x": [1, 3, 224, 224]}, {})
    assert told(graph, "z") == "FLOAT[1,5]"


@pytest.mark.parametrize(
    ("shapes", "dims", "message"),
    [
        ({}, {"M": 4}, "no size named 'M'; they have 'H', 'N', 'W'"),
        ({}, {"N": -1}, "'N' cannot be -1"),
        ({"w": [1]}, {}, "no input 'w'; it has 'x', 'z'"),
        ({"x": [1, 3, 8]}, {}, r"input 'x' has 4 axes \(N,3,H,W\), not 3"),
        ({"x": [1, 4, 8, 8]}, {}, r"axis 1 of input 'x' is 3 in the model \(N,3,H,W\), not 4"),
        ({"x": [1, 3, 8, 8], "z": [2, 5]}, {}, "axis 0 of input 'z' is 'N', which is 1, not 2"),
        ({"x": [1, 3, 8, 8]}, {"N": 2}, "axis 0 of input 'x' is 'N', which is 2, not 1"),
    ],
)
def test_wishes_that_cannot_be_are_refused(
    shapes: Mapping[str, Sequence[int]], dims: Mapping[str, int], message: str
) -> None:
    graph = inferred_graph(parse(*TWO))
    with pytest.raises(UsageError, match=message):
        fix_inputs(graph, shapes, dims)


def test_a_shape_on_which_a_node_cannot_work_is_refused() -> None:
    graph = inferred_graph(
        parse("float[N,C] x", "w = Constant<value_ints=[4,5]>() k = ConstantOfShape(w) y = MatMul(x, k)")
    )
    with pytest.raises(ModelError, match=r"node 'y' \(MatMul\) cannot be: .*dimension"):
        fix_inputs(graph, {"x": [1, 3]}, {})


@pytest.mark.parametrize("way", [({"x": [4, 6]}, {}), ({}, {"n": 4})])
def test_a_node_that_reads_what_has_no_type_is_not_taken_for_one_that_cannot_be(way: Any) -> None:
    """Nobody knows what an operator of the user's own makes."""
    body = "h = tests.own.Twice(x) s = Constant<value_ints=[-1, 3]>() u = Reshape(h, s) y = Relu(u)"
    model = parse("float[n,6] x", body)
    model.opset_import.add(domain="tests.own", version=1)
    graph = inferred_graph(model)
    fix_inputs(graph, *way)
    assert told(graph, "x") == "FLOAT[4,6]"


# -- speed -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_three_thousand_nodes_take_about_half_a_second() -> None:
    """Stated for a quiet machine; the bound here leaves room for a busy one."""
    layer = """q{i} = MatMul(x{i},w); r{i} = Reshape(q{i},t); s{i} = Transpose<perm=[0,2,1,3]>(r{i});
    e{i} = Softmax(s{i}); u{i} = Transpose<perm=[0,2,1,3]>(e{i}); v{i} = Reshape(u{i},b); x{j} = Add(v{i},x{i})"""
    head = "w = ConstantOfShape([64,64]); t = Identity([0,0,4,16]); b = Identity([0,0,64]); x0 = Relu(x) "
    layers = " ".join(layer.format(i=i, j=i + 1) for i in range(430))
    model = parse("float[N,S,64] x", f"{head} {layers} y = Relu(x430)")
    graph = onnx_io.load_model(model).graph
    start = time.process_time()
    infer_graph(graph)
    assert time.process_time() - start < 3
    assert told(graph, "y") == "FLOAT[N,S,64]"


@pytest.mark.parametrize("end", [2**31 - 1, 2**63 - 1])
@pytest.mark.parametrize("size", ["5", "n"])
def test_a_slice_backwards_to_an_end_that_onnx_runtime_takes_for_beyond_the_front(size: str, end: int) -> None:
    """Against the ONNX text, by which nothing is taken; a smaller or larger end is what the text says."""
    model = parse(f"float[{size}] x", "y = Slice(x,[-1],[END],[0],[-1])".replace("END", str(end)))
    x = np.arange(5, dtype=np.float32)
    assert run(model, {"x": x})["y"].tolist() == x[::-1].tolist()
    loaded = onnx_io.load_model(model).graph
    infer_graph(loaded)
    found = loaded.tensor_type(loaded.outputs[0])
    assert found is not None and found.shape is not None and str(found.shape[0]) == size
    result = graphopt.optimize(model, cost="none")
    assert run(result.model, {"x": x})["y"].tolist() == x[::-1].tolist()


def test_a_pool_has_no_window_that_begins_behind_the_data() -> None:
    """As older schemas of it count, which no runtime does."""
    pool = "MaxPool<kernel_shape=[2], strides=[2], pads=[1,1], ceil_mode=1>(x)"
    model = parse("float[1,1,5] x", f"y = {pool}", outputs="float[1,1,K] y", opset=17)
    graph = onnx_io.load_model(model).graph
    infer_graph(graph)
    assert graph.shape(graph.outputs[0]) == (1, 1, 3) == run(model, {"x": np.zeros((1, 1, 5), np.float32)})["y"].shape


def test_a_squeeze_of_no_axis_has_a_shape_that_is_not_known() -> None:
    """ONNX Runtime takes it for all axes of size 1, the onnx package for none."""
    weights = {"a": np.zeros(0, np.int64), "t": np.array([1, 3])}
    model = parse("float[1,3] x", "s = Squeeze(x, a); y = Reshape(s, t)", weights, outputs="float[A,B] y", opset=17)
    result = graphopt.optimize(model, cost="none")
    assert [node.op_type for node in result.model.graph.node] == ["Squeeze", "Reshape"]
