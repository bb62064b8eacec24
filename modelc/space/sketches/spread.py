"""Storage of equal parts, one after the other, whose same places are touched together: sums and transforms read or
write an element of every product, one behind the other.

Where parts lie a power of two of lines apart, these elements fall into a few sets of the first-level cache, which keeps
only as many lines of a set as it has ways. A line more in each row of a part, or a row more, spreads them over the sets
(padding against conflict misses: Rivera and Tseng, Data Transformations for Eliminating Conflict Misses, 1998).
"""

from __future__ import annotations

from collections import Counter
from math import prod

from modelc.ir.block import Buffer
from modelc.ir.expr import DTYPES
from modelc.ir.layout import Layout, Shape
from modelc.space.cost.conflicts import sets
from modelc.target import Cache, Target

CROWDED_SHARE = 0.75  # of a set's ways: as many are touched together at most, the rest is for what streams past


def spread(buffer: Buffer, shape: Shape, parts: int, target: Target) -> Layout:
    """How `shape` of `buffer` is stored, whose first `parts` stored dimensions count the parts: as it is, or with a
    line more in each row, a row more, or both; the first of these that crowds no set of `target`'s first-level cache,
    or else the one that crowds them least."""
    cache, size = target.caches[0], DTYPES[buffer.dtype].itemsize
    last = len(buffer.layout.shape(shape)) - 1
    layouts = [buffer.layout]
    if last > parts:
        wider = buffer.layout.then("pad", last, 0, -(-cache.line // size))
        layouts += [wider, buffer.layout.then("pad", last - 1, 0, 1), wider.then("pad", last - 1, 0, 1)]
    crowds = [_crowd(layout.shape(shape), parts, size, cache) for layout in layouts]
    enough = (layout for layout, crowd in zip(layouts, crowds, strict=True) if crowd <= CROWDED_SHARE * cache.ways)
    return next(enough, layouts[crowds.index(min(crowds))])


def _crowd(stored: Shape, parts: int, size: int, cache: Cache) -> int:
    """Elements in the fullest set of `cache`: one of each part, at the same place, of `size` bytes."""
    part = prod(stored[parts:]) * size
    return max(Counter(k * part // cache.line % sets(cache) for k in range(prod(stored[:parts]))).values())
