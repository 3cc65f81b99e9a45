"""What `graphopt verify` says of a rule that is not proved, as its author reads it."""

from itertools import count

import pytest

from graphopt.base.dtype import DType
from graphopt.language.proof import Verdict
from graphopt.language.rule import Rule, const, fn, integer, integers, op, reduction, tensor
from graphopt.language.terms import Term, Var, holes
from graphopt.verifier import prove as prover
from graphopt.verifier.prove import prove
from graphopt.verifier.solver import SolverSession, StepBudget

x, c, axis = tensor("x"), const("c", "N"), integer("axis")
a, b, rows = tensor("a", "M N"), tensor("b", "K N"), tensor("r", "*b M")
image = tensor("img", "B C H W")
row, index, sizes, is_single = tensor("v", "L"), tensor("i", ""), integers("sizes"), fn.eq(fn.dtype(a), DType.FLOAT)
ones = tensor("o", "M 1*k")
NO_HINT = "if it holds under a condition only, add it with `when=`: of sizes, attributes, or constants"


def unproved(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is said where no counterexample is found."""
    monkeypatch.setattr("graphopt.verifier.counterexample.find_counterexample", lambda rule: None)
    proof = prove(rule)
    assert proof.verdict is Verdict.UNKNOWN, proof
    return proof.detail.splitlines()


def test_elements_are_named_by_place_with_what_each_side_has_there(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = Rule("moved_relu", op.Relu(op.Tanh(rows)), op.Tanh(op.Relu(rows)))
    assert unproved(rule, monkeypatch) == [
        "*b of 0 axes: elements at [i] are not shown to be equal",
        "left   max(Tanh(r[i]); 0)",
        "right  Tanh(max(r[i]; 0))",
        NO_HINT,
    ]


def test_the_rank_and_the_output_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = Rule("second", (op.Relu(x), op.Abs(x)), (op.Relu(op.Relu(x)), op.Abs(x * 0.5)))
    assert unproved(rule, monkeypatch)[0] == "x of rank 0: output 2 of 2: elements are not shown to be equal"


def test_sizes_are_named_as_the_rule_names_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = Rule("longer", op.Relu(op.Concat(a, b, axis=0)), op.Relu(op.Concat(a, a, axis=0)))
    assert unproved(rule, monkeypatch) == [
        "in general: size of axis 0: K+M is not shown to be 2*M",
        "where it holds under a condition only, add it with `when=…`: K+M = 2*M",
    ]
    product = a @ tensor("v", "N K")
    assert unproved(Rule("flipped", op.Relu(product), op.Relu(op.Transpose(product, perm=(1, 0)))), monkeypatch) == [
        "in general: size of axis 0: M is not shown to be K",
        'where M and K are the same size, name the axes alike; else add `when=fn.eq(fn.size("M"), fn.size("K"))`',
    ]
    rule = Rule("unnamed", op.Concat(x, tensor("y"), axis=0), op.Concat(x, x, axis=0))
    assert unproved(rule, monkeypatch)[0].startswith("x of rank 1, y of rank 1: size of axis 0: ")
    assert "x.shape[0]" in unproved(rule, monkeypatch)[0]


def test_a_property_that_is_missing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = Rule("over_itself", op.Tanh(a * c / c), op.Tanh(a), when=fn.is_float(fn.dtype(a)))
    assert unproved(rule, monkeypatch) == [
        "a of FLOAT, c of FLOAT: elements at [i, j] are not shown to be equal",
        "left   Tanh(a[i, j]·c[j]·Inverse(c[j]))",
        "right  Tanh(a[i, j])",
        "it is proved with the condition `fn.is_nonzero(c)`",
    ]


def test_a_type_that_is_too_many_is_excluded(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = Rule("pooled", op.ReduceMax(image, (2, 3), keepdims=1), op.GlobalMaxPool(image))
    first, hint = unproved(rule, monkeypatch)
    assert first == "img of UINT8: on the right GlobalMaxPool of UINT8, which there is not"
    assert hint == "it is well-typed with this condition: `when=fn.is_float(fn.dtype(img))`"


def test_operators_without_a_meaning_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unproved(Rule("hidden", op.Relu(op.Unique(x)), op.Unique(x)), monkeypatch) == [
        "unsupported: no denotation of Unique",
        "the verifier does not say what this operator computes: operators/semantics.py lists those it knows",
    ]


def test_where_the_work_ran_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphopt.verifier.counterexample.find_counterexample", lambda rule: None)
    transposed = op.Transpose(x, perm=integers("perm"))
    rule = Rule("late", op.Relu(op.Relu(transposed)), op.Relu(transposed))
    first, *hints = prove(rule, timeout=0.008).detail.splitlines()
    assert first.startswith("out of time after ") and "x of rank 4, perm=" in first
    assert hints == [
        "`graphopt verify --timeout 0.048` takes longer",
        "axes with names and attributes that are written leave fewer cases",
    ]


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (Rule("small", op.Relu(op.Relu(a)), op.Relu(a), when=fn.le(fn.size("M"), -1)),
         "size('M') <= -1 does not hold for any sizes"),
        (Rule("both", op.Relu(op.Relu(a)), op.Relu(a),
              when=(fn.lt(fn.size("M"), fn.size("N")), fn.lt(fn.size("N"), fn.size("M")))),
         "these do not hold together: size('M') < size('N'), size('N') < size('M')"),
        (Rule("ranks", op.Relu(op.Transpose(a, perm=(0, 2, 1))), op.Relu(a)), "Transpose by (0, 2, 1) of rank 2"),
        (Rule("far", op.Softmax(op.Relu(a), axis=axis), op.Softmax(a, axis=axis), when=fn.le(7, axis)),
         "no value that is tried fulfils 7 <= axis"),
        (Rule("two", a + c, a, when=(fn.is_zero(c), fn.is_one(c))),
         "no constant is all of these: is_one(c), is_zero(c)"),
        (Rule("empty", op.Relu(op.Relu(a)), op.Relu(a), when=fn.le(fn.size("M"), 0)), "it occurs only where M is 0"),
    ],
    ids=lambda item: item.name if isinstance(item, Rule) else "",
)  # fmt: skip
def test_what_never_occurs_names_the_condition_or_the_operator(rule: Rule, why: str) -> None:
    proof = prove(rule, refute=False)
    assert (proof.verdict, proof.detail) == (Verdict.VACUOUS, f"the left side never occurs: {why}")


def test_types_that_never_fit_name_the_condition() -> None:
    rule = Rule("types", op.Tanh(op.Relu(x)), op.Relu(x), when=fn.is_integer(fn.dtype(x)))
    proof = prove(rule, refute=False)
    assert proof.detail == "no element types for which is_integer(dtype(x)) holds fit the left side"


def test_the_work_is_the_same_whatever_the_clock_says(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = Rule("joined", op.Concat(op.Relu(a), op.Relu(b), axis=0), op.Relu(op.Concat(a, b, axis=0)))
    budgets: list[StepBudget] = []

    def kept(*, budget: StepBudget) -> SolverSession:
        budgets.append(budget)
        return SolverSession(budget=budget)

    monkeypatch.setattr(prover, "SolverSession", kept)
    quick = prove(rule, refute=False)
    ticks = count(step=0.01)
    monkeypatch.setattr("time.process_time", lambda: next(ticks))  # as on a machine that is busy
    slow = prove(rule, refute=False)
    assert quick.verdict is slow.verdict is Verdict.PROVED
    assert budgets[0].instances == budgets[-1].instances


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "condition"),
    [
        (Rule("looked_up", op.Gather(row, op.Expand(index, sizes)), op.Expand(op.Gather(row, index), sizes)),
         "fn.le(1, sizes)"),
        (Rule("greatest", op.ReduceMax(a, (1,)), op.TopK.split(2, a, (1,), axis=1)[0], when=is_single),
         'fn.le(1, fn.size("N"))'),
        (Rule("mean", op.ReduceMean(op.Expand(index, op.Shape(row)), (0,), keepdims=0), index,
              when=fn.eq(fn.dtype(index), DType.FLOAT)), 'fn.le(1, fn.size("L"))'),
        (Rule("of_all", op.ReduceMax(op.Expand(index, op.Shape(x)), keepdims=0), index,
              when=fn.eq(fn.dtype(index), DType.FLOAT)), "fn.le(1, fn.shape(x))"),
        (Rule("both", (op.ReduceMax(a, (1,)), op.ReduceMax(a, (0,))),
              (op.TopK.split(2, a, (1,), axis=1)[0], op.TopK.split(2, a, (1,), axis=0)[0]), when=is_single),
         'fn.le(1, fn.sizes("M N"))'),
        (Rule("beside_ones", (op.ReduceMax(a, (1,)), op.Relu(ones)),
              (op.TopK.split(2, a, (1,), axis=1)[0], op.Relu(ones)), when=is_single), 'fn.le(1, fn.size("N"))'),
    ],
    ids=lambda item: item.name if isinstance(item, Rule) else "",
)  # fmt: skip
def test_an_empty_axis_that_is_the_only_obstacle_is_excluded(rule: Rule, condition: str) -> None:
    proof = prove(rule)
    hint = f"only an empty axis stands in the way: it is proved with the condition `{condition}`"
    assert not proof.holds and proof.failure_text.splitlines()[-1].strip() == hint, proof


column, is_float = tensor("c", "M 1"), fn.eq(fn.dtype(tensor("c", "M 1")), DType.FLOAT)
zeros = op.ConstantOfShape(op.Shape(a))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "shown", "condition"),
    [
        (Rule("mean", op.ReduceMean(op.Expand(column, fn.sizes("M N")), (1,)), column, when=is_float),
         "N = 0", 'fn.le(1, fn.size("N"))'),
        (Rule("apart", op.ReduceMean(op.Expand(column, fn.concat(fn.size("M"), fn.size("N"))), (1,)), column,
              when=is_float),
         "N = 0", 'fn.le(1, fn.size("N"))'),
        (Rule("of_all", op.ReduceMean(op.Expand(index, fn.sizes("P Q")), keepdims=0), index,
              when=fn.eq(fn.dtype(index), DType.FLOAT)), "Q = 0", 'fn.le(1, fn.sizes("P Q"))'),
        (Rule("joined", op.ReduceMean(op.Expand(column, fn.concat(fn.size("K"), fn.sizes("M N"))), (0, 2), keepdims=0),
              op.Squeeze(column, (1,)), when=is_float), "K = 0", 'fn.le(1, fn.sizes("K N"))'),
        (Rule("pack", op.ReduceMean(op.Expand(index, fn.sizes("*s")), keepdims=0), index,
              when=fn.eq(fn.dtype(index), DType.FLOAT)), "*s = [0]", 'fn.le(1, fn.sizes("*s"))'),
        (Rule("product", op.ReduceProd(zeros, (1,)), op.ReduceMax(zeros, (1,))),
         "a: float32[1, 0] = [[]]", 'fn.le(1, fn.size("N"))'),
    ],
    ids=lambda item: item.name if isinstance(item, Rule) else "",
)  # fmt: skip
def test_an_empty_axis_of_no_tensor_is_named_and_excluded(rule: Rule, shown: str, condition: str) -> None:
    proof = prove(rule)
    lines = [line.strip() for line in proof.failure_text.splitlines()]
    assert proof.verdict is Verdict.REFUTED and shown in lines, proof
    assert lines[-1] == f"only an empty axis stands in the way: it is proved with the condition `{condition}`", proof


@pytest.mark.parametrize("body", [2.0, -1.0, 0.5])
def test_a_product_of_a_number_is_not_the_number(body: float) -> None:
    filled = op.Expand(body, op.Shape(a))
    rule = Rule("power", op.ReduceProd(filled, (1,)), op.ReduceMax(filled, (1,)), when=fn.le(1, fn.size("N")))
    assert not prove(rule, refute=False).holds


def test_an_empty_axis_is_not_blamed_for_what_is_wrong() -> None:
    wrong = Rule("greatest", op.ReduceMax(a, (1,)), op.TopK.split(2, a, (1,), axis=1, largest=0)[0], when=is_single)
    assert "empty axis" not in prove(wrong).failure_text


@pytest.mark.parametrize(
    ("left", "right", "said"),
    [
        (op.Tanh(x * 0.7978845608), -op.Tanh(x * -0.7978845608028654),
         ("0.7978845608 is not math.sqrt(2 / math.pi): it is proved with 0.7978845608028654, which is the same number"
          " in single precision, so that it matches there, too")),
        (op.Erf(x / 1.41421), op.Erf(x * 0.7071067811865476),
         ("1.41421 is not math.sqrt(2): it is proved with 1.4142135623730951, which is another number in single"
          " precision, too: it does not match models with 1.41421")),
        (op.Erf(x * -0.70710678), op.Erf(x / -1.4142135623730951),
         ("-0.70710678 is not -(math.sqrt(1 / 2)): it is proved with -0.7071067811865476, which is the same number"
          " in single precision, so that it matches there, too")),
        (op.Tanh(x * fn.sqrt(fn.truediv(2.0, 3.141592653589793))), -op.Tanh(x * -0.7978845608028654),
         ("sqrt(2.0 / 3.141592653589793) is not math.sqrt(2 / math.pi): it is proved with 0.7978845608028654, the"
          " nearest float, written out")),
        (op.Sin(x * 6.28318531), op.Sin(x * 3.141592653589793 * 2.0),
         ("6.28318531 is not 2 * math.pi: it is proved with 6.283185307179586, which is the same number in single"
          " precision, so that it matches there, too")),
    ],
)  # fmt: skip
def test_a_number_with_too_few_digits_is_named(
    left: Term, right: Term, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphopt.verifier.counterexample.find_counterexample", lambda rule: None)
    proof = prove(Rule("near", left, right, when=fn.eq(fn.dtype(x), DType.FLOAT)))
    assert said in proof.failure_text.replace("\n    ", "\n").splitlines(), proof


IN_TYPES = "only the element types differ in which it is computed: cast alike on both sides"


def of_type(dtype: DType, *operands: Var) -> tuple[Term, ...]:
    return tuple(fn.eq(fn.dtype(operand), dtype) for operand in operands)


def cast(value: Term, dtype: DType) -> Term:
    return op.Cast(value, to=dtype)


@pytest.mark.parametrize(
    ("left", "right", "when", "said"),
    [
        (cast(cast(x, DType.DOUBLE), DType.STRING), cast(x, DType.STRING), of_type(DType.FLOAT, x),
         ["left   Cast(x, text, DOUBLE, STRING)", "right  Cast(x, text, FLOAT, STRING)", IN_TYPES]),
        (cast(cast(x, DType.INT64), DType.STRING), cast(x, DType.STRING), of_type(DType.UINT8, x),
         ["left   Cast(x, text, INT64, STRING)", "right  Cast(x, text, UINT8, STRING)", IN_TYPES]),
        (op.BitwiseNot(cast(x, DType.INT32)), cast(op.BitwiseNot(x), DType.INT32), of_type(DType.UINT8, x),
         ["left   BitwiseNot(x, INT32)", "right  BitwiseNot(x, UINT8)", IN_TYPES]),
        (op.NonZero(cast(a, DType.DOUBLE)), op.NonZero(a), of_type(DType.FLOAT, a),
         ["left   NonZero(…)[i, j]", "right  NonZero(…)[i, j]", IN_TYPES]),
        (op.Relu(op.Tanh(x)), op.Tanh(op.Relu(x)), (), [NO_HINT]),
        (op.BitwiseNot(cast(x, DType.INT32)), cast(op.BitwiseNot(op.BitwiseNot(x)), DType.INT32),
         of_type(DType.UINT8, x), [NO_HINT]),
        (op.NonZero(cast(a, DType.DOUBLE)), op.NonZero(op.Transpose(a, perm=(1, 0))), of_type(DType.FLOAT, a), []),
    ],
)  # fmt: skip
def test_element_types_are_named_where_they_alone_differ(
    left: Term, right: Term, when: tuple[Term, ...], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = unproved(Rule("typed", left, right, when=when), monkeypatch)
    assert set(said) <= set(lines) and (IN_TYPES in lines) == (IN_TYPES in said), lines


@pytest.mark.parametrize(
    ("left", "right", "in_types"),
    [
        (op.Pow(x, cast(index, DType.DOUBLE)), op.Pow(x, index), True),
        (op.Round(cast(x, DType.DOUBLE)), cast(op.Round(x), DType.DOUBLE), True),
        (op.Floor(cast(x, DType.DOUBLE)), cast(op.Floor(x), DType.DOUBLE), True),
        (op.Floor(x * 2.0 * 0.5), op.Floor(x), False),
        (op.Floor(cast(x, DType.DOUBLE) * 3.0), cast(op.Floor(x * 3.0), DType.DOUBLE), False),
    ],
)
def test_a_jump_of_what_is_only_cast_is_not_said_to_be_rounded(
    left: Term, right: Term, *, in_types: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    floats = of_type(DType.FLOAT, *dict.fromkeys(holes(left)))
    (line,) = unproved(Rule("jump", left, right, when=floats), monkeypatch)
    assert ("its operand is cast to another element type: it has to be computed in the same types" in line) == in_types
    assert ("not rounded otherwise" in line) != in_types, line


def test_a_quotient_of_reals_is_no_whole_number() -> None:
    proof = prove(
        Rule("halved", x * fn.floordiv(1.0, 2.0), x * 0.5, when=fn.eq(fn.dtype(x), DType.FLOAT)), refute=False
    )
    assert "floordiv is of whole numbers, `truediv` is of others" in proof.detail


@pytest.mark.slow
@pytest.mark.parametrize("along", [(), ((0, 1),)], ids=["all", "both"])
def test_what_a_reduction_of_any_kind_reads_is_told_apart(along: tuple[tuple[int, ...]]) -> None:
    """It may add up in another order."""
    reduced = reduction("g")
    turned = Rule("turned", reduced(op.Transpose(a, perm=(1, 0)), *along, keepdims=0), reduced(a, *along, keepdims=0))
    proof = prove(turned)
    lines = proof.detail.splitlines()
    assert proof.verdict is Verdict.UNKNOWN, proof
    assert "g reads a tensor whose element [i, j] is a[j, i] on the left, and a[i, j] on the right" in lines, proof
    assert any(line.startswith("of g only the class is known") for line in lines), proof
