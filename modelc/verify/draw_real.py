"""Drawing real numbers: of a normal distribution or smooth images, with some on both sides of every threshold, at ties
of rounding, and equal ones where a model chooses; boxes that overlap, and their scores."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.frontend.steering.aims import Aims, Boxes
from modelc.ir.expr import NARROW
from modelc.package import TensorInfo

Array = NDArray[Any]
IMAGE_CHANNELS = (1, 3, 4)
COARSE = 8  # an image is noise at 1/8 of its size, enlarged, and a little noise on it
WIDE, WIDE_SHARE = 10.0, 0.02  # magnitude of numbers far out, whose powers and exponentials fit 16-bit floats; how many
LEAST_WIDE = 16  # elements of an input of which some are wide
AIMED_SHARE = 0.04  # of the numbers of a large input are at thresholds, and as many at ties
NEAREST = -3  # the power of ten of a threshold's size that numbers are from it at least
AIMED_EACH = 6  # numbers for each threshold, if there is room
MOST_TIE = 8  # ties lie at odd halves of a step up to so many steps
GROUP = 4  # boxes, of which three overlap the first
OVERLAPS = (0.2, 0.9)
NEAR_OVERLAP = 0.08  # half of the boxes overlap the first of their group as much as is allowed, but for so much


def real_numbers(tensor: TensorInfo, aims: Aims, sample: int, rng: np.random.Generator) -> Array:
    """Finite numbers of ordinary size, none of them subnormal. A share of every other sample is wider. What `aims` says
    is among them where there is room."""
    shape = tensor.shape
    if not prod(shape):
        return np.zeros(shape)
    if aims.boxes is not None and 4 in shape:
        return _boxes(shape, aims.boxes, rng)
    if aims.scores:
        return ((rng.permutation(prod(shape)) + 0.5) / prod(shape)).reshape(shape)
    numbers = _image(shape, aims.pixels * (sample % 2 == 0), rng) if _is_image(shape) else rng.standard_normal(shape)
    if sample % 2 and numbers.size >= LEAST_WIDE and tensor.dtype not in NARROW:
        places = _places(numbers.size, max(2, round(WIDE_SHARE * numbers.size)), rng)
        numbers.reshape(-1)[places] = np.resize((-1, 1), places.size) * rng.uniform(WIDE / 2, WIDE, places.size)
    numbers = _at_thresholds(numbers, aims, sample, rng)
    numbers = _at_ties(numbers, aims.steps, sample, rng)
    return with_equal(numbers, aims.tied, rng)


def _places(size: int, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """So many different places among `size`; of large inputs places that are different for the most part."""
    few = count * 16 < size
    return rng.integers(0, size, count) if few else rng.permutation(size)[:count]


# --- thresholds and ties ----------------------------------------------------------------------------------------------


def _at_thresholds(numbers: Array, aims: Aims, sample: int, rng: np.random.Generator) -> Array:
    """The numbers, some of them replaced: by thresholds, and what is a little and much above and below. Those of a
    column are put there."""
    width = numbers.shape[-1] if numbers.ndim else 1
    chosen = [t for t in aims.thresholds if t.column is None or 0 <= t.column < width]
    if not chosen:
        return numbers
    count = _how_many(numbers.size, AIMED_EACH * len(chosen), sample)
    which = np.resize(rng.permutation(len(chosen)), count)
    at, hit = (np.array([getattr(t, name) for t in chosen])[which] for name in ("at", "hit"))
    side = np.where(hit, rng.integers(-1, 2, count), rng.choice((-1, 1), count))
    apart = side * np.maximum(np.abs(at), 1) * 10 ** rng.uniform(NEAREST, 0, count)
    columns = np.array([-1 if t.column is None else t.column for t in chosen])[which]
    places = _places(numbers.size, count, rng)
    places = np.where(columns < 0, places, places // width * width + columns)
    aimed: Array = numbers.copy()
    aimed.reshape(-1)[places] = np.clip(at + apart, -aims.farthest, aims.farthest)
    return aimed


def _at_ties(numbers: Array, steps: Iterable[float], sample: int, rng: np.random.Generator) -> Array:
    """The numbers, some of them replaced by odd halves of steps, of both signs, between even and odd numbers."""
    sizes = np.array([*steps])
    if not sizes.size:
        return numbers
    count = _how_many(numbers.size, 2 * MOST_TIE, sample)
    aimed: Array = numbers.copy()
    ties = rng.integers(-MOST_TIE, MOST_TIE, count) + 0.5
    aimed.reshape(-1)[_places(numbers.size, count, rng)] = ties * rng.choice(sizes, count)
    return aimed


def _how_many(size: int, wanted: int, sample: int) -> int:
    """How many of `size` numbers to replace: at most half of a small input, of one number every other time."""
    return min(max(wanted, round(AIMED_SHARE * size)), (size + sample % 2) // 2)


def with_equal(numbers: Array, axes: Iterable[int | None], rng: np.random.Generator) -> Array:
    """The numbers, some of them equal along the axes: half of the rows have their largest and their least number twice,
    and an eighth of all numbers are those beside them."""
    all_axes = set(range(numbers.ndim))
    chosen = set[int]().union(
        *(all_axes if axis is None else all_axes & {axis % max(numbers.ndim, 1)} for axis in axes)
    )
    for axis in sorted(chosen):
        if numbers.shape[axis] < 2:
            continue
        beside = rng.random(numbers.shape) < 0.125
        numbers = np.where(beside, np.roll(numbers, 1, axis), numbers)
        for extreme in (numbers.max(axis, keepdims=True), numbers.min(axis, keepdims=True)):
            place = rng.integers(0, numbers.shape[axis], extreme.shape)
            doubled = np.where(rng.random(extreme.shape) < 0.5, extreme, np.take_along_axis(numbers, place, axis))
            np.put_along_axis(numbers, place, doubled, axis)
    return numbers


# --- images and boxes -------------------------------------------------------------------------------------------------


def _is_image(shape: tuple[int, ...]) -> bool:
    return len(shape) == 4 and min(shape[2:]) >= COARSE and bool({shape[1], shape[3]} & {*IMAGE_CHANNELS})


def _image(shape: tuple[int, ...], pixels: float, rng: np.random.Generator) -> Array:
    """A smooth image: normal numbers, or pixels from 0 to `pixels` where this is not 0; of bytes they are whole."""
    axes = (2, 3) if shape[1] in IMAGE_CHANNELS else (1, 2)
    coarse = rng.standard_normal([-(-n // COARSE) if axis in axes else n for axis, n in enumerate(shape)])
    for axis in axes:
        coarse = _stretched(coarse, axis, shape[axis])
    image = coarse + 0.2 * rng.standard_normal(shape)
    if not pixels:
        return image
    bright = np.clip(pixels * (0.5 + 0.25 * image), 0, pixels)
    return np.round(bright) if pixels > 1 else bright


def _stretched(x: Array, axis: int, length: int) -> Array:
    """Linear interpolation to `length` along one axis."""
    at = np.linspace(0, x.shape[axis] - 1, length)
    low = np.minimum(at.astype(int), x.shape[axis] - 1)
    high = np.minimum(low + 1, x.shape[axis] - 1)
    share = (at - low).reshape([-1 if a == axis else 1 for a in range(x.ndim)])
    stretched: Array = np.take(x, low, axis) * (1 - share) + np.take(x, high, axis) * share
    return stretched


def _boxes(shape: tuple[int, ...], boxes: Boxes, rng: np.random.Generator) -> Array:
    """Boxes in the unit square, in groups: the first of a group, and copies that are shifted along one side so far that
    they overlap it by a drawn share of their union. Coordinates lie along the last axis of four elements."""
    count = prod(shape) // 4
    groups = -(-count // GROUP)
    corner = np.repeat(rng.uniform(0, 0.8, (groups, 2)), GROUP, 0)[:count]
    sides = np.repeat(rng.uniform(0.05, 0.2, (groups, 2)), GROUP, 0)[:count]
    near = np.clip(boxes.overlap + rng.uniform(-NEAR_OVERLAP, NEAR_OVERLAP, count), *OVERLAPS)
    overlap = np.where(rng.random(count) < 0.5, near, rng.uniform(*OVERLAPS, count))
    shift = np.where(np.arange(count) % GROUP, (1 - overlap) / (1 + overlap), 0)
    along = np.eye(2)[rng.integers(0, 2, count)]
    corner = corner + along * (shift * rng.choice((-1, 1), count))[:, None] * sides
    other = [corner + sides / 2, sides] if boxes.centered else [corner, corner + sides]
    drawn = np.concatenate(other, -1)[rng.permutation(count)]
    axis = max(k for k, extent in enumerate(shape) if extent == 4)
    placed: Array = np.moveaxis(drawn.reshape(*shape[:axis], *shape[axis + 1 :], 4), -1, axis)
    return placed
