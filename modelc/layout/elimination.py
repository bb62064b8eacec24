"""Least sums of tables over few-valued variables: dynamic programming by elimination (bucket elimination, min-sum).

A Factor is a table of costs over some variables; wanted is the assignment of least total cost. A variable is
eliminated by joining the tables that mention it and keeping, for every assignment of its neighbours, its best value:
what a dynamic program over a chain does, for any graph. The variable whose join is smallest goes first. Exact wherever
no table would have more than LIMIT entries; variables in a denser core are set by iterated improvement, one at a time,
from several starts, and everything that hangs on the core is still exact for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

Costs = NDArray[np.float64]

LIMIT = 1 << 16  # entries of one table
ROUNDS = 20  # of iterated improvement; it ends earlier where nothing improves


@dataclass(frozen=True)
class Factor:
    """Costs of every assignment to `scope` (variables, ascending): one axis of `table` for each."""

    scope: tuple[int, ...]
    table: Costs


@dataclass(frozen=True)
class Best:
    """An assignment (a value of each variable), its cost, and whether no other costs less."""

    values: tuple[int, ...]
    cost: float
    exact: bool


def least(sizes: Sequence[int], factors: Sequence[Factor]) -> Best:
    """The assignment of least cost to variables of so many values each; of equal values of a variable the first."""
    left = list(factors)
    steps: list[tuple[int, Factor]] = []
    open_ = set(range(len(sizes)))
    while open_:
        scopes = {v: _neighbours(v, left) for v in open_}
        weight = {v: prod(sizes[u] for u in (*scopes[v], v)) for v in open_}
        v = min(sorted(open_), key=weight.__getitem__)
        if weight[v] > LIMIT:
            break
        joined = join([f for f in left if v in f.scope], sizes, v)
        left = [f for f in left if v not in f.scope]
        steps.append((v, joined))
        axis = joined.scope.index(v)
        left.append(Factor(tuple(u for u in joined.scope if u != v), joined.table.min(axis=axis)))
        open_.remove(v)
    values = [0] * len(sizes)
    if open_:
        _improved(values, sorted(open_), sizes, left)
    for v, joined in reversed(steps):
        at = tuple(slice(None) if u == v else values[u] for u in joined.scope)
        values[v] = int(np.argmin(joined.table[at]))
    return Best(tuple(values), cost_of(values, factors), not open_)


def cost_of(values: Sequence[int], factors: Sequence[Factor]) -> float:
    return float(sum(f.table[tuple(values[v] for v in f.scope)] for f in factors))


def join(factors: Sequence[Factor], sizes: Sequence[int], also: int) -> Factor:
    """The sum of tables, over all of their variables and `also`."""
    scope = tuple(sorted({also, *(v for f in factors for v in f.scope)}))
    total = np.zeros([sizes[v] for v in scope])
    for f in factors:
        total += f.table.reshape([sizes[v] if v in f.scope else 1 for v in scope])
    return Factor(scope, total)


def _neighbours(v: int, factors: Sequence[Factor]) -> set[int]:
    return {u for f in factors if v in f.scope for u in f.scope} - {v}


def _improved(values: list[int], core: Sequence[int], sizes: Sequence[int], factors: Sequence[Factor]) -> None:
    """Sets the variables of `core`: each in turn takes its best value for the others', until none changes; from every
    start in which all have the same value, and the best end counts."""
    found: tuple[float, list[int]] | None = None
    for start in range(max(sizes[v] for v in core)):
        now = list(values)
        for v in core:
            now[v] = min(start, sizes[v] - 1)
        for _ in range(ROUNDS):
            before = list(now)
            for v in core:
                costs = np.zeros(sizes[v])
                for f in factors:
                    if v in f.scope:
                        costs += f.table[tuple(slice(None) if u == v else now[u] for u in f.scope)]
                now[v] = int(np.argmin(costs))
            if now == before:
                break
        cost = cost_of(now, factors)
        if found is None or cost < found[0]:
            found = cost, now
    assert found is not None
    values[:] = found[1]
