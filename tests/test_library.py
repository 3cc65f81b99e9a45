"""Rules of one's own, from files; names chosen by the user."""

import importlib
import json
import pkgutil
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from graphopt import rules
from graphopt.base.errors import RuleError, UsageError
from graphopt.language.rule import Rule, attributes, op, tensor
from graphopt.language.rule_library import load_library, load_rules, read_rules, select_names
from graphopt.language.terms import App, Term, holes, operator_applications
from graphopt.rewrite.passes import PASSES

MINE = """
from graphopt.rewrite.passes import PASSES
from graphopt.rule import Rule, op, tensor
x = tensor("x")
RULES = (Rule("my_double_relu", op.Relu(op.Relu(op.Relu(x))), op.Relu(x), why="Relu is idempotent."),)
"""


RELUS = """from graphopt.rule import Rule, fn, op, tensor
x = tensor("x")
RULES = (Rule("double_relu", op.Relu(op.Relu(x))"""


def test_a_python_file_adds_its_rules(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    names = [rule.name for rule in load_rules([tmp_path / "mine.py"])]
    assert names[0] == "my_double_relu"
    assert len(names) == len(load_rules()) + 1


def test_a_python_file_may_hold_trades_too(tmp_path: Path) -> None:
    file = tmp_path / "trades.py"
    file.write_text(MINE.replace("RULES = (", "TRADES = (") + "SWEEPS = {'fewer Relus': TRADES}\n")
    found = load_library(read_rules([file]))
    (mine,) = read_rules([file]).trades
    assert (mine.name, found.trades[0].name) == ("my_double_relu", "my_double_relu")
    assert mine not in found.rules
    assert found.sweeps["fewer Relus"] == (mine,)
    assert [rule.name for rule in found.rules] == [rule.name for rule in load_rules()]


def test_a_trade_that_is_also_a_rule_is_a_rule() -> None:
    trade = load_library().trades[0]
    found = load_library(read_rules([trade]))
    assert found.rules[0] is trade
    assert trade not in found.trades
    assert len(found.all_rules) == len(load_library().all_rules)


def test_a_jsonl_file_adds_its_rules(tmp_path: Path) -> None:
    rule = Rule("my_rule", op.Relu(op.Relu(op.Relu(tensor("x")))), op.Relu(tensor("x")))
    (tmp_path / "mine.jsonl").write_text(json.dumps(rule.to_json()) + "\n\n")
    assert load_rules([tmp_path / "mine.jsonl"])[0] == rule


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("rules.py", "RULES = 3", "no RULES"),
        ("rules.py", "RULES = (3,)", "which is no Rule"),
        ("rules.py", "TRADES = 3", "no TRADES"),
        ("rules.py", "RULES = SWEEPS = ()", "SWEEPS is no mapping"),
        ("rules.py", "RULES, SWEEPS = (), {'a': (3,)}", r"SWEEPS\['a'\] holds 3, which is no Rule"),
        ("rules.py", "1 / 0", "ZeroDivisionError"),
        ("rules.py", f"{RELUS}, x, where=1),)", "unexpected keyword argument 'where'; did you mean 'when'?"),
        ("rules.py", f"{RELUS}, x, when=fn.eq(fn.join(fn.rank(x), 1), 2)),)", "'join'; did you mean 'concat'?"),
        ("rules.jsonl", "{}", "rules.jsonl:1: a rule is not in graphopt's JSON form: 'name' is missing"),
        ("rules.jsonl", "no json", "rules.jsonl:1"),
        ("rules.jsonl", "[1, 2]", r"\[1, 2\] is no object"),
        ("rules.jsonl", '{"name": "a", "name": "b"}', "'name' is said twice"),
        ("rules.jsonl", '{"name": ' + "9" * 5000 + "}", "rules.jsonl:1: Exceeds the limit"),
        ("rules.jsonl", '{"lhs": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
    ],
)
def test_a_bad_file_is_one_clear_error(tmp_path: Path, name: str, text: str, complaint: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(RuleError, match=complaint):
        load_rules([tmp_path / name])


TWICE: dict[str, Any] = {"op": "Relu", "args": [{"op": "Relu", "args": [{"hole": "x"}]}]}
ONCE: dict[str, Any] = TWICE["args"][0]


def nested(levels: int) -> Any:
    return {"op": "Relu", "args": [nested(levels - 1)]} if levels else {"hole": "x"}


def on_x(name: str, *args: Any, **attrs: Any) -> Any:
    return {"op": name, "args": [{"hole": "x"}, *args], "attrs": attrs}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"rhs": [{**ONCE, "output": [5, 2]}]}, "Relu has 1 to 1 outputs, not 2"),
        ({"rhs": [on_x("Split") | {"output": [7, 2]}]}, "output 7 of 2 of Split"),
        ({"rhs": [on_x("Split") | {"output": [-1, 2]}]}, "output -1 of 2 of Split"),
        ({"rhs": [on_x("Split") | {"output": [0, 10**9]}]}, "output 0 of 1000000000 of Split"),
        ({"lhs": [{**TWICE, "output": [3, 1]}]}, "output 3 of 1 of Relu"),
        ({"rhs": [{**ONCE, "output": [0.0, 1]}]}, "two whole numbers"),
        ({"rhs": [{**ONCE, "output": None}]}, "not in graphopt's JSON form"),
        ({"rhs": [{**ONCE, "atrs": {}}]}, "'atrs' means nothing there"),
        ({"rhs": [{**ONCE, "hole": "x"}]}, "'op' means nothing there"),
        ({"wen": []}, "'wen' means nothing there"),
        ({"holes": {"x": {"kind": "tensor", "axis": "N"}}}, "'axis' means nothing there"),
        ({"holes": {"x": {"kind": "tensr"}}}, "hole 'x' is of kind 'tensr'; there are tensor"),
        ({"holes": {"x": {"kind": "tensor", "axes": ["N"]}}}, "the axes of hole 'x' are"),
        ({"holes": {"x": {"kind": "tensor", "default": 1}}}, "'default' means nothing there"),
        ({"holes": {"x": {"kind": "const", "default": "1"}}}, "the default of hole 'x' is '1', no number"),
        ({"holes": {"x": {"kind": "tensor"}, "y": {"kind": "tensor"}}}, "declares hole 'y' and does not use it"),
        ({"holes": {}}, "hole 'x' is not declared in 'holes'"),
        ({"rhs": [3]}, "the right side '3' is a number"),
        ({"rhs": []}, "1 left sides and 0 right sides"),
        ({"lhs": [], "rhs": []}, "a left side must be an operator"),
        ({"rhs": [on_x("Add", 2**63)]}, "has no place in the 64 bits"),
        ({"rhs": [on_x("Slice", [0], [-(2**63) - 1])]}, "has no place in the 64 bits"),
        ({"rhs": [on_x("Add", float("nan"))]}, "nan cannot be said"),
        ({"rhs": [on_x("Add", "1")]}, "input 1 of Add is the text '1'"),
        ({"rhs": [on_x("Slice", ["0"], [1])]}, "'0' cannot be part of a rule"),
        ({"rhs": [on_x("Slice", [None], [1])]}, "None cannot be part of a rule"),
        ({"rhs": [on_x("Transpose", perm=[1.5, 0.5])]}, "perm of Transpose is an attribute"),
        ({"rhs": [on_x("Softmax", axis=None)]}, "attribute axis is null"),
        ({"rhs": [{"op": "Relu", "args": "x"}]}, "not in graphopt's JSON form"),
        ({"rhs": [on_x("Relu") | {"domain": 5}]}, "a domain is 5, no text"),
        ({"rhs": [nested(100)]}, "a term in more than 64 others"),
        ({"why": ["a"]}, "why is ['a'], no text"),
        ({"why": "\ud800"}, "surrogates not allowed"),
    ],
)
def test_a_rule_in_a_file_says_nothing_that_is_not_read(tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    said = {"name": "a_rule", "holes": {"x": {"kind": "tensor"}}, "lhs": [TWICE], "rhs": [ONCE], "when": [], "why": ""}
    (tmp_path / "rules.jsonl").write_text(json.dumps({**said, **change}))
    with pytest.raises(RuleError, match="^" + re.escape(f"{tmp_path}/rules.jsonl:1: ") + ".*" + re.escape(complaint)):
        load_rules([tmp_path / "rules.jsonl"])


def test_two_holes_for_the_other_attributes_are_one_too_many() -> None:
    x, some, others = tensor("x"), attributes("some"), attributes("others")
    with pytest.raises(RuleError, match="Softmax has two holes for the other attributes"):
        Rule("two", op.Softmax(op.Softmax(x, some, others), axis=0), op.Softmax(x, some, axis=0))


def test_files_that_cannot_hold_rules_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        load_rules([tmp_path / "missing.py"])
    (tmp_path / "rules.yaml").touch()
    with pytest.raises(UsageError, match=r"in a \.py file"):
        load_rules([tmp_path / "rules.yaml"])


def test_two_rules_of_one_name_are_an_error(tmp_path: Path) -> None:
    name = load_rules()[0].name
    (tmp_path / "mine.py").write_text(MINE.replace("my_double_relu", name))
    with pytest.raises(RuleError, match=f"two rules are called '{name}'"):
        load_rules([tmp_path / "mine.py"])


def test_names_are_selected_and_misspelt_ones_explained() -> None:
    names = ["fuse_bn_into_conv", "eliminate_identity"]
    assert select_names(names, [], None) == set(names)
    assert select_names(names, ["eliminate_identity"], None) == {"fuse_bn_into_conv"}
    assert select_names(names, [], ["eliminate_identity"]) == {"eliminate_identity"}
    with pytest.raises(UsageError, match="did you mean 'fuse_bn_into_conv'"):
        select_names(names, ["fuse_bn_into_con"], None)


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("fuse_bn", "did you mean 'fuse_bn_into_conv',"),
        ("fuse_batchnorm_into_conv", "did you mean 'fuse_bn_into_conv'?"),
        ("ConvBNFusion", "did you mean 'fuse_bn_into_conv'?"),
        ("constant_folding", "did you mean 'fold_constants'?"),
        ("eliminate_identiy", "did you mean 'eliminate_identity'?"),
        ("remove_dropout", "did you mean 'eliminate_nop_dropout',"),
        ("xyzzy", "`graphopt rules` lists them"),
        ("_", "`graphopt rules` lists them"),
    ],
)
def test_names_are_suggested_by_what_they_mean(asked: str, meant: str) -> None:
    names = [*(rule.name for rule in load_rules(trades=True)), *(pass_.name for pass_ in PASSES)]
    with pytest.raises(UsageError) as caught:
        select_names(names, [asked], None)
    assert f"'{asked}'; {meant}" in str(caught.value)


def test_every_module_of_built_in_rules_is_listed() -> None:
    known = {rule.name for rule in load_rules(trades=True)}
    for _, name, _ in pkgutil.iter_modules(rules.__path__, "graphopt.rules."):
        module = importlib.import_module(name)
        listed = {rule.name for what in ("RULES", "TRADES") for rule in getattr(module, what, ())}
        file = f"rules/{name.rpartition('.')[2]}.py"
        assert listed <= known, f"{file} is not listed in rules/__init__.py: add its RULES and TRADES there"


SLOW = {"Einsum", "Swish", "Pow", "ScatterND"}
"""Operators that runtimes have no kernel for, or one that is slower than several nodes."""


def computed(sides: Iterable[Term]) -> list[App]:
    """The nodes that are left where constants are folded."""
    nodes = dict.fromkeys(app for side in sides for app in operator_applications(side))
    return [app for app in nodes if any(hole.kind == "tensor" for hole in holes(app))]


def adds_nodes(rule: Rule) -> bool:
    """Whether it leaves more nodes than it takes."""
    return len(computed(rule.right)) > len(computed(rule.left))


def test_what_simplifies_leaves_no_more_nodes() -> None:
    assert [r.name for r in rules.RULES if adds_nodes(r) and SLOW.isdisjoint(app.op for app in computed(r.left))] == []


def test_two_files_of_one_name_are_two_modules(tmp_path: Path) -> None:
    """The second is no reason to forget the first, which pickling or a debugger looks for by its name."""
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(MINE.replace("my_double", f"my_{folder}"))
    before = set(sys.modules)
    load_rules([tmp_path / "one" / "mine.py", tmp_path / "two" / "mine.py"])
    assert len({name for name in set(sys.modules) - before if name.endswith("_mine")}) == 2
