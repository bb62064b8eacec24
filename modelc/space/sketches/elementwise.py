"""The Sketch of a Task of maps: every Block a loop nest of its own, with the knobs of its loops (maps.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields, replace

import numpy as np

from modelc.ir.block import Block, Task
from modelc.ir.candidate import BlockSchedule, Candidate, Stage
from modelc.ir.loop import ROOT
from modelc.space.analysis.distinct import distinct_rows
from modelc.space.cost.blocks import block_cycles, goes_to_threads, work_around
from modelc.space.cost.work import Work
from modelc.space.sketch import Bools, Floats, Knob, Points, Sketch, Value, Values, otherwise
from modelc.space.sketches.maps import Map, MapKnobs
from modelc.target import Target


class Elementwise(Sketch):
    """The Sketch of `task`, of maps alone, the Task after `stages`."""

    def __init__(self, task: Task, target: Target, stages: Sequence[Stage]):
        super().__init__("elementwise", "vectors", task, target, stages)
        self.maps = {b.name: Map(task, b, target) for b in task.blocks if isinstance(b, Block)}
        self.rules = {name: facts.rules(at_root=True) for name, facts in self.maps.items()}

    def all_knobs(self) -> list[Knob]:
        return [
            Knob(f"{name}.{knob.name}", knob.values, f"{knob.decides} of {name}")
            for name, facts in self.maps.items()
            for knob in facts.knobs(self.rules[name])
        ]

    def start_values(self) -> dict[str, Value]:
        return {
            f"{name}.{field}": value for name, knobs in self.rules.items() for field, value in asdict(knobs).items()
        }

    def schedule_of(self, name: str, values: Values) -> BlockSchedule:
        """The loops of Block `name`."""
        knobs = MapKnobs(**{field.name: values[f"{name}.{field.name}"] for field in fields(MapKnobs)})
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
            distinct, back = distinct_rows(points[:, own])
            sums, threads = np.empty(len(distinct)), np.empty(len(distinct), np.bool_)
            for k, part in enumerate(distinct):
                point = start.copy()
                point[own] = part
                schedule = self.schedule_of(block.name, self.values(point))
                threads[k] = goes_to_threads(schedule)
                candidate = replace(ruled, blocks={**ruled.blocks, block.name: schedule})
                sums[k] = block_cycles(self.task, block, candidate, self.target, cores)
            cycles += sums[back]
            forks |= threads[back]
        return work_around(self.task, ruled, cycles, self.target, forks=np.where(forks, cores > 1, 0.0))

    def away(self, points: Points) -> Floats:
        return otherwise(self, points)
