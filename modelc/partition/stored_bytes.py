"""Between Tasks numbers are stored as the bytes that they were rounded to: what reads them dequantizes.

    t = clamp(round(x), a, b); y = t * s | reads y       ->   q = uint8(t - a) | reads (f32(q) + a) * s
    y = (f32(q) - z) * s                 | reads y       ->                    | reads (f32(q) - z) * s

Inside a Task such numbers stay float32 in registers (passes/written_as_read.py). Written to memory for another Task (a
residual, what a mean is of) they take four times the bytes. Where a Task has to read the float32 as it is (windows that
overlap, an operand of a contraction, an opaque operator), it is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from modelc.ir.addresses import addressing
from modelc.ir.block import AnyBlock, Block
from modelc.ir.expr import DTYPES, Const, Expr, Load, Op, Var, cast, rewrite, size, substitute, walk
from modelc.ir.program import is_contraction
from modelc.partition.fuse import taken_inside
from modelc.partition.groups import Work
from modelc.partition.pieces import Piece, identity, plain_write

REAL, BYTE = "float32", "uint8"
LEAST = 256  # elements of a value: what is smaller stays in the nearest cache
MOST = 8  # operations that make the numbers of bytes

Grouped = tuple[tuple[Piece, ...], ...]


def stored_as_bytes(work: Work, groups: Sequence[Sequence[Piece]]) -> tuple[Work, Grouped]:
    """The groups of Pieces, and what they are of, where all that can be stored as bytes is."""
    return _Storing(work, groups).run()


class _Storing:
    """Who writes and reads a value, while values are stored otherwise."""

    def __init__(self, work: Work, groups: Sequence[Sequence[Piece]]) -> None:
        self.work, self.groups = work, [list(group) for group in groups]
        self.shapes, self.dtypes = dict(work.shapes), dict(work.dtypes)
        self.places = dict(work.places)
        self.readers: dict[str, set[int]] = {}  # the groups that read a value, or did
        for k, group in enumerate(self.groups):
            for name in (name for piece in group for name in piece.reads):
                self.readers.setdefault(name, set()).add(k)
        self.views = {x for name, place in work.places.items() if place.root != name for x in (name, place.root)}

    def run(self) -> tuple[Work, Grouped]:
        for k, group in enumerate(self.groups):
            for piece in reversed(list(group)):
                self._store(k, piece)
        work = replace(self.work, shapes=self.shapes, dtypes=self.dtypes, places=self.places)
        kept = [tuple(group) for group in self.groups if group]
        pieces = tuple(piece for group in kept for piece in group)
        return replace(work, pieces=pieces), tuple(kept)

    def _reading(self, name: str) -> list[tuple[int, Piece]]:
        """The Pieces that read a value, and their groups."""
        return [(k, p) for k in sorted(self.readers.get(name, ())) for p in self.groups[k] if name in p.reads]

    def _store(self, k: int, piece: Piece) -> None:
        """Where other groups read what `piece` of group `k` writes, they read bytes instead, if all of them can."""
        if len(piece.writes) != 1 or len(piece.blocks) != 1 or piece.alone:
            return
        (name,) = piece.writes
        outside = [(g, p) for g, p in self._reading(name) if g != k]
        if not outside or name in self.work.kept or name in self.views or prod(self.shapes[name]) < LEAST:
            return
        if self.dtypes[name] != REAL or not all(_can_dequantize(p, name, self.shapes[name]) for _, p in outside):
            return
        source = self._source(k, piece)
        if source is None:
            return
        read, number, written = source
        if written is not None:
            (stored,) = written.writes
            self.shapes[stored], self.dtypes[stored] = self.shapes[name], BYTE
            self.places[stored] = replace(self.places[name], root=stored)
            at = next(n for n, p in enumerate(self.groups[k]) if read.buffer in p.writes)
            self.groups[k].insert(at + 1, written)
            self.readers[read.buffer].add(k)
        for g, reader in outside:
            new = _dequantizing(reader, name, piece.blocks[0], number)
            self.groups[g][_position(self.groups[g], reader)] = new
            for other in new.reads:
                self.readers.setdefault(other, set()).add(g)
        self._drop(k, piece)

    def _drop(self, k: int, piece: Piece) -> None:
        """Takes a map, and what it alone reads, out of its group."""
        pending = [piece]
        while pending:
            unread = pending.pop()
            group = self.groups[k]
            (name,) = unread.writes
            if name in self.work.kept or self._reading(name):
                continue
            del group[_position(group, unread)]
            pending += [p for p in group if set(p.writes) & set(unread.reads) and _is_map(p)]

    def _source(self, k: int, piece: Piece) -> tuple[Load, Expr, Piece | None] | None:
        """Of what bytes, and how, the numbers that a map writes are made: what it reads, the expression of them, and
        the Piece that writes the bytes, if nothing does so yet."""
        writers = {name: p for p in self.groups[k] for name in p.writes}
        number = _body(piece)
        while number is not None and size(number, {}) <= MOST:
            loads = {e for e in walk(number) if isinstance(e, Load)}
            if len(loads) != 1 or not identity(read := loads.pop(), piece.blocks[0]):  # type: ignore[arg-type]
                return None
            if DTYPES[self.dtypes[read.buffer]].kind in "iu" and DTYPES[self.dtypes[read.buffer]].itemsize < 4:
                return None if read.buffer in self.views else (read, number, None)
            writer = writers.get(read.buffer)
            if writer is None or not _is_map(writer):
                return None
            if limits := _limits(writer):
                return self._written(writer, limits, read, number)
            body = _body(writer)
            number = None if body is None else _with(number, read, _at(body, writer.blocks[0], read.indices))
        return None

    def _written(
        self, writer: Piece, limits: tuple[int, int], read: Load, number: Expr
    ) -> tuple[Load, Expr, Piece] | None:
        """The same where a map rounds and clamps to whole numbers between `limits`."""
        least, (block,) = limits[0], writer.blocks
        assert isinstance(block, Block)
        name = str(writer.node.attrs["bytes"]) if writer.writes == writer.node.outputs else f"{read.buffer}#bytes"
        if name in self.shapes:
            return None
        (write,) = block.writes
        whole: Expr = Load(read.buffer, write.indices)
        whole = whole if not least else whole - Const(float(least), REAL)
        stored = replace(block, writes=(Load(name, write.indices),), body=(cast(BYTE, whole),))
        real = cast(REAL, Load(name, read.indices))
        real = real if not least else real + Const(float(least), REAL)
        return read, _with(number, read, real), replace(writer, blocks=(stored,), locals={}, tables={})


def _can_dequantize(piece: Piece, name: str, shape: tuple[int, ...]) -> bool:
    """Whether `piece` may read bytes in the place of `name`: what dequantizes them could run inside, or it has windows
    with each element once."""
    if taken_inside(piece, name, shape):
        return True
    for block in piece.blocks:
        if not isinstance(block, Block) or piece.alone or name in addressing(block):
            return False
        once = block.reduction and not is_contraction(block) and block.points() <= prod(shape)
        if any(r.buffer == name for r in block.reads) and not once:
            return False
    return True


def _is_map(piece: Piece) -> bool:
    return len(piece.blocks) == 1 and not piece.locals and not piece.alone and plain_write(piece.blocks[0]) is not None


def _body(piece: Piece) -> Expr | None:
    block = piece.blocks[0]
    return block.body[0] if isinstance(block, Block) and _is_map(piece) else None


def _limits(piece: Piece) -> tuple[int, int] | None:
    """The whole numbers, as many as bytes are, between which a map clamps what was rounded."""
    body = _body(piece)
    if not isinstance(body, Op) or "bytes" not in piece.node.attrs or body.name != "min":
        return None
    inner, most = body.args
    if not isinstance(inner, Op) or inner.name != "max" or not isinstance(most, Const):
        return None
    least = inner.args[1]
    return (int(least.value), int(most.value)) if isinstance(least, Const) else None


def _at(body: Expr, block: AnyBlock, indices: Sequence[Expr]) -> Expr:
    """What a map computes for the element that is written at `indices`."""
    assert isinstance(block, Block)
    (write,) = block.writes
    bound: dict[str, Expr] = {i.name: Const(0) for i in block.iters}  # those of one element may be written at 0
    bound |= {x.name: at for x, at in zip(write.indices, indices, strict=True) if isinstance(x, Var)}
    return substitute(body, bound)


def _with(e: Expr, read: Load, number: Expr) -> Expr:
    return rewrite(e, lambda part: number if part == read else None)


def _dequantizing(reader: Piece, name: str, block: AnyBlock, number: Expr) -> Piece:
    """`reader` with the `number` that `block` wrote to `name` in the place of what it reads there."""

    def visit(e: Expr) -> Expr | None:
        return _at(number, block, e.indices) if isinstance(e, Load) and e.buffer == name else None

    return replace(reader, blocks=tuple(b.mapped(visit) if isinstance(b, Block) else b for b in reader.blocks))


def _position(group: Sequence[Piece], piece: Piece) -> int:
    return next(k for k, other in enumerate(group) if other is piece)
