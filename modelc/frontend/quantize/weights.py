"""Weights as whole numbers: as bytes, a scale for each output channel, symmetric, or asymmetric, with a zero point for
each too; or as numbers of four bits, a scale for each block of them along the depth, perhaps a zero point too: those
with the least squared error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

LARGEST = 127  # of a weight, where instructions multiply all bytes
LARGEST_BIAS = 1 << 30
WORTH = 0.75  # of the squared error of weights, for which they have zero points
BITS = 4
MIDDLE, MOST = 8, 15  # of four bits: what stands for 0 without zero points, and the largest number
SHARES = tuple(np.linspace(1.0, 0.7, 7))  # of the range that holds all of a block
AT_ONCE = 1 << 20  # numbers, of which what is tried stays in caches

Floats = NDArray[np.float32]


class Bytes(NamedTuple):
    """`(whole - zero) * scale` by channel, the dimension `axis`, is about the weights."""

    whole: NDArray[np.int8]
    scale: Floats
    zero: NDArray[np.int8]
    axis: int

    def real(self) -> Floats:
        """The weights that they stand for."""
        along = [-1 if k == self.axis else 1 for k in range(self.whole.ndim)]
        steps = self.whole.astype(np.float32) - self.zero.astype(np.float32).reshape(along)
        return (steps * self.scale.reshape(along)).astype(np.float32)


def as_bytes(weights: Floats, axis: int, most: int = LARGEST, asymmetric: bool = False) -> Bytes:
    """Weights as int8 from -most to most, their channels along `axis`: these are for the greatest magnitude of either
    sign, or if they are asymmetric for the least and the greatest weight, and 0, which has a number of its own."""
    others = tuple(k for k in range(weights.ndim) if k != axis)
    along = [-1 if k == axis else 1 for k in range(weights.ndim)]
    low, high = weights.min(axis=others, initial=0), weights.max(axis=others, initial=0)
    low, high = low.astype(np.float64), high.astype(np.float64)
    width = high - low if asymmetric else 2 * np.maximum(-low, high)
    scale = (width / (2 * most)).astype(np.float32)
    scale[scale < np.finfo(np.float32).tiny] = np.float32(1)
    zero = np.clip(np.rint(-low / scale) - most, -most, most) if asymmetric else np.zeros_like(scale)
    whole = np.clip(np.rint(weights / scale.reshape(along)) + zero.reshape(along), -most, most)
    return Bytes(whole.astype(np.int8), scale, zero.astype(np.int8), axis)


def zeros_pay(weights: Floats, rounded: Callable[[bool], Floats]) -> bool:
    """Whether zero points take off so much of the error that their bytes are worth it: `rounded` are the weights with
    them or without."""
    without, by_zeros = (float(np.square(rounded(zeros) - weights, dtype=np.float64).sum()) for zeros in (False, True))
    return by_zeros < WORTH * without


def bias_as_whole(bias: Floats, scale: Floats) -> NDArray[Any] | None:
    """A bias in int32 by the scales of the sums; None where these are too small for it."""
    with np.errstate(over="ignore"):
        whole = np.rint(bias.astype(np.float64) / scale)
    return None if np.abs(whole).max(initial=0) > LARGEST_BIAS else whole.astype(np.int32)


# --- four bits ------------------------------------------------------------------------------------------------------


class FourBits(NamedTuple):
    """(numbers - zeros) * scales: `numbers` [K, N] from 0 to 15, `scales` and `zeros` [K / block, N]. Without zeros all
    are 8."""

    numbers: NDArray[np.uint8]
    scales: Floats
    zeros: NDArray[np.uint8] | None

    @property
    def block(self) -> int:
        return int(len(self.numbers) // len(self.scales))

    def real(self) -> Floats:
        """The weights that they stand for."""
        blocks, columns = self.scales.shape
        zeros = np.float32(MIDDLE) if self.zeros is None else self.zeros.astype(np.float32).reshape(blocks, 1, columns)
        steps = self.numbers.reshape(blocks, -1, columns).astype(np.float32) - zeros
        return (steps * self.scales.reshape(blocks, 1, columns)).reshape(self.numbers.shape)


def in_four_bits(weights: Floats, block: int, zeros: bool) -> FourBits:
    """Weights [K, N], K a multiple of `block`, with zero points of their own or without."""
    depth, columns = weights.shape
    numbers = np.empty((depth, columns), np.uint8)
    scales = np.empty((depth // block, columns), np.float32)
    middles = np.empty(scales.shape, np.uint8)
    step = max(1, AT_ONCE // depth)
    for first in range(0, columns, step):
        part = np.ascontiguousarray(weights[:, first : first + step]).reshape(depth // block, block, -1)
        best, scale, middle = _nearest(part, zeros)
        numbers[:, first : first + step] = best.reshape(depth, -1)
        scales[:, first : first + step], middles[:, first : first + step] = scale, middle
    return FourBits(numbers, scales, middles if zeros else None)


def _nearest(w: Floats, zeros: bool) -> tuple[NDArray[Any], Floats, NDArray[Any]]:
    """Of [blocks, block, N]: of several ranges of each block the one with the least squared error, whose scale is then
    the best for the numbers that it gave."""
    least_error = numbers = scales = middles = None
    for scale, middle in _ranges(w, zeros):
        rounded = _rounded(w, scale, middle)
        less = rounded - middle[:, None]
        squares = np.einsum("bkn,bkn->bn", less, less)
        fitted = np.einsum("bkn,bkn->bn", w, less) / np.where(squares > 0, squares, 1)
        scale = np.where((squares > 0) & (np.abs(fitted) >= np.finfo(np.float32).tiny), fitted, scale)
        off = less * scale[:, None] - w
        error = np.einsum("bkn,bkn->bn", off, off)
        if least_error is None or numbers is None or scales is None or middles is None:
            least_error, numbers, scales, middles = error, rounded, scale, middle
            continue
        better = error < least_error
        least_error, scales, middles = (
            np.where(better, a, b) for a, b in ((error, least_error), (scale, scales), (middle, middles))
        )
        np.copyto(numbers, rounded, where=better[:, None])
    assert numbers is not None and scales is not None and middles is not None
    return numbers.astype(np.uint8), scales.astype(np.float32), middles.astype(np.uint8)


def _ranges(w: Floats, zeros: bool) -> Iterator[tuple[Floats, Floats]]:
    """Scales and zero points of each block to try. Without zero points the number of the largest magnitude is -8
    steps, whatever its sign: there is one step more on that side."""
    low, high = np.minimum(w.min(axis=1), 0), np.maximum(w.max(axis=1), 0)
    for share in SHARES:
        if zeros:
            scale = _usable((high - low) * np.float32(share / MOST))
            yield scale, np.clip(np.rint(-low * np.float32(share) / scale), 0, MOST).astype(np.float32)
        else:
            largest = np.where(high > -low, high, low)
            yield _usable(largest * np.float32(-share / MIDDLE)), np.full(low.shape, MIDDLE, np.float32)


def _usable(scale: Floats) -> Floats:
    return np.where(np.abs(scale) < np.finfo(np.float32).tiny, np.float32(1), scale).astype(np.float32)


def _rounded(w: Floats, scale: Floats, middle: Floats) -> Floats:
    whole: Floats = np.rint(w / scale[:, None])
    whole += middle[:, None]
    np.clip(whole, 0, MOST, out=whole)
    return whole
