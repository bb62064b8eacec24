"""Derivation rule: a factor that is the same for all that a contraction sums up is multiplied in after the sum.

    P[m, n] = E[m, n] * F[m]              Y_sum[m, d] += E[m, n] * V[n, d]
    Y[m, d] += P[m, n] * V[n, d]    ->    Y[m, d] = Y_sum[m, d] * F[m]

Rounds otherwise than what was there. Attention's normalisation is such a factor: one multiplication per element of the
result instead of one per weight. Where P is stored in a narrower dtype E is instead, and everyone reads it so:
attention normalises by the sum of the very weights that it multiplies.
"""

from __future__ import annotations

from dataclasses import replace

from modelc.ir.block import AnyBlock, Block, Buffer, Task
from modelc.ir.expr import Expr, Load, Op, Var, cast, children, substitute, uncast, variables
from modelc.space.rules.rule import DoesNotApply, exchanged, fresh, map_named, replaced


def defer_rule(task: Task, block: str) -> Task:
    """`block` is the product P; the contraction that alone reads it is found. Raises DoesNotApply."""
    product = map_named(task, block)
    (write,), body = product.writes, uncast(product.body[0])
    if not isinstance(body, Op) or body.name != "mul" or not all(isinstance(a, Load) for a in body.args):
        raise DoesNotApply(f"block {block} is no product of two loads")
    if write.buffer in task.outputs or not all(isinstance(i, Var) for i in write.indices):
        raise DoesNotApply(f"{write.buffer} is needed, or not written plainly")
    reader = _reader(task, write.buffer)
    (read,) = [r for r in reader.reads if r.buffer == write.buffer]
    bound = dict(zip((str(i) for i in write.indices), read.indices, strict=True))
    reduced = {i.name for i in reader.reduction}
    left, right = (substitute(a, bound) for a in body.args)
    if not variables(right) & reduced:
        summed, factor = left, right
    elif not variables(left) & reduced:
        summed, factor = right, left
    else:
        raise DoesNotApply(f"both factors of block {block} change along the sum")
    assert isinstance(summed, Load)
    narrow, wide = (task.buffer(x.buffer).dtype for x in (write, summed))
    (result,) = reader.writes
    shape = tuple(i.extent for i in reader.spatial)
    local = Buffer(fresh(task, f"{result.buffer}_sum"), task.buffer(result.buffer).dtype, shape)
    at = Load(local.name, tuple(Var(i.name) for i in reader.spatial))
    term = summed if narrow == wide else cast(wide, summed)
    body = Op("mul", tuple(term if uncast(a) == read else a for a in children(reader.body[0])))
    contraction = replace(reader, writes=(at,), body=(body,))
    scale = Block(fresh(task, f"scale_{result.buffer}"), reader.spatial, (result,), (Op("mul", (at, factor)),))
    task = replaced(task, [b for b in exchanged(task, reader, contraction, scale) if b is not product], local)
    return task if narrow == wide else _stored_as(task, summed.buffer, narrow, contraction)


def _stored_as(task: Task, buffer: str, dtype: str, done: Block) -> Task:
    """`task` with what a map writes to the local `buffer` stored as `dtype`; Block `done` reads it so already."""
    source = task.buffer(buffer)
    writers = [b for b in task.blocks if isinstance(b, Block) and buffer in {w.buffer for w in b.writes}]
    maps = [b for b in writers if b.aggregation == "assign" and len(b.writes) == 1]
    if source not in task.locals or len(writers) != 1 or not maps:
        raise DoesNotApply(f"{buffer} is not what one map writes for this Task alone")

    def widened(e: Expr) -> Expr | None:
        return cast(source.dtype, e) if isinstance(e, Load) and e.buffer == buffer else None

    def stored(block: AnyBlock) -> AnyBlock:
        if block is writers[0]:
            return replace(writers[0], body=(cast(dtype, writers[0].body[0]),))
        return block.mapped(widened) if isinstance(block, Block) and block is not done else block

    return replaced(task, map(stored, task.blocks), replace(source, dtype=dtype))


def _reader(task: Task, buffer: str) -> Block:
    """The contraction that alone reads `buffer`, once, as a factor of what it adds up."""
    readers = [b for b in task.blocks if not isinstance(b, Block) or buffer in b.buffers_read]
    reader = readers[0] if len(readers) == 1 else None
    if not isinstance(reader, Block) or reader.aggregation != "add" or reader.where or len(reader.writes) > 1:
        raise DoesNotApply(f"{buffer} is not read by one contraction alone")
    body = reader.body[0]
    factors = body.args if isinstance(body, Op) and body.name == "mul" else ()
    if [isinstance(f, Load) and f.buffer == buffer for f in map(uncast, factors)].count(True) != 1:
        raise DoesNotApply(f"{buffer} is no factor of what block {reader.name} adds up")
    if len([r for r in reader.reads if r.buffer == buffer]) != 1:
        raise DoesNotApply(f"block {reader.name} reads {buffer} more than once")
    return reader
