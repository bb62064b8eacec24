"""What the Blocks of a Task derived by Winograd's rule (rules/winograd.py) are for, told by what they read and write:

pad -> rows -> columns -> product -> write -> gather -> results -> owner -> afterwards
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from math import prod

from modelc.ir.block import Block, Task
from modelc.ir.candidate import Stage
from modelc.ir.expr import Load, variables
from modelc.space.analysis.access import Access, accesses, stored_lanes, vector_iterator
from modelc.space.analysis.around import consumers_of, reduction_of
from modelc.space.rules.filters import ALONE, Transform, transform, whole_transform
from modelc.space.rules.rule import DoesNotApply
from modelc.space.sketches.products import ProductRoles
from modelc.space.sketches.tensorized import tensorized
from modelc.space.sketches.vectorized import VectorUnit
from modelc.space.tiling.tiled import Tiled, Unit
from modelc.target import Target


class Shape(Enum):
    """Where the transforms run around the products (see winograd.py)."""

    ROWS = "rows"
    PANELS = "panels"
    POINTS = "points"


@dataclass(frozen=True)
class Roles(ProductRoles):
    """The Blocks of one F(m, r), and the iterators that its schedules go over."""

    m: int
    taps: int  # r
    pad: Block  # the input with a margin
    rows: Block  # the input transform: along h, then
    columns: Block  # along w
    gather: Block  # the output transform: along h; `results`: along w
    vector: str  # the product's iterator whose elements lie side by side
    channel: str  # the input transforms' iterator of the same kind

    @property
    def lanes(self) -> int:
        """Sums in one vector."""
        return self.unit.lanes

    @property
    def channel_lanes(self) -> int:
        """Numbers of transformed tiles in one vector."""
        return stored_lanes(self.target, self.task.buffer(self.tiles.buffer).dtype)

    @cached_property
    def unit(self) -> Unit:
        """What multiplies: vectors of float32; or, of whole numbers, the quickest instruction that adds their products.
        Raises DoesNotApply where there is none."""
        plain = VectorUnit(stored_lanes(self.target, "float32"))
        (sums,) = self.product.writes
        if self.task.buffer(sums.buffer).dtype == "float32":
            return plain
        tiled = Tiled(self.task, self.target, self.stages, self.product, self.vector, plain)
        units = [way.unit for way in tensorized(tiled) if way.task is self.task and not way.unit.pipelined]
        rates = {u: u.intrinsic.products * u.intrinsic.throughput for u in units if u.intrinsic is not None}
        if not rates:
            raise DoesNotApply("no instruction adds up products of transformed whole numbers")
        return max(rates, key=lambda u: rates[u])

    @property
    def th(self) -> str:
        """The iterator over rows of tiles."""
        return self.results.spatial[-3].name

    @property
    def tw(self) -> str:
        """The iterator over tiles of one row."""
        return self.results.spatial[-2].name

    @property
    def tile_rows(self) -> int:
        """Rows of tiles."""
        return self.product.ranges[self.th]

    @property
    def tiles(self) -> Load:
        """The product's read of transformed tiles."""
        (read,) = (r for r in self.product.reads if r.buffer == self.columns.writes[0].buffer)
        return read

    @cached_property
    def lead(self) -> tuple[list[str], list[str]]:
        """The owner's iterators outside a tile other than the vector: those over samples with transformed tiles of
        their own, and those that a window slides along or that go over groups of channels."""
        inner = {self.owned[self.th], self.owned[self.tw], self.owned[self.vector], *self.within}
        names = [i.name for i in self.owner.spatial if i.extent > 1 and i.name not in inner]
        alone = {self.owned.get(str(i)) for i in self.tiles.indices}
        return [n for n in names if n in alone], [n for n in names if n not in alone]

    def around(self, tiled: Tiled) -> list[str]:
        """The `lead` iterators outside the products of one panel. Rows of a register tile that share a kernel are not
        among them: the panel is read once for all."""
        rows = {self.owned[n] for n in tiled.inside if self.kernel(tiled).strides[n] == 0}
        return [n for names in self.lead for n in names if n not in rows]

    @cached_property
    def kernels(self) -> tuple[int, int]:
        """Points of those among both kinds of `lead` that have kernels of their own."""
        (kernel,) = (r for r in self.product.reads if r.buffer in self.task.constants)
        moving = {v for i in kernel.indices for v in variables(i)}
        own = {mine for name, mine in self.owned.items() if name in moving}
        first, second = (self.points([mine for mine in names if mine in own]) for names in self.lead)
        return first, second

    def points(self, names: Sequence[str]) -> int:
        """Points of so many of the owner's iterators."""
        return prod(self.owner.ranges[n] for n in names)

    @cached_property
    def matrices(self) -> tuple[Transform, Transform]:
        """Of rows and gather, of columns and results."""
        sums, results = (self.task.buffer(b.writes[0].buffer) for b in (self.product, self.results))
        first = transform(self.m, self.taps) if sums.dtype == "float32" else whole_transform(self.m, self.taps)
        assert first is not None
        return first, first if results.shape[1] > 1 else ALONE

    def elements(self, block: Block) -> int:
        """Numbers that `block` writes."""
        return prod(self.task.buffer(block.writes[0].buffer).shape)

    def tiled(self, tile_rows: int) -> Tiled:
        """The product, in chunks of so many rows of tiles."""
        ranges = {self.th: tile_rows}
        return Tiled(self.task, self.target, self.stages, self.product, self.vector, self.unit, ranges=ranges)

    def kernel(self, tiled: Tiled) -> Access:
        """The read of the transformed kernel."""
        return next(r for r in tiled.reads if r.load.buffer in self.task.constants)


def roles_of(task: Task, target: Target, stages: Sequence[Stage], m: int, taps: int) -> Roles:
    """What the Blocks of a derived Task are for. Raises DoesNotApply if it has other Blocks, or channels apart from
    each other."""
    product = reduction_of(task)
    columns = _writer(task, product)
    rows = _writer(task, columns)
    pad = _writer(task, rows)
    write = _reader(task, product)
    gather = _reader(task, write)
    results = _reader(task, gather)
    owner = _reader(task, results)
    later = task.blocks[task.blocks.index(owner) + 1 :]
    afterwards = tuple(b for b in later if isinstance(b, Block))
    if 8 + len(afterwards) != len(task.blocks):
        raise DoesNotApply("the Task has Blocks of another kind")
    vector = vector_iterator(write, accesses(task, write)[1])
    source = accesses(task, columns)[0][0]
    channel = next((i.name for i in columns.spatial if i.extent > 1 and source.strides[i.name] == 1), None)
    if vector is None or channel is None or vector not in product.ranges:
        raise DoesNotApply("channels are not stored one after the other")
    roles = Roles(
        task, target, tuple(stages), product, write, results, owner, afterwards, m, taps, pad, rows, columns, gather,
        vector, channel,
    )  # fmt: skip
    if vector not in roles.owned:
        raise DoesNotApply("results are points of tiles, one after the other")
    if any(vector in variables(index) for index in roles.tiles.indices):
        raise DoesNotApply("results of phases lie one after the other, each of tiles of its own")
    return roles


def _writer(task: Task, block: Block) -> Block:
    """The one Block that writes what `block` reads."""
    read = block.buffers_read
    return _only([b for b in task.blocks if isinstance(b, Block) and read & {w.buffer for w in b.writes}])


def _reader(task: Task, block: Block) -> Block:
    """The one Block that reads what `block` writes."""
    return _only(consumers_of(task, block))


def _only(blocks: Sequence[Block]) -> Block:
    if len(blocks) != 1:
        raise DoesNotApply("the Task has Blocks of another kind")
    return blocks[0]
