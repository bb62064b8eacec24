"""Fusion: which Pieces make one Task.

    epilogues   maps that read the result of a reduction at the very point that they write join it, as far as a single
                value leaves the Task; of two results that are added, the later one's Task gets the addition
    maps        what is left of the maps is joined with each other in the same way
    prologues   a group of maps whose only reader works element by element joins the reader: operands of an epilogue,
                inputs of a reduction (softmax, norms), never of a contraction or a window
    by rows     what rounds rows to bytes joins the reductions of these rows: both read, or compute, them once
    attention   contractions before and after the reductions of rows join them: attention.py

What addresses are computed from is stored before the Task that reads it, so that it can be checked. A fusion that would
make two Tasks wait for each other is not done.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from heapq import heapify, heappop, heappush
from math import prod

from modelc.ir.addresses import addressing
from modelc.ir.block import Block, OpaqueBlock
from modelc.ir.expr import DTYPES, Const, Load, Var, size
from modelc.ir.program import is_contraction
from modelc.partition.attention import Rows, fuse_attention
from modelc.partition.groups import NOTHING, Groups, Nodes, Work
from modelc.partition.pieces import Piece, identity, moved, plain_write

# Operations on one element in a Task, at most: of so many, writing what is in between and reading it again would add
# a few per cent, while the time to compile them grows with the register tile that they are unrolled for.
OPERATIONS = 128
READERS = 256  # of a value that a group has turned away since it last grew: then it is done


def fused(work: Work, attention_bytes: int = 0, tasks: Collection[Nodes] | None = None) -> list[list[int]]:
    """The Pieces (positions) of every Task, in an order in which the Tasks can run. `attention_bytes` of cache are
    there for rows of attention scores; 0: no attention in one Task. `tasks`: as fuse_attention() takes them."""
    return Fusion(work).run(attention_bytes, tasks)


class Fusion(Groups):
    """The rules by which groups are merged."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.maps = [_map_shape(p, work.shapes) for p in self.pieces]

    def run(self, attention_bytes: int, tasks: Collection[Nodes] | None) -> list[list[int]]:
        for k in reversed(range(len(self.pieces))):
            if self.pieces[k].reduces and not self.pieces[k].opaque:
                self.grow(k)
        for k in range(len(self.pieces)):
            if self.maps[k] is not None and self.members.get(self.group[k]) == [k]:
                self.grow(k)
        for g in sorted(self.members, reverse=True):
            self.prologue(g)
        for g in sorted(self.members):
            self.rounded_by_rows(g)
        if attention_bytes:
            fuse_attention(self, attention_bytes, tasks)
        return self.ordered()

    # --- epilogues ------------------------------------------------------------------------------------------------

    def grow(self, start: int) -> None:
        """Adds maps that read what the group writes, and keeps as many as leave a single value for others."""
        if len(self.pieces[start].writes) != 1:
            return
        shape = self.work.shapes[self.pieces[start].writes[0]]
        members = [start]
        sizes: dict[str, int] = {}
        self.sized(start, sizes)
        best = 1
        candidates = list(self.readers.get(self.pieces[start].writes[0], ()))
        heapify(candidates)
        seen, refused = set(candidates), list[int]()
        while candidates and len(refused) < READERS:
            k = heappop(candidates)
            if self.maps[k] == shape and len(self.members[self.group[k]]) == 1 and self.joins(k, members, sizes):
                members.append(k)
                self.sized(k, sizes)
                more = {r for name in self.pieces[k].writes for r in self.readers.get(name, ())} - seen
                seen |= more
                for r in (*more, *refused):
                    heappush(candidates, r)
                refused.clear()
                if len(self.leaving(members)) == 1:
                    best = len(members)
            else:
                refused.append(k)
        self.merge(members[:best])

    def joins(self, k: int, members: list[int], sizes: Mapping[str, int]) -> bool:
        """Whether the map `k` reads the group's values at its own points, and nothing else that depends on them, and
        does not make too large an expression of it."""
        (block,) = self.pieces[k].blocks
        assert isinstance(block, Block)
        if not all(identity(r, block) for r in block.reads if r.buffer in sizes) or addressing(block) & sizes.keys():
            return False
        return operations(block, sizes) <= OPERATIONS and not self.depends(self.needs[k] - set(members), members)

    def sized(self, k: int, sizes: dict[str, int]) -> int:
        """Notes in `sizes` how many operations an element takes that Piece `k` writes; the most of its Blocks."""
        most = 0
        for block in self.pieces[k].blocks:
            if isinstance(block, Block):
                most = max(most, operations(block, sizes))
                reduced = bool(block.reduction)  # what it sums up is read, not computed again
                sizes |= {w.buffer: 0 if reduced else operations(block, sizes) for w in block.writes}
        return most

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
        if len(groups) != 1 or not all(taken_inside(self.pieces[k], name, self.work.shapes[name]) for k in outside):
            return
        others = self.members[groups.pop()]
        needs = {n for k in others for n in self.needs[k]} - set(others) - set(members)
        sizes: dict[str, int] = {}
        largest = max(self.sized(k, sizes) for k in sorted((*members, *others)))
        if largest <= OPERATIONS and not self.depends(needs, members):
            self.merge([others[0], members[0]])

    # --- by rows --------------------------------------------------------------------------------------------------

    def rounded_by_rows(self, g: int) -> None:
        """Merges maps that round rows to bytes, by what a group's reductions make of these rows, into the group; then
        what makes the rows, if nothing else reads it."""
        rows = Rows.of(self, g) if g in self.members else None
        if rows is None or rows.shape[rows.dim] != 1 or rows.result in self.work.cuts:
            return
        shapes, members = self.work.shapes, self.members[g]
        reduced = {x for k in members for x in self.pieces[k].reads if rows.takes(x, shapes[x])}
        for h in sorted({self.group[k] for k in self.readers.get(rows.result, NOTHING)} - {g}):
            others = self.members[h]
            shared = sorted(reduced & {x for k in others for x in self.pieces[k].reads})
            needs = {n for k in others for n in self.needs[k]} - set(others) - set(members)
            rounds = [DTYPES[self.work.dtypes[x]].itemsize for x in self.leaving(others)] == [1]
            if not shared or not rounds or self.depends(needs, members):
                continue
            if all(self.by_row(k, rows, shapes[shared[0]]) for k in others):
                self.merge([members[0], others[0]])
                for x in shared:
                    self.prologue(self.group[self.writer[x]] if x in self.writer else g)
                return

    def by_row(self, k: int, rows: Rows, shape: tuple[int, ...]) -> bool:
        """Whether Piece `k` is a map over `shape` that reads the number of the row which it is in."""
        if self.maps[k] != shape:
            return False
        (block,) = self.pieces[k].blocks
        assert isinstance(block, Block)
        at = tuple(Const(0) if d == rows.dim else i for d, i in enumerate(block.writes[0].indices))
        reads = [r for r in block.reads if r.buffer == rows.result]
        return all(len(r.indices) == len(at) and identity(r, replace(block, writes=(Load("", at),))) for r in reads)


def taken_inside(piece: Piece, name: str, shape: tuple[int, ...]) -> bool:
    """Whether `piece` reads `name` so that what computes it can run inside: no element more often than once per Block,
    none of them through a window or as the operand of a contraction."""
    for block in piece.blocks:
        if isinstance(block, OpaqueBlock) or piece.alone or name in addressing(block):
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


def operations(block: Block, sizes: Mapping[str, int]) -> int:
    """Operations of one point of the Block, where elements of some buffers take as many as `sizes` says; at least 1, so
    that Blocks that do nothing but move data are not without end either."""
    return max(1, sum(size(e, sizes) for e in block.body))


def _map_shape(piece: Piece, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...] | None:
    """The shape over which the Piece is one plain map, or None."""
    if piece.alone or len(piece.blocks) != 1 or plain_write(piece.blocks[0]) is None:
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
