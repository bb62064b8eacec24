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

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import prod
from typing import Any

from numpy.typing import NDArray

from modelc.ir.block import Block, OpaqueBlock
from modelc.ir.expr import Load, Var
from modelc.ir.program import is_contraction
from modelc.passes.attention import fuse_attention
from modelc.passes.pieces import Piece, identity, moved, plain_write
from modelc.passes.views import Place


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


def fused(work: Work, attention_bytes: int = 0) -> list[list[int]]:
    """The Pieces (positions) of every Task, in an order in which the Tasks can run. `attention_bytes` of cache are
    there for rows of attention scores; 0: no attention in one Task."""
    return Fusion(work).run(attention_bytes)


class Fusion:
    """Groups of Pieces, at first one each."""

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

    # --- order ----------------------------------------------------------------------------------------------------

    def anchor_first(self, members: list[int]) -> list[int]:
        """The group's Pieces in order, the one that reduces as early as it can be."""
        before: set[int] = set()
        todo = [k for k in members if self.pieces[k].reduces]
        while todo:
            k = todo.pop()
            before.add(k)
            todo += self.needs[k] & set(members)
        return sorted(members, key=lambda k: (k not in before, k))

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
            result.append(self.anchor_first(self.members[g]))
            for user in users.get(g, ()):
                waiting[user] -= 1
                if not waiting[user]:
                    heappush(ready, (self.members[user][0], user))
        assert len(result) == len(self.members), "fusion made a cycle"
        return result


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
