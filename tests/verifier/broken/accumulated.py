"""Wrong rules about integers that wrap around: of sums in 32 bits that are taken for sums of any, and of narrow types.

None may be proved. Small instances do not show it: what is added up has to be many, or large. Of sums of bytes some are
drawn that are long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from graphopt.base.dtype import DType
from graphopt.language.rule import Rule, const, fn, op, tensor
from graphopt.language.terms import App, Term

a, b, c, e = tensor("a", "M K"), tensor("b", "K N"), tensor("c", "M K"), tensor("e", "K N")
x, y, cube = tensor("x"), tensor("y"), tensor("x", "A B C")
s, z, t, u = const("s", ""), const("z", ""), const("t", ""), const("u", "")
v, zero, bias = const("v", ""), const("o", ""), const("k", "M")
image, filters = tensor("x", "N C *s"), const("w", "M I *k")
D, Q, Sums = op.DequantizeLinear, op.QuantizeLinear, op.MatMulInteger
DOUBLE, INT64, INT32, BYTES = DType.DOUBLE, DType.INT64, DType.INT32, (DType.UINT8, DType.INT8)


def cast(value: Term, to: DType) -> App:
    return op.Cast(value, to=int(to))


def of(dtype: DType, *terms: Term) -> tuple[App, ...]:
    return tuple(fn.eq(fn.dtype(term), int(dtype)) for term in terms)


def singles(*scales: Term) -> tuple[App, ...]:
    return of(DType.FLOAT, *scales)


def products() -> Iterator[Rule]:
    """Yield rules that take a sum in 32 bits out of a wider type, and back."""
    for one in BYTES:
        for other in BYTES:
            exact, wrapped = cast(a, DOUBLE) @ cast(b, DOUBLE), cast(Sums(a, b), DOUBLE)
            name, when = f"of_{one.name}_and_{other.name}".lower(), (*of(one, a), *of(other, b))
            yield Rule(f"doubles_as_integers_{name}", exact, wrapped, when=when)
            yield Rule(f"integers_as_doubles_{name}", wrapped, exact, when=when)
    for dtype in BYTES:
        name = dtype.name.lower()
        floats, wide = op.Conv(D(image, s, z), D(filters, t, u)), cast(op.ConvInteger(image, filters), DOUBLE)
        given = of(dtype, image, filters)
        yield Rule(
            f"convolution_in_integers_of_{name}",
            floats,
            D(op.ConvInteger(image, filters, z, u), s * t),
            when=(*given, *singles(s, t)),
        )
        yield Rule(
            f"convolution_of_doubles_of_{name}",
            op.Conv(cast(image, DOUBLE), cast(filters, DOUBLE)),
            wide,
            when=given,
        )


BYTE = of(DType.UINT8, a, b)
SUMS = (
    *products(),
    Rule("floats_as_integers", D(a, s, z) @ D(b, t, u), D(Sums(a, b, z, u), s * t), when=(*BYTE, *singles(s))),
    Rule(
        "floats_as_integers_of_any_bytes",
        D(a, s, z) @ D(b, t, u),
        D(Sums(a, b, z, u), s * t),
        when=(*(fn.is_in(fn.dtype(given), tuple(map(int, BYTES))) for given in (a, b)), *singles(s)),
    ),
    Rule(
        "distances_as_integers",
        (cast(a, DOUBLE) - cast(z, DOUBLE)) @ (cast(b, DOUBLE) - cast(z, DOUBLE)),
        cast(Sums(a, b, z, z), DOUBLE),
        when=(*BYTE, *of(DType.UINT8, z)),
    ),
    Rule(
        "sums_in_integers",
        D(Sums(a, b), s) + D(Sums(c, e), s),
        D(Sums(op.Concat(a, c, axis=1), op.Concat(b, e, axis=0)), s),
        when=(*BYTE, *of(DType.UINT8, c, e), *singles(s)),
    ),
    Rule(
        "sums_in_doubles",
        cast(Sums(a, b), DOUBLE) + cast(Sums(c, b), DOUBLE),
        cast(Sums(a, b) + Sums(c, b), DOUBLE),
        when=(*BYTE, *of(DType.UINT8, c)),
    ),
    Rule("no_sum_below_zero", op.Relu(Sums(a, b)), Sums(a, b), when=BYTE),
    Rule("no_magnitude_of_a_sum", op.Abs(Sums(a, b)), Sums(a, b), when=BYTE),
    Rule("one_more_is_greater", op.Max(Sums(a, b), Sums(a, b) + 1), Sums(a, b) + 1, when=BYTE),
    Rule(
        "sums_compared_by_a_difference",
        op.Less(Sums(a, b), Sums(c, b)),
        op.Less(Sums(a, b) - Sums(c, b), 0),
        when=(*BYTE, *of(DType.UINT8, c)),
    ),
    Rule("a_sum_below_zero", op.Less(cast(Sums(a, b), DOUBLE), 0.0), op.Less(cast(a, DOUBLE) @ cast(b, DOUBLE), 0.0)),
    Rule(
        "quantized_product",
        Q(D(a, s, z) @ D(b, t, u), v, zero),
        op.QLinearMatMul(a, s, z, b, t, u, v, zero),
        when=(*BYTE, *of(DType.UINT8, zero), *singles(s, t, v)),
    ),
    Rule(
        "quantized_convolution",
        Q(op.Conv(D(image, s, z), D(filters, t, u)), v, zero),
        op.QLinearConv(image, s, z, filters, t, u, v, zero),
        when=(*of(DType.UINT8, image, filters, zero), *singles(s, t, v)),
    ),
    Rule(
        "quantized_convolution_and_bias",
        op.QLinearConv(image, s, z, filters, t, u, v, zero, bias),
        Q(D(op.ConvInteger(image, filters, z, u), s * t) + op.Unsqueeze(D(bias, s * t), (1,)), v, zero),
        when=(*of(DType.UINT8, image, filters), *singles(s, t)),
    ),
)


def bounded(name: str, most: Term, one: DType = DType.UINT8, other: DType = DType.UINT8, zeros: bool = False) -> Rule:
    """Return a rule for sums in 32 bits under a condition on sizes."""
    floats, given = (D(a, s, z) @ D(b, t, u), (z, u)) if zeros else (D(a, s) @ D(b, t), ())
    when = (*of(one, a), *of(other, b), *singles(s), most)
    return Rule(name, floats, D(Sums(a, b, *given), s * t), when=when)


K = fn.size("K")
BOUNDS = (
    bounded("one_product_too_many", fn.le(K, 33_026)),
    bounded("as_many_products_as_of_signed", fn.lt(K * 128 * 128, 2**31)),
    bounded("products_of_distances_as_of_signed", fn.lt(K * 128 * 128, 2**31), DType.INT8, DType.INT8, zeros=True),
    bounded("products_as_of_one_byte", fn.lt(K * 255, 2**31)),
    bounded("products_in_32_bits_without_a_sign", fn.lt(K * 255 * 255, 2**32)),
    bounded("another_size", fn.lt(fn.size("M") * 255 * 255, 2**31)),
    bounded("many_products", fn.lt(2**31, K * 255 * 255)),
    Rule(
        "channels_without_the_kernel",
        op.Conv(cast(image, DOUBLE), cast(filters, DOUBLE)),
        cast(op.ConvInteger(image, filters), DOUBLE),
        when=(*of(DType.UINT8, image, filters), fn.lt(fn.size("I") * 255 * 255, 2**31)),
    ),
    Rule(
        "difference_in_32_bits",
        D(x, s, z),
        D(x, s) - D(z, s),
        when=(*of(INT32, x), *singles(s)),
    ),
    Rule("difference_of_any_type", D(x, s, z), D(x, s) - D(z, s), when=singles(s)),
    Rule("sum_in_32_bits", D(x + y, s), D(x, s) + D(y, s), when=(*of(INT32, x, y), *singles(s))),
    Rule("difference_ahead", D(x, s, z), D(x - z, s), when=(*of(DType.UINT8, x), *singles(s))),
)


ON_PAIRS: dict[str, Callable[[Term, Term], App]] = {
    "add": lambda one, other: one + other,
    "sub": lambda one, other: one - other,
    "mul": lambda one, other: one * other,
}
ALONE: dict[str, Callable[[Term], App]] = {
    "abs": op.Abs,
    "neg": op.Neg,
    "square": lambda value: op.Pow(value, 2),
    "sum": lambda value: op.ReduceSum(value, (0,)),
    "product": lambda value: op.ReduceProd(value, (0,)),
    "sum_of_squares": lambda value: op.ReduceSumSquare(value, (0,)),
    "sum_of_magnitudes": lambda value: op.ReduceL1(value, (0,)),
    "mean": lambda value: op.ReduceMean(value, (0,)),
    "running_sum": lambda value: op.CumSum(value, 0),
    "matrix_product": lambda value: value @ value,
    "gemm": lambda value: op.Gemm(value, value),
    "einsum": lambda value: op.Einsum(value, value, equation="ij,jk->ik"),
    "shift": lambda value: op.BitShift(value, value, direction="LEFT"),
}
TAKING = {"shift": DType.UINT8, "square": INT32, "abs": DType.INT8, "neg": DType.INT16}
WIDER = (INT64, DOUBLE)


def widened() -> Iterator[Rule]:
    """Yield rules that compute in a wider type first, or last."""
    for wide in WIDER:
        for name, apply in ON_PAIRS.items():
            for narrow in (DType.INT8, DType.UINT16, INT32, DType.UINT32, *((INT64,) if wide is DOUBLE else ())):
                called = f"{name}_of_{narrow.name}_in_{wide.name}".lower()
                early, late = apply(cast(x, wide), cast(y, wide)), cast(apply(x, y), wide)
                yield Rule(f"{called}_late", early, late, when=of(narrow, x, y))
                yield Rule(f"{called}_early", late, early, when=of(narrow, x, y))
        for name, alone in ALONE.items():
            if name == "shift" and wide is DOUBLE:
                continue
            narrow = TAKING.get(name, INT32)
            to = DType.UINT64 if name == "shift" else wide
            called = f"{name}_of_{narrow.name}_in_{to.name}".lower()
            yield Rule(called, alone(cast(x, to)), cast(alone(x), to), when=of(narrow, x))


NARROW = (
    *widened(),
    Rule("there_and_back", cast(cast(x, DType.INT16), INT32), x, when=of(INT32, x)),
    Rule("sum_there_and_back", cast(x, INT32) + cast(y, INT32), cast(x + y, INT32), when=of(DType.INT8, x, y)),
    Rule("compared_by_a_difference", op.Less(x, y), op.Less(x - y, 0), when=of(INT32, x, y)),
    Rule("compared_one_further", op.Less(x + 1, y + 1), op.Less(x, y), when=of(INT32, x, y)),
    Rule("magnitude_is_not_negative", op.Relu(op.Abs(x)), op.Abs(x), when=of(INT32, x)),
    Rule(
        "sum_of_sums",
        op.ReduceSum(cast(op.ReduceSum(cube, (1,), keepdims=0), INT64), (1,), keepdims=0),
        op.ReduceSum(cast(cube, INT64), (1, 2), keepdims=0),
        when=of(INT32, cube),
    ),
    Rule("half_of_twice", op.Div(x * 2, 2), x, when=of(INT32, x)),
    Rule("steps_of_a_sum", D(x + y, s), D(x, s) + D(y, s), when=(*of(DType.UINT8, x, y), *singles(s))),
)

SHOWN = frozenset(
    {"integers_as_doubles_of_uint8_and_uint8", "doubles_as_integers_of_int8_and_int8", "floats_as_integers"}
    | {"convolution_in_integers_of_uint8", "products_as_of_one_byte"}
)
REFUTED = tuple(rule for rule in (*SUMS, *BOUNDS) if rule.name in SHOWN)
UNPROVED = tuple(rule for rule in (*SUMS, *BOUNDS, *NARROW) if rule.name not in SHOWN)
