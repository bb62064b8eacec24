"""The Sketch of Tasks derived by Winograd's rule (rules/winograd.py): where the transforms run around the products.

The Task's last Block owns the outer loops. Three shapes, told apart by what is read again and again:

    by rows     a chunk of tile rows at a time: its input is padded and transformed, multiplied, transformed back; the
                kernel is read for every chunk
    by panels   all tiles are transformed first (a phase of its own); then, for one panel of outputs at a time, the
                products over all tiles and their transformation: the kernel is read once, the tiles for every panel
    by points   transforms, products and transforms back are phases of their own; products go point by point of the
                transformed tile: kernel and tiles are read once, and products are written out in between

rows.N       rows of row iterator N in the products' register tile
vectors      vectors of that tile along the outputs
order        what is streamed: "panels": rows, past a panel of the kernel; "rows": panels, past a tile's rows
steps        reduction steps in one iteration of the products' innermost loop
prefetch     "far": the kernel's next panel while one is worked on; or "none"
chunk        rows of tiles that are transformed, multiplied and transformed back together (by rows)
parallel     the owner's loop whose iterations go to threads
multiplying  the products' own such loop, where they are a phase (by points)
vectors.in, vectors.out   vectors that one iteration of the input's and of the output's transforms works on
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from math import ceil, prod

import numpy as np

from modelc.ir.block import Block, Task
from modelc.ir.candidate import BlockSchedule, Candidate, Stage
from modelc.ir.layout import Layout
from modelc.ir.loop import ROOT, Inside, Loop, Root
from modelc.space.analysis.around import consumers_of, reduction_of
from modelc.space.analysis.footprint import Ints
from modelc.space.cost.register_tile import registers
from modelc.space.cost.transfers import of_others, transfer_seconds
from modelc.space.cost.work import SOURCES, Work
from modelc.space.rules.rule import DoesNotApply
from modelc.space.rules.sums import Matrix, shared
from modelc.space.rules.windows import windows, worthwhile
from modelc.space.sketch import Bools, Floats, Knob, Points, Value, Values
from modelc.space.sketches.clean import applied
from modelc.space.sketches.maps import map_schedule
from modelc.space.sketches.prepare import factored
from modelc.space.sketches.products import Products, halved
from modelc.space.sketches.tiled_candidate import tile_layout
from modelc.space.sketches.tiled_rules import best_kernel
from modelc.space.sketches.winograd_roles import Roles, Shape, roles_of
from modelc.space.sketches.winograd_traffic import Tilings, kept_bytes, traffic
from modelc.space.tiling.parallel import CHUNKS_PER_CORE, busiest_share, parallel_first
from modelc.space.tiling.tiled import FAR, FETCHING_ROWS, MAX_VECTORS, Tiled, TiledKnobs
from modelc.target import Target

SIDE_BY_SIDE = (1, 2)  # vectors of transforms in one iteration


PHASES = {Shape.ROWS: 0, Shape.PANELS: 2, Shape.POINTS: 3}  # beside the one that is there in any case


def winograd_sketches(task: Task, target: Target, stages: Sequence[Stage]) -> list[Winograd]:
    """Each shape of each F(m, r) that can be worth it for the one reduction of `task`; empty if none applies."""
    anchor = reduction_of(task)
    slid = windows(task, anchor) if len(anchor.writes) == 1 else None
    if slid is None:
        return []
    sketches: list[Winograd] = []
    for m in worthwhile(anchor, slid):
        with suppress(DoesNotApply):
            roles = filtered(task, target, [*stages], m)
            sketches += [Winograd(roles, shape) for shape in Shape]
    return sketches


def filtered(task: Task, target: Target, stages: list[Stage], m: int) -> Roles:
    """The Blocks of `task` after F(m, r). Raises DoesNotApply."""
    slid, name = windows(task, reduction_of(task)), reduction_of(task).name
    if slid is None:
        raise DoesNotApply("no window slides along an iterator")
    task = factored(task, stages)
    if not consumers_of(task, reduction_of(task)):
        task = applied(task, stages, "cache_write", block=name)
    if len(consumers_of(task, reduction_of(task))) > 1:
        raise DoesNotApply("several Blocks consume the result")
    copies = [b.name for b in task.blocks[: task.blocks.index(reduction_of(task))]]
    task = applied(task, stages, "winograd", block=name, m=m)
    for copy in copies:  # a copy that only orders the input otherwise: padding does that as well
        task = applied(task, stages, "inline", block=copy)
    task = applied(task, stages, "cache_write", block=name)
    return roles_of(task, target, stages, m, slid.taps)


class Winograd(Products):
    """The Sketch of one F(m, r), its transforms in one shape around the products."""

    def __init__(self, roles: Roles, shape: Shape):
        name = f"F({roles.m}, {roles.taps}) by {shape.value}"
        super().__init__("winograd", name, roles.task, roles.target, roles.stages)
        self.roles, self.shape, self.lanes = roles, shape, roles.lanes
        self.doubt = 0.0 if roles.unit.plain else roles.target.cost.unit_doubt_share
        self.v = roles.owned[roles.vector]  # the owner's vector iterator
        self.chunked = roles.th
        self.first_chunk = self._first_chunk() if shape is Shape.ROWS else roles.tile_rows
        self.gemm = roles.tiled(self.first_chunk)
        smallest = TiledKnobs(tuple((n, 1) for n in self.gemm.inside), 1, 1, False, None)
        if self.gemm.unit.packing(self.gemm, roles.kernel(self.gemm), smallest) is None:
            raise DoesNotApply("the kernel cannot be packed")

    # --- knobs ----------------------------------------------------------------------------------------------------

    def all_knobs(self) -> list[Knob]:
        return self._knobs

    @cached_property
    def _knobs(self) -> list[Knob]:
        roles, gemm, start = self.roles, self.gemm, self.start_values()
        most = -(-gemm.ranges[roles.vector] // self.lanes)
        channels = -(-roles.columns.ranges[roles.channel] // roles.channel_lanes)
        vectors = tuple(range(1, min(MAX_VECTORS, most) + 1))
        panels = self.shape is Shape.PANELS  # one panel at a time: nothing is streamed
        points = self.shape is Shape.POINTS
        fetching = self.rows_over_kernel(roles.tile_rows) >= FETCHING_ROWS
        return [
            *(Knob(f"rows.{n}", self.row_counts(n), f"rows of {n} in the register tile") for n in gemm.inside),
            Knob("vectors", vectors, f"vectors of the register tile along {roles.vector}"),
            Knob("order", ("panels",) if panels or most == 1 else ("panels", "rows"), "what is streamed"),
            Knob("steps", gemm.step_counts, "reduction steps in one iteration"),
            Knob("prefetch", (FAR, "none") if fetching else ("none",), "what is prefetched by instructions"),
            Knob("chunk", self.chunks(), "rows of tiles that are worked on together"),
            Knob("parallel", self.loops("parallel", start), "the owner's loop whose iterations go to threads"),
            Knob("multiplying", self.loops("multiplying", start) if points else (None,), "the products' such loop"),
            Knob("vectors.in", SIDE_BY_SIDE[:channels], "vectors in one iteration of the input's transform"),
            Knob("vectors.out", SIDE_BY_SIDE[:most], "vectors in one iteration of the output's transform"),
        ]

    def start_values(self) -> Values:
        return self._rules

    @cached_property
    def _rules(self) -> dict[str, Value]:
        kernel, register_vectors, _ = best_kernel(self.gemm)
        values: dict[str, Value] = {
            **{f"rows.{n}": c for n, c in kernel},
            "vectors": register_vectors,
            "order": "panels",
            "steps": self.gemm.usual_steps,
            "prefetch": FAR if self.rows_over_kernel(self.roles.tile_rows) >= FETCHING_ROWS else "none",
            "chunk": self.first_chunk,
            "vectors.in": 1,
            "vectors.out": 1,
            "multiplying": None,
        }
        loops = self.open_loops("parallel")
        if self.shape is not Shape.PANELS:
            chunk, vectors = np.array([self.first_chunk]), np.array([register_vectors])
            counts = {loop: int(self.trips("parallel", loop, chunk, vectors)[0]) for loop in loops}
            loops = parallel_first(loops, counts, self.target)
        values["parallel"] = loops[0]
        if self.shape is Shape.POINTS:
            values["multiplying"] = self.open_loops("multiplying")[0]
        return values

    def product_ranges(self, tile_rows: int) -> dict[str, int]:
        """Extents of the product's iterators in one chunk."""
        return {**self.roles.product.ranges, self.roles.th: tile_rows}

    def rows_over_kernel(self, tile_rows: int) -> int:
        """Rows of products that go over each part of the kernel, one after the other, in a chunk of so many rows of
        tiles."""
        roles, ranges = self.roles, self.product_ranges(tile_rows)
        of_chunk = (roles.th, roles.tw) if self.shape is Shape.ROWS else tuple(i.name for i in roles.product.spatial)
        still = roles.kernel(self.gemm).strides
        return prod(ranges[n] for n in of_chunk if still[n] == 0)

    def chunks(self) -> tuple[int, ...]:
        """Rows of tiles in one chunk: the least for twice as many chunks again and again; and what rules take."""
        total = self.roles.tile_rows
        if self.shape is not Shape.ROWS:
            return (total,)
        return tuple(sorted(halved(total) | {self.first_chunk}))

    def loops(self, knob: str, start: Values) -> tuple[Loop, ...]:
        """The values of a knob that names a parallel loop: none else than the rules' on one core."""
        first = start[knob]
        others = [x for x in self.open_loops(knob) if x != first and self.target.cores > 1]
        return (first, *others)

    def open_loops(self, knob: str) -> list[Loop]:
        """The loops that can go to threads: the owner's outside the products, or the products' own."""
        roles = self.roles
        if knob == "multiplying":
            moving, still = self.outside()
            return [*moving, Loop(roles.vector, 0), *still]
        samples, depths = ([Loop(n, 0) for n in names] for names in roles.lead)
        rows = Loop(roles.owned[roles.th], 0)
        if self.shape is Shape.PANELS:
            return [Loop(self.v, 0), *(Loop(n, 0) for n in roles.around(self.gemm))]
        return [*samples, rows] if self.shape is Shape.ROWS else [*samples, *depths, rows]

    def legal(self, points: Points) -> Bools:
        """Registers hold the products' tile, which is no larger than a chunk; transforms write whole panels."""
        allowed = self.tiles_fit(points)
        if self.shape is Shape.PANELS:
            allowed &= self.column(points, "vectors") % self.column(points, "vectors.out") == 0
        return np.asarray(allowed | (points == self.start()).all(axis=1), np.bool_)

    # --- the Candidate --------------------------------------------------------------------------------------------

    def candidate_of(self, values: Values) -> Candidate:
        roles, owner, v = self.roles, self.roles.owner.name, self.v
        th, tw = roles.owned[roles.th], roles.owned[roles.tw]
        knobs, out = self.knobs_of(values, values["order"] == "rows"), values["vectors.out"]
        panel = (self.gemm.tiles(knobs)[roles.vector][0],) if self.shape is Shape.PANELS else ()
        sizes = (*panel, *((out * self.lanes,) if out > 1 else ()), self.lanes)
        tiles: dict[str, tuple[int, ...]] = {v: sizes}
        level = len(panel)  # of the loop over what the output's transform works on at once
        within = [*(Loop(n, 0) for n in roles.within), *(Loop(v, k) for k in range(level + 1, len(sizes) + 1))]
        parallel = values["parallel"]
        outer = [parallel, *(loop for loop in self.open_loops("parallel") if loop != parallel)]
        depths, across = [Loop(n, 0) for n in roles.lead[1]], Loop(tw, 0)
        spot = Inside(owner, Loop(v, level))
        transforms: Inside | Root = ROOT
        products: Inside | Root = ROOT
        if self.shape is Shape.PANELS:
            inner = [loop for n in (*roles.lead[0], *roles.lead[1]) if (loop := Loop(n, 0)) not in outer]
            order = [*outer, *inner, Loop(th, 0), across, Loop(v, 1), *within]
            products = Inside(owner, outer[-1])
        elif self.shape is Shape.ROWS:
            tiles |= {th: (knobs.chunk,)}
            order = [*outer, *depths, Loop(th, 1), across, Loop(v, 0), *within]
            transforms, products = Inside(owner, outer[-1]), Inside(owner, (outer[-1], *depths)[-1])
        else:
            order = [*outer, across, Loop(v, 0), *within]
        tags = dict.fromkeys(within[:-1], "unroll") | {order[0]: "parallel", order[-1]: "vector"}
        wide, channels = values["vectors.in"], Inside(roles.columns.name, Loop(roles.channel, 0))
        schedules = {
            roles.pad.name: map_schedule(self.task, roles.pad, self.target, transforms, _scope(transforms)),
            roles.columns.name: self.columns_schedule(wide, transforms),
            roles.rows.name: transform_schedule(roles.rows, roles.channel, roles.channel_lanes, channels, wide),
            roles.gather.name: transform_schedule(roles.gather, roles.vector, self.lanes, spot, out),
            roles.results.name: transform_schedule(roles.results, roles.vector, self.lanes, spot, out),
            owner: BlockSchedule(ROOT, "arena", tiles, tuple(order), tags),
        }
        schedules |= {b.name: map_schedule(self.task, b, self.target) for b in roles.afterwards}
        schedules[roles.product.name], macro = self.product_schedule(knobs, products, values["multiplying"])
        write = self.gemm.unit.epilogue(self.gemm, roles.write, Inside(roles.product.name, macro[-1]), knobs)
        schedules[roles.write.name] = replace(write, scope=_scope(products))
        layouts = self.layouts(knobs) | self.scratch_layouts(knobs)
        return Candidate({b.name: schedules[b.name] for b in self.task.blocks}, self.stages, layouts)

    def scratch_layouts(self, knobs: TiledKnobs) -> dict[str, Layout]:
        """Transformed tiles and products of a chunk, each point's in other sets of the first-level cache."""
        ranges = self.product_ranges(knobs.chunk)
        panel = {self.roles.vector: self.gemm.tiles(knobs)[self.roles.vector][0]} if self.shape is Shape.PANELS else {}
        return self.spread(self.roles.tiles, ranges, 2) | self.spread(self.roles.write.writes[0], ranges | panel, 2)

    def layouts(self, knobs: TiledKnobs) -> dict[str, Layout]:
        """The kernel, packed for the products' register tile, and their accumulators."""
        layouts = {}
        for read in self.gemm.reads:
            if read.load.buffer in self.task.constants:
                layouts[read.load.buffer] = self.gemm.unit.packing(self.gemm, read, knobs)
        (accumulators,) = self.roles.product.writes
        layouts[accumulators.buffer] = tile_layout(self.gemm, accumulators)
        return {name: layout for name, layout in layouts.items() if layout is not None}

    def outside(self) -> tuple[list[Loop], list[Loop]]:
        """The products' loops over whole iterators: those that the kernel moves with, and the others."""
        tiled = (self.roles.vector, *self.gemm.inside)
        loops = [Loop(i.name, 0) for i in self.roles.product.spatial if i.extent > 1 and i.name not in tiled]
        kernel = self.roles.kernel(self.gemm)
        moving, still = (
            [loop for loop in loops if (kernel.strides[loop.iterator] != 0) == moves] for moves in (True, False)
        )
        return moving, still

    def product_schedule(
        self, knobs: TiledKnobs, at: Inside | Root, parallel: Loop | None
    ) -> tuple[BlockSchedule, list[Loop]]:
        """The product's loops at `at`, and those outside its micro-kernel."""
        moving, still = self.outside()
        rows, panels = [*still, *(Loop(n, 0) for n, _ in knobs.rows)], [Loop(self.roles.vector, 0)]
        macro = [*moving, *rows, *panels] if knobs.by_rows else [*moving, *panels, *rows]
        if parallel:
            macro = [parallel, *(loop for loop in macro if loop != parallel)]
        prefetch = self.prefetched(knobs, macro) | self.prefetched_results(knobs)
        return self.kernel_schedule(knobs, at, macro, parallel, prefetch), macro

    def prefetched(self, knobs: TiledKnobs, macro: list[Loop]) -> dict[str, Loop | Root]:
        """The kernel, and the innermost loop over parts of it: where enough rows go over each."""
        v, panel = self.roles.vector, self.gemm.tiles(knobs)[self.roles.vector][0]
        here = panel if self.shape is Shape.PANELS else self.gemm.ranges[v]  # outputs that the product's loops go over
        loops = [loop for loop in macro if loop.iterator != v or here > panel]
        kernel = self.roles.kernel(self.gemm)
        moving = [loop for loop in loops if kernel.strides[loop.iterator]]
        rows = prod(c for _, c in knobs.rows) if knobs.by_rows else self.rows_over_kernel(knobs.chunk)
        if not moving or rows < FETCHING_ROWS or knobs.prefetch != FAR:
            return {}
        return {kernel.load.buffer: moving[-1]}

    def prefetched_results(self, knobs: TiledKnobs) -> dict[str, Loop | Root]:
        """Results of a chunk that lie beyond the second-level cache, where registers are left over: the elements of a
        tile lie in rows apart, and the output's transform would wait for each."""
        (result,), gemm = self.roles.owner.writes, self.gemm
        buffer = self.task.buffer(result.buffer)
        rows, vectors = np.array([[c for _, c in knobs.rows]], np.int64), np.array([knobs.vectors], np.int64)
        full = registers(gemm, rows.reshape(1, -1), vectors)[0] >= self.target.vector.registers
        near = buffer.bytes <= self.target.second.bytes
        if self.shape is not Shape.ROWS or knobs.prefetch != FAR or full or near or buffer.logical_strides is None:
            return {}
        return {buffer.name: ROOT}

    def columns_schedule(self, vectors: int, at: Inside | Root) -> BlockSchedule:
        """The second input transform, so many vectors of channels of one tile at a time; the first runs inside it."""
        block, c = self.roles.columns, self.roles.channel
        e = block.spatial[-1].name
        others = [Loop(i.name, 0) for i in block.spatial if i.extent > 1 and i.name not in (c, e)]
        lanes = self.roles.channel_lanes
        sizes = (vectors * lanes, lanes) if vectors > 1 else (lanes,)
        unrolled, vector = [Loop(e, 0), *(Loop(c, k) for k in range(1, len(sizes)))], Loop(c, len(sizes))
        tags = dict.fromkeys(unrolled, "unroll") | {vector: "vector"}
        if at is ROOT and others:
            first = max(others, key=lambda loop: block.ranges[loop.iterator])
            others = [first, *(loop for loop in others if loop != first)]
            tags[first] = "parallel"
        return BlockSchedule(at, _scope(at), {c: sizes}, (*others, Loop(c, 0), *unrolled, vector), tags)

    # --- estimates ------------------------------------------------------------------------------------------------

    def away(self, points: Points) -> Floats:
        return super().away(points) + self.index(points, "vectors.in") + self.index(points, "vectors.out")

    def work(self, points: Points, cores: int) -> Work:
        """Products at the micro-kernel's rate; transforms by loads, additions and stores; and what passes through
        memory while this goes on."""
        roles = self.roles
        rows, vectors, chunk = self.register_rows(points), self.column(points, "vectors"), self.column(points, "chunk")
        tilings = Tilings(rows, vectors, chunk, self.index(points, "order") == 1, *self.passes(points, vectors))
        even, owner = np.full(len(points), 1 / cores), self.shares(points, "parallel", cores)
        before = owner if self.shape is Shape.ROWS else even
        within = self.shares(points, "multiplying", cores) if self.shape is Shape.POINTS else owner
        rate = self.target.hertz
        rows_of, columns_of = roles.matrices
        tile = len(rows_of.input) * len(columns_of.input)  # points of a transformed one
        transformed = (roles.columns, roles.channel, roles.channel_lanes), (roles.write, roles.vector, self.lanes)
        vectors_in, vectors_out = (
            roles.elements(block) / tile * ceil(block.ranges[name] / lanes) / block.ranges[name]
            for block, name, lanes in transformed
        )
        cycles_in = vectors_in * self.transform_cycles(rows_of.input, columns_of.input)
        cycles_out = vectors_out * self.transform_cycles(rows_of.output, columns_of.output)
        passing = traffic(roles, self.gemm, self.shape, tilings, cores)
        near_seconds = passing.near / (1e9 * self.target.second.bandwidth_gbs)
        streamed = passing.kernel_seconds(self.target, within)
        again = passing.again_seconds(self.target, within)
        moving = np.zeros((len(points), len(SOURCES)))
        moving[:, 1] = again * passing.held
        moving[:, 2] = again * ~passing.held + streamed
        return Work.of(
            len(points),
            computing=self.product_cycles(points) * within / rate + near_seconds * within,
            copying=(cycles_in * before + cycles_out * owner) / rate,
            moving=moving,
            demanded=self.unhinted(points) * streamed + passing.scattered_seconds(self.target, within),
            arriving=streamed + passing.demanded_seconds(self.target, within),
            transferred=transfer_seconds(self.transferred(points, cores), self.target),
            phases=float(PHASES[self.shape]),
            forks=float(cores > 1),
        )

    def passes(self, points: Points, vectors: Ints) -> tuple[Ints, Ints, Ints]:
        """Of loops outside the products' tiles [P each]: iterations of those inside the kernel's that it does not move
        with; how often the whole kernel is gone through, and how often all tiles are: for each iteration of the loop
        that goes to threads, which is outermost, where it is one that these do not move with."""
        ones = np.ones_like(vectors)
        if self.shape is not Shape.POINTS:
            return ones, ones, ones
        ranges, (_, still), panel = self.roles.product.ranges, self.outside(), Loop(self.roles.vector, 0)
        loops, chosen = self.loops_of("multiplying"), self.index(points, "multiplying")
        kernel_passes = np.array([ranges[loop.iterator] if loop in still else 1 for loop in loops if loop])[chosen]
        beside = prod(ranges[loop.iterator] for loop in still) // kernel_passes
        panels = -(-ranges[self.roles.vector] // (vectors * self.lanes))
        tile_passes = np.where(np.array([loop == panel for loop in loops])[chosen], panels, ones)
        return beside, kernel_passes, tile_passes

    def transform_cycles(self, rows: Matrix, columns: Matrix) -> float:
        """Cycles of a vector of tiles that `rows` transforms and, what comes of it, `columns`."""
        high, wide, between = len(rows[0]), len(columns[0]), len(rows) * len(columns[0])
        additions = wide * shared(rows).additions + len(rows) * shared(columns).additions
        cycles = self.sum_cycles(high * wide + between, additions, between + len(rows) * len(columns))
        return self.target.cost.winograd_sums_ratio * cycles

    def transferred(self, points: Points, cores: int) -> Floats:
        """Bytes [P] that one core gets from others where rows of tiles are divided otherwise from phase to phase: tiles
        of all rows for its panels or points, and what it makes of them."""
        roles = self.roles
        tiles, products = roles.bytes(roles.columns), roles.bytes(roles.write)
        if self.shape is Shape.ROWS:
            return np.zeros(len(points))
        every, part = (of_others(size, tiles, cores, self.target) for size in (tiles, tiles / cores))
        if self.shape is Shape.PANELS:
            knob, read, made = "parallel", {Loop(self.v, 0): every}, roles.bytes(roles.owner)
        else:
            knob, read, made = "multiplying", dict.fromkeys(self.outside()[0], part), products
            read[Loop(roles.vector, 0)] = every
        written = of_others(made / cores, made, cores, self.target)
        sizes = [read[loop] + written if loop in read else 0.0 for loop in self.loops_of(knob)]
        return np.array(sizes)[self.index(points, knob)]

    def shares(self, points: Points, knob: str, cores: int) -> Floats:
        """The part of the work that the busiest of `cores` cores has, by the loop that `knob` sends to threads [P]."""
        chunk, vectors = self.column(points, "chunk"), self.column(points, "vectors")
        orders = [
            [first, *(loop for loop in self.open_loops(knob) if loop != first)] if first else [None]
            for first in self.loops_of(knob)
        ]
        spans = [[self.span(knob, loop, chunk, vectors) for loop in order] for order in orders]
        every = np.stack([busiest_share(together, cores, self.target) for together in spans])
        return np.asarray(every[self.index(points, knob), np.arange(len(points))], np.float64)

    def loops_of(self, knob: str) -> list[Loop | None]:
        """The loops that the values of a knob say."""
        return [x for k in self.all_knobs() if k.name == knob for x in k.values if x is None or isinstance(x, Loop)]

    def trips(self, knob: str, loop: Loop, chunk: Ints, vectors: Ints) -> Ints:
        """Iterations of a loop that can go to threads [P], where chunks and register tiles are so large."""
        extent, tile = self.span(knob, loop, chunk, vectors)
        return -(-extent // tile)

    def span(self, knob: str, loop: Loop | None, chunk: Ints, vectors: Ints) -> tuple[int, Ints]:
        """(how many values of its iterator such a loop covers, how many one of its iterations does [P])."""
        roles, one = self.roles, np.ones(len(chunk), np.int64)
        if loop is None:
            return 1, one
        name = loop.iterator
        block = roles.owner if knob == "parallel" else roles.product
        if name in (self.v, roles.vector):
            return block.ranges[name], vectors * self.lanes
        chunked = self.shape is Shape.ROWS and block is roles.owner and name == roles.owned[roles.th]
        return block.ranges[name], chunk if chunked else one

    def products_in(self, chunk: int) -> Tiled:
        return self.roles.tiled(chunk)

    def _first_chunk(self) -> int:
        """Rows of tiles in a chunk: transformed tiles and products stay in the second-level cache, every core gets
        work."""
        roles, total = self.roles, self.roles.tile_rows
        samples, depths = roles.lead
        tiles = roles.bytes(roles.columns) // roles.points(samples)
        products = roles.bytes(roles.write) // roles.points([*samples, *depths])
        fits = max(1, kept_bytes(self.target) * total // max(tiles + products, 1))
        wanted = max(1, total // (self.target.cores * CHUNKS_PER_CORE // 2))
        best = min(fits, wanted)
        return -(-total // -(-total // best))


def transform_schedule(block: Block, vector: str, lanes: int, at: Inside, vectors: int) -> BlockSchedule:
    """A transform of so many vectors of one tile, unrolled."""
    point = block.spatial[-1].name
    order = (Loop(point, 0), Loop(vector, 0), Loop(vector, 1))
    tags = {order[0]: "unroll", order[2]: "vector"} | ({order[1]: "unroll"} if vectors > 1 else {})
    return BlockSchedule(at, "local", {vector: (lanes,)}, order, tags)


def _scope(at: Inside | Root) -> str:
    """Where what a Block makes lies: phases share the arena."""
    return "arena" if at is ROOT else "local"
