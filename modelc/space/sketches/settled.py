"""A Sketch in which nothing is open: rules have settled the whole schedule."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from modelc.ir.block import Task
from modelc.ir.candidate import Candidate
from modelc.space.cost.seconds import task_seconds
from modelc.space.rules.derivation import derive
from modelc.space.sketch import Floats, Knob, Points, Sketch, Value
from modelc.target import Target


class Settled(Sketch):
    """`candidate` of a Task, and nothing else. `task` is the Task after the first `known` of its stages."""

    def __init__(self, kind: str, task: Task, target: Target, candidate: Candidate, applied: int = 0):
        super().__init__(kind, "by rules", derive(task, candidate.stages[applied:]), target, candidate.stages)
        self.settled = candidate

    def all_knobs(self) -> list[Knob]:
        return []

    def start_values(self) -> dict[str, Value]:
        return {}

    def candidate_of(self, values: Mapping[str, Value]) -> Candidate:
        return self.settled

    def estimate(self, points: Points, cores: int) -> Floats:
        return np.full(len(points), task_seconds(self.task, self.settled, self.target, cores))
