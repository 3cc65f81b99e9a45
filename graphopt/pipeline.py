"""The pipeline on one page: load, simplify, search, check, report."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from graphopt.base.errors import UsageError
from graphopt.base.limits import SECONDS, RunLimits, limited
from graphopt.base.types import TensorType
from graphopt.check.blame import Check, Finding, label
from graphopt.check.verdict import check_text
from graphopt.io import onnx_io, opsets
from graphopt.ir.graph import Graph
from graphopt.language import library
from graphopt.language.rule import Rule
from graphopt.operators import infer
from graphopt.report.report import Report, Rewrite, Summary
from graphopt.rewrite.fixpoint import Step, simplify_graph
from graphopt.rewrite.gate import Gate
from graphopt.rewrite.passes import PASSES, Pass, exact_forms
from graphopt.runtime.cost import user_cache
from graphopt.runtime.kernels import Kernels
from graphopt.runtime.sessions import Setting, called
from graphopt.search.tune import Tuned, Tuner, Tuning

if TYPE_CHECKING:
    import onnx

log = logging.getLogger(__name__)

Progress = Callable[[str, float], None]
"""Told the stage and how much of it is done, 0 to 1."""


@dataclass(frozen=True, eq=False)
class Result:
    """An optimized model and what was done to it. Unpacks as `model, ok = result`."""

    loaded: onnx_io.Model
    report: Report

    @cached_property
    def model(self) -> onnx.ModelProto:
        """The optimized model as a protobuf of its own. Models over 2 GB cannot be one: use `save`."""
        return onnx_io.to_proto(self.loaded)

    @property
    def ok(self) -> bool:
        """True where the check found the models equal; False where it was left out or could not be made."""
        return self.report.comparison is not None and self.report.comparison.ok

    @property
    def changed(self) -> bool:
        return bool(self.report.rewrites)

    def save(self, path: str | PathLike[str], *, external: bool | None = None) -> int:
        """Write the model and return its size in bytes; nobody ever meets half of it, as `onnx_io.save` says.

        `external` puts weights into `<path>.data`, or `<path>.<digest>.data` to replace others; by default only above
        1.9 GB.
        """
        return onnx_io.save(self.loaded, path, external=external)

    def __repr__(self) -> str:
        return f"<Result: {self.report!r}>"

    def __iter__(self) -> Iterator[Any]:
        yield self.model
        yield self.ok


@dataclass
class _Clock:
    """Seconds by stage."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start


def optimize(
    model: onnx_io.Source,
    *,
    skip: Sequence[str] = (),
    only: Sequence[str] | None = None,
    rules: Sequence[library.Source] = (),
    unverified: bool = False,
    exact: bool = False,
    keep_nonfinite: bool = False,
    check: bool = True,
    strict: bool = False,
    input_shapes: Mapping[str, Sequence[int | str | None]] | None = None,
    dims: Mapping[str, int | Sequence[int]] | None = None,
    target_opset: int | None = None,
    inline_functions: bool = True,
    cost: str = "measured",
    provider: str = "cpu",
    provider_options: Mapping[str, str] | None = None,
    threads: int = 0,
    seconds: float = 60.0,
    fresh: bool = False,
    seed: int = 0,
    inputs: Mapping[str, Any] | None = None,
    run_limit: float = SECONDS,
    memory_limit: float | None = None,
    progress: Progress | None = None,
) -> Result:
    """Optimize a model: the same function, faster in ONNX Runtime. The caller's object is not changed.

    Rules that pay in every model are applied first; those that pay in some are tried on the distinct parts of the
    model. Whole versions of it then take turns with the original: the result is faster beyond noise, or no slower.

    Args:
        model: a path, `onnx.ModelProto`, `onnx_ir.Model` or what `torch.onnx.export` returns.
        skip, only: names of rules and passes (`graphopt rules` lists them).
        rules: further rules, or `.py` and `.jsonl` files of them; they are proved first.
        unverified: apply rules that are not proved, too; the report says where.
        exact: change no bit of the outputs: use only rules and passes that round nothing otherwise, and none in half
            precision where ONNX Runtime computes some of it in single precision.
        keep_nonfinite: keep infinities and NaN where they are: use no rule that is proved for finite values only.
        check: run the original and the result on random inputs and compare. A rewrite that made a difference is left
            out, with a warning and a note in the report, and all is done again without it.
        strict: raise an error instead.
        input_shapes, dims: sizes to fix for good, by input and by name of a dim. A dim with several sizes stays open
            and is measured at each; what is not said is measured at a usual size.
        target_opset: the opset of the result; by default that of the model. With the check, it is an error where ONNX
            Runtime has a kernel for a node in the model's opset, and none in this.
        inline_functions: put the bodies of model-local functions in the place of their calls.
        cost: what the search asks: "measured", or "analytic", an estimate for which nothing is run, or "none": no
            search and no timing.
        provider, provider_options, threads: of ONNX Runtime, to measure with; no threads are one a core.
        seconds: for the search and the timing, about, at most.
        fresh: time again what earlier runs have timed, for all of that is kept.
        seed, inputs: of the check and the timing.
        run_limit: the most seconds that one run of a model may take.
        memory_limit: the most gigabytes that the process may take in all to run one; by default what it takes and nine
            tenths of what is free. It is looked at before a run, ten times a second, and after it: a peak in between
            is not seen.

    Raises:
        ModelError: the model is not legal, or contradicts what was asked for, or a run of it takes too much.
        UsageError: an unknown rule, input, dim, provider or cost, no time to search, or `unverified` beside
            `exact` or `keep_nonfinite`, or `strict` without the check.
        ProofError: one of `rules` is not proved.
        DifferenceError: the check found a difference, and `strict` was asked for, or no rewrite made it.
    """
    if strict and not check:
        raise UsageError("strict needs the check: without it no difference is found")
    tell = progress or (lambda stage, done: None)
    clock = _Clock()
    gate = Gate(exact=exact, unverified=unverified, keep_nonfinite=keep_nonfinite, progress=tell)
    setting, limits = Setting(provider, threads, provider_options or {}), RunLimits(run_limit, memory_limit)
    kernels = Kernels(setting)
    refusal = kernels.exact_refusal if exact else kernels.refusal
    fixed, open_ = _split(dims or {})
    admits = "exact" if exact else "unverified" if unverified else "proved"
    admits += ", nonfinite kept" if keep_nonfinite else ""
    tuning = Tuning(cost, setting, seconds, open_, inputs, seed, admits)
    with clock("load"):
        given = library.read(rules)
        known = library.load(given)
        space = _Space.of(known, skip, only, exact=exact)

    def attempt(space: _Space, tuning: Tuning) -> _Attempt:
        with clock("load"):
            loaded = _loaded(model, inline_functions, input_shapes or {}, fixed)
            before = Report.summary(loaded)
            _demand_room(loaded.graph if check or cost == "measured" else Graph(), limits, called(model))
        if target_opset is not None:
            with clock("convert"):
                before_it = [(graph, graph.opsets) for graph in loaded.graph.graphs()]
                loaded = onnx_io.converted(loaded, target_opset)
                if check:
                    kernels.demand(before_it)
        if given.parts:
            with clock("prove"):
                gate.demand(rule for rule in (*space.rules, *space.trades) if rule in given.everything)
        with clock("simplify"):
            done = simplify_graph(
                loaded.graph, space.rules, space.passes, allows=gate.allows, refusal=refusal, progress=tell
            )
        tuned = Tuned(done.steps)
        if tuning.cost != "none":
            with clock("search"), limited(limits):
                cache = user_cache(fresh=fresh)
                searched = (space.rules, space.trades, space.passes, gate.allows, tuning, tell, refusal)
                tuned = Tuner(model, loaded, *searched, sweeps=known.sweeps, cache=cache).tune(done.steps)
        finding = None
        if check:
            with clock("check"), limited(limits):
                finding = Check(
                    model, loaded, before.weight_bytes, tuned.steps, seed, inputs, exact, keep_nonfinite, tell
                ).run()
        return _Attempt(loaded, before, tuned, done.notes, finding)

    made, notes = _checked(attempt, space, tuning, clock, strict=strict)
    return made.result(gate, clock, [*notes, *_refusals(gate), *kernels.notes])


def _checked(
    attempt: Callable[[_Space, Tuning], _Attempt], space: _Space, tuning: Tuning, clock: _Clock, *, strict: bool
) -> tuple[_Attempt, list[str]]:
    """Attempt it without the rewrites that made a difference, until there is none; say what was left out.

    Raises:
        DifferenceError: there is a difference that no rewrite made, or, if `strict`, any.
    """
    made, left_out, notes = attempt(space, tuning), set[str](), list[str]()
    spare = tuning.seconds / 4  # what is written is timed, too, if others took all the time
    while made.finding is not None and made.is_different:
        guilty = made.finding.guilty
        if strict or guilty is None:
            raise made.finding.error
        assert guilty.name not in left_out, f"{guilty.name} was left out, and made a difference all the same"
        left_out.add(guilty.name)
        difference = check_text(made.finding.comparison)
        notes.append(f"{label(guilty)} was left out: with it, the model is {difference}")
        space = space.without(left_out)
        if len(left_out) > RETRIES:
            notes[-1] += f"; these are more than {RETRIES}, so the original is written"
            space = _Space()
        log.warning("%s", notes[-1])
        del made, guilty  # the model with it, which may be large
        made = attempt(space, replace(tuning, cost="none"))  # a search waits until what it begins with is right
        left = tuning.seconds - clock.seconds.get("search", 0.0)
        if tuning.cost == "none" or made.is_different:
            continue
        if max(left, spare) <= 0:
            notes.append("not timed: searches that the check refused have taken the --seconds")
            break
        del made
        made = attempt(space, replace(tuning, seconds=max(left, spare)))
        spare = spare if left > spare else 0.0
    return made, notes


RETRIES = 8
"""Rewrites that are left out, one after the other, because the check found a difference: then all of them are."""


@dataclass(frozen=True)
class _Space:
    """What may be done to a model: the rules that are always applied, those that the search tries, and the passes."""

    rules: Sequence[Rule] = ()
    trades: Sequence[Rule] = ()
    passes: Sequence[Pass] = ()

    @staticmethod
    def of(known: library.Library, skip: Sequence[str], only: Sequence[str] | None, *, exact: bool) -> _Space:
        """What was chosen by name, of all that there is.

        Raises:
            UsageError: a name is not known.
        """
        names = [*(rule.name for rule in known.everything), *(pass_.name for pass_ in PASSES)]
        chosen = library.select(names, skip, only)
        passes = [pass_ for pass_ in PASSES if pass_.name in chosen]
        return _Space(
            [rule for rule in known.rules if rule.name in chosen],
            [rule for rule in known.trades if rule.name in chosen],
            exact_forms(passes) if exact else passes,
        )

    def without(self, names: Container[str]) -> _Space:
        """The rest of it."""
        return _Space(
            [rule for rule in self.rules if rule.name not in names],
            [rule for rule in self.trades if rule.name not in names],
            [pass_ for pass_ in self.passes if pass_.name not in names],
        )


@dataclass(frozen=True)
class _Attempt:
    """A model that was optimized, and what the check found."""

    loaded: onnx_io.Model
    before: Summary
    tuned: Tuned
    notes: tuple[str, ...]
    finding: Finding | None

    @property
    def is_different(self) -> bool:
        return self.finding is not None and self.finding.is_different

    def result(self, gate: Gate, clock: _Clock, notes: Iterable[str]) -> Result:
        comparison = None if self.finding is None else self.finding.comparison
        rewrites, said = _rewrites(self.tuned.steps, gate), (*self.notes, *self.tuned.notes, *notes)
        timing = self.tuned.timing
        return Result(
            self.loaded, Report.of(self.before, self.loaded, rewrites, comparison, clock.seconds, said, timing)
        )


def _loaded(
    model: onnx_io.Source,
    inline_functions: bool,
    input_shapes: Mapping[str, Sequence[int | str | None]],
    dims: Mapping[str, int],
) -> onnx_io.Model:
    """The model with its types inferred and some of its sizes fixed."""
    loaded = onnx_io.load(model, inline_functions=inline_functions)
    infer.infer_graph(loaded.graph)
    opsets.raise_nodes(loaded.graph)  # some could not be while their types were unknown
    if input_shapes or dims:
        infer.fix_inputs(loaded.graph, input_shapes, dims)
    return loaded


def _demand_room(graph: Graph, limits: RunLimits, model: str) -> None:
    """Raise a LimitError for a value that a run makes, and that is larger than all memory."""
    for inner in graph.graphs():
        for _, node in inner.nodes():
            for name, type_ in zip(node.names, node.types, strict=True):
                if isinstance(type_, TensorType) and isinstance(type_.size, int) and node.data is None:
                    limits.demand_room(
                        type_.size * type_.dtype.bits // 8, f"{model}: '{name}' of node {node.op}, {type_},"
                    )


def _split(dims: Mapping[str, int | Sequence[int]]) -> tuple[dict[str, int], dict[str, Sequence[int]]]:
    """The sizes that are fixed for good, and those of dims that stay open, to measure at."""
    fixed = {name: int(size) for name, size in dims.items() if isinstance(size, int | np.integer)}
    return fixed, {name: sizes for name, sizes in dims.items() if not isinstance(sizes, int | np.integer)}


def _refusals(gate: Gate) -> list[str]:
    """What to say of rules that would have been applied had they been proved, or proved for more."""
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


def simplify(
    model: onnx_io.Source,
    check_n: int = 0,
    perform_optimization: bool = True,
    skip_fuse_bn: bool = False,
    overwrite_input_shapes: Mapping[str, Sequence[int]] | None = None,
    test_input_shapes: Mapping[str, Sequence[int]] | None = None,
    skipped_optimizers: Sequence[str] | None = None,
    skip_constant_folding: bool = False,
    input_data: Mapping[str, Any] | None = None,
    dynamic_input_shape: bool = False,  # noqa: ARG001  # dynamic shapes need no option here
    *,
    target_opset_version: int | None = None,
    **others: object,
) -> tuple[onnx.ModelProto, bool]:
    """`onnxsim.simplify` with its keyword names, for code that is ported by changing an import.

    Returns the model and whether the check passed; with `check_n=0`, as there, no check is made and the answer is
    True. Dynamic shapes need no option. Names in `skipped_optimizers` that graphopt does not have, and keywords of
    onnxsim's that mean nothing here, are warned about.

    Raises:
        UsageError: `test_input_shapes`, which has no counterpart: give `input_data`.
    """
    if test_input_shapes:
        raise UsageError("test_input_shapes has no counterpart in graphopt: give input_data")
    for keyword in others:
        warnings.warn(f"graphopt has no option '{keyword}': it is ignored", stacklevel=2)
    names = {rule.name for rule in library.load_rules()} | {pass_.name for pass_ in PASSES}
    wanted = [*(skipped_optimizers or ())]
    for name in set(wanted) - names:
        warnings.warn(f"graphopt has no rule or pass '{name}' to skip", stacklevel=2)
    skip = [name for name in wanted if name in names]
    skip += [name for name in names if skip_fuse_bn and name.startswith("fuse_bn_into_")]
    skip += ["fold_constants"] * skip_constant_folding
    result = optimize(
        model,
        skip=sorted(names) if not perform_optimization else skip,
        check=check_n > 0,
        input_shapes=overwrite_input_shapes,
        inputs=input_data,
        target_opset=target_opset_version,
        cost="none",
    )
    return result.model, result.ok or check_n == 0
