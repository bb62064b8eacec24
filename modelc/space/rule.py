"""What the derivation rules have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from modelc.ir.block import AnyBlock, Block, Buffer, Task


class DoesNotApply(Exception):
    """The rule's precondition does not hold for this Task."""


def replaced(task: Task, blocks: Sequence[AnyBlock], buffers: Sequence[Buffer]) -> Task:
    """`task` with other blocks and buffers; buffers that nothing mentions go."""
    used = {*task.inputs, *task.outputs}
    for b in blocks:
        names = [x.buffer for x in (*b.reads, *b.writes)] if isinstance(b, Block) else [*b.inputs, *b.outputs]
        used.update(names)
    return replace(task, blocks=tuple(blocks), buffers=tuple(b for b in buffers if b.name in used))


def fresh(task: Task, base: str) -> str:
    """A name that no buffer or block of `task` has: `base`, or with a number."""
    taken = {b.name for b in task.buffers} | {b.name for b in task.blocks}
    name, k = base, 0
    while name in taken:
        k += 1
        name = f"{base}_{k}"
    return name


def plain_block(task: Task, name: str) -> Block:
    """Block `name` of `task`. Raises DoesNotApply if it is opaque."""
    block = task.block(name)
    if not isinstance(block, Block):
        raise DoesNotApply(f"block {name} is opaque")
    return block
