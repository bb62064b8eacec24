"""A Task on its way through passes: what derivation rules have made of it, tiles and intrinsics of its Blocks, and
where copies of tiles are placed. Its loops, from the outermost:

    loops over the tiles of each memory: spatial iterators, then reductions
                                  in the innermost of them operands are copied, and results are read
    loops inside a tile
    one application of an intrinsic
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from modelc.ir.block import Block, Task
from modelc.ir.candidate import BlockSchedule, Candidate, Stage
from modelc.ir.loop import ROOT, Inside, Loop
from modelc.ir.nest import INTRINSIC
from modelc.space.sketches.clean import applied, exposed, inlined


@dataclass(frozen=True)
class Application:
    """The application of an intrinsic that computes the innermost tile of a Block: `loops` are the Block's iterators
    with the extents of the tile, in the order of the intrinsic's own."""

    intrinsic: str
    loops: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Level:
    """The tiles of a Block for one memory: values that one takes of each iterator that is tiled, and the loops over
    tiles."""

    tile: Mapping[str, int]
    order: tuple[str, ...]


@dataclass(frozen=True)
class Tiling:
    """The tiles of a Block, `levels` from the outermost. In loops of the innermost level run `copies`, Blocks that copy
    operands into a local buffer, and `result`, a Block that reads results from a local buffer once their reduction is
    complete; each with its loop's iterator."""

    levels: tuple[Level, ...]
    copies: Mapping[str, str] = field(default_factory=dict)
    result: tuple[str, str] | None = None

    def at(self, block: str, iterator: str) -> Inside:
        """The place inside the innermost level's loop over `iterator`."""
        return Inside(block, Loop(iterator, sum(iterator in level.tile for level in self.levels) - 1))


@dataclass(frozen=True)
class Scheduling:
    """`task` is what `stages` made of the Task that is scheduled; `applications` and `tilings` are of its Blocks, by
    name; `padding` names Blocks that fill up operands around their edges."""

    task: Task
    stages: tuple[Stage, ...] = ()
    applications: Mapping[str, Application] = field(default_factory=dict)
    tilings: Mapping[str, Tiling] = field(default_factory=dict)
    padding: frozenset[str] = frozenset()

    @classmethod
    def of(cls, task: Task) -> Scheduling:
        """`task` after the clean-up that every Task gets, with plain loops."""
        stages: list[Stage] = []
        return cls(inlined(exposed(task, stages), stages), tuple(stages))

    def block(self, name: str) -> Block:
        block = self.task.block(name)
        assert isinstance(block, Block)
        return block

    @property
    def reductions(self) -> tuple[str, ...]:
        """The Blocks that read elements more than once: those that reduce, and have more than one result."""
        plain = (b for b in self.task.blocks if isinstance(b, Block) and b.points())
        return tuple(b.name for b in plain if b.reduction and any(i.extent > 1 for i in b.spatial))

    def after(self, rule: str, **args: str) -> tuple[Scheduling, str]:
        """After one more stage, and the name of the Block that it adds. Raises DoesNotApply."""
        before, stages = {b.name for b in self.task.blocks}, [*self.stages]
        task = applied(self.task, stages, rule, **args)
        (added,) = {b.name for b in task.blocks} - before
        return replace(self, task=task, stages=tuple(stages)), added

    def candidate(self) -> Candidate:
        """The Candidate of what was decided."""
        schedules = {b.name: self._loops(b) if isinstance(b, Block) else BlockSchedule() for b in self.task.blocks}
        for name, tiling in self.tilings.items():
            for copy, iterator in tiling.copies.items():
                schedules[copy] = replace(schedules[copy], at=tiling.at(name, iterator), scope="local")
            if tiling.result is not None:
                reader, iterator = tiling.result
                schedules[reader] = replace(schedules[reader], at=tiling.at(name, iterator))
                schedules[name] = replace(schedules[name], scope="local")
        return Candidate(schedules, self.stages)

    def _loops(self, block: Block) -> BlockSchedule:
        levels = self.tilings[block.name].levels if block.name in self.tilings else ()
        application = self.applications.get(block.name)
        names = [i.name for i in (*block.spatial, *block.reduction)]
        tiles, order = dict[str, tuple[int, ...]](), list[Loop]()
        for level in levels:
            for name in level.order:
                order.append(Loop(name, len(tiles.get(name, ()))))
                tiles[name] = (*tiles.get(name, ()), level.tile[name])
        order += [Loop(name, len(tiles.get(name, ()))) for name in names]
        tags: dict[Loop, str] = {}
        if application is not None:
            for name, extent in application.loops:
                tiles[name] = (*tiles.get(name, ()), extent)
                order.append(Loop(name, len(tiles[name])))
            tags = dict.fromkeys(order[-len(application.loops) :], f"{INTRINSIC}{application.intrinsic}")
        return BlockSchedule(ROOT, "arena", tiles, tuple(order), tags)
