"""Fetching ahead: while a Block works on one part of an operand, the part that comes next is brought near.

A part is what one iteration of a loop reads of a packed operand: a panel, whose elements lie one after the other. The
first pass over a panel would wait for memory at every line; the passes before, over the panel before it, have the time
to fetch it. Each iteration of the innermost loop that is not unrolled fetches its share, so that the requests are
spread evenly over the arithmetic.
"""

from __future__ import annotations

from math import prod

from modelc.errors import InvalidIR
from modelc.ir.affine import linear, simplify
from modelc.ir.block import Block, Task
from modelc.ir.candidate import BlockSchedule
from modelc.ir.expr import DTYPES, Const, Expr, Load, op
from modelc.ir.nest import Region
from modelc.space.loops import trips

LINE_BYTES = 64  # of a cache line
SERIAL = ("for", "parallel", "pipeline")  # loops whose iterations run one after the other


class Ahead:
    """Where the loops of one Block are while its Nest is built, and what it fetches there."""

    def __init__(self, task: Task, block: Block, schedule: BlockSchedule):
        self.order, self.prefetch = schedule.order, schedule.prefetch
        steps = [k for k, loop in enumerate(self.order) if schedule.tags.get(loop, "for") in SERIAL]
        self.step = max(steps, default=-1)
        self.trips = {loop: trips(loop, block.ranges, schedule.tiles) for loop in self.order}
        self.index: dict[str, Expr] = {}  # loop -> the iteration that it is in
        self.parts: dict[str, tuple[Load, int]] = {}  # operand -> where its next part begins, and its elements
        self.reads = {r.buffer: r for r in block.reads if r.buffer in self.prefetch}
        self.line = {buffer: max(1, LINE_BYTES // DTYPES[task.buffer(buffer).dtype].itemsize) for buffer in self.reads}
        for buffer, loop in self.prefetch.items():
            if buffer not in self.reads or loop not in self.order[: self.step]:
                raise InvalidIR(
                    f"block {block.name} cannot fetch {buffer!r} ahead for loop {loop!r}: it has no such operand, or "
                    "no such loop around the innermost one that is not unrolled"
                )

    def begins(self, loop: str) -> list[Load]:
        """The operands of which an iteration of `loop` reads one part."""
        return [self.reads[buffer] for buffer, outer in self.prefetch.items() if outer == loop]

    def starts(self, now: Load, then: Load, region: Region, elements: int) -> None:
        """The part of `elements` that begins at `now` is read; the next begins at `then`. Raises InvalidIR where the
        distance of the two is not the same for all parts."""
        total: Expr = Const(0)
        for x, y, stride in zip(now.indices, then.indices, region.stride, strict=True):
            total = op("add", total, op("mul", op("sub", y, x), stride))
        form = linear(simplify(total, {}))
        if form is None or form.terms or form.constant < 1:
            raise InvalidIR(f"the parts of {now.buffer} that are fetched ahead do not lie one after the other")
        self.parts[now.buffer] = then, min(elements, form.constant)

    def accesses(self) -> list[Load]:
        """One element of each line that this iteration of the innermost loop fetches."""
        result = []
        for buffer, (start, elements) in self.parts.items():
            inside = self.order[self.order.index(self.prefetch[buffer]) + 1 : self.step + 1]
            position: Expr = Const(0)
            for loop in inside:
                position = op("add", op("mul", position, self.trips[loop]), self.index[loop])
            line, share = self.line[buffer], -(-elements // prod(self.trips[loop] for loop in inside))
            share = 1 << (share - 1).bit_length() if share <= line else -(-share // line) * line
            for offset in range(0, share, line):
                last = op("add", start.indices[-1], op("add", op("mul", position, share), offset))
                result.append(Load(buffer, (*start.indices[:-1], last)))
        return result
