"""Which rules may touch a model: those that are proved.

A proof comes from the ledger that ships with the rules, from the user's cache, or is made when a rule is first wanted.
The solver is loaded only then: the built-in rules need none.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from graphopt.base import ort
from graphopt.base.cache import Cache
from graphopt.base.errors import ProofError, UsageError
from graphopt.base.files import cache_folder
from graphopt.base.hardware import processor
from graphopt.base.records import MISFITS
from graphopt.base.types import COMMON, DType
from graphopt.ir import ops
from graphopt.language.coverage import Answer, Choice, Label, Tree, covers, told, tree_of, unknown
from graphopt.language.definition import Definition, definitions_of
from graphopt.language.proof import Ledger, Model, Proof, Verdict, check_tree
from graphopt.language.rule import Rule
from graphopt.language.term import App, applications
from graphopt.operators.classes import entry, minds_types
from graphopt.operators.operator import FLOATS
from graphopt.rewrite.sites import Site

log = logging.getLogger(__name__)

TIMEOUT = 10.0
"""Seconds of processor time for one rule: twice what any built-in rule needs, as processors differ."""

CORE = (
    *(
        "base.types",
        "base.integers",
        "base.lemmas",
        "base.notes",
        "base.ort",
        "base.places",
        "base.rebuilding",
        "base.session",
    ),
    *("base.symbolic", "base.tensors", "ir.ops", "ir.tensor"),
    *("language.coverage", "language.definition", "language.functions", "language.rule", "language.scalar"),
    *("language.schemas", "language.term", "language.wellformed"),
    *("operators.attention", "operators.bodies", "operators.broadcasting", "operators.classes"),
    *("operators.cost", "operators.elementwise", "operators.families", "operators.implied", "operators.movement"),
    *("operators.node", "operators.normalizations", "operators.opaque", "operators.operator", "operators.placing"),
    *("operators.proposals", "operators.quantization", "operators.reductions", "operators.semantics"),
    *("operators.undenoted", "operators.views", "operators.windows"),
)
"""The modules of the compiler that a proof depends on, beside all of the verifier's."""


@cache
def source_digest() -> str:
    """Identify the source that makes proofs: those of another are not believed."""
    from graphopt import verifier

    home = Path(__file__).parent.parent
    sources = [
        *(home / f"{name.replace('.', '/')}.py" for name in CORE),
        *sorted(Path(verifier.__path__[0]).glob("*.py")),
    ]
    digest = sha256()
    for path in sources:
        digest.update(path.name.encode() + b"\0" + path.read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()


def prover_digest() -> str:
    """Identify the source, and the versions of z3 and of onnx, whose schemas it reads: proofs are kept by it.

    Those that ship with the rules are believed with other versions, too: the meanings of operators end at `ops.OPSET`.
    """
    return sha256(f"{source_digest()} onnx {_version('onnx')} z3 {_version('z3-solver')}".encode()).hexdigest()


_version = cache(version)


# -- what is known -----------------------------------------------------------------------------------------------------


def ledger_path() -> Path:
    """Return the path of the ledger, which lies beside the built-in rules."""
    return Path(__file__).parent.parent / "rules" / "proofs.json"


@cache
def ledger() -> Ledger:
    """Return the proofs that ship with the built-in rules; none if another verifier made them."""
    try:
        found = Ledger.load(ledger_path())
    except ValueError as error:
        log.warning("%s; `graphopt verify --all --write` makes it anew", error)
        found = Ledger()
    if found.verifier == source_digest():
        return found
    log.warning(
        "%s is not of this verifier, so each rule is proved when it is first wanted;"
        " `graphopt verify --all --write` makes it anew",
        ledger_path(),
    )
    return Ledger()


def known(rule: Rule) -> Proof | None:
    """Return what the ledger or the cache holds on a rule: with more time one may have been proved since it shipped."""
    shipped = ledger().get(rule.digest)
    return shipped if shipped and shipped.holds else _recalled(rule) or shipped


def _recalled(rule: Rule) -> Proof | None:
    def proof(data: Any) -> Proof:
        found = Proof.from_json(data)
        if (found.rule, found.digest) != (rule.name, rule.digest) or found.verdict is Verdict.UNKNOWN:
            raise ValueError(f"it is no proof of {rule.name}")
        _check_questions(found.coverage, rule)
        return found

    return _read(_key(rule.digest), proof)


Read = TypeVar("Read")


def _read(key: str, make: Callable[[Any], Read]) -> Read | None:
    """Return what the user's cache holds, made of its JSON; None where there is nothing, or it is of another make."""
    text = _kept(cache_folder()).get([key]).get(key)
    try:
        return None if text is None else make(json.loads(text))
    except MISFITS as error:
        log.debug("an entry of the cache is not used: %s", error)
        return None


def _check_questions(tree: Tree, rule: Rule) -> None:
    """Raise ValueError where a proof's tree asks of a hole that its rule does not have."""
    for question, *_ in filter(None, tree):
        kind, _, name = question.partition(" ")
        bundle = rule.holes.get(name.rpartition(".")[0])
        if kind != "pack" and name not in rule.holes and (bundle is None or bundle.kind != "attributes"):
            raise ValueError(f"{rule.name} has no {name}")


def remember(proof: Proof) -> None:
    """Keep a proof, or a counterexample, in the user's cache.

    What could be neither proved nor refuted is tried again the next time: time or memory may have run out, or the
    prover may have failed.
    """
    if proof.verdict is not Verdict.UNKNOWN:
        _kept(cache_folder()).put({_key(proof.digest): json.dumps(proof.to_json())})


@cache
def _kept(folder: Path) -> Cache:
    """Return the proofs in a folder, opened once: what is wrong with the file is said once."""
    return Cache(folder / "proofs.sqlite")


def _key(digest: str) -> str:
    """Of the proof of a rule by this verifier, which asks the kernels of declared operators that there are."""
    return f"{prover_digest()} {digest} {ort.libraries_digest()}".rstrip()


def attempt(rule: Rule, timeout: float = TIMEOUT, *, refute: bool = True) -> Proof:
    """Prove a rule now, and look for a counterexample if that fails. A prover that fails has shown nothing."""
    source_digest()  # of the source as it is loaded, whatever is edited while it works
    from graphopt.verifier.prove import prove

    try:
        return prove(rule, timeout=timeout, refute=refute)
    except Exception as error:
        log.debug("the prover failed on rule '%s'", rule.name, exc_info=True)
        failure = f"the prover failed: {type(error).__name__}: {error}"
        return Proof(rule.name, rule.digest, Verdict.UNKNOWN, detail=failure)


# -- what is met beyond a proof ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tried:
    """An instance that a proof does not cover, met in a model and tried there."""

    tree: Tree
    why_not: str
    """What was not shown; nothing where all was."""


def attempt_at(rule: Rule, proof: Proof, answer: Answer) -> Tried:
    """Prove a rule at one instance, in the model in which it is proved at others."""
    known = told(proof.coverage) or "other attributes"
    if missing := unknown(proof.coverage, answer):
        return Tried([], f"it is proved for {known}, and {missing} is not known there")
    asked: list[Choice] = []

    def heard(question: str) -> Label:
        label = answer(question)
        asked.append(Choice(question, label))
        return label

    log.info("proving %s at an instance that was met", rule.name)
    failure = _failure_at(rule, proof, heard)
    met = ", ".join(map(str, asked))
    return Tried(tree_of([asked]), failure and f"it is proved for {known}, but not for {met}: {failure}")


def _failure_at(rule: Rule, proof: Proof, answer: Answer) -> str:
    """Return what is not shown at an instance, nothing where all is. A prover that fails has shown nothing."""
    source_digest()  # as in `attempt`
    from graphopt.verifier.prove import unproved_at

    assert proof.model is not None
    try:
        return unproved_at(rule, proof.model, answer, timeout=TIMEOUT)
    except Exception as error:
        log.debug("the prover failed on rule '%s'", rule.name, exc_info=True)
        return f"the prover failed: {type(error).__name__}: {error}"


def recalled_instances(rule: Rule, proof: Proof) -> list[Tried]:
    """Return what the user's cache holds on instances beyond the proof of a rule."""

    def instances(data: Any) -> list[Tried]:
        if not isinstance(data, list):
            raise ValueError("no list of instances")
        for instance in data:
            match instance:
                case [tree, ""]:
                    check_tree(tree)
                    _check_questions(tree, rule)
                case _:
                    raise ValueError(f"{instance!r:.40} is no instance")
        return [Tried(*instance) for instance in data]

    return _read(_key_beyond(proof), instances) or []


def remember_instances(proof: Proof, tried: Iterable[Tried]) -> None:
    """Keep what was shown at instances beyond a proof; the others are tried again the next time."""
    shown = [(instance.tree, instance.why_not) for instance in tried if not instance.why_not]
    if shown:
        _kept(cache_folder()).put({_key_beyond(proof): json.dumps(shown)})


def _key_beyond(proof: Proof) -> str:
    return f"{_key(proof.digest)} {proof.model} beyond"


# -- what kernels are seen to do ---------------------------------------------------------------------------------------


class Seen(NamedTuple):
    """What the kernel of a declared operator makes of drawn instances that is not declared; nothing if nothing."""

    contradiction: str
    spoilt: str
    """The same, where there are infinities and NaN."""


def seen(definition: Definition) -> Seen:
    """Ask the kernel of a declared operator, once for each version of ONNX Runtime and each processor.

    A proof that ships asked another; and without VNNI, sums of products of 8 bits saturate. Without ONNX Runtime there
    is none to ask.
    """
    try:
        runtime = ort.require_onnxruntime()
    except UsageError:
        return Seen("", "")
    all_said = [each.to_json() for each in (definition, *definitions_of(definition.meaning))]
    said = sha256(json.dumps(all_said, sort_keys=True).encode()).hexdigest()
    key = f"{_key(said)} onnxruntime {runtime.__version__} {sha256(processor().encode()).hexdigest()}"
    known = _read(key, _seen)
    if known is not None:
        return known
    found = _asked(definition)
    _kept(cache_folder()).put({key: json.dumps(found)})
    return found


def _seen(data: Any) -> Seen:
    match data:
        case [str(contradiction), str(spoilt)]:
            return Seen(contradiction, spoilt)
    raise ValueError(f"{data!r:.40} is nothing that was seen")


def _asked(definition: Definition) -> Seen:
    from graphopt.verifier.declared import contradicted, spoils_infinities

    found = contradicted([definition])
    return Seen(str(found), "") if found is not None else Seen("", spoils_infinities([definition]))


def objection(definitions: Sequence[Definition]) -> str:
    """Say what kernels have against definitions of operators; nothing if they agree. Proofs ask for those of their
    rules."""
    from graphopt.verifier.declared import contradicted, unasked

    found = contradicted(definitions)
    return unasked(definitions) if found is None else str(found)


def agreement(definition: Definition) -> str:
    """Say how a definition stands to the kernel that ONNX Runtime has of its operator."""
    from graphopt.verifier.declared import agreeing, contradicted

    if contradicted([definition]) is not None:
        return "ONNX Runtime's kernel computes something else"
    match agreeing(definition):
        case None:
            return "ONNX Runtime has no kernel of that name: it is believed"
        case 0:
            return "ONNX Runtime's kernel was not asked: no instance was found that runs"
        case count:
            return f"ONNX Runtime's kernel computes the same at {count} instances"


# -- kernels -----------------------------------------------------------------------------------------------------------


@cache
def departures(rule: Rule) -> frozenset[DType]:
    """Return the element types in which the bits depend on kernels that a rule makes, moves to other operands or drops.

    Of a family, ask a particular.
    """
    left, right = (set(map(_in_memory, chain(*map(applications, sides)))) for sides in (rule.left, rule.right))
    return frozenset().union(*(departs for departs, *_ in left ^ right))


def _in_memory(app: App) -> tuple[frozenset[DType], str, str, object]:
    """Return what an operator is computed on; one that minds the place of elements alone minds no view of them.

    An operator that is declared by a term has a kernel that rounds in a way of its own.
    """
    operator = entry(app.op, app.domain)
    if not operator.is_denoted:
        return FLOATS if ops.is_declared(app.op, app.domain) else frozenset(), app.op, app.domain, app.node
    if not operator.minds_place:
        return operator.departs, app.op, "", app.node
    operand = app.inputs[0]
    while isinstance(operand, App) and entry(operand.op, operand.domain).is_view:
        operand = operand.inputs[0]
    return operator.departs, app.op, "", (operand, app.attrs)


# -- the gate ----------------------------------------------------------------------------------------------------------


class Gate:
    """Says which rules may be applied in one run, and to what; knows afterwards what it was asked."""

    def __init__(
        self,
        *,
        exact: bool = False,
        unverified: bool = False,
        keep_nonfinite: bool = False,
        is_cpu: bool = True,
        progress: Callable[[str, float], None] | None = None,
    ) -> None:
        for strict, name in ((exact, "exact"), (keep_nonfinite, "keep_nonfinite")):
            if strict and unverified:
                raise UsageError(
                    f"{name} and unverified exclude each other: a rule without a proof may change anything"
                )
        self.exact, self.unverified, self.keep_nonfinite, self.is_cpu = exact, unverified, keep_nonfinite, is_cpu
        self.progress = progress or (lambda stage, done: None)
        self.refused: dict[str, Proof] = {}
        """What is known of the rules that would have been applied had they been proved, by name."""
        self.withheld: dict[str, str] = {}
        """Why rules that are proved for finite values alone were not applied somewhere, by name."""
        self._proofs: dict[str, Proof] = {}
        self._tried: dict[str, list[Tried]] = {}
        self._seen: dict[Definition, Seen] = {}

    def proof(self, rule: Rule) -> Proof:
        """Return what is known of a rule; where that is nothing, it is proved now, and kept for later runs."""
        found = self._proofs.get(rule.name)
        if found is None:
            rule = rule.family
            found = self._proofs[rule.name] = known(rule) or self._made(rule)
        return found

    def _made(self, rule: Rule) -> Proof:
        self.progress("prove", 0.0)
        log.info("proving %s", rule.name)
        proof = attempt(rule)
        remember(proof)
        return proof

    def demand(self, rules: Iterable[Rule]) -> None:
        """Prove rules that were given for this run.

        Raises:
            ProofError: some rule is not proved, and no unverified ones are admitted; says why not.
        """
        given = list(rules)
        failed = []
        for done, rule in enumerate(given):
            self.progress("prove", done / len(given))
            proof = self.proof(rule)
            if not proof.holds:
                failed.append(proof)
        if failed and not self.unverified:
            what = "a rule that is not proved is not applied (--unverified applies it all the same)"
            raise ProofError("\n".join([what, *(proof.complaint for proof in failed)]))

    def admits(self, rule: Rule) -> bool:
        """Return whether there may be a place where the rule is allowed."""
        proof = self.proof(rule)
        if not proof.holds:
            return self.unverified
        if self.exact and proof.model is not Model.EXACT:
            return False
        return not (self.keep_nonfinite and proof.is_finite)

    def allows(self, site: Site) -> bool:
        """Return whether a rule may be applied at a place.

        Its proof has to license the element types and infinities there, and the ranks, lists and attributes: those that
        it was not made for are proved now.
        """
        rule, proof = site.rule, self.proof(site.rule)
        if not proof.holds:
            if not self.unverified:
                self.refused[rule.name] = proof
            return self.unverified
        if minds_types(rule) and not site.computed | site.read <= frozenset(COMMON):
            return False
        if not all(map(proof.licenses, site.computed)) or (self.exact and proof.model is not Model.EXACT):
            return False
        if not self._keeps_bits(site, proof) or not self._are_finite(site, proof):
            return False
        return self._is_covered(site, proof) and self._is_declared(site)

    def _keeps_bits(self, site: Site, proof: Proof) -> bool:
        """Return whether nothing is rounded in a way of its own: floats may be, unless it is `exact`."""
        if self.exact and site.reordered and any(dtype.is_float for dtype in site.computed):
            return False
        if site.divides and proof.model is Model.EXACT:  # such a proof does not look at what is rounded before a jump
            return False
        minded = [dtype for dtype in site.computed if self.exact or not dtype.is_float]
        return departures(site.rule).isdisjoint(minded)

    def _are_finite(self, site: Site, proof: Proof) -> bool:
        """Return whether the values are as finite as the proof takes them to be; notes why not."""
        why = ""
        if proof.model is Model.EXTENDED and site.may_be_infinite(True):
            return False
        if proof.is_finite and self.keep_nonfinite:
            why = "it is proved for finite values only, and others are to be kept"
        elif (proof.model is Model.REAL and site.may_be_infinite(False)) or site.may_be_infinite_where_asked():
            why = "it is proved for finite values only, and one there may be infinite"
        elif site.may_be_the_least_where_masked():
            why = "the least number in a mask is -inf to the kernel, and there may be one"
        elif proof.model is Model.EXTENDED and site.rule.definitions and site.may_be_infinite(False):
            why = self._spoilt(site.rule)
        return self._unless(why, site)

    def _spoilt(self, rule: Rule) -> str:
        """Return why infinities may become something else than is proved, nothing if the kernels here keep them."""
        if not self.is_cpu:  # whose kernels alone are asked
            return "a value there may be infinite, and of the provider's kernels it is not known what they make of that"
        return next((why for each in rule.definitions if (why := self._seen_of(each).spoilt)), "")

    def _is_covered(self, site: Site, proof: Proof) -> bool:
        """Return whether the ranks, lists and attributes are some that it is proved for, now if need be; notes why
        not."""
        return covers(proof.coverage, site.answer) or self._unless(self._why_not_there(site, proof), site)

    def _is_declared(self, site: Site) -> bool:
        """Return whether the kernels of declared operators compute what is declared; notes why not."""
        why_not = (why for each in site.rule.definitions if (why := self._seen_of(each).contradiction))
        return self._unless(next(why_not, ""), site)

    def _seen_of(self, definition: Definition) -> Seen:
        if definition not in self._seen:
            self._seen[definition] = seen(definition)
        return self._seen[definition]

    def _why_not_there(self, site: Site, proof: Proof) -> str:
        """Why a rule is not known to hold at a place beyond what its proof covers, nothing where it holds."""
        tried = self._tried.setdefault(site.rule.name, recalled_instances(site.rule.family, proof))
        for instance in tried:
            if covers(instance.tree, site.answer):
                return instance.why_not
        made = attempt_at(site.rule.family, proof, site.answer)
        tried.append(made)
        remember_instances(proof, tried)
        return made.why_not

    def _unless(self, why: str, site: Site) -> bool:
        """Return False where there is a reason against a place, which is noted."""
        if why:
            self.withheld.setdefault(site.rule.name, why)
        return not why

    def claim(self, name: str) -> str | None:
        """Return what the report says of a rule that was asked for."""
        proof = self._proofs.get(name)
        return None if proof is None else proof.claim
