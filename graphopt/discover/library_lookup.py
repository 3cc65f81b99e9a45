"""Look-up of rules in a library, on small models drawn for a rule; and large models of it, to be timed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from graphopt.io import onnx_io
from graphopt.ir.graph import Graph
from graphopt.language import rule_library as libraries
from graphopt.language.rule import Rule
from graphopt.language.rule_library import RuleLibrary
from graphopt.language.scalar_functions import UndecidedScalarError
from graphopt.language.type_inference import NoInstance
from graphopt.operators import inference
from graphopt.operators.rule_families import root_operators
from graphopt.rewrite.build import RewriteRefused, build_patch
from graphopt.rewrite.matching import find_matches
from graphopt.rewrite.passes import PASSES
from graphopt.rewrite.regions import graph_digest
from graphopt.rewrite.simplify import simplify_graph

if TYPE_CHECKING:
    from onnx import ModelProto

TRIED_INSTANCES = 2
"""Instances at which the library has to do what a rule does."""
IDENTITY_RULE = "eliminate_identity"
"""The rule that applies to the model of a bare hole, and says nothing about other rules."""
LARGE = 64
PACKS: Mapping[str, tuple[int, ...]] = {"b": (8,), "s": (28, 28), "k": (3, 3)}
ANY = (8, 64, 64)
"""Sizes of drawn tensors: of axes, of packs, of tensors of any rank."""


@dataclass(frozen=True)
class LookupResult:
    """The rules of a library that do together what a rule does; none where it lacks that."""

    rules: tuple[str, ...]
    is_found: bool


@dataclass(frozen=True)
class LookupTask:
    """A rule that is looked up in files of rules and, where `installed`, in those that are installed."""

    rule: Rule
    files: tuple[Path, ...]
    installed: bool


def run_lookup(task: LookupTask) -> LookupResult:
    """Return whether a library has a rule: a task of its own, so that it may be answered anywhere."""
    given = libraries.read_rules(task.files)
    return find_in_library(task.rule, libraries.load_library(given) if task.installed else given)


def find_in_library(rule: Rule, library: RuleLibrary) -> LookupResult:
    """Return whether the library leads from the left side of a rule to the right one, or to its simplified form.

    Its simplifying rules are used on both, and one of its trades on the left.
    """
    used: dict[str, None] = {}
    tried = 0
    for left, right in _models(rule, TRIED_INSTANCES):
        tried += 1
        names = _find_rewrites(left, right, library)
        if names is None:
            return LookupResult((), False)
        used |= dict.fromkeys(names)
    return LookupResult(tuple(name for name in used if name != IDENTITY_RULE), tried > 0)


def _find_rewrites(left: ModelProto, right: ModelProto, library: RuleLibrary) -> list[str] | None:
    """Return the rules that lead from one model to the other, None where none do."""
    goal, after = _simplify_model(right, library)
    graph, before = _simplify_model(left, library)
    if graph_digest(graph) == graph_digest(goal):
        return [name for name in (*before, *after) if name in {rule.name for rule in library.rules}]
    for trade, traded in _apply_trades(left, library):
        names = [step.name for step in simplify_graph(traded, library.rules, PASSES).steps]
        if graph_digest(traded) == graph_digest(goal):
            return [trade.name, *(name for name in names if name in {rule.name for rule in library.rules})]
    return None


def _simplify_model(model: ModelProto, library: RuleLibrary) -> tuple[Graph, list[str]]:
    graph = read_graph(model)
    steps = simplify_graph(graph, library.rules, PASSES).steps
    return graph, [step.name for step in steps if step.is_rule]


def _apply_trades(model: ModelProto, library: RuleLibrary) -> Iterator[tuple[Rule, Graph]]:
    """Yield the graphs that one trade makes of a model."""
    operators = {node.op for _, node in read_graph(model).nodes()}
    for trade in library.trades:
        if not operators.isdisjoint(root_operators(trade.left[0])):
            for place in range(len(list(find_matches(trade, read_graph(model))))):
                graph = read_graph(model)
                match = list(find_matches(trade, graph))[place]
                try:
                    graph.apply(build_patch(graph, match))
                except RewriteRefused:
                    continue
                yield trade, graph


def read_graph(model: ModelProto | str) -> Graph:
    """Return the graph of a model, or of its file, with its types inferred."""
    graph = onnx_io.load_model(model).graph
    inference.infer_graph(graph)
    return graph


def _models(rule: Rule, count: int) -> Iterator[tuple[ModelProto, ModelProto]]:
    """Yield both sides of a rule at drawn instances, as models of floats."""
    from graphopt.base.dtype import DType
    from graphopt.verifier.instance_models import build_models
    from graphopt.verifier.instance_sampling import sample_instances
    from graphopt.verifier.sampling_scope import SamplingScope

    scope = SamplingScope(ranks=(2, 3), packs=(1, 2), sizes=(2, 3, 4, 5), dtypes=(DType.FLOAT,))
    for instance in sample_instances(rule, seed=1, count=count, attempts=400, scope=scope):
        try:
            yield build_models(rule, instance)
        except (NoInstance, UndecidedScalarError):
            continue


def large_sides(rule: Rule) -> tuple[Graph, Graph] | None:
    """Return both sides of a rule at large tensors; None where none were drawn."""
    from graphopt.verifier.instance_models import build_models
    from graphopt.verifier.instance_sampling import complete_instance

    drawn = complete_instance(rule, _large(rule), {}, attempts=50)
    if drawn is None:
        return None
    try:
        left, right = build_models(rule, drawn)
    except (NoInstance, UndecidedScalarError):
        return None
    return read_graph(left), read_graph(right)


def _large(rule: Rule) -> Mapping[str, int | tuple[int, ...]]:
    """Return large sizes for the axes, packs and holes of a rule."""
    dims: dict[str, int | tuple[int, ...]] = {}
    for hole in rule.holes.values():
        if hole.kind not in ("tensor", "const"):
            continue
        if hole.axes is None:
            dims[hole.name] = ANY
        for axis in hole.axes or ():
            if "*" in axis:
                dims[axis.removeprefix("1")] = PACKS[axis.rpartition("*")[2]]
            elif axis.isalpha():
                dims[axis] = LARGE
    return dims
