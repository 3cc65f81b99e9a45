"""A rule that is not proved never rewrites a model; where proofs come from, and what they allow."""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterable
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import onnx
import pytest

import graphopt
from graphopt.base.dtype import DType
from graphopt.base.errors import ProofError, UsageError
from graphopt.io import onnx_io
from graphopt.language import rule_library
from graphopt.language.coverage import build_decision_tree
from graphopt.language.definition import Definition
from graphopt.language.proof import Proof, ProofLedger, ProofModel, Verdict
from graphopt.language.rule import Operators, Rule, define, op, tensor
from graphopt.language.terms import Term
from graphopt.operators import inference
from graphopt.operators.operator import FLOAT_DTYPES
from graphopt.rewrite import gate
from graphopt.rewrite.matching import find_matches
from graphopt.rewrite.sites import Site
from tests import zoo
from tests.test_imports import imported, module_name
from tests.text import parse, run

ROOT = Path(__file__).parent.parent
x = tensor("x")
RIGHT = Rule("my_triple_relu", op.Relu(op.Relu(op.Relu(x))), op.Relu(x), why="Relu is idempotent.")
WRONG = Rule("my_lost_relu", op.Relu(op.Neg(x)), op.Neg(x), why="This is wrong.")

SEARCH = (
    *("counterexample", "instance_sampling", "concrete_instance", "value_proposals", "sampling_scope", "shrink"),
    "instance_models",
)
"""The modules of the verifier that make no proof."""
REGENERATE = "`graphopt verify --all --write` makes the ledger anew; it takes minutes, and the result is committed"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user's cache of proofs will be."""
    monkeypatch.setenv("GRAPHOPT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "proofs.sqlite"


def relus(op_type: str = "Relu") -> onnx.ModelProto:
    return parse("float[4] x", f"a = {op_type}(x); b = Relu(a); y = Relu(b)", outputs="float[4] y")


# -- the ledger --------------------------------------------------------------------------------------------------------


def test_the_ledger_is_of_this_verifier_and_proves_every_built_in_rule() -> None:
    found = ProofLedger.load(gate.ledger_path())
    assert found.verifier == gate.source_digest(), f"the verifier or the core has changed: {REGENERATE}"
    for rule in rule_library.load_rules(trades=True):
        proof = found.get(rule.digest)
        assert proof is not None, f"rule '{rule.name}' is new or has changed: {REGENERATE}"
        assert proof.holds, str(proof)


def test_the_digest_covers_all_that_the_verifier_rests_on() -> None:
    """A counterexample is run: what finds it is not believed either."""
    seen = set()
    meanings = {
        ROOT / "graphopt" / f"{name.replace('.', '/')}.py"
        for name in gate.TRUSTED_MODULES
        if name.startswith("operators")
    }
    for path in meanings | {*(ROOT / "verifier").glob("*.py")} - {ROOT / "verifier" / f"{name}.py" for name in SEARCH}:
        for _, target in imported(path.read_text(encoding="utf-8"), module_name(path)):
            if target.startswith("graphopt.") and not target.startswith("graphopt.verifier"):
                seen.add(".".join(target.split(".")[1:3]))
    assert seen - {"language.proof"} <= {*gate.TRUSTED_MODULES}


def test_one_line_of_the_verifier_invalidates_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from graphopt import verifier

    before = gate.source_digest()
    for path in Path(verifier.__path__[0]).glob("*.py"):
        (tmp_path / path.name).write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    monkeypatch.setattr(verifier, "__path__", [str(tmp_path)])
    assert gate.source_digest.__wrapped__() == before, "how a checkout ends its lines says nothing"
    with (tmp_path / "equality.py").open("a") as file:
        file.write("# one line more\n")
    assert gate.source_digest.__wrapped__() != before


@pytest.fixture
def stale(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A ledger that another verifier made."""
    claims = (Proof(r.name, r.digest, Verdict.PROVED, ProofModel.EXACT) for r in (*rule_library.load_rules(), WRONG))
    ProofLedger(claims, "0" * 64).save(tmp_path / "proofs.json")
    monkeypatch.setattr(gate, "ledger_path", lambda: tmp_path / "proofs.json")
    monkeypatch.setattr(gate, "shipped_ledger", gate.shipped_ledger.__wrapped__)


@pytest.mark.usefixtures("cache", "stale")
def test_a_ledger_of_another_verifier_is_not_believed(caplog: pytest.LogCaptureFixture) -> None:
    assert gate.known_proof(WRONG) is None
    assert "proofs.json is not of this verifier" in caplog.text
    assert gate.Gate().proof_of(WRONG).verdict is Verdict.REFUTED


@pytest.mark.usefixtures("cache", "stale")
def test_a_built_in_rule_is_then_proved_when_it_is_first_wanted(cache: Path) -> None:
    result = graphopt.optimize(parse("float[4] x", "a = Neg(x); y = Neg(a)", outputs="float[4] y"), cost="none")
    assert [rewrite.proof for rewrite in result.report.rewrites] == ["proved, exact"]
    with closing(sqlite3.connect(cache)) as connection:
        kept = [json.loads(value)["rule"] for (value,) in connection.execute("SELECT value FROM kept")]
    assert kept == ["eliminate_neg_of_neg", "eliminate_identity"], "no other rule was wanted"


@pytest.mark.usefixtures("cache")
def test_a_built_in_rule_that_is_not_proved_is_left_out_and_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    unknown = ProofLedger(Proof(rule.name, rule.digest, Verdict.UNKNOWN) for rule in rule_library.load_rules())
    monkeypatch.setattr(gate, "shipped_ledger", lambda: unknown)
    model = parse("float[4] x", "a = Neg(x); y = Neg(a)", outputs="float[4] y")
    result = graphopt.optimize(model, cost="none")
    assert not result.changed
    assert result.report.notes == ("rule eliminate_neg_of_neg was not applied: it is not proved",)
    assert "rules left out because they are not proved: eliminate_neg_of_neg;" in caplog.text
    admitted = graphopt.optimize(model, unverified=True, cost="none")
    assert {rewrite.proof for rewrite in admitted.report.rewrites} == {"not proved: unknown"}


def test_a_ledger_reads_back_and_says_the_same_again(tmp_path: Path) -> None:
    proof = Proof("a", "0", Verdict.PROVED, ProofModel.REAL, "1–4", 12, 0.25, "z3 5.4.0")
    refuted = Proof("b", "1", Verdict.REFUTED, counterexample="x: int64[1] = [2]\nvalues differ")
    ProofLedger([refuted, proof], "v").save(tmp_path / "proofs.json")
    text = (tmp_path / "proofs.json").read_text(encoding="utf-8")
    assert len(text.splitlines()) == 4, "one proof a line"
    again = ProofLedger.load(tmp_path / "proofs.json")
    assert (list(again), again.verifier) == ([proof, refuted], "v")
    assert [path.name for path in tmp_path.iterdir()] == ["proofs.json"]


def test_every_field_of_a_proof_reads_back() -> None:
    other = {str: "x", int: 2, float: 0.5, bool: True, list: [[]], Verdict: Verdict.PROVED, type(None): ProofModel.REAL}
    plain = Proof("a", "0", Verdict.REFUTED)
    values: dict[str, Any] = {field.name: other[type(getattr(plain, field.name))] for field in fields(Proof)}
    full = replace(plain, **values)
    assert full.to_json().keys() == {field.name for field in fields(Proof)}
    assert Proof.from_json(full.to_json()) == Proof.from_json(json.loads(json.dumps(full.to_json()))) == full


@pytest.mark.usefixtures("cache")
def test_a_refuted_rule_is_recalled_with_its_hint() -> None:
    proof = Proof(WRONG.name, WRONG.digest, Verdict.REFUTED, hint="only an empty axis stands in the way")
    gate.cache_proof(proof)
    gate._proof_cache.cache_clear()
    assert gate.known_proof(WRONG) == proof


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"proofs": []}',
        '{"verifier": "v", "proofs": [3]}',
        '{"verifier": "v", "proofs": [{"rule": "a", "digest": "0"}]}',
        '{"verifier": "v", "proofs": [{"rule": "a", "digest": "0", "verdict": "LIKELY"}]}',
        '{"verifier": "v", "proofs": [{"rule": "a", "digest": "0", "verdict": "REFUTED", "of a later version": 1}]}',
    ],
)
def test_a_file_that_is_no_ledger_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "proofs.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="is no ledger") as error:
        ProofLedger.load(path)
    assert str(path) in str(error.value)


@pytest.mark.usefixtures("cache")
def test_a_proof_in_the_cache_outdoes_a_failure_in_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = Proof(RIGHT.name, RIGHT.digest, Verdict.UNKNOWN, detail="out of time")
    monkeypatch.setattr(gate, "shipped_ledger", lambda: ProofLedger([failed]))
    assert gate.known_proof(RIGHT) == failed
    gate.cache_proof(Proof(RIGHT.name, RIGHT.digest, Verdict.PROVED, ProofModel.EXACT))
    assert gate.Gate().proof_of(RIGHT).holds


# -- rules of one's own ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("cache")
def test_a_rule_that_is_given_is_proved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    result = graphopt.optimize(relus(), rules=[RIGHT], only=[RIGHT.name], cost="none")
    assert [rewrite.proof for rewrite in result.report.rewrites] == ["proved, exact"]
    gate._proof_cache.cache_clear()
    monkeypatch.setattr(gate, "prove_now", lambda rule: pytest.fail("it was proved again"))
    assert graphopt.optimize(relus(), rules=[RIGHT], only=[RIGHT.name], cost="none").changed


@pytest.mark.usefixtures("cache")
def test_a_wrong_rule_is_refused_with_its_counterexample() -> None:
    model = parse("float[4] x", "n = Neg(x); y = Relu(n)", outputs="float[4] y")
    with pytest.raises(ProofError, match=r"my_lost_relu  REFUTED\n    .+") as refusal:
        graphopt.optimize(model, rules=[WRONG], check=False, cost="none")
    assert refusal.value.exit_code == 3
    assert graphopt.optimize(model, rules=[WRONG], skip=[WRONG.name], cost="none").ok, (
        "a rule that is left out does no harm"
    )


@pytest.mark.usefixtures("cache")
def test_unverified_admits_it_and_the_report_says_so() -> None:
    model = parse("float[4] x", "n = Neg(x); y = Relu(n)", outputs="float[4] y")
    report = graphopt.optimize(model, rules=[WRONG], unverified=True, check=False, cost="none").report
    assert [rewrite.proof for rewrite in report.rewrites] == ["not proved: refuted"]


@pytest.mark.usefixtures("cache")
def test_a_prover_that_fails_has_proved_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphopt.verifier.prove.prove", lambda rule, **_: 1 / 0)
    proof = gate.prove_now(RIGHT)
    assert (proof.verdict, proof.detail) == (Verdict.UNKNOWN, "the prover failed: ZeroDivisionError: division by zero")


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("failure", [MemoryError(), RecursionError(), OSError("no more processes")])
def test_the_next_run_does_not_believe_a_prover_that_failed(
    monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    def failing(*_: object, **__: object) -> NoReturn:
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr("graphopt.verifier.prove.prove", failing)
        assert gate.Gate().proof_of(RIGHT).verdict is Verdict.UNKNOWN
    gate._proof_cache.cache_clear()
    assert gate.known_proof(RIGHT) is None
    assert gate.Gate().proof_of(RIGHT).holds


# -- the cache ---------------------------------------------------------------------------------------------------------


def test_a_proof_in_the_cache_that_has_changed_is_made_again(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    gate.cache_proof(Proof(WRONG.name, WRONG.digest, Verdict.REFUTED, detail="as it was"))
    with closing(sqlite3.connect(cache)) as connection, connection:
        connection.execute("UPDATE kept SET value = replace(value, 'REFUTED', 'PROVED')")
    gate._proof_cache.cache_clear()
    assert gate.known_proof(WRONG) is None
    assert not gate.Gate().proof_of(WRONG).holds
    assert caplog.text.count("is set aside") == 1


@pytest.mark.usefixtures("cache")
def test_a_proof_of_another_verifier_is_not_taken_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(gate, "source_digest", lambda: "0" * 64)
        gate.cache_proof(Proof(WRONG.name, WRONG.digest, Verdict.PROVED, ProofModel.EXACT))
    assert gate.known_proof(WRONG) is None


def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("GRAPHOPT_CACHE", str(tmp_path / "file"))
    assert gate.Gate().proof_of(RIGHT).holds
    assert "is not kept" in caplog.text


@pytest.mark.slow
@pytest.mark.usefixtures("cache")
def test_two_processes_may_prove_the_same_at_once(tmp_path: Path) -> None:
    rules = tmp_path / "mine.jsonl"
    rules.write_text("".join(json.dumps(rule.to_json()) + "\n" for rule in (RIGHT, WRONG)))
    command = [sys.executable, "-m", "graphopt", "verify", "--quiet", str(rules)]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ)) for _ in range(2)]
    for process in running:
        assert "1 of 2 rules not proved: my_lost_relu" in process.communicate()[1]
        assert process.returncode == 3
    gate._proof_cache.cache_clear()
    assert all(gate.known_proof(rule) for rule in (RIGHT, WRONG))


# -- what a proof allows -----------------------------------------------------------------------------------------------


EVERYWHERE = build_decision_tree([()])
"""The coverage of a proof that had nothing to choose."""


def place(rule: Rule, computed: Iterable[DType], read: Iterable[DType] | None = None) -> Site:
    """Where a rule could be applied, of which no more than element types is known."""
    return Site(rule, frozenset(computed), frozenset(computed if read is None else read))


def test_equality_over_the_reals_licenses_floats_only() -> None:
    rule = Rule("distribute", op.Mul(x, tensor("y") + tensor("z")), op.Mul(x, tensor("y")) + op.Mul(x, tensor("z")))
    exact, real = (
        Proof("distribute", "", Verdict.PROVED, model, coverage=EVERYWHERE)
        for model in (ProofModel.EXACT, ProofModel.REAL)
    )
    for proof, dtypes, exactly, allowed in (
        (real, [DType.FLOAT16, DType.DOUBLE], False, True),
        (real, [DType.FLOAT, DType.INT64], False, False),
        (real, [DType.UNDEFINED], False, False),
        (real, [DType.FLOAT], True, False),
        (exact, [DType.INT32, DType.STRING], True, True),
    ):
        one = gate.Gate(exact=exactly)
        one._proofs[rule.name] = proof
        assert one.allows(place(rule, dtypes)) is allowed


def test_what_is_exact_in_one_order_of_operands_is_not_exact_in_another() -> None:
    rule = Rule("max", op.Relu(op.Max(x, op.Neg(tensor("y")))), op.Max(x, op.Neg(tensor("y"))))
    for exactly, dtype, allowed in ((True, DType.FLOAT, False), (True, DType.INT32, True), (False, DType.FLOAT, True)):
        one = gate.Gate(exact=exactly)
        one._proofs[rule.name] = Proof(rule.name, "", Verdict.PROVED, ProofModel.EXACT, coverage=EVERYWHERE)
        assert one.allows(place(rule, [dtype]))
        assert one.allows(replace(place(rule, [dtype]), is_reordered=True)) is allowed


@pytest.mark.parametrize(
    ("model", "allowed"), [(ProofModel.EXACT, False), (ProofModel.EXTENDED, True), (ProofModel.REAL, True)]
)
def test_a_rule_that_is_exact_takes_no_quotient_for_a_product(model: ProofModel, *, allowed: bool) -> None:
    """Its proof does not ask what is rounded before a jump: Floor(49 / 49) is 1, and Floor(49 * (1 / 49)) is 0."""
    rule = Rule("floor", op.Neg(op.Floor(x * 2.0)), op.Floor(x * 2.0))
    one = gate.Gate()
    one._proofs[rule.name] = Proof(rule.name, "", Verdict.PROVED, model, coverage=EVERYWHERE)
    assert one.allows(place(rule, [DType.FLOAT]))
    assert one.allows(replace(place(rule, [DType.FLOAT]), uses_reciprocal=True)) is allowed


def test_proofs_of_casts_speak_of_common_types_only() -> None:
    rule = Rule("bare", op.Cast(op.Neg(op.Cast(x, to=7)), to=7), op.Neg(op.Cast(x, to=7)))
    one = gate.Gate()
    one._proofs[rule.name] = Proof(rule.name, "", Verdict.PROVED, ProofModel.EXACT, coverage=EVERYWHERE)
    assert one.allows(place(rule, [DType.INT64], [DType.FLOAT]))
    assert not one.allows(place(rule, [DType.INT64], [DType.STRING]))
    assert not one.allows(place(rule, [DType.INT64, DType.INT4], [DType.FLOAT]))


@pytest.mark.parametrize(
    ("body", "rule", "expected"),
    [
        ("a = Neg(x); b = Relu(a); y = ArgMax<axis=0>(b)", op.ArgMax(op.Relu(x), axis=0), {DType.FLOAT, DType.INT64}),
        ("a = Greater(x, x); y = Where(a, x, x)", op.Where(op.Greater(x, x), x, x), {DType.FLOAT}),
        ("a = Relu(x); y = Greater(a, a)", op.Greater(op.Relu(x), op.Relu(x)), {DType.FLOAT, DType.BOOL}),
        ("a = Cast<to=7>(x); b = Add(a, a); y = Cast<to=1>(b)", op.Cast(x + x, to=1), {DType.FLOAT, DType.INT64}),
    ],
)
def test_the_left_side_computes_in_the_types_of_its_values(body: str, rule: Term, expected: set[DType]) -> None:
    graph = onnx_io.load_model(parse("float[4] x", body, outputs="y")).graph
    inference.infer_graph(graph)
    match = next(find_matches(Rule("any", rule, op.Identity(x)), graph))
    assert Site.from_match(graph, match).computed_dtypes == expected


# -- exact -------------------------------------------------------------------------------------------------------------


def test_exact_uses_no_rule_that_reassociates() -> None:
    weights = {name: np.arange(1, 5, dtype=np.float32) for name in "sbmv"} | {"w": np.ones((4, 3, 1, 1), np.float32)}
    body = "c = Conv(x, w); n = BatchNormalization(c, s, b, m, v); y = Identity(n)"
    model = parse("float[1,3,4,4] x", body, weights, outputs="float[1,4,4,4] y")
    result = graphopt.optimize(model, exact=True, cost="none")
    assert [node.op_type for node in result.model.graph.node] == ["Conv", "BatchNormalization"]
    found = result.report.comparison
    assert found is not None
    assert found.worst is not None
    assert (found.ok, found.worst.absolute, found.worst.tolerance) == (True, 0.0, 0.0)


def test_exact_folds_only_what_rounds_once() -> None:
    body = "s = Sqrt(w); e = Exp(w); a = Add(x, s); y = Add(a, e)"
    model = parse("float[4] x", body, {"w": np.arange(4, dtype=np.float32)}, outputs="float[4] y")
    assert [node.op_type for node in graphopt.optimize(model, exact=True, cost="none").model.graph.node] == [
        "Exp",
        "Add",
        "Add",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert-dynamo-raw", "llama-torchscript-dynamic", "mobilenetv3-torchscript-bn"])
def test_exact_keeps_every_bit_of_a_real_model(name: str) -> None:
    model = zoo.load(name)
    result = graphopt.optimize(model, exact=True, check=False, cost="none")
    assert result.changed
    feeds = zoo.inputs(model)
    before, after = run(model, feeds), run(result.model, feeds)
    assert {name: array.tobytes() for name, array in after.items()} == {n: a.tobytes() for n, a in before.items()}


def test_exact_and_unverified_contradict_each_other() -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        graphopt.optimize(relus(), exact=True, unverified=True, cost="none")


# -- no solver where none is needed ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    ["import graphopt", "from graphopt.cli.main import app; app(['optimize', 'in.onnx', 'out.onnx', '--quiet'])"],
    ids=["import graphopt", "graphopt optimize"],
)
def test_the_solver_is_not_loaded(code: str, tmp_path: Path) -> None:
    onnx.save(relus("Neg"), tmp_path / "in.onnx")
    watched = f"import sys\ntry:\n    {code}\nfinally:\n    print('z3' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", watched], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n", done.stderr


# -- what kernels of ONNX Runtime do to bits ---------------------------------------------------------------------------

KERNEL_RULES = {
    "eliminate_where_true": ([DType.FLOAT], True, DType.INT32),
    "eliminate_nop_with_unit_pow": ([DType.INT64, DType.INT32], False, DType.FLOAT),
}


@pytest.mark.parametrize("name", KERNEL_RULES)
def test_a_rule_that_drops_a_kernel_with_bits_of_its_own_is_not_exact(name: str) -> None:
    """ONNX Runtime's Where makes 0 of -0; its Pow of integers goes by way of double, so that 2^53 + 1 becomes even,
    or multiplies."""
    rule = next(rule for rule in rule_library.load_rules() if rule.name == name)
    dtypes, otherwise, plain = KERNEL_RULES[name]
    proved = {rule.name: Proof(rule.name, rule.digest, Verdict.PROVED, ProofModel.EXACT, coverage=EVERYWHERE)}
    for exact in (True, False):
        asked = gate.Gate(exact=exact)
        asked._proofs |= proved
        for dtype in dtypes:
            assert asked.allows(place(rule, [dtype])) == (otherwise and not exact)
        assert asked.allows(place(rule, [plain])), "in other types the kernel does what it says"


@pytest.mark.parametrize(
    "op_name", ["Elu", "Softplus", "Log", "Sin", "Cos", "Mish", "Selu", "Celu", "Tanh", "Exp", "Sigmoid"]
)
def test_trades_that_move_an_element_within_a_vector_are_not_exact(op_name: str) -> None:
    """The last elements of a tensor are computed by other instructions than those of a whole vector before them."""
    trades = [
        rule
        for rule in rule_library.load_rules(trades=True)
        if rule.name in (f"split_{op_name.lower()}_of_concat", f"merge_{op_name.lower()}_of_concat")
    ]
    for rule in trades:
        assert gate.deviating_dtypes(rule) == FLOAT_DTYPES


def test_a_rule_that_keeps_such_a_node_on_its_operands_is_exact() -> None:
    x = tensor("x")
    assert gate.deviating_dtypes(Rule("keeps", op.Neg(op.Neg(op.Exp(x))), op.Exp(x))) == frozenset()
    assert gate.deviating_dtypes(Rule("views", op.Exp(op.Flatten(x)), op.Flatten(op.Exp(x)))) == frozenset()
    assert gate.deviating_dtypes(Rule("moves", op.Exp(op.Transpose(x)), op.Transpose(op.Exp(x)))) == FLOAT_DTYPES


def test_proofs_are_kept_by_the_versions_of_what_made_them(monkeypatch: pytest.MonkeyPatch) -> None:
    before = gate.prover_digest()
    monkeypatch.setattr(gate, "_version", lambda package: f"99 of {package}")
    assert gate.prover_digest() != before


@pytest.mark.slow
def test_proofs_cover_what_ordinary_models_have(tmp_path: Path) -> None:
    """Ranks to 4, and lists as long: no rule is proved again, and no solver loaded.

    Masks of GPT-2 as TorchScript writes them have rank 5, which is proved where it is met.
    """
    names = ["bert-dynamo-raw", "efficientnet-dynamo-raw", "gpt2-dynamo-dynamic", "resnet18-torchscript-bn"]
    code = f"""
import sys, graphopt
from tests import zoo
for name in {names}:
    assert graphopt.optimize(zoo.load(name), check=False, cost="none").changed
    print(name, "z3" in sys.modules)
"""
    empty = {**os.environ, "GRAPHOPT_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=empty, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{name} False" for name in names], done.stderr


# -- what kernels here make of it --------------------------------------------------------------------------------------

SQUARE, m = Operators("tests.gate").Square, tensor("m", "N N")
define(SQUARE(m), m @ m)
FUSE_SQUARE = Rule("fuse_square", m @ m, SQUARE(m))


def squared(before: str) -> Site:
    """A place for it behind an operator."""
    body = f"a = {before}(x); y = MatMul(a, a)"
    graph = onnx_io.load_model(parse("float[4, 4] x", body, outputs="float[4, 4] y")).graph
    inference.infer_graph(graph)
    (match,) = find_matches(FUSE_SQUARE, graph)
    return Site.from_match(graph, match)


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("seen", "is_cpu", "finite", "infinite"),
    [
        (gate.KernelCheck("", ""), True, True, True),
        (gate.KernelCheck("", "it makes 0 of NaN"), True, True, False),
        (gate.KernelCheck("it adds 1", ""), True, False, False),
        (gate.KernelCheck("", ""), False, True, False),
    ],
    ids=["as declared", "not of infinities", "otherwise", "on another provider"],
)
def test_the_kernels_here_are_asked_whoever_made_the_proof(
    monkeypatch: pytest.MonkeyPatch, seen: gate.KernelCheck, is_cpu: bool, finite: bool, infinite: bool
) -> None:
    """The ledger's were those of the processor and the ONNX Runtime that made it."""
    monkeypatch.setattr(gate, "_run_kernel_check", lambda _: seen)
    asked = gate.Gate(is_cpu=is_cpu)
    assert asked.proof_of(FUSE_SQUARE).model is ProofModel.EXTENDED
    assert [asked.allows(squared(before)) for before in ("Sigmoid", "Log")] == [finite, infinite]
    assert bool(asked.withheld) == (not infinite)


@pytest.mark.usefixtures("cache")
def test_a_kernel_is_asked_once_by_each_processor_and_version_of_onnx_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Definition] = []

    def note(definition: Definition) -> gate.KernelCheck:
        asked.append(definition)
        return gate.KernelCheck("", "")

    monkeypatch.setattr(gate, "_run_kernel_check", note)
    for version, flags in (("1.90", "avx2"), ("1.90", "avx2"), ("1.91", "avx2"), ("1.91", "avx2 avx512_vnni")):
        monkeypatch.setattr("onnxruntime.__version__", version)
        monkeypatch.setattr(gate, "processor", lambda flags=flags: flags)
        assert gate.Gate().allows(squared("Log"))
    assert len(asked) == 3
