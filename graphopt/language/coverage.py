"""The coverage of a proof: the ranks, lists and attributes that it was made for, and whether a match is one of them.

A proof chooses what it cannot leave open: how many axes a pack has, the rank of a hole, how long a list is, which axes.
Each way through the choices at which both sides were shown to be equal is a path. The paths are kept as a decision tree
in which equal subtrees are one, and a match walks down that tree with answers of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from graphopt.language.scalar_functions import UndecidedScalarError

Label: TypeAlias = "int | float | str | tuple[Any, ...] | None"
"""A choice: a number of axes, or a value of an attribute; None is an attribute that is absent."""

AnswerQuestion: TypeAlias = "Callable[[str], Label]"
"""Function that gives the choice that a match stands for; raises UndecidedScalarError where that is not known."""

DecisionTree: TypeAlias = list[list[Any]]
"""Nodes, each after its subtrees, so the last one is the root: `[question, usual, [[labels, subtree], ...]]`.

`usual` is the label that absence stands for. A subtree is named by its position, and labels that lead to the same one
are listed together; `[labels, subtree, true]` is for all but the labels. The empty node is the end of a path. This is
plain JSON, which is read as it is.
"""


@dataclass(frozen=True, slots=True)
class OtherLabel:
    """Any label but these; if there are none, also one that is not known."""

    excluded: tuple[Label, ...] = ()


@dataclass(frozen=True, slots=True)
class ProofChoice:
    """One choice of a proof."""

    question: str
    """`pack b`, `rank x`, `length p` (of a list), `elements x` (of a vector that is one when it runs), `absent c`,
    `value p`, `value rest.axis` (of a bundle)."""

    label: Any
    """A label or `OtherLabel`."""

    default_label: Label = None
    """Value that an absent attribute has."""

    def __str__(self) -> str:
        kind, _, name = self.question.partition(" ")
        if kind == "absent":
            return f"{name} {'absent' if self.label else 'present'}"
        return (
            _describe_question(self.question, str(self.label))
            if kind in _QUESTION_FORMS
            else f"{name}={_label_to_json(self.label)}"
        )


def build_decision_tree(paths: Iterable[Iterable[ProofChoice]]) -> DecisionTree:
    """Return the decision tree of some paths, which ask the same question after the same answers."""
    grown: dict[Any, Any] = {}
    for path in paths:
        here = grown
        for choice in path:
            question = here.setdefault((choice.question, choice.default_label), {})
            assert len(here) == 1, f"either {' or '.join(map(str, here))} is asked after the same answers"
            here = question.setdefault(choice.label, {})
        here[None] = True
    numbers: dict[Any, int] = {}
    if grown:
        _node_id(grown, numbers)
    return [_node_to_json(node) for node in numbers]


def _node_id(grown: Mapping[Any, Any], numbers: dict[Any, int]) -> int:
    """Return the position of a node; equal nodes have the same."""
    node: Any = ()
    ((key, branches),) = grown.items()
    if key is not None:
        leads: dict[Any, list[Any]] = {}
        for label, branch in branches.items():
            subtree = _node_id(branch, numbers)
            if isinstance(label, OtherLabel):
                leads[subtree, True] = list(label.excluded)
            else:
                leads.setdefault((subtree,), []).append(label)
        node = (*key, tuple((tuple(labels), *lead) for lead, labels in leads.items()))
    return numbers.setdefault(node, len(numbers))


def _node_to_json(node: Any) -> list[Any]:
    """Return a node as plain JSON."""
    if not node:
        return []
    question, usual, leads = node
    return [question, _label_to_json(usual), [[list(map(_label_to_json, labels)), *lead] for labels, *lead in leads]]


def _label_to_json(label: Label) -> Any:
    return list(label) if isinstance(label, tuple) else label


def covers(tree: DecisionTree, answer: AnswerQuestion) -> bool:
    """Return whether what a match answers is one of the paths."""
    node = tree[-1] if tree else None
    while node:
        question, usual, leads = node
        label = _answer_label(answer, question, usual)
        node = next(
            (tree[subtree] for labels, subtree, *other in leads if _label_matches(label, labels, bool(other))), None
        )
    return node is not None


_UNKNOWN = object()


def _answer_label(answer: AnswerQuestion, question: str, usual: Any) -> Any:
    """Return the label of a match, as in JSON."""
    try:
        label = _label_to_json(answer(question))
    except UndecidedScalarError:
        return _UNKNOWN
    return usual if label is None else label


def _label_matches(label: Any, labels: list[Any], other: bool) -> bool:
    """Return whether a label is listed, or differs from all that are."""
    return (not labels if label is _UNKNOWN else label not in labels) if other else label in labels


def first_unknown(tree: DecisionTree, answer: AnswerQuestion) -> str:
    """Return a choice that a proof has to know and a match does not say, empty if it says all."""
    for node in filter(None, tree):
        question, _, leads = node
        if (
            any(labels or not other for labels, _, *other in leads)
            and _answer_label(answer, question, None) is _UNKNOWN
        ):
            return f"the {question.replace(' ', ' of ', 1)}"
    return ""


def describe_tree(tree: DecisionTree, kinds: Sequence[str] = ("pack", "rank", "length", "elements")) -> str:
    """Return the choices of a proof in words: `*b of 0–2 axes, p of 0–3 numbers, x of rank 0–4`."""
    found: dict[str, list[Any]] = {}
    for question, _, leads in filter(None, tree):
        found.setdefault(question, []).extend(label for labels, *_ in leads for label in labels)
    wanted = [question for question in sorted(found) if question.partition(" ")[0] in kinds]
    return ", ".join(_describe_question(question, _format_range(found[question])) for question in wanted)


def _describe_question(question: str, numbers: str) -> str:
    kind, _, name = question.partition(" ")
    return _QUESTION_FORMS[kind].format(name=name, range=numbers)


_QUESTION_FORMS = {
    "pack": "*{name} of {range} axes",
    "rank": "{name} of rank {range}",
    "length": "{name} of {range} numbers",
    "elements": "{name} of {range} elements",
}


def _format_range(numbers: Sequence[int]) -> str:
    least, most = min(numbers, default=0), max(numbers, default=0)
    return "any" if not numbers else str(least) if least == most else f"{least}–{most}"


def without_ranks(path: Iterable[ProofChoice]) -> tuple[ProofChoice, ...]:
    """Return a path on which ranks are not told apart."""
    return tuple(
        ProofChoice(choice.question, OtherLabel()) if choice.question.startswith("rank ") else choice for choice in path
    )
