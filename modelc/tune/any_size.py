"""Tuning packages of any size. A Task's candidates are the schedules that hold at all sizes; the best of them by
estimate are put into packages, the k-th of all Tasks into the k-th, and every step is timed by turns with the same one
of the untuned package (retiming.py), at three sizes. What is compared are geometric means over these."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path

from modelc.compile.open_sizes import OpenRun, distinct_tasks
from modelc.compile.programs import Programs
from modelc.compile.publish import WrongByFiltering
from modelc.database.whole import gains
from modelc.ir.program import Program
from modelc.ir.sizes import Sizes
from modelc.package.runs import mattering
from modelc.package.spec import FreeSize, PackageSpec
from modelc.plan.program import Compiled
from modelc.space.any_size import ranked_at_all_sizes
from modelc.space.choose import Chosen
from modelc.tune.end_to_end import Times, compared
from modelc.tune.retiming import (
    ENTRANTS,
    FINAL,
    HEATS,
    Floats,
    Round,
    finalists,
    gain_of,
    packages_of,
    step_times,
    winner,
)
from modelc.tune.search.tune import Budget, Tuned
from modelc.verify.report import Report

SHARE = 0.01  # of the time of all Tasks, below which a Task is left as it is
QUARTERS = (0.25, 0.5, 0.75)  # of the way from the least size to the most, by factors: where kernels are timed


@dataclass(frozen=True)
class MadeAtSizes:
    """A package of any size that was written: `changed` Tasks of `tasks` have other Candidates than without tuning;
    `times` are geometric means over the sizes."""

    changed: int
    tasks: int
    search: Tuned
    times: Times
    report: Report | None
    notes: tuple[str, ...]


def timed_sizes(free: Sequence[FreeSize]) -> tuple[Sizes, ...]:
    """The sizes at which kernels are timed: those that matter most, where a user has said which; else a small, a middle
    and a large one of each dimension."""
    runs = mattering(free) or [{s.name: round(s.least ** (1 - part) * s.most**part) for s in free} for part in QUARTERS]
    return tuple({tuple(run.values()): run for run in runs}.values())


@dataclass
class TuningAtSizes:
    """The tuning of one model that `run` compiles for any size; `threads` run the kernels that are timed."""

    run: OpenRun
    threads: int
    budget: Budget
    trials: int = 0
    built: dict[tuple[str, str], Compiled] = field(default_factory=dict)  # by Task and Candidate
    start: float = field(default_factory=time.monotonic)

    @cached_property
    def programs(self) -> Programs:
        return self.run.programs()

    @cached_property
    def general(self) -> Program:
        return self.run.general(self.programs)

    @cached_property
    def whole(self) -> Programs:
        """The Programs of the package."""
        return replace(self.programs, rounded=(self.general,))

    @cached_property
    def untuned(self) -> dict[str, Chosen]:
        return self.run.chosen(self.general, self.programs.rounded)

    @cached_property
    def runs(self) -> tuple[Sizes, ...]:
        return timed_sizes(self.run.free)

    def made(self, output: Path) -> MadeAtSizes:
        """Writes the package of what is faster than the untuned one, or that. Ctrl-C ends what is timed, and the
        untuned one is written."""
        changed, times, notes, ended = dict[str, Chosen](), Times(), list[str](), "nothing left"
        try:
            changed, ended, note = self.won()
            notes.append(note)
            specs = {"untuned": self.spec({})} | ({"tuned": self.spec(changed)} if changed else {})
            times = compared(self.run, specs, self.threads, runs=self.runs)
            if changed and not gains(times.untuned_ms, times.tuned_ms):
                changed = {}
        except KeyboardInterrupt:
            changed, ended = {}, "interrupted"
            notes.append("timing was interrupted: the package is the untuned one")
        if times.note:
            notes.append(times.note)
        sizes = "; ".join(", ".join(f"{n}={k}" for n, k in self.run.any_size.dims(run).items()) for run in self.runs)
        notes.append(f"times are geometric means over {sizes}; nothing is recorded in a database")
        seconds = time.monotonic() - self.start
        search = Tuned((), (), self.trials, seconds, ended, 0.0)
        taken = {**self.untuned, **changed}
        try:
            built = self.run.published(self.whole, taken, self.compiled(changed), output, True, False)
        except WrongByFiltering as wrong:
            changed, plain = {}, f"the package is the untuned one with all multiplications, for otherwise it {wrong}"
            built = self.run.without_filters(wrong.tasks, plain).made(self.programs, output, True, False)
        return MadeAtSizes(len(changed), len(taken), search, times, built.report, (*notes, *built.run.notes))

    def won(self) -> tuple[dict[str, Chosen], str, str]:
        """What is faster than the untuned schedules of Tasks, why no more was tried, and a note."""
        shares = self.timed(Round(HEATS.fresh, HEATS.fresh), {}, alone=True)
        entered, ended = self.entrants(shares)
        heats = self.timed(HEATS, entered)
        last = {key: [entered[key][k - 1] for k in finalists(rows, HEATS.fresh)] for key, rows in heats.items()}
        times = self.timed(FINAL, last)
        won = {key: k for key, rows in times.items() if (k := winner(rows, FINAL.fresh))}
        promised = f", which promises {gain_of(times, won):.3f} times the speed" if won else ""
        note = f"finals: {len(won)} of {sum(map(bool, entered.values()))} tasks are likely faster{promised}"
        return {key: last[key][k - 1] for key, k in won.items()}, ended, note

    def entrants(self, untuned: Mapping[str, Floats]) -> tuple[dict[str, list[Chosen]], str]:
        """For each Task that takes part of the time the next best schedules that hold at all sizes, as many as the
        budget leaves; what takes longest first."""
        seconds = {key: float(rows[0].mean()) for key, rows in untuned.items()}
        most = min(ENTRANTS, packages_of(self.general_bytes))
        entered, ended = dict[str, list[Chosen]](), "nothing left"
        tasks = distinct_tasks(self.general, self.programs.rounded)
        for key in sorted(seconds, key=lambda key: -seconds[key]):
            left = int(min(most, self.budget.trials - self.trials))
            if left < 1 or time.monotonic() - self.start >= self.budget.seconds:
                ended = "budget"
                break
            if seconds[key] < SHARE * sum(seconds.values()) or key in self.run.tasks:
                continue
            task, usual = tasks[key]
            self.run.stages.progress("tune", f"{task.name}: schedules that hold at all sizes")
            every = ranked_at_all_sizes(task.canonical(), usual, self.run.schedules, self.run.looks, [])
            distinct = {one.candidate.key: one for one in islice(every, 2 * most)}
            distinct.pop(self.untuned[key].candidate.key, None)
            entered[key] = [*distinct.values()][:left]
            self.trials += len(entered[key])
        return entered, ended

    @property
    def general_bytes(self) -> int:
        return sum(data.nbytes for data in self.general.constants.values())

    def timed(self, stage: Round, entered: Mapping[str, Sequence[Chosen]], alone: bool = False) -> dict[str, Floats]:
        """Milliseconds of every Task, by its hash [its schedules x slices], the first of which is the untuned one;
        nothing where no Task has another one, unless that one is to be timed `alone`."""
        most = max(map(len, entered.values()), default=0)
        if not most and not alone:
            return {}
        ranks = [{key: every[k] for key, every in entered.items() if len(every) > k} for k in range(most)]
        specs = [self.spec(changed) for changed in ({}, *ranks)]
        task_of = {step.symbol: key for (key, _), one in self.built.items() for step in one.kernel.steps}
        say = partial(self.run.stages.progress, "finals" if entered else "compare")
        times = step_times(stage, self.run, specs, task_of, self.threads, say, self.runs)
        return {key: rows[: 1 + len(entered.get(key, ()))] for key, rows in times.items()}

    def spec(self, changed: Mapping[str, Chosen]) -> PackageSpec:
        """The package with other schedules of some Tasks."""
        return self.run.spec(self.whole, self.compiled(changed))

    def compiled(self, changed: Mapping[str, Chosen]) -> dict[str, Compiled]:
        taken = {**self.untuned, **changed}
        new = {key: one for key, one in taken.items() if (key, one.candidate.key) not in self.built}
        if new:
            made = self.run.compiled(self.general, new)
            self.built |= {(key, one.candidate.key): one for key, one in made.items()}
        return {key: self.built[key, one.candidate.key] for key, one in taken.items()}
