"""Tasks with one reduction as a register-resident micro-kernel inside macro loops takes them (DESIGN section 6).

The vector iterator walks through the output one element at a time; the row iterators are those along which an operand
is reused. A register tile of rows x vectors accumulators stays in registers over all reduction loops; then the epilogue
runs on it. Constant operands are packed so that a tile's vectors lie one after the other in the order they are read.

Here are the facts and the loops; what is innermost, a vector or an application of an intrinsic, is the Unit that a
Tiled is given (vectorized.py, tensorized.py). tiled_rules.py chooses knobs, tiled_candidate.py makes the Candidate.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from math import prod

import numpy as np
from numpy.typing import NDArray

from modelc.ir.block import Block, Task
from modelc.ir.candidate import BlockSchedule, Stage
from modelc.ir.layout import Layout
from modelc.ir.loop import Inside, Loop, Root
from modelc.space.analysis.access import Access, accesses, reads_plainly
from modelc.space.analysis.around import consumers_of, output_strides
from modelc.space.analysis.footprint import Floats, Ints
from modelc.space.analysis.loops import trips
from modelc.space.analysis.words import most_words
from modelc.space.tiling.operations import operations
from modelc.target import Intrinsic, Target

Bools = NDArray[np.bool_]

MAX_VECTORS = 4  # vectors of one register tile along the vector iterator
UNROLLED, SMALL_UNROLLED = 2, 4  # reduction steps in one iteration of the innermost loop; of small register tiles
FEW_REGISTERS = 16  # so that register tiles are small
CLUSTERED = 4  # vectors at most that LLVM loads together
FETCHING_ROWS = 4  # that go over a panel of constants, at least, where the next one is prefetched
MOST_COPIES = 1.5  # of an element that several iterations of a loop read
MANY_WORDS = 4  # pairs that are multiplied at a step, of which LLVM would spill those of several vectors
MAX_TAPS = 32  # of a window that is unrolled whole, where each lane has a window of its own
FAR = "far"  # what comes from beyond the second-level cache


@dataclass(frozen=True)
class TiledKnobs:
    """What is left open in the schedule of a tiled Task; tiled_rules.py chooses by rules."""

    rows: tuple[tuple[str, int], ...]  # row iterator -> rows of the register tile, outermost first (see Tiled.inside)
    vectors: int  # of the register tile along the vector iterator
    chunk: int  # rows of the first row iterator in one chunk, a multiple of its rows in the register tile
    by_rows: bool  # chunks of rows outside and panels of vectors inside them, or the other way round
    parallel: Loop | None  # one of the macro loops over whole iterators: it goes outermost
    steps: int = 1  # reduction steps in one iteration of the innermost loop, at most
    prefetch: str = FAR  # what is prefetched: FAR, or "none"


class Unit(ABC):
    """What the innermost loops of a Tiled do: the multiply-add of a vector, or an application of an intrinsic. Rows and
    vectors of register tiles come as arrays, [P x row iterators] and [P]."""

    lanes: int  # of the vector iterator, in one unit
    intrinsic: Intrinsic | None = None  # that a unit applies; None: a unit is a vector
    stores_accumulators = False  # of several rows each: they are taken to memory before the epilogue reads them
    copied: frozenset[str] = frozenset()  # computed operands that are copies in the order in which a unit reads them
    pipelined = False  # the epilogue of one register tile goes beside the reduction of the next

    @property
    def plain(self) -> bool:
        """Whether a unit is the multiply-add of one vector: what the cost was fitted to."""
        return True

    def tile(self, name: str) -> tuple[int, ...]:
        """The tile of the unit along a row or a reduction iterator, if it has any."""
        return ()

    @abstractmethod
    def loops(self, tiled: Tiled, tiles: Mapping[str, tuple[int, ...]]) -> dict[Loop, str]:
        """The loops of one unit, from the outermost, with their tags."""

    @abstractmethod
    def row_counts(self, tiled: Tiled, name: str) -> list[int]:
        """How many rows of row iterator `name` a register tile may have."""

    @abstractmethod
    def holds(self, tiled: Tiled, rows: Ints, vectors: Ints) -> Bools:
        """Whether the registers hold register tiles with what they multiply [P]."""

    @abstractmethod
    def step(self, tiled: Tiled, rows: Ints, vectors: Ints) -> Floats:
        """Cycles of one step of register tiles, one unit deep [P]."""

    @abstractmethod
    def around(self, tiled: Tiled, rows: Ints, vectors: Ints) -> Floats:
        """Cycles around one register tile, as far as no other runs beside it [P]."""

    @abstractmethod
    def packing(self, tiled: Tiled, read: Access, knobs: TiledKnobs) -> Layout | None:
        """How a constant operand, or a copy of a computed one, is stored; None: as it is."""

    def copy(self, tiled: Tiled, block: Block, at: Inside | Root, scope: str) -> BlockSchedule | None:
        """The loops of a Block that packs a copy in the unit's order; None: the loops of any map."""
        return None

    @abstractmethod
    def epilogue(self, tiled: Tiled, consumer: Block, at: Inside, knobs: TiledKnobs) -> BlockSchedule:
        """The loops of a consumer over one register tile."""

    @abstractmethod
    def order(self, tiled: Tiled, knobs: TiledKnobs, macro: list[Loop]) -> list[Loop]:
        """The loops around the micro-kernel, of which `macro` is the usual order."""

    @abstractmethod
    def prefetches(self, tiled: Tiled, macro: list[Loop], tiles: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether the next panel of constants is prefetched while one is worked on."""

    @abstractmethod
    def chunk(self, tiled: Tiled, name: str, count: int, vectors: int) -> tuple[int, bool]:
        """What rules take: (rows of the outer row iterator `name` per chunk, whether chunks are the outer loop), where
        a register tile has `count` of them."""


class Tiled:
    """The facts of a tiled Task, and the loops that given knobs make of it."""

    def __init__(
        self,
        task: Task,
        target: Target,
        stages: Sequence[Stage],
        anchor: Block,
        vector: str,
        unit: Unit,
        unpacked: bool = False,
        ranges: Mapping[str, int] | None = None,
    ):
        """`ranges`: extents of iterators of which Blocks around the anchor ask for less than all."""
        self.task, self.target, self.stages = task, target, tuple(stages)
        self.anchor, self.vector, self.unit, self.unpacked = anchor, vector, unit, unpacked
        self.reads, _ = accesses(task, anchor)
        self.lanes = unit.lanes
        self.ranges = {**anchor.ranges, **(ranges or {})}
        self.consumers = consumers_of(task, anchor)
        plain = reads_plainly(self.consumers[0], anchor.writes[0].buffer)
        assert plain is not None
        self.strides = output_strides(task, anchor, self.consumers[0], plain)
        reduced, written = {i.name for i in self.consumers[0].reduction}, anchor.writes[0].indices
        # over parts of the reduction that the consumer adds up in turn, its loops outside (sketches/parts.py)
        self.turns = next((str(written[d]) for d, name in plain.items() if name in reduced), None)
        spatial = [i.name for i in anchor.spatial if i.extent > 1 and i.name not in (vector, self.turns)]
        spatial.sort(key=lambda n: -abs(self.strides.get(n) or 0))
        lines = [n for n in spatial if not self._strips(n)]
        reused = [n for n in lines if any(r.strides[n] == 0 for r in self.vectors())]
        scalars = [n for n in lines if any(r.strides[n] == 0 for r in self.reads)]
        self.rows = reused or scalars[-1:] or lines[-1:]
        self.batch = [*([self.turns] if self.turns else []), *(n for n in spatial if n not in self.rows)]
        self.inside = self.rows[-2:]  # those that the register tile has rows of
        self.sliding = all(r.strides[vector] != 0 for r in self.reads)  # nothing is broadcast: each lane on its own
        self.reduction = self.reduction_order()
        self.result = anchor  # the Block whose tile the consumers read
        if unit.stores_accumulators:
            (self.result,) = self.consumers
            self.consumers = [*self.consumers, *consumers_of(task, self.result)]

    def _strips(self, name: str) -> bool:
        """Whether iterator `name` is over strips of the vector iterator's dimension, one beside the other."""
        along = [(r.strides[self.vector], r.strides[name]) for r in self.reads]
        return all(step is not None and strip == self.ranges[self.vector] * step for step, strip in along)

    @property
    def dtype(self) -> str:
        """The accumulators'."""
        return self.task.buffer(self.anchor.writes[0].buffer).dtype

    @cached_property
    def steps(self) -> int:
        """Points of the reduction."""
        return prod(i.extent for i in self.anchor.reduction)

    @property
    def is_small(self) -> bool:
        """Whether waking threads may take longer than they save: all points take less at the peak than half of it."""
        peak = self.lanes * self.target.fma_ports * self.target.hertz
        return prod(self.ranges.values()) / peak < self.target.cost.fork_join_seconds / 2

    @cached_property
    def cycles(self) -> dict[bytes, float]:
        """Cycles of all register tiles of a size, as far as they were asked for (cost/register_tile.py)."""
        return {}

    @cached_property
    def epilogue_cycles(self) -> float:
        """Cycles of the consumers on one vector."""
        count = sum(operations(self.task, consumer, self.target.cost) for consumer in self.consumers)
        return count / self.target.fma_ports

    @property
    def scattered(self) -> float:
        """Cycles for the elements of one vector of results, where they are not stored side by side."""
        return self.target.cost.scatter_cycles * self.lanes if self.strides.get(self.vector) != 1 else 0.0

    @property
    def whole_window(self) -> bool:
        """Whether all reduction steps are written out: those of a few taps of windows, of which each lane has its own,
        be the weights its own or common to all."""
        computed = [r for r in self.reads if r.load.buffer not in self.task.constants]
        return self.steps * self._words <= MAX_TAPS and all(r.strides[self.vector] != 0 for r in computed)

    def vectors(self) -> list[Access]:
        """The operands of which vectors are loaded, not scalars."""
        return [r for r in self.reads if r.strides[self.vector] != 0]

    def reduction_order(self) -> list[str]:
        """Reduction iterators from the outermost: the one contiguous in an operand is innermost, but iterators that
        slide along the rows of a register tile go outside. LLVM would keep the elements that rows share in registers
        that the accumulators need, if these were unrolled."""

        def nearest(name: str) -> int:
            steps = [abs(s) for r in self.reads if (s := r.strides[name]) and r.load.buffer not in self.task.constants]
            return -min(steps, default=0)

        def slides(name: str) -> bool:
            steps = [(abs(r.strides[name] or 0), abs(r.strides[n] or 0)) for r in self.reads for n in self.inside]
            return any(0 < row < self.ranges[name] * step and row % step == 0 for step, row in steps)

        names = [i.name for i in self.anchor.reduction if i.extent > 1]
        return sorted(names, key=lambda n: (not slides(n), nearest(n)))

    def whole(self, chunk: Ints, rows: Ints) -> Ints:
        """Chunks [P] in whole register tiles of `rows` [P x row iterators], and no more of them than there are."""
        if not self.inside:
            return chunk
        least, extent = rows[:, 0], self.ranges[self.inside[0]]
        return np.asarray(np.minimum(np.maximum(chunk // least, 1) * least, -(-extent // least) * least), np.int64)

    # --- loops ----------------------------------------------------------------------------------------------------

    def tiles(self, knobs: TiledKnobs) -> dict[str, tuple[int, ...]]:
        """Tile sizes of the vector iterator and of the rows in the register tile."""
        v, lanes, counts = self.vector, self.lanes, dict(knobs.rows)
        whole = -(-self.ranges[v] // lanes) * lanes
        tiles: dict[str, tuple[int, ...]] = {v: (min(knobs.vectors * lanes, whole), lanes)}
        for n in self.inside:
            outer = (knobs.chunk,) if n == self.inside[0] else ()
            tiles[n] = (*outer, counts[n], *self.unit.tile(n))
        return tiles | {n: unit for n in self.reduction if (unit := self.unit.tile(n))}

    @property
    def panels(self) -> Loop:
        """The loop over panels of vectors."""
        return Loop(self.vector, 0)

    def row_loops(self, tiles: Mapping[str, tuple[int, ...]]) -> list[Loop]:
        """The loops over rows of a register tile."""
        return [Loop(n, len(tiles[n]) - len(self.unit.tile(n))) for n in self.inside]

    def macro_loops(self, knobs: TiledKnobs) -> list[Loop]:
        """The loops around the micro-kernel, from the outermost: the one that goes to threads, then the others."""
        return [*([knobs.parallel] if knobs.parallel else []), *(m for m in self.order(knobs) if m != knobs.parallel)]

    def for_threads(self, macro: Sequence[Loop]) -> list[Loop]:
        """Those of the `macro` loops whose iterations may go to threads: over whole iterators, and not in turn."""
        return [loop for loop in macro if not loop.level and loop.iterator != self.turns]

    def order(self, knobs: TiledKnobs) -> list[Loop]:
        """The loops around the micro-kernel as one core would go through them."""
        tiles, inside, panels = self.tiles(knobs), self.inside, self.panels
        chunk_loop = [Loop(n, 0) for n in inside[:1]]
        inner = [Loop(n, len(tiles[n]) - len(self.unit.tile(n)) - 1) for n in inside]
        lead = [Loop(n, 0) for n in (*self.batch, *self.rows[: -len(inside) or None])]
        macro = [*lead, *chunk_loop, panels, *inner] if knobs.by_rows else [*lead, panels, *chunk_loop, *inner]
        if self.sliding:  # nothing is reused from one vector to the next: go through storage in order
            macro = [*lead, *chunk_loop, *((*inner, panels) if knobs.by_rows else (panels, *inner))]
        return self.unit.order(self, knobs, macro)

    def unrolled_steps(self, knobs: TiledKnobs, tiles: dict[str, tuple[int, ...]]) -> list[Loop]:
        """The loop over a few reduction steps that is unrolled, after its tile was added to `tiles`; none where the
        steps are few, or a unit's own, or where LLVM would spill accumulators."""
        if not self.unrollable() or knobs.steps == 1 or self.vectors_outside(knobs):
            return []
        name, steps = self.reduction[-1], min(knobs.steps, self.ranges[self.reduction[-1]] // 2)
        if self.unrolled_registers(knobs, steps) > self.target.vector.registers:
            return []
        tiles[name] = (steps,)
        return [Loop(name, 1)]

    def vectors_outside(self, knobs: TiledKnobs) -> bool:
        """Whether a register tile takes all rows of a vector before those of the next: where many words are multiplied
        at a step, what a vector of them is taken apart into for all rows stays in registers for one vector alone. Such
        a step is long enough by itself."""
        return prod(c for _, c in knobs.rows) > 1 and self._words >= MANY_WORDS

    @cached_property
    def _words(self) -> int:
        return most_words(self.anchor)

    def unrolled_registers(self, knobs: TiledKnobs, steps: int) -> int:
        """Registers that LLVM uses for `steps` unrolled reduction steps. It loads the vectors of the next step with
        those of the first, except in small tiles; there the sums of a single vector also occupy the registers of
        broadcast scalars, which have no other reader."""
        accumulators = prod(c for _, c in knobs.rows) * knobs.vectors
        if not self.small:
            return accumulators + min(steps * knobs.vectors, CLUSTERED) + 2  # two for broadcasts
        return 2 * accumulators + 2 if knobs.vectors == 1 else accumulators + knobs.vectors + 2

    @property
    def small(self) -> bool:
        """Whether register tiles are small, for want of registers, and several of their steps cost no more instructions
        each than one: where an instruction adds an offset to an address, which those of ARMv7 that broadcast do not."""
        return self.target.vector.registers <= FEW_REGISTERS and self.target.architecture.memory_operands

    @property
    def usual_steps(self) -> int:
        """Reduction steps that rules unroll: more of small register tiles. A loop of one step of 12 multiply-adds
        reached 0.81 of what the ports of Zen 3 do, of two steps 0.86, of four 0.92, of eight 0.94."""
        return SMALL_UNROLLED if self.small else UNROLLED

    @property
    def step_counts(self) -> tuple[int, ...]:
        """What the knob `steps` may be: any power of two up to twice what rules take."""
        usual = self.usual_steps
        return tuple(1 << k for k in range(usual.bit_length() + 1)) if self.unrollable() else (usual,)

    def unrollable(self) -> bool:
        """Whether a few reduction steps can be unrolled in one loop: there are more of them, and they are no unit's."""
        name = self.reduction[-1] if self.reduction else None
        if name is None or self.sliding or self.whole_window:
            return False
        return not self.unit.tile(name) and self.ranges[name] >= 2 * UNROLLED

    def passes(self, loop: Loop, macro: Sequence[Loop], tiles: Mapping[str, tuple[int, ...]]) -> int:
        """How many rows or panels go over what one iteration of `loop` reads."""
        inside = [*macro[macro.index(loop) + 1 :], *self.row_loops(tiles)]
        return prod(trips(x, self.ranges, tiles) for x in inside)

    def moving(self, read: Access, macro: Sequence[Loop]) -> list[Loop]:
        """The outer loops over whole iterators that all move through what is read, from the outermost; one panel of
        vectors, where there are no more of them, is no loop."""
        loops = [m for m in macro if m != self.panels or self.ranges[self.vector] > self.lanes]
        outer = takewhile(lambda loop: read.strides[loop.iterator] != 0, loops)
        return [loop for loop in outer if not loop.level]

    def bytes_read(self, name: str, moving: bool) -> int:
        """Bytes of the operands that do (or do not) depend on iterator `name`."""
        return sum(self.task.buffer(r.load.buffer).bytes for r in self.reads if (r.strides[name] != 0) == moving)
