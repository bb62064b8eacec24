"""Which loops go to threads, from how much work on, and how evenly.

One loop goes to threads by a Sketch's knob. Where its iterations do not divide evenly among cores, the loops inside it
go with it (Ansor's fused parallel loops, section 4.2): iterations of all together are counted as of one loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np
from numpy.typing import ArrayLike, NDArray

from modelc.ir.block import Block, Task
from modelc.ir.candidate import BlockSchedule, Candidate
from modelc.ir.loop import ROOT, Inside, Loop, Root
from modelc.ir.sizes import is_sized
from modelc.space.analysis.loops import span
from modelc.target import Target

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Spans = Sequence[tuple[ArrayLike, ArrayLike]]  # of loops: (values of the iterator in all, and in one iteration)

SERIAL_POINTS = 1 << 13  # work below this many points is not worth waking a thread for
CHUNKS_PER_CORE = 4  # a parallel loop has at least this many iterations per core where the extent allows it


def busiest_share(spans: Spans, cores: int, joining: Target | None = None) -> Floats:
    """The part of the work that the busiest of `cores` cores has, where the loops of `spans` go to threads together (of
    them, those that joined() says for a Target): iterations go to cores in as many chunks as there may be, and
    the last of a single loop is cut off at the end. The sizes and the result are broadcast to each other."""
    counts = _counts(spans)
    which = joined(spans, joining) if joining else [np.ones((), np.bool_)] * len(spans)
    trips = reduce(np.multiply, (np.where(there, n, 1) for there, n in zip(which, counts, strict=True)))
    return _share(spans[0], trips, cores)


def joined(spans: Spans, target: Target) -> list[Bools]:
    """Which of the loops that may go to threads together do, the outermost first: further ones as long as the busiest
    core of `target` has more than its part of the work."""
    which, trips = list[Bools](), np.ones((), np.int64)
    uneven = np.ones((), np.bool_)
    for count in _counts(spans):
        which.append(uneven)
        trips = trips * count
        uneven = uneven & (_share(spans[0], trips, target.cores) > target.cost.uneven_ratio / target.cores)
    return which


def _share(first: tuple[ArrayLike, ArrayLike], trips: NDArray[np.int64], cores: int) -> Floats:
    """busiest_share() of `trips` iterations, of the loop `first` or of it and others inside."""
    extent, tile = (np.asarray(x, np.int64) for x in first)
    own = -(-extent // tile)
    chunks = np.minimum(trips, cores * CHUNKS_PER_CORE)
    most, alone = -(-chunks // cores), trips == own  # chunks of one core
    left_out = np.where(alone & (chunks % cores == 1 % cores), own * tile - extent, 0)
    values = np.where(alone & (trips != chunks), extent * most / chunks, most * own * tile / chunks - left_out)
    return np.asarray(np.minimum(1.0, values / extent), np.float64)


def _counts(spans: Spans) -> list[NDArray[np.int64]]:
    """Iterations of each loop."""
    return [np.asarray(-(-np.asarray(extent) // np.asarray(tile)), np.int64) for extent, tile in spans]


def parallel_first(loops: list[Loop], trips: Mapping[Loop, int], target: Target) -> list[Loop]:
    """`loops` with the one in front whose iterations go to threads: of those in `trips` the outermost with enough for
    all, else the longest."""
    many = (loop for loop in trips if trips[loop] >= 2 * target.cores)
    first = next(many, None) or max(trips, key=trips.__getitem__)
    return [first, *(loop for loop in loops if loop != first)]


def with_joined_loops(task: Task, candidate: Candidate, target: Target) -> Candidate:
    """`candidate`, a schedule of `task`, in which loops inside a parallel one go to threads with it where that has too
    few iterations: loops over whole spatial iterators, up to one that storage or another Block is in."""
    if target.cores == 1:
        return candidate
    taken = {s.at for s in candidate.blocks.values()}
    blocks = dict(candidate.blocks)
    for block in (b for b in task.blocks if isinstance(b, Block)):
        schedule = blocks[block.name]
        if schedule.at is ROOT and schedule.order and schedule.tags.get(schedule.order[0]) == "parallel":
            blocks[block.name] = _with_joined(block, schedule, taken, target)
    return replace(candidate, blocks=blocks)


def _with_joined(block: Block, schedule: BlockSchedule, taken: set[Inside | Root], target: Target) -> BlockSchedule:
    spatial = {i.name for i in block.spatial}
    loops = [schedule.order[0]]
    for loop in schedule.order[1:]:
        open_loop = loop.iterator in spatial and not loop.level and loop not in schedule.tags
        if not open_loop or Inside(block.name, loops[-1]) in taken:
            break
        loops.append(loop)
    spans = [span(loop, block.ranges, schedule.tiles) for loop in loops]
    if any(is_sized(extent) for extent, _ in spans):
        return schedule
    tags = {loop: "parallel" for loop, taken_too in zip(loops, joined(spans, target), strict=True) if taken_too}
    return replace(schedule, tags={**schedule.tags, **tags})
