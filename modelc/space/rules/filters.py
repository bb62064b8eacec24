"""The matrices of minimal filtering F(m, r): m neighbouring sums of r products each by m + r - 1 products in all
(Winograd, 1980; Lavin and Gray, 2015).

The sums are a product of polynomials, interpolated at a few points and at infinity (Toom, 1963). So all F(m, r) of one
m + r have their points, and the transform of the input, in common; the kernel is evaluated at the points, and results
are recovered by powers of them. Points that differ in sign make rows of the transforms that share most additions
(sums.py). Of points whose powers are exact in float32, those of 7 and 9 are among the sets that round least (as
Barabasz et al., Error Analysis and Improving the Accuracy of Winograd Convolution, 2020, search them), without 0.

Whole numbers are transformed exactly: what divides the kernel's evaluations is left to the results, all of which are
then divided by one power of two. There is one for the sets of three and four points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import lcm, prod

from modelc.space.rules.sums import Matrix


@dataclass(frozen=True)
class Transform:
    """The three matrices of F(m, r): input (B^T), kernel (G), output (A^T). Results are `divisor` times the sums, a
    power of two, which is 1 but for whole numbers."""

    input: Matrix
    kernel: Matrix
    output: Matrix
    divisor: int = 1


ALONE = Transform(((1,),), ((1,),), ((1,),))  # F(1, 1)

# Beside infinity, by their number with it.
_POINTS: dict[int, tuple[float, ...]] = {
    3: (0, 1),
    4: (0, 1, -1),
    5: (0, 1, -1, 2),
    6: (0, 1, -1, 2, -2),
    7: (1 / 2, -1 / 2, 1, -1, 2, -2),
    8: (0, 1, -1, 2, -2, 1 / 2, -1 / 2),
    9: (1 / 4, -1 / 4, 5 / 8, -5 / 8, 5 / 4, -5 / 4, 2, -2),
}
TAPS = (2, 3, 4, 5)  # r
DENOMINATORS = 1 << 10  # above all of what divides the kernel's evaluations


def sizes(taps: int) -> tuple[int, ...]:
    """Every m > 1 of which there is an F(m, taps)."""
    return tuple(n - taps + 1 for n in _POINTS if n > taps)


@cache
def transform(m: int, taps: int) -> Transform:
    """The matrices of F(m, taps), m in sizes(taps)."""
    points = _POINTS[m + taps - 1]
    others = [[q for q in points if q != p] for p in points]
    data = [(*_polynomial(roots), 0.0) for roots in others]
    scales = [1 / prod(p - q for q in roots) for p, roots in zip(points, others, strict=True)]
    kernel = [tuple(scale * p**k for k in range(taps)) for p, scale in zip(points, scales, strict=True)]
    output = [(*(p**k for p in points), 0 if k < m - 1 else 1) for k in range(m)]
    at_infinity = (*[0] * (taps - 1), 1)
    return Transform((*data, _polynomial(points)), (*kernel, at_infinity), tuple(output))


@cache
def whole_transform(m: int, taps: int) -> Transform | None:
    """The matrices of F(m, taps) of whole numbers alone; None where results had to be divided by no power of two."""
    real = transform(m, taps)
    scales = [Fraction(row[0] or row[-1]).limit_denominator(DENOMINATORS) for row in real.kernel]
    divisor = lcm(*(scale.denominator for scale in scales))
    if divisor & (divisor - 1) or any(x != int(x) for row in real.input for x in row):
        return None
    kernel = tuple(tuple(x / float(scale) for x in row) for row, scale in zip(real.kernel, scales, strict=True))
    output = tuple(
        tuple(x * float(scale * divisor) for x, scale in zip(row, scales, strict=True)) for row in real.output
    )
    return Transform(real.input, kernel, output, divisor)


def _polynomial(roots: Sequence[float]) -> tuple[float, ...]:
    """The coefficients, from that of x^0, of the polynomial with these roots whose last is 1."""
    coefficients = [1.0]
    for root in roots:
        coefficients = [
            before - root * here for before, here in zip([0.0, *coefficients], [*coefficients, 0.0], strict=True)
        ]
    return tuple(coefficients)
