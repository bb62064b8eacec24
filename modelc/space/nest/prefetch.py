"""Software prefetch: while a Block works on one part of an operand, the part that comes next is fetched into a cache;
and while it sums up, what its results will be written to.

A part is what one iteration of a loop reads: of a packed operand a panel, whose elements lie one after the other; of a
computed buffer that is read as it lies, or through a copy placed in that loop, a box, whose rows lie apart. The first
pass over a part would wait for memory at every line; the passes before, over the part before it, have the time to fetch
it. Each iteration of the innermost loop that is not unrolled fetches its share of a panel, or of results, so that the
requests are spread evenly over the arithmetic; each register tile its share of a box's rows, whose addresses take more
of it, and so of the results that the whole Block leads to where it is placed, through what others make of its own.

Where a run says how far loops go, panels of packed operands alone are fetched, in the first few iterations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeVar

from modelc.errors import InvalidIR
from modelc.ir.affine import bounds, linear, simplify
from modelc.ir.block import Block, Buffer, Task
from modelc.ir.candidate import BlockSchedule
from modelc.ir.expr import DTYPES, Const, Expr, Load, Var, op, substitute
from modelc.ir.loop import ROOT, Loop, Root
from modelc.ir.nest import Region
from modelc.ir.sizes import is_sized, most
from modelc.space.analysis.around import FAR_BYTES, consumers_of
from modelc.space.analysis.boxes import Span
from modelc.space.analysis.follow import iterators
from modelc.space.analysis.loops import trips

SERIAL = ("for", "parallel", "pipeline")  # loops whose iterations run one after the other

SPILLING = 2  # times a cache, from which on a result is far: 96 channels of 112 x 112 from 16 took 1.14 of their time

Operand = TypeVar("Operand")


@dataclass(frozen=True)
class Panel:
    """Where the next panel begins, and its elements."""

    start: Load
    elements: int

    def share(self, position: Expr, iterations: int, line: int) -> list[Load]:
        """One element of each line that iteration `position` fetches: as many elements in each, so that an address is a
        multiple of the position."""
        share = -(-self.elements // iterations)
        share = 1 << (share - 1).bit_length() if share <= line else -(-share // line) * line
        return [self._element(op("add", op("mul", position, share), offset)) for offset in range(0, share, line)]

    def _element(self, number: Expr) -> Load:
        *outer, last = self.start.indices
        return Load(self.start.buffer, (*outer, op("add", last, number)))


@dataclass(frozen=True)
class Box:
    """Where the next box begins, and how many elements it has along each dimension of its storage."""

    start: Load
    extents: tuple[int, ...]

    def rows_each(self, iterations: int) -> int:
        """Rows that each of so many iterations fetches."""
        return -(-prod(self.extents[:-1]) // iterations)

    def row(self, number: Expr, line: int) -> list[Load]:
        """The last element of each line of a row, by its number: where lines do not begin where rows do, a row's first
        part came with the box before."""
        return [self.element(number, Const(k), line) for k in range(-(-self.extents[-1] // line))]

    def share(self, position: Expr, iterations: int, line: int) -> list[Load]:
        """One element of each line that iteration `position` fetches: whole rows, or where rows are fewer, a part of
        one: a power of two of iterations for each."""
        rows, lines = prod(self.extents[:-1]), -(-self.extents[-1] // line)
        if iterations < rows:
            share = self.rows_each(iterations)
            numbers = (op("add", op("mul", position, share), k) for k in range(share))
            return [x for number in numbers for x in self.row(_within(number, iterations * share, rows), line)]
        each = 1 << ((iterations // rows).bit_length() - 1)  # iterations for one row
        row = _within(op("floordiv", position, each), -(-iterations // each), rows)
        share, slot = -(-lines // each), op("mod", position, each)
        parts = (op("add", op("mul", slot, share), k) for k in range(share))
        return [self.element(row, _within(part, each * share, lines), line) for part in parts]

    def element(self, number: Expr, part: Expr, line: int) -> Load:
        """The last element of line `part` of a row."""
        *outer, last = self.start.indices
        for d in reversed(range(len(outer))):
            digit = op("mod", number, self.extents[d]) if prod(self.extents[:d]) > 1 else number
            outer[d] = op("add", outer[d], digit if self.extents[d] > 1 else 0)
            number = op("floordiv", number, self.extents[d])
        return Load(self.start.buffer, (*outer, op("add", last, op("add", op("mul", part, line), line - 1))))


@dataclass(frozen=True)
class Write:
    """An element that a Block writes at a point of another's iteration space; for each such point it has `more`
    iterators of its own, of these extents."""

    access: Load
    more: Mapping[str, int]

    @property
    def domain(self) -> dict[str, Span]:
        """Of these iterators."""
        return {name: Span(Const(0), extent) for name, extent in self.more.items()}


def computed(task: Task, block: Block) -> dict[str, Load]:
    """The buffers with no order of ours that `block` reads, as they lie or through a copy, and which element of each at
    a point of its iteration space."""
    ours = {*task.constants, *(b.name for b in task.locals)}
    result = {read.buffer: read for read in block.reads if read.buffer not in ours}
    for read in block.reads:
        for copy in task.blocks:
            if isinstance(copy, Block) and not copy.reduction and [w.buffer for w in copy.writes] == [read.buffer]:
                (write,), sources = copy.writes, copy.reads
                at = {i.name: index for i, index in zip(write.indices, read.indices, strict=True) if isinstance(i, Var)}
                if len(sources) == 1 and copy.ranges.keys() <= at.keys():
                    source = substitute(sources[0], at)
                    assert isinstance(source, Load)
                    result[source.buffer] = source
    return result


def written(task: Task, block: Block) -> dict[str, Write]:
    """The buffers that the consumers of `block`, and theirs, write, and which elements of each for a point of its own
    iteration space."""
    consumers = consumers_of(task, block)
    for consumer in consumers:  # and those that are added meanwhile
        consumers += [b for b in consumers_of(task, consumer) if b not in consumers]
    names = iterators(block, consumers)
    result: dict[str, Write] = {}
    for consumer in consumers:
        own = names[consumer.name]
        if len(consumer.writes) == 1:
            at = {n: Var(own.get(n, f"{consumer.name}.{n}")) for n in consumer.ranges}
            write = substitute(consumer.writes[0], at)
            assert isinstance(write, Load)
            more = {f"{consumer.name}.{n}": extent for n, extent in consumer.ranges.items() if n not in own}
            result[write.buffer] = Write(write, more)
    return result


def far_computed(task: Task, block: Block, extents: Mapping[str, int], near_bytes: int) -> list[str]:
    """The buffers with no order of ours that `block` reads, from beyond a cache of `near_bytes`, in rows that lie far
    apart. `extents`: how many values of its iterators are read, or copied, at a time."""
    reads = computed(task, block)
    return [name for name, access in reads.items() if _far(task.buffer(name), access, extents, near_bytes)]


def far_results(task: Task, block: Block, extents: Mapping[str, int], near_bytes: int) -> list[str]:
    """The Task's outputs that consumers of `block` write beyond a cache of `near_bytes`: in rows that lie far apart, or
    far more than that cache holds. `extents`: how many values of its iterators a register tile has."""
    direct = {w.buffer for consumer in consumers_of(task, block) for w in consumer.writes}
    results = {name: write for name, write in written(task, block).items() if name in direct and name in task.outputs}
    return [
        name
        for name, write in results.items()
        if max(write.more.values(), default=1) == 1
        and (
            _spills(task.buffer(name), near_bytes)
            or _far(task.buffer(name), write.access, {**extents, **write.more}, near_bytes)
        )
    ]


def _spills(buffer: Buffer, near_bytes: int) -> bool:
    """Whether what is written of a buffer, in whatever order, drives out of the cache what was written before: stores
    wait for lines from farther away then, one register tile after the other."""
    return buffer.logical_strides is not None and buffer.bytes > SPILLING * near_bytes


def _far(buffer: Buffer, access: Load, extents: Mapping[str, int], near_bytes: int) -> bool:
    """Whether what is accessed of a large buffer are rows so far apart that the CPU's own prefetcher does not see them
    coming."""
    if buffer.logical_strides is None or buffer.bytes <= near_bytes:
        return False
    limits = [bounds(i, extents) or (0, 0) for i in access.indices]
    run = 1
    for stride, (low, high) in sorted(zip(buffer.logical_strides, limits, strict=True)):
        if high > low and stride > run:
            return stride * DTYPES[buffer.dtype].itemsize >= FAR_BYTES
        run += stride * (high - low)
    return False


def _within(number: Expr, count: int, limit: int) -> Expr:
    """`number`, one of `count`, but less than `limit`."""
    if limit == 1:
        return Const(0)
    return op("min", number, limit - 1) if count > limit else number


class Prefetches:
    """Where the loops of one Block are while its Nest is built, and what it fetches there."""

    def __init__(self, task: Task, block: Block, schedule: BlockSchedule, line: int):
        self.order, self.prefetch = schedule.order, schedule.prefetch
        in_run = {i.name for i in block.iters if is_sized(i.extent)}
        if in_run:
            ordered = {b for b in self.prefetch if b in {*task.constants, *(x.name for x in task.locals)}}
            self.prefetch = {b: x for b, x in self.prefetch.items() if b in ordered and _iterator(x) not in in_run}
        serial = [k for k, loop in enumerate(self.order) if schedule.tags.get(loop, "for") in SERIAL]
        spatial = {i.name for i in block.spatial}
        self.step = max(serial, default=-1)
        self.tile = max((k for k in serial if self.order[k].iterator in spatial), default=-1)
        self.tiles = schedule.tiles
        self.index: dict[Loop | Root, Expr] = {}  # the iteration that a loop is in
        self.within: dict[Loop | Root, int] = {}  # of a loop that is as long as a run says: see enter()
        self.extents: dict[str, Mapping[str, int]] = {}  # buffer -> of the iterators, in one iteration of its loop
        self.panels: dict[str, Panel] = {}  # the next one of each operand
        self.boxes: dict[str, Box] = {}  # the next one of each buffer with no order of ours, and what ROOT stands for
        self.results: dict[str, Box] = {}  # what is to be written
        self.computed = {name: read for name, read in computed(task, block).items() if name in self.prefetch}
        self.packed = {r.buffer: r for r in block.reads if r.buffer in self.prefetch.keys() - self.computed.keys()}
        self.written = {name: write for name, write in written(task, block).items() if name in self.prefetch}
        operands = self.packed.keys() | self.computed.keys() | self.written.keys()
        self.line = {buffer: max(1, line // DTYPES[task.buffer(buffer).dtype].itemsize) for buffer in operands}
        for buffer, loop in self.prefetch.items():
            last = self.tile if buffer in self.computed else self.step
            within = self.order[:last] if buffer not in self.written else (ROOT, *self.order[:last])
            if buffer not in operands or loop not in within:
                raise InvalidIR(
                    f"block {block.name} cannot prefetch {buffer!r} for loop '{loop}': it has no such operand, or "
                    "no such loop around the innermost one that is not unrolled"
                )

    def enter(self, loop: Loop | Root, index: Expr, extents: Mapping[str, int], within: int | None = None) -> None:
        """Iteration `index` of `loop` begins, in which iterators have `extents`: less than the Block's where it is
        placed inside loops of another. Of a loop that is as long as a run says, iterations from `within` on fetch what
        is there already."""
        self.index[loop] = index
        if within is not None:
            self.within[loop] = within
        extents = {name: most(extent) for name, extent in extents.items()}
        self.extents |= {buffer: extents for buffer, outer in self.prefetch.items() if outer == loop}

    def begins(self, loop: Loop | Root, operands: Mapping[str, Operand]) -> list[Operand]:
        """Those of `operands` (packed, computed, written) of which an iteration of `loop` reads or writes one part."""
        return [operands[buffer] for buffer, outer in self.prefetch.items() if outer == loop and buffer in operands]

    def panel(self, now: Load, then: Load, region: Region, elements: int) -> None:
        """The panel of `elements` that begins at `now` is read; the next begins at `then`. Raises InvalidIR where the
        distance of the two is not the same for all panels."""
        total: Expr = Const(0)
        for x, y, stride in zip(now.indices, then.indices, region.stride, strict=True):
            total = op("add", total, op("mul", op("sub", y, x), stride))
        form = linear(simplify(total, {}))
        if form is None or form.terms or form.constant < 1:
            raise InvalidIR(f"the parts of {now.buffer} that are prefetched do not lie one after the other")
        self.panels[now.buffer] = Panel(then, min(elements, form.constant))

    def box(self, start: Load, extents: Sequence[int]) -> None:
        """The next box that is read, or the one that is to be written, begins at `start`; it has so many elements along
        the dimensions of its storage. There is none after the last: it would begin beyond the end of one of them."""
        buffer = start.buffer
        boxes = self.results if buffer in self.written and self.prefetch[buffer] is not ROOT else self.boxes
        boxes[buffer] = Box(start, tuple(extents))
        if min(extents) < 1:
            del boxes[buffer]

    def lines(self, parts: Mapping[str, Panel] | Mapping[str, Box]) -> list[Load]:
        """One element of each line of `parts` (panels or results) that this iteration of the innermost loop fetches."""
        result = []
        for buffer, part in parts.items():
            position, iterations = self.position(buffer, self.step)
            result += part.share(position, iterations, self.line[buffer])
        return result

    def rows(self, var: str) -> list[tuple[int, list[Load], bool]]:
        """How many rows of each box this register tile fetches, an element of each line of row number `var` of these
        (of a part of one, where there are fewer rows than tiles), and whether it is to be written."""
        result = []
        for buffer, part in self.boxes.items():
            position, iterations = self.position(buffer, self.tile)
            count = part.rows_each(iterations)
            if count == 1:
                result.append((1, part.share(position, iterations, self.line[buffer]), buffer in self.written))
                continue
            number = op("add", op("mul", position, count), Var(var))
            row = _within(number, iterations * count, prod(part.extents[:-1]))
            result.append((count, part.row(row, self.line[buffer]), buffer in self.written))
        return result

    def position(self, buffer: str, last: int) -> tuple[Expr, int]:
        """Which iteration it is of the loops up to order[last] in which a part of `buffer` is fetched, and of how
        many."""
        outer = self.prefetch[buffer]
        inside = self.order[0 if outer is ROOT else self.order.index(outer) + 1 : last + 1]
        counts = [self.within.get(loop) or trips(loop, self.extents[buffer], self.tiles) for loop in inside]
        position: Expr = Const(0)
        for loop, count in zip(inside, counts, strict=True):
            position = op("add", op("mul", position, count), self.index[loop])
        every = prod(counts)
        return (op("min", position, every - 1) if self.within.keys() & {*inside} else position), every


def _iterator(loop: Loop | Root) -> str | None:
    return loop.iterator if isinstance(loop, Loop) else None
