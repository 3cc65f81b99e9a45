"""What the installed rules do already: looked up on small models drawn for a rule; and large ones, to be timed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from graphopt.io import onnx_io
from graphopt.ir.graph import Graph
from graphopt.language import library as libraries
from graphopt.language.library import Library
from graphopt.language.rule import Rule
from graphopt.language.scalar import Unknown
from graphopt.language.schemas import Misfit
from graphopt.operators import infer
from graphopt.operators.families import roots
from graphopt.rewrite.build import Refused, build
from graphopt.rewrite.fixpoint import simplify_graph
from graphopt.rewrite.match import find
from graphopt.rewrite.passes import PASSES
from graphopt.rewrite.regions import digest

if TYPE_CHECKING:
    from onnx import ModelProto

TRIED = 2
"""Instances at which the library has to do what a rule does."""
COPIES = "eliminate_identity"
"""The rule for what the model of a bare hole is, which says nothing of the others."""
LARGE = 64
PACKS: Mapping[str, tuple[int, ...]] = {"b": (8,), "s": (28, 28), "k": (3, 3)}
ANY = (8, 64, 64)
"""The sizes of what is drawn: of axes, of packs, of tensors of any rank."""


@dataclass(frozen=True)
class Had:
    """What the library has of a rule: the rules that do the same together; none where it has not."""

    rules: tuple[str, ...]
    is_had: bool


@dataclass(frozen=True)
class Lookup:
    """A rule that is looked up in files of rules and, where `installed`, in those that are installed."""

    rule: Rule
    files: tuple[Path, ...]
    installed: bool


def look_up(task: Lookup) -> Had:
    """Return whether a library has a rule: a task of its own, so that it may be answered anywhere."""
    return had(task.rule, _known(task.files, task.installed))


def _known(files: tuple[Path, ...], installed: bool) -> Library:
    given = libraries.read(files)
    return libraries.load(given) if installed else given


def had(rule: Rule, library: Library) -> Had:
    """Return whether the library leads from the left side of a rule to the right one, or to what that becomes, too.

    Its simplifying rules are used on both, and one of its trades on the left.
    """
    used: dict[str, None] = {}
    tried = 0
    for left, right in _models(rule, TRIED):
        tried += 1
        names = _way(left, right, library)
        if names is None:
            return Had((), False)
        used |= dict.fromkeys(names)
    return Had(tuple(name for name in used if name != COPIES), tried > 0)


def _way(left: ModelProto, right: ModelProto, library: Library) -> list[str] | None:
    """Return the rules that lead from one model to the other, None where none do."""
    goal, after = _simplified(right, library)
    graph, before = _simplified(left, library)
    if digest(graph) == digest(goal):
        return [name for name in (*before, *after) if name in {rule.name for rule in library.rules}]
    for trade, traded in _traded(left, library):
        names = [step.name for step in simplify_graph(traded, library.rules, PASSES).steps]
        if digest(traded) == digest(goal):
            return [trade.name, *(name for name in names if name in {rule.name for rule in library.rules})]
    return None


def _simplified(model: ModelProto, library: Library) -> tuple[Graph, list[str]]:
    graph = read(model)
    steps = simplify_graph(graph, library.rules, PASSES).steps
    return graph, [step.name for step in steps if step.is_rule]


def _traded(model: ModelProto, library: Library) -> Iterator[tuple[Rule, Graph]]:
    """Yield the graphs that one trade makes of a model."""
    operators = {node.op for _, node in read(model).nodes()}
    for trade in library.trades:
        if not operators.isdisjoint(roots(trade.left[0])):
            for place in range(len(list(find(trade, read(model))))):
                graph = read(model)
                match = list(find(trade, graph))[place]
                try:
                    graph.apply(build(graph, match))
                except Refused:
                    continue
                yield trade, graph


def read(model: ModelProto | str) -> Graph:
    """Return the graph of a model, or of its file, with its types inferred."""
    graph = onnx_io.load(model).graph
    infer.infer_graph(graph)
    return graph


def _models(rule: Rule, count: int) -> Iterator[tuple[ModelProto, ModelProto]]:
    """Both sides of a rule at drawn instances, as models of floats."""
    from graphopt.base.types import DType
    from graphopt.verifier.drawing import instances
    from graphopt.verifier.scope import Scope
    from graphopt.verifier.writing import models

    scope = Scope(ranks=(2, 3), packs=(1, 2), sizes=(2, 3, 4, 5), dtypes=(DType.FLOAT,))
    for instance in instances(rule, seed=1, count=count, attempts=400, scope=scope):
        try:
            yield models(rule, instance)
        except (Misfit, Unknown):
            continue


def large_sides(rule: Rule) -> tuple[Graph, Graph] | None:
    """Return both sides of a rule at large tensors; None where none were drawn."""
    from graphopt.verifier.drawing import instance
    from graphopt.verifier.writing import models

    drawn = instance(rule, _large(rule), {}, attempts=50)
    if drawn is None:
        return None
    try:
        left, right = models(rule, drawn)
    except (Misfit, Unknown):
        return None
    return read(left), read(right)


def _large(rule: Rule) -> Mapping[str, int | tuple[int, ...]]:
    """Large sizes for the axes, packs and holes of a rule."""
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
