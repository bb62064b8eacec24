"""Signals that end a command: whatever is half made is removed first, and nothing is said but a sentence."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from modelc import scratch

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
AT_ONCE = 3  # the third signal does not wait for what the first began

_caught = 0
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
    global _caught
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in ENDING}
    ours = [number for number in ENDING if before[number] not in (signal.SIG_IGN, None, _end)]
    _caught = 0
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
    global _caught
    _caught += 1
    if _caught >= AT_ONCE:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    elif _caught == 1:
        if _importing(frame) and not scratch.held():  # extension modules do not bear exceptions as they are imported
            with suppress(OSError):
                os.write(2, f"modelc: {sentence(number)}\n".encode())
            _exit(128 + number)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise Ended(number)


def sentence(number: int) -> str:
    """What is said of a command that a signal has ended."""
    return "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return "modelc.cli" not in sys.modules
