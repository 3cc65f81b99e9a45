"""The check of a result: is it the model that was given? If not, which rewrite is to blame?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphopt import onnx_io
from graphopt.compare import Comparison, Verdict, compare
from graphopt.errors import DifferenceError, ModelError
from graphopt.excerpts import compare_region
from graphopt.fixpoint import Step
from graphopt.report import Summary, check_text
from graphopt.tune import LARGE


@dataclass(frozen=True)
class Check:
    """The comparison of a result with the original: whole where that can be, else rewrite by rewrite."""

    original: onnx_io.Source
    loaded: onnx_io.Model
    before: Summary
    steps: Sequence[Step]
    seed: int
    inputs: Mapping[str, Any] | None
    exact: bool
    tell: Callable[[str, float], None]

    def verdict(self) -> Comparison:
        """What was found.

        Raises:
            DifferenceError: they differ; names the first rewrite that made the difference.
        """
        if self.before.weight_bytes > LARGE:
            return self._by_region("the model is too large to be run twice")
        found = self._whole()
        if found.verdict is Verdict.SKIPPED:
            return self._by_region(found.reason)
        if found.verdict is Verdict.DIFFERENT:
            guilty = _guilty(self.steps, lambda: self._whole().verdict is not Verdict.DIFFERENT)
            raise DifferenceError(f"the optimized model is {check_text(found)}. {guilty}")
        return found

    def _whole(self) -> Comparison:
        return compare(
            self.original,
            self.loaded,
            seeds=(self.seed, self.seed + 1),
            inputs=dict(self.inputs) if self.inputs else None,
            exact=self.exact,
            progress=lambda done: self.tell("check", done),
        )

    def _by_region(self, why: str) -> Comparison:
        """Compare what each rewrite took out with what it put in, as small models of their own."""
        compared, skipped, worst = 0, [], []
        for done, step in enumerate(reversed(self.steps)):
            found = self._region(step)
            if isinstance(found, str) or found.verdict is not Verdict.EQUAL:
                skipped.append(f"{step.name} at {_place(step)}: {found if isinstance(found, str) else found.reason}")
            else:
                compared += 1
                worst += [found.worst] if found.worst else []
            step.undo()
            self.tell("check", (done + 1) / len(self.steps))
        for step in self.steps:
            step.redo()
        outputs = sorted(worst, key=lambda difference: difference.relative / (difference.tolerance or 1))[-1:]
        note = f"{why}, so {compared} of {len(self.steps)} rewrites were compared on their own"
        verdict = Verdict.EQUAL if compared == len(self.steps) else Verdict.SKIPPED
        return Comparison(verdict, tuple(outputs), reason=note, skipped=tuple(skipped))

    def _region(self, step: Step) -> Comparison | str:
        """The verdict on one rewrite, or why there is none."""
        seeds = (self.seed, self.seed + 1)
        try:
            found = compare_region(step.graph, step.patch, any_values=step.is_rule, exact=self.exact, seeds=seeds)
        except ModelError as error:
            return str(error)
        if found.verdict is Verdict.DIFFERENT:
            raise DifferenceError(f"{_accusation(step)}: {check_text(found)}")
        return found


# -- naming the culprit ------------------------------------------------------------------------------------------------


def _guilty(steps: Sequence[Step], agrees: Callable[[], bool]) -> str:
    """The first step after which the models differ, found by undoing and redoing."""
    position = len(steps)

    def agrees_after(count: int) -> bool:
        nonlocal position
        while position > count:
            position -= 1
            steps[position].undo()
        while position < count:
            steps[position].redo()
            position += 1
        return agrees()

    if not agrees_after(0):
        return "No rewrite made the difference: it is there after loading and saving alone"
    return _accusation(steps[bisect(len(steps), agrees_after)])


def bisect(count: int, agrees: Callable[[int], bool]) -> int:
    """The index of the first of `count` steps after which the models differ, by binary search.

    `agrees(n)` says whether the model after the first n steps agrees with the original; it is taken for granted that
    it does after none and does not after all.
    """
    good, bad = 0, count
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if agrees(middle) else (good, middle)
    return good


def _accusation(step: Step) -> str:
    what = "rule" if step.is_rule else "pass"
    return (
        f"The first difference is made by the {what} '{step.name}' at {_place(step)}; --skip {step.name} leaves it out"
    )


def _place(step: Step) -> str:
    """The values that a step replaced, by name."""
    names = [name for node in step.patch.removed if not node.is_constant for name in node.names if name]
    return ", ".join(f"'{name}'" for name in names[:3]) + (" …" if len(names) > 3 else "")
