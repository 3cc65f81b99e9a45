"""The commands of graphopt, run in the process of a test."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from graphopt.cli.main import app


def run(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])
