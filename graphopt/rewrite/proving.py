"""Proofs of many rules at once, in parallel processes, and the ledger of what came of them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import inf

from graphopt.base.errors import GraphoptError
from graphopt.base.executors import Executor, make_executor
from graphopt.base.hardware import usable_cores
from graphopt.base.limits import GC_THRESHOLD
from graphopt.language.proof import Proof, ProofLedger
from graphopt.language.rule import Rule
from graphopt.rewrite import gate

MIN_RULES_PER_WORKER = 4
"""Rules that are proved in the time in which a process loads the solver."""


def prove_all(
    rules: Sequence[Rule],
    *,
    cached: bool = False,
    timeout: float = gate.PROOF_TIMEOUT,
    workers: int | None = None,
    dask: str | None = None,
    progress: Callable[[float], None] | None = None,
) -> list[Proof]:
    """Return the proofs of some rules, in their order. What is proved is kept in the user's cache.

    Where `cached`, proofs that the ledger or the cache holds are taken from there. They are made on the Dask cluster
    at an address, or in so many `workers`: by default a few in this process, many in one for each processor.
    """
    tell = progress or (lambda done: None)
    found = {rule.digest: proof for rule in rules if cached and (proof := gate.known_proof(rule))}
    missing = [rule for rule in rules if rule.digest not in found]
    count = workers or (1 if dask else max(1, min(usable_cores(), len(missing) // MIN_RULES_PER_WORKER)))
    tell(0.0)
    with make_executor(count, dask, _initialize_prover) as runs:
        for proof in _prove_in(missing, timeout, runs):
            gate.cache_proof(proof)
            found[proof.digest] = proof
            tell(len(found) / len(rules))
    return [found[rule.digest] for rule in rules]


def _prove_in(rules: Sequence[Rule], timeout: float, runs: Executor) -> Iterator[Proof]:
    """Yield proofs as they are made."""
    source = gate.source_digest()
    for _, (proof, made_by) in runs.imap_unordered(partial(_prove_with_source, timeout=timeout), _longest_first(rules)):
        if made_by != source:
            raise GraphoptError("the source of the verifier has changed meanwhile, or is another there: start again")
        yield proof


def _prove_with_source(rule: Rule, timeout: float) -> tuple[Proof, str]:
    """Return a proof, and the digest of the source that made it."""
    return gate.prove_now(rule, timeout), gate.source_digest()


def _initialize_prover() -> None:
    """Set a process up for proofs: objects that outlive a rule are no garbage."""
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLD)


def write_ledger(proofs: Iterable[Proof]) -> ProofLedger:
    """Write proofs to the ledger that ships with the rules, in the place of all that it has."""
    earlier = _previous_proofs()
    made = ProofLedger((_with_stable_seconds(proof, earlier.get(proof.rule)) for proof in proofs), gate.source_digest())
    made.save(gate.ledger_path())
    return made


def _longest_first(rules: Sequence[Rule]) -> list[Rule]:
    """Return the rules by the time of their last proof, new ones before all others: no process ends with a long one."""
    took = {name: proof.seconds for name, proof in _previous_proofs().items()}
    return sorted(rules, key=lambda rule: took.get(rule.name, inf), reverse=True)


def _previous_proofs() -> dict[str, Proof]:
    """Return the proofs of the ledger by rule, valid or not; none if it cannot be read, as it is written anew."""
    try:
        return {proof.rule: proof for proof in ProofLedger.load(gate.ledger_path())}
    except ValueError:
        return {}


def _with_stable_seconds(proof: Proof, earlier: Proof | None) -> Proof:
    """Return a proof with the time that is written down for it, if it took the same within a factor of two: noise is no
    change."""
    if earlier is None or not earlier.seconds / 2 <= proof.seconds <= earlier.seconds * 2:
        return replace(proof, seconds=round(proof.seconds, 2))
    return replace(proof, seconds=earlier.seconds)
