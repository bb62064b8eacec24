"""How much of what kernels wrote is remembered."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

LEAST_ROOM = 1 << 30  # bytes
SHARE = 4  # of free memory that is taken: what kernels read that is not remembered any more may be as much again


def room() -> int:
    """Bytes of values that may be remembered: a quarter of the memory that is free, as far as that is known, and
    LEAST_ROOM at least."""
    free = 0
    with suppress(OSError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = sum(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    return max(LEAST_ROOM, free // SHARE)
