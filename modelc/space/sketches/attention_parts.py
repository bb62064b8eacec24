"""Attention over keys in parts (the online softmax; rules/online.py): no row of scores is longer than a part.

in turn        for m0                a tile of query rows
                 for p               the parts, one after the other: FlashAttention (Dao et al., 2022)
                   scores, rows, weighted sums of the part's keys
                 shares of the parts, and their sum
side by side   parallel p            parts go to threads: Flash-Decoding (Dao et al., 2023)
                 for m0
                   scores, rows, weighted sums of the part's keys, stored
               parallel h0           shares of the parts, and their sum: a phase of its own
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import prod

from modelc.ir.block import Block, Task
from modelc.ir.candidate import BlockSchedule, Candidate, Stage
from modelc.ir.expr import DTYPES, variables
from modelc.ir.loop import Inside, Loop, Root
from modelc.ir.sizes import is_sized
from modelc.space.rules.rule import DoesNotApply
from modelc.space.sketch import Values
from modelc.space.sketches.attention import MAX_TILE, Attention, RegisterTile
from modelc.space.sketches.attention_roles import Roles, prepared, roles_of
from modelc.space.sketches.attention_units import Unit
from modelc.space.sketches.maps import map_schedule
from modelc.space.sketches.parts import BESIDE, LONG, divisor
from modelc.space.tiling.parallel import SERIAL_POINTS, parallel_first
from modelc.target import Target

TURNS = (512, 1024)  # keys of parts in turn, about


class InParts(Attention):
    """What both ways have in common; `way` is what a Sketch's name says of it."""

    way = ""

    def __init__(self, roles: Roles, target: Target, stages: tuple[Stage, ...], units: Mapping[str, Unit]) -> None:
        super().__init__(roles, target, stages, units)
        self.name = f"{self.name}, {roles.parts} parts {self.way}"

    def joined(self, kernel: RegisterTile, lead: Sequence[Loop], tile: int) -> dict[str, BlockSchedule]:
        """What makes a whole of the parts, inside the loops `lead`."""
        join, joined = self.roles.join, self.roles.joined
        assert join is not None
        at, place = Inside(join.name, lead[-1]), joined.index(join)
        before = {b.name: map_schedule(self.task, b, self.target, at, "local") for b in joined[:place]}
        long = self.long if join is self.root else join.points() >= SERIAL_POINTS
        return before | self.rooted(join, joined[place + 1 :], kernel, lead, tile, long)


class InTurn(InParts):
    """Parts one after the other, for every tile of query rows."""

    way = "in turn"

    def root_of(self, roles: Roles) -> Block:
        assert roles.join is not None
        return roles.join

    @property
    def part_loop(self) -> Inside:
        """The loop over the parts."""
        assert self.roles.values is not None
        return Inside(self.roles.values.name, Loop(self.iterator(self.roles.values, 0), 0))

    def inside(self, lead: Sequence[Loop]) -> Inside:
        return self.part_loop

    def copied_at(self, block: Block, lead: Sequence[Loop], tile: int) -> Inside | Root:
        """Part by part where one tile has all rows; else once for all tiles."""
        reader, read = self.copy_read(block)
        by_parts = not self.keeps_keys(tile) and self.iterator(reader, 0) in variables(read)
        return self.part_loop if by_parts else super().copied_at(block, lead, tile)

    def keeps_keys(self, tile: int) -> bool:
        return tile < self.queries

    def weighing(self, kernel: RegisterTile, lead: Sequence[Loop], tile: int) -> dict[str, BlockSchedule]:
        values, at = self.roles.values, Inside(self.root.name, lead[-1])
        assert values is not None
        result = self.contraction(values, self.roles.results, kernel, at, "local")
        schedule = result[values.name]
        result[values.name] = replace(schedule, order=(self.part_loop.loop, *schedule.order))
        return result | self.joined(kernel, lead, tile)

    def traffic(self, tile: int, by_rows: bool = False) -> float:
        """Cycles that farther caches add: also for the parts' weighted sums, which are written and read to be
        added up, and for a copy of all keys, whose lines are fetched and written."""
        size, values = DTYPES[self.dtype].itemsize, self.roles.values
        assert values is not None
        row, cycles = self.parts * values.ranges[self.vector(values)] * size, super().traffic(tile, by_rows)
        if tile * row > self.target.caches[0].bytes:
            cycles += self.moved(2 * self.queries * row, tile * row)
        if self.roles.packs and self.keeps_keys(tile):
            copied = self.parts * self.keys * prod(i.extent for i in self.roles.scores.reduction) * size
            cycles += self.moved(2 * copied, copied)
        return cycles


class SideBySide(InParts):
    """Parts as heads of their own, and what makes a whole of them as a phase."""

    way = "side by side"

    def loops_for_threads(self) -> list[Loop]:
        """Parts and heads, and not tiles of rows."""
        return self.lead_loops()[:-1]

    def candidate_of(self, values: Values) -> Candidate:
        """Maxima and sums of the parts are stored too."""
        candidate, read = super().candidate_of(values), {x for b in self.roles.joined for x in b.buffers_read}
        of_rows = (b for b in (*self.roles.before, *self.roles.after) if b.writes[0].buffer in read)
        stored = {b.name: replace(candidate.blocks[b.name], scope="arena") for b in of_rows}
        return replace(candidate, blocks={**candidate.blocks, **stored})

    def weighing(self, kernel: RegisterTile, lead: Sequence[Loop], tile: int) -> dict[str, BlockSchedule]:
        join = self.roles.join
        assert join is not None
        loops = self.lead_loops(join)
        trips = {loop: join.ranges[loop.iterator] for loop in loops[:-1]} | {loops[-1]: -(-self.queries // tile)}
        after = self.joined(kernel, parallel_first(loops, trips, self.target), tile)
        return super().weighing(kernel, lead, tile) | after

    def traffic(self, tile: int, by_rows: bool = False) -> float:
        """Cycles that farther caches add, those of the part's weighted sums among them: written, and read to be added
        up."""
        values = self.roles.values
        assert values is not None
        part = self.queries * values.ranges[self.vector(values)] * DTYPES[self.dtype].itemsize
        return super().traffic(tile, by_rows) + self.moved(2 * part, part * self.roles.parts)


def attention_in_parts(task: Task, target: Target, stages: Sequence[Stage], whole: Attention) -> list[InParts]:
    """The Sketches of attention over keys in parts, on vectors; `whole`: the same over all keys at once."""
    sketches, keys = list[InParts](), whole.keys
    if is_sized(keys) or keys < LONG:
        return []
    cores, tiles = target.cores, prod(whole.trips(loop, MAX_TILE) for loop in whole.lead_loops())
    beside = [cores, BESIDE * cores, max(cores, keys // TURNS[-1])] if cores > 1 and tiles < BESIDE * cores else []
    ways = [(InTurn, keys // size) for size in TURNS] + [(SideBySide, number) for number in beside]
    for way, count in dict.fromkeys((way, divisor(keys, number)) for way, number in ways):
        with suppress(DoesNotApply):
            sketches.append(in_parts(task, target, stages, way, count))
            sketches[-1].handicap = whole.handicap
    return sketches


def in_parts(task: Task, target: Target, stages: Sequence[Stage], way: type[InParts], count: int) -> InParts:
    """The Sketch of attention in one `way` over keys in `count` parts. Raises DoesNotApply."""
    noted = [*stages]
    ready, units = prepared(task, target, noted, False, count)
    roles = roles_of(ready)
    if roles is None or roles.join is None:
        raise DoesNotApply("what the parts give is not added up by one sum")
    return way(roles, target, tuple(noted), units)
