"""Rules that were found in profiles of ONNX Runtime: what its kernels do slowly is said otherwise."""

from collections import Counter

import numpy as np
import onnx
import pytest

import graphopt
from graphopt.check.compare import compare_models
from graphopt.check.verdict import EqualityVerdict
from graphopt.io import onnx_io
from graphopt.ir.graph import Graph
from graphopt.language.rule_library import load_library, load_rules
from graphopt.operators.inference import infer_graph
from graphopt.rewrite.passes import PASSES
from graphopt.rewrite.simplify import Simplifier
from graphopt.rules.blocked_layout import FILL_BEFORE_CONV
from graphopt.runtime.session_setting import SessionSetting
from tests.test_sweep import swept
from tests.test_trades import drawn
from tests.text import parse

BLOCKS, UNDERFLOW = "images in blocks of channels", "masks that underflow"


def squeezed(sizes: str) -> onnx.ModelProto:
    """Squeeze and excitation: each channel of an image is multiplied by what is made of the means of all."""
    body = """a = Conv(x, w); m = ReduceMean<keepdims=1>(a, [2, 3]); r = Conv(m, u); e = Relu(r); f = Conv(e, v);
        s = Sigmoid(f); y = Mul(a, s)"""
    return parse(f"float[{sizes}] x", body, drawn(w=(16, 4, 3, 3), u=(8, 16, 1, 1), v=(16, 8, 1, 1)))


def test_squeeze_and_excitation_stays_in_blocks_of_channels() -> None:
    given = squeezed("2,4,7,6")
    model, made = swept(given, load_library().sweeps[BLOCKS])
    assert made is not None
    pools = {"AveragePool": 1, "GlobalAveragePool": 1}
    assert model.graph.operator_counts() == {"Conv": 3, "Relu": 1, "Sigmoid": 1, "Resize": 1, "Mul": 1} | pools
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


def test_the_mean_of_a_large_image_is_no_less_exact() -> None:
    """A pool over all of it adds one pixel after the other, and is six times as far off as ReduceMean."""
    body = "m = ReduceMean<keepdims=1>(x, [2, 3]); y = Mul(x, m)"
    model, made = swept(parse("float[1,16,112,112] x", body), load_library().sweeps[BLOCKS])
    assert made is not None
    image = np.abs(np.random.default_rng(0).standard_normal((1, 16, 112, 112))).astype(np.float32)
    (computed,) = SessionSetting(threads=1).open(model).run(None, {"x": image})
    exact = image * image.astype(np.float64).mean((2, 3), keepdims=True)
    assert np.abs(computed - exact).max() < 1e-6 * exact.max()


def test_images_of_open_sizes_are_left() -> None:
    """A Resize has no blocked kernel where its sizes are computed."""
    model, made = swept(squeezed("batch,4,height,width"), load_library().sweeps[BLOCKS])
    assert (made, model.graph.operator_counts()["ReduceMean"]) == (None, 1)


def test_weights_that_a_mask_makes_subnormal_are_lifted() -> None:
    """The shifted windows of Swin: as many masks as there are windows, and -100 where a window has two parts."""
    body = """s = Add(x, m); t = Reshape(s, [-1, 3, 5, 5]); p = Softmax<axis=-1>(t); y = MatMul(p, v)"""
    mask = np.where(np.random.default_rng(0).random((1, 4, 1, 5, 5)) > 0.5, -100, 0).astype(np.float32)
    given = parse("float[2,4,3,5,5] x, float[8,3,5,2] v", body, {"m": mask})
    model, made = swept(given, load_library().sweeps[UNDERFLOW])
    assert made is not None
    assert "Softmax" not in model.graph.operator_counts()
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


@pytest.mark.parametrize(
    ("batch", "shape", "bias"),
    [
        ("2", (2, 5, 3, 2, 4), "b"),
        ("2", (2, 5, 3, 2, -1), "b"),
        ("2", (2, 5, 3, 2, 4), ""),
        ("batch", (0, 5, 3, 2, 4), "b"),
        ("batch", (-1, 5, 3, 2, 4), ""),
    ],
)
def test_queries_keys_and_values_that_one_product_makes_are_made_apart(
    batch: str, shape: tuple[int, ...], bias: str
) -> None:
    """As timm writes attention: then each is moved once."""
    body = f"""p = MatMul(x, w); {"q = Add(p, b)" if bias else "q = Identity(p)"}; r = Reshape(q, shape);
        t = Transpose<perm=[2,0,3,1,4]>(r); a, b0, c = Split<axis=0>(t, [1, 1, 1]);
        d = Squeeze(a, [0]); e = Squeeze(b0, [0]); f = Squeeze(c, [0]); g = Transpose<perm=[0,1,3,2]>(e);
        s = MatMul(d, g); m = Softmax<axis=-1>(s); y = MatMul(m, f)"""
    given = parse(f"float[{batch},5,6] x", body, {**drawn(w=(6, 24), b=(24,)), "shape": np.array(shape)})
    model, made = swept(given, load_library().sweeps["queries, keys and values apart"], load_rules())
    assert made is not None
    assert made.rules == ("project_heads_apart" if bias else "project_heads_apart_without_bias",)
    ops = model.graph.operator_counts()
    assert (ops["MatMul"], ops["Reshape"], ops["Transpose"], ops["Softmax"]) == (5, 3, 3, 1)
    assert not {"Split", "Squeeze", "Unsqueeze"} & set(ops)
    assert (
        compare_models(given, model, bindings=[{"batch": 3}] if batch == "batch" else None).verdict
        is EqualityVerdict.EQUAL
    )


FILLED = "channels in whole blocks"


def weights_of(model: onnx_io.LoadedModel) -> list[tuple[int, ...]]:
    """The shapes of what convolutions multiply by, in their order."""
    graph = model.graph
    convs = [graph[vertex] for vertex in graph.topological_order() if graph[vertex].op == "Conv"]
    found = [graph.constant(node.inputs[1]) for node in convs]
    return [tensor.shape for tensor in found if tensor is not None]


@pytest.mark.parametrize("batch", ["2", "batch"])
@pytest.mark.parametrize(
    ("channels", "filled"), [(58, 64), (6, 16), (18, 32), (7, 16), (20, 20), (64, 64)], ids="{}".format
)
def test_channels_around_a_depthwise_convolution_fill_blocks(channels: int, filled: int, batch: str) -> None:
    """As in ShuffleNet, whose branches have 58 channels. Of a multiple of four ONNX Runtime makes blocks by itself."""
    body = f"""a = Conv(x, w, b); r = Relu(a); d = Conv<group={channels}, pads=[1,1,1,1], strides=[2,2]>(r, k, e);
        y = Conv(d, v, c)"""
    made = drawn(w=(channels, 4, 1, 1), b=(channels,), k=(channels, 1, 3, 3), e=(channels,), v=(5, channels, 1, 1))
    given = parse(f"float[{batch},4,7,6] x", body, made | drawn(c=(5,)))
    model, _ = swept(given, load_library().sweeps[FILLED], load_rules())
    assert weights_of(model) == [(filled, 4, 1, 1), (filled, 1, 3, 3), (5, filled, 1, 1)]
    assert (
        compare_models(given, model, bindings=[{"batch": 3}] if batch == "batch" else None).verdict
        is EqualityVerdict.EQUAL
    )


@pytest.mark.parametrize("after", ["Identity(a)", "Relu(a)", "Clip(a, -1.0, 2.0)", "HardSwish(a)", "Gelu(a)"])
@pytest.mark.parametrize(("channels", "filled"), [(30, 32), (21, 32), (14, 14), (32, 32)])
def test_channels_between_convolutions_fill_blocks(after: str, channels: int, filled: int) -> None:
    body = f"a = Conv<pads=[1,1,1,1]>(x, w, b); r = {after}; y = Conv<pads=[1,1,1,1]>(r, v)"
    made = drawn(w=(channels, 3, 3, 3), b=(channels,), v=(5, channels, 3, 3))
    given = parse("float[2,3,6,6] x", body, made, opset=20)
    model, _ = swept(given, load_library().sweeps[FILLED], load_rules())
    assert weights_of(model) == [(filled, 3, 3, 3), (5, filled, 3, 3)]
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


@pytest.mark.parametrize(
    ("groups", "channels", "filters", "left"),
    [
        (32, 4, 4, 8),
        (8, 8, 8, 4),
        (4, 8, 6, 4),
        (4, 24, 24, 4),
        (32, 1, 1, 32),
        (2, 4, 4, 2),
        (3, 8, 16, 3),
        (4, 16, 8, 4),
    ],
)
def test_groups_of_a_convolution_fill_blocks(groups: int, channels: int, filters: int, left: int) -> None:
    """As in ResNeXt; where groups can be merged to such of 16 channels, two or four at a time."""
    body = f"y = Conv<group={groups}, pads=[1,1,1,1], strides=[2,2]>(x, w, b)"
    made = drawn(w=(groups * filters, channels, 3, 3), b=(groups * filters,))
    given = parse(f"float[2,{groups * channels},5,6] x", body, made)
    model, _ = swept(given, load_library().sweeps[FILLED], load_rules())
    assert weights_of(model) == [(groups * filters, channels * groups // left, 3, 3)]
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


@pytest.mark.parametrize(("groups", "channels", "merged"), [(3, 8, 2), (7, 8, 4), (6, 4, 2), (5, 4, 2)])
@pytest.mark.parametrize(
    ("body", "ops"),
    [
        ("y = {grouped}(x, w, b)", {"Pad": 1, "Conv": 1, "Slice": 1}),
        ("a = Conv(x, v); y = {grouped}(a, w, b)", {"Conv": 2, "Slice": 1}),
        ("a = Conv(x, v); r = Relu(a); d = {grouped}(r, w, b); e = Relu(d); y = Conv(e, u)", {"Conv": 3, "Relu": 2}),
        ("a = Conv(x, v); s = Sigmoid(a); r = Mul(a, s); d = {grouped}(r, w, b); y = Conv(d, u)", {"Conv": 3}),
    ],
    ids=["alone", "behind a convolution", "between convolutions", "behind SiLU"],
)
def test_groups_are_padded_to_whole_blocks(
    body: str, ops: dict[str, int], groups: int, channels: int, merged: int
) -> None:
    """As in small RegNets: 24, 56 or 152 channels in groups of 8."""
    own = groups * channels
    weights = drawn(w=(own, channels, 3, 3), b=(own,), v=(own, own, 1, 1), u=(5, own, 1, 1))
    grouped = f"Conv<group={groups}, pads=[1,1,1,1], strides=[2,2]>"
    given = parse(f"float[2,{own},5,6] x", body.format(grouped=grouped), weights)
    model, _ = swept(given, load_library().sweeps[FILLED], load_rules())
    assert (16 * merged, 16, 3, 3) in weights_of(model)
    assert ops.items() <= model.graph.operator_counts().items()
    assert "Slice" in ops or "Slice" not in model.graph.operator_counts()
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


def test_a_convolution_of_one_group_gets_no_other() -> None:
    weights = drawn(w=(8, 3, 3, 3), v=(8, 8, 3, 3))
    given = parse("float[1,3,7,7] x", "c = Conv(x, w); d = Relu(c); y = Conv(d, v)", weights)
    model, _ = swept(given, load_library().sweeps[FILLED], load_rules())
    assert {(8, 8, 3, 3), (8, 3, 3, 3)} == set(weights_of(model))


BESIDE_IMAGES, OF_TOKENS = "products beside images as convolutions", "products of tokens as convolutions"


def test_a_block_of_convnext_stays_in_blocks_of_channels() -> None:
    """What its channels are multiplied by lies between two Transposes, and a scale and a sum are behind them."""
    body = """c = Conv<group=8, pads=[1,1,1,1]>(x, k); t = Transpose<perm=[0,2,3,1]>(c);
        n = LayerNormalization<axis=-1>(t, s, o); m = MatMul(n, w); a = Add(m, b); g = Gelu(a); p = MatMul(g, v);
        q = Add(p, d); u = Transpose<perm=[0,3,1,2]>(q); e = Mul(u, l); y = Add(e, x)"""
    weights = drawn(k=(8, 1, 3, 3), s=(8,), o=(8,), w=(8, 32), b=(32,), v=(32, 8), d=(8,), l=(1, 8, 1, 1))
    given = parse("float[2,8,5,4] x", body, weights, opset=20)
    model, made = swept(given, load_library().sweeps[BESIDE_IMAGES], load_rules())
    assert made is not None
    ops = {"Conv": 3, "Transpose": 2, "LayerNormalization": 1, "Gelu": 1, "Add": 1}
    assert model.graph.operator_counts() == ops, "the scale is in the weights"
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


@pytest.mark.parametrize(("batch", "first", "back"), [("2", 2, 20), ("1", 1, -1), ("batch", 0, 20), ("batch", -1, 20)])
def test_products_beside_an_image_of_tokens_are_convolutions(batch: str, first: int, back: int) -> None:
    """As SegFormer writes its blocks: in front of an image, and behind it."""
    body = f"""m = MatMul(x, w); a = Add(m, b); t = Transpose<perm=[0,2,1]>(a); i = Reshape(t, [{first}, 12, 5, 4]);
        c = Conv<group=12, pads=[1,1,1,1]>(i, k); r = Reshape(c, [{first}, 12, {back}]); u = Transpose<perm=[0,2,1]>(r);
        g = Gelu(u); p = MatMul(g, v); q = Add(p, d); y = Add(q, x)"""
    given = parse(
        f"float[{batch},20,3] x", body, drawn(w=(3, 12), b=(12,), k=(12, 1, 3, 3), v=(12, 3), d=(3,)), opset=20
    )
    model, made = swept(given, load_library().sweeps[BESIDE_IMAGES], load_rules())
    assert made is not None
    ops = model.graph.operator_counts()
    assert (ops["Conv"], ops["Transpose"], ops["Reshape"], "MatMul" in ops) == (3, 2, 2, False)
    assert (
        compare_models(given, model, bindings=[{"batch": 3}] if batch == "batch" else None).verdict
        is EqualityVerdict.EQUAL
    )


BESIDE = {
    "of pixels": "p = MatMul(x, w); y = Transpose<perm=[0,3,1,2]>(p)",
    "of tokens": "p = MatMul(x, w); t = Transpose<perm=[0,2,1]>(p); y = Reshape(t, [2, 12, 5, 4])",
    "behind an image": "r = Reshape(x, [2, 3, -1]); t = Transpose<perm=[0,2,1]>(r); y = MatMul(t, w)",
}


@pytest.mark.parametrize(
    ("product", "inputs", "changes"),
    [
        ("of pixels", "float[2,5,4,3] x", True),
        ("of pixels", "float[batch,5,4,3] x", True),
        ("of pixels", "float[2,H,4,3] x", False),
        ("of pixels", "float[2,5,W,3] x", False),
        ("of pixels", "double[2,5,4,3] x", False),
        ("of tokens", "float[2,20,3] x", True),
        ("of tokens", "float[2,tokens,3] x", False),
        ("of tokens", "double[2,20,3] x", False),
        ("behind an image", "float[2,3,5,4] x", True),
        ("behind an image", "float[2,3,5,W] x", False),
        ("behind an image", "double[2,3,5,4] x", False),
    ],
)
def test_products_beside_images_of_open_sizes_and_of_doubles_are_left(
    product: str, inputs: str, *, changes: bool
) -> None:
    """A convolution of no pixels is not defined, and for doubles there are no blocks."""
    w = drawn(w=(3, 12))["w"].astype(np.float64 if "double" in inputs else np.float32)
    given = parse(inputs, BESIDE[product], {"w": w})
    model, made = swept(given, load_library().sweeps[BESIDE_IMAGES], load_rules())
    assert (made is not None, "MatMul" in model.graph.operator_counts()) == (changes, not changes)
    bindings = [{"batch": 3}] if "batch" in inputs else None
    assert not changes or compare_models(given, model, bindings=bindings).verdict is EqualityVerdict.EQUAL


def test_what_is_read_twice_behind_an_image_is_not_transposed() -> None:
    """SiLU, written out; the Transposes of both factors become one, which meets that in front of the next image."""
    body = """c = Conv(x, k); r = Reshape(c, [2, 12, 20]); u = Transpose<perm=[0,2,1]>(r); s = Sigmoid(u);
        g = Mul(u, s); p = MatMul(g, v); t = Transpose<perm=[0,2,1]>(p); y = Reshape(t, [2, 3, 5, 4])"""
    given = parse("float[2,3,5,4] x", body, drawn(k=(12, 3, 1, 1), v=(12, 3)))
    model, made = swept(given, load_library().sweeps[BESIDE_IMAGES], load_rules())
    assert made is not None
    assert model.graph.operator_counts() == {"Conv": 2, "Sigmoid": 1, "Mul": 1, "Reshape": 3}
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


PRODUCTS = {
    "matmul_add": "{y}p = MatMul({x}, {w}); {y} = Add({y}p, {b});",
    "matmul": "{y} = MatMul({x}, {w});",
    "gemm": "{y} = Gemm({x}, {w}, {b});",
    "gemm_transposed": "{y} = Gemm<transB=1>({x}, {w}, {b});",
    "gemm_transposed without bias": "{y} = Gemm<transB=1>({x}, {w});",
}


@pytest.mark.parametrize(
    ("tokens", "written", "product", "name"),
    [
        ("2,5", "matmul_add", "matmul_add", "matrices"),
        ("2,5", "matmul", "matmul", "matrices"),
        ("batch,5", "matmul_add", "matmul_add", "matrices"),
        ("5", "matmul_add", "gemm", "matrix"),
        ("5", "matmul", "matmul", "matrix"),
        ("5", "gemm", "gemm", "matrix"),
        ("5", "gemm_transposed", "gemm_transposed", "matrix"),
        ("5", "gemm_transposed without bias", "gemm_transposed", "matrix"),
    ],
)
def test_the_two_products_of_a_transformers_block_are_convolutions(
    tokens: str, written: str, product: str, name: str
) -> None:
    """Simplified, a product of one matrix is a Gemm where it has a bias."""
    first, second = (
        PRODUCTS[written].format(**names)
        for names in ({"x": "n", "y": "m", "w": "w", "b": "b"}, {"x": "g", "y": "q", "w": "v", "b": "d"})
    )
    body = f"n = LayerNormalization<axis=-1>(x, s, o); {first} g = Gelu(m); {second} y = Mul(q, x)"
    weights = drawn(s=(6,), o=(6,), w=(6, 24), b=(24,), v=(24, 6), d=(6,))
    if "transposed" in written:
        weights |= {key: np.ascontiguousarray(weights[key].T) for key in "wv"}
    given = parse(f"float[{tokens},6] x", body, weights, opset=20)
    model, made = swept(given, load_library().sweeps[OF_TOKENS], load_rules())
    assert made is not None
    assert made.rules == (f"replace_{product}_of_{name}_with_conv", f"push_{name}_below_pointwise")
    ops = model.graph.operator_counts()
    assert (ops["Conv"], ops["Transpose"], "MatMul" in ops, "Gemm" in ops) == (2, 2, False, False)
    bindings = [{"batch": 3}] if "batch" in tokens else None
    assert compare_models(given, model, bindings=bindings).verdict is EqualityVerdict.EQUAL


@pytest.mark.parametrize(
    "activation",
    [
        "s = Sigmoid(m); g = Mul(m, s);",
        "h = Div(m, 1.4142135); e = Erf(h); k = Add(e, 1.0); t = Mul(m, k); g = Mul(t, 0.5);",
    ],
    ids=["SiLU", "Gelu"],
)
@pytest.mark.parametrize("tokens", ["2,5", "5"])
def test_what_is_read_twice_between_two_products_stays_in_blocks(tokens: str, activation: str) -> None:
    """Written out, as below opset 20."""
    body = f"n = LayerNormalization<axis=-1>(x, c, o); p = MatMul(n, w); m = Add(p, b); {activation} y = MatMul(g, v)"
    weights = drawn(c=(6,), o=(6,), w=(6, 24), b=(24,), v=(24, 6))
    given = parse(f"float[{tokens},6] x", body, weights)
    model, made = swept(given, load_library().sweeps[OF_TOKENS], load_rules())
    assert made is not None
    assert (model.graph.operator_counts()["Conv"], model.graph.operator_counts()["Transpose"]) == (2, 2)
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


def test_a_transpose_that_a_normalization_reads_too_stays_above_the_activation() -> None:
    """Below it there would be a second one."""
    body = """n = LayerNormalization<axis=-1>(x, c, o); p = MatMul(n, w); g = Tanh(p);
        z = LayerNormalization<axis=-1>(p, e, e); h = Mul(g, z); y = MatMul(h, v)"""
    weights = drawn(c=(6,), o=(6,), e=(24,), w=(6, 24), v=(24, 6))
    model, made = swept(parse("float[2,5,6] x", body, weights), load_library().sweeps[OF_TOKENS], load_rules())
    assert made is not None
    assert not any(rule.endswith("_below_pointwise") for rule in made.rules)
    assert model.graph.operator_counts()["Transpose"] == 4


@pytest.mark.parametrize("inputs", ["float[1,6] x", "float[2,1,6] x", "float[2,tokens,6] x", "double[2,5,6] x"])
def test_products_of_one_token_of_open_tokens_and_of_doubles_are_left(inputs: str) -> None:
    """Of no token there is no convolution, and of doubles none in blocks."""
    weights = drawn(w=(6, 24))["w"].astype(np.float64 if "double" in inputs else np.float32)
    model, made = swept(
        parse(inputs, "y = MatMul(x, w)", {"w": weights}), load_library().sweeps[OF_TOKENS], load_rules()
    )
    assert (made, model.graph.operator_counts()) == (None, {"MatMul": 1})


@pytest.mark.parametrize(
    ("some", "others", "changes"), [(6, 6, False), (6, 11, False), (6, 12, True), (6, 48, True), (6, 49, False)]
)
def test_products_of_tokens_are_convolutions_where_one_size_is_some_times_the_other(
    some: int, others: int, *, changes: bool
) -> None:
    for channels, columns in ((some, others), (others, some)):
        given = parse(f"float[2,5,{channels}] x", "y = MatMul(x, w)", drawn(w=(channels, columns)))
        model, made = swept(given, load_library().sweeps[OF_TOKENS], load_rules())
        assert (made is not None, "MatMul" in model.graph.operator_counts()) == (changes, not changes)


def simplified(graph: Graph) -> dict[str, int]:
    infer_graph(graph)
    Simplifier(load_rules(), PASSES, lambda *_: True).run(graph)
    return dict(graph.operator_counts())


GUARDED = "p = Softmax<axis=-1>(x); n = IsNaN(p); g = Where(n, 0.0, p); y = MatMul(g, v)"


@pytest.mark.parametrize(("columns", "shape"), [(2, (3, 2)), (5, (3, 5)), (8, (3, 5))])
def test_a_guard_goes_where_it_guards_fewer_elements(columns: int, shape: tuple[int, ...]) -> None:
    graph = onnx_io.load_model(
        parse(f"float[3,5] x, float[5,{columns}] v", GUARDED, outputs=f"float[3,{columns}] y")
    ).graph
    assert simplified(graph) == {"Softmax": 1, "IsNaN": 1, "Where": 1, "MatMul": 1}
    (guard,) = [node for _, node in graph.vertices_and_nodes() if node.op == "IsNaN"]
    assert [getattr(type_, "shape", None) for type_ in guard.types] == [shape]


def test_what_scales_a_layer_goes_into_its_weights_and_bias() -> None:
    """LayerScale (CaiT, DINOv2, EdgeNeXt)."""
    weights = drawn(w=(4, 4), b=(4,), c=(4,))
    given = parse("float[2,3,4] x", "a = MatMul(x, w); d = Add(a, b); s = Mul(c, d); y = Add(s, x)", weights)
    model = onnx_io.load_model(given)
    assert simplified(model.graph) == {"MatMul": 1, "Add": 2}
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


def test_heads_across_channels_are_split_by_transposing_one_matrix() -> None:
    """XCiT, EdgeNeXt."""
    given = parse("float[1,6,2,3,4] x", "t = Transpose<perm=[2,0,3,4,1]>(x); y = Neg(t)")
    (rule,) = [rule for rule in load_library().trades if rule.name == "transpose_split_heads_as_matrix"]
    model, made = swept(given, [rule])
    assert made is not None
    (transposed,) = [node for _, node in model.graph.vertices_and_nodes() if node.op == "Transpose"]
    assert transposed.attrs["perm"] == (1, 0)
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


def test_a_factor_and_a_shift_between_convolutions_stay_in_blocks_of_channels() -> None:
    """Also in images of open sizes: a batch normalization asks for none."""
    body = "a = Conv<pads=[1,1,1,1]>(x, w); m = Mul(a, c); s = Add(m, d); t = Tanh(s); y = Conv<pads=[1,1,1,1]>(t, v)"
    numbers = {"c": np.array(1.5, np.float32), "d": np.linspace(-1, 1, 16, dtype=np.float32).reshape(16, 1, 1)}
    given = parse("float[batch,4,height,width] x", body, drawn(w=(16, 4, 3, 3), v=(4, 16, 3, 3)) | numbers)
    model, made = swept(given, load_library().sweeps[BLOCKS])
    assert made is not None
    assert model.graph.operator_counts() == {"Conv": 2, "BatchNormalization": 1, "Tanh": 1}
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


def test_channels_before_a_convolution_are_filled_up_to_whole_blocks() -> None:
    """As behind the spectrum of a signal, whose 129 frequencies no convolution has made."""
    body = "q = Sqrt(x); y = Conv<pads=[0,1,0,1]>(q, w, b)"
    given = parse("float[2,129,1,4] x", body, drawn(w=(16, 129, 1, 3), b=(16,)))
    model, made = swept(given, [FILL_BEFORE_CONV])
    assert made is not None
    assert model.graph.operator_counts() == {"Sqrt": 1, "Pad": 1, "Conv": 1}
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


@pytest.mark.parametrize("channels", [128, 132, 9])
def test_channels_that_fill_blocks_or_are_few_are_left(channels: int) -> None:
    given = parse(f"float[2,{channels},1,4] x", "q = Sqrt(x); y = Conv(q, w)", drawn(w=(16, channels, 1, 3)))
    assert swept(given, [FILL_BEFORE_CONV])[1] is None


@pytest.mark.parametrize(("opset", "written"), [(11, {"HardSigmoid": 1, "Mul": 1}), (14, {"HardSwish": 1})])
def test_a_hard_swish_that_is_written_out_stays_in_blocks_of_channels(opset: int, written: dict[str, int]) -> None:
    numbers = {name: np.array(value, np.float32) for name, value in (("three", 3), ("zero", 0), ("six", 6))}
    body = "c = Conv(x, w); s = Add(c, three); r = Clip(s, zero, six); m = Mul(c, r); y = Div(m, six)"
    given = parse("float[1,4,7,6] x", body, drawn(w=(16, 4, 3, 3)) | numbers, opset=opset)
    found = graphopt.optimize(given, cost="none").model
    assert Counter(node.op_type for node in found.graph.node) == {"Conv": 1, **written}


ACROSS, APART, COSINES = (
    "products across tokens and heads as convolutions",
    "parts of products apart",
    "temperatures of cosines",
)


@pytest.mark.parametrize("batch", ["2", "batch"])
@pytest.mark.parametrize("bias", ["b", ""])
def test_what_mixes_tokens_mixes_them_where_they_lie(batch: str, bias: str) -> None:
    """An MLP-Mixer transposes tokens and channels, multiplies twice, and transposes them back."""
    body = f"""t = Transpose<perm=[0,2,1]>(x); p = MatMul(t, w); {"q = Add(p, b)" if bias else "q = Identity(p)"};
        g = Gelu(q); m = MatMul(g, v); n = Add(m, c); u = Transpose<perm=[0,2,1]>(n); y = Add(u, x)"""
    given = parse(f"float[{batch},5,6] x", body, drawn(w=(5, 7), b=(7,), v=(7, 5), c=(5,)), opset=20)
    model, made = swept(given, load_library().sweeps[ACROSS], load_rules())
    assert made is not None
    assert model.graph.operator_counts() == {"Conv": 2, "Gelu": 1, "Add": 1}
    assert (
        compare_models(given, model, bindings=[{"batch": 3}] if batch == "batch" else None).verdict
        is EqualityVerdict.EQUAL
    )


@pytest.mark.parametrize(("heads", "is_small"), [(4, True), (15, True), (16, False)])
def test_heads_that_talk_are_mixed_where_they_lie(heads: int, is_small: bool) -> None:
    """CaiT mixes the heads of scores, and after the softmax again; of 16 there is a block of channels."""
    body = """t = Transpose<perm=[0,2,3,1]>(x); p = MatMul(t, w); q = Add(p, b); s = Softmax<axis=2>(q);
        m = MatMul(s, v); n = Add(m, c); y = Transpose<perm=[0,3,1,2]>(n)"""
    made = drawn(w=(heads, heads), b=(heads,), v=(heads, heads), c=(heads,))
    given = parse(f"float[1,{heads},3,5] x", body, made)
    model, sweep = swept(given, load_library().sweeps[ACROSS], load_rules())
    assert (sweep is not None) is is_small
    if is_small:
        assert model.graph.operator_counts() == {"Conv": 2, "Softmax": 1, "Reshape": 4}
        assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


@pytest.mark.parametrize("count", [2, 3, 4])
def test_parts_of_a_product_are_made_apart(count: int) -> None:
    """As in gated layers, and in blocks that make queries, keys, values and a layer's features by one product."""
    names = [f"p{i}" for i in range(count)]
    body = f"""m = MatMul(x, w); a = Add(m, b); r = Tanh(a); {", ".join(names)} = Split<axis=-1>(r, sizes);
        y = Concat<axis=1>({", ".join(names)})"""
    weights = {**drawn(w=(6, 4 * count), b=(4 * count,)), "sizes": np.array([4] * count)}
    given = parse("float[2,5,6] x", body, weights)
    model, made = swept(given, load_library().sweeps[APART], load_rules())
    if count == 4:  # of which no rule takes an operator in between
        assert made is None
        return
    assert made is not None
    assert model.graph.operator_counts() == {"MatMul": count, "Add": count, "Tanh": count, "Concat": 1}
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


def test_four_parts_of_a_product_are_made_apart() -> None:
    body = "m = MatMul(x, w); a = Add(m, b); c, d, e, f = Split<axis=-1>(a, sizes); y = Concat<axis=1>(f, d, e, c)"
    given = parse("float[2,5,6] x", body, {**drawn(w=(6, 16), b=(16,)), "sizes": np.array([4] * 4)})
    model, made = swept(given, load_library().sweeps[APART], load_rules())
    assert made is not None
    assert model.graph.operator_counts() == {"MatMul": 4, "Add": 4, "Concat": 1}
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


def test_temperatures_are_factors_of_the_lengths() -> None:
    """Of queries, divided by their lengths, as Swin V2 has them."""
    body = "q = Div(x, l); s = MatMul(q, k); t = Mul(s, c); y = Softmax<axis=-1>(t)"
    inputs = "float[2,3,5,4] x, float[2,3,5,1] l, float[2,3,4,5] k"
    given = parse(inputs, body, drawn(c=(3, 1, 1)))
    model, made = swept(given, load_library().sweeps[COSINES], load_rules())
    assert made is not None
    graph = model.graph
    (product,) = graph.vertices_with_op("MatMul")
    assert [graph[reader].op for reader in graph.readers(product)] == ["Softmax"]
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


@pytest.mark.parametrize("index", [0, -1])
def test_the_only_element_along_an_axis_is_taken_by_a_view(index: int) -> None:
    given = parse("float[2,1,3] x", "g = Gather<axis=1>(x, i); y = Neg(g)", {"i": np.array(index)})
    model, _ = swept(given, (), load_rules())
    assert model.graph.operator_counts() == {"Squeeze": 1, "Neg": 1}
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


SPECTRAL = "Fourier transforms as products"


def transformed(shape: str, axes: str, pick: str = "") -> onnx.ModelProto:
    """Fourier transforms of real numbers along some axes, and of the result perhaps one part."""
    steps = [f"d{i} = DFT({'c' if i == 0 else f'd{i - 1}'}, , {axis})" for i, axis in enumerate(axes)]
    last = f"d{len(axes) - 1}"
    body = f"""u = Unsqueeze(x, [-1]); c = Concat<axis=-1>(u, zeros); {"; ".join(steps)};
        y = {f"Gather<axis=-1>({last}, {pick})" if pick else f"Neg({last})"}"""
    zeros = np.zeros((*map(int, shape.split(",")), 1), np.float32)
    numbers = {name: np.array(axis) for name, axis in {"a": 1, "b": 2, "re": 0, "im": -1}.items()}
    return parse(f"float[{shape}] x", body, {"zeros": zeros, **numbers}, opset=20)


@pytest.mark.parametrize("pick", ["", "re", "im"])
@pytest.mark.parametrize("axes", ["b", "a", "ba"])
@pytest.mark.parametrize("shape", ["2,6,5", "1,4,8"])
def test_fourier_transforms_are_products(shape: str, axes: str, pick: str) -> None:
    """As FNet mixes tokens and features, of which it takes the real part."""
    given = transformed(shape, axes, pick)
    model, made = swept(given, load_library().sweeps[SPECTRAL], load_rules())
    assert made is not None
    ops = model.graph.operator_counts()
    assert ops["MatMul"] == len(axes)
    assert not {"DFT", "Concat", "Gather"} & set(ops)
    assert ops.get("Transpose", 0) == 2 * axes.count("a")
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


@pytest.mark.parametrize("attributes", ["onesided=1", "inverse=1", "inverse=0"])
def test_fourier_transforms_of_one_side_and_back_are_products(attributes: str) -> None:
    parts = 1 if attributes.startswith("onesided") else 2
    given = parse(
        f"float[3,7,{parts}] x", f"d = DFT<{attributes}>(x, , axis); y = Neg(d)", {"axis": np.array(-2)}, opset=20
    )
    model, made = swept(given, load_library().sweeps[SPECTRAL], load_rules())
    assert made is not None
    assert "DFT" not in model.graph.operator_counts()
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


def test_a_long_fourier_transform_stays() -> None:
    given = parse("float[1,1025,2] x", "d = DFT(x, , axis); y = Neg(d)", {"axis": np.array(1)}, opset=20)
    _, made = swept(given, load_library().sweeps[SPECTRAL], load_rules())
    assert made is None
