"""Elements of all pages: the document with its styles and scripts, cards, tables, and the section with two graphs.

Every page is one file that loads nothing: it works from a disk, in a mail and without a network.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

from graphopt.report.graph_data import GraphPair, graph_data
from graphopt.report.html import Html, data_element, element, joined, void_element

LAYOUT_LIBRARY = "vendor/dagre.min.js"
"""The library that lays out graphs: `@dagrejs/dagre` 3.1.3, as its package on npm has it, under the MIT license."""

LAYOUT_LIBRARY_SHA256 = "54a503e346f93ca0bb10abe7999587e037262935687aca45eb4e4b0f64bbb578"
"""Digest of that file."""


def asset(name: str) -> str:
    """Return the text of a file that is installed beside this module."""
    return files("graphopt.report").joinpath(name).read_text(encoding="utf-8")


def document(title: str, *body: str, data: Mapping[str, Any] | None = None) -> str:
    """Return a page. `data` are what its scripts read, by the id of their element; without any there is no script."""
    scripts: list[Html] = []
    if data:
        license_text = asset("vendor/dagre.LICENSE.txt").replace("*/", "* /")
        library, _, _ = asset(LAYOUT_LIBRARY).partition("//# sourceMappingURL")
        scripts = [data_element(name, each) for name, each in data.items()]
        scripts += [Html(f"<script>/*! @dagrejs/dagre\n{license_text}*/\n{library}</script>")]
        scripts += [Html(f"<script>{asset(f'assets/{name}.js')}</script>") for name in ("drawing", "graph")]
    head = [
        void_element("meta", charset="utf-8"),
        void_element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        Html(f"<style>{asset('assets/page.css')}</style>"),
    ]
    content = joined([element("head", *head), element("body", element("main", *body), *scripts)])
    return f"<!DOCTYPE html>\n{element('html', content, lang='en')}\n"


def section(name: str, title: str, *content: str) -> Html:
    """Return a section of a page, under a heading."""
    heading = element("h2", title, id=f"{name}-title")
    return element("section", heading, *content, id=name, aria_labelledby=f"{name}-title")


def cards(facts: Iterable[tuple[str, str, str]]) -> Html:
    """Return the most important numbers: each what it is, large, a word for it, and what more is to be said."""
    items = (
        element("li", element("b", value), word, *([element("small", more)] if more else []))
        for value, word, more in facts
    )
    return element("ul", *items, class_="cards")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] = ()) -> Html:
    """Return a table; the columns of numbers are flush right."""

    def cells(name: str, row: Sequence[str], **attributes: str) -> Html:
        marked = (
            element(name, cell, class_="number" if column in numbers else None, **attributes)
            for column, cell in enumerate(row)
        )
        return element("tr", *marked)

    body = element("tbody", *(cells("td", row) for row in rows))
    return element("div", element("table", element("thead", cells("th", head, scope="col")), body), class_="scroll")


def bar(length: float, *, after: bool) -> Html:
    """Return a bar of a length from 0 to 1; none of length 0."""
    if not length:
        return Html()
    return element("span", class_="bar after" if after else "bar", style=f"width:{length:.1%}", aria_hidden="true")


# -- graphs ------------------------------------------------------------------------------------------------------------

LEGEND = {
    "removed": "removed",
    "new": "new",
    "rewired": "rewired: reads other values",
    "block": "block, click to open",
}

READING_HINT = (
    "A value that three or more boxes read is drawn once, and named beside its other readers. Ctrl and the wheel zoom;"
    " Enter opens a block, Escape closes it."
)


def graph_section(how: str) -> Html:
    """Return the section in which `assets/graph.js` draws two graphs; `how` says how it is known what changed."""
    legend = (part for kind, text in LEGEND.items() for part in (element("span", text, class_=f"mark {kind}"), " "))
    search = void_element(
        "input",
        type="search",
        id="graph-search",
        placeholder="find a node or operator",
        aria_label="find a node, an operator or a block",
    )
    zoom = element(
        "div",
        element("button", "−", type="button", id="zoom-out", aria_label="zoom out"),
        " ",
        element("button", "+", type="button", id="zoom-in", aria_label="zoom in"),
        " ",
        element("button", "fit", type="button", id="zoom-fit", aria_label="fit the graphs into their panes"),
        role="group",
        aria_label="zoom",
    )
    path = element("nav", class_="paths", id="graph-path", aria_label="path to the block that is shown")
    blocks = element(
        "nav",
        element("ol", id="graph-results", hidden=True, aria_live="polite"),
        element("ol", id="graph-list"),
        class_="blocks",
        aria_label="blocks, and what was found",
    )
    panes = (
        element(
            "div",
            element("h3", side),
            element("div", id=f"pane-{side}", tabindex="0", role="region", aria_label=f"graph {side}"),
            class_="pane",
        )
        for side in ("before", "after")
    )
    return section(
        "graph",
        "The graph",
        element("div", path, element("span", *legend, class_="legend"), search, zoom, class_="tools"),
        element("div", blocks, *panes, class_="graph"),
        element("div", id="graph-detail", class_="detail-line", aria_live="polite"),
        element("p", f"{how} {READING_HINT}", class_="faint"),
    )


def graph_page_data(pair: GraphPair, pictures: Sequence[Any] = ()) -> dict[str, Any]:
    """Return the data of a page with two graphs, and with pictures of rules."""
    return {"graph-data": graph_data(pair), "picture-data": pictures}
