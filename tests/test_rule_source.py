"""Rules as Python: whatever is printed of a rule is accepted again, and is the same rule."""

from typing import Any

import pytest

import graphopt.rule
from graphopt.language.definition import Definition, iter_definitions
from graphopt.language.rule_library import load_library
from graphopt.language.rule_source import definition_source, hole_source, rewrite_source, rule_source, variable
from graphopt.language.terms import Term, Var, holes
from graphopt.rule import Operators, Rule, attributes, const, define, fn, integers, op, pointwise, real, tensor, tensors

x, y, w, rest = tensor("x", "N *s"), tensor("y"), const("w", "N 1*s"), attributes("rest")
f = pointwise("f")
my = Operators("tests.source")
define(my.Half(y, k=real("k")), y / real("k"), k=2.0)
OWN = (
    Rule("numbers_on_the_left", 1 - x, op.Add(op.Neg(x), 1)),
    Rule("absent_inputs", op.Clip(x, None, 6.0), op.Min(x, 6.0)),
    Rule("infinities", op.Max(x, float("-inf")), x * 1.0, why='It "is" \\ the least – of all.'),
    Rule("nested", x - (y - (x - y) * 2.0) / (x @ y), x - (y - x) / (x @ (y @ x))),
    Rule("packs", op.Concat(*tensors("xs"), x, axis=0), op.Concat(x, *tensors("xs"), axis=fn.neg(fn.size("N")))),
    Rule("classes", f(op.Identity(x)), f(x), canonical=True),
    Rule("other_domains", op.Relu(my.Half(y, k=2.0)), my.Half(op.Relu(y), k=2.0)),
    Rule("outputs", op.Split.split(2, x, num_outputs=2), op.Split.split(2, op.Relu(x), num_outputs=2)),
    Rule(
        "conditions",
        op.Transpose(op.Conv(x, w, const("b", "N", default=0), rest), perm=integers("perm")),
        op.Conv(x, w, const("b", "N", default=0), rest),
        when=(fn.eq(integers("perm"), (0, 1)), fn.any_of(fn.size("N") // 2 < 3, fn.ne(fn.dtype(x), 11))),
        pays=fn.size("N") % 2 <= 7,
    ),
    Rule("keywords", op.Elu(tensor("in"), alpha=real("lambda")), op.Elu(tensor("in"), alpha=real("lambda") * 1.0)),
)


def words() -> dict[str, Any]:
    return {name: getattr(graphopt.rule, name) for name in graphopt.rule.__all__}


def as_read(rule: Rule) -> Rule:
    """Return the rule that a file declares which holds what is printed."""
    known: dict[str, Any] = {}

    def declare(*args: Any, **keywords: Any) -> None:
        known["rule"] = Rule(*args, **keywords)

    exec(rule_source(rule), words() | {"Rule": declare})
    found = known["rule"]
    assert isinstance(found, Rule)
    return found


@pytest.mark.parametrize("rule", OWN, ids=lambda rule: rule.name)
def test_what_is_printed_is_the_rule(rule: Rule) -> None:
    assert as_read(rule) == rule


def test_every_installed_rule_is_accepted_as_it_is_printed() -> None:
    for rule in load_library().all_rules:
        read = as_read(rule)
        assert (read, read.why) == (rule, rule.why)


def test_the_list_says_both_sides_in_the_same_words() -> None:
    for rule in (*OWN, *load_library().all_rules):
        left, _, right = rewrite_source(rule).partition("  ->  ")
        right, *_ = right.split("  ")
        names = {variable(name): hole for name, hole in rule.holes.items()}
        classes = {
            name: getattr(graphopt.rule, kind.removeprefix("any "))(name) for name, kind in rule.operator_holes.items()
        }
        assert (eval(left, words() | names | classes), eval(right, words() | names | classes)) == (rule.lhs, rule.rhs)


def parts(definition: Definition) -> list[Term]:
    return [definition.head, *definition.body, *definition.when]


def test_every_definition_is_accepted_as_it_is_printed() -> None:
    load_library()
    found = list(iter_definitions())
    assert found
    for definition in found:
        named: dict[str, Var] = {hole.name: hole for part in parts(definition) for hole in holes(part)}
        scope = words() | {variable(name): eval(hole_source(hole), words()) for name, hole in named.items()}
        assert eval(definition_source(definition), scope) == definition


def test_names_of_pythons_own_and_of_the_language_are_left_alone() -> None:
    assert [variable(name) for name in ("x", "lambda", "op", "RULES")] == ["x", "lambda_", "op_", "RULES_"]
