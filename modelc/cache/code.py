"""The version of modelc by the text of its sources: no number has to be raised where an answer changes."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import version
from pathlib import Path

from modelc.target.section import targets_folder

HOUSE = Path(__file__).resolve().parents[1]
SUFFIXES = (".py", ".c", ".h", ".yaml", ".json", ".jsonl", ".map")
LIBRARIES = ("apache-tvm", "numpy")  # that kernels and prices are made with


@cache
def own_digest() -> str:
    """Of the sources of modelc, and of what is shipped with them."""
    folders = (HOUSE, targets_folder(), targets_folder().parent / "configs")
    files = [path for folder in folders for path in sorted(folder.rglob("*")) if path.suffix in SUFFIXES]
    digest = hashlib.sha256()
    for path in files:
        content = path.read_bytes()
        digest.update(f"{path.name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


@cache
def code_digest() -> str:
    """own_digest(), and the versions of LIBRARIES."""
    return " ".join((own_digest(), *(f"{library} {version(library)}" for library in LIBRARIES)))


def content_key(*parts: str) -> bytes:
    """The key of what all of `parts` decide."""
    return hashlib.sha256("\0".join(parts).encode()).digest()
