"""Schedules of Tasks with one reduction: a register-resident micro-kernel inside macro loops (DESIGN section 6).

The vector iterator walks through the output one element at a time; the row iterators are those along which an operand
is reused. A register tile of rows x vectors accumulators stays in registers over all reduction loops; then the epilogue
runs on it. Constant operands are packed so that a tile's vectors lie one after the other in the order they are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product, takewhile
from math import prod

from modelc.ir.block import Block, Task
from modelc.ir.candidate import BlockSchedule, Candidate, Stage
from modelc.ir.expr import Load, Var, variables
from modelc.ir.layout import Layout
from modelc.space.analysis.access import Access, accesses, pieces, stored_lanes
from modelc.space.analysis.loops import copies, covered, trips
from modelc.space.cost.overlap import overlapped
from modelc.space.nest.ahead import far_computed, far_results
from modelc.space.sketches.follow import followed
from modelc.space.sketches.maps import (
    CHUNKS_PER_CORE,
    SERIAL_POINTS,
    applied,
    collapsed,
    inlined,
    map_schedule,
    parallel_first,
    reads_plainly,
)
from modelc.space.sketches.prepare import (
    afterwards,
    consumers_of,
    factored,
    output_strides,
    packed_operands,
    padded,
    pick_vector,
    read_afterwards,
    reduction_of,
    vectors_end,
)
from modelc.target import Intrinsic, Target

MAX_TAPS = 32  # of a window that is unrolled whole, where each lane has a window of its own
MAX_VECTORS = 4  # vectors of one register tile along the vector iterator
FETCHING_ROWS = 4  # that go over a panel of constants, at least, where the next one is fetched ahead
MOST_COPIES = 1.5  # of an element that several iterations of a loop read
UNROLLED = 2  # reduction steps in one iteration of the innermost loop
CLUSTERED = 4  # vectors at most that LLVM loads together
FAR = "far"  # what comes from beyond the second-level cache


@dataclass(frozen=True)
class MicroKernel:
    """A register tile: how many rows of each row iterator, how many vectors; and its cost over the whole Task."""

    rows: tuple[tuple[str, int], ...]  # row iterator -> rows, outermost first
    vectors: int
    cycles: float


@dataclass(frozen=True)
class TiledKnobs:
    """What is left open in the schedule of a tiled Task; Tiled.default_knobs() chooses by rules."""

    rows: tuple[tuple[str, int], ...]  # row iterator -> rows of the register tile, outermost first (see Tiled.inside)
    vectors: int  # of the register tile along the vector iterator
    chunk: int  # rows of the first row iterator in one chunk, a multiple of its rows in the register tile
    by_rows: bool  # chunks of rows outside and panels of vectors inside them, or the other way round
    parallel: str | None  # one of the macro loops over whole iterators ("h0"): it goes outermost
    steps: int = UNROLLED  # reduction steps in one iteration of the innermost loop, at most
    prefetch: str = FAR  # what is prefetched: FAR, or "none"


def tiled_space(task: Task, target: Target, stages: list[Stage], straight: bool = False) -> tuple[Task, Tiled | None]:
    """The Task as its reduction is tiled, after more stages, and what can be chosen; None if it is not tiled.
    `straight`: vectors are read where they lie, though each lies far from the last."""
    task = padded(task, stages)
    task = inlined(task, stages)
    anchor = reduction_of(task)
    consumers = consumers_of(task, anchor)
    if len(anchor.writes) > 1:
        return task, None
    if not consumers or anchor.writes[0].buffer in task.outputs:
        task = applied(task, stages, "cache_write", block=anchor.name)
    task = factored(task, stages)
    task = collapsed(task, anchor.name, stages)
    anchor = reduction_of(task)
    consumers = consumers_of(task, anchor)
    plain = reads_plainly(consumers[0], anchor.writes[0].buffer) if consumers else None
    vector = pick_vector(task, anchor, consumers[0], plain) if plain else None
    if (
        vector is None
        or any(reads_plainly(c, w.buffer) is None for c in consumers for w in anchor.writes)
        or anchor.where
    ):
        return task, None
    lanes = stored_lanes(target, task.buffer(anchor.writes[0].buffer).dtype)
    task = packed_operands(task, anchor, vector, lanes, stages, straight)
    anchor = reduction_of(task)
    return task, Tiled(task, target, tuple(stages), anchor, vector, consumers_of(task, anchor), straight)


class Tiled:
    """The facts of a tiled Task, the rules that choose its knobs, and the Candidate that given knobs make."""

    def __init__(
        self,
        task: Task,
        target: Target,
        stages: tuple[Stage, ...],
        anchor: Block,
        vector: str,
        consumers: list[Block],
        straight: bool = False,
        ranges: Mapping[str, int] | None = None,
    ):
        """`ranges`: extents of iterators of which Blocks around the anchor ask for less than all."""
        self.task, self.target, self.stages = task, target, stages
        self.anchor, self.vector, self.consumers, self.straight = anchor, vector, consumers, straight
        self.reads, _ = accesses(task, anchor)
        self.lanes = stored_lanes(target, task.buffer(anchor.writes[0].buffer).dtype)
        self.ranges = {**anchor.ranges, **(ranges or {})}
        plain = reads_plainly(consumers[0], anchor.writes[0].buffer)
        assert plain is not None
        self.strides = output_strides(task, anchor, consumers[0], plain)
        spatial = [i.name for i in anchor.spatial if i.extent > 1 and i.name != vector]
        spatial.sort(key=lambda n: -abs(self.strides.get(n) or 0))
        reused = [n for n in spatial if any(r.strides[n] == 0 for r in self.vectors())]
        scalars = [n for n in spatial if any(r.strides[n] == 0 for r in self.reads)]
        self.rows = reused or scalars[-1:] or spatial[-1:]
        self.batch = [n for n in spatial if n not in self.rows]
        self.inside = self.rows[-2:]  # those that the register tile has rows of
        self.sliding = all(r.strides[vector] != 0 for r in self.reads)  # nothing is broadcast: each lane on its own
        self.reduction = self.reduction_order()
        self.result = anchor  # the Block whose tile the consumers read
        self.intrinsic: Intrinsic | None = None  # that a unit applies; None: a unit is a vector

    # --- the innermost unit: a vector here, an application of an intrinsic in tensorized.py ------------------------

    @property
    def plain(self) -> bool:
        """Whether a unit is the multiply-add of one vector: analytic.py knows what such register tiles cost."""
        return True

    def unit(self, name: str) -> tuple[int, ...]:
        """The tile of the unit along a row or a reduction iterator, if it has any."""
        return ()

    def unit_loops(self, tiles: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
        """The loops of one unit, from the outermost, with their tags."""
        return {f"{self.vector}2": "vector"}

    def vectors(self) -> list[Access]:
        """The operands of which vectors are loaded, not scalars."""
        return [r for r in self.reads if r.strides[self.vector] != 0]

    def reduction_order(self) -> list[str]:
        """Reduction iterators, the one that is contiguous in an operand innermost; but those that slide along the rows
        of a register tile outside: where they are unrolled, LLVM keeps the elements that rows have in common in
        registers that the accumulators need."""

        def nearest(name: str) -> int:
            steps = [abs(s) for r in self.reads if (s := r.strides[name]) and r.load.buffer not in self.task.constants]
            return -min(steps, default=0)

        def slides(name: str) -> bool:
            steps = [(abs(r.strides[name] or 0), abs(r.strides[n] or 0)) for r in self.reads for n in self.inside]
            return any(0 < row < self.ranges[name] * step and row % step == 0 for step, row in steps)

        names = [i.name for i in self.anchor.reduction if i.extent > 1]
        return sorted(names, key=lambda n: (not slides(n), nearest(n)))

    def row_counts(self, name: str) -> list[int]:
        """How many rows of row iterator `name` a register tile may have."""
        return list(range(1, min(self.ranges[name], self.target.vector.registers) + 1))

    # --- the micro-kernel -----------------------------------------------------------------------------------------

    def best_kernel(self) -> MicroKernel:
        """The register tile with the fewest estimated cycles over the whole iteration space."""
        found = [self.kernel_cost(rows, vectors) for rows, vectors in self.kernels()]
        return min(found, key=lambda k: (k.cycles, -k.vectors))

    def kernels(self) -> list[tuple[tuple[tuple[str, int], ...], int]]:
        registers = self.target.vector.registers
        inner = self.inside
        most = -(-self.ranges[self.vector] // self.lanes)
        result = []
        for vectors in range(1, min(MAX_VECTORS, most) + 1):
            extents = [range(1, min(self.ranges[n], registers) + 1) for n in inner]
            for counts in product(*extents):
                if prod(counts) * vectors < registers and all(
                    c == self.ranges[n] for c, n in zip(counts[1:], inner[1:], strict=True) if counts[0] > 1
                ):
                    result.append((tuple(zip(inner, counts, strict=True)), vectors))
        if self.sliding:  # a window's elements are kept for its next taps, beside the accumulators and the weights
            result = [k for k in result if 3 * prod(c for _, c in k[0]) * k[1] + 2 <= registers]
        return [k for k in result if self.registers(*k) <= registers] or [(tuple((n, 1) for n in inner), 1)]

    def holds(self, rows: Sequence[tuple[str, int]], vectors: int) -> bool:
        """Whether the registers hold a register tile with what it multiplies."""
        return self.registers(rows, vectors) <= self.target.vector.registers

    def vector_loads(self, rows: Sequence[tuple[str, int]], vectors: int) -> int:
        """Vectors loaded per reduction step, and shuffled."""
        return sum(
            vectors * prod(c for n, c in rows if r.strides[n] != 0) * pieces(r.strides[self.vector])
            for r in self.vectors()
        )

    def broadcasts(self, rows: Sequence[tuple[str, int]]) -> int:
        """Scalars loaded and broadcast per reduction step."""
        return sum(prod(c for n, c in rows if r.strides[n] != 0) for r in self.reads if r.strides[self.vector] == 0)

    def registers(self, rows: Sequence[tuple[str, int]], vectors: int) -> int:
        """Accumulators, vectors that are reused across rows, and two for the next loads, three beside many vectors
        (with fewer, LLVM spills accumulators)."""
        held = [r for r in self.vectors() if any(r.strides[n] == 0 for n, _ in rows)]
        return prod(c for _, c in rows) * vectors + vectors * min(1, len(held)) + 2 + (vectors > 2)

    def kernel_cost(self, rows: tuple[tuple[str, int], ...], vectors: int) -> MicroKernel:
        whole = [(full, c, rest) for n, c in rows for full, rest in [divmod(self.ranges[n], c)]]
        width = vectors * self.lanes
        full_v, rest_v = divmod(self.ranges[self.vector], width)
        cycles = 0.0
        for choice in product(*([(f, c), (1 if r else 0, r)] for f, c, r in whole)):
            counts = [(n, c) for (n, _), (_, c) in zip(rows, choice, strict=True)]
            times = prod(t for t, _ in choice)
            for times_v, v in ((full_v, vectors), (1 if rest_v else 0, -(-rest_v // self.lanes))):
                if times and times_v:
                    cycles += times * times_v * self.step_cycles(counts, v)
        return MicroKernel(rows, vectors, cycles)

    def step_cycles(self, rows: Sequence[tuple[str, int]], vectors: int) -> float:
        """Cycles of one reduction step on a register tile: arithmetic, loads of vectors and scalars (two a cycle), or
        the latency of dependent accumulation."""
        cost = self.target.cost
        wide, narrow = float(self.vector_loads(rows, vectors)), self.broadcasts(rows)
        if self.sliding:
            wide /= 2  # half of what a tap needs was loaded for the one before
        steps = prod(i.extent for i in self.anchor.reduction)
        arithmetic = prod(c for _, c in rows) * vectors / self.target.fma_ports
        overhead = 0.5 + 2.0 / steps  # loop control, write-back
        busy = max(arithmetic, (wide + narrow) / cost.load_ports, cost.latency_slack * self.target.fma_latency)
        return (
            busy + cost.load_cycles * wide + cost.broadcast_cycles * narrow + overhead
        )  # vectors come from farther away than broadcasts

    # --- the loops around it --------------------------------------------------------------------------------------

    def default_knobs(self) -> TiledKnobs:
        """The knobs that the rules choose."""
        kernel = self.best_kernel()
        chunk, by_rows = self.chunk(self.inside[0] if self.inside else None, dict(kernel.rows), kernel.vectors)
        knobs = TiledKnobs(kernel.rows, kernel.vectors, chunk, by_rows, None)
        return replace(knobs, parallel=self.parallel_loop(self.macro_loops(knobs), self.tiles(knobs)))

    def tiles(self, knobs: TiledKnobs) -> dict[str, tuple[int, ...]]:
        """Tile sizes of the vector iterator and of the rows in the register tile."""
        v, lanes, counts = self.vector, self.lanes, dict(knobs.rows)
        whole = -(-self.ranges[v] // lanes) * lanes
        tiles: dict[str, tuple[int, ...]] = {v: (min(knobs.vectors * lanes, whole), lanes)}
        for n in self.inside:
            outer = (knobs.chunk,) if n == self.inside[0] else ()
            tiles[n] = (*outer, counts[n], *self.unit(n))
        return tiles | {n: unit for n in self.reduction if (unit := self.unit(n))}

    def macro_loops(self, knobs: TiledKnobs) -> list[str]:
        """The loops around the micro-kernel, from the outermost: the one that goes to threads, then the others."""
        return [*([knobs.parallel] if knobs.parallel else []), *(m for m in self.order(knobs) if m != knobs.parallel)]

    def order(self, knobs: TiledKnobs) -> list[str]:
        """The loops around the micro-kernel as one core would go through them."""
        v, tiles, inside = self.vector, self.tiles(knobs), self.inside
        chunk_loop = [f"{n}0" for n in inside[:1]]
        rest = [f"{n}{len(tiles[n]) - len(self.unit(n)) - 1}" for n in inside]
        lead = [f"{n}0" for n in (*self.batch, *self.rows[: -len(inside) or None])]
        macro = [*lead, *chunk_loop, f"{v}0", *rest] if knobs.by_rows else [*lead, f"{v}0", *chunk_loop, *rest]
        if self.sliding:  # nothing is reused from one vector to the next: go through storage in order
            macro = [*lead, *chunk_loop, *((*rest, f"{v}0") if knobs.by_rows else (f"{v}0", *rest))]
        return macro

    def candidate(self, knobs: TiledKnobs) -> Candidate:
        """The schedule that `knobs` describe."""
        anchor, v, inside, parallel = self.anchor, self.vector, self.inside, knobs.parallel
        tiles, macro = self.tiles(knobs), self.macro_loops(knobs)
        micro = [f"{n}{len(tiles[n]) - len(self.unit(n))}" for n in inside] + [f"{v}1"]
        unit = self.unit_loops(tiles)
        tags = dict.fromkeys(micro, "unroll") | unit
        if parallel:
            tags[parallel] = "parallel"
        reduction = [f"{n}0" for n in self.reduction]
        steps = self.unrolled_steps(knobs, tiles)
        tags |= dict.fromkeys(steps, "unroll")
        if self.sliding and prod(i.extent for i in self.anchor.reduction) <= MAX_TAPS:
            tags |= dict.fromkeys(reduction, "unroll")
        layouts = {w.buffer: x for w in (*anchor.writes, *self.result.writes) if (x := self.tile_layout(w)) is not None}
        free, ahead = True, {}
        for read in self.reads:
            if read.strides[v] != 0 and read.load.buffer in self.task.constants:
                layout = self.packing(read, knobs)
                if layout is not None:
                    layouts[read.load.buffer] = layout
                    if self.fetches(macro, tiles):
                        ahead[read.load.buffer] = f"{v}0"
                    continue
            end = vectors_end(self.task, anchor, read, v, self.lanes)
            room = end is not None and end[1] <= self.task.buffer(read.load.buffer).shape[end[0]]
            free = free and (v not in variables(read.load) or room)  # what is repeated along it has an end, too
            moving = self.moving(read, macro) if self.straight and read.strides[v] != 0 else []
            if moving and self.fetches_rows(read.load.buffer, moving[-1], macro, tiles):
                ahead[read.load.buffer] = moving[-1]
        pad = (v,) if free else ()
        order = (*macro, *reduction, *steps, *micro, *unit)
        schedules: dict[str, BlockSchedule] = {}
        at = f"{anchor.name}.{macro[-1]}"
        for consumer in self.consumers:
            schedules[consumer.name] = self.epilogue(consumer, at, knobs)
        for later in afterwards(self.task, self.result):
            loop = followed(self.task, anchor, self.consumers, later, macro, tiles, self.target.second.bytes)
            spot = "root" if loop is None else f"{anchor.name}.{loop}"
            schedules[later.name] = map_schedule(self.task, later, self.target, spot)
            near = {r.buffer for r in later.reads} if loop is not None else set()
            for consumer in (c for c in self.consumers if near & {w.buffer for w in c.writes}):
                schedules[consumer.name] = replace(schedules[consumer.name], scope="local")
        for producer in self.task.blocks[: self.task.blocks.index(anchor)]:
            assert isinstance(producer, Block)
            schedules[producer.name], layout = self.prologue(producer, macro, tiles)
            if layout is not None:
                layouts[producer.writes[0].buffer] = layout
            _, placed, loop = schedules[producer.name].at.partition(".")
            if placed and self.fetches_rows(producer.reads[0].buffer, loop, macro, tiles):
                ahead[producer.reads[0].buffer] = loop
        ahead |= {name: macro[-1] for name in self.fetched_results(knobs, tags)}
        if knobs.prefetch != FAR:
            ahead = {}
        schedules[anchor.name] = BlockSchedule("root", "register", tiles, order, tags, pad, ahead)
        return Candidate({b.name: schedules[b.name] for b in self.task.blocks}, self.stages, layouts)

    def unrolled_steps(self, knobs: TiledKnobs, tiles: dict[str, tuple[int, ...]]) -> list[str]:
        """The loop over a few reduction steps that is unrolled, after its tile was added to `tiles`; none where the
        steps are few, or a unit's own, or where LLVM would spill accumulators: it loads vectors of the next step with
        those of the first."""
        if not self.unrollable() or knobs.steps == 1:
            return []
        name, steps = self.reduction[-1], min(knobs.steps, self.ranges[self.reduction[-1]] // 2)
        accumulators, loaded = prod(c for _, c in knobs.rows) * knobs.vectors, min(steps * knobs.vectors, CLUSTERED)
        if accumulators + loaded + 2 > self.target.vector.registers:  # and two for broadcasts
            return []
        tiles[name] = (steps,)
        return [f"{name}1"]

    def unrollable(self) -> bool:
        """Whether a few reduction steps can be unrolled in one loop: there are more of them, and they are no unit's."""
        name = self.reduction[-1] if self.reduction else None
        return name is not None and not self.sliding and not self.unit(name) and self.ranges[name] >= 2 * UNROLLED

    def fetches(self, macro: list[str], tiles: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether the next panel is fetched while one is worked on (ahead.py): there is a next one, and enough rows go
        over each that memory is not what everything waits for anyway."""
        panels = f"{self.vector}0"
        if self.sliding or trips(panels, self.ranges, tiles) == 1:
            return False
        return self.passes(panels, macro, tiles) >= FETCHING_ROWS

    def passes(self, loop: str, macro: Sequence[str], tiles: Mapping[str, tuple[int, ...]]) -> int:
        """How many rows or panels go over what one iteration of `loop` reads."""
        inside = [*macro[macro.index(loop) + 1 :], *(f"{n}{len(tiles[n]) - len(self.unit(n))}" for n in self.inside)]
        return prod(trips(x, self.ranges, tiles) for x in inside)

    def fetches_rows(self, buffer: str, loop: str, macro: Sequence[str], tiles: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether what is read, or copied, of `buffer` in the next iteration of `loop` is fetched in this one."""
        if self.sliding or not self.plain or trips(loop, self.ranges, tiles) == 1:
            return False
        extents = covered(self.ranges, macro[: macro.index(loop) + 1], tiles)
        far = far_computed(self.task, self.anchor, extents, self.target.second.bytes)
        return buffer in far and self.passes(loop, macro, tiles) >= FETCHING_ROWS

    def fetched_results(self, knobs: TiledKnobs, tags: Mapping[str, str]) -> list[str]:
        """Results whose lines are fetched while register tiles are summed up, or each tile would wait for them when it
        is done. Not where accumulators leave no register over: LLVM spills them beside these hints."""
        full = self.registers(knobs.rows, knobs.vectors) >= self.target.vector.registers
        if full or self.sliding or not self.plain or all(f"{n}0" in tags for n in self.reduction):
            return []
        extents = covered(self.ranges, self.macro_loops(knobs), self.tiles(knobs))
        return far_results(self.task, self.anchor, extents, self.target.second.bytes)

    def seconds(self, knobs: TiledKnobs) -> float:
        """The micro-kernel's cycles over the whole Task while its constants come from memory."""
        rate = self.target.peak["float32"] * 1e9 / (2 * self.target.lanes("float32") * self.target.fma_ports)
        others = prod(self.ranges[n] for n in (*self.batch, *self.rows) if n not in self.inside)
        steps = prod(i.extent for i in self.anchor.reduction)
        cycles = self.kernel_cost(knobs.rows, knobs.vectors).cycles * others * steps
        constants = {r.load.buffer for r in self.reads if r.load.buffer in self.task.constants}
        return overlapped(cycles / rate, sum(self.task.buffer(c).bytes for c in constants), self.target)

    def bytes_read(self, name: str, moving: bool) -> int:
        """Bytes of the operands that do (or do not) depend on iterator `name`."""
        return sum(self.task.buffer(r.load.buffer).bytes for r in self.reads if (r.strides[name] != 0) == moving)

    def chunk(self, name: str | None, counts: dict[str, int], vectors: int) -> tuple[int, bool]:
        """(rows of the outer row iterator per chunk, whether chunks are the outer loop).

        Where all rows stay in half of the second-level cache, one panel at a time goes over them; else the panels pass
        by chunks of rows that do."""
        if name is None:
            return 1, False
        extent, least = self.ranges[name], counts[name]
        budget = self.target.second.bytes // 2
        rows_bytes, panel_bytes = self.bytes_read(name, True), self.bytes_read(name, False)
        shared = prod(self.ranges[n] for n in self.batch) if self.batch else 1
        per_row = max(1, rows_bytes // shared // extent)
        whole = -(-extent // least) * least
        fitting = budget // per_row
        chunk = whole if fitting >= extent else max(least, fitting // 2 // least * least)
        panels, wanted = -(-self.ranges[self.vector] // (vectors * self.lanes)), self.target.cores * CHUNKS_PER_CORE
        by_rows = chunk < whole or panels < 2 * self.target.cores
        if by_rows and panel_bytes // shared <= budget:
            chunk = max(least, min(chunk, -(-extent // wanted) // least * least))
        return chunk, by_rows

    def parallel_loop(self, macro: list[str], tiles: dict[str, tuple[int, ...]]) -> str | None:
        """The loop whose iterations go to threads: the outermost with enough of them, else the longest."""
        if prod(self.ranges.values()) < SERIAL_POINTS:
            return None

        counts = {m: trips(m, self.ranges, tiles) for m in macro if m.endswith("0")}
        best = parallel_first(list(counts), counts, self.target)[0] if counts else None
        return best if best is not None and counts[best] > 1 else None

    def packing(self, read: Access, knobs: TiledKnobs) -> Layout | None:
        """The layout of a constant operand: [..., outer vector tiles, reduction in loop order, tile]."""
        load, tile_v = read.load, self.tiles(knobs)[self.vector][0]
        dims = [d for d, i in enumerate(load.indices) if self.vector in variables(i)]
        if len(dims) != 1 or load.indices[dims[0]] != Var(self.vector):
            return None
        (dim,) = dims
        extent = self.task.buffer(load.buffer).shape[dim]
        layout = Layout()
        if extent % tile_v:
            layout = layout.then("pad", dim, 0, tile_v - extent % tile_v)
        layout = layout.then("split", dim, tile_v)
        rank = len(load.indices)
        place = [d if d <= dim else d + 1 for d in range(rank)]  # where old dimensions are after the split

        def depth(d: int) -> int:
            found = [k for k, n in enumerate(self.reduction) if n in variables(load.indices[d])]
            return max(found, default=-1)

        others = sorted((d for d in range(rank) if d != dim), key=depth)
        spatial = [place[d] for d in others if depth(d) < 0]
        reduced = [place[d] for d in others if depth(d) >= 0]
        return layout.then("reorder", *spatial, dim, *reduced, dim + 1)

    def tile_layout(self, write: Load) -> Layout | None:
        """The accumulators' layout: the vector iterator innermost."""
        dims = [d for d, i in enumerate(write.indices) if i != Var(self.vector)]
        last = next(d for d, i in enumerate(write.indices) if i == Var(self.vector))
        order = (*dims, last)
        return None if order == tuple(range(len(order))) else Layout().then("reorder", *order)

    def epilogue(self, consumer: Block, at: str, knobs: TiledKnobs) -> BlockSchedule:
        """The consumer's loops over one register tile."""
        scope = "arena" if read_afterwards(self.task, self.result, consumer) else "local"
        return tile_epilogue(self.result, consumer, [n for n, _ in knobs.rows], self.vector, self.lanes, at, scope)

    def prologue(
        self, producer: Block, macro: list[str], tiles: Mapping[str, tuple[int, ...]]
    ) -> tuple[BlockSchedule, Layout | None]:
        """Where a padded or packed copy is made: in the innermost of the outer loops that all move through it, unless
        their iterations read much the same. Where each lane has a window of its own (depthwise) there is too little
        arithmetic for a copy that is not near."""
        buffer = producer.writes[0].buffer
        read = next((r for r in self.reads if r.load.buffer == buffer), None)
        layout = None
        if read is None:
            return map_schedule(self.task, producer, self.target), None
        dims = [d for d, i in enumerate(read.load.indices) if i == Var(self.vector)]
        if read.strides[self.vector] not in (0, 1) and dims:
            layout = Layout().then("reorder", *(d for d in range(len(read.load.indices)) if d not in dims), *dims)
        inside = None
        for loop in self.moving(read, macro):
            again = copies(read.load, self.ranges, macro[: macro.index(loop) + 1], tiles)
            if self.sliding or again <= MOST_COPIES:
                inside = loop
        if inside is None:
            return map_schedule(self.task, producer, self.target), layout
        schedule = map_schedule(self.task, producer, self.target, f"{self.anchor.name}.{inside}", "local")
        return schedule, layout

    def moving(self, read: Access, macro: Sequence[str]) -> list[str]:
        """The outer loops over whole iterators that all move through what is read, from the outermost."""
        outer = list(takewhile(lambda loop: read.strides[loop[:-1]] != 0, macro))
        return [loop for loop in outer if loop.endswith("0")]


def tile_epilogue(
    anchor: Block, consumer: Block, rows: Sequence[str], vector: str, lanes: int, at: str, scope: str
) -> BlockSchedule:
    """The consumer's loops over one register tile of the anchor's: its own names for the anchor's iterators."""
    plain = {}
    for write in anchor.writes:
        for d, name in (reads_plainly(consumer, write.buffer) or {}).items():
            index = write.indices[d]
            if isinstance(index, Var):
                plain[index.name] = name
    order = [f"{plain[n]}0" for n in rows if n in plain] + [f"{plain[vector]}0", f"{plain[vector]}1"]
    rest = [i.name for i in consumer.iters if i.extent > 1 and i.name not in plain.values()]
    tags = {name: "unroll" for name in order[:-1]} | {order[-1]: "vector"}
    return BlockSchedule(at, scope, {plain[vector]: (lanes,)}, (*(f"{n}0" for n in rest), *order), tags)
