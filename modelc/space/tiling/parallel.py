"""Which loop goes to threads, from how much work on, and how evenly."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from modelc.ir.loop import Loop
from modelc.target import Target

SERIAL_POINTS = 1 << 13  # work below this many points is not worth waking a thread for
CHUNKS_PER_CORE = 4  # a parallel loop has at least this many iterations per core where the extent allows it


def busiest_share(extent: ArrayLike, tile: ArrayLike, cores: int) -> NDArray[np.float64]:
    """The part of the work that the busiest of `cores` cores has, where a parallel loop covers `extent` values of its
    iterator, `tile` in each iteration: iterations go to cores in as many chunks as there may be, and the last is cut
    off at the end. Arguments and result are broadcast to each other."""
    extent, tile = np.asarray(extent, np.int64), np.asarray(tile, np.int64)
    trips = -(-extent // tile)
    chunks = np.minimum(trips, cores * CHUNKS_PER_CORE)
    most = -(-chunks // cores)  # of one core
    left_out = np.where((trips == chunks) & (chunks % cores == 1 % cores), trips * tile - extent, 0)
    values = np.where(trips == chunks, most * tile - left_out, extent * most / chunks)
    return np.asarray(np.minimum(1.0, values / extent), np.float64)


def parallel_first(loops: list[Loop], trips: Mapping[Loop, int], target: Target) -> list[Loop]:
    """`loops` with the one in front whose iterations go to threads: of those in `trips` the outermost with enough for
    all, else the longest."""
    many = (loop for loop in trips if trips[loop] >= 2 * target.cores)
    first = next(many, None) or max(trips, key=trips.__getitem__)
    return [first, *(loop for loop in loops if loop != first)]
