"""Elements of buffers that were computed, and the points of a Block that they are computed at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.block import Block
from modelc.ir.expr import DTYPES
from modelc.ir.interpret import DENSE
from modelc.verify.kernels.inverse import Index
from modelc.verify.kernels.rounding import Rounded, exact, extreme

Array = NDArray[Any]
FEW_PLACES = 1 << 12  # that are sooner sorted
GRID = 1 << 20  # points that are evaluated at once


@dataclass
class Memory:
    """Elements of one buffer that were computed, by their places in it, in order."""

    places: Array
    elements: Rounded

    @classmethod
    def of(cls, dtype: str) -> Memory:
        return cls(np.zeros(0, np.int64), exact(np.zeros(0, DTYPES[dtype]), dtype))

    def at(self, places: Array) -> tuple[Array, NDArray[np.bool_]]:
        """Where each of `places` is in the memory, and which are."""
        if not self.places.size:
            return np.zeros(places.shape, np.int64), np.zeros(places.shape, bool)
        at = np.minimum(np.searchsorted(self.places, places), self.places.size - 1)
        return at, np.asarray(self.places[at] == places)

    def missing(self, places: Array) -> Array:
        """The distinct ones of `places` that are not there, in order."""
        return distinct(places[~self.at(places)[1]])

    def put(self, places: Array, made: Rounded) -> None:
        """`places` are distinct, in order, and not there."""
        every_place, elements = np.concatenate([self.places, places]), joined([self.elements, made], made.dtype)
        order = np.argsort(every_place, kind="stable")
        self.places, self.elements = every_place[order], taken(elements, order)


def best(terms: Sequence[Rounded], number: int, greatest: bool) -> Rounded:
    """The best of (value, place) pairs; of equal ones the lower place. The place is not certain where another value is
    as near as rounding."""
    values, places = terms
    best = extreme(values, 1, greatest)
    if number == 0:
        return best
    at = best.value[:, None]
    place = np.where(values.value == at, places.value, np.iinfo(np.int64).max).min(axis=1)
    if values.exact:
        return Rounded(place.astype(places.value.dtype), places.dtype)
    near = np.abs(values.value - at) <= values.bound + np.broadcast_to(best.bound, best.value.shape)[:, None]
    open_ = near.sum(axis=1) > 1
    return Rounded(place.astype(places.value.dtype), places.dtype, None, np.where(open_, np.inf, 0.0))


def broadcast(x: Rounded, shape: tuple[int, ...]) -> tuple[Array, str, Array | None, Array | None]:
    """The value, dtype, sigma and bias of numbers in another shape."""
    sigma, bias = (None if part is None else np.broadcast_to(part, shape) for part in (x.sigma, x.bias))
    return np.broadcast_to(x.value, shape), x.dtype, sigma, bias


def taken(x: Rounded, at: Array) -> Rounded:
    """Some of the numbers."""
    return Rounded(x.value[at], x.dtype, *(None if part is None else part[at] for part in (x.sigma, x.bias)))


def joined(parts: Sequence[Rounded], dtype: str) -> Rounded:
    """The numbers of all parts, one after another."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return exact(np.zeros(0, DTYPES[dtype]), dtype)
    errors = []
    for errors_of_parts in ([p.sigma for p in parts], [p.bias for p in parts]):
        filled = [np.zeros(p.value.shape) if x is None else x for p, x in zip(parts, errors_of_parts, strict=True)]
        errors.append(None if all(x is None for x in errors_of_parts) else np.concatenate(filled))
    return Rounded(np.concatenate([p.value for p in parts]), parts[0].dtype, *errors)


def distinct(places: Array) -> Array:
    """The distinct ones of places, in order: by a table where they lie near each other, else sorted. (np.unique()
    hashes whole numbers, which takes longer.)"""
    if places.size > FEW_PLACES:
        low, high = int(places.min()), int(places.max())
        if high - low < DENSE * places.size:
            there = np.zeros(high - low + 1, bool)
            there[places - low] = True
            return np.flatnonzero(there) + low
    places = np.sort(places)
    first = np.ones(places.size, bool)
    first[1:] = places[1:] != places[:-1]
    return np.asarray(places[first])


def unravelled(flat: Array, shape: tuple[int, ...]) -> Index:
    return np.unravel_index(flat, shape) if shape else ()


def reduction_of(block: Block) -> tuple[dict[str, Array], int]:
    """The values of the reduction's iterators, each 1 x K, and K."""
    extents = [i.extent for i in block.reduction]
    flat = [axis.reshape(1, -1) for axis in np.indices(extents)] if extents else []
    return dict(zip((i.name for i in block.reduction), flat, strict=True)), prod(extents)


def with_reduction(
    points: Mapping[str, Array], reduced: Mapping[str, Array], count: int, depth: int
) -> Iterator[tuple[dict[str, Array], int]]:
    """Some of the points at a time with all of the reduction: the iterators' values, and how many points."""
    rows = max(1, GRID // max(depth, 1))
    for k in range(0, count, rows):
        part = {name: values[k : k + rows, None] for name, values in points.items()}
        yield {**part, **reduced}, min(rows, count - k)
