"""Sinking moves below maps: `map(move(x))` becomes `move(map(x))`, so that the map can join what computes x.

    Y = Gemm(...)  [128, 768]            Y = Gemm(...)  [128, 768]
    R = Reshape(Y) [1, 128, 768]         A' = Y + Z[0, m, n]
    A = R + Z      [1, 128, 768]         A = Reshape(A')

Done where the move is a reshape or a transposition of a computed value that nothing else reads, and all that the map
reads stays affine.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from modelc.ir.affine import linear, simplify
from modelc.ir.block import Block, compact_strides
from modelc.ir.expr import Expr, Load, Var, rewrite, substitute, walk
from modelc.ir.graph import Graph, Value
from modelc.ops.move import reshaped
from modelc.ops.operator import grid, names
from modelc.partition.pieces import Piece, identity, moved, plain_write
from modelc.partition.views import Region, is_compact, region_of


def sink_moves(graph: Graph, pieces: list[Piece]) -> tuple[Graph, list[Piece]]:
    """The Graph with the values that appear in between, and the Pieces with moves sunk as far as they go."""
    sinking = _Sinking(graph, pieces)
    looked = sorted(sinking.at)
    while looked:
        looked = sinking.round(looked)
    return replace(graph, values=sinking.values), [sinking.at[key] for key in sorted(sinking.at)]


Key = tuple[int, ...]  # a Piece's place in the order: its number, and, of a move below it, another one


class _Sinking:
    """The Pieces in order while moves sink, who writes a value and who reads it."""

    def __init__(self, graph: Graph, pieces: list[Piece]) -> None:
        self.values = dict(graph.values)
        self.kept = {*graph.inputs, *graph.outputs}
        self.at: dict[Key, Piece] = {}
        self.writers: dict[str, Key] = {}
        self.readers: dict[str, set[Key]] = {}
        for k, piece in enumerate(pieces):
            self.put((k,), piece)

    def put(self, key: Key, piece: Piece) -> None:
        self.at[key] = piece
        for name in piece.writes:
            self.writers[name] = key
        for name in piece.reads:
            self.readers.setdefault(name, set()).add(key)

    def drop(self, key: Key) -> None:
        piece = self.at.pop(key)
        for name in piece.writes:
            self.writers.pop(name)
        for name in piece.reads:
            self.readers[name].discard(key)

    def round(self, keys: list[Key]) -> list[Key]:
        """Looks once at every map of `keys`, and returns those that are worth looking at again: they are near what has
        changed."""
        changed: set[Key] = set()
        again: set[Key] = set()
        for k in keys:
            piece = self.at.get(k)
            if piece is None or len(piece.blocks) != 1 or plain_write(piece.blocks[0]) is None:
                continue
            if moved(piece.blocks[0]) is not None:
                continue
            for name in piece.reads:
                m = self.writers.get(name)
                if m is None or name in self.kept or len(self.readers[name]) > 1:
                    continue
                source = _bijection(self.at[m], self.values)
                if source is None or source.name in self.kept or len(self.readers[source.name]) > 1:
                    continue
                origin = self.writers.get(source.name)
                if source.data is not None or origin is None or not self.computed(source.name):
                    continue
                if {m, k, origin} & changed:
                    again.add(k)
                    continue
                swapped = _swapped(self.at[m], piece, name, source, self.values)
                if swapped is not None:
                    below = (k[0], -len(self.values))  # above what sank below this map before
                    for key in (m, k):
                        self.drop(key)
                    self.put(k, swapped[0])
                    self.put(below, swapped[1])
                    changed |= {m, k, below}
                    again |= {k, *(r for w in swapped[1].writes for r in self.readers.get(w, ()))}
                    break
        return sorted(again)

    def computed(self, name: str) -> bool:
        """Whether the value comes, through moves, from a Piece that a map can join."""
        while name in self.writers:
            piece = self.at[self.writers[name]]
            if len(piece.writes) > 1 or not isinstance(piece.blocks[0], Block):
                return False
            read = moved(piece.blocks[0])
            if read is None:
                return True
            name = read.buffer
        return False


def _bijection(move: Piece, values: dict[str, Value]) -> Value | None:
    """The source, if the Piece reorders all of its elements: a reshape, or a transposition."""
    if len(move.blocks) != 1 or not isinstance(move.blocks[0], Block):
        return None
    block, read = move.blocks[0], moved(move.blocks[0])
    if read is None or read.buffer not in values or block.points() != prod(values[read.buffer].shape):
        return None
    source = values[read.buffer]
    return source if _is_reshape(block, read, source.shape) or _order(block, read) is not None else None


def _is_reshape(block: Block, read: Load, shape: tuple[int, ...]) -> bool:
    at = region_of(block, read, Region("", 0, compact_strides(shape)))
    target = tuple(block.ranges[i.name] if isinstance(i, Var) else 1 for i in block.writes[0].indices)
    return at is not None and not at.offset and is_compact(target, at.strides)


def _order(block: Block, read: Load) -> dict[str, int] | None:
    """Iterator -> the dimension of the source that it walks along, for a transposition."""
    dimensions = {i.name: d for d, i in enumerate(read.indices) if isinstance(i, Var)}
    return dimensions if len(dimensions) == len(read.indices) == len(block.iters) else None


def _swapped(
    move: Piece, piece: Piece, name: str, source: Value, values: dict[str, Value]
) -> tuple[Piece, Piece] | None:
    """The map over the source's shape, and the move of its result."""
    (block,), (mover,) = piece.blocks, move.blocks
    assert isinstance(block, Block) and isinstance(mover, Block)
    read = moved(mover)
    assert read is not None
    if not all(identity(r, block) for r in block.reads if r.buffer == name):
        return None
    (target,) = piece.writes
    if values[target].shape != values[name].shape:
        return None
    over = tuple(Var(v) for v in names(len(source.shape)))
    iters = grid(source.shape)
    at = _inverse(mover, read, source.shape, values[name].shape, over)
    (write,) = block.writes
    bound = {w.name: i for w, i in zip(write.indices, at, strict=True) if isinstance(w, Var)}
    body = substitute(block.body[0], bound)
    ranges = {i.name: i.extent for i in iters}

    def retold(e: Expr) -> Expr | None:
        if not isinstance(e, Load):
            return None
        if e.buffer == name:
            return Load(source.name, over)
        return Load(e.buffer, tuple(simplify(i, ranges) for i in e.indices))

    body = rewrite(body, retold)
    if not all(_affine(i) for e in walk(body) if isinstance(e, Load) for i in e.indices):
        return None
    between = f"{target}#moved"
    while between in values:
        between += "_"
    values[between] = Value(between, values[target].dtype, source.shape)
    new = replace(block, iters=iters, writes=(Load(between, over),), body=(body,))
    back = mover.renamed({name: target, source.name: between})
    return replace(piece, blocks=(new,)), replace(move, blocks=(back,))


def _inverse(
    mover: Block, read: Load, source: tuple[int, ...], target: tuple[int, ...], over: tuple[Var, ...]
) -> tuple[Expr, ...]:
    """The move's own point, from the point of the source."""
    order = _order(mover, read)
    if order is None:
        return reshaped(target, source, over)
    return tuple(over[order[i.name]] for i in mover.writes[0].indices if isinstance(i, Var))


def _affine(e: Expr) -> bool:
    form = linear(e)
    return form is not None and all(isinstance(atom, Var) for atom, _ in form.terms)
