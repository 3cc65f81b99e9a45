"""Mutants of the denotations: each with one thing made wrong, mechanically. Tests that let one live see too little.

A mutant is a place in the source of a denotation and another text there: an operator for its opposite, a number moved
by one, operands or branches swapped, a condition or a requirement dropped, a function for its sibling. It is put in the
place of the original in a process of its own, and the cases that run through this place are asked again: drawn ones in
both models, those that ONNX Runtime refuses, and the rules of `LAWS`. What is in `EQUIVALENT` computes the same.

`python -m tests.verifier.denotations` tries all; see `--help` for fewer.
"""

from __future__ import annotations

import argparse
import ast
import ctypes
import gc
import os
import random
import signal
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeAlias

import numpy as np
from rich.console import Console

from graphopt import operators
from graphopt.language.proof import Ledger
from graphopt.language.rule import Rule
from graphopt.operators.elementwise import Pointwise
from graphopt.operators.node import Denotation, Undefined, Unsupported
from graphopt.operators.operator import Operator
from graphopt.operators.semantics import OPERATORS
from graphopt.rewrite import gate
from graphopt.verifier.prove import prove
from tests.verifier.broken import REFUTED, UNPROVED
from tests.verifier.cases import CASES_OF, answers, application, evaluation, free_sizes, is_mode, opened
from tests.verifier.concrete import Evaluation, Known
from tests.verifier.draw import Draw
from tests.verifier.equivalents import REASONS
from tests.verifier.evaluators import Case
from tests.verifier.laws import COVERED, LAWS, Law, is_covered, operators_of
from tests.verifier.mutants import LIBRARY
from tests.verifier.refused import BEYOND, DIVIDED, REFUSE, UNDEFINED, is_refused, spoilt

HOME = Path(next(iter(operators.__path__))).resolve()
MODULES = (
    *("broadcasting", "elementwise", "opaque", "reductions", "windows", "normalizations", "views", "movement"),
    *("attention", "placing", "quantization", "bodies", "semantics"),
)
"""In the order in which they import each other."""
QUICK = 0.15
"""How many seconds a right rule may take."""
TABLES = 4
"""How many questions about each operator are asked where a table is changed."""
FEW = 12
"""Of how many operators those that are alive are asked the rest: what more of them use has been asked enough."""
SECONDS = 2
"""For a question, beyond what the original needs: a mutant that then has no answer runs forever, and is killed."""


@dataclass(frozen=True)
class Reach:
    """How many cases of each operator are asked, and how many rules of it, right and wrong ones."""

    real: range
    exact: range
    refused: range
    open: range
    """With attributes left open: of which of them there is a denotation."""
    rules: int


FIRST = Reach(range(24), range(6), range(10), range(2), 4)
REST = Reach(range(24, 200), range(6, 20), range(10, 40), range(2, 8), 40)
"""What those mutants are asked that the first questions left alive: as many as the tests of the suite ask."""

# -- mutants -----------------------------------------------------------------------------------------------------------


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
SIBLINGS = """ge lt, le lt, lt le, eq ge, conj disj, disj conj, quotient remainder, remainder quotient, largest least,
    least largest, positive nonzero, nonzero positive, mean total, total mean, any all, all any, min max, max min"""
SIBLING = dict(pair.split() for pair in SIBLINGS.split(","))
TEXTS = {"max": "min", "min": "max", "prod": "max", "SAME_UPPER": "SAME_LOWER", "DCR": "CRD", "reflect": "edge"}
TEXTS |= {"Exp": "Log", "Log": "Exp", "Sqrt": "Abs", "Abs": "Sqrt", "Erf": "Tanh", "Tanh": "Erf", "edge": "wrap"}
TEXTS |= {"rounded": "truncated", "truncated": "wrapped", "wrapped": "truncated", "~": "!", "Mod": "FMod"}
TEXTS |= {"constant": "edge", "none": "tanh", "Greater": "Less", "Less": "Greater", "LessOrEqual": "Less"}
ORDERED = frozenset({"quotient", "remainder", "choice", "select", "ge", "le", "lt", "stretched", "exactly"})
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
        one, other = arguments[-2:] if name != "exactly" else arguments[1:3]
        yield _span(one, other), f"{text(other)}, {text(one)}"
    if name in ("conj", "disj"):
        for gone in (part for part in arguments if not isinstance(part, ast.Starred)):
            yield _span(node), f"{name}({', '.join(text(part) for part in arguments if part is not gone)})"
    if name == "guarded":
        yield _span(arguments[0]), "TRUE"
    if name == "boolean":
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


# -- what is asked of them ---------------------------------------------------------------------------------------------


@dataclass
class Probe:
    """A question about an operator, or a rule, that has one answer."""

    of: str
    ask: Callable[[], bool]
    """Whether the answer is right."""
    lines: frozenset[tuple[str, int]] = frozenset()
    """Which lines of the denotations it runs through."""
    seconds: float = 0.0
    """How long the original takes at most."""


def probes(operators: Collection[str], reach: Reach) -> Iterator[Probe]:
    """What mutants are asked about some operators; the answers come from the two evaluators, once."""
    for name in sorted(CASES_OF.keys() & set(operators)):
        yield from _drawn(name, reach)
        yield from _spoilt(name, reach) if name in REFUSE else ()
        for seed in reach.open:
            yield Probe(name, partial(_is_claimed, name, seed, _claims(name, seed)))
    for rule in _rules(operators, reach.rules):
        yield Probe(rule.name, partial(_is_judged, rule, _judged(rule)))


def fixed_probes(operators: Collection[str]) -> Iterator[Probe]:
    """What is on record about some operators."""
    for name, case in (*UNDEFINED, *BEYOND):
        if name in operators:
            yield Probe(name, partial(_is_undefined, name, case))
    for name, case in DIVIDED:
        if name in operators:
            yield Probe(name, partial(_is_undefined, name, case, exact=True))
    for law in LAWS:
        if law.operators & set(operators):
            yield Probe(law.rule.name, partial(Law.holds, law))
    for name in sorted(COVERED.keys() & set(operators)):
        yield Probe(name, partial(is_covered, name))


def _rules(operators: Collection[str], many: int) -> Iterable[Rule]:
    """Of each operator a few rules of the library that are proved soon, and a few wrong ones."""
    seconds = {proof.rule: proof.seconds for proof in Ledger.load(gate.ledger_path())}
    quick = [rule for rule in LIBRARY if seconds.get(rule.name, QUICK) < QUICK]
    found: dict[str, Rule] = {}
    for rules in (sorted(quick, key=lambda rule: seconds[rule.name]), (*UNPROVED, *REFUTED)):
        seen = Counter[str]()
        for rule in rules:
            said = operators_of(rule) & set(operators)
            if any(seen[name] < many for name in said):
                seen.update(said)
                found[rule.name] = rule
    return found.values()


def _judged(rule: Rule) -> tuple[object, ...]:
    """What a proof says, of which cases."""
    proof = prove(rule, timeout=1, refute=False)
    return proof.verdict, proof.model, proof.coverage


def _is_judged(rule: Rule, before: tuple[object, ...]) -> bool:
    return _judged(rule) == before


def _drawn(name: str, reach: Reach) -> Iterator[Probe]:
    for seed in reach.real:
        case = CASES_OF[name](Draw(random.Random(f"{name}/{seed}")))
        wanted = answers(name, case)
        if wanted:
            for exact in (False, True) if seed in reach.exact else (False,):
                yield Probe(name, partial(_is_answered, name, case, wanted, seed, exact))


def _spoilt(name: str, reach: Reach) -> Iterator[Probe]:
    for seed in reach.refused:
        d = Draw(random.Random(f"{name}/{seed}/spoilt"))
        case = CASES_OF[name](d)
        changed, before = spoilt(case, d), answers(name, case)
        if before and is_refused(before, answers(name, changed)):
            yield Probe(name, partial(_is_undefined, name, changed))


def _is_answered(name: str, case: Case, wanted: Mapping[str, Any], seed: int, exact: bool) -> bool:
    chosen = random.Random(seed)
    known = Known()
    app = application(name, case, known, lambda: chosen.random() < 0.5)
    feeds = {f"x{i}": value for i, value in enumerate(case.inputs) if isinstance(value, np.ndarray)}
    free = free_sizes(name, case) if chosen.random() < 0.7 else frozenset()
    found, _ = Evaluation(app, feeds, known, free, exact).run()
    return len(found) >= case.outputs and all(
        one.shape == other.shape and np.allclose(other, one.astype(np.float64), rtol=1e-5, atol=1e-5, equal_nan=True)
        for arrays in wanted.values()
        for one, other in zip(arrays, found, strict=False)
    )


Claims: TypeAlias = "set[frozenset[tuple[str, Any]]]"


def _claims(name: str, seed: int) -> Claims:
    """The attributes for which there is a denotation of a case, of all that are proposed where they are left open."""
    case, known = CASES_OF[name](Draw(random.Random(f"{name}/{seed}"))), Known()
    feeds = {f"x{i}": value for i, value in enumerate(case.inputs) if isinstance(value, np.ndarray)}
    app = opened(application(name, case, known, lambda: False))
    claims = Evaluation(app, feeds, known, free_sizes(name, case)).claims()
    return {frozenset((key, value) for key, value in claim.items() if is_mode(value)) for claim in claims}


def _is_claimed(name: str, seed: int, before: Claims) -> bool:
    return _claims(name, seed) == before


def _is_undefined(name: str, case: Case, *, exact: bool = False) -> bool:
    for symbols in (False, True):
        try:
            evaluation(name, case, symbols=symbols, exact=exact).run()
        except (Undefined, Unsupported):
            continue
        return False
    return True


def traced(probe: Probe) -> Probe:
    """The probe with the lines it runs through; it has to be answered well by the original."""
    lines: set[tuple[str, int]] = set()
    names = {str(import_module(f"graphopt.operators.{module}").__file__): module for module in MODULES}

    def local(frame: FrameType, _event: str, _value: Any) -> Any:
        lines.add((names[frame.f_code.co_filename], frame.f_lineno))
        return local

    def entered(frame: FrameType, event: str, value: Any) -> Any:
        return local(frame, event, value) if frame.f_code.co_filename in names else None

    for module in MODULES:  # what another question had computed is computed anew, on the lines that do
        for value in list(vars(import_module(f"graphopt.operators.{module}")).values()):
            getattr(value, "cache_clear", lambda: None)()
    begun = time.process_time()
    sys.settrace(entered)
    try:
        right = probe.ask()
    finally:
        sys.settrace(None)
    assert right, f"the original fails: {probe}"
    return Probe(probe.of, probe.ask, frozenset(lines), time.process_time() - begun)


class Questions:
    """Probes that the original answers well, found by the lines that they run through."""

    def __init__(self, asked: Iterable[Probe]) -> None:
        with np.errstate(all="ignore"):
            self.probes = [traced(probe) for probe in asked]
        self._at: Mapping[tuple[str, int], list[int]] = defaultdict(list)
        for number, probe in enumerate(self.probes):
            for place in probe.lines:
                self._at[place].append(number)
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # a process with fewer pages is forked sooner
        gc.freeze()

    def about(self, mutant: Mutant) -> Sequence[Probe]:
        """Those that run through the lines of a mutant, the quick ones first, in an order that mixes operators."""
        found = {number for line in mutant.lines for number in self._at.get((mutant.module, line), ())}
        if mutant.operator in OPERATORS:
            found |= {number for number, probe in enumerate(self.probes) if probe.of == mutant.operator}
        if mutant.function.isupper() and not found:  # a table that only other tables say, or requirements of types
            seen = Counter[str]()
            for number, probe in enumerate(self.probes):
                seen[probe.of] += 1
                found |= {number} if seen[probe.of] <= TABLES else set()
        mixed = sorted(found, key=lambda number: (self.probes[number].seconds > QUICK, (number * 7919) % 10007))
        return [self.probes[number] for number in mixed]


class Court:
    """Tries mutants: each is asked in a process of its own until it gives a wrong answer."""

    def __init__(self, operators: Collection[str] = frozenset(CASES_OF)) -> None:
        warnings.simplefilter("ignore")
        self.first = Questions(chain(probes(operators, FIRST), fixed_probes(operators)))
        self._rest: dict[str, Questions] = {}
        self._told: Mapping[str, Counter[int]] = defaultdict(Counter)
        """How many mutants of a function were told from it by which question."""

    def fate(self, mutant: Mutant) -> str:
        """Killed if a question that runs through its lines has another answer; senseless where it is no program.

        One that no question tells from the original is equivalent where there is a reason for it, else alive.
        """
        code = mutated(mutant)
        if code is None:
            return "senseless"
        asked = self.first.about(mutant)
        if self._tells(mutant, code, asked):
            return "killed"
        operators = sorted({probe.of for probe in asked} & CASES_OF.keys())
        few = operators if len(operators) <= FEW else ()
        if any(self._tells(mutant, code, self.rest(name).about(mutant)) for name in few):
            return "killed"
        return "equivalent" if mutant.key in REASONS else "alive"

    def _tells(self, mutant: Mutant, code: CodeType, asked: Sequence[Probe]) -> bool:
        """Whether a question tells it; those that told others of the function are asked first."""
        told = self._told[mutant.function]
        asked = sorted(asked, key=lambda probe: -told[id(probe)])
        right = _right_answers(mutant, code, asked)
        told.update(id(probe) for probe in asked[right : right + 1])
        return right < len(asked)

    def rest(self, operator: str) -> Questions:
        """The other questions about an operator, of which the answers are sought when they are wanted."""
        if operator not in self._rest:
            self._rest[operator] = Questions(probes({operator}, REST))
        return self._rest[operator]


def _right_answers(mutant: Mutant, code: CodeType, asked: Sequence[Probe]) -> int:
    """How many questions a mutant, in a process of its own, answers as the original; -1 if it cannot be imported."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with open(os.devnull, "w") as null:
            os.dup2(null.fileno(), 2)
        try:
            install(mutant, code)
            for probe in asked:
                os.write(writer, b".")
                signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS + probe.seconds)  # whose signal ends the process
                if not probe.ask():
                    os._exit(0)
            os.write(writer, b".")
        finally:
            os._exit(0)  # any failure is a wrong answer
    os.close(writer)
    with open(reader, "rb") as said:
        begun = len(said.read())
    os.waitpid(child, 0)
    return begun - 1


def all_mutants() -> list[Mutant]:
    return [mutant for module in MODULES for mutant in mutants(module)]


def denoted_by(names: Collection[str]) -> frozenset[str]:
    """The operators whose denotation has one of these names, or is in or uses a module that has, or a helper of it."""
    functions = {name: _function(operator.denotation) for name, operator in OPERATORS.items()}
    named = {name for name, function in functions.items() if function in names}
    helpers = set(names).difference(functions[name] for name in named)
    changed = {mutant.module for mutant in all_mutants() if helpers & {mutant.module, mutant.function}}
    if changed & {"opaque", "semantics"}:  # which every operator goes through
        return frozenset(OPERATORS)
    users = {user for user in MODULES for module in changed if user == module or _imports(user, module)}
    using = {name for name, operator in OPERATORS.items() if operator.denotation.__module__.rpartition(".")[2] in users}
    return frozenset(named | using)


def _function(denotation: Denotation) -> str:
    """What a denotation is called, or what it takes of each element."""
    return str(getattr(denotation.of if isinstance(denotation, Pointwise) else denotation, "__name__", ""))


def _imports(user: str, module: str) -> bool:
    return f"from graphopt.operators.{module} import" in (HOME / f"{user}.py").read_text(encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        help="mutants of these modules or functions, and cases of what is denoted there",
    )
    parser.add_argument("--sample", type=int, default=0, help="so many, drawn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further mutant after that")
    options = parser.parse_args()
    console, begun = Console(soft_wrap=True, highlight=False, markup=False), time.monotonic()
    tried = [m for m in all_mutants() if not options.only or {m.module, m.function} & set(options.only)]
    if options.sample:
        tried = random.Random(options.seed).sample(tried, min(options.sample, len(tried)))
    court = Court(denoted_by(options.only) or frozenset(OPERATORS))
    console.print(f"{len(court.first.probes)} questions, asked of the original in {time.monotonic() - begun:.0f} s")
    fates: Counter[str] = Counter()
    for mutant in tried:
        if time.monotonic() - begun > options.seconds:
            break
        fates[fate := court.fate(mutant)] += 1
        if fate == "alive":
            console.print(str(mutant))
    console.print(f"{dict(fates)} of {len(tried)} mutants in {time.monotonic() - begun:.0f} s")
    sys.exit(bool(fates["alive"]))


if __name__ == "__main__":
    main()
