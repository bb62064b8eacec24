"""Weights as bytes: symmetric, a scale for each output channel."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

LARGEST = 127  # of a weight, where instructions multiply all bytes
LARGEST_BIAS = 1 << 30


class Bytes(NamedTuple):
    """`whole * scale` by channel is about the weights."""

    whole: NDArray[np.int8]
    scale: NDArray[np.float32]


def as_bytes(weights: NDArray[np.float32], axis: int, most: int = LARGEST) -> Bytes:
    """Weights as int8 from -most to most, their channels along `axis`."""
    others = tuple(k for k in range(weights.ndim) if k != axis)
    largest = np.abs(weights).max(axis=others)
    scale = (largest / np.float32(most)).astype(np.float32)
    scale[scale < np.finfo(np.float32).tiny] = np.float32(1)
    along = [-1 if k == axis else 1 for k in range(weights.ndim)]
    whole = np.clip(np.rint(weights / scale.reshape(along)), -most, most).astype(np.int8)
    return Bytes(whole, scale)


def bias_as_whole(bias: NDArray[np.float32], scale: NDArray[np.float32]) -> NDArray[Any] | None:
    """A bias in int32 by the scales of the sums; None where these are too small for it."""
    with np.errstate(over="ignore"):
        whole = np.rint(bias.astype(np.float64) / scale)
    return None if np.abs(whole).max(initial=0) > LARGEST_BIAS else whole.astype(np.int32)
