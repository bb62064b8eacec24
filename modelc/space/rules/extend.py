"""Derivation rule: a reduction of products in more steps than it has; what it multiplies is zero in those.

    P[m, n] = exp(S[m, n])              n:5      P[m, n] = exp(S[m, n]) if n < 5 else 0     n:8
    Y[m, d] += P[m, n] * V[n, d]        n:5  ->  Y[m, d] += P[m, n] * V[n, d]               n:8

Instructions that add several products at a time get whole steps of them. `extend` alone makes room beside what a map
writes, for whoever reads whole vectors.
"""

from __future__ import annotations

from dataclasses import replace

from modelc.ir.block import Block, Task
from modelc.ir.expr import Const, Var, op, select, variables
from modelc.ir.factors import factors_of
from modelc.space.rules.rule import DoesNotApply, plain_block


def extend_rule(task: Task, buffer: str, dim: int, extent: int) -> Task:
    """`task` with its local `buffer`, which one map writes, `extent` long in dimension `dim`: with zeros at the end.
    Raises DoesNotApply."""
    source = task.buffer(buffer)
    writer = extendable(task, buffer, dim)
    if writer is None or extent < source.shape[dim]:
        raise DoesNotApply(f"{buffer} is not what one map writes plainly for this Task alone")
    index = writer.writes[0].indices[dim]
    value = writer.body[0]
    zero = Const(0.0 if source.dtype[0] in "fb" else 0, source.dtype)
    iters = tuple(replace(i, extent=extent) if index == Var(i.name) else i for i in writer.iters)
    longer = replace(writer, iters=iters, body=(select(op("lt", index, source.shape[dim]), value, zero),))
    shape = (*source.shape[:dim], extent, *source.shape[dim + 1 :])
    return replace(
        task,
        blocks=tuple(longer if b is writer else b for b in task.blocks),
        buffers=tuple(replace(b, shape=shape) if b is source else b for b in task.buffers),
    )


def extendable(task: Task, buffer: str, dim: int) -> Block | None:
    """The map that alone writes the local `buffer`, with an iterator for dimension `dim`; None if it is written
    otherwise."""
    source = task.buffer(buffer)
    writers = [b for b in task.blocks if isinstance(b, Block) and buffer in {w.buffer for w in b.writes}]
    split = source.layout.primitives and source.layout.permutation is None
    if source not in task.locals or split or len(writers) != 1:
        return None
    (writer,) = writers
    if writer.aggregation != "assign" or writer.where or len(writer.writes) > 1:
        return None
    index = writer.writes[0].indices[dim]
    whole = isinstance(index, Var) and writer.ranges[index.name] == source.shape[dim]
    return writer if whole else None


def lengthen_rule(task: Task, block: str, iter: str, extent: int) -> Task:
    """`block`, a sum of products of locals, reduces over `extent` values of `iter`: beyond its own all are zero. Raises
    DoesNotApply."""
    reader = plain_block(task, block)
    reads = [r for r in reader.reads if iter in variables(r)]
    factors = [r for b in reader.body for r in factors_of(b)]
    if reader.aggregation != "add" or reader.where or not reads or not all(r in factors for r in reads):
        raise DoesNotApply(f"block {block} adds up no products of what {iter} indexes")
    for read in reads:
        dims = [d for d, i in enumerate(read.indices) if iter in variables(i)]
        if len(dims) > 1 or read.indices[dims[0]] != Var(iter):
            raise DoesNotApply(f"{iter} is no index of {read.buffer} by itself")
        task = extend_rule(task, read.buffer, dims[0], extent)
    iters = tuple(replace(i, extent=extent) if i.name == iter else i for i in reader.iters)
    return replace(task, blocks=tuple(replace(reader, iters=iters) if b is reader else b for b in task.blocks))
