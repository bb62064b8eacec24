"""Kernels for other machines, run under emulation: values, not exit codes."""

from __future__ import annotations

import pytest
from emulated_kernels import NOT_BY_QEMU_7, emulated, emulator_of, qemu_version
from three_ways import Example, random_inputs, task_of

from modelc.space.choose import chosen
from modelc.target import load_target

TASKS = {
    "conv": task_of("Conv", {"pads": [1] * 4}, [(1, 17, 9, 7), (33, 17, 3, 3), (33,)], (1, 2), True),
    "depthwise": task_of("Conv", {"pads": [1] * 4, "group": 10}, [(1, 10, 9, 7), (10, 1, 3, 3)], (1,), True),
    "transposed": task_of("ConvTranspose", {"strides": [2, 2]}, [(1, 3, 5, 4), (3, 10, 4, 4)], (1,)),
    "matmul": task_of("MatMul", {}, [(2, 17, 33), (33, 40)], (1,)),
    "pool": task_of("AveragePool", {"kernel_shape": [3, 3], "pads": [1] * 4}, [(1, 17, 9, 8)], (), True),
    "softmax": task_of("Softmax", {"axis": -1}, [(7, 70)]),
    "norm": task_of("LayerNormalization", {"axis": -1}, [(5, 33), (33,), (33,)]),
    "argmax": task_of("ArgMax", {"axis": 1}, [(5, 33)]),
    "gelu": task_of("Gelu", {}, [(5, 33)]),
    "cast": task_of("Cast", {"to": "int64"}, [(5, 33)]),
    "from_int64": task_of("Cast", {"to": "float32"}, [(5, 33)], dtypes=["int64"]),
    "bytes": task_of("Max", {}, [(5, 33), (33,)], dtypes=["uint8", "uint8"]),
    "wide": task_of("Mul", {}, [(5, 33), (33,)], dtypes=["int64", "int64"]),
    "float64": task_of("Div", {}, [(5, 33), (33,)], dtypes=["float64", "float64"]),
    "half": task_of("Sigmoid", {}, [(5, 33)], dtypes=["float16"]),
    "floor": task_of("Floor", {}, [(5, 33)]),
    "round": task_of("Round", {}, [(5, 33)]),
    "maximum": task_of("Max", {}, [(5, 33), (33,)]),
    "exp": task_of("Exp", {}, [(5, 33)]),
    "log": task_of("Log", {}, [(5, 33)]),
    "tanh": task_of("Tanh", {}, [(5, 33)]),
    "cosine": task_of("Cos", {}, [(5, 33)]),
    "transpose": task_of("Transpose", {"perm": [2, 0, 1]}, [(5, 33, 17)]),
}


@pytest.mark.parametrize("machine", ["cortex-a72", "armv7-neon", "riscv64-v"])
def test_emulated(machine: str) -> None:
    target = load_target(machine)
    left_out = NOT_BY_QEMU_7.get(machine, ()) if qemu_version(emulator_of(target)) < 8 else ()
    tasks = {name: task for name, task in TASKS.items() if name not in left_out}
    emulated({n: (Example(t, random_inputs(t)), chosen(t, target).candidate) for n, t in tasks.items()}, target)
