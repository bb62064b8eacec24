"""Task + Candidate -> Nest: loops from tiles and order, Blocks at their places, storage from what is read there.

Every Block runs either as a phase of its own (`at` root) or inside a loop of another Block. What a placed producer has
to compute, and how large its storage is, follows from the boxes that its consumers read there (closed forms on the
affine accesses). Tiles that do not divide split into interior and boundary (Stripe, section 2.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from modelc.errors import InvalidIR
from modelc.ir.affine import Linear, bounds, linear, simplify
from modelc.ir.block import AGGREGATIONS, Block, Buffer, OpaqueBlock, Task
from modelc.ir.candidate import BlockSchedule, Candidate
from modelc.ir.expr import Const, Expr, Load, Op, Var, loads, op, substitute, variables
from modelc.ir.layout import Layout
from modelc.ir.nest import INTRINSIC, Alloc, Branch, Call, Leaf, Loop, Nest, Prefetch, Region, Stmt
from modelc.space.ahead import Ahead, loop_parts
from modelc.space.stages import derive


@dataclass(frozen=True)
class Span:
    """Indices [base, base + extent): the base is an expression over loop variables."""

    base: Expr
    extent: int


Box = tuple[Span, ...]
Domain = Mapping[str, Span]


@dataclass(frozen=True)
class Storage:
    """Where a buffer's elements are: a Region that holds the box starting at `base`, stored by `layout`."""

    region: Region
    base: tuple[Expr, ...]
    shape: tuple[int, ...]
    layout: Layout


def build_nest(task: Task, candidate: Candidate) -> Nest:
    """The loop tree of `task` scheduled by `candidate`. Raises InvalidIR if the candidate does not fit the task."""
    return _Builder(derive(task, candidate.stages), candidate).nest()


class _Builder:
    def __init__(self, task: Task, candidate: Candidate):
        self.task, self.candidate = task, candidate
        self.schedules = candidate.blocks
        self.positions = {b.name: k for k, b in enumerate(task.blocks)}
        self.writer = {w.buffer: b for b in task.blocks if isinstance(b, Block) for w in b.writes}
        self.ahead = {
            b.name: Ahead(task, b, s)
            for b in task.blocks
            if isinstance(b, Block) and (s := self.schedules.get(b.name)) is not None and s.prefetch
        }
        self.attached: dict[str, list[Block]] = {}
        for block in task.blocks:
            at = self.schedule(block.name).at
            if at != "root" and isinstance(block, Block):
                self.attached.setdefault(at, []).append(block)

    def schedule(self, name: str) -> BlockSchedule:
        if name not in self.schedules:
            raise InvalidIR(f"the candidate has no entry for block {name!r} of task {self.task.name}")
        return self.schedules[name]

    def nest(self) -> Nest:
        storage: dict[str, Storage] = {}
        params: list[Region] = []
        temporaries: list[Region] = []
        for buffer in self.task.buffers:
            boundary = buffer.name in self.task.inputs or buffer.name in self.task.outputs
            layout = self.candidate.layouts.get(buffer.name, buffer.layout)
            region = Region(buffer.name, buffer.dtype, layout.shape(buffer.shape), buffer.strides)
            if not boundary and self.scope(buffer.name) != "arena":
                continue
            (params if boundary else temporaries).append(region)
            storage[buffer.name] = Storage(region, (Const(0),) * len(buffer.shape), buffer.shape, layout)
        phases: list[tuple[Stmt, ...]] = []
        for block in self.task.blocks:
            if isinstance(block, OpaqueBlock):
                phases.append((Call(block.name, block.meaning, block.inputs, block.outputs, block.attrs),))
            elif self.schedule(block.name).at == "root":
                domain = {i.name: Span(Const(0), i.extent) for i in block.iters}
                phases.append(tuple(self.descend(block, 0, domain, {}, storage, block.where, "assign")))
        return Nest(self.task.name, tuple(params), self.task.outputs, tuple(phases), tuple(temporaries))

    def scope(self, buffer: str) -> str:
        block = self.writer.get(buffer)
        return "arena" if block is None else self.schedule(block.name).scope

    # --- one block's loops ----------------------------------------------------------------------------------------

    def descend(
        self,
        block: Block,
        k: int,
        domain: Domain,
        ranges: Mapping[str, int],
        storage: Mapping[str, Storage],
        where: tuple[Expr, ...],
        part: str,
    ) -> list[Stmt]:
        """The loops order[k:] of `block` over `domain`. `part` is "assign" until the first reduction loop."""
        if not all(domain[i.name].extent for i in block.spatial):
            return []
        schedule = self.schedule(block.name)
        if k == len(schedule.order):
            return self.leaf(block, domain, ranges, storage, where, part)
        name, level = loop_parts(schedule.order[k])
        if name not in domain:
            raise InvalidIR(f"block {block.name} has no iterator {name!r} for its loop {schedule.order[k]!r}")
        if part == "init" and self.is_reduction(block, name):
            return self.descend(block, k + 1, domain, ranges, storage, where, part)
        unit = bool(block.reduction) and schedule.tags.get(schedule.order[k], "").startswith(INTRINSIC)
        if part == "assign" and (unit or self.is_reduction(block, name)):  # an application is one part alone
            init = self.descend(block, k, domain, ranges, storage, (), "init")
            return init + self.descend(block, k, domain, ranges, storage, where, "update")
        return self.loop(block, k, name, level, domain, ranges, storage, where, part)

    def is_reduction(self, block: Block, name: str) -> bool:
        return any(i.name == name and i.reduce for i in block.iters)

    def loop(
        self,
        block: Block,
        k: int,
        name: str,
        level: int,
        domain: Domain,
        ranges: Mapping[str, int],
        storage: Mapping[str, Storage],
        where: tuple[Expr, ...],
        part: str,
    ) -> list[Stmt]:
        schedule = self.schedule(block.name)
        tag = schedule.tags.get(schedule.order[k], "for")
        tiles = schedule.tiles.get(name, ())
        tile = tiles[level] if level < len(tiles) else 1
        span = domain[name]
        full, rest = divmod(span.extent, tile)
        vectors = tiles[-1] if tiles else 1
        whole_units = tag == "vector" or tag.startswith(INTRINSIC)
        if name in schedule.padded:
            if whole_units:
                full, rest = vectors, 0
            elif level == len(tiles) - 1 and rest:
                full, rest = full + 1, 0
        var = _unused(schedule.order[k], ranges)

        def body(index: Expr, count: int, extent: int, reserved: bool = False) -> tuple[Stmt, ...]:
            inner = {**ranges, var: count} if count > 1 or reserved else dict(ranges)
            base = simplify(op("add", span.base, op("mul", index, tile)), inner)
            narrowed = {**domain, name: Span(base, extent)}
            hints = self.hints(block, k, index, tile, narrowed, storage) if part != "init" else []
            return (*hints, *self.place(block, k, narrowed, inner, storage, where, part))

        if tag == "parallel" and rest and full:
            then = body(Var(var), full, tile, reserved=True)
            otherwise = body(Const(full), full + 1, rest)
            return [Loop(var, full + 1, (Branch(op("lt", Var(var), full), then, otherwise),), tag)]
        initial = part == "init" or (part == "assign" and bool(block.reduction))  # every element gets its identity
        whole = initial or tag == "parallel"
        full, limit = (full, full) if whole else self.clipped(name, full, tile, domain, where)
        result: list[Stmt] = []
        if full == 1 and not tag.startswith(INTRINSIC):
            result += body(Const(0), 1, min(tile, span.extent) if name not in schedule.padded else tile)
        elif full:
            result.append(Loop(var, full, body(Var(var), full, tile, tag.startswith(INTRINSIC)), tag))
        for start in range(full, limit):  # iterations in which a condition has to be looked at
            result += body(Const(start), 1, tile)
        if rest:
            result += body(Const(span.extent // tile), 1, rest)
        return result

    def hints(
        self, block: Block, k: int, index: Expr, tile: int, domain: Domain, storage: Mapping[str, Storage]
    ) -> list[Stmt]:
        """What iteration `index` of loop order[k] fetches ahead; see ahead.py."""
        ahead = self.ahead.get(block.name)
        if ahead is None:
            return []
        loop = ahead.order[k]
        ahead.index[loop] = index
        for read in ahead.begins(loop):
            name = loop_parts(loop)[0]
            here = {n: s.base for n, s in domain.items()}
            later = {**here, name: op("add", here[name], tile)}
            ranges: dict[str, int] = {}  # the next iteration may be one past the last: nothing is known of indices
            now, then = (self.physical(substitute(read, v), storage, ranges) for v in (here, later))
            assert isinstance(now, Load) and isinstance(then, Load)
            elements = prod(s.extent for n, s in domain.items() if n in variables(read))
            ahead.starts(now, then, storage[read.buffer].region, elements)
        return [Prefetch(access) for access in ahead.accesses()] if k == ahead.step else []

    def clipped(self, name: str, count: int, tile: int, domain: Domain, where: tuple[Expr, ...]) -> tuple[int, int]:
        """How many of `count` iterations satisfy every condition for certain, and how many can satisfy them at all.

        Only where the two differ by one iteration (a boundary that is worth its own code) or not at all; otherwise
        `count, count`: the conditions stay at the leaf.
        """
        certain = possible = count
        for condition in where:
            form = _less_than(condition)
            step = 0 if form is None else form.coefficient(Var(name)) * tile
            if form is None or step <= 0 or not all(_fixed(domain, a) for a, _ in form.terms):
                continue
            limits = bounds(
                substitute(form.expr(), {n: _shifted(n, s) for n, s in domain.items() if n != name}),
                {n: s.extent for n, s in domain.items()} | {name: 1},
            )
            if limits is None:
                continue
            low, high = (x + form.coefficient(Var(name)) * int(domain[name].base.value) for x in limits)  # type: ignore[union-attr]
            high += form.coefficient(Var(name)) * (tile - 1)
            certain = min(certain, max(0, -(high // step)))  # high + step * v < 0
            possible = min(possible, max(0, -(low // step)))
        return (certain, possible) if possible - certain <= 1 else (count, count)

    def place(
        self,
        block: Block,
        k: int,
        domain: Domain,
        ranges: Mapping[str, int],
        storage: Mapping[str, Storage],
        where: tuple[Expr, ...],
        part: str,
    ) -> list[Stmt]:
        """The inside of loop order[k]: storage, producers, the rest of the block, consumers."""
        here = self.attached.get(f"{block.name}.{self.schedule(block.name).order[k]}", []) if part != "init" else []
        if not here:
            return self.descend(block, k + 1, domain, ranges, storage, where, part)
        before = [b for b in here if self.positions[b.name] < self.positions[block.name]]
        after = [b for b in here if self.positions[b.name] > self.positions[block.name]]
        groups = {b.name: root.name for root in here for b in self.subtree(root)}
        groups |= {b.name: block.name for b in self.subtree(block, k + 1)}
        domains, boxes = self.domains(block, domain, groups, ranges)
        scoped, allocs = dict(storage), []
        for name in sorted(groups, key=self.positions.__getitem__):
            for buffer in self.shared_here(name, groups):
                if buffer not in scoped and self.scope(buffer) != "arena":
                    scoped[buffer] = self.allocate(buffer, boxes[buffer], self.schedule(name))
                    allocs.append(Alloc(scoped[buffer].region, self.scope(buffer)))
        stmts: list[Stmt] = [*allocs]
        for b in before:
            where_ = (*b.where, *self.inside(b, domains[b.name], ranges))
            stmts += self.descend(b, 0, domains[b.name], ranges, scoped, where_, "assign")
        stmts += self.descend(block, k + 1, domain, ranges, scoped, where, part)
        for b in after:
            stmts += self.descend(b, 0, domains[b.name], ranges, scoped, b.where, "assign")
        return stmts

    def subtree(self, block: Block, k: int = 0) -> list[Block]:
        """`block` and every Block placed in its loops order[k:], or in theirs."""
        loops = self.schedule(block.name).order[k:]
        placed = [b for loop in loops for b in self.attached.get(f"{block.name}.{loop}", [])]
        return [block, *(b for inner in placed for b in self.subtree(inner))]

    def shared_here(self, name: str, groups: Mapping[str, str]) -> list[str]:
        """What Block `name` writes and a Block of another group reads: its storage has to outlive the group."""
        block = self.task.block(name)
        assert isinstance(block, Block)
        written = list(dict.fromkeys(w.buffer for w in block.writes))
        readers = {
            buffer: [b.name for b in self.task.blocks if isinstance(b, Block) and buffer in {r.buffer for r in b.reads}]
            for buffer in written
        }
        together = [name for names in readers.values() for name in names]  # what nobody reads lies beside what is read
        return [
            buffer
            for buffer in written
            if any(groups.get(reader, groups[name]) != groups[name] for reader in readers[buffer] or together)
        ]

    def domains(
        self, block: Block, domain: Domain, groups: Mapping[str, str], ranges: Mapping[str, int]
    ) -> tuple[dict[str, Domain], dict[str, Box]]:
        """What each Block placed at or below a loop of `block` computes there, and the box of each buffer it writes.

        Consumers of `block` follow what it writes; for all others, what is read of them decides, last Block first."""
        domains: dict[str, Domain] = {block.name: domain}
        boxes: dict[str, Box] = {w.buffer: self.box(w, block, domain, ranges) for w in block.writes}
        order = [self.task.blocks[k] for k in sorted(self.positions[n] for n in groups if n != block.name)]
        for b in order:
            assert isinstance(b, Block)
            if self.positions[b.name] > self.positions[block.name] and any(r.buffer in boxes for r in b.reads):
                domains[b.name] = self.consumer_domain(b, boxes)
                boxes |= {w.buffer: self.box(w, b, domains[b.name], ranges) for w in b.writes}
        for b in reversed(order):
            if b.name in domains:
                continue
            assert isinstance(b, Block)
            box = self.demand(b, [self.task.block(n) for n in domains], domains, ranges)
            domains[b.name] = self.producer_domain(b, box)
            boxes |= {w.buffer: box for w in b.writes}
        return domains, boxes

    def leaf(
        self,
        block: Block,
        domain: Domain,
        ranges: Mapping[str, int],
        storage: Mapping[str, Storage],
        where: tuple[Expr, ...],
        part: str,
    ) -> list[Stmt]:
        for name, span in domain.items():
            if span.extent > 1 and not (part == "init" and self.is_reduction(block, name)):
                raise InvalidIR(f"block {block.name}: no loop covers iterator {name!r} (extent {span.extent} left)")
        if block.reduction and part == "assign":  # a reduction of one point
            return [
                *self.leaf(block, domain, ranges, storage, (), "init"),
                *self.leaf(block, domain, ranges, storage, where, "update"),
            ]
        if any(domain[i.name].extent == 0 for i in block.iters if not i.reduce or part != "init"):
            return []
        values = {name: span.base for name, span in domain.items()}

        def physical(e: Expr) -> Expr:
            return self.physical(substitute(e, values), storage, ranges)

        writes = tuple(physical(w) for w in block.writes)
        conditions = []
        for condition in where:
            decided = _decide(simplify_condition(substitute(condition, values), ranges), ranges)
            if decided is False:
                return []
            if decided is None:
                conditions.append(physical(condition))
        binding = tuple((i.name, values[i.name]) for i in block.iters if not (part == "init" and i.reduce))
        if part == "init":  # what the body reads need not be there yet
            dtypes = tuple(self.task.buffer(w.buffer).dtype for w in block.writes)
            body: tuple[Expr, ...] = AGGREGATIONS[block.aggregation].identity(dtypes)
            conditions = [physical(c) for w in block.writes for c in self.existing(w, values, ranges)]
        else:
            body = tuple(physical(b) for b in block.body)
        assert all(isinstance(w, Load) for w in writes)
        return [Leaf(block.name, part, writes, body, block.aggregation, tuple(conditions), binding)]  # type: ignore[arg-type]

    def existing(self, write: Load, values: Mapping[str, Expr], ranges: Mapping[str, int]) -> list[Expr]:
        """The conditions under which `write` names an element: only those that the ranges do not imply."""
        conditions = []
        for index, extent in zip(write.indices, self.task.buffer(write.buffer).shape, strict=True):
            if not isinstance(index, Var) and not loads(index):
                index = simplify(substitute(index, values), ranges)
                limits = bounds(index, ranges)
                if limits is None or limits[1] >= extent:
                    conditions.append(op("lt", index, extent))
        return conditions

    def physical(self, e: Expr, storage: Mapping[str, Storage], ranges: Mapping[str, int]) -> Expr:
        """`e` with each Load's logical indices rewritten to where the element is stored: S_X(S_Y^-1(L')) of ALT."""
        if isinstance(e, Load):
            if e.buffer not in storage:
                raise InvalidIR(f"task {self.task.name}: {e.buffer!r} is read where it is not stored")
            place = storage[e.buffer]
            logical = [
                simplify(op("sub", self.physical(i, storage, ranges), b), ranges)
                for i, b in zip(e.indices, place.base, strict=True)
            ]
            indices = place.layout.apply(logical, place.shape)
            return Load(place.region.name, tuple(simplify(i, ranges) for i in indices))
        if isinstance(e, Op):
            args = tuple(self.physical(a, storage, ranges) for a in e.args)
            return Op(e.name, args, e.dtype)
        return e

    # --- boxes ----------------------------------------------------------------------------------------------------

    def box(self, access: Load, block: Block, domain: Domain, ranges: Mapping[str, int]) -> Box:
        """The smallest box of indices that `block` touches through `access` over `domain`."""
        shape = self.task.buffer(access.buffer).shape
        spans = (_extent(i, n, domain, ranges) for i, n in zip(access.indices, shape, strict=True))
        return tuple(_within(span, n) for span, n in zip(spans, shape, strict=True))

    def demand(
        self,
        producer: Block,
        readers: list[Block | OpaqueBlock],
        domains: Mapping[str, Domain],
        ranges: Mapping[str, int],
    ) -> Box:
        """The union of what `readers` read of what `producer` writes."""
        written = {w.buffer for w in producer.writes}
        box: Box | None = None
        for reader in readers:
            if not isinstance(reader, Block):
                continue
            for read in reader.reads:
                if read.buffer in written:
                    found = self.box(read, reader, domains[reader.name], ranges)
                    box = found if box is None else tuple(_union(a, b, ranges) for a, b in zip(box, found, strict=True))
        if box is None:
            raise InvalidIR(f"block {producer.name} is placed where nothing reads what it writes")
        return box

    def producer_domain(self, producer: Block, box: Box) -> Domain:
        domain = {i.name: Span(Const(0), i.extent) for i in producer.iters}
        for index, span in zip(producer.writes[0].indices, box, strict=True):
            if isinstance(index, Var):
                if isinstance(span.base, Const):
                    left = domain[index.name].extent - int(span.base.value)
                    span = Span(span.base, min(span.extent, left))
                domain[index.name] = span
            elif not isinstance(index, Const):
                raise InvalidIR(f"block {producer.name} cannot be placed in a loop: it writes at {index}")
        return domain

    def inside(self, block: Block, domain: Domain, ranges: Mapping[str, int]) -> list[Expr]:
        """Conditions that keep `block` to its own iteration space where `domain` may reach beyond it."""
        conditions = []
        for i in block.iters:
            span = domain[i.name]
            limits = bounds(span.base, ranges)
            if limits is None or limits[0] < 0:
                conditions.append(op("ge", Var(i.name), 0))
            if limits is None or limits[1] + span.extent > i.extent:
                conditions.append(op("lt", Var(i.name), i.extent))
        return conditions

    def consumer_domain(self, consumer: Block, boxes: Mapping[str, Box]) -> Domain:
        domain = {i.name: Span(Const(0), i.extent) for i in consumer.iters}
        for read in consumer.reads:
            for index, span in zip(read.indices, boxes.get(read.buffer, ()), strict=False):
                if isinstance(index, Var):
                    domain[index.name] = span
        return domain

    def allocate(self, name: str, box: Box, schedule: BlockSchedule) -> Storage:
        buffer: Buffer = self.task.buffer(name)
        layout = self.candidate.layouts.get(name, buffer.layout)
        extents = [span.extent for span in box]
        for write in self.writer[name].writes:
            if write.buffer == name:
                for d, index in enumerate(write.indices):
                    if isinstance(index, Var) and index.name in schedule.padded:
                        whole = schedule.tiles[index.name][-1]
                        extents[d] = -(-extents[d] // whole) * whole
        shape = tuple(extents)
        region = Region(name, buffer.dtype, layout.shape(shape))
        return Storage(region, tuple(span.base for span in box), shape, layout)


def _unused(name: str, ranges: Mapping[str, int]) -> str:
    stem, level = loop_parts(name)
    while name in ranges:
        stem += "_"
        name = f"{stem}{level}"
    return name


def _extent(index: Expr, size: int, domain: Domain, ranges: Mapping[str, int]) -> Span:
    """The span of an index expression over `domain`; the whole dimension if it is not affine there."""
    form = linear(index)
    if form is None:
        return Span(Const(0), size)
    base: Expr = Const(form.constant)
    extent = 1
    for atom, c in form.terms:
        if isinstance(atom, Var):
            span = domain[atom.name]
        else:
            values = {name: s.base for name, s in domain.items()}
            free = {name for name, s in domain.items() if s.extent > 1}
            limits = bounds(atom, {name: s.extent for name, s in domain.items()})
            if not _mentions(atom, free):
                span = Span(simplify(substitute(atom, values), ranges), 1)
            elif limits is not None and all(s.base == Const(0) for n, s in domain.items() if _mentions(atom, {n})):
                span = Span(Const(limits[0]), limits[1] - limits[0] + 1)
            else:
                return Span(Const(0), size)
        low = span.base if c > 0 else op("add", span.base, span.extent - 1)
        base = op("add", base, op("mul", low, c))
        extent += abs(c) * (span.extent - 1)
    return Span(simplify(base, ranges), extent)


def _within(span: Span, size: int) -> Span:
    """A span without what lies past the end of its dimension: a condition keeps the block from going there."""
    return Span(span.base, min(span.extent, size - int(span.base.value))) if isinstance(span.base, Const) else span


def _mentions(e: Expr, names: set[str]) -> bool:
    if isinstance(e, Var):
        return e.name in names
    return isinstance(e, Op) and any(_mentions(a, names) for a in e.args)


def _union(a: Span, b: Span, ranges: Mapping[str, int]) -> Span:
    gap = linear(simplify(op("sub", b.base, a.base), ranges))
    if gap is None or gap.terms:
        raise InvalidIR(f"spans at {a.base} and {b.base} have no constant distance: no common box")
    low = min(0, gap.constant)
    return Span(simplify(op("add", a.base, low), ranges), max(a.extent, gap.constant + b.extent) - low)


def _fixed(domain: Domain, atom: Expr) -> bool:
    return isinstance(atom, Var) and atom.name in domain and isinstance(domain[atom.name].base, Const)


def _shifted(name: str, span: Span) -> Expr:
    return op("add", Var(name), span.base) if span.extent > 1 else span.base


def _less_than(condition: Expr) -> Linear | None:
    """A condition as `form < 0`."""
    if not isinstance(condition, Op) or condition.name not in ("lt", "le", "gt", "ge"):
        return None
    a, b = condition.args
    if condition.name in ("gt", "ge"):
        a, b = b, a
    difference = op("sub", a, b)
    if condition.name in ("le", "ge"):
        difference = op("sub", difference, 1)
    return linear(difference)


def simplify_condition(condition: Expr, ranges: Mapping[str, int]) -> Expr:
    """A comparison with both sides simplified."""
    if isinstance(condition, Op) and condition.name in ("lt", "le", "gt", "ge", "eq", "ne"):
        return Op(condition.name, tuple(simplify(a, ranges) for a in condition.args))
    if isinstance(condition, Op) and condition.name in ("and", "or", "not"):
        return Op(condition.name, tuple(simplify_condition(a, ranges) for a in condition.args))
    return condition


def _decide(condition: Expr, ranges: Mapping[str, int]) -> bool | None:
    """True or False if the ranges decide the condition, else None."""
    form = _less_than(condition)
    if form is None:
        return None
    limits = bounds(form.expr(), ranges)
    if limits is None:
        return None
    if limits[1] < 0:
        return True
    return False if limits[0] >= 0 else None
