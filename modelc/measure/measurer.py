"""Candidates in, measurements out: while one runs, others are built."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from modelc.errors import MeasureError, Unmeasurable
from modelc.ir.block import Task
from modelc.ir.candidate import Candidate
from modelc.measure.bench import Bench
from modelc.measure.builder import BuiltFiles
from modelc.measure.measurement import Effort, Measurement, Setting
from modelc.measure.pool import Builder
from modelc.measure.subject import Subject
from modelc.measure.where import Where
from modelc.target import Target

LEAD = 2  # candidates that are built and wait, for each builder
SWITCHING = 2e-4  # seconds a thread keeps the interpreter from another: the runner stands still while its thread waits
FAILURES = 3  # of the runner, one after the other, before measuring is given up


@dataclass(frozen=True)
class _Order:
    number: int
    subject: Subject
    candidate: Candidate
    effort: Effort
    verify: bool
    first: bool  # of its subject

    @property
    def name(self) -> str:
        return f"c{self.number}"


class Measurer:
    """Builds and runs candidates for `target`, in processes of their own, until the context ends: on a Bench, which
    says what else there is to choose."""

    def __init__(
        self,
        target: Target,
        setting: Setting = Setting(),  # noqa: B008 (frozen)
        builders: int | None = None,
        effort: Effort = Effort(),  # noqa: B008 (frozen)
        where: Where = Where(),  # noqa: B008 (frozen)
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.target, self.effort = target, effort
        self._started: Callable[[], Bench] = lambda: Bench(target, setting, builders, where, say)
        self._numbers = 0
        self._outstanding = 0
        self._orders: queue.Queue[_Order | None] = queue.Queue()
        self._built: queue.Queue[tuple[_Order, BuiltFiles | None] | None] = queue.Queue()
        self._results: queue.Queue[tuple[int, Measurement] | BaseException] = queue.Queue()
        self._threads: list[threading.Thread] = []
        self._ending = threading.Event()

    # --- what programs call ---------------------------------------------------------------------------------------

    def subject(self, task: Task, cold_bytes: int = 0) -> Subject:
        """What candidates of `task` are measured as; the same one for an equal Task. Its inputs are drawn, and its
        outputs computed with NumPy, when its first candidate is built."""
        return self.bench.subject(task, cold_bytes)

    def submit(self, subject: Subject, candidate: Candidate, effort: Effort | None = None, verify: bool = True) -> int:
        """Takes a candidate; the number by which results() calls it. The first one of a subject is what the others are
        measured by turns with; where that fails, the first good one. Without `verify`, which is for points of a Space,
        its Nest is verified only when it was measured and is the fastest so far."""
        self._numbers += 1
        self._outstanding += 1
        first, subject.begun = not subject.begun, True
        self._orders.put(_Order(self._numbers, subject, candidate, effort or self.effort, verify, first))
        return self._numbers

    @property
    def lead(self) -> int:
        """Candidates on their way, below which builders or the runner will have nothing to do."""
        return (LEAD + 2) * len(self.bench.builders)

    @property
    def measuring(self) -> Sequence[int]:
        """The processors of this machine that kernels run on."""
        return self.bench.measuring

    def results(self) -> Iterator[tuple[int, Measurement]]:
        """Measurements as they come, in any order, until nothing is outstanding; more may be submitted meanwhile.
        Raises MeasureError where nothing can be measured any more."""
        while self._outstanding:
            answer = self._results.get()
            if isinstance(answer, BaseException):
                raise answer
            self._outstanding -= 1
            yield answer

    def measure(self, subject: Subject, candidates: Sequence[Candidate]) -> list[Measurement]:
        """All of them, in order; nothing else may be outstanding."""
        numbers = [self.submit(subject, candidate) for candidate in candidates]
        measurements = dict(self.results())
        return [measurements[number] for number in numbers]

    def __enter__(self) -> Measurer:
        self.bench = self._started()
        self._switching = sys.getswitchinterval()
        sys.setswitchinterval(SWITCHING)
        self._built.maxsize = LEAD * len(self.bench.builders)
        self._in_thread(self._run_all)
        for builder in self.bench.builders:
            self._in_thread(self._build_all, builder)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ending.set()
        sys.setswitchinterval(self._switching)
        try:
            for _ in self.bench.builders:
                self._orders.put(None)
            self.bench.stop()
            with suppress(queue.Full):
                self._built.put_nowait(None)
            for thread in self._threads:
                thread.join(10)
        finally:
            self.bench.close()

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
            outcome, answer = self.bench.build(order.name, order.subject, order.candidate, builder, order.verify)
            spent = time.monotonic() - start
            if outcome == "done":
                self._hand_over(order, replace(answer, seconds=spent))
            else:
                self.bench.drop(order.name, order.subject.task)
                self._results.put((order.number, Measurement(outcome, answer, build_seconds=spent)))
                if order.first:
                    self._hand_over(order, None)

    def _hand_over(self, order: _Order, built: BuiltFiles | None) -> None:
        while not self._ending.is_set():
            with suppress(queue.Full):
                self._built.put((order, built), timeout=0.5)
                return

    # --- running --------------------------------------------------------------------------------------------------

    def _run_all(self) -> None:
        failures = 0
        for order, built in self._ready():
            start = time.monotonic()
            try:
                measurement = self.bench.run(order.name, order.subject, order.candidate, built, order.effort)
                failures = 0
            except Unmeasurable:
                raise
            except MeasureError as error:
                failures += 1
                if failures == FAILURES:
                    raise
                measurement = Measurement("crashed", str(error))
            spent = time.monotonic() - start
            measurement = replace(measurement, build_seconds=built.seconds, run_seconds=spent)
            self._results.put((order.number, measurement))

    def _ready(self) -> Iterator[tuple[_Order, BuiltFiles]]:
        """What is built, as it comes; but of each subject nothing before its first, which others are compared with."""
        waiting: dict[str, list[tuple[_Order, BuiltFiles]]] = {}
        begun: set[str] = set()
        while (item := self._built.get()) is not None and not self._ending.is_set():
            order, built = item
            key = order.subject.key
            if order.first:
                begun.add(key)
            if built is not None and key not in begun:
                waiting.setdefault(key, []).append((order, built))
                continue
            if built is not None:
                yield order, built
            yield from waiting.pop(key, [])
