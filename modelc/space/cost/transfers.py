"""What passes from one core's caches to another's: what a core reads that another wrote.

It comes from farther away than what a core wrote itself, and where cores have last caches of their own (clusters of
cores on one chip, sockets) from much farther. Kernels that go over the rows of their maps have the same stretch of them
in the same thread (runtime/modelc_pool.c): so a map is taken to have been written, and to be read later, by cores that
have one stretch of its rows each. What a core reads of another's stretch, and what it writes there, passes between the
two.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from modelc.target import Target

Bytes = TypeVar("Bytes", float, NDArray[np.float64])  # one number, or an array of them


def of_others(size: Bytes, cores: int) -> Bytes:
    """Of so many bytes that one core alone touches anywhere, those in the stretches of others."""
    found: Bytes = size * (cores - 1) / cores
    return found


def of_all(size: float, cores: int, target: Target) -> float:
    """Of so many bytes that every core reads, those that each gets from others: it comes once, and is in the last cache
    then, if they share that."""
    others = of_others(size, cores)
    return min(others, size / cores) if target.caches[-1].shared else others


def transfer_seconds(size: float | NDArray[np.float64], target: Target) -> NDArray[np.float64]:
    """Seconds in which one core gets so many bytes from others: of no more than the last cache holds, for the rest has
    gone to memory."""
    last = target.caches[-1]
    return np.asarray(np.minimum(size, last.bytes) / last.line * target.cost.transfer_cycles / target.hertz, np.float64)
