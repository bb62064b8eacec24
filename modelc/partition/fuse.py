"""Fusion: which Pieces make one Task.

    epilogues   maps that read the result of a reduction at the very point that they write join it, as far as a single
                value leaves the Task; of two results that are added, the later one's Task gets the addition
    maps        what is left of the maps is joined with each other in the same way
    prologues   a group of maps whose only reader works element by element joins the reader: operands of an epilogue,
                inputs of a reduction (softmax, norms), never of a contraction or a window
    attention   contractions before and after the reductions of rows join them: attention.py

A fusion that would make two Tasks wait for each other is not done.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from modelc.ir.block import Block, OpaqueBlock
from modelc.ir.expr import Load, Var
from modelc.ir.program import is_contraction
from modelc.partition.attention import fuse_attention
from modelc.partition.groups import Groups, Work
from modelc.partition.pieces import Piece, identity, moved, plain_write


def fused(work: Work, attention_bytes: int = 0) -> list[list[int]]:
    """The Pieces (positions) of every Task, in an order in which the Tasks can run. `attention_bytes` of cache are
    there for rows of attention scores; 0: no attention in one Task."""
    return Fusion(work).run(attention_bytes)


class Fusion(Groups):
    """The rules by which groups are merged."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.maps = [_map_shape(p, work.shapes) for p in self.pieces]

    def run(self, attention_bytes: int) -> list[list[int]]:
        for k in reversed(range(len(self.pieces))):
            if self.pieces[k].reduces and not self.pieces[k].opaque:
                self.grow(k)
        for k in range(len(self.pieces)):
            if self.maps[k] is not None and self.members.get(self.group[k]) == [k]:
                self.grow(k)
        for g in sorted(self.members, reverse=True):
            self.prologue(g)
        if attention_bytes:
            fuse_attention(self, attention_bytes)
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
            if isinstance(block, OpaqueBlock) or piece.converts:
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


def _map_shape(piece: Piece, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...] | None:
    """The shape over which the Piece is one plain map, or None."""
    if piece.converts or len(piece.blocks) != 1 or plain_write(piece.blocks[0]) is None:
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
