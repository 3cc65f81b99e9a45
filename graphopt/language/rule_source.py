"""Rules as the Python that a file of rules accepts; the algebra of `render_term` is for pages and reports."""

from __future__ import annotations

import json
import keyword
from collections.abc import Mapping
from dataclasses import replace

from graphopt.ir import schemas
from graphopt.language.definition import Definition
from graphopt.language.rule import Rule
from graphopt.language.terms import SCALAR, App, Lit, LiteralValue, Term, Var, is_scalar

_WORDS = frozenset({"Operators", "RULES", "Rule", "define", "fn", "microsoft", "op"})
"""Names that a file of rules uses already."""

_SIGNS: Mapping[tuple[bool, str], tuple[str, int]] = {
    **{(False, op): sign for op, sign in {"Add": ("+", 1), "Sub": ("-", 1), "Mul": ("*", 2), "Div": ("/", 2)}.items()},
    (False, "MatMul"): ("@", 2),
    **{(True, op): sign for op, sign in {"add": ("+", 1), "sub": ("-", 1), "mul": ("*", 2)}.items()},
    **{(True, op): sign for op, sign in {"truediv": ("/", 2), "floordiv": ("//", 2), "mod": ("%", 2)}.items()},
    **{(True, op): sign for op, sign in {"lt": ("<", 0), "le": ("<=", 0)}.items()},
}
"""Python's operator for a function, by whether it is a scalar one, and how tightly it binds."""
_REVERSIBLE = frozenset({"+", "-", "*", "/"})
"""Operators that may have a number on their left."""


def term_source(subject: Term | None, binding: int = 0) -> str:
    """Return a term in Python, parenthesized where it binds less tightly than `binding`; None is an absent input."""
    match subject:
        case None:
            return "None"
        case Var(name=name, kind=kind):
            return f"*{variable(name)}" if kind == "tensors" else variable(name)
        case Lit(value=value):
            return _literal_source(value)
    if infix := _infix_source(subject, binding):
        return infix
    args = [term_source(arg) for arg in subject.args]
    args += [f"{name}={term_source(value)}" for name, value in subject.attrs]
    if subject.outputs > 1:
        return f"{_operator_source(subject)}.split({', '.join([str(subject.outputs), *args])})[{subject.output}]"
    return f"{_operator_source(subject)}({', '.join(args)})"


def _infix_source(subject: App, binding: int) -> str:
    """Return an application as Python's operator between its arguments; nothing where there is none that means it."""
    sign, strength = _SIGNS.get((subject.domain == SCALAR, subject.op), ("", 0))
    if not sign or subject.domain not in ("", SCALAR) or len(subject.args) != 2 or subject.attrs or subject.outputs > 1:
        return ""
    left, right = subject.args
    if left is None or right is None or (isinstance(left, Lit) and (sign not in _REVERSIBLE or isinstance(right, Lit))):
        return ""
    if (is_scalar(left) and is_scalar(right)) != (subject.domain == SCALAR):
        return ""
    text = f"{term_source(left, max(strength, 1))} {sign} {term_source(right, strength + 1)}"
    return f"({text})" if strength < binding else text


def _literal_source(value: LiteralValue) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_literal_source, value))}]"
    if isinstance(value, str):
        return _text_source(value)
    text = repr(value)
    return f'float("{text}")' if isinstance(value, float) and text.strip("-") in ("inf", "nan") else text


def _text_source(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _operator_source(subject: App) -> str:
    match subject.domain:
        case "":
            return f"op.{subject.op}"
        case "scalar":
            return f"fn.{subject.op}"
        case "com.microsoft":
            return f"microsoft.{subject.op}"
        case domain if domain in schemas.CLASS_SCHEMAS:
            return variable(subject.op)
    return f'Operators("{subject.domain}").{subject.op}'


def variable(name: str) -> str:
    """Return the Python variable of a hole."""
    return f"{name}_" if keyword.iskeyword(name) or name in _WORDS else name


def hole_source(hole: Var) -> str:
    """Return the call that makes a hole."""
    args = [_text_source(hole.name)]
    args += [] if hole.axes is None else [_text_source(" ".join(hole.axes))]
    args += [f"default={hole.default!r}"] if hole.default is not None else []
    return f"{hole.kind}({', '.join(args)})"


def conditions_source(rule: Rule) -> str:
    """Return what a rule says beside its sides, as keywords of `Rule`: `when=…, canonical=True`; nothing for most."""
    given = {"when": rule.when, "pays": rule.pays}
    said = [f"{name}={_side_source(terms)}" for name, terms in given.items() if terms != ()]
    return ", ".join([*said, *["canonical=True"] * rule.canonical])


def rewrite_source(rule: Rule) -> str:
    """Return the sides of a rule, and what it says beside them, in one line."""
    said = conditions_source(rule)
    return f"{_side_source(rule.lhs)}  ->  {_side_source(rule.rhs)}{said and f'  {said}'}"


def rule_source(rule: Rule) -> str:
    """Return the declaration of a rule, with its holes, for a file that imports all of `graphopt.rule`."""
    classes = {domain: domain.removeprefix("any ") for domain in schemas.CLASS_SCHEMAS}
    made = {name: hole_source(hole) for name, hole in rule.holes.items()}
    made |= {name: f"{classes[domain]}({_text_source(name)})" for name, domain in rule.operator_holes.items()}
    lines = [f"{variable(name)} = {source}" for name, source in made.items()]
    parts = [_text_source(rule.name), _side_source(rule.lhs), _side_source(rule.rhs)]
    parts += filter(None, [conditions_source(rule), rule.why and f"why={_text_source(rule.why)}"])
    return "\n".join([*lines, "Rule(", *(f"    {part}," for part in parts), ")"])


def definition_source(definition: Definition) -> str:
    """Return the declaration of an operator's meaning, in one line."""
    head = definition.head
    heads = tuple(replace(head, output=index) for index in range(head.outputs))
    parts = [_side_source(heads if len(heads) > 1 else head)]
    parts.append(_side_source(definition.body if len(definition.body) > 1 else definition.body[0]))
    parts += [f"when={_side_source(definition.when)}"] if definition.when else []
    parts += [f"{name}={term_source(value)}" for name, value in definition.defaults]
    return f"define({', '.join(parts)})"


def _side_source(side: Term | tuple[Term, ...]) -> str:
    if not isinstance(side, tuple):
        return term_source(side)
    listed = ", ".join(map(term_source, side))
    return f"({listed},)" if len(side) == 1 else f"({listed})"
