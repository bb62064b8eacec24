"""Work on all cores: a function of each of several items, computed by processes that are forked from this one.

What a fork reads is this process's, so items and what the function refers to are not sent to it; results come back
pickled, from forks of our own and from nobody else. A process forks where it is modelc's own and has no other threads,
which could hold locks that no thread of a fork would release. Elsewhere threads may share the work: LLVM leaves the
interpreter alone for the most part of its own.

    items     a pipe of their numbers, from which each fork takes the next
    results   a pipe of each fork: (number, whether it is an error, length), and that many bytes
"""

from __future__ import annotations

import gc
import os
import pickle
import selectors
import signal
import struct
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from modelc.errors import ProcessError
from modelc.python_worker import is_own_process
from modelc.signals import ENDING

T = TypeVar("T")
R = TypeVar("R")
NUMBER, HEAD = struct.Struct("=I"), struct.Struct("=IBQ")
MOST_ITEMS = 8192  # whose numbers a pipe takes at once
CHUNK = 1 << 20  # bytes that are read at once


class RemoteTraceback(Exception):
    """Where an error of a fork was raised: the cause of it here."""


def shared(
    function: Callable[[T], R], items: Sequence[T], processes: int, threads: bool = False
) -> Iterator[tuple[int, R]]:
    """The results of `function` for each of `items`, as (number, result), in the order in which they are ready; by at
    most so many processes, or as many `threads` where there can be none. Raises what the function raises for an item;
    ProcessError where a process is ended from outside."""
    count = min(processes, len(items))
    if count > 1 and can_fork():
        for first in range(0, len(items), MOST_ITEMS):
            yield from _forked(function, items, range(first, min(first + MOST_ITEMS, len(items))), count)
    elif count > 1 and threads:
        yield from _threaded(function, items, count)
    else:
        yield from ((number, function(item)) for number, item in enumerate(items))


harmless: weakref.WeakSet[threading.Thread] = weakref.WeakSet()  # threads that hold no lock which a fork would need


def cores() -> int:
    """CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def can_fork() -> bool:
    """Whether forks of this process can work: it is modelc's own, and has one thread, but for harmless ones."""
    threads = {*threading.enumerate()} - {*harmless}
    return hasattr(os, "fork") and is_own_process() and threads == {threading.current_thread()}


def _threaded(function: Callable[[T], R], items: Sequence[T], count: int) -> Iterator[tuple[int, R]]:
    pool = ThreadPoolExecutor(count)
    try:
        yield from enumerate(pool.map(function, items))
    finally:
        pool.shutdown(cancel_futures=True)


def _forked(function: Callable[[T], R], items: Sequence[T], numbers: range, count: int) -> Iterator[tuple[int, R]]:
    waiting, given = os.pipe()
    os.write(given, b"".join(map(NUMBER.pack, numbers)))
    os.close(given)
    forks: dict[int, int] = {}  # the pipe of each: its process
    errors: dict[int, BaseException] = {}
    try:
        for _ in range(count):
            reading, process = _started(function, items, waiting)
            forks[reading] = process
        done = 0
        for number, failed, data in _received(forks):
            done += 1
            if failed:
                errors[number], told = pickle.loads(data)
                errors[number].__cause__ = errors[number].__cause__ or RemoteTraceback(told)
                while NUMBER.size == len(os.read(waiting, NUMBER.size)):
                    done += 1  # that nobody has begun, nor will
            else:
                yield number, pickle.loads(data)
        if errors:
            raise errors[min(errors)]
        if done < len(numbers):
            raise ProcessError(_ended(forks))
    finally:
        os.close(waiting)
        for reading, process in forks.items():
            os.close(reading)
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(process, 0)


def _started(function: Callable[[T], R], items: Sequence[T], waiting: int) -> tuple[int, int]:
    """The pipe of a new fork, and its process. Raises ProcessError where there can be no more."""
    reading, writing = os.pipe()
    # What a signal's handler raises within the hooks of fork() is lost: signals wait until it is done.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of harmless threads
            process = os.fork()
        if not process:
            _serve(function, items, waiting, writing, before)
        return reading, process
    except OSError as error:
        os.close(reading)
        raise ProcessError(f"no process can be started beside this one: {error.strerror}; say --threads 1") from None
    finally:
        os.close(writing)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _received(forks: dict[int, int]) -> Iterator[tuple[int, bool, bytes]]:
    """What the forks say, until all have ended."""
    said = {reading: bytearray() for reading in forks}
    with selectors.DefaultSelector() as ready:
        for reading in forks:
            ready.register(reading, selectors.EVENT_READ)
        while ready.get_map():
            for key, _ in ready.select():
                reading = key.fd
                part = os.read(reading, CHUNK)
                if not part:
                    ready.unregister(reading)
                said[reading] += part
                while (message := _taken(said[reading])) is not None:
                    yield message


def _taken(said: bytearray) -> tuple[int, bool, bytes] | None:
    """The first message of what a fork has said, which is taken out; None where it is not complete."""
    if len(said) < HEAD.size:
        return None
    number, failed, length = HEAD.unpack_from(said)
    end = HEAD.size + length
    if len(said) < end:
        return None
    data = bytes(said[HEAD.size : end])
    del said[:end]
    return number, bool(failed), data


def _ended(forks: dict[int, int]) -> str:
    """Why results are missing."""
    for reading in [*forks]:
        process = forks.pop(reading)
        os.close(reading)
        with suppress(ChildProcessError):
            code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            if code < 0:
                name = signal.Signals(-code).name
                return f"a process beside this one was ended by {name}; where memory is short, say --threads 1"
    return "a process beside this one has ended too early; with --threads 1 there is none"


def _serve(
    function: Callable[[T], R], items: Sequence[T], waiting: int, writing: int, mask: set[signal.Signals | int]
) -> None:
    """What a fork does, with signals blocked but for those of `mask` again; it does not return."""
    code = 1
    try:
        gc.freeze()  # the collector leaves alone what is shared with the parent: it would copy every page
        for number in ENDING:  # from a terminal they come to the process that waits for us too, and it ends us
            signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        with os.fdopen(writing, "wb") as pipe:
            while len(read := os.read(waiting, NUMBER.size)) == NUMBER.size:
                (number,) = NUMBER.unpack(read)
                failed, data = _outcome(function, items[number])
                pipe.write(HEAD.pack(number, failed, len(data)) + data)
                pipe.flush()
        code = 0
    except BrokenPipeError:
        pass
    finally:
        os._exit(code)


def _outcome(function: Callable[[T], R], item: T) -> tuple[bool, bytes]:
    try:
        return False, pickle.dumps(function(item), pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        told = "".join(traceback.format_exception(error))
        with suppress(Exception):
            return True, pickle.dumps((error, told), pickle.HIGHEST_PROTOCOL)
        return True, pickle.dumps((RuntimeError(f"{type(error).__name__}: {error}"), told), pickle.HIGHEST_PROTOCOL)
