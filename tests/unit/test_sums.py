"""Sums of multiples that share terms: exactly the matrix's, with fewer additions, rounded no more often."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modelc.ir.expr import Const, Expr, Load, Op
from modelc.space.rules.filters import transform
from modelc.space.rules.strassen import LEVELS, coefficients
from modelc.space.rules.sums import Matrix, matrix_times, shared

FACTORS = st.sampled_from([0.0, 0.0, 1.0, -1.0, 2.0, -0.5, 5.25, -5.25, 3.0, -1.25])


@st.composite
def matrices(draw: st.DrawFn) -> Matrix:
    columns = draw(st.integers(1, 7))
    row = st.tuples(*[FACTORS] * columns).filter(any)
    return tuple(draw(st.lists(row, min_size=1, max_size=8)))


def exact(e: Expr, values: list[Fraction]) -> Fraction:
    if isinstance(e, Load):
        return values[int(e.buffer)]
    if isinstance(e, Const):
        return Fraction(e.value)
    assert isinstance(e, Op)
    parts = [exact(x, values) for x in e.args]
    if e.name == "neg":
        return -parts[0]
    return {"add": parts[0] + parts[-1], "sub": parts[0] - parts[-1], "mul": parts[0] * parts[-1]}[e.name]


def roundings(e: Expr) -> int:
    """The most of any term: of additions, and of products by what is no power of two."""
    if not isinstance(e, Op):
        return 0
    factor = next((x.value for x in e.args if isinstance(x, Const)), None)
    own = e.name in ("add", "sub") or (e.name == "mul" and abs(np.frexp(float(factor))[0]) != 0.5)
    return int(own) + max(map(roundings, e.args))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(matrices(), st.integers(0, 1 << 20))
def test_sums_are_those_of_the_matrix(matrix: Matrix, seed: int) -> None:
    drawn = np.random.default_rng(seed).integers(-1000, 1000, len(matrix[0]))
    values = [Fraction(int(x)) for x in drawn]
    found = matrix_times(matrix, [Load(str(k), ()) for k in range(len(values))])
    assert len(found) == len(matrix)
    for row, one in zip(matrix, found, strict=True):
        assert exact(one, values) == sum(Fraction(x) * v for x, v in zip(row, values, strict=True))
        terms = sum(x != 0 for x in row)
        assert roundings(one) <= terms - 1 + any(np.frexp(abs(x))[0] != 0.5 for x in row if x)
    every = shared(matrix)
    assert every.additions <= sum(sum(x != 0 for x in row) - 1 for row in matrix)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(matrices())
def test_no_two_terms_are_left_that_two_sums_share(matrix: Matrix) -> None:
    """But for the sign of both, where one of the factors is 1."""
    taken = set()
    for terms in shared(matrix).sums:
        for (i, a), (j, b) in combinations(sorted(terms), 2):
            if 1 in (abs(a), abs(b)):
                pair = (i, j, abs(a), b * np.copysign(1, a))
                assert pair not in taken
                taken.add(pair)


@pytest.mark.parametrize(
    ("m", "alone", "together"),
    [(2, (4, 4), (4, 4)), (4, (16, 14), (12, 10)), (6, (36, 32), (24, 20)), (7, (60, 50), (36, 30))],
)
def test_additions_of_transforms(m: int, alone: tuple[int, int], together: tuple[int, int]) -> None:
    """Of the input and of the output, along one dimension."""
    matrices = transform(m, 3)
    both = (matrices.input, matrices.output)
    assert tuple(sum(sum(x != 0 for x in row) - 1 for row in matrix) for matrix in both) == alone
    assert tuple(shared(matrix).additions for matrix in both) == together


@pytest.mark.parametrize("levels", LEVELS)
def test_additions_of_strassens_sums(levels: int) -> None:
    """Sums of sums, halves by halves, would take 4 x 5 + 7 x 5 of the data and 7 x 8 + 4 x 8 of products."""
    by = coefficients(levels)
    assert shared(by.sums).additions == {1: 5, 2: 59}[levels]
    assert shared(by.results).additions == {1: 8, 2: 88}[levels]
