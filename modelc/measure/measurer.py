"""Candidates in, measurements out: while one runs, others are built."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from modelc.errors import InvalidIR, MeasureError, Unmeasurable
from modelc.ir.block import Task
from modelc.ir.candidate import Candidate
from modelc.measure.build import schedule
from modelc.measure.builder import Build, BuiltFiles, Prepare, constants_of, input_file, wanted_of
from modelc.measure.job import Job, Part, Timing, Way
from modelc.measure.measurement import Effort, Limits, Measurement
from modelc.measure.pool import Builder, Zygote
from modelc.measure.runner import Runner
from modelc.measure.ssh import SshRunner
from modelc.measure.subject import POISON, Subject
from modelc.measure.where import Where
from modelc.scratch import TemporaryFolder
from modelc.target import Target

LEAD = 2  # candidates that are built and wait, for each builder
FAILURES = 3  # of the runner, one after the other, before measuring is given up
PREPARING = 300.0  # seconds that NumPy may take for the outputs of a Task


@dataclass(frozen=True)
class _Order:
    number: int
    subject: Subject
    candidate: Candidate
    effort: Effort
    first: bool  # of its subject

    @property
    def name(self) -> str:
        return f"c{self.number}"


class Measurer:
    """Builds and runs candidates for `target`, in processes of their own, until the context ends.

    `threads` run each kernel; `builders` processes build (one for each processor by default; those on the processors
    that measure stand still meanwhile). `flush` is whether subnormals are zero. Where the target is not this machine,
    kernels run under its emulator, and times mean nothing; or where `where` says, and they mean what that makes of
    them; `say` is told what becomes of a board.
    """

    def __init__(
        self,
        target: Target,
        threads: int = 1,
        builders: int | None = None,
        limits: Limits = Limits(),  # noqa: B008 (frozen)
        effort: Effort = Effort(),  # noqa: B008 (frozen)
        flush: bool = False,
        seed: int = 0,
        where: Where = Where(),  # noqa: B008 (frozen)
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.target, self.threads, self.limits, self.effort = target, threads, limits, effort
        self._flush, self._seed, self._where, self._say = flush, seed, where, say
        cpus = sorted(os.sched_getaffinity(0))
        self._measuring = [] if where.elsewhere else cpus[-threads:]
        self._cpus = [cpus[k % len(cpus)] for k in range(builders or len(cpus))]
        self._numbers = 0
        self._outstanding = 0
        self._subjects: dict[tuple[str, int], Subject] = {}
        self._orders: queue.Queue[_Order | None] = queue.Queue()
        self._built: queue.Queue[tuple[_Order, BuiltFiles | None] | None] = queue.Queue(LEAD * len(self._cpus))
        self._results: queue.Queue[tuple[int, Measurement] | BaseException] = queue.Queue()
        self._threads: list[threading.Thread] = []
        self._ending = threading.Event()

    # --- what programs call ---------------------------------------------------------------------------------------

    def subject(self, task: Task, cold_bytes: int = 0) -> Subject:
        """What candidates of `task` are measured as; the same one for an equal Task. Its inputs are drawn, and its
        outputs computed with NumPy, when its first candidate is built."""
        known = self._subjects.get((str(task), cold_bytes))
        if known is None:
            known = Subject(f"t{len(self._subjects)}", task, cold_bytes)
            self._subjects[str(task), cold_bytes] = known
        return known

    def submit(self, subject: Subject, candidate: Candidate, effort: Effort | None = None) -> int:
        """Takes a candidate; the number by which results() calls it. The first one of a subject is what the others are
        measured by turns with; where that fails, the first good one."""
        self._numbers += 1
        self._outstanding += 1
        first, subject.begun = not subject.begun, True
        self._orders.put(_Order(self._numbers, subject, candidate, effort or self.effort, first))
        return self._numbers

    @property
    def waiting(self) -> int:
        """Candidates of which no builder has begun: below one for each builder, there should be more."""
        return self._orders.qsize()

    def results(self) -> Iterator[tuple[int, Measurement]]:
        """Measurements as they come, in any order, until nothing is outstanding; more may be submitted meanwhile.
        Raises MeasureError where nothing can be measured any more."""
        while self._outstanding:
            found = self._results.get()
            if isinstance(found, BaseException):
                raise found
            self._outstanding -= 1
            yield found

    def measure(self, subject: Subject, candidates: Sequence[Candidate]) -> list[Measurement]:
        """All of them, in order; nothing else may be outstanding."""
        numbers = [self.submit(subject, candidate) for candidate in candidates]
        found = dict(self.results())
        return [found[number] for number in numbers]

    def __enter__(self) -> Measurer:
        self._temporary = TemporaryFolder("measure")
        try:
            self._folder = Path(self._temporary.name)
            self._runner = self._started()
            try:
                self._zygote = Zygote(self._folder, self.target)
            except BaseException:
                self._runner.close()
                raise
        except BaseException:
            self._temporary.cleanup()
            raise
        self._builders = [Builder(self._zygote, cpu) for cpu in self._cpus]
        self._in_thread(self._run_all)
        for builder in self._builders:
            self._in_thread(self._build_all, builder)
        return self

    def _started(self) -> Runner:
        if self._where.board is not None:
            return SshRunner(self.target, self._folder, self._where.board, self._say)
        return Runner(self.target, self._folder, self._measuring, self._where.command)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ending.set()
        for builder in self._builders:
            self._orders.put(None)
            builder.kill()
        self._runner.close()
        with suppress(queue.Full):
            self._built.put_nowait(None)
        for thread in self._threads:
            thread.join(10)
        self._zygote.close()
        self._temporary.cleanup()

    def _in_thread(self, function: Callable[..., None], *arguments: Any) -> None:
        def body() -> None:
            try:
                function(*arguments)
            except BaseException as error:
                if not self._ending.is_set():
                    self._results.put(error)

        self._threads.append(threading.Thread(target=body, daemon=True))
        self._threads[-1].start()

    # --- building -------------------------------------------------------------------------------------------------

    def _build_all(self, builder: Builder) -> None:
        while (order := self._orders.get()) is not None and not self._ending.is_set():
            start = time.monotonic()
            outcome, found = self._build(order, builder)
            spent = time.monotonic() - start
            if outcome == "done":
                self._hand_over(order, replace(found, seconds=spent))
            else:
                self._drop(order)
                self._results.put((order.number, Measurement(outcome, found, build_seconds=spent)))
                if order.first:
                    self._hand_over(order, None)

    def _build(self, order: _Order, builder: Builder) -> tuple[Any, Any]:
        subject = order.subject
        with subject.lock:
            if not subject.prepared:
                outcome, found = builder.ask(Prepare(subject.key, subject.task, self._seed), PREPARING)
                if outcome != "done":
                    return outcome, f"the outputs of the task are not known: {found}"
                subject.prepared = True
                subject.sizes = found
                subject.wanted = wanted_of(subject.task, subject.key, self._folder)
        scheduled = None
        if {stage.rule for stage in order.candidate.stages} - self._zygote.rules:
            try:
                constants = constants_of(subject.task, subject.key, self._folder)
                scheduled = schedule(subject.task, order.candidate, self.target, constants, self.limits)
            except InvalidIR as error:
                return "invalid", str(error)
        request = Build(order.name, subject.key, subject.task, order.candidate, self.target, self.limits, scheduled)
        return builder.ask(request, self.limits.build_seconds)

    def _hand_over(self, order: _Order, found: BuiltFiles | None) -> None:
        while not self._ending.is_set():
            with suppress(queue.Full):
                self._built.put((order, found), timeout=0.5)
                return

    # --- running --------------------------------------------------------------------------------------------------

    def _run_all(self) -> None:
        failures = 0
        for order, found in self._ready():
            start = time.monotonic()
            part = self._part(order, found)
            try:
                measurement = self._run(order, found, part)
                failures = 0
            except Unmeasurable:
                raise
            except MeasureError as error:
                failures += 1
                if failures == FAILURES:
                    raise
                measurement = Measurement("crashed", str(error))
            spent = time.monotonic() - start
            if order.subject.reference is not part:
                self._drop(order)
            measurement = replace(measurement, build_seconds=found.seconds, run_seconds=spent)
            self._results.put((order.number, measurement))

    def _ready(self) -> Iterator[tuple[_Order, BuiltFiles]]:
        """What is built, as it comes; but of each subject nothing before its first, which others are compared with."""
        waiting: dict[str, list[tuple[_Order, BuiltFiles]]] = {}
        begun: set[str] = set()
        while (item := self._built.get()) is not None and not self._ending.is_set():
            order, found = item
            key = order.subject.key
            if order.first:
                begun.add(key)
            if found is not None and key not in begun:
                waiting.setdefault(key, []).append((order, found))
                continue
            if found is not None:
                yield order, found
            yield from waiting.pop(key, [])

    def _part(self, order: _Order, found: BuiltFiles) -> Part:
        subject, task = order.subject, order.subject.task
        files = {n: input_file(order.name if n in task.constants else subject.key, task, n) for n in task.inputs}
        sizes = {name: found.sizes.get(name, subject.sizes[name]) for name in task.inputs}
        cold = {name: k for k, names in enumerate(subject.alike) for name in names} if subject.cold_bytes else {}
        return Part(found.kernel, f"{order.name}.so", files, sizes, cold, found.serial)

    def _run(self, order: _Order, found: BuiltFiles, part: Part) -> Measurement:
        subject = order.subject
        best = subject.best * subject.reference_seconds if subject.reference else 0.0
        job = Job(
            task=subject.task,
            candidate=part,
            reference=subject.reference,
            way=Way(poison=POISON),
            timing=Timing(order.effort, order.effort.slower * best, order.effort.near * best),
            threads=self.threads,
            flush=self._flush,
            regions=subject.regions(),
            seconds=self.limits.run_seconds,
            bytes=self.limits.run_bytes,
        )
        busy = [b for b in self._builders if b.cpu in self._measuring]
        for builder in busy:
            builder.stop()
        try:
            answer = self._runner.run(f"{order.name}.job", job)
        finally:
            for builder in busy:
                builder.go()
        if answer.outcome != "ok":
            return Measurement(answer.outcome, job.sentence(answer))
        if wrong := subject.wrong(answer.output, found):
            return Measurement("wrong", wrong)
        reference = answer.reference_seconds or answer.seconds
        if subject.reference is None:
            subject.reference, subject.reference_key = part, order.candidate.key
        subject.reference_seconds = reference
        subject.best = min(subject.best, answer.seconds / reference)
        return Measurement(
            "ok", "", answer.seconds, answer.noise, answer.repeats, reference, reference=subject.reference_key
        )

    def _drop(self, order: _Order) -> None:
        """Removes what a builder wrote of a candidate."""
        names = (input_file(order.name, order.subject.task, name) for name in order.subject.task.constants)
        for name in (f"{order.name}.so", *names):
            (self._folder / name).unlink(missing_ok=True)
