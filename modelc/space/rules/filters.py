"""The matrices of minimal filtering F(m, r): m neighbouring sums of r products each by m + r - 1 products in all
(Winograd, 1980; Lavin and Gray, 2015).

The sums are a product of polynomials, interpolated at a few points and at infinity (Toom, 1963). So all F(m, r) of one
m + r have their points, and the transform of the input, in common; the kernel is evaluated at the points, and results
are recovered by powers of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from modelc.space.rules.sums import Matrix


@dataclass(frozen=True)
class Transform:
    """The three matrices of F(m, r): input (B^T), kernel (G), output (A^T)."""

    input: Matrix
    kernel: Matrix
    output: Matrix


ALONE = Transform(((1,),), ((1,),), ((1,),))  # F(1, 1)


@dataclass(frozen=True)
class _Points:
    """Points beside infinity, what the kernel's value at each is multiplied by, and the transform of the input."""

    at: tuple[float, ...]
    scales: tuple[float, ...]
    input: Matrix


# By the number of points, infinity among them.
_POINTS: dict[int, _Points] = {
    3: _Points((0, 1), (1, 1), ((1, -1, 0), (0, 1, 0), (0, -1, 1))),
    4: _Points((0, 1, -1), (1, 1 / 2, 1 / 2), ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, -1, 0, 1))),
    5: _Points(
        (0, 1, -1, 2),
        (1 / 2, -1 / 2, -1 / 6, 1 / 6),
        ((2, -1, -2, 1, 0), (0, -2, -1, 1, 0), (0, 2, -3, 1, 0), (0, -1, 0, 1, 0), (0, 2, -1, -2, 1)),
    ),
    6: _Points(
        (0, 1, -1, 2, -2),
        (1 / 4, -1 / 6, -1 / 6, 1 / 24, 1 / 24),
        (
            (4, 0, -5, 0, 1, 0),
            (0, -4, -4, 1, 1, 0),
            (0, 4, -4, -1, 1, 0),
            (0, -2, -1, 2, 1, 0),
            (0, 2, -1, -2, 1, 0),
            (0, 4, 0, -5, 0, 1),
        ),
    ),
    8: _Points(
        (0, 1, -1, 2, -2, 1 / 2, -1 / 2),
        (1, -2 / 9, -2 / 9, 1 / 90, 1 / 90, 32 / 45, 32 / 45),
        (
            (1, 0, -21 / 4, 0, 21 / 4, 0, -1, 0),
            (0, 1, 1, -17 / 4, -17 / 4, 1, 1, 0),
            (0, -1, 1, 17 / 4, -17 / 4, -1, 1, 0),
            (0, 1 / 2, 1 / 4, -5 / 2, -5 / 4, 2, 1, 0),
            (0, -1 / 2, 1 / 4, 5 / 2, -5 / 4, -2, 1, 0),
            (0, 2, 4, -5 / 2, -5, 1 / 2, 1, 0),
            (0, -2, 4, 5 / 2, -5, -1 / 2, 1, 0),
            (0, -1, 0, 21 / 4, 0, -21 / 4, 0, 1),
        ),
    ),
}
TAPS = (2, 3, 4, 5)  # r


def sizes(taps: int) -> tuple[int, ...]:
    """Every m > 1 of which there is an F(m, taps)."""
    return tuple(n - taps + 1 for n in _POINTS if n > taps)


@cache
def transform(m: int, taps: int) -> Transform:
    """The matrices of F(m, taps), m in sizes(taps)."""
    points = _POINTS[m + taps - 1]
    kernel = [tuple(scale * at**k for k in range(taps)) for at, scale in zip(points.at, points.scales, strict=True)]
    output = [(*(at**k for at in points.at), 0 if k < m - 1 else 1) for k in range(m)]
    return Transform(points.input, (*kernel, (*[0] * (taps - 1), 1)), tuple(output))
