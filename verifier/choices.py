"""Choices that a proof enumerates: the ones made on a path, and the options that each has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from graphopt.language.coverage import AnswerQuestion, Label, OtherLabel, ProofChoice
from graphopt.language.scalar_functions import UndecidedScalarError
from graphopt.operators.op_context import UndefinedOperatorError, UnsupportedOperatorError


class NoAdmissibleChoice(UndefinedOperatorError):
    """The conditions admit no value of a hole."""


class Choices:
    """A path through the choices of an evaluation. `paths` runs a function once for each."""

    def __init__(self) -> None:
        self.path: list[ProofChoice] = []
        """Choices on this path until now."""
        self._taken: list[tuple[int, list[int]]] = []

    def choose(
        self, question: str, options: Sequence[Any], admitted: Callable[[Any], bool] = lambda _: True, usual: Any = None
    ) -> Any:
        """Return one of the options. Which of them are admitted is asked once, whatever is chosen later.

        `usual` is the option of a match that does not mention the choice.
        """
        position = len(self.path)
        if position == len(self._taken):
            left = [number for number, option in enumerate(options) if admitted(option)]
            if not left:
                raise NoAdmissibleChoice
            self._taken.append((0, left))
        chosen, left = self._taken[position]
        option = options[left[chosen]]
        self.path.append(_choice(question, options, option, usual))
        return option

    def paths(self) -> Iterator[None]:
        while True:
            self.path = []
            yield
            while self._taken and self._taken[-1][0] + 1 == len(self._taken[-1][1]):
                self._taken.pop()
            if not self._taken:
                return
            chosen, left = self._taken.pop()
            self._taken.append((chosen + 1, left))


class MatchAnswers(Choices):
    """The one path of a match, which answers each question; it may lie beyond what `Choices` would try."""

    def __init__(self, answer: AnswerQuestion) -> None:
        super().__init__()
        self.answer = answer

    def choose(
        self, question: str, options: Sequence[Any], admitted: Callable[[Any], bool] = lambda _: True, usual: Any = None
    ) -> Any:
        try:
            found = self.answer(question)
        except UndecidedScalarError as error:
            raise UnsupportedOperatorError(str(error)) from error
        if not _is_concrete(found):
            raise UnsupportedOperatorError(f"{question}: {found} is not known")
        found = usual if found is None else found
        symbol = next((option for option in options if not _is_concrete(option)), found)
        chosen = found if found in filter(_is_concrete, options) else symbol
        if not admitted(chosen):
            raise UndefinedOperatorError("the conditions do not hold")
        self.path.append(_choice(question, options, chosen, usual))
        return chosen


def _choice(question: str, options: Sequence[Any], chosen: Any, usual: Label) -> ProofChoice:
    """Return what a path says of a choice: symbols stand for whatever is none of the other options."""
    plain = _is_concrete(chosen)
    return ProofChoice(question, chosen if plain else OtherLabel(tuple(filter(_is_concrete, options))), usual)


def _is_concrete(option: Any) -> bool:
    return all(item is None or isinstance(item, int | float | str) for item in as_tuple(option))


def as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
