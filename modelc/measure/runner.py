"""Runners: the program that runs kernels (runner.c), here, emulated, or behind another command."""

from __future__ import annotations

import json
import os
import select
import subprocess
import threading
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from modelc.errors import MeasureError, TargetError
from modelc.measure.job import Answer, Job
from modelc.measure.pool import end_of
from modelc.package import RUNTIME, emulator, find_toolchain, machine_of
from modelc.package.objects import Sources, linked
from modelc.package.sources import HEADERS
from modelc.target import Target

HERE = Path(__file__).parent
SOURCES = ("runner.c", "runner_job.c", "runner_load.c", "runner_places.c", "runner_run.c")
SHARED = (
    "modelc_pool.c",
    "modelc_cpu.c",
    "modelc_features.c",
    "modelc_float.c",
)  # of the runtime that goes into packages
PATIENCE = 60.0  # seconds over a job's own limit


class Runner:
    """A runner for `target`, working in `folder`, on the processors `cpus`: on this machine, or under the emulator that
    the target needs, or behind the command `through`, which shares the folder. Raises TargetError where it lacks one
    of the target's features."""

    def __init__(
        self, target: Target, folder: Path, cpus: Collection[int] | None = None, through: Sequence[str] = ()
    ) -> None:
        self.target, self.folder, self._log = target, folder, folder / "runner.log"
        self._cpus, self._through = cpus, through
        self._process: subprocess.Popen[bytes] | None = None
        self._pending = bytearray()  # read and not yet used
        self._lock = threading.Lock()  # of the process
        self._closed = False
        self._start()

    def run(self, name: str, job: Job) -> Answer:
        """Does a job, by the name of a file. Raises MeasureError where no runner answers."""
        (self.folder / name).write_text(job.text())
        try:
            return self._asked(f"job {name}", job.seconds + PATIENCE)
        except MeasureError:
            self._start()
            raise
        finally:
            with suppress(FileNotFoundError):
                (self.folder / name).unlink()

    def put(self, name: str, data: bytes) -> None:
        """Has the runner write a file in its folder: for who does not share it."""
        self._json(f"file {name} {len(data)}", PATIENCE, data)

    def drop(self, *names: str) -> None:
        """Has the runner remove files."""
        self._json(f"drop {' '.join(names)}", PATIENCE)

    def _start(self) -> None:
        """A new process in place of what there may be."""
        before = self._through or emulator(self.target.triple, self.target.features)
        self._launch([*before, str(program(machine_of(self.target.triple).gnu_triple)), str(self.folder)])
        assert self._process is not None
        with suppress(OSError):
            if self._cpus is not None:
                os.sched_setaffinity(self._process.pid, self._cpus)
        self._check_features()

    def _launch(self, command: Sequence[str]) -> None:
        with self._lock:
            self._end()
            if self._closed:
                raise MeasureError("the runner is closed")
            try:
                with self._log.open("wb") as log:
                    self._process = subprocess.Popen(
                        command,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=log,
                        start_new_session=True,  # an interrupt is for us; a runner ends when its pipe does
                    )
            except OSError as error:
                raise MeasureError(f"the runner cannot be started: {error}") from None

    def _check_features(self) -> None:
        lacks = self._json(f"features {' '.join(self.target.features)}", PATIENCE)["lacks"]
        if lacks:
            self.close()
            raise TargetError(f"the machine that measures lacks {lacks}, which the target needs")

    def _asked(self, command: str, seconds: float) -> Answer:
        answer = self._json(command, seconds)
        answer["output"] = self._read(answer["output"], seconds)
        return Answer(**answer)

    def _json(self, command: str, seconds: float, data: bytes = b"") -> dict[str, Any]:
        """What answers a command, which `data` follows."""
        self._write(command.encode() + b"\n" + data)
        line = self._line(seconds)
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError:
            raise MeasureError(f"the runner answers {line[:80]!r}, which no runner of modelc says") from None
        return answer

    def _write(self, data: bytes) -> None:
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise MeasureError(f"the runner has ended: {end_of(self._log)}") from None

    def _line(self, seconds: float) -> bytes:
        """The next line that it says."""
        until = time.monotonic() + seconds
        while (end := self._pending.find(b"\n")) < 0:
            self._more(until - time.monotonic())
        return self._take(end + 1)

    def _read(self, count: int, seconds: float) -> bytes:
        until = time.monotonic() + seconds
        while len(self._pending) < count:
            self._more(until - time.monotonic())
        return self._take(count)

    def _take(self, count: int) -> bytes:
        data = bytes(self._pending[:count])
        del self._pending[:count]
        return data

    def _more(self, seconds: float) -> None:
        assert self._process is not None and self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        if not select.select([descriptor], [], [], max(0.0, seconds))[0]:
            raise MeasureError("the runner does not answer")
        part = os.read(descriptor, 1 << 20)
        if not part:
            raise MeasureError(f"the runner has ended: {end_of(self._log)}")
        self._pending += part

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()
            self._process = None
        self._pending.clear()

    def close(self) -> None:
        """Ends it, also while another thread waits for it."""
        self._closed = True
        if self._process is not None:
            self._process.kill()
        with self._lock:
            self._end()


def program(triple: str, alone: bool = False) -> Path:
    """The runner for a machine; `alone`: it needs no libraries there."""
    files = (*(HERE / name for name in SOURCES), *(RUNTIME / name for name in SHARED))
    headers = (HERE / "runner.h", *(RUNTIME / name for name in HEADERS))
    toolchain = find_toolchain(triple)
    sources = Sources(files, headers, ("-std=c11", "-O2", "-pthread"))
    return linked(toolchain.linking_all() if alone else toolchain, sources, ("-pthread", "-lm"), "runner")
