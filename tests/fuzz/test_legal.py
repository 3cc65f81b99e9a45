"""Drawn legal models in every mode: right, runnable, no larger, and the same when done again."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest

from tests.fuzz import drawing, legal, shapes
from tests.fuzz.judge import CLOSE, ENOUGH, MODES, Tally, difference, judge, mode_of, soak

CASES = 80
"""Models that are drawn where no time is asked for: under half a minute on one core."""


@pytest.mark.slow
def test_drawn_models_stay_right_runnable_and_no_larger_and_a_second_run_changes_nothing(
    pytestconfig: pytest.Config,
) -> None:
    seconds = pytestconfig.getoption("--fuzz-seconds")
    seeds = itertools.count() if seconds else range(CASES)
    tally = soak(((seed, mode_of(seed)) for seed in seeds), seconds or 1e9)
    assert (list(map(str, tally.faults)), tally.absent(MODES)) == ([], [])


@pytest.mark.slow
def test_models_that_compute_with_sizes_stay_right() -> None:
    """Empty lists and scalars, on which folds and known sizes rest."""
    tally = soak(((seed, mode_of(seed)) for seed in range(120)), 1e9, shapes.draw)
    assert list(map(str, tally.faults)) == []


def test_what_a_run_has_not_met_is_told() -> None:
    tally = Tally()
    tally.add("none", judge(0, "none"))
    assert tally.judged == 1
    assert tally.absent(["none"]) == []
    tally.judged = ENOUGH
    assert {"with open sizes", "in mode exact"} < {*tally.absent(["none", "exact"])}
    assert "in mode none" not in tally.absent(["none", "exact"])


def test_a_drawing_is_its_seed_s_alone() -> None:
    assert legal.draw(3).proto == legal.draw(3).proto
    assert legal.draw(3).proto != legal.draw(4).proto
    assert shapes.draw(3).proto == shapes.draw(3).proto


def test_drawn_models_are_legal_and_of_many_kinds() -> None:
    drawn = [legal.draw(seed).proto for seed in range(150)]
    for proto in drawn:
        onnx.checker.check_model(proto)
    operators = {node.op_type for proto in drawn for node in proto.graph.node}
    assert {"If", "Loop", "Identity", "Conv", "Slice", "Where", "Clip", "Reshape"} <= operators
    assert {proto.opset_import[0].version for proto in drawn} == set(drawing.OPSETS)


def test_drawn_arithmetic_on_sizes_is_legal_and_has_empty_lists() -> None:
    drawn = [shapes.draw(seed).proto for seed in range(150)]
    for proto in drawn:
        onnx.checker.check_model(proto, full_check=True)
    operators = {node.op_type for proto in drawn for node in proto.graph.node}
    assert {"ReduceProd", "Slice", "Concat", "Div", "Range", "ConstantOfShape", "Where"} <= operators
    lengths = (value.type.tensor_type.shape.dim for proto in drawn for value in proto.graph.output)
    assert any(len(dims) == 1 and dims[0].HasField("dim_value") and not dims[0].dim_value for dims in lengths)


def test_the_judge_tells_a_wrong_model() -> None:
    a = np.array([1.0, -0.0, np.nan], np.float32)
    assert difference(a, a.copy(), 0.0) == ""
    assert difference(a, np.abs(a), 0.0)
    assert difference(a, np.abs(a), CLOSE) == ""
    assert difference(a, a + 1, CLOSE)
    assert set(map(mode_of, range(70))) == set(MODES)


FOUND = {
    "6:none": "one that found an Identity of an input or of another output took it away, and the file needed it again",
    "82433:exact": "a dead body kept half precision alive, which was gone in the file",
    "92464:exact": "what was allowed in a part was not in the whole, where half precision is cast",
    "92510:unchecked": "the original overflows",
    "93931:unchecked": "two nodes in the place of a reduction of one element",
    "200264:exact": "a capture that no body read stayed, with what it alone kept alive, and was gone in the file",
    "1503753:strict": "a Where of twice the same made 0 of -0, by which something is divided",
    "6000119:none": "the check fed infinities for a dead Where, which a second run did not see",
    "7000174:strict": "a product of weights of 3e38 overflows or not, as the order of its terms is",
    "12004713:none": "an operator that asks for infinities was folded away, and still kept rules from their places",
    "94893:exact": "an Identity for a Flatten, views for a Transpose",
}
"""What was found by drawing, by what was wrong or judged to be."""


@pytest.mark.parametrize("case", FOUND)
def test_what_was_found_is_right_now(case: str) -> None:
    seed, mode = case.split(":")
    assert judge(int(seed), mode).faults == ()
