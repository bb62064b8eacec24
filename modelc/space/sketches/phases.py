"""Schedules in phases, every Block a loop nest of its own: reductions of whole tensors, of few long rows, of columns.

Each element is read once, so that memory sets the pace. What lies side by side in memory says how:

    lanes      elements that are reduced: a partial result for every lane of a few vectors, then across the lanes
    columns    elements of which each has its own result: whole rows are added up, a few at a time

Where that leaves too little to do at once, the outermost reduction is factored first: its parts go to threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod

from modelc.ir.block import Block, Iter, Task
from modelc.ir.candidate import BlockSchedule, Candidate, Stage
from modelc.ir.expr import DTYPES, Const, Var, variables
from modelc.ir.layout import Layout
from modelc.ir.loop import ROOT, Inside, Loop, Root
from modelc.space.analysis.access import Access, accesses, by_stride, reads_plainly, stored_lanes
from modelc.space.analysis.around import afterwards, consumers_of, reduction_of
from modelc.space.rules.rule import DoesNotApply, plain_block
from modelc.space.sketch import Knob
from modelc.space.sketches.clean import applied, collapsed
from modelc.space.sketches.lanes import LANE_GROUPS, inside_rows, lane_split, partial_of
from modelc.space.sketches.maps import map_schedule
from modelc.space.tiling.parallel import CHUNKS_PER_CORE, parallel_first
from modelc.target import Target

PARALLEL_POINTS = 1 << 16  # a reduction of fewer points is not worth a thread
ROWS_AT_ONCE = 4  # that are added up in registers before their sum is added to what is stored
LEAST_STEPS = 16  # of a reduction, for results in memory to cost little beside what is read
SHORT_CHAIN = 1 << 12  # additions one after the other: of more, parts are more exact, which on one core is all they are
CACHE_SHARE = 4  # of the nearest cache a stretch of results takes one in so many
MOST_PARTS = 8  # times as many as are wanted, where only some numbers of parts divide


@dataclass(frozen=True)
class PhaseKnobs:
    """The knobs of reductions in phases of their own; the defaults are the rules' choice."""

    parts: int = CHUNKS_PER_CORE  # for each core, of a reduction that has too little to do at once; 0: it is not cut
    groups: int = LANE_GROUPS  # vectors of partial results, by lanes
    rows: int = ROWS_AT_ONCE  # that are added up in registers, by columns
    share: int = CACHE_SHARE  # of the nearest cache a stretch of results takes one in so many, by columns


RULES = PhaseKnobs()
GROUPS, GROUPS_DECIDE = (1, 2, LANE_GROUPS), "vectors of partial results of a reduction over contiguous elements"
PHASE_KNOBS = (
    Knob("parts", (0, 1, 2 * CHUNKS_PER_CORE), "parts for each core of a reduction with too little to do at once"),
    Knob("groups", GROUPS, GROUPS_DECIDE),
    Knob("rows", (1, 2, 2 * ROWS_AT_ONCE), "rows that are added up in registers"),
    Knob("share", (CACHE_SHARE // 2, 2 * CACHE_SHARE), "one in so many parts of L1 is for a stretch of results"),
)


def phases_candidate(
    task: Task, target: Target, stages: list[Stage], knobs: PhaseKnobs = RULES
) -> tuple[Task, Candidate]:
    """Every Block of `task` in a phase of its own; and the Task after the Candidate's stages."""
    schedules: dict[str, BlockSchedule] = {}
    for block in task.blocks:
        assert isinstance(block, Block)
        if block.reduction:
            task, own = reduced(task, block, target, stages, knobs)
            schedules |= own
        else:
            schedules[block.name] = map_schedule(task, block, target)
    layouts = constants_along(task, schedules)
    return task, Candidate({b.name: schedules[b.name] for b in task.blocks}, tuple(stages), layouts)


def constants_along(task: Task, schedules: Mapping[str, BlockSchedule]) -> dict[str, Layout]:
    """Layouts of constants that one Block alone reads in vectors, across rows: the lanes lie side by side in them."""
    layouts = dict[str, Layout]()
    for buffer in (x for x in task.constants if task.buffer(x).layout == Layout()):
        readers = [b for b in task.blocks if isinstance(b, Block) and buffer in b.buffers_read]
        reads = [r for b in readers for r in accesses(task, b)[0] if r.load.buffer == buffer]
        lanes = [loop.iterator for b in readers for loop, tag in schedules[b.name].tags.items() if tag == "vector"]
        if len(readers) == len(reads) == len(lanes) == 1 and reads[0].strides.get(lanes[0]) not in (None, 0, 1):
            dims = [d for d, index in enumerate(reads[0].load.indices) if lanes[0] in variables(index)]
            if len(dims) == 1:
                rank = len(reads[0].load.indices)
                layouts[buffer] = Layout().then("reorder", *(d for d in range(rank) if d != dims[0]), *dims)
    return layouts


def separate(task: Task, target: Target) -> Candidate:
    """Every Block of `task` as it is, in a phase of its own, with the loops of a map."""
    blocks = task.blocks
    return Candidate(
        {b.name: map_schedule(task, b, target) if isinstance(b, Block) else BlockSchedule() for b in blocks}
    )


def columns_task(task: Task, stages: list[Stage]) -> Task | None:
    """A Task that begins with its one reduction, one by columns, with iterators that are one collapsed; else None."""
    noted, name = len(stages), reduction_of(task).name
    task = collapsed(task, name, stages)
    anchor = reduction_of(task)
    side = beside(task, anchor)
    if side is None or side.reduce or anchor is not task.blocks[0] or not by_columns(task, anchor, side):
        del stages[noted:]
        return None
    return task


def columns_candidate(
    task: Task, target: Target, stages: list[Stage], knobs: PhaseKnobs = RULES
) -> tuple[Task, Candidate]:
    """For a Task by columns: what follows runs on a stretch of results while that is in the nearest cache. And the Task
    after the Candidate's stages."""
    anchor = reduction_of(task)
    side, name = beside(task, anchor), anchor.name
    assert side is not None
    consumers, written = consumers_of(task, anchor), {w.buffer for w in anchor.writes}
    task, schedules = reduced(task, anchor, target, stages, knobs)
    at: Inside | Root = ROOT
    whole = len(schedules) == 1 and not written & {*task.outputs} and not afterwards(task, anchor)
    if whole and all(reads_plainly(c, buffer) is not None for c in consumers for buffer in written):
        at, schedules[name] = Inside(name, Loop(side.name, 0)), replace(schedules[name], scope="local")
    for block in task.blocks[len(schedules) :]:
        assert isinstance(block, Block)
        schedules[block.name] = map_schedule(task, block, target, at)
    return task, Candidate({b.name: schedules[b.name] for b in task.blocks}, tuple(stages))


def reduced(
    task: Task, block: Block, target: Target, stages: list[Stage], knobs: PhaseKnobs
) -> tuple[Task, dict[str, BlockSchedule]]:
    """`task` after a reduction was factored, and the schedules of the Blocks that it has become."""
    side = beside(task, block)
    lanes = stored_lanes(target, task.buffer(block.writes[0].buffer).dtype)
    plain = all(isinstance(i, (Var, Const)) for w in block.writes for i in w.indices)
    if side is None or not (plain and side.extent >= lanes if side.reduce else by_columns(task, block, side)):
        return task, {block.name: map_schedule(task, block, target)}
    unit = lanes * knobs.groups if side.reduce else knobs.rows
    task, part = parted(task, block, side, unit, knobs.parts, target, stages)
    schedules = {block.name: map_schedule(task, plain_block(task, block.name), target)}
    if side.reduce:
        task = lane_split(task, part, target, stages, knobs.groups)
        schedules |= lanes_schedules(task, plain_block(task, part.name), part.points(), target)
    else:
        schedules[part.name] = columns_schedule(task, part, side.name, knobs, target)
    return task, schedules


def beside(task: Task, block: Block) -> Iter | None:
    """The iterator that walks element by element through what a reduction reads most of."""
    read = largest_read(task, block)
    return next((i for i in block.iters if i.extent > 1 and read.strides[i.name] == 1), None) if read else None


def largest_read(task: Task, block: Block) -> Access | None:
    reads, _ = accesses(task, block)
    return max(reads, key=lambda r: prod(block.ranges[n] for n in r.moves), default=None)


def by_columns(task: Task, block: Block, side: Iter) -> bool:
    """Whether rows of elements can be added up to a row of results that is stored alike: there are enough of them, and
    no element is read twice."""
    reads, writes = accesses(task, block)
    steps = prod(i.extent for i in block.reduction)
    plain = not block.where and all(w.strides[side.name] == 1 for w in writes)
    return plain and steps >= LEAST_STEPS and all(read_once(r, block.iters) for r in reads)


def read_once(read: Access, iters: Iterable[Iter]) -> bool:
    """Whether every point of the iterators reads an element of its own."""
    steps = [(read.strides[i.name], i.extent) for i in iters if i.extent > 1]
    if not all(stride for stride, _ in steps):
        return False
    covered = 0
    for stride, extent in sorted((abs(s), n) for s, n in steps if s is not None):
        if stride <= covered:
            return False
        covered += stride * (extent - 1)
    return True


def parted(
    task: Task, block: Block, side: Iter, unit: int, per_core: int, target: Target, stages: list[Stage]
) -> tuple[Task, Block]:
    """`task` with the reduction in parts for threads, if they have too little to do without, and the Block of the
    parts (`block` itself where there are none). A part is a multiple of `unit`, if it can be. A reduction by lanes to
    one number has one part at least: it needs a loop to be in."""
    read = largest_read(task, block)
    assert read is not None
    outer = max((i for i in block.reduction if i.extent > 1), key=lambda i: abs(read.strides[i.name] or 0))
    steps = prod(i.extent for i in block.reduction)
    rows = max(1, prod(i.extent for i in block.spatial if i is not side))
    wanted = -(-target.cores * per_core // rows)
    if block.points() < PARALLEL_POINTS or rows >= 2 * target.cores:
        wanted = 1
    if not side.reduce:
        wanted = min(wanted, steps // (LEAST_STEPS if target.cores > 1 else SHORT_CHAIN))
    ways = list[tuple[int, int]]()  # how many parts, and of whole which units
    if wanted > 1 and steps == outer.extent:
        ways.append((min(wanted, max(1, outer.extent // unit)), unit))
    elif wanted > 1:
        counts = range(wanted, min(MOST_PARTS * wanted, outer.extent) + 1)
        ways += [(n, 1) for n in counts if outer.extent % n == 0][:1]
    if side.reduce and not block.spatial:
        ways.append((1, 1))
    for count, whole in ways:
        with suppress(DoesNotApply):
            place = {"block": block.name, "iter": outer.name}
            task = applied(task, stages, "rfactor", **place, parts="outer", size=whole, count=count)
            return task, partial_of(task, block.name)
    return task, block


def lanes_schedules(task: Task, across: Block, points: int, target: Target) -> dict[str, BlockSchedule]:
    """A reduction of `points` across lanes and, in its innermost loop but one, that of its partial results."""
    _, writes = accesses(task, across)
    spatial = sorted(across.spatial, key=lambda i: -abs(writes[0].strides[i.name] or 0))
    order, lane = [Loop(i.name, 0) for i in spatial], Loop(across.reduction[0].name, 0)
    tags = {lane: "vector"}
    if points >= PARALLEL_POINTS:
        order = parallel_first(order, {Loop(i.name, 0): i.extent for i in spatial}, target)
        tags[order[0]] = "parallel"
    partial, at = partial_of(task, across.name), Inside(across.name, order[-1])
    inner = replace(inside_rows(task, partial, target, at), at=at)
    return {partial.name: inner, across.name: BlockSchedule(ROOT, "arena", {}, (*order, lane), tags)}


def columns_schedule(task: Task, block: Block, side: str, knobs: PhaseKnobs, target: Target) -> BlockSchedule:
    """A stretch of results that the nearest cache holds; over it, rows of elements, a few at once."""
    read, (_, writes), ranges = largest_read(task, block), accesses(task, block), block.ranges
    assert read is not None
    dtype = task.buffer(writes[0].load.buffer).dtype
    lanes = stored_lanes(target, dtype)
    spatial = [n for n in by_stride(block, writes) if n != side]
    steps = sorted((i.name for i in block.reduction if i.extent > 1), key=lambda n: -abs(read.strides[n] or 0))
    parallel = block.points() >= PARALLEL_POINTS
    stretches = -(-ranges[side] * DTYPES[dtype].itemsize * knobs.share // target.caches[0].bytes)
    if parallel and all(ranges[n] < 2 * target.cores for n in spatial):
        stretches = max(stretches, 2 * target.cores)
    stretch = -(-ranges[side] // (stretches * lanes)) * lanes
    tiles: dict[str, tuple[int, ...]] = {side: (stretch, lanes)}
    order, vector = [Loop(n, 0) for n in (*spatial, side)], Loop(side, 2)
    tags = {vector: "vector"}
    if parallel:
        trips = {x: -(-ranges[x.iterator] // tiles.get(x.iterator, (1,))[0]) for x in order}
        order = parallel_first(order, trips, target)
        tags[order[0]] = "parallel"
    order += [*(Loop(n, 0) for n in steps), Loop(side, 1)]
    if 1 < knobs.rows <= ranges[steps[-1]]:
        tiles[steps[-1]] = (knobs.rows,)
        order.append(Loop(steps[-1], 1))
        tags[order[-1]] = "unroll"
    return BlockSchedule(ROOT, "arena", tiles, (*order, vector), tags)
