"""Rules that pay only together, applied all over a model."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx
import pytest

from graphopt.check.compare import compare_models
from graphopt.check.verdict import EqualityVerdict
from graphopt.io import onnx_io
from graphopt.ir.graph import Graph, Patch, Value
from graphopt.language.rule import Rule, op, tensor
from graphopt.language.rule_library import load_library, load_rules
from graphopt.operators.inference import infer_graph
from graphopt.rewrite.build import RefusalFunction
from graphopt.rewrite.candidates import Candidate
from graphopt.rewrite.passes import PASSES
from graphopt.rewrite.simplify import DeadlineExceededError, Simplifier
from graphopt.runtime.profile import optimized_graph
from graphopt.runtime.session_setting import SessionSetting
from graphopt.search.moves import SearchSpace, rules_beside_trades
from graphopt.search.policy import SearchPolicy
from graphopt.search.search_report import refusal_notes
from graphopt.search.sweep import Sweep, apply_sweep
from tests.text import Arrays, parse

x, y = tensor("x"), tensor("y")
MATRICES = "stacks of matrices as one matrix"


def swept(
    given: onnx.ModelProto, rules: Sequence[Rule], tidy: Sequence[Rule] = (), refusal: RefusalFunction | None = None
) -> tuple[onnx_io.LoadedModel, Sweep | None]:
    """Return what a sweep makes of a model, which is simplified first as in a search, and the sweep."""
    model = onnx_io.load_model(given)
    infer_graph(model.graph)
    space = SearchSpace(rules, Simplifier(tidy, PASSES, refusal=refusal), lambda *_: True)
    space.simplifier.run(model.graph)
    made = apply_sweep(Candidate(model.graph), "sweep", rules, space, SearchPolicy())
    if made is None:
        return model, None
    (cause,) = made.causes
    assert isinstance(cause, Sweep)
    return replace(model, graph=made.graph), cause


def block(sizes: str) -> onnx.ModelProto:
    """Two layers, each a product, a bias, a Gelu, a sum and a normalization, as a BERT has them."""
    generator = np.random.default_rng(0)
    weights = {name: generator.standard_normal((8, 8)).astype(np.float32) for name in ("w0", "w1")}
    weights |= {name: generator.standard_normal(8).astype(np.float32) for name in ("b0", "b1", "s", "c")}
    layers = """a{i} = MatMul({x}, w{i}); d{i} = Add(a{i}, b{i}); g{i} = Gelu(d{i}); r{i} = Add(g{i}, {x});
    n{i} = LayerNormalization<axis=-1>(r{i}, s, c);"""
    body = layers.format(i=0, x="x") + layers.format(i=1, x="n0") + "y = Neg(n1)"
    return parse(f"float[{sizes},8] x", body, weights=weights, opset=20)


@pytest.mark.parametrize("sizes", ["2,5", "1,7", "batch,5", "batch,tokens"])
def test_a_stack_of_tokens_becomes_one_matrix_with_a_view_at_each_end(sizes: str) -> None:
    given = block(sizes)
    model, made = swept(given, load_library().sweeps[MATRICES], load_rules())
    assert made is not None
    ops = dict(model.graph.operator_counts())
    open_sizes = (ops.pop("Shape", 0), ops.pop("Concat", 0))
    assert open_sizes == ((1, 1) if sizes == "batch,tokens" else (0, 0)), "a Reshape can leave one size open, not two"
    assert ops == {"Reshape": 2, "Gemm": 2, "Gelu": 2, "Add": 2, "LayerNormalization": 2, "Neg": 1}
    assert "flatten_layer_normalization" in made.rules
    assert (
        compare_models(given, model, bindings=[{"batch": 3}] if "batch" in sizes else None).verdict
        is EqualityVerdict.EQUAL
    )


@pytest.mark.parametrize("opset", [14, 20])
def test_additions_stay_apart_from_normalizations(opset: int) -> None:
    """ONNX Runtime fuses an Add into the normalization, and its kernel for both is slow; a Sum it leaves."""
    normalized = {
        20: "y = LayerNormalization<axis=-1>(r, s, c)",
        14: """m = ReduceMean<axes=[-1]>(r); d = Sub(r, m); p = Pow(d, two); v = ReduceMean<axes=[-1]>(p);
        e = Add(v, eps); q = Sqrt(e); n = Div(d, q); k = Mul(n, s); y = Add(k, c)""",
    }
    weights = {"s": np.full(8, 0.5, np.float32), "c": np.ones(8, np.float32)}
    weights |= {"two": np.array(2, np.float32), "eps": np.array(1e-5, np.float32)} if opset == 14 else {}
    given = parse("float[2,5,8] x, float[2,5,8] z", f"r = Add(x, z); {normalized[opset]}", weights=weights, opset=opset)
    library = load_library()
    kept = rules_beside_trades(library.rules, library.trades)
    model, made = swept(given, library.sweeps["additions apart from normalizations"], kept)
    assert made is not None
    assert model.graph.operator_counts()["Sum"] == 1
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


@pytest.mark.parametrize(
    ("shape", "perm", "moves"),
    [
        pytest.param((6, 32, 9, 40), (0, 3, 2, 1), [(0, 2, 1, 3), (0, 2, 1, 3)], id="windows"),
        pytest.param(
            (1, 64, 8, 7, 8, 7), (0, 2, 4, 3, 5, 1), [(0, 2, 1, 3), (0, 1, 3, 2, 4, 5)], id="tokens of windows"
        ),
        pytest.param(
            (1, 16, 14, 2, 14, 2), (0, 1, 3, 5, 2, 4), [(0, 2, 1, 3), (0, 1, 3, 4, 2, 5)], id="pixels unshuffled"
        ),
        pytest.param((1, 8, 16, 2, 16), (0, 4, 2, 3, 1), [(0, 2, 3, 1, 4), (0, 2, 1, 3)], id="the last axis second"),
    ],
)
def test_a_transposition_of_several_axes_takes_two_passes(
    shape: tuple[int, ...], perm: tuple[int, ...], moves: list[tuple[int, ...]]
) -> None:
    """An axis of size 1 keeps them apart: what ONNX Runtime would run is told by the kernels it reports."""
    sizes, turned = (",".join(map(str, each)) for each in (shape, [shape[axis] for axis in perm]))
    given = parse(f"float[{sizes}] x", f"y = Transpose<perm={[*perm]}>(x)", outputs=f"float[{turned}] y", opset=20)
    library = load_library()
    kept = rules_beside_trades(library.rules, library.trades)
    model, made = swept(given, library.sweeps["copies in long runs"], kept)
    assert made is not None
    graph = model.graph
    order = [graph[vertex].attrs["perm"] for vertex in graph.topological_order() if graph[vertex].op == "Transpose"]
    assert order == moves
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL
    runs = [node.op_type for node in optimized_graph(onnx_io.to_proto(model), SessionSetting(threads=1)).graph.node]
    assert runs.count("Transpose") == 2


@pytest.mark.parametrize(
    ("shape", "perm"),
    [
        pytest.param((6, 32, 40, 9), (0, 3, 1, 2), id="the last axis alone"),
        pytest.param((6, 32, 40, 9), (0, 2, 3, 1), id="one axis to the end"),
        pytest.param((6, 32, 40, 9), (2, 1, 0, 3), id="the last axis stays"),
        pytest.param((6, 8, 4, 10, 9), (0, 3, 4, 1, 2), id="matrices of axes that stay together"),
        pytest.param((6, 8, 4, 10), (2, 3, 0, 1), id="one matrix of them"),
    ],
)
def test_a_transposition_that_is_fast_takes_one_pass(shape: tuple[int, ...], perm: tuple[int, ...]) -> None:
    sizes = ",".join(map(str, shape))
    given = parse(f"float[{sizes}] x", f"y = Transpose<perm={[*perm]}>(x)", opset=20)
    assert swept(given, load_library().sweeps["copies in long runs"], [])[1] is None


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_pixels_are_shuffled_in_two_passes(mode: str) -> None:
    body = f'y = DepthToSpace<blocksize=2, mode="{mode}">(x)'
    given = parse("float[1,8,24,32] x", body, outputs="float[1,2,48,64] y", opset=20)
    library = load_library()
    kept = rules_beside_trades(library.rules, library.trades)
    model, made = swept(given, library.sweeps["copies in long runs"], kept)
    assert made is not None
    assert model.graph.operator_counts() == {"Reshape": 3, "Transpose": 2}
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize(
    ("sizes", "axis", "matrices"),
    [("1,16,4,210", 1, [1, 16, 840]), ("4,5,6,70", -4, [1, 4, 2100]), ("2,3,40,5,8", -3, [6, 40, 40])],
)
def test_softmax_along_an_inner_axis_is_one_of_matrices(name: str, sizes: str, axis: int, matrices: list[int]) -> None:
    given = parse(f"float[{sizes}] x", f"y = {name}<axis={axis}>(x)", outputs=f"float[{sizes}] y", opset=20)
    library = load_library()
    model, made = swept(given, library.sweeps["copies in long runs"], library.rules)
    assert made is not None
    assert model.graph.operator_counts() == {name: 1, "Reshape": 2}
    (vertex,) = model.graph.vertices_with_op(name)
    computed = model.graph.tensor_type(Value(vertex))
    assert computed is not None
    assert computed.shape == tuple(matrices)
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


@pytest.mark.parametrize(("sizes", "axis"), [("1,16,840", 1), ("4,8,6,70", 3), ("4,8,6,70", -2)])
def test_softmax_that_is_fast_is_left(sizes: str, axis: int) -> None:
    given = parse(f"float[{sizes}] x", f"y = Softmax<axis={axis}>(x)", opset=20)
    assert swept(given, load_library().sweeps["copies in long runs"], [])[1] is None


def test_windows_are_gathered_and_multiplied_with_channels_last() -> None:
    """An unfold as torch exports it, in heads, and an attention within each window, as VOLO has it."""
    rng = np.random.default_rng(0)
    places = (np.arange(2)[None] * 2 + np.arange(3)[:, None]).astype(np.int64)
    weights: Arrays = {"w": rng.standard_normal((8, 8)).astype(np.float32), "i": places}
    body = """p = MatMul(x, w); t = Transpose<perm=[0,3,1,2]>(p); padded = Pad(t, [0,0,1,1,0,0,1,1]);
    r = Gather<axis=2>(padded, i); c = Gather<axis=4>(r, i); u = Transpose<perm=[0,1,2,4,3,5]>(c);
    h = Reshape(u, [1,2,4,9,4]); v = Transpose<perm=[0,1,4,3,2]>(h); m = MatMul(a, v);
    back = Transpose<perm=[0,1,4,3,2]>(m); y = Reshape(back, [1,72,4])"""
    given = parse("float[1,4,4,8] x, float[1,2,4,9,9] a", body, weights=weights, opset=20)
    model, made = swept(given, load_library().sweeps["windows with channels last"], load_rules())
    assert made is not None
    gathered = [node.attrs["axis"] for _, node in model.graph.nodes() if node.op == "Gather"]
    moved = Counter(node.attrs["perm"] for _, node in model.graph.nodes() if node.op == "Transpose")
    assert gathered == [1, 3]
    assert moved == {(0, 1, 2, 4, 3): 2, (0, 1, 3, 4, 2): 1, (0, 5, 2, 4, 1, 3, 6): 1}
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


def test_a_global_response_normalization_takes_two_passes_and_no_slow_sum() -> None:
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal(8).astype(np.float32) for name in ("gamma", "beta", "bias")}
    weights |= {"w": rng.standard_normal((8, 4)).astype(np.float32), "eps": np.array(1e-6, np.float32)}
    weights["bias"] = weights["bias"][:4]
    body = """n = ReduceL2<keepdims=1>(x, [1,2]); m = ReduceMean<keepdims=1>(n, [-1]); e = Add(m, eps); s = Div(n, e);
    scaled = Mul(x, s); weighted = Mul(gamma, scaled); shifted = Add(beta, weighted); all = Add(x, shifted);
    p = MatMul(all, w); y = Add(p, bias)"""
    given = parse("float[1,5,6,8] x", body, weights=weights, opset=20)
    sweeps = load_library().sweeps
    model, made = swept(given, [*sweeps["sums of rows as products"], *sweeps["shifts through products"]], load_rules())
    assert made is not None
    ops = model.graph.operator_counts()
    assert (ops["Mul"], ops["Add"]) == (3, 3), (
        "the squares, both factors as one, and that by the image; ε, 1 and a shift"
    )
    assert not {"ReduceL2", "ReduceSum"} & set(ops)
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


def test_rules_that_rewrite_what_a_trade_writes_undo_it() -> None:
    to_sum = Rule("to_sum", op.Neg(x + y), op.Neg(op.Sum(x, y)))
    to_add = Rule("to_add", op.Sum(x, y), x + y)
    doubled = Rule("doubled", op.Sum(x, x), x * 2.0)
    negated = Rule("negated", op.Sum(op.Neg(x), y), y - x)
    assert rules_beside_trades([to_add, doubled, negated], [to_sum]) == [doubled, negated]


@pytest.mark.parametrize("rows", [pytest.param("1", id="shared positions"), pytest.param("batch", id="own positions")])
def test_positions_are_turned_into_queries_and_keys_that_share_their_angles(rows: str) -> None:
    """No cosine is computed twice, as all its readers are replaced."""
    turn = """
    low_{0}, high_{0} = Split<axis = 3>({0}, [2, 2]); minus_{0} = Neg(high_{0});
    turned_{0} = Concat<axis = -1>(minus_{0}, low_{0}); a_{0} = Mul({0}, cos); b_{0} = Mul(turned_{0}, sin);
    {0}_out = Add(a_{0}, b_{0});"""
    given = parse(
        f"float[batch,tokens,24] x, float[batch,2,tokens,4] k, float[{rows},tokens,2] f",
        """batch = Shape<start=0, end=1>(x); tokens = Shape<start=1, end=2>(x);
        heads = Concat<axis=0>(batch, tokens, [-1], [4]); h = Reshape(x, heads); q = Transpose<perm=[0,2,1,3]>(h);
        z = Concat<axis = -1>(f, f); c = Cos(z); s = Sin(z); cos = Unsqueeze(c, [1]); sin = Unsqueeze(s, [1]);"""
        + "".join(map(turn.format, "qk")),
        outputs="q_out, k_out",
    )
    rules = [
        rule for rule in load_library().sweeps["positions turned into queries and keys"] if "microsoft" in rule.name
    ]
    model, made = swept(given, rules, load_rules())
    assert made is not None
    ops = model.graph.operator_counts()
    assert (ops["com.microsoft.RotaryEmbedding"], ops["Cos"], ops["Sin"], ops.get("Mul", 0)) == (2, 1, 1, 0)
    sizes = [{"batch": 3, "tokens": 5}, {"batch": 1, "tokens": 1}]
    assert compare_models(given, model, bindings=sizes).verdict is EqualityVerdict.EQUAL


@pytest.mark.parametrize(("outside", "left"), [("", {"Mul": 3}), ("z = Neg(e0);", {"Exp": 4, "Add": 3, "Neg": 1})])
def test_matches_that_share_what_is_inside_are_rewritten_all_or_none(outside: str, left: dict[str, int]) -> None:
    """What one reader outside keeps alive of the first keeps something alive of each after it."""
    inputs = ", ".join(f"float[4] x{i}" for i in range(4))
    body = "".join(f"e{i} = Exp(x{i});" for i in range(4)) + "".join(f"a{i} = Add(e{i}, e{i + 1});" for i in range(3))
    given = parse(inputs, body + outside, outputs=", ".join(["a0", "a1", "a2", *["z"] * bool(outside)]))
    model, made = swept(given, [Rule("joined", op.Exp(x) + op.Exp(y), x * y)], [])
    assert (made is None) == bool(outside)
    assert model.graph.operator_counts() == left


def test_rules_are_applied_in_their_order_until_none_matches() -> None:
    rules = [
        Rule("double", x + x, x * 2.0),
        Rule("sum", op.Neg(x) - y, op.Neg(x + y)),
        Rule("minus", x - y, x + op.Neg(y)),
    ]
    model, made = swept(parse("float[4] x", "a = Neg(x); y = Sub(a, x)"), rules)
    assert made is not None
    assert made.rules == ("sum", "double"), "the first that matches first"
    assert model.graph.operator_counts() == {"Mul": 1, "Neg": 1}


def test_a_rule_that_is_refused_at_one_place_is_tried_at_those_that_others_make() -> None:
    rules = [Rule("double", x + x, x * 2.0), Rule("sum", x - op.Neg(y), x + y)]
    model = onnx_io.load_model(parse("float[4] x", "a = Add(x, x); b = Neg(a); y = Sub(a, b)"))
    infer_graph(model.graph)

    def refusal(graph: Graph, patch: Patch) -> str:
        reads_input = any(value.vertex in graph.inputs for node in patch.added for value in node.operands)
        return "it reads the input" if reads_input else ""

    made = apply_sweep(
        Candidate(model.graph),
        "sweep",
        rules,
        SearchSpace(rules, Simplifier((), (), refusal=refusal), lambda *_: True),
        SearchPolicy(),
    )
    assert made is not None
    assert [cause.rules for cause in made.causes] == [("sum", "double")]
    assert made.graph.operator_counts() == {"Add": 1, "Mul": 1}


def test_what_is_refused_is_noted_with_its_place() -> None:
    rule = Rule("negated", x - y, x + op.Neg(y))
    model = onnx_io.load_model(parse("float[4] x", "a = Sub(x, x); b = Sub(a, x); y = Sub(x, b)"))
    infer_graph(model.graph)
    tidy = Simplifier((), PASSES, refusal=lambda *_: "there is no kernel")
    space = SearchSpace([rule], tidy, lambda *_: True)
    assert apply_sweep(Candidate(model.graph), "signs", [rule], space, SearchPolicy()) is None
    (note,) = refusal_notes({"signs": space.refusals})
    assert note == "signs: negated was not applied at 'a' and at 2 other places: there is no kernel"


def test_where_no_rule_matches_there_is_no_sweep() -> None:
    model, made = swept(parse("float[4] x", "y = Exp(x)"), [Rule("double", x + x, x * 2.0)])
    assert (made, model.graph.operator_counts()) == (None, {"Exp": 1})


@pytest.mark.parametrize("calls", [0, 1, 2, 3, 5, 8])
def test_a_sweep_for_which_time_runs_out_is_undone(calls: int) -> None:
    """Whenever that is: between two rules, at a place of one, or while the graph is simplified after it."""
    model = onnx_io.load_model(block("batch,tokens"))
    infer_graph(model.graph)
    before, left = dict(model.graph.vertices_and_nodes()), iter(range(calls * 40))

    def check() -> None:
        if next(left, None) is None:
            raise DeadlineExceededError

    space = SearchSpace(load_library().sweeps[MATRICES], Simplifier(load_rules(), PASSES, check=check), lambda *_: True)
    assert apply_sweep(Candidate(model.graph), "sweep", load_library().sweeps[MATRICES], space, SearchPolicy()) is None
    assert dict(model.graph.vertices_and_nodes()) == before
    model.graph.check_invariants()


def test_rules_without_an_end_are_undone(caplog: pytest.LogCaptureFixture) -> None:
    model, made = swept(parse("float[4] x,float[4] z", "y = Sub(x, z)"), [Rule("turn", x - y, op.Neg(y - x))])
    assert (made, model.graph.operator_counts()) == (None, {"Sub": 1})
    assert "the sweep 'sweep' did not come to an end" in caplog.text


DECODER = """c0 = Conv<auto_pad="NOTSET">(small, w0, b0); c1 = Conv(middle, w1, b1);
r0 = Resize<mode="linear">(c0, , , large); r1 = Resize<mode="linear">(c1, , , large);
joined = Concat<axis=1>(r0, r1, image); y = Conv(joined, w, b)"""


def test_of_images_that_are_joined_each_is_mixed_at_its_own_size() -> None:
    """The head of a SegFormer."""
    generator = np.random.default_rng(0)
    shapes = {"w0": (8, 6, 1, 1), "b0": (8,), "w1": (8, 5, 1, 1), "b1": (8,), "w": (4, 20, 1, 1), "b": (4,)}
    weights = {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    weights["large"] = np.array([1, 8, 8, 12], np.int64)
    inputs = "float[1,6,2,3] small, float[1,5,4,6] middle, float[1,4,8,12] image"
    given = parse(inputs, DECODER, weights=weights, opset=20)
    model, made = swept(given, load_library().sweeps["images enlarged late"], load_rules())
    assert made is not None
    assert made.rules == ("part_pointwise_conv_of_resize",)
    assert model.graph.operator_counts() == {"Conv": 3, "Resize": 2, "Add": 2}, (
        "of two convolutions in a row one is left"
    )
    channels = {model.graph.shape(Value(vertex)) for vertex in model.graph.vertices_with_op("Resize")}
    assert channels == {(1, 4, 8, 12)}
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


LATE = "images enlarged late"
RESIZE = """r = Resize<mode="nearest", nearest_mode="floor", coordinate_transformation_mode="asymmetric">"""


def enlarged(scales: tuple[int, ...], inputs: str, behind: str, channels: int) -> onnx.ModelProto:
    """An image that is enlarged, and what is made of it by a pointwise convolution of so many channels."""
    weights = {"w": np.random.default_rng(0).standard_normal((2, channels, 1, 1)).astype(np.float32)}
    weights["scales"] = np.array(scales, np.float32)
    return parse(inputs, f"{RESIZE}(x, , scales); {behind}", weights=weights, opset=20)


def test_channels_are_mixed_before_an_image_is_doubled() -> None:
    given = enlarged((1, 1, 2, 2), "float[batch,3,H,W] x", "y = Conv(r, w)", 3)
    model, made = swept(given, load_library().sweeps[LATE], load_rules())
    assert made is not None
    assert made.rules == ("push_pointwise_conv_above_doubling",)
    assert [value.vertex for value in model.graph.outputs] == list(model.graph.vertices_with_op("Resize"))
    assert compare_models(given, model, bindings=[{"batch": 2, "H": 3, "W": 4}]).verdict is EqualityVerdict.EQUAL


def test_of_an_image_that_is_doubled_and_joined_the_channels_are_mixed_before() -> None:
    inputs = "float[2,3,3,4] x, float[2,2,6,8] image"
    given = enlarged((1, 1, 2, 2), inputs, "j = Concat<axis=1>(image, r); y = Conv(j, w)", 5)
    model, made = swept(given, load_library().sweeps[LATE], load_rules())
    assert made is not None
    assert made.rules == ("part_pointwise_conv_of_doubling",)
    assert model.graph.operator_counts() == {"Conv": 2, "Resize": 1, "Add": 1}
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


@pytest.mark.parametrize("scales", [(1, 1, 2, 3), (1, 2, 2, 2), (2, 1, 2, 2)])
def test_what_is_enlarged_otherwise_is_left(scales: tuple[int, ...]) -> None:
    given = enlarged(scales, "float[batch,3,H,W] x", "y = Conv(r, w)", 3 * scales[1])
    assert swept(given, load_library().sweeps[LATE], load_rules())[1] is None


@pytest.mark.parametrize("is_joined", [False, True])
@pytest.mark.parametrize(
    ("sizes", "filters", "window", "attributes", "is_late"),
    [
        ((8, 10), 3, 1, "", True),
        ((2, 10), 3, 1, "", False),
        ((8, 10), 4, 1, "", False),
        ((8, 10), 3, 3, "", False),
        ((8, 10), 3, 1, "<strides=[2,2]>", False),
        ((8, 10), 3, 1, "<pads=[1,1,1,1]>", False),
    ],
    ids=["enlarged", "shrunk", "more channels", "no point", "strides", "pads"],
)
def test_channels_are_mixed_before_where_that_is_less_to_do(
    sizes: tuple[int, int], filters: int, window: int, attributes: str, *, is_late: bool, is_joined: bool
) -> None:
    channels = 5 if is_joined else 3
    weights = {"sizes": np.array((1, 3, *sizes)), "w": np.ones((filters, channels, window, window), np.float32)}
    inputs = f"float[1,3,4,5] x, float[1,2,{sizes[0]},{sizes[1]}] image"
    given = parse(
        inputs if is_joined else "float[1,3,4,5] x",
        f"""{RESIZE}(x, , , sizes); {"j = Concat<axis=1>(image, r);" if is_joined else ""}
        y = Conv{attributes}({"j" if is_joined else "r"}, w)""",
        weights=weights,
        opset=20,
    )
    assert (swept(given, load_library().sweeps[LATE], load_rules())[1] is not None) == is_late


def attention(wanted: str, batch: str = "2") -> onnx.ModelProto:
    """Attention of two heads and what follows it in a layer, of which one token is wanted."""
    first = int(batch) if batch.isdigit() else 0
    generator = np.random.default_rng(0)
    weights = {f"w{i}": generator.standard_normal((8, 8)).astype(np.float32) for i in range(4)}
    weights |= {"s": np.ones(8, np.float32), "c": np.zeros(8, np.float32)}
    weights |= {"heads": np.array([first, 5, 2, 4]), "tokens": np.array([first, 5, -1])}
    body = f"""q = MatMul(x, w0); qh = Reshape(q, heads); qt = Transpose<perm=[0,2,1,3]>(qh);
    k = MatMul(x, w1); kh = Reshape(k, heads); kt = Transpose<perm=[0,2,3,1]>(kh);
    v = MatMul(x, w2); vh = Reshape(v, heads); vt = Transpose<perm=[0,2,1,3]>(vh);
    e = MatMul(qt, kt); m = Add(e, mask); a = Softmax(m); h = MatMul(a, vt); t = Transpose<perm=[0,2,1,3]>(h);
    o = Reshape(t, tokens); r = Add(o, x); n = LayerNormalization<axis=-1>(r, s, c); f = MatMul(n, w3); {wanted}"""
    return parse(f"float[{batch},5,8] x, float[{batch},1,1,5] mask", body, weights=weights, opset=20)


@pytest.mark.parametrize(("index", "batch"), [(0, "2"), (-1, "2"), (0, "batch")])
def test_what_is_wanted_of_one_token_is_computed_of_it_alone(index: int, batch: str) -> None:
    given = attention(f"i = Constant<value_int={index}>(); y = Gather<axis=1>(f, i)", batch)
    model, made = swept(given, load_library().sweeps["parts taken early"], load_rules())
    assert made is not None
    shapes = [model.graph.shape(Value(vertex)) for vertex in model.graph.vertices_with_op("MatMul")]
    products = [shape[1:] for shape in shapes if shape is not None]
    assert sorted(products) == sorted([(5, 8)] * 2 + [(1, 8)] * 2 + [(2, 1, 5), (2, 1, 4)])
    assert (
        compare_models(given, model, bindings=[{"batch": 3}] if batch == "batch" else None).verdict
        is EqualityVerdict.EQUAL
    )


def test_nothing_is_computed_twice_to_take_a_part_of_it() -> None:
    given = attention("i = Constant<value_int=0>(); p = Gather<axis=1>(f, i); j = ReduceMax(f); y = Add(p, j)")
    model, _ = swept(given, load_library().sweeps["parts taken early"], load_rules())
    products = [model.graph.shape(Value(vertex)) for vertex in model.graph.vertices_with_op("MatMul")]
    assert products.count((2, 5, 8)) == 4


def test_where_elements_are_only_moved_otherwise_there_is_nothing_to_time() -> None:
    model, made = swept(
        parse(
            "float[5,5,5] x",
            "i = Constant<value_int=0>(); r = Relu(x); p = Gather<axis=1>(r, i); q = Exp(r); y = Add(p, q)",
        ),
        load_library().sweeps["parts taken early"],
        load_rules(),
    )
    assert made is None
    assert model.graph.operator_counts() == {"Relu": 1, "Gather": 1, "Exp": 1, "Add": 1}


def windowed_attention(shift: bool) -> onnx.ModelProto:
    """Projections before and behind windows of 4 by 4 of an image of 5 by 6, as SAM and Swin have them."""
    rng = np.random.default_rng(0)
    shapes = {"v": (8, 8), "w": (8, 8), "a": (8,), "b": (8,)}
    weights = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    there = """lt, lb = Split<axis=1>(z, [2,6]); l = Concat<axis=1>(lb, lt); ll, lr = Split<axis=2>(l, [2,6]);
    s = Concat<axis=2>(lr, ll);"""
    back = """kt, kb = Split<axis=1>(n, [6,2]); k = Concat<axis=1>(kb, kt); kl, kr = Split<axis=2>(k, [6,2]);
    u = Concat<axis=2>(kr, kl);"""
    body = f"""z = Pad(x, [0,0,0,0,0,3,2,0]); {there if shift else "s = Identity(z);"}
    c = Reshape(s, [1,2,4,2,4,8]); t = Transpose<perm=[0,1,3,2,4,5]>(c); r = Reshape(t, [-1,16,8]);
    m = MatMul(r, v); g = Add(m, a); f = Softmax<axis=1>(g); p = MatMul(f, w); h = Add(p, b);
    o = Reshape(h, [1,2,2,4,4,-1]); d = Transpose<perm=[0,1,3,2,4,5]>(o); n = Reshape(d, [1,8,8,8]);
    {back if shift else "u = Identity(n);"} y = Slice(u, [0,0], [5,6], [1,2], [1,1])"""
    return parse("float[1,5,6,8] x", body, weights=weights, outputs="float[1,5,6,8] y", opset=20)


@pytest.mark.parametrize("shift", [False, True])
def test_what_fills_windows_is_not_multiplied(shift: bool) -> None:
    given = windowed_attention(shift)
    library = load_library()
    kept = rules_beside_trades(library.rules, library.trades)
    model, made = swept(given, library.sweeps["products without padding of windows"], kept)
    assert made is not None
    products = [model.graph.tensor_type(Value(vertex)) for vertex in model.graph.vertices_with_op("MatMul")]
    assert [found and found.shape for found in products] == [(1, 5, 6, 8)] * 2
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


def test_windows_that_fit_are_left() -> None:
    body = """z = Pad(x, [0,0,0,0,0,0,0,0]); c = Reshape(z, [1,2,4,2,4,8]); t = Transpose<perm=[0,1,3,2,4,5]>(c);
    r = Reshape(t, [4,16,8]); y = MatMul(r, w)"""
    given = parse("float[1,8,8,8] x", body, weights={"w": np.ones((8, 8), np.float32)}, opset=20)
    assert swept(given, load_library().sweeps["products without padding of windows"])[1] is None


def test_volumes_stay_frames_between_convolutions() -> None:
    """A residual block with factors of channels: two Transposes are left, at its beginning and its end."""
    rng = np.random.default_rng(0)
    weights: Arrays = {"v": rng.standard_normal((4, 4, 3, 3, 3)), "w": rng.standard_normal((4, 1, 1, 3, 3))}
    weights = {name: array.astype(np.float32) for name, array in weights.items()}
    body = """a = Conv<pads=[1,1,1,1,1,1]>(x, v); b = Relu(a); c = Conv<pads=[0,1,1,0,1,1], group=4>(b, w);
    m = ReduceMean<keepdims=1>(c, [-1,-2,-3]); s = Sigmoid(m); g = Mul(c, s); r = Add(g, a); y = Relu(r)"""
    given = parse("float[1,4,5,6,7] x", body, weights=weights, outputs="float[1,4,5,6,7] y", opset=20)
    library = load_library()
    kept = rules_beside_trades(library.rules, library.trades)
    model, made = swept(given, library.sweeps["volumes as images"], kept)
    assert made is not None
    ops = model.graph.operator_counts()
    assert (ops["Conv"], ops["Transpose"], ops["Pad"]) == (4, 2, 2)
    assert {node.attrs["strides"] for _, node in model.graph.nodes() if node.op == "Conv"} == {(1, 1)}
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


def test_signals_stay_images_between_convolutions() -> None:
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((4, 4, 3)).astype(np.float32) for name in ("v", "w")}
    body = "a = Conv<pads=[1,1]>(x, v); b = Relu(a); c = Conv<pads=[1,1]>(b, w); y = Add(c, a)"
    given = parse("float[1,4,20] x", body, weights=weights, outputs="float[1,4,20] y", opset=20)
    library = load_library()
    kept = rules_beside_trades(library.rules, library.trades)
    model, made = swept(given, library.sweeps["signals as images"], kept)
    assert made is not None
    ops = model.graph.operator_counts()
    assert (ops["Conv"], ops["Unsqueeze"], ops["Squeeze"]) == (2, 1, 1)
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


def test_mish_and_prelu_are_computed_by_vectorized_kernels() -> None:
    body = "s = Softplus(x); t = Tanh(s); m = Mul(x, t); y = PRelu(m, a)"
    weights: Arrays = {"a": np.full((8, 1, 1), 0.3, np.float32)}
    given = parse("float[1,8,5,5] x", body, weights=weights, outputs="float[1,8,5,5] y", opset=20)
    library = load_library()
    kept = rules_beside_trades(library.rules, library.trades)
    model, made = swept(given, library.sweeps["activations by vectorized kernels"], kept)
    assert made is not None
    assert not {"Softplus", "Tanh", "PRelu"} & set(model.graph.operator_counts())
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


def test_softplus_elu_and_lrn_are_computed_by_vectorized_kernels() -> None:
    body = "s = Softplus(x); e = Elu(s); f = Elu<alpha=0.5>(e); g = Selu(f); h = Celu<alpha=2.0>(g); "
    body += "l = LRN<size=5, alpha=0.5>(h); y = LRN<size=3, alpha=0.25, bias=2.0>(l)"
    given = parse("float[1,8,5,5] x", body, outputs="float[1,8,5,5] y", opset=20)
    library = load_library()
    kept = rules_beside_trades(library.rules, library.trades)
    model, made = swept(given, library.sweeps["activations by vectorized kernels"], kept)
    assert made is not None
    assert not {"Softplus", "Elu", "Selu", "Celu", "LRN"} & set(model.graph.operator_counts())
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


def wide_layers(rows: int, hidden: int, activation: str, spelling: str = "matmul") -> onnx.ModelProto:
    """Two products with an activation between them."""
    rng = np.random.default_rng(0)
    weights = {
        name: (rng.standard_normal(shape) / 8).astype(np.float32)
        for name, shape in {"w": (8, hidden), "b": (hidden,), "v": (hidden, 8), "c": (8,)}.items()
    }
    first, second = {
        "matmul": ("p = MatMul(x, w); h = Add(p, b)", "q = MatMul(g, v); y = Add(q, c)"),
        "gemm": ("h = Gemm(x, w, b)", "y = Gemm(g, v, c)"),
        "residual": ("h = Gemm(x, w, b)", "y = Gemm(g, v, x)"),
    }[spelling]
    sizes = f"1,{rows},8" if spelling == "matmul" else f"{rows},8"
    return parse(f"float[{sizes}] x", f"{first}; {activation}; {second}", weights=weights, opset=20)


@pytest.mark.parametrize("spelling", ["matmul", "gemm", "residual"])
@pytest.mark.parametrize(
    "activation",
    ["g = Gelu(h)", "g = Relu(h)", "s = Sigmoid(h); g = Mul(h, s)", "a = Mul(h, 1.5); s = Sigmoid(a); g = Mul(h, s)"],
)
def test_hidden_widths_that_alias_get_a_line_of_zeros_from_the_weights(activation: str, spelling: str) -> None:
    given = wide_layers(5, 1024, activation, spelling)
    library = load_library()
    model, made = swept(given, library.sweeps["rows apart in the cache"], library.rules)
    assert made is not None
    assert "Pad" not in model.graph.operator_counts()
    weights = [node.inputs[1] for _, node in model.graph.nodes() if node.op in ("MatMul", "Gemm")]
    types = map(model.graph.tensor_type, weights)
    assert {each.shape for each in types if each is not None} == {(8, 1040), (1040, 8)}
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


def test_where_no_weights_are_in_front_a_pad_is_left() -> None:
    weights: Arrays = {"w": np.random.default_rng(0).standard_normal((1024, 8)).astype(np.float32) / 32}
    given = parse("float[3,1024] x", "a = Exp(x); y = MatMul(a, w)", weights=weights, opset=20)
    model, made = swept(given, load_library().sweeps["rows apart in the cache"], load_rules())
    assert made is not None
    assert model.graph.operator_counts()["Pad"] == 1
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


def test_other_widths_are_left() -> None:
    given = wide_layers(5, 1000, "g = Gelu(h)")
    assert swept(given, load_library().sweeps["rows apart in the cache"], load_rules())[1] is None


@pytest.mark.parametrize("rows", [96, 97])
def test_a_large_product_with_weights_takes_seven_of_quarters(rows: int) -> None:
    rng = np.random.default_rng(0)
    w, b = rng.standard_normal((1040, 768)) / 32, rng.standard_normal(768)
    weights = {"w": w.astype(np.float32), "b": b.astype(np.float32)}
    given = parse(f"float[1,{rows},1040] x", "p = MatMul(x, w); y = Add(p, b)", weights=weights, opset=20)
    model, made = swept(given, load_library().sweeps["products in fewer multiplications"], load_rules())
    assert made is not None
    ops = model.graph.operator_counts()
    assert (ops["Gemm"], ops["Add"] + ops["Sub"]) == (7, 6), "sums of weights are known, five of products are taken in"
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL
