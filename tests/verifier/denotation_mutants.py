"""Places in the source of denotations and another text there, and how it is put in the place of the original."""

from __future__ import annotations

import ast
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from types import CodeType
from typing import Any

from graphopt import operators
from graphopt.operators.operator import Operator

HOME = Path(next(iter(operators.__path__))).resolve()
MODULES = (
    *("shape_constraints", "elementwise_ops", "opaque_ops", "reduction_ops", "window_ops", "normalization_ops"),
    *("view_ops", "movement_ops", "attention_ops", "indexing_ops", "quantization_ops", "schema_bodies", "semantics"),
)
"""In the order in which they import each other."""


@dataclass(frozen=True)
class Mutant:
    """A module of denotations with one place of its source replaced."""

    module: str
    function: str
    start: int
    end: int
    text: str
    line: int
    lines: frozenset[int] = field(compare=False)
    """Of the statement that it is in, and where a table is read: what runs none cannot tell it from the original."""
    before: str = field(compare=False)
    operator: str = field(default="", compare=False)
    """Under which it stands in a table."""

    @property
    def key(self) -> str:
        """What identifies it as long as the function has no such place twice."""
        return f"{self.module}.{self.function}: {self.before} -> {self.text}"

    def __str__(self) -> str:
        return f"{self.key} (line {self.line})"


SWAPPED: Mapping[type[ast.AST], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Mod: "//",
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.And: "or",
    ast.Or: "and",
}
SIGN: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
}
SIGN |= {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.In: "in"}
SIGN |= {ast.NotIn: "not in", ast.Is: "is", ast.IsNot: "is not", ast.And: "and", ast.Or: "or"}
SIBLINGS = """ge lt, le lt, lt le, eq ge, conjunction disjunction, disjunction conjunction, quotient remainder,
    remainder quotient, maximum minimum, minimum maximum, is_positive is_nonzero,
    is_nonzero is_positive, mean_over sum_over, sum_over mean_over, any all, all any, min max, max min"""
SIBLING = dict(pair.split() for pair in SIBLINGS.split(","))
TEXTS = {"max": "min", "min": "max", "prod": "max", "SAME_UPPER": "SAME_LOWER", "DCR": "CRD", "reflect": "edge"}
TEXTS |= {"Exp": "Log", "Log": "Exp", "Sqrt": "Abs", "Abs": "Sqrt", "Erf": "Tanh", "Tanh": "Erf", "edge": "wrap"}
TEXTS |= {"rounded": "truncated", "truncated": "wrapped", "wrapped": "truncated", "~": "!", "Mod": "FMod"}
TEXTS |= {"constant": "edge", "none": "tanh", "Greater": "Less", "Less": "Greater", "LessOrEqual": "Less"}
ORDERED = frozenset(
    {"quotient", "remainder", "if_then_else", "select_expr", "ge", "le", "lt", "broadcast_element", "divide_exactly"}
)
"""Functions whose last two arguments are not interchangeable."""


def mutants(module: str) -> Iterator[Mutant]:
    """All of a module, in the order of its source."""
    source = (HOME / f"{module}.py").read_text(encoding="utf-8")
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    raw = source.encode()

    def offset(line: int, column: int) -> int:
        return starts[line - 1] + column

    def text_of(part: Any) -> str:
        return raw[offset(part.lineno, part.col_offset) : offset(part.end_lineno, part.end_col_offset)].decode()

    tree = ast.parse(source)
    firsts, reads = frozenset(map(id, _firsts(tree))), _reads(tree)
    for top in tree.body:
        if isinstance(top, ast.Import | ast.ImportFrom):
            continue
        for place in _places(Place(top, top, _named(top))):
            for old, text in _changes(place.node, text_of):
                if id(place.node) in firsts and text == "(-1)":
                    continue
                start, end = offset(old[0], old[1]), offset(old[2], old[3])
                is_field = isinstance(top, ast.ClassDef) and isinstance(place.statement, ast.AnnAssign)
                said: Any = top if is_field else place.statement  # what runs a method has read all fields
                own = range(said.lineno, (said.end_lineno or 0) + 1)
                lines = reads[place.function].union(own) if place.function.isupper() else frozenset(own)
                before = " ".join(raw[start:end].decode().split())
                yield Mutant(module, place.function, start, end, text, old[0], lines, before, place.operator)


def _firsts(tree: ast.AST) -> Iterator[ast.expr]:
    """The zeros that say "the first": where there is but one, the last is the same."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript):
            yield node.slice
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("input", "is_number", "has", "optional"):
            yield from node.args
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "of_shape":
            yield node.args[1]


def _reads(tree: ast.Module) -> Mapping[str, frozenset[int]]:
    """The lines of functions that read a name."""
    found: Mapping[str, set[int]] = defaultdict(set)
    for top in tree.body:
        for node in ast.walk(top):
            if isinstance(top, ast.FunctionDef | ast.ClassDef) and isinstance(node, ast.Name):
                found[node.id].add(node.lineno)
    return defaultdict(frozenset, {name: frozenset(lines) for name, lines in found.items()})


def _named(node: ast.AST) -> str:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return node.name
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    return target.id if isinstance(target, ast.Name) else "module"


@dataclass(frozen=True)
class Place:
    """An expression or a statement that says what is computed."""

    node: ast.AST
    statement: Any
    """In which it is, or an item of a table."""
    function: str
    operator: str = ""

    def within(self, node: ast.AST, statement: ast.AST | None = None) -> Place:
        return replace(self, node=node, statement=statement or self.statement)


def _places(place: Place) -> Iterator[Place]:
    """A place and all those in it."""
    node, compound = place.node, ast.FunctionDef | ast.ClassDef | ast.For | ast.If | ast.With
    if isinstance(node, ast.stmt) and not isinstance(node, compound):
        place = replace(place, statement=node)
    yield place
    if isinstance(node, ast.Dict):
        for name, value in zip(node.keys, node.values, strict=True):
            operator = str(name.value) if isinstance(name, ast.Constant) else place.operator
            yield from _places(replace(place.within(value, value), operator=operator))
        return
    for key, child in ast.iter_fields(node):
        if key in ("annotation", "returns", "decorator_list", "args") and not isinstance(node, ast.Call):
            continue
        for item in child if isinstance(child, list) else [child]:
            if isinstance(item, ast.expr) and isinstance(node, compound):
                yield from _places(place.within(item, item))
            elif isinstance(item, ast.AST) and not isinstance(item, ast.JoinedStr) and not _says_nothing(item):
                yield from _places(place.within(item))


def _says_nothing(node: ast.AST) -> bool:
    """A docstring, what is raised, whether a zip is strict, and facts of an operator beside its meaning."""
    text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return text or isinstance(node, ast.Raise) or (isinstance(node, ast.keyword) and node.arg in BESIDE)


BESIDE = {"strict", *(fact.name for fact in fields(Operator))} - {"denotation", "is_exact", "keeps"}

Span = tuple[int, int, int, int]


def _span(node: Any, until: Any = None) -> Span:
    last = until or node
    return node.lineno, node.col_offset, last.end_lineno, last.end_col_offset


Change = Iterator[tuple[Span, str]]
Text = Callable[[Any], str]


def _changes(node: Any, text: Text) -> Change:
    """What a node may be replaced by."""
    for kind, changes in CHANGES.items():
        if isinstance(node, kind):
            yield from changes(node, text)


def _arithmetic(node: Any, text: Text) -> Change:
    left, right, op = text(node.left), text(node.right), type(node.op)
    if op in SWAPPED:
        yield from ((_span(node), other) for other in (f"({left} {SWAPPED[op]} {right})", left, right))
        if op not in (ast.Add, ast.Mult):
            yield _span(node), f"({right} {SIGN[op]} {left})"


def _comparison(node: Any, text: Text) -> Change:
    if len(node.ops) == 1:
        left, right, op = text(node.left), text(node.comparators[0]), type(node.ops[0])
        yield _span(node), f"({left} {SWAPPED[op]} {right})"
        if op in (ast.Lt, ast.LtE, ast.Gt, ast.GtE):
            yield _span(node), f"({right} {SIGN[op]} {left})"


def _logical(node: Any, text: Text) -> Change:
    parts = [f"({text(value)})" for value in node.values]
    yield _span(node), f"({f' {SWAPPED[type(node.op)]} '.join(parts)})"
    for gone in range(len(parts)):
        yield _span(node), f"({f' {SIGN[type(node.op)]} '.join(parts[:gone] + parts[gone + 1 :])})"


def _alternative(node: Any, text: Text) -> Change:
    yield from ((_span(node), f"({text(part)})") for part in (node.body, node.orelse))


def _opposite(node: Any, text: Text) -> Change:
    if not isinstance(node.operand, ast.Constant):
        yield _span(node), f"({text(node.operand)})"


def _constant(node: Any, _text: Text) -> Change:
    match node.value:
        case bool(value):
            yield _span(node), str(not value)
        case int(value):
            yield from ((_span(node), other) for other in (str(value + 1), f"({value - 1})"))
        case float(value):
            yield _span(node), str(value + 0.25)
        case str(value) if value in TEXTS:
            yield _span(node), repr(TEXTS[value])


def _call(node: Any, text: Text) -> Change:
    name, arguments = getattr(node.func, "id", ""), node.args
    if name in ORDERED and len(arguments) > 1 and not isinstance(arguments[-1], ast.Starred):
        one, other = arguments[-2:] if name != "divide_exactly" else arguments[1:3]
        yield _span(one, other), f"{text(other)}, {text(one)}"
    if name in ("conjunction", "disjunction"):
        for gone in (part for part in arguments if not isinstance(part, ast.Starred)):
            yield _span(node), f"{name}({', '.join(text(part) for part in arguments if part is not gone)})"
    if name == "guard_expr":
        yield _span(arguments[0]), "TRUE"
    if name == "truth_value":
        yield _span(arguments[0]), f"negate({text(arguments[0])})"


def _name(node: Any, _text: Text) -> Change:
    if node.id in SIBLING and isinstance(node.ctx, ast.Load):
        yield _span(node), SIBLING[node.id]


def _requirement(node: Any, _text: Text) -> Change:
    """A call for what it does: to require something, to say what is ignored."""
    if isinstance(node.value, ast.Call):
        yield _span(node), "pass"


def _branch(node: Any, _text: Text) -> Change:
    yield _span(node.test), "False"
    if not isinstance(node.body[0], ast.Raise):
        yield _span(node.test), "True"


def _filter(node: Any, _text: Text) -> Change:
    yield from ((_span(test), "True") for test in node.ifs)


CHANGES: Mapping[type[ast.AST], Callable[[Any, Text], Change]] = {
    ast.BinOp: _arithmetic,
    ast.Compare: _comparison,
    ast.BoolOp: _logical,
    ast.IfExp: _alternative,
    ast.UnaryOp: _opposite,
    ast.Constant: _constant,
    ast.Call: _call,
    ast.Name: _name,
    ast.Expr: _requirement,
    ast.If: _branch,
    ast.comprehension: _filter,
}


def mutated(mutant: Mutant) -> CodeType | None:
    """The module of a mutant, None where the change makes no sense."""
    raw = (HOME / f"{mutant.module}.py").read_bytes()
    source = raw[: mutant.start] + mutant.text.encode() + raw[mutant.end :]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return compile(source, str(HOME / f"{mutant.module}.py"), "exec")
        except SyntaxError:
            return None


def install(mutant: Mutant, code: CodeType) -> None:
    """Put a mutant in the place of its module, in this process, for all that imports it."""
    renewed = MODULES[MODULES.index(mutant.module) :]
    replaced: dict[int, Any] = {}
    for name in renewed:
        module = import_module(f"graphopt.operators.{name}")
        old = dict(vars(module))
        text = HOME / f"{name}.py"
        exec(code if name == mutant.module else _compiled(text), vars(module))
        replaced |= {id(value): vars(module)[key] for key, value in old.items() if vars(module)[key] is not value}
    for name, module in list(sys.modules.items()):
        room, _, own = name.rpartition(".")
        if room.startswith(("graphopt.operators", "graphopt.verifier", "tests.verifier")) and own not in renewed:
            for key, value in list(vars(module).items()):
                if id(value) in replaced and not key.startswith("__"):
                    setattr(module, key, replaced[id(value)])


@cache
def _compiled(path: Path) -> CodeType:
    return compile(path.read_bytes(), str(path), "exec")
