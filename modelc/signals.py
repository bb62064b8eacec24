"""Signals that end a command: whatever is half made is removed first, and nothing is said but a sentence.

The first one unwinds the main thread, or is answered otherwise (tune makes its package then). A second one does not
wait for that: it ends the processes that this one has started, removes what is half made, and exits."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from modelc import scratch

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
SAME = 0.3  # seconds within which a signal is the same one, sent by the terminal and by what it has started us with
GRACE = 2.0  # seconds that other processes have to end

_first = 0.0  # when the first was caught, and in which process
_process = 0
_exit = os._exit


class Ended(SystemExit):
    """A signal other than SIGINT, which is a KeyboardInterrupt, ends this command."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


@contextmanager
def tidy_ends(last: bool = False) -> Iterator[None]:
    """Within it, a signal unwinds the main thread. What whoever started the process ignores (nohup) stays ignored.

    After it, signals do what they did before; after the `last` they are ignored, for the interpreter's own end is short
    and answers them with a traceback or, later, with a death by signal of a command that is done.
    """
    global _first, _process
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in ENDING}
    ours = [number for number in ENDING if before[number] not in (signal.SIG_IGN, None, _end)]
    _first, _process = 0.0, os.getpid()
    for number in ours:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_IGN if last else before[number])


@contextmanager
def no_exit() -> Iterator[None]:
    """Within it, a user's function that exits raises RuntimeError: the command would end without a word. What it forks
    may exit. (It can still end this process, as by the exit of C.)"""
    process = os.getpid()

    def refuse(status: int) -> NoReturn:
        if os.getpid() != process:
            _exit(status)
        raise RuntimeError(f"it called os._exit({status!r})")

    os._exit = refuse
    try:
        yield
    except Ended:
        raise
    except SystemExit as error:
        raise RuntimeError(f"it called sys.exit({error.code!r})") from error
    finally:
        os._exit = _exit


def _end(number: int, frame: FrameType | None) -> None:
    global _first
    if _first:
        if time.monotonic() - _first >= SAME:
            _end_at_once(number)
        return
    _first = time.monotonic()
    if _importing(frame) and not scratch.held():  # extension modules do not bear exceptions as they are imported
        _exit_saying(number)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise Ended(number)


def _end_at_once(number: int) -> NoReturn:
    for each in ENDING:
        signal.signal(each, signal.SIG_IGN)
    if os.getpid() == _process:  # and not what somebody has forked from it
        end_all(descendants(_process))
        scratch.remove_held()
    _exit_saying(number)


def _exit_saying(number: int) -> NoReturn:
    with suppress(OSError):
        os.write(2, f"modelc: {sentence(number)}\n".encode())
    _exit(128 + number)


def descendants(process: int) -> list[int]:
    """The processes that one has started, those that these have, and so on; none where there is no /proc."""
    children: dict[int, list[int]] = {}
    with suppress(OSError):
        for name in filter(str.isdigit, os.listdir("/proc")):
            if (parent := _parent(int(name))) is not None:
                children.setdefault(parent, []).append(int(name))
    started = list(children.get(process, ()))
    for child in started:  # the list grows
        started += children.get(child, ())
    return started


def _parent(process: int) -> int | None:
    """None of one that has ended."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            state, parent = file.read().rpartition(b")")[2].split()[:2]
    except (OSError, ValueError):
        return None
    return None if state == b"Z" else int(parent)


def end_all(processes: list[int]) -> None:
    """Tells processes to end, which remove what they have made half, and kills those that do not."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            with suppress(OSError):
                os.kill(process, number)
        until = time.monotonic() + GRACE
        while (processes := [p for p in processes if _parent(p) is not None]) and time.monotonic() < until:
            time.sleep(0.01)


def sentence(number: int) -> str:
    """What is said of a command that a signal has ended."""
    return "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return "modelc.cli" not in sys.modules
