"""What goes on at once: computing, and moving what lies beyond the nearer caches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from modelc.target import Cache, Target

Seconds = TypeVar("Seconds", float, NDArray[np.float64])  # one, or an array of them


def overlapped(compute: Seconds, constant_bytes: int, target: Target) -> Seconds:
    """Seconds of `compute` while constants are prefetched."""
    return beside(compute, constant_seconds(constant_bytes, target), target)


def constant_seconds(size: int, target: Target) -> float:
    """Seconds in which one core reads so many bytes of constants from where a network left them since last time: the
    nearest cache beyond the second that holds all of its constants, else memory."""
    caches = [cache for cache in target.caches[2:] if target.cold_bytes <= cache.bytes]
    return moving_seconds(size, caches, target)


def beside(compute: Seconds, moving: float | Seconds, target: Target) -> Seconds:
    """Seconds of computing and of moving what is prefetched meanwhile: the larger, and a little of the smaller."""
    sharpness = target.cost.sharpness
    result: Seconds = (compute**sharpness + moving**sharpness) ** (1 / sharpness)
    return result


def moving_seconds(size: int, caches: Sequence[Cache], target: Target) -> float:
    """Seconds in which one core reads so many bytes from the nearest of `caches` that holds them, else from memory."""
    bandwidth = next((c.bandwidth_gbs for c in caches if size <= c.bytes), target.memory_bandwidth_gbs)
    return size / (1e9 * bandwidth)
