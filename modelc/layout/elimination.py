"""Least sums of tables over few-valued variables: dynamic programming by elimination (bucket elimination, min-sum).

A Factor is a table of costs over some variables; wanted is the assignment of least total cost. A variable is
eliminated by joining the tables that mention it and keeping, for every assignment of its neighbours, its best value:
what a dynamic program over a chain does, for any graph. The variable whose join is smallest goes first. Exact wherever
no table would have more than LIMIT entries; variables in a denser core are set by iterated improvement, one at a time,
from several starts, and everything that hangs on the core is still exact for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

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


@dataclass(frozen=True)
class Step:
    """The elimination of a variable: the join of the tables that mentioned it, and its least over the variable."""

    variable: int
    joined: Factor
    reduced: Factor


def least(sizes: Sequence[int], factors: Sequence[Factor]) -> Best:
    """The assignment of least cost to variables of so many values each; of equal values of a variable the first."""
    steps, left = eliminated(sizes, factors)
    values = [0] * len(sizes)
    core = sorted({v for f in left for v in f.scope})
    if core:
        _improved(values, core, sizes, left)
    for step in reversed(steps):
        at = tuple(slice(None) if u == step.variable else values[u] for u in step.joined.scope)
        values[step.variable] = int(np.argmin(step.joined.table[at]))
    return Best(tuple(values), cost_of(values, factors), not core)


def eliminated(sizes: Sequence[int], factors: Sequence[Factor]) -> tuple[list[Step], list[Factor]]:
    """Eliminates variables as long as no join has more than LIMIT entries: the steps, and the tables that are left,
    which mention the variables of a core."""
    left = _Left(sizes, factors)
    steps: list[Step] = []
    weights = {v: left.weight(v) for v in range(len(sizes))}
    heap = [(w, v) for v, w in weights.items()]
    heapify(heap)
    while heap:
        w, v = heappop(heap)
        if weights.get(v) != w:
            continue  # it has been eliminated, or weighed anew
        if w > LIMIT:
            break
        joined = join(left.taken(v), sizes, v)
        reduced = Factor(tuple(u for u in joined.scope if u != v), joined.table.min(axis=joined.scope.index(v)))
        steps.append(Step(v, joined, reduced))
        del weights[v]
        left.add(reduced)
        for u in reduced.scope:
            weights[u] = left.weight(u)
            heappush(heap, (weights[u], u))
    return steps, left.factors


class _Left:
    """The tables that are left, in the order in which they were made (sums round alike from run to run); for every
    variable which tables mention it, and how many of them its neighbours."""

    def __init__(self, sizes: Sequence[int], factors: Sequence[Factor]) -> None:
        self.sizes, self.made = sizes, 0
        self.by_number: dict[int, Factor] = {}
        self.mentioning: list[set[int]] = [set() for _ in sizes]
        self.neighbours: list[Counter[int]] = [Counter() for _ in sizes]
        for f in factors:
            self.add(f)

    @property
    def factors(self) -> list[Factor]:
        return list(self.by_number.values())

    def add(self, factor: Factor) -> None:
        self.by_number[self.made] = factor
        for v in factor.scope:
            self.mentioning[v].add(self.made)
            self.neighbours[v].update(u for u in factor.scope if u != v)
        self.made += 1

    def taken(self, v: int) -> list[Factor]:
        """The tables that mention `v`, which are dropped."""
        factors = []
        for number in sorted(self.mentioning[v]):
            factors.append(self.by_number.pop(number))
            for u in factors[-1].scope:
                self.mentioning[u].discard(number)
                for other in factors[-1].scope:
                    self.neighbours[u][other] -= 1
                    if self.neighbours[u][other] <= 0:
                        del self.neighbours[u][other]
        return factors

    def weight(self, v: int) -> int:
        """The entries of the join of all tables that mention `v`; more than LIMIT is as good as any number above."""
        entries = self.sizes[v]
        for u in self.neighbours[v]:
            entries *= self.sizes[u]
            if entries > LIMIT:
                break
        return entries


def cost_of(values: Sequence[int], factors: Sequence[Factor]) -> float:
    return float(sum(f.table[tuple(values[v] for v in f.scope)] for f in factors))


def join(factors: Sequence[Factor], sizes: Sequence[int], also: int) -> Factor:
    """The sum of tables, over all of their variables and `also`."""
    scope = tuple(sorted({also, *(v for f in factors for v in f.scope)}))
    total = np.zeros([sizes[v] for v in scope])
    for f in factors:
        total += f.table.reshape([sizes[v] if v in f.scope else 1 for v in scope])
    return Factor(scope, total)


def _improved(values: list[int], core: Sequence[int], sizes: Sequence[int], factors: Sequence[Factor]) -> None:
    """Sets the variables of `core`: each in turn takes its best value for the others', until none changes; from every
    start in which all have the same value, and the best end counts."""
    best: tuple[float, list[int]] | None = None
    around = {v: [f for f in factors if v in f.scope] for v in core}
    for start in range(max(sizes[v] for v in core)):
        now = list(values)
        for v in core:
            now[v] = min(start, sizes[v] - 1)
        for _ in range(ROUNDS):
            before = list(now)
            for v in core:
                costs = np.zeros(sizes[v])
                for f in around[v]:
                    costs += f.table[tuple(slice(None) if u == v else now[u] for u in f.scope)]
                now[v] = int(np.argmin(costs))
            if now == before:
                break
        cost = cost_of(now, factors)
        if best is None or cost < best[0]:
            best = cost, now
    assert best is not None
    values[:] = best[1]
