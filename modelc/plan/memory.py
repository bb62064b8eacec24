"""Where buffers lie in an arena: those that live at the same time lie apart."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from modelc.package.spec import aligned


@dataclass(frozen=True)
class Lifetime:
    """A buffer of `bytes` that must keep its contents from step `first` to step `last`, both included."""

    name: str
    bytes: int
    first: int
    last: int


def plan_memory(items: Iterable[Lifetime], taken: Mapping[str, str] | None = None) -> tuple[dict[str, int], int]:
    """(offset of every buffer, size of the arena): buffers whose lives overlap lie apart, all are 64-byte aligned.
    `taken` says of a buffer in whose place it lies instead, which ends its life as the other's begins.

    Greedy by size: the largest first, each into the smallest gap that fits among those that live with it. The
    result depends on the set of items alone.
    """
    items = list(items)
    first = {item.name: item.name for item in items}  # buffer -> the first one in its place
    lives: dict[str, Lifetime] = {}
    for item in sorted(items, key=lambda i: (i.first, i.last)):
        first[item.name] = root = first[(taken or {}).get(item.name, item.name)]
        before = lives.get(root, item)
        lives[root] = Lifetime(root, max(before.bytes, item.bytes), before.first, max(before.last, item.last))
    placed = _Placed(1 + max((item.last for item in lives.values()), default=0))
    starts: dict[str, int] = {}
    for item in sorted(lives.values(), key=lambda i: (-i.bytes, i.first, i.last, i.name)):
        size = aligned(item.bytes)
        best, end_of_last = None, 0
        for start, end in sorted(placed.alive(item.first, item.last)):
            gap = start - end_of_last
            if gap >= size and (best is None or gap < best[0]):
                best = (gap, end_of_last)
            end_of_last = max(end_of_last, end)
        starts[item.name] = end_of_last if best is None else best[1]
        placed.add(item.first, item.last, starts[item.name], starts[item.name] + size)
    return {name: starts[root] for name, root in first.items()}, placed.end


class _Placed:
    """The placed buffers of the arena by their live ranges: a tree of spans of steps, where each span covers the
    two below it, and what lives all through a span but not through the one above is listed there."""

    def __init__(self, steps: int) -> None:
        self.leaves = 1 << (steps - 1).bit_length()
        self.spans: list[list[tuple[int, int]]] = [[] for _ in range(2 * self.leaves)]
        self.beginning: list[tuple[int, int, int]] = []  # (first step, start, end), in order
        self.end = 0

    def add(self, first: int, last: int, start: int, end: int) -> None:
        insort(self.beginning, (first, start, end))
        self.end = max(self.end, end)
        low, high = first + self.leaves, last + self.leaves + 1
        while low < high:
            if low % 2:
                self.spans[low].append((start, end))
                low += 1
            if high % 2:
                high -= 1
                self.spans[high].append((start, end))
            low, high = low // 2, high // 2

    def alive(self, first: int, last: int) -> list[tuple[int, int]]:
        """(start, end) of all that lives at one of the steps: at the first of them, or from a later one on."""
        spans: list[tuple[int, int]] = []
        span = first + self.leaves
        while span:
            spans += self.spans[span]
            span //= 2
        later = bisect_left(self.beginning, (first + 1,)), bisect_left(self.beginning, (last + 1,))
        return spans + [(start, end) for _, start, end in self.beginning[slice(*later)]]
