"""The gate that lets rules touch a model: those that are proved.

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
from graphopt.base.dtype import COMPUTE_DTYPES, DType
from graphopt.base.errors import ProofError, UsageError
from graphopt.base.files import cache_folder
from graphopt.base.hardware import processor
from graphopt.base.records import DECODE_ERRORS
from graphopt.ir import schemas
from graphopt.language.coverage import (
    AnswerQuestion,
    DecisionTree,
    Label,
    ProofChoice,
    build_decision_tree,
    covers,
    describe_tree,
    first_unknown,
)
from graphopt.language.definition import Definition, definitions_of
from graphopt.language.proof import Proof, ProofLedger, ProofModel, Verdict, check_decision_tree
from graphopt.language.rule import Rule
from graphopt.language.terms import App, operator_applications
from graphopt.operators.operator import FLOAT_DTYPES
from graphopt.operators.operator_classes import depends_on_dtype, lookup_operator
from graphopt.rewrite.sites import Site

log = logging.getLogger(__name__)

PROOF_TIMEOUT = 10.0
"""Seconds of processor time for one rule: twice what any built-in rule needs, as processors differ."""

TRUSTED_MODULES = (
    *("base.dtype", "base.ort", "base.session"),
    *("ir.types", "ir.schemas", "ir.tensor", "ir.chunks"),
    *("expr.broadcasting", "expr.integers", "expr.lemmas", "expr.partial_calls", "expr.index_lists"),
    *("expr.substitution", "expr.expressions", "expr.symbolic_tensors"),
    *("language.coverage", "language.definition", "language.function_terms", "language.rule"),
    *("language.scalar_evaluation", "language.scalar_functions", "language.type_inference"),
    *("language.terms", "language.rule_checks"),
    *("operators.attention_ops", "operators.schema_bodies", "operators.shape_constraints"),
    *("operators.operator_classes", "operators.operator_cost", "operators.elementwise_ops"),
    *("operators.rule_families", "operators.implied_defaults", "operators.movement_ops"),
    *("operators.op_context", "operators.normalization_ops", "operators.opaque_ops", "operators.operator"),
    *("operators.indexing_ops", "operators.attribute_proposals", "operators.quantization_ops"),
    *("operators.reduction_ops", "operators.semantics", "operators.undenoted_ops", "operators.view_ops"),
    *("operators.window_ops",),
)
"""The modules of the compiler that a proof depends on, beside all of the verifier's."""


@cache
def source_digest() -> str:
    """Identify the source that makes proofs: those of another are not believed."""
    from graphopt import verifier

    home = Path(__file__).parent.parent
    sources = [
        *(home / f"{name.replace('.', '/')}.py" for name in TRUSTED_MODULES),
        *sorted(Path(verifier.__path__[0]).glob("*.py")),
    ]
    digest = sha256()
    for path in sources:
        digest.update(path.name.encode() + b"\0" + path.read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()


def prover_digest() -> str:
    """Identify the source, and the versions of z3 and of onnx, whose schemas it reads: proofs are kept by it.

    Those that ship with the rules are believed with other versions, too: the meanings of operators end at
    `schemas.RULE_OPSET`.
    """
    return sha256(f"{source_digest()} onnx {_version('onnx')} z3 {_version('z3-solver')}".encode()).hexdigest()


_version = cache(version)


# -- what is known -----------------------------------------------------------------------------------------------------


def ledger_path() -> Path:
    """Return the path of the ledger, which lies beside the built-in rules."""
    return Path(__file__).parent.parent / "rules" / "proofs.json"


@cache
def shipped_ledger() -> ProofLedger:
    """Return the proofs that ship with the built-in rules; none if another verifier made them."""
    try:
        found = ProofLedger.load(ledger_path())
    except ValueError as error:
        log.warning("%s; `graphopt verify --all --write` makes it anew", error)
        found = ProofLedger()
    if found.verifier == source_digest():
        return found
    log.warning(
        "%s is not of this verifier, so each rule is proved when it is first wanted;"
        " `graphopt verify --all --write` makes it anew",
        ledger_path(),
    )
    return ProofLedger()


def known_proof(rule: Rule) -> Proof | None:
    """Return the proof in the ledger, or one in the cache: given more time, a rule may have been proved since it
    shipped."""
    shipped = shipped_ledger().get(rule.digest)
    return shipped if shipped and shipped.holds else _cached_proof(rule) or shipped


def _cached_proof(rule: Rule) -> Proof | None:
    def proof(data: Any) -> Proof:
        found = Proof.from_json(data)
        if (found.rule, found.digest) != (rule.name, rule.digest) or found.verdict is Verdict.UNKNOWN:
            raise ValueError(f"it is no proof of {rule.name}")
        _check_tree_questions(found.coverage, rule)
        return found

    return _read_cached(_proof_key(rule.digest), proof)


T = TypeVar("T")


def _read_cached(key: str, make: Callable[[Any], T]) -> T | None:
    """Return an entry of the user's cache, decoded; None if there is none, or it has another format."""
    text = _proof_cache(cache_folder()).get([key]).get(key)
    try:
        return None if text is None else make(json.loads(text))
    except DECODE_ERRORS as error:
        log.debug("an entry of the cache is not used: %s", error)
        return None


def _check_tree_questions(tree: DecisionTree, rule: Rule) -> None:
    """Raise ValueError if a proof's tree asks about a hole that its rule does not have."""
    for question, *_ in filter(None, tree):
        kind, _, name = question.partition(" ")
        bundle = rule.holes.get(name.rpartition(".")[0])
        if kind != "pack" and name not in rule.holes and (bundle is None or bundle.kind != "attributes"):
            raise ValueError(f"{rule.name} has no {name}")


def cache_proof(proof: Proof) -> None:
    """Keep a proof, or a counterexample, in the user's cache.

    What could be neither proved nor refuted is tried again the next time: time or memory may have run out, or the
    prover may have failed.
    """
    if proof.verdict is not Verdict.UNKNOWN:
        _proof_cache(cache_folder()).put({_proof_key(proof.digest): json.dumps(proof.to_json())})


@cache
def _proof_cache(folder: Path) -> Cache:
    """Return the proofs in a folder, opened once, so that a broken file is reported once."""
    return Cache(folder / "proofs.sqlite")


def _proof_key(digest: str) -> str:
    """Return the key of a rule's proof by this verifier, which asks the kernels of the operators declared now."""
    return f"{prover_digest()} {digest} {ort.custom_ops_digest()}".rstrip()


def prove_now(rule: Rule, timeout: float = PROOF_TIMEOUT, *, refute: bool = True) -> Proof:
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
class InstanceProof:
    """A proof attempt at an instance met in a model that a rule's own proof does not cover."""

    tree: DecisionTree
    failure: str
    """Obligation that was not shown; empty if all were."""


def prove_instance(rule: Rule, proof: Proof, answer: AnswerQuestion) -> InstanceProof:
    """Prove a rule at one instance, in the model in which it is proved at others."""
    known = describe_tree(proof.coverage) or "other attributes"
    if missing := first_unknown(proof.coverage, answer):
        return InstanceProof([], f"it is proved for {known}, and {missing} is not known there")
    asked: list[ProofChoice] = []

    def heard(question: str) -> Label:
        label = answer(question)
        asked.append(ProofChoice(question, label))
        return label

    log.info("proving %s at an instance that was met", rule.name)
    failure = _instance_failure(rule, proof, heard)
    met = ", ".join(map(str, asked))
    return InstanceProof(
        build_decision_tree([asked]), failure and f"it is proved for {known}, but not for {met}: {failure}"
    )


def _instance_failure(rule: Rule, proof: Proof, answer: AnswerQuestion) -> str:
    """Return the obligation that is not shown at an instance, empty if all are. A prover that fails has shown
    nothing."""
    source_digest()  # as in `prove_now`
    from graphopt.verifier.prove import find_unproved_at

    assert proof.model is not None
    try:
        return find_unproved_at(rule, proof.model, answer, timeout=PROOF_TIMEOUT)
    except Exception as error:
        log.debug("the prover failed on rule '%s'", rule.name, exc_info=True)
        return f"the prover failed: {type(error).__name__}: {error}"


def cached_instance_proofs(rule: Rule, proof: Proof) -> list[InstanceProof]:
    """Return the instances in the user's cache that were proved beyond the proof of a rule."""

    def instances(data: Any) -> list[InstanceProof]:
        if not isinstance(data, list):
            raise ValueError("no list of instances")
        for instance in data:
            match instance:
                case [tree, ""]:
                    check_decision_tree(tree)
                    _check_tree_questions(tree, rule)
                case _:
                    raise ValueError(f"{instance!r:.40} is no instance")
        return [InstanceProof(*instance) for instance in data]

    return _read_cached(_instances_key(proof), instances) or []


def cache_instance_proofs(proof: Proof, tried: Iterable[InstanceProof]) -> None:
    """Keep the instances that were proved beyond a proof; the others are tried again the next time."""
    shown = [(instance.tree, instance.failure) for instance in tried if not instance.failure]
    if shown:
        _proof_cache(cache_folder()).put({_instances_key(proof): json.dumps(shown)})


def _instances_key(proof: Proof) -> str:
    return f"{_proof_key(proof.digest)} {proof.model} beyond"


# -- what kernels are seen to do ---------------------------------------------------------------------------------------


class KernelCheck(NamedTuple):
    """Contradictions between a declared operator and its kernel, on drawn instances; empty if there are none."""

    contradiction: str
    nonfinite_contradiction: str
    """The same, where there are infinities and NaN."""


def check_kernel(definition: Definition) -> KernelCheck:
    """Ask the kernel of a declared operator, once for each version of ONNX Runtime and each processor.

    A proof that ships asked another; and without VNNI, sums of products of 8 bits saturate. Without ONNX Runtime there
    is none to ask.
    """
    try:
        runtime = ort.require_onnxruntime()
    except UsageError:
        return KernelCheck("", "")
    all_said = [each.to_json() for each in (definition, *definitions_of(definition.body))]
    said = sha256(json.dumps(all_said, sort_keys=True).encode()).hexdigest()
    key = f"{_proof_key(said)} onnxruntime {runtime.__version__} {sha256(processor().encode()).hexdigest()}"

    def kernel_check(data: Any) -> KernelCheck:
        match data:
            case [str(contradiction), str(nonfinite_contradiction)]:
                return KernelCheck(contradiction, nonfinite_contradiction)
        raise ValueError(f"{data!r:.40} is no check of a kernel")

    known = _read_cached(key, kernel_check)
    if known is not None:
        return known
    found = _run_kernel_check(definition)
    _proof_cache(cache_folder()).put({key: json.dumps(found)})
    return found


def _run_kernel_check(definition: Definition) -> KernelCheck:
    from graphopt.verifier.kernel_conformance import explain_nonfinite_deviation, find_contradiction

    found = find_contradiction([definition])
    return (
        KernelCheck(str(found), "") if found is not None else KernelCheck("", explain_nonfinite_deviation([definition]))
    )


def kernel_contradiction(definitions: Sequence[Definition]) -> str:
    """Return how kernels contradict definitions of operators; empty if they agree. Proofs ask for those of their
    rules."""
    from graphopt.verifier.kernel_conformance import describe_unrun_kernels, find_contradiction

    found = find_contradiction(definitions)
    return describe_unrun_kernels(definitions) if found is None else str(found)


def describe_kernel_agreement(definition: Definition) -> str:
    """Say how a definition compares with the kernel that ONNX Runtime has for its operator."""
    from graphopt.verifier.kernel_conformance import count_agreeing_instances, find_contradiction

    if find_contradiction([definition]) is not None:
        return "ONNX Runtime's kernel computes something else"
    match count_agreeing_instances(definition):
        case None:
            return "ONNX Runtime has no kernel of that name: it is believed"
        case 0:
            return "ONNX Runtime's kernel was not asked: no instance was found that runs"
        case count:
            return f"ONNX Runtime's kernel computes the same at {count} instances"


# -- kernels -----------------------------------------------------------------------------------------------------------


@cache
def deviating_dtypes(rule: Rule) -> frozenset[DType]:
    """Return the element types in which the bits depend on kernels that a rule makes, moves to other operands or drops.

    Of a family, ask about one of its specializations.
    """
    left, right = (
        set(map(_deviating_operands, chain(*map(operator_applications, sides)))) for sides in (rule.left, rule.right)
    )
    return frozenset().union(*(departs for departs, *_ in left ^ right))


def _deviating_operands(app: App) -> tuple[frozenset[DType], str, str, object]:
    """Return what an operator is computed on; views of an operand count as it, unless the place of elements matters.

    An operator that is declared by a term has a kernel that rounds in a way of its own.
    """
    operator = lookup_operator(app.op, app.domain)
    if not operator.is_denoted:
        return (
            FLOAT_DTYPES if schemas.is_defined_operator(app.op, app.domain) else frozenset(),
            app.op,
            app.domain,
            app.node,
        )
    if not operator.is_position_sensitive:
        return operator.deviating_dtypes, app.op, "", app.node
    operand = app.inputs[0]
    while isinstance(operand, App) and lookup_operator(operand.op, operand.domain).is_view:
        operand = operand.inputs[0]
    return operator.deviating_dtypes, app.op, "", (operand, app.attrs)


# -- the gate ----------------------------------------------------------------------------------------------------------


class Gate:
    """Decides which rules may be applied in one run, and where; remembers which it withheld."""

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
        self.unproved: dict[str, Proof] = {}
        """Proofs, or failures, of rules that would have been applied had they been proved, by name."""
        self.withheld: dict[str, str] = {}
        """Reasons why rules that are proved for finite values alone were not applied somewhere, by name."""
        self._proofs: dict[str, Proof] = {}
        self._instance_proofs: dict[str, list[InstanceProof]] = {}
        self._kernel_checks: dict[Definition, KernelCheck] = {}

    def proof_of(self, rule: Rule) -> Proof:
        """Return what is known of a rule; where that is nothing, it is proved now, and kept for later runs."""
        found = self._proofs.get(rule.name)
        if found is None:
            rule = rule.generalized
            found = self._proofs[rule.name] = known_proof(rule) or self._prove(rule)
        return found

    def _prove(self, rule: Rule) -> Proof:
        self.progress("prove", 0.0)
        log.info("proving %s", rule.name)
        proof = prove_now(rule)
        cache_proof(proof)
        return proof

    def require_proved(self, rules: Iterable[Rule]) -> None:
        """Prove rules that were given for this run.

        Raises:
            ProofError: some rule is not proved, and no unverified ones are admitted; says why not.
        """
        given = list(rules)
        failed = []
        for done, rule in enumerate(given):
            self.progress("prove", done / len(given))
            proof = self.proof_of(rule)
            if not proof.holds:
                failed.append(proof)
        if failed and not self.unverified:
            what = "a rule that is not proved is not applied (--unverified applies it all the same)"
            raise ProofError("\n".join([what, *(proof.failure_text for proof in failed)]))

    def may_allow(self, rule: Rule) -> bool:
        """Return whether there may be a place where the rule is allowed."""
        proof = self.proof_of(rule)
        if not proof.holds:
            return self.unverified
        if self.exact and proof.model is not ProofModel.EXACT:
            return False
        return not (self.keep_nonfinite and proof.assumes_finite)

    def allows(self, site: Site) -> bool:
        """Return whether a rule may be applied at a place; notes why not, where users would not expect it.

        Its proof has to license the element types and infinities there, and the ranks, lists and attributes: those that
        it was not made for are proved now.
        """
        rule, proof = site.rule, self.proof_of(site.rule)
        if not proof.holds:
            if not self.unverified:
                self.unproved[rule.name] = proof
            return self.unverified
        if self._unlicensed_reason(site, proof):
            return False
        reason = self._withheld_reason(site, proof)
        if reason:
            self.withheld.setdefault(rule.name, reason)
        return not reason

    def objection(self, site: Site) -> str:
        """Return why `allows` says no at a place, for a person who asks; empty where it says yes. Notes nothing."""
        proof = self.proof_of(site.rule)
        if not proof.holds:
            return "" if self.unverified else f"it is {proof.claim_text}; `graphopt verify {proof.rule}` says why"
        return self._unlicensed_reason(site, proof) or self._withheld_reason(site, proof)

    def _unlicensed_reason(self, site: Site, proof: Proof) -> str:
        """Return why a proof does not speak for the element types, or the bits, of a place."""
        types = sorted(site.computed_dtypes | site.read_dtypes)
        if depends_on_dtype(site.rule) and (others := [dtype for dtype in types if dtype not in COMPUTE_DTYPES]):
            return f"{_join_dtypes(others)}: a rule on element types is proved for those that models compute in"
        if others := [dtype for dtype in site.computed_dtypes if not proof.licenses(dtype)]:
            return f"{_join_dtypes(others)}: it is proved over the real numbers, which speaks for floats only"
        if self.exact and proof.model is not ProofModel.EXACT:
            return f"--exact keeps all bits, and it is {proof.claim_text}"
        if proof.model is ProofModel.EXTENDED and site.may_be_infinite(True):
            return "a constant there may be infinite, and it is proved for finite ones"
        return self._changed_bits_reason(site, proof)

    def _changed_bits_reason(self, site: Site, proof: Proof) -> str:
        """Return why a rule may change bits where it has to keep them: those of floats only in `exact`, those of others
        always."""
        if self.exact and site.is_reordered and any(dtype.is_float for dtype in site.computed_dtypes):
            return "--exact keeps all bits, and operands stand in another order there"
        if site.uses_reciprocal and proof.model is ProofModel.EXACT:  # which does not see rounding before a jump
            return "it is proved for a product, and the division there rounds otherwise"
        minded = [dtype for dtype in site.computed_dtypes if self.exact or not dtype.is_float]
        if deviating := deviating_dtypes(site.rule).intersection(minded):
            return f"{_join_dtypes(deviating)}: ONNX Runtime's kernels for the two sides may give other bits"
        return ""

    def _withheld_reason(self, site: Site, proof: Proof) -> str:
        """Return why a rule is withheld from values that are not as its proof takes them to be: as finite, in tensors
        of these ranks, with these attributes."""
        contradictions = (self._kernel_check_of(each).contradiction for each in site.rule.definitions)
        return (
            self._infinite_reason(site, proof)
            or self._instance_objection(site, proof)
            or next(filter(None, contradictions), "")
        )

    def _infinite_reason(self, site: Site, proof: Proof) -> str:
        """Return why values may not be as finite as the proof takes them to be."""
        if proof.assumes_finite and self.keep_nonfinite:
            return "it is proved for finite values only, and others are to be kept"
        if (proof.model is ProofModel.REAL and site.may_be_infinite(False)) or site.finiteness_may_fail():
            return "it is proved for finite values only, and one there may be infinite"
        if site.mask_may_be_lowest():
            return "the least number in a mask is -inf to the kernel, and there may be one"
        if proof.model is ProofModel.EXTENDED and site.rule.definitions and site.may_be_infinite(False):
            return self._nonfinite_contradiction(site.rule)
        return ""

    def _nonfinite_contradiction(self, rule: Rule) -> str:
        """Return why infinities may not become what is proved, empty if the kernels here keep them."""
        if not self.is_cpu:  # whose kernels alone are asked
            return "a value there may be infinite, and of the provider's kernels it is not known what they make of that"
        return next(
            (why for each in rule.definitions if (why := self._kernel_check_of(each).nonfinite_contradiction)), ""
        )

    def _kernel_check_of(self, definition: Definition) -> KernelCheck:
        if definition not in self._kernel_checks:
            self._kernel_checks[definition] = check_kernel(definition)
        return self._kernel_checks[definition]

    def _instance_objection(self, site: Site, proof: Proof) -> str:
        """Return why a rule is not known to hold for the ranks, lists and attributes of a place, nothing where it does;
        those that its proof does not cover are proved now."""
        if covers(proof.coverage, site.answer):
            return ""
        tried = self._instance_proofs.setdefault(site.rule.name, cached_instance_proofs(site.rule.generalized, proof))
        for instance in tried:
            if covers(instance.tree, site.answer):
                return instance.failure
        made = prove_instance(site.rule.generalized, proof, site.answer)
        tried.append(made)
        cache_instance_proofs(proof, tried)
        return made.failure

    def describe_proof(self, name: str) -> str | None:
        """Return the claim of a rule's proof for the report, None for a rule that was not asked for."""
        proof = self._proofs.get(name)
        return None if proof is None else proof.claim_text


def _join_dtypes(dtypes: Iterable[DType]) -> str:
    return ", ".join(dtype.name.lower() for dtype in sorted(dtypes))
