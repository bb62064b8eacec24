"""Where results of arithmetic lie, from where its operands lie: [least, greatest]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, inf, sqrt

Interval = tuple[float, float]
ANY: Interval = (-inf, inf)
UNIT, SIGNED_UNIT = (0.0, 1.0), (-1.0, 1.0)
LARGEST_EXPONENT = 80.0


def union(intervals: Sequence[Interval]) -> Interval:
    return min(low for low, _ in intervals), max(high for _, high in intervals)


def mapped(function: Callable[[float], float]) -> Callable[[Interval], Interval]:
    """The interval of a function that never falls."""

    def interval(a: Interval) -> Interval:
        low, high = (x if abs(x) == inf else float(function(x)) for x in a)
        return low, high

    return interval


def added(*intervals: Interval) -> Interval:
    return sum(low for low, _ in intervals), sum(high for _, high in intervals)


def subtracted(a: Interval, c: Interval) -> Interval:
    return a[0] - c[1], a[1] - c[0]


def multiplied(a: Interval, c: Interval) -> Interval:
    ends = [0.0 if 0 in (x, y) else x * y for x in a for y in c]
    return min(ends), max(ends)


def divided(a: Interval, c: Interval) -> Interval:
    return ANY if c[0] <= 0 <= c[1] else multiplied(a, (1 / c[1], 1 / c[0]))


def remainder(a: Interval, c: Interval, of_dividend: bool) -> Interval:
    """A remainder has the sign of the dividend, or else of the divisor."""
    most = max(abs(c[0]), abs(c[1]))
    return (-most if a[0] < 0 else 0, most if a[1] > 0 else 0) if of_dividend else (min(c[0], 0), max(c[1], 0))


def absolute(a: Interval) -> Interval:
    low = 0.0 if a[0] <= 0 <= a[1] else min(abs(a[0]), abs(a[1]))
    return low, max(abs(a[0]), abs(a[1]))


def negated(a: Interval) -> Interval:
    return -a[1], -a[0]


def rectified(a: Interval) -> Interval:
    return max(a[0], 0), max(a[1], 0)


def least(*intervals: Interval) -> Interval:
    return min(low for low, _ in intervals), min(high for _, high in intervals)


def greatest(*intervals: Interval) -> Interval:
    return max(low for low, _ in intervals), max(high for _, high in intervals)


def exponential(a: Interval) -> Interval:
    low, high = (exp(max(x, -LARGEST_EXPONENT)) if x < LARGEST_EXPONENT else inf for x in a)
    return low, high


def root(a: Interval) -> Interval:
    return mapped(sqrt)(rectified(a))
