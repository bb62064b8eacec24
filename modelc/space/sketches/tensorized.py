"""Schedules whose innermost unit is an application of a tensor intrinsic (TensorIR, section 4; DESIGN section 6).

The loops around the unit are those of tiled.py; the unit is isolated, and nothing here looks inside. Accumulators of
one dimension are vectors that the epilogue reads as they are. Those of several rows are taken to memory first, by a
Block of its own (`result`), which is the intrinsic's too.

    conv    ... r0 s0 c0 | w2 o1 | w3 o2 c1     tile registers: rows w3, columns o2, c1 of the reduction at a time
    drain            w0 o0       | w1 o1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod

from modelc.ir.block import Block, Buffer, Task
from modelc.ir.candidate import BlockSchedule, Candidate, Stage
from modelc.ir.expr import DTYPES, Var
from modelc.ir.layout import Layout
from modelc.ir.nest import INTRINSIC
from modelc.space.analysis.access import Access
from modelc.space.analysis.loops import trips
from modelc.space.analysis.match import CannotPack, Match, matches
from modelc.space.rules.derivation import derive
from modelc.space.rules.rule import DoesNotApply
from modelc.space.sketches.maps import CHUNKS_PER_CORE
from modelc.space.sketches.prepare import consumers_of
from modelc.space.sketches.tiled import FETCHING_ROWS, MAX_VECTORS, MicroKernel, Tiled, TiledKnobs, tile_epilogue
from modelc.target import Intrinsic, Target

CHUNK_SHARE = 16  # of the second-level cache, for the rows of a chunk that are copied
LEAST_EFFICIENCY = 0.3  # below it the unit is mostly padding


def tensorized(tiled: Tiled) -> list[Tensorized]:
    """`tiled` with every intrinsic of its target that computes its reduction."""
    found = (_tensorized(tiled, intrinsic) for intrinsic in tiled.target.available_intrinsics)
    return [one for one in found if one is not None]


def _tensorized(tiled: Tiled, intrinsic: Intrinsic) -> Tensorized | None:
    task, anchor = tiled.task, tiled.anchor
    buffers = {b.name: b for b in task.buffers}
    whole = _fitting(tiled, buffers, intrinsic)
    if whole is None:
        return None
    cut = intrinsic.cut(even_tiles(whole)) if intrinsic.tiles is not None else intrinsic
    found = _fitting(tiled, buffers, cut)
    if found is None or found.efficiency < LEAST_EFFICIENCY or any(ragged(found, it) for it in exact(cut)):
        return None
    stages = tiled.stages
    if len(cut.accumulator.shape) > 1:
        drain = Stage("cache_write", {"block": anchor.name})
        try:
            task = derive(task, (drain,))
        except DoesNotApply:
            return None
        stages = (*stages, drain)
    result = Tensorized(task, tiled.target, stages, tiled.vector, found)
    return result if result.packs() else None


def _fitting(tiled: Tiled, buffers: Mapping[str, Buffer], intrinsic: Intrinsic) -> Match | None:
    """The first way round in which operands lie as a unit needs them."""
    found = matches(tiled.anchor, buffers, intrinsic, tiled.task.constants, fusing=False)
    return next((one for one in found if _fits(one, tiled)), None)


def _fits(found: Match, tiled: Tiled) -> bool:
    """Whether the lanes are the vector iterator's, the rows one of a register tile's, what is multiplied lies in a row
    along the reduction, and everything else is a constant that can be packed."""
    accumulator = found.intrinsic.accumulator
    lanes, *rows = [found.group(d.iterator) for d in reversed(accumulator.digits)]
    if found.guards or lanes.inner != (tiled.vector,) or len(rows) > 1:
        return False
    if any(r.inner[0] not in tiled.inside for r in rows):
        return False
    for operand in found.intrinsic.operands:
        if operand == accumulator or found.operands[operand.name].buffer in tiled.task.constants:
            continue
        strides = found.strides[operand.name]
        if lanes.iterator in {d.iterator for d in operand.digits} or strides is None:
            return False
        if operand.digits and (operand.digits[-1].extent > 1 and strides[-1] != 1):
            return False
    return True


def even_tiles(found: Match) -> dict[str, int]:
    """What of a tile to use: rows so that all tiles are alike as far as possible, a reduction that divides."""
    result = {}
    columns = found.intrinsic.accumulator.digits[-1].iterator
    for group in found.groups:
        if group.iterator == columns:
            continue
        if group.reduce:
            step = max(d.step for o in found.intrinsic.operands for d in o.digits if d.iterator == group.iterator)
            sizes = [k for k in range(step, min(group.tile, group.extent) + 1, step) if group.extent % k == 0]
            result[group.iterator] = max(sizes, default=group.tile)
        else:
            tiles = -(-group.extent // group.tile)
            result[group.iterator] = -(-group.extent // tiles)
    return result


def exact(intrinsic: Intrinsic) -> list[str]:
    """Iterators that have to divide: all but the columns, which constants are padded to, and the rows of tiles, which
    can be fewer."""
    digits = intrinsic.accumulator.digits
    loose = {digits[-1].iterator} | ({digits[0].iterator} if intrinsic.tiles is not None else set())
    return [i.name for i in intrinsic.semantics.iters if i.name not in loose]


def ragged(found: Match, iterator: str) -> bool:
    group = found.group(iterator)
    return group.extent % group.tile != 0


def drain_schedule(anchor: Block, copy: Block, rows: Sequence[str], found: Match, at: str) -> BlockSchedule:
    """The loops of a copy of the accumulators of one register tile to memory, by the intrinsic that adds to them."""
    row, columns = (found.group(d.iterator) for d in found.intrinsic.accumulator.digits)
    (m,), (vector,) = row.inner, columns.inner
    plain = tile_epilogue(anchor, copy, rows, vector, columns.tile, at, "local")
    write = anchor.writes[0]
    own = {i.name: str(copy.reads[0].indices[d]) for d, i in enumerate(write.indices) if isinstance(i, Var)}
    unit = [f"{own[m]}1", f"{own[vector]}1"]
    order = [n for n in plain.order if n not in unit]
    tags = dict.fromkeys(order, "unroll") | dict.fromkeys(unit, f"{INTRINSIC}{found.intrinsic.name}")
    return BlockSchedule(at, "local", {**plain.tiles, own[m]: (row.tile,)}, (*order, *unit), tags, (own[vector],))


class Tensorized(Tiled):
    """A Tiled whose unit is the intrinsic of `found`."""

    def __init__(self, task: Task, target: Target, stages: Sequence[Stage], vector: str, found: Match):
        anchor = task.block(found.block.name)
        assert isinstance(anchor, Block)
        self.match = found
        accumulator = found.intrinsic.accumulator
        self.columns = accumulator.digits[-1].iterator
        self.row = found.group(accumulator.digits[0].iterator) if len(accumulator.digits) > 1 else None
        self.depth = next((g for g in found.groups if g.reduce), None)
        consumers = consumers_of(task, anchor)
        super().__init__(task, target, tuple(stages), anchor, vector, consumers)
        self.intrinsic = found.intrinsic
        self.lanes = accumulator.shape[-1]
        if self.row is not None:  # the consumers read what is drained
            (self.result,) = consumers
            self.consumers = [*consumers, *consumers_of(task, self.result)]
        self.written = DTYPES[task.buffer(self.consumers[-1].writes[0].buffer).dtype].itemsize

    @property
    def applied(self) -> Intrinsic:
        """The intrinsic, cut to what the Task can use of its tiles."""
        return self.match.intrinsic

    def packs(self) -> bool:
        """Whether every constant can be stored as the intrinsic reads it."""
        knobs = TiledKnobs(tuple((n, max(1, prod(self.unit(n)))) for n in self.inside), 1, 1, False, None)
        try:
            return all(self.packing(r, knobs) is not None for r in self.vectors())
        except CannotPack:
            return False

    # --- the unit -------------------------------------------------------------------------------------------------

    def unit(self, name: str) -> tuple[int, ...]:
        groups = [g for g in (self.row, self.depth) if g is not None and g.inner == (name,)]
        return (groups[0].tile,) if groups else ()

    def unit_loops(self, tiles: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
        names = [self.match.group(i.name).inner[0] for i in self.applied.semantics.iters]
        tag = "/".join((f"{INTRINSIC}{self.applied.name}", *self.once(tiles)))
        return {f"{n}{len(tiles[n])}": tag for n in names}

    def once(self, tiles: Mapping[str, tuple[int, ...]]) -> list[str]:
        """Operands that pass by while another stays: panels where a chunk is one register tile, else its rows. Only if
        they are more than the first cache holds, and a register tile reads each element once."""
        if self.applied.tiles is None:
            return []
        chunk, rows = tiles[self.inside[0]][:2] if self.inside else (1, 1)
        result = []
        for operand in self.applied.operands:
            read = next((r for r in self.reads if r.load == self.match.operands[operand.name]), None)
            if read is None:
                continue
            panels = read.load.buffer in self.task.constants
            tile = {self.vector: self.ranges[self.vector]} if panels else {self.inside[0]: chunk}
            large = self._bytes_of(operand.name, {**self.ranges, **tile}) > self.target.caches[0].bytes
            if large and (chunk == rows if panels else chunk > rows and len(self.reduction) == 1):
                result.append(operand.name)
        return result

    def packing(self, read: Access, knobs: TiledKnobs) -> Layout | None:
        names = [o.name for o in self.applied.operands if self.match.operands[o.name] == read.load]
        return self.match.packing(names[0], {self.columns: knobs.vectors}) if names else None

    def epilogue(self, consumer: Block, at: str, knobs: TiledKnobs) -> BlockSchedule:
        if self.row is None or consumer is not self.result:
            return super().epilogue(consumer, at, knobs)
        rows = [n for n, _ in knobs.rows]
        return drain_schedule(self.anchor, consumer, rows, self.match, at)

    def candidate(self, knobs: TiledKnobs) -> Candidate:
        """What tile registers are drained of goes through the epilogue while the next ones are computed: on units of
        their own."""
        result = super().candidate(knobs)
        if self.applied.tiles is None:
            return result
        schedule = result.blocks[self.anchor.name]
        serial = [m for m in self.macro_loops(knobs) if m != knobs.parallel]
        piped = replace(schedule, tags={**schedule.tags, **dict.fromkeys(serial, "pipeline")})
        return replace(result, blocks={**result.blocks, self.anchor.name: piped})

    def chunk(self, name: str | None, counts: dict[str, int], vectors: int) -> tuple[int, bool]:
        """Where all panels stay in half of the second-level cache, they pass by chunks of rows that stay in the first,
        or by larger ones if these have to be copied with a margin: what is computed then is written row by row. Not
        where panels are more than what is written: they come from afar, and one is fetched while another is used."""
        if name is None:
            return 1, False
        shared = prod(self.ranges[n] for n in self.batch)
        second = self.target.second.bytes
        written = prod(self.ranges[n] for n in (*self.rows, self.vector)) * self.written
        if self.bytes_read(name, False) // shared > min(second // 2, written):
            return super().chunk(name, counts, vectors)
        extent, least = self.ranges[name], counts[name]
        copied = self.task.blocks.index(self.anchor) > 0
        room = second // CHUNK_SHARE if copied else self.target.caches[0].bytes // 2
        near = room // max(1, self.bytes_read(name, True) // shared // extent)
        most = -(-extent // (self.target.cores * CHUNKS_PER_CORE))
        return max(least, min(near, most) // least * least), True

    def order(self, knobs: TiledKnobs) -> list[str]:
        """One panel at a time goes over the rows of all lead iterators, if less comes from beyond the second-level
        cache that way."""
        macro, panels = super().order(knobs), f"{self.vector}0"
        lead = macro[: macro.index(panels)]
        if knobs.by_rows or not lead or self.batch or self.plain:
            return macro
        passes = prod(self.ranges[m[:-1]] for m in lead), trips(panels, self.ranges, self.tiles(knobs))
        near = self.target.second.bytes // 2
        constants, rows = (self.bytes_read(self.vector, moving) for moving in (True, False))
        again = constants * (1 if constants <= near else passes[0]), rows * (1 if rows <= near else passes[1])
        if again[1] + constants >= again[0] + rows:
            return macro
        return [panels, *(m for m in macro if m != panels)]

    def fetches(self, macro: list[str], tiles: Mapping[str, tuple[int, ...]]) -> bool:
        """In a single pass too: the arithmetic is faster than the CPU's own prefetcher. Not where chunks of rows
        outside find the panels near, again and again."""
        if self.plain:
            return super().fetches(macro, tiles)
        panels = f"{self.vector}0"
        outside = macro[: macro.index(panels)]
        again = prod(trips(m, self.ranges, tiles) for m in outside if m[:-1] in self.rows)
        return trips(panels, self.ranges, tiles) > 1 and again < FETCHING_ROWS

    # --- the micro-kernel -----------------------------------------------------------------------------------------

    @property
    def plain(self) -> bool:
        """Whether a unit is the multiply-add of one vector, as in plain vector code: Tiled's rules hold."""
        return self.row is None and self.depth is None

    def kernels(self) -> list[tuple[tuple[tuple[str, int], ...], int]]:
        if self.plain:
            return super().kernels()
        most = min(MAX_VECTORS, -(-self.ranges[self.vector] // self.lanes))
        result = []
        for vectors in range(1, most + 1):
            for counts in product(*(self.row_counts(n) for n in self.inside)):
                rows = tuple(zip(self.inside, counts, strict=True))
                later = zip(counts[1:], self.inside[1:], strict=True)
                if (not counts or counts[0] == 1 or all(c >= self.ranges[n] for c, n in later)) and self.holds(
                    rows, vectors
                ):
                    result.append((rows, vectors))
        return result

    def row_counts(self, name: str) -> list[int]:
        if self.plain:
            return super().row_counts(name)
        (unit,) = self.unit(name) or (1,)
        units = range(1, min(-(-self.ranges[name] // unit), self.target.vector.registers) + 1)
        return [k * unit for k in units]

    def _units(self, rows: Sequence[tuple[str, int]]) -> int:
        """Units of a register tile along its rows."""
        return prod(-(-c // (self.unit(n) or (1,))[0]) for n, c in rows)

    def holds(self, rows: Sequence[tuple[str, int]], vectors: int) -> bool:
        """Whether accumulators and what is multiplied fit into registers."""
        units, tiles = self._units(rows), self.applied.tiles
        if tiles is not None:
            ragged = self.row is not None and self.row.extent % self.row.tile != 0  # tiles of fewer rows are others
            return units * vectors + units + vectors <= tiles.count or (
                min(units, vectors) == 1 and units * vectors + 2 + ragged <= tiles.count
            )
        operands = [o for o in self.applied.operands if o.lies == "vector"][1:]
        return units * vectors + vectors * len(operands) + self.applied.temporaries <= self.target.vector.registers

    def _part(self) -> float:
        """The part of an application's time that one on fewer rows takes, in tile registers."""
        if self.applied.tiles is None or self.row is None:
            return 1.0
        return max(self.target.cost.least_tile_share, self.row.tile / self.applied.tiles.rows)

    def kernel_cost(self, rows: tuple[tuple[str, int], ...], vectors: int) -> MicroKernel:
        cost = super().kernel_cost(rows, vectors)
        depth = 1 if self.depth is None else self.depth.tile
        return MicroKernel(rows, vectors, cost.cycles / depth)

    def step_cycles(self, rows: Sequence[tuple[str, int]], vectors: int) -> float:
        """Cycles of one application for every unit of the register tile."""
        if self.plain:
            return super().step_cycles(rows, vectors)
        units, intrinsic, cost = self._units(rows), self.applied, self.target.cost
        counts, loads = dict(rows), []
        for operand in intrinsic.operands:
            if operand == intrinsic.accumulator:
                continue
            size = prod(operand.shape) * DTYPES[operand.dtype].itemsize
            each = operand.shape[0] if operand.lies == "tile" else -(-size // (self.target.vector.bits // 8))
            moving = self.columns in {d.iterator for d in operand.digits}
            tile = {self.vector: vectors * self.lanes} if moving else counts
            held = self._bytes_of(operand.name, tile)
            if not moving and len(self.reduction) > 1:  # windows overlap: what a tap reads, the next ones read again
                taps = prod(tile.values()) * self.ranges[self.reduction[-1]] * DTYPES[operand.dtype].itemsize
                held = min(held, taps)
            loads.append((held, each * (vectors if moving else units)))
        room, near, far = cost.near_share * self.target.caches[0].bytes, 0.0, 0.0
        for footprint, lines in sorted(loads):  # the smaller stays near while the others pass
            room -= footprint
            near, far = (near + lines, far) if room >= 0 else (near, far + lines)
        arithmetic = units * vectors * self._part() / intrinsic.throughput
        applications = prod(i.extent for i in self.anchor.reduction) / (1 if self.depth is None else self.depth.tile)
        drained = 0.0 if self.row is None else cost.drain_cycles * intrinsic.accumulator.shape[0] * units * vectors
        if vectors * self.lanes * self.written < self.target.caches[0].line:
            drained *= 2  # the lines of the result are written in parts
        overhead = 0.5 + (2.0 + drained) / applications
        if intrinsic.tiles is not None:
            loaded = (
                cost.tile_beside_share * arithmetic + cost.tile_line_cycles * near + cost.far_tile_line_cycles * far
            )
            return max(arithmetic, loaded, float(intrinsic.latency)) + overhead
        busy = max(arithmetic, near / cost.load_ports + far * cost.far_line_cycles, float(intrinsic.latency))
        return busy + cost.broadcast_cycles * near + cost.far_wait_cycles * far + overhead

    def _bytes_of(self, operand: str, tile: Mapping[str, int]) -> float:
        """Bytes of an operand that a register tile reads, of which `tile` has so many rows or columns."""
        read = next(r for r in self.reads if r.load == self.match.operands[operand])
        whole = self.task.buffer(read.load.buffer).bytes
        moving = [n for n in (*self.batch, *self.rows, self.vector) if read.strides[n] != 0]
        return whole * prod(min(tile.get(n, 1), self.ranges[n]) / self.ranges[n] for n in moving)
