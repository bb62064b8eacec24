"""The loops of maps (assign Blocks): vectors, chunks, the tile of a transposition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from modelc.ir.block import Block, Task
from modelc.ir.candidate import BlockSchedule
from modelc.ir.expr import DTYPES, variables
from modelc.ir.loop import ROOT, Inside, Loop, Root
from modelc.space.analysis.access import (
    MOST_STEP,
    accesses,
    by_stride,
    crossed_iterator,
    moves,
    stored_lanes,
    vector_iterator,
)
from modelc.space.analysis.loops import trips
from modelc.space.sketch import Knob
from modelc.space.tiling.parallel import CHUNKS_PER_CORE, SERIAL_POINTS, parallel_first
from modelc.target import Target

MAX_SQUARE = 16  # lanes of vectors of which a square is transposed in registers


VECTORS = (1, 2, 4)  # in one iteration
PIECES = (1, CHUNKS_PER_CORE, 4 * CHUNKS_PER_CORE)  # per core, that a vector's iterator is cut into


@dataclass(frozen=True)
class MapKnobs:
    """The knobs of the loops of a map."""

    vectors: int = 1  # in one iteration of the innermost loop
    chunk: int = 0  # elements of the vector's iterator that one iteration of its outermost loop has; 0: no such loop
    tile: str = ""  # of a transposition: "line", rows of a cache line; "square", and in it squares of vectors; or ""
    inner: str = ""  # the iterator whose loop is inside those of all others but the vector's; "": as the output steps
    parallel: Loop | None = None  # the loop whose iterations go to threads


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
        """Knobs by rule: vectors along the stored iterator. A transposed operand is tiled by cache lines, so that each
        line is used whole before eviction; a pure transposition is tiled by squares of vectors."""
        parallel, target = at_root and self.long, self.target
        knobs = MapKnobs()
        if self.crossed is not None:
            knobs = MapKnobs(tile="square" if self.squares else "line")
        elif parallel and self.vector and max((self.ranges[n] for n in self.others), default=1) < 2 * target.cores:
            knobs = MapKnobs(chunk=self.chunk(target.cores * CHUNKS_PER_CORE))
        loops, tiles = self.outer(knobs), self.tiles(knobs)
        if parallel and loops:
            counts = {loop: trips(loop, self.ranges, tiles) for loop in loops if not loop.level}
            knobs = replace(knobs, parallel=parallel_first(loops, counts, target)[0])
        return knobs

    def knobs(self, rules: MapKnobs) -> list[Knob]:
        """Every knob with its values, those of `rules` among them."""
        vector, ranges, lanes = self.vector, self.ranges, self.lanes
        vectors, chunks, tiles = {rules.vectors}, {rules.chunk}, {rules.tile}
        if vector is not None and self.crossed is None:
            vectors |= {n for n in VECTORS if n * lanes <= ranges[vector]}
            pieces = {self.chunk(n * self.target.cores) for n in PIECES} if self.long else set()
            chunks |= {0, *(n for n in pieces if lanes < n < ranges[vector])}
        elif self.crossed is not None:
            tiles |= {"", "line", *(("square",) if self.squares else ())}
        inner = tuple(self.others[:-1]) if len(self.others) > 1 else ()
        loops = [loop for loop in self.outer(rules) if not loop.level] if rules.parallel else []
        parallel = (None, *loops) if loops else (rules.parallel,)
        return [
            Knob("vectors", tuple(sorted(vectors)), "vectors in one iteration of the innermost loop"),
            Knob("chunk", tuple(sorted(chunks)), "elements of the vector's iterator in its outermost loop"),
            Knob("tile", tuple(sorted(tiles)), "the tile of a transposition"),
            Knob("inner", ("", *inner), "the iterator whose loop is inside those of all others but the vector's"),
            Knob("parallel", parallel, "the loop whose iterations go to threads"),
        ]

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

    def outer(self, knobs: MapKnobs) -> list[Loop]:
        """The loops outside the vector's innermost one."""
        others = sorted(self.others, key=lambda n: n == knobs.inner)
        tiles, loops = self.tiles(knobs), [Loop(n, 0) for n in others]
        if self.vector is not None:
            loops += [Loop(self.vector, k) for k in range(len(tiles[self.vector]))]
        if self.crossed is not None:
            loops += [Loop(self.crossed, k + 1) for k in range(len(tiles.get(self.crossed, ())))]
        return loops

    def schedule(self, knobs: MapKnobs, at: Inside | Root, scope: str) -> BlockSchedule:
        """The loops that `knobs` describe."""
        loops, tiles, tags = self.outer(knobs), self.tiles(knobs), dict[Loop, str]()
        inner = [] if self.vector is None else [Loop(self.vector, len(tiles[self.vector]))]
        if self.vector is not None:
            if knobs.tile == "square" or knobs.vectors > 1:
                tags[loops[-1]] = "unroll"
            tags[inner[0]] = "vector"
            tags |= dict.fromkeys(selecting(self.block, self.vector, tiles), "unroll")
        if knobs.parallel:
            loops = [knobs.parallel, *(loop for loop in loops if loop != knobs.parallel)]
            tags[loops[0]] = "parallel"
        loops += [Loop(i.name, 0) for i in self.block.reduction if i.extent > 1]
        return BlockSchedule(at, scope, tiles, (*loops, *inner), tags)


def map_schedule(
    task: Task, block: Block, target: Target, at: Inside | Root = ROOT, scope: str = "arena"
) -> BlockSchedule:
    """Loops of a map, or of a reduction that nothing better is known for, as rules have them."""
    facts = Map(task, block, target)
    return facts.schedule(facts.rules(at is ROOT), at, scope)


def selecting(block: Block, vector: str, tiles: Mapping[str, Sequence[int]]) -> list[Loop]:
    """The loops over a few values that select together with the vector's iterator: one by one they do not hinder
    vectors."""
    conditions = [e.args[0] for e in block.operations if e.name == "select"]
    together = set[str]().union(*(variables(c) for c in conditions if vector in variables(c)))
    few = (i.name for i in block.spatial if i.name in together - {vector} and 1 < i.extent <= MOST_STEP)
    return [Loop(n, 0) for n in few if n not in tiles]
