"""From elements that a Block writes to the points of its iteration space that write them."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.affine import Linear, linear
from modelc.ir.block import Block
from modelc.ir.evaluate import evaluate
from modelc.ir.expr import Load, Var, loads

Array = NDArray[Any]
Index = tuple[Array, ...]
ENUMERATED = 1 << 22  # points of a Block of which it is looked up what each writes


class CannotSay(Exception):
    """The elements cannot be evaluated, for the reason given."""


class TakesTooLong(CannotSay):
    """The elements need more points than they may."""


class Inverse:
    """From elements that a Block writes to the points of its spatial iterators. Each index is an iterator (times a
    step, further by an offset), or the digits of several; else every point is looked up."""

    def __init__(self, block: Block, write: Load) -> None:
        self._write, self._spatial = write, block.spatial
        self._ranges = {i.name: i.extent for i in block.spatial}
        forms = [linear(index) for index in write.indices]
        self._forms = [form for form in forms if form is not None and form.plain]
        names = [atom.name for form in self._forms for atom, _ in form.terms if isinstance(atom, Var)]
        self._table: Array | None = None
        apart = len(self._forms) == len(forms) and len(set(names)) == len(names)
        self._direct = apart and all(map(self._are_digits, self._forms))

    def _are_digits(self, form: Linear) -> bool:
        """Whether each step is larger than what all smaller ones come to."""
        reach = 0
        for name, step in _steps(form)[::-1]:
            if step <= reach:
                return False
            reach += step * (self._ranges[name] - 1)
        return True

    def points(self, index: Index, count: int) -> tuple[NDArray[np.bool_], dict[str, Array]]:
        """Which of `count` elements are written, and the iterators' values there."""
        return self._decoded(index, count) if self._direct else self._looked_up(index, count)

    def _decoded(self, index: Index, count: int) -> tuple[NDArray[np.bool_], dict[str, Array]]:
        written, points = np.ones(count, bool), {}
        for form, at in zip(self._forms, index, strict=True):
            left = at - form.constant
            for name, step in _steps(form):
                digit = np.minimum(np.maximum(left // step, 0), self._ranges[name] - 1)
                points[name] = digit
                left = left - digit * step
            written &= left == 0
        for it in self._spatial:
            if it.name not in points:
                points[it.name] = np.full(count, it.extent - 1)  # the last one stays
        return written, points

    def _looked_up(self, index: Index, count: int) -> tuple[NDArray[np.bool_], dict[str, Array]]:
        extents = [i.extent for i in self._spatial]
        if prod(extents) > ENUMERATED:
            raise CannotSay(f"{self._write} has too many points to be looked up")
        if any(loads(i) for i in self._write.indices):
            raise CannotSay(f"{self._write} is written where data says")
        if self._table is None:
            grid = dict(zip((i.name for i in self._spatial), np.indices(extents), strict=True))
            places = [np.broadcast_to(evaluate(i, grid, {}), extents).reshape(-1) for i in self._write.indices]
            self._table = np.stack(places, axis=1) if places else np.zeros((prod(extents), 0), np.int64)
        sizes = [
            max(int(column.max(initial=0)), int(at.max(initial=0))) + 1
            for column, at in zip(self._table.T, index, strict=True)
        ]
        keys = np.ravel_multi_index(tuple(self._table.T), sizes)
        order = np.argsort(keys, kind="stable")
        asked = np.ravel_multi_index(index, sizes)
        place = np.searchsorted(keys[order], asked, side="right") - 1
        point = order[np.maximum(place, 0)]
        written = (place >= 0) & (keys[point] == asked)
        values = np.unravel_index(point, extents) if extents else ()
        return written, dict(zip((i.name for i in self._spatial), values, strict=True))


def _steps(form: Linear) -> list[tuple[str, int]]:
    """The iterators and their steps, the largest first."""
    steps = [(atom.name, step) for atom, step in form.terms if isinstance(atom, Var)]
    return sorted(steps, key=lambda item: -item[1])
