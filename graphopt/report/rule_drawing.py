"""A rule drawn in text: the graphs of both sides, each from its outputs down to what it reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import count, zip_longest
from string import ascii_lowercase

from graphopt.ir import schemas
from graphopt.language.proof import Proof
from graphopt.language.rule import Rule
from graphopt.language.rule_source import rule_source
from graphopt.language.terms import App, Term, Var, is_scalar, operator_applications, render_term
from graphopt.rewrite.build import is_constant_term

GAP = "    "
"""Space between the sides."""
LEGEND = "= is computed once, when the model is optimized"


def draw_rule(rule: Rule, width: int = 100) -> str:
    """Return both sides of a rule as trees, beside each other where that is no wider than `width`, else in turn.

    A node that is read twice is drawn once, and called by a letter where it is read again. What the right side computes
    from constants alone is one line behind `=`, for no node of it is left in the model.
    """
    before = ["before", *_draw(rule.left, lambda term: False)]
    after = ["after", *_draw(rule.right, is_constant_term)]
    folds = any(is_constant_term(part) for side in rule.right for part in operator_applications(side))
    legend = ["", LEGEND] if folds else []
    wide = max(map(len, before))
    if wide + len(GAP) + max(map(len, after)) > width:
        return "\n".join([*before, "", *after, *legend])
    pairs = zip_longest(before, after, fillvalue="")
    return "\n".join([*(f"{left:<{wide}}{GAP}{right}".rstrip() for left, right in pairs), *legend])


def _draw(roots: Sequence[Term], is_folded: Callable[[Term], bool]) -> Iterator[str]:
    """Yield the lines of the trees of some terms."""
    shared = [node for node, readers in _count_readers(roots, is_folded).items() if readers > 1]
    letters = dict(zip(shared, _letters(), strict=False))
    drawn: set[App] = set()

    def lines(term: Term) -> Iterator[str]:
        if not isinstance(term, App) or is_folded(term):
            yield _leaf(term)
            return
        node, output = term.node, f" [output {term.output}]" if term.outputs > 1 else ""
        if node in drawn:
            yield f"({letters[node]}){output}"
            return
        drawn.add(node)
        mark = f"({letters[node]}) " if node in letters else ""
        yield f"{mark}{_head(node)}{output}"
        for operand in node.operands[:-1]:
            yield from _indent(lines(operand), "├─ ", "│  ")
        for operand in node.operands[-1:]:
            yield from _indent(lines(operand), "└─ ", "   ")

    for index, root in enumerate(roots):
        yield from _indent(lines(root), f"{index}: ", "   ") if len(roots) > 1 else lines(root)


def _count_readers(roots: Sequence[Term], is_folded: Callable[[Term], bool]) -> Counter[App]:
    """Count how often each node is read, or is an output, in the order in which they are drawn."""
    found: Counter[App] = Counter()

    def visit(term: Term) -> None:
        if isinstance(term, App) and not is_folded(term):
            found[term.node] += 1
            if found[term.node] == 1:
                for operand in term.operands:
                    visit(operand)

    for root in roots:
        visit(root)
    return found


def _letters() -> Iterator[str]:
    """Yield a, b, …, z, a1, b1, …"""
    for number in count():
        yield from (f"{letter}{number or ''}" for letter in ascii_lowercase)


def _indent(lines: Iterator[str], first: str, rest: str) -> Iterator[str]:
    for index, line in enumerate(lines):
        yield f"{rest if index else first}{line}"


def _head(node: App) -> str:
    """Return a node as `Transpose  perm=[0, 2, 1, 3]`."""
    is_standard = node.domain in ("", *schemas.CLASS_SCHEMAS)
    attributes = [f"{name}={render_term(value)}" for name, value in node.attrs]
    said = ", ".join([*attributes, *["…"] * (node.attributes_hole is not None)])
    return f"{node.op if is_standard else f'{node.domain}.{node.op}'}{f'  {said}' if said else ''}"


def _leaf(term: Term) -> str:
    """Return a hole with its axes, as `w [K N], a constant`; a number as it is written, what is computed behind `=`."""
    if not isinstance(term, Var):
        return f"{'' if is_scalar(term) else '= '}{term}"
    axes = "" if term.axes is None else f" [{' '.join(term.axes)}]"
    return f"{term}{axes}{', a constant' if term.kind == 'const' else ''}"


_HOLE_KINDS = {
    "tensor": "any value",
    "tensors": "any number of values",
    "const": "a constant",
    "attributes": "all other attributes",
}


def describe_hole(hole: Var) -> str:
    """Return what a hole stands for: `a constant [M], 0 where it is absent`."""
    axes = "" if hole.axes is None else f" [{' '.join(hole.axes)}]"
    default = "" if hole.default is None else f", {hole.default} where it is absent"
    return f"{_HOLE_KINDS.get(hole.kind, hole.kind)}{axes}{default}"


def proof_text(proof: Proof | None) -> str:
    """Return what is known of a proof."""
    return "no proof yet; `graphopt verify` makes one" if proof is None else str(proof)


def rule_in_full(rule: Rule, proof: Proof | None, width: int) -> str:
    """Return all that a rule says: its declaration, a drawing in lines of a width, and what is known of its proof."""
    lines = [rule_source(rule), "", *(f"    {line}".rstrip() for line in draw_rule(rule, width - 4).splitlines()), ""]
    lines += [f"    {hole}  {describe_hole(hole)}" for hole in rule.holes.values()]
    return "\n".join([*lines, "", f"    {proof_text(proof)}", f"    digest {rule.digest}"])
