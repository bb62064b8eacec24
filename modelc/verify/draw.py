"""Drawing inputs that a model makes sense of: token ids that a table has, masks of ones, images that are smooth-ish."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.frontend.uses import Span
from modelc.ir.expr import DTYPES, NARROW, NARROW_FLOATS
from modelc.package import TensorInfo

IMAGE_CHANNELS = (1, 3, 4)
MOST_PLACES = 1 << 24  # among which targets are drawn without a repetition
COARSE = 8  # an image is noise at 1/8 of its size, enlarged, and a little noise on it


def draw_inputs(
    tensors: Sequence[TensorInfo],
    spans: Mapping[str, Sequence[Span]],
    seed: int,
    sample: int = 0,
    positive: Container[str] = (),
) -> dict[str, NDArray[Any]]:
    """One array for each input. `spans`: where the numbers of inputs that become indices have to lie; `positive`: real
    inputs that are not negative. Flags, bools of one element, are set by turns: two samples see each of them both ways.
    """
    rng = np.random.default_rng((seed, sample))
    found = {tensor.name: _draw(tensor, spans.get(tensor.name, ()), rng) for tensor in tensors}
    found |= {name: np.abs(x) for name, x in found.items() if name in positive and x.dtype.kind == "f"}
    flags = [tensor for tensor in tensors if tensor.dtype == "bool" and prod(tensor.shape) == 1]
    return found | {flag.name: np.full(flag.shape, (sample + k) % 2 == 0) for k, flag in enumerate(flags)}


def _draw(tensor: TensorInfo, spans: Sequence[Span], rng: np.random.Generator) -> NDArray[Any]:
    shape, dtype = tensor.shape, tensor.dtype
    if dtype == "bfloat16":  # its bits
        return (_floats(tensor, rng).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if dtype in NARROW:
        whole = rng.integers(0, 4 if dtype.endswith("int2") else 16, shape)
        numbers = _floats(tensor, rng) if dtype in NARROW_FLOATS else whole
        return np.asarray(numbers).astype(DTYPES[dtype]).view(np.uint8)
    kind = np.dtype(dtype)
    if spans:
        return _indices(shape, spans, rng).astype(kind)
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


def _indices(shape: tuple[int, ...], spans: Sequence[Span], rng: np.random.Generator) -> NDArray[Any]:
    """Whole numbers that lie in every span, not counted from the end; of targets no two the same, or at least no two
    along any axis, where there are enough."""
    if not prod(shape):
        return np.zeros(shape, np.int64)
    columns = {span.column for span in spans} - {None}
    width = shape[-1] if columns else 1
    sizes, starts = [], []
    for column in range(width):
        here = [span for span in spans if span.column in (None, column)]
        low, high = max((s.low for s in here), default=0), min((s.high for s in here), default=0)
        starts.append(max(low, min(0, high)))
        sizes.append(max(1, high - starts[-1] + 1))
    count, places = prod(shape) // width, prod(sizes)
    distinct = any(span.distinct for span in spans)
    if distinct and count <= places <= MOST_PLACES:
        numbers = np.unravel_index(rng.choice(places, count, replace=False), sizes)
    elif distinct and not columns and max(shape, default=1) <= places <= MOST_PLACES:
        numbers = (_distinct_along_axes(shape, places, rng).reshape(-1),)
    else:
        numbers = tuple(rng.integers(0, n, count) for n in sizes)
    return np.stack([n + start for n, start in zip(numbers, starts, strict=True)], -1).reshape(shape)


def _distinct_along_axes(shape: tuple[int, ...], places: int, rng: np.random.Generator) -> NDArray[Any]:
    """Numbers below `places` of which no two along an axis are the same: sums of one number for each axis."""
    found: NDArray[Any] = np.zeros(shape, np.int64)
    for axis, extent in enumerate(shape):
        found += rng.permutation(places)[:extent].reshape([-1 if k == axis else 1 for k in range(len(shape))])
    return found % places


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
