"""From groups of Pieces to Tasks, and to the Program that runs them: names, buffers, storage."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from modelc.ir.addresses import Guard, claims, without_claims
from modelc.ir.block import AnyBlock, Block, Buffer, Task
from modelc.ir.check import uses
from modelc.ir.graph import Graph
from modelc.ir.layout import Layout, Layouts
from modelc.ir.program import BoundTask, Placed, Program, is_contraction
from modelc.ops.opaque import index_ranges
from modelc.partition.groups import Work
from modelc.partition.pieces import Piece
from modelc.partition.views import stored, strides_of

NAMED_NODES = 4  # a Task's name mentions as many operators


@dataclass(frozen=True)
class Draft:
    """What becomes a Program: the Pieces of every Task in order, where values are, how they are stored."""

    work: Work
    groups: tuple[tuple[Piece, ...], ...]
    layouts: Layouts

    @cached_property
    def leaving(self) -> tuple[frozenset[str], ...]:
        """For each Task what something outside reads of what it writes."""
        reads = [set().union(*(p.reads for p in group)) for group in self.groups]
        counts: dict[str, int] = {}
        for names in reads:
            for name in names:
                counts[name] = counts.get(name, 0) + 1
        return tuple(
            frozenset(n for p in group for n in p.writes if n in self.work.kept or counts.get(n, 0) > (n in names))
            for group, names in zip(self.groups, reads, strict=True)
        )

    def task(self, number: int) -> BoundTask:
        return bound_task(self.work, self.groups[number], self.leaving[number], number, self.layouts)

    def program(self, graph: Graph) -> Program:
        needed: dict[str, None] = dict.fromkeys((*graph.inputs, *graph.outputs))
        tasks = [self.task(k) for k in range(len(self.groups))]
        for bound in tasks:
            needed |= dict.fromkeys(bound.values.values())
        for name in list(needed):
            needed[self.work.places[name].root] = None
        values = {name: placed(self.work, name) for name in needed}
        held = {n: d for n, d in self.work.constants.items() if n in values}
        constants = {n: np.asarray(d, order="C").reshape(values[n].shape) for n, d in held.items()}
        return Program(graph.name, graph.inputs, graph.outputs, constants, values, tuple(tasks))


def placed(work: Work, name: str) -> Placed:
    place, shape = work.places[name], work.shapes[name]
    if place.layout is not None:
        return Placed(name, work.dtypes[name], shape, place.layout)
    layout, strides = stored(shape, place.strides)
    return Placed(name, work.dtypes[name], shape, layout, strides, place.root, place.offset)


def bound_task(
    work: Work, group: Collection[Piece], others: Collection[str], number: int, layouts: Layouts
) -> BoundTask:
    """The Task of a group of Pieces. `others` are the values that something outside reads."""
    blocks = [without_claims(b) if isinstance(b, Block) else b for p in group for b in p.blocks]
    written = [n for p in group for n in p.writes]
    outputs = [n for n in written if n in others]
    inputs = list(dict.fromkeys(x for b in blocks for x in uses(b)[0]))
    own = {n: b for p in group for n, b in p.locals.items() if n not in p.tables}
    inputs = [x for x in inputs if x not in written and x not in own]
    locals_ = [x for b in blocks for x in uses(b)[1] if x not in outputs]
    names = {x: f"x{k}" for k, x in enumerate(inputs)} | {y: f"y{k}" for k, y in enumerate(dict.fromkeys(outputs))}
    names |= {t: f"t{k}" for k, t in enumerate(dict.fromkeys(locals_))}
    shapes = {x: own[x].shape if x in own else work.shapes[x] for x in names}
    dtypes = {x: own[x].dtype if x in own else work.dtypes[x] for x in names}
    buffers, result = [], {}
    for value, name in names.items():
        if name[0] == "t":
            buffers.append(
                Buffer(name, dtypes[value], shapes[value], _local_layout(work, value, shapes, outputs, layouts))
            )
        else:
            at = placed(work, value)
            buffers.append(Buffer(name, at.dtype, at.shape, at.layout, at.strides))
            result[name] = value
    unique = unique_names([b.name for b in blocks], set(names.values()))
    final = tuple(replace(b.renamed(names), name=n) for b, n in zip(blocks, unique, strict=True))
    constants = frozenset(names[x] for x in inputs if work.places[x].root in work.constants)
    ops = [p.node.op.lower() for p in group][:NAMED_NODES]
    title = re.sub(r"\W+", "_", "_".join([*ops, str(number)]))
    nodes = tuple(dict.fromkeys(s for p in group for s in p.nodes))
    ins, outs = (tuple(names[x] for x in dict.fromkeys(values)) for values in (inputs, outputs))
    task = Task(title, tuple(buffers), ins, outs, final, _anchor(final), constants, nodes)
    return BoundTask(task, result, _guards(work, group, names))


def _guards(work: Work, group: Collection[Piece], names: Mapping[str, str]) -> tuple[Guard, ...]:
    """What the operators of a group say of the data that they address by, by the Task's names. What is constant was
    looked at when it was read."""
    guards: list[Guard] = []
    for piece in group:
        operator = f"{piece.node.op} {(piece.node.source or (piece.node.name,))[0]!r}"
        for block in piece.blocks:
            if isinstance(block, Block):
                guards += claims(block, operator)
                continue
            guards += [Guard(*index_range, operator) for index_range in index_ranges(block, work.shapes)]
    varying = [g for g in guards if g.buffer in names and work.places[g.buffer].root not in work.constants]
    return tuple(dict.fromkeys(replace(g, buffer=names[g.buffer]) for g in varying))


def _local_layout(
    work: Work, name: str, shapes: Mapping[str, tuple[int, ...]], outputs: list[str], layouts: Layouts
) -> Layout:
    """A local of the output's shape is stored in the output's order, others as the layout stage says."""
    shape = shapes[name]
    for output in outputs:
        if work.shapes[output] == shape:
            return placed(work, output).layout
    layout = layouts.get(name, Layout())
    if layout.primitives and layout.permutation is None:
        return layout
    return stored(shape, strides_of(shape, layout))[0]


def unique_names(names: list[str], taken: set[str]) -> list[str]:
    result: list[str] = []
    for base in names:
        name, k = base, 0
        while name in taken:
            k += 1
            name = f"{base}_{k}"
        taken.add(name)
        result.append(name)
    return result


def _anchor(blocks: tuple[AnyBlock, ...]) -> str:
    """The Block to schedule around: the contraction, else the reduction, of most points; else the last."""
    reducing = [b for b in blocks if isinstance(b, Block) and b.reduction]
    contracting = [b for b in reducing if is_contraction(b)]
    anchors = contracting or reducing
    return max(anchors, key=lambda b: b.points()).name if anchors else blocks[-1].name
