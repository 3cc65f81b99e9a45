"""HTML, whose texts are escaped unless they are HTML themselves."""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape
from typing import Any


class Html(str):
    """Text that is HTML, and is taken as it is."""

    __slots__ = ()


def element(name: str, /, *children: str, **attributes: str | bool | None) -> Html:
    """Return an element. `class_` is the attribute `class`, `data_x` is `data-x`; False and None are no attribute."""
    written = "".join(
        f" {key.strip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(f"<{name}{written}>{joined(children)}</{name}>")


def joined(parts: Iterable[str]) -> Html:
    """Return texts and HTML one after the other."""
    return Html("".join(part if isinstance(part, Html) else escape(part, quote=False) for part in parts))


def void_element(name: str, /, **attributes: str | bool | None) -> Html:
    """Return an element that has no content, such as `input`."""
    return Html(element(name, **attributes).removesuffix(f"</{name}>"))


def data_element(name: str, data: Any) -> Html:
    """Return a script element that holds data for the scripts of the page; no text in them ends it."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return Html(f'<script type="application/json" id="{name}">{text}</script>')
