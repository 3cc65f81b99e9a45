"""What is enumerated in a proof: the choices of a path, and what may be chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from graphopt.language.coverage import Answer, Choice, Label, Other
from graphopt.language.scalar import Unknown
from graphopt.operators.node import Undefined, Unsupported


class NothingLeft(Undefined):
    """The conditions refuse each value that a hole may have."""


class Choices:
    """A path through the choices of an evaluation. `paths` runs a function once for each."""

    def __init__(self) -> None:
        self.path: list[Choice] = []
        """What was chosen on this path until now."""
        self._taken: list[tuple[int, list[int]]] = []

    def choose(
        self, question: str, options: Sequence[Any], admitted: Callable[[Any], bool] = lambda _: True, usual: Any = None
    ) -> Any:
        """One of the options; which of them are admitted is asked once, whatever is chosen later on.

        `usual` is what a match has that says nothing.
        """
        position = len(self.path)
        if position == len(self._taken):
            left = [number for number, option in enumerate(options) if admitted(option)]
            if not left:
                raise NothingLeft
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


class Met(Choices):
    """The one path of a match, which answers each question; it may lie beyond what `Choices` would try."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer

    def choose(
        self, question: str, options: Sequence[Any], admitted: Callable[[Any], bool] = lambda _: True, usual: Any = None
    ) -> Any:
        try:
            found = self.answer(question)
        except Unknown as error:
            raise Unsupported(str(error)) from error
        if not _is_plain_value(found):
            raise Unsupported(f"{question}: {found} is not known")
        found = usual if found is None else found
        symbol = next((option for option in options if not _is_plain_value(option)), found)
        chosen = found if found in filter(_is_plain_value, options) else symbol
        if not admitted(chosen):
            raise Undefined("the conditions do not hold")
        self.path.append(_choice(question, options, chosen, usual))
        return chosen


def _choice(question: str, options: Sequence[Any], chosen: Any, usual: Label) -> Choice:
    """Return what a path says of a choice: symbols stand for whatever is none of the other options."""
    plain = _is_plain_value(chosen)
    return Choice(question, chosen if plain else Other(tuple(filter(_is_plain_value, options))), usual)


def _is_plain_value(option: Any) -> bool:
    return all(item is None or isinstance(item, int | float | str) for item in flat(option))


def flat(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
