"""Operations that NumPy lacks: on whole numbers and conversions to them, defined for all operands, and two of floats.

Sums and products wrap (modulo 2**bits). A division by zero gives 0, and its rest is 0. Amounts of shifts are taken as
unsigned: a shift by the width or more leaves 0, or the sign of what is shifted right.

Floats become whole numbers of 32 bits (of 64 bits for int64 and uint64) by truncation, of which 8- and 16-bit dtypes
keep the lower bits. NaN, infinities and what does not fit become the least signed number (0 in its lower bits), as
x86's instructions have it; uint32 and uint64 take numbers from 2**31 and 2**63 on less that, and add it again.

Kernels compute the same.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
ERF_POINTS = 256  # for each unit, at which the error function is developed
ERF_TERMS = 5
ERF_IS_ONE = 6  # from where on it differs from 1 by less than a roundoff


def _is_whole(x: Any) -> bool:
    return np.asarray(x).dtype.kind in "iu"


def truncated_quotient(a: Any, b: Any) -> Any:
    """a / b rounded towards zero."""
    if not _is_whole(a):
        return np.trunc(a / b)
    quotient = np.floor_divide(a, b)
    return quotient + ((quotient < 0) & (quotient * b != a))


def power(a: Any, b: Any) -> Any:
    """a ** b, as C's pow. Of whole numbers: a negative exponent truncates the quotient: 0, unless `a` is 1 or -1."""
    if not _is_whole(a):
        result = np.power(a, b)
        root = np.where(np.isneginf(a), np.abs(a), result + 0)  # NumPy takes the square root of -infinity and -0
        return np.where(np.equal(b, 0.5), root, result)
    a, b = np.broadcast_arrays(np.asarray(a), np.asarray(b))
    unit = np.where(a == 1, a, np.where(b % 2 == 0, np.ones_like(a), a)) * (np.abs(a) == 1)
    return np.where(b < 0, unit, np.power(a, np.maximum(b, 0)))


def dot_of_bytes(*words: Any) -> Any:
    """The sums of products of bytes, four of each pair of words: those of the first, none above 15, with those of the
    second, which are signed."""
    if len(words) > 2:
        return sum(dot_of_bytes(a, b) for a, b in zip(words[::2], words[1::2], strict=True))
    a, b = words
    shifts = np.arange(0, 32, 8, dtype=np.int32)
    left = (a[..., None] >> shifts) & np.int32(255)
    right = ((b[..., None] >> shifts) & np.int32(255)).astype(np.uint8).view(np.int8).astype(np.int32)
    return (left * right).sum(-1, dtype=np.int32)


def looked_up(x: Any, *words: Any) -> Any:
    """The bytes that a table has at the lowest eight bits of `x`: unsigned, four in each of its words, the first
    lowest."""
    table = np.stack([np.asarray(word, "<i4").reshape(()) for word in words]).view(np.uint8)
    return table.take(np.asarray(x) & 255).astype(np.int32)


def shifted_left(a: Any, b: Any) -> Any:
    inside, amount = _amount(a, b)
    return np.where(inside, np.left_shift(a, amount), np.zeros_like(a))


def shifted_right(a: Any, b: Any) -> Any:
    inside, amount = _amount(a, b)
    shifted = np.right_shift(a, amount)
    return shifted if shifted.dtype.kind == "i" else np.where(inside, shifted, np.zeros_like(a))


def _amount(a: Any, b: Any) -> tuple[Array, Array]:
    """Whether the amount is less than the width, and it or the largest such."""
    b, bits = np.asarray(b), np.asarray(a).dtype.itemsize * 8
    inside = (b >= 0) & (b < bits)
    return inside, np.where(inside, b, np.asarray(bits - 1, b.dtype))


def erf(x: Any) -> Any:
    """The error function, to a roundoff of float64, by its Taylor series at the nearest of many points."""
    x = np.asarray(x)
    magnitude = np.minimum(np.abs(x.astype(np.float64)), ERF_IS_ONE)
    near = np.rint(np.where(np.isnan(magnitude), 0, magnitude) * ERF_POINTS).astype(np.intp)
    h = magnitude - near / ERF_POINTS
    *others, series = _erf_series()
    total = series.take(near)
    for coefficients in reversed(others):
        total *= h
        total += coefficients.take(near)
    return np.copysign(total, x).astype(x.dtype)


@cache
def _erf_series() -> list[Array]:
    """The coefficients of (x - t)**n at every point t, by n. The derivative of erf is 2 / sqrt(pi) exp(-t**2), of which
    the n-th is itself times (-1)**n H_n(t), with Hermite's polynomials H (Abramowitz and Stegun, 7.1.19)."""
    t = np.arange(ERF_IS_ONE * ERF_POINTS + 1) / ERF_POINTS
    slope = 2 / math.sqrt(math.pi) * np.exp(-(t**2))
    hermite = [np.ones_like(t), 2 * t]
    while len(hermite) < ERF_TERMS:
        hermite.append(2 * t * hermite[-1] - 2 * (len(hermite) - 1) * hermite[-2])
    derivatives = [(-1) ** n * slope * h / math.factorial(n + 1) for n, h in enumerate(hermite)]
    return [np.array([math.erf(p) for p in t]), *derivatives]


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)), without overflow."""
    x = np.asarray(x)
    e = np.exp(-np.abs(x.astype(np.result_type(x.dtype, np.float32))))
    return (np.where(x >= 0, np.ones_like(e), e) / (1 + e)).astype(x.dtype)


def converted(x: Array, dtype: np.dtype[Any]) -> Array:
    """`x` as `dtype`: what a cast means."""
    if dtype.kind not in "iu" or x.dtype.kind in "iub":
        return x.astype(dtype)
    wide = np.dtype(np.int64 if dtype.itemsize == 8 else np.int32)
    least, numbers = np.iinfo(wide).min, x.astype(np.float64)
    upper = (numbers >= -float(least)) & (dtype.kind == "u" and dtype.itemsize == wide.itemsize)
    moved = np.where(upper, numbers + least, numbers)
    fits = (moved < -float(least)) & (moved > least)
    whole = np.where(fits, moved, least).astype(wide)
    return np.where(upper, whole ^ least, whole).astype(dtype)
