"""Attention: scores, the reductions of their rows, and what is summed up by them, in one Task.

    S = Q K       a contraction and its maps (scale, mask)
    P = f(S)      reductions over one iterator of S, and maps: softmax
    Y = P V       a contraction that reduces over that iterator (without it: Ansor's TBS), and its maps
    R = sum(P)    reductions of rows of P that Y's maps read: what a zero point of V is multiplied with

Told by structure: S is read by P's Pieces alone, and P by Y's and R's alone. The Task computes a tile of whole rows of
S at a time, so S never goes through memory, nor does P, unless it is an output of the model: then it is written as it
is made. Rows that are too long for the cache go in parts (space/rules/online.py) where they are a softmax that the
values alone read; others are left to Tasks of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod

from modelc.ir.block import Block
from modelc.ir.expr import DTYPES, Expr, Load, Op, Var, variables
from modelc.ir.factors import factors_of
from modelc.ir.program import is_contraction
from modelc.ir.softmax import subtracted_maximum
from modelc.partition.groups import Groups, Nodes

LEAST_ROWS = 4  # query rows per key matrix for which arranging near keys pays
FAR_ROWS = 8  # the same of keys that are not near, and no constants, which have better schedules apart
KEYS_SHARE = 0.25  # of the cache that near keys take at most
TILE_ROWS = 8  # rows of scores and of weights, or of parts of them, that have to lie in the cache together


def fuse_attention(groups: Groups, cache_bytes: int, tasks: Collection[Nodes] | None) -> None:
    """Merges the groups of every attention whose rows fit `cache_bytes`, TILE_ROWS of them at a time, or go in parts;
    or, where it is said of which nodes the `tasks` are at other sizes, of those that are one there."""
    for g in sorted(groups.members):
        if g not in groups.members or (rows := Rows.of(groups, g)) is None:
            continue
        values = _values(groups, g, rows)
        short = rows.bytes(TILE_ROWS) <= cache_bytes or (len(values) == 1 and _goes_in_parts(groups, rows))
        scores = _scores(groups, g, rows, cache_bytes, short, tasks)
        if scores is not None:
            groups.merge([scores, g, *values])


class Rows:
    """A group that reduces along dimension `dim` of what it reads, and writes `result`, of the same shape."""

    def __init__(self, result: str, shape: tuple[int, ...], dim: int, blocks: tuple[Block, ...]) -> None:
        self.result, self.shape, self.dim, self.blocks = result, shape, dim, blocks

    def bytes(self, count: int) -> int:
        """Of the scores and the weights of so many rows."""
        return 2 * count * self.shape[self.dim] * DTYPES["float32"].itemsize

    @staticmethod
    def of(groups: Groups, g: int) -> Rows | None:
        pieces = [groups.pieces[k] for k in groups.members[g]]
        leaving = groups.leaving(groups.members[g])
        blocks = tuple(b for p in pieces for b in p.blocks if isinstance(b, Block))
        if len(leaving) != 1 or any(p.opaque for p in pieces) or any(b.where or len(b.writes) > 1 for b in blocks):
            return None
        reducing = [b for b in blocks if b.reduction]
        if not reducing or any(is_contraction(b) or len(b.reduction) > 1 for b in reducing):
            return None
        shape = groups.work.shapes[leaving[0]]
        dims = set()
        for b in reducing:
            (over,) = b.reduction
            whole = [r for r in b.reads if Var(over.name) in r.indices]
            dims |= {r.indices.index(Var(over.name)) for r in whole}
            if not whole or any(len(r.indices) != len(shape) for r in whole):
                return None
        if len(dims) != 1:
            return None
        return Rows(leaving[0], shape, dims.pop(), blocks)

    def takes(self, name: str, shape: tuple[int, ...]) -> bool:
        """Whether every Block reads `name`, of that shape, row by row: plainly, the reduced dimension in its place."""
        for b in self.blocks:
            reduced = {i.name for i in b.reduction}
            for read in b.reads:
                if read.buffer != name:
                    continue
                if not _plain(read, b, shape) or reduced - {str(read.indices[self.dim])}:
                    return False
                if not reduced and (_row(read, self.dim) != _row(b.writes[0], self.dim)):
                    return False
        return True


def _row(load: Load, dim: int) -> tuple[Expr, ...]:
    return tuple(i for d, i in enumerate(load.indices) if d != dim)


def _plain(load: Load, block: Block, shape: tuple[int, ...]) -> bool:
    """Whether every dimension is read by an iterator of its own, whole."""
    long = [(i, n) for i, n in zip(load.indices, shape, strict=True) if n > 1]
    names = [i.name for i, _ in long if isinstance(i, Var)]
    return len(set(names)) == len(long) and all(block.ranges[v] == n for v, (_, n) in zip(names, long, strict=True))


def _contraction(groups: Groups, g: int) -> Block | None:
    """The one Block of the group that reduces, if it is a contraction in float32 without conditions."""
    blocks = [b for k in groups.members[g] for b in groups.pieces[k].blocks]
    reducing = [b for b in blocks if not isinstance(b, Block) or b.reduction]
    if len(reducing) != 1:
        return None
    (block,) = reducing
    if not isinstance(block, Block) or not is_contraction(block) or block.where or len(block.writes) > 1:
        return None
    return block if all(isinstance(i, Var) for i in block.writes[0].indices) else None


def _goes_in_parts(groups: Groups, rows: Rows) -> bool:
    """Whether the rows are a softmax, which parts of the keys can be combined to, and no output of the model."""
    reducing = {b.writes[0].buffer: b for b in rows.blocks if b.reduction}
    powers = [b for b in rows.blocks if (read := subtracted_maximum(b)) is not None and read.buffer in reducing]
    if len(powers) != 1 or sorted(b.aggregation for b in reducing.values()) != ["add", "max"]:
        return False
    (weights,) = powers[0].writes
    readers = [b for b in rows.blocks if weights.buffer in b.buffers_read]
    products = [b for b in readers if b.writes[0].buffer == rows.result and isinstance(b.body[0], Op)]
    sums = [b for b in readers if b.aggregation == "add" and b.body[0] in b.reads]
    normal = len(readers) == 2 and len(products) == len(sums) == 1 and len(factors_of(products[0].body[0])) == 2
    return normal and rows.result not in groups.work.kept


def _scores(
    groups: Groups, g: int, rows: Rows, cache_bytes: int, short: bool, tasks: Collection[Nodes] | None
) -> int | None:
    """The group of the contraction whose result the rows are of, which are `short` enough, or in parts."""
    work, members = groups.work, set(groups.members[g])
    for name in dict.fromkeys(x for k in groups.members[g] for x in groups.pieces[k].reads):
        writer = groups.writer.get(name)
        if writer is None or name in work.kept or work.shapes[name] != rows.shape or work.dtypes[name] != "float32":
            continue
        other = groups.group[writer]
        block = None if other == g else _contraction(groups, other)
        if block is None or groups.leaving(groups.members[other]) != [name]:
            continue
        if groups.readers[name] - members - set(groups.members[other]) or not rows.takes(name, rows.shape):
            continue
        key = block.writes[0].indices[rows.dim]
        beside = [r for r in block.reads if not variables(r) & variables(key)]
        keyed = [r for r in block.reads if variables(r) & variables(key)]
        queries = [i for i in block.spatial if not any(i.name in variables(r) for r in keyed)]
        sample = [i.extent for i in block.iters if any(i.name in variables(r) for r in keyed)]
        batch = [i.extent for i in block.spatial if all(i.name in variables(r) for r in block.reads)]
        keys = prod(sample) // prod(batch) * max(DTYPES[work.dtypes[r.buffer]].itemsize for r in keyed)
        near, constant = keys <= KEYS_SHARE * cache_bytes, any(r.buffer in work.constants for r in keyed)
        least = LEAST_ROWS if near else FAR_ROWS
        enough = max((i.extent for i in queries), default=0) >= least and rows.shape[rows.dim] >= LEAST_ROWS
        enough = enough and (near or not constant)
        if beside and len(keyed) == 1 and (enough and short if tasks is None else _is_one(groups, (g, other), tasks)):
            return other
    return None


def _is_one(groups: Groups, both: Sequence[int], tasks: Collection[Nodes]) -> bool:
    """Whether one of the `tasks` has a node of each of the groups."""
    pieces = ([groups.pieces[k] for k in groups.members[g]] for g in both)
    nodes = [{source for piece in of_group for source in piece.nodes} for of_group in pieces]
    return any(all(not task.isdisjoint(names) for names in nodes) for task in tasks)


def _values(groups: Groups, g: int, rows: Rows) -> list[int]:
    """The groups of the contraction that reads the rows, and reduces over what they are long in, and of the reductions
    of rows that its maps read: all that reads the rows; none of them if anything else does."""
    readers = groups.readers.get(rows.result, set()) - set(groups.members[g])
    if rows.result in groups.work.cuts:
        return []
    reading = {groups.group[k] for k in readers}
    contracting = [other for other in reading if _weighed(groups, other, rows)]
    sums = [other for other in reading if other not in contracting]
    if len(contracting) != 1 or not all(_summed(groups, other, rows, contracting[0]) for other in sums):
        return []
    return [*sums, *contracting]


def _weighed(groups: Groups, g: int, rows: Rows) -> bool:
    """Whether the group is a contraction of the rows, over what they are long in, and its maps."""
    block = _contraction(groups, g)
    reading = _reading(groups, g, rows.result)
    if block is None or reading != [block] or len(block.reduction) != 1:
        return False
    reads = [r for r in block.reads if r.buffer == rows.result]
    if len(reads) != 1 or not _plain(reads[0], block, rows.shape):
        return False
    (over,) = block.reduction
    width = [i for i in block.spatial if i.name not in variables(reads[0])]
    return prod(i.extent for i in width) >= LEAST_ROWS and reads[0].indices[rows.dim] == Var(over.name)


def _summed(groups: Groups, g: int, rows: Rows, values: int) -> bool:
    """Whether the group makes one number of each row, for `values` alone, and of nothing else."""
    own = Rows.of(groups, g)
    if own is None or own.dim != rows.dim or not own.takes(rows.result, rows.shape):
        return False
    members = set(groups.members[g])
    read = {x for k in members for x in groups.pieces[k].reads if groups.writer.get(x) not in members}
    outside = {groups.group[k] for k in groups.readers.get(own.result, set()) - members}
    return read == {rows.result} and outside == {values} and own.result not in groups.work.kept


def _reading(groups: Groups, g: int, name: str) -> list[Block]:
    """The Blocks of the group that read `name`."""
    blocks = [b for k in groups.members[g] for b in groups.pieces[k].blocks if isinstance(b, Block)]
    return [b for b in blocks if name in b.buffers_read]


__all__ = ["Rows", "fuse_attention"]
