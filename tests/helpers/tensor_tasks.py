"""Tasks that tensor intrinsics compute: contractions of bfloat16 and of bytes, by operator; and their schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from three_ways import Example, task_of

from modelc.ir.block import Block, Task
from modelc.ir.candidate import Candidate, Stage
from modelc.ir.expr import DTYPES, Expr, Load, Op
from modelc.ir.factors import clamped
from modelc.ir.nest import INTRINSIC
from modelc.partition.narrow_products import half_sum
from modelc.partition.narrow_task import in_narrow
from modelc.space.sketches.clean import inlined
from modelc.space.sketches.staging import staged
from modelc.space.sketches.tensorized import tensorized
from modelc.space.sketches.vectorized import tiled_space
from modelc.space.tiling.tiled import Tiled
from modelc.target import Intrinsic, Target, load_target, shipped_intrinsics

HALF_SUMS = 1e-2  # of the largest sum in float16: kernels fuse, and the interpreter rounds products by themselves
Case = tuple[str, Mapping[str, Any], tuple[int, ...], tuple[int, ...]]
EVEN: dict[str, Case] = {  # rows, columns and depths that every intrinsic divides
    "matmul": ("MatMul", {}, (32, 64), (64, 64)),
    "batch": ("MatMul", {}, (3, 32, 64), (3, 64, 48)),
    "grouped": ("Conv", {"pads": [1] * 4, "group": 2}, (1, 32, 6, 6), (48, 16, 3, 3)),
}
RAGGED: dict[str, Case] = {  # rows that do not divide, columns that do not, a depth of less than a tile
    "columns": ("MatMul", {}, (35, 96), (96, 40)),
    "few rows": ("MatMul", {}, (3, 32), (32, 48)),
    "depth": ("MatMul", {}, (17, 40), (40, 24)),
    "rows of batches": ("MatMul", {}, (3, 17, 32), (32, 48)),
    "3x3": ("Conv", {"pads": [1] * 4}, (1, 32, 7, 9), (24, 32, 3, 3)),
    "1x1": ("Conv", {}, (2, 64, 6, 5), (48, 64, 1, 1)),
    "strided": ("Conv", {"pads": [1] * 4, "strides": [2, 2]}, (1, 16, 9, 9), (32, 16, 3, 3)),
    "dilated": ("Conv", {"pads": [2] * 4, "dilations": [2, 2]}, (1, 16, 9, 9), (32, 16, 3, 3)),
    "1D": ("Conv", {"pads": [1, 1]}, (2, 32, 19), (32, 32, 3)),
    "3D": ("Conv", {"pads": [1] * 6}, (1, 16, 3, 5, 7), (20, 16, 3, 3, 3)),
}
ODD: dict[str, Case] = {  # depths of which no application takes all; tile registers take none of these
    "odd depth": ("MatMul", {}, (17, 33), (33, 24)),
    "short depth": ("MatMul", {}, (18, 3), (3, 40)),
    "odd channels": ("Conv", {"pads": [1] * 4}, (1, 19, 7, 5), (24, 19, 3, 3)),
    "odd groups": ("Conv", {"group": 2}, (1, 22, 6, 5), (32, 11, 1, 1)),
}
PLAIN: dict[str, Case] = {  # what no dot product computes: it has no depth to take several of, or no columns
    "one column": ("MatMul", {}, (17, 32), (32, 1)),
    "depthwise": ("Conv", {"pads": [1] * 4, "group": 16}, (1, 16, 6, 6), (16, 1, 3, 3)),
}


def contraction(case: Case, kinds: Sequence[str], constants: Sequence[int] = (1,)) -> Task:
    """One operator (MatMul or Conv) of two operands of `kinds`, those in `constants` constant; channels last."""
    op, attrs, *shapes = case
    if DTYPES[kinds[0]].kind in "iu":
        return task_of(f"{op}Integer", attrs, shapes, constants, True, list(kinds))
    task = task_of(op, attrs, shapes, constants, True)
    return task if kinds[0] == "float32" else in_narrow(task, ["x0", "x1"], ["x0", "x1"], kinds[0])


def contraction_of(intrinsic: Intrinsic, case: Case) -> Task:
    """The same of what an intrinsic multiplies: activations and weights are clamped where it takes no others."""
    op, attrs, *shapes = case
    multiplied = [o for o in intrinsic.operands if o != intrinsic.accumulator]
    bounds = {name: o.within for name, o in zip(("activations_within", "within"), multiplied, strict=True) if o.within}
    return contraction((op, dict(attrs) | bounds, *shapes), kinds_of(intrinsic))


def from_end_to_end(task: Task, seed: int = 0) -> Example:
    """The Task on whole numbers of their dtypes' whole range, or of what it says that they are within, and on floats
    around one."""
    rng = np.random.default_rng(seed)
    inputs = {}
    clamps = [clamped(e) for e in operations(task, "min")]
    within = {number.buffer: bounds for number, bounds in clamps if isinstance(number, Load) and bounds is not None}
    for name in task.inputs:
        buffer = task.buffer(name)
        if DTYPES[buffer.dtype].kind in "iu":
            ends = np.iinfo(DTYPES[buffer.dtype])
            least, largest = within.get(name, (ends.min, ends.max))
            inputs[name] = rng.integers(least, largest, buffer.shape, DTYPES[buffer.dtype], endpoint=True)
        else:
            inputs[name] = rng.standard_normal(buffer.shape).astype(DTYPES[buffer.dtype])
    return Example(task, inputs, atol=HALF_SUMS) if half_sum(task) is not None else Example(task, inputs)


def operations(task: Task, *names: str) -> list[Op]:
    """The operations of these names in what the Task's Blocks compute, in order of `names`."""

    def inside(e: Expr) -> list[Op]:
        return [] if not isinstance(e, Op) else [e, *(x for arg in e.args for x in inside(arg))]

    every = [e for block in task.blocks if isinstance(block, Block) for body in block.body for e in inside(body)]
    return [e for name in names for e in every if e.name == name]


def kinds_of(intrinsic: Intrinsic) -> tuple[str, ...]:
    """The dtypes of what an intrinsic multiplies, A's and B's."""
    return tuple(o.dtype for o in intrinsic.operands if o != intrinsic.accumulator)


def ways_of(task: Task, target: Target) -> dict[str, Tiled]:
    """The schedules of a Task with intrinsics of the target, by the intrinsics' names."""
    stages: list[Stage] = []
    task = staged(inlined(task, stages), target, stages)
    _, direct = tiled_space(task, target, stages)
    return (
        {}
        if direct is None
        else {one.name: way for way in tensorized(direct) if (one := way.unit.intrinsic) is not None}
    )


def intrinsics_in(candidate: Candidate) -> set[str]:
    """The names that a Candidate's loops are tagged with."""
    tags = {tag for block in candidate.blocks.values() for tag in block.tags.values()}
    return {tag.removeprefix(INTRINSIC).partition("/")[0] for tag in tags if tag.startswith(INTRINSIC)}


def anchor_of(task: Task) -> Block:
    return next(b for b in task.blocks if isinstance(b, Block) and b.reduction)


SHIPPED = {one.name: one for one in shipped_intrinsics()}
# Every intrinsic of x86-64, on whatever machine the tests run.
SERVER = replace(
    load_target("x86-64-v4"),
    features=(*load_target("x86-64-v4").features, "avx512vnni", "avx512bf16", "amx-tile", "amx-int8", "amx-bf16"),
    intrinsics=None,
)
NO_TILES = tuple(f for f in SERVER.features if not f.startswith("amx"))
