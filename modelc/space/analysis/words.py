"""Words of several numbers of few bits, whose products are added up by one operation."""

from __future__ import annotations

from collections.abc import Iterator

from modelc.ir.block import Block
from modelc.ir.expr import Load, Op, loads
from modelc.ir.scalar import DOTS


def dots_of(block: Block) -> Iterator[Op]:
    """Operations of `block` that multiply pairs of words."""
    return (e for e in block.operations if e.name in DOTS)


def most_words(block: Block) -> int:
    """Pairs of words that one operation of `block` multiplies, at most; 1 where none does."""
    return max((DOTS[dot.name] for dot in dots_of(block)), default=1)


def apart_words(block: Block) -> set[Load]:
    """The Loads of words whose numbers are taken apart before they are multiplied."""
    return {load for dot in dots_of(block) for word in dot.args if isinstance(word, Op) for load in loads(word)}
