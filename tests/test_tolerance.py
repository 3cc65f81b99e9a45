"""How far two models may be apart follows from what they compute, and says so."""

import numpy as np

from graphopt import samples
from graphopt.compare import compare
from graphopt.tolerance import tolerance
from tests.test_compare import SAME, model


def test_the_tolerance_grows_with_the_sum_and_shrinks_with_precision() -> None:
    def of(dtype: str, terms: int) -> float:
        text = f"g ({dtype}[1,{terms}] x) => ({dtype}[1,2] z) {{ z = MatMul(x, w) }}"
        weight = np.zeros((terms, 2), {"float": np.float32, "float16": np.float16, "double": np.float64}[dtype])
        return tolerance(samples.sketch(model(text, w=weight)))[0]

    assert of("double", 64) < of("float", 64) < of("float", 4096) < 1e-4 < of("float16", 64) < 0.05


def test_the_tolerance_says_where_it_comes_from() -> None:
    found = compare(*(model(text) for text in SAME[0][1:]))
    assert found.worst is not None
    assert "L = 2 operators in a row" in found.worst.why
