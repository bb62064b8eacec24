"""Schedules of Tasks derived by Winograd's rule (winograd.py): where the transforms run around the products.

The Task's last Block owns the outer loops. Two shapes, by what fits the second-level cache:

    by rows     a chunk of tile rows at a time: its input is padded and transformed, multiplied, transformed back
    by panels   all tiles are transformed first (a phase of its own); then, for one panel of outputs at a time, the
                products over all tiles and their transformation: the kernel is read exactly once
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, prod

from modelc.ir.block import Block, Task
from modelc.ir.candidate import BlockSchedule, Candidate, Stage
from modelc.space.access import accesses, stored_lanes
from modelc.space.analytic import kernel_cycles, model_of, population_of
from modelc.space.maps import CHUNKS_PER_CORE, applied, map_schedule, vector_iterator
from modelc.space.prepare import consumers_of, reduction_of
from modelc.space.rule import DoesNotApply
from modelc.space.tiled import FETCHING_ROWS, Tiled, TiledKnobs, overlapped
from modelc.space.winograd import TRANSFORMS, windows
from modelc.target import Target

STREAMED = 0.4  # of memory's bandwidth that is had where few rows go over each part of what comes from there
PHASE_SECONDS = 2e-6  # what one more phase costs: threads meet, and caches are walked through again


@dataclass(frozen=True)
class Filtering:
    """One way to compute a windowed Task: its Candidate and the seconds that it is estimated to take."""

    candidate: Candidate
    seconds: float  # on one core
    together: float  # on all cores of the target


def filtering_candidates(task: Task, target: Target, stages: list[Stage]) -> list[Filtering]:
    """A Candidate per F(m, 3) that applies to the one reduction of `task`; empty if none does."""
    anchor = reduction_of(task)
    if len(anchor.writes) > 1 or windows(task, anchor) is None:
        return []
    found = []
    for m in TRANSFORMS:
        try:
            found.append(_filtering(task, target, list(stages), m))
        except DoesNotApply:
            continue
    return found


def _filtering(task: Task, target: Target, stages: list[Stage], m: int) -> Filtering:
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
    schedule = _Schedule(task, target, tuple(stages), m)
    return Filtering(schedule.candidate(), schedule.seconds(1), schedule.seconds(target.cores))


class _Schedule:
    """One Winograd Task's schedule; the attributes are the facts that its parts share."""

    def __init__(self, task: Task, target: Target, stages: tuple[Stage, ...], m: int):
        self.task, self.target, self.stages, self.m = task, target, stages, m
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
        self.by_panels = self.transformed_bytes() <= self.cache() // 2
        self.tile_rows = self.product.ranges[self.th] if self.by_panels else self.chunk()
        self.gemm = Tiled(task, target, stages, self.product, vector, [self.write])
        self.gemm.ranges = {**self.gemm.ranges, self.th: self.tile_rows}
        kernel = self.gemm.best_kernel()
        self.knobs = TiledKnobs(kernel.rows, kernel.vectors, self.tile_rows, False, None)

    def cache(self) -> int:
        return self.target.caches[min(1, len(self.target.caches) - 1)].bytes

    def transformed_bytes(self) -> int:
        """Bytes of all transformed tiles of one sample."""
        return self.task.buffer(self.columns.writes[0].buffer).bytes

    def chunk(self) -> int:
        """Tile rows per chunk: transformed tiles and products stay in the second-level cache, every core gets work."""
        total = self.product.ranges[self.th]
        buffers = (self.columns.writes[0].buffer, self.write.writes[0].buffer)
        per_row = sum(self.task.buffer(b).bytes for b in buffers) // total // prod(self.outer_extents())
        fits = max(1, self.cache() * 3 // 4 // max(per_row, 1))
        wanted = max(1, total // (self.target.cores * CHUNKS_PER_CORE // 2))
        best = min(fits, wanted)
        return -(-total // -(-total // best))

    def outer_extents(self) -> list[int]:
        return [self.owner.ranges[n] for n in self.lead()]

    def lead(self) -> list[str]:
        """The owner's iterators that are neither tiles, parts of a tile, nor the vector."""
        inner = {self.owned[self.th], self.owned[self.tw], self.owned[self.vector], self.ti, self.tj}
        return [i.name for i in self.owner.spatial if i.extent > 1 and i.name not in inner]

    def candidate(self) -> Candidate:
        owner, v = self.owner.name, self.owned[self.vector]
        th, tw, lead = self.owned[self.th], self.owned[self.tw], self.lead()
        tile = self.gemm.tiles(self.knobs)[self.vector][0]
        inside = [f"{self.ti}0", f"{self.tj}0"]
        tags = dict.fromkeys(inside, "unroll")
        outer = [f"{n}0" for n in lead]
        tiles: dict[str, tuple[int, ...]]
        if self.by_panels:
            tiles = {v: (tile, self.lanes)}
            order = [f"{v}0", *outer, f"{th}0", f"{tw}0", f"{v}1", *inside, f"{v}2"]
            first, spot = order[0], f"{owner}.{v}1"
            products = f"{owner}.{(order[0], *outer)[-1]}"
            transforms = ("root", "arena")
        else:
            tiles = {th: (self.tile_rows,), v: (self.lanes,)}
            order = [f"{th}0", *outer, f"{th}1", f"{tw}0", f"{v}0", *inside, f"{v}1"]
            first, spot = order[0], f"{owner}.{v}0"
            products = f"{owner}.{(order[0], *outer)[-1]}"
            transforms = (f"{owner}.{first}", "local")
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
            self.gemm.epilogue(self.write, f"{self.product.name}.{macro[-1]}", self.knobs), scope="local"
        )
        for read in self.gemm.reads:
            if read.load.buffer in self.task.constants:
                layout = self.gemm.packing(read, self.knobs)
                if layout is None:
                    raise DoesNotApply("the kernel cannot be packed")
                layouts[read.load.buffer] = layout
        (accumulators,) = self.product.writes
        if (layout := self.gemm.tile_layout(accumulators)) is not None:
            layouts[accumulators.buffer] = layout
        return Candidate({b.name: schedules[b.name] for b in self.task.blocks}, self.stages, layouts)

    def product_schedule(self, at: str) -> tuple[BlockSchedule, list[str]]:
        """The product's loops at `at`, and those outside its micro-kernel."""
        v, counts = self.vector, dict(self.knobs.rows)
        tile = self.gemm.tiles(self.knobs)[v][0]
        tiles: dict[str, tuple[int, ...]] = {v: (tile, self.lanes), **{n: (c,) for n, c in counts.items()}}
        outside = [i.name for i in self.product.spatial if i.extent > 1 and i.name not in tiles]
        macro = [*(f"{n}0" for n in outside), f"{v}0", *(f"{n}0" for n in counts)]
        micro = [*(f"{n}1" for n in counts), f"{v}1", f"{v}2"]
        tags = dict.fromkeys(micro[:-1], "unroll") | {micro[-1]: "vector"}
        reduction = [f"{n}0" for n in self.gemm.reduction]
        steps = self.gemm.unrolled_steps(tiles)
        tags |= dict.fromkeys(steps, "unroll")
        order = (*macro, *reduction, *steps, *micro)
        return BlockSchedule(at, "register", tiles, order, tags, (v,), self.fetched(macro, tiles)), macro

    def fetched(self, macro: list[str], tiles: dict[str, tuple[int, ...]]) -> dict[str, str]:
        """The kernel, and the loop over parts of it that lie one after the other in the order they are read."""
        v, ranges = self.vector, {**self.gemm.ranges, self.th: self.tile_rows}
        here = tiles[v][0] if self.by_panels else ranges[v]  # outputs that the product's loops go over
        loops = [loop for loop in macro if loop[:-1] != v or here > tiles[v][0]]
        kernel = next(r for r in self.gemm.reads if r.load.buffer in self.task.constants)
        moving = [loop for loop in loops if kernel.strides[loop[:-1]]]
        rows = prod(ranges[n] for n in (self.th, self.tw))
        if not moving or rows < FETCHING_ROWS:
            return {}
        return {kernel.load.buffer: f"{v}0" if f"{v}0" in moving else moving[-1]}

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
        """On `cores` cores: products at the micro-kernel's rate, transforms at two vector operations a cycle, traffic
        of transformed tiles through the second-level cache; the kernel comes from memory while this goes on."""
        rate = self.target.peak["float32"] * 1e9 / (2 * self.lanes * self.target.fma_ports)
        p, ranges = self.m + 2, self.product.ranges
        chunks = ceil(ranges[self.th] / self.tile_rows)
        model = model_of(self.gemm)
        products = chunks * float(kernel_cycles(model, population_of(model, [self.knobs]))[0])
        transform = TRANSFORMS[self.m]
        terms_in, terms_out = (sum(x != 0 for row in t for x in row) for t in (transform.input, transform.output))
        vectors_in = self.task.buffer(self.columns.writes[0].buffer).bytes / (p * p * 4 * self.lanes)
        vectors_out = self.task.buffer(self.write.writes[0].buffer).bytes / (p * p * 4 * self.lanes)
        cycles_in = vectors_in * (2 * p * terms_in + 3 * p * p) / 2
        cycles_out = vectors_out * ((p + self.m) * terms_out + 3 * p * p) / 2
        kernel = self.task.buffer(next(r.load.buffer for r in self.gemm.reads if r.load.buffer in self.task.constants))
        phases = 2 * PHASE_SECONDS if self.by_panels else 0.0
        stream = int(kernel.bytes / STREAMED)
        return phases + overlapped((products + cycles_in + cycles_out) / rate / cores, stream, self.target)
