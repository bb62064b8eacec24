"""The Candidate of a tiled Task: where what surrounds the micro-kernel runs, how operands lie, what is prefetched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from modelc.ir.block import Block
from modelc.ir.candidate import BlockSchedule, Candidate
from modelc.ir.expr import Load, Var, variables
from modelc.ir.layout import Layout
from modelc.ir.loop import ROOT, Inside, Loop, Root
from modelc.space.analysis.access import reads_plainly
from modelc.space.analysis.around import afterwards, vectors_end
from modelc.space.analysis.follow import followed
from modelc.space.analysis.loops import copies, covered, trips
from modelc.space.cost.register_tile import registers
from modelc.space.nest.prefetch import far_computed, far_results
from modelc.space.sketches.maps import map_schedule
from modelc.space.tiling.tiled import FAR, FETCHING_ROWS, MOST_COPIES, Tiled, TiledKnobs


def tiled_candidate(tiled: Tiled, knobs: TiledKnobs) -> Candidate:
    """The schedule that `knobs` describe."""
    anchor, v, parallel = tiled.anchor, tiled.vector, knobs.parallel
    tiles, macro = tiled.tiles(knobs), tiled.macro_loops(knobs)
    rows = tiled.row_loops(tiles)
    micro = [Loop(v, 1), *rows] if tiled.vectors_outside(knobs) else [*rows, Loop(v, 1)]
    unit = tiled.unit.loops(tiled, tiles)
    tags = dict.fromkeys(micro, "unroll") | unit
    if parallel:
        tags[parallel] = "parallel"
    reduction = [Loop(n, 0) for n in tiled.reduction]
    steps = tiled.unrolled_steps(knobs, tiles)
    tags |= dict.fromkeys(steps, "unroll")
    if tiled.whole_window:
        tags |= dict.fromkeys(reduction, "unroll")
    layouts = {w.buffer: x for w in (*anchor.writes, *tiled.result.writes) if (x := tile_layout(tiled, w)) is not None}
    free, prefetch = True, dict[str, Loop | Root]()
    for read in tiled.reads:
        constant = read.load.buffer in tiled.task.constants
        if read.strides[v] != 0 and (constant or read.load.buffer in tiled.unit.copied):
            layout = tiled.unit.packing(tiled, read, knobs)
            if layout is not None:
                layouts[read.load.buffer] = layout
                if constant and tiled.unit.prefetches(tiled, macro, tiles):
                    prefetch[read.load.buffer] = tiled.panels
                continue
        end = vectors_end(tiled.task, anchor, read, v, tiled.lanes)
        room = end is not None and end[1] <= tiled.task.buffer(read.load.buffer).shape[end[0]]
        free = free and (v not in variables(read.load) or room)  # what is repeated along it has an end, too
        moving = tiled.moving(read, macro) if tiled.unpacked and read.strides[v] != 0 else []
        if moving and prefetches_rows(tiled, read.load.buffer, moving[-1], macro, tiles):
            prefetch[read.load.buffer] = moving[-1]
    pad = (v,) if free else ()
    order = (*macro, *reduction, *steps, *micro, *unit)
    schedules: dict[str, BlockSchedule] = {}
    at = Inside(anchor.name, macro[-1])
    for consumer in tiled.consumers:
        schedules[consumer.name] = tiled.unit.epilogue(tiled, consumer, at, knobs)
    for later in afterwards(tiled.task, tiled.result):
        loop = None
        if tiled.turns is None:  # else results are there after the last turn
            loop = followed(tiled.task, anchor, tiled.consumers, later, macro, tiles, tiled.target.second.bytes)
        spot = ROOT if loop is None else Inside(anchor.name, loop)
        schedules[later.name] = map_schedule(tiled.task, later, tiled.target, spot)
        near = later.buffers_read if loop is not None else set()
        for consumer in (c for c in tiled.consumers if near & {w.buffer for w in c.writes}):
            schedules[consumer.name] = replace(schedules[consumer.name], scope="local")
    for producer in tiled.task.blocks[: tiled.task.blocks.index(anchor)]:
        assert isinstance(producer, Block)
        schedules[producer.name], layout = prologue(tiled, producer, macro, tiles)
        if layout is not None:
            layouts[producer.writes[0].buffer] = layout
        place = schedules[producer.name].at
        if place is not ROOT and prefetches_rows(tiled, producer.reads[0].buffer, place.loop, macro, tiles):
            prefetch[producer.reads[0].buffer] = place.loop
    prefetch |= {name: macro[-1] for name in prefetched_results(tiled, knobs, tags)}
    if knobs.prefetch != FAR:
        prefetch = {}
    if tiled.unit.pipelined:
        tags |= dict.fromkeys((m for m in macro if m != parallel), "pipeline")
    schedules[anchor.name] = BlockSchedule(ROOT, "register", tiles, order, tags, pad, prefetch)
    if tiled.turns is not None:
        schedules = in_turn(tiled, schedules, macro)
    return Candidate({b.name: schedules[b.name] for b in tiled.task.blocks}, tiled.stages, layouts)


def in_turn(tiled: Tiled, schedules: Mapping[str, BlockSchedule], macro: Sequence[Loop]) -> dict[str, BlockSchedule]:
    """`schedules` with the `macro` loops around the consumer, which adds up parts of the reduction: in front of each of
    its register tiles, one of the anchor's is made."""
    anchor, (consumer, *_) = tiled.anchor, tiled.consumers
    inside, plain = schedules[anchor.name], reads_plainly(consumer, anchor.writes[0].buffer) or {}
    names = {str(index): plain[d] for d, index in enumerate(anchor.writes[0].indices) if d in plain}
    v, tiles = tiled.vector, {names[n]: tile for n, tile in inside.tiles.items() if n in names}

    def owned(loop: Loop) -> Loop:
        return Loop(names[loop.iterator], loop.level)

    rows, vector = [*tiled.row_loops(inside.tiles), Loop(v, 1)], Loop(v, 2)
    tags = dict.fromkeys(map(owned, rows), "unroll") | {owned(vector): "vector"}
    tags |= {owned(m): inside.tags[m] for m in macro if m in inside.tags}
    moved = dict[str, BlockSchedule]()
    for name, schedule in schedules.items():
        if isinstance(schedule.at, Inside) and schedule.at.block == anchor.name:
            schedule = replace(schedule, at=Inside(consumer.name, owned(schedule.at.loop)))
        moved[name] = schedule
    micro = tuple(loop for loop in inside.order if loop not in macro)
    moved[anchor.name] = replace(
        inside,
        at=Inside(consumer.name, owned(macro[-1])),
        order=micro,
        tags={loop: tag for loop, tag in inside.tags.items() if loop in micro},
        prefetch={},
    )
    moved[consumer.name] = BlockSchedule(ROOT, "arena", tiles, tuple(map(owned, (*macro, *rows, vector))), tags)
    return moved


def prologue(
    tiled: Tiled, producer: Block, macro: list[Loop], tiles: Mapping[str, tuple[int, ...]]
) -> tuple[BlockSchedule, Layout | None]:
    """Where a padded or packed copy is made: in the innermost of the outer loops that all move through it, unless
    their iterations read much the same. Where each lane has a window of its own (depthwise) there is too little
    arithmetic for a copy that is not near."""
    buffer = producer.writes[0].buffer
    read = next((r for r in tiled.reads if r.load.buffer == buffer), None)
    layout = None
    if read is None:
        return map_schedule(tiled.task, producer, tiled.target), None
    dims = [d for d, i in enumerate(read.load.indices) if i == Var(tiled.vector)]
    if buffer not in tiled.unit.copied and read.strides[tiled.vector] not in (0, 1) and dims:
        layout = Layout().then("reorder", *(d for d in range(len(read.load.indices)) if d not in dims), *dims)
    inside = None
    for loop in tiled.moving(read, macro):
        again = copies(read.load, tiled.ranges, macro[: macro.index(loop) + 1], tiles)
        if tiled.sliding or again <= MOST_COPIES:
            inside = loop
    at, scope = (ROOT, "arena") if inside is None else (Inside(tiled.anchor.name, inside), "local")
    own = tiled.unit.copy(tiled, producer, at, scope)
    return own or map_schedule(tiled.task, producer, tiled.target, at, scope), layout


def prefetches_rows(
    tiled: Tiled, buffer: str, loop: Loop, macro: Sequence[Loop], tiles: Mapping[str, tuple[int, ...]]
) -> bool:
    """Whether what is read, or copied, of `buffer` in the next iteration of `loop` is prefetched in this one."""
    if tiled.sliding or not tiled.unit.plain or trips(loop, tiled.ranges, tiles) == 1:
        return False
    extents = covered(tiled.ranges, macro[: macro.index(loop) + 1], tiles)
    far = far_computed(tiled.task, tiled.anchor, extents, tiled.target.second.bytes)
    return buffer in far and tiled.passes(loop, macro, tiles) >= FETCHING_ROWS


def prefetched_results(tiled: Tiled, knobs: TiledKnobs, tags: Mapping[Loop, str]) -> list[str]:
    """Results whose lines are prefetched while register tiles are summed up, or each tile would wait for them when it
    is done. Not where accumulators leave no register over: LLVM spills them beside these hints."""
    rows, vectors = np.array([[c for _, c in knobs.rows]], np.int64), np.array([knobs.vectors], np.int64)
    full = registers(tiled, rows.reshape(1, -1), vectors)[0] >= tiled.target.vector.registers
    if full or tiled.sliding or not tiled.unit.plain or all(Loop(n, 0) in tags for n in tiled.reduction):
        return []
    extents = covered(tiled.ranges, tiled.macro_loops(knobs), tiled.tiles(knobs))
    return far_results(tiled.task, tiled.anchor, extents, tiled.target.second.bytes)


def tile_layout(tiled: Tiled, write: Load) -> Layout | None:
    """The accumulators' layout, where they do not lie so by themselves: the vector iterator innermost. Results lie as
    who reads them expects."""
    dims = [d for d, i in enumerate(write.indices) if i != Var(tiled.vector)]
    last = next(d for d, i in enumerate(write.indices) if i == Var(tiled.vector))
    order = (*dims, last)
    if order != tuple(range(len(order))):
        return Layout().then("reorder", *order)
    as_they_are = write.buffer in tiled.task.outputs or tiled.task.buffer(write.buffer).layout == Layout()
    return None if as_they_are else Layout()
