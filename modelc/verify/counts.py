"""How many instructions a run of a package takes: valgrind's callgrind counts those of this machine, and a plugin of
qemu-user (count_instructions.c) those of others. The count is the same on every run and on a machine that is busy."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from modelc.errors import ToolchainError
from modelc.package import Package, at_inputs, machine_of, read_package, variant_for
from modelc.package.emulate import driver, extents_flags, input_bytes
from modelc.package.objects import Sources, linked
from modelc.package.toolchain import find_toolchain, native_machine
from modelc.scratch import TemporaryFolder

SECONDS = 3600
ENOUGH, MOST_RUNS = 10_000_000, 1000  # instructions counted at least: starting takes some thousand more or less
VERSIONS = (1, 2)  # of QEMU's interface for plugins: until QEMU 8, and from 9 on
_COLLECTED = re.compile(r"Collected : (\d+)")


def instructions(path: str | Path, inputs: Mapping[str, NDArray[Any]]) -> int:
    """Of a run on one thread, without opening: what more runs take more than one. Raises ToolchainError where nothing
    counts them here."""
    package = at_inputs(read_package(path, check=True), inputs)
    variant = variant_for(package, inputs)
    with TemporaryFolder("counts") as name:
        folder = Path(name)
        native = machine_of(package.manifest.target.triple) == native_machine()
        counter = _valgrind(package, folder) if native else _emulator(package)
        (folder / "inputs.bin").write_bytes(input_bytes(package, variant, inputs))
        files = [str(folder / "inputs.bin"), str(folder / "outputs.bin")]
        command, extents = [*counter, *files, "--variant", str(variant)], extents_flags(package, variant, inputs)
        return of_a_run(lambda runs: [*command, "--repeat", str(runs), *extents], str(path))


def of_a_run(command: Callable[[int], list[str]], what: str, first: int = 1) -> int:
    """What a run takes of what `command` says how to count for a number of runs: what more runs take more than the
    `first`. Raises ToolchainError, which names `what` ran."""
    before, after = (_collected(command(runs), what) for runs in (first, first + 1))
    more = min(MOST_RUNS, ENOUGH // max(after - before, 1))
    return after - before if more <= 1 else round((_collected(command(first + more), what) - before) / more)


def _valgrind(package: Package, folder: Path) -> list[str]:
    """The command that runs the package and counts, up to the arguments that say what to do."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise ToolchainError("nothing counts instructions here: install Debian's valgrind")
    wide = [name for name in package.manifest.target.features if name.startswith(("avx512", "amx"))]
    if wide:
        raise ToolchainError(
            f"{package.path} uses {wide[0]}, whose instructions valgrind does not execute: compile for x86-64-v3"
        )
    return [valgrind, "--tool=callgrind", f"--callgrind-out-file={folder / 'callgrind.out'}", *driver(package)]


def _emulator(package: Package) -> list[str]:
    """The same for another machine's package, under the emulator that takes plugins."""
    machine = machine_of(package.manifest.target.triple)
    emulator = shutil.which(machine.qemu) if machine.qemu else None
    if emulator is None:
        raise ToolchainError(
            f"{package.path} is for {package.manifest.target.triple}, whose instructions nothing counts here: install "
            "Debian's qemu-user, which takes plugins (qemu-user-static takes none)"
        )
    _, *arguments = driver(package)
    return counting(emulator, arguments)


def counting(emulator: str, arguments: Sequence[str]) -> list[str]:
    """The command that runs `arguments` under `emulator`, one of QEMU's that takes plugins, and counts. Raises
    ToolchainError."""
    for version in VERSIONS:
        counter = [emulator, "-plugin", str(_plugin(version)), *arguments]
        tried = subprocess.run(counter, capture_output=True, text=True, errors="replace", timeout=SECONDS)
        if "API version" not in tried.stderr:
            return counter
    raise ToolchainError(f"{emulator} takes none of the plugins that are known: {tried.stderr.strip()[:300]}")


@cache
def _plugin(version: int) -> Path:
    """The library that QEMU loads."""
    flags = ("-std=c11", "-O2", "-fPIC", f"-DVERSION={version}")
    sources = Sources((Path(__file__).with_name("count_instructions.c"),), (), flags)
    machine = native_machine()
    if machine is None:
        raise ToolchainError("nothing counts instructions on this machine, whose kind is not known")
    return linked(find_toolchain(machine.gnu_triple), sources, ("-shared",), "count_instructions.so")


def _collected(command: list[str], path: str) -> int:
    """The instructions of a whole process."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise ToolchainError(f"{path} did not run to its end while it was counted, within {SECONDS} s") from None
    match = _COLLECTED.search(done.stderr)
    if done.returncode or match is None:
        said = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "it said nothing")
        raise ToolchainError(f"{path} did not run where it was to be counted: {said.strip()[:300]}")
    return int(match[1])
