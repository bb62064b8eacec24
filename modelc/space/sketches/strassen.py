"""The Sketch of Tasks derived by Strassen's rule (rules/strassen.py): where sums run around the products.

The Task's last Block owns the outer loops. For a chunk of rows at a time parts of the data are added up; then, for one
panel of columns at a time, all products of both are made, and the results are added up out of them where they are
still near. Where panels go to threads, all sums are a phase of their own before: every thread reads them, and a part of
the constant. That is packed panel by panel, and in each product by product, as it is read.

rows.N       rows of row iterator N in the products' register tile
vectors      vectors of that tile along the columns: a panel
chunk        rows, of those that are cut, that are worked on together
parallel     the owner's loop whose iterations go to threads: chunks, panels, or another outside both
steps        reduction steps in one iteration of the products' innermost loop
prefetch     "far": the constant's part for the next product while one is made; or "none"
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np

from modelc.ir.block import Block, Task
from modelc.ir.candidate import BlockSchedule, Candidate, Stage
from modelc.ir.expr import Op, variables, walk
from modelc.ir.layout import Layout
from modelc.ir.loop import ROOT, Inside, Loop, Root
from modelc.space.analysis.access import accesses, stored_lanes, vector_iterator
from modelc.space.analysis.around import consumers_of, reduction_of
from modelc.space.analysis.footprint import Ints
from modelc.space.cost.moving import parted_seconds
from modelc.space.cost.transfers import of_others, transfer_seconds
from modelc.space.cost.work import SOURCES, Work
from modelc.space.rules.rule import DoesNotApply
from modelc.space.rules.strassen import LEVELS, coefficients, operands
from modelc.space.rules.sums import shared
from modelc.space.sketch import Bools, Floats, Knob, Points, Value, Values
from modelc.space.sketches.clean import applied, collapsed
from modelc.space.sketches.maps import map_schedule
from modelc.space.sketches.prepare import factored, padded
from modelc.space.sketches.products import ProductRoles, Products, halved
from modelc.space.sketches.tiled_candidate import tile_layout
from modelc.space.sketches.tiled_rules import best_kernel
from modelc.space.sketches.vectorized import VectorUnit
from modelc.space.tiling.parallel import busiest_share, parallel_first
from modelc.space.tiling.tiled import FAR, FETCHING_ROWS, MAX_VECTORS, Tiled, TiledKnobs
from modelc.target import Target

LEAST_ROWS = 2  # after they are cut
LEAST_VECTORS = 2  # vectors of the depth and of the columns after they are cut: sums cost more than they save below


def strassen_sketches(task: Task, target: Target, stages: Sequence[Stage]) -> list[Strassen]:
    """One for each number of levels that applies to the one reduction of `task`; empty if none does."""
    sketches: list[Strassen] = []
    for levels in LEVELS:
        with suppress(DoesNotApply):
            sketches.append(Strassen(_cut(task, target, [*stages], levels), levels))
    return sketches


def _cut(task: Task, target: Target, stages: list[Stage], levels: int) -> Roles:
    """The Blocks of `task` after the rule. Raises DoesNotApply."""
    name, parts = reduction_of(task).name, coefficients(levels).parts
    task = padded(task, stages)
    if not consumers_of(task, reduction_of(task)):
        task = applied(task, stages, "cache_write", block=name)
    task = collapsed(factored(task, stages), name, stages)
    anchor = reduction_of(task)
    matrices = operands(task, anchor)
    if matrices is None:
        raise DoesNotApply("the reduction is no product of a matrix and a constant one")
    least = LEAST_VECTORS * stored_lanes(target, "float32")
    rows = max(matrices.rows, key=anchor.ranges.__getitem__, default=None)
    wide, deep = (
        [n for n in names if anchor.ranges[n] % parts == 0 and anchor.ranges[n] // parts >= least]
        for names in (matrices.columns, matrices.depth)
    )
    if rows is None or anchor.ranges[rows] < parts * LEAST_ROWS or len(wide) != 1 or len(deep) != 1:
        raise DoesNotApply("rows, columns or depth cannot be cut, or are short")
    copies = [b.name for b in task.blocks[: task.blocks.index(anchor)]]
    task = applied(
        task, stages, "strassen", block=name, rows=rows, columns=wide[0], depth=deep[0], levels=levels
    )  # fmt: skip
    for copy in copies:  # sums leave out what lies beyond an edge as well
        task = applied(task, stages, "inline", block=copy)
    task = applied(task, stages, "cache_write", block=name)
    return _roles(task, target, stages, rows, wide[0], deep[0])


@dataclass(frozen=True)
class Roles(ProductRoles):
    """What the Blocks of a derived Task are for, told by what they read and write:

    sums -> product -> write -> results -> owner -> afterwards

    and the product's iterators that are cut. `results`: products added up, for each part of the results."""

    sums: Block  # of parts of the data, one for each product
    rows: str
    columns: str
    depth: str

    @property
    def number(self) -> str:
        """The product's iterator over products."""
        return self.product.spatial[0].name

    @cached_property
    def others(self) -> list[str]:
        """The owner's iterators that are neither cut nor over parts."""
        inner = {self.owned[self.rows], self.owned[self.columns], *self.within}
        return [i.name for i in self.owner.spatial if i.extent > 1 and i.name not in inner]

    @cached_property
    def samples(self) -> list[str]:
        """Of these the ones that have sums of their own."""
        return [self.owned[n] for n in self.sums.ranges if self.owned.get(n) in self.others]

    def tiled(self, rows: int) -> Tiled:
        """The products, for so many of the rows that are cut."""
        lanes = stored_lanes(self.target, "float32")
        unit, ranges = VectorUnit(lanes), {self.rows: rows}
        return Tiled(self.task, self.target, self.stages, self.product, self.columns, unit, ranges=ranges)


def _roles(task: Task, target: Target, stages: Sequence[Stage], rows: str, columns: str, depth: str) -> Roles:
    """Raises DoesNotApply if the Task has other Blocks, or its operands are not stored along depth and columns."""
    blocks = [b for b in task.blocks if isinstance(b, Block)]
    if len(blocks) < len(task.blocks) or len(blocks) < 5 or blocks[1] != reduction_of(task):
        raise DoesNotApply("the Task has Blocks of another kind")
    sums, product, write, results, owner, *afterwards = blocks
    source, written = accesses(task, sums)[0][0], accesses(task, owner)[1]
    roles = Roles(
        task, target, tuple(stages), product, write, results, owner, tuple(afterwards), sums, rows, columns, depth
    )
    if source.strides[depth] != 1 or vector_iterator(owner, written) != roles.owned[columns]:
        raise DoesNotApply("operands are stored across what vectors go along")
    if vector_iterator(write, accesses(task, write)[1]) != columns:
        raise DoesNotApply("products are stored across their columns")
    return roles


class Strassen(Products):
    """The Sketch of 7 ** `levels` products."""

    def __init__(self, roles: Roles, levels: int):
        super().__init__("strassen", f"{7**levels} products", roles.task, roles.target, roles.stages)
        self.roles, self.by = roles, coefficients(levels)
        self.lanes = stored_lanes(roles.target, "float32")
        self.chunked, self.extent = roles.rows, roles.product.ranges[roles.rows]  # rows that are cut, in one part
        self.first_chunk = self._first_chunk()
        self.gemm = roles.tiled(self.first_chunk)
        self.kernel = next(r for r in self.gemm.reads if r.load.buffer in roles.task.constants)

    # --- knobs ----------------------------------------------------------------------------------------------------

    def all_knobs(self) -> list[Knob]:
        return self._knobs

    @cached_property
    def _knobs(self) -> list[Knob]:
        gemm, start = self.gemm, self.start_values()
        most = -(-gemm.ranges[gemm.vector] // self.lanes)
        first = start["parallel"]
        loops = [first, *(x for x in self.open_loops() if x != first and self.target.cores > 1)]
        return [
            *(Knob(f"rows.{n}", self.row_counts(n), f"rows of {n} in the register tile") for n in gemm.inside),
            Knob("vectors", tuple(range(1, min(MAX_VECTORS, most) + 1)), "vectors of the register tile: a panel"),
            Knob("chunk", self.chunks(), "rows that are worked on together"),
            Knob("parallel", tuple(loops), "the owner's loop whose iterations go to threads"),
            Knob("steps", gemm.step_counts, "reduction steps in one iteration"),
            Knob("prefetch", (FAR, "none"), "what is prefetched by instructions"),
        ]

    def start_values(self) -> Values:
        return self._rules

    @cached_property
    def _rules(self) -> dict[str, Value]:
        kernel, vectors, _ = best_kernel(self.gemm)
        loops = self.open_loops()
        spans = {loop: self.span(loop, np.array([self.first_chunk]), np.array([vectors])) for loop in loops}
        counts = {loop: int(-(-extent // tile[0])) for loop, (extent, tile) in spans.items()}
        return {
            **{f"rows.{n}": c for n, c in kernel},
            "vectors": vectors,
            "chunk": self.first_chunk,
            "parallel": parallel_first(loops, counts, self.target)[0],
            "steps": self.gemm.usual_steps,
            "prefetch": FAR if self.gemm_rows(self.first_chunk) >= FETCHING_ROWS else "none",
        }

    def chunks(self) -> tuple[int, ...]:
        """Rows in one chunk: the least for twice as many chunks again and again."""
        return tuple(sorted(halved(self.extent)))

    @property
    def panels(self) -> Loop:
        """The owner's loop over panels of columns."""
        return Loop(self.roles.owned[self.roles.columns], 0)

    def open_loops(self) -> list[Loop]:
        """The owner's loops outside the products: over samples, chunks, what the sums of one serve, and panels."""
        loops = [Loop(n, 0) for n in self.outside]
        samples = [loop for loop in loops if loop.iterator in self.roles.samples]
        others = [loop for loop in loops if loop not in samples]
        return [*samples, self.chunk_loop, *others, self.panels]

    @property
    def chunk_loop(self) -> Loop:
        """The owner's loop over chunks of rows."""
        return Loop(self.roles.owned[self.roles.rows], 0)

    @property
    def outside(self) -> list[str]:
        """The owner's iterators outside chunks: those that products have no rows of in a register tile."""
        inside = {self.roles.owned[n] for n in self.gemm.inside}
        return [n for n in self.roles.others if n not in inside]

    def around_sums(self, outer: Sequence[Loop]) -> list[Loop]:
        """Those of the `outer` loops, in their order, that sums of the data are inside: all where these are a phase."""
        around = [self.chunk_loop, *(Loop(n, 0) for n in self.outside if n in self.roles.samples)]
        last = len(outer) - 1 if outer[0] == self.panels else max(map(outer.index, around))
        return [*outer[: last + 1]]

    def legal(self, points: Points) -> Bools:
        """Registers hold the products' tile, which is no larger than a chunk."""
        return np.asarray(self.tiles_fit(points) | (points == self.start()).all(axis=1), np.bool_)

    # --- the Candidate --------------------------------------------------------------------------------------------

    def candidate_of(self, values: Values) -> Candidate:
        roles, owner, knobs = self.roles, self.roles.owner.name, self.knobs_of(values)
        v, rows = roles.owned[roles.columns], roles.owned[roles.rows]
        panel = self.gemm.tiles(knobs)[roles.columns][0]
        parts = [Loop(n, 0) for n in roles.within]
        inside = [n for n in roles.others if n not in self.outside]
        first = values["parallel"]
        outer = [first, *(loop for loop in self.open_loops() if loop != first)]
        sums = ROOT if first == self.panels else Inside(owner, self.around_sums(outer)[-1])
        vectors, columns = Loop(v, 1), roles.columns
        order = (*outer, Loop(rows, 1), *(Loop(n, 0) for n in inside), vectors, *parts, Loop(v, 2))
        tags = dict.fromkeys(parts, "unroll") | {first: "parallel", order[-1]: "vector"}
        tiles: dict[str, tuple[int, ...]] = {v: (panel, self.lanes), rows: (knobs.chunk,)}
        schedules = {
            roles.sums.name: self.sums_schedule(sums),
            roles.results.name: BlockSchedule(
                Inside(owner, vectors),
                "local",
                {columns: (self.lanes,)},
                (Loop(columns, 0), Loop(columns, 1)),
                {Loop(columns, 1): "vector"},
            ),
            owner: BlockSchedule(ROOT, "arena", tiles, order, tags),
        }
        schedules |= {b.name: map_schedule(self.task, b, self.target) for b in roles.afterwards}
        schedules[roles.product.name], macro = self.product_schedule(knobs, Inside(owner, outer[-1]))
        write = self.gemm.unit.epilogue(self.gemm, roles.write, Inside(roles.product.name, macro[-1]), knobs)
        schedules[roles.write.name] = replace(write, scope="local")
        layouts = self.layouts(knobs) | self.scratch_layouts(knobs, sums is ROOT)
        return Candidate({b.name: schedules[b.name] for b in self.task.blocks}, self.stages, layouts)

    def scratch_layouts(self, knobs: TiledKnobs, apart: bool) -> dict[str, Layout]:
        """Sums of a chunk (of all rows where they are a phase `apart`) and products of a panel, each product's in other
        sets of the first-level cache."""
        product, columns = self.roles.product, self.gemm.tiles(knobs)[self.roles.columns][0]
        (sums,) = (r for r in product.reads if r.buffer == self.roles.sums.writes[0].buffer)
        chunk = {**product.ranges, self.roles.rows: knobs.chunk}
        return self.spread(sums, product.ranges if apart else chunk, 1) | self.spread(
            self.roles.write.writes[0], chunk | {self.roles.columns: columns}, 1
        )

    def layouts(self, knobs: TiledKnobs) -> dict[str, Layout]:
        """The constant, packed for the products' register tile, panels outside products; and their accumulators."""
        (accumulators,) = self.roles.product.writes
        packed = self.gemm.unit.packing(self.gemm, self.kernel, knobs)
        assert packed is not None
        indices, reduced = self.kernel.load.indices, set(self.gemm.reduction)
        panels = sum(not variables(i) & reduced for i in indices) - 1  # where the packing has them: behind the products
        moved = packed.then("reorder", panels, *(d for d in range(len(indices) + 1) if d != panels))
        layouts = {self.kernel.load.buffer: moved, accumulators.buffer: tile_layout(self.gemm, accumulators)}
        return {name: layout for name, layout in layouts.items() if layout is not None}

    def product_schedule(self, knobs: TiledKnobs, at: Inside) -> tuple[BlockSchedule, list[Loop]]:
        """The products' loops at `at`, for one panel, and those outside their micro-kernel."""
        gemm, v, number = self.gemm, self.gemm.vector, Loop(self.roles.number, 0)
        tiled = (v, number.iterator, *gemm.inside)
        whole = [Loop(i.name, 0) for i in self.roles.product.spatial if i.extent > 1 and i.name not in tiled]
        macro = [*whole, number, Loop(v, 0), *(Loop(n, 0) for n in gemm.inside)]
        prefetch: dict[str, Loop | Root] = {self.kernel.load.buffer: number} if knobs.prefetch == FAR else {}
        return self.kernel_schedule(knobs, at, macro, None, prefetch), macro

    def sums_schedule(self, at: Inside | Root) -> BlockSchedule:
        """Sums of parts of the data, a vector of each at a time."""
        block, d, scope = self.roles.sums, self.roles.depth, "arena" if at is ROOT else "local"
        others = [Loop(i.name, 0) for i in block.spatial if i.extent > 1 and i.name != d]
        others.sort(key=lambda loop: at is ROOT and loop.iterator != self.roles.rows)
        tags = {Loop(d, 1): "vector"} | ({others[0]: "parallel"} if at is ROOT else {})
        return BlockSchedule(at, scope, {d: (self.lanes,)}, (*others, Loop(d, 0), Loop(d, 1)), tags)

    # --- estimates ------------------------------------------------------------------------------------------------

    def work(self, points: Points, cores: int) -> Work:
        """Products at the micro-kernel's rate; sums by loads, additions and stores; and what passes through memory
        while this goes on."""
        target = self.target
        chunk, vectors = self.column(points, "chunk"), self.column(points, "vectors")
        loops = [x for k in self.all_knobs() if k.name == "parallel" for x in k.values if isinstance(x, Loop)]
        orders = [[first, *(loop for loop in self.open_loops() if loop != first)] for first in loops]
        spans = [[self.span(loop, chunk, vectors) for loop in self.around_sums(order)] for order in orders]
        every = np.stack([busiest_share(together, cores, self.target) for together in spans])
        parallel = self.index(points, "parallel")
        share = every[parallel, np.arange(len(points))]
        apart = np.array([loop == self.panels for loop in loops])[parallel]  # sums are a phase of their own
        rate = target.hertz
        before, after = self.cycles_of_sums()
        own = np.where(apart, share, 1.0)  # a core has panels of its own, or all of them
        kernel = self.roles.task.buffer(self.kernel.load.buffer).bytes
        more = kernel - kernel * self.by.parts**2 // self.by.products
        once = parted_seconds(kernel, own, target, more, cores)
        streamed = once + self.again_seconds(chunk, vectors, apart, share, cores)
        moving = np.zeros((len(points), len(SOURCES)))
        moving[:, -1] = streamed
        return Work.of(
            len(points),
            computing=self.product_cycles(points) * share / rate,
            copying=(after * share + before * np.where(apart, 1 / cores, share)) / rate,
            moving=moving,
            demanded=self.unhinted(points) * streamed,
            arriving=streamed,
            transferred=transfer_seconds(apart * self.transferred(cores), target),
            phases=apart.astype(np.float64),
            forks=float(cores > 1),
        )

    def again_seconds(self, chunk: Ints, vectors: Ints, apart: Bools, share: Floats, cores: int) -> Floats:
        """Seconds [P] of moving again what does not stay in the second-level cache: the constant and sums of each
        chunk, and products both ways."""
        roles, target = self.roles, self.target
        kernel, room = roles.task.buffer(self.kernel.load.buffer).bytes, target.second.bytes
        panels = -(-roles.product.ranges[roles.columns] // (vectors * self.lanes))
        pieces = prod(roles.owner.ranges[n] for n in self.outside if n in roles.samples)
        part, chunks = chunk / self.extent, -(-self.extent // chunk) * pieces
        added, made = roles.bytes(roles.sums), roles.bytes(roles.write)
        sums, products = added / pieces * np.where(apart, 1.0, part), made * part / (panels * pieces)
        again = (np.where(apart, kernel / panels, kernel) > room // 2) * kernel * (chunks - 1.0)
        moved = (sums + products > room * 3 // 4) * added * (panels + 1.0)
        again = again + moved + 2 * made * (products > room)
        threads = cores if target.caches[-1].shared else 1
        held = kernel + threads * products + np.where(apart, added, threads * sums)
        last = target.caches[-1]
        rate = np.where(held > last.bytes, target.memory_gbs(cores), last.bandwidth_gbs / share)  # of all cores
        return np.asarray(again / (1e9 * rate), np.float64)

    def transferred(self, cores: int) -> Floats:
        """Bytes that one core gets from others where panels go to threads: sums of all rows, and rows of results."""
        added, results = self.roles.bytes(self.roles.sums), self.roles.bytes(self.roles.owner)
        read = of_others(added, added, cores, self.target)
        return read + of_others(results / cores, results, cores, self.target)

    def cycles_of_sums(self) -> tuple[float, float]:
        """Cycles of all sums of parts of the data, and of products with the owner's own arithmetic."""
        roles, by, parts = self.roles, self.by, self.by.parts**2
        data, results = (roles.bytes(b) / (by.products * 4 * self.lanes) for b in (roles.sums, roles.write))
        operations = sum(isinstance(e, Op) for b in roles.owner.body for e in walk(b))
        before = self.sum_cycles(parts, shared(by.sums).additions, by.products)
        after = self.sum_cycles(by.products, shared(by.results).additions + parts * operations, parts)
        return self.target.cost.strassen_sums_ratio * data * before, results * after

    def products_in(self, chunk: int) -> Tiled:
        return self.roles.tiled(chunk)

    def span(self, loop: Loop, chunk: Ints, vectors: Ints) -> tuple[int, Ints]:
        """(how many values of its iterator such a loop covers, how many one of its iterations does [P])."""
        roles, name = self.roles, loop.iterator
        tiles = {roles.owned[roles.rows]: chunk, roles.owned[roles.columns]: vectors * self.lanes}
        return roles.owner.ranges[name], tiles.get(name, np.ones(len(chunk), np.int64))

    def gemm_rows(self, chunk: int) -> int:
        """Rows that go over each part of the constant in one chunk."""
        return prod(chunk if n == self.roles.rows else self.gemm.ranges[n] for n in self.gemm.inside)

    def _first_chunk(self) -> int:
        """Rows in a chunk: its sums stay in half of the second-level cache, every core has one."""
        whole, room = self.roles.bytes(self.roles.sums), self.target.second.bytes // 2
        fitting = [
            n for n in self.chunks() if whole * n // self.extent <= room and -(-self.extent // n) >= self.target.cores
        ]
        return max(fitting, default=self.chunks()[0])
