"""The loops of a Candidate, and where its Blocks are placed among them."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple


class Loop(NamedTuple):
    """A loop over one iterator of a Block: level 0 goes over its largest tiles, level 1 over the next smaller ones
    inside one, and the last level over values."""

    iterator: str
    level: int

    def __str__(self) -> str:
        return f"{self.iterator}{self.level}"

    @staticmethod
    def parse(text: str) -> Loop:
        """The loop that str() writes so: "o1" is level 1 of iterator o. Raises ValueError where `text` is no loop."""
        iterator, level = text[:-1], text[-1:]
        if not iterator or not level.isdecimal():
            raise ValueError(f"{text!r} is no loop: expected an iterator and a level, such as h0")
        return Loop(iterator, int(level))


class Root(Enum):
    """A Block that is placed in no loop of another: a phase of its own."""

    ROOT = "root"

    def __str__(self) -> str:
        return self.value


ROOT: Final = Root.ROOT


class Inside(NamedTuple):
    """A Block that is placed inside a loop of another."""

    block: str
    loop: Loop

    def __str__(self) -> str:
        return f"{self.block}.{self.loop}"

    @staticmethod
    def parse(text: str) -> Inside:
        """The place that str() writes so, "conv.h0". Raises ValueError where `text` is none."""
        block, _, loop = text.rpartition(".")
        return Inside(block, Loop.parse(loop))


def place_of(text: str) -> Inside | Root:
    """The place that str() writes so: "root", or "conv.h0"."""
    return ROOT if text == str(ROOT) else Inside.parse(text)
