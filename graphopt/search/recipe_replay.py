"""A recipe is followed, in the model for which it was made or in another: `follow_recipe`.

A part of the model is found by the digest of the part as a whole, else places by the digests of the nodes that a rule
matches there. Every rule is asked for its proof as ever: a recipe says what pays, not what is right.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from graphopt.ir.graph import Graph
from graphopt.language.rule import Rule
from graphopt.rewrite.candidates import Candidate
from graphopt.rewrite.regions import portable_digest
from graphopt.rewrite.simplify import Cause, Step, undo_steps
from graphopt.search.explore import blocks_by_digest
from graphopt.search.model_tuner import Tuner, TuningResult
from graphopt.search.moves import (
    Move,
    MoveNotApplicableError,
    SearchSpace,
    Solution,
    apply_move,
    apply_solution,
    find_trade_matches,
    match_digests,
)
from graphopt.search.recipe import Recipe, RecipeFind, RecipeSweep
from graphopt.search.recipe_recording import sweep_matches
from graphopt.search.search_report import (
    GroupKind,
    RewriteGroup,
    SearchTiming,
    format_parts,
    format_scope,
    format_speedup,
)
from graphopt.search.stopping import StopReason
from graphopt.search.sweep import apply_sweep


@dataclass(frozen=True)
class FollowedRecipe:
    """The candidate that a recipe leads to, and what of the recipe does not fit the model."""

    tuned: TuningResult
    left: tuple[str, ...] = ()
    """A line for each decision that was left, or made in fewer places, and why."""


def follow_recipe(recipe: Recipe, tuner: Tuner) -> FollowedRecipe:
    """Make the decisions of a recipe in a tuner's simplified model. Nothing is timed."""
    replay = _Replay(recipe, tuner)
    candidate = replay.without_undone()
    for sweep in recipe.sweeps:
        candidate = replay.make_sweep(sweep, candidate)
    candidate = replay.make_finds(candidate)
    if recipe.is_simplified_again:
        candidate = candidate.derive(tuner.simplify_with)
    setting = tuner.tuning.setting
    timing = SearchTiming(
        "recipe",
        setting.provider,
        setting.thread_count,
        untimed=_untimed_text(recipe),
        groups=tuple(replay.groups),
        stop=StopReason.RECIPE,
    )
    return FollowedRecipe(TuningResult(candidate, timing, group_of=replay.group_of), tuple(replay.left))


@dataclass
class _Replay:
    """The decisions of a recipe as they are made, one after the other."""

    recipe: Recipe
    tuner: Tuner
    groups: list[RewriteGroup] = field(default_factory=list)
    group_of: dict[Cause, int] = field(default_factory=dict)
    """Index of the group of each find and sweep."""
    left: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        known = {rule.digest: rule for rule in (*self.tuner.rules, *self.tuner.trades)}
        self.rules = {index: known[said.digest] for index, said in enumerate(self.recipe.rules) if said.digest in known}
        self.space = self.tuner.search_space()

    def _unknown_rules(self, indices: Collection[int], known: Collection[Rule]) -> str:
        """Return why rules cannot be used, as they are not among those that are known; empty where all can."""
        missing = [index for index in indices if self.rules.get(index) not in known]
        names = dict.fromkeys(self.recipe.rules[index].name for index in missing)
        if not names:
            return ""
        return f"{', '.join(names)}: not among the rules here, or another rule by now"

    def _record(self, group: RewriteGroup, causes: Collection[Cause], label: str, missing: str) -> None:
        """Note what became of a decision, with the reason why it was not made everywhere, if there is one."""
        self.group_of |= dict.fromkeys(causes, len(self.groups))
        self.groups.append(replace(group, reason="" if group.is_taken else missing))
        if missing:
            self.left.append(f"{label}: {missing}")

    # -- simplifications -----------------------------------------------------------------------------------------------

    def without_undone(self) -> Candidate:
        """Return the simplified model, without the simplifications that made it slower; or the original."""
        simplified, recipe = self.tuner.simplified, self.recipe
        if recipe.faster_original:
            if recipe.faster_original == portable_digest(simplified.graph):
                return simplified.chain[0]
            self.left.append("the original was faster than all that was made of it: this is another model")
        if not recipe.undone:
            return simplified
        gone = {recipe.rules[index].name for index in recipe.undone if self._is_known(index)}
        kept = frozenset(step.name for step in simplified.steps) - gone
        return simplified.chain[0].derive(lambda graph: self.tuner.simplify_with(graph, kept))

    def _is_known(self, index: int) -> bool:
        """Return whether a rule of the recipe is one here; so is each pass."""
        return index in self.rules or not self.recipe.rules[index].digest

    # -- sweeps --------------------------------------------------------------------------------------------------------

    def make_sweep(self, sweep: RecipeSweep, start: Candidate) -> Candidate:
        """Return a candidate with a sweep, or as it was where the sweep does not fit."""
        made, missing = start, self._unknown_rules(sweep.used, self.tuner.trades)
        if not missing:
            made, missing = self._swept(sweep, start)
        names = tuple(self.recipe.rules[index].name for index in sweep.used)
        causes = [cause for cause in made.causes if cause not in start.causes]
        group = RewriteGroup(
            GroupKind.SWEEP,
            sweep.name,
            names,
            alone=sweep.alone,
            saved_seconds=sweep.saved_seconds,
            is_taken=bool(causes),
        )
        self._record(group, causes, sweep.name, missing)
        return made

    def _swept(self, sweep: RecipeSweep, start: Candidate) -> tuple[Candidate, str]:
        rules = [self.rules[index] for index in sweep.rules if index in self.rules]
        there = sweep_matches(start.graph, SearchSpace(rules, self.space.simplifier, self.space.allows))
        alike, total = sum(there[digest] for digest in sweep.matches), there.total()
        if not total:
            return start, "its rules match nowhere in this model"
        if alike < self.tuner.tuning.policy.recipe_sweep_share * total:
            return start, f"it pays only all over a model, and {alike} of {total} places are like those of the recipe"
        made = apply_sweep(start, sweep.name, rules, self.space, self.tuner.tuning.policy, sweep.losing_places)
        return (start, "it changes nothing here") if made is None else (made, "")

    # -- finds ---------------------------------------------------------------------------------------------------------

    def make_finds(self, start: Candidate) -> Candidate:
        """Return a candidate with the finds, as far as they fit."""
        if not self.recipe.finds:
            return start
        blocks = blocks_by_digest(start.graph, self.space, self.tuner.tuning.policy.blocks)
        scopes = {block: format_scope([start.graph[v] for v in block]) for alike in blocks.values() for block in alike}
        named = {find.block for find in self.recipe.finds}
        decided = {vertex for digest in named for block in blocks.get(digest, ()) for vertex in block}
        taken: set[tuple[int, ...]] = set()

        def change(graph: Graph) -> Iterator[Step]:
            for find in self.recipe.finds:
                parts = _parts_of(find, blocks.get(find.block, []), taken)
                taken.update(parts)
                yield from self._make_find(graph, find, parts, decided, scopes)

        return start.derive(change)

    def _make_find(
        self,
        graph: Graph,
        find: RecipeFind,
        parts: Sequence[tuple[int, ...]],
        decided: Collection[int],
        scopes: Mapping[tuple[int, ...], str],
    ) -> list[Step]:
        """Make a find in the parts that are as they were, and else wherever its rules match the same nodes."""
        indices = [move.rule for move in find.moves]
        names = tuple(dict.fromkeys(self.recipe.rules[index].name for index in indices))
        steps, missing, places = list[Step](), self._unknown_rules(indices, self.space.trades), list[str]()
        moves = [Move(self.recipe.rules[move.rule].name, move.sites, move.is_simplified) for move in find.moves]
        solution = Solution(tuple(parts), tuple(moves), find.alone, 0.0, find.result)
        if not missing:
            steps = apply_solution(graph, solution, self.space, portable_digest)
            places = [scopes[part] for part in solution.changed_copies(steps)]
            short = len(find.places) - len(parts)
            if short > 0:
                others = self._apply_at_places(graph, find, decided, short)
                steps += [replace(step, cause=solution) for step in others.steps]
                places += others.places
            missing = _describe_shortfall(len(find.places), len(places))
        group = RewriteGroup(
            GroupKind.FIND,
            format_parts(places) if places else _absent_parts(len(find.places)),
            names,
            tuple(places),
            find.alone,
            is_estimate=self.recipe.machine.cost == "analytic",
            saved_seconds=find.saved_seconds,
            is_taken=bool(places),
        )
        self._record(group, [solution], f"{len(find.places)} × {', '.join(names)}", missing)
        return steps

    def _apply_at_places(self, graph: Graph, find: RecipeFind, decided: Collection[int], count: int) -> _AppliedFind:
        """Make the moves of a find, in place, outside of the parts that are as they were, where its rules match the
        same nodes; no more often than in so many parts."""
        made = _AppliedFind()
        for move in find.moves:
            rule = self.rules[move.rule]
            alone = SearchSpace([rule], self.space.simplifier, self.space.allows)
            matches = find_trade_matches(graph, alone).get(rule, [])
            free = [match for match in matches if match.vertices.isdisjoint(decided)]
            alike = [m for m, digest in zip(free, match_digests(graph, free), strict=True) if digest in move.matches]
            chosen = alike[: count * len(move.sites)]
            places = [format_scope([graph[v] for v in sorted(m.vertices)]) for m in chosen[:: len(move.sites)]]
            try:
                applied = apply_move(graph, Move(rule.name, tuple(m.roots for m in chosen), move.is_simplified), alone)
            except MoveNotApplicableError:
                undo_steps(made.steps)
                return _AppliedFind()
            made.places = made.places or places
            made.steps += applied.steps
        return made


@dataclass
class _AppliedFind:
    """Steps that were made for a find, and the places where that was."""

    steps: list[Step] = field(default_factory=list)
    places: list[str] = field(default_factory=list)


def _parts_of(
    find: RecipeFind, alike: Sequence[tuple[int, ...]], taken: Collection[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """Return the parts in which a find is to be made, of those that are as its own were: the same ones where there are
    as many, else all that are not taken."""
    if len(alike) == find.blocks:
        return [alike[place] for place in find.places]
    return [part for part in alike if part not in taken]


def _absent_parts(count: int) -> str:
    return f"{count} part{'s' * (count > 1)} of another model"


def _describe_shortfall(wanted: int, made: int) -> str:
    """Return how many of the places of a find were not found; empty where all were."""
    if made >= wanted:
        return ""
    return f"made in {made} of them; the others are not in this model" if made else "nothing in this model is like it"


def _untimed_text(recipe: Recipe) -> str:
    """Return that nothing was timed, and what was when the recipe was made."""
    ratio = recipe.speedup
    there = f"; its model ran {format_speedup(ratio)} as the original on {recipe.machine}" if ratio is not None else ""
    return f"not timed: a recipe said what to do{there}"
