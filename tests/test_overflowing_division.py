"""The least integer divided by -1 has no result: ONNX Runtime ends the process, and this one outlives it."""

from __future__ import annotations

import platform
from typing import Any, TypeAlias

import numpy as np
import pytest

import graphopt
from graphopt.check.compare import compare_models
from graphopt.check.verdict import EqualityVerdict
from graphopt.runtime.oracle import RunnableModel
from tests.text import parse

LEAST = np.array([-(2**63), 1])
LEAST32 = np.array([-(2**31), 1], np.int32)
MINUS = np.array([-1, 1])
DYING: dict[str, tuple[str, str, dict[str, Any]]] = {
    "constants": ("int64[2] x", "y = Div(a, b); z = Add(x, y)", {"a": LEAST, "b": MINUS}),
    "constants of 32 bits": ("int32[2] x", "y = Div(a, b); z = Add(x, y)", {"a": LEAST32, "b": MINUS.astype(np.int32)}),
    "what is computed of constants": (
        "int64[2] x",
        "b = Neg(c); y = Div(a, b); z = Add(x, y)",
        {"a": LEAST, "c": -MINUS},
    ),
    "a divisor that is computed": (
        "int64[2] x",
        "b = Sub(x, x); c = Sub(b, o); y = Div(a, c)",
        {"a": LEAST, "o": -MINUS},
    ),
    "a dividend that is computed": (
        "int64[2] x",
        "o = Sub(x, x); c = Add(o, a); y = Div(c, b)",
        {"a": LEAST, "b": MINUS},
    ),
    "a body": (
        "int64[2] x, bool c",
        "y = If (c) <then_branch = g () => (t) { t = Div(a, b) }, else_branch = h () => (e) { e = Identity(x) }>",
        {"a": LEAST, "b": MINUS},
    ),
}


Case: TypeAlias = tuple[str, str, dict[str, Any]]


@pytest.mark.slow
@pytest.mark.parametrize("case", DYING.values(), ids=DYING)
def test_the_process_outlives_it(case: Case) -> None:
    comparison = graphopt.optimize(parse(*case), cost="none").report.comparison
    assert comparison is not None
    assert comparison.verdict is not EqualityVerdict.DIFFERENT


@pytest.mark.slow
@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("name", ["constants", "a divisor that is computed"])
def test_and_its_timing(name: str, check: bool) -> None:
    assert graphopt.optimize(parse(*DYING[name]), seconds=2, check=check).model.graph.node


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="other processors give some number")
def test_an_input_that_ends_the_process_is_named() -> None:
    model = parse("int64[2] x", "y = Div(x, b)", {"b": MINUS})
    found = compare_models(model, model, inputs={"x": LEAST})
    assert found.verdict is EqualityVerdict.CANNOT_RUN
    assert "the original cannot be run: it ends the process (SIGFPE), as an integer division" in found.reason


HARMLESS: dict[str, Case] = {
    "floats": ("float[2] x", "y = Div(x, x)", {}),
    "floats of no declared type": ("float[2] x", "s = Sqrt(x); y = Div(x, s)", {}),
    "a constant": ("int64[2] x", "y = Div(x, b)", {"b": np.array([7])}),
    "neither": ("int64[2] x", "y = Mul(x, x)", {}),
}


@pytest.mark.parametrize("case", HARMLESS.values(), ids=HARMLESS)
def test_what_cannot_end_the_process_is_not_tried_first(case: Case) -> None:
    assert not RunnableModel(parse(*case)).may_crash_on_run
