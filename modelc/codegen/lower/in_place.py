"""Outputs that may lie where an input was: a residual is added to what a convolution makes, and read for the last time.

A pair is found in the Nest: the output is written by whole maps alone, and the input is read by these alone, each
element right before the output's element in the same place is written. Whether nothing needs the input later is for
the plan to see.
"""

from __future__ import annotations

from modelc.codegen.lower.leaves import accesses
from modelc.ir.nest import Call, Leaf, Nest, Region
from modelc.ir.sizes import same


def in_place(nest: Nest) -> dict[str, tuple[str, ...]]:
    """The inputs in whose place an output may be written, for outputs that have any."""
    if any(isinstance(s, Call) for s in nest.statements()):
        return {}
    leaves = [s for s in nest.statements() if isinstance(s, Leaf)]
    inputs = [r for r in nest.params if r.name not in nest.outputs]
    places_by_output = {
        output.name: tuple(r.name for r in inputs if _alike(r, output) and _passes(r.name, output.name, leaves))
        for output in nest.params
        if output.name in nest.outputs
    }
    return {name: places for name, places in places_by_output.items() if places}


def _alike(a: Region, b: Region) -> bool:
    numbers = zip((*a.shape, *a.stride), (*b.shape, *b.stride), strict=True)
    return (a.dtype, len(a.shape)) == (b.dtype, len(b.shape)) and all(same(n, m) for n, m in numbers)


def _passes(read: str, written: str, leaves: list[Leaf]) -> bool:
    """Whether each element of `read` is read right before that of `written` in its place, and by nothing else."""
    for leaf in leaves:
        writes = [w.buffer for w in leaf.writes]
        if written in writes and (leaf.part != "assign" or len(writes) > 1):
            return False
        for x in accesses(leaf):
            if x.buffer == read and not (writes == [written] and x.indices == leaf.writes[0].indices):
                return False
            if x.buffer == written and x not in leaf.writes:
                return False
    return any(x.buffer == read for leaf in leaves for x in accesses(leaf))
