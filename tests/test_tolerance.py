"""How far two models may be apart follows from what is computed on the way to each output, and says so."""

from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from graphopt.check.compare import compare_models
from graphopt.check.tolerance import output_tolerances
from graphopt.check.verdict import EqualityVerdict
from graphopt.report.report import print_comparison
from graphopt.runtime import model_sketch
from tests.test_compare import SAME, model


def of(text: str) -> dict[str, float]:
    return {name: found for name, (found, _) in output_tolerances(model_sketch.sketch_model(model(text))).items()}


def test_the_tolerance_grows_with_the_sum_and_shrinks_with_precision() -> None:
    def of(dtype: str, terms: int) -> float:
        text = f"g ({dtype}[1,{terms}] x) => ({dtype}[1,2] z) {{ z = MatMul(x, w) }}"
        weight = np.zeros((terms, 2), {"float": np.float32, "float16": np.float16, "double": np.float64}[dtype])
        return output_tolerances(model_sketch.sketch_model(model(text, w=weight)))["z"][0]

    assert of("double", 64) < of("float", 64) < of("float", 4096) < 1e-4 < of("float16", 64) < 0.05


def test_the_tolerance_says_where_it_comes_from() -> None:
    found = compare_models(*(model(text) for text in SAME[0][1:]))
    assert found.worst is not None
    assert "L = 2 operators in a row" in found.worst.why
    assert "FLOAT, the coarsest type in which something on the way to it is computed" in found.worst.why


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_an_input_that_is_cast_at_once_loosens_nothing(dtype: str) -> None:
    text = "g ({} x, float[4] z) => (float[4] y) {{ c = Cast<to=1>(x) s = Add(c, z) y = Mul(s, {}) }}"
    assert of(text.format(f"{dtype}[4]", "z"))["y"] < 1e-5
    text = f"g ({dtype}[4] x, float[4] z) => (float[4] y) {{{{ c = Cast<to=1>(x) y = {{}}(c, z) }}}}"
    right, wrong = (model(text.format(op)) for op in ("Add", "Sub"))
    assert compare_models(right, right).verdict is EqualityVerdict.EQUAL
    assert compare_models(right, wrong).verdict is EqualityVerdict.DIFFERENT


def test_a_difference_of_a_hundredth_is_seen_beside_a_half_input() -> None:
    text = """g (float16[4] m, float[4] x) => (float[4] y) {{
        s = Constant<value_float={}>() c = Cast<to=1>(m) a = Mul(x, s) y = Add(a, c) }}"""
    assert compare_models(model(text.format("1.0")), model(text.format("1.01"))).verdict is EqualityVerdict.DIFFERENT


def test_each_output_has_its_own() -> None:
    found = of("""g (float16[4] h, float[4] x) => (float16[4] half, float[4] single, float[4] both, float[4] sizes) {
        half = Exp(h) single = Exp(x) wide = Cast<to=1>(half) both = Add(single, wide)
        n = Shape(half) r = Reshape(x, n) sizes = Exp(r) }""")
    assert found["half"] > 1e-2 and found["both"] > 1e-2
    assert found["single"] < 1e-5 and found["sizes"] < 1e-5


def test_what_is_computed_in_half_on_the_way_counts_through_views_casts_and_jumps() -> None:
    found = of("""g (float16[4] h, float[4] x) => (float[4] y, float[4] z) {
        e = Exp(h) t = Transpose(e) y = Cast<to=1>(t)
        n = Constant<value_float=0.5>() k = Cast<to=10>(n) more = Greater(h, k) z = Where(more, x, y) }""")
    assert found["y"] > 1e-2 and found["z"] > 1e-2


def test_the_length_and_the_sums_are_those_on_the_way() -> None:
    text = """g (float[1,4096] x, float[1,2] y) => (float[1,2] long, float[1,2] short) {
        long = MatMul(x, w) short = Exp(y) }"""
    found = output_tolerances(model_sketch.sketch_model(model(text, w=np.zeros((4096, 2), np.float32))))
    assert "K = 4096 terms" in found["long"][1] and "K = 1 terms" in found["short"][1]
    deep = "a = Exp(x) b = Exp(a) c = Exp(b) deep = Exp(c) flat = Exp(x)"
    found = output_tolerances(
        model_sketch.sketch_model(model(f"g (float[4] x) => (float[4] deep, float[4] flat) {{ {deep} }}"))
    )
    assert "L = 4 operators" in found["deep"][1] and "L = 1 operators" in found["flat"][1]


def test_bodies_are_on_the_way_and_each_turn_of_a_loop_reads_what_the_last_one_made() -> None:
    found = of("""g (bool c, float16[4] h, float[4] x) => (float[4] chosen, float[4] plain) {
        chosen = If(c)<
            then_branch = t () => (float[4] o) { e = Exp(h) o = Cast<to=1>(e) },
            else_branch = f () => (float[4] p) { p = Exp(x) }>
        plain = If(c)<
            then_branch = u () => (float[4] q) { q = Exp(x) },
            else_branch = v () => (float[4] r) { r = Neg(x) }> }""")
    assert found["chosen"] > 1e-2 and found["plain"] < 1e-5
    found = of("""g (int64 n, bool c, float16[4] h, float[4] x) => (float[4] y, float16[4] k) {
        y, k = Loop(n, c, x, h)<body =
            b (int64 i, bool d, float[4] a, float16[4] m) => (bool e, float[4] s, float16[4] o) {
            e = Identity(d) w = Cast<to=1>(m) s = Add(a, w) o = Exp(m) }> }""")
    assert found["y"] > 1e-2


def test_of_many_outputs_one_tolerance_is_explained() -> None:
    outputs = ", ".join(f"float[4] y{number}" for number in range(9))
    body = "y0 = Exp(x) " + " ".join(f"y{number + 1} = Sin(y{number})" for number in range(8))
    text = f"g (float[4] x) => ({outputs}) {{ {body} }}"
    found = compare_models(model(text), model(text))
    console = Console(file=StringIO(), width=1000)
    print_comparison(found, console)
    assert isinstance(console.file, StringIO)
    assert console.file.getvalue().count("operators in a row") == 1
