"""What goes on at once: computing, and moving what lies beyond the nearer caches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from modelc.target import Cache, Target

Seconds = TypeVar("Seconds", float, NDArray[np.float64])  # one, or an array of them


def overlapped(compute: Seconds, constant_bytes: int, target: Target) -> Seconds:
    """Seconds of `compute` while constants are prefetched from beyond the second-level cache: in a network they left
    it since last time."""
    return beside(compute, moving_seconds(constant_bytes, target.caches[2:], target), target)


def beside(compute: Seconds, moving: float | Seconds, target: Target) -> Seconds:
    """Seconds of computing and of moving what is prefetched meanwhile: the larger, and a little of the smaller."""
    sharpness = target.cost.sharpness
    result: Seconds = (compute**sharpness + moving**sharpness) ** (1 / sharpness)
    return result


def moving_seconds(size: int, caches: Sequence[Cache], target: Target) -> float:
    """Seconds in which one core reads so many bytes from the nearest of `caches` that holds them, else from memory."""
    bandwidth = next((c.bandwidth_gbs for c in caches if size <= c.bytes), target.memory_bandwidth_gbs)
    return size / (1e9 * bandwidth)
