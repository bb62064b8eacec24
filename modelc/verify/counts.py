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
ENOUGH, MOST_RUNS = 10_000_000, 1000  # instructions counted at least: starting takes some thousand more or less
NOISE = 20  # instructions by which counts of a run of little differ
_COLLECTED = re.compile(r"Collected : (\d+)")


def instructions(path: str | Path, inputs: Mapping[str, NDArray[Any]]) -> int:
    """Of a run on one thread, without opening: what more runs take more than one. Raises ToolchainError where nothing
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

        def collected(runs: int) -> int:
            return _collected([*command, "--repeat", str(runs)], str(path))

        one, two = collected(1), collected(2)
        more = min(MOST_RUNS, ENOUGH // max(two - one, 1))
        return two - one if more <= 1 else round((collected(1 + more) - one) / more)


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
