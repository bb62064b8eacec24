"""Derivation rules that inline a Block, or put a copy before or after one (Ansor, table 1).

inline(block)              the block's body is substituted where its result is read (always-inline)
pad(block, buffer)         a copy of `buffer` with its padding in place is read instead; the conditions go
cache_read(block, buffer, innermost, dtype)  the block reads a copy of `buffer`, with a dimension of choice
                           innermost, in the dtype that it casts it to
stage_write(block, innermost)  the result is written to storage of another order first
cache_write(block)         the block's result gets a local buffer; a copy writes it out
"""

from __future__ import annotations

from dataclasses import replace

from modelc.ir.affine import bounds, linear, simplify
from modelc.ir.block import AGGREGATIONS, Block, Buffer, Task, inline
from modelc.ir.expr import Const, Expr, Load, Op, Var, cast, const, op, select
from modelc.ir.factors import factors_of
from modelc.ir.layout import Layout, stored_in
from modelc.space.rules.rule import DoesNotApply, exchanged, fresh, map_named, over, plain_block, replaced


def inline_rule(task: Task, block: str) -> Task:
    producer = map_named(task, block)
    (write,) = producer.writes
    if write.buffer in task.outputs or not all(isinstance(i, Var) or i == Const(0) for i in write.indices):
        raise DoesNotApply(f"what block {block} writes is needed, or not written plainly")
    others = [b for b in task.blocks if b is not producer]
    if any(isinstance(b, Block) and write.buffer in {w.buffer for w in b.writes} for b in others):
        raise DoesNotApply(f"{write.buffer} has several writers")
    readers = [b for b in others if write.buffer in b.buffers_read]
    if not all(isinstance(b, Block) for b in readers):
        raise DoesNotApply(f"{write.buffer} is read by an opaque block")
    if task.anchor == block:
        raise DoesNotApply("the anchor is not inlined")
    indices = tuple(i if isinstance(i, Var) else Var(f"unit{k}") for k, i in enumerate(write.indices))
    bound = replace(producer, writes=(Load(write.buffer, indices),))  # a constant index is an iterator of extent 1
    return replaced(task, [inline(b, bound) if b in readers and isinstance(b, Block) else b for b in others])


def pad_rule(task: Task, block: str, buffer: str) -> Task:
    reader = plain_block(task, block)
    reads = [r for r in reader.reads if r.buffer == buffer]
    if len(reads) != 1 or len(reader.body) != 1:
        raise DoesNotApply(f"block {block} does not read {buffer} once")
    (read,) = reads
    source = task.buffer(buffer)
    guarded: dict[int, list[Expr]] = {}
    kept = []
    for condition in reader.where:
        dims = [d for d, i in enumerate(read.indices) if isinstance(condition, Op) and _same(condition.args[0], i)]
        if dims and isinstance(condition, Op) and isinstance(condition.args[1], Const):
            guarded.setdefault(dims[0], []).append(condition)
        else:
            kept.append(condition)
    if not guarded:
        raise DoesNotApply(f"no condition of block {block} bounds an index of {buffer}")
    body = reader.body[0]
    if reader.aggregation == "add" and read in factors_of(body):
        fill = const(0, source.dtype)
    elif body == read:
        fill = AGGREGATIONS[reader.aggregation].identity((source.dtype,))[0]
    else:
        raise DoesNotApply(f"padding {buffer} would change what block {block} computes")
    low, shape = [0] * len(source.shape), [*source.shape]
    for d in guarded:
        limits = bounds(read.indices[d], reader.ranges)
        if limits is None:
            raise DoesNotApply(f"index {read.indices[d]} of {buffer} has no bounds")
        low[d], shape[d] = limits[0], limits[1] - limits[0] + 1
    padded = fresh(task, f"{buffer}_padded")
    iters, written = over(shape)
    at = tuple(op("add", i, lo) for i, lo in zip(written, low, strict=True))
    inside = [op(c.name, at[d], c.args[1]) for d, cs in guarded.items() for c in cs if isinstance(c, Op)]
    value: Expr = Load(buffer, at)
    for condition in reversed(inside):
        value = select(condition, value, fill)
    copy = Block(fresh(task, f"pad_{buffer}"), iters, (Load(padded, written),), (value,))
    shifted = (op("sub", i, lo) for i, lo in zip(read.indices, low, strict=True))
    new_read = Load(padded, tuple(simplify(i, reader.ranges) for i in shifted))
    anchor = replace(
        reader.mapped(lambda e: new_read if e == read else None), where=tuple(c for c in reader.where if c in kept)
    )
    layout = source.layout if source.layout.permutation is not None else Layout()
    new = Buffer(padded, source.dtype, tuple(shape), layout)
    return replaced(task, exchanged(task, reader, copy, anchor), new)


def _same(a: Expr, b: Expr) -> bool:
    x, y = linear(a), linear(b)
    return x is not None and y is not None and dict(x.terms) == dict(y.terms) and x.constant == y.constant


def _innermost_layout(rank: int, dim: int) -> Layout:
    """The layout that stores dimension `dim` element by element; -1: row-major."""
    order = tuple(d for d in range(rank) if d != dim) + ((dim,) if dim >= 0 else ())
    return stored_in(order)


def cache_read_rule(task: Task, block: str, buffer: str, innermost: int = -1, dtype: str = "") -> Task:
    reader = plain_block(task, block)
    source = task.buffer(buffer)
    copy_name = fresh(task, f"{buffer}_packed")
    iters, at = over(source.shape)
    value: Expr = cast(dtype, Load(buffer, at)) if dtype else Load(buffer, at)
    copy = Block(fresh(task, f"pack_{buffer}"), iters, (Load(copy_name, at),), (value,))

    def visit(e: Expr) -> Expr | None:
        if dtype and isinstance(e, Op) and e.dtype == dtype and isinstance(e.args[0], Load):
            return Load(copy_name, e.args[0].indices) if e.args[0].buffer == buffer else None
        return Load(copy_name, e.indices) if not dtype and isinstance(e, Load) and e.buffer == buffer else None

    anchor = reader.mapped(visit)
    if buffer in anchor.buffers_read:
        raise DoesNotApply(f"block {block} reads {buffer} otherwise than as {dtype}")
    layout = _innermost_layout(len(source.shape), innermost)
    new = Buffer(copy_name, dtype or source.dtype, source.shape, layout)
    return replaced(task, exchanged(task, reader, copy, anchor), new)


def stage_write_rule(task: Task, block: str, innermost: int) -> Task:
    writer = plain_block(task, block)
    if len(writer.writes) != 1 or (writer.aggregation != "assign" and task.blocks[-1] is not writer):
        raise DoesNotApply(f"block {block} is not the one that writes the result")
    (write,) = writer.writes
    target = task.buffer(write.buffer)
    if target.name not in task.outputs or any(target.name in b.buffers_read for b in task.blocks):
        raise DoesNotApply(f"{target.name} is no result, or is read on")
    name = fresh(task, f"{target.name}_staged")
    iters, at = over(target.shape)
    store = Block(fresh(task, f"store_{target.name}"), iters, (Load(target.name, at),), (Load(name, at),))
    moved = replace(writer, writes=(Load(name, write.indices),))
    layout = _innermost_layout(len(target.shape), innermost)
    new = Buffer(name, target.dtype, target.shape, layout)
    return replaced(task, exchanged(task, writer, moved, store), new)


def cache_write_rule(task: Task, block: str) -> Task:
    writer = plain_block(task, block)
    if len(writer.writes) != 1:
        raise DoesNotApply(f"block {block} writes several buffers")
    (write,) = writer.writes
    target = task.buffer(write.buffer)
    name = fresh(task, f"{write.buffer}_acc")
    spatial = writer.spatial
    local = Load(name, tuple(Var(i.name) for i in spatial))
    inside = [
        op("lt", i, n)
        for i, n in zip(write.indices, target.shape, strict=True)
        if (limits := bounds(i, writer.ranges)) is None or limits[1] >= n
    ]
    copy = Block(fresh(task, f"write_{write.buffer}"), spatial, (write,), (local,), "assign", tuple(inside))

    def read_local(e: Expr) -> Expr | None:
        return Load(name, e.indices) if isinstance(e, Load) and e.buffer == write.buffer else None

    position = task.blocks.index(writer)
    later = task.blocks[position + 1 :]
    if write.buffer in task.outputs and write.indices == local.indices:  # others read it where it is made
        later = tuple(b.mapped(read_local) if isinstance(b, Block) else b for b in later)
    blocks = [*task.blocks[:position], replace(writer, writes=(local,)), copy, *later]
    return replaced(task, blocks, Buffer(name, target.dtype, tuple(i.extent for i in spatial)))
