"""One table of counts at the end of a run: what became of the onnx package's test models."""

from collections import Counter
from typing import Any

import pytest


def pytest_terminal_summary(terminalreporter: Any) -> None:
    counts: Counter[str] = Counter()
    for report in (*terminalreporter.stats.get("passed", ()), *terminalreporter.stats.get("failed", ())):
        if isinstance(report, pytest.TestReport):
            for name, value in report.user_properties:
                if name == "conformance" and isinstance(value, dict):
                    counts.update(value)
    if counts:
        terminalreporter.section("test models of the onnx package, optimized")
        for outcome, count in counts.most_common():
            terminalreporter.write_line(f"{count:6d}  {outcome}")
        terminalreporter.write_line(f"{counts.total():6d}  in all")
