"""Long sums in parts: the depth of a product is a loop level too (Ansor, table 1: reduction factorization; kc of Goto
and van de Geijn, Anatomy of High-Performance Matrix Multiplication, 2008).

    Y[m, n] += A[m, k] * B[k, n]        k:4096

    in turn        Y_parts[p, m, n] += A[m, p * 512 + k] * B[p * 512 + k, n]        p:8, k:512
                   Y[m, n] += Y_parts[p, m, n]                                      p:8
                   Y's loops are outside, p around rows and columns: panels of 512 steps stay in the nearest cache
                   while all rows go over them, and a register tile of Y_parts is added to Y where it was made
                   where one row goes over a matrix, threads have strips of columns: n is two iterators, and a
                   strip's sums stay near while rows of B are streamed (nc of Goto and van de Geijn)
    side by side   the same, Y_parts in memory: its parts go to threads, and Y is a phase of its own
    along lanes    a part for each lane of a few vectors: a reduction of rows (reductions.py)
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import prod

from modelc.ir.block import Iter, Task
from modelc.ir.candidate import Stage
from modelc.ir.expr import Var
from modelc.ir.sizes import is_sized
from modelc.space.analysis.around import reduction_of
from modelc.space.rules.rule import DoesNotApply
from modelc.space.sketch import Sketch
from modelc.space.sketches.clean import applied
from modelc.space.sketches.contraction import Contraction
from modelc.space.sketches.prepare import padded
from modelc.space.sketches.reductions import row_sketches
from modelc.space.sketches.vectorized import tiled_space
from modelc.space.tiling.tiled import Tiled

LONG = 1024  # steps of a sum, from which on parts are tried
TURNS = (256, 512, 1024)  # steps of parts in turn, about: panels of them stay near while all rows go over them
STREAMED = (8, 16)  # the same where one row goes over a matrix: so many of its rows are streamed side by side
STRIPS = (1, 4)  # times as many strips as cores
BESIDE = 4  # times as many parts side by side as cores, at most, and the results' tiles that are enough for a core
BESIDE_HANDICAP = 1.3  # parts side by side take longer than one sum on fewer threads than there are cores


def part_sketches(task: Task, stages: Sequence[Stage], whole: Tiled) -> list[Sketch]:
    """The Sketches of the one sum of `task` in parts; none where it is short. `whole`: the same sum in one piece."""
    if is_sized(prod(whole.ranges.values())) or whole.steps < LONG:
        return []
    sketches = list[Sketch]()
    if 2 * whole.ranges[whole.vector] <= whole.lanes:
        sketches += row_sketches(task, whole.target, stages)
    stages = [*stages]
    task = padded(task, stages)
    anchor = reduction_of(task)
    if anchor.where:
        return sketches
    depth = max(anchor.reduction, key=lambda i: i.extent)
    for count, stored in _cuts(task, whole, depth):
        for strip in (0,) if stored else _strips(whole):
            with suppress(DoesNotApply):
                tiled = _tiled(task, stages, depth, count, stored, strip, whole)
                if tiled is not None:
                    sketches.append(Contraction(tiled))
                    sketches[-1].handicap = BESIDE_HANDICAP if stored else 1.0
    return sketches


def _cuts(task: Task, whole: Tiled, depth: Iter) -> list[tuple[int, bool]]:
    """(number of parts of `depth`, whether they are stored: side by side). Constants are packed as they are streamed:
    parts in turn are for operands that were computed, and for results of one vector, whose sum is one chain."""
    rows, results = prod(whole.ranges[n] for n in whole.inside), prod(i.extent for i in whole.anchor.spatial)
    computed = any(r.load.buffer not in task.constants for r in whole.vectors())
    cuts, cores = list[tuple[int, bool]](), whole.target.cores
    if (computed or results <= whole.lanes) and whole.unit.plain and not whole.sliding:
        sizes = STREAMED if rows == 1 else [size * depth.extent // whole.steps for size in TURNS]
        cuts += [(divisor(depth.extent, depth.extent // max(1, size)), False) for size in sizes]
    if cores > 1 and results // (whole.lanes * BESIDE) < BESIDE * cores:
        cuts += [(divisor(depth.extent, times * cores), True) for times in (1, BESIDE)]
    return [*dict.fromkeys((count, stored) for count, stored in cuts if count > 1)]


def _strips(whole: Tiled) -> list[int]:
    """Columns of strips that go to threads; 0: all of them are one."""
    cores, columns = whole.target.cores, whole.ranges[whole.vector]
    if cores == 1 or any(whole.ranges[n] > 1 for n in whole.inside) or columns % whole.lanes:
        return [0]
    counts = {divisor(columns // whole.lanes, times * cores) for times in STRIPS}
    return [columns // count if count > 1 else 0 for count in sorted(counts)]


def divisor(extent: int, wanted: int) -> int:
    """The largest number of equal parts that is not above what is wanted."""
    return next(n for n in range(max(1, wanted), 0, -1) if extent % n == 0)


def _tiled(
    task: Task, before: Sequence[Stage], depth: Iter, count: int, stored: bool, strip: int, whole: Tiled
) -> Tiled | None:
    """The sum over `depth` in `count` parts, in strips of so many columns if not 0, tiled as `whole` is. Raises
    DoesNotApply where it cannot be cut."""
    stages, size = [*before], depth.extent // count
    place = {"block": reduction_of(task).name, "iter": depth.name}
    task = applied(task, stages, "rfactor", **place, size=size, parts="outer", count=count)
    if strip:
        sums = reduction_of(task)
        (write,) = sums.writes
        task = applied(task, stages, "split", block=sums.name, iter=whole.vector, size=strip)
        dim = write.indices.index(Var(whole.vector))
        task = applied(task, stages, "factor", block=sums.name, buffer=write.buffer, dim=dim)
    return tiled_space(task, whole.target, stages, whole.unpacked, stored)[1]
