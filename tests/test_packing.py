"""With `exact`, no constant goes where a kernel packs it, and none is taken from there: every bit stays."""

from collections.abc import Mapping

import numpy as np
import pytest
from onnx import ModelProto

import graphopt
from graphopt.runtime.oracle import RunnableModel, onnxruntime_unoptimized
from graphopt.runtime.sample_inputs import Array
from tests.text import parse
from tests.tiers import sampled

RNG = np.random.default_rng(0)


def floats(*sizes: int) -> Array:
    return RNG.standard_normal(sizes).astype(np.float32)


def halves(*sizes: int) -> Array:
    return RNG.standard_normal(sizes).astype(np.float16)


FRONT: Mapping[str, tuple[str, dict[str, Array]]] = {
    "Transpose": ("w = Transpose<perm=[1,0]>(a)", {"a": floats(97, 64)}),
    "Identity": ("w = Identity(a)", {"a": floats(64, 97)}),
    "Reshape": ("w = Reshape(a, [64, 97])", {"a": floats(97, 64)}),
    "Flatten": ("w = Flatten(a)", {"a": floats(64, 97, 1)}),
    "Squeeze": ("w = Squeeze(a, [0])", {"a": floats(1, 64, 97)}),
    "Cast": ("w = Cast<to=1>(a)", {"a": halves(64, 97)}),
    "Concat": ("w = Concat<axis=1>(a, b)", {"a": floats(64, 50), "b": floats(64, 47)}),
    "Slice": ("w = Slice(a, [0], [97], [1])", {"a": floats(64, 100)}),
    "Gather": ("w = Gather<axis=0>(a, k)", {"a": floats(64, 97), "k": RNG.permutation(64)}),
    "Split": ("w, v = Split<axis=1>(a, s)", {"a": floats(64, 100), "s": np.array([97, 3])}),
    "Where": ("w = Where(c, a, b)", {"c": RNG.random((64, 97)) < 0.5, "a": floats(64, 97), "b": floats(64, 97)}),
    "If": (
        """c = Constant<value = bool {1}>() w = If(c) <then_branch = t () => (float[64,97] p) { p = Identity(a) },
        else_branch = e () => (float[64,97] q) { q = Neg(a) }>""",
        {"a": floats(64, 97)},
    ),
    "two of them": ("t = Transpose<perm=[1,0]>(a); w = Identity(t)", {"a": floats(97, 64)}),
    "two that cancel": ("t = Transpose<perm=[1,0]>(a); w = Transpose<perm=[1,0]>(t)", {"a": floats(64, 97)}),
}
KERNELS: Mapping[str, tuple[str, str, dict[str, Array]]] = {
    "MatMul": ("float[b,s,64] x", "y = MatMul(x, w)", {}),
    "Gemm": ("float[b,64] x", "y = Gemm(x, w)", {}),
    "Gemm with a bias": ("float[b,64] x", "y = Gemm(x, w, z)", {"z": floats(97)}),
    "FusedMatMul": ("float[b,s,64] x", "y = com.microsoft.FusedMatMul<alpha=0.5>(x, w)", {}),
    "an If around it": (
        "bool h, float[b,s,64] x",
        """y = If(h) <then_branch = f () => (float[b,s,97] m) { m = MatMul(x, w) },
            else_branch = g () => (float[b,s,97] n) { m = MatMul(x, w) n = Neg(m) }>""",
        {},
    ),
}


def built(inputs: str, body: str, weights: dict[str, Array]) -> ModelProto:
    made = parse(inputs, body, weights, outputs="y")
    made.opset_import.add(domain="com.microsoft", version=1)
    return made


def demand_same_bits(given: ModelProto, *sizes: Mapping[str, tuple[int, ...]]) -> graphopt.Result:
    """Optimize a model exactly, and run it as it is written."""
    result = graphopt.optimize(given, cost="none", exact=True, strict=True)
    with (
        onnxruntime_unoptimized(RunnableModel(given)) as before,
        onnxruntime_unoptimized(RunnableModel(result.model)) as after,
    ):
        for shapes in sizes:
            feeds = {name: floats(*shape) if name != "h" else np.array(True) for name, shape in shapes.items()}
            for one, other in zip(before.run(feeds), after.run(feeds), strict=True):
                np.testing.assert_array_equal(one, other)
    return result


@pytest.mark.parametrize("front", sampled(FRONT, 4))
@pytest.mark.parametrize("kernel", KERNELS)
def test_what_stands_between_a_constant_and_a_kernel_stays(front: str, kernel: str) -> None:
    (inputs, product, others), (body, weights) = KERNELS[kernel], FRONT[front]
    given = built(inputs, f"i = Identity(x); {body}; {product.replace('(x', '(i')}", weights | others)
    rows = [
        (b,) if "s" not in inputs.split("[")[1].split("]")[0] else (b, s) for b, s in ((1, 1), (1, 4), (3, 1), (3, 17))
    ]
    flag = {"h": ()} if "bool h" in inputs else {}
    result = demand_same_bits(given, *({"x": (*row, 64), **flag} for row in rows))
    assert all(rewrite.name != "fold_constants" for rewrite in result.report.rewrites) or front.startswith("two")
    assert len(result.model.graph.node) < len(given.graph.node)  # the Identity of what is fed is none of these
    free = graphopt.optimize(given, cost="none").model.graph.node
    assert len(free) < len(result.model.graph.node) or front == "Cast"


@pytest.mark.parametrize(
    ("inputs", "body", "weights", "shape"),
    [
        (
            "float[1,64,1,1] x",
            "w = Transpose<perm=[1,0,2,3]>(a); y = ConvTranspose(x, w)",
            {"a": floats(16, 64, 1, 1)},
            (1, 64, 1, 1),
        ),
        (
            "float[n,b,16] x",
            "w = Unsqueeze(a, [0]); r = Unsqueeze(c, [0]); y = LSTM<hidden_size=32>(x, w, r)",
            {"a": floats(128, 16), "c": floats(128, 32)},
            (5, 1, 16),
        ),
        (
            "float[n,b,16] x",
            "w = Unsqueeze(a, [0]); r = Unsqueeze(c, [0]); y = GRU<hidden_size=32>(x, w, r)",
            {"a": floats(96, 16), "c": floats(96, 32)},
            (1, 1, 16),
        ),
        (
            "float[b,s,32] x",
            "w = Transpose(a); y = com.microsoft.Attention<num_heads=4>(x, w, c)",
            {"a": floats(96, 32), "c": floats(96)},
            (1, 1, 32),
        ),
        (
            "float[b,64] x",
            "w = Transpose(a); y = Einsum<equation=\"bi,io->bo\">(x, w)",
            {"a": floats(97, 64)},
            (1, 64),
        ),
        (
            "float[b,3,8,8] x",
            "w = Transpose<perm=[1,0,2,3]>(a); y = Conv(x, w)",
            {"a": floats(3, 8, 3, 3)},
            (1, 3, 8, 8),
        ),
    ],
    ids=["ConvTranspose", "LSTM", "GRU", "Attention", "Einsum", "Conv"],
)  # fmt: skip
def test_other_kernels(inputs: str, body: str, weights: dict[str, Array], shape: tuple[int, ...]) -> None:
    given = built(inputs, body, weights)
    result = demand_same_bits(given, {"x": shape})
    before, after = ([node.op_type for node in made.graph.node] for made in (given, result.model))
    assert after == [op for op in before if op != "Constant"]


@pytest.mark.parametrize(
    ("inputs", "body", "weights"),
    [
        ("float[b,97] x", "w = Transpose(a); y = Add(x, w)", {"a": floats(97, 1)}),
        ("float[b,97] x", "w = Identity(a); y = Concat<axis=0>(x, w)", {"a": floats(3, 97)}),
        ("float[b,64] x", "t = Transpose(a); u = Neg(t); v = Transpose(u); y = MatMul(x, v)", {"a": floats(64, 97)}),
        ("int32[b,8] x", "w = Transpose(a); y = MatMul(x, w)", {"a": np.ones((9, 8), np.int32)}),
        ("uint8[b,8] x", "w = Transpose(a); y = MatMulInteger(x, w)", {"a": np.ones((9, 8), np.int8)}),
        ("float[b,8,8] x", "k = Identity(a); y = Resize(x, , k)", {"a": np.array([1, 2, 2], np.float32)}),
        ("int64[b,64] x", "s = Identity(a); r = Cast<to=1>(x); t = Reshape(r, s); y = MatMul(t, w)",
         {"a": np.array([-1, 32, 2]), "w": floats(2, 9)}),
    ],
    ids=["Add", "Concat", "all but the last", "integers", "MatMulInteger", "scales", "a shape"],
)  # fmt: skip
def test_what_no_kernel_packs_is_folded(inputs: str, body: str, weights: dict[str, Array]) -> None:
    given = built(inputs, body, weights)
    result = graphopt.optimize(given, cost="none", exact=True, strict=True)
    assert len(result.model.graph.node) < len(given.graph.node)


NORMALIZATIONS = {
    "BatchNormalization": ("float[b,64,5] x", "y = BatchNormalization(x, w, z, z, w)"),
    "LayerNormalization": ("float[b,5,64] x", "y = LayerNormalization(x, w, z)"),
    "RMSNormalization": ("float[b,5,64] x", "y = RMSNormalization(x, w)"),
    "InstanceNormalization": ("float[b,64,5] x", "y = InstanceNormalization(x, w, z)"),
    "GroupNormalization": ("float[b,64,5] x", "y = GroupNormalization<num_groups=4>(x, w, z)"),
    "SoftmaxCrossEntropyLoss": ("float[b,64] x, int64[b] k", "y = SoftmaxCrossEntropyLoss(x, k, w)"),
    "NegativeLogLikelihoodLoss": ("float[b,64] x, int64[b] k", "y = NegativeLogLikelihoodLoss(x, k, w)"),
    "PRelu": ("float[b,5,64] x", "y = PRelu(x, w)"),
}  # fmt: skip


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("kernel", NORMALIZATIONS)
def test_what_adds_up_no_products_with_weights_is_given_constants(kernel: str, rows: int) -> None:
    inputs, body = NORMALIZATIONS[kernel]
    weights = {"a": floats(1) ** 2, "s": np.array([64]), "z": floats(64) ** 2}
    given = parse(inputs, f"w = Expand(a, s); {body}", weights, outputs="y", opset=23)
    result = graphopt.optimize(given, cost="none", exact=True, strict=True)
    assert [node.op_type for node in result.model.graph.node] == [kernel]
    with (
        onnxruntime_unoptimized(RunnableModel(given)) as before,
        onnxruntime_unoptimized(RunnableModel(result.model)) as after,
    ):
        shape = (5, 64) if "5,64" in inputs else (64, 5) if "64,5" in inputs else (64,)
        feeds = {"x": floats(rows, *shape)} | ({"k": np.arange(rows)} if "k" in inputs else {})
        np.testing.assert_array_equal(before.run(feeds)[0], after.run(feeds)[0])


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize(
    ("sizes", "body", "weight"),
    [
        ((64,), "y = Gemm(x, w, z)", (64, 97)),
        ((64,), "y = Gemm<transB=1, beta=0.5>(x, w, z)", (97, 64)),
        ((64, 5, 5), "y = Conv<pads=[1,1,1,1]>(x, w, z)", (97, 64, 3, 3)),
        ((97, 7), "y = Conv<group=97>(x, w, z)", (97, 1, 3)),
        ((64, 5, 5), "y = ConvTranspose(x, w, z)", (64, 97, 3, 3)),
    ],
    ids=["Gemm", "Gemm of a transposed weight", "Conv", "Conv by channels", "ConvTranspose"],
)
def test_a_bias_is_no_weight(sizes: tuple[int, ...], body: str, weight: tuple[int, ...], rows: int) -> None:
    weights = {"a": floats(1), "s": np.array([97]), "w": floats(*weight)}
    given = parse(f"float[b,{','.join(map(str, sizes))}] x", f"z = Expand(a, s); {body}", weights, outputs="y")
    result = demand_same_bits(given, {"x": (rows, *sizes)})
    assert len(result.model.graph.node) == 1


def test_a_constant_that_is_not_folded_is_noted() -> None:
    given = built("float[b,64] x", "w = Transpose(a); y = MatMul(x, w)", {"a": floats(97, 64)})
    result = graphopt.optimize(given, cost="none", exact=True)
    reason = "ONNX Runtime's MatMul rounds differently when its weights are constants"
    assert result.report.notes == (f"pass fold_constants left something as it was: {reason}",)


def test_a_constant_that_a_kernel_packs_is_still_merged_and_moved_with_it() -> None:
    """Both branches know it as it was: it is constant in front of the same kernel."""
    body = """c = Constant<value = bool {1}>() y = If(c) <then_branch = t () => (float[b,97] p) { p = MatMul(x, a) },
        else_branch = e () => (float[b,97] q) { m = MatMul(x, d) q = Neg(m) }>"""
    weights = {"a": floats(64, 97), "d": floats(64, 97)}
    result = demand_same_bits(built("float[b,64] x", body, weights), {"x": (1, 64)}, {"x": (4, 64)})
    assert [node.op_type for node in result.model.graph.node] == ["MatMul"]
