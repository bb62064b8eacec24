"""tensorize: the innermost tile of a Block is one application of an intrinsic (Stripe, section 2.3,
microarchitectural stenciling; TensorIR, section 4.2). What pads an operand along the tile is done in a copy first."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from modelc.errors import ConfigError
from modelc.ir.expr import variables
from modelc.space.analysis.match import Match, matches
from modelc.space.passes.scheduling import Application, Scheduling
from modelc.space.rules.rule import DoesNotApply
from modelc.target import Target


@dataclass(frozen=True)
class Tensorize:
    """The first intrinsic of the target that computes a Block in memory, and whose tile divides it, is applied there;
    other Blocks keep plain loops."""

    target: Target

    def __post_init__(self) -> None:
        if not self.target.unimplemented:
            raise ConfigError(
                "it needs an intrinsic whose operands lie in memory, without an implementation; the target lists none"
            )

    def __call__(self, scheduling: Scheduling) -> Scheduling:
        for name in scheduling.reductions:
            scheduling = self.tensorized(scheduling, name)
        return scheduling

    def tensorized(self, scheduling: Scheduling, name: str) -> Scheduling:
        """`scheduling` with an intrinsic for Block `name`, if there is one."""
        buffers = {b.name: b for b in scheduling.task.buffers}
        for intrinsic in self.target.unimplemented:
            for match in matches(scheduling.block(name), buffers, intrinsic, buffers):
                loops = whole_tiles(match)
                padded = None if loops is None else unguarded(scheduling, name, dict(loops))
                if loops is not None and padded is not None:
                    applied = Application(intrinsic.name, loops)
                    return replace(padded, applications={**padded.applications, name: applied})
        return scheduling


def whole_tiles(match: Match) -> tuple[tuple[str, int], ...] | None:
    """The Block's iterators that the intrinsic's tile divides, with its extents, in the order of the intrinsic's."""
    loops = []
    for iterator in match.intrinsic.semantics.iters:
        group = match.group(iterator.name)
        members = (group.inner, *reversed(group.outer))  # the nearest in memory first
        divided = [name for name in members if match.block.ranges[name] % group.tile == 0]
        if not divided:
            return None
        loops.append((divided[0], group.tile))
    return tuple(loops)


def unguarded(scheduling: Scheduling, name: str, tile: dict[str, int]) -> Scheduling | None:
    """`scheduling` with no condition of Block `name` that differs within a tile: what it guards is read from a copy
    with its padding. None where that does not do away with all of them."""
    for buffer in sorted(scheduling.block(name).buffers_read):
        if not any(variables(condition) & tile.keys() for condition in scheduling.block(name).where):
            break
        with suppress(DoesNotApply):
            scheduling, copy = scheduling.after("pad", block=name, buffer=buffer)
            scheduling = replace(scheduling, padding=scheduling.padding | {copy})
    guarded = any(variables(condition) & tile.keys() for condition in scheduling.block(name).where)
    return None if guarded else scheduling
