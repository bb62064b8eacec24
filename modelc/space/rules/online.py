"""Derivation rule: the keys of attention in parts (reduction factorization, as in rfactor.py, of a row's maximum, its
sums and what it weighs together): the online softmax (Milakov and Gimelshein, Online normalizer calculation for
softmax, 2018; Dao et al., FlashAttention, 2022).

    M[m] max= X[m, n]                       M_parts[p, m] max= X[p, m, n]
    E[m, n] = exp(X[m, n] - M[m])           E[p, m, n] = exp(X[p, m, n] - max(M_parts[p, m], lowest))
    Z[m] += E[m, n]                         Z_parts[p, m] += E[p, m, n]
    Y[m, d] += E[m, n] * V[n, d]            Y_parts[p, m, d] += E[p, m, n] * V[p * size + n, d]
                                            M[m] max= M_parts[p, m]
                                            W[p, m] = exp(max(M_parts[p, m], lowest) - M[m])
                                            Z[m] += W[p, m] * Z_parts[p, m]
                                            Y[m, d] += W[p, m] * Y_parts[p, m, d]

Locals along the keys get the parts as their first dimension: each part is an attention of its own. `lowest` is the
least finite number: the weights of a part that is masked whole, whose maximum is -inf, are 0, and a row that is masked
whole is NaN as before. Sums round otherwise than what was there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from modelc.ir.block import AnyBlock, Block, Buffer, Iter, Task
from modelc.ir.expr import Expr, Load, Var, const, loads, op, substitute, variables
from modelc.ir.factors import factors_of
from modelc.ir.layout import stored_in
from modelc.ir.sizes import is_sized
from modelc.ir.softmax import subtracted_maximum
from modelc.space.rules.rule import DoesNotApply, accesses_moved, fresh, plain_block, replaced, unused

LOWEST = const(float(np.finfo(np.float32).min), "float32")


def online_rule(task: Task, block: str, count: int) -> Task:
    """`block` is the maximum M of rows, whose keys go in `count` equal parts. Raises DoesNotApply."""
    peak = plain_block(task, block)
    row = tuple(Var(i.name) for i in peak.spatial)
    if len(peak.reduction) != 1 or peak.aggregation != "max" or peak.where or peak.writes[0].indices != row:
        raise DoesNotApply(f"block {block} is no maximum of rows")
    keys = peak.reduction[0].extent
    if is_sized(keys) or count < 2 or keys % count:
        raise DoesNotApply(f"{count} equal parts do not divide the {keys} keys of block {block}")
    (maximum,) = peak.writes
    weights, maximum_read = _weights(task, maximum.buffer)
    sums = _sums(task, weights)
    if any(task.buffer(b.writes[0].buffer).dtype != "float32" for b in (peak, *sums)):
        raise DoesNotApply("maxima and sums of rows are not in float32")
    rows, key_of = _rows(task, (peak, *sums))
    part = Iter(unused("p", {i.name for b in task.blocks if isinstance(b, Block) for i in b.iters}), count)
    blocks = {name: _split(plain_block(task, name), key, part, rows) for name, key in key_of.items()}
    buffers = [_in_parts(task.buffer(name), dim, count) for name, dim in rows.items()]
    of_parts = dict[str, Load]()  # the results of the parts, by the reduction
    for whole in (peak, *sums):
        dtype, shape = task.buffer(whole.writes[0].buffer).dtype, (count, *(i.extent for i in whole.spatial))
        buffers.append(Buffer(fresh(task, f"{whole.name}_parts_sum"), dtype, shape))
        load = of_parts[whole.name] = Load(buffers[-1].name, (Var(part.name), *(Var(i.name) for i in whole.spatial)))
        iters = tuple(part if i.name == part.name else i for i in blocks[whole.name].iters)
        name = fresh(task, f"{whole.name}_parts")
        blocks[whole.name] = replace(blocks[whole.name], name=name, iters=iters, writes=(load,))
    finite = op("max", of_parts[block], LOWEST)
    at = dict(zip((i.name for i in peak.spatial), maximum_read.indices, strict=True))
    blocks[weights.name] = blocks[weights.name].mapped(lambda e: substitute(finite, at) if e == maximum_read else None)
    shares = Buffer(fresh(task, f"{block}_shares"), "float32", (count, *(i.extent for i in peak.spatial)))
    share, body = Load(shares.name, (Var(part.name), *row)), op("exp", op("sub", finite, maximum))
    reduced = replace(part, reduce=True)
    joined: dict[str, AnyBlock] = {
        block: replace(peak, iters=(*peak.spatial, reduced), body=(of_parts[block],)),
        "": Block(fresh(task, f"{block}_share"), (part, *peak.spatial), (share,), (body,)),
    }
    late = set[str]()  # what follows from the sums
    for b in task.blocks:
        if isinstance(b, Block) and b in sums:
            own_share = Load(shares.name, (Var(part.name), *_row_of(b, weights, maximum_read)))
            term = op("mul", own_share, of_parts[b.name])
            joined[b.name] = replace(b, iters=(*b.spatial, reduced), body=(term,))
        elif late & b.buffers_read:
            joined[b.name] = b
        if isinstance(b, Block) and b.name in joined and b is not peak:
            late |= {w.buffer for w in b.writes}
    first = [blocks.get(b.name, b) for b in task.blocks if joined.get(b.name) is not b]
    return replaced(task, [*first, *joined.values()], *buffers, shares)


def _row_of(reader: Block, weights: Block, maximum_read: Load) -> tuple[Expr, ...]:
    """The indices of the maximum of the row whose weights `reader` adds up."""
    (read,) = [r for r in reader.reads if r.buffer == weights.writes[0].buffer]
    iterators = dict(zip(map(str, weights.writes[0].indices), read.indices, strict=True))
    return tuple(substitute(i, iterators) for i in maximum_read.indices)


def _weights(task: Task, maximum: str) -> tuple[Block, Load]:
    """The map E that alone reads the `maximum`, exp(X - M), and how it reads it."""
    readers = [b for b in task.blocks if maximum in b.buffers_read]
    weights = readers[0] if len(readers) == 1 and maximum not in task.outputs else None
    read = subtracted_maximum(weights) if isinstance(weights, Block) else None
    if not isinstance(weights, Block) or read is None or read.buffer != maximum:
        raise DoesNotApply(f"{maximum} is not read by one map alone, the exponential of what is less than it")
    if not all(isinstance(i, Var) for i in weights.writes[0].indices):
        raise DoesNotApply(f"block {weights.name} does not write plainly")
    return weights, read


def _sums(task: Task, weights: Block) -> list[Block]:
    """All that reads the weights: sums of products of which they are one factor."""
    buffer, sums = weights.writes[0].buffer, list[Block]()
    for b in (b for b in task.blocks if buffer in b.buffers_read):
        if not isinstance(b, Block) or b.aggregation != "add" or b.where or len(b.body) != 1:
            raise DoesNotApply(f"block {b.name} is no sum of weights")
        factors = [f for f in factors_of(b.body[0]) if isinstance(f, Load) and f.buffer == buffer]
        if len(factors) != 1 or [x.buffer for x in loads(b.body[0])].count(buffer) != 1 or len(b.reduction) != 1:
            raise DoesNotApply(f"block {b.name} does not sum up the weights, each times a factor")
        sums.append(b)
    if not sums or buffer in task.outputs:
        raise DoesNotApply(f"{buffer} is needed")
    return sums


def _rows(task: Task, reducing: Sequence[Block]) -> tuple[Mapping[str, int], Mapping[str, str]]:
    """The locals along the keys, over which Blocks are `reducing`, and which dimension of each that is; the Blocks over
    them, and which of their iterators it is."""
    rows, key_of = dict[str, int](), {b.name: b.reduction[0].name for b in reducing}
    visited, pending = set(key_of), [*reducing]
    while pending:
        block = pending.pop()
        key = key_of[block.name]
        for access in (*block.reads, *block.writes):
            dims = [d for d, i in enumerate(access.indices) if key in variables(i)]
            buffer = task.buffer(access.buffer)
            if not dims or buffer not in task.locals:
                continue
            if len(dims) > 1 or access.indices[dims[0]] != Var(key) or rows.setdefault(buffer.name, dims[0]) != dims[0]:
                raise DoesNotApply(f"{access} is not read or written plainly along the keys")
            split = buffer.layout.primitives and buffer.layout.permutation is None
            if split or buffer.strides is not None or buffer.shape[dims[0]] != block.ranges[key]:
                raise DoesNotApply(f"{buffer.name} is stored in a layout of its own, or is used in part")
            for other in (plain_block(task, b.name) for b in task.blocks):
                indices = {x.indices[dims[0]] for x in (*other.reads, *other.writes) if x.buffer == buffer.name}
                if not indices:
                    continue
                (index, *more) = indices
                if not isinstance(index, Var) or more or key_of.setdefault(other.name, index.name) != index.name:
                    raise DoesNotApply(f"block {other.name} does not go through {buffer.name} by keys")
                if other.name not in visited:
                    visited.add(other.name)
                    pending.append(other)
    return rows, key_of


def _in_parts(buffer: Buffer, dim: int, count: int) -> Buffer:
    """A local along the keys with the parts as its first dimension."""
    shape = (size // count if d == dim else size for d, size in enumerate(buffer.shape))
    order = buffer.layout.permutation or range(len(buffer.shape))
    return replace(buffer, shape=(count, *shape), layout=stored_in([0, *(d + 1 for d in order)]))


def _split(block: Block, key: str, part: Iter, rows: Mapping[str, int]) -> Block:
    """`block` with its iterator `key` as two, of parts and within one; `rows` get the parts as a first dimension."""
    size = block.ranges[key] // part.extent
    element = op("add", op("mul", Var(part.name), size), Var(key))

    def visit(e: Expr) -> Expr | None:
        if isinstance(e, Load) and e.buffer in rows:
            indices = (Var(key) if d == rows[e.buffer] else i for d, i in enumerate(e.indices))
            return Load(e.buffer, (Var(part.name), *indices))
        return element if e == Var(key) else None

    (keys,) = [i for i in block.iters if i.name == key]
    iters = (replace(part, reduce=keys.reduce), *(replace(i, extent=size) if i is keys else i for i in block.iters))
    return replace(accesses_moved(block, visit), iters=iters)
