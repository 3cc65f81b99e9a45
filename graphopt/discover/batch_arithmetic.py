"""Two arithmetics in which many tensors are computed at once: a prime field, and the real numbers as floats.

Arrays have the shape (parts, batch, *indices). The field neither rounds nor overflows, and functions of which only the
name is known are random ones, so that terms are equal only if they are so for every function. The real numbers have an
order that products respect, and roots; two of them are equal if they agree to nine digits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from hashlib import blake2b
from math import erf
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Axes: TypeAlias = "tuple[int, ...]"


class BatchArithmetic(Protocol):
    """Arithmetic on batches of values; `monoid` is "max", "min" or "prod"."""

    parts: int

    def draw_tensors(self, seed: Sequence[object], shape: Sequence[int]) -> Array:
        """Return random tensors, whose first size is that of the batch."""
        ...

    def constant(self, number: Fraction) -> Array: ...
    def from_integers(self, numbers: Array) -> Array: ...
    def multiply(self, left: Array, right: Array) -> Array: ...
    def add(self, left: Array, right: Array) -> Array: ...
    def total(self, values: Array, axes: Axes) -> Array: ...
    def call(self, function: str, params: tuple[Any, ...], args: Sequence[Array]) -> Array: ...
    def is_not_zero(self, values: Array) -> Array:
        """Return truth values, of the shape (1, batch, *indices)."""
        ...

    def fold(self, monoid: str, values: Array, asked: Array) -> Array:
        """Combine, along the first axis of indices, the values that a mask selects."""
        ...

    def fingerprints(self, values: Array) -> Array:
        """Return one 64-bit number for each member of the batch; 0 for one without a value."""
        ...


def seeded_generator(*said: object) -> np.random.Generator:
    """Return a generator of random numbers that depends on nothing but the texts and numbers given."""
    digest = blake2b(repr(said).encode(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


# -- the field ---------------------------------------------------------------------------------------------------------

Q = 1_073_741_789
P = 2 * Q + 1
"""Two primes, P below 2³¹, so that products fit into 64 bits; `ROOT` has order Q modulo P.

Values are pairs, modulo P and modulo Q. The exponential of a pair is a power of the root by its second half, so that
sums become products, as in Mirage (Wu et al., OSDI 2025); the second half of what has none any more is a random
function of the first. Only the first halves are compared.
"""
ROOT = 4
_MODULI = np.array([P, Q], np.int64)


def _moduli(values: Array) -> Array:
    return _MODULI.reshape(2, *(1,) * (values.ndim - 1))


class Field:
    """Pairs of residues. The greatest of several is the one with the greatest first half, from -P/2 to P/2."""

    parts = 2

    def draw_tensors(self, seed: Sequence[object], shape: Sequence[int]) -> Array:
        generator = seeded_generator("field", *seed)
        return np.stack([generator.integers(1, modulus, shape) for modulus in (P, Q)])

    def constant(self, number: Fraction) -> Array:
        residues = (number.numerator * pow(number.denominator, -1, modulus) % modulus for modulus in (P, Q))
        return np.array(list(residues), np.int64).reshape(2, 1)

    def from_integers(self, numbers: Array) -> Array:
        both = np.stack([numbers, numbers]).astype(np.int64)[:, None]
        return both % _moduli(both)

    def multiply(self, left: Array, right: Array) -> Array:
        product: Array = left * right
        return product % _moduli(product)

    def add(self, left: Array, right: Array) -> Array:
        result: Array = left + right
        return result % _moduli(result)

    def total(self, values: Array, axes: Axes) -> Array:
        result: Array = values.sum(axis=axes)
        return result % _moduli(result)

    def power(self, base: Array, exponents: Array, modulus: int) -> Array:
        """Return powers by repeated squaring; exponents are not negative."""
        base, exponents = np.broadcast_arrays(base, exponents)
        result, square, left = np.ones_like(base), base, exponents.copy()
        while left.any():
            result = np.where(left & 1, result * square % modulus, result)
            square, left = square * square % modulus, left >> 1
        return result

    def call(self, function: str, params: tuple[Any, ...], args: Sequence[Array]) -> Array:
        if function == "Inverse":
            (value,) = args
            return np.stack([self.power(value[i], np.array(m - 2), m) for i, m in enumerate((P, Q))])
        if function == "Exp":
            (value,) = args
            return np.stack([self.power(np.array(ROOT), value[1], P), self._random("Exp", (), args)[1]])
        if function in _OF_SIGNS:
            (value,) = args
            found: Array = _OF_SIGNS[function](value, np.sign(_signed(value)).astype(np.int64)) % _moduli(value)
            return found
        return self._random(function, params, args)

    def _random(self, function: str, params: tuple[Any, ...], args: Sequence[Array]) -> Array:
        """Return a random function of the first halves, another for each name."""
        first = np.broadcast_arrays(*(arg[0] for arg in args)) if args else [np.zeros((1,), np.int64)]
        salts = (
            seeded_generator("function", function, *map(str, params))
            .integers(0, 2**63, len(first) + 1)
            .astype(np.uint64)
        )
        mixed = np.full(first[0].shape, salts[-1], np.uint64)
        for values, salt in zip(first, salts, strict=False):
            mixed = _mixed(mixed ^ (values.astype(np.uint64) * np.uint64(2) + np.uint64(1)) * (salt | np.uint64(1)))
        found: Array = np.stack([(mixed >> np.uint64(1)) % np.uint64(P), _mixed(mixed) % np.uint64(Q)]).astype(np.int64)
        return found

    def is_not_zero(self, values: Array) -> Array:
        result: Array = values[:1] != 0
        return result

    def fold(self, monoid: str, values: Array, asked: Array) -> Array:
        if monoid == "prod":
            result = np.ones_like(values[:, :, 0])
            for i in range(values.shape[2]):
                result = np.where(asked[:, :, i], self.multiply(result, values[:, :, i]), result)
            return result
        order = _signed(values) * (1 if monoid == "max" else -1)
        best = np.argmax(np.where(asked, order, -P), axis=2)
        result = np.take_along_axis(
            values, np.broadcast_to(best[:, :, None], (2, *best.shape[1:2], 1, *best.shape[2:])), 2
        )
        return result[:, :, 0]

    def fingerprints(self, values: Array) -> Array:
        flat = values[0].reshape(values.shape[1], -1)
        weights = seeded_generator("fingerprint", values.shape[2:]).integers(1, P, (2, flat.shape[1]))
        halves = [(flat * weight % P).sum(axis=1) % P for weight in weights]
        found: Array = (halves[0] << 32 | halves[1] << 1 | 1).astype(np.int64)
        return found


def _signed(values: Array) -> Array:
    first = values[:1]
    result: Array = np.where(first > P // 2, first - P, first)
    return result


def _mixed(bits: Array) -> Array:
    """Return 64-bit numbers in which each bit depends on all bits (the finalizer of splitmix64)."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result: Array = bits ^ (bits >> np.uint64(31))
    return result


_OF_SIGNS: Mapping[str, Callable[[Array, Array], Array]] = {
    "Abs": lambda value, sign: np.where(sign < 0, -value, value),
    "Sign": lambda value, sign: np.broadcast_to(sign, value.shape),
    "Positive": lambda value, sign: np.broadcast_to(sign > 0, value.shape).astype(np.int64),
    "NotZero": lambda value, sign: np.broadcast_to(sign != 0, value.shape).astype(np.int64),
}

# -- the real numbers --------------------------------------------------------------------------------------------------


class Reals:
    """Floats. An undefined value, as the root of a negative number, stays undefined and equals nothing."""

    parts = 1

    def draw_tensors(self, seed: Sequence[object], shape: Sequence[int]) -> Array:
        return seeded_generator("reals", *seed).uniform(-2.0, 2.0, (1, *shape))

    def constant(self, number: Fraction) -> Array:
        return np.array(float(number)).reshape(1, 1)

    def from_integers(self, numbers: Array) -> Array:
        return np.asarray(numbers, np.float64)[None, None]

    def multiply(self, left: Array, right: Array) -> Array:
        result: Array = left * right
        return result

    def add(self, left: Array, right: Array) -> Array:
        result: Array = left + right
        return result

    def total(self, values: Array, axes: Axes) -> Array:
        result: Array = values.sum(axis=axes)
        return result

    def call(self, function: str, params: tuple[Any, ...], args: Sequence[Array]) -> Array:
        if function not in REAL_FUNCTIONS or params:
            return np.full(np.broadcast_shapes(*(arg.shape for arg in args)) if args else (1, 1), np.nan)
        with np.errstate(all="ignore"):  # what has no value is NaN
            result: Array = REAL_FUNCTIONS[function](*args)
        return result

    def is_not_zero(self, values: Array) -> Array:
        result: Array = np.abs(values) > _ZERO_TOLERANCE
        return result

    def fold(self, monoid: str, values: Array, asked: Array) -> Array:
        neutral, combine = _FOLDS[monoid]
        result: Array = combine(np.where(asked, values, neutral), axis=2)
        return result

    def fingerprints(self, values: Array) -> Array:
        flat = np.ascontiguousarray(values[0].reshape(values.shape[1], -1))
        weights = seeded_generator("fingerprint", values.shape[2:]).integers(0, 2**63, flat.shape[1]).astype(np.uint64)
        mantissa, exponent = np.frexp(np.where(np.abs(flat) < _ZERO_TOLERANCE, 0.0, flat))
        digits = np.where(np.isfinite(flat), np.round(mantissa * _DIGITS), 0).astype(np.int64)
        words = _mixed((digits * 4096 + exponent).astype(np.uint64) ^ (weights | np.uint64(1)))
        found = (words.sum(axis=1, dtype=np.uint64) | np.uint64(1)).astype(np.int64)
        named: Array = np.where(np.isfinite(flat).all(axis=1), found, 0)
        return named


_ZERO_TOLERANCE = 1e-9
"""Relative size below which the remainder of a sum that cancels counts as zero; values are of the size of 1."""
_DIGITS = 2.0**30
_FOLDS: Mapping[str, tuple[float, Callable[..., Array]]] = {
    "max": (-np.inf, np.max),
    "min": (np.inf, np.min),
    "prod": (1.0, np.prod),
}
REAL_FUNCTIONS: Mapping[str, Callable[..., Array]] = {
    "Inverse": lambda x: 1.0 / x,
    "Pow": np.power,
    "Abs": np.abs,
    "Sign": np.sign,
    "Round": np.round,
    "Erf": np.vectorize(erf, otypes=[float]),
    "Positive": lambda x: (x > _ZERO_TOLERANCE).astype(float),
    "NotZero": lambda x: (np.abs(x) > _ZERO_TOLERANCE).astype(float),
    **{f.capitalize(): getattr(np, f) for f in ("exp", "log", "sqrt", "floor", "ceil", "sin", "cos", "tan")},
    **{f.capitalize(): getattr(np, f) for f in ("sinh", "cosh", "tanh")},
    **{f"A{f}": getattr(np, f"arc{f}") for f in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
}
