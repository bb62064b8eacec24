"""The Work of a scheduled Task, in closed form: what its Candidate makes each Block do on the busiest core.

It holds for Candidates of any Sketch, so it reads nothing but the Candidate and the accesses: register tiles from the
unrolled and vector loops, or from those of an intrinsic, loads and stores of each tile step by their strides along the
vector, elements one by one where a vector is not contiguous, and the bytes of the boundary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from math import ceil, prod

import numpy as np
from numpy.typing import NDArray

from modelc.ir.block import Block, Task
from modelc.ir.candidate import BlockSchedule, Candidate
from modelc.ir.expr import DTYPES, Op
from modelc.ir.loop import ROOT, Loop
from modelc.ir.nest import INTRINSIC
from modelc.space.analysis.access import Access, accesses, moves, near, pieces, stored_lanes
from modelc.space.analysis.loops import copies, span
from modelc.space.analysis.work import reached_bytes
from modelc.space.cost.moving import constant_seconds, moving_seconds
from modelc.space.cost.step import chain_cycles, step_cycles, tile_step_cycles
from modelc.space.cost.work import SOURCES, Work
from modelc.space.tiling.operations import operations
from modelc.space.tiling.parallel import busiest_share
from modelc.target import Target

Floats = NDArray[np.float64]
HALF_CYCLES = 2.5  # more, of a half float that is converted by itself: its register waits for the one before


def scheduled_work(task: Task, candidate: Candidate, target: Target, cores: int = 1) -> Work:
    """That of `task`, which is the Task after the candidate's stages, scheduled by `candidate` on `cores` cores [1].
    Opaque Blocks do nothing."""
    task = laid_out(task, candidate)
    cycles = sum(block_cycles(task, b, candidate, target, cores) for b in task.blocks if isinstance(b, Block))
    forks = cores > 1 and any(goes_to_threads(schedule) for schedule in candidate.blocks.values())
    return work_around(task, candidate, np.array([cycles]), target, forks=float(forks))


def goes_to_threads(schedule: BlockSchedule) -> bool:
    """Whether a loop of a Block does."""
    return "parallel" in schedule.tags.values()


def block_cycles(task: Task, block: Block, candidate: Candidate, target: Target, cores: int) -> float:
    """Cycles of one Block on the busiest of `cores` cores."""
    again = _again(task, block, candidate)
    return _share(task, block, candidate, cores) * again * _block_cycles(task, block, candidate, target)


def work_around(
    task: Task,
    candidate: Candidate,
    cycles: Floats,
    target: Target,
    phases: Floats | float = 0.0,
    forks: Floats | float = 0.0,
) -> Work:
    """That of a Task whose Blocks take `cycles` [P] together: beside them its boundary is moved, constants are fetched,
    other cores are woken `forks` times [P], and phases begin, of which there are `phases` [P] more than `candidate`
    has."""
    moved = sum(_touched(task, b, target) for b in (*task.inputs, *task.outputs) if b not in task.constants)
    constants = sum(reached_bytes(task, b) for b in task.constants)
    moving = np.zeros((len(cycles), len(SOURCES)))
    moving[:, 1] = moving_seconds(moved, target.caches[-1:], target)
    moving[:, 2] = constant_seconds(constants, target)
    own = sum(isinstance(b, Block) and candidate.blocks[b.name].at is ROOT for b in task.blocks)
    return Work.of(
        len(cycles),
        computing=cycles / target.hertz,
        moving=moving,
        exposed=target.cost.beside_share,
        phases=own + phases,
        forks=forks,
    )


def laid_out(task: Task, candidate: Candidate) -> Task:
    """`task` with what it computes stored as the candidate says."""
    stored = {n: x for n, x in candidate.layouts.items() if n not in task.constants}
    buffers = tuple(replace(b, layout=stored[b.name]) if b.name in stored else b for b in task.buffers)
    return replace(task, buffers=buffers)


def _touched(task: Task, name: str, target: Target) -> int:
    """Bytes of the cache lines that hold a boundary buffer."""
    buffer = task.buffer(name)
    shape, strides = buffer.physical_shape, buffer.physical_strides
    inner = [n for n, s in zip(shape, strides, strict=True) if s == 1 and n > 1]
    size = DTYPES[buffer.dtype].itemsize
    row = inner[-1] * size if inner else size
    if buffer.strides is None:
        return buffer.bytes
    return buffer.bytes // row * max(row, target.caches[0].line)


def _share(task: Task, block: Block, candidate: Candidate, cores: int) -> float:
    """The part of a Block's work that the busiest of `cores` cores has: that of the parallel loop it is inside."""
    name = block.name
    while (at := candidate.blocks[name].at) is not ROOT:
        name = at.block
    root, schedule = task.block(name), candidate.blocks[name]
    loops = [loop for loop in schedule.order if schedule.tags.get(loop) == "parallel"]
    if cores == 1 or not loops or not isinstance(root, Block):
        return 1.0
    return float(busiest_share([span(loop, root.ranges, schedule.tiles) for loop in loops], cores))


def _again(task: Task, block: Block, candidate: Candidate) -> float:
    """How often each point of a copy placed in another Block's loop is computed: halos overlap from one iteration to
    the next."""
    place = candidate.blocks[block.name].at
    if place is ROOT or block.reduction:
        return 1.0
    reader = task.block(place.block)
    order = candidate.blocks[place.block].order
    if not isinstance(reader, Block) or place.loop not in order:
        return 1.0
    reads = [r for r in reader.reads if r.buffer == block.writes[0].buffer]
    if len(reads) != 1:
        return 1.0
    loops = order[: order.index(place.loop) + 1]
    return max(1.0, copies(reads[0], reader.ranges, loops, candidate.blocks[place.block].tiles))


# --- one Block ----------------------------------------------------------------------------------------------------


def _block_cycles(task: Task, block: Block, candidate: Candidate, target: Target) -> float:
    schedule = candidate.blocks[block.name]
    reads, writes = accesses(task, block)
    applied = [loop for loop in schedule.order if schedule.tags.get(loop, "").startswith(INTRINSIC)]
    if applied:
        return _applied_cycles(task, block, schedule, applied, reads, target)
    tile, vector, lanes = _register_tile(block, schedule)
    if vector is None:
        return block.points() * (1.0 + operations(task, block, target.cost) / target.fma_ports)
    wide = stored_lanes(target, task.buffer(writes[0].load.buffer).dtype)
    lanes = max(1, min(lanes, wide))
    packed = {r.load.buffer for r in reads if r.load.buffer in task.constants and r.load.buffer in candidate.layouts}
    ranges = block.ranges
    parts = []  # for each iterator of the register tile: (times, size), whole tiles and what is left
    for name, size in tile.items():
        full, left = divmod(ranges[name], size)
        parts.append([(full, size), (1, left)] if left else [(full, size)])
    around = prod(n for name, n in ranges.items() if name not in tile)
    total = 0.0
    for choice in product(*parts):
        sizes = {name: size for name, (_, size) in zip(tile, choice, strict=True)}
        sizes[vector] = ceil(sizes[vector] / lanes)
        total += prod(times for times, _ in choice) * _step_cycles(
            task, block, schedule, reads, writes, sizes, vector, lanes, packed, target
        )
    return total * around


def _applied_cycles(
    task: Task, block: Block, schedule: BlockSchedule, applied: list[Loop], reads: tuple[Access, ...], target: Target
) -> float:
    """Cycles of a Block whose innermost loops `applied` are an intrinsic's: of one step of a register tile, for each
    unit of which the intrinsic is applied once, as often as there are steps; and of storing what was added up."""
    name = schedule.tags[applied[0]].removeprefix(INTRINSIC).partition("/")[0]
    intrinsic = next(i for i in target.available_intrinsics if i.name == name)
    unit = {loop.iterator: _size(block, schedule, loop) for loop in applied}
    covered = dict(unit)  # of each iterator by a step
    reduced = {i.name for i in block.reduction}
    for loop in reversed(schedule.order[: schedule.order.index(applied[0])]):
        if schedule.tags.get(loop) != "unroll":
            break
        if loop.iterator not in reduced:
            covered[loop.iterator] = max(covered.get(loop.iterator, 1), _size(block, schedule, loop))
    units = {iterator: ceil(size / unit.get(iterator, 1)) for iterator, size in covered.items()}
    lines = 0.0
    for read in reads:
        bytes_read = DTYPES[task.buffer(read.load.buffer).dtype].itemsize
        bytes_read *= prod(size for iterator, size in unit.items() if read.strides.get(iterator) != 0)
        count = prod(n for iterator, n in units.items() if read.strides.get(iterator) != 0)
        lines += count * ceil(bytes_read / (target.vector.bits // 8))
    cost, held = target.cost, prod(units.values())
    products, latency = held / intrinsic.throughput, float(intrinsic.latency)
    if unit.keys().isdisjoint(reduced) and intrinsic.tiles is None:  # a multiply-add of vectors, of which a target says
        products, latency = held / target.fma_ports, float(target.fma_latency)
    if intrinsic.tiles is not None:
        cycles = tile_step_cycles(cost, products, lines, 0.0, latency)
    else:
        cycles = step_cycles(cost, products, 0.0, lines, latency)
    steps = prod(ceil(extent / covered.get(iterator, 1)) for iterator, extent in block.ranges.items())
    stored = prod(extent for iterator, extent in block.ranges.items() if iterator not in reduced)
    lanes = prod(size for iterator, size in unit.items() if iterator not in reduced)
    return float(steps * cycles + cost.accumulator_store_cycles * stored / lanes)


def _size(block: Block, schedule: BlockSchedule, loop: Loop) -> int:
    """How many values of its iterator a loop covers."""
    return span(loop, block.ranges, schedule.tiles)[0]


def _register_tile(block: Block, schedule: BlockSchedule) -> tuple[dict[str, int], str | None, int]:
    """(elements of each iterator that the innermost unrolled and vector loops cover, the vector iterator, lanes)."""
    tile: dict[str, int] = {}
    vector, lanes = None, 1
    reduced = {i.name for i in block.reduction}
    for loop in reversed(schedule.order):
        tag = schedule.tags.get(loop)
        if tag not in ("unroll", "vector"):
            break
        name, size = loop.iterator, _size(block, schedule, loop)
        if tag == "vector":
            vector, lanes = name, size
        elif name in reduced:
            continue  # taps that are unrolled are steps all the same
        tile[name] = max(tile.get(name, 1), size)
    return tile, vector, lanes


def _step_cycles(
    task: Task,
    block: Block,
    schedule: BlockSchedule,
    reads: tuple[Access, ...],
    writes: tuple[Access, ...],
    sizes: Mapping[str, int],
    vector: str,
    lanes: int,
    packed: set[str],
    target: Target,
) -> float:
    """Cycles of one step of a register tile of `sizes` (vectors along the vector iterator)."""
    cost = target.cost
    held = prod(sizes.values())
    shifted = False  # a window slides along the vector: no two taps read the same vector
    wide = narrow = scattered = crossed = halves = 0.0
    for read in reads:
        count = prod(n for name, n in sizes.items() if read.strides.get(name) != 0 and name != vector)
        step = read.strides.get(vector, 0)
        if step == 0:
            narrow += count
        elif read.load.buffer in packed:
            wide += count * sizes[vector]
        elif step == 1:
            wide += count * sizes[vector] * (1 if _aligned(read, vector, lanes) else cost.split_loads)
            shifted |= any(0 < abs(read.strides[i.name] or 0) < lanes for i in block.reduction)
        elif near(step):
            wide += count * sizes[vector] * pieces(step) * lanes.bit_count()  # odd lanes are loaded in parts
        elif moves(block.body[0]) and any(n > 1 and read.strides.get(name) == 1 for name, n in sizes.items()):
            crossed += count * sizes[vector]
        else:
            scattered += count * sizes[vector] * lanes
            halves += count * sizes[vector] * lanes * (task.buffer(read.load.buffer).dtype == "float16")
    if block.reduction and not shifted and all(r.strides.get(vector) != 0 for r in reads):
        wide /= 2  # windows: half of what a tap needs was loaded for the one before
    stored = 0.0
    if not block.reduction or schedule.scope != "register":
        for write in writes:
            if write.strides.get(vector) in (0, 1):
                stored += held
            else:
                scattered += held * lanes
    looped = not block.reduction or any(
        schedule.tags.get(Loop(i.name, 0)) != "unroll" for i in block.reduction if i.extent > 1
    )
    steps = prod(i.extent for i in block.reduction) if block.reduction and looped else 0
    latency = chain_cycles(cost, target.fma_latency, float(steps * held)) if steps else 0.0
    arithmetic = held * operations(task, block, cost) / target.fma_ports
    cycles = step_cycles(cost, arithmetic, wide, narrow, latency, stores=stored, loops=float(looped))
    guarded = any(isinstance(e, Op) and e.name == "select" for e in block.body)
    element = cost.guarded_cycles if guarded else cost.element_cycles
    return cycles + element * scattered + HALF_CYCLES * halves + cost.transpose_cycles * crossed


def _aligned(read: Access, vector: str, lanes: int) -> bool:
    """Whether vectors begin where cache lines do, wherever the other iterators are."""
    return all(step is not None and step % lanes == 0 for name, step in read.strides.items() if name != vector)
