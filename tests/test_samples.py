"""Made-up inputs are what the operators that read them take."""

from collections.abc import Callable

import numpy as np
import pytest
from onnx import ModelProto

from graphopt.check.compare import compare_models
from graphopt.check.verdict import EqualityVerdict
from graphopt.runtime import model_sketch, sample_inputs
from graphopt.runtime.sample_inputs import Array
from tests.test_compare import model


def feeds(made: ModelProto, style: str = sample_inputs.NORMAL) -> sample_inputs.Feeds:
    sketch = model_sketch.sketch_model(made)
    return sample_inputs.make_feeds(
        sketch, sample_inputs.candidate_bindings(sketch.inputs, 0, {})[0], seed=0, style=style
    )


def test_token_ids_stay_within_the_table() -> None:
    table = np.zeros((5, 8), np.float32)
    made = model(
        "g (int64[batch,seq] ids) => (float[batch,seq,8] z) { a = Cast<to = 6>(ids) z = Gather(w, a) }", w=table
    )
    ids = feeds(made)["ids"]
    assert ids.min() >= 0
    assert ids.max() < 5


def test_a_mask_has_a_one_in_each_row() -> None:
    made = model("g (int64[64,4] attention_mask) => (float[64,4] z) { z = Cast<to = 1>(attention_mask) }")
    mask = feeds(made)["attention_mask"]
    assert set(np.unique(mask)) == {0, 1}
    assert mask.sum(axis=1).min() >= 1


def test_a_mask_without_axes_is_one() -> None:
    made = model("g (int64 mask) => (float z) { z = Cast<to = 1>(mask) }")
    assert feeds(made)["mask"] == 1


ROLES: list[tuple[str, str, Callable[[Array], bool]]] = [
    ("g (float[2,3] x, int64[2] s) => (float[P,Q] z) { z = Reshape(x, s) }", "s", lambda s: s.tolist() == [-1, 1]),
    ("g (float[2,3] x, int64[2] s) => (float[P,Q] z) { z = Expand(x, s) }", "s", lambda s: s.tolist() == [1, 1]),
    ("g (float[6] x, int64[2] s) => (float[P] y, float[Q] z) { y, z = Split(x, s) }", "s", lambda s: s.sum() == 6),
    ("g (float[2,3] x, int64[1] k) => (float[P,Q] y, int64[P,Q] z) { y, z = TopK(x, k) }", "k", lambda k: k[0] == 1),
    ("g (float[2,3] x, int64[1] a) => (float[P,Q,R] z) { z = Unsqueeze(x, a) }", "a", lambda a: a.tolist() == [0]),
    ("g (int64[2] s) => (float[P,Q] z) { z = ConstantOfShape(s) }", "s", lambda s: s.min() >= 1 and s.max() < 9),
    (
        "g (float[6] x, float[1] s) => (int8[6] z) { d = Constant<value = int8[1] {0}>() z = QuantizeLinear(x, s, d) }",
        "s",
        lambda s: s.min() > 0,
    ),
    (
        "g (float[3,2] t, int64[99] i, int64[40] k) => (float[40,2] z) { j = Gather(i, k) z = Gather(t, j) }",
        "i",
        lambda i: i.min() >= 0 and i.max() < 3,
    ),
    ("g (int8[999] x) => (int8[999] z) { z = Identity(x) }", "x", lambda x: x.min() < -100 and x.max() > 100),
]


@pytest.mark.parametrize(("text", "name", "holds"), ROLES)
def test_an_input_is_what_its_readers_take_it_for(text: str, name: str, holds: Callable[[Array], bool]) -> None:
    made = model(text)
    assert holds(feeds(made)[name])
    assert compare_models(made, made).verdict is EqualityVerdict.EQUAL


def test_wide_values_hold_zeros_negatives_and_large_ones() -> None:
    values = feeds(model("g (float[999] x) => (float[999] z) { z = Neg(x) }"), style=sample_inputs.WIDE)["x"]
    assert (values == 0).any()
    assert values.min() < -50
    assert values.max() > 50
