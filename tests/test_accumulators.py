"""Sums in 32 bits: proved to be sums of any integers where the sizes leave no room for more, and only applied there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np
import onnx.parser
import pytest

import graphopt
from graphopt.base.dtype import DType
from graphopt.base.session import current_session
from graphopt.language.definition import define, definitions_of
from graphopt.language.proof import ProofModel, Verdict
from graphopt.language.rule import Operators, Rule, fn, microsoft, op, tensor
from graphopt.language.terms import Term, operator_applications
from graphopt.rules import RULES, TRADES
from graphopt.runtime.oracle import RunnableModel, onnxruntime_unoptimized
from graphopt.verifier.expanded_rule import expand_definitions
from graphopt.verifier.instance_models import build_models
from graphopt.verifier.instance_sampling import complete_instance
from graphopt.verifier.int32_overflow import has_overflow_axis, sample_overflow_instances
from graphopt.verifier.kernel_conformance import as_rules, find_contradiction
from graphopt.verifier.prove import prove
from tests.saturating import skip_where_products_saturate
from tests.verifier.broken.accumulated import (
    D,
    Sums,
    a,
    b,
    bounded,
    c,
    cast,
    filters,
    image,
    of,
    s,
    singles,
    t,
    u,
    z,
)

K, MOST = fn.size("K"), 2**31
BYTE, SIGNED, DOUBLE = DType.UINT8, DType.INT8, DType.DOUBLE
kernel = fn.size("I") * fn.product(fn.sizes("*k"))


# -- proofs ------------------------------------------------------------------------------------------------------------


BOUNDED = (
    bounded("products", fn.lt(K * 255 * 255, MOST)),
    bounded("so_many_products", fn.le(K, 33_025)),
    bounded("products_of_signed", fn.lt(K * 128 * 128, MOST), SIGNED, SIGNED),
    bounded("products_of_both", fn.lt(K * 255 * 128, MOST), BYTE, SIGNED),
    bounded("products_of_distances", fn.lt(K * 255 * 255, MOST), zeros=True),
    bounded("products_of_signed_distances", fn.lt(K * 255 * 255, MOST), SIGNED, SIGNED, zeros=True),
    bounded("one_product", fn.eq(K, 1)),
    Rule(
        "doubles_as_integers",
        cast(a, DOUBLE) @ cast(b, DOUBLE),
        cast(Sums(a, b), DOUBLE),
        when=(*of(BYTE, a, b), fn.lt(K * 255 * 255, MOST)),
    ),
    Rule(
        "convolution_in_integers",
        op.Conv(D(image, s, z), D(filters, t, u)),
        D(op.ConvInteger(image, filters, z, u), s * t),
        when=(*of(BYTE, image, filters), *singles(s, t), fn.lt(kernel * 255 * 255, MOST)),
    ),
    Rule(
        "sums_of_many",
        cast(a, DOUBLE) @ cast(b, DOUBLE) + cast(c, DOUBLE) @ cast(b, DOUBLE),
        cast(Sums(op.Concat(a, c, axis=1), op.Concat(b, b, axis=0)), DOUBLE),
        when=(*of(BYTE, a, b, c), fn.lt(K * 2 * 255 * 255, MOST)),
    ),
    Rule(
        "difference_of_bytes",
        D(a, s, z),
        D(a, s) - D(z, s),
        when=(fn.is_in(fn.dtype(a), (int(BYTE), int(SIGNED), int(DType.INT16))), *singles(s)),
    ),
)


@pytest.mark.parametrize("rule", BOUNDED, ids=lambda rule: rule.name)
def test_a_bound_on_sizes_excludes_overflow(rule: Rule) -> None:
    proof = prove(rule, refute=False)
    assert proof.verdict is Verdict.PROVED, proof


RING = (
    Rule(
        "transposed",
        op.Transpose(Sums(a, b), perm=(1, 0)),
        Sums(op.Transpose(b, perm=(1, 0)), op.Transpose(a, perm=(1, 0))),
        when=of(BYTE, a, b),
    ),
    Rule("no_shift", Sums(a, b, z, u), Sums(a, b), when=(fn.is_zero(z), fn.is_zero(u))),
    Rule("not_below_zero_twice", op.Relu(op.Relu(Sums(a, b))), op.Relu(Sums(a, b))),
)


@pytest.mark.parametrize("rule", RING, ids=lambda rule: rule.name)
def test_what_wraps_alike_on_both_sides_needs_no_bound(rule: Rule) -> None:
    proof = prove(rule, refute=False)
    assert (proof.verdict, proof.model) == (Verdict.PROVED, ProofModel.EXACT), proof


# -- declarations ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("when", "is_right"), [((), False), ((fn.le(K, 33_025),), True)])
def test_a_declaration_that_forgets_that_it_wraps_is_contradicted(when: tuple[Term, ...], is_right: bool) -> None:
    """A kernel that adds up in 32 bits, said to be a product of floats."""
    kernel = Operators("com.microsoft").MatMulIntegerToFloat
    scales, zeros = (tensor("p", ""), tensor("q", "")), (tensor("g", ""), tensor("h", ""))
    one = tensor("x" if is_right else "a", "M K")  # instances are drawn once for all rules that look alike
    floats = D(one, scales[0], zeros[0]) @ D(b, scales[1], zeros[1])
    types = (*of(BYTE, one, b), *of(DType.FLOAT, *scales))
    with current_session().child():  # no other test is to know of it
        define(kernel(one, b, *scales, *zeros), floats, when=when)
        proof = prove(Rule("fuse", floats, kernel(one, b, *scales, *zeros), when=(*when, *types)))
    assert proof.verdict is (Verdict.PROVED if is_right else Verdict.REFUTED), proof
    assert is_right or "is not what its definition says: values differ" in proof.counterexample


@pytest.mark.slow
def test_the_declarations_of_the_library_wrap_as_their_kernels_do() -> None:
    one, other = (tensor("a", "M K"), *(tensor(f"a_{x}", "") for x in "sz")), (b, *(tensor(f"b_{x}", "") for x in "sz"))
    made = tensor("y_s", ""), tensor("y_z", "")
    for bias in (None, tensor("c", "N")):
        (own,) = definitions_of((microsoft.QGemm(*one, *other, bias, *made, alpha=1.0, transA=0, transB=0),))
        assert any(
            has_overflow_axis(drawn)
            for rule in as_rules(own)
            for drawn in sample_overflow_instances(expand_definitions(rule))
        )
        assert find_contradiction([own]) is None


# -- applied -----------------------------------------------------------------------------------------------------------


def products_of(count: int, scale: str = "0.001") -> onnx.ModelProto:
    """Floats that stand for bytes, multiplied."""
    return onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 20]> g (uint8[2,{count}] a, uint8[{count},2] b) => (float[2,2] y)
        <float s = {{{scale}}}> {{ c = DequantizeLinear(a, s) d = DequantizeLinear(b, s) y = MatMul(c, d) }}"""
    )


IN_INTEGERS = bounded("compute_in_integers", fn.lt(K * 255 * 255, MOST))


@pytest.mark.parametrize(("count", "is_applied"), [(4, True), (33_025, True), (33_026, False), (40_000, False)])
def test_sizes_beyond_the_bound_are_refused(count: int, is_applied: bool) -> None:
    result = graphopt.optimize(products_of(count), rules=[IN_INTEGERS], only=[IN_INTEGERS.name], cost="none")
    assert ("MatMulInteger" in {node.op_type for node in result.model.graph.node}) is is_applied


def test_open_sizes_are_refused() -> None:
    given = products_of(4)
    for graph_input, axis in zip(given.graph.input, (1, 0), strict=True):
        graph_input.type.tensor_type.shape.dim[axis].dim_param = "K"
    result = graphopt.optimize(given, rules=[IN_INTEGERS], only=[IN_INTEGERS.name], cost="none")
    assert "MatMulInteger" not in {node.op_type for node in result.model.graph.node}


@pytest.mark.slow
def test_the_check_sees_what_an_unverified_rule_leaves_out() -> None:
    """All inputs 255, 40,000 of them."""
    careless = bounded("forget_that_it_wraps", fn.le(1, K))
    result = graphopt.optimize(
        products_of(40_000), rules=[careless], only=[careless.name], unverified=True, cost="none"
    )
    assert "MatMulInteger" not in {node.op_type for node in result.model.graph.node}
    assert any("forget_that_it_wraps" in note and "left out" in note for note in result.report.notes)


# -- rules of the library at extremes ----------------------------------------------------------------------------------

SUMMING = ("MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv")
MANY = 33_100
"""So many products of bytes do not fit into 32 bits."""


def summing() -> Iterator[tuple[Rule, str]]:
    """The rules of the library that have such an operator on the left."""
    for rule in (*RULES, *TRADES):
        found = {app.op for side in rule.left for app in operator_applications(side)} & {*SUMMING}
        if found:
            yield rule, found.pop()


def extreme(rule: Rule, operator: str, ends: tuple[bool, ...]) -> dict[str, Any]:
    """What the holes of a rule stand for: factors and zero points the least or the greatest of their types, as `ends`
    say."""
    byte = np.int8 if rule.name.startswith("compute") else np.uint8
    shapes: dict[str, tuple[int, ...]] = {"x": (2, MANY), "w": (MANY, 2)}
    if "Conv" in operator:
        shapes = {"x": (1, 331, 10, 10), "w": (2, 331, 10, 10)}
    limits = ((name, np.iinfo(byte)) for name in ("x", "w", "z", "wz"))
    values: dict[str, Any] = {
        name: np.full(shapes.get(name, ()), limit.max if end else limit.min, byte)
        for (name, limit), end in zip(limits, ends, strict=True)
    }
    values |= {"s": np.array(2**-8, np.float32), "ws": np.array(2**-8, np.float32), "t": np.array(2**7, np.float32)}
    values |= {"y": values["z"] if "Integer" in operator else np.array(9, byte), "yz": np.array(9, byte)}
    values["b"] = np.array([-(2**31), 2**31 - 1], np.int32)
    return {name: value for name, value in values.items() if name in rule.holes}


def outputs(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> Any:
    with onnxruntime_unoptimized(RunnableModel(model)) as session:
        return session.run(dict(feeds))[0]


@pytest.mark.parametrize(("rule", "operator"), list(summing()), ids=lambda each: getattr(each, "name", each))
def test_both_sides_wrap_alike_at_extremes(rule: Rule, operator: str) -> None:
    skip_where_products_saturate()
    for ends in product((False, True), repeat=4):
        drawn = complete_instance(rule, {}, extreme(rule, operator, ends))
        assert drawn is not None, f"no instance of {rule.name} was found"
        one, other = (outputs(side, drawn.feeds(rule)) for side in build_models(rule, drawn))
        np.testing.assert_array_equal(one, other, err_msg=f"{rule.name} at {drawn}")
