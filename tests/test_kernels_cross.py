"""Kernels for other machines, run under emulation: values, not exit codes."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence

import pytest
from three_ways import Example, build, close, random_inputs, run_kernel, run_task, task_of

from modelc.codegen.kernels import Kernel
from modelc.errors import ToolchainError
from modelc.ir.candidate import Candidate
from modelc.measure.job import Way
from modelc.package import emulator, find_toolchain
from modelc.space.choose import chosen
from modelc.target import Target, load_target

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

# qemu 7 ends on the vector instruction that converts numbers towards zero.
NOT_BY_QEMU_7 = {"riscv64-v": ("cast",)}


@pytest.mark.parametrize("machine", ["cortex-a72", "armv7-neon", "riscv64-v"])
def test_emulated(machine: str) -> None:
    target = load_target(machine)
    left_out = NOT_BY_QEMU_7.get(machine, ()) if qemu_version(emulator_of(target)) < 8 else ()
    tasks = {name: task for name, task in TASKS.items() if name not in left_out}
    emulated({n: (Example(t, random_inputs(t)), chosen(t, target).candidate) for n, t in tasks.items()}, target)


def emulator_of(target: Target) -> tuple[str, ...]:
    """Skips where nothing compiles for the machine or runs its programs."""
    try:
        find_toolchain(target.triple)
        return emulator(target.triple)
    except ToolchainError as error:
        pytest.skip(str(error))


def emulated(cases: Mapping[str, tuple[Example, Candidate]], target: Target) -> dict[str, Kernel]:
    """Runs scheduled Tasks as kernels of another machine, and compares them with their Blocks."""
    emulator_of(target)
    kernels = {}
    for name, (example, candidate) in cases.items():
        built = build(example.task, candidate, target)
        wanted = run_task(example.task, example.inputs)
        (found,) = run_kernel(built, example.inputs, [Way("high", 0xFF, 2)])
        for output in example.task.outputs:
            close(found[output], wanted[output], example, f"{name} on {target.name}")
        kernels[name] = built.kernel
    return kernels


def qemu_version(run: Sequence[str]) -> int:
    """The first number of an emulator's version; 99 if nothing is emulated."""
    if not run:
        return 99
    said = subprocess.run([run[0], "--version"], capture_output=True, text=True, check=True).stdout
    return int(re.search(r"version (\d+)", said)[1])
