"""Schedules of maps (assign Blocks), and the clean-ups that every Task gets first: inlining and collapsing."""

from __future__ import annotations

from math import prod

from modelc.ir.block import Block, Task
from modelc.ir.candidate import BlockSchedule, Stage
from modelc.ir.expr import Load, Var, loads
from modelc.space.access import Access, accesses
from modelc.space.stages import RULES, DoesNotApply
from modelc.target import Target

SERIAL_POINTS = 1 << 13  # work below this many points is not worth waking a thread for
CHUNKS_PER_CORE = 4  # a parallel loop has at least this many iterations per core where the extent allows it


def applied(task: Task, stages: list[Stage], rule: str, **args: str | int) -> Task:
    """`task` after one more stage, which is noted. Raises DoesNotApply."""
    task = RULES[rule](task, **args)
    stages.append(Stage(rule, args))
    return task


def inlined(task: Task, stages: list[Stage]) -> Task:
    """Maps whose result one other Block reads, once per element, are substituted into it."""
    for name in [b.name for b in task.blocks]:
        block = task.block(name)
        if not isinstance(block, Block) or block.aggregation != "assign" or name == task.anchor:
            continue
        if not _read_once(task, block):
            continue
        try:
            task = applied(task, stages, "inline", block=name)
        except DoesNotApply:
            continue
    return task


def _read_once(task: Task, producer: Block) -> bool:
    """Whether inlining `producer` computes each of its elements no more often than now (up to one extra read)."""
    written = {w.buffer for w in producer.writes}
    readers = [b for b in task.blocks if not isinstance(b, Block) or written & {r.buffer for r in b.reads}]
    if len(readers) != 1 or not isinstance(readers[0], Block):
        return False
    reader = readers[0]
    reads = [r for r in reader.reads if r.buffer in written]
    if producer.body and isinstance(producer.body[0], Load) and not reader.reduction:
        return True  # moving data costs nothing but its index
    if len(reads) > 1 and len(loads(producer.body[0])) > 1:
        return False
    return reader.points() <= 2 * producer.points()


def collapsed(task: Task, name: str, stages: list[Stage]) -> Task:
    """Iterators of block `name` that are stored one inside the other, everywhere, become one."""
    again = True
    while again:
        again = False
        block = task.block(name)
        assert isinstance(block, Block)
        for kind in (False, True):
            iters = [i for i in block.iters if i.reduce == kind and i.extent > 1]
            pairs = [(a.name, b.name) for a in iters for b in iters if a is not b]
            for outer, inner in pairs:
                try:
                    task = applied(task, stages, "collapse", block=name, outer=outer, inner=inner)
                except DoesNotApply:
                    continue
                again = True
                break
            if again:
                break
    return task


def vector_iterator(block: Block, writes: tuple[Access, ...]) -> str | None:
    """The spatial iterator that walks through what the Block writes one element at a time."""
    found = [i for i in block.spatial if i.extent > 1 and writes[0].strides[i.name] == 1]
    return found[0].name if found else None


def by_stride(block: Block, writes: tuple[Access, ...]) -> list[str]:
    """Spatial iterators of extent above 1, those that step farthest through the output first."""
    names = [i.name for i in block.spatial if i.extent > 1]
    return sorted(names, key=lambda n: -abs(writes[0].strides[n] or 0))


def map_schedule(task: Task, block: Block, target: Target, at: str = "root", scope: str = "arena") -> BlockSchedule:
    """Loops of a map, or of a reduction that nothing better is known for: vectors along the stored iterator."""
    _, writes = accesses(task, block)
    vector = vector_iterator(block, writes)
    order, tiles, tags = by_stride(block, writes), {}, {}
    ranges = block.ranges
    parallel = at == "root" and prod(i.extent for i in block.iters) >= SERIAL_POINTS
    names = [f"{n}0" for n in order if n != vector]
    if vector is not None:
        lanes = min(target.lanes(task.buffer(w.load.buffer).dtype) for w in writes)
        tiles[vector] = [lanes]
        names.append(f"{vector}0")
        if parallel and (not order[:-1] or max(ranges[n] for n in order if n != vector) < 2 * target.cores):
            chunk = -(-ranges[vector] // (target.cores * CHUNKS_PER_CORE))
            tiles[vector] = [-(-chunk // lanes) * lanes, lanes]
            names.append(f"{vector}1")
        tags[f"{vector}{len(tiles[vector])}"] = "vector"
    if parallel and names:
        outer = next((n for n in names if _trips(n, ranges, tiles) >= 2 * target.cores), None)
        outer = outer or max(names, key=lambda n: _trips(n, ranges, tiles))
        if not (outer[:-1] == vector and outer.endswith("1")):
            names.remove(outer)
            names.insert(0, outer)
            tags[outer] = "parallel"
    names += [f"{i.name}0" for i in block.reduction if i.extent > 1]
    if vector is not None:
        names.append(f"{vector}{len(tiles[vector])}")
    frozen = {k: tuple(v) for k, v in tiles.items()}
    return BlockSchedule(at, scope, frozen, tuple(names), tags)


def _trips(loop: str, ranges: dict[str, int], tiles: dict[str, list[int]]) -> int:
    name = loop[:-1]
    if loop[-1] != "0":
        return 1
    return -(-ranges[name] // tiles.get(name, [1])[0])


def reads_plainly(block: Block, buffer: str) -> dict[int, str] | None:
    """Dimension -> iterator for the one way in which `block` reads `buffer`; None if it reads it otherwise."""
    reads = {r for r in block.reads if r.buffer == buffer}
    if len(reads) != 1:
        return None
    (read,) = reads
    found = {d: i.name for d, i in enumerate(read.indices) if isinstance(i, Var)}
    return found if len(found) == len(read.indices) and len(set(found.values())) == len(found) else None
