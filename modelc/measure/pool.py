"""Builders: processes that build candidates, and that may die, hang or grow too large."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from modelc.errors import MeasureError
from modelc.python_worker import worker_command
from modelc.target import Target

PATIENCE = 120.0  # seconds that the imports of a process may take
LAST_WORDS = 400  # characters


def end_of(log: Path) -> str:
    """The last that a process has said."""
    with suppress(OSError):
        return log.read_text(errors="replace").strip()[-LAST_WORDS:]
    return ""


class Zygote:
    """The process that builders are forked from. `folder` is removed when it ends."""

    def __init__(self, folder: Path, target: Target) -> None:
        self.folder = folder
        (folder / "target.yaml").write_text(target.to_yaml())
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair()
        self._log = folder / "zygote.log"
        with theirs, self._log.open("wb") as log:
            self._process = subprocess.Popen(
                worker_command("modelc.measure.zygote", str(theirs.fileno()), str(folder)),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # a process of one thread can be forked
                start_new_session=True,  # an interrupt is for us
            )
        try:
            self.rules: frozenset[str] = frozenset(json.loads(self._line()))
        except BaseException:
            self.close()
            raise

    def _line(self) -> bytes:
        line = b""
        until = time.monotonic() + PATIENCE
        while not line.endswith(b"\n"):
            left = until - time.monotonic()
            ready = left > 0 and select.select([self._control], [], [], left)[0]
            part = self._control.recv(65536) if ready else b""
            if not part:
                raise MeasureError(f"the process that builds candidates did not start: {end_of(self._log)}")
            line += part
        return line

    def fork(self) -> tuple[Connection, int]:
        """The connection to a new builder, and its process id."""
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            try:
                socket.send_fds(self._control, [b"f"], [theirs.fileno()])
                number = self._control.recv(4)
            except OSError:
                number = b""
        if len(number) < 4:
            ours.close()
            raise MeasureError(f"the process that builders are forked from has ended: {end_of(self._log)}")
        return Connection(ours.detach()), int.from_bytes(number, "little")

    def close(self) -> None:
        self._control.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Builder:
    """One builder, on the processor `cpu`; a new process where the last one has ended."""

    def __init__(self, zygote: Zygote, cpu: int | None) -> None:
        self._zygote, self.cpu = zygote, cpu
        self._lock = threading.Lock()  # of what follows
        self._connection: Connection | None = None
        self._pid = 0
        self._stopped = False
        self._stopped_since = 0.0
        self._stopped_seconds = 0.0
        self.replaced = -1  # times

    def ask(self, request: Any, seconds: float) -> tuple[str, Any]:
        """The answer; or ("build-timeout" | "build-failed", why) and the process is replaced. `seconds` do not count
        while it is stopped."""
        connection = self._started()
        try:
            connection.send(request)
            begin = time.monotonic() - self._stopped_for()
            while not connection.poll(min(0.5, max(0.01, seconds))):
                if time.monotonic() - self._stopped_for() - begin > seconds:
                    self.kill()
                    return "build-timeout", f"it was not built within {seconds:g} s"
            answer: tuple[str, Any] = connection.recv()
            return answer
        except (EOFError, OSError):
            said = end_of(self._zygote.folder / f"{self._pid}.log")
            self.kill()
            return "build-failed", f"its builder died: {said}" if said else "its builder died"

    def _started(self) -> Connection:
        with self._lock:
            if self._connection is None:
                self._connection, self._pid = self._zygote.fork()
                self.replaced += 1
                with suppress(OSError):
                    if self.cpu is not None:
                        os.sched_setaffinity(self._pid, {self.cpu})
                    if self._stopped:
                        os.kill(self._pid, signal.SIGSTOP)
            return self._connection

    def _stopped_for(self) -> float:
        with self._lock:
            return self._stopped_seconds + (time.monotonic() - self._stopped_since if self._stopped else 0.0)

    def stop(self) -> None:
        """Until go(): a measurement needs its processor."""
        self._signal(signal.SIGSTOP, True)

    def go(self) -> None:
        self._signal(signal.SIGCONT, False)

    def _signal(self, number: signal.Signals, stopped: bool) -> None:
        with self._lock:
            if stopped and not self._stopped:
                self._stopped_since = time.monotonic()
            elif self._stopped and not stopped:
                self._stopped_seconds += time.monotonic() - self._stopped_since
            self._stopped = stopped
            if self._connection is not None:
                with suppress(ProcessLookupError):
                    os.kill(self._pid, number)

    def kill(self) -> None:
        with self._lock:
            if self._connection is not None:
                with suppress(ProcessLookupError):
                    os.kill(self._pid, signal.SIGKILL)
                self._connection.close()
                self._connection = None
