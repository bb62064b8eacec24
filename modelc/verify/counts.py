"""How many instructions a run of a package takes: valgrind's callgrind counts them, the same on every run and on a
machine that is busy with other things."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from modelc.errors import ToolchainError
from modelc.package import machine_of, read_package, variant_for
from modelc.package.emulate import driver, input_bytes
from modelc.package.toolchain import native_machine
from modelc.scratch import TemporaryFolder

SECONDS = 3600
NOISE = 1000  # instructions by which counts of one run differ: a program's way to its end is not always the same
_COLLECTED = re.compile(r"Collected : (\d+)")


def instructions(path: str | Path, inputs: Mapping[str, NDArray[Any]]) -> int:
    """Of a run on one thread, without opening: what two runs take more than one. Raises ToolchainError where nothing
    counts them here."""
    package = read_package(path, check=True)
    target = package.manifest.target
    if machine_of(target.triple) != native_machine():
        raise ToolchainError(
            f"{path} is for {target.triple}, whose instructions nothing counts here: QEMU's plugin libinsn.so would, "
            "and Debian's qemu-user-static takes no plugins; install a qemu-user that is built with --enable-plugins, "
            "and its libinsn.so, or count with valgrind on such a machine"
        )
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise ToolchainError("nothing counts instructions here: install Debian's valgrind")
    if wide := [feature for feature in target.features if feature.startswith(("avx512", "amx"))]:
        raise ToolchainError(
            f"{path} uses {wide[0]}, whose instructions valgrind does not execute: compile for x86-64-v3"
        )
    variant = variant_for(package, inputs)
    with TemporaryFolder("counts") as name:
        folder = Path(name)
        (folder / "inputs.bin").write_bytes(input_bytes(package, variant, inputs))
        out = f"--callgrind-out-file={folder / 'callgrind.out'}"
        files = [str(folder / "inputs.bin"), str(folder / "outputs.bin")]
        command = [valgrind, "--tool=callgrind", out, *driver(package), *files, "--variant", str(variant)]
        one, two = (_collected([*command, "--repeat", str(count)], str(path)) for count in (1, 2))
    return two - one


def _collected(command: list[str], path: str) -> int:
    """The instructions of a whole process."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise ToolchainError(f"{path} did not run to its end under valgrind within {SECONDS} s") from None
    match = _COLLECTED.search(done.stderr)
    if done.returncode or match is None:
        said = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "it said nothing")
        raise ToolchainError(f"{path} did not run under valgrind: {said.strip()[:300]}")
    return int(match[1])
