"""Graph -> Draft: Pieces, the views among them, and the groups of Pieces that become Tasks.

pieces.py   the meaning of every node, over the Graph's value names
sink.py     reshapes and transpositions go below the maps that read them
views.py    which values are Regions of others, and need no Task
fuse.py     which Pieces make one Task
stored_bytes.py  what Tasks write for others as the bytes that it was rounded to
tasks.py    the Tasks and the Program
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from math import prod

from modelc.ir.block import Block, Iter
from modelc.ir.expr import Load, Var
from modelc.ir.graph import Graph, Node
from modelc.ir.layout import Layout, Layouts
from modelc.partition.fuse import fused
from modelc.partition.groups import Nodes, Work
from modelc.partition.pieces import Piece, moved, pieces_of
from modelc.partition.sink import sink_moves
from modelc.partition.stored_bytes import stored_as_bytes
from modelc.partition.tasks import Draft
from modelc.partition.views import Copy, Region, Views, find_views, is_compact, region_of, strides_of

Drafting = Callable[[Graph, list[Piece], Layouts], Draft]


@dataclass(frozen=True)
class Prepared:
    """A Graph with outputs of its own, notes for the user, and its Pieces with moves sunk below maps."""

    graph: Graph
    notes: tuple[str, ...]
    pieces: list[Piece]


def prepared(graph: Graph) -> Prepared:
    graph, notes = _outputs_of_their_own(graph)
    graph, pieces = sink_moves(graph, pieces_of(graph))
    return Prepared(graph, notes, pieces)


def drafting(attention_bytes: int, cuts: Collection[str] = (), tasks: Collection[Nodes] | None = None) -> Drafting:
    """How Pieces become Tasks: attention becomes one where its rows of scores fit into `attention_bytes` of cache, or,
    where it is said of which nodes the `tasks` are at other sizes, where it is one there; with each of the values
    `cuts` a Task ends."""

    def draft(graph: Graph, pieces: list[Piece], layouts: Layouts) -> Draft:
        work = _work(graph, pieces, find_views(graph, pieces, layouts))
        work = replace(work, kept=work.kept | set(cuts), cuts=frozenset(cuts))
        groups = fused(work, attention_bytes, tasks)
        return Draft(*stored_as_bytes(work, [[work.pieces[k] for k in group] for group in groups]), layouts)

    return draft


def _outputs_of_their_own(graph: Graph) -> tuple[Graph, tuple[str, ...]]:
    """The graph with a copying node for every output that is an input or a constant. Outputs keep their order."""
    nodes, values, notes = list(graph.nodes), [], []
    inputs, outputs, taken = frozenset(graph.inputs), list[str](), set[str]()
    for name in graph.outputs:
        value = graph.value(name)
        if name not in inputs and value.data is None:
            outputs.append(name)
            continue
        copy = graph.fresh(f"{name}_copy", taken)
        outputs.append(copy)
        taken.add(copy)
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
    places, sources = dict(views.places), dict(views.sources)
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
            result += _apart(replace(piece, blocks=blocks), places, sources, shapes, dtypes)
    made_of = {n: (s,) for n, s in sources.items()} | dict(views.parts)
    kept = {*graph.outputs, *(s for sources in made_of.values() for s in sources)}
    part_of = {copy.name: copy.part.target for copy in views.copies}
    return Work(tuple(result), places, shapes, dtypes, made_of, part_of, constants, frozenset(kept))


def _apart(
    piece: Piece,
    places: dict[str, Region],
    sources: dict[str, str],
    shapes: dict[str, tuple[int, ...]],
    dtypes: dict[str, str],
) -> list[Piece]:
    """Where copying is all that the Piece does, as a Split does, one for each copy, out of a Region: those of one shape
    are one kernel."""
    copies: list[Piece] = []
    regions: dict[str, tuple[str, Region]] = {}
    for block in piece.blocks:
        read = moved(block)
        if read is None or not isinstance(block, Block) or places[read.buffer].layout is not None:
            return [piece]
        (write,) = block.writes
        place = region_of(block, read, places[read.buffer])
        if place is None or block.points() != prod(shapes[write.buffer]):
            return [piece]
        name = f"{write.buffer}#region"
        regions[name] = (read.buffer, place)
        copies.append(replace(piece, blocks=(replace(block, body=(Load(name, write.indices),)),)))
    if len(copies) < 2:
        return [piece]
    for (name, (source, place)), part in zip(regions.items(), copies, strict=True):
        places[name], sources[name] = place, source
        shapes[name], dtypes[name] = shapes[part.writes[0]], dtypes[source]
    return copies


def _compact_operands(
    piece: Piece,
    before: list[Piece],
    places: dict[str, Region],
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
        places[copy] = Region(copy, 0, strides_of(shape, Layout()))
        iters = tuple(Iter(f"i{k}", n) for k, n in enumerate(shape))
        over = tuple(Var(i.name) for i in iters)
        block = Block("copy", iters, (Load(copy, over),), (Load(name, over),))
        before.append(Piece(replace(piece.node, op="copy"), (block,), {}, {}))
    return replace(piece, blocks=tuple(b.renamed(names) for b in piece.blocks)) if names else piece
