"""`graphopt verify`, and what is written from its proofs: the ledger and the catalogue."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from graphopt.base.errors import GraphoptError
from graphopt.cli import catalogue
from graphopt.cli.main import app
from graphopt.language import rule_library
from graphopt.language.proof import Proof, ProofLedger, ProofModel, Verdict
from graphopt.language.rule import Rule, op, tensor
from graphopt.report.report import format_proof_counts
from graphopt.rewrite import gate, proving

ROOT = Path(__file__).parent.parent
RULES = """
from graphopt.rule import Rule, const, op, tensor
x = tensor("x")
RULES = (
    Rule("my_triple_relu", op.Relu(op.Relu(op.Relu(x))), op.Relu(x), why="Relu is idempotent."),
    Rule("my_lost_shift", op.Relu(x + const("b")), op.Relu(x), why="This is wrong."),
)
"""


def run(*args: object) -> Result:
    return CliRunner().invoke(app, ["verify", *map(str, args)])


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(RULES)
    return path


def test_a_file_of_rules(rules: Path) -> None:
    done = run(rules)
    assert done.exit_code == 3
    assert re.search(r"rule +verdict +model +ranks +cases +seconds\n", done.stdout)
    assert re.search(r"my_triple_relu +PROVED +EXACT +all +\d+ +\d+\.\d\d\n", done.stdout)
    assert re.search(r"my_lost_shift +REFUTED +\d+\.\d\d\n", done.stdout)
    assert re.search(r"\nmy_lost_shift  REFUTED\n    .+\n", done.stdout), "the counterexample is shown below the table"
    assert "2 rules: 1 proved (1 exact, 0 reassociate), 1 refuted; " in done.stdout
    assert done.stderr == "graphopt: error: 1 of 2 rules not proved: my_lost_shift\n"


DEFINITION = """
from graphopt.rule import define, op, tensor
from graphopt.rule import Operators
x, y = tensor("x", "M K"), tensor("y", "K N")
RULES = ()
define(Operators("{}").TransposeMatMul(x, y, alpha=0.25), (x @ y) * {})
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("domain", "factor", "code"), [("com.microsoft", 0.25, 0), ("com.microsoft", 0.5, 3), ("own", 0.5, 0)]
)
def test_a_definition_that_no_rule_uses_is_put_to_its_kernel(
    tmp_path: Path, domain: str, factor: float, code: int
) -> None:
    path = tmp_path / "defined.py"
    path.write_text(DEFINITION.format(domain, factor))
    command = [sys.executable, "-m", "graphopt", "verify", str(path)]  # a process forgets no definition
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = "com.microsoft.TransposeMatMul is not what its definition says: values differ"
    assert (done.returncode, said in done.stderr, said in done.stdout) == (code, code == 3, code == 3)
    assert "verdict" not in done.stdout, "there is no rule to have a row"
    first, second = done.stdout.splitlines()[:2]
    assert first.startswith(f"{domain}.TransposeMatMul(x, y, alpha=0.25)  =  ")
    if domain == "own":
        assert second == "    ONNX Runtime has no kernel of that name: it is believed"
    elif code:
        assert second == "    ONNX Runtime's kernel computes something else"
    else:
        assert re.fullmatch(r"    ONNX Runtime's kernel computes the same at \d\d+ instances", second)


def test_rules_by_name() -> None:
    done = run("eliminate_identity", "eliminate_neg_of_neg")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "2 rules: 2 proved" in done.stdout


def test_names_and_files_mix(rules: Path) -> None:
    listed = json.loads(run("eliminate_identity", rules, "--json").stdout)
    assert [proof["rule"] for proof in listed] == ["eliminate_identity", "my_triple_relu", "my_lost_shift"]
    assert [proof["verdict"] for proof in listed] == ["PROVED", "PROVED", "REFUTED"]


def test_quiet_leaves_the_exit_code(rules: Path) -> None:
    done = run(rules, "--quiet")
    assert (done.exit_code, done.stdout) == (3, "")


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["eliminate_identiti"], "there is no rule or pass 'eliminate_identiti'; did you mean 'eliminate_identity'?"),
        (["xyz"], "there is no rule or pass 'xyz'; `graphopt rules` lists them"),
        ([], "nothing to verify: name rules or files of rules, or use --all"),
        (["eliminate_identity", "--write"], "--write writes the whole ledger: use it with --all"),
        (["missing.py"], "missing.py: no such file of rules"),
    ],
)
def test_what_cannot_be_verified_is_one_clear_error(args: Sequence[str], complaint: str) -> None:
    done = run(*args)
    assert (done.exit_code, done.stderr) == (2, f"graphopt: error: {complaint}\n")


def test_verify_proves_again_unless_told_to_look_up(rules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proved: list[str] = []

    def attempt(rule: Rule, timeout: float) -> Proof:
        proved.append(f"{rule.name} in {timeout}")
        return Proof(rule.name, rule.digest, Verdict.PROVED, ProofModel.EXACT)

    monkeypatch.setattr(gate, "prove_now", attempt)
    assert run(rules, "--timeout", 7).exit_code == 0
    assert run(rules, "--cached").exit_code == 0
    assert proved == ["my_triple_relu in 7.0", "my_lost_shift in 7.0"]
    run(rules)
    assert len(proved) == 4


X = tensor("x")
SEVERAL = [Rule(f"relu_of_{name.lower()}", op.Relu(op.Relu(getattr(op, name)(X))), op.Relu(getattr(op, name)(X)))
           for name in ("Exp", "Abs", "Neg", "Sin")]  # fmt: skip


@pytest.mark.slow
def test_many_rules_are_proved_in_parallel_and_come_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proving, "MIN_RULES_PER_WORKER", 2)
    monkeypatch.setattr(proving, "usable_cores", lambda: 2)
    seen: list[float] = []
    proofs = proving.prove_all(SEVERAL, progress=seen.append)
    assert [(proof.rule, proof.holds) for proof in proofs] == [(rule.name, True) for rule in SEVERAL]
    assert seen == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_the_rules_that_took_long_begin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Else a process might begin the longest one when all others are done."""
    monkeypatch.setattr(gate, "ledger_path", lambda: tmp_path / "proofs.json")
    new, *others = SEVERAL
    took = zip(others, (0.1, 3.0, 0.2), strict=True)
    ProofLedger(Proof(r.name, r.digest, Verdict.PROVED, ProofModel.EXACT, seconds=s) for r, s in took).save(
        gate.ledger_path()
    )
    assert proving._longest_first(SEVERAL) == [new, others[1], others[2], others[0]]


def test_proofs_are_made_here_or_on_a_cluster_that_is_there(rules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphopt.base.executors.SCHEDULER_TIMEOUT", 0.2)
    for options, said in (
        (["--workers", 2], "name one of them"),
        ([], "no Dask scheduler answers at tcp://127.0.0.1:1"),
    ):
        failed = run(rules, *options, "--dask", "tcp://127.0.0.1:1")
        assert failed.exit_code == 2 and said in failed.stderr


@pytest.mark.slow
def test_proofs_of_another_source_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verifier was edited between the start of the command and that of the processes that prove."""
    monkeypatch.setattr(proving, "MIN_RULES_PER_WORKER", 1)
    monkeypatch.setattr(proving, "usable_cores", lambda: 2)
    monkeypatch.setattr(gate, "source_digest", lambda: "0" * 64)
    with pytest.raises(GraphoptError, match="the source of the verifier has changed"):
        proving.prove_all(SEVERAL[:2])


# -- what is written ---------------------------------------------------------------------------------------------------


QUICK = ("eliminate_neg_of_neg", "eliminate_abs_of_relu")


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the page of the built-in rules, where the ledger is to be written; few rules, to be quick."""
    folder = tmp_path / "rules"
    folder.mkdir()
    shutil.copy(gate.ledger_path().with_name("README.md"), folder)
    (tmp_path / "README.md").write_text("The ledger holds 1 rules: 0 proved. And more.\n")
    monkeypatch.setattr(gate, "ledger_path", lambda: folder / "proofs.json")
    monkeypatch.setattr(gate, "shipped_ledger", gate.shipped_ledger.__wrapped__)
    few = [rule for rule in rule_library.load_rules() if rule.name in ("eliminate_identity", *QUICK)]
    monkeypatch.setattr(rule_library, "_installed_modules", lambda: (rule_library.RuleModule("a few", tuple(few)),))
    return folder


def test_write_makes_the_ledger_and_the_catalogue(copied: Path, rules: Path) -> None:
    names = [rule.name for rule in rule_library.load_rules((), trades=True)]
    assert run("--all", rules, "--write").exit_code == 3, "rules of one's own are proved, too"
    ledger = ProofLedger.load(copied / "proofs.json")
    assert sorted(proof.rule for proof in ledger) == sorted(names), "but have no place in the ledger"
    assert ledger.verifier == gate.source_digest()
    page = (copied / "README.md").read_text(encoding="utf-8")
    assert "3 rules: 3 proved" in page
    readme = (copied.parent / "README.md").read_text(encoding="utf-8")
    assert (
        readme
        == "The ledger holds 3 rules: 3 proved (2 exact, 1 reassociate, 1 of these for finite values). And more.\n"
    )
    assert re.search(rf"\n\| {names[0]} \| `.* -> .*` \| .*\. \| EXACT \| all \| \d+ \|\n", page)


def test_writing_again_changes_nothing(copied: Path) -> None:
    assert run("--all", "--write").exit_code == 0
    before = (copied / "proofs.json").read_bytes()
    assert run("--all", "--write", "--cached").exit_code == 0
    assert (copied / "proofs.json").read_bytes() == before


def test_a_time_within_a_factor_of_two_is_the_same_time(copied: Path) -> None:
    written = []
    for seconds in (0.1, 0.199, 0.051, 0.212, 1.0):
        proving.write_ledger([Proof("a", "0", Verdict.PROVED, ProofModel.EXACT, seconds=seconds)])
        (proof,) = ProofLedger.load(copied / "proofs.json")
        written.append(proof.seconds)
    assert written == [0.1, 0.1, 0.1, 0.21, 1.0]


def test_the_catalogue_says_what_the_rules_and_the_ledger_say() -> None:
    page = (ROOT / "rules" / "README.md").read_text(encoding="utf-8")
    current = catalogue.update_guide(page, ProofLedger.load(gate.ledger_path()))
    assert page == current, "`graphopt verify --all --write --cached` writes the list anew"


def test_the_readme_counts_what_the_ledger_holds() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    current = catalogue.update_rule_count(readme, ProofLedger.load(gate.ledger_path()))
    assert format_proof_counts(ProofLedger.load(gate.ledger_path())) in current
    assert readme == current, "`graphopt verify --all --write --cached` writes the number anew"
