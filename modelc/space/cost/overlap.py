"""What goes on at once: computing, and prefetching constants."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from modelc.target import Target

Seconds = TypeVar("Seconds", float, NDArray[np.float64])  # one, or an array of them


def overlapped(compute: Seconds, constant_bytes: int, target: Target) -> Seconds:
    """Seconds of `compute` while constants are prefetched from beyond the second-level cache: in a network they left
    it since last time."""
    far = (c.bandwidth_gbs for c in target.caches[2:] if constant_bytes <= c.bytes)
    memory: float = constant_bytes / (1e9 * next(far, target.memory_bandwidth_gbs))
    sharpness = target.cost.sharpness
    result: Seconds = (compute**sharpness + memory**sharpness) ** (1 / sharpness)
    return result
