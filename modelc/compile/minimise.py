"""Delta debugging: what fails made small (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input",
IEEE Transactions on Software Engineering, 2002)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def minimised(parts: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> list[T]:
    """A part of `parts`, in their order, that still `fails`, and no longer does when any single one is left out."""
    kept, chunk = list(parts), max(len(parts) // 2, 1)
    while True:
        start, before = 0, len(kept)
        while start < len(kept):
            rest = kept[:start] + kept[start + chunk :]
            if fails(rest):
                kept = rest
            else:
                start += chunk
        if chunk == 1 and len(kept) == before:
            return kept
        chunk = max(chunk // 2, 1)
