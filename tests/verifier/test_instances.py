"""Which instances of a rule are tried: all that its conditions admit, and no others."""

import pytest

from graphopt.base.dtype import DType
from graphopt.expr.integers import TRUE
from graphopt.language.proof import ProofModel, Verdict
from graphopt.language.rule import Rule, const, fn, integers, op, real, tensor
from graphopt.language.terms import Term
from graphopt.language.type_inference import NoInstance
from graphopt.operators.op_context import UnsupportedOperatorError
from graphopt.verifier.element_types import enumerate_typings
from graphopt.verifier.instance_models import build_models
from graphopt.verifier.instance_sampling import sample_instances
from graphopt.verifier.prove import enumerate_instances, prove
from graphopt.verifier.solver import SolverSession

x, p, q, axes = tensor("x", "A B C"), integers("p"), integers("q"), integers("axes")


def test_one_permutation_in_six_undoes_another() -> None:
    undone = fn.is_identity(fn.compose(p, q))
    proof = prove(Rule("undone", op.Transpose(op.Transpose(x, perm=p), perm=q), op.Identity(x), when=undone))
    assert (proof.verdict, proof.cases) == (Verdict.PROVED, 6)


def test_a_new_axis_moves_from_each_place_to_each_other() -> None:
    places = fn.compose(fn.inverse(p), fn.normalize_indices(axes, 4))
    moved = fn.is_sorted(fn.delete(p, places))
    rule = Rule(
        "moved",
        op.Transpose(op.Unsqueeze(x, axes), perm=p),
        op.Unsqueeze(x, places),
        when=(fn.eq(fn.length(axes), 1), moved),
    )
    proof = prove(rule)
    assert (proof.verdict, proof.cases) == (Verdict.PROVED, 2 * 4 * 4), "counted from the start and from the end"


def test_a_property_is_true_only_where_the_conditions_say_it() -> None:
    zero, other = const("zero"), const("other")
    rule = Rule("units", tensor("y") - zero - other, tensor("y") - other, when=fn.all_of(fn.is_zero(zero)))
    instance = next(enumerate_instances(rule, ProofModel.EXACT, enumerate_typings(rule), SolverSession()))
    assert instance.scalar(fn.is_zero(zero)) == TRUE
    for unsaid in (fn.is_zero(other), fn.is_one(zero)):
        with pytest.raises(UnsupportedOperatorError):
            instance.scalar(unsaid)


@pytest.mark.parametrize(("dtype", "least"), [(DType.INT64, -2), (DType.UINT8, 0)], ids=str)
def test_constants_that_count_begin_below_zero_where_their_type_has_such_numbers(dtype: DType, least: int) -> None:
    numbers = const("i", "K")
    rule = Rule("shifted", tensor("y", "K") - numbers, tensor("y", "K"), when=fn.lt(fn.first_index("K", numbers), 3))
    drawn = sample_instances(rule, count=60, known={"i": dtype})
    assert {int(instance.values["i"][0]) for instance in drawn} == set(range(least, 3))


def test_no_model_slices_an_axis_of_negative_size() -> None:
    """The shape inference of onnx would end the process."""
    y = tensor("y", "K")
    right = op.Slice(op.Pad(y, fn.concat(0, fn.sizes("L") * -1)), (0,), (1,), (0,))
    rule = Rule("cut_off", op.Slice(y, (0,), (1,), (0,)) + op.ReduceSum(tensor("z", "L"), keepdims=1), right)
    instances = {len(each.values["z"]) - len(each.values["y"]): each for each in sample_instances(rule, count=60)}
    build_models(rule, instances[0])
    with pytest.raises(NoInstance, match="negative"):
        build_models(rule, instances[1])


al = real("al")
REAL_NUMBERS: tuple[tuple[Term, ProofModel], ...] = (
    (fn.minimum(al, al), ProofModel.EXACT),
    (al + 1e3 - 1e3, ProofModel.EXTENDED),
    (fn.truediv(al * 3.0, 3.0), ProofModel.EXTENDED),
    (fn.neg(fn.neg(al)), ProofModel.EXTENDED),
)


@pytest.mark.parametrize(("number", "model"), REAL_NUMBERS, ids=str)
def test_real_numbers_that_are_computed_are_not_known_bit_for_bit(number: Term, model: ProofModel) -> None:
    """They round when a rule is applied; where one is chosen it stays the same."""
    y = tensor("y")
    single = fn.eq(fn.dtype(y), int(DType.FLOAT))  # in which the attribute is kept
    proof = prove(Rule("computed", op.Elu(y, alpha=al), op.Elu(y, alpha=number), when=single))
    assert (proof.verdict, proof.model) == (Verdict.PROVED, model)
