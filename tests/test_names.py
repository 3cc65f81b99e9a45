"""A name means one thing: no class, public function or module is called as another one is."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

from tests import rooms

ENTRY_POINTS = frozenset({"main", "optimize", "compare"})
"""Functions of the command line are called as its commands, which are called as the functions of Python."""
DOORS = frozenset({"rule"})
"""`graphopt/rule.py` is what files of rules import; `language/rule.py` is what it hands on."""
NEIGHBOURS = frozenset({frozenset({"rule", "rules"})})


def sources() -> Iterator[Path]:
    yield from (path for paths in rooms.rooms().values() for path in paths)


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
