"""The analytic cost of tiled Tasks: a roofline over every memory level, for a population of knob vectors at once.

Nothing is lowered and nothing is measured: what a candidate costs follows from its micro-kernel (registers, ports,
latency, loads), from the footprints of its tiles at every cache level, and from how its loops divide among cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from modelc.space.analysis.access import pieces
from modelc.space.analysis.footprint import Floats, Footprint, Ints, footprint, traffic
from modelc.space.cost.apart import conflicting_lines, crowding, waiting_cycles
from modelc.space.cost.model import Bools, Model, Population
from modelc.space.sketches.maps import CHUNKS_PER_CORE
from modelc.space.sketches.tiled import MAX_VECTORS, MOST_COPIES, Tiled, TiledKnobs


@dataclass(frozen=True)
class Estimate:
    """What each member of a population costs; everything of one core but `seconds`. All [P], except `traffic`."""

    seconds: Floats
    compute: Floats  # seconds of arithmetic, loads and loop control
    prologue: Floats  # seconds of copies
    memory: Floats  # [P x levels] seconds of each level's bandwidth: what leaves L2, L3, ..., memory
    traffic: Floats  # [P x levels] bytes that enter L1, L2, ...
    registers: Ints
    accumulators: Ints
    efficiency: Floats  # multiply-adds that count / those that vector units could have done
    balance: Floats  # mean work of a core / most work of a core
    misses: Floats  # of L1, after prefetching


# --- knobs --------------------------------------------------------------------------------------------------------


def knobs_at(model: Model, population: Population, p: int) -> TiledKnobs:
    """Member `p` as knobs."""
    rows = tuple((n, int(c)) for n, c in zip(model.tiled.inside, population.rows[p], strict=True))
    parallel = model.parallel[int(population.parallel[p])]
    return TiledKnobs(rows, int(population.vectors[p]), int(population.chunk[p]), bool(population.by_rows[p]), parallel)


def population_of(model: Model, knobs: Sequence[TiledKnobs]) -> Population:
    """Knobs as a population. A parallel loop that is none of the model's counts as its first."""
    inside = model.tiled.inside
    place = {loop: k for k, loop in enumerate(model.parallel)}
    return Population(
        np.array([[dict(k.rows)[n] for n in inside] for k in knobs], np.int64).reshape(len(knobs), len(inside)),
        np.array([k.vectors for k in knobs], np.int64),
        np.array([k.chunk for k in knobs], np.int64),
        np.array([k.by_rows for k in knobs], np.bool_),
        np.array([place.get(k.parallel, 0) for k in knobs], np.int64),
    )


def register_tiles(model: Model) -> Ints:
    """Every register tile that fits in the registers, as [tiles x (row iterators + 1)]: rows, then vectors."""
    tiled = model.tiled
    limit = tiled.target.vector.registers
    most = min(MAX_VECTORS, -(-tiled.ranges[tiled.vector] // tiled.lanes))
    extents = [range(1, min(tiled.ranges[n], limit) + 1) for n in tiled.inside]
    tiles = np.array(list(product(*extents, range(1, most + 1))), np.int64)
    return tiles[fits(model, tiles[:, :-1], tiles[:, -1])]


def chunks(model: Model) -> list[int]:
    """Sizes of a chunk worth trying: doublings and divisors of the first row iterator, and all of it."""
    if not model.tiled.inside:
        return [1]
    extent = model.tiled.ranges[model.tiled.inside[0]]
    doublings = {1 << k for k in range(extent.bit_length())}
    divisors = {d for d in range(1, min(extent, 64) + 1) if extent % d == 0}
    return sorted({*doublings, *divisors, *(extent // d for d in divisors), extent})


def every_candidate(model: Model) -> Population:
    """The whole space: register tiles x chunks x orders x parallel loops."""
    tiles, sizes = register_tiles(model), np.array(chunks(model), np.int64)
    orders = np.array(list(product((False, True), range(len(model.parallel)))), np.int64)
    t, s, o = (x.reshape(-1) for x in np.indices((len(tiles), len(sizes), len(orders))))
    found = Population(tiles[t, :-1], tiles[t, -1], sizes[s], orders[o, 0].astype(np.bool_), orders[o, 1])
    return legal(model, found).unique()


def legal(model: Model, population: Population) -> Population:
    """Chunks rounded to whole register tiles and to the extent; one chunk where panels go outside it anyway."""
    if not model.tiled.inside:
        return population
    rows = population.rows[:, 0]
    extent = model.tiled.ranges[model.tiled.inside[0]]
    whole = -(-extent // rows) * rows
    chunk = np.minimum(np.maximum(population.chunk // rows, 1) * rows, whole)
    return Population(population.rows, population.vectors, chunk, population.by_rows, population.parallel)


def random_candidates(model: Model, count: int, seed: int) -> Population:
    """`count` different members of the space (or all of it), each register tile as likely as any."""
    rng = np.random.default_rng(seed)
    tiles, sizes = register_tiles(model), np.array(chunks(model), np.int64)
    n = 4 * count
    t = tiles[rng.integers(0, len(tiles), n)]
    drawn = Population(
        t[:, :-1],
        t[:, -1],
        sizes[rng.integers(0, len(sizes), n)],
        rng.integers(0, 2, n).astype(np.bool_),
        rng.integers(0, len(model.parallel), n),
    )
    found = legal(model, drawn).unique()
    return found.take(rng.permutation(len(found))[:count])


# --- the micro-kernel ---------------------------------------------------------------------------------------------


def fits(model: Model, rows: Ints, vectors: Ints) -> Bools:
    """Which register tiles fit in the registers; the smallest one counts as fitting."""
    tiled = model.tiled
    if not tiled.plain:
        held = [
            tiled.holds(list(zip(tiled.inside, map(int, r), strict=True)), int(v))
            for r, v in zip(rows, vectors, strict=True)
        ]
        return np.array(held, np.bool_)
    least = (np.prod(rows, axis=1) == 1) & (vectors == 1)
    return np.asarray((registers(model, rows, vectors) <= tiled.target.vector.registers) | least, np.bool_)


def registers(model: Model, rows: Ints, vectors: Ints) -> Ints:
    """Vector registers: accumulators, the vectors that are reused across rows, two or three for what is loaded next
    (see Tiled.registers). A window without a broadcast operand keeps its elements and weights as well (see
    Tiled.kernels)."""
    tiled = model.tiled
    accumulators = np.asarray(np.prod(rows, axis=1) * vectors, np.int64)
    if tiled.sliding:
        return 3 * accumulators + 2
    reused = any(r.strides[tiled.vector] != 0 and any(r.strides[n] == 0 for n in tiled.inside) for r in tiled.reads)
    return np.asarray(accumulators + (vectors if reused else 0) + 2 + (vectors > 2), np.int64)


def loads(model: Model, rows: Ints, vectors: Ints) -> tuple[Floats, Floats]:
    """(vectors, scalars) that a register tile loads at each reduction step."""
    tiled = model.tiled
    wide, narrow = np.zeros(len(vectors)), np.zeros(len(vectors))
    for read in tiled.reads:
        moving = [k for k, n in enumerate(tiled.inside) if read.strides[n] != 0]
        times = np.prod(rows[:, moving], axis=1)
        if read.strides[tiled.vector] != 0:
            wide = wide + times * vectors * pieces(read.strides[tiled.vector])
        else:
            narrow = narrow + times
    if tiled.sliding:
        wide = wide / 2  # half of what a tap needs was loaded for the one before
    return wide, narrow


def step_cycles(model: Model, rows: Ints, vectors: Ints) -> Floats:
    """Cycles of one reduction step of a register tile: the ports' work (arithmetic, two loads a cycle, spills, lines
    that conflict in L1), or the latency of dependent accumulation where that is more."""
    target, cost = model.target, model.target.cost
    wide, narrow = loads(model, rows, vectors)
    accumulators = np.prod(rows, axis=1) * vectors
    busy = np.maximum(accumulators / target.fma_ports, (wide + narrow) / cost.load_ports)
    spilled = np.maximum(0, registers(model, rows, vectors) - target.vector.registers)
    waiting = cost.load_cycles * wide + cost.broadcast_cycles * narrow + cost.spill_cycles * spilled
    conflicts = cost.conflict_cycles * conflicting_lines(model.tiled, rows)
    ahead = 1 + cost.look_ahead / tile_instructions(model, rows, vectors)  # register tiles in flight
    return np.asarray(np.maximum(busy + waiting + conflicts + cost.step_cycles, target.fma_latency / ahead), np.float64)


def tile_instructions(model: Model, rows: Ints, vectors: Ints) -> Floats:
    """Multiply-adds and loads of one register tile over all reduction steps."""
    steps = prod(i.extent for i in model.tiled.anchor.reduction)
    wide, narrow = loads(model, rows, vectors)
    return np.asarray(steps * (np.prod(rows, axis=1) * vectors + wide + narrow), np.float64)


def kernel_cycles(model: Model, population: Population) -> Floats:
    """Cycles of all register tiles of the Task, whole ones and those at the ends of rows and vectors, with what
    surrounds each: zeroing, the epilogue, loop control."""
    sizes, back = np.unique(np.column_stack([population.rows, population.vectors]), axis=0, return_inverse=True)
    keys, known = [size.tobytes() for size in sizes], model.cycles
    if new := [k for k, key in enumerate(keys) if key not in known]:
        count = plain_cycles if model.tiled.plain else unit_cycles
        found = count(model, sizes[new, :-1], sizes[new, -1])
        known.update(zip((keys[k] for k in new), found.tolist(), strict=True))
    return np.array([known[key] for key in keys], np.float64)[back.reshape(-1)]


def _outer(tiled: Tiled) -> int:
    """Iterations of the loops over iterators that no register tile has rows of."""
    return prod(tiled.ranges[n] for n in tiled.ranges if n in (*tiled.batch, *tiled.rows) and n not in tiled.inside)


def plain_cycles(model: Model, rows: Ints, vectors: Ints) -> Floats:
    """Cycles where a unit is the multiply-add of one vector."""
    tiled, cost = model.tiled, model.target.cost
    steps = prod(i.extent for i in tiled.anchor.reduction)
    parts: list[list[tuple[Ints, Ints]]] = []  # for each dimension of the register tile: (times, size), twice
    for k, n in enumerate(tiled.inside):
        size = rows[:, k]
        full, rest = np.divmod(np.int64(tiled.ranges[n]), size)
        parts.append([(full, size), ((rest > 0).astype(np.int64), rest)])
    full, rest = np.divmod(np.int64(tiled.ranges[tiled.vector]), vectors * tiled.lanes)
    parts.append([(full, vectors), ((rest > 0).astype(np.int64), -(-rest // tiled.lanes))])
    total = np.zeros(len(vectors))
    for choice in product(*parts):
        times = np.prod([t for t, _ in choice], axis=0)
        counts = np.column_stack([s for _, s in choice[:-1]]) if tiled.inside else rows
        some = np.maximum(counts, 1), np.maximum(choice[-1][1], 1)
        accumulators = np.prod(counts, axis=1) * choice[-1][1]
        around = cost.tile_cycles + accumulators * (
            cost.accumulator_cycles * (1 + model.epilogue_operations) + model.scattered
        )
        exposed = np.maximum(
            0.0, 1 - cost.look_ahead / tile_instructions(model, *some)
        )  # the rest runs beside the next tile
        cycles = steps * step_cycles(model, *some) + exposed * around
        total = total + np.where(times > 0, times * cycles, 0.0)
    return total * _outer(tiled)


def unit_cycles(model: Model, rows: Ints, vectors: Ints) -> Floats:
    """Cycles where applications of an intrinsic fill register tiles."""
    tiled = model.tiled
    steps = prod(i.extent for i in tiled.anchor.reduction)
    sizes = zip(rows.tolist(), vectors.tolist(), strict=True)
    costs = [tiled.kernel_cost(tuple(zip(tiled.inside, counts, strict=True)), v) for counts, v in sizes]
    return np.array([c.cycles for c in costs], np.float64) * steps * _outer(tiled)


# --- all of it ----------------------------------------------------------------------------------------------------


def estimate(model: Model, population: Population, cores: int | None = None) -> Estimate:
    """The cost of every member of the population on so many cores (those of the target)."""
    tiled, target, cost, operands = model.tiled, model.target, model.target.cost, model.operands
    hertz = 1e9 * target.peak["float32"] / (2 * target.lanes("float32") * target.fma_ports)
    asked = cores or model.cores
    cores = 1 if model.parallel[0] is None else asked  # that work
    walk = _walk(model, population, cores)
    boxes, trips, depth, share = walk.boxes, walk.trips, walk.depth, walk.share
    members, loops, inner = len(population), np.arange(len(boxes))[:, None], len(tiled.reduction)
    line = target.caches[0].line
    found = [_reshaped(footprint(o.reach, boxes.reshape(-1, boxes.shape[2]), line), members) for o in operands]
    inside = np.stack([np.maximum(f.bytes, f.lines * line) for f in found])  # [operands x loops x P]
    straight, nothing = [k for k, o in enumerate(operands) if o.straight], np.zeros(members)
    each, packed = np.arange(members), np.array([o.packed for o in operands])[:, None]
    around = (loops[:-1] >= inner) & (loops[:-1] < depth)  # loops between the reduction and the one over panels
    passes = np.prod(np.where(around, trips, 1.0), axis=0)
    fetched = (passes > 1) & (trips[depth, each] > 1)  # panels, ahead: see ahead.py
    ahead = reduce_sum(packed * fetched * inside[:, depth, each])
    own = np.where(model.moving[:, population.parallel], cores, 1)  # copies of what is held [operands x P]
    times = np.array([o.times for o in operands])[:, None]
    moved: list[Floats] = []  # of each level, [operands x P]
    for cache in target.caches:
        held = reduce_sum(own[:, None, :] * inside if cache.shared else inside)  # [loops x P]
        if len(moved) == 1:  # where rows that lie as they come crowd; what leaves the first for that is here in time
            held = held + reduce_sum([nothing + 0 * loops, *(crowding(found[s], cache) for s in straight)])
        if cache is not target.caches[0]:  # what is fetched ahead goes past the first
            held = held + np.where(loops >= depth, ahead, 0.0)
        room = cache.bytes * (cost.second_share if len(moved) == 1 else 1.0)
        moved.append(times * traffic(inside.swapaxes(0, 1), trips, held, room, cost.blur_share))
    if (
        len(target.caches) > 1
    ):  # what fits in the last cache is there: it was written by the task before, or read before
        warm = held[-1] <= target.caches[-1].bytes
        moved[-1] = np.where(warm, np.maximum(0.0, moved[-1] - times * inside[:, -1]), moved[-1])
    if target.caches[-1].shared:  # what all cores read comes from memory once
        moved[-1] = moved[-1] * own / cores
    whole = np.stack([np.maximum(1.0, f.lines[-1]) for f in found])
    rough = np.maximum(0.0, np.stack([f.misses[-1] for f in found]) / whole * 4 - 1)
    bandwidths = [c.bandwidth_gbs for c in target.caches[1:]] + [target.memory_bandwidth_gbs / cores]
    slower = 1 + cost.miss_share * np.minimum(rough, 3) / 3
    memory = np.column_stack([reduce_sum(m * slower) / (1e9 * b) for m, b in zip(moved, bandwidths, strict=True)])
    near = min(1, len(target.caches) - 1)  # the level that panels are fetched into
    waiting = reduce_sum(packed * ~fetched * moved[near]) / (1e9 * bandwidths[near] * cost.demanded_share)
    tiles = np.prod(trips[inner:], axis=0)
    near_by = [waiting_cycles(cost, _inside(found[s], inner), tiles, moved[0][s] / line) for s in straight]
    cycles = kernel_cycles(model, population)
    compute = (cycles * share + reduce_sum([nothing, *near_by])) / hertz
    prologue = _copies(model, walk, found, asked) / hertz
    resources = np.column_stack([compute + prologue, memory])
    top = np.max(resources, axis=1, keepdims=True)
    total = top[:, 0] * np.sum((resources / top) ** cost.sharpness, axis=1) ** (1 / cost.sharpness)
    exposed = np.maximum(0.0, 1 - cost.look_ahead / tile_instructions(model, population.rows, population.vectors))
    held_registers = registers(model, population.rows, population.vectors)
    if model.fetched:
        exposed = exposed * (held_registers >= target.vector.registers)
    waiting = waiting + cost.exposed_share * exposed * np.minimum(resources[:, 0], memory.sum(axis=1))
    return Estimate(
        total + waiting + (cost.fork_join_seconds if cores > 1 else 0.0),
        compute,
        prologue,
        memory,
        np.column_stack([reduce_sum(level) for level in moved]),
        held_registers,
        np.asarray(np.prod(population.rows, axis=1) * population.vectors, np.int64),
        prod(tiled.ranges.values()) / (tiled.lanes * target.fma_ports * cycles),
        1 / (share * cores),
        reduce_sum(moved[0] / line * (rough + 1) / 4),
    )


def best_of(model: Model, population: Population) -> TiledKnobs:
    """The knobs of least estimated cost; of equals the first."""
    return knobs_at(model, population, int(np.argmin(estimate(model, population).seconds)))


def reduce_sum(arrays: Floats | Sequence[Floats]) -> Floats:
    return np.asarray(np.sum(np.asarray(arrays), axis=0), np.float64)


def _reshaped(found: Footprint, members: int) -> Footprint:
    """A footprint of [loops x P] boxes, of which that of all was taken in one row."""
    return Footprint(*(getattr(found, f.name).reshape(-1, members) for f in fields(Footprint)))


def _inside(found: Footprint, loop: int) -> Footprint:
    """That of the boxes inside one loop [P]."""
    return Footprint(*(getattr(found, f.name)[loop] for f in fields(Footprint)))


@dataclass(frozen=True)
class _Walk:
    """The loops of a population, innermost first, and what one core has of them. Members whose loops have one order
    form a group."""

    boxes: Ints  # [loops + 1 x P x iterators] inside each loop and around all
    trips: Floats  # [loops x P]
    depth: Ints  # [P] of the loop over panels
    share: Floats  # [P] the part of the work that the busiest core has
    groups: tuple[tuple[NDArray[np.intp], list[str]], ...]  # (members, their loops, outermost first)


def _walk(model: Model, population: Population, cores: int) -> _Walk:
    parts, groups = [], []
    for by_rows, parallel in sorted(set(zip(population.by_rows.tolist(), population.parallel.tolist(), strict=True))):
        which = np.flatnonzero((population.by_rows == by_rows) & (population.parallel == parallel))
        some = population.take(which)
        loops, share = _loops(model, some), _share(model, some, cores)
        boxes, trips = _boxes(model, some, loops, share)
        panels = len(loops) - 1 - loops.index(f"{model.tiled.vector}0")
        parts.append((np.stack(boxes), np.stack(trips), np.full(len(which), panels), share))
        groups.append((which, loops))
    back = np.argsort(np.concatenate([which for which, _ in groups]), kind="stable")
    boxes_, trips_, depth, share_ = zip(*parts, strict=True)
    every = np.concatenate(boxes_, axis=1)[:, back], np.concatenate(trips_, axis=1)[:, back]
    return _Walk(*every, np.concatenate(depth)[back], np.concatenate(share_)[back], tuple(groups))


def _loops(model: Model, population: Population) -> list[str]:
    """Macro and reduction loops, outermost first, the same for the whole population."""
    tiled = model.tiled
    return [*tiled.macro_loops(knobs_at(model, population, 0)), *(f"{n}0" for n in tiled.reduction)]


def _tile(model: Model, population: Population, loop: str) -> Ints:
    """The tile of a loop: how many values of its iterator one iteration covers."""
    tiled, name, level = model.tiled, loop[:-1], int(loop[-1])
    one = np.ones(len(population), np.int64)
    if name == tiled.vector:
        return np.minimum(population.vectors * tiled.lanes, tiled.ranges[name])
    if name in tiled.inside:
        k = tiled.inside.index(name)
        sizes = population.chunk if k == 0 and level == 0 else population.rows[:, k]
        return np.minimum(sizes, tiled.ranges[name])
    return one


def _share(model: Model, population: Population, cores: int) -> Floats:
    """The part of the work that the busiest core has."""
    parallel = model.parallel[int(population.parallel[0])]
    if parallel is None or cores == 1:
        return np.ones(len(population))
    trips = -(-model.tiled.ranges[parallel[:-1]] // _tile(model, population, parallel))
    pieces = np.minimum(trips, cores * CHUNKS_PER_CORE)
    return np.asarray(-(-pieces // cores) / pieces, np.float64)


def _boxes(model: Model, population: Population, loops: list[str], share: Floats) -> tuple[list[Ints], list[Floats]]:
    """(boxes inside each loop and around all, trips of each loop), innermost first, of one core."""
    ranges = model.tiled.ranges
    box = np.array([[ranges[n] for n in model.iters]] * len(population), np.int64)
    parallel = model.parallel[int(population.parallel[0])]
    if parallel is not None:
        k = model.iters.index(parallel[:-1])
        box[:, k] = np.ceil(box[:, k] * share)
    boxes, trips = [box], []
    for loop in loops:
        k = model.iters.index(loop[:-1])
        inner = box.copy()
        inner[:, k] = np.minimum(box[:, k], _tile(model, population, loop))
        trips.append(box[:, k] / inner[:, k])
        box = inner
        boxes.append(box)
    return boxes[::-1], trips[::-1]


def _copies(model: Model, walk: _Walk, found: Sequence[Footprint], cores: int) -> Floats:
    """Cycles of one core for what the Blocks around the anchor and its consumers copy: a prologue in the innermost loop
    in which it does not copy much the same again and again (see Tiled.prologue)."""
    tiled, cost = model.tiled, model.target.cost
    total = np.zeros(len(walk.depth))
    for copy in model.copies:
        points = copy.points / cores
        copied = np.full(len(total), points * copy.cycles)
        for which, loops in walk.groups if copy.read is not None else ():
            for loop in tiled.moving(copy.read, loops[: -len(tiled.reduction) or None]):  # type: ignore[arg-type]
                depth = len(loops) - 1 - loops.index(loop)  # from the innermost
                inside = _inside(found[copy.operand], depth)
                again = np.prod(walk.trips[depth:, which], axis=0) * inside.elements[which]
                there = again * (copy.cycles + cost.apart_cycles / tiled.lanes * inside.apart[which])
                near = (again <= MOST_COPIES * points) | tiled.sliding
                copied[which] = np.where(near, there, copied[which])
        total = total + copied
    return total
