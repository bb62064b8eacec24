"""What LLVM was asked for in a process of its own and agreed to, by a digest in the user's cache: it is asked once."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

from modelc import __version__
from modelc.codegen.lean_tvm import tvm
from modelc.scratch import is_private, make_private, user_cache


def is_agreed(kind: str, question: str) -> bool:
    """Whether this modelc with this TVM has asked that before."""
    place = _place(kind, question)
    return place.exists() and is_private(place.parent)


def remember(kind: str, question: str) -> None:
    """Keeps the answer yes. With a read-only home, or a cache in which others can write, it is asked again."""
    place = _place(kind, question)
    with suppress(OSError):
        make_private(place.parent)
        place.touch()


def _place(kind: str, question: str) -> Path:
    digest = hashlib.sha256(f"{__version__}\0{tvm.__version__}\0{question}".encode()).hexdigest()
    return user_cache() / f"{kind}-{digest[:32]}"
