"""What the derivation rules have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from modelc.ir.block import AnyBlock, Block, Buffer, Task
from modelc.target import Target

Args = Mapping[str, str | int]


class DoesNotApply(Exception):
    """The rule's precondition does not hold for this Task."""


@dataclass(frozen=True)
class Rule:
    """What makes of one Task another that computes the same (Ansor, table 1).

    `apply(task, **args)` gives the other Task, or raises DoesNotApply. The arguments are strings and whole numbers: a
    Candidate has them with the rule's name, as one of its stages.

    `proposed(task, target)` says with which arguments it is worth trying before the Task is scheduled; the estimated
    time decides. Rules without it are asked for where schedules are made. `constant(task, name, data, **args)` gives
    what constant `name` of the Task holds afterwards: an array of the shape that the new Task says.
    `error_bound(task, **args)` is for rules that round otherwise: by how much an element may then be away from the
    exact sum, times the largest input times the largest weight."""

    name: str
    apply: Callable[..., Task]
    proposed: Callable[[Task, Target], Iterable[Args]] | None = None
    constant: Callable[..., NDArray[Any]] | None = None
    error_bound: Callable[..., float] | None = None


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
