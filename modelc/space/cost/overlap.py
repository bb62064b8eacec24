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


def constant_seconds(size: int, target: Target, more: int = 0, cores: int = 1) -> float:
    """Seconds in which each of `cores` cores reads the same so many bytes of constants, `more` than they were before a
    rule changed them, from where the network left them since last time: the nearest cache beyond the second that they
    stay in, else memory."""
    return moving_seconds(size, [c for c in target.caches[2:] if stay_in(c, target, more)], target, cores)


def parted_seconds(size: int, share: Seconds, target: Target, more: int = 0, cores: int = 1) -> Seconds:
    """The same where each core reads a `share` of its own: less from a cache; memory gives no more than before."""
    whole = constant_seconds(size, target, more, cores)
    from_memory = not any(stay_in(c, target, more) and size <= c.bytes for c in target.caches[2:])
    return whole + 0 * share if from_memory else whole * share


def stay_in(cache: Cache, target: Target, more: int = 0) -> bool:
    """Whether the constants of the network, and so many bytes `more`, are in `cache` from one run to the next: other
    things pass through it in between, and others share it."""
    return target.cold_bytes + more <= cache.bytes * target.cost.between_share


def beside(compute: Seconds, moving: float | Seconds, target: Target) -> Seconds:
    """Seconds of computing and of moving what is prefetched meanwhile: the larger, and a little of the smaller."""
    sharpness = target.cost.sharpness
    result: Seconds = (compute**sharpness + moving**sharpness) ** (1 / sharpness)
    return result


def moving_seconds(size: int, caches: Sequence[Cache], target: Target, cores: int = 1) -> float:
    """Seconds in which each of `cores` cores reads the same so many bytes from the nearest of `caches` that holds them,
    else from memory, whence they come once for all."""
    bandwidth = next((c.bandwidth_gbs for c in caches if size <= c.bytes), target.memory_gbs(cores))
    return size / (1e9 * bandwidth)
