"""Machine code as a disassembler shows it: which instructions are in the innermost loops."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from modelc.package.toolchain import machine_of, native_machine

# Multiplications of single numbers: what vectors and tiles are there to do instead. (On x86 one with a constant is the
# address of a tile, in the loop around a reduction that LLVM unrolled whole.)
_SCALAR = {
    "x86_64": r"mulx?[bwlq]?|imul[bwlq]? [^$].*|v?mul[sp]?s[sdh]|vfn?m(add|sub)\d+s[sdh]",
    "aarch64": r"(mul|madd|msub|mneg|[su]m(ull|addl|ulh)|fn?mul|fn?madd|fn?msub) [wxsdh].*",
    "arm": r"(mul|mla|mls|[us]mull|[us]mlal|smul..|smla..)s?|v(mul|mla|mls|fma|fms|nmul)\.f(32|64) [sd].*",
    "riscv64": r"mul[hw]?(s?u)?|fn?m(ul|add|sub)\.[sd]",
}
_BRANCH = re.compile(r"(?:j\w+|b\w*(?:\.\w+)?|cbn?z|tbn?z) (?:.*[, ])?(?:0x)?([0-9a-f]+) <")
Instruction = tuple[int, str]  # address; mnemonic and operands


def disassembled(path: Path, triple: str) -> list[Instruction]:
    """The instructions of an object or a library. Skips the test where there is no disassembler."""
    machine = machine_of(triple)
    names = [f"{machine.gnu_triple}-objdump", *["objdump"] * (machine == native_machine())]
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        pytest.skip(f"no {names[0]} here")
    command = [program, "-d", "--section=.text", "--no-show-raw-insn", str(path)]  # others have the same addresses
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = (re.fullmatch(r" *([0-9a-f]+):\t(.*)", line) for line in said.splitlines())
    return [(int(f[1], 16), " ".join(f[2].replace("{vex}", "").split())) for f in found if f]


def innermost(code: list[Instruction], mnemonic: str) -> list[list[str]]:
    """The smallest loops with instructions that start so. A loop goes from the target of a branch backwards to it."""
    branches = ((at, _BRANCH.match(text)) for at, text in code)
    loops = [(int(b[1], 16), at) for at, b in branches if b is not None and int(b[1], 16) < at]
    loops.sort(key=lambda loop: loop[1] - loop[0])
    there = [at for at, text in code if text.startswith(mnemonic)]
    found = {next((loop for loop in loops if loop[0] <= at <= loop[1]), None) for at in there} - {None}
    return [[text for at, text in code if first <= at <= last] for first, last in sorted(filter(None, found))]


def scalar_multiplies(loop: list[str], triple: str) -> list[str]:
    """The multiplications of single numbers in it."""
    return [x for x in loop if re.match(rf"(?:{_SCALAR[machine_of(triple).name]})(?: |$)", x)]
