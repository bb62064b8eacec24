"""What LLVM is asked in a process of its own, for it ends the process where it refuses. What it agreed to is kept by a
digest in the user's cache: it is asked once."""

from __future__ import annotations

import hashlib
import subprocess
from contextlib import suppress
from pathlib import Path

from modelc import __version__
from modelc.codegen.lean_tvm import tvm
from modelc.python_worker import worker_command
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


def asked(module: str, question: bytes, seconds: float) -> tuple[bytes, int, str]:
    """(what a process says that runs `module`, how it ended, the last that it complained of)."""
    command = worker_command(module)
    try:
        done = subprocess.run(command, input=question, capture_output=True, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        return error.stdout or b"", 1, f"it was not done within {seconds:g} s"
    lines = [line.strip() for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    refused = [line for line in lines if "LLVM ERROR" in line]
    if done.returncode < 0 and not refused:
        return done.stdout, done.returncode, f"it crashes (signal {-done.returncode})"
    return done.stdout, done.returncode, (refused or lines[-1:] or [f"exit code {done.returncode}"])[0][:300]


def _place(kind: str, question: str) -> Path:
    digest = hashlib.sha256(f"{__version__}\0{tvm.__version__}\0{question}".encode()).hexdigest()
    return user_cache() / f"{kind}-{digest[:32]}"
