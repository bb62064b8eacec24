"""Seconds of moving what lies beyond the nearer caches: constants from where a network left them, and boundaries."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from modelc.target import Cache, Target

Floats = NDArray[np.float64]


def constant_seconds(size: int, target: Target, more: int = 0, cores: int = 1) -> float:
    """Seconds in which each of `cores` cores reads the same so many bytes of constants, `more` than they were before a
    rule changed them, from where the network left them since last time: the nearest cache beyond the second that they
    stay in, else memory."""
    return moving_seconds(size, _kept_in(target, more), target, cores)


def parted_seconds(size: int, share: Floats, target: Target, more: int = 0, cores: int = 1) -> Floats:
    """The same where each core reads a `share` [P] of its own: a cache is as fast for each of them, memory gives all
    together no more than if each read the whole."""
    cached = _holding(size, _kept_in(target, more)) is not None
    return constant_seconds(size, target, more, cores) * (share if cached else np.ones_like(share))


def stay_in(cache: Cache, target: Target, more: int = 0) -> bool:
    """Whether the constants of the network, and so many bytes `more`, are in `cache` from one run to the next."""
    return target.cold_bytes + more <= target.kept_bytes(cache)


def moving_seconds(size: int, caches: Sequence[Cache], target: Target, cores: int = 1) -> float:
    """Seconds in which each of `cores` cores reads the same `size` bytes from the nearest of `caches` that holds them,
    else from memory, which sends them once for all cores."""
    cache = _holding(size, caches)
    return size / (1e9 * (target.memory_gbs(cores) if cache is None else cache.bandwidth_gbs))


def _kept_in(target: Target, more: int) -> list[Cache]:
    """The caches beyond the second in which constants stay from one run to the next, innermost first."""
    return [c for c in target.caches[2:] if stay_in(c, target, more)]


def _holding(size: int, caches: Sequence[Cache]) -> Cache | None:
    """The nearest of `caches` that has room for so many bytes."""
    return next((c for c in caches if size <= c.bytes), None)
