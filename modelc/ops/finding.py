"""The meanings, in NumPy, of operators whose results have a size that depends on data: each gives that size too, and
zeros beyond it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def non_zero(attrs: Mapping[str, Any], x: Array) -> tuple[Array, ...]:
    """How many elements of `x` are true, and where: their places as columns, in row-major order."""
    indices = np.array(np.nonzero(x), np.int64)
    return np.asarray(indices.shape[1], np.int64), _with_room(indices, 1, attrs["room"])


def nms_rows(attrs: Mapping[str, Any], boxes: Array, scores: Array, *limits: Array) -> tuple[Array, ...]:
    """Of every class of every image the boxes that stay, best first, and how many these are: of equal scores the lower
    box comes first, and none stays that overlaps one before it by more than the threshold."""
    given: dict[str, Any] = dict(zip(attrs["limits"], (x.reshape(-1)[0] for x in limits), strict=True))
    room, (images, classes, count) = attrs["room"], scores.shape
    kept, counts = np.zeros((images * classes, room), np.int64), np.zeros(images * classes, np.int64)
    there = min(max(int(given["there"]), 0), count) if "there" in given else count
    most = min(max(int(given["most"]), 0), room)
    for row in range(images * classes):
        own, corners = scores[divmod(row, classes)], boxes[row // classes]
        order = np.argsort(-own[:there], kind="stable")
        if "score" in given:
            order = order[own[order] > given["score"]]
        stay: list[int] = []
        for i in order:
            if len(stay) == most:
                break
            if not any(_overlap(corners[i], corners[j], attrs["center"], given.get("iou", 0.0)) for j in stay):
                stay.append(int(i))
        kept[row, : len(stay)], counts[row] = stay, len(stay)
    return kept, counts


def _overlap(a: Array, b: Array, center: bool, threshold: Any) -> bool:
    """Whether what two boxes share is more than `threshold` of what they cover together."""
    (a_low, a_high), (b_low, b_high) = (_corners(box, center) for box in (a, b))
    shared = np.minimum(a_high, b_high) - np.maximum(a_low, b_low)
    if (shared <= 0).any():
        return False
    area, a_area, b_area = shared[0] * shared[1], np.prod(a_high - a_low), np.prod(b_high - b_low)
    together = a_area + b_area - area
    return bool(area > 0 and a_area > 0 and b_area > 0 and together > 0 and area / together > threshold)


def _corners(box: Array, center: bool) -> tuple[Array, Array]:
    if center:
        half = box[2:] / box.dtype.type(2)
        return box[:2] - half, box[:2] + half
    return np.minimum(box[:2], box[2:]), np.maximum(box[:2], box[2:])


def nms_list(attrs: Mapping[str, Any], kept: Array, counts: Array) -> tuple[Array, ...]:
    """How many boxes stay in all, and for each its image, class and number."""
    rows = [(*divmod(r, attrs["classes"]), int(kept[r, k])) for r in range(len(counts)) for k in range(int(counts[r]))]
    selected = np.array(rows, np.int64).reshape(-1, 3)
    return np.asarray(len(rows), np.int64), _with_room(selected, 0, attrs["room"])


def unique(attrs: Mapping[str, Any], x: Array, *there: Array) -> tuple[Array, ...]:
    """How many slices of `x` along `axis` there are that differ, these, where each occurs first, which of them every
    slice is, and how often each occurs."""
    axis, n = attrs["axis"], x.shape[attrs["axis"]]
    count = min(max(int(there[0].reshape(-1)[0]), 0), n) if there else n
    slices = np.moveaxis(x, axis, 0)[:count].reshape(count, x.size // max(n, 1))
    _, ranks = np.unique(slices, return_inverse=True)
    ranks = ranks.reshape(slices.shape)
    keys: list[tuple[int, ...]] = [tuple(map(int, row)) for row in ranks]
    first: dict[tuple[int, ...], int] = {}
    for k, key in enumerate(keys):
        first.setdefault(key, k)
    order = sorted(first) if attrs["sorted"] else list(first)
    number = {key: k for k, key in enumerate(order)}
    indices = np.array([first[key] for key in order], np.int64)
    inverse = np.array([number[key] for key in keys], np.int64)
    counts = np.bincount(inverse, minlength=len(order)).astype(np.int64)
    y = _with_room(np.take(x, indices, axis), axis, attrs["room"])
    lists = (_with_room(indices, 0, attrs["room"]), _with_room(inverse, 0, n), _with_room(counts, 0, attrs["room"]))
    return np.asarray(len(order), np.int64), y, *lists


def _with_room(values: Array, axis: int, room: int) -> Array:
    """`values` with zeros up to `room` along `axis`."""
    widths = [(0, room - values.shape[d] if d == axis else 0) for d in range(values.ndim)]
    return np.pad(values, widths)
