"""Machines that are functions: how long a Candidate takes is said, and nothing is built or run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
from three_ways import host_target, task_of

from modelc.database import Conditions
from modelc.ir.block import Task
from modelc.ir.candidate import Candidate
from modelc.measure import Measurement
from modelc.policy import Policy
from modelc.space.choose import chosen
from modelc.target import load_target
from modelc.tune.search.evolve import Explorer, Random
from modelc.tune.search.population import Individual, Space
from modelc.tune.search.tune import Subject

MATMULS = [task_of("MatMul", {}, [(m, 64), (64, 96)], (1,)).canonical() for m in (24, 31)]


class Machine:
    """Takes what `noise` and the Candidate's text say: the untuned one 1 ms, others from 0.5 to 1.5 ms; every fifth
    crashes. Interrupted after so many measurements."""

    def __init__(self, untuned: Sequence[Candidate], noise: float = 0.001, until: int = 1 << 30, lead: int = 0) -> None:
        self.untuned, self.noise, self.until, self.calls = {c.key for c in untuned}, noise, until, 0
        self.lead, self.submitted, self.batch = lead, 0, list[tuple[int, int, Candidate]]()

    def seconds(self, candidate: Candidate) -> float:
        name = candidate.key
        return 1e-3 if name in self.untuned else 1e-3 * (0.5 + (sum(name.encode()) % 101) / 100)

    def subject(self, task: Task, cold_bytes: int) -> Task:
        return task

    def submit(self, task: Task, candidate: Candidate, *, verify: bool) -> int:
        assert verify is False, "points of a Space are verified when they are the fastest"
        self.submitted += 1
        self.batch.append((self.submitted, len(self.batch), candidate))
        return self.submitted

    def results(self) -> Iterator[tuple[int, Measurement]]:
        """The last one first."""
        self.calls += 1
        if self.calls > self.until:
            raise KeyboardInterrupt
        number, index, candidate = self.batch.pop()
        good = Measurement("ok", seconds=self.seconds(candidate), noise=self.noise, reference_seconds=1e-3)
        yield number, Measurement("crashed", "it died") if index % 5 == 4 else good


def subjects_of(tasks: Sequence[Task]) -> list[Subject]:
    found = []
    for task in tasks:
        space = Space(task, host_target())
        found.append(Subject(task.hash, task, chosen(task, host_target()).candidate, Random(space)))
    return found


TARGET = load_target("x86-64-v4")  # nothing runs: what a search finds must not depend on the machine


@cache
def space_of(task: Task) -> Space:
    return Space(task, TARGET)


def seconds_of(space: Space, one: Individual) -> float:
    """A machine on which the closed forms are off by up to 3: small values of the knobs take longer than they say."""
    far = 1 - one.point / np.maximum(np.array(one.sketch.sizes) - 1, 1) if len(one.point) else np.ones(1)
    return float(space.estimate(one.row[None, :])[0] * (1 + 2 * np.mean(far**2)))


def measured(space: Space, found: list[Individual]) -> list[tuple[Individual, Measurement]]:
    return [(one, Measurement("ok", seconds=seconds_of(space, one), reference_seconds=1e-4)) for one in found]


def best_of(explorer: Explorer, rounds: int, count: int) -> float:
    best = np.inf
    for _ in range(rounds):
        found = explorer.propose(count)
        explorer.learn(measured(explorer.space, found))
        best = min(best, *(seconds_of(explorer.space, one) for one in found))
    return best


def conditions(task: Task, cold: int = 0) -> Conditions:
    return Conditions.of(task, TARGET, "v1", 1, 0, Policy())


def explored(space: Space, count: int) -> list[Individual]:
    return [space.individual(row) for row in space.random(count, np.random.default_rng(1))]
