"""Equal nodes become one, and what nobody reads is removed, branches that are never taken as well."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt.io import onnx_io
from tests.test_passes import after, assert_same, optimized
from tests.text import Arrays, parse, printed

# -- common subexpressions ---------------------------------------------------------------------------------------------

MERGED = {
    "the same twice": ("a = Exp(x); b = Exp(x); y = Add(a,b)", ["a = Exp(x)", "y = Add(a, a)", "return y"]),
    "a chain": (
        "a = Exp(x); b = Exp(x); c = Neg(a); d = Neg(b); y = Mul(c,d)",
        ["a = Exp(x)", "c = Neg(a)", "y = Mul(c, c)", "return y"],
    ),
    "operands in another order": (
        "a = Add(x,z); b = Add(z,x); y = Mul(a,b)",
        ["a = Add(x, z)", "y = Mul(a, a)", "return y"],
    ),
    "operands whose order counts": (
        "a = Sub(x,z); b = Sub(z,x); y = Mul(a,b)",
        ["a = Sub(x, z)", "b = Sub(z, x)", "y = Mul(a, b)", "return y"],
    ),
    "another attribute": (
        "a = LeakyRelu<alpha=0.1>(x); b = LeakyRelu<alpha=0.2>(x); y = Mul(a,b)",
        ["a = LeakyRelu(x)", "b = LeakyRelu(x)", "y = Mul(a, b)", "return y"],
    ),
    "an attribute of another sign of zero": (
        "a = Elu<alpha=0.0>(x); b = Elu<alpha=-0.0>(x); y = Mul(a,b)",
        ["a = Elu(x)", "b = Elu(x)", "y = Mul(a, b)", "return y"],
    ),
    "the order of zeros": (  # ONNX Runtime takes the first of 0.0 and -0.0
        "a = Max(x,z); b = Max(z,x); y = Sub(a,b)",
        ["a = Max(x, z)", "b = Max(z, x)", "y = Sub(a, b)", "return y"],
    ),
    "random": (
        "a = RandomNormalLike(x); b = RandomNormalLike(x); y = Mul(a,b)",
        ["a = RandomNormalLike(x)", "b = RandomNormalLike(x)", "y = Mul(a, b)", "return y"],
    ),
    "equal bodies": (
        """c = Cast<to=9>(1);
        a = If(c) <then_branch = g () => (float[2] p) { p = Exp(x) }, else_branch = h () => (float[2] q) { q = Neg(x) }>
        b = If(c) <then_branch = k () => (float[2] r) { r = Exp(x) }, else_branch = l () => (float[2] s) { s = Neg(x) }>
        y = Add(a,b)""",
        ["c = Cast(1)", "a = If(c)", "y = Add(a, a)", "return y"],
    ),
    "other bodies": (
        """c = Cast<to=9>(1);
        a = If(c) <then_branch = g () => (float[2] p) { p = Exp(x) }, else_branch = h () => (float[2] q) { q = Neg(x) }>
        b = If(c) <then_branch = k () => (float[2] r) { r = Exp(x) }, else_branch = l () => (float[2] s) { s = Abs(x) }>
        y = Add(a,b)""",
        ["c = Cast(1)", "a = If(c)", "b = If(c)", "y = Add(a, b)", "return y"],
    ),
}


@pytest.mark.parametrize(("body", "expected"), MERGED.values(), ids=MERGED)
def test_what_is_computed_twice_is_computed_once(body: str, expected: list[str]) -> None:
    assert after(parse("float[2] x, float[2] z", body), "merge_common_subexpressions") == expected


def test_two_outputs_of_the_graph_may_be_one_value() -> None:
    model = parse("float[2] x", "a = Exp(x); y = Exp(x)", outputs="a, y")
    loaded = optimized(model, "merge_common_subexpressions")
    assert printed(loaded.graph) == ["a = Exp(x)", "y = Identity(a)", "return a, y"]
    assert [output.name for output in onnx_io.to_proto(loaded).graph.output] == ["a", "y"]
    assert_same(model)


def test_equal_weights_are_stored_once() -> None:
    one, zero = np.ones(4, np.float32), np.zeros(4, np.float32)
    weights: Arrays = {
        "a": one,
        "b": one.copy(),
        "c": zero,
        "d": -zero,
        "e": one.astype(np.float64),
        "f": one.reshape(2, 2),
    }
    model = parse(
        "float[4] x",
        """y0 = Sum(x,a,b,c,d); e1 = Cast<to=1>(e); f1 = Reshape(f,[-1]); y = Sum(y0,e1,f1)""",
        weights,
    )
    graph = optimized(model, "merge_duplicate_initializers").graph
    kept = {name for _, node in graph.vertices_and_nodes() if node.is_constant for name in node.names}
    assert kept == {"a", "c", "d", "e", "f", "c0"}, "-0.0, another type and another shape are not equal"


def test_nan_equals_a_nan_of_the_same_bits() -> None:
    nan = {"a": np.array([np.nan], np.float32), "b": np.array([np.nan], np.float32)}
    graph = optimized(parse("float[1] x", "y = Sum(x,a,b)", nan), "merge_duplicate_initializers").graph
    assert len(graph.vertices_with_op("Constant")) == 1


# -- dead code and branches --------------------------------------------------------------------------------------------


def test_what_nobody_reads_goes() -> None:
    model = parse("float[2] x, float[2] z", "a = Exp(x); b = Add(a,[1.0,2.0]); t, i = TopK(x,[1]); y = Neg(t)")
    assert after(model, "eliminate_dead_code") == ["t, i = TopK(x, [1])", "y = Neg(t)", "return y"]


def test_what_only_an_idle_part_of_a_body_reads_goes() -> None:
    model = parse(
        "bool c, float[2] x",
        """a = Exp(x); b = Neg(x);
        y = If(c) <then_branch = g () => (float[2] p) { q = Abs(a) p = Sqrt(b) },
                   else_branch = h () => (float[2] r) { r = Relu(b) }>""",
    )
    assert after(model, "eliminate_dead_code") == ["b = Neg(x)", "y = If(c)", "return y"]
    assert_same(model)


BRANCHES = """a = Exp(x);
    y = If(c) <then_branch = g () => (float[2] p) { q = Abs(a) p = Sqrt(q) },
               else_branch = h () => (float[2] r) { q = Neg(a) r = Relu(q) }>"""


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (1, ["a = Exp(x)", "q_1 = Abs(a)", "y = Sqrt(q_1)", "return y"]),
        (0, ["a = Exp(x)", "q_1 = Neg(a)", "y = Relu(q_1)", "return y"]),
    ],
)
def test_a_branch_that_is_always_taken_takes_the_place_of_the_if(condition: int, expected: list[str]) -> None:
    model = parse("float[2] x", f"c = Cast<to=9>({condition}); {BRANCHES}")
    assert after(model, "fold_constants", "inline_constant_if") == expected
    assert_same(model)


def test_a_branch_that_returns_an_outer_value_is_that_value() -> None:
    model = parse(
        "float[2] x",
        """c = Cast<to=9>(1); a = Exp(x);
        b = If(c) <then_branch = g () => (float[2] p) { p = Identity(a) },
                   else_branch = h () => (float[2] r) { r = Relu(a) }>
        y = Neg(b)""",
    )
    assert after(model, "fold_constants", "inline_constant_if") == [
        "a = Exp(x)",
        "b = Identity(a)",
        "y = Neg(b)",
        "return y",
    ]
    assert_same(model)


def test_branches_in_branches() -> None:
    model = parse(
        "float[2] x, bool d",
        """c = Cast<to=9>(1);
        y = If(c) <then_branch = g () => (float[2] p) {
            p = If(d) <then_branch = k () => (float[2] s) { s = Exp(x) },
                       else_branch = l () => (float[2] t) { t = Identity(x) }> },
            else_branch = h () => (float[2] r) { r = Relu(x) }>""",
    )
    assert after(model) == ["y = If(d)", "return y"]
    assert_same(model)


def test_what_is_known_of_a_shape_is_known_in_a_body() -> None:
    model = parse(
        "bool c, float[N,8] x",
        """s = Shape(x);
        y = If(c) <then_branch = g () => (float[A,B] p) { i = Constant<value_ints=[1]>() j = Gather(s, i)
                k = Constant<value_ints=[-1]>() t = Concat<axis=0>(k, j) p = Reshape(x, t) },
            else_branch = h () => (float[C,D] r) { r = Relu(x) }>""",
    )
    graph = optimized(model).graph
    (vertex,) = graph.vertices_with_op("If")
    assert printed(next(graph[vertex].bodies)) == ["p = Reshape(x, [0, 8])", "return p"]
    assert_same(model)
