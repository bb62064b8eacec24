"""Schedules of Tasks with several reductions over common rows: softmax, normalisations (DESIGN section 6).

The last Block owns the loops over rows; every other Block is placed inside them and works on a few rows. Where a row is
contiguous, its reductions are split over vector lanes; where the rows themselves are contiguous (channels-last
normalisation over space), a vector of rows is worked on at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import prod

from modelc.ir.affine import linear, simplify
from modelc.ir.block import AnyBlock, Block, Task
from modelc.ir.candidate import BlockSchedule, Candidate, Stage
from modelc.ir.expr import Const, Expr, Var, op, substitute, variables
from modelc.ir.loop import ROOT, Inside, Loop
from modelc.space.analysis.access import accesses, stored_lanes, vector_iterator
from modelc.space.sketch import Knob
from modelc.space.sketches.clean import collapsed
from modelc.space.sketches.lanes import LANE_GROUPS, inside_rows, lanes_split
from modelc.space.sketches.maps import Map, map_schedule
from modelc.space.sketches.phases import GROUPS, GROUPS_DECIDE, PARALLEL_POINTS
from modelc.space.tiling.parallel import SERIAL_POINTS, parallel_first
from modelc.target import Target

ROWS_TOGETHER = 4  # that are worked on together: while one waits for its sum, others go on
TOGETHER = (1, 2, ROWS_TOGETHER, 2 * ROWS_TOGETHER)


@dataclass(frozen=True)
class RowKnobs:
    """What is open where all Blocks run inside one loop over rows."""

    together: int  # rows in one iteration
    groups: int  # vectors of partial results of a lane-split reduction
    parallel: Loop | None  # the loop over rows whose iterations go to threads


class Rows:
    """What the loops over rows of a Task depend on. `inside`: all Blocks may run inside them; `across`: a vector holds
    elements of as many rows; `few`: they are few and long, so that phases leave more to do at once."""

    def __init__(self, task: Task, target: Target, stages: list[Stage]):
        owner_name = task.blocks[-1].name
        self.task, self.target = collapsed(task, owner_name, stages), target
        self.stages = tuple(stages)
        owner = self.task.block(owner_name)
        assert isinstance(owner, Block)
        _, writes = accesses(self.task, owner)
        blocks = [b for b in self.task.blocks if isinstance(b, Block)]
        self.owner, self.rows = owner, row_iterators(self.task, owner)
        self.inside = bool(self.rows) and not owner.reduction and all(map(_placeable, self.task.blocks[:-1]))
        self.vector = vector_iterator(owner, writes)
        self.lanes = stored_lanes(target, self.task.buffer(writes[0].load.buffer).dtype)
        self.outer = [Loop(n, 0) for n in sorted(self.rows, key=lambda n: -abs(writes[0].strides[n] or 0))]
        reduced = [(r, i) for b in blocks for r in accesses(self.task, b)[0] for i in b.reduction if i.extent > 1]
        self.across = self.vector in self.rows and not any(r.strides[i.name] == 1 for r, i in reduced)
        self.count = prod(owner.ranges[n] for n in self.rows)
        self.few = self.count < 2 * target.cores and max(b.points() for b in blocks) >= PARALLEL_POINTS
        self.long = owner.points() >= SERIAL_POINTS

    def rules(self) -> RowKnobs:
        """Rows in the outermost loop that has enough for all threads; a few at once."""
        owner, parallel = self.owner, None
        if self.long:
            counts = {loop: owner.ranges[loop.iterator] for loop in self.outer}
            parallel = parallel_first(self.outer, counts, self.target)[0]
        last = owner.ranges[self.order(parallel)[-1].iterator]
        whole = self.vector is not None and owner.ranges[self.vector] % self.lanes == 0  # else rows begin amid lines
        together = group(last, self.count, self.target) if whole and not self.across else 1
        return RowKnobs(together, LANE_GROUPS, parallel)

    def knobs(self) -> list[Knob]:
        """Every knob, with values other than that of the rules."""
        most = max(self.owner.ranges[n] for n in self.rows)
        together = () if self.across else tuple(n for n in TOGETHER if n <= most)
        loops = (None, *self.outer) if self.long else ()
        return [
            Knob("together", together, "rows in one iteration"),
            Knob("groups", () if self.across else GROUPS, GROUPS_DECIDE),
            Knob("parallel", loops, "the loop over rows whose iterations go to threads"),
        ]

    def order(self, parallel: Loop | None) -> list[Loop]:
        """The loops over rows: the one in front whose iterations go to threads."""
        return sorted(self.outer, key=lambda loop: loop != parallel)

    def candidate(self, knobs: RowKnobs) -> tuple[Task, Candidate]:
        """All Blocks inside the loops over rows, and the Task after the Candidate's stages."""
        stages, target, owner, vector = [*self.stages], self.target, self.owner, self.vector
        task = self.task if self.across else lanes_split(self.task, target, stages, groups=knobs.groups)
        order = self.order(knobs.parallel)
        facts = Map(task, owner, target)
        base = facts.schedule(facts.rules(at_root=False), ROOT, "arena")
        inner = [loop for loop in base.order if loop.iterator not in self.rows]
        tiles = {name: sizes for name, sizes in base.tiles.items() if name not in self.rows}
        tags = {loop: tag for loop, tag in base.tags.items() if loop.iterator not in self.rows}
        if self.across:
            assert vector is not None
            tiles[vector] = (self.lanes,)
            inner.append(Loop(vector, 1))
            tags[inner[-1]] = "vector"
        if knobs.parallel:
            tags[knobs.parallel] = "parallel"
        attach, last = Inside(owner.name, order[-1]), order[-1].iterator
        if not self.across:
            tiles[last] = (knobs.together,)
            inner.insert(0, Loop(last, 1))
        schedules = {owner.name: BlockSchedule(ROOT, "arena", tiles, tuple(order + inner), tags)}
        for block in task.blocks[:-1]:
            assert isinstance(block, Block)
            place = partial(map_schedule, scope="local") if self.across else inside_rows
            schedules[block.name] = place(task, block, target, attach)
        return task, Candidate({b.name: schedules[b.name] for b in task.blocks}, tuple(stages))


def group(extent: int, rows: int, target: Target) -> int:
    """How many of `extent` rows, of `rows` in all, are worked on together: few enough to leave something to do for
    every core, and without a rest if possible."""
    most = max(1, min(ROWS_TOGETHER, extent, rows // (2 * target.cores)))
    return next((n for n in range(most, most // 2, -1) if extent % n == 0), most)


def row_iterators(task: Task, owner: Block) -> set[str]:
    """Iterators of `owner` that index every per-row value it reads (a mean, a maximum): one value of them is a row."""
    per_row: set[str] = set()
    for b in task.blocks[:-1]:
        if not isinstance(b, Block):
            return set()
        reads = [{i.name for i in r.indices if isinstance(i, Var)} for r in b.reads if r.buffer in per_row]
        extents = {i.name for i in b.spatial if i.extent > 1}
        if b.reduction or any(extents <= indexed for indexed in reads):
            per_row |= {w.buffer for w in b.writes}
    row_names = [{i.name for i in r.indices if isinstance(i, Var)} for r in owner.reads if r.buffer in per_row]
    rows = set.intersection(*row_names) if row_names else set()
    rows = _apart(task, owner, {n for n in rows if owner.ranges[n] > 1})
    return rows if all(_written_by_rows(task, owner, b, rows) for b in task.blocks[:-1]) else set()


def _written_by_rows(task: Task, owner: Block, block: AnyBlock, rows: set[str]) -> bool:
    """Whether what `block` writes of the Task's outputs is written whole, each row once, where `owner` reads it; and
    no reduction beside it gives more than a number for each row, all of which would be computed in each."""
    assert isinstance(block, Block)
    written = {w.buffer for w in block.writes} & {*task.outputs}
    reducing = [b for b in task.blocks[:-1] if isinstance(b, Block) and b.reduction]
    count = prod(owner.ranges[n] for n in rows)
    if written and any(prod(i.extent for i in b.spatial) > count for b in reducing):
        return False
    for name in written:
        shape = task.buffer(name).shape
        for read in (r for r in owner.reads if r.buffer == name):
            whole = [
                str(i) for i, n in zip(read.indices, shape, strict=True) if n > 1 and owner.ranges.get(str(i)) == n
            ]
            if rows <= set(whole) and len(whole) == len(set(whole)) == sum(n > 1 for n in shape):
                break
        else:
            return False
    return True


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
                for own, other in zip(starts, moving.setdefault(read.buffer, starts), strict=True):
                    clash |= variables(own) | variables(other) if own != other else set()
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
