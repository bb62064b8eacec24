"""What Sketches of products that a rule derived have in common (winograd.py, strassen.py): chunks of rows, in each of
which the products are register tiles of vectors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from modelc.ir.block import Block, Task
from modelc.ir.candidate import BlockSchedule, Stage
from modelc.ir.expr import ZERO, Load
from modelc.ir.layout import Layout
from modelc.ir.loop import Inside, Loop, Root
from modelc.space.analysis.boxes import Span, box
from modelc.space.analysis.footprint import Ints
from modelc.space.cost.register_tile import fits, kernel_cycles
from modelc.space.sketch import Bools, Floats, Points, Sketch, Values
from modelc.space.sketches.spread import spread
from modelc.space.tiling.tiled import FAR, Tiled, TiledKnobs
from modelc.target import Target


@dataclass(frozen=True)
class ProductRoles:
    """What Blocks of a derived Task are for: ... -> product -> write -> ... -> results -> owner -> afterwards."""

    task: Task
    target: Target
    stages: tuple[Stage, ...]
    product: Block
    write: Block  # the copy of its accumulators
    results: Block  # what the owner reads: results made of products
    owner: Block  # the consumer, whose loops all others run in or before
    afterwards: tuple[Block, ...]

    @cached_property
    def owned(self) -> dict[str, str]:
        """The owner's iterator for each of the product's."""
        names = [str(i) for i in self.results.writes[0].indices[2:]]
        return dict(zip(names, self._read[2:], strict=True))

    @property
    def within(self) -> tuple[str, str]:
        """The owner's iterators over the two dimensions that the rule added to the results."""
        return self._read[0], self._read[1]

    @cached_property
    def _read(self) -> list[str]:
        (read,) = {r for r in self.owner.reads if r.buffer == self.results.writes[0].buffer}
        return [str(i) for i in read.indices]

    @cached_property
    def _bytes(self) -> dict[str, int]:
        blocks = [b for b in self.task.blocks if isinstance(b, Block)]
        return {b.name: self.task.buffer(b.writes[0].buffer).bytes for b in blocks}

    def bytes(self, block: Block) -> int:
        """Bytes of what `block` writes."""
        return self._bytes[block.name]


class Products(Sketch):
    """A Sketch with the knobs rows.N, vectors, chunk, steps and prefetch of its products."""

    listed = 1 << 14
    chunked: str  # the products' iterator that chunks are of
    first_chunk: int  # of its values, as rules have it
    gemm: Tiled  # the products in such a chunk

    @abstractmethod
    def chunks(self) -> tuple[int, ...]:
        """How many values of the iterator one chunk may have."""

    @abstractmethod
    def products_in(self, chunk: int) -> Tiled:
        """The products in one chunk."""

    def away(self, points: Points) -> Floats:
        """How many knobs that estimates do not see are otherwise than rules would have them [P]."""
        steps = np.abs(np.log2(self.column(points, "steps") / self.gemm.usual_steps))
        return np.asarray(steps + self.index(points, "prefetch"), np.float64)

    def unhinted(self, points: Points) -> Floats:
        """The part of what comes from beyond the second-level cache that nothing prefetches [P]."""
        (knob,) = (k for k in self.all_knobs() if k.name == "prefetch")
        parts = [0.0 if value == FAR else self.target.cost.unhinted_ratio for value in knob.values]
        return np.array(parts)[self.index(points, "prefetch")]

    def sum_cycles(self, loaded: float, additions: float, stored: float) -> float:
        """Cycles of vectors that are loaded, added up and stored."""
        cost = self.target.cost
        return loaded / cost.load_ports + additions / self.target.fma_ports + stored * cost.store_cycles

    def row_counts(self, name: str) -> tuple[int, ...]:
        """Rows of a register tile: the least for each number of tiles in a chunk; and what rules take."""
        extents = self.chunks() if name == self.chunked else (self.gemm.ranges[name],)
        counts = {n for extent in extents for n in _even(extent) if n < self.target.vector.registers}
        return tuple(sorted(counts | {int(self.start_values()[f"rows.{name}"])}))

    def knobs_of(self, values: Values, by_rows: bool = False) -> TiledKnobs:
        """What of `values` the products' register tile is made of."""
        rows = tuple((n, values[f"rows.{n}"]) for n in self.gemm.inside)
        steps, prefetch = values["steps"], values["prefetch"]
        return TiledKnobs(rows, values["vectors"], values["chunk"], by_rows, None, steps, prefetch)

    def kernel_schedule(
        self,
        knobs: TiledKnobs,
        at: Inside | Root,
        macro: Sequence[Loop],
        parallel: Loop | None,
        prefetch: Mapping[str, Loop | Root],
    ) -> BlockSchedule:
        """The products' loops at `at`: `macro` around a micro-kernel of units, that of `macro` which is `parallel` to
        threads."""
        gemm, v, unit = self.gemm, self.gemm.vector, self.gemm.unit
        tiles: dict[str, tuple[int, ...]] = {v: gemm.tiles(knobs)[v], **{n: (c,) for n, c in knobs.rows}}
        tiles |= {n: depth for n in gemm.reduction if (depth := unit.tile(n))}
        micro, innermost = [*(Loop(n, 1) for n in gemm.inside), Loop(v, 1)], unit.loops(gemm, tiles)
        tags = dict.fromkeys(micro, "unroll") | innermost | ({parallel: "parallel"} if parallel else {})
        steps = gemm.unrolled_steps(knobs, tiles)
        tags |= dict.fromkeys(steps, "unroll")
        order = (*macro, *(Loop(n, 0) for n in gemm.reduction), *steps, *micro, *innermost)
        return BlockSchedule(at, "register", tiles, order, tags, (v,), prefetch)

    def spread(self, access: Load, extents: Mapping[str, int], parts: int) -> dict[str, Layout]:
        """The layout of the buffer of `access` over iterators of `extents`, its first `parts` dimensions over products,
        if it differs from the buffer's own."""
        buffer, domain = self.task.buffer(access.buffer), {n: Span(ZERO, count) for n, count in extents.items()}
        shape = tuple(span.extent for span in box(access, buffer.shape, domain, {}))
        layout = spread(buffer, shape, parts, self.target)
        return {buffer.name: layout} if layout != buffer.layout else {}

    def register_rows(self, points: Points) -> Ints:
        """Rows of the register tile [P x iterators]."""
        return self.columns(points, [f"rows.{n}" for n in self.gemm.inside])

    def tiles_fit(self, points: Points) -> Bools:
        """Whether registers hold the products' tile, which is no larger than a chunk [P]."""
        fit = fits(self.gemm, self.register_rows(points), self.column(points, "vectors"))
        if self.chunked in self.gemm.inside:
            fit &= self.column(points, f"rows.{self.chunked}") <= self.column(points, "chunk")
        return fit

    def product_cycles(self, points: Points) -> Floats:
        """Cycles of all products, chunk by chunk [P]."""
        chunk, cycles = self.column(points, "chunk"), np.zeros(len(points))
        names = (*(f"rows.{n}" for n in self.gemm.inside), "vectors")
        for size in map(int, np.unique(chunk)):
            which = chunk == size
            if (
                len(points) == 1 and size not in self._tables
            ):  # what a Sketch begins with, which may be all that is asked
                cycles[which] = self._cycles(size, np.column_stack([self.column(points, n) for n in names]))
            else:
                cycles[which] = self._table(size)[tuple(self.index(points[which], n) for n in names)]
        return cycles

    @cached_property
    def _tables(self) -> dict[int, Floats]:
        return {}

    def _table(self, chunk: int) -> Floats:
        """Cycles of all products in chunks of that size, for every register tile [rows.N..., vectors]."""
        if chunk not in self._tables:
            values = {k.name: k.values for k in self.all_knobs()}
            sizes = [values[f"rows.{n}"] for n in self.gemm.inside] + [values["vectors"]]
            every = np.array(list(product(*sizes)), np.int64)
            self._tables[chunk] = self._cycles(chunk, every).reshape([len(s) for s in sizes])
        return self._tables[chunk]

    def _cycles(self, chunk: int, tiles: Ints) -> Floats:
        """Cycles of all products in chunks of that size, for register `tiles` [T x rows and vectors]."""
        chunks = -(-self.gemm.anchor.ranges[self.chunked] // chunk)
        if chunk not in self._tiled:
            self._tiled[chunk] = self.gemm if chunk == self.first_chunk else self.products_in(chunk)
        return chunks * kernel_cycles(self._tiled[chunk], tiles[:, :-1], tiles[:, -1])

    @cached_property
    def _tiled(self) -> dict[int, Tiled]:
        """The products in chunks of each size, with what is worked out of them already."""
        return {}


def halved(extent: int) -> set[int]:
    """Sizes of chunks of `extent`: the least for twice as many again and again."""
    return {-(-extent // (1 << k)) for k in range((extent - 1).bit_length() + 1)}


def _even(extent: int) -> tuple[int, ...]:
    """Sizes of tiles along `extent`, the least for each number of them."""
    return tuple(sorted({-(-extent // k) for k in range(1, extent + 1)}))
