"""The C interface of a package, by ctypes: modelc_api in model.h. Standard library alone."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from typing import Any

from modelc.runtime.files import LibraryFile, ModelError

ELF_MACHINES = {62: "x86_64", 183: "aarch64", 40: "arm", 243: "riscv64"}
LENGTH, FOUND = -1, -2  # in place of an input that says a size
STOPPED, INTERRUPTED, LATE = 9, 10, 11  # of modelc_status in model.h


class Tensor(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("bytes", ctypes.c_size_t),
    ]


_I32, _P = ctypes.c_int32, ctypes.c_void_p


class Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("threads", _I32), ("check", _I32), ("seed", ctypes.c_uint64)]


class Profile(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("calls", ctypes.c_uint64),
        ("nanoseconds", ctypes.c_uint64),
        ("flops", ctypes.c_double),
        ("bytes", ctypes.c_double),
    ]


class Frame(ctypes.Structure):
    """Where the data of a run lies: modelc_frame in model.h."""

    _fields_ = [
        ("arena", _P),
        ("params", _P),
        ("inputs", ctypes.POINTER(_P)),
        ("outputs", ctypes.POINTER(_P)),
        ("random", _P),
        ("slots", ctypes.POINTER(_P)),
        ("sizes", _P),
        ("iteration", ctypes.c_int64),
        ("dims", _P),
        ("made", _P),
    ]


_POLLER = ctypes.CFUNCTYPE(ctypes.c_int, _P)
WATCHER = ctypes.CFUNCTYPE(None, _P, _I32, _I32, _I32, ctypes.POINTER(Frame))
FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {  # in the order of modelc_api in model.h
    "open": (_I32, (ctypes.c_char_p, ctypes.POINTER(Options), ctypes.POINTER(_P))),
    "close": (None, (_P,)),
    "last_error": (ctypes.c_char_p, ()),
    "metadata": (ctypes.c_char_p, (_P,)),
    "thread_count": (_I32, (_P,)),
    "variant_count": (_I32, (_P,)),
    "input_count": (_I32, (_P, _I32)),
    "output_count": (_I32, (_P, _I32)),
    "input": (ctypes.POINTER(Tensor), (_P, _I32, _I32)),
    "output": (ctypes.POINTER(Tensor), (_P, _I32, _I32)),
    "run": (_I32, (_P, _I32, _P, _P)),
    "fit": (_I32, (_P, _P, _P)),
    "run_shaped": (_I32, (_P, _I32, _P, _P, _P)),
    "output_shape": (_I32, (_P, _I32, _I32, _P)),
    "reset": (_I32, (_P,)),
    "profile_start": (_I32, (_P,)),
    "profile_stop": (_I32, (_P,)),
    "step_count": (_I32, (_P, _I32)),
    "profile_read": (_I32, (_P, _I32, _I32, ctypes.POINTER(Profile))),
    "watch": (_I32, (_P, WATCHER, _P)),
    "memory_size": (ctypes.c_size_t, ()),
    "init": (_P, (_P,)),
    "stop": (None, (_P, _I32)),
    "poll": (_I32, (_P, _POLLER, _P)),
    "open_memory": (_I32, (_P, ctypes.c_size_t, ctypes.POINTER(Options), ctypes.POINTER(_P))),
    "open_fd": (_I32, (_I32, ctypes.c_uint64, ctypes.c_uint64, ctypes.POINTER(Options), ctypes.POINTER(_P))),
    "time_limit": (_I32, (_P, ctypes.c_uint64)),
    "seed": (_I32, (_P, ctypes.c_uint64)),
}


class _Table(ctypes.Structure):
    """modelc_api, as far as it is used here."""

    _fields_ = [("size", ctypes.c_size_t), *((name, _P) for name in FUNCTIONS)]


class Library:
    """The library of a package: its functions by their names in modelc_api; None for one that it does not have."""

    def __init__(self, library: ctypes.CDLL, prefix: str) -> None:
        self._library = library  # which is there as long as its functions are
        give = getattr(library, f"{prefix}_api")
        give.restype, give.argtypes = ctypes.POINTER(_Table), ()
        table = give().contents
        for name, (result, arguments) in FUNCTIONS.items():
            address = getattr(table, name) if getattr(_Table, name).offset < table.size else None
            setattr(self, name, address and ctypes.CFUNCTYPE(result, *arguments)(address))

    def __getattr__(self, name: str) -> Any:  # what the table has
        raise AttributeError(name)


def open_library(path: str, file: LibraryFile) -> Library:
    file_name, header = os.path.join(path, file.name), file.header
    machine = struct.unpack_from("<H", header, 18)[0] if header[:4] == b"\x7fELF" and len(header) == 20 else None
    built_for, here = ELF_MACHINES.get(machine or 0, "an unknown machine"), platform.machine()
    bits = 32 if header[4:5] == b"\1" else 64
    # A 32-bit Python on a 64-bit ARM kernel calls its machine aarch64.
    if bits != 8 * struct.calcsize("P") or not (here.startswith(built_for) or (built_for, here) == ("arm", "aarch64")):
        raise ModelError(f"{file_name} was built for {built_for}; this is {here}")
    # The dynamic linker takes an equal path for the same library, even when a new package has replaced the old one
    # there while it was loaded. So the inode is spelt into the path: "a/./b" for a one, "a//b" for a zero.
    spelling = "".join("./" if bit == "1" else "/" for bit in f"{file.inode:b}")
    try:
        return Library(ctypes.CDLL(os.path.abspath(path) + "/" + spelling + file.name), file.prefix)
    except (OSError, AttributeError) as error:
        raise ModelError(f"cannot load {file_name}: {error}") from None


def poller() -> Any:
    """What a run asks whether there was a SIGINT. It executes nothing of Python, so that the handler does not raise
    within it, and says yes in the main thread alone. None where Python is not CPython."""
    interface = getattr(ctypes, "pythonapi", None)
    return interface and _POLLER(interface.PyOS_InterruptOccurred)


def text_of(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")
