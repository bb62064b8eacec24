"""The layout stage, by rules: which values are stored otherwise than row-major (choice.py chooses by cost).

Activations that windows slide over, or that channels are contracted from, are stored channels-last, and so is all that
has the same dimensions and is computed from them element by element. A matrix product that is only read transposed is
stored transposed, so that what follows can be a view. The model's inputs and outputs stay row-major.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from modelc.ir.block import Block
from modelc.ir.expr import Expr, Load, Var, variables
from modelc.ir.graph import Graph
from modelc.ir.layout import Layout, channels_last, reordered
from modelc.partition.pieces import Piece, moved


def layouts_by_rule(graph: Graph, pieces: Iterable[Piece]) -> dict[str, Layout]:
    """The layouts of values and of Pieces' local buffers; what is not listed is row-major."""
    pieces = list(pieces)
    ranks = {n: len(v.shape) for n, v in graph.values.items()}
    ranks |= {n: len(b.shape) for p in pieces for n, b in p.locals.items()}
    layouts = {n: channels_last(ranks[n]) for members in linked(graph, pieces) for n in members}
    return layouts | _transposed(pieces, {*fixed_values(graph, pieces), *layouts})


def fixed_values(graph: Graph, pieces: Iterable[Piece]) -> set[str]:
    """What stays row-major: the model's boundary, constants, and operands of opaque Blocks."""
    fixed = {*graph.inputs, *graph.outputs, *(n for n, v in graph.values.items() if v.data is not None)}
    for piece in pieces:
        fixed |= set(piece.tables)
        if piece.opaque:
            fixed |= {*piece.reads, *piece.writes}
    return fixed


# --- channels-last ------------------------------------------------------------------------------------------------


def linked(graph: Graph, pieces: Iterable[Piece]) -> list[tuple[str, ...]]:
    """Classes of values and locals (names) that are tied to each other element by element, through maps alone, and one
    of which is data or result of a Block that windows slide in or channels are contracted in (ALT's complex operators).
    A class shares one layout: it is propagated to all producers and all consumers."""
    pieces = list(pieces)
    seeded = dict.fromkeys(n for p in pieces for b in p.blocks if isinstance(b, Block) for n in seeds(b))
    return tied(pieces, seeded, fixed_values(graph, pieces), _links)


def tied(
    pieces: Iterable[Piece],
    seeded: Collection[str],
    fixed: Collection[str],
    links: Callable[[Block], list[tuple[str, str]]],
) -> list[tuple[str, ...]]:
    """Classes of names that `links` of the Pieces' Blocks tie to each other, and one of which is `seeded`; without
    those that are `fixed`."""
    first: dict[str, str] = {}

    def root(name: str) -> str:
        while first.setdefault(name, name) != name:
            first[name] = name = first[first[name]]
        return name

    for block in (b for p in pieces for b in p.blocks if isinstance(b, Block)):
        for a, b in links(block):
            if a not in fixed and b not in fixed:
                first[root(a)] = root(b)
    roots = {root(n) for n in seeded if n not in fixed}
    classes: dict[str, list[str]] = {}
    for name in [*seeded, *first]:
        if name not in fixed and root(name) in roots:
            classes.setdefault(root(name), []).append(name)
    return [tuple(dict.fromkeys(members)) for members in classes.values()]


def seeds(block: Block) -> list[str]:
    """Data and results of a Block that slides windows over space, or contracts channels at every point of space: both
    are indexed [n, channel, space...]."""
    if not block.reduction:
        return []
    result = []
    for read in block.reads:
        for write in block.writes:
            if _over_space(block, read, write) and (_windows(block, read) or _pointwise(block, read, write)):
                result += [read.buffer, write.buffer]
    return list(dict.fromkeys(result))


def slides(piece: Piece) -> bool:
    """Whether some Block of the Piece slides windows over what it reads."""
    blocks = [b for b in piece.blocks if isinstance(b, Block) and b.reduction]
    return any(_over_space(b, r, w) and _windows(b, r) for b in blocks for r in b.reads for w in b.writes)


def _over_space(block: Block, read: Load, write: Load) -> bool:
    """Read and written with the same batch and with spatial dimensions that move together."""
    rank = len(write.indices)
    if len(read.indices) != rank or not 3 <= rank <= 5 or read.indices[0] != write.indices[0]:
        return False
    pairs = zip(read.indices[2:], write.indices[2:], strict=True)
    return all(variables(r) & variables(w) for r, w in pairs)


def _windows(block: Block, read: Load) -> bool:
    reduced = {i.name for i in block.reduction}
    return any(variables(i) & reduced and variables(i) - reduced for i in read.indices[2:])


def _pointwise(block: Block, read: Load, write: Load) -> bool:
    """Channels contracted with operands that are the same for the whole batch."""
    reduced = {i.name for i in block.reduction}
    batch = write.indices[0]
    others = [r for r in block.reads if r.buffer != read.buffer]
    return (
        bool(variables(read.indices[1]) & reduced)
        and bool(others)
        and isinstance(batch, Var)
        and not any(batch.name in variables(r) for r in others)
    )


def _links(block: Block) -> list[tuple[str, str]]:
    """Pairs (read, written) of a map with the same dimensions in the same places."""
    if block.reduction:
        return []
    return [(r.buffer, w.buffer) for w in block.writes for r in block.reads if _aligned(block, r, w)]


def _aligned(block: Block, read: Load, write: Load) -> bool:
    rank = len(write.indices)
    if len(read.indices) != rank or not 3 <= rank <= 5:
        return False
    long = {i.name for i in block.iters if i.extent > 1}

    def moving(e: Expr) -> frozenset[str]:
        return variables(e) & long

    pairs = list(zip(read.indices, write.indices, strict=True))
    together = all(not moving(r) or moving(r) & moving(w) for r, w in pairs)
    return together and any(moving(r) for r, _ in pairs[2:])


# --- stored transposed --------------------------------------------------------------------------------------------


def _transposed(pieces: list[Piece], fixed: set[str]) -> dict[str, Layout]:
    """Results that one transposition alone reads, stored in its order: then the transposition is a view, and compact.
    The last dimension has to stay last, or what computes them would write element by element."""
    readers: dict[str, list[Piece]] = {}
    for piece in pieces:
        for name in piece.reads:
            readers.setdefault(name, []).append(piece)
    result = {}
    for piece in pieces:
        for name in piece.writes if any(moved(b) is None for b in piece.blocks) else ():
            if name in fixed or len(readers.get(name, ())) != 1:
                continue
            (reader,) = readers[name]
            order = _permutation(reader)
            if order is not None and order[-1] == len(order) - 1 and order != tuple(range(len(order))):
                result[name] = reordered(*order)
    return result


def _permutation(piece: Piece) -> tuple[int, ...] | None:
    """The dimensions of the source, in the order in which a pure transposition writes them."""
    if len(piece.blocks) != 1:
        return None
    read = moved(piece.blocks[0])
    if read is None or not isinstance(piece.blocks[0], Block):
        return None
    over = [i.name for i in piece.blocks[0].writes[0].indices if isinstance(i, Var)]
    by = [i.name for i in read.indices if isinstance(i, Var)]
    if len(by) != len(read.indices) or sorted(by) != sorted(over):
        return None
    return tuple(by.index(v) for v in over)
