"""Finding what compiles for a triple: the host's cc, a cross gcc or ziglang."""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from modelc.errors import ToolchainError, extra
from modelc.package.elf import elf_header
from modelc.package.foreign import check_foreign
from modelc.python_worker import worker_command
from modelc.scratch import TemporaryFolder
from modelc.target.system import ANDROID, LINUX, MACOS, WASI, WINDOWS, System, is_musl, system_of

SECONDS = 60  # for a compiler to say its version


@dataclass(frozen=True)
class Machine:
    """A kind of CPU under a system: its names in triples, in the headers of objects, and in the tools that build and
    emulate for it."""

    name: str
    object_machine: int  # what the headers of objects say
    pointer_bits: int
    gnu_triple: str  # of Debian's cross gcc and of its library folder
    glibc: tuple[int, int] = (0, 0)  # the oldest to run on
    debian: str = ""  # what Debian calls it
    qemu_cpu: str = "max"  # one with every feature that qemu knows
    system: System = LINUX

    @property
    def qemu(self) -> str:
        return f"qemu-{self.name}" if self.system is LINUX else ""

    @property
    def debian_gcc(self) -> str:
        return f"gcc-{self.gnu_triple.replace('_', '-')}"

    @property
    def debian_libc(self) -> str:
        return f"libc6-{self.debian}-cross"

    @property
    def gcc_names(self) -> tuple[str, ...]:
        """The first words of triples that compilers say."""
        return (self.name, *(["armv7l", "armv7", "armv7a"] if self.name == "arm" else []))


def _foreign(name: str, system: System, number: int, bits: int = 64) -> Machine:
    return Machine(name, number, bits, "-".join((name, system.part, *system.environments)), system=system)


MACHINES = (
    Machine("x86_64", 62, 64, "x86_64-linux-gnu", (2, 17), "amd64"),
    Machine("aarch64", 183, 64, "aarch64-linux-gnu", (2, 17), "arm64"),
    Machine("arm", 40, 32, "arm-linux-gnueabihf", (2, 28), "armhf"),
    Machine("riscv64", 243, 64, "riscv64-linux-gnu", (2, 28), "riscv64", "rv64,v=true"),
)
FOREIGN = (  # that nothing is known of but how to make objects; WebAssembly is run by Node.js
    _foreign("aarch64", ANDROID, 183),
    _foreign("x86_64", WINDOWS, 0x8664),
    _foreign("x86_64", MACOS, 0x01000007),
    _foreign("aarch64", MACOS, 0x0100000C),
    _foreign("wasm32", WASI, 0, 32),
)


@dataclass(frozen=True)
class Toolchain:
    """A C compiler for one machine: what to put before its arguments. `libc` is gnu, musl or none; of gnu, libraries
    that it links need no symbol newer than `glibc`. `archiver` makes static libraries. `zig` brings C libraries of its
    own, of that very version."""

    machine: Machine
    command: tuple[str, ...]
    libc: str = "gnu"
    glibc: tuple[int, int] = (0, 0)
    archiver: tuple[str, ...] = ("ar",)
    zig: bool = False

    @property
    def system(self) -> System:
        return self.machine.system

    def linking_all(self) -> Toolchain:
        """The same, for programs that need no library where they run; ziglang has such a C library of musl alone."""
        linking = _ziglang(self.machine, "musl", self.glibc) if self.zig else self
        return replace(linking, command=(*linking.command, "-static"))

    def compile(self, arguments: Sequence[str], folder: Path) -> None:
        """Runs the compiler in `folder`. Raises ToolchainError with what it said if it fails."""
        _run("C compiler", self.command, arguments, folder)

    def check(self) -> None:
        """Raises ToolchainError where a small source that needs the C library's headers, if there is one, does not
        compile: said before any kernel is."""
        self.object_of(f"#include <{'stdint.h' if self.libc == 'none' else 'string.h'}>\nint empty;\n", stem="empty")

    def object_of(self, source: str, flags: Sequence[str] = (), stem: str = "kernel") -> bytes:
        """The object of one source, whose file is called STEM.c. Raises ToolchainError as compile() does."""
        with TemporaryFolder("cc") as name:
            folder = Path(name)
            (folder / f"{stem}.c").write_text(source)
            self.compile([*flags, "-c", f"{stem}.c", "-o", f"{stem}.o"], folder)
            return (folder / f"{stem}.o").read_bytes()

    def link_module(self, arguments: Sequence[str], folder: Path) -> None:
        """Runs the linker of WebAssembly, of ziglang by itself: its cc would build a C library first."""
        if self.zig:
            _run("linker", worker_command("ziglang", "wasm-ld"), arguments, folder)
        else:
            wrapped = [f"-Wl,{word}" if word.startswith("-") and word != "-o" else word for word in arguments]
            _run("C compiler", self.command, ["-nostdlib", *wrapped], folder)

    def archive(self, name: str, files: Sequence[str], folder: Path) -> None:
        """Makes the static library `name` of objects in `folder`: the same bytes of the same objects. Raises
        ToolchainError with what the archiver said."""
        _run("archiver", self.archiver, ["rcsD", name, *files], folder)

    @property
    def described(self) -> str:
        """Of what program and version it is."""
        version = said_by((*self.command, "--version")).partition("\n")[0]
        return f"ziglang {version}" if self.zig else version or self.command[0]


def machine_of(triple: str) -> Machine:
    """The machine that a triple such as aarch64-linux-gnu names. Raises ToolchainError for one without a row."""
    arch, _, rest = triple.partition("-")
    name = {"amd64": "x86_64", "arm64": "aarch64"}.get(arch, "arm" if arch.startswith("armv7") else arch)
    system = system_of(triple) or (LINUX if "linux" in rest or not rest else None)
    for machine in (*MACHINES, *FOREIGN):
        if machine.name == name and machine.system is system:
            return machine
    triples = ", ".join(machine.gnu_triple for machine in (*MACHINES, *FOREIGN))
    raise ToolchainError(f"cannot link for '{triple}': packages are made for {triples}")


def native_machine() -> Machine | None:
    """This machine, if packages can be made for it."""
    try:
        return machine_of(f"{platform.machine()}-{sys.platform}")
    except ToolchainError:
        return None


def find_toolchain(triple: str, libc: str = "", cc: str = "", ar: str = "") -> Toolchain:
    """What compiles for a triple with a C library (gnu, gnu.2.N, musl, none; empty: gnu): `cc`, if it is given; $CC, if
    it is for that machine; for this machine cc; else Debian's cross gcc; else ziglang. Raises ToolchainError: what to
    install, or what a given one says where it makes no code for that machine."""
    machine = machine_of(triple)
    kind, _, version = (libc or "musl" * is_musl(triple)).partition(".")
    if not machine.system.hosted and kind not in ("", "none"):
        raise ToolchainError(f"--libc {libc} is for Linux: packages for {machine.system.name} need no C library")
    found = _found(machine, triple, kind, _floor(machine, version), tuple(shlex.split(cc)))
    return replace(found, archiver=tuple(shlex.split(ar))) if ar else found


def _found(machine: Machine, triple: str, libc: str, glibc: tuple[int, int], given: tuple[str, ...]) -> Toolchain:
    """With the archiver that it has by itself."""
    hosted, native = machine.system.hosted, machine == native_machine()
    if given:
        kind = libc or (_libc_of(given) if hosted else "none")
        toolchain = Toolchain(machine, given, kind, glibc, _archiver(given))
        _check_given(toolchain)
        return toolchain
    if hosted and (command := next(_candidates(machine, native, libc), None)):
        return Toolchain(machine, command, libc or _libc_of(command), glibc, _archiver(command))
    if importlib.util.find_spec("ziglang"):
        return _ziglang(machine, (libc or "gnu") if hosted else "none", glibc)
    if not hosted:
        raise ToolchainError(f"no C compiler for {triple}: install ziglang with {extra('cross')}, or give one by --cc")
    package = "gcc and libc6-dev" if native else machine.debian_gcc
    if libc == "musl":
        package = "musl-tools" if native else "cross compiler of musl"
    raise ToolchainError(
        f"no C compiler for {machine.gnu_triple}{' with musl' * (libc == 'musl')}: install Debian's {package}, or "
        f"ziglang with {extra('cross')}"
    )


def _candidates(machine: Machine, native: bool, libc: str) -> Iterator[tuple[str, ...]]:
    """Compilers that are there, but ziglang."""
    named = tuple(shlex.split(os.environ.get("CC", "")))
    if named and libc != "musl" and (native or _dumped(named).partition("-")[0] in machine.gcc_names):
        yield named
    musl = f"{machine.gnu_triple.replace('gnu', 'musl')}-gcc"
    names = [*["musl-gcc"] * native, musl] if libc == "musl" else [*["cc"] * native, f"{machine.gnu_triple}-gcc"]
    yield from ((path,) for path in map(shutil.which, names) if path)


def _floor(machine: Machine, version: str) -> tuple[int, int]:
    """The version of glibc that is asked for: '2.31' is (2, 31). Raises ToolchainError for what is too old."""
    if not version:
        return machine.glibc
    major, minor = map(int, version.split("."))
    if (major, minor) < machine.glibc:
        least = ".".join(map(str, machine.glibc))
        raise ToolchainError(f"--libc gnu.{version} is too old for {machine.name}: the least is gnu.{least}")
    return major, minor


def _libc_of(command: Sequence[str]) -> str:
    return "musl" if "musl" in _dumped(tuple(command)) else "gnu"


def _dumped(command: tuple[str, ...]) -> str:
    """The triple that a compiler says that it makes code for; empty where it does not say."""
    return said_by((*command, "-dumpmachine")).strip()


@cache
def said_by(command: tuple[str, ...]) -> str:
    """What a program writes; empty where it fails."""
    try:
        done = subprocess.run(command, cwd="/", capture_output=True, check=True, timeout=SECONDS)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode(errors="replace")


def _archiver(command: Sequence[str]) -> tuple[str, ...]:
    """The ar beside a gcc, by its name; else the system's."""
    name, cut, _ = command[0].rpartition("gcc")
    beside = f"{name}ar" if cut else ""
    return (beside if beside and shutil.which(beside) else "ar",)


def _ziglang(machine: Machine, libc: str, glibc: tuple[int, int]) -> Toolchain:
    version = f".{glibc[0]}.{glibc[1]}" if libc == "gnu" else ""
    triple = machine.gnu_triple if libc != "musl" else machine.gnu_triple.replace("gnu", "musl")
    if machine.system.zig:
        triple = f"{machine.name}-{machine.system.zig}"
    android = ("-ffixed-x18",) if machine.system is ANDROID else ()  # which that system keeps to itself
    command = (*worker_command("ziglang", "cc"), "-target", f"{triple}{version}", *android)
    return Toolchain(machine, command, libc, glibc, tuple(worker_command("ziglang", "ar")), True)


def _check_given(toolchain: Toolchain) -> None:
    """Raises ToolchainError, with what the compiler said, where it makes no object for the machine."""
    shown = shlex.join(toolchain.command)
    try:
        made = toolchain.object_of("int empty;\n", stem="empty")
    except ToolchainError as error:
        raise ToolchainError(f"--cc {shown!r} does not compile for {toolchain.machine.gnu_triple}: {error}") from None
    check_object(made, f"what --cc {shown!r} makes", toolchain.machine)


def _run(what: str, command: Sequence[str], arguments: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run([*command, *arguments], cwd=folder, capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise ToolchainError(f"cannot run the {what} '{command[0]}': {error.strerror}") from None
    if done.returncode:
        said = "\n".join(done.stderr.strip().splitlines()[:12])
        raise ToolchainError(f"the {what} '{shlex.join(command)}' failed:\n{said}")


def check_object(data: bytes, what: str, machine: Machine) -> None:
    """Raises ToolchainError if an object or a library is not for this machine, which linkers say less clearly."""
    if machine.system.objects != "ELF":
        check_foreign(data, what, machine.system.objects, machine.object_machine)
        return
    elf_machine, bits = elf_header(data, what)
    if (elf_machine, bits) != (machine.object_machine, machine.pointer_bits):
        name = next((m.name for m in MACHINES if m.object_machine == elf_machine), f"ELF machine {elf_machine}")
        raise ToolchainError(
            f"{what} is for {name} ({bits} bits) instead of {machine.name} ({machine.pointer_bits} bits)"
        )
