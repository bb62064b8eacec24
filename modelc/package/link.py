"""Compiling runtime, plan and kernels into libmodel.so: the same bytes from the same inputs and compiler."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import modelc.runtime
from modelc.package.objects import Sources, objects_of
from modelc.package.toolchain import Toolchain, check_elf
from modelc.scratch import TemporaryFolder

RUNTIME = Path(modelc.runtime.__file__).parent
SOURCES = (
    "modelc_runtime.c",
    "modelc_files.c",
    "modelc_pool.c",
    "modelc_cpu.c",
    "modelc_range.c",
    "modelc_pad.c",
    "modelc_sha256.c",
)
HEADERS = ("model.h", "modelc_runtime.h")
EXPORTS = "exports.map"

COMPILE = (
    "-std=c11",
    "-O2",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffunction-sections",
    "-fdata-sections",
    "-w",
    "-pthread",
)
KERNEL = ("-std=c11", "-O2", "-fPIC", "-ffp-contract=off", "-fvisibility=hidden", "-ffunction-sections")
LINK = (
    "-shared",
    "-s",
    "-static-libgcc",
    "-Wl,--gc-sections",
    "-Wl,--build-id=none",
    "-Wl,--no-undefined",
    "-Wl,-Bsymbolic",
    "-Wl,-z,relro,-z,now,-z,noexecstack",
    "-Wl,-soname,libmodel.so",
    f"-Wl,--version-script={EXPORTS}",
)


def compile_kernel(toolchain: Toolchain, source: str, visible: bool = False) -> bytes:
    """The object of a kernel in C; `visible` in the library that it alone is linked to (link_kernel)."""
    with TemporaryFolder("kernel") as name:
        folder = Path(name)
        (folder / "kernel.c").write_text(source)
        toolchain.compile([*KERNEL, *["-fvisibility=default"] * visible, "-c", "kernel.c", "-o", "kernel.o"], folder)
        return (folder / "kernel.o").read_bytes()


def link_kernel(toolchain: Toolchain, code: bytes) -> bytes:
    """A shared library of the object of one kernel alone. What it calls of libm, whoever loads it has to bring."""
    check_elf(code, "the kernel's object", toolchain.machine)
    with TemporaryFolder("kernel") as name:
        folder = Path(name)
        (folder / "kernel.o").write_bytes(code)
        alone = "-nostartfiles" if toolchain.machine.name == "arm" else "-nostdlib"  # arm divides by a library
        toolchain.compile(["-shared", alone, "kernel.o", "-o", "kernel.so"], folder)
        return (folder / "kernel.so").read_bytes()


def link_library(toolchain: Toolchain, plan_source: str, objects: Mapping[str, bytes], library: Path) -> None:
    """Writes libmodel.so to `library`. Works in a folder of its own with relative names, so no path gets into it."""
    runtime = runtime_objects(toolchain)
    with TemporaryFolder("link") as name:
        folder = Path(name)
        for file in (*HEADERS, EXPORTS):
            shutil.copyfile(RUNTIME / file, folder / file)
        (folder / "model_plan.c").write_text(plan_source)
        for file, data in runtime.items():
            (folder / file).write_bytes(data)
        kernels = [f"kernel_{i}.o" for i in range(len(objects))]
        for kernel, (object_name, data) in zip(kernels, sorted(objects.items()), strict=True):
            check_elf(data, f"the kernel object '{object_name}'", toolchain.machine)
            (folder / kernel).write_bytes(data)
        inputs = [*runtime, "model_plan.c", *kernels]
        toolchain.compile([*COMPILE, *LINK, *inputs, "-lm", "-o", "libmodel.so"], folder)
        check_elf((folder / "libmodel.so").read_bytes(), "the library that the C compiler made", toolchain.machine)
        shutil.copyfile(folder / "libmodel.so", library)


def runtime_objects(toolchain: Toolchain) -> Mapping[str, bytes]:
    """The runtime's objects by file name: the same in every package."""
    files, headers = (tuple(RUNTIME / name for name in names) for names in (SOURCES, HEADERS))
    return objects_of(toolchain, Sources(files, headers, COMPILE))


def runtime_sources() -> list[bytes]:
    """Everything of the runtime that goes into libmodel.so."""
    return [(RUNTIME / file).read_bytes() for file in (*SOURCES, *HEADERS, EXPORTS)]
