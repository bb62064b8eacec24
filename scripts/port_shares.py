"""Says which share of the peak of a CPU's ports kernels reach in LLVM's model of it, without a board:

    python scripts/port_shares.py MODEL... [--cpu NAME,...] [--precision f32|f16] [--folder DIR] [--most N]

Each model is compiled for each CPU (unverified, as an object), and of every kernel that innermost loop goes to llvm-mca
of which multiply-adds are the largest part: its micro-kernel. The share is the cycles that the multiply-adds take where
nothing else is done, as llvm-mca has them, over the cycles of an iteration. It is what a model of pipelines says with
all data in the first-level cache, and not a measurement: caches, memory, and how often loops run are not in it. Where
LLVM has no model of a CPU's own, it takes another's, and the two come out alike.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.table import Table

import modelc
from modelc.cli.terminal import err, out
from modelc.package import read_package
from modelc.target import Target, load_target

CPUS = {"cortex-a53": "cortex-a72", "cortex-a72": "cortex-a72", "cortex-a76": "cortex-a76", "neoverse-n1": "cortex-a76"}
SIMULATED = 20_000  # instructions of a loop, at least
LEAST = 4  # multiply-adds of a micro-kernel
OBJDUMP = "aarch64-linux-gnu-objdump"
MULTIPLY_ADD = re.compile(r"(fmla|fmls|sdot|udot|smmla|mla|fmadd|fmsub)\s+(?:v\d+\.(\w+)|[sd]\d+)")
LANES = {"2s": 0.5, "4h": 0.5, "8b": 0.5, None: 0.25}  # of a full vector; None: one number
PEAK = {
    kind: "\n".join(f"fmla v{k}.{n}, v30.{n}, v31.{n}" for k in range(24)) for kind, n in (("f32", "4s"), ("f16", "8h"))
}
_BRANCH = re.compile(r"(?:b|b\.\w+|cbn?z|tbn?z)\s+(?:.*[, ])?([0-9a-f]+) <")


@dataclass(frozen=True)
class Loop:
    """An innermost loop of a kernel: its instructions, the branch last."""

    lines: tuple[str, ...]

    @property
    def multiply_adds(self) -> float:
        """In full vectors."""
        hits = (MULTIPLY_ADD.match(line) for line in self.lines)
        return sum(LANES.get(hit[2], 1.0) for hit in hits if hit)

    @property
    def text(self) -> str:
        """As an assembler reads it: every branch goes to the loop's begin."""
        kept = (re.sub(r"\s*(//|;).*", "", line) for line in self.lines)
        return "loop:\n" + "\n".join(re.sub(r"(?:0x)?[0-9a-f]+ <[^>]*>", "loop", line) for line in kept)


@dataclass(frozen=True)
class Share:
    """What llvm-mca says of the micro-kernel of a kernel."""

    kernel: str
    multiply_adds: float
    instructions: int
    cycles: float
    share: float


def functions(disassembly: str) -> dict[str, list[tuple[int, str]]]:
    """By name the instructions of each function: address and text."""
    found: dict[str, list[tuple[int, str]]] = {}
    name = ""
    for line in disassembly.splitlines():
        if head := re.fullmatch(r"[0-9a-f]+ <(.*)>:", line):
            name = head[1]
        elif name and (body := re.fullmatch(r" *([0-9a-f]+):\t(.*)", line)):
            found.setdefault(name, []).append((int(body[1], 16), " ".join(body[2].split())))
    return found


def innermost(code: Sequence[tuple[int, str]]) -> Iterator[Loop]:
    """The loops that have no other inside. A loop goes from the target of a branch backwards to it."""
    branches = ((at, _BRANCH.match(text)) for at, text in code)
    spans = [(int(b[1], 16), at) for at, b in branches if b is not None and int(b[1], 16) <= at]
    for first, last in spans:
        if not any((first, last) != (f, a) and first <= f and a <= last for f, a in spans):
            yield Loop(tuple(text for at, text in code if first <= at <= last))


def cycles(text: str, cpu: str, attributes: Sequence[str], mca: str) -> float:
    """Cycles of an iteration. Raises CalledProcessError for what llvm-mca does not read."""
    iterations = max(20, SIMULATED // text.count("\n"))
    command = [mca, "-mtriple=aarch64-linux-gnu", f"-mcpu={cpu}", f"-iterations={iterations}"]
    command += [f"-mattr={','.join(f'+{name}' for name in attributes)}"] if attributes else []
    said = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    total = re.search(r"Total Cycles:\s+(\d+)", said)
    assert total is not None
    return int(total[1]) / iterations


def shares(
    code: Mapping[str, Sequence[tuple[int, str]]],
    names: Mapping[str, str],
    target: Target,
    mca: str,
    precision: str = "f32",
) -> Iterator[Share]:
    """Of each kernel, by the names that its symbols have in `names`."""
    peak = cycles(PEAK[precision], target.cpu, target.features, mca) / PEAK[precision].count("fmla")
    for symbol, kernel in names.items():
        parts = [code[name] for name in code if name == symbol or re.fullmatch(rf"{re.escape(symbol)}_\w+", name)]
        loops = [loop for part in parts for loop in innermost(part)]
        dense = [loop for loop in loops if loop.multiply_adds >= LEAST]
        micro = max(dense, key=lambda loop: loop.multiply_adds / len(loop.lines), default=None)
        if micro is None:
            continue
        try:
            taken = cycles(micro.text, target.cpu, target.features, mca)
        except subprocess.CalledProcessError as error:
            err.print(f"{kernel}: llvm-mca does not read its loop: {error.stderr[:200]}", markup=False)
            continue
        count = micro.multiply_adds
        yield Share(kernel, count, len(micro.lines), taken, count * peak / taken)


def compiled(model: Path, cpu: str, folder: Path, precision: str) -> tuple[Path, Target]:
    """The package of `model` for `cpu`, as an object, and the target."""
    target = replace(load_target(CPUS[cpu]), cpu=cpu, name=cpu)
    place = folder / f"{model.stem}.{cpu}.{precision}.modelc"
    if not place.exists():
        modelc.compile(model, target, place, precision=precision, verify=False, emit=("o",), database=False)
    return place, target


def of_package(package: Path, target: Target, mca: str, precision: str) -> list[Share]:
    steps = read_package(package).manifest.variants[0].steps
    names = {step.symbol: step.name for step in reversed(steps)}
    command = [OBJDUMP, "-d", "--no-show-raw-insn", str(next(package.glob("*.o")))]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return list(shares(functions(said), dict(reversed(names.items())), target, mca, precision))


def cpus(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in CPUS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(CPUS)}")
    return names


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", metavar="MODEL", type=Path, nargs="+")
    parser.add_argument("--cpu", metavar="NAME,...", type=cpus, default=[*CPUS], help=f"default {','.join(CPUS)}")
    parser.add_argument("--precision", choices=("f32", "f16"), default="f32", help="f16: of CPUs that compute in it")
    parser.add_argument("--folder", metavar="DIR", type=Path, help="keeps packages, and takes those that lie there")
    parser.add_argument("--most", metavar="N", type=int, default=8, help="kernels of a model, by its work; default 8")
    arguments = parser.parse_args()
    mca = shutil.which("llvm-mca")
    if mca is None or shutil.which(OBJDUMP) is None:
        parser.error(f"llvm-mca and {OBJDUMP} are needed, which Debian has in llvm and in binutils-aarch64-linux-gnu")
    table = Table("model", "CPU", "kernel", "multiply-adds", "instructions", "cycles", "share of peak", box=None)
    with tempfile.TemporaryDirectory(prefix="modelc-ports-") as scratch:
        folder = arguments.folder or Path(scratch)
        for model in arguments.models:
            for cpu in arguments.cpu:
                package, target = compiled(model, cpu, folder, arguments.precision)
                work = {step.name: step.flops for step in read_package(package).manifest.variants[0].steps}
                each = of_package(package, target, mca, arguments.precision)
                rows = sorted(each, key=lambda row: -work[row.kernel])[: arguments.most]
                for row in rows:
                    numbers = (f"{row.multiply_adds:g}", str(row.instructions), f"{row.cycles:.1f}", f"{row.share:.0%}")
                    table.add_row(model.stem, cpu, row.kernel, *numbers)
    out.print(table)
    out.print("a model of pipelines (llvm-mca), not a measurement")
    return 0


if __name__ == "__main__":
    sys.exit(main())
