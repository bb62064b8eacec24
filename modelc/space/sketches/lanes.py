"""Reductions of contiguous elements, split over vector lanes: a partial result per lane, then across the lanes."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from modelc.ir.block import Block, Task
from modelc.ir.candidate import BlockSchedule, Stage
from modelc.ir.expr import variables
from modelc.ir.loop import Inside, Loop
from modelc.space.analysis.access import accesses, stored_lanes
from modelc.space.rules.rule import DoesNotApply
from modelc.space.sketches.clean import applied
from modelc.space.sketches.maps import map_schedule
from modelc.target import Target

LANE_GROUPS = 4  # partial results per lane-split reduction, in vectors: covers the latency of the combining operation


def lanes_split(
    task: Task, target: Target, stages: list[Stage], but: Collection[str] = (), groups: int = LANE_GROUPS
) -> Task:
    """Splits every reduction over a contiguous iterator into partial results per lane, except in Blocks `but`."""
    for block in task.blocks:
        if isinstance(block, Block) and block.reduction and block.name not in but:
            with suppress(DoesNotApply):
                task = lane_split(task, block, target, stages, groups)
    return task


def lane_split(task: Task, block: Block, target: Target, stages: list[Stage], groups: int = LANE_GROUPS) -> Task:
    """Splits a reduction over its contiguous iterator, if it is long enough, into partial results per lane of `groups`
    vectors at most. Raises DoesNotApply."""
    reads, _ = accesses(task, block)
    lanes = stored_lanes(target, task.buffer(block.writes[0].buffer).dtype)
    for i in block.reduction:
        if i.extent >= lanes and any(r.strides[i.name] == 1 for r in reads):
            size = lanes * max(1, min(groups, i.extent // (2 * lanes)))
            return applied(task, stages, "rfactor", block=block.name, iter=i.name, size=size, parts="inner")
    raise DoesNotApply(f"no iterator that block {block.name} reduces over fills a vector")


def partial_of(task: Task, name: str) -> Block:
    """The Block whose partial results Block `name` reduces, after rfactor."""
    block = task.blocks[[b.name for b in task.blocks].index(name) - 1]
    assert isinstance(block, Block)
    return block


def inside_rows(task: Task, block: Block, target: Target, at: Inside) -> BlockSchedule:
    """Loops of a Block that works on a group of rows. Partial results per lane stay in registers: they are made in the
    innermost loop of what reduces them."""
    if not block.reduction:
        return map_schedule(task, block, target, at, "local")
    loops = [Loop(i.name, 0) for i in block.spatial]
    reduction = [Loop(i.name, 0) for i in block.reduction]
    lane, lanes = block.iters[-1], stored_lanes(target, task.buffer(block.writes[0].buffer).dtype)
    if not lane.reduce and variables(block.writes[0].indices[-1]) == {lane.name} and lane.extent % lanes == 0:
        vectors, vector = Loop(lane.name, 0), Loop(lane.name, 1)
        order, tags = (*loops[:-1], *reduction, vectors, vector), {vectors: "unroll", vector: "vector"}
        readers = [b for b in task.blocks if isinstance(b, Block) and block.writes[0].buffer in b.buffers_read]
        scope = "local"
        if len(readers) == 1 and readers[0].reduction and len(readers[0].spatial) == len(loops) - 1:
            scope = "register"
            at = Inside(readers[0].name, loops[-2]) if len(loops) > 1 else at
        return BlockSchedule(at, scope, {lane.name: (lanes,)}, order, tags)
    if lane.reduce and len(reduction) == 1 and lane.extent <= LANE_GROUPS * lanes:
        return BlockSchedule(at, "local", {}, (*loops, *reduction), {reduction[0]: "vector"})
    return BlockSchedule(at, "local", {}, (*loops, *reduction), {})
