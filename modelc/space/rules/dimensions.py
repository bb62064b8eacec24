"""Derivation rules that make one dimension of two, and two of one: derivation.py names them.

collapse(block, outer, inner)   two iterators become one, in every Block that shares them through buffers
split(block, iter, size)        an iterator of one Block becomes two, the inner of `size`: strips of columns
factor(block, buffer, dim)      a dimension indexed `a * n + b` becomes two, `a` and `b` (groups, phases)
expose(buffer)                  a dimension that the buffer's layout splits becomes two: ALT's index rewriting
"""

from __future__ import annotations

from dataclasses import replace

from modelc.ir.affine import linear, simplify
from modelc.ir.block import AnyBlock, Block, Buffer, Iter, Task
from modelc.ir.expr import Expr, Load, Var, op
from modelc.ir.layout import Layout, stored_in
from modelc.space.rules.rule import DoesNotApply, accesses_moved, plain_block, replaced, unused, with_split


def collapse_rule(task: Task, block: str, outer: str, inner: str) -> Task:
    pairs, merged = _collapsible(task, block, outer, inner)
    blocks: list[AnyBlock] = []
    for b in task.blocks:
        if not isinstance(b, Block) or b.name not in pairs:
            blocks.append(b)
            continue
        a, c = pairs[b.name]
        name = unused(a + c, b.ranges)
        extent = b.ranges[a] * b.ranges[c]

        def visit(e: Expr, name: str = name) -> Expr | None:
            if isinstance(e, Load) and e.buffer in merged:
                d, f = merged[e.buffer]
                return Load(e.buffer, tuple(Var(name) if k == d else i for k, i in enumerate(e.indices) if k != f))
            return None

        iters = tuple(Iter(name, extent, i.reduce) if i.name == a else i for i in b.iters if i.name != c)
        blocks.append(replace(accesses_moved(b, visit), iters=iters))
    return replaced(task, blocks, *(_merged(task.buffer(b), *dims) for b, dims in merged.items()))


def _collapsible(
    task: Task, block: str, outer: str, inner: str
) -> tuple[dict[str, tuple[str, str]], dict[str, tuple[int, int]]]:
    """Iterator pairs by block and dimension pairs by buffer that have to be merged along. Raises DoesNotApply."""
    pairs: dict[str, tuple[str, str]] = {block: (outer, inner)}
    merged: dict[str, tuple[int, int]] = {}
    pending = [block]
    while pending:
        b = plain_block(task, pending.pop())
        a, c = pairs[b.name]
        kinds = [i.reduce for i in b.iters if i.name in (a, c)]
        if len(kinds) != 2 or kinds[0] != kinds[1]:
            raise DoesNotApply(f"{a} and {c} are not of one kind in block {b.name}")
        plain = 0
        for access in b.loads:
            names = [i.name if isinstance(i, Var) else None for i in access.indices]
            dims = [[k for k, name in enumerate(names) if name == v] for v in (a, c)]
            if dims == [[], []]:
                continue
            if [len(d) for d in dims] != [1, 1]:
                raise DoesNotApply(f"{access} does not index by {a} and {c} plainly")
            plain += 2
            pair = (dims[0][0], dims[1][0])
            if merged.setdefault(access.buffer, pair) != pair:
                raise DoesNotApply(f"{access.buffer} is indexed in two ways")
            if not _adjacent(task, task.buffer(access.buffer), *pair):
                raise DoesNotApply(f"dimensions {pair} of {access.buffer} are not stored one inside the other")
            for other in task.blocks:
                if not isinstance(other, Block):
                    if access.buffer in (*other.inputs, *other.outputs):
                        raise DoesNotApply("an opaque block reads it")
                    continue
                for x in other.loads:
                    if x.buffer != access.buffer:
                        continue
                    i, j = x.indices[pair[0]], x.indices[pair[1]]
                    if not isinstance(i, Var) or not isinstance(j, Var):
                        raise DoesNotApply(f"{x} is not indexed plainly")
                    if other.name not in pairs:
                        pairs[other.name] = (i.name, j.name)
                        pending.append(other.name)
                    elif pairs[other.name] != (i.name, j.name):
                        raise DoesNotApply(f"{x} would need other iterators")
                    shape = task.buffer(x.buffer).shape
                    if (other.ranges[i.name], other.ranges[j.name]) != (shape[pair[0]], shape[pair[1]]):
                        raise DoesNotApply(f"{x} covers a part of {x.buffer} only")
        if b.variables.count(a) + b.variables.count(c) != plain:
            raise DoesNotApply(f"{a} or {c} is used outside plain indices in block {b.name}")
    return pairs, merged


def _adjacent(task: Task, buffer: Buffer, outer: int, inner: int) -> bool:
    if buffer.name not in task.inputs and buffer.name not in task.outputs:
        return not buffer.layout.primitives or buffer.layout.permutation is not None
    if buffer.name in task.constants:
        return not buffer.layout.primitives and inner == outer + 1
    strides = buffer.logical_strides
    return strides is not None and strides[outer] == strides[inner] * buffer.shape[inner]


def _merged(buffer: Buffer, outer: int, inner: int) -> Buffer:
    """The buffer with two logical dimensions as one."""
    strides = buffer.logical_strides
    shape = list(buffer.shape)
    shape[outer] *= shape[inner]
    order = buffer.layout.permutation or tuple(range(len(shape)))
    kept = [d for d in order if d != inner]
    if outer not in kept:
        raise DoesNotApply("a dimension was merged twice")
    final = tuple(d - (d > inner) for d in kept)
    new_shape = tuple(n for d, n in enumerate(shape) if d != inner)
    explicit = None
    if buffer.strides is not None and strides is not None:
        moved = {d: strides[inner] if d == outer else strides[d] for d in kept}
        explicit = tuple(moved[d] for d in kept)
    return replace(buffer, shape=new_shape, layout=stored_in(final), strides=explicit)


def factor_rule(task: Task, block: str, buffer: str, dim: int) -> Task:
    owner = plain_block(task, block)
    pair = factorable(owner, buffer, dim)
    if pair is None or (buffer in task.inputs and buffer not in task.constants) or buffer in task.outputs:
        raise DoesNotApply(f"dimension {dim} of {buffer} is no product of two iterators of block {block}")
    outer, inner = pair
    size = owner.ranges[inner]
    old = task.buffer(buffer)
    if owner.ranges[outer] * size != old.shape[dim] or old.strides is not None:
        raise DoesNotApply(f"dimension {dim} of {buffer} is covered in part")
    if old.layout.primitives and old.layout.permutation is None:
        raise DoesNotApply(f"{buffer} is stored in a layout of its own")
    shape = (*old.shape[:dim], owner.ranges[outer], size, *old.shape[dim + 1 :])
    return _all_factored(task, replace(old, shape=shape, layout=with_split(old.layout, dim)), dim, size)


def expose_rule(task: Task, buffer: str) -> Task:
    old = task.buffer(buffer)
    first, *later = old.layout.primitives or (None,)
    if first is None or first.name != "split" or len(first.args) != 2 or buffer in task.constants:
        raise DoesNotApply(f"the layout of {buffer} does not begin by splitting a dimension in two")
    dim, size = first.args
    return _all_factored(task, replace(old, shape=first.shape(old.shape), layout=Layout(tuple(later))), dim, size)


def _all_factored(task: Task, buffer: Buffer, dim: int, size: int) -> Task:
    """`task` with `buffer`, whose dimension `dim` was one and is two, the inner of `size`."""
    if any(buffer.name in (*b.inputs, *b.outputs) for b in task.blocks if not isinstance(b, Block)):
        raise DoesNotApply(f"{buffer.name} is used by an opaque block")
    blocks = (_factored(b, buffer.name, dim, size) if isinstance(b, Block) else b for b in task.blocks)
    return replaced(task, blocks, buffer)


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
            block = _split(block, index.name, size)
    ranges, rank = block.ranges, len(used[0].indices) if used else 0

    def visit(e: Expr) -> Expr | None:
        if isinstance(e, Load) and e.buffer == buffer and len(e.indices) == rank:
            i = e.indices[dim]
            parts = simplify(op("floordiv", i, size), ranges), simplify(op("mod", i, size), ranges)
            return Load(buffer, (*e.indices[:dim], *parts, *e.indices[dim + 1 :]))
        return None

    return accesses_moved(block, visit)


def split_rule(task: Task, block: str, iter: str, size: int) -> Task:
    owner = plain_block(task, block)
    if owner.ranges.get(iter, 0) % size or owner.ranges.get(iter, 0) <= size:
        raise DoesNotApply(f"{iter} of block {block} is not of several times {size} values")
    return replaced(task, [_split(owner, iter, size) if b is owner else b for b in task.blocks])


def _split(block: Block, name: str, size: int) -> Block:
    """`block` with iterator `name` as two, the inner of `size` values."""
    outer, inner = _fresh_iterators(block, name)
    whole, iters = op("add", op("mul", Var(outer), size), Var(inner)), list[Iter]()
    for i in block.iters:
        parts = Iter(outer, i.extent // size, i.reduce), Iter(inner, size, i.reduce)
        iters += parts if i.name == name else [i]
    return replace(block.mapped(lambda e: whole if e == Var(name) else None), iters=tuple(iters))


def _fresh_iterators(block: Block, name: str) -> tuple[str, str]:
    while {f"{name}q", f"{name}p"} & block.ranges.keys():
        name += "_"
    return f"{name}q", f"{name}p"
