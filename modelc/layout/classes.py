"""Which values share a layout, and the layouts that they may have (ALT, sections 4.2 and 5.1).

A class is what is tied together element by element, through maps alone (ALT's propagation, which stops at complex
operators and reaches all producers and all consumers); every kind of layout that it may have is a Layout:

    last      channels innermost                  windows slide over it, or channels are contracted from it; the rule
    rows      row-major
    blocked   N C/c H W c, c the vector's lanes   the same, where the channels divide
    swapped   the last two dimensions swapped     one of two computed operands of a product, which is row-major by rule
    packed    .. K/c N c -> .. N/c K c            the same, split by the vector's lanes along its last dimension
    standing  .. N/c K c of a .. N K              and along the one before it

A constant operand is packed when compiling and asks nothing of the other one, and a Task of several contractions packs
what each of its tiles multiplies. Layouts that do more than reorder have no Regions: they are for classes of which
nothing is moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from modelc.ir.block import Block
from modelc.ir.graph import Graph
from modelc.ir.layout import Layout, channels_last, reordered
from modelc.ir.program import is_contraction
from modelc.layout.rules import fixed_values, layouts_by_rule, linked, tied
from modelc.partition.pieces import Piece, moved


@dataclass(frozen=True)
class LayoutClass:
    """Values and Pieces' locals that are stored alike, and each Layout that they may have, by its kind: the rules' one
    first."""

    members: tuple[str, ...]
    layouts: Mapping[str, Layout]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of the layouts."""
        return tuple(self.layouts)

    @property
    def rule(self) -> str:
        """The kind that the rules take."""
        return self.kinds[0]


def layout_classes(
    graph: Graph, pieces: Sequence[Piece], groups: Sequence[Sequence[Piece]], lanes: int
) -> tuple[LayoutClass, ...]:
    """All classes of more than one layout. `groups` are the Pieces of each Task where layouts are those of the rules;
    `lanes`: of the inner part of layouts that split a dimension; 0: there are none."""
    shapes = {n: v.shape for n, v in graph.values.items()}
    shapes |= {n: b.shape for p in pieces for n, b in p.locals.items()}
    moving = {x for p in pieces if any(moved(b) is not None for b in p.blocks) for x in (*p.reads, *p.writes)}
    classes = []
    spatial = linked(graph, pieces)
    for members in spatial:
        shape = shapes[members[0]]
        layouts = {"last": channels_last(len(shape)), "rows": Layout()}
        if _splits(members, shapes, moving, 1, lanes):
            layouts["blocked"] = split(len(shape), 1, lanes, (0, 1, *range(3, len(shape) + 1), 2))
        classes.append(LayoutClass(members, layouts))
    settled = {*fixed_values(graph, pieces), *layouts_by_rule(graph, pieces)}
    for members in tied(pieces, _multiplied(pieces, groups, settled), settled, _side_by_side):
        shape = shapes[members[0]]
        rank = len(shape)
        if rank < 2 or min(shape[-2:]) < 2:
            continue
        batch = tuple(range(rank - 2))
        layouts = {"rows": Layout(), "swapped": reordered(*batch, rank - 1, rank - 2)}
        if _splits(members, shapes, moving, rank - 1, lanes):
            layouts["packed"] = split(rank, rank - 1, lanes, (*batch, rank - 1, rank - 2, rank))
        if _splits(members, shapes, moving, rank - 2, lanes):
            layouts["standing"] = split(rank, rank - 2, lanes, (*batch, rank - 2, rank, rank - 1))
        classes.append(LayoutClass(members, layouts))
    return tuple(classes)


def split(rank: int, dim: int, lanes: int, order: Sequence[int]) -> Layout:
    """The layout of a tensor of `rank` that splits `dim` by `lanes`, and then has its dimensions in `order`."""
    assert sorted(order) == list(range(rank + 1))
    return Layout().then("split", dim, lanes).then("reorder", *order)


def _splits(
    members: Sequence[str], shapes: Mapping[str, tuple[int, ...]], moving: set[str], dim: int, lanes: int
) -> bool:
    """Whether all members can be stored with dimension `dim` split: all of one shape that divides, none moved."""
    shape = shapes[members[0]]
    if not lanes or shape[dim] % lanes or shape[dim] <= lanes:
        return False
    return not any(shapes[n] != shape or n in moving for n in members)


# --- operands of products -----------------------------------------------------------------------------------------


def _multiplied(pieces: Sequence[Piece], groups: Sequence[Sequence[Piece]], settled: set[str]) -> list[str]:
    """The computed operands of contractions that have no other ones and are alone in their Tasks, or what these are
    views of."""
    writer = {name: p for p in pieces for name in p.writes}
    operands: dict[str, None] = {}
    for group in groups:
        products = [b for p in group for b in p.blocks if isinstance(b, Block) and is_contraction(b)]
        if len(products) != 1:
            continue
        (block,) = products
        reads = list(dict.fromkeys(r.buffer for r in block.reads))
        if len(reads) < 2 or any(name in settled for name in reads):
            continue
        for name in reads:
            while (piece := writer.get(name)) is not None and len(piece.blocks) == 1:
                read = moved(piece.blocks[0])
                if read is None:
                    break
                name = read.buffer
            operands[name] = None
    return [n for n in operands if n not in settled]


def _side_by_side(block: Block) -> list[tuple[str, str]]:
    """Pairs (read, written) of a map, element by element."""
    if block.reduction:
        return []
    pairs = [(r, w) for w in block.writes for r in block.reads]
    return [(r.buffer, w.buffer) for r, w in pairs if r.indices == w.indices and len(w.indices) == len(block.iters)]
