"""What activations are on samples: the ranges that each may be rounded by, also where its channels are scaled, and what
to scale them by."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.forks import shared
from modelc.frontend.quantize.recipe import Floats, Range
from modelc.frontend.quantize.trials import sampled_places

PERCENT = (99.99, 99.9)
SHARES = np.linspace(1.0, 0.2, 33)  # of the whole range
COARSE = 4  # every so many of them is tried, and then those beside the best
MOST_NUMBERS = 1 << 18  # of one value, among which percentiles and errors are computed
LEAST_DIVISOR = 1e-3  # of the greatest


@dataclass(frozen=True)
class Statistics:
    """`seen` is what the model of statistics gave (modelc/frontend/quantize/trials.py), for each sample, of `values`;
    of those that `ranks` names by channel too."""

    seen: Mapping[str, Sequence[NDArray[Any]]]
    values: tuple[str, ...]
    ranks: Mapping[str, int]

    def ranges(self, threads: int, divisors: Mapping[str, Floats] | None = None) -> dict[str, tuple[Range, ...]]:
        """Those that each value may be rounded by; with `divisors` of the values that it names, whose channels are
        divided so."""
        values = self.values if divisors is None else tuple(divisors)
        made = dict(shared(lambda value: self._ranges(value, (divisors or {}).get(value)), values, threads, True))
        return {value: made[number] for number, value in enumerate(values)}

    def largest(self, value: str) -> Floats:
        """The greatest magnitude of each channel."""
        lows, highs = np.minimum.reduce(self.seen[f"{value}/lows"]), np.maximum.reduce(self.seen[f"{value}/highs"])
        largest: Floats = np.maximum(-lows, highs)
        return largest

    def _ranges(self, value: str, divisors: Floats | None) -> tuple[Range, ...]:
        seen, samples = self.seen, self.seen[f"{value}/sampled"]
        if divisors is None:
            low, high = min(map(float, seen[f"{value}/low"])), max(map(float, seen[f"{value}/high"]))
            return ranges_of(low, high, np.concatenate([numbers.reshape(-1) for numbers in samples]))
        lows, highs = np.minimum.reduce(seen[f"{value}/lows"]), np.maximum.reduce(seen[f"{value}/highs"])
        axis = 1 if self.ranks[value] else -1
        scaled = [
            numbers.reshape(-1) / divisors[np.unravel_index(sampled_places() % math.prod(shape), tuple(shape))[axis]]
            for numbers, shape in zip(samples, seen[f"{value}/shape"], strict=True)
        ]
        return ranges_of(float((lows / divisors).min()), float((highs / divisors).max()), np.concatenate(scaled))


def ranges_of(low: float, high: float, numbers: Floats) -> tuple[Range, ...]:
    """Of a value that went from `low` to `high`, some of whose `numbers` are known: all of it; what a share of the
    numbers lies in; what leaves the least squared error. Equal ones are left out."""
    sampled = np.asarray(numbers, np.float32)
    if sampled.size > MOST_NUMBERS:
        sampled = sampled[:: sampled.size // MOST_NUMBERS + 1]
    ranges = [Range.of(low, high, "min-max")]
    for percent in PERCENT:
        least, most = np.percentile(sampled, [100 - percent, percent])
        ranges.append(Range.of(least, most, f"percentile {percent:g}"))
    ranges.append(_least_squares(low, high, sampled))
    distinct: dict[tuple[float, int], Range] = {}
    for stored in ranges:
        distinct.setdefault((stored.scale, stored.zero), stored)
    return tuple(distinct.values())


def _least_squares(low: float, high: float, numbers: Floats) -> Range:
    """A share of the whole range, coarsely, and then one of those beside it."""
    errors = dict[int, float]()

    def error(k: int) -> float:
        if k not in errors:
            errors[k] = _squares(Range.of(SHARES[k] * low, SHARES[k] * high, ""), numbers)
        return errors[k]

    best = min(range(0, len(SHARES), COARSE), key=error)
    best = min(range(max(best - COARSE + 1, 0), min(best + COARSE, len(SHARES))), key=error)
    return Range.of(SHARES[best] * low, SHARES[best] * high, "least squares")


def _squares(stored: Range, numbers: Floats) -> float:
    steps = numbers * np.float32(1 / stored.scale)
    np.rint(steps, out=steps)
    np.clip(steps, -stored.zero, 255 - stored.zero, out=steps)
    steps *= np.float32(stored.scale)
    steps -= numbers
    return float(np.dot(steps, steps))


def divisors_of(activations: Floats, weights: Floats | None) -> Floats:
    """What the channels of a value are divided by (modelc/frontend/quantize/equalise.py), from the greatest magnitudes
    of each, and of what it is multiplied with: without `weights` those read it that have a scale for each channel, and
    all channels become alike; otherwise half of the difference goes into the weights, as SmoothQuant has it (alpha =
    0.5). The greatest divisor is 1."""
    used = activations > 0
    if weights is None:
        divisors = np.where(used, activations, activations.max(initial=0))
    else:
        used &= weights > 0
        ratios = np.sqrt(np.divide(activations, weights, out=np.ones_like(activations), where=used))
        divisors = np.where(used, ratios, ratios[used].max(initial=1))
    largest = divisors.max(initial=0)
    if largest <= 0:
        return np.ones_like(activations)
    scaled: Floats = np.maximum(divisors / largest, LEAST_DIVISOR).astype(np.float32)
    return scaled
