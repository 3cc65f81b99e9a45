"""What varies from run to run is told from what differs, and is named."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import graphopt
from graphopt.check import compare as comparing
from graphopt.check import reruns
from graphopt.check.compare import compare_models
from graphopt.check.verdict import EqualityVerdict, format_comparison
from graphopt.runtime import oracle
from graphopt.runtime.oracle import OracleSession, RunnableModel
from graphopt.runtime.sample_inputs import Array
from tests.text import parse

Change = Callable[[Array, int], Array]
"""What a run makes of an output, by its number among all runs."""


class Shaky:
    """A session in which the output `y` is otherwise each time."""

    def __init__(self, session: OracleSession, change: Change, runs: list[int]) -> None:
        self.session, self.change, self.runs = session, change, runs
        self.name, self.overridable = session.name, session.overridable

    def run(self, feeds: Any) -> list[Any]:
        first, *others = self.session.run(feeds)
        self.runs[0] += 1
        return [self.change(first, self.runs[0]), *others]


@pytest.fixture
def shake(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def shaken(change: Change, *, alone: bool = True) -> None:
        """Have runs vary; with one thread, too, or not."""
        runs = [0]

        @contextmanager
        def opened(model: RunnableModel) -> Iterator[OracleSession]:
            with oracle.onnxruntime_unoptimized(model) as session:
                yield Shaky(session, change, runs)

        monkeypatch.setattr(comparing, "onnxruntime_unoptimized", opened)
        if not alone:
            monkeypatch.setattr(reruns, "onnxruntime_unoptimized", opened)

    return shaken


def neg(factor: float = 1, inputs: str = "float[8] x", outputs: str = "float[8] y, float[8] z") -> ModelProto:
    body = "m = Neg(x); y = Mul(m, f); z = Abs(x)"
    return parse(inputs, body, {"f": np.array(factor, np.float32)}, outputs=outputs)


def jitter(array: Array, run: int) -> Array:
    return array + np.float32(1e-3 * np.abs(array).max(initial=0) * (run % 5))


VARYING: dict[str, Change] = {
    "rounding": jitter,
    "one element": lambda array, run: np.where(np.arange(array.size) == 3, array + 0.01 * run, array),
    "a NaN now and then": lambda array, run: np.where(np.arange(array.size) == run % 5, np.nan, array),
    "a lost sum": lambda array, run: array * 0.7 if run % 4 == 0 else array,
    "the shape": lambda array, run: array[: 4 + run % 5],
    "everything": lambda array, run: np.random.default_rng(run).standard_normal(array.shape).astype(array.dtype),
    "the order of ties": np.roll,
}


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("change", VARYING.values(), ids=VARYING)
def test_a_model_that_varies_is_equal_to_itself_and_its_output_is_named(
    change: Change, alone: bool, exact: bool, shake: Callable[..., None]
) -> None:
    shake(change, alone=alone)
    found = compare_models(neg(), neg(), exact=exact)
    assert found.verdict is EqualityVerdict.EQUAL, found
    assert found.varying and all(text.startswith("output 'y': the original itself varies") for text in found.varying)
    assert "the same in every bit" not in format_comparison(found) and "varies" in format_comparison(found)
    assert not any("the original itself varies" in item.why for item in found.outputs)  # said once


@pytest.mark.parametrize("alone", [False, True])
def test_what_varies_does_not_excuse_more_than_four_times_that(alone: bool, shake: Callable[..., None]) -> None:
    shake(jitter, alone=alone)
    assert compare_models(neg(), neg(1.1)).verdict is EqualityVerdict.DIFFERENT
    assert compare_models(neg(), neg(1.002)).verdict is (EqualityVerdict.EQUAL if alone else EqualityVerdict.DIFFERENT)


def test_another_output_is_compared_as_ever(shake: Callable[..., None]) -> None:
    shake(VARYING["everything"])
    wrong = parse("float[8] x", "y = Neg(x); z = Relu(x)", outputs="float[8] y, float[8] z")
    found = compare_models(neg(), wrong)
    assert [(item.output, item.ok) for item in found.outputs] == [("y", True), ("z", False)]
    assert any("the values of output 'y': the original itself varies by" in text for text in found.skipped)


def test_a_type_is_compared_whatever_varies(shake: Callable[..., None]) -> None:
    shake(VARYING["everything"])
    wrong = parse("float[8] x", "m = Neg(x); y = Cast<to=11>(m); z = Abs(x)", outputs="double[8] y, float[8] z")
    assert compare_models(neg(), wrong).verdict is EqualityVerdict.DIFFERENT


def test_what_varies_is_optimized_and_reported(shake: Callable[..., None]) -> None:
    shake(jitter)
    result = graphopt.optimize(neg(), cost="none", strict=True)
    assert result.ok and result.report.comparison is not None and result.report.comparison.varying


def test_a_model_that_does_not_vary_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, values = list[object](), reruns.RerunOutputs.values

    def counted(self: reruns.RerunOutputs, *args: int) -> list[Any]:
        asked.append(args)
        return values(self, *args)

    monkeypatch.setattr(reruns.RerunOutputs, "values", counted)
    assert compare_models(neg(), neg()).ok and not asked
    assert (
        format_comparison(compare_models(neg(), neg(), exact=True)).startswith("equal: the same in every bit") and asked
    )


@pytest.mark.slow
@pytest.mark.parametrize("reduction", ["add", "max", "none"])
@pytest.mark.parametrize("operator", ["ScatterND", "ScatterElements"])
def test_threads_that_write_to_one_place(operator: str, reduction: str) -> None:
    """ONNX Runtime's threads add up in any order, and lose some of it."""
    count, width = 64, 1 << (15 if operator == "ScatterND" else 12)
    rows = np.zeros((count, 1) if operator == "ScatterND" else (count, width), np.int64)
    body = f'p = {operator}<reduction="{reduction}">(d, i, x); y = Mul(p, f)'

    def scattering(factor: float) -> ModelProto:
        weights: dict[str, Array] = {
            "d": np.zeros((1, width), np.float32),
            "i": rows,
            "f": np.array(factor, np.float32),
        }
        return parse(f"float[{count},{width}] x", body, weights, outputs=f"float[1,{width}] y")

    for exact in (False, True):
        assert compare_models(scattering(1), scattering(1), exact=exact, seeds=(0,)).verdict is EqualityVerdict.EQUAL
    assert compare_models(scattering(1), scattering(1.01), seeds=(0,)).verdict is EqualityVerdict.DIFFERENT


def test_a_seed_is_no_variation() -> None:
    """Of one session, runs differ; of fresh ones, the first are the same."""
    body = "r = RandomNormalLike<seed=1.0>(x); y = Add(x, {})"
    drawn, wrong = (parse("float[8] x", body.format(name), outputs="float[8] y") for name in "rx")
    assert compare_models(drawn, drawn).verdict is EqualityVerdict.EQUAL
    found = compare_models(drawn, wrong)
    assert found.verdict is EqualityVerdict.DIFFERENT and not found.varying


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    "body",
    [
        "b = Bernoulli(h); n = Abs(b); y = NonZero(n)",
        "r = RandomNormalLike(x); y = Sqrt(r)",
        "r = RandomNormalLike(x); p = Greater(r, x); y = Compress(x, p)",
        "r = RandomUniformLike(x); v, i = TopK<axis=0>(r, [3]); y = Gather(x, i)",
        "b = Bernoulli(h); i = Cast<to=7>(b); y, j, k, l = Unique(i)",
    ],
)
def test_random_shapes_and_numbers_are_equal_to_themselves(body: str, exact: bool) -> None:
    made = parse("float[64] x", f"h = Sigmoid(x); {body}")
    found = compare_models(made, made, exact=exact)
    assert found.verdict is EqualityVerdict.EQUAL and found.skipped, found
    assert "the same in every bit (" not in format_comparison(found)
