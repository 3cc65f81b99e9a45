"""A recipe is made of what a search has chosen: `record_recipe`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from graphopt.ir.graph import Graph
from graphopt.language.rule import Rule
from graphopt.rewrite import gate
from graphopt.rewrite.candidates import Candidate
from graphopt.rewrite.regions import extract_region, portable_digest
from graphopt.search.explore import blocks_by_digest
from graphopt.search.model_tuner import Tuner, TuningResult
from graphopt.search.moves import SearchSpace, Solution, apply_move, find_trade_matches, match_at, match_digests
from graphopt.search.recipe import Recipe, RecipeFind, RecipeMachine, RecipeMove, RecipeRule, RecipeSweep
from graphopt.search.search_report import GroupKind, RewriteGroup
from graphopt.search.sweep import Sweep


def record_recipe(tuner: Tuner, tuned: TuningResult, versions: Mapping[str, str]) -> Recipe:
    """Return the recipe of what a tuner chose, with the versions of the packages that the result depends on."""
    first, best, timing = tuner.simplified, tuned.candidate, tuned.timing
    rules = _RuleTable({rule.name: rule for rule in (*tuner.rules, *tuner.trades)})
    is_original, is_reduced = bool(first.steps) and not best.steps, bool(best.steps) and first not in best.chain
    gone = {step.name for step in first.steps} - {step.name for step in best.steps} if is_reduced else set()
    undone = tuple(map(rules.index, sorted(gone)))
    searched = best.chain[best.chain.index(first) + 1 :] if first in best.chain else ()
    groups = {group.name: group for group in timing.groups if group.kind is GroupKind.SWEEP} if timing else {}
    sweeps = [recorded for made in searched if (recorded := _recorded_sweep(made, tuner, rules, groups)) is not None]
    finds = list(_recorded_finds(searched, tuner, rules))
    machine = RecipeMachine(
        "" if timing is None else timing.device,
        tuner.tuning.setting.provider if timing is None else timing.provider,
        tuner.tuning.setting.thread_count,
        "none" if timing is None else timing.cost,
        dict(versions),
    )
    return Recipe(
        machine,
        gate.source_digest(),
        rules.listed,
        faster_original=portable_digest(first.graph) if is_original else "",
        undone=undone,
        sweeps=tuple(sweeps),
        finds=tuple(finds),
        is_simplified_again=bool(searched) and best.is_tidied,
        speedup=None if timing is None or timing.is_of_other_weights else timing.speedup,
    )


@dataclass
class _RuleTable:
    """The rules and passes of a recipe, while it is made."""

    known: Mapping[str, Rule]
    entries: dict[str, RecipeRule] = field(default_factory=dict)

    def index(self, name: str) -> int:
        """Return the index of a rule or pass among those of the recipe."""
        if name not in self.entries:
            rule = self.known.get(name)
            proof = None if rule is None else gate.known_proof(rule)
            claim = "" if proof is None else proof.claim_text
            self.entries[name] = RecipeRule(name, "" if rule is None else rule.digest, claim)
        return list(self.entries).index(name)

    @property
    def listed(self) -> tuple[RecipeRule, ...]:
        return tuple(self.entries.values())


def _recorded_sweep(
    made: Candidate, tuner: Tuner, rules: _RuleTable, groups: Mapping[str, RewriteGroup]
) -> RecipeSweep | None:
    """Return the sweep by which a candidate was made of its base; None where it was made otherwise."""
    cause = made.own_steps[0].cause
    if not isinstance(cause, Sweep):
        return None
    assert made.base is not None, "a sweep is made on a candidate"
    own = tuner.sweep_rules(cause.name)
    matches = sweep_matches(made.base.graph, SearchSpace(own, tuner.search_space().simplifier, tuner.allows))
    every, used = (tuple(map(rules.index, names)) for names in ([rule.name for rule in own], cause.rules))
    timed = groups.get(cause.name)
    told = (timed.alone, timed.saved_seconds) if timed is not None and not timed.is_estimate else (None, None)
    return RecipeSweep(cause.name, every, used, dict(sorted(matches.items())), *told, cause.losing_places)


def sweep_matches(graph: Graph, space: SearchSpace) -> Counter[str]:
    """Count the places that some rules match, by the digests of the nodes that they match."""
    matches = chain.from_iterable(find_trade_matches(graph, space).values())
    return Counter(digest for digest in match_digests(graph, matches) if digest)


def _recorded_finds(searched: tuple[Candidate, ...], tuner: Tuner, rules: _RuleTable) -> Iterator[RecipeFind]:
    """Yield the finds by which candidates were made, one of the other, in their order."""
    found = [made for made in searched if isinstance(made.own_steps[0].cause, Solution)]
    if not found or found[0].base is None:
        return
    graph, space = found[0].base.graph, tuner.search_space()
    blocks = blocks_by_digest(graph, space, tuner.tuning.policy.blocks)
    numbers = {block: (digest, number) for digest, alike in blocks.items() for number, block in enumerate(alike)}
    for solution in found[-1].causes:
        if not isinstance(solution, Solution):
            continue
        changed = solution.changed_copies(found[-1].steps)
        places = [numbers[copy] for copy in changed if copy in numbers]
        if not places:
            continue
        ((digest, _), *_) = places
        region = extract_region(graph, changed[0])
        assert region is not None, "a find was made there"
        moves = tuple(_recorded_moves(region.graph, solution, space, rules))
        numbered = tuple(number for _, number in places)
        result = portable_digest(region.graph)
        alone, saved = solution.speedup, solution.saved_seconds
        yield RecipeFind(digest, len(blocks[digest]), numbered, moves, result, alone, saved)


def _recorded_moves(graph: Graph, solution: Solution, space: SearchSpace, rules: _RuleTable) -> Iterator[RecipeMove]:
    """Make the moves of a find in a part's graph, in place, and yield each with what it matches."""
    for move in solution.moves:
        matches = [match_at(graph, space.by_name[move.rule], site, space) for site in move.sites]
        there = [(site, match) for site, match in zip(move.sites, matches, strict=True) if match is not None]
        digests = match_digests(graph, [match for _, match in there])
        yield RecipeMove(rules.index(move.rule), tuple(site for site, _ in there), tuple(digests), move.simplified)
        apply_move(graph, move, space)
