"""Derivation rule: a reduction into partial results, then of these (Ansor, table 1: reduction factorization).

The iterator is split into an outer and an inner one; of one of them every value gets a partial result of its own, which
makes it spatial: it can go to threads, or to the lanes of a vector.

    Y[m] += X[m, k]                 k:1000

    parts inner, size 256           Y_parts[m, l] += X[m, k * 256 + l]     k:4  where k * 256 + l < 1000
                                    Y[m] += Y_parts[m, l]                  l:256
    parts outer, size 16, count 3   Y_parts[p, m] += X[m, p * 320 + k]     p:3, k:320
                                    Y[m] += Y_parts[p, m] if p < 3 else X[m, p + 957]     p:43

Sums round otherwise than what was there.
"""

from __future__ import annotations

from dataclasses import replace

from modelc.ir.block import Block, Buffer, Iter, Task
from modelc.ir.expr import Const, Expr, Load, Var, op, select, substitute
from modelc.ir.sizes import is_sized
from modelc.space.rules.rule import DoesNotApply, exchanged, fresh, plain_block, replaced

NAMES = {
    "inner": ("l", "lane", "lane_"),
    "outer": ("p", "part", "part_"),
}  # of the new iterator, the first that is free


def rfactor_rule(task: Task, block: str, iter: str, size: int, parts: str, count: int = 0) -> Task:
    """`block` reduces over `iter`, of which one iterator is spatial then, as `parts` says: the "inner" one, of `size`
    values, or the "outer" one, of `count`, beside an inner one of as many times `size` values as fit. What the outer
    parts leave over is added at the end. Raises DoesNotApply."""
    whole = plain_block(task, block)
    split = next((i for i in whole.reduction if i.name == iter), None)
    if split is None or not all(isinstance(i, (Var, Const)) for w in whole.writes for i in w.indices):
        raise DoesNotApply(f"block {block} does not reduce over {iter}, or does not write plainly")
    if parts == "inner":
        return _factored(task, whole, split, size)
    part = split.extent // count // size * size if count > 0 else 0
    alone = all(i is split or i.extent == 1 for i in whole.reduction)
    if not part or (part * count != split.extent and (not alone or whole.where)):
        raise DoesNotApply(f"{count} parts of whole {size} do not divide {iter} of block {block}")
    left = split.extent - part * count
    return _factored(task, whole, split, part, count, left if alone and (is_sized(left) or left) else None)


def _factored(task: Task, whole: Block, split: Iter, size: int, count: int = 0, leftover: int | None = None) -> Task:
    """With `count` outer parts and `leftover` elements more, where there may be some; or with `size` inner parts, if
    `count` is 0."""
    kind = "outer" if count else "inner"
    part = next(n for n in NAMES[kind] if n not in whole.ranges)
    name = fresh(task, f"{whole.name}_parts" if count else f"{whole.name}_lanes")
    outer, inner = (Var(part), Var(split.name)) if count else (Var(split.name), Var(part))
    element = op("add", op("mul", outer, size), inner)
    left = Iter(split.name, size if count else -(-split.extent // size), True)
    iters = tuple(left if i is split else i for i in whole.iters)
    at: tuple[Expr, ...] = tuple(Var(i.name) for i in whole.spatial)
    shape = tuple(i.extent for i in whole.spatial)
    new = Iter(part, count or size)
    if count:
        iters, at, shape = (new, *iters), (Var(part), *at), (count, *shape)
    else:
        iters, at, shape = (*iters, new), (*at, Var(part)), (*shape, size)
    buffers, writes, ends = list[Buffer](), list[Load](), list[Expr]()
    for k, (write, body) in enumerate(zip(whole.writes, whole.body, strict=True)):
        suffix = "sum" if len(whole.writes) == 1 else f"sum{k}"
        buffer = Buffer(fresh(task, f"{name}_{suffix}"), task.buffer(write.buffer).dtype, shape)
        buffers.append(buffer)
        writes.append(Load(buffer.name, at))
        single: dict[str, Expr] = {i.name: Const(0) for i in whole.reduction}  # others, where elements are left over
        beyond = substitute(body, {**single, split.name: op("add", Var(part), count * size - count)})
        ends.append(select(op("lt", Var(part), count), writes[-1], beyond) if leftover is not None else writes[-1])
    partial = whole.mapped(lambda e: element if e == Var(split.name) else None)
    where = partial.where if count or split.extent % size == 0 else (*partial.where, op("lt", element, split.extent))
    partial = replace(partial, name=name, iters=iters, writes=tuple(writes), where=where)
    last = replace(
        whole, iters=(*whole.spatial, Iter(part, new.extent + (leftover or 0), True)), body=tuple(ends), where=()
    )
    return replaced(task, exchanged(task, whole, partial, last), *buffers)
