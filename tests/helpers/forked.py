"""Running hostile cases: each in a forked child with limits on time and memory.

`run` of a Case is called in the child. What became of it is an Outcome of one of these kinds:

    done       it returned
    refused    it raised a sentence for the user: a ModelcError, exit code 1 or 2
    exception  it raised anything else, or ended with another exit code (3: an internal error)
    wrong      it raised Wrong: nothing broke, and a promise was not kept
    signal     the child died
    hang       it was not done within the limit of time
    memory     it asked for more than the limit

The first two are as they should be.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import re
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repository import ROOT

from modelc.errors import ModelcError

GOOD = ("done", "refused")
KINDS = (*GOOD, "exception", "wrong", "signal", "hang", "memory")
INTERNAL_EXIT_CODE = 3
MISTAKE_EXIT_CODES = (1, 2)
SAID_CHARACTERS = 2000
GRACE = 2.0  # seconds after the limit, in which the child writes where it hangs


class Wrong(Exception):
    """A case's own verdict: nothing crashed, but something was promised and not kept."""


@dataclass(frozen=True)
class Limits:
    """`bytes`: of data on top of what the parent has."""

    seconds: float = 60.0
    bytes: int = 2 << 30


@dataclass(frozen=True)
class Case:
    """`run` is called in the child, and may return a word for what happened; `about` is JSON that reproduces it."""

    name: str
    run: Callable[[], str | None]
    about: Any = None


@dataclass(frozen=True)
class Outcome:
    """`signature` is what equal outcomes share; `said` the sentence, or the end of the traceback and of stderr."""

    kind: str
    signature: str
    said: str = ""
    seconds: float = 0.0
    bytes: int = 0

    @property
    def good(self) -> bool:
        return self.kind in GOOD


def run_case(case: Case, limits: Limits = Limits()) -> Outcome:
    """What becomes of one case."""
    return next(run_cases([case], limits, jobs=1))[1]


def run_cases(cases: Iterable[Case], limits: Limits = Limits(), jobs: int = 1) -> Iterator[tuple[Case, Outcome]]:
    """The outcomes, as they come in; `jobs` children at a time. Cases are taken from the iterable when they start."""
    waiting, running, more = iter(cases), list[_Child](), True
    try:
        while more or running:
            while more and len(running) < jobs:
                case = next(waiting, None)
                more = case is not None
                if case is not None:
                    running.append(_Child(case, limits))
            timeout = min((child.deadline for child in running), default=0.0) - time.monotonic()
            ready = select.select([child.pipe for child in running], [], [], max(timeout, 0.0))[0] if running else []
            for child in list(running):
                if child.pipe in ready or time.monotonic() >= child.deadline:
                    running.remove(child)
                    yield child.case, child.finish()
    finally:
        for child in running:
            child.finish()


class _Child:
    """A forked process that runs one case, in a session of its own, so that all that it starts can be ended."""

    def __init__(self, case: Case, limits: Limits) -> None:
        self.case, self.limits = case, limits
        self.said, self.answer = (os.memfd_create(name) for name in ("said", "answer"))
        sys.stdout.flush()
        sys.stderr.flush()
        self.start = time.monotonic()
        self.deadline = self.start + limits.seconds + GRACE
        self.pipe, writing = os.pipe()
        faulthandler.cancel_dump_traceback_later()  # of a case around this one: the child would wait for its thread
        self.process = os.fork()
        if not self.process:
            os.close(self.pipe)
            self._run(writing)
        os.close(writing)

    def finish(self) -> Outcome:
        """Waits for what is left of it, ends what it started, and says what became of it."""
        hangs = not select.select([self.pipe], [], [], 0)[0]
        answered = not hangs and os.read(self.pipe, 1) != b""
        for end in (os.killpg, os.kill):  # by itself too: it may not have become a group yet
            with suppress(ProcessLookupError):
                end(self.process, signal.SIGKILL)
        _, status, usage = os.wait4(self.process, 0)
        seconds = time.monotonic() - self.start
        said, answer = _content(self.said), _content(self.answer) if answered else ""
        for descriptor in (self.pipe, self.said, self.answer):
            os.close(descriptor)
        kind, signature, sentence = _classified(answer, status, hangs, said)
        return Outcome(kind, signature, sentence, round(seconds, 3), usage.ru_maxrss << 10)

    def _run(self, pipe: int) -> None:
        """In the child: the answer goes into a file, and a byte into the pipe says that it is whole."""
        try:
            os.setsid()
            for number, name in ((1, "stdout"), (2, "stderr")):
                os.dup2(self.said, number)
                setattr(sys, name, os.fdopen(number, "w", closefd=False))
            gc.freeze()
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            _limit_data(self.limits.bytes)
            faulthandler.enable(2, all_threads=False)
            faulthandler.dump_traceback_later(self.limits.seconds, file=2)
            answer = _answer(self.case)
            faulthandler.cancel_dump_traceback_later()
            sys.stdout.flush()
            sys.stderr.flush()
            os.write(self.answer, json.dumps(answer).encode())
            os.write(pipe, b".")
        finally:
            os._exit(0)


def _content(descriptor: int) -> str:
    """What a file holds, without the middle of a very long one."""
    size, most = os.fstat(descriptor).st_size, 1 << 20
    parts = [os.pread(descriptor, most, 0), os.pread(descriptor, most, max(size - most, most))]
    return b"".join(parts).decode("utf-8", "replace")


def _limit_data(count: int) -> None:
    now = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert now is not None
    most = resource.getrlimit(resource.RLIMIT_DATA)[1]  # of a case within a case: it cannot be raised
    limit = count + 1024 * int(now[1])
    resource.setrlimit(resource.RLIMIT_DATA, (limit if most == resource.RLIM_INFINITY else min(limit, most),) * 2)


def _answer(case: Case) -> tuple[str, str, str]:
    try:
        return "done", case.run() or "", ""
    except Wrong as wrong:
        return "wrong", _template(str(wrong)), str(wrong)[:SAID_CHARACTERS]
    except MemoryError as error:
        return "memory", _place(error), _traceback(error)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
        return ("done", "exit code 0", "") if not code else ("exit", f"exit code {code}", str(code))
    except ModelcError as error:
        cause = error.__cause__ or error
        if error.exit_code == INTERNAL_EXIT_CODE or isinstance(cause, MemoryError):
            kind = "memory" if isinstance(cause, MemoryError) else "exception"
            return kind, _place(cause), f"{_traceback(cause)}{error}"
        return "refused", type(error).__name__, str(error)[:SAID_CHARACTERS]
    except BaseException as error:
        return "exception", _place(error), _traceback(error)


def _classified(answer: str, status: int, hangs: bool, said: str) -> tuple[str, str, str]:
    tail = said[-SAID_CHARACTERS:]
    if hangs:
        return "hang", f"in {_innermost(said)}", tail
    if not answer:
        out_of_memory = "bad_alloc" in said or "MemoryError" in said or "Cannot allocate memory" in said
        ended = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "ended without an answer"
        return "memory" if out_of_memory else "signal", f"{ended} in {_innermost(said)}", tail
    kind, signature, sentence = json.loads(answer)
    if kind == "exit":  # a command line, which has said its sentence itself
        lines = said.strip().splitlines()
        sentence = lines[-1] if lines else ""
        internal = int(signature.split()[-1]) not in MISTAKE_EXIT_CODES
        return ("exception" if internal else "refused"), f"{signature}{f': {_template(sentence)}' * internal}", tail
    return kind, signature, sentence


def _place(error: BaseException) -> str:
    """The exception and the innermost function of the project's own that it came through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if frame.filename.startswith(str(ROOT / "modelc"))] or frames
    where = f"{_relative(ours[-1].filename)} {ours[-1].name}" if ours else "nowhere"
    return f"{type(error).__name__} in {where}"


def _innermost(said: str) -> str:
    """The same of what faulthandler wrote: the most recent call comes first."""
    frames = re.findall(r'File "([^"]+)", line \d+ in (\S+)', said)
    ours = [frame for frame in frames if frame[0].startswith(str(ROOT / "modelc"))] or frames
    return f"{_relative(ours[0][0])} {ours[0][1]}" if ours else "no Python"


def _relative(file: str) -> str:
    return file.removeprefix(f"{ROOT}/")


def _traceback(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))[-SAID_CHARACTERS:]


def _template(sentence: str) -> str:
    """A sentence without what differs from case to case: quoted names, paths and numbers."""
    return re.sub(r"'[^']*'|\S*/\S*|\d+", "*", sentence)[:200]
