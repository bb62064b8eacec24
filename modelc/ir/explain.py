"""Numbers explained by Sizes: the expression that gives a number's values at several sizes.

A number is tried as

    a * ((s + b) // c) + d        of one Size: what windows, strides and shifts make of an extent; or of such a number
    e * f, e + f + d              of two such numbers, of the same Size or of several: strides, elements, offsets

and holds where all samples agree. What is explained is a conjecture: verification at other sizes decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache, reduce
from math import gcd, isqrt

import numpy as np
from numpy.typing import NDArray

from modelc.ir.expr import Const, Expr, Size, op
from modelc.ir.sizes import Sizes, expr_of, sized

STEPS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 100, 128, 160, 200, 256, 320, 400, 512, 640)
UNUSUAL = (7, 9, 14, 18)  # of Winograd's tiles alone

Values = tuple[int, ...]  # of one number, at each sample


class Unexplained(Exception):
    """No expression of Sizes gives these values."""


@dataclass
class Explained:
    """What is known of numbers at `samples`, of which the first is the base and others differ from it in one Size or in
    several."""

    sizes: tuple[Size, ...]
    samples: tuple[Sizes, ...]
    numbers: dict[Values, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for size in self.sizes:
            self.numbers.setdefault(self._sizes_of(size), sized(size))

    def of(self, places: Sequence[int]) -> Explained:
        """What some of the samples say."""
        numbers = {tuple(values[k] for k in places): number for values, number in self.numbers.items()}
        return Explained(self.sizes, tuple(self.samples[k] for k in places), numbers)

    def number(self, values: Values) -> int:
        """The number with these values at the samples. Raises Unexplained."""
        if len(set(values)) == 1:
            return values[0]
        if values not in self.numbers:
            expr = self._of_one_size(values) or self._product(values) or self._sum(values) or self._of_number(values)
            if expr is None:
                raise Unexplained(f"no expression of {self._names()} gives {self._shown(values)}")
            self.numbers[values] = sized(expr)
        return self.numbers[values]

    def _names(self) -> str:
        return ", ".join(size.name for size in self.sizes)

    def _shown(self, values: Values) -> str:
        pairs = zip(values, self.samples, strict=True)
        return ", ".join(f"{n} at {' '.join(f'{k}={v}' for k, v in run.items())}" for n, run in pairs)

    # --- one Size -------------------------------------------------------------------------------------------------

    def _of_one_size(self, values: Values) -> Expr | None:
        whole = (_quotient(size, self._sizes_of(size), values) for size in self.sizes)
        return next((expr for expr in whole if expr is not None), None)

    def _of_number(self, values: Values) -> Expr | None:
        """The same of a known number that is no Size: tiles along an extent."""
        whole = (_quotient(expr_of(number), at, values) for at, number in [*self.numbers.items()])
        return next((expr for expr in whole if expr is not None), None)

    def _sizes_of(self, size: Size) -> Values:
        return tuple(run[size.name] for run in self.samples)

    # --- products and sums ----------------------------------------------------------------------------------------

    def _product(self, values: Values) -> Expr | None:
        """A known number that divides the values, times what is left."""
        if min(values) <= 0:
            return None
        common = reduce(gcd, values)
        for divisor, known in sorted(self.numbers.items(), key=lambda item: -max(item[0])):
            if min(divisor) > 1 and divisor != values and all(n % d == 0 for n, d in zip(values, divisor, strict=True)):
                left = tuple(n // d for n, d in zip(values, divisor, strict=True))
                other = self._left(left)
                if other is not None:
                    return op("mul", expr_of(known), other)
        if common > 1:
            other = self._left(tuple(n // common for n in values))
            return None if other is None else op("mul", other, common)
        return None

    def _left(self, values: Values) -> Expr | None:
        try:
            number = self.number(values)
        except Unexplained:
            return None
        return expr_of(number)

    def _sum(self, values: Values) -> Expr | None:
        """A known number, times a whole number, and what is left."""
        for part, known in list(self.numbers.items()):
            for scale in (1, -1):
                left = tuple(n - scale * p for n, p in zip(values, part, strict=True))
                other = Const(left[0]) if len(set(left)) == 1 else self._of_one_size(left)
                if other is None and left in self.numbers:
                    other = expr_of(self.numbers[left])
                if other is not None:
                    return op("add", op("mul", expr_of(known), scale), other)
        return None


def _quotient(number: Expr, at: Values, values: Values) -> Expr | None:
    """a * ((number + b) // c) + d, with the smallest usual c, where the number is `at` when they are `values`."""
    by_number: dict[int, int] = {}
    if not all(by_number.setdefault(n, value) == value for n, value in zip(at, values, strict=True)):
        return None
    points = np.array(sorted(by_number.items()), np.int64)
    places, numbers = points[:, :1], points[:, 1:]
    run, rise = int(places[-1, 0] - places[0, 0]), int(numbers[-1, 0] - numbers[0, 0])
    for c in (*STEPS, *UNUSUAL):
        if c > run and c > 1:
            continue
        shifts = np.array(_shifts(c), np.int64)
        quotients = (places + shifts) // c  # [points x shifts]
        slope = Fraction(rise, run) * c
        off = int(abs(slope) * c / run) + 1  # by roundings at both ends
        for a in sorted(_factors(numbers, int(slope) - off, int(slope) + off), key=lambda a: abs(a - slope)):
            if a == 0:
                continue
            apart = numbers - a * quotients
            right = np.flatnonzero((apart == apart[:1]).all(axis=0))
            if right.size:
                b, d = int(shifts[right[0]]), int(apart[0, right[0]])
                return op("add", op("mul", op("floordiv", op("add", number, b), c), a), d)
    return None


def _shifts(c: int) -> Sequence[int]:
    """Shifts below `c`: what rounds down and up first, as most operators do."""
    return sorted(range(c), key=lambda b: (b not in (0, c - 1), b))


def _factors(numbers: NDArray[np.int64], low: int, high: int) -> list[int]:
    """The whole numbers from `low` to `high` of which all the numbers are multiples, but for what they have in common
    with the first."""
    divisors = _divisors(int(np.gcd.reduce(numbers - numbers[:1], axis=None)))
    return [a for a in (*(-d for d in reversed(divisors)), *divisors) if low <= a <= high]


@lru_cache(1 << 10)
def _divisors(number: int) -> tuple[int, ...]:
    """Those of a number from 1 on, in order."""
    tried = np.arange(1, isqrt(number) + 1)
    small = tried[number % tried == 0].tolist()
    return tuple(dict.fromkeys((*small, *(number // d for d in reversed(small)))))
