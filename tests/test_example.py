"""Instances of rules: drawn ones satisfy the rule, given ones are kept, and both sides have the same inputs."""

import numpy as np
import pytest
from onnx import checker, numpy_helper

from graphopt.base.dtype import DType
from graphopt.language.rule import Rule, attributes, const, fn, integers, op, real, tensor
from graphopt.verifier.concrete_instance import ConcreteInstance, satisfies
from graphopt.verifier.instance_models import build_models
from graphopt.verifier.instance_sampling import complete_instance, sample_instances
from graphopt.verifier.sampling_scope import SamplingScope

x, w, b, rest = tensor("x", "N C *s"), const("w", "M I *k"), const("b", "M", default=0), attributes("rest")
c = const("c", "M 1*k")
SCALE_CONV = Rule(
    "scale_conv",
    op.Conv(x, w, b, rest) * c,
    op.Conv(x, w * op.Reshape(c, fn.sizes("M 1 1*k")), b * op.Reshape(c, fn.sizes("M")), rest),
    when=fn.is_positive(c),
)
SCALE_COLUMNS = Rule(
    "scale_columns",
    (tensor("x", "*b M K") @ const("w", "K N")) * const("c", "N"),
    tensor("x", "*b M K") @ (const("w", "K N") * const("c", "N")),
)
TRANSPOSES = Rule(
    "merge_transposes",
    op.Transpose(op.Transpose(tensor("x"), perm=integers("p")), perm=integers("q")),
    op.Transpose(tensor("x"), perm=fn.compose(integers("p"), integers("q"))),
)


def test_instances_are_the_same_for_the_same_seed() -> None:
    assert [str(i) for i in sample_instances(SCALE_CONV, seed=3)] == [
        str(i) for i in sample_instances(SCALE_CONV, seed=3)
    ]
    assert [str(i) for i in sample_instances(SCALE_CONV, seed=3)] != [
        str(i) for i in sample_instances(SCALE_CONV, seed=4)
    ]


def test_instances_satisfy_the_conditions_and_vary() -> None:
    drawn = list(sample_instances(SCALE_CONV, count=40))
    assert len(drawn) == 40
    assert all(satisfies(SCALE_CONV, one) and (one.values["c"] > 0).all() for one in drawn)
    assert {one.values["x"].ndim for one in drawn} >= {3, 4, 5}
    assert {one.values["b"] is None for one in drawn} == {True, False}
    assert {one.values["rest"].get("group", 1) > 1 for one in drawn} == {True, False}
    assert {one.values["rest"].get("auto_pad", "NOTSET") for one in drawn} > {"NOTSET"}


def test_a_constant_beside_an_operand_is_written_in_any_shape_that_broadcasts() -> None:
    shapes = set()
    for one in sample_instances(SCALE_COLUMNS, count=40):
        left, right = build_models(SCALE_COLUMNS, one)
        written, declared = ({t.name: t.dims for t in side.graph.initializer}["c"] for side in (left, right))
        assert len(declared) == 1
        shapes.add((len(written), *written[-1:]))
    assert {(0,), (1, 1)} < shapes and any(rank > 1 for rank, *_ in shapes)


@pytest.mark.parametrize("rule", [SCALE_CONV, SCALE_COLUMNS, TRANSPOSES], ids=lambda rule: rule.name)
def test_both_models_are_legal_and_read_the_same(rule: Rule) -> None:
    for one in sample_instances(rule):
        left, right = build_models(rule, one)
        checker.check_model(left)
        checker.check_model(right)
        assert list(left.graph.input) == list(right.graph.input)
        assert [value.name for value in left.graph.input] == list(one.feeds(rule)) == ["x"]


def test_what_is_given_is_kept_and_the_rest_is_drawn() -> None:
    weights = np.ones((4, 1, 3, 3), np.float32)
    given = {"rest": {"group": 2, "strides": (2, 2)}, "w": weights, "b": None}
    one = complete_instance(SCALE_CONV, {"N": 1, "C": 2, "*s": (5, 7), "M": 4, "I": 1, "*k": (3, 3)}, given)
    assert one is not None
    assert one.values["w"] is weights and one.values["x"].shape == (1, 2, 5, 7)
    left, right = build_models(SCALE_CONV, one)
    assert [len(node.input) for node in left.graph.node if node.op_type == "Conv"] == [2]
    assert [len(node.input) for node in right.graph.node if node.op_type == "Conv"] == [3]  # what zeros stand for


def test_what_cannot_be_is_none() -> None:
    sizes: dict[str, int | tuple[int, ...]] = {
        "N": 1,
        "C": 3,
        "*s": (5,),
        "M": 4,
        "I": 2,
        "*k": (3,),
    }  # no number of groups makes 3 out of 2
    assert complete_instance(SCALE_CONV, sizes, {}, attempts=20) is None
    never = Rule("never", op.Clip(tensor("x"), real("a")), op.Relu(tensor("x")), when=fn.lt(real("a"), real("a")))
    assert list(sample_instances(never, attempts=50)) == []


def test_a_permutation_fits_the_rank_and_attributes_are_computed() -> None:
    for one in sample_instances(TRANSPOSES):
        p, q = one.values["p"], one.values["q"]
        _, right = build_models(TRANSPOSES, one)
        perm = next(tuple(a.ints) for node in right.graph.node for a in node.attribute)
        assert perm == tuple(p[i] for i in q) and sorted(p) == list(range(one.values["x"].ndim))


def test_an_instance_prints_its_sizes_and_what_it_fixes() -> None:
    values = {"x": np.zeros((2, 3), np.float32), "p": (1, 0), "q": (1, 0)}
    assert str(ConcreteInstance({}, values)) == "x=float32[2, 3], p=(1, 0), q=(1, 0)"


def test_numbers_take_the_element_type_of_their_operand() -> None:
    halves = Rule("halves", tensor("x") * 2.0, tensor("x") + tensor("x"))
    types = {one.values["x"].dtype for one in sample_instances(halves, count=30)}
    for one in sample_instances(halves, count=30):
        (two,) = (numpy_helper.to_array(t) for t in build_models(halves, one)[0].graph.initializer)
        assert two.dtype == one.values["x"].dtype
    assert len(types) > 1


def test_a_size_may_be_named_before_a_tensor_has_it() -> None:
    x = tensor("x", "M N")
    rule = Rule("ones", op.ConstantOfShape(fn.sizes("M N")) + x, op.Identity(x))
    assert len(list(sample_instances(rule))) == 10


def test_a_number_of_the_right_side_is_of_the_type_of_what_is_replaced() -> None:
    x = tensor("x", "M N")
    rule = Rule("unit_scale", op.Identity(x), op.RMSNormalization(x, op.Expand(1.0, fn.sizes("N"))))
    drawn = next(sample_instances(rule, scope=SamplingScope(dtypes=(DType.DOUBLE,))))
    _, right = build_models(rule, drawn)
    assert numpy_helper.to_array(right.graph.initializer[0]).dtype == np.float64


def test_a_constant_is_not_written_so_short_that_a_result_is_smaller() -> None:
    y, bound = tensor("y"), const("c", "*b N")
    rule = Rule("keep_bound", op.Max(op.Max(y, bound), bound), op.Max(bound, y))
    for drawn in sample_instances(rule, seed=3, count=40):
        arrays = drawn.values
        declared = np.broadcast_shapes(arrays["y"].shape, arrays["c"].shape)
        assert all(np.broadcast_shapes(arrays["y"].shape, shape) == declared for shape in drawn.stored_shapes.values())
