"""The Sketch of a Task of maps: every Block a loop nest of its own. For each Block B (MapKnobs in maps.py):

B.vectors    vectors in one iteration of the innermost loop
B.chunk      elements of the vector's iterator in one iteration of its outermost loop; 0 where it has one loop alone
B.tile       of a transposition: "line", "square" or ""
B.inner      which iterator's loop is inside those of all others but the vector's, where several strides compete
B.parallel   the loop whose iterations go to threads; "" where it is none
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np

from modelc.ir.block import Block, Task
from modelc.ir.candidate import BlockSchedule, Candidate, Stage
from modelc.ir.loop import ROOT
from modelc.space.cost.blocks import block_cycles, goes_to_threads, work_around
from modelc.space.cost.work import Work
from modelc.space.sketch import Bools, Floats, Knob, Points, Sketch, Value, Values, otherwise
from modelc.space.sketches.maps import Map, MapKnobs
from modelc.space.tiling.parallel import CHUNKS_PER_CORE
from modelc.target import Target

VECTORS = (1, 2, 4)  # in one iteration
PIECES = (1, CHUNKS_PER_CORE, 4 * CHUNKS_PER_CORE)  # per core, that a vector's iterator is cut into
DECIDES = {
    "vectors": "vectors in one iteration of the innermost loop",
    "chunk": "elements of the vector's iterator in one iteration of its outermost loop",
    "tile": "the tile of a transposition",
    "inner": "the iterator whose loop is inside those of all others but the vector's",
    "parallel": "the loop whose iterations go to threads",
}


class Elementwise(Sketch):
    """The Sketch of `task`, of maps alone, the Task after `stages`."""

    def __init__(self, task: Task, target: Target, stages: Sequence[Stage]):
        super().__init__("elementwise", "vectors", task, target, stages)
        self.maps = {b.name: Map(task, b, target) for b in task.blocks if isinstance(b, Block)}
        self.rules = {name: facts.rules(at_root=True) for name, facts in self.maps.items()}

    def all_knobs(self) -> list[Knob]:
        return [
            Knob(f"{name}.{field}", values, f"{DECIDES[field]} of {name}")
            for name, facts in self.maps.items()
            for field, values in map_values(facts, self.rules[name]).items()
        ]

    def start_values(self) -> dict[str, Value]:
        return {
            f"{name}.{field}": value for name, knobs in self.rules.items() for field, value in asdict(knobs).items()
        }

    def schedule_of(self, name: str, values: Values) -> BlockSchedule:
        """The loops of Block `name`."""
        knobs = MapKnobs(**{field: values[f"{name}.{field}"] for field in DECIDES})
        return self.maps[name].schedule(knobs, ROOT, "arena")

    def candidate_of(self, values: Values) -> Candidate:
        return Candidate({name: self.schedule_of(name, values) for name in self.maps}, self.stages)

    def legal(self, points: Points) -> Bools:
        """A chunk has at least the vectors of one iteration."""
        fine = np.ones(len(points), np.bool_)
        for name, facts in self.maps.items():
            chunk, vectors = (self.column(points, f"{name}.{field}") for field in ("chunk", "vectors"))
            fine &= (chunk == 0) | (chunk >= vectors * facts.lanes)
        return fine

    def work(self, points: Points, cores: int) -> Work:
        """No Block's loops change what another one costs: each has a sum of its own, over its own knobs."""
        cycles, forks = np.zeros(len(points)), np.zeros(len(points), np.bool_)
        start, ruled = self.start(), self.candidate_of(self.start_values())
        for block in self.task.blocks:
            assert isinstance(block, Block)
            own = [k for k, knob in enumerate(self.knobs) if knob.name.rpartition(".")[0] == block.name]
            distinct, back = np.unique(points[:, own], axis=0, return_inverse=True)
            sums, threads = np.empty(len(distinct)), np.empty(len(distinct), np.bool_)
            for k, part in enumerate(distinct):
                point = start.copy()
                point[own] = part
                schedule = self.schedule_of(block.name, self.values(point))
                threads[k] = goes_to_threads(schedule)
                candidate = replace(ruled, blocks={**ruled.blocks, block.name: schedule})
                sums[k] = block_cycles(self.task, block, candidate, self.target, cores)
            cycles += sums[back.reshape(-1)]
            forks |= threads[back.reshape(-1)]
        return work_around(self.task, ruled, cycles, self.target, forks=np.where(forks, cores > 1, 0.0))

    def away(self, points: Points) -> Floats:
        return otherwise(self, points)


def map_values(facts: Map, rules: MapKnobs) -> dict[str, tuple[Value, ...]]:
    """The values that each knob of a map may take, those of `rules` among them."""
    vector, ranges, lanes = facts.vector, facts.ranges, facts.lanes
    vectors, chunks, tiles = {rules.vectors}, {rules.chunk}, {rules.tile}
    if vector is not None and facts.crossed is None:
        vectors |= {n for n in VECTORS if n * lanes <= ranges[vector]}
        pieces = {facts.chunk(n * facts.target.cores) for n in PIECES} if facts.long else set()
        chunks |= {0, *(n for n in pieces if lanes < n < ranges[vector])}
    elif facts.crossed is not None:
        tiles |= {"", "line", *(("square",) if facts.squares else ())}
    inner = tuple(facts.others[:-1]) if len(facts.others) > 1 else ()
    loops = [loop for loop in facts.outer(rules) if not loop.level] if rules.parallel else []
    return {
        "vectors": tuple(sorted(vectors)),
        "chunk": tuple(sorted(chunks)),
        "tile": tuple(sorted(tiles)),
        "inner": ("", *inner),
        "parallel": (None, *loops) if loops else (rules.parallel,),
    }
