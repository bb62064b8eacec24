"""Tuning a model: its Tasks' Candidates are searched by measuring on this machine, and the package is written from what
was found if that is faster than without, timed as wholes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from modelc import __version__
from modelc.choices import Choices, Shapes, digest_of, occurrences
from modelc.config import Config, load_config
from modelc.database import Conditions, Database, code_version, database_for
from modelc.database.recorded import Recorded
from modelc.database.whole import gains
from modelc.errors import ConfigError, TargetError, blaming
from modelc.frontend.steering import Given
from modelc.inputs import Flags
from modelc.ir.block import Task
from modelc.ir.candidate import Candidate
from modelc.ir.program import Program
from modelc.measure import Measurement, Measurer, Where
from modelc.package import FixedInput, check_place, emulator, find_toolchain, machine_of
from modelc.package.toolchain import native_machine
from modelc.pipeline import Run
from modelc.plan.program import Compiled
from modelc.search.explorers import explorer_class
from modelc.search.learned import LearnedCost
from modelc.search.population import Space
from modelc.search.resume import Memory
from modelc.search.scheduler import Scheduler, Work, total
from modelc.search.standing import Standing, Watch
from modelc.search.tune import Budget, Measure, Moment, Subject, Tuned, tune_tasks
from modelc.space.cost.seconds import task_seconds
from modelc.stages import Progress, Stages
from modelc.target import Target, load_target
from modelc.verify import Report
from modelc.wholes import Times, compared


@dataclass(frozen=True)
class TuneResult:
    """`path` is the package; `tuned` says whether it is made of what was found, `changed` of how many of its Tasks
    tuning chose otherwise. `times` are of both packages and of ONNX Runtime, by turns.
    `known` records were in `database` before; `notes` say what else was noteworthy."""

    path: Path
    tuned: bool
    changed: int
    tasks: int
    search: Tuned
    times: Times
    report: Report | None
    database: Path | None = None
    known: int = 0
    notes: tuple[str, ...] = ()

    @property
    def speedup(self) -> float:
        """The untuned package's time over the tuned one's."""
        return self.times.untuned_ms / self.times.tuned_ms if self.times.tuned_ms else 1.0

    def to_json(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "tuned": self.tuned,
            "tasks": self.tasks,
            "changed_tasks": self.changed,
            "ended": self.search.ended,
            "measurements": self.search.trials,
            "database": None if self.database is None else str(self.database),
            "known_records": self.known,
            "notes": list(self.notes),
            "seconds": round(self.search.seconds, 3),
            "search_seconds": round(self.search.searching, 3),
            "untuned_ms": self.times.untuned_ms,
            "tuned_ms": self.times.tuned_ms,
            "ort_ms": self.times.ort_ms,
            "speedup": self.speedup,
            "log": [moment.to_json() for moment in self.search.log],
            "verification": None if self.report is None else self.report.to_json()["summary"],
        }


def tune(
    model: str | Path,
    target: str | Path | Target | None = None,
    budget: str | Budget = "5m",
    explorer: str = "evolve",
    output: str | Path | None = None,
    seed: int = 0,
    shapes: Sequence[Shapes] = (),
    threads: int = 1,
    database: str | Path | bool = True,
    progress: Progress | None = None,
    dims: Mapping[str, int | Sequence[int]] | None = None,
    constants: Mapping[str, Given] | None = None,
    config: str | Path | Config | None = None,
    watch: Callable[[Standing], None] | None = None,
    runner: str = "local",
) -> TuneResult:
    """Compiles `model` to a package at `output` (MODEL.modelc in the working folder) with Candidates that were measured
    to be fast on this machine, kernels running on `threads` threads.

    `budget` is what measuring may take: a time (`5m`), or a number of measurements (`2000`). Ctrl-C ends measuring, and
    the package is made of the best so far. `dims`, `constants` and `config` are those of compile. If the whole is not
    faster than the untuned package, that is written. `watch` is told how tuning stands after each round.
    Every measurement is added to `database` at once (True: the user's own, False: none), and what it knows of just this
    target and version of modelc on so many threads is not measured again: the same call again goes on.
    `runner` is `local`; or a command that runs programs of the target, to which the path of one is appended; or a
    board, `ssh://USER@HOST:PORT/FOLDER`: kernels are measured there, and packages are not timed as wholes unless this
    machine is the target. Raises ModelcError."""
    spend = budget if isinstance(budget, Budget) else Budget.parse(budget)
    explorer_class(explorer)
    path = Path(model)
    digest = digest_of(path)
    where = Where.parse(runner)
    if target is None and where.elsewhere:
        raise ConfigError(f"kernels run on {where.text}: name the target that it is by --target")
    found = target if isinstance(target, Target) else load_target(target if target is not None else "native")
    if where.here:
        _check_here(found)
    say = progress or (lambda stage, text: None)
    settings = config if isinstance(config, Config) else load_config(config if config is not None else "default")
    with blaming(f"model {path}"):
        steering = Flags(tuple(shapes), dims or {}, constants or {}).over(settings.inputs).applied(path)
    run = Run(path, digest, found, settings, steering.shapes, constants=steering.constants, stages=Stages(progress=say))
    if run.config.policy.precision == "auto":
        raise ConfigError("precision auto is decided by verification and cannot be tuned: configure bf16 or f32")
    place = Path(output) if output is not None else Path(f"{path.stem}.modelc")
    check_place(place)
    find_toolchain(found.triple)
    emulator(found.triple)  # for verification
    known, note = database_for(database, write=True)
    with known or nullcontext(), blaming(f"model {path}"):
        result = _tuned(run, _Asked(place, spend, explorer, seed, threads, where, known, watch))
    return replace(result, notes=(note, *result.notes)) if note else result


def _is_target(target: Target, where: Where) -> bool:
    """Whether packages are timed here as wholes: kernels ran here, or on a machine of the same key."""
    return where.here or (where.elsewhere and load_target("native").key == target.key)


def _check_here(target: Target) -> None:
    """Raises TargetError where this machine cannot run code for `target`."""
    if machine_of(target.triple) != native_machine():
        raise TargetError(
            f"the target {target.name} is {target.triple}: tuning measures, and this machine cannot; say through "
            "which --runner"
        )
    lacking = sorted(set(target.features) - set(load_target("native").features))
    if lacking:
        raise TargetError(
            f"the target {target.name} has features that this machine lacks ({', '.join(lacking[:5])}): tuning "
            "measures, so it needs a target that this machine runs, such as native, or a --runner"
        )


@dataclass(frozen=True)
class _Asked:
    output: Path
    budget: Budget
    explorer: str
    seed: int
    threads: int
    where: Where
    database: Database | None
    watch: Callable[[Standing], None] | None


def _tuned(run: Run, asked: _Asked) -> TuneResult:
    _, programs = run.programs()
    compiled = run.kernels(programs)
    spec = run.spec(programs, compiled, run.kept)
    threads, seed = asked.threads, asked.seed
    learned = LearnedCost(seed)
    subjects, scheduler = _subjects(run, programs, compiled, asked.explorer, seed, threads, learned)
    names = {bound.task.hash: bound.task.name for program in programs for bound in program.tasks}
    watched = Watch(subjects, names, scheduler, asked.budget)

    def follow(moment: Moment, subject: Subject) -> None:
        run.stages.progress(
            "tune", f"{moment.seconds:.0f} s, {moment.trials} measured, {1e3 * moment.predicted:.3f} ms predicted"
        )
        if asked.watch is not None:
            asked.watch(watched.after(moment, subject))

    memory, known, cold = None, 0, run.parameter_bytes
    if asked.database is not None:
        made_for = run.target, code_version(run.target), threads, cold, run.config.policy, asked.where.command
        memory = Memory(asked.database, lambda task: Conditions.of(task, *made_for))
        policy = run.config.policy
        learned.begin(memory.elsewhere(subjects, lambda task: Space(task, run.target, policy, threads)))
        known = memory.recall(subjects, scheduler)
    run.stages.progress("tune", f"{len(subjects)} tasks, {known} records")
    flush = run.config.flush_denormals

    def say(text: str) -> None:
        run.stages.progress("board", text)

    with Measurer(run.target, threads=threads, flush=flush, seed=seed, where=asked.where, say=say) as measurer:
        search = tune_tasks(subjects, scheduler, _measuring(measurer, cold), asked.budget, memory, follow)
    changed = {s.key: s.best for s in search.subjects if s.best is not s.untuned}
    recorded = None
    if asked.database is not None and not asked.where.command:  # just what compile would take
        recorded = Recorded(asked.database, run.target, threads)
        known_faster = recorded.look({key: one.task for key, one in compiled.items()}, run.config.policy, cold)
        changed = {key: one for key, one in known_faster.items() if one.key != compiled[key].candidate.key}
    times = Times()
    tuned = _locked(run, programs, compiled, changed) if changed else run
    timed = _is_target(run.target, asked.where)
    if timed:
        tuned_spec = tuned.spec(programs, tuned.kernels(programs), run.kept) if changed else None
        times = compared(run, spec, tuned_spec, threads)
        if changed and recorded is not None:
            choice = recorded.choice(recorded.candidates, occurrences(programs), run.config.policy, cold)
            recorded.settle(choice, 1e-3 * times.untuned_ms, 1e-3 * times.tuned_ms)
    taken = tuned if not timed or (changed and gains(times.untuned_ms, times.tuned_ms)) else run
    *_, report = taken.made(programs, run.kept, asked.output, verify=True, keep_unverified=False)
    better = taken is not run
    notes = [learned.says] if explorer_class(asked.explorer).learns else []
    return TuneResult(
        path=asked.output,
        tuned=better,
        changed=len(changed) if better else 0,
        tasks=len(compiled),
        search=search,
        times=times,
        report=report,
        database=None if asked.database is None else asked.database.path,
        known=known,
        notes=(*notes, *([times.note] if times.note else []), *taken.notes),
    )


def _subjects(
    run: Run,
    programs: Sequence[Program],
    compiled: Mapping[str, Compiled],
    explorer: str,
    seed: int,
    threads: int,
    learned: LearnedCost,
) -> tuple[list[Subject], Scheduler]:
    """The distinct Tasks in which something is open, and what schedules them: the seconds of all programs."""
    counts = [Counter(bound.task.hash for bound in program.tasks) for program in programs]
    subjects, work = [], []
    for key, one in compiled.items():
        space = Space(one.task, run.target, run.config.policy, threads)
        if space.size > 1:
            subjects.append(Subject(key, one.task, one.candidate, explorer_class(explorer)(space, seed, learned)))
            seconds = task_seconds(one.derived, one.candidate, run.target, threads)
            operations = float(max(1, sum(step.flops for step in one.works)))
            work.append(Work(seconds, operations, tuple(s.name for s in space.sketches)))
    weights = np.array([[float(count[s.key]) for s in subjects] for count in counts])
    return subjects, Scheduler(work, total(weights), seed=seed)


def _measuring(measurer: Measurer, cold_bytes: int) -> Measure:
    """Measures on this machine, with constants as cold as among so many bytes of parameters."""

    def measure(task: Task, candidates: Sequence[Candidate]) -> Iterator[tuple[int, Measurement]]:
        subject = measurer.subject(task, cold_bytes)
        numbers = {measurer.submit(subject, candidate): index for index, candidate in enumerate(candidates)}
        for number, measurement in measurer.results():
            yield numbers[number], measurement

    return measure


def _locked(
    run: Run, programs: Sequence[Program], compiled: Mapping[str, Compiled], changed: Mapping[str, Candidate]
) -> Run:
    """The same compilation with other Candidates; what has not changed is built."""
    tasks = {key: one.candidate for key, one in compiled.items()} | dict(changed)
    constants = tuple(FixedInput.of(name, array) for name, array in run.constants.items())
    made_for = (__version__, run.digest, run.target, run.shapes, constants, run.config)
    choices = Choices(*made_for, tasks, occurrences(programs), run.kept, run.layouts)
    kept = {key: one for key, one in run.done.items() if key not in changed}
    return replace(run, locked=choices, tasks=tasks, done=kept)
