"""What branches give in one shape: where they differ, or sizes depend on data (sizes.py), there is room for the largest
and a count, which is that of the branch taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.frontend.building.bodies import Body, emit_control
from modelc.frontend.building.build import Builder, OnnxNode
from modelc.frontend.building.sizes import whole
from modelc.ir.expr import DTYPES
from modelc.ops.found import ROOM

Size = str | int  # how much there is along a dimension: a count, or all of what is known
Array = NDArray[Any]


@contextmanager
def within(b: Builder, body: Body) -> Iterator[Builder]:
    """The Builder adds to the nodes of a body, and forgets afterwards what it has found there."""
    outside, made, b.nodes = b.nodes, dict(b.sizes.made), list(body.nodes)
    try:
        yield b
    finally:
        b.nodes, b.sizes.made = outside, made


def extended(b: Builder, n: OnnxNode, x: str, shape: Sequence[int]) -> str:
    """The value with room for `shape`: zeros behind what there is, as if all of it were there."""
    own = b.shape(x)
    if own == tuple(shape):
        return whole(b, n, x)
    dtype = DTYPES[b.value(x).dtype]
    zero = b.constant(np.zeros((), dtype), f"{x}_zero")
    if not prod(own):
        room = b.constant(np.asarray(shape, np.int64), f"{x}_room")
        return b.emit(n, "Expand", (zero, room), outputs=(b.fresh(f"{x}_extended"),))
    pads = [*[0] * len(own), *(most - d for most, d in zip(shape, own, strict=True))]
    behind = b.constant(np.asarray(pads, np.int64), f"{x}_behind")
    return b.emit(n, "Pad", (whole(b, n, x), behind, zero), outputs=(b.fresh(f"{x}_extended"),))


def number(b: Builder, n: OnnxNode, size: Size) -> str:
    """A size as an int64 of the Graph, which is no other value."""
    x = size if isinstance(size, str) else b.constant(np.asarray(size, np.int64), f"{n.name}/size")
    return b.emit(n, "Identity", (x,), outputs=(b.fresh(f"{n.name}/count"),))


def most_of(b: Builder, size: Size) -> int:
    return b.sizes.bounds[size] if isinstance(size, str) else size


@dataclass
class _Sizes:
    """What the bodies of a node say of how much there is: the count that stands for it, which is one of the node's
    outputs where it is not the same from outside in all of them."""

    b: Builder
    n: OnnxNode
    inner: frozenset[str]  # what the bodies compute
    made: dict[tuple[Size, ...], str] = field(default_factory=dict)

    def count(self, said: tuple[Size, ...]) -> str:
        first = said[0]
        if isinstance(first, str) and first not in self.inner and len({*said}) == 1:
            return first
        if said not in self.made:
            name = self.b.fresh(f"{self.n.name}/count")
            self.b.reserved.add(name)
            self.b.sizes.bounds[name] = max(most_of(self.b, x) for x in said)
            self.made[said] = name
        return self.made[said]


def emit_if(b: Builder, n: OnnxNode, bodies: Sequence[Body], attrs: Mapping[str, int | str] | None = None) -> None:
    """Adds an If whose branches give results of the same ranks and dtypes, with the counts of its outputs."""
    sizes = _Sizes(b, n, frozenset(x for body in bodies for node in body.nodes for x in node.outputs))
    shapes, counts = list[tuple[int, ...]](), list[dict[int, str]]()
    for results in zip(*(body.results for body in bodies), strict=True):
        shape, there = list[int](), dict[int, str]()
        for axis, extents in enumerate(zip(*(b.shape(x) for x in results), strict=True)):
            own = [b.sizes.of(x).get(axis) for x in results]
            if len({*extents}) > 1 or any(own):
                there[axis] = sizes.count(tuple(c or d for c, d in zip(own, extents, strict=True)))
            shape.append(max(*extents, ROOM) if axis in there else extents[0])
        shapes.append(tuple(shape))
        counts.append(there)
    elements = [_elements(sizes, names) for names in zip(*(body.originals for body in bodies), strict=True)]
    made = []
    for k, body in enumerate(bodies):
        with within(b, body):
            wide = [extended(b, n, x, shape) for x, shape in zip(body.results, shapes, strict=True)]
            wide += [number(b, n, said[k]) for said in sizes.made]
            made.append(replace(body, nodes=tuple(b.nodes), results=tuple(wide)))
    emit_control(b, n, "If", n.inputs[:1], made, attrs, (*n.outputs, *sizes.made.values()))
    for output, sizes_by_axis, numbers in zip(n.outputs, counts, elements, strict=True):
        if output:
            b.sizes.give(output, sizes_by_axis)
        if output and numbers is not None:
            b.sizes.elements[output] = numbers


def _elements(sizes: _Sizes, names: Sequence[str]) -> Array | None:
    """The whole numbers that an output of the bodies is, with marks for sizes, if some are among them."""
    b = sizes.b
    numbers_of_bodies = [x for x in (b.sizes.elements.get(x, b.data(x)) for x in names) if x is not None]
    if (
        not any(x in b.sizes.elements for x in names)
        or len(numbers_of_bodies) < len(names)
        or len({x.shape for x in numbers_of_bodies}) > 1
    ):
        return None
    numbers = []
    for said in zip(*(x.reshape(-1).tolist() for x in numbers_of_bodies), strict=True):
        if len({*said}) == 1 and b.sizes.marked(said[0]) is None:
            numbers.append(said[0])
        elif min(said) < 0:
            return None
        else:
            numbers.append(b.sizes.mark(sizes.count(tuple(b.sizes.marked(x) or x for x in said))))
    return np.asarray(numbers, np.int64).reshape(numbers_of_bodies[0].shape)
