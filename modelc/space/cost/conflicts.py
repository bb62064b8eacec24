"""Cache-set conflicts: rows a large power of two apart fall into few sets of a cache; many rows lie in more pages than
a core knows the addresses of at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import numpy as np

from modelc.space.analysis.distinct import distinct_rows
from modelc.space.analysis.footprint import Floats, Footprint, Ints
from modelc.target import Cache, CostParameters


def conflicting_lines(strides: Sequence[int], tiles: Ints, cache: Cache, written: Sequence[int] = ()) -> Floats:
    """Lines of the rows of register tiles, `strides` bytes apart, in sets of `cache` that have not as many ways (rows
    4096 bytes apart fall into one): every step reads a line of each, and finds that the others have taken its place
    [P]. `written`: the strides of results whose lines are brought at the same time, to the sets of what is read for
    them: buffers begin at pages, or nearly."""
    distinct, back = distinct_rows(tiles)
    fixed = (tuple(strides), tuple(written), cache)
    total = np.array([_conflicting(tuple(map(int, tile)), *fixed) for tile in distinct], np.float64)
    return total[back]


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


def conflicting_bytes(touched: Footprint, cache: Cache) -> Floats:
    """Bytes of a cache that a footprint occupies beyond its own lines [P]: the greatest common divisor of the distances
    between its runs limits the sets that it maps to, and every set is taken to be as full as these."""
    way = sets(cache) * cache.line
    step = np.gcd(touched.step, way)
    places = np.minimum(touched.runs, way // step)  # where runs begin in a way of the cache
    length = touched.lines / touched.runs
    used = np.clip(
        places * np.minimum(length, np.ceil(step / cache.line)), np.minimum(length, sets(cache)), sets(cache)
    )
    times = touched.lines / used / np.maximum(1.0, touched.lines / sets(cache))
    return np.asarray(touched.lines * cache.line * (times - 1))


def waiting_cycles(cost: CostParameters, touched: Footprint, lines: Floats) -> Floats:
    """Cycles that arithmetic waits for an operand that is read in place, not from a copy [P]: register tiles read
    `touched`, and `lines` lines enter L1."""
    return np.asarray(cost.row_cycles * touched.apart * lines)


def paging_cycles(cost: CostParameters, touched: Footprint, times: Floats) -> Floats:
    """Cycles that arithmetic waits for the addresses of pages [P], where register tiles read `touched` `times` times: a
    row in each page, of more than are known at once."""
    pages = touched.runs * np.minimum(1.0, touched.step / cost.page_bytes)
    return np.asarray(cost.page_cycles * (pages > cost.pages) * times * touched.runs)


def aliased_cycles(cost: CostParameters, touched: Footprint, step: Ints, times: Floats) -> Floats:
    """Cycles that windows wait for what they read where the register tile before just stored [P]: a load whose address
    is that of an earlier store but for its page seems to depend on it, and comes again. So many `times` one register
    tile follows another in a panel, whose rows lie `step` bytes apart (0: there is one), and reads `touched`."""
    same = np.where(step > 0, np.gcd(step, int(cost.page_bytes)), 0) / cost.page_bytes
    return np.asarray(cost.alias_cycles * same * times * touched.lines)


def sets(cache: Cache) -> int:
    return max(1, cache.bytes // cache.line // cache.ways)
