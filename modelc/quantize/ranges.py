"""The ranges that an activation may be rounded by, from what it was on the samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from modelc.frontend.quantize.recipe import Range

Array = NDArray[np.float32]
PERCENT = (99.99, 99.9)
SHARES = np.linspace(1.0, 0.2, 33)  # of the whole range
MOST_NUMBERS = 1 << 18  # of one value, among which percentiles and errors are computed


def ranges_of(low: float, high: float, numbers: Array) -> tuple[Range, ...]:
    """Of a value that went from `low` to `high`, some of whose `numbers` are known: all of it; what a share of the
    numbers lies in; what leaves the least squared error. Equal ones are left out."""
    sampled = np.asarray(numbers, np.float32)
    if sampled.size > MOST_NUMBERS:
        sampled = sampled[:: sampled.size // MOST_NUMBERS + 1]
    ranges = [Range.of(low, high, "min-max")]
    for percent in PERCENT:
        least, most = np.percentile(sampled, [100 - percent, percent])
        ranges.append(Range.of(least, most, f"percentile {percent:g}"))
    ranges.append(_of_least_squares(low, high, sampled))
    distinct: dict[tuple[float, int], Range] = {}
    for stored in ranges:
        distinct.setdefault((stored.scale, stored.zero), stored)
    return tuple(distinct.values())


def _of_least_squares(low: float, high: float, numbers: Array) -> Range:
    every = [Range.of(share * low, share * high, "least squares") for share in SHARES]
    return min(every, key=lambda stored: _squares(stored, numbers))


def _squares(stored: Range, numbers: Array) -> float:
    steps = np.clip(np.rint(numbers / np.float32(stored.scale)) + stored.zero, 0, 255) - stored.zero
    return float(np.square(steps * np.float32(stored.scale) - numbers).sum())


def joined(parts: Sequence[Array]) -> Array:
    """What was taken of a value in every run."""
    return np.concatenate([part.reshape(-1) for part in parts])
