"""What kernels wrote to the values of a Program, beside its arena: what is read has to be that.

A value is a root or a Region of one (modelc/ir/program.py): a concatenation is read under its root's name, and written
under those of its parts. So the memory is kept by roots, and knows which elements of each were written:

    write(part)    strides into the root's numbers, and marks them
    holds(whole)   compares where numbers are marked
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from modelc.ir.expr import DTYPES
from modelc.ir.program import Placed
from modelc.package.watch import Data

Array = NDArray[Any]


class ExpectedMemory:
    """The numbers of the roots of `values`, as far as they were written in this call of the Program."""

    def __init__(self, values: Mapping[str, Placed]) -> None:
        self._values = values
        self._call = 0
        self._roots: dict[str, tuple[Array, Array | None]] = {}  # numbers as bits; which are known, None: all

    def at_call(self, number: int) -> None:
        """Of another iteration nothing is known."""
        if number != self._call:
            self._call = number
            self._roots.clear()

    def write(self, name: str, data: Data) -> None:
        """`data` is what lies from the value's first element to its last."""
        place = self._values[name]
        numbers = np.frombuffer(data, _bits(place))
        numbers.flags.writeable = False  # others have it too
        if place.strides is None and not place.is_view:
            self._roots[place.root] = numbers, None
            return
        whole, written = self._owned(place)
        _strided(place, whole[place.offset :])[...] = _strided(place, numbers)
        if written is not None:
            _strided(place, written[place.offset :])[...] = True

    def holds(self, name: str, data: Data) -> bool:
        """Whether `data`, from the value's first element to its last, is what was written there, as far as known."""
        place = self._values[name]
        if place.root not in self._roots:
            return True
        whole, written = self._roots[place.root]
        before, now = (_strided(place, x) for x in (whole[place.offset :], np.frombuffer(data, _bits(place))))
        if written is None:
            return np.array_equal(before, now)
        return bool((~_strided(place, written[place.offset :]) | (before == now)).all())

    def shared(self, name: str, data: Data) -> Data:
        """`data`, which is held, or what was written there where that lies by itself: one copy for all who read it."""
        place = self._values[name]
        whole, _ = self._roots.get(place.root, (None, None))
        if whole is None or whole.flags.writeable or place.is_view or place.strides is not None:
            return data
        return whole.data.cast("B") if whole.nbytes == len(data) else data

    def begins_with(self, name: str, part: Array) -> bool:
        """Whether `part` is what was written at the beginning of each of the value's dimensions, as far as known."""
        place = self._values[name]
        if place.root not in self._roots:
            return True
        whole, written = self._roots[place.root]
        corner = tuple(map(slice, part.shape))
        now = np.ascontiguousarray(part).view(_bits(place))
        before = _strided(place, whole[place.offset :]).reshape(place.physical_shape)[corner]
        if written is None:
            return np.array_equal(before, now)
        known = _strided(place, written[place.offset :]).reshape(place.physical_shape)[corner]
        return bool((~known | (before == now)).all())

    def forget(self, roots: Iterable[str]) -> None:
        """Nobody reads these any more."""
        for root in roots:
            self._roots.pop(root, None)

    def _owned(self, place: Placed) -> tuple[Array, Array | None]:
        """The root's numbers, to be written to."""
        if place.root not in self._roots:
            size = self._values[place.root].elements
            self._roots[place.root] = np.zeros(size, _bits(place)), np.zeros(size, bool)
        whole, written = self._roots[place.root]
        if not whole.flags.writeable:
            whole = whole.copy()
            self._roots[place.root] = whole, written
        return whole, written


def _bits(place: Placed) -> np.dtype[Any]:
    return np.dtype(f"u{DTYPES[place.dtype].itemsize}")


def _strided(place: Placed, numbers: Array) -> Array:
    """The value's elements as they are stored, in memory that begins with the first."""
    if place.strides is None:
        return numbers[: place.elements]
    return as_strided(numbers, place.physical_shape, [step * numbers.itemsize for step in place.physical_strides])
