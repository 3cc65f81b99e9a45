"""The pipeline: load, simplify, search, check, report."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, wraps
from inspect import Parameter, Signature
from inspect import signature as get_signature
from os import PathLike
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from graphopt.attempts import Attempt, Clock, Opsets
from graphopt.base import ort
from graphopt.base.errors import ModelError, did_you_mean
from graphopt.base.limits import RunLimits
from graphopt.base.session import Session, current
from graphopt.base.types import TensorType
from graphopt.check.blame import Change, Check, change, label, place
from graphopt.check.verdict import check_text
from graphopt.io import onnx_io, opsets
from graphopt.io.ways import first_opset
from graphopt.ir.graph import Graph, Patch
from graphopt.language import library
from graphopt.language.rule import Rule
from graphopt.operators import infer
from graphopt.operators.fixing import fix_inputs
from graphopt.options import AUTO, Options
from graphopt.report.report import Report, Rewrite, Summary
from graphopt.rewrite import idle
from graphopt.rewrite.build import Refusal
from graphopt.rewrite.candidate import Candidate
from graphopt.rewrite.fixpoint import Step, simplify_graph
from graphopt.rewrite.folded import Noted
from graphopt.rewrite.gate import Gate
from graphopt.rewrite.passes import PASSES, Pass, exact_forms
from graphopt.runtime.cost import user_cache
from graphopt.runtime.kernels import Kernels
from graphopt.runtime.sessions import called
from graphopt.search.tune import Tuned, Tuner, Tuning

if TYPE_CHECKING:
    import onnx

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Result:
    """An optimized model and what was done to it. Unpacks as `model, ok = result`.

    Attributes:
        loaded: the optimized model as graphopt holds it, its weights still where they lay.
        report: what was done and found; `report.to_json()` is what the command line writes with `--report`.
        session: the session of the run, which knows the operators that its rules define.
    """

    loaded: onnx_io.Model
    report: Report
    session: Session = field(default_factory=current)

    @cached_property
    def model(self) -> onnx.ModelProto:
        """The optimized model as a protobuf of its own; what lay in external files is still named there.

        To write it to another folder, or where it is over 2 GB and cannot be a protobuf, use `save`.
        """
        with self.session.but():
            return onnx_io.to_proto(self.loaded)

    @property
    def ok(self) -> bool:
        """True where the check found the models equal, also in failing the same way; False where it was left out or
        could not be made.

        `report.comparison` says which: its `verdict`, what was `skipped`, and why.
        """
        return self.report.comparison is not None and self.report.comparison.ok

    @property
    def changed(self) -> bool:
        """True where anything was rewritten."""
        return bool(self.report.rewrites)

    def save(self, path: str | PathLike[str], *, external: bool | None = None) -> int:
        """Write the model and return its size in bytes; nobody ever meets half of it, as `onnx_io.save` says.

        `external` puts weights into `<path>.data`, or `<path>.<digest>.data` to replace others; by default only above
        1.9 GB.

        Raises:
            OutputError: it cannot be written; what was there stays.
        """
        with self.session.but():
            return onnx_io.save(self.loaded, path, external=external)

    def __repr__(self) -> str:
        return f"<Result: {self.report!r}>"

    def __iter__(self) -> Iterator[Any]:
        yield self.model
        yield self.ok


P = ParamSpec("P")


def _by_keyword(
    options: Callable[P, Options],
) -> Callable[[Callable[[onnx_io.Source, Options], Result]], Callable[Concatenate[onnx_io.Source, P], Result]]:
    """Give a function of options the fields of `Options` as its keywords, to callers, type checkers and `help`."""

    def decorate(
        function: Callable[[onnx_io.Source, Options], Result],
    ) -> Callable[Concatenate[onnx_io.Source, P], Result]:
        @wraps(function)
        def by_keyword(model: onnx_io.Source, /, *args: P.args, **keywords: P.kwargs) -> Result:
            for name in keywords.keys() - names:
                raise TypeError(f"{function.__name__}() has no option '{name}'{did_you_mean(name, names)}")
            return function(model, options(*args, **keywords))

        names = get_signature(options).parameters
        first = Parameter("model", Parameter.POSITIONAL_ONLY, annotation="onnx_io.Source")
        signature = Signature([first, *names.values()], return_annotation="Result")
        vars(by_keyword)["__signature__"] = signature
        return by_keyword

    return decorate


@_by_keyword(Options)
def optimize(model: onnx_io.Source, options: Options) -> Result:
    """Optimize a model: the same function, faster in ONNX Runtime. The caller's object is not changed.

    Rules that pay in every model are applied first; those that pay in some are tried on the distinct parts of the
    model. Whole versions of it then take turns with the original: the result is faster beyond noise, or no slower.

    Args:
        model: a path, `onnx.ModelProto`, `onnx_ir.Model` or what `torch.onnx.export` returns.
        options: the fields of `graphopt.Options`, which says what each means, as keywords: `exact=True`.

    Raises:
        ModelError: the model is not legal, or contradicts what was asked for, or a run of it takes too much.
        RuleError: a file of `rules` cannot be read, or a rule in it is ill-formed.
        UsageError: an unknown rule, input, dim, provider or cost, a library of custom operators that cannot be loaded,
            no time to search, or options that exclude each other.
        ProofError: one of `rules` is not proved.
        DifferenceError: the check found a difference, and `strict` was asked for, or no rewrite made it.
    """
    with current().child(), ort.custom_ops(options.custom_ops):
        return _Run(model, options).result()


@dataclass(frozen=True)
class _Run:
    """One run of the pipeline: attempts, until the check finds no difference."""

    model: onnx_io.Source
    options: Options
    clock: Clock = field(default_factory=Clock)

    def result(self) -> Result:
        options = self.options
        made = self._opsets.faster() if options.target_opset == AUTO else self._made(options.opset, 1.0)
        notes = [*self._untargeted(), *_refusals(self._gate), *self._kernels.notes]
        result = self._reported(made, notes)
        found = result.report.comparison
        if found is not None and not found.legal:
            reason = f"{called(self.model)}: {found.reason.rstrip('.')}"
            raise ModelError(f"{reason}. --no-check (check=False) writes it unchecked")
        return result

    def _made(self, opset: int | None, share: float) -> Attempt:
        """Return what is made of the model in an opset, None for its own, in a share of the time."""
        tuning = replace(self._tuning, seconds=self.options.seconds * share)
        return _checked(partial(self._attempt, opset), self._space, tuning, self.clock, strict=self.options.strict)

    @property
    def _opsets(self) -> Opsets:
        return Opsets(self._own_opset, self._written_opset, self._made, self.options, self._tuning, self.clock)

    def _reported(self, made: Attempt, notes: Iterable[str]) -> Result:
        """Return an attempt as a result, with its report."""
        tuned, loaded = made.tuned, made.loaded
        comparison = None if made.finding is None else made.finding.comparison
        rewrites, noted = _rewrites(tuned.candidate.steps, self._gate), (*made.notes, *notes)
        return Result(
            loaded, Report.of(made.before, loaded, rewrites, comparison, self.clock.seconds, noted, tuned.timing)
        )

    def _untargeted(self) -> list[str]:
        """Return what to say of rules that were given, and that write what the target does not have."""
        lacking = [rule.name for rule in self._given.everything if not self.options.has(rule)]
        if not lacking:
            return []
        note = f"{', '.join(lacking)}: not used, as only --target onnxruntime has ONNX Runtime's own operators"
        log.warning("%s", note)
        return [note]

    @cached_property
    def _given(self) -> library.Library:
        return library.read(self.options.rules)

    @cached_property
    def _library(self) -> library.Library:
        return library.load(self._given)

    @cached_property
    def _space(self) -> _Space:
        with self.clock("load"):
            return _Space.of(self._library, self.options)

    @property
    def _own_opset(self) -> int:
        """The opset that the model has, 0 where it has none."""
        with self.clock("load"):
            return self._loaded.graph.opsets.get("", 0)

    @property
    def _written_opset(self) -> int:
        """The first opset that has all operators which admitted rules write; the model's, if that has them."""
        own = self._own_opset
        newer = (rule for rule in (*self._space.rules, *self._space.trades) if first_opset(rule) > own)
        with self.clock("prove"):
            return max((first_opset(rule) for rule in newer if self._gate.admits(rule)), default=own)

    @cached_property
    def _gate(self) -> Gate:
        options = self.options
        return Gate(
            exact=options.exact,
            unverified=options.unverified,
            keep_nonfinite=options.keep_nonfinite,
            is_cpu=options.setting.is_cpu,
            progress=options.tell,
        )

    @cached_property
    def _kernels(self) -> Kernels:
        return Kernels(self.options.setting)

    def _refusal(self, space: _Space) -> Refusal:
        return space.refusal(self._kernels.exact_refusal if self.options.exact else self._kernels.refusal)

    @cached_property
    def _tuning(self) -> Tuning:
        options = self.options
        return Tuning(
            options.cost,
            options.setting,
            options.seconds,
            options.open_dims,
            options.inputs,
            options.seed,
            options.admits,
            options.dask,
        )

    def _attempt(self, opset: int | None, space: _Space, tuning: Tuning) -> Attempt:
        """Simplify, search and check once; in this opset, or where it is None in the model's own."""
        options, clock, refusal = self.options, self.clock, self._refusal(space)
        with clock("load"):
            loaded = self._loaded
            before = Report.summary(loaded)
            is_run = options.check or options.cost == "measured"
            _demand_room(loaded.graph if is_run else Graph(), options.limits, called(self.model))
        if opset is not None:
            with clock("convert"), onnx_io.naming(loaded.path):
                loaded = self._converted(loaded, opset)
        given = [rule for rule in (*space.rules, *space.trades) if rule in self._given.everything]
        if given:
            with clock("prove"):
                self._gate.demand(given)
        with clock("simplify"), onnx_io.naming(loaded.path):  # it reads weights that may be broken
            graph = loaded.graph.copy()
            done = simplify_graph(
                graph,
                space.rules,
                space.passes,
                allows=self._gate.allows,
                refusal=refusal,
                progress=options.tell,
            )
            always = [rule for rule in given if rule in space.rules]
            notes = [*done.notes, *idle.without_gain(graph, always, self._gate.allows, refusal)]
            notes += idle.of_functions(graph, given, loaded.functions)
        tuned = Tuned(Candidate(graph, done.steps, Candidate(loaded.graph)))
        if tuning.cost != "none":
            with clock("search"), current().but(limits=options.limits):
                tuned = self._tuner(loaded, tuned.candidate, space, tuning).tune()
        finding = None
        if options.check:
            with clock("check"), current().but(limits=options.limits):
                target = None if opset == before.opsets.get("ai.onnx") else opset
                finding = self._check(loaded, before, tuned.candidate, target).run()
        notes += tuned.notes
        return Attempt(replace(loaded, graph=tuned.candidate.graph), before, tuned, tuple(notes), finding)

    @cached_property
    def _loaded(self) -> onnx_io.Model:
        """Return the model with its types inferred and some of its sizes fixed."""
        options = self.options
        loaded = onnx_io.load(onnx_io.copied(self.model), inline_functions=options.inline_functions)
        with onnx_io.naming(loaded.path):
            infer.infer_graph(loaded.graph)
            opsets.raise_nodes(loaded.graph)  # some could not be while their types were unknown
            if options.fixed_shapes or options.fixed_dims:
                fix_inputs(loaded.graph, options.fixed_shapes, options.fixed_dims)
        return loaded

    def _converted(self, loaded: onnx_io.Model, opset: int) -> onnx_io.Model:
        loaded = replace(loaded, graph=loaded.graph.copy())
        before = [(graph, graph.opsets) for graph in loaded.graph.graphs()]
        converted = onnx_io.converted(loaded, opset)
        if self.options.check:
            self._kernels.demand(before)
        return converted

    def _tuner(self, loaded: onnx_io.Model, simplified: Candidate, space: _Space, tuning: Tuning) -> Tuner:
        return Tuner(
            self.model,
            loaded,
            simplified,
            space.rules,
            space.trades,
            space.passes,
            self._gate.allows,
            tuning,
            self.options.tell,
            self._refusal(space),
            sweeps=self._library.sweeps,
            is_bounded=not self._given.parts,
            cache=user_cache(fresh=self.options.fresh),
        )

    def _check(self, loaded: onnx_io.Model, before: Summary, result: Candidate, target: int | None) -> Check:
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
            options.tell,
            target,
        )


def _checked(
    attempt: Callable[[_Space, Tuning], Attempt], space: _Space, tuning: Tuning, clock: Clock, *, strict: bool
) -> Attempt:
    """Attempt it without the rewrites that made a difference, until there is none; note what was left out.

    Raises:
        DifferenceError: there is a difference that no rewrite made, or, if `strict`, any.
    """
    end = clock.seconds.get("search", 0.0) + tuning.seconds
    made, notes = attempt(space, tuning), list[str]()
    left_out, changes, places = set[str](), set[Change](), Counter[str]()
    spare = tuning.seconds * tuning.policy.retry_share  # what is written is timed, too, if others took all the time
    while made.finding is not None and made.is_different:
        guilty = made.finding.guilty
        if strict or guilty is None:
            raise made.finding.error
        assert guilty.name not in left_out, f"{guilty.name} was left out, and made a difference all the same"
        difference, where = check_text(made.finding.comparison), ""
        if (found := change(guilty.patch)) in changes or places[guilty.name] == PLACES:
            left_out.add(guilty.name)
        else:
            changes.add(found)
            places[guilty.name] += 1
            where = f" at {place(guilty)}"
        notes.append(f"{label(guilty)} was left out{where}: with it, the model is {difference}")
        space = space.without(left_out, changes)
        if len(changes) + len(left_out) > RETRIES:
            notes[-1] += f"; these are more than {RETRIES}, so the original is written"
            space = _Space()
        log.warning("%s", notes[-1])
        del made, guilty  # the model with it, which may be large
        made = attempt(space, replace(tuning, cost="none"))  # a search waits until what it begins with is right
        left = end - clock.seconds.get("search", 0.0)
        if tuning.cost == "none" or made.is_different:
            continue
        if max(left, spare) <= 0:
            notes.append("not timed: searches that the check refused have taken the --seconds")
            break
        del made
        made = attempt(space, replace(tuning, seconds=max(left, spare)))
        spare = spare if left > spare else 0.0
    return made.noting(*notes)


PLACES = 3
"""Places at which a rule or pass is left out, one after the other: then it is left out everywhere."""

RETRIES = 12
"""Times that something is left out because the check found a difference: then all is."""

DIFFERS = Noted("the check found a difference there")
"""Why a change is refused in a later attempt, which is noted where it is left out."""


@dataclass(frozen=True)
class _Space:
    """What may be done to a model: the rules that are always applied, those that the search tries, and the passes."""

    rules: Sequence[Rule] = ()
    trades: Sequence[Rule] = ()
    passes: Sequence[Pass] = ()
    left_out: frozenset[Change] = frozenset()
    """Changes of which the check found that they make a difference."""

    @staticmethod
    def of(known: library.Library, options: Options) -> _Space:
        """Return what was chosen by name, of all that there is.

        Raises:
            UsageError: a name is not known.
        """
        names = [*(rule.name for rule in known.everything), *(pass_.name for pass_ in PASSES)]
        chosen = library.select(names, options.skip, options.only)
        passes = [pass_ for pass_ in PASSES if pass_.name in chosen]
        return _Space(
            [rule for rule in known.rules if rule.name in chosen and options.has(rule)],
            [rule for rule in known.trades if rule.name in chosen and options.has(rule)],
            exact_forms(passes) if options.exact else passes,
        )

    def refusal(self, refusal: Refusal) -> Refusal:
        """Return what refuses what is left out, beside what is refused anyway."""
        if not self.left_out:
            return refusal

        def refused(graph: Graph, patch: Patch) -> str:
            return DIFFERS if change(patch) in self.left_out else refusal(graph, patch)

        return refused

    def without(self, names: Container[str], changes: Iterable[Change] = ()) -> _Space:
        """Return the rest of it."""
        return _Space(
            [rule for rule in self.rules if rule.name not in names],
            [rule for rule in self.trades if rule.name not in names],
            [pass_ for pass_ in self.passes if pass_.name not in names],
            self.left_out.union(changes),
        )


def _demand_room(graph: Graph, limits: RunLimits, model: str) -> None:
    """Raise a LimitError for a value that a run makes, and that is larger than all memory."""
    for inner in graph.graphs():
        for _, node in inner.nodes():
            for name, type_ in zip(node.names, node.types, strict=True):
                if isinstance(type_, TensorType) and isinstance(type_.size, int) and node.data is None:
                    limits.demand_room(
                        type_.size * type_.dtype.bits // 8, f"{model}: '{name}' of node {node.op}, {type_},"
                    )


def _refusals(gate: Gate) -> list[str]:
    """Return what to say of rules that would have been applied had they been proved, or proved for more."""
    if gate.refused:
        names = ", ".join(sorted(gate.refused))
        log.warning("rules left out because they are not proved: %s; `graphopt verify` says why", names)
    notes = dict.fromkeys(gate.refused, "it is not proved") | gate.withheld
    return [f"rule {name} was not applied: {why}" for name, why in sorted(notes.items())]


def _rewrites(steps: Sequence[Step], gate: Gate) -> tuple[Rewrite, ...]:
    return tuple(
        Rewrite(
            name=step.name,
            is_rule=step.is_rule,
            graph=step.graph.name,
            removed=tuple(f"{n.op} {n.name}".strip() for n in step.patch.removed if not n.is_internal),
            added=tuple(f"{n.op} {n.name}".strip() for n in step.patch.added if not n.is_internal),
            proof=gate.claim(step.name) if step.is_rule else None,
        )
        for step in steps
    )
