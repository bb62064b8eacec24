"""One Task with buffers in fewer bits: readers cast what they load, and writers round what they store."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from modelc.ir.block import AnyBlock, Block, Buffer, Iter, OpaqueBlock, Task
from modelc.ir.expr import Expr, Load, Op, Var, cast
from modelc.partition.narrow_products import HALF, NARROW, WIDE, operands_of, products


def in_narrow(task: Task, narrow: Collection[str], operands: Collection[str] = (), dtype: str = NARROW) -> Task:
    """`task` with the float32 buffers `narrow` stored as `dtype`: readers cast what they load, and writers round. What
    is accumulated is rounded by a Block of its own when it is done; other Blocks of the Task then read it unrounded,
    unless it is one of a contraction's `operands`. In float16 the contractions whose operands are narrow multiply and
    add up in that."""
    if not narrow:
        return task
    halved = _half_sums(task, {*narrow, *operands}) if dtype == HALF else {}
    task, narrow = _with_local_sums(task, halved, narrow)
    rounding = _Rounding(task, frozenset(narrow), dtype, frozenset(halved))
    blocks: list[AnyBlock] = []
    for block in task.blocks:
        blocks.append(block if isinstance(block, OpaqueBlock) else rounding.block(block, frozenset(operands)))
        blocks += rounding.after(block)
    buffers = [replace(b, dtype=dtype) if b.name in narrow else b for b in task.buffers]
    return replace(task, blocks=tuple(blocks), buffers=(*buffers, *rounding.buffers))


def _half_sums(task: Task, narrow: Collection[str]) -> dict[str, str]:
    """The Blocks that multiply and add up in float16, and what they write."""
    each = products(task, HALF)
    return {b.name: b.writes[0].buffer for b, loads in each if all(x.buffer in narrow for x in loads)}


def _with_local_sums(task: Task, halved: Mapping[str, str], narrow: Collection[str]) -> tuple[Task, frozenset[str]]:
    """The Task and its narrow buffers, what `halved` Blocks write among these; an output of theirs that stays float32
    is made of a sum beside it."""
    buffers, blocks, changed = list(task.buffers), list[AnyBlock](), {*narrow}
    for block in task.blocks:
        written = halved.get(block.name, "")
        if not isinstance(block, Block) or written not in task.outputs or written in narrow:
            blocks.append(block)
            changed |= {written} - {""}
            continue
        target = task.buffer(written)
        local = unused(task, f"{written}_sum")
        buffers.append(Buffer(local, WIDE, target.shape))
        blocks.append(replace(block, writes=(Load(local, block.writes[0].indices),)))
        blocks.append(moving(unused(task, f"widen_{written}"), target.shape, written, local))
        changed.add(local)
    return replace(task, buffers=tuple(buffers), blocks=tuple(blocks)), frozenset(changed)


@dataclass
class _Rounding:
    """How a Task's narrow buffers are written; `sums` are those that are accumulated, in a float32 buffer beside. The
    Blocks `halved` add up in the dtype."""

    task: Task
    narrow: frozenset[str]
    dtype: str
    halved: frozenset[str]
    sums: dict[str, str] = field(default_factory=dict)
    buffers: list[Buffer] = field(default_factory=list)

    def __post_init__(self) -> None:
        taken = {b.name for b in self.task.buffers} | {b.name for b in self.task.blocks}
        for name in sorted(self.narrow - {*self.task.inputs}):
            if all(b.aggregation == "assign" or b.name in self.halved for b in self._writers(name)):
                continue
            wide = next(f"{name}_{k}" for k in range(len(taken) + 1) if f"{name}_{k}" not in taken)
            taken.add(wide)
            self.sums[name] = wide
            buffer = self.task.buffer(name)
            self.buffers.append(Buffer(wide, WIDE, buffer.shape, buffer.layout))

    def _writers(self, name: str) -> list[Block]:
        return [b for b in self.task.blocks if isinstance(b, Block) and any(w.buffer == name for w in b.writes)]

    def block(self, block: Block, operands: frozenset[str]) -> Block:
        if block.name in self.halved:
            return block
        contracted = operands if operands_of(self.task, block) is not None else frozenset[str]()

        def read(e: Expr) -> Expr | None:
            if not isinstance(e, Load) or e.buffer not in self.narrow:
                return None
            if e.buffer in self.sums and e.buffer not in contracted:
                return Load(self.sums[e.buffer], e.indices)
            return cast(WIDE, e)

        new = block.mapped(read)
        writes, body = [], []
        for write, value in zip(new.writes, new.body, strict=True):
            narrowed = write.buffer in self.narrow
            to = self.sums.get(write.buffer, write.buffer)
            writes.append(Load(to, write.indices))
            body.append(self._rounded(value) if narrowed and to == write.buffer else value)
        return replace(new, writes=tuple(writes), body=tuple(body))

    def after(self, block: AnyBlock) -> Iterator[Block]:
        """The Blocks that round what `block` was the last to write."""
        for name, wide in self.sums.items():
            if self._writers(name)[-1] is block:
                shape = self.task.buffer(name).shape
                yield moving(unused(self.task, f"round_{name}"), shape, name, wide, self.dtype)

    def _rounded(self, value: Expr) -> Expr:
        """`value` in the dtype; what was so is moved as it is."""
        inner = value.args[0] if isinstance(value, Op) and value.name == "cast" else None
        return inner if isinstance(inner, Load) and inner.buffer in self.narrow else cast(self.dtype, value)


def moving(name: str, shape: Sequence[int], to: str, source: str, dtype: str = "") -> Block:
    """A Block that gives `to` each element of `source`, as `dtype` if that is said."""
    iters = tuple(Iter(f"i{k}", n) for k, n in enumerate(shape))
    at = tuple(Var(i.name) for i in iters)
    return Block(name, iters, (Load(to, at),), (cast(dtype, Load(source, at)) if dtype else Load(source, at),))


def fresh(base: str, taken: Collection[str]) -> str:
    """A name that is not `taken`: `base`, or with lines after it."""
    while base in taken:
        base += "_"
    return base


def unused(task: Task, base: str) -> str:
    """A name that no buffer and no Block has."""
    return fresh(base, {b.name for b in (*task.blocks, *task.buffers)})
