"""Problems of choosing layouts: drawn factors of cost, Tasks to tell apart, and costs that are told."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from three_ways import task_of

from modelc.ir.block import Task
from modelc.layout.elimination import Factor


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[int], list[Factor]]:
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=6))
    factors = []
    for _ in range(draw(st.integers(0, 7))):
        scope = tuple(sorted(draw(st.sets(st.integers(0, len(sizes) - 1), min_size=1, max_size=3))))
        shape = [sizes[v] for v in scope]
        costs = draw(st.lists(st.integers(0, 20), min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
        factors.append(Factor(scope, np.array(costs, float).reshape(shape)))
    return sizes, factors


def tasks(count: int) -> list[Task]:
    return [task_of("Relu", {}, [(1, n)]) for n in range(1, count + 1)]


@dataclass(frozen=True)
class Known:
    """A cost that is told at once, and the seconds that no schedule is faster than."""

    told: Callable[[Task], float]
    least: float = 0.0

    def seconds(self, task: Task) -> float:
        return self.told(task)

    def floor(self, task: Task) -> float:
        return self.least

    def prepare(self, tasks: Sequence[Task], earnest: bool) -> None:
        pass

    def optimistic(self, task: Task) -> float:
        return self.told(task)


def arbitrary(seed: int):
    """A cost that has nothing to do with the Task, but is the same for equal ones."""
    return Known(lambda task: 1 + hashlib.sha256(f"{seed}{task.hash}".encode()).digest()[0])
