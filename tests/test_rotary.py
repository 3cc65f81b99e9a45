"""Positions turned into queries and keys by constant tables."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.test_attention import simplified
from tests.text import parse

TURN = "l, h = Split<axis=-1, num_outputs=2>(t); n = Neg(h); r = Concat<axis=-1>(n, l); a = Mul(t, c); b = Mul(r, s)"
CUT = "p, t = Split<axis={axis}>(x, [{still},6]); {turn}; z = Add(a, b); y = Concat<axis={axis}>(p, z)"


def turned_tokens(shape: str, table: tuple[int, ...], *, still: int, axis: int) -> onnx.ModelProto:
    """Tokens of eight elements, of which `still` ones have no position, as transformers of images turn them."""
    angles = np.linspace(0.1, 3, 48).reshape(table)
    tables = {"c": np.cos(angles).astype(np.float32), "s": np.sin(angles).astype(np.float32)}
    if still:
        return parse(f"float[{shape}] x", CUT.format(axis=axis, still=still, turn=TURN), tables)
    return parse(f"float[{shape}] t", f"{TURN}; y = Add(a, b)", tables)


TURNED = {"Split": 1, "Concat": 1, "Mul": 2, "Add": 1}


@pytest.mark.parametrize(
    ("shape", "table", "still", "axis"),
    [
        pytest.param("1,3,6,8", (6, 8), 0, 2, id="all tokens have a position"),
        pytest.param("1,3,11,8", (6, 8), 5, 2, id="heads in front"),
        pytest.param("1,3,11,8", (1, 1, 6, 8), 5, -2, id="a table of as many axes"),
        pytest.param("1,11,3,8", (6, 1, 8), 5, 1, id="tokens in front"),
    ],
)
def test_all_tokens_are_turned_at_once(shape: str, table: tuple[int, ...], still: int, axis: int) -> None:
    model = turned_tokens(shape, table, still=still, axis=axis)
    assert simplified(model).graph.operator_counts() == TURNED


def test_many_tokens_without_a_position_are_cut_off() -> None:
    """To turn them takes longer than to copy them: of the rules, only the sign is new."""
    counts = simplified(turned_tokens("1,3,15,8", (6, 8), still=9, axis=2)).graph.operator_counts()
    assert counts == TURNED | {"Split": 2, "Concat": 2}
