"""Schedules of Tasks derived by Winograd's rule (winograd.py): where the transforms run around the products.

The Task's last Block owns the outer loops. Three shapes, told apart by what is read again and again:

    by rows     a chunk of tile rows at a time: its input is padded and transformed, multiplied, transformed back; the
                kernel is read for every chunk
    by panels   all tiles are transformed first (a phase of its own); then, for one panel of outputs at a time, the
                products over all tiles and their transformation: the kernel is read once, the tiles for every panel
    by points   transforms, products and transforms back are phases of their own; products go point by point of the
                transformed tile: kernel and tiles are read once, and products are written out in between
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from math import ceil, prod

import numpy as np

from modelc.ir.block import Block, Task
from modelc.ir.candidate import BlockSchedule, Candidate, Stage
from modelc.space.analysis.access import Access, accesses, stored_lanes
from modelc.space.analysis.loops import trips
from modelc.space.cost.analytic import kernel_cycles, model_of, population_of
from modelc.space.cost.overlap import overlapped
from modelc.space.rules.rule import DoesNotApply
from modelc.space.rules.winograd import TRANSFORMS, windows
from modelc.space.sketch import Floats, Knob, Points, Sketch, Value
from modelc.space.sketches.maps import CHUNKS_PER_CORE, applied, map_schedule, parallel_first, vector_iterator
from modelc.space.sketches.prepare import consumers_of, reduction_of
from modelc.space.sketches.tiled import FETCHING_ROWS, Tiled, TiledKnobs
from modelc.target import Target

STREAMED = 0.4  # of memory's bandwidth that is had where few rows go over each part of what comes from there
PHASE_SECONDS = 2e-6  # what one more phase costs: threads meet, and caches are walked through again


class Shape(Enum):
    """Where the transforms run around the products (see above)."""

    ROWS = "rows"
    PANELS = "panels"
    POINTS = "points"


class Winograd(Sketch):
    """The Sketch of one F(m, 3), its transforms in one shape around the products."""

    def __init__(self, schedule: _Schedule):
        m, shape = schedule.m, schedule.shape.value
        super().__init__("winograd", f"F({m}, 3) by {shape}", schedule.task, schedule.target, schedule.stages)
        self.schedule = schedule

    def all_knobs(self) -> list[Knob]:
        return []

    def start_values(self) -> dict[str, Value]:
        return {}

    def candidate_of(self, values: Mapping[str, Value]) -> Candidate:
        return self.schedule.candidate()

    def estimate(self, points: Points, cores: int) -> Floats:
        return np.full(len(points), self.schedule.seconds(cores))


def winograd_sketches(task: Task, target: Target, stages: Sequence[Stage]) -> list[Winograd]:
    """Each shape of each F(m, 3) that applies to the one reduction of `task`; empty if none does."""
    anchor = reduction_of(task)
    if len(anchor.writes) > 1 or windows(task, anchor) is None:
        return []
    found: list[Winograd] = []
    for m in TRANSFORMS:
        with suppress(DoesNotApply):
            found += _shapes(task, target, [*stages], m)
    return found


def _shapes(task: Task, target: Target, stages: list[Stage], m: int) -> list[Winograd]:
    name = reduction_of(task).name
    if not consumers_of(task, reduction_of(task)):
        task = applied(task, stages, "cache_write", block=name)
    if len(consumers_of(task, reduction_of(task))) > 1:
        raise DoesNotApply("several Blocks consume the result")
    copies = [b.name for b in task.blocks[: task.blocks.index(reduction_of(task))]]
    task = applied(task, stages, "winograd", block=name, m=m)
    for copy in copies:  # a copy that only orders the input otherwise: padding does that as well
        task = applied(task, stages, "inline", block=copy)
    task = applied(task, stages, "cache_write", block=name)
    return [Winograd(_Schedule(task, target, tuple(stages), m, shape)) for shape in Shape]


class _Schedule:
    """One Winograd Task's schedule; the attributes are the facts that its parts share."""

    def __init__(self, task: Task, target: Target, stages: tuple[Stage, ...], m: int, shape: Shape):
        self.task, self.target, self.stages, self.m, self.shape = task, target, stages, m, shape
        blocks = [b for b in task.blocks if isinstance(b, Block)]
        if len(blocks) != len(task.blocks) or blocks[3:4] != [reduction_of(task)] or len(blocks) < 8:
            raise DoesNotApply("the Task has Blocks of another kind")
        self.pad, self.rows, self.columns, self.product, self.write, self.gather, self.scatter, self.owner = blocks[:8]
        self.afterwards = blocks[8:]
        _, writes = accesses(task, self.write)
        vector = vector_iterator(self.write, writes)
        source, _ = accesses(task, self.columns)
        self.channel = next(
            (i.name for i in self.columns.spatial if i.extent > 1 and source[0].strides[i.name] == 1), None
        )
        if vector is None or self.channel is None or vector not in self.product.ranges:
            raise DoesNotApply("channels are not stored one after the other")
        self.vector = vector
        self.lanes = stored_lanes(target, "float32")
        self.th, self.tw = (i.name for i in self.scatter.spatial[-3:-1])
        self.result = self.scatter.writes[0].buffer
        (read,) = {r for r in self.owner.reads if r.buffer == self.result}
        names = [str(i) for i in self.scatter.writes[0].indices[2:]]
        self.owned = dict(zip(names, map(str, read.indices[2:]), strict=True))  # iterator of the product -> the owner's
        self.ti, self.tj = (str(i) for i in read.indices[:2])
        self.samples, self.depths = self.lead()
        self.tile_rows = self.chunk() if shape is Shape.ROWS else self.product.ranges[self.th]
        self.gemm = Tiled(task, target, stages, self.product, vector, [self.write])
        self.gemm.ranges = {**self.gemm.ranges, self.th: self.tile_rows}
        kernel = self.gemm.best_kernel()
        self.knobs = TiledKnobs(kernel.rows, kernel.vectors, self.tile_rows, False, None)
        if self.gemm.packing(self.kernel(), self.knobs) is None:
            raise DoesNotApply("the kernel cannot be packed")

    def cache(self) -> int:
        return self.target.second.bytes

    def bytes(self, block: Block) -> int:
        """Bytes of what `block` writes."""
        return self.task.buffer(block.writes[0].buffer).bytes

    def chunk(self) -> int:
        """Tile rows per chunk: transformed tiles and products stay in the second-level cache, every core gets work."""
        total = self.product.ranges[self.th]
        tiles = self.bytes(self.columns) // self.points(self.samples)
        products = self.bytes(self.write) // self.points([*self.samples, *self.depths])
        fits = max(1, self.cache() * 3 // 4 * total // max(tiles + products, 1))
        wanted = max(1, total // (self.target.cores * CHUNKS_PER_CORE // 2))
        best = min(fits, wanted)
        return -(-total // -(-total // best))

    def points(self, names: Sequence[str]) -> int:
        return prod(self.owner.ranges[n] for n in names)

    def lead(self) -> tuple[list[str], list[str]]:
        """The owner's iterators that are neither tiles, parts of a tile, nor the vector: those that have transformed
        tiles of their own, and those that a window of the product slides along."""
        inner = {self.owned[self.th], self.owned[self.tw], self.owned[self.vector], self.ti, self.tj}
        found = [i.name for i in self.owner.spatial if i.extent > 1 and i.name not in inner]
        (tiles,) = (r for r in self.product.reads if r.buffer == self.columns.writes[0].buffer)
        alone = {self.owned.get(str(i)) for i in tiles.indices}
        return [n for n in found if n in alone], [n for n in found if n not in alone]

    def candidate(self) -> Candidate:
        owner, v = self.owner.name, self.owned[self.vector]
        th, tw = self.owned[self.th], self.owned[self.tw]
        tile = self.gemm.tiles(self.knobs)[self.vector][0]
        inside = [f"{self.ti}0", f"{self.tj}0"]
        tags = dict.fromkeys(inside, "unroll")
        samples, depths = ([f"{n}0" for n in names] for names in (self.samples, self.depths))
        tiles: dict[str, tuple[int, ...]] = {v: (self.lanes,)}
        transforms, products, scope = ("root", "arena"), "root", "arena"
        if self.shape is Shape.PANELS:
            tiles = {v: (tile, self.lanes)}
            order = [f"{v}0", *samples, *depths, f"{th}0", f"{tw}0", f"{v}1", *inside, f"{v}2"]
            spot = f"{owner}.{v}1"
            products, scope = f"{owner}.{(order[0], *samples, *depths)[-1]}", "local"
        elif self.shape is Shape.ROWS:
            tiles |= {th: (self.tile_rows,)}
            outer = self.parallel_first([*samples, f"{th}0"], tiles)
            order = [*outer, *depths, f"{th}1", f"{tw}0", f"{v}0", *inside, f"{v}1"]
            spot = f"{owner}.{v}0"
            transforms = (f"{owner}.{outer[-1]}", "local")
            products, scope = f"{owner}.{(outer[-1], *depths)[-1]}", "local"
        else:
            outer = self.parallel_first([*samples, *depths, f"{th}0"], tiles)
            order = [*outer, f"{tw}0", f"{v}0", *inside, f"{v}1"]
            spot = f"{owner}.{v}0"
        first = order[0]
        tags |= {first: "parallel", order[-1]: "vector"}
        schedules = {
            self.pad.name: map_schedule(self.task, self.pad, self.target, *transforms),
            self.columns.name: self.columns_schedule(*transforms),
            self.rows.name: self.transform_schedule(self.rows, self.channel, f"{self.columns.name}.{self.channel}0"),
            self.gather.name: self.transform_schedule(self.gather, self.vector, spot),
            self.scatter.name: self.transform_schedule(self.scatter, self.vector, spot),
            owner: BlockSchedule("root", "arena", tiles, tuple(order), tags),
        }
        schedules |= {b.name: map_schedule(self.task, b, self.target) for b in self.afterwards}
        layouts = {}
        schedules[self.product.name], macro = self.product_schedule(products)
        schedules[self.write.name] = replace(
            self.gemm.epilogue(self.write, f"{self.product.name}.{macro[-1]}", self.knobs), scope=scope
        )
        for read in self.gemm.reads:
            if read.load.buffer in self.task.constants:
                layout = self.gemm.packing(read, self.knobs)
                assert layout is not None
                layouts[read.load.buffer] = layout
        (accumulators,) = self.product.writes
        if (layout := self.gemm.tile_layout(accumulators)) is not None:
            layouts[accumulators.buffer] = layout
        return Candidate({b.name: schedules[b.name] for b in self.task.blocks}, self.stages, layouts)

    def parallel_first(self, loops: list[str], tiles: Mapping[str, tuple[int, ...]]) -> list[str]:
        return parallel_first(loops, {loop: trips(loop, self.owner.ranges, tiles) for loop in loops}, self.target)

    def product_schedule(self, at: str) -> tuple[BlockSchedule, list[str]]:
        """The product's loops at `at`, and those outside its micro-kernel."""
        v, counts = self.vector, dict(self.knobs.rows)
        tile = self.gemm.tiles(self.knobs)[v][0]
        tiles: dict[str, tuple[int, ...]] = {v: (tile, self.lanes), **{n: (c,) for n, c in counts.items()}}
        outside = [f"{i.name}0" for i in self.product.spatial if i.extent > 1 and i.name not in tiles]
        kernel = self.kernel()
        moving, still = ([n for n in outside if (kernel.strides[n[:-1]] != 0) == moves] for moves in (True, False))
        macro = [*moving, f"{v}0", *still, *(f"{n}0" for n in counts)]
        micro = [*(f"{n}1" for n in counts), f"{v}1", f"{v}2"]
        tags = dict.fromkeys(micro[:-1], "unroll") | {micro[-1]: "vector"}
        if at == "root":
            tags[macro[0]] = "parallel"
        reduction = [f"{n}0" for n in self.gemm.reduction]
        steps = self.gemm.unrolled_steps(self.knobs, tiles)
        tags |= dict.fromkeys(steps, "unroll")
        order = (*macro, *reduction, *steps, *micro)
        return BlockSchedule(at, "register", tiles, order, tags, (v,), self.fetched(macro, tiles)), macro

    def fetched(self, macro: list[str], tiles: dict[str, tuple[int, ...]]) -> dict[str, str]:
        """The kernel, and the loop over parts of it that lie one after the other in the order they are read."""
        v, ranges = self.vector, {**self.gemm.ranges, self.th: self.tile_rows}
        here = tiles[v][0] if self.shape is Shape.PANELS else ranges[v]  # outputs that the product's loops go over
        loops = [loop for loop in macro if loop[:-1] != v or here > tiles[v][0]]
        kernel = self.kernel()
        moving = [loop for loop in loops if kernel.strides[loop[:-1]]]
        rows = prod(ranges[n] for n in (self.th, self.tw))
        if not moving or rows < FETCHING_ROWS:
            return {}
        return {kernel.load.buffer: f"{v}0" if f"{v}0" in moving else moving[-1]}

    def kernel(self) -> Access:
        return next(r for r in self.gemm.reads if r.load.buffer in self.task.constants)

    def columns_schedule(self, at: str, scope: str) -> BlockSchedule:
        """The second input transform, one vector of channels of one tile at a time; the first runs inside it."""
        block, c = self.columns, self.channel
        assert c is not None
        e = block.spatial[-1].name
        others = [i.name for i in block.spatial if i.extent > 1 and i.name not in (c, e)]
        order = [*(f"{n}0" for n in others), f"{c}0", f"{e}0", f"{c}1"]
        tags = {f"{e}0": "unroll", order[-1]: "vector"}
        if at == "root" and others:
            first = max(others, key=lambda n: block.ranges[n])
            order.remove(f"{first}0")
            order.insert(0, f"{first}0")
            tags[f"{first}0"] = "parallel"
        return BlockSchedule(at, scope, {c: (self.lanes,)}, tuple(order), tags)

    def transform_schedule(self, block: Block, vector: str | None, at: str) -> BlockSchedule:
        """A transform of one vector of one tile, unrolled."""
        point = block.spatial[-1].name
        assert vector is not None
        order = (f"{point}0", f"{vector}0", f"{vector}1")
        return BlockSchedule(at, "local", {vector: (self.lanes,)}, order, {order[0]: "unroll", order[2]: "vector"})

    def seconds(self, cores: int) -> float:
        """On `cores` cores: products at the micro-kernel's rate, transforms at two vector operations a cycle, and what
        passes through memory while this goes on."""
        rate = self.target.peak["float32"] * 1e9 / (2 * self.lanes * self.target.fma_ports)
        p = self.m + 2
        chunks = ceil(self.product.ranges[self.th] / self.tile_rows)
        model = model_of(self.gemm)
        products = chunks * float(kernel_cycles(model, population_of(model, [self.knobs]))[0])
        transform = TRANSFORMS[self.m]
        terms_in, terms_out = (sum(x != 0 for row in t for x in row) for t in (transform.input, transform.output))
        vectors_in, vectors_out = (self.bytes(b) / (p * p * 4 * self.lanes) for b in (self.columns, self.write))
        cycles_in = vectors_in * (2 * p * terms_in + 3 * p * p) / 2
        cycles_out = vectors_out * ((p + self.m) * terms_out + 3 * p * p) / 2
        phases = {Shape.ROWS: 0, Shape.PANELS: 2, Shape.POINTS: 3}[self.shape] * PHASE_SECONDS
        return phases + overlapped(
            (products + cycles_in + cycles_out) / rate / cores, self.streamed(chunks), self.target
        )

    def streamed(self, chunks: int) -> int:
        """Bytes from beyond the second-level cache: the kernel, and what is read again after it had to leave."""
        kernel = self.task.buffer(self.kernel().load.buffer).bytes
        tiles, products = self.bytes(self.columns), self.bytes(self.write)
        panels = -(-self.product.ranges[self.vector] // self.gemm.tiles(self.knobs)[self.vector][0])
        room = self.cache() // 2
        again = 0
        if self.shape is Shape.ROWS and kernel > room:
            again = kernel * (chunks * self.points([*self.samples, *self.depths]) - 1)
        elif self.shape is Shape.PANELS:
            again = tiles * panels * (tiles > room) + 2 * products * (products // panels > room)
        elif self.shape is Shape.POINTS:
            again = 2 * tiles * (tiles > room) + 2 * products * (products > room)
        return int(kernel / STREAMED) + again
