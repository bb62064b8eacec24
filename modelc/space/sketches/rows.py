"""Schedules of Tasks with several reductions over common rows: softmax, normalisations (DESIGN section 6).

The last Block owns the loops over rows; every other Block is placed inside them and works on a few rows. Where a row is
contiguous, its reductions are split over vector lanes; where the rows themselves are contiguous (channels-last
normalisation over space), a vector of rows is worked on at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod

from modelc.ir.affine import linear, simplify
from modelc.ir.block import AnyBlock, Block, Task
from modelc.ir.candidate import BlockSchedule, Candidate, Stage
from modelc.ir.expr import Const, Expr, Var, op, substitute, variables
from modelc.space.analysis.access import accesses, stored_lanes
from modelc.space.sketches.lanes import inside_rows, lanes_split
from modelc.space.sketches.maps import SERIAL_POINTS, collapsed, map_schedule, parallel_first, vector_iterator
from modelc.space.sketches.phases import PARALLEL_POINTS, phases_candidate
from modelc.target import Target

ROWS_TOGETHER = 4  # that are worked on together: while one waits for its sum, others go on


def rows_candidate(task: Task, target: Target, stages: list[Stage]) -> Candidate:
    """All Blocks of `task` inside one loop over rows; in phases if there are none, or few and long ones."""
    owner_name = task.blocks[-1].name
    task = collapsed(task, owner_name, stages)
    owner = task.block(owner_name)
    assert isinstance(owner, Block)
    rows = row_iterators(task, owner)
    if not rows or owner.reduction or not all(map(_placeable, task.blocks[:-1])):
        return phases_candidate(task, target, stages)
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
        points = max(b.points() for b in task.blocks if isinstance(b, Block))
        if prod(owner.ranges[n] for n in rows) < 2 * target.cores and points >= PARALLEL_POINTS:
            return phases_candidate(task, target, stages)
        task = lanes_split(task, target, stages)
    lanes = stored_lanes(target, task.buffer(writes[0].load.buffer).dtype)
    outer = sorted(rows, key=lambda n: -abs(writes[0].strides[n] or 0))
    order = [f"{n}0" for n in outer]
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
        order = parallel_first(order, {n: owner.ranges[n[:-1]] for n in order}, target)
        tags[order[0]] = "parallel"
    attach, last = f"{owner_name}.{order[-1]}", order[-1][:-1]
    if not across_rows:
        whole = vector is not None and owner.ranges[vector] % lanes == 0  # else rows begin amid cache lines
        count = prod(owner.ranges[n] for n in rows)
        tiles[last] = (group(owner.ranges[last], count, target) if whole else 1,)
        inner.insert(0, f"{last}1")
    schedules = {owner_name: BlockSchedule("root", "arena", tiles, tuple(order + inner), tags)}
    for block in task.blocks[:-1]:
        assert isinstance(block, Block)
        place = partial(map_schedule, scope="local") if across_rows else inside_rows
        schedules[block.name] = place(task, block, target, attach)
    return Candidate({b.name: schedules[b.name] for b in task.blocks}, tuple(stages))


def group(extent: int, rows: int, target: Target) -> int:
    """How many of `extent` rows, of `rows` in all, are worked on together: few enough to leave something to do for
    every core, and without a rest if possible."""
    most = max(1, min(ROWS_TOGETHER, extent, rows // (2 * target.cores)))
    return next((n for n in range(most, most // 2, -1) if extent % n == 0), most)


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
    return _apart(task, owner, {n for n in rows if owner.ranges[n] > 1})


def _apart(task: Task, owner: Block, rows: set[str]) -> set[str]:
    """Those of `rows` of which what one needs, through all Blocks, lies at one place in every local buffer. Where a
    recurrence reads its own state once at a row and once whole, there are no rows."""
    while rows:
        moving: dict[str, list[Expr]] = {}  # buffer -> by dimension, where a row's part of it begins
        clash = set[str]()
        for block in reversed(task.blocks):
            assert isinstance(block, Block)
            begin: dict[str, Expr] = {i.name: Const(0) for i in block.iters}
            if block is owner:
                begin |= {n: Var(n) for n in rows}
            for index, start in zip(block.writes[0].indices, moving.get(block.writes[0].buffer, ()), strict=False):
                if isinstance(index, Var):
                    begin[index.name] = start
            for read in (r for r in block.reads if r.buffer not in task.inputs):
                starts = [_from_zero(substitute(i, begin), owner.ranges) for i in read.indices]
                for one, other in zip(starts, moving.setdefault(read.buffer, starts), strict=True):
                    clash |= variables(one) | variables(other) if one != other else set()
        if not clash:
            break
        rows = rows - clash
    return rows


def _from_zero(index: Expr, ranges: Mapping[str, int]) -> Expr:
    """An index without its constant."""
    index = simplify(index, ranges)
    form = linear(index)
    return index if form is None else simplify(op("sub", index, form.constant), ranges)


def _placeable(block: AnyBlock) -> bool:
    """Whether a Block can compute just the part of its result that one row needs."""
    return isinstance(block, Block) and all(isinstance(i, (Var, Const)) for w in block.writes for i in w.indices)
