"""The rule-based schedule: for any Task, a Candidate that is micro-kernel shaped without search.

Shapes, told apart by what the Blocks do, not by operator names:

    attention  contractions before and after reductions of rows: tiles of whole rows (space/attention.py)
    tiled   one reduction with its prologue and epilogue: a register tile of (rows x vectors) accumulators is filled by
            all reduction loops, then the epilogue runs on it (contractions, windows, pooling)
    rows    several reductions over common leading iterators: all Blocks inside one loop over rows (softmax, norms)
    phases  reductions of a whole tensor, of few long rows, or of columns: one after the other (space/phases.py)
    map     assignments only: the innermost stored iterator is the vector
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from modelc.ir.block import Block, Task
from modelc.ir.candidate import BlockSchedule, Candidate, Stage
from modelc.space.sketches.attention import attention_candidate
from modelc.space.sketches.filtering import Filtering, filtering_candidates
from modelc.space.sketches.fusing import fused
from modelc.space.sketches.maps import collapsed, exposed, inlined, map_schedule
from modelc.space.sketches.phases import columns_candidate
from modelc.space.sketches.rows import rows_candidate
from modelc.space.sketches.staging import staged
from modelc.space.sketches.tensorized import tensorized
from modelc.space.sketches.tiled import Tiled, tiled_space
from modelc.target import Target


@dataclass(frozen=True)
class Ways:
    """How a Task of one reduction can be computed: directly, in units of the target's intrinsics or of vectors, and by
    minimal filtering."""

    direct: tuple[Tiled, ...]  # of equals the first is taken
    filtering: tuple[Filtering, ...]


def default_candidate(task: Task, target: Target, winograd: bool = True, tensorize: bool = True) -> Candidate:
    """A Candidate for `task` on `target`, chosen by rules and closed forms in milliseconds (candidates() in choose.py
    looks longer). `winograd` allows minimal filtering (winograd.py), which rounds differently; `tensorize` the
    intrinsics of the target."""
    found = ways_of(task, target, winograd, tensorize)
    if isinstance(found, Candidate):
        return found
    knobs = [way.default_knobs() for way in found.direct]
    seconds = [way.seconds(k) for way, k in zip(found.direct, knobs, strict=True)]
    best = seconds.index(min(seconds))
    fastest = min(found.filtering, key=lambda f: f.seconds, default=None)
    if fastest is not None and fastest.seconds < seconds[best]:
        return fastest.candidate
    return found.direct[best].candidate(knobs[best])


def ways_of(task: Task, target: Target, winograd: bool = True, tensorize: bool = True) -> Ways | Candidate:
    """The ways to compute `task`, or its Candidate where there is nothing to choose."""
    stages: list[Stage] = []
    task = inlined(exposed(task, stages), stages)
    blocks = [b for b in task.blocks if isinstance(b, Block)]
    if len(blocks) < len(task.blocks):
        return Candidate({b.name: BlockSchedule() for b in task.blocks}, tuple(stages))
    reductions = [b for b in blocks if b.reduction]
    if not reductions:
        task = collapsed(task, blocks[-1].name, stages)
        schedules = {b.name: map_schedule(task, b, target) for b in task.blocks if isinstance(b, Block)}
        return Candidate(schedules, tuple(stages))
    if len(reductions) > 1:
        return attention_candidate(task, target, stages, tensorize) or rows_candidate(task, target, stages)
    by_columns = columns_candidate(task, target, stages)
    if by_columns is not None:
        return by_columns
    plain, unstaged = task, [*stages]
    task = staged(task, target, stages)
    orders = len(stages) > len(unstaged)
    found = filtering_candidates(task, target, stages) if winograd else []
    taken = [tiled_space(t, target, s)[1] for t, s in fused(task, target, stages)] if tensorize else []
    uncopied, before = task, tuple(stages)
    task, direct = tiled_space(task, target, stages)
    if direct is None:
        return rows_candidate(task, target, stages)
    units = [unit for tiled in (*taken, direct) if tiled is not None and tensorize for unit in tensorized(tiled)]
    others = read_straight(uncopied, target, before, direct)
    if orders:
        _, other = tiled_space(plain, target, [*unstaged])
        others += [] if other is None else [other, *read_straight(plain, target, unstaged, other)]
    return Ways((*units, direct, *others), tuple(found))


def read_straight(task: Task, target: Target, stages: Sequence[Stage], copying: Tiled) -> list[Tiled]:
    """The choices of a Task that reads vectors where they lie; none where `copying`, its choices otherwise, copies only
    what has to be."""
    if not any(s.rule == "cache_read" for s in copying.stages[len(stages) :]):
        return []
    _, way = tiled_space(task, target, [*stages], straight=True)
    return [way] if way is not None and way.stages != copying.stages else []
