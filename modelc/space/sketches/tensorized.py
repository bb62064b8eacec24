"""Schedules whose innermost unit is an application of a tensor intrinsic (TensorIR, section 4; DESIGN section 6).

The loops around the unit are those of tiled.py; the unit is isolated, and nothing there looks inside. Accumulators of
one dimension are vectors that the epilogue reads as they are. Those of several rows are taken to memory first, by a
Block of its own (`result`), which is the intrinsic's too.

    conv    ... r0 s0 c0 | w2 o1 | w3 o2 c1     tile registers: rows w3, columns o2, c1 of the reduction at a time
    store            w0 o0       | w1 o1

Constants are stored as the unit reads them; computed operands of which it loads vectors are copied into that order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from modelc.ir.block import AnyBlock, Block, Buffer
from modelc.ir.candidate import BlockSchedule, Stage
from modelc.ir.expr import DTYPES, Var, variables
from modelc.ir.layout import Layout
from modelc.ir.loop import ROOT, Inside, Loop, Root
from modelc.ir.nest import INTRINSIC
from modelc.space.analysis.access import Access
from modelc.space.analysis.around import readers
from modelc.space.analysis.footprint import Floats, Ints
from modelc.space.analysis.loops import trips
from modelc.space.analysis.match import CannotPack, Match, matches
from modelc.space.cost.register_tile import around_vectors, hold_vectors, vector_step
from modelc.space.cost.step import epilogue_cycles, step_cycles, tile_step_cycles
from modelc.space.rules.derivation import derive
from modelc.space.rules.rule import DoesNotApply, plain_block
from modelc.space.sketches.clean import applied
from modelc.space.sketches.packing import pack_schedule
from modelc.space.sketches.vectorized import (
    tile_epilogue,
    vector_chunk,
    vector_epilogue,
    vector_prefetches,
)
from modelc.space.tiling.parallel import CHUNKS_PER_CORE
from modelc.space.tiling.tiled import FETCHING_ROWS, Bools, Tiled, TiledKnobs, Unit
from modelc.target import CostParameters, Intrinsic
from modelc.target.binding import bindings

CHUNK_SHARE = 16  # of the second-level cache, for the rows of a chunk that are copied
LEAST_READERS = 8  # rows that read a computed operand, for a copy of it in the intrinsic's order to pay
LEFT_OVER_CYCLES = 2.0  # to make a vector of what is left of a row, with zeros
LEAST_EFFICIENCY = 0.3  # below it the unit is mostly padding


def tensorized(tiled: Tiled) -> list[Tiled]:
    """`tiled` with every intrinsic of its target that computes its reduction."""
    variants = (_tensorized(tiled, intrinsic) for intrinsic in tiled.target.available_intrinsics)
    return [variant for variant in variants if variant is not None]


def _tensorized(tiled: Tiled, intrinsic: Intrinsic) -> Tiled | None:
    dtypes = {b.name: b.dtype for b in tiled.task.buffers}
    if len(tiled.anchor.body) > 1 or next(bindings(intrinsic, tiled.anchor.body[0], dtypes), None) is None:
        return None
    packed = frozenset[str]()
    if any(i.reduce for i in intrinsic.semantics.iters):
        tiled, packed = _copied(tiled, intrinsic)
    task, anchor = tiled.task, tiled.anchor
    buffers = {b.name: b for b in task.buffers}
    whole = _fitting(tiled, buffers, intrinsic, packed)
    if whole is None:
        return None
    cut = intrinsic.cut(even_tiles(whole)) if intrinsic.tiles is not None else intrinsic
    match = _fitting(tiled, buffers, cut, packed)
    if match is None or match.efficiency < LEAST_EFFICIENCY or not _divided(match) or not _steps_plainly(match, packed):
        return None
    stages = tiled.stages
    if len(cut.accumulator.shape) > 1:
        store = Stage("cache_write", {"block": anchor.name})
        try:
            task = derive(task, (store,))
        except DoesNotApply:
            return None
        stages = (*stages, store)
    block = task.block(match.block.name)
    assert isinstance(block, Block)
    unit = IntrinsicUnit(match, packed)
    result = Tiled(task, tiled.target, stages, block, tiled.vector, unit)
    return result if unit.packs(result) else None


def _copied(tiled: Tiled, intrinsic: Intrinsic) -> tuple[Tiled, frozenset[str]]:
    """`tiled` with computed operands of which vectors are loaded read through copies, which can be stored as the
    intrinsic reads them, where a number of rows reads them; and what these copies are called. They have zeros up to the
    end of the last vector, and of the last step of the reduction."""
    task, stages, name, packed = tiled.task, [*tiled.stages], tiled.anchor.name, set[str]()
    if tiled.sliding:
        return tiled, frozenset()
    ends = _ends(tiled, intrinsic)
    for read in tiled.vectors():
        buffer = read.load.buffer
        dims = [d for d, i in enumerate(read.load.indices) if i == Var(tiled.vector)]
        if buffer in task.constants or not dims or readers(tiled.anchor, read) < LEAST_READERS:
            continue
        plain = {str(index) for index in read.load.indices}
        if any(ends.get(n, 0) > tiled.ranges[n] for n in variables(read.load) - plain):
            return tiled, frozenset()
        try:
            if buffer in task.inputs:
                task = applied(task, stages, "cache_read", block=name, buffer=buffer)
                (buffer,) = {b.name for b in task.buffers} - {b.name for b in tiled.task.buffers} - packed
            for dim, index in enumerate(read.load.indices):
                end = ends.get(str(index), 0)
                if end > task.buffer(buffer).shape[dim]:
                    task = applied(task, stages, "extend", buffer=buffer, dim=dim, extent=end)
        except DoesNotApply:
            return tiled, frozenset()
        if not any(_copies(b, buffer) for b in task.blocks):
            return tiled, frozenset()
        packed.add(buffer)
    if not packed:
        return tiled, frozenset()
    anchor = plain_block(task, name)
    return Tiled(task, tiled.target, stages, anchor, tiled.vector, tiled.unit), frozenset(packed)


def _steps_plainly(match: Match, packed: Collection[str]) -> bool:
    """Whether a dimension of each of the copies `packed` is the reduction's alone: the other operand may be stored in
    parts along it, by which two iterators index the copy together."""
    depths = {Var(group.inner) for group in match.groups if group.reduce}
    return all(depths <= {*read.indices} for read in match.block.reads if read.buffer in packed)


def _ends(tiled: Tiled, intrinsic: Intrinsic) -> dict[str, int]:
    """How long the iterators of a packed copy are in whole vectors, and in whole steps where one is left over: tile
    registers take none that is not whole."""
    sizes = {tiled.vector: intrinsic.accumulator.shape[-1]}
    if intrinsic.tiles is None:
        depth = prod(i.extent for i in intrinsic.semantics.iters if i.reduce)
        sizes |= dict.fromkeys(tiled.reduction, depth)
    return {n: -(-tiled.anchor.ranges[n] // size) * size for n, size in sizes.items()}


def _copies(block: AnyBlock, buffer: str) -> bool:
    """Whether the Block makes `buffer` by moving elements, or filling up with zeros, each of an iterator of its own."""
    if not isinstance(block, Block) or [w.buffer for w in block.writes] != [buffer] or block.aggregation != "assign":
        return False
    plain = all(isinstance(i, Var) for i in block.writes[0].indices)
    return plain and not block.where and len(block.reads) == 1


def _fitting(
    tiled: Tiled, buffers: Mapping[str, Buffer], intrinsic: Intrinsic, packed: Collection[str]
) -> Match | None:
    """The first match whose operands are laid out as a unit needs them, except constants and `packed` copies, which are
    padded."""
    free, anchor = {*tiled.task.constants, *packed}, tiled.anchor
    if packed:
        ends = _ends(tiled, intrinsic)
        anchor = replace(anchor, iters=tuple(replace(i, extent=ends.get(i.name, i.extent)) for i in anchor.iters))
    ways = matches(anchor, buffers, intrinsic, free)
    return next((way for way in ways if _fits(way, tiled, free)), None)


def _fits(match: Match, tiled: Tiled, free: Collection[str]) -> bool:
    """Whether the lanes are the vector iterator's, the rows one of a register tile's, what is multiplied lies in a row
    along the reduction, and everything else can be packed."""
    accumulator = match.intrinsic.accumulator
    lanes, *rows = [match.group(d.iterator) for d in reversed(accumulator.digits)]
    if match.guards or lanes.inner != tiled.vector or len(rows) > 1:
        return False
    if any(r.inner not in tiled.inside for r in rows):
        return False
    for operand in match.intrinsic.operands:
        if operand == accumulator or match.operands[operand.name].buffer in free:
            continue
        strides = match.strides[operand.name]
        if lanes.iterator in {d.iterator for d in operand.digits} or strides is None:
            return False
        if operand.digits and (operand.digits[-1].extent > 1 and strides[-1] != 1):
            return False
    return True


def even_tiles(match: Match) -> dict[str, int]:
    """The part of an intrinsic's tile to use: equal tiles of rows as far as possible, and a divisor of the
    reduction."""
    result = {}
    columns = match.intrinsic.accumulator.digits[-1].iterator
    for group in match.groups:
        if group.iterator == columns:
            continue
        if group.reduce:
            step = max(d.step for o in match.intrinsic.operands for d in o.digits if d.iterator == group.iterator)
            sizes = [k for k in range(step, min(group.tile, group.extent) + 1, step) if group.extent % k == 0]
            result[group.iterator] = max(sizes, default=group.tile)
        else:
            tiles = -(-group.extent // group.tile)
            result[group.iterator] = -(-group.extent // tiles)
    return result


def _divided(match: Match) -> bool:
    """Whether tiles divide what they have to: the reduction of tile registers, which are loaded whole. Vectors take
    what is left of a tile too, with zeros in their other lanes; and there is no tile of a single term."""
    summed = [g for g in match.groups if g.reduce]
    if match.intrinsic.tiles is None:
        return all(g.extent > 1 for g in summed)
    return not any(ragged(match, g.iterator) for g in summed)


def ragged(match: Match, iterator: str) -> bool:
    group = match.group(iterator)
    return group.extent % group.tile != 0


def store_schedule(anchor: Block, copy: Block, rows: Sequence[str], match: Match, at: Inside) -> BlockSchedule:
    """The loops of a copy of the accumulators of one register tile to memory, by the intrinsic that adds to them."""
    row, columns = (match.group(d.iterator) for d in match.intrinsic.accumulator.digits)
    m, vector = row.inner, columns.inner
    plain = tile_epilogue(anchor, copy, rows, vector, columns.tile, at, "local")
    write = anchor.writes[0]
    own = {i.name: str(copy.reads[0].indices[d]) for d, i in enumerate(write.indices) if isinstance(i, Var)}
    unit = [Loop(own[m], 1), Loop(own[vector], 1)]
    order = [n for n in plain.order if n not in unit]
    tags = dict.fromkeys(order, "unroll") | dict.fromkeys(unit, f"{INTRINSIC}{match.intrinsic.name}")
    return BlockSchedule(at, "local", {**plain.tiles, own[m]: (row.tile,)}, (*order, *unit), tags, (own[vector],))


class IntrinsicUnit(Unit):
    """An application of the intrinsic of `match`, cut to what the Task can use of its tiles."""

    def __init__(self, match: Match, copied: frozenset[str] = frozenset()):
        self.match, self.intrinsic, self.copied = match, match.intrinsic, copied
        accumulator = self.intrinsic.accumulator
        self.columns = accumulator.digits[-1].iterator
        self.row = match.group(accumulator.digits[0].iterator) if len(accumulator.digits) > 1 else None
        self.depth = next((g for g in match.groups if g.reduce), None)
        self.lanes = accumulator.shape[-1]
        self.stores_accumulators = self.row is not None
        self.pipelined = self.applied.tiles is not None

    @property
    def applied(self) -> Intrinsic:
        return self.match.intrinsic

    @property
    def plain(self) -> bool:
        return self.row is None and self.depth is None

    def packs(self, tiled: Tiled) -> bool:
        """Whether every constant can be stored as the intrinsic reads it."""
        knobs = TiledKnobs(tuple((n, max(1, prod(self.tile(n)))) for n in tiled.inside), 1, 1, False, None)
        try:
            return all(self.packing(tiled, r, knobs) is not None for r in tiled.vectors())
        except CannotPack:
            return False

    # --- loops ----------------------------------------------------------------------------------------------------

    def tile(self, name: str) -> tuple[int, ...]:
        groups = [g for g in (self.row, self.depth) if g is not None and g.inner == name]
        return (groups[0].tile,) if groups else ()

    def loops(self, tiled: Tiled, tiles: Mapping[str, tuple[int, ...]]) -> dict[Loop, str]:
        names = [self.match.group(i.name).inner for i in self.applied.semantics.iters]
        tag = "/".join((f"{INTRINSIC}{self.applied.name}", *self.once(tiled, tiles)))
        return {Loop(n, len(tiles[n])): tag for n in names}

    def once(self, tiled: Tiled, tiles: Mapping[str, tuple[int, ...]]) -> list[str]:
        """Operands that are streamed while another stays near: panels where a chunk is one register tile, else its
        rows. Only if they are more than the first cache holds, and a register tile reads each element once."""
        if self.applied.tiles is None:
            return []
        chunk, rows = tiles[tiled.inside[0]][:2] if tiled.inside else (1, 1)
        result = []
        for operand in self.applied.operands:
            read = next((r for r in tiled.reads if r.load == self.match.operands[operand.name]), None)
            if read is None:
                continue
            panels = read.strides[tiled.vector] != 0
            tile = {tiled.vector: tiled.ranges[tiled.vector]} if panels else {tiled.inside[0]: chunk}
            large = float(self._bytes_of(tiled, operand.name, {**tiled.ranges, **tile})) > tiled.target.caches[0].bytes
            if large and (chunk == rows if panels else chunk > rows and len(tiled.reduction) == 1):
                result.append(operand.name)
        return result

    def packing(self, tiled: Tiled, read: Access, knobs: TiledKnobs) -> Layout | None:
        names = [o.name for o in self.applied.operands if self.match.operands[o.name] == read.load]
        return self.match.packing(names[0], {self.columns: knobs.vectors}) if names else None

    def copy(self, tiled: Tiled, block: Block, at: Inside | Root, scope: str) -> BlockSchedule | None:
        if block.writes[0].buffer not in self.copied:
            return None
        if self.depth is not None and tiled.ranges[self.depth.inner] % self.depth.tile:
            at, scope = ROOT, "arena"  # a part of the copy has what is read alone, without the zeros after it
        return pack_schedule(tiled.task, block, self.match, tiled.vector, tiled.target, at, scope)

    def epilogue(self, tiled: Tiled, consumer: Block, at: Inside, knobs: TiledKnobs) -> BlockSchedule:
        """Accumulators are stored where the consumers read them."""
        if self.row is None or consumer is not tiled.result:
            return vector_epilogue(tiled, consumer, at, knobs)
        return store_schedule(tiled.anchor, consumer, [n for n, _ in knobs.rows], self.match, at)

    def chunk(self, tiled: Tiled, name: str, count: int, vectors: int) -> tuple[int, bool]:
        """Where all panels stay in half of the second-level cache, they are streamed past chunks of rows that stay in
        the first, or past larger ones if these have to be copied with a margin: what is computed then is written row by
        row. Not where panels are more than what is written: they come from afar, and one is fetched while another is
        used."""
        shared = prod(tiled.ranges[n] for n in tiled.batch)
        second = tiled.target.second.bytes
        written = prod(tiled.ranges[n] for n in (*tiled.rows, tiled.vector)) * self.written(tiled)
        if tiled.bytes_read(name, False) // shared > min(second // 2, written):
            return vector_chunk(tiled, name, count, vectors)
        extent, least = tiled.ranges[name], count
        copied = tiled.task.blocks.index(tiled.anchor) > 0
        room = second // CHUNK_SHARE if copied else tiled.target.caches[0].bytes // 2
        near = room // max(1, tiled.bytes_read(name, True) // shared // extent)
        most = -(-extent // (tiled.target.cores * CHUNKS_PER_CORE))
        return max(least, min(near, most) // least * least), True

    def order(self, tiled: Tiled, knobs: TiledKnobs, macro: list[Loop]) -> list[Loop]:
        """One panel at a time goes over the rows of all lead iterators, if less comes from beyond the second-level
        cache that way."""
        panels = tiled.panels
        lead = macro[: macro.index(panels)]
        if knobs.by_rows or not lead or tiled.batch or self.plain:
            return macro
        passes = prod(tiled.ranges[m.iterator] for m in lead), trips(panels, tiled.ranges, tiled.tiles(knobs))
        near = tiled.target.second.bytes // 2
        constants, rows = (tiled.bytes_read(tiled.vector, moving) for moving in (True, False))
        again = constants * (1 if constants <= near else passes[0]), rows * (1 if rows <= near else passes[1])
        if again[1] + constants >= again[0] + rows:
            return macro
        return [panels, *(m for m in macro if m != panels)]

    def prefetches(self, tiled: Tiled, macro: list[Loop], tiles: Mapping[str, tuple[int, ...]]) -> bool:
        """In a single pass too: the arithmetic is faster than the CPU's own prefetcher. Not where chunks of rows
        outside find the panels near, again and again."""
        if self.plain:
            return vector_prefetches(tiled, macro, tiles)
        panels = tiled.panels
        outside = macro[: macro.index(panels)]
        again = prod(trips(m, tiled.ranges, tiles) for m in outside if m.iterator in tiled.rows)
        return trips(panels, tiled.ranges, tiles) > 1 and again < FETCHING_ROWS

    # --- the micro-kernel -----------------------------------------------------------------------------------------

    def row_counts(self, tiled: Tiled, name: str) -> list[int]:
        (unit,) = self.tile(name) or (1,)
        units = range(1, min(-(-tiled.ranges[name] // unit), tiled.target.vector.registers) + 1)
        return [k * unit for k in units]

    def _units(self, tiled: Tiled, rows: Ints) -> Ints:
        """Units of register tiles along their rows [P]."""
        sizes = np.array([prod(self.tile(n)) for n in tiled.inside], np.int64)
        return np.asarray(np.prod(-(-rows // sizes), axis=1), np.int64)

    def holds(self, tiled: Tiled, rows: Ints, vectors: Ints) -> Bools:
        if self.plain:
            return hold_vectors(tiled, rows, vectors)
        units, tiles = self._units(tiled, rows), self.applied.tiles
        if tiles is not None:
            ragged = self.row is not None and self.row.extent % self.row.tile != 0  # tiles of fewer rows are others
            narrow = (np.minimum(units, vectors) == 1) & (units * vectors + 2 + ragged <= tiles.count)
            return np.asarray((units * vectors + units + vectors <= tiles.count) | narrow, np.bool_)
        operands = [o for o in self.applied.operands if o.lies == "vector"][1:]
        held = units * vectors + vectors * len(operands) + self.applied.temporaries
        return np.asarray(held <= tiled.target.vector.registers, np.bool_)

    def step(self, tiled: Tiled, rows: Ints, vectors: Ints) -> Floats:
        """Cycles of one application for every unit of register tiles [P]."""
        if self.plain:
            return vector_step(tiled, rows, vectors)
        cost, latency = tiled.target.cost, float(self.applied.latency)
        near, far = self._lines(tiled, rows, vectors)
        products = (self._units(tiled, rows) * vectors).astype(np.float64) * self._part(cost) / self.applied.throughput
        if self.applied.tiles is not None:
            return tile_step_cycles(cost, products, near, far, latency)
        return step_cycles(cost, products, 0.0, near, latency, far)

    def _part(self, cost: CostParameters) -> float:
        """The part of an application's time that one on fewer rows takes, in tile registers."""
        if self.applied.tiles is None or self.row is None:
            return 1.0
        return max(cost.least_tile_share, self.row.tile / self.applied.tiles.rows)

    def _lines(self, tiled: Tiled, rows: Ints, vectors: Ints) -> tuple[Floats, Floats]:
        """Lines that one application for every unit of register tiles loads, from the first cache and from beyond [P]:
        the operand of which a register tile reads less stays near while the other is streamed."""
        units, counts = self._units(tiled, rows), dict(zip(tiled.inside, rows.T, strict=True))
        loads = []
        for operand in self.applied.operands:
            if operand == self.applied.accumulator:
                continue
            size = prod(operand.shape) * DTYPES[operand.dtype].itemsize
            each = operand.shape[0] if operand.lies == "tile" else -(-size // (tiled.target.vector.bits // 8))
            moving = self.columns in {d.iterator for d in operand.digits}
            tile = {tiled.vector: vectors * self.lanes} if moving else counts
            held = self._bytes_of(tiled, operand.name, tile) * np.ones(len(vectors))
            if not moving and len(tiled.reduction) > 1:  # windows overlap: what a tap reads, the next ones read again
                points = np.prod(np.stack([np.ones(len(vectors)), *tile.values()]), axis=0)
                held = np.minimum(held, points * tiled.ranges[tiled.reduction[-1]] * DTYPES[operand.dtype].itemsize)
            loads.append((held, each * (vectors if moving else units)))
        bytes_held, lines = (np.stack([x[k] for x in loads]).astype(np.float64) for k in (0, 1))
        order = np.lexsort((lines, bytes_held), axis=0)
        stacked = np.cumsum(np.take_along_axis(bytes_held, order, axis=0), axis=0)
        stays = stacked <= tiled.target.cost.near_share * tiled.target.caches[0].bytes
        lines = np.take_along_axis(lines, order, axis=0)
        return np.asarray((lines * stays).sum(axis=0)), np.asarray((lines * ~stays).sum(axis=0))

    def around(self, tiled: Tiled, rows: Ints, vectors: Ints) -> Floats:
        """Vectors go through the epilogue, and nothing is known to go beside it; accumulators of tile registers are
        stored, and the rest goes beside the next ones."""
        if self.plain:
            return around_vectors(tiled, rows, vectors)
        cost, units = tiled.target.cost, self._units(tiled, rows)
        if self.row is None:
            accumulators = (units * vectors).astype(np.float64)
            epilogue = epilogue_cycles(cost, accumulators, tiled.epilogue_cycles + tiled.scattered)
            return np.asarray(cost.tile_cycles + epilogue + self._left_over(tiled, units), np.float64)
        each = cost.accumulator_store_cycles + tiled.scattered
        stored = each * self.applied.accumulator.shape[0] * units * vectors
        parts = vectors * self.lanes * self.written(tiled) < tiled.target.caches[0].line  # of lines of the result
        return np.asarray(np.where(parts, 2.0, 1.0) * stored + self._left_over(tiled, units), np.float64)

    def _left_over(self, tiled: Tiled, units: Ints) -> Floats:
        """Cycles in which a register tile of so many units along its rows makes vectors of the terms that no whole
        application takes."""
        if self.depth is None or tiled.ranges[self.depth.inner] % self.depth.tile == 0:
            return np.zeros(len(units))
        times = prod(tiled.ranges[n] for n in tiled.reduction if n != self.depth.inner)
        return np.asarray(LEFT_OVER_CYCLES * times * units, np.float64)

    def written(self, tiled: Tiled) -> int:
        """Bytes of an element of the result."""
        return int(DTYPES[tiled.task.buffer(tiled.consumers[-1].writes[0].buffer).dtype].itemsize)

    def _bytes_of(self, tiled: Tiled, operand: str, tile: Mapping[str, Ints | int]) -> Floats:
        """Bytes of an operand that a register tile reads; `tile` gives its rows or columns by iterator."""
        read = next(r for r in tiled.reads if r.load == self.match.operands[operand])
        whole = tiled.task.buffer(read.load.buffer).bytes
        moving = [n for n in (*tiled.batch, *tiled.rows, tiled.vector) if read.strides[n] != 0]
        parts = [np.minimum(tile.get(n, 1), tiled.ranges[n]) / tiled.ranges[n] for n in moving]
        return np.asarray(whole * prod(parts), np.float64)
