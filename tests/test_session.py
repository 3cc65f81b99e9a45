"""What runs in one process know of each other: nothing. Their state is in a session each, and nowhere else."""

import ast
import gc
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
import pytest

import graphopt
from graphopt.base.errors import ModelError, RuleError
from graphopt.base.limits import RunLimits, garbage_collection_paused
from graphopt.base.session import DEFAULT_SESSION, Session, current_session
from graphopt.expr.dims import SymbolicDim
from graphopt.expr.integers import FALSE, TRUE, conjunction, disjunction, ge, interned_count, symbol
from graphopt.ir import schemas
from graphopt.language import rule_library
from graphopt.language.definition import define, instantiate_definition, iter_definitions
from graphopt.language.proof import Proof
from graphopt.language.terms import App
from graphopt.rewrite import gate
from graphopt.rule import Operators, Rule, op, tensor
from graphopt.runtime import measure
from graphopt.verifier.prove import prove
from tests.test_imports import ROOT, sources
from tests.text import parse

Made = TypeVar("Made")


@pytest.fixture
def hurried() -> Iterator[None]:
    """Have threads take turns a thousand times as often as usual."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(interval)


def together(works: Sequence[Callable[[], Made]]) -> list[Made]:
    """What some functions return that begin at once, each in a thread of its own."""
    begin = threading.Barrier(len(works))

    def work(function: Callable[[], Made]) -> Made:
        begin.wait()
        return function()

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(work, works))


# -- two runs ----------------------------------------------------------------------------------------------------------

RULES = """
from graphopt.rule import Operators, Rule, define, fn, op, tensor

mine = Operators("my.domain")
x, w = tensor("x", "*b M K"), tensor("w", "K N")
y = tensor("y")
define(mine.Twice(y), {meaning})

RULES = (
    Rule("replace_twice", mine.Twice(y), {simpler}),
    Rule("swap_{name}".lower(), op.Transpose(op.{name}(y)), op.{name}(op.Transpose(y)), why="Proved only."),
    Rule("product_{name}".lower(), (x @ w) * 1.0, x @ w),
)
"""
OWN = {
    "Relu": {"meaning": "op.Relu(op.Relu(y))", "simpler": "op.Relu(y)", "limits": {"run_limit": 100.0}},
    "Abs": {"meaning": "op.Abs(op.Abs(y))", "simpler": "op.Abs(y)", "limits": {"memory_limit": 64.0}},
}


def model(name: str) -> onnx.ModelProto:
    weights: dict[str, Any] = {"w": np.arange(12, dtype=np.float32).reshape(4, 3), "one": np.ones((), np.float32)}
    body = f"""
        s = Shape(x); r = Reshape(x, s); a = MatMul(r, w); b = Mul(a, one); t = my.domain.Twice(b);
        u = Transpose<perm = [0, 2, 1]>(t); v = Transpose<perm = [0, 2, 1]>(u); z = {name}(v); y = Identity(z)"""
    made = parse("float[n,m,4] x", body, weights, outputs="float[n,m,3] y", opset=20)
    made.opset_import.add(domain="my.domain", version=1)
    return made


def run(name: str, folder: Path) -> tuple[bytes, Any]:
    """The bytes that a run writes, and its report without times."""
    path, own = folder / f"{name}.py", OWN[name]
    path.write_text(RULES.format(name=name, **own))
    result = graphopt.optimize(model(name), rules=[path], cost="none", **own["limits"])  # type: ignore[arg-type]
    report = json.loads(result.report.to_json())
    for key in ("seconds", "date", "machine"):
        report.pop(key, None)
    return result.model.SerializeToString(deterministic=True), report


@pytest.fixture
def proofs(monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[str, Proof]]:
    """Hands out the proofs that were made since it was last called, by rule, without their times."""
    made: list[Proof] = []
    monkeypatch.setattr(gate, "cache_proof", made.append)

    def taken() -> dict[str, Proof]:
        found = {proof.digest: replace(proof, seconds=0.0) for proof in made}
        made.clear()
        return found

    return taken


@pytest.mark.usefixtures("hurried")
def test_two_runs_in_two_threads_are_those_of_each_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proofs: Callable[[], dict[str, Proof]]
) -> None:
    """Each has a file that defines an operator of one name in its own way, and rules that are proved meanwhile."""
    monkeypatch.setenv("GRAPHOPT_CACHE", str(tmp_path / "cache"))
    alone = [run(name, tmp_path) for name in OWN]
    proved_alone = proofs()
    assert {proof.rule for proof in proved_alone.values()} >= {"replace_twice", "swap_relu", "swap_abs"}
    for _ in range(3):
        assert together([lambda name=name: run(name, tmp_path) for name in OWN]) == alone  # type: ignore[misc]
        assert proofs() == proved_alone
    written, report = alone[0]
    assert "replace_twice" in str(report["rewrites"])
    assert {node.op_type for node in onnx.load_from_string(written).graph.node} == {"MatMul", "Relu"}


def test_a_limit_of_one_run_is_none_of_another() -> None:
    def refused() -> str:
        with pytest.raises(ModelError, match="memory") as error:
            graphopt.optimize(parse("float[4] x", "y = Relu(x)"), cost="none", memory_limit=0.01)
        return str(error.value)

    def allowed() -> str:
        return graphopt.optimize(parse("float[4] x", "y = Relu(x)"), cost="none").report.comparison.verdict  # type: ignore[union-attr]

    messages = together([refused, allowed] * 3)
    assert messages[1::2] == ["equal"] * 3


@pytest.mark.slow
@pytest.mark.usefixtures("hurried")
def test_proofs_in_two_threads_are_those_of_each_alone() -> None:
    """Rules for which the solver is asked, in the exact, the extended and the real model."""
    known = {rule.name: rule for rule in rule_library.load_rules(trades=True)}
    rules = [known[name] for name in sorted(known)[::40]]

    def proved(rules: Sequence[Rule]) -> list[Proof]:
        return [replace(prove(rule), seconds=0.0) for rule in rules]

    alone = proved(rules)
    assert together([lambda: proved(rules), lambda: proved(rules[::-1])]) == [alone, alone[::-1]]


def test_of_two_threads_one_times_at_a_time() -> None:
    turns: list[int] = []

    def run() -> None:
        turns.append(threading.get_ident())
        time.sleep(0.01)

    together([lambda: measure.time_interleaved([run, run], measure.TimingSchedule(seconds=0.0, rounds=(2, 2)))] * 2)
    assert len(turns) > 10 and sum(one != other for one, other in pairwise(turns)) == 1


# -- sessions ----------------------------------------------------------------------------------------------------------

DOMAIN = "tests.session"
mine = Operators(DOMAIN)
y = tensor("y")


def test_a_child_knows_what_is_defined_and_tells_nobody() -> None:
    with Session() as outer:
        define(mine.Outer(y), op.Relu(y))
        with outer.child() as inner:
            define(mine.Inner(y), mine.Outer(y))
            assert instantiate_definition(mine.Inner(y)) and instantiate_definition(mine.Outer(y))
        assert (
            current_session() is outer
            and instantiate_definition(mine.Outer(y))
            and instantiate_definition(mine.Inner(y)) is None
        )
        define(mine.Inner(y), op.Abs(y))  # another one
        with inner:
            assert str(instantiate_definition(mine.Inner(y)).outputs[0]) == "tests.session.Outer(y)"  # type: ignore[union-attr]
    assert current_session() is DEFAULT_SESSION and instantiate_definition(mine.Outer(y)) is None


def test_what_is_remembered_of_operators_ends_with_a_definition_here_or_above() -> None:
    with Session() as outer, outer.child() as inner:
        define(mine.Own(y), op.Relu(y))
        assert [schemas.newest_version(name, DOMAIN) for name in ("Own", "Above")] == [1, 0]
        with outer:
            assert schemas.newest_version("Own", DOMAIN) == 0
            define(mine.Above(y), op.Relu(y))
        assert current_session() is inner and schemas.newest_version("Above", DOMAIN) == 1


def test_rules_of_equal_words_differ_where_their_operators_do() -> None:
    def proved(meaning: App) -> tuple[Rule, bool]:
        with Session():
            define(mine.Twice(y), meaning)
            rule = Rule("replace", mine.Twice(y), op.Relu(y))
            return rule, prove(rule, refute=False).holds

    right, wrong = proved(op.Relu(op.Relu(y))), proved(op.Neg(op.Neg(y)))
    assert right == proved(op.Relu(op.Relu(y))) and right[1]
    assert right[0] != wrong[0] and not wrong[1]


def test_a_rule_of_another_session_brings_its_operators() -> None:
    with Session():
        define(mine.Brought(y), op.Relu(op.Relu(y)))
        rule = Rule("replace_brought", mine.Brought(y), op.Relu(y))
    model = parse("float[4] x", "y = Brought(x)", opset=20)
    model.graph.node[0].domain = "tests.session"
    model.opset_import.add(domain="tests.session", version=1)
    result = graphopt.optimize(model, rules=[rule], cost="none", check=False)
    assert [node.op_type for node in result.model.graph.node] == ["Relu"]
    assert instantiate_definition(mine.Brought(y)) is None
    with Session():
        define(mine.Brought(y), op.Abs(y))
        with pytest.raises(RuleError, match="is defined otherwise already"):
            graphopt.optimize(model, rules=[rule], cost="none")


def test_a_result_is_written_with_the_operators_of_its_run(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from graphopt.rule import Operators, Rule, define, op, tensor\n"
        "mine, y = Operators('tests.written'), tensor('y')\n"
        "define(mine.Double(y), op.Relu(y + y))\n"
        "RULES = Rule('write_double', op.Relu(y + y), mine.Double(y)),\n"
    )
    model = parse("float[4] x", "a = Add(x, x); y = Relu(a)")
    result = graphopt.optimize(model, rules=[tmp_path / "own.py"], cost="none", check=False)
    assert (
        result.session is not current_session() and instantiate_definition(Operators("tests.written").Double(y)) is None
    )
    with result.session.replace():
        assert instantiate_definition(Operators("tests.written").Double(y)) is not None


def test_the_library_is_defined_for_all() -> None:
    shipped = {each for rule in rule_library.load_rules(trades=True) for each in rule.definitions}
    with Session():
        assert shipped and shipped <= {*iter_definitions()}


def test_integers_are_those_of_a_session() -> None:
    with Session():
        n = symbol("n")
        assert symbol("n") is n and str(SymbolicDim.fresh()) == "?000000"
        assert conjunction() is TRUE and disjunction() is FALSE and disjunction(FALSE, FALSE) is FALSE
        before = interned_count()
        with current_session().with_fresh_integers():
            assert interned_count() == 0 and symbol("n") is not n and conjunction(TRUE, ge(symbol("n"))).serial > 1
        assert interned_count() == before and str(SymbolicDim.fresh()) == "?000001"


def test_a_session_is_left_as_it_was_entered() -> None:
    session = Session(limits=RunLimits(7.0))
    with session, session.replace(limits=RunLimits(3.0)) as inner:
        assert (
            current_session() is inner
            and current_session().limits.seconds == 3.0
            and inner.definitions is session.definitions
        )
        with session:
            assert current_session().limits.seconds == 7.0
        assert current_session() is inner
    assert current_session() is DEFAULT_SESSION


# -- no state elsewhere ------------------------------------------------------------------------------------------------

ALLOWED = {
    ("graphopt.base.session", "_CURRENT"): "the one variable",
    ("graphopt.operators.magnitude_analysis", "_ANALYSES"): "a cache: what follows of a graph, as long as that lives",
    (
        "graphopt.operators.magnitude_analysis",
        "_CONSTANT_MAGNITUDES",
    ): "a cache: what was read of a tensor, as long as that lives",
    (
        "graphopt.operators.magnitude_analysis",
        "_CONSTANT_SIGNS",
    ): "a cache: what was read of a tensor, as long as that lives",
    ("graphopt.rewrite.passes", "_SAMPLES"): "a cache: what was read of a tensor, as long as that lives",
}
MUTATING = frozenset({"add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "reset"})
MUTATING |= {"reverse", "set", "setdefault", "sort", "update"}


def mutated(module: ast.Module) -> Iterator[str]:
    """The names of a module that its functions change: names that are set again, objects, attributes of classes."""
    names = {
        target.id
        for node in module.body
        for target in (node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)])
        if isinstance(target, ast.Name)
    }
    names |= {node.name for node in module.body if isinstance(node, ast.ClassDef)}
    for function in (node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)):
        for node in ast.walk(function):
            match node:
                case ast.Global(names=own):
                    yield from own
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr)) if attr in MUTATING:
                    yield from {name} & names
                case ast.Call(func=ast.Name(id="next"), args=[ast.Name(id=name), *_]):
                    yield from {name} & names
                case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()):
                    yield from {name} & names
                case ast.Attribute(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()):
                    yield from {name} & names
                case ast.AugAssign(target=ast.Name(id=name)):
                    yield from {name} & names


def test_no_module_has_state_outside_of_the_session() -> None:
    found = {}
    for path in sources():
        folder, *_ = path.relative_to(ROOT).parts
        if folder in ("graphopt", "rules", "verifier"):
            for name in mutated(ast.parse(path.read_text(encoding="utf-8"))):
                module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                found[module, name] = path
    assert found.keys() == ALLOWED.keys()


def test_there_is_one_context_variable() -> None:
    users = [path for path in sources() if "ContextVar(" in path.read_text(encoding="utf-8")]
    assert [path.relative_to(ROOT).as_posix() for path in users if path.name != "test_session.py"] == [
        "graphopt/base/session.py"
    ]


@pytest.mark.parametrize("was_enabled", [True, False])
def test_garbage_collection_is_left_as_it_was(was_enabled: bool) -> None:
    def load() -> None:
        with garbage_collection_paused():
            assert not gc.isenabled()
            raise RuleError("a rule is malformed")

    collects = gc.isenabled()
    try:
        (gc.enable if was_enabled else gc.disable)()
        with pytest.raises(RuleError):
            load()
        assert gc.isenabled() is was_enabled
    finally:
        (gc.enable if collects else gc.disable)()


@pytest.mark.parametrize(
    "text",
    [
        "table = {}\ndef f():\n    table['x'] = 1",
        "class State:\n    on = False\ndef f():\n    State.on = True",
        "count = 0\ndef f():\n    global count\n    count += 1",
        "numbers = count()\ndef f():\n    return next(numbers)",
        "known: list[int] = []\ndef f():\n    known.append(1)",
    ],
)
def test_state_is_seen(text: str) -> None:
    assert [*mutated(ast.parse(text))]
