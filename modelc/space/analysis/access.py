"""What a Block's accesses say about its iterators: strides in storage, who is reused by whom.

Closed forms on the affine accesses (TensorIR 4.2's characteristic vectors, Stripe's strides); never operator names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from modelc.ir.affine import linear, simplify
from modelc.ir.block import Block, Buffer, Task
from modelc.ir.expr import Expr, Load, Op, Var, op, variables
from modelc.ir.layout import Layout
from modelc.target import Target

MOST_STEP = 4  # elements from one lane to the next, where vectors are taken out of a few that are loaded whole


def flat_index(
    task: Task, access: Load, ranges: Mapping[str, int], layouts: Mapping[str, Layout] | None = None
) -> Expr:
    """The element offset of an access in its storage."""
    buffer = task.buffer(access.buffer)
    layout = (layouts or {}).get(buffer.name, buffer.layout)
    indices = layout.apply(access.indices, buffer.shape)
    strides = buffer.physical_strides if layout == buffer.layout else _compact(layout.shape(buffer.shape))
    flat: Expr = op("mul", 0, 0)
    for index, stride in zip(indices, strides, strict=True):
        flat = op("add", flat, op("mul", index, stride))
    return simplify(flat, ranges)


def _compact(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def stride(flat: Expr, iterator: str) -> int | None:
    """How far one step of `iterator` moves in storage; None if that is not one number."""
    form = linear(flat)
    if form is None:
        return 0 if iterator not in variables(flat) else None
    if any(iterator in variables(atom) for atom, _ in form.terms if isinstance(atom, Op)):
        return None
    return form.coefficient(Var(iterator))


@dataclass(frozen=True)
class Access:
    """One Load of a Block with the stride of each iterator in storage (None: not one number)."""

    load: Load
    strides: Mapping[str, int | None]

    @property
    def moves(self) -> frozenset[str]:
        """The iterators that the address depends on (the row of TensorIR's characteristic matrix)."""
        return frozenset(i for i, s in self.strides.items() if s != 0)


def near(step: int | None) -> bool:
    """Whether lanes lie so close that they are taken out of a few whole vectors."""
    return step is not None and 1 < step <= MOST_STEP


def pieces(step: int | None) -> int:
    """Vectors that are loaded, or shuffled out of others, for one vector whose lanes lie `step` apart."""
    return 2 * step - 1 if step is not None and near(step) else 1


def stored_lanes(target: Target, dtype: str) -> int:
    """Elements of `dtype` in one vector; bools lie in memory as bytes."""
    return target.lanes("uint8" if dtype == "bool" else dtype)


def accesses(task: Task, block: Block) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
    """(reads, writes) of a Block."""

    buffers = {b.name: b for b in task.buffers}

    def describe(load: Load) -> Access:
        steps = _linear_strides(buffers[load.buffer], load, block)
        if steps is None:
            flat = flat_index(task, load, block.ranges)
            steps = {i.name: stride(flat, i.name) for i in block.iters}
        return Access(load, steps)

    return tuple(map(describe, block.reads)), tuple(map(describe, block.writes))


def _linear_strides(buffer: Buffer, load: Load, block: Block) -> dict[str, int | None] | None:
    """The strides of an access that is linear in every dimension of a strided buffer (nearly all are): what
    flat_index and stride() give, without building an expression. None for any other."""
    if buffer.layout.primitives and buffer.layout.permutation is None:
        return None
    order = buffer.layout.permutation or range(len(buffer.shape))
    result: dict[str, int | None] = dict.fromkeys(block.ranges, 0)
    long = {i.name for i in block.iters if i.extent > 1}
    for dim, step in zip(order, buffer.physical_strides, strict=True):
        form = linear(load.indices[dim])
        if form is None:
            return None
        for atom, c in form.terms:
            if not isinstance(atom, Var) or atom.name not in result:
                return None
            if atom.name in long:
                result[atom.name] = (result[atom.name] or 0) + c * step
    return result
