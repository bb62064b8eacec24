"""Schedules that travel from Task to Task (transfer-tuning; Gibson and Cano, 2022): what was measured to be faster for
one Task of a search than its untuned Candidate is proposed for the Tasks that have a Sketch of the same name, with the
nearest values of its knobs. Like Tasks err alike: where the price puts one wrong, it puts others wrong too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from modelc.measure.measurement import LEAST_GAIN, Measurement
from modelc.space.sketch import Points
from modelc.tune.search.population import Individual, Space

EACH = 4  # of the fastest points of a Task, that others try


@dataclass(frozen=True)
class Faster:
    """A point of the Sketch of that name; `relative` is its time over the untuned Candidate's."""

    relative: float
    sketch: str
    knobs: Mapping[str, int | str]


@dataclass
class Transferred:
    """The fastest points of every Task of a search, by the Task's hash."""

    fastest: dict[str, list[Faster]] = field(default_factory=dict)

    def add(self, task: str, measured: Sequence[tuple[Individual, Measurement]]) -> None:
        """Takes what worked of one Task."""
        faster = [
            Faster(measurement.relative, individual.sketch.name, individual.knobs)
            for individual, measurement in measured
            if measurement.relative < 1 - LEAST_GAIN
        ]
        self.fastest[task] = sorted([*self.fastest.get(task, ()), *faster], key=lambda point: point.relative)[:EACH]

    def rows(self, space: Space) -> Points:
        """The points nearest to those of other Tasks, what gained most there first; legal or not."""
        others = [point for task, points in self.fastest.items() if task != space.task.hash for point in points]
        rows = [space.empty]
        for point in sorted(others, key=lambda point: point.relative):
            for number, sketch in enumerate(space.sketches):
                if sketch.name == point.sketch:
                    with suppress(ValueError):  # it has not that knob, or not that loop
                        rows.append(space.rows(number, sketch.nearest(point.knobs)[None, :]))
        return np.concatenate(rows)
