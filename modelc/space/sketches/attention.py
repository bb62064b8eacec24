"""Schedules of attention: scores, reductions of their rows, and what the rows weigh, tile by tile of query rows.

    parallel h0                        the batch and the heads
      pack the keys (and the values)   so that vectors of them are contiguous: once per head
      for m0                           a tile of query rows
        scores of the tile             a micro-kernel; scale and mask are its epilogue
        for every row of the tile      maximum, exponentials, sum: while the row is in the nearest cache
        weighted sum of the values     a micro-kernel; the rows' common factor is its epilogue

Scores and weights are a tile in local storage; the score matrix is never in memory. Without values the last map of the
rows writes the result (Ansor's TBS). What is what is told by what the Blocks read, not by names: passes/attention.py
says what such a Task is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from modelc.ir.block import Block, Iter, Task
from modelc.ir.candidate import BlockSchedule, Candidate, Stage
from modelc.ir.expr import DTYPES, variables
from modelc.space.analysis.access import accesses, stored_lanes
from modelc.space.sketches.attention_parts import Parts, parts_of, prepared, width_of
from modelc.space.sketches.attention_units import Unit, pack_schedule
from modelc.space.sketches.lanes import inside_rows
from modelc.space.sketches.maps import SERIAL_POINTS, map_schedule
from modelc.space.sketches.tensorized import drain_schedule
from modelc.space.sketches.tiled import tile_epilogue
from modelc.target import Target

MAX_VECTORS = 4  # vectors of one register tile
MAX_TILE = 128  # query rows of one tile


def attention_candidate(task: Task, target: Target, stages: list[Stage], tensorize: bool = True) -> Candidate | None:
    """The Candidate for a Task of attention, by intrinsics of the target if it may; None if `task` is not one."""
    noted = len(stages)
    for allowed in (True, False) if tensorize else (False,):
        ready, units = prepared(task, target, stages, allowed)
        parts = parts_of(ready)
        if parts is not None and all(parts.rows_of(n) in unit.inner for n, unit in units.items()):
            return _Attention(parts, target, tuple(stages), units).candidate()
        del stages[noted:]
    return None


@dataclass(frozen=True)
class RegisterTile:
    """Rows x vectors of accumulators that stay in registers over a whole reduction."""

    rows: int
    vectors: int


class _Attention:
    """The rules that choose tiles and places."""

    def __init__(self, parts: Parts, target: Target, stages: tuple[Stage, ...], units: Mapping[str, Unit]) -> None:
        self.parts, self.task, self.target, self.stages, self.units = parts, parts.task, target, stages, units
        self.dtype = self.task.buffer(parts.scores.writes[0].buffer).dtype
        self.lanes = stored_lanes(target, self.dtype)
        self.keys = parts.scores.ranges[parts.iters[parts.scores.name][parts.key]]
        self.queries = parts.scores.ranges[parts.iters[parts.scores.name][parts.query]]
        self.reads = {b.name: accesses(self.task, b)[0] for b in (parts.scores, parts.values) if b is not None}

    def candidate(self) -> Candidate:
        parts, task = self.parts, self.task
        tile, first, second = self.tiles()
        lead = self.lead(tile)
        root, rows = parts.root, f"{self.name(parts.root, parts.query)}0"
        at = f"{root.name}.{lead[-1]}"
        schedules: dict[str, BlockSchedule] = {b.name: map_schedule(task, b, self.target) for b in parts.others}
        schedules |= self.contraction(parts.scores, parts.epilogue, first, at, "local")
        key, row = self.name(parts.owner, parts.key), self.name(parts.owner, parts.query)
        tiles: dict[str, tuple[int, ...]]
        group = self.group(tile)
        if parts.values is None:
            inner = [f"{row}1", f"{row}2", f"{key}0", f"{key}1"]
            tags = {f"{key}1": "vector"} | self.parallel(lead)
            tiles = {row: (tile, group), key: (self.lanes,)}
            schedules[root.name] = BlockSchedule("root", "arena", tiles, (*lead, *inner), tags)
            in_rows = f"{root.name}.{row}1"
        else:
            inner = [f"{row}0", f"{row}1", f"{key}0", f"{key}1"]
            tags, tiles = {f"{key}1": "vector"}, {row: (group,), key: (self.lanes,)}
            schedules[parts.owner.name] = BlockSchedule(at, "local", tiles, tuple(inner), tags)
            in_rows = f"{parts.owner.name}.{row}0"
            found = self.contraction(parts.values, parts.results, second, at, "arena")
            own, query = found[root.name], rows[:-1]
            tiles = dict(own.tiles) | {query: (tile, *own.tiles[query])}
            order, reduced = tuple(_deeper(loop, query) for loop in own.order), {i.name for i in root.reduction}
            tags = {_deeper(loop, query): tag for loop, tag in own.tags.items()} | self.parallel(lead)
            if (unit := self.units.get(root.name)) is not None and unit.drained:  # maps run beside what comes next
                macro = [loop for loop in order if loop not in tags and loop[:-1] not in reduced]
                tags |= dict.fromkeys(macro, "pipeline")
            schedules |= found
            schedules[root.name] = BlockSchedule("root", "register", tiles, (*lead, *order), tags, own.padded)
            for result in parts.results:
                schedules[result.name] = replace(found[result.name], at=_deeper(found[result.name].at, query))
        for block in (*parts.before, *parts.after):
            schedules[block.name] = inside_rows(task, block, self.target, in_rows)
        for pack in parts.packs:
            schedules[pack.name] = self.pack(pack, lead)
        kernels = dict(zip(self.contractions(), (first, second), strict=False))
        layouts = {u.packed[1]: u.layout(t.vectors) for b, t in kernels.items() if (u := self.units.get(b.name))}
        return Candidate({b.name: schedules[b.name] for b in task.blocks}, self.stages, layouts)

    def name(self, block: Block, dim: int) -> str:
        return self.parts.iters[block.name][dim]

    # --- loops around a tile --------------------------------------------------------------------------------------

    def lead(self, tile: int) -> list[str]:
        """The root's loops around a tile: batch and heads, those that keys move with outside; then the tiles. The one
        whose iterations go to threads is the first."""
        parts, root = self.parts, self.parts.root
        dims = [d for d, n in enumerate(parts.iters[root.name]) if n and root.ranges[n] > 1]
        dims = [d for d in dims if d not in (parts.key, parts.query)]
        dims.sort(key=lambda d: not self.moves_keys(d))
        loops = [f"{self.name(root, d)}0" for d in (*dims, parts.query)]
        trips = [root.ranges[loop[:-1]] for loop in loops]
        trips[-1] = -(-trips[-1] // tile)
        enough = [loop for loop, n in zip(loops, trips, strict=True) if n >= 2 * self.target.cores]
        first = enough[0] if enough else loops[max(range(len(loops)), key=lambda k: trips[k])]
        loops.remove(first)
        return [first, *loops]

    def moves_keys(self, dim: int) -> bool:
        """Whether other keys belong to another element of this dimension."""
        key = self.name(self.parts.scores, self.parts.key)
        keyed = [r for r in self.parts.scores.reads if key in variables(r)]
        return any(self.name(self.parts.scores, dim) in variables(r) for r in keyed)

    def parallel(self, lead: Sequence[str]) -> dict[str, str]:
        return {lead[0]: "parallel"} if self.parts.scores.points() >= SERIAL_POINTS else {}

    def pack(self, block: Block, lead: Sequence[str]) -> BlockSchedule:
        """Where a copy of keys or values is made: in the innermost loop that it moves with, before one it does not."""
        parts = self.parts
        reader = next(b for b in (parts.scores, parts.values) if b and block.writes[0].buffer in _buffers(b))
        (read,) = [r for r in reader.reads if r.buffer == block.writes[0].buffer]
        inside = None
        for loop in lead:
            dim = parts.iters[parts.root.name].index(loop[:-1])
            if self.name(reader, dim) not in variables(read):
                break
            inside = loop
        at, scope = ("root", "arena") if inside is None else (f"{parts.root.name}.{inside}", "local")
        unit = self.units.get(reader.name)
        if unit is not None and unit.packed[1] == block.writes[0].buffer:
            return pack_schedule(self.task, block, unit, self.target, at, scope)
        return map_schedule(self.task, block, self.target, at, scope)

    def rows(self) -> tuple[Block, ...]:
        return (*self.parts.before, self.parts.owner, *self.parts.after)

    def group(self, tile: int) -> int:
        """Rows that are worked on together, so that one need not wait for another: in half of the first cache."""
        row = 2 * self.keys * DTYPES[self.dtype].itemsize
        most = max(1, min(tile, self.target.caches[0].bytes // 2 // row))
        return most if not self.units else max(n for n in range(1, most + 1) if tile % n == 0)

    # --- micro-kernels --------------------------------------------------------------------------------------------

    def contraction(
        self, block: Block, consumers: Sequence[Block], tile: RegisterTile, at: str, scope: str
    ) -> dict[str, BlockSchedule]:
        """A contraction over one tile of query rows, placed `at`, by register tiles; its consumers run on these."""
        row, vector = self.name(block, self.parts.query), self.vector(block)
        known = {*self.parts.iters[block.name], vector}
        extra = [f"{i.name}0" for i in block.spatial if i.extent > 1 and i.name not in known]
        reduction = [f"{i.name}0" for i in sorted(block.reduction, key=self.nearness(block)) if i.extent > 1]
        unit = self.units.get(block.name)
        panels = [f"{vector}0", f"{row}0"]  # one stays while rows pass; a unit has fewer rows at the end, shaped once
        macro = [*extra, *(panels if unit is None else reversed(panels))]
        lanes = self.lanes if unit is None else unit.lanes
        width = min(tile.vectors * lanes, -(-block.ranges[vector] // lanes) * lanes)
        tiles: dict[str, tuple[int, ...]] = {row: (tile.rows,), vector: (width, lanes)}
        inner, padded = {f"{vector}2": "vector"}, tuple[str, ...]()
        if unit is not None:
            tiles |= {n: (*tiles.get(n, ()), t) for n, t in unit.inner.items() if n != vector}
            inner, padded = unit.loops(tiles), (vector,)
        micro = [f"{row}1", f"{vector}1"]
        tags = dict.fromkeys(micro, "unroll") | inner
        order = (*macro, *reduction, *micro, *inner)
        result = {block.name: BlockSchedule(at, "register", tiles, order, tags, padded)}
        inside, anchor, rows = f"{block.name}.{macro[-1]}", block, [row]
        for consumer in consumers:
            if unit is not None and unit.drained and anchor is block:
                result[consumer.name] = drain_schedule(block, consumer, rows, unit.match, inside)
                own = _followed(block, consumer)
                anchor, rows, vector = consumer, [own[row]], own[vector]
                continue
            result[consumer.name] = tile_epilogue(anchor, consumer, rows, vector, lanes, inside, scope)
        return result

    def vector(self, block: Block) -> str:
        if block is self.parts.scores:
            return self.name(block, self.parts.key)
        found = width_of(self.task, block)
        assert found is not None
        return found

    def nearness(self, block: Block) -> Callable[[Iter], int]:
        """Sorts reduction iterators: the one that is nearest in an operand innermost."""
        reads = self.reads[block.name]
        return lambda i: -min((abs(s) for r in reads if (s := r.strides[i.name])), default=0)

    def tiles(self) -> tuple[int, RegisterTile, RegisterTile]:
        """Query rows of one tile and the register tiles of both contractions, with the fewest estimated cycles."""
        if self.units:
            return self.tiles_of_units()
        found = []
        for tile in range(min(8, self.queries), min(self.queries, MAX_TILE) + 1):
            if tile > 8 and not self.fits(tile):
                break
            kernels = [self.register_tile(b, tile) for b in (self.parts.scores, self.parts.values) if b is not None]
            cycles = sum(c for c, _ in kernels) + self.traffic(tile)
            found.append((cycles, -tile, kernels))
        _, tile, kernels = min(found, key=lambda f: f[:2])
        return -tile, kernels[0][1], kernels[-1][1]

    def tiles_of_units(self) -> tuple[int, RegisterTile, RegisterTile]:
        """The same where intrinsics multiply: as many whole applications of rows as fit, in tiles that are alike."""
        whole, registers = max(u.row for u in self.units.values()), self.target.vector.registers
        most = next((n for n in range(MAX_TILE // whole * whole, whole, -whole) if self.fits(n)), whole)
        tiles = -(-self.queries // most)
        tile = -(-self.queries // (tiles * whole)) * whole
        kernels = [RegisterTile(*u.register_tile(tile, registers)) for u in self.units.values()]
        return tile, kernels[0], kernels[-1]

    def fits(self, tile: int) -> bool:
        """Whether scores and weights of a tile lie in half of the second-level cache."""
        return 2 * tile * self.keys * DTYPES[self.dtype].itemsize <= self.target.second.bytes // 2

    def register_tile(self, block: Block, tile: int) -> tuple[float, RegisterTile]:
        """(cycles for all query rows, register tile) of a contraction in tiles of `tile` rows."""
        most = -(-block.ranges[self.vector(block)] // self.lanes)
        registers = self.target.vector.registers
        steps = prod(i.extent for i in block.reduction)
        parts = [(self.queries // tile, tile), (1, self.queries % tile)]
        found = []
        for vectors in range(1, min(MAX_VECTORS, most) + 1):
            for rows in range(1, min(tile, registers) + 1):
                if rows * vectors + vectors + 2 <= registers or rows == vectors == 1:
                    panels = [(most // vectors, vectors), (1, most % vectors)]
                    cycles = 0.0
                    for times, height in parts:
                        for count, width in panels:
                            for n, r in ((height // rows, rows), (1, height % rows)):
                                if times * count * n * r * width:
                                    cycles += times * count * n * self.step_cycles(r, width, steps)
                    found.append((cycles * steps, vectors, RegisterTile(rows, vectors)))
        cycles, _, best = min(found, key=lambda f: (f[0], -f[1]))
        return cycles, best

    def step_cycles(self, rows: int, vectors: int, steps: int) -> float:
        """Cycles of one of `steps` reduction steps: arithmetic, or loads (two a cycle), or the latency of dependent
        accumulation; and what loads, loop control and write-back take besides. Both operands are in near caches."""
        busy = max(rows * vectors / self.target.fma_ports, (rows + vectors) / 2, 1.15 * self.target.fma_latency)
        return busy + 0.05 * (rows + vectors) + 0.5 + 2.0 / steps

    def traffic(self, tile: int) -> float:
        """Cycles that the second-level cache adds: a head's operands come from there for every tile again, half of that
        beside the arithmetic; scores and weights that are too large for the first one are written and read there."""
        caches, size = self.target.caches, DTYPES[self.dtype].itemsize
        clock = self.target.peak["float32"] / (2 * self.lanes * self.target.fma_ports)
        rate = self.target.second.bandwidth_gbs / clock
        depths = [prod(i.extent for i in b.spatial if i.name == self.vector(b)) for b in self.contractions()]
        depths = [d * prod(i.extent for i in b.reduction) for d, b in zip(depths, self.contractions(), strict=True)]
        operands = -(-self.queries // tile) * sum(depths) * size
        spilled = 4 * self.queries * self.keys * size if 2 * tile * self.keys * size > caches[0].bytes else 0
        return (operands / 2 + spilled) / rate

    def contractions(self) -> list[Block]:
        return [b for b in (self.parts.scores, self.parts.values) if b is not None]


def _buffers(block: Block) -> set[str]:
    return {r.buffer for r in block.reads}


def _followed(block: Block, copy: Block) -> dict[str, str]:
    """The iterators of `copy` that stand for those of `block`, whose result it copies."""
    return {str(i): str(copy.reads[0].indices[d]) for d, i in enumerate(block.writes[0].indices)}


def _deeper(loop: str, iterator: str) -> str:
    """The loop's name when `iterator` has been tiled once more around it: "m1" for "m0"."""
    stem, level = loop[:-1], int(loop[-1])
    return f"{stem}{level + 1}" if stem.rpartition(".")[2] == iterator else loop
