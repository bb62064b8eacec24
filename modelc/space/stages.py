"""Derivation rules that rewrite a Task before it is tiled (Ansor, table 1). Each is a named stage of a Candidate.

    inline(block)              the block's body is substituted where its result is read (always-inline)
    pad(block, buffer)         a copy of `buffer` with its padding in place is read instead; the conditions go
    cache_read(block, buffer, innermost)  the block reads a copy of `buffer`, with a dimension of choice innermost
    stage_write(block, innermost)  the result is written to storage of another order first
    cache_write(block)         the block's result gets a local buffer; a copy writes it out
    lane_split(block, iter, lanes)  a reduction into one partial result per vector lane, then across the lanes
    collapse(block, outer, inner)   two iterators become one, in every Block that shares them through buffers
    winograd(block, m)              minimal filtering: see winograd.py
    defer(block)                    a factor that a contraction's sums have in common: see defer.py
    factor(block, buffer, dim)      a dimension indexed `a * n + b` becomes two, `a` and `b` (groups, phases)
    expose(buffer)             a dimension that the buffer's layout splits becomes two: ALT's index rewriting

A rule that does not apply raises DoesNotApply: the caller asks before it puts the stage into a Candidate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

from numpy.typing import NDArray

from modelc.ir.affine import bounds, linear, simplify
from modelc.ir.block import AGGREGATIONS, AnyBlock, Block, Buffer, Iter, Task, inline
from modelc.ir.candidate import Stage
from modelc.ir.expr import Const, Expr, Load, Op, Var, loads, op, select, substitute, walk
from modelc.ir.layout import Layout, Primitive
from modelc.space.defer import defer_rule
from modelc.space.rule import DoesNotApply, fresh, replaced
from modelc.space.winograd import error_bound, transformed_kernel, winograd_rule


def constant_data(task: Task, stages: tuple[Stage, ...], name: str, data: NDArray[Any]) -> NDArray[Any]:
    """What constant `name` of `task` holds after `stages`, some of which compute it anew."""
    for stage in stages:
        if stage.rule == "winograd":
            data = transformed_kernel(task, name, data, **stage.args)  # type: ignore[arg-type]
        task = RULES[stage.rule](task, **stage.args)
    return data


def filtering_error(task: Task, stages: tuple[Stage, ...]) -> float:
    """The error bound of minimal filtering among `stages` (winograd.error_bound); 0 where there is none."""
    for stage in stages:
        if stage.rule == "winograd":
            return error_bound(task, **stage.args)  # type: ignore[arg-type]
        task = RULES[stage.rule](task, **stage.args)
    return 0.0


def derive(task: Task, stages: tuple[Stage, ...]) -> Task:
    """`task` after `stages`, in order."""
    for stage in stages:
        task = RULES[stage.rule](task, **stage.args)
    return task


def _plain(task: Task, name: str) -> Block:
    block = task.block(name)
    if not isinstance(block, Block):
        raise DoesNotApply(f"block {name} is opaque")
    return block


def inline_rule(task: Task, block: str) -> Task:
    producer = _plain(task, block)
    if len(producer.writes) != 1 or producer.aggregation != "assign" or producer.where:
        raise DoesNotApply(f"block {block} is no unconditional map")
    (write,) = producer.writes
    if write.buffer in task.outputs or not all(_names_one(i, producer) for i in write.indices):
        raise DoesNotApply(f"what block {block} writes is needed, or not written plainly")
    if any(
        b is not producer and isinstance(b, Block) and write.buffer in {w.buffer for w in b.writes} for b in task.blocks
    ):
        raise DoesNotApply(f"{write.buffer} has several writers")
    blocks: list[AnyBlock] = []
    for b in task.blocks:
        if b is producer:
            continue
        if not isinstance(b, Block):
            if write.buffer in b.inputs:
                raise DoesNotApply(f"{write.buffer} is read by an opaque block")
            blocks.append(b)
            continue
        blocks.append(inline(b, _variable_writes(producer)) if write.buffer in {r.buffer for r in b.reads} else b)
    if task.anchor == block:
        raise DoesNotApply("the anchor is not inlined")
    return replaced(task, blocks, list(task.buffers))


def _names_one(index: Expr, block: Block) -> bool:
    return isinstance(index, Var) or index == Const(0)


def _variable_writes(producer: Block) -> Block:
    """The producer with constant write indices replaced by iterators of extent 1, so that inline() can bind them."""
    (write,) = producer.writes
    indices = tuple(i if isinstance(i, Var) else Var(f"unit{k}") for k, i in enumerate(write.indices))
    return replace(producer, writes=(Load(write.buffer, indices),))


def _uncast(e: Expr) -> Expr:
    return _uncast(e.args[0]) if isinstance(e, Op) and e.name == "cast" else e


def _factors(e: Expr) -> list[Expr]:
    return [f for a in e.args for f in _factors(a)] if isinstance(e, Op) and e.name == "mul" else [e]


def pad_rule(task: Task, block: str, buffer: str) -> Task:
    reader = _plain(task, block)
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
    if reader.aggregation == "add" and read in map(_uncast, _factors(body)):
        fill = Const(0.0 if source.dtype[0] in "fb" else 0, source.dtype)
    elif body == read:
        fill = AGGREGATIONS[reader.aggregation].identity((source.dtype,))[0]
    else:
        raise DoesNotApply(f"padding {buffer} would change what block {block} computes")
    low, shape = [], []
    for d, index in enumerate(read.indices):
        limits = bounds(index, reader.ranges)
        if d in guarded and limits is None:
            raise DoesNotApply(f"index {index} of {buffer} has no bounds")
        assert limits is not None or d not in guarded
        low.append(limits[0] if d in guarded and limits else 0)
        shape.append(limits[1] - limits[0] + 1 if d in guarded and limits else source.shape[d])
    padded = fresh(task, f"{buffer}_padded")
    iters = tuple(Iter(f"p{chr(97 + d)}", n) for d, n in enumerate(shape))
    at = tuple(op("add", Var(i.name), lo) for i, lo in zip(iters, low, strict=True))
    inside = [op(c.name, at[d], c.args[1]) for d, cs in guarded.items() for c in cs if isinstance(c, Op)]
    inside = [c for c in inside if not _always(c, {i.name: i.extent for i in iters})]
    value: Expr = Load(buffer, at)
    for condition in reversed(inside):
        value = select(condition, value, fill)
    copy = Block(fresh(task, f"pad_{buffer}"), iters, (Load(padded, tuple(Var(i.name) for i in iters)),), (value,))
    new_read = Load(padded, tuple(op("sub", i, lo) for i, lo in zip(read.indices, low, strict=True)))
    new_read = Load(padded, tuple(simplify(i, reader.ranges) for i in new_read.indices))
    anchor = replace(
        reader.mapped(lambda e: new_read if e == read else None), where=tuple(c for c in reader.where if c in kept)
    )
    layout = source.layout if source.layout.permutation is not None else Layout()
    blocks = [x for b in task.blocks for x in ([copy, anchor] if b is reader else [b])]
    return replaced(task, blocks, [*task.buffers, Buffer(padded, source.dtype, tuple(shape), layout)])


def _same(a: Expr, b: Expr) -> bool:
    x, y = linear(a), linear(b)
    return x is not None and y is not None and dict(x.terms) == dict(y.terms) and x.constant == y.constant


def _always(condition: Expr, ranges: dict[str, int]) -> bool:
    assert isinstance(condition, Op)
    a, b = (bounds(x, ranges) for x in condition.args)
    if a is None or b is None:
        return False
    return {"lt": a[1] < b[0], "le": a[1] <= b[0], "gt": a[0] > b[1], "ge": a[0] >= b[1]}.get(condition.name, False)


def innermost_layout(rank: int, dim: int) -> Layout:
    """The layout that stores dimension `dim` element by element; -1: row-major."""
    order = tuple(d for d in range(rank) if d != dim) + ((dim,) if dim >= 0 else ())
    return Layout() if order == tuple(range(rank)) else Layout((Primitive("reorder", order),))


def cache_read_rule(task: Task, block: str, buffer: str, innermost: int = -1) -> Task:
    reader = _plain(task, block)
    source = task.buffer(buffer)
    copy_name = fresh(task, f"{buffer}_packed")
    iters = tuple(Iter(f"p{chr(97 + d)}", n) for d, n in enumerate(source.shape))
    at = tuple(Var(i.name) for i in iters)
    copy = Block(fresh(task, f"pack_{buffer}"), iters, (Load(copy_name, at),), (Load(buffer, at),))
    anchor = reader.mapped(lambda e: Load(copy_name, e.indices) if isinstance(e, Load) and e.buffer == buffer else None)
    blocks = [x for b in task.blocks for x in ([copy, anchor] if b is reader else [b])]
    layout = innermost_layout(len(source.shape), innermost)
    return replaced(task, blocks, [*task.buffers, Buffer(copy_name, source.dtype, source.shape, layout)])


def stage_write_rule(task: Task, block: str, innermost: int) -> Task:
    writer = _plain(task, block)
    if len(writer.writes) != 1 or (writer.aggregation != "assign" and task.blocks[-1] is not writer):
        raise DoesNotApply(f"block {block} is not the one that writes the result")
    (write,) = writer.writes
    target = task.buffer(write.buffer)
    if target.name not in task.outputs or any(
        target.name in {r.buffer for r in b.reads} for b in task.blocks if isinstance(b, Block)
    ):
        raise DoesNotApply(f"{target.name} is no result, or is read on")
    name = fresh(task, f"{target.name}_staged")
    iters = tuple(Iter(f"p{chr(97 + d)}", n) for d, n in enumerate(target.shape))
    at = tuple(Var(i.name) for i in iters)
    store = Block(fresh(task, f"store_{target.name}"), iters, (Load(target.name, at),), (Load(name, at),))
    moved = replace(writer, writes=(Load(name, write.indices),))
    blocks = [x for b in task.blocks for x in ([moved, store] if b is writer else [b])]
    layout = innermost_layout(len(target.shape), innermost)
    return replaced(task, blocks, [*task.buffers, Buffer(name, target.dtype, target.shape, layout)])


def cache_write_rule(task: Task, block: str) -> Task:
    writer = _plain(task, block)
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
    return replaced(task, blocks, [*task.buffers, Buffer(name, target.dtype, tuple(i.extent for i in spatial))])


def lane_split_rule(task: Task, block: str, iter: str, lanes: int) -> Task:
    across = _plain(task, block)
    target = next((i for i in across.reduction if i.name == iter), None)
    if (
        target is None
        or len(across.writes) != 1
        or not all(isinstance(i, (Var, Const)) for i in across.writes[0].indices)
    ):
        raise DoesNotApply(f"block {block} does not reduce over {iter}, or writes several buffers")
    dtype = task.buffer(across.writes[0].buffer).dtype
    lane, name = _lane_name(across), fresh(task, f"{block}_lanes")
    whole = op("add", op("mul", Var(iter), lanes), Var(lane))
    chunks = -(-target.extent // lanes)
    partial = across.mapped(lambda e: whole if e == Var(iter) else None)
    iters = [Iter(iter, chunks, True) if i is target else i for i in across.iters]
    spatial = across.spatial
    buffer = fresh(task, f"{name}_sum")
    write = Load(buffer, (*(Var(i.name) for i in spatial), Var(lane)))
    where = partial.where if target.extent % lanes == 0 else (*partial.where, op("lt", whole, target.extent))
    partial = replace(partial, name=name, iters=(*iters, Iter(lane, lanes)), writes=(write,), where=where)
    last = replace(across, iters=(*spatial, Iter(lane, lanes, True)), body=(write,), where=())
    blocks = [x for b in task.blocks for x in ([partial, last] if b is across else [b])]
    shape = (*(i.extent for i in spatial), lanes)
    return replaced(task, blocks, [*task.buffers, Buffer(buffer, dtype, shape)])


def _lane_name(block: Block) -> str:
    names = {i.name for i in block.iters}
    return next(x for x in ("l", "lane", "lane_") if x not in names)


def collapse_rule(task: Task, block: str, outer: str, inner: str) -> Task:
    pairs, merged = _collapsible(task, block, outer, inner)
    blocks: list[AnyBlock] = []
    for b in task.blocks:
        if not isinstance(b, Block) or b.name not in pairs:
            blocks.append(b)
            continue
        a, c = pairs[b.name]
        name = a + c if a + c not in b.ranges else a + c + "_"
        extent = b.ranges[a] * b.ranges[c]

        def visit(e: Expr, name: str = name) -> Expr | None:
            if isinstance(e, Load) and e.buffer in merged:
                d, f = merged[e.buffer]
                return Load(e.buffer, tuple(Var(name) if k == d else i for k, i in enumerate(e.indices) if k != f))
            return None

        new = b.mapped(visit)
        writes = tuple(visit(w) or w for w in new.writes)
        iters = tuple(Iter(name, extent, i.reduce) if i.name == a else i for i in b.iters if i.name != c)
        blocks.append(replace(new, iters=iters, writes=writes))  # type: ignore[arg-type]
    buffers = [_merged(b, *merged[b.name]) if b.name in merged else b for b in task.buffers]
    return replace(task, blocks=tuple(blocks), buffers=tuple(buffers))


def _collapsible(
    task: Task, block: str, outer: str, inner: str
) -> tuple[dict[str, tuple[str, str]], dict[str, tuple[int, int]]]:
    """Iterator pairs by block and dimension pairs by buffer that have to be merged along. Raises DoesNotApply."""
    pairs: dict[str, tuple[str, str]] = {block: (outer, inner)}
    merged: dict[str, tuple[int, int]] = {}
    todo = [block]
    while todo:
        b = _plain(task, todo.pop())
        a, c = pairs[b.name]
        kinds = [i.reduce for i in b.iters if i.name in (a, c)]
        if len(kinds) != 2 or kinds[0] != kinds[1]:
            raise DoesNotApply(f"{a} and {c} are not of one kind in block {b.name}")
        used = sum(e == Var(a) or e == Var(c) for x in (*b.body, *b.where, *b.writes) for e in walk(x))
        plain = 0
        for access in [x for e in (*b.body, *b.where, *b.writes) for x in loads(e)]:
            dims = [[k for k, i in enumerate(access.indices) if i == Var(v)] for v in (a, c)]
            if dims == [[], []]:
                continue
            if [len(d) for d in dims] != [1, 1]:
                raise DoesNotApply(f"{access} does not index by {a} and {c} plainly")
            plain += 2
            found = (dims[0][0], dims[1][0])
            if merged.setdefault(access.buffer, found) != found:
                raise DoesNotApply(f"{access.buffer} is indexed in two ways")
            if not _adjacent(task, task.buffer(access.buffer), *found):
                raise DoesNotApply(f"dimensions {found} of {access.buffer} are not stored one inside the other")
            for other in task.blocks:
                if not isinstance(other, Block):
                    if access.buffer in (*other.inputs, *other.outputs):
                        raise DoesNotApply("an opaque block reads it")
                    continue
                for x in [x for e in (*other.body, *other.where, *other.writes) for x in loads(e)]:
                    if x.buffer != access.buffer:
                        continue
                    i, j = x.indices[found[0]], x.indices[found[1]]
                    if not isinstance(i, Var) or not isinstance(j, Var):
                        raise DoesNotApply(f"{x} is not indexed plainly")
                    if other.name not in pairs:
                        pairs[other.name] = (i.name, j.name)
                        todo.append(other.name)
                    elif pairs[other.name] != (i.name, j.name):
                        raise DoesNotApply(f"{x} would need other iterators")
                    shape = task.buffer(x.buffer).shape
                    if (other.ranges[i.name], other.ranges[j.name]) != (shape[found[0]], shape[found[1]]):
                        raise DoesNotApply(f"{x} covers a part of {x.buffer} only")
        if used != plain:
            raise DoesNotApply(f"{a} or {c} is used outside plain indices in block {b.name}")
    return pairs, merged


def _adjacent(task: Task, buffer: Buffer, outer: int, inner: int) -> bool:
    if buffer.name not in task.inputs and buffer.name not in task.outputs:
        return not buffer.layout.primitives or buffer.layout.permutation is not None
    if buffer.name in task.constants:
        return not buffer.layout.primitives and inner == outer + 1
    strides = logical_strides(buffer)
    return strides is not None and strides[outer] == strides[inner] * buffer.shape[inner]


def logical_strides(buffer: Buffer) -> tuple[int, ...] | None:
    """Element strides of the logical dimensions; None where the layout does more than reorder."""
    if not buffer.layout.primitives:
        return buffer.physical_strides
    order = buffer.layout.permutation
    if order is None:
        return None
    strides = [0] * len(order)
    for position, dim in enumerate(order):
        strides[dim] = buffer.physical_strides[position]
    return tuple(strides)


def _merged(buffer: Buffer, outer: int, inner: int) -> Buffer:
    """The buffer with two logical dimensions as one."""
    strides = logical_strides(buffer)
    shape = list(buffer.shape)
    shape[outer] *= shape[inner]
    order = buffer.layout.permutation or tuple(range(len(shape)))
    kept = [d for d in order if d != inner]
    if outer not in kept:
        raise DoesNotApply("a dimension was merged twice")
    final = tuple(d - (d > inner) for d in kept)
    new_shape = tuple(n for d, n in enumerate(shape) if d != inner)
    layout = Layout() if final == tuple(range(len(final))) else Layout((Primitive("reorder", final),))
    explicit = None
    if buffer.strides is not None and strides is not None:
        moved = {d: strides[inner] if d == outer else strides[d] for d in kept}
        explicit = tuple(moved[d] for d in kept)
    return replace(buffer, shape=new_shape, layout=layout, strides=explicit)


def factor_rule(task: Task, block: str, buffer: str, dim: int) -> Task:
    owner = _plain(task, block)
    pair = factorable(owner, buffer, dim)
    if pair is None or (buffer in task.inputs and buffer not in task.constants) or buffer in task.outputs:
        raise DoesNotApply(f"dimension {dim} of {buffer} is no product of two iterators of block {block}")
    outer, inner = pair
    size = owner.ranges[inner]
    old = task.buffer(buffer)
    if owner.ranges[outer] * size != old.shape[dim] or old.strides is not None:
        raise DoesNotApply(f"dimension {dim} of {buffer} is covered in part")
    blocks = _all_factored(task, buffer, dim, size)
    shape = (*old.shape[:dim], owner.ranges[outer], size, *old.shape[dim + 1 :])
    order = old.layout.permutation
    if old.layout.primitives and order is None:
        raise DoesNotApply(f"{buffer} is stored in a layout of its own")
    layout = old.layout
    if order is not None:
        wide = [x for d in order for x in ([d + (d > dim)] if d != dim else [dim, dim + 1])]
        layout = Layout((Primitive("reorder", tuple(wide)),))
    buffers = [replace(old, shape=shape, layout=layout) if x.name == buffer else x for x in task.buffers]
    return replace(task, blocks=blocks, buffers=tuple(buffers))


def expose_rule(task: Task, buffer: str) -> Task:
    old = task.buffer(buffer)
    first, *rest = old.layout.primitives or (None,)
    if first is None or first.name != "split" or len(first.args) != 2 or buffer in task.constants:
        raise DoesNotApply(f"the layout of {buffer} does not begin by splitting a dimension in two")
    dim, size = first.args
    blocks = _all_factored(task, buffer, dim, size)
    new = replace(old, shape=first.shape(old.shape), layout=Layout(tuple(rest)))
    return replace(task, blocks=blocks, buffers=tuple(new if x.name == buffer else x for x in task.buffers))


def _all_factored(task: Task, buffer: str, dim: int, size: int) -> tuple[AnyBlock, ...]:
    """The Blocks with dimension `dim` of `buffer` as two, the inner of `size`."""
    if any(buffer in (*b.inputs, *b.outputs) for b in task.blocks if not isinstance(b, Block)):
        raise DoesNotApply(f"{buffer} is used by an opaque block")
    return tuple(_factored(b, buffer, dim, size) if isinstance(b, Block) else b for b in task.blocks)


def factorable(block: Block, buffer: str, dim: int) -> tuple[str, str] | None:
    """The iterators (a, b) by which `block` accesses dimension `dim` of `buffer` as `a * extent(b) + b`."""
    accesses = {x for x in (*block.reads, *block.writes) if x.buffer == buffer}
    if len(accesses) != 1:
        return None
    form = linear(next(iter(accesses)).indices[dim])
    if form is None or form.constant or len(form.terms) != 2:
        return None
    (a, x), (b, y) = sorted(form.terms, key=lambda t: -t[1])
    if isinstance(a, Var) and isinstance(b, Var) and y == 1 < x == block.ranges[b.name]:
        return a.name, b.name
    return None


def _factored(block: Block, buffer: str, dim: int, size: int) -> Block:
    """`block` with dimension `dim` of `buffer` as two; an iterator that indexes it plainly is split in two as well."""
    used = [x for x in (*block.reads, *block.writes) if x.buffer == buffer]
    for index in {x.indices[dim] for x in used}:
        if isinstance(index, Var) and block.ranges[index.name] % size == 0:
            outer, inner = _fresh_iterators(block, index.name)
            whole = op("add", op("mul", Var(outer), size), Var(inner))
            old = index
            iters: list[Iter] = []
            for i in block.iters:
                if i.name == old.name:
                    iters += [Iter(outer, i.extent // size, i.reduce), Iter(inner, size, i.reduce)]
                else:
                    iters.append(i)
            new = block.mapped(lambda e, old=old, whole=whole: whole if e == old else None)  # type: ignore[misc]
            block = replace(new, iters=tuple(iters))
    ranges = block.ranges

    def visit(e: Expr) -> Expr | None:
        if isinstance(e, Load) and e.buffer == buffer and len(e.indices) == rank:
            i = e.indices[dim]
            parts = simplify(op("floordiv", i, size), ranges), simplify(op("mod", i, size), ranges)
            return Load(buffer, (*e.indices[:dim], *parts, *e.indices[dim + 1 :]))
        return None

    rank = len(used[0].indices) if used else 0
    new = block.mapped(visit)
    writes = tuple(visit(w) or w for w in new.writes)
    return replace(new, writes=writes)  # type: ignore[arg-type]


def _fresh_iterators(block: Block, name: str) -> tuple[str, str]:
    taken = set(block.ranges)
    stem = name
    while {f"{stem}q", f"{stem}p"} & taken:
        stem += "_"
    return f"{stem}q", f"{stem}p"


RULES: dict[str, Callable[..., Task]] = {
    "inline": inline_rule,
    "pad": pad_rule,
    "cache_read": cache_read_rule,
    "cache_write": cache_write_rule,
    "stage_write": stage_write_rule,
    "lane_split": lane_split_rule,
    "collapse": collapse_rule,
    "factor": factor_rule,
    "expose": expose_rule,
    "winograd": winograd_rule,
    "defer": defer_rule,
}

__all__ = ["RULES", "DoesNotApply", "derive", "logical_strides", "prod", "substitute"]
