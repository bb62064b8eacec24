"""Numbers explained by Sizes: the expression that gives a number's values at several sizes.

A number is tried as

    a * ((s + b) // c) + d        of one Size: what windows, strides and shifts make of an extent; of
                                  another known number: tiles along it
    e * f, e + f + d              of two such numbers, of the same Size or of several: strides, elements, offsets
    e % c + d                     what is left of it

and holds where all samples agree. What is explained is a conjecture: verification at other sizes decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from math import gcd

import numpy as np
from numpy.typing import NDArray

from modelc.ir.expr import Const, Expr, Size, op
from modelc.ir.sizes import Sizes, at, expr_of, sized

STEPS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 100, 128, 160, 200, 256, 320, 400, 512, 640)
UNUSUAL = (7, 9, 14, 18)  # of Winograd's tiles alone
MOST_QUOTIENTS = 1 << 12
MOST_FACTORS = 3

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
    refused: dict[Values, int] = field(default_factory=dict)  # what no expression gives, and how many were known then

    def __post_init__(self) -> None:
        for size in self.sizes:
            self.numbers.setdefault(tuple(run[size.name] for run in self.samples), sized(size))

    @classmethod
    def knowing(cls, numbers: Sequence[int], sizes: tuple[Size, ...], samples: tuple[Sizes, ...]) -> Explained:
        """What is known at the samples where these numbers are."""
        explained = cls(sizes, samples)
        for number in numbers:
            explained.numbers.setdefault(tuple(at(number, run) for run in samples), number)
        return explained

    def of(self, places: Sequence[int]) -> Explained:
        """What some of the samples say."""
        numbers = {tuple(values[k] for k in places): number for values, number in self.numbers.items()}
        return Explained(self.sizes, tuple(self.samples[k] for k in places), numbers)

    def also_at(self, run: Sizes) -> Explained:
        """The same with one sample more."""
        return Explained.knowing([*self.numbers.values()], self.sizes, (*self.samples, run))

    def number(self, values: Values) -> int:
        """The number with these values at the samples. Raises Unexplained."""
        if len(set(values)) == 1:
            return values[0]
        if values not in self.numbers and self.refused.get(values) != len(self.numbers):
            expr = self._simple(values) or self._product(values) or self._sum(values)
            expr = expr or self._of_number(values) or self._left(values)
            if expr is not None:
                self.numbers[values] = sized(expr)
            else:
                self.refused[values] = len(self.numbers)
        if values not in self.numbers:
            raise Unexplained(f"no expression of {self._names()} gives {self._shown(values)}")
        return self.numbers[values]

    def _simple(self, values: Values) -> Expr | None:
        """What is known, a multiple of it and a constant, or a quotient."""
        if len(set(values)) == 1:
            return Const(values[0])
        if values in self.numbers:
            return expr_of(self.numbers[values])
        return self._scaled(values) or self._of_one_size(values)

    def _names(self) -> str:
        return ", ".join(size.name for size in self.sizes)

    def _shown(self, values: Values) -> str:
        pairs = zip(values, self.samples, strict=True)
        return ", ".join(f"{n} at {' '.join(f'{k}={v}' for k, v in run.items())}" for n, run in pairs)

    # --- one Size -------------------------------------------------------------------------------------------------

    def _of_one_size(self, values: Values) -> Expr | None:
        return self._quotient(((size, tuple(run[size.name] for run in self.samples)) for size in self.sizes), values)

    def _of_number(self, values: Values) -> Expr | None:
        """The same of a known number."""
        return self._quotient(((expr_of(number), at) for at, number in [*self.numbers.items()]), values)

    def _quotient(self, numbers: Iterable[tuple[Expr, Values]], values: Values) -> Expr | None:
        """A quotient of one of these numbers, of which each is what it is at the samples."""
        for number, known in numbers:
            by_number: dict[int, int] = {}
            if all(by_number.setdefault(n, value) == value for n, value in zip(known, values, strict=True)):
                fits = quotients(by_number, 1)
                if fits:
                    return fits[0].of(number)
        return None

    # --- products and sums ----------------------------------------------------------------------------------------

    def _scaled(self, values: Values) -> Expr | None:
        """A known number, times a whole one and with another one added: of several the one with the least added."""
        other = next(k for k, n in enumerate(values) if n != values[0])
        rise, found = values[other] - values[0], list[tuple[int, int, int]]()
        for key, known in self.numbers.items():
            run = key[other] - key[0]
            if run and rise % run == 0:
                times = rise // run
                more = values[0] - times * key[0]
                if all(n == times * k + more for n, k in zip(values, key, strict=True)):
                    found.append((times, more, known))
        if not found:
            return None
        times, more, known = min(found, key=lambda one: (abs(one[1]), abs(one[0])))
        return op("add", op("mul", expr_of(known), times), more)

    def _product(self, values: Values, factors: int = MOST_FACTORS) -> Expr | None:
        """A known number that divides the values, times what is left, which may be a product again."""
        if min(values) <= 0:
            return None
        for divisor, known in sorted(self.numbers.items(), key=lambda item: -max(item[0])):
            if min(divisor) > 1 and divisor != values and all(n % d == 0 for n, d in zip(values, divisor, strict=True)):
                left = tuple(n // d for n, d in zip(values, divisor, strict=True))
                other = self._simple(left) or (self._product(left, factors - 1) if factors > 2 else None)
                if other is not None:
                    return op("mul", expr_of(known), other)
        common = reduce(gcd, values)
        if common > 1:
            left = tuple(n // common for n in values)
            other = self._simple(left) or self._sum(left)
            return None if other is None else op("mul", other, common)
        return None

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

    def _left(self, values: Values) -> Expr | None:
        """What is left of a known number that is divided, and a constant."""
        for c in STEPS:
            for key, number in self.numbers.items():
                if len({n - k % c for n, k in zip(values, key, strict=True)}) == 1:
                    return op("add", op("mod", expr_of(number), c), values[0] - key[0] % c)
        return None


@dataclass(frozen=True)
class Quotient:
    """a * ((s + b) // c) + d"""

    a: int
    b: int
    c: int
    d: int

    def of(self, number: Expr) -> Expr:
        return op("add", op("mul", op("floordiv", op("add", number, self.b), self.c), self.a), self.d)

    def at(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.a * ((numbers + self.b) // self.c) + self.d


def quotients(values: Mapping[int, int], most: int = MOST_QUOTIENTS) -> list[Quotient]:
    """The quotients through all values by a number, at most so many: those with the smallest usual c first, and of
    these the shifts that operators make."""
    points = np.array(sorted(values.items()), np.int64)
    at, numbers = points[:, :1], points[:, 1:]
    run, rise = int(at[-1, 0] - at[0, 0]), int(numbers[-1, 0] - numbers[0, 0])
    found: list[Quotient] = []
    for c in (*STEPS, *UNUSUAL):
        if c > run and c > 1:
            continue
        shifts = np.array(_shifts(c), np.int64)
        divided = (at + shifts) // c  # [points x shifts]
        steps = [steps for steps in (run // c, run // c + 1) if steps and rise % steps == 0]  # of the quotient, in all
        for a in sorted({rise // n for n in steps} - {0}, key=lambda a: abs(a * run - rise * c)):
            apart = numbers - a * divided
            for k in np.flatnonzero((apart == apart[:1]).all(axis=0)):
                found.append(Quotient(a, int(shifts[k]), c, int(apart[0, k])))
                if len(found) == most:
                    return found
    return found


def _shifts(c: int) -> Sequence[int]:
    """Shifts below `c`: what rounds down and up first, as most operators do."""
    return sorted(range(c), key=lambda b: (b not in (0, c - 1), b))
