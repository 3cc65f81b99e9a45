"""Mutants: every rule of the library with one thing made wrong, mechanically. A prover that proves one is not sound.

A mutant is killed if it is not proved: because two models that were run differ, because an obligation was not shown,
or because the time was up. One that is proved must be the same rule in truth, for a reason that
`survivors.py` gives.
`python -m tests.verifier.mutants` tries one mutant of each kind of every rule and writes `mutants.jsonl`, a line for
each rule; lines of rules that have not changed since are kept, unless it is called with `--fresh`.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeAlias

from onnx.defs import OpSchema
from rich.console import Console
from rich.progress import track

from graphopt.base.errors import RuleError
from graphopt.ir import schemas
from graphopt.language.rule import Rule, fn
from graphopt.language.terms import (
    SCALAR,
    App,
    Lit,
    Term,
    Var,
    is_index_list,
    is_scalar,
    operator_hole_applications,
    queried_constants,
    render_term,
    walk_term,
)
from graphopt.rules import RULES, TRADES
from graphopt.verifier import counterexample
from graphopt.verifier.prove import prove
from tests.verifier.survivors import EQUIVALENT

RESULTS = Path(__file__).with_name("mutants.jsonl")
LIBRARY = (*RULES, *TRADES)
PROOF_SECONDS, RUN_SECONDS = 10.0, 0.6
"""Of processor time for an attempt at a proof, and for one at a refutation."""


@dataclass(frozen=True)
class Mutant:
    """A rule with one thing changed."""

    kind: str
    what: str
    rule: Rule


Change: TypeAlias = Callable[[App], Iterator[Term]]

# -- what is changed ---------------------------------------------------------------------------------------------------

ORDERED = frozenset(
    {"Sub", "Div", "MatMul", "Gemm", "Pow", "Concat", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Mod"}
    | {"sub", "floordiv", "mod", "truediv", "compose", "concat"}
)
"""Operators and scalar functions whose first two operands are not interchangeable."""

PAIRS = """Add Sub, Mul Div, Max Min, And Or, Less LessOrEqual, Greater GreaterOrEqual, Equal Less, Ceil Floor,
    Exp Log, Sin Cos, Relu Abs, Sigmoid Tanh, Gelu Erf, Sqrt Reciprocal, Softplus Softsign, Swish Mish, Identity Neg,
    HardSwish HardSigmoid, ReduceSum ReduceMean, ReduceMax ReduceMin, ReduceL1 ReduceL2, ReduceSumSquare ReduceL2,
    ReduceProd ReduceSum, ReduceLogSum ReduceLogSumExp, ArgMax ArgMin, Softmax LogSoftmax, MaxPool AveragePool,
    GlobalMaxPool GlobalAveragePool, LayerNormalization RMSNormalization, SpaceToDepth DepthToSpace,
    add sub, mul add, div mod, larger smaller"""
NEIGHBOUR = {
    one: other
    for a, b in (pair.split() for pair in reversed(PAIRS.split(",")))  # of two pairs the first counts
    for one, other in ((b, a), (a, b))
}
FLAGS = frozenset({"keepdims", "transA", "transB", "ceil_mode", "count_include_pad", "exclusive", "reverse"})
FLAGS |= {"allowzero"}
TEXTS = {"constant": "edge", "edge": "constant", "reflect": "edge", "DCR": "CRD", "CRD": "DCR", "none": "tanh"}
TEXTS |= {"tanh": "none", "SAME_UPPER": "SAME_LOWER", "SAME_LOWER": "SAME_UPPER", "VALID": "SAME_UPPER"}


def _swapped(app: App) -> Iterator[Term]:
    in_order = app.op in ORDERED or app.domain == schemas.ANY_BINARY
    if in_order and len(app.args) >= 2 and app.args[0] != app.args[1]:
        yield replace(app, args=(app.args[1], app.args[0], *app.args[2:]))
    if app.op == "Where":
        yield replace(app, args=(app.args[0], app.args[2], app.args[1]))


def _neighbour(app: App) -> Iterator[Term]:
    if app.op in NEIGHBOUR:
        yield replace(app, op=NEIGHBOUR[app.op])


def _operand_dropped(app: App) -> Iterator[Term]:
    """A bias or another optional input forgotten, a term of a sum, a factor of a product."""
    if app.domain == SCALAR:
        return
    for position, dropped in enumerate(app.inputs):
        if dropped is not None and _is_optional(app, position):
            yield replace(app, args=tuple(None if arg is dropped else arg for arg in app.args))
    if app.op in ("Add", "Sub", "Mul", "Div"):
        yield from (arg for arg in app.operands if not is_scalar(arg))


def _is_optional(app: App, position: int) -> bool:
    formals = _schema(app).inputs
    return position < len(formals) and formals[position].option == OpSchema.FormalParameterOption.Optional


def _schema(app: App) -> OpSchema:
    schema = schemas.schema(app.op, app.domain, 1 if app.domain else schemas.RULE_OPSET)
    assert schema is not None, app.op
    return schema


def _constant_dropped(app: App) -> Iterator[Term]:
    """Yield a list of places without one of the constants that say which are live."""
    if is_index_list(app) and len(queried_constants(app)) > 1:
        for constant in queried_constants(app):
            yield replace(app, args=tuple(arg for arg in app.args if arg != constant))


def _operator_dropped(app: App) -> Iterator[Term]:
    """Replaced by its only tensor, a Transpose for example."""
    tensors = [arg for arg in app.operands if not is_scalar(arg)]
    if app.domain != SCALAR and app.outputs == 1 and len(tensors) == 1 and app.op != "Identity":
        yield tensors[0]


def _applied_twice(app: App) -> Iterator[Term]:
    """What a hole for an operator stands for, of what it makes."""
    if app.domain == schemas.ANY_POINTWISE:
        yield replace(app, args=(app,))


def _attribute_dropped(app: App) -> Iterator[Term]:
    if app.domain == SCALAR:
        return
    known = _schema(app).attributes
    for name, value in app.attrs:
        default = schemas.attribute_value(known[name].default_value)
        if name == "perm" and isinstance(value, Lit) and isinstance(value.value, tuple):
            default = tuple(reversed(range(len(value.value))))
        if not isinstance(value, Lit) or value.value != default:  # else it stays what it was
            yield replace(app, attrs=tuple(attr for attr in app.attrs if attr[0] != name))
    if app.attributes_hole is not None and len(known) > len(app.attrs):
        yield replace(app, args=app.inputs)


def _number_changed(app: App) -> Iterator[Term]:
    """A pad, an axis, a split point, a constant: whatever number or list is written or computed."""
    for name, value in app.attrs:
        for other in _other(name, value):
            yield replace(app, attrs=tuple((n, other if n == name else v) for n, v in app.attrs))
    for position, arg in enumerate(app.args):
        if arg is not None and is_scalar(arg):
            for other in _other("", arg):
                yield replace(app, args=(*app.args[:position], other, *app.args[position + 1 :]))


def _other(name: str, value: Term) -> Iterator[Term]:
    match value:
        case Lit(value=str(text)):
            words = text.split()
            if text in TEXTS:
                yield Lit(TEXTS[text])
            elif len(set(words)) > 1:  # the axes of `sizes`
                yield Lit(" ".join([words[1], words[0], *words[2:]]))
        case Lit(value=tuple(numbers)):
            yield from map(Lit, _other_lists(name, numbers))
        case Lit(value=int() | float() as number) if name != "to":
            yield Lit(1 - number if name in FLAGS else number + 1)
        case Var(kind="integers") | App(domain="scalar") if name == "perm":
            yield fn.inverse(value)
        case Var(kind="integer" | "integers" | "real") | App(domain="scalar") if name not in ("", "to"):
            yield fn.add(value, 1)


def _other_lists(name: str, numbers: tuple[int | float, ...]) -> Iterator[tuple[int | float, ...]]:
    if name == "perm" and len(numbers) > 1:
        yield (numbers[1], numbers[0], *numbers[2:])
    elif numbers:
        yield (numbers[0] + 1, *numbers[1:])
        yield (*numbers[:-1], numbers[-1] + 1)


CHANGES: dict[str, Change] = {
    "operands swapped": _swapped,
    "another operator": _neighbour,
    "operand dropped": _operand_dropped,
    "constant dropped": _constant_dropped,
    "operator dropped": _operator_dropped,
    "applied twice": _applied_twice,
    "attribute dropped": _attribute_dropped,
    "number changed": _number_changed,
}


# -- mutants of a rule -------------------------------------------------------------------------------------------------


def mutants(rule: Rule) -> Iterator[Mutant]:
    """All of them, one thing changed in each: on the right side, a condition forgotten, or operators told apart."""
    changed = ((kind, what, rule.left, right, when) for kind, what, right, when in _variants(rule))
    for kind, what, left, right, when in (*changed, *_told_apart(rule)):
        name = f"{rule.name}_{kind.replace(' ', '_')}"
        try:
            yield Mutant(kind, what, Rule(name, left, right, when, rule.why))
        except RuleError:  # the change made it no rule: left equal to right, too few operands
            continue


Variant: TypeAlias = tuple[str, str, tuple[Term, ...], tuple[Term, ...]]


def _variants(rule: Rule) -> Iterator[Variant]:
    for position, condition in enumerate(rule.conditions):
        rest = (*rule.conditions[:position], *rule.conditions[position + 1 :])
        yield "condition dropped", render_term(condition), rule.right, rest
    if len(set(rule.right)) > 1:
        yield "outputs swapped", "", rule.right[::-1], rule.conditions
    for one, other in _interchangeable(rule):
        swapped = tuple(exchanged(side, {one: other, other: one}) for side in rule.right)
        yield "holes swapped", f"{one} and {other}", swapped, rule.conditions
    nodes = dict.fromkeys(part.node for side in rule.right for part in walk_term(side) if isinstance(part, App))
    for kind, change in CHANGES.items():
        for node in nodes:
            for new in change(node):
                right = tuple(replaced(side, node, new) for side in rule.right)
                yield kind, _said(node, new), right, rule.conditions


def _told_apart(rule: Rule) -> Iterator[tuple[str, str, tuple[App, ...], tuple[Term, ...], tuple[Term, ...]]]:
    """Where the left side says one hole for an operator several times, the last may be another operator."""
    for name in rule.operator_holes:
        apps = list(
            dict.fromkeys(app for side in rule.left for app in operator_hole_applications(side) if app.op == name)
        )
        if len(apps) > 1:
            left = tuple(replaced(side, apps[-1], replace(apps[-1], op="another")) for side in rule.left)
            yield "operators told apart", name, tuple(map(_app, left)), rule.right, rule.conditions


def _app(term: Term) -> App:
    assert isinstance(term, App)
    return term


def _said(old: App, new: Term) -> str:
    """What was changed, in few words: an attribute, or an operator."""
    if not (isinstance(new, App) and (new.op, new.args) == (old.op, old.args)):
        return f"{render_term(old)} becomes {render_term(new)}"
    was, now = dict(old.attrs), dict(new.attrs)
    changed = [name for name in was if was[name] != now.get(name)]
    return f"{old.op} " + ", ".join(
        f"{name}={render_term(was[name])} becomes {render_term(now[name]) if name in now else 'absent'}"
        for name in changed
    )


def _interchangeable(rule: Rule) -> Iterator[tuple[Var, Var]]:
    """Holes of the right side that are declared alike."""
    parts = dict.fromkeys(part for side in rule.right for part in walk_term(side))
    found = [part for part in parts if isinstance(part, Var) and part.kind != "attributes"]
    for i, one in enumerate(found):
        for other in found[i + 1 :]:
            if (one.kind, one.axes, one.default) == (other.kind, other.axes, other.default):
                yield one, other


def exchanged(subject: Term, names: dict[Var, Var]) -> Term:
    if isinstance(subject, Var):
        return names.get(subject, subject)
    return rebuilt(subject, lambda part: exchanged(part, names))


def replaced(subject: Term, old: App, new: Term) -> Term:
    """The term with an operator replaced wherever it occurs, whichever of its outputs is meant."""
    if isinstance(subject, App) and subject.node == old:
        return replace(new, output=subject.output) if isinstance(new, App) and new.outputs > 1 else new
    return rebuilt(subject, lambda part: replaced(part, old, new))


def rebuilt(subject: Term, change: Callable[[Term], Term]) -> Term:
    if not isinstance(subject, App):
        return subject
    args = tuple(None if arg is None else change(arg) for arg in subject.args)
    return replace(subject, args=args, attrs=tuple((name, change(value)) for name, value in subject.attrs))


def sample(rule: Rule) -> list[Mutant]:
    """One mutant of each kind; which one depends on the rule's name alone."""
    kinds: dict[str, list[Mutant]] = {}
    for mutant in mutants(rule):
        kinds.setdefault(mutant.kind, []).append(mutant)
    rng = random.Random(rule.name)
    return [rng.choice(found) for found in kinds.values()]


# -- what becomes of them ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Survivor:
    """A mutant that is proved."""

    kind: str
    what: str
    model: str = ""
    """The model in which it is proved."""
    differs: str = ""
    """How two models that were run differ, within what the proof licenses: the prover is wrong."""
    why: str = ""
    """Why the mutant is the same rule in truth."""

    @property
    def is_equivalent(self) -> bool:
        return bool(self.why) and not self.differs


def fate(rule: Rule, mutant: Mutant) -> Survivor | str:
    """What kills a mutant of a rule, if anything does: "refuted", "not shown" or "out of time".

    The prover is asked whatever the models say, for it is what is tested.
    """
    proof = prove(mutant.rule, timeout=PROOF_SECONDS, refute=False)
    differences = counterexample.iterate_counterexamples(mutant.rule, time.process_time() + RUN_SECONDS)
    if proof.holds:
        claimed = (d for d in differences if proof.licenses(d.dtype) and d.difference.kind != "infinite")
        differs = next((d.difference.text for d in claimed), "")
        survivor = Survivor(mutant.kind, mutant.what, str(proof.model), differs)
        return replace(survivor, why=reason_for(rule.name, survivor))
    if next(differences, None) is not None:
        return "refuted"
    return "out of time" if proof.detail.startswith("out of time") else "not shown"


def reason_for(rule: str, survivor: Survivor) -> str:
    """Why a mutant is the same rule in truth; "" where no reason is known."""
    change = f"{survivor.model} {survivor.kind}: {survivor.what}"
    reasons = (why for rules, changes, why in EQUIVALENT if re.fullmatch(rules, rule) and re.match(changes, change))
    return next(reasons, "")


# -- the whole library -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """What became of a sample of a rule's mutants."""

    rule: str
    digest: str
    killed: Mapping[str, int]
    survivors: tuple[Survivor, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @staticmethod
    def from_json(line: str) -> Trial:
        """What was written, with the reasons that are known now."""
        data = json.loads(line)
        rule = data["rule"]
        survivors = (Survivor(**{**s, "why": reason_for(rule, Survivor(**s))}) for s in data["survivors"])
        return Trial(rule, data["digest"], data["killed"], tuple(survivors))


def trial(rule: Rule) -> Trial:
    fates = [fate(rule, mutant) for mutant in sample(rule)]
    killed = dict(Counter(f for f in fates if isinstance(f, str)))
    return Trial(rule.name, rule.digest, killed, tuple(f for f in fates if isinstance(f, Survivor)))


def results() -> list[Trial]:
    """The trials that are on file."""
    return list(map(Trial.from_json, RESULTS.read_text(encoding="utf-8").splitlines())) if RESULTS.exists() else []


def save(trials: Iterable[Trial]) -> None:
    lines = [f"{found.to_json()}\n" for found in sorted(trials, key=lambda found: found.rule)]
    RESULTS.write_text("".join(lines), encoding="utf-8")


def summary(trials: Iterable[Trial]) -> str:
    """How many mutants met which fate."""
    counts: Counter[str] = Counter()
    for found in trials:
        counts.update(found.killed)
        counts.update("equivalent" if survivor.is_equivalent else "PROVED" for survivor in found.survivors)
    return f"{counts.total()} mutants: " + ", ".join(f"{count} {name}" for name, count in counts.most_common())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fresh", action="store_true", help="try all rules again")
    parser.add_argument("--workers", type=int, default=None, help="processes, by default one for each core")
    options = parser.parse_args()
    known = {} if options.fresh else {found.digest: found for found in results()}
    done = [known[rule.digest] for rule in LIBRARY if rule.digest in known]
    todo = [rule for rule in LIBRARY if rule.digest not in known]
    console = Console()
    with ProcessPoolExecutor(options.workers) as pool:
        for count, found in enumerate(track(pool.map(trial, todo), "rules", total=len(todo), console=console), 1):
            done.append(found)
            if count % 20 == 0 or count == len(todo):  # an interruption loses little
                save(done)
    save(done)
    console.print(summary(done))
    for found in done:
        for survivor in found.survivors:
            if not survivor.is_equivalent:
                console.print(
                    f"PROVED: {found.rule}, {survivor.kind}: {survivor.what} {survivor.differs}", markup=False
                )


if __name__ == "__main__":
    main()
