"""A rule is data: it prints as algebra, survives JSON, and refuses nonsense where it is written."""

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from graphopt.base.errors import RuleError
from graphopt.language.rule import Rule, attributes, const, fn, integer, integers, microsoft, op, real, string, tensor

x, w, s = tensor("x", "*b M K"), const("w", "K N"), const("s", "N")
LIVE = fn.nonzero_indices("K", w)
ARRAY: Any = np.ones(3, np.float32)
NOTHING: Any = None
SIZE: Any = fn.size("K")
p, q = integers("p"), integers("q")
rest = attributes("rest")

SCALE = Rule("fold_scale_into_matmul", (x @ w) * s, x @ (w * s), why="One multiplication less.")
TRANSPOSES = Rule(
    "fuse_consecutive_transposes",
    op.Transpose(op.Transpose(tensor("x"), perm=p), perm=q),
    op.Transpose(tensor("x"), perm=fn.compose(p, q)),
    when=fn.ne(fn.compose(p, q), (0, 1)),
)
SMALL = Rule(
    "fuse_consecutive_matmuls",
    (x @ w) @ const("v", "N P"),
    x @ (w @ const("v", "N P")),
    when=fn.is_float(fn.dtype(x)),
    pays=(fn.size("P") <= fn.size("N"), fn.size("M") > 1),
)
y = tensor("y", "*b M K")
left, right = op.Split.split(2, y, None, axis=-1, num_outputs=2)
CROSSED = Rule(
    "swap_halves", (op.Relu(left), op.Relu(right)), op.Split.split(2, op.Relu(y), None, axis=-1, num_outputs=2)
)
CONV = Rule(
    "fuse_mul_into_conv",
    op.Conv(tensor("d"), const("w", "M C *k"), const("b", "M", default=0), attributes("rest")) * const("s", "M 1*k"),
    op.Conv(
        tensor("d"),
        const("w", "M C *k") * op.Unsqueeze(const("s", "M 1*k"), (1,)),
        const("b", "M", default=0) * op.Reshape(const("s", "M 1*k"), (-1,)),
        attributes("rest"),
    ),
)


def test_a_rule_prints_as_algebra() -> None:
    assert str(SCALE) == "x @ w * s  ->  x @ (w * s)"
    assert str(TRANSPOSES) == (
        "Transpose(Transpose(x, perm=p), perm=q)  ->  Transpose(x, perm=compose(p, q))  where compose(p, q) != [0, 1]"
    )
    assert str(SMALL) == (
        "x @ w @ v  ->  x @ (w @ v)  where is_float(dtype(x))  paying where size('P') <= size('N') and 1 < size('M')"
    )
    assert str(CONV) == "Conv(d, w, b, …) * s  ->  Conv(d, w * Unsqueeze(s, [1]), b * Reshape(s, [-1]), …)"


@pytest.mark.parametrize("rule", [SCALE, TRANSPOSES, SMALL, CROSSED, CONV], ids=lambda rule: rule.name)
def test_json_brings_a_rule_back(rule: Rule) -> None:
    assert Rule.from_json(json.loads(json.dumps(rule.to_json()))) == rule
    assert Rule.from_json(rule.to_json()).digest == rule.digest


def test_a_rule_that_is_pickled_still_says_where_it_pays() -> None:
    assert pickle.loads(pickle.dumps(SMALL)) == SMALL


def test_where_a_rule_pays_is_a_condition_and_no_part_of_its_claim() -> None:
    assert SMALL.conditions == (SMALL.when, fn.size("P") <= fn.size("N"), fn.size("M") > 1)
    assert SMALL.without_profitability.conditions == (SMALL.when,)
    assert SMALL.without_profitability == replace(SMALL, pays=())
    assert TRANSPOSES.without_profitability is TRANSPOSES
    assert replace(SMALL, pays=fn.size("M") > 1) == replace(SMALL, pays=(fn.size("M") > 1,))
    assert SMALL.digest != SMALL.without_profitability.digest


def test_the_digest_is_of_what_a_rule_says_not_of_why() -> None:
    assert Rule(SCALE.name, SCALE.lhs, SCALE.rhs, why="Another reason.").digest == SCALE.digest
    assert Rule(SCALE.name, SCALE.lhs, x @ (s * w)).digest != SCALE.digest


@pytest.mark.parametrize(
    ("complaint", "name", "lhs", "rhs", "when"),
    [
        ("must be snake_case", "FoldScale", (x @ w) * s, x @ (w * s), ()),
        ("hole 'y' is not bound", "unbound", op.Relu(x), y, ()),
        ("axis 'N' is not bound", "unbound_axis", op.Relu(x), x, fn.eq(fn.size("N"), 1)),
        ("declared in two ways", "two_ways", op.Relu(x), tensor("x", "M K"), ()),
        ("left and right are the same", "same", op.Relu(x), op.Relu(x), ()),
        ("must be an operator", "bare", x, op.Identity(x), ()),
        ("unknown operator 'Rleu'", "typo", op.Rleu(x), x, ()),
        ("Transpose has no attribute 'prem'", "attribute", op.Transpose(x, prem=p), x, ()),
        ("unknown scalar function 'plus'", "function", op.Relu(x), x, fn.eq(fn.plus(1, 2), 3)),
        ("Relu takes 1 to 1 inputs, not 2", "inputs", op.Relu(x, x), x, ()),
        ("as many", "sides", (op.Relu(x), op.Neg(x)), x, ()),
        ("only be a condition", "computed", op.Relu(w), op.Elu(w, alpha=fn.choose(fn.is_zero(w), 0.0, 1.0)), ()),
        ("only be a condition", "denied", op.Relu(w), op.Neg(w), fn.not_(fn.is_positive(w))),
        ("only be a condition", "alternative", op.Relu(w), w, fn.any_of(fn.is_zero(w), fn.is_positive(w))),
        ("differ in axis", "two_axes", op.Softmax(op.Gather(x, (0,), rest), rest), op.Identity(x), ()),
        ("differ in alpha", "two_alphas", op.Elu(x, rest), op.LeakyRelu(x, rest), ()),
        # that the schema states no default does not make two defaults the same
        ("differ in .*strides", "two_pools", op.MaxPool(x, rest), op.AveragePool(x, rest), ()),
        ("-0.0 cannot be said", "minus_zero", op.Relu(x), op.Max(x, -0.0), ()),
        ("nan cannot be said", "no_number", op.Relu(x), op.Clip(x, None, float("nan")), ()),
        ("of no constant", "of_a_tensor", op.Relu(x), x, fn.is_positive(x)),
        ("its sizes are a list", "counts_to_a_number", op.Relu(w), w, fn.is_arange(w, 3)),
        ("its sizes are a list", "counts_to_a_size", op.Relu(w), w, fn.is_arange(w, fn.size("N"))),
        ("its sizes are a list", "counts_to_a_name", op.Relu(w), w, fn.is_arange(w, "N")),
        ("its sizes are a list", "counts_to_a_half", op.Relu(w), w, fn.is_arange(w, (1.5,))),
        ("its first argument is the name of an axis", "no_axis", w @ x, op.Gather(w, fn.nonzero_indices(w, w)) @ x, ()),
        ("is of no constants", "of_a_tensor_too", w @ x, op.Gather(w, fn.nonzero_indices("K", x), axis=0) @ x, ()),
        (
            "0 is no number of which",
            "of_no_multiple",
            w @ x,
            op.Gather(w, fn.nonzero_indices("K", 0, w), axis=0) @ x,
            (),
        ),
        ("only be the indices of a Gather", "axes_by_places", w @ x, op.Transpose(w, perm=LIVE) @ x, ()),
        ("only be the indices of a Gather", "place_by_number", w @ x, op.Gather(w, fn.item(LIVE, 0)) @ x, ()),
        ("only be the indices of a Gather", "as_one", op.Relu(w), w * fn.length(fn.concat(LIVE)), ()),
        ("only be the indices of a Gather", "compared", w @ x, op.Gather(w, (0,)) @ x, fn.eq(LIVE, (0,))),
        ("only be the indices of a Gather", "computed_with", op.Relu(w), w / LIVE, ()),
        ("only be the indices of a Gather", "gathered_from", op.Relu(w), op.Gather(LIVE, (0,)), ()),
        ("is of no constants", "of_nothing", w @ x, op.Gather(w, fn.nonzero_indices("K"), axis=0) @ x, ()),
        ("'w' does not have one axis M", "of_no_axis", w @ x, op.Gather(w, fn.nonzero_indices("M", w), axis=0) @ x, ()),
        (
            "its first argument is the name of an axis",
            "equal_along_two",
            w @ x,
            op.Gather(w, fn.unique_indices("K N", w)) @ x,
            (),
        ),
        ("is of no constants", "equal_tensors", w @ x, op.Gather(w, fn.unique_indices("K", x)) @ x, ()),
        (
            "only be the indices of a Gather",
            "alike_as_axes",
            w @ x,
            op.Transpose(w, perm=fn.inverse_indices("K", w)) @ x,
            (),
        ),
        (
            "only be the indices of a Gather",
            "alike_computed",
            op.Relu(w),
            w * op.Cast(fn.inverse_indices("K", w), to=1),
            (),
        ),
        ("is the names of two axes", "blocks_of_one_axis", op.Relu(w), w, fn.lt(1, fn.block_count("K", w))),
        ("is the names of two axes", "blocks_of_an_axis_twice", op.Relu(w), w, fn.lt(1, fn.block_count("K K", w))),
        ("is the names of two axes", "blocks_of_a_hole", op.Relu(w), w, fn.lt(1, fn.block_count(w, w))),
        ("is of more than one constant", "blocks_of_two", op.Relu(w), w, fn.lt(1, fn.block_count("K N", w, w))),
        ("is of no constants", "blocks_of_a_tensor", op.Relu(x), x, fn.lt(1, fn.block_count("M K", x))),
        ("'w' does not have one axis M", "blocks_of_no_axis", op.Relu(w), w, fn.lt(1, fn.block_count("M K", w))),
        ("0 is no number of which", "blocks_of_no_multiple", op.Relu(w), w, fn.lt(1, fn.block_count("K N", 0, w))),
        ("is the name of an axis", "counts_along_two_axes", op.Relu(w), w, fn.eq(fn.first_index("K N", w), 0)),
        ("is of more than one constant", "counts_in_two", op.Relu(w), w, fn.eq(fn.first_index("K", w, w), 0)),
        ("is of no constants", "counts_by_a_multiple", op.Relu(w), w, fn.eq(fn.first_index("K", 2, w), 0)),
        ("the left side cannot compute", "as_many_groups_as_blocks", w * fn.block_count("K N", w), w, ()),
        ("is a number, neither true nor false", "are_there_blocks", op.Relu(w), w, fn.block_count("K N", w)),
        ("counts in two ways", "counts_twice", op.Relu(w), w, (fn.is_arange(w), fn.is_arange(w, fn.sizes("K N")))),
    ],
)
def test_nonsense_is_refused_where_it_is_written(
    complaint: str, name: str, lhs: object, rhs: object, when: object
) -> None:
    with pytest.raises(RuleError, match=complaint):
        Rule(name, lhs, rhs, when)  # type: ignore[arg-type]  # some of it is nonsense on purpose


def test_axes_are_checked_where_they_are_written() -> None:
    with pytest.raises(RuleError, match=r"'n' names no axis: .*did you mean 'N' or '\*n'\?$"):
        tensor("x", "n c")
    with pytest.raises(RuleError, match=r"'b\*' names no axis: .*did you mean '\*b'\?$"):
        tensor("x", "b* C")
    with pytest.raises(RuleError, match="more than one pack"):
        tensor("x", "*a *b")


def test_comparisons_are_conditions() -> None:
    size, k = fn.size("K"), integer("k")
    assert [size < 4, size <= 4, size > 4, size >= 4] == [
        fn.lt(size, 4),
        fn.le(size, 4),
        fn.lt(4, size),
        fn.le(4, size),
    ]
    assert [4 < size, 4 <= size, 4 > size, 4 >= size] == [size > 4, size >= 4, size < 4, size <= 4]  # noqa: SIM300
    assert [size // 2, k % 2] == [fn.floordiv(size, 2), fn.mod(k, 2)]
    assert [x > w, x >= w, x < w, x <= w, x**2] == [
        op.Greater(x, w), op.GreaterOrEqual(x, w), op.Less(x, w), op.LessOrEqual(x, w), op.Pow(x, 2)
    ]  # fmt: skip
    listed: Any = [size > 4]
    assert str(Rule("small", op.Relu(x), op.Abs(x), when=listed)).endswith("where 4 < size('K')")


@pytest.mark.parametrize(
    ("when", "complaint"),
    [
        (lambda: lambda model: True, "a condition is a Python function: a rule holds no code"),
        (lambda: SIZE == 4, "a condition is False: `==` and `!=` .* is written fn.eq"),
        (lambda: (SIZE != 4,), "a condition is True: "),
        (lambda: fn.size("K") > 4 and fn.size("M") > 4, "'4 < size.'K'.' is neither true nor false .* write fn.all_of"),
        (lambda: 1 < fn.size("K") < 4, "write fn.all_of"),
        (lambda: not fn.is_float(fn.dtype(x)), "write .*fn.not_"),
        (lambda: fn.size("K"), "the condition 'size.'K'.' is a number, neither true nor false; there are comparisons"),
        (lambda: op.Equal(w, 0), "the condition 'Equal.w, 0.' is a tensor"),
        (lambda: "K > 4", "a condition is 'K > 4', which is no term"),
        (lambda: fn.eq(fn.size(x), 1), 'size is the size of an axis, as in fn.size."N".$'),
        (lambda: fn.eq(fn.rank("x"), 1), "rank is how many axes a tensor has, as in fn.rank.x.$"),
        (lambda: fn.eq(1), "called as fn.eq.a, b.$"),
        (lambda: x // 2 > 1, "fn.floordiv is of numbers, not of the tensors 'x' and '2'"),
    ],
)
def test_a_condition_that_is_none_is_refused_with_what_to_write(when: Callable[[], Any], complaint: str) -> None:
    with pytest.raises(RuleError, match=complaint):
        Rule("a_rule", op.MatMul(x, w), op.MatMul(x, w + 0.0), when())


@pytest.mark.parametrize(
    ("made", "complaint"),
    [
        (lambda: op.Transpose(x, perm=const("c")), 'perm of Transpose is an attribute: write integers."perm".'),
        (
            lambda: op.Softmax(x, axis=tensor("y")),
            r'axis of Softmax is an attribute: write integer\("axis"\), not',
        ),
        (lambda: op.Softmax(x, axis=(1,)), r'write integer\("axis"\), not \[1\]'),
        (lambda: op.Elu(x, alpha=string("a")), r'write real\("alpha"\), not string\("a"\)'),
        (lambda: op.Transpose(x, perm=op.Shape(x)), r'write integers\("perm"\), not Shape\(x\)'),
        (lambda: op.Squeeze(x, axes=(0,)), r"'axes' since opset 13: it is an input, op.Squeeze\(data, axes\)"),
        (lambda: op.Clip(x, max=6.0), r"'max' since opset 11: it is an input, op.Clip\(input, min, max\)"),
        (lambda: op.BatchNormalization(x, w, w, w, w, spatial=1), "no attribute 'spatial' since opset 9; it has eps"),
        (lambda: op.Reshape(x, shape=(1,)), r"no attribute 'shape' since opset 5: it is an input, op.Reshape\("),
        (lambda: op.relu(x), "unknown operator 'relu'; did you mean 'Relu'?"),
        (lambda: x * ARRAY, "cannot be part of a rule: .* said by holes"),
        (lambda: x * NOTHING, "None cannot be part of a rule"),
    ],
)
def test_an_operator_that_is_none_is_refused_with_what_to_write(made: Callable[[], Any], complaint: str) -> None:
    with pytest.raises(RuleError, match=complaint):
        Rule("a_rule", made(), x)


def test_numbers_and_lists_may_be_numpys() -> None:
    half = ARRAY[0] / 2
    order: Any = [*ARRAY.astype(np.int64)]
    assert x * half == x * 0.5
    assert op.Transpose(x, perm=order) == op.Transpose(x, perm=(1, 1, 1))


def test_a_file_that_holds_no_rule_is_an_error() -> None:
    with pytest.raises(RuleError, match="not in graphopt's JSON form"):
        Rule.from_json({"name": "x", "holes": {}, "lhs": [{"op": 3}]})


def test_contributed_operators_and_numbers_are_terms() -> None:
    alpha, n = real("alpha"), integer("n")
    assert str(op.LeakyRelu(x, alpha=alpha)) == "LeakyRelu(x, alpha=alpha)"
    assert str(microsoft.QuickGelu(x)) == "com.microsoft.QuickGelu(x)"
    assert str(x / fn.sqrt(2)) == "x / sqrt(2)"
    assert str(n * 2 + 1) == "n * 2 + 1"
    assert str(1 - x) == "1 - x"
