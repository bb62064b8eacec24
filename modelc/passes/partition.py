"""Partition: Graph -> Program.

pieces.py   the meaning of every node, over the Graph's value names
sink.py     reshapes and transpositions go below the maps that read them
layout.py   which values are stored otherwise than row-major
views.py    which values are Regions of others, and need no Task
fuse.py     which Pieces make one Task
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from modelc.ir.block import AnyBlock, Block, Buffer, Iter, OpaqueBlock, Task
from modelc.ir.expr import Load, Var
from modelc.ir.graph import Graph, Node
from modelc.ir.layout import Layout
from modelc.ir.program import BoundTask, Placed, Program, is_contraction, verify_program
from modelc.passes.fuse import Work, fused
from modelc.passes.layout import Layouts, choose_layouts
from modelc.passes.pieces import Piece, block_reads, pieces_of
from modelc.passes.sink import sink_moves
from modelc.passes.views import Copy, Place, Views, find_views, is_compact, stored, strides_of

NAMED_NODES = 4  # a Task's name mentions as many operators


def partition(graph: Graph, attention_bytes: int = 0) -> Program:
    """The Program that computes what `graph` does. Attention becomes one Task where its rows of scores fit into
    `attention_bytes` of cache. Raises ModelError for an unknown operator."""
    graph, renamed = _outputs_of_their_own(graph)
    graph, pieces = sink_moves(graph, pieces_of(graph))
    layouts = choose_layouts(graph, pieces)
    views = find_views(graph, pieces, layouts)
    work = _work(graph, pieces, views)
    program = _assembled(graph, work, fused(work, attention_bytes), layouts)
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


def _work(graph: Graph, pieces: list[Piece], views: Views) -> Work:
    shapes = {n: v.shape for n, v in graph.values.items()}
    dtypes = {n: v.dtype for n, v in graph.values.items()}
    constants = {n: v.data for n, v in graph.values.items() if v.data is not None}
    places = dict(views.places)
    for p in pieces:
        constants |= p.tables
        shapes |= {n: p.locals[n].shape for n in p.tables}
        dtypes |= {n: p.locals[n].dtype for n in p.tables}
    copies: dict[str, list[Copy]] = {}
    for copy in views.copies:
        copies.setdefault(copy.part.target, []).append(copy)
        shapes[copy.name], dtypes[copy.name] = shapes[copy.part.source], dtypes[copy.part.source]
    result: list[Piece] = []
    for piece in pieces:
        if piece.writes and piece.writes[0] in views.parts:
            for copy in copies.get(piece.writes[0], ()):
                over = tuple(Var(i.name) for i in copy.part.block.iters)
                block = replace(copy.part.block, writes=(Load(copy.name, over),))
                result.append(replace(piece, blocks=(block,)))
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
    """The Block to schedule around: the contraction, else the reduction, of most points; else the last."""
    reducing = [b for b in blocks if isinstance(b, Block) and b.reduction]
    contracting = [b for b in reducing if is_contraction(b)]
    found = contracting or reducing
    return max(found, key=lambda b: b.points()).name if found else blocks[-1].name
