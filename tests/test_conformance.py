"""Every test model of the onnx package, optimized, computes what its specification expects.

Where ONNX Runtime itself fails on the original, or computes something else than the specification, the optimized
model has to do the same. The counts are printed as a table at the end of the run.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import graphopt
from tests import conformance
from tests.conformance import DATA, Case, Outputs, agree, run, run_reference

CHUNKS = 16

RANDOM = ("bernoulli", "dropout_default_ratio", "training_dropout")
"""Names of tests whose outputs are drawn anew in every run: nothing can be compared but shapes and types."""


def outcome(case: Case) -> str:
    """What became of a case; anything that starts with `WRONG` is a failure."""
    optimized = graphopt.optimize(case.model, check=False, cost="none").model
    for inputs, expected in case.data:
        before, after = run(case.model, inputs), run(optimized, inputs)
        found = _judged(case, before, after, list(expected))
        if found.startswith("ORT fails, before and after"):
            found = _by_reference(case, run_reference(optimized, inputs), inputs, list(expected))
        if found != "as specified":
            return found
    return "as specified"


def _judged(case: Case, before: Outputs | str, after: Outputs | str, expected: Outputs) -> str:
    if isinstance(before, str):
        if isinstance(after, str):
            same = before.split(":")[0] == after.split(":")[0]
            return "ORT fails, before and after" if same else f"WRONG: fails with {after}, before with {before}"
        right = agree(after, expected, case.rtol, case.atol)
        return (
            "ORT fails before, as specified after" if right else "WRONG: ORT failed before, and now computes nonsense"
        )
    if isinstance(after, str):
        return f"WRONG: {after}"
    if _is_random(case):
        return _of_one_shape(before, after)
    if agree(after, expected, case.rtol, case.atol):
        return "as specified"
    if agree(before, expected, case.rtol, case.atol):
        return "WRONG: not the expected outputs"
    same = agree(after, before, case.rtol, case.atol)
    return (
        "not as specified in ORT, the same after" if same else "WRONG: ORT differs from the specification, we from both"
    )


def _is_random(case: Case) -> bool:
    return any(name in case.name for name in RANDOM)


def _of_one_shape(before: Outputs, after: Outputs) -> str:
    shapes = [[np.shape(value) for value in side] for side in (before, after)]
    return "random" if shapes[0] == shapes[1] else "WRONG: another shape"


def _by_reference(case: Case, after: Outputs | str, inputs: Sequence[object], expected: Outputs) -> str:
    """The same judgement by the onnx package's evaluator, for what ORT has no kernel for, or is too old for."""
    if not isinstance(after, str) and agree(after, expected, case.rtol, case.atol):
        return "ORT fails, before and after; as specified in onnx.reference"
    before = run_reference(case.model, inputs)
    if _is_random(case) and not isinstance(before, str) and not isinstance(after, str):
        return _of_one_shape(before, after)
    if isinstance(before, str) or not agree(before, expected, case.rtol, case.atol):
        return "ORT and onnx.reference fail, before and after"
    return f"WRONG: not the expected outputs in onnx.reference ({after if isinstance(after, str) else 'values'})"


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_models_of_the_onnx_package(chunk: int, record_property: Callable[[str, object], None]) -> None:
    counts: Counter[str] = Counter()
    wrong = []
    for case in conformance.cases()[chunk::CHUNKS]:
        found = outcome(case)
        counts[found.split(":")[0]] += 1
        if found.startswith("WRONG"):
            wrong.append(f"{case.name}: {found}")
    record_property("conformance", dict(counts))
    assert not wrong, "\n".join(wrong)


LIGHT = sorted(path.stem for path in (DATA / "light").glob("*.onnx"))


@pytest.mark.slow
@pytest.mark.parametrize("name", LIGHT)
def test_light_models(name: str) -> None:
    """The nine real architectures: equal to their shipped outputs, and no batch norm left behind a convolution."""
    path = DATA / "light" / f"{name}.onnx"
    original = onnx.load(path)
    expected = [numpy_helper.to_array(onnx.load_tensor(path.with_name(f"{name}_output_0.pb")))]
    stored = {tensor.name for tensor in original.graph.initializer}
    (info,) = (info for info in original.graph.input if info.name not in stored)
    shape = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
    feed = (np.arange(np.prod(shape)).reshape(shape) / np.prod(shape)).astype(
        np.float32
    )  # as the package's runner does

    result = graphopt.optimize(path, cost="none")

    assert result.ok
    found = run(result.model, [feed])
    assert not isinstance(found, str), found
    assert agree(found, expected, rtol=1e-3, atol=1e-5)
    made_by = {output: node.op_type for node in result.model.graph.node for output in node.output}
    norms = [node for node in result.model.graph.node if node.op_type == "BatchNormalization"]
    assert not [node.name for node in norms if made_by.get(node.input[0]) == "Conv"]
