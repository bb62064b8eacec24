"""Sets of integer points that index expressions reach, compared exactly.

The elements that a Leaf writes, the points of a Block that its bindings reach: each is the image of a grid of loops
under index expressions. Loops that no expression and no condition links are independent, so the image is a product of
small factors: intervals in closed form where a sum of multiples is dense, else enumerated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as Names
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from modelc.ir.affine import linear
from modelc.ir.evaluate import evaluate
from modelc.ir.expr import Expr, Var, conjunction, variables
from modelc.ir.interpret import DENSE
from modelc.ir.remembering import Remembering

LIMIT = 1 << 21  # points that are enumerated at most
Rows = NDArray[np.int64]


class TooLarge(Exception):
    """The points are too many to enumerate: nothing is said about them."""


@dataclass(frozen=True)
class Factor:
    """The distinct values of some of the expressions (by position): an interval of one, or rows of several."""

    columns: tuple[int, ...]
    values: range | Rows

    def rows(self) -> Rows:
        if isinstance(self.values, range):
            return _listed(self.values).reshape(-1, 1)
        return self.values

    def limits(self, column: int) -> tuple[int, int]:
        """Least and greatest value of one column."""
        if isinstance(self.values, range):
            return self.values[0], self.values[-1]
        values = self.values[:, self.columns.index(column)]
        return int(values.min()), int(values.max())


@dataclass(frozen=True)
class Image(Remembering):
    """The values that several expressions take together: the product of independent factors."""

    factors: tuple[Factor, ...]
    injective: bool  # no two points of the grid have the same image
    empty: bool

    @cached_property
    def limits(self) -> Mapping[int, tuple[int, int]]:
        """Least and greatest value of each column."""
        return {column: f.limits(column) for f in self.factors for column in f.columns}

    @cached_property
    def first(self) -> Mapping[int, Factor]:
        """Factors by their first columns."""
        return {f.columns[0]: f for f in self.factors}


def image(exprs: Sequence[Expr], ranges: Mapping[str, int], conditions: Iterable[Expr] = ()) -> Image:
    """The image of the grid `ranges`, where all `conditions` hold. Neither may contain Loads. Raises TooLarge."""
    live = {name for name, n in ranges.items() if n > 1}
    conditions = tuple(conditions)
    groups = _linked([variables(e) & live for e in (*exprs, *conditions)])
    factors = []
    empty = any(n == 0 for n in ranges.values())
    injective = live <= {name for e in (*exprs, *conditions) for name in variables(e)}
    for names, members in groups:
        columns = tuple(k for k in members if k < len(exprs))
        guards = tuple(conditions[k - len(exprs)] for k in members if k >= len(exprs))
        held = [exprs[k] for k in columns]
        names = names.union(*map(variables, (*held, *guards)))  # with iterators of one value
        values, distinct = _values(held, {name: n for name, n in ranges.items() if name in names}, guards)
        injective &= distinct
        empty |= len(values) == 0
        if columns:
            factors.append(Factor(columns, values))
    if empty:
        none = np.zeros((0, 1), np.int64)
        factors = [Factor((k,), none) for k in range(len(exprs))]
    return Image(tuple(factors), injective or empty, empty)


def _linked(sets: Sequence[Names[str]]) -> list[tuple[set[str], list[int]]]:
    """The sets' positions grouped so that no two groups share an element; an empty set is a group of its own."""
    groups: dict[int, tuple[set[str], list[int]]] = {}  # by the last set that joined
    home: dict[str, int] = {}  # of each element
    for k, names in enumerate(sets):
        merged, members = set(names), [k]
        for old in {home[name] for name in names if name in home}:
            more, others = groups.pop(old)
            merged |= more
            members += others
        groups[k] = merged, sorted(members)
        home.update(dict.fromkeys(merged, k))
    return list(groups.values())


def _values(exprs: Sequence[Expr], grid: Mapping[str, int], guards: tuple[Expr, ...]) -> tuple[range | Rows, bool]:
    """The distinct rows of values, and whether no two points share one."""
    if len(exprs) == 1 and not guards:
        if isinstance(exprs[0], Var) and len(grid) == 1:
            return range(grid[exprs[0].name]), True
        dense = _dense(exprs[0], grid)
        if dense is not None:
            return dense
    if prod(grid.values()) > LIMIT:
        raise TooLarge
    sizes = tuple(grid.values())
    env = {
        name: np.arange(n, dtype=np.int64).reshape([-1 if d == k else 1 for d in range(len(sizes))])
        for k, (name, n) in enumerate(grid.items())
    }
    columns = [np.broadcast_to(evaluate(e, env, {}), sizes).ravel() for e in exprs]
    rows = np.stack(columns, axis=1) if columns else np.zeros((prod(sizes), 0), np.int64)
    if guards:
        rows = rows[np.broadcast_to(evaluate(conjunction(guards), env, {}), sizes).ravel()]
    if not len(rows):
        return rows, True
    lows = rows.min(axis=0, initial=0)
    spans = [int(s) for s in rows.max(axis=0, initial=0) - lows + 1]
    distinct = _distinct(_encoded(rows, [int(n) for n in lows], spans), prod(spans))
    return rows[distinct], len(distinct) == len(rows)


def _distinct(code: Rows, span: int) -> Rows:
    """A place of each number in `code`, all of them below `span`, in the order of the numbers."""
    if span > DENSE * len(code):
        return np.unique(code, return_index=True)[1]
    places = np.full(span, -1, np.int64)
    places[code] = np.arange(len(code))
    return places[places >= 0]


def _dense(e: Expr, grid: Mapping[str, int]) -> tuple[range, bool] | None:
    """The interval of a sum of multiples that leaves no gap: each multiple is at most what the smaller ones span."""
    form = linear(e)
    if form is None or not all(isinstance(a, Var) for a, _ in form.terms):
        return None
    steps = [(c, grid[a.name]) for a, c in form.terms if isinstance(a, Var) and grid[a.name] != 1]
    span, distinct = 1, len(steps) == sum(n > 1 for n in grid.values())
    for c, n in sorted(steps, key=lambda step: abs(step[0])):
        if n == 0:
            return range(0), True
        if abs(c) > span:
            return None
        distinct &= abs(c) == span
        span += abs(c) * (n - 1)
    low = form.constant + sum(c * (n - 1) for c, n in steps if c < 0)
    return range(low, low + span), distinct


def _encoded(rows: Rows, lows: Sequence[int], spans: Sequence[int]) -> Rows:
    """Each row as one number."""
    if prod(spans) >= 2**62:
        raise TooLarge
    code = np.zeros(len(rows), np.int64)
    for column, low, span in zip(rows.T, lows, spans, strict=True):
        code = code * span + (column - low)
    return code


# --- boxes: images over common cells ------------------------------------------------------------------------------

Set = range | Rows  # an interval, or sorted numbers
Box = tuple[Set, ...]  # the product of one set per cell


@dataclass(frozen=True)
class Frame:
    """Which columns go together in a cell, and how a cell of several columns is encoded."""

    cells: tuple[tuple[int, ...], ...]
    lows: tuple[int, ...]
    spans: tuple[int, ...]

    def point(self, box: Box) -> tuple[int, ...]:
        """One point of a box, by columns."""
        coordinates: dict[int, int] = {}
        for cell, values in zip(self.cells, box, strict=True):
            code = int(values[0])
            for column in reversed(cell):
                if len(cell) == 1:
                    coordinates[column] = code
                else:
                    coordinates[column] = self.lows[column] + code % self.spans[column]
                    code //= self.spans[column]
        return tuple(coordinates[k] for k in sorted(coordinates))


def boxes(images: Sequence[Image], columns: int) -> tuple[Frame, list[Box]]:
    """The images as boxes of one Frame, so that they can be compared. Raises TooLarge."""
    links = [{str(c) for c in f.columns} for i in images for f in i.factors]
    cells = tuple(tuple(sorted(map(int, names))) for names, _ in _linked(links)) or ()
    full = [i for i in images if not i.empty]
    limits = [[i.limits[k] for i in full] or [(0, 0)] for k in range(columns)]
    lows = tuple(min(low for low, _ in column) for column in limits)
    spans = tuple(max(high for _, high in column) - low + 1 for column, low in zip(limits, lows, strict=True))
    frame = Frame(cells, lows, spans)
    return frame, [tuple(_cell(i, cell, frame) for cell in cells) for i in images]


def _cell(i: Image, cell: tuple[int, ...], frame: Frame) -> Set:
    if i.empty:
        return range(0)
    if len(cell) == 1:
        values = i.first[cell[0]].values
        return values if isinstance(values, range) else np.sort(values[:, 0])
    parts = [i.first[column] for column in cell if column in i.first]
    if prod(len(f.values) for f in parts) > LIMIT:
        raise TooLarge
    rows: Rows = np.zeros((1, 0), np.int64)
    columns: list[int] = []
    for f in parts:
        own = f.rows()
        rows = np.concatenate([np.repeat(rows, len(own), axis=0), np.tile(own, (len(rows), 1))], axis=1)
        columns += f.columns
    ordered = np.stack([rows[:, columns.index(c)] for c in cell], axis=1)
    return np.sort(_encoded(ordered, [frame.lows[c] for c in cell], [frame.spans[c] for c in cell]))


def disjoint(a: Box, b: Box) -> bool:
    return any(len(_common(x, y)) == 0 for x, y in zip(a, b, strict=True))


def common(a: Box, b: Box) -> Box:
    return tuple(_common(x, y) for x, y in zip(a, b, strict=True))


def without(a: Box, b: Box) -> list[Box]:
    """What is in `a` and not in `b`, as disjoint boxes."""
    inside = common(a, b)
    if not all(len(x) for x in inside):
        return [a] if all(len(x) for x in a) else []
    result: list[Box] = []
    for k, (x, y) in enumerate(zip(a, b, strict=True)):
        if len(inside[k]) < len(x):
            result += [(*inside[:k], piece, *a[k + 1 :]) for piece in _difference(x, y) if len(piece)]
    return result


def remainder(a: Box, others: Iterable[Box]) -> list[Box]:
    """What of `a` none of `others` holds."""
    left = [a] if all(len(x) for x in a) else []
    for other in others:
        left = [piece for box in left for piece in without(box, other)]
    return left


def _common(x: Set, y: Set) -> Set:
    if isinstance(x, range):
        if isinstance(y, range):
            low = max(x.start, y.start)
            return range(low, max(low, min(x.stop, y.stop)))
        return _common(y, x)
    if isinstance(y, range):
        return x[(x >= y.start) & (x < y.stop)]
    return np.intersect1d(x, y, assume_unique=True)


def _difference(x: Set, y: Set) -> list[Set]:
    if isinstance(y, range):
        if isinstance(x, range):
            return [range(x.start, min(x.stop, y.start)), range(max(x.start, y.stop), x.stop)]
        return [x[(x < y.start) | (x >= y.stop)]]
    return [np.setdiff1d(_listed(x) if isinstance(x, range) else x, y, assume_unique=True)]


def _listed(x: range) -> Rows:
    if len(x) > LIMIT:
        raise TooLarge
    return np.arange(x.start, x.stop, dtype=np.int64)
