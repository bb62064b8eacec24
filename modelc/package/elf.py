"""What an ELF file says of itself: its machine, and what a shared library needs where it is loaded."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from modelc.errors import ToolchainError

_LOAD, _DYNAMIC = 1, 2  # kinds of segments
_WEAK = 2  # of a symbol
_BITS, _SYMBOLS, _EXECUTABLE = 1, 2, 4  # kinds of sections, and a flag of them
_NEEDED, _STRINGS, _SONAME, _VERSIONS, _VERSION_COUNT = 1, 5, 14, 0x6FFFFFFE, 0x6FFFFFFF  # tags of the dynamic section


@dataclass(frozen=True)
class SharedLibrary:
    """`needed` are other libraries; `versions` those of their symbols that it asks for, by library (GLIBC_2.17)."""

    soname: str
    needed: tuple[str, ...]
    versions: tuple[tuple[str, str], ...]

    @property
    def glibc(self) -> tuple[int, ...]:
        """The newest version of glibc whose symbols it needs; (): none."""
        numbers = (v.removeprefix("GLIBC_") for _, v in self.versions if v.startswith("GLIBC_"))
        return max((tuple(map(int, n.split("."))) for n in numbers if n.replace(".", "").isdigit()), default=())


def elf_header(data: bytes, what: str) -> tuple[int, int]:
    """The machine and the bits of a pointer. Raises ToolchainError."""
    if len(data) < 20 or data[:4] != b"\x7fELF":
        raise ToolchainError(f"{what} is not an ELF file")
    return struct.unpack_from("<H", data, 18)[0], 32 * data[4]


def text_at(data: bytes, begin: int) -> str:
    """A text of C. Raises ValueError where it does not end."""
    return data[begin : data.index(b"\0", begin)].decode()


def shared_library(data: bytes, what: str) -> SharedLibrary:
    """What the dynamic section says. Raises ToolchainError where there is none, or it is damaged."""
    _, bits = elf_header(data, what)
    try:
        segments = list(_segments(data, bits))
        entries = list(_dynamic(data, bits, segments))
        tags = dict(entries)
        strings = _offset(segments, tags[_STRINGS])

        def text(at: int) -> str:
            return text_at(data, strings + at)

        needed = tuple(text(value) for tag, value in entries if tag == _NEEDED)
        versions = []
        if _VERSIONS in tags:
            at = _offset(segments, tags[_VERSIONS])
            for _ in range(tags[_VERSION_COUNT]):
                _, count, file, first, following = struct.unpack_from("<HHIII", data, at)
                entry = at + first
                for _ in range(count):
                    _, _, _, name, step = struct.unpack_from("<IHHII", data, entry)
                    versions.append((text(file), text(name)))
                    entry += step
                at += following
        return SharedLibrary(text(tags[_SONAME]) if _SONAME in tags else "", needed, tuple(sorted(versions)))
    except (KeyError, ValueError, struct.error):
        raise ToolchainError(f"{what} is no shared library") from None


def _segments(data: bytes, bits: int) -> Iterator[tuple[int, int, int, int]]:
    """Kind, offset in the file, address, bytes in the file."""
    wide = bits == 64
    start = struct.unpack_from("<Q" if wide else "<I", data, 32 if wide else 28)[0]
    size, count = struct.unpack_from("<HH", data, 54 if wide else 42)
    for at in range(start, start + size * count, size):
        *head, offset, address, _, length = struct.unpack_from("<IIQQQQ" if wide else "<5I", data, at)
        yield head[0], offset, address, length


def _dynamic(data: bytes, bits: int, segments: list[tuple[int, int, int, int]]) -> Iterator[tuple[int, int]]:
    form, size = ("<qQ", 16) if bits == 64 else ("<iI", 8)
    for kind, offset, _, length in segments:
        if kind == _DYNAMIC:
            for at in range(offset, offset + length, size):
                tag, value = struct.unpack_from(form, data, at)
                if tag == 0:
                    return
                yield tag & 0xFFFFFFFF, value


def _offset(segments: list[tuple[int, int, int, int]], address: int) -> int:
    """Where in the file an address is."""
    for kind, offset, start, length in segments:
        if kind == _LOAD and start <= address < start + length:
            return offset + address - start
    raise ValueError(address)


def _sections(data: bytes) -> list[tuple[int, ...]]:
    """Name, kind, flags, address, offset, bytes, linked section, information, alignment, bytes of an entry."""
    wide = data[4] == 2
    start = struct.unpack_from("<Q", data, 40)[0] if wide else struct.unpack_from("<I", data, 32)[0]
    size, count = struct.unpack_from("<HH", data, 58 if wide else 46)
    return [struct.unpack_from("<IIQQQQIIQQ" if wide else "<10I", data, start + k * size) for k in range(count)]


def undefined_symbols(data: bytes, what: str) -> tuple[str, ...]:
    """The names that an object wants from what it is linked with, but for those that it can do without (weak ones).
    Raises ToolchainError where it is damaged."""
    wide = elf_header(data, what)[1] == 64
    try:
        sections, names = _sections(data), set()
        for _, kind, _, _, offset, length, link, _, _, entry in sections:
            if kind != _SYMBOLS:
                continue
            strings = sections[link][4]
            for at in range(offset + entry, offset + length, entry):  # the first is nobody's
                name, *_, binding, _, section = struct.unpack_from("<IBBH" if wide else "<IIIBBH", data, at)
                if section == 0 and binding >> 4 != _WEAK:
                    names.add(text_at(data, strings + name))
        return tuple(sorted(names - {"", "_GLOBAL_OFFSET_TABLE_"}))
    except (IndexError, ValueError, struct.error):
        raise ToolchainError(f"{what} is no object") from None


def code_bytes(data: bytes) -> int:
    """Of the instructions in a shared library or an object. Raises struct.error where it is damaged."""
    sections = _sections(data)
    return sum(length for _, kind, flags, _, _, length, *_ in sections if kind == _BITS and flags & _EXECUTABLE)


def members(archive: bytes) -> Iterator[bytes]:
    """The objects in a static library, without its tables of symbols and of names. BSD's and macOS's have a name before
    the object that says its own length."""
    at = 8
    while at + 60 <= len(archive):
        name, text = archive[at : at + 16].strip(), archive[at + 48 : at + 58].strip()
        length = int(text) if text.isdigit() else 0
        before = int(name[3:]) if name.startswith(b"#1/") and name[3:].isdigit() else 0
        name = archive[at + 60 : at + 60 + before] if before else name
        if not name.startswith((b"__.SYMDEF", b"/ ", b"//", b"/SYM64")) and name != b"/":
            yield archive[at + 60 + before : at + 60 + length]
        at += 60 + length + length % 2
