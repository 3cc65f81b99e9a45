"""What becomes of the substitutions that TASO published: none of them silently differs.

TASO (Jia et al., SOSP 2019) generated `graph_subst.pb`; TENSAT (Yang et al., MLSys 2021) keeps what TASO's verifier
prints of it as text, an equation for each output: https://github.com/uwplse/tensat/blob/master/taso_rules.txt (MIT).
`python -m benchmarks.substitutions taso_rules.txt --workers 2` reads that file, says each equation in terms of ONNX,
and writes what became of it to `benchmarks/results/taso.jsonl`, and a summary to `taso.md`.

Inputs have the ranks and kernels of TASO's generator, all other sizes are left open; a convolution has as many groups
as its weights say. The mean of a pool leaves out what is padded, as where TASO runs it.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path

from graphopt.base import files
from graphopt.base.engine import engine
from graphopt.base.errors import GraphoptError, RuleError
from graphopt.base.types import DType
from graphopt.discover.classes import Equal
from graphopt.discover.derive import Derivation, Terms
from graphopt.discover.evaluation import OPERANDS
from graphopt.discover.library import had
from graphopt.discover.lifting import can_be_written, counterexample, mapped, spelt_alike, typed_apart
from graphopt.discover.settle import evaluators
from graphopt.discover.worlds import World
from graphopt.language import library
from graphopt.language.proof import Proof, Verdict
from graphopt.language.rule import Rule
from graphopt.language.term import App, Lit, Operator, Term, Var, const, fn, op, tensor
from graphopt.rewrite import gate

RESULTS = Path(__file__).parent / "results"
FOUND = Path(__file__).parent.parent / "tests" / "discover" / "found"
"""What runs of size 3 found without the library."""
TIMEOUT = 4.0

# -- the text ----------------------------------------------------------------------------------------------------------

_TOKEN = re.compile(r"\w+|[(),]|==")
MISPRINTS = {"==(0,relu(concat(0,input_1,input_2)))": "==split_0(0,relu(concat(0,input_1,input_2)))"}
"""The name of an operator is lost once in the file; beside it stands the same of the other part."""


@dataclass(frozen=True)
class Call:
    """An operator as the file has it, applied to others, inputs and numbers."""

    name: str
    args: tuple[Call, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({','.join(map(str, self.args))})" if self.args else self.name


def equations(text: str) -> list[tuple[Call, Call]]:
    """Return the equations of a file: they follow each other without a sign between them.

    Raises:
        GraphoptError: it is no such file.
    """
    for misprint, meant in MISPRINTS.items():
        text = text.replace(misprint, meant)
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != "".join(text.split()):
        raise GraphoptError("this is not a file of TASO's equations: f(g(input_1),2)==h(input_1)…")
    tokens.reverse()
    found = list[tuple[Call, Call]]()
    while tokens:
        left = _call(tokens)
        if not tokens or tokens.pop() != "==":
            raise GraphoptError(f"equation {len(found) + 1}: there is no '==' after {left}")
        found.append((left, _call(tokens)))
    return found


def _call(tokens: list[str]) -> Call:
    if not tokens or not tokens[-1][0].isalnum():
        raise GraphoptError(f"an operator or an input is missing before '{tokens[-1] if tokens else ''}'")
    name, args = tokens.pop(), []
    if tokens and tokens[-1] == "(":
        while tokens and tokens.pop() != ")":
            args.append(_call(tokens))
    return Call(name, tuple(args))


# -- in terms of ONNX --------------------------------------------------------------------------------------------------

AXES = ("N C", "C C", "N C H W", "C C 3 3", "C C 1 3", "C C 3 1")
"""The axes of inputs, three of each: the rest have a channel for each filter, and no axes at all."""
INPUTS = {f"input_{i}": tensor(f"x{i}", AXES[(i - 1) // 3]) for i in range(1, 19)} | {
    "input_19": tensor("x19", "C 1 3 3"),
    "input_20": tensor("k", ""),
}
UNIT = op.EyeLike(op.Expand(1.0, fn.join(fn.size("C"), fn.size("C"))))
SAME = "SAME_UPPER"
"""All strides are 1, so that an image is as large as what comes out."""
TASO = World(
    "taso",
    tuple(INPUTS.values()),
    ({"N": 2, "C": 3, "H": 4, "W": 5}, {"N": 3, "C": 2, "H": 5, "W": 4}),
    "behind",
    lambda _: (),
)
Kinds = tuple[str, ...]


@dataclass(frozen=True)
class Translated:
    """A term, and the kinds of its axes: those of the parts, where it lies beside another."""

    term: Term
    kinds: Kinds


def translated(call: Call, *, padded: bool = False) -> Translated:
    """Return what a call of the file is in ONNX; means of pools count what is padded, where `padded`.

    Raises:
        GraphoptError: it is no operator of TASO, and none of its inputs.
    """
    if call.name in INPUTS:
        return Translated(INPUTS[call.name], INPUTS[call.name].axes or ())
    if call.name in CONSTANTS:
        return CONSTANTS[call.name]
    name = "pool2d_avg, padded" if padded and call.name == "pool2d_avg" else call.name
    if name not in OPERATORS:
        raise GraphoptError(f"'{name}' is no operator of TASO, and none of its inputs")
    numbers = tuple(int(arg.name) for arg in call.args if arg.name.isdigit())
    inputs = [translated(arg, padded=padded) for arg in call.args if not arg.name.isdigit()]
    return OPERATORS[name](numbers, *inputs)


Numbers = tuple[int, ...]


def _elementwise(name: str, _: Numbers, *inputs: Translated) -> Translated:
    return Translated(App(name, tuple(each.term for each in inputs)), inputs[0].kinds)


def _transpose(_: Numbers, matrix: Translated) -> Translated:
    return Translated(op.Transpose(matrix.term, perm=(1, 0)), matrix.kinds[::-1])


def _product(_: Numbers, left: Translated, right: Translated) -> Translated:
    return Translated(left.term @ right.term, (left.kinds[0], right.kinds[1]))


def _concat(numbers: Numbers, *inputs: Translated) -> Translated:
    (axis,) = numbers
    joined = " ".join(each.kinds[axis] for each in inputs)
    return Translated(op.Concat(*(each.term for each in inputs), axis=axis), _at(axis, joined, inputs[0].kinds))


def _part(which: int, numbers: Numbers, whole: Translated) -> Translated:
    (axis,) = numbers
    parts = op.Split.split(2, whole.term, fn.sizes(whole.kinds[axis]), axis=axis)
    return Translated(parts[which], _at(axis, whole.kinds[axis].split()[which], whole.kinds))


def _at(axis: int, kind: str, kinds: Kinds) -> Kinds:
    return (*kinds[:axis], kind, *kinds[axis + 1 :])


def _convolution(numbers: Numbers, image: Translated, weights: Translated) -> Translated:
    grouped = {"group": fn.size(image.kinds[1])} if weights.kinds[1] == "1" else {}
    made = op.Conv(image.term, weights.term, auto_pad=SAME, **grouped)
    return Translated(op.Relu(made) if numbers[-1] == 2 else made, (image.kinds[0], weights.kinds[0], *image.kinds[2:]))


def _pool(name: str, _: Numbers, image: Translated, **attrs: int) -> Translated:
    window = Operator(name)(image.term, kernel_shape=(3, 3), auto_pad=SAME, **attrs)
    return Translated(window, image.kinds)


def _enlarge(_: Numbers, kernel: Translated) -> Translated:
    before = [(3 - int(size)) // 2 for size in kernel.kinds[2:]]
    return Translated(op.Pad(kernel.term, (0, 0, *before, 0, 0, *before)), (*kernel.kinds[:2], "3", "3"))


OPERATORS: Mapping[str, Callable[..., Translated]] = {
    **{taso: partial(_elementwise, name) for taso, name in (("ewadd", "Add"), ("ewmul", "Mul"), ("relu", "Relu"))},
    "scalar_mul": partial(_elementwise, "Mul"),
    "matmul": _product,
    "transpose": _transpose,
    "concat": _concat,
    "split_0": partial(_part, 0),
    "split_1": partial(_part, 1),
    "conv2d": _convolution,
    "pool2d_max": partial(_pool, "MaxPool"),
    "pool2d_avg": partial(_pool, "AveragePool"),
    "pool2d_avg, padded": partial(_pool, "AveragePool", count_include_pad=1),
    "enlarge": _enlarge,
}
CONSTANTS: Mapping[str, Translated] = {
    "const_one": Translated(Lit(1.0), ()),
    "const_imm": Translated(UNIT, ("C", "C")),
    "const_iconv": Translated(op.Pad(op.Unsqueeze(UNIT, (2, 3)), (0, 0, 1, 1, 0, 0, 1, 1)), ("C", "C", "3", "3")),
    "const_pool": Translated(op.Expand(op.Div(1.0, 9.0), fn.join(fn.size("C"), 1, 3, 3)), ("C", "1", "3", "3")),
}

# -- what becomes of an equation ---------------------------------------------------------------------------------------

WEIGHTS = frozenset({"k", *(f"x{i}" for i in (4, 5, 6, *range(10, 20)))})
"""The number and what TASO calls weights: the library is asked with any tensors, and with constants for these."""


@dataclass(frozen=True)
class Equation:
    """An equation of the file, and how often it has that with other names or read from right to left."""

    left: Call
    right: Call
    times: int = 1

    def __str__(self) -> str:
        return f"{self.left}=={self.right}"

    def sides(self, *, padded: bool = False) -> Equal:
        """Return both sides in terms of ONNX."""
        left, right = (translated(side, padded=padded).term for side in (self.left, self.right))
        return Equal(left, right)


@dataclass(frozen=True)
class Answer:
    """What became of an equation."""

    equation: str
    times: int
    rule: str
    """What was asked about in terms of ONNX, and of what axes its holes are."""
    axes: dict[str, str]
    verdict: str
    """PROVED, REFUTED or UNKNOWN; SAME where both sides are one term, but for the order of operands."""
    model: str = ""
    detail: str = ""
    """The counterexample of what is refuted, the reason of what is not decided."""
    padded: str = ""
    """The verdict where means of pools count what is padded, if it is another."""
    library: tuple[str, ...] | None = None
    """The rules of the library that lead from one side to the other; none but the passes, if empty."""
    weights: tuple[str, ...] | None = None
    """The same where weights and the number are constants."""
    found: bool = False
    """It follows from rules that runs of discovery found without the library."""
    follows: bool = False
    """Not decided by itself, it follows from those, and from other equations of the file that are proved."""


def distinct(found: Sequence[tuple[Call, Call]]) -> list[Equation]:
    """Return equations without those that are another one with other names, or read from right to left."""
    kept: dict[str, Equation] = {}
    for left, right in found:
        equal = Equation(left, right).sides()
        key = min(spelt_alike((equal.term, equal.other)), spelt_alike((equal.other, equal.term)))
        first = kept.get(key, Equation(left, right, 0))
        kept[key] = replace(first, times=first.times + 1)
    return list(kept.values())


def answer(equation: Equation) -> Answer:
    """Return what becomes of an equation by itself."""
    equal, known, found = equation.sides(), _library(), _found()
    if found.terms.canonical(equal.term) == found.terms.canonical(equal.other):
        return Answer(str(equation), equation.times, str(equal.term), {}, "SAME")
    rules = _rules(equal)
    proof = _decided(rules)
    detail = proof.counterexample or ("" if proof.holds else proof.detail)
    if proof.holds:  # what is proved is run as well
        detail = next(filter(None, (counterexample(rule, proof) for rule in rules)), "")
    verdict = Verdict.REFUTED if proof.holds and detail else proof.verdict
    counted = _decided(_rules(equation.sides(padded=True))).verdict if verdict is Verdict.REFUTED else verdict
    return Answer(
        *(str(equation), equation.times, str(rules[0]), _axes(rules[0]), str(verdict)),
        model=str(proof.model or ""),
        detail=detail,
        padded=str(counted) if counted is not verdict else "",
        library=_way(rules, known),
        weights=_way([_with_constants(rule) for rule in rules], known),
        found=found.derives(equal.term, equal.other),
    )


def _rules(equal: Equal) -> list[Rule]:
    """The equation as rules, one for each direction in which it can be read; of the sizes in which it holds."""
    typed = typed_apart(equal, TASO, evaluators())
    one, other = typed[:2] if typed else (equal.term, equal.other)
    rules = []
    for name, source, target in (("equation", one, other), ("reversed", other, one)):
        if can_be_written(source, target):
            with suppress(RuleError):
                rules.append(Rule(name, source, target))
    return rules


def _decided(rules: Sequence[Rule]) -> Proof:
    """The proof of one of some rules that say the same; TASO's tensors are not empty, and of FLOAT."""
    proof, *others = (partial(gate.attempt, replace(rule, when=_granted(rule)), TIMEOUT) for rule in rules)
    found = proof()
    return others[0]() if others and found.verdict is Verdict.UNKNOWN else found


def _granted(rule: Rule) -> tuple[Term, ...]:
    tensors = rule.holes.values()
    axes = dict.fromkeys(axis for hole in tensors for axis in hole.axes or () if not axis.isdigit())
    return (*(fn.le(1, fn.size(axis)) for axis in axes), *(fn.eq(fn.dtype(hole), DType.FLOAT) for hole in tensors))


def _axes(rule: Rule) -> dict[str, str]:
    return {name: " ".join(hole.axes or ()) for name, hole in rule.holes.items()}


def _with_constants(rule: Rule) -> Rule:
    def changed(part: Term) -> Term | None:
        if isinstance(part, Var) and part.name in WEIGHTS:
            return const(part.name, " ".join(part.axes or ()))
        return None

    return Rule(rule.name, mapped(rule.left[0], changed), mapped(rule.right[0], changed))


def _way(rules: Sequence[Rule], known: library.Library) -> tuple[str, ...] | None:
    """The rules of a library that lead from one side to the other, None where none do."""
    ways = (had(rule, known) for rule in rules)
    return next((way.rules for way in ways if way.is_had), None)


@cache
def _library() -> library.Library:
    return library.load()


@cache
def _found() -> Derivation:
    terms = Terms(TASO, (op.Mul(*OPERANDS[:2]),), evaluators()[0])  # factors come first, so that they move out
    return Derivation(terms, library.read(sorted(FOUND.glob("*.jsonl"))).everything)


def followed(answers: Sequence[Answer], asked: Sequence[Equation]) -> list[Answer]:
    """Return answers that say of what is not decided whether it follows from what is proved."""
    proved = _found()
    for each, equation in zip(answers, asked, strict=True):
        for padded, verdict in ((False, each.verdict), (True, each.padded)):
            if verdict == str(Verdict.PROVED):
                proved.add(_rules(equation.sides(padded=padded))[0])

    def follows(each: Answer, equation: Equation) -> bool:
        equal = equation.sides(padded=bool(each.padded))
        return str(Verdict.UNKNOWN) in (each.verdict, each.padded) and proved.derives(equal.term, equal.other)

    return [replace(each, follows=follows(each, equation)) for each, equation in zip(answers, asked, strict=True)]


# -- what is written ---------------------------------------------------------------------------------------------------


def table(answers: Sequence[Answer]) -> str:
    """Return how many equations became what."""
    rows: dict[str, list[Answer]] = {}
    for each in answers:
        rows.setdefault(_row(each), []).append(each)
    count = f"{sum(each.times for each in answers)} equations, {len(answers)} up to names and direction"
    made = "made by `python -m benchmarks.substitutions taso_rules.txt`, one line for each in [taso.jsonl](taso.jsonl)"
    lines = [
        "# The substitutions of TASO",
        "",
        f"{count}; {made}.",
        "The equations are those that TENSAT (MIT) keeps of what TASO (Apache-2.0) generated, said in terms of ONNX.",
        "",
        "| what became of it | equations | up to names |",
        "| --- | ---: | ---: |",
        *(f"| {row} | {sum(each.times for each in some)} | {len(some)} |" for row, some in sorted(rows.items())),
    ]
    return "\n".join([*lines, ""])


def _row(each: Answer) -> str:
    if each.verdict == "SAME":
        return "the same on both sides"
    if each.padded:
        counted = "follows from others that are proved" if each.follows else each.padded
        return f"{each.verdict}; {counted} where means of pools count what is padded"
    by = {
        "the library": each.library is not None,
        "the library, where weights are constants": each.library is None and each.weights is not None,
        "rules that were found": each.found,
        "other equations of the file that are proved": each.follows and not each.found,
    }
    told = " and from ".join(name for name, holds in by.items() if holds)
    return f"{each.verdict}{f', follows from {told}' if told else ', by itself' * (each.verdict == 'PROVED')}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("equations", type=Path, help="TENSAT's taso_rules.txt")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    asked = distinct(equations(given.equations.read_text(encoding="utf-8")))
    answers: dict[int, Answer] = {}
    with engine(given.workers) as runs:
        for place, found in runs.each(answer, asked):
            answers[place] = found
            print(f"{len(answers)} of {len(asked)}: {found.verdict} {found.equation}", file=sys.stderr)
    ordered = followed([answers[place] for place in range(len(asked))], asked)
    lines = (json.dumps(asdict(each), ensure_ascii=False) for each in ordered)
    files.write_text(given.results / "taso.jsonl", "".join(f"{line}\n" for line in lines))
    files.write_text(given.results / "taso.md", table(ordered))
    print(table(ordered))


if __name__ == "__main__":
    main()
