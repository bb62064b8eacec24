"""Tasks that tensor intrinsics compute: contractions of bfloat16 and of bytes, by operator; and their schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from three_ways import task_of

from modelc.ir.block import Block, Task
from modelc.ir.candidate import Stage
from modelc.passes.precision import in_bfloat16
from modelc.space.maps import inlined
from modelc.space.staging import staged
from modelc.space.tensorized import Tensorized, tensorized
from modelc.space.tiled import tiled_space
from modelc.target import Intrinsic, Target

BYTES = {"uint8": "u8", "int8": "s8"}


def contraction(op: str, kinds: Sequence[str], attrs: Mapping[str, Any], *shapes: tuple[int, ...]) -> Task:
    """One operator (MatMul or Conv) of two operands of `kinds`, the second one constant; channels last."""
    if kinds[0] in BYTES:
        return task_of(f"{op}Integer", attrs, shapes[:2], [1], True, list(kinds))
    task = task_of(op, attrs, shapes, range(1, len(shapes)), True)
    return task if kinds[0] == "float32" else in_bfloat16(task, ["x0", "x1"], ["x0", "x1"])


def kinds_of(intrinsic: Intrinsic) -> tuple[str, ...]:
    """The dtypes of what an intrinsic multiplies, A's and B's."""
    return tuple(o.dtype for o in intrinsic.operands if o != intrinsic.accumulator)


def ways_of(task: Task, target: Target) -> dict[str, Tensorized]:
    """The schedules of a Task with intrinsics of the target, by the intrinsics' names."""
    stages: list[Stage] = []
    task = staged(inlined(task, stages), target, stages)
    _, direct = tiled_space(task, target, stages)
    return {} if direct is None else {way.intrinsic.name: way for way in tensorized(direct)}


def anchor_of(task: Task) -> Block:
    return next(b for b in task.blocks if isinstance(b, Block) and b.reduction)
