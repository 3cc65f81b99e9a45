"""No wrong rule is proved: each is refuted by a counterexample that ONNX Runtime confirms, or can never apply."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from graphopt.base.errors import RuleError
from graphopt.language.proof import ProofModel, Verdict
from graphopt.language.rule import Rule, binary, const, fn, integer, integers, op, pointwise, real, tensor
from graphopt.language.scalar_functions import BINDING_QUERIES, PROPERTIES, SCALAR_FUNCTIONS
from graphopt.language.terms import App, Term, walk_term
from graphopt.operators.semantics import OPERATORS
from graphopt.runtime.oracle import RunnableModel, onnxruntime_unoptimized
from graphopt.verifier import counterexample
from graphopt.verifier.prove import prove
from tests.tiers import sampled
from tests.verifier.broken import REFUTED, UNPROVED, VACUOUS, hidden
from tests.versions import has_operator

ALL = (*REFUTED, *UNPROVED, *VACUOUS)


@pytest.mark.slow
@pytest.mark.parametrize("rule", REFUTED, ids=lambda rule: rule.name)
def test_a_wrong_rule_is_refuted(rule: Rule) -> None:
    proof = prove(rule, timeout=3)
    assert proof.verdict is Verdict.REFUTED, proof
    assert proof.counterexample.endswith("as run by ONNX Runtime"), proof.counterexample


@pytest.mark.parametrize("rule", sampled(UNPROVED, 8, lambda rule: rule.name))
def test_a_rule_that_is_wrong_at_the_edges_is_not_proved(rule: Rule) -> None:
    assert prove(rule, timeout=3, refute=False).verdict in (Verdict.UNKNOWN, Verdict.VACUOUS)


@pytest.mark.slow
@pytest.mark.parametrize("rule", VACUOUS, ids=lambda rule: rule.name)
def test_a_rule_that_can_never_apply_is_vacuous(rule: Rule) -> None:
    assert prove(rule).verdict is Verdict.VACUOUS


@pytest.mark.parametrize("rule", hidden.REAL_ONLY, ids=lambda rule: rule.name)
def test_what_holds_for_floats_alone_is_not_proved_exactly(rule: Rule) -> None:
    """Exactly would license other types; a constant's root or logarithm may be infinite."""
    proof = prove(rule, timeout=3, refute=False)
    assert proof.model is (ProofModel.EXTENDED if "dtype" in str(rule) else ProofModel.REAL), proof


def test_a_hole_is_named_like_a_variable() -> None:
    """`rest.axis` would be an attribute of the bundle `rest`."""
    with pytest.raises(RuleError, match=r"hole 'rest\.axis' is to be named like a variable"):
        Rule("dotted", op.Softmax(any_, axis=integer("rest.axis")), any_)


def test_a_rule_whose_sides_are_the_same_is_none() -> None:
    with pytest.raises(RuleError, match="left and right are the same"):
        Rule("nothing", x @ a, x @ a)


# No instance with numbers differs: what is wrong is a flag that runtimes read differently, and a condition on sizes
# which the matcher, that knows them by name, decides otherwise than with numbers.
k = integer("k")
BEYOND_NUMBERS = (
    Rule(
        "flag_of_minus_one",
        op.Gemm(op.Transpose(tensor("x", "M K"), perm=(1, 0)), const("w", "K N"), transA=integer("t")),
        op.Gemm(tensor("x", "M K"), const("w", "K N"), transA=integer("t") - 1),
    ),
    Rule(
        "tile_of_what_does_not_fit",
        op.Tile(tensor("x"), integers("r")) + tensor("y"),
        tensor("x") + tensor("y"),
        when=fn.eq(
            fn.broadcast(fn.shape(tensor("x")), fn.shape(tensor("y"))),
            fn.broadcast(fn.shape(tensor("x")) * integers("r"), fn.shape(tensor("y"))),
        ),
    ),
    # no example of a Gemm is drawn whose C is a number or a list
    *(
        Rule(name, op.Gemm(tensor("m", "M K"), const("w", "K N"), c), op.Gemm(tensor("m", "M K"), const("w", "K N"), d))
        for name, c, d in (
            ("gemm_plus_a_number", 1.0, 2.0),
            ("gemm_plus_a_list", (1,), (2,)),
            ("gemm_plus_some_number", real("c"), real("c") + 1.0),
        )
    ),
    # equal, were the quotient known to be whole
    Rule("triangle_from_a_quotient", op.Trilu(tensor("m", "M K"), k), op.Trilu(tensor("m", "M K"), fn.truediv(k, 1))),
)


@pytest.mark.parametrize("rule", BEYOND_NUMBERS, ids=lambda rule: rule.name)
def test_what_no_numbers_refute_is_not_proved_either(rule: Rule) -> None:
    assert prove(rule, refute=False).verdict is Verdict.UNKNOWN


@pytest.mark.slow
@pytest.mark.parametrize("says", [{"dtype": 11}, {"dtype": integer("d")}], ids=["other", "any"])
def test_an_identity_matrix_of_another_type_is_not_proved(says: dict[str, Any]) -> None:
    """Nor refuted: ONNX Runtime lacks EyeLike."""
    proof = prove(Rule("eye_of_another_type", op.EyeLike(any_, **says), op.EyeLike(any_, dtype=1)), timeout=3)
    assert proof.verdict is Verdict.UNKNOWN, proof


def test_what_only_another_runtime_finds_different_is_not_refuted() -> None:
    """In double, in which `onnx.reference` rounds one of the two to single."""
    image, s_, b_ = tensor("i", "N C H W"), const("s", "C"), const("b", "C")
    grouped = op.GroupNormalization(image, s_, b_, num_groups=fn.size("C"))
    not_empty = tuple(fn.le(1, fn.size(axis)) for axis in "NCHW")
    left = op.InstanceNormalization(image, s_, b_)
    proof = prove(Rule("instance_norm_is_group_norm", left, grouped, when=not_empty), timeout=3)
    assert proof.verdict is Verdict.PROVED, proof


def test_a_type_that_is_not_known_on_the_right_is_not_proved() -> None:
    some = op.EyeLike(any_, dtype=integer("d"))
    proof = prove(Rule("eye_of_eye", op.EyeLike(some, dtype=integer("d")), some), refute=False)
    assert proof.verdict is Verdict.UNKNOWN and "is not known" in proof.detail, proof


def test_there_are_enough_of_them() -> None:
    names = [rule.name for rule in ALL]
    assert len(names) == len(set(names)) >= 400


def test_every_operator_and_every_scalar_function_is_in_a_wrong_rule() -> None:
    said = {part.op for rule in ALL for part in everything(rule) if isinstance(part, App)}
    assert not {*filter(has_operator, OPERATORS), *SCALAR_FUNCTIONS, *PROPERTIES, *BINDING_QUERIES} - said


def everything(rule: Rule) -> Iterator[Term]:
    return (part for side in (*rule.left, *rule.right, *rule.conditions) for part in walk_term(side))


# -- what a counterexample looks like ----------------------------------------------------------------------------------

x, a, b = tensor("x", "M K"), const("w", "K N"), const("s", "N")
any_, p, q = tensor("y"), integers("p"), integers("q")
f, h, g = pointwise("f"), pointwise("h"), binary("g")
broken = {rule.name: rule for rule in REFUTED}


def test_a_counterexample_says_what_differs_at_a_glance() -> None:
    forgotten = Rule("forgotten_bias", x @ a + b, x @ a)
    assert str(counterexample.find_counterexample(forgotten)).splitlines() == [
        "values differ: 1 became 0 at [0, 0]",
        "x: float32[1, 1] = [[0]]",
        "w: float32[1, 1] = [[0]]",
        "s: float32[1] = [1]",
        "left  gives float32[1, 1] = [[1]]",
        "right gives float32[1, 1] = [[0]]",
        "as run by ONNX Runtime",
    ]


def test_where_shapes_differ_only_shapes_are_shown() -> None:
    assert str(counterexample.find_counterexample(broken["flatten_any_axis"])).splitlines() == [
        "shapes differ: [1, 2] became [2, 1]",
        "x: float32[1, 2, 1]",
        "left  gives float32[1, 2]",
        "right gives float32[2, 1]",
        "as run by ONNX Runtime",
    ]


def test_a_right_side_that_does_not_run_is_refused() -> None:
    found = counterexample.find_counterexample(broken["scale_on_wrong_axis"])
    assert found is not None and found.difference.kind == "refused" and not found.right
    assert "the right side is refused: " in str(found) and "Incompatible dimensions" in str(found)


def test_it_is_the_same_each_time() -> None:
    rule = broken["conv_scale_without_bias"]
    assert str(counterexample.find_counterexample(rule)) == str(counterexample.find_counterexample(rule))


@pytest.mark.slow
def test_a_right_rule_has_none() -> None:
    assert counterexample.find_counterexample(Rule("scale_into_weights", (x @ a) * b, x @ (a * b))) is None


def test_the_two_models_are_written_and_differ(tmp_path: Path) -> None:
    found = counterexample.find_counterexample(broken["merge_convs_swapped"])
    assert found is not None
    *models, inputs = found.save(tmp_path)
    feeds = dict(np.load(inputs))
    outputs = []
    for path in models:
        onnx.checker.check_model(path)
        with onnxruntime_unoptimized(RunnableModel(onnx.load(path))) as session:
            outputs.append(session.run(feeds)[0])
    np.testing.assert_array_equal(outputs, [found.left[0], found.right[0]])
    assert not np.array_equal(*outputs)


# -- and right rules are proved ----------------------------------------------------------------------------------------

RIGHT = (
    (ProofModel.EXTENDED, Rule("scale_into_weights", (x @ a) * b, x @ (a * b))),
    (ProofModel.REAL, Rule("distribute", x * tensor("z", "M K") + x, x * (tensor("z", "M K") + 1.0))),
    (
        ProofModel.EXACT,
        Rule(
            "transposes",
            op.Transpose(op.Transpose(tensor("y", "A B C"), perm=p), perm=q),
            op.Transpose(tensor("y", "A B C"), perm=fn.compose(p, q)),
        ),
    ),
    (ProofModel.EXACT, Rule("commute", any_ + tensor("z"), tensor("z") + any_)),
    (ProofModel.EXACT, Rule("any_has_the_shape", op.Shape(f(any_)), op.Shape(any_))),
    (
        ProofModel.EXACT,
        Rule(
            "any_of_what_is_chosen",
            op.Where(tensor("c"), f(any_), f(tensor("z"))),
            f(op.Where(tensor("c"), any_, tensor("z"))),
            when=fn.is_float(fn.dtype(any_)),
        ),
    ),
    (ProofModel.EXACT, Rule("any_twice_joined", op.Concat(f(h(x)), f(h(x)), axis=0), f(h(op.Concat(x, x, axis=0))))),
    (ProofModel.EXACT, Rule("any_pair_of_vectors", op.Transpose(g(x, x), perm=p), g(*(op.Transpose(x, perm=p),) * 2))),
)


@pytest.mark.parametrize(("model", "rule"), RIGHT, ids=lambda value: getattr(value, "name", str(value)))
def test_a_right_rule_is_proved_in_the_stronger_model_that_holds(model: ProofModel, rule: Rule) -> None:
    proof = prove(rule, timeout=20, refute=False)
    assert (proof.verdict, proof.model) == (Verdict.PROVED, model), proof


def test_a_rule_that_is_wrong_for_empty_tensors_alone_is_refuted() -> None:
    x = tensor("x", "N")
    rule = Rule("size_is_positive", op.Sign(op.Size(x)), op.Gather(op.Shape(op.Unsqueeze(x, (0,))), 0))
    proof = prove(rule)
    assert proof.verdict is Verdict.REFUTED
    assert "[0]" in proof.counterexample


@pytest.mark.slow
def test_holes_are_named_as_they_like() -> None:
    """Also as what is between the operators would be called, and the numbers and results of the two models."""
    inside, result, number = tensor("v0", "N"), tensor("out0", "N"), const("c0", "N")
    assert (
        counterexample.find_counterexample(Rule("named_alike", op.Neg(-inside) + number + 2.0, inside + number + 2.0))
        is None
    )
    assert (
        counterexample.find_counterexample(Rule("named_alike", op.Relu(-result) * number, number * op.Relu(-result)))
        is None
    )
    wrong = counterexample.find_counterexample(
        Rule("named_alike", op.Relu(inside + number + 1.0), op.Relu(inside + number + 3.0))
    )
    assert wrong is not None and wrong.difference.kind == "values"


def test_lists_are_no_numbers_with_too_few_digits() -> None:
    twice, thrice = (op.Gather(tensor("r", "N"), list_) for list_ in ((0, 0), fn.repeat(0, 3)))
    assert prove(Rule("repeated_once_more", twice, thrice)).verdict is Verdict.REFUTED
