"""Where the buffers of a Nest lie, and accesses as indices of their storage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from modelc.errors import InvalidCandidate, InvalidIR
from modelc.ir.affine import linear, offset, simplify
from modelc.ir.block import Block, Buffer
from modelc.ir.candidate import BlockSchedule
from modelc.ir.expr import Expr, Load, Op, Var, op, rebuilt, substitute
from modelc.ir.layout import Layout
from modelc.ir.nest import Region
from modelc.ir.sizes import is_sized, most
from modelc.space.analysis.boxes import Box


@dataclass(frozen=True)
class Storage:
    """Where a buffer's elements are: a Region that holds the box starting at `base`, stored by `layout`."""

    region: Region
    base: tuple[Expr, ...]
    shape: tuple[int, ...]
    layout: Layout


@dataclass(frozen=True)
class Physical:
    """Expressions of a Block at the iterators' `values`, with the logical indices of each Load rewritten to where its
    element is stored: S_X(S_Y^-1(L')) of ALT."""

    task: str
    values: Mapping[str, Expr]
    storage: Mapping[str, Storage]
    ranges: Mapping[str, int]
    offsets: dict[tuple[Expr, Expr], Expr] = field(default_factory=dict)  # indices, less the base of a buffer

    def __call__(self, e: Expr) -> Expr:
        if isinstance(e, Load):
            if e.buffer not in self.storage:
                raise InvalidIR(f"task {self.task}: {e.buffer!r} is read where it is not stored")
            place = self.storage[e.buffer]
            logical = tuple([self.index(i, b) for i, b in zip(e.indices, place.base, strict=True)])
            indices, simple = place.layout.apply(logical, place.shape), set(map(id, logical))
            return Load(place.region.name, tuple([i if id(i) in simple else simplify(i, self.ranges) for i in indices]))
        if isinstance(e, Op) and linear(e) is None:  # else it has no Loads
            return rebuilt(e, tuple([self(a) for a in e.args]))
        return substitute(e, self.values)

    def index(self, e: Expr, base: Expr) -> Expr:
        """A logical index within the box that begins at `base`."""
        shifted = self.offsets.get((e, base))
        if shifted is None:
            shifted = offset(e, self.values, base, self.ranges) or simplify(op("sub", self(e), base), self.ranges)
            self.offsets[e, base] = shifted
        return shifted


def allocated(buffer: Buffer, layout: Layout, writer: Block, box: Box, schedule: BlockSchedule) -> Storage:
    """Storage in `layout` for a `box` of a buffer, rounded up to the whole vectors of its `writer` under `schedule`.
    Raises InvalidCandidate."""
    extents, vectors = [span.extent for span in box], _vectors(schedule)
    for write in (w for w in writer.writes if w.buffer == buffer.name):
        for d, index in enumerate(write.indices):
            if isinstance(index, Var) and index.name in {*schedule.padded, *vectors}:
                lanes = schedule.tiles[index.name][-1]
                if index.name in schedule.padded or most(extents[d]) > lanes:
                    extents[d] = -(-extents[d] // lanes) * lanes
    shape = tuple(extents)
    try:
        layout = layout if any(map(is_sized, shape)) else layout.of_part(shape)
    except ValueError as wrong:
        raise InvalidCandidate(f"layouts: {buffer.name!r}: {wrong}") from None
    region = Region(buffer.name, buffer.dtype, stored_shape(buffer.name, layout, shape))
    return Storage(region, tuple(span.base for span in box), shape, layout)


def stored_shape(name: str, layout: Layout, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in storage of a buffer of that name. Raises InvalidCandidate."""
    try:
        return layout.shape(shape)
    except ValueError as wrong:
        raise InvalidCandidate(f"layouts: {name!r}: {wrong}") from None


def _vectors(schedule: BlockSchedule) -> set[str]:
    """The iterators along which registers hold vectors: all of one width, though the last one may use less of it."""
    vectors = (loop.iterator for loop, tag in schedule.tags.items() if tag == "vector")
    return {n for n in vectors if schedule.scope == "register" and n in schedule.tiles}
