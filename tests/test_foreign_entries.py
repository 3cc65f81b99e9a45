"""Entries of the cache that are whole and not what their keys stand for: whoever reads one finds nothing there."""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import graphopt
from graphopt.base.cache import Cache, _digest
from graphopt.base.files import cache_folder
from graphopt.base.records import to_json
from graphopt.language import rule_library
from graphopt.language.definition import Definition
from graphopt.language.proof import Proof, ProofLedger, ProofModel, Verdict
from graphopt.language.rule import Rule, op, tensor
from graphopt.rewrite import gate
from graphopt.rewrite.candidates import Candidate
from graphopt.runtime.cost_model import decode_cached, open_cost_cache
from graphopt.runtime.machine import Machine
from graphopt.runtime.measure import Speedup
from graphopt.search import search_cache
from graphopt.search.race_series import RaceSeries, _RaceRecord
from tests.test_contests import entered
from tests.test_recall import GRAPH, RULES, exploration
from tests.text import parse

DEEP = "[" * 100_000 + "]" * 100_000
NO_RECORDS = {
    "nothing": "",
    "no JSON": "x",
    "cut off": '{"minimum": 1.0, "med',
    "null": "null",
    "a number": "3",
    "a large number": "1" + "0" * 400,
    "a number of too many digits": "9" * 5000,
    "not a number": "NaN",
    "infinity": "-Infinity",
    "true": "true",
    "a text": '"text"',
    "a long text": json.dumps("x" * 1_000_000),
    "lists": "[]",
    "a list of what is none": "[1]",
    "lists in lists": "[[[], [[]]], {}]",
    "too deep": DEEP,
    "an empty record": "{}",
    "a record of another kind": '{"a": {"b": [{"c": null}]}}',
    "a record in which all is null": json.dumps(dict.fromkeys(("rule", "minimum", "solutions", "outcomes", "block"))),
}
foreign = pytest.mark.parametrize("text", NO_RECORDS.values(), ids=NO_RECORDS.keys())


@pytest.fixture(autouse=True)
def _own(own_cache: None) -> Iterator[None]:  # noqa: ARG001
    gate._proof_cache.cache_clear()
    yield
    gate._proof_cache.cache_clear()


def changes(data: Any) -> Iterator[Any]:
    """Yield a record with something in it that does not belong there: of each part, of another type or size."""
    match data:
        case dict():
            for name, value in data.items():
                yield from ({**data, name: other} for other in changes(value))
                yield {key: kept for key, kept in data.items() if key != name}
        case [first, *others]:
            yield from ([other, *others] for other in changes(first))
    kinds: tuple[Any, ...] = (None, True, -1, -0.5, 10**400, float("nan"), float("inf"), "x", [], [[0]], {}, {"x": [1]})
    yield from (other for other in kinds if type(other) is not type(data) or other != data)


def changed(text: str) -> Iterator[str]:
    return map(json.dumps, changes(json.loads(text)))


# -- each reader -------------------------------------------------------------------------------------------------------

SPEEDUP = Speedup(1.2, 1.2, 1.1, 1.3, rounds=9)


@foreign
@pytest.mark.parametrize("kind", [Speedup, Machine, _RaceRecord])
def test_what_is_no_record_is_none(kind: type[Any], text: str) -> None:
    if kind is Machine and text in ("{}", NO_RECORDS["a record of another kind"]):  # all of it has a default
        return
    assert decode_cached(kind, text) is None


@pytest.mark.parametrize(
    "change",
    [
        {"median": -1.0},
        {"low": None},
        {"low": 1.4},
        {"rounds": -1},
        {"rounds": 9.0},
        {"confidence": 0.0},
        {"noise": None},
        {"noise": -0.1},
        {"minimum": True},
    ],
)
def test_a_speedup_that_cannot_be_is_none(change: Mapping[str, Any]) -> None:
    assert decode_cached(Speedup, to_json(SPEEDUP)) == SPEEDUP
    assert decode_cached(Speedup, json.dumps(json.loads(to_json(SPEEDUP)) | change)) is None


@pytest.mark.parametrize("change", [{"block": -8}, {"block": 8.0}, {"bytes_per_second": 0}, {"launch_seconds": None}])
def test_a_machine_that_cannot_be_is_none(change: Mapping[str, Any]) -> None:
    assert decode_cached(Machine, json.dumps(change)) is None


def test_changed_records_are_read_as_such_or_not_at_all() -> None:
    for record in (SPEEDUP, Machine()):
        for text in changed(to_json(record)):
            found = decode_cached(type(record), text)
            assert found is None or decode_cached(type(record), to_json(found)) == found


@foreign
def test_what_is_no_find_of_a_search_is_none(text: str) -> None:
    assert search_cache.parse_exploration(text, RULES, GRAPH) is None


def put(part: Any, *path: Any, into: Any) -> None:
    for step in path[:-1]:
        into = into[step]
    into[path[-1]] = part


FIND = ("solutions", 0)


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ((*FIND, "copies"), [[10**6]]),
        ((*FIND, "copies"), [[-1]]),
        ((*FIND, "copies"), [[]]),
        ((*FIND, "copies"), [[1, 1]]),
        ((*FIND, "copies"), [[3, 1]]),
        ((*FIND, "copies"), [[1], [1]]),
        ((*FIND, "copies"), [[1, 3]]),
        ((*FIND, "copies"), [[0, 1, 2, 3]]),
        ((*FIND, "moves", 0, "sites"), []),
        ((*FIND, "moves", 0, "sites"), [[]]),
        ((*FIND, "moves", 0, "rule"), "gone"),
        ((*FIND, "moves", 0, "simplified"), 1),
        ((*FIND, "estimated_seconds"), None),
        ((*FIND, "estimated_seconds"), -1),
        ((*FIND, "speedup", "median"), 0),
        ((*FIND, "speedup", "noise"), 3.0),
        (("stop",), "it was interrupted"),
        (("states",), -1),
        (("is_steady",), False),
        (("notes",), [1]),
    ],
)
def test_a_find_that_fits_no_part_of_the_graph_is_none(path: tuple[Any, ...], part: Any) -> None:
    assert search_cache.parse_exploration(to_json(exploration()), RULES, GRAPH) is not None
    data = json.loads(to_json(exploration()))
    put(part, *path, into=data)
    assert search_cache.parse_exploration(json.dumps(data), RULES, GRAPH) is None


def test_changed_finds_are_none_or_fit() -> None:
    for text in changed(to_json(exploration())):
        found = search_cache.parse_exploration(text, RULES, GRAPH)
        assert found is None or all(solution.saved_seconds > 0 for solution in found.solutions)


@pytest.fixture
def race() -> RaceSeries:
    return entered()[0]


def keep(contest: RaceSeries, text: str) -> None:
    """Have all that a contest asks for be this text."""
    contest.cache.get = lambda keys: dict.fromkeys(keys, text)  # type: ignore[method-assign]


@foreign
def test_what_is_no_race_is_run(race: RaceSeries, text: str) -> None:
    keep(race, text)
    assert race.recorded_outcomes(["one"]) is None
    assert race.had_timed_out(["one"]) == (text == "")


@pytest.mark.parametrize("text", ["", "x", "nan", "inf", "-0.1", "1.5", "null", "[]", "{}", "9" * 5000, "1e400"])
def test_what_is_no_part_of_a_whole_is_measured(race: RaceSeries, text: str) -> None:
    keep(race, text)
    found = race.light_kernel_share(Candidate(race.model.graph))
    assert found is not None
    assert 0 <= found <= 1


def test_a_race_at_other_sizes_is_another(race: RaceSeries) -> None:
    once = {"minimum": 1.0, "median": 1.0, "spread": 0.0}
    ratio = json.loads(to_json(SPEEDUP))

    def told(*sizes: int, before: Mapping[str, Any] = once) -> str:
        latencies = [{"sizes": {"n": n}, "before": before, "after": once, "speedup": ratio} for n in sizes]
        return json.dumps({"outcomes": [{"speedup": ratio, "gain": ratio, "latencies": latencies}]})

    keep(race, told(2, 3))
    found = race.recorded_outcomes(["one"])
    assert found is not None
    assert [latency.sizes for latency in found[0].latencies] == [{"n": 2}, {"n": 3}]
    assert race.recorded_outcomes(["one", "two"]) is None
    for text in (
        told(),
        told(2),
        told(3, 2),
        told(2, 3, before=once | {"median": None}),
        told(2, 3, before=once | {"minimum": 2.0}),
        told(2, 3, before=once | {"spread": -1.0}),
    ):
        keep(race, text)
        assert race.recorded_outcomes(["one"]) is None
    for text in changed(told(2, 3)):
        keep(race, text)
        race.recorded_outcomes(["one"])


# -- proofs ------------------------------------------------------------------------------------------------------------

x = tensor("x", "*a")
RULE = Rule("my_double_relu", op.Relu(op.Relu(x)), op.Relu(x))
TREE = [[], ["rank x", None, [[[1, 2], 0]]]]
PROOF = Proof(RULE.name, RULE.digest, Verdict.PROVED, ProofModel.EXACT, "1–2", 2, 0.5, "z3", coverage=TREE)


def know(key: str, text: str) -> None:
    """Put a text into the cache of proofs."""
    Cache(cache_folder() / "proofs.sqlite").put({key: text})
    gate._proof_cache.cache_clear()


@foreign
def test_what_is_no_proof_is_proved_anew(text: str) -> None:
    know(gate._proof_key(RULE.digest), text)
    assert gate.known_proof(RULE) is None
    know(gate._instances_key(PROOF), text)
    assert gate.cached_instance_proofs(RULE, PROOF) == []


@pytest.mark.parametrize(
    "change",
    [
        {"rule": "another"},
        {"rule": 3},
        {"digest": "0" * 64},
        {"verdict": "LIKELY"},
        {"verdict": "UNKNOWN"},
        {"verdict": ["PROVED"]},
        {"model": "SOME"},
        {"model": None},
        {"cases": -1},
        {"cases": "2"},
        {"seconds": "long"},
        {"seconds": -1.0},
        {"seconds": float("nan")},
        {"seconds": float("inf")},
        {"ranks": 4},
        {"detail": ["x"]},
        {"asks_finite": 1},
        {"coverage": {}},
        {"coverage": "tree"},
        {"coverage": [["rank x", None]]},
        {"coverage": [["rank x", None, [[[1], 0]]]]},  # leads to itself
        {"coverage": [["rank x", None, [[[1], 1]]], []]},
        {"coverage": [[], ["rank x", None, [[[1], -1]]]]},
        {"coverage": [[], ["rank x", None, [[[1], True]]]]},
        {"coverage": [[], ["rank x", None, [[["1"], 0]]]]},
        {"coverage": [[], ["rank x", None, [[1, 0]]]]},
        {"coverage": [[], ["rank y", None, [[[1], 0]]]]},
        {"coverage": [[], ["value x.axis", None, [[[1], 0]]]]},
        {"coverage": [[], ["weight x", None, [[[1], 0]]]]},
        {"coverage": [[], [3, None, [[[1], 0]]]]},
        {"of a later version": 1},
    ],
)
def test_a_proof_that_cannot_be_is_none(change: dict[str, Any]) -> None:
    know(gate._proof_key(RULE.digest), json.dumps(PROOF.to_json()))
    assert gate.known_proof(RULE) == PROOF
    know(gate._proof_key(RULE.digest), json.dumps(PROOF.to_json() | change))
    assert gate.known_proof(RULE) is None


@pytest.mark.parametrize("rule", ["push_nan_guard_below_transpose", "my_double_relu"])
def test_changed_proofs_are_read_without_an_error(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = {each.name: each for each in rule_library.load_library().all_rules}.get(rule, RULE)
    proof = gate.shipped_ledger().get(shipped.digest) or PROOF
    monkeypatch.setattr(gate, "shipped_ledger", ProofLedger)
    for text in changed(json.dumps(proof.to_json())):
        monkeypatch.setattr(gate._proof_cache(cache_folder()), "get", lambda keys, text=text: dict.fromkeys(keys, text))
        found = gate.known_proof(shipped)
        assert found is None or str(found)


@pytest.mark.parametrize(
    "instances",
    [[[TREE]], [[TREE, ""], 3], [[TREE, "it is not"]], [["tree", ""]], [[[3], ""]], [{"tree": TREE}], [TREE]],
)
def test_instances_that_cannot_be_are_tried_again(instances: Any) -> None:
    know(gate._instances_key(PROOF), json.dumps([[TREE, ""]]))
    assert [instance.tree for instance in gate.cached_instance_proofs(RULE, PROOF)] == [TREE]
    know(gate._instances_key(PROOF), json.dumps(instances))
    assert gate.cached_instance_proofs(RULE, PROOF) == []


@pytest.mark.parametrize("text", [*NO_RECORDS.values(), '"ab"', "[1, 2]", '["a"]', '["a", null]', '["a", "b", "c"]'])
def test_what_no_kernel_was_seen_to_do_is_asked(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    definition: Definition = next(each for rule in rule_library.load_library().all_rules for each in rule.definitions)
    monkeypatch.setattr(gate, "_run_kernel_check", lambda _: gate.KernelCheck("asked", ""))
    monkeypatch.setattr(gate._proof_cache(cache_folder()), "get", lambda keys: dict.fromkeys(keys, text))
    assert gate.check_kernel(definition) == gate.KernelCheck("asked", "")


# -- the file ----------------------------------------------------------------------------------------------------------


def values(path: Path) -> dict[str, str]:
    """All that is in a cache."""
    with closing(sqlite3.connect(path)) as connection:
        return dict(connection.execute("SELECT key, value FROM kept"))


def forge(path: Path, others: Mapping[str, Any]) -> int:
    """Give entries of a cache other values, with the right digests; tells how many there are."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for key, value in others.items():
            update = "UPDATE kept SET value = ?, digest = ? WHERE key = ?"
            connection.execute(update, (value, _digest(key, value), key))
    return len(others)


@pytest.mark.parametrize("value", [b"{}", b"\xff\x00", b""])
def test_a_value_that_is_no_text_is_none(value: bytes, caplog: pytest.LogCaptureFixture) -> None:
    open_cost_cache().put({"a": "1", "b": "2"})
    with caplog.at_level("DEBUG"):
        forge(open_cost_cache().path, {"a": value})
        assert open_cost_cache().get(["a", "b"]) == {"b": "2"}
    assert [record.levelname for record in caplog.records] == ["DEBUG"]


@pytest.mark.slow
def test_runs_with_foreign_entries_end_as_others_do(caplog: pytest.LogCaptureFixture) -> None:
    """Each entry has a value of no kind, and that of another entry."""
    body = "a = Neg(x); b = Neg(a); c = Mul(b, 2.0); d = Softmax(c); e = Softmax(d); y = Exp(e)"
    model = parse("float[n,64] x", body, outputs="float[n,64] y")
    wanted: dict[str, Any] = {"rules": [RULE], "seconds": 4.0, "threads": 1}

    def run() -> None:
        gate._proof_cache.cache_clear()
        assert graphopt.optimize(model, **wanted).ok

    run()
    paths = list(cache_folder().glob("*.sqlite"))
    assert len(paths) == 2
    originals = {path: path.read_bytes() for path in paths}
    for text in ("{}", "[1]", '"x"', "null", "-1", DEEP):
        for path in paths:
            path.write_bytes(originals[path])
            assert forge(path, dict.fromkeys(values(path), text))
        run()
    for path in paths:
        path.write_bytes(originals[path])
        known = values(path)
        forge(path, dict(zip(known, [*known.values()][1:], strict=False)))
    run()
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "WARNING")]
