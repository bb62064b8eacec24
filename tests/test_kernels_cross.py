"""Kernels for other machines, linked into a small program and run under emulation: values, not exit codes."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from three_ways import Example, close, from_storage, parameters, random_inputs, run_task, stored_bytes, task_of

from modelc.codegen.kernels import Kernel, compile_nest
from modelc.errors import ToolchainError
from modelc.ir.block import Task
from modelc.ir.candidate import Candidate
from modelc.package.toolchain import emulator, find_toolchain
from modelc.space.nest.build import build_nest
from modelc.space.sketches.default import default_candidate
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

_MAIN = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static FILE *inputs, *outputs;

static void *blank(size_t size) {
    void *data = aligned_alloc(64, (size / 64 + 1) * 64);
    memset(data, 0xFF, (size / 64 + 1) * 64);
    return data;
}

static void *take(size_t size) {
    void *data = blank(size);
    if (fread(data, 1, size, inputs) != size) exit(2);
    return data;
}

static void give(const void *data, size_t size) {
    if (fwrite(data, 1, size, outputs) != size) exit(3);
}

int main(void) {
    inputs = fopen("inputs.bin", "rb");
    outputs = fopen("outputs.bin", "wb");
    if (!inputs || !outputs) return 1;
%s
    return fclose(outputs);
}
"""


# qemu 7 ends on the vector instruction that converts numbers towards zero.
NOT_BY_QEMU_7 = {"riscv64-v": ("cast",)}


@pytest.mark.parametrize("machine", ["cortex-a72", "armv7-neon", "riscv64-v"])
def test_emulated(machine: str, tmp_path: Path) -> None:
    """All Tasks in one program: emulators take long to start."""
    target = load_target(machine)
    try:
        run = emulator(target.triple)
    except ToolchainError as error:
        pytest.skip(str(error))
    left_out = NOT_BY_QEMU_7.get(machine, ()) if qemu_version(run) < 8 else ()
    tasks = {name: task for name, task in TASKS.items() if name not in left_out}
    emulated(
        {name: (Example(t, random_inputs(t)), default_candidate(t, target)) for name, t in tasks.items()},
        target,
        tmp_path,
    )


def emulated(cases: Mapping[str, tuple[Example, Candidate]], target: Target, folder: Path) -> dict[str, Kernel]:
    """Runs scheduled Tasks as kernels of another machine in one program, and compares them with their Blocks. Skips
    where nothing compiles for the machine or runs its programs."""
    try:
        toolchain, run = find_toolchain(target.triple), emulator(target.triple)
    except ToolchainError as error:
        pytest.skip(str(error))
    files, calls, given, kernels = [], [], [], {}
    for name, (example, candidate) in cases.items():
        task = example.task
        kernel = kernels[name] = compile_nest(build_nest(task, candidate), name, target)
        assert kernel.object is not None
        (folder / f"{name}.o").write_bytes(kernel.object)
        files.append(f"{name}.o")
        inputs = parameters(task, candidate, example.inputs)
        calls.append(program(task, kernel, {x: inputs[x].size for x in task.inputs}))
        given += [inputs[x].tobytes() for x in task.inputs]
    (folder / "main.c").write_text(_MAIN % "\n".join(calls))
    (folder / "inputs.bin").write_bytes(b"".join(given))
    toolchain.compile(["-std=c11", "-O1", "main.c", *files, "-o", "kernels", "-lm"], folder)
    subprocess.run([*run, "./kernels"], cwd=folder, check=True, timeout=120)
    taken = np.frombuffer((folder / "outputs.bin").read_bytes(), np.uint8)
    for name, (example, _) in cases.items():
        wanted = run_task(example.task, example.inputs)
        for output in example.task.outputs:
            buffer = example.task.buffer(output)
            count = stored_bytes(buffer)
            found, taken = from_storage(taken[:count].copy(), buffer), taken[count:]
            close(found, wanted[output], example, f"{name} on {target.name}")
    assert not taken.size
    return kernels


def qemu_version(run: Sequence[str]) -> int:
    """The first number of an emulator's version; 99 if nothing is emulated."""
    if not run:
        return 99
    said = subprocess.run([run[0], "--version"], capture_output=True, text=True, check=True).stdout
    return int(re.search(r"version (\d+)", said)[1])


def program(task: Task, kernel: Kernel, sizes: dict[str, int]) -> str:
    """C statements that read a Task's inputs, run its kernel in two ranges, and write its outputs."""
    made = [(name, f"take({size})") for name, size in sizes.items()]
    made += [(name, f"blank({stored_bytes(task.buffer(name))})") for name in task.outputs]
    made += [(name, f"blank({size})") for name, size in kernel.temporaries]
    lines = [f"void *{name} = {value};" for name, value in made]
    for step in kernel.steps:
        lines.append(f"void {step.symbol}({'void *, ' * len(step.args)}void *, int, int);")
        lines.append(f"void *{step.symbol}_scratch = blank({step.scratch_bytes});")
        for begin, end in ((step.extent // 2, step.extent), (0, step.extent // 2)):
            lines.append(f"{step.symbol}({', '.join(step.args)}, {step.symbol}_scratch, {begin}, {end});")
    lines += [f"give({name}, {stored_bytes(task.buffer(name))});" for name in task.outputs]
    return "\n".join(["{", *lines, "}"])
