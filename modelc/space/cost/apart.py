"""Rows that lie apart, as caches take them: a large power of two apart they fall into few sets; and many rows lie in
more pages than a core knows the addresses of at once."""

from __future__ import annotations

import numpy as np

from modelc.ir.expr import DTYPES
from modelc.space.analysis.footprint import Floats, Footprint, Ints
from modelc.space.nest.ahead import far_computed, far_results
from modelc.space.sketches.tiled import Tiled
from modelc.target import Cache, CostParameters


def conflicting_lines(tiled: Tiled, rows: Ints) -> Floats:
    """Lines of the rows of a register tile that their sets in L1 have no way for (rows 4096 bytes apart fall into one):
    every step reads a line of each."""
    cache = tiled.target.caches[0]
    tiles, back = np.unique(rows, axis=0, return_inverse=True)
    total = np.zeros(len(tiles))
    for read in tiled.reads:
        strides = [read.strides[n] for n in tiled.inside]
        if read.load.buffer in tiled.task.constants or None in strides or not any(strides):
            continue
        itemsize = DTYPES[tiled.task.buffer(read.load.buffer).dtype].itemsize
        for p, tile in enumerate(tiles):
            at = np.zeros(1, np.int64)
            for count, step in zip(tile, strides, strict=True):
                at = (at[:, None] + np.arange(count if step else 1) * (step or 0)).reshape(-1)
            lines = np.unique(at * itemsize // cache.line)
            held = np.bincount(lines % sets(cache), minlength=sets(cache))
            total[p] += np.maximum(0, held - cache.ways - 1).sum()
    return np.asarray(total[back.reshape(-1)], np.float64)


def crowding(found: Footprint, cache: Cache) -> Floats:
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


def all_fetched(tiled: Tiled) -> bool:
    """Whether what lies beyond the second-level cache is fetched ahead (ahead.py): rows that are read, or copied, and
    results, while registers are left over."""
    extents = dict.fromkeys(tiled.ranges, 1) | dict.fromkeys(tiled.inside, 2) | {tiled.vector: tiled.lanes}
    around = extents | {i.name: i.extent for i in tiled.anchor.reduction}
    near = tiled.target.second.bytes
    rows, results = (f(tiled.task, tiled.anchor, e, near) for f, e in ((far_computed, around), (far_results, extents)))
    return bool(rows) and bool(results)


def sets(cache: Cache) -> int:
    return max(1, cache.bytes // cache.line // cache.ways)
