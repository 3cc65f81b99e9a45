"""Passes: what goes, what stays, and that the model computes what it did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from graphopt.base.dtype import DType
from graphopt.expr.dims import Dim, SymbolicDim
from graphopt.io import onnx_io
from graphopt.ir import schemas
from graphopt.ir.edit import replace_node
from graphopt.ir.graph import Graph, Patch
from graphopt.operators.inference import infer_graph, reshape_target
from graphopt.rewrite.passes import PASSES, Pass, PassFunction, to_exact_passes, written_by_patch
from graphopt.rewrite.simplify import simplify_graph
from graphopt.rules import slicing
from tests import zoo
from tests.text import UNDEFINED, Arrays, parse, printed, run

ALL = {pass_.name: pass_ for pass_ in PASSES}
N, S = SymbolicDim.named("N"), SymbolicDim.named("S")
LARGE = 50
"""Nodes above which a graph is looked at after every pass only."""


def applied(graph: Graph, passes: Sequence[Pass], done: list[tuple[Graph, Patch]]) -> None:
    """Apply passes until nothing changes, in bodies too, looking at a graph that is not large after every patch."""
    for _ in range(10):
        before = len(done)
        for pass_ in passes:
            for patch in pass_.run(graph):
                assert written_by_patch(patch) <= pass_.written_operators
                graph.apply(patch)
                done.append((graph, patch))
                if len(graph) <= LARGE:
                    graph.check_invariants()
        graph.check_invariants()
        for _, node in list(graph.nodes()):
            for body in node.bodies:
                applied(body, passes, done)
        if len(done) == before:
            return
    raise AssertionError("the passes do not come to rest")


def optimized(model: onnx.ModelProto, *names: str) -> onnx_io.LoadedModel:
    """The model after the passes of these names (all by default), having seen that they can be undone."""
    loaded = onnx_io.load_model(model)
    infer_graph(loaded.graph)
    before, nodes = printed(loaded.graph), dict(loaded.graph.vertices_and_nodes())
    done: list[tuple[Graph, Patch]] = []
    applied(loaded.graph, [ALL[name] for name in names] or PASSES, done)
    for graph, patch in reversed(done):
        graph.apply(patch.inverse)
        if len(graph) <= LARGE:
            graph.check_invariants()
    loaded.graph.check_invariants()
    assert (printed(loaded.graph), dict(loaded.graph.vertices_and_nodes())) == (before, nodes), "undone is as it was"
    for graph, patch in done:
        graph.apply(patch)
    return loaded


def after(model: onnx.ModelProto, *names: str) -> list[str]:
    return printed(optimized(model, *names).graph)


# -- fold_constants ----------------------------------------------------------------------------------------------------


def absolute(graph: Graph) -> Iterator[Patch]:
    """Put an Abs in the place of each Relu."""
    for vertex in sorted(graph.vertices_with_op("Relu")):
        yield replace_node(graph, vertex, replace(graph[vertex], op="Abs", version=schemas.newest_version("Abs")))


def halved(graph: Graph) -> Iterator[Patch]:
    """Say another attribute of each LeakyRelu."""
    for vertex in sorted(graph.vertices_with_op("LeakyRelu")):
        yield replace_node(graph, vertex, replace(graph[vertex], attrs={"alpha": 0.5}))


def plain(graph: Graph) -> Iterator[Patch]:
    """Take its attribute from each LeakyRelu."""
    for vertex in sorted(graph.vertices_with_op("LeakyRelu")):
        if graph[vertex].attrs:
            yield replace_node(graph, vertex, replace(graph[vertex], attrs={}))


@pytest.mark.parametrize(("run", "op"), [(absolute, "Abs"), (halved, "LeakyRelu"), (plain, "LeakyRelu without alpha")])
def test_a_pass_that_writes_an_operator_is_refused(run: PassFunction, op: str) -> None:
    graph = onnx_io.load_model(parse("float[4] x", "a = Relu(x); y = LeakyRelu <alpha = 0.25> (a)")).graph
    with pytest.raises(ValueError, match=f"pass wrong writes {op}, which only rules may"):
        simplify_graph(graph, [], [Pass("wrong", run, "It is shorter.")])
    assert list(graph.operator_counts()) == ["Relu", "LeakyRelu"]
    assert simplify_graph(graph, [], [Pass("right", run, "It says so.", written_operators=frozenset({op}))]).steps


def test_what_depends_on_constants_alone_is_computed() -> None:
    model = parse("float[2] x", "a = Add([1.0,2.0],[3.0,4.0]); b = Neg(a); y = Mul(x,b)")
    assert after(model, "fold_constants") == ["y = Mul(x, [-4.0, -6.0])", "return y"]


def test_a_folded_value_keeps_its_name() -> None:
    model = parse("float[2] x", "a = Add([1.0,2.0],[3.0,4.0]); y = Mul(x,a)")
    graph = optimized(model, "fold_constants").graph
    assert sorted(name for _, node in graph.vertices_and_nodes() for name in node.names) == ["a", "x", "y"]


def test_every_output_of_a_node_is_folded() -> None:
    model = parse("float[1] x", "a, b = Split<axis=0, num_outputs=2>([1.0,2.0]); c = Add(x,a); y = Mul(c,b)")
    assert after(model, "fold_constants") == ["c = Add(x, [1.0])", "y = Mul(c, [2.0])", "return y"]


def test_an_output_of_the_graph_may_become_constant() -> None:
    model = parse("float[1] x", "y = Add([1.0],[2.0])", outputs="y")
    assert after(model, "fold_constants") == ["return [3.0]"]


@pytest.mark.parametrize(
    "body",
    [
        "r = RandomUniformLike([1.0,2.0]); y = Mul(x,r)",
        "r = Bernoulli([0.5,0.5]); y = Mul(x,r)",
        "s = Cast<to=3>([1,2]); d = DequantizeLinear(s,0.5); y = Mul(x,d)",
        "t = Cast<to=9>(1); r, m = Dropout([1.0,2.0],0.5,t); y = Mul(x,r)",
    ],
)
def test_random_numbers_and_quantization_stay(body: str) -> None:
    ops = onnx_io.load_model(parse("float[2] x", body)).graph.operator_counts()
    assert {op: n for op, n in ops.items() if op != "Cast"} == {
        op: n for op, n in optimized(parse("float[2] x", body)).graph.operator_counts().items() if op != "Cast"
    }


def test_weights_are_quantized_when_the_model_is_compiled() -> None:
    """As exports of quantization-aware training have them; they stay integers."""
    weights = np.array([[0.2, 1.0, -0.9], [9.0, 0.1, -8.0]], np.float32)
    model = parse(
        "float[N,2] x",
        "q = QuantizeLinear(w,[0.5,0.25,0.125],z); d = DequantizeLinear(q,[0.5,0.25,0.125],z); y = MatMul(x,d)",
        {"w": weights, "z": np.zeros(3, np.int8)},
    )
    graph = optimized(model).graph
    assert graph.operator_counts() == {"DequantizeLinear": 1, "MatMul": 1}
    (kept,) = (node for _, node in graph.nodes() if node.op == "DequantizeLinear")
    integers = graph.constant(kept.inputs[0])
    assert integers is not None and integers.dtype is DType.INT8
    np.testing.assert_array_equal(integers.numpy(), [[0, 4, -7], [18, 0, -64]])


def test_a_model_does_not_grow_by_much() -> None:
    small = parse("float[1] x", "a = ConstantOfShape([100,100]); y = Add(x,a)")
    large = parse("float[1] x", "a = ConstantOfShape([1000,1000]); y = Add(x,a)")
    assert after(small, "fold_constants") == ["y = Add(x, a)", "return y"]
    assert after(large, "fold_constants") == ["a = ConstantOfShape([1000, 1000])", "y = Add(x, a)", "return y"]


def test_a_large_weight_may_be_replaced_by_one_as_large() -> None:
    weight = np.arange(600_000, dtype=np.float32).reshape(600, 1000)
    model = parse("float[N,1000] x", "t = Transpose(w); y = MatMul(x,t)", {"w": weight})
    assert after(model, "fold_constants") == ["y = MatMul(x, t)", "return y"]
    shared = parse("float[N,1000] x", "t = Transpose(w); a = MatMul(x,t); y = MatMul(a,w)", {"w": weight})
    assert after(shared, "fold_constants")[0] == "t = Transpose(w)"


def test_half_precision_is_folded_in_its_own_type() -> None:
    half = np.array([1, 2048], ml_dtypes.bfloat16)
    model = parse("bfloat16[2] x", "a = Add(w,w); y = Mul(x,a)", {"w": half})
    assert after(model, "fold_constants") == ["y = Mul(x, [2.0, 4096.0])", "return y"]


def test_strings_are_folded() -> None:
    texts = {name: np.array([name], object) for name in "vw"}
    assert after(parse("string[1] x", "a = Concat<axis=0>(v,w); y = Concat<axis=0>(x,a)", texts), "fold_constants") == [
        "y = Concat(x, ['v', 'w'])",
        "return y",
    ]


def test_cast_like_reads_only_a_type() -> None:
    assert after(parse("float16[N] x", "a = CastLike(2.5,x); y = Mul(x,a)"), "fold_constants") == [
        "y = Mul(x, 2.5)",
        "return y",
    ]


def test_an_initializer_that_may_be_overridden_is_no_constant() -> None:
    model = parse("float[1] x, float[1] w", "a = Neg(w); y = Add(x,a)", {"w": np.ones(1, np.float32)})
    assert after(model) == ["a = Neg(w)", "y = Add(x, a)", "return y"]


# -- fold_shapes -------------------------------------------------------------------------------------------------------

FOLDED = {
    "a view of a tensor with a dynamic batch": (
        "float[N,S,768] x",
        """s = Shape(x); n = Gather(s,0); m = Gather(s,1); a = Unsqueeze(n,[0]); b = Unsqueeze(m,[0]);
        t = Concat<axis=0>(a,b,[12,64]); y = Reshape(x,t)""",
        ["y = Reshape(x, [0, 0, 12, 64])", "return y"],
    ),
    "the same with static sizes": (
        "float[2,7,768] x",
        "s = Shape(x); n = Slice(s,[0],[2]); t = Concat<axis=0>(n,[12,64]); y = Reshape(x,t)",
        ["y = Reshape(x, [2, 7, 12, 64])", "return y"],
    ),
    "two axes become one": (
        "float[N,S,768] x",
        """s = Shape(x); n = Gather(s,0); m = Gather(s,1); p = Mul(n,m); a = Unsqueeze(p,[0]);
        t = Concat<axis=0>(a,[768]); y = Reshape(x,t)""",
        ["y = Reshape(x, [-1, 768])", "return y"],
    ),
    "one becomes two: either may be 0, and -1 could not be told": (
        "float[N,S] z, float[M,768] x",
        "s = Shape(z); t = Concat<axis=0>(s,[768]); y = Reshape(x,t)",
        ["s = Shape(z)", "t = Concat(s, [768])", "y = Reshape(x, t)", "return y"],
    ),
    "-1 that is known": (
        "float[N,8,4] x",
        "s = Shape<start=0, end=1>(x); t = Concat<axis=0>(s,[-1]); y = Reshape(x,t)",
        ["y = Reshape(x, [0, 32])", "return y"],
    ),
    "allowzero, where no element is 0 but by its size": (
        "float[N,S,6] x",
        "s = Shape<start=0, end=2>(x); t = Concat<axis=0>(s,[2,3]); y = Reshape<allowzero=1>(x,t)",
        ["y = Reshape(x, [0, 0, 2, 3])", "return y"],
    ),
    "allowzero, where one is": (
        "float[N,0] x",
        "s = Shape<start=0, end=1>(x); t = Concat<axis=0>([0],s); y = Reshape<allowzero=1>(x,t)",
        ["s = Shape(x)", "t = Concat([0], s)", "y = Reshape(x, t)", "return y"],
    ),
    "an Expand along a constant axis": (
        "float[N,1,S] x",
        "s = Shape(x); n = Gather(s,[0]); m = Gather(s,[2]); t = Concat<axis=0>(n,[4],m); y = Expand(x,t)",
        ["y = Expand(x, [1, 4, 1])", "return y"],
    ),
    "a Slice whose end is the end": (
        "float[N,S] x",
        "s = Shape(x); n = Gather(s,[1]); y = Slice(x,[1],n,[1])",
        [f"y = Slice(x, [1], [{2**63 - 1}], [1])", "return y"],
    ),
    "positions": (
        "float[N,8] x",
        "s = Shape(x); n = Gather(s,1); y = Range(0,n,1)",
        ["return [0, 1, 2, 3, 4, 5, 6, 7]"],
    ),
    "sizes computed twice": (
        "float[N,S] x",
        """a = Shape(x); b = Relu(x); c = Shape(b); d = Gather(a,[0]); e = Gather(c,[0]); f = Shape<start=1>(b);
        t = Concat<axis=0>(d,f,e); y = Expand(1.0,t)""",
        [
            "a = Shape(x)",
            "b = Relu(x)",
            "d = Gather(a, [0])",
            "f = Shape(b)",
            "t = Concat(d, f, d)",
            "y = Expand(1.0, t)",
            "return y",
        ],
    ),
}


@pytest.mark.parametrize(("inputs", "body", "expected"), FOLDED.values(), ids=FOLDED)
def test_arithmetic_on_sizes_goes(inputs: str, body: str, expected: list[str]) -> None:
    model = parse(inputs, body)
    names = ("fold_constants", "infer_types", "fold_shapes")
    assert after(model, *names) == expected
    assert_same(model, *names)


NEEDLESS = {
    "an Expand to its own shape": (
        "float[N,S] x",
        """s = Shape(x); e = Equal(s,-1); o = ConstantOfShape<value=int64[1] {1}>([2]); t = Where(e,o,s);
        y = Expand(x,t)""",
    ),
    "a Slice of all there is": (
        "float[N,S] x",
        "s = Shape(x); n = Gather(s,[1]); y = Slice(x,[0],n,[1])",
    ),
    "a Slice beyond the end": ("float[N,4] x", "y = Slice(x,[0],[9],[1])"),
}


@pytest.mark.parametrize(("inputs", "body"), NEEDLESS.values(), ids=NEEDLESS)
def test_what_changes_nothing_goes_by_a_rule_with_sizes_that_are_known_by_name(inputs: str, body: str) -> None:
    loaded = onnx_io.load_model(parse(inputs, body))
    infer_graph(loaded.graph)
    simplify_graph(loaded.graph, slicing.RULES, PASSES)
    assert printed(loaded.graph) == ["y = Identity(x)", "return y"]


def assert_same(model: onnx.ModelProto, *names: str) -> None:
    """Before and after, the same results for sizes of 0, 1 and more, wherever the model is defined."""
    other = onnx_io.to_proto(optimized(model, *names))
    rng = np.random.default_rng(0)
    open_sizes = sorted({d.dim_param for i in model.graph.input for d in i.type.tensor_type.shape.dim if d.dim_param})
    runs = 0
    for sizes in [{}, *({name: int(rng.integers(0, 4)) for name in open_sizes} for _ in range(12))]:
        feeds = {i.name: fed(i, sizes) for i in model.graph.input}
        try:
            expected = run(model, feeds)
        except UNDEFINED:
            continue
        results = run(other, feeds)
        runs += 1
        for name, array in expected.items():
            assert results[name].shape == array.shape, sizes
            np.testing.assert_array_equal(results[name], array, str(sizes))
    assert runs


def fed(value: onnx.ValueInfoProto, sizes: Mapping[str, int]) -> NDArray[Any]:
    declared = value.type.tensor_type
    shape = [sizes.get(dim.dim_param, 2) if dim.dim_param else dim.dim_value for dim in declared.shape.dim]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(declared.elem_type)
    return np.asarray(np.arange(1, 1 + np.prod(shape, dtype=int)).reshape(shape)).astype(dtype)


@pytest.mark.parametrize(
    ("target", "shape", "result", "expected"),
    [
        ([N, S, 4], (N, S, 2, 2), None, [0, 0, 4]),
        ([N * S, 4], (N, S, 4), None, [-1, 4]),
        ([N * S, S], (N, S, S), None, None),
        ([N + 1, S + 1], (S + 1, N + 1), None, None),
        ([S + 1, N], (N, S + 1), None, None),
        ([N, S + 1], (S + 1, N), None, None),
        ([N, 4, -1], (N, S, 4), (N, 4, S), [0, 4, -1]),
        ([N, -1], (N, 3, 4), (N, 12), [0, 12]),
        ([-1, S], None, None, None),
        ([-1, 4], None, None, [-1, 4]),
    ],
)
def test_targets_of_reshape(
    target: list[Dim], shape: tuple[Dim, ...] | None, result: tuple[Dim, ...] | None, expected: list[int] | None
) -> None:
    assert reshape_target(target, shape, result) == expected


def test_sizes_that_are_not_0_stand_beside_one_that_is_inferred() -> None:
    assert reshape_target([N, 8, S], (N, 2, 4, S), None) is None
    assert reshape_target([N, 8, S], (N, 2, 4, S), None, {"N"}) == [0, 8, -1]


def test_a_size_that_stays_is_copied() -> None:
    model = parse(
        "float[N,16,2] x, float[4,16,2] z", "y = Reshape(x, [-1,4,8]); w = Reshape(z, [-1,4,8])", outputs="y, w"
    )
    assert after(model, "fold_shapes")[:2] == ["y = Reshape(x, [0, 4, 8])", "w = Reshape(z, [-1, 4, 8])"]


def test_bounds_of_known_axes_are_counted_from_the_front() -> None:
    model = parse(
        "float[16,N] x",
        "y = Slice(x, [-2], [9223372036854775807], [0]); z = Slice(x, [-2], [9223372036854775807], [1])",
        outputs="y, z",
    )
    lines = ["y = Slice(x, [14], [16], [0])", "z = Slice(x, [-2], [9223372036854775807], [1])"]
    assert after(model, "fold_shapes")[:2] == lines


# -- exact forms ------------------------------------------------------------------------------------------------------


def test_all_that_runs_has_an_exact_form() -> None:
    assert [pass_.name for pass_ in to_exact_passes(PASSES)] == [pass_.name for pass_ in PASSES]
    assert [pass_.name for pass_ in PASSES if pass_.exact_run] == ["fold_constants"]


# -- laws --------------------------------------------------------------------------------------------------------------

UNARY = ["Neg", "Relu", "Abs", "Identity"]
BINARY = ["Add", "Mul", "Sub", "Max"]
RESHAPES = ["[-1]", "[0,-1]", "[1,0,-1]", "[-1,2,2]"]


@st.composite
def bodies(draw: st.DrawFn) -> str:
    """Nodes on x (float[N,4]), many of them equal, dead or about sizes."""
    numbers, lines, tensors = count(), [], ["x", "x", "[1.0,2.0,3.0,4.0]", "1.0"]
    for _ in range(draw(st.integers(1, 10))):
        name, a, b = f"v{next(numbers)}", draw(st.sampled_from(tensors)), draw(st.sampled_from(tensors))
        match draw(st.sampled_from(["unary", "binary", "expand", "view", "concat"])):
            case "unary":
                lines.append(f"{name} = {draw(st.sampled_from(UNARY))}({a})")
            case "binary":
                lines.append(f"{name} = {draw(st.sampled_from(BINARY))}({a},{b})")
            case "expand":
                lines.append(f"s{name} = Shape({a}); {name} = Expand({b},s{name})")
            case "view":
                lines.append(f"r{name} = Reshape({a},{draw(st.sampled_from(RESHAPES))}); s{name} = Shape({b})")
                lines.append(f"{name} = Reshape(r{name},s{name})")
            case "concat":
                lines.append(
                    f"z{name} = Shape({a}); g{name} = Gather(z{name},[0]); w{name} = Concat<axis=0>(g{name},[4])"
                )
                lines.append(f"{name} = Reshape({b},w{name})")
        tensors.append(name)
    return "; ".join([*lines, f"y = Add({draw(st.sampled_from(tensors))},{tensors[-1]})"])


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(bodies())
def test_any_model_computes_what_it_did_and_every_patch_can_be_undone(body: str) -> None:
    model = parse("float[N,4] x", body)
    other = onnx_io.to_proto(optimized(model))
    for size in (0, 1, 3):
        feeds = {"x": np.arange(4 * size, dtype=np.float32).reshape(size, 4)}
        try:
            expected = run(model, feeds)["y"]
        except UNDEFINED:
            continue
        np.testing.assert_array_equal(run(other, feeds)["y"], expected, f"N = {size}")


# -- real exports ------------------------------------------------------------------------------------------------------

LEFT = {
    "bert-torchscript-dynamic": 106,
    "gpt2-torchscript-dynamic": 124,
    "llama-torchscript-dynamic": 189,
    "swin-torchscript-dynamic": 202,
    "vit-torchscript-dynamic": 68,
    "efficientnet-dynamo-raw": 288,
}
"""ONNX nodes that passes alone leave, at most: rules take out more."""

BINDINGS: Sequence[Mapping[str, int]] = ({}, {"batch": 3, "sequence": 5, "height": 49, "width": 65}, {"batch": 1})


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.names())
def test_real_exports_compute_what_they_did(name: str) -> None:
    model = zoo.load(name)
    loaded = optimized(model)
    assert len(loaded.graph) <= LEFT.get(name, len(model.graph.node))
    other = onnx_io.to_proto(loaded)
    is_open = any(d.dim_param for i in model.graph.input for d in i.type.tensor_type.shape.dim)
    for bindings in BINDINGS if is_open else BINDINGS[:1]:
        feeds = zoo.inputs(model, 0, bindings)
        close(run(other, feeds), run(model, feeds))


def close(results: Arrays, expected: Arrays) -> None:
    """Equal but for the order of sums: a weight that is transposed now is multiplied by another kernel."""
    for name, array in expected.items():
        assert (results[name].shape, results[name].dtype) == (array.shape, array.dtype)
        np.testing.assert_allclose(results[name], array, rtol=1e-5, atol=1e-5)


def names_of(passes: Sequence[Pass]) -> Iterator[str]:
    yield from (pass_.name for pass_ in passes)


def test_names_are_unique_and_reasons_are_sentences() -> None:
    names = [*names_of(PASSES)]
    assert len(names) == len(set(names))
    assert all(pass_.why.endswith(".") for pass_ in PASSES)
