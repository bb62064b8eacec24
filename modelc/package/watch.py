"""Watching a package run: what the arguments of its steps hold, before and after each (modelc_watch in model.h)."""

from __future__ import annotations

import os
import select
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from modelc.errors import PackageError

HEAD = 16  # bytes before each record
LETTERS = {
    "arena": "a",
    "params": "P",
    "input": "i",
    "output": "o",
    "random": "r",
    "slot": "s",
    "size": "z",
    "dim": "d",
    "made": "m",
}
Data = bytes | bytearray | memoryview  # of bytes


class Place(NamedTuple):
    """What is looked at: `bytes` at an argument (Argument in spec.py) of a step, before it or `after`, in its first
    `most` calls and in those whose number is a power of two."""

    step: int
    after: bool
    space: str
    number: int  # the argument's index
    offset: int
    stride: int
    bytes: int
    most: int

    @property
    def line(self) -> str:
        """The place as run_main.c reads it."""
        numbers = (self.number, self.offset, self.stride, self.bytes, self.most)
        return f"{self.step} {int(self.after)} {LETTERS[self.space]} {' '.join(map(str, numbers))}\n"


class Watched(NamedTuple):
    """What one place held: the number of the place, that of the step's call, the bytes."""

    place: int
    call: int
    data: Data


@dataclass(frozen=True)
class Watch:
    """The places to look at, and who takes what they hold while the package runs."""

    places: Sequence[Place]
    consume: Callable[[Iterator[Watched]], None]


def watched(descriptor: int, places: Sequence[Place], seconds: float) -> Iterator[Watched]:
    """What a runner writes to a pipe, until it says that it is done, or ends. Raises PackageError where it is silent
    for so many `seconds`."""

    def read(count: int) -> bytearray:
        data, end = bytearray(count), time.monotonic() + seconds
        missing = memoryview(data)
        while missing:
            if not select.select([descriptor], [], [], max(end - time.monotonic(), 0))[0]:
                raise PackageError(f"the package did not finish within {seconds:g} s when it was watched")
            count = os.readv(descriptor, [missing])
            if not count:
                raise EOFError
            missing = missing[count:]
        return data

    with suppress(EOFError):  # it has died: its exit says how
        while (head := struct.unpack("<qq", read(HEAD)))[0] >= 0:
            number, call = head
            if number >= len(places):
                raise PackageError(f"what was watched of the package is damaged: there is no place {number}")
            yield Watched(number, call, read(places[number].bytes))
