"""The Sketches of reductions, whose knobs choose stages too: all Blocks inside one loop over rows (softmax,
normalisations; rows.py), or every Block a loop nest of its own, or columns and what follows them (phases.py)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from math import prod
from typing import Any

import numpy as np

from modelc.ir.block import Block, Task
from modelc.ir.candidate import Candidate, Stage
from modelc.space.analysis.distinct import distinct_rows
from modelc.space.cost.blocks import scheduled_work
from modelc.space.cost.work import Work
from modelc.space.sketch import (
    Bools,
    Floats,
    Knob,
    Points,
    Sketch,
    Value,
    Values,
    one_by_one,
    otherwise,
    recorded,
)
from modelc.space.sketches.phases import (
    PHASE_KNOBS,
    PhaseKnobs,
    columns_candidate,
    columns_task,
    phases_candidate,
)
from modelc.space.sketches.rows import RowKnobs, Rows
from modelc.target import Target

LONGEST_CHAIN = 1 << 18  # of roundings one after the other: where rules make it shorter, no knob makes it longer


def row_sketches(task: Task, target: Target, stages: Sequence[Stage]) -> list[Sketch]:
    """The Sketches of a Task with several reductions, or with one that is neither tiled nor by columns: the one that
    rules would take comes first."""
    noted = [*stages]
    facts = Rows(task, target, noted)
    usual = not facts.inside or (facts.few and not facts.across)
    phases = InPhases("rows", "in phases", facts.task, target, noted, phases_candidate)
    if not facts.inside:
        return [phases]
    by_rules, *others = [phases, InRows(facts)] if usual else [InRows(facts), phases]
    for other in others:
        other.handicap = 1 / (1 - other.doubt)
    return [by_rules, *others]


def column_sketch(task: Task, target: Target, stages: Sequence[Stage]) -> Sketch | None:
    """The Sketch of a Task that begins with its one reduction, one by columns; else None."""
    noted = [*stages]
    by_columns = columns_task(task, noted)
    return (
        None
        if by_columns is None
        else InPhases("reduction", "by columns", by_columns, target, noted, columns_candidate)
    )


def longest_chain(task: Task) -> int:
    """How many elements are added up in one place, one after the other."""
    blocks = [b for b in task.blocks if isinstance(b, Block)]
    return max((prod(i.extent for i in b.reduction) for b in blocks), default=1)


class Reductions(Sketch):
    """A Sketch whose knobs choose stages."""

    def __init__(self, kind: str, name: str, target: Target):
        self.candidates: dict[tuple[Value, ...], tuple[Task, Candidate]] = {}
        task, candidate = self.scheduled(self.start_values())
        super().__init__(kind, name, task, target, candidate.stages)
        self.doubt = target.cost.reduction_doubt_share

    @abstractmethod
    def made(self, values: Values) -> tuple[Task, Candidate]:
        """The Candidate at `values`, and the Task after its stages."""

    @abstractmethod
    def considered(self) -> Sequence[Knob]:
        """Every knob, with values other than that of the rules."""

    def scheduled(self, values: Values) -> tuple[Task, Candidate]:
        """The same as made(), made once."""
        key = tuple(values[name] for name in self.start_values())
        if key not in self.candidates:
            self.candidates[key] = self.made(values)
        return self.candidates[key]

    def all_knobs(self) -> list[Knob]:
        """Of the values that give the same Candidate, where all other knobs are as rules have them, one alone."""
        start, knobs = self.start_values(), []
        for knob in self.considered():
            kept = [start[knob.name]]
            for value in knob.values:
                candidates = [self.scheduled({**start, knob.name: v})[1] for v in kept]
                if value not in kept and self.scheduled({**start, knob.name: value})[1] not in candidates:
                    kept.append(value)
            knobs.append(replace(knob, values=tuple(sorted(kept, key=recorded))))
        return knobs

    def candidate_of(self, values: Values) -> Candidate:
        return self.scheduled(values)[1]

    def derived(self, values: Values) -> Task:
        return self.scheduled(values)[0]

    def legal(self, points: Points) -> Bools:
        """Sums that are as exact as rules have them, or nearly."""
        most = max(LONGEST_CHAIN, longest_chain(self.task))
        distinct, back = distinct_rows(points)
        exact = np.array([longest_chain(self.derived(self.values(p))) <= most for p in distinct], np.bool_)
        return exact[back]

    def work(self, points: Points, cores: int) -> Work:
        return one_by_one(self, points, lambda values: scheduled_work(*self.scheduled(values), self.target, cores))

    def away(self, points: Points) -> Floats:
        return otherwise(self, points)


class InRows(Reductions):
    """All Blocks inside one loop over rows."""

    def __init__(self, facts: Rows):
        self.facts, self.rules = facts, facts.rules()
        super().__init__("rows", "across rows" if facts.across else "along rows", facts.target)

    def start_values(self) -> dict[str, Value]:
        return asdict(self.rules)

    def made(self, values: Values) -> tuple[Task, Candidate]:
        return self.facts.candidate(RowKnobs(**values))

    def considered(self) -> Sequence[Knob]:
        return self.facts.knobs()

    def legal(self, points: Points) -> Bools:
        """No more rows together than the innermost loop over rows has."""
        loops = [knob for knob in self.knobs if knob.name == "parallel"]
        parallel: Sequence[Any] = loops[0].values if loops else (self.fixed["parallel"],)
        most = [self.facts.owner.ranges[self.facts.order(loop)[-1].iterator] for loop in parallel]
        fitting = self.column(points, "together") <= np.array(most)[self.index(points, "parallel")]
        return np.asarray(fitting & super().legal(points))


Scheduling = Callable[[Task, Target, list[Stage], PhaseKnobs], tuple[Task, Candidate]]


class InPhases(Reductions):
    """Every Block a loop nest of its own, or with what follows on stretches of a reduction's results, as `schedule`
    has it."""

    def __init__(
        self,
        kind: str,
        name: str,
        task: Task,
        target: Target,
        stages: Sequence[Stage],
        schedule: Scheduling,
    ):
        self.whole, self.before, self.machine, self.schedule = task, tuple(stages), target, schedule
        super().__init__(kind, name, target)

    def start_values(self) -> dict[str, Value]:
        return asdict(PhaseKnobs())

    def of_any_size(self) -> Values:
        return {**self.start_values(), "parts": 0}  # parts are of a least size

    def made(self, values: Values) -> tuple[Task, Candidate]:
        return self.schedule(self.whole, self.machine, [*self.before], PhaseKnobs(**values))

    def considered(self) -> Sequence[Knob]:
        return PHASE_KNOBS
