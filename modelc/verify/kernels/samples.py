"""Which elements of a result are looked at.

Corners and edges; both sides of every boundary of a tile, of a vector and of an unrolled loop, which is where loops are
cut otherwise than inside; every index along each dimension that is not much longer than channels are, at several
positions (constants are indexed along one, so that each of their elements weighs on some sample); and random ones.
Samples are positions x channels, as far as there is room: a contraction reads a row for each position and a column for
each channel. Where constants are indexed along several dimensions (positions of tokens, anchors), or there are more
channels than room, each index of these has one sample more. And of every channel the least and the greatest number, and
some that are neither: where a rectifier or a clamp makes all others alike, a wrong weight shows there alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.block import Block, Task

Array = NDArray[Any]
LANES = (4, 8, 16, 32, 64)  # of vectors and unrolled loops, whatever the kernel's are
NEAR_ENDS = 3  # elements at both ends of a dimension
LEAST_POSITIONS = 12  # at which channels are looked at, however much each reads
MOST_EDGES = 96  # places along a dimension that are looked at on purpose
COVERED = 32  # times the samples: indices of constants, of which each is looked at
TELLING, LEAST_TELLING = 4, 256  # times the operands of positions: what numbers may read that tell most; at least
TABLE_POSITIONS = 7 * 256  # of 256 bytes that are drawn, each is among so many but for 1 time in 1000
SEARCHED = 1 << 17  # elements among which those are searched that tell most


@dataclass(frozen=True)
class Effort:
    """How much is looked at: `positions` beside the corners, `samples` of a result at most, `operands` that positions
    may read, `points` that one kernel's evaluation may take, and `calls` of one kernel. `work` is what all kernels of a
    package may take together in operations on one element, each of about 80 ns; each distinct kernel gives
    `kernel_work` to all. These are counts and no seconds: the same package is looked at alike on every machine."""

    positions: int
    samples: int
    operands: int
    points: int
    calls: int
    work: float
    kernel_work: float

    @property
    def telling(self) -> int:
        """How many numbers of each channel are looked at that are neither its least nor its greatest."""
        return self.positions // 4


EFFORTS = {
    "quick": Effort(
        positions=6, samples=1 << 11, operands=1 << 15, points=1 << 24, calls=2, work=2.5e7, kernel_work=3e5
    ),
    "default": Effort(
        positions=16, samples=1 << 13, operands=1 << 18, points=1 << 26, calls=3, work=1e8, kernel_work=6e5
    ),
    "thorough": Effort(
        positions=128, samples=1 << 17, operands=1 << 24, points=1 << 32, calls=64, work=7e9, kernel_work=inf
    ),
}


def for_tables(effort: Effort, task: Task) -> Effort:
    """`effort`, with positions enough for each entry of a table that `task` looks up; a contraction has them for its
    channels."""
    maps = [block for block in task.blocks if isinstance(block, Block) and not block.reduction]
    looks_up = len(maps) == len(task.blocks) and any(op.name == "lookup" for block in maps for op in block.operations)
    return replace(effort, positions=max(effort.positions, TABLE_POSITIONS)) if looks_up else effort


def edges(extent: int, tiles: Iterable[int]) -> Array:
    """Places along a dimension next to which loops over it may be cut, in order."""
    last = extent - 1
    places = {*range(min(NEAR_ENDS, extent)), *range(max(extent - NEAR_ENDS, 0), extent), extent // 2}
    for lanes in LANES:
        start = last // lanes * lanes
        places |= {lanes - 1, lanes, start - 1, start}
    for tile in tiles:
        places |= {place for start in range(tile, extent, tile) for place in (start - 1, start)} if tile > 1 else set()
    inside = sorted(place for place in places if 0 <= place < extent)
    if len(inside) <= MOST_EDGES:
        return np.array(inside)
    step = len(inside) / MOST_EDGES
    return np.array(sorted({inside[int(k * step)] for k in range(MOST_EDGES)} | {0, last}))


def chosen(
    shape: Sequence[int],
    channels: Sequence[int],
    tiles: Sequence[Sequence[int]],
    effort: Effort,
    rng: np.random.Generator,
    depth: int = 1,
    subset: Array | None = None,
) -> tuple[Array, ...]:
    """Indices of the samples of a result of `shape`, an array for each dimension. `tiles` are the sizes of tiles along
    each; along dimensions `channels`, the longest first, constants are indexed; each position reads `depth` operands.
    `subset`: indices along the first of the channels that are looked at, where it is not every one."""
    channel = channels[0] if channels else None
    count = prod(shape)
    if count <= effort.samples and subset is None:
        return np.unravel_index(np.arange(count), shape) if shape else ()
    others = [d for d in range(len(shape)) if d != channel]
    positions = _positions([shape[d] for d in others], [tiles[d] for d in others], effort, rng)
    most = max(LEAST_POSITIONS, effort.operands // max(depth, 1))
    if len(positions) > most:  # corners come first
        corners = min(2 ** len(others), most // 2)
        others_of = corners + rng.choice(len(positions) - corners, most - corners, replace=False)
        positions = positions[np.concatenate([np.arange(corners), others_of])]
    if channel is None:
        return tuple(positions[:, k] for k in range(len(others)))
    columns = np.arange(shape[channel]) if subset is None else subset
    rows = min(len(positions), effort.samples // len(columns))  # positions at which each of them is looked at
    picked = positions[rng.permutation(len(positions))[:rows]]
    places = np.concatenate([np.repeat(picked, len(columns), axis=0), positions])
    at_edges = rng.choice(edges(shape[channel], tiles[channel]), len(positions))
    along = np.concatenate([np.tile(columns, rows), at_edges])
    index = [places[:, others.index(d)] if d != channel else along for d in range(len(shape))]
    if (len(channels) == 1 and rows) or subset is not None:
        return tuple(index)
    return tuple(np.concatenate(pair) for pair in zip(index, _covering(shape, channels, effort, rng), strict=True))


def _covering(
    shape: Sequence[int], channels: Sequence[int], effort: Effort, rng: np.random.Generator
) -> tuple[Array, ...]:
    """Every index along `channels` once, or as many as there is room for, with the other dimensions anywhere."""
    extents = [shape[d] for d in channels]
    count, most = prod(extents), COVERED * effort.samples
    numbers = np.arange(count) if count <= most else rng.choice(count, most, replace=False)
    along = dict(zip(channels, np.unravel_index(numbers, extents), strict=True))
    return tuple(along.get(d, rng.integers(0, extent, len(numbers))) for d, extent in enumerate(shape))


def _positions(shape: Sequence[int], tiles: Sequence[Sequence[int]], effort: Effort, rng: np.random.Generator) -> Array:
    """Rows of indices: corners, each edge with the other dimensions anywhere, and random ones."""
    along = [edges(extent, sizes) for extent, sizes in zip(shape, tiles, strict=True)]

    def anywhere(count: int) -> Array:
        if not shape:
            return np.zeros((count, 0), np.int64)
        at_edge = rng.random((count, len(shape))) < 0.5
        edge = np.stack([rng.choice(places, count) for places in along], axis=1)
        plain = np.stack([rng.integers(0, extent, count) for extent in shape], axis=1)
        return np.where(at_edge, edge, plain)

    corners = anywhere(2 ** min(len(shape), 4))
    for d, extent in enumerate(shape):
        corners[:, d] = np.where((np.arange(len(corners)) >> d) & 1, extent - 1, 0)
    rows = [corners]
    for d, places in enumerate(along):
        picked = (
            places if len(places) <= 4 * effort.positions else rng.choice(places, 4 * effort.positions, replace=False)
        )
        at = anywhere(len(picked))
        at[:, d] = picked
        rows.append(at)
    rows.append(anywhere(effort.positions))
    _, first = np.unique(np.concatenate(rows), axis=0, return_index=True)
    return np.concatenate(rows)[np.sort(first)]


def telling(array: Array, channel: int, effort: Effort, rng: np.random.Generator, depth: int = 1) -> tuple[Array, ...]:
    """Indices of the least and the greatest number of every channel of a result, and of some that are neither, as far
    as there are any; each reads `depth` operands, for so many of which there is room."""
    rows = np.moveaxis(array, channel, 0).reshape(array.shape[channel], -1)
    places = np.arange(rows.shape[1])
    if rows.size > SEARCHED:
        places = rng.choice(places, max(1, SEARCHED // len(rows)), replace=False)
    numbers = rows[:, places].astype(np.float64)
    least, greatest = numbers.argmin(axis=1), numbers.argmax(axis=1)
    ends = [np.take_along_axis(numbers, at[:, None], axis=1) for at in (least, greatest)]
    order = rng.random(numbers.shape) + ((numbers == ends[0]) | (numbers == ends[1]))  # those between come first
    count = min(effort.telling, len(places))
    between = np.argpartition(order, count - 1, axis=1)[:, :count] if count else np.zeros((len(rows), 0), np.int64)
    columns = places[np.concatenate([least[:, None], greatest[:, None], between], axis=1)]
    extents = [extent for d, extent in enumerate(array.shape) if d != channel]
    channels = np.repeat(np.arange(len(rows)), columns.shape[1])
    most = max(LEAST_TELLING, TELLING * effort.operands // max(depth, 1))
    kept = rng.choice(len(channels), most, replace=False) if len(channels) > most else np.arange(len(channels))
    index = list(np.unravel_index(columns.reshape(-1)[kept], extents)) if extents else []
    index.insert(channel, channels[kept])
    return tuple(index)
