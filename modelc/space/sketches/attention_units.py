"""Contractions of attention by intrinsics of the target (TensorIR, section 4): both of their operands are computed.

What moves with the columns (keys, values) is copied once for a head, into the order in which the intrinsic reads it;
rows are read as they lie. Accumulators of several rows are taken to memory first, by a Block of their own (`store`).

    pack_k     ... n0 k0 | k1 n1            a rectangle, transposed in registers
    scores     ... n0 m0 k0 | m1 n1 | m2 n2 k1
    store              m0 n0 | m1 n1
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

from modelc.ir.block import Block, Task
from modelc.ir.expr import Var, variables
from modelc.ir.layout import Layout
from modelc.ir.loop import Loop
from modelc.ir.nest import INTRINSIC
from modelc.space.analysis.match import CannotPack, Group, Match, matches
from modelc.space.cost.step import step_cycles, tile_step_cycles
from modelc.space.rules.rule import sole_map
from modelc.space.sketches.packing import packed_operand
from modelc.space.sketches.tensorized import LEAST_EFFICIENCY, even_tiles, ragged
from modelc.target import CostParameters, Target
from modelc.target.intrinsic import Operand


@dataclass(frozen=True)
class Unit:
    """A contraction and the intrinsic that computes it, columns along iterator `vector`."""

    match: Match
    vector: str

    @cached_property
    def packed(self) -> tuple[Operand, str]:
        """The operand that moves with the columns, and the buffer that it is."""
        return packed_operand(self.match, self.vector)

    @property
    def lanes(self) -> int:
        return self.match.intrinsic.accumulator.shape[-1]

    @property
    def row(self) -> int:
        """Rows of one application; 1 where accumulators are single vectors."""
        return prod(self.match.intrinsic.accumulator.shape[:-1])

    @property
    def stores_accumulators(self) -> bool:
        """Whether accumulators are of several rows: nothing else than memory can take them."""
        return len(self.match.intrinsic.accumulator.shape) > 1

    @property
    def inner(self) -> dict[str, int]:
        """The Block's iterators that an application covers, and how much of each."""
        return {g.inner: g.tile for g in self.match.groups}

    def lengths(self) -> dict[str, int]:
        """The Block's reduction iterators that do not fill whole applications, and how long they are when they do."""
        return {g.inner: g.padded for g in self.match.groups if g.reduce and g.padded != g.extent}

    def loops(self, tiles: Mapping[str, tuple[int, ...]]) -> dict[Loop, str]:
        """The loops of one application, with their tags."""
        names = [self.match.group(i.name).inner for i in self.match.intrinsic.semantics.iters]
        return {Loop(n, len(tiles[n])): f"{INTRINSIC}{self.match.intrinsic.name}" for n in names}

    def layout(self, vectors: int) -> Layout:
        """How the packed operand is stored for register tiles of so many vectors."""
        return self.match.packing(self.packed[0].name, {self.match.intrinsic.accumulator.digits[-1].iterator: vectors})

    def register_tile(self, tile: int, target: Target) -> tuple[int, int]:
        """(rows, vectors) of the register tile with the fewest estimated cycles for a tile of `tile` rows."""
        choices, registers = [], target.vector.registers
        for rows, vectors in product(*(range(1, min(n, registers) + 1) for n in self._counts(tile))):
            if self.held(rows, vectors, registers):
                choices.append((self.cycles(rows, vectors, tile, target.cost), -vectors, rows))
        _, vectors, rows = min(choices)
        return rows * self.row, -vectors

    def _counts(self, tile: int) -> tuple[int, int]:
        """Applications along `tile` rows and along the columns."""
        return -(-tile // self.row), -(-self.match.block.ranges[self.vector] // self.lanes)

    def cycles(self, rows: int, vectors: int, tile: int, cost: CostParameters) -> float:
        """Cycles for a tile of `tile` rows by register tiles of so many applications."""
        intrinsic = self.match.intrinsic
        steps = prod(g.padded // g.tile for g in self.match.groups if g.reduce)
        products, latency = rows * vectors / intrinsic.throughput, float(intrinsic.latency)
        if intrinsic.tiles is not None:
            step = tile_step_cycles(cost, products, float((rows + vectors) * intrinsic.tiles.rows), 0.0, latency)
        else:
            step = step_cycles(cost, products, 0.0, float(rows + vectors), latency)
        around = cost.tile_cycles
        if self.stores_accumulators:
            around = cost.accumulator_store_cycles * self.row * rows * vectors
        times = prod(-(-n // own) for n, own in zip(self._counts(tile), (rows, vectors), strict=True))
        return times * (steps * step + around)

    def held(self, rows: int, vectors: int, registers: int) -> bool:
        """Whether registers hold a register tile of so many applications with what it multiplies."""
        tiles = self.match.intrinsic.tiles
        if tiles is not None:
            return rows * vectors + (rows + vectors if min(rows, vectors) > 1 else 2) <= tiles.count
        return rows * vectors + vectors + 1 + self.match.intrinsic.temporaries <= registers


def unit_of(task: Task, block: Block, vector: str, target: Target) -> Unit | None:
    """The fastest intrinsic of the target that computes `block` with columns along `vector`, if there is one that
    multiplies more in a cycle than plain vectors do, and rows enough for one application."""
    buffers = {b.name: b for b in task.buffers}
    packed = {r.buffer for r in block.reads if vector in variables(r)}
    choices: list[tuple[float, Unit | None]] = [(float(target.lanes("float32") * target.fma_ports), None)]
    for intrinsic in target.available_intrinsics:
        if intrinsic.products * intrinsic.throughput <= choices[0][0]:
            continue
        for whole in matches(block, buffers, intrinsic, packed):
            rows = [whole.group(d.iterator) for d in intrinsic.accumulator.digits[:-1]]
            if any(g.extent < g.tile for g in rows):  # too few that read what is packed
                continue
            cut = intrinsic.cut(_extents(task, whole, packed)) if intrinsic.tiles is not None else intrinsic
            ways = matches(block, buffers, cut, packed)
            alike = [m for m in ways if m.operands == whole.operands and _fits(task, m, vector, packed)]
            units = [Unit(m, vector) for m in alike]
            choices += [(cut.products * cut.throughput, unit) for unit in units]
    return max(choices, key=lambda f: f[0])[1]


def _extents(task: Task, whole: Match, packed: Collection[str]) -> dict[str, int]:
    """The part of an intrinsic's tile to use: equal tiles of rows, and reduction steps padded up to a whole number of
    tiles."""
    result = even_tiles(whole)
    for group in whole.groups:
        if group.reduce and _filled(task, whole, group, packed):
            step = max(d.step for o in whole.intrinsic.operands for d in o.digits if d.iterator == group.iterator)
            result[group.iterator] = min(group.tile, -(-group.extent // step) * step)
    return result


def _filled(task: Task, match: Match, group: Group, packed: Collection[str]) -> bool:
    """Whether a reduction can be filled up with zeros: what it reads is copied, or made by a map."""
    name = group.inner
    for read in match.block.reads:
        dims = [d for d, i in enumerate(read.indices) if name in variables(i)]
        if not all(read.indices[d] == Var(name) for d in dims) or len(dims) > 1:
            return False
        if dims and read.buffer not in packed and sole_map(task, read.buffer, dims[0]) is None:
            return False
    return True


def _fits(task: Task, match: Match, vector: str, packed: Collection[str]) -> bool:
    """Whether columns are the vectors', an application takes one iterator of each kind, the reduction is whole tiles or
    can be made so, and what is multiplied is packed or lies in a row."""
    intrinsic = match.intrinsic
    lanes = match.group(intrinsic.accumulator.digits[-1].iterator)
    if match.guards or lanes.inner != vector or any(g.outer for g in match.groups):
        return False
    if not any(g.reduce for g in match.groups):
        return False
    uneven = [g for g in match.groups if g.reduce and ragged(match, g.iterator)]
    if match.efficiency < LEAST_EFFICIENCY or not all(_filled(task, match, g, packed) for g in uneven):
        return False
    for operand in intrinsic.operands:
        access, strides = match.operands[operand.name], match.strides[operand.name]
        if operand == intrinsic.accumulator:
            continue
        if vector in variables(access):
            try:
                match.packing(operand.name)
            except CannotPack:
                return False
            if not all(isinstance(i, Var) for i in access.indices if variables(i)) or len(operand.digits) < 2:
                return False
        elif strides is None or (strides and operand.digits[-1].extent > 1 and strides[-1] != 1):
            return False
    return True


__all__ = ["Unit", "unit_of"]
