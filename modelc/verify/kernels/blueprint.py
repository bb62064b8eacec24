"""How one variant of a package was made: what its kernels are judged by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from modelc.ir.block import Block, Task
from modelc.ir.candidate import BlockSchedule, Candidate
from modelc.ir.graph import Graph
from modelc.ir.nest import INTRINSIC, Nest, phase_regions
from modelc.ir.program import Program
from modelc.verify.kernels.calls import Phases
from modelc.verify.kernels.rounding import Array

MOST_STEPS = 1 << 16  # of a sum that are followed one by one


@dataclass(frozen=True)
class Scheduled:
    """A Task and its schedule, under canonical names: `phases` are the buffers that each step of its kernel takes."""

    task: Task
    candidate: Candidate
    derived: Task
    phases: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, task: Task, candidate: Candidate, derived: Task, nest: Nest) -> Scheduled:
        phases = tuple(tuple(region.name for region in phase_regions(nest, phase)) for phase in nest.phases)
        return cls(task, candidate, derived, phases)

    def order_of(self, block: Block) -> Array | None:
        """In which order the kernel adds up a reduction of the derived Task."""
        return order_of(block, self.candidate.blocks.get(block.name))


@dataclass(frozen=True)
class Blueprint:
    """The imported `graph` of a variant, the `program` that was made of it, and how its Tasks were `scheduled`, by the
    Task's hash."""

    graph: Graph
    program: Program
    scheduled: Mapping[str, Scheduled]

    @cached_property
    def phases(self) -> Phases:
        return {key: scheduled.phases for key, scheduled in self.scheduled.items()}


def order_of(block: Block, schedule: BlockSchedule | None) -> Array | None:
    """In which order a kernel adds up: the numbers of a reduction's points, steps x lanes, by its loops from the
    outermost inwards. A vector loop is one step, of which the lanes are added up by halves.

        reduce c:64 r:3, tiles c [16], order c0 r0 c1       0, 3, 6, ... 45, 1, 4, ...   row-major (c, r)

    None where an instruction adds up several by itself, where what the Block is placed in goes over its reduction, or
    where there are too many."""
    ranges = {i.name: i.extent for i in block.reduction if i.extent > 1}
    if schedule is None or prod(ranges.values()) > MOST_STEPS:
        return None
    if not ranges:
        return np.zeros((1, 1), np.int64)
    loops = [loop for loop in schedule.order if loop.iterator in ranges]
    tags = {loop: schedule.tags.get(loop, "") for loop in loops}
    if {loop.iterator for loop in loops} != ranges.keys() or any(tag.startswith(INTRINSIC) for tag in tags.values()):
        return None
    sizes = {name: (extent, *schedule.tiles.get(name, ())) for name, extent in ranges.items()}
    if len(loops) != sum(map(len, sizes.values())):
        return None
    lanes = [loop for loop in loops if tags[loop] == "vector"]
    in_turn = [loop for loop in loops if loop not in lanes] + lanes
    counts = [_trips(sizes[loop.iterator], loop.level) for loop in in_turn]
    grid = np.indices(counts).reshape(len(counts), -1)
    values = {i.name: np.zeros(grid.shape[1], np.int64) for i in block.reduction}
    inside = np.ones(grid.shape[1], bool)
    for loop, trip in sorted(zip(in_turn, grid, strict=True), key=lambda pair: -pair[0].level):
        own = sizes[loop.iterator][loop.level :]
        values[loop.iterator] = values[loop.iterator] + trip * (own[1] if len(own) > 1 else 1)
        inside &= values[loop.iterator] < own[0]
    width = prod(count for loop, count in zip(in_turn, counts, strict=True) if loop in lanes)
    if width > 1 and (not inside.all() or width & (width - 1)):
        return None
    extents = [i.extent for i in block.reduction]
    numbers = np.ravel_multi_index([values[i.name][inside] for i in block.reduction], extents)
    return np.asarray(numbers).reshape(-1, width)


def _trips(sizes: tuple[int, ...], level: int) -> int:
    """How often the loop of a level runs: over tiles of the next size, or one by one within the last."""
    return -(-sizes[level] // sizes[level + 1]) if level + 1 < len(sizes) else sizes[level]
