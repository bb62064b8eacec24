"""Contractions in bfloat16 with sums in float32, or in float16 with short sums in that: Program -> Program.

    before                                          after
    in x0: float32[1, 64, 56, 56]                   in x0: bfloat16[1, 64, 56, 56]
    const x1: float32[64, 64, 1, 1]                 const x1: bfloat16[64, 64, 1, 1]
    out y0: float32[1, 64, 56, 56]                  out y0: bfloat16[1, 64, 56, 56]
    t0[...] += x0[...] * x1[...]                    t0[...] += float32(x0[...]) * float32(x1[...])
    y0[...] = max(t0[...], float32(0.0))            y0[...] = bfloat16(max(t0[...], float32(0.0)))

A contraction is told by its structure: a sum of products of two loads, over iterators that index both. It is worth
bfloat16 where both operands are reused, or where the one that is not is a constant that streams by; a depthwise
convolution, whose data meets one weight each, is neither, and stays in float32; so does a sum of few terms.

Its operands become bfloat16: constants are converted, computed values are stored so by whoever writes them and read
with a cast by everyone, and what has to stay float32 (inputs and outputs of the program, operands of opaque Blocks) is
copied, by the one Task that multiplies it or by a Task of its own. What its Task computes is stored as bfloat16 too,
and so is what merely moves such values.
Inside a Task everything is float32, functions of what is rounded as exact as that needs them (codegen/math_rounded.py);
a result is rounded once, to nearest even, where it is stored.

In float16 the processor multiplies and adds up in one instruction, on twice as many lanes as in float32. A contraction
is worth it where one operand is a constant, depthwise ones too; its Block multiplies what is stored, without a cast,
and adds up in float16 (half_sums.py says how far), which the Blocks after it read as float32:

    t0[...] += x0[...] * x1[...]                    y0[...] = float16(max(float32(t0[...]), float32(0.0)))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.block import AnyBlock, Block, Buffer, OpaqueBlock, Task
from modelc.ir.expr import DTYPES, Expr, Load, Op, cast
from modelc.ir.program import BoundTask, Placed, Program, verify_program
from modelc.partition.narrow_products import HALF, LARGEST, NARROW, WIDE, half_sum, products
from modelc.partition.narrow_task import fresh, in_narrow, moving, unused

LIMIT = {NARROW: float("inf"), HALF: LARGEST}  # of constants that are not infinite then


@dataclass(frozen=True)
class Narrowing:
    """Contractions are in `dtype`, but for those that write one of the values `wide`."""

    dtype: str = NARROW
    wide: frozenset[str] = frozenset()


def to_narrow(program: Program, kept: Collection[str] = (), dtype: str = NARROW) -> Program:
    """`program` with its contractions in `dtype`, but for the Tasks named in `kept`: what these compute is float32,
    from constants in float32. The program's inputs and outputs keep their dtypes."""
    rounded = _Rewrite(program, narrowed(program, kept, dtype)).program()
    verify_program(rounded, "precision")
    return rounded


def contracting_tasks(program: Program, dtype: str = NARROW) -> tuple[str, ...]:
    """The names of the Tasks that `to_narrow` would let multiply `dtype`, in order."""
    beyond = {
        name for name, data in program.constants.items() if data.dtype == WIDE and not _within(data, LIMIT[dtype])
    }
    return tuple(
        bound.task.name
        for bound in program.tasks
        if any(products(bound.task, dtype))
        and beyond.isdisjoint(program.values[bound.values[x]].root for x in bound.task.constants)
    )


def _within(data: NDArray[Any], limit: float) -> bool:
    return not data.size or limit == float("inf") or float(np.abs(data).max()) <= limit


def writing_tasks(program: Program, values: Collection[str], dtype: str = NARROW) -> tuple[str, ...]:
    """Those of contracting_tasks() that write one of `values`: layouts change a Task's name, and not what it writes."""
    outputs = {bound.task.name: bound.outputs for bound in program.tasks}
    return tuple(name for name in contracting_tasks(program, dtype) if not set(values).isdisjoint(outputs[name]))


def with_roundings(program: Program, name: str) -> Program:
    """`program`, all stored as float32, where the Task `name` alone rounds its operands and results as in bfloat16."""
    tasks = [
        replace(bound, task=_with_roundings(bound.task)) if bound.task.name == name else bound
        for bound in program.tasks
    ]
    rounded = replace(program, tasks=tuple(tasks))
    verify_program(rounded, "precision")
    return rounded


def rounded_values(program: Program) -> frozenset[str]:
    """The values that are computed through bfloat16, stored so, or by sums in float16, or made from such values."""
    places = program.values
    roots = {place.root for place in places.values() if place.dtype == NARROW}
    for bound in program.tasks:
        inside = any(b.dtype == NARROW for b in bound.task.buffers) or half_sum(bound.task) is not None
        if inside or any(places[name].root in roots for name in bound.inputs):
            roots |= {places[name].root for name in bound.outputs}
    return frozenset(name for name, place in places.items() if place.root in roots)


# --- the rewrite --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Narrowed:
    """What becomes of a Program's Tasks and values in `dtype`, by names that hold in whatever layouts they have.
    `values` are stored so; `operands` are what contractions multiply so; `shared` are operands that stay float32, and
    that several Tasks read from one copy; `contracting` are the Tasks that multiply so."""

    values: frozenset[str]
    operands: frozenset[str]
    shared: frozenset[str]
    contracting: frozenset[str]
    dtype: str

    def copied(self, bound: BoundTask, operands: frozenset[str]) -> frozenset[str]:
        """Those of its `operands` that a Task reads from constants, or from copies that other Tasks read too."""
        boundary, constants = operands & bound.values.keys(), bound.task.constants
        return frozenset(x for x in boundary if x in constants or bound.values[x] in self.shared)

    def task(self, bound: BoundTask, contracting: bool, converted: Collection[str] = ()) -> Task:
        """`bound`'s Task as to_narrow makes it. `converted` are values that it reads in another layout, from a copy
        which is stored in the dtype if that is what is multiplied."""
        task, operands = bound.task, _contracted(bound.task, self.dtype) if contracting else frozenset()
        copied = self.copied(bound, operands)
        narrow = copied | {x for x, v in bound.values.items() if self.stored(v, v in converted)}
        compact = copied - task.constants  # as the Task that rounds them writes them
        buffers = tuple(replace(b, strides=None) if b.name in compact else b for b in task.buffers)
        task, inside = replace(task, buffers=buffers), {*operands}
        for buffer in (x for x in (*task.inputs, *task.outputs) if x in operands and x not in narrow):
            task, copy = _copied(task, buffer, self.dtype)
            inside = inside - {buffer} | {copy}
        changed = {*narrow, *(inside - {*task.inputs, *task.outputs})}
        return in_narrow(task, {x for x in changed if task.buffer(x).dtype == WIDE}, inside, self.dtype)

    def stored(self, value: str, converted: bool) -> bool:
        """Whether a value, or what it is converted to, is stored in the dtype."""
        return value in self.values or (converted and value in self.operands)


def narrowed(program: Program, kept: Collection[str] = (), dtype: str = NARROW) -> Narrowed:
    """What to_narrow makes of `program`."""
    places, contracting = program.values, {*contracting_tasks(program, dtype)} - {*kept}
    multiplied = [_contracted(b.task, dtype) if b.task.name in contracting else frozenset() for b in program.tasks]
    each = list(zip(program.tasks, multiplied, strict=True))
    roots = _stored_narrow(program, each, _staying(program, kept))
    operands = [(bound, x) for bound, names in each for x in bound.task.inputs if x in names]
    wide = Counter(bound.values[x] for bound, x in operands if places[bound.values[x]].root not in roots)
    return Narrowed(
        frozenset(name for name, place in places.items() if place.root in roots),
        frozenset(bound.values[x] for bound, names in each for x in names & bound.values.keys()),
        frozenset(name for name, count in wide.items() if count > 1),
        frozenset(contracting),
        dtype,
    )


def _staying(program: Program, kept: Collection[str]) -> set[str]:
    """Roots that keep their dtype whoever reads them."""
    places = program.values
    stays = {*program.inputs, *program.outputs}
    stays |= {name for name, place in places.items() if place.dtype != WIDE}
    for bound in program.tasks:
        buffers = {x for b in bound.task.blocks if isinstance(b, OpaqueBlock) for x in (*b.inputs, *b.outputs)}
        buffers |= {*bound.task.outputs, *bound.task.constants} if bound.task.name in kept else set()
        stays |= {places[bound.values[x]].root for x in buffers if x in bound.values}
    return stays


def _stored_narrow(program: Program, each: Sequence[tuple[BoundTask, frozenset[str]]], stays: set[str]) -> set[str]:
    """Roots that are stored in fewer bits: operands, results of contractions, and what only moves such values. `each`
    are the Tasks with what they multiply so."""

    def roots_of(bound: BoundTask, buffers: Iterable[str]) -> set[str]:
        return {program.values[bound.values[x]].root for x in buffers if x in bound.values}

    narrow = {x for bound, names in each if names for x in roots_of(bound, {*names, *bound.task.outputs})} - stays
    writers: dict[str, set[int]] = {}
    for k, bound in enumerate(program.tasks):
        for root in roots_of(bound, bound.task.outputs):
            writers.setdefault(root, set()).add(k)

    def moves(bound: BoundTask) -> bool:
        """Whether the Task gives nothing but elements of values that are stored so."""
        moved = [x for b in bound.task.blocks for x in _moved(b)]
        own = {b.name for b in bound.task.locals}
        return bool(moved) and all(x is not None and (x in own or roots_of(bound, [x]) <= narrow) for x in moved)

    more = narrow
    while more:
        exact = {k for k, bound in enumerate(program.tasks) if moves(bound)}
        more = {root for root, by in writers.items() if by <= exact} - narrow - stays
        narrow |= more
    return narrow


class _Rewrite:
    """One application of what is decided."""

    def __init__(self, program: Program, decided: Narrowed) -> None:
        self.old, self.decided, self.dtype = program, decided, decided.dtype
        self.values, self.constants = dict(program.values), dict(program.constants)
        self.copies: dict[str, str] = {}  # a value that stays float32 -> its copy in the dtype
        self.tasks: list[BoundTask] = []

    def program(self) -> Program:
        for name in self.decided.values:
            self.values[name] = replace(self.values[name], dtype=self.dtype)
            if name in self.constants:
                self.constants[name] = self.constants[name].astype(DTYPES[self.dtype])
        for bound in self.old.tasks:
            contracting, values = bound.task.name in self.decided.contracting, dict(bound.values)
            copied = self.decided.copied(bound, _contracted(bound.task, self.dtype)) if contracting else frozenset()
            for buffer in (x for x in bound.task.inputs if x in copied and values[x] not in self.decided.values):
                values[buffer] = self._copy(values[buffer])
            self.tasks.append(replace(bound, task=self.decided.task(bound, contracting), values=values))
        return self.old.with_tasks(self.tasks, self.values, self.constants)

    def _copy(self, name: str) -> str:
        """A copy in the dtype of a value that stays float32: a constant, or what a Task of its own writes."""
        if name in self.copies:
            return self.copies[name]
        place = self.values[name]
        if place.root in self.constants:
            copy = self._fresh(place.root)
            self.constants[copy] = self.constants[place.root].astype(DTYPES[self.dtype])
            for other in [p for p in self.values.values() if p.root == place.root]:
                inside = copy if other.name == place.root else self._fresh(other.name)
                self.values[inside] = replace(other, name=inside, root=copy, dtype=self.dtype)
                self.copies[other.name] = inside
            return self.copies[name]
        copy = self.copies[name] = self._fresh(name)
        self.values[copy] = Placed(copy, self.dtype, place.shape, place.layout)
        self.tasks.append(_rounding_task(f"to_{self.dtype}_{len(self.copies) - 1}", place, self.values[copy]))
        return copy

    def _fresh(self, name: str) -> str:
        return fresh(f"{name}#{self.dtype}", self.values)


def _contracted(task: Task, dtype: str) -> frozenset[str]:
    """The buffers that contractions worth `dtype` multiply."""
    return frozenset(x.buffer for _, loads in products(task, dtype) for x in loads)


def _moved(block: AnyBlock) -> Iterator[str | None]:
    """The buffers whose elements a Block moves as they are; None for a Block that computes."""
    if not isinstance(block, Block) or block.aggregation not in ("assign", "max", "min"):
        yield None
        return
    for body in block.body:
        yield body.buffer if isinstance(body, Load) else None


def _copied(task: Task, buffer: str, dtype: str) -> tuple[Task, str]:
    """`task` with a copy of what it reads from `buffer`, or writes there for others too, and the copy's name: its
    contractions multiply that."""
    source, copy = task.buffer(buffer), unused(task, f"{buffer}_copy")
    block = moving(unused(task, f"round_{buffer}"), source.shape, copy, buffer)
    multiplied = {b.name: loads for b, loads in products(task, dtype)}

    def visit(e: Expr, operands: tuple[Load, Load]) -> Expr | None:
        return Load(copy, e.indices) if isinstance(e, Load) and e.buffer == buffer and e in operands else None

    blocks = [
        b.mapped(partial(visit, operands=multiplied[b.name])) if isinstance(b, Block) and b.name in multiplied else b
        for b in task.blocks
    ]
    local = Buffer(copy, source.dtype, source.shape, source.layout)
    writers = [k for k, b in enumerate(task.blocks) if isinstance(b, Block) and buffer in {w.buffer for w in b.writes}]
    blocks.insert(max(writers, default=-1) + 1, block)
    return replace(task, blocks=tuple(blocks), buffers=(*task.buffers, local)), copy


def _rounding_task(name: str, source: Placed, target: Placed) -> BoundTask:
    block = moving("round", source.shape, "y0", "x0", target.dtype)
    buffers = (
        Buffer("x0", source.dtype, source.shape, source.layout, source.strides),
        Buffer("y0", target.dtype, target.shape, target.layout),
    )
    return BoundTask(Task(name, buffers, ("x0",), ("y0",), (block,), "round"), {"x0": source.name, "y0": target.name})


def _with_roundings(task: Task) -> Task:
    results = {x for x in task.outputs if task.buffer(x).dtype == WIDE}
    contractions = {block.name: set(loads) for block, loads in products(task)}
    rounded = in_narrow(task, results)
    blocks: list[AnyBlock] = []
    for block in rounded.blocks:
        if isinstance(block, Block):
            operands = contractions.get(block.name, set[Load]())
            block = block.mapped(partial(_through_bfloat16, operands, results))
            wide = [write.buffer in results for write in block.writes]
            body = [cast(WIDE, e) if w else e for e, w in zip(block.body, wide, strict=True)]
            block = replace(block, body=tuple(body))
        blocks.append(block)
    buffers = tuple(replace(b, dtype=WIDE) if b.name in results else b for b in rounded.buffers)
    return replace(rounded, blocks=tuple(blocks), buffers=buffers)


def _through_bfloat16(operands: Collection[Load], results: Collection[str], e: Expr) -> Expr | None:
    """Operands are rounded, and results are read as they are, for they are float32 again."""
    if isinstance(e, Load) and e in operands:
        return cast(WIDE, cast(NARROW, e))
    if isinstance(e, Op) and e.dtype == WIDE and isinstance(e.args[0], Load) and e.args[0].buffer in results:
        return e.args[0]
    return None
