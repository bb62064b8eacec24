"""The meanings, in NumPy, of what has no affine form. An OpaqueBlock names one of these; codegen implements them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.block import OpaqueBlock
from modelc.ops.finding import nms_list, nms_rows, non_zero, unique
from modelc.ops.tree_walks import trees

Array = NDArray[Any]
Meaning = Callable[..., tuple[Array, ...]]
Range = tuple[str, int | None, int, int]  # operand, column of its last dimension (None: all of it), least, greatest
REDUCE: dict[str, Callable[[Array, Array], Array]] = {
    "none": lambda old, new: new,
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def topk(attrs: Mapping[str, Any], x: Array) -> tuple[Array, ...]:
    """The `k` greatest (or least) elements along `axis`, in order, and where they were; of equal ones the first."""
    axis, k = attrs["axis"], attrs["k"]
    if attrs["largest"]:  # a stable sort, descending: reverse twice
        order = np.flip(x.shape[axis] - 1 - np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)
    else:
        order = np.argsort(x, axis=axis, kind="stable")
    positions = np.take(order, np.arange(k), axis=axis)
    return np.take_along_axis(x, positions, axis), positions.astype(np.int64)


def scatter_nd(attrs: Mapping[str, Any], x: Array, indices: Array, updates: Array) -> tuple[Array, ...]:
    """`x` with slices replaced by (or combined with) `updates`, one after another."""
    result, combine = x.copy(), REDUCE[attrs["reduction"]]
    for position in np.ndindex(indices.shape[:-1]):
        at = tuple(int(i) for i in indices[position])
        result[at] = combine(result[at], updates[position])
    return (result,)


def scatter_elements(attrs: Mapping[str, Any], x: Array, indices: Array, updates: Array) -> tuple[Array, ...]:
    """`x` with single elements replaced by (or combined with) `updates`, one after another."""
    result, axis, combine = x.copy(), attrs["axis"], REDUCE[attrs["reduction"]]
    for position in np.ndindex(indices.shape):
        at = (*position[:axis], int(indices[position]), *position[axis + 1 :])
        result[at] = combine(result[at], updates[position])
    return (result,)


def roi_align(attrs: Mapping[str, Any], x: Array, rois: Array, batch: Array) -> tuple[Array, ...]:
    """Regions of images at a grid of bins, each the average (or the greatest) of bilinear samples; a region that is not
    finite has none."""
    count, channels, *size = attrs["shape"]
    result = np.zeros((count, channels, *size), x.dtype)
    for n in range(count):
        corners = rois[n].astype(np.float64) * attrs["scale"] - (0.5 if attrs["half_pixel"] else 0.0)
        extent = corners[2:] - corners[:2]
        extent = extent if attrs["half_pixel"] else np.maximum(extent, 1.0)
        if not np.isfinite(extent).all():
            continue
        bins = extent[::-1] / size  # height, width
        samples = [max(attrs["samples"] or int(np.ceil(b)), 0) for b in bins]
        at = [
            corners[1 - d] + bins[d] * (np.arange(size[d])[:, None] + (np.arange(samples[d]) + 0.5) / samples[d])
            for d in range(2)
            if samples[d]
        ]
        if len(at) == 2:
            result[n] = _pooled(x[int(batch[n])], at, attrs["max"])
    return (result,)


def _pooled(image: Array, at: list[Array], greatest: bool) -> Array:
    """Bins of an image's bilinear samples; `at` are their positions [bin, sample] along each dimension."""
    inside, low, high, share = [], [], [], []
    for d, (position, extent) in enumerate(zip(at, image.shape[1:], strict=True)):
        clamped = np.clip(position, 0, extent - 1)
        inside.append((position >= -1) & (position <= extent))
        low.append(np.minimum(clamped.astype(np.int64), extent - 1))
        high.append(np.minimum(low[d] + 1, extent - 1))
        share.append(clamped - low[d])
    corners = []
    for rows, row_weight in ((low[0], 1 - share[0]), (high[0], share[0])):
        for columns, weight in ((low[1], 1 - share[1]), (high[1], share[1])):
            both = (row_weight * inside[0])[:, :, None, None] * (weight * inside[1])[None, None]
            corners.append(image[:, rows[:, :, None, None], columns[None, None]] * both)
    pooled: Array = np.maximum.reduce(corners).max((2, 4)) if greatest else np.sum(corners, 0).mean((2, 4))
    return pooled


def det(attrs: Mapping[str, Any], x: Array) -> tuple[Array, ...]:
    return (np.linalg.det(x.astype(np.float64)).astype(x.dtype),)


def index_ranges(block: OpaqueBlock, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Range, ...]:
    """Where the operands of `block` that addresses are computed from have to lie."""
    attrs = dict(block.attrs)
    if block.meaning == "scatter_nd":
        data, indices = shapes[block.inputs[0]], shapes[block.inputs[1]]
        return tuple((block.inputs[1], d, -data[d], data[d] - 1) for d in range(indices[-1]))
    if block.meaning == "scatter_elements":
        n = shapes[block.inputs[0]][attrs["axis"]]
        return ((block.inputs[1], None, -n, n - 1),)
    if block.meaning == "roi_align":
        return ((block.inputs[2], None, 0, shapes[block.inputs[0]][0] - 1),)
    return ()


MEANINGS: dict[str, Meaning] = {
    "topk": topk,
    "scatter_nd": scatter_nd,
    "scatter_elements": scatter_elements,
    "trees": trees,
    "roi_align": roi_align,
    "det": det,
    "non_zero": non_zero,
    "nms_rows": nms_rows,
    "nms_list": nms_list,
    "unique": unique,
}
