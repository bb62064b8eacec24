"""Compiling runtime, plan and kernels into what a form says: the same bytes from the same inputs and compiler."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from modelc.errors import ToolchainError
from modelc.package.elf import SharedLibrary, shared_library, undefined_symbols
from modelc.package.foreign import symbols_of
from modelc.package.form import Form
from modelc.package.header import exported_names, module_functions, renamed
from modelc.package.objects import Sources, objects_of
from modelc.package.sources import BARE, HEADERS, HOSTED, RUNTIME
from modelc.package.stubs import linking_old
from modelc.package.toolchain import Toolchain, check_object
from modelc.runtime.files import PARAMS
from modelc.scratch import TemporaryFolder
from modelc.target.system import WASI, WINDOWS

KERNEL = ("-std=c11", "-O2", "-fPIC", "-ffp-contract=off", "-fvisibility=hidden", "-ffunction-sections")
COMPILE = (*KERNEL, "-fdata-sections", "-w", "-g0")
THREADS = ("-pthread",)
BARE_FLAGS = ("-ffreestanding", "-fno-stack-protector", "-fno-asynchronous-unwind-tables")
LINK = re.findall(
    r"\S+",
    "-shared -s -static-libgcc -Wl,--gc-sections -Wl,--build-id=none -Wl,--no-undefined -Wl,--as-needed "
    "-Wl,-Bsymbolic -Wl,-z,relro,-z,now,-z,noexecstack -Wl,--version-script=exports.map",
)
MODULE = re.findall(
    r"\S+",
    "--no-entry --allow-undefined --gc-sections --strip-all --export-table --growable-table --stack-first "
    "-z stack-size=1048576",
)
# What LLVM calls where a function has much on its stack, and the mark of a library that uses floating point.
WINDOWS_OWN = """int _fltused = 0;
__attribute__((naked)) void ___chkstk_ms(void) {
    __asm__("push %rcx; push %rax; cmp $0x1000, %rax; lea 24(%rsp), %rcx; jb 2f;"
            "1: sub $0x1000, %rcx; testq %rcx, (%rcx); sub $0x1000, %rax; cmp $0x1000, %rax; ja 1b;"
            "2: sub %rax, %rcx; testq %rcx, (%rcx); pop %rax; pop %rcx; ret");
}
int DllMainCRTStartup(void *library, unsigned reason, void *reserved) { return 1; }
int _DllMainCRTStartup(void *library, unsigned reason, void *reserved) { return 1; }
"""
# Aligned as whatever maps parameters gives them, and in a section that is only read.
EMBEDDED = """    .section .rodata.parameters, "a"
    .globl {symbol}
    .hidden {symbol}
    .balign 64
{symbol}:
    .incbin "params.bin"
    .section .note.GNU-stack, "", {at}progbits
"""
INCLUDED = """#include <stdint.h>
const uint8_t mc_parameters[] __attribute__((aligned(64))) = {
#embed "params.bin"
};
"""  # where assemblers differ; the compiler is clang


@dataclass(frozen=True)
class Code:
    """What goes into a package's library: the text of model_plan.c, the kernels' objects by name, and the file of the
    parameters where they are embedded."""

    plan: str
    objects: Mapping[str, bytes]
    params: Path | None


def compile_kernel(toolchain: Toolchain, source: str, visible: bool = False) -> bytes:
    """The object of a kernel in C; `visible` in the library that it alone is linked to (link_kernel)."""
    return toolchain.object_of(source, [*_placed_anywhere(toolchain, KERNEL), *["-fvisibility=default"] * visible])


def link_kernel(toolchain: Toolchain, code: bytes) -> bytes:
    """A shared library of the object of one kernel alone. What it calls of libm, whoever loads it has to bring."""
    check_object(code, "the kernel's object", toolchain.machine)
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
        inputs = _inputs(toolchain, form, code, runtime_objects(toolchain), "mc_parameters", folder)
        exports = "; ".join(exported_names(form))
        (folder / "exports.map").write_text(f"{{ global: {exports}; local: *; }};\n")
        arguments = [*COMPILE, *THREADS, *LINK, f"-Wl,-soname,{form.library}", *inputs]
        toolchain.compile([*arguments, *linking_old(toolchain), "-lm", "-o", "linked.so"], folder)
        data = (folder / "linked.so").read_bytes()
        what = "the library that the C compiler made"
        check_object(data, what, toolchain.machine)
        made = shared_library(data, what)
        if toolchain.libc == "gnu" and made.glibc > toolchain.glibc:
            newest, most = (".".join(map(str, version)) for version in (made.glibc, toolchain.glibc))
            raise ToolchainError(f"{what} needs glibc {newest}, and it was to need {most} at most: a bug of modelc")
        shutil.copyfile(folder / "linked.so", library)
        return made


def link_static(toolchain: Toolchain, form: Form, code: Code, package: Path) -> tuple[str, ...]:
    """Writes the static library, and the one object, that the form says. All names in them begin with the prefix. Says
    which functions a program that is linked with a free-standing one has to bring."""
    with TemporaryFolder("link") as name:
        folder = Path(name)
        members = _members(toolchain, form, code, folder)
        if "o" in form.on.emit:
            if form.on is WASI:
                toolchain.link_module(["-r", *members, "-o", form.object], folder)
            else:
                no_id = ["-Wl,--build-id=none"] * (form.on.objects == "ELF")
                toolchain.compile(["-r", "-nostdlib", *no_id, *members, "-o", form.object], folder)
        if "a" in form.emit:
            toolchain.archive(form.archive, members, folder)
            shutil.copyfile(folder / form.archive, package / form.archive)
        if "o" in form.emit:
            shutil.copyfile(folder / form.object, package / form.object)
        return _wanted(form, members, folder) if form.freestanding else ()


def link_foreign(toolchain: Toolchain, form: Form, code: Code, package: Path) -> tuple[str, ...]:
    """Writes the shared library of a system other than Linux, or the module. Says which functions it wants from what
    loads it."""
    with TemporaryFolder("link") as name:
        folder = Path(name)
        members = _members(toolchain, form, code, folder)
        names = exported_names(form)
        if form.on is WASI:
            exports = [f"--export={symbol}" for symbol in (*names, "__heap_base")]
            toolchain.link_module([*MODULE, *exports, *members, "-o", form.library], folder)
        elif form.on is WINDOWS:
            (folder / "exports.def").write_text("EXPORTS\n" + "".join(f"    {symbol}\n" for symbol in names))
            (folder / "system.c").write_text(WINDOWS_OWN)
            arguments = ["-shared", "-s", "-O2", "-nostdlib", f"-Wl,--out-implib,{form.beside[0]}", "exports.def"]
            toolchain.compile([*arguments, "system.c", *members, "-lucrtbase", "-o", form.library], folder)
        else:
            install = f"-Wl,-install_name,@rpath/{form.library}"
            toolchain.compile(["-shared", "-nostdlib", "-s", install, *members, "-lSystem", "-o", form.library], folder)
        data = (folder / form.library).read_bytes()
        check_object(data, "the library that the linker made", toolchain.machine)
        shutil.copyfile(folder / form.library, package / form.library)
        for file in form.beside:
            if (folder / file).exists():
                shutil.copyfile(folder / file, package / file)
        if form.on is not WASI:
            return ()
        calls = tuple(sorted(symbols_of(data, form.library).wanted))
        if lacking := set(calls) - module_functions():
            raise ToolchainError(f"the kernels call {', '.join(sorted(lacking))}, which no WebAssembly host brings")
        return calls


def _members(toolchain: Toolchain, form: Form, code: Code, folder: Path) -> list[str]:
    """The objects of a library all of whose names begin with the prefix, in `folder`. Their own names are the model's
    too: some linkers list them."""
    names = renamed(form, [(RUNTIME / "modelc_runtime.h").read_text()])
    runtime = runtime_objects(toolchain, form.freestanding, names)
    flags = (*names, *(BARE_FLAGS if form.freestanding else THREADS))
    members = []
    for k, file in enumerate(_inputs(toolchain, form, code, runtime, f"{form.prefix}_mc_parameters", folder)):
        member = f"{form.prefix}_{k}.o"
        if file.endswith(".o"):
            (folder / file).rename(folder / member)
        else:
            toolchain.compile([*_placed_anywhere(toolchain, COMPILE), *flags, "-c", file, "-o", member], folder)
        members.append(member)
    return members


def _wanted(form: Form, members: Sequence[str], folder: Path) -> tuple[str, ...]:
    """The functions that objects want from others than themselves."""
    if form.on.objects == "ELF":
        return undefined_symbols((folder / form.object).read_bytes(), form.object)
    files = [form.object] if form.on is WASI else members
    symbols = [symbols_of((folder / file).read_bytes(), file) for file in files]
    wanted = frozenset().union(*(s.wanted for s in symbols)) - frozenset().union(*(s.defined for s in symbols))
    return tuple(sorted(wanted - {"__stack_pointer", "__linear_memory", "__indirect_function_table"}))


def _placed_anywhere(toolchain: Toolchain, flags: tuple[str, ...]) -> tuple[str, ...]:
    """Flags for C sources: code for Windows lies anywhere by itself."""
    return tuple(flag for flag in flags if flag != "-fPIC" or toolchain.system is not WINDOWS)


def _inputs(
    toolchain: Toolchain, form: Form, code: Code, runtime: Mapping[str, bytes], parameters: str, folder: Path
) -> list[str]:
    """Files in `folder` that are linked; `parameters` is what they are called where they are embedded."""
    for file in HEADERS:
        shutil.copyfile(RUNTIME / file, folder / file)
    (folder / "model_plan.c").write_text(code.plan)
    for file, data in runtime.items():
        (folder / file).write_bytes(data)
    kernels = [f"kernel_{i}.o" for i in range(len(code.objects))]
    for kernel, (object_name, data) in zip(kernels, sorted(code.objects.items()), strict=True):
        check_object(data, f"the kernel object '{object_name}'", toolchain.machine)
        (folder / kernel).write_bytes(data)
    inputs = [*runtime, "model_plan.c", *kernels]
    if code.params is not None:
        shutil.copyfile(code.params, folder / PARAMS)
        if form.on.objects != "ELF":
            (folder / "parameters.c").write_text(INCLUDED)
            return [*inputs, "parameters.c"]
        at = "%" if toolchain.machine.name == "arm" else "@"  # which begins a comment there
        (folder / "parameters.S").write_text(EMBEDDED.format(symbol=parameters, at=at))
        inputs.append("parameters.S")
    return inputs


def runtime_objects(
    toolchain: Toolchain, freestanding: bool = False, names: tuple[str, ...] = ()
) -> Mapping[str, bytes]:
    """The runtime's objects by file name: the same in every package, but for `names` of its functions."""
    files, headers = (tuple(RUNTIME / n for n in group) for group in (BARE if freestanding else HOSTED, HEADERS))
    flags = (*_placed_anywhere(toolchain, COMPILE), *(BARE_FLAGS if freestanding else THREADS), *names)
    return objects_of(toolchain, Sources(files, headers, flags))


def runtime_sources() -> list[bytes]:
    """Everything of the runtime that goes into a library."""
    return [(RUNTIME / file).read_bytes() for file in (*dict.fromkeys((*HOSTED, *BARE)), *HEADERS)]
