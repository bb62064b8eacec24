"""Arrays in .npz files. One that is read is not trusted: nothing in it is executed, and what it claims of sizes is
checked."""

from __future__ import annotations

import lzma
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from modelc.errors import InputError
from modelc.frontend.steering.npy import DAMAGE, Kind, read_array, read_kind
from modelc.runtime import as_bits
from modelc.scratch import beside

MOST_ARRAYS = 1 << 12
MOST_BYTES = 1 << 34  # of all arrays, uncompressed
_ENCRYPTED = 1  # the flag of a member
_ARRAY = b"\x93NUMPY"
_DAMAGE = (  # what zipfile and its decompressors raise for it, beside NumPy
    *DAMAGE,
    *(NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
)


def read_npz(path: Path, accept: Callable[[Mapping[str, Kind]], None] | None = None) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file by name, in this machine's byte order. `accept` is given what they are before they are
    read, and raises where that is not what is expected. Raises InputError."""
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path} cannot be read: it is no file")
        with path.open("rb") as stream:
            if stream.read(len(_ARRAY)) == _ARRAY:
                raise InputError(f"{path} holds one array without a name; expected an .npz file")
            with zipfile.ZipFile(stream) as archive:
                members = _members(archive, path)
                if accept is not None:
                    accept({name: _kind(archive, member) for name, member in members.items()})
                return {name: _read(archive, member) for name, member in members.items()}
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except MemoryError:
        raise InputError(f"{path} cannot be read: its arrays need more memory than there is") from None
    except _DAMAGE:
        raise InputError(f"{path} is no .npz file of numbers, or damaged: numpy.savez writes such files") from None


def _members(archive: zipfile.ZipFile, path: Path) -> dict[str, zipfile.ZipInfo]:
    members = archive.infolist()
    if len(members) > MOST_ARRAYS or sum(one.file_size for one in members) > MOST_BYTES:
        raise InputError(
            f"{path} has {len(members)} arrays of {sum(one.file_size for one in members)} bytes; expected at most "
            f"{MOST_ARRAYS} arrays and {MOST_BYTES} bytes"
        )
    found: dict[str, zipfile.ZipInfo] = {}
    for member in members:
        name = member.filename.removesuffix(".npy")
        if member.flag_bits & _ENCRYPTED:
            raise InputError(f"{path} is encrypted: the array {name!r} cannot be read; write it with numpy.savez")
        if name in found:
            raise InputError(f"{path} has two arrays called {name!r}; expected each name once")
        found[name] = member
    return found


def _kind(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Kind:
    with archive.open(member) as stream:
        return read_kind(stream)


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(member) as stream:
        return read_array(stream)


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Writes an .npz file with arrays of any names; what is there is replaced when all of it has been written."""
    try:
        if path.exists() and not path.is_file():  # a pipe or a device cannot be replaced
            with path.open("wb") as file:
                _write_members(file, arrays)
            return
        place = path.resolve()  # a link stays, and leads to the new file
        with beside(place, folder=False) as made:
            with made.open("wb") as file:
                _write_members(file, arrays)
            if place.exists():
                made.chmod(place.stat().st_mode & 0o777)
            os.replace(made, place)
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links; a null character in the path
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{path} cannot be written: {reason}") from None


def _write_members(file: IO[bytes], arrays: Mapping[str, NDArray[Any]]) -> None:
    """As numpy.savez does, which takes some names for its own parameters."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, as_bits(np.asanyarray(array)), allow_pickle=False)
