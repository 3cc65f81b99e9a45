"""Rules with declared operators replaced by their definitions: these rules are what is proved."""

from __future__ import annotations

from dataclasses import dataclass, field

from graphopt.language.definition import Definition, InstantiatedDefinition, instantiate_definition, is_about_holes
from graphopt.language.rule import Rule
from graphopt.language.terms import SCALAR, App, Term


@dataclass(frozen=True)
class ExpandedRule(Rule):
    """A rule in ONNX's own operators. Its two sides may be the same: kernels then differ in how they round."""

    obligations: tuple[Term, ...] = ()
    """Conditions of the definitions on the shapes of the right side."""
    original_sides: tuple[tuple[Term, ...], tuple[Term, ...]] = ((), ())
    """The two sides with the operators that are defined."""
    definitions: tuple[Definition, ...] = field(default=(), kw_only=True, repr=False)

    def __post_init__(self) -> None:
        """Check nothing: that was done as the rule was written."""

    @property
    def all_terms(self) -> tuple[Term, ...]:
        """All terms of the rule, with those that its definitions promise."""
        return (*super().all_terms, *self.obligations)


def expand_definitions(rule: Rule) -> Rule:
    """Return the rule with each declared operator replaced by its definition; the rule itself if ONNX defines all its
    operators.

    That shapes are as a definition requires is assumed of the left side, where they are shapes of holes, and has to be
    shown of the right side.
    """
    if not rule.definitions:
        return rule
    left, right = _Expander(), _Expander()
    sides, others = (tuple(map(left.expand, rule.left)), tuple(map(right.expand, rule.right)))
    assumed = [condition for condition in left.conditions if is_about_holes(condition)]
    promised = tuple(condition for condition in dict.fromkeys(right.conditions) if condition not in assumed)
    when = tuple(dict.fromkeys((*rule.conditions, *assumed)))
    written = rule.left, rule.right
    return ExpandedRule(rule.name, sides, others, when, rule.why, promised, written, definitions=rule.definitions)


class _Expander:
    """Terms without defined operators, and what has to hold for them to be defined."""

    def __init__(self) -> None:
        self.conditions: list[Term] = []
        self._known: dict[App, tuple[Term, ...]] = {}

    def expand(self, part: Term) -> Term:
        if not isinstance(part, App) or part.domain == SCALAR:
            return part
        args = tuple(None if arg is None else self.expand(arg) for arg in part.args)
        app = App(part.op, args, part.attrs, part.domain, part.output, part.outputs)
        if app.node not in self._known and (meaning := instantiate_definition(app.node)) is not None:
            self._known[app.node] = self._outputs(meaning)
        return self._known[app.node][app.output] if app.node in self._known else app

    def _outputs(self, meaning: InstantiatedDefinition) -> tuple[Term, ...]:
        self.conditions += meaning.conditions
        return tuple(map(self.expand, meaning.outputs))
