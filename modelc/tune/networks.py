"""Networks under tuning: each as it is without that, and the distinct Tasks of all and of their alternatives."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from modelc.compile.pipeline import Run
from modelc.compile.programs import Programs
from modelc.database.record import place_of
from modelc.ir.block import Block, Task
from modelc.package.spec import PackageSpec
from modelc.plan.program import Compiled
from modelc.scratch import TemporaryFolder
from modelc.space.analysis.work import block_flops
from modelc.space.cost.roofline import roofline_seconds
from modelc.space.sketch import Floats
from modelc.tune.alternatives import Alternative, alternative_of
from modelc.tune.search.explorers import explorer_class
from modelc.tune.search.learned import LearnedCost
from modelc.tune.search.objectives import Objective, Weights
from modelc.tune.search.population import Space
from modelc.tune.search.scheduler import Scheduler, Work
from modelc.tune.search.transfer_tuning import Transferred
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
        return place_of(task, self.run.target, self.programs.parameter_bytes)


@dataclass(frozen=True)
class Tasks:
    """The distinct Tasks of the alternatives of several networks in which something is open: those of equal hash whose
    constants lie in the same memory are one. `weights` say how often each occurs in each of the `alternatives`."""

    alternatives: tuple[Alternative, ...]
    subjects: tuple[Subject, ...]
    weights: Weights

    def scheduler(
        self, objective: Callable[[Weights, Floats], Objective], kind: type[Scheduler] = Scheduler, seed: int = 0
    ) -> Scheduler:
        """What gives out their rounds; the `objective` is made of the seconds that Tasks take without tuning [n]."""
        work = [subject.work for subject in self.subjects]
        return kind(work, objective(self.weights, np.array([each.seconds for each in work])), seed=seed)


@dataclass
class Subjects:
    """What is tuned of networks for one target, under one policy, each Task once and for all: the explorers of a Task
    are of the kind `explorer`, seeded with `seed`, and share what is `learned` and `transferred`."""

    networks: Sequence[Network]
    explorer: str
    seed: int
    threads: int
    learned: LearnedCost
    transferred: Transferred = field(default_factory=Transferred)
    subjects: dict[tuple[str, str], Subject] = field(default_factory=dict)  # by hash and place
    spaces: dict[tuple[str, str], Space] = field(default_factory=dict)  # by the same

    def tasks(self, alternatives: Sequence[Sequence[Alternative]]) -> Tasks:
        """Of these alternatives of each network, the first of which is what it is without tuning."""
        rows = [(number, alternative) for number, of_network in enumerate(alternatives) for alternative in of_network]
        counts: dict[tuple[str, str], dict[int, float]] = {}  # how often each Task occurs in each row
        first: dict[str, Alternative] = {}
        for row, (number, alternative) in enumerate(rows):
            for key, task in alternative.tasks.items():
                place = self.networks[number].place_of(task)
                counts.setdefault((key, place), {})[row] = float(alternative.occurrences[key])
                first.setdefault(key, alternative)
        subjects, weights = [], []
        for (key, place), often in counts.items():
            owners = {rows[row][0] for row in often}
            each = [often.get(row, 0.0) for row in range(len(rows))]
            differs = len({(owner, count) for (owner, _), count in zip(rows, each, strict=True) if owner in owners})
            if self.space(place, first[key].tasks[key], owners).size < (2 if differs == len(owners) else 1):
                continue
            subjects.append(self.subject(place, key, first[key], owners))
            weights.append(each)
        table = np.array(weights, np.float64).reshape(len(weights), len(rows)).T
        own = tuple(alternative for _, alternative in rows)
        return Tasks(own, tuple(subjects), Weights(table, tuple(number for number, _ in rows)))

    def space(self, place: str, task: Task, owners: Collection[int]) -> Space:
        """Of a Task with constants in a place, as its networks `owners` have them there."""
        if (task.hash, place) not in self.spaces:
            run = self.networks[min(owners)].run
            listed = run.schedules.families(task)
            self.spaces[task.hash, place] = Space(task, run.estimating, run.config.policy, self.threads, listed)
        return self.spaces[task.hash, place]

    def subject(self, place: str, key: str, alternative: Alternative, owners: Collection[int]) -> Subject:
        """The one Subject of a Task of an alternative, with constants in a place; `owners` are its networks."""
        if (key, place) in self.subjects:
            return self.subjects[key, place]
        task, untuned = alternative.tasks[key], alternative.untuned[key]
        space = self.space(place, task, owners)
        operations = float(max(1, sum(block_flops(b) for b in task.blocks if isinstance(b, Block))))
        explorer = explorer_class(self.explorer)(space, self.seed, self.learned)
        explorer.transferred = self.transferred
        floor = roofline_seconds({task, *(s.task for s in space.sketches)}, space.target, self.threads)
        self.subjects[key, place] = Subject(
            key=f"{key} in {place}" if any(key == known for known, _ in self.subjects) else key,
            task=task,
            untuned=untuned,
            explorer=explorer,
            cold_bytes=max(self.networks[number].programs.parameter_bytes for number in owners),
            name=next(b.task.name for p in alternative.programs.rounded for b in p.kernels if b.task.hash == key),
            work=Work(space.untuned(untuned)[1], operations, tuple(s.name for s in space.sketches), floor),
        )
        return self.subjects[key, place]
