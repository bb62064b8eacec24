"""The analytic cost of tiled Tasks: a roofline over every memory level, for a population of knob vectors at once.

Nothing is lowered and nothing is measured: what a candidate costs follows from its micro-kernel (registers, ports,
latency, loads), from the footprints of its tiles at every cache level, and from how its loops divide among cores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from modelc.ir.loop import Loop
from modelc.space.analysis.footprint import Floats, Footprint, Ints, footprint, traffic
from modelc.space.cost.conflicts import aliased_cycles, conflicting_bytes, paging_cycles, waiting_cycles
from modelc.space.cost.model import Model, Operand, Population
from modelc.space.cost.moving import parted_seconds, stay_in
from modelc.space.cost.register_tile import kernel_cycles, registers
from modelc.space.cost.terms import seconds
from modelc.space.cost.transfers import transfer_seconds
from modelc.space.cost.work import SOURCES, Work, level_of
from modelc.space.tiling.parallel import busiest_share, joined
from modelc.space.tiling.tiled import MOST_COPIES
from modelc.target import CostParameters


@dataclass(frozen=True)
class Estimate:
    """What each member of a population costs; everything of one core. All [P], except `traffic`."""

    work: Work
    seconds: Floats
    traffic: Floats  # [P x levels] bytes that enter L1, L2, ...
    registers: Ints
    accumulators: Ints
    efficiency: Floats  # multiply-adds that count / those that vector units could have done
    balance: Floats  # mean work of a core / most work of a core
    misses: Floats  # of L1, after prefetching

    @staticmethod
    def join(first: Estimate, second: Estimate, back: NDArray[np.intp]) -> Estimate:
        """Both, in the order `back` of their members one after the other."""
        work = Work.join([first.work, second.work]).take(back)
        arrays = [f.name for f in fields(Estimate) if f.name != "work"]
        return Estimate(work, *(np.concatenate([getattr(e, n) for e in (first, second)])[back] for n in arrays))


def estimate(
    model: Model, population: Population, cores: int | None = None, nearby: frozenset[str] = frozenset()
) -> Estimate:
    """The cost of every member of the population on so many cores (those of the target). The buffers `nearby` are in
    the second-level cache when it begins."""
    serial = np.array([loop is None for loop in model.parallel])[population.parallel]
    if serial.any() and not serial.all():
        places = np.flatnonzero(serial), np.flatnonzero(~serial)
        alone, together = (estimate(model, population.take(which), cores, nearby) for which in places)
        return Estimate.join(alone, together, np.argsort(np.concatenate(places)))
    tiled, target, cost, operands = model.tiled, model.target, model.target.cost, model.operands
    hertz = target.hertz
    asked = cores or model.cores
    cores = 1 if serial.all() else asked  # that work
    walk = _walk(model, population, cores)
    boxes, trips, depth, share, own = walk.boxes, walk.trips, walk.depth, walk.share, walk.own
    members, loops, inner = len(population), np.arange(len(boxes))[:, None], len(tiled.reduction)
    line = target.caches[0].line
    footprints = [_reshaped(footprint(o.reach, boxes.reshape(-1, boxes.shape[2]), line), members) for o in operands]
    inside = np.stack([f.line_bytes(line) for f in footprints])  # [operands x loops x P]
    unpacked, nothing = [k for k, o in enumerate(operands) if o.unpacked], np.zeros(members)
    each, packed = np.arange(members), np.array([o.packed for o in operands])[:, None]
    around = (loops[:-1] >= inner) & (loops[:-1] < depth)  # loops between the reduction and the one over panels
    passes = np.prod(np.where(around, trips, 1.0), axis=0)
    fetched = (passes > 1) & (trips[depth, each] > 1)  # panels: see nest/prefetch.py
    prefetched = reduce_sum(packed * fetched * inside[:, depth, each])
    times = np.array([o.times for o in operands])[:, None]
    moved: list[Floats] = []  # of each level, [operands x P]
    for cache in target.caches:
        held = reduce_sum(own[:, None, :] * inside if cache.shared else inside)  # [loops x P]
        if len(moved) == 1:  # where rows that lie as they come crowd; what leaves the first for that is here in time
            held = held + reduce_sum(
                [nothing + 0 * loops, *(conflicting_bytes(footprints[s], cache) for s in unpacked)]
            )
        if cache is not target.caches[0]:  # what is prefetched goes past the first
            held = held + np.where(loops >= depth, prefetched, 0.0)
        room = cache.bytes * (cost.second_share if len(moved) == 1 else 1.0)
        moved.append(times * traffic(inside.swapaxes(0, 1), trips, held, room, cost.blur_share))
    # What fits in the last cache is there, written or read before; constants where that holds all of the network's
    if len(target.caches) > 1:
        warm = held[-1] <= target.caches[-1].bytes
        resident = np.where(packed & (not stay_in(target.caches[-1], target)), 0.0, times * inside[:, -1])
        moved[-1] = np.where(warm, np.maximum(0.0, moved[-1] - resident), moved[-1])
    is_near = np.array([o.reach.buffer in nearby for o in operands])[:, None]
    if nearby and len(moved) > 1:
        compulsory = np.where(is_near, times * inside[:, -1], 0.0)
        moved[1:] = [np.maximum(0.0, m - compulsory) for m in moved[1:]]
    if target.caches[-1].shared:  # what all cores read comes from memory once
        moved[-1] = moved[-1] * own / cores
    whole = np.stack([np.maximum(1.0, f.lines[-1]) for f in footprints])
    rough = np.maximum(0.0, np.stack([f.misses[-1] for f in footprints]) / whole * 4 - 1)
    bandwidths = [c.bandwidth_gbs for c in target.caches[1:]] + [target.memory_gbs(cores) / cores]
    slower = 1 + cost.miss_share * np.minimum(rough, 3) / 3
    moving = np.zeros((members, len(SOURCES)))
    for place, (m, bandwidth) in enumerate(zip(moved, bandwidths, strict=True)):
        moving[:, level_of(place, len(moved))] += reduce_sum(m * slower) / (1e9 * bandwidth)
    near = min(1, len(target.caches) - 1)  # the level that panels are fetched into
    demanded = cost.unhinted_ratio * reduce_sum(packed * ~fetched * moved[near]) / (1e9 * bandwidths[near])
    for s in (k for k, o in enumerate(operands) if o.in_place):
        begun = _begun_again(cost, footprints[s], depth)
        for level in range(near, len(moved)):
            waits = operands[s].unpacked and level < len(moved) - 1  # for what comes once, as a copy of it would
            again = np.maximum(0.0, moved[level][s] - inside[s, -1]) if waits else moved[level][s]
            demanded = demanded + begun * again / (1e9 * bandwidths[level])
    tiles = np.prod(trips[inner:], axis=0)
    near_by = [waiting_cycles(cost, _inside(footprints[s], inner), moved[0][s] / line) for s in unpacked]
    read = [f for f, o in zip(footprints, operands, strict=True) if o.computed and not o.written]
    near_by += [paging_cycles(cost, _inside(f, inner), tiles) for f in read]
    if tiled.whole_window:
        following = tiles * (1 - 1 / passes)
        near_by += [aliased_cycles(cost, _inside(f, inner), f.step[depth, each], following) for f in read]
    cycles = kernel_cycles(tiled, population.rows, population.vectors)
    copied = {copy.operand for copy in model.copies if copy.read is not None}
    far = {k: _far_runs(operands[k], footprints[k], boxes, cost) for k in copied}
    computing = (cycles * share + reduce_sum([nothing, *near_by])) / hertz
    copying = _copies(model, population, walk, footprints, far, asked) / hertz
    constants = packed * ~is_near * inside[:, -1]
    whole_constants = np.maximum(1.0, reduce_sum(constants * own))  # of all cores
    size = int(whole_constants.max())
    part = reduce_sum(constants) / whole_constants
    arriving = parted_seconds(size, part, target, cores=cores) * whole_constants / size
    others = model.transferred(inside[:, -1], population.parallel, cores) - model.least_transferred(cores)
    work = Work.of(
        members,
        computing=computing,
        copying=copying,
        moving=moving,
        demanded=demanded,
        arriving=arriving,
        transferred=transfer_seconds(np.maximum(0.0, others), target),
        forks=float(cores > 1),
    )
    return Estimate(
        work,
        seconds(work, cost),
        np.column_stack([reduce_sum(level) for level in moved]),
        registers(tiled, population.rows, population.vectors),
        np.asarray(np.prod(population.rows, axis=1) * population.vectors, np.int64),
        prod(tiled.ranges.values()) / (tiled.lanes * target.fma_ports * cycles),
        1 / (share * cores),
        reduce_sum(moved[0] / line * (rough + 1) / 4),
    )


def reduce_sum(arrays: Floats | Sequence[Floats]) -> Floats:
    return np.asarray(np.sum(np.asarray(arrays), axis=0), np.float64)


def _reshaped(touched: Footprint, members: int) -> Footprint:
    """A footprint of [loops x P] boxes, of which that of all was taken in one row."""
    return Footprint(*(getattr(touched, f.name).reshape(-1, members) for f in fields(Footprint)))


def _far_runs(operand: Operand, touched: Footprint, boxes: Ints, cost: CostParameters) -> Footprint:
    """The same footprint, in which lines less than a page apart are of one run."""
    pages = footprint(operand.reach, boxes.reshape(-1, boxes.shape[2]), int(cost.page_bytes))
    return replace(touched, runs=pages.runs.reshape(touched.runs.shape))


def _begun_again(cost: CostParameters, touched: Footprint, depth: Ints) -> Floats:
    """The part of an operand's lines that nothing prefetches: the first ones of rows that one panel of vectors, inside
    the loops `depth` [P], reads a piece of. As many rows as `streams` go on in the next panel."""
    each = np.arange(len(depth))
    rows, lines = touched.runs[depth, each], touched.lines[depth, each]
    return np.asarray(np.clip(rows / (2 * cost.streams) - 1, 0.0, 1.0) * rows / lines, np.float64)


def _inside(touched: Footprint, loop: int, which: NDArray[np.intp] | slice = slice(None)) -> Footprint:
    """That of the boxes inside one loop [P], of some members."""
    return Footprint(*(getattr(touched, f.name)[loop][which] for f in fields(Footprint)))


@dataclass(frozen=True)
class _Walk:
    """The loops of a population, innermost first, and what one core has of them. Members whose loops have one order
    form a group."""

    boxes: Ints  # [loops + 1 x P x iterators] inside each loop and around all
    trips: Floats  # [loops x P]
    own: Floats  # [operands x P] copies of what is held: cores that have a part of their own
    depth: Ints  # [P] of the loop over panels
    share: Floats  # [P] the part of the work that the busiest core has
    groups: tuple[tuple[NDArray[np.intp], list[Loop]], ...]  # (members, their loops, outermost first)


def _walk(model: Model, population: Population, cores: int) -> _Walk:
    parts, groups = [], []
    for by_rows, parallel in sorted(set(zip(population.by_rows.tolist(), population.parallel.tolist(), strict=True))):
        which = np.flatnonzero((population.by_rows == by_rows) & (population.parallel == parallel))
        members = population.take(which)
        loops, (share, own, values) = _loops(model, by_rows, parallel), _divided(model, members, cores)
        inside, around = _boxes(model, members, loops, values)
        panels = len(loops) - 1 - loops.index(model.tiled.panels)
        parts.append((np.stack(inside), np.stack(around), np.full(len(which), panels), share, own))
        groups.append((which, loops))
    back = np.argsort(np.concatenate([which for which, _ in groups]), kind="stable")
    boxes_, trips_, depth, share_, own_ = zip(*parts, strict=True)
    boxes, trips, own = (np.concatenate(arrays, axis=1)[:, back] for arrays in (boxes_, trips_, own_))
    return _Walk(boxes, trips, own, np.concatenate(depth)[back], np.concatenate(share_)[back], tuple(groups))


def _loops(model: Model, by_rows: bool, parallel: int) -> list[Loop]:
    """Macro and reduction loops, outermost first."""
    return [*model.macro_loops(by_rows, parallel), *(Loop(n, 0) for n in model.tiled.reduction)]


def _tile(model: Model, population: Population, loop: Loop) -> Ints:
    """The tile of a loop: how many values of its iterator one iteration covers."""
    tiled, (name, level) = model.tiled, loop
    one = np.ones(len(population), np.int64)
    if name == tiled.vector:
        return np.minimum(population.vectors * tiled.lanes, tiled.ranges[name])
    if name in tiled.inside:
        k = tiled.inside.index(name)
        sizes = population.chunk if k == 0 and level == 0 else population.rows[:, k]
        return np.minimum(sizes, tiled.ranges[name])
    return one


def _divided(model: Model, population: Population, cores: int) -> tuple[Floats, Floats, dict[str, Floats]]:
    """How the loops that go to threads divide the work of members whose loops have one order: (the part of it that the
    busiest core has [P]; copies of operands [operands x P]; by iterators, the part of values that a core has [P])."""
    members, first = len(population), int(population.parallel[0])
    loops = model.together(bool(population.by_rows[0]), first) if cores > 1 else []
    own = np.ones((len(model.operands), members))
    if not loops:
        return np.ones(members), own, {}
    spans = [(model.tiled.ranges[loop.iterator], _tile(model, population, loop)) for loop in loops]
    share = np.broadcast_to(busiest_share(spans, cores, model.target), members)
    which = [*joined(spans, model.target), np.zeros((), np.bool_)]
    parts, around, left = dict[str, Floats](), np.ones(members), np.full(members, float(cores))
    for loop, (extent, tile), there, inside in zip(loops, spans, which, which[1:], strict=False):
        trips = -(-extent // tile)
        parts[loop.iterator] = np.where(there, np.clip(share * around, 1 / trips, 1.0), 1.0)
        around = around * np.where(there, trips, 1)
        divided = np.where(inside, np.minimum(left, trips), np.where(there, left, 1.0))
        left = np.maximum(1.0, left / divided)
        own = own * np.where(model.moving[:, [model.parallel.index(loop)]], divided, 1.0)
    return share, own, parts


def _boxes(
    model: Model, population: Population, loops: list[Loop], parts: Mapping[str, Floats]
) -> tuple[list[Ints], list[Floats]]:
    """(boxes inside each loop and around all, trips of each loop), innermost first, of one core, which has `parts` of
    the values of iterators."""
    ranges = model.tiled.ranges
    box = np.array([[ranges[n] for n in model.iters]] * len(population), np.int64)
    for name, part in parts.items():
        k = model.iters.index(name)
        box[:, k] = np.ceil(box[:, k] * part)
    boxes, trips = [box], []
    for loop in loops:
        k = model.iters.index(loop.iterator)
        inner = box.copy()
        inner[:, k] = np.minimum(box[:, k], _tile(model, population, loop))
        trips.append(box[:, k] / inner[:, k])
        box = inner
        boxes.append(box)
    return boxes[::-1], trips[::-1]


def _copies(
    model: Model,
    population: Population,
    walk: _Walk,
    footprints: Sequence[Footprint],
    far: Mapping[int, Footprint],
    cores: int,
) -> Floats:
    """Cycles of one core for what the Blocks around the anchor and its consumers copy: a prologue in the innermost loop
    in which it does not copy much the same again and again (see Tiled.prologue)."""
    tiled, cost = model.tiled, model.target.cost
    total = np.zeros(len(walk.depth))
    for copy in model.copies:
        points = copy.points / cores
        copied = np.full(len(total), points * copy.cycles + model.spilled_cycles(copy.bytes, cores))
        for group, (which, loops) in enumerate(walk.groups if copy.read is not None else ()):
            for loop in tiled.moving(copy.read, loops[: -len(tiled.reduction) or None]):  # type: ignore[arg-type]
                depth = len(loops) - 1 - loops.index(loop)  # from the innermost
                inside = _inside(footprints[copy.operand], depth, which)
                again = np.prod(walk.trips[depth:, which], axis=0) * inside.elements
                tiles = np.prod(walk.trips[len(tiled.reduction) : depth, which], axis=0)  # that read one copy
                stored = np.where(tiles > 1, 1.0, _stored(model, population, walk, group, inside))
                unseen = np.maximum(0.0, 1 - cost.streams / inside.runs) * inside.apart
                near_by = cost.near_apart_cycles * inside.apart
                begun = _begun(walk, footprints[copy.operand], depth, which)
                rows = far[copy.operand]
                far_off = cost.apart_cycles * _inside(rows, depth, which).apart * _begun(walk, rows, depth, which)
                through = copy.cycles + copy.latency * (near_by + far_off) / tiled.lanes
                waited = cost.row_cycles * unseen + copy.latency * (near_by * begun + far_off)
                kept = copy.kept + waited / tiled.lanes
                there = again * (stored * through + (1 - stored) * kept)
                near = (again <= MOST_COPIES * points) | tiled.sliding
                copied[which] = np.where(near, there, copied[which])
        total = total + copied
    return total


def _begun(walk: _Walk, touched: Footprint, depth: int, which: NDArray[np.intp]) -> Floats:
    """The part of the rows of a box that the next one does not go on with: 1 where the loop around it goes down a map,
    0 where it goes along its rows."""
    trips, runs = walk.trips[depth:, which], touched.runs[depth:, which]
    first, each = np.argmax(trips > 1, axis=0), np.arange(len(which))  # the innermost loop that goes on, of each
    grown = runs[first + 1, each] / runs[0] - 1
    return np.asarray(np.clip(grown / np.maximum(1.0, trips[first, each] - 1), 0.0, 1.0), np.float64)


def _stored(model: Model, population: Population, walk: _Walk, group: int, inside: Footprint) -> Floats:
    """The fraction of a copy, read by a single register tile, that goes through memory [members]. LLVM keeps the
    elements of a fully unrolled window in registers, beside the accumulators and the weights that the next tile reuses.
    It loads elements late, so a small excess over the registers mostly stays in them too."""
    tiled, (which, loops) = model.tiled, walk.groups[group]
    if not tiled.whole_window:
        return np.ones(len(which))
    inner, members = len(tiled.reduction), population.take(which)
    again = np.array([loop.iterator != tiled.vector for loop in loops[::-1][inner:]])
    weights = sum(read.load.buffer in tiled.task.constants for read in tiled.reads) * tiled.steps * members.vectors
    kept = np.where(again[np.argmax(walk.trips[inner:, which] > 1, axis=0)], weights, 0)
    elements = inside.elements / tiled.lanes
    needed = np.prod(members.rows, axis=1) * members.vectors + kept + elements
    room = tiled.target.vector.registers * (1 + tiled.target.cost.late_share)
    return np.asarray(np.clip((needed - room) / elements, 0.0, 1.0), np.float64)
