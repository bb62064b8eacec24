"""What the names of loops say: h0 goes over the largest tiles of iterator h, h1 over the next smaller ones inside one.

`ranges` are the iterators' extents, `tiles` the sizes of each one's tiles, the largest first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

from modelc.ir.affine import bounds
from modelc.ir.expr import Load

Tiles = Mapping[str, Sequence[int]]


class Loop(NamedTuple):
    """The loop over tiles of one level of an iterator."""

    iterator: str
    level: int  # 0: over the largest tiles

    def __str__(self) -> str:
        return f"{self.iterator}{self.level}"


@lru_cache(maxsize=4096)
def loop_of(name: str) -> Loop:
    """The loop that a Candidate names: "o1" is level 1 of iterator o."""
    return Loop(name[:-1], int(name[-1]))


def trips(loop: str, ranges: Mapping[str, int], tiles: Tiles) -> int:
    """How often a loop of whole tiles runs; the last time it may be less than whole."""
    extent, tile = span(loop, ranges, tiles)
    return -(-extent // tile)


def span(loop: str, ranges: Mapping[str, int], tiles: Tiles) -> tuple[int, int]:
    """(how many values of its iterator a loop covers, how many one of its iterations does)."""
    name, level = loop_of(loop)
    sizes = (ranges[name], *tiles.get(name, ()), 1)
    return min(sizes[level], ranges[name]), min(sizes[level + 1], ranges[name])


def covered(ranges: Mapping[str, int], loops: Sequence[str], tiles: Tiles) -> dict[str, int]:
    """How many values of each iterator one iteration of all `loops` covers."""
    result = dict(ranges)
    for loop in loops:
        name, level = loop_of(loop)
        result[name] = min(result[name], (*tiles.get(name, ()), 1)[level])
    return result


def copies(read: Load, ranges: Mapping[str, int], loops: Sequence[str], tiles: Tiles) -> float:
    """How often, on average, an element is copied where each iteration of `loops` copies what it reads: halos overlap
    from one to the next."""

    def elements(extents: Mapping[str, int]) -> int:
        limits = [bounds(i, extents) for i in read.indices]
        return prod(high - low + 1 for low, high in (x for x in limits if x is not None))

    times = prod(trips(loop, ranges, tiles) for loop in loops)
    return times * elements(covered(ranges, loops, tiles)) / elements(ranges)
