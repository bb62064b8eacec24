"""The files of a package as data: compared with its manifest before anything is executed. Standard library alone.

A file may be a link, as model caches and deployment tools lay files out: what it leads to is compared. An archive with
a link in it is refused."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

SCHEMA_VERSION = 2
MANIFEST, PARAMS = "manifest.json", "params.bin"
ARCHIVE = ".zip"  # how the name of a package in one file ends
MOST_MANIFEST_BYTES = 1 << 25  # a hundred thousand steps; read, it becomes thirty times as much
AGAIN = "copy the whole package again"


class ModelcError(Exception):
    """A mistake in what modelc was given: the root of all its errors. `str(error)` is the sentence that the user reads,
    `exit_code` how the command line ends."""

    exit_code = 2


class ModelError(ModelcError):
    """A model: its file (no ONNX, an unknown operator, a free dimension), its package when it is loaded, or what it is
    given to run on."""


class Stopped(ModelError):
    """A run that was ended by Model.stop(), by the time limit, or by a SIGINT whose handler raises nothing."""


class LibraryFile(NamedTuple):
    """A package's library: the prefix of its names, its file's name, how that begins, and which file it is."""

    prefix: str
    name: str
    header: bytes
    inode: int


def folder_of(path: str) -> str:
    """The folder of a package: of one in a single file, NAME.modelc.zip, where its files have been unpacked, each of
    them compared with the manifest. That is done once for an archive, in the user's cache; without a cache once in a
    process. Raises ModelError."""
    if not path.endswith(ARCHIVE) or not os.path.isfile(path):
        return path
    try:
        with zipfile.ZipFile(path) as archive:
            members = _members(archive, path)
            if members[MANIFEST].file_size > MOST_MANIFEST_BYTES:
                raise ModelError(f"{path}: {MANIFEST} has more than {MOST_MANIFEST_BYTES} bytes: it is of no package")
            manifest = archive.read(members[MANIFEST])
            files = _files_of(_parsed(manifest, path), path)
            listed = {name: members[name] for name in files if name in members}
            key = hashlib.sha256(manifest)
            for name, member in sorted(listed.items()):
                key.update(f"{name} {member.file_size} {member.CRC}\n".encode())
            cache = next(_caches())
            place = os.path.join(cache, f"package-{key.hexdigest()[:32]}")
            if not _is_unpacked(place, manifest, listed):
                _check_sizes(path, files, listed)
                _unpack(archive, path, cache, place, manifest, {name: files[name][1] for name in listed})
            return place
    except (OSError, zipfile.BadZipFile, KeyError, NotImplementedError, RuntimeError, EOFError) as error:
        raise ModelError(f"cannot read the package {path}: {_reason(error)}") from None


def _members(archive: zipfile.ZipFile, path: str) -> dict[str, zipfile.ZipInfo]:
    """The files in an archive by name. Raises ModelError where one is compressed, a link, or has no package's name."""
    for member in archive.infolist():
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", member.filename) or member.compress_type:
            raise ModelError(f"{path} is no package in one file: it has {member.filename!r}, or is compressed")
        if stat.S_ISLNK(member.external_attr >> 16):
            raise ModelError(f"{path} is no package in one file: {member.filename!r} in it is a link")
    return {member.filename: member for member in archive.infolist()}


def _check_sizes(path: str, files: Mapping[str, tuple[int, str]], listed: Mapping[str, zipfile.ZipInfo]) -> None:
    """Raises ModelError where files in an archive have not the manifest's sizes, or are more than the archive is."""
    for name, member in listed.items():
        if member.file_size != files[name][0]:
            raise ModelError(
                f"{name} in {path} is damaged: it has {member.file_size} bytes instead of {files[name][0]}; {AGAIN}"
            )
    if sum(member.file_size for member in listed.values()) > os.path.getsize(path):
        raise ModelError(f"{path} is damaged: the files in it are larger than itself; {AGAIN}")


def _caches() -> Iterator[str]:
    """Folders that nobody but this user can write to."""
    given = os.environ.get("MODELC_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = given or os.path.join(base, "modelc")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        status = os.stat(folder)
        if status.st_uid == os.geteuid() and not status.st_mode & 0o022 and os.access(folder, os.W_OK):
            yield folder
    except OSError:
        pass
    if not _temporary:
        _temporary.append(tempfile.TemporaryDirectory(prefix="modelc-packages-"))
    yield _temporary[0].name


_temporary: list[tempfile.TemporaryDirectory[str]] = []  # until the process ends


def _is_unpacked(place: str, manifest: bytes, listed: Mapping[str, zipfile.ZipInfo]) -> bool:
    """Whether a folder in the cache has this manifest, and its files with their sizes."""
    try:
        with open(os.path.join(place, MANIFEST), "rb") as file:
            if file.read() != manifest:
                return False
        kinds = {name: os.lstat(os.path.join(place, name)) for name in listed}
    except OSError:
        return False
    return all(stat.S_ISREG(kind.st_mode) and kind.st_size == listed[name].file_size for name, kind in kinds.items())


def _unpack(
    archive: zipfile.ZipFile, path: str, cache: str, place: str, manifest: bytes, digests: Mapping[str, str]
) -> None:
    """The manifest, and the files whose checksums are given, in one step: who is interrupted leaves nothing at the
    place, and of two either's is right. Raises ModelError where a checksum is another."""
    with tempfile.TemporaryDirectory(prefix="unpacking-", dir=cache) as unfinished:
        folder = os.path.join(unfinished, "package")
        os.mkdir(folder)
        with open(os.path.join(folder, MANIFEST), "xb") as target:
            target.write(manifest)
        for name, digest in digests.items():
            computed = hashlib.sha256()
            with archive.open(name) as source, open(os.path.join(folder, name), "xb") as target:
                while chunk := source.read(1 << 20):
                    computed.update(chunk)
                    target.write(chunk)
            if computed.hexdigest() != digest:
                raise ModelError(f"{name} in {path} is damaged: its checksum is not the manifest's; {AGAIN}")
        try:
            os.rename(folder, place)
        except OSError:
            if not _is_unpacked(place, manifest, {name: archive.getinfo(name) for name in digests}):
                os.rename(place, os.path.join(unfinished, "incomplete"))
                os.rename(folder, place)


def open_folder(path: str) -> int:
    """A descriptor of a package's folder. Raises ModelError."""
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except NotADirectoryError:
        raise ModelError(f"{path} is a file; expected a package, which is a folder or a .zip") from None
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        raise ModelError(f"cannot open the package {path}: {_reason(error)}") from None


def open_file(folder: int, path: str, name: str) -> BinaryIO:
    """A file of the package in `path`, or what it is a link to, not waiting for what is no file. Raises ModelError."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}/{name}: {_reason(error)}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ModelError(f"cannot read {path}/{name}: it is no regular file; {AGAIN}")
    return os.fdopen(descriptor, "rb")


def read_manifest(folder: int, path: str) -> dict[str, Any]:
    """What manifest.json holds: an object, of numbers that are finite and text that is Unicode. Raises ModelError."""
    try:
        file = open_file(folder, path, MANIFEST)
    except ModelError as error:
        raise ModelError(f"{path} is not a package: {error}") from None
    try:
        with file:
            data = file.read(MOST_MANIFEST_BYTES + 1)
        if len(data) > MOST_MANIFEST_BYTES:
            raise ModelError(f"{path}/{MANIFEST} has more than {MOST_MANIFEST_BYTES} bytes: it is of no package")
    except OSError as error:
        raise ModelError(f"cannot read {path}/{MANIFEST}: {_reason(error)}") from None
    return _parsed(data, path)


def _parsed(data: bytes, path: str) -> dict[str, Any]:
    try:
        text = data.decode()
        manifest = json.loads(text, parse_constant=_finite, parse_float=_finite)
        if re.search(r"\\u[dD][89a-fA-F]", text):  # half of a pair is no character
            json.dumps(manifest, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        manifest = None
    if not isinstance(manifest, dict):
        raise ModelError(f"{path}/{MANIFEST} is damaged: it is not a JSON object")
    return manifest


def check_file(file: BinaryIO, path: str, size: int, digest: str | None) -> None:
    """Raises ModelError if a file has another size, or another checksum where one is given."""
    length = os.fstat(file.fileno()).st_size
    if length != size:
        raise ModelError(f"{path} is damaged: it has {length} bytes instead of {size}; {AGAIN}")
    if digest is None:
        return
    computed = hashlib.sha256()
    try:
        while chunk := file.read(1 << 20):
            computed.update(chunk)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {_reason(error)}") from None
    if computed.hexdigest() != digest:
        raise ModelError(f"{path} is damaged: its checksum is not the manifest's; {AGAIN}")


def checked_files(path: str, check: bool) -> tuple[dict[str, Any], LibraryFile]:
    """Everything that can be said before the library is loaded: to load it is to execute it. A file that no program
    needs, choices.json for instance, may be missing."""
    folder = open_folder(path)
    try:
        manifest = read_manifest(folder, path)
        files = _files_of(manifest, path)
        prefix = _prefix_of(manifest, files, path)
        loaded = f"lib{prefix}.so"
        checked = {loaded, PARAMS, *(os.listdir(folder) if check else ())}
        for name, (size, digest) in files.items():
            if name in checked:
                with open_file(folder, path, name) as file:
                    check_file(file, f"{path}/{name}", size, digest if check or name == loaded else None)
                    if name == loaded:
                        header = os.pread(file.fileno(), 20, 0)
                        library = LibraryFile(prefix, name, header, os.fstat(file.fileno()).st_ino)
        return manifest, library
    finally:
        os.close(folder)


def _files_of(manifest: dict[str, Any], path: str) -> dict[str, tuple[int, str]]:
    """The size and checksum of each file."""
    version, files = manifest.get("schema_version"), manifest.get("files")
    if type(version) is not int or not isinstance(files, dict):
        raise ModelError(f"{path}/{MANIFEST} is damaged or is not a package's manifest")
    if version < SCHEMA_VERSION:
        raise ModelError(
            f"{path}/{MANIFEST} is of schema {version}, of an earlier modelc; this loader knows schema "
            f"{SCHEMA_VERSION}: compile the model again, or use the loader.py in the package"
        )
    if version > SCHEMA_VERSION:
        raise ModelError(f"{path}/{MANIFEST} is of schema {version}; this loader knows schema {SCHEMA_VERSION}")
    expected = {}
    for name, entry in files.items():
        if os.path.basename(name) != name or name in ("", ".", ".."):
            raise ModelError(f"{path}/{MANIFEST} lists the file {name!r}, which is not in the package")
        size, digest = (entry.get("bytes"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
        if type(size) is not int or not isinstance(digest, str):
            raise ModelError(f"{path}/{MANIFEST} is damaged: it lacks the size or the checksum of {name}")
        expected[name] = size, digest
    return expected


def _prefix_of(manifest: dict[str, Any], files: dict[str, tuple[int, str]], path: str) -> str:
    """What the names of the library begin with."""
    linked = manifest.get("linked")
    prefix = linked.get("prefix") if isinstance(linked, dict) else None
    if not isinstance(linked, dict) or not isinstance(prefix, str) or not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", prefix):
        raise ModelError(f"{path}/{MANIFEST} is damaged: it does not say the prefix of the library's names")
    if f"lib{prefix}.so" not in files:
        kinds = linked.get("emit")
        made = ", ".join(map(str, kinds)) if isinstance(kinds, list) else "other files"
        raise ModelError(f"{path} has no shared library to load: it was compiled with --emit {made}; add so")
    if PARAMS not in files and linked.get("embed_params") is not True:
        raise ModelError(f"{path}/{MANIFEST} does not list {PARAMS}")
    return prefix


def _finite(text: str) -> float:
    """Refuses NaN, Infinity, and numbers that a double takes for infinite."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
