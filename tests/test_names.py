"""A name means one thing: no class, public function or module is called as another one is, and prose names what is."""

import ast
import builtins
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path

import pytest

from tests import rooms

ENTRY_POINTS = frozenset({"main", "optimize", "compare", "explain", "grad"})
"""Functions of the command line are called as its commands, which are called as the functions of Python."""
DOORS = frozenset({"rule"})
"""`graphopt/rule.py` is what files of rules import; `language/rule.py` is what it hands on."""
NEIGHBOURS = frozenset({frozenset({"rule", "rules"}), frozenset({"onnx_io", "onnx_ir"})})


def sources() -> Iterator[Path]:
    yield from (path for paths in rooms.rooms().values() for path in paths)


@cache
def homes(kind: type[ast.ClassDef | ast.FunctionDef]) -> dict[str, list[str]]:
    """The files that have a class or function of a name at their top."""
    found = defaultdict(list)
    for path in sources():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, kind):
                found[node.name].append(f"{path.relative_to(rooms.ROOT)}:{node.lineno}")
    return found


def doubles(found: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: places for name, places in found.items() if len(places) > 1}


def test_each_class_has_a_name_of_its_own() -> None:
    assert not doubles(homes(ast.ClassDef))


def test_each_public_function_has_a_name_of_its_own() -> None:
    public = {name: places for name, places in homes(ast.FunctionDef).items() if not name.startswith("_")}
    assert doubles(public).keys() <= ENTRY_POINTS


def differ_by_one_letter(one: str, other: str) -> bool:
    if len(one) == len(other):
        return sum(a != b for a, b in zip(one, other, strict=True)) == 1
    shorter, longer = sorted((one, other), key=len)
    return any(longer[:i] + longer[i + 1 :] == shorter for i in range(len(longer)))


def test_no_file_is_called_like_another() -> None:
    names = sorted(path.stem for path in sources() if not path.stem.startswith("__") and path.stem not in DOORS)
    assert len(names) == len({*names})
    alike = [pair for pair in combinations(names, 2) if differ_by_one_letter(*pair)]
    assert not [pair for pair in alike if frozenset(pair) not in NEIGHBOURS]


def test_one_letter_is_told_from_two() -> None:
    assert differ_by_one_letter("tensor", "tensors") and differ_by_one_letter("terms", "teams")
    assert not differ_by_one_letter("term", "teams") and not differ_by_one_letter("term", "term")


def docstrings(tree: ast.Module) -> Iterator[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    yield from (text for node in ast.walk(tree) if isinstance(node, kinds) and (text := ast.get_docstring(node)))


RAISED = re.compile(r"\b[Rr]aises? (?:an? )?([A-Z]\w+)")
ENTRY = re.compile(r"^    ([A-Z]\w+(?:, [A-Z]\w+)*): ", re.MULTILINE)


def exceptions_in(text: str) -> set[str]:
    """The exceptions that a docstring says are raised, in a sentence or in the section `Raises:`."""
    _, _, section = text.partition("\nRaises:\n")
    entries = (name for names in ENTRY.findall(section.partition("\n\n")[0]) for name in names.split(", "))
    return {*RAISED.findall(text), *entries}


def test_the_exceptions_of_a_docstring_are_found() -> None:
    text = (
        "Do it. Raises OldError.\n\nRaises:\n    OneError, TwoError: it is late;\n        later.\n"
        "    Three: never.\n\nNote: Four"
    )
    assert exceptions_in(text) == {"OldError", "OneError", "TwoError", "Three"}


@pytest.mark.parametrize("path", sorted(sources()), ids=lambda path: str(path.relative_to(rooms.ROOT)))
def test_an_exception_that_a_docstring_names_exists(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom | ast.Import)
        for alias in node.names
    }
    named = {name for text in docstrings(tree) for name in exceptions_in(text)}
    assert not named - imported - homes(ast.ClassDef).keys() - {*dir(builtins)}


@pytest.mark.parametrize("room", rooms.ORDER)
def test_a_room_begins_with_modules_that_it_has(room: str) -> None:
    door = next(path for path in rooms.rooms()[room] if path.stem == "__init__")
    text = ast.get_docstring(ast.parse(door.read_text(encoding="utf-8"))) or ""
    begin = re.findall(r"`(\w+)`", text.partition("Begin with")[2])
    assert {*begin} <= {path.stem for path in rooms.rooms()[room]}


VAGUE = re.compile(r"(Whether|Of|Those|That|How many|How often|Why|What|Where|None)\b")


def attribute_docstrings(body: list[ast.stmt]) -> Iterator[str]:
    """The texts behind assignments, in classes and their `__init__`, too."""
    for before, node in pairwise(body):
        match before, node:
            case ast.Assign() | ast.AnnAssign(), ast.Expr(value=ast.Constant(value=str(text))):
                yield text
    for node in body:
        if isinstance(node, ast.ClassDef) or (isinstance(node, ast.FunctionDef) and node.name == "__init__"):
            yield from attribute_docstrings(node.body)


@pytest.mark.parametrize("path", sorted(sources()), ids=lambda path: str(path.relative_to(rooms.ROOT)))
def test_the_docstring_of_an_attribute_names_the_thing(path: Path) -> None:
    """As "Speedup of the result", not as "Of the result" or "How many times as fast"."""
    texts = attribute_docstrings(ast.parse(path.read_text(encoding="utf-8")).body)
    assert not [text for text in texts if VAGUE.match(text)]


MAX_PARAMETERS = 8
FRONT_DOORS = {"simplify", "partition_model"}
"""Functions of the interface whose keywords are options, each with a default; `simplify` has those of onnxsim."""


def test_no_function_takes_more_than_eight_parameters() -> None:
    found = [
        f"{path.name}: {node.name}"
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if sum(
            each.arg not in ("self", "cls") for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        )
        > MAX_PARAMETERS
        if node.name not in FRONT_DOORS
    ]
    assert not found
