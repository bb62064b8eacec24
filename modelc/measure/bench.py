"""What builds and runs the candidates of one machine: a folder, builders, a runner."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from modelc.errors import InvalidIR, Unmeasurable
from modelc.ir.block import Task
from modelc.ir.candidate import Candidate
from modelc.measure.build import schedule
from modelc.measure.builder import Build, BuiltFiles, Prepare, constants_of, input_file, wanted_of
from modelc.measure.job import Answer, Job, Part, Timing, Way
from modelc.measure.measurement import Effort, Measurement, Setting
from modelc.measure.pool import Builder, Zygote
from modelc.measure.runner import Runner
from modelc.measure.ssh import SshRunner
from modelc.measure.subject import POISON, Subject
from modelc.measure.where import Where
from modelc.scratch import TemporaryFolder
from modelc.space.choose import accepted
from modelc.target import Target

AGAIN = 2  # times that a job is done again where the machine was busy
PREPARING = 300.0  # seconds that NumPy may take for the outputs of a Task


@contextmanager
def beside(cpus: Collection[int]) -> Iterator[None]:
    """This thread, and what it starts, keeps off these processors, if there are others."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, own - set(cpus) or own)
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


class Bench:
    """Builds for `target` in `builders` processes (one for each processor by default; those on the processors that
    measure stand still meanwhile), and runs kernels in a `setting`. Where the target is not this machine, kernels run
    under its emulator, and times mean nothing; or where `where` says, and they mean what that makes of them; `say` is
    told what becomes of a board. `measures`: the runner is started at once, and not with the first run. Raises
    TargetError where this machine is not the target, then."""

    def __init__(
        self,
        target: Target,
        setting: Setting = Setting(),  # noqa: B008 (frozen)
        builders: int | None = None,
        where: Where = Where(),  # noqa: B008 (frozen)
        say: Callable[[str], None] = lambda text: None,
        measures: bool = True,
    ) -> None:
        self.target, self.setting, self._where, self._say = target, setting, where, say
        self._runner: Runner | None = None
        self._subjects: dict[tuple[str, int], Subject] = {}
        cpus = sorted(os.sched_getaffinity(0))
        self.measuring = [] if where.elsewhere else cpus[-setting.threads :]
        self._temporary = TemporaryFolder("measure")
        try:
            self.folder = Path(self._temporary.name)
            if measures:
                self._start_runner()
            self._zygote = Zygote(self.folder, target)
        except BaseException:
            self._close_runner()
            self._temporary.cleanup()
            raise
        self.builders = [Builder(self._zygote, cpus[k % len(cpus)]) for k in range(builders or len(cpus))]

    def stop(self) -> None:
        """Ends what is being built and run: whoever waits for it gets an answer, or MeasureError."""
        for builder in self.builders:
            builder.kill()
        self._close_runner()

    def close(self) -> None:
        self.stop()
        self._zygote.close()
        self._temporary.cleanup()

    def _start_runner(self) -> Runner:
        if self._runner is None:
            if self._where.board is not None:
                self._runner = SshRunner(self.target, self.folder, self._where.board, self._say)
            else:
                self._runner = Runner(self.target, self.folder, self.measuring, self._where.command)
        return self._runner

    def _close_runner(self) -> None:
        if self._runner is not None:
            self._runner.close()

    def subject(self, task: Task, cold_bytes: int = 0) -> Subject:
        """The same one for an equal Task."""
        subject = Subject(f"t{len(self._subjects)}", task, cold_bytes)
        return self._subjects.setdefault((str(task), cold_bytes), subject)

    def prepare(self, subject: Subject, builder: Builder) -> tuple[Any, str]:
        """Draws the inputs of a Task and computes its outputs with NumPy, once: "done", or the outcome and why not."""
        with subject.lock:
            if not subject.prepared:
                outcome, answer = _asked(builder, Prepare(subject.key, subject.task, self.setting.seed), PREPARING)
                if outcome != "done":
                    return outcome, f"the outputs of the task are not known: {answer}"
                subject.prepared = True
                subject.sizes = answer
                subject.wanted = wanted_of(subject.task, subject.key, self.folder)
        return "done", ""

    def build(
        self, name: str, subject: Subject, candidate: Candidate, builder: Builder, verify: bool = True
    ) -> tuple[Any, Any]:
        """("done", BuiltFiles), or the outcome and why not. Without `verify`, run() verifies its Nest, where it is the
        fastest so far. Raises Unmeasurable where the disk is full."""
        outcome, why = self.prepare(subject, builder)
        if outcome != "done":
            return outcome, why
        scheduled = None
        if {stage.rule for stage in candidate.stages} - self._zygote.rules:
            try:
                constants = constants_of(subject.task, subject.key, self.folder)
                scheduled = schedule(subject.task, candidate, self.target, constants, self.setting.limits, True)
            except InvalidIR as error:
                return "invalid", str(error)
        limits = self.setting.limits
        request = Build(name, subject.key, subject.task, candidate, self.target, limits, verify, scheduled)
        return _asked(builder, request, self.setting.limits.build_seconds)

    def part(self, name: str, subject: Subject, built: BuiltFiles) -> Part:
        """What was built as a job has it."""
        task = subject.task
        files = {n: input_file(name if n in task.constants else subject.key, task, n) for n in task.inputs}
        sizes = {n: built.sizes.get(n, subject.sizes[n]) for n in task.inputs}
        cold = {n: k for k, names in enumerate(subject.alike) for n in names} if subject.cold_bytes else {}
        return Part(built.kernel, f"{name}.so", files, sizes, cold, built.serial)

    def run(self, name: str, subject: Subject, candidate: Candidate, built: BuiltFiles, effort: Effort) -> Measurement:
        """Measures what was built, whose files are dropped then. The first good one of a subject becomes its reference,
        whose files stay. Raises MeasureError."""
        part = self.part(name, subject, built)
        try:
            return self._measured(name, subject, candidate, built, part, effort)
        finally:
            if subject.reference is None or subject.reference.library != part.library:
                self.drop(name, subject.task)

    def _measured(
        self, name: str, subject: Subject, candidate: Candidate, built: BuiltFiles, part: Part, effort: Effort
    ) -> Measurement:
        best = subject.best * subject.reference_seconds if subject.reference and subject.reference_seconds else 0.0
        job = Job(
            task=subject.task,
            candidate=part,
            reference=subject.reference,
            way=Way(poison=POISON),
            timing=Timing(effort, effort.slower * best, effort.near * best),
            threads=self.setting.threads,
            flush=self.setting.flush,
            regions=subject.regions(),
            seconds=self.setting.limits.run_seconds,
            bytes=self.setting.limits.run_bytes,
        )
        busy = [b for b in self.builders if b.cpu in self.measuring]
        for builder in busy:
            builder.stop()
        try:
            answer = self._answer(name, job, subject)
        finally:
            for builder in busy:
                builder.go()
        if answer.outcome != "ok":
            return Measurement(answer.outcome, job.sentence(answer))
        if wrong := subject.wrong(answer.output, built):
            return Measurement("wrong", wrong)
        if not built.verified and (subject.reference is None or answer.relative < subject.best):
            try:
                accepted(subject.task, candidate, self.target)
            except InvalidIR as error:
                return Measurement("invalid", str(error))
        reference = answer.reference_seconds or answer.seconds
        if subject.reference is None:
            subject.reference, subject.reference_key = part, candidate.key
        subject.reference_seconds = reference
        subject.best = min(subject.best, answer.seconds / reference)
        return Measurement(
            "ok", "", answer.seconds, answer.noise, answer.repeats, reference, reference=subject.reference_key
        )

    def _answer(self, name: str, job: Job, subject: Subject) -> Answer:
        """What a job gives; again where something else kept the machine busy, by what the reference took, and again
        where it is the best so far: of many measurements the best is often the luckiest."""
        runner = self._start_runner()
        answer = runner.run(f"{name}.job", job)
        for _ in range(AGAIN):
            if answer.outcome != "ok" or not subject.disturbed(answer.reference_seconds):
                break
            other = runner.run(f"{name}.job", job)
            if other.outcome != "ok" or other.reference_seconds < answer.reference_seconds:
                answer = other
        if answer.outcome == "ok" and job.reference is not None:
            subject.recent.append(answer.reference_seconds)
            if answer.relative < subject.best:
                other = runner.run(f"{name}.job", job)
                if other.outcome != "ok" or other.relative > answer.relative:
                    answer = other
        return answer

    def drop(self, name: str, task: Task) -> None:
        """Removes what a builder wrote of a candidate."""
        for file in (f"{name}.so", *(input_file(name, task, constant) for constant in task.constants)):
            (self.folder / file).unlink(missing_ok=True)


def _asked(builder: Builder, request: Prepare | Build, seconds: float) -> tuple[Any, Any]:
    outcome, answer = builder.ask(request, seconds)
    if outcome == "no-room":
        raise Unmeasurable(
            f"there is no room in {answer} to build in: make some there, or name another folder by TMPDIR"
        )
    return outcome, answer
