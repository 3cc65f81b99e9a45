"""The console on which texts and tables are printed: a terminal obeys nothing that is in the names of a model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from graphopt.base.files import escape_unprintable


class SafeConsole(Console):
    """A console that writes characters as in Python which a terminal does not print, such as an escape."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(escape_unprintable(text, keep="\n"), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        if isinstance(renderable, Text) and not renderable.plain.isprintable():
            renderable = renderable.copy()
            renderable.plain = escape_unprintable(renderable.plain, keep="\n")
        return super().render(renderable, options)
