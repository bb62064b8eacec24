"""Long sums in parts: the depth of a product is a loop level too (Ansor, table 1: reduction factorization; kc of Goto
and van de Geijn, Anatomy of High-Performance Matrix Multiplication, 2008).

    Y[m, n] += A[m, k] * B[k, n]        k:4096

    in turn        Y_parts[p, m, n] += A[m, p * 512 + k] * B[p * 512 + k, n]        p:8, k:512
                   Y[m, n] += Y_parts[p, m, n]                                      p:8
                   Y's loops are outside, p around rows and columns: panels of 512 steps stay in the nearest cache
                   while all rows go over them, and a register tile of Y_parts is added to Y where it was made
    side by side   the same, Y_parts in memory: its parts go to threads, and Y is a phase of its own
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import prod

from modelc.ir.block import Iter, Task
from modelc.ir.candidate import Stage
from modelc.ir.sizes import is_sized
from modelc.space.analysis.around import reduction_of
from modelc.space.rules.rule import DoesNotApply
from modelc.space.sketches.clean import applied
from modelc.space.sketches.prepare import padded
from modelc.space.sketches.vectorized import tiled_space
from modelc.space.tiling.tiled import Tiled

LONG = 1024  # steps of a sum, from which on parts are tried
TURNS = (256, 512, 1024)  # steps of parts in turn, about: panels of them stay near while all rows go over them
STREAMED = (8, 16)  # the same where one row goes over a matrix: so many of its rows are streamed side by side
BESIDE_HANDICAP = 1.3  # parts side by side take longer than one sum on fewer threads than there are cores
BESIDE = 4  # times as many parts side by side as cores, at most, and the results' tiles that are enough for a core


def in_parts(task: Task, stages: Sequence[Stage], whole: Tiled) -> list[Tiled]:
    """The one sum of `task`, which is tiled as `whole`, in parts, as each number of them and each order is tiled; none
    where it is short. Constants are packed as they are streamed: parts in turn are for operands that were computed, and
    for results of one vector, whose sum is one chain."""
    stages = [*stages]
    task = padded(task, stages)
    anchor = reduction_of(task)
    steps = prod(i.extent for i in anchor.reduction)
    if is_sized(prod(anchor.ranges.values())) or steps < LONG or len(anchor.writes) > 1 or anchor.where:
        return []
    depth = max(anchor.reduction, key=lambda i: i.extent)
    rows, counts = prod(whole.ranges[n] for n in whole.inside), list[tuple[int, bool]]()
    computed = any(r.load.buffer not in task.constants for r in whole.vectors())
    chain = prod(i.extent for i in anchor.spatial) <= whole.lanes
    if (computed or chain) and whole.unit.plain and not whole.sliding:
        sizes = STREAMED if rows == 1 else [size * depth.extent // steps for size in TURNS]
        counts += [(_divisor(depth.extent, depth.extent // max(1, size)), True) for size in sizes]
    tiles = prod(i.extent for i in anchor.spatial) // (whole.lanes * BESIDE)
    if whole.target.cores > 1 and tiles < BESIDE * whole.target.cores:
        counts += [(_divisor(depth.extent, n * whole.target.cores), False) for n in (1, BESIDE)]
    ways = list[Tiled]()
    for count, in_turn in dict.fromkeys((n, in_turn) for n, in_turn in counts if n > 1):
        with suppress(DoesNotApply):
            way = _parted(task, stages, depth, count, in_turn, whole)
            ways += [] if way is None else [way]
    return ways


def _divisor(extent: int, wanted: int) -> int:
    """The largest number of equal parts that is not above what is wanted."""
    return next(n for n in range(max(1, wanted), 0, -1) if extent % n == 0)


def _parted(task: Task, before: Sequence[Stage], depth: Iter, count: int, in_turn: bool, whole: Tiled) -> Tiled | None:
    """The sum over `depth` in `count` parts, tiled as `whole` is. Raises DoesNotApply where it cannot be cut."""
    stages, size = [*before], depth.extent // count
    place = {"block": reduction_of(task).name, "iter": depth.name}
    task = applied(task, stages, "rfactor", **place, size=size, parts="outer", count=count)
    return tiled_space(task, whole.target, stages, whole.unpacked, stored=not in_turn)[1]
