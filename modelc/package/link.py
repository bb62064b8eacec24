"""Compiling runtime, plan and kernels into what a form says: the same bytes from the same inputs and compiler."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from modelc.errors import ToolchainError
from modelc.package.elf import SharedLibrary, shared_library, undefined_symbols
from modelc.package.form import Form
from modelc.package.header import exported_names, renamed
from modelc.package.objects import Sources, objects_of
from modelc.package.sources import BARE, HEADERS, HOSTED, RUNTIME
from modelc.package.stubs import linking_old
from modelc.package.toolchain import Toolchain, check_elf
from modelc.scratch import TemporaryFolder

PARAMS = "params.bin"
COMPILE = (
    "-std=c11",
    "-O2",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffunction-sections",
    "-fdata-sections",
    "-w",
)
THREADS = ("-pthread",)
BARE_FLAGS = ("-ffreestanding", "-fno-stack-protector", "-fno-asynchronous-unwind-tables")
KERNEL = ("-std=c11", "-O2", "-fPIC", "-ffp-contract=off", "-fvisibility=hidden", "-ffunction-sections")
LINK = (
    "-shared",
    "-s",
    "-static-libgcc",
    "-Wl,--gc-sections",
    "-Wl,--build-id=none",
    "-Wl,--no-undefined",
    "-Wl,--as-needed",
    "-Wl,-Bsymbolic",
    "-Wl,-z,relro,-z,now,-z,noexecstack",
    "-Wl,--version-script=exports.map",
)
# Aligned as whatever maps parameters gives them, and in a section that is only read.
EMBEDDED = """    .section .rodata.parameters, "a"
    .globl {symbol}
    .hidden {symbol}
    .balign 64
{symbol}:
    .incbin "params.bin"
    .section .note.GNU-stack, "", {at}progbits
"""


@dataclass(frozen=True)
class Code:
    """What goes into a package's library: the text of model_plan.c, the kernels' objects by name, and the file of the
    parameters where they are embedded."""

    plan: str
    objects: Mapping[str, bytes]
    params: Path | None


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


def link_shared(toolchain: Toolchain, form: Form, code: Code, library: Path) -> SharedLibrary:
    """Writes the shared library, and says what it needs. Works in a folder of its own with relative names, so no path
    gets into it."""
    with TemporaryFolder("link") as name:
        folder = Path(name)
        inputs = _inputs(toolchain, code, runtime_objects(toolchain), (), folder)
        exports = "; ".join(exported_names(form))
        (folder / "exports.map").write_text(f"{{ global: {exports}; local: *; }};\n")
        arguments = [*COMPILE, *THREADS, *LINK, f"-Wl,-soname,{form.library}", *inputs]
        toolchain.compile([*arguments, *linking_old(toolchain), "-lm", "-o", "linked.so"], folder)
        data = (folder / "linked.so").read_bytes()
        what = "the library that the C compiler made"
        check_elf(data, what, toolchain.machine)
        made = shared_library(data, what)
        if toolchain.libc == "gnu" and made.glibc > toolchain.glibc:
            newest, most = (".".join(map(str, version)) for version in (made.glibc, toolchain.glibc))
            raise ToolchainError(f"{what} needs glibc {newest}, and it was to need {most} at most: a bug of modelc")
        shutil.copyfile(folder / "linked.so", library)
        return made


def link_static(toolchain: Toolchain, form: Form, code: Code, package: Path) -> tuple[str, ...]:
    """Writes the static library, and the one object, that the form says. All names in them begin with the prefix. Says
    which functions a program that is linked with a free-standing one has to bring."""
    names = renamed(form, [(RUNTIME / "modelc_runtime.h").read_text()])
    with TemporaryFolder("link") as name:
        folder = Path(name)
        runtime = runtime_objects(toolchain, form.freestanding, names)
        flags = (*names, *(BARE_FLAGS if form.freestanding else THREADS))
        inputs = _inputs(toolchain, code, runtime, flags, folder)
        members = []
        for k, file in enumerate(inputs):  # a member's name is the model's too: some linkers list them
            member = f"{form.prefix}_{k}.o"
            if file.endswith(".o"):
                (folder / file).rename(folder / member)
            else:
                toolchain.compile([*COMPILE, *flags, "-c", file, "-o", member], folder)
            members.append(member)
        toolchain.compile(["-r", "-nostdlib", "-Wl,--build-id=none", *members, "-o", form.object], folder)
        if "a" in form.emit:
            toolchain.archive(form.archive, members, folder)
            shutil.copyfile(folder / form.archive, package / form.archive)
        if "o" in form.emit:
            shutil.copyfile(folder / form.object, package / form.object)
        return undefined_symbols((folder / form.object).read_bytes(), form.object) if form.freestanding else ()


def _inputs(
    toolchain: Toolchain, code: Code, runtime: Mapping[str, bytes], flags: tuple[str, ...], folder: Path
) -> list[str]:
    """Files in `folder` that are linked."""
    for file in HEADERS:
        shutil.copyfile(RUNTIME / file, folder / file)
    (folder / "model_plan.c").write_text(code.plan)
    for file, data in runtime.items():
        (folder / file).write_bytes(data)
    kernels = [f"kernel_{i}.o" for i in range(len(code.objects))]
    for kernel, (object_name, data) in zip(kernels, sorted(code.objects.items()), strict=True):
        check_elf(data, f"the kernel object '{object_name}'", toolchain.machine)
        (folder / kernel).write_bytes(data)
    inputs = [*runtime, "model_plan.c", *kernels]
    if code.params is not None:
        shutil.copyfile(code.params, folder / PARAMS)
        symbol = next(
            (flag.partition("=")[2] for flag in flags if flag.startswith("-Dmc_parameters=")), "mc_parameters"
        )
        at = "%" if toolchain.machine.name == "arm" else "@"  # which begins a comment there
        (folder / "parameters.S").write_text(EMBEDDED.format(symbol=symbol, at=at))
        inputs.append("parameters.S")
    return inputs


def runtime_objects(
    toolchain: Toolchain, freestanding: bool = False, names: tuple[str, ...] = ()
) -> Mapping[str, bytes]:
    """The runtime's objects by file name: the same in every package, but for `names` of its functions."""
    files, headers = (tuple(RUNTIME / n for n in group) for group in (BARE if freestanding else HOSTED, HEADERS))
    return objects_of(
        toolchain, Sources(files, headers, (*COMPILE, *(BARE_FLAGS if freestanding else THREADS), *names))
    )


def runtime_sources() -> list[bytes]:
    """Everything of the runtime that goes into a library."""
    return [(RUNTIME / file).read_bytes() for file in (*dict.fromkeys((*HOSTED, *BARE)), *HEADERS)]
