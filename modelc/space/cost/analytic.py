"""The analytic cost of tiled Tasks: a roofline over every memory level, for a population of knob vectors at once.

Nothing is lowered and nothing is measured: what a candidate costs follows from its micro-kernel (registers, ports,
latency, loads), from the footprints of its tiles at every cache level, and from how its loops divide among cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from modelc.ir.block import Block, Task
from modelc.ir.expr import Op, variables, walk
from modelc.space.analysis.access import accesses, pieces
from modelc.space.analysis.footprint import Floats, Ints, Reach, footprint, reach, traffic
from modelc.space.cost.apart import all_fetched, conflicting_lines, crowding, waiting_cycles
from modelc.space.sketches.follow import iterators
from modelc.space.sketches.maps import CHUNKS_PER_CORE, SERIAL_POINTS, crossed_iterator, vector_iterator
from modelc.space.sketches.prepare import afterwards
from modelc.space.sketches.tiled import MAX_VECTORS, MOST_COPIES, Tiled, TiledKnobs
from modelc.target import CostParameters, Target

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Population:
    """Knob vectors of one Task: row p of every array makes one Candidate. `parallel` indexes Model.parallel."""

    rows: Ints  # [P x row iterators in the register tile]
    vectors: Ints  # [P]
    chunk: Ints  # [P]
    by_rows: Bools  # [P]
    parallel: Ints  # [P]

    def __len__(self) -> int:
        return len(self.vectors)

    def take(self, which: NDArray[np.intp] | Bools) -> Population:
        return Population(*(getattr(self, f.name)[which] for f in fields(self)))

    @staticmethod
    def join(parts: Sequence[Population]) -> Population:
        return Population(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Population)))

    def unique(self) -> Population:
        """Every knob vector once, in lexicographic order."""
        table = np.column_stack([self.rows, self.vectors, self.chunk, self.by_rows, self.parallel])
        return self.take(np.unique(table, axis=0, return_index=True)[1])


@dataclass(frozen=True)
class Operand:
    """An access that crosses memory levels: its reach over the anchor's iterators, and how often each byte crosses."""

    reach: Reach
    times: float
    packed: bool = False  # a constant, stored in the order of the register tiles: it was not near before
    straight: bool = False  # computed, and its vectors are read where they lie


@dataclass(frozen=True)
class Model:
    """What the cost needs to know of a tiled Task."""

    tiled: Tiled
    iters: tuple[str, ...]  # columns of the boxes: the anchor's iterators
    operands: tuple[Operand, ...]
    parallel: tuple[str | None, ...]  # loops that may go to threads
    epilogue_operations: int
    scattered: float  # cycles for the elements of one vector of results, where they are not stored side by side
    cores: int  # that work

    @property
    def target(self) -> Target:
        return self.tiled.target


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


def model_of(tiled: Tiled) -> Model:
    anchor = tiled.anchor
    iters = tuple(i.name for i in anchor.iters)
    operands = []
    for read in tiled.reads:
        wide, constant = read.strides[tiled.vector] != 0, read.load.buffer in tiled.task.constants
        straight = wide and tiled.straight and tiled.task.buffer(read.load.buffer) not in tiled.task.locals
        found = reach(tiled.task, read.load, iters, dense=wide and constant)
        operands.append(Operand(found, 1.0, wide and constant, straight and not constant))
    boundary = {*tiled.task.inputs, *tiled.task.outputs}
    operations = 0
    later = afterwards(tiled.task, tiled.result)
    names = iterators(anchor, [*tiled.consumers, *later])
    for block in (*tiled.consumers, *later):
        if block in tiled.consumers:
            operations += sum(isinstance(e, Op) for b in block.body for e in walk(b))
        for load in (x for x in block.reads if x.buffer in boundary):
            operands.append(Operand(reach(tiled.task, load, iters, names[block.name]), 1.0))
        for load in (x for x in block.writes if x.buffer in boundary):  # read for ownership, written back
            operands.append(Operand(reach(tiled.task, load, iters, names[block.name]), 2.0))
    apart = tiled.strides.get(tiled.vector) != 1
    scattered = tiled.target.cost.scatter_cycles * tiled.lanes if apart else 0.0
    return Model(tiled, iters, tuple(operands), _parallel_loops(tiled), operations, scattered, tiled.target.cores)


def _parallel_loops(tiled: Tiled) -> tuple[str | None, ...]:
    """Loops over whole iterators; none where there is too little work, or one core."""
    knobs = TiledKnobs(tuple((n, 1) for n in tiled.inside), 1, 1, True, None)
    found = [m for m in tiled.macro_loops(knobs) if m.endswith("0") and tiled.ranges[m[:-1]] > 1]
    serial = tiled.target.cores == 1 or prod(tiled.ranges.values()) < SERIAL_POINTS
    return (None,) if serial or not found else tuple(found)


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
    tiled, cost = model.tiled, model.target.cost
    steps = prod(i.extent for i in tiled.anchor.reduction)
    outer = prod(tiled.ranges[n] for n in tiled.ranges if n in (*tiled.batch, *tiled.rows) and n not in tiled.inside)
    if not tiled.plain:
        return unit_cycles(tiled, population) * steps * outer
    parts: list[list[tuple[Ints, Ints]]] = []  # for each dimension of the register tile: (times, size), twice
    for k, n in enumerate(tiled.inside):
        size = population.rows[:, k]
        full, rest = np.divmod(np.int64(tiled.ranges[n]), size)
        parts.append([(full, size), ((rest > 0).astype(np.int64), rest)])
    full, rest = np.divmod(np.int64(tiled.ranges[tiled.vector]), population.vectors * tiled.lanes)
    parts.append([(full, population.vectors), ((rest > 0).astype(np.int64), -(-rest // tiled.lanes))])
    total = np.zeros(len(population))
    for choice in product(*parts):
        times = np.prod([t for t, _ in choice], axis=0)
        rows = np.column_stack([s for _, s in choice[:-1]]) if tiled.inside else population.rows
        vectors = choice[-1][1]
        accumulators = np.prod(rows, axis=1) * vectors
        around = cost.tile_cycles + accumulators * (
            cost.accumulator_cycles * (1 + model.epilogue_operations) + model.scattered
        )
        some = np.maximum(rows, 1), np.maximum(vectors, 1)
        exposed = np.maximum(
            0.0, 1 - cost.look_ahead / tile_instructions(model, *some)
        )  # the rest runs beside the next tile
        cycles = steps * step_cycles(model, *some) + exposed * around
        total = total + np.where(times > 0, times * cycles, 0.0)
    return total * outer


def unit_cycles(tiled: Tiled, population: Population) -> Floats:
    """Cycles of one reduction step of all register tiles that applications of an intrinsic fill."""
    tiles, back = np.unique(np.column_stack([population.rows, population.vectors]), axis=0, return_inverse=True)
    costs = [tiled.kernel_cost(tuple(zip(tiled.inside, map(int, t[:-1]), strict=True)), int(t[-1])) for t in tiles]
    return np.array([c.cycles for c in costs], np.float64)[back.reshape(-1)]


# --- all of it ----------------------------------------------------------------------------------------------------


def estimate(model: Model, population: Population, cores: int | None = None) -> Estimate:
    """The cost of every member of the population on so many cores (those of the target)."""
    model = replace(model, cores=cores or model.cores)
    parts, places = [], []
    for by_rows, parallel in sorted(set(zip(population.by_rows.tolist(), population.parallel.tolist(), strict=True))):
        which = np.flatnonzero((population.by_rows == by_rows) & (population.parallel == parallel))
        parts.append(_estimate(model, population.take(which)))
        places.append(which)
    back = np.argsort(np.concatenate(places), kind="stable")
    return Estimate(*(np.concatenate([getattr(p, f.name) for p in parts])[back] for f in fields(Estimate)))


def best_of(model: Model, population: Population) -> TiledKnobs:
    """The knobs of least estimated cost; of equals the first."""
    return knobs_at(model, population, int(np.argmin(estimate(model, population).seconds)))


def _estimate(model: Model, population: Population) -> Estimate:
    """The cost of members that share the order of their loops."""
    tiled, target, cost = model.tiled, model.target, model.target.cost
    hertz = 1e9 * target.peak["float32"] / (2 * target.lanes("float32") * target.fma_ports)
    loops = _loops(model, population)
    parallel = model.parallel[int(population.parallel[0])]
    cores, share = _share(model, population)
    boxes, trips = _boxes(model, population, loops, share)
    line = target.caches[0].line
    found = [[footprint(o.reach, b, line) for b in boxes] for o in model.operands]
    inside = [[np.maximum(f.bytes, f.lines * line) for f in fs] for fs in found]
    straight, nothing = [k for k, o in enumerate(model.operands) if o.straight], np.zeros(len(population))
    depth = len(loops) - 1 - loops.index(f"{tiled.vector}0")  # of the loop over panels, from the innermost
    passes = np.prod(np.stack([np.ones(len(population)), *trips[len(tiled.reduction) : depth]]), axis=0)
    fetched = (passes > 1) & (trips[depth] > 1)  # panels, ahead: see ahead.py
    ahead = [o.packed * fetched * i[depth] for o, i in zip(model.operands, inside, strict=True)]
    own = [cores if _moves(o.reach, model, parallel) else 1 for o in model.operands]  # copies of what is held
    moved: list[list[Floats]] = []
    for cache in target.caches:
        copies = own if cache.shared else [1] * len(own)
        held = [reduce_sum([c * f[k] for c, f in zip(copies, inside, strict=True)]) for k in range(len(boxes))]
        if len(moved) == 1:  # where rows that lie as they come crowd; what leaves the first for that is here in time
            held = [
                h + reduce_sum([nothing, *(crowding(found[s][k], cache) for s in straight)]) for k, h in enumerate(held)
            ]
        if cache is not target.caches[0]:  # what is fetched ahead goes past the first
            held = [h + (reduce_sum(ahead) if k >= depth else 0.0) for k, h in enumerate(held)]
        room = cache.bytes * (cost.second_share if len(moved) == 1 else 1.0)
        moved.append(
            [
                o.times * traffic(f, trips, held, room, cost.blur_share)
                for o, f in zip(model.operands, inside, strict=True)
            ]
        )
    if (
        len(target.caches) > 1
    ):  # what fits in the last cache is there: it was written by the task before, or read before
        warm = held[-1] <= target.caches[-1].bytes
        once = [o.times * f[-1] for o, f in zip(model.operands, inside, strict=True)]
        moved[-1] = [np.where(warm, np.maximum(0.0, m - f), m) for m, f in zip(moved[-1], once, strict=True)]
    if target.caches[-1].shared:  # what all cores read comes from memory once
        moved[-1] = [m * c / cores for m, c in zip(moved[-1], own, strict=True)]
    whole = [np.maximum(1.0, f[-1].lines) for f in found]
    rough = [np.maximum(0.0, f[-1].misses / w * 4 - 1) for f, w in zip(found, whole, strict=True)]
    bandwidths = [c.bandwidth_gbs for c in target.caches[1:]] + [target.memory_bandwidth_gbs / cores]
    seconds = [
        reduce_sum([m * (1 + cost.miss_share * np.minimum(r, 3) / 3) for m, r in zip(level, rough, strict=True)])
        / (1e9 * b)
        for level, b in zip(moved, bandwidths, strict=True)
    ]
    near = min(1, len(target.caches) - 1)  # the level that panels are fetched into
    waited = reduce_sum([o.packed * ~fetched * m for o, m in zip(model.operands, moved[near], strict=True)])
    waiting = waited / (1e9 * bandwidths[near] * cost.demanded_share)
    tiles = np.prod(np.stack([nothing + 1, *trips[len(tiled.reduction) :]]), axis=0)
    near_by = [waiting_cycles(cost, found[s][len(tiled.reduction)], tiles, moved[0][s] / line) for s in straight]
    memory = np.column_stack(seconds)
    cycles = kernel_cycles(model, population)
    points = prod(tiled.ranges.values())
    compute = (cycles * share + reduce_sum([nothing, *near_by])) / hertz
    prologue = _copies(model, population, loops, boxes, trips) / hertz
    resources = np.column_stack([compute + prologue, memory])
    top = np.max(resources, axis=1, keepdims=True)
    total = top[:, 0] * np.sum((resources / top) ** cost.sharpness, axis=1) ** (1 / cost.sharpness)
    exposed = np.maximum(0.0, 1 - cost.look_ahead / tile_instructions(model, population.rows, population.vectors))
    if all_fetched(tiled):
        exposed = exposed * (registers(model, population.rows, population.vectors) >= target.vector.registers)
    waiting = waiting + cost.exposed_share * exposed * np.minimum(resources[:, 0], memory.sum(axis=1))
    forked = cost.fork_join_seconds if loops[0] in model.parallel and cores > 1 else 0.0
    accumulators = np.asarray(np.prod(population.rows, axis=1) * population.vectors, np.int64)
    return Estimate(
        total + waiting + forked,
        compute,
        prologue,
        memory,
        np.column_stack([reduce_sum(level) for level in moved]),
        registers(model, population.rows, population.vectors),
        accumulators,
        points / (tiled.lanes * target.fma_ports * cycles),
        1 / (share * cores),
        reduce_sum([m / line * (r + 1) / 4 for m, r in zip(moved[0], rough, strict=True)]),
    )


def _moves(access: Reach, model: Model, parallel: str | None) -> bool:
    """Whether iterations of the parallel loop touch elements of their own."""
    return parallel is None or any(parallel[:-1] in variables(d.index) for d in access.dims)


def reduce_sum(arrays: Sequence[Floats]) -> Floats:
    return np.asarray(np.sum(np.stack(arrays), axis=0), np.float64)


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


def _share(model: Model, population: Population) -> tuple[int, Floats]:
    """(cores that work, the part of the work that the busiest has)."""
    cores = model.cores
    parallel = model.parallel[int(population.parallel[0])]
    if parallel is None or cores == 1:
        return 1, np.ones(len(population))
    trips = -(-model.tiled.ranges[parallel[:-1]] // _tile(model, population, parallel))
    pieces = np.minimum(trips, cores * CHUNKS_PER_CORE)
    return cores, np.asarray(-(-pieces // cores) / pieces, np.float64)


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


def _copies(model: Model, population: Population, loops: list[str], boxes: list[Ints], trips: list[Floats]) -> Floats:
    """Cycles of one core for what the Blocks around the anchor and its consumers copy: a prologue in the innermost loop
    in which it does not copy much the same again and again (see Tiled.prologue)."""
    tiled, task, cost = model.tiled, model.tiled.task, model.target.cost
    total = np.zeros(len(population))
    for block in (*task.blocks[: task.blocks.index(tiled.anchor)], *afterwards(task, tiled.result)):
        assert isinstance(block, Block)
        points = block.points() / model.cores
        cycles = copy_cycles(task, block, tiled.lanes, cost)
        copied = np.full(len(population), points * cycles)
        read = next((r for r in tiled.reads if r.load.buffer == block.writes[0].buffer), None)
        for loop in [] if read is None else tiled.moving(read, loops[: -len(tiled.reduction) or None]):
            depth = len(loops) - 1 - loops.index(loop)  # from the innermost
            operand = next(o for o in model.operands if o.reach.buffer == block.writes[0].buffer)
            found = footprint(operand.reach, boxes[depth], model.target.caches[0].line)
            again = np.prod(np.stack(trips[depth:]), axis=0) * found.elements
            there = again * (cycles + cost.apart_cycles / tiled.lanes * found.apart)
            copied = np.where((again <= MOST_COPIES * points) | tiled.sliding, there, copied)
        total = total + copied
    return total


def copy_cycles(task: Task, block: Block, lanes: int, cost: CostParameters) -> float:
    """Cycles of one element that `block` copies."""
    reads, writes = accesses(task, block)
    vector = vector_iterator(block, writes)
    crossed = vector is not None and crossed_iterator(block, vector, reads) is not None
    return (cost.transpose_cycles if crossed else cost.copy_cycles) / lanes
