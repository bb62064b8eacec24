"""Pieces: the meaning of every live node of a Graph, over the Graph's own value names. Partitioning works on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.errors import InvalidIR
from modelc.ir.block import AnyBlock, Block, Buffer, OpaqueBlock
from modelc.ir.check import uses
from modelc.ir.expr import Const, Expr, Load, Op, Var, rewrite
from modelc.ir.graph import Graph, Node
from modelc.ir.scalar import OPERATIONS
from modelc.ops import operator_of

Array = NDArray[Any]


@dataclass(frozen=True)
class Piece:
    """One node's Blocks; `locals` are its own buffers and `tables` its own constants, by names of their own.
    `alone`: it stays a Task of its own, though it could be a view or run inside another."""

    node: Node
    blocks: tuple[AnyBlock, ...]
    locals: Mapping[str, Buffer]
    tables: Mapping[str, Array]
    alone: bool = False

    @property
    def nodes(self) -> tuple[str, ...]:
        """The model's nodes that it is of."""
        return self.node.source or (self.node.name,)

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """What the Blocks read from elsewhere."""
        names = [x for b in self.blocks for x in uses(b)[0]]
        return tuple(dict.fromkeys(x for x in names if x not in self.locals and x not in self.writes))

    @cached_property
    def writes(self) -> tuple[str, ...]:
        """What the Blocks write for others."""
        names = [x for b in self.blocks for x in uses(b)[1]]
        return tuple(dict.fromkeys(x for x in names if x not in self.locals))

    @cached_property
    def opaque(self) -> bool:
        return any(isinstance(b, OpaqueBlock) for b in self.blocks)

    @cached_property
    def reduces(self) -> bool:
        return any(isinstance(b, Block) and bool(b.reduction) for b in self.blocks)


def pieces_of(graph: Graph) -> list[Piece]:
    """A Piece for every node that an output depends on, in order. Copies of whole values (Identity) are seen through,
    unless they are outputs; constants of one element are numbers in the expressions of maps."""
    alias: dict[str, str] = {}
    pieces = []
    inputs, outputs = frozenset(graph.inputs), frozenset(graph.outputs)
    for node in _live(graph):
        piece = _piece(graph, node, alias)
        if not inputs.isdisjoint(piece.writes):
            raise InvalidIR(f"node {node.name!r} writes an input of the graph")
        source = _whole_copy(graph, piece)
        if source is not None and piece.writes[0] not in outputs:
            alias[piece.writes[0]] = source
        elif any(prod(graph.value(w).shape) for w in piece.writes):
            pieces.append(piece)
    return _read(pieces, graph.outputs)


def _read(pieces: list[Piece], outputs: Iterable[str]) -> list[Piece]:
    """The Pieces that `outputs` depend on: fewer than the nodes, as a node may have inputs that its Blocks do not read
    (whose dtype alone matters, or that were folded into them)."""
    needed = set(outputs)
    kept = []
    for piece in reversed(pieces):
        if needed & set(piece.writes):
            needed |= set(piece.reads)
            kept.append(piece)
    return kept[::-1]


def _live(graph: Graph) -> list[Node]:
    needed = set(graph.outputs)
    kept = []
    for node in reversed(graph.nodes):
        if needed & set(node.outputs):
            needed |= set(node.inputs)
            wanted = tuple(o if o in needed else "" for o in node.outputs)
            kept.append(replace(node, outputs=wanted))
    return kept[::-1]


def _piece(graph: Graph, node: Node, alias: Mapping[str, str]) -> Piece:
    inputs = tuple(graph.value(x) if x else None for x in node.inputs)
    outputs = tuple(graph.value(x) if x else None for x in node.outputs)
    definition = operator_of(node).define(node, inputs, outputs)
    unique = next(x for x in node.outputs if x)
    names = {f"x{k}": alias.get(x, x) for k, x in enumerate(node.inputs) if x}
    names |= {f"y{k}": x for k, x in enumerate(node.outputs) if x}
    own = [*definition.locals, *(b for b, _ in definition.constants)]
    names |= {b.name: f"{unique}#{b.name}" for b in own}
    locals_ = {names[b.name]: replace(b, name=names[b.name]) for b in own}
    tables = {names[b.name]: data for b, data in definition.constants}
    single = {v.name: v.data for v in inputs if v is not None and v.data is not None and v.data.size == 1}
    single |= {name: data for name, data in tables.items() if data.size == 1}
    blocks = tuple(_numbers(b.renamed(names), single) for b in definition.blocks)
    return Piece(node, blocks, locals_, tables)


def _numbers(block: AnyBlock, single: Mapping[str, Array]) -> AnyBlock:
    """The Block with Loads of one-element constants replaced by the number; reductions keep their operands."""
    if isinstance(block, OpaqueBlock) or block.reduction or not single:
        return block

    def visit(e: Expr) -> Expr | None:
        if isinstance(e, Load):
            if e.buffer in single:
                data = single[e.buffer].reshape(())
                return Const(float(data) if data.dtype.kind not in "biu" else data.item(), data.dtype.name)
            return Load(e.buffer, tuple(rewrite(i, _folded) for i in e.indices))
        if isinstance(e, Op) and e.name == "claim" and isinstance(e.args[0], Const):
            return e.args[0]  # it was looked at when it was read
        return None

    return block.mapped(visit)


def _folded(e: Expr) -> Expr | None:
    """Whole-number index arithmetic on constants, done; index constants are int64."""
    if isinstance(e, Const) and not isinstance(e.value, float) and e.dtype not in ("int64", "bool"):
        return Const(int(e.value))
    if not isinstance(e, Op) or not all(isinstance(a, Const) and not isinstance(a.value, float) for a in e.args):
        return None
    result = np.asarray(OPERATIONS[e.name].meaning(*(np.asarray(a.value) for a in e.args if isinstance(a, Const))))
    return Const(bool(result), "bool") if result.dtype.kind == "b" else Const(int(result))


def _whole_copy(graph: Graph, piece: Piece) -> str | None:
    """The value that the Piece copies as it is, into a value of the same shape."""
    if len(piece.blocks) != 1 or not isinstance(piece.blocks[0], Block):
        return None
    move = moved(piece.blocks[0])
    if move is None or graph.value(piece.writes[0]).shape != graph.value(move.buffer).shape:
        return None
    return move.buffer if identity(move, piece.blocks[0]) else None


# --- what a Block is ----------------------------------------------------------------------------------------------


def plain_write(block: AnyBlock) -> Load | None:
    """Where a map without conditions writes: one buffer, at its own iterators (or at 0, where there is one element)."""
    if isinstance(block, OpaqueBlock) or block.aggregation != "assign" or block.where or len(block.writes) != 1:
        return None
    (write,) = block.writes
    used = [i.name for i in write.indices if isinstance(i, Var)]
    every = {i.name for i in block.iters if i.extent > 1}
    if len(set(used)) != len(used) or every - set(used):
        return None
    return write if all(isinstance(i, Var) or i == Const(0) for i in write.indices) else None


def moved(block: AnyBlock) -> Load | None:
    """What a map reads that does nothing but move data."""
    if plain_write(block) is None or not isinstance(block, Block) or not isinstance(block.body[0], Load):
        return None
    return block.body[0]


def identity(read: Load, block: Block) -> bool:
    """Whether `read` is at the very point that the Block writes (dimensions of one element aside)."""
    (write,) = block.writes
    if len(read.indices) != len(write.indices):
        return False
    ranges = block.ranges

    def trivial(e: Expr) -> bool:
        return e == Const(0) or (isinstance(e, Var) and ranges[e.name] == 1)

    pairs = zip(read.indices, write.indices, strict=True)
    return all(a == b or (trivial(a) and trivial(b)) for a, b in pairs)
