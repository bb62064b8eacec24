"""Long sums of products in float16, in parts of as many terms as MOST_TERMS.

A sum in float16 is rounded with every term: after n of them it is off by about 2^-11 * sqrt(n / 6) of itself, where
bfloat16 (of two operands and a result) is off by 2^-8. MOST_TERMS keeps float16 nearer than that. Longer sums are cut
in parts, which are stored as float16 and added up in float32 by a Task of their own, with all that follows:

    before    t0[m, n] += x0[m, k] * x1[k, n]                              k:960
              y0[m, n] = float16(max(float32(t0[m, n]), float32(0.0)))
    after     parts[k_part, m, n] += x0[m, 240 * k_part + k] * x1[k_part, k, n]    k:240

              t0[m, n] += float32(parts[k_part, m, n])                     k_part:4
              y0[m, n] = float16(max(t0[m, n], float32(0.0)))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from modelc.ir.block import Block, Buffer, Iter, Task
from modelc.ir.expr import Expr, Load, Op, Var, cast, op, substitute
from modelc.ir.layout import Layout
from modelc.ir.program import BoundTask, Placed, Program, verify_program
from modelc.partition.narrow_products import HALF, WIDE, half_sum, parts_of, written_by
from modelc.partition.narrow_task import fresh, moving


def with_sums_in_parts(program: Program) -> Program:
    """`program` with sums in float16 of no more than MOST_TERMS."""
    cutting = _Cutting(program, dict(program.values), dict(program.constants))
    for bound in program.tasks:
        block = half_sum(bound.task)
        parts = None if block is None else parts_of(block)
        if block is None or parts is None or all(parts[i.name] == i.extent for i in block.reduction):
            cutting.tasks.append(bound)
        else:
            cutting.cut(bound, block, parts)
    cut = program.with_tasks(cutting.tasks, cutting.values, cutting.constants)
    verify_program(cut, "sums in parts")
    return cut


@dataclass
class _Cutting:
    """One application."""

    old: Program
    values: dict[str, Placed]
    constants: dict[str, NDArray[Any]]
    tasks: list[BoundTask] = field(default_factory=list)

    def cut(self, bound: BoundTask, block: Block, parts: Mapping[str, int]) -> None:
        """The Task as two."""
        task, place = bound.task, bound.task.blocks.index(block)
        sums = task.buffer(block.writes[0].buffer)
        outer = {i.name: i.extent // parts[i.name] for i in block.reduction if parts[i.name] < i.extent}
        names = {name: fresh(f"{name}_part", block.ranges) for name in outer}
        counts = tuple(outer.values())
        stored = fresh(f"{bound.outputs[0]}#parts", self.values)
        layout = _behind(sums.layout if sums.layout.primitives else task.buffer(task.outputs[0]).layout, counts, sums)
        self.values[stored] = Placed(stored, HALF, (*counts, *sums.shape), layout)
        name = fresh("parts", task.dtypes)
        kept = Buffer(name, HALF, (*counts, *sums.shape), layout)

        first, data = self._reindexed(bound, block, parts, names)
        inner = (replace(i, extent=parts.get(i.name, i.extent)) for i in block.iters)
        iters = (
            *(Iter(names[n], outer[n]) for n in outer),
            *(i for i in inner if i.name not in outer or parts[i.name] > 1),
        )
        write = Load(name, (*(Var(n) for n in names.values()), *first.writes[0].indices))
        first = replace(first, iters=iters, writes=(write,))
        every = {b.name: data.get(b.name, b) for b in task.buffers if b.name != sums.name} | {name: kept}
        title = fresh(f"{task.name}_parts", [bound.task.name for bound in (*self.old.tasks, *self.tasks)])
        made = replace(task, name=title, blocks=(*task.blocks[:place], first), outputs=(name,), anchor=first.name)
        self._add(bound, made, every, {name: stored} | {b.name: self._constant(bound, b) for b in data.values()})
        after = _summed(task, block, name, names, outer)
        self._add(bound, after, {name: kept} | {b.name: b for b in after.buffers}, {name: stored})

    def _reindexed(
        self, bound: BoundTask, block: Block, parts: Mapping[str, int], names: Mapping[str, str]
    ) -> tuple[Block, dict[str, Buffer]]:
        """`block` over one part, and the constants that are stored with a dimension in two for it."""
        task, changed = bound.task, dict[str, Buffer]()
        whole: dict[str, Expr] = {
            n: Var(names[n]) if parts[n] == 1 else op("add", op("mul", Var(names[n]), parts[n]), Var(n)) for n in names
        }

        def reindexed(load: Load) -> Load:
            if load.buffer not in task.constants or not self._plain(bound, load.buffer):
                return Load(load.buffer, tuple(substitute(i, whole) for i in load.indices))
            indices, shape = list[Expr](), list[int]()
            for index, extent in zip(load.indices, task.buffer(load.buffer).shape, strict=True):
                divided = isinstance(index, Var) and index.name in names and parts[index.name] > 1
                size = parts[str(index)] if divided else extent
                indices += [Var(names[str(index)]), index] if divided else [substitute(index, whole)]
                shape += [extent // size, size] if divided else [extent]
            if tuple(shape) != task.buffer(load.buffer).shape:
                changed[load.buffer] = replace(task.buffer(load.buffer), shape=tuple(shape))
            return Load(load.buffer, tuple(indices))

        (body,) = block.body
        assert isinstance(body, Op)
        terms = [reindexed(x) if isinstance(x, Load) else x for x in body.args]
        where = tuple(substitute(c, whole) for c in block.where)
        return replace(block, body=(op("mul", *terms),), where=where), changed

    def _plain(self, bound: BoundTask, buffer: str) -> bool:
        """Whether a constant is whole, and lies as the model has it."""
        place = self.values[bound.values[buffer]]
        return place.name in self.constants and place.strides is None and not place.layout.primitives

    def _constant(self, bound: BoundTask, buffer: Buffer) -> str:
        """The constant that `buffer` of `bound` stands for, in another shape."""
        name = bound.values[buffer.name]
        wanted = f"{name}#{'x'.join(map(str, buffer.shape))}"
        if wanted not in self.values:
            self.constants[wanted] = self.constants[name].reshape(buffer.shape)
            self.values[wanted] = replace(self.values[name], name=wanted, root=wanted, shape=buffer.shape)
        return wanted

    def _add(self, bound: BoundTask, task: Task, buffers: Mapping[str, Buffer], values: Mapping[str, str]) -> None:
        """One of the two, with those of the buffers that it needs."""
        made = {written for b in task.blocks for written in written_by(b)}
        read = {x for b in task.blocks for x in b.buffers_read}
        inputs = tuple(x for x in buffers if x in read - made)
        kept = tuple(b for x, b in buffers.items() if x in made or x in inputs)
        task = replace(task, buffers=kept, inputs=inputs, constants=task.constants & {*inputs})
        own = {x: values.get(x) or bound.values[x] for x in (*inputs, *task.outputs)}
        self.tasks.append(BoundTask(task, own, tuple(guard for guard in bound.guards if guard.buffer in inputs)))


def _summed(task: Task, block: Block, parts: str, names: Mapping[str, str], outer: Mapping[str, int]) -> Task:
    """What follows `block` in `task`, after its parts are added up in float32."""
    sums = task.buffer(block.writes[0].buffer)
    total = fresh(f"{sums.name}_sum", task.dtypes)
    iters = tuple(Iter(f"i{k}", n) for k, n in enumerate(sums.shape))
    at = tuple(Var(i.name) for i in iters)
    own = {n: fresh(names[n], [i.name for i in iters]) for n in outer}
    added = Block(
        fresh("sum_parts", [b.name for b in task.blocks]),
        (*iters, *(Iter(own[n], outer[n], True) for n in outer)),
        (Load(total, at),),
        (cast(WIDE, Load(parts, (*(Var(own[n]) for n in outer), *at))),),
        "add",
    )

    def read(e: Expr) -> Expr | None:
        if isinstance(e, Load) and e.buffer == sums.name:
            return cast(HALF, Load(total, e.indices))
        if not (isinstance(e, Op) and e.name == "cast" and e.dtype == WIDE and isinstance(e.args[0], Op)):
            return None
        inner = e.args[0].args[0] if e.args[0].name == "cast" else None
        return inner if isinstance(inner, Load) and inner.buffer == total else None

    after = task.blocks[task.blocks.index(block) + 1 :]
    blocks = [b.mapped(read) if isinstance(b, Block) else b for b in after]
    buffers = [b for b in task.buffers if b.name != sums.name]
    if sums.name in task.outputs:
        buffers.append(sums)
        name = fresh("round_sum", [b.name for b in task.blocks])
        blocks.insert(0, moving(name, sums.shape, sums.name, total, HALF))
    buffers.append(Buffer(total, WIDE, sums.shape, sums.layout))
    return replace(task, buffers=tuple(buffers), blocks=(added, *blocks), anchor=added.name)


def _behind(layout: Layout, counts: Sequence[int], sums: Buffer) -> Layout:
    """The order of dimensions of `layout` behind those of the parts; as they are where it does more than reorder."""
    order = layout.permutation
    if order is None or len(order) != len(sums.shape):
        return Layout()
    return Layout().then("reorder", *range(len(counts)), *(len(counts) + d for d in order))
