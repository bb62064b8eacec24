"""Schedules whose innermost unit is the multiply-add of a vector, and how a Task comes to be tiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from modelc.ir.block import Block, Task
from modelc.ir.candidate import BlockSchedule, Stage
from modelc.ir.expr import Var, variables
from modelc.ir.layout import Layout
from modelc.ir.loop import Inside, Loop
from modelc.space.analysis.access import Access, reads_plainly, stored_lanes
from modelc.space.analysis.around import consumers_of, read_afterwards, reduction_of
from modelc.space.analysis.footprint import Floats, Ints
from modelc.space.analysis.loops import trips
from modelc.space.cost.register_tile import around_vectors, hold_vectors, vector_step
from modelc.space.sketches.clean import applied, collapsed, inlined
from modelc.space.sketches.prepare import factored, packed_operands, padded, pick_vector
from modelc.space.tiling.parallel import CHUNKS_PER_CORE
from modelc.space.tiling.tiled import FETCHING_ROWS, Bools, Tiled, TiledKnobs, Unit
from modelc.target import Target


def tiled_space(
    task: Task, target: Target, stages: list[Stage], unpacked: bool = False, stored: bool = False, apart: bool = False
) -> tuple[Task, Tiled | None]:
    """The Task as its reduction is tiled, after more stages, and what can be chosen; None if it is not tiled.
    `unpacked`: vectors are read where they lie, though each lies far from the last. `stored`: register
    tiles are copied out, though what reads them could take them from registers. `apart`:
    iterators that are stored one inside the other stay two."""
    task = padded(task, stages)
    task = inlined(task, stages)
    anchor = reduction_of(task)
    consumers = consumers_of(task, anchor)
    if len(anchor.writes) > 1:
        return task, None
    if stored or not consumers or anchor.writes[0].buffer in task.outputs:
        task = applied(task, stages, "cache_write", block=anchor.name)
    task = factored(task, stages)
    if not apart:
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
    task = packed_operands(task, anchor, vector, lanes, stages, unpacked)
    anchor = reduction_of(task)
    return task, Tiled(task, target, stages, anchor, vector, VectorUnit(lanes), unpacked)


class VectorUnit(Unit):
    """The multiply-add of a vector of `lanes` elements."""

    def __init__(self, lanes: int):
        self.lanes = lanes

    def loops(self, tiled: Tiled, tiles: Mapping[str, tuple[int, ...]]) -> dict[Loop, str]:
        return {Loop(tiled.vector, 2): "vector"}

    def row_counts(self, tiled: Tiled, name: str) -> list[int]:
        return list(range(1, min(tiled.ranges[name], tiled.target.vector.registers) + 1))

    def holds(self, tiled: Tiled, rows: Ints, vectors: Ints) -> Bools:
        return hold_vectors(tiled, rows, vectors)

    def step(self, tiled: Tiled, rows: Ints, vectors: Ints) -> Floats:
        return vector_step(tiled, rows, vectors)

    def around(self, tiled: Tiled, rows: Ints, vectors: Ints) -> Floats:
        return around_vectors(tiled, rows, vectors)

    def packing(self, tiled: Tiled, read: Access, knobs: TiledKnobs) -> Layout | None:
        """[..., outer vector tiles, reduction in loop order, tile]."""
        load, tile_v = read.load, tiled.tiles(knobs)[tiled.vector][0]
        dims = [d for d, i in enumerate(load.indices) if tiled.vector in variables(i)]
        if len(dims) != 1 or load.indices[dims[0]] != Var(tiled.vector):
            return None
        (dim,) = dims
        extent = tiled.task.buffer(load.buffer).shape[dim]
        layout = Layout()
        if extent % tile_v:
            layout = layout.then("pad", dim, 0, tile_v - extent % tile_v)
        layout = layout.then("split", dim, tile_v)
        rank = len(load.indices)
        place = [d if d <= dim else d + 1 for d in range(rank)]  # where old dimensions are after the split

        used = [variables(index) for index in load.indices]
        depths = [max((k for k, n in enumerate(tiled.reduction) if n in names), default=-1) for names in used]
        others = sorted((d for d in range(rank) if d != dim), key=depths.__getitem__)
        spatial = [place[d] for d in others if depths[d] < 0]
        reduced = [place[d] for d in others if depths[d] >= 0]
        return layout.then("reorder", *spatial, dim, *reduced, dim + 1)

    def epilogue(self, tiled: Tiled, consumer: Block, at: Inside, knobs: TiledKnobs) -> BlockSchedule:
        return vector_epilogue(tiled, consumer, at, knobs)

    def order(self, tiled: Tiled, knobs: TiledKnobs, macro: list[Loop]) -> list[Loop]:
        return macro

    def prefetches(self, tiled: Tiled, macro: list[Loop], tiles: Mapping[str, tuple[int, ...]]) -> bool:
        return vector_prefetches(tiled, macro, tiles)

    def chunk(self, tiled: Tiled, name: str, count: int, vectors: int) -> tuple[int, bool]:
        return vector_chunk(tiled, name, count, vectors)


def vector_epilogue(tiled: Tiled, consumer: Block, at: Inside, knobs: TiledKnobs) -> BlockSchedule:
    """The loops of a consumer that reads accumulators in registers."""
    scope = "arena" if read_afterwards(tiled.task, tiled.result, consumer) else "local"
    return tile_epilogue(tiled.result, consumer, [n for n, _ in knobs.rows], tiled.vector, tiled.lanes, at, scope)


def vector_prefetches(tiled: Tiled, macro: list[Loop], tiles: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether panels are prefetched: there is a next one, and enough rows go over each that memory is
    not what everything waits for anyway."""
    if tiled.sliding or trips(tiled.panels, tiled.ranges, tiles) == 1:
        return False
    return tiled.passes(tiled.panels, macro, tiles) >= FETCHING_ROWS


def vector_chunk(tiled: Tiled, name: str, count: int, vectors: int) -> tuple[int, bool]:
    """(Rows per chunk, whether chunks are outside.) Where all rows stay in half of the second-level cache, one panel at
    a time goes over them; else the panels are streamed past chunks of rows that do, and so they are past windows."""
    extent, least = tiled.ranges[name], count
    budget = tiled.target.second.bytes // 2
    rows_bytes, panel_bytes = tiled.bytes_read(name, True), tiled.bytes_read(name, False)
    shared = prod(tiled.ranges[n] for n in tiled.batch) if tiled.batch else 1
    per_row = max(1, rows_bytes // shared // extent)
    whole = -(-extent // least) * least
    fitting = budget // per_row
    chunk = whole if fitting >= extent else max(least, fitting // 2 // least * least)
    panels, wanted = -(-tiled.ranges[tiled.vector] // (vectors * tiled.lanes)), tiled.target.cores * CHUNKS_PER_CORE
    by_rows = chunk < whole or panels < 2 * tiled.target.cores or tiled.whole_window
    if by_rows and panel_bytes // shared <= budget:
        chunk = max(least, min(chunk, -(-extent // wanted) // least * least))
    return chunk, by_rows


def tile_epilogue(
    anchor: Block, consumer: Block, rows: Sequence[str], vector: str, lanes: int, at: Inside, scope: str
) -> BlockSchedule:
    """The consumer's loops over one register tile of the anchor's: its own names for the anchor's iterators."""
    plain = {}
    for write in anchor.writes:
        for d, name in (reads_plainly(consumer, write.buffer) or {}).items():
            index = write.indices[d]
            if isinstance(index, Var):
                plain[index.name] = name
    order = [Loop(plain[n], 0) for n in rows if n in plain] + [Loop(plain[vector], 0), Loop(plain[vector], 1)]
    others = [i.name for i in consumer.iters if i.extent > 1 and i.name not in plain.values()]
    tags = dict.fromkeys(order[:-1], "unroll") | {order[-1]: "vector"}
    return BlockSchedule(at, scope, {plain[vector]: (lanes,)}, (*(Loop(n, 0) for n in others), *order), tags)
