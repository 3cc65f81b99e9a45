"""Every denotation against `onnx.reference` and ONNX Runtime, on random small tensors over all that it claims."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

from graphopt.language.rule import Rule, attributes, const, op, real, tensor
from graphopt.operators.elementwise_ops import ElementwiseDenotation
from graphopt.operators.op_context import UndefinedOperatorError, UnsupportedOperatorError, axis_subsets
from graphopt.operators.operator import Operator
from graphopt.operators.schema_bodies import ElementwiseBody, SchemaBody
from graphopt.operators.semantics import OPERATORS
from graphopt.verifier.choices import Choices
from graphopt.verifier.prove import prove
from tests.verifier.cases import (
    CASES_OF,
    answers,
    application,
    as_it_runs,
    evaluation,
    free_sizes,
    is_mode,
    opened,
)
from tests.verifier.concrete import Evaluation, Known
from tests.verifier.draw import Draw
from tests.verifier.evaluators import Case
from tests.verifier.refused import BEYOND, REFUSE, UNDEFINED, is_refused, spoilt
from tests.versions import by_operator, is_older

FILTERED = [HealthCheck.filter_too_much]
CASES = 200
"""Per operator, drawn with fixed seeds."""


def cases_of(name: str) -> int:
    """Fewer of one that is read out of its schema: what it is made of is tested by itself."""
    match OPERATORS[name].denotation:
        case SchemaBody() | ElementwiseDenotation(element_function=ElementwiseBody()):
            return CASES // 4
    return CASES


def check(name: str, d: Draw, *, exact: bool = False) -> tuple[Evaluation, Mapping[str, Any]]:
    """Compares one case; gives back the operator with open attributes, and the attributes that it was asked for."""
    case = CASES_OF[name](d)
    case = as_it_runs(name, case) if d.random.random() < 0.2 else case
    wanted = answers(name, case)
    assume(wanted)
    feeds = {f"x{i}": value for i, value in enumerate(case.inputs) if isinstance(value, np.ndarray)}
    known = Known()
    app = application(name, case, known, d.flag)
    free = free_sizes(name, case)
    found, used = Evaluation(app, feeds, known, frozenset(n for n in free if d.flag()), exact).run()
    assert len(found) >= case.outputs
    for who, arrays in wanted.items():
        for one, other in zip(arrays, found, strict=False):
            assert one.shape == other.shape, f"{name} {case}: {app}, not as {who}"
            try:
                np.testing.assert_allclose(other, one.astype(np.float64), rtol=1e-5, atol=1e-5)
            except AssertionError as error:  # to write a case takes as long as to compute it
                raise AssertionError(f"{name} {case}: {app}, not as {who}") from error
    return Evaluation(opened(app), feeds, known, free), used


@pytest.mark.slow
@pytest.mark.parametrize("name", by_operator(sorted(CASES_OF)))
def test_it_is_what_the_operator_computes(name: str) -> None:
    """Where attributes are left open, what is drawn is proposed, and all combinations of modes proposed are drawn."""
    drawn: list[Mapping[str, Any]] = []
    claimed: list[Mapping[str, Any]] = []

    @settings(max_examples=cases_of(name), derandomize=True, database=None, deadline=None)
    @given(st.randoms(use_true_random=True))
    def compare(random: Random) -> None:
        open_, used = check(name, Draw(random))
        drawn.append(used)
        if not claimed or random.random() < 0.04:
            claims = list(open_.claims())
            if "axes" in used and used["axes"] not in (None, *axis_subsets(open_.arrays["x0"].ndim)):
                return  # in an order that is not tried, in which the sizes may fit no other axes
            assert any(all(is_mode(c[k]) <= (c[k] == v) for k, v in used.items() if k != "axes") for c in claims), used
            claimed.extend(claims)

    compare()
    modes = {key for used in claimed for key in used if key not in PLACES and all(is_mode(c.get(key)) for c in claimed)}
    proposed, seen = ({tuple(used.get(key) for key in modes) for used in of} for of in (claimed, drawn))
    assert claimed and proposed <= seen, f"{modes}: {proposed - seen} was not drawn"


@pytest.mark.slow
@pytest.mark.parametrize("name", by_operator(sorted(CASES_OF)))
def test_the_exact_model_says_the_same_by_the_names_of_operators(name: str) -> None:
    """What tells the function of one operator from another says all that it takes to compute it."""

    @settings(max_examples=CASES // 10, derandomize=True, database=None, deadline=None)
    @given(st.randoms(use_true_random=True))
    def compare(random: Random) -> None:
        check(name, Draw(random), exact=True)

    compare()


@pytest.mark.parametrize("name", by_operator(sorted({name for name, _ in (*UNDEFINED, *BEYOND)})))
def test_what_may_not_run_is_undefined(name: str) -> None:
    refused, beyond = ([case for of, case in cases if of == name] for cases in (UNDEFINED, BEYOND))
    if not is_older("onnxruntime", "1.32"):  # which computes some of it, or ends its process
        assert not [case for case in refused if "runtime" in answers(name, case)]
    for case, symbols in product(refused + beyond, (False, True)):
        with pytest.raises((UndefinedOperatorError, UnsupportedOperatorError)):
            evaluation(name, case, symbols=symbols).run()


@pytest.mark.parametrize("name", ["Div", "Mod"])
def test_integers_are_not_divided_by_zero(name: str) -> None:
    for last, symbols in product((0, 1), (False, True)):
        found = evaluation(name, Case([np.array([4, 2]), np.array([2, last])]), symbols=symbols, exact=True)
        if last:
            found.run()
        else:
            with pytest.raises(UndefinedOperatorError, match="division of integers by 0"):
                found.run()


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSE)
def test_what_is_refused_is_not_denoted(name: str) -> None:
    """Cases in which one size or number is changed, and then ONNX Runtime, where it has a kernel, refuses them."""
    refused = list[Case]()

    @settings(max_examples=CASES // 5, derandomize=True, database=None, deadline=None, suppress_health_check=FILTERED)
    @given(st.randoms(use_true_random=True))
    def refuse(random: Random) -> None:
        d, known = Draw(random), Known()
        case = CASES_OF[name](d)
        before, changed = answers(name, case), spoilt(case, d)
        assume(before and is_refused(before, answers(name, changed)))
        refused.append(changed)
        feeds = {f"x{i}": value for i, value in enumerate(changed.inputs) if isinstance(value, np.ndarray)}
        app = application(name, changed, known, d.flag)
        note(f"{name} {changed}: {app}")
        with pytest.raises((UndefinedOperatorError, UnsupportedOperatorError)):
            Evaluation(app, feeds, known, frozenset(feeds)).run()

    refuse()
    assert len(refused) > CASES // 20


PLACES = (
    *("axis", "axes", "perm", "start", "end", "p", "equation", "to", "input0", "input1", "ignore_index"),
    "keep_aspect_ratio_policy",
)
"""Attributes whose values are not modes: there are as many as axes, or they are numbers and texts."""


@pytest.mark.parametrize("name", by_operator(sorted(CASES_OF)))
def test_every_attribute_is_looked_at(name: str) -> None:
    """A hole for the other attributes may hold any, also on paths on which it means nothing."""

    @settings(max_examples=5, derandomize=True, database=None, deadline=None)
    @given(st.randoms(use_true_random=True))
    def look(random: Random) -> None:
        case, known = CASES_OF[name](Draw(random)), Known()
        feeds = {f"x{i}": value for i, value in enumerate(case.inputs) if isinstance(value, np.ndarray)}
        app = application(name, case, known, lambda: False)
        for attrs in (opened(app).attrs, app.attrs):
            node = Evaluation(replace(opened(app), attrs=attrs), feeds, known).node(Choices())
            with suppress(UndefinedOperatorError, UnsupportedOperatorError):
                OPERATORS[name].denotation(node)
                assert node.find_unread_parameter() is None

    look()


def test_what_a_denotation_does_not_look_at_is_not_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    x, rest, low = tensor("x", "N C"), attributes("rest"), const("low", "")
    blind = Operator(lambda node: node.input(0), is_exact=True, selects_elements=True)
    denotations = {**OPERATORS, **dict.fromkeys(("Clip", "LeakyRelu"), blind)}
    monkeypatch.setattr("graphopt.operators.semantics.OPERATORS", denotations)
    for left in (op.LeakyRelu(x, rest), op.LeakyRelu(x, alpha=0.5), op.LeakyRelu(x, alpha=real("a")), op.Clip(x, low)):
        proof = prove(Rule("blind", left, op.Identity(x)), refute=False)
        assert "which its denotation does not look at" in proof.detail, proof
    assert prove(Rule("seeing", op.LeakyRelu(x), op.Identity(x)), refute=False).holds


def test_every_operator_is_tested() -> None:
    assert set(OPERATORS) == set(CASES_OF)
