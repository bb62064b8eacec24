"""Which loop goes to threads, and from how much work on."""

from __future__ import annotations

from collections.abc import Mapping

from modelc.target import Target

SERIAL_POINTS = 1 << 13  # work below this many points is not worth waking a thread for
CHUNKS_PER_CORE = 4  # a parallel loop has at least this many iterations per core where the extent allows it


def parallel_first(loops: list[str], trips: Mapping[str, int], target: Target) -> list[str]:
    """`loops` with the one in front whose iterations go to threads: of those in `trips` the outermost with enough for
    all, else the longest."""
    first = next((n for n in trips if trips[n] >= 2 * target.cores), None) or max(trips, key=trips.__getitem__)
    return [first, *(n for n in loops if n != first)]
