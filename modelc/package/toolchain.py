"""Finding what compiles for a triple: the host's cc, a cross gcc or ziglang."""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from modelc.errors import ToolchainError
from modelc.python_worker import worker_command


@dataclass(frozen=True)
class Machine:
    """A kind of CPU: its names in triples, in ELF headers, and in the tools that build and emulate for it."""

    name: str
    elf_machine: int
    pointer_bits: int
    gnu_triple: str  # of Debian's cross gcc and of its library folder
    zig_triple: str  # with the oldest glibc to run on
    qemu: str
    qemu_cpu: str  # one with every feature that qemu knows
    debian_gcc: str
    debian_libc: str


MACHINES = (
    Machine(
        "x86_64",
        62,
        64,
        "x86_64-linux-gnu",
        "x86_64-linux-gnu.2.28",
        "qemu-x86_64",
        "max",
        "gcc-x86-64-linux-gnu",
        "libc6-amd64-cross",
    ),
    Machine(
        "aarch64",
        183,
        64,
        "aarch64-linux-gnu",
        "aarch64-linux-gnu.2.28",
        "qemu-aarch64",
        "max",
        "gcc-aarch64-linux-gnu",
        "libc6-arm64-cross",
    ),
    Machine(
        "arm",
        40,
        32,
        "arm-linux-gnueabihf",
        "arm-linux-gnueabihf.2.28",
        "qemu-arm",
        "max",
        "gcc-arm-linux-gnueabihf",
        "libc6-armhf-cross",
    ),
    Machine(
        "riscv64",
        243,
        64,
        "riscv64-linux-gnu",
        "riscv64-linux-gnu.2.28",
        "qemu-riscv64",
        "rv64,v=true",
        "gcc-riscv64-linux-gnu",
        "libc6-riscv64-cross",
    ),
)


@dataclass(frozen=True)
class Toolchain:
    """A C compiler for one machine: what to put before its arguments."""

    machine: Machine
    command: tuple[str, ...]

    def linking_all(self) -> Toolchain:
        """The same, for programs that need no library where they run; ziglang has such a C library of musl alone."""
        musl = self.machine.zig_triple.partition(".")[0].replace("gnu", "musl")
        command = (musl if word == self.machine.zig_triple else word for word in self.command)
        return Toolchain(self.machine, (*command, "-static"))

    def compile(self, arguments: Sequence[str], folder: Path) -> None:
        """Runs the compiler in `folder`. Raises ToolchainError with what it said if it fails."""
        try:
            done = subprocess.run(
                [*self.command, *arguments], cwd=folder, capture_output=True, text=True, errors="replace"
            )
        except OSError as error:
            raise ToolchainError(f"cannot run the C compiler '{self.command[0]}': {error.strerror}") from None
        if done.returncode:
            said = "\n".join(done.stderr.strip().splitlines()[:12])
            raise ToolchainError(f"the C compiler '{shlex.join(self.command)}' failed:\n{said}")


def machine_of(triple: str) -> Machine:
    """The machine that a triple such as aarch64-linux-gnu names. Raises ToolchainError for one without a row."""
    arch, _, system = triple.partition("-")
    name = {"amd64": "x86_64", "arm64": "aarch64"}.get(arch, "arm" if arch.startswith("armv7") else arch)
    for machine in MACHINES:
        if machine.name == name and ("linux" in system or not system):
            return machine
    triples = ", ".join(machine.gnu_triple for machine in MACHINES)
    raise ToolchainError(f"cannot link for '{triple}': packages are made for {triples}")


def native_machine() -> Machine | None:
    """This machine, if packages can be made for it."""
    try:
        return machine_of(f"{platform.machine()}-{sys.platform}")
    except ToolchainError:
        return None


def find_toolchain(triple: str) -> Toolchain:
    """$CC or cc for this machine; else Debian's cross gcc; else ziglang. Raises ToolchainError: what to install."""
    machine = machine_of(triple)
    native = machine == native_machine()
    named = shlex.split(os.environ.get("CC", "")) if native else []
    if named:
        return Toolchain(machine, tuple(named))
    for program in ["cc"] * native + [f"{machine.gnu_triple}-gcc"]:
        if path := shutil.which(program):
            return Toolchain(machine, (path,))
    if importlib.util.find_spec("ziglang"):
        return Toolchain(machine, (*worker_command("ziglang", "cc"), "-target", machine.zig_triple))
    package = "gcc and libc6-dev" if native else machine.debian_gcc
    raise ToolchainError(
        f"no C compiler for {machine.gnu_triple}: install Debian's {package}, or ziglang with pip install modelc[cross]"
    )


def check_elf(data: bytes, what: str, machine: Machine) -> None:
    """Raises ToolchainError if an object or a library is not for this machine, which linkers say less clearly."""
    if len(data) < 20 or data[:4] != b"\x7fELF":
        raise ToolchainError(f"{what} is not an ELF file")
    bits, elf_machine = 32 * data[4], struct.unpack_from("<H", data, 18)[0]
    if (elf_machine, bits) != (machine.elf_machine, machine.pointer_bits):
        name = next((m.name for m in MACHINES if m.elf_machine == elf_machine), f"ELF machine {elf_machine}")
        raise ToolchainError(
            f"{what} is for {name} ({bits} bits) instead of {machine.name} ({machine.pointer_bits} bits)"
        )
