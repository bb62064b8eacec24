"""What objects, libraries and modules say of themselves that are no ELF files: COFF and PE of Windows, Mach-O of macOS,
WebAssembly. All are little-endian."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from modelc.errors import ToolchainError
from modelc.package.elf import code_bytes, members, text_at

_MACHO, _PE, _WASM = b"\xcf\xfa\xed\xfe", b"MZ", b"\0asm\1\0\0\0"
_MACHINES = {0x8664: "x86-64", 0xAA64: "AArch64", 0x01000007: "x86-64", 0x0100000C: "AArch64"}


@dataclass(frozen=True)
class Symbols:
    """The names that an object gives to others, and those that it wants from them."""

    defined: frozenset[str]
    wanted: frozenset[str]


def check_foreign(data: bytes, what: str, form: str, machine: int) -> None:
    """Raises ToolchainError unless `data` is of the format COFF (or PE), Mach-O or wasm, and for the machine that its
    header numbers so."""
    try:
        held, number = _header(data)
    except (struct.error, IndexError):
        raise ToolchainError(f"{what} is damaged: it ends within its header") from None
    if held != form:
        raise ToolchainError(f"{what} is not a {form} file")
    if number != machine:
        made, wanted = (_MACHINES.get(n, f"machine {n:#x}") for n in (number, machine))
        raise ToolchainError(f"{what} is for {made} instead of {wanted}")


def _header(data: bytes) -> tuple[str, int]:
    """The format, and the number of the machine; COFF has no mark of its own."""
    if data[:8] == _WASM:
        return "wasm", 0
    if data[:4] == _MACHO:
        return "Mach-O", int(struct.unpack_from("<I", data, 4)[0])
    if data[:2] == _PE:
        at = struct.unpack_from("<I", data, 0x3C)[0]
        if data[at : at + 4] != b"PE\0\0":
            return "", 0
        return "COFF", int(struct.unpack_from("<H", data, at + 4)[0])
    number = int(struct.unpack_from("<H", data, 0)[0])
    return ("COFF" if number in (0x8664, 0xAA64) else ""), number


def symbols_of(data: bytes, what: str) -> Symbols:
    """Of an object. Raises ToolchainError where it is damaged."""
    read = {"wasm": _wasm_symbols, "Mach-O": _macho_symbols, "COFF": _coff_symbols}
    try:
        symbols = list(read[_header(data)[0]](data))
    except (KeyError, IndexError, ValueError, struct.error):
        raise ToolchainError(f"{what} is no object") from None
    defined, wanted = (frozenset(name for name, there in symbols if there is kind) for kind in (True, False))
    return Symbols(defined, wanted - defined)


def _coff_symbols(data: bytes) -> Iterator[tuple[str, bool]]:
    """Name, and whether it is defined, of every external symbol."""
    table, count = struct.unpack_from("<II", data, 8)
    strings, external, k = table + 18 * count, 2, 0
    while k < count:
        at = table + 18 * k
        value, section, _, kind, more = struct.unpack_from("<IhHBB", data, at + 8)
        if kind == external and data[at : at + 8] != b"@feat.00":
            yield _coff_name(data, at, strings), section != 0 or value != 0
        k += 1 + more


def _coff_name(data: bytes, at: int, strings: int) -> str:
    """A name of at most 8 bytes lies there, a longer one in the table of strings."""
    if data[at : at + 4] != b"\0\0\0\0":
        return data[at : at + 8].rstrip(b"\0").decode()
    return text_at(data, strings + struct.unpack_from("<I", data, at + 4)[0])


def _macho_commands(data: bytes) -> Iterator[tuple[int, int]]:
    """The kind of each load command, and where it lies."""
    at = 32
    for _ in range(struct.unpack_from("<I", data, 16)[0]):
        kind, size = struct.unpack_from("<II", data, at)
        yield kind, at
        at += size


def _macho_symbols(data: bytes) -> Iterator[tuple[str, bool]]:
    """Without the underscore that all names of C begin with."""
    symbol_table, external, kinds, debugging = 2, 1, 0x0E, 0xE0
    for kind, at in _macho_commands(data):
        if kind != symbol_table:
            continue
        table, count, strings, _ = struct.unpack_from("<IIII", data, at + 8)
        for entry in range(table, table + 16 * count, 16):
            name, flags = struct.unpack_from("<IB", data, entry)
            if flags & external and not flags & debugging:
                yield text_at(data, strings + name).removeprefix("_"), flags & kinds != 0


def _wasm_sections(data: bytes) -> Iterator[tuple[int, int, int]]:
    """The number of each section, and where its content begins and ends."""
    at = len(_WASM)
    while at < len(data):
        number = data[at]
        length, at = _leb(data, at + 1)
        yield number, at, at + length
        at += length


def _wasm_symbols(data: bytes) -> Iterator[tuple[str, bool]]:
    """What a module imports, and what it exports; of an object, the functions that it wants alone."""
    imports, exports = 2, 7
    for number, at, _ in _wasm_sections(data):
        if number not in (imports, exports):
            continue
        count, at = _leb(data, at)
        for _ in range(count):
            if number == imports:
                _, at = _name(data, at)
            name, at = _name(data, at)
            kind = data[at]
            if number == exports:
                _, at = _leb(data, at + 1)
                yield name, True
                continue
            at = _after_import(data, at)
            if kind == 0:
                yield name, False


def _after_import(data: bytes, at: int) -> int:
    """The place behind what an import is described by."""
    kind, at = data[at], at + 1
    if kind == 0:  # a function's type
        return _leb(data, at)[1]
    if kind == 3:  # a global: its type, and whether it can change
        return at + 2
    if kind == 1:  # a table: what it holds, and limits
        at += 1
    flags, at = data[at], at + 1
    for _ in range(1 + (flags & 1)):
        at = _leb(data, at)[1]
    return at


def _name(data: bytes, at: int) -> tuple[str, int]:
    length, at = _leb(data, at)
    return data[at : at + length].decode(), at + length


def _leb(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned number of variable length, and the place behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def instruction_bytes(data: bytes) -> int:
    """Of an object, a library, a static one or a module; 0 for another file."""
    try:
        if data[:8] == b"!<arch>\n":
            return sum(map(instruction_bytes, members(data)))
        if data[:4] == b"\x7fELF":
            return code_bytes(data)
        held = _header(data)[0]
        if held == "wasm":
            return sum(end - begin for number, begin, end in _wasm_sections(data) if number == 10)
        if held == "Mach-O":
            return sum(_macho_code(data))
        return sum(_coff_code(data)) if held == "COFF" else 0
    except (struct.error, IndexError):
        return 0


def _macho_code(data: bytes) -> Iterator[int]:
    segment, instructions = 0x19, 0x80000400
    for kind, at in _macho_commands(data):
        if kind == segment:
            for k in range(struct.unpack_from("<I", data, at + 64)[0]):
                section = at + 72 + 80 * k
                if struct.unpack_from("<I", data, section + 64)[0] & instructions:
                    yield struct.unpack_from("<Q", data, section + 40)[0]


def _coff_code(data: bytes) -> Iterator[int]:
    at = struct.unpack_from("<I", data, 0x3C)[0] + 4 if data[:2] == _PE else 0
    count, options = struct.unpack_from("<H", data, at + 2)[0], struct.unpack_from("<H", data, at + 16)[0]
    for section in range(at + 20 + options, at + 20 + options + 40 * count, 40):
        if struct.unpack_from("<I", data, section + 36)[0] & 0x20:
            yield struct.unpack_from("<I", data, section + 16)[0]
