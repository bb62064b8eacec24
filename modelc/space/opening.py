"""Constants that a package makes from what it stores when it is opened: sums of parts of weights, which take several
times the bytes of the parts, and float32 that is whole numbers of a byte each.

A constant that is Sums (rules/rule.py) is stored as its parts, in the layout that its kernel reads the sums in. Both
lie in memory as [outer, sums or parts, inner] then, so that the runtime adds rows of `inner` elements (modelc_made.c).
Narrow ones, whose numbers are whole and small (weights in int8 by column, whose scales follow the product), are stored
as bytes in that layout; they are their own only part where they are no Sums. Others are stored as kernels read them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.block import Buffer, Task
from modelc.ir.candidate import Candidate
from modelc.ir.expr import DTYPES
from modelc.ir.layout import Layout
from modelc.space.rules.derivation import constant_made
from modelc.space.rules.rule import Sums

SUMMED = "float32"  # what the runtime adds up
NARROW = np.iinfo(np.int8)
LEAST_NARROW = 4096  # numbers of a constant that is worth it
LOOKED_AT = 64  # of these before all


@dataclass(frozen=True)
class Opening:
    """How a constant is made when a package is opened: `sums` of parts, which are stored in `layout` over the logical
    shape of `stored`, as bytes if they are `narrow`; in memory each sum and each part is `outer` rows of `inner`
    elements."""

    sums: Sums
    stored: Buffer
    layout: Layout
    outer: int
    inner: int
    narrow: bool = False

    def parts(self) -> NDArray[Any]:
        """What is stored."""
        return self.sums.parts().astype(self.stored.dtype)

    @property
    def rows(self) -> int:
        return len(self.sums.matrix)

    @property
    def columns(self) -> int:
        return int(self.sums.matrix.shape[1])


def opening_of(made: NDArray[Any] | Sums, buffer: Buffer, layout: Layout, narrow: bool) -> Opening | None:
    """How `made` becomes what a kernel reads, in `layout` over the logical shape of `buffer`, of a constant that is
    `narrow` or not; None where it is stored as it is: it is no Sums of float32, no smaller in parts, or its layout
    mixes sums with other dimensions."""
    dtype = "int8" if narrow else buffer.dtype
    if not isinstance(made, Sums):
        if not narrow or buffer.dtype != SUMMED:
            return None
        alone = Sums(np.ones((1, 1)), (), (), SUMMED, SUMMED, lambda: made)
        return Opening(alone, replace(buffer, dtype=dtype), layout, 1, prod(layout.shape(buffer.shape)), narrow)
    if {made.dtype, made.parts_dtype} != {SUMMED} or (len(made.matrix) <= made.matrix.shape[1] and not narrow):
        return None
    around = rows_around(layout, buffer.shape, len(made.points))
    if around is None:
        return None
    stored = replace(buffer, shape=(*made.taps, *buffer.shape[len(made.points) :]), dtype=dtype)
    return Opening(made, stored, layout, *around, narrow)


def is_narrow(data: NDArray[Any]) -> bool:
    """Whether the numbers of a constant are float32, whole and of a byte each, bit for bit."""
    if data.dtype != SUMMED or data.size < LEAST_NARROW:
        return False
    flat = data.reshape(-1)
    return _whole(flat[:: flat.size // LOOKED_AT]) and _whole(flat)


def _whole(numbers: NDArray[Any]) -> bool:
    if not (np.isfinite(numbers).all() and numbers.min() >= NARROW.min and numbers.max() <= NARROW.max):
        return False
    again = numbers.astype(np.int8).astype(SUMMED)
    return np.array_equal(again.view(np.uint32), np.ascontiguousarray(numbers).view(np.uint32))  # no -0


def rows_around(layout: Layout, shape: tuple[int, ...], count: int) -> tuple[int, int] | None:
    """How many elements of a tensor of `shape` are before and within each index of its first `count` dimensions, where
    `layout` keeps these whole, side by side and in order; else None."""
    dims: list[int | None] = [dim if dim < count else None for dim in range(len(shape))]  # of the physical shape
    for primitive in layout.primitives:
        if primitive.name == "reorder":
            dims = [dims[dim] for dim in primitive.args]
            continue
        dim, taken = primitive.args[0], primitive.args[1] if primitive.name == "fuse" else 1
        if any(kept is not None for kept in dims[dim : dim + taken]):
            return None
        more = {"split": len(primitive.args), "unfold": 2}.get(primitive.name, 1)
        dims[dim : dim + taken] = [None] * more
    first = dims.index(0)
    if dims[first : first + count] != [*range(count)]:
        return None
    physical = layout.shape(shape)
    return prod(physical[:first]), prod(physical[first + count :])


def stored_bytes(
    task: Task, candidate: Candidate, derived: Task, name: str, opened: bool, narrow: bool = False
) -> int:
    """What constant `name` of a Task takes in a package for the kernel of a Candidate, which `derived` is after its
    stages: in parts, and in bytes if it is `narrow`, if it is `opened` so."""
    buffer = derived.buffer(name)
    layout = candidate.layouts.get(name, buffer.layout)
    size = prod(layout.shape(buffer.shape)) * DTYPES[buffer.dtype].itemsize
    if not opened or (buffer.shape == task.buffer(name).shape and not narrow):
        return size
    own = task.buffer(name)
    nothing = np.broadcast_to(np.zeros((), DTYPES[own.dtype]), own.shape)  # of which Sums read nothing yet
    opening = opening_of(constant_made(task, candidate.stages, name, nothing), buffer, layout, narrow)
    if opening is None:
        return size
    return opening.outer * opening.columns * opening.inner * DTYPES[opening.stored.dtype].itemsize
