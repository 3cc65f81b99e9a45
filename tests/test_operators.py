"""What an operator is, is declared once: who takes the declaration away takes all knowledge of it away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from inspect import unwrap
from itertools import chain
from random import Random

import numpy as np
import pytest
from onnx import numpy_helper

from graphopt.base.dtype import DType
from graphopt.base.errors import UsageError
from graphopt.check.tolerance import ASSUMED_TERMS, value_paths
from graphopt.discover.worlds import ELEMENTS, MATRICES, resolve_operators
from graphopt.expr.dims import substitute_names
from graphopt.expr.expressions import call_function, constant
from graphopt.expr.symbolic_tensors import sum_over
from graphopt.io import onnx_io
from graphopt.io.function_import import upgrade_function
from graphopt.ir import schemas
from graphopt.language import function_terms
from graphopt.language.proof import Verdict
from graphopt.language.rule import Rule
from graphopt.language.terms import integer, op, tensor
from graphopt.operators import symbolic_shapes
from graphopt.operators.elementwise_ops import ElementwiseDenotation, without_attributes
from graphopt.operators.node_facts import get_implied_input, node_weight
from graphopt.operators.node_operands import NodeOperands
from graphopt.operators.normalization_ops import LRN
from graphopt.operators.op_context import UndefinedOperatorError, UnsupportedOperatorError, schema_default
from graphopt.operators.operator import Operator
from graphopt.operators.operator_classes import operator_choices
from graphopt.operators.operator_cost import OperatorCost
from graphopt.operators.reduction_ops import ReductionDenotation, reduction_op
from graphopt.operators.schema_bodies import ElementwiseBody, SchemaBody
from graphopt.operators.semantics import OPERATORS
from graphopt.operators.symbolic_shapes import infer_contents, infer_shapes
from graphopt.rewrite.folding import fold_constants
from graphopt.runtime import sample_inputs
from graphopt.runtime.machine import Machine
from graphopt.runtime.model_sketch import sketch_model
from graphopt.search.analytic_cost import AnalyticCost
from graphopt.verifier.prove import prove
from tests.graphs import graph
from tests.text import parse
from tests.verifier.cases import CASES_OF, answers, evaluation
from tests.verifier.draw import Draw
from tests.verifier.evaluators import Case, model
from tests.verifier.refused import BEYOND, UNDEFINED, spoilt
from tests.versions import by_operator, is_older

DRAWS = 2
AS_LONG_AS_AN_INDEX = {("GatherND", "x1"), ("ScatterND", "x1")}
"""Inputs of which a size says how many axes something has."""
DENOTED = sorted(OPERATORS)


def is_of_body(operator: Operator) -> bool:
    match operator.denotation:
        case SchemaBody() | ElementwiseDenotation(element_function=ElementwiseBody()):
            return True
    return False


def read(name: str, case: Case) -> tuple[NodeOperands, dict[str, int]]:
    """The only node of a model whose sizes have names, and what these stand for."""
    proto, feeds = model(name, case)
    sizes = {}
    for given in proto.graph.input:
        if (name, given.name) in AS_LONG_AS_AN_INDEX:
            continue
        for axis, dim in enumerate(given.type.tensor_type.shape.dim):
            sizes[f"{given.name}_{axis}"] = feeds[given.name].shape[axis]
            dim.dim_param = f"{given.name}_{axis}"
    graph = onnx_io.load_model(proto).graph
    (node,) = (node for _, node in graph.nodes() if not node.is_internal)
    return NodeOperands(graph, node), sizes


@cache
def case_of(name: str) -> Case:
    """A case in which the operator is defined."""
    return next(case for case in drawn(name) if is_defined(name, case))


def drawn(name: str) -> Iterator[Case]:
    random = Random(name)
    while True:
        yield CASES_OF[name](Draw(random))


def is_defined(name: str, case: Case) -> bool:
    with suppress(UndefinedOperatorError, UnsupportedOperatorError):
        evaluation(name, case, symbols=False).run()
        return True
    return False


@pytest.mark.parametrize("name", by_operator(DENOTED))
def test_sizes_that_are_told_are_those_of_a_run(name: str) -> None:
    for _, case in zip(range(DRAWS), drawn(name), strict=False):
        said = answers(name, case)
        k, sizes = read(name, case)
        for told, result in zip(infer_shapes(k), said.get("runtime") or said.get("reference") or (), strict=False):
            known = [None if size is None else substitute_names(size, sizes) for size in told or result.shape]
            assert known == [own if size is not None else None for size, own in zip(known, result.shape, strict=True)]


@pytest.mark.parametrize("name", by_operator(DENOTED))
def test_nothing_else_knows_what_an_operator_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of(name)
    k, _ = read(name, case)
    assert infer_shapes(k) != []
    monkeypatch.delitem(OPERATORS, name)
    assert infer_shapes(k) == []
    assert infer_contents(k, [DType.INT64] * case.outputs) == [None] * case.outputs
    with pytest.raises(UnsupportedOperatorError, match=f"no denotation of {name}"):
        evaluation(name, case, symbols=False).run()
    assert not folded(name, case)


def folded(name: str, case: Case) -> bool:
    """Whether the operator is computed when all that it reads is constant."""
    proto, feeds = model(name, case)
    proto.graph.initializer.extend(numpy_helper.from_array(array, key) for key, array in feeds.items())
    del proto.graph.input[:]
    return any(fold_constants(onnx_io.load_model(proto).graph))


SPOILT = 20
"""Cases of each operator with one thing changed, among which refused ones are looked for."""
TAKES_ALL = {"Shape", "Size", "NonZero", "CastLike", "DynamicQuantizeLinear"}
"""Operators that take every tensor, beside those that compute elements of one alone."""

UNFOLDED = {"Dropout", "GlobalLpPool", "SwiGLU", "DequantizeLinear"}
"""Operators that may be random, for which ONNX Runtime has no kernel, or that make weights larger."""
if is_older("onnxruntime", "1.32"):
    UNFOLDED |= {"Range"}  # it has no kernel of the newest version, which has one attribute more


@pytest.mark.parametrize("name", by_operator(sorted(OPERATORS.keys() - UNFOLDED)))
def test_what_has_a_meaning_is_folded(name: str) -> None:
    assert any(folded(name, case) for _, case in zip(range(5), drawn(name), strict=False))


@pytest.mark.parametrize("name", by_operator(DENOTED))
def test_no_example_knows_what_an_operator_is_defined_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = Draw(Random(name))
    listed = [case for own, case in (*UNDEFINED, *BEYOND) if own == name]
    asked = chain(listed, (spoilt(case, draw) for _, case in zip(range(SPOILT), drawn(name), strict=False)))
    refused = next((case for case in asked if not is_denoted(name, case)), None)
    alone = isinstance(OPERATORS[name].denotation, ElementwiseDenotation) and len(case_of(name).inputs) == 1
    assert refused is not None or alone or name in TAKES_ALL
    monkeypatch.delitem(OPERATORS, name)
    assert refused is None or is_denoted(name, refused), "nothing is known of it"


def is_denoted(name: str, case: Case) -> bool:
    """Whether an example would be drawn of the operator with these inputs, as far as it is known what it is."""
    attrs = {key: tuple(value) if isinstance(value, list) else value for key, value in case.attrs.items()}
    return symbolic_shapes.may_be_defined(name, attrs, [operand(value) for value in case.inputs], case.outputs)


def operand(value: object) -> symbolic_shapes.OperandFacts | None:
    if value is None:
        return None
    array = np.asarray(value)
    elements = None if isinstance(value, np.ndarray) else tuple(array.ravel().tolist())
    return symbolic_shapes.OperandFacts(DType.from_numpy(array.dtype), array.shape, elements)


READ = [name for name in DENOTED if is_of_body(OPERATORS[name]) and not name.endswith("Window")]
"""Operators whose bodies are read; those of windows cast to a type that only a node says."""


@pytest.mark.parametrize("name", by_operator(READ))
def test_a_body_says_the_same_in_the_newest_opset(name: str) -> None:
    case = case_of(name)
    inputs = [None if value is None else (DType.from_numpy(value.dtype), value.ndim) for value in case.inputs]
    attrs = {attribute: schema_default(name, attribute) for attribute in schemas.body_value_attributes(name)}
    given = {attribute: value for attribute, value in (attrs | case.attrs).items() if value is not None}
    body = schemas.schema_function_body(name, inputs, case.outputs, given)
    assert body is not None
    assert function_terms.read_function(upgrade_function(body)).outputs == function_terms.read_function(body).outputs


def test_one_declaration_adds_an_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    x, n = tensor("x", "N C H W"), integer("n")
    mirrored = Rule("normalize_mirrored", op.LRN(-x, size=n), -op.LRN(x, size=n))
    monkeypatch.delitem(OPERATORS, "LRN")
    assert prove(mirrored).verdict is Verdict.UNKNOWN

    monkeypatch.setitem(OPERATORS, "LRN", Operator(LRN))
    graph = onnx_io.load_model(parse("float[N,3,H,W] x", "y = LRN <size = 3> (x)")).graph
    (node,) = (node for _, node in graph.nodes() if not node.is_internal)
    assert [str(size) for size in (infer_shapes(NodeOperands(graph, node))[0] or ())] == ["N", "3", "H", "W"]

    assert prove(mirrored).verdict is Verdict.PROVED
    wrong = prove(Rule("lose_normalization", op.LRN(x, size=3), op.Identity(x)))
    assert wrong.verdict is Verdict.REFUTED and wrong.counterexample, "an example is drawn and run"


MACHINE = Machine(1.0, 1e30, 1e-30)
"""Nothing but arithmetic takes time: a second an operation."""


def is_known(name: str, case: Case) -> bool:
    """Whether shapes of an operator are inferred, and constants of it computed."""
    assert folded(name, case) == bool(infer_shapes(read(name, case)[0]))
    return folded(name, case)


def test_one_entry_adds_an_elementwise_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    x = tensor("x", "N C")
    turned = Rule("transpose_before_softsign", op.Transpose(op.Softsign(x)), op.Softsign(op.Transpose(x)))
    wrong = Rule("lose_softsign", op.Softsign(x), op.Identity(x))
    made = parse("float[4,8] x", "y = Softsign (x)", outputs="float[4,8] y")
    seen, single = sketch_model(made), graph("float[4,8] x", "y = Softsign (x)", "float[4,8] y")
    fed = {"x": np.zeros((4, 8), np.float32)}
    case = case_of("Softsign")
    monkeypatch.delitem(OPERATORS, "Softsign")
    assert "no denotation of Softsign" in prove(turned, refute=False).detail
    assert ("Softsign", "") not in unwrap(operator_choices)(schemas.ANY_POINTWISE), "no family has it"
    assert not is_known("Softsign", case) and sample_inputs.nonfinite_feeds(seen, fed, (), 0) is None
    with pytest.raises(UsageError, match="nothing says what it computes"):
        resolve_operators(["Softsign"])

    entry = Operator(
        ElementwiseDenotation(without_attributes(lambda x: x / (constant(1) + call_function("Abs", x)))),
        weight=70,
        cost=OperatorCost(12),
        observes_nonfinite=True,
    )
    monkeypatch.setitem(OPERATORS, "Softsign", entry)
    assert prove(turned, refute=False).verdict is Verdict.PROVED
    assert prove(wrong).counterexample, "an example is drawn and run"
    assert ("Softsign", "") in unwrap(operator_choices)(schemas.ANY_POINTWISE), "every family has it"
    assert is_known("Softsign", case) and ELEMENTS.choices(resolve_operators(["Softsign"]))
    assert sum(node_weight(node) for _, node in single.nodes()) == 70 and AnalyticCost(MACHINE).estimate_seconds(
        single
    ) == pytest.approx(12 * 32)
    changed = sample_inputs.nonfinite_feeds(seen, fed, (), 0)
    assert changed is not None and not np.isfinite(changed["x"]).all()


def test_one_entry_adds_a_reduction(monkeypatch: pytest.MonkeyPatch) -> None:
    x = tensor("x", "N C")
    squeezed = Rule("drop_axis", op.Squeeze(op.ReduceL1(x, (1,), keepdims=1), (1,)), op.ReduceL1(x, (1,), keepdims=0))
    wrong = Rule("lose_signs", op.ReduceL1(x, (1,)), op.ReduceSum(x, (1,)))
    made = parse("float[4,8] x, int64[1] axes", "y = ReduceL1 (x, axes)", outputs="float[P,Q] y")
    seen, single = sketch_model(made), graph("float[4,8] x", "y = ReduceL1 (x)", "float[1,1] y")
    (node,) = (node for _, node in single.nodes() if not node.is_internal)
    case = case_of("ReduceL1")
    monkeypatch.delitem(OPERATORS, "ReduceL1")
    assert "no denotation of ReduceL1" in prove(squeezed, refute=False).detail
    assert not is_known("ReduceL1", case) and get_implied_input(node, single, 1) is None

    entry = reduction_op(
        ReductionDenotation(lambda n, x: sum_over(n, lambda k: call_function("Abs", x(k)))), cost=OperatorCost(7)
    )
    monkeypatch.setitem(OPERATORS, "ReduceL1", entry)
    assert prove(squeezed, refute=False).verdict is Verdict.PROVED
    assert prove(wrong).counterexample, "an example is drawn and run"
    assert ("ReduceL1", "") in unwrap(operator_choices)(schemas.ANY_REDUCTION), "every family has it"
    assert is_known("ReduceL1", case) and get_implied_input(node, single, 1) == (0, 1)
    assert len(MATRICES.choices(resolve_operators(["ReduceL1"]))) == 2, "along the rows and along the columns"
    assert node_weight(node) == entry.weight > 100 and AnalyticCost(MACHINE).estimate_seconds(single) == pytest.approx(
        7 * 32
    )
    assert sample_inputs.make_feeds(seen, {}, seed=0, style=sample_inputs.NORMAL)["axes"].tolist() == [0]
    assert value_paths(seen)["y"].terms == ASSUMED_TERMS
