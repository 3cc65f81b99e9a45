"""Rules among each other: the library makes of a left side nothing heavier than its own rule alone does."""

import pytest
from onnx import ModelProto

from graphopt.io import onnx_io
from graphopt.language.rule import Rule
from graphopt.operators import inference
from graphopt.operators.node_facts import node_weight
from graphopt.operators.rule_families import sample_specializations
from graphopt.rewrite.passes import PASSES
from graphopt.rewrite.simplify import Simplifier
from graphopt.rules import RULES
from graphopt.verifier.instance_models import build_models
from graphopt.verifier.instance_sampling import sample_instances
from graphopt.verifier.sampling_scope import SamplingScope
from tests.tiers import sampled

SIZES = SamplingScope(sizes=(2, 3, 3, 4, 5, 6))
"""Without axes of one element, which make views of what is none and sums of one term."""

DEGENERATE = ("eliminate_nop_", "replace_transpose_that_moves_one_")
"""Rules that apply where a number is 0 or 1 or an axis has one element: what is left is not the pattern of the rule."""

TRIED = 4
"""Instances that are drawn for one that is not degenerate."""

UNDONE = {
    "eliminate_split_of_concat_3": "of two nodes it would make three, which copy what keeps the names of three outputs",
    "fuse_consecutive_min": "a bound that is a number becomes a Clip first, which takes no vector",
    "fuse_factors_of_matmul_transposed": "the transposition goes into a Gemm first, which reads it as it lies",
}
"""Rules that another one still keeps from applying, and why."""

LIBRARY = Simplifier(RULES, PASSES)


def with_open_sizes(rule: Rule, left: ModelProto) -> ModelProto:
    """The model with the sizes of its inputs named as the rule names its axes."""
    for value in left.graph.input:
        hole, dims = rule.holes.get(value.name), value.type.tensor_type.shape.dim
        axes = () if hole is None else hole.axes or ()
        if len(axes) == len(dims):
            for dim, axis in zip(dims, axes, strict=True):
                if axis.isidentifier() and axis != "_":
                    dim.dim_param = axis
    return left


def simplified(left: ModelProto, simplifier: Simplifier) -> tuple[int, list[str]]:
    """The weight of a model when it is simplified, but for copies that name its outputs, and by what it was."""
    loaded = onnx_io.load_model(left)
    inference.infer_graph(loaded.graph)
    done = simplifier.run(loaded.graph)
    weights = (node_weight(node) for _, node in loaded.graph.vertices_and_nodes() if node.op != "Identity")
    return sum(weights), [step.name for step in done.steps]


SPECIALIZED = [each for rule in RULES for each in sample_specializations(rule)]


@pytest.mark.parametrize("rule", sampled(SPECIALIZED, 8, lambda rule: rule.unique_label))
def test_a_rule_is_undone_by_no_other(rule: Rule, request: pytest.FixtureRequest) -> None:
    if reason := UNDONE.get(rule.name):
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
    alone = Simplifier([rule.generalized], PASSES)
    for instance in sample_instances(rule, count=TRIED, scope=SIZES):
        left, _ = build_models(rule, instance)
        together, steps = simplified(left, LIBRARY)
        if not any(name.startswith(DEGENERATE) and name != rule.name for name in steps):
            assert together <= simplified(left, alone)[0], steps
            named = with_open_sizes(rule, left)
            assert simplified(named, LIBRARY)[0] <= simplified(named, alone)[0]
            return
    pytest.skip(f"all of {TRIED} instances are degenerate")
