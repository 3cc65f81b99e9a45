"""What a rewrite does to a graph: what is built, computed, named, and refused."""

from dataclasses import replace
from functools import partial

import numpy as np
import onnx.parser
import pytest
from onnx import ModelProto, numpy_helper

import graphopt
from graphopt.check.compare import compare_models
from graphopt.check.verdict import EqualityVerdict
from graphopt.io import onnx_io
from graphopt.ir.graph import Graph, Patch
from graphopt.language.rule import Rule, attributes, const, fn, op, tensor
from graphopt.operators import inference
from graphopt.rewrite.build import RewriteRefused, build_patch
from graphopt.rewrite.candidates import Candidate
from graphopt.rewrite.matching import find_matches
from graphopt.rewrite.simplify import Simplification, Simplifier, Step, simplify_graph
from graphopt.rules.layout import MOVES
from tests.text import parse, run

x = tensor("x")
w, b, s = const("w", "M C *k"), const("b", "M", default=0), const("s", "M 1*k")
rest = attributes("rest")
FOLD_SCALE = Rule(
    "fuse_mul_into_conv",
    op.Conv(x, w, b, rest) * s,
    op.Conv(x, w * op.Unsqueeze(s, (1,)), b * op.Reshape(s, (-1,)), rest),
)
c, d = const("c"), const("d")
FUSE_FACTORS = Rule("fuse_consecutive_muls", (x * c) * d, x * (c * d))
CONV = """<ir_version: 10, opset_import: ["" : 20]>
g (float[1, 1, 2, 2] x) => (float[1, 2, 2, 2] z)
<float[2, 1, 1, 1] w = {1.0, 2.0}, float[2] b = {10.0, 20.0}, float[2, 1, 1] s = {3.0, 5.0}>
{ [conv] y = Conv (x, w, b)  [scale] z = Mul (y, s) }"""


def load(text: str) -> onnx_io.LoadedModel:
    model = onnx_io.load_model(onnx.parser.parse_model(text))
    inference.infer_graph(model.graph)
    return model


def simplified(text: str, *rules: Rule) -> tuple[ModelProto, Simplification]:
    model = load(text)
    done = simplify_graph(model.graph, rules, ())
    model.graph.check_invariants()
    return onnx_io.to_proto(model), done


def weights(model: ModelProto) -> dict[str, list[float]]:
    return {i.name: numpy_helper.to_array(i).ravel().tolist() for i in model.graph.initializer}


def test_constants_are_computed_and_nodes_keep_their_names() -> None:
    model, _ = simplified(CONV, FOLD_SCALE)
    (conv,) = model.graph.node
    assert (conv.name, conv.op_type, list(conv.output)) == ("conv", "Conv", ["z"])
    assert weights(model) == {conv.input[1]: [3.0, 10.0], conv.input[2]: [30.0, 100.0]}


def test_names_do_not_grow_along_a_chain_of_folded_constants() -> None:
    nodes = " ".join(f"v{i + 1} = Add (v{i}, c)" for i in range(50))
    chain = f"""<ir_version: 10, opset_import: ["" : 20]>
    g (float[2] v0) => (float[2] v50) <float[2] c = {{1.0, 2.0}}> {{ {nodes} }}"""
    model, _ = simplified(chain, Rule("fuse_consecutive_adds", (x + c) + d, x + (c + d)))
    ((name, values),) = weights(model).items()
    assert values == [50.0, 100.0]
    assert name.startswith("c_folded")
    assert len(name) <= len("c_folded_49")


def test_an_absent_input_stays_absent_where_it_stays_zero() -> None:
    model, _ = simplified(CONV.replace("(x, w, b)", "(x, w)"), FOLD_SCALE)
    (conv,) = model.graph.node
    assert len(conv.input) == 2


def test_a_value_that_is_read_elsewhere_stays_and_the_measure_decides() -> None:
    twice = CONV.replace("float[1, 2, 2, 2] z)", "float[1, 2, 2, 2] z, float[1, 2, 2, 2] y)")
    model, done = simplified(twice, FOLD_SCALE)
    assert [node.op_type for node in model.graph.node] == ["Conv", "Mul"]
    assert not done.steps


def test_what_would_overflow_is_refused_and_noted() -> None:
    proto = onnx.parser.parse_model(CONV.replace("float[1, 1, 2, 2]", "float16[1, 1, 2, 2]").replace("3.0", "60000.0"))
    for weight in proto.graph.initializer:
        weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight).astype(np.float16), weight.name))
    proto.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    graph = onnx_io.load_model(proto).graph
    done = simplify_graph(graph, [FOLD_SCALE], ())
    assert graph.operator_counts() == {"Conv": 1, "Mul": 1}
    assert any("overflow FLOAT16" in note for note in done.notes)


def test_factors_that_would_vanish_together_stay_apart() -> None:
    proto = parse("float16[4] x", "a = Mul(x, c); y = Mul(a, c)", {"c": np.array([1e-5], np.float16)})
    graph = onnx_io.load_model(proto).graph
    inference.infer_graph(graph)
    done = simplify_graph(graph, [FUSE_FACTORS], ())
    assert graph.operator_counts() == {"Mul": 2}
    assert any("underflow FLOAT16" in note for note in done.notes)


@pytest.mark.slow
def test_a_product_of_weights_that_takes_too_long_is_refused() -> None:
    def notes(rows: int) -> tuple[str, ...]:
        given = {"v": np.ones((rows, 4096), np.float32), "w": np.ones((4096, 4096), np.float32)}
        graph = onnx_io.load_model(parse(f"float[1,{rows}] x", "a = MatMul(x, v); y = MatMul(a, w)", given)).graph
        inference.infer_graph(graph)
        return simplify_graph(graph, [Rule("reassociate", (x @ a) @ c, x @ (a @ c))], ()).notes

    a, c = const("a", "M K"), const("c", "K N")
    assert notes(8) == ()
    assert any("takes too long" in note for note in notes(4097))


def test_a_rule_whose_operator_the_opset_lacks_is_noted() -> None:
    gelu = Rule("fuse_gelu", op.Neg(op.Relu(x)), op.Gelu(x))  # not true, and never applied here
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[2] x) => (float[2] z) { y = ACT(x)  z = Neg(y) }"""
    _, done = simplified(text.replace("ACT", "Relu"), gelu)
    text_of_note = "rule fuse_gelu needs Gelu: opset 20, the model has 17; --target-opset 20 converts it"
    assert done.notes == (text_of_note,)
    _, done = simplified(text.replace("ACT", "Tanh"), gelu)
    assert done.notes == ()  # only where it would have been applied


def test_what_one_opset_lacks_another_has() -> None:
    """One simplifier goes through graphs of several opsets."""
    gelu = Rule("fuse_gelu", op.Neg(op.Relu(x)), op.Gelu(x))  # not true, and applied to nothing that is run
    simplifier = Simplifier([gelu], ())
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[2] x) => (float[2] z) { y = Relu(x)  z = Neg(y) }"""
    for opset, steps in ((17, 0), (20, 1), (17, 0)):
        done = simplifier.run(load(text.replace("17", str(opset))).graph)
        assert (len(done.steps), len(done.notes)) == (steps, 1 - steps)


def test_a_result_of_another_type_is_refused() -> None:
    wrong = Rule("drop_scale", op.Conv(x, w, b, rest) * s, op.Flatten(op.Conv(x, w, b, rest)))
    graph = load(CONV).graph
    (match,) = find_matches(wrong, graph)
    names = set(graph.names)
    with pytest.raises(RewriteRefused, match="the result would be"):
        build_patch(graph, match)
    assert graph.names == names


@pytest.mark.parametrize("rule", [
    Rule("writes_a_tiny_number", op.Abs(op.Neg(x)), op.Mul(x, 1e-6)),
    Rule("computes_a_tiny_number", op.Abs(op.Neg(x)), op.Mul(x, op.Mul(1e-3, 1e-3))),
])  # fmt: skip
def test_a_number_that_half_precision_has_none_near_to_is_not_written(rule: Rule) -> None:
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (TYPE[2] x) => (TYPE[2] z) { y = Neg(x)  z = Abs(y) }"""
    model, done = simplified(text.replace("TYPE", "float16"), rule)
    assert not model.graph.initializer and any("FLOAT16" in note for note in done.notes)
    assert simplified(text.replace("TYPE", "float"), rule)[0].graph.initializer


@pytest.mark.parametrize(("factor", "is_folded"), [(5e-7, False), (0.5, True)])
def test_weights_of_half_precision_keep_their_digits_in_each_channel(factor: float, is_folded: bool) -> None:
    """Beside ones, what is half a millionth is rounded to whole steps of 6e-8."""
    weights = {"s": np.array([1, factor], np.float16).reshape(2, 1, 1), "w": np.full((2, 2, 1, 1), 0.7, np.float16)}
    model = parse("float16[n,2,4,4] x", "c = Conv(x, w); y = Mul(c, s)", weights, outputs="float16[n,2,4,4] y")
    assert ("Mul" not in graphopt.optimize(model, cost="none").report.after.ops) == is_folded


def test_a_result_that_is_computed_from_another_is_not_needed_for_it() -> None:
    """z = x + Relu(n) has to be there before n = -x, were both parts of one Split."""
    p, q = tensor("p", "N M"), tensor("q", "N M")
    joined = op.Concat(op.Neg(p), p + q, axis=0)
    rule = Rule(
        "side_by_side", (op.Neg(p), p + q), op.Split.split(2, joined, fn.concat(fn.size("N"), fn.size("N")), axis=0)
    )
    for second, notes in (("z = Add(x, r)", 1), ("z = Add(x, x)  u = Add(r, z)", 0)):
        text = f"""<ir_version: 10, opset_import: ["" : 20]>
        g (float[2,2] x) => (float[2,2] z, float[2,2] r) {{ n = Neg(x)  r = Relu(n)  {second} }}"""
        graph = onnx_io.load_model(onnx.parser.parse_model(text)).graph
        inference.infer_graph(graph)
        match = next(find_matches(rule, graph))
        if notes:
            with pytest.raises(RewriteRefused, match="is needed to compute another"):
                build_patch(graph, match)
        else:
            graph.apply(build_patch(graph, match))
            assert list(graph.topological_order())


def test_numbers_take_the_type_of_what_they_meet() -> None:
    rule = Rule("neg_to_mul", op.Abs(op.Neg(x)), op.Mul(x, -1.0))  # types, not truth
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (double[2] x) => (double[2] z) { y = Neg(x)  z = Abs(y) }"""
    model, _ = simplified(text, rule)
    (constant,) = model.graph.initializer
    assert constant.data_type == onnx.TensorProto.DOUBLE


def test_an_elimination_at_an_output_keeps_the_outputs_name() -> None:
    rule = Rule("eliminate_identity", op.Identity(x), x)
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[2] x) => (float[2] z) { y = Relu(x)  z = Identity(y) }"""
    model, _ = simplified(text, rule)
    assert [(node.op_type, list(node.output)) for node in model.graph.node] == [("Relu", ["z"])]


def test_siblings_are_merged_by_a_rule_with_two_outputs() -> None:
    a, v, u = tensor("a", "B K"), const("v", "K N"), const("u", "K M")
    left, right = op.Split.split(2, a @ op.Concat(v, u, axis=1), fn.concat(fn.size("N"), fn.size("M")), axis=1)
    merge = Rule("merge_matmuls", (a @ v, a @ u), (left, right))
    graph = load(
        """<ir_version: 10, opset_import: ["" : 20]>
        g (float[1, 2] x) => (float[1, 2] p, float[1, 1] q) <float[2, 2] v = {1, 2, 3, 4}, float[2, 1] u = {5, 6}>
        { p = MatMul(x, v)  q = MatMul(x, u) }"""
    ).graph
    patch = build_patch(graph, next(find_matches(merge, graph)))
    graph.apply(patch)
    graph.check_invariants()
    assert graph.operator_counts() == {"MatMul": 1, "Split": 1}
    graph.apply(patch.inverse)
    graph.check_invariants()
    assert graph.operator_counts() == {"MatMul": 2}


def test_a_sibling_that_stays_keeps_its_name_for_itself() -> None:
    a, v, u, k = tensor("a", "B K"), const("v", "K N"), const("u", "K N"), const("k", "N")
    scale = Rule("scale_beside_matmul", ((a @ v) * k, a @ u), (a @ (v * k), a @ u))
    graph = load(
        """<ir_version: 10, opset_import: ["" : 20]>
        g (float[1, 1] x) => (float[1, 1] p, float[1, 1] q) <float[1, 1] v = {2}, float[1, 1] u = {3}, float[1] k = {5}>
        { [one] y = MatMul(x, v)  [scale] p = Mul(y, k)  [two] q = MatMul(x, u) }"""
    ).graph
    graph.apply(build_patch(graph, next(find_matches(scale, graph))))
    assert sorted(node.name for _, node in graph.vertices_and_nodes() if not node.is_internal) == ["one", "two"]


def structure(graph: Graph) -> set[tuple[int, str, tuple[object, ...]]]:
    return {(vertex, node.op, node.inputs) for vertex, node in graph.vertices_and_nodes()}


@pytest.mark.parametrize(
    ("shape", "perm", "target"),
    [
        ("2,1,3,4", (0, 2, 1, 3), [0, 3, 1, 0]),
        ("N,1,3,4", (0, 2, 3, 1), [0, 3, 4, 1]),
        ("N,3,4,1", (0, 3, 1, 2), [0, 1, 3, 4]),
        ("N,1,3,S", (0, 2, 1, 3), [0, 3, 1, 0]),
        ("2,1,S,4", (0, 2, 1, 3), [0, -1, 1, 0]),
        ("N,1,S", (0, 2, 1), None),
        ("N,1,0", (0, 2, 1), None),
    ],
)
def test_a_transpose_that_moves_an_axis_of_size_1_is_one_reshape_where_the_sizes_are_known(
    shape: str, perm: tuple[int, ...], target: list[int] | None
) -> None:
    given = parse(f"float[{shape}] x", f"a = Relu(x); t = Transpose<perm={list(perm)}>(a); y = Exp(t)")
    model = onnx_io.load_model(given)
    inference.infer_graph(model.graph)
    simplify_graph(model.graph, MOVES, ())
    found = onnx_io.to_proto(model)
    assert [node.op_type for node in found.graph.node] == ["Relu", "Reshape" if target else "Transpose", "Exp"]
    assert sorted(weights(found).values()) == ([target] if target else [])
    assert compare_models(given, found, seeds=(0, 1)).ok


def test_a_candidate_knows_the_graph_after_each_step() -> None:
    """Of those that made its base, too."""
    graph = onnx_io.load_model(parse("float[4] x", "a = Neg(x); b = Neg(a); c = Abs(b); d = Abs(c); y = Exp(d)")).graph
    inference.infer_graph(graph)
    rules = [Rule("double_neg", op.Neg(op.Neg(x)), x), Rule("double_abs", op.Abs(op.Abs(x)), op.Abs(x))]
    start = Candidate(graph)
    first, second = (partial(lambda graph, rule: simplify_graph(graph, [rule], ()).steps, rule=rule) for rule in rules)
    last = start.derive(first).derive(second)
    states = [{"Neg": 2, "Abs": 2, "Exp": 1}, {"Abs": 2, "Exp": 1}, {"Abs": 1, "Exp": 1}]
    assert [step.name for step in last.steps] == ["double_neg", "double_abs"]
    for count in (0, 1, 2, 1, 0):
        with last.graph_after(count) as found:
            assert found.operator_counts() == states[count]
    seen = [(step.name, step.graph.operator_counts()) for step in last.iter_steps_backwards()]
    assert seen == [("double_abs", states[2]), ("double_neg", states[1])]
    assert (last.graph.operator_counts(), graph.operator_counts()) == (states[2], states[0])
    assert last.derive(first) is last, "where there is nothing to do, no candidate is made"


def test_weights_are_computed_in_double_precision() -> None:
    third = np.float32(1 / 3)
    text = CONV.replace("3.0, 5.0", f"{third!r}".removeprefix("np.float32(").removesuffix(")") + ", 5.0")
    model, _ = simplified(text, FOLD_SCALE)
    assert np.float32(weights(model)[model.graph.node[0].input[1]][0]) == third


# -- sizes that are open --------------------------------------------------------------------------------------------

u, v = tensor("u", "A 1 K"), tensor("v", "1 B K")
AS_MATRIX = Rule(
    "as_matrix",
    op.Exp(tensor("x", "A B K")),
    op.Reshape(op.Exp(op.Reshape(tensor("x", "A B K"), (-1, 8))), fn.sizes("A B K"), allowzero=1),
)
SUM = Rule("sum", u + v, op.Reshape(op.Sum(u, v), fn.sizes("A B K"), allowzero=1))


def built(rule: Rule, given: ModelProto) -> onnx_io.LoadedModel:
    """The model with a rule applied once, at its output."""
    model = onnx_io.load_model(given)
    inference.infer_graph(model.graph)
    (match, *_) = find_matches(rule, model.graph, model.graph.outputs[0].vertex)
    model.graph.apply(build_patch(model.graph, match))
    model.graph.check_invariants()
    return model


@pytest.mark.parametrize(
    ("rule", "given"),
    [
        pytest.param(AS_MATRIX, parse("float[a,b,8] x", "y = Exp(x)"), id="of one input"),
        pytest.param(SUM, parse("float[a,1,8] x,float[1,b,8] z", "y = Add(x, z)"), id="of two inputs"),
    ],
)
def test_a_view_with_two_open_sizes_reads_them_off_the_inputs(rule: Rule, given: ModelProto) -> None:
    model = built(rule, given)
    shapes = [node for _, node in model.graph.vertices_and_nodes() if node.op == "Shape"]
    assert len(shapes) == len(given.graph.input)
    assert model.graph.operator_counts()["Concat"] == 1
    assert compare_models(given, model, bindings=[{"a": 2, "b": 3}, {"a": 1, "b": 1}]).verdict is EqualityVerdict.EQUAL


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (parse("float[a,b,8] x", "y = Exp(x)", opset=14), "Shape"),
        (
            parse("float[a,b,8] x", "t = Concat<axis=0>(x, x); u = Concat<axis=1>(t, t); y = Exp(u)"),
            "which no input has",
        ),
    ],
    ids=["opset", "size"],
)
def test_sizes_that_cannot_be_read_are_refused(given: ModelProto, why: str) -> None:
    with pytest.raises(RewriteRefused, match=why):
        built(AS_MATRIX, given)


def test_a_large_number_that_is_added_and_taken_away_again_rounds() -> None:
    """It is how floats are rounded to whole numbers without an operator for that."""
    large = np.full(4, 1.5 * 2**23, np.float32)
    model = parse("float[4] x", "t = Add(x, a); y = Sub(t, b)", {"a": large, "b": large.copy()}, outputs="float[4] y")
    feeds = {"x": np.array([0.25, 1.5, -2.75, 3.125], np.float32)}
    result = graphopt.optimize(model, cost="none", check=False)
    assert np.array_equal(run(result.model, feeds)["y"], np.round(feeds["x"]))


def test_after_a_change_rules_are_tried_only_near_it() -> None:
    """Of two double negations, one is put in by a step: it goes, and the other is left where nothing changed."""
    rule = Rule("double_neg", op.Neg(op.Neg(tensor("x"))), tensor("x"))
    chain = "".join(f"t{number + 1} = Exp(t{number}); " for number in range(12))
    loaded = onnx_io.load_model(parse("float[4] x", f"a = Neg(x); t0 = Neg(a); {chain}c = Abs(t12); y = Abs(c)"))
    inference.infer_graph(loaded.graph)
    (last,) = loaded.graph.outputs
    (vertex,) = loaded.graph.sources(last.vertex)
    before = {each: loaded.graph[each] for each in (vertex, last.vertex)}
    patch = Patch(before, {each: replace(node, op="Neg") for each, node in before.items()})
    loaded.graph.apply(patch)
    Simplifier([rule], []).run(loaded.graph, [Step("change", loaded.graph, patch, is_rule=True)])
    assert loaded.graph.operator_counts()["Neg"] == 2
    Simplifier([rule], []).run(loaded.graph)
    assert "Neg" not in loaded.graph.operator_counts()
