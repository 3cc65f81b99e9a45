"""Findings of a comparison of two models, and their wording."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import isfinite

from graphopt.runtime.sample_inputs import Binding


class EqualityVerdict(StrEnum):
    """Outcome of a comparison."""

    EQUAL = "equal"
    DIFFERENT = "different"
    CANNOT_RUN = "cannot run"
    """Neither model runs, and both for the same kind of reason."""
    SKIPPED = "skipped"
    """Nothing was compared: nothing is known."""


@dataclass(frozen=True, slots=True)
class ComparisonCase:
    """One set of inputs that both models were run on."""

    seed: int
    binding: Binding
    values: str
    """normal, wide, small, non-finite, hidden, least, greatest or alternating; see `sample_inputs`."""
    overridden: tuple[str, ...] = ()
    """The initializers that were fed."""

    def __str__(self) -> str:
        sizes = "".join(f", {name}={size}" for name, size in self.binding.items())
        return f"seed {self.seed}, {self.values} values{sizes}{', overriding initializers' if self.overridden else ''}"


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """Findings at one output over all cases: the largest difference, and how much was allowed."""

    output: str
    dtype: str
    absolute: float
    """Largest difference of two elements; infinite where shapes, types or the positions of NaN and Inf differ."""
    relative: float
    """The same as a fraction of the largest magnitude in the output."""
    tolerance: float
    """Largest `relative` that is allowed."""
    why: str
    """Origin of the tolerance, or the reason why there is none."""
    ok: bool
    detail: str = ""
    """The difference in words, with the case in which it was seen."""
    varies: float = 0.0
    """Largest difference between two runs of the original, as a fraction of the output's largest magnitude; 0 if
    unmeasured."""

    def __str__(self) -> str:
        if self.detail:
            return f"output '{self.output}': {self.detail}"
        allowed = f"{self.relative:.2g} of its largest element, and {self.tolerance:.2g} is allowed"
        return f"output '{self.output}': differs by {allowed} (absolute {self.absolute:.2g})"


@dataclass(frozen=True, slots=True)
class ModelComparison:
    """The verdict on two models, and all that it rests on."""

    verdict: EqualityVerdict
    outputs: tuple[OutputDifference, ...] = ()
    cases: tuple[ComparisonCase, ...] = ()
    oracle: str = ""
    reason: str = ""
    """Reason why the models cannot run, were not compared, or differ other than in an output."""
    skipped: tuple[str, ...] = ()
    """Outputs or cases that could not be compared, and why; there may be others that were."""
    legal: bool = True
    """False if ONNX Runtime rejects the original as invalid, or loads neither model, unless only because an operator is
    unknown."""
    replaced: tuple[str, ...] = ()
    """Operators for which this machine has no kernel: what was run in their places is their definitions."""

    @property
    def ok(self) -> bool:
        """True if the models agree, or fail alike; False if they differ or nothing was compared."""
        return self.verdict in (EqualityVerdict.EQUAL, EqualityVerdict.CANNOT_RUN)

    @property
    def verdict_text(self) -> str:
        """The verdict, with its reason if there is one."""
        return f"{self.verdict}: {self.reason}" if self.reason else str(self.verdict)

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(case.seed for case in self.cases))

    @property
    def bindings(self) -> tuple[Binding, ...]:
        found: list[Binding] = []
        for case in self.cases:
            if case.binding and case.binding not in found:
                found.append(case.binding)
        return tuple(found)

    @property
    def varying(self) -> tuple[str, ...]:
        """A sentence for each output that differs between runs of the original."""
        return tuple(f"output '{item.output}': {format_variation(item.varies)}" for item in self.outputs if item.varies)

    @property
    def worst(self) -> OutputDifference | None:
        """The output that comes nearest to its tolerance, or exceeds it furthest."""
        return max(self.outputs, key=lambda d: (not d.ok, tolerance_ratio(d)), default=None)

    def __str__(self) -> str:
        lines = [self.verdict_text]
        if self.worst is not None:
            lines = [lines[0] if self.reason else f"{self.verdict}: {self.worst}", f"tolerance: {self.worst.why}"]
        lines += [f"varies: {what}" for what in self.varying]
        lines += [f"run: {case}" for case in self.cases]
        lines += [f"not compared: {what}" for what in self.skipped]
        lines += [f"by definition: {name}" for name in self.replaced]
        return "\n".join([*lines, *([f"oracle: {self.oracle}"] if self.oracle else [])])


def tolerance_ratio(found: OutputDifference) -> float:
    return found.relative / found.tolerance if found.tolerance else found.relative


def format_variation(varies: float) -> str:
    """Return how an output varies, by the largest difference of two runs relative to its largest element."""
    far = f"by {varies:.2g} of its largest element" if isfinite(varies) else "in its shape, or in NaN and infinities"
    return f"the original itself varies {far} from run to run"


def format_comparison(found: ModelComparison | None) -> str:
    """Return a comparison in a sentence or two."""
    if found is None:
        return "not made"
    worst, because = found.worst, f"; {found.reason}" if found.reason else ""
    if worst is None or found.verdict in (EqualityVerdict.SKIPPED, EqualityVerdict.CANNOT_RUN):
        return found.verdict_text
    if not worst.ok:
        return f"{found.verdict}: output '{worst.output}' {worst.detail}"
    sizes = [" ".join(f"{name}={size}" for name, size in binding.items()) for binding in found.bindings]
    seeds = f"seed{'s' * (len(found.seeds) > 1)} {', '.join(map(str, found.seeds))}"
    runs = "; ".join([seeds, *sizes]) if found.cases else "in the worst of them"
    because += "".join(f"; {what}" for what in found.varying)
    because += f"; {', '.join(found.replaced)} by definition" if found.replaced else ""
    if worst.absolute == 0:
        same = "no difference was seen" if found.varying else "the same in every bit"
        if not found.varying and any(text.startswith("the values of output ") for text in found.skipped):
            same += " that was compared"
        return f"{found.verdict}: {same}{f' ({runs})' if found.cases else ''}{because}"
    return (
        f"{found.verdict}: differs by at most {worst.relative:.2g} of the largest element of '{worst.output}', where"
        f" {worst.tolerance:.2g} is allowed (absolute {worst.absolute:.2g}; {runs}){because}"
    )
