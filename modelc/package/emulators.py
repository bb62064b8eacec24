"""What runs programs that this machine's CPU does not: qemu-user for another kind of CPU; for an x86-64 one without
Intel's tile registers a library (tiles.c) that executes AMX's instructions where the CPU refuses them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from functools import cache
from pathlib import Path

from modelc.errors import ToolchainError
from modelc.package.objects import Sources, linked
from modelc.package.toolchain import find_toolchain, machine_of, native_machine
from modelc.target.host import read_host
from modelc.target.system import WASI

TILES = frozenset({"amx-tile", "amx-int8", "amx-bf16"})  # the features whose instructions tiles.c executes


def emulator(triple: str, features: Collection[str] = ()) -> tuple[str, ...]:
    """What to put before a program built for `triple` and a CPU with `features` (LLVM's names) to run it here: nothing
    where this machine runs it, or where it lacks what nothing here executes either: opening a package says so then.
    Raises ToolchainError that says what to install."""
    machine = machine_of(triple)
    if machine.system is WASI:
        node = shutil.which("node")
        if not node:
            raise ToolchainError("nothing runs WebAssembly here: install Node.js 18 or newer (Debian's nodejs)")
        return (node,)
    if not machine.system.hosted:
        raise ToolchainError(f"programs for {machine.system.name} are not run on this machine")
    if machine == native_machine():
        missing = [] if TILES.isdisjoint(features) else lacking(features)
        return _preloaded(triple, missing) if missing and TILES.issuperset(missing) else ()
    program = shutil.which(f"{machine.qemu}-static") or shutil.which(machine.qemu)
    if not program:
        raise ToolchainError(f"no emulator for {machine.gnu_triple}: install Debian's qemu-user-static")
    folder = Path("/usr") / machine.gnu_triple
    if not (folder / "lib").is_dir():
        raise ToolchainError(
            f"no C library to emulate {machine.gnu_triple} with: install Debian's {machine.debian_libc}"
        )
    return (program, "-L", str(folder), "-cpu", machine.qemu_cpu)


def lacking(features: Collection[str]) -> list[str]:
    """Those of the features (LLVM's names) that this machine's CPU has not, in order."""
    return sorted(set(features) - _host_features())


@cache
def _host_features() -> frozenset[str]:
    return frozenset(read_host().features)


def _preloaded(triple: str, features: Collection[str]) -> tuple[str, ...]:
    """Preloads tiles.c, and tells the runtime what is executed though CPUID does not name it."""
    flags = ("-std=c11", "-O3", "-mavx2", "-mfma", "-fPIC")  # what has tiles has AVX2 and FMA
    sources = Sources((Path(__file__).with_name("tiles.c"),), (), flags)
    tiles = linked(find_toolchain(triple), sources, ("-shared",), "tiles.so")
    env = shutil.which("env") or "/usr/bin/env"
    libraries = [str(tiles), *filter(None, [os.environ.get("LD_PRELOAD")])]
    return (env, f"LD_PRELOAD={':'.join(libraries)}", f"MODELC_EMULATED={' '.join(features)}")
