"""Computed operands in the order in which an intrinsic reads them: copies that are made while running.

pack_k     ... n0 k0 | k1 n1            a rectangle, transposed in registers
"""

from __future__ import annotations

from modelc.ir.block import Block, Task
from modelc.ir.candidate import BlockSchedule
from modelc.ir.expr import variables
from modelc.ir.loop import ROOT, Inside, Loop, Root
from modelc.space.analysis.access import accesses
from modelc.space.analysis.match import Match
from modelc.space.tiling.parallel import SERIAL_POINTS, parallel_first
from modelc.target import Target
from modelc.target.intrinsic import Operand


def packed_operand(match: Match, vector: str) -> tuple[Operand, str]:
    """The operand that moves with the columns, along iterator `vector`, and the buffer that it is."""
    (packed,) = [
        (o, load.buffer)
        for o in match.intrinsic.operands
        if o != match.intrinsic.accumulator and vector in variables(load := match.operands[o.name])
    ]
    return packed


def pack_schedule(
    task: Task, pack: Block, match: Match, vector: str, target: Target, at: Inside | Root, scope: str
) -> BlockSchedule:
    """The loops of the copy `pack` into the order of the operand of `match` that moves with its columns: rectangles
    between what is contiguous where it is read and what is contiguous where it is written."""
    operand, buffer = packed_operand(match, vector)
    (access,) = [r for r in match.block.reads if r.buffer == buffer]
    own = {str(i): pack.writes[0].indices[d] for d, i in enumerate(access.indices)}
    lanes, depth = match.intrinsic.accumulator.shape[-1], next(g for g in match.groups if g.reduce)
    column, step = str(own[vector]), str(own[depth.inner])
    (read,) = accesses(task, pack)[0]
    together = operand.digits[-1].extent if operand.digits[-1].iterator == depth.iterator else 1
    others = [Loop(i.name, 0) for i in pack.spatial if i.extent > 1 and i.name not in (column, step)]
    if read.strides[step] == 1:
        tiles = {column: (lanes,), step: (depth.tile,)}
        order = [*others, Loop(column, 0), Loop(step, 0), Loop(step, 1), Loop(column, 1)]
    else:
        tiles = {column: (lanes,), step: (together,)}
        order = [*others, Loop(step, 0), Loop(column, 0), Loop(column, 1), Loop(step, 1)]
    tags = {order[-2]: "unroll", order[-1]: "vector"}
    if at is ROOT and pack.points() >= SERIAL_POINTS:
        counts = {x: pack.ranges[x.iterator] // tiles.get(x.iterator, (1,))[0] for x in order[:-2]}
        order = [*parallel_first(order[:-2], counts, target), *order[-2:]]
        tags[order[0]] = "parallel"
    return BlockSchedule(at, scope, tiles, tuple(order), tags)


__all__ = ["pack_schedule", "packed_operand"]
