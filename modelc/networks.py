"""Networks under tuning: each as it is without that, the distinct Tasks of all, and packages of what was found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from modelc import __version__
from modelc.choices import Choices, occurrences
from modelc.database import Database
from modelc.database.record import NO_CONSTANTS, constants_in
from modelc.database.recorded import Recorded
from modelc.database.whole import gains
from modelc.ir.block import Task
from modelc.ir.candidate import Candidate
from modelc.package import FixedInput
from modelc.package.spec import PackageSpec
from modelc.pipeline import Run
from modelc.plan.program import Compiled
from modelc.programs import Programs
from modelc.search.explorers import explorer_class
from modelc.search.learned import LearnedCost
from modelc.search.population import Space
from modelc.search.scheduler import Work
from modelc.search.tune import Subject
from modelc.space.cost.roofline import roofline_seconds
from modelc.space.sketch import Floats
from modelc.verify import Report
from modelc.wholes import Times, compared


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
        """import to codegen."""
        programs = run.programs()
        compiled = run.kernels(programs.rounded)
        return Network(name, run, output, programs, compiled, run.spec(programs, compiled))

    @cached_property
    def occurrences(self) -> Counter[str]:
        return occurrences(self.programs.rounded)

    def place_of(self, task: Task) -> str:
        """Where the constants of a Task lie, by which measurements are told apart."""
        return constants_in(self.run.target, self.programs.parameter_bytes) if task.constants else NO_CONSTANTS


@dataclass(frozen=True)
class Tasks:
    """The distinct Tasks of several networks in which something is open: those of equal hash whose constants lie in the
    same memory are one. `weights` [networks x n] say how often each occurs in each; `names` are for people, by the
    Subject's key."""

    subjects: tuple[Subject, ...]
    work: tuple[Work, ...]
    weights: Floats
    names: Mapping[str, str]


def tasks_of(networks: Sequence[Network], explorer: str, seed: int, threads: int, learned: LearnedCost) -> Tasks:
    """Of networks for one target, under one policy."""
    explore = explorer_class(explorer)
    target, policy = networks[0].run.target, networks[0].run.config.policy
    where: dict[tuple[str, str], list[int]] = {}  # the networks of each Task
    for number, network in enumerate(networks):
        for key, one in network.compiled.items():
            where.setdefault((key, network.place_of(one.task)), []).append(number)
    subjects, work, weights, names = [], [], [], {}
    spaces: dict[str, Space] = {}
    for (key, place), owners in where.items():
        one = networks[owners[0]].compiled[key]
        space = spaces.setdefault(key, Space(one.task, target, policy, threads))
        if space.size < 2:
            continue
        name = key if key not in names else f"{key} in {place}"
        cold = max(networks[number].programs.parameter_bytes for number in owners)
        subjects.append(Subject(name, one.task, one.candidate, explore(space, seed, learned), cold))
        _, seconds = space.untuned(one.candidate)
        operations = float(max(1, sum(step.flops for step in one.works)))
        floor = roofline_seconds({one.task, *(s.task for s in space.sketches)}, target, threads, cold)
        work.append(Work(seconds, operations, tuple(s.name for s in space.sketches), floor))
        weights.append([float(n.occurrences[key]) if k in owners else 0.0 for k, n in enumerate(networks)])
        programs = (program for network in networks for program in network.programs.rounded)
        names[name] = next(bound.task.name for p in programs for bound in p.kernels if bound.task.hash == key)
    return Tasks(tuple(subjects), tuple(work), np.array(weights).reshape(-1, len(networks)).T, names)


@dataclass(frozen=True)
class Made:
    """A package that was written: `changed` Tasks are otherwise than without tuning, which is none where the whole
    gained nothing."""

    changed: int
    times: Times
    report: Report | None
    notes: tuple[str, ...]


def made(network: Network, subjects: Sequence[Subject], database: Database | None, threads: int, timed: bool) -> Made:
    """Writes the package of what was found for the Tasks of a network; where it can be `timed` here as a whole, if that
    is faster than the untuned one, by turns; else that. With a database, it is what compile takes of it."""
    run, compiled, programs = network.run, network.compiled, network.programs
    places = {key: network.place_of(one.task) for key, one in compiled.items()}
    own = (s for s in subjects if places.get(s.task.hash) == constants_place(network, s))
    changed = {s.task.hash: s.best for s in own if s.best is not s.untuned}
    recorded, policy, cold = None, run.config.policy, programs.parameter_bytes
    if database is not None:
        recorded = Recorded(database, run.target, threads)
        found = recorded.look({key: one.task for key, one in compiled.items()}, policy, cold)
        changed = {key: one for key, one in found.items() if one.key != compiled[key].candidate.key}
    tuned = locked(network, changed) if changed else run
    times = Times()
    if timed:
        spec = tuned.spec(programs, tuned.kernels(programs.rounded)) if changed else None
        times = compared(run, network.spec, spec, threads)
        if changed and recorded is not None:
            choice = recorded.choice(recorded.candidates, network.occurrences, policy, cold)
            recorded.settle(choice, 1e-3 * times.untuned_ms, 1e-3 * times.tuned_ms)
    better = bool(changed) and (not timed or gains(times.untuned_ms, times.tuned_ms))
    taken = tuned if better else run
    *_, report = taken.made(programs, network.output, verify=True, keep_unverified=False)
    notes = (*([times.note] if times.note else []), *taken.notes)
    return Made(len(changed) if better else 0, times, report, notes)


def constants_place(network: Network, subject: Subject) -> str:
    """Where the constants of a Subject lie."""
    task = subject.task
    return constants_in(network.run.target, subject.cold_bytes) if task.constants else NO_CONSTANTS


def locked(network: Network, changed: Mapping[str, Candidate]) -> Run:
    """The same compilation with other Candidates; what has not changed is built."""
    run, programs = network.run, network.programs
    tasks = {key: one.candidate for key, one in network.compiled.items()} | dict(changed)
    constants = tuple(FixedInput.of(name, array) for name, array in run.constants.items())
    made_for = (__version__, run.digest, run.target, run.shapes, constants, run.config)
    choices = Choices(*made_for, tasks, network.occurrences, programs.kept, programs.layouts)
    kept = {key: one for key, one in run.done.items() if key not in changed}
    return replace(run, locked=choices, tasks=tasks, done=kept)
