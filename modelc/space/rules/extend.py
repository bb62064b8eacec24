"""Derivation rule: a reduction of products in more steps than it has; what it multiplies is zero in those.

    P[m, n] = exp(S[m, n])              n:5      P[m, n] = exp(S[m, n]) if n < 5 else 0     n:8
    Y[m, d] += P[m, n] * V[n, d]        n:5  ->  Y[m, d] += P[m, n] * V[n, d]               n:8

Instructions that add several products at a time get whole steps of them. `extend` alone makes room beside what a map
writes, for whoever reads whole vectors.
"""

from __future__ import annotations

from dataclasses import replace

from modelc.ir.block import Block, Iter, Task
from modelc.ir.expr import Var, const, op, select, variables
from modelc.ir.factors import factors_of
from modelc.space.rules.rule import DoesNotApply, exchanged, plain_block, replaced, sole_map


def extend_rule(task: Task, buffer: str, dim: int, extent: int) -> Task:
    """`task` with its local `buffer`, which one map writes, `extent` long in dimension `dim`: with zeros at the end.
    Raises DoesNotApply."""
    source = task.buffer(buffer)
    writer = sole_map(task, buffer, dim)
    if writer is None or extent < source.shape[dim]:
        raise DoesNotApply(f"{buffer} is not what one map writes plainly for this Task alone")
    index = writer.writes[0].indices[dim]
    value = select(op("lt", index, source.shape[dim]), writer.body[0], const(0, source.dtype))
    longer = replace(writer, iters=_with_extent(writer, str(index), extent), body=(value,))
    shape = (*source.shape[:dim], extent, *source.shape[dim + 1 :])
    return replaced(task, exchanged(task, writer, longer), replace(source, shape=shape))


def _with_extent(block: Block, name: str, extent: int) -> tuple[Iter, ...]:
    return tuple(replace(i, extent=extent) if i.name == name else i for i in block.iters)


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
    return replaced(task, exchanged(task, reader, replace(reader, iters=_with_extent(reader, iter, extent))))
