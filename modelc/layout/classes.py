"""Which values share a layout, and the layouts that they may have (ALT, sections 4.2 and 5.1).

A class is what is tied together element by element, through maps alone (ALT's propagation, which stops at complex
operators and reaches all producers and all consumers). Its variable has these values, each a Layout:

    last       channels innermost                  windows slide over it, or channels are contracted from it; the rule
    rows       row-major
    blocked o  N C/o H W o                         the same, where the channels divide

    rows       row-major                           one of two computed operands of a product; the rule
    swapped    the last two dimensions swapped     the same
    packed n   .. K/n N n -> .. N/n K n            the same, split along its last dimension
    standing m .. N/m K m of a .. N K              and along the one before it

The parameter of a layout that splits a dimension, ALT's o_t, n_t and m_t, is one vector, two, four and so on: whatever
divides the dimension. parameters.py says which of them a class is offered. A constant operand is packed when compiling
and asks nothing of the other one, and a Task of several contractions packs what each of its tiles multiplies. Layouts
that do more than reorder have no Regions: they are for classes of which nothing is moved.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from modelc.ir.block import Block
from modelc.ir.graph import Graph
from modelc.ir.layout import Layout, channels_last, reordered
from modelc.ir.program import is_contraction
from modelc.layout.rules import fixed_values, layouts_by_rule, linked, tied
from modelc.partition.pieces import Piece, moved


@dataclass(frozen=True)
class Family:
    """Layouts that split dimension `dim` of a tensor (from the last on, where it is negative), with a parameter: how
    long the inner part is. `order`: of the dimensions after the split, of a tensor of so many before it."""

    name: str
    dim: int
    order: Callable[[int], tuple[int, ...]]

    def layout(self, rank: int, size: int) -> Layout:
        """That of a tensor of `rank` with an inner part of `size`."""
        return Layout().then("split", self.dim % rank, size).then("reorder", *self.order(rank))


WINDOWS = (Family("blocked", 1, lambda rank: (0, 1, *range(3, rank + 1), 2)),)
OPERANDS = (
    Family("packed", -1, lambda rank: (*range(rank - 2), rank - 1, rank - 2, rank)),
    Family("standing", -2, lambda rank: (*range(rank - 2), rank - 2, rank, rank - 1)),
)


@dataclass(frozen=True)
class LayoutClass:
    """Values and Pieces' locals that are stored alike, and each Layout that they may have, by its kind: the rules' one
    first. `families`: the kinds of each family, one vector first."""

    members: tuple[str, ...]
    layouts: Mapping[str, Layout]
    families: Mapping[str, tuple[str, ...]]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of the layouts."""
        return tuple(self.layouts)

    @property
    def rule(self) -> str:
        """The kind that the rules take."""
        return self.kinds[0]

    @property
    def splits(self) -> tuple[str, ...]:
        """The kinds that split a dimension."""
        return tuple(kind for kinds in self.families.values() for kind in kinds)

    def offered(self, splits: Collection[str]) -> LayoutClass:
        """With these alone of the kinds that split a dimension."""
        layouts = {kind: x for kind, x in self.layouts.items() if kind not in self.splits or kind in splits}
        families = {name: tuple(k for k in kinds if k in splits) for name, kinds in self.families.items()}
        return replace(self, layouts=layouts, families=families)


def layout_classes(
    graph: Graph, pieces: Sequence[Piece], groups: Sequence[Sequence[Piece]], lanes: int
) -> tuple[LayoutClass, ...]:
    """All classes of more than one layout, with all parameters. `groups` are the Pieces of each Task where layouts are
    those of the rules; `lanes`: of a vector; 0: no dimension is split."""
    shapes = {n: v.shape for n, v in graph.values.items()}
    shapes |= {n: b.shape for p in pieces for n, b in p.locals.items()}
    moving = {x for p in pieces if any(moved(b) is not None for b in p.blocks) for x in (*p.reads, *p.writes)}

    def layout_class(members: tuple[str, ...], plain: Mapping[str, Layout], families: Sequence[Family]) -> LayoutClass:
        shape = shapes[members[0]]
        splits = {}
        if lanes and all(shapes[n] == shape and n not in moving for n in members):
            for family in families:
                sizes = parameters(shape[family.dim], lanes)
                splits[family.name] = {f"{family.name} {size}": family.layout(len(shape), size) for size in sizes}
        layouts = {kind: x for kinds in (plain, *splits.values()) for kind, x in kinds.items()}
        return LayoutClass(members, layouts, {name: tuple(kinds) for name, kinds in splits.items()})

    classes = []
    for members in linked(graph, pieces):
        last = channels_last(len(shapes[members[0]]))
        classes.append(layout_class(members, {"last": last, "rows": Layout()}, WINDOWS))
    settled = {*fixed_values(graph, pieces), *layouts_by_rule(graph, pieces)}
    for members in tied(pieces, _multiplied(pieces, groups, settled), settled, _side_by_side):
        shape = shapes[members[0]]
        rank = len(shape)
        if rank >= 2 and min(shape[-2:]) >= 2:
            swapped = reordered(*range(rank - 2), rank - 1, rank - 2)
            classes.append(layout_class(members, {"rows": Layout(), "swapped": swapped}, OPERANDS))
    return tuple(classes)


def parameters(extent: int, lanes: int) -> list[int]:
    """Doublings of a vector of `lanes` that divide a dimension of `extent`, without the extent itself."""
    doubled = (lanes << k for k in range(extent.bit_length()))
    return [size for size in doubled if extent % size == 0 and size < extent]


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
