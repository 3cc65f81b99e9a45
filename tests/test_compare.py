"""Two models agree or differ: what the comparison sees, what it forgives, and what it says it cannot know."""

import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper, parser

from graphopt.base.errors import ModelError, UsageError
from graphopt.check.compare import compare_models
from graphopt.check.verdict import EqualityVerdict
from graphopt.io import onnx_io
from graphopt.runtime import oracle
from graphopt.runtime.sample_inputs import Array
from tests.text import parse


def model(text: str, **weights: Array) -> ModelProto:
    """A model from its graph in ONNX's text form; `weights` become initializers."""
    made = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21, "acme" : 1]> {text}')
    for name, array in weights.items():
        made.graph.initializer.append(numpy_helper.from_array(array, name))
    return made


# -- what is equal, what is not ----------------------------------------------------------------------------------------

SAME = [
    (
        "another order of additions",
        "g (float[3,4] x, float[4] y) => (float[3,4] z) { a = Add(x, y) z = Add(a, y) }",
        "g (float[3,4] x, float[4] y) => (float[3,4] z) { a = Add(y, y) z = Add(x, a) }",
    ),
    (
        "NaN where the other has NaN",
        "g (float[99] x) => (float[99] z) { z = Log(x) }",
        "g (float[99] x) => (float[99] z) { a = Identity(x) z = Log(a) }",
    ),
    (
        "another name of an open dim",
        "g (float[N] x) => (float[N] z) { z = Neg(x) }",
        "g (float[M] x) => (float[M] z) { z = Neg(x) }",
    ),
    (
        "a dim that was fixed",
        "g (float[N,3] x, float[N,1] y) => (float[N,3] z) { z = Add(x, y) }",
        "g (float[2,3] x, float[2,1] y) => (float[2,3] z) { z = Add(y, x) }",
    ),
    (
        "a sequence",
        "g (float[4] x) => (seq(float) z) { n = Neg(x) z = SequenceConstruct(x, n) }",
        "g (float[4] x) => (seq(float) z) { n = Neg(x) a = SequenceConstruct(x) z = SequenceInsert(a, n) }",
    ),
    (
        "bfloat16, which numpy does not have",
        "g (bfloat16[3] x) => (bfloat16[3] z) { z = Identity(x) }",
        "g (bfloat16[3] x) => (bfloat16[3] z) { a = Identity(x) z = Identity(a) }",
    ),
    (
        "strings of a fixed length, as onnx.reference hands them out",
        """g (string[3] s, complex64[3] x) => (string[3] t, complex64[3] z)
        { t = StringNormalizer<case_change_action = "UPPER">(s) z = Identity(x) }""",
        """g (string[3] s, complex64[3] x) => (string[3] t, complex64[3] z)
        { a = Identity(s) t = StringNormalizer<case_change_action = "UPPER">(a) z = Identity(x) }""",
    ),
    (
        "complex numbers, for which ONNX Runtime has no kernel",
        "g (complex64[3] x) => (complex64[3] z) { z = Identity(x) }",
        "g (complex64[3] x) => (complex64[3] z) { a = Identity(x) z = Identity(a) }",
    ),
    (
        "4-bit integers",
        "g (int4[3] x) => (float[3] z) { z = Cast<to = 1>(x) }",
        "g (int4[3] x) => (float[3] z) { z = Cast<to = 1>(x) }",
    ),
]

DIFFERENT = [
    (
        "a number that is off by one in a thousand",
        "g (float[9] x) => (float[9] z) { z = Identity(x) }",
        "g (float[9] x) => (float[9] z) { s = Constant<value = float {1.001}>() z = Mul(x, s) }",
        "differs by",
    ),
    (
        "zero padding before MaxPool, which matters where all are negative",
        (
            "g (float[1,1,8,8] x) => (float[1,1,9,9] z) { p = Constant<value = int64[8] {0,0,1,1,0,0,1,1}>()"
            " a = Pad(x, p) z = MaxPool<kernel_shape = [2,2]>(a) }"
        ),
        "g (float[1,1,8,8] x) => (float[1,1,9,9] z) { z = MaxPool<kernel_shape = [2,2], pads = [1,1,1,1]>(x) }",
        "differs by",
    ),
    (
        "integers, exactly",
        "g (int64[9] x) => (int64[9] z) { z = Identity(x) }",
        "g (int64[9] x) => (int64[9] z) { a = Constant<value = int64 {2}>() b = Mul(x, a) c = Abs(b) z = Div(c, a) }",
        "differs by",
    ),
    (
        "one branch only",
        (
            "g (bool c, float[2] x) => (float[2] z) { z = If(c) <then_branch = t () => (float[2] p) { p = Neg(x) },"
            " else_branch = e () => (float[2] q) { q = Identity(x) }> }"
        ),
        "g (bool c, float[2] x) => (float[2] z) { z = Neg(x) }",
        "differs by",
    ),
    (
        "NaN in one only",
        "g (float[99] x) => (float[99] z) { z = Sqrt(x) }",
        "g (float[99] x) => (float[99] z) { a = Abs(x) z = Sqrt(a) }",
        "NaN or infinite in one model only",
    ),
    (
        "a shape",
        "g (float[2,3] x) => (float z) { z = ReduceSum<keepdims = 1>(x) }",
        "g (float[2,3] x) => (float z) { z = ReduceSum<keepdims = 0>(x) }",
        "has the shape [], not [1, 1]",
    ),
    (
        "a type",
        "g (float[2] x) => (float[2] z) { z = Neg(x) }",
        "g (float[2] x) => (double[2] z) { a = Neg(x) z = Cast<to = 11>(a) }",
        "has the type DOUBLE, not FLOAT",
    ),
    (
        "strings",
        "g (string[9] x) => (string[9] z) { z = Identity(x) }",
        "g (string[9] x) => (string[9] z) { z = StringConcat(x, x) }",
        "strings differ",
    ),
    (
        "an output of another name",
        "g (float[2] x) => (float[2] z) { z = Neg(x) }",
        "g (float[2] x) => (float[2] w) { w = Neg(x) }",
        "the outputs are called 'z' and 'w'",
    ),
    (
        "outputs in another order",
        "g (float[2] x) => (float[2] z, float[2] w) { z = Neg(x) w = Abs(x) }",
        "g (float[2] x) => (float[2] w, float[2] z) { z = Neg(x) w = Abs(x) }",
        "the outputs are called 'z', 'w' and 'w', 'z'",
    ),
    (
        "an input that is gone",
        "g (float[2] x, float[2] y) => (float[2] z) { z = Neg(x) }",
        "g (float[2] x) => (float[2] z) { z = Neg(x) }",
        "the inputs differ: the original has 'y', the optimized model has not",
    ),
    (
        "an input of another size",
        "g (float[1,3] x) => (float[1,3] z) { z = Neg(x) }",
        "g (float[2,3] x) => (float[2,3] z) { z = Neg(x) }",
        "the inputs differ: 'x' is FLOAT[1,3] in the original and FLOAT[2,3] in the optimized model",
    ),
    (
        "two sizes of one name",
        "g (float[N] x, float[N] y) => (float[N] z, float[N] w) { z = Neg(x) w = Neg(y) }",
        "g (float[2] x, float[3] y) => (float[2] z, float[3] w) { z = Neg(x) w = Neg(y) }",
        "the inputs differ: 'y' is FLOAT[N] in the original and FLOAT[3] in the optimized model",
    ),
    (
        "a batch that was built in",
        "g (float[N,4] x) => (float[P,Q] z) { s = Constant<value = int64[2] {0,4}>() z = Reshape(x, s) }",
        "g (float[N,4] x) => (float[P,Q] z) { s = Constant<value = int64[2] {1,4}>() z = Reshape(x, s) }",
        "the original runs, but the optimized model cannot be run",
    ),
    (
        "a model that no longer loads",
        "g (float[2] x) => (float[2] z) { z = Neg(x) }",
        "g (float[2] x) => (float[2] z) { a = Neg(x) z = Conv(a, a) }",
        "the original runs, but the optimized model cannot be loaded",
    ),
]


@pytest.mark.parametrize(("original", "optimized"), [pair[1:] for pair in SAME], ids=[pair[0] for pair in SAME])
def test_equal(original: str, optimized: str) -> None:
    found = compare_models(model(original), model(optimized))
    assert found.verdict is EqualityVerdict.EQUAL, found
    assert found.ok
    assert found.seeds == (0, 1, 2)


@pytest.mark.parametrize(
    ("original", "optimized", "why"), [pair[1:] for pair in DIFFERENT], ids=[pair[0] for pair in DIFFERENT]
)
def test_different(original: str, optimized: str, why: str) -> None:
    found = compare_models(model(original), model(optimized))
    assert found.verdict is EqualityVerdict.DIFFERENT, found
    assert not found.ok
    assert why in str(found)


def test_a_difference_names_output_and_inputs() -> None:
    original = model("g (float[N] x) => (float[N] y, float[N] z) { y = Neg(x) z = Abs(x) }")
    wrong = model("g (float[N] x) => (float[N] y, float[N] z) { y = Neg(x) z = Identity(x) }")
    found = compare_models(original, wrong)
    assert [(difference.output, difference.ok) for difference in found.outputs] == [("y", True), ("z", False)]
    assert found.worst is not None
    assert "seed 0, normal values, N=1" in found.worst.detail or "seed 1, wide values, N=3" in found.worst.detail


def test_the_same_seeds_give_the_same_verdict() -> None:
    pair = [model(text) for text in SAME[0][1:]]
    assert compare_models(*pair, seeds=(5,)) == compare_models(*pair, seeds=(5,))


def test_the_verdict_does_not_change_the_models() -> None:
    first, second = (model(text) for text in SAME[0][1:])
    before = first.SerializeToString(), second.SerializeToString()
    compare_models(first, second)
    assert (first.SerializeToString(), second.SerializeToString()) == before


# -- what rounding may do ----------------------------------------------------------------------------------------------


def test_integers_have_no_tolerance() -> None:
    found = compare_models(*[model("g (int32[2] x) => (int32[2] z) { z = Neg(x) }")] * 2)
    assert [(d.tolerance, d.why) for d in found.outputs] == [(0.0, "exact: no rounding is allowed")]


CONSTANTS = " ".join(f"{name} = Constant<value = float[4] {{3e6, 3e6, 3e6, 3e6}}>()" for name in ("large", "minus"))
RESIZED = """g (float[1, 4] x) => (float[A, B] z) {
    scales = Constant<value = float[2] {2, 2}>() both = Identity(scales)"""
FED = "g (float[1, 4] x, float[2] scales) => (float[A, B] z) {"
ILL_CONDITIONED = [
    (
        "a difference of large numbers",
        "g (float[4] x) => (float[4] z) { a = Add(x, large) z = Sub(a, minus) }",
        "g (float[4] x) => (float[4] z) { d = Sub(large, minus) z = Add(x, d) }",
    ),
    (
        "rounding to integers",
        (
            "g (float[999] x) => (int32[999] z) { k = Constant<value = float {1e6}>() a = Mul(x, k) b = Mul(a, k)"
            " c = Div(b, k) z = Cast<to = 6>(c) }"
        ),
        "g (float[999] x) => (int32[999] z) { k = Constant<value = float {1e6}>() a = Mul(x, k) z = Cast<to = 6>(a) }",
    ),
    (
        "a difference of large numbers in nodes of their own",
        f"g (float[4] x) => (float[4] z) {{ {CONSTANTS} a = Add(x, large) z = Sub(a, minus) }}",
        f"g (float[4] x) => (float[4] z) {{ {CONSTANTS} d = Sub(large, minus) z = Add(x, d) }}",
    ),
    (
        "a difference of large numbers beside an input that is a scalar",
        "g (float[4] x, float y) => (float[4] z) { b = Add(x, y) a = Add(b, large) z = Sub(a, minus) }",
        "g (float[4] x, float y) => (float[4] z) { b = Add(x, y) d = Sub(large, minus) z = Add(b, d) }",
    ),
    (
        "a difference of large numbers beside scales, which are no weights",
        f'{RESIZED} a = Add(x, large) b = Sub(a, minus) z = Resize<mode="nearest">(b, , both) }}',
        f'{RESIZED} d = Sub(large, minus) b = Add(x, d) z = Resize<mode="nearest">(b, , both) }}',
    ),
    (
        "a difference of large numbers beside scales that are fed",
        f'{FED} a = Add(x, large) b = Sub(a, minus) z = Resize<mode="nearest">(b, , scales) }}',
        f'{FED} d = Sub(large, minus) b = Add(x, d) z = Resize<mode="nearest">(b, , scales) }}',
    ),
]


@pytest.mark.parametrize(
    ("original", "optimized"), [pair[1:] for pair in ILL_CONDITIONED], ids=[pair[0] for pair in ILL_CONDITIONED]
)
def test_what_the_original_itself_cannot_hold_still_is_forgiven(original: str, optimized: str) -> None:
    large = {name: np.full(4, 3e6, np.float32) for name in ("large", "minus")}
    found = compare_models(model(original, **large), model(optimized, **large))
    assert found.verdict is EqualityVerdict.EQUAL, found
    assert found.worst is not None
    assert "the original moves as far if inputs and weights change by" in found.worst.why


def test_an_unsteady_model_does_not_excuse_everything() -> None:
    original = model(ILL_CONDITIONED[1][1])
    wrong = model(
        "g (float[999] x) => (int32[999] z) { k = Constant<value = float {1e6}>() h = Constant<value = float {100.0}>()"
        " a = Mul(x, k) b = Add(a, h) z = Cast<to = 6>(b) }"
    )
    assert compare_models(original, wrong).verdict is EqualityVerdict.DIFFERENT


@pytest.mark.parametrize(
    ("difference", "nearly", "rest", "verdict"),
    [
        ("b, c", 1 + 1.2e-7, 0.5, EqualityVerdict.EQUAL),
        ("c, b", 1 - 6e-8, 0.5, EqualityVerdict.DIFFERENT),
        ("b, c", 1 + 1.2e-7, 0.1, EqualityVerdict.DIFFERENT),
    ],
)
def test_a_few_elements_that_become_nan_do_not_excuse_all(
    difference: str, nearly: float, rest: float, verdict: EqualityVerdict
) -> None:
    """Of 64 roots, eight are those of what may be just below 0."""
    factors = np.array([1 - 6e-8] * 8 + [0.5] * 56, np.float32)
    body = "a = Abs(x) b = Mul(a, ones) c = Mul(a, near) s = Sub({}) y = Sqrt(s)"
    ones, other = np.ones(64, np.float32), np.where(factors == 0.5, rest, nearly).astype(np.float32)
    original, optimized = (
        model(f"g (float[64] x) => (float[64] y) {{ {body.format(operands)} }}", ones=ones, near=near)
        for operands, near in (("b, c", factors), (difference, other))
    )
    found = compare_models(original, optimized)
    assert found.verdict is verdict, found


def test_random_numbers_are_not_compared_and_that_is_said() -> None:
    text = "g (float[3] x) => (float[3] y, float[3] z) { r = RandomNormalLike(x) y = Add(x, r) z = Neg(x) }"
    found = compare_models(model(text), model(text))
    assert found.verdict is EqualityVerdict.EQUAL
    assert found.skipped == ("the values of output 'y', which depend on RandomNormalLike",)


def test_an_output_that_never_changes_is_named() -> None:
    text = "g (float[3] x) => (float[3] y, int64[1] s) { y = Sub(x, x) s = Shape(x) }"
    found = compare_models(model(text), model(text))
    assert found.verdict is EqualityVerdict.EQUAL
    assert found.skipped == ("how output 'y' depends on the inputs: it was the same for all",)


# -- what cannot be run ------------------------------------------------------------------------------------------------

CUSTOM = "g (float[2] x) => (float[2] z) { z = acme.Magic(x) }"


def test_an_operator_that_nobody_knows_is_skipped_not_passed() -> None:
    found = compare_models(*[model(CUSTOM)] * 2)
    assert found.verdict is EqualityVerdict.SKIPPED
    assert not found.ok
    assert "Magic" in found.reason


def test_failing_alike_is_agreement() -> None:
    text = "g (float[N,3] x) => (float[M] z) { s = Constant<value = int64[1] {7}>() z = Reshape(x, s) }"
    found = compare_models(model(text), model(text))
    assert found.verdict is EqualityVerdict.CANNOT_RUN
    assert found.ok
    assert "cannot be reshaped" in found.reason


def test_an_original_that_refuses_all_inputs_proves_nothing() -> None:
    original = "g (float[N,3] x) => (float[M] z) { s = Constant<value = int64[1] {7}>() z = Reshape(x, s) }"
    optimized = "g (float[N,3] x) => (float[M] z) { s = Constant<value = int64[1] {-1}>() z = Reshape(x, s) }"
    found = compare_models(model(original), model(optimized))
    assert found.verdict is EqualityVerdict.SKIPPED
    assert "no inputs were found on which the original runs" in found.reason


def test_without_onnxruntime_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UsageError, match=r'pip install "graphopt\[cpu\]"'):
        compare_models(model(SAME[0][1]), model(SAME[0][2]))


# -- inputs ------------------------------------------------------------------------------------------------------------


def test_values_that_overflow_are_made_smaller() -> None:
    text = "g (float[99] x) => (float[99] z) { z = Exp(x) }"
    assert [case.values for case in compare_models(model(text), model(text)).cases] == ["normal", "normal", "normal"]


def test_open_dims_get_several_sizes() -> None:
    text = "g (float[batch,seq] x) => (float[batch,seq] z) { z = Neg(x) }"
    found = compare_models(model(text), model(text))
    sizes = [(1, 8), (3, 6), (2, 7), (1, 1), (3, 1)]
    assert found.bindings == tuple({"batch": batch, "seq": seq} for batch, seq in sizes)


def test_sizes_that_the_model_refuses_are_tried_no_further() -> None:
    text = "g (float[N,4] x) => (float[P,Q] z) { s = Constant<value = int64[2] {1,4}>() z = Reshape(x, s) }"
    found = compare_models(model(text), model(text))
    assert found.verdict is EqualityVerdict.EQUAL
    assert {binding["N"] for binding in found.bindings} == {1}


def test_dims_may_be_formulas_of_others() -> None:
    text = (
        "g (float[batch,past] x, float[batch,seq] y, float[batch,total] m) => (float[batch,t] z)"
        " { a = Concat<axis = 1>(x, y) z = Mul(a, m) }"
    )
    made = model(text)
    made.graph.input[2].type.tensor_type.shape.dim[1].dim_param = "past + seq"
    found = compare_models(made, made)
    assert found.verdict is EqualityVerdict.EQUAL
    assert "past + seq" not in found.bindings[0]


def test_sizes_may_be_given() -> None:
    text = "g (float[batch,seq] x) => (float[batch,seq] z) { z = Neg(x) }"
    found = compare_models(model(text), model(text), bindings=[{"batch": 7}, {"seq": 11}], seeds=(0, 1))
    assert [(b["batch"], b["seq"]) for b in found.bindings] == [(7, 8), (3, 11), (7, 1)]
    with pytest.raises(UsageError, match="the model has no open dim 'bach'; it has 'batch', 'seq'"):
        compare_models(model(text), model(text), bindings=[{"bach": 1}])


def test_inputs_may_be_given_and_fix_the_sizes() -> None:
    text = "g (float[N,2] x, float[N] y) => (float[N] z) { a = ReduceSum<keepdims = 0>(x) z = Add(a, y) }"
    found = compare_models(model(text), model(text), inputs={"x": np.ones((4, 2))}, seeds=(0,))
    assert found.cases[0].binding == {"N": 4}


def test_inputs_that_do_not_fit_are_refused() -> None:
    text = "g (float[N,2] x) => (float[N,2] z) { z = Neg(x) }"
    with pytest.raises(UsageError, match=r"input 'x' is FLOAT\[N,2\], the given values are float64\[4, 3\]"):
        compare_models(model(text), model(text), inputs={"x": np.ones((4, 3))})


def test_a_default_that_was_taken_for_a_constant_is_found() -> None:
    text = "g (float[3] x, float[3] w) => (float[3] z) { z = Mul(x, w) }"
    original = model(text, w=np.array([1, 2, 3], np.float32))
    frozen = "g (float[3] x, float[3] w) => (float[3] z) { z = Mul(x, c) }"
    wrong = model(frozen, w=np.array([1, 2, 3], np.float32), c=np.array([1, 2, 3], np.float32))
    assert compare_models(original, original).cases[-1].overridden == ("w",)
    found = compare_models(original, wrong)
    assert found.verdict is EqualityVerdict.DIFFERENT
    assert "overriding initializers" in str(found)


# -- where models lie --------------------------------------------------------------------------------------------------


def test_external_data_is_found_beside_the_file(tmp_path: Path) -> None:
    text = "g (float[1,64] x) => (float[1,64] z) { z = MatMul(x, w) }"
    made = model(text, w=np.eye(64, dtype=np.float32))
    path = tmp_path / "big.onnx"
    onnx_io.save_model(onnx_io.load_model(made), path, external=True)
    assert path.with_name("big.onnx.data").exists()
    assert compare_models(path, made).verdict is EqualityVerdict.EQUAL
    assert compare_models(onnx_io.load_model(path), str(path)).verdict is EqualityVerdict.EQUAL


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.onnx").write_text("not a model")
    with pytest.raises(ModelError, match=r"notes\.onnx is a text file"):
        compare_models(tmp_path / "notes.onnx", model(SAME[0][1]))


def test_a_large_model_in_memory_is_run_from_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle, "MAX_IN_MEMORY_BYTES", 100)
    made = model("g (float[1,64] x) => (float[1,64] z) { z = MatMul(x, w) }", w=np.eye(64, dtype=np.float32))
    assert compare_models(made, made).verdict is EqualityVerdict.EQUAL


# -- printing ----------------------------------------------------------------------------------------------------------


def test_a_comparison_prints_what_it_rests_on() -> None:
    found = compare_models(*(model(text) for text in SAME[0][1:]), seeds=(3,))
    assert str(found).splitlines()[2:] == ["run: seed 3, normal values", f"oracle: {found.oracle}"]
    assert found.oracle.endswith("all its optimizations off")


# -- infinities and NaN ------------------------------------------------------------------------------------------------

BOUND = {"n": np.array(0.75, np.float32), "z": np.array(0, np.float32)}


def clamps(body: str, inputs: str = "float[8] x") -> ModelProto:
    return parse(inputs, body, BOUND, outputs="float[8] y")


@pytest.mark.parametrize(
    "idle",
    [
        "",
        "m = Max(x, n);",
        """t = Constant<value = bool {1}>() r = If (t) <
            then_branch = f () => (float a) { b = Max(x, n) a = Identity(n) },
            else_branch = g () => (float c) { c = Neg(n) }>
        s = Neg(r);""",
    ],
)
def test_infinities_are_drawn_where_a_model_compares(idle: str) -> None:
    plain = compare_models(clamps(f"{idle} y = Add(x, n)"), clamps("y = Add(x, n)"))
    asked = compare_models(clamps("y = Max(x, n)"), clamps("y = Max(x, n)"))
    assert [case.values for case in plain.cases] == ["normal", "wide", "normal"]
    assert [case.values for case in asked.cases] == ["normal", "wide", "normal", "non-finite"]
    assert plain.ok
    assert asked.ok


def test_what_a_rule_makes_of_infinities_is_judged_where_they_are_to_be_kept() -> None:
    before, after = clamps("y = Max(x, n)"), clamps("y = Clip(x, n)")
    assert compare_models(before, after).ok
    found = compare_models(before, after, keep_nonfinite=True)
    assert found.verdict is EqualityVerdict.DIFFERENT
    assert "elements are NaN or infinite in one model only, seed 0, non-finite values" in str(found)


def test_a_finite_number_that_came_of_an_infinity_is_always_judged() -> None:
    before = clamps("m = Max(x, n); i = IsInf(m); y = Where(i, z, m)")
    after = clamps("m = Clip(x, n); i = IsInf(m); y = Where(i, z, m)")
    found = compare_models(before, after)
    assert found.verdict is EqualityVerdict.DIFFERENT
    assert "non-finite values" in str(found)


@pytest.mark.parametrize("mask", ["bool[2,4,4] seen", "int64[2,4,4] attention_mask"])
def test_a_row_of_which_nothing_is_seen_is_drawn(mask: str) -> None:
    """The mean of all where each is masked by the least number, and 0 as some kernels of attention have it."""
    name = mask.rsplit(maxsplit=1)[-1]
    body = f"""m = Cast<to=9>({name}); s = Where(m, x, {{}}); p = Softmax<axis=-1>(s); i = IsNaN(p);
        y = Where(i, zero, p)"""
    numbers = {
        "low": np.array(-3.4e38, np.float32),
        "none": np.array(-np.inf, np.float32),
        "zero": np.zeros((), np.float32),
    }
    of_least, of_infinity = (parse(f"float[2,4,4] x, {mask}", body.format(by), numbers) for by in ("low", "none"))
    assert compare_models(of_least, of_least).ok
    assert compare_models(of_infinity, of_infinity).ok
    found = compare_models(of_least, of_infinity)
    assert found.verdict is EqualityVerdict.DIFFERENT
    assert "hidden values" in str(found)


def test_masks_that_hide_a_row_do_not_hide_infinities() -> None:
    before, after = (
        parse("float[8,4] x, bool[8,4] keep", f"{body}; y = Where(keep, g, zero)", {"zero": np.zeros((), np.float32)})
        for body in ("n = IsNaN(x); g = Where(n, zero, x)", "g = Identity(x)")
    )
    assert compare_models(before, after).verdict is EqualityVerdict.DIFFERENT


def test_a_mask_that_is_refused_leaves_the_other_cases() -> None:
    body = """k = Cast<to=7>(keep); f = NonZero(k); i = Gather<axis=1>(f, one); h = IsNaN(x); g = Where(h, zero, x);
        y = {}"""
    numbers = {"zero": np.zeros((), np.float32), "one": np.array([0])}
    before, after = (
        parse("float[2,4] x, bool[1,4] keep", body.format(made), numbers, outputs="float[2,4] y, int64[2,1] i")
        for made in ("Identity(g)", "Identity(x)")
    )
    found = compare_models(before, after)
    assert [case.values for case in found.cases] == ["normal", "wide", "normal", "non-finite"]
    assert found.verdict is EqualityVerdict.DIFFERENT


@pytest.mark.parametrize("dtype", ["float", "float16", "double"])
def test_the_largest_number_that_an_absent_bound_makes_of_an_infinity_is_not_judged(dtype: str) -> None:
    """ONNX Runtime takes it for the bound; no model means it."""
    before, after = (
        parse(f"{dtype}[8] x", body, {}, outputs=f"{dtype}[8] y") for body in ("y = Clip(x)", "y = Abs(x)")
    )
    same = parse(f"{dtype}[8] x", "y = Identity(x)", {}, outputs=f"{dtype}[8] y")
    assert "non-finite" in [case.values for case in compare_models(before, same).cases]
    assert compare_models(before, same).ok
    assert not compare_models(before, same, keep_nonfinite=True).ok
    assert not compare_models(before, after).ok


def test_an_input_without_a_type_that_has_a_default_may_get_one() -> None:
    typed = parse("float[4] x, float[4] w", "y = Add(x, w)", {"w": np.ones(4, np.float32)}, outputs="float[4] y")
    untyped = ModelProto()
    untyped.CopyFrom(typed)
    untyped.graph.input[1].ClearField("type")
    assert compare_models(untyped, typed).ok


def test_inputs_that_are_given_stay_as_they_are() -> None:
    given = {"x": np.arange(8, dtype=np.float32)}
    assert all(
        case.values != "non-finite" for case in compare_models(*[clamps("y = Max(x, n)")] * 2, inputs=given).cases
    )


@pytest.mark.parametrize(("training", "verdict"), [(False, EqualityVerdict.DIFFERENT), (True, EqualityVerdict.EQUAL)])
def test_a_dropout_is_random_only_where_it_trains(training: bool, verdict: EqualityVerdict) -> None:
    weights = {"r": np.array(0.5, np.float32), "t": np.array(training)}
    dropped = parse("float[4] x", "h = Dropout(x, r, t); y = Exp(h)", weights, outputs="float[4] y")
    found = compare_models(dropped, parse("float[4] x", "y = Sin(x)", outputs="float[4] y"))
    assert found.verdict is verdict
    assert bool(found.skipped) == training


def test_a_dropout_whose_training_mode_is_damaged_is_no_internal_error() -> None:
    weights = {"r": np.array(0.5, np.float32), "t": np.array([True])}
    model = parse("float[4] x", "h = Dropout(x, r, t); y = Exp(h)", weights, outputs="float[4] y")
    next(tensor for tensor in model.graph.initializer if tensor.name == "t").ClearField("raw_data")
    assert compare_models(model, model).verdict is EqualityVerdict.CANNOT_RUN


def test_of_an_output_that_is_no_number_it_is_said_that_little_was_seen() -> None:
    model = parse("float[N,4] x", "l = Log(x); y = ReduceSum(l, a)", {"a": np.array([1])}, outputs="float[N,1] y")
    assert any("output 'y'" in text for text in compare_models(model, model).skipped)


# -- what loads --------------------------------------------------------------------------------------------------------

BIASED = "g (float[2,3,4] x) => (float[2,3,5] z) { p = MatMul(x, w) a = Add(p, b) z = Relu(a) }"
CLAIMED = "g (float[2,3,4] x) => (float[2,3,5] z) { p = MatMul(x, w) a = Add(p, gemm_input_shape) z = Relu(a) }"
"""The fusion of MatMul and Add makes an initializer `gemm_input_shape`, whether there is one or not."""


def test_a_model_that_onnx_runtime_cannot_optimize_differs_from_one_that_it_can() -> None:
    weights, bias = np.ones((4, 5), np.float32), np.ones(5, np.float32)
    plain, claimed = model(BIASED, w=weights, b=bias), model(CLAIMED, w=weights, gemm_input_shape=bias)
    found = compare_models(plain, claimed)
    assert found.verdict is EqualityVerdict.DIFFERENT
    assert "with ONNX Runtime's optimizations on, the original loads, but the optimized model cannot" in found.reason
    assert compare_models(claimed, claimed).verdict is EqualityVerdict.EQUAL, "no worse than the original"
    assert compare_models(claimed, plain).verdict is EqualityVerdict.EQUAL
