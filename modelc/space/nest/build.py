"""Task + Candidate -> Nest: loops from tiles and order, Blocks at their places, storage from what is read there.

Every Block runs either as a phase of its own (`at` root) or inside a loop of another Block. What a placed producer has
to compute, and how large its storage is, follows from the boxes that its consumers read there (boxes.py). Tiles that do
not divide split into interior and boundary (Stripe, section 2.3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import prod

from modelc.errors import InvalidIR
from modelc.ir.affine import simplify
from modelc.ir.block import AGGREGATIONS, Block, OpaqueBlock, Task
from modelc.ir.candidate import Candidate
from modelc.ir.expr import Const, Expr, Load, Op, Var, op, sizes, substitute, variables
from modelc.ir.layout import Layout
from modelc.ir.loop import ROOT, Inside, Loop
from modelc.ir.nest import INTRINSIC, Alloc, Branch, Call, For, Leaf, Nest, Prefetch, Region, Stmt, parallel_inside
from modelc.ir.sizes import DependsOnSize, is_sized, larger, most, smaller
from modelc.space.analysis.boxes import Domain, Span, box, placed_domains, whole
from modelc.space.analysis.conditions import (
    Trips,
    clipped,
    clipped_in_run,
    decided,
    existing,
    inside,
    less_than,
    segments,
    settled,
    simplified,
)
from modelc.space.nest.parts import Part, rests
from modelc.space.nest.prefetch import Prefetches
from modelc.space.nest.storage import Physical, Storage, allocated, stored_shape
from modelc.space.rules.derivation import derive

SOON = 2  # iterations of a loop, as long as a run says, in which the next panel is fetched
MOST_PARTS = 4  # that a loop is cut into, where a Block's value is selected by its iterator


@dataclass(frozen=True)
class Site:
    """Where building is: in front of loop order[k] of `block`, with `domain` of its iteration space before it."""

    block: Block
    domain: Domain
    storage: Mapping[str, Storage]  # of the buffers that are there
    where: tuple[Expr, ...]  # the conditions that no loop has decided
    ranges: Mapping[str, int] = field(default_factory=dict)  # variables of the loops around, and their extents at most
    trips: Trips = field(default_factory=dict)  # of those of them that are as long as a run says
    part: str = "assign"  # until the first reduction loop; then "init" or "update"
    k: int = 0
    threads: bool = False  # whether all that is around are parallel loops, with nothing beside the site
    within: tuple[Expr, ...] = ()  # what keeps a placed reduction to its own iteration space, as far as undecided


def build_nest(task: Task, candidate: Candidate, line: int = 64) -> Nest:
    """The loop tree of `task` scheduled by `candidate`, whose prefetches go by cache lines of `line` bytes. Raises
    InvalidIR if the candidate does not fit the task."""
    return nest_of(derive(task, candidate.stages), candidate, line)


def nest_of(task: Task, candidate: Candidate, line: int = 64) -> Nest:
    """The loop tree of a Task that the stages of `candidate` have made. Its extents may depend on Sizes: then so do the
    Nest's, and what is left of a tile goes in smaller ones."""
    return _Builder(task, candidate, line).nest()


class _Builder:
    def __init__(self, task: Task, candidate: Candidate, line: int):
        self.task, self.candidate = task, candidate
        self.schedules = candidate.blocks
        self.positions = {b.name: k for k, b in enumerate(task.blocks)}
        self.writer = {w.buffer: b for b in task.blocks if isinstance(b, Block) for w in b.writes}
        self.prefetches = {
            b.name: Prefetches(task, b, s, line)
            for b in task.blocks
            if isinstance(b, Block) and (s := self.schedules.get(b.name)) is not None and s.prefetch
        }
        self.padded = {name: {n: s.tiles[n][-1] for n in s.padded} for name, s in self.schedules.items() if s.padded}
        self.attached: dict[Inside, list[Block]] = {}
        for block in task.blocks:
            at = self.schedules[block.name].at
            if at is not ROOT and isinstance(block, Block):
                self.attached.setdefault(at, []).append(block)

    def nest(self) -> Nest:
        storage: dict[str, Storage] = {}
        params: list[Region] = []
        temporaries: list[Region] = []
        for buffer in self.task.buffers:
            boundary = buffer.name in self.task.inputs or buffer.name in self.task.outputs
            layout = self.layout(buffer.name)
            region = Region(buffer.name, buffer.dtype, stored_shape(buffer.name, layout, buffer.shape), buffer.strides)
            if not boundary and self.scope(buffer.name) != "arena":
                continue
            (params if boundary else temporaries).append(region)
            storage[buffer.name] = Storage(region, (Const(0),) * len(buffer.shape), buffer.shape, layout)
        phases: list[tuple[Stmt, ...]] = []
        for block in self.task.blocks:
            if isinstance(block, OpaqueBlock):
                phases.append((Call(block.name, block.meaning, block.inputs, block.outputs, block.attrs),))
            elif self.schedules[block.name].at is ROOT:
                phases.append(tuple(self.descend(Site(block, whole(block), storage, block.where, threads=True))))
        return Nest(self.task.name, tuple(params), self.task.outputs, tuple(phases), tuple(temporaries))

    def layout(self, buffer: str) -> Layout:
        return self.candidate.layouts.get(buffer, self.task.buffer(buffer).layout)

    def scope(self, buffer: str) -> str:
        block = self.writer.get(buffer)
        return "arena" if block is None else self.schedules[block.name].scope

    # --- one block's loops ----------------------------------------------------------------------------------------

    def descend(self, site: Site) -> list[Stmt]:
        """The site's loop, with everything in it."""
        block, part = site.block, site.part
        if any(not most(site.domain[i.name].extent) for i in block.spatial):
            return []
        if within := [c for c in site.within if self.is_settled(c, site)]:
            return self.guarded(site, within)
        schedule = self.schedules[block.name]
        if site.k == len(schedule.order):
            return self.leaf(replace(site, where=(*site.where, *site.within)))
        if site.k == 0 and site.part == "assign":
            self.whole_results(site)
        loop = schedule.order[site.k]
        name = loop.iterator
        if part == "init" and is_reduction(block, name):
            return self.descend(replace(site, k=site.k + 1))
        unit = bool(block.reduction) and schedule.tags.get(loop, "").startswith(INTRINSIC)
        if part == "assign" and (unit or is_reduction(block, name)):  # an application is one part alone
            init = self.descend(replace(site, part="init", where=(), within=()))
            return init + self.descend(replace(site, part="update"))
        if self.chooses(site):
            return self.chosen(site)
        return self.loop(site)

    def placed(self, site: Site) -> Site:
        """The site of a Block in front of what reads it: what lies outside its iteration space is not computed. A
        reduction is left out whole there, where a loop says so, and not step by step."""
        within = tuple(inside(site.block, site.domain, site.ranges, site.trips))
        if site.block.reduction:
            return replace(site, within=within)
        return replace(site, where=(*site.where, *within))

    def is_settled(self, condition: Expr, site: Site) -> bool:
        """Whether the loops around the site say of every iterator of `condition` which value it has."""
        return all(is_one(site.domain[n].extent) for n in variables(condition) & site.domain.keys())

    def guarded(self, site: Site, within: Sequence[Expr]) -> list[Stmt]:
        """The site where the conditions `within` hold, which are settled there."""
        further = replace(site, within=tuple(c for c in site.within if c not in within))
        asked = list[Expr]()
        for condition in within:
            bases = {n: site.domain[n].base for n in variables(condition) & site.domain.keys()}
            condition = simplified(substitute(condition, bases), site.ranges)
            decision = decided(condition, site.ranges, site.trips)
            if decision is False:
                return []
            asked += [condition] if decision is None else []
        body = self.descend(further)
        for condition in asked:
            body = [Branch(condition, tuple(body), ())]
        return body

    def chooses(self, site: Site) -> bool:
        """Whether a Block is one thing here and another there, as padding is, and from here on alone in its loops."""
        (value, *more) = site.block.body
        alone = not site.block.reduction and not more and len(self.subtree(site.block, site.k)) == 1
        return alone and isinstance(value, Op) and value.name == "select" and less_than(value.args[0]) is not None

    def chosen(self, site: Site) -> list[Stmt]:
        """The site's loop, where the Block's value is a selection by iterators: in parts in each of which it is the
        same, so that vectors need not ask."""
        schedule, (value,) = self.schedules[site.block.name], site.block.body
        assert isinstance(value, Op)
        names = variables(value.args[0]) & site.domain.keys()
        if all(is_one(site.domain[n].extent) for n in names):
            bases = {n: site.domain[n].base for n in names}
            condition = simplified(substitute(value.args[0], bases), site.ranges)
            decision = decided(condition, site.ranges, site.trips)
            threads = site.threads and decision is not None
            then, otherwise = (
                self.descend(replace(site, block=replace(site.block, body=(v,)), threads=threads))
                for v in value.args[1:]
            )
            if decision is not None:
                return then if decision else otherwise
            return [Branch(condition, tuple(then), tuple(otherwise))]
        name, level = schedule.order[site.k]
        span, tags = site.domain[name], [schedule.tags.get(x) for x in schedule.order if x.iterator == name]
        fixed = isinstance(span.base, Const) and not is_sized(span.extent) and not sizes(value)
        if level > 0 or tags == [None] or "parallel" in tags or not fixed:
            return self.loop(site)
        parts = segments(name, span, value, "unroll" in tags)
        if len(parts) > MOST_PARTS:
            return self.loop(site)
        result = []
        for low, high in parts:
            at = op("add", Var(name), low) if high > low + 1 else Const(low)
            settled_value = settled(value, {name: high - low}, {name: at})
            settled_value = substitute(settled_value, {name: at}) if high == low + 1 else settled_value
            domain = {**site.domain, name: Span(Const(low), high - low)}
            block, threads = replace(site.block, body=(settled_value,)), site.threads and len(parts) == 1
            result += self.loop(replace(site, block=block, domain=domain, threads=threads))
        return result

    def loop(self, site: Site) -> list[Stmt]:
        """Iterations of whole tiles, those that a condition cuts, and what is left of a tile."""
        schedule = self.schedules[site.block.name]
        loop = schedule.order[site.k]
        name, level = loop
        tag = schedule.tags.get(loop, "for")
        tiles = schedule.tiles.get(name, ())
        tile = tiles[level] if level < len(tiles) else 1
        span = site.domain[name]
        if tag == "parallel" and site.ranges and (not site.threads or is_sized(span.extent)):
            tag = "for"  # each iteration of the loop around is a thread's, whole
        if is_sized(span.extent):
            return self.loop_in_run(site, span, tile, tag)
        full, left = divmod(span.extent, tile)
        applied = tag.startswith(INTRINSIC)
        if name in schedule.padded:
            if applied or tag == "vector":
                full, left = tiles[-1] if tiles else 1, 0
            elif level == len(tiles) - 1 and left:
                full, left = full + 1, 0
        var = _unused(loop, site.ranges)

        def body(
            index: Expr, count: int, extent: int, reserved: bool = False, threads: bool = False
        ) -> tuple[Stmt, ...]:
            ranges = {**site.ranges, var: count} if count > 1 or reserved else site.ranges
            base = simplify(op("add", span.base, op("mul", index, tile)), ranges)
            inner = replace(site, domain={**site.domain, name: Span(base, extent)}, ranges=ranges, threads=threads)
            hints = self.hints(inner, index, tile) if site.part != "init" else []
            return (*hints, *self.place(inner))

        if tag == "parallel" and left and full:
            for threads in (site.threads, False):
                then = body(Var(var), full, tile, True, threads)
                otherwise = body(Const(full), full + 1, left, False, threads)
                branch = _branch(op("lt", Var(var), full), then, otherwise)
                if branch is not None:
                    return [For(var, full + 1, (branch,), tag)]
        every = site.part == "init" or (site.part == "assign" and bool(site.block.reduction))  # gets its identity
        uncut = every or tag == "parallel"
        full, limit = (full, full) if uncut else clipped(name, full, tile, site.domain, (*site.where, *site.within))
        threads = site.threads and full == limit and not left
        result: list[Stmt] = []
        if full == 1 and not applied:
            result += body(Const(0), 1, min(tile, span.extent) if name not in schedule.padded else tile, False, threads)
        elif full:
            threads &= tag == "parallel"
            result.append(For(var, full, body(Var(var), full, tile, applied, threads), tag))
        for start in range(full, limit):  # iterations in which a condition has to be looked at
            result += body(Const(start), 1, tile)
        if left:
            result += body(Const(span.extent // tile), 1, left)
        return result

    def loop_in_run(self, site: Site, span: Span, tile: int, tag: str) -> list[Stmt]:
        """The site's loop where a run says how far it goes: whole tiles, then what is left."""
        schedule, (name, level) = self.schedules[site.block.name], self.schedules[site.block.name].order[site.k]
        inner = [schedule.tags.get(x, "for") for x in schedule.order[site.k + 1 :] if x.iterator == name]
        if any(x.startswith(INTRINSIC) for x in (tag, *inner)) or name in schedule.padded:
            raise DependsOnSize(f"iterator {name!r} of block {site.block.name}, has whole units: depends on sizes")
        once = sum(further == tile for further in schedule.tiles.get(name, ())[level + 1 :])  # loops of one iteration
        full, parts = rests(*divmod(span.extent, tile), tile, inner[once:])
        var = _unused(Loop(name, level), site.ranges)
        if tag == "parallel":
            count = (span.extent + tile - 1) // tile
            return [self.parallel_in_run(site, count, [Part((full,), 0, tile, tile, True), *parts])]
        every = site.part == "init" or (site.part == "assign" and bool(site.block.reduction))
        conditions = () if every else (*site.where, *site.within)
        certain = clipped_in_run(name, full, tile, site.domain, conditions, site.ranges, site.trips)
        interior_parts = [Part(tuple(certain), 0, tile, tile, True)]
        if len(certain) > 1:  # then iterations in which a condition has to be looked at
            uncut = larger(0, reduce(smaller, certain))
            interior_parts.append(Part((full - uncut,), uncut * tile, tile, tile, True))
        return [s for part in (*interior_parts, *parts) for s in self.part_in_run(site, var, part)]

    def parallel_in_run(self, site: Site, count: int, parts: Sequence[Part]) -> For:
        """The site's loop of `count` iterations side by side: each is one of a part of whole tiles, and the last one is
        all that is left."""
        loop = self.schedules[site.block.name].order[site.k]
        var, end = _unused(loop, site.ranges), 0
        tiles = list[tuple[int, tuple[Stmt, ...]]]()
        for part in (part for part in parts if part.whole):
            first, end = end, end + part.counts[0]
            follows = part._replace(counts=(end,), start=part.start - first * part.step)
            tiles += ((end, tile.body) for tile in self.part_in_run(site, var, follows))
        left = [part for part in parts if not part.whole]
        within = replace(site, ranges={**site.ranges, var: most(count)})
        inside = _unused(loop, within.ranges)
        body = tuple[Stmt, ...](s for part in left for s in self.part_in_run(within, inside, part))
        for end, tile in reversed(tiles):
            body = (Branch(op("lt", Var(var), end), tile, body),) if body else tile
        return For(var, count, body, "parallel")

    def part_in_run(self, site: Site, var: str, part: Part) -> list[For]:
        """The iterations of a part of the site's loop."""
        name = self.schedules[site.block.name].order[site.k].iterator
        count = reduce(smaller, part.counts)
        if most(count) <= 0:
            return []
        at_most = most(count)
        if is_sized(count) and at_most == 1 and not is_sized(part.start):
            at_most = 2  # a variable that is always 0 would be gone, and with it that the tile lies within the extent
        ranges, trips = {**site.ranges, var: at_most}, {**site.trips, var: part.counts}
        start = op("add", site.domain[name].base, part.start)
        base = simplify(op("add", start, op("mul", Var(var), part.step)), ranges)
        span = Span(base, part.extent)
        inner = replace(site, domain={**site.domain, name: span}, ranges=ranges, trips=trips, threads=False)
        soon, tile = (min(SOON, most(count)), part.step) if part.whole else (1, most(part.extent))
        index = simplify(op("floordiv", op("add", part.start, op("mul", Var(var), part.step)), tile), ranges)
        hints = self.hints(inner, index if soon > 1 else Const(0), tile, soon) if site.part != "init" else []
        return [For(var, count, (*hints, *self.place(inner)))]

    def hints(self, site: Site, index: Expr, tile: int, within: int | None = None) -> list[Stmt]:
        """What iteration `index` of the site's loop prefetches, the site being inside it, and `within` how many of a
        loop that is as long as a run says; see prefetch.py."""
        prefetches = self.prefetches.get(site.block.name)
        if prefetches is None:
            return []
        loop = prefetches.order[site.k]
        prefetches.enter(loop, index, {n: s.extent for n, s in site.domain.items()}, within)
        name = loop.iterator
        here = {n: s.base for n, s in site.domain.items()}
        later = {**here, name: op("add", here[name], tile)}
        ranges: dict[str, int] = {}  # the next iteration may be one past the last: nothing is known of indices
        for read in prefetches.begins(loop, prefetches.packed):
            now, then = (Physical(self.task.name, v, site.storage, ranges)(read) for v in (here, later))
            assert isinstance(now, Load) and isinstance(then, Load)
            part = {**{n: s.extent for n, s in site.domain.items()}, name: tile}  # after a short one comes a whole one
            elements = prod(extent for n, extent in part.items() if n in variables(read))
            prefetches.panel(now, then, site.storage[read.buffer].region, elements)
        for access in prefetches.begins(loop, prefetches.computed):
            self.box(access, {n: Span(later[n], s.extent) for n, s in site.domain.items()}, site, prefetches)
        for write in prefetches.begins(loop, prefetches.written):
            self.box(write.access, {**site.domain, **write.domain}, site, prefetches)
        result: list[Stmt] = []
        if site.k == prefetches.tile:
            var = _unused(Loop("row", 0), site.ranges)
            for count, accesses, stored in prefetches.rows(var):
                row = tuple(Prefetch(access, stored) for access in accesses)
                result += row if count == 1 else [For(var, count, row)]
        if site.k == prefetches.step:
            result += map(Prefetch, prefetches.lines(prefetches.panels))
            result += (Prefetch(access, write=True) for access in prefetches.lines(prefetches.results))
        return result

    def whole_results(self, site: Site) -> None:
        """What the whole of the site's Block leads to where it is placed, for its loops to prefetch."""
        prefetches = self.prefetches.get(site.block.name)
        if prefetches is not None:
            prefetches.enter(ROOT, Const(0), {n: s.extent for n, s in site.domain.items()})
            for write in prefetches.begins(ROOT, prefetches.written):
                self.box(write.access, {**site.domain, **write.domain}, site, prefetches)

    def box(self, access: Load, domain: Domain, site: Site, prefetches: Prefetches) -> None:
        """Tells `prefetches` of the box that `access` touches over `domain`."""
        place = site.storage[access.buffer]
        spans = box(access, place.shape, domain, {})
        start = Physical(self.task.name, {}, site.storage, {})(Load(access.buffer, tuple(s.base for s in spans)))
        order = place.layout.permutation
        if order is None and place.layout.primitives:
            raise InvalidIR(f"{access.buffer} is not stored row by row: its boxes cannot be prefetched")
        assert isinstance(start, Load)
        prefetches.box(start, [spans[d].extent for d in order] if order else [s.extent for s in spans])

    def place(self, site: Site) -> list[Stmt]:
        """The inside of the site's loop: storage, producers, the rest of the block, consumers."""
        block, ranges, further = site.block, site.ranges, replace(site, k=site.k + 1)
        loop = self.schedules[block.name].order[site.k]
        here = self.attached.get(Inside(block.name, loop), []) if site.part != "init" else []
        if not here:
            return self.descend(further)
        before = [b for b in here if self.positions[b.name] < self.positions[block.name]]
        after = [b for b in here if self.positions[b.name] > self.positions[block.name]]
        groups = {b.name: root.name for root in here for b in self.subtree(root)}
        groups |= {b.name: block.name for b in self.subtree(block, further.k)}
        domains, boxes = placed_domains(self.task, block, site.domain, groups, ranges, self.padded)
        storage, allocs = dict(site.storage), []
        for name in sorted(groups, key=self.positions.__getitem__):
            for buffer in self.shared_here(name, groups):
                if buffer not in storage and self.scope(buffer) != "arena":
                    read, writer = self.task.buffer(buffer), self.writer[buffer]
                    schedule = self.schedules[name]
                    storage[buffer] = allocated(read, self.layout(buffer), writer, boxes[buffer], schedule)
                    allocs.append(Alloc(storage[buffer].region, self.scope(buffer)))
        stmts: list[Stmt] = [*allocs]
        for b in before:
            stmts += self.descend(self.placed(Site(b, domains[b.name], storage, b.where, ranges, site.trips)))
        stmts += self.descend(replace(further, storage=storage, threads=False))
        for b in after:
            stmts += self.descend(Site(b, domains[b.name], storage, b.where, ranges, site.trips))
        return stmts

    def subtree(self, block: Block, k: int = 0) -> list[Block]:
        """`block` and every Block placed in its loops order[k:], or in theirs."""
        loops = self.schedules[block.name].order[k:]
        placed = [b for loop in loops for b in self.attached.get(Inside(block.name, loop), [])]
        return [block, *(b for inner in placed for b in self.subtree(inner))]

    def shared_here(self, name: str, groups: Mapping[str, str]) -> list[str]:
        """What Block `name` writes and a Block of another group reads: its storage has to outlive the group."""
        block = self.task.block(name)
        assert isinstance(block, Block)
        written = list(dict.fromkeys(w.buffer for w in block.writes))
        readers = {
            buffer: [b.name for b in self.task.blocks if isinstance(b, Block) and buffer in b.buffers_read]
            for buffer in written
        }
        together = [name for names in readers.values() for name in names]  # what nobody reads lies beside what is read
        return [
            buffer
            for buffer in written
            if any(groups.get(reader, groups[name]) != groups[name] for reader in readers[buffer] or together)
        ]

    def leaf(self, site: Site) -> list[Stmt]:
        block, ranges, initial = site.block, site.ranges, site.part == "init"
        for name, span in site.domain.items():
            if most(span.extent) > 1 and not (initial and is_reduction(block, name)):
                raise InvalidIR(f"block {block.name}: no loop covers iterator {name!r} (extent {span.extent} left)")
        if block.reduction and site.part == "assign":  # a reduction of one point
            return [*self.leaf(replace(site, part="init", where=())), *self.leaf(replace(site, part="update"))]
        bound = [i for i in block.iters if not (initial and i.reduce)]
        if any(most(site.domain[i.name].extent) == 0 for i in bound):
            return []
        values = {name: span.base for name, span in site.domain.items()}
        physical = Physical(self.task.name, values, site.storage, ranges)
        writes = tuple(physical(w) for w in block.writes)
        conditions = []
        for condition in site.where:
            decision = decided(simplified(substitute(condition, values), ranges), ranges, site.trips)
            if decision is False:
                return []
            if decision is None:
                conditions.append(physical(condition))
        if initial:  # what the body reads need not be there yet
            buffers = [self.task.buffer(w.buffer) for w in block.writes]
            body: tuple[Expr, ...] = AGGREGATIONS[block.aggregation].identity(tuple(b.dtype for b in buffers))
            there = [
                existing(w, b.shape, values, ranges, site.trips) for w, b in zip(block.writes, buffers, strict=True)
            ]
            conditions = [physical(c) for checks in there for c in checks]
        else:
            body = tuple(physical(b) for b in block.body)
        assert all(isinstance(w, Load) for w in writes)
        binding = tuple((i.name, values[i.name]) for i in bound)
        return [Leaf(block.name, site.part, writes, body, block.aggregation, tuple(conditions), binding)]  # type: ignore[arg-type]


def _branch(condition: Expr, then: tuple[Stmt, ...], otherwise: tuple[Stmt, ...]) -> Stmt | None:
    """A branch; where both sides are the same parallel loops, these around it. None where they are other ones, or do
    more than that."""
    loops = parallel_inside(then), parallel_inside(otherwise)
    if loops == (None, None):
        return Branch(condition, then, otherwise)
    loop, another = loops
    if loop is None or another is None or len(then) + len(otherwise) > 2 or replace(loop, body=another.body) != another:
        return None
    inside = _branch(condition, loop.body, another.body)
    return None if inside is None else replace(loop, body=(inside,))


def is_reduction(block: Block, name: str) -> bool:
    return any(i.name == name and i.reduce for i in block.iters)


def is_one(extent: int) -> bool:
    """Whether an extent is 1 in every run."""
    return not is_sized(extent) and extent == 1


def _unused(loop: Loop, ranges: Mapping[str, int]) -> str:
    """The variable of a loop: its text, made longer where a loop around it has that."""
    while (var := str(loop)) in ranges:
        loop = Loop(f"{loop.iterator}_", loop.level)
    return var
