"""Counts the instructions of one inference on Arm CPUs, beside ONNX Runtime's library for AArch64, without a board:

    python scripts/count_boards.py MODEL... [--cpu cortex-a76,cortex-a72] [--precision f32|f16] [--library FILE]
                                   [--version V] [--dir models] [--folder DIR]

Each model (models/NAME.onnx, or a path) is compiled for each CPU, untuned and on one thread, and runs under qemu-user
with a plugin that counts; so does ONNX Runtime (run_onnxruntime.c), on one thread and on the same inputs, under QEMU's
model of that CPU and with the /proc/cpuinfo of a board: its kernels are those that it takes there. The outputs of the
two are compared. A count is what more runs take more than the first two, so that opening and first allocations are not
in it. The ratio is ONNX Runtime's count over modelc's.

It is a count under emulation and not a measurement of speed: nothing of caches, memory and pipelines is in it, and
instructions are not equally long.

ONNX Runtime's library is taken out of npm's onnxruntime-node (of version V; it has no header and is not installed), or
is FILE. The exit code is 2 where something is missing, and a sentence says what to install.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import paths
from fetch_models import download_npm
from numpy.typing import NDArray
from onnx.helper import np_dtype_to_tensor_dtype
from rich.table import Table
from trained_models import catalogue, shapes_of

import modelc
from modelc.cli.terminal import err, out
from modelc.errors import ModelcError, ToolchainError
from modelc.package import read_package
from modelc.package.emulate import run_emulated
from modelc.package.toolchain import find_toolchain
from modelc.target import load_target
from modelc.verify.check import drawn, for_the_model
from modelc.verify.compare import distance
from modelc.verify.counts import counting, instructions, of_a_run

NPM, VERSION = "onnxruntime-node", "1.30.0"
MEMBER = "package/bin/napi-v6/linux/arm64/libonnxruntime.so.1"
TRIPLE, EMULATOR = "aarch64-linux-gnu", "qemu-aarch64"
ROOT = Path("/usr") / TRIPLE
WARM = 2  # runs of ONNX Runtime before those that are counted: in the first it plans its memory
NEAR = 2e-2  # the relative RMS error by which two right ones may differ
PART = {"cortex-a72": "0xd08", "cortex-a76": "0xd0b"}
FEATURES = {  # as /proc/cpuinfo of a Raspberry Pi 4 or 5 has them
    "cortex-a72": "fp asimd evtstrm crc32 cpuid",
    "cortex-a76": "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp",
}
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Peer:
    """ONNX Runtime for AArch64: its library, and what runs models in it, built in `folder`."""

    library: Path
    program: Path
    folder: Path

    @classmethod
    def of(cls, library: Path, folder: Path) -> Peer:
        program = folder / "run_onnxruntime"
        source = Path(__file__).with_name("run_onnxruntime.c")
        find_toolchain(TRIPLE).compile(["-std=gnu11", "-O2", str(source), "-ldl", "-o", str(program)], folder)
        return cls(library.resolve(), program, folder)

    def root(self, cpu: str) -> Path:
        """Where the emulator looks for files first: a C library, and what a board of one core says of itself."""
        root = self.folder / f"root-{cpu}"
        system = root / "sys/devices/system/cpu"
        system.mkdir(parents=True, exist_ok=True)
        for name in ("possible", "present"):
            (system / name).write_text("0\n")
        (root / "proc").mkdir(exist_ok=True)
        about = {
            "processor": "0",
            "Features": FEATURES[cpu],
            "CPU implementer": "0x41",
            "CPU architecture": "8",
            "CPU variant": "0x0",
            "CPU part": PART[cpu],
            "CPU revision": "1",
        }
        (root / "proc/cpuinfo").write_text("".join(f"{name}\t: {value}\n" for name, value in about.items()) + "\n")
        if not (root / "lib").exists():
            (root / "lib").symlink_to(ROOT / "lib")
        return root

    def counted(self, model: Path, feed: Arrays, cpu: str, emulator: str) -> tuple[int, bytes]:
        """The instructions of a run, and the bytes of its outputs."""
        described, data, made = (self.folder / name for name in ("inputs.txt", "inputs.bin", "outputs.bin"))
        lines = (
            "\t".join([name, str(np_dtype_to_tensor_dtype(array.dtype)), *map(str, array.shape)])
            for name, array in feed.items()
        )
        described.write_text("".join(f"{line}\n" for line in lines))
        data.write_bytes(b"".join(np.asarray(array, order="C").tobytes() for array in feed.values()))
        arguments = ["-cpu", cpu, "-L", str(self.root(cpu)), str(self.program), str(self.library)]
        arguments += [str(model.resolve()), str(described), str(data), str(made)]
        counter = counting(emulator, arguments)
        count = of_a_run(lambda runs: [*counter, str(runs)], f"{model} in ONNX Runtime", WARM)
        return count, made.read_bytes()


def library_of(version: str, folder: Path) -> Path:
    """ONNX Runtime's library for AArch64, out of npm's package."""
    library = folder / f"{NPM}-{version}.so"
    if not library.exists():
        with tarfile.open(download_npm(NPM, version, folder)) as archive:
            if MEMBER not in archive.getnames():
                raise ToolchainError(f"{NPM}@{version} has no {MEMBER}: say another --version, or --library FILE")
            file = archive.extractfile(MEMBER)
            assert file is not None
            library.write_bytes(file.read())
    return library


def emulator_that_counts() -> str:
    """Raises ToolchainError that says what to install."""
    program = shutil.which(EMULATOR)
    if program is None:
        raise ToolchainError("nothing counts here: install Debian's qemu-user, which takes plugins")
    if not (ROOT / "lib/libstdc++.so.6").exists():
        raise ToolchainError("ONNX Runtime does not run here: install Debian's libstdc++6-arm64-cross")
    return program


def count(model: Path, cpu: str, precision: str, peer: Peer, emulator: str) -> list[str]:
    """A row of the table. Raises ModelcError where the outputs are apart."""
    package = peer.folder / f"{model.stem}-{cpu}-{precision}.modelc"
    if not package.exists():
        entry = catalogue().get(model.stem, {})
        modelc.compile(
            model,
            load_target(cpu),
            package,
            shapes=shapes_of(model.stem),
            constants=entry.get("constant", {}),
            precision=precision,
            verify=False,
            database=False,
        )
    read = read_package(package)
    feed = next(drawn(read, model))
    ours = instructions(package, feed)
    theirs, data = peer.counted(model, for_the_model(read, feed), cpu, emulator)
    made = run_emulated(package, feed)
    for name, array in made.outputs.items():
        reference = np.frombuffer(data[: array.nbytes], array.dtype).reshape(array.shape)
        data = data[array.nbytes :]
        apart = distance(array, reference, 0, 0).rms_rel
        if apart > NEAR:
            raise ModelcError(f"{model}: output {name!r} differs from ONNX Runtime's by a relative RMS of {apart:.1e}")
    return [model.stem, cpu, f"{ours / 1e6:,.2f}", f"{theirs / 1e6:,.2f}", f"{theirs / ours:.2f}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", metavar="MODEL", nargs="+")
    parser.add_argument("--cpu", metavar="NAME,...", default=",".join(PART), help=f"default {','.join(PART)}")
    parser.add_argument("--precision", choices=("f32", "f16"), default="f32")
    parser.add_argument("--library", metavar="FILE", type=Path, help="libonnxruntime.so for AArch64")
    parser.add_argument("--version", metavar="V", default=VERSION, help=f"of npm's {NPM}, default {VERSION}")
    parser.add_argument("--dir", metavar="DIR", type=Path, default=paths.ROOT / "models", help="default models")
    parser.add_argument("--folder", metavar="DIR", type=Path, help="keeps the library and packages")
    given = parser.parse_args()
    cpus = given.cpu.split(",")
    if unknown := [cpu for cpu in cpus if cpu not in PART]:
        parser.error(f"--cpu has {unknown[0]!r}; expected {', '.join(PART)}")
    models = [Path(m) if m.endswith(".onnx") else given.dir / f"{m}.onnx" for m in given.models]
    if missing := [path for path in (*models, given.library) if path is not None and not path.exists()]:
        parser.error(f"there is no file {missing[0]}")
    table = Table("model", "CPU", "modelc, millions", "ONNX Runtime, millions", "ratio", box=None)
    with tempfile.TemporaryDirectory(prefix="modelc-counts-") as scratch:
        folder = given.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            emulator = emulator_that_counts()
            peer = Peer.of(given.library or library_of(given.version, folder), folder.resolve())
            for model in models:
                for cpu in cpus:
                    table.add_row(*count(model, cpu, given.precision, peer, emulator))
        except (ModelcError, subprocess.CalledProcessError) as error:
            err.print(f"error: {error}")
            return 2
    out.print(table)
    out.print("Instructions of one inference under emulation: not a measurement of speed.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
