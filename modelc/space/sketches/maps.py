"""Schedules of maps (assign Blocks), and the clean-ups that every Task gets first: inlining and collapsing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod

from modelc.ir.block import Block, Task
from modelc.ir.candidate import BlockSchedule, Stage
from modelc.ir.expr import DTYPES, Const, Expr, Load, Op, Var, loads, variables, walk
from modelc.space.analysis.access import MOST_STEP, Access, accesses, near, stored_lanes
from modelc.space.analysis.loops import trips
from modelc.space.rules.derivation import derived
from modelc.space.rules.rule import DoesNotApply
from modelc.target import Target

SERIAL_POINTS = 1 << 13  # work below this many points is not worth waking a thread for
MAX_SQUARE = 16  # lanes of vectors of which a square is transposed in registers
CHUNKS_PER_CORE = 4  # a parallel loop has at least this many iterations per core where the extent allows it


def applied(task: Task, stages: list[Stage], rule: str, **args: str | int) -> Task:
    """`task` after one more stage, which is noted. Raises DoesNotApply."""
    stage = Stage(rule, args)
    task = derived(task, stage)
    stages.append(stage)
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


def exposed(task: Task, stages: list[Stage]) -> Task:
    """Buffers that are stored with a dimension split have it as two: iterators follow the storage (ALT, section 6)."""
    for name in [b.name for b in task.buffers if b.layout.primitives and b.layout.permutation is None]:
        if name not in task.constants:
            with suppress(DoesNotApply):
                task = applied(task, stages, "expose", buffer=name)
    return task


def _reorders(task: Task, copy: Block) -> bool:
    """Whether a copy's operand is a local that is stored in another order than what it is copied to."""
    source, target = (task.buffer(x.buffer) for x in (copy.body[0], copy.writes[0]) if isinstance(x, Load))
    return source in task.locals and source.layout != target.layout


def _read_once(task: Task, producer: Block) -> bool:
    """Whether inlining `producer` computes each of its elements no more often than now (up to one extra read)."""
    written = {w.buffer for w in producer.writes}
    readers = [b for b in task.blocks if not isinstance(b, Block) or written & {r.buffer for r in b.reads}]
    if len(readers) != 1 or not isinstance(readers[0], Block):
        return False
    reader = readers[0]
    reads = [r for r in reader.reads if r.buffer in written]
    if isinstance(reader.body[0], Load) and _reorders(task, reader):
        return False  # it is there to leave its operand in an order of its own
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


@dataclass(frozen=True)
class MapKnobs:
    """What is open in the loops of a map."""

    vectors: int = 1  # in one iteration of the innermost loop
    chunk: int = 0  # elements of the vector's iterator that one iteration of its outermost loop has; 0: no such loop
    tile: str = ""  # of a transposition: "line", rows of a cache line; "square", and in it squares of vectors; or ""
    inner: str = ""  # the iterator whose loop is inside those of all others but the vector's; "": as the output steps
    parallel: str = ""  # the loop whose iterations go to threads


class Map:
    """What the loops of a map, or of a reduction that nothing better is known for, depend on."""

    def __init__(self, task: Task, block: Block, target: Target):
        reads, writes = accesses(task, block)
        self.block, self.target, self.ranges = block, target, block.ranges
        self.vector = vector_iterator(block, writes)
        self.others = [n for n in by_stride(block, writes) if n != self.vector]
        self.lanes = min(stored_lanes(target, task.buffer(w.load.buffer).dtype) for w in writes)
        self.crossed = None if self.vector is None else crossed_iterator(block, self.vector, reads)
        self.line = max(1, target.caches[0].line // DTYPES[task.buffer(writes[0].load.buffer).dtype].itemsize)
        self.squares = moves(block.body[0]) and self.lanes <= min(self.line, MAX_SQUARE)
        self.long = prod(i.extent for i in block.iters) >= SERIAL_POINTS

    def chunk(self, pieces: int) -> int:
        """Elements of the vector's iterator in one of so many pieces, in whole vectors."""
        assert self.vector is not None
        return -(-self.ranges[self.vector] // (pieces * self.lanes)) * self.lanes

    def rules(self, at_root: bool) -> MapKnobs:
        """Vectors along the stored iterator. What is read along another one (a transposition) is tiled by cache lines
        of that iterator, so that a line is used whole before it leaves the cache; what merely moves, in squares of
        vectors."""
        parallel, target = at_root and self.long, self.target
        knobs = MapKnobs()
        if self.crossed is not None:
            knobs = MapKnobs(tile="square" if self.squares else "line")
        elif parallel and self.vector and max((self.ranges[n] for n in self.others), default=1) < 2 * target.cores:
            knobs = MapKnobs(chunk=self.chunk(target.cores * CHUNKS_PER_CORE))
        names, tiles = self.outer(knobs), self.tiles(knobs)
        if parallel and names:
            counts = {n: trips(n, self.ranges, tiles) for n in names if n.endswith("0")}
            knobs = replace(knobs, parallel=parallel_first(names, counts, target)[0])
        return knobs

    def tiles(self, knobs: MapKnobs) -> dict[str, tuple[int, ...]]:
        if self.vector is None:
            return {}
        tiles: dict[str, tuple[int, ...]] = {
            self.vector: (
                *((knobs.chunk,) if knobs.chunk else ()),
                *((knobs.vectors * self.lanes,) if knobs.vectors > 1 else ()),
                self.lanes,
            )
        }
        if self.crossed is not None and knobs.tile:
            square = knobs.tile == "square" and self.lanes < self.line
            tiles[self.crossed] = (self.line, self.lanes) if square else (self.line,)
        return tiles

    def outer(self, knobs: MapKnobs) -> list[str]:
        """The loops outside the vector's innermost one."""
        others = sorted(self.others, key=lambda n: n == knobs.inner)
        tiles, names = self.tiles(knobs), [f"{n}0" for n in others]
        if self.vector is not None:
            names += [f"{self.vector}{k}" for k in range(len(tiles[self.vector]))]
        if self.crossed is not None:
            names += [f"{self.crossed}{k + 1}" for k in range(len(tiles.get(self.crossed, ())))]
        return names

    def schedule(self, knobs: MapKnobs, at: str, scope: str) -> BlockSchedule:
        """The loops that `knobs` describe."""
        names, tiles, tags = self.outer(knobs), self.tiles(knobs), dict[str, str]()
        inner = [] if self.vector is None else [f"{self.vector}{len(tiles[self.vector])}"]
        if self.vector is not None:
            if knobs.tile == "square" or knobs.vectors > 1:
                tags[names[-1]] = "unroll"
            tags[inner[0]] = "vector"
            tags |= dict.fromkeys(selecting(self.block, self.vector, tiles), "unroll")
        if knobs.parallel:
            names = [knobs.parallel, *(n for n in names if n != knobs.parallel)]
            tags[names[0]] = "parallel"
        names += [f"{i.name}0" for i in self.block.reduction if i.extent > 1]
        return BlockSchedule(at, scope, tiles, (*names, *inner), tags)


def map_schedule(task: Task, block: Block, target: Target, at: str = "root", scope: str = "arena") -> BlockSchedule:
    """Loops of a map, or of a reduction that nothing better is known for, as rules have them."""
    facts = Map(task, block, target)
    return facts.schedule(facts.rules(at == "root"), at, scope)


def selecting(block: Block, vector: str, tiles: Mapping[str, Sequence[int]]) -> list[str]:
    """The loops over a few values that select together with the vector's iterator: one by one they do not hinder
    vectors."""
    conditions = [e.args[0] for b in block.body for e in walk(b) if isinstance(e, Op) and e.name == "select"]
    together = set[str]().union(*(variables(c) for c in conditions if vector in variables(c)))
    few = (i.name for i in block.spatial if i.name in together - {vector} and 1 < i.extent <= MOST_STEP)
    return [f"{n}0" for n in few if n not in tiles]


def parallel_first(loops: list[str], trips: Mapping[str, int], target: Target) -> list[str]:
    """`loops` with the one in front whose iterations go to threads: of those in `trips` the outermost with enough for
    all, else the longest."""
    first = next((n for n in trips if trips[n] >= 2 * target.cores), None) or max(trips, key=trips.__getitem__)
    return [first, *(n for n in loops if n != first)]


def moves(value: Expr) -> bool:
    """Whether a value is moved as it is or in another dtype, or a constant where a condition on iterators says so
    (padding)."""
    if isinstance(value, Op) and value.name == "cast":
        return moves(value.args[0])
    if isinstance(value, Op) and value.name == "select":
        condition, *sides = value.args
        return not loads(condition) and all(map(moves, sides))
    return isinstance(value, (Load, Const))


def crossed_iterator(block: Block, vector: str, reads: tuple[Access, ...]) -> str | None:
    """The iterator that some operand is contiguous along while the output is contiguous along `vector`. Not where lanes
    lie three apart: transposed in registers are rectangles with sides of powers of two."""
    for read in reads:
        step = read.strides[vector]
        if step not in (0, 1) and not (near(step) and (step or 0).bit_count() > 1):
            for i in block.spatial:
                if i.name != vector and i.extent > 1 and read.strides[i.name] == 1:
                    return i.name
    return None


def reads_plainly(block: Block, buffer: str) -> dict[int, str] | None:
    """Dimension -> iterator for the one way in which `block` reads `buffer`; None if it reads it otherwise."""
    reads = {r for r in block.reads if r.buffer == buffer}
    if len(reads) != 1:
        return None
    (read,) = reads
    found = {d: i.name for d, i in enumerate(read.indices) if isinstance(i, Var)}
    return found if len(found) == len(read.indices) and len(set(found.values())) == len(found) else None
