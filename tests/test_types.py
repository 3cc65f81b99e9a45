"""Sizes are polynomials over names: equal sizes are equal objects, however they were computed."""

from math import prod

from hypothesis import given
from hypothesis import strategies as st

from graphopt.base.dtype import DType
from graphopt.expr.dims import Dim, SymbolicDim, divide_dim, substitute_names

BATCH, SEQ = SymbolicDim.named("batch"), SymbolicDim.named("seq")


def value(dim: Dim, binding: dict[str, int]) -> int:
    """What a size is once its names are bound."""
    if not isinstance(dim, SymbolicDim):
        return dim
    return sum(coefficient * prod(binding[str(atom)] for atom in atoms) for atoms, coefficient in dim.terms)


def test_arithmetic_reads_like_algebra() -> None:
    assert str(2 * BATCH * 3 + BATCH - 1) == "7*batch-1"
    assert BATCH * SEQ == SEQ * BATCH
    assert BATCH - BATCH == 0
    assert (BATCH + SEQ) - SEQ == BATCH


def test_a_quotient_that_comes_out_even_has_no_division_left() -> None:
    assert (12 * BATCH * SEQ) // (4 * SEQ) == 3 * BATCH
    assert (12 * BATCH) % 4 == 0
    assert divide_dim(BATCH + 1, 2) is None
    assert str((BATCH + 1) // 2) == "((batch+1)//2)"


def test_a_fresh_size_equals_only_itself() -> None:
    one, other = SymbolicDim.fresh(), SymbolicDim.fresh()
    assert one == one
    assert one != other
    assert one.is_anonymous
    assert not BATCH.is_anonymous


SIZES = st.recursive(
    st.one_of(st.integers(-3, 9), st.sampled_from([BATCH, SEQ])),
    lambda inner: st.tuples(st.sampled_from("+-*"), inner, inner).map(
        lambda t: {"+": t[1] + t[2], "-": t[1] - t[2], "*": t[1] * t[2]}[t[0]]
    ),
    max_leaves=6,
)


@given(SIZES, SIZES, st.integers(0, 5), st.integers(0, 5))
def test_arithmetic_agrees_with_numbers(a: Dim, b: Dim, batch: int, seq: int) -> None:
    binding = {"batch": batch, "seq": seq}
    assert value(a + b, binding) == value(a, binding) + value(b, binding)
    assert value(a * b, binding) == value(a, binding) * value(b, binding)
    assert value(a - b, binding) == value(a, binding) - value(b, binding)


def test_every_element_type_has_a_numpy_type_and_back() -> None:
    for dtype in DType:
        if dtype not in (DType.UNDEFINED, DType.STRING):
            assert DType.from_numpy(dtype.numpy) is dtype
    assert DType.INT4.bits == 4
    assert DType.BFLOAT16.is_float


def test_what_an_earlier_model_named_its_sizes_means_nothing() -> None:
    """A product that prints as a name does is another size, whichever of the two came first."""
    n, product = SymbolicDim.named("a*b"), SymbolicDim.named("a") * SymbolicDim.named("b")
    assert n // 2 != product // 2
    assert substitute_names(n // 2, {"a*b": 6}) == 3
    assert substitute_names(product // 2, {"a": 2, "b": 4}) == 4


def test_unknown_sizes_are_ordered_as_they_were_made() -> None:
    """However many an earlier model needed: "?9" would come after "?10"."""
    made = [str(SymbolicDim.fresh()) for _ in range(200)]
    assert made == sorted(made)
