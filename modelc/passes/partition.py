"""Partition: Graph -> Program. Nodes become Pieces, Pieces are fused into Tasks, values get their places.

    1  what is a view needs no Task (views.py)
    2  epilogues: maps that read the result of a reduction at the very point that they write join it, as far as a
       single value leaves the Task; of two results that are added, the later one's Task gets the addition
    3  what is left of the maps is joined with each other in the same way
    4  prologues: a group of maps whose only reader works element by element, joins the reader: operands of an epilogue,
       inputs of a reduction (softmax, norms), never of a contraction or a window

A fusion that would make two Tasks wait for each other is not done.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.block import AnyBlock, Block, Buffer, Iter, OpaqueBlock, Task
from modelc.ir.expr import Load, Var
from modelc.ir.graph import Graph, Node
from modelc.ir.layout import Layout
from modelc.ir.program import BoundTask, Placed, Program, is_contraction, verify_program
from modelc.passes.layout import Layouts, choose_layouts
from modelc.passes.pieces import Piece, block_reads, identity, moved, pieces_of, plain_write
from modelc.passes.sink import sink_moves
from modelc.passes.views import Place, Views, find_views, is_compact, stored, strides_of

NAMED_NODES = 4  # a Task's name mentions as many operators


def partition(graph: Graph) -> Program:
    """The Program that computes what `graph` does. Raises ModelError for an unknown operator."""
    graph, renamed = _outputs_of_their_own(graph)
    graph, pieces = sink_moves(graph, pieces_of(graph))
    layouts = choose_layouts(graph, pieces)
    views = find_views(graph, pieces, layouts)
    work = _work(graph, pieces, views)
    program = _assembled(graph, work, fused(work), layouts)
    program = replace(program, notes=(*graph.notes, *renamed))
    verify_program(program, "partition")
    return program


def _outputs_of_their_own(graph: Graph) -> tuple[Graph, tuple[str, ...]]:
    """The graph with a copying node for every output that is an input or a constant. Outputs keep their order."""
    nodes, values, outputs, notes = list(graph.nodes), [], [], []
    for name in graph.outputs:
        value = graph.value(name)
        if name not in graph.inputs and value.data is None:
            outputs.append(name)
            continue
        copy = graph.fresh(f"{name}_copy", outputs)
        outputs.append(copy)
        values.append(replace(value, name=copy, data=None))
        nodes.append(Node("Identity", copy, (name,), (copy,), {}, ()))
        notes.append(f"output {name!r} is copied to {copy!r}")
    if not values:
        return graph, ()
    return replace(graph, outputs=tuple(outputs)).with_nodes(nodes, values), tuple(notes)


# --- what there is to compute -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """Pieces without what is a view, in order; where every value is; which values other Pieces write it through."""

    pieces: tuple[Piece, ...]
    places: Mapping[str, Place]
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    made_of: Mapping[str, tuple[str, ...]]  # a moved value -> the values that its elements come from
    constants: Mapping[str, NDArray[Any]]
    kept: frozenset[str]  # values that something else than a Piece needs: outputs, sources of views, parts of Concats


def _work(graph: Graph, pieces: list[Piece], views: Views) -> Work:
    shapes = {n: v.shape for n, v in graph.values.items()}
    dtypes = {n: v.dtype for n, v in graph.values.items()}
    constants = {n: v.data for n, v in graph.values.items() if v.data is not None}
    places = dict(views.places)
    for p in pieces:
        constants |= p.tables
        shapes |= {n: p.locals[n].shape for n in p.tables}
        dtypes |= {n: p.locals[n].dtype for n in p.tables}
    copies = {}
    for copy in views.copies:
        copies.setdefault(copy.part.target, []).append(copy)
        shapes[copy.name], dtypes[copy.name] = shapes[copy.part.source], dtypes[copy.part.source]
    result: list[Piece] = []
    for piece in pieces:
        if piece.writes and piece.writes[0] in views.parts:
            for copy in copies.get(piece.writes[0], ()):
                write = Load(copy.name, copy.part.block.body[0].indices)  # type: ignore[union-attr]
                result.append(replace(piece, blocks=(replace(copy.part.block, writes=(write,)),)))
            continue
        if piece.opaque:
            piece = _compact_operands(piece, result, places, shapes, dtypes)
        blocks = tuple(b for b in piece.blocks if not (isinstance(b, Block) and b.writes[0].buffer in views.moves))
        if blocks:
            result.append(replace(piece, blocks=blocks))
    made_of = {n: (s,) for n, s in views.sources.items()} | dict(views.parts)
    kept = {*graph.outputs, *(s for sources in made_of.values() for s in sources)}
    return Work(tuple(result), places, shapes, dtypes, made_of, constants, frozenset(kept))


def _compact_operands(
    piece: Piece,
    before: list[Piece],
    places: dict[str, Place],
    shapes: dict[str, tuple[int, ...]],
    dtypes: dict[str, str],
) -> Piece:
    """Opaque Blocks take compact row-major operands: others are copied first."""
    names = {}
    for name in piece.reads:
        shape = shapes[name]
        if is_compact(shape, places[name].strides):
            continue
        copy = f"{piece.writes[0]}#{name}"
        names[name], shapes[copy], dtypes[copy] = copy, shape, dtypes[name]
        places[copy] = Place(copy, 0, strides_of(shape, Layout()))
        iters = tuple(Iter(f"i{k}", n) for k, n in enumerate(shape))
        over = tuple(Var(i.name) for i in iters)
        block = Block("copy", iters, (Load(copy, over),), (Load(name, over),))
        before.append(Piece(replace(piece.node, op="copy"), (block,), {}, {}))
    return replace(piece, blocks=tuple(b.renamed(names) for b in piece.blocks)) if names else piece


# --- fusion -------------------------------------------------------------------------------------------------------


def fused(work: Work) -> list[list[int]]:
    """The Pieces (positions) of every Task, in an order in which the Tasks can run."""
    return _Fusion(work).run()


class _Fusion:
    def __init__(self, work: Work) -> None:
        self.work, self.pieces = work, work.pieces
        self.writer = {name: k for k, p in enumerate(self.pieces) for name in p.writes}
        self.readers: dict[str, set[int]] = {}
        for k, p in enumerate(self.pieces):
            for name in p.reads:
                self.readers.setdefault(name, set()).add(k)
        memo: dict[str, frozenset[int]] = {}
        self.needs = [frozenset(j for name in p.reads for j in self._writers(name, memo)) for p in self.pieces]
        self.group = list(range(len(self.pieces)))
        self.members: dict[int, list[int]] = {k: [k] for k in range(len(self.pieces))}
        self.maps = [_map_shape(p, work.shapes) for p in self.pieces]

    def _writers(self, name: str, memo: dict[str, frozenset[int]]) -> frozenset[int]:
        """The Pieces that write the elements of a value."""
        if name not in memo:
            found = frozenset((self.writer[name],)) if name in self.writer else frozenset()
            for source in self.work.made_of.get(name, ()):
                found |= self._writers(source, memo)
            memo[name] = found
        return memo[name]

    def run(self) -> list[list[int]]:
        for k in reversed(range(len(self.pieces))):
            if self.pieces[k].reduces and not self.pieces[k].opaque:
                self.grow(k)
        for k in range(len(self.pieces)):
            if self.maps[k] is not None and self.members.get(self.group[k]) == [k]:
                self.grow(k)
        for g in sorted(self.members, reverse=True):
            self.prologue(g)
        return self.ordered()

    # --- epilogues ------------------------------------------------------------------------------------------------

    def grow(self, start: int) -> None:
        """Adds maps that read what the group writes, and keeps as many as leave a single value for others."""
        if len(self.pieces[start].writes) != 1:
            return
        shape = self.work.shapes[self.pieces[start].writes[0]]
        members = [start]
        written = set(self.pieces[start].writes)
        best = 1
        refused: set[int] = set()
        while True:
            found = {k for name in written for k in self.readers.get(name, ())} - set(members) - refused
            if not found:
                break
            k = min(found)
            if self.maps[k] == shape and len(self.members[self.group[k]]) == 1 and self.joins(k, members, written):
                members.append(k)
                written |= set(self.pieces[k].writes)
                refused.clear()
                if len(self.leaving(members)) == 1:
                    best = len(members)
            else:
                refused.add(k)
        self.merge(members[:best])

    def joins(self, k: int, members: list[int], written: set[str]) -> bool:
        """Whether the map `k` reads the group's values at its own points, and nothing else that depends on them."""
        (block,) = self.pieces[k].blocks
        assert isinstance(block, Block)
        if not all(identity(r, block) for r in block.reads if r.buffer in written):
            return False
        return not self.depends(self.needs[k] - set(members), members)

    def depends(self, needs: Iterable[int], members: Iterable[int]) -> bool:
        """Whether one of the Pieces `needs`, or what it waits for (whole groups), is among `members`."""
        targets = set(members)
        todo, seen = list(needs), set[int]()
        while todo:
            k = todo.pop()
            if k in targets:
                return True
            g = self.group[k]
            if g in seen:
                continue
            seen.add(g)
            for m in self.members[g]:
                if m in targets:
                    return True
                todo += self.needs[m] - set(self.members[g])
        return False

    def leaving(self, members: Iterable[int]) -> list[str]:
        """The values that others need of what `members` write."""
        own = set(members)
        return [
            name
            for k in own
            for name in self.pieces[k].writes
            if name in self.work.kept or self.readers.get(name, set()) - own
        ]

    def merge(self, members: list[int]) -> None:
        first = self.group[members[0]]
        every = sorted({m for k in members for m in self.members[self.group[k]]})
        for g in {self.group[k] for k in members} - {first}:
            del self.members[g]
        self.members[first] = every
        for m in every:
            self.group[m] = first

    # --- prologues ------------------------------------------------------------------------------------------------

    def prologue(self, g: int) -> None:
        """Merges a group of maps into the group that alone reads its one result, element by element."""
        members = self.members.get(g)
        if members is None or any(self.maps[k] is None for k in members):
            return
        leaving = self.leaving(members)
        if len(leaving) != 1 or leaving[0] in self.work.kept:
            return
        (name,) = leaving
        outside = self.readers[name] - set(members)
        groups = {self.group[k] for k in outside}
        if len(groups) != 1 or not all(self.takes(k, name) for k in outside):
            return
        others = self.members[groups.pop()]
        needs = {n for k in others for n in self.needs[k]} - set(others) - set(members)
        if not self.depends(needs, members):
            self.merge([others[0], members[0]])

    def takes(self, k: int, name: str) -> bool:
        """Whether Piece `k` reads `name` so that what computes it can run inside: no element more often than once per
        Block, none of them through a window or as the operand of a contraction."""
        piece, shape = self.pieces[k], self.work.shapes[name]
        for block in piece.blocks:
            if isinstance(block, OpaqueBlock):
                return False
            reads = [r for r in block.reads if r.buffer == name]
            if not reads:
                continue
            if block.reduction:
                if is_contraction(block) or not all(_covers(r, block, shape) for r in reads):
                    return False
            elif moved(block) is not None:
                if block.points() > prod(shape):
                    return False
            elif not all(_covers(r, block, shape) for r in reads):
                return False
        return True

    # --- order ----------------------------------------------------------------------------------------------------

    def ordered(self) -> list[list[int]]:
        """Groups in topological order; of those that can run, the one whose first Piece comes first."""
        needs = {
            g: {self.group[n] for k in members for n in self.needs[k]} - {g} for g, members in self.members.items()
        }
        waiting = {g: len(n) for g, n in needs.items()}
        users: dict[int, list[int]] = {}
        for g, n in needs.items():
            for other in n:
                users.setdefault(other, []).append(g)
        ready = [(self.members[g][0], g) for g, n in waiting.items() if not n]
        heapify(ready)
        result = []
        while ready:
            _, g = heappop(ready)
            result.append(self.members[g])
            for user in users.get(g, ()):
                waiting[user] -= 1
                if not waiting[user]:
                    heappush(ready, (self.members[user][0], user))
        assert len(result) == len(self.members), "fusion made a cycle"
        return result


def _map_shape(piece: Piece, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...] | None:
    """The shape over which the Piece is one plain map, or None."""
    if len(piece.blocks) != 1 or plain_write(piece.blocks[0]) is None:
        return None
    (name,) = piece.writes
    (block,) = piece.blocks
    return shapes[name] if isinstance(block, Block) and block.points() == prod(shapes[name]) else None


def _covers(read: Load, block: Block, shape: tuple[int, ...]) -> bool:
    """Whether the Block reads every element of a tensor of `shape` once: at distinct plain iterators that are all its
    own iterators."""
    long = [(i, n) for i, n in zip(read.indices, shape, strict=True) if n > 1]
    if not all(isinstance(i, Var) and block.ranges[i.name] == n for i, n in long):
        return False
    used = [i.name for i, _ in long if isinstance(i, Var)]
    return sorted(used) == sorted(i.name for i in block.iters if i.extent > 1)


# --- from groups to Tasks -----------------------------------------------------------------------------------------


def _assembled(graph: Graph, work: Work, groups: list[list[int]], layouts: Layouts) -> Program:
    needed: dict[str, None] = dict.fromkeys((*graph.inputs, *graph.outputs))
    inside = [[work.pieces[k] for k in group] for group in groups]
    reads = [set().union(*(p.reads for p in group)) for group in inside]
    counts: dict[str, int] = {}
    for names in reads:
        for name in names:
            counts[name] = counts.get(name, 0) + 1
    tasks = []
    for k, (group, names) in enumerate(zip(inside, reads, strict=True)):
        written = {n for p in group for n in p.writes}
        others = {n for n in written if n in work.kept or counts.get(n, 0) > (n in names)}
        bound = _task(work, group, others, k, layouts)
        tasks.append(bound)
        needed |= dict.fromkeys(bound.values.values())
    for name in list(needed):
        needed[work.places[name].root] = None
    values = {name: _placed(work, name) for name in needed}
    constants = {n: np.ascontiguousarray(d) for n, d in work.constants.items() if n in values}
    constants = {n: d.reshape(values[n].shape) for n, d in constants.items()}
    return Program(graph.name, graph.inputs, graph.outputs, constants, values, tuple(tasks))


def _placed(work: Work, name: str) -> Placed:
    place, shape = work.places[name], work.shapes[name]
    layout, strides = stored(shape, place.strides)
    return Placed(name, work.dtypes[name], shape, layout, strides, place.root, place.offset)


def _task(work: Work, group: list[Piece], others: set[str], number: int, layouts: Layouts) -> BoundTask:
    """The Task of a group of Pieces. `others` are the values that something outside reads."""
    blocks = [b for p in group for b in p.blocks]
    written = [n for p in group for n in p.writes]
    outputs = [n for n in written if n in others]
    inputs = list(dict.fromkeys(x for b in blocks for x in block_reads(b)))
    own = {n: b for p in group for n, b in p.locals.items() if n not in p.tables}
    inputs = [x for x in inputs if x not in written and x not in own]
    locals_ = [x for b in blocks for x in _written(b) if x not in outputs]
    names = {x: f"x{k}" for k, x in enumerate(inputs)} | {y: f"y{k}" for k, y in enumerate(dict.fromkeys(outputs))}
    names |= {t: f"t{k}" for k, t in enumerate(dict.fromkeys(locals_))}
    shapes = {**work.shapes, **{n: b.shape for n, b in own.items()}}
    dtypes = {**work.dtypes, **{n: b.dtype for n, b in own.items()}}
    buffers, result = [], {}
    for value, name in names.items():
        if name[0] == "t":
            buffers.append(
                Buffer(name, dtypes[value], shapes[value], _local_layout(work, value, shapes, outputs, layouts))
            )
        else:
            placed = _placed(work, value)
            buffers.append(Buffer(name, placed.dtype, placed.shape, placed.layout, placed.strides))
            result[name] = value
    unique = _unique([b.name for b in blocks], set(names.values()))
    final = tuple(replace(b.renamed(names), name=n) for b, n in zip(blocks, unique, strict=True))
    known = frozenset(names[x] for x in inputs if work.places[x].root in work.constants)
    ops = [p.node.op.lower() for p in group][:NAMED_NODES]
    title = re.sub(r"\W+", "_", "_".join([*ops, str(number)]))
    nodes = tuple(dict.fromkeys(s for p in group for s in p.node.source or (p.node.name,)))
    ins, outs = (tuple(names[x] for x in dict.fromkeys(values)) for values in (inputs, outputs))
    task = Task(title, tuple(buffers), ins, outs, final, _anchor(final), known, nodes)
    return BoundTask(task, result)


def _written(block: AnyBlock) -> tuple[str, ...]:
    return block.outputs if isinstance(block, OpaqueBlock) else tuple(w.buffer for w in block.writes)


def _local_layout(
    work: Work, name: str, shapes: Mapping[str, tuple[int, ...]], outputs: list[str], layouts: Layouts
) -> Layout:
    """A local of the output's shape is stored in the output's order, others as the layout stage says."""
    shape = shapes[name]
    for output in outputs:
        if work.shapes[output] == shape:
            return stored(shape, work.places[output].strides)[0]
    return stored(shape, strides_of(shape, layouts.get(name, Layout())))[0]


def _unique(names: list[str], taken: set[str]) -> list[str]:
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
    """The Block that the schedule is built around: the contraction, else the reduction, with most points; else the last."""
    reducing = [b for b in blocks if isinstance(b, Block) and b.reduction]
    contracting = [b for b in reducing if is_contraction(b)]
    found = contracting or reducing
    return max(found, key=lambda b: b.points()).name if found else blocks[-1].name
