"""Schedules that travel from Task to Task (transfer-tuning; Gibson and Cano, 2022): what was measured to be faster for
one Task of a search than its untuned Candidate is proposed for the Tasks that have a Sketch of the same name, with the
nearest values of its knobs. Like Tasks err alike: where the price puts one wrong, it puts others wrong too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from modelc.measure.measurement import LEAST_GAIN, Measurement
from modelc.space.carry import like
from modelc.space.sketch import Points
from modelc.target.records import Point
from modelc.tune.search.population import Individual, Space

EACH = 4  # of the fastest points of a Task, that others try


Faster = tuple[float, Point]  # (a point's time over the untuned Candidate's, the point)


@dataclass
class Transferred:
    """The fastest points of every Task of a search, by the Task's hash."""

    fastest: dict[str, list[Faster]] = field(default_factory=dict)

    def add(self, task: str, measured: Sequence[tuple[Individual, Measurement]]) -> None:
        """Takes what worked of one Task."""
        faster = [
            (measurement.relative, Point(individual.sketch.name, individual.knobs))
            for individual, measurement in measured
            if measurement.relative < 1 - LEAST_GAIN
        ]
        self.fastest[task] = sorted([*self.fastest.get(task, ()), *faster], key=relative_time)[:EACH]

    def rows(self, space: Space) -> Points:
        """The points nearest to those of other Tasks, what gained most there first; legal or not."""
        others = [point for task, points in self.fastest.items() if task != space.task.hash for point in points]
        placed = (near for _, point in sorted(others, key=relative_time) for near in like(space.sketches, point))
        return np.concatenate([space.empty, *(space.rows(x.number, np.array([x.point], np.int64)) for x in placed)])


def relative_time(faster: Faster) -> float:
    return faster[0]
