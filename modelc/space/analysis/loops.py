"""How often the loops of a Candidate run, and over what.

`ranges` are the iterators' extents, `tiles` the sizes of each one's tiles, the largest first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from modelc.ir.affine import bounds
from modelc.ir.expr import Load
from modelc.ir.loop import Loop

Tiles = Mapping[str, Sequence[int]]


def trips(loop: Loop, ranges: Mapping[str, int], tiles: Tiles) -> int:
    """How often a loop of whole tiles runs; the last time it may be less than whole."""
    extent, tile = span(loop, ranges, tiles)
    return -(-extent // tile)


def span(loop: Loop, ranges: Mapping[str, int], tiles: Tiles) -> tuple[int, int]:
    """(how many values of its iterator a loop covers, how many one of its iterations does)."""
    name, level = loop
    sizes = (ranges[name], *tiles.get(name, ()), 1)
    return min(sizes[level], ranges[name]), min(sizes[level + 1], ranges[name])


def covered(ranges: Mapping[str, int], loops: Sequence[Loop], tiles: Tiles) -> dict[str, int]:
    """How many values of each iterator one iteration of all `loops` covers."""
    result = dict(ranges)
    for name, level in loops:
        result[name] = min(result[name], (*tiles.get(name, ()), 1)[level])
    return result


def copies(read: Load, ranges: Mapping[str, int], loops: Sequence[Loop], tiles: Tiles) -> float:
    """How often, on average, an element is copied where each iteration of `loops` copies what it reads: halos overlap
    from one to the next."""

    def elements(extents: Mapping[str, int]) -> int:
        limits = [bounds(i, extents) for i in read.indices]
        return prod(high - low + 1 for low, high in (x for x in limits if x is not None))

    times = prod(trips(loop, ranges, tiles) for loop in loops)
    return times * elements(covered(ranges, loops, tiles)) / elements(ranges)


def deeper(loop: Loop, iterator: str) -> Loop:
    """What `loop` is when `iterator` has been tiled once more around it: m1 for m0."""
    return Loop(iterator, loop.level + 1) if loop.iterator == iterator else loop
