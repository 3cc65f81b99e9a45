"""Every rule of the library, run: both sides agree on random instances, and applying the rule gives the right side.

A rule needs no test of its own. What holds for all sizes is the verifier's to prove; this catches what a proof cannot
see: a matcher that does not find the pattern, a runtime that means something else, rounding.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from graphopt.io import onnx_io
from graphopt.ir import schemas
from graphopt.language.rule import Rule
from graphopt.language.terms import App, Term, Var, is_scalar, operator_applications
from graphopt.operators import inference
from graphopt.operators.rule_families import sample_specializations
from graphopt.rewrite.build import build_patch
from graphopt.rewrite.matching import find_matches
from graphopt.rewrite.simplify import is_improvement
from graphopt.rules import RULES, TRADES, scattering
from graphopt.rules.blocked_layout import FILLED_GROUPS
from graphopt.runtime.oracle import (
    OracleSession,
    RunFailedError,
    RunnableModel,
    onnx_reference,
    onnxruntime_unoptimized,
)
from graphopt.verifier.concrete_instance import ConcreteInstance
from graphopt.verifier.instance_models import build_models
from graphopt.verifier.instance_sampling import complete_instance, sample_instances
from tests.versions import is_older

FEW, INSTANCES = 1, 10
"""Instances of each rule: in the quick tier, and of all tests."""
APPLIED = 3  # of them, the rule is applied to
TOLERANCE = {"f2": 2e-2, "f4": 3e-4, "f8": 1e-9}
"""By float type, relative to the largest output: operands are below 10 and sums short, and weights are folded once."""

Arrays = list[NDArray[Any]]
WINDOWED = {"B": 1, "H": 5, "W": 6, "K": 3, "N": 2, "Q": 4, "R": 3}  # of an image of 6 by 8, four windows of 3 by 4
FILLED_UP = {"pads": (0, 0, 0, 0, 0, 1, 2, 0), "cut": (1, 2, 3, 2, 4, 3)}
CUT_OFF = {"pads": (0, 0, 0, 0, 0, -1, -2, 0), "grid": (1, 2, 2, 3, 4, 2), "merged": (1, 6, 8, 2)}
MIXED_KERNELS = {"N": 1, "H": 7, "W": 8} | {f"{axis}{i}": i + 1 for axis in "CKL" for i in range(5)}
GIVEN: Mapping[str, tuple[Mapping[str, int], Mapping[str, Any]]] = (
    {
        f"merge_depthwise_convs_of_split_{count}": (
            MIXED_KERNELS | {"C": sum(range(1, count + 1))},
            {"sizes": tuple(range(1, count + 1)), "pads0": (2, 2, 2, 2)},
        )
        for count in (3, 4, 5)
    }
    | {
        f"rotate_all_tokens_before_heads{kind}": ({"L": 5, "N": 3, "H": 2, "D": 4}, {"tokens": (2, 3)} | halves)
        for kind, halves in (("", {"halves": (2, 2)}), ("_of_even_halves", {}))
    }
    | {
        rule.name: ({"C": 24, "J": 8}, {})
        for rule in FILLED_GROUPS
        if rule.name.startswith("fill_groups_of_conv_behind")
    }
    | {
        name: given
        for windows, shift in (("windows", {}), ("shifted_windows", {"down_parts": (2, 4), "across_parts": (3, 5)}))
        for tokens, joined, pixels in (("tokens", (4, 12, 3), 12), ("images", (4, 3, 4, 3), 4))
        for name, given in (
            (
                f"push_matmul_above_padding_of_{tokens}_in_{windows}",
                (WINDOWED, FILLED_UP | {"joined": joined} | shift),
            ),
            (f"push_matmul_below_cropping_of_{tokens}_in_{windows}", (WINDOWED | {"S": pixels}, CUT_OFF | shift)),
        )
    }
    | {
        rule.name: ({"A": 2, "B": 2, "K": 2, "L": 1, "N": 2 if rule.name.startswith("eliminate") else 5}, {})
        for rule in scattering.RULES
    }
    | {"push_unsqueeze_above_gather": ({"V": 3, "D": 4}, {})}
)
"""Sizes and numbers of rules for which hardly a draw meets all that has to fit."""
ALL = (*RULES, *TRADES)
SOME = [each for rule in ALL for each in sample_specializations(rule)]
by_name = pytest.mark.parametrize("rule", SOME, ids=lambda rule: rule.unique_label)


def run(
    open_session: Callable[[RunnableModel], AbstractContextManager[OracleSession]], model: ModelProto, feeds: Any
) -> Arrays:
    with np.errstate(all="ignore"), open_session(RunnableModel(model)) as session:
        return session.run(feeds)


def outcomes(feeds: Any, *sides: ModelProto) -> list[Arrays] | None:
    """The outputs of each model, all by one judge; None where both judges find the first model undefined."""
    try:
        return [run(onnxruntime_unoptimized, side, feeds) for side in sides]
    except RunFailedError:  # it has no kernel for an operator of this type, perhaps
        pass
    if any(node.domain for side in sides for node in side.graph.node):  # of which there is no other judge
        return None
    try:
        first = run(onnx_reference, sides[0], feeds)
    except RunFailedError:
        return None
    return [first, *(run(onnx_reference, side, feeds) for side in sides[1:])]


def assert_agree(left: Arrays, right: Arrays) -> None:
    for one, other in zip(left, right, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        tolerance = TOLERANCE.get(one.dtype.str[1:], 0.0)
        largest = np.abs(one[np.isfinite(one)]).max(initial=1.0) if tolerance else 0.0
        np.testing.assert_allclose(other, one, rtol=0, atol=tolerance * float(largest))


def instances_of(rule: Rule) -> Iterator[ConcreteInstance]:
    if rule.name not in GIVEN:
        return sample_instances(rule, count=INSTANCES)
    drawn = (complete_instance(rule, *GIVEN[rule.name], seed=seed) for seed in range(INSTANCES))
    return (instance for instance in drawn if instance is not None)


@by_name
def test_both_sides_agree_and_it_is_applied(rule: Rule) -> None:
    skip_what_onnx_pads(rule)
    run_instances(rule, FEW)


@pytest.mark.slow
@by_name
def test_both_sides_agree_on_many_instances(rule: Rule) -> None:
    skip_what_onnx_pads(rule)
    run_instances(rule, INSTANCES)


def skip_what_onnx_pads(rule: Rule) -> None:
    if rule.name == "fuse_add_before_conv" and is_older("onnx", "1.23"):
        pytest.skip("onnx before 1.23: its reference pads a Conv that has auto_pad=VALID")


def run_instances(rule: Rule, count: int) -> None:
    """Run so many instances that can be run and compare the sides, and what the rule makes of the left one."""
    compared = applied = 0
    for instance in instances_of(rule):
        if compared >= count and applied:
            break
        left, right = build_models(rule, instance)
        rewritten = rewrite(rule, left) if applied < APPLIED else None
        results = outcomes(instance.feeds(rule), left, right, *((rewritten,) if rewritten else ()))
        if results is not None:
            for other in results[1:]:
                assert_agree(results[0], other)
            compared += 1
            applied += rewritten is not None
    assert compared >= (count + 1) // 2, f"only {compared} instances could be run"
    assert applied, "no instance was matched"


def rewrite(rule: Rule, left: ModelProto) -> ModelProto | None:
    """The left side after the rule was applied to it, by the same code that applies it to a model."""
    loaded = onnx_io.load_model(left)
    inference.infer_graph(loaded.graph)
    match = next(find_matches(rule, loaded.graph), None)
    if match is None:  # a constant is not written as the pattern has it, or stands in for two
        return None
    patch = build_patch(loaded.graph, match)
    assert is_improvement(rule, patch) or rule.generalized in TRADES, "it would never be applied: see Operator.weight"
    loaded.graph.apply(patch)
    loaded.graph.check_invariants()
    assert not emitted(rule) - Counter(loaded.graph.operator_counts())
    return onnx_io.to_proto(loaded)


@pytest.mark.parametrize(
    ("equation", "canonical"),
    [
        ("b h i d, b h j d -> b h i j", "abcd,abed->abce"),
        ("ij,jk", "ab,bc->ac"),
        ("ba", "ab->ba"),
        ("...ij,...jk->...ik", "...ab,...bc->...ac"),
        ("...a,a", "...a,a->..."),
        ("ii->i", "aa->a"),
    ],
)
def test_the_letters_of_an_equation_mean_nothing(equation: str, canonical: str) -> None:
    assert schemas.canonical_equation(equation) == canonical


def emitted(rule: Rule) -> Counter[str]:
    """The operators of the right side that are not computed when the rule is applied."""
    nodes = {app.node for side in rule.right for app in operator_applications(side) if depends_on_a_tensor(app)}
    return Counter(f"{node.domain}.{node.op}" if node.domain else node.op for node in nodes)


def depends_on_a_tensor(term: Term) -> bool:
    if isinstance(term, Var):
        return term.kind == "tensor"
    return isinstance(term, App) and not is_scalar(term) and any(map(depends_on_a_tensor, term.operands))


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.name)
def test_it_explains_itself_and_survives_json(rule: Rule) -> None:
    assert rule.why.endswith(".") and " -> " in str(rule)
    again = Rule.from_json(json.loads(json.dumps(rule.to_json(), allow_nan=False)))
    assert (again.to_json(), again.digest) == (rule.to_json(), rule.digest)


def duplicates(keys: Iterator[str]) -> list[str]:
    return [key for key, count in Counter(keys).items() if count > 1]


def test_names_and_meanings_are_distinct() -> None:
    assert not duplicates(rule.name for rule in ALL)
    said = {rule.name: {k: v for k, v in rule.to_json().items() if k not in ("name", "why")} for rule in ALL}
    assert not duplicates(json.dumps(meaning, sort_keys=True) for meaning in said.values())
