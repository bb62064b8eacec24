"""Networks under tuning: each as it is without that, and the distinct Tasks of all and of their alternatives."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from modelc.compile.pipeline import Run
from modelc.compile.programs import Programs
from modelc.database.record import NO_CONSTANTS, constants_in
from modelc.ir.block import Block, Task
from modelc.package.spec import PackageSpec
from modelc.plan.program import Compiled
from modelc.scratch import TemporaryFolder
from modelc.space.analysis.work import block_flops
from modelc.space.cost.roofline import roofline_seconds
from modelc.tune.alternatives import Alternative, alternative_of
from modelc.tune.search.explorers import explorer_class
from modelc.tune.search.learned import LearnedCost
from modelc.tune.search.objectives import Weights
from modelc.tune.search.population import Space
from modelc.tune.search.scheduler import Work
from modelc.tune.search.tune import Subject


@dataclass(frozen=True)
class Network:
    """A model as `run` compiles it without tuning, and where its package goes."""

    name: str
    run: Run
    output: Path
    programs: Programs
    compiled: Mapping[str, Compiled]
    spec: PackageSpec

    @staticmethod
    def of(name: str, run: Run, output: Path) -> Network:
        """import to codegen. Where contractions may multiply bfloat16, to verify too: which of them do may hang on
        that, and a package that is too far off ends tuning before it begins."""
        if run.config.policy.precision != "f32":
            with TemporaryFolder("untuned") as folder:
                built = run.built(Path(folder) / "untuned.modelc", verify=True, keep_unverified=False)
            return Network(name, built.run, output, built.programs, built.compiled, built.spec)
        programs = run.programs()
        compiled = run.kernels(programs.rounded)
        return Network(name, run, output, programs, compiled, run.spec(programs, compiled))

    @cached_property
    def base(self) -> Alternative:
        """What it is cut into without tuning."""
        return alternative_of(
            self.run, "", self.programs, {key: kernel.candidate for key, kernel in self.compiled.items()}
        )

    def place_of(self, task: Task) -> str:
        """Where the constants of a Task lie, by which measurements are told apart."""
        return constants_in(self.run.target, self.programs.parameter_bytes) if task.constants else NO_CONSTANTS


@dataclass(frozen=True)
class Tasks:
    """The distinct Tasks of the alternatives of several networks in which something is open: those of equal hash whose
    constants lie in the same memory are one. `weights` say how often each occurs in each of the `alternatives`; `names`
    are for people, by the Subject's key."""

    alternatives: tuple[Alternative, ...]
    subjects: tuple[Subject, ...]
    work: tuple[Work, ...]
    weights: Weights
    names: Mapping[str, str]


@dataclass
class Subjects:
    """What is tuned of networks for one target, under one policy, each Task once and for all: the explorers of a Task
    are of the kind `explorer`, seeded with `seed`, and share what is `learned`."""

    networks: Sequence[Network]
    explorer: str
    seed: int
    threads: int
    learned: LearnedCost
    subjects: dict[tuple[str, str], tuple[Subject, Work]] = field(default_factory=dict)  # by hash and place
    spaces: dict[tuple[str, str], Space] = field(default_factory=dict)  # by the same
    names: dict[str, str] = field(default_factory=dict)

    def tasks(self, alternatives: Sequence[Sequence[Alternative]]) -> Tasks:
        """Of these alternatives of each network, the first of which is what it is without tuning."""
        rows = [(number, alternative) for number, of_network in enumerate(alternatives) for alternative in of_network]
        where: dict[tuple[str, str], dict[int, int]] = {}  # how often it occurs in each row
        tasks: dict[str, tuple[Task, Alternative]] = {}
        for row, (number, alternative) in enumerate(rows):
            for key, task in alternative.tasks.items():
                place = self.networks[number].place_of(task)
                where.setdefault((key, place), {})[row] = alternative.occurrences[key]
                tasks.setdefault(key, (task, alternative))
        open_tasks, weights = [], []
        for (key, place), often in where.items():
            task, alternative = tasks[key]
            owners = {rows[row][0] for row in often}
            each = [float(often.get(row, 0)) for row in range(len(rows))]
            alike = all(len({each[row] for row in range(len(rows)) if rows[row][0] == owner}) == 1 for owner in owners)
            if self.space(key, place, task, owners).size < (2 if alike else 1):
                continue
            open_tasks.append(self.subject(key, place, alternative, owners))
            weights.append(each)
        table = np.array(weights, np.float64).reshape(len(weights), len(rows)).T
        subjects, work = tuple(s for s, _ in open_tasks), tuple(w for _, w in open_tasks)
        names = {subject.key: self.names[subject.key] for subject in subjects}
        return Tasks(
            tuple(alternative for _, alternative in rows),
            subjects,
            work,
            Weights(table, tuple(n for n, _ in rows)),
            names,
        )

    def space(self, key: str, place: str, task: Task, owners: Collection[int]) -> Space:
        """Of a Task with constants in a place, as its networks `owners` have them there."""
        if (key, place) not in self.spaces:
            run = self.networks[min(owners)].run
            listed = run.schedules.families(task)
            self.spaces[key, place] = Space(task, run.estimating, run.config.policy, self.threads, listed)
        return self.spaces[key, place]

    def subject(self, key: str, place: str, alternative: Alternative, owners: Collection[int]) -> tuple[Subject, Work]:
        """The one Subject of a Task of an alternative, with constants in a place; `owners` are its networks."""
        if (key, place) in self.subjects:
            return self.subjects[key, place]
        task = alternative.tasks[key]
        space = self.space(key, place, task, owners)
        name = key if key not in self.names else f"{key} in {place}"
        cold = max(self.networks[number].programs.parameter_bytes for number in owners)
        explore = explorer_class(self.explorer)(space, self.seed, self.learned)
        _, seconds = space.untuned(alternative.untuned[key])
        operations = float(max(1, sum(block_flops(b) for b in task.blocks if isinstance(b, Block))))
        floor = roofline_seconds({task, *(s.task for s in space.sketches)}, space.target, self.threads)
        work = Work(seconds, operations, tuple(s.name for s in space.sketches), floor)
        self.names[name] = next(
            b.task.name for p in alternative.programs.rounded for b in p.kernels if b.task.hash == key
        )
        self.subjects[key, place] = Subject(name, task, alternative.untuned[key], explore, cold), work
        return self.subjects[key, place]
