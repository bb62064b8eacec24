"""Tasks whose tiled loops the analytic cost models, one of each kind, and its model of each."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from greedy import tiled_of
from three_ways import task_of

from modelc.ir.block import Task
from modelc.space.cost.model import Model, model_of
from modelc.target import Target, load_target

TARGET = load_target("x86-64-v4")


def conv(shape: tuple[int, ...], weights: tuple[int, ...], **attrs: object) -> Task:
    pads = [(k - 1) // 2 for k in weights[2:]]
    attrs = {"kernel_shape": list(weights[2:]), "pads": pads * 2, **attrs}
    return task_of("Conv", attrs, [shape, weights], consts=(1,), channels_last=True)


TASKS: dict[str, Callable[[], Task]] = {
    "conv": lambda: conv((1, 5, 9, 7), (35, 5, 3, 3)),
    "strided": lambda: conv((2, 4, 11, 11), (16, 4, 3, 3), strides=[2, 2]),
    "pointwise": lambda: conv((1, 6, 7, 7), (40, 6, 1, 1)),
    "depthwise": lambda: conv((1, 24, 10, 10), (24, 1, 3, 3), group=24),
    "grouped": lambda: conv((1, 8, 6, 6), (32, 4, 3, 3), group=2),
    "3d": lambda: conv((1, 3, 4, 6, 5), (17, 3, 3, 3, 3)),
    "matmul": lambda: task_of("MatMul", {}, [(13, 20), (20, 37)], consts=(1,)),
    "batched": lambda: task_of("MatMul", {}, [(3, 11, 8), (3, 8, 18)]),
    "transposed": lambda: task_of(
        "ConvTranspose",
        {"kernel_shape": [4, 4], "strides": [2, 2], "pads": [1, 1, 1, 1]},
        [(1, 5, 5, 5), (5, 18, 4, 4)],
        consts=(1,),
        channels_last=True,
    ),
    "pool": lambda: task_of(
        "MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}, [(1, 20, 9, 9)], channels_last=True
    ),
}


@cache
def model(name: str, target: Target = TARGET) -> tuple[Task, Model]:
    task = TASKS[name]()
    tiled = tiled_of(task, target)
    assert tiled is not None, name
    return task, model_of(tiled)
