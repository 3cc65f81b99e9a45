"""Reports as JSON are what their published schema says."""

import json
from importlib.resources import files
from typing import Any

import pytest

import graphopt
from graphopt.rule import Rule, tensor
from tests import report_schema
from tests.test_report import report
from tests.text import parse

pytestmark = pytest.mark.usefixtures("own_cache")

MODEL = parse("float[n,8] x", "a = Neg(x); b = Neg(a); c = Mul(b, 2.0); y = Exp(c)", outputs="float[n,8] y")


def errors(data: Any) -> list[str]:
    """What the schema does not allow."""
    validator = pytest.importorskip("jsonschema").Draft202012Validator(graphopt.report_schema())
    return [error.message for error in validator.iter_errors(data)]


def test_the_schema_describes_every_field() -> None:
    assert report_schema.FILE.read_text(encoding="utf-8") == report_schema.text(), "python -m tests.report_schema"


def test_the_schema_is_one() -> None:
    pytest.importorskip("jsonschema").Draft202012Validator.check_schema(graphopt.report_schema())
    assert files("graphopt.report").joinpath("report.schema.json").is_file()


@pytest.mark.parametrize(
    "options",
    [
        {"cost": "none", "check": False},
        {"cost": "analytic", "rules": [Rule("double_is_sum", tensor("x") * 2.0, tensor("x") + tensor("x"))]},
        {"seconds": 2.0, "dims": {"n": [1, 4]}},
    ],
    ids=["simplified", "estimated", "timed"],
)
def test_a_report_fits_the_schema(options: dict[str, Any]) -> None:
    made = graphopt.optimize(MODEL, threads=1, **options).report
    assert errors(json.loads(made.to_json())) == []


def test_what_is_no_report_does_not_fit() -> None:
    data = json.loads(report().to_json())
    assert errors(data) == []
    assert errors(data | {"schema_version": 2}) == ["1 was expected"]
    assert errors(data | {"rewrites": [{"name": 3}]})
    del data["timing"]
    assert errors(data) == ["'timing' is a required property"]
