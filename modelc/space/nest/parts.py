"""The parts of a loop that is as long as a run says: whole tiles, and what is left of a tile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from modelc.ir.sizes import larger, most, smaller


class Part(NamedTuple):
    """A part of a loop that is as long as a run says: the smallest of `counts` is how many iterations it has, of
    `extent` values each, from `start` on and `step` apart; `whole` where they are as wide as tiles, or hardly less."""

    counts: tuple[int, ...]
    start: int
    step: int
    extent: int
    whole: bool = False


def rests(full: int, left: int, tile: int, within: Sequence[str]) -> tuple[int, list[Part]]:
    """How many of `full` tiles are whole, and what follows them, by the tags of the loops `within` a tile. If these are
    no registers', it is what is `left`, at once. If they are unrolled, it is spread over tiles that are one narrower,
    for a register tile of few rows waits for its own results. The rest goes in powers of two, and in three times such;
    whole tiles, narrower ones and the rest, if there is any, are as many as tiles would be."""
    if not most(left):
        return full, []
    if within[:1] not in (["unroll"], ["vector"]):
        return full, [Part(((left + tile - 1) // tile,), full * tile, tile, left)]
    powers = [1 << k for k in reversed(range((tile - 1).bit_length()))]
    pieces = powers
    if "vector" not in within:
        narrower = smaller(full, larger(0, -left % tile - 1))
        full, left = full - narrower, left + narrower * tile
        pieces = [tile - 1, *sorted({n for k in powers for n in (k, 3 * k) if n < tile - 1}, reverse=True)]
    parts, start = [], full * tile
    for piece in pieces:
        count = left // piece
        parts.append(Part((count,), start, piece, piece, piece == tile - 1))
        start, left = start + count * piece, left % piece
    return full, [part for part in parts if most(part.counts[0])]
