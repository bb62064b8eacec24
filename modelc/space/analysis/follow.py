"""Where a map runs that comes after a tiled reduction and reads its consumers' results: a transposition into the order
that the result is stored in.

As a phase of its own it would go through memory twice. Inside one of the anchor's macro loops it reads what lies in the
second-level cache; the loop is the innermost in which it still writes runs of whole cache lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from modelc.ir.block import Block, Task
from modelc.ir.expr import DTYPES, Load, Var
from modelc.ir.loop import Loop
from modelc.space.analysis.access import accesses, reads_plainly, vector_iterator
from modelc.space.analysis.loops import covered

LEAST_RUN = 256  # bytes that are written one after the other
CACHE_SHARE = 4  # of the second-level cache, for what is written and read back


def followed(
    task: Task,
    anchor: Block,
    consumers: Sequence[Block],
    later: Block,
    macro: Sequence[Loop],
    tiles: Mapping[str, tuple[int, ...]],
    cache: int,
) -> Loop | None:
    """The loop of `macro` that `later` runs in; None if it has to be a phase of its own. `cache`: bytes of the
    second-level cache."""
    names = iterators(anchor, [*consumers, later])
    own = names[later.name]
    source = later.buffers_read & {w.buffer for c in consumers for w in c.writes}
    if later.reduction or len(later.writes) != 1 or len(source) != 1 or own.keys() != set(later.ranges):
        return None
    (buffer,) = (task.buffer(name) for name in source)
    elsewhere = any(b is not later and buffer.name in b.buffers_read for b in task.blocks)
    if buffer.name in task.outputs or elsewhere or reads_plainly(later, buffer.name) is None:
        return None
    _, writes = accesses(task, later)
    vector = vector_iterator(later, writes)
    if vector is None:
        return None
    itemsize = DTYPES[buffer.dtype].itemsize
    for position in reversed(range(len(macro))):
        inside = covered(anchor.ranges, macro[: position + 1], tiles)
        if inside[own[vector]] * itemsize >= min(LEAST_RUN, anchor.ranges[own[vector]] * itemsize):
            fits = prod(inside[n] for n in own.values()) * itemsize <= cache // CACHE_SHARE
            return macro[position] if fits else None
    return None


def iterators(anchor: Block, blocks: Sequence[Block]) -> dict[str, dict[str, str]]:
    """For each of `blocks`, which follow `anchor`, its iterators that stand for one of the anchor's: iterator ->
    the anchor's."""
    dims = {w.buffer: _along(w, {n: n for n in anchor.ranges}) for w in anchor.writes}
    result: dict[str, dict[str, str]] = {}
    for block in blocks:
        own: dict[str, str] = {}
        for read in block.reads:
            for d, name in dims.get(read.buffer, {}).items():
                index = read.indices[d]
                if isinstance(index, Var) and block.ranges[index.name] == anchor.ranges[name]:
                    own[index.name] = name
        result[block.name] = own
        dims |= {w.buffer: _along(w, own) for w in block.writes}
    return result


def _along(access: Load, names: Mapping[str, str]) -> dict[int, str]:
    """Dimension -> the anchor's iterator that indexes it."""
    return {d: names[i.name] for d, i in enumerate(access.indices) if isinstance(i, Var) and i.name in names}
