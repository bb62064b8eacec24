"""Cache-set conflicts: rows a large power of two apart fall into few sets of a cache; many rows lie in more pages than
a core knows the addresses of at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import numpy as np

from modelc.space.analysis.footprint import Floats, Footprint, Ints
from modelc.target import Cache, CostParameters


def conflicting_lines(strides: Sequence[int], tiles: Ints, cache: Cache, written: Sequence[int] = ()) -> Floats:
    """Lines of the rows of register tiles, `strides` bytes apart, in sets of `cache` that have not as many ways (rows
    4096 bytes apart fall into one): every step reads a line of each, and finds that the others have taken its place
    [P]. `written`: the strides of results whose lines are brought at the same time, to the sets of what is read for
    them: buffers begin at pages, or nearly."""
    found, back = np.unique(tiles, axis=0, return_inverse=True)
    known = (tuple(strides), tuple(written), cache)
    total = np.array([_conflicting(tuple(map(int, tile)), *known) for tile in found], np.float64)
    return total[back.reshape(-1)]


@lru_cache(1 << 16)
def _conflicting(tile: tuple[int, ...], strides: tuple[int, ...], written: tuple[int, ...], cache: Cache) -> int:
    rows = [prod(count for count, step in zip(tile, s, strict=False) if step) for s in (strides, written) if s]
    if sum(rows) <= cache.ways + 1:
        return 0
    lines = np.concatenate([_lines(tile, s, cache.line) for s in (strides, written) if s])
    held = np.bincount(lines % sets(cache), minlength=sets(cache))
    return int(held[held > cache.ways + 1].sum())


def _lines(tile: tuple[int, ...], strides: tuple[int, ...], line: int) -> Ints:
    """The lines of rows `strides` bytes apart, from the first one on."""
    at = np.zeros(1, np.int64)
    for count, step in zip(tile, strides, strict=False):
        at = (at[:, None] + np.arange(count if step else 1) * step).reshape(-1)
    return np.unique(at // line)


def conflicting_bytes(found: Footprint, cache: Cache) -> Floats:
    """Bytes of a cache that a footprint takes beyond its own lines: as if all sets had as many of them as those that it
    falls into, by what divides all distances between its runs."""
    way = sets(cache) * cache.line
    step = np.gcd(found.step, way)
    places = np.minimum(found.runs, way // step)  # where runs begin in a way of the cache
    length = found.lines / found.runs
    used = np.clip(
        places * np.minimum(length, np.ceil(step / cache.line)), np.minimum(length, sets(cache)), sets(cache)
    )
    times = found.lines / used / np.maximum(1.0, found.lines / sets(cache))
    return np.asarray(found.lines * cache.line * (times - 1))


def waiting_cycles(cost: CostParameters, found: Footprint, times: Floats, lines: Floats) -> Floats:
    """Cycles that arithmetic on what is read where it lies, not from a copy, waits for it: register tiles read `found`
    so many times, and `lines` in all come into L1."""
    pages = found.runs * np.minimum(1.0, found.step / cost.page_bytes)
    return np.asarray(
        cost.row_cycles * found.apart * lines + cost.page_cycles * (pages > cost.pages) * times * found.runs
    )


def sets(cache: Cache) -> int:
    return max(1, cache.bytes // cache.line // cache.ways)
