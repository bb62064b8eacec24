"""A Sketch in which nothing is open: rules have settled the whole schedule."""

from __future__ import annotations

import numpy as np

from modelc.ir.block import Task
from modelc.ir.candidate import Candidate
from modelc.space.cost.blocks import scheduled_work
from modelc.space.cost.work import Work
from modelc.space.rules.derivation import derive
from modelc.space.sketch import Knob, Points, Sketch, Value, Values
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

    def candidate_of(self, values: Values) -> Candidate:
        return self.settled

    def work(self, points: Points, cores: int) -> Work:
        return scheduled_work(self.task, self.settled, self.target, cores).take(np.zeros(len(points), np.intp))
