"""What an operator is, is declared once: who takes the declaration away takes all knowledge of it away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from random import Random

import pytest

from graphopt.base.sizes import substitute
from graphopt.base.symbolic import Index, Tensor, Value, call, number
from graphopt.base.types import DType
from graphopt.io import onnx_io
from graphopt.language.proof import Verdict
from graphopt.language.rule import Rule
from graphopt.language.term import op, tensor
from graphopt.operators.broadcasting import pointwise
from graphopt.operators.elementwise import plain
from graphopt.operators.known import contents, shapes
from graphopt.operators.node import Node, OneOf, Undefined, Unsupported, real, subsets
from graphopt.operators.operands import Operands
from graphopt.operators.reductions import mean, over
from graphopt.operators.semantics import OPERATORS, Operator
from graphopt.verifier.prove import prove
from tests.text import parse
from tests.verifier.cases import CASES_OF, answers, evaluation
from tests.verifier.draw import Draw
from tests.verifier.evaluators import Case, model

DRAWS = 2
AS_LONG_AS_AN_INDEX = {("GatherND", "x1"), ("ScatterND", "x1")}
"""Inputs of which a size says how many axes something has."""
DENOTED = sorted(OPERATORS)


def read(name: str, case: Case) -> tuple[Operands, dict[str, int]]:
    """The only node of a model whose sizes have names, and what these stand for."""
    proto, feeds = model(name, case)
    sizes = {}
    for given in proto.graph.input:
        if (name, given.name) in AS_LONG_AS_AN_INDEX:
            continue
        for axis, dim in enumerate(given.type.tensor_type.shape.dim):
            sizes[f"{given.name}_{axis}"] = feeds[given.name].shape[axis]
            dim.dim_param = f"{given.name}_{axis}"
    graph = onnx_io.load(proto).graph
    (node,) = (node for _, node in graph.nodes() if not node.is_internal)
    return Operands(graph, node), sizes


@cache
def case_of(name: str) -> Case:
    """A case in which the operator is defined."""
    return next(case for case in drawn(name) if is_defined(name, case))


def drawn(name: str) -> Iterator[Case]:
    random = Random(name)
    while True:
        yield CASES_OF[name](Draw(random))


def is_defined(name: str, case: Case) -> bool:
    with suppress(Undefined, Unsupported):
        evaluation(name, case, symbols=False).run()
        return True
    return False


@pytest.mark.parametrize("name", DENOTED)
def test_sizes_that_are_told_are_those_of_a_run(name: str) -> None:
    for _, case in zip(range(DRAWS), drawn(name), strict=False):
        said = answers(name, case)
        k, sizes = read(name, case)
        for told, result in zip(shapes(k), said.get("runtime") or said.get("reference") or (), strict=False):
            known = [None if size is None else substitute(size, sizes) for size in told or result.shape]
            assert known == [own if size is not None else None for size, own in zip(known, result.shape, strict=True)]


@pytest.mark.parametrize("name", DENOTED)
def test_nothing_else_knows_what_an_operator_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of(name)
    k, _ = read(name, case)
    assert shapes(k) != []
    monkeypatch.delitem(OPERATORS, name)
    assert shapes(k) == []
    assert contents(k, [DType.INT64] * case.outputs) == [None] * case.outputs
    with pytest.raises(Unsupported, match=f"no denotation of {name}"):
        evaluation(name, case, symbols=False).run()


def mean_variance_normalization(node: Node) -> Tensor:
    """(x - mean) / √variance along axes; the epsilon is that of the ONNX text."""
    x = node.input(0)
    axes = node.attribute("axes", lambda: OneOf(subsets(x.rank)), (0, 2, 3))
    along = tuple(node.counted(axis, x.rank) for axis in axes)

    def at(index: Index) -> Value:
        element, extents, others = over(x, along, index)
        average = mean(extents, others)
        square = mean(extents, lambda k: others(k) * others(k))
        return (element - average) / (call("Sqrt", square - average * average) + real(1e-9))

    return Tensor(x.shape, at)


def test_one_declaration_adds_an_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPERATORS, "MeanVarianceNormalization", Operator(mean_variance_normalization))
    graph = onnx_io.load(parse("float[N,3,H,W] x", "y = MeanVarianceNormalization(x)")).graph
    (node,) = (node for _, node in graph.nodes() if not node.is_internal)
    assert [str(size) for size in (shapes(Operands(graph, node))[0] or ())] == ["N", "3", "H", "W"]

    x = tensor("x", "N C H W")
    normal = op.MeanVarianceNormalization
    assert prove(Rule("normalize_mirrored", normal(-x), -normal(x))).verdict is Verdict.PROVED
    wrong = prove(Rule("lose_normalization", normal(x), op.Identity(x)))
    assert wrong.verdict is Verdict.REFUTED and wrong.counterexample, "an example is drawn and run"


def test_one_declaration_adds_an_activation(monkeypatch: pytest.MonkeyPatch) -> None:
    x = tensor("x", "N C")
    turned = Rule("transpose_before_softsign", op.Transpose(op.Softsign(x)), op.Softsign(op.Transpose(x)))
    monkeypatch.delitem(OPERATORS, "Softsign")
    assert "no denotation of Softsign" in prove(turned, refute=False).detail
    activation = Operator(pointwise(plain(lambda x: x / (number(1) + call("Abs", x)))), is_exact=True)
    monkeypatch.setitem(OPERATORS, "Softsign", activation)
    assert prove(turned, refute=False).verdict is Verdict.PROVED
