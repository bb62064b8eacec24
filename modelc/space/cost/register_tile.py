"""Register tiles of a contraction or a window: what they load, hold and cost, for populations of them."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import prod

import numpy as np

from modelc.ir.expr import DTYPES
from modelc.space.analysis.access import Access, flat_index, pieces, stride
from modelc.space.analysis.distinct import distinct_rows
from modelc.space.analysis.footprint import Floats, Ints
from modelc.space.cost.conflicts import conflicting_lines
from modelc.space.cost.step import chain_cycles, epilogue_cycles, exposed, step_cycles
from modelc.space.nest.prefetch import computed
from modelc.space.tiling.operations import cast_before, operations, shared_operations
from modelc.space.tiling.tiled import Bools, Tiled


def registers(tiled: Tiled, rows: Ints, vectors: Ints) -> Ints:
    """Vector registers: accumulators, the vectors that are reused across rows, and two for the next loads, three beside
    many vectors (with fewer, LLVM spills accumulators). A window without a broadcast operand keeps its elements for its
    next taps as well, and its weights."""
    accumulators = np.asarray(np.prod(rows, axis=1) * vectors, np.int64)
    if tiled.sliding:
        return 3 * accumulators + 2
    reused = any(r.strides[n] == 0 for r in tiled.vectors() for n in tiled.inside)
    return np.asarray(accumulators + (vectors if reused else 0) + 2 + (vectors > 2), np.int64)


def fits(tiled: Tiled, rows: Ints, vectors: Ints) -> Bools:
    """Which register tiles fit in the registers [P]."""
    return tiled.unit.holds(tiled, rows, vectors)


def hold_vectors(tiled: Tiled, rows: Ints, vectors: Ints) -> Bools:
    """The same where a unit is a vector; the smallest tile counts as fitting."""
    least = (np.prod(rows, axis=1) == 1) & (vectors == 1)
    return np.asarray((registers(tiled, rows, vectors) <= tiled.target.vector.registers) | least, np.bool_)


def loads(tiled: Tiled, rows: Ints, vectors: Ints) -> tuple[Floats, Floats]:
    """(vectors, scalars) that a register tile of vectors loads at each reduction step."""
    wide, narrow = np.zeros(len(vectors)), np.zeros(len(vectors))
    written_out = tiled.sliding and tiled.whole_window
    for read in tiled.reads:
        if written_out and None not in read.strides.values():
            times = _of_window(tiled, read, rows, vectors)
        else:
            moving = [k for k, n in enumerate(tiled.inside) if read.strides[n] != 0]
            times = np.prod(rows[:, moving], axis=1)
        if read.strides[tiled.vector] != 0:
            wide = wide + times * vectors * pieces(read.strides[tiled.vector])
        else:
            narrow = narrow + times
    if tiled.sliding and not written_out:
        wide = wide / 2  # half of what a tap needs was loaded for the one before
    return wide, narrow


def _of_window(tiled: Tiled, read: Access, rows: Ints, vectors: Ints) -> Floats:
    """Loads at each step of a window that is written out whole: what several taps and rows read is loaded once for a
    register tile, and weights once for all of them where registers are left over."""
    taps = tuple((read.strides[n] or 0, tiled.ranges[n]) for n in tiled.reduction)
    strides = [read.strides[n] or 0 for n in tiled.inside]
    tiles = [tuple(counts) for counts in rows.tolist()]
    distinct = {counts: _distinct((*taps, *zip(strides, counts, strict=True))) for counts in set(tiles)}
    vectors_read = np.array([distinct[counts] for counts in tiles], np.float64) / tiled.steps
    if read.load.buffer not in tiled.task.constants:
        return vectors_read
    kept = registers(tiled, rows, vectors) + tiled.steps * vectors <= tiled.target.vector.registers
    return np.where(kept, 0.0, vectors_read)


@lru_cache(4096)
def _distinct(walks: tuple[tuple[int, int], ...]) -> int:
    """Distinct elements that nested loops read, each loop given as (stride, steps)."""
    places = {0}
    for apart, count in walks:
        places = {place + apart * k for place in places for k in range(count)}
    return len(places)


def vector_step(tiled: Tiled, rows: Ints, vectors: Ints) -> Floats:
    """Cycles of one reduction step where a unit is a vector."""
    target = tiled.target
    wide, narrow = loads(tiled, rows, vectors)
    accumulators = np.prod(rows, axis=1) * vectors
    every, (by_vector, by_row) = operations(tiled.task, tiled.anchor, target.cost), _shared_operations(tiled)
    done = accumulators * max(0.0, every - by_vector - by_row) + vectors * by_vector
    return step_cycles(
        target.cost,
        (done + np.prod(rows, axis=1) * (by_row + _spread(tiled))) / target.fma_ports,
        wide,
        narrow,
        chain_cycles(target.cost, target.fma_latency, tiled.steps * accumulators),
        spills=np.maximum(0, registers(tiled, rows, vectors) - target.vector.registers),
        conflicts=_conflicts(tiled, rows),
    )


@lru_cache(256)
def _shared_operations(tiled: Tiled) -> tuple[float, float]:
    """Operations of one reduction step that are computed once for all rows of a register tile (unpacking weights), and
    once for all vectors of a row (shifting a scalar before it is multiplied)."""
    anchor, cost = tiled.anchor, tiled.target.cost
    by_vector = {r.load for r in tiled.reads if not any(r.strides[n] for n in tiled.inside)}
    by_row = {r.load for r in tiled.reads if r.strides[tiled.vector] == 0}
    common = shared_operations(anchor, cost, by_vector) if tiled.inside else 0.0
    return common, shared_operations(anchor, cost, by_row)


@lru_cache(256)
def _spread(tiled: Tiled) -> float:
    """Operations of one step and row until all lanes have what was computed of its scalar: one from memory is loaded
    into them."""
    scalars = [r.load for r in tiled.reads if r.strides[tiled.vector] == 0 and any(r.strides.values())]
    if len(tiled.anchor.body) > 1 or not any(cast_before(tiled.anchor, load) for load in scalars):
        return 0.0
    return tiled.target.cost.spread_operations


def _conflicts(tiled: Tiled, rows: Ints) -> Floats:
    """Lines at each step that their sets in L1 have no way for, of what lies as it was computed."""
    total = np.zeros(len(rows))
    if tiled.whole_window:
        taps = np.array([tiled.ranges[n] for n in tiled.reduction], np.int64)
        tiles = np.column_stack([rows, np.broadcast_to(taps, (len(rows), len(taps)))])
        for apart, written in _window_strides(tiled):
            total += conflicting_lines(apart, tiles, tiled.target.caches[0], written)
        row = prod(tiled.ranges[n] for n in tiled.reduction[-1:])
        return total / row  # what the taps of a row share is loaded once for them
    for read in tiled.reads:
        strides = [read.strides[n] for n in tiled.inside]
        if read.load.buffer in tiled.task.constants or None in strides or not any(strides):
            continue
        itemsize = DTYPES[tiled.task.buffer(read.load.buffer).dtype].itemsize
        total += conflicting_lines([(s or 0) * itemsize for s in strides], rows, tiled.target.caches[0])
    return total


@lru_cache(256)
def _window_strides(tiled: Tiled) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """How many bytes apart the rows of a register tile and its taps lie, in each operand that was computed, where it is
    not in a copy but as others left it; and the rows of the results that belong to them."""
    task, pairs = tiled.task, []
    for name, access in computed(task, tiled.anchor).items():
        flat, itemsize = flat_index(task.buffer(name), access, tiled.ranges), DTYPES[task.buffer(name).dtype].itemsize
        strides = [stride(flat, n) for n in (*tiled.inside, *tiled.reduction)]
        written = [tiled.strides.get(n) for n in tiled.inside]
        if None not in strides and None not in written:
            pairs.append((tuple((s or 0) * itemsize for s in strides), tuple((s or 0) * itemsize for s in written)))
    return tuple(pairs)


def around_vectors(tiled: Tiled, rows: Ints, vectors: Ints) -> Floats:
    """Cycles around one register tile of vectors: its epilogue, stores of single elements, and loop control as far as
    no other tile runs beside it."""
    cost, accumulators = tiled.target.cost, (np.prod(rows, axis=1) * vectors).astype(np.float64)
    control = cost.tile_cycles * exposed(cost, instructions(tiled, rows, vectors))
    epilogue = epilogue_cycles(cost, accumulators, tiled.epilogue_cycles + tiled.scattered)
    return np.asarray(control + epilogue)


def instructions(tiled: Tiled, rows: Ints, vectors: Ints) -> Floats:
    """Multiply-adds and loads of one register tile over all reduction steps."""
    wide, narrow = loads(tiled, rows, vectors)
    return np.asarray(tiled.steps * (np.prod(rows, axis=1) * vectors + wide + narrow), np.float64)


def kernel_cycles(tiled: Tiled, rows: Ints, vectors: Ints) -> Floats:
    """Cycles of all register tiles of the Task, whole ones and those at the ends of rows and vectors, with what
    surrounds each: zeroing, the epilogue, loop control [P]. Worked out once for each size."""
    sizes, back = distinct_rows(np.column_stack([rows, vectors]))
    keys, cached = [size.tobytes() for size in sizes], tiled.cycles
    if new := [k for k, key in enumerate(keys) if key not in cached]:
        cycles = _all_cycles(tiled, sizes[new, :-1], sizes[new, -1])
        cached.update(zip((keys[k] for k in new), cycles.tolist(), strict=True))
    return np.array([cached[key] for key in keys], np.float64)[back]


def _all_cycles(tiled: Tiled, rows: Ints, vectors: Ints) -> Floats:
    steps = prod(-(-tiled.ranges[n] // prod(tiled.unit.tile(n))) for n in tiled.reduction)
    outer = prod(tiled.ranges[n] for n in tiled.ranges if n in (*tiled.batch, *tiled.rows) and n not in tiled.inside)
    parts: list[list[tuple[Ints, Ints]]] = []  # for each dimension of the register tile: (times, size), twice
    for k, n in enumerate(tiled.inside):
        size = rows[:, k]
        full, left = np.divmod(np.int64(tiled.ranges[n]), size)
        parts.append([(full, size), ((left > 0).astype(np.int64), left)])
    full, left = np.divmod(np.int64(tiled.ranges[tiled.vector]), vectors * tiled.lanes)
    parts.append([(full, vectors), ((left > 0).astype(np.int64), -(-left // tiled.lanes))])
    total = np.zeros(len(vectors))
    for choice in product(*parts):
        times = np.prod([t for t, _ in choice], axis=0)
        if not times.any():
            continue
        counts = np.column_stack([s for _, s in choice[:-1]]) if tiled.inside else rows
        tile = np.maximum(counts, 1), np.maximum(choice[-1][1], 1)
        cycles = steps * tiled.unit.step(tiled, *tile) + tiled.unit.around(tiled, *tile)
        total = total + np.where(times > 0, times * cycles, 0.0)
    return total * outer
