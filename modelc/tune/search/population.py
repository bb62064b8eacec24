"""Points of every Sketch of one Task, as rows of one array [P x (1 + knobs)].

The first column says which Sketch, the others are a point of it, with zeros behind Sketches of fewer knobs: mutation,
crossover and selection work on all Sketches at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from modelc.ir.block import Task
from modelc.ir.candidate import Candidate
from modelc.policy import Policy
from modelc.space.choose import DEFAULT, KEPT
from modelc.space.construct import constructed
from modelc.space.cost.terms import FEATURES, features
from modelc.space.sketch import Bools, Floats, Points, Sketch
from modelc.space.sketches.listing import families
from modelc.target import Target


@dataclass(frozen=True)
class Individual:
    """A point of a Sketch, the row of its Space, and the schedule that it describes."""

    sketch: Sketch
    point: Points
    row: Points
    candidate: Candidate

    @property
    def knobs(self) -> dict[str, int | str]:
        """The values of its knobs, by name, as records keep them."""
        return self.sketch.recorded(self.point)


class Space:
    """Every Sketch of `task` on `target`, of the Tasks that users' rules propose in its place too (`listed` where they
    are known, with what construction has found of them); estimates are for `cores`."""

    def __init__(
        self,
        task: Task,
        target: Target,
        policy: Policy = DEFAULT,
        cores: int = 1,
        listed: Sequence[Sequence[Sketch]] | None = None,
    ) -> None:
        self.task, self.target, self.cores = task, target, cores
        groups = families(task, target, policy) if listed is None else listed
        self.sketches = tuple(s for group in groups for s in group)
        self._constructed: dict[int, Points] = {}  # by cores
        self.widths = np.array([len(s.knobs) for s in self.sketches], np.int64)
        self.sizes = np.ones((len(self.sketches), max(1, *self.widths)), np.int64)
        for number, sketch in enumerate(self.sketches):
            self.sizes[number, : len(sketch.sizes)] = sketch.sizes

    @property
    def size(self) -> int:
        """Points of all Sketches, legal or not."""
        return sum(s.size for s in self.sketches)

    @property
    def empty(self) -> Points:
        return np.zeros((0, 1 + self.sizes.shape[1]), np.int64)

    def rows(self, number: int, points: Points) -> Points:
        """Points of the Sketch `number` as rows."""
        padded = np.zeros((len(points), self.empty.shape[1]), np.int64)
        padded[:, 0] = number
        padded[:, 1 : 1 + points.shape[1]] = points
        return padded

    def points(self, number: int, rows: Points) -> Points:
        """Rows of the Sketch `number` as its points."""
        return rows[:, 1 : 1 + int(self.widths[number])]

    def by_sketch(self, rows: Points) -> Iterator[tuple[Sketch, Bools, Points]]:
        """Each Sketch that rows are of, where they are [P], and its points there."""
        for number in np.unique(rows[:, 0]):
            at = rows[:, 0] == number
            yield self.sketches[number], at, self.points(number, rows[at])

    def legal(self, rows: Points) -> Bools:
        """Which rows describe a schedule [P]."""
        legal = np.zeros(len(rows), np.bool_)
        for sketch, at, points in self.by_sketch(rows):
            legal[at] = sketch.legal(points)
        return legal

    def estimate(self, rows: Points) -> Floats:
        """The price of each, in seconds [P]."""
        estimates = np.zeros(len(rows))
        for sketch, at, points in self.by_sketch(rows):
            estimates[at] = sketch.estimate(points, self.cores)
        return estimates

    def features(self, rows: Points) -> Floats:
        """What the estimates are made of [P x len(FEATURES)]."""
        numbers = np.zeros((len(rows), len(FEATURES)))
        for sketch, at, points in self.by_sketch(rows):
            numbers[at] = features(sketch.work(points, self.cores), self.target.cost)
        return numbers

    def random(self, count: int, rng: np.random.Generator) -> Points:
        """About `count` legal rows, as many of each Sketch as far as it has them, in no order."""
        each = -(-count // len(self.sketches))
        drawn = [self.rows(n, s.random(each, rng)) for n, s in enumerate(self.sketches)]
        return rng.permutation(np.concatenate(drawn))[:count]

    def constructed(self, cores: int) -> Points:
        """What construction finds in each Sketch for `cores`, the best of all first."""
        if cores not in self._constructed:
            constructions = [(n, c) for n, s in enumerate(self.sketches) for c in constructed(s, cores, KEPT)]
            constructions.sort(key=lambda pair: pair[1].seconds)
            self._constructed[cores] = np.concatenate([self.rows(n, c.point[None, :]) for n, c in constructions])
        return self._constructed[cores]

    def untuned(self, candidate: Candidate) -> tuple[Individual | None, float]:
        """The point that the Candidate is which a Task has without tuning, if it is one; and its estimated seconds, or
        those of the best point constructed."""
        rows = self.constructed(self.target.cores)  # as compile does, whatever the threads
        for row in rows:
            if (individual := self.individual(row)).candidate.key == candidate.key:
                return individual, float(self.estimate(row[None, :])[0])
        return None, float(self.estimate(rows[:1])[0])

    def individual(self, row: Points) -> Individual:
        """The schedule that a legal row describes."""
        sketch, point = self.sketches[row[0]], self.points(row[0], row[None, :])[0]
        return Individual(sketch, point, row, sketch.candidate(point))
