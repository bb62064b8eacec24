"""Drawing inputs that a model makes sense of: token ids that a table has, masks of ones, images that are smooth-ish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.package import TensorInfo

IMAGE_CHANNELS = (1, 3, 4)
COARSE = 8  # an image is noise at 1/8 of its size, enlarged, and a little noise on it


def draw_inputs(
    tensors: Sequence[TensorInfo], rows: Mapping[str, int], seed: int, sample: int = 0
) -> dict[str, NDArray[Any]]:
    """One array for each input. `rows`: how many rows the table has that an input of whole numbers indexes."""
    rng = np.random.default_rng((seed, sample))
    return {tensor.name: _draw(tensor, rows.get(tensor.name), rng) for tensor in tensors}


def _draw(tensor: TensorInfo, rows: int | None, rng: np.random.Generator) -> NDArray[Any]:
    shape, dtype = tensor.shape, tensor.dtype
    if dtype == "bfloat16":  # its bits
        return (_floats(tensor, rng).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    kind = np.dtype(dtype)
    if rows is not None:
        return rng.integers(0, max(1, rows), shape).astype(kind)
    if "mask" in tensor.name.lower():
        return np.ones(shape, kind)
    if kind.kind == "f":
        return _floats(tensor, rng).astype(kind)
    if kind.kind == "b":
        return rng.integers(0, 2, shape).astype(kind)
    if kind.itemsize == 1:  # quantised data or pixels
        limits = np.iinfo(kind)
        return rng.integers(limits.min, limits.max + 1, shape).astype(kind)
    return rng.integers(0, 2, shape).astype(kind)


def _floats(tensor: TensorInfo, rng: np.random.Generator) -> NDArray[Any]:
    shape = tensor.shape
    if len(shape) != 4 or min(shape[2:]) < COARSE or not {shape[1], shape[3]} & {*IMAGE_CHANNELS}:
        return rng.standard_normal(shape)
    axes = (2, 3) if shape[1] in IMAGE_CHANNELS else (1, 2)
    coarse = rng.standard_normal([-(-n // COARSE) if axis in axes else n for axis, n in enumerate(shape)])
    for axis in axes:
        coarse = _stretched(coarse, axis, shape[axis])
    return coarse + 0.2 * rng.standard_normal(shape)


def _stretched(x: NDArray[Any], axis: int, length: int) -> NDArray[Any]:
    """Linear interpolation to `length` along one axis."""
    at = np.linspace(0, x.shape[axis] - 1, length)
    low = np.minimum(at.astype(int), x.shape[axis] - 1)
    high = np.minimum(low + 1, x.shape[axis] - 1)
    share = (at - low).reshape([-1 if a == axis else 1 for a in range(x.ndim)])
    stretched: NDArray[Any] = np.take(x, low, axis) * (1 - share) + np.take(x, high, axis) * share
    return stretched
