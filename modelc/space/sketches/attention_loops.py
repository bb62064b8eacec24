"""The loops of attention around one tile of query rows: their order, the parallel loop, the places of key and value
copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from modelc.ir.block import Block
from modelc.ir.candidate import BlockSchedule, Stage
from modelc.ir.expr import Load, variables
from modelc.ir.loop import ROOT, Inside, Loop, Root
from modelc.space.analysis.access import stored_lanes
from modelc.space.sketch import Sketch
from modelc.space.sketches.attention_keys import far_keys
from modelc.space.sketches.attention_roles import Roles, width_of
from modelc.space.sketches.attention_units import Unit
from modelc.space.sketches.maps import map_schedule
from modelc.space.sketches.packing import pack_schedule
from modelc.space.tiling.parallel import SERIAL_POINTS, parallel_first
from modelc.target import Target


class AttentionLoops(Sketch):
    """A Sketch of attention, as far as its loops around a tile of query rows."""

    def __init__(self, roles: Roles, target: Target, stages: tuple[Stage, ...], units: Mapping[str, Unit]) -> None:
        name = "+".join(dict.fromkeys(u.match.intrinsic.name for u in units.values())) or "vectors"
        super().__init__("attention", name, roles.task, target, stages)
        self.roles, self.units, self.root = roles, units, self.root_of(roles)
        self.doubt = target.cost.unit_doubt_share if units else 0.0
        self._vectors = {b.name: self._vector(b) for b in self.contractions()}
        if roles.join is not None and roles.values is not None:
            self._vectors[roles.join.name] = roles.followed[self._vectors[roles.values.name]]
        self.parts = roles.parts if self.root is roles.join else 1  # that are computed in turn for every tile
        self.dtype = self.task.buffer(roles.scores.writes[0].buffer).dtype
        self.lanes = stored_lanes(target, self.dtype)
        self.keys = roles.scores.ranges[roles.iters[roles.scores.name][roles.key]]
        self.queries = roles.scores.ranges[roles.iters[roles.scores.name][roles.query]]

    def root_of(self, roles: Roles) -> Block:
        """The Block whose loops are around all others'."""
        return roles.root

    def contractions(self) -> list[Block]:
        return [b for b in (self.roles.scores, self.roles.values) if b is not None]

    def vector(self, block: Block) -> str:
        return self._vectors[block.name]

    def _vector(self, block: Block) -> str:
        if block is self.roles.scores:
            return self.iterator(block, self.roles.key)
        width = width_of(self.task, block)
        assert width is not None
        return width

    def iterator(self, block: Block, dim: int) -> str:
        return self.roles.iters[block.name][dim]

    def lead_loops(self, root: Block | None = None) -> list[Loop]:
        """The root's loops around a tile: batch and heads, those that keys move with outside; then the tiles."""
        roles, root = self.roles, root or self.root
        dims = [d for d, n in enumerate(roles.iters[root.name]) if n and root.ranges[n] > 1]
        dims = [d for d in dims if d not in (roles.key, roles.query)]
        dims.sort(key=lambda d: not self.moves_keys(d))
        return [Loop(self.iterator(root, d), 0) for d in (*dims, roles.query)]

    def loops_for_threads(self) -> list[Loop]:
        """Those of these loops that may go to threads."""
        return self.lead_loops()

    def lead(self, parallel: Loop) -> list[Loop]:
        """The same with the one in front whose iterations go to threads."""
        return [parallel, *(loop for loop in self.lead_loops() if loop != parallel)]

    def phases(self, parallel: Loop, tile: int) -> int:
        """Copies of all keys or values that are phases of their own."""
        return sum(self.copied_at(pack, self.lead(parallel), tile) is ROOT for pack in self.roles.packs)

    def trips(self, loop: Loop, tile: int) -> int:
        """Iterations of one of these loops."""
        extent, size = self.span(loop, tile)
        return -(-extent // size)

    def span(self, loop: Loop, tile: int) -> tuple[int, int]:
        """(how many values of its iterator one of these loops covers, how many one of its iterations does)."""
        over_tiles = loop.iterator == self.iterator(self.root, self.roles.query)
        return self.root.ranges[loop.iterator], tile if over_tiles else 1

    def first_loop(self, tile: int) -> Loop:
        """The loop that goes to threads by rule: the outermost with enough iterations for all, else the longest."""
        loops = self.loops_for_threads()
        return parallel_first(loops, {loop: self.trips(loop, tile) for loop in loops}, self.target)[0]

    def moves_keys(self, dim: int) -> bool:
        """Whether other keys belong to another element of this dimension."""
        key = self.iterator(self.roles.scores, self.roles.key)
        keyed = [r for r in self.roles.scores.reads if key in variables(r)]
        return any(self.iterator(self.roles.scores, dim) in variables(r) for r in keyed)

    @property
    def long(self) -> bool:
        """Whether there is enough to do for threads."""
        return self.roles.scores.points() >= SERIAL_POINTS

    def copied_at(self, block: Block, lead: Sequence[Loop], tile: int) -> Inside | Root:
        """Where a copy of keys or values is made: in the innermost loop that it moves with, before one it does not."""
        roles, (reader, read), inside = self.roles, self.copy_read(block), None
        for loop in lead:
            dim = roles.iters[self.root.name].index(loop.iterator)
            if self.iterator(reader, dim) not in variables(read):
                break
            inside = loop
        return ROOT if inside is None else Inside(self.root.name, inside)

    def copy_read(self, block: Block) -> tuple[Block, Load]:
        """What reads a copy of keys or values, and how."""
        buffer = block.writes[0].buffer
        reader = next(b for b in self.contractions() if buffer in b.buffers_read)
        (read,) = [r for r in reader.reads if r.buffer == buffer]
        return reader, read

    def pack(self, block: Block, at: Inside | Root) -> BlockSchedule:
        """The loops of a copy of keys or values."""
        reader, _ = self.copy_read(block)
        scope = "arena" if at is ROOT else "local"
        unit = self.units.get(reader.name)
        if unit is not None and unit.packed[1] == block.writes[0].buffer:
            return pack_schedule(self.task, block, unit.match, unit.vector, self.target, at, scope)
        return map_schedule(self.task, block, self.target, at, scope)

    @cached_property
    def far_keys(self) -> Load | None:
        """The copy of a head's keys, as vectors read it, that is too large to stay near for every tile."""
        return None if self.units else far_keys(self.roles, self.parts, self.dtype, self.target)

    def keeps_keys(self, tile: int) -> bool:
        """Whether a copy of keys is of all of them, for tiles of `tile` query rows."""
        return True
