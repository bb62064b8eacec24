"""Extents that a few samples do not pin down: of a convolution with strides, (s + 1) // 8 and (s + 3) // 8 may be equal
at all of them. The model is imported at sizes at which what is possible differs, until one expression is left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from modelc.compile.any_size import AnySize
from modelc.errors import ModelError
from modelc.ir.explain import Quotient, quotients
from modelc.ir.expr import Size
from modelc.ir.graph import Graph
from modelc.ir.sizes import Sizes, sized

IMPORTS = 16  # at most, for each Size
AROUND = 1 << 11  # sizes so far from the usual one are looked at

Place = tuple[str, int]  # a value and an axis
Series = dict[int, int]  # an extent by the Size that it depends on
Points = tuple[tuple[int, int], ...]  # the same, sorted


def pin_extents(any_size: AnySize, graphs: Sequence[Graph], import_at: Callable[[Sizes], Graph]) -> None:
    """Adds to what is known of numbers at the samples how long values are, as far as that depends on one Size;
    `graphs` are the model at the samples."""
    numbers = any_size.explained.numbers
    for size in any_size.sizes:
        series = _series(any_size, size, graphs)
        before = {place: tuple(g.values[place[0]].shape[place[1]] for g in graphs) for place in series}
        _extend(size, any_size.usual, series, import_at)
        by_key: dict[tuple[int, ...], set[Points]] = {}
        for place, one in series.items():
            by_key.setdefault(before[place], set()).add(tuple(sorted(one.items())))
        for key, several in by_key.items():
            if len(several) == 1 and key not in numbers and (fits := _fits(several.pop())):
                numbers[key] = sized(fits[0].of(size))


def _series(any_size: AnySize, size: Size, graphs: Sequence[Graph]) -> dict[Place, Series]:
    """The extents that depend on a Size alone, at the samples."""
    at = [run[size.name] for run in any_size.samples]
    found = {}
    for name, value in graphs[0].values.items():
        shapes = [graph.values[name].shape if name in graph.values else () for graph in graphs]
        if any(len(shape) != len(value.shape) for shape in shapes):
            continue
        for axis in range(len(value.shape)):
            one: Series = {}
            extents = [shape[axis] for shape in shapes]
            if len(set(extents)) > 1 and all(one.setdefault(s, n) == n for s, n in zip(at, extents, strict=True)):
                found[name, axis] = one
    return found


def _extend(size: Size, usual: Sizes, series: dict[Place, Series], import_at: Callable[[Sizes], Graph]) -> None:
    """Adds extents at further sizes, until one expression is left for each."""
    at = usual[size.name]
    window = np.arange(max(size.least, at - AROUND), min(size.most, at + AROUND) + 1)
    window = np.unique(np.concatenate([window, [size.least, size.most]]))
    refused = np.zeros(len(window), bool)
    for _ in range(IMPORTS):
        told = _told_apart(series.values(), window)
        told[refused] = 0
        if not told.any():
            return
        where = int(told.argmax())
        try:
            graph = import_at({**usual, size.name: int(window[where])})
        except ModelError:
            refused[where] = True
            continue
        for (name, axis), one in [*series.items()]:
            shape = graph.values[name].shape if name in graph.values else ()
            if axis < len(shape):
                one[int(window[where])] = shape[axis]
            else:
                del series[name, axis]


def _told_apart(several: Iterable[Series], window: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each size how many expressions would be left out, of those that are possible for all extents, if it were
    known [window]."""
    told = np.zeros(len(window), np.int64)
    for one in {tuple(sorted(series.items())) for series in several}:
        fits = _fits(one)
        if len(fits) > 1:
            values = np.sort(np.stack([fit.at(window) for fit in fits]), axis=0)
            told += (values[1:] != values[:-1]).sum(axis=0)
    return told


@lru_cache(1 << 10)
def _fits(points: Points) -> list[Quotient]:
    return quotients(dict(points))
