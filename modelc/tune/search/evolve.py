"""Explorers: what to measure next of one Task.

An explorer proposes individuals that it has not proposed before, each legal, and learns what was measured of them.
(A Nest is verified once it is measured and the fastest of its Task so far: measure/bench.py.)
Evolution is Ansor's (section 5.1): selection in proportion to the predicted throughput; mutation of one knob (to a
neighbour, or to any value), or of the Sketch itself; crossover within a Sketch; and a share of random and of
constructed individuals, and of what was faster for other Tasks. What is predicted is the estimate, corrected by what
was measured nearby.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import numpy as np

from modelc.ir.candidate import Candidate
from modelc.measure.measurement import Measurement
from modelc.space.sketch import Floats, Points
from modelc.tune.search.learned import LearnedCost
from modelc.tune.search.population import Individual, Space
from modelc.tune.search.transfer_tuning import Transferred

POPULATION, GENERATIONS = 256, 4
ELITE = 32  # that pass to the next generation as they are
ANCESTORS = 16  # of the best measured, from which each search begins
CROSSED, NEAR, ANYWHERE = 0.35, 0.40, 0.20  # parts of a generation by operation; the rest changes its Sketch
CHANCE = 0.1  # of a batch that is random
DRAWN = 8  # rows that are drawn for each random one that is wanted
SCORED = 20  # of what evolution finds best, that the learned cost scores too: it takes milliseconds for each
GUIDED = 0.25  # of a batch, at least, that is constructed, until nothing constructed is left
TRANSFERRED = 0.25  # of a batch, at most, that was faster for other Tasks
REACH = 0.15  # of a knob's range: how far a measurement speaks for other values
PRIOR = 1.0  # measurements that the mean of what is known is worth


class Residual:
    """Estimates of a space, corrected by what was measured in it: log(measured / estimated) near a point, from what was
    measured of its Sketch. Until enough is measured it is the Sketch's mean, and without any it is 0."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.rows, self.seconds, self.errors = space.empty, np.zeros(0), np.zeros(0)  # measured

    def learn(self, rows: Points, seconds: Floats) -> None:
        """Takes measured seconds of rows."""
        self.rows = np.concatenate([self.rows, rows])
        self.seconds = np.concatenate([self.seconds, seconds])
        self.errors = np.concatenate([self.errors, np.log(seconds / self.space.estimate(rows))])

    def fastest(self, count: int) -> Points:
        """The rows that were measured to be the fastest."""
        return self.rows[np.argsort(self.seconds, kind="stable")[:count]]

    def predict(self, rows: Points) -> Floats:
        """Seconds of each row."""
        return np.asarray(self.space.estimate(rows) * np.exp(self._errors(rows)), np.float64)

    def _errors(self, rows: Points) -> Floats:
        """Sums of known errors, weighted by nearness, and of the Sketch's own mean; of the mean of all for a Sketch of
        which little is known."""
        predicted = np.full(len(rows), float(self.errors.mean()) if len(self.errors) else 0.0)
        for number in np.unique(self.rows[:, 0]):
            at, measured = rows[:, 0] == number, self.rows[:, 0] == number
            if not at.any():
                continue
            errors, ranges = self.errors[measured], np.maximum(self.space.sizes[number] - 1, 1)
            mean = (predicted[at] * PRIOR + errors.sum()) / (PRIOR + len(errors))
            apart = (rows[at, 1:][:, None, :] - self.rows[measured, 1:][None, :, :]) / ranges
            near = np.exp(-0.5 * np.sum((apart / REACH) ** 2, axis=2))
            predicted[at] = (mean * PRIOR + near @ errors) / (PRIOR + near.sum(axis=1))
        return predicted


class Explorer(ABC):
    """What proposes individuals of `space`; equal seeds and equal measurements give equal proposals. `learns`: by a
    learned cost, if it is given one. `transferred` is what other Tasks of its search give, if it is given that."""

    learns = False
    transferred: Transferred | None = None

    def __init__(self, space: Space, seed: int = 0, learned: LearnedCost | None = None) -> None:
        self.space, self.rng, self.learned = space, np.random.default_rng(seed), learned
        self.seen: set[str] = set()  # Candidates
        self._tried: set[bytes] = set()  # rows, accepted or not

    @abstractmethod
    def propose(self, count: int) -> list[Individual]:
        """At most `count` individuals to measure, none of which was proposed before; none: the space is exhausted, as
        far as this explorer goes."""

    def learn(self, measured: Sequence[tuple[Individual, Measurement]]) -> None:  # noqa: B027 (most need nothing)
        """Takes what became of individuals."""

    def skip(self, candidate: Candidate) -> None:
        """Says that `candidate` is measured otherwise."""
        self.seen.add(candidate.key)

    def new(self, rows: Points) -> Points:
        """Those of `rows` that were not tried yet, once each, in their order."""
        kept: dict[bytes, Points] = {}
        for row in rows:
            if (key := row.tobytes()) not in self._tried:
                kept.setdefault(key, row)
        return np.stack(list(kept.values())) if kept else self.space.empty

    def take(self, rows: Iterable[Points], count: int) -> list[Individual]:
        """The first `count` of `rows` that are legal and new."""
        accepted: list[Individual] = []
        for row in rows:
            if len(accepted) >= count:
                break
            if (key := row.tobytes()) in self._tried:
                continue
            self._tried.add(key)
            if not self.space.legal(row[None, :])[0]:
                continue
            individual = self.space.individual(row)
            if (name := individual.candidate.key) not in self.seen:
                self.seen.add(name)
                accepted.append(individual)
        return accepted

    def drawn(self, count: int) -> list[Individual]:
        """At most `count` random ones."""
        return self.take(self.space.random(max(DRAWN * count, ELITE), self.rng), count)


class Random(Explorer):
    """Points by chance."""

    def propose(self, count: int) -> list[Individual]:
        return self.drawn(count)


class Evolve(Explorer):
    """Evolution on all Sketches at once."""

    learns = True

    def __init__(self, space: Space, seed: int = 0, learned: LearnedCost | None = None) -> None:
        super().__init__(space, seed, learned)
        self.residual = Residual(space)
        self.built = space.constructed(space.cores)

    def propose(self, count: int) -> list[Individual]:
        proposals = self.take(self.built, max(1, round(GUIDED * count)))
        if self.transferred is not None:
            proposals += self.take(self.transferred.rows(self.space), round(TRANSFERRED * count))
        best = self.sorted(self.explored())
        proposals += self.take(best, count - len(proposals) - round(CHANCE * count))
        proposals += self.drawn(count - len(proposals))
        return proposals + self.take(best, count - len(proposals))

    def learn(self, measured: Sequence[tuple[Individual, Measurement]]) -> None:
        good = [(individual, m) for individual, m in measured if m.ok]
        if good:
            rows, seconds = np.stack([i.row for i, _ in good]), np.array([m.seconds for _, m in good])
            self.residual.learn(rows, seconds)
            if self.transferred is not None:
                self.transferred.add(self.space.task.hash, good)
            if self.learned is not None:
                self.learned.add(self.space, [(individual, m.relative) for individual, m in good])

    def sorted(self, rows: Points) -> Points:
        """`rows`, the first of them in the order of the learned cost, where that is used."""
        if self.learned is None or self.learned.fitted is None:
            return rows
        first = rows[:SCORED]
        scores = self.learned.scores(self.space, [self.space.individual(row) for row in first])
        if scores is None:
            return rows
        order = np.argsort(-scores, kind="stable")
        return np.concatenate([first[order[np.isfinite(scores[order])]], rows[SCORED:]])

    def explored(self) -> Points:
        """What some generations find that was not tried yet, the fastest predicted first."""
        rows = self.beginning()[:POPULATION]
        explored, seconds = self.space.empty, np.zeros(0)
        for generation in range(GENERATIONS + 1):
            rows = np.unique(rows, axis=0)
            predicted = self.residual.predict(rows)
            explored, seconds = np.concatenate([explored, rows]), np.concatenate([seconds, predicted])
            if generation < GENERATIONS:
                elite = rows[np.argsort(predicted, kind="stable")[:ELITE]]
                rows = np.concatenate([elite, self.children(rows, predicted)])
        return self.new(explored[np.argsort(seconds, kind="stable")])

    def beginning(self) -> Points:
        """The best measured, what is constructed, and some by chance."""
        ancestors = self.residual.fastest(ANCESTORS)
        return np.concatenate([ancestors, self.built, self.space.random(POPULATION, self.rng)])

    def children(self, rows: Points, seconds: Floats) -> Points:
        """The legal ones of the next generation. The fitness of a row is its throughput."""
        fitness = 1 / seconds
        parents = rows[self.rng.choice(len(rows), POPULATION - ELITE, p=fitness / fitness.sum())]
        mates = rows[self.rng.choice(len(rows), len(parents), p=fitness / fitness.sum())]
        way = self.rng.random(len(parents))
        crossing, near, anywhere = np.cumsum([CROSSED, NEAR, ANYWHERE])
        changed = [
            crossed(parents, mates, self.rng),
            stepped(self.space, parents, self.rng),
            redrawn(self.space, parents, self.rng),
        ]
        children = np.select([way[:, None] < limit for limit in (crossing, near, anywhere)], changed, parents)
        for place in np.flatnonzero(way >= anywhere):
            children[place] = moved(self.space, parents[place], self.rng)
        return np.asarray(children[self.space.legal(children)], np.int64)


def crossed(parents: Points, mates: Points, rng: np.random.Generator) -> Points:
    """Each knob of either parent, where both are of one Sketch; else the first."""
    alike = parents[:, :1] == mates[:, :1]
    return np.asarray(np.where(alike & (rng.random(parents.shape) < 0.5), mates, parents), np.int64)


def stepped(space: Space, rows: Points, rng: np.random.Generator) -> Points:
    """One knob of each, moved to a neighbouring value."""
    changed: Points = rows.copy()
    at, knob = np.arange(len(rows)), _open_knob(space, rows, rng)
    most = space.sizes[rows[:, 0], knob] - 1
    changed[at, 1 + knob] = np.clip(rows[at, 1 + knob] + rng.integers(0, 2, len(rows)) * 2 - 1, 0, most)
    return changed


def redrawn(space: Space, rows: Points, rng: np.random.Generator) -> Points:
    """One knob of each at any of its values."""
    changed: Points = rows.copy()
    at, knob = np.arange(len(rows)), _open_knob(space, rows, rng)
    changed[at, 1 + knob] = rng.integers(0, space.sizes[rows[:, 0], knob])
    return changed


def _open_knob(space: Space, rows: Points, rng: np.random.Generator) -> Points:
    """A knob of each row's Sketch; the first where it has none."""
    return np.asarray(rng.integers(0, np.maximum(space.widths[rows[:, 0]], 1)), np.int64)


def moved(space: Space, row: Points, rng: np.random.Generator) -> Points:
    """The row in another Sketch: knobs of the same name keep their value or the nearest one that there is, others are
    as that Sketch's start has them."""
    number = int(rng.integers(0, len(space.sketches)))
    old, new = space.sketches[row[0]], space.sketches[number]
    values = old.values(space.points(row[0], row[None, :])[0])
    point = new.start()
    for place, knob in enumerate(new.knobs):
        value, sizes = values.get(knob.name), [v for v in knob.values if isinstance(v, int)]
        if value in knob.values:
            point[place] = knob.values.index(value)
        elif isinstance(value, int) and len(sizes) == len(knob.values):
            point[place] = int(np.argmin([abs(size - value) for size in sizes]))
    return np.asarray(space.rows(number, point[None, :])[0])
