"""Draws rules, most of them wrong or nearly so, and runs whatever is proved: a difference is a hole in the prover.

`python -m tests.verifier.fuzz --seconds 3600 --seed 1` draws for so long, in batches that a process of its own works
on; `--library` runs the rules that ship instead, which are proved, each once, and `--proved` those that the tests write
and that are proved. Half of the rules are mutants of the library's, changed in one place or two; the others are pairs
of small terms that agree at one small instance. What is proved is run in ONNX Runtime on instances beyond those that a
proof enumerates: ranks to 6, sizes 0 and 1, all element types, the least and the greatest integers, infinities and NaN
where the proof speaks of them.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count, islice
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import onnx
from onnx.shape_inference import InferenceError

from graphopt.base.dtype import COMPUTE_DTYPES
from graphopt.base.errors import RuleError
from graphopt.ir import schemas
from graphopt.language.proof import Proof
from graphopt.language.rule import Rule, binary, const, fn, integer, integers, op, pointwise, reduction, tensor, tensors
from graphopt.language.scalar_functions import UndecidedScalarError
from graphopt.language.terms import App, Lit, Term, Var, operator_applications, walk_term
from graphopt.language.terms import term as term_of
from graphopt.language.type_inference import NoInstance
from graphopt.operators.operator_classes import operator_choices
from graphopt.operators.rule_families import FamilyChoices, sample_specializations, specialize_family
from graphopt.rewrite.gate import known_proof
from graphopt.verifier.concrete_instance import ConcreteInstance
from graphopt.verifier.counterexample import is_fatal_if_empty
from graphopt.verifier.instance_models import build_models
from graphopt.verifier.instance_sampling import sample_instances
from graphopt.verifier.prove import prove
from graphopt.verifier.sampling_scope import SamplingScope
from tests.verifier.differences import Difference, difference, is_applied
from tests.verifier.mutants import LIBRARY, exchanged, mutants, rebuilt
from tests.verifier.running import Failure, run
from tests.verifier.written import rules_of_tests

PROOF_SECONDS = 3.0
INSTANCES = 12
"""On which a rule that is proved is run."""
PARTICULARS = 6
"""Of a rule with holes for operators or for any number of tensors: those on which it is run."""
BEYOND = SamplingScope(
    ranks=(0, 1, 2, 3, 4, 5, 6),
    packs=(0, 1, 2, 3, 4),
    sizes=(0, 1, 1, 2, 2, 3, 5),
    dtypes=COMPUTE_DTYPES,
    numbers=(0, 0, 1, 2, -1, 5),
)


# -- mutants of true rules ---------------------------------------------------------------------------------------------


def mutated(rng: random.Random) -> Rule | None:
    """A rule of the library with one thing changed, or two."""
    rule = rng.choice(LIBRARY)
    for _ in range(rng.choice((1, 1, 2))):
        changes = list(_changes(rule, rng))
        if not changes:
            return None
        rule = rng.choice(changes)
    return rule


def _changes(rule: Rule, rng: random.Random) -> Iterator[Rule]:
    """Mutants of the known kinds, and wilder ones; as many kinds as there are, for some have many mutants."""
    kinds: dict[str, list[Rule]] = {}
    for mutant in mutants(rule):
        kinds.setdefault(mutant.kind, []).append(mutant.rule)
    for kind, change in WILD.items():
        kinds[kind] = list(islice(filter(None, change(rule, rng)), 8))
    yield from (rng.choice(found) for found in kinds.values() if found)


def _rule(rule: Rule, lhs: Sequence[Term], rhs: Sequence[Term], when: Sequence[Term]) -> Rule | None:
    try:
        return Rule(rule.name, tuple(lhs), tuple(rhs), tuple(when))
    except RuleError:  # the change made it no rule
        return None


def _hole_replaced(rule: Rule, _: random.Random) -> Iterator[Rule | None]:
    """Another hole on the right side, whatever its shape."""
    named = [hole for hole in rule.holes.values() if hole.kind != "attributes"]
    for one in named:
        for other in named:
            if one != other and (one.kind == other.kind or {one.kind, other.kind} == {"tensor", "const"}):
                right = [exchanged(side, {one: other}) for side in rule.right]
                yield _rule(rule, rule.left, right, rule.conditions)


def _condition_weakened(rule: Rule, _: random.Random) -> Iterator[Rule | None]:
    """`==` becomes `<=` either way, `all_of` becomes `any_of`, a property a weaker one; or all conditions forgotten."""
    yield _rule(rule, rule.left, rule.right, ())
    weaker = {"eq": "le", "all_of": "any_of", "is_positive": "is_nonzero", "is_zero": "is_nonnegative", "lt": "le"}
    for place, condition in enumerate(rule.conditions):
        if isinstance(condition, App) and condition.op in weaker:
            for args in (condition.args, condition.args[::-1]):
                changed = replace(condition, op=weaker[condition.op], args=args)
                conditions = (*rule.conditions[:place], changed, *rule.conditions[place + 1 :])
                yield _rule(rule, rule.left, rule.right, conditions)


def _axes_forgotten(rule: Rule, _: random.Random) -> Iterator[Rule | None]:
    """A hole of any rank where the rule names axes, or one of more axes in front or behind."""
    for hole in rule.holes.values():
        if hole.kind not in ("tensor", "const") or hole.axes is None:
            continue
        wider: list[tuple[str, ...] | None] = [None] if hole.default is None else []
        if not any("*" in axis for axis in hole.axes):
            wider += [("*more", *hole.axes), (*hole.axes, "*more")]
        wider += [tuple("_" if axis == dropped else axis for axis in hole.axes) for dropped in set(hole.axes) - {"_"}]
        for axes in wider:
            names = {hole: Var(hole.name, hole.kind, axes, hole.default)}
            yield _everywhere(rule, lambda term, names=names: exchanged(term, names))  # type: ignore[misc]


def _number_replaced(rule: Rule, rng: random.Random) -> Iterator[Rule | None]:
    """A number or list that an attribute or input says, on both sides or on the right alone."""
    said = {part for side in (*rule.left, *rule.right) for part in walk_term(side) if isinstance(part, Lit)}
    for literal in sorted(said, key=str):
        other = _other_number(literal.value, rng)
        if other is not None:

            def change(term: Term, one: Lit = literal, new: Lit = other) -> Term:
                return new if term == one else rebuilt(term, lambda part: change(part, one, new))

            yield _everywhere(rule, change)
            yield _rule(rule, rule.left, [change(side) for side in rule.right], rule.conditions)


def _other_number(value: Any, rng: random.Random) -> Lit | None:
    match value:
        case bool() | str():
            return None
        case int():
            return Lit(rng.choice([n for n in (-2, -1, 0, 1, 2, 3, 4) if n != value]))
        case float():
            return Lit(rng.choice([n for n in (-1.0, 0.0, 0.5, 1.0, 2.0) if n != value]))
        case tuple() if value:
            kinds = (value[::-1], (*value[1:], value[0]), (*value, value[-1]), value[:-1], tuple(n - 1 for n in value))
            return Lit(rng.choice(kinds))
    return None


def _number_unknown(rule: Rule, _: random.Random) -> Iterator[Rule | None]:
    """An attribute that the rule writes becomes a hole: the same wherever it is written."""
    for app in (app for side in rule.left for app in operator_applications(side)):
        for name, value in app.attrs:
            if (
                isinstance(value, Lit)
                and isinstance(value.value, int | tuple)
                and name not in ("to", "equation", "num_outputs")
            ):
                hole = integers("some") if isinstance(value.value, tuple) else integer("some")

                def change(term: Term, key: str = name, old: Term = value, hole: Var = hole) -> Term:
                    inner = rebuilt(term, lambda part: change(part, key, old, hole))
                    if isinstance(inner, App) and dict(inner.attrs).get(key) == old:
                        return replace(inner, attrs=tuple((n, hole if n == key else v) for n, v in inner.attrs))
                    return inner

                yield _everywhere(rule, change)


def _everywhere(rule: Rule, change: Callable[[Term], Term]) -> Rule | None:
    return _rule(rule, *(list(map(change, part)) for part in (rule.left, rule.right, rule.conditions)))


def _operators_exchanged(rule: Rule, rng: random.Random) -> Iterator[Rule | None]:
    """One operator for another that takes as many operands, on both sides: what one has the other may not have."""
    for kin in KIN:
        used = [
            name for name in kin if any(app.op == name for side in rule.left for app in operator_applications(side))
        ]
        for one in used:
            other = rng.choice([name for name in kin if name != one])

            def change(term: Term, one: str = one, other: str = other) -> Term:
                inner = rebuilt(term, lambda part: change(part, one, other))
                return replace(inner, op=other) if isinstance(inner, App) and inner.op == one else inner

            yield _everywhere(rule, change)


KIN = (
    ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Mod"),
    (
        "Relu",
        "Abs",
        "Neg",
        "Sign",
        "Floor",
        "Ceil",
        "Round",
        "Exp",
        "Sqrt",
        "Sigmoid",
        "Tanh",
        "Reciprocal",
        "Softplus",
    ),
    ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare"),
    ("Softmax", "LogSoftmax", "Flatten"),
    ("And", "Or", "Xor", "Equal"),
    ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"),
    ("MaxPool", "AveragePool", "LpPool"),
    ("ArgMax", "ArgMin"),
)
"""Operators that take the same."""

WILD: dict[str, Callable[[Rule, random.Random], Iterator[Rule | None]]] = {
    "hole replaced": _hole_replaced,
    "condition weakened": _condition_weakened,
    "axes forgotten": _axes_forgotten,
    "number replaced": _number_replaced,
    "number unknown": _number_unknown,
    "operators exchanged": _operators_exchanged,
}


# -- pairs of small terms ----------------------------------------------------------------------------------------------

ANY, ANY_OF_TWO, ANY_REDUCTION, MANY = pointwise("f"), binary("g"), reduction("r"), tensors("xs")
SEEN_AS: FamilyChoices = (
    ("f", operator_choices(schemas.ANY_POINTWISE)["Sigmoid", ""][0]),
    ("g", operator_choices(schemas.ANY_BINARY)["Sub", ""][0]),
    ("r", operator_choices(schemas.ANY_REDUCTION)["ReduceL2", ""][0]),
    ("xs", 2),
)
"""What these holes stand for where terms are compared."""
AXES = (None, "A", "A B", "A A", "A B C", "*b A", "A *b", "1 A", "*b A B")
TERMS = 60
"""Terms of one draw, from which the pairs are taken."""
PAIRS = 10
"""Of one draw: those that look alike are many."""


def pairs(rng: random.Random) -> Iterator[Rule]:
    """Terms over a few holes and operators that agree at one instance, and so may look alike to a prover."""
    held = _Held(rng)
    terms = list(dict.fromkeys(held.term(rng.choice((1, 2, 2, 3))) for _ in range(TERMS)))
    alike: dict[Any, list[Term]] = {}
    for term in terms:
        seen = held.seen(term)
        if seen is not None:
            alike.setdefault(seen, []).append(term)
    found = [(one, other) for group in alike.values() for one in group for other in group if one is not other]
    rng.shuffle(found)
    for number, (one, other) in enumerate(found[:PAIRS]):
        when = held.condition(rng) if rng.random() < 0.3 else ()
        try:
            yield Rule(f"pair_{number}", one, other, when)
        except RuleError:  # a hole that the left side does not have
            continue


class _Held:
    """A few holes, what they stand for at one instance, and the terms over them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        axes = rng.choice(AXES)
        kinds = [
            tensor("x", axes),
            tensor("y", rng.choice((axes, axes, None))),
            const("c", rng.choice((axes, "", None))),
        ]
        self.tensors = kinds[: rng.choice((1, 2, 2, 3))]
        self.unary = rng.sample(sorted(UNARY), 5)
        kinds_of_two = (
            "Add",
            "Sub",
            "Mul",
            "Div",
            "Max",
            "Min",
            "Concat",
            "Where",
            "MatMul",
            "Pow",
            "any",
            "many",
            "many",
        )
        self.binary = rng.sample(kinds_of_two, 2)
        self.holes = (integers("p"), integers("q"), integer("k"))
        self.dims: dict[str, Any] = {
            "A": rng.choice((1, 2)),
            "B": rng.choice((1, 2)),
            "C": 2,
            "*b": rng.choice(((), (2,))),
        }
        rank = rng.choice((1, 2, 2, 3))
        self.dims |= dict.fromkeys(("x", "y", "c"), (rng.choice((1, 2)),) * rank)
        numbers = np.random.default_rng(rng.getrandbits(32))
        low = rng.choice((-3, 0, 1))
        self.values: dict[str, Any] = {"k": rng.choice((0, 1, -1)), "p": (0, 1)[:rank], "q": (1, 0)[-rank:]}
        for hole in self.tensors:
            shape = self._shape(hole)
            self.values[hole.name] = numbers.integers(low, 4, shape).astype(np.float32)
        for part in ("xs_0", "xs_1"):
            self.dims[part] = self._shape(self.tensors[0])
            self.values[part] = numbers.integers(low, 4, self.dims[part]).astype(np.float32)

    def _shape(self, hole: Var) -> tuple[int, ...]:
        if hole.axes is None:
            return tuple(self.dims[hole.name])
        sizes = (int(axis) if axis.isdigit() else self.dims[axis] for axis in hole.axes)
        return tuple(n for size in sizes for n in (size if isinstance(size, tuple) else (size,)))

    def term(self, depth: int) -> Term:
        if depth == 0:
            return self.rng.choice(self.tensors)
        if self.rng.random() < 0.35:
            one, other = self.term(depth - 1), self.term(self.rng.randrange(depth))
            name = self.rng.choice(self.binary)
            if name == "Concat":
                return op.Concat(one, other, axis=self.rng.choice((0, -1, integer("k"))))
            if name == "any":
                return ANY_OF_TWO(one, other)
            if name == "many":
                parts = self.rng.choice(((*MANY, one), (one, *MANY), (*MANY, one, other), (ANY(MANY), one), (*MANY,)))
                return op.Concat(*parts, axis=self.rng.choice((0, -1, integer("k"))))
            if name == "Where":
                return op.Where(op.Less(one, other), other, one)
            return App(name, (one, other))
        return UNARY[self.rng.choice(self.unary)](self.term(depth - 1), self.rng)

    def seen(self, term: Term) -> Any:
        """What a term gives at the instance; None where it does not run."""
        if not isinstance(term, App):
            return None
        try:
            rule = Rule("seen", term, op.Identity(term))
            named = {*rule.operator_holes, *rule.pack_names}
            rule = specialize_family(rule, tuple(each for each in SEEN_AS if each[0] in named)) if named else rule
            left, _ = build_models(rule, ConcreteInstance(self.dims, self.values))
            onnx.shape_inference.infer_shapes(left, strict_mode=True, data_prop=True)  # some ends the process if run
            feeds = {n: v for n, v in self.values.items() if any(i.name == n for i in left.graph.input)}
            (array,) = run(left, feeds).outputs
        except (NoInstance, UndecidedScalarError, RuleError, KeyError, InferenceError, Failure):
            return None
        return array.dtype.str, array.shape, tuple(np.round(array.astype(np.float64), 3).ravel().tolist())

    def condition(self, rng: random.Random) -> Term:
        one = self.tensors[0]
        p, q, k = self.holes
        return rng.choice(
            (
                fn.lt(1, fn.rank(one)),
                fn.is_sorted(p),
                fn.le(0, p),
                fn.is_identity(fn.compose(p, q)),
                fn.eq(fn.length(p), fn.rank(one)),
                fn.le(0, k),
                fn.eq(fn.extent(MANY), k),
                fn.le(fn.extent(MANY), fn.item(p, 0)),
            )
        )


def _axis(rng: random.Random) -> Any:
    return rng.choice((0, 1, -1, -2, integer("k"), integer("k")))


def _axes(rng: random.Random) -> Any:
    return rng.choice(((0,), (1,), (-1,), (0, 1), (1, 0), (0, -1), integers("p"), integers("p"), integers("q")))


def _list(rng: random.Random) -> Any:
    p, q = integers("p"), integers("q")
    lists = ((0,), (1,), (1, 0), (0, 0), (1, 1), (-1,), p, q, fn.sorted(p), fn.concat(p, q), fn.slice(p, 1, 9))
    return rng.choice(
        (*lists, fn.inverse(p), fn.compose(p, q), p + 1, fn.neg(p), fn.delete(p, (0,)), fn.range(fn.length(p)))
    )


Unary = Callable[[Term, random.Random], App]


def _reduction(name: str) -> Unary:
    return lambda x, rng: App(name, (x, *_some(_axes(rng), rng)), (("keepdims", Lit(rng.choice((0, 1)))),))


def _some(value: Any, rng: random.Random) -> tuple[Term, ...]:
    if rng.random() < 0.2:
        return ()
    return (value if isinstance(value, Var | App) else Lit(value),)


def _plain(name: str) -> Unary:
    return lambda x, rng: App(name, (x,))


def _along(name: str) -> Unary:
    return lambda x, rng: App(name, (x,), (("axis", term_of(_axis(rng))),))


UNARY: dict[str, Unary] = {
    **{
        n: _plain(n) for n in ("Relu", "Abs", "Neg", "Identity", "Exp", "Sqrt", "Sign", "Floor", "Shape", "Size", "Not")
    },
    **{n: _reduction(n) for n in ("ReduceSum", "ReduceMax", "ReduceMean", "ReduceProd", "ReduceL2", "ReduceMin")},
    **{n: _along(n) for n in ("Softmax", "Flatten", "ArgMax", "LogSoftmax")},
    "any": lambda x, rng: ANY(x),
    "reduce": lambda x, rng: ANY_REDUCTION(x, _axes(rng), keepdims=rng.choice((0, 1))),
    "Transpose": lambda x, rng: op.Transpose(x, perm=_list(rng)),
    "Reshape": lambda x, rng: op.Reshape(x, rng.choice((_list(rng), fn.shape(tensor("x")), (0, -1), (-1, 1), (-1,)))),
    "Unsqueeze": lambda x, rng: op.Unsqueeze(x, _axes(rng)),
    "Squeeze": lambda x, rng: op.Squeeze(x, _axes(rng)),
    "Gather": lambda x, rng: op.Gather(x, rng.choice((_list(rng), 0, -1, integer("k"))), axis=_axis(rng)),
    "Slice": lambda x, rng: op.Slice(x, _list(rng), rng.choice((_list(rng), (2**63 - 1,), (9,), (9, 9))), _axes(rng)),
    "Backwards": lambda x, rng: op.Slice(x, (-1,), (-9,), (rng.choice((0, -1, 1)),), (-1,)),
    "Tile": lambda x, rng: op.Tile(x, _list(rng)),
    "Expand": lambda x, rng: op.Expand(x, _list(rng)),
    "Pad": lambda x, rng: op.Pad(x, rng.choice((_list(rng), (0, 1), (0, 0, 1, 1), (1, 0, 0, 0)))),
    "Trilu": lambda x, rng: op.Trilu(x, rng.choice((0, 1, integer("k"))), upper=rng.choice((0, 1))),
    "CumSum": lambda x, rng: op.CumSum(x, rng.choice((0, -1, integer("k"))), reverse=rng.choice((0, 1))),
    "Clip": lambda x, rng: op.Clip(x, rng.choice((0.0, None, -1.0)), rng.choice((1.0, None, 0.0))),
    "Cast": lambda x, rng: op.Cast(x, to=rng.choice((1, 6, 7, 9, 10, 11, fn.dtype(tensor("x"))))),
    "AddOne": lambda x, rng: x + rng.choice((0.0, 1.0, 1, -1)),
    "Twice": lambda x, rng: x * rng.choice((0.0, 1.0, 2.0, -1.0, 2)),
    "Power": lambda x, rng: op.Pow(x, rng.choice((0.0, 1.0, 2.0, 2, -1.0, 0.5))),
    "MaxZero": lambda x, rng: op.Max(x, rng.choice((0.0, 1.0))),
    "Split": lambda x, rng: op.Split.split(2, x, axis=rng.choice((0, -1)), num_outputs=2)[rng.choice((0, 1))],
}
"""Operators on one tensor, with attributes that are drawn."""


# -- batches -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """What came of one rule."""

    rule: str
    verdict: str
    ran: int = 0
    difference: Difference | None = None
    crash: str = ""


def batch(seed: int, size: int = 40) -> Iterator[Trial | str]:
    """So many rules, the same for the same seed: what is done next, in words, and what came of it."""
    rng, done = random.Random(seed), 0
    drawn: Iterator[Rule] = iter(())
    while done < size:
        yield "drawing"
        rule = mutated(rng) if rng.random() < 0.5 else next(drawn, None)
        if rule is None:
            drawn = pairs(rng)
            continue
        yield str(rule)
        yield trial(rule, seed)
        done += 1


def trial(rule: Rule, seed: int) -> Trial:
    """What the prover says of a rule; where it is proved also on how many instances it was run, and a difference."""
    try:
        proof = prove(rule, timeout=PROOF_SECONDS, refute=False)
    except Exception as error:  # a prover that crashes has no verdict, and the user no reason
        return Trial(str(rule), "crashed", crash=f"{type(error).__name__}: {error}")
    return run_proved(rule, proof, seed) if proof.holds else Trial(str(rule), proof.verdict)


def run_proved(rule: Rule, proof: Proof, seed: int) -> Trial:
    """Run a rule that is proved on instances beyond those that its proof enumerates."""
    ran, scope = 0, BEYOND
    if is_fatal_if_empty(rule):
        scope = replace(BEYOND, sizes=BEYOND.sizes[1:])
    for each in sample_specializations(rule, PARTICULARS):
        count = INSTANCES // 3 if rule.is_family else INSTANCES
        for instance in sample_instances(each, seed=seed, count=count, attempts=600, scope=scope):
            what = difference(each, proof, instance, np.random.default_rng(seed + ran))
            ran += what is not None
            if what and is_applied(each, proof, instance):
                return Trial(str(rule), proof.verdict, ran, Difference(each, proof, instance, what))
    return Trial(str(rule), proof.verdict, ran)


@dataclass
class Tally:
    """What came of all rules so far."""

    verdicts: Counter[str] = field(default_factory=Counter)
    ran: int = 0
    within: int = 0
    beyond: int = 0
    lost: int = 0

    def add(self, trial: Trial) -> None:
        self.verdicts[trial.verdict] += 1
        self.ran += trial.ran
        if trial.difference is not None:
            self.within += trial.difference.is_within
            self.beyond += not trial.difference.is_within

    def __str__(self) -> str:
        kinds = ", ".join(f"{number} {name}" for name, number in sorted(self.verdicts.items()))
        return (
            f"{self.verdicts.total()} rules: {kinds}; {self.ran} instances run, {self.within} differences within what"
            f" was enumerated, {self.beyond} beyond; {self.lost} processes lost"
        )


def _work(source: Callable[[int], Iterator[Trial | str]], seed: int, end: Connection) -> None:
    for news in source(seed):
        end.send(news)
    end.close()


PART = 20
"""Rules of the library that one process runs."""


def shipped(number: int) -> Iterator[Trial | str]:
    """Yield the same of the library's rules: the part of that number."""
    for rule in LIBRARY[PART * number : PART * (number + 1)]:
        yield str(rule)
        proof = known_proof(rule)
        yield run_proved(rule, proof, number) if proof and proof.holds else Trial(str(rule), "not proved")


def written(number: int) -> Iterator[Trial | str]:
    """Yield the same of the rules that the tests write, which are proved now."""
    for rule in rules_of_tests()[PART * number : PART * (number + 1)]:
        yield str(rule)
        yield trial(rule, number)


def _watched(source: Callable[[int], Iterator[Trial | str]], seed: int, tally: Tally) -> None:
    """Work on one batch in a process of its own, which ONNX Runtime may end."""
    context = get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(source, seed, theirs))
    process.start()
    theirs.close()
    last = ""
    with suppress(EOFError):
        while True:
            news = ours.recv()
            last = news if isinstance(news, str) else last
            if isinstance(news, Trial):
                tally.add(news)
                if news.difference is not None:
                    _say(f"batch {seed}: {news.difference}")
                if news.crash:
                    _say(f"batch {seed}: the prover crashed: {news.crash}\n    {news.rule}")
    process.join()
    if process.exitcode:
        tally.lost += 1
        _say(f"batch {seed}: its process ended with {process.exitcode}, while at: {last}")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long rules are drawn (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the first batch; the next has the next")
    parser.add_argument("--batches", type=int, default=None, help="so many batches, however long that takes")
    parser.add_argument("--library", action="store_true", help="run the rules that ship instead of drawn ones")
    parser.add_argument("--proved", action="store_true", help="run the rules that the tests write instead")
    options = parser.parse_args()
    end, tally = time.monotonic() + options.seconds, Tally()
    source: Callable[[int], Iterator[Trial | str]] = batch
    seeds: Iterable[int] = count(options.seed * 100_000)
    is_endless = not (options.library or options.proved)
    if not is_endless:
        source, rules = (shipped, LIBRARY) if options.library else (written, rules_of_tests())
        seeds = range(-(-len(rules) // PART))
    for done, seed in enumerate(seeds):
        if done == options.batches or (options.batches is None and is_endless and time.monotonic() > end):
            break
        _watched(source, seed, tally)
    _say(str(tally))
    raise SystemExit(bool(tally.within or tally.beyond or tally.verdicts["crashed"]))


if __name__ == "__main__":
    main()
