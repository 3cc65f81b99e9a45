"""The choice between providers: an attempt at a model with each, and races of what came of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from graphopt.base.errors import DifferenceError, ModelError, UsageError
from graphopt.base.session import current_session
from graphopt.check.provider_difference import describe_difference
from graphopt.io import onnx_io
from graphopt.opset_choice import Attempt, StageClock, race_within_search
from graphopt.options import Options
from graphopt.runtime.bench import prepare_models
from graphopt.runtime.oracle import RunnableModel
from graphopt.search.policy import SearchPolicy
from graphopt.search.race_outcomes import RaceOutcome
from graphopt.search.search_report import format_result_speedup, format_speedup


@dataclass(frozen=True)
class ProviderComparison:
    """Attempts for several providers, and races of what came of them, each in sessions of its own provider."""

    providers: Sequence[str]
    """The first of them is that of the original, over which the speedup is."""
    make: Callable[[str, float], Attempt]
    """Makes an attempt for a provider, in a share of the time."""
    original: Callable[[], onnx_io.LoadedModel]
    options: Options
    clock: StageClock
    policy: SearchPolicy = SearchPolicy()

    def best_attempt(self) -> Attempt:
        """Return the model optimized for the first provider that can be timed, or for another, where that is faster.

        Raises:
            DifferenceError: the check found a difference that is an error, with all providers, or, with `strict`, any.
            ModelError: no provider runs the model, of which the first says so.
            UsageError: no provider starts, or what is asked for is an error whatever the provider.
        """
        made, notes = self._attempts()
        timed = [attempt for attempt in made if attempt.could_be_timed]
        if not timed:
            return made[0].with_notes(*notes)
        first, *rivals = timed
        kept, reasons = first, list[str]()
        for rival in rivals:
            name = rival.tuning.setting.provider
            try:
                winner, why = self._race(first, kept, rival)
            except KeyboardInterrupt:
                reasons.append(f"{name} was not taken: it was interrupted")
                break
            reasons.append(f"{name} was {'' if winner is not kept else 'not '}taken: {why}")
            kept = winner
        for other in made:
            if other.tuning.setting != kept.tuning.setting:
                kept = kept.with_notes_of(other, f"with {other.tuning.setting.provider}")
        return kept.with_notes(*notes, *reasons)

    def _attempts(self) -> tuple[list[Attempt], list[str]]:
        """Return the attempts that could be made, at least one, and notes on those that could not, or were not timed.

        Raises:
            DifferenceError, ModelError, UsageError: that of the first provider, where none could be made.
        """
        errors = {name: error for name in self.providers if (error := self._refusal(name)) is not None}
        notes = [f"provider {name} was left out: {error}" for name, error in errors.items()]
        able, made = [name for name in self.providers if name not in errors], list[Attempt]()
        for provider in able:
            try:
                attempt = self.make(provider, self._search_share(len(able)))
            except KeyboardInterrupt:
                if not made:
                    raise
                notes.append(f"provider {provider} was left out: it was interrupted")
                break
            except (DifferenceError, ModelError, UsageError) as error:
                if self.options.strict and isinstance(error, DifferenceError):
                    raise
                errors[provider] = error
                notes.append(f"provider {provider} was left out: {error}")
                continue
            made.append(attempt)
            if not attempt.could_be_timed:
                notes.append(f"provider {provider} was left out: nothing was timed with it")
            if attempt.is_interrupted and provider != able[-1]:
                notes.append(f"after {provider} no provider was tried: it was interrupted")
                break
        if not made:
            raise next(errors[name] for name in self.providers if name in errors)
        return made, notes

    def _refusal(self, provider: str) -> Exception | None:
        """Return why a provider cannot be used, before anything waits for it; None where it starts."""
        try:
            self.options.for_provider(provider).setting.check_starts()
        except (ModelError, UsageError) as error:
            return error
        return None

    def _search_share(self, count: int) -> float:
        """Return the part of the time that the search for one of so many providers has; races of these have the
        rest."""
        if count == 1:
            return 1.0
        return (1 - min(count * self.policy.provider_race_share, self.policy.provider_races_share)) / count

    def _race(self, first: Attempt, kept: Attempt, rival: Attempt) -> tuple[Attempt, str]:
        """Return the faster of two attempts, and how this is known; where it is the rival, with its speedup over the
        original with the first provider."""
        if rival.is_interrupted:
            return kept, "it was interrupted"
        if kept.is_verified and not rival.is_verified:
            return kept, "what was made for it could not be compared"
        try:
            found = self._outcome(kept.loaded, kept, rival)
            why = f"it is {format_speedup(found.speedup)} as {kept.tuning.setting.provider}"
            if not found.is_faster:
                return kept, why
            original = self.original()
            if kept is not first or first.tuned.candidate.steps:
                found = self._outcome(original, first, rival)
            with self.clock("check"), current_session().replace(limits=self.options.limits):
                note = _difference_note(original, first, rival)
            return _timed_over(first, rival, found).with_notes(note), why
        except (ModelError, UsageError) as error:  # a provider that has started once may not a second time
            return kept, str(error)

    def _outcome(self, model: onnx_io.LoadedModel, one: Attempt, other: Attempt) -> RaceOutcome:
        """Return the outcome of a race of what another attempt made, with its provider, with a model under the setting
        of one. Raises ModelError."""
        tuning = replace(one.tuning, seconds=self.options.seconds * self.policy.provider_race_share)
        return race_within_search(model, other.loaded, tuning, self.options, self.clock, other.tuning.setting)


def _timed_over(first: Attempt, attempt: Attempt, outcome: RaceOutcome) -> Attempt:
    """Return an attempt with its speedup over the original as it runs with another's provider."""
    timing, own = attempt.tuned.timing, attempt.tuning.setting.provider
    assert timing is not None, "what was not timed does not race"
    there = f"with {own} it is {format_result_speedup(timing)}" if timing.speedup else ""
    timed = replace(
        timing,
        original_provider=first.tuning.setting.provider_name,
        speedup=outcome.speedup,
        latencies=outcome.latencies,
        is_of_other_weights=False,
        simplified=None,
        untimed="",
    )
    return replace(attempt, tuned=replace(attempt.tuned, timing=timed)).with_notes(*filter(None, [there]))


def _difference_note(original: onnx_io.LoadedModel, first: Attempt, attempt: Attempt) -> str:
    """Return a note on how far outputs with an attempt's provider are from the original's with the first one.

    Raises:
        ModelError: one of them does not run.
    """
    tuning = first.tuning
    ready = prepare_models(
        [original],
        tuning.setting,
        dims=tuning.sizes,
        inputs=tuning.inputs,
        seed=tuning.seed,
        also=[RunnableModel(attempt.loaded).outline],
    )
    return describe_difference(original, ready, attempt.loaded, attempt.tuning.setting)
