"""Weights as bytes, a scale for each output channel: symmetric, or asymmetric, with a zero point for each too."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

LARGEST = 127  # of a weight, where instructions multiply all bytes
LARGEST_BIAS = 1 << 30


class Bytes(NamedTuple):
    """`(whole - zero) * scale` by channel, the dimension `axis`, is about the weights."""

    whole: NDArray[np.int8]
    scale: NDArray[np.float32]
    zero: NDArray[np.int8]
    axis: int

    def real(self) -> NDArray[np.float32]:
        """The weights that they stand for."""
        along = [-1 if k == self.axis else 1 for k in range(self.whole.ndim)]
        steps = self.whole.astype(np.float32) - self.zero.astype(np.float32).reshape(along)
        return (steps * self.scale.reshape(along)).astype(np.float32)


def as_bytes(weights: NDArray[np.float32], axis: int, most: int = LARGEST, asymmetric: bool = False) -> Bytes:
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


def bias_as_whole(bias: NDArray[np.float32], scale: NDArray[np.float32]) -> NDArray[Any] | None:
    """A bias in int32 by the scales of the sums; None where these are too small for it."""
    with np.errstate(over="ignore"):
        whole = np.rint(bias.astype(np.float64) / scale)
    return None if np.abs(whole).max(initial=0) > LARGEST_BIAS else whole.astype(np.int32)
