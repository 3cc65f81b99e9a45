"""The check of a model against another: are they equal, and is it fast enough?"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphopt.base.records import to_json
from graphopt.check.verdict import EqualityVerdict, ModelComparison
from graphopt.report.report import print_comparison
from graphopt.runtime.bench import Benchmark
from graphopt.runtime.measure import Speedup

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """Findings on a model and the one that it is to be equal to."""

    model: str
    against: str
    comparison: ModelComparison
    required: float | None = None
    """Speedup that is required; None where none is."""
    benchmark: Benchmark | None = None
    """Times of the other model and of this one; None where they differ."""

    @property
    def is_equal(self) -> bool:
        return self.comparison.verdict is EqualityVerdict.EQUAL

    @property
    def speedup(self) -> Speedup | None:
        """Speedup over the other model, at all sizes together."""
        return None if self.benchmark is None else self.benchmark.overall_speedups[1]

    @property
    def speedup_missed(self) -> str:
        """Reason why the required speedup is missed, all of the interval below it; empty where it may be reached."""
        ratio = self.speedup
        if ratio is None or self.required is None or ratio.high >= self.required:
            return ""
        between = f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
        return f"the speedup over {self.against} is {between}; {self.required:g} is required"

    def to_json(self) -> str:
        """Return all that was found: `comparison` as `compare --json` has it, `benchmark` as `bench --json`."""
        ratio = self.speedup
        data = {
            "model": self.model,
            "against": self.against,
            "ok": self.is_equal and not self.speedup_missed,
            "verdict": str(self.comparison.verdict),
            "speedup": ratio and {"median": ratio.median, "low": ratio.low, "high": ratio.high},
            "required_speedup": self.required,
            "speedup_missed": self.speedup_missed,
            "comparison": json.loads(to_json(self.comparison)),
            "benchmark": self.benchmark and json.loads(self.benchmark.to_json()),
        }
        return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)

    def print(self, console: Console) -> None:
        """Print the table of the comparison, then that of the times."""
        print_comparison(self.comparison, console)
        if self.benchmark is not None:
            console.print(f"\n{self.benchmark}", soft_wrap=True)
