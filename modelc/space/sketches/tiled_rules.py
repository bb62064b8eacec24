"""The knobs that rules choose for a tiled Task: the register tile of least cost, chunks by the size of caches, the
parallel loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from modelc.ir.loop import Loop
from modelc.space.analysis.footprint import Ints
from modelc.space.analysis.loops import trips
from modelc.space.cost.register_tile import fits, kernel_cycles
from modelc.space.tiling.parallel import parallel_first
from modelc.space.tiling.tiled import MAX_VECTORS, Tiled, TiledKnobs

Rows = tuple[tuple[str, int], ...]  # row iterator -> rows of the register tile, outermost first


def default_knobs(tiled: Tiled) -> TiledKnobs:
    """The knobs that the rules choose."""
    rows, vectors, _ = best_kernel(tiled)
    chunk, by_rows = tiled.unit.chunk(tiled, *rows[0], vectors) if rows else (1, False)
    knobs = TiledKnobs(rows, vectors, chunk, by_rows, None, tiled.usual_steps)
    return replace(knobs, parallel=parallel_loop(tiled, tiled.macro_loops(knobs), tiled.tiles(knobs)))


def best_kernel(tiled: Tiled) -> tuple[Rows, int, float]:
    """(rows, vectors, cycles over the whole iteration space) of the register tile with the fewest; of equals the one
    with more vectors."""
    rows, vectors = kernels(tiled)
    cycles = kernel_cycles(tiled, rows, vectors)
    best = int(np.lexsort((-vectors, cycles))[0])
    return tuple(zip(tiled.inside, map(int, rows[best]), strict=True)), int(vectors[best]), float(cycles[best])


def chunks(tiled: Tiled) -> list[int]:
    """Sizes of a chunk worth trying: doublings and divisors of the first row iterator, and all of it."""
    if not tiled.inside:
        return [1]
    extent = tiled.ranges[tiled.inside[0]]
    doublings = {1 << k for k in range(extent.bit_length())}
    divisors = {d for d in range(1, min(extent, 64) + 1) if extent % d == 0}
    return sorted({*doublings, *divisors, *(extent // d for d in divisors), extent})


def kernels(tiled: Tiled) -> tuple[Ints, Ints]:
    """(rows [P x row iterators], vectors [P]) of the register tiles that registers hold: several rows of the outer
    iterator only over all of the inner one."""
    most = min(MAX_VECTORS, -(-tiled.ranges[tiled.vector] // tiled.lanes))
    counts = [tiled.unit.row_counts(tiled, n) for n in tiled.inside]
    tiles: list[tuple[int, ...]] = list(product(*counts[:1]))
    if len(counts) > 1:
        outer, inner = counts
        whole = [c for c in inner if c >= tiled.ranges[tiled.inside[1]]]
        tiles = [(n, c) for n in outer for c in (inner if n == 1 else whole)]
    candidates = np.array([(*tile, v) for v in range(1, most + 1) for tile in tiles], np.int64)
    rows, vectors = candidates[:, :-1], candidates[:, -1]
    held = fits(tiled, rows, vectors)
    return rows[held], vectors[held]


def parallel_loop(tiled: Tiled, macro: Sequence[Loop], tiles: Mapping[str, tuple[int, ...]]) -> Loop | None:
    """The loop whose iterations go to threads: the outermost with enough of them, else the longest; None where the
    work is small."""
    if tiled.is_small:
        return None
    counts = {m: trips(m, tiled.ranges, tiles) for m in tiled.for_threads(macro)}
    best = parallel_first(list(counts), counts, tiled.target)[0] if counts else None
    return best if best is not None and counts[best] > 1 else None
