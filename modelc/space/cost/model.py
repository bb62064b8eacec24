"""What the analytic cost needs to know of a tiled Task, once for all points: how its operands reach over the
iterators, which loops may be parallel, what is copied around the register tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from modelc.ir.block import Block, Task
from modelc.ir.expr import variables
from modelc.ir.loop import Loop
from modelc.space.analysis.access import Access, accesses, crossed_iterator, vector_iterator
from modelc.space.analysis.around import afterwards
from modelc.space.analysis.follow import iterators
from modelc.space.analysis.footprint import Dim, Floats, Ints, Reach, footprint, reach
from modelc.space.cost.transfers import of_others
from modelc.space.tiling.tiled import Bools, Tiled, TiledKnobs
from modelc.target import CostParameters, Target


@dataclass(frozen=True)
class Population:
    """Points of a contraction as the analytic cost reads them: row p of every array is point p's. Chunks are in whole
    register tiles; `parallel` indexes Model.parallel."""

    rows: Ints  # [P x row iterators in the register tile]
    vectors: Ints  # [P]
    chunk: Ints  # [P]
    by_rows: Bools  # [P]
    parallel: Ints  # [P]

    def __len__(self) -> int:
        return len(self.vectors)

    def take(self, which: NDArray[np.intp] | Bools) -> Population:
        return Population(*(getattr(self, f.name)[which] for f in fields(self)))

    @staticmethod
    def join(parts: Sequence[Population]) -> Population:
        return Population(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Population)))


@dataclass(frozen=True)
class Operand:
    """An access that crosses memory levels: its reach over the anchor's iterators, and how often each byte crosses."""

    reach: Reach
    times: float
    computed: bool  # and not a constant
    packed: bool = False  # a constant, stored in the order of the register tiles: it was not near before
    in_place: bool = False  # computed, and its vectors are read where they lie
    unpacked: bool = False  # and they lie so far apart that a copy of them may pay

    @property
    def written(self) -> bool:
        """Whether it is a result: stores wait for nothing."""
        return self.times > 1


@dataclass(frozen=True)
class Model:
    """What the cost needs to know of a tiled Task."""

    tiled: Tiled
    iters: tuple[str, ...]  # columns of the boxes: the anchor's iterators
    operands: tuple[Operand, ...]
    parallel: tuple[Loop | None, ...]  # loops that may go to threads; None, the last: none does
    cores: int  # that work

    @property
    def target(self) -> Target:
        return self.tiled.target

    @property
    def loop_count(self) -> int:
        """The number of loops that may go to threads; 1 where none does."""
        return max(1, len([loop for loop in self.parallel if loop]))

    def macro_loops(self, by_rows: bool, parallel: int) -> list[Loop]:
        """The loops around the micro-kernel, from the outermost: they depend on no size."""
        knobs = TiledKnobs(tuple((n, 1) for n in self.tiled.inside), 1, 1, by_rows, self.parallel[parallel])
        return self.tiled.macro_loops(knobs)

    def together(self, by_rows: bool, parallel: int) -> list[Loop]:
        """The loops that may go to threads together, the parallel one first: up to one that a copy may be in. Where
        iterations of those inside read much the same, which tiles decide, the copy is around them."""
        macro = self.macro_loops(by_rows, parallel) if self.parallel[parallel] else []
        loops = [*takewhile(self.parallel.__contains__, macro)]
        moving = (self.tiled.moving(copy.read, macro) for copy in self.copies if copy.read is not None)
        copied_in = (within[-1 if self.tiled.sliding else 0] for within in moving if within)
        return loops[: min((loops.index(loop) for loop in copied_in if loop in loops), default=len(loops)) + 1]

    @cached_property
    def moving(self) -> Bools:
        """Whether iterations of each loop that may be parallel touch elements of their own [operands x loops]."""
        return np.array([[_moves(o.reach, loop) for loop in self.parallel] for o in self.operands], np.bool_)

    @cached_property
    def computed(self) -> Bools:
        """Which operands are no constants [operands]."""
        return np.array([o.computed for o in self.operands], np.bool_)

    @cached_property
    def whole(self) -> Floats:
        """Bytes that all iterations touch [operands]."""
        return self.touched(np.array([[self.tiled.ranges[n] for n in self.iters]], np.int64))[:, 0]

    @cached_property
    def row_loop(self) -> int:
        """The parallel loop (an index) that divides maps among cores: it moves through most bytes of computed operands;
        of equals, it is the outermost in the result's storage."""
        moved = np.where(self.computed, self.whole, 0.0) @ self.moving
        result = next(o.reach for o in reversed(self.operands) if o.written)
        steps = [max((d.stride for d in result.dims if _along(d, loop)), default=0) for loop in self.parallel]
        return int(np.lexsort((-np.array(steps), -moved))[0])

    def touched(self, boxes: Ints) -> Floats:
        """Bytes of whole lines that iterations over each of `boxes` touch [operands x boxes]."""
        line = self.target.caches[0].line
        return np.stack([footprint(o.reach, boxes, line).line_bytes(line) for o in self.operands])

    def transferred(self, inside: Floats, parallel: Ints, cores: int) -> Floats:
        """Bytes [P] that the caches of one core get from others' (see transfers.py), where this loop goes to threads
        and the core touches so much of each operand, `inside` [operands x P]."""
        whole, divided = self.whole[:, None], self.moving[:, parallel] & (parallel == self.row_loop)
        own = np.where(divided, whole, inside) / cores
        others = of_others(inside, whole, cores, self.target, own)
        return np.asarray(np.where(self.computed[:, None], others, 0.0).sum(axis=0), np.float64)

    def least_transferred(self, cores: int) -> float:
        """The bytes of this that no choice of the loop avoids: what tells schedules apart is the rest."""
        if cores not in self._least:
            self._least[cores] = self._least_of(cores)
        return self._least[cores]

    @cached_property
    def _least(self) -> dict[int, float]:
        return {}

    def _least_of(self, cores: int) -> float:
        if cores == 1:
            return 0.0
        ranges, loops = [self.tiled.ranges[n] for n in self.iters], [loop for loop in self.parallel if loop]
        boxes = np.array([ranges] * len(loops), np.int64)
        for box, loop in zip(boxes, loops, strict=True):
            column = self.iters.index(loop.iterator)
            box[column] = -(-ranges[column] // cores)
        return float(self.transferred(self.touched(boxes), np.arange(len(loops)), cores).min())

    @cached_property
    def copies(self) -> tuple[_Copy, ...]:
        """What the Blocks around the anchor and its consumers copy."""
        tiled, task = self.tiled, self.tiled.task
        blocks = (*task.blocks[: task.blocks.index(tiled.anchor)], *afterwards(task, tiled.result))
        places = {o.reach.buffer: k for k, o in reversed([*enumerate(self.operands)])}
        copies = []
        for block in blocks:
            assert isinstance(block, Block)
            written = block.writes[0].buffer
            read = next((r for r in tiled.reads if r.load.buffer == written), None)
            copies.append(
                _Copy(
                    block.points(),
                    *copy_cycles(task, block, tiled.lanes, self.target.cost),
                    read,
                    places.get(written, -1),
                    self.latency(block),
                    task.buffer(written).bytes,
                )
            )
        return tuple(copies)

    def latency(self, block: Block) -> float:
        """The latency of the nearest cache level that holds all inputs of `block`, relative to the second level's."""
        size = sum(self.tiled.task.buffer(name).bytes for name in {read.buffer for read in block.reads})
        latencies, beyond = self.target.cost.latencies, self.target.caches[1:3]
        held = [x for cache, x in zip(beyond, latencies[1:], strict=False) if size <= cache.bytes]
        return (held or latencies[-1:])[0] / latencies[1]

    def spilled_cycles(self, size: int, cores: int) -> float:
        """Cycles of one core in which the lines of a copy of `size` bytes come to be written, and go again, where the
        second-level cache does not hold them."""
        caches, target = self.target.caches[1:], self.target
        held = next((k for k, cache in enumerate(caches) if size <= cache.bytes), len(caches))
        bandwidths = [cores * cache.bandwidth_gbs for cache in caches] + [target.memory_gbs(cores)]
        return 2 * size / (1e9 * bandwidths[held]) * target.hertz if held > 0 else 0.0


@dataclass(frozen=True)
class _Copy:
    """What one Block copies: its points, the cycles of one, and of one that a register tile keeps in registers; the
    anchor's read of it, and the operand that this is; the latency of where it copies from, over the second-level
    cache's; the bytes of the whole copy."""

    points: int
    cycles: float
    kept: float
    read: Access | None
    operand: int
    latency: float
    bytes: int


def model_of(tiled: Tiled) -> Model:
    anchor = tiled.anchor
    iters = tuple(i.name for i in anchor.iters)
    operands = []
    for read in tiled.reads:
        wide, constant = read.strides[tiled.vector] != 0, read.load.buffer in tiled.task.constants
        in_place = wide and not constant and tiled.task.buffer(read.load.buffer) not in tiled.task.locals
        reached = reach(tiled.task, read.load, iters, dense=wide and constant)
        packed, unpacked = wide and constant, in_place and tiled.unpacked
        operands.append(Operand(reached, 1.0, not constant, packed, in_place, unpacked))
    boundary = {*tiled.task.inputs, *tiled.task.outputs}
    later = afterwards(tiled.task, tiled.result)
    names = iterators(anchor, [*tiled.consumers, *later])
    for block in (*tiled.consumers, *later):
        for load in (x for x in block.reads if x.buffer in boundary):
            computed = load.buffer not in tiled.task.constants
            operands.append(Operand(reach(tiled.task, load, iters, names[block.name]), 1.0, computed))
        for load in (x for x in block.writes if x.buffer in boundary):  # read for ownership, written back
            operands.append(Operand(reach(tiled.task, load, iters, names[block.name]), 2.0, True))
    return Model(tiled, iters, tuple(operands), _parallel_loops(tiled), tiled.target.cores)


def _parallel_loops(tiled: Tiled) -> tuple[Loop | None, ...]:
    """Loops over whole iterators; None beside them where the work is small, and alone on one core."""
    knobs = TiledKnobs(tuple((n, 1) for n in tiled.inside), 1, 1, True, None)
    loops = [m for m in tiled.for_threads(tiled.macro_loops(knobs)) if tiled.ranges[m.iterator] > 1]
    if tiled.target.cores == 1 or not loops:
        return (None,)
    return (*loops, None) if tiled.is_small else tuple(loops)


def _moves(access: Reach, parallel: Loop | None) -> bool:
    """Whether iterations of the parallel loop touch elements of their own."""
    return any(_along(d, parallel) for d in access.dims)


def _along(dim: Dim, parallel: Loop | None) -> bool:
    """Whether the parallel loop goes along that dimension."""
    return parallel is not None and parallel.iterator in variables(dim.index)


def copy_cycles(task: Task, block: Block, lanes: int, cost: CostParameters) -> tuple[float, float]:
    """Cycles of one element that `block` copies: through memory, and into registers alone, where there is nothing to
    store and a register tile loads nothing again."""
    reads, writes = accesses(task, block)
    vector = vector_iterator(block, writes)
    crossed = vector is not None and crossed_iterator(block, vector, reads) is not None
    if crossed:
        return cost.transpose_cycles / lanes, cost.transpose_cycles / lanes
    return cost.copy_cycles / lanes, cost.load_cycles / lanes
