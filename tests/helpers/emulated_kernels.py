"""Kernels for other machines, run by an emulator and compared with their Blocks."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence

import pytest
from three_ways import Example, build, close, run_kernel, run_task

from modelc.codegen.kernels import Kernel
from modelc.errors import ToolchainError
from modelc.ir.candidate import Candidate
from modelc.measure.job import Way
from modelc.package import emulator, find_toolchain
from modelc.target import Target

# qemu 7 ends on the vector instruction that converts numbers towards zero.
NOT_BY_QEMU_7 = {"riscv64-v": ("cast",)}


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
