"""Broadcasting of sizes of any kind agrees with numpy where all are numbers, and asks only about what does not fit."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from graphopt.expr.broadcasting import broadcast_shapes
from graphopt.expr.dims import SymbolicDim
from graphopt.language.binding import broadcast_dims


def misfit(a: Any, b: Any) -> Any:
    raise ValueError(f"{a} beside {b}")


@pytest.mark.parametrize("seed", range(100))
def test_numbers_broadcast_as_in_numpy(seed: int) -> None:
    random = Random(seed)
    shapes = [tuple(random.choice((0, 1, 2)) for _ in range(random.randrange(4))) for _ in range(random.randrange(4))]
    try:
        expected = np.broadcast_shapes(*shapes)
    except ValueError:
        with pytest.raises(ValueError, match="beside"):
            broadcast_shapes(shapes, misfit)
    else:
        assert broadcast_shapes(shapes, misfit) == expected


def test_symbols_broadcast_where_they_plainly_fit() -> None:
    n, m = map(SymbolicDim.named, ("n", "m"))
    assert broadcast_dims((n, 1), (1, n, m)) == (1, n, m)
    assert broadcast_dims((n,), (m,)) is None
    assert broadcast_shapes([(n,), (m,)], lambda a, b: a) == (n,)
