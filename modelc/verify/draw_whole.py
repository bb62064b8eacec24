"""Drawing whole numbers: indices that walk over what they address, and small and large numbers of all bits, whose
products and sums pass the limits of their dtype and of half its bits."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.frontend.steering.aims import Aims
from modelc.frontend.steering.uses import Span
from modelc.frontend.steering.wholes import SMALL, Whole
from modelc.package import TensorInfo
from modelc.verify.draw_real import with_equal

MOST_PLACES = 1 << 24  # among which targets are drawn without a repetition
GOLDEN = 0.6180339887498949  # a walk in steps of this share visits every part of a range early
LEAST_LARGE = 4  # binary places of the least of the large numbers
LARGE = {
    "int64": 31.5,
    "uint64": 31.5,
    "int32": 30.0,
    "uint32": 31.0,
    "int16": 14.0,
    "uint16": 15.0,
}  # of those of any magnitude

# --- indices ----------------------------------------------------------------------------------------------------------


def indices(
    shape: tuple[int, ...], spans: Sequence[Span], seed: int, sample: int, rng: np.random.Generator
) -> NDArray[Any]:
    """Whole numbers that lie in every span, not counted from the end. Over the samples of a seed they walk over all
    places that they may name, the first and the last before the others; of targets no two are the same, or at least no
    two along any axis, where there are enough."""
    if not prod(shape):
        return np.zeros(shape, np.int64)
    columns = {span.column for span in spans} - {None}
    width = shape[-1] if columns else 1
    limits = [limits_of(spans, column) for column in range(width)]
    sizes = [high - low + 1 for low, high in limits]
    count, places = prod(shape) // width, prod(sizes)
    distinct = any(span.distinct for span in spans)
    if distinct and count <= places <= MOST_PLACES:
        numbers = np.unravel_index(rng.choice(places, count, replace=False), sizes)
    elif distinct and not columns and max(shape, default=1) <= places <= MOST_PLACES:
        numbers = (_distinct_along_axes(shape, places, rng).reshape(-1),)
    elif places <= np.iinfo(np.int32).max:
        numbers = np.unravel_index(rng.permutation(_walk(places, count, seed, sample)), sizes)
    else:
        numbers = tuple(rng.integers(0, n, count) for n in sizes)
    return np.stack([n + low for n, (low, _) in zip(numbers, limits, strict=True)], -1).reshape(shape)


def limits_of(spans: Sequence[Span], column: int) -> tuple[int, int]:
    """The least and the greatest number that lies in every span of a column, from 0 on where there are such."""
    within = [span for span in spans if span.column in (None, column)]
    least = max((span.low for span in within), default=0)
    most = min((span.high for span in within), default=0)
    low = max(least, min(0, most))
    return low, max(low, most)


def counted_from_end(numbers: NDArray[Any], spans: Sequence[Span], rng: np.random.Generator) -> NDArray[Any]:
    """The indices, half of them counted from the end, where every span has both numbers of each place."""
    columns = range(numbers.shape[-1] if any(span.column is not None for span in spans) else 1)
    sizes = np.array([limits_of(spans, column)[1] + 1 for column in columns])
    least = [max((s.low for s in spans if s.column in (None, column)), default=0) for column in columns]
    if any(span.distinct for span in spans) or (np.array(least) > -sizes).any():
        return numbers
    return np.where(rng.random(numbers.shape) < 0.5, (numbers - sizes).reshape(numbers.shape), numbers)


def _walk(places: int, count: int, seed: int, sample: int) -> NDArray[np.int64]:
    """`count` of `places`, of which those of the samples before were others, until all have been visited: the first,
    the last, and then those between in steps that have no divisor in common with how many they are."""
    at = (sample * count + np.arange(count, dtype=np.int64)) % places
    between = max(places - 2, 1)
    step = max(1, round(between * GOLDEN))
    while gcd(step, between) > 1:
        step += 1
    inner = 1 + ((at - 2) * step + seed) % between
    return np.where(at == 0, 0, np.where(at == 1, places - 1, inner))


def _distinct_along_axes(shape: tuple[int, ...], places: int, rng: np.random.Generator) -> NDArray[Any]:
    """Numbers below `places` of which no two along an axis are the same: sums of one number for each axis."""
    sums: NDArray[Any] = np.zeros(shape, np.int64)
    for axis, extent in enumerate(shape):
        sums += rng.permutation(places)[:extent].reshape([-1 if k == axis else 1 for k in range(len(shape))])
    return sums % places


# --- numbers ----------------------------------------------------------------------------------------------------------


def whole_numbers(
    tensor: TensorInfo, whole: Whole | None, aims: Aims, sample: int, rng: np.random.Generator
) -> NDArray[Any]:
    """Whole numbers that are no indices: bytes of their whole range, else small ones of both signs. In every other
    sample half of them are large where the model allows it. A single number that the model compares with one is that
    one in the others. 0 and 1 where nothing is known of what it allows."""
    shape, dtype = tensor.shape, tensor.dtype
    is_byte = dtype in ("int8", "uint8")  # quantised data or pixels
    if dtype == "bool" or (whole is None and not is_byte):
        return rng.integers(0, 2, shape)
    whole = whole or Whole()
    least, most = (np.iinfo(dtype).min, np.iinfo(dtype).max) if is_byte else _small(dtype)
    low = least if whole.low is None else max(whole.low, np.iinfo(dtype).min)
    high = most if whole.high is None else min(whole.high, np.iinfo(dtype).max)
    numbers = rng.integers(low, max(low, high), shape, endpoint=True)
    if whole.low is None:
        wide = are_wide(dtype, whole, sample)
        if wide:
            numbers = _with_large(numbers, dtype, rng)
        numbers = _aimed(numbers, dtype, aims, wide, rng).astype(dtype)
        hits = [round(t.at) for t in aims.thresholds if t.hit and abs(t.at) <= np.iinfo(dtype).max]
        if numbers.size == 1 and hits and sample % 2 == 0:
            numbers = np.full(shape, hits[sample // 2 % len(hits)]).astype(dtype)
        numbers = with_equal(numbers, aims.tied, rng)
    if not whole.nonzero:
        return numbers
    return np.where(numbers == 0, rng.integers(1, max(1, high), shape, endpoint=True), numbers).astype(dtype)


def are_wide(dtype: str, whole: Whole | None, sample: int) -> bool:
    """Whether large numbers are among those of a sample."""
    return dtype in LARGE and whole is not None and whole.large and sample % 2 == 1


def _small(dtype: str) -> tuple[int, int]:
    return (0, 2 * SMALL) if dtype.startswith("u") else (-SMALL, SMALL)


def _with_large(numbers: NDArray[Any], dtype: str, rng: np.random.Generator) -> NDArray[Any]:
    """The numbers, half of them replaced by large ones, and at least one: of all magnitudes, half of these negative or
    with the bit that would be a sign; of the dtype's whole range but for its least number, whose quotient by -1
    overflows; or of a single bit."""
    shape, limits = numbers.shape, np.iinfo(dtype)
    signs = 1 if limits.min == 0 else rng.choice((-1, 1), shape)
    of_any_magnitude = signs * np.exp2(rng.uniform(LEAST_LARGE, LARGE[dtype], shape)).astype(np.int64)
    of_any_bits = rng.integers(limits.min + (limits.min < 0), limits.max, shape, dtype, endpoint=True).astype(np.int64)
    if limits.min == 0:
        highest = np.asarray(limits.max // 2 + 1, dtype).astype(np.int64)
        of_any_magnitude |= np.where(rng.random(shape) < 0.5, highest, 0)
    of_one_bit = signs * _single_bits(shape, 0, dtype, rng)
    large = np.choose(rng.integers(0, 4, shape), (of_any_magnitude, of_any_bits, of_any_bits, of_one_bit))
    replaced = rng.random(shape) < 0.5
    if numbers.size:
        replaced.reshape(-1)[rng.integers(numbers.size)] = True
    return np.where(replaced, large, numbers)


def _single_bits(shape: tuple[int, ...], least: int, dtype: str, rng: np.random.Generator) -> NDArray[np.int64]:
    """Powers of two from that of `least` on, but for the bit of the sign."""
    powers: NDArray[np.int64] = np.left_shift(1, rng.integers(least, int(np.iinfo(dtype).max).bit_length(), shape))
    return powers


def _aimed(numbers: NDArray[Any], dtype: str, aims: Aims, wide: bool, rng: np.random.Generator) -> NDArray[Any]:
    """The numbers, a quarter of them replaced by thresholds and their neighbours; in half of these another bit is
    turned over where numbers may be `wide`."""
    limits = np.iinfo(dtype)
    at = np.array([round(t.at) for t in aims.thresholds if limits.min < t.at <= limits.max], np.int64)
    if not at.size:
        return numbers
    near = np.clip(rng.choice(at, numbers.shape) + rng.integers(-1, 2, numbers.shape), limits.min, limits.max)
    if wide:
        near = with_turned_bits(near, dtype, rng)
    return np.where(rng.random(numbers.shape) < 0.25, near, numbers)


def with_turned_bits(numbers: NDArray[Any], dtype: str, rng: np.random.Generator) -> NDArray[Any]:
    """The numbers, in half of which one bit of the upper half is turned over, but for that of the sign."""
    bits = _single_bits(numbers.shape, 4 * np.dtype(dtype).itemsize, dtype, rng).astype(numbers.dtype)
    return np.where(rng.random(numbers.shape) < 0.5, numbers ^ bits, numbers)
