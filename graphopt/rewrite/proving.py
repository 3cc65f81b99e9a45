"""Proves many rules at once, in parallel processes, and writes down what came of it."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from math import inf

from graphopt.base.errors import GraphoptError
from graphopt.language.proof import Ledger, Proof
from graphopt.language.rule import Rule
from graphopt.rewrite import gate

RARELY = (100_000, 50, 50)
"""How often garbage is looked for: a proof makes little of it, and to look for it took almost a tenth of the time."""
FEW = 4
"""Rules that are proved in the time in which a process loads the solver."""


def prove_all(
    rules: Sequence[Rule],
    *,
    cached: bool = False,
    timeout: float = gate.TIMEOUT,
    progress: Callable[[float], None] | None = None,
) -> list[Proof]:
    """The proofs of some rules, in their order. What is proved is kept in the user's cache.

    Where `cached`, proofs that the ledger or the cache holds are taken from there.
    """
    tell = progress or (lambda done: None)
    found = {rule.digest: proof for rule in rules if cached and (proof := gate.known(rule))}
    missing = [rule for rule in rules if rule.digest not in found]
    tell(0.0)
    for proof in _proved(missing, timeout):
        gate.remember(proof)
        found[proof.digest] = proof
        tell(len(found) / len(rules))
    return [found[rule.digest] for rule in rules]


def _proved(rules: Sequence[Rule], timeout: float) -> Iterator[Proof]:
    """Proofs as they are made: a few rules in this process, many in as many processes as there are processors."""
    workers = min(_processors(), len(rules) // FEW)
    if workers <= 1:
        yield from (gate.attempt(rule, timeout) for rule in rules)
        return
    source = gate.source_digest()
    fresh = multiprocessing.get_context("spawn")  # a fork would copy the solver's state and our threads' locks
    with ProcessPoolExecutor(workers, fresh, _start) as pool:
        try:
            for future in as_completed([pool.submit(_attempt, rule, timeout) for rule in _longest_first(rules)]):
                proof, made_by = future.result()
                if made_by != source:
                    raise GraphoptError("the source of the verifier has changed meanwhile: start again")
                yield proof
        except BrokenProcessPool as error:
            raise GraphoptError("a process that proves rules has died; there may not be enough memory") from error
        except BaseException:  # also Ctrl-C: do not wait for what is being proved
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def _attempt(rule: Rule, timeout: float) -> tuple[Proof, str]:
    """A proof, and the source that made it."""
    return gate.attempt(rule, timeout), gate.source_digest()


def _start() -> None:
    """Make a process that proves: Ctrl-C is for the one that started it, and what lives for a rule is not garbage."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    gc.set_threshold(*RARELY)


def _processors() -> int:
    """How many of them this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def write_ledger(proofs: Iterable[Proof]) -> Ledger:
    """Put proofs into the ledger that ships with the rules, in the place of all that is there."""
    earlier = _earlier()
    made = Ledger((_steady(proof, earlier.get(proof.rule)) for proof in proofs), gate.source_digest())
    made.save(gate.ledger_path())
    return made


def _longest_first(rules: Sequence[Rule]) -> list[Rule]:
    """Rules by the time of their last proof, new ones before all others: no process ends with a long one."""
    took = {name: proof.seconds for name, proof in _earlier().items()}
    return sorted(rules, key=lambda rule: took.get(rule.name, inf), reverse=True)


def _earlier() -> dict[str, Proof]:
    """The proofs of the ledger by rule, valid or not; none where it cannot be read, for it is written anew."""
    try:
        return {proof.rule: proof for proof in Ledger.load(gate.ledger_path())}
    except ValueError:
        return {}


def _steady(proof: Proof, earlier: Proof | None) -> Proof:
    """A time within a factor of two of the one written down is the same: a machine's mood is no change."""
    if earlier is None or not earlier.seconds / 2 <= proof.seconds <= earlier.seconds * 2:
        return replace(proof, seconds=round(proof.seconds, 2))
    return replace(proof, seconds=earlier.seconds)
