"""Tests that need a newer onnx or ONNX Runtime than the lowest that pyproject.toml allows."""

from __future__ import annotations

import re
from collections.abc import Iterable

import onnx
import onnxruntime
import pytest
from _pytest.mark import ParameterSet

from graphopt.ir import schemas

INSTALLED = {"onnx": onnx.__version__, "onnxruntime": onnxruntime.__version__}


def is_older(package: str, version: str) -> bool:
    """Return whether the installed version of onnx or onnxruntime comes before another."""
    return _numbers(INSTALLED[package]) < _numbers(version)


def needs(package: str, version: str, why: str) -> pytest.MarkDecorator:
    """Return a mark that skips a test with older versions of a package, which do otherwise: `why` says what."""
    return pytest.mark.skipif(is_older(package, version), reason=f"{package} before {version}: {why}")


def has_operator(name: str, *attributes: str) -> bool:
    """Return whether the installed onnx package has an operator, with these attributes."""
    schema = schemas.schema(name)
    return schema is not None and schema.attributes.keys() >= set(attributes)


def by_operator(names: Iterable[str]) -> list[ParameterSet]:
    """Return operators as parameters of a test that is skipped for those that the installed onnx package lacks."""
    return [
        pytest.param(name, id=name, marks=() if has_operator(name) else pytest.mark.skip(f"onnx lacks {name}"))
        for name in names
    ]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
