"""Where a window's taps are fused with its channels (fuse.py): for units that the channels alone do not fill.

The data has to be stored channels last, so that both together move through it evenly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from modelc.ir.affine import linear
from modelc.ir.block import Block, Task
from modelc.ir.candidate import Stage
from modelc.ir.expr import Var, variables
from modelc.space.analysis.access import accesses
from modelc.space.analysis.around import reduction_of
from modelc.space.rules.fuse import factors, fusible
from modelc.space.sketches.clean import applied, inlined
from modelc.space.sketches.prepare import padded
from modelc.target import Intrinsic, Target
from modelc.target.binding import bindings


@dataclass(frozen=True)
class Taps:
    """A reduction that slides along the last dimension of some data, and channels: a reduction over all of dimension
    `across` of it. Both are dimensions of a constant."""

    tap: str
    channel: str
    across: int
    channels: int


def fused_taps(task: Task, target: Target, stages: list[Stage]) -> Iterator[tuple[Task, list[Stage]]]:
    """`task`, after more stages each time, as the target's intrinsics can take taps and channels together."""
    anchor = reduction_of(task)
    taps = taps_of(task, anchor)
    if taps is None:
        return
    units = [intrinsic for intrinsic in target.available_intrinsics if _multiplies(intrinsic, task, anchor)]
    terms = anchor.ranges[taps.tap] * taps.channels
    for multiple in sorted(
        {_multiple(intrinsic, terms) for intrinsic in units if not _filled(intrinsic, taps.channels)}
    ):
        more = [*stages]
        yield _fused(task, anchor, taps, multiple, more), more


def _fused(task: Task, anchor: Block, taps: Taps, multiple: int, stages: list[Stage]) -> Task:
    names: dict[str, str | int] = {"outer": taps.tap, "inner": taps.channel}
    task = applied(task, stages, "fuse", block=anchor.name, **names, multiple=multiple)
    task = inlined(padded(task, stages), stages)
    (k,) = set(reduction_of(task).ranges) - set(anchor.ranges)
    data = next(r for r in accesses(task, reduction_of(task))[0] if r.load.buffer not in task.constants)
    if data.strides[k] == 1:
        return task
    return applied(task, stages, "cache_read", block=anchor.name, buffer=data.load.buffer, innermost=taps.across)


def taps_of(task: Task, block: Block) -> Taps | None:
    """The Block's taps and channels; None if it does not contract such data with a constant."""
    operands = factors(task, block)
    if operands is None:
        return None
    data, constant = operands
    shape = task.buffer(data.buffer).shape
    names = [i.name for i in block.reduction if fusible(block, constant, i.name)]
    for across, index in enumerate(data.indices):
        rows = [i for d, i in enumerate(data.indices) if d != across and shape[d] > 1]
        row = linear(rows[-1]) if rows else None
        for channel in names:
            if row is None or index != Var(channel) or block.ranges[channel] != shape[across]:
                continue
            others = [n for n in names if n != channel and row.coefficient(Var(n)) == 1]
            alone = [n for n in (channel, *others) if sum(n in variables(i) for i in data.indices) == 1]
            if others and alone == [channel, others[0]]:
                return Taps(others[0], channel, across, shape[across])
    return None


def _multiplies(intrinsic: Intrinsic, task: Task, anchor: Block) -> bool:
    """Whether it multiplies what the anchor does, several products of one sum at a time."""
    return _depth(intrinsic) > 1 and any(bindings(intrinsic, anchor.body[0], task.dtypes))


def _depth(intrinsic: Intrinsic) -> int:
    """Products of one sum in one application."""
    return max((i.extent for i in intrinsic.semantics.iters if i.reduce), default=1)


def _filled(intrinsic: Intrinsic, channels: int) -> bool:
    """Whether channels are enough for whole applications; tiles can be less deep."""
    depth = _depth(intrinsic)
    return channels % depth == 0 if intrinsic.tiles is None else channels >= depth


def _multiple(intrinsic: Intrinsic, terms: int) -> int:
    """What the terms of a sum have to be a multiple of: applications are alike."""
    most = _depth(intrinsic)
    if intrinsic.tiles is None:
        return most
    (depth,) = (i.name for i in intrinsic.semantics.iters if i.reduce)
    step = max(d.step for o in intrinsic.operands for d in o.digits if d.iterator == depth)
    applications = -(-terms // most)
    return applications * (-(-terms // (applications * step)) * step)
