"""Drawing inputs that a model makes sense of: token ids that a table has, masks that hide the ends of rows, images that
are smooth-ish."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.frontend.steering.masks import (
    ADDED_MASK,
    BINARY_MASK,
    INVERTED_MASK,
    Dimension,
    Mask,
    is_called_mask,
    lengths,
    masks,
)
from modelc.frontend.steering.uses import Span, Uses, index_spans, not_negative
from modelc.ir.expr import DTYPES, NARROW, NARROW_FLOATS
from modelc.package import TensorInfo

IMAGE_CHANNELS = (1, 3, 4)
MOST_PLACES = 1 << 24  # among which targets are drawn without a repetition
COARSE = 8  # an image is noise at 1/8 of its size, enlarged, and a little noise on it
ENDS, NOTHING, ANYWHERE = range(3)  # what masks hide, by turns from sample to sample


@dataclass(frozen=True)
class Roles:
    """What a model does with its inputs: `spans` says where the numbers of those that become indices have to lie,
    `positive` which real ones are not negative, `masks` which numbers of an input show and hide a position, and
    `lengths` which dimensions an input may be lengths of."""

    spans: Mapping[str, Sequence[Span]] = field(default_factory=dict)
    positive: Container[str] = ()
    masks: Mapping[str, Mask] = field(default_factory=dict)
    lengths: Mapping[str, Sequence[Dimension]] = field(default_factory=dict)


def roles_of(uses: Uses | None, claimed: Sequence[tuple[str, Span]]) -> Roles:
    """The roles of the model's inputs, where `claimed` says where some of its values have to lie; without the model,
    what is claimed of its inputs."""
    spans: dict[str, tuple[Span, ...]] = {} if uses is None else index_spans(uses, claimed)
    for name, span in claimed:
        spans[name] = (*spans.get(name, ()), span)
    return Roles(spans) if uses is None else Roles(spans, not_negative(uses), masks(uses), lengths(uses))


def draw_inputs(
    tensors: Sequence[TensorInfo],
    roles: Roles,
    seed: int,
    sample: int = 0,
) -> dict[str, NDArray[Any]]:
    """This draws one array for each input. By turns from sample to sample masks hide the ends of their rows, nothing,
    and positions anywhere; the first position of a row is always shown. Flags, bools of one element, are set by turns
    too: two samples see each of them both ways."""
    rng = np.random.default_rng((seed, sample))
    hides = (ENDS, NOTHING, ANYWHERE)[sample % 3]
    shapes = {tensor.name: tensor.shape for tensor in tensors}
    drawn: dict[str, NDArray[Any]] = {}
    for tensor in tensors:
        name, shape = tensor.name, tensor.shape
        mask = roles.masks.get(name) or _mask_by_convention(tensor)
        if name in roles.spans:
            numbers = _indices(tensor, roles.spans[name], hides, rng)
        elif name in roles.lengths:
            numbers = _lengths(shape, _longest(shapes, roles.lengths[name]), hides, rng)
        elif mask is not None:
            numbers = np.where(_shown(shape, hides, rng), mask.shown, mask.hidden)
        elif _holds_positions(tensor):
            numbers = _positions(shape, 0, 2 * shape[-1], hides, rng)
        else:
            numbers = np.abs(_numbers(tensor, rng)) if name in roles.positive else _numbers(tensor, rng)
        drawn[name] = _encoded(numbers, tensor.dtype)
    flags = [tensor for tensor in tensors if _is_flag(tensor)]
    return drawn | {flag.name: np.full(flag.shape, (sample + k) % 2 == 0) for k, flag in enumerate(flags)}


def _is_flag(tensor: TensorInfo) -> bool:
    """Whether an input is one bool, and no mask of a sequence of one element."""
    rows = is_called_mask(tensor.name) and len(tensor.shape) > 1
    return tensor.dtype == "bool" and prod(tensor.shape) == 1 and not rows


def _encoded(numbers: NDArray[Any], dtype: str) -> NDArray[Any]:
    """The numbers as an array of the dtype, or their bits where NumPy has none."""
    if dtype == "bfloat16":
        return (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if dtype in NARROW:
        return numbers.astype(DTYPES[dtype]).view(np.uint8)
    return numbers.astype(np.dtype(dtype))


def _numbers(tensor: TensorInfo, rng: np.random.Generator) -> NDArray[Any]:
    """Numbers for an input of which nothing is said."""
    shape, dtype = tensor.shape, tensor.dtype
    if _is_real(dtype):
        return _floats(tensor, rng)
    if dtype in NARROW:
        return rng.integers(0, 4 if dtype.endswith("int2") else 16, shape)
    if dtype in ("int8", "uint8"):  # quantised data or pixels
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max + 1, shape)
    return rng.integers(0, 2, shape)


def _is_real(dtype: str) -> bool:
    return dtype == "bfloat16" or dtype in NARROW_FLOATS or dtype.startswith("float")


# --- sequences --------------------------------------------------------------------------------------------------------


def _mask_by_convention(tensor: TensorInfo) -> Mask | None:
    """What an input that is called a mask usually holds: 0 where something is hidden; but a mask of attention that is
    given for each query is added to the scores, and bools of padding are set where something is hidden."""
    name = tensor.name.lower()
    if not is_called_mask(name) or tensor.dtype in NARROW:
        return None
    if _is_real(tensor.dtype):
        return ADDED_MASK if "att" in name and len(tensor.shape) > 2 else BINARY_MASK
    return INVERTED_MASK if "padding" in name and tensor.dtype == "bool" else BINARY_MASK


def _shown(shape: tuple[int, ...], hides: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Which positions a mask shows. A row lies along the last axis, or along the one before if that has one element."""
    if hides == NOTHING or not prod(shape) or not shape:
        return np.ones(shape, np.bool_)
    axis = len(shape) - (2 if len(shape) > 2 and shape[-1] == 1 else 1)
    most = shape[axis]
    rows = (*shape[:axis], *shape[axis + 1 :])
    at = np.arange(most)
    if hides == ENDS:
        shown = at < _different_lengths(prod(rows), most, rng).reshape(*rows, 1)
    else:
        shown = (at == 0) | (rng.random((*rows, most)) < 0.5)
    return np.moveaxis(shown, -1, axis)


def _different_lengths(count: int, most: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Lengths up to `most`, different ones as long as there are enough. They are at least the half where that leaves
    enough; a single one is less than the whole."""
    least = max(1, most // 2)
    if count > most - least + 1:
        least = 1
    return np.resize(rng.permutation(np.arange(least, most + (count > 1 or most == 1))), count)


def _longest(shapes: Mapping[str, tuple[int, ...]], dimensions: Sequence[Dimension]) -> int:
    """How long a sequence may be, whichever of the dimensions it lies along."""
    extents = [shapes[d.tensor][d.axis] for d in dimensions if d.tensor in shapes]
    return min((extent for extent in extents if extent > 1), default=1)


def _lengths(shape: tuple[int, ...], most: int, hides: int, rng: np.random.Generator) -> NDArray[Any]:
    """Lengths of sequences, from 1 to `most`."""
    if hides == NOTHING:
        return np.full(shape, most)
    if hides == ENDS:
        return _different_lengths(prod(shape), most, rng).reshape(shape)
    return rng.integers(1, most + 1, shape)


def _holds_positions(tensor: TensorInfo) -> bool:
    return "position" in tensor.name.lower() and tensor.dtype in ("int32", "int64") and bool(tensor.shape)


def _positions(shape: tuple[int, ...], low: int, count: int, hides: int, rng: np.random.Generator) -> NDArray[Any]:
    """Positions that grow along the last axis, `count` of them from `low` on: one after the other where masks hide
    nothing, and otherwise with gaps."""
    length = shape[-1]
    if hides == NOTHING and length <= count:
        return np.broadcast_to(low + np.arange(length), shape)
    rows = [rng.choice(count, length, replace=length > count) for _ in range(prod(shape[:-1]))]
    return low + np.sort(np.reshape(rows, shape).astype(np.int64), -1)


# --- indices ----------------------------------------------------------------------------------------------------------


def _indices(tensor: TensorInfo, spans: Sequence[Span], hides: int, rng: np.random.Generator) -> NDArray[Any]:
    """Whole numbers that lie in every span, not counted from the end; of targets no two the same, or at least no two
    along any axis, where there are enough."""
    shape = tensor.shape
    if not prod(shape):
        return np.zeros(shape, np.int64)
    columns = {span.column for span in spans} - {None}
    width = shape[-1] if columns else 1
    limits = [_limits(spans, column) for column in range(width)]
    sizes = [high - low + 1 for low, high in limits]
    count, places = prod(shape) // width, prod(sizes)
    distinct = any(span.distinct for span in spans)
    if _holds_positions(tensor) and not distinct and not columns:
        return _positions(shape, limits[0][0], places, hides, rng)
    if distinct and count <= places <= MOST_PLACES:
        numbers = np.unravel_index(rng.choice(places, count, replace=False), sizes)
    elif distinct and not columns and max(shape, default=1) <= places <= MOST_PLACES:
        numbers = (_distinct_along_axes(shape, places, rng).reshape(-1),)
    else:
        numbers = tuple(rng.integers(0, n, count) for n in sizes)
    return np.stack([n + low for n, (low, _) in zip(numbers, limits, strict=True)], -1).reshape(shape)


def _limits(spans: Sequence[Span], column: int) -> tuple[int, int]:
    """The least and the greatest number that lies in every span of a column, from 0 on where there are such."""
    within = [span for span in spans if span.column in (None, column)]
    least = max((span.low for span in within), default=0)
    most = min((span.high for span in within), default=0)
    low = max(least, min(0, most))
    return low, max(low, most)


def _distinct_along_axes(shape: tuple[int, ...], places: int, rng: np.random.Generator) -> NDArray[Any]:
    """Numbers below `places` of which no two along an axis are the same: sums of one number for each axis."""
    sums: NDArray[Any] = np.zeros(shape, np.int64)
    for axis, extent in enumerate(shape):
        sums += rng.permutation(places)[:extent].reshape([-1 if k == axis else 1 for k in range(len(shape))])
    return sums % places


# --- real numbers -----------------------------------------------------------------------------------------------------


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
