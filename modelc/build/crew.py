"""Cells made on this machine, several at a time, each in a process of its own: one that crashes costs itself alone."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from modelc.python_worker import worker_command
from modelc.scratch import TemporaryFolder

Say = Callable[[str, str], None]  # a cell's name, and what is done for it
GRACE = 10.0  # seconds that workers have to end when they are told to
LAST_WORDS = 600  # characters of what a worker said before it died


class Answer(NamedTuple):
    """What became of a cell: `made` as worker.py says it, or the sentence that says why there is no package."""

    name: str
    made: Mapping[str, Any] | None
    failed: str = ""


def processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Crew:
    """At most `jobs` workers at a time, which end with the context."""

    def __init__(self, jobs: int, say: Say) -> None:
        self._say = say
        self._pool = ThreadPoolExecutor(jobs, "cell")
        self._workers: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self._ended = False

    def results(self, orders: Mapping[str, Mapping[str, Any]]) -> Iterator[Answer]:
        """An answer for each order, by its cell's name, as they come."""
        answers: queue.Queue[Answer | BaseException] = queue.Queue()

        def make(name: str, order: Mapping[str, Any]) -> None:
            try:
                answers.put(self.made(name, order))
            except BaseException as error:  # it is raised where answers are awaited
                answers.put(error)

        for name, order in orders.items():
            self._pool.submit(make, name, order)
        for _ in orders:
            answer = answers.get()
            if isinstance(answer, BaseException):
                raise answer
            yield answer

    def made(self, name: str, order: Mapping[str, Any]) -> Answer:
        """One cell, in a process."""
        with TemporaryFolder("cell") as folder:
            place, said = Path(folder) / "answer.json", Path(folder) / "said"
            with self._lock, said.open("w") as log:
                if self._ended:
                    return Answer(name, None, "interrupted")
                worker = subprocess.Popen(
                    worker_command("modelc.build.worker", str(place)),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    errors="replace",
                    start_new_session=True,  # an interrupt is for us
                )
                self._workers.add(worker)
            try:
                return self._answer(name, order, worker, place, said)
            finally:
                worker.kill()
                worker.wait()
                with self._lock:
                    self._workers.discard(worker)

    def _answer(
        self, name: str, order: Mapping[str, Any], worker: subprocess.Popen[str], place: Path, said: Path
    ) -> Answer:
        assert worker.stdin is not None and worker.stdout is not None
        try:
            with worker.stdin as stream:
                json.dump(order, stream)
        except BrokenPipeError:
            pass  # it is dead, which is said below
        for line in worker.stdout:
            self._say(name, line.rstrip("\n"))
        code = worker.wait()
        if not place.exists():
            words = said.read_text(errors="replace").strip()[-LAST_WORDS:]
            return Answer(name, None, f"the process that made it ended with {code}{f': {words}' * bool(words)}")
        answer = json.loads(place.read_text())
        return Answer(name, None, answer["error"]) if "error" in answer else Answer(name, answer)

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._lock:
            self._ended = True
            workers = list(self._workers)
            for worker in workers:
                worker.terminate()  # it removes what is half made
        until = time.monotonic() + GRACE
        for worker in workers:
            with suppress(subprocess.TimeoutExpired):
                worker.wait(max(until - time.monotonic(), 0))
            worker.kill()
        self._pool.shutdown(cancel_futures=True)
