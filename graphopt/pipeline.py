"""The pipeline: load, simplify, search, check, report."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, wraps
from inspect import Parameter, Signature
from inspect import signature as get_signature
from typing import Concatenate, ParamSpec

from graphopt.base import ort
from graphopt.base.errors import ModelError, RecipeError, UsageError, did_you_mean
from graphopt.base.session import current_session
from graphopt.check.blame import Check, refused_rewrite
from graphopt.io import onnx_io
from graphopt.io.version_paths import first_opset, is_supported, written_domains
from graphopt.language import rule_library
from graphopt.language.rule import Rule
from graphopt.operators.fixed_sizes import fix_inputs
from graphopt.opset_choice import Attempt, OpsetComparison, StageClock
from graphopt.options import AUTO, LATEST, Options, refuse_unknown_options
from graphopt.provider_choice import ProviderComparison
from graphopt.report.graph_outline import without_weights
from graphopt.report.report import ModelSummary, Report, model_summary, versions
from graphopt.report.rewrite_history import with_rewrites
from graphopt.result import Result
from graphopt.rewrite.build import RefusalFunction
from graphopt.rewrite.candidates import Candidate
from graphopt.rewrite.gate import Gate
from graphopt.rewrite.near_misses import MissFinder, notes_on_unapplied_rules
from graphopt.rewrite.passes import PASSES, Pass, to_exact_passes
from graphopt.rewrite.refused_changes import (
    ChangeRefusal,
    LoadedPlaces,
    PatchKey,
    PortableChange,
    RefusedRewrite,
    patch_key,
)
from graphopt.rewrite.simplify import notes_on_function_operators, simplify_graph
from graphopt.runtime.cost_model import open_cost_cache
from graphopt.runtime.kernel_probe import KernelProbe
from graphopt.runtime.session_setting import check_value_sizes, model_label
from graphopt.search.memory_budget import BudgetFitter
from graphopt.search.model_tuner import Tuner, TuningOptions, TuningResult
from graphopt.search.recipe import Recipe, load_recipe
from graphopt.search.recipe_recording import record_recipe
from graphopt.search.recipe_replay import follow_recipe

log = logging.getLogger(__name__)

P = ParamSpec("P")


def _by_keyword(
    options: Callable[P, Options],
) -> Callable[
    [Callable[[onnx_io.ModelSource, Options], Result]], Callable[Concatenate[onnx_io.ModelSource, P], Result]
]:
    """Give a function of options the fields of `Options` as its keywords, to callers, type checkers and `help`."""

    def decorate(
        function: Callable[[onnx_io.ModelSource, Options], Result],
    ) -> Callable[Concatenate[onnx_io.ModelSource, P], Result]:
        @wraps(function)
        def by_keyword(model: onnx_io.ModelSource, /, *args: P.args, **keywords: P.kwargs) -> Result:
            refuse_unknown_options(function.__name__, keywords)
            return function(model, options(*args, **keywords))

        names = get_signature(options).parameters
        first = Parameter("model", Parameter.POSITIONAL_ONLY, annotation="onnx_io.Source")
        signature = Signature([first, *names.values()], return_annotation="Result")
        vars(by_keyword)["__signature__"] = signature
        return by_keyword

    return decorate


@_by_keyword(Options)
def optimize(model: onnx_io.ModelSource, options: Options) -> Result:
    """Optimize a model: the same function, faster in ONNX Runtime. The caller's object is not changed.

    Rules that pay in every model are applied first; those that pay in some are tried on the distinct parts of the
    model. Whole versions of it then take turns with the original: the result is faster beyond noise, or no slower.

    Args:
        model: a path, `onnx.ModelProto`, `onnx_ir.Model` or what `torch.onnx.export` returns; of the last,
            `Result.program` is another.
        options: the fields of `graphopt.Options`, which says what each means, as keywords: `exact=True`.

    Raises:
        ModelError: the model is not legal, or contradicts what was asked for, or a run of it takes too much.
        RuleError: a file of `rules` cannot be read, or a rule in it is ill-formed.
        UsageError: an unknown rule, input, dim, provider or cost, a library of custom operators that cannot be loaded,
            no time to search, or options that exclude each other.
        ProofError: one of `rules` is not proved.
        DifferenceError: the check found a difference, and `strict` was asked for, or no rewrite made it.
        RecipeError: a part of the `recipe` does not fit the model, and `strict` was asked for.
    """
    with current_session().child(), ort.registered_custom_ops(options.custom_ops):
        if options.recipe is not None:
            result = _follow_recipe(model, options, load_recipe(options.recipe))
        elif len(options.providers) == 1:
            result = PipelineRun(model, options).result()
        else:
            result = _optimize_for_fastest_provider(model, options)
    return replace(result, exported=model if onnx_io.is_exported_program(model) else None)


def _optimize_for_fastest_provider(model: onnx_io.ModelSource, options: Options) -> Result:
    """Optimize a model for each provider, and return the result that is the fastest."""
    clock, runs = StageClock(), dict[str, PipelineRun]()

    def attempt(provider: str, share: float) -> Attempt:
        own = replace(options.for_provider(provider), seconds=options.seconds * share)
        run = runs[provider] = PipelineRun(model, own, share)
        try:
            return run.best_attempt()
        finally:
            clock.add(run.clock)

    def original() -> onnx_io.LoadedModel:
        return next(iter(runs.values())).loaded_model

    made = ProviderComparison(options.providers, attempt, original, options, clock).best_attempt()
    provider = made.tuning.setting.provider
    result = runs[provider].to_result(made)
    report = replace(result.report, seconds=clock.seconds, session_code=result.session_code("model.onnx"))
    return replace(result, report=report, recipe=replace(result.recipe, provider=provider))


def _follow_recipe(model: onnx_io.ModelSource, options: Options, recipe: Recipe) -> Result:
    """Optimize a model as a recipe says, with the provider and in the opset that were chosen when it was made."""
    first, *others = options.providers
    provider = recipe.provider if recipe.provider and (others or first == "cpu") else first
    opset = recipe.opset if options.target_opset in (None, AUTO) else options.target_opset
    own = replace(options.for_provider(provider) if others else options, provider=provider, target_opset=opset)
    result = PipelineRun(model, own, recipe=recipe).result()
    report = result.report
    if not recipe.provider:
        return result
    try:
        report = replace(report, session_code=result.session_code("model.onnx"))
    except UsageError as error:  # it was made for another machine
        report = replace(report, notes=(*report.notes, f"provider {provider} was chosen by the recipe, but {error}"))
    return replace(result, report=report)


@dataclass(frozen=True)
class SimplifiedModel:
    """A model after the simplify phase."""

    loaded: onnx_io.LoadedModel
    """The model before it, with the types of its values."""
    candidate: Candidate
    library: rule_library.RuleLibrary
    """The rules given and those installed."""
    misses: MissFinder
    tuner: Tuner
    """Tuner that would time it."""


@dataclass(frozen=True)
class PipelineRun:
    """One run of the pipeline: attempts, until the check finds no difference."""

    model: onnx_io.ModelSource
    options: Options
    share: float = 1.0
    """The part that the seconds of the options are of the user's."""
    clock: StageClock = field(default_factory=StageClock)
    recipe: Recipe | None = None
    """Decisions to follow; None where a search is to make them."""

    def result(self) -> Result:
        return self.to_result(self.best_attempt())

    def best_attempt(self) -> Attempt:
        """Return the model optimized in the opset that is asked for, or in the faster of two."""
        options = self.options
        if options.target_opset == AUTO:
            return OpsetComparison(
                self._own_opset,
                self._first_sufficient_opset,
                self._attempt_in_opset,
                options,
                self._tuning,
                self.clock,
            ).best_attempt()
        opset, note = self._target_opset
        return self._attempt_in_opset(opset, 1.0).with_notes(*filter(None, [note]))

    def to_result(self, made: Attempt) -> Result:
        """Return an attempt as a result, with its report.

        Raises:
            ModelError: the check found the model not legal.
        """
        notes = [
            *made.notes,
            *self._target_notes(),
            *self._neighbour_notes(),
            *_unproved_notes(self._gate),
            *self._kernel_checks.notes,
        ]
        comparison = None if made.check_result is None else made.check_result.comparison
        recipe = self.recipe or self._recorded_recipe(made)
        if comparison is not None and not comparison.legal:
            reason = f"{model_label(self.model)}: {comparison.reason.rstrip('.')}"
            raise ModelError(f"{reason}. --no-check (check=False) writes it unchecked")
        tuned, original = made.tuned, self.loaded_model.graph
        report = Report.build(made.before, made.loaded, comparison, self.clock.seconds, notes, tuned.timing)
        report = replace(report, refused=made.refused, memory=tuned.memory)
        report = with_rewrites(report, original, tuned, self._gate.describe_proof, self._library.all_rules)
        result = Result(made.loaded, report, made.tuning.setting, recipe, without_weights(original))
        if tuned.memory is not None and tuned.memory.option_lines:
            report = replace(report, session_code=result.session_code("model.onnx"))
        return replace(result, report=report)

    def _recorded_recipe(self, made: Attempt) -> Recipe:
        """Return the recipe of an attempt."""
        with self.clock("recipe"):
            found = record_recipe(made.tuner, made.tuned, versions())
        opset = None if self.options.target_opset is None else made.loaded.graph.opsets.get("")
        return replace(found, opset=opset, options=self.options.rule_choice, refused=made.refused)

    def _attempt_in_opset(self, opset: int | None, share: float) -> Attempt:
        """Return the model optimized in an opset, None for its own, in a share of the time."""
        tuning = self._tuning.with_part(share)
        return _attempt_until_equal(
            partial(self._attempt, opset),
            self._rewrite_space,
            tuning,
            self.clock,
            strict=self.options.strict,
            foreseen=() if self.recipe is None else self.recipe.refused,
        )

    def _target_notes(self) -> list[str]:
        """Return a note on given rules that write operators which the target lacks."""
        target, domains = self.options.target, self._target_domains
        lacking = [rule.name for rule in self._given_rules.all_rules if not is_supported(rule, target, domains)]
        if not lacking:
            return []
        note = f"{', '.join(lacking)}: not used, as only --target onnxruntime has ONNX Runtime's own operators"
        log.warning("%s", note)
        return [note]

    def _neighbour_notes(self) -> list[str]:
        """Return a note on the rewrites that are held back for tools that come after graphopt."""
        held = self.options.held_back
        return [f"held back for {' and '.join(self.options.neighbours)}: {', '.join(held)}"] if held else []

    @cached_property
    def _given_rules(self) -> rule_library.RuleLibrary:
        return rule_library.read_rules(self.options.rules)

    @cached_property
    def _target_domains(self) -> frozenset[str]:
        """Domains whose operators may be written though this machine has no kernel for them.

        Raises:
            UsageError: no rule writes an operator of one.
        """
        written = frozenset[str]().union(*map(written_domains, self._library.all_rules)) - {""}
        for name in self.options.target_domains:
            if name not in written:
                hint = did_you_mean(name, written) or "; --rules takes rules that do, with the definitions"
                raise UsageError(f"no rule writes operators of the domain '{name}'{hint}")
        return self._given_rules.target_domains.union(self.options.target_domains)

    @cached_property
    def _library(self) -> rule_library.RuleLibrary:
        return rule_library.load_library(self._given_rules)

    @cached_property
    def _rewrite_space(self) -> _RewriteSpace:
        with self.clock("load"):
            return _RewriteSpace.select(self._library, self.options, self._target_domains)

    @cached_property
    def _target_opset(self) -> tuple[int | None, str]:
        """Opset to which the model is converted, None where it stays in its own, and a note where `latest` is an older
        one than ONNX Runtime runs."""
        newest = self.options.opset
        if newest is None or self.options.target_opset != LATEST:
            return newest, ""
        with self.clock("convert"):
            copied = replace(self.loaded_model, graph=self.loaded_model.graph.copy())
            opset, reason = onnx_io.newest_opset(copied, newest, self._kernel_approval(copied))
        note = f"the newest opset for this model is {opset}: {reason}" if reason else ""
        return (None if opset == self._own_opset else opset), note

    @property
    def _own_opset(self) -> int:
        """The opset that the model has, 0 where it has none."""
        with self.clock("load"):
            return self.loaded_model.graph.opsets.get("", 0)

    @property
    def _first_sufficient_opset(self) -> int:
        """The first opset that has all operators which admitted rules write; the model's, if that has them."""
        own = self._own_opset
        newer = (rule for rule in (*self._rewrite_space.rules, *self._rewrite_space.trades) if first_opset(rule) > own)
        with self.clock("prove"):
            return max((first_opset(rule) for rule in newer if self._gate.may_allow(rule)), default=own)

    @cached_property
    def _gate(self) -> Gate:
        options = self.options
        return Gate(
            exact=options.exact,
            unverified=options.unverified,
            keep_nonfinite=options.keep_nonfinite,
            is_cpu=options.setting.is_cpu,
            progress=options.report_progress,
        )

    @cached_property
    def _kernel_checks(self) -> KernelProbe:
        return KernelProbe(self.options.setting, self._target_domains)

    def _refusal(self, space: _RewriteSpace, loaded: onnx_io.LoadedModel) -> ChangeRefusal:
        kernels = self._kernel_checks.exact_refusal if self.options.exact else self._kernel_checks.refusal
        return ChangeRefusal(kernels, LoadedPlaces(loaded.graph), space.excluded, space.foreseen)

    @cached_property
    def _tuning(self) -> TuningOptions:
        options = self.options
        return TuningOptions(
            options.cost if self.recipe is None else "analytic",  # nothing is timed
            options.setting,
            options.seconds,
            self.share,
            options.open_dims,
            options.inputs,
            options.seed,
            options.admitted_rules_text,
            options.dask,
        )

    def _attempt(self, opset: int | None, space: _RewriteSpace, tuning: TuningOptions) -> Attempt:
        """Simplify, search and check once, in this opset, or where it is None in the model's own."""
        options, clock = self.options, self.clock
        with clock("load"):
            loaded = self.loaded_model
            before = model_summary(loaded)
            if options.check or options.is_timed:
                check_value_sizes(loaded.graph, options.limits, model_label(self.model))
        if opset is not None:
            with clock("convert"), onnx_io.naming_file_in_errors(loaded.path):
                loaded = self._convert(loaded, opset)
        given, refusal = self._prove_given_rules(space), self._refusal(space, loaded)
        with clock("simplify"), onnx_io.naming_file_in_errors(loaded.path):  # it reads weights that may be broken
            simplified, notes = self._simplify(loaded, space, refusal)
            notes += [*rule_library.notes_on_unmatchable_rules(given)]
            notes += notes_on_function_operators(simplified.graph, given, loaded.functions)
        foreign = self._kernel_checks.operators_without_kernel(simplified.graph) if self._target_domains else []
        if foreign:
            names = ", ".join(f"{domain}.{op}" for op, domain in foreign)
            if options.memory_budget is not None:
                raise UsageError(f"a memory budget is measured, and this machine has no kernel for {names}")
            tuning = replace(tuning, cost="none")
            notes.append(f"not searched and not timed: this machine has no kernel for {names}")
        tuned = searched = TuningResult(simplified)
        # of eight models the check took 0.4 to 2.6 times as long as to load them
        checking = clock.seconds.get("check", clock.seconds["load"]) if options.check else 0.0
        tuning = replace(tuning, overhead_seconds=clock.lap("search", "memory", "check") + checking)
        tuner = self._tuner(loaded, simplified, space, tuning, refusal)
        fitter = BudgetFitter(tuner, space.parts, model_label(self.model))
        end = time.monotonic() + tuning.tuning_seconds
        is_offering = options.memory_budget is None and options.setting.is_cpu and fitter.takes_much()
        if is_offering and tuning.is_timed_here:
            tuner = replace(tuner, tuning=tuning.with_part(1 - tuning.policy.memory_share))
        if tuning.cost != "none":
            with clock("search"), current_session().replace(limits=options.limits):
                tuned = searched = tuner.tune() if self.recipe is None else self._followed(self.recipe, tuner)
            tuner.memory.folded_values.clear()  # they may be large, and nothing asks for them again
        if is_offering or options.memory_budget is not None:
            with clock("memory"), current_session().replace(limits=options.limits):
                tuned = self._with_memory(tuned, fitter, end - time.monotonic() if is_offering else 0.0)
        finding = None
        if options.check:
            with clock("check"), current_session().replace(limits=options.limits):
                target = None if opset == before.opsets.get("ai.onnx") else opset
                finding = self._check(loaded, before, tuned.candidate, target, foreign).compare()
        if finding is None or not finding.is_different:
            tuner.keep_result(searched)
        notes += tuned.notes
        fired = {step.name for step in tuned.candidate.steps}
        unnoted = (rule for rule in given if not any(note.startswith(f"rule {rule.name} ") for note in notes))
        silent = [rule for rule in unnoted if rule.name not in fired]
        with clock("simplify"), onnx_io.naming_file_in_errors(loaded.path):
            notes += notes_on_unapplied_rules(self._misses(simplified, space, refusal), silent)
        result, refused = replace(loaded, graph=tuned.candidate.graph), tuple(refusal.met.values())
        return Attempt(result, tuner, before, tuned, tuple(notes), finding, refused)

    def _with_memory(self, tuned: TuningResult, fitter: BudgetFitter, seconds: float) -> TuningResult:
        """Return what was found, computed in parts where a memory budget asks for that, with its memory.

        Without a budget, that is measured within the seconds; at 0 it is not.

        Raises:
            MemoryBudgetError: the budget cannot be kept.
        """
        options = self.options
        budget = options.memory_budget_bytes
        if budget is not None:
            options.report_progress("memory", 0.0)
            fit = fitter.fit(tuned.candidate, budget)
            timing = tuned.timing
            if timing is not None and fit.candidate is not tuned.candidate:
                timing = timing.of_another_model("it is computed in parts, for the memory budget, since it was timed")
            return replace(tuned, candidate=fit.candidate, timing=timing, memory=fit.memory)
        if tuned.timing is None or tuned.timing.speedup is None or seconds <= 0:
            return tuned
        try:
            return replace(tuned, memory=fitter.offer(tuned.candidate, seconds))
        except ModelError as error:
            return replace(tuned, notes=(*tuned.notes, f"memory: not measured: {error}"))

    def _followed(self, recipe: Recipe, tuner: Tuner) -> TuningResult:
        """Return what a recipe leads to, with a note on each decision that does not fit.

        Raises:
            RecipeError: there is one, and `strict` was asked for.
        """
        followed, options = follow_recipe(recipe, tuner), self.options
        left = [*dict.fromkeys(followed.left)]
        if not options.check:
            unknown = (each for each in recipe.refused if each.change is None and not each.is_everywhere)
            left += [f"{refused}: the check left it out, and is not made here" for refused in unknown]
        if left and options.strict:
            raise RecipeError(f"{model_label(self.model)}: the recipe does not fit: {'; '.join(left)}")
        notes = [f"left of the recipe: {line}" for line in left]
        if left and recipe.options != options.rule_choice:
            said = ", ".join(f"{flag} {value}".strip() for flag, value in recipe.options.items()) or "no such options"
            notes.append(f"the recipe was made with {said}")
        return replace(followed.tuned, notes=tuple(notes))

    def simplified(self) -> SimplifiedModel:
        """Return the model simplified in the opset that is asked for, without search, timing or check.

        Raises:
            ModelError, ProofError, RuleError, UsageError: as `optimize` does.
        """
        space, (opset, _) = self._rewrite_space, self._target_opset
        loaded = self.loaded_model if opset is None else self._convert(self.loaded_model, opset)
        self._prove_given_rules(space)
        refusal = self._refusal(space, loaded)
        with onnx_io.naming_file_in_errors(loaded.path):
            candidate, _ = self._simplify(loaded, space, refusal)
        tuner = self._tuner(loaded, candidate, space, self._tuning, refusal)
        return SimplifiedModel(loaded, candidate, self._library, self._misses(candidate, space, refusal), tuner)

    def _prove_given_rules(self, space: _RewriteSpace) -> list[Rule]:
        """Return the rules that were given for this run and are chosen, once they are proved."""
        given = [rule for rule in (*space.rules, *space.trades) if rule in self._given_rules.all_rules]
        if given:
            with self.clock("prove"):
                self._gate.require_proved(given)
        return given

    def _simplify(
        self, loaded: onnx_io.LoadedModel, space: _RewriteSpace, refusal: RefusalFunction
    ) -> tuple[Candidate, list[str]]:
        """Return a copy of the model's graph, simplified, and notes on rules that could not be applied."""
        graph = loaded.graph.copy()
        done = simplify_graph(
            graph,
            space.rules,
            space.passes,
            allows=self._gate.allows,
            refusal=refusal,
            progress=self.options.report_progress,
        )
        return Candidate(graph, done.steps, Candidate(loaded.graph)), [*done.notes]

    def _misses(self, simplified: Candidate, space: _RewriteSpace, refusal: RefusalFunction) -> MissFinder:
        return MissFinder(simplified, self._gate, refusal, space.rules, space.trades)

    @cached_property
    def loaded_model(self) -> onnx_io.LoadedModel:
        """Return the model with its types inferred and some of its sizes fixed."""
        options = self.options
        options.report_progress("load", 0.0)
        loaded = onnx_io.load_typed_model(self.model, inline_functions=options.inline_functions)
        if options.fixed_shapes or options.fixed_dims:
            with onnx_io.naming_file_in_errors(loaded.path):
                fix_inputs(loaded.graph, options.fixed_shapes, options.fixed_dims)
        return loaded

    def _convert(self, loaded: onnx_io.LoadedModel, opset: int) -> onnx_io.LoadedModel:
        loaded = replace(loaded, graph=loaded.graph.copy())
        return onnx_io.convert_opset(loaded, opset, self._kernel_approval(loaded))

    def _kernel_approval(self, model: onnx_io.LoadedModel) -> Callable[[], None]:
        """Return a function that refuses a model which was converted since, where kernels were lost by that."""
        before = [(graph, graph.opsets) for graph in model.graph.graphs()] if self.options.check else []
        return lambda: self._kernel_checks.check_converted(before)

    def _tuner(
        self,
        loaded: onnx_io.LoadedModel,
        simplified: Candidate,
        space: _RewriteSpace,
        tuning: TuningOptions,
        refusal: RefusalFunction,
    ) -> Tuner:
        return Tuner(
            self.model,
            loaded,
            simplified,
            space.rules,
            space.trades,
            space.passes,
            self._gate.allows,
            tuning,
            self.options.report_progress,
            refusal,
            sweeps=self._library.sweeps,
            also_alone=self._library.also_alone,
            is_bounded=not self._given_rules.modules,
            cache=open_cost_cache(fresh=self.options.fresh),
        )

    def _check(
        self,
        loaded: onnx_io.LoadedModel,
        before: ModelSummary,
        result: Candidate,
        target: int | None,
        foreign: Collection[tuple[str, str]],
    ) -> Check:
        options = self.options
        return Check(
            self.model,
            loaded,
            before.weight_bytes,
            result,
            options.seed,
            options.inputs,
            options.exact,
            options.keep_nonfinite,
            options.report_progress,
            target,
            foreign,
        )


def _attempt_until_equal(
    attempt: Callable[[_RewriteSpace, TuningOptions], Attempt],
    space: _RewriteSpace,
    tuning: TuningOptions,
    clock: StageClock,
    *,
    strict: bool,
    foreseen: Sequence[RefusedRewrite] = (),
) -> Attempt:
    """Attempt the model again without the rewrites that made a difference, until there is none; note what was left out.

    Rewrites that are `foreseen`, as the check refused them when a recipe was made, are not made at all.

    Raises:
        DifferenceError: there is a difference that no rewrite made, or, if `strict`, any that is not `foreseen`.
    """
    start, refused_seconds = clock.seconds.get("search", 0.0), 0.0
    exclusions = _Exclusions(space.without_foreseen(foreseen), {str(each) for each in foreseen} if strict else None)
    made = attempt(exclusions.space, tuning)
    end, searched, notes = start + made.tuning.tuning_seconds, made.tuned.timing, exclusions.notes
    spare = tuning.seconds * tuning.policy.retry_share  # what is written is timed, too, if others took all the time
    while made.is_different:
        exclusions.exclude_culprit(made)
        searched = made.tuned.timing or searched
        refused_seconds = clock.seconds.get("search", 0.0) - start
        del made  # the model with it, which may be large
        made = attempt(exclusions.space, replace(tuning, cost="none"))  # a search waits until its beginning is right
        left = end - clock.seconds.get("search", 0.0)
        if tuning.cost == "none" or made.is_different:
            continue
        if max(left, spare) <= 0:
            notes.append("not timed: searches that the check refused have taken the --seconds")
            timing = searched and searched.without_result(notes[-1])
            made = replace(made, tuned=replace(made.tuned, timing=timing))
            break
        del made
        again = replace(tuning.with_part(max(left, spare) / tuning.seconds), is_retry=True)
        made = attempt(exclusions.space, again)
        spare = spare if left > spare else 0.0
    if refused_seconds and made.tuned.timing is not None:
        timing = replace(made.tuned.timing, refused_seconds=refused_seconds)
        made = replace(made, tuned=replace(made.tuned, timing=timing))
    everywhere = [each for each in foreseen if each.is_everywhere]
    notes = [*_foreseen_notes([*everywhere, *made.refused], len(foreseen)), *notes]
    return replace(made.with_notes(*notes), refused=(*everywhere, *made.refused, *exclusions.refused))


@dataclass
class _Exclusions:
    """Rewrites that attempts do without, because the check found that they make a difference."""

    space: _RewriteSpace
    """The rewrites that are left."""
    permitted: Container[str] | None
    """The rewrites that may be left out; None for any."""
    names: set[str] = field(default_factory=set)
    """Rules and passes that are left out everywhere."""
    changes: set[PatchKey] = field(default_factory=set)
    places: Counter[str] = field(default_factory=Counter)
    """Number of places at which a rule or pass is left out."""
    refused: list[RefusedRewrite] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def exclude_culprit(self, made: Attempt) -> None:
        """Leave out the rewrite that made the difference: at its place, and everywhere after some places.

        Raises:
            DifferenceError: no rewrite made it, or one that may not be left out.
        """
        assert made.check_result is not None, "a difference was found by a check"
        guilty = made.check_result.culprit
        if guilty is None:
            raise made.check_result.to_error
        assert guilty.name not in self.names, f"{guilty.name} was left out, and made a difference all the same"
        rewrite = refused_rewrite(guilty, made.check_result.comparison)
        if (change := patch_key(guilty.patch)) in self.changes or self.places[guilty.name] == MAX_EXCLUDED_PLACES:
            self.names.add(guilty.name)
            rewrite = replace(rewrite, is_everywhere=True)
        else:
            self.changes.add(change)
            self.places[guilty.name] += 1
            rewrite = replace(rewrite, change=LoadedPlaces(made.tuned.candidate.chain[0].graph).change(guilty.patch))
        if self.permitted is not None and str(rewrite) not in self.permitted:
            raise made.check_result.to_error
        self.refused.append(rewrite)
        self.notes.append(f"{rewrite.label} was left out{rewrite.where}: with it, the model is {rewrite.difference}")
        self.space = self.space.excluding(self.names, self.changes)
        if len(self.changes) + len(self.names) > MAX_RETRIES:
            self.notes[-1] += f"; these are more than {MAX_RETRIES}, so the original is written"
            self.space = _RewriteSpace()
        log.warning("%s", self.notes[-1])


def _foreseen_notes(met: Iterable[RefusedRewrite], count: int) -> Iterator[str]:
    """Yield notes on the rewrites that are left out because a recipe says so, of so many that it names."""
    for rewrite in met:
        why = "with it, the check found a difference when the recipe was made"
        yield f"{rewrite.label} was left out{rewrite.where}: {why}"
    if count > MAX_RETRIES:
        yield f"the check refused more than {MAX_RETRIES} rewrites when the recipe was made: the original is written"


MAX_EXCLUDED_PLACES = 3
"""Places at which a rule or pass is left out, one after the other: then it is left out everywhere."""

MAX_RETRIES = 12
"""Times that something is left out because the check found a difference: then all is."""


@dataclass(frozen=True)
class _RewriteSpace:
    """Rewrites that a model may get: the rules that are always applied, those that the search tries, and the passes."""

    rules: Sequence[Rule] = ()
    trades: Sequence[Rule] = ()
    passes: Sequence[Pass] = ()
    parts: Sequence[Rule] = ()
    """Trades of time for memory, for a memory budget."""
    excluded: frozenset[PatchKey] = frozenset()
    """Changes of which the check found that they make a difference."""
    foreseen: Mapping[PortableChange, RefusedRewrite] = field(default_factory=dict)
    """Changes of which the check found that when a recipe was made."""

    @staticmethod
    def select(known: rule_library.RuleLibrary, options: Options, domains: Container[str]) -> _RewriteSpace:
        """Return the rules and passes that the options choose by name, of those whose operators the target or some
        domains have.

        Raises:
            UsageError: a name is not known.
        """
        names = [*(rule.name for rule in known.all_rules), *(pass_.name for pass_ in PASSES)]
        chosen = rule_library.select_names(names, (*options.skip, *options.held_back), options.only)
        passes = [pass_ for pass_ in PASSES if pass_.name in chosen]

        def supported(rules: Iterable[Rule]) -> list[Rule]:
            return [rule for rule in rules if rule.name in chosen and is_supported(rule, options.target, domains)]

        return _RewriteSpace(
            supported(known.rules),
            supported(known.speed_trades),
            to_exact_passes(passes) if options.exact else passes,
            [rule for rule in known.parts if rule.name in chosen],
        )

    def without_foreseen(self, foreseen: Sequence[RefusedRewrite]) -> _RewriteSpace:
        """Return the space without what the check refused when a recipe was made; none where that was too much."""
        if len(foreseen) > MAX_RETRIES:
            return _RewriteSpace()
        names = {each.name for each in foreseen if each.is_everywhere}
        changes = {each.change: each for each in foreseen if each.change is not None}
        return replace(self.excluding(names), foreseen=changes)

    def excluding(self, names: Container[str], changes: Iterable[PatchKey] = ()) -> _RewriteSpace:
        """Return the space without some names and changes."""
        return _RewriteSpace(
            [rule for rule in self.rules if rule.name not in names],
            [rule for rule in self.trades if rule.name not in names],
            [pass_ for pass_ in self.passes if pass_.name not in names],
            [rule for rule in self.parts if rule.name not in names],
            self.excluded.union(changes),
            self.foreseen,
        )


def _unproved_notes(gate: Gate) -> list[str]:
    """Return notes on rules that would have been applied had they been proved, or proved for more cases."""
    if gate.unproved:
        names = ", ".join(sorted(gate.unproved))
        log.warning("rules left out because they are not proved: %s; `graphopt verify` says why", names)
    notes = dict.fromkeys(gate.unproved, "it is not proved") | gate.withheld
    return [f"rule {name} was not applied: {why}" for name, why in sorted(notes.items())]
