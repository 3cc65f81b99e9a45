"""Operators that ONNX does not define: declared by a term, then matched, written, inferred, proved like any other."""

import json
import multiprocessing
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import FunctionProto, parser

import graphopt
from graphopt.base.dtype import DType
from graphopt.base.errors import RuleError
from graphopt.io import onnx_io
from graphopt.language.proof import Proof, ProofModel, Verdict
from graphopt.language.terms import Lit
from graphopt.operators.inference import infer_graph
from graphopt.operators.magnitude_analysis import may_have_magnitude
from graphopt.rewrite.matching import find_matches
from graphopt.rule import Operators, Rule, define, define_function, fn, integer, microsoft, op, real, string, tensor
from graphopt.verifier import kernel_conformance
from graphopt.verifier.concrete_instance import ConcreteInstance
from graphopt.verifier.prove import prove

my = Operators("tests.definition")
x, b, y, z = tensor("x", "*b N"), tensor("b", "N"), tensor("y"), tensor("z")
v, w = tensor("v", "A N"), tensor("w", "A N")
unnamed, factor = tensor("u", "A _"), tensor("factor", "")
scale, count = real("scale"), integer("count")

define(my.ScaledAdd(y, z, scale=scale), y + scale * z, scale=1.0)
define(my.Times(y, factor), y * factor)
define(my.Hinge(unnamed), op.Relu(op.Neg(unnamed)))
define(my.Heads(x, count=count), op.Reshape(x, fn.concat(fn.sizes("*b"), count, fn.size("N") // count)))
define(microsoft.BiasGelu(x, b), op.Gelu(x + b))
define(microsoft.QuickGelu(y, alpha=scale), y * op.Sigmoid(scale * y), alpha=1.702)
FUSE_BIAS = Rule("fuse_bias_gelu", op.Gelu(x + b), microsoft.BiasGelu(x, b))
SUM = Rule("sum_scaled_add", my.ScaledAdd(my.ScaledAdd(y, z), x), op.Sum(y, z, x), when=fn.is_float(fn.dtype(y)))


def model(text: str, opsets: str = '"": 20, "tests.definition": 1') -> onnx.ModelProto:
    return parser.parse_model(f"<ir_version: 10, opset_import: [{opsets}]> {text}")


def optimized(text: str, rules: Sequence[Rule], *, target: str = "onnx") -> graphopt.Result:
    return graphopt.optimize(model(text), rules=rules, cost="none", check=False, target=target)


def operators(result: graphopt.Result) -> list[str]:
    return [f"{node.domain}.{node.op_type}".lstrip(".") for node in result.model.graph.node]


# -- proofs ------------------------------------------------------------------------------------------------------------


def test_a_rule_onto_a_declared_operator_is_proved_by_what_it_means() -> None:
    assert prove(FUSE_BIAS).claim_text == "proved, reassociates"  # a kernel rounds in a way of its own


@pytest.mark.parametrize(
    ("rule", "model"),
    [
        (Rule("regrouped", my.ScaledAdd(my.ScaledAdd(y, z), x), y + (z + x)), ProofModel.EXTENDED),
        (Rule("nothing_added", my.ScaledAdd(y, z, scale=0.0), y + z * 0.0), ProofModel.EXTENDED),
        (Rule("undone", my.ScaledAdd(y + y, y, scale=-1.0), op.Identity(y)), ProofModel.REAL),
    ],
)
def test_it_is_proved_of_infinities_where_it_only_reorders(rule: Rule, model: ProofModel) -> None:
    assert prove(rule).model is model


def test_a_kernel_that_makes_something_else_of_infinities_is_used_for_finite_values(
    forget: Callable[[str], None],
) -> None:
    forget("Gelu")
    clamped = Operators("com.microsoft").Gelu
    define(clamped(y), op.Gelu(op.Clip(y, -1e4, 1e4)))  # of all finite numbers that are drawn the same
    assert prove(Rule("fuse_clamped", op.Gelu(op.Clip(y, -1e4, 1e4)), clamped(y))).model is ProofModel.REAL


def test_a_kernel_is_asked_at_sizes_of_which_the_definition_speaks() -> None:
    """None of these is drawn by chance."""
    of_64 = fn.eq(fn.size("N") % 64, 0)
    define(microsoft.Trilu(v), op.Relu(v), when=(of_64,))
    proof = prove(Rule("wrong_half", op.Relu(v), microsoft.Trilu(v), when=of_64))
    assert proof.verdict is Verdict.REFUTED and "is not what its definition says" in proof.counterexample, proof


@pytest.mark.slow
def test_without_an_instance_infinities_are_not_promised() -> None:
    of_34 = fn.eq(fn.size("N") * fn.size("N"), 1156)
    define(microsoft.Inverse(x), x * op.Sigmoid(x), when=(of_34,))
    proof = prove(Rule("not_drawn", x * op.Sigmoid(x), microsoft.Inverse(x), when=of_34))
    assert proof.model is ProofModel.REAL
    assert "the kernel of com.microsoft.Inverse was not asked: no instance was found that runs" in str(proof)


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.FLOAT, DType.BFLOAT16], ids=str)
def test_infinities_are_tried_of_all_floats(dtype: DType) -> None:
    spoilt = kernel_conformance._inject_nonfinite(
        ConcreteInstance({}, {"x": np.zeros(100, dtype.numpy)}), np.random.default_rng(3)
    )
    assert not np.isfinite(spoilt.values["x"].astype(np.float32)).all()


@pytest.mark.parametrize(
    "rule",
    [
        Rule("merge_scaled_add", y + 2.0 * z, my.ScaledAdd(y, z, scale=2.0)),
        Rule("use_default", y + z, my.ScaledAdd(y, z)),
        Rule("swap_heads_relu", op.Relu(my.Heads(x, count=count)), my.Heads(op.Relu(x), count=count)),
        Rule("nest", my.ScaledAdd(my.ScaledAdd(y, z), z), y + 2.0 * z),
        Rule("unnamed", op.Relu(op.Neg(unnamed)), my.Hinge(unnamed)),
        Rule("onto_a_number", y * 2.0, my.Times(y, 2.0)),
        Rule("quick_gelu", y * op.Sigmoid(y), microsoft.QuickGelu(y, alpha=1.0)),
    ],
)
def test_true_rules_on_declared_operators_are_proved(rule: Rule) -> None:
    assert prove(rule).holds


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule",
    [
        Rule("wrong_default", y + 2.0 * z, my.ScaledAdd(y, z)),
        Rule("wrong_order", y + 2.0 * z, my.ScaledAdd(z, y, scale=2.0)),
        Rule("wrong_heads", op.Relu(my.Heads(x, count=2)), my.Heads(op.Relu(x), count=4)),
        Rule("any_bias", op.Gelu(y + z), microsoft.BiasGelu(y, z)),
        Rule("matrix_bias", op.Gelu(v + w), microsoft.BiasGelu(v, w)),
        Rule("jumps", op.Floor(y + z), op.Floor(my.ScaledAdd(y, z))),
    ],
)
def test_wrong_rules_on_declared_operators_are_not_proved(rule: Rule) -> None:
    assert not prove(rule).holds


def test_a_rule_that_is_wrong_by_its_meaning_is_refuted_with_an_instance() -> None:
    proof = prove(Rule("wrong_twice", 3.0 * y, my.ScaledAdd(y, y)))
    assert proof.verdict is Verdict.REFUTED and "values differ" in proof.counterexample


def test_a_definition_that_the_kernel_contradicts_is_refuted_with_an_instance(forget: Callable[[str], None]) -> None:
    forget("FastGelu")
    wrong = Operators("com.microsoft").FastGelu
    define(wrong(y), y * op.Sigmoid(y))
    proof: Proof = prove(Rule("fuse_fast_gelu", y * op.Sigmoid(y), wrong(y)))
    assert proof.verdict is Verdict.REFUTED
    assert proof.counterexample.startswith("com.microsoft.FastGelu is not what its definition says: values differ")


@pytest.mark.slow
def test_a_default_that_the_kernel_contradicts_is_refuted_with_an_instance(forget: Callable[[str], None]) -> None:
    forget("FusedMatMul")
    product = Operators("com.microsoft").FusedMatMul
    define(product(v, w, alpha=scale), (v @ w) * scale, alpha=2.0)
    proof = prove(Rule("fuse_matmul", (v @ w) * 2.0, product(v, w)))
    assert proof.verdict is Verdict.REFUTED and "is not what its definition says" in proof.counterexample


def test_a_definition_of_more_than_the_kernel_takes_is_refuted_with_an_instance(
    forget: Callable[[str], None],
) -> None:
    forget("FastGelu")
    biased = Operators("com.microsoft").FastGelu
    define(biased(y, z), op.Gelu(y + z, approximate="tanh"))
    proof = prove(Rule("fuse_biased", op.Gelu(y + z, approximate="tanh"), biased(y, z)))
    assert proof.verdict is Verdict.REFUTED and "the kernel refuses it" in proof.counterexample


@pytest.mark.slow
def test_an_attribute_keeps_no_number_of_a_model_in_double() -> None:
    assert not prove(Rule("any_scale", y + scale * z, my.ScaledAdd(y, z, scale=scale))).holds
    known = Rule("their_scale", my.ScaledAdd(y, z, scale=scale) * 1.0, my.ScaledAdd(y, z, scale=scale))
    assert prove(known).holds


@pytest.mark.slow
def test_element_types_that_a_definition_asks_for_are_shown() -> None:
    single = Operators("tests.single").Relu
    define(single(y), op.Relu(y), when=fn.eq(fn.dtype(y), DType.FLOAT))
    assert not prove(Rule("any_type", op.Relu(op.Relu(y)), single(y))).holds
    assert prove(Rule("one_type", op.Relu(op.Relu(y)), single(y), when=fn.eq(fn.dtype(y), DType.FLOAT))).holds


# -- models ------------------------------------------------------------------------------------------------------------

GELU = "g (float[B, S, 8] x, float[8] b) => (float[B, S, 8] y) { s = Add(x, b) y = Gelu(s) }"


def test_the_operator_is_written_with_its_domain_and_runs() -> None:
    result = graphopt.optimize(model(GELU), rules=[FUSE_BIAS], cost="none", target="onnxruntime")
    assert result.ok and operators(result) == ["com.microsoft.BiasGelu"]
    assert {entry.domain: entry.version for entry in result.model.opset_import}["com.microsoft"] == 1
    session = onnxruntime.InferenceSession(result.model.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": np.zeros((1, 2, 8), np.float32), "b": np.zeros(8, np.float32)})
    assert found.shape == (1, 2, 8)


def test_a_rule_onto_a_declared_operator_holds_behind_a_mask() -> None:
    body = "n = Constant <value_float: float = -inf> () x = Where(m, v, n) s = Add(x, b) y = Gelu(s)"
    masked = model(f"g (float[B, 8] v, float[8] b, bool[B, 8] m) => (float[B, 8] y) {{ {body} }}")
    result = graphopt.optimize(masked, rules=[FUSE_BIAS], cost="none", target="onnxruntime")
    assert result.ok and operators(result) == ["Where", "com.microsoft.BiasGelu"]


def test_the_standard_target_has_no_operators_of_onnx_runtime() -> None:
    result = optimized(GELU, [FUSE_BIAS])
    assert operators(result) == ["Add", "Gelu"]
    assert any("fuse_bias_gelu: not used" in note and "--target onnxruntime" in note for note in result.report.notes)


def test_an_operator_of_ones_own_is_read_in_a_model() -> None:
    add = "tests.definition.ScaledAdd"
    text = (
        f"g (float[4] a, float[4] c, float[4] d) => (float[4] r) {{ s = {add} (a, c) r = {add} <scale = %s> (s, d) }}"
    )
    assert operators(optimized(text % 1.0, [SUM])) == ["Sum"]
    assert operators(optimized(text % 2.0, [SUM])) == [add, add]


def test_a_node_that_is_not_as_it_is_defined_is_not_matched() -> None:
    text = "g (float[2, 4] v, float[2, 4] w) => (float[2, 4] r) { r = com.microsoft.BiasGelu(v, w) }"
    source = model(text, '"": 20, "com.microsoft": 1')
    split = Rule("expand_bias_gelu", microsoft.BiasGelu(x, b), op.Gelu(x + b))
    result = graphopt.optimize(source, rules=[split], only=["expand_bias_gelu"], cost="none", check=False)
    assert operators(result) == ["com.microsoft.BiasGelu"]


def test_a_node_whose_meaning_is_not_as_it_is_defined_is_not_matched() -> None:
    nested = Operators("tests.nested").Nested
    define(nested(y, z), microsoft.BiasGelu(y, z))
    split = Rule("expand_nested", nested(y, z), op.Gelu(y + z))
    for shape, count in (("4", 1), ("2, 4", 0)):
        text = f"g (float[2, 4] v, float[{shape}] w) => (float[2, 4] r) {{ r = tests.nested.Nested(v, w) }}"
        graph = onnx_io.load_model(model(text, '"": 20, "tests.nested": 1')).graph
        assert len(list(find_matches(split, graph))) == count


def test_an_operator_that_is_called_like_one_of_onnx_is_not_taken_for_it() -> None:
    other = Operators("tests.names").Add
    define(other(y, z), y - z)
    rule = Rule("expand_add", other(op.Relu(y), z), op.Relu(y) - z)
    for inputs, count in (("p, b", 1), ("b, p", 0)):
        text = f"g (float[4] a, float[4] b) => (float[4] r) {{ p = Relu(a) r = tests.names.Add({inputs}) }}"
        assert len(list(find_matches(rule, onnx_io.load_model(model(text, '"": 20, "tests.names": 1')).graph))) == count


def test_an_infinity_that_a_meaning_writes_is_known() -> None:
    masked = Operators("tests.masked").Masked
    define(masked(y, z), op.Where(y, z, -np.inf))
    for name, infinite in (("Masked", True), ("Other", False)):
        text = f"g (bool[4] m, float[4] a) => (float[4] r) {{ p = tests.masked.{name} (m, a) r = Relu(p) }}"
        graph = onnx_io.load_model(model(text, '"": 20, "tests.masked": 1')).graph
        assert may_have_magnitude(graph, graph.outputs) == infinite


def test_a_value_that_single_precision_rounds_is_read_as_it_is_written() -> None:
    tenth = Operators("tests.tenth").Scaled
    define(tenth(y, by=0.1), y * 0.1)
    text = "g (float[4] a) => (float[4] r) { r = tests.tenth.Scaled <by = 0.1> (a) }"
    graph = onnx_io.load_model(model(text, '"": 20, "tests.tenth": 1')).graph
    assert list(find_matches(Rule("expand_tenth", tenth(y, by=0.1), y * 0.1), graph))


@pytest.mark.parametrize("use", ["(v)", "(v, w, v)", "<scale = 2> (v, w)", "<bias = 2> (v, w)"])
def test_a_node_that_no_definition_is_of_is_left_as_it_is(use: str) -> None:
    text = f"g (float[4] v, float[4] w) => (float[4] r) {{ r = tests.definition.ScaledAdd {use} }}"
    assert optimized(text, [SUM]).model.graph.node[0] == model(text).graph.node[0]


def test_shapes_are_inferred_from_the_meaning() -> None:
    text = "g (float[A, S, 64] v) => (float[P, Q, R, T] r) { h = tests.definition.Heads <count = 4> (v) r = Relu(h) }"
    graph = onnx_io.load_model(model(text)).graph
    infer_graph(graph)
    (relu,) = graph.vertices_with_op("Relu")
    assert str(graph[relu].types[0]) == "FLOAT[A,S,4,16]"


# -- ONNX functions ----------------------------------------------------------------------------------------------------


def function(body: str, opset: int = 20) -> FunctionProto:
    return parser.parse_function(f'<domain: "tests.functions", opset_import: ["": {opset}]> {body}')


def test_a_function_is_a_definition() -> None:
    definition = define_function(
        function(
            "Softcap <cap: float = 30.0> (v) => (r)"
            "{ c = Constant <value_float: float = @cap> () d = Div(v, c) t = Tanh(d) r = Mul(t, c) }"
        )
    )
    softcap = Operators("tests.functions").Softcap
    assert str(definition) == "tests.functions.Softcap(v, cap=cap)  =  Tanh(v / cap) * cap"
    assert prove(Rule("fuse_softcap", op.Tanh(y / 30.0) * 30.0, softcap(y))).holds


def test_a_number_in_single_precision_is_the_decimal_that_it_is_written_for() -> None:
    (meaning,) = define_function(
        function("Tenth (v) => (r) { c = Constant <value = float {0.1}> () r = Mul(v, c) }")
    ).body
    assert str(meaning) == "v * 0.1"


def test_so_is_an_attribute_and_its_default() -> None:
    nodes = "r = LeakyRelu <alpha: float = @alpha> (v)"
    definition = define_function(function(f"Leaky <alpha: float = 0.1> (v) => (r) {{ {nodes} }}"))
    assert definition.defaults == (("alpha", Lit(0.1)),)
    leaky = Operators("tests.functions").Leaky
    assert prove(Rule("fuse_leaky", op.LeakyRelu(y, alpha=0.1), leaky(y))).holds


def test_so_are_numbers_in_a_list() -> None:
    nodes = "c = Constant <value_floats = [0.1, 0.2]> () r = Add(v, c)"
    assert str(define_function(function(f"Tenths (v) => (r) {{ {nodes} }}")).body[0]) == "v + [0.1, 0.2]"


def test_a_number_that_is_cast_is_the_decimal_too() -> None:
    """So does onnxscript write `v * 0.1` in Python, whatever type v has."""
    (meaning,) = define_function(
        function("CastTenth (v) => (r) { c = Constant <value = float {0.1}> () l = CastLike(c, v) r = Mul(v, l) }")
    ).body
    assert str(meaning) == "v * 0.1"


@pytest.mark.parametrize(
    ("nodes", "complaint"),
    [
        ("l = CastLike(c, i) r = Pow(v, l)", "'l' is a number cast to the type of i, and Pow takes it in another"),
        ("l = CastLike(c, v) r = Pow(v, l)", "'l' is a number cast to the type of v, and Pow takes it in another"),
        ("l = CastLike(c, i) r = Mul(v, l)", "'l' is a number cast to the type of i, and Mul takes it in another"),
        ("l = CastLike(c, i) e = Cast <to = 1> (l) r = Mul(v, e)", "'l' is a number cast .* Cast takes it in another"),
        ("l = CastLike(c, i) e = CastLike(l, v) r = Mul(v, e)", "'l' is a number that is cast twice"),
        ("r = CastLike(c, v)", "'r' is a number, which has no type of its own"),
    ],
)
def test_a_number_is_not_read_as_of_a_type_that_it_is_not_cast_to(nodes: str, complaint: str) -> None:
    with pytest.raises(RuleError, match=complaint):
        define_function(function(f"Cast (v, i) => (r) {{ c = Constant <value = float {{2.5}}> () {nodes} }}"))


def test_a_small_whole_number_is_the_same_in_each_type() -> None:
    nodes = "c = Constant <value = float {2}> () l = CastLike(c, v) r = Pow(v, l)"
    assert str(define_function(function(f"Square (v) => (r) {{ {nodes} }}")).body[0]) == "Pow(v, 2.0)"


def test_a_number_may_be_cast_to_the_type_of_what_has_that_of_its_neighbour() -> None:
    nodes = "c = Constant <value = float {2.5}> () l = CastLike(c, v) n = Neg(v) d = Sqrt(n) r = Where(b, l, d)"
    (meaning,) = define_function(function(f"Beside (v, b) => (r) {{ {nodes} }}")).body
    assert str(meaning) == "Where(b, 2.5, Sqrt(Neg(v)))"


@pytest.mark.parametrize(
    ("body", "opset", "meaning"),
    [
        ("Sum (v) => (r) { r = ReduceSum <axes = [1]> (v) }", 11, "ReduceSum(v, [1])"),
        ("Pool (v) => (r) { r = MaxPool <kernel_shape = [2, 2]> (v) }", 12, "MaxPool(v, kernel_shape=[2, 2])"),
        ("Soft (v) => (r) { r = Softmax <axis = -1> (v) }", 11, "Softmax(v, axis=-1)"),
        ("Six (v) => (r) { r = Clip <min = 0.0, max = 6.0> (v) }", 6, "Clip(v, 0.0, 6.0)"),
        ("Whole (v) => (r) { c = Cast <to = 7> (v) r = Neg(c) }", 13, "Neg(Cast(v, to=7))"),
        ("Halves (v) => (r, s) { r, s = Split <axis = 1> (v) }", 13, "Split(v, axis=1, num_outputs=2)[0]"),
        ("Half (v) => (r) { c = Constant <value_float = 0.5> () l = CastLike(c, v) r = Mul(v, l) }", 18, "v * 0.5"),
    ],
)
def test_operators_of_older_opsets_are_read_as_they_are_written_now(body: str, opset: int, meaning: str) -> None:
    older = FunctionProto()
    older.CopyFrom(function(body, opset))
    older.domain = "tests.older"
    assert str(define_function(older).body[0]) == meaning


@pytest.mark.parametrize(
    ("body", "opset", "complaint"),
    [
        (
            "Old (v) => (r) { r = Softmax <axis = 1> (v) }",
            11,
            "Softmax of opset 11 is written in another way since.* number of its axes is not known; write it in opset",
        ),
        ("Low (v, low) => (r) { r = Clip (v, low) }", 11, "Clip of opset 11 .*: the type of its data is not known"),
        ("Low (v) => (r) { r = Clip <min = 0.0> (v) }", 6, "Clip of opset 6 .*: the type of its data is not known"),
        (
            "Tiled (v) => (r) { r = Tile (v, v, v) }",
            5,
            "Tile of opset 5 .*: in opset 6 one axis and a count became a list",
        ),
        (
            "To <to: int> (v) => (r) { r = Cast <to: int = @to> (v) }",
            20,
            "Cast of opset 20 is written in another way since.*: the type that it casts to is not known",
        ),
        (
            "In (v) => (r) { r = ConstantOfShape <value = int64[1] {1}> (v) }",
            20,
            "'value' of ConstantOfShape is no number",
        ),
        ("Strange (v) => (r) { r = Unheard(v) }", 20, "nothing says what 'Unheard' of ONNX computes"),
        ("Table (v) => (r) { c = Constant <value = float[2, 1] {1, 2}> () r = Add(v, c) }", 20, "a constant of 2 axes"),
        ("Late (v) => (r) { r = Relu(v) }", 99, "nothing says what 'Relu' of ONNX computes in opset 99"),
    ],
)
def test_functions_that_are_no_terms(body: str, opset: int, complaint: str) -> None:
    with pytest.raises(RuleError, match=complaint):
        define_function(function(body, opset))


def test_what_is_no_function_is_said_so() -> None:
    with pytest.raises(RuleError, match="3 is no ONNX function"):
        define_function(3)


def test_an_operator_of_onnx_is_named_as_it_is_called() -> None:
    with pytest.raises(RuleError, match=r"^the definition of 'Relu': "):
        define(op.Relu(y), y + y)


# -- as data, and errors -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_rule_brings_its_definitions_along() -> None:
    rule = Rule("twice", y + 2.0 * z, my.ScaledAdd(y, z, scale=2.0))
    code = (
        "import json, sys; from graphopt.rule import Rule; rule = Rule.from_json(json.load(sys.stdin));"
        "print(rule.digest, rule.definitions[0])"
    )
    said = json.dumps(rule.to_json())
    read = subprocess.run([sys.executable, "-c", code], input=said, capture_output=True, text=True, check=True)
    assert read.stdout.split(maxsplit=1) == [rule.digest, f"{rule.definitions[0]}\n"]


@pytest.mark.slow
def test_rules_on_declared_operators_are_proved_in_other_processes() -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(prove, FUSE_BIAS).result().holds


def test_the_meaning_is_part_of_what_a_rule_says() -> None:
    one, other = Operators("tests.one").Same, Operators("tests.other").Same
    define(one(y), y + y)
    define(other(y), 2.0 * y)
    first, second = (Rule("same", op.Relu(each(y)), each(op.Relu(y))).to_json() for each in (one, other))
    assert first["definitions"] != second["definitions"]


def test_defining_it_again_changes_nothing_and_otherwise_is_an_error() -> None:
    define(my.ScaledAdd(y, z, scale=scale), y + scale * z, scale=1.0)
    with pytest.raises(RuleError, match="is defined otherwise already"):
        define(my.ScaledAdd(y, z, scale=scale), y - scale * z, scale=1.0)


def test_a_definition_of_more_outputs_says_the_same_of_those_that_another_has() -> None:
    define(my.OfOne(y), op.Relu(y))
    with pytest.raises(RuleError, match="is defined otherwise already"):
        define(my.OfOne.split(2, y), (op.Neg(y), op.Abs(y)))
    define(my.OfOne.split(2, z), (op.Relu(z), op.Abs(z)))


def test_names_of_holes_and_axes_make_no_other_definition() -> None:
    first, second = tensor("first", "*rows L"), tensor("second", "L")
    known = define(microsoft.BiasGelu(x, b), op.Gelu(x + b))
    assert define(microsoft.BiasGelu(first, second), op.Gelu(first + second)) is known
    with pytest.raises(RuleError, match="is defined otherwise already"):
        define(microsoft.BiasGelu(y, z), op.Gelu(y + z))  # of more shapes than the kernel takes


def test_outputs_behind_the_first_may_be_left_out() -> None:
    both = Operators("tests.outputs").Both
    define(both.split(2, y), (op.Relu(y), op.Neg(y)))
    negated = op.Neg(op.Relu(y))
    assert prove(Rule("first_alone", op.Neg(both(y)), negated)).holds
    assert prove(Rule("first_of_two", op.Neg(both.split(2, y)[0]), negated)).holds
    text = "g (float[4] v) => (float[4] r) { a%s = tests.outputs.Both(v) r = Neg(a) }"
    for more in ("", ", unread"):
        graph = onnx_io.load_model(model(text % more, '"": 20, "tests.outputs": 1')).graph
        assert len(list(find_matches(Rule("first_alone", op.Neg(both(y)), negated), graph))) == 1


def test_what_is_said_of_more_outputs_is_not_asked_of_fewer() -> None:
    """A kernel may keep what is promised of the first output alone."""
    either = Operators("tests.either").Either
    define(either(y), op.Relu(y))
    define(either.split(2, y), (op.Relu(y), op.Floor(y)))
    alone, together = Rule("alone", either(y), op.Relu(y)), Rule("together", either.split(2, y)[0], op.Relu(y))
    assert [len(rule.definitions[0].body) for rule in (alone, together)] == [1, 2]


def test_definitions_of_one_operator_exclude_each_other() -> None:
    both = Operators("tests.several").Both
    define(both(y, mode=0), op.Neg(y))
    define(both(y, mode=count), y * count, when=count > 0)
    assert prove(Rule("modes", both(both(y, mode=0), mode=count), both(y * count, mode=0), when=count > 0)).holds
    for head, meaning, when, defaults, complaint in (
        (both(y, mode=1), y + y, (), {}, "is defined otherwise already"),
        (both(y, mode=count, by=scale), y * count * scale, (), {"by": 1.0}, "is defined otherwise already"),
        (both(y, z, mode=scale), y * scale + z, (), {}, "takes another kind of 'mode'"),
        (
            my.ScaledAdd(y, z, x, scale=scale),
            y + scale * z + x,
            (),
            {"scale": 2.0},
            "has the default 2.0 of 'scale'",
        ),
    ):
        with pytest.raises(RuleError, match=complaint):
            define(head, meaning, when, **defaults)


@pytest.mark.parametrize(
    ("head", "meaning", "defaults", "complaint"),
    [
        (op.Gelu(y), y + y, {}, "it is to be an operator of a domain of its own"),
        (my.A(y, y), y + y, {}, "its inputs are holes"),
        (my.B(1.0), y, {}, "its inputs are holes"),
        (my.C(y, alpha=y), y + y, {}, r"alpha is a hole, such as real\('alpha'\), or one value"),
        (my.D(y, alpha=real("a")), y + y, {}, "'a' is no part of what it computes"),
        (my.E(y), y + z, {}, "hole 'z' is none of its inputs and attributes"),
        (my.F(y), op.Rleu(y), {}, "unknown operator 'Rleu'; did you mean 'Relu'?"),
        (my.G(y), y * 1.0, {"beta": 2.0}, "beta has a default and is none of its attributes"),
        (my.H(y), fn.rank(y), {}, "is a number, not a tensor"),
        (my.I(x), op.Reshape(x, fn.sizes("M")), {}, "axis 'M' is none of its inputs'"),
        (my.J(y), op.And(op.Relu(y), y), {}, "no element type"),
        (my.K(y, mode=string("m")), y * 1.0, {"mode": y}, "no number, text or list of numbers"),
        (my.K(y, mode=scale), y * scale, {"mode": "fast"}, "mode is an attribute of another kind than its default"),
        (my.K(y, mode=count), y * count, {"mode": 1.5}, "mode is an attribute of another kind than its default"),
        (my.L(y), my.ScaledAdd(y, y, scale="s"), {}, "scale of ScaledAdd is an attribute"),
        (my.L(y), my.ScaledAdd(y, z), {"when": lambda: True}, "a condition is a Python function"),
        ((my.M.split(2, y)[0], my.N.split(2, y)[1]), (y, y), {}, "an operator and all of its outputs"),
        ((), (), {}, "an operator and all of its outputs"),
        (y, y, {}, "an operator and all of its outputs"),
        (my.L(y), y + op.RandomNormalLike(y), {}, "RandomNormalLike is drawn anew each time"),
        (Operators("ai.onnx").Relu(y), y + y, {}, "it is to be an operator of a domain of its own"),
        (Operators("ai.onnx.ml").Scaler(y), y + y, {}, "it is to be an operator of a domain of its own"),
    ],
)
def test_definitions_that_are_none(head: object, meaning: object, defaults: dict[str, object], complaint: str) -> None:
    with pytest.raises(RuleError, match=complaint):
        define(head, meaning, **defaults)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("side", "complaint"),
    [
        (my.Unheard(y), "nothing says what 'tests.definition.Unheard' computes.*; say it before the rule"),
        (my.ScaledAd(y, z), "did you mean 'ScaledAdd'?"),
        (my.ScaledAdd(y), "ScaledAdd takes 2 to 2 inputs, not 1"),
        (my.ScaledAdd(y, z, factor=2.0), "ScaledAdd has no attribute 'factor'; it has scale"),
        (my.Heads(y), "Heads.* has other inputs, outputs or attributes than what is defined"),
    ],
)
def test_rules_that_use_it_otherwise(side: object, complaint: str) -> None:
    with pytest.raises(RuleError, match=complaint):
        Rule("other_use", op.Relu(y) + op.Relu(z), side)  # type: ignore[arg-type]
