"""Parts of a graph: where they are cut, what is carried back from them, and which of them are equal."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from graphopt.base.dtype import DType
from graphopt.check.compare import compare_models
from graphopt.check.verdict import EqualityVerdict
from graphopt.io import onnx_io
from graphopt.ir.graph import Graph, Patch, Value
from graphopt.ir.types import TensorType
from graphopt.language.rule import Rule, const, op, tensor
from graphopt.operators.inference import infer_graph
from graphopt.rewrite.build import RewriteRefused, build_patch
from graphopt.rewrite.matching import Match, find_matches
from graphopt.rewrite.regions import (
    BlockSizes,
    Region,
    cut_into_blocks,
    extract_region,
    graph_digest,
    portable_digest,
    speed_digest,
    weights_digest,
    with_input_types,
)
from graphopt.rules import MEMORY_TRADES, RULES, TENSOR_PARALLEL, TRADES
from tests.text import parse, printed

x, y = tensor("x"), tensor("y")
EVERY = {
    rule.name: rule for rule in (*RULES, *TRADES) if rule not in (*MEMORY_TRADES, *TENSOR_PARALLEL)
}  # what a search may apply
DOUBLE_NEG = Rule("double_neg", op.Neg(op.Neg(x)), x)
SHIFTED = Rule("neg_of_sum", -(x + y), -x + -y)
SCALED = Rule("scale_product", (tensor("x", "*b M K") @ const("w", "K N")) * const("s", "N"),
              tensor("x", "*b M K") @ (const("w", "K N") * const("s", "N")))  # fmt: skip


def weight(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def load(model: onnx.ModelProto) -> onnx_io.LoadedModel:
    """A model whose types are all known."""
    found = onnx_io.load_model(model)
    infer_graph(found.graph)
    return found


def graph_of(inputs: str, body: str, *, outputs: str = "float[4] y", **weights: Any) -> Graph:
    return load(parse(inputs, body, weights, outputs=outputs)).graph


def nodes(graph: Graph) -> list[int]:
    """The ONNX nodes in topological order."""
    return [vertex for vertex in graph.topological_order() if not graph[vertex].is_internal]


def region_of(graph: Graph, ops: str | None = None) -> Region:
    """The region of the nodes with these operators; without them, of all."""
    chosen = [vertex for vertex in nodes(graph) if ops is None or graph[vertex].op in ops.split()]
    found = extract_region(graph, chosen)
    assert found is not None
    return found


def rewrite(rule: Rule, graph: Graph) -> Patch:
    """Apply a rule at its first place."""
    patch = build_patch(graph, next(find_matches(rule, graph)))
    graph.apply(patch)
    return patch


def carry(region: Region, patch: Patch) -> None:
    region.whole.apply(region.carry_patch(patch))
    region.whole.check_invariants()
    region.graph.check_invariants()


def ops_of(graph: Graph, block: Sequence[int]) -> str:
    return " ".join(graph[vertex].op for vertex in block)


# -- where to cut ------------------------------------------------------------------------------------------------------

LAYER = (
    "p{i} = Exp(x{i}); q{i} = Neg(p{i}); r{i} = Abs(q{i}); s{i} = Sqrt(r{i}); t{i} = Sin(s{i}); x{j} = Add(t{i}, x{i})"
)


def layers(count: int, layer: str = LAYER) -> str:
    return "; ".join(layer.format(i=i, j=i + 1) for i in range(count))


def test_a_residual_chain_is_cut_after_each_sum() -> None:
    graph = graph_of("float[4] x0", layers(4), outputs="float[4] x4")
    assert [ops_of(graph, block) for block in cut_into_blocks(graph)] == ["Exp Neg Abs Sqrt Sin Add"] * 4


def test_a_mask_that_all_layers_read_does_not_keep_them_together() -> None:
    layer = LAYER.replace("Abs(q{i})", "Add(q{i}, m)")
    body = f"m = Mul(mask, -10.0); {layers(20, layer)}"
    graph = graph_of("float[4] x0, float[4] mask", body, outputs="float[4] x20")
    found = cut_into_blocks(graph)
    assert len(found) == 20
    assert {ops_of(graph, block) for block in found[2:]} == {"Exp Neg Add Sqrt Sin Add"}


def test_short_runs_are_joined_and_long_ones_halved() -> None:
    fewest, most = BlockSizes().min_nodes, BlockSizes().max_nodes
    line = graph_of("float[4] x0", layers(20, "x{j} = Neg(x{i})"), outputs="float[4] x20")
    assert [len(block) for block in cut_into_blocks(line)] == [fewest, fewest, fewest, 20 - 3 * fewest]
    pairs = layers(70, "x{j} = Add(x{i}, z{i}); z{j} = Mul(x{i}, z{i})")
    braid = graph_of("float[4] x0, float[4] z0", f"{pairs}; y = Add(x70, z70)")
    found = cut_into_blocks(braid)
    assert list(chain.from_iterable(found)) == nodes(braid)
    assert all(most // 4 < len(block) <= most for block in found)


def test_an_identity_that_gives_an_output_its_name_is_in_no_part() -> None:
    """In a part it could go, by whatever else is done to the part, which then seemed to pay."""
    outputs = "float[4] y, float[4] same, float[4] given"
    graph = graph_of("float[4] x", "y = Neg(x) same = Identity(y) given = Identity(x)", outputs=outputs)
    assert [ops_of(graph, block) for block in cut_into_blocks(graph)] == ["Neg"]


def test_what_no_output_depends_on_is_in_no_part_and_reads_what_takes_the_place_of_a_value() -> None:
    """It stays where `--exact` lets nothing go that stands beside half precision."""
    graph = graph_of("float[4] x", "a = Neg(x) b = Neg(a) y = Exp(b) left = Abs(b)")
    (block,) = cut_into_blocks(graph)
    assert ops_of(graph, block) == "Neg Neg Exp"
    region = extract_region(graph, block)
    assert region is not None
    carry(region, rewrite(DOUBLE_NEG, region.graph))
    assert graph.operator_counts() == {"Exp": 1, "Abs": 1}


def test_what_means_something_else_elsewhere_stands_alone() -> None:
    text = """<ir_version: 8, opset_import: ["" : 18, "own" : 1]> test (float[4] x, bool c) => (float[4] y) {
        a = Neg(x)
        b = If(c) <then_branch = t () => (float[4] p) { p = Exp(a) }, else_branch = e () => (float[4] q) { q = Abs(a) }>
        d = Neg(b)
        r = RandomNormalLike(d)
        s = Add(d, r)
        o = own.Mystery(s)
        y = Neg(o)
    }"""
    graph = load(onnx.parser.parse_model(text)).graph
    found = cut_into_blocks(graph)
    assert [ops_of(graph, block) for block in found] == [
        "Neg",
        "If",
        "Neg",
        "RandomNormalLike",
        "Add",
        "Mystery",
        "Neg",
    ]
    cut = {graph[block[0]].op: extract_region(graph, block) is not None for block in found}
    assert cut == {"Neg": True, "If": False, "RandomNormalLike": False, "Add": True, "Mystery": False}


# -- cutting out -------------------------------------------------------------------------------------------------------


def test_a_region_has_what_crosses_its_border_as_inputs_and_outputs() -> None:
    graph = graph_of("float[4] x", "a = Exp(x); b = Mul(a, w); c = Add(b, a); y = Neg(c)", w=weight(4))
    region = region_of(graph, "Mul Add")
    assert printed(region.graph) == [f"b = Mul(a, {weight(4).tolist()})", "c = Add(b, a)", "return c"]
    assert region.graph.output_types == (TensorType(DType.FLOAT, (4,)),)
    region.graph.check_invariants()


def test_an_output_of_the_graph_is_one_of_the_region_even_if_it_is_read_inside() -> None:
    graph = graph_of("float[4] x", "a = Exp(x); y = Neg(a)", outputs="float[4] y, float[4] a")
    assert printed(region_of(graph).graph)[-1] == "return a, y"


def test_of_several_outputs_of_a_node_only_those_that_are_read_are_outputs() -> None:
    body = "a, b, c = Split<axis=0, num_outputs=3>(x); d = Neg(a); y = Add(d, c)"
    graph = graph_of("float[6] x", body, outputs="float[2] y")
    assert printed(region_of(graph, "Split Neg").graph)[-1] == "return c, d"


def test_what_leads_to_no_output_stays_behind() -> None:
    graph = graph_of("float[4] x", "a = Exp(x); dead = Neg(a); y = Abs(a)")
    assert printed(region_of(graph).graph) == ["a = Exp(x)", "y = Abs(a)", "return y"]


# -- carrying back -----------------------------------------------------------------------------------------------------


def test_a_rewrite_of_a_region_is_one_of_the_whole() -> None:
    given_ = parse("float[2,4] x", "a = MatMul(x, w); b = Mul(a, s); y = Exp(b)",
                   {"w": weight(4, 3), "s": weight(3)}, outputs="float[2,3] y")  # fmt: skip
    model = load(given_)
    carry(region := region_of(model.graph, "MatMul Mul"), rewrite(SCALED, region.graph))
    direct = load(given_)
    rewrite(SCALED, direct.graph)
    assert printed(model.graph) == printed(direct.graph)
    assert graph_digest(model.graph) == graph_digest(direct.graph)
    assert compare_models(given_, model).verdict is EqualityVerdict.EQUAL


def test_the_second_patch_may_touch_what_the_first_has_made() -> None:
    model = load(given_ := parse("float[4] x, float[4] z", "a = Add(x, z); b = Neg(a); c = Neg(b); y = Exp(c)"))
    region = region_of(model.graph, "Add Neg")
    carry(region, rewrite(SHIFTED, region.graph))
    carry(region, rewrite(SHIFTED, region.graph))
    assert [model.graph[vertex].op for vertex in nodes(model.graph)].count("Neg") == 4
    for _ in range(2):
        carry(region, rewrite(DOUBLE_NEG, region.graph))
    assert model.graph.operator_counts() == {"Add": 1, "Exp": 1}
    assert compare_models(given_, model).verdict is EqualityVerdict.EQUAL


def test_a_constant_that_another_region_reads_survives() -> None:
    body = "a = MatMul(x, w); b = Mul(a, s); c = Exp(b); y = Add(c, s)"
    model = load(given_ := parse("float[2,4] x", body, {"w": weight(4, 3), "s": weight(3)}, outputs="float[2,3] y"))
    region = region_of(model.graph, "MatMul Mul")
    carry(region, rewrite(SCALED, region.graph))
    constants = [node.names[0] for _, node in model.graph.vertices_and_nodes() if node.is_constant]
    assert "s" in constants and "w" not in constants
    assert compare_models(given_, model).verdict is EqualityVerdict.EQUAL


def test_names_are_nobody_elses_and_those_of_outputs_stay() -> None:
    layer = "a{i} = Add(x{i}, x{i}); x{j} = Neg(a{i})"
    model = load(given_ := parse("float[4] x0", layers(3, layer), outputs="float[4] x3, float[4] x2"))
    graph = model.graph
    for block in [nodes(graph)[start : start + 2] for start in (0, 2, 4)]:
        region = extract_region(graph, block)
        assert region is not None
        carry(region, rewrite(SHIFTED, region.graph))
    proto = onnx_io.to_proto(model)
    made = [name for node in proto.graph.node for name in node.output]
    assert len(made) == len(set(made))
    assert [output.name for output in proto.graph.output] == ["x3", "x2"]
    assert compare_models(given_, model).verdict is EqualityVerdict.EQUAL


def test_an_output_of_the_graph_moves_with_a_patch() -> None:
    model = load(given_ := parse("float[4] x", "a = Exp(x); b = Neg(a); y = Neg(b)"))
    region = region_of(model.graph, "Neg")
    carry(region, rewrite(DOUBLE_NEG, region.graph))
    assert printed(model.graph)[0].endswith("= Exp(x)")
    assert compare_models(given_, model).verdict is EqualityVerdict.EQUAL


def test_neighbours_may_have_been_rewritten_in_between() -> None:
    body = "a = Add(x, z); b = Neg(a); c = Exp(b); d = Add(c, z); e = Neg(d); y = Abs(e)"
    model = load(given_ := parse("float[4] x, float[4] z", body))
    graph = model.graph
    first, second = extract_region(graph, nodes(graph)[:3]), extract_region(graph, nodes(graph)[3:])
    assert first is not None and second is not None
    patches = [rewrite(SHIFTED, region.graph) for region in (first, second)]
    carry(first, patches[0])
    carry(second, patches[1])
    assert graph.operator_counts() == {"Neg": 4, "Add": 2, "Exp": 1, "Abs": 1}
    assert compare_models(given_, model).verdict is EqualityVerdict.EQUAL


def test_a_rewrite_with_several_outputs_is_carried() -> None:
    merge = EVERY["merge_2_parallel_matmuls"]
    body = "a = MatMul(x, w); b = MatMul(x, v); c = Exp(a); d = Exp(b); y = Concat<axis=1>(c, d)"
    model = load(given_ := parse("float[2,4] x", body, {"w": weight(4, 3), "v": weight(4, 5)}, outputs="float[2,8] y"))
    region = region_of(model.graph, "MatMul")
    carry(region, rewrite(merge, region.graph))
    assert model.graph.operator_counts() == {"MatMul": 1, "Split": 1, "Exp": 2, "Concat": 1}
    assert compare_models(given_, model).verdict is EqualityVerdict.EQUAL


BODY = """a = MatMul(x, w); b = Add(a, p); c = MatMul(x, v); d = Mul(c, s); e = Add(b, d); f = Neg(e); g = Neg(f);
h = Relu(g); i = Add(h, x); j = Mul(i, s); k = MatMul(j, w); l = Add(k, p); m = Transpose<perm=[1,0]>(l);
n = Transpose<perm=[1,0]>(m); o = Add(n, i); y = Reshape(o, [2,8])"""
SOURCE = parse("float[4,4] x", BODY, {"w": weight(4, 4), "v": weight(4, 4, seed=1), "p": weight(4, seed=2),
               "s": weight(4, seed=3)}, outputs="float[2,8] y")  # fmt: skip


def places(graph: Graph) -> list[Match]:
    """Wherever some rule of the library matches."""
    return [match for rule in EVERY.values() for match in find_matches(rule, graph)]


class Twin:
    """A graph to which the rewrites of a region of another are applied directly."""

    def __init__(self, graph: Graph, region: Region) -> None:
        self.graph = graph.copy()
        self.vertices = dict(region.outer_vertices) | {
            new.vertex: old.vertex for new, old in region.outer_values.items()
        }

    def follow(self, match: Match, patch: Patch) -> None:
        roots = tuple(Value(self.vertices[root.vertex], root.output) for root in match.roots)
        own = next(found for found in find_matches(match.rule, self.graph, roots[0].vertex) if found.roots == roots)
        made = build_patch(self.graph, own)
        self.graph.apply(made)
        fresh = (sorted(each.after.keys() - each.before.keys()) for each in (patch, made))
        self.vertices |= dict(zip(*fresh, strict=True))


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    start=st.integers(0, 9), length=st.integers(3, 16), picks=st.lists(st.integers(0, 10**6), min_size=1, max_size=6)
)
def test_any_rewrites_of_a_part_are_those_of_the_whole(start: int, length: int, picks: list[int]) -> None:
    model = load(SOURCE)
    region = extract_region(model.graph, nodes(model.graph)[start : start + length])
    assert region is not None
    twin = Twin(model.graph, region)
    for pick in picks:
        possible = places(region.graph)
        if not possible:
            break
        match = possible[pick % len(possible)]
        try:
            patch = build_patch(region.graph, match)
        except RewriteRefused:
            continue
        region.graph.apply(patch)
        carry(region, patch)
        twin.follow(match, patch)
        assert graph_digest(model.graph) == graph_digest(twin.graph)
    assert compare_models(SOURCE, model, seeds=(0,)).verdict is EqualityVerdict.EQUAL


# -- with sizes as numbers ---------------------------------------------------------------------------------------------


def test_a_region_at_some_sizes_has_numbers_everywhere() -> None:
    body = "a = Shape(x); b = Concat<axis=0>(a, [1]); c = Reshape(x, b); y = Squeeze(c, [2])"
    region = region_of(graph_of("float[batch,4] x", body, outputs="float[batch,4] y"))
    given_ = TensorType(DType.FLOAT, (3, 4))
    known = with_input_types(region.graph, [given_], [None])
    assert {str(node.types[0]) for _, node in known.nodes()} >= {"FLOAT[3,4,1]", "FLOAT[3,4]"}
    assert str(known.output_types[0]) == "FLOAT[3,4]"
    known.check_invariants()
    assert str(region.graph.output_types[0]) == "FLOAT[batch,4]"


def test_inputs_whose_elements_are_known_become_constants() -> None:
    region = region_of(graph_of("float[batch,4] x, int64[2] s", "y = Reshape(x, s)", outputs="float[?,?] y"))
    known = with_input_types(
        region.graph, [TensorType(DType.FLOAT, (3, 4)), TensorType(DType.INT64, (2,))], [None, (2, 6)]
    )
    assert printed(known) == ["y = Reshape(x, [2, 6])", "return y"]
    assert str(known.value_type(known.outputs[0])) == "FLOAT[2,6]"
    assert len(known.inputs) == 1
    known.check_invariants()


# -- identity ----------------------------------------------------------------------------------------------------------

PAIR = "a = MatMul(x, w); b = Exp(a); c = Abs(a); y = Sub(b, c)"


def identity(body: str = PAIR, inputs: str = "float[2,4] x", outputs: str = "float[2,4] y", **weights: Any) -> str:
    return graph_digest(graph_of(inputs, body, outputs=outputs, **(weights or {"w": weight(4, 4)})))


@pytest.mark.parametrize(
    ("absent", "given"),
    [("Gemm(x, w)", "Gemm<alpha = 1.0, transB = 0>(x, w)"), ("Softmax(x)", "Softmax<axis = -1>(x)")],
)
def test_an_attribute_that_has_its_default_is_as_one_that_is_absent(absent: str, given: str) -> None:
    one, same, other = (
        graph_of("float[2,4] x", f"y = {body}", outputs="float[2,4] y", w=weight(4, 4))
        for body in (absent, given, "Gemm<alpha = 2.0>(x, w)")
    )
    for digest in (graph_digest, portable_digest):
        assert digest(one) == digest(same) != digest(other)


def test_geometry_that_a_convolution_has_by_default_does_not_matter() -> None:
    plain, told = (
        identity(f"y = Conv<{attributes}>(x, w)", "float[1,4,5,5] x", "float[1,4,3,3] y", w=weight(4, 4, 3, 3))
        for attributes in ("group = 1", "kernel_shape = [3,3], dilations = [1,1], pads = [0,0,0,0], strides = [1,1]")
    )
    dilated = "y = Conv<dilations = [2,2]>(x, w)"
    assert plain == told != identity(dilated, "float[1,4,5,5] x", "float[1,4,1,1] y", w=weight(4, 4, 3, 3))


def speed(body: str, outputs: str = "float[2,4] y", **weights: Any) -> str | None:
    return speed_digest(graph_of("float[2,4] x", body, outputs=outputs, **weights))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, ml_dtypes.bfloat16, np.float16])
def test_values_of_weights_do_not_matter_to_speed_where_none_makes_denormal_numbers(dtype: Any) -> None:
    wide = np.finfo(np.float64) if dtype is np.float64 else np.finfo(np.float32)
    texts = {np.float32: "float", np.float64: "double", np.float16: "float16", ml_dtypes.bfloat16: "bfloat16"}
    given, outputs = f"{texts[dtype]}[2,4] x", f"{texts[dtype]}[2,4] y"

    def told(*values: float) -> str | None:
        weight = np.array([*values, *[0.0] * (4 - len(values))], np.float64).astype(dtype)
        return speed_digest(graph_of(given, "y = Add(x, w)", outputs=outputs, w=weight))

    assert told() == told(1.0, -3.0) == told(2.0**-24) is not None
    if dtype is not np.float16:
        assert told(float(wide.tiny)) is told(1.0, 2.0, -float(wide.tiny)) is None


def test_indices_matter_to_speed_and_whatever_follows_from_values() -> None:
    gathered = "y = Gather<axis = 1>(x, i)"
    first, same, other = (speed(gathered, i=np.array(indices)) for indices in ([0] * 400, [0] * 400, [1] * 400))
    assert first == same != other
    assert first is not None and other is not None
    for found in ("i = NonZero(x); y = Cast<to = 1>(i)", "i = NonZero(x); y = Cast<to = 1>(i); z = Exp(y)"):
        assert speed(found, f"float[2,n] {found[found.rindex(';') + 2]}") is None, "whether it is named or not"
    assert speed("y = Exp(x)") is not None
    assert speed("y = custom.Exp(x)") is None, "of which nothing is known"
    branches = """
        c = ReduceMax<keepdims = 0>(x); b = Cast<to = 9>(c)
        y = If(b) <then_branch = t () => (float[2,4] p) { p = Exp(x) },
                   else_branch = e () => (float[2,4] q) { q = Neg(x) }>
        """
    assert speed(branches) is None


def test_names_order_and_the_values_of_weights_do_not_matter() -> None:
    assert identity() == identity(w=weight(4, 4, seed=1))
    assert identity() == identity(
        "a = MatMul(q, w); b = Exp(a); c = Abs(a); z = Sub(b, c)", "float[2,4] q", "float[2,4] z"
    )
    assert identity() == identity("a = MatMul(x, w); c = Abs(a); b = Exp(a); y = Sub(b, c)")


@pytest.mark.parametrize(
    "changed",
    [
        {"body": "a = MatMul(x, w); b = Exp(a); c = Abs(a); y = Sub(c, b)"},  # the wiring
        {"body": "a = MatMul(x, w); b = Exp(a); c = Abs(x); y = Sub(b, c)"},
        {"body": "a = MatMul(x, w); b = Exp(a); c = Abs(a); y = Add(b, c)"},  # an operator
        {"inputs": "float[3,4] x", "outputs": "float[3,4] y"},  # a size
        {"inputs": "double[2,4] x", "outputs": "double[2,4] y", "w": weight(4, 4).astype(np.float64)},
    ],
)
def test_wiring_operators_shapes_and_types_matter(changed: Mapping[str, Any]) -> None:
    assert identity(**changed) != identity()


def test_attributes_and_what_rules_look_at_matter() -> None:
    def soft(axis: int) -> str:
        return identity(f"y = Softmax<axis={axis}>(x)")

    def view(*shape: int) -> str:
        return identity(f"t = Reshape(x, {[*shape]}); y = Reshape(t, [2,4])")

    assert soft(0) != soft(1)
    assert view(8) != view(2, 4)
    assert identity("y = Mul(x, 2.0)") != identity("y = Mul(x, 3.0)")


def test_which_input_is_which_matters() -> None:
    inputs = "float[2,4] x, float[2,4] z"
    assert identity("y = Sub(x, z)", inputs) != identity("y = Sub(z, x)", inputs)
    assert identity("y = Sub(x, z)", inputs) == identity("y = Sub(p, q)", "float[2,4] p, float[2,4] q")


def test_sizes_that_nothing_is_known_about_are_alike_and_named_ones_are_not() -> None:
    unknown = "c = Compress<axis=0>(x, k); y = Exp(c)"
    inputs = "float[2,4] x, bool[2] k"
    assert identity(unknown, inputs, "float[?,4] y") == identity(unknown, inputs, "float[?,4] y")
    assert identity("y = Exp(x)", "float[n,4] x", "float[n,4] y") != identity(
        "y = Exp(x)", "float[m,4] x", "float[m,4] y"
    )


BRANCHES = """<ir_version: 8, opset_import: ["" : 18]> test (float[4] x, float[4] z, bool c) => (float[4] y) {{
    a = Exp(x)
    b = Exp(z)
    d = Add(a, b)
    e = If(c) <then_branch = t () => (float[4] p) {{ p = Sub({0}) }},
        else_branch = f () => (float[4] q) {{ q = {1}({0}) }}>
    y = Add(d, e)
}}"""


def branches(operands: str = "a, b", other: str = "Mul") -> Graph:
    return load(onnx.parser.parse_model(BRANCHES.format(operands, other))).graph


def test_what_bodies_do_and_read_matters() -> None:
    assert graph_digest(branches()) == graph_digest(branches())
    assert graph_digest(branches()) != graph_digest(branches(other="Add"))
    assert graph_digest(branches()) != graph_digest(branches("b, a"))


def test_a_change_in_a_copy_leaves_the_bodies_of_the_original_alone() -> None:
    graph = branches()
    before = graph_digest(graph)
    twin = graph.copy()
    body = next(body for _, node in twin.nodes() for body in node.bodies)
    rewrite(Rule("sub_to_add", x - y, x + -y), body)
    twin.check_invariants()
    assert graph_digest(twin) != before
    assert graph_digest(graph) == before


def orders(graph: Graph) -> Iterator[list[int]]:
    """Its nodes in two topological orders."""
    order = nodes(graph)
    yield order
    yield [order[0], order[2], order[1], *order[3:]]


def test_equal_regions_have_equal_numbers_in_whatever_order_they_come() -> None:
    graph = graph_of("float[2,4] x", PAIR, outputs="float[2,4] y", w=weight(4, 4))
    found = [extract_region(graph, order) for order in orders(graph)]
    numbered = [{v: node.op for v, node in region.graph.vertices_and_nodes()} for region in found if region is not None]
    assert numbered[0] == numbered[1]
    assert len(numbered) == 2


def test_weights_are_told_apart_by_their_values_where_that_is_asked_for() -> None:
    """Two files of one architecture share what was measured of their parts, and not what was measured of the whole."""
    graphs = [
        onnx_io.load_model(
            parse("float[2,3] x", "y = MatMul(x, w)", {"w": np.full((3, 3), value, np.float32)}, outputs="float[2,3] y")
        ).graph
        for value in (1.0, 1e-42, 1.0)
    ]
    assert len({graph_digest(graph) for graph in graphs}) == 1
    first, denormal, again = map(weights_digest, graphs)
    assert first == again != denormal


WEIGHTS = """<ir_version: 8, opset_import: ["" : 18, "own" : 1]> test (float[2] x, bool c) => (float[2] y) {{
    a = own.Scale<factors = float[2] {{1.0, {attribute}}}>(x)
    y = If(c) <
        then_branch = t () => (float[2] p) {{ v = Constant<value = float[2] {{1.0, {branch}}}>() p = Add(a, v) }},
        else_branch = e () => (float[2] q) {{ q = Neg(a) }}
    >
}}"""


@pytest.mark.parametrize("other", [{"attribute": 3.0}, {"branch": 3.0}])
def test_weights_in_attributes_and_bodies_are_told_apart_too(other: dict[str, float]) -> None:
    values = {"attribute": 2.0, "branch": 2.0}
    one, twin, changed = (
        onnx_io.load_model(onnx.parser.parse_model(WEIGHTS.format(**some))).graph
        for some in (values, values, values | other)
    )
    assert graph_digest(one) == graph_digest(changed)
    assert weights_digest(one) == weights_digest(twin) != weights_digest(changed)
