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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np

from modelc.ir.block import Block, Iter, Task
from modelc.ir.candidate import BlockSchedule, Candidate, Stage
from modelc.ir.expr import DTYPES
from modelc.ir.loop import ROOT, Inside, Loop
from modelc.ir.nest import INTRINSIC
from modelc.space.analysis.access import accesses
from modelc.space.analysis.distinct import distinct_rows
from modelc.space.analysis.loops import deeper
from modelc.space.cost.blocks import block_cycles, laid_out, work_around
from modelc.space.cost.moving import moving_seconds
from modelc.space.cost.step import chain_cycles, epilogue_cycles, exposed, step_cycles
from modelc.space.cost.work import Work
from modelc.space.sketch import Bools, Floats, Knob, Points, Value, Values, one_by_one
from modelc.space.sketches.attention_keys import panels
from modelc.space.sketches.attention_loops import AttentionLoops
from modelc.space.sketches.attention_roles import prepared, roles_of
from modelc.space.sketches.lanes import inside_rows
from modelc.space.sketches.maps import map_schedule
from modelc.space.sketches.tensorized import store_schedule
from modelc.space.sketches.vectorized import tile_epilogue
from modelc.space.tiling.parallel import busiest_share
from modelc.target import Target

MAX_VECTORS = 4  # vectors of one register tile
MAX_TILE = 128  # query rows of one tile


def attention_sketches(task: Task, target: Target, stages: Sequence[Stage], tensorize: bool = True) -> list[Attention]:
    """The Sketches of a Task of attention: by intrinsics of the target if it may, and on vectors; none if `task` is not
    one."""
    sketches: list[Attention] = []
    for allowed in (True, False) if tensorize else (False,):
        if sketches and not sketches[0].units:
            break
        noted = [*stages]
        ready, units = prepared(task, target, noted, allowed)
        roles = roles_of(ready)
        if roles is not None and all(u.row == 1 or roles.rows_of(n) in u.inner for n, u in units.items()):
            sketches.append(Attention(roles, target, tuple(noted), units))
    for beside_units in sketches[1:]:
        beside_units.handicap = 1 + target.cost.unit_doubt_share
    return sketches


@dataclass(frozen=True)
class RegisterTile:
    """Rows x vectors of accumulators that stay in registers over a whole reduction."""

    rows: int
    vectors: int


class Attention(AttentionLoops):
    """The Sketch of one Task of attention, on vectors or on units of intrinsics."""

    # --- knobs ----------------------------------------------------------------------------------------------------

    def all_knobs(self) -> list[Knob]:
        return self._knobs

    @cached_property
    def _knobs(self) -> list[Knob]:
        start = self.start_values()
        tiles = tuple(sorted({*self.query_tiles(), int(start["queries"])}))
        most = max(1, *(self.group(n) for n in tiles), int(start["group"]))
        groups = {1 << k for k in range(most.bit_length())} | {int(start["group"])}
        loops, first = self.loops_for_threads(), start["parallel"]
        free = self.target.cores > 1 and self.long
        knobs = [Knob("queries", tiles, "query rows of one tile")]
        for prefix, block in self.named().items():
            rows, vectors = self.register_tiles(block, tiles[-1])
            knobs += [
                Knob(f"{prefix}.rows", rows, f"rows of the register tile of the {prefix}"),
                Knob(f"{prefix}.vectors", vectors, "vectors of that tile"),
            ]
        return [
            *knobs,
            Knob(
                "keys", ("rows",) if self.far_keys is None else ("panels", "rows"), "how a copy of the keys is stored"
            ),
            Knob("group", tuple(sorted(n for n in groups if n <= tiles[-1])), "rows that are worked on together"),
            Knob("parallel", (first, *(x for x in loops if x != first and free)), "the loop that goes to threads"),
        ]

    def start_values(self) -> Values:
        return self._rules

    def of_any_size(self) -> Values | None:
        """Panels have a length that depends on how many keys there are."""
        return None if self.far_keys is None else {**self.start_values(), "keys": "rows"}

    @cached_property
    def _rules(self) -> dict[str, Value]:
        tile, *kernels = self.tiles()
        values: dict[str, Value] = {"queries": tile, "group": self.group(tile)}
        values["parallel"] = self.first_loop(tile)
        values["keys"] = "rows" if self.far_keys is None else "panels"
        for prefix, kernel in zip(self.named(), kernels, strict=False):
            values |= {f"{prefix}.rows": kernel.rows, f"{prefix}.vectors": kernel.vectors}
        return values

    def named(self) -> dict[str, Block]:
        """The contractions, by what their knobs are named after."""
        return dict(zip(("scores", "values"), self.contractions(), strict=False))

    def query_tiles(self) -> set[int]:
        """Query rows per tile: sizes without an underfull last tile, with scores that fit the cache."""
        whole = max([u.row for u in self.units.values()], default=1)
        least = min(8, self.queries) if whole == 1 else whole
        sizes = {-(-self.queries // (k * whole)) * whole for k in range(1, self.queries + 1)}
        return {n for n in sizes if n == least or (least < n <= MAX_TILE and self.fits(n))}

    def register_tiles(self, block: Block, tile: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(rows, vectors) that register tiles of a contraction can have, in tiles of at most `tile` query rows."""
        registers, unit = self.target.vector.registers, self.units.get(block.name)
        row, lanes = (1, self.lanes) if unit is None else (unit.row, unit.lanes)
        most = min(MAX_VECTORS, registers, -(-block.ranges[self.vector(block)] // lanes))
        vectors = range(1, most + 1)
        if unit is not None:
            vectors = range(1, min(registers, -(-block.ranges[self.vector(block)] // lanes)) + 1)
        rows = range(1, min(-(-tile // row), registers) + 1)
        held = [(r * row, v) for r in rows for v in vectors if self.holds(block, r * row, v)]
        return tuple(sorted({r for r, _ in held})), tuple(sorted({v for _, v in held}))

    def holds(self, block: Block, rows: int, vectors: int) -> bool:
        """Whether registers hold such a register tile with what it multiplies."""
        unit, registers = self.units.get(block.name), self.target.vector.registers
        if unit is not None:
            return unit.held(rows // unit.row, vectors, registers)
        return rows * vectors + vectors + 2 <= registers or rows == vectors == 1

    def legal(self, points: Points) -> Bools:
        tile, group = self.column(points, "queries"), self.column(points, "group")
        allowed = group <= tile
        if self.units:
            allowed &= tile % group == 0
        for prefix, block in self.named().items():
            rows, vectors = self.column(points, f"{prefix}.rows"), self.column(points, f"{prefix}.vectors")
            pairs, back = distinct_rows(np.column_stack([rows, vectors]))
            held = np.array([self.holds(block, int(r), int(v)) for r, v in pairs], np.bool_)
            allowed &= (rows <= tile) & held[back]
        return np.asarray(allowed | (points == self.start()).all(axis=1), np.bool_)

    # --- the Candidate --------------------------------------------------------------------------------------------

    def candidate_of(self, values: Values) -> Candidate:
        roles, task, tile, group = self.roles, self.task, values["queries"], values["group"]
        kernels = [RegisterTile(values[f"{n}.rows"], values[f"{n}.vectors"]) for n in self.named()]
        first, second = kernels[0], kernels[-1]
        root, lead = self.root, self.lead(values["parallel"])
        at = self.inside(lead)
        schedules: dict[str, BlockSchedule] = {b.name: map_schedule(task, b, self.target) for b in roles.others}
        schedules |= self.contraction(roles.scores, roles.epilogue, first, at, "local")
        key, row = self.iterator(roles.owner, roles.key), self.iterator(roles.owner, roles.query)
        tiles: dict[str, tuple[int, ...]]
        vectors, vector = Loop(key, 0), Loop(key, 1)
        if roles.values is None:
            groups, inner = Loop(row, 1), (Loop(row, 2), vectors, vector)
            tags = {vector: "vector"} | ({lead[0]: "parallel"} if self.long else {})
            tiles = {row: (tile, group), key: (self.lanes,)}
            schedules[root.name] = BlockSchedule(ROOT, "arena", tiles, (*lead, groups, *inner), tags)
        else:
            groups, inner = Loop(row, 0), (Loop(row, 1), vectors, vector)
            tags, tiles = {vector: "vector"}, {row: (group,), key: (self.lanes,)}
            schedules[roles.owner.name] = BlockSchedule(at, "local", tiles, (groups, *inner), tags)
            schedules |= self.weighing(second, lead, tile)
        for block in (*roles.before, *roles.after):
            schedules[block.name] = inside_rows(task, block, self.target, Inside(roles.owner.name, groups))
        for pack in roles.packs:
            schedules[pack.name] = self.pack(pack, self.copied_at(pack, lead, tile))
        made = dict(zip(self.contractions(), (first, second), strict=False))
        layouts = {u.packed[1]: u.layout(t.vectors) for b, t in made.items() if (u := self.units.get(b.name))}
        if self.far_keys is not None and values["keys"] == "panels" and self.keeps_keys(tile):
            layouts[self.far_keys.buffer] = panels(roles, self.far_keys, first.vectors * self.lanes)
        return Candidate({b.name: schedules[b.name] for b in task.blocks}, self.stages, layouts)

    def inside(self, lead: Sequence[Loop]) -> Inside:
        """Where the rows of a tile are computed."""
        return Inside(self.root.name, lead[-1])

    def weighing(self, kernel: RegisterTile, lead: Sequence[Loop], tile: int) -> dict[str, BlockSchedule]:
        """The second contraction around everything else."""
        assert self.roles.values is not None
        return self.rooted(self.roles.values, self.roles.results, kernel, lead, tile, self.long)

    def rooted(
        self, block: Block, maps: Sequence[Block], kernel: RegisterTile, lead: Sequence[Loop], tile: int, long: bool
    ) -> dict[str, BlockSchedule]:
        """A contraction and the `maps` of its results, inside the loops `lead`, the last over tiles of query rows, the
        first for threads if it is `long`."""
        result = self.contraction(block, maps, kernel, Inside(block.name, lead[-1]), "arena")
        schedule, query = result[block.name], self.iterator(block, self.roles.query)
        tiles = dict(schedule.tiles) | {query: (tile, *schedule.tiles[query])}
        order, reduced = tuple(deeper(loop, query) for loop in schedule.order), {i.name for i in block.reduction}
        tags = {deeper(loop, query): tag for loop, tag in schedule.tags.items()}
        tags |= {lead[0]: "parallel"} if long else {}
        unit = self.units.get(block.name)
        if unit is not None and unit.stores_accumulators:  # maps run beside what comes next
            macro = [loop for loop in order if loop not in tags and loop.iterator not in reduced]
            tags |= dict.fromkeys(macro, "pipeline")
        result[block.name] = BlockSchedule(ROOT, "register", tiles, (*lead, *order), tags, schedule.padded)
        for consumer in maps:
            place = result[consumer.name].at
            assert place is not ROOT
            result[consumer.name] = replace(result[consumer.name], at=Inside(place.block, deeper(place.loop, query)))
        return result

    def group(self, tile: int) -> int:
        """Query rows that are reduced side by side, to overlap the latency of their reductions: their scores fit half
        of L1."""
        row = 2 * self.keys * DTYPES[self.dtype].itemsize
        most = max(1, min(tile, self.target.caches[0].bytes // 2 // row))
        return most if not self.units else max(n for n in range(1, most + 1) if tile % n == 0)

    # --- micro-kernels --------------------------------------------------------------------------------------------

    def contraction(
        self, block: Block, consumers: Sequence[Block], tile: RegisterTile, at: Inside, scope: str
    ) -> dict[str, BlockSchedule]:
        """A contraction over one tile of query rows, placed `at`, by register tiles; its consumers run on these."""
        row, vector = self.iterator(block, self.roles.query), self.vector(block)
        tiled = {*self.roles.iters[block.name], vector}
        extra = [Loop(i.name, 0) for i in block.spatial if i.extent > 1 and i.name not in tiled]
        reduction = [Loop(i.name, 0) for i in sorted(block.reduction, key=self.nearness(block)) if i.extent > 1]
        unit = self.units.get(block.name)
        # rows are streamed past one; a unit has fewer rows at the end, shaped once
        panels = [Loop(vector, 0), Loop(row, 0)]
        macro = [*extra, *(panels if unit is None else reversed(panels))]
        lanes = self.lanes if unit is None else unit.lanes
        width = min(tile.vectors * lanes, -(-block.ranges[vector] // lanes) * lanes)
        tiles: dict[str, tuple[int, ...]] = {row: (tile.rows,), vector: (width, lanes)}
        inner, padded = {Loop(vector, 2): "vector"}, tuple[str, ...]()
        if unit is not None:
            tiles |= {n: (*tiles.get(n, ()), t) for n, t in unit.inner.items() if n != vector}
            inner, padded = unit.loops(tiles), (vector,)
        micro = [Loop(row, 1), Loop(vector, 1)]
        tags = dict.fromkeys(micro, "unroll") | inner
        order = (*macro, *reduction, *micro, *inner)
        result = {block.name: BlockSchedule(at, "register", tiles, order, tags, padded)}
        inside, anchor, rows = Inside(block.name, macro[-1]), block, [row]
        for consumer in consumers:
            if unit is not None and unit.stores_accumulators and anchor is block:
                result[consumer.name] = store_schedule(block, consumer, rows, unit.match, inside)
                own = _followed(block, consumer)
                anchor, rows, vector = consumer, [own[row]], own[vector]
                continue
            result[consumer.name] = tile_epilogue(anchor, consumer, rows, vector, lanes, inside, scope)
        return result

    def nearness(self, block: Block) -> Callable[[Iter], int]:
        """Sorts reduction iterators: the one that is nearest in an operand innermost."""
        reads = accesses(self.task, block)[0]
        return lambda i: -min((abs(s) for r in reads if (s := r.strides[i.name])), default=0)

    def tiles(self) -> tuple[int, RegisterTile, RegisterTile]:
        """Query rows of one tile and the register tiles of both contractions, with the fewest estimated cycles."""
        if self.units:
            return self.tiles_of_units()
        choices = []
        for tile in range(min(8, self.queries), min(self.queries, MAX_TILE) + 1):
            if tile > 8 and not self.fits(tile):
                break
            kernels = [self.register_tile(b, tile) for b in (self.roles.scores, self.roles.values) if b is not None]
            cycles = sum(c for c, _ in kernels) + self.traffic(tile)
            choices.append((cycles, -tile, kernels))
        _, tile, kernels = min(choices, key=lambda f: f[:2])
        return -tile, kernels[0][1], kernels[-1][1]

    def tiles_of_units(self) -> tuple[int, RegisterTile, RegisterTile]:
        """The same where intrinsics multiply: as many whole applications of rows as fit, in tiles that are alike."""
        whole = max(u.row for u in self.units.values())
        most = next((n for n in range(MAX_TILE // whole * whole, whole, -whole) if self.fits(n)), whole)
        tiles = -(-self.queries // most)
        tile = -(-self.queries // (tiles * whole)) * whole
        kernels = [RegisterTile(*u.register_tile(tile, self.target)) for u in self.units.values()]
        return tile, kernels[0], kernels[-1]

    def fits(self, tile: int) -> bool:
        """Whether scores and weights of a tile lie in half of the second-level cache."""
        return 2 * tile * self.keys * DTYPES[self.dtype].itemsize <= self.target.second.bytes // 2

    def register_tile(self, block: Block, tile: int) -> tuple[float, RegisterTile]:
        """(cycles for all query rows, register tile) of a contraction in tiles of `tile` rows."""
        most = -(-block.ranges[self.vector(block)] // self.lanes)
        choices = []
        for vectors in range(1, min(MAX_VECTORS, most) + 1):
            for rows in range(1, min(tile, self.target.vector.registers) + 1):
                if self.holds(block, rows, vectors):
                    kernel = RegisterTile(rows, vectors)
                    choices.append((self.kernel_cycles(block, tile, kernel), vectors, kernel))
        cycles, _, best = min(choices, key=lambda f: (f[0], -f[1]))
        return cycles, best

    def kernel_cycles(self, block: Block, tile: int, kernel: RegisterTile) -> float:
        """Cycles of a contraction for all query rows of a head, in tiles of `tile` rows; each is worked out once."""
        key = (block.name, tile, kernel.rows, kernel.vectors)
        if key not in self._cycles:
            self._cycles[key] = self._kernel_cycles(block, tile, kernel)
        return self._cycles[key]

    @cached_property
    def _cycles(self) -> dict[tuple[str, int, int, int], float]:
        return {}

    def _kernel_cycles(self, block: Block, tile: int, kernel: RegisterTile) -> float:
        unit = self.units.get(block.name)
        if unit is not None:
            return -(-self.queries // tile) * unit.cycles(
                kernel.rows // unit.row, kernel.vectors, tile, self.target.cost
            )
        most = -(-block.ranges[self.vector(block)] // self.lanes)
        steps = prod(i.extent for i in block.reduction)
        panels = [(most // kernel.vectors, kernel.vectors), (1, most % kernel.vectors)]
        cycles = 0.0
        for times, height in ((self.queries // tile, tile), (1, self.queries % tile)):
            for count, width in panels:
                for n, r in ((height // kernel.rows, kernel.rows), (1, height % kernel.rows)):
                    if times * count * n * r * width:
                        cycles += times * count * n * self.tile_cycles(r, width, steps)
        return cycles

    def tile_cycles(self, rows: int, vectors: int, steps: int) -> float:
        """Cycles of one register tile over `steps` reduction steps: both operands are in near caches."""
        cost, target = self.target.cost, self.target
        accumulators = float(rows * vectors)
        instructions = steps * (accumulators + rows + vectors)
        chain = chain_cycles(cost, target.fma_latency, steps * accumulators)
        step = step_cycles(cost, accumulators / target.fma_ports, 0.0, float(rows + vectors), chain)
        control = cost.tile_cycles * exposed(cost, instructions)
        return steps * step + control + epilogue_cycles(cost, accumulators, 0.0)

    def traffic(self, tile: int, by_rows: bool = False) -> float:
        """Cycles that farther caches add: a head's operands come for every tile again from the nearest that holds them,
        half of that beside the arithmetic, unless far keys are read `by_rows`, from many pages; scores and weights that
        are too large for the first one are written and read in the nearest that holds them."""
        size = DTYPES[self.dtype].itemsize
        depths = [b.ranges[self.vector(b)] * prod(i.extent for i in b.reduction) for b in self.contractions()]
        multiplied = max((DTYPES[u.packed[0].dtype].itemsize for u in self.units.values()), default=size)
        operands, rows = self.parts * sum(depths) * multiplied, 2 * self.keys * size
        cycles = (1.0 if by_rows else 0.5) * -(-self.queries // tile) * self.moved(operands, operands)
        if tile * rows > self.target.caches[0].bytes:
            cycles += self.moved(2 * self.parts * self.queries * rows, tile * rows)
        return cycles

    def moved(self, size: int, held: int) -> float:
        """Cycles in which `size` bytes come from the nearest cache beyond the first that holds `held`."""
        seconds = size / held * moving_seconds(held, self.target.caches[1:], self.target)
        return seconds * self.target.hertz

    def work(self, points: Points, cores: int) -> Work:
        return one_by_one(self, points, lambda values: self.work_at(values, cores))

    def work_at(self, values: Values, cores: int) -> Work:
        """Both contractions at their register tiles' rates with what comes from the second-level cache meanwhile, the
        maps and copies around them, and what passes the boundary; for the core that has most of the parallel loop."""
        tile, parallel = values["queries"], values["parallel"]
        by_rows = self.far_keys is not None and values["keys"] == "rows" and self.keeps_keys(tile)
        cycles = self.traffic(tile, by_rows)
        for prefix, block in self.named().items():
            kernel = RegisterTile(values[f"{prefix}.rows"], values[f"{prefix}.vectors"])
            cycles += self.parts * self.kernel_cycles(block, tile, kernel)
        heads = prod(self.trips(loop, tile) for loop in self.lead_loops()[:-1])
        spans = [self.span(loop, tile) for loop in self.lead(parallel)]
        share = float(busiest_share(spans, cores, self.target)) if self.long else 1.0
        candidate, task = self.as_ruled
        compute = np.array([(heads * cycles + self.around) * share])
        start = self.start_values()
        more = self.phases(parallel, tile) - self.phases(start["parallel"], start["queries"])
        return work_around(task, candidate, compute, self.target, float(more), float(self.long and cores > 1))

    def away(self, points: Points) -> Floats:
        group = np.array([self.group(int(n)) for n in self.column(points, "queries")])
        return np.asarray(np.abs(np.log2(self.column(points, "group") / group)), np.float64)

    @cached_property
    def as_ruled(self) -> tuple[Candidate, Task]:
        """The Candidate of start(), and the Task with its layouts."""
        candidate = self.candidate_of(self.start_values())
        return candidate, laid_out(self.task, candidate)

    @cached_property
    def around(self) -> float:
        """Cycles of all Blocks but the contractions and what stores their accumulators, as start() has them: knobs move
        them about, and leave their work as it is."""
        (candidate, task), total = self.as_ruled, 0.0
        packs = [b.name for b in self.roles.packs]  # rectangles, transposed in registers
        for block in (b for b in task.blocks if isinstance(b, Block)):
            tags = candidate.blocks[block.name].tags.values()
            if block.name in packs:
                total += self.target.cost.transpose_cycles * block.points() / self.lanes
            elif block not in self.contractions() and not any(t.startswith(INTRINSIC) for t in tags):
                total += block_cycles(task, block, candidate, self.target, 1)
        return total


def _followed(block: Block, copy: Block) -> dict[str, str]:
    """The iterators of `copy` by the iterators of `block`, whose result it copies."""
    return {str(i): str(copy.reads[0].indices[d]) for d, i in enumerate(block.writes[0].indices)}
