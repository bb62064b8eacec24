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

Shapes = dict[str, tuple[int, ...]]  # of values, by their names
Place = tuple[str, int]  # a value and an axis
Series = dict[int, int]  # an extent by the Size that it depends on
Points = tuple[tuple[int, int], ...]  # the same, sorted


def pin_extents(any_size: AnySize, graphs: Sequence[Graph], import_at: Callable[[Sizes], Graph]) -> tuple[int, ...]:
    """How long values are, as far as that depends on one Size; `graphs` are the model at the samples."""
    pinned, shapes = list[int](), [*map(_shapes, graphs)]
    for size in any_size.sizes:
        series = _series(any_size, size, shapes)
        before = {place: tuple(of_one[place[0]][place[1]] for of_one in shapes) for place in series}
        _extend(size, any_size.usual, series, lambda run: _shapes(import_at(run)))
        by_key: dict[tuple[int, ...], set[Points]] = {}
        for place, one in series.items():
            by_key.setdefault(before[place], set()).add(tuple(sorted(one.items())))
        for several in by_key.values():
            if len(several) == 1 and (fits := _fits(several.pop())):
                pinned.append(sized(fits[0].of(size)))
    return tuple(pinned)


def _shapes(graph: Graph) -> Shapes:
    """The shapes of a graph's values, those in bodies among them."""
    return {name: value.shape for name, value in graph.every_value.items()}


def _series(any_size: AnySize, size: Size, samples: Sequence[Shapes]) -> dict[Place, Series]:
    """The extents that depend on a Size alone, at the samples."""
    at = [run[size.name] for run in any_size.samples]
    found = {}
    for name, first in samples[0].items():
        shapes = [of_one.get(name, ()) for of_one in samples]
        if any(len(shape) != len(first) for shape in shapes):
            continue
        for axis in range(len(first)):
            one: Series = {}
            extents = [shape[axis] for shape in shapes]
            if len(set(extents)) > 1 and all(one.setdefault(s, n) == n for s, n in zip(at, extents, strict=True)):
                found[name, axis] = one
    return found


def _extend(size: Size, usual: Sizes, series: dict[Place, Series], shapes_at: Callable[[Sizes], Shapes]) -> None:
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
            shapes = shapes_at({**usual, size.name: int(window[where])})
        except ModelError:
            refused[where] = True
            continue
        for (name, axis), one in [*series.items()]:
            shape = shapes.get(name, ())
            if axis < len(shape):
                one[int(window[where])] = shape[axis]
            else:
                del series[name, axis]


def _told_apart(several: Iterable[Series], window: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each size how many of the expressions that are possible for all extents say something else there than the
    middle one: so many, or those that do not, are left out once it is known [window]."""
    told = np.zeros(len(window), np.int64)
    for one in {tuple(sorted(series.items())) for series in several}:
        fits = _fits(one)
        if len(fits) > 1:
            values = np.sort(np.stack([fit.at(window) for fit in fits]), axis=0)
            told += (values != values[len(fits) // 2]).sum(axis=0)
    return told


@lru_cache(1 << 10)
def _fits(points: Points) -> list[Quotient]:
    return quotients(dict(points))
