"""The pages of a report and of a rule; those of two models are in `model_pages.py`. Begin with `report_page`."""

from __future__ import annotations

from pathlib import PurePath

from graphopt.language.proof import Proof
from graphopt.language.rule import Rule
from graphopt.report.graph_data import GraphPair
from graphopt.report.graph_outline import GraphOutline
from graphopt.report.html import Html, element
from graphopt.report.page_layout import asset, document, graph_page_data, graph_section, section, table
from graphopt.report.report import Report
from graphopt.report.report_sections import (
    check_section,
    operators_section,
    origin_section,
    report_cards,
    rewrite_pictures,
    rewrites_section,
    simplifications_gain,
    tried_section,
    used_rules,
    verdict_sentence,
)
from graphopt.report.rule_drawing import describe_hole, proof_text
from graphopt.report.rule_picture import rule_pictures

TRACED = "What changed is known from the rewrites themselves, not from names."

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
    return document(
        f"graphopt: {PurePath(report.source).name}",
        element("h1", verdict_sentence(report)),
        element("p", report.source, class_="faint"),
        report_cards(report),
        graph_section(TRACED),
        rewrites_section(report, used),
        operators_section(report),
        tried_section(report),
        check_section(report.comparison),
        origin_section(report),
        data=graph_page_data(report_graphs(report, before, after), rewrite_pictures(report, used)),
    )


def report_graphs(report: Report, before: GraphOutline, after: GraphOutline) -> GraphPair:
    """Return both graphs with what became of their nodes; arguments are those of `report_page`."""
    places = [(each.use.name, each.places) for each in used_rules(report)]
    return GraphPair.traced(before, after, report.kept_nodes, places)


def report_summary(report: Report) -> str:
    """Return the head of that page and its rewrites as a fragment without scripts, for a notebook."""
    rows = [(each.label, each.use.proof or "", each.gain_text(report), each.nodes_text) for each in used_rules(report)]
    more = [f"and {len(rows) - MAX_SUMMARY_ROWS} more"] if len(rows) > MAX_SUMMARY_ROWS else []
    return element(
        "div",
        Html(f"<style>{asset('assets/summary.css')}</style>"),
        element("p", element("b", verdict_sentence(report))),
        report_cards(report),
        element("p", "Simplifications: ", simplifications_gain(report)),
        table(("rewrite", "proof", "gain", "nodes"), rows[:MAX_SUMMARY_ROWS], numbers=(3,)),
        element("p", *more),
        class_="graphopt-report",
    )


def rule_page(rule: Rule, proof: Proof | None) -> str:
    """Return the page of a rule, with its proof where there is one."""
    holes = [(str(hole), describe_hole(hole)) for hole in rule.holes.values()]
    return document(
        f"graphopt: {rule.name}",
        element("h1", rule.name),
        element("p", rule.why),
        element("div", class_="picture", data_picture="0"),
        element("pre", str(rule)),
        section("holes", "Holes", table(("hole", "what it stands for"), holes)),
        section(
            "proof", "Proof", element("p", proof_text(proof)), element("p", f"digest {rule.digest}", class_="faint")
        ),
        data={"picture-data": [rule_pictures(rule)]},
    )
