"""Contractions whose operand or result is stored across their channels, as models hand them over (n, c, h, w).

The register tile wants output channels side by side, and transforms want input channels side by side. Where a Task's
boundary says otherwise, the operand is copied in, and the result written out, through storage of our own order: two
transpositions, paid for by the arithmetic that every element takes part in.
"""

from __future__ import annotations

from math import gcd, prod

from modelc.ir.affine import linear
from modelc.ir.block import Block, Task
from modelc.ir.candidate import Stage
from modelc.ir.expr import Load, Op, Var, variables
from modelc.space.analysis.access import Access, accesses, stored_lanes
from modelc.space.sketches.clean import applied
from modelc.target import Target

LEAST_REUSE = 32  # operations per element moved that make a transposition worth it


def staged(task: Task, target: Target, stages: list[Stage]) -> Task:
    """`task` with the data operand and the result of its contraction by a constant stored channels innermost."""
    anchors = [b for b in task.blocks if isinstance(b, Block) and b.reduction]
    if len(anchors) != 1 or len(anchors[0].writes) > 1:
        return task
    anchor, body = anchors[0], anchors[0].body[0]
    reads, _ = accesses(task, anchor)
    constant = [r for r in reads if r.load.buffer in task.constants]
    data = [r for r in reads if r.load.buffer not in task.constants]
    if len(constant) != 1 or len(data) != 1 or not isinstance(body, Op) or body.name != "mul":
        return task
    lanes = stored_lanes(target, task.buffer(anchor.writes[0].buffer).dtype)
    outputs = [
        i
        for i in anchor.spatial
        if i.extent >= lanes and constant[0].strides[i.name] != 0 and data[0].strides[i.name] == 0
    ]
    inputs = [
        i
        for i in anchor.reduction
        if i.extent >= lanes and constant[0].strides[i.name] != 0 and along(data[0].load, i.name) is not None
    ]
    steps = anchor.points() // prod(task.buffer(data[0].load.buffer).shape)
    if len(outputs) != 1 or len(inputs) > 1 or steps < LEAST_REUSE:
        return task
    for c in inputs:  # none, if there are few input channels: then their order does not matter
        place = along(data[0].load, c.name)
        if place is not None and data[0].strides[c.name] != 1 and _worth(task, data[0], place):
            before, buffer = task, data[0].load.buffer
            task = applied(task, stages, "cache_read", block=anchor.name, buffer=buffer, innermost=place)
            (copy,) = {b.name for b in task.buffers} - {b.name for b in before.buffers}
            for dim, size in left_out(data[0]) if not anchor.where else ():
                task = applied(task, stages, "deinterleave", buffer=copy, dim=dim, size=size)
    return staged_result(task, anchor.name, outputs[0].name, stages)


def staged_result(task: Task, anchor: str, channel: str, stages: list[Stage]) -> Task:
    """`task` with what its last Block writes stored along the anchor's iterator `channel`, if it is not."""
    before, noted = task, len(stages)
    if task.blocks[-1].name == anchor:
        task = applied(task, stages, "cache_write", block=anchor)
    last, block = task.blocks[-1], task.block(anchor)
    assert isinstance(block, Block)
    position = along(block.writes[0], channel)
    if isinstance(last, Block) and len(last.writes) == 1 and position is not None:
        read_at = {r.indices[position] for r in last.reads if r.buffer == block.writes[0].buffer}
        name = min(read_at, key=str) if len(read_at) == 1 else None
        forms = [linear(i) for i in last.writes[0].indices]
        dims = [d for d, form in enumerate(forms) if form and isinstance(name, Var) and form.coefficient(name) == 1]
        spread = [n for n in task.buffer(last.writes[0].buffer).shape if n > 1]
        if len(dims) == 1 and len(spread) > 1 and accesses(task, last)[1][0].strides[str(name)] != 1:
            return applied(task, stages, "stage_write", block=last.name, innermost=dims[0])
    del stages[noted:]
    return before


def along(access: Load, channel: str) -> int | None:
    """The one dimension that the iterator `channel` walks through, alone or in groups (g * n + c); None otherwise."""
    dims = [d for d, index in enumerate(access.indices) if channel in variables(index)]
    form = linear(access.indices[dims[0]]) if len(dims) == 1 else None
    return dims[0] if form is not None and form.coefficient(Var(channel)) == 1 else None


def left_out(read: Access) -> list[tuple[int, int]]:
    """The dimensions of which only every so many elements are read (a stride without a window), and how many; the last
    one first."""
    strided = []
    for dim, index in enumerate(read.load.indices):
        form = linear(index)
        if form is not None and (size := gcd(*(c for _, c in form.terms))) > 1:
            strided.append((dim, size))
    return strided[::-1]


def _worth(task: Task, read: Access, dim: int) -> bool:
    """Whether anything but the channels has an extent: otherwise every order is the same."""
    return any(n > 1 for d, n in enumerate(task.buffer(read.load.buffer).shape) if d != dim)
