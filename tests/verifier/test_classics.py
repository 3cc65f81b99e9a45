"""The rewrites that a verifier of tensor programs is measured by: proved for all sizes, strides, pads and kernels."""

from __future__ import annotations

import pytest

from graphopt.proof import Verdict
from graphopt.rule import Rule, attributes, const, fn, integers, op, real, tensor
from graphopt.term import App, Operand
from graphopt.verifier.prove import prove

x, y = tensor("x", "N C *s"), tensor("y", "N D *s")
w, v = const("w", "M C *k"), const("v", "M C *k")
b = const("b", "M")
rest = attributes("rest")
strides, pads, dilations = integers("strides"), integers("pads"), integers("dilations")
start, stop = integers("start"), integers("stop")
eps, around = real("eps"), integers("around")
scale, shift, mean, var = (const(n, "M") for n in ("scale", "shift", "mean", "var"))
factor = scale / op.Sqrt(var + eps)

# Space and kernels of one and two dimensions, where a rule has to name them.
line, plane = tensor("x", "N C L"), tensor("x", "N C H W")
wl, wp = const("w", "M C K"), const("w", "M C K J")
grouped = {"strides": strides, "pads": pads, "dilations": dilations}


def shaped(value: Operand, axes: str) -> App:
    return op.Reshape(value, fn.sizes(axes))


def flat(value: Operand, *sizes: Operand) -> App:
    return op.Reshape(value, fn.join(*sizes), allowzero=1)


N, C, M, L, K = (fn.size(axis) for axis in "NCMLK")
twice = fn.mul(L, 2)
doubled = (1, 1, 1, 2)


m, n = tensor("m", "*b M K"), tensor("n", "*b K N")
vec = tensor("x", "*b M K")
centred = vec - op.ReduceMean(vec, (-1,))
q, k, val = tensor("q", "*b L E"), tensor("k", "*b S E"), tensor("v", "*b S F")
weights = op.Exp(q @ k)

CLASSICS = (
    Rule(
        "conv_batch_norm",
        op.BatchNormalization(op.Conv(x, w, b, rest, group=1), scale, shift, mean, var, epsilon=eps),
        op.Conv(x, w * shaped(factor, "M 1 1*k"), (b - mean) * factor + shift, rest, group=1),
        when=(fn.eq(fn.dtype(scale), fn.dtype(x)), fn.eq(fn.dtype(mean), fn.dtype(x))),
    ),
    Rule(
        "convs_sharing_an_input",
        (op.Conv(x, w, b, rest, group=1), op.Conv(x, const("v", "L C *k"), const("d", "L"), rest, group=1)),
        op.Split.split(
            2,
            op.Conv(
                x,
                op.Concat(w, const("v", "L C *k"), axis=0),
                op.Concat(b, const("d", "L"), axis=0),
                rest,
                group=1,
            ),
            fn.join(fn.size("M"), fn.size("L")),
            axis=1,
        ),
    ),
    Rule("sum_of_convs", op.Conv(x, w, rest, group=1) + op.Conv(x, v, rest, group=1), op.Conv(x, w + v, rest, group=1)),
    Rule(
        "enlarge_kernel",
        op.Conv(line, wl, strides=strides, pads=pads),
        op.Conv(line, op.Pad(wl, (0, 0, 1, 0, 0, 1)), strides=strides, pads=fn.add(pads, 1)),
    ),
    Rule(
        "enlarge_plane_kernel",
        op.Conv(plane, wp, strides=strides, pads=pads),
        op.Conv(plane, op.Pad(wp, (0, 0, 1, 2, 0, 0, 1, 2)), strides=strides, pads=fn.add(pads, (1, 2, 1, 2))),
    ),
    Rule(
        "identity_is_pointwise_conv",
        op.Identity(line),
        op.Conv(line, op.Unsqueeze(op.EyeLike(op.Expand(0.0, fn.sizes("C C"))), (2,))),
        when=(fn.le(1, fn.size("C")), fn.le(1, fn.size("L")), fn.is_float(fn.dtype(line))),
    ),
    Rule(
        "identity_is_wide_conv",
        op.Identity(line),
        op.Conv(
            line,
            op.Pad(op.Unsqueeze(op.EyeLike(op.Expand(0.0, fn.sizes("C C"))), (2,)), (0, 0, 2, 0, 0, 2)),
            pads=(2, 2),
        ),
        when=(fn.le(1, fn.size("C")), fn.le(1, fn.size("L")), fn.is_float(fn.dtype(line))),
    ),
    Rule(
        "sum_of_convs_of_two_inputs",
        op.Conv(x, w, **grouped) + op.Conv(y, const("v", "M D *k"), **grouped),
        op.Conv(op.Concat(x, y, axis=1), op.Concat(w, const("v", "M D *k"), axis=1), **grouped),
    ),
    Rule(
        "grouped_conv_is_block_diagonal",
        op.Conv(op.Concat(x, y, axis=1), op.Concat(w, const("v", "M C *k"), axis=0), group=2, **grouped),
        op.Concat(op.Conv(x, w, **grouped), op.Conv(y, const("v", "M C *k"), **grouped), axis=1),
        when=fn.eq(fn.size("C"), fn.size("D")),
    ),
    Rule(
        "pad_into_conv",
        op.Conv(op.Pad(line, around), wl, strides=strides, pads=pads),
        op.Conv(line, wl, strides=strides, pads=fn.add(pads, fn.join(fn.item(around, 2), fn.item(around, 5)))),
        when=(*(fn.eq(fn.item(around, i), 0) for i in (0, 1, 3, 4)), fn.le(0, around)),
    ),
    Rule(
        "average_pool_is_depthwise_conv",
        op.AveragePool(line, kernel_shape=(3,), strides=strides, pads=pads, count_include_pad=1),
        op.Conv(line, op.Expand(1.0 / op.Identity(3.0), fn.join(fn.size("C"), 1, 3)), strides=strides, pads=pads,
                group=fn.size("C")),
        when=fn.le(1, fn.size("C")),
    ),
    Rule(
        "pointwise_conv_is_matmul",
        op.Conv(tensor("x", "N C L"), const("w", "M C 1")),
        shaped(const("w", "M C 1"), "M C") @ tensor("x", "N C L"),
    ),
    Rule(
        "pointwise_conv_after_conv",
        op.Conv(op.Conv(line, wl, **grouped), const("v", "P M 1")),
        op.Conv(
            line,
            flat(shaped(const("v", "P M 1"), "P M") @ flat(wl, M, fn.mul(C, K)), fn.size("P"), C, K),
            **grouped,
        ),
    ),
    Rule("matmul_associates", (m @ n) @ tensor("o", "*b N P"), m @ (n @ tensor("o", "*b N P"))),
    Rule(
        "sum_of_products",
        m @ n + tensor("o", "*b M L") @ tensor("p", "*b L N"),
        op.Concat(m, tensor("o", "*b M L"), axis=-1) @ op.Concat(n, tensor("p", "*b L N"), axis=-2),
    ),
    Rule(
        "transpose_of_product",
        op.Transpose(tensor("m", "M K") @ tensor("n", "K N"), perm=(1, 0)),
        op.Transpose(tensor("n", "K N"), perm=(1, 0)) @ op.Transpose(tensor("m", "M K"), perm=(1, 0)),
    ),
    Rule(
        "line_conv_is_plane_conv",
        op.Conv(line, wl, strides=strides, pads=pads),
        op.Squeeze(
            op.Conv(
                op.Unsqueeze(line, (2,)),
                op.Unsqueeze(wl, (2,)),
                strides=fn.join(1, strides),
                pads=fn.join(0, fn.item(pads, 0), 0, fn.item(pads, 1)),
            ),
            (2,),
        ),
    ),
    Rule(
        "softmax_shift",
        op.Softmax(tensor("x", "*b K") + tensor("c", "*b 1")),
        op.Softmax(tensor("x", "*b K")),
    ),
    Rule(
        "layer_norm",
        centred / op.Sqrt(op.ReduceMean(centred * centred, (-1,)) + eps) * const("g", "K") + const("h", "K"),
        op.LayerNormalization(vec, const("g", "K"), const("h", "K"), axis=-1, epsilon=eps),
    ),
    Rule(
        "attention",
        (weights / op.ReduceSum(weights, (-1,))) @ val,
        op.Softmax(q @ k, axis=-1) @ val,
    ),
    Rule(
        "slice_of_product",
        op.Slice(tensor("m", "M K") @ tensor("n", "K N"), start, stop, (0,)),
        op.Slice(tensor("m", "M K"), start, stop, (0,)) @ tensor("n", "K N"),
    ),
    Rule(
        "slice_of_elementwise",
        op.Slice(op.Tanh(tensor("x", "A B")), start, stop, integers("along"), integers("step")),
        op.Tanh(op.Slice(tensor("x", "A B"), start, stop, integers("along"), integers("step"))),
    ),
    Rule(
        "slice_of_pointwise_conv",
        op.Slice(op.Conv(line, const("w", "M C 1")), start, stop, (2,), integers("step")),
        op.Conv(
            op.Slice(line, start, stop, (2,), integers("step")),
            const("w", "M C 1"),
        ),
        when=(fn.le(0, start), fn.lt(start, stop), fn.le(stop, fn.size("L")), fn.le(1, integers("step"))),
    ),
    Rule(
        "reshapes",
        op.Reshape(op.Reshape(tensor("x", "A B C"), fn.join(fn.size("A"), -1)), fn.sizes("A C B"), allowzero=1),
        op.Reshape(tensor("x", "A B C"), fn.sizes("A C B"), allowzero=1),
        when=fn.le(1, fn.size("A")),
    ),
    Rule(
        "transpose_of_split_heads",
        op.Transpose(op.Transpose(tensor("x", "B L H E"), perm=(0, 2, 1, 3)), perm=(0, 2, 1, 3)),
        op.Identity(tensor("x", "B L H E")),
    ),
    Rule(
        "upsample_commutes_with_pointwise_conv",
        op.Conv(flat(op.Expand(op.Unsqueeze(line, (3,)), doubled), N, C, twice), const("w", "M C 1")),
        flat(op.Expand(op.Unsqueeze(op.Conv(line, const("w", "M C 1")), (3,)), doubled), N, M, twice),
    ),
    Rule(
        "space_to_depth_conv",
        op.Conv(op.SpaceToDepth(plane, blocksize=2), const("w", "M D 1 1")),
        op.Conv(
            plane,
            op.Transpose(flat(const("w", "M D 1 1"), M, 2, 2, C), perm=(0, 3, 1, 2)),
            strides=(2, 2),
        ),
        when=(fn.le(1, fn.size("H")), fn.le(1, fn.size("W"))),
    ),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("rule", CLASSICS, ids=lambda rule: rule.name)
def test_it_is_proved(rule: Rule) -> None:
    proof = prove(rule, timeout=10)
    assert proof.verdict is Verdict.PROVED, proof
