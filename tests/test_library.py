"""Rules of one's own, from files; names chosen by the user."""

import json
from pathlib import Path

import pytest

from graphopt.errors import RuleError, UsageError
from graphopt.library import load_rules, select
from graphopt.rule import Rule, op, tensor

MINE = """
from graphopt.rule import Rule, op, tensor
x = tensor("x")
RULES = (Rule("my_double_relu", op.Relu(op.Relu(op.Relu(x))), op.Relu(x), why="Relu is idempotent."),)
"""


def test_a_python_file_adds_its_rules(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    names = [rule.name for rule in load_rules([tmp_path / "mine.py"])]
    assert names[0] == "my_double_relu"
    assert len(names) == len(load_rules()) + 1


def test_a_jsonl_file_adds_its_rules(tmp_path: Path) -> None:
    rule = Rule("my_rule", op.Relu(op.Relu(op.Relu(tensor("x")))), op.Relu(tensor("x")))
    (tmp_path / "mine.jsonl").write_text(json.dumps(rule.to_json()) + "\n\n")
    assert load_rules([tmp_path / "mine.jsonl"])[0] == rule


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("rules.py", "RULES = 3", "no RULES"),
        ("rules.py", "RULES = (3,)", "which is no Rule"),
        ("rules.py", "1 / 0", "ZeroDivisionError"),
        ("rules.jsonl", "{}", "rules.jsonl:1: rule '[?]' is not in graphopt's JSON form"),
        ("rules.jsonl", "no json", "rules.jsonl:1"),
    ],
)
def test_a_bad_file_is_one_clear_error(tmp_path: Path, name: str, text: str, complaint: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(RuleError, match=complaint):
        load_rules([tmp_path / name])


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
    assert select(names, [], None) == set(names)
    assert select(names, ["eliminate_identity"], None) == {"fuse_bn_into_conv"}
    assert select(names, [], ["eliminate_identity"]) == {"eliminate_identity"}
    with pytest.raises(UsageError, match="did you mean 'fuse_bn_into_conv'"):
        select(names, ["fuse_bn_into_con"], None)
