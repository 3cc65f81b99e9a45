"""The sections of the page on a report: each says in HTML what one part of the report holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from graphopt.base.errors import RuleError
from graphopt.check.verdict import EqualityVerdict, ModelComparison, format_comparison
from graphopt.language.rule import Rule
from graphopt.report.html import Html, element, joined
from graphopt.report.node_changes import StepNodes
from graphopt.report.page_layout import bar, cards, section, table
from graphopt.report.report import (
    ModelSummary,
    Report,
    Rewrite,
    RuleUse,
    format_alone,
    format_device,
    format_file_size,
    format_group,
    format_ratio,
    format_saving,
    format_search,
    format_speed,
    format_stages,
    verdict_class,
)
from graphopt.report.rule_picture import Picture, rule_pictures
from graphopt.rewrite.refused_changes import RefusedRewrite
from graphopt.runtime.input_sizes import format_sizes
from graphopt.runtime.measure import TimingPolicy
from graphopt.search.search_report import (
    GroupKind,
    RewriteGroup,
    SearchTiming,
    VersionRace,
    format_result_speedup,
    format_speedup,
    why_no_gain,
)

MAX_PLACES = 12
"""Places of a rewrite that are listed at once; the others can be opened."""

MAX_OPERATORS = 20
"""Operators that have bars; the others are added up."""


# -- the head ----------------------------------------------------------------------------------------------------------


def verdict_sentence(report: Report) -> str:
    """Return the outcome of a run in one sentence."""
    speed = _speed_clause(report.timing, is_changed=bool(report.rewrites))
    before, after = report.before.nodes, report.after.nodes
    nodes = f"{before} nodes before and after" if before == after else f"{before} → {after} nodes"
    return f"{speed}; {nodes}; {_check_clause(report.comparison)}"


def _speed_clause(timing: SearchTiming | None, *, is_changed: bool) -> str:
    if timing is None:
        return "Not timed"
    if timing.speedup is None:
        said = format_speed(timing, is_changed=is_changed)
        return f"{said[:1].upper()}{said[1:]}" if timing.could_be_timed else "Not timed"
    return f"{'' if timing.is_gain else 'No gain: '}{format_result_speedup(timing)}"


def _check_clause(found: ModelComparison | None) -> str:
    match found:
        case None:
            return "not checked"
        case ModelComparison(verdict=EqualityVerdict.EQUAL):
            return "the check found both equal"
        case ModelComparison(verdict=EqualityVerdict.DIFFERENT):
            return "the check found a difference"
        case ModelComparison(verdict=EqualityVerdict.CANNOT_RUN):
            return "neither model runs, and both fail alike"
    return "the check is not complete"


def report_cards(report: Report) -> Html:
    """Return the numbers of a run: speed, nodes, size, check, rewrites."""
    count = len(report.counts)
    rules = f"{count} {'rule or pass' if count == 1 else 'rules and passes'}"
    return cards(
        [
            *_speed_cards(report.timing),
            *size_cards(report.before, report.after),
            check_card(report.comparison),
            (
                str(len(report.rewrites)),
                "rewrites",
                f"by {rules}",
            ),
        ]
    )


def _speed_cards(timing: SearchTiming | None) -> Iterator[tuple[str, str, str]]:
    if timing is None or timing.speedup is None:
        yield "not timed", "speed", "no search was asked for" if timing is None else _untimed_reason(timing)
        return
    where = format_device(timing) + ", measured with other weights" * timing.is_of_other_weights
    reason = why_no_gain(timing.speedup, TimingPolicy())
    note = f"no gain: {reason}; {where}" if reason else where
    speedup = timing.speedup
    yield f"{speedup.median:.3f}×", f"as fast, {speedup.low:.3f} to {speedup.high:.3f}", note
    for latency in timing.latencies[:3]:
        times = " → ".join(f"{each.median * 1e3:.3g}" for each in (latency.before, latency.after))
        yield f"{times} ms", "a run", f"at {format_sizes(latency.sizes)}" if latency.sizes else ""


def _untimed_reason(timing: SearchTiming) -> str:
    if timing.cost == "analytic":
        return "chosen by an estimate"
    return timing.untimed.removeprefix("not timed: ")


def size_cards(before: ModelSummary, after: ModelSummary) -> Iterator[tuple[str, str, str]]:
    """Yield the nodes and the size of two models."""
    yield _change(before.nodes, after.nodes), "nodes", ""
    if before.file_bytes is not None and after.file_bytes is not None:
        yield _change(before.file_bytes, after.file_bytes, format_file_size), "file", ""
    else:
        yield _change(before.weight_bytes, after.weight_bytes, format_file_size), "weights", ""


def check_card(found: ModelComparison | None) -> tuple[str, str, str]:
    """Return the verdict of a comparison, and how much of the tolerance was needed."""
    if found is None:
        return "not made", "check", ""
    worst = found.worst
    share = f"{worst.relative / worst.tolerance:.0%} of the tolerance" if worst and worst.ok and worst.tolerance else ""
    return str(found.verdict), "check", share or found.reason


def _change(before: int, after: int, text: Callable[[int], str] = str) -> str:
    """Return `970 → 620`; one number where both read the same."""
    one, other = text(before), text(after)
    return one if one == other else f"{one} → {other}"


# -- rewrites ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UsedRule:
    """A rule or pass with all its rewrites for one cause."""

    use: RuleUse
    is_follow_up: bool = False
    """True for what could be simplified after a find or a sweep: it is none of its rules."""

    @property
    def label(self) -> str:
        return f"{self.use.name} × {self.use.places}" if self.use.places > 1 else self.use.name

    @property
    def places(self) -> list[StepNodes]:
        """Nodes of each rewrite; those that change only constants have none."""
        nodes = (StepNodes(each.original_nodes, each.result_nodes) for each in self.use.rewrites)
        return [each for each in nodes if any(each)]

    @property
    def nodes_text(self) -> str:
        """Nodes that there are more or fewer, such as `−24`; nothing where there are as many."""
        return f"{self.added_nodes:+d}".replace("-", "−") if self.added_nodes else ""

    def gain_text(self, report: Report) -> str:
        """Return what it gains: a simplification by itself, where that was measured, else what it was made for."""
        if self.use.cause is not None:
            assert report.timing is not None, "a rewrite of a search is in a report without one"
            return "".join(_group_gain(report.timing.groups[self.use.cause]))
        text = report.rules.get(self.use.name)
        return f"without it {format_speedup(text.speed_without)}" if text and text.speed_without else ""

    @property
    def added_nodes(self) -> int:
        """Nodes that there are more, or fewer where it is negative."""
        return sum(len(each.added) - len(each.removed) for each in self.use.rewrites)


def used_rules(report: Report) -> list[UsedRule]:
    """Return rules and passes by cause, what gained the most first; within a cause, what removed the most nodes.

    Rules of a find or sweep come before what could be simplified after it.
    """
    groups = report.timing.groups if report.timing else ()
    uses = [
        UsedRule(use, is_follow_up=use.cause is not None and use.name not in groups[use.cause].rules)
        for use in report.rule_uses
    ]
    ranks = {cause: rank for rank, cause in enumerate(_ranked_causes(report))}
    losses = {name: text.speed_without.median for name, text in report.rules.items() if text.speed_without}

    def rank(used: UsedRule) -> tuple[float, ...]:
        loss = losses.get(used.use.name, 1.0) if used.use.cause is None else 1.0
        return ranks[used.use.cause], used.is_follow_up, loss, used.added_nodes, -used.use.places

    return sorted(uses, key=rank)


def _ranked_causes(report: Report) -> list[int | None]:
    """Return simplifications (None) and groups, what saves the most of a run first."""
    timing = report.timing
    if timing is None:
        return [None]
    groups = sorted(range(len(timing.groups)), key=lambda index: -(timing.groups[index].saved_seconds or 0.0))
    alone = [group.alone.median for group in timing.groups if group.is_taken and group.alone is not None]
    searched = timing.searched.median if timing.searched else max(alone, default=1.0)
    simplified = timing.simplified.median if timing.simplified else 1.0
    return [None, *groups] if simplified >= searched else [*groups, None]


def rewrites_section(report: Report, used: Sequence[UsedRule]) -> Html:
    """Return the rewrites by cause, each with its rule; `used` are those of `used_rules`."""
    if not used:
        none = element("p", "Nothing was rewritten: the original was written as it was.")
        return section("rewrites", "Rewrites", none)
    parts: list[Html] = []
    for index, each in enumerate(used):
        if index == 0 or used[index - 1].use.cause != each.use.cause:
            parts.append(_cause_heading(report, each.use.cause))
        elif each.is_follow_up and not used[index - 1].is_follow_up:
            parts.append(element("p", "What could be simplified then:"))
        parts.append(_rewrite_details(report, each, index))
    is_timed = report.timing is not None and report.timing.speedup is not None
    return section("rewrites", f"Rewrites{', what gained the most first' * is_timed}", *parts)


def _cause_heading(report: Report, cause: int | None) -> Html:
    timing = report.timing
    if cause is not None:
        assert timing is not None, "a rewrite of a search is in a report without one"
        group = timing.groups[cause]
        origin = "Found by the search in" if group.kind is GroupKind.FIND else "Sweep over the model:"
        title, gain = f"{origin} {group.name}", "".join(_group_gain(group))
    else:
        title, gain = "Simplifications, made wherever they match", simplifications_gain(report)
    return joined([element("h3", title), element("p", element("b", "gain: "), gain)])


def simplifications_gain(report: Report) -> str:
    """Return what all simplifications gain together."""
    if report.timing is None or report.timing.simplified is None:
        return "not timed"
    count = sum(text.speed_without is not None for text in report.rules.values())
    some = f"left out one at a time: {count} of them, which removed the most nodes"
    alone = some if count else "none was timed alone"
    return f"all together {format_speedup(report.timing.simplified)} as the original; {alone}"


def _group_gain(group: RewriteGroup) -> Iterator[str]:
    yield _alone_text(group)
    if group.saved_seconds is not None:
        yield f"; saves {format_saving(group)} of a run"
    if group.together is not None:
        yield f"; with all that was taken, {format_speedup(group.together)} as the simplified one"


def _alone_text(group: RewriteGroup) -> str:
    if group.alone is None:
        return "not timed alone"
    what, than = (
        ("each of these parts", "before") if group.kind is GroupKind.FIND else ("the model", "the simplified one")
    )
    if group.is_estimate:
        return f"alone it is estimated to make {what} {group.alone.median:.2f} times as fast as {than}"
    return f"alone it makes {what} {format_speedup(group.alone)} as {than}"


def _rewrite_details(report: Report, used: UsedRule, index: int) -> Html:
    use, text = used.use, report.rules.get(used.use.name)
    marks = [use.proof or ("" if use.is_rule else "a pass")]
    if used.added_nodes:
        marks.append(f"{used.nodes_text} node{'s' * (abs(used.added_nodes) != 1)}")
    if use.weight_bytes:
        sign = "+" if use.weight_bytes > 0 else "−"
        marks.append(f"{sign}{format_file_size(abs(use.weight_bytes))} of weights")
    doubtful = use.proof is not None and use.proof.startswith("not")
    summary = element(
        "summary",
        element("b", used.label),
        f" {used.gain_text(report) if use.cause is None else ''} ",
        element("small", " · ".join(filter(None, marks)), class_="doubt" if doubtful else None),
    )
    content = [element("p", text.why)] if text and text.why else []
    if text and text.algebra:
        content += [element("pre", text.algebra), element("div", class_="picture", data_picture=str(index))]
    content.append(_places(used, index))
    return element("details", summary, element("div", *content), id=f"rewrite-{index}")


def _places(used: UsedRule, index: int) -> Html:
    """Return a button for each place, which shows it in the graph."""
    shown = [each for each in used.use.rewrites if each.original_nodes or each.result_nodes]
    if not shown:
        return element("p", "Changes constants only.", class_="faint")
    buttons = [
        element("button", _place_label(each), type="button", data_rewrite=str(index), data_place=str(place))
        for place, each in enumerate(shown)
    ]
    places = [element("div", element("span", "show in the graph:"), *buttons[:MAX_PLACES], class_="places")]
    if more := buttons[MAX_PLACES:]:
        summary = element("summary", f"{len(more)} more places")
        places.append(element("details", summary, element("div", *more, class_="places")))
    return joined(places)


def _place_label(rewrite: Rewrite) -> str:
    node = next(iter((*rewrite.removed, *rewrite.added)), "")
    return node.partition(" ")[2] or node or "a node that reads another value"


def rewrite_pictures(report: Report, used: Sequence[UsedRule]) -> list[tuple[Picture, Picture] | None]:
    """Return the pictures of the rules that were used, in their order; None for passes."""
    return [_pictures_of(report, each.use.name) for each in used]


def _pictures_of(report: Report, name: str) -> tuple[Picture, Picture] | None:
    text = report.rules.get(name)
    if text is None or not text.line:
        return None
    try:
        return rule_pictures(Rule.from_json(json.loads(text.line)))
    except (RuleError, ValueError):  # of a report that another version wrote; its algebra is there all the same
        return None


# -- where the time goes -----------------------------------------------------------------------------------------------


def operators_section(report: Report) -> Html:
    """Return bars of the time by operator, before and after; of the nodes where no time was measured."""
    times = report.operator_times
    if times is not None:
        how = (
            f"Milliseconds of one run in the kernels of each operator, by ONNX Runtime's profiler: the least of"
            f" {times.runs} runs. ONNX Runtime fuses before it runs, so its operators are not those of the file."
        )
        before, after = ({op: seconds * 1e3 for op, seconds in side.items()} for side in (times.before, times.after))
        return section("operators", "Where the time goes", element("p", how), operator_bars(before, after, ".3f"))
    return operator_counts_section(report.before.ops, report.after.ops)


def operator_counts_section(before: Mapping[str, int], after: Mapping[str, int]) -> Html:
    """Return bars of the nodes by operator."""
    how = "Nodes by operator. These are no times: none were measured by operator."
    return section("operators", "Operators, before and after", element("p", how), operator_bars(before, after, ".0f"))


def operator_bars(before: Mapping[str, float], after: Mapping[str, float], form: str) -> Html:
    """Return two bars for each operator, the largest first."""
    ops = sorted({*before, *after}, key=lambda op: (-max(before.get(op, 0), after.get(op, 0)), op))
    rows = [(op, before.get(op, 0.0), after.get(op, 0.0)) for op in ops[:MAX_OPERATORS]]
    if others := ops[MAX_OPERATORS:]:
        rest = [sum(side.get(op, 0.0) for op in others) for side in (before, after)]
        rows.append((f"{len(others)} others", rest[0], rest[1]))
    longest = max((number for _, *numbers in rows for number in numbers), default=0.0) or 1.0
    lines = [
        [
            op,
            format(old, form) if old else "0",
            bar(old / longest, after=False),
            format(new, form) if new else "0",
            bar(new / longest, after=True),
        ]
        for op, old, new in rows
    ]
    totals = (format(sum(side.values()), form) for side in (before, after))
    lines.append([element("b", "all"), *(cell for total in totals for cell in (element("b", total), ""))])
    return element("div", table(("operator", "before", "", "after", ""), lines, numbers=(1, 3)), class_="bars")


# -- what was tried ----------------------------------------------------------------------------------------------------


def tried_section(report: Report) -> Html:
    """Return what was tried and left, with the reasons: what the check refused, and what the search left, with the
    races of whole models."""
    searched = [element("p", "No search was asked for.")] if report.timing is None else _search_parts(report.timing)
    return section("tried", "What was tried and left", *searched, *_refused_parts(report.refused))


def _refused_parts(refused: Sequence[RefusedRewrite]) -> Iterator[Html]:
    if refused:
        yield element("h3", "Refused by the check")
        rows = [(each.name, "everywhere" if each.is_everywhere else each.values, each.difference) for each in refused]
        yield table(("rule or pass", "values that it replaced", "with it, the model is"), rows)


def _search_parts(timing: SearchTiming) -> list[Html]:
    parts: list[Html] = [element("p", element("b", "search: "), format_search(timing))]
    left = [group for group in timing.groups if not group.is_taken]
    if left:
        alone = [format_alone(each) if each.is_estimate else format_ratio(each.alone) for each in left]
        rows = [
            (str(each.kind), format_group(each), text, format_ratio(each.together), each.reason)
            for each, text in zip(left, alone, strict=True)
        ]
        parts.append(table(("left", "what", "alone", "with others", "why"), rows, numbers=(2, 3)))
    else:
        parts.append(element("p", "Nothing that was found was left."))
    if timing.races:
        raced = [
            (
                _version_label(timing, race),
                format_ratio(race.speedup),
                format_ratio(race.gain if race.groups or race.left_out else None),
                race.refusal,
            )
            for race in timing.races
        ]
        head = ("version of the whole model", "over the original", "over the simplified model", "")
        parts += [element("h3", "Races"), table(head, raced, numbers=(1, 2))]
    return parts


def _version_label(timing: SearchTiming, race: VersionRace) -> str:
    names = "; ".join(format_group(timing.groups[index]) for index in race.groups)
    without = f", without {', '.join(race.left_out)}" if race.left_out else ""
    again = " (again, in new sessions)" if race.is_second else ""
    return f"simplified{f' and {names}' if names else ''}{without}{again}"


# -- the check, and what the result rests on ---------------------------------------------------------------------------


def check_section(found: ModelComparison | None) -> Html:
    """Return the comparison of original and result."""
    parts: list[Html] = [element("p", format_comparison(found), class_=verdict_class(found))]
    if found is not None and found.outputs:
        rows = [
            (
                each.output,
                each.dtype,
                f"{each.absolute:.2g}",
                f"{each.relative:.2g}",
                f"{each.tolerance:.2g}",
                element("span", "ok", class_="good") if each.ok else element("span", each.detail, class_="bad"),
            )
            for each in found.outputs
        ]
        head = ("output", "type", "largest difference", "relative to its largest element", "relative tolerance", "")
        parts.append(table(head, rows, numbers=(2, 3, 4)))
    if found is not None:
        facts = [("run", str(case)) for case in found.cases] + [("not compared", each) for each in found.skipped]
        facts += [("varies", each) for each in found.varying] + [("oracle", found.oracle)] * bool(found.oracle)
        parts.append(_facts_table(facts))
    return section("check", "The check", *parts)


def origin_section(report: Report) -> Html:
    """Return what the result rests on: files, inputs and outputs, versions, machine, seconds and notes."""
    facts = [("model", report.source)]
    facts += [("input", f"{name}  {type_}") for name, type_ in report.after.inputs.items()]
    facts += [("output", f"{name}  {type_}") for name, type_ in report.after.outputs.items()]
    facts += [("opset", ", ".join(f"{name} {number}" for name, number in report.after.opsets.items()))]
    facts += [("versions", ", ".join(f"{name} {version}" for name, version in report.versions.items()))]
    facts += [("machine", report.timing.device)] if report.timing and report.timing.device else []
    facts += [("recipe", "followed: nothing was timed")] if report.timing and report.timing.cost == "recipe" else []
    facts += [("seconds", format_stages(report))]
    facts += [("memory", str(report.memory))] if report.memory else []
    facts += [("note", note) for note in report.notes]
    code = [element("pre", report.session_code)] if report.session_code else []
    return section("origin", "Versions, machine, notes", _facts_table(facts), *code)


def _facts_table(facts: Iterable[tuple[str, str]]) -> Html:
    rows = [element("tr", element("th", name, scope="row"), element("td", text)) for name, text in facts]
    return element("table", element("tbody", *rows)) if rows else Html()
