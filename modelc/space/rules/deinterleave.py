"""Derivation rule: a copy in which every so many elements lie side by side, as a convolution with a stride reads them.

deinterleave(buffer, dim, size)   dimension `dim` of a copy becomes two: `x mod size`, and inside it `x div size`

    P[c, x] = X[c, x - 3]                         P[c, b, a] = X[c, a * 2 + b - 3]
    Y[o, w] += P[c, w * 2 + s] * W[o, c, s]       Y[o, w] += P[c, s mod 2, w + s div 2] * W[o, c, s]

Where one remainder is all that is read (a stride without a window), it is all that is copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from modelc.ir.affine import simplify
from modelc.ir.block import AnyBlock, Block, Iter, Task
from modelc.ir.expr import Const, Expr, Load, Var, const, loads, op, select, substitute
from modelc.space.analysis.conditions import settled
from modelc.space.rules.rule import DoesNotApply, plain_block, replaced, sole_map, with_split


def deinterleave_rule(task: Task, buffer: str, dim: int, size: int) -> Task:
    old, writer = task.buffer(buffer), sole_map(task, buffer, dim)
    if writer is None:
        raise DoesNotApply(f"{buffer} is no copy that one map writes plainly")
    index = writer.writes[0].indices[dim]
    readers = [b for b in task.blocks if buffer in b.buffers_read]
    parts_read = [_parts(plain_block(task, b.name), buffer, dim, size) for b in readers]
    remainders = {r for parts in parts_read for r, _ in parts.values()}
    (remainder, *more) = remainders or {Const(0)}
    first, count = (int(remainder.value), 1) if isinstance(remainder, Const) and not more else (0, size)
    blocks: list[AnyBlock] = []
    for block in task.blocks:
        if block is writer:
            blocks.append(_copied(task, writer, str(index), dim, size, range(first, first + count)))
        elif block in readers:
            moved = partial(_moved, dim=dim, parts=parts_read[readers.index(block)], first=first)
            blocks.append(plain_block(task, block.name).mapped(moved))
        else:
            blocks.append(block)
    shape = (*old.shape[:dim], count, -(-old.shape[dim] // size), *old.shape[dim + 1 :])
    return replaced(task, blocks, replace(old, shape=shape, layout=with_split(old.layout, dim)))


def _parts(block: Block, buffer: str, dim: int, size: int) -> dict[Load, tuple[Expr, Expr]]:
    """For each access to `buffer`, its index in `dim` modulo and divided by `size`."""
    reads = [r for r in block.reads if r.buffer == buffer]
    rests = [simplify(op("mod", r.indices[dim], size), block.ranges) for r in reads]
    wholes = [simplify(op("floordiv", r.indices[dim], size), block.ranges) for r in reads]
    return dict(zip(reads, zip(rests, wholes, strict=True), strict=True))


def _moved(e: Expr, dim: int, parts: Mapping[Load, tuple[Expr, Expr]], first: int) -> Expr | None:
    if not isinstance(e, Load) or e not in parts:
        return None
    remainder, whole = parts[e]
    return Load(e.buffer, (*e.indices[:dim], op("sub", remainder, first), whole, *e.indices[dim + 1 :]))


def _copied(task: Task, writer: Block, name: str, dim: int, size: int, remainders: range) -> Block:
    """The map that makes the copy, with its iterator `name` as two. What is beyond the end is zero, or padding if the
    map says so itself."""
    (write,), (value,) = writer.writes, writer.body
    outer, inner = (f"{name}{letter}" for letter in "rq")
    extent, long = writer.ranges[name], -(-writer.ranges[name] // size)
    beyond = (settled(value, writer.ranges, {name: Const(x)}) for x in range(extent, long * size))
    if any(loads(x) for x in beyond):
        value = select(op("lt", Var(name), extent), value, const(0, task.buffer(write.buffer).dtype))
    remainder: Expr = Var(outer) if len(remainders) > 1 else Const(remainders.start)
    at = op("add", op("mul", Var(inner), size), remainder)
    iters = []
    for i in writer.iters:
        iters += [Iter(outer, len(remainders)), Iter(inner, long)] if i.name == name else [i]
    indices = (*write.indices[:dim], Var(outer), Var(inner), *write.indices[dim + 1 :])
    return replace(
        writer, iters=tuple(iters), writes=(Load(write.buffer, indices),), body=(substitute(value, {name: at}),)
    )
