"""Populations of knob vectors of a tiled Task: from knobs and back, the whole space, samples of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from modelc.space.analysis.footprint import Ints
from modelc.space.cost.model import Model, Population
from modelc.space.cost.register_tile import fits
from modelc.space.tiling.tiled import MAX_VECTORS, TiledKnobs


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


def register_tiles(model: Model) -> Ints:
    """Every register tile that fits in the registers, as [tiles x (row iterators + 1)]: rows, then vectors."""
    tiled = model.tiled
    limit = tiled.target.vector.registers
    most = min(MAX_VECTORS, -(-tiled.ranges[tiled.vector] // tiled.lanes))
    extents = [range(1, min(tiled.ranges[n], limit) + 1) for n in tiled.inside]
    tiles = np.array(list(product(*extents, range(1, most + 1))), np.int64)
    return tiles[fits(model.tiled, tiles[:, :-1], tiles[:, -1])]


def chunks(model: Model) -> list[int]:
    """Sizes of a chunk worth trying: doublings and divisors of the first row iterator, and all of it."""
    if not model.tiled.inside:
        return [1]
    extent = model.tiled.ranges[model.tiled.inside[0]]
    doublings = {1 << k for k in range(extent.bit_length())}
    divisors = {d for d in range(1, min(extent, 64) + 1) if extent % d == 0}
    return sorted({*doublings, *divisors, *(extent // d for d in divisors), extent})


def every_candidate(model: Model) -> Population:
    """The whole space: register tiles x chunks x orders x parallel loops."""
    tiles, sizes = register_tiles(model), np.array(chunks(model), np.int64)
    orders = np.array(list(product((False, True), range(len(model.parallel)))), np.int64)
    t, s, o = (x.reshape(-1) for x in np.indices((len(tiles), len(sizes), len(orders))))
    members = Population(tiles[t, :-1], tiles[t, -1], sizes[s], orders[o, 0].astype(np.bool_), orders[o, 1])
    return legal(model, members).unique()


def legal(model: Model, population: Population) -> Population:
    """Chunks rounded to whole register tiles and to the extent; one chunk where panels go outside it anyway."""
    if not model.tiled.inside:
        return population
    rows = population.rows[:, 0]
    extent = model.tiled.ranges[model.tiled.inside[0]]
    whole = -(-extent // rows) * rows
    chunk = np.minimum(np.maximum(population.chunk // rows, 1) * rows, whole)
    return Population(population.rows, population.vectors, chunk, population.by_rows, population.parallel)


def random_candidates(model: Model, count: int, seed: int) -> Population:
    """`count` different members of the space (or all of it), each register tile as likely as any."""
    rng = np.random.default_rng(seed)
    tiles, sizes = register_tiles(model), np.array(chunks(model), np.int64)
    n = 4 * count
    t = tiles[rng.integers(0, len(tiles), n)]
    drawn = Population(
        t[:, :-1],
        t[:, -1],
        sizes[rng.integers(0, len(sizes), n)],
        rng.integers(0, 2, n).astype(np.bool_),
        rng.integers(0, len(model.parallel), n),
    )
    members = legal(model, drawn).unique()
    return members.take(rng.permutation(len(members))[:count])
