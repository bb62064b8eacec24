"""Footprints and traffic of tiles: closed forms on affine accesses, for a whole population of tiles at once.

A tile is a box: how many consecutive values each iterator takes. Tiles come as an integer array, one row per member of
the population (P) and one column per iterator. What an access touches over a box follows from its index expressions
alone; how many cache lines that is, from the strides of its storage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod

import numpy as np
from numpy.typing import NDArray

from modelc.ir.affine import linear
from modelc.ir.block import Block, Task
from modelc.ir.expr import DTYPES, Const, Expr, Load, Op, Var, substitute, variables
from modelc.space.analysis.distinct import distinct_rows

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Span = tuple[Ints, Ints]  # of an index: how many values it takes, and how far apart the first and the last are
PREFETCHED_LINES = 4  # consecutive lines that arrive with one miss (ALT, section 5.1, table 2)
_ENUMERATED = 1 << 16  # points of one tile that are looked at one by one where there is no closed form


@dataclass(frozen=True)
class Dim:
    """One index of an access: `terms` are (column, coefficient) of its linear form; None where it has floordiv or mod
    (its bounds count then) or loads (the whole dimension does). `stride` is in elements of storage."""

    index: Expr
    terms: tuple[tuple[int, int], ...] | None
    size: int
    stride: int


@dataclass(frozen=True)
class Reach:
    """An access as footprints need it. `dense`: its elements are stored in the order they are read, whatever the tile
    (a packed constant, a copy of its own)."""

    buffer: str
    itemsize: int
    dims: tuple[Dim, ...]
    columns: Mapping[str, int]
    dense: bool


@dataclass(frozen=True)
class Footprint:
    """What one access touches over each tile: elements, bytes, cache lines, and runs of consecutive lines; `step` bytes
    divide all distances between these (0: there is one). All [P]."""

    elements: Floats
    bytes: Floats
    lines: Floats
    runs: Floats
    step: Ints

    def line_bytes(self, line: int) -> Floats:
        """Bytes of lines of that size, whole ones."""
        return np.asarray(np.maximum(self.bytes, self.lines * line), np.float64)

    @property
    def misses(self) -> Floats:
        """Lines that a prefetcher which brings PREFETCHED_LINES at a time does not hide (ALT, table 2): a contiguous
        block of L lines costs L / 4; the same block in short runs costs at least one for each run."""
        return np.maximum(self.runs, self.lines / PREFETCHED_LINES)

    @property
    def apart(self) -> Floats:
        """The part of its lines that no prefetcher sees coming: the first ones of each of its rows."""
        return np.asarray((self.runs > 1) * np.minimum(1.0, PREFETCHED_LINES * self.runs / self.lines), np.float64)


def reach(
    task: Task, load: Load, iters: Sequence[str], names: Mapping[str, str] | None = None, dense: bool = False
) -> Reach:
    """The access `load` of a Block of `task` over tiles with the columns `iters`. `names` gives the columns' names for
    iterators that are called otherwise in that Block."""
    buffer = task.buffer(load.buffer)
    columns = {n: k for k, n in enumerate(iters)}
    renamed: dict[str, Expr] = {old: Var(new) for old, new in (names or {}).items()}
    strides = buffer.logical_strides
    dims = []
    for d, (index, size) in enumerate(zip(load.indices, buffer.shape, strict=True)):
        index = substitute(index, renamed) if renamed else index
        form = linear(index)
        terms: tuple[tuple[int, int], ...] | None = None
        if form is not None and all(isinstance(a, Var) for a, _ in form.terms):
            terms = tuple((columns[str(a)], c) for a, c in form.terms if str(a) in columns)
        dims.append(Dim(index, terms, size, 0 if strides is None else strides[d]))
    return Reach(load.buffer, DTYPES[buffer.dtype].itemsize, tuple(dims), columns, dense or strides is None)


def reaches(task: Task, block: Block) -> tuple[tuple[Reach, ...], tuple[Reach, ...]]:
    """(reads, writes) of a Block, over tiles with a column for each of its iterators, in their order."""
    iters = [i.name for i in block.iters]
    return tuple(reach(task, r, iters) for r in block.reads), tuple(reach(task, w, iters) for w in block.writes)


def footprint(access: Reach, tiles: Ints, line_bytes: int) -> Footprint:
    """What `access` touches over each of `tiles`."""
    spans = [distinct(d, tiles, access.columns) for d in access.dims]
    elements = _elements(access, tiles, spans)
    if access.dense:
        lines = np.maximum(1.0, elements * access.itemsize / line_bytes)
        return Footprint(
            elements, elements * access.itemsize, lines, np.ones_like(lines), np.zeros(len(lines), np.int64)
        )
    lines, runs, step = _lines(access, spans, len(tiles), line_bytes / access.itemsize)
    return Footprint(elements, elements * access.itemsize, lines, runs, step * access.itemsize)


# --- elements -----------------------------------------------------------------------------------------------------


def distinct(dim: Dim, tiles: Ints, columns: Mapping[str, int]) -> Span:
    """(how many values an index takes over each tile, how far it is from the first to the last, both counted)."""
    if dim.terms is None:
        limits = _bounds(dim.index, tiles, columns)
        if limits is None:
            whole = np.full(len(tiles), dim.size, np.int64)
            return whole, whole
        span = np.minimum(limits[1] - limits[0] + 1, dim.size)
        points = reduce(np.multiply, (tiles[:, columns[n]] for n in variables(dim.index) if n in columns))
        return np.minimum(span, points), span
    terms = sorted(((k, abs(c)) for k, c in dim.terms), key=lambda t: t[1])
    span = np.ones(len(tiles), np.int64)
    for k, c in terms:
        span = span + c * (tiles[:, k] - 1)
    if len(terms) <= 1:
        return (tiles[:, terms[0][0]] if terms else np.ones(len(tiles), np.int64)), span
    if len(terms) == 2:
        (i, a), (j, b) = terms
        m, n, g = tiles[:, i], tiles[:, j], np.gcd(a, b)
        # a * x + b * y repeats along (b / g, -a / g): count the points that have no predecessor there
        return m * n - np.maximum(0, m - b // g) * np.maximum(0, n - a // g), span
    return _progression(terms, tiles), span


def _progression(terms: Sequence[tuple[int, int]], tiles: Ints) -> Ints:
    """Distinct values of a sum of three or more terms, smallest coefficient first: a progression that the next term
    prolongs, or copies of what there is that do not meet; what is neither is enumerated."""
    p = len(tiles)
    count, step, reached = np.ones(p, np.int64), np.ones(p, np.int64), np.zeros(p, np.int64)
    dense, odd = np.ones(p, np.bool_), np.zeros(p, np.bool_)
    for k, c in terms:
        t = tiles[:, k]
        first, moves = count == 1, t > 1
        prolongs = dense & ~first & (c % step == 0) & (c // step <= count)
        odd |= moves & ~first & ~prolongs & (c <= reached)
        count = np.where(prolongs, count + (c // step) * (t - 1), count * t)
        step = np.where(first & moves, c, step)
        dense = np.where(moves, first | prolongs, dense)
        reached = reached + c * (t - 1)
    if odd.any():
        used = [k for k, _ in terms]
        rows, where = distinct_rows(tiles[odd][:, used])
        values = [_count_values([c for _, c in terms], row) for row in rows]
        count[odd] = np.array(values, np.int64)[where]
    return count


def _count_values(coefficients: Sequence[int], extents: Ints) -> int:
    """Distinct values of sum(c * x), by a mask of what is reached."""
    mask = np.zeros(1 + sum(c * (int(t) - 1) for c, t in zip(coefficients, extents, strict=True)), np.bool_)
    mask[0] = True
    for c, t in zip(coefficients, extents, strict=True):
        before = mask.copy()
        for x in range(1, int(t)):
            mask[c * x :] |= before[: len(mask) - c * x]
    return int(mask.sum())


def _bounds(e: Expr, tiles: Ints, columns: Mapping[str, int]) -> tuple[Ints, Ints] | None:
    """Least and greatest value of a quasi-affine index over each tile that starts at 0; None if it is not one."""
    if isinstance(e, Const) and isinstance(e.value, int):
        value = np.full(len(tiles), e.value, np.int64)
        return value, value
    if isinstance(e, Var):
        zero = np.zeros(len(tiles), np.int64)
        return zero, tiles[:, columns[e.name]] - 1 if e.name in columns else zero
    if not isinstance(e, Op) or e.name not in ("add", "sub", "neg", "mul", "floordiv", "mod"):
        return None
    intervals = [_bounds(a, tiles, columns) for a in e.args]
    if any(f is None for f in intervals):
        return None
    (low, high), *others = [f for f in intervals if f is not None]
    if e.name == "neg":
        return -high, -low
    (low2, high2) = others[0]
    if e.name == "add":
        return low + low2, high + high2
    if e.name == "sub":
        return low - high2, high - low2
    if e.name == "mul":
        ends = (low * low2, low * high2, high * low2, high * high2)
        return reduce(np.minimum, ends), reduce(np.maximum, ends)
    if e.name == "floordiv":
        return low // low2, high // low2
    same = low // low2 == high // low2
    return np.where(same, low % low2, 0), np.where(same, high % low2, low2 - 1)


def _elements(access: Reach, tiles: Ints, spans: Sequence[Span]) -> Floats:
    """Distinct elements; the dimensions have `spans`. Those that share no iterator multiply; those that do (diagonals)
    are enumerated."""
    total = np.ones(len(tiles), np.float64)
    for places in _sharing(access):
        product = reduce(np.multiply, (spans[d][0].astype(np.float64) for d in places))
        if len(places) > 1:
            group = [access.dims[d] for d in places]
            used = sorted({k for d in group for k, _ in d.terms or ()})
            rows, where = distinct_rows(tiles[:, used])
            counted = np.array([_count_points(group, used, row) for row in rows])[where]
            product = np.minimum(product, counted)
        total = total * product
    return total


def _sharing(access: Reach) -> list[list[int]]:
    """The dimensions, by their places, in groups that share iterators."""
    groups: list[tuple[set[int], list[int]]] = []
    for place, dim in enumerate(access.dims):
        used = {k for k, _ in dim.terms or ()}
        members = [place]
        for other in [g for g in groups if g[0] & used]:
            groups.remove(other)
            used |= other[0]
            members = [*other[1], *members]
        groups.append((used, members))
    return [members for _, members in groups]


def _count_points(dims: Sequence[Dim], used: Sequence[int], extents: Ints) -> float:
    """Distinct tuples of indices over one tile; its points if they are too many to enumerate."""
    points = prod(map(int, extents))
    if points > _ENUMERATED or any(d.terms is None for d in dims):
        return float(points)
    grid = np.indices([int(t) for t in extents]).reshape(len(used), -1)
    place = {k: n for n, k in enumerate(used)}
    indices = [sum((c * grid[place[k]] for k, c in d.terms or ()), np.zeros(points, np.int64)) for d in dims]
    return float(len(np.unique(np.stack(indices), axis=1).T))


# --- cache lines --------------------------------------------------------------------------------------------------


def _lines(access: Reach, spans: Sequence[Span], p: int, line: float) -> tuple[Floats, Floats, Ints]:
    """(cache lines, runs of consecutive lines, what divides the distances between runs) for lines of `line` elements,
    from the innermost stride outwards.

    Exact where every run starts at a line; else the mean over where it may start, (n - 1) / line + 1."""
    run, copies = np.ones(p), np.ones(p)  # elements from the first to the last of one run, and how many runs
    aligned, step = np.ones(p, np.bool_), np.zeros(p, np.int64)
    pairs = [(d, s) for d, s in zip(access.dims, spans, strict=True) if d.stride]
    for dim, counts in sorted(pairs, key=lambda pair: pair[0].stride):
        count, span = (x.astype(np.float64) for x in counts)
        gap = dim.stride * np.where(count > 1, (span - 1) / np.maximum(count - 1, 1), 1.0)
        joins = (copies == 1) & ((gap - run < line) | (count == 1))
        copies = np.where(joins, copies, copies * count)
        run = np.where(joins, run + gap * (count - 1), run)
        aligned &= joins | (gap % line == 0)
        step = np.gcd(step, np.where(joins, 0, gap).astype(np.int64))
    exact = np.ceil(run / line)
    return copies * np.where(aligned, exact, (run - 1) / line + 1), copies, step


# --- traffic ------------------------------------------------------------------------------------------------------


def traffic(
    inside: Floats | Sequence[Floats],
    trips: Floats | Sequence[Floats],
    held: Floats | Sequence[Floats],
    capacity: float,
    blur: float,
) -> Floats:
    """What crosses into a memory of `capacity` bytes for one access while a nest of loops runs [P]; for several at once
    where each of `inside` is [accesses x P].

    Loop k (0 is the innermost) runs `trips[k]` times over boxes of which the access touches `inside[k]` and all
    accesses together `held[k]` bytes; `inside[k + 1]` is the box of the whole loop. From one iteration of a loop to the
    next as much is streamed as one iteration holds: where that fits, what is used again is still there, and the loop
    brings its own footprint once (halos and operands that it does not move with are reused); where it does not, every
    iteration brings everything again. Around the capacity, `blur` of it to either side, the two are mixed: caches are
    neither fully associative nor all ours.
    """
    moved = inside[0]
    for k, count in enumerate(trips):
        kept = np.clip(((1 + blur) * capacity - held[k]) / (2 * blur * capacity), 0.0, 1.0)
        once, again = np.maximum(inside[k + 1], moved), count * moved
        moved = kept * np.minimum(once, again) + (1 - kept) * again
    return moved


__all__ = ["Dim", "Footprint", "Reach", "distinct", "footprint", "reach", "reaches", "traffic"]
