"""What is proved EXACT is so in ONNX Runtime: both sides of a rule give the same bits, for all that the proof licenses.

Zeros of both signs, infinities, NaN and the limits of integers are among what is fed, and axes of no and one element.
NaN is not where something is quantized: of that ONNX does not say what it becomes.
Left out is what `--exact` leaves out: kernels that are known to round in a way of their own (`Operator.departs`), and
half precision, for which ONNX Runtime has few kernels and puts casts around others (`kernels.py`).
"""

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from graphopt.base.dtype import COMPUTE_DTYPES, DType
from graphopt.language.proof import Proof, ProofLedger, ProofModel
from graphopt.language.rule import Rule
from graphopt.language.scalar_functions import UndecidedScalarError
from graphopt.language.terms import Var, operator_applications, walk_term
from graphopt.language.type_inference import NoInstance
from graphopt.operators.operator_classes import depends_on_dtype, is_elementwise, mentions_quantization
from graphopt.operators.rule_families import sample_specializations
from graphopt.rewrite.gate import deviating_dtypes, ledger_path
from graphopt.rules import RULES, TRADES
from graphopt.runtime.oracle import RunFailedError, RunnableModel, onnxruntime_unoptimized
from graphopt.runtime.saturation import BYTE_PRODUCTS
from graphopt.verifier.concrete_instance import ConcreteInstance
from graphopt.verifier.counterexample import is_fatal_if_empty
from graphopt.verifier.instance_models import build_models
from graphopt.verifier.instance_sampling import sample_instances
from graphopt.verifier.sampling_scope import ANY, EMPTY_AXES
from tests.saturating import is_saturating

Array = NDArray[Any]
SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan])
SAMPLE = 90
"""So many rules are run each time, others with each state of the library; with `--fuzz-seconds` all are."""


UNWRITTEN = frozenset({"QLinearMatMul"})
"""Operators whose kernel leaves the sum of nothing as it lay in memory (ONNX Runtime 1.32)."""


def exact_rules() -> list[tuple[Rule, Proof]]:
    proofs = ProofLedger.load(ledger_path())
    found = [(rule, proofs.get(rule.digest)) for rule in (*RULES, *TRADES)]
    exact = ((rule, proof) for rule, proof in found if proof is not None and proof.model is ProofModel.EXACT)
    return [(each, proof) for rule, proof in exact for each in sample_specializations(rule)]


def strewn(rule: Rule, drawn: ConcreteInstance, rng: np.random.Generator) -> ConcreteInstance:
    """The instance with special values in what is fed, but for indices and lists, which have to be in range."""
    values = dict(drawn.values)
    special = SPECIAL[~np.isnan(SPECIAL)] if mentions_quantization(rule) else SPECIAL
    for name in set(drawn.feeds(rule)) - _lists(rule):
        values[name] = _special(values[name], special, rng)
    return replace(drawn, values=values)


def _lists(rule: Rule) -> set[str]:
    """Holes that an operator reads as numbers that say where: those after the first of what is no plain function."""
    plain = {"Concat", "MatMul", "Gemm"}
    parts = (
        a for side in rule.left for a in operator_applications(side) if a.op not in plain and not is_elementwise(a)
    )
    return {
        hole.name for app in parts for arg in app.inputs[1:] if arg for hole in walk_term(arg) if isinstance(hole, Var)
    }


def _special(array: Array, special: Array, rng: np.random.Generator) -> Array:
    if array.dtype.kind == "f":
        chosen = rng.choice(special, array.shape)
    elif array.dtype.kind in "iu":
        limits = np.iinfo(array.dtype)
        chosen = rng.choice(np.array([0, 1, limits.max, limits.min], array.dtype), array.shape)
    else:
        return array
    return np.asarray(np.where(rng.random(array.shape) < 0.3, chosen, array).astype(array.dtype))


def bits(array: Array) -> Array:
    """The bits of each element; all NaN are one."""
    if array.dtype.kind != "f":
        return array
    return np.where(np.isnan(array), np.nan, array).astype(array.dtype).view(f"u{array.itemsize}")


def is_licensed(rule: Rule, proof: Proof, drawn: ConcreteInstance) -> bool:
    """Whether `--exact` would apply the rule to values of these types."""
    types = {DType.from_numpy(value.dtype) for value in drawn.values.values() if isinstance(value, np.ndarray)}
    if types & {DType.FLOAT16, DType.BFLOAT16} or (depends_on_dtype(rule) and not types <= set(COMPUTE_DTYPES)):
        return False
    return all(map(proof.licenses, types)) and deviating_dtypes(rule).isdisjoint(types)


def _is_unwritten(rule: Rule, drawn: ConcreteInstance) -> bool:
    sums = any(app.op in UNWRITTEN for side in rule.left for app in operator_applications(side))
    return sums and any(isinstance(value, np.ndarray) and not value.size for value in drawn.values.values())


def outputs(model: Any, feeds: Any) -> list[Array]:
    with onnxruntime_unoptimized(RunnableModel(model)) as session:
        return session.run(feeds)


def both_outputs(left: Any, right: Any, feeds: Any) -> tuple[list[Array], list[Array]] | None:
    """What the two sides give; None where the left one does not run, or the rule is not applied.

    It is not applied where the right side has an operator without a kernel (`kernels.py`).
    """
    try:
        before = outputs(left, feeds)
    except RunFailedError:
        return None
    try:
        return before, outputs(right, feeds)
    except RunFailedError as error:
        if error.kind == "NotImplemented":
            return None
        raise


def compared(rule: Rule, proof: Proof, count: int, seed: int) -> int:
    """How many instances were run on both sides; each gives the same bits."""
    done, rng = 0, np.random.default_rng(seed)
    for scope in (ANY, ANY if is_fatal_if_empty(rule) else EMPTY_AXES):
        for drawn in sample_instances(rule, seed=seed, count=count, attempts=300, scope=scope):
            if not is_licensed(rule, proof, drawn) or _is_unwritten(rule, drawn):
                continue
            given = strewn(rule, drawn, rng)
            try:
                left, right = build_models(rule, given)
            except (NoInstance, UndecidedScalarError):  # the right side says nothing here: it is not applied
                continue
            try:
                found = both_outputs(left, right, given.feeds(rule))
            except RunFailedError as error:
                raise AssertionError(f"{rule.name} is refused at {given}: it {error}") from error
            for one, other in zip(*found, strict=True) if found else ():
                np.testing.assert_array_equal(bits(one), bits(other), err_msg=f"{rule.name} at {given}")
            done += found is not None
    return done


EXACT = exact_rules()
TRIED = Random(len(EXACT)).sample(EXACT, SAMPLE)


def may_saturate(rule: Rule) -> bool:
    """Whether it is refused on this processor: it has sums of 8-bit products, and some of them are cut off here."""
    return is_saturating() and any(
        app.op in BYTE_PRODUCTS for side in rule.right for app in operator_applications(side)
    )


@pytest.mark.slow
def test_what_is_proved_exact_gives_the_same_bits(pytestconfig: pytest.Config) -> None:
    everything = pytestconfig.getoption("--fuzz-seconds")
    tried = [each for each in (EXACT if everything else TRIED) if not may_saturate(each[0])]
    done = [compared(rule, proof, 24 if everything else 5, 3) for rule, proof in tried]
    assert np.count_nonzero(done) > 0.8 * len(done)
