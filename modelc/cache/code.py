"""The version of the code that an answer came from: the text of the rooms that it went through, not a number that
somebody has to raise."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import version
from pathlib import Path

HOUSE = Path(__file__).parent.parent
PRICES = ("ir", "target", "space", "policy.py")  # what the schedules of a Task and their prices follow from
MACHINE_CODE = (*PRICES, "codegen")
LIBRARIES = {PRICES: ("numpy",), MACHINE_CODE: ("numpy", "apache-tvm", "apache-tvm-ffi")}


@cache
def code_digest(rooms: tuple[str, ...]) -> str:
    """Of the files of `rooms` (PRICES or MACHINE_CODE), and of the versions of the libraries that they work with."""
    digest = hashlib.sha256()
    for library in LIBRARIES[rooms]:
        digest.update(f"{library} {version(library)}\n".encode())
    for room in rooms:
        place = HOUSE / room
        for path in sorted(place.rglob("*.*")) if place.is_dir() else (place,):
            if path.is_file() and path.suffix != ".pyc":
                digest.update(f"{path.relative_to(HOUSE)}\0".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def key_of(*parts: str) -> bytes:
    """The key of what all of `parts` decide."""
    return hashlib.sha256("\0".join(parts).encode()).digest()
