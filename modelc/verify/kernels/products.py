"""Contractions of scattered samples: each distinct row of either factor is read once, and rows are multiplied.

samples (position, channel)     [P, K] x [K, C]     P positions, C channels, S = P * C
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.block import Block
from modelc.ir.expr import DTYPES, Expr, Load, Op, conjunction, variables, walk
from modelc.verify.kernels.rounding import Analysis, Rounded, Sums, is_float

Array = NDArray[Any]
PAIRS = 1 << 20  # products of rows that are multiplied pair by pair at once
PARTS = 4  # of a contraction's depth, whose partial sums are looked at
SPARSE = 4  # a row that meets less than one of so many columns is multiplied pair by pair
SMALL = 1 << 13  # products of a group, which take less time pair by pair than one product of matrices


@dataclass(frozen=True)
class Rows:
    """The distinct tuples of some iterators' values: `of` says of every sample which it is."""

    names: tuple[str, ...]
    rows: Array
    of: Array


def rows_of(points: Mapping[str, Array], names: Sequence[str]) -> Rows:
    if not names:
        count = len(next(iter(points.values()))) if points else 1
        return Rows((), np.zeros((1, 0), np.int64), np.zeros(count, np.int64))
    columns = [points[name] for name in names]
    extents = [int(column.max(initial=0)) + 1 for column in columns]
    keys, of = np.unique(np.ravel_multi_index(columns, extents), return_inverse=True)
    return Rows(tuple(names), np.stack(np.unravel_index(keys, extents), axis=1), of.reshape(-1))


@dataclass(frozen=True)
class Factors:
    """A sum of products of two factors: the spatial iterators of each, those of both, and each one's conditions."""

    first: Expr
    second: Expr
    first_names: tuple[str, ...]
    second_names: tuple[str, ...]
    shared: tuple[str, ...]
    guards: tuple[Expr | None, Expr | None]


def factors_of(block: Block) -> Factors | None:
    """None where `block` is no contraction of two factors that both go along the whole reduction."""
    body = block.body[0]
    if block.aggregation != "add" or not isinstance(body, Op) or body.name != "mul":
        return None
    reduction = {i.name for i in block.reduction if i.extent > 1}
    names = [variables(a) for a in body.args]
    if not all(reduction <= n for n in names) or not reduction:
        return None
    spatial = [i.name for i in block.spatial]
    guard = conjunction(block.where) if block.where else None
    guarded = variables(guard) if guard is not None else frozenset()
    one_guards = guarded <= names[0] | {i.name for i in block.iters if i.extent == 1}
    if guard is not None and not one_guards and not guarded <= names[1]:
        return None
    if guard is not None and any(isinstance(x, Load) for x in walk(guard)):
        return None
    in_guard = [guarded if one_guards else frozenset(), frozenset() if one_guards else guarded]
    firsts, seconds = (
        tuple(n for n in spatial if n in used | extra) for used, extra in zip(names, in_guard, strict=True)
    )
    shared = tuple(n for n in firsts if n in seconds)
    guards = (guard, None) if one_guards else (None, guard)
    return Factors(body.args[0], body.args[1], firsts, seconds, shared, guards)


def matrix_products(
    a: Rounded, b: Rounded, of_a: Array, of_b: Array, group: Array, count: int, analysis: Analysis
) -> Rounded | None:
    """Sums of products of rows `of_a` of a and `of_b` of b, those of one group together: rows that meet most columns as
    matrix products, the others, and small groups, pair by pair."""
    sums, depth = _Products.of(count, analysis.power), a.value.shape[1]
    small = np.bincount(group)[group] * depth <= SMALL
    sums.pair(a, b, of_a, of_b, np.flatnonzero(small))
    large = np.flatnonzero(~small)
    order = large[np.argsort(group[large], kind="stable")]
    for members in np.split(order, np.flatnonzero(np.diff(group[order])) + 1) if large.size else ():
        columns = len(np.unique(of_b[members]))
        meets = np.bincount(of_a[members], minlength=len(a.value))
        is_dense = meets[of_a[members]] * SPARSE >= columns
        dense, scattered = members[is_dense], members[~is_dense]
        if dense.size:
            sums.multiply(a, b, of_a, of_b, dense)
        sums.pair(a, b, of_a, of_b, scattered)
    if is_float(a.dtype):
        return analysis.accumulated(sums, a.dtype, depth, products=True)
    if np.abs(sums.value).max(initial=0.0) >= 2.0**53:
        return None
    whole = sums.value.astype(np.int64).astype(DTYPES[a.dtype])
    return Rounded(whole, a.dtype, None, sums.bias if sums.bias.any() else None)


@dataclass(frozen=True)
class _Products(Sums):
    """The sum of products of each sample, which is filled in."""

    variance: Array
    bias: Array
    power: int = field(kw_only=True)

    @classmethod
    def of(cls, count: int, power: int) -> _Products:
        return cls(*(np.zeros(count) for _ in range(5)), power=power)

    def multiply(self, a: Rounded, b: Rounded, of_a: Array, of_b: Array, members: Array) -> None:
        """Samples `members` by matrix products of the rows that they name."""
        rows, at_row = np.unique(of_a[members], return_inverse=True)
        columns, at_column = np.unique(of_b[members], return_inverse=True)
        place = (at_row.reshape(-1), at_column.reshape(-1))
        x, y = _Side.of(a, rows), _Side.of(b, columns)
        total, most = np.zeros((len(rows), len(columns))), np.zeros((len(rows), len(columns)))
        for part in _parts_of(x.value.shape[1], is_float(a.dtype)):
            total += x.value[:, part] @ y.value[:, part].T
            most = np.maximum(most, np.abs(total))
        self.value[members], self.largest[members] = total[place], most[place]
        if is_float(a.dtype):
            self.powers[members] = (x.to(self.power) @ y.to(self.power).T)[place]
        self._add(x, y, members, lambda left, right: (left @ right.T)[place])

    def pair(self, a: Rounded, b: Rounded, of_a: Array, of_b: Array, members: Array) -> None:
        """Samples `members` one by one."""
        most = max(1, PAIRS // max(a.value.shape[1], 1))
        for k in range(0, len(members), most):
            self._pair(a, b, of_a, of_b, members[k : k + most])

    def _pair(self, a: Rounded, b: Rounded, of_a: Array, of_b: Array, members: Array) -> None:
        x, y = _Side.of(a, of_a[members]), _Side.of(b, of_b[members])
        terms = x.value * y.value
        parts = [terms[:, part].sum(axis=1) for part in _parts_of(terms.shape[1], is_float(a.dtype))]
        partial = np.cumsum(parts, axis=0)
        self.value[members], self.largest[members] = partial[-1], np.abs(partial).max(axis=0)
        self.powers[members] = (np.abs(terms) ** self.power).sum(axis=1)
        self._add(x, y, members, lambda left, right: np.einsum("sk,sk->s", left, right))

    def _add(self, x: _Side, y: _Side, members: Array, product: Callable[[Array, Array], Array]) -> None:
        """What the factors' errors come to."""
        for left, right in ((x.variance, y.square), (x.square, y.variance), (x.variance, y.variance)):
            if left is not None and right is not None:
                self.variance[members] += product(left, right)
        for left, right in ((x.bias, y.size), (x.size, y.bias), (x.bias, y.bias)):
            if left is not None and right is not None:
                self.bias[members] += product(left, right)


def _parts_of(depth: int, several: bool) -> list[slice]:
    """A contraction's depth in parts, after each of which a partial sum is looked at."""
    step = max(1, -(-depth // PARTS)) if several else max(1, depth)
    return [slice(k, k + step) for k in range(0, depth, step)]


@dataclass(frozen=True)
class _Side:
    """Some rows of a factor, and what products of errors are made of; None where there are none."""

    value: Array
    variance: Array | None
    bias: Array | None

    @classmethod
    def of(cls, factor: Rounded, rows: Array) -> _Side:
        shape = (len(rows), factor.value.shape[1])
        sigma, bias = (
            None if x is None else np.broadcast_to(x, factor.value.shape)[rows] for x in (factor.sigma, factor.bias)
        )
        value = np.asarray(factor.value[rows], np.float64).reshape(shape)
        return cls(value, None if sigma is None else sigma**2, bias)

    @cached_property
    def square(self) -> Array:
        return self.value**2

    @cached_property
    def size(self) -> Array:
        return np.abs(self.value)

    def to(self, power: int) -> Array:
        """The sizes of the numbers to a power, 1 or 2."""
        return self.square if power == 2 else self.size
