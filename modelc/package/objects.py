"""Objects of C sources, and what is linked with, that are the same in every package or run, kept in the user's cache.

An entry holds the objects of some sources. It is a file that is named by a digest of what they are made of: sources,
flags, the compiler and where that looks for headers. Its first line is the checksum of the others, and these say which
headers of the system were read and what these were like. An entry that is damaged, or of other headers, is made again.
What has not been read or written for longest goes when all entries together are larger than MOST_BYTES. Without a cache
that can be written, and that nobody else can write to, everything is compiled anew in every process.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from modelc import __version__
from modelc.package.toolchain import Toolchain, said_by
from modelc.scratch import TemporaryFolder, beside, is_private, make_private, user_cache

MOST_BYTES = 64 << 20
PREFIX = "objects-"
SEARCHED = ("COMPILER_PATH", "CPATH", "C_INCLUDE_PATH", "GCC_EXEC_PREFIX")  # where compilers look for what they read

State = tuple[int, int]  # of a header: bytes, nanoseconds of its last change


@dataclass(frozen=True)
class Sources:
    """C `files`, each of which is compiled by itself with `flags`, and the `headers` that they include."""

    files: tuple[Path, ...]
    headers: tuple[Path, ...]
    flags: tuple[str, ...]


@cache
def objects_of(toolchain: Toolchain, sources: Sources) -> Mapping[str, bytes]:
    """The objects by file name, NAME.o of NAME.c. Raises ToolchainError."""
    files = [(path.name, path.read_text()) for path in (*sources.files, *sources.headers)]
    return _kept(_entry(toolchain, sources.flags, files), lambda: _compiled(toolchain, sources))


def kept(toolchain: Toolchain, of: Sequence[object], make: Callable[[], Mapping[str, bytes]]) -> Mapping[str, bytes]:
    """What a toolchain makes of these texts alone, without a header of the system, by file name."""
    return _kept(_entry(toolchain, (), of), lambda: (make(), {}))


@cache
def linked(toolchain: Toolchain, sources: Sources, arguments: tuple[str, ...], name: str) -> Path:
    """A program, or a library, of these objects, which is there until this process ends. Raises ToolchainError."""
    folder, objects = lasting_folder(), objects_of(toolchain, sources)
    for file, data in objects.items():
        (folder / file).write_bytes(data)
    toolchain.compile([*objects, *arguments, "-o", name], folder)
    return folder / name


def lasting_folder() -> Path:
    """A new folder that is there until this process ends."""
    _folders.append(TemporaryFolder("linked"))
    return Path(_folders[-1].name)


_folders: list[TemporaryFolder] = []
Made = tuple[Mapping[str, bytes], Mapping[str, State] | None]  # objects, and what headers were read; None: unknown


def _kept(entry: Path | None, make: Callable[[], Made]) -> Mapping[str, bytes]:
    """The objects of an entry, which are made, and kept where that is possible, if they are not there."""
    objects = None if entry is None else _recalled(entry)
    if objects is None:
        objects, headers = make()
        if entry is not None and headers is not None:
            with suppress(OSError):  # a cache that cannot be written: the next process makes them again
                _keep(entry, objects, headers)
    return objects


def _compiled(toolchain: Toolchain, sources: Sources) -> Made:
    """Works in a folder of its own with relative names, so that no path gets into what is linked."""
    with TemporaryFolder("objects") as name:
        folder = Path(name)
        for path in (*sources.files, *sources.headers):
            shutil.copyfile(path, folder / path.name)
        names = {path.name: f"{path.stem}.o" for path in sources.files}
        for source, file in names.items():  # one at a time: of several, ziglang makes the first
            toolchain.compile([*sources.flags, "-MD", "-c", source, "-o", file], folder)
        return {file: (folder / file).read_bytes() for file in names.values()}, _headers(folder)


def _headers(folder: Path) -> Mapping[str, State] | None:
    """The headers of the system that were read, as the compiler lists them (-MD) in files for make; None where a name
    has a space."""
    words = (word for file in folder.glob("*.d") for word in file.read_text().split())
    try:
        return {word: _state(word) for word in words if os.path.isabs(word)}
    except OSError:
        return None


def _state(path: str) -> State:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


def _entry(toolchain: Toolchain, flags: Sequence[str], contents: Sequence[object]) -> Path | None:
    """Where what is made of `contents` is kept; None where it depends on more than can be told, such as the machine."""
    words = (*toolchain.command, *flags)
    compiler = _compiler(toolchain.command)
    if compiler is None or any("native" in word for word in words):
        return None
    searched = [os.environ.get(name) for name in SEARCHED]
    decisive = json.dumps([__version__, toolchain.machine.gnu_triple, words, compiler, searched, contents])
    return user_cache() / f"{PREFIX}{hashlib.sha256(decisive.encode()).hexdigest()[:32]}"


@cache
def _compiler(command: tuple[str, ...]) -> tuple[str, State, str] | None:
    """The program of a compiler, what that file is like, and its version; None for one that does not say that."""
    program, version = os.path.realpath(shutil.which(command[0]) or command[0]), said_by((*command, "--version"))
    return (program, _state(program), version) if version else None


def _recalled(entry: Path) -> Mapping[str, bytes] | None:
    """The objects of an entry; None where it is not there, damaged, or of headers that are others now."""
    try:
        if not is_private(entry.parent):
            return None
        checksum, _, text = entry.read_bytes().partition(b"\n")
        if hashlib.sha256(text).hexdigest().encode() != checksum:
            return None
        contents = json.loads(text)
        if any(_state(path) != tuple(state) for path, state in contents["headers"].items()):
            return None
        os.utime(entry)
    except OSError:
        return None
    return {file: base64.b64decode(data) for file, data in contents["objects"].items()}


def _keep(entry: Path, objects: Mapping[str, bytes], headers: Mapping[str, State]) -> None:
    """Writes an entry in one step: of two processes that do so at once, either's is right. Raises OSError."""
    encoded = {file: base64.b64encode(data).decode() for file, data in objects.items()}
    text = json.dumps({"headers": headers, "objects": encoded}).encode()
    make_private(entry.parent)
    with beside(entry, folder=False) as unfinished:
        unfinished.write_bytes(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)
        os.replace(unfinished, entry)
    _remove_oldest(entry.parent)


def _remove_oldest(folder: Path) -> None:
    """Removes the entries that were used the longest ago, until the others take at most MOST_BYTES. Raises OSError."""
    entries = [(path, path.stat()) for path in folder.glob(f"{PREFIX}*")]
    total = sum(status.st_size for _, status in entries)
    for path, status in sorted(entries, key=lambda pair: pair[1].st_mtime_ns):
        if total > MOST_BYTES:
            path.unlink(missing_ok=True)
            total -= status.st_size
