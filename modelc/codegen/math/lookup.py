"""Bytes out of a constant table of 256: by permutations of its registers, or by loads.

                  numbers at once   registers   how
x86, AVX-512      16 of 32 bits     4           vpermt2d finds the word of a byte, a shift the byte in it
x86, AVX-512 BW   32 of 16 bits     4           vpermt2w, and a shift
x86, AVX2         8 of 32 bits      8           vpermd, and a shift
x86, AVX2         32 bytes          16          vpshufb, which gives 0 for a negative index. Of a row of the table what
                                                differs from the row before is stored: rows up to that of the index are
                                                joined by exclusive or
AArch64           16 bytes          16          tbl and tbx, of 64 bytes each
others, scalars   1                 0           a load
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.codegen.lean_tvm import tvm
from modelc.codegen.math.code import Code, Expr, constant_value, target_arch
from modelc.codegen.math.llvm_text import call, vector
from modelc.errors import InvalidIR

Table = NDArray[np.uint8]
Form = Callable[["Text", str, Table], str]  # the bytes at the indices of a vector, whose numbers these have


def lookup(code: Code, x: Expr, *words: Expr) -> Expr:
    """Of int32; `words` are constants."""
    numbers = [constant_value(word) for word in words]
    if any(number is None for number in numbers):
        raise InvalidIR("a table of bytes whose words are no constants")
    table = np.array(numbers, "<i4").view(np.uint8)
    name = f"modelc_lookup_x{code.lanes}_{sha256(table.tobytes()).hexdigest()[:16]}"
    return call(code.type(), name, _function(name, code.lanes, table), x)


@dataclass
class Text:
    """Lines of a function of LLVM's text, and what it declares."""

    lines: list[str] = field(default_factory=list)
    declared: set[str] = field(default_factory=set)

    def let(self, value: str) -> str:
        """The name of a value from now on."""
        name = f"%v{len(self.lines)}"
        self.lines.append(f"{name} = {value}")
        return name

    def intrinsic(self, name: str, result: str, *operands: tuple[str, str]) -> str:
        self.declared.add(f"declare {result} @{name}({', '.join(kind for kind, _ in operands)})")
        return self.let(f"call {result} @{name}({', '.join(f'{kind} {x}' for kind, x in operands)})")

    def shuffled(self, kind: str, lanes: int, a: str, b: str, places: Sequence[int]) -> str:
        """Of two vectors; a negative place is any number."""
        mask = ", ".join(f"i32 {'poison' if k < 0 else k}" for k in places)
        return self.let(f"shufflevector <{lanes} x {kind}> {a}, <{lanes} x {kind}> {b}, <{len(places)} x i32> <{mask}>")


# --- forms --------------------------------------------------------------------------------------------------------


def _kind(lanes: int, bits: int) -> str:
    return f"<{lanes} x i{bits}>"


def _constant(numbers: NDArray[Any], bits: int) -> str:
    """Bytes as a vector of numbers of so many bits."""
    words = np.ascontiguousarray(numbers, np.uint8).view(f"<u{bits // 8}")
    return f"<{', '.join(f'i{bits} {word}' for word in words.tolist())}>"


def _permuted(lanes: int, bits: int, name: str, registers: int) -> Form:
    """By the instruction `name`, a permutation of words of so many bits in two registers, or in one."""
    kind, each, held = _kind(lanes, bits), bits // 8, registers * lanes * bits // 8

    def form(t: Text, x: str, table: Table) -> str:
        place = t.let(f"lshr {kind} {x}, splat (i{bits} {each.bit_length() - 1})")
        parts = []
        for part in table.reshape(-1, registers, held // registers):
            first, *second = (_constant(register, bits) for register in part)
            operands = (first, place, *second)
            parts.append(t.intrinsic(name, kind, *((kind, operand) for operand in operands)))
        bit = held.bit_length() - 1
        while len(parts) > 1:  # a bit of the index chooses between neighbours
            highest = t.let(f"shl {kind} {x}, splat (i{bits} {bits - 1 - bit})")
            second_half = t.let(f"icmp slt {kind} {highest}, zeroinitializer")
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [t.let(f"select {_kind(lanes, 1)} {second_half}, {kind} {b}, {kind} {a}") for a, b in pairs]
            bit += 1
        inside = t.let(f"and {kind} {x}, splat (i{bits} {each - 1})")
        amount = t.let(f"shl {kind} {inside}, splat (i{bits} 3)")
        word = t.let(f"lshr {kind} {parts[0]}, {amount}")
        return t.let(f"and {kind} {word}, splat (i{bits} 255)")

    return form


def _by_rows(t: Text, x: str, table: Table) -> str:
    """An index loses 16 with each row; below 0 it stays there. One from 128 on begins below 0, and is moved for the
    second half."""
    kind, total = _kind(32, 8), ""
    for half in table.reshape(2, 8, 16):
        index = t.let(f"xor {kind} {x}, splat (i8 -128)") if total else x
        for k, row in enumerate(half):
            difference = row ^ half[k - 1] if k else row
            index = t.intrinsic("llvm.ssub.sat.v32i8", kind, (kind, index), (kind, "splat (i8 16)")) if k else index
            picked = t.intrinsic(
                "llvm.x86.avx2.pshuf.b", kind, (kind, _constant(np.tile(difference, 2), 8)), (kind, index)
            )
            total = t.let(f"xor {kind} {total}, {picked}") if total else picked
    return total


def _by_tables(t: Text, x: str, table: Table) -> str:
    """An index that is beyond 64 bytes gives 0, or leaves what was found."""
    kind, total = _kind(16, 8), ""
    for k, part in enumerate(table.reshape(4, 4, 16)):
        index = t.let(f"sub {kind} {x}, splat (i8 {64 * k - 256 * (k > 1)})") if k else x
        operands = [(kind, _constant(row, 8)) for row in part]
        before = [(kind, total)] if k else []
        name = f"llvm.aarch64.neon.tb{'x' if k else 'l'}4.v16i8"
        total = t.intrinsic(name, kind, *before, *operands, (kind, index))
    return total


PERMUTED = "llvm.x86.avx512.vpermi2var"
# architecture, features, from how many lanes on, how many numbers of how many bits
FORMS: tuple[tuple[str, tuple[str, ...], int, int, int, Form], ...] = (
    ("x86_64", ("avx512bw",), 32, 32, 16, _permuted(32, 16, f"{PERMUTED}.hi.512", 2)),
    ("x86_64", ("avx512f",), 2, 16, 32, _permuted(16, 32, f"{PERMUTED}.d.512", 2)),
    ("x86_64", ("avx2",), 32, 32, 8, _by_rows),
    ("x86_64", ("avx2",), 2, 8, 32, _permuted(8, 32, "llvm.x86.avx2.permd", 1)),
    ("aarch64", ("neon",), 2, 16, 8, _by_tables),
)


def _function(name: str, lanes: int, table: Table) -> str:
    """Of the current TVM target's instructions, of as many numbers at once as `lanes` need."""
    t, result = Text(), vector("i32", lanes)
    has = tvm.target.codegen.llvm_cpu_has_features if tvm.target.Target.current(allow_none=True) else lambda _: False
    rows = (row for row in FORMS if row[0] == target_arch() and lanes >= row[2] and all(map(has, row[1])))
    _, _, _, count, bits, form = next(rows, (*("", (), 1), 1, 32, None))
    if form is None:
        return _loaded(name, lanes, table)
    total = "poison"
    for first in range(0, lanes, count):
        places = [first + k if first + k < lanes else -1 for k in range(count)]
        part = "%x" if lanes == count else t.shuffled("i32", lanes, "%x", "poison", places)
        part = part if bits == 32 else t.let(f"trunc {_kind(count, 32)} {part} to {_kind(count, bits)}")
        part = form(t, part, table)
        part = part if bits == 32 else t.let(f"zext {_kind(count, bits)} {part} to {_kind(count, 32)}")
        if lanes == count:
            total = part
            continue
        places = [k - first if first <= k < first + count else -1 for k in range(lanes)]
        part = t.shuffled("i32", count, part, "poison", places)
        merged = [k if k < first else lanes + k for k in range(lanes)]
        total = t.shuffled("i32", lanes, total, part, merged) if first else part
    return _text(name, result, [*t.lines, f"ret {result} {total}"], sorted(t.declared))


def _loaded(name: str, lanes: int, table: Table) -> str:
    t, result, total = Text(), vector("i32", lanes), "poison"
    for k in range(lanes):
        index = t.let(f"extractelement {result} %x, i32 {k}") if lanes > 1 else "%x"
        place = t.let(f"zext i8 {t.let(f'trunc i32 {index} to i8')} to i64")
        address = t.let(f"getelementptr i8, ptr @{name}_bytes, i64 {place}")
        number = t.let(f"zext i8 {t.let(f'load i8, ptr {address}, align 1')} to i32")
        total = t.let(f"insertelement {result} {total}, i32 {number}, i32 {k}") if lanes > 1 else number
    data = f"@{name}_bytes = private unnamed_addr constant [256 x i8] [{', '.join(f'i8 {n}' for n in table.tolist())}]"
    return _text(name, result, [*t.lines, f"ret {result} {total}"], [data])


def _text(name: str, kind: str, lines: Sequence[str], outside: Sequence[str]) -> str:
    body = "\n  ".join(lines)
    return f"define {kind} @{name}({kind} %x) {{\n  {body}\n}}\n" + "\n".join(outside)
