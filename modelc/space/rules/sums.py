"""Several sums of multiples of the same values; what they have in common is computed once.

Transforms of minimal filtering have pairs of rows that differ in signs (e + o and e - o), and Strassen's sums of halves
of halves repeat each other's. The two terms that most sums share become a value of their own, again and again until no
two are shared (Hartley, Subexpression Sharing in Filters Using Canonic Signed Digit Multipliers, 1996). A factor that
is taken out of such a value is one that both terms have, or a power of two, so that nothing is rounded more often than
where each sum stands alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from math import copysign, frexp

from modelc.ir.expr import Const, Expr, op

Matrix = tuple[tuple[float, ...], ...]
Pair = tuple[int, int, float, float]  # a value: of two others by their numbers, and the factor of each
_Terms = dict[int, float]  # a sum: factors by the numbers of values


@dataclass(frozen=True)
class Shared:
    """Sums in which no two terms are shared: `pairs` are the values that were, numbered behind those that are given
    and in order; `sums` say factors by number."""

    pairs: tuple[Pair, ...]
    sums: tuple[tuple[tuple[int, float], ...], ...]

    @property
    def additions(self) -> int:
        """Of one value each to another, or to a multiple of it."""
        return len(self.pairs) + sum(len(terms) - 1 for terms in self.sums)


def matrix_times(matrix: Matrix, values: Sequence[Expr], dtype: str = "float32") -> tuple[Expr, ...]:
    """For each row of `matrix` the sum of row[k] * values[k], without the zeros, in `dtype`; no row is all zeros."""
    available = list(values)
    sharing = shared(matrix)
    for first, second, a, b in sharing.pairs:
        available.append(_sum([(available[first], a), (available[second], b)], dtype))
    return tuple(_sum([(available[number], factor) for number, factor in terms], dtype) for terms in sharing.sums)


@cache
def shared(matrix: Matrix) -> Shared:
    """The sums that the rows of `matrix` are, of as many values as it has columns."""
    rows: list[_Terms] = [{k: float(x) for k, x in enumerate(row) if x} for row in matrix]
    pairs: list[Pair] = []
    count = len(matrix[0])
    while True:
        often = Counter(pair for row in rows for pair, _ in _pairs(row))
        pair = min(often, key=lambda p: (-often[p], p), default=None)
        if pair is None or often[pair] < 2:
            break
        for row in rows:
            factor = next((f for p, f in _pairs(row) if p == pair), None)
            if factor is not None:
                del row[pair[0]], row[pair[1]]
                row[count + len(pairs)] = factor
        pairs.append(pair)
    return Shared(tuple(pairs), tuple(tuple(sorted(row.items(), key=lambda term: term[1] < 0)) for row in rows))


def _pairs(terms: _Terms) -> Iterator[tuple[Pair, float]]:
    """Every two terms of a sum: a value that they are a multiple of, and its factor."""
    for (first, a), (second, b) in combinations(sorted(terms.items()), 2):
        factor = copysign(_taken_out(abs(a), abs(b)), a)
        yield (first, second, a / factor, b / factor), factor


def _taken_out(a: float, b: float) -> float:
    """The factor that two terms of these magnitudes give to their sum: the one that both have; else the first, where
    that is a power of two and neither is 1 already; else 1."""
    if a == b:
        return a
    return a if frexp(a)[0] == 0.5 and 1 not in (a, b) else 1.0


def _sum(terms: Sequence[tuple[Expr, float]], dtype: str) -> Expr:
    result: Expr | None = None
    for value, factor in terms:
        term = value if abs(factor) == 1 else op("mul", value, Const(abs(factor), dtype))
        if result is None:
            result = term if factor > 0 else op("neg", term)
        else:
            result = op("add" if factor > 0 else "sub", result, term)
    assert result is not None
    return result
