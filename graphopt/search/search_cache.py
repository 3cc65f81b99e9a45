"""Cache of searches: the next run of the same search takes its result from here.

A search that ran out of time is not repeated either, though it would find more: its measurements are known by then. A
model that differs in its weights alone has the result of the first; where time may depend on these, what was chosen is
tried before anything is searched.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

from graphopt.base.cache import Cache
from graphopt.base.records import to_json
from graphopt.ir.graph import Graph
from graphopt.language.rule import Rule
from graphopt.rewrite.regions import graph_digest
from graphopt.runtime.cost_model import decode_cached
from graphopt.runtime.measure import TimingVerdict
from graphopt.search.explore import Exploration
from graphopt.search.moves import Solution
from graphopt.search.policy import SearchPolicy
from graphopt.search.search_report import SearchTiming
from graphopt.search.stopping import StopReason

log = logging.getLogger(__name__)


def load_or_search(
    cache: Cache,
    key: str,
    rules: Sequence[Rule],
    graph: Graph,
    search: Callable[[], Exploration],
    policy: SearchPolicy,
) -> Exploration:
    """Return the result of a search in a graph with these rules, from the cache if it has one under this key.

    The result of a search on a busy machine, or of an interrupted one, is not kept.
    """
    found = parse_exploration(cache.get([key]).get(key), rules, graph)
    if found is None:
        start, used = time.monotonic(), time.process_time()
        found = search()
        is_starved = time.process_time() - used < policy.starved_share * (time.monotonic() - start)
        is_cut = found.stop is StopReason.INTERRUPTED or (found.stop is StopReason.TIME and is_starved)
        if found.is_steady and not is_cut:
            cache.put({key: to_json(found)})
    return found


@dataclass(frozen=True, slots=True)
class Choice:
    """Choice made for a model, to be tried first for another one of the same structure."""

    model: str
    """Digest of the model, with its weights."""
    seconds: float
    """Seconds that the search had."""
    sweeps: Mapping[str, tuple[str, ...]]
    """The sweeps that were taken, by name and in their order, each with the digests of the places that it left."""
    graph: str
    """Key of the graph in which the finds were made: that of the simplified model with the sweeps."""
    solutions: tuple[Solution, ...]
    """Finds that were taken."""
    is_simplified_again: bool
    """True where the graph was simplified once more after that."""

    def fits(self, rules: Sequence[Rule], graph: Graph) -> bool:
        """Return whether the finds can be made in a graph, by these rules."""
        return not self.solutions or (
            graph_key(graph) == self.graph and _solutions_fit(self.solutions, {rule.name for rule in rules}, graph)
        )


@dataclass(frozen=True, slots=True)
class KnownResult:
    """Result of an earlier run, with its report: of the same model, or of one that differs in its weights alone."""

    choice: Choice
    candidate: str
    """Key of the candidate that was chosen."""
    timing: SearchTiming
    notes: tuple[str, ...]


def load_known_result(cache: Cache, key: str) -> KnownResult | None:
    """Return what an earlier run came to; None where there was none under this key."""
    return decode_cached(KnownResult, cache.get([key]).get(key))


def save_known_result(cache: Cache, key: str, result: KnownResult) -> None:
    """Keep what a run came to, for later ones."""
    cache.put({key: to_json(result)})


def load_choice(cache: Cache, key: str, seconds: float) -> Choice | None:
    """Return what was chosen for a model under a key, by a search with as many seconds; None where nothing was."""
    found = decode_cached(Choice, cache.get([key]).get(key))
    return found if found is not None and found.seconds >= seconds else None


def save_choice(cache: Cache, key: str, choice: Choice) -> None:
    """Keep what was chosen for a model, for others of its structure, in the place of an earlier choice."""
    cache.put({key: to_json(choice)})


@dataclass(frozen=True, slots=True)
class _Sweeps:
    """Sweeps that may gain something, by name, the most promising first."""

    losing_places: Mapping[str, tuple[str, ...]]
    """Digests of the nodes at the places that each leaves as they are."""


def load_sweeps(cache: Cache, key: str) -> Mapping[str, tuple[str, ...]] | None:
    """Return the sweeps that an earlier run of a model found promising, with the places that each leaves; None where
    there was none."""
    found = decode_cached(_Sweeps, cache.get([key]).get(key))
    return None if found is None else found.losing_places


def save_sweeps(cache: Cache, key: str, losing_places: Mapping[str, tuple[str, ...]]) -> None:
    """Keep them: what is known of kernels grows with each run, and is not to change a later one of this model."""
    cache.put({key: to_json(_Sweeps(losing_places))})


def parse_exploration(text: str | None, rules: Sequence[Rule], graph: Graph) -> Exploration | None:
    """Return the result of a search that a text of the cache holds; None where it holds none, or none that a search in
    this graph with these rules can have."""
    found, known = decode_cached(Exploration, text), {rule.name for rule in rules}
    if found is None:
        return None
    counts = (found.regions, found.copies, found.states, found.trials)
    if (
        found.is_steady
        and found.stop.is_resumable
        and min(counts) >= 0
        and _solutions_fit(found.solutions, known, graph)
    ):
        return found
    log.debug("an entry of the cache is not used, for it is of another search")
    return None


def _solutions_fit(solutions: Sequence[Solution], rules: set[str], graph: Graph) -> bool:
    """Return whether solutions are gains by known rules, in parts of the graph that do not overlap."""
    places = {vertex: place for place, vertex in enumerate(graph.topological_order()) if not graph[vertex].is_internal}
    parts = [part for solution in solutions for part in solution.copies]
    taken = [vertex for part in parts for vertex in part]
    if len(taken) != len(set(taken)) or not places.keys() >= set(taken):
        return False
    return all(_is_convex(part, places, graph) for part in parts) and all(
        solution.speedup.verdict is TimingVerdict.FASTER
        and 0 <= solution.estimated_seconds < math.inf
        and rules.issuperset(solution.rules)
        and all(move.sites and all(move.sites) for move in solution.moves)
        for solution in solutions
    )


def _is_convex(part: Sequence[int], places: Mapping[int, int], graph: Graph) -> bool:
    """Return whether vertices are in topological order, and no path from one to another leaves them: else their
    replacement would depend on itself."""
    order = [places[vertex] for vertex in part]
    if not order or order != sorted(order):
        return False
    inside, last = set(part), order[-1]
    waiting = [reader for vertex in part for reader in graph.readers(vertex) if reader not in inside]
    beyond: set[int] = set()
    while waiting:
        vertex = waiting.pop()
        if vertex in inside:
            return False
        if vertex not in beyond and places[vertex] < last:
            beyond.add(vertex)
            waiting += graph.readers(vertex)
    return True


def graph_key(graph: Graph) -> str:
    """Identify a graph together with the numbers of its vertices, by which solutions name them."""
    numbered = [(vertex, graph[vertex].op) for vertex in graph.topological_order()]
    return sha256(f"{graph_digest(graph)} {numbered}".encode()).hexdigest()


def rules_key(rules: Sequence[Rule]) -> str:
    """Identify rules together with the compiler's source: another version might find something else."""
    said = sha256(_search_source_digest().encode())
    for rule in rules:
        said.update(rule.digest.encode())
    return said.hexdigest()


PACKAGE_FOLDER = Path(__file__).parent.parent
"""Folder of the compiler's source."""


@cache
def _search_source_digest() -> str:
    said = sha256()
    for path in sorted((*PACKAGE_FOLDER.glob("*/*.py"), *PACKAGE_FOLDER.glob("runtime/*.json"))):
        said.update(str(path.relative_to(PACKAGE_FOLDER)).encode() + b"\0" + path.read_bytes())
    return said.hexdigest()
