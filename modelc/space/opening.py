"""Constants that a package makes from what it stores when it is opened: sums of parts of weights, which take several
times the bytes of the parts, and numbers in float32 that fewer bits hold exactly (ir/narrow.py).

A constant that is Sums (rules/rule.py) is stored as its parts, in the layout that its kernel reads the sums in. Both
lie in memory as [outer, sums or parts, inner] then, so that the runtime adds rows of `inner` elements (modelc_made.c).
Others are stored as kernels read them.
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
from modelc.ir.narrow import Narrow
from modelc.ir.pack import pack_constant
from modelc.space.rules.derivation import constant_made
from modelc.space.rules.rule import Sums

SUMMED = "float32"  # what the runtime adds up


@dataclass(frozen=True)
class Opening:
    """How a constant is made when a package is opened: `sums` of parts, which are stored in `layout` over the logical
    shape of `stored`; in memory each sum and each part is `outer` rows of `inner` elements."""

    sums: Sums
    stored: Buffer
    layout: Layout
    outer: int
    inner: int

    @property
    def rows(self) -> int:
        return len(self.sums.matrix)

    @property
    def columns(self) -> int:
        return int(self.sums.matrix.shape[1])


def opening_of(made: NDArray[Any] | Sums, buffer: Buffer, layout: Layout) -> Opening | None:
    """How `made` becomes what a kernel reads, in `layout` over the logical shape of `buffer`; None where it is stored
    as it is: it is no Sums of float32, no smaller in parts, or its layout mixes sums with other dimensions."""
    if not isinstance(made, Sums) or {made.dtype, made.parts_dtype} != {SUMMED}:
        return None
    if len(made.matrix) <= made.matrix.shape[1]:
        return None
    around = rows_around(layout, buffer.shape, len(made.points))
    if around is None:
        return None
    stored = replace(buffer, shape=(*made.taps, *buffer.shape[len(made.points) :]))
    return Opening(made, stored, layout, *around)


@dataclass(frozen=True)
class Widening:
    """How a constant is made when a package is opened: `numbers` in the layout that a kernel reads times `factors`;
    that of an element is where `strides` over the array of `extents` say."""

    numbers: NDArray[Any]
    factors: NDArray[np.float32]
    extents: tuple[int, ...]
    strides: tuple[int, ...]


def widening_of(narrow: Narrow, buffer: Buffer, layout: Layout) -> Widening | None:
    """How a constant that is `narrow` becomes what a kernel reads, in `layout` over the logical shape of `buffer`; None
    where its factors lie otherwise than in strides then."""
    shape, numbers = buffer.shape, pack_constant(narrow.numbers, buffer, layout)
    if not narrow.axes:
        return Widening(numbers, narrow.factors, (numbers.size,), (0,))
    factor_of = pack_constant(np.broadcast_to(narrow.factor_of, shape), buffer, layout)
    is_there = pack_constant(np.broadcast_to(np.True_, shape), buffer, layout)  # and no padding
    extents = factor_of.shape
    steps = np.eye(len(extents), dtype=int) * np.minimum(1, np.array(extents) - 1)  # by one along each dimension
    strides = tuple(int(factor_of[tuple(step)]) for step in steps)
    indices = np.ogrid[tuple(map(slice, extents))]
    strided = sum(index * by for index, by in zip(indices, strides, strict=True))
    if not np.array_equal(np.where(is_there, strided, 0), factor_of):
        return None
    factors = np.zeros(int(np.max(strided)) + 1, np.float32)
    factors[: narrow.factors.size] = narrow.factors
    return Widening(numbers, factors, extents, strides)


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


def stored_bytes(task: Task, candidate: Candidate, derived: Task, name: str, opened: bool) -> int:
    """What constant `name` of a Task takes in a package for the kernel of a Candidate, which `derived` is after its
    stages: in parts, if it is `opened` so."""
    buffer = derived.buffer(name)
    layout = candidate.layouts.get(name, buffer.layout)
    size = prod(layout.shape(buffer.shape)) * DTYPES[buffer.dtype].itemsize
    if not opened or buffer.shape == task.buffer(name).shape:
        return size
    own = task.buffer(name)
    nothing = np.broadcast_to(np.zeros((), DTYPES[own.dtype]), own.shape)  # of which Sums read nothing yet
    opening = opening_of(constant_made(task, candidate.stages, name, nothing), buffer, layout)
    return size if opening is None else size // opening.rows * opening.columns
