"""Constants in float32 whose numbers fewer bits hold exactly, whatever made them so: halves, and whole numbers of a
byte (or two, with zero points) times one scale, or one for each index of a dimension, or of two."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEAST_BYTES = 1 << 14  # of a constant: of smaller ones nothing is saved
LEAST_SLICE = 32  # numbers that have a scale: of fewer any would do
LARGEST_WHOLE = 255  # bytes less their zero points
LOOKED_AT = 1 << 12  # numbers by which most constants are known not to be narrow
NEIGHBOURS = 4  # floats next to a scale that are tried: products were rounded

Array = NDArray[Any]


@dataclass(frozen=True)
class Narrow:
    """`numbers` times `factors` are the constant, bit for bit. There is a factor for each index of the dimensions
    `axes`, which are in order."""

    numbers: Array
    factors: NDArray[np.float32]
    axes: tuple[int, ...] = ()

    @property
    def factor_of(self) -> NDArray[np.int64]:
        """Which factor each element has, in a shape that is broadcast to that of the numbers."""
        along = [n if dim in self.axes else 1 for dim, n in enumerate(self.numbers.shape)]
        return np.arange(self.factors.size).reshape(along)

    def wide(self) -> NDArray[np.float32]:
        """The constant."""
        return self.numbers.astype(np.float32) * self.factors[self.factor_of]


def narrow_of(constant: Array) -> Narrow | None:
    """The constant in fewer bits; None where no such form holds it exactly, or there is little of it."""
    if constant.dtype != np.float32 or constant.nbytes < LEAST_BYTES or not np.isfinite(constant).all():
        return None
    dims = [dim for dim, n in enumerate(constant.shape) if n > 1]
    for axes in ((), *combinations(dims, 1), *combinations(dims, 2)):
        narrow = _whole_times_factors(constant, axes)
        if narrow is not None:
            return narrow
    with np.errstate(over="ignore"):
        halves = constant.astype(np.float16)
    if np.array_equal(halves.astype(np.float32).view(np.uint32), constant.view(np.uint32)):
        return Narrow(halves, np.ones(1, np.float32))
    return None


def _whole_times_factors(constant: Array, axes: tuple[int, ...]) -> Narrow | None:
    """The constant as whole numbers with a factor for each index of the `axes`; None where it is none of that kind."""
    others = [dim for dim in range(constant.ndim) if dim not in axes]
    ordered = constant.transpose(*axes, *others)
    slices = ordered.reshape(prod(ordered.shape[: len(axes)]), -1)
    if slices.shape[1] < LEAST_SLICE or _step_of(slices[0, :LOOKED_AT]) is None:
        return None
    numbers, factors = np.empty(slices.shape, np.int16), np.empty(len(slices), np.float32)
    for k, row in enumerate(slices):
        step = _step_of(row)
        if step is None:
            return None
        factors[k] = step
        numbers[k] = np.rint(row / step)
    if np.signbit(slices[slices == 0]).any():  # whole numbers have no zero with a sign
        return None
    low, high = numbers.min(), numbers.max()
    dtypes = (np.iinfo(dtype) for dtype in (np.int8, np.uint8, np.int16))
    narrowest = next(info.dtype for info in dtypes if info.min <= low and high <= info.max)
    in_order = numbers.astype(narrowest).reshape(ordered.shape).transpose(np.argsort([*axes, *others]))
    return Narrow(in_order, factors, axes)


def _step_of(row: Array) -> Any:
    """What all numbers of a row are whole multiples of, at most LARGEST_WHOLE times, as np.float32; None where there is
    no such."""
    sizes = np.unique(np.abs(row))
    sizes = sizes[sizes > 0]
    if not sizes.size:
        return np.float32(1)
    if sizes.size > LARGEST_WHOLE:
        return None
    least_gap = min(float(np.diff(sizes).min(initial=np.inf)), float(sizes[0]))
    most = np.rint(sizes[-1] / least_gap)
    if most > LARGEST_WHOLE:
        return None
    for step in _near(np.float32(sizes[-1] / most)):
        if np.array_equal(np.rint(row / step).astype(np.float32) * step, row):
            return step
    return None


def _near(number: Any) -> Iterator[Any]:
    """The number, and the floats next to it."""
    yield number
    for direction in (np.float32(np.inf), np.float32(0)):
        near = number
        for _ in range(NEIGHBOURS):
            near = np.nextafter(near, direction)
            yield near
