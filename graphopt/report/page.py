"""The pages: of a report, of a comparison, of a benchmark and of a rule. Begin with `report_page`."""

from __future__ import annotations

from pathlib import PurePath

from graphopt.report.graph_data import GraphPair
from graphopt.report.graph_outline import GraphOutline
from graphopt.report.html import Html, element
from graphopt.report.page_layout import asset, document, graph_page_data, graph_section, table
from graphopt.report.report import Report
from graphopt.report.report_sections import (
    check_section,
    operators_section,
    origin_section,
    report_cards,
    rewrite_pictures,
    rewrites_section,
    tried_section,
    used_rules,
    verdict_sentence,
)

TRACED = (
    "What changed is known from the rewrites themselves, not from names. A value that three or more boxes read is drawn"
    " once, and named beside its other readers. Ctrl and the wheel zoom; Enter opens a block, Escape closes it."
)


MAX_SUMMARY_ROWS = 12
"""Rewrites that are listed in a notebook."""


def report_page(report: Report, before: GraphOutline, after: GraphOutline) -> str:
    """Return the page of a report.

    Args:
        report: what was done.
        before: the graph of the original.
        after: that of the result.
    """
    used = used_rules(report)
    places = [(each.use.name, each.places) for each in used]
    pair = GraphPair.traced(before, after, report.kept_nodes, places)
    return document(
        f"graphopt: {PurePath(report.source).name}",
        *_head(report),
        graph_section(TRACED),
        rewrites_section(report, used),
        operators_section(report),
        tried_section(report.timing),
        check_section(report.comparison),
        origin_section(report),
        data=graph_page_data(pair, rewrite_pictures(report, used)),
    )


def report_summary(report: Report) -> str:
    """Return the head of that page and its rewrites as a fragment without scripts, for a notebook."""
    rows = [(each.label, each.use.proof or "", each.gain_text(report), each.nodes_text) for each in used_rules(report)]
    more = [f"and {len(rows) - MAX_SUMMARY_ROWS} more"] if len(rows) > MAX_SUMMARY_ROWS else []
    return element(
        "div",
        Html(f"<style>{asset('assets/summary.css')}</style>"),
        element("p", element("b", verdict_sentence(report))),
        report_cards(report),
        table(("rewrite", "proof", "gain", "nodes"), rows[:MAX_SUMMARY_ROWS], numbers=(3,)),
        element("p", *more),
        class_="graphopt-report",
    )


def _head(report: Report) -> list[str]:
    return [
        element("h1", verdict_sentence(report)),
        element("p", report.source, class_="faint"),
        report_cards(report),
    ]
