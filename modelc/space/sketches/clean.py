"""The clean-up that every Task gets first: Blocks that are read once are inlined, split storage is exposed, iterators
that are stored one inside the other are one."""

from __future__ import annotations

from contextlib import suppress

from modelc.ir.block import Block, Task
from modelc.ir.candidate import Stage
from modelc.ir.expr import Load, loads
from modelc.space.rules.derivation import derived
from modelc.space.rules.rule import DoesNotApply


def applied(task: Task, stages: list[Stage], rule: str, **args: str | int) -> Task:
    """`task` after one more stage, which is noted. Raises DoesNotApply."""
    stage = Stage(rule, args)
    task = derived(task, stage)
    stages.append(stage)
    return task


def inlined(task: Task, stages: list[Stage]) -> Task:
    """Maps whose result one other Block reads, once per element, are substituted into it."""
    for name in [b.name for b in task.blocks]:
        block = task.block(name)
        if not isinstance(block, Block) or block.aggregation != "assign" or name == task.anchor:
            continue
        if not _read_once(task, block):
            continue
        try:
            task = applied(task, stages, "inline", block=name)
        except DoesNotApply:
            continue
    return task


def exposed(task: Task, stages: list[Stage]) -> Task:
    """Buffers that are stored with a dimension split have it as two: iterators follow the storage (ALT, section 6)."""
    for name in [b.name for b in task.buffers if b.layout.primitives and b.layout.permutation is None]:
        if name not in task.constants:
            with suppress(DoesNotApply):
                task = applied(task, stages, "expose", buffer=name)
    return task


def _reorders(task: Task, copy: Block) -> bool:
    """Whether a copy's operand is a local that is stored in another order than what it is copied to."""
    source, target = (task.buffer(x.buffer) for x in (copy.body[0], copy.writes[0]) if isinstance(x, Load))
    return source in task.locals and source.layout != target.layout


def _read_once(task: Task, producer: Block) -> bool:
    """Whether inlining `producer` computes each of its elements no more often than now (up to one extra read)."""
    written = {w.buffer for w in producer.writes}
    readers = [b for b in task.blocks if not isinstance(b, Block) or written & b.buffers_read]
    if len(readers) != 1 or not isinstance(readers[0], Block):
        return False
    reader = readers[0]
    reads = [r for r in reader.reads if r.buffer in written]
    if isinstance(reader.body[0], Load) and _reorders(task, reader):
        return False  # it is there to leave its operand in an order of its own
    if producer.body and isinstance(producer.body[0], Load) and not reader.reduction:
        return True  # moving data costs nothing but its index
    if len(reads) > 1 and len(loads(producer.body[0])) > 1:
        return False
    return reader.points() <= 2 * producer.points()


def collapsed(task: Task, name: str, stages: list[Stage]) -> Task:
    """Iterators of block `name` that are stored one inside the other, everywhere, become one."""
    again = True
    while again:
        again = False
        block = task.block(name)
        assert isinstance(block, Block)
        for kind in (False, True):
            iters = [i for i in block.iters if i.reduce == kind and i.extent > 1]
            pairs = [(a.name, b.name) for a in iters for b in iters if a is not b]
            for outer, inner in pairs:
                try:
                    task = applied(task, stages, "collapse", block=name, outer=outer, inner=inner)
                except DoesNotApply:
                    continue
                again = True
                break
            if again:
                break
    return task
