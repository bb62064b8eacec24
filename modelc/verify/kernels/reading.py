"""Numbers that a kernel wrote, beside what they should be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from modelc.verify.compare import differences
from modelc.verify.kernels.rounding import PLACES, TINY, Rounded, or_zero

Array = NDArray[Any]
ULPS = 4.0  # units in the last place by which two right numbers may differ


class Explanation(NamedTuple):
    """What is known of the elements of a value that are not another engine's: whether all of `ours` are what the kernel
    computes, and whether `theirs` are within what any order of additions leaves of the imported nodes; None where
    nothing can be told of theirs."""

    ours: bool
    theirs: bool | None


BOTH_RIGHT, UNEXPLAINED = Explanation(True, True), Explanation(False, None)


@dataclass(frozen=True)
class Verdict:
    """Samples against the machine: how many, how many of these were computed as the kernel computes them, the largest
    distance of one in units of what is allowed (above 1 the kernel is wrong), where that is and what it is; `open`: of
    how many nothing can be told. `beyond`: it is infinite, or no number, where one is expected."""

    samples: int
    worst: float
    open: int
    sentence: str
    computed: int = 0
    beyond: bool = False


@dataclass(frozen=True)
class Reading:
    """What a kernel wrote at `index`, and what is expected there. `spread`: so many standard deviations of roundings
    are near."""

    numbers: Array
    expected: Rounded
    index: tuple[Array, ...]
    spread: float = 0.0

    def at(self, chosen: Array) -> Reading:
        """Some of the samples, by their numbers; of a result without dimensions, which is one sample, itself."""
        if not self.index:
            return self
        e = self.expected
        sigma, bias = (None if x is None else np.broadcast_to(x, e.value.shape)[chosen] for x in (e.sigma, e.bias))
        expected = Rounded(e.value[chosen], e.dtype, sigma, bias)
        return replace(
            self, numbers=self.numbers[chosen], expected=expected, index=tuple(i[chosen] for i in self.index)
        )

    def or_nearer(self, other: Reading) -> Reading:
        """Each number beside what is expected here, or in `other` where that is nearer; of machines, without sigma."""
        nearer, mine, theirs = other.ratios < self.ratios, self.expected, other.expected
        bias = np.where(nearer, or_zero(theirs.bias), or_zero(mine.bias))
        return replace(self, expected=Rounded(np.where(nearer, theirs.value, mine.value), mine.dtype, None, bias))

    @cached_property
    def allowed(self) -> Array:
        """How far each number may be away."""
        shape, dtype = self.expected.value.shape, self.numbers.dtype.name
        allowed = self.spread * or_zero(self.expected.sigma)
        if not self.spread:
            allowed = allowed + or_zero(self.expected.bias)
        if dtype in PLACES:
            allowed = allowed + ULPS * 2.0 ** -PLACES[dtype] * np.abs(self.expected.value) + 2 * TINY[dtype]
        return np.broadcast_to(np.asarray(allowed, np.float64), shape)

    @cached_property
    def open(self) -> Array:
        """Of which numbers nothing can be told."""
        far = np.broadcast_to(np.asarray(or_zero(self.expected.bias)), self.expected.value.shape)
        return np.asarray(~np.isfinite(far))

    @cached_property
    def ratios(self) -> Array:
        """How far each number is away, in units of what is allowed; 0 where nothing can be told."""
        numbers, wanted = self.numbers, self.expected.value
        if numbers.dtype.kind in "biu":
            apart = differences(numbers, wanted)
        else:
            numbers = numbers.astype(np.float64)
            same = (numbers == wanted) | (np.isnan(numbers) & np.isnan(wanted))
            apart = np.where(same, 0.0, np.abs(numbers - wanted))
        with np.errstate(all="ignore"):  # nothing is within a limit of 0
            ratios = np.where(self.open | (apart == 0), 0.0, apart / np.maximum(self.allowed, 0.0))
        return np.where(np.isnan(ratios), np.inf, ratios)

    @cached_property
    def verdict(self) -> Verdict:
        ratios, wanted = self.ratios, self.expected.value
        if not ratios.size:
            return Verdict(0, 0.0, 0, "")
        k = int(np.argmax(ratios))
        place = [int(i[k]) for i in self.index]
        number, expected, limit = (float(x.reshape(-1)[k]) for x in (self.numbers, wanted, self.allowed))
        sentence = f"at {place}: {number:.9g}, expected {expected:.9g} within {limit:.2g}"
        beyond = bool(np.isfinite(expected) and not np.isfinite(number))
        judged = int(ratios.size - self.open.sum())
        return Verdict(judged, float(ratios.reshape(-1)[k]), int(self.open.sum()), sentence, judged, beyond)
