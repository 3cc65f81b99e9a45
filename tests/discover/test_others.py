"""Substitutions that another system generated, in terms of ONNX: none of them silently differs.

`benchmarks/results/taso.jsonl` has what became of each equation that TASO published; some are asked again here.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest

from benchmarks.substitutions import RESULTS, Equation, answer, distinct, equations
from graphopt.base.errors import GraphoptError

TOLD: list[dict[str, Any]] = [json.loads(line) for line in (RESULTS / "taso.jsonl").read_text().splitlines()]


def equation(text: str) -> Equation:
    ((left, right),) = equations(text)
    return Equation(left, right)


# -- the file ----------------------------------------------------------------------------------------------------------


def test_equations_follow_each_other_without_a_sign_between_them() -> None:
    found = equations("relu(input_1)==relu(relu(input_1))matmul(input_1,input_4)==ewadd(input_1,input_2)")
    assert [str(Equation(*sides)) for sides in found] == [
        "relu(input_1)==relu(relu(input_1))",
        "matmul(input_1,input_4)==ewadd(input_1,input_2)",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("relu(input_1)", "equation 1: there is no '==' after relu(input_1)"),
        ("relu(input_1)==", "an operator or an input is missing"),
        ("(matmul ?input_1 ?input_4)=>(matmul ?input_4 ?input_1)", "not a file of TASO's equations"),
    ],
)
def test_another_file_is_refused(text: str, said: str) -> None:
    with pytest.raises(GraphoptError, match=re.escape(said)):
        equations(text)


def test_an_operator_that_taso_does_not_have_is_named() -> None:
    with pytest.raises(GraphoptError, match="'dropout' is no operator of TASO"):
        equation("dropout(input_1)==input_1").sides()


def test_names_and_direction_do_not_make_another_equation() -> None:
    same = "relu(ewadd(input_1,input_2))==relu(input_3)relu(input_2)==relu(ewadd(input_1,input_3))"
    assert [each.times for each in distinct(equations(same))] == [2]


def test_a_convolution_has_as_many_groups_as_its_weights_say() -> None:
    sides = equation("conv2d(1,1,0,0,input_7,input_10)==conv2d(1,1,0,2,input_7,input_19)").sides()
    assert str(sides.term) == "Conv(x7, x10, auto_pad='SAME_UPPER')"
    assert str(sides.other) == "Relu(Conv(x7, x19, auto_pad='SAME_UPPER', group=size('C')))"


# -- what became of them -----------------------------------------------------------------------------------------------


def test_what_became_of_each_equation_is_told() -> None:
    verdicts = Counter(line["verdict"] for line in TOLD)
    assert sum(line["times"] for line in TOLD) == 931
    assert verdicts.keys() <= {"SAME", "PROVED", "REFUTED", "UNKNOWN"}
    for line in TOLD:
        assert ("as run by ONNX Runtime" in line["detail"]) == (line["verdict"] == "REFUTED"), line["equation"]
        assert line["follows"] or line["verdict"] != "UNKNOWN", line["equation"]


def test_what_is_refuted_are_pools_that_leave_out_what_is_padded() -> None:
    """TASO's generator adds up windows; where it runs them, and in ONNX, they are means of what is inside."""
    refuted = [line for line in TOLD if line["verdict"] == "REFUTED"]
    assert sum(line["times"] for line in refuted) == 45 and all("pool2d_avg" in line["equation"] for line in refuted)
    assert sum(line["padded"] != "PROVED" and not line["follows"] for line in refuted) <= 1


KERNELS = "conv2d(1,1,0,0,input_7,input_10),conv2d(1,1,0,0,input_7,input_13)"
AGAIN = (
    "transpose(matmul(input_1,input_4))==matmul(transpose(input_4),transpose(input_1))",
    f"ewadd({KERNELS})==conv2d(1,1,0,0,input_7,ewadd(input_10,enlarge(3,3,input_13)))",
    "pool2d_avg(3,3,1,1,0,input_8)==conv2d(1,1,0,0,input_8,const_pool(3,3))",
    "relu(input_1)==split_0(1,relu(concat(1,input_1,input_2)))",
    "scalar_mul(pool2d_avg(3,3,1,1,0,input_7),input_20)==pool2d_avg(3,3,1,1,0,scalar_mul(input_7,input_20))",
)


@pytest.mark.parametrize("text", AGAIN)
def test_some_are_asked_again(text: str) -> None:
    (told,) = (line for line in TOLD if line["equation"] == text)
    found = answer(equation(text))
    assert (found.verdict, found.padded, found.found) == (told["verdict"], told["padded"], told["found"])


def test_what_differs_is_refuted_with_a_counterexample() -> None:
    """TASO takes a Relu for fused into the convolution before it; here one is lost."""
    found = answer(equation("conv2d(1,1,0,2,input_7,input_10)==conv2d(1,1,0,0,input_7,input_10)"))
    assert found.verdict == "REFUTED" and "as run by ONNX Runtime" in found.detail
