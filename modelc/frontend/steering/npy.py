"""Arrays as NumPy stores them, each after a header. A file that is read is not trusted: nothing in it is executed, and
what its header says is looked at before its data."""

from __future__ import annotations

import math
import os
import tokenize
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from modelc.errors import InputError
from modelc.ir.expr import NARROW

SUFFIX = ".npy"
MOST_HEADER = 10_000  # bytes
DAMAGE = (  # what NumPy raises for it
    *(ValueError, EOFError, LookupError, SyntaxError, TypeError, OverflowError, RecursionError, tokenize.TokenError),
)


class Kind(NamedTuple):
    """What an array's header says."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)

    def holds(self, dtype: str) -> bool:
        """Whether it is of a tensor's dtype, in any byte order; what NumPy has no dtype for is stored as its bits."""
        bits = "uint16" if dtype == "bfloat16" else "uint8" if dtype in NARROW else dtype
        return self.dtype.name in (dtype, bits)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


def read_kind(stream: IO[bytes]) -> Kind:
    """The header at the beginning of a stream. Raises what DAMAGE lists."""
    version = np.lib.format.read_magic(stream)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(stream, max_header_size=MOST_HEADER)
    if dtype.hasobject or min(shape, default=0) < 0:
        raise ValueError("objects, or less than no numbers")
    return Kind(dtype, shape)


def read_array(stream: IO[bytes]) -> NDArray[Any]:
    """The header and the array at the beginning of a stream, in this machine's byte order. Raises what DAMAGE lists."""
    array = np.lib.format.read_array(stream, allow_pickle=False, max_header_size=MOST_HEADER)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def read_npy(path: Path, accept: Callable[[Kind], None] | None = None) -> NDArray[Any]:
    """The array in a .npy file. `accept` is given what it is before it is read, and raises where that is not what is
    expected. Raises InputError."""
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path} cannot be read: it is no file")
        with path.open("rb") as stream:
            kind = read_kind(stream)
            if stream.tell() + kind.nbytes > os.fstat(stream.fileno()).st_size:
                raise ValueError("it is cut off")
            if accept is not None:
                accept(kind)
            stream.seek(0)
            return read_array(stream)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except MemoryError:
        raise InputError(f"{path} cannot be read: its array needs more memory than there is") from None
    except DAMAGE:
        raise InputError(f"{path} is no {SUFFIX} file of numbers, or damaged: numpy.save writes such files") from None
