"""Populations of the points of a tiled Task: from knobs and back, the whole space, samples of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from modelc.space.cost.analytic import estimate
from modelc.space.cost.model import Model, Population
from modelc.space.sketches.contraction import Contraction
from modelc.space.tiling.tiled import TiledKnobs


def knobs_at(model: Model, population: Population, p: int) -> TiledKnobs:
    """Member `p` as knobs."""
    rows = tuple((n, int(c)) for n, c in zip(model.tiled.inside, population.rows[p], strict=True))
    parallel = model.parallel[int(population.parallel[p])]
    return TiledKnobs(rows, int(population.vectors[p]), int(population.chunk[p]), bool(population.by_rows[p]), parallel)


def population_of(model: Model, knobs: Sequence[TiledKnobs]) -> Population:
    """Knobs as a population. A parallel loop that is none of the model's counts as its first."""
    inside = model.tiled.inside
    place = {loop: k for k, loop in enumerate(model.parallel)}
    return Population(
        np.array([[dict(k.rows)[n] for n in inside] for k in knobs], np.int64).reshape(len(knobs), len(inside)),
        np.array([k.vectors for k in knobs], np.int64),
        np.array([k.chunk for k in knobs], np.int64),
        np.array([k.by_rows for k in knobs], np.bool_),
        np.array([place.get(k.parallel, 0) for k in knobs], np.int64),
    )


def every_candidate(model: Model) -> Population:
    """The whole space: register tiles x chunks x orders x parallel loops."""
    sketch = Contraction(model.tiled)
    points, start = sketch.every(), sketch.start()
    for place, knob in enumerate(sketch.knobs):
        if knob.name in ("steps", "prefetch"):
            points = points[points[:, place] == start[place]]
    every = sketch.population(points)
    table = np.column_stack([every.rows, every.vectors, every.chunk, every.by_rows, every.parallel])
    return every.take(np.unique(table, axis=0, return_index=True)[1])


def random_candidates(model: Model, count: int, seed: int) -> Population:
    """`count` different members of the space (or all of it)."""
    every = every_candidate(model)
    return every.take(np.random.default_rng(seed).permutation(len(every))[:count])


def best_of(model: Model, population: Population) -> TiledKnobs:
    """The knobs of least estimated cost; of equals the first."""
    return knobs_at(model, population, int(np.argmin(estimate(model, population).seconds)))
