"""Numbers that a kernel wrote, beside what they should be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.verify.kernels.rounding import Rounded

Array = NDArray[Any]


@dataclass(frozen=True)
class Verdict:
    """Samples against their meaning: how many, the largest distance in units of its bound, where that is and what it
    is; `open`: of how many nothing can be told. `width` is the median of bounds in proportion to the numbers.
    `beyond`: it is infinite, or no number, where one is expected."""

    samples: int
    worst: float
    open: int
    by: str
    sentence: str
    width: float = 0.0
    beyond: bool = False


@dataclass(frozen=True)
class Reading:
    """What a kernel wrote at `index`, and its `meaning` there `by` the model or the Task; `extra` is added to the
    bound."""

    numbers: Array
    meaning: Rounded
    extra: Array
    index: tuple[Array, ...]
    by: str

    def at(self, chosen: Array) -> Reading:
        """Some of the samples, by their numbers; of a result without dimensions, which is one sample, itself."""
        if not self.index:
            return self
        m = self.meaning
        sigma, bias = (None if e is None else np.broadcast_to(e, m.value.shape)[chosen] for e in (m.sigma, m.bias))
        meaning = Rounded(m.value[chosen], m.dtype, sigma, bias)
        extra = self.extra[chosen] if self.extra.ndim else self.extra
        return replace(
            self,
            numbers=self.numbers[chosen],
            meaning=meaning,
            extra=extra,
            index=tuple(i[chosen] for i in self.index),
        )

    @cached_property
    def limit(self) -> Array:
        """How far a right number may be away."""
        return np.broadcast_to(self.meaning.bound + self.extra, self.meaning.value.shape)

    @cached_property
    def ratios(self) -> Array:
        """How far each number is away, in units of its limit; 0 where nothing can be told."""
        numbers, wanted = self.numbers, self.meaning.value
        whole = numbers.dtype.kind in "biu"
        if whole:
            apart = np.abs(numbers.astype(np.float64) - wanted.astype(np.float64))
            apart = np.where(numbers == wanted, 0.0, np.maximum(apart, 1.0))
        else:
            numbers = numbers.astype(np.float64)
            same = (numbers == wanted) | (np.isnan(numbers) & np.isnan(wanted))
            apart = np.where(same, 0.0, np.abs(numbers - wanted))
        with np.errstate(all="ignore"):  # nothing is within a limit of 0
            ratios = np.where(~np.isfinite(self.limit) | (apart == 0), 0.0, apart / np.maximum(self.limit, 0.0))
        if whole:  # a step at a tie is no distance
            ratios = np.where(ratios <= 1, 0.0, ratios)
        return np.where(np.isnan(ratios), np.inf, ratios)

    @cached_property
    def verdict(self) -> Verdict:
        ratios, wanted = self.ratios, self.meaning.value
        if not ratios.size:
            return Verdict(0, 0.0, 0, self.by, "")
        k = int(np.argmax(ratios))
        place = [int(i[k]) for i in self.index]
        number, expected, limit = (float(x.reshape(-1)[k]) for x in (self.numbers, wanted, self.limit))
        sentence = f"at {place}: {number:.9g}, expected {expected:.9g} within {limit:.2g}"
        open_ = ~np.isfinite(self.limit)
        compared = (wanted != 0) & ~open_
        widths = self.limit[compared] / np.abs(wanted[compared].astype(np.float64))
        width = float(np.median(widths)) if widths.size else 0.0
        judged = int(ratios.size - open_.sum())
        beyond = bool(np.isfinite(expected) and not np.isfinite(number))
        return Verdict(judged, float(ratios.reshape(-1)[k]), int(open_.sum()), self.by, sentence, width, beyond)
