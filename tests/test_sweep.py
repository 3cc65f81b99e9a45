"""Rules that pay only together, applied all over a model."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx
import pytest

from graphopt.check.compare import compare
from graphopt.check.verdict import Verdict
from graphopt.io import onnx_io
from graphopt.language.library import load, load_rules
from graphopt.language.rule import Rule, op, tensor
from graphopt.operators.infer import infer_graph
from graphopt.rewrite.fixpoint import Simplifier, TimeUp
from graphopt.rewrite.passes import PASSES
from graphopt.rewrite.variant import Variant
from graphopt.search.moves import Space
from graphopt.search.sweep import Sweep, sweep
from tests.text import parse

x, y = tensor("x"), tensor("y")
MATRICES = "stacks of matrices as one matrix"


def swept(
    given: onnx.ModelProto, rules: Sequence[Rule], tidy: Sequence[Rule] = ()
) -> tuple[onnx_io.Model, Sweep | None]:
    model = onnx_io.load(given)
    infer_graph(model.graph)
    space = Space(rules, Simplifier(tidy, PASSES), lambda *_: True)
    made = sweep(Variant(model.graph), "sweep", rules, space)
    return model if made is None else replace(model, graph=made.result.graph), made


def block(sizes: str) -> onnx.ModelProto:
    """Two layers, each a product, a bias, a Gelu, a sum and a normalization, as a BERT has them."""
    generator = np.random.default_rng(0)
    weights = {name: generator.standard_normal((8, 8)).astype(np.float32) for name in ("w0", "w1")}
    weights |= {name: generator.standard_normal(8).astype(np.float32) for name in ("b0", "b1", "s", "c")}
    layers = """a{i} = MatMul({x}, w{i}); d{i} = Add(a{i}, b{i}); g{i} = Gelu(d{i}); r{i} = Add(g{i}, {x});
    n{i} = LayerNormalization<axis=-1>(r{i}, s, c);"""
    body = layers.format(i=0, x="x") + layers.format(i=1, x="n0") + "y = Neg(n1)"
    return parse(f"float[{sizes},8] x", body, weights=weights, opset=20)


@pytest.mark.parametrize("sizes", ["2,5", "1,7", "batch,5", "batch,tokens"])
def test_a_stack_of_tokens_becomes_one_matrix_with_a_view_at_each_end(sizes: str) -> None:
    given = block(sizes)
    model, made = swept(given, load().sweeps[MATRICES], load_rules())
    assert made is not None
    ops = dict(model.graph.ops())
    open_sizes = (ops.pop("Shape", 0), ops.pop("Concat", 0))
    assert open_sizes == ((1, 1) if sizes == "batch,tokens" else (0, 0)), "a Reshape can leave one size open, not two"
    assert ops == {"Reshape": 2, "Gemm": 2, "Gelu": 2, "Add": 2, "LayerNormalization": 2, "Neg": 1}
    assert "flatten_layer_normalization" in made.rules
    assert compare(given, model, bindings=[{"batch": 3}] if "batch" in sizes else None).verdict is Verdict.EQUAL


def test_rules_are_applied_in_their_order_until_none_matches() -> None:
    rules = [
        Rule("double", x + x, x * 2.0),
        Rule("sum", op.Neg(x) - y, op.Neg(x + y)),
        Rule("minus", x - y, x + op.Neg(y)),
    ]
    model, made = swept(parse("float[4] x", "a = Neg(x); y = Sub(a, x)"), rules)
    assert made is not None
    assert made.rules == ("sum", "double"), "the first that matches first"
    assert model.graph.ops() == {"Mul": 1, "Neg": 1}


def test_where_no_rule_matches_there_is_no_sweep() -> None:
    model, made = swept(parse("float[4] x", "y = Exp(x)"), [Rule("double", x + x, x * 2.0)])
    assert (made, model.graph.ops()) == (None, {"Exp": 1})


@pytest.mark.parametrize("calls", [0, 1, 2, 3, 5, 8])
def test_a_sweep_for_which_time_runs_out_is_undone(calls: int) -> None:
    """Whenever that is: between two rules, at a place of one, or while the graph is simplified after it."""
    model = onnx_io.load(block("batch,tokens"))
    infer_graph(model.graph)
    before, left = dict(model.graph.items()), iter(range(calls * 40))

    def check() -> None:
        if next(left, None) is None:
            raise TimeUp

    space = Space(load().sweeps[MATRICES], Simplifier(load_rules(), PASSES, check=check), lambda *_: True)
    assert sweep(Variant(model.graph), "sweep", load().sweeps[MATRICES], space) is None
    assert dict(model.graph.items()) == before
    model.graph.check()


def test_rules_without_an_end_are_undone(caplog: pytest.LogCaptureFixture) -> None:
    model, made = swept(parse("float[4] x,float[4] z", "y = Sub(x, z)"), [Rule("turn", x - y, op.Neg(y - x))])
    assert (made, model.graph.ops()) == (None, {"Sub": 1})
    assert "the sweep 'sweep' did not come to an end" in caplog.text
