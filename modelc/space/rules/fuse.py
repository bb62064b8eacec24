"""Two reductions as one, and the constant that they index with it: a derivation rule that derivation.py names.

fuse(block, outer, inner, multiple)   before, and after fusing s and c to a multiple of 2

    const K: float32[64, 3, 7, 7]                            const K: float32[64, 7, 22]
    block conv [n o h w:112 | c:3 r:7 s:7] add               block conv [n o h w:112 | r:7 sc:22] add
                                                               where w * 2 + sc // 3 < 229
      Y[n, o, h, w] +=                                         Y[n, o, h, w] +=
        X[n, c, h * 2 + r, w * 2 + s] * K[o, c, r, s]            X[n, sc % 3, h * 2 + r, w * 2 + sc // 3] * K[o, r, sc]

In a row of pixels, each with its C channels, what a window of S taps covers lies side by side: channel sc % C of pixel
w + sc // C is element w * C + sc. A unit that adds several products at a time, which three channels do not fill, takes
them along this row. The constant's dimension is padded with zeros to a multiple of what the unit takes; they make what
comes after the window count for nothing (unless it is NaN or infinite).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.affine import bounds, simplify
from modelc.ir.block import Block, Iter, Task
from modelc.ir.expr import Expr, Load, Op, Var, op, rewrite, variables
from modelc.ir.scalar import OPERATIONS
from modelc.space.rules.rule import DoesNotApply, contracted, exchanged, plain_block, replaced, unused


def factors(task: Task, block: Block) -> tuple[Load, Load] | None:
    """(data, constant), where the Block is a sum of their products and alone reads the constant, stored row-major."""
    operands = contracted(task, block)
    if operands is None:
        return None
    stored = task.buffer(operands[1].buffer)
    alone = sum(stored.name in b.buffers_read for b in task.blocks) == 1
    return operands if alone and stored.strides is None and not stored.layout.primitives else None


def fusible(block: Block, constant: Load, name: str) -> bool:
    """Whether a reduction is a dimension of the constant's that is nothing else."""
    reduces = any(i.name == name and i.reduce for i in block.iters)
    return reduces and Var(name) in constant.indices and sum(name in variables(i) for i in constant.indices) == 1


def fuse_rule(task: Task, block: str, outer: str, inner: str, multiple: int) -> Task:
    owner = plain_block(task, block)
    data, constant = _factors(task, owner, outer, inner)
    ranges, size = owner.ranges, owner.ranges[inner]
    depth = _depth(owner, outer, inner, multiple)
    name = unused(outer + inner, ranges)
    whole = {**ranges, name: depth}
    kernel = task.buffer(constant.buffer)
    left = [d for d, i in enumerate(constant.indices) if i not in (Var(outer), Var(inner))]
    packed = Load(kernel.name, (*(constant.indices[d] for d in left), Var(name)))
    digits = {outer: op("floordiv", Var(name), size), inner: op("mod", Var(name), size)}
    unpacked = rewrite(constant, lambda e: digits.get(e.name) if isinstance(e, Var) else None)

    def visit(e: Expr) -> Expr | None:
        if isinstance(e, Load):
            return packed if e == unpacked else Load(e.buffer, tuple(simplify(i, whole) for i in e.indices))
        if isinstance(e, Op) and OPERATIONS[e.name].result == "bool":
            return op(e.name, *(simplify(a, whole) for a in e.args))
        return digits.get(e.name) if isinstance(e, Var) else None

    fused = owner.mapped(visit)
    iters = [Iter(name, depth, True) if i.name == outer else i for i in owner.iters if i.name != inner]
    beyond = [c for x in fused.reads if x.buffer == data.buffer for c in _inside(task, x, whole)]
    where = (*fused.where, *(c for c in beyond if c not in fused.where))
    fused = replace(fused, iters=tuple(iters), where=where)
    shape = (*(kernel.shape[d] for d in left), depth)
    return replaced(task, exchanged(task, owner, fused), replace(kernel, shape=shape))


def _factors(task: Task, block: Block, outer: str, inner: str) -> tuple[Load, Load]:
    operands = factors(task, block)
    if operands is None or outer == inner or not all(fusible(block, operands[1], n) for n in (outer, inner)):
        raise DoesNotApply(f"{outer} and {inner} are no two reductions of block {block.name} that index a constant")
    return operands


def _depth(block: Block, outer: str, inner: str, multiple: int) -> int:
    return -(-block.ranges[outer] * block.ranges[inner] // multiple) * multiple


def _inside(task: Task, access: Load, ranges: dict[str, int]) -> list[Expr]:
    """Conditions that keep an access inside its buffer where padding reaches beyond it."""
    result = []
    for index, extent in zip(access.indices, task.buffer(access.buffer).shape, strict=True):
        limits = bounds(index, ranges)
        if limits is not None and limits[1] >= extent:
            result.append(op("lt", index, extent))
    return result


def fused_constant(
    task: Task, name: str, data: NDArray[Any], block: str, outer: str, inner: str, multiple: int
) -> NDArray[Any]:
    """What constant `name` holds after fuse_rule with these arguments: the two dimensions as one, the last, with zeros
    after it; any other constant as it is."""
    owner = plain_block(task, block)
    _, constant = _factors(task, owner, outer, inner)
    if constant.buffer != name:
        return data
    places = [constant.indices.index(Var(n)) for n in (outer, inner)]
    moved = np.moveaxis(data.reshape(task.buffer(name).shape), places, (-2, -1))
    fused = moved.reshape(*moved.shape[:-2], -1)
    zeros = _depth(owner, outer, inner, multiple) - fused.shape[-1]
    return np.pad(fused, [(0, 0)] * (fused.ndim - 1) + [(0, zeros)])
