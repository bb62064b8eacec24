"""Construction in the manner of Roller: one way down a tree of tilings, for comparison with construct.py.

From the smallest tile that fills a vector, each step enlarges the dimension whose larger tile saves most traffic for
its footprint (the same quotient as Gensor's formula (1)), while it fits; first the registers, then, around the register
tile, the second-level cache. One objective, no way back, no chance.
"""

from __future__ import annotations

import numpy as np
from populations import knobs_at

from modelc.ir.block import Task
from modelc.ir.candidate import Candidate
from modelc.policy import Policy
from modelc.space.construct import (
    CACHE,
    REGISTERS,
    States,
    graph_of,
    measures,
    programs,
    tiling_benefit,
    trips,
)
from modelc.space.cost.model import model_of
from modelc.space.sketches.contraction import Contraction
from modelc.space.sketches.listing import sketches
from modelc.space.sketches.tiled_candidate import tiled_candidate
from modelc.space.tiling.tiled import Tiled, TiledKnobs
from modelc.target import Target


def greedy(task: Task, target: Target) -> Candidate | None:
    """Roller's choice for a tiled float32 Task; None for any other."""
    tiled = tiled_of(task, target)
    return None if tiled is None else tiled_candidate(tiled, greedy_knobs(tiled))


def tiled_of(task: Task, target: Target) -> Tiled | None:
    """The choices of a Task whose one reduction is tiled in vectors of float32; None for any other."""
    for sketch in sketches(task, target, Policy(winograd=False, strassen=False, tensorize=False)):
        if isinstance(sketch, Contraction) and sketch.modelled:
            return sketch.tiled
    return None


def greedy_knobs(tiled: Tiled) -> TiledKnobs:
    """What Roller chooses among a Task's choices."""
    model = model_of(tiled)
    graph = graph_of(model)
    at, zero = np.zeros((1, len(graph.sizes)), np.int64), np.zeros(1, np.int64)
    for level in (REGISTERS, CACHE):
        while True:
            now = measures(graph, graph.tiles(at), level)
            best, chosen = 0.0, None
            for column in (k for k, own in enumerate(graph.levels) if own == level):
                larger = graph.larger(column, at[:, column])
                if larger[0] < 0:
                    continue
                new = at.copy()
                new[:, column] = larger
                then = measures(graph, graph.tiles(new), level)
                benefit = float(tiling_benefit(now[0], then[0], now[1], then[1])[0])
                if then[1][0] <= graph.capacity[level] and then[0][0] < now[0][0] and benefit > best:
                    best, chosen = benefit, new
            if chosen is None:
                break
            at = chosen
    end = [States(at, np.full(1, p, np.int64), zero, zero) for p in range(len(model.parallel))]
    most = max(end, key=lambda s: int(trips(graph, graph.tiles(at), s.parallel)[0]))  # of equals the first
    return knobs_at(model, programs(graph, most), 0)
