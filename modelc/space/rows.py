"""Schedules of Tasks with several reductions over common rows: softmax, normalisations (DESIGN section 6).

The last Block owns the loops over rows; every other Block is placed inside them and works on one row. Where a row is
contiguous, its reductions are split over vector lanes; where the rows themselves are contiguous (channels-last
normalisation over space), a vector of rows is worked on at once.
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod

from modelc.ir.block import AnyBlock, Block, Task
from modelc.ir.candidate import BlockSchedule, Candidate, Stage
from modelc.ir.expr import Const, Var, variables
from modelc.space.access import accesses, stored_lanes
from modelc.space.maps import SERIAL_POINTS, applied, collapsed, map_schedule, vector_iterator
from modelc.space.rule import DoesNotApply
from modelc.target import Target

LANE_GROUPS = 4  # partial results per lane-split reduction, in vectors: covers the latency of the combining operation


def rows_candidate(task: Task, target: Target, stages: list[Stage]) -> Candidate:
    """All Blocks of `task` inside one loop over rows; if there are no rows, one phase each."""
    owner_name = task.blocks[-1].name
    task = collapsed(task, owner_name, stages)
    owner = task.block(owner_name)
    assert isinstance(owner, Block)
    rows = row_iterators(task, owner)
    if not rows or owner.reduction or not all(map(_placeable, task.blocks[:-1])):
        return Candidate(
            {b.name: map_schedule(task, b, target) for b in task.blocks if isinstance(b, Block)}, tuple(stages)
        )
    _, writes = accesses(task, owner)
    vector = vector_iterator(owner, writes)
    across_rows = vector in rows and not any(
        r.strides[i.name] == 1
        for b in task.blocks
        if isinstance(b, Block)
        for r in accesses(task, b)[0]
        for i in b.reduction
        if i.extent > 1
    )
    if not across_rows:
        task = lanes_split(task, target, stages)
    lanes = stored_lanes(target, task.buffer(writes[0].load.buffer).dtype)
    outer = sorted(rows, key=lambda n: -abs(writes[0].strides[n] or 0))
    order = [f"{n}0" for n in outer]
    attach = f"{owner_name}.{order[-1]}"
    base = map_schedule(task, owner, target, "inside")
    inner = [n for n in base.order if n[:-1] not in rows]
    tiles = {k: v for k, v in base.tiles.items() if k not in rows}
    tags = {k: v for k, v in base.tags.items() if k[:-1] not in rows}
    if across_rows:
        assert vector is not None
        tiles[vector] = (lanes,)
        inner.append(f"{vector}1")
        tags[f"{vector}1"] = "vector"
    if prod(i.extent for i in owner.iters) >= SERIAL_POINTS:
        first = next((n for n in order if owner.ranges[n[:-1]] >= 2 * target.cores), order[0])
        order.remove(first)
        order.insert(0, first)
        tags[first] = "parallel"
        attach = f"{owner_name}.{order[-1]}"
    schedules = {owner_name: BlockSchedule("root", "arena", tiles, tuple(order + inner), tags)}
    fixed = fixed_in_a_row(task, owner, rows)
    for block in task.blocks[:-1]:
        assert isinstance(block, Block)
        schedules[block.name] = inside_row(task, block, target, attach, across_rows, lanes, fixed[block.name])
    return Candidate({b.name: schedules[b.name] for b in task.blocks}, tuple(stages))


def row_iterators(task: Task, owner: Block) -> set[str]:
    """Iterators of `owner` that index every per-row value it reads (a mean, a maximum): one value of them is a row."""
    per_row: set[str] = set()
    for b in task.blocks[:-1]:
        if not isinstance(b, Block) or {w.buffer for w in b.writes} & {*task.outputs}:
            return set()  # an output written inside would need its own domain
        reads = [{i.name for i in r.indices if isinstance(i, Var)} for r in b.reads if r.buffer in per_row]
        extents = {i.name for i in b.spatial if i.extent > 1}
        if b.reduction or any(extents <= indexed for indexed in reads):
            per_row |= {w.buffer for w in b.writes}
    found = [{i.name for i in r.indices if isinstance(i, Var)} for r in owner.reads if r.buffer in per_row]
    rows = set.intersection(*found) if found else set()
    return {n for n in rows if owner.ranges[n] > 1}


def _placeable(block: AnyBlock) -> bool:
    """Whether a Block can compute just the part of its result that one row needs."""
    return isinstance(block, Block) and all(isinstance(i, (Var, Const)) for w in block.writes for i in w.indices)


def lanes_split(task: Task, target: Target, stages: list[Stage], but: Collection[str] = ()) -> Task:
    """Splits every reduction over a contiguous iterator into partial results per lane, except in Blocks `but`."""
    for block in task.blocks:
        if not isinstance(block, Block) or not block.reduction or len(block.writes) > 1 or block.name in but:
            continue
        reads, _ = accesses(task, block)
        lanes = stored_lanes(target, task.buffer(block.writes[0].buffer).dtype)
        for i in block.reduction:
            if i.extent >= lanes and any(r.strides[i.name] == 1 for r in reads):
                groups = max(1, min(LANE_GROUPS, i.extent // (2 * lanes)))
                try:
                    task = applied(task, stages, "lane_split", block=block.name, iter=i.name, lanes=lanes * groups)
                except DoesNotApply:
                    continue
                break
    return task


def fixed_in_a_row(task: Task, owner: Block, rows: set[str]) -> dict[str, set[str]]:
    """For each Block the iterators of which one row needs one value."""
    fixed = {owner.name: set(rows)}
    for block in reversed([b for b in task.blocks[:-1] if isinstance(b, Block)]):
        reads = [(b, r) for b in task.blocks if isinstance(b, Block) and b.name in fixed for r in b.reads]
        fixed[block.name] = {
            index.name
            for write in block.writes
            for d, index in enumerate(write.indices)
            if isinstance(index, Var)
            and all(str(r.indices[d]) in fixed[b.name] for b, r in reads if r.buffer == write.buffer)
        }
    return fixed


def inside_row(
    task: Task, block: Block, target: Target, at: str, across_rows: bool, lanes: int, fixed: set[str]
) -> BlockSchedule:
    """Loops of a Block that works on one row (or one vector of rows)."""
    if not block.reduction or across_rows:
        schedule = map_schedule(task, block, target, at, "local")
        return BlockSchedule(at, "local", schedule.tiles, schedule.order, schedule.tags)
    names = [f"{i.name}0" for i in block.spatial]
    reduction = [f"{i.name}0" for i in block.reduction]
    lane = block.iters[-1]
    loose = any(i.extent > 1 and i.name not in fixed for i in block.spatial if i is not lane)
    scope = "local" if loose else "register"  # registers are indexed by constants
    if not lane.reduce and variables(block.writes[0].indices[-1]) == {lane.name} and lane.extent % lanes == 0:
        tiles = {lane.name: (lanes,)}
        order = [*names[:-1], *reduction, f"{lane.name}0", f"{lane.name}1"]
        return BlockSchedule(at, scope, tiles, tuple(order), {f"{lane.name}0": "unroll", f"{lane.name}1": "vector"})
    if lane.reduce and len(reduction) == 1 and lane.extent <= LANE_GROUPS * lanes:
        return BlockSchedule(at, scope, {}, (*names, f"{lane.name}0"), {f"{lane.name}0": "vector"})
    return BlockSchedule(at, "local", {}, (*names, *reduction), {})
