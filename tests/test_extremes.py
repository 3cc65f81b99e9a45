"""Extreme integers: what wraps around is seen by the check, and no input is given what its readers do not bear."""

from __future__ import annotations

import pytest

from graphopt.check.compare import compare_models
from graphopt.check.verdict import EqualityVerdict
from graphopt.runtime import model_sketch, sample_inputs
from tests.test_compare import model

WRAPPED = {
    "a product of floats in integers": (
        (
            "g (uint8[2,40000] a, uint8[40000,2] b) => (float[2,2] z) { s = Constant<value = float {0.001}>()"
            " c = DequantizeLinear(a, s) d = DequantizeLinear(b, s) z = MatMul(c, d) }"
        ),
        (
            "g (uint8[2,40000] a, uint8[40000,2] b) => (float[2,2] z) { s = Constant<value = float {0.000001}>()"
            " c = MatMulInteger(a, b) z = DequantizeLinear(c, s) }"
        ),
    ),
    "a product of doubles in integers": (
        (
            "g (uint8[2,40000] a, uint8[40000,2] b) => (double[2,2] z)"
            " { c = Cast<to = 11>(a) d = Cast<to = 11>(b) z = MatMul(c, d) }"
        ),
        "g (uint8[2,40000] a, uint8[40000,2] b) => (double[2,2] z) { c = MatMulInteger(a, b) z = Cast<to = 11>(c) }",
    ),
    "a convolution of doubles in integers": (
        (
            "g (int8[1,1400,10,10] x, int8[1,1400,10,10] w) => (double[1,1,1,1] z)"
            " { c = Cast<to = 11>(x) d = Cast<to = 11>(w) z = Conv(c, d) }"
        ),
        (
            "g (int8[1,1400,10,10] x, int8[1,1400,10,10] w) => (double[1,1,1,1] z)"
            " { c = ConvInteger(x, w) z = Cast<to = 11>(c) }"
        ),
    ),
    "a sum of int32 in int64": (
        "g (int32[4] x, int32[4] y) => (int64[4] z) { c = Cast<to = 7>(x) d = Cast<to = 7>(y) z = Add(c, d) }",
        "g (int32[4] x, int32[4] y) => (int64[4] z) { s = Add(x, y) z = Cast<to = 7>(s) }",
    ),
    "a sum along an axis": (
        "g (int32[4] x) => (int64 z) { c = Cast<to = 7>(x) z = ReduceSum<keepdims = 0>(c) }",
        "g (int32[4] x) => (int64 z) { s = ReduceSum<keepdims = 0>(x) z = Cast<to = 7>(s) }",
    ),
    "a square of int32 in doubles": (
        "g (int32[4] x) => (double[4] z) { c = Cast<to = 11>(x) z = Mul(c, c) }",
        "g (int32[4] x) => (double[4] z) { s = Mul(x, x) z = Cast<to = 11>(s) }",
    ),
    "a cast to a narrower type and back": (
        "g (int32[4] x) => (int32[4] z) { z = Identity(x) }",
        "g (int32[4] x) => (int32[4] z) { c = Cast<to = 5>(x) z = Cast<to = 6>(c) }",
    ),
    "a magnitude that there is not": (
        "g (int8[4] x) => (int32[4] z) { c = Cast<to = 6>(x) z = Abs(c) }",
        "g (int8[4] x) => (int32[4] z) { c = Abs(x) z = Cast<to = 6>(c) }",
    ),
    "a comparison by a difference": (
        "g (int32[4] x, int32[4] y) => (bool[4] z) { z = Less(x, y) }",
        "g (int32[4] x, int32[4] y) => (bool[4] z) { o = Constant<value = int32 {0}>() d = Sub(x, y) z = Less(d, o) }",
    ),
    "a product in 16 bits": (
        "g (int16[4] x, int16[4] y) => (int32[4] z) { c = Cast<to = 6>(x) d = Cast<to = 6>(y) z = Mul(c, d) }",
        "g (int16[4] x, int16[4] y) => (int32[4] z) { s = Mul(x, y) z = Cast<to = 6>(s) }",
    ),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_the_check_sees_what_wraps_around(name: str) -> None:
    before, after = WRAPPED[name]
    assert compare_models(model(before), model(before)).verdict is EqualityVerdict.EQUAL
    found = compare_models(model(before), model(after))
    assert found.verdict is EqualityVerdict.DIFFERENT, found


BEARING = {
    "any integers of 8 bits": ("g (uint8[4] x) => (float[4] z) { z = Cast<to = 1>(x) }", {"x": (0, 255)}),
    "of 32 bits where none become floats": (
        "g (int32[4] x) => (int32[4] z) { z = Add(x, x) }",
        {"x": (-(2**31), 2**31 - 1)},
    ),
    "of 64 bits where they become floats": (
        "g (int64[4] x) => (float[4] z) { c = Cast<to = 1>(x) z = Exp(c) }",
        {"x": (-65536, 65535)},
    ),
    "no indices": ("g (float[9,2] t, int64[4] i) => (float[4,2] z) { z = Gather(t, i) }", {}),
    "no sums of indices": ("g (float[9,2] t, int64[4] i) => (float[4,2] z) { j = Add(i, i) z = Gather(t, j) }", {}),
    "no indices by way of floats": (
        (
            "g (float[9,2] t, int64[4] i) => (float[4,2] z)"
            " { f = Cast<to = 1>(i) h = Floor(f) j = Cast<to = 7>(h) z = Gather(t, j) }"
        ),
        {},
    ),
    "no sizes": ("g (float[1] x, int64[1] n) => (float[P] z) { m = Mul(n, n) z = Expand(x, m) }", {}),
    "no lengths of ranges": (
        (
            "g (int64 n) => (int64[P] z)"
            " { o = Constant<value = int64 {0}>() i = Constant<value = int64 {1}>() m = Mul(n, n) z = Range(o, m, i) }"
        ),
        {},
    ),
    "no masks": ("g (int64[2,4] attention_mask) => (float[2,4] z) { z = Cast<to = 1>(attention_mask) }", {}),
    "no divisors": ("g (uint8[4] x, uint8[4] y) => (uint8[4] z) { z = Div(x, y) }", {}),
    "no divisors of integers that were cast": (
        "g (uint8[4] x, int32[4] y) => (int32[4] z) { c = Cast<to = 6>(x) z = Mod(y, c) }",
        {},
    ),
    "what is divided as floats": (
        "g (uint8[4] x) => (float[4] z) { c = Cast<to = 1>(x) d = Constant<value = float {255}>() z = Div(c, d) }",
        {"x": (0, 255)},
    ),
    "no labels": (
        "g (float[3,5] s, int64[3] labels) => (float z) { z = SoftmaxCrossEntropyLoss(s, labels) }",
        {},
    ),
    "nothing that an operator of another domain reads": (
        "g (float[3] s, int64[3] lengths) => (float[3] z) { z = com.microsoft.Unknown(s, lengths) }",
        {},
    ),
    "what is ordered": ("g (int32[4] x) => (int64[1] z) { z = ArgMax(x) }", {"x": (-(2**31), 2**31 - 1)}),
    "what is looked up": (
        "g (int16[4] x, int64[2] i) => (int16[2] z) { z = Gather(x, i) }",
        {"x": (-(2**15), 2**15 - 1)},
    ),
}


@pytest.mark.parametrize("what", BEARING)
def test_extremes_are_given_to_what_bears_them(what: str) -> None:
    text, found = BEARING[what]
    assert sample_inputs.input_integer_limits(model_sketch.sketch_model(model(text))) == found


def test_extremes_are_the_least_the_greatest_and_both_in_turns() -> None:
    sketch = model_sketch.sketch_model(model("g (int8[2,3] x, uint8[3] y) => (int32[2] z) { z = MatMulInteger(x, y) }"))
    usual = sample_inputs.make_feeds(sketch, {}, seed=0, style=sample_inputs.NORMAL)
    made = sample_inputs.extreme_feeds(sketch, usual, ())
    assert {kind: (feeds["x"].tolist(), feeds["y"].tolist()) for kind, feeds in made.items()} == {
        sample_inputs.LEAST: ([[-128] * 3] * 2, [0] * 3),
        sample_inputs.GREATEST: ([[127] * 3] * 2, [255] * 3),
        sample_inputs.ALTERNATING: ([[-128, 127, -128], [127, -128, 127]], [255, 0, 255]),
    }
    assert sample_inputs.extreme_feeds(sketch, usual, ("x", "y")) == {}, "what is given stays as it is"


def test_noise_at_extremes_is_no_difference() -> None:
    """All elements are the same: what is left of them less their mean is rounding, and is divided by a small number."""
    before = """g (uint8[2,3,50] x) => (float[2,3,50] z)
        { c = Cast<to = 1>(x) s = Constant<value = float {0.1}>() m = Mul(c, s) a = Constant<value = int64[1] {2}>()
        u = ReduceMean(m, a) d = Sub(m, u) q = Mul(d, d) v = ReduceMean(q, a) e = Constant<value = float {0.00000001}>()
        w = Add(v, e) r = Sqrt(w) z = Div(d, r) }"""
    after = before.replace("u = ReduceMean(m, a)", "t = ReduceMean(c, a) u = Mul(t, s)")
    found = compare_models(model(before), model(after))
    assert found.verdict is EqualityVerdict.EQUAL, found
    assert {case.values for case in found.cases} >= sample_inputs.EXTREME_STYLES
