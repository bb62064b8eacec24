"""Loops and their tags as tests write them."""

from __future__ import annotations

from modelc.ir.loop import Loop


def loops(text: str) -> tuple[Loop, ...]:
    """The loops that a text names from the outermost: "m0 n0 m1"."""
    return tuple(map(Loop.parse, text.split()))


def tagged(**tags: str) -> dict[Loop, str]:
    """The tag of each loop, by its text: m0="parallel"."""
    return {Loop.parse(loop): tag for loop, tag in tags.items()}
