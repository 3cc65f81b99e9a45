"""Explanations: which rules are applied to a model, and why others are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain

from graphopt.base import ort
from graphopt.base.errors import UsageError, did_you_mean
from graphopt.base.session import current_session
from graphopt.io.onnx_io import ModelSource
from graphopt.ir.graph import Node
from graphopt.language.rule import Rule
from graphopt.language.rule_library import select_names
from graphopt.options import AUTO, LATEST, Options
from graphopt.pipeline import PipelineRun, SimplifiedModel
from graphopt.report.explanation_report import Explanation
from graphopt.report.report import Report, format_alone
from graphopt.rewrite.near_misses import MissFinder, MissKind, NearMiss
from graphopt.rewrite.passes import PASSES
from graphopt.search.search_report import RewriteGroup, format_speedup
from graphopt.search.slower_rewrites import find_slower_rewrites

MOST_MISSES = 5
"""Near misses of one rule that are told."""

MOST_MISSES_OF_ALL = 10
"""Near misses that are told where no rule was asked about."""


def explain(
    model: ModelSource,
    *names: str,
    at: str | None = None,
    options: Options | None = None,
    report: Report | None = None,
    slower: bool = False,
) -> Explanation:
    """Explain which rules are applied to a model when it is simplified, and why others are not.

    Args:
        model: a path, `onnx.ModelProto`, `onnx_ir.Model` or what `torch.onnx.export` returns.
        names: rules to explain; of none the nearest misses over all rules are told.
        at: name of a node, or of a value that it makes; only places with that node are told.
        options: how the model is simplified, and with which `rules` beside those that are installed.
        report: the report of an optimization of the model, for what its search measured.
        slower: whether versions without some of what is applied race, to see what loses time.

    Raises:
        ModelError: the model is not legal.
        ProofError, RuleError: one of the rules given is not proved, or ill-formed.
        UsageError: a rule or node is not known.
    """
    chosen = options or Options()
    if chosen.target_opset == AUTO:
        raise UsageError(f"which opset is faster is measured by optimize: explain takes a number or {LATEST}")
    with current_session().child(), ort.registered_custom_ops(chosen.custom_ops):
        made = PipelineRun(model, chosen).simplified()
        rules = _select(made, names)
        chosen.report_progress("explain", 0.0)
        finder = made.misses
        if at is not None:
            _check_node_name(made, at)
            finder = replace(finder, is_wanted=lambda node: _is_named(node, at))
        counts = Counter(step.name for step in made.candidate.steps)
        if names:
            misses, absent = _misses_by_rule(finder, rules)
        else:
            misses, absent = finder.nearest_of_all(MOST_MISSES_OF_ALL), {}
        return Explanation(
            str(made.loaded.path or f"model '{made.loaded.graph.name}'"),
            made.loaded.graph.name,
            {domain or "ai.onnx": number for domain, number in made.loaded.graph.opsets.items()},
            {name: count for name, count in counts.most_common() if not names or name in names},
            tuple(_with_measurement(miss, report) for miss in misses),
            names,
            at or "",
            {name: why for name, why in absent.items() if not counts[name]},
            () if at is None else _removal_notes(made, at),
            find_slower_rewrites(made.tuner) if slower else None,
        )


def _select(made: SimplifiedModel, names: Sequence[str]) -> list[Rule]:
    """Return the rules of these names.

    Raises:
        UsageError: there is none of that name, or it is a pass.
    """
    known = {rule.name: rule for rule in made.library.all_rules}
    for name in names:
        if any(pass_.name == name for pass_ in PASSES):
            raise UsageError(f"'{name}' is a pass, which has no pattern: only rules can be explained")
    select_names(list(known), (), names)
    return [known[name] for name in names]


def _misses_by_rule(finder: MissFinder, rules: Iterable[Rule]) -> tuple[list[NearMiss], dict[str, str]]:
    """Return the nearest misses of each rule, and why some have none."""
    misses: list[NearMiss] = []
    absent: dict[str, str] = {}
    for rule in rules:
        found = finder.nearest([rule], MOST_MISSES)
        misses += [miss for miss in found if 2 * miss.matched >= found[0].matched]
        if not found:
            absent[rule.name] = finder.describe_absence(rule)
    return misses, absent


# -- nodes -------------------------------------------------------------------------------------------------------------


def _check_node_name(made: SimplifiedModel, name: str) -> None:
    """Raise UsageError where no node of the model has or makes such a name, before it was simplified or after."""
    graphs = chain(made.loaded.graph.graphs(), made.candidate.graph.graphs())
    names = [known for graph in graphs for _, node in graph.nodes() for known in (node.name, *node.names)]
    if name not in names or not name:
        raise UsageError(f"the model has no node '{name}'{did_you_mean(name, filter(None, names))}")


def _is_named(node: Node, name: str) -> bool:
    return not node.is_internal and (node.name == name or name in node.names)


def _removal_notes(made: SimplifiedModel, at: str) -> tuple[str, ...]:
    """Return a note on the step that took out a node; none where no step did."""
    for step in made.candidate.steps:
        if any(_is_named(node, at) for node in step.patch.removed):
            return (f"{at} was taken out by {step.name}",)
    return ()


# -- what was measured -------------------------------------------------------------------------------------------------


def _with_measurement(miss: NearMiss, report: Report | None) -> NearMiss:
    """Return the miss of a trade with what a search found of it."""
    if miss.kind is not MissKind.TRADE or report is None or report.timing is None:
        return miss
    tried = [group for group in report.timing.groups if miss.rule in group.rules]
    if not tried:
        return replace(miss, reason=f"{miss.reason}; the search of the report did not try it")
    return replace(miss, reason=f"{miss.reason}; {_format_measurement(max(tried, key=lambda group: group.is_taken))}")


def _format_measurement(group: RewriteGroup) -> str:
    """Return what a search found of rewrites, alone and together with others."""
    alone = f"alone {format_alone(group)}"
    together = f", with all that was taken {format_speedup(group.together)} as without" if group.together else ""
    return f"it was taken: {alone}{together}" if group.is_taken else f"left ({alone}): {group.reason}"
