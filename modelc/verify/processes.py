"""The processes that engines are in: started by themselves, or forked from one that has imported NumPy already.

Forks of a process have its addresses, so whoever measures times starts an engine by itself.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from modelc.python_worker import worker_command
from modelc.verify.worker import HEAD

WORKER = Path(__file__).with_name("worker.py")  # as a module it would import the whole room first, which takes long
NO_THREADS = {"OPENBLAS_NUM_THREADS": "1"}  # of NumPy, with which engines multiply nothing: they take long to start
AT_START = ("PYTHON", "LD_", "OPENBLAS_")  # what variables begin with that a process heeds when it starts


@dataclass
class Process:
    """One that serves what its pipes ask (worker.py). `pipe` is the number that it has the watching pipe under."""

    pid: int
    stdin: BinaryIO
    stdout: BinaryIO
    pipe: int
    parent: subprocess.Popen[bytes] | Nursery
    code: int | None = None  # as Popen.returncode

    def kill(self) -> None:
        if self.code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        if self.code is None:
            self.code = self.parent.wait_for(self.pid) if isinstance(self.parent, Nursery) else self.parent.wait()
        return self.code


def started(said: BinaryIO, pipe: int, folder: str) -> Process:
    """A process by itself that says what it is not asked for to `said`, and has a folder for its temporary files."""
    worker = subprocess.Popen(
        worker_command(WORKER),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=said,
        pass_fds=(pipe,),
        start_new_session=True,  # an interrupt is for us; the worker ends when its pipe does
        env=_environment(folder),
    )
    assert worker.stdin is not None and worker.stdout is not None
    return Process(worker.pid, worker.stdin, worker.stdout, pipe, worker)  # type: ignore[arg-type]


def forked(said: BinaryIO, pipe: int, folder: str) -> Process:
    """The same, in less time. What cannot be forked is started by itself."""
    try:
        return _nursery().fork(said, pipe, folder)
    except (OSError, ValueError):  # it has ended, or never begun, which an engine that is started says better
        return started(said, pipe, folder)


def _environment(folder: str) -> dict[str, str]:
    """ONNX Runtime writes $TMPDIR/.ses, also through a link that somebody else has put there."""
    return {**NO_THREADS, **os.environ, "TMPDIR": folder}


class Nursery:
    """The process that engines are forked from, while nothing has changed that a process heeds when it starts."""

    def __init__(self) -> None:
        self.heeded = _heeded()
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                worker_command(WORKER, str(theirs.fileno())),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env={**NO_THREADS, **os.environ},
            )
        self._end = weakref.finalize(self, _finish, self._control, self._process)

    def fork(self, said: BinaryIO, pipe: int, folder: str) -> Process:
        reading, ours = os.pipe()
        theirs, writing = os.pipe()
        stdin, stdout = os.fdopen(ours, "wb"), os.fdopen(theirs, "rb")
        cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        try:
            given = {"folder": os.getcwd(), "environment": _environment(folder), "cpus": cpus}
            answer = self._ask("fork", given, [reading, writing, said.fileno(), pipe])
        except BaseException:
            stdin.close()
            stdout.close()
            raise
        finally:
            os.close(reading)
            os.close(writing)
        return Process(answer["pid"], stdin, stdout, answer["pipe"], self)

    def wait_for(self, pid: int) -> int:
        """What Popen.wait() gives of an engine. Where nobody knows, it was killed."""
        try:
            return os.waitstatus_to_exitcode(self._ask("wait", pid)["status"])
        except (OSError, ValueError):
            return -signal.SIGKILL

    def _ask(self, command: str, given: Any, files: list[int] | None = None) -> dict[str, Any]:
        """Raises OSError or ValueError where there is no answer."""
        text = json.dumps({command: given}).encode()
        with self._lock:
            try:
                socket.send_fds(self._control, [HEAD.pack(len(text))], files or [])
                self._control.sendall(text)
                line = b""
                while not line.endswith(b"\n") and (part := self._control.recv(1 << 16)):
                    line += part
                answer: dict[str, Any] = json.loads(line)
                return answer
            except BaseException:  # a signal too: the answer would be taken for another's
                self._control.close()
                raise

    @property
    def ended(self) -> bool:
        """It answers no more, and its engines end."""
        return self._control.fileno() < 0

    def leave(self) -> None:
        """In a process that was forked from the one that has it."""
        self._end.detach()
        self._control.close()


def _finish(control: socket.socket, process: subprocess.Popen[bytes]) -> None:
    control.close()
    process.kill()
    process.wait()


def _heeded() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(AT_START)}


def _nursery() -> Nursery:
    """That of this process; another one where it would start otherwise now. The engines of the one before keep it."""
    global _latest
    with _lock:
        if _latest is None or _latest.ended or _latest.heeded != _heeded():
            _latest = Nursery()
            _every.add(_latest)
        return _latest


def _leave() -> None:
    global _latest, _lock
    for nursery in [*_every]:
        nursery.leave()
    _every.clear()
    _latest, _lock = None, threading.Lock()


_latest: Nursery | None = None
_every: weakref.WeakSet[Nursery] = weakref.WeakSet()
_lock = threading.Lock()
os.register_at_fork(after_in_child=_leave)
